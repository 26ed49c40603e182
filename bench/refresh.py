"""Differential refresh against full and against REFRESH MATERIALIZED VIEW: milliseconds through the wire.

    python bench/refresh.py [--rows 10000 100000] [--changed 1 10 50] [--rounds 5] [--only NAME ...]

Each query is the definition of two stream tables over the same source, one DIFFERENTIAL and one FULL, and of a
materialized view without indexes, which PostgreSQL itself refreshes. A round changes so many percent of the source's
rows (70 % of the changes are updates, 15 % deletes, 15 % inserts), then refreshes all three, in turns first; medians
are shown. "join, both" changes both sides of the join. Between rounds, outside of the clock, the tables are vacuumed
and both stream tables are held against their query.

A refresh that finds no change is measured twice: as the scheduler makes it, on a connection of the engine's own, and as
a client asks for it, through the wire.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
from psycopg import conninfo
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import Served, served
from catalog.values import Initiator
from engine.refresh.executor_choice import NoSpark
from engine.requests.requests import Scheduled, refresh_scheduled
from engine.session.pool import SESSION_SETTINGS, PooledSession

SOURCES = """
CREATE TABLE customers (id int PRIMARY KEY, region int NOT NULL, name text NOT NULL, discount int NOT NULL);
INSERT INTO customers SELECT n, n % 50, 'customer ' || n, n % 10 FROM generate_series(1, {customers}) AS n;
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, amount numeric(10, 2) NOT NULL, note text);
INSERT INTO orders SELECT n, 1 + n % {customers}, n % 1000, 'order ' || n FROM generate_series(1, {rows}) AS n;
CREATE INDEX ON orders (customer);
CREATE SEQUENCE new_orders START {rows}00;
VACUUM (ANALYZE) customers; VACUUM (ANALYZE) orders;
"""

QUERIES = {
    "scan": "SELECT id, customer, amount, note FROM orders",
    "filter": "SELECT id, customer, amount FROM orders WHERE amount >= 500",
    "aggregate": "SELECT customer, count(*) AS n, sum(amount) AS total, avg(amount) AS mean"
    " FROM orders GROUP BY customer",
    "join": "SELECT o.id, o.amount, c.name, c.region FROM orders o JOIN customers c ON c.id = o.customer",
    "join, both": "SELECT o.id, o.amount, c.name, c.discount FROM orders o JOIN customers c ON c.id = o.customer",
    "join and aggregate": "SELECT c.region, count(*) AS n, sum(o.amount) AS total"
    " FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region",
}

HARDER = {
    "window": "SELECT id, amount, sum(amount) OVER (ORDER BY id) AS so_far FROM orders",
    "percentile": "SELECT customer, percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) AS median FROM orders"
    " GROUP BY customer",
    "top": "SELECT id, customer, amount, note FROM orders ORDER BY amount DESC, id LIMIT 100",
    "distinct": "SELECT DISTINCT customer, amount FROM orders",
    "closure": "WITH RECURSIVE up AS (SELECT id, id / 10 AS above FROM orders UNION SELECT up.id, o.id / 10 FROM up"
    " JOIN orders o ON o.id = up.above) SELECT id, above FROM up",
}
"""What is not maintained row by row, or not always; measured only where it is asked for."""

# Which rows: spread evenly, others in each round. {offset} differs from round to round.
CHANGES = """
UPDATE orders SET amount = (amount * 7 + 13) % 1000, note = 'changed ' || {offset}
    WHERE (id * 7919::bigint + {offset}) % 10000 < {updates};
DELETE FROM orders WHERE (id * 7919::bigint + {offset}) % 10000 BETWEEN {updates} AND {updates} + {deletes} - 1;
INSERT INTO orders
    SELECT nextval('new_orders'), 1 + n % {customers}, n % 1000, 'new' FROM generate_series(1, {inserts}) AS n;
