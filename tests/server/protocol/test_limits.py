"""What is broken, too much, too many or too slow ends its own connection and no other."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import conninfo
from structlog.testing import capture_logs

from server.relay.context import Limits
from tests.server.conftest import RunningRelay, through
from tests.server.wire import Wire, dial, startup, until_closed


@pytest.mark.parametrize(
    "garbage",
    [
        b"Q\0\0\0\3",
        b"Q\xff\xff\xff\xff",
        b"Q\x7f\xff\xff\xff",
        b"S\0\1\0\0",
        b"\0\0\0\0\0\0",
        b"GET / HTTP/1.1\r\n\r\n",
        b"p\0\0\0\4",
        b"Z\0\0\0\5I",
    ],
)
def test_malformed_messages_end_the_connection_with_a_protocol_error(relayed: str, garbage: bytes) -> None:
    wire = Wire(relayed)
    wire.send(garbage)
    answer = until_closed(wire.socket)
    assert answer[:1] == b"E" and b"VFATAL" in answer and b"C08P01" in answer
    wire.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\0\0\7",
        b"\0\0\x27\x11\0\3\0\0",
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">II", 8, 2 << 16),
        struct.pack(">II", 12, 3 << 16) + b"user",
        struct.pack(">II", 16, 3 << 16) + b"user\0xxx",
        struct.pack(">II", 12, 80877102) + b"\0\0\0\1",
        struct.pack(">II", 500, 80877102) + b"k" * 492,
    ],
)
def test_malformed_startup_packets(relay: RunningRelay, garbage: bytes) -> None:
    with dial(relay.port) as connection:
        with capture_logs() as logged:
            connection.sendall(garbage)
            answer = until_closed(connection)
        assert answer[:1] == b"E" and b"C08P01" in answer
        host, number = connection.getsockname()
        assert [entry["client"] for entry in logged] == [f"{host}:{number}"]
    _wait_for(lambda: not relay.relay.sessions)


def test_malformed_password_message(relay: RunningRelay) -> None:
    with dial(relay.port) as connection:
        connection.sendall(startup("user", "postgres") + b"p\0\1\0\0")
        answer = until_closed(connection)
        assert b"C08P01" in answer


def test_random_bytes_never_harm_another_session(relay: RunningRelay, dsn: str) -> None:
    chance = random.Random(7)
    with psycopg.connect(through(relay, dsn), autocommit=True) as good:
        for _ in range(60):
            with dial(relay.port) as connection:
                if chance.random() < 0.5:
                    connection.sendall(startup("user", "postgres"))
                connection.sendall(chance.randbytes(chance.randrange(1, 200)))
        wires = [Wire(through(relay, dsn)) for _ in range(15)]
        for wire in wires:
            wire.send(chance.randbytes(chance.randrange(5, 200)))
            wire.close()
        assert good.execute("select 1").fetchone() == (1,)
    _wait_for(lambda: not relay.relay.sessions)


@pytest.mark.parametrize("reset", [False, True], ids=["closes", "resets"])
@pytest.mark.parametrize(
    "said",
    [
        b"",
        struct.pack(">II", 8, 80877103),
        struct.pack(">II", 8, 80877103) + startup("user", "postgres")[:9],
        startup("user", "postgres")[:6],
        startup("user", "postgres"),
        startup("user", "postgres") + b"p\0\0",
        startup("user", "postgres") + b"X\0\0\0\4",
    ],
    ids=["nothing", "SSLRequest", "half behind it", "half a packet", "startup", "half a password", "goodbye"],
)
def test_client_that_goes_away_while_its_session_begins(relay: RunningRelay, said: bytes, reset: bool) -> None:
    """At once, or when PostgreSQL has asked for a password: it leaves nothing behind, and nothing went wrong."""
    with capture_logs() as logged:
        for waiting in (False, True):
            with dial(relay.port) as connection:
                if said:
                    connection.sendall(said)
                if waiting and len(said) >= len(startup("user", "postgres")):
                    connection.recv(1)
                if reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        _wait_for(lambda: not relay.relay.sessions)
    assert [entry for entry in logged if entry["log_level"] in ("warning", "error", "critical")] == []


def test_startup_time_limit(start_relay: Callable[..., RunningRelay]) -> None:
    relay = start_relay(limits=Limits(startup_seconds=2))
    with dial(relay.port) as silent, dial(relay.port) as half:
        half.sendall(startup("user", "postgres"))
        assert until_closed(silent) == b""
        assert b"canceling authentication due to timeout" in until_closed(half)


def test_time_limit_does_not_end_a_session_that_has_started(start_relay: Callable[..., RunningRelay], dsn: str) -> None:
    for seconds in (2, 10, 50):  # a busy machine may not start a session within the first
        relay = start_relay(limits=Limits(startup_seconds=seconds))
        with suppress(psycopg.OperationalError):
            connection = psycopg.connect(through(relay, dsn), autocommit=True)
            break
    with connection:
        assert connection.execute("select 1 from pg_sleep(%s)", (seconds + 0.2,)).fetchone() == (1,)


def test_connection_limit(start_relay: Callable[..., RunningRelay], dsn: str) -> None:
    relay = start_relay(limits=Limits(max_connections=2))
    dsn = through(relay, dsn)
    with psycopg.connect(dsn) as first, psycopg.connect(dsn):
        with pytest.raises(psycopg.OperationalError, match="too many clients"):
            psycopg.connect(dsn)
        first.cancel_safe()  # still gets through
        first.close()
        _wait_for(lambda: len(relay.relay.sessions) == 1)
        with psycopg.connect(dsn) as third:
            assert third.execute("select 1").fetchone() == (1,)


def test_backend_that_cannot_be_reached(start_relay: Callable[..., RunningRelay], dsn: str) -> None:
    from server.intercept.engine_interface import Backend

    relay = start_relay(backend=Backend(host="127.0.0.1", port=1))
    with pytest.raises(psycopg.OperationalError, match=r"could not connect to PostgreSQL at 127\.0\.0\.1:1"):
        psycopg.connect(through(relay, dsn))


def test_stop_tells_the_clients(start_relay: Callable[..., RunningRelay], dsn: str) -> None:
    relay = start_relay()
    wire = Wire(through(relay, dsn))
    relay.run(relay.relay.stop())
    assert b"C57P01" in until_closed(wire.socket)


def _wait_for(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_burst_of_clients_gets_all_connections_there_are(
    start_relay: Callable[..., RunningRelay], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as may get in; the others are told at once."""
    monkeypatch.setattr("server.relay.relay.NEWCOMERS", 5)
    relay = start_relay(limits=Limits(max_connections=25))
    login = conninfo.conninfo_to_dict(dsn)
    packet = startup("user", str(login["user"]), "database", str(login["dbname"]))
    clients = [dial(relay.port) for _ in range(25)]
    try:
        for client in clients:
            client.sendall(packet)
        answers = [client.recv(1000) for client in clients]
        assert [answer for answer in answers if not answer.startswith(b"R")] == []
        refused = [dial(relay.port) for _ in range(10)]
        for client in refused:
            client.sendall(packet)
        assert all(b"C53300" in until_closed(client) for client in refused)
    finally:
        for client in clients:
            client.close()
