"""Few rows are kept in memory, many in a file that nobody sees."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from engine.arrow_spill import gathered

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
ROWS = 10_000


def batches(number: int) -> Iterator[pa.RecordBatch]:
    for batch in range(number):
        numbers = range(batch * ROWS, (batch + 1) * ROWS)
        yield pa.record_batch({"n": numbers, "text": [f"{n:0100d}" for n in numbers]}, schema=SCHEMA)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("most", [0, 1 << 20, 1 << 30])
def test_all_rows_are_there_wherever_they_are(scratch: Path, most: int) -> None:
    table = gathered(SCHEMA, batches(3), most)
    assert table.equals(pa.Table.from_batches(batches(3)))
    assert list(scratch.iterdir()) == []


def test_no_rows_are_a_table_with_the_columns() -> None:
    assert gathered(SCHEMA, []).equals(SCHEMA.empty_table())


def test_many_rows_take_no_memory_of_arrow(scratch: Path) -> None:
    before = pa.total_allocated_bytes()
    table = gathered(SCHEMA, batches(40), 1 << 20)
    assert table.nbytes > 40 << 20
    assert pa.total_allocated_bytes() - before < 4 << 20
    assert list(scratch.iterdir()) == []


def test_a_file_of_rows_that_do_not_come_to_an_end_does_not_stay(scratch: Path) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(2)
        raise OSError("the network is gone")

    with pytest.raises(OSError, match="the network is gone"):
        gathered(SCHEMA, failing(), 0)
    assert list(scratch.iterdir()) == []
