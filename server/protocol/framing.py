"""Framing: cuts a stream of bytes into messages, refuses impossible lengths before anything is allocated for them.

A message up to :data:`WHOLE` bytes comes out whole. A longer one comes out in pieces as they arrive, so that a
value of a gigabyte passes through without being held: the first piece has the message's type, the others
:data:`CONTINUATION`.

``partial`` and ``skip`` are open to the relay's fast path (``traffic``), which scans whole chunks without
making messages of them, and which takes turns with :meth:`Framer.next` on the same stream.
"""

from __future__ import annotations

from server.protocol.messages import HEADER, ProtocolViolation

WHOLE = 1 << 20
"""Longest message, in bytes, that is kept together."""
CONTINUATION = 0
"""Stands for the type of a piece that is not the first of its message."""

_LARGE = (1 << 30) - 1
_SMALL = 10_000
_AUTHENTICATION = 65_535

# PostgreSQL's own limits (pqcomm.h: PQ_LARGE_MESSAGE_LIMIT, PQ_SMALL_MESSAGE_LIMIT), by type; 0 for an unknown type.
FRONTEND_LIMITS = [0] * 256
for _kind in b"QPBFd":
    FRONTEND_LIMITS[_kind] = _LARGE
for _kind in b"CDEHSXcf":
    FRONTEND_LIMITS[_kind] = _SMALL
FRONTEND_LIMITS[ord("p")] = _AUTHENTICATION
AUTHENTICATION_LIMITS = [0] * 256
AUTHENTICATION_LIMITS[ord("p")] = _AUTHENTICATION
BACKEND_LIMITS = [0] * 256
for _kind in b"RKvS123TntDCIsGHWENAZVdc":
    BACKEND_LIMITS[_kind] = (1 << 31) - 1


class Framer:
    """One direction of a connection."""

    __slots__ = ("limits", "partial", "skip")

    def __init__(self, limits: list[int]):
        self.limits = limits
        self.partial = b""
        """Bytes that have arrived and not been consumed."""
        self.skip = 0
        """Bytes still to come, or still unconsumed, of a message whose first piece is out."""

    def feed(self, data: bytes) -> None:
        self.partial = self.partial + data if self.partial else data

    def next(self) -> tuple[int, bytes] | None:
        """The next message or piece with its type, None if more bytes are needed. Raises ProtocolViolation.

        >>> framer = Framer(FRONTEND_LIMITS)
        >>> framer.feed(b"S\\0\\0\\0\\4H\\0")
        >>> framer.next(), framer.next()
        ((83, b'S\\x00\\x00\\x00\\x04'), None)
        """
        data = self.partial
        if self.skip:
            if not data:
                return None
            piece = data[: self.skip]
            self.skip -= len(piece)
            self.partial = data[len(piece) :]
            return CONTINUATION, piece
        if len(data) < 5:
            if data and not self.limits[data[0]]:
                raise ProtocolViolation(f"invalid message type {data[0]}")
            return None
        kind, length = HEADER.unpack_from(data)
        check(self.limits, kind, length)
        size = length + 1
        if len(data) >= size:
            self.partial = data[size:]
            return kind, data[:size]
        if size <= WHOLE:
            return None
        self.partial = b""
        self.skip = size - len(data)
        return kind, data

    def take(self) -> bytes:
        """All unconsumed bytes, which are then no longer the framer's."""
        data, self.partial = self.partial, b""
        return data


def kinds(raw: bytes) -> list[int]:
    """The types of the client's messages in a run of bytes. Raises ProtocolViolation.

    >>> kinds(b"H\\0\\0\\0\\4S\\0\\0\\0\\4")
    [72, 83]
    """
    found, position = [], 0
    while position + 5 <= len(raw):
        kind, length = HEADER.unpack_from(raw, position)
        check(FRONTEND_LIMITS, kind, length)
        position += length + 1
        if position > len(raw) and length < WHOLE:
            break
        found.append(kind)
    return found


def check(limits: list[int], kind: int, length: int) -> None:
    """Raise ProtocolViolation if no message of this type has this length (type byte not counted)."""
    limit = limits[kind]
    if not limit:
        raise ProtocolViolation(f"invalid message type {kind}")
    if not 4 <= length <= limit:
        raise ProtocolViolation(f'invalid length {length} of message type "{chr(kind)}"')
