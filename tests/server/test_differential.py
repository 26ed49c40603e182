"""The relay answers as PostgreSQL does, byte by byte, whatever is sent in whatever order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from server.protocol import messages as m
from server.session import State
from tests.server.conftest import RunningRelay, through
from tests.server.differential import Conversation, Speaker, differ, held_with
from tests.server.wire import Wire, statement

TOGETHER = 50
"""Conversations that are held over one connection."""


class Both:
    """PostgreSQL, and a relay in front of it."""

    def __init__(self, relay: RunningRelay, dsn: str):
        self._relay = relay
        self._dsns = (dsn, through(relay, dsn))
        self._wires: list[Wire] = []

    def hold(self, said: Conversation) -> None:
        """Hold a conversation with both; what they answer must be the same."""
        self._wires = self._wires or [Wire(dsn) for dsn in self._dsns]
        straight, relayed = (held_with(wire, said, b"marker") for wire in self._wires)
        if any(b"behind COMMIT or ROLLBACK in the same pipe" in body or b"C3B001" in body for _, body in relayed):
            self.close()  # refused where a statement may make a request; a savepoint behind one, in our transaction
            return
        assert not differ(straight, relayed), f"{said}\nstraight: {straight}\nrelayed: {relayed}"
        if straight[-1][0] == "end":
            self.close()
        else:
            self._owes_nothing(said)

    def _owes_nothing(self, said: Conversation) -> None:
        deadline = time.monotonic() + 30
        while not all(map(_idle, self._relay.relay.sessions)):
            assert time.monotonic() < deadline, said
            time.sleep(0.001)

    def close(self) -> None:
        for wire in self._wires:
            wire.close()
        self._wires = []
        deadline = time.monotonic() + 30
        while self._relay.relay.sessions:
            assert time.monotonic() < deadline
            time.sleep(0.001)


def _idle(session: object) -> bool:
    """Whether the relay takes the session for one that has been answered."""
    from server.session import RelaySession

    assert isinstance(session, RelaySession)
    traffic = session.traffic
    owed = traffic.outstanding or traffic.batch or traffic.copying or traffic.skipping or traffic.received
    return session.state is State.RELAY and not owed


@contextmanager
def _both(relay: RunningRelay, dsn: str) -> Iterator[Both]:
    both = Both(relay, dsn)
    yield both
    both.close()


FAILING = statement("select 1/0")
COPY = m.query(b"create temp table if not exists c (i int)"), statement("copy c from stdin")
DATA, DONE = m.message(m.COPY_DATA, b"1\n"), m.COPY_DONE_MESSAGE


MISCOUNTED: list[tuple[bytes, ...]] = [
    (FAILING, m.query(b"select 1")),
    (FAILING, m.query(b"select 1"), m.query(b"select 2"), m.SYNC_MESSAGE, m.query(b"select 3")),
    (FAILING, m.message(m.FUNCTION_CALL, bytes(10)), m.SYNC_MESSAGE),
    (FAILING, m.query(b"select 1 -- create_stream_table"), statement("select 1"), m.SYNC_MESSAGE),
    (statement("select 1"), m.query(b"select 1/0"), m.query(b"select 1"), m.SYNC_MESSAGE),
    (m.query(b"copy c from stdin"), m.SYNC_MESSAGE),
    (m.query(b"copy c from stdin"), m.SYNC_MESSAGE, DATA, DONE, m.SYNC_MESSAGE, m.query(b"select 1")),
    (m.query(b"copy c from stdin; copy c from stdin"), DATA, DONE, m.SYNC_MESSAGE, DONE, m.SYNC_MESSAGE),
    (*COPY, m.SYNC_MESSAGE, m.SYNC_MESSAGE, DATA, DONE, m.SYNC_MESSAGE, m.SYNC_MESSAGE),
    (*COPY, DATA, DONE, COPY[1], m.SYNC_MESSAGE, DATA, DONE, m.SYNC_MESSAGE, m.query(b"select 1")),
    (DONE, *COPY, m.SYNC_MESSAGE, m.message(m.COPY_DATA, b"x\n"), DONE, m.SYNC_MESSAGE),
    (*COPY, m.SYNC_MESSAGE, m.query(b"rollback to s /* subscribe x */")),
    (COPY[0], statement("copy c from stdin -- create extension pgque"), m.query(b"move 1 in k")),
    (statement("copy c from stdin"), m.SYNC_MESSAGE, statement("select 1 -- copy from 's3://'"), m.SYNC_MESSAGE),
    (statement("commit"), m.describe_statement(b"x"), m.query(b"release s -- copy from 's3://'")),
]


def test_what_was_once_counted_wrongly(relay: RunningRelay, dsn: str) -> None:
    with _both(relay, dsn) as both:
        for messages in MISCOUNTED:
            for piece in (0, -1):
                both.hold(Conversation(messages, piece, waiting=piece < 0))
                both.hold(Conversation((m.query(b"select 1 -- create_stream_table"),)))


def _hold_some(relay: RunningRelay, dsn: str, seeds: range) -> None:
    for first in seeds[::TOGETHER]:
        with _both(relay, dsn) as both:
            for seed in range(first, min(first + TOGETHER, seeds.stop)):
                both.hold(Speaker(seed).conversation())


def test_random_conversations(relay: RunningRelay, dsn: str) -> None:
    _hold_some(relay, dsn, range(40))


@pytest.mark.long
def test_many_random_conversations(relay: RunningRelay, dsn: str) -> None:
    _hold_some(relay, dsn, range(1000, 6_000))
