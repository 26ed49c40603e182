"""Large results: written over several connections, seen by a refresh whose snapshot is older, and gone afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import pyarrow as pa
import pytest

from engine.spark.executor import SparkResult
from engine.spark.partition_writer import writer
from engine.spark.result_loading import Parallel
from engine.spark.staging import StagingArea
from tests.engine.spark.test_executor import Laboratory, laboratory

__all__ = ["laboratory"]

QUERY = "SELECT id, g, v::numeric(12, 2) AS v, date '2024-01-01' + 5 AS day FROM public.t"
TABLES = "SELECT relname::text FROM pg_class WHERE relnamespace = 'pgtrickle_staging'::regnamespace AND relkind = 'r'"


@pytest.fixture(params=["driver", "executors"])
def parallel(request: pytest.FixtureRequest, dsn: str) -> Callable[..., Parallel]:
    """Results of 100 rows and more are written in parallel, by this process or by Spark."""
    address = dsn if request.param == "executors" else None
    return lambda expected=5000: Parallel(rows=100, expected=expected, address=address)


async def tables(laboratory: Laboratory) -> list[str]:
    other = await laboratory.connect()
    try:
        return [name for (name,) in await other.fetch(TABLES)]
    finally:
        await other.close()


async def staged(laboratory: Laboratory, result: SparkResult, what: str) -> list[tuple[Any, ...]]:
    return await laboratory.session.fetch(f"SELECT {what} FROM {result.staging} AS s")


async def test_rows_written_in_parallel_are_seen_at_an_older_snapshot(
    laboratory: Laboratory, parallel: Callable[..., Parallel]
) -> None:
    async with laboratory.session.transaction():
        expected = await laboratory.session.fetch(
            f"SELECT count(*), md5(string_agg(q::text, '' ORDER BY id)) FROM ({QUERY}) q"
        )
        result = await laboratory.compute(QUERY, parallel=parallel())
        assert result.rows == 5000
        assert await staged(laboratory, result, "count(*), md5(string_agg(s::text, '' ORDER BY id))") == expected
        assert await tables(laboratory) != []
    await result.loading.drop()
    assert await tables(laboratory) == []


async def test_few_rows_go_through_a_temporary_table(laboratory: Laboratory, parallel: Callable[..., Parallel]) -> None:
    async with laboratory.session.transaction():
        result = await laboratory.compute("SELECT id, g FROM public.t WHERE id < 50", parallel=parallel(expected=49))
        assert await tables(laboratory) == []
        assert result.rows == 49
        assert await staged(laboratory, result, "count(*)") == [(49,)]


async def test_no_rows_where_many_were_expected(laboratory: Laboratory, parallel: Callable[..., Parallel]) -> None:
    async with laboratory.session.transaction():
        result = await laboratory.compute("SELECT id, g FROM public.t WHERE id < 0", parallel=parallel())
        assert await staged(laboratory, result, "count(*)") == [(0,)]
    await result.loading.drop()


async def test_only_the_owner_reads_the_rows(laboratory: Laboratory, parallel: Callable[..., Parallel]) -> None:
    await laboratory.connection.execute("CREATE ROLE staging_owner; CREATE ROLE staging_other")
    try:
        async with laboratory.session.transaction():
            result = await laboratory.compute(QUERY, parallel=parallel(), owner="staging_owner")
            await laboratory.session.execute("SET LOCAL ROLE staging_owner")
            assert await staged(laboratory, result, "count(*)") == [(5000,)]
            await laboratory.session.execute("SET LOCAL ROLE staging_other")
            await laboratory.session.execute("SAVEPOINT before")
            with pytest.raises(Exception, match="permission denied"):
                await staged(laboratory, result, "count(*)")
            await laboratory.session.execute("ROLLBACK TO before")
        await result.loading.drop()
    finally:
        await laboratory.connection.execute("DROP ROLE staging_owner; DROP ROLE staging_other")


async def test_failed_job_leaves_no_tables(laboratory: Laboratory, parallel: Callable[..., Parallel]) -> None:
    overflow = "SELECT id, g, v * 2147483647 AS v FROM public.t"
    with pytest.raises(Exception, match="Spark job failed"):
        async with laboratory.session.transaction():
            await laboratory.compute(overflow, parallel=parallel())
    assert await tables(laboratory) == []


WRITERS = "SELECT count(*) FROM pg_roles WHERE rolname ~ '^pgtrickle_staging_'"
IN_USE = "SELECT count(pgtrickle._lease_holder(name)) FROM pgtrickle.pgt_leases WHERE name LIKE 'staging %'"


async def test_leftovers_are_removed_and_what_is_in_use_is_not(
    laboratory: Laboratory, parallel: Callable[..., Parallel]
) -> None:
    async with laboratory.session.transaction():
        result = await laboratory.compute(QUERY, parallel=parallel())
    other: asyncpg.Connection = await laboratory.connect()
    await other.execute('CREATE UNLOGGED TABLE pgtrickle_staging."77_0a" (n int)')
    await other.execute("SELECT pgtrickle._admit_staging_writer(78, 'x', 60)")
    in_use = await tables(laboratory)
    await other.execute("SELECT pgtrickle._remove_staging_leftovers()")
    assert sorted(await tables(laboratory)) == sorted(name for name in in_use if name != "77_0a")
    assert await other.fetchval(WRITERS) == 0
    assert await other.fetchval(IN_USE) > 0
    # The server is killed: its connections end.
    for area in result.loading.areas:
        area._connection.terminate()
    while await other.fetchval(IN_USE):
        pass
    await other.execute("SELECT pgtrickle._remove_staging_leftovers()")
    assert await tables(laboratory) == []
    await other.close()


async def test_part_of_a_refresh_that_has_ended_is_not_kept(laboratory: Laboratory, dsn: str) -> None:
    area = await StagingArea.open(laboratory.connect, "PUBLIC", ["c0"], '"c0" int')
    await area.admit(dsn, 60)
    write = writer(area.number, area.login, [("c0", pa.int32())])
    batch = pa.RecordBatch.from_pydict({"c0": pa.array([1, 2, 3], pa.int32())})
    (found,) = await asyncio.to_thread(lambda: list(write([batch])))
    assert found.to_pylist()[0]["rows"] == 3
    part = f"{area.number}_{found.to_pylist()[0]['part']}"
    assert sorted(await tables(laboratory)) == sorted([part, f"{area.number}_like"])
    await laboratory.connection.execute("DELETE FROM pgtrickle.pgt_leases")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="or not any more"):
        await asyncio.to_thread(lambda: list(write([batch])))
    await area.drop()
    assert await tables(laboratory) == []
