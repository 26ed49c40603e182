"""A first copy over several connections is that of one snapshot, whole, and each row once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from engine.mirror import parallel_extract
from sql.errors import NotExpressible
from tests.engine.mirror.mirror_laboratory import Laboratory, contents, open_laboratory


@pytest.fixture
async def laboratory(dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Laboratory]:
    monkeypatch.setattr(parallel_extract, "CONNECTIONS", 3)
    async with open_laboratory(dsn, tmp_path / "mirror") as laboratory:
        yield laboratory


TABLES = [
    ["CREATE TABLE public.x (id int PRIMARY KEY, v text)"],
    [
        "CREATE TABLE public.x (id int, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE public.x1 PARTITION OF public.x FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE public.x2 (v text, gone int, id int)",
        "ALTER TABLE public.x2 DROP COLUMN gone",
        "ALTER TABLE public.x ATTACH PARTITION public.x2 FOR VALUES FROM (1000) TO (100000)",
        "CREATE TABLE public.x3 PARTITION OF public.x FOR VALUES FROM (100000) TO (100001)",
    ],
]


@pytest.mark.parametrize("statements", TABLES, ids=["plain", "partitioned"])
async def test_copy_in_parts_is_one_snapshot_while_writers_go_on(laboratory: Laboratory, statements: list[str]) -> None:
    await laboratory.run(
        *statements, "INSERT INTO public.x SELECT i, repeat('v', 100) || i FROM generate_series(1, 3000) i"
    )
    await laboratory.capture("x", ["id", "v"])
    writer, stop = await laboratory.connect(), asyncio.Event()

    async def write() -> None:
        number = 10_000
        while not stop.is_set():
            number += 1
            await writer.execute("INSERT INTO public.x VALUES ($1, 'w')", number)
            await writer.execute("UPDATE public.x SET v = v || 'x' WHERE id = $1", number - 9000)
            await writer.execute("DELETE FROM public.x WHERE id = $1", number - 7500)

    exporter = await laboratory.connect()
    writing = asyncio.create_task(write())
    try:
        async with exporter.transaction(isolation="repeatable_read"):
            rows = await exporter.fetch("SELECT id, v FROM public.x")
            expected = sorted((tuple(row) for row in rows), key=str)
            async with laboratory.at("id", "v", table="x", exporter=exporter) as version:
                assert not version.reused
                assert contents(version, "id", "v") == expected
    finally:
        stop.set()
        await writing
    await exporter.close()
    await writer.close()
    rows = await laboratory.connection.fetch("SELECT id, v FROM public.x")
    async with laboratory.at("id", "v", table="x") as version:
        assert version.reused
        assert contents(version, "id", "v") == sorted((tuple(row) for row in rows), key=str)


async def test_value_that_cannot_be_carried_ends_all_parts(laboratory: Laboratory) -> None:
    await laboratory.run(
        "CREATE TABLE public.x (id int, v text, n numeric(10, 2))",
        "INSERT INTO public.x SELECT i, repeat('v', 200), CASE i WHEN 2500 THEN 'NaN' ELSE '1.5' END::numeric"
        " FROM generate_series(1, 3000) i",
    )
    with pytest.raises(NotExpressible, match='a value of table "x"'):
        await laboratory.rows("id", "v", "n", table="x")
    assert len(await laboratory.rows("id", "v", table="x")) == 3000
