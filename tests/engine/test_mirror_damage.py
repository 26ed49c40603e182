"""A mirror that is damaged, half written or somebody else's is noticed and never used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from catalog.session import SqlError
from tests.engine.mirror_laboratory import FIVE, Laboratory, contents

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
