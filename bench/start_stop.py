"""How long a server that was used hard takes to start and to stop, phase by phase.

    python bench/start_stop.py [--stream-tables 50] [--changed 1000000] [--rounds 3] [--spark sail] [--data DIR]

A server is filled: sources, stream tables over them and over each other, queues with consumers, registers, retained
histories with subscriptions that follow them. A checkpoint stands for the time that passes after that. Then rows are
changed until so many have been captured, while the scheduler, the consumers and the subscribers go on. The server is
stopped by SIGTERM in the midst of that, started, and stopped again when it has rested; in the last round it is killed
(SIGKILL) under load, and its PostgreSQL with it. Each start is timed to its `ready:` line, each stop to the end of the
process. CPU time is that of the server and all processes it has started: on a machine that others use, too, it is what
to compare.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import psycopg
from psycopg import conninfo
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import ROOT

SOURCES, SOURCE_ROWS = 10, 10_000
QUEUES, CONSUMERS = 10, 3
REGISTERS = 5
HISTORIES = 4
CHANGED_AT_ONCE = 1_000

QUERIES = (
    "SELECT customer, count(*) AS n, sum(amount) AS total FROM s{n} GROUP BY customer",
    "SELECT a.id, a.amount, b.amount AS other FROM s{n} a JOIN s{m} b ON b.id = a.id",
    "SELECT id, amount FROM s{n} WHERE amount > 500",
    "SELECT customer, max(amount) AS highest, min(note) AS first FROM s{n} GROUP BY customer",
    "SELECT n, count(*) AS customers FROM st{below} GROUP BY n",
)
"""Of each kind there is one for each source; the last kind reads a stream table of the first."""


@dataclass(slots=True)
class Phases:
    """One start or stop: seconds from its beginning to the end of each phase, and CPU seconds."""

    what: str
    seconds: float = 0.0
    cpu: float = 0.0
    until: dict[str, float] = field(default_factory=dict)


class Server:
    """`headwater serve` on a data directory, started and ended again and again."""

    def __init__(self, data: Path, spark: str):
        self.data, self._spark = data, spark
        self._log = data.parent / "server.log"
        self._process: subprocess.Popen[str] | None = None
        self.dsn = ""

    def start(self, what: str) -> Phases:
        """Start it, and wait until it is ready."""
        phases, began, logged = Phases(what), time.time(), self._logged()
        command = [sys.executable, "-m", "server", "serve", "--data", str(self.data), "--port", "0"]
        with self._log.open("a") as stderr:
            self._process = subprocess.Popen(
                [*command, "--spark", self._spark], stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT
            )
        assert self._process.stdout is not None
        url = self._process.stdout.readline().strip().removeprefix("ready: ")
        phases.seconds, phases.cpu = time.time() - began, cpu_seconds(self._process.pid)
        if not url:
            raise RuntimeError(self._log.read_text()[-3000:])
        self._note(
            phases,
            began,
            logged,
            {
                "PostgreSQL is launched": "starting PostgreSQL",
                "it is ready": "ready to accept connections",
                "the server knows": "embedded PostgreSQL runs",
            },
        )
        user, password = (self.data / "pgpass").read_text().strip().rsplit(":", 2)[-2:]
        self.dsn = conninfo.make_conninfo(url, user=user, password=password)
        return phases

    def stop(self, what: str, number: signal.Signals = signal.SIGTERM) -> Phases:
        """Send it a signal, and wait until it has ended. SIGKILL is sent to PostgreSQL, too: it has to recover then."""
        assert self._process is not None
        phases, began, logged = Phases(what), time.time(), self._logged()
        before = cpu_seconds(self._process.pid)
        if number == signal.SIGKILL:
            for each in psutil.Process(self._process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    each.kill()
        self._process.send_signal(number)
        _, _, usage = os.wait4(self._process.pid, 0)
        phases.seconds, phases.cpu = time.time() - began, max(usage.ru_utime + usage.ru_stime - before, 0.0)
        self._process.returncode, self._process = 0, None
        self._note(
            phases,
            began,
            logged,
            {
                "it is noticed": "[info     ] stopping",
                "the engine has ended": "received fast shutdown request",
                "the checkpoint begins": "checkpoint starting: shutdown",
                "PostgreSQL has ended": "database system is shut down",
            },
        )
        return phases

    def _files(self) -> list[Path]:
        return [self._log, *self.data.glob("log/postgres-*.log")]

    def _logged(self) -> dict[Path, int]:
        return {file: file.stat().st_size for file in self._files() if file.exists()}

    def _note(self, phases: Phases, began: float, logged: dict[Path, int], ends: dict[str, str]) -> None:
        """Find when each phase ended, by what the server and PostgreSQL have logged since."""
        lines = "".join(file.read_text()[logged.get(file, 0) :] for file in self._files()).splitlines()
        for phase, text in ends.items():
            for line in lines:
                if text in line and (moment := moment_of(line)):
                    phases.until[phase] = moment - began
                    break


def moment_of(line: str) -> float | None:
    """When a line was logged, of the server's log or of PostgreSQL's."""
    line = re.sub(r"\x1b\[[0-9;]*m", "", line)
    found = re.match(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d\.\d+)", line)
    return datetime.fromisoformat(f"{found[1]}T{found[2]:0<15}+00:00").timestamp() if found else None


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, of what it has started, and of what has ended since."""
    total = 0.0
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        for each in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                times = each.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
    return total


