"""The 22 TPC-H queries as stream tables: differential, full, and REFRESH MATERIALIZED VIEW.

    python bench/tpch.py [--scale 0.1] [--changed 1] [--rounds 3] [--only q01 ...] [--auto]

Each query defines stream tables, one DIFFERENTIAL and one FULL, and a materialized view, over the same eight tables.
With `--auto` there is an AUTO one, too, which is as fast as the better of both where it chooses well. A round is RF1
(new orders with their lines), RF2 (old ones go) and updates in all tables, together so many percent of the orders and
lines, a third of it by each; then all are refreshed, in turns first. Medians of what a client waits for are shown, and
at the end every stream table is held against its query. The 25 nations and 5 regions stay as they are: to change one is
to change a part of everything. PostgreSQL's statistics are those of the tables as they were loaded: autovacuum would
renew them after 10 % of a table has changed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import Served, served
from tests.tpch.database import QUERIES, create, load, new_sales, old_sales, updates

Connection = psycopg.Connection[Any]


CHANGING = ("part", "supplier", "partsupp", "customer", "orders", "lineitem")
"""The tables whose rows change."""


@contextmanager
def quiet(server: Served, database: str = "postgres") -> Iterator[Connection]:
    """A connection through a server to a database that nobody refreshes but by hand."""
    with psycopg.connect(server.dsn, dbname=database, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {database} SET pg_trickle.enabled = off")
    with psycopg.connect(server.dsn, dbname=database, autocommit=True) as connection:
        yield connection


@contextmanager
def quiet_database() -> Iterator[Connection]:
    """The same, with a server of its own."""
    with served() as server, quiet(server) as connection:
        yield connection


def change(connection: Connection, scale: float, percent: float, seed: int) -> None:
    """New sales, old sales, updates: a third of the share each."""
    share = percent / 100 / 3
    orders = max(1, round(1_500_000 * scale * share))
    for statements in (new_sales(orders, seed), old_sales(orders, 1000 + seed), updates(share, seed, 0, CHANGING)):
        with connection.transaction():
            for statement in statements:
                connection.execute(statement)


def refresh(connection: Connection, name: str) -> float:
    """Milliseconds of a refresh, of a materialized view's where the name says so."""
    clock = time.perf_counter()
    if name.endswith("_view"):
        connection.execute(f"REFRESH MATERIALIZED VIEW {name}")
    else:
        connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [name], prepare=True)
    return (time.perf_counter() - clock) * 1000


def differs(connection: Connection, name: str, query: str) -> bool:
    """Whether a stream table is not what its query says."""
    row = connection.execute(
        "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attname !~ '^__pgt_'",
        [name],
    ).fetchone()
    assert row is not None
    wrong = connection.execute(
        f"WITH q AS MATERIALIZED ({query}), s AS (SELECT {row[0]} FROM {name})"
        " SELECT (SELECT count(*) FROM (TABLE q EXCEPT ALL TABLE s) AS m)"
        " + (SELECT count(*) FROM (TABLE s EXCEPT ALL TABLE q) AS e)"
    ).fetchone()
    return wrong != (0,)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--changed", type=float, default=1, help="percent")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=QUERIES, default=list(QUERIES))
    parser.add_argument("--auto", action="store_true", help="an AUTO stream table as well")
    options = parser.parse_args()

    console = Console()
    stored = ("differential", "full", "auto")[: 3 if options.auto else 2]
    measured = (*stored, "view")
    times: dict[tuple[str, str], list[float]] = {}
    actions: dict[str, set[str]] = {}
    with quiet_database() as connection, Progress(console=console, transient=True) as progress:
        task = progress.add_task("loading", total=len(options.only) * (options.rounds + 2))
        create(connection)
        load(connection, options.scale)
        for name in options.only:
            progress.update(task, description=f"creating {name}", advance=1)
            connection.execute(f"CREATE MATERIALIZED VIEW {name}_view AS {QUERIES[name]}")
            for mode in stored:
                connection.execute(
                    "SELECT pgtrickle.create_stream_table(%s, %s, '1d', %s, engine => 'postgres')",
                    [f"{name}_{mode}", QUERIES[name], mode.upper()],
                )
        for n in range(options.rounds + 1):  # the first one warms up
            change(connection, options.scale, options.changed, n)
            for name in options.only:
                progress.update(task, description=f"refreshing {name}", advance=1)
                for mode in sorted(measured, reverse=bool(n % 2)):
                    elapsed = refresh(connection, f"{name}_{mode}")
                    if n:
                        times.setdefault((name, mode), []).append(elapsed)
            connection.execute("SELECT pgtrickle._cleanup_buffers()")
        for name in options.only:
            for mode in stored:
                if differs(connection, f"{name}_{mode}", QUERIES[name]):
                    raise SystemExit(f'stream table "{name}_{mode}" differs from its query')
            actions[name] = {
                action
                for (action,) in connection.execute(
                    "SELECT action FROM pgtrickle.pgt_refresh_history WHERE pgt_id = pgtrickle._resolve(%s)"
                    " AND initiated_by = 'MANUAL'",
                    [f"{name}_differential"],
                )
            }
    table = Table(title=f"TPC-H at scale {options.scale}, {options.changed} % changed: milliseconds")
    for heading in ("query", *measured, "times faster: than full", "than the view", "actions"):
        table.add_column(heading, justify="left" if heading in ("query", "actions") else "right")
    ratios: dict[str, list[float]] = {"full refresh": [], "REFRESH MATERIALIZED VIEW": []}
    for name in options.only:
        medians = {mode: statistics.median(times[name, mode]) for mode in measured}
        best = medians[stored[-1]] if options.auto else medians["differential"]
        for each, mode in zip(ratios.values(), ("full", "view"), strict=True):
            each.append(medians[mode] / best)
        faster = (f"{each[-1]:.2f}" for each in ratios.values())
        table.add_row(name, *(f"{ms:.1f}" for ms in medians.values()), *faster, ", ".join(sorted(actions[name])))
    console.print(table)
    for than, each in ratios.items():
        slower = sum(ratio < 1 for ratio in each)
        console.print(
            f"median {statistics.median(each):.1f} times faster than {than}; slower in {slower} of {len(each)}"
        )


if __name__ == "__main__":
    main()
