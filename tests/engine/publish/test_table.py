"""The Delta table of a publication: its commits are successors, and say how far it has got."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from engine.mirror.delta_table import Committed, Mark, StorageFailed, WriteConflict
from engine.publish.net import GONE, ROW_ID
from engine.publish.table import NotOurs, Position, location_of, look
from engine.session.snapshots import PgSnapshot

OURS = "11111111-1111-1111-1111-111111111111"
POSITION = Position("system", 4, PgSnapshot.parse("5:9:5,7"), frozenset({12}))


def said(number: int) -> dict[str, object]:
    return {"publication": OURS, "number": number, **POSITION.as_metadata()}


def rows(*ids: int, value: str = "x") -> pa.Table:
    return pa.table({"v": [value] * len(ids), ROW_ID: pa.array(ids, pa.int64())})


def changes(table: pa.Table, *, gone: bool = False) -> pa.Table:
    return table.append_column(GONE, pa.repeat(gone, table.num_rows))


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    made = rows(1, 2, 3)
    return location_of(str(tmp_path / "t")).create(made.schema, made.to_batches(), said(1), Mark(OURS, 1))


def test_what_was_committed_is_found_again(table: DeltaTable, tmp_path: Path) -> None:
    place = location_of(str(tmp_path / "t"))
    found = look(place, OURS)
    assert found is not None
    assert (found.number, found.position) == (1, POSITION)
    with pytest.raises(NotOurs):
        look(place, "22222222-2222-2222-2222-222222222222")
    place.merge(Committed.of(found.table), changes(rows(2, 4, value="y")), ROW_ID, GONE, said(2), Mark(OURS, 2))
    place.merge(Committed.of(found.table), changes(rows(1), gone=True), ROW_ID, GONE, said(3), Mark(OURS, 3))
    again = look(place, OURS)
    assert again is not None
    assert (again.number, again.position) == (3, POSITION)
    read = again.table.to_pyarrow_table().sort_by(ROW_ID)
    assert (read[ROW_ID].to_pylist(), read["v"].to_pylist()) == ([2, 3, 4], ["y", "x", "y"])
    assert "__pgt_gone" not in read.column_names


def test_of_two_commits_to_one_version_one_fails(table: DeltaTable, tmp_path: Path) -> None:
    place = location_of(str(tmp_path / "t"))
    one, other, third = (look(place, OURS) for _ in range(3))
    assert one is not None
    assert other is not None
    assert third is not None
    place.merge(Committed.of(one.table), changes(rows(2, value="y")), ROW_ID, GONE, said(2), Mark(OURS, 2))
    with pytest.raises(WriteConflict):
        place.merge(Committed.of(other.table), changes(rows(3, value="y")), ROW_ID, GONE, said(2), Mark(OURS, 2))
    with pytest.raises(WriteConflict):
        place.append(Committed.of(third.table), rows(9), said(2), Mark(OURS, 2))
    with pytest.raises(WriteConflict):
        made = rows(7)
        place.create(made.schema, made.to_batches(), said(1), Mark(OURS, 1))
    assert DeltaTable(tmp_path / "t").version() == 1


def test_what_is_somebody_elses_is_not_taken_over(table: DeltaTable, tmp_path: Path) -> None:
    write_deltalake(tmp_path / "theirs", rows(1))
    with pytest.raises(NotOurs):
        look(location_of(str(tmp_path / "theirs")), OURS)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "mine.txt").touch()
    with pytest.raises(NotOurs):
        look(location_of(str(tmp_path / "files")), OURS)
    assert look(location_of(str(tmp_path / "nothing")), OURS) is None
    write_deltalake(tmp_path / "t", rows(8), mode="append")
    found = look(location_of(str(tmp_path / "t")), OURS)
    assert found is not None
    assert found.position is None


def test_a_log_that_cannot_be_read_is_no_empty_place(table: DeltaTable, tmp_path: Path) -> None:
    (tmp_path / "t" / "_delta_log" / f"{0:020}.json").write_text("{")
    with pytest.raises((StorageFailed, NotOurs)):
        look(location_of(str(tmp_path / "t")), OURS)
