"""How far the mirror is behind: from a commit in PostgreSQL to its changes being readable by Spark.

    python bench/mirror.py [--rows 1000000] [--rate 5000] [--batch 100] [--seconds 30]

A writer updates random rows through the server, in transactions of `batch` rows, `rate` rows a second in all. Another
process reads what the mirror has committed, all the time, as any Delta reader can. What is measured is the time from a
commit's return at the writer to the first look at which a snapshot that sees the transaction is in the mirror. Beside
it: the time of the first copy, and the CPU time of server and PostgreSQL for each changed row.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import psutil
import psycopg
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import served

LOOK_SECONDS = 0.02


def watch(place: str, stop: Event, answers: Any) -> None:
    """Note when each new snapshot was first found in the mirror's log of changes."""
    import json

    from deltalake import DeltaTable

    table = DeltaTable(place)
    seen: list[tuple[float, str]] = []
    version = -1
    while not stop.is_set():
        table.update_incremental()
        if table.version() != version:
            version = table.version()
            for commit in table.history(5):
                if "headwater" in commit:
                    seen.append((time.time(), json.loads(commit["headwater"])["to"]))
                    break
        time.sleep(LOOK_SECONDS)
    answers.put(seen)


def write(dsn: str, rows: int, rate: float, batch: int, seconds: float) -> list[tuple[int, float]]:
    """Transaction ids and when their commits returned."""
    commits = []
    update = (
        "UPDATE items SET amount = amount + 1, note = 'changed' WHERE id IN"
        " (SELECT (random() * %s)::int FROM generate_series(1, %s)) RETURNING pg_current_xact_id()::text"
    )
    with psycopg.connect(dsn, autocommit=True) as connection:
        began = time.time()
        while (now := time.time()) < began + seconds:
            (xid,) = connection.execute(update, [rows - 1, batch]).fetchone() or ("0",)
            commits.append((int(xid), time.time()))
            due = began + len(commits) * batch / rate
            time.sleep(max(0.0, due - now))
    return commits


def cpu(process: psutil.Process) -> float:
    """Seconds of CPU of a process and all below it."""
    total = 0.0
    for each in [process, *process.children(recursive=True)]:
        try:
            times = each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def measure(dsn: str, data: Path, server: psutil.Process, options: argparse.Namespace, console: Console) -> None:
    """Make a mirror, write, watch, print."""
    from engine.session.snapshots import PgSnapshot

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, amount bigint, price numeric(12, 2), note text)")
        connection.execute(
            "INSERT INTO items SELECT i, i %% 1000, i / 100.0, 'item number ' || i FROM generate_series(0, %s) i",
            [options.rows - 1],
        )
        connection.execute("VACUUM ANALYZE items")
        began = time.perf_counter()
        connection.execute(
            "SELECT pgtrickle.create_stream_table('totals', 'SELECT note, sum(amount) AS amount, sum(price) AS price,"
            " count(*) AS n FROM items GROUP BY note', '1h', engine => 'spark')"
        )
        whole = time.perf_counter() - began
        reason = connection.execute("SELECT executor_reason FROM pgtrickle.pgt_refresh_history").fetchone()
        console.print(f"first copy of {options.rows} rows, and a stream table from it: {whole:.1f} s ({reason})")
        oid = connection.execute("SELECT 'items'::regclass::oid::int").fetchone()
        assert oid is not None
        place = data / "mirror" / "postgres" / str(oid[0]) / "changes"
        stop, answers = multiprocessing.Event(), multiprocessing.Queue()  # type: ignore[var-annotated]
        watcher = multiprocessing.Process(target=watch, args=(str(place), stop, answers))
        watcher.start()
        time.sleep(1)
        used = cpu(server)
        commits = write(dsn, options.rows, options.rate, options.batch, options.seconds)
        used = cpu(server) - used
        time.sleep(5)
        stop.set()
        seen = [(when, PgSnapshot.parse(text)) for when, text in answers.get()]
        watcher.join()
        lags, missing = [], 0
        for xid, committed in commits:
            first = next((when for when, snapshot in seen if snapshot.sees(xid)), None)
            if first is None:
                missing += 1
            else:
                lags.append(max(0.0, first - committed))
        if missing:
            raise SystemExit(
                f"{missing} of {len(commits)} transactions were not in the mirror 5 s after the last commit"
            )
        changed = len(commits) * options.batch
        lags.sort()
        console.print(
            f"{changed / options.seconds:.0f} rows changed a second:"
            f" in the mirror {statistics.median(lags):.2f} s (median),"
            f" {lags[int(len(lags) * 0.99)]:.2f} s (99th percentile), {lags[-1]:.2f} s (longest) after the commit;"
            f" {used / changed * 1e6:.0f} µs of CPU for each row, capture included"
        )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rate", type=float, default=5000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    with served(spark="sail") as server:
        measure(server.dsn, server.data, psutil.Process(server.pid), options, Console())


if __name__ == "__main__":
    main()
