"""What a poll of a Delta table costs by its change data feed, and by comparing all of it.

    python bench/lake_feed.py [--rows 1000000] [--turns 3]

Two stream tables add up rows of two Delta tables of so many rows. One has `delta.enableChangeDataFeed`. Each turn
appends 1000 rows to both, has both refreshed by hand, updates 1000 rows by their key, refreshes again, and deletes
1000 rows and refreshes. Printed are medians of the refreshes' times, and after the last turn whether both have
the same rows. Sail reads the files of what is compared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import served

FEED = {"delta.enableChangeDataFeed": "true"}
CHANGED = 1000


def rows(start: int, number: int) -> pa.Table:
    """Rows with these keys."""
    ids = range(start, start + number)
    return pa.table(
        {"id": pa.array(ids, pa.int64()), "grp": [i % 100 for i in ids], "note": [f"note {i % 977}" for i in ids]}
    )


def _append(path: str, turn: int, size: int) -> None:
    write_deltalake(path, rows(size + turn * CHANGED, CHANGED), mode="append")


def _update(path: str, turn: int, size: int) -> None:
    low = turn * 2 * CHANGED
    DeltaTable(path).update(predicate=f"id >= {low} AND id < {low + CHANGED}", updates={"note": "'changed'"})


def _delete(path: str, turn: int, size: int) -> None:
    low = (turn * 2 + 1) * CHANGED
    DeltaTable(path).delete(f"id >= {low} AND id < {low + CHANGED}")


COMMITS: dict[str, Callable[[str, int, int], None]] = {
    "1000 rows appended": _append,
    "1000 rows updated": _update,
    "1000 rows deleted": _delete,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    show = Console(highlight=False).print
    with (
        tempfile.TemporaryDirectory(prefix="headwater-bench-") as directory,
        served("sail") as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
    ):
        connection.execute("ALTER DATABASE postgres SET pg_trickle.enabled = off")
        connection.execute("SET pg_trickle.foreign_table_polling = on")
        location = f"OPTIONS (location 'file://{directory}')"
        connection.execute(f"CREATE SERVER lake FOREIGN DATA WRAPPER headwater_lake {location}".encode())
        names = {"feed": FEED, "compared": None}
        for name, properties in names.items():
            write_deltalake(f"{directory}/{name}", rows(0, options.rows), configuration=properties)
            table = f"CREATE FOREIGN TABLE {name} (id bigint, grp bigint, note text) SERVER lake"
            connection.execute(f"{table} OPTIONS (path '{name}', format 'delta')".encode())
            query = f"SELECT grp, note, count(*) AS n, sum(id) AS total FROM {name} GROUP BY grp, note"
            began = time.perf_counter()
            connection.execute("SELECT pgtrickle.create_stream_table(%s, %s)", [f"sums_{name}", query])
            show(f"{options.rows} rows, {name}: created in {time.perf_counter() - began:.1f} s")
        seconds: dict[tuple[str, str], list[float]] = {}
        for turn in range(options.turns):
            for kind, commit in COMMITS.items():
                for name in names:
                    commit(f"{directory}/{name}", turn, options.rows)
                    began = time.perf_counter()
                    connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [f"sums_{name}"])
                    seconds.setdefault((kind, name), []).append(time.perf_counter() - began)
        for kind in COMMITS:
            feed, compared = (statistics.median(seconds[kind, name]) for name in names)
            show(f"{kind}: by the feed {feed:.2f} s, compared {compared:.2f} s, {compared / feed:.0f} times as long")
        columns = "SELECT grp, note, n, total FROM"
        both = f"({columns} sums_feed EXCEPT {columns} sums_compared)"
        counted = connection.execute(f"SELECT count(*) FROM {both} AS d".encode())
        show(f"rows in which they differ: {counted.fetchall()[0][0]}")


if __name__ == "__main__":
    main()
