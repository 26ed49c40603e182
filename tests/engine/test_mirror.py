"""The mirror holds exactly what a snapshot saw, is copied again only when it must be, and is never used half."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from psycopg import conninfo

from catalog.install import install
from catalog.session import SqlError
from engine.mirror import Mirror, MirrorVersion, Snapshot
from engine.pool import SESSION_SETTINGS, PooledSession
from sql import Column, Source
from sql.spark_types import NotExpressible


class Laboratory:
    """A database with the catalog, a captured table `t`, and a mirror."""

    def __init__(self, options: dict[str, Any], root: Path):
        self._options = options
        self.root = root
        self.mirror = Mirror(root)
        self.connection: asyncpg.Connection

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(**self._options, server_settings=SESSION_SETTINGS)

    async def run(self, *statements: str) -> None:
        for statement in statements:
            await self.connection.execute(statement)

    async def capture(self, table: str, columns: Sequence[str]) -> None:
        """Have the changes of a table captured, for a stream table that is never refreshed."""
        await self.run(f"CREATE TABLE public.st_{table} (__pgt_row_id bigint PRIMARY KEY)")
        oid = await self.connection.fetchval("SELECT $1::text::regclass::oid::bigint", f"public.st_{table}")
        definition = {"pgt_relid": oid, "defining_query": "SELECT", "canonical_query": "SELECT"}
        pgt_id = await self.connection.fetchval("SELECT pgtrickle._register($1::text::jsonb)", json.dumps(definition))
        await self.connection.execute(
            "SELECT pgtrickle._track_source($1::bigint, $2::text::regclass, $3::text[])",
            pgt_id,
            f"public.{table}",
            list(columns),
        )
        self.pgt_id = pgt_id

    async def set_frontier(self) -> None:
        """The stream table has seen everything: its changes may be removed."""
        async with self.connection.transaction():
            await self.connection.execute("SELECT pgtrickle._begin_refresh($1::bigint)", self.pgt_id)
            snapshot = await self.connection.fetchval("SELECT pg_catalog.pg_current_snapshot()::text")
            frontier = {"snapshot": snapshot, "xid": None, "change_id": None}
            result = {"status": "COMPLETED", "action": "FULL", "frontier": frontier}
            await self.connection.execute(
                "SELECT pgtrickle._finish_refresh($1::bigint, $2::text::jsonb)", self.pgt_id, json.dumps(result)
            )

    async def source(self, table: str = "t") -> Source:
        connection = await self.connect()
        rows = await connection.fetch(
            "SELECT attname, format_type(atttypid, atttypmod), attrelid::bigint FROM pg_attribute"
            " WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            f"public.{table}",
        )
        await connection.close()
        return Source(rows[0][2], "public", table, tuple(Column(name, type_) for name, type_, _ in rows))

    @asynccontextmanager
    async def at(
        self, *names: str, table: str = "t", exporter: asyncpg.Connection | None = None
    ) -> AsyncIterator[MirrorVersion]:
        """The mirror at the exporter's snapshot; without one at a snapshot of now."""
        async with AsyncExitStack() as stack:
            if exporter is None:
                exporter = await self.connect()
                stack.push_async_callback(exporter.close)
                await stack.enter_async_context(exporter.transaction(isolation="repeatable_read"))
            row = await exporter.fetchrow("SELECT pg_export_snapshot(), pg_current_snapshot()::text")
            source = await self.source(table)
            version = self.mirror.at(self.connect, "lab", source, names, Snapshot(row[0], row[1]))
            yield await stack.enter_async_context(version)

    async def rows(self, *names: str, table: str = "t", exporter: asyncpg.Connection | None = None) -> list[Any]:
        async with self.at(*names, table=table, exporter=exporter) as version:
            return contents(version)


def contents(version: MirrorVersion) -> list[Any]:
    rows = [row for file in version.files for row in pyarrow.parquet.read_table(file).to_pylist()]
    return sorted((tuple(row.values()) for row in rows), key=str)


