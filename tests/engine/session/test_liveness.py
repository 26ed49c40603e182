"""A PostgreSQL that has gone silent is given up; one that works for long is not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import psycopg
import pytest

from catalog.session import SqlError
from engine.session.liveness import WatchedConnection
from engine.session.pool import DatabasePool
from server.postgres.cluster import EmbeddedPostgres
from tests.silent_network import SilentNetwork, silent_network

DEADLINE = 90.0


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
    pool.liveness.answer_seconds = DEADLINE  # a busy machine takes its time
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


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not say what is acknowledged")
@pytest.mark.parametrize("gone", [True, False])
async def test_copy_whose_data_are_not_acknowledged_is_given_up_and_one_whose_data_are_not_taken_is_not(
    silenced: tuple[DatabasePool, SilentNetwork],
    cluster: EmbeddedPostgres,
    database: str,
    gone: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PostgreSQL is at work on both, as it says itself: it waits for data, or for a lock."""
    pool, network = silenced
    if not gone:
        pool.liveness.answer_seconds = DEADLINE
    monkeypatch.setattr("engine.session.liveness.UNACKNOWLEDGED_SECONDS", 1.0)
    blocked = asyncio.Event()

    async def data() -> AsyncIterator[bytes]:
        yield b"1\n"
        if gone:
            await asyncio.sleep(0.2)
            network.vanish()
        for _ in range(200):
            yield b"1\n" * 30_000
        blocked.set()

    async with await psycopg.AsyncConnection.connect(cluster.dsn(database)) as user, asyncio.timeout(DEADLINE):
        await user.execute("CREATE TABLE a (i int)")
        await user.commit()
        if not gone:
            await user.execute("LOCK TABLE a")
        async with pool.session() as session:
            copying = asyncio.create_task(session.copy_in("public", "a", ["i"], data()))
            if gone:
                with pytest.raises(SqlError) as raised:
                    await copying
                assert raised.value.sqlstate == "08006"
            else:
                await asyncio.sleep(4)
                assert not copying.done()
                assert not blocked.is_set()  # so much is not on its way: the window is closed
                await user.commit()
                assert await copying == 200 * 30_000 + 1


async def test_copy_ends_whose_session_is_ended_while_nothing_is_taken(
    silenced: tuple[DatabasePool, SilentNetwork], cluster: EmbeddedPostgres, database: str
) -> None:
    pool, _ = silenced

    async def data() -> AsyncIterator[bytes]:
        for _ in range(200):
            yield b"1\n" * 30_000

    async with await psycopg.AsyncConnection.connect(cluster.dsn(database)) as user, asyncio.timeout(DEADLINE):
        await user.execute("CREATE TABLE a (i int)")
        await user.commit()
        await user.execute("LOCK TABLE a")
        async with pool.session() as session:
            ((pid,),) = await session.fetch("SELECT pg_backend_pid()")
            copying = asyncio.create_task(session.copy_in("public", "a", ["i"], data()))
            await asyncio.sleep(0.5)
            await user.execute("SELECT pg_terminate_backend(%s)", [pid])
            with pytest.raises(SqlError) as raised:
                await copying
            assert raised.value.sqlstate in ("57P01", "08006")


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
