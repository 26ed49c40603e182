"""Connections to PostgreSQL itself: TCP or Unix socket, with TLS as ``sslmode`` says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import TypeVar

from engine.session.liveness import keep_alive
from server.intercept.engine_interface import Backend
from server.protocol.startup import SSL_REQUEST, CancelRequest
from server.relay.tls import backend_context

P = TypeVar("P", bound=asyncio.Protocol)


class _Handshake(asyncio.Protocol):
    """Waits for the one byte with which PostgreSQL answers SSLRequest."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc or ConnectionError("PostgreSQL closed the connection"))


async def connect(backend: Backend, factory: Callable[[], P]) -> tuple[asyncio.Transport, P, bool]:
    """Connect to the backend; returns transport, protocol, and whether it is TLS. Raises OSError."""
    loop = asyncio.get_running_loop()
    if backend.unix_socket_dir is not None:
        path = f"{backend.unix_socket_dir}/.s.PGSQL.{backend.port}"
        transport, protocol = await loop.create_unix_connection(factory, path)
        return transport, protocol, False
    host = backend.host or "localhost"
    if backend.sslmode in ("disable", "allow"):
        plain, protocol = await loop.create_connection(factory, host, backend.port)
        _keep_alive(plain)
        return plain, protocol, False
    first, handshake = await loop.create_connection(_Handshake, host, backend.port)
    _keep_alive(first)
    try:
        first.write(SSL_REQUEST)
        answer = await handshake.answer
        if answer == b"N" and backend.sslmode == "prefer":
            protocol = factory()
            first.set_protocol(protocol)
            protocol.connection_made(first)
            return first, protocol, False
        if answer != b"S":  # more than one byte would be plain text smuggled in front of the TLS session
            raise ConnectionError("PostgreSQL does not support TLS, but the server was told to require it")
        first.pause_reading()
        protocol = factory()
        secured = await loop.start_tls(first, protocol, backend_context(backend), server_hostname=host)
        if secured is None:
            raise ConnectionError("PostgreSQL closed the connection during the TLS handshake")
        protocol.connection_made(secured)
        return secured, protocol, True
    except BaseException:  # also where the client has gone meanwhile
        first.abort()
        raise


def _keep_alive(transport: asyncio.Transport) -> None:
    """Have the kernel notice that PostgreSQL is gone while nothing is on its way there; `silence` sees to the rest."""
    keep_alive(transport.get_extra_info("socket"), idle=30, interval=10, count=3)


class _Closed(asyncio.Protocol):
    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


async def cancel(backend: Backend, request: CancelRequest, patience: float = 10.0) -> None:
    """Send a CancelRequest and wait, at most ``patience`` seconds, until PostgreSQL has acted on it.

    PostgreSQL closes the connection after it has signalled the backend, so that what is sent to the backend
    afterwards cannot be hit. Failure is silent, as it is for a client that cancels.
    """
    try:
        async with asyncio.timeout(patience):
            transport, protocol, _ = await connect(backend, _Closed)
            try:
                transport.write(request.encode())
                await protocol.lost
            finally:
                transport.abort()
    except (OSError, ssl.SSLError, TimeoutError):
        return
