"""How soon SUBSCRIBE tells, how much, and how fast it tells the past: latency, rows a second, history.

    python bench/subscribe.py [latency] [rates] [history] [--seconds 10] [--rows 300000]

Latency is from a commit's return at the writer to the row at the reader, on an idle database and while pgbench commits
1 000 rows a second beside it. Rates are of one client that reads COPY: the snapshot, and the changes of one large
transaction, of a table and of a join with an aggregate. History is told, without a snapshot, of what four clients have
changed for some time, a row at a time, and compared with the query itself.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import conninfo
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.rates import ENVIRONMENT
from bench.serving import Served, served
from server.postgres.cluster import binaries

LOAD = 1000
"""Rows that pgbench commits in a second while latency is measured under load."""


HISTORIES = {
    "table": "SELECT * FROM past",
    "join": "SELECT id, region, amount FROM past JOIN past_kinds USING (kind)",
    "join, sums of 50 groups": "SELECT region, count(*), sum(amount) FROM past JOIN past_kinds USING (kind) GROUP BY 1",
    "extrema of groups of 100": "SELECT kind, min(amount), max(amount) FROM past GROUP BY 1",
    "medians of groups of 100": "SELECT kind, percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) FROM past GROUP BY 1",
}


class Reader(threading.Thread):
    """Reads COPY (SUBSCRIBE …), and notes when each line of a writer's came."""

    def __init__(self, dsn: str, query: str):
        super().__init__(daemon=True)
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._query = query
        self.arrived: dict[int, float] = {}
        self.lines = 0

    def run(self) -> None:
        rest = b""
        try:
            with self._connection.cursor().copy(f"COPY (SUBSCRIBE {self._query}) TO STDOUT") as copy:
                for block in copy:
                    now = time.perf_counter()
                    *lines, rest = (rest + bytes(block)).split(b"\n")
                    self.lines += len(lines)
                    for line in lines:
                        self.arrived.setdefault(int(line.split(b"\t")[2]), now)
        except psycopg.Error:
            return

    def wait(self, lines: int) -> float:
        """Until so many lines have come; the time then."""
        deadline = time.monotonic() + 120
        while self.lines < lines:
            if time.monotonic() > deadline:
                raise SystemExit(f"only {self.lines} of {lines} rows came")
            time.sleep(0.0005)
        return time.perf_counter()

    def stop(self) -> None:
        self._connection.cancel_safe()
        self.join(30)
        self._connection.close()


@contextmanager
def reading(server: Served, query: str, lines: int) -> Iterator[Reader]:
    """A reader that has its snapshot of so many rows."""
    reader = Reader(server.dsn, query)
    reader.start()
    reader.wait(lines)
    yield reader
    reader.stop()


