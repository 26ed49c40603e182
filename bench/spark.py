"""TPC-H refreshes on Spark, on Sail and in PostgreSQL: how long they take, and what they cost PostgreSQL.

    python bench/spark.py [--scale 1] [--targets sail 'local[*]'] [--rounds 1] [--changed 1 10] [--only q01 ...]
                          [--timeout 300] [--recent] [--no-differential] [--no-full] [--unchecked]
                          [--data DIRECTORY]

Each query defines four stream tables over the same eight tables: FULL and DIFFERENTIAL, each bound to PostgreSQL and to
Spark. A round is changes in all tables (bench/tpch.py; of one order for FULL, of so many percent for each differential
series), then every refresh, timed as a client sees it. The first round on a target fills the stream tables or warms
Spark up; it is told apart. PostgreSQL itself is measured beside the first target.

Of Spark's refreshes the parts are shown apart: extraction (PostgreSQL to the mirror, once for all that read a table),
computation, write-back (Spark to a staging table), and the rest (applying it in PostgreSQL). CPU is that of all of
PostgreSQL's processes while the refresh runs. At the end every stream table is held against its query.

Each refresh is shown as it ends. With `--data` the loaded database and its mirror stay in a directory, where the next
run finds them: so a long measurement can be done in parts (`--no-full`, `--changed`, `--only`).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench.cluster import PARTS, directory_of, last, parts_of, prepare, served  # noqa: E402
from bench.tpch import change, differs, refresh  # noqa: E402
from tests.tpch.database import QUERIES, TABLES, new_sales  # noqa: E402

Connection = psycopg.Connection[Any]

FULL = "full"


@dataclass
class Cost:
    """What the refreshes of one stream table took: milliseconds as a client sees them, PostgreSQL's CPU seconds."""

    elapsed: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)

    @property
    def ms(self) -> float:
        return statistics.median(self.elapsed)

    @property
    def cpu_s(self) -> float:
        return statistics.median(self.cpu)

    def part(self, name: str) -> float:
        return statistics.median(parts[name] for parts in self.parts)


@dataclass
class Results:
    """By series (full, or the percentage changed), query and place."""

    costs: dict[tuple[str, str, str], Cost] = field(default_factory=dict)
    remote_plan: dict[str, str] = field(default_factory=dict)

    def add(self, series: str, query: str, place: str, elapsed: float, cpu: float, parts: dict[str, float]) -> None:
        cost = self.costs.setdefault((series, query, place), Cost())
        cost.elapsed.append(elapsed)
        cost.cpu.append(cpu)
        cost.parts.append(parts)


def postgres_cpu(data: Path) -> Callable[[], float]:
    """A clock of the CPU seconds that all processes of the cluster have used, those that are over too."""
    postmaster = psutil.Process(int((data / "postgres" / "postmaster.pid").read_text().split()[0]))

    def used() -> float:
        own = postmaster.cpu_times()
        total: float = own.user + own.system + own.children_user + own.children_system
        for child in postmaster.children(recursive=True):
            try:
                times = child.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    return used


def change_recent(connection: Connection, scale: float, percent: float, seed: int) -> None:
    """New sales, and updates of as many of the last orders and of their lines: half of the share each."""
    orders = max(1, round(1_500_000 * scale * percent / 100 / 2))
    with connection.transaction():
        for statement in new_sales(orders, seed):
            connection.execute(statement)
    last = f"(SELECT min(k) FROM (SELECT o_orderkey FROM orders ORDER BY 1 DESC LIMIT {2 * orders}) AS newest(k))"
    connection.execute(f"UPDATE orders SET o_totalprice = o_totalprice + 1 WHERE o_orderkey >= {last}")
    connection.execute(f"UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE l_orderkey >= {last}")


