"""What a compaction of a mirror costs, by which rows have changed: at the end of the table, or anywhere in it.

    python bench/compaction.py [--rows 8000000] [--changed 100000]

A base and a log are written as a mirror's are, of a table `(id bigint PRIMARY KEY, amount float8, note text)`, and
compacted: rows inserted at the end, the last rows updated, rows updated all over. Beside it stands the part of the
base's files that stay as they are. After an update all over the base is sorted by its key again, or not, and the last
rows are updated.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from engine.mirror.compaction import compact_base
from engine.mirror.delta_table import Location
from engine.mirror.state import (
    CHANGE_FIELDS,
    arrow_schema,
    base_metadata,
    base_of,
    changes_metadata,
    changes_of,
    load,
    ranged_column,
)
from engine.session.snapshots import PgSnapshot

COLUMNS = {"id": "bigint", "amount": "double precision", "note": "text"}
IDENTITY = json.dumps({"key": ["id"]})
BEFORE = PgSnapshot.parse("10:10:")
BATCH = 128 * 1024
SCHEMA = arrow_schema(COLUMNS, "")


def rows_of(ids: list[int], seed: int) -> list[pa.Array]:
    """The columns of rows with these keys, with contents that do not compress to nothing."""
    chosen = random.Random(seed)
    return [
        pa.array(ids, pa.int64()),
        pa.array([chosen.random() for _ in ids], pa.float64()),
        pa.array([f"note {chosen.randrange(10**9)}" for _ in ids], pa.string()),
    ]


def base(rows: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, rows, BATCH):
        ids = list(range(first, min(first + BATCH, rows)))
        yield pa.RecordBatch.from_arrays(rows_of(ids, seed=1), schema=SCHEMA)


def images(ids: list[int], weight: int, seed: int, xid: int) -> list[pa.RecordBatch]:
    fields = [
        pa.array([value] * len(ids), field.type) for field, value in zip(CHANGE_FIELDS, (xid, 1, weight), strict=True)
    ]
    return [pa.RecordBatch.from_arrays([*fields, *rows_of(ids, seed)], schema=pa.schema([*CHANGE_FIELDS, *SCHEMA]))]


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and of CPU."""
    start, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - start, time.process_time() - cpu


def made(folder: Path, rows: int) -> Location:
    """A mirror of so many rows, in the order of their key."""
    place = Location.local(folder)
    metadata = base_metadata("bench", BEFORE, IDENTITY, COLUMNS)
    base_of(place).overwrite(None, SCHEMA, base(rows), metadata, statistics=ranged_column(IDENTITY, COLUMNS))
    return place


def compacted(place: Location, gone: list[int], come: list[int], seed: int = 1) -> tuple[float, float, float]:
    """What a compaction takes, and the part of the base's files that stay. ``seed`` made the rows that go."""
    before = base_of(place).committed()
    assert before is not None
    snapshot = PgSnapshot.parse(before.metadata["snapshot"])
    xid = snapshot.xmax
    after = PgSnapshot.parse(f"{xid + 1}:{xid + 1}:")
    log = [*images(gone, -1, seed, xid), *images(come, 1, seed + 1, xid)]
    metadata = changes_metadata("bench", snapshot, after, "")
    changes_of(place).overwrite(None, log[0].schema, log, metadata)
    state = load(place)
    assert state is not None
    seconds, cpu = timed(lambda: compact_base(place, state))
    found = load(place)
    assert found is not None and found.base.rows == state.base.rows - len(gone) + len(come)
    stayed = [file for file in state.base.files if file in found.base.files]
    return seconds, cpu, len(stayed) / len(state.base.files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--changed", type=int, default=100_000)
    options = parser.parse_args()
    rows, changed = options.rows, options.changed
    last = list(range(rows - changed, rows))
    anywhere = random.Random(0).sample(range(rows), changed)
    table = Table("changed", "seconds", "CPU seconds", "files that stay")
    for what, gone, come in (
        ("inserted at the end", [], list(range(rows, rows + changed))),
        ("updated at the end", last, last),
        ("updated all over", anywhere, anywhere),
    ):
        with tempfile.TemporaryDirectory() as folder:
            seconds, cpu, stayed = compacted(made(Path(folder), rows), gone, come)
        table.add_row(what, f"{seconds:.2f}", f"{cpu:.2f}", f"{stayed:.0%}")
    for sorted_again in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            place = made(Path(folder), rows)
            compacted(place, anywhere, anywhere)
            if sorted_again:
                seconds, cpu = timed(lambda place=place: base_of(place).optimize(ranged_column(IDENTITY, COLUMNS)))
                table.add_row("sorted again after that", f"{seconds:.2f}", f"{cpu:.2f}", "")
            seconds, cpu, stayed = compacted(place, last, last)
        what = f"then updated at the end, {'sorted' if sorted_again else 'unsorted'}"
        table.add_row(what, f"{seconds:.2f}", f"{cpu:.2f}", f"{stayed:.0%}")
    Console().print(f"{rows:,} rows, {changed:,} of them changed", table)


if __name__ == "__main__":
    main()
