"""The Spark executor: rows computed from one snapshot reach a staging table of the refreshing transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from psycopg import conninfo

from catalog.install import install
from catalog.session import SqlError
from engine.mirror.mirror import Mirror
from engine.session.pool import SESSION_SETTINGS, PooledSession
from engine.spark.executor import SparkExecutor, SparkResult
from engine.spark.sessions import SparkJobFailed, SparkSessions, SparkUnavailable
from sql import Column, Source
from sql.spark.render import NotExpressible

GROUPS = "SELECT g, count(*) AS n, sum(v) AS total FROM public.t GROUP BY g"


class Laboratory:
    def __init__(self, options: dict[str, Any], sessions: SparkSessions, mirror: Mirror):
        self._options = options
        self.executor = SparkExecutor(sessions, mirror)
        self.connection: asyncpg.Connection
        self.session: PooledSession
        self.source: Source

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(**self._options, server_settings=SESSION_SETTINGS)

    async def compute(self, query: str, **options: Any) -> SparkResult:
        arguments: dict[str, Any] = {"owner": self._options["user"], "description": "test"} | options
        return await self.executor.run(
            self.session, database="lab", connect=self.connect, query=query, sources=[self.source], **arguments
        )


@pytest.fixture
async def laboratory(dsn: str, tmp_path: Path) -> AsyncIterator[Laboratory]:
    login = conninfo.conninfo_to_dict(dsn)
    options = {"host": login["host"], "port": int(login["port"]), "user": login["user"]}
    options |= {"password": login["password"], "database": login["dbname"]}
    sessions = SparkSessions("sail", tmp_path / "spark")
    laboratory = Laboratory(options, sessions, Mirror(tmp_path / "mirror"))
    laboratory.connection = connection = await laboratory.connect()
    laboratory.session = PooledSession(connection)
    await install(laboratory.session)
    await connection.execute("CREATE TABLE public.t (id int PRIMARY KEY, g text, v int)")
    await connection.execute("INSERT INTO public.t SELECT i, 'g' || i % 7, i FROM generate_series(1, 5000) i")
    oid = await connection.fetchval("SELECT 'public.t'::regclass::oid::bigint")
    laboratory.source = Source(
        oid, "public", "t", (Column("id", "integer"), Column("g", "text"), Column("v", "integer"))
    )
    yield laboratory
    await sessions.stop()
    await connection.close()


async def test_rows_equal_the_query_at_the_snapshot_that_is_reported(laboratory: Laboratory) -> None:
    expected = await laboratory.session.fetch(GROUPS)
    late = await laboratory.connect()
    async with laboratory.session.transaction():
        await laboratory.session.fetch("SELECT 1")
        await late.execute("INSERT INTO public.t VALUES (0, 'late', 1)")
        result = await laboratory.compute(GROUPS, types=(("g", ""), ("__count", "bigint"), ("__sum", "")))
        rows = await laboratory.session.fetch(f"SELECT g, __count, __sum FROM {result.staging}")
        ((snapshot,),) = await laboratory.session.fetch("SELECT pg_catalog.pg_current_snapshot()::text")
    assert sorted(rows) == sorted(expected)
    assert result.snapshot == snapshot
    assert (result.rows, result.read, result.extracted) == (7, 5000, 5000)
    await late.close()


async def test_snapshot_is_one_even_at_read_committed(laboratory: Laboratory) -> None:
    writer = await laboratory.connect()
    stop = asyncio.Event()

    async def write() -> None:
        number = 10_000
        while not stop.is_set():
            number += 1
            await writer.execute("INSERT INTO public.t VALUES ($1, 'w', 1)", number)

    writing = asyncio.create_task(write())
    try:
        async with laboratory.session.transaction("read_committed"):
            result = await laboratory.compute(
                "SELECT count(*) AS n, count(b.id) AS m FROM public.t a LEFT JOIN public.t b ON a.id = b.id"
            )
            ((n, m),) = await laboratory.session.fetch(f"SELECT n, m FROM {result.staging}")
            assert n == m == result.read
    finally:
        stop.set()
        await writing
        await writer.close()


async def test_staging_table_is_readable_by_the_owner_and_gone_after_the_transaction(laboratory: Laboratory) -> None:
    await laboratory.connection.execute(
        "DO $$ BEGIN IF to_regrole('spark_owner') IS NULL THEN CREATE ROLE spark_owner; END IF; END $$"
    )
    async with laboratory.session.transaction():
        result = await laboratory.compute(GROUPS, owner="spark_owner")
        await laboratory.session.execute("SET LOCAL ROLE spark_owner")
        assert await laboratory.session.fetch(f"SELECT count(*) FROM {result.staging}") == [(7,)]
    with pytest.raises(SqlError) as failure:
        await laboratory.session.fetch(f"SELECT count(*) FROM {result.staging}")
    assert failure.value.sqlstate in ("42P01", "3F000")


async def test_types_of_the_staging_table_cannot_be_redirected(laboratory: Laboratory) -> None:
    await laboratory.connection.execute("CREATE SCHEMA trap; CREATE DOMAIN trap.text AS pg_catalog.text CHECK (false)")
    async with laboratory.session.transaction():
        await laboratory.session.execute("SET LOCAL search_path = trap, pg_catalog")
        result = await laboratory.compute(GROUPS)
        assert result.rows == 7


async def test_query_that_is_not_expressible_touches_nothing(laboratory: Laboratory) -> None:
    async with laboratory.session.transaction():
        with pytest.raises(NotExpressible, match="function soundex"):
            await laboratory.compute("SELECT soundex(t.g) AS g FROM public.t")
        assert await laboratory.session.fetch("SELECT count(*) FROM public.t") == [(5000,)]


async def test_failure_of_a_function_in_python_says_what_it_was(laboratory: Laboratory) -> None:
    async with laboratory.session.transaction():
        with pytest.raises(SparkJobFailed, match="ValueError: no number that is read"):
            await laboratory.compute("SELECT t.g::numeric(9,2) AS n FROM public.t")
        result = await laboratory.compute("SELECT (t.v::text || 'e-1'::text)::numeric(9,1) AS n FROM public.t")
        assert await laboratory.session.fetch(f"SELECT sum(n)::text FROM {result.staging}") == [("1250250.0",)]


async def test_overflow_in_spark_leaves_the_transaction_usable(laboratory: Laboratory) -> None:
    async with laboratory.session.transaction():
        with pytest.raises(SparkJobFailed) as failure:
            await laboratory.compute("SELECT t.v * 2147483647 AS x FROM public.t")
        assert failure.value.sqlstate == "38000"
        assert await laboratory.session.fetch("SELECT 1") == [(1,)]


async def test_job_beyond_its_limit_is_ended(laboratory: Laboratory) -> None:
    product = "SELECT count(*) AS n FROM public.t a, public.t b, public.t c WHERE a.v + b.v + c.v = 7"
    async with laboratory.session.transaction():
        with pytest.raises(SparkJobFailed) as failure:
            await laboratory.compute(product, limit=0.5)
        assert failure.value.sqlstate == "57014"
        assert (await laboratory.compute(GROUPS)).rows == 7


async def test_spark_that_is_off_is_unavailable(laboratory: Laboratory, tmp_path: Path) -> None:
    laboratory.executor = SparkExecutor(SparkSessions("off", tmp_path), Mirror(tmp_path / "mirror"))
    async with laboratory.session.transaction():
        with pytest.raises(SparkUnavailable) as failure:
            await laboratory.compute(GROUPS)
        assert failure.value.sqlstate == "58000"


async def test_empty_table_and_empty_result(laboratory: Laboratory) -> None:
    await laboratory.connection.execute("TRUNCATE public.t")
    async with laboratory.session.transaction():
        assert (await laboratory.compute(GROUPS)).rows == 0
        result = await laboratory.compute("SELECT count(*) AS n, sum(t.v) AS s FROM public.t")
        assert await laboratory.session.fetch(f"SELECT n, s FROM {result.staging}") == [(0, None)]


async def test_names_and_values_with_every_kind_of_quote(laboratory: Laboratory) -> None:
    await laboratory.connection.execute('CREATE TABLE public."odd ""T" (id int, "Sélect-`x`" text)')
    await laboratory.connection.execute('INSERT INTO public."odd ""T" VALUES (1, $$it\'s "a\\b"$$)')
    oid = await laboratory.connection.fetchval('SELECT \'public."odd ""T"\'::regclass::oid::bigint')
    name = "Sélect-`x`"
    laboratory.source = Source(oid, "public", 'odd "T', (Column("id", "integer"), Column(name, "text")))
    query = f'SELECT o."{name}" AS "out""put" FROM public."odd ""T" o WHERE o."{name}" = \'it\'\'s "a\\b"\'::text'
    async with laboratory.session.transaction():
        with pytest.raises(NotExpressible, match="column name"):
            await laboratory.compute(query)
    await laboratory.connection.execute('ALTER TABLE public."odd ""T" RENAME "Sélect-`x`" TO "Sélect-x"')
    laboratory.source = Source(oid, "public", 'odd "T', (Column("id", "integer"), Column("Sélect-x", "text")))
    async with laboratory.session.transaction():
        result = await laboratory.compute(query.replace(name, "Sélect-x"))
        assert await laboratory.session.fetch(f'SELECT "out""put" FROM {result.staging}') == [('it\'s "a\\b"',)]