class Measuring:
    """Refreshes stream tables and notes what it took."""

    def __init__(self, options: argparse.Namespace, data: Path, results: Results, step: Callable[[str], None]):
        self._options = options
        self._data = data
        self._results = results
        self._step = step
        self._seed = time.time_ns() % 1_000_000

    def changed(self, connection: Connection, percent: float) -> None:
        """Changes in all tables, or of the last orders and their lines, and what PostgreSQL knows of them."""
        self._seed += 1
        (change_recent if self._options.recent else change)(connection, self._options.scale, percent, self._seed)
        for source in TABLES:
            connection.execute(f"ANALYZE {source}")

    def series(self, connection: Connection, series: str, target: str, *, counted: bool, also: bool) -> None:
        """One refresh of every query on the target, and, with `also`, in PostgreSQL."""
        mode = FULL if series in (FULL, "first") else "differential"
        for number, query in enumerate(self._options.only):
            places = [("spark", target), *([("postgres", "PostgreSQL")] if also else [])]
            for engine, place in places if number % 2 else places[::-1]:
                self._refresh(connection, f"{query}_{mode}_{engine}", series, query, place, counted)

    def _refresh(self, connection: Connection, name: str, series: str, query: str, place: str, counted: bool) -> None:
        clock = postgres_cpu(self._data)
        connection.execute(f"SET statement_timeout = {int(self._options.timeout * 1000)}")
        before, began = clock(), time.perf_counter()
        try:
            elapsed = refresh(connection, name)
        except psycopg.Error as error:
            waited = time.perf_counter() - began
            why = f"failed after {waited:.0f} s: {str(error).splitlines()[0]}"
            self._results.remote_plan[f"{name}, {series}"] = why
            self._step(f"{series}: {query} on {place} {why}")
            return
        finally:
            connection.execute("SET statement_timeout = 0")
        cpu = clock() - before
        action, executor, reason = last(connection, name)
        self._step(f"{series}: {query} on {place} {action}, {elapsed:.0f} ms, {cpu:.2f} CPU s of PostgreSQL; {reason}")
        if place != "PostgreSQL" and executor != "spark":
            self._results.remote_plan[f"{name}, {series}, {place}"] = f"{action}: {reason}"
            return
        if "differential" in name and action != "DIFFERENTIAL":
            self._results.remote_plan[f"{name}, {series}, {place}"] = f"{action}: {reason}"
            return
        if counted:
            self._results.add(series, query, place, elapsed, cpu, parts_of(reason or "", elapsed))


def stream_tables(options: argparse.Namespace) -> list[tuple[str, str, str, str]]:
    """Name, query, mode and engine of all stream tables."""
    return [
        (f"{query}_{mode}_{engine}", query, mode, engine)
        for query in options.only
        for mode in modes(options)
        for engine in ("postgres", "spark")
    ]


def modes(options: argparse.Namespace) -> list[str]:
    return [*([] if options.no_full else [FULL]), *([] if options.no_differential else ["differential"])]


def run(options: argparse.Namespace, data: Path, step: Callable[[str], None]) -> Results:
    """Load, then measure on one target after the other."""
    results = Results()
    with served(data, "off", {}) as connection:
        step(f"loading scale {options.scale:g}")
        results.remote_plan |= prepare(connection, options.scale, stream_tables(options))
    measuring = Measuring(options, data, results, step)
    changed = [] if options.no_differential else [f"{percent:g} %" for percent in options.changed]
    all_series = [*([] if options.no_full else [FULL]), *changed]
    for position, target in enumerate(options.targets):
        first = position == 0
        with served(data, target, {}) as connection:
            # A round that does not count: it fills mirror and stream tables, and warms Spark up.
            for mode in modes(options):
                filled = "first" if mode == FULL else "filling"
                measuring.series(connection, filled, target, counted=mode == FULL, also=first)
            for series in all_series:
                for _ in range(options.rounds):
                    measuring.changed(connection, 0.001 if series == FULL else float(series.split()[0]))
                    measuring.series(connection, series, target, counted=True, also=first)
                connection.execute("SELECT pgtrickle._cleanup_buffers()")
            for name in tables(options, first) if not options.unchecked else ():
                step(f"{target}: checking {name}")
                refresh(connection, name)
                if differs(connection, name, QUERIES[name.split("_")[0]]):
                    raise SystemExit(f'stream table "{name}" differs from its query on {target}')
    results.remote_plan = {name: why for name, why in results.remote_plan.items() if ", filling" not in name}
    return results


def tables(options: argparse.Namespace, first: bool) -> Iterator[str]:
    """The stream tables to be held against their queries."""
    for name in options.only:
        for mode in modes(options):
            yield f"{name}_{mode}_spark"
            if first and mode != FULL:
                yield f"{name}_{mode}_postgres"


