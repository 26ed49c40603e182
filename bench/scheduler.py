"""From a commit to the moment when the last stream table of a graph shows it: chains, levels and diamonds.

    python bench/scheduler.py [--changes 50] [--only NAME]

Each shape is measured woken (the commit goes through the server) and scheduled (`pg_trickle.event_driven_wake` is off).
The load is 50 stream tables over one source with 300 commits a second: what the server, all of it, uses of a core, and
what it uses of that for refreshes and the scheduler (the same commits without stream tables are subtracted).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import Served, served

Connection = psycopg.Connection[tuple[object, ...]]
GAPS = (0.05, 0.4)
"""Shortest and longest pause between two changes, seconds."""

LIMIT = 30.0
"""Seconds after which a change that is not visible is an error."""


def create(connection: Connection, name: str, query: str) -> str:
    """Create a stream table with a schedule of one second; returns its name."""
    connection.execute("SELECT pgtrickle.create_stream_table(%s, %s, '1s')", [name, query])
    return name


def one(connection: Connection) -> list[str]:
    """One stream table."""
    return [create(connection, "one", "SELECT id, n FROM source")]


def chain(connection: Connection) -> list[str]:
    """Ten, each of which reads the one before."""
    last = "source"
    for n in range(10):
        last = create(connection, f"chain_{n}", f"SELECT id, n FROM {last}")
    return [last]


def levels(connection: Connection) -> list[str]:
    """Three levels of twenty each."""
    for n in range(20):
        create(connection, f"level_0_{n}", "SELECT id, n FROM source")
        create(connection, f"level_1_{n}", f"SELECT id, n FROM level_0_{n}")
        create(connection, f"level_2_{n}", f"SELECT id, n FROM level_1_{n}")
    return [f"level_2_{n}" for n in range(20)]


def diamond(connection: Connection) -> list[str]:
    """Two that read the same one, and one that joins them."""
    create(connection, "top", "SELECT id, n FROM source")
    create(connection, "left_side", "SELECT id, n FROM top")
    create(connection, "right_side", "SELECT id, n FROM top")
    return [create(connection, "bottom", "SELECT id, l.n FROM left_side l JOIN right_side r USING (id)")]


def atomic(connection: Connection) -> list[str]:
    """The same, where those below the first one are refreshed in one transaction."""
    leaves = diamond(connection)
    connection.execute("SELECT pgtrickle.alter_stream_table('bottom', diamond_consistency => 'atomic')")
    return leaves


SHAPES: dict[str, Callable[[Connection], list[str]]] = {
    "one": one,
    "chain of 10": chain,
    "3 levels of 20": levels,
    "diamond of 4": diamond,
    "atomic diamond of 4": atomic,
}


def latencies(dsn: str, leaves: list[str], changes: int) -> list[float]:
    """Milliseconds from each commit's return until all leaves show it, looked for each millisecond."""
    found = []
    chance = random.Random(1)
    look = " UNION ALL ".join(f"SELECT n FROM {leaf} WHERE id = 1" for leaf in leaves)
    with psycopg.connect(dsn, autocommit=True) as connection:
        for n in range(1, changes + 1):
            connection.execute("UPDATE source SET n = %s WHERE id = 1", [n])
            began = time.perf_counter()
            while any(row != (n,) for row in connection.execute(look, prepare=True).fetchall()):
                if time.perf_counter() > began + LIMIT:
                    raise SystemExit(f"not visible after {LIMIT} s")
                time.sleep(0.001)
            found.append((time.perf_counter() - began) * 1000)
            time.sleep(chance.uniform(*GAPS))
    return sorted(found)


def measure(name: str, changes: int) -> None:
    """Measure one shape in a database of its own, and print."""
    for woken in (True, False):
        with served() as server:
            with psycopg.connect(server.dsn, autocommit=True) as connection:
                connection.execute("CREATE TABLE source (id int PRIMARY KEY, n int)")
                connection.execute("INSERT INTO source SELECT i, 0 FROM generate_series(1, 1000) i")
                leaves = SHAPES[name](connection)
                if not woken:
                    connection.execute("ALTER DATABASE postgres SET pg_trickle.event_driven_wake = 'off'")
            if not woken:
                time.sleep(6)  # until the scheduler's session has the setting
            found = latencies(server.dsn, leaves, changes if woken else max(5, changes // 5))
        how = "woken" if woken else "scheduled"
        print(
            f"{name}, {how}: visible after {statistics.median(found):.1f} ms (median),"
            f" {found[int(len(found) * 0.99)]:.1f} ms (p99) of {len(found)}; load {os.getloadavg()[0]:.1f}",
            flush=True,
        )


def cores(server: Served, seconds: float, rate: int) -> tuple[float, float]:
    """What the server uses of a core, and the commits a second that three clients made, who were to make `rate`."""
    process = psutil.Process(server.pid)
    stop = time.perf_counter() + seconds
    made = [0] * 3

    def write(client: int) -> None:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            due = time.perf_counter()
            while (now := time.perf_counter()) < stop:
                connection.execute("UPDATE source SET n = n + 1 WHERE id = %s", [client * 100 + made[client] % 100 + 1])
                made[client] += 1
                due = max(due + 3 / rate, now - 0.1)
                time.sleep(max(0.0, due - time.perf_counter()))

    before = sum(process.cpu_times()[:2])
    clients = [threading.Thread(target=write, args=[n]) for n in range(3)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return (sum(process.cpu_times()[:2]) - before) / seconds, sum(made) / seconds


def load(seconds: float) -> None:
    """Measure 50 stream tables with 300 commits a second, and print."""
    with served() as server, psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE source (id int PRIMARY KEY, n int)")
        connection.execute("INSERT INTO source SELECT i, 0 FROM generate_series(1, 1000) i")
        relay, _ = cores(server, seconds / 2, 300)
        for n in range(50):
            create(connection, f"loaded_{n}", "SELECT id, n FROM source")
        used, rate = cores(server, seconds, 300)
    print(
        f"50 stream tables, {rate:.0f} commits a second: {used:.2f} of a core, of which {used - relay:.2f} for the"
        f" scheduler and refreshes; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--only", choices=[*SHAPES, "load"])
    options = parser.parse_args()
    for name in SHAPES:
        if options.only in (None, name):
            measure(name, options.changes)
    if options.only in (None, "load"):
        load(10.0)


if __name__ == "__main__":
    main()
