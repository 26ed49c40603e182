"""A mirror that is damaged, half written or somebody else's is noticed and never used."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from catalog.session import SqlError
from engine.mirror import compaction
from engine.mirror.mirror import Damaged
from engine.session.pool import PooledSession
from engine.spark.executor import SparkExecutor
from engine.spark.sessions import SparkSessions
from tests.engine.mirror.mirror_laboratory import FIVE, Laboratory, contents

HARMS = ["file gone", "file cut", "log cut", "log gone", "all gone", "foreign commit"]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("part", ["base", "changes"])
@pytest.mark.one_in(2)
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


@pytest.mark.parametrize("part", ["base", "changes"])
async def test_file_with_another_byte_is_noticed_and_rebuilt(laboratory: Laboratory, part: str) -> None:
    await laboratory.rows("id", "v")
    await laboratory.run("INSERT INTO public.t VALUES (6, 'v6', 0)")
    async with laboratory.at("id", "v") as version:
        await laboratory.mirror.check([version])
        _rot(Path(version.files[0] if part == "base" else version.changes[0]))
        with pytest.raises(Damaged):
            await laboratory.mirror.check([version])
    async with laboratory.at("id", "v") as rebuilt:
        assert not rebuilt.reused
        await laboratory.mirror.check([rebuilt])
        assert contents(rebuilt, "id", "v") == [*FIVE, (6, "v6")]


@pytest.mark.parametrize("spark", ["sail", pytest.param("local[1]", marks=pytest.mark.long)])
async def test_spark_never_gives_rows_of_a_file_with_another_byte(
    laboratory: Laboratory, spark: str, tmp_path: Path
) -> None:
    sessions = SparkSessions(spark, tmp_path / "spark")
    executor = SparkExecutor(sessions, laboratory.mirror)
    connection = await laboratory.connect()
    session = PooledSession(connection)
    source = await laboratory.source()

    async def computed() -> list[tuple[int, str]]:
        async with session.transaction():
            result = await executor.run(
                session,
                database="lab",
                connect=laboratory.connect,
                sources=[source],
                owner=(await session.fetch("SELECT current_user::text"))[0][0],
                query="SELECT id, v FROM public.t",
                description="test",
            )
            return sorted(await session.fetch(f"SELECT id, v FROM {result.staging}"))

    try:
        assert await computed() == FIVE
        await laboratory.run("INSERT INTO public.t VALUES (6, 'v6', 0)")
        for part in ("base", "changes"):
            async with laboratory.at("id", "v") as version:
                assert version.reused
                await laboratory.mirror.check([version])
                (file,) = version.files if part == "base" else version.changes or version.files
            _rot(Path(file))
            assert await computed() == [*FIVE, (6, "v6")]
    finally:
        await sessions.stop()
        await connection.close()


@pytest.mark.parametrize("part", ["base", "changes"])
async def test_what_has_rotted_does_not_get_into_a_new_file(
    laboratory: Laboratory, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "COMPACTION_ROWS", 0)
    monkeypatch.setattr(compaction, "COMPACTION_RATIO", 0)
    await laboratory.rows("id", "v")
    await laboratory.run("INSERT INTO public.t VALUES (6, 'v6', 0)")
    async with laboratory.at("id", "v") as version:
        file = Path(version.files[0] if part == "base" else version.changes[0])
    _rot(file)
    place = laboratory.mirror.place("lab", version.source)
    await compaction.compact(laboratory.mirror, place, [])
    assert not await asyncio.to_thread(file.exists)
    async with laboratory.at("id", "v") as rebuilt:
        assert not rebuilt.reused
        assert contents(rebuilt, "id", "v") == [*FIVE, (6, "v6")]


async def test_digests_of_files_that_are_gone_go(laboratory: Laboratory) -> None:
    for number in range(3):
        await laboratory.run("TRUNCATE public.t", f"INSERT INTO public.t VALUES ({number}, 'x', 0)")
        await laboratory.rows("id", "v")
    place = Path(laboratory.mirror.place("lab", (await laboratory.source()).oid).uri)
    for table in ("base", "changes"):
        files = {file.name for file in (place / table).glob("*.parquet")}
        assert {file.name for file in (place / table / "_headwater").glob("*")} == {f"{name}.xxh3" for name in files}


def _rot(file: Path) -> None:
    """Another value, in a file that is as long as before."""
    content = file.read_bytes()
    changed = content.replace(b"v1", b"v0").replace(b"v6", b"v0")
    assert changed != content
    file.write_bytes(changed)


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


async def test_writer_that_dies_in_the_middle_is_reported(laboratory: Laboratory) -> None:
    await laboratory.run("INSERT INTO public.t SELECT i, repeat('x', 1000), 0 FROM generate_series(100, 20000) i")
    laboratory.root.parent.mkdir(exist_ok=True)
    laboratory.root.write_text("not a directory")
    with pytest.raises(SqlError) as failure:
        await laboratory.rows("id", "v")
    assert failure.value.sqlstate in ("58000", "58030")


async def test_files_are_kept_as_long_as_somebody_reads_them(laboratory: Laboratory) -> None:
    async with laboratory.at("id", "v") as old:
        for number in (1, 2):
            await laboratory.run("TRUNCATE public.t", f"INSERT INTO public.t VALUES ({number}, 'v{number}', 0)")
            assert await laboratory.rows("id", "v") == [(number, f"v{number}")]
        assert contents(old, "id", "v") == FIVE
    await laboratory.run("TRUNCATE public.t", "INSERT INTO public.t VALUES (1, 'x', 0)")
    async with laboratory.at("id", "v") as last:
        assert {str(file) for file in Path(last.files[0]).parent.glob("*.parquet")} == set(last.files)
