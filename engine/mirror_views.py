"""The mirror in Spark: temporary views over the Parquet files that a mirror version names."""

from __future__ import annotations

from collections.abc import Sequence

from engine.mirror import MirrorVersion
from engine.spark_sessions import Session
from sql.columns import Source
from sql.spark import delta_view_name, view_name
from sql.spark_types import column_type
from sql.spark_values import identifier


def create_views(spark: Session, source: Source, names: Sequence[str], version: MirrorVersion) -> None:
    """Make `source_<oid>`, the rows of `names` as of the version's snapshot.

    If the version was asked for with a frontier also `delta_<oid>`, the net changes since: the columns and `__pgt_w`
    BIGINT, which is never 0.
    """
    types = {column.name: column_type(column.type).spark for column in source.columns if column.name in names}
    if version.files:
        reader = spark.read
        if names:
            reader = reader.schema(", ".join(f"{identifier(name)} {types[name]}" for name in names))
        frame = reader.parquet(*version.files)
    else:
        items = ", ".join(f"CAST(NULL AS {types[name]}) AS {identifier(name)}" for name in names) or "1 AS c"
        frame = spark.sql(f"SELECT {items} WHERE FALSE")
    frame.createOrReplaceTempView(view_name(version.source))


def drop_views(spark: Session, version: MirrorVersion) -> None:
    """Remove what `create_views` has made."""
    spark.catalog.dropTempView(view_name(version.source))
    if version.since is not None:
        spark.catalog.dropTempView(delta_view_name(version.source))


__all__ = ["create_views", "drop_views"]
