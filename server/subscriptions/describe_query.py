"""The stand-in of a subscription: a SELECT that PostgreSQL can describe, with the same columns and no rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.subscribe import EnvelopeKind
from server.protocol import messages as m
from server.protocol.lexer import tokens
from server.protocol.statements.subscribe_syntax import (
    CopySubscription,
    DeclareCursor,
    Piece,
    Subscription,
    SyntaxFault,
)
from server.protocol.values import codec

MOST_PARAMETERS = 65535
TEXT = 25
_DIGITS = 9
"""More have no parameters' numbers."""

_HIDDEN = b"__pgt_"
"""What columns of a stream table's own begin with."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a RowDescription."""

    name: bytes
    oid: int
    rest: bytes
    """Everything behind the name."""


class DescribeQuery:
    """Text that is made of pieces of the client's statement and of our own words."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._length = 0
        self._pieces: list[tuple[int, Piece]] = []

    def add(self, *parts: bytes | Piece) -> DescribeQuery:
        for part in parts:
            if isinstance(part, Piece):
                self._pieces.append((self._length, part))
                part = part.text
            self._parts.append(part)
            self._length += len(part)
        return self

    @property
    def text(self) -> bytes:
        return b"".join(self._parts)

    def translate(self, response: bytes, text: bytes, encoding: str) -> bytes:
        """An error about the stand-in as one about the client's statement ``text``: with the place there."""
        fields = m.report_fields(response[5:])
        position = fields.pop("P", None)
        if position is not None:
            name = codec(encoding)
            before = self.text.decode(name, "replace")[: int(position) - 1]
            at = len(before.encode(name, "replace"))
            for start, piece in self._pieces:
                if start <= at <= start + len(piece.text):
                    place = len(text[: piece.start + at - start].decode(name, "replace"))
                    fields["P"] = str(place + 1).encode()
        return m.rebuild_report(m.ERROR, fields)


def names(subscription: Subscription) -> DescribeQuery:
    """A SELECT whose columns are those of the query itself."""
    return DescribeQuery().add(b"SELECT hw.* FROM (", *_query(subscription), b") AS hw")


