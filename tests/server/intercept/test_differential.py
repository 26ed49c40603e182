"""The relay answers as PostgreSQL does, byte by byte, whatever is sent in whatever order."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from server.intercept.engine_interface import NoEngine
from server.protocol import messages as m
from server.relay.session import State
from tests.server.conftest import RunningRelay, through
from tests.server.intercept.differential import INT4LARGER, Conversation, Speaker, differ, held_with
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
        if any(b"behind COMMIT or ROLLBACK in the same pipe" in body for _, body in relayed):
            self.close()  # refused where a statement may make a request
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
    from server.relay.session import RelaySession

    assert isinstance(session, RelaySession)
    traffic = session.traffic
    owed = traffic.outstanding or traffic.batch or traffic.copying or traffic.skipping or traffic._received
    return session.state is State.RELAY and not owed


@contextmanager
def _both(relay: RunningRelay, dsn: str) -> Iterator[Both]:
    both = Both(relay, dsn)
    yield both
    both.close()


FAILING = statement("select 1/0")
COPY = m.query(b"create temp table if not exists c (i int)"), statement("copy c from stdin")
DATA, DONE = m.message(m.COPY_DATA, b"1\n"), m.COPY_DONE_MESSAGE
COPYING = m.query(b"copy c from stdin") + DATA + DONE


MISCOUNTED: list[tuple[bytes, ...]] = [
    (  # behind a Flush and a stray end of data, which run nothing
        *(m.query(b"select 1"), m.FLUSH_MESSAGE, m.message(m.COPY_FAIL, b"enough\0"), m.query(b"copy c from stdin")),
        *(
            m.message(m.COPY_DATA, b"1\n"),
            m.COPY_DONE_MESSAGE,
            m.query(b"begin; select 1; commit /* for subscribe t */"),
        ),
    ),
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


FAIL = m.message(m.COPY_FAIL, b"enough\0")
NOT_KEPT: list[tuple[bytes, ...]] = [  # what comes behind a stray end of COPY data
    (m.parse(b"", b"select 1"), COPYING),
    (m.parse(b"", b"select 1"), m.bind(b"", b""), m.describe_portal(b""), m.close_portal(b""), COPYING),
    (statement("select 1"), COPYING, m.SYNC_MESSAGE),
    (statement("select 1"), m.parse(b"", b"select 2"), COPYING, m.query(b"rollback"), m.SYNC_MESSAGE),
    (statement("commit"), m.parse(b"", b"select 2"), COPYING),
    (statement("commit"), statement("select 2"), COPYING),
    (m.parse(b"", b"select 1"), statement("copy c from stdin"), DATA, DONE, m.parse(b"", b"select 2"), COPYING),
]


@pytest.mark.parametrize("behind", NOT_KEPT)
def test_query_runs_in_the_transaction_of_what_was_executed_before_it_where_that_was_not_kept(
    relay: RunningRelay, dsn: str, behind: tuple[bytes, ...]
) -> None:
    """A stray end of COPY data may belong to a COPY in what has not been answered yet: the batch is not kept."""
    unanswered = m.query(b"select pg_sleep(0.02)")
    with _both(relay, dsn) as both:
        for end in (FAIL, DONE):
            for piece in (0, 1, 7, -1):
                both.hold(Conversation((unanswered, end, *behind), piece))


MENTION = b" /* create_stream_table */"
INSERT = statement("insert into c values (1)" + MENTION.decode())
COUNT = m.query(b"select count(*) from c")
IN_A_PIPELINE = (
    *("savepoint s", "release s", "rollback to s", "commit", "rollback", "end", "abort work", "begin", "vacuum c"),
    *("commit and chain", "rollback and chain", "commit and no chain", "begin isolation level serializable"),
    *("set transaction read only", "lock table c", "do $$begin raise warning 'said' using errcode = '25001'; end$$"),
)


@pytest.mark.parametrize("text", IN_A_PIPELINE)
@pytest.mark.one_in(2)
def test_transaction_control_behind_what_the_server_has_begun_a_transaction_for(
    relay: RunningRelay, dsn: str, text: str
) -> None:
    """PostgreSQL knows of a transaction block, its client does not."""
    control, said = statement(text), text.encode()
    named, unnamed = m.parse(b"n", said), m.parse(b"", said)
    first = m.parse(b"i", b"insert into c values (1)" + MENTION) + m.bind(b"", b"i") + m.execute(b"")
    several, after = m.query(said + b"; select 1"), m.query(b"select 1; " + said)
    conversations = [
        (INSERT, control, m.SYNC_MESSAGE, COUNT),
        (INSERT, control, INSERT, m.SYNC_MESSAGE, COUNT),
        (named, m.SYNC_MESSAGE, INSERT, m.bind(b"", b"n"), m.execute(b""), INSERT, m.SYNC_MESSAGE, COUNT),
        (unnamed, m.SYNC_MESSAGE, first, m.bind(b"", b""), m.execute(b""), INSERT, m.SYNC_MESSAGE, COUNT),
        (INSERT, m.query(said), COUNT),
        (INSERT, m.query(said), INSERT, m.SYNC_MESSAGE, COUNT),
        (INSERT, m.query(said), m.query(b"commit"), COUNT),
        (INSERT, m.query(said + MENTION), COUNT),
        (INSERT, several, COUNT),
        (INSERT, after, INSERT, m.SYNC_MESSAGE, COUNT),
        (statement("delete from c"), m.query(b"insert into c values (8)" + MENTION), m.query(said), COUNT),
    ]
    with _both(relay, dsn) as both:
        for messages in conversations:
            both.hold(Conversation(messages))


class Calling(NoEngine):
    """An engine in whose databases functions may make requests."""

    def look_for_callers(self, database: str, found: Callable[[], None]) -> None:
        found()


@pytest.mark.parametrize("text", ["commit", "end work and chain", "/* all */ commit", "prepare transaction 'never'"])
@pytest.mark.parametrize("before", ["insert into c values (1)", "select 1/0", "insert into d values (1), (1)"])
@pytest.mark.one_in(2)
def test_commit_that_waits_for_what_comes_before_it(
    start_relay: Callable[..., RunningRelay], dsn: str, text: str, before: str
) -> None:
    begin, first, sync = m.query(b"begin"), statement(before), m.SYNC_MESSAGE
    control, named, behind = statement(text), m.parse(b"n", text.encode()), (m.query(b"select 1"), COUNT)
    executed = m.bind(b"p", b"n") + m.execute(b"p")
    conversations = [
        (begin, m.query(before.encode()), m.query(text.encode()), *behind),
        (begin, m.query(before.encode() + b"; " + text.encode()), *behind),
        (begin, first, sync, control, sync, begin, first, control, sync, *behind),
        (begin, first, control, first, sync, *behind),
        (begin, first, m.query(text.encode()), first, control, m.query(b"select 2"), *behind),
        (named, sync, begin, first, executed, first, m.close_statement(b"n"), executed, sync, *behind),
        (named, sync, begin, m.query(b"copy c from stdin"), DATA, DONE, executed, sync, *behind),
        (begin, statement("copy c from stdin"), DATA, DONE, control, sync, *behind),
        (statement("begin"), first, control, statement("begin"), first, control, sync, *behind),
        (statement("begin"), statement("savepoint s"), statement("rollback to s"), first, control, sync, *behind),
        (
            statement("begin"),
            statement("savepoint s"),
            statement("rollback to s"),
            first,
            m.query(text.encode()),
            *behind,
        ),
        (begin, first, m.query(b"select case when true then 1 end; " + text.encode() + b"; select 2"), *behind),
        (m.query(b"begin; " + before.encode() + b"; " + text.encode() + b"; select 2"), *behind),
        (first, m.query(b"select 2; begin; " + before.encode() + b"; " + text.encode()), *behind),
    ]
    with _both(start_relay(hooks=Calling()), dsn) as both:
        for messages in conversations:
            for piece in (0, 1, -1):
                both.hold(Conversation((*messages, m.query(b"rollback")), piece))


OLDER = (  # what comes behind the Parse of a statement without a name, and leaves it as it is
    (statement("select 1/0", name=b"x"), m.parse(b"", b"select 2"), m.SYNC_MESSAGE),
    (m.parse(b"x", b"selec 1"), m.SYNC_MESSAGE, m.SYNC_MESSAGE),
    (m.bind(b"", b"missing"), m.parse(b"", b"select 2"), m.query(b"select 3"), m.SYNC_MESSAGE),
    (m.parse(b"y", b"select 4"), m.bind(b"", b"y"), m.execute(b""), m.SYNC_MESSAGE),
    (statement("select 1/0 " + MENTION.decode(), name=b"z"), m.parse(b"", b"select 2"), m.SYNC_MESSAGE),
)
REPLACED = (  # what replaces it, or removes it
    (m.parse(b"", b"select 2 -- " + b"long " * 1000), m.SYNC_MESSAGE),
    (m.parse(b"", b"selec 2"), m.SYNC_MESSAGE),
    (m.parse(b"w", b"select 5"), m.parse(b"", b"select 2"), m.SYNC_MESSAGE),
    (m.parse(b"", b"select 2"), statement("select 1/0", name=b"x"), m.SYNC_MESSAGE),
    (m.parse(b"", b"selec 2" + MENTION), m.SYNC_MESSAGE),
)


@pytest.mark.parametrize("text", ["rollback and chain", "commit and chain", "rollback"])
@pytest.mark.parametrize("behind", [*OLDER, *REPLACED])
@pytest.mark.one_in(3)
def test_statement_without_a_name_that_a_batch_before_the_last_has_prepared(
    relay: RunningRelay, dsn: str, behind: tuple[bytes, ...], text: str
) -> None:
    """Whether the relay knows, when it is executed in a transaction of the relay's, what PostgreSQL executes."""
    insert = m.parse(b"i", b"insert into c values (1)" + MENTION) + m.bind(b"", b"i") + m.execute(b"")
    executed = m.bind(b"", b"") + m.execute(b"")
    with _both(relay, dsn) as both:
        for piece in (0, -1):
            for prepared in (text.encode(), b"/*" + b"long" * 100 + b"*/" + text.encode()):
                said = m.parse(b"", prepared), m.SYNC_MESSAGE, *behind, insert, executed, m.SYNC_MESSAGE, COUNT
                both.hold(Conversation(said, piece, waiting=piece < 0))


