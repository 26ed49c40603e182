"""The engine's connections beside a user's."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import asyncpg
import psycopg
import pytest

from catalog.session import SqlError
from engine.session.pool import DatabasePool
from server.postgres.cluster import EmbeddedPostgres


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


async def test_a_role_that_may_not_set_deadlock_timeout_gives_way_as_well(
    cluster: EmbeddedPostgres, database: str
) -> None:
    """The user has waited for longer, and would look for a deadlock first."""
    with psycopg.connect(cluster.dsn(database), autocommit=True) as admin:
        admin.execute("CREATE ROLE pool_waiting LOGIN PASSWORD 'plain'; CREATE TABLE a (); CREATE TABLE b ()")
        admin.execute("GRANT SELECT, UPDATE ON a, b TO pool_waiting")
    pool = pool_of(cluster, database, user="pool_waiting", password="plain")
    async with await psycopg.AsyncConnection.connect(cluster.dsn(database)) as user, pool.session() as engine:
        await user.execute("LOCK TABLE a")
        with pytest.raises(SqlError) as raised:
            async with engine.transaction(impatient=True):
                await engine.execute("LOCK TABLE public.b IN EXCLUSIVE MODE")
                waiting = asyncio.create_task(user.execute("LOCK TABLE b"))
                for _ in range(6000):
                    if await engine.fetch("SELECT FROM pg_locks WHERE NOT granted"):
                        break
                    await asyncio.sleep(0.01)
                await engine.execute("LOCK TABLE public.a IN EXCLUSIVE MODE")
        assert raised.value.sqlstate == "55P03"
        await waiting
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


@pytest.mark.parametrize("words", ["BEGIN ISOLATION LEVEL repeatable read", "COMMIT", "ROLLBACK"])
async def test_transaction_that_is_given_up_at_its_edges_is_rolled_back_without_a_word(
    cluster: EmbeddedPostgres, database: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cancelled then is not known to have begun, or ended: the session goes back without a transaction."""
    pool = pool_of(cluster, database)
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    execute = asyncpg.Connection.execute
    task: asyncio.Task[None]

    async def cancelled(self: asyncpg.Connection, text: str, *args: Any, **options: Any) -> str:
        if text == words:
            task.cancel()
        return str(await execute(self, text, *args, **options))

    async def work() -> None:
        async with pool.session() as session, session.transaction():
            await session.execute("CREATE TABLE public.made ()")
            if words == "ROLLBACK":
                raise SqlError("22012", "division by zero")

    monkeypatch.setattr(asyncpg.Connection, "execute", cancelled)
    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task
    monkeypatch.undo()
    assert complaints == []
    async with pool.session() as session:
        assert await session.fetch("SELECT count(*) FROM pg_locks WHERE relation = to_regclass('public.made')") == [
            (0,)
        ]
        await session.execute("DROP TABLE IF EXISTS public.made")
    await pool.close()


async def test_transaction_whose_failure_nobody_has_raised_is_not_taken_for_committed(
    cluster: EmbeddedPostgres, database: str
) -> None:
    """PostgreSQL answers the COMMIT of a failed transaction with ROLLBACK, which is no error."""
    pool = pool_of(cluster, database)
    async with pool.session() as session:
        with pytest.raises(SqlError, match="nothing was committed") as raised:
            async with session.transaction():
                await session.execute("CREATE TABLE public.made ()")
                with pytest.raises(SqlError, match="division by zero"):
                    await session.fetch("SELECT 1 / 0")
        assert raised.value.sqlstate == "25P02"
        assert await session.fetch("SELECT to_regclass('public.made') IS NULL") == [(True,)]
        async with session.transaction():
            await session.execute("CREATE TABLE public.made ()")
    await pool.close()


async def test_lost_connection_is_called_so_at_every_use(cluster: EmbeddedPostgres, database: str) -> None:
    pool = pool_of(cluster, database)
    async with pool.session() as session:
        ((pid,),) = await session.fetch("SELECT pg_backend_pid()")
        assert not session.lost
        with pytest.raises(SqlError) as raised:
            async with session.transaction():
                sleeping = asyncio.create_task(session.fetch("SELECT pg_sleep(600)"))
                await asyncio.sleep(0)
                os.kill(int(str(pid)), signal.SIGTERM)
                await sleeping
        assert raised.value.sqlstate in ("57P01", "08006")
        for _ in range(2):
            with pytest.raises(SqlError, match="connection to PostgreSQL was lost") as raised:
                async with session.transaction():
                    raise AssertionError("a transaction over nothing")
            assert raised.value.sqlstate == "08006"
        assert session.lost
    await pool.close()


async def test_the_engine_waits_for_a_connection_that_clients_will_give_back(
    cluster: EmbeddedPostgres, database: str
) -> None:
    with psycopg.connect(cluster.dsn(database), autocommit=True) as admin:
        admin.execute("CREATE ROLE pool_scarce LOGIN PASSWORD 'plain' CONNECTION LIMIT 1")
    client = psycopg.connect(cluster.dsn(database), user="pool_scarce", password="plain")
    pool = pool_of(cluster, database, user="pool_scarce", password="plain")

    async def ask() -> list[Any]:
        async with pool.session() as session:
            return await session.fetch("SELECT 1")

    asking = asyncio.create_task(ask())
    await asyncio.wait({asking}, timeout=0.2)
    client.close()
    assert await asking == [(1,)]
    await pool.close()
