"""Peers that are gone without a word while something is on its way to them, and such as are only slow."""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from structlog.testing import capture_logs

from server.intercept.engine_interface import Backend
from server.postgres.cluster import EmbeddedPostgres
from server.protocol import messages as m
from server.relay.context import Limits
from tests.server.conftest import RunningRelay, through
from tests.server.wire import Wire, errors_of
from tests.silent_network import SilentNetwork, deafen, silent_network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not say what is acknowledged")

LIMITS = Limits(silent_seconds=1.5)
LONG = "select repeat('x', 1000) from generate_series(1, 50000)"


@pytest.fixture
def network(cluster: EmbeddedPostgres) -> Iterator[SilentNetwork]:
    with silent_network(cluster.socket_dir, cluster.port) as network:
        yield network


def _ended(relay: RunningRelay) -> float:
    """Seconds until the relay has no session."""
    began = time.monotonic()
    while relay.relay.sessions:
        assert time.monotonic() - began < 90
        time.sleep(0.01)
    return time.monotonic() - began


def _wait_for(dsn: str, wire: Wire, condition: str, sessions: int = 1) -> None:
    """Until there are so many sessions of PostgreSQL's that are the client's, and of which that is true."""
    with psycopg.connect(dsn, autocommit=True) as direct:  # in a transaction it would see the same each time
        found = f"select count(*) from pg_stat_activity where pid = %s and {condition}".encode()
        deadline = time.monotonic() + 90
        while direct.execute(found, [wire.login.info.backend_pid]).fetchone() != (sessions,):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def _deafen_relay(relay: RunningRelay) -> None:
    """Nothing of what clients send arrives any more, not even acknowledgements."""
    for session in relay.relay.sessions:
        assert session.client.transport is not None
        deafen(session.client.transport.get_extra_info("socket").fileno())


@pytest.mark.parametrize("both_ways", [True, False])
@pytest.mark.parametrize("query", ["select 1", LONG, "copy (select repeat('x', 1000)) to stdout"])
@pytest.mark.one_in(2)
def test_client_that_is_gone_is_given_up_where_it_is_owed_an_answer(
    start_relay: Callable[..., RunningRelay], dsn: str, query: str, both_ways: bool
) -> None:
    """Or that hears nothing, and goes on sending what it has sent before."""
    relay = start_relay(limits=LIMITS)
    wire = Wire(through(relay, dsn))
    with capture_logs() as logs:
        if both_ways:
            wire.send(m.query(b"select pg_sleep(2);" + query.encode()))
            _wait_for(dsn, wire, "wait_event = 'PgSleep'")
            _deafen_relay(relay)
        deafen(wire.socket.fileno())
        if not both_ways:
            wire.send(m.query(query.encode()))
        assert 1.5 < _ended(relay) < 60  # the kernel would try for a quarter of an hour
    assert [line["peer"] for line in logs if line["event"] == "connection is silent and given up"] == ["client"]
    _wait_for(dsn, wire, "true", sessions=0)
    wire.close()


def test_client_that_reads_slowly_is_not(start_relay: Callable[..., RunningRelay], dsn: str) -> None:
    relay = start_relay(limits=Limits(silent_seconds=0.5))
    wire = Wire(through(relay, dsn))
    wire.send(m.query(LONG.encode()))
    time.sleep(5)  # its window is closed, and it acknowledges each probe of it
    assert wire.kinds() == "T" + "D" * 50_000 + "CZ"
    wire.close()


def test_client_that_was_slow_and_is_gone_then_is_given_up(start_relay: Callable[..., RunningRelay], dsn: str) -> None:
    relay = start_relay(limits=LIMITS)
    wire = Wire(through(relay, dsn))
    wire.send(m.query(LONG.encode()))
    select.select([wire.socket], [], [], 60)
    time.sleep(0.5)  # its window is closed
    _deafen_relay(relay)
    deafen(wire.socket.fileno())
    assert _ended(relay) < 60  # three probes of its window are not answered
    wire.close()


def _behind(network: SilentNetwork) -> Backend:
    return Backend(host="127.0.0.1", port=network.port, sslmode="disable")


@pytest.mark.parametrize("text", [b"select 1", b"select 1 -- create_stream_table"])
def test_postgresql_that_is_gone_is_given_up_and_the_client_is_told(
    start_relay: Callable[..., RunningRelay], dsn: str, network: SilentNetwork, text: bytes
) -> None:
    relay = start_relay(backend=_behind(network), limits=LIMITS)
    wire = Wire(through(relay, dsn))
    network.vanish()
    began = time.monotonic()
    wire.send(m.query(text))
    assert errors_of(wire.until("E")) == ["08006"]
    assert 1.5 < time.monotonic() - began < 60
    with pytest.raises(EOFError):
        wire.receive()
    wire.close()


def test_postgresql_that_takes_nothing_is_not(
    start_relay: Callable[..., RunningRelay], dsn: str, network: SilentNetwork
) -> None:
    """COPY waits for a lock: nothing is read from the client, and what it has sent fills all buffers."""
    relay = start_relay(backend=_behind(network), limits=Limits(silent_seconds=0.5))
    with psycopg.connect(dsn, autocommit=True) as direct:
        direct.execute("create table t (i int)")
        direct.execute("begin; lock table t")
        wire = Wire(through(relay, dsn))
        wire.send(m.query(b"copy t from stdin"))
        rest = _send_while_it_is_taken(wire, m.message(m.COPY_DATA, b"1\n" * 30_000))
        time.sleep(4)
        direct.execute("commit")
        rest.join(60)
        wire.send(m.COPY_DONE_MESSAGE)
        assert wire.kinds().endswith("CZ")
        wire.close()


def _send_while_it_is_taken(wire: Wire, message: bytes) -> threading.Thread:
    """Send whole messages until nothing is taken for a second. Returns what sends the rest of the last one."""
    wire.socket.settimeout(1)
    while True:
        sent = 0
        try:
            while sent < len(message):
                sent += wire.socket.send(message[sent:])
        except TimeoutError:
            break
    wire.socket.settimeout(60)
    rest = threading.Thread(target=wire.socket.sendall, args=[message[sent:]], daemon=True)
    rest.start()
    return rest
