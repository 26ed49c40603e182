"""How a SUBSCRIBE that would go on for ever ends: cancelled, left, shut down; and clients that do not read."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from catalog.session import SqlError
from engine.subscribe import Batch
from server.protocol import messages as m
from tests.server.conftest import RunningRelay, through
from tests.server.subscriptions.subscribing import Subscribed, field, rows
from tests.server.wire import Wire, dial, statement


def wait(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("sql", ["SUBSCRIBE t", "COPY (SUBSCRIBE t) TO STDOUT"])
@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_cancel(subscribed: Subscribed, sql: str, extended: bool, inside: bool) -> None:
    wire = subscribed.wire
    if inside:
        wire.send(m.query(b"BEGIN; SAVEPOINT s"))
        wire.until()
    wire.send(statement(sql) + m.SYNC_MESSAGE if extended else m.query(sql.encode()))
    subscribed.hub.push((1, 1, 1, "a"))
    wire.until("d" if "COPY" in sql else "D")
    wire.login.cancel_safe()
    (kind, error), ready = wire.until()
    assert (kind, field(error, "C"), ready) == ("E", "57014", ("Z", b"E" if inside else b"I"))
    assert field(error, "M") == "canceling statement due to user request"
    assert subscribed.hub.feed().closed.wait(60)
    wire.send(m.query(b"ROLLBACK TO s" if inside else b"SELECT 1"))
    assert wire.until()[-1] == ("Z", b"T" if inside else b"I")


def test_late_cancel_hits_nothing(subscribed: Subscribed) -> None:
    with psycopg.connect(subscribed.dsn, autocommit=True) as client:
        for n in range(10):
            stream = threading.Thread(target=lambda: client.execute("SUBSCRIBE t").fetchall())
            stream.start()
            subscribed.hub.push((1, 1, 1, "a"), number=n)
            subscribed.hub.end(number=n)
            stream.join()
            client.cancel_safe()
            assert client.execute("select 1").fetchone() == (1,)


def test_cancel_while_the_subscription_starts(subscribed: Subscribed) -> None:
    subscribed.hub.holding = threading.Event()
    subscribed.query("SUBSCRIBE t")
    wait(lambda: subscribed.hub.asked)
    subscribed.wire.login.cancel_safe()
    (kind, error), ready = subscribed.wire.until()
    assert (kind, field(error, "C"), ready) == ("E", "57014", ("Z", b"I"))
    with psycopg.connect(subscribed.direct) as direct:
        state = "select state from pg_stat_activity where pid = %s"
        found = direct.execute(state, (subscribed.wire.login.info.backend_pid,)).fetchone()
    assert found == ("idle",)


@pytest.mark.parametrize("goodbye", [False, True])
@pytest.mark.parametrize("sql", ["SUBSCRIBE t", "BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t; FETCH ALL c"])
def test_client_that_vanishes_while_nothing_flows(subscribed: Subscribed, sql: str, goodbye: bool) -> None:
    pid = subscribed.wire.login.info.backend_pid
    subscribed.query(sql)
    subscribed.hub.feed()
    subscribed.wire.until("T")
    if goodbye:
        subscribed.wire.send(m.TERMINATE_MESSAGE)
    else:
        socket.socket(fileno=os.dup(subscribed.wire.login.pgconn.socket)).shutdown(socket.SHUT_RDWR)
    assert subscribed.hub.feed().closed.wait(60)
    with psycopg.connect(subscribed.direct, autocommit=True) as direct:
        wait(lambda: direct.execute("select 1 from pg_stat_activity where pid = %s", (pid,)).fetchone() is None)


def test_idle_cursor_of_a_client_that_vanishes(subscribed: Subscribed) -> None:
    subscribed.query("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t")
    subscribed.wire.until()
    socket.socket(fileno=os.dup(subscribed.wire.login.pgconn.socket)).shutdown(socket.SHUT_RDWR)
    assert subscribed.hub.feed().closed.wait(60)


def test_postgresql_that_ends_the_connection_ends_the_subscription(subscribed: Subscribed) -> None:
    subscribed.query("SUBSCRIBE t")
    subscribed.wire.until("T")
    with psycopg.connect(subscribed.direct, autocommit=True) as direct:
        direct.execute("select pg_terminate_backend(%s)", (subscribed.wire.login.info.backend_pid,))
    kind, error = subscribed.wire.receive()
    assert (kind, field(error, "C")) == ("E", "57P01")
    with pytest.raises((EOFError, ConnectionResetError)):
        subscribed.wire.receive()
    assert subscribed.hub.feed().closed.wait(60)


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("cancelled", [False, True])
def test_listener_is_not_idle(subscribed: Subscribed, inside: bool, cancelled: bool) -> None:
    name = "idle_in_transaction_session_timeout" if inside else "idle_session_timeout"
    subscribed.query(f"SET {name} = '1234ms'" + ("; BEGIN; SAVEPOINT s" if inside else ""))
    subscribed.wire.until()
    subscribed.query("SUBSCRIBE t")
    subscribed.hub.feed()
    subscribed.wire.until("T")
    with psycopg.connect(subscribed.direct, autocommit=True) as direct:
        asking = "select 1 from pg_stat_activity where pid = %s and query like %s"
        off = (subscribed.wire.login.info.backend_pid, f"%set_config('{name}', '0'%")
        wait(lambda: direct.execute(asking, off).fetchone())
    if cancelled:
        subscribed.wire.login.cancel_safe()
    else:
        subscribed.hub.end()
    assert subscribed.wire.kinds() == ("EZ" if cancelled else "CZ")
    subscribed.query("ROLLBACK TO s" if inside else "SELECT 1")
    subscribed.wire.until()
    subscribed.query(f"SHOW {name}")
    assert rows(subscribed.wire.until()) == [["1234ms"]]


def test_read_only_transaction(subscribed: Subscribed) -> None:
    subscribed.query("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; DECLARE c CURSOR FOR SUBSCRIBE t; FETCH c")
    subscribed.hub.push((1, 1, 1, "a"))
    assert subscribed.wire.kinds() == "CCTDCZ"


def test_shutdown_of_the_server(subscribed: Subscribed, start_relay: Callable[..., RunningRelay]) -> None:
    relay = start_relay(hooks=subscribed.hooks)
    wire = Wire(through(relay, subscribed.direct))
    wire.send(m.query(b"SUBSCRIBE t"))
    wire.until("T")
    relay.run(relay.relay.stop())
    kind, error = wire.receive()
    assert (kind, field(error, "C")) == ("E", "57P01")
    assert subscribed.hub.feed().closed.wait(60)
    wire.close()


def test_notices_and_notifications_reach_a_subscriber(subscribed: Subscribed) -> None:
    subscribed.query("LISTEN news")
    subscribed.wire.until()
    subscribed.query("SUBSCRIBE t")
    subscribed.wire.until("T")
    with psycopg.connect(subscribed.direct, autocommit=True) as direct:
        direct.execute("notify news, 'hello'")
    kind, body = subscribed.wire.receive()
    assert (kind, body[4:]) == ("A", b"news\0hello\0")
    subscribed.hub.end()
    assert subscribed.wire.kinds() == "CZ"


def test_client_that_does_not_read_slows_the_feed_down_and_learns_why_it_was_dropped(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    subscribed.query("SUBSCRIBE t")
    feed = subscribed.hub.feed()
    row = m.message(m.DATA_ROW, b"\0\1\0\0\x40\0" + b"x" * (1 << 14))
    batches = 3000
    for n in range(batches):
        subscribed.hub.put(feed, Batch(n, row * 4, 4))
    subscribed.hub.end(SqlError("53400", "too slow"))
    taken = lambda: batches + 1 - len(feed.waiting)  # noqa: E731
    wait(lambda: taken() > 1)
    last = -1
    while last != taken():  # until the socket's and our buffers are full
        last = taken()
        time.sleep(0.2)
    assert last < batches // 2
    answer = wire.until()
    assert sum(kind == "D" for kind, _ in answer) == 4 * batches
    assert field(answer[-2][1], "C") == "53400"


def test_bytes_sent_behind_a_subscription_wait(subscribed: Subscribed) -> None:
    wire = subscribed.wire
    wire.send(statement("SUBSCRIBE t"), m.SYNC_MESSAGE, m.query(b"SELECT 6"), statement("SELECT 7"), m.SYNC_MESSAGE)
    subscribed.hub.push((1, 1, 1, "a"))
    subscribed.hub.end()
    assert wire.kinds() == "12DCZ"
    assert rows(wire.until()) == [["6"]]
    assert rows(wire.until()) == [["7"]]


def test_session_that_is_cancelled_by_a_wrong_key_goes_on(subscribed: Subscribed) -> None:
    subscribed.query("SUBSCRIBE t")
    pid = subscribed.wire.login.info.backend_pid
    subscribed.hub.feed()
    with dial(subscribed.port) as other:
        other.sendall((16).to_bytes(4, "big") + (80877102).to_bytes(4, "big") + pid.to_bytes(4, "big") + b"nope")
        assert other.recv(1) == b""
    subscribed.hub.end()
    assert subscribed.wire.kinds() == "TCZ"


def test_two_subscribers_do_not_disturb_each_other(subscribed: Subscribed) -> None:
    other = Wire(subscribed.dsn)
    try:
        subscribed.query("SUBSCRIBE t")
        subscribed.hub.feed()
        other.send(m.query(b"SUBSCRIBE t"))
        subscribed.hub.push((1, 1, 2, "other"), number=1)
        assert rows(other.until("D")) == [["1", "1", "2", "other"]]
        subscribed.wire.login.cancel_safe()
        assert subscribed.wire.kinds() == "TEZ"
        subscribed.hub.end(number=1)
        assert other.kinds() == "CZ"
    finally:
        other.close()
