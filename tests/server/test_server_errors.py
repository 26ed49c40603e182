"""Errors of PostgreSQL at each step at which an interceptor waits for it: the client is told, its session goes on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence

import psycopg
import pytest

from server.intercept.message_stream import MessageStream
from server.protocol import messages as m
from tests.server.conftest import Engaged
from tests.server.wire import Wire, errors_of, statement

CREATE = "select pgtrickle.create_stream_table('t', 'select 1 as a')"
MAKE = "select make('t', 'select 1 as a')"
ONE, S = statement("select 1"), m.SYNC_MESSAGE
CONVERSATIONS = {
    "query": (m.query(CREATE.encode()),),
    "string": (m.query(f"select 1; {CREATE}; select 2".encode()),),
    "string with a transaction": (m.query(f"{CREATE}; begin; select 1; commit; select 2".encode()),),
    "unannounced query": (m.query(MAKE.encode()),),
    "extended": (statement(CREATE), S),
    "pipeline": (ONE, statement(CREATE), ONE, S),
    "named": (m.parse(b"c", b"commit"), S, statement(CREATE), m.bind(b"", b"c"), m.execute(b""), S),
    "unannounced": (statement(MAKE), S),
    "savepoint": (statement(CREATE), statement("savepoint s"), S),
    "transaction": (m.query(b"begin"), statement(CREATE), S, m.query(b"commit")),
    "request that fails": (statement(CREATE.replace("'t'", "'refused'")), S),
    "two steps": (m.query(CREATE.replace("'t'", "'two steps'").encode()),),
}
MOST = 60
"""Steps that no conversation has."""


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[int]]]:
    """Lets something happen before the relay's n-th message to PostgreSQL; returns a list of the steps there were."""
    original = MessageStream.to_backend

    def arm(step: int, happens: Callable[[bytes], Awaitable[bytes]]) -> list[int]:
        steps: list[int] = []

        async def to_backend(stream: MessageStream, data: bytes) -> None:
            steps.append(len(steps))
            await original(stream, await happens(data) if len(steps) == step else data)

        monkeypatch.setattr(MessageStream, "to_backend", to_backend)
        return steps

    yield arm


LOCKED = b"select from private.held"
"""PostgreSQL waits for the lock as soon as it parses this."""
FAILURES = {  # a statement, the setting with which it fails, and how
    "not parsed": (b"injected", "application_name = ''", "42601"),
    "out of time": (LOCKED, "statement_timeout = 100", "57014"),
    "not locked in time": (LOCKED, "lock_timeout = 15", "55P03"),
}


def _injecting(statement: bytes) -> Callable[[bytes], Awaitable[bytes]]:
    """Puts a statement that fails in front of what the relay says."""

    async def injected(data: bytes) -> bytes:
        return m.query(statement) if data[0] == m.QUERY else m.parse(b"injected", statement) + data

    return injected


@pytest.fixture
def held(engaged: Engaged) -> Iterator[None]:
    """A table that another session has locked."""
    with psycopg.connect(engaged.direct) as other:
        other.execute("create schema private")
        other.execute("create table private.held ()")
        other.commit()
        other.execute("lock table private.held")
        yield


def _answered(conversation: tuple[bytes, ...]) -> int:
    """How often PostgreSQL says that it is ready."""
    return conversation.count(S) + sum(part[0] == m.QUERY for part in conversation)


@pytest.mark.one_in(6)
@pytest.mark.usefixtures("held")
@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_error_at_each_step(
    engaged: Engaged,
    at_step: Callable[..., list[int]],
    conversation: tuple[bytes, ...],
    failure: tuple[bytes, str, str],
) -> None:
    text, setting, sqlstate = failure
    injected = _injecting(text)
    wire = Wire(engaged.dsn)
    wire.socket.settimeout(20)
    wire.send(m.query(f"set {setting}".encode()))
    wire.until()
    said: set[str] = set()
    for step in range(1, MOST):
        steps = at_step(step, injected)
        wire.send(*conversation)
        answers: list[tuple[str, bytes]] = []
        for _ in range(_answered(conversation)):
            answers += wire.until()
        ended = len(steps) < step
        at_step(0, injected)
        wire.send(m.query(b"rollback"), m.query(b"select 'marker'"))
        while not (answers and answers[-1][0] == "D" and answers[-1][1].endswith(b"marker")):
            answers.append(wire.receive())
        wire.until()
        said.update(errors_of(answers))
        assert "XX000" not in said, f"step {step}"
        if ended:
            break
        with psycopg.connect(engaged.direct, autocommit=True) as direct:
            for table in engaged.tables():
                direct.execute(f'drop table "{table}"'.encode())
            assert direct.execute("select count(*) from pgtrickle.pgt_requests").fetchone() == (0,), f"step {step}"
    assert ended and step > 2
    assert sqlstate in said
    wire.close()


