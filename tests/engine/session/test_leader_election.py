"""Who is elected, and what becomes of one that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import psycopg
import pytest

from catalog.install import install
from catalog.session import SqlError
from engine.session import leader_election
from engine.session.leader_election import Rival, beating, elected
from engine.session.pool import DatabasePool, PooledSession
from server.postgres.cluster import EmbeddedPostgres

DEADLINE = 90.0


@pytest.fixture
async def pool(cluster: EmbeddedPostgres, database: str) -> AsyncIterator[DatabasePool]:
    login = {"host": str(cluster.socket_dir), "port": cluster.port, "user": cluster.user, "password": cluster.password}
    pool = DatabasePool(database, lambda _: login)
    async with pool.session() as session:
        await install(session)
    yield pool
    await pool.close()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_leader_that_hangs_loses_all_its_sessions_and_is_replaced(pool: DatabasePool) -> None:
    clock = Clock()
    rival = Rival("work", clock=clock)
    async with asyncio.timeout(DEADLINE), elected(pool, "work") as leader, pool.session() as other:
        assert leader is not None
        await other.execute("CREATE TABLE public.written ()")
        await other.run_script("BEGIN; LOCK TABLE public.written")
        settings = {"application_name": "another server"}
        for now, lives in (
            (0.0, True),
            (leader_election.HANGING_SECONDS - 1, True),
            (leader_election.HANGING_SECONDS, False),
        ):
            clock.now = now
            async with elected(pool, "work", settings, rival) as second:
                assert second is None
            assert lives == (not await _has_ended(other, expected=not lives))
        while True:
            async with elected(pool, "work", settings) as second:
                if second is not None:
                    await second.execute("DROP TABLE public.written")  # nobody has it locked
                    break
        with pytest.raises(SqlError) as raised:
            await leader_election.beat(PooledSession(leader))
        assert raised.value.is_of_connection


@pytest.mark.parametrize("place", ["headwater engine {}", "headwater engine {}: scheduler", "worker 0: merge: {}"])
async def test_all_sessions_of_a_server_that_hangs_are_ended(pool: DatabasePool, place: str) -> None:
    names = ("headwater engine {}", "headwater engine {}: scheduler", "worker 1: merge: {}")
    clock = Clock()
    rival = Rival("work", clock=clock)
    async with AsyncExitStack() as opened:
        of_server = []
        for server in ("aaaaaaaa", "bbbbbbbb"):
            of_server.append([await pool.connect({"application_name": name.format(server)}) for name in names])
            for connection in of_server[-1]:
                opened.callback(connection.terminate)
        async with elected(pool, "work", {"application_name": place.format("aaaaaaaa")}) as leader:
            assert leader is not None
            for clock.now in (0.0, leader_election.HANGING_SECONDS):
                await rival.look(PooledSession(of_server[1][0]))
            for connection in (leader, *of_server[0]):
                assert await _has_ended(PooledSession(connection), expected=True)
        for connection in of_server[1]:
            assert not await _has_ended(PooledSession(connection), expected=False)


async def test_leader_whose_work_is_elsewhere_beats_and_ends_it_with_the_lease(
    pool: DatabasePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leader_election, "BEAT_SECONDS", 0.02)
    clock = Clock()
    rival = Rival("work", clock=clock)
    worker = await pool.connect()
    async with asyncio.timeout(DEADLINE), pool.session() as session, elected(pool, "work") as leader:
        assert leader is not None
        async with beating(leader, worker):
            signs = set()
            while len(signs) < 3:
                signs |= set(await session.fetch(leader_election._SIGN, "work"))
            for clock.now in (0.0, 100.0):
                await rival.look(session)
                await asyncio.sleep(0.1)
            assert not worker.is_closed()
            await session.fetch("SELECT pg_catalog.pg_terminate_backend($1::int)", leader.get_server_pid())
            while not worker.is_closed():  # noqa: ASYNC110
                await asyncio.sleep(0.02)


async def test_leader_that_lives_is_left_alone(pool: DatabasePool) -> None:
    clock = Clock()
    rival = Rival("work", clock=clock)
    async with asyncio.timeout(DEADLINE), elected(pool, "work") as leader:
        assert leader is not None
        for now in range(0, 100, 10):
            clock.now = float(now)
            await leader_election.beat(PooledSession(leader))
            async with elected(pool, "work", None, rival) as second:
                assert second is None
        working = asyncio.create_task(leader.execute("SELECT pg_catalog.pg_sleep(60)"))
        async with pool.session() as session:
            at_work = "SELECT 1 FROM pg_catalog.pg_stat_activity WHERE wait_event = 'PgSleep' AND pid = $1::int"
            while not await session.fetch(at_work, leader.get_server_pid()):
                pass
            for now in range(100, 200, 10):
                clock.now = float(now)
                await rival.look(session)
            assert not leader.is_closed()
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def test_nobody_says_that_a_scheduler_runs_that_hangs(
    pool: DatabasePool, cluster: EmbeddedPostgres, database: str
) -> None:
    running = "SELECT pgtrickle._scheduler_running(), pgtrickle._lease_beat('scheduler')"
    async with elected(pool, "scheduler") as leader:
        assert leader is not None
        async with await psycopg.AsyncConnection.connect(cluster.dsn(database), autocommit=True) as user:
            rows = await (await user.execute(running)).fetchall()
            assert rows[0][0] is True and rows[0][1].total_seconds() < 15
            # As it looks from outside when it is 20 seconds later.
            await user.execute(
                "CREATE OR REPLACE FUNCTION pgtrickle._lease_beat(name text) RETURNS interval"
                " LANGUAGE sql AS $$ SELECT interval '20 seconds' $$"
            )
            rows = await (await user.execute(running)).fetchall()
            assert rows[0][0] is False


async def _has_ended(session: PooledSession, *, expected: bool) -> bool:
    """Whether PostgreSQL has ended a session; where that is expected it may take a moment."""
    while True:
        try:
            await session.fetch("SELECT")
        except SqlError:
            return True
        if not expected:
            return False
