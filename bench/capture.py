"""What change capture costs writers: bulk and single-row insert, update and delete, with and without it.

    python -m bench.capture [--rounds 5] [--rows 100000] [--transactions 1500] [--no-fsync]

Tables of the same shape (five columns, primary key) take turns within each round, so that they meet the same
machine. All columns of one are captured; in "2 of 5" only two are, the key and a number; "from the log" all are, by
the pump, which works on the same machine, and no trigger. Single rows are written by
pgbench with prepared statements, one transaction each, so commit is part of it. Buffers are emptied and both tables
vacuumed between measurements, outside of the clock.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from catalog.install import install
from engine.capture.wal.pump import Pump
from engine.session.pool import PooledSession
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory

COLUMNS = "id int PRIMARY KEY, a int NOT NULL, b text, c numeric, d timestamptz"
ROW = (
    "{key}, {key} % 1000, 'some text of row ' || {key}, {key} * 1.25, "
    "'2026-01-01'::timestamptz + {key} * interval '1 s'"
)
ALL = ["id", "a", "b", "c", "d"]
FROM_LOG = "from the log"
TABLES = {"bare": None, "captured": ALL, "2 of 5": ["id", "a"], FROM_LOG: ALL}
BULK = {
    "insert": "INSERT INTO {table} SELECT " + ROW.format(key="i") + " FROM generate_series(1, {rows}) i",
    "update": "UPDATE {table} SET a = a + 1",
    "delete": "DELETE FROM {table}",
}
SINGLE = {
    "insert": "INSERT INTO {table} VALUES (" + ROW.format(key=":key") + ")",
    "update": "UPDATE {table} SET a = a + 1 WHERE id = :key",
    "delete": "DELETE FROM {table} WHERE id = :key",
}


@dataclass(frozen=True, slots=True)
class Bench:
    """The cluster and the size of the work."""

    cluster: EmbeddedPostgres
    connection: psycopg.Connection[Any]
    rows: int
    transactions: int

    def prepare(self) -> None:
        """Install the catalog, make the tables, and capture all but the bare one."""
        asyncio.run(self._install())
        for name, columns in TABLES.items():
            table = quoted(name)
            self.connection.execute(f"CREATE TABLE {table} ({COLUMNS}) WITH (autovacuum_enabled = off)")
            if columns is None:
                continue
            storage = quoted(f"{name} storage")
            self.connection.execute(f"CREATE TABLE {storage} (__pgt_row_id bigint PRIMARY KEY)")
            definition = {"pgt_relid": self._oid(storage), "defining_query": "-"}
            row = self.connection.execute("SELECT pgtrickle._register(%s)", [json.dumps(definition)]).fetchone()
            assert row is not None
            self.connection.execute(
                "SELECT pgtrickle._track_source(%s, %s::oid, %s)", [row[0], self._oid(table), columns]
            )

    @contextmanager
    def pumping(self) -> Iterator[None]:
        """One of the tables is captured from the write-ahead log."""
        self.connection.execute("SELECT pgtrickle._make_publication()")
        slot = self._value(
            "SELECT slot_name FROM pg_create_logical_replication_slot(pgtrickle._wal_slot(), 'pgoutput')"
        )
        self.connection.execute("SELECT pgtrickle._note_slot()")
        assert self._value("SELECT pgtrickle._take_lease('wal')")
        login = {
            "host": str(self.cluster.socket_dir),
            "port": self.cluster.port,
            "user": self.cluster.user,
            "password": self.cluster.password,
        }
        pump = Pump(login, "postgres", slot, self.connection.info.backend_pid, lambda: None)
        pump.start()
        try:
            reason = self._value("SELECT pgtrickle._begin_wal(%s::oid)", self._oid(quoted(FROM_LOG)))
            assert reason is None, reason
            yield
            assert pump.alive, pump.failure
        finally:
            pump.stop()
            pump.join()

    def _value(self, statement: str, *parameters: Any) -> Any:
        row = self.connection.execute(statement, parameters or None).fetchone()  # type: ignore[arg-type]
        assert row is not None
        return row[0]

    async def _install(self) -> None:
        connection = await asyncpg.connect(
            host=str(self.cluster.socket_dir),
            port=self.cluster.port,
            user=self.cluster.user,
            password=self.cluster.password,
            database="postgres",
        )
        await install(PooledSession(connection))
        await connection.close()

    def _oid(self, table: str) -> int:
        return int(self._value("SELECT %s::regclass::oid::bigint", table))

    def bulk(self, name: str, operation: str) -> float:
        """Seconds for one statement over all rows."""
        self._settle(name)
        statement = BULK[operation].format(table=quoted(name), rows=self.rows)
        begin = time.perf_counter()
        self.connection.execute(statement)
        return time.perf_counter() - begin

    def single(self, name: str, operation: str) -> float:
        """Seconds for one transaction of one row."""
        self._settle(name)
        # pgbench counts the key, so that each transaction is the one statement.
        script = f"\\set key :key + 1\n{SINGLE[operation].format(table=quoted(name))};\n"
        with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
            file.write(script)
            file.flush()
            os.chmod(file.name, 0o644)
            done = subprocess.run(
                [
                    *(str(self.cluster.bin_dir / "pgbench"), "-n", "-M", "prepared", "-D", "key=0"),
                    *("-t", str(self.transactions), "-f", file.name),
                ],
                env={
                    **os.environ,
                    "PGHOST": str(self.cluster.socket_dir),
                    "PGPORT": str(self.cluster.port),
                    "PGUSER": self.cluster.user,
                    "PGPASSWORD": self.cluster.password,
                    "PGDATABASE": "postgres",
                },
                capture_output=True,
                text=True,
                check=True,
            )
        found = re.search(r"latency average = ([0-9.]+) ms", done.stdout)
        assert found is not None, done.stdout + done.stderr
        return float(found.group(1)) / 1000

    def _settle(self, name: str) -> None:
        """Empty the buffer and remove dead rows, so that every measurement starts alike."""
        buffer = f"pgtrickle_changes.changes_{self._oid(quoted(name))}"
        self.connection.execute("SELECT pgtrickle._await_wal(60)")
        if TABLES[name] is not None:
            self.connection.execute(f"TRUNCATE {buffer}")
        self.connection.execute(f"VACUUM {quoted(name)}")
        self.connection.execute("CHECKPOINT")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--transactions", type=int, default=1500)
    parser.add_argument("--no-fsync", action="store_true", help="do not wait for the disk at commit")
    options = parser.parse_args()
    measured: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = DataDirectory(Path(folder) / "data").create()
        settings = {"fsync": "off" if options.no_fsync else "on", "shared_buffers": "256MB", "max_wal_size": "4GB"}
        cluster = EmbeddedPostgres(data, settings)
        cluster.start()
        try:
            with psycopg.connect(cluster.dsn(), autocommit=True) as connection, Progress(transient=True) as progress:
                bench = Bench(cluster, connection, options.rows, options.transactions)
                bench.prepare()
                task = progress.add_task("measuring", total=options.rounds * 2 * len(BULK))
                with bench.pumping():
                    for number in range(options.rounds):
                        measure_round(bench, number, measured, lambda: progress.advance(task))
        finally:
            cluster.stop()
    report(measured, options.rows)


def measure_round(
    bench: Bench, number: int, measured: dict[tuple[str, str], list[float]], advance: Callable[[], None]
) -> None:
    """All that is measured, once; each round begins with another table."""
    names = list(TABLES)[number % len(TABLES) :] + list(TABLES)[: number % len(TABLES)]
    for kind, measure in (("bulk", bench.bulk), ("single row", bench.single)):
        for operation in BULK:
            for name in names:
                measured.setdefault((f"{kind} {operation}", name), []).append(measure(name, operation))
            advance()


def report(measured: dict[tuple[str, str], list[float]], rows: int) -> None:
    table = Table(title=f"median milliseconds, and ratio to bare (bulk: {rows:,} rows)")
    table.add_column("")
    for name in TABLES:
        table.add_column(name, justify="right")
    for case in dict.fromkeys(case for case, _ in measured):
        medians = {name: statistics.median(measured[case, name]) * 1000 for name in TABLES}
        cells = [f"{medians[name]:,.3f} ({medians[name] / medians['bare']:.2f})" for name in TABLES]
        table.add_row(case, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
