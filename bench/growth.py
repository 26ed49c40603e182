"""What a refresh costs as the tables grow, for the same number of changed rows: by the change, or by the table.

    python bench/growth.py [--only tpch long wide steady] [--changed 0.1 1] [--rounds 3] [--queries q01 ...]
                           [--scales 0.1 1] [--rows 100000 10000000] [--minutes 5] [--data DIRECTORY]

`tpch`: the 22 TPC-H queries as DIFFERENTIAL stream tables at two scales, each in a database of its own of one server. A
round changes so many percent of the orders and lines of the larger one, as `bench/tpch.py` does, and the same number of
rows in the smaller one; then each stream table is refreshed in both, in turns first, and a materialized view of the
same query at the larger scale. Shown are medians of what a client waits for and of the CPU time that the session's
process in PostgreSQL takes, and by how much the larger table's is more. At the end every stream table is held against
its query. `--data` is a data directory to be kept, in which the next run finds the tables.

`long`: the same for four queries of `bench/refresh.py` over as many rows as `--rows` says, 1 000 of which change.

`wide`: the same over 100 000 rows of 5 and of 200 columns; and what an update of 1 000 rows takes there, bare and
captured.

`steady`: the four queries over 100 000 rows, refreshed by the scheduler, while ten rows change each second for some
minutes. Shown are the memory of the server and of PostgreSQL's sessions, the share of dead rows and the size of what is
written, in the first, the sixth and the last tenth of the time; and when the buffers are empty once nothing changes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.refresh import QUERIES as PLAIN
from bench.refresh import SOURCES
from bench.refresh_cost import cpu_ms
from bench.serving import Served, served
from bench.tpch import Connection, change, differs, quiet, refresh
from tests.tpch.database import QUERIES as TPCH
from tests.tpch.database import create, load

CHANGED = 1000
"""Rows that change in a round, where a number is not asked for."""

LONG = {f"st_{name}".replace(" ", "_"): PLAIN[name] for name in ("filter", "aggregate", "join", "join and aggregate")}
SOME_COLUMNS = {
    "filter": "SELECT id, customer, amount FROM orders WHERE amount >= 500",
    "sums": "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer",
}
ALL_COLUMNS = {"every_column": "SELECT * FROM orders"}


@dataclass(slots=True)
class Times:
    """What refreshes have taken, in milliseconds."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Sized:
    """A database with tables of a size, and a session through the server."""

    label: str
    connection: Connection
    change: Callable[[float, int], None]
    """Change so many percent or rows, others for each seed."""
    times: dict[str, Times] = field(default_factory=dict)

    def refresh(self, name: str) -> None:
        """Refresh a stream table or a materialized view."""
        pid = self.connection.info.backend_pid
        before = cpu_ms(pid)
        wall = refresh(self.connection, name)
        times = self.times.setdefault(name, Times())
        times.wall.append(wall)
        times.cpu.append(cpu_ms(pid) - before)

    def of(self, name: str) -> tuple[float, float]:
        """Medians of what a client waited for and of CPU time, without the first refresh, which warms up."""
        return statistics.median(self.times[name].wall[1:]), statistics.median(self.times[name].cpu[1:])


@contextmanager
def filled(server: Served, database: str, fill: Callable[[Connection], None]) -> Iterator[Connection]:
    """A database of its own, filled unless a former run has done so, without stream tables."""
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_database WHERE datname = %s", [database]).fetchall():
            connection.execute(f"CREATE DATABASE {database}")
    with quiet(server, database) as connection:
        if connection.execute("SELECT to_regclass('filled') IS NULL").fetchone() == (True,):
            fill(connection)
            connection.execute("CREATE TABLE filled ()")
        connection.execute("SELECT pgtrickle.drop_stream_table(pgt_name) FROM pgtrickle.pgt_stream_tables")
        yield connection