"""
CUSTOMER_CHANGES = (
    "UPDATE customers SET discount = discount + 1 WHERE (id * 7919::bigint + {offset}) % 10000 < {changed}"
)

NO_CHANGE_CALLS = 200
FULL, VIEW = "full_one", "materialized"


@dataclass(frozen=True, slots=True)
class Cell:
    """Median milliseconds of one query at one size and share of changed rows."""

    differential: float
    full: float
    view: float

    def __str__(self) -> str:
        """All three, and how many times faster differential is than the others."""
        of_full, of_view = self.full / self.differential, self.view / self.differential
        return f"{self.differential:.1f} / {self.full:.1f} / {self.view:.1f} ({of_full:.1f}, {of_view:.2f})"


class Bench:
    """A client of a server."""

    def __init__(self, server: Served, connection: psycopg.Connection[Any]):
        self._server, self._connection = server, connection
        self.run("ALTER DATABASE postgres SET pg_trickle.enabled = off")

    def run(self, statement: str, *parameters: Any) -> psycopg.Cursor[Any]:
        return self._connection.execute(statement, parameters or None)  # type: ignore[arg-type]

    def refresh(self, name: str) -> float:
        """Milliseconds of a refresh."""
        clock = time.perf_counter()
        if name == VIEW:
            self._connection.execute(f"REFRESH MATERIALIZED VIEW {name}")
        else:
            self._connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [name], prepare=True)
        return (time.perf_counter() - clock) * 1000

    async def looks(self, name: str) -> list[float]:
        """Milliseconds of refreshes without changes, as the scheduler makes them."""
        login = conninfo.conninfo_to_dict(self._server.direct)
        connection = await asyncpg.connect(
            host=login["host"],
            port=int(login["port"]),
            user=login["user"],
            password=login["password"],
            database=login["dbname"],
            server_settings=SESSION_SETTINGS,
        )
        session = PooledSession(connection)
        ((pgt_id,),) = await session.fetch("SELECT pgtrickle._resolve($1::text)", name)
        times = []
        for _ in range(NO_CHANGE_CALLS):
            clock = time.perf_counter()
            async with session.transaction("repeatable_read"):
                how = Scheduled()
                context = await how.ready(session, int(pgt_id))
                outcome = await refresh_scheduled(session, context, Initiator.SCHEDULER, NoSpark(""), how)
            times.append((time.perf_counter() - clock) * 1000)
            assert outcome is None
        await connection.close()
        return times

    def prepare(self, rows: int) -> None:
        """New source tables."""
        self.run(
            "SELECT pgtrickle.drop_stream_table(pgt_name) FROM pgtrickle.pgt_stream_tables;"
            f" DROP MATERIALIZED VIEW IF EXISTS {VIEW};"
            " DROP TABLE IF EXISTS orders, customers; DROP SEQUENCE IF EXISTS new_orders"
        )
        for statement in SOURCES.format(rows=rows, customers=rows // 100).split(";"):
            if statement.strip():
                self.run(statement)

    def create(self, query: str) -> None:
        """The two stream tables, and the view."""
        self.run(f"CREATE MATERIALIZED VIEW {VIEW} AS {query}")
        for name, mode in (("differential", "DIFFERENTIAL"), (FULL, "FULL")):
            self.run("SELECT pgtrickle.create_stream_table(%s, %s, '1d', %s, engine => 'postgres')", name, query, mode)

    def change(self, rows: int, percent: int, offset: int, *, customers: bool) -> None:
        """Change so many percent of the rows."""
        numbers = {
            "offset": offset * 1117,
            "updates": 70 * percent,
            "deletes": 15 * percent,
            "inserts": rows * percent * 15 // 10000,
            "customers": rows // 100,
        }
        self.run(CHANGES.format(**numbers))
        if customers:
            self.run(CUSTOMER_CHANGES.format(offset=offset * 1117, changed=100 * percent))

    def tidy(self, query: str) -> None:
        """What happens between refreshes anyway, and the proof that both are right."""
        for name in ("differential", FULL):
            columns = self.run(
                "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute"
                " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attname !~ '^__pgt_'",
                name,
            ).fetchone()
            assert columns is not None
            stored = f"SELECT {columns[0]} FROM {name}"
            for one, other in ((query, stored), (stored, query)):
                wrong = self.run(f"SELECT count(*) FROM (({one}) EXCEPT ALL ({other})) AS d").fetchone()
                if wrong != (0,):
                    raise SystemExit(f'stream table "{name}" differs from its query')
        self.run("SELECT pgtrickle._cleanup_buffers()")
        for table in ("orders", "customers", "differential", FULL, VIEW):
            self.run(f"VACUUM (ANALYZE) {table}")


def measure(bench: Bench, name: str, rows: int, percents: list[int], rounds: int, step: Any) -> list[Cell]:
    """The cells of one query at one size."""
    cells = []
    for percent in percents:
        bench.prepare(rows)
        bench.create((QUERIES | HARDER)[name])
        times: dict[str, list[float]] = {"differential": [], FULL: [], VIEW: []}
        for n in range(rounds + 1):  # the first one warms up
            bench.change(rows, percent, n, customers=name == "join, both")
            for table in sorted(times, reverse=bool(n % 2)):
                elapsed = bench.refresh(table)
                if n:
                    times[table].append(elapsed)
            bench.tidy((QUERIES | HARDER)[name])
            step()
        cells.append(Cell(*(statistics.median(each) for each in times.values())))
    return cells


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--changed", type=int, nargs="+", default=[1, 10, 50], help="percent")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", choices=QUERIES | HARDER, default=list(QUERIES))
    options = parser.parse_args()

    console = Console()
    table = Table(title="ms: differential / full / materialized view (times faster than these)")
    table.add_column("query")
    table.add_column("rows", justify="right")
    for percent in options.changed:
        table.add_column(f"{percent} % changed", justify="right")
    with (
        served() as server,
        psycopg.connect(server.dsn, autocommit=True) as connection,
        Progress(console=console, transient=True) as progress,
    ):
        bench = Bench(server, connection)
        steps = len(options.only) * len(options.rows) * len(options.changed) * (options.rounds + 1)
        task = progress.add_task("refreshing", total=steps)
        for name in options.only:
            for rows in options.rows:
                cells = measure(bench, name, rows, options.changed, options.rounds, lambda: progress.advance(task))
                table.add_row(name, f"{rows:,}", *map(str, cells))
        idle = {
            "by the scheduler": asyncio.run(bench.looks("differential")),
            "by a client": [bench.refresh("differential") for _ in range(NO_CHANGE_CALLS)],
        }
    console.print(table)
    for who, times in idle.items():
        percentile = sorted(times)[int(len(times) * 0.99)]
        console.print(f"no change, {who}: median {statistics.median(times):.2f} ms, 99 % within {percentile:.2f} ms")


if __name__ == "__main__":
    main()
