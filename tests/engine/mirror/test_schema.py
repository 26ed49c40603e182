"""The mirror of a source whose definition changes, or whose capture cannot be trusted, is copied anew."""

from __future__ import annotations

import pytest

from catalog.session import SqlError
from tests.engine.mirror.mirror_laboratory import Laboratory, contents


async def test_captured_columns_are_there_before_they_are_asked_for(laboratory: Laboratory) -> None:
    await laboratory.rows("id")
    async with laboratory.at("n", "v") as version:
        assert version.reused


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ("ALTER TABLE public.t ADD COLUMN w int DEFAULT 7", ("id", "w")),
        ("ALTER TABLE public.t RENAME COLUMN v TO w", ("id", "w")),
        ("ALTER TABLE public.t ALTER COLUMN v TYPE varchar(2) USING left(v, 1)", ("id", "v")),
        ("ALTER TABLE public.t DROP COLUMN n", ("id", "v")),
        ("ALTER TABLE public.t DROP CONSTRAINT t_pkey", ("id", "v")),
    ],
)
@pytest.mark.one_in(2)
async def test_schema_changes_reach_the_mirror(laboratory: Laboratory, change: str, names: tuple[str, ...]) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run("UPDATE public.t SET v = 'before' WHERE id = 3", change)
    await laboratory.capture("t", names)
    await laboratory.run("INSERT INTO public.t (id) VALUES (6)")
    query = f"SELECT {', '.join(names)} FROM public.t"
    expected = sorted((tuple(row) for row in await laboratory.connection.fetch(query)), key=str)
    async with laboratory.at(*names) as version:
        assert not version.reused
        assert contents(version, *names) == expected
    await laboratory.run("INSERT INTO public.t (id) VALUES (7)")
    expected = sorted((tuple(row) for row in await laboratory.connection.fetch(query)), key=str)
    async with laboratory.at(*names) as version:
        assert version.reused
        assert contents(version, *names) == expected


async def test_source_that_is_not_captured_is_copied_every_time(laboratory: Laboratory) -> None:
    await laboratory.run("CREATE TABLE public.free (id int)", "INSERT INTO public.free VALUES (1)")
    assert await laboratory.rows("id", table="free") == [(1,)]
    await laboratory.run("INSERT INTO public.free VALUES (2)")
    assert await laboratory.rows("id", table="free") == [(1,), (2,)]


async def test_disabled_capture_is_not_trusted(laboratory: Laboratory) -> None:
    await laboratory.rows("id")
    await laboratory.run(
        "ALTER TABLE public.t DISABLE TRIGGER ALL", "DELETE FROM public.t", "ALTER TABLE public.t ENABLE TRIGGER ALL"
    )
    assert await laboratory.rows("id") == []


async def test_rewritten_table_is_copied_again(laboratory: Laboratory) -> None:
    await laboratory.rows("id")
    await laboratory.run("ALTER TABLE public.t ALTER COLUMN id TYPE int USING id * 10")
    assert await laboratory.rows("id") == [(10,), (20,), (30,), (40,), (50,)]


async def test_table_truncated_after_the_snapshot_is_not_taken_for_empty(laboratory: Laboratory) -> None:
    exporter = await laboratory.connect()
    async with exporter.transaction(isolation="repeatable_read"):
        await exporter.fetch("SELECT 1")
        await laboratory.run("TRUNCATE public.t")
        with pytest.raises(SqlError) as failure:
            await laboratory.rows("id", exporter=exporter)
        assert failure.value.sqlstate == "40001"
    await exporter.close()


async def test_partitions_and_children_are_part_of_the_copy(laboratory: Laboratory) -> None:
    await laboratory.run(
        "CREATE TABLE public.p (id int, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE public.p1 PARTITION OF public.p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE public.p2 PARTITION OF public.p FOR VALUES FROM (10) TO (20)",
        "INSERT INTO public.p VALUES (1, 'a'), (11, 'b')",
    )
    await laboratory.capture("p", ["id", "v"])
    assert await laboratory.rows("id", "v", table="p") == [(1, "a"), (11, "b")]
    async with laboratory.at("id", "v", table="p") as version:
        assert version.reused
    await laboratory.run("DELETE FROM public.p2")
    async with laboratory.at("id", "v", table="p") as version:
        assert version.reused
        assert contents(version, "id", "v") == [(1, "a")]
    await laboratory.run(
        "CREATE TABLE public.p3 (id int, v text)",
        "INSERT INTO public.p3 VALUES (21, 'c')",
        "ALTER TABLE public.p ATTACH PARTITION public.p3 FOR VALUES FROM (20) TO (30)",
    )
    assert await laboratory.rows("id", "v", table="p") == [(1, "a"), (21, "c")]
    await laboratory.capture("p", ["id", "v"])
    assert await laboratory.rows("id", "v", table="p") == [(1, "a"), (21, "c")]
    await laboratory.run("ALTER TABLE public.p DETACH PARTITION public.p1", "INSERT INTO public.p3 VALUES (22, 'd')")
    assert await laboratory.rows("id", "v", table="p") == [(21, "c"), (22, "d")]
