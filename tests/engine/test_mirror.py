"""The mirror holds exactly what a snapshot saw, is copied again only when it must be, and is never used half."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import UTC
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from catalog.session import SqlError
from engine.mirror import Mirror
from sql.spark_types import INFINITE_DAYS, NotExpressible
from tests.engine.mirror_laboratory import Laboratory, contents, net_changes, open_laboratory


@pytest.fixture
async def laboratory(dsn: str, tmp_path: Path) -> AsyncIterator[Laboratory]:
    async with open_laboratory(dsn, tmp_path / "mirror") as laboratory:
        yield laboratory


FIVE = [(i, f"v{i}") for i in range(1, 6)]


async def test_unchanged_table_is_not_copied_again(laboratory: Laboratory) -> None:
    async with laboratory.at("id", "v") as first, laboratory.at("v") as second:
        assert (first.reused, second.reused) == (False, True)
        assert first.files == second.files
        assert contents(first, "id", "v") == FIVE


@pytest.mark.parametrize(
    ("change", "copied"),
    [
        ("INSERT INTO public.t VALUES (9, 'new', 0)", False),
        ("UPDATE public.t SET v = 'other' WHERE id = 3", False),
        ("UPDATE public.t SET id = id + 5", False),
        ("DELETE FROM public.t WHERE id = 1", False),
        ("INSERT INTO public.t VALUES (1, 'x', 0), (9, 'y', 0) ON CONFLICT (id) DO UPDATE SET v = excluded.v", False),
        ("TRUNCATE public.t", True),
    ],
)
async def test_every_kind_of_change_reaches_the_mirror(laboratory: Laboratory, change: str, copied: bool) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run(change)
    expected = sorted((tuple(row) for row in await laboratory.connection.fetch("SELECT id, v FROM public.t")), key=str)
    async with laboratory.at("id", "v") as version:
        assert version.reused is not copied
        assert contents(version, "id", "v") == expected


async def test_changes_stay_in_the_buffer_until_the_mirror_has_them(laboratory: Laboratory) -> None:
    buffer = f"pgtrickle_changes.changes_{(await laboratory.source()).oid}"
    await laboratory.rows("id", "v")
    await laboratory.run("UPDATE public.t SET v = 'other' WHERE id = 3")
    await laboratory.set_frontier()
    await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
    assert await laboratory.connection.fetchval(f"SELECT count(*) FROM {buffer}") == 2
    async with laboratory.at("id", "v") as version:
        assert version.reused
        assert (3, "other") in contents(version, "id", "v")
    await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
    assert await laboratory.connection.fetchval(f"SELECT count(*) FROM {buffer}") == 0
    async with laboratory.at("id", "v") as version:
        assert version.reused


async def test_mirror_that_nobody_speaks_for_any_more_holds_nothing_and_is_copied_anew(laboratory: Laboratory) -> None:
    buffer = f"pgtrickle_changes.changes_{(await laboratory.source()).oid}"
    await laboratory.rows("id", "v")
    await laboratory.run(
        "UPDATE public.t SET v = 'other' WHERE id = 3",
        "UPDATE pgtrickle.pgt_mirrors SET held_until = now() - interval '1 second'",
    )
    await laboratory.set_frontier()
    await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
    assert await laboratory.connection.fetchval(f"SELECT count(*) FROM {buffer}") == 0
    async with laboratory.at("id", "v") as version:
        assert not version.reused
        assert (3, "other") in contents(version, "id", "v")


async def test_mirror_that_was_let_go_of_is_taken_up_again_if_nothing_was_lost(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run("UPDATE public.t SET v = 'other' WHERE id = 3", "DELETE FROM pgtrickle.pgt_mirrors")
    async with laboratory.at("id", "v") as version:
        assert version.reused
        assert (3, "other") in contents(version, "id", "v")
    assert await laboratory.connection.fetchval("SELECT count(*) FROM pgtrickle.pgt_mirrors") == 1


async def test_buffer_emptied_between_the_snapshot_and_the_copy_starts_no_log(laboratory: Laboratory) -> None:
    await laboratory.run("UPDATE public.t SET v = 'other' WHERE id = 3")
    exporter = await laboratory.connect()
    async with exporter.transaction(isolation="repeatable_read"):
        await exporter.fetch("SELECT 1")
        await laboratory.run("UPDATE public.t SET v = 'later' WHERE id = 3")
        await laboratory.set_frontier()
        await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
        assert (3, "other") in await laboratory.rows("id", "v", exporter=exporter)
    await exporter.close()
    async with laboratory.at("id", "v") as version:
        assert not version.reused
        assert (3, "later") in contents(version, "id", "v")


async def test_net_changes_since_a_frontier_are_those_it_has_not_seen(laboratory: Laboratory) -> None:
    frontier = await laboratory.frontier()
    await laboratory.run(
        "UPDATE public.t SET v = 'b' WHERE id = 3",
        "UPDATE public.t SET v = 'c' WHERE id = 3",
        "INSERT INTO public.t VALUES (6, 'gone', 0)",
    )
    async with laboratory.at("id", "v", since=frontier) as version:
        assert not version.reused
        assert net_changes(version, "id", "v") == {(3, "v3"): -1, (3, "c"): 1, (6, "gone"): 1}
    await laboratory.run("DELETE FROM public.t WHERE id = 6")
    async with laboratory.at("id", "v", since=frontier) as version:
        assert version.reused
        assert net_changes(version, "id", "v") == {(3, "v3"): -1, (3, "c"): 1}
        assert contents(version, "id", "v") == sorted({**dict(FIVE), 3: "c"}.items())
    later = await laboratory.frontier()
    async with laboratory.at("id", "v", since=later) as version:
        assert net_changes(version, "id", "v") == {}


async def test_frontier_inside_a_transaction_has_seen_a_part_of_it(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    writer = await laboratory.connect()
    async with writer.transaction():
        await writer.execute("INSERT INTO public.t VALUES (6, 'seen', 0)")
        row = await writer.fetchrow(
            "SELECT pg_current_snapshot()::text AS snapshot, pg_current_xact_id()::text AS xid,"
            " (SELECT max(__pgt_change_id) FROM pgtrickle_changes.changes_"
            f"{(await laboratory.source()).oid}) AS change_id"
        )
        await writer.execute("INSERT INTO public.t VALUES (7, 'not seen', 0)")
    await writer.close()
    async with laboratory.at("id", "v", since=dict(row)) as version:
        assert net_changes(version, "id", "v") == {(7, "not seen"): 1}


async def test_truncation_since_the_frontier_is_not_told_as_changes(laboratory: Laboratory) -> None:
    frontier = await laboratory.frontier()
    await laboratory.rows("id", "v")
    await laboratory.run("TRUNCATE public.t", "INSERT INTO public.t VALUES (1, 'new', 0)")
    with pytest.raises(NotExpressible, match="truncated"):
        await laboratory.rows("id", "v", since=frontier)
    assert await laboratory.rows("id", "v") == [(1, "new")]


async def test_update_by_a_trigger_of_what_a_statement_inserts_is_kept_in_the_right_order(
    laboratory: Laboratory,
) -> None:
    await laboratory.run(
        """CREATE FUNCTION public.f() RETURNS trigger LANGUAGE plpgsql AS
           $$ BEGIN UPDATE public.t SET v = 'by trigger' WHERE id = new.id; RETURN NULL; END $$""",
        "CREATE TRIGGER a AFTER INSERT ON public.t FOR EACH ROW EXECUTE FUNCTION public.f()",
    )
    await laboratory.rows("id", "v")
    await laboratory.run("INSERT INTO public.t VALUES (6, 'as inserted', 0)")
    assert await laboratory.rows("id", "v") == [*FIVE, (6, "by trigger")]


async def test_duplicates_of_a_table_without_a_key_are_counted(laboratory: Laboratory) -> None:
    await laboratory.run("CREATE TABLE public.d (a int, b text)")
    await laboratory.run("INSERT INTO public.d VALUES (1, NULL), (1, NULL), (1, NULL), (2, 'x')")
    await laboratory.capture("d", ["a", "b"])
    await laboratory.rows("a", "b", table="d")
    await laboratory.run(
        "DELETE FROM public.d WHERE ctid = (SELECT min(ctid) FROM public.d)", "INSERT INTO public.d VALUES (2, 'x')"
    )
    async with laboratory.at("a", "b", table="d") as version:
        assert version.reused
        assert contents(version, "a", "b") == [(1, None), (1, None), (2, "x"), (2, "x")]


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


HARMS = ["file gone", "file cut", "log cut", "log gone", "all gone", "foreign commit"]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("part", ["base", "changes"])
async def test_damaged_mirror_is_noticed_and_rebuilt(laboratory: Laboratory, harm: str, part: str) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run("INSERT INTO public.t VALUES (6, 'v6', 0)")
    async with laboratory.at("id", "v") as version:
        file = Path(version.files[0] if part == "base" else version.changes[0])
    if harm == "all gone":
        await laboratory.mirror.forget("lab")
    else:
        _harm(harm, file.parent, file)
    async with laboratory.at("id", "v") as rebuilt:
        assert not rebuilt.reused
        assert contents(rebuilt, "id", "v") == [*FIVE, (6, "v6")]
    async with laboratory.at("id", "v") as again:
        assert again.reused


async def test_mirror_that_was_put_back_to_an_earlier_state_is_noticed(laboratory: Laboratory, tmp_path: Path) -> None:
    async with laboratory.at("id", "v") as version:
        place = Path(version.files[0]).parent.parent
    shutil.copytree(place, tmp_path / "copy")
    await laboratory.run("INSERT INTO public.t VALUES (6, 'v6', 0)")
    await laboratory.rows("id", "v")
    await laboratory.set_frontier()
    await laboratory.run("SELECT pgtrickle._cleanup_buffers()", "INSERT INTO public.t VALUES (7, 'v7', 0)")
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "copy", place)
    async with laboratory.at("id", "v") as version:
        assert not version.reused
        assert contents(version, "id", "v") == [*FIVE, (6, "v6"), (7, "v7")]


async def test_mirror_of_another_cluster_is_not_used(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run(
        "CREATE OR REPLACE FUNCTION pgtrickle._system() RETURNS text LANGUAGE sql STABLE AS $$ SELECT 'restored' $$"
    )
    async with laboratory.at("id", "v") as version:
        assert not version.reused
    await laboratory.capture("t", ["id", "v", "n"])
    async with laboratory.at("id", "v") as version:
        assert not version.reused
    async with laboratory.at("id", "v") as version:
        assert version.reused


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
        DeltaTable(str(path)).delete("id = 1 OR id = 6")


async def test_column_with_a_value_that_cannot_be_carried_is_left_out(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "n")
    await laboratory.run("INSERT INTO public.t SELECT i, 'x', 'NaN' FROM generate_series(10, 12) i")
    with pytest.raises(NotExpressible, match='a value of table "t"'):
        await laboratory.rows("id", "n")
    with pytest.raises(NotExpressible, match='a value of column "n" of table "t"'):
        await laboratory.rows("id", "n")
    assert len(await laboratory.rows("id", "v")) == 8
    await laboratory.run("DELETE FROM public.t WHERE id > 9")
    async with laboratory.at("id", "v") as version:
        assert version.reused
    laboratory.mirror = Mirror(laboratory.root)
    assert len(await laboratory.rows("id", "n")) == 5


async def test_files_are_kept_as_long_as_somebody_reads_them(laboratory: Laboratory) -> None:
    async with laboratory.at("id", "v") as old:
        for number in (1, 2):
            await laboratory.run("TRUNCATE public.t", f"INSERT INTO public.t VALUES ({number}, 'v{number}', 0)")
            assert await laboratory.rows("id", "v") == [(number, f"v{number}")]
        assert contents(old, "id", "v") == FIVE
    await laboratory.run("TRUNCATE public.t", "INSERT INTO public.t VALUES (1, 'x', 0)")
    async with laboratory.at("id", "v") as last:
        assert {str(file) for file in Path(last.files[0]).parent.glob("*.parquet")} == set(last.files)


async def test_only_the_number_of_rows_is_kept_where_no_column_is_read(laboratory: Laboratory) -> None:
    await laboratory.run("CREATE TABLE public.n (x int)", "INSERT INTO public.n SELECT generate_series(1, 5)")
    await laboratory.capture("n", [])
    async with laboratory.at(table="n") as version:
        assert len(contents(version)) == 5
    await laboratory.run("DELETE FROM public.n WHERE x < 3")
    async with laboratory.at(table="n") as version:
        assert version.reused
        assert len(contents(version)) == 3


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("date", "'0044-03-15 BC'"),
        ("timestamp", "'12024-01-01'"),
        ("numeric(5,2)", "'NaN'"),
    ],
)
async def test_values_that_spark_does_not_have_are_found(laboratory: Laboratory, type_: str, value: str) -> None:
    await laboratory.run(f"CREATE TABLE public.x (v {type_})", f"INSERT INTO public.x VALUES (NULL), ({value})")
    with pytest.raises(NotExpressible, match='a value of table "x"'):
        await laboratory.rows("v", table="x")


@pytest.mark.parametrize("type_", ["date", "timestamp", "timestamptz"])
async def test_infinity_has_a_stand_in_in_base_and_log(laboratory: Laboratory, type_: str) -> None:
    days = {"infinity": INFINITE_DAYS, "-infinity": -INFINITE_DAYS, "1970-01-02": 1}
    values = ", ".join(f"('{value}')" for value in days)
    await laboratory.run(f"CREATE TABLE public.x (v {type_})", f"INSERT INTO public.x VALUES {values}, (NULL)")
    await laboratory.capture("x", ["v"])
    await laboratory.rows_in_mirror("v", table="x")
    await laboratory.run(f"INSERT INTO public.x VALUES {values}, (NULL)")
    async with laboratory.at("v", table="x") as version:
        assert version.reused
        for files in (version.files, version.changes):
            (file,) = files
            found = pq.read_table(file)["v"].cast(pa.date32()).cast(pa.int32()).to_pylist()
            assert sorted(found, key=str) == sorted([*days.values(), None], key=str)
    for part, rows in (("base", 4), ("changes", 4)):
        table = DeltaTable(laboratory.mirror.place("lab", version.source).below(part).uri)
        assert table.to_pyarrow_table().num_rows == rows


OTHER_TYPES = {
    "numeric": ["'NaN'", "'-Infinity'", "1.000", "12345678901234567890123456789012345678901234567890.5", "NULL"],
    "jsonb": ['\'{"b": 1.0, "a": [null, "x,\\"y"]}\'', "'null'", "NULL"],
    "integer[]": ["'{1,NULL,3}'", "'{}'", "'{{1,2},{3,4}}'", "NULL"],
    "text[]": ["ARRAY['a,b', 'c\"d', NULL, '', 'NULL']", "NULL"],
    "bytea": ["'\\x00ff'", "''", "NULL"],
    "interval": ["'1 year -2 days 03:04:05.678'", "'-0:00:01'", "NULL"],
    "time without time zone": ["'24:00'", "'12:34:56.789012'", "NULL"],
    "uuid": ["'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'", "NULL"],
    "character(5)": ["'ab'", "''", "NULL"],
    "timestamp with time zone": ["'2024-03-31 02:30:00.123456+02'", "NULL"],
}


@pytest.mark.parametrize("type_", OTHER_TYPES)
async def test_values_are_the_same_in_base_and_log_as_in_postgresql(laboratory: Laboratory, type_: str) -> None:
    await laboratory.run(f"CREATE TABLE public.x (k int PRIMARY KEY, v {type_})")
    for part, offset in (("base", 0), ("log", 100)):
        for number, value in enumerate(OTHER_TYPES[type_], offset):
            await laboratory.run(f"INSERT INTO public.x VALUES ({number}, {value})")
        if part == "base":
            await laboratory.capture("x", ["k", "v"])
        expected = await laboratory.connection.fetch("SELECT k, v::text FROM public.x")
        async with laboratory.at("k", "v", table="x") as version:
            assert version.reused is (part == "log")
            found = contents(version, "k", "v")
        if type_ == "timestamp with time zone":
            assert [v and v.astimezone(UTC).isoformat() for _, v in found[:1]] == ["2024-03-31T00:30:00.123456+00:00"]
        else:
            assert dict(found) == {k: v for k, v in expected}


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
