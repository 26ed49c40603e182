"""Errors of PostgreSQL at each step at which an interceptor waits for it: the client is told, its session goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

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


async def _injected(data: bytes) -> bytes:
    """An error in front of what the relay says, as of a statement that has run out of time."""
    if data[0] == m.QUERY:
        return m.query(b"injected")
    return m.parse(b"injected", b"injected") + data


def _answered(conversation: tuple[bytes, ...]) -> int:
    """How often PostgreSQL says that it is ready."""
    return conversation.count(S) + sum(part[0] == m.QUERY for part in conversation)


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_error_at_each_step(
    engaged: Engaged, at_step: Callable[..., list[int]], conversation: tuple[bytes, ...]
) -> None:
    wire = Wire(engaged.dsn)
    wire.socket.settimeout(20)
    for step in range(1, MOST):
        steps = at_step(step, _injected)
        wire.send(*conversation)
        answers: list[tuple[str, bytes]] = []
        for _ in range(_answered(conversation)):
            answers += wire.until()
        ended = len(steps) < step
        at_step(0, _injected)
        wire.send(m.query(b"rollback"), m.query(b"select 'marker'"))
        while not (answers and answers[-1][0] == "D" and answers[-1][1].endswith(b"marker")):
            answers.append(wire.receive())
        wire.until()
        assert "XX000" not in errors_of(answers), f"step {step}"
        if ended:
            break
        with psycopg.connect(engaged.direct, autocommit=True) as direct:
            for table in engaged.tables():
                direct.execute(f'drop table "{table}"'.encode())
            assert direct.execute("select count(*) from pgtrickle.pgt_requests").fetchone() == (0,), f"step {step}"
    assert ended and step > 2
    wire.close()


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
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