def define(connection: Connection, queries: Mapping[str, str], schedule: str = "1d", *, views: bool = False) -> None:
    """The stream tables, and the materialized views."""
    for name, query in queries.items():
        call = "SELECT pgtrickle.create_stream_table(%s, %s, %s, 'DIFFERENTIAL', engine => 'postgres')"
        connection.execute(call, [name, query, schedule])
        connection.execute(f"DROP MATERIALIZED VIEW IF EXISTS {name}_view")
        if views:
            connection.execute(f"CREATE MATERIALIZED VIEW {name}_view AS {query}")


def grow(small: Sized, large: Sized, queries: Mapping[str, str], amount: float, rounds: int) -> None:
    """Change as much in both, and refresh: by turns."""
    seed = round(time.time())  # other rows in each run, where data are kept
    small.times, large.times = {}, {}
    for n in range(rounds + 1):
        for database in (small, large):
            database.change(amount, seed + n)
        for name in queries:
            for database in (large, small) if n % 2 else (small, large):
                database.refresh(name)
            large.refresh(f"{name}_view")
        for database in (small, large):
            database.connection.execute("SELECT pgtrickle._cleanup_buffers()")


def hold(database: Sized, queries: Mapping[str, str]) -> None:
    """Every stream table against its query."""
    for name, query in queries.items():
        if differs(database.connection, name, query):
            raise SystemExit(f'stream table "{name}", {database.label}, differs from its query')


def show(title: str, small: Sized, large: Sized, queries: Sequence[str], console: Console) -> None:
    """One table, and the medians of its ratios."""
    table = Table(title=f"{title}, ms")
    headings = (small.label, "CPU", large.label, "CPU", "view")
    for heading in ("query", *headings, "growth", "of CPU", "times faster than the view"):
        table.add_column(heading, justify="left" if heading == "query" else "right")
    ratios = []
    for name in queries:
        (wall, cpu), (large_wall, large_cpu), (view, _) = small.of(name), large.of(name), large.of(f"{name}_view")
        ratios.append((large_wall / wall, large_cpu / cpu, view / large_wall))
        milliseconds = (f"{each:.1f}" for each in (wall, cpu, large_wall, large_cpu, view))
        table.add_row(name, *milliseconds, *(f"{each:.2f}" for each in ratios[-1]))
    console.print(table)
    growth, cpu_growth, faster = zip(*ratios, strict=True)
    console.print(
        f"growth {statistics.median(growth):.2f}, of CPU {statistics.median(cpu_growth):.2f} (medians);"
        f" more than 1.5 in {sum(each > 1.5 for each in growth)}, {sum(each > 1.5 for each in cpu_growth)}"
        f" of {len(ratios)}; {statistics.median(faster):.1f} times faster than REFRESH MATERIALIZED VIEW (median),"
        f" slower in {sum(each < 1 for each in faster)}"
    )


def grow_tpch(server: Served, options: argparse.Namespace, console: Console) -> None:
    """The 22 queries at both scales."""
    scales = sorted(options.scales)
    queries = {name: TPCH[name] for name in options.queries}

    def fill(connection: Connection, scale: float) -> None:
        create(connection)
        load(connection, scale)

    def change_percent(connection: Connection, scale: float, percent: float, seed: int) -> None:
        change(connection, scale, percent * scales[1] / scale, seed)

    with ExitStack() as stack:
        databases = []
        for scale in scales:
            name = f"tpch_{scale:g}".replace(".", "_")
            connection = stack.enter_context(filled(server, name, partial(fill, scale=scale)))
            define(connection, queries, views=scale == scales[1])
            databases.append(Sized(f"scale {scale:g}", connection, partial(change_percent, connection, scale)))
        for percent in options.changed:
            grow(databases[0], databases[1], queries, percent, options.rounds)
            title = f"As many rows as {percent:g} % of scale {scales[1]:g} changed"
            show(title, databases[0], databases[1], options.queries, console)
        for database in databases:
            hold(database, queries)


