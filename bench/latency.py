"""How long a committed change takes to be visible in a stream table with a schedule of one second.

    python bench/latency.py [--seconds 60] [--schedule 1s] [--tables 1] [--clients 1]

Writers commit rows at random moments through the server; a reader looks at the stream tables all the time. What is
measured is the time from a commit's return at the writer to the first look that shows the row, for every row.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import threading
import time
from pathlib import Path

import psycopg
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import served

GAPS = (0.005, 0.25)
"""Shortest and longest pause of a writer, seconds."""


class Writer(threading.Thread):
    """Commits rows with consecutive numbers, and notes when each commit returned."""

    def __init__(self, dsn: str, number: int, seconds: float):
        super().__init__(daemon=True)
        self._dsn, self.number, self._seconds = dsn, number, seconds
        self.committed: list[float] = []

    def run(self) -> None:
        chance = random.Random(self.number)
        end = time.perf_counter() + self._seconds
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while time.perf_counter() < end:
                connection.execute("INSERT INTO events VALUES (%s, %s)", [self.number, len(self.committed)])
                self.committed.append(time.perf_counter())
                time.sleep(chance.uniform(*GAPS))


def measure(dsn: str, schedule: str, tables: int, clients: int, seconds: float, console: Console) -> list[float]:
    """Latencies in milliseconds, one for each row and stream table."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE events (writer int, number int, PRIMARY KEY (writer, number))")
        for n in range(tables):
            connection.execute(
                "SELECT pgtrickle.create_stream_table(%s, %s, %s)",
                [f"latest_{n}", "SELECT writer, max(number) AS number FROM events GROUP BY writer", schedule],
            )
        writers = [Writer(dsn, number, seconds) for number in range(clients)]
        for writer in writers:
            writer.start()
        seen = [[-1] * clients for _ in range(tables)]
        latencies: list[float] = []
        looks = " UNION ALL ".join(f"SELECT {n}, writer, number FROM latest_{n}" for n in range(tables))
        for _ in track(range(int(seconds) + 5), "writing and looking", console=console, transient=True):
            until = time.perf_counter() + 1
            while (now := time.perf_counter()) < until:
                for table, writer, number in connection.execute(looks, prepare=True).fetchall():
                    arrived = time.perf_counter()
                    for n in range(seen[table][writer] + 1, number + 1):
                        while len(writers[writer].committed) <= n:  # visible before the writer's thread had its turn
                            time.sleep(0.0001)
                        latencies.append(max(0.0, arrived - writers[writer].committed[n]) * 1000)
                    seen[table][writer] = max(seen[table][writer], number)
                time.sleep(max(0.0, now + 0.002 - time.perf_counter()))
        missing = sum(len(w.committed) * tables for w in writers) - len(latencies)
        if missing:
            raise SystemExit(f"{missing} rows were not visible 5 s after the last commit")
        return latencies


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--schedule", default="1s")
    parser.add_argument("--tables", type=int, default=1)
    parser.add_argument("--clients", type=int, default=1)
    options = parser.parse_args()
    console = Console()
    with served() as server:
        found = sorted(measure(server.dsn, options.schedule, options.tables, options.clients, options.seconds, console))
    percentile = found[int(len(found) * 0.99)]
    console.print(
        f"{len(found)} changes, schedule {options.schedule}, {options.tables} stream tables, {options.clients} writers:"
        f" visible after {statistics.median(found):.0f} ms (median), {percentile:.0f} ms (99th percentile),"
        f" {found[-1]:.0f} ms (longest)"
    )


if __name__ == "__main__":
    main()
