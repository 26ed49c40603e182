"""What it costs to publish a stream table: the first version, and a commit of one changed row.

    python bench/publish.py [--rows 300000] [--changes 30]

A stream table that copies a table of so many rows is published on a local disk. Beside the first version stands what
`COPY … TO STDOUT` of the same rows takes. Beside a commit of one row stands the refresh that it publishes: the time
from the refresh's return to the first look at which a reader of Delta finds the version. A second stream table has a
hundred rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psycopg
from deltalake import DeltaTable
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import served

LOOK_SECONDS = 0.005


def first_version(connection: psycopg.Connection, name: str, place: Path) -> float:
    """Seconds until there is one."""
    began = time.perf_counter()
    connection.execute("SELECT pgtrickle.publish(%s, 'delta', %s)", [name, str(place)])
    while not DeltaTable.is_deltatable(str(place)):
        time.sleep(LOOK_SECONDS)
    return time.perf_counter() - began


def commits(connection: psycopg.Connection, name: str, place: Path, changes: int) -> tuple[list[float], list[float]]:
    """Seconds of each refresh of one changed row, and from its end until its commit is found."""
    refreshes, delays = [], []
    table = DeltaTable(place)
    for number in range(changes):
        connection.execute("UPDATE items SET amount = amount + 1 WHERE id = %s", [number])
        before, began = table.version(), time.perf_counter()
        connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [name])
        ended = time.perf_counter()
        while table.version() == before:
            time.sleep(LOOK_SECONDS)
            table.update_incremental()
        refreshes.append(ended - began)
        delays.append(time.perf_counter() - ended)
    return refreshes, delays


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--changes", type=int, default=30)
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
        for name, rows in (("few", 100), ("many", options.rows)):
            query = f"SELECT id, amount, note FROM items WHERE id < {rows}"
            connection.execute("SELECT pgtrickle.create_stream_table(%s, %s)", [name, query])
            place = Path(directory) / name
            began = time.perf_counter()
            with psycopg.connect(server.direct) as direct, direct.cursor().copy(f"COPY {name} TO STDOUT CSV") as copy:
                for _ in copy:
                    pass
            copied = time.perf_counter() - began
            seconds = first_version(connection, name, place)
            show(f"{rows} rows: first version {seconds:.2f} s, {rows / seconds:,.0f} rows/s; COPY {copied:.2f} s")
            refreshes, delays = (sorted(each) for each in commits(connection, name, place, options.changes))
            show(
                f"{rows} rows, one changes: refresh {statistics.median(refreshes) * 1000:.0f} ms, until it is"
                f" published {statistics.median(delays) * 1000:.0f} ms (median), {delays[-1] * 1000:.0f} ms at most"
            )


if __name__ == "__main__":
    main()
