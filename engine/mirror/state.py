"""What a mirror holds: a base as of one snapshot, and a log of the changes between two others, which meet.

Layout: ``<root>/<database>/<oid of the source>/base`` and ``.../changes`` are ordinary Delta tables. The base has the
source's captured columns; the log has them, too, and in front of them

- ``__pgt_xid``: the transaction that made the change,
- ``__pgt_change_id``: the number of its statement,
- ``__pgt_w``: 1 for a row that came, -1 for one that went.

The metadata of a commit says, for the base, as of which `snapshot` it is; for the log, that it has every change that
snapshot `to` sees and snapshot `since` does not, and perhaps more. `mirror` is the same in both, and new whenever the
source is copied anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import structlog

from engine.mirror.arrow_copy import arrow_type
from engine.mirror.as_of_sql import CHANGE_ID, WEIGHT, XID
from engine.mirror.delta_table import Committed, Location, StoredFile
from engine.session.snapshots import Frontier, PgSnapshot
from sql.base.columns import Source
from sql.errors import NotExpressible
from sql.spark.types import UNNAMEABLE, column_type

log = structlog.get_logger(__name__)

FORMAT = 3
"""Raised when the way values are stored changes: older mirrors are made anew."""

PRESENCE = "__headwater_row"
"""The column of a mirror of which only the number of rows matters."""

CHANGE_FIELDS = (pa.field(XID, pa.int64()), pa.field(CHANGE_ID, pa.int64()), pa.field(WEIGHT, pa.int16()))


def base_of(place: Location) -> Location:
    return place.below("base")


def changes_of(place: Location) -> Location:
    return place.below("changes")


@dataclass(frozen=True, slots=True)
class MirrorState:
    """A mirror that was found whole, of a source whose changes are captured."""

    mirror: str
    base: Committed
    changes: Committed
    identity: str
    """What it is a copy of (`pgtrickle._mirrored_source`)."""
    columns: Mapping[str, str]
    """Names and PostgreSQL types."""
    snapshot: PgSnapshot
    since: PgSnapshot
    to: PgSnapshot
    cleaned: str
    """The version of the capture's row when the log was last written to."""

    @property
    def key(self) -> tuple[str, ...]:
        """What tells rows apart, the primary key or another; () if there is none or not all of it is in the mirror."""
        return key_of(self.identity, self.columns)

    def covers(self, snapshot: PgSnapshot, frontier: Frontier | None) -> bool:
        """Whether the rows as of a snapshot, and the changes since a frontier, can be told."""
        lowest = [self.snapshot, snapshot] + ([floor(frontier)] if frontier else [])
        return all(self.since.within(each) for each in lowest) and all(
            each.within(self.to) for each in (self.snapshot, snapshot)
        )


def key_of(identity: str | None, columns: Mapping[str, str]) -> tuple[str, ...]:
    """What tells the rows of a mirror apart, by what it is a copy of and its columns; () if nothing does."""
    key = tuple(json.loads(identity)["key"] or ()) if identity else ()
    return key if set(key) <= set(columns) else ()


def ranged_column(identity: str | None, columns: Mapping[str, str]) -> str | None:
    """The column of the key by whose values the files of the base are told apart, None if it has no integers.

    Delta takes a list of names for the columns that have statistics, so that not every name can be one.
    """
    schema = arrow_schema(columns, "")
    for name in key_of(identity, columns):
        if pa.types.is_integer(schema.field(name).type) and name.isidentifier() and name.isascii():
            return name
    return None


def floor(frontier: Frontier) -> PgSnapshot:
    """The frontier's snapshot without its own transaction, of which it may have seen a part only."""
    seen, xid = frontier.snapshot, frontier.xid
    if xid is None or xid >= seen.xmax:
        return seen
    return PgSnapshot(min(seen.xmin, xid), seen.xmax, seen.xip | {xid})


