"""TLS on the client's side: asked for, direct, and refused."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from server.intercept.engine_interface import Backend
from server.relay.context import Limits
from server.relay.tls import server_context
from tests.server.conftest import RunningRelay, cancel_when_active, through
from tests.server.wire import startup

SSL_REQUEST = struct.pack(">II", 8, 80877103)
GSSENC_REQUEST = struct.pack(">II", 8, 80877104)


@pytest.fixture
def secure(start_relay: Callable[..., RunningRelay], certificate: tuple[Path, Path]) -> RunningRelay:
    return start_relay(tls=server_context(*certificate))


def dial(relay: RunningRelay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port), timeout=60)


@pytest.mark.parametrize("negotiation", ["postgres", "direct"])
def test_login_and_a_large_result_over_tls(secure: RunningRelay, dsn: str, negotiation: str) -> None:
    options = {"sslmode": "require", "sslnegotiation": negotiation}
    with psycopg.connect(through(secure, dsn, **options)) as connection:
        assert connection.pgconn.ssl_in_use
        rows = connection.execute("select n, repeat('x', 500) from generate_series(1, 40000) n").fetchall()
        assert (len(rows), sum(row[0] for row in rows)) == (40_000, 800_020_000)


def test_certificate_is_verified_by_the_client(secure: RunningRelay, dsn: str, certificate: tuple[Path, Path]) -> None:
    options = {"sslmode": "verify-full", "sslrootcert": str(certificate[0]), "host": "localhost"}
    with psycopg.connect(through(secure, dsn), **options) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_plain_login_where_tls_is_possible(secure: RunningRelay, dsn: str) -> None:
    with psycopg.connect(through(secure, dsn, sslmode="disable")) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_tls_is_declined_where_there_is_no_certificate(relay: RunningRelay, dsn: str) -> None:
    with psycopg.connect(through(relay, dsn, sslmode="prefer", gssencmode="prefer")) as connection:
        assert not connection.pgconn.ssl_in_use
    with pytest.raises(psycopg.OperationalError, match="server does not support SSL"):
        psycopg.connect(through(relay, dsn, sslmode="require"))


def test_channel_binding_is_not_offered(secure: RunningRelay, dsn: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="channel binding"):
        psycopg.connect(through(secure, dsn, sslmode="require", channel_binding="require"))


def test_direct_tls_without_alpn_is_ended(secure: RunningRelay) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(dial(secure)) as connection:
        assert b"without ALPN" in connection.recv(1000)
        assert connection.recv(1000) == b""


def test_direct_tls_without_a_certificate_is_ended(relay: RunningRelay) -> None:
    with dial(relay) as connection:
        connection.sendall(bytes.fromhex("16030100f8010000f40303"))
        assert b"invalid length of startup packet" in connection.recv(1000)
        assert connection.recv(1000) == b""


@pytest.mark.parametrize("request_packet", [SSL_REQUEST, GSSENC_REQUEST])
def test_bytes_behind_an_encryption_request_end_the_connection(
    secure: RunningRelay, relay: RunningRelay, request_packet: bytes
) -> None:
    for target in (secure, relay):
        with dial(target) as connection:
            connection.sendall(request_packet + b"\0\0\0\x10")
            answer = connection.recv(1000)
            assert b"C08P01" in answer and b"unencrypted data" in answer
            assert connection.recv(1000) == b""


def test_ssl_request_follows_a_declined_gssenc_request(secure: RunningRelay) -> None:
    with dial(secure) as connection:
        connection.sendall(GSSENC_REQUEST)
        assert connection.recv(10) == b"N"
        connection.sendall(SSL_REQUEST)
        assert connection.recv(10) == b"S"


def test_broken_handshakes_harm_nobody_else(secure: RunningRelay, dsn: str) -> None:
    for _ in range(5):
        connection = dial(secure)
        connection.sendall(SSL_REQUEST)
        connection.recv(1)
        connection.sendall(b"this is not TLS at all")
        connection.recv(1000)
        connection.close()
        connection = dial(secure)
        connection.sendall(b"\x16\x03\x01\x00\x05hello")
        connection.recv(1000)
        connection.close()
    with psycopg.connect(through(secure, dsn, sslmode="require")) as good:
        assert good.execute("select 1").fetchone() == (1,)


@pytest.mark.skipif(shutil.which("psql") is None, reason="the bundled psql has no TLS")
def test_psql_of_the_system(secure: RunningRelay, dsn: str) -> None:
    done = subprocess.run(
        ["psql", "-X", "-At", through(secure, dsn, sslmode="require"), "-c", "select 1"], capture_output=True, text=True
    )
    assert done.stdout == "1\n", done.stderr


# -- a PostgreSQL that is reached by TLS ---------------------------------------------------------------------------


class TlsFront:
    """Puts TLS in front of the embedded PostgreSQL, which has none: what a relay meets at an external one."""

    def __init__(self, backend: Backend, context: ssl.SSLContext | None):
        self.loop = asyncio.new_event_loop()
        self._backend = backend
        self._context = context
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        work = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), self.loop)
        self.port: int = work.result(10).sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(8)
        if first == SSL_REQUEST:
            writer.write(b"N" if self._context is None else b"S")
            first = b""
            if self._context is not None:
                await writer.start_tls(self._context)
        path = f"{self._backend.unix_socket_dir}/.s.PGSQL.{self._backend.port}"
        other_reader, other_writer = await asyncio.open_unix_connection(path)
        other_writer.write(first)
        await asyncio.gather(_pump(reader, other_writer), _pump(other_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@pytest.fixture
def tls_backend(backend: Backend, certificate: tuple[Path, Path]) -> Iterator[Callable[..., Backend]]:
    fronts: list[TlsFront] = []

    def start(*, tls: bool = True, **options: Any) -> Backend:
        fronts.append(TlsFront(backend, server_context(*certificate) if tls else None))
        return Backend(host="localhost", port=fronts[-1].port, **options)

    yield start
    for front in fronts:
        front.loop.call_soon_threadsafe(front.loop.stop)


def test_login_through_a_tls_backend_by_clients_that_cannot_bind(
    start_relay: Callable[..., RunningRelay], tls_backend: Callable[..., Backend], certificate: Any, dsn: str
) -> None:
    relay = start_relay(
        backend=tls_backend(sslmode="verify-full", sslrootcert=certificate[0]), tls=server_context(*certificate)
    )
    for options in ({"sslmode": "disable"}, {"sslmode": "require", "channel_binding": "disable"}):
        with psycopg.connect(through(relay, dsn, **options), autocommit=True) as connection:
            rows = connection.execute("select n, repeat('x', 500) from generate_series(1, 20000) n").fetchall()
            assert len(rows) == 20_000
            cancel_when_active(connection, dsn)
            with pytest.raises(psycopg.errors.QueryCanceled):
                connection.execute("select pg_sleep(20)")


def test_login_that_a_tls_backend_would_refuse_says_what_to_set(
    start_relay: Callable[..., RunningRelay], tls_backend: Callable[..., Backend], certificate: Any, dsn: str
) -> None:
    relay = start_relay(backend=tls_backend(sslmode="require"), tls=server_context(*certificate))
    with pytest.raises(psycopg.OperationalError, match="channel_binding=disable"):
        psycopg.connect(through(relay, dsn, sslmode="require"))


def test_backend_whose_certificate_does_not_verify(
    start_relay: Callable[..., RunningRelay], tls_backend: Callable[..., Backend], dsn: str
) -> None:
    relay = start_relay(backend=tls_backend(sslmode="verify-full"))
    with pytest.raises(psycopg.OperationalError, match=r"could not connect to PostgreSQL.*certificate verify failed"):
        psycopg.connect(through(relay, dsn))


def test_backend_without_tls(
    start_relay: Callable[..., RunningRelay], tls_backend: Callable[..., Backend], dsn: str
) -> None:
    with psycopg.connect(through(start_relay(backend=tls_backend(tls=False, sslmode="prefer")), dsn)) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError, match="PostgreSQL does not support TLS"):
        psycopg.connect(through(start_relay(backend=tls_backend(tls=False, sslmode="require")), dsn))


def test_connection_to_postgresql_ends_with_a_session_whose_tls_has_not_begun(
    start_relay: Callable[..., RunningRelay],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60)
        backend = Backend(host="127.0.0.1", port=silent.getsockname()[1], sslmode="require")
        relay = start_relay(backend=backend, limits=Limits(startup_seconds=1))
        with dial(relay) as client:
            client.sendall(startup("user", "postgres"))
            accepted, _ = silent.accept()
            assert accepted.recv(100) == SSL_REQUEST
            assert b"due to timeout" in client.recv(1000)
        with accepted:
            accepted.settimeout(30)
            with suppress(ConnectionResetError):
                assert accepted.recv(100) == b""
