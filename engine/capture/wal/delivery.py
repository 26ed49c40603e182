"""A delivery: changes from the write-ahead log that are put into the buffers in one transaction.

The rows carry the ids that the writers' transactions had. The delivery commits when all of these are visible: so a
snapshot that sees a delivered row sees what it tells of.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from engine.capture.wal.pgoutput import UNCHANGED, Change, Relation, Unchanged, Value
from engine.session.snapshots import PgSnapshot

FLUSH_BYTES = 1 << 20
"""Rows of a source are sent to PostgreSQL in pieces of about this size."""

_SPECIAL = re.compile(rb"[\\\t\n\r]")
_ESCAPES = {b"\\": b"\\\\", b"\t": b"\\t", b"\n": b"\\n", b"\r": b"\\r"}

_CANNOT_BE_STORED = ("22", "23", "42")
"""Classes of errors by which a value does not fit into a buffer."""


class Unfit(Exception):
    """Changes of a source cannot be put into its buffer; the text says why, without any value."""

    def __init__(self, source: int, why: str):
        super().__init__(why)
        self.source = source
        self.why = why


@dataclass(frozen=True, slots=True)
class Target:
    """A buffer that the log fills: its columns, each with the types that it may have in the log, and modifier."""

    source: int
    columns: tuple[tuple[str, frozenset[int], int | None], ...]

    def places(self, relation: Relation) -> list[int]:
        """Where a row of the log has the columns of the buffer. Raises Unfit."""
        at = {name: (place, type_, modifier) for place, (name, type_, modifier) in enumerate(relation.columns)}
        found = []
        for name, types, modifier in self.columns:
            place, type_, given = at.get(name, (-1, 0, -1))
            if type_ not in types or (modifier is not None and given != modifier):
                raise Unfit(self.source, f'column "{name}" has changed')
            found.append(place)
        return found


def field_text(value: bytes | None) -> bytes:
    r"""A value as COPY reads it.

    >>> field_text(None), field_text(b"a\tb")
    (b'\\N', b'a\\tb')
    """
    if value is None:
        return b"\\N"
    return _SPECIAL.sub(lambda found: _ESCAPES[found.group()], value) if _SPECIAL.search(value) else value


def full_xid(xid: int, near: int) -> int:
    """A transaction id of 64 bits from its lower half, by another one that is not 2³¹ transactions away.

    >>> full_xid(4294967290, (1 << 32) + 5), full_xid(7, (1 << 32) + 5) - (1 << 32)
    (4294967290, 7)
    """
    return near + ((xid - near + (1 << 31)) % (1 << 32)) - (1 << 31)


@dataclass(slots=True)
class Delivery:
    """Rows are added to it, and committed together."""

    connection: psycopg.Connection[Any]
    change_id: int
    next_xid: int
    delivered: int
    """Transactions whose commit is before this position have been delivered already."""
    targets: Mapping[int, Target]
    """By the tables that have rows of their source: itself, its partitions, its children."""
    xids: set[int] = field(default_factory=set)
    rows: int = 0
    size: int = 0
    _lines: dict[int, list[bytes]] = field(default_factory=dict)
    _sizes: dict[int, int] = field(default_factory=dict)
    _places: dict[int, tuple[Relation, list[int]]] = field(default_factory=dict)

    @classmethod
    def begin(cls, connection: psycopg.Connection[Any], holder: int) -> Delivery:
        """Raises psycopg.Error, 55000 if this server has lost the lease."""
        row = connection.execute("SELECT pgtrickle._begin_delivery(%s)", [holder]).fetchone()
        assert row is not None
        begun = row[0] if isinstance(row[0], dict) else json.loads(row[0])
        targets: dict[int, Target] = {}
        for entry in begun["targets"]:
            columns = tuple((name, frozenset(types), mod) for name, types, mod in entry["columns"] or ())
            targets |= dict.fromkeys(entry["relations"], Target(entry["source"], columns))
        return cls(connection, begun["change_id"], int(begun["next_xid"]), position(begun["delivered_lsn"]), targets)

    def add(self, xid: int, change: Change, relation: Relation) -> None:
        """Add the images of a changed row. Raises Unfit, psycopg.Error."""
        target = self.targets.get(relation.oid)
        if target is None:
            return  # triggers capture it, or nobody needs it any more
        if (change.incomplete and change.new is not None) or (change.old is not None and not relation.full):
            raise Unfit(target.source, "its REPLICA IDENTITY was changed")
        places = self._placed(target, relation)
        if change.old is not None:
            self._line(target, xid, -1, [change.old[place] for place in places])
        if change.new is not None:
            self._line(target, xid, 1, _completed(change, places))

    def truncated(self, xid: int, relation: int) -> None:
        """A source was emptied, or a part of it."""
        target = self.targets.get(relation)
        if target is not None:
            self._line(target, xid, 0, [None] * len(target.columns))

    def _placed(self, target: Target, relation: Relation) -> list[int]:
        known = self._places.get(relation.oid)
        if known is None or known[0] is not relation:
            known = self._places[relation.oid] = relation, target.places(relation)
        return known[1]

    def _line(self, target: Target, xid: int, weight: int, values: Sequence[Value]) -> None:
        fields = []
        for value in values:
            if isinstance(value, Unchanged):
                raise Unfit(target.source, "a large value is missing in the log")
            fields.append(field_text(value))
        full = full_xid(xid, self.next_xid)
        self.xids.add(full)
        line = b"\t".join([b"%d\t%d\t%d" % (self.change_id, full, weight), *fields]) + b"\n"
        self._lines.setdefault(target.source, []).append(line)
        self.rows += 1
        self.size += len(line)
        size = self._sizes[target.source] = self._sizes.get(target.source, 0) + len(line)
        if size >= FLUSH_BYTES:
            self._flush(target)

    def _flush(self, target: Target) -> None:
        lines = self._lines.pop(target.source, None)
        self._sizes.pop(target.source, None)
        if not lines:
            return
        names = ["__pgt_change_id", "__pgt_xid", "__pgt_w", *(name for name, _, _ in target.columns)]
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
            sql.Identifier("pgtrickle_changes", f"changes_{target.source}"),
            sql.SQL(", ").join(map(sql.Identifier, names)),
        )
        with _fitting(target.source), self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(b"".join(lines))

    def commit(self, end: int, go_on: Callable[[], bool]) -> bool:
        """Commit all that was added, of transactions that end before this position; as long as `go_on` says so.

        Raises Unfit, psycopg.Error.
        """
        for target in self.targets.values():
            self._flush(target)
        if not self._await_writers(go_on):
            self.connection.rollback()
            return False
        self.connection.execute("UPDATE pgtrickle.pgt_wal_progress SET delivered_lsn = %s::pg_lsn", [lsn(end)])
        self.connection.commit()
        return True

    def _await_writers(self, go_on: Callable[[], bool]) -> bool:
        """Wait until the transactions are visible: a commit is in the log a moment before."""
        while True:
            row = self.connection.execute("SELECT pg_catalog.pg_current_snapshot()::text").fetchone()
            assert row is not None
            snapshot = PgSnapshot.parse(row[0])
            if all(snapshot.sees(xid) for xid in self.xids):
                return True
            if not go_on():
                return False
            time.sleep(0.0005)


def _completed(change: Change, places: Sequence[int]) -> list[Value]:
    """The new values; what was not changed is what it was."""
    new, old = change.new or [], change.old
    if old is None:
        return [new[place] for place in places]
    return [old[place] if new[place] is UNCHANGED else new[place] for place in places]


@contextmanager
def _fitting(source: int) -> Any:
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate and error.sqlstate.startswith(_CANNOT_BE_STORED):
            raise Unfit(source, f"its changes cannot be stored ({error.sqlstate})") from error
        raise


def position(text: str) -> int:
    """A position in the log from PostgreSQL's text.

    >>> position("1/10"), lsn(position("1/10"))
    (4294967312, '1/10')
    """
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn(value: int) -> str:
    """The inverse of `position`."""
    return f"{value >> 32:X}/{value & 0xFFFFFFFF:X}"
