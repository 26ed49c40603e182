"""TPC-H refreshes on a standalone Spark cluster of 1 and 2 workers with one core each: what part of them scales.

    python bench/cluster.py [--scale 0.1] [--workers 1 2] [--only q01 ...] [--modes full differential] [--changed 1]
                            [--rounds 1] [--seconds 300] [--data DIRECTORY] [--unchecked] [--json FILE]

The cluster's processes are real and on this machine; so is PostgreSQL, so with fewer cores than processes at work the
second worker has less than a core. Every query is a stream table refreshed in full and one refreshed differentially,
both asked to be computed on Spark; by default a few queries of different kinds. A round is changes in all tables (of
one order where nothing is differential), as in bench/tpch.py, then all refreshes; the first round warms up. Each
refresh is shown as it ends. After `--seconds` with one number of workers no other refresh is begun there, and only
what was measured with all of them is compared.

Shown are medians of what each refresh says of itself: extraction (PostgreSQL to the mirror, once for all that read a
table), computation on Spark, write-back (Spark to a staging table), and the rest (applying it in PostgreSQL). What
PostgreSQL had to compute itself is listed with the reason. At the end every stream table is held against its query.

A table of plans says, by Spark's event log, what the computation consists of: jobs, stages, tasks, bytes read and
shuffled, skew, and what of it does not scale. That is told in two ways: the time without any task (the driver plans,
generates code, schedules) or with the only task of a stage; and Amdahl's serial share by the times with the fewest and
the most workers, which needs as many cores as processes are at work. Beside it stand the peaks of memory: of the
driver's heap, garbage included, of its process, and of the server's process, while the refresh ran.

With `--data` the loaded database stays in a directory, where the next run finds it (one of bench/spark.py as well):
so the numbers of workers can be measured in different runs.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import conninfo
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.spark_work import EventLog, Memory, Peaks, Work, event_log_conf  # noqa: E402
from bench.tpch import change, differs, refresh  # noqa: E402
from tests.spark_servers import StandaloneCluster, conf_options  # noqa: E402
from tests.tpch.database import QUERIES, TABLES, create, load  # noqa: E402

Connection = psycopg.Connection[Any]
MODES = ("full", "differential")
FEW = ("q01", "q03", "q05", "q22")
"""Sums over everything, the first ten groups of a join, a join of six tables, and an anti join."""
PARTS = ("extract", "compute", "load", "apply")
CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
}


@dataclass
class Measured:
    """Milliseconds of a stream table's refreshes with so many workers, by part."""

    parts: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    when: tuple[float, float] = (0.0, 0.0)
    """The last refresh, in milliseconds since the epoch."""
    peaks: Peaks | None = None
    work: Work | None = None

    def median(self, part: str) -> float:
        return statistics.median(self.parts[part])


@contextmanager
def served(data: Path, spark: str, conf: dict[str, str]) -> Iterator[Connection]:
    """A server on the data directory, and a connection through it to a database that nobody refreshes but by hand."""
    command = [sys.executable, "-m", "server", "serve", "--data", str(data), "--port", "0", "--spark", spark]
    with (data.parent / "server.log").open("a") as log:
        process = subprocess.Popen(
            [*command, *conf_options(conf)], stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT
        )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("ready: ")
        user, password = (data / "pgpass").read_text().strip().rsplit(":", 2)[-2:]
        dsn = conninfo.make_conninfo(url, user=user, password=password)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "ALTER DATABASE postgres SET pg_trickle.enabled = off;"
                "ALTER DATABASE postgres SET pg_trickle.spark_min_rows = 0;"
                "ALTER DATABASE postgres SET pg_trickle.differential_max_change_ratio = 1"
            )
        with psycopg.connect(dsn, autocommit=True) as connection:
            yield connection
    finally:
        process.terminate()
        process.wait(120)


def last(connection: Connection, name: str) -> tuple[str, str, str]:
    """Action, executor and reason of the last refresh."""
    row = connection.execute(
        "SELECT action, executor, executor_reason FROM pgtrickle.pgt_refresh_history"
        " WHERE pgt_id = pgtrickle._resolve(%s) ORDER BY refresh_id DESC LIMIT 1",
        [name],
    ).fetchone()
    assert row is not None
    return row[0], row[1], row[2]


def parts_of(reason: str, elapsed: float) -> dict[str, float]:
    """How long each part took, from what the history says of a refresh on Spark."""
    found = {name: float(ms) for name, ms in re.findall(r"(extract|compute|load) (\d+) ms", reason)}
    return found | {"apply": max(0.0, elapsed - sum(found.values()))}


