"""The engine's connections beside a user's."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from catalog.session import SqlError
from engine.pool import DatabasePool
from server.embedded import EmbeddedPostgres


def pool_of(cluster: EmbeddedPostgres, database: str, **login: Any) -> DatabasePool:
    login = {"user": cluster.user, "password": cluster.password, **login}
    return DatabasePool(database, lambda _: {"host": str(cluster.socket_dir), "port": cluster.port, **login})


async def test_of_a_user_and_the_engine_that_wait_for_each_other_the_engine_gives_way(
    cluster: EmbeddedPostgres, database: str
) -> None:
    pool = pool_of(cluster, database)
    async with await psycopg.AsyncConnection.connect(cluster.dsn(database)) as user, pool.session() as engine:
        await user.execute("SET deadlock_timeout = '1h'")
        await user.execute("CREATE TABLE a (); CREATE TABLE b ()")
        await user.commit()
        await user.execute("LOCK TABLE a")
        with pytest.raises(SqlError) as raised:
            async with engine.transaction():
                await engine.execute("LOCK TABLE public.b")
                waiting = asyncio.create_task(user.execute("LOCK TABLE b"))
                for _ in range(6000):
                    if await engine.fetch("SELECT FROM pg_locks WHERE NOT granted"):
                        break
                    await asyncio.sleep(0.01)
                await engine.execute("LOCK TABLE public.a")
        assert raised.value.sqlstate == "40P01"
        await waiting
    await pool.close()


async def test_a_role_that_may_not_set_deadlock_timeout_connects_all_the_same(
    cluster: EmbeddedPostgres, database: str
) -> None:
    with psycopg.connect(cluster.dsn(database), autocommit=True) as admin:
        admin.execute("CREATE ROLE pool_plain LOGIN PASSWORD 'plain'")
    pool = pool_of(cluster, database, user="pool_plain", password="plain")
    async with pool.session() as session:
        assert await session.fetch("SELECT current_setting('deadlock_timeout'), current_setting('datestyle')") == [
            ("1s", "ISO, YMD")
        ]
    await pool.close()


@pytest.mark.parametrize("cancelled", [False, True])
@pytest.mark.parametrize("rows", [3, 300_000])
async def test_copy_whose_reader_goes_away_leaves_a_session_that_is_given_back(
    cluster: EmbeddedPostgres, database: str, rows: int, cancelled: bool
) -> None:
    pool = pool_of(cluster, database)
    reading = asyncio.Event()

    async def sink(piece: bytes) -> None:
        reading.set()
        if not cancelled:
            raise SqlError("57014", "nobody reads")
        await asyncio.Event().wait()

    async def copy() -> None:
        statement = f"COPY (SELECT n, repeat('x', 50) FROM generate_series(1, {rows}) n) TO STDOUT"
        async with pool.session() as session, session.transaction():
            await session.copy_out(statement, sink)

    task = asyncio.create_task(copy())
    async with asyncio.timeout(60):
        await reading.wait()
        if cancelled:
            task.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else SqlError):
            await task
        async with pool.session() as session:
            assert await session.fetch("SELECT count(*) FROM pg_stat_activity WHERE state ~ 'transaction'") == [(0,)]
        await pool.close()