VIOLATED = """
create table k (i int primary key deferrable initially deferred);
create function violate() returns int language sql as 'insert into k values (1), (1) returning i'
"""
_CALL = re.compile(rb"(?:pgtrickle.create_stream_table|make)\([^)]*\)")


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_deferred_constraint_that_fails_at_the_commit(engaged: Engaged, conversation: tuple[bytes, ...]) -> None:
    with psycopg.connect(engaged.direct, autocommit=True) as direct:
        direct.execute(VIOLATED)
    answers = _held(engaged, [_violating(part) for part in conversation])
    (failure,) = (m.report_fields(body) for kind, body in answers if kind == "E")
    earlier = (b"25P01", b'query of "refused" is refused')  # SAVEPOINT in a pipeline, and the engine
    assert failure["C"] == b"23505" or failure["C"] in earlier or failure["M"] in earlier
    assert engaged.tables() == {"k"}


DENIED = """
create function deny() returns event_trigger language plpgsql as $$ begin
    if tg_tag = '{tag}' then raise exception 'not here' using errcode = 'P4444'; end if; end $$;
create event trigger deny on {event} execute function deny()
"""


@pytest.mark.parametrize("event", ["ddl_command_start", "ddl_command_end"])
@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.one_in(2)
def test_event_trigger_that_denies_what_the_engine_does(
    engaged: Engaged, conversation: tuple[bytes, ...], event: str
) -> None:
    with psycopg.connect(engaged.direct, autocommit=True) as direct:
        direct.execute(DENIED.format(tag="CREATE TABLE AS", event=event).encode())
    answers = _held(engaged, conversation)
    failures = [m.report_fields(body) for kind, body in answers if kind == "E"]
    assert failures[0]["C"] == b"P4444" or failures[0]["M"] == b'query of "refused" is refused'
    assert {failure["C"] for failure in failures[1:]} <= {b"25P02"}
    assert engaged.tables() == set()


def _violating(part: bytes) -> bytes:
    """A Query, or Parse, Bind and Execute, whose calls fail when their transaction commits."""
    if part[0] == m.QUERY:
        return m.query(_CALL.sub(rb"\g<0> from violate()", part[5:-1]))
    calls = _CALL.findall(part)
    return statement(f"select {calls[0].decode()} from violate()") if calls else part


def _held(engaged: Engaged, conversation: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """What is answered; the session goes on behind it, outside of any transaction."""
    wire = Wire(engaged.dsn)
    wire.socket.settimeout(20)
    wire.send(*conversation)
    answers: list[tuple[str, bytes]] = []
    for _ in range(_answered(tuple(conversation))):
        answers += wire.until()
    state = answers[-1]
    wire.send(m.query(b"select 'marker'"))
    assert state[1] == b"I"
    assert wire.kinds() == "TDCZ"
    wire.close()
    return answers


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
@pytest.mark.one_in(3)
def test_end_of_the_backend_at_each_step(
    engaged: Engaged, at_step: Callable[..., list[int]], conversation: tuple[bytes, ...]
) -> None:
    def terminate(pid: int) -> None:
        with psycopg.connect(engaged.direct, autocommit=True) as direct:
            direct.execute("select pg_terminate_backend(%s, 10000)", [pid])

    for step in range(1, MOST):
        wire = Wire(engaged.dsn)
        wire.socket.settimeout(20)
        pid = wire.login.info.backend_pid

        async def happens(data: bytes, pid: int = pid) -> bytes:
            await asyncio.to_thread(terminate, pid)
            return data

        steps = at_step(step, happens)
        wire.send(*conversation)
        answers: list[tuple[str, bytes]] = []
        try:
            for _ in range(_answered(conversation)):
                while not answers or answers[-1][0] != "Z":
                    answers.append(wire.receive())
                answers.append(("end", b""))
            wire.send(m.query(b"rollback"), m.query(b"select 'marker'"))
            while not (answers and answers[-1][0] == "D" and answers[-1][1].endswith(b"marker")):
                answers.append(wire.receive())
        except (EOFError, ConnectionError):
            assert errors_of(answers)[-1:] == ["57P01"], f"step {step}: {errors_of(answers)}"
        else:
            assert len(steps) < step > 2
            wire.close()
            return
        wire.close()
        with psycopg.connect(engaged.direct, autocommit=True) as direct:
            for table in engaged.tables():
                direct.execute(f'drop table "{table}"'.encode())
    raise AssertionError("too many steps")
