"""Authentication as the relay sees it: it passes through, except for what binds it to the TLS channel.

SCRAM-SHA-256-PLUS binds the login to the TLS channel between its two ends, which are not the same TLS channel
on the two sides of a relay. It is therefore taken off the list of mechanisms. A client on TLS then says "y" (I
could bind, you did not offer), and a PostgreSQL that is itself reached by TLS must refuse that (RFC 5802,
section 6): :func:`binding_refused` finds the case before PostgreSQL does, so that the client is told what to
set.
"""

from __future__ import annotations

from server.protocol.messages import AUTHENTICATION, message

_OK, _SASL, _SASL_FINAL = 0, 10, 12
_PROOFS = frozenset((2, 3, 5, 7, 9, _SASL))
"""Kerberos V5, a password in clear text or as MD5, GSSAPI, SSPI, SASL: what the client itself has to prove."""


def is_ok(body: bytes) -> bool:
    return int.from_bytes(body[:4], "big") == _OK


def asks(body: bytes) -> bool:
    """Whether the client has to answer."""
    return int.from_bytes(body[:4], "big") not in (_OK, _SASL_FINAL)


def asks_for_proof(body: bytes) -> bool:
    """Whether PostgreSQL wants something of the client that nobody else knows.

    It asks for nothing under trust, peer, ident and cert: these concern the connection that PostgreSQL sees, which is
    the relay's.

    >>> asks_for_proof(b"\\0\\0\\0\\5salt"), asks_for_proof(b"\\0\\0\\0\\0")
    (True, False)
    """
    return int.from_bytes(body[:4], "big") in _PROOFS


def without_channel_binding(body: bytes) -> bytes | None:
    """The AuthenticationSASL message without its -PLUS mechanisms; None if the body is no such message or has none.

    >>> without_channel_binding(b"\\0\\0\\0\\x0aSCRAM-SHA-256-PLUS\\0SCRAM-SHA-256\\0\\0")[9:]
    b'SCRAM-SHA-256\\x00\\x00'
    """
    if int.from_bytes(body[:4], "big") != _SASL:
        return None
    offered = [name for name in body[4:].split(b"\0") if name]
    kept = [name for name in offered if not name.endswith(b"-PLUS")]
    if kept == offered:
        return None
    return message(AUTHENTICATION, body[:4] + b"".join(name + b"\0" for name in kept) + b"\0")


def binding_refused(body: bytes) -> bool:
    """Whether a SASLInitialResponse (the body of a ``p`` message) carries the flag "y".

    >>> binding_refused(b"SCRAM-SHA-256\\0\\0\\0\\0\\x05y,,n=")
    True
    """
    mechanism, found, rest = body.partition(b"\0")
    return bool(found) and mechanism == b"SCRAM-SHA-256" and rest[4:6] == b"y,"
