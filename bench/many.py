"""A thousand stream tables over a hundred sources, of which ten change each second.

    python bench/many.py [--tables 1000] [--sources 100] [--seconds 300]

Shown are what the server uses of a core while nothing changes, and while ten sources change each second; the time from
a commit until a stream table over its source shows it (looked at each 20 ms); and the server's memory over time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import Served, served

CHANGES = 10
"""Sources that change each second."""

GRACE = 20.0
"""Seconds after which a change that is not visible is an error."""


@dataclass(slots=True)
class Found:
    """What was measured while sources changed."""

    lags: list[float] = field(default_factory=list)
    """Seconds."""
    memory: list[float] = field(default_factory=list)
    """MB, each second."""
    core: float = 0.0


def prepare(connection: psycopg.Connection[tuple[object, ...]], tables: int, sources: int) -> None:
    """Make the sources and the stream tables."""
    for n in range(sources):
        connection.execute(f"CREATE TABLE source_{n} (id int PRIMARY KEY, n int)")
        connection.execute(f"INSERT INTO source_{n} SELECT i, 0 FROM generate_series(1, 100) i")
    for n in range(tables):
        query = f"SELECT id, n, {n} AS number FROM source_{n % sources}"
        connection.execute("SELECT pgtrickle.create_stream_table(%s, %s, '1s')", [f"st_{n}", query])


def used(server: Served, seconds: float) -> float:
    """What the server uses of a core in the next seconds."""
    process = psutil.Process(server.pid)
    before = sum(process.cpu_times()[:2])
    time.sleep(seconds)
    return (sum(process.cpu_times()[:2]) - before) / seconds


def change(server: Served, tables: int, sources: int, seconds: float) -> Found:
    """Change ten sources each second, and look at one stream table over each."""
    found = Found()
    process = psutil.Process(server.pid)
    before, began = sum(process.cpu_times()[:2]), time.perf_counter()
    pending: dict[int, tuple[int, float]] = {}
    made = 0
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        while (now := time.perf_counter()) < began + seconds or pending:
            if now < began + seconds and made < (now - began) * CHANGES:
                made += 1
                source = made * 7 % sources
                table = (source + sources * (made % (tables // sources))) % tables
                if table not in pending:
                    connection.execute(f"UPDATE source_{source} SET n = %s WHERE id = 1", [made])
                    pending[table] = (made, time.perf_counter())
            for table, (n, since) in tuple(pending.items()):
                row = connection.execute(f"SELECT n FROM st_{table} WHERE id = 1").fetchone()
                now = time.perf_counter()
                if row is not None and int(str(row[0])) >= n:
                    found.lags.append(now - since)
                    del pending[table]
                elif now > since + GRACE:
                    raise SystemExit(f"not visible after {GRACE} s: st_{table}")
            if len(found.memory) < now - began:
                found.memory.append(process.memory_info().rss / 1e6)
            time.sleep(0.02)
    found.core = (sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - began)
    found.lags.sort()
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--sources", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=300)
    options = parser.parse_args()
    with served() as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            prepare(connection, options.tables, options.sources)
        time.sleep(10)  # until what was created is at rest
        print(f"idle: {used(server, 20):.3f} of a core; load {os.getloadavg()[0]:.1f}", flush=True)
        found = change(server, options.tables, options.sources, options.seconds)
    tenth = max(1, len(found.memory) // 10)
    print(
        f"{len(found.lags)} changes seen: lag {statistics.median(found.lags) * 1000:.0f} ms (median),"
        f" {found.lags[int(len(found.lags) * 0.99)] * 1000:.0f} ms (p99); {found.core:.2f} of a core, what relays the"
        f" looks of this program included; memory {statistics.mean(found.memory[:tenth]):.0f} MB in the first tenth,"
        f" {statistics.mean(found.memory[-tenth:]):.0f} MB in the last; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
