"""Framing: cuts a stream of bytes into messages, refuses impossible lengths before anything is allocated for them.

A message up to :data:`WHOLE` bytes comes out whole. A longer one comes out in pieces as they arrive, so that a
value of a gigabyte passes through without being held: the first piece has the message's type, the others
:data:`CONTINUATION`.

``partial``, ``skip`` and ``wanted`` are open to the relay's fast path (``traffic``), which scans whole chunks without
making messages of them, and which takes turns with :meth:`Framer.next` on the same stream.
"""

from __future__ import annotations

from collections.abc import Iterator

from server.protocol.messages import HEADER, PARSE, PASSWORD, READY, ProtocolViolation, text_at

WHOLE = 1 << 20
"""Longest message, in bytes, that is kept together."""
CONTINUATION = 0
"""Stands for the type of a piece that is not the first of its message."""

_LARGE = (1 << 30) - 1
_SMALL = 10_000
_AUTHENTICATION = 65_535

Lengths = list[range]
"""The lengths that a message may have, by its type; none for an unknown type."""

_NONE = range(0)
# PostgreSQL's own limits (pqcomm.h: PQ_LARGE_MESSAGE_LIMIT, PQ_SMALL_MESSAGE_LIMIT).
FRONTEND_LENGTHS: Lengths = [_NONE] * 256
for _kind in b"QPBFd":
    FRONTEND_LENGTHS[_kind] = range(4, _LARGE + 1)
for _kind in b"CDEHSXcf":
    FRONTEND_LENGTHS[_kind] = range(4, _SMALL + 1)
AUTHENTICATION_LENGTHS: Lengths = [_NONE] * 256
FRONTEND_LENGTHS[PASSWORD] = AUTHENTICATION_LENGTHS[PASSWORD] = range(4, _AUTHENTICATION + 1)
# From the shortest that has all its parts: who reads them need not look.
BACKEND_LENGTHS: Lengths = [_NONE] * 256
for _kinds, _least in ((b"123nIscd", 4), (b"EN", 5), (b"STtDC", 6), (b"GHW", 7), (b"RKV", 8), (b"A", 10), (b"v", 12)):
    for _kind in _kinds:
        BACKEND_LENGTHS[_kind] = range(_least, 1 << 31)
BACKEND_LENGTHS[READY] = range(5, 6)


