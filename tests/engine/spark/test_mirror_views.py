"""Spark's views of the mirror hold the rows and the net changes that PostgreSQL has."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine.mirror.mirror import MirrorVersion
from engine.spark.mirror_views import FEW, create_views
from engine.spark.sessions import SparkSessions
from sql import Source
from tests.engine.mirror.mirror_laboratory import Laboratory

COLUMNS = ("id", "v", "f", "n")


@pytest.fixture(params=["sail", pytest.param("local[1]", marks=pytest.mark.long)])
async def spark(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SparkSessions]:
    sessions = SparkSessions(request.param, tmp_path / "spark")
    yield sessions
    await sessions.stop()


async def read(
    laboratory: Laboratory, sessions: SparkSessions, table: str, since: dict[str, Any] | None = None
) -> tuple[list[Any], dict[Any, int]]:
    """The views of a source in Spark: its rows, as texts, and its net changes."""
    source = await laboratory.source(table)
    async with laboratory.at(*COLUMNS, table=table, since=since) as version, sessions.acquire() as lease:

        def work(session: Any) -> tuple[list[Any], dict[Any, int]]:
            create_views(session, source, COLUMNS, version, f"source_{source.oid} delta_{source.oid}")
            rows = [texts(row) for row in session.sql(f"SELECT * FROM source_{source.oid}").collect()]
            changes = {}
            if since is not None:
                found = session.sql(f"SELECT * FROM delta_{source.oid}").collect()
                changes = {texts(row[:-1]): row["__pgt_w"] for row in found}
            return sorted(rows), changes

        return await lease.run(work, description="test")


def texts(row: Any) -> tuple[str, ...]:
    return tuple(str(value) for value in row)


async def expected(laboratory: Laboratory, table: str) -> list[Any]:
    rows = await laboratory.connection.fetch(f"SELECT {', '.join(COLUMNS)} FROM public.{table}")
    return sorted(texts(row) for row in rows)


CHANGES = [
    "UPDATE public.{} SET f = '-0' WHERE id = 1",
    "UPDATE public.{} SET v = NULL, f = 'NaN' WHERE id IN (2, 3)",
    "INSERT INTO public.{} SELECT i, 'new', i, 0.10 FROM generate_series(20, 25) i",
    "DELETE FROM public.{} WHERE id IN (4, 21)",
    "UPDATE public.{} SET id = id + 100 WHERE id > 22",
]


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
async def test_views_hold_rows_and_net_changes(laboratory: Laboratory, spark: SparkSessions, key: str) -> None:
    await laboratory.run(
        f"CREATE TABLE public.x (id int {key}, v text, f float8, n numeric(10,2))",
        "INSERT INTO public.x SELECT i, 'v' || i, 0, i FROM generate_series(1, 10) i",
    )
    if not key:
        await laboratory.run("INSERT INTO public.x SELECT * FROM public.x", "INSERT INTO public.x VALUES (NULL)")
    await laboratory.capture("x", COLUMNS)
    before = await expected(laboratory, "x")
    assert (await read(laboratory, spark, "x"))[0] == before
    frontier = await laboratory.frontier()
    for change in CHANGES:
        await laboratory.run(change.format("x"))
        after = await expected(laboratory, "x")
        rows, changes = await read(laboratory, spark, "x", frontier)
        assert rows == after
        difference = {row: after.count(row) - before.count(row) for row in [*before, *after]}
        assert changes == {row: times for row, times in difference.items() if times}


async def test_a_table_whose_log_is_empty_has_no_changes(laboratory: Laboratory, spark: SparkSessions) -> None:
    await laboratory.run("CREATE TABLE public.x (id int PRIMARY KEY, v text, f float8, n numeric(10,2))")
    await laboratory.run("INSERT INTO public.x VALUES (1, 'one', 0, 1)")
    await laboratory.capture("x", COLUMNS)
    frontier = await laboratory.frontier()
    rows = await expected(laboratory, "x")
    for _ in range(2):
        assert await read(laboratory, spark, "x", frontier) == (rows, {})


KEYS = {
    "id int, part int, v text, f int, n numeric(10,2), PRIMARY KEY (part, id)": "i, i % 2",
    "id char(5), v text, f int, n numeric(10,2), UNIQUE (id)": "i",
    "id numeric(8,2) PRIMARY KEY, v text, f int, n numeric(10,2)": "i / 4.0",
    "id text PRIMARY KEY, v text, f int, n numeric(10,2)": "E'k\\n' || i",
    "id float8 PRIMARY KEY, v text, f int, n numeric(10,2)": "i - 1",
    "id timestamp PRIMARY KEY, v text, f int, n numeric(10,2)": "timestamp '2020-01-01' + i * interval '1 microsecond'",
    "id numeric PRIMARY KEY, v text, f int, n numeric(10,2)": "i / 8.0",
}


async def test_rows_are_told_apart_by_a_key_that_nobody_reads(laboratory: Laboratory, spark: SparkSessions) -> None:
    names = ("v", "f", "n")
    for number, (columns, key) in enumerate(KEYS.items()):
        table = f"k{number}"
        await laboratory.run(
            f"CREATE TABLE public.{table} ({columns})",
            f"ALTER TABLE public.{table} ALTER id SET NOT NULL",
            f"INSERT INTO public.{table} SELECT {key}, 'same', 1, 1 FROM generate_series(1, 10) i",
        )
        await laboratory.capture(table, names, keyed=True)
        source = await laboratory.source(table)
        await laboratory.rows_in_mirror(*names, table=table)
        place = f"SELECT id FROM public.{table} ORDER BY id OFFSET {{}} LIMIT 1"
        changed = [place.format(n) for n in range(4)]
        # One key changes several times, one goes to another row, one comes again; -0 takes the place of 0.
        await laboratory.run(
            f"UPDATE public.{table} SET f = 2 WHERE id = ({changed[1]})",
            f"UPDATE public.{table} SET f = 3, v = NULL WHERE id = ({changed[1]})",
            f"CREATE TABLE public.kept{number} AS SELECT * FROM public.{table} WHERE id = ({changed[2]})",
            f"DELETE FROM public.{table} WHERE id = ({changed[2]})",
            f"UPDATE public.{table} SET id = (SELECT id FROM public.kept{number}) WHERE id = ({changed[3]})",
            f"DELETE FROM public.{table} WHERE id = ({changed[3]})",
        )
        if "float8" in columns:
            await laboratory.run(f"UPDATE public.{table} SET id = '-0', f = 9 WHERE id = 0")
            await laboratory.run(f"UPDATE public.{table} SET id = 'NaN' WHERE id = 9")
            await laboratory.run(f"UPDATE public.{table} SET f = 7 WHERE id = 'NaN'")
        rows = await laboratory.connection.fetch(f"SELECT v, f, n FROM public.{table}")
        async with laboratory.at(*names, table=table) as version, spark.acquire() as lease:
            assert version.reused and version.changes
            assert version.key == (("part", "id") if "part" in columns else ("id",))

            def work(session: Any, source: Source = source, version: MirrorVersion = version) -> list[Any]:
                create_views(session, source, names, version, f"source_{source.oid}")
                return [texts(row) for row in session.sql(f"SELECT * FROM source_{source.oid}").collect()]

            found = await lease.run(work, description="test")
        assert sorted(found) == sorted(texts(row) for row in rows), columns


async def test_what_few_rows_are_asked_of_reads_other_columns_of_these_rows_alone(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    await laboratory.run(
        "CREATE TABLE public.x (id int PRIMARY KEY, v text, f float8, n numeric(10,2))",
        "INSERT INTO public.x SELECT i, i % 100, i, i FROM generate_series(1, 20000) i",
    )
    await laboratory.capture("x", COLUMNS)
    await laboratory.rows_in_mirror(*COLUMNS, table="x")
    await laboratory.run("UPDATE public.x SET n = 0 WHERE id = 7")
    source = await laboratory.source("x")
    query = f"SELECT id, n FROM (SELECT '7' AS k) JOIN source_{source.oid} ON v = k"
    sessions = SparkSessions("sail", tmp_path / "spark")
    async with laboratory.at(*COLUMNS, table="x") as version, sessions.acquire() as lease:
        assert version.changes

        def work(session: Any) -> tuple[list[Any], int]:
            create_views(session, source, COLUMNS, version, query, FEW)
            plan = str(session.sql(f"EXPLAIN ANALYZE {query}").collect())
            left_out = [float(n) for n in re.findall(r"pushdown_rows_pruned=([0-9.]+)", plan)]
            return [texts(row) for row in session.sql(query).collect()], int(max(left_out))

        rows, left_out = await lease.run(work, description="test")
    assert sorted(rows) == sorted(
        texts(row) for row in await laboratory.connection.fetch("SELECT id, n FROM public.x WHERE v = '7'")
    )
    assert left_out > 0
    await sessions.stop()


async def test_rows_of_a_source_without_columns_are_counted(laboratory: Laboratory, spark: SparkSessions) -> None:
    await laboratory.run("CREATE TABLE public.x (id int)", "INSERT INTO public.x SELECT generate_series(1, 10)")
    await laboratory.capture("x", [])
    source = await laboratory.source("x")

    async def count() -> int:
        async with laboratory.at(table="x") as version, spark.acquire() as lease:

            def work(session: Any) -> int:
                create_views(session, source, (), version, f"source_{source.oid}")
                return int(session.sql(f"SELECT count(*) AS n FROM source_{source.oid}").collect()[0][0])

            return await lease.run(work, description="test")

    assert await count() == 10
    await laboratory.run("DELETE FROM public.x WHERE id < 4")
    assert await count() == 7
