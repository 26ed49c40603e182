"""Rows as PostgreSQL's COPY gives them, framed as messages of the protocol, one for each row.

A tuple of COPY BINARY is to the byte the body of a DataRow: a number of columns, then each column's length and value.
"""

from __future__ import annotations

from struct import Struct
from typing import Protocol

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
"""What a binary COPY begins with: signature, flags, no extension."""

TRAILER = b"\xff\xff"

_LENGTH = Struct(">i")
_FRAME = Struct(">ci")


def framed(kind: bytes, body: bytes) -> bytes:
    """One message.

    >>> framed(b"d", b"ab")
    b'd\\x00\\x00\\x00\\x06ab'
    """
    return _FRAME.pack(kind, len(body) + 4) + body


class Framer(Protocol):
    """Frames what comes from one COPY, in pieces that are whole rows."""

    def frame(self, piece: bytes) -> tuple[bytes, int]:
        """The messages, and how many rows they are."""
        ...


class BinaryFramer:
    """Frames the tuples of a binary COPY, without its header and trailer; ``kind`` is that of the messages.

    >>> tuple_ = bytes.fromhex("0002 00000001 61 ffffffff")
    >>> BinaryFramer(b"D").frame(HEADER + tuple_ + TRAILER) == (framed(b"D", tuple_), 1)
    True
    """

    def __init__(self, kind: bytes) -> None:
        self._kind = kind
        self._begun = False

    def frame(self, piece: bytes) -> tuple[bytes, int]:
        position = 0 if self._begun else len(HEADER)
        self._begun = True
        kind, end, length_of = self._kind, len(piece), _LENGTH.unpack_from
        messages = []
        while position < end:
            start = position
            columns = piece[position] << 8 | piece[position + 1]
            if columns == 0xFFFF:
                break
            position += 2
            for _ in range(columns):
                length = length_of(piece, position)[0]
                position += 4 if length < 0 else 4 + length
            messages.append(_FRAME.pack(kind, position - start + 4))
            messages.append(piece[start:position])
        return b"".join(messages), len(messages) // 2


class LineFramer:
    r"""Frames the rows of a COPY in text or csv, whose values can hold line ends between ``quotes``.

    ``headers`` lines at its beginning are no rows.

    >>> LineFramer(quotes=b'"').frame(b'1,"a\nb"\n2,c\n')
    (b'd\x00\x00\x00\x0c1,"a\nb"\nd\x00\x00\x00\x082,c\n', 2)
    """

    def __init__(self, *, quotes: bytes | None = None, headers: int = 0) -> None:
        self._quotes = quotes
        self._headers = headers

    def frame(self, piece: bytes) -> tuple[bytes, int]:
        messages: list[bytes] = []
        held = b""
        for line in piece.split(b"\n")[:-1]:
            held += line + b"\n"
            if self._quotes is None or held.count(self._quotes) % 2 == 0:
                messages.append(framed(b"d", held))
                held = b""
        headers = min(self._headers, len(messages))
        self._headers -= headers
        return b"".join(messages), len(messages) - headers


def numeric(value: int) -> bytes:
    """A whole number that is not negative, as PostgreSQL sends a numeric in binary.

    >>> numeric(12345678).hex(" ", 2)
    '0002 0001 0000 0000 04d2 162e'
    """
    digits = []
    while value:
        value, digit = divmod(value, 10_000)
        digits.append(digit)
    weight = len(digits) - 1 if digits else 0
    digits.reverse()
    while digits and digits[-1] == 0:
        digits.pop()
    return b"".join(n.to_bytes(2, "big") for n in (len(digits), weight, 0, 0, *digits))


def row(values: list[bytes | None]) -> bytes:
    """A DataRow.

    >>> row([b"1", None]).hex(" ")
    '44 00 00 00 0f 00 02 00 00 00 01 31 ff ff ff ff'
    """
    body = len(values).to_bytes(2, "big")
    for value in values:
        body += b"\xff\xff\xff\xff" if value is None else len(value).to_bytes(4, "big") + value
    return framed(b"D", body)
