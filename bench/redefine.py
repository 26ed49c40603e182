"""Another query for a stream table: what differs against all rows, and how long readers wait.

    python bench/redefine.py [--rows 1000000] [--rounds 3] [--only NAME ...]

Two stream tables have the first query of a case, and get the second one in turns: one as it is, one with another alias
in it, so that nothing is known of what the two queries have in common and all rows are computed. All the while a client
reads ten rows of the stream table again and again; its longest wait is shown beside the time that the change took. In
parentheses is what the history says, which leaves out the analysis of the query, and its compilation.
Medians of the rounds; after each the stream tables are held against their query, outside of the clock.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import served

SOURCES = """
CREATE TABLE customers (id int PRIMARY KEY, region int NOT NULL, name text NOT NULL);
INSERT INTO customers SELECT n, n % 50, 'customer ' || n FROM generate_series(1, {rows} / 100) AS n;
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, amount int NOT NULL, note text);
INSERT INTO orders SELECT n, 1 + n % ({rows} / 100), n % 1000, 'order ' || n FROM generate_series(1, {rows}) AS n;
VACUUM (ANALYZE) customers; VACUUM (ANALYZE) orders
"""
ROWS = (
    "SELECT {o}.id, {o}.customer, {o}.amount{more} FROM orders AS {o} JOIN customers AS c ON c.id = {o}.customer{where}"
)
TOTALS = (
    "SELECT c.region, sum({o}.amount) AS total{more} FROM orders AS {o}"
    " JOIN customers AS c ON c.id = {o}.customer{where} GROUP BY c.region"
)
JOINED = (", c.id AS customer_id", ", c.id AS customer_id, {o}.note")
CASES: dict[str, tuple[str, tuple[str, str], tuple[str, str]]] = {
    "rows: a column less": (ROWS, (JOINED[1], ""), (JOINED[0], "")),
    "rows: a filter more, 1 % go": (ROWS, (JOINED[0], ""), (JOINED[0], " WHERE {o}.amount >= 10")),
    "rows: a filter less, 1 % come": (ROWS, (JOINED[0], " WHERE {o}.amount >= 10"), (JOINED[0], "")),
    "rows: a filter more, half go": (ROWS, (JOINED[0], ""), (JOINED[0], " WHERE {o}.amount >= 500")),
    "rows: a column more": (ROWS, (JOINED[0], ""), (JOINED[1], "")),
    "rows: a column of another type": (
        ROWS,
        (", c.id AS customer_id, c.name", ""),
        (", c.id AS customer_id, c.region AS name", ""),
    ),
    "totals: a column less": (TOTALS, (", count(*) AS n", ""), ("", "")),
    "totals: a filter more, 1 % go": (TOTALS, ("", ""), ("", " WHERE {o}.amount >= 10")),
    "totals: a filter more, half go": (TOTALS, ("", ""), ("", " WHERE {o}.amount >= 500")),
    "totals: a filter less, 1 % come": (TOTALS, ("", " WHERE {o}.amount >= 10"), ("", "")),
    "totals: a column more": (TOTALS, ("", ""), (", count(*) AS n", "")),
}


@contextmanager
def reading(dsn: str, name: str) -> Iterator[list[float]]:
    """A client reads a stream table in the block; in the end its longest wait, in milliseconds, is in the list."""
    waits, over = [0.0], threading.Event()

    def read() -> None:
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=None) as client:
            while not over.is_set():
                clock = time.perf_counter()
                client.execute(f"SELECT * FROM {name} LIMIT 10")  # type: ignore[arg-type]
                waits[0] = max(waits[0], (time.perf_counter() - clock) * 1000)
                time.sleep(0.002)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


def alter(connection: psycopg.Connection[Any], dsn: str, name: str, query: str) -> tuple[float, float, str, float]:
    """Milliseconds of the change, the longest wait of a reader, what was done, and milliseconds of that alone."""
    with reading(dsn, name) as waits:
        time.sleep(0.05)
        clock = time.perf_counter()
        connection.execute("SELECT pgtrickle.alter_stream_table(%s, query => %s)", [name, query])
        elapsed = (time.perf_counter() - clock) * 1000
    done = connection.execute(
        "SELECT action, extract(epoch FROM end_time - start_time) * 1000"
        " FROM pgtrickle.pgt_refresh_history WHERE pgt_id = pgtrickle._resolve(%s)"
        " ORDER BY refresh_id DESC LIMIT 1",
        [name],
    ).fetchone()
    assert done is not None
    return elapsed, waits[0], str(done[0]), float(done[1])


def check(connection: psycopg.Connection[Any], name: str, query: str) -> None:
    """The stream table equals its query."""
    found = connection.execute(
        "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attname !~ '^__pgt_'",
        [name],
    ).fetchone()
    assert found is not None
    stored = f"SELECT {found[0]} FROM {name}"
    for one, other in ((query, stored), (stored, query)):
        wrong = connection.execute(f"SELECT count(*) FROM (({one}) EXCEPT ALL ({other})) AS d").fetchone()  # type: ignore[arg-type]
        if wrong != (0,):
            raise SystemExit(f'stream table "{name}" differs from its query')


def measure(connection: psycopg.Connection[Any], dsn: str, case: str, rounds: int) -> list[str]:
    """The cells of a row of the table."""
    template, before, after = CASES[case]

    def query(alias: str, parts: tuple[str, str]) -> str:
        more, where = (part.format(o=alias) for part in parts)
        return template.format(o=alias, more=more, where=where)

    seen: dict[str, list[tuple[float, float, str, float]]] = {"differs": [], "everything": []}
    for number in range(rounds):
        for name in sorted(seen, reverse=bool(number % 2)):
            connection.execute(
                "SELECT pgtrickle.create_stream_table(%s, %s, '1d', 'DIFFERENTIAL', engine => 'postgres')",
                [name, query("o", before)],
            )
            connection.execute(f"VACUUM (ANALYZE) {name}")  # type: ignore[arg-type]
            alias = "o" if name == "differs" else "other"
            seen[name].append(alter(connection, dsn, name, query(alias, after)))
            check(connection, name, query("o", after))
            connection.execute("SELECT pgtrickle.drop_stream_table(%s)", [name])
    times, waits, computing = (
        {name: statistics.median(float(each[place]) for each in found) for name, found in seen.items()}
        for place in (0, 1, 3)
    )
    return [
        seen["differs"][0][2],
        f"{times['differs']:.0f} ({computing['differs']:.0f})",
        f"{times['everything']:.0f} ({computing['everything']:.0f})",
        f"{times['everything'] / times['differs']:.1f} ({computing['everything'] / computing['differs']:.1f})",
        f"{waits['differs']:.0f} / {waits['everything']:.0f}",
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()

    table = Table(title=f"another query for a stream table over {options.rows:,} rows, ms")
    for title in (
        "change",
        "action",
        "as it is",
        "all rows",
        "times faster",
        "a reader's longest wait",
    ):
        table.add_column(title, justify="left" if title == "change" else "right")
    with served() as server, psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("ALTER DATABASE postgres SET pg_trickle.enabled = off")
        for statement in SOURCES.format(rows=options.rows).split(";"):
            connection.execute(statement)  # type: ignore[arg-type]
        for case in options.only:
            cells = measure(connection, server.dsn, case, options.rounds)
            print(case, *cells, sep="; ", file=sys.stderr, flush=True)
            table.add_row(case, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