def load(place: Location) -> MirrorState | None:
    """The mirror as it is stored now, None if there is none to be used again. Raises StorageFailed."""
    base = base_of(place).committed()
    if base is None or base.metadata.get("format") != FORMAT or base.metadata.get("identity") is None:
        return None
    changes = changes_of(place).committed()
    if changes is None or changes.metadata.get("mirror") != base.metadata["mirror"]:
        return None
    try:
        state = MirrorState(
            mirror=base.metadata["mirror"],
            base=base,
            changes=changes,
            identity=base.metadata["identity"],
            columns=base.metadata["columns"],
            snapshot=PgSnapshot.parse(base.metadata["snapshot"]),
            since=PgSnapshot.parse(changes.metadata["since"]),
            to=PgSnapshot.parse(changes.metadata["to"]),
            cleaned=changes.metadata["cleaned"],
        )
    except (KeyError, TypeError, ValueError) as error:
        log.warning("mirror_unusable", uri=place.uri, error=str(error))
        return None
    if not state.since.within(state.snapshot) or not state.snapshot.within(state.to):
        log.warning("mirror_unusable", uri=place.uri, error="its changes do not meet its base")
        return None
    return state


def base_metadata(
    mirror: str, snapshot: PgSnapshot, identity: str | None, columns: Mapping[str, str]
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "mirror": mirror,
        "snapshot": str(snapshot),
        "identity": identity,
        "columns": dict(columns),
    }


def changes_metadata(mirror: str, since: PgSnapshot, to: PgSnapshot, cleaned: str) -> dict[str, Any]:
    return {"format": FORMAT, "mirror": mirror, "since": str(since), "to": str(to), "cleaned": cleaned}


def relevant(files: Sequence[StoredFile], one: PgSnapshot, other: PgSnapshot) -> tuple[StoredFile, ...]:
    """The files of the log that may have a change which one of two snapshots sees and the other does not."""
    both, neither = min(one.xmin, other.xmin), max(one.xmax, other.xmax)
    return tuple(
        file
        for file in files
        if not (file.highest is not None and file.highest < both)
        and not (file.lowest is not None and file.lowest >= neither)
    )


def arrow_schema(columns: Mapping[str, str], table: str) -> pa.Schema:
    """The mirror's columns. Raises NotExpressible if a column's type or name cannot be carried."""
    if not columns:
        return pa.schema([(PRESENCE, pa.bool_())])
    fields = []
    for name, type_ in columns.items():
        if UNNAMEABLE & set(name) or name == PRESENCE:
            raise NotExpressible(f'column name "{name}"')
        try:
            fields.append((name, arrow_type(column_type(type_))))
        except NotExpressible as reason:
            raise NotExpressible(f'{reason} of column "{name}" of "{table}"') from None
    if len({name.lower() for name in columns}) < len(columns):
        raise NotExpressible(f'columns of "{table}" that differ in case only')
    return pa.schema(fields)


def carried(columns: Mapping[str, str], wanted: Mapping[str, str], table: str) -> dict[str, str]:
    """The captured columns that a mirror holds: all that it can, besides the wanted ones."""
    kept = dict(wanted)
    for name, type_ in columns.items():
        if name.lower() not in {other.lower() for other in kept}:
            try:
                arrow_schema({name: type_}, table)
            except NotExpressible:
                continue
            kept[name] = type_
    return kept


def declared(source: Source, names: Sequence[str]) -> dict[str, str]:
    """Names and types, as the values are stored, as the query was planned with."""
    types = {column.name: column.stored for column in source.columns}
    return {name: types[name] for name in names}


def folder(database: str) -> str:
    """A directory name of letters, digits and ``_ - ~`` only, which no reader takes for a pattern or decodes.

    >>> folder("sales"), folder("../a b")
    ('sales', '~2e~~2e~~2f~a~20~b')
    """
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"~{ord(found[0]):x}~", database)