@pytest.fixture
async def laboratory(dsn: str, tmp_path: Path) -> AsyncIterator[Laboratory]:
    login = conninfo.conninfo_to_dict(dsn)
    options = {"host": login["host"], "port": int(login["port"]), "user": login["user"]}
    options |= {"password": login["password"], "database": login["dbname"]}
    laboratory = Laboratory(options, tmp_path / "mirror")
    laboratory.connection = await laboratory.connect()
    await install(PooledSession(laboratory.connection))
    await laboratory.run(
        "CREATE TABLE public.t (id int PRIMARY KEY, v text, n numeric(10,2))",
        "INSERT INTO public.t SELECT i, 'v' || i, i / 4.0 FROM generate_series(1, 5) i",
    )
    await laboratory.capture("t", ["id", "v", "n"])
    yield laboratory
    await laboratory.connection.close()


FIVE = [(i, f"v{i}") for i in range(1, 6)]


async def test_unchanged_table_is_not_copied_again(laboratory: Laboratory) -> None:
    async with laboratory.at("id", "v") as first, laboratory.at("v") as second:
        assert (first.reused, second.reused) == (False, True)
        assert first.version == second.version
        assert contents(first) == FIVE


@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO public.t VALUES (9, 'new', 0)",
        "UPDATE public.t SET v = 'other' WHERE id = 3",
        "DELETE FROM public.t WHERE id = 1",
        "TRUNCATE public.t",
    ],
)
async def test_every_kind_of_change_is_noticed(laboratory: Laboratory, change: str) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run(change)
    expected = [tuple(row) for row in await laboratory.connection.fetch("SELECT id, v FROM public.t ORDER BY id")]
    async with laboratory.at("id", "v") as version:
        assert not version.reused
        assert contents(version) == expected


async def test_changes_that_were_removed_from_the_buffer_are_noticed(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run("UPDATE public.t SET v = 'other' WHERE id = 3")
    await laboratory.set_frontier()
    await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
    assert (
        await laboratory.connection.fetchval(
            f"SELECT count(*) FROM pgtrickle_changes.changes_{(await laboratory.source()).oid}"
        )
        == 0
    )
    assert (3, "other") in await laboratory.rows("id", "v")


async def test_buffer_emptied_between_the_snapshot_and_the_look_at_it_hides_nothing(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run("UPDATE public.t SET v = 'other' WHERE id = 3")
    exporter = await laboratory.connect()
    async with exporter.transaction(isolation="repeatable_read"):
        await exporter.fetch("SELECT 1")
        await laboratory.set_frontier()
        await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
        assert (3, "other") in await laboratory.rows("id", "v", exporter=exporter)
    await exporter.close()


async def test_each_snapshot_gets_its_own_rows_while_writers_go_on(laboratory: Laboratory) -> None:
    writer, old, new = [await laboratory.connect() for _ in range(3)]
    open_write = writer.transaction()
    await open_write.start()
    await writer.execute("INSERT INTO public.t VALUES (6, 'late', 0)")
    async with old.transaction(isolation="repeatable_read"):
        await old.fetch("SELECT 1")
        assert await laboratory.rows("id", "v") == FIVE
        await open_write.commit()
        async with new.transaction(isolation="repeatable_read"):
            assert await laboratory.rows("id", "v", exporter=new) == [*FIVE, (6, "late")]
            # The mirror is ahead of the old snapshot now, and must not be used for it.
            assert await laboratory.rows("id", "v", exporter=old) == FIVE
            assert await laboratory.rows("id", "v", exporter=new) == [*FIVE, (6, "late")]
    for connection in (writer, old, new):
        await connection.close()


async def test_more_columns_are_copied_when_asked_for(laboratory: Laboratory) -> None:
    await laboratory.rows("id")
    async with laboratory.at("id", "n") as version:
        assert not version.reused
    async with laboratory.at("n") as version:
        assert version.reused


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
    assert await laboratory.rows("id", "v", table="p") == [(1, "a")]


@pytest.mark.parametrize("harm", ["file gone", "file cut", "log cut", "log gone", "all gone", "foreign commit"])
async def test_damaged_mirror_is_noticed_and_rebuilt(laboratory: Laboratory, harm: str) -> None:
    async with laboratory.at("id", "v") as version:
        path, file = version.path, Path(version.files[0])
    if harm == "all gone":
        await laboratory.mirror.forget("lab")
    else:
        _harm(harm, path, file)
    async with laboratory.at("id", "v") as rebuilt:
        assert not rebuilt.reused
        assert contents(rebuilt) == FIVE
    async with laboratory.at("id", "v") as again:
        assert again.reused


def _harm(harm: str, path: Path, file: Path) -> None:
    commit = path / "_delta_log" / f"{DeltaTable(str(path)).version():020}.json"
    if harm == "file gone":
        file.unlink()
    elif harm == "file cut":
        file.write_bytes(file.read_bytes()[:100])
    elif harm == "log cut":
        commit.write_bytes(commit.read_bytes()[:50])
    elif harm == "log gone":
        for entry in commit.parent.iterdir():
            entry.unlink()
    else:
        DeltaTable(str(path)).delete("id = 1")


async def test_copy_that_fails_leaves_the_last_version_and_no_new_one(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "n")
    await laboratory.run("INSERT INTO public.t SELECT i, 'x', 'NaN' FROM generate_series(10, 12) i")
    with pytest.raises(NotExpressible, match='a value of table "t"'):
        await laboratory.rows("id", "n")
    await laboratory.run("DELETE FROM public.t WHERE id > 9")
    assert len(await laboratory.rows("id", "n")) == 5


async def test_files_are_kept_as_long_as_somebody_reads_them(laboratory: Laboratory) -> None:
    async with laboratory.at("id", "v") as old:
        await laboratory.run("DELETE FROM public.t WHERE id = 1")
        assert len(await laboratory.rows("id", "v")) == 4
        await laboratory.run("DELETE FROM public.t WHERE id = 2")
        assert len(await laboratory.rows("id", "v")) == 3
        assert contents(old) == FIVE
    await laboratory.run("DELETE FROM public.t WHERE id = 3")
    async with laboratory.at("id", "v") as last:
        assert {str(file) for file in last.path.glob("*.parquet")} == set(last.files)


async def test_only_the_number_of_rows_is_kept_where_no_column_is_read(laboratory: Laboratory) -> None:
    async with laboratory.at() as version:
        assert version.rows == 5
    await laboratory.run("DELETE FROM public.t")
    async with laboratory.at() as version:
        assert version.rows == 0


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("timestamp", "'infinity'"),
        ("timestamptz", "'-infinity'"),
        ("date", "'infinity'"),
        ("date", "'0044-03-15 BC'"),
        ("timestamp", "'12024-01-01'"),
        ("numeric(5,2)", "'NaN'"),
    ],
)
async def test_values_that_spark_does_not_have_are_found(laboratory: Laboratory, type_: str, value: str) -> None:
    await laboratory.run(f"CREATE TABLE public.x (v {type_})", f"INSERT INTO public.x VALUES (NULL), ({value})")
    with pytest.raises(NotExpressible, match='a value of table "x"'):
        await laboratory.rows("v", table="x")