def fill(dsn: str, stream_tables: int, console: Console, *, spark: bool) -> None:
    """Make all that a server of some use has."""
    with psycopg.connect(dsn, autocommit=True) as connection:

        def run(statement: str, *parameters: Any) -> None:
            connection.execute(statement, parameters or None)  # type: ignore[arg-type]

        for n in range(SOURCES):
            run(f"CREATE TABLE s{n} (id int PRIMARY KEY, customer int NOT NULL, amount int NOT NULL, note text)")
            run(
                f"INSERT INTO s{n} SELECT i, i % 500, i % 1000, 'note ' || i"
                f" FROM generate_series(1, {SOURCE_ROWS}) AS i"
            )
        run("VACUUM (ANALYZE)")
        for n in range(stream_tables):
            kind, source = divmod(n, SOURCES)
            query = QUERIES[kind % len(QUERIES)].format(n=source, m=(source + 1) % SOURCES, below=source)
            engine = "spark" if spark and kind == 0 and source < 2 else "postgres"
            run("SELECT pgtrickle.create_stream_table(%s, %s, '1s', engine => %s)", f"st{n}", query, engine)
        for n in range(QUEUES):
            run("SELECT pgque.create_queue(%s)", f"queue{n}")
            for m in range(CONSUMERS):
                run("SELECT pgque.subscribe(%s, %s)", f"queue{n}", f"consumer{m}")
        for n in range(REGISTERS):
            run(
                "SELECT accum.register_create(name := %s, dimensions := %s, resources := %s, high_write := %s)",
                f"register{n}",
                '{"account": "int"}',
                '{"amount": "numeric"}',
                n % 2 == 1,
            )
        for n in range(HISTORIES):
            run(f"ALTER TABLE s{n} SET (RETAIN HISTORY FOR '1 hour')")
        run("CHECKPOINT")
    console.print(
        f"filled: {stream_tables} stream tables, {QUEUES} queues, {REGISTERS} registers, {HISTORIES} histories"
    )


