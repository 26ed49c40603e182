"""What it costs to publish a stream table: the first version, and a commit of one changed row.

    python bench/publish.py [--rows 300000] [--changes 30] [--formats delta iceberg]

A stream table that copies a table of so many rows is published on a local disk. Beside the first version stands what
`COPY … TO STDOUT` of the same rows takes. Beside a commit of one row stands the refresh that it publishes: the time
from the refresh's return to the first look at which a reader of the format finds the version. A second stream table
has a hundred rows.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from deltalake import DeltaTable
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import served

LOOK_SECONDS = 0.005


def versions(place: Path, format_: str) -> Callable[[], int]:
    """What gives the last version that a reader finds; -1 before the first one."""
    if format_ == "iceberg":
        hint = place / "metadata" / "version-hint.text"
        return lambda: int(hint.read_text()) if hint.exists() else -1
    table: list[DeltaTable] = []

    def found() -> int:
        if not table and DeltaTable.is_deltatable(str(place)):
            table.append(DeltaTable(place))
        for each in table:
            each.update_incremental()
        return table[0].version() if table else -1

    return found


def first_version(connection: psycopg.Connection, name: str, format_: str, place: Path) -> float:
    """Seconds until there is one."""
    began, version = time.perf_counter(), versions(place, format_)
    connection.execute("SELECT pgtrickle.publish(%s, %s, %s)", [name, format_, str(place)])
    while version() < 0:
        time.sleep(LOOK_SECONDS)
    return time.perf_counter() - began


def commits(
    connection: psycopg.Connection, name: str, version: Callable[[], int], changes: int
) -> tuple[list[float], list[float]]:
    """Seconds of each refresh of one changed row, and from its end until its commit is found."""
    refreshes, delays = [], []
    for number in range(changes):
        connection.execute("UPDATE items SET amount = amount + 1 WHERE id = %s", [number])
        before, began = version(), time.perf_counter()
        connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [name])
        ended = time.perf_counter()
        while version() == before:
            time.sleep(LOOK_SECONDS)
        refreshes.append(ended - began)
        delays.append(time.perf_counter() - ended)
    return refreshes, delays


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--changes", type=int, default=30)
    parser.add_argument("--formats", nargs="+", choices=("delta", "iceberg"), default=["delta", "iceberg"])
    options = parser.parse_args()
    show = Console(highlight=False).print
    with (
        served() as server,
        tempfile.TemporaryDirectory(prefix="headwater-bench-") as directory,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        connection.execute("ALTER DATABASE postgres SET pg_trickle.enabled = off")
        connection.execute(
            "CREATE TABLE items AS SELECT i AS id, i * 0.01::float8 AS amount, 'item ' || i AS note"
            f" FROM generate_series(0, {options.rows - 1}) i"
        )
        connection.execute("ALTER TABLE items ADD PRIMARY KEY (id)")
        sizes = {"few": 100, "many": options.rows}
        for (name, rows), format_ in itertools.product(sizes.items(), options.formats):
            query = f"SELECT id, amount, note FROM items WHERE id < {rows}"
            table = f"{name}_{format_}"
            connection.execute("SELECT pgtrickle.create_stream_table(%s, %s)", [table, query])
            place = Path(directory) / table
            began = time.perf_counter()
            with psycopg.connect(server.direct) as direct, direct.cursor().copy(f"COPY {table} TO STDOUT CSV") as copy:
                for _ in copy:
                    pass
            copied = time.perf_counter() - began
            seconds = first_version(connection, table, format_, place)
            show(
                f"{format_}, {rows} rows: first version {seconds:.2f} s, {rows / seconds:,.0f} rows/s;"
                f" COPY {copied:.2f} s"
            )
            found = commits(connection, table, versions(place, format_), options.changes)
            refreshes, delays = (sorted(seconds * 1000 for seconds in each) for each in found)
            show(
                f"{format_}, {rows} rows, one changes: refresh {statistics.median(refreshes):.0f} ms, until it is"
                f" published {statistics.median(delays):.0f} ms (median), {delays[-1]:.0f} ms at most"
            )
            connection.execute("SELECT pgtrickle.unpublish(%s)", [table])


if __name__ == "__main__":
    main()
