"""The mirror in Spark: temporary views over the Parquet files that a mirror version names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.mirror.as_of_sql import CHANGE_ID, SPARK, WEIGHT, XID, MirrorColumn, net_changes, rows_as_of
from engine.mirror.mirror import MirrorVersion
from engine.mirror.state import PRESENCE, arrow_schema
from engine.spark.backends import Session, frame_of
from sql.base.columns import Source
from sql.spark.render import delta_view_name, view_name
from sql.spark.types import column_type
from sql.spark.values import identifier

WHOLE: Mapping[str, str] = {}
FEW: Mapping[str, str] = {"pushdown_filters": "true"}
"""Options for files of which a query wants many rows, and few. Of few Sail reads the columns that these are not found
by in their places only: the keys that a join asks for are a condition, too."""


def create_views(
    spark: Session,
    source: Source,
    names: Sequence[str],
    version: MirrorVersion,
    read: str,
    options: Mapping[str, str] = WHOLE,
) -> None:
    """Make `source_<oid>`, the rows of `names` as of the version's snapshot, in place of what another job made.

    If the version was asked for with a frontier also `delta_<oid>`, the net changes since: the columns and `__pgt_w`
    BIGINT, which is never 0. Each is made only if its name is in the text ``read``: to make one takes milliseconds.

    ``options`` are those with which Spark reads the files of the base.
    """
    types = {name: column_type(type_).spark for name, type_ in version.columns.items()} or {PRESENCE: "BOOLEAN"}
    wanted = {name: types[name] for name in tuple(names) or (next(iter(types)),)}
    if view_name(source.oid) in read:
        _create_rows(spark, version, wanted, {name: types[name] for name in version.key}, options)
    if version.since is not None and delta_view_name(source.oid) in read:
        delta = no_rows({**wanted, WEIGHT: "BIGINT"})
        if version.since_changes:
            log = f"mirror_log_{source.oid}"
            if version.since_changes != version.changes or view_name(source.oid) not in read:
                log = f"mirror_since_{source.oid}"
                _files(spark, log, version.since_changes, _log_types(wanted))
            before = version.since.condition(identifier(XID), identifier(CHANGE_ID))
            after = version.snapshot.condition(identifier(XID))
            delta = net_changes(SPARK, log, _columns(version, wanted), after, before)
        frame_of(spark, delta).createOrReplaceTempView(delta_view_name(source.oid))


def _create_rows(
    spark: Session,
    version: MirrorVersion,
    wanted: Mapping[str, str],
    key: Mapping[str, str],
    options: Mapping[str, str],
) -> None:
    """The view of the rows: what the files of the base have, with what the log says of it."""
    if not version.changes:
        _files(spark, view_name(version.source), version.files, wanted, options)
        return
    base, log, read = f"mirror_base_{version.source}", f"mirror_log_{version.source}", {**wanted, **key}
    _files(spark, base, version.files, read, options)
    _files(spark, log, version.changes, _log_types(read))
    columns, xid = _columns(version, read), identifier(XID)
    net = net_changes(SPARK, log, columns, version.snapshot.condition(xid), version.base_snapshot.condition(xid))
    rows = f"WITH net AS ({net}) {rows_as_of(SPARK, base, 'net', columns, version.key, tuple(wanted))}"
    frame_of(spark, rows).createOrReplaceTempView(view_name(version.source))


def _log_types(types: Mapping[str, str]) -> dict[str, str]:
    return {XID: "BIGINT", CHANGE_ID: "BIGINT", WEIGHT: "SMALLINT", **types}


def _columns(version: MirrorVersion, names: Mapping[str, str]) -> dict[str, MirrorColumn]:
    schema = arrow_schema(version.columns, "")
    return {name: MirrorColumn.of(schema.field(name).type) for name in names}


def _files(
    spark: Session,
    view: str,
    files: Sequence[str],
    types: Mapping[str, str],
    options: Mapping[str, str] = WHOLE,
) -> None:
    """Parquet files as a view with just these columns."""
    if files:
        schema = ", ".join(f"{identifier(name)} {type_}" for name, type_ in types.items())
        frame = spark.read.options(**options).schema(schema).parquet(*files)
    else:
        frame = frame_of(spark, no_rows(types))
    frame.createOrReplaceTempView(view)


def no_rows(types: Mapping[str, str]) -> str:
    """A query that gives no rows, as every planner sees: what is joined with it is not read. Types are Spark's."""
    items = ", ".join(f"CAST(NULL AS {type_}) AS {identifier(name)}" for name, type_ in types.items())
    return f"SELECT {items} WHERE FALSE"


__all__ = ["FEW", "WHOLE", "create_views", "no_rows"]