def of_query(subscription: Subscription, types: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> bytes:
    """The parameters' types as `names` declares them: PostgreSQL could not tell those that the query does not have.

    What is wrong with ``types`` is left to PostgreSQL.

    >>> from server.protocol.statements.subscribe_syntax import parse
    >>> limited = parse(b"SUBSCRIBE (SELECT a FROM t WHERE b = $2) UP TO $3 + $1")
    >>> of_query(limited, m.UNTYPED) == m.INT16.pack(2) + m.INT32.pack(TEXT) + m.INT32.pack(0)
    True
    """
    if len(types) % 4 != len(m.UNTYPED):
        return types
    found = tokens(subscription.query.text, backslashes=backslashes, encoding=encoding)
    words = [token.word[1:].lstrip("0") for token in found if token.kind == "number" and token.word.startswith("$")]
    used = {number for word in words if len(word) <= _DIGITS and (number := int(word or "0")) <= MOST_PARAMETERS}
    declared = [oid for (oid,) in m.INT32.iter_unpack(types[2:])]
    declared += [0] * (max(used, default=0) - len(declared))
    known = [oid if number in used else oid or TEXT for number, oid in enumerate(declared, 1)]
    return m.INT16.pack(len(known)) + b"".join(map(m.INT32.pack, known))


def columns(row_description: bytes) -> list[Column]:
    """The columns of a RowDescription message, or of NoData."""
    found = []
    if row_description[0] != m.ROW_DESCRIPTION:
        return []
    position = 7
    for _ in range(m.int16_at(row_description, 5)):
        name = m.text_at(row_description, position)
        position += len(name) + 1
        rest = row_description[position : position + 18]
        found.append(Column(name, m.int32_at(rest, 6), rest))
        position += 18
    return found


def with_formats(description: Sequence[Column], formats: Sequence[int]) -> bytes:
    """A RowDescription of these columns, in Bind's result formats: none, one for all, or one for each."""
    if len(formats) < len(description):
        formats = [formats[0] if formats else 0] * len(description)
    parts = [m.INT16.pack(len(description))]
    for column, code in zip(description, formats, strict=True):
        parts += (column.name, b"\0", column.rest[:16], m.INT16.pack(code))
    return m.message(m.ROW_DESCRIPTION, b"".join(parts))


def build(asked: Subscription | CopySubscription | DeclareCursor, found: Sequence[Column]) -> DescribeQuery:
    """The stand-in, where the query has these columns. Raises SyntaxFault for a key that is none of them."""
    if isinstance(asked, CopySubscription):
        made = DescribeQuery().add(b"COPY (")
        return _select(made, asked.subscription, found).add(b") ", asked.rest)
    if isinstance(asked, DeclareCursor):
        made = DescribeQuery().add(b"DECLARE __hw NO SCROLL CURSOR FOR ")
        return _select(made, asked.subscription, found)
    return _select(DescribeQuery(), asked, found)


def _select(made: DescribeQuery, subscription: Subscription, found: Sequence[Column]) -> DescribeQuery:
    made.add(b"SELECT hw_s.* FROM (SELECT ")
    made.add(b", ".join(source + b" AS " + quoted(name) for source, name in _output(subscription, found)))
    made.add(b" FROM (", *_query(subscription), b") AS hw")
    if found:
        made.add(b"(", b", ".join(_ours(n) for n in range(len(found))), b")")
    made.add(b") AS hw_s")
    times = [time for time in (subscription.as_of, subscription.up_to) if time is not None]
    if times:
        made.add(b", (SELECT ")
        for number, time in enumerate(times):
            made.add(b", " if number else b"", b"(", time, b")::pg_catalog.text AS hw_t%d" % number)
        made.add(b") AS hw_t")
    made.add(b" WHERE false")
    if subscription.order_by is not None:
        made.add(b" ORDER BY ", subscription.order_by)
    return made


def _output(subscription: Subscription, found: Sequence[Column]) -> list[tuple[bytes, bytes]]:
    """The columns that the subscriber gets: an expression and a name each."""
    shown = [(_ours(n), c.name) for n, c in enumerate(found) if not c.name.startswith(_HIDDEN)]
    keyed = [(_key(key, shown), key.text) for key in _distinct(subscription.keys)]
    of_keys = {source for source, _ in keyed}
    values = [(source, name) for source, name in shown if source not in of_keys]
    outer = [(b"NULL::pg_catalog.numeric", b"mz_timestamp")]
    if subscription.progress:
        outer.append((b"NULL::pg_catalog.bool", b"mz_progressed"))
    if subscription.envelope is EnvelopeKind.NONE:
        return [*outer, (b"NULL::pg_catalog.int8", b"mz_diff"), *shown]
    outer += [(b"NULL::pg_catalog.text", b"mz_state"), *keyed]
    if subscription.envelope is EnvelopeKind.UPSERT:
        return [*outer, *values]
    return [*outer, *((source, prefix + name) for prefix in (b"before_", b"after_") for source, name in values)]


def quoted(name: bytes) -> bytes:
    return b'"' + name.replace(b'"', b'""') + b'"'


def _query(subscription: Subscription) -> tuple[bytes | Piece, ...]:
    return (b"TABLE " if subscription.named else b"", subscription.query)


def _ours(number: int) -> bytes:
    return b"hw_c%d" % number


def _distinct(keys: Sequence[Piece]) -> Sequence[Piece]:
    for number, key in enumerate(keys):
        if any(key.text == earlier.text for earlier in keys[:number]):
            name = key.text.decode("utf-8", "replace")
            raise SyntaxFault(f'column "{name}" specified more than once', key.start, "42701")
    return keys


def _key(key: Piece, shown: Sequence[tuple[bytes, bytes]]) -> bytes:
    found = [source for source, name in shown if name == key.text]
    name = key.text.decode("utf-8", "replace")
    if not found:
        raise SyntaxFault(f'column "{name}" does not exist', key.start, "42703")
    if len(found) > 1:
        raise SyntaxFault(f'column reference "{name}" is ambiguous', key.start, "42702")
    return found[0]