def change_orders(connection: Connection, changed: float, seed: int) -> None:
    """Change so many orders, spread evenly: 70 % updates, 15 % deletes, 15 % inserts."""
    number = round(changed)
    ((last, customers),) = connection.execute(
        "SELECT (SELECT max(id) FROM orders), (SELECT max(id) FROM customers)"
    ).fetchall()
    updates, deletes = number * 70 // 100, number * 15 // 100
    chosen = (
        f"SELECT 1 + (n::bigint * {last} / {number} + (hashint4({seed} + n) & 65535)) % {last} FROM generate_series"
    )
    ids = f"{chosen}(1, {updates}) AS n", f"{chosen}({updates + 1}, {updates + deletes}) AS n"
    connection.execute(f"UPDATE orders SET amount = (amount * 7 + 13) % 1000 WHERE id IN ({ids[0]})")
    connection.execute(f"DELETE FROM orders WHERE id IN ({ids[1]})")
    connection.execute(
        "INSERT INTO orders (id, customer, amount)"
        f" SELECT nextval('new_orders'), 1 + (hashint4({seed} + n) & 65535) % {customers}, n % 1000"
        f" FROM generate_series(1, {number - updates - deletes}) AS n"
    )


def fill_orders(connection: Connection, rows: int, more: int = 0) -> None:
    """The tables of `bench/refresh.py`, with so many columns more."""
    for statement in SOURCES.format(rows=rows, customers=rows // 100).split(";"):
        if statement.strip():
            connection.execute(statement)
    if more:
        columns = ", ".join(f"ADD COLUMN c{n} int NOT NULL DEFAULT {n}" for n in range(more))
        connection.execute(f"ALTER TABLE orders {columns}")
        connection.execute("UPDATE orders SET c0 = id")  # so that each row holds all columns
        connection.execute("VACUUM (FULL, ANALYZE) orders")


def grow_rows(server: Served, options: argparse.Namespace, console: Console) -> None:
    """Few and many rows."""
    few, many = sorted(options.rows)
    with (
        filled(server, f"rows_{few}", partial(fill_orders, rows=few)) as one,
        filled(server, f"rows_{many}", partial(fill_orders, rows=many)) as other,
    ):
        small = Sized(f"{few:,} rows", one, partial(change_orders, one))
        large = Sized(f"{many:,} rows", other, partial(change_orders, other))
        define(one, LONG)
        define(other, LONG, views=True)
        grow(small, large, LONG, CHANGED, options.rounds)
        show(f"{CHANGED} rows changed", small, large, list(LONG), console)
        hold(small, LONG)
        hold(large, LONG)


def grow_columns(server: Served, options: argparse.Namespace, console: Console) -> None:
    """Few and many columns."""
    with (
        filled(server, "columns_5", partial(fill_orders, rows=100_000, more=1)) as one,
        filled(server, "columns_200", partial(fill_orders, rows=100_000, more=196)) as other,
    ):
        small = Sized("5 columns", one, partial(change_orders, one))
        large = Sized("200 columns", other, partial(change_orders, other))
        updates = [[_update_ms(database, options.rounds) for database in (small, large)]]
        for queries in (SOME_COLUMNS, ALL_COLUMNS):
            define(one, queries)
            define(other, queries, views=True)
            updates.append([_update_ms(database, options.rounds) for database in (small, large)])
        queries = SOME_COLUMNS | ALL_COLUMNS
        grow(small, large, queries, CHANGED, options.rounds)
        show(f"{CHANGED} rows changed", small, large, list(queries), console)
        for database, (bare, some, every) in zip((small, large), zip(*updates, strict=True), strict=True):
            console.print(
                f"update of {CHANGED} rows, {database.label}: CPU {bare:.1f} ms; where 3 columns are captured"
                f" {some / bare:.2f} times that, where all are {every / bare:.2f}"
            )
        hold(small, queries)
        hold(large, queries)


def _update_ms(database: Sized, rounds: int) -> float:
    """Median CPU milliseconds of an update."""
    times, pid = [], database.connection.info.backend_pid
    for n in range(rounds + 1):
        before = cpu_ms(pid)
        database.connection.execute("UPDATE orders SET amount = amount + 1 WHERE id %% 100 = %s", [n])
        times.append(cpu_ms(pid) - before)
    return statistics.median(times[1:])


@dataclass(frozen=True, slots=True)
class Look:
    """What is used and kept at a moment."""

    server: float
    """MB of the server's processes."""
    sessions: float
    """MB that PostgreSQL's sessions in the database do not share."""
    dead: float
    """The share of dead rows in what has a thousand rows and more."""
    kept: float
    """MB of all tables in the database, with their indexes."""

    def __str__(self) -> str:
        used = f"server {self.server:.0f} MB, sessions {self.sessions:.0f} MB"
        return f"{used}, {self.dead:.0%} dead, kept {self.kept:.0f} MB"


_KEPT = """
SELECT (SELECT coalesce(max(n_dead_tup / (n_live_tup + n_dead_tup)::float8), 0) FROM pg_stat_all_tables
        WHERE n_live_tup >= 1000),
       (SELECT sum(pg_total_relation_size(oid)) / 1e6 FROM pg_class WHERE relkind = 'r')
"""


def look(server: Served, connection: Connection) -> Look:
    """What is used and kept now."""
    program = psutil.Process(server.pid)
    family = [process for process in (program, *program.children(recursive=True)) if "postgres" not in process.name()]
    pids = connection.execute("SELECT pid FROM pg_stat_activity WHERE datname = current_database()").fetchall()
    ((dead, kept),) = connection.execute(_KEPT).fetchall()
    return Look(
        sum(_resident(process) for process in family) / 1e6,
        sum(_unshared(pid) for (pid,) in pids) / 1e6,
        dead,
        float(kept),
    )


def _resident(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _unshared(pid: int) -> float:
    try:
        return float(psutil.Process(pid).memory_full_info().uss)
    except psutil.NoSuchProcess:
        return 0


def unread(connection: Connection) -> int:
    """Rows in the buffers."""
    captured = connection.execute("SELECT source_relid FROM pgtrickle.pgt_captures").fetchall()
    counts = [f"(SELECT count(*) FROM pgtrickle_changes.changes_{oid})" for (oid,) in captured]
    return int(connection.execute(f"SELECT {' + '.join(counts)}").fetchall()[0][0])


def go_on(server: Served, options: argparse.Namespace, console: Console) -> None:
    """Ten changes each second."""
    with filled(server, "steady", partial(fill_orders, rows=100_000)) as connection:
        define(connection, LONG, "1s")
        connection.execute("ALTER DATABASE steady RESET pg_trickle.enabled")
        looks: list[Look] = []
        began, n = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < options.minutes * 60:
            if n < passed * 10:
                n += 1
                change_orders(connection, 1, n)
            elif len(looks) < passed / 2:
                looks.append(look(server, connection))
            else:
                time.sleep(0.01)
        tenth, half = max(1, len(looks) // 10), len(looks) // 2
        console.print(f"{n} changes in {options.minutes:g} minutes, refreshed by the scheduler")
        for when, some in (("first", looks[:tenth]), ("sixth", looks[half : half + tenth]), ("last", looks[-tenth:])):
            means = Look(*(statistics.mean(getattr(each, name) for each in some) for name in Look.__slots__))
            console.print(f"{when} tenth: {means}; dead at most {max(each.dead for each in some):.0%}")
        stopped = time.perf_counter()
        while unread(connection):
            time.sleep(0.1)
        console.print(f"buffers empty {time.perf_counter() - stopped:.1f} s after the last change")
        hold(Sized("steady", connection, partial(change_orders, connection)), LONG)


PARTS = {"tpch": grow_tpch, "long": grow_rows, "wide": grow_columns, "steady": go_on}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--scales", type=float, nargs=2, default=(0.1, 1))
    parser.add_argument("--changed", type=float, nargs="+", default=(0.1, 1), help="percent of the larger scale")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--queries", nargs="+", choices=TPCH, default=list(TPCH), help="of TPC-H")
    parser.add_argument("--rows", type=int, nargs=2, default=(100_000, 10_000_000))
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--data", type=Path, help="a data directory to keep")
    options = parser.parse_args()
    console = Console(width=max(130, Console().width))
    with served(data=options.data) as server:
        for name in options.only:
            PARTS[name](server, options, console)


if __name__ == "__main__":
    main()
