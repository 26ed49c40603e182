"""The mirror on an object store that speaks the S3 protocol."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from engine.mirror.compaction import compact
from engine.mirror.location import location, spark_properties
from engine.mirror.mirror import Mirror
from engine.session.snapshots import PgSnapshot
from engine.spark.mirror_views import create_views
from engine.spark.sessions import SparkSessions
from tests.engine.mirror.mirror_laboratory import Laboratory, open_laboratory
from tests.s3_server import s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, str]]:
    """The options of an S3 server with a bucket."""
    with s3_server("mirrors") as running:
        yield running.options


@pytest.fixture
async def laboratory(dsn: str, tmp_path: Path, s3: dict[str, str]) -> AsyncIterator[Laboratory]:
    async with open_laboratory(dsn, tmp_path / "unused") as laboratory:
        words = [f"{name}={value}" for name, value in s3.items()]
        place = location(f"s3://mirrors/{uuid.uuid4().hex}", words, tmp_path)
        laboratory.mirror = Mirror(place)
        yield laboratory


async def test_mirror_on_s3_is_written_followed_compacted_and_removed(
    laboratory: Laboratory, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.mirror.compaction.COMPACTION_ROWS", 1)
    async with laboratory.at("id", "v") as version:
        assert not version.reused
        assert version.rows == 5
    await laboratory.run("UPDATE public.t SET v = 'other' WHERE id < 4")
    async with laboratory.at("id", "v") as version:
        assert version.reused
        assert len(version.changes) == 1
    place = laboratory.mirror.place("lab", (await laboratory.source()).oid)
    await compact(laboratory.mirror, place, [])
    async with laboratory.at("id", "v") as version:
        assert version.reused
        assert version.changes == ()
    table = DeltaTable(f"{place.uri}/base", storage_options=s3)
    rows = table.to_pyarrow_table(columns=["id", "v"]).to_pylist()
    assert sorted((row["id"], row["v"]) for row in rows) == [
        (1, "other"), (2, "other"), (3, "other"), (4, "v4"), (5, "v5")
    ]  # fmt: skip
    await laboratory.mirror.forget("lab")
    assert place.names() == []
    async with laboratory.at("id", "v") as version:
        assert not version.reused


async def test_sail_reads_the_mirror_on_s3(
    laboratory: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: dict[str, str]
) -> None:
    for name in s3:
        monkeypatch.setenv(name, "")  # put back after the test
    spark_properties(laboratory.mirror.root, "sail")
    sessions = SparkSessions("sail", tmp_path / "spark")
    source = await laboratory.source()
    await laboratory.rows_in_mirror("id", "v")
    await laboratory.run("DELETE FROM public.t WHERE id = 2")
    try:
        async with laboratory.at("id", "v") as version, sessions.acquire() as lease:

            def work(spark: object) -> pa.Table:
                create_views(spark, source, ("id", "v"), version, f"source_{source.oid}")
                return spark.sql(f"SELECT id FROM source_{source.oid}").toArrow()  # type: ignore[attr-defined]

            table = await lease.run(work, description="test")
        assert sorted(table["id"].to_pylist()) == [1, 3, 4, 5]
    finally:
        await sessions.stop()


async def test_of_two_writers_on_s3_one_is_told_that_it_was_overtaken(laboratory: Laboratory) -> None:
    from engine.mirror.delta_table import WriteConflict
    from engine.mirror.state import changes_metadata, changes_of, load

    await laboratory.rows_in_mirror("id", "v")
    place = laboratory.mirror.place("lab", (await laboratory.source()).oid)
    one, other = load(place), load(place)
    assert one is not None
    assert other is not None
    schema = one.changes.table.to_pyarrow_table().schema
    metadata = changes_metadata(one.mirror, one.since, PgSnapshot.parse("1000:1000:"), "")
    changes_of(place).append(one.changes, schema.empty_table(), metadata)
    with pytest.raises(WriteConflict):
        changes_of(place).append(other.changes, schema.empty_table(), metadata)


def test_storage_that_cannot_be_reached_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    from engine.mirror.delta_table import StorageFailed

    words = [
        "AWS_ENDPOINT_URL=http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID=x",
        "AWS_SECRET_ACCESS_KEY=x",
        "AWS_REGION=us-east-1",
        "AWS_ALLOW_HTTP=true",
        "max_retries=0",
        "retry_timeout=1s",
    ]
    with pytest.raises(StorageFailed) as failed:
        location("s3://mirrors/x", words, tmp_path).committed()
    assert str(failed.value).endswith("Connection refused (os error 111)")
    assert "retries" not in str(failed.value), "the option says that there are none"
