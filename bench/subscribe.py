"""What SUBSCRIBE costs and how soon it tells: latency, rows a second, many subscribers.

    python bench/subscribe.py [latency] [rates] [subscribers] [--seconds 10] [--rows 300000] [--subscribers 1 100]

Latency is from a commit's return at the writer to the row at the reader, on an idle database and while pgbench commits
1 000 rows a second beside it. Rates are of one client that reads COPY: the snapshot, and the changes of one large
transaction, of a table and of a join with an aggregate. For subscribers the CPU time of the server's process is
measured, and its memory, while the same number of commits is followed by more and more clients: of one query, and
each of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
from psycopg import conninfo
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.rates import ENVIRONMENT
from bench.serving import Served, served
from server.embedded import binaries

LOAD = 1000
"""Rows that pgbench commits in a second while latency is measured under load."""

COMMITS = 50
"""Commits that are followed while subscribers are counted."""


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


async def follow(server: Served, query: str, number: int, expected: int) -> tuple[float, float]:
    """Server CPU seconds and MB of memory for `COMMITS` commits, each seen by so many subscribers."""
    process = psutil.Process(server.pid)
    begun = process.memory_info().rss
    seen, news = [0] * number, asyncio.Event()

    async def one(place: int) -> None:
        connection = await psycopg.AsyncConnection.connect(server.dsn, autocommit=True)
        async with connection, connection.cursor() as cursor:
            text = query.format(n=place)
            async with cursor.copy(f"COPY (SUBSCRIBE ({text}) WITH (SNAPSHOT = false, PROGRESS)) TO STDOUT") as copy:
                async for block in copy:
                    fields = bytes(block).split(b"\t")
                    seen[place] += fields[1] == b"f" or seen[place] == 0
                    news.set()
                    if seen[place] > expected:
                        return

    async def all_have(count: int) -> None:
        while min(seen) < count:
            news.clear()
            await news.wait()

    readers = [asyncio.create_task(one(place)) for place in range(number)]
    await all_have(1)
    used = process.memory_info().rss - begun
    before = process.cpu_times()
    async with await psycopg.AsyncConnection.connect(server.dsn, autocommit=True) as writer:
        for n in range(expected):
            await writer.execute("INSERT INTO news VALUES (%s)", [n])
            await all_have(n + 2)  # one timestamp each
    after = process.cpu_times()
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return after.user + after.system - before.user - before.system, used / 2**20


def measure_subscribers(server: Served, numbers: list[int], console: Console) -> None:
    table = Table("queries", "subscribers", "server CPU ms per commit", "times that of one", "MB per subscriber")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE news (n int)")
    for name, query in (("one", "SELECT n FROM news"), ("distinct", "SELECT n, {n} AS mine FROM news")):
        alone = 0.0
        for number in numbers:
            cpu, memory = asyncio.run(follow(server, query, number, COMMITS))
            alone = alone or cpu
            each = f"{memory / number:.2f}" if number > 1 else ""
            table.add_row(name, str(number), f"{cpu / COMMITS * 1000:.1f}", f"{cpu / alone:.1f}", each)
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", default=["latency", "rates", "subscribers"])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--subscribers", type=int, nargs="+", default=[1, 10, 50])
    options = parser.parse_args()
    console = Console()
    with served() as server:
        if "latency" in options.parts:
            measure_latency(server, options.seconds, console)
        if "rates" in options.parts:
            measure_rates(server, options.rows, console)
        if "subscribers" in options.parts:
            measure_subscribers(server, options.subscribers, console)


if __name__ == "__main__":
    main()