class Load:
    """Clients that work until they are told to end, or the server ends."""

    def __init__(self, dsn: str):
        self._dsn, self.changed, self._over = dsn, 0, threading.Event()
        work: list[Callable[[psycopg.Connection[Any]], None]] = [self._change, self._queue, self._post]
        work += [self._follower(n) for n in range(HISTORIES)]
        self._threads = [threading.Thread(target=self._until_over, args=(each,), daemon=True) for each in work]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _until_over(self, work: Callable[[psycopg.Connection[Any]], None]) -> None:
        with suppress(psycopg.OperationalError), psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._over.is_set():
                work(connection)

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        """A thousand rows of a source, an update of each."""
        turn = self.changed // CHANGED_AT_ONCE
        first = (turn // SOURCES * CHANGED_AT_ONCE) % SOURCE_ROWS
        connection.execute(
            f"UPDATE s{turn % SOURCES} SET amount = (amount + 7) %% 1000, customer = (customer + 1) %% 500"  # type: ignore[arg-type]
            " WHERE id > %s AND id <= %s",
            [first, first + CHANGED_AT_ONCE],
        )
        self.changed += CHANGED_AT_ONCE

    def _queue(self, connection: psycopg.Connection[Any]) -> None:
        for n in range(QUEUES):
            connection.execute("SELECT pgque.send_batch(%s, array_fill('event'::text, ARRAY[100]))", [f"queue{n}"])
            for m in range(CONSUMERS):
                connection.execute(
                    "SELECT pgque.ack(batch_id) FROM pgque.receive(%s, %s, 1000) LIMIT 1",
                    [f"queue{n}", f"consumer{m}"],
                )

    def _post(self, connection: psycopg.Connection[Any]) -> None:
        for n in range(REGISTERS):
            connection.execute(
                "SELECT accum.register_post(%s, jsonb_agg(jsonb_build_object('recorder', gen_random_uuid(), 'period',"
                " '2026-01-01', 'account', i, 'amount', 1))) FROM generate_series(1, 50) AS i",
                [f"register{n}"],
            )
        self._over.wait(0.05)

    def _follower(self, n: int) -> Callable[[psycopg.Connection[Any]], None]:
        def follow(connection: psycopg.Connection[Any]) -> None:
            with connection.transaction():
                connection.execute(f"DECLARE follow CURSOR FOR SUBSCRIBE s{n} WITH (PROGRESS)")  # type: ignore[arg-type]
                while not self._over.is_set():
                    connection.execute("FETCH ALL follow WITH (timeout = '1s')").fetchall()

        return follow


@contextmanager
def load(dsn: str) -> Iterator[Load]:
    """Work on a server for the time of the block."""
    working = Load(dsn)
    working.start()
    yield working
    working.end()


def show(measured: list[Phases], console: Console) -> None:
    table = Table(title="Starts and stops, seconds", title_justify="left")
    for heading in ("what", "s", "CPU s", "phases: seconds from the beginning to the end of each"):
        table.add_column(heading, justify="left" if heading[0] in "wp" else "right")
    for each in measured:
        phases = ", ".join(f"{name} {moment:.2f}" for name, moment in sorted(each.until.items(), key=lambda p: p[1]))
        table.add_row(each.what, f"{each.seconds:.2f}", f"{each.cpu:.2f}", phases)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream-tables", type=int, default=50)
    parser.add_argument("--changed", type=int, default=1_000_000, help="rows, before the first stop")
    parser.add_argument("--rounds", type=int, default=3, help="the last one ends with SIGKILL")
    parser.add_argument("--spark", default="off", help="off, or sail: two stream tables are computed there")
    parser.add_argument("--data", type=Path, help="a data directory that is kept, and not filled if it is there")
    options = parser.parse_args()
    console, measured = Console(width=200), list[Phases]()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as directory:
        data = options.data or Path(directory) / "data"
        new = not data.exists()
        data.parent.mkdir(parents=True, exist_ok=True)
        server = Server(data, options.spark)
        try:
            measured.append(server.start("start, of a new directory" if new else "start"))
            if new:
                fill(server.dsn, options.stream_tables, console, spark=options.spark != "off")
            for turn in range(options.rounds):
                last = turn == options.rounds - 1
                with load(server.dsn) as working:
                    while working.changed < (options.changed if turn == 0 else options.changed // 10):
                        time.sleep(0.5)
                    console.print(f"round {turn + 1}: {working.changed:,} rows changed")
                    number = signal.SIGKILL if last else signal.SIGTERM
                    measured.append(server.stop(f"{number.name} under load", number))
                measured.append(server.start("start after kill -9" if last else "start after a stop under load"))
                time.sleep(10)
                measured.append(server.stop("SIGTERM at rest"))
                measured.append(server.start("start after a stop at rest"))
        finally:
            with suppress(AssertionError):
                server.stop("the end")
            show(measured, console)


if __name__ == "__main__":
    main()
