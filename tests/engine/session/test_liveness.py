"""A PostgreSQL that has gone silent is given up; one that works for long is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from catalog.session import SqlError
from engine.session.liveness import WatchedConnection
from engine.session.pool import DatabasePool
from server.postgres.cluster import EmbeddedPostgres
from tests.silent_network import SilentNetwork, silent_network

DEADLINE = 30.0


@pytest.fixture
async def silenced(cluster: EmbeddedPostgres, database: str) -> AsyncIterator[tuple[DatabasePool, SilentNetwork]]:
    """A pool behind a network that can fall silent, which looks often."""
    with silent_network(cluster.socket_dir, cluster.port) as network:
        login = {"host": "127.0.0.1", "port": network.port, "user": cluster.user, "password": cluster.password}
        pool = DatabasePool(database, lambda _: {**login, "ssl": False})
        pool.liveness.patience, pool.liveness.answer_seconds = 0.1, 0.5
        yield pool, network
        await pool.close()


@pytest.mark.parametrize("recovers", [True, False], ids=["others get through", "nobody gets through"])
async def test_command_over_a_silent_connection_ends(
    silenced: tuple[DatabasePool, SilentNetwork], recovers: bool
) -> None:
    pool, network = silenced
    async with asyncio.timeout(DEADLINE):
        with pytest.raises(SqlError) as raised:
            async with pool.session() as session, session.transaction():
                await session.fetch("SELECT 1")
                network.fall_silent()
                if recovers:
                    network.recover()
                await session.fetch("SELECT 2")
        assert raised.value.sqlstate == "08006"
        network.recover()
        async with pool.session() as session:
            assert await session.fetch("SELECT 3") == [(3,)]


async def test_what_waits_for_a_lock_is_not_given_up(
    silenced: tuple[DatabasePool, SilentNetwork], cluster: EmbeddedPostgres, database: str
) -> None:
    pool, _ = silenced
    looked, looks, asking = asyncio.Event(), 0, pool.liveness.connect

    async def counted() -> WatchedConnection:
        nonlocal looks
        looks += 1
        if looks == 4:
            looked.set()
        return await asking()

    pool.liveness.connect = counted
    async with await psycopg.AsyncConnection.connect(cluster.dsn(database)) as user, asyncio.timeout(DEADLINE):
        await user.execute("CREATE TABLE a ()")
        await user.commit()
        await user.execute("LOCK TABLE a")
        async with pool.session() as session:
            waiting = asyncio.create_task(session.fetch("SELECT count(*) FROM public.a"))
            await looked.wait()
            await user.commit()
            assert await waiting == [(0,)]


async def test_closing_waits_for_nobody(silenced: tuple[DatabasePool, SilentNetwork]) -> None:
    pool, network = silenced
    pool.liveness.patience = 1e6

    async def work() -> None:
        async with pool.session() as session:
            network.fall_silent()
            begun.set()
            await session.fetch("SELECT 1")

    begun = asyncio.Event()
    async with asyncio.timeout(DEADLINE):
        task = asyncio.create_task(work())
        await begun.wait()
        await asyncio.sleep(0)
        task.cancel()
        await pool.close()
        await asyncio.gather(task, return_exceptions=True)