def test_query_without_a_sync_before_it_runs_in_the_transaction_of_what_comes_before_it(
    relay: RunningRelay, dsn: str
) -> None:
    twice = statement("insert into d values (1)"), m.query(b"insert into d values (1)")
    call = m.message(m.FUNCTION_CALL, struct.pack(">Ihhi", INT4LARGER, 0, 2, 1) + b"7\0\0\0\x0212\0\0")
    conversations = [
        (INSERT, m.query(b""), INSERT, m.SYNC_MESSAGE, COUNT),
        (INSERT, m.query(b"select 1/0"), COUNT),
        (INSERT, m.query(b"select 1"), m.query(b"select 1/0"), COUNT),
        (INSERT, m.query(b"select 1; select 1/0"), COUNT),
        (INSERT, COUNT, m.query(b"rollback"), COUNT),
        (INSERT, call, m.query(b"rollback"), COUNT),
        (INSERT, m.message(m.FUNCTION_CALL, struct.pack(">Ihhh", 999999, 0, 0, 0)), COUNT),
        (INSERT, twice[0], twice[0], m.SYNC_MESSAGE, COUNT),
        (INSERT, twice[1], twice[1], m.query(b"commit"), COUNT),
        (INSERT, twice[0], twice[0], statement("commit"), m.SYNC_MESSAGE, COUNT),
        (INSERT, m.query(b"copy c from stdin"), DATA, DONE, INSERT, m.SYNC_MESSAGE, COUNT),
        (INSERT, m.query(b"copy c to stdout"), INSERT, m.SYNC_MESSAGE, COUNT),
        (m.close_portal(b"x"), m.query(b"insert into c values (1)" + MENTION), m.query(b"rollback"), COUNT),
        (statement("commit"), m.query(b"insert into c values (1)" + MENTION), m.query(b"rollback"), COUNT),
    ]
    with _both(relay, dsn) as both:
        for messages in conversations:
            both.hold(Conversation(messages))


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
