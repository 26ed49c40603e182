"""The packets that open a connection: SSLRequest, GSSENCRequest, CancelRequest, StartupMessage.

They have a length and a code and no type byte. :func:`read` makes one of them from bytes;
:meth:`StartupMessage.encode` makes bytes again after the relay has added its parameter.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from server.protocol.messages import ProtocolViolation

MAX_LENGTH = 10_000
"""PostgreSQL's MAX_STARTUP_PACKET_LENGTH, bytes."""
TLS_HANDSHAKE = 0x16
"""The first byte of a TLS ClientHello, by which direct TLS is told from a packet (whose first byte is 0)."""

_CANCEL, _SSL, _GSSENC = 80877102, 80877103, 80877104
_PREFIX = struct.Struct(">II")
_MAX_CANCEL_KEY = 256

SSL_REQUEST = _PREFIX.pack(8, _SSL)


@dataclass(frozen=True, slots=True)
class EncryptionRequest:
    """SSLRequest, or GSSENCRequest if ``gss``."""

    gss: bool


@dataclass(frozen=True, slots=True)
class CancelRequest:
    pid: int
    key: bytes

    def encode(self) -> bytes:
        return _PREFIX.pack(12 + len(self.key), _CANCEL) + struct.pack(">I", self.pid) + self.key


@dataclass(frozen=True, slots=True)
class StartupMessage:
    version: int
    """Major version in the upper 16 bits, minor in the lower."""
    parameters: tuple[tuple[bytes, bytes], ...]

    def get(self, name: bytes) -> bytes | None:
        """The parameter's value; the last one counts, as in PostgreSQL."""
        return next((value for key, value in reversed(self.parameters) if key == name), None)

    @property
    def user(self) -> str:
        return (self.get(b"user") or b"").decode("utf-8", "surrogateescape")

    @property
    def database(self) -> str:
        return (self.get(b"database") or self.get(b"user") or b"").decode("utf-8", "surrogateescape")

    @property
    def replication(self) -> bool:
        """Whether a walsender is asked for: "database" or anything PostgreSQL reads as true.

        >>> StartupMessage(196608, ((b"replication", b"On"),)).replication
        True
        """
        value = (self.get(b"replication") or b"").lower()
        return value in (b"database", b"on", b"1") or (
            value != b"" and (b"true".startswith(value) or b"yes".startswith(value))
        )

    def with_parameter(self, name: bytes, value: bytes) -> StartupMessage:
        """The same message with this parameter instead of any the client sent under its name."""
        others = tuple(pair for pair in self.parameters if pair[0].lower() != name)
        return StartupMessage(self.version, (*others, (name, value)))

    def encode(self) -> bytes:
        body = b"".join(k + b"\0" + v + b"\0" for k, v in self.parameters) + b"\0"
        return _PREFIX.pack(len(body) + 8, self.version) + body


Packet = EncryptionRequest | CancelRequest | StartupMessage


def read(data: bytes) -> tuple[Packet, bytes] | None:
    """The packet at the beginning of ``data`` and the bytes behind it, None if it is not complete.

    Raises ProtocolViolation as soon as the packet cannot become a valid one.

    >>> read(SSL_REQUEST + b"rest")
    (EncryptionRequest(gss=False), b'rest')
    """
    if len(data) < 4:
        if data.strip(b"\0") and data[0]:
            raise ProtocolViolation("invalid length of startup packet")
        return None
    length = int.from_bytes(data[:4], "big")
    if not 8 <= length <= MAX_LENGTH:
        raise ProtocolViolation("invalid length of startup packet")
    if len(data) < length:
        return None
    code = int.from_bytes(data[4:8], "big")
    body, rest = data[8:length], data[length:]
    if code in (_SSL, _GSSENC):
        if body:
            raise ProtocolViolation("invalid length of startup packet")
        return EncryptionRequest(code == _GSSENC), rest
    if code == _CANCEL:
        if not 4 < len(body) <= 4 + _MAX_CANCEL_KEY:
            raise ProtocolViolation("invalid length of cancel request packet")
        return CancelRequest(int.from_bytes(body[:4], "big"), body[4:]), rest
    if code >> 16 != 3:
        raise ProtocolViolation(
            f"unsupported frontend protocol {code >> 16}.{code & 0xFFFF}: server supports 3.0 to 3.2"
        )
    return StartupMessage(code, _parameters(body)), rest


def _parameters(body: bytes) -> tuple[tuple[bytes, bytes], ...]:
    if not body.endswith(b"\0"):
        raise ProtocolViolation("invalid startup packet layout: expected terminator as last byte")
    pairs: list[tuple[bytes, bytes]] = []
    position = 0
    while position < len(body) - 1:
        parts = body[position:].split(b"\0", 2)
        if len(parts) < 3 or not parts[0]:
            raise ProtocolViolation("invalid startup packet layout: expected terminator as last byte")
        pairs.append((parts[0], parts[1]))
        position += len(parts[0]) + len(parts[1]) + 2
    if position != len(body) - 1:
        raise ProtocolViolation("invalid startup packet layout: expected terminator as last byte")
    return tuple(pairs)