def report(console: Console, results: Results, options: argparse.Namespace) -> None:
    """For each series a table, and the goals."""
    places = ["PostgreSQL", *options.targets]
    changed = [] if options.no_differential else [f"{percent:g} %" for percent in options.changed]
    for series in [*([] if options.no_full else [FULL]), *changed]:
        title = "FULL" if series == FULL else f"DIFFERENTIAL, {series} changed"
        table = Table(title=f"{title}, scale {options.scale:g}: ms as a client sees them, CPU s of PostgreSQL")
        table.add_column("query")
        for place in places:
            for heading in ("ms", "CPU s", *(PARTS if place != "PostgreSQL" else ())):
                table.add_column(f"{place}\n{heading}", justify="right")
        complete = []
        for query in options.only:
            costs = [results.costs.get((series, query, place)) for place in places]
            if all(costs):
                complete.append(query)
            table.add_row(
                query, *(cell for cost, place in zip(costs, places, strict=True) for cell in cells(cost, place))
            )
        table.add_row(
            f"sum of {len(complete)}",
            *(cell for place in places for cell in cells(total(results, series, complete, place), place)),
            style="bold",
        )
        console.print(table)
        if complete:
            goals(console, results, options, series, complete)
    for target in options.targets:
        queries = [query for query in options.only if ("first", query, target) in results.costs]
        filled = total(results, "first", queries, target)
        if filled is not None:
            console.print(
                f"{target}: the {len(queries)} first refreshes, which copy what is not yet in the mirror, took"
                f" {filled.ms / 1000:.1f} s ({filled.part('extract') / 1000:.1f} s of it extraction) and"
                f" {filled.cpu_s:.1f} s of PostgreSQL's CPU"
            )
    for name, reason in sorted(results.remote_plan.items()):
        console.print(f"not measured: {name}: {reason}", highlight=False, soft_wrap=True)


def cells(cost: Cost | None, place: str) -> list[str]:
    """A place's columns in a row of the table."""
    if cost is None:
        return ["-"] * (2 if place == "PostgreSQL" else 2 + len(PARTS))
    parts = [f"{cost.part(part):.0f}" for part in PARTS] if place != "PostgreSQL" else []
    return [f"{cost.ms:.0f}", f"{cost.cpu_s:.2f}", *parts]


def total(results: Results, series: str, queries: list[str], place: str) -> Cost | None:
    """The sums over some queries."""
    costs = [results.costs[series, query, place] for query in queries]
    if not costs:
        return None
    parts = {part: sum(cost.part(part) for cost in costs) for part in PARTS} if place != "PostgreSQL" else {}
    return Cost([sum(cost.ms for cost in costs)], [sum(cost.cpu_s for cost in costs)], [parts])


def goals(console: Console, results: Results, options: argparse.Namespace, series: str, queries: list[str]) -> None:
    """The goals of the design and what came of them."""
    postgres = total(results, series, queries, "PostgreSQL")
    for target in options.targets:
        there = total(results, series, queries, target)
        assert postgres is not None and there is not None
        faster, share = postgres.ms / there.ms, there.cpu_s / max(postgres.cpu_s, 0.01)
        console.print(
            f"{target}: {faster:.1f} times faster than PostgreSQL in all (computation alone"
            f" {postgres.ms / max(there.part('compute'), 1):.1f} times), with {share:.0%} of its CPU time"
            + (" (goals: Sail at least 3 times faster; at most 10 %)" if series == FULL else "")
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("--targets", nargs="+", default=["sail", "local[*]"])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument(
        "--changed", nargs="+", type=float, default=[1, 10], help="percent, for the differential series"
    )
    parser.add_argument("--only", nargs="+", choices=QUERIES, default=list(QUERIES))
    parser.add_argument("--timeout", type=float, default=300, help="seconds that one refresh may take")
    parser.add_argument("--no-differential", action="store_true", help="FULL only")
    parser.add_argument("--recent", action="store_true", help="change the last orders and their lines only")
    parser.add_argument("--no-full", action="store_true", help="DIFFERENTIAL only")
    parser.add_argument("--data", type=Path, help="a data directory to keep")
    parser.add_argument("--unchecked", action="store_true", help="do not hold the stream tables against their queries")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 220)
    began = time.monotonic()
    with directory_of(options.data) as data:
        results = run(options, data, lambda what: console.print(what, highlight=False, soft_wrap=True))
    report(console, results, options)
    console.print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