@contextmanager
def directory_of(kept: Path | None) -> Iterator[Path]:
    """The data directory: one that is kept, or one of this run's own. What SIGTERM ends is cleared up after."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as directory:
        data = kept if kept is not None else Path(directory) / "data"
        data.parent.mkdir(parents=True, exist_ok=True)
        yield data


def prepare(connection: Connection, scale: float, tables: Sequence[tuple[str, str, str, str]]) -> dict[str, str]:
    """Load what is not there yet, and make stream tables (name, query, mode, engine); says why some are not there."""
    if not exists(connection, "region"):
        create(connection)
        load(connection, scale)
    missing: dict[str, str] = {}
    for name, query, mode, engine in tables:
        if not exists(connection, name):
            try:
                connection.execute(
                    "SELECT pgtrickle.create_stream_table(%s, %s, '1d', %s, false, engine => %s)",
                    [name, QUERIES[query], mode.upper(), engine],
                )
            except psycopg.Error as error:
                missing[name] = str(error).splitlines()[0]
    return missing


def exists(connection: Connection, name: str) -> bool:
    return connection.execute("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone() == (True,)


class Measuring:
    """The refreshes of one run."""

    def __init__(self, options: argparse.Namespace, console: Console):
        self._options = options
        self._console = console
        self._memory = Memory()
        self._seed = time.time_ns() % 1_000_000
        self.measured: dict[tuple[str, int], Measured] = {}
        self.remote_plan: dict[str, str] = {}

    def run(self, connection: Connection, names: Sequence[str], workers: int) -> None:
        """All rounds on a cluster of so many workers."""
        options = self._options
        until = time.monotonic() + options.seconds
        for n in range(options.rounds + 1):
            self._seed += 1
            change(connection, options.scale, options.changed if "differential" in options.modes else 0, self._seed)
            for source in TABLES:
                connection.execute(f"ANALYZE {source}")
            for name in names:
                if time.monotonic() > until:
                    self._console.print(f"{workers} workers, round {n}: stopped before {name}")
                    return
                self._refresh(connection, name, workers, n)

    def _refresh(self, connection: Connection, name: str, workers: int, n: int) -> None:
        self._memory.reset()
        began = time.time() * 1000
        elapsed = refresh(connection, name)
        when, peaks = (began, time.time() * 1000), self._memory.peaks()
        action, executor, reason = last(connection, name)
        parts = parts_of(reason, elapsed)
        shown = ", ".join(f"{part} {parts.get(part, 0):.0f}" for part in PARTS)
        self._console.print(f"{workers} workers, round {n}: {name} {action} on {executor}, {elapsed:.0f} ms ({shown})")
        if executor != "spark":
            self.remote_plan[name] = f"{action}: {reason}"
        elif n and (action == "DIFFERENTIAL") == name.endswith("differential"):
            found = self.measured.setdefault((name, workers), Measured())
            for part, ms in parts.items():
                found.parts[part].append(ms)
            found.when, found.peaks = when, peaks


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--changed", type=float, default=1, help="percent")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--only", nargs="+", choices=QUERIES, default=list(FEW))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--seconds", type=float, default=300, help="for each number of workers")
    parser.add_argument("--data", type=Path, help="a data directory to keep")
    parser.add_argument("--unchecked", action="store_true", help="do not hold the stream tables against their queries")
    parser.add_argument("--json", type=Path, help="a file for all figures")
    options = parser.parse_args()

    console = Console(width=None if sys.stdout.isatty() else 220)  # nobody wants cut numbers in a file
    measuring = Measuring(options, console)
    tables = [(f"{query}_{mode}", query, mode, "spark") for query in options.only for mode in options.modes]
    with directory_of(options.data) as data, tempfile.TemporaryDirectory(prefix="headwater-cluster-") as directory:
        with served(data, "off", {}) as connection:
            console.print(f"loading scale {options.scale:g}")
            missing = prepare(connection, options.scale, tables)
        names = [name for name, *_ in tables if name not in missing]
        for workers in options.workers:
            work_dir = Path(directory) / f"cluster{workers}"
            work_dir.mkdir()
            cluster = StandaloneCluster(work_dir, workers, memory="2g")
            events = work_dir / "events"
            try:
                with served(data, cluster.url, CONF | event_log_conf(events)) as connection:
                    measuring.run(connection, names, workers)
                    for name in [] if options.unchecked else names:
                        refresh(connection, name)
                        if differs(connection, name, QUERIES[name.split("_")[0]]):
                            raise SystemExit(f'stream table "{name}" differs from its query')
            finally:
                cluster.stop()
            log = EventLog.of(events)
            for (_, n), found in measuring.measured.items():
                if n == workers:
                    found.work = log.work(*found.when)
    report(console, measuring.measured, options)
    plans(console, measuring.measured, options)
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(measuring.measured, options), indent=1))
    for name, reason in sorted((missing | measuring.remote_plan).items()):
        console.print(f"not on Spark: {name}: {reason}", highlight=False, soft_wrap=True)


def report(console: Console, measured: dict[tuple[str, int], Measured], options: argparse.Namespace) -> None:
    """A table for each mode: the parts of every query with each number of workers, and how far computation scales."""
    few, many = options.workers[0], options.workers[-1]
    for mode in options.modes:
        names = [f"{name}_{mode}" for name in options.only if (f"{name}_{mode}", many) in measured]
        names = [name for name in names if (name, few) in measured]
        table = Table(
            title=f"{mode} refreshes at scale {options.scale:g}, {options.changed:g} % changed: milliseconds with"
            f" {' and '.join(str(n) for n in options.workers)} workers of one core"
        )
        table.add_column("query")
        for part in PARTS:
            for workers in options.workers:
                table.add_column(f"{part} {workers}", justify="right")
        table.add_column(f"compute {few}:{many}", justify="right")
        for name in names:
            cells = [f"{measured[name, n].median(part):.0f}" for part in PARTS for n in options.workers]
            ratio = measured[name, few].median("compute") / max(measured[name, many].median("compute"), 1)
            table.add_row(name.split("_")[0], *cells, f"{ratio:.2f}")
        if names:
            sums = {(p, n): sum(measured[x, n].median(p) for x in names) for p in PARTS for n in options.workers}
            cells = [f"{sums[part, n]:.0f}" for part in PARTS for n in options.workers]
            table.add_row("sum", *cells, f"{sums['compute', few] / max(sums['compute', many], 1):.2f}", style="bold")
        console.print(table)


def plans(console: Console, measured: dict[tuple[str, int], Measured], options: argparse.Namespace) -> None:
    """What the last refresh of each stream table consisted of, with each number of workers."""
    few, many = options.workers[0], options.workers[-1]
    table = Table(title=f"plans at scale {options.scale:g}: MB, ms, and what does not scale, in % of the computation")
    headings = ["refresh", "workers", "jobs", "stages", "tasks", "rows read", "shuffle read", "written", "skew"]
    headings += ["CPU ms", "compute", "no task %", "one task %", "Amdahl %", "driver heap", "driver RSS", "server RSS"]
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "refresh" else "right")
    for (name, workers), found in sorted(measured.items()):
        work, peaks, compute = found.work, found.peaks, found.parts["compute"][-1]
        assert work is not None and peaks is not None
        shares = [f"{100 * max(0.0, compute - work.busy_ms) / compute:.0f}", f"{100 * work.single_ms / compute:.0f}"]
        both = measured.get((name, few)), measured.get((name, many))
        serial = (
            amdahl(few, both[0].median("compute"), many, both[1].median("compute"))
            if few != many and both[0] and both[1]
            else None
        )
        shares.append("-" if serial is None or not 0 <= serial <= 1 else f"{100 * serial:.0f}")
        counts = [str(n) for n in (workers, work.jobs, work.stages, work.tasks, work.rows)]
        sizes = [f"{mb:.2f}" for mb in (work.read_mb, work.written_mb)]
        times = [f"{work.skew:.1f}", f"{work.cpu_ms:.0f}", f"{compute:.0f}"]
        memory = [f"{mb:.0f}" for mb in (work.driver_heap_mb, peaks.driver_mb, peaks.server_mb)]
        table.add_row(name, *counts, *sizes, *times, *shares, *memory)
    console.print(table)


def amdahl(few: int, slow: float, many: int, fast: float) -> float:
    """The share of the time with one worker that no worker shortens, from the times with `few` and with `many`.

    The time with n workers is `serial + parallel / n`.

    >>> amdahl(1, 10.0, 2, 6.0)
    0.2
    """
    parallel = (slow - fast) / (1 / few - 1 / many)
    serial = slow - parallel / few
    return serial / (serial + parallel)


def as_json(measured: dict[tuple[str, int], Measured], options: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"refresh": name, "workers": workers, "scale": options.scale, "changed": options.changed}
        | {part: found.parts[part] for part in PARTS}
        | (found.work.as_json() if found.work else {})
        | (asdict(found.peaks) if found.peaks else {})
        for (name, workers), found in sorted(measured.items())
    ]


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s in all")
