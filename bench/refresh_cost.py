"""What a refresh costs beside the work that it is for: CPU time of PostgreSQL and of the server, and the time waited.

    python bench/refresh_cost.py [--calls 300] [--rounds 5] [--against CHECKOUT] [--functions] [--cold]

One stream table, an aggregate over 1 000 rows. A call refreshes it through the server after one row has changed, or
where none has; `create` makes another stream table of a join over empty tables, which is dropped again outside of the
clock, and `view` a materialized view of the same query. CPU time is that of the session's process in PostgreSQL and of
the server's process, by their accounts in /proc, so that it is about the same on a machine that does other things, too.
Each line is the median of the rounds, with the lowest and the highest; of wall time the shortest of all calls is shown.

`--against` starts the server of another checkout beside this one, and has both take turns. `--functions` shows in which
functions of the catalog the time of PostgreSQL passes, each without those that it calls, and how often each is called.

`--cold` measures the first call in a new session beside the second: a new session compiles the functions that it calls
and plans their statements. A round is a new session for each kind of call.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import ROOT, Served, served

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, amount numeric(10, 2) NOT NULL);
INSERT INTO orders SELECT n, n % 100, n % 1000 FROM generate_series(1, 1000) AS n;
CREATE TABLE empty (id int PRIMARY KEY, customer int NOT NULL, amount int NOT NULL, note text);
CREATE TABLE customers (id int PRIMARY KEY, region int NOT NULL, name text NOT NULL);
VACUUM (ANALYZE)
"""
AGGREGATE = "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer"
JOIN = "SELECT o.id, o.amount, c.name, c.region FROM empty o JOIN customers c ON c.id = o.customer WHERE o.id < 0"
REFRESH = "SELECT pgtrickle.refresh_stream_table(%s)"
CREATE = "SELECT pgtrickle.create_stream_table('made', %s, '1d')"


@dataclass(slots=True)
class Cost:
    """What calls have taken, in milliseconds, one entry a round; of `wall` one entry a call."""

    postgres: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def __iter__(self) -> Any:
        yield from (_spread(self.postgres), _spread(self.server))
        yield f"{statistics.median(self.wall):.2f} ms ({min(self.wall):.2f})"


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ms ({min(values):.2f} to {max(values):.2f})"


def cpu_ms(pid: int) -> float:
    """CPU time that the first thread of a process has taken."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def family_ms(pid: int) -> float:
    """The same of all threads of a process."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in Path(f"/proc/{pid}/task").iterdir()) / 1e6


