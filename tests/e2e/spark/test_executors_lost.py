"""Executors are killed, or do a task twice, in the middle of a refresh: its result has every row once."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from engine.mirror.mirror import Mirror
from engine.spark.backends import rows_of
from engine.spark.executor import SparkExecutor
from engine.spark.job import SparkJob
from engine.spark.sessions import SparkSessions
from sql import Column
from sql.spark.render import SparkQuery
from sql.spark.stages import SparkView
from tests.e2e.conftest import Database
from tests.e2e.spark.test_cluster import free_port, jobs_of, served
from tests.spark_servers import SMALL, StandaloneCluster, conf_options, wait_until

pytestmark = pytest.mark.long

TWICE = {
    "spark.pyspark.python": sys.executable,
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.eventLog.rolling.enabled": "false",
}
LIKE = """
SELECT quote_ident(relname) FROM pg_class
WHERE relnamespace = 'pgtrickle_staging'::regnamespace AND relkind = 'r' AND relname LIKE '%%\\_like'
"""
PARTS = """
SELECT count(*) FROM pg_class
WHERE relnamespace = 'pgtrickle_staging'::regnamespace AND relkind = 'r' AND relname NOT LIKE '%%\\_like'
"""
WRITERS = (
    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'headwater on spark' AND wait_event_type = 'Lock'"
)
GROUPS = """
SELECT c.region, count(*) AS orders, sum(o.amount) AS total, max(o.made) AS latest
FROM orders o JOIN customers c ON c.id = o.customer GROUP BY 1
"""
QUERY = "SELECT DISTINCT id, customer, amount, made FROM orders"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCluster]:
    """Two workers of one core."""
    cluster = StandaloneCluster(tmp_path)
    yield cluster
    cluster.stop()


def executors(cluster: StandaloneCluster) -> list[psutil.Process]:
    """The JVM of each worker's executor."""
    wait_until(lambda: all(worker.children() for worker in cluster.workers), "each worker has an executor")
    return [worker.children()[0] for worker in cluster.workers]


