"""The protocol as an attacker speaks it: answers out of turn, floods, half-open connections, smuggled bytes."""

from __future__ import annotations

import struct
import time
from collections import deque
from typing import Any, cast

import psycopg
import pytest

from server.intercept.relayed_session import RelayedSession
from server.protocol import messages as m
from server.relay.session import _MOST_OUTSTANDING
from tests.e2e.conftest import Headwater
from tests.server.conftest import RunningRelay, through
from tests.server.wire import Wire, dial, statement, until_closed


class Prompter:
    """A dialogue in which PostgreSQL's answers are those that a client has arranged to come first."""

    client_encoding = "UTF8"
    pinned = False

    def __init__(self, answers: bytes):
        self._answers = deque(m.split(answers))

    async def to_backend(self, data: bytes) -> None:
        pass

    async def next_from_backend(self) -> tuple[int, bytes]:
        answer = self._answers.popleft()
        return answer[0], answer


async def test_the_engine_takes_no_answer_of_the_clients_for_its_own() -> None:
    columns, value = 20, m.INT32.pack(1) + b"x"
    described = b"".join(b"c\0" + m.INT32.pack(0) + bytes(2) + m.INT32.pack(25) + bytes(8) for _ in range(columns))
    forged = (
        m.message(m.ROW_DESCRIPTION, m.INT16.pack(columns) + described)
        + m.message(m.DATA_ROW, m.INT16.pack(columns) + value * columns)
        + m.message(m.COMMAND_COMPLETE, b"SELECT 1\0")
        + m.ready(m.IN_TRANSACTION)
    )

    async def nothing() -> None:
        raise AssertionError

    session = RelayedSession(cast(Any, Prompter(forged)), "db", m.IN_TRANSACTION, lambda: None, nothing)
    await session.pin()
    with pytest.raises(m.ProtocolViolation, match="out of turn"):
        await session.fetch("SELECT 1")


@pytest.mark.parametrize("code", [80877103, 80877104])
def test_encryption_is_asked_for_once(relay: RunningRelay, code: int) -> None:
    with dial(relay.port) as client:
        client.sendall(struct.pack(">II", 8, code))
        assert client.recv(1) == b"N"
        client.sendall(struct.pack(">II", 8, code))
        assert b"C08P01" in until_closed(client)


def test_syncs_whose_answers_nobody_reads_take_no_memory(relay: RunningRelay, dsn: str) -> None:
    """PostgreSQL is busy; the client goes on sending. In the end each is answered."""
    wire = Wire(through(relay, dsn))
    (session,) = relay.relay.sessions
    wire.send(m.query(b"select pg_sleep(0.5)"), m.SYNC_MESSAGE * 30_000)
    most = 0
    for _ in range(30_001):
        most = max(most, len(session.traffic.outstanding))
        wire.until()
    assert 1 < most < 2 * _MOST_OUTSTANDING
    wire.close()


def test_syncs_in_great_number_are_all_answered(relay: RunningRelay, dsn: str) -> None:
    wire = Wire(through(relay, dsn))
    for _ in range(2):
        wire.send(m.query(b"select pg_sleep(0.1)"), m.SYNC_MESSAGE * 15_000, statement("select 7"), m.SYNC_MESSAGE)
        kinds = "".join(kind for _ in range(15_002) for kind, _ in wire.until())
        assert kinds == "TDCZ" + "Z" * 15_000 + "12DCZ"
    wire.close()


def test_who_may_not_drop_a_database_does_not_disturb_the_engine_in_it(server: Headwater) -> None:
    name = "undisturbed"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        admin.execute("CREATE ROLE disturber LOGIN PASSWORD 'x'")
        try:
            with psycopg.connect(server.dsn(name)) as user:
                user.execute("SELECT 1")
            # Other sessions of the engine come and go.
            engines = (
                "SELECT array_agg(pid ORDER BY pid) FROM pg_stat_activity WHERE datname = %s"
                " AND application_name LIKE 'headwater engine%%' AND pid IN (SELECT pid FROM pgtrickle.pgt_leases)"
            )
            with psycopg.connect(server.dsn(name), autocommit=True) as user:
                deadline, before = time.monotonic() + 30, None
                while not before and time.monotonic() < deadline:
                    ((before,),) = user.execute(engines, [name]).fetchall()
                with psycopg.connect(server.dsn(user="disturber", password="x"), autocommit=True) as other:
                    for text in (f"DROP DATABASE {name}", f"CREATE DATABASE mine TEMPLATE {name}"):
                        with pytest.raises(psycopg.errors.InsufficientPrivilege):
                            other.execute(text)
                ((after,),) = user.execute(engines, [name]).fetchall()
            assert before and set(before) <= set(after)
        finally:
            admin.execute(f"DROP DATABASE {name}")
            admin.execute("DROP ROLE disturber")
