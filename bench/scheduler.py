"""How long a commit takes to be visible in the last of several stream tables that read each other.

    python bench/scheduler.py [--commits 40] [--only chain]

`chain` is ten stream tables, each over the one before; `levels` are three levels of twenty; `diamond` is four, two of
which read the first and are read by the last. Each is measured woken by commits (`pg_trickle.event_driven_wake`, the
default) and by schedule alone, with a schedule of one second, all in one run: the time from a commit's return to the
first look that shows it, of commits that come one at a time, when everything is at rest. `storm` is fifty stream tables
over one table that is written to 300 times a second: what the server takes of a core, and how old rows become.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import served

Connection = psycopg.Connection[Any]
CREATE = "SELECT pgtrickle.create_stream_table(%s, %s, '1s')"
STORM_SECONDS = 20.0
STORM_RATE = 300
AGES = "SELECT extract(epoch FROM clock_timestamp() - data_timestamp) * 1000 FROM pgtrickle.pgt_stream_tables"


def chain(connection: Connection) -> list[str]:
    """Ten stream tables, each over the one before; the last one."""
    for n in range(10):
        below = f"c{n - 1}" if n else "events"
        connection.execute(CREATE, [f"c{n}", f"SELECT id, v + 1 AS v FROM {below}"])
    return ["c9"]


def levels(connection: Connection) -> list[str]:
    """Three levels of twenty; the last level."""
    for level in range(3):
        for n in range(20):
            below = f"l{level - 1}_{n}" if level else "events"
            connection.execute(CREATE, [f"l{level}_{n}", f"SELECT id, v + {n} AS v FROM {below}"])
    return [f"l2_{n}" for n in range(20)]


def diamond(connection: Connection) -> list[str]:
    """Two stream tables between a first and a last one; the last one."""
    connection.execute(CREATE, ["a", "SELECT id, v FROM events"])
    connection.execute(CREATE, ["b", "SELECT id, v + 1 AS v FROM a"])
    connection.execute(CREATE, ["c", "SELECT id, v + 2 AS v FROM a"])
    connection.execute(CREATE, ["d", "SELECT b.id, b.v + c.v AS v FROM b JOIN c ON c.id = b.id"])
    return ["d"]


GRAPHS: dict[str, Callable[[Connection], list[str]]] = {"chain": chain, "levels": levels, "diamond": diamond}


def measure(dsn: str, graph: Callable[[Connection], list[str]], *, woken: bool, commits: int) -> list[float]:
    """Milliseconds until each of so many commits was visible in all leaves."""
    found = []
    with psycopg.connect(dsn, autocommit=True) as writer, psycopg.connect(dsn, autocommit=True) as reader:
        database = writer.info.dbname
        state = "on" if woken else "off"
        writer.execute(f"ALTER DATABASE {database} SET pg_trickle.event_driven_wake = {state}".encode())
        writer.execute("CREATE TABLE events (id int PRIMARY KEY, v int)")
        leaves = graph(writer)
        seen = " + ".join(f"(SELECT count(*) FROM {leaf} WHERE id = %(id)s)" for leaf in leaves)
        time.sleep(3)
        for number in range(commits):
            writer.execute("INSERT INTO events VALUES (%s, 0)", [number])
            committed = time.perf_counter()
            while reader.execute(f"SELECT {seen}".encode(), {"id": number}).fetchone() != (len(leaves),):
                time.sleep(0.002)
            found.append((time.perf_counter() - committed) * 1000)
            time.sleep(1.0 if woken else 0.37)
    return found


def storm(dsn: str, pid: int) -> tuple[float, float, float]:
    """Commits a second; the part of a core that the server takes beyond what relaying them takes; age of rows, ms."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE events (id int PRIMARY KEY, v int)")
        relayed = _written(dsn, pid, connection, 0)[1]
        for n in range(50):
            connection.execute(CREATE, [f"s{n}", f"SELECT count(*) AS n FROM events WHERE v >= {n - 50}"])
        rate, taken, ages = _written(dsn, pid, connection, 1_000_000)
        return rate, taken - relayed, statistics.median(ages) if ages else 0.0


def _written(dsn: str, pid: int, connection: Connection, first: int) -> tuple[float, float, list[float]]:
    server = psutil.Process(pid)
    before, began = server.cpu_times(), time.perf_counter()
    done, ages = threading.Event(), list[float]()

    def look() -> None:
        with psycopg.connect(dsn, autocommit=True) as own:
            while not done.wait(0.2):
                ages.extend(float(age) for (age,) in own.execute(AGES).fetchall())

    looking = threading.Thread(target=look)
    looking.start()
    number = 0
    while (passed := time.perf_counter() - began) < STORM_SECONDS:
        connection.execute("INSERT INTO events VALUES (%s, 0)", [first + number])
        number += 1
        time.sleep(max(0.0, number / STORM_RATE - passed))
    after, passed = server.cpu_times(), time.perf_counter() - began
    done.set()
    looking.join()
    return number / passed, (after.user + after.system - before.user - before.system) / passed, ages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=40)
    parser.add_argument("--only", choices=[*GRAPHS, "storm"])
    arguments = parser.parse_args()
    console, table = Console(), Table("graph", "woken p50", "p99", "by schedule p50", "p99", title="commit to leaf, ms")
    for name, graph in GRAPHS.items():
        if arguments.only not in (None, name):
            continue
        cells = []
        for woken in (True, False):
            with served() as server:
                found = sorted(measure(server.dsn, graph, woken=woken, commits=arguments.commits))
            cells += [f"{statistics.median(found):.0f}", f"{found[int(len(found) * 0.99) - 1]:.0f}"]
        table.add_row(name, *cells)
    if table.rows:
        console.print(table)
    if arguments.only in (None, "storm"):
        with served() as server:
            rate, taken, age = storm(server.dsn, server.pid)
        console.print(
            f"storm: {rate:.0f} commits/s, 50 stream tables: {taken:.2f} of a core, rows {age:.0f} ms old (median)"
        )


if __name__ == "__main__":
    main()