async def test_job_is_repeated_if_rows_that_it_had_kept_are_lost_with_an_executor(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    sessions = SparkSessions(cluster.url, tmp_path / "spark", options=SMALL)
    columns = (Column("c0", "bigint"), Column("c1", "bigint"))
    kept = SparkView("kept", "SELECT id, id % 7 AS g FROM range(0, 1000, 1, 8)", True)
    queries = ("SELECT count(*) AS c0, sum(id) AS c1 FROM kept", "SELECT g AS c0, sum(id) AS c1 FROM kept GROUP BY g")
    job = SparkJob(tuple(SparkQuery(query, {}, columns) for query in queries), {}, (kept,))
    collected: list[int] = []

    def collect(number: int, query: SparkQuery, frame: Any) -> pa.Table:
        rows = rows_of(frame)
        collected.append(number)
        if collected == [0]:
            for process in executors(cluster):
                process.send_signal(signal.SIGKILL)
                process.wait(30)
        return rows

    try:
        executor = SparkExecutor(sessions, Mirror(tmp_path / "mirror"))
        whole, groups = await executor.compute(job, {}, [], description="test", collect=collect)
        assert collected == [0, 0, 1], "it has been done again, as a whole"
        assert whole.to_pydict() == {"c0": [1000], "c1": [499_500]}
        assert sorted(zip(*groups.to_pydict().values(), strict=True)) == [(g, sum(range(g, 1000, 7))) for g in range(7)]
    finally:
        await sessions.stop()


def refresh_with(db: Database, disturb: Callable[[], Any]) -> None:
    """A refresh whose executors are about to write their parts, both of them, when `disturb` is called."""
    session, blocker, watcher = db.connect(), db.bypass(autocommit=False), db.bypass()
    session.execute("SET pg_trickle.spark_parallel_rows = 1000")
    with ThreadPoolExecutor(1) as pool:
        refresh = pool.submit(session.execute, "SELECT pgtrickle.refresh_stream_table('copied')")
        wait_until(lambda: bool(watcher.execute(LIKE).fetchall()) or refresh.done(), "an area has been opened")
        for (name,) in blocker.execute(LIKE).fetchall():
            blocker.execute(f"LOCK TABLE pgtrickle_staging.{name} IN ACCESS EXCLUSIVE MODE")
        wait_until(lambda: watcher.execute(WRITERS).fetchall() == [(2,)] or refresh.done(), "both executors write")
        assert not refresh.done(), refresh.exception()
        disturb()
        blocker.rollback()
        refresh.result(300)


def change(db: Database) -> None:
    db.run("UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0")


def assert_written_by_executors(db: Database) -> None:
    """The last refresh was, and the stream table has every row once."""
    row = db.history("copied")[-1]
    assert (row["status"], row["executor"]) == ("COMPLETED", "spark")
    assert "parts, by the executors" in row["executor_reason"]
    db.assert_current("copied")
    wait_until(lambda: db.bypass().execute(PARTS).fetchall() == [(0,)], "no part is left")


def attempts(events: Path) -> list[dict[str, Any]]:
    """What Spark says of all attempts at tasks of applications that have ended."""
    lines = [json.loads(line) for file in events.iterdir() for line in file.read_text().splitlines()]
    return [line for line in lines if line["Event"] == "SparkListenerTaskEnd"]


def test_parts_that_are_written_twice_or_by_an_executor_that_dies_are_in_the_result_once(
    cluster: StandaloneCluster, tmp_path: Path
) -> None:
    data, events = tmp_path / "data", tmp_path / "events"
    events.mkdir()
    url = f"postgresql://postgres@/postgres?host={data / 'socket'}&port=5432&passfile={data / 'pgpass'}"
    conf = conf_options(SMALL | TWICE | {"spark.eventLog.dir": events.as_uri()})
    with served(data, "--spark", cluster.url, "--spark-postgres", url, *conf) as db:
        db.run("ALTER DATABASE postgres SET pg_trickle.spark_parallel_rows = 1000; ANALYZE orders")
        session = db.connect()
        session.execute("SET pg_trickle.spark_parallel_rows = 1000")
        session.execute("SELECT pgtrickle.create_stream_table('copied', %s, '1h', 'FULL', engine => 'spark')", [QUERY])
        assert_written_by_executors(db)

        # What writes for one executor stands still: the other one writes the same part, too.
        slow = executors(cluster)[0].children(recursive=True)
        change(db)
        refresh_with(db, lambda: [process.suspend() for process in slow])
        assert_written_by_executors(db)
        for process in slow:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        change(db)
        session.execute("SELECT pgtrickle.refresh_stream_table('copied')")
        assert_written_by_executors(db)

        # One executor is killed while it writes.
        change(db)
        refresh_with(db, executors(cluster)[0].kill)
        assert_written_by_executors(db)
    found = attempts(events)
    assert any(attempt["Task Info"]["Speculative"] for attempt in found)
    assert any(attempt["Task End Reason"]["Reason"] == "ExecutorLostFailure" for attempt in found)


def test_executor_killed_in_the_middle_of_a_differential_refresh(cluster: StandaloneCluster, tmp_path: Path) -> None:
    port = free_port()
    conf = SMALL | {"spark.ui.enabled": "true", "spark.ui.port": str(port)}
    with served(tmp_path / "data", "--spark", cluster.url, *conf_options(conf)) as db:
        session = db.connect()
        session.execute("SET pg_trickle.differential_max_change_ratio = 1")
        session.execute(
            "SELECT pgtrickle.create_stream_table('totals', %s, '1h', 'DIFFERENTIAL', engine => 'spark')", [GROUPS]
        )
        for _ in range(3):
            change(db)
            db.run("UPDATE customers SET region = 'region ' || id % 11 WHERE id % 4 = 0")
            (victim, _), jobs = executors(cluster), len(jobs_of(port))
            with ThreadPoolExecutor(1) as pool:
                refresh = pool.submit(session.execute, "SELECT pgtrickle.refresh_stream_table('totals')")
                while len(jobs_of(port)) < jobs + 3:
                    assert not refresh.done(), "the refresh was over before its executor could be killed"
                victim.kill()
                refresh.result(300)
            row = db.history("totals")[-1]
            assert (row["action"], row["executor"], row["status"]) == ("DIFFERENTIAL", "spark", "COMPLETED")
            db.assert_current("totals")
