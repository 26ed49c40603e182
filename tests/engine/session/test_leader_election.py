"""Who is elected, and what becomes of one that hangs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from catalog.install import install
from catalog.session import SqlError
from engine.session import leader_election
from engine.session.leader_election import Rival, elected
from engine.session.pool import DatabasePool, PooledSession
from server.postgres.cluster import EmbeddedPostgres

DEADLINE = 30.0


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