class Measured:
    """A server with a stream table, and a client of it."""

    def __init__(self, server: Served):
        self.server = server
        self.client: psycopg.Connection[Any] = psycopg.connect(server.dsn, autocommit=True)
        self.direct: psycopg.Connection[Any] = psycopg.connect(server.direct, autocommit=True)
        self.direct.execute("ALTER DATABASE postgres SET pg_trickle.enabled = off")
        for statement in TABLES.split(";"):
            self.client.execute(statement)
        self.client.execute("SELECT pgtrickle.create_stream_table('totals', %s, '1d', 'DIFFERENTIAL')", [AGGREGATE])
        ((self.pid,),) = self.client.execute("SELECT pg_backend_pid()").fetchall()
        self.costs: dict[str, Cost] = {}
        self._changed = 0

    def change(self) -> None:
        """One row, past the server."""
        self._changed = self._changed % 1000 + 1
        self.direct.execute("UPDATE orders SET amount = amount + 1 WHERE id = %s", [self._changed], prepare=True)

    def tidy(self) -> None:
        """What happens between refreshes anyway."""
        self.direct.execute("SELECT pgtrickle._cleanup_buffers()")
        self.direct.execute("VACUUM orders, totals")

    def undo(self) -> None:
        """Drop what has been created."""
        if self.direct.execute("SELECT to_regclass('made') IS NOT NULL").fetchone() == (True,):
            self.client.execute("SELECT pgtrickle.drop_stream_table('made')")
        self.client.execute("DROP MATERIALIZED VIEW IF EXISTS made_view")

    def run(self, name: str, work: Callable[[], object], before: Callable[[], object], calls: int) -> None:
        """Measure so many calls. What goes before each is not counted."""
        cost = self.costs.setdefault(name, Cost())
        postgres = server = 0.0
        for _ in range(calls):
            before()
            first = cpu_ms(self.pid), family_ms(self.server.pid)
            clock = time.perf_counter()
            work()
            cost.wall.append((time.perf_counter() - clock) * 1000)
            postgres += cpu_ms(self.pid) - first[0]
            server += family_ms(self.server.pid) - first[1]
        cost.postgres.append(postgres / calls)
        cost.server.append(server / calls)

    def round(self, calls: int, only: list[str]) -> None:
        """One round of all that is measured."""
        refresh = lambda: self.client.execute(REFRESH, ["totals"], prepare=True)  # noqa: E731
        for name, work, before, share in (
            ("one row changed", refresh, self.change, 1),
            ("nothing changed", refresh, lambda: None, 1),
            ("create", lambda: self.client.execute(CREATE, [JOIN]), self.undo, 10),
            ("view", lambda: self.client.execute(f"CREATE MATERIALIZED VIEW made_view AS {JOIN}"), self.undo, 10),
        ):
            if name in only:
                self.tidy()
                self.run(name, work, before, max(3, calls // share))

    def cold_round(self, only: list[str]) -> None:
        """Two calls of each kind in a new session."""
        refresh = lambda: self.client.execute(REFRESH, ["totals"])  # noqa: E731
        for name, work, before in (
            ("one row changed", refresh, self.change),
            ("nothing changed", refresh, lambda: None),
            ("create", lambda: self.client.execute(CREATE, [JOIN]), self.undo),
        ):
            if name in only:
                before()
                self.client.close()
                self.client = psycopg.connect(self.server.dsn, autocommit=True)
                ((self.pid,),) = self.client.execute("SELECT pg_backend_pid()").fetchall()
                self.run(f"{name}, first", work, lambda: None, 1)
                self.run(f"{name}, second", work, before, 1)

    def close(self) -> None:
        self.client.close()
        self.direct.close()


def show_functions(measured: Measured, console: Console, calls: int, only: list[str]) -> None:
    """Where the time of PostgreSQL passes, by functions of the catalog."""
    measured.direct.execute("ALTER SYSTEM SET track_functions = 'all'")
    measured.direct.execute("SELECT pg_reload_conf()")
    time.sleep(1)
    for name in only:
        measured.direct.execute("SELECT pg_stat_reset()")
        measured.round(calls, [name])
        measured.client.execute("SELECT pg_stat_force_next_flush()")
        time.sleep(1)
        table = Table("function", "calls", "self, ms a call of the benchmark", "total", title=name)
        for function, count, own, total in measured.direct.execute(
            "SELECT funcname, calls, self_time, total_time FROM pg_stat_user_functions ORDER BY self_time DESC LIMIT 45"
        ):
            table.add_row(function, f"{count / calls:.2f}", f"{own / calls:.3f}", f"{total / calls:.3f}")
        console.print(table)


def show_costs(servers: dict[Path, Measured], console: Console) -> None:
    """What has been measured of each server, one below the other."""
    table = Table("", "", "PostgreSQL", "server", "wall, median (shortest)")
    for name in next(iter(servers.values())).costs:
        for root, measured in servers.items():
            table.add_row(name, str(root) if len(servers) > 1 else "", *measured.costs[name])
    console.print(table)


def main() -> None:
    """Measure and print."""
    names = ["one row changed", "nothing changed", "create", "view"]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another checkout, whose server takes turns with this one's")
    parser.add_argument("--functions", action="store_true")
    parser.add_argument("--cold", action="store_true", help="the first calls of new sessions")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    options = parser.parse_args()
    console = Console()
    with ExitStack() as stack:
        checkouts = [ROOT, *([options.against] if options.against else [])]
        servers = {root: Measured(stack.enter_context(served(root=root))) for root in checkouts}
        if options.functions:
            show_functions(servers[ROOT], console, options.calls, options.only)
        else:
            for turn in range(options.rounds + 1):
                for measured in servers.values():
                    if turn == 1:  # the first one has warmed up
                        measured.costs = {}
                    if options.cold:
                        measured.cold_round(options.only)
                    else:
                        measured.round(options.calls, options.only)
            show_costs(servers, console)
        for measured in servers.values():
            measured.close()


if __name__ == "__main__":
    main()
