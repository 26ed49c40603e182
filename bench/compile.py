"""From `create_stream_table` to done, for the 22 TPC-H queries over empty tables, through the wire.

    python bench/compile.py [--rounds 3] [--only q01 ...]

Milliseconds as a client sees them, in autocommit: analysis by PostgreSQL, compiling, the storage table, capture and the
first (empty) population. The tables are captured already, as they are for every stream table but the first. Beside it
what PostgreSQL needs for a materialized view of the same query.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.tpch import Connection, quiet_database
from tests.tpch.database import QUERIES, create


def milliseconds(connection: Connection, statement: str, *parameters: str) -> float:
    """How long a statement takes."""
    clock = time.perf_counter()
    connection.execute(statement, parameters or None)
    return (time.perf_counter() - clock) * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=QUERIES, default=list(QUERIES))
    options = parser.parse_args()

    times: dict[str, list[float]] = {}
    views: dict[str, list[float]] = {}
    with quiet_database() as connection:
        create(connection)
        call = "SELECT pgtrickle.create_stream_table(%s, %s, '1d', 'DIFFERENTIAL')"
        for name, query in QUERIES.items():  # every column of every table is captured after this
            connection.execute(call, [f"before_{name}", query])
        for _ in range(options.rounds):
            for name in options.only:
                times.setdefault(name, []).append(milliseconds(connection, call, name, QUERIES[name]))
                connection.execute("SELECT pgtrickle.drop_stream_table(%s)", [name])
                view = f"CREATE MATERIALIZED VIEW {name} AS {QUERIES[name]}"
                views.setdefault(name, []).append(milliseconds(connection, view))
                connection.execute(f"DROP MATERIALIZED VIEW {name}")
    table = Table(title="create_stream_table over empty tables, ms")
    for heading in ("query", "stream table", "materialized view", "ratio"):
        table.add_column(heading, justify="left" if heading == "query" else "right")
    medians = {name: statistics.median(times[name]) for name in options.only}
    for name, median in medians.items():
        plain = statistics.median(views[name])
        table.add_row(name, f"{median:.1f}", f"{plain:.1f}", f"{median / plain:.1f}")
    console = Console()
    console.print(table)
    within = sum(median <= 30 for median in medians.values())
    console.print(f"median {statistics.median(medians.values()):.1f} ms; {within} of {len(medians)} within 30 ms")


if __name__ == "__main__":
    main()
