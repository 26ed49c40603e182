"""How much is done in a second, and what it costs PostgreSQL: pgbench, and a clock around a client's work."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg
from psycopg import conninfo
from rich.console import Console
from rich.table import Table

from bench.serving import Served
from server.postgres.cluster import binaries

ENVIRONMENT = {
    "PGHOST": "host",
    "PGPORT": "port",
    "PGUSER": "user",
    "PGPASSWORD": "password",
    "PGDATABASE": "dbname",
    "PGOPTIONS": "options",
}


@dataclass(frozen=True, slots=True)
class Work:
    """A script of pgbench's, and the plain one that does the same."""

    name: str
    size: int
    """Rows in one transaction."""
    script: str
    plain: str


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the database."""

    name: str
    dsn: str

    def connect(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.dsn, autocommit=True)


def both_ways(server: Served) -> tuple[Way, Way]:
    """Past the server (Unix socket), and through it (TCP)."""
    return Way("direct", server.direct), Way("server", server.dsn)


def with_commits(way: Way, setting: str) -> Way:
    """The same with this setting of synchronous_commit: whether commits wait for the disk."""
    options = f"-c synchronous_commit={setting}"
    return Way(f"{way.name}, {setting}", conninfo.make_conninfo(way.dsn, options=options))


def postmaster_of(way: Way) -> psutil.Process:
    """PostgreSQL's first process."""
    with way.connect() as connection:
        ((directory,),) = connection.execute("SHOW data_directory").fetchall()
    return psutil.Process(int((Path(str(directory)) / "postmaster.pid").read_text().split()[0]))


def cpu_seconds(postmaster: psutil.Process) -> float:
    """Of PostgreSQL, processes that have ended included."""
    own = postmaster.cpu_times()
    taken = own.user + own.system + own.children_user + own.children_system
    for child in postmaster.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            taken += times.user + times.system
    return taken


def transactions(
    way: Way,
    script: str,
    clients: int,
    seconds: float,
    postmaster: psutil.Process,
    each: int | None = None,
    **variables: str,
) -> tuple[float, float]:
    """Transactions a second of pgbench's script, prepared; and PostgreSQL's CPU seconds for one.

    They last for so many seconds, or until each client has done its number.
    """
    target = conninfo.conninfo_to_dict(way.dsn)
    before, backends = cpu_seconds(postmaster), len(postmaster.children())
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script + ";\n")
        file.flush()
        done = subprocess.run(
            [
                *(str(binaries() / "pgbench"), "-n", "-M", "prepared", "-c", str(clients), "-j", str(clients)),
                *(("-T", str(max(1, round(seconds)))) if each is None else ("-t", str(each))),
                *("-f", file.name),
                *(f"--define={name}={value}" for name, value in variables.items()),
            ],
            env={**os.environ, **{name: str(target[key]) for name, key in ENVIRONMENT.items() if key in target}},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise SystemExit(f"pgbench: {done.stderr}")
    number = re.search(r"transactions actually processed: ([0-9]+)", done.stdout)
    if number and int(number[1]) == 0:  # on a busy machine a large batch can take longer
        return transactions(way, script, clients, seconds * 3, postmaster, each, **variables)
    found = re.search(r"tps = ([0-9.]+) \(without", done.stdout)
    assert found and number, done.stdout
    end = time.monotonic() + 5
    while len(postmaster.children()) > backends and time.monotonic() < end:
        time.sleep(0.005)  # a backend's time is counted once it has ended
    return float(found[1]), (cpu_seconds(postmaster) - before) / int(number[1])


def rate_of(work: Callable[[], int], seconds: float) -> float:
    """What a piece of work gets done in a second, done again and again; the first time does not count."""
    work()
    done, began = 0, time.perf_counter()
    while (taken := time.perf_counter() - began) < seconds:
        done += work()
    return done / taken


def side_by_side(
    title: str,
    works: list[Work],
    ways: tuple[Way, ...],
    rounds: int,
    seconds: float,
    console: Console,
    *,
    clients: tuple[int, ...] = (1, 4),
    plain: str = "plain INSERT",
    **variables: str,
) -> None:
    """Rows a second of each work and of its yardstick, which take turns in each round; and PostgreSQL's CPU time."""
    postmaster = postmaster_of(ways[0])
    rates: dict[tuple[Work, int, Way], tuple[list[float], list[float]]] = {}
    costs: dict[tuple[Work, int, Way], tuple[list[float], list[float]]] = {}
    for _ in range(rounds):
        for work in works:
            for many in clients:
                for way in ways:
                    for yardstick, script in enumerate((work.script, work.plain)):
                        rate, cost = transactions(way, script, many, seconds, postmaster, **variables)
                        rates.setdefault((work, many, way), ([], []))[yardstick].append(rate)
                        costs.setdefault((work, many, way), ([], []))[yardstick].append(cost)
    table = Table(title=title, title_justify="left")
    for heading in ("work", "clients", "way"):
        table.add_column(heading)
    for heading in ("rows/s", plain, "ratio", "CPU a row", f"{plain}, CPU", "ratio"):
        table.add_column(heading, justify="right")
    for (work, many, way), both in rates.items():
        ours, yardstick_rate = (statistics.median(measured) * work.size for measured in both)
        cpu, cpu_yardstick = (min(measured) / work.size * 1e6 for measured in costs[work, many, way])
        table.add_row(
            *(work.name, str(many), way.name, f"{ours:,.0f}", f"{yardstick_rate:,.0f}", f"{ours / yardstick_rate:.2f}"),
            *(f"{cpu:.1f} µs", f"{cpu_yardstick:.1f} µs", f"{cpu_yardstick / cpu:.2f}"),
        )
    console.print(table)
