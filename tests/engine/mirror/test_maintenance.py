"""In the background the mirror follows its source, stays small, and lets go of what nobody needs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import asyncpg
import pyarrow.parquet as pq
import pytest

from engine.mirror import compaction
from engine.mirror.compaction import compact
from engine.mirror.delta_table import Location
from engine.mirror.maintenance import MirrorMaintenance
from engine.mirror.mirror import Mirror
from engine.mirror.state import MirrorState, base_of, changes_of, load
from engine.session.pool import DatabasePool
from engine.session.snapshots import Frontier
from tests.engine.mirror.mirror_laboratory import FIVE, Laboratory, contents, net_changes


class Pool:
    """As much of a pool as maintenance needs."""

    database = "lab"

    def __init__(self, laboratory: Laboratory):
        self.connect = laboratory.connect


def maintenance_of(laboratory: Laboratory, mirror: Mirror | None = None) -> MirrorMaintenance:
    return MirrorMaintenance(mirror or laboratory.mirror, cast(DatabasePool, Pool(laboratory)))


async def stored(laboratory: Laboratory) -> MirrorState:
    state = load(await place_of(laboratory))
    assert state is not None
    return state


async def place_of(laboratory: Laboratory) -> Location:
    return laboratory.mirror.place("lab", (await laboratory.source()).oid)


async def in_buffer(laboratory: Laboratory) -> int:
    oid = (await laboratory.source()).oid
    return int(await laboratory.connection.fetchval(f"SELECT count(*) FROM pgtrickle_changes.changes_{oid}"))


async def test_changes_are_shipped_and_then_leave_the_buffer(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run("UPDATE public.t SET v = 'other' WHERE id = 3")
    await laboratory.set_frontier()
    connection = await laboratory.connect()
    await maintenance_of(laboratory).cycle(connection)
    await connection.close()
    assert (await stored(laboratory)).changes.rows == 2
    await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
    assert await in_buffer(laboratory) == 0
    async with laboratory.at("id", "v") as version:
        assert version.reused
        assert (3, "other") in contents(version, "id", "v")


async def test_task_ships_what_is_committed_while_it_runs(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    maintenance = maintenance_of(laboratory)
    task = asyncio.create_task(maintenance.worker.run())
    try:
        for number in (6, 7):
            await laboratory.run(f"INSERT INTO public.t VALUES ({number}, 'v{number}', 0)")
            maintenance.wake()
            async with asyncio.timeout(90):
                while (await stored(laboratory)).changes.rows < number - 5:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
    finally:
        task.cancel()


async def test_open_transaction_is_shipped_after_it_has_ended(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    maintenance, connection, writer = maintenance_of(laboratory), await laboratory.connect(), await laboratory.connect()
    transaction = writer.transaction()
    await transaction.start()
    await writer.execute("INSERT INTO public.t VALUES (6, 'late', 0)")
    await laboratory.run("INSERT INTO public.t VALUES (7, 'early', 0)")
    await maintenance.cycle(connection)
    assert (await stored(laboratory)).changes.rows == 1
    await transaction.commit()
    await maintenance.compacted()
    await maintenance.cycle(connection)
    assert (await stored(laboratory)).changes.rows == 2
    assert await laboratory.rows("id", "v") == [*FIVE, (6, "late"), (7, "early")]
    await writer.close()
    await connection.close()


async def test_two_servers_on_one_location_store_nothing_twice(laboratory: Laboratory) -> None:
    shared = Location.local(laboratory.root, private=False)
    laboratory.mirror, other = Mirror(shared), Mirror(shared)
    await laboratory.rows("id", "v")
    connections = [await laboratory.connect() for _ in range(2)]
    both = [maintenance_of(laboratory), maintenance_of(laboratory, other)]
    for number in range(10):
        await laboratory.run(f"INSERT INTO public.t VALUES ({100 + number}, 'new', 0)")
        await asyncio.gather(*(k.cycle(c) for k, c in zip(both, connections, strict=True)))
    expected = [*FIVE, *((100 + number, "new") for number in range(10))]
    assert await laboratory.rows("id", "v") == sorted(expected, key=str)
    laboratory.mirror = other
    assert await laboratory.rows("id", "v") == sorted(expected, key=str)
    assert (await stored(laboratory)).changes.rows == 10
    for connection in connections:
        await connection.close()


async def test_server_killed_between_storing_changes_and_saying_so_repeats_nothing(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run("INSERT INTO public.t VALUES (6, 'v6', 0)")
    await laboratory.set_frontier()
    connection = await laboratory.connect()
    with monkeypatch.context() as patched, pytest.raises(asyncpg.PostgresError):
        patched.setattr("engine.mirror.source._HAS_SQL", "SELECT 1 / 0, $1, $2, $3, $4, $5")
        await laboratory.mirror.catch_up(
            connection, await place_of(laboratory), (await laboratory.source()).oid, await stored(laboratory)
        )
    await connection.close()
    await laboratory.run("SELECT pgtrickle._cleanup_buffers()")
    assert await in_buffer(laboratory) == 1
    laboratory.mirror = Mirror(laboratory.root)
    async with laboratory.at("id", "v") as version:
        assert version.reused
        assert contents(version, "id", "v") == [*FIVE, (6, "v6")]


async def test_mirror_that_nobody_uses_is_not_held(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run(
        "UPDATE public.t SET v = 'x' WHERE id = 1",
        "UPDATE pgtrickle.pgt_mirrors SET used_at = now() - interval '2 hours'",
    )
    connection = await laboratory.connect()
    await maintenance_of(laboratory).cycle(connection)
    await connection.close()
    assert await laboratory.connection.fetchval("SELECT count(*) FROM pgtrickle.pgt_mirrors") == 0
    assert (1, "x") in await laboratory.rows("id", "v")


async def test_truncated_source_lets_go_of_its_mirror(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run("TRUNCATE public.t", "INSERT INTO public.t VALUES (1, 'x', 0)")
    connection = await laboratory.connect()
    await maintenance_of(laboratory).cycle(connection)
    await connection.close()
    assert await laboratory.connection.fetchval("SELECT count(*) FROM pgtrickle.pgt_mirrors") == 0
    assert await laboratory.rows("id", "v") == [(1, "x")]


async def test_mirror_of_a_source_that_nobody_reads_is_removed(laboratory: Laboratory) -> None:
    await laboratory.rows("id", "v")
    place = await place_of(laboratory)
    connection = await laboratory.connect()
    maintenance = maintenance_of(laboratory)
    await maintenance.tidy(connection)
    assert place.names()
    await laboratory.run("DROP TABLE public.t CASCADE", "DELETE FROM pgtrickle.pgt_stream_tables")
    await maintenance.tidy(connection)
    await connection.close()
    assert not place.names()


class TestCompaction:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compaction, "COMPACTION_ROWS", 3)

    @pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
    async def test_compacted_mirror_has_the_same_rows(self, laboratory: Laboratory, key: str) -> None:
        await laboratory.run(
            f"CREATE TABLE public.x (id int {key}, v text, f float8)",
            "INSERT INTO public.x SELECT i, 'v' || i, 0 FROM generate_series(1, 10) i",
        )
        if not key:
            await laboratory.run("INSERT INTO public.x SELECT * FROM public.x", "INSERT INTO public.x VALUES (NULL)")
        await laboratory.capture("x", ["id", "v", "f"])
        await laboratory.rows("id", table="x")
        await laboratory.run(
            "UPDATE public.x SET v = NULL WHERE id < 4",
            "UPDATE public.x SET f = '-0' WHERE id = 5",
            "DELETE FROM public.x WHERE id IN (1, 7)",
            "INSERT INTO public.x VALUES (20, 'new', 'NaN')",
        )
        expected = sorted((tuple(row) for row in await laboratory.connection.fetch("SELECT * FROM public.x")), key=str)
        await laboratory.rows("id", "v", "f", table="x")
        place = laboratory.mirror.place("lab", (await laboratory.source("x")).oid)
        await compact(laboratory.mirror, place, [])
        state = load(place)
        assert state is not None
        assert (state.base.rows, state.snapshot, state.changes.rows) == (len(expected), state.to, 0)
        async with laboratory.at("id", "v", "f", table="x") as version:
            assert version.reused
            assert texts(contents(version, "id", "v", "f")) == texts(expected)

    @pytest.mark.parametrize(
        ("key", "columns"),
        [
            ("id", "id int PRIMARY KEY, v text"),
            ('"Id"', '"Id" bigint PRIMARY KEY, v text'),
            ('"Id-and"', '"Id-and" bigint PRIMARY KEY, v text'),
            ("id", "id smallint, v text, PRIMARY KEY (v, id)"),
            ("id", "id text PRIMARY KEY, v text"),
        ],
    )
    @pytest.mark.one_in(2)
    async def test_files_without_changed_rows_stay(
        self, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, key: str, columns: str
    ) -> None:
        monkeypatch.setattr(compaction, "COMPACTION_ROWS", 0)
        monkeypatch.setattr(compaction, "COMPACTION_RATIO", 0)
        name = key.strip('"')
        await laboratory.run(
            f"CREATE TABLE public.x ({columns})", "INSERT INTO public.x SELECT i, 'v' FROM generate_series(1, 100) i"
        )
        await laboratory.capture("x", [name, "v"], keyed=True)
        await laboratory.rows(name, "v", table="x")
        place = laboratory.mirror.place("lab", (await laboratory.source("x")).oid)

        async def kept(*statements: str) -> list[bool]:
            """Of each file of the base, whether it is there still when the changes have been compacted."""
            before = load(place)
            await laboratory.run(*statements)
            await laboratory.rows(name, "v", table="x")
            await compact(laboratory.mirror, place, [])
            after = load(place)
            assert before is not None and after is not None and after.snapshot == after.to
            found = await laboratory.connection.fetch("SELECT * FROM public.x")
            async with laboratory.at(name, "v", table="x") as version:
                assert version.reused
                assert texts(contents(version, name, "v")) == texts([tuple(row) for row in found])
            return [file in after.base.files for file in sorted(before.base.files, key=lambda file: -file.rows)]

        ranged = name.isidentifier() and "id text" not in columns
        last, first = f"{key} = (SELECT max({key}) FROM public.x)", f"{key} = (SELECT min({key}) FROM public.x)"
        assert await kept("INSERT INTO public.x SELECT i, 'v' FROM generate_series(200, 220) i") == [ranged]
        if not ranged:
            return
        assert await kept(f"UPDATE public.x SET v = 'w' WHERE {last}") == [True, False]
        assert await kept(f"DELETE FROM public.x WHERE {last}", "INSERT INTO public.x VALUES (150, 'w')") == [
            True,
            False,
        ]
        assert await kept(f"UPDATE public.x SET {key} = 250 WHERE {key} = 210") == [True, False]
        assert not any(await kept(f"UPDATE public.x SET {key} = -{key} WHERE {first} OR {last}"))
        assert not any(await kept("TRUNCATE public.x"))
        assert all(await kept("INSERT INTO public.x VALUES (7, 'v')"))

    async def test_files_say_what_they_have_of_the_key_that_a_table_has_now(self, laboratory: Laboratory) -> None:
        await laboratory.run(
            "CREATE TABLE public.x (id int PRIMARY KEY, n bigint NOT NULL)",
            "INSERT INTO public.x SELECT i, 100 * i FROM generate_series(1, 9) i",
        )
        await laboratory.capture("x", ["id", "n"], keyed=True)
        place = laboratory.mirror.place("lab", (await laboratory.source("x")).oid)
        for key, bounds in (("id", (1, 9)), ("n", (100, 900)), ("id", (1, 9))):
            await laboratory.run(f"ALTER TABLE public.x DROP CONSTRAINT x_pkey, ADD PRIMARY KEY ({key})")
            await laboratory.rows("id", "n", table="x")
            state = load(place)
            assert state is not None and state.key == (key,)
            assert [(file.lowest, file.highest) for file in state.base.files] == [bounds]

    @pytest.mark.parametrize("quiet", [False, True])
    async def test_a_base_that_is_written_anew_is_sorted_by_its_key(
        self, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, quiet: bool
    ) -> None:
        """A small one as it is written, a large one when the table is quiet."""
        for name in ("COMPACTION_ROWS", "COMPACTION_RATIO", "QUIET_ROWS", "QUIET_RATIO"):
            monkeypatch.setattr(compaction, name, 0)
        if quiet:
            monkeypatch.setattr(compaction, "SORTED_BYTES", 0)
        await laboratory.run(
            'CREATE TABLE public.x (n text, "Id" int PRIMARY KEY)',
            "INSERT INTO public.x SELECT 'n', i FROM generate_series(1, 100) i",
        )
        await laboratory.capture("x", ["n", "Id"], keyed=True)
        await laboratory.rows("n", "Id", table="x")
        place = laboratory.mirror.place("lab", (await laboratory.source("x")).oid)
        for change in (
            """UPDATE public.x SET n = 'm' WHERE "Id" IN (2, 99)""",
            """INSERT INTO public.x VALUES ('new', 200), ('new', -1); UPDATE public.x SET "Id" = 0 WHERE "Id" = 50""",
        ):
            await laboratory.run(*change.split(";"))
            await laboratory.rows("n", "Id", table="x")
            await compact(laboratory.mirror, place, [], quiet=quiet)
            state = load(place)
            assert state is not None and state.snapshot == state.to
            rows = await laboratory.connection.fetch('SELECT n, "Id" FROM public.x ORDER BY "Id"')
            async with laboratory.at("n", "Id", table="x") as version:
                assert version.reused and not version.changes
                stored = [tuple(row.values()) for file in version.files for row in pq.read_table(file).to_pylist()]
            assert stored == [tuple(row) for row in rows]

    async def test_small_files_of_a_base_that_grows_are_made_into_few(
        self, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compaction, "COMPACTION_ROWS", 0)
        monkeypatch.setattr(compaction, "COMPACTION_RATIO", 0)
        monkeypatch.setattr(compaction, "SMALL_FILES", 3)
        await laboratory.run("CREATE TABLE public.x (id int PRIMARY KEY)")
        await laboratory.capture("x", ["id"], keyed=True)
        await laboratory.rows("id", table="x")
        place = laboratory.mirror.place("lab", (await laboratory.source("x")).oid)
        files = []
        for i in range(8):
            await laboratory.run(f"INSERT INTO public.x VALUES ({i})")
            await laboratory.rows("id", table="x")
            await compact(laboratory.mirror, place, [])
            state = load(place)
            assert state is not None and state.base.rows == i + 1
            files.append(len(state.base.files))
        assert files == [1, 2, 3, 4, 1, 2, 3, 4]
        async with laboratory.at("id", table="x") as version:
            assert version.reused and contents(version, "id") == [(i,) for i in range(8)]

    async def test_short_log_is_compacted_when_it_has_stayed_quiet(
        self, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compaction, "COMPACTION_ROWS", 1000)
        monkeypatch.setattr(compaction, "QUIET_ROWS", 3)
        await laboratory.rows("id", "v")
        await laboratory.run("UPDATE public.t SET v = 'x'")
        expected = await laboratory.rows("id", "v")
        for quiet in (False, True):
            await compact(laboratory.mirror, await place_of(laboratory), [], quiet=quiet)
            state = await stored(laboratory)
            assert (state.snapshot == state.to) is quiet
            async with laboratory.at("id", "v") as version:
                assert version.reused and bool(version.changes) is not quiet
                assert contents(version, "id", "v") == expected

    async def test_log_of_a_large_table_is_compacted_before_it_is_too_long_for_memory(
        self, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compaction, "COMPACTION_ROWS", 1000)
        await laboratory.rows("id", "v")
        await laboratory.run("UPDATE public.t SET v = 'x'")
        await laboratory.rows("id", "v")
        for most in (10, 9):  # of five rows two images each
            monkeypatch.setattr(compaction, "COMPACTION_MOST_ROWS", most)
            await compact(laboratory.mirror, await place_of(laboratory), [])
            state = await stored(laboratory)
            assert (state.snapshot == state.to) is (most == 9)

    async def test_readers_keep_what_they_read_and_frontiers_their_changes(self, laboratory: Laboratory) -> None:
        frontier = await laboratory.frontier()
        exporter = await laboratory.connect()
        async with laboratory.at("id", "v") as base, exporter.transaction(isolation="repeatable_read"):
            await exporter.fetch("SELECT 1")
            await laboratory.run("UPDATE public.t SET v = 'x'", "INSERT INTO public.t VALUES (6, 'new', 0)")
            after = [(i, "x") for i in range(1, 6)] + [(6, "new")]
            async with laboratory.at("id", "v") as version:
                await compact(laboratory.mirror, await place_of(laboratory), [Frontier.parse(frontier)])
                assert contents(version, "id", "v") == after
            assert contents(base, "id", "v") == FIVE
            assert (await stored(laboratory)).base.rows == 6
            # A snapshot older than the base is reached backwards.
            async with laboratory.at("id", "v", exporter=exporter) as old:
                assert old.reused
                assert contents(old, "id", "v") == FIVE
        await exporter.close()
        async with laboratory.at("id", "v", since=frontier) as version:
            assert version.reused
            assert contents(version, "id", "v") == after
            assert len(net_changes(version, "id", "v")) == 11

    async def test_server_killed_before_the_new_base_is_committed_leaves_the_old_one(
        self, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await laboratory.rows("id", "v")
        await laboratory.run("UPDATE public.t SET v = 'x'")
        expected = await laboratory.rows("id", "v")
        place = await place_of(laboratory)

        class Killed(BaseException):
            pass

        def killed(*_: Any, **__: Any) -> None:
            (Path(base_of(place).uri) / "part-00000-half-written.parquet").write_bytes(b"PAR1")
            raise Killed

        with monkeypatch.context() as patched, pytest.raises(Killed):
            patched.setattr(Location, "overwrite", killed)
            await compact(laboratory.mirror, place, [])
        laboratory.mirror = Mirror(laboratory.root)
        async with laboratory.at("id", "v") as version:
            assert version.reused
            assert contents(version, "id", "v") == expected
        await compact(laboratory.mirror, place, [])
        assert await laboratory.rows("id", "v") == expected
        assert (await stored(laboratory)).changes.rows == 0

    async def test_small_files_of_the_log_are_made_one(
        self, laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compaction, "COMPACTION_ROWS", 100)
        monkeypatch.setattr(compaction, "SMALL_FILES", 3)
        await laboratory.rows("id", "v")
        for number in range(6, 11):
            await laboratory.run(f"INSERT INTO public.t VALUES ({number}, 'v{number}', 0)")
            await laboratory.rows("id", "v")
        assert len((await stored(laboratory)).changes.files) == 5
        await compact(laboratory.mirror, await place_of(laboratory), [])
        state = await stored(laboratory)
        assert len(state.changes.files) == 1
        files = changes_of(await place_of(laboratory)).names()
        assert len([name for name in files if name.endswith(".parquet")]) == 1
        assert len(await laboratory.rows("id", "v")) == 10


def texts(rows: list[Any]) -> list[tuple[str, ...]]:
    return sorted(tuple(str(value) for value in row) for row in rows)


async def test_long_copy_of_one_source_does_not_hold_up_the_others(laboratory: Laboratory) -> None:
    await laboratory.run("CREATE TABLE public.slow (id int PRIMARY KEY)")
    await laboratory.capture("slow", ["id"])
    await laboratory.rows("id", table="slow")
    await laboratory.rows("id", "v")
    await laboratory.run("INSERT INTO public.slow VALUES (1)", "INSERT INTO public.t VALUES (6, 'v6', 0)")
    slow = laboratory.mirror.place("lab", (await laboratory.source("slow")).oid)
    connection, maintenance = await laboratory.connect(), maintenance_of(laboratory)
    async with laboratory.mirror.writing(slow):
        await maintenance.cycle(connection)
        assert (await stored(laboratory)).changes.rows == 1
    await maintenance.cycle(connection)
    await connection.close()
    state = load(slow)
    assert state is not None
    assert state.changes.rows == 1


async def test_shared_mirrors_of_a_server_that_hangs_are_followed_by_another(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = Mirror(replace(laboratory.mirror.root, private=False))
    login = {key: value for key, value in laboratory.options.items() if key != "database"}
    pool = DatabasePool(laboratory.options["database"], lambda _: login)
    maintenance = MirrorMaintenance(mirror, pool)
    maintenance.worker.pause = 0.05
    maintenance._rival.patience = 0.5
    hanging = await laboratory.connect()
    await hanging.execute("SET application_name = 'headwater engine 0123abcd'")
    assert await hanging.fetchval("SELECT pgtrickle._take_lease($1::text)", maintenance._rival.lease)
    followed = asyncio.Event()

    async def cycle(connection: asyncpg.Connection) -> None:
        followed.set()

    monkeypatch.setattr(maintenance, "cycle", cycle)
    task = asyncio.create_task(maintenance.worker.run())
    try:
        async with asyncio.timeout(60):
            await followed.wait()
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            await hanging.execute("SELECT")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pool.close()
