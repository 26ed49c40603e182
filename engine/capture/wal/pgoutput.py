"""The messages of pgoutput, PostgreSQL's own plugin for logical decoding: protocol version 1, values as text.

PostgreSQL sends a transaction once it has committed, whole and in the order of the commits: Begin, its changes, Commit.
What the columns of a table are is said before its first change, and again when it may have changed.

The formats are in PostgreSQL's manual, "Logical Replication Message Formats".
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TypeAlias


class Unchanged:
    """In the place of a large value that an UPDATE has not changed, which the log does not repeat."""


UNCHANGED = Unchanged()

Value: TypeAlias = bytes | Unchanged | None


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction follows whose commit is at ``lsn``; ``xid`` is the lower half of its id."""

    lsn: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """It is complete; ``end`` is the position after its commit."""

    end: int


@dataclass(frozen=True, slots=True)
class Relation:
    """What a table is at the changes that follow."""

    oid: int
    full: bool
    """Whether old rows come with all columns (REPLICA IDENTITY FULL)."""
    columns: tuple[tuple[str, int, int], ...]
    """Names, OIDs of types and type modifiers; those of generated columns are missing."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row has come (``new``), gone (``old``), or both: it was updated."""

    relation: int
    old: list[Value] | None
    new: list[Value] | None
    incomplete: bool = False
    """Whether the old row is missing, or is not there with all columns."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Tables were emptied."""

    relations: tuple[int, ...]


Message: TypeAlias = Begin | Commit | Relation | Change | Truncate

_BEGIN = Struct(">Q8xI")
_COMMIT = Struct(">x8xQ")
_INT32 = Struct(">I")
_INT16 = Struct(">H")
_TYPE = Struct(">Ii")
_TRUNCATE = Struct(">IB")


def parse(data: bytes) -> Message | None:
    """A message; None for one that says nothing of rows (types, origins). Raises ValueError.

    >>> parse(bytes.fromhex("42" + "00000000016b3748" + "0002b7a8d16c0000" + "000002f1"))
    Begin(lsn=23803720, xid=753)
    """
    kind = data[:1]
    if kind == b"I":
        return Change(_INT32.unpack_from(data, 1)[0], None, _tuple(data, 6)[0])
    if kind == b"U":
        return _update(data)
    if kind == b"D":
        return Change(_INT32.unpack_from(data, 1)[0], _tuple(data, 6)[0], None, incomplete=data[5:6] != b"O")
    if kind == b"B":
        return Begin(*_BEGIN.unpack_from(data, 1))
    if kind == b"C":
        return Commit(*_COMMIT.unpack_from(data, 1))
    if kind == b"R":
        return _relation(data)
    if kind == b"T":
        count, _ = _TRUNCATE.unpack_from(data, 1)
        return Truncate(tuple(_INT32.unpack_from(data, 6 + 4 * i)[0] for i in range(count)))
    if kind in (b"O", b"Y", b"M"):
        return None
    raise ValueError(f"message of kind {kind!r} from pgoutput")


def _update(data: bytes) -> Change:
    relation = _INT32.unpack_from(data, 1)[0]
    kind = data[5:6]
    old: list[Value] | None = None
    at = 5
    if kind in (b"O", b"K"):
        old, at = _tuple(data, 6)
    new, _ = _tuple(data, at + 1)
    return Change(relation, old, new, incomplete=kind != b"O")


def _tuple(data: bytes, at: int) -> tuple[list[Value], int]:
    """The values from a position on, and the position after them."""
    (count,) = _INT16.unpack_from(data, at)
    at += 2
    values: list[Value] = []
    for _ in range(count):
        kind = data[at]
        at += 1
        if kind == 0x74:  # t: text
            (size,) = _INT32.unpack_from(data, at)
            at += 4
            values.append(data[at : at + size])
            at += size
        else:
            values.append(UNCHANGED if kind == 0x75 else None)
    return values, at


def _relation(data: bytes) -> Relation:
    (oid,) = _INT32.unpack_from(data, 1)
    at = data.index(b"\0", 5) + 1  # the schema
    at = data.index(b"\0", at) + 1  # the name
    full = data[at : at + 1] == b"f"
    (count,) = _INT16.unpack_from(data, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        end = data.index(b"\0", at + 1)
        name = data[at + 1 : end].decode()
        columns.append((name, *_TYPE.unpack_from(data, end + 1)))
        at = end + 9
    return Relation(oid, full, tuple(columns))
