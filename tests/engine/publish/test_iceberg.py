"""Iceberg's metadata over the files of a Delta table, read by Iceberg's own library."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from pyiceberg.expressions import EqualTo, GreaterThan
from pyiceberg.table import StaticTable

from catalog.session import SqlError
from engine.mirror.delta_table import Location, Mark
from engine.publish import iceberg, places
from engine.publish.places import check_installed
from engine.publish.table import location_of


@pytest.fixture
def place(tmp_path: Path) -> Location:
    return location_of(str(tmp_path / "lake"))


def write(place: Location, rows: dict[str, list[Any]], mode: Any = "append", said: str = "{}") -> DeltaTable:
    properties = CommitProperties(custom_metadata={"headwater": said})
    schema_mode: Any = "overwrite" if mode == "overwrite" else None
    uri = f"{place.uri}/data"
    write_deltalake(uri, pa.table(rows), mode=mode, schema_mode=schema_mode, commit_properties=properties)
    return DeltaTable(uri)


def found(place: Location) -> StaticTable:
    return StaticTable.from_metadata(place.uri)


def rows(table: StaticTable, snapshot: int | None = None) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in table.scan(snapshot_id=snapshot).to_arrow().to_pylist())


def test_nothing_is_warned_of(place: Location, caplog: pytest.LogCaptureFixture) -> None:
    """Where statistics of texts are left out, as a publication leaves them out."""
    schema = pa.schema([("__pgt_row_id", pa.int64()), ("s", pa.string()), ("f", pa.float64())])
    rows = pa.record_batch([[1, 2], ["a", None], [0.5, None]], schema)
    delta = place.below("data").create(schema, iter([rows]), {}, Mark("g", 1))
    iceberg.describe(place, delta)
    assert [record.getMessage() for record in caplog.records] == []


def test_each_version_is_a_snapshot_of_the_same_files(place: Location) -> None:
    for number in range(3):
        iceberg.describe(place, write(place, {"i": [number], "s": ["é"]}, said=f'{{"number": {number}}}'))
    table = found(place)
    assert [rows(table, each.snapshot_id).total() for each in table.snapshots()] == [1, 2, 3]
    assert [each.summary and each.summary["headwater"] for each in table.snapshots()] == [
        f'{{"number": {number}}}' for number in range(3)
    ]
    assert {task.file.file_path for task in table.scan().plan_files()} == set(
        DeltaTable(f"{place.uri}/data").file_uris()
    )
    assert (Path(place.uri) / "metadata" / "version-hint.text").read_text() == "3"


def test_what_is_described_already_is_left_alone(place: Location) -> None:
    delta = write(place, {"i": [1]})
    iceberg.describe(place, delta)
    before = sorted(os.listdir(f"{place.uri}/metadata"))
    iceberg.describe(place, delta)
    assert sorted(os.listdir(f"{place.uri}/metadata")) == before


def test_versions_that_were_missed_are_one_snapshot(place: Location) -> None:
    iceberg.describe(place, write(place, {"i": [1]}))
    write(place, {"i": [2]})
    iceberg.describe(place, write(place, {"i": [3]}, mode="overwrite"))
    table = found(place)
    assert rows(table) == Counter({(3,): 1})
    assert len(table.snapshots()) == 2


def merge(place: Location, rows: dict[str, list[Any]]) -> DeltaTable:
    """Rows of these ids, changed or added."""
    delta = DeltaTable(f"{place.uri}/data")
    merging = delta.merge(pa.table(rows), "t.i = s.i", source_alias="s", target_alias="t")
    merging.when_matched_update_all().when_not_matched_insert_all().execute()
    return delta


def test_texts_of_files_that_were_merged_are_found_like_others(place: Location) -> None:
    iceberg.describe(place, write(place, {"i": [1, 2], "s": ["a", "b"]}))
    iceberg.describe(place, merge(place, {"i": [2, 3], "s": ["c", None]}))
    iceberg.describe(place, write(place, {"i": [4], "s": ["c"]}))
    table = found(place)
    assert rows(table) == Counter({(1, "a"): 1, (2, "c"): 1, (3, None): 1, (4, "c"): 1})
    assert table.scan(row_filter=EqualTo("s", "c")).to_arrow().num_rows == 2
    before, first, _ = table.snapshots()
    assert rows(table, before.snapshot_id) == Counter({(1, "a"): 1, (2, "b"): 1})
    assert rows(table, first.snapshot_id).total() == 3


def test_copies_that_no_snapshot_needs_go(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "SNAPSHOTS", 2)
    monkeypatch.setattr(iceberg, "READERS_SECONDS", 0)
    iceberg.describe(place, write(place, {"i": [1], "s": ["a"]}))
    for number in range(5):
        iceberg.describe(place, merge(place, {"i": [1], "s": [f"{number}"]}))
    assert len(os.listdir(f"{place.uri}/files")) == 5
    iceberg.tidy(place)
    assert len(os.listdir(f"{place.uri}/files")) == 2
    assert [rows(found(place), each.snapshot_id) for each in found(place).snapshots()] == [
        Counter({(1, "3"): 1}),
        Counter({(1, "4"): 1}),
    ]


def test_no_rows(place: Location) -> None:
    iceberg.describe(place, write(place, {"i": pa.array([], pa.int64())}))  # type: ignore[dict-item]
    assert rows(found(place)) == Counter()
    iceberg.describe(place, write(place, {"i": [1]}))
    iceberg.describe(place, write(place, {"i": pa.array([], pa.int64())}, mode="overwrite"))  # type: ignore[dict-item]
    assert rows(found(place)) == Counter()


def test_other_columns_begin_the_history_anew(place: Location) -> None:
    iceberg.describe(place, write(place, {"i": [1], "j": [1]}))
    uuid = found(place).metadata.table_uuid
    iceberg.describe(place, write(place, {"i": ["a"], "j": [1]}, mode="overwrite"))
    table = found(place)
    assert rows(table) == Counter({("a", 1): 1})
    assert len(table.snapshots()) == 1
    assert table.metadata.table_uuid == uuid


def test_values_that_are_no_number_are_found(place: Location) -> None:
    """No bounds are given for a column in which NaN may be."""
    iceberg.describe(place, write(place, {"f": [1.0, float("nan")], "i": [1, 2]}))
    (task,) = found(place).scan().plan_files()
    assert set(task.file.upper_bounds) == {2}
    assert list(found(place).scan(row_filter=GreaterThan("i", 2)).plan_files()) == []


@pytest.mark.parametrize("harm", ["hint", "metadata", "all", "manifests", "cut json", "cut avro"])
def test_metadata_that_is_harmed_is_begun_anew(place: Location, harm: str) -> None:
    iceberg.describe(place, write(place, {"i": [1]}))
    iceberg.describe(place, write(place, {"i": [2]}))
    folder = Path(place.uri) / "metadata"
    if harm == "all":
        shutil.rmtree(folder)
    else:
        pattern = {"hint": "version-hint.text", "manifests": "*.avro", "cut avro": "*.avro"}.get(harm, "v2.*")
        for path in folder.glob(pattern):
            path.write_bytes(path.read_bytes()[:100]) if harm.startswith("cut") else path.unlink()
    iceberg.describe(place, write(place, {"i": [3]}))
    table = found(place)
    assert rows(table) == Counter({(1,): 1, (2,): 1, (3,): 1})
    assert len(table.snapshots()) == (3 if harm == "hint" else 1)


def test_a_version_that_was_put_back_and_taken_anew_is_described(place: Location) -> None:
    iceberg.describe(place, write(place, {"i": [1]}))
    shutil.copytree(f"{place.uri}/data", f"{place.uri}.backup")
    iceberg.describe(place, write(place, {"i": [2]}, said='{"number": 2}'))
    shutil.rmtree(f"{place.uri}/data")
    shutil.copytree(f"{place.uri}.backup", f"{place.uri}/data")
    iceberg.describe(place, write(place, {"i": [3]}, said='{"number": 3}'))
    assert rows(found(place)) == Counter({(1,): 1, (3,): 1})


def test_a_later_version_that_somebody_else_has_described_stays_the_newest(place: Location) -> None:
    """A server that was held up between a commit and its description."""
    earlier = write(place, {"i": [1]})
    store = iceberg._Store(place)
    later = write(place, {"i": [2]})
    base = iceberg._continued(None, iceberg._schema(earlier), place.uri)
    iceberg.describe(place, later)
    iceberg._commit(store, earlier.version() + 1, base, earlier, iceberg._Version.of(earlier))
    assert rows(found(place)) == Counter({(1,): 1, (2,): 1})


def test_few_snapshots_are_kept_and_what_only_others_need_goes(
    place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "SNAPSHOTS", 3)
    for number in range(8):
        iceberg.describe(place, write(place, {"i": [number]}, mode="overwrite" if number == 2 else "append"))
    iceberg.tidy(place)
    assert len(list((Path(place.uri) / "metadata").glob("v*.json"))) == 8  # of the last hour
    monkeypatch.setattr(iceberg, "READERS_SECONDS", 0)
    iceberg.tidy(place)
    table = found(place)
    assert [rows(table, each.snapshot_id).total() for each in table.snapshots()] == [4, 5, 6]
    names = os.listdir(f"{place.uri}/metadata")
    assert len([name for name in names if name.startswith("snap-")]) == 3
    assert "v1.metadata.json" not in names


def test_old_snapshots_end(place: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "RETENTION_HOURS", 0)
    for number in range(3):
        iceberg.describe(place, write(place, {"i": [number]}))
    assert len(found(place).snapshots()) == 1
    assert rows(found(place)).total() == 3


def test_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "find_spec", lambda name: None if name == "pyiceberg" else object())
    check_installed("delta")
    with pytest.raises(SqlError, match="pyiceberg") as refusal:
        check_installed("iceberg")
    assert refusal.value.sqlstate == "0A000"
    assert refusal.value.hint == "pip install 'headwater[iceberg]'"
