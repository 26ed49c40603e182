"""Whose cursor a name means: names are lost by savepoints, used again, and prepared before there is a cursor."""

from __future__ import annotations

import pytest

from server.protocol import messages as m
from tests.server.subscriptions.subscribing import Subscribed, field, rows
from tests.server.wire import statement


def named(name: bytes, portal: bytes = b"") -> bytes:
    """Bind and run a prepared statement."""
    return m.bind(portal, name) + m.describe_portal(portal) + m.execute(portal)


@pytest.mark.parametrize("extended", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_name_of_a_cursor_that_a_savepoint_has_taken_back(
    subscribed: Subscribed, extended: bool, together: bool
) -> None:
    wire = subscribed.wire
    subscribed.query("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t; SAVEPOINT s; DECLARE d CURSOR FOR SUBSCRIBE t")
    wire.until()
    steps = ["ROLLBACK TO s", "DECLARE d CURSOR FOR SELECT 7", "FETCH d"]
    if together and not extended:
        steps = ["; ".join(steps)]
    for step in steps:
        wire.send(statement(step) + m.SYNC_MESSAGE if extended else m.query(step.encode()))
        answer = wire.until()
    assert rows(answer) == [["7"]]
    assert subscribed.hub.feed(1).closed.wait(60)
    subscribed.hub.push((1, 1, 1, "a"))
    subscribed.query("CLOSE d; FETCH c")
    assert rows(wire.until()) == [["1", "1", "1", "a"]]
    subscribed.query("CLOSE d")
    assert field(wire.until()[0][1], "C") == "34000"


def test_close_of_a_cursor_that_a_savepoint_has_taken_back(subscribed: Subscribed) -> None:
    subscribed.query("BEGIN; SAVEPOINT s; DECLARE d CURSOR FOR SUBSCRIBE t; ROLLBACK TO s; CLOSE d")
    answer = subscribed.wire.until()
    assert (field(answer[-2][1], "C"), answer[-1]) == ("34000", ("Z", b"E"))
    assert subscribed.hub.feed().closed.wait(60)


def test_reset_all_leaves_cursors_alone(subscribed: Subscribed) -> None:
    subscribed.query("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t; RESET ALL; FETCH 0 c")
    assert subscribed.wire.kinds() == "CCCTCZ"
    subscribed.hub.push((1, 1, 1, "a"))
    subscribed.query("FETCH c")
    assert rows(subscribed.wire.until()) == [["1", "1", "1", "a"]]


def test_discard_all_is_for_outside(subscribed: Subscribed) -> None:
    subscribed.query("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t; SAVEPOINT s; DISCARD ALL")
    assert field(subscribed.wire.until()[-2][1], "C") == "25001"
    subscribed.query("ROLLBACK TO s; FETCH 0 c; COMMIT")
    assert subscribed.wire.kinds() == "CTCCZ"
    assert subscribed.hub.feed().closed.wait(60)
    for sql, kinds in (("DISCARD ALL", "CZ"), ("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t; FETCH 0 c", "CCTCZ")):
        subscribed.query(sql)
        assert subscribed.wire.kinds() == kinds


@pytest.mark.parametrize("while_there_is_another", [False, True])
def test_fetch_that_was_prepared_before_the_cursor(subscribed: Subscribed, while_there_is_another: bool) -> None:
    wire = subscribed.wire
    if while_there_is_another:
        subscribed.query("BEGIN; DECLARE other CURSOR FOR SUBSCRIBE t")
        wire.until()
    wire.send(m.parse(b"f", b"FETCH FORWARD 1 FROM c"), m.parse(b"x", b"CLOSE c"), m.SYNC_MESSAGE)
    assert wire.kinds() == "11Z"
    if while_there_is_another:
        subscribed.query("COMMIT")
        wire.until()
    subscribed.query("BEGIN; DECLARE c CURSOR FOR SELECT 5")
    wire.until()
    wire.send(named(b"f"), m.SYNC_MESSAGE)
    assert rows(wire.until()) == [["5"]]
    subscribed.query("CLOSE c; DECLARE c CURSOR FOR SUBSCRIBE t")
    wire.until()
    subscribed.hub.push((1, 1, 1, "a"), (1, 1, 2, "b"), number=-1)
    for portal, expected in ((b"", ["1", "1", "1", "a"]), (b"p", ["1", "1", "2", "b"])):
        wire.send(m.describe_statement(b"f"), named(b"f", portal), m.SYNC_MESSAGE)
        answer = wire.until()
        assert "".join(kind for kind, _ in answer) == "tT2TDCZ"
        assert rows(answer) == [expected]
    wire.send(named(b"x"), m.SYNC_MESSAGE)
    assert ("C", b"CLOSE CURSOR\0") in wire.until()
    subscribed.query("DECLARE c CURSOR FOR SELECT 6")
    wire.until()
    wire.send(named(b"f"), m.SYNC_MESSAGE)
    assert rows(wire.until()) == [["6"]]
    wire.send(named(b"x"), m.SYNC_MESSAGE)
    assert ("C", b"CLOSE CURSOR\0") in wire.until()
    wire.send(named(b"f"), m.SYNC_MESSAGE)
    assert field(wire.until()[-2][1], "C") == "34000"