@contextmanager
def load(server: Served, rows: int) -> Iterator[None]:
    """pgbench through the server."""
    options = conninfo.conninfo_to_dict(server.dsn)
    environment = {name: str(options[option]) for name, option in ENVIRONMENT.items() if option in options}
    script = server.data.parent / "load.sql"
    script.write_text("INSERT INTO events VALUES (-1);\n")
    process = subprocess.Popen(
        [
            str(binaries() / "pgbench"),
            "-n",
            "-M",
            "prepared",
            "-c",
            "4",
            "-T",
            "3600",
            "-R",
            str(rows),
            "-f",
            str(script),
        ],
        env={**environment, "PATH": "/usr/bin:/bin"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(1)
        yield
    finally:
        process.terminate()
        process.wait(30)


def latencies(server: Served, seconds: float) -> list[float]:
    """Milliseconds from a commit's return to the row, for 20 commits a second."""
    with psycopg.connect(server.dsn, autocommit=True) as writer:
        writer.execute("TRUNCATE events")
        writer.execute("INSERT INTO events VALUES (0)")
        with reading(server, "(SELECT n FROM events WHERE n >= 0)", 1) as reader:
            committed = {}
            for n in range(1, int(seconds * 20) + 1):
                writer.execute("INSERT INTO events VALUES (%s)", [n])
                committed[n] = time.perf_counter()
                time.sleep(0.05)
            reader.wait(len(committed) + 1)
            return sorted(max(0.0, (reader.arrived[n] - at) * 1000) for n, at in committed.items())


def measure_latency(server: Served, seconds: float, console: Console) -> None:
    table = Table("database", "commits", "median ms", "99th percentile ms", title="From commit to row")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE events (n bigint)")
    for name, rows in (("idle", 0), (f"{LOAD} rows/s beside it", LOAD)):
        if rows:
            with load(server, rows):
                found = latencies(server, seconds)
        else:
            found = latencies(server, seconds)
        late = found[int(len(found) * 0.99)]
        table.add_row(name, str(len(found)), f"{statistics.median(found):.1f}", f"{late:.1f}")
    console.print(table)


def measure_rates(server: Served, rows: int, console: Console) -> None:
    table = Table("subscription", "rows", "snapshot rows/s", "changes rows/s", title="Rows to one client")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE facts (id bigint PRIMARY KEY, kind int, amount numeric)")
        connection.execute("CREATE TABLE kinds (kind int PRIMARY KEY, name text)")
        connection.execute(f"INSERT INTO kinds SELECT n, 'kind ' || n FROM generate_series(0, {rows} - 1) AS n")
        fill = f"INSERT INTO facts SELECT n + %s, n %% {rows}, n FROM generate_series(0, {rows} - 1) AS n"
        connection.execute(fill, [0])
        connection.execute("ANALYZE facts, kinds")
        joined = (
            "(SELECT k.kind, k.name, count(*), sum(f.amount) FROM facts f JOIN kinds k USING (kind)"
            " GROUP BY k.kind, k.name)"
        )
        for name, query, factor in (("table", "facts", 1), ("join with aggregate", joined, 2)):
            connection.execute("DELETE FROM facts WHERE id >= %s", [rows])
            reader = Reader(server.dsn, query)
            began = time.perf_counter()
            reader.start()
            snapshot = rows / (reader.wait(rows) - began)
            connection.execute(fill, [rows])
            began = time.perf_counter()
            change = factor * rows / (reader.wait(rows + factor * rows) - began)
            reader.stop()
            table.add_row(name, str(rows), f"{snapshot:,.0f}", f"{change:,.0f}")
    console.print(table)


def change(dsn: str, rows: int, seed: int, until: float) -> None:
    """Change rows of `past`, one in each transaction, 200 a second."""
    chance = random.Random(seed)
    with psycopg.connect(dsn, autocommit=True) as connection:
        while time.perf_counter() < until:
            if chance.random() < 0.5:
                added = "INSERT INTO past (kind, amount) VALUES (%s, %s)"
                connection.execute(added, [chance.randrange(rows // 100), chance.randrange(1000)])
            else:
                connection.execute("UPDATE past SET amount = amount + 1 WHERE id = %s", [chance.randint(1, rows)])
            time.sleep(0.005)


def measure_history(server: Served, rows: int, seconds: float, console: Console) -> None:
    title = f"What {seconds:.0f} s have changed in {rows:,} rows"
    table = Table("query", "s to tell", "ms for each timestamp", "ms of the query itself", title=title)
    with psycopg.connect(server.dsn, autocommit=True) as connection, ThreadPoolExecutor(4) as pool:
        connection.execute(
            "CREATE TABLE past (id serial PRIMARY KEY, kind int NOT NULL, amount numeric(9, 2) NOT NULL)"
        )
        connection.execute("CREATE TABLE past_kinds (kind int PRIMARY KEY, region text)")
        connection.execute("CREATE INDEX ON past (kind)")
        kinds = rows // 100
        connection.execute(
            f"INSERT INTO past_kinds SELECT n, 'r' || n %% 50 FROM generate_series(0, {kinds} - 1) n", []
        )
        fill = f"INSERT INTO past (kind, amount) SELECT n %% {kinds}, n %% 977 FROM generate_series(1, {rows}) n"
        connection.execute(fill, [])
        connection.execute("VACUUM ANALYZE past, past_kinds")
        for name in ("past", "past_kinds"):
            connection.execute(f"ALTER TABLE {name} SET (RETAIN HISTORY FOR '1h')")
        while not connection.execute("SELECT bool_and(held_from > 0) FROM pgtrickle.history_status()").fetchall()[0][0]:
            time.sleep(0.1)
        # Somebody listens, so that there is a timestamp every few milliseconds.
        with reading(server, "past", rows):
            begin = int(time.time() * 1000)
            until = time.perf_counter() + seconds
            for done in [pool.submit(change, server.dsn, rows, seed, until) for seed in range(4)]:
                done.result()
        time.sleep(2)
        end = int(time.time() * 1000) - 1000
        timestamps = 0
        for name, query in HISTORIES.items():
            began = time.perf_counter()
            told = connection.execute(
                f"SUBSCRIBE ({query}) WITH (SNAPSHOT = false) AS OF {begin} UP TO {end}"
            ).fetchall()
            took = time.perf_counter() - began
            began = time.perf_counter()
            connection.execute(f"SELECT count(*) FROM ({query} OFFSET 0) AS q")
            once = time.perf_counter() - began
            timestamps = timestamps or len({row[0] for row in told})
            table.add_row(name, f"{took:.1f}", f"{took / timestamps * 1000:.1f}", f"{once * 1000:.0f}")
        table.title = f"{table.title}, at {timestamps} timestamps"
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=["latency", "rates", "history"])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rows", type=int, default=300_000)
    options = parser.parse_args()
    console = Console()
    with served() as server:
        if "latency" in options.parts:
            measure_latency(server, options.seconds, console)
        if "rates" in options.parts:
            measure_rates(server, options.rows, console)
        if "history" in options.parts:
            measure_history(server, options.rows, options.seconds, console)


if __name__ == "__main__":
    main()