class Framer:
    """One direction of a connection.

    What arrives is put together only when a message is complete, so that a message that comes byte by byte costs no
    more than one that comes at once.
    """

    __slots__ = ("_at", "_data", "_later", "lengths", "size", "skip", "wanted")

    def __init__(self, lengths: Lengths):
        self.lengths = lengths
        self.size = 0
        """How many bytes have arrived and not been consumed."""
        self.skip = 0
        """Bytes still to come, or still unconsumed, of a message whose first piece is out."""
        self.wanted = 0
        """So many bytes must be there before it makes sense to look at them again."""
        self._data = b""
        self._at = 0  # where the unconsumed bytes begin in _data
        self._later: list[bytes] = []  # what has arrived behind _data

    def feed(self, data: bytes) -> None:
        if self.size:
            self._later.append(data)
        else:
            self._data, self._at = data, 0
        self.size += len(data)

    @property
    def partial(self) -> bytes:
        """The bytes that have arrived and not been consumed."""
        if self._at or self._later:
            self._data = b"".join((self._data[self._at :], *self._later))
            self._at = 0
            self._later.clear()
        return self._data

    @partial.setter
    def partial(self, data: bytes) -> None:
        self._data, self._at, self.size, self.wanted = data, 0, len(data), 0
        self._later.clear()

    def put_back(self, data: bytes) -> None:
        """These bytes, which were taken, come before those that have not been consumed."""
        self.partial = data + self.partial

    def next(self) -> tuple[int, bytes] | None:
        """The next message or piece with its type, None if more bytes are needed. Raises ProtocolViolation.

        >>> framer = Framer(FRONTEND_LENGTHS)
        >>> framer.feed(b"S\\0\\0\\0\\4H\\0")
        >>> framer.next(), framer.next()
        ((83, b'S\\x00\\x00\\x00\\x04'), None)
        """
        if not self.size:
            return None
        self.wanted = 0
        if self.skip:
            piece = self._consume(min(self.skip, self.size))
            self.skip -= len(piece)
            return CONTINUATION, piece
        if len(self._data) < self._at + 5:
            data = self.partial
            if len(data) < 5:
                if not self.lengths[data[0]]:
                    raise ProtocolViolation(f"invalid message type {data[0]}")
                return None
        kind, length = HEADER.unpack_from(self._data, self._at)
        check(self.lengths, kind, length)
        size = length + 1
        if self.size >= size:
            return kind, self._consume(size)
        if size <= WHOLE:
            return None
        self.skip = size - self.size
        return kind, self.take()

    def run_of(self, kind: int) -> bytes:
        """All whole messages of this type at the beginning of what has arrived. Raises ProtocolViolation.

        >>> framer = Framer(FRONTEND_LENGTHS)
        >>> framer.feed(b"d\\0\\0\\0\\5ad\\0\\0\\0\\5bd\\0")
        >>> framer.run_of(100), framer.size
        (b'd\\x00\\x00\\x00\\x05ad\\x00\\x00\\x00\\x05b', 2)
        """
        if self.skip or not self.size:
            return b""
        data, position = self.partial, 0
        while position + 5 <= len(data) and data[position] == kind:
            _, length = HEADER.unpack_from(data, position)
            check(self.lengths, kind, length)
            if position + 1 + length > len(data):
                break
            position += 1 + length
        return self._consume(position) if position else b""

    def _consume(self, size: int) -> bytes:
        data = self.partial if len(self._data) < self._at + size else self._data
        begin = self._at
        self._at = begin + size
        self.size -= size
        piece = data if size == len(data) else data[begin : begin + size]
        if not self.size:
            self._data, self._at = b"", 0
        return piece

    def take(self) -> bytes:
        """All unconsumed bytes, which are then no longer the framer's."""
        data, self.partial = self.partial, b""
        return data


def begins(raw: bytes, wanted: int, position: int) -> tuple[bool, int]:
    """Whether a message of the client's of this type begins in a run of bytes at or behind a message's beginning.

    Returns also where to go on when more has arrived. Raises ProtocolViolation.

    >>> begins(b"H\\0\\0\\0\\4X\\0\\0\\0\\4", 88, 0), begins(b"H\\0\\0\\0\\4X\\0", 88, 0)
    ((True, 5), (False, 5))
    """
    while position + 5 <= len(raw):
        kind, length = HEADER.unpack_from(raw, position)
        check(FRONTEND_LENGTHS, kind, length)
        if kind == wanted:
            return True, position
        position += length + 1
    return False, position


def kinds(raw: bytes) -> list[int]:
    """The types of the client's messages in a run of bytes. Raises ProtocolViolation.

    >>> kinds(b"H\\0\\0\\0\\4S\\0\\0\\0\\4")
    [72, 83]
    """
    found, position = [], 0
    while position + 5 <= len(raw):
        kind, length = HEADER.unpack_from(raw, position)
        check(FRONTEND_LENGTHS, kind, length)
        position += length + 1
        if position > len(raw) and length < WHOLE:
            break
        found.append(kind)
    return found


def parsed(raw: bytes) -> Iterator[bytes]:
    """The texts of the Parse messages in a run of whole messages. Raises ProtocolViolation.

    >>> list(parsed(b"H\\0\\0\\0\\4P\\0\\0\\0\\x0cs\\0end\\0\\0\\0"))
    [b'end']
    """
    position = 0
    while position + 5 <= len(raw):
        kind, length = HEADER.unpack_from(raw, position)
        check(FRONTEND_LENGTHS, kind, length)
        if kind == PARSE:
            yield text_at(raw, raw.find(b"\0", position + 5) + 1)
        position += length + 1


def check(lengths: Lengths, kind: int, length: int) -> None:
    """Raise ProtocolViolation if no message of this type has this length (type byte not counted)."""
    if not lengths[kind]:
        raise ProtocolViolation(f"invalid message type {kind}")
    if length not in lengths[kind]:
        raise ProtocolViolation(f'invalid length {length} of message type "{chr(kind)}"')