async def test_texts_come_back_as_they_were(laboratory: Laboratory) -> None:
    texts = [
        "",
        " ",
        "NULL",
        "\\N",
        '"',
        'a"b,c',
        "new\nline",
        "carriage\r\nreturn",
        "é😀",
        "\u2028",
        "x" * 3_000_000,
        None,
    ]
    await laboratory.run("CREATE TABLE public.x (k int, v text)")
    await laboratory.connection.executemany("INSERT INTO public.x VALUES ($1, $2)", list(enumerate(texts)))
    rows = await laboratory.rows("k", "v", table="x")
    assert dict(rows) == dict(enumerate(texts))
    assert sorted(await laboratory.rows("v", table="x"), key=str) == sorted(((t,) for t in texts), key=str)


async def test_many_tasks_share_one_copy(laboratory: Laboratory) -> None:
    async def reused() -> bool:
        async with laboratory.at("id") as version:
            return version.reused

    assert sorted(await asyncio.gather(*(reused() for _ in range(5)))) == [False, True, True, True, True]


async def test_writer_that_dies_in_the_middle_is_reported(laboratory: Laboratory) -> None:
    await laboratory.run("INSERT INTO public.t SELECT i, repeat('x', 1000), 0 FROM generate_series(100, 20000) i")
    laboratory.root.parent.mkdir(exist_ok=True)
    laboratory.root.write_text("not a directory")
    with pytest.raises(SqlError) as failure:
        await laboratory.rows("id", "v")
    assert failure.value.sqlstate in ("58000", "58030")
