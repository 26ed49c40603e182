"""Spark is frozen or killed in the middle of a refresh: the refresh is repeated or PostgreSQL's, never half."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater, alerts
from tests.e2e.spark.test_cluster import QUERY, served
from tests.spark_servers import SMALL, ConnectServer, StandaloneCluster, conf_options, wait_until

pytestmark = pytest.mark.long

DEBUG = ("--log-level", "debug")
JOB = "spark_job "
"""In the server's log, at the beginning of a job."""


def change(db: Database) -> None:
    db.run("UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0")


def prepared(db: Database, **settings: str) -> psycopg.Connection[Any]:
    """A stream table that is refreshed on Spark in full, has been once, and has changes; a session to refresh it."""
    db.run("ALTER DATABASE postgres SET pg_trickle.spark_min_rows = 0")
    session = db.connect()
    session.execute("SET pg_trickle.spark_min_rows = 0")
    for name, value in settings.items():
        session.execute("SELECT set_config(%s, %s, false)", [f"pg_trickle.{name}", value])
    session.execute(
        "SELECT pgtrickle.create_stream_table('totals', %s, schedule => '1h', refresh_mode => 'FULL')", [QUERY]
    )
    assert db.history("totals")[-1]["executor"] == "spark"
    change(db)
    return session


@contextmanager
def refreshing(db: Database, session: psycopg.Connection[Any]) -> Iterator[Future[Any]]:
    """A refresh that is waiting for Spark while the block runs, and has ended after it."""
    watcher = db.bypass()
    jobs = db.server.log.count(JOB)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(session.execute, "SELECT pgtrickle.refresh_stream_table('totals')")
        wait_until(lambda: db.server.log.count(JOB) > jobs, "Spark has been given the job")
        before = watcher.execute("SELECT * FROM totals ORDER BY 1, 2").fetchall()
        assert not future.done()
        yield future
        wait_until(future.done, "the refresh has ended", 180)
        if future.exception() is not None:
            assert watcher.execute("SELECT * FROM totals ORDER BY 1, 2").fetchall() == before


def last_executor(db: Database) -> tuple[str, str]:
    row = db.history("totals")[-1]
    assert row["status"] == "COMPLETED"
    return row["executor"], row["executor_reason"]


def refreshed_on_spark_again(db: Database, session: psycopg.Connection[Any]) -> None:
    """Until it has been started again PostgreSQL refreshes."""

    def refreshed() -> bool:
        change(db)
        session.execute("SELECT pgtrickle.refresh_stream_table('totals')")
        executor, reason = last_executor(db)
        if executor != "spark":
            assert "Spark was lost, and is being started again" in reason
        return executor == "spark"

    wait_until(refreshed, "Spark has been started again", 90)
    db.assert_current("totals")


def stopped(*processes: psutil.Process) -> None:
    for process in processes:
        process.suspend()


def killed(*processes: psutil.Process) -> None:
    for process in processes:
        process.send_signal(signal.SIGKILL)


def jvm_of(server: Headwater) -> psutil.Process:
    assert server.process is not None
    (jvm,) = (
        child
        for child in psutil.Process(server.process.pid).children(recursive=True)
        if any("SparkSubmit" in word for word in child.cmdline())
    )
    return jvm


def test_connect_server_frozen_then_killed_in_the_middle_of_a_refresh(tmp_path: Path) -> None:
    connect = ConnectServer(tmp_path)
    process = psutil.Process(connect.program.process.pid)
    try:
        with served(tmp_path / "data", "--spark", connect.url, *DEBUG) as db:
            session = prepared(db)
            listener = db.bypass()
            listener.execute("LISTEN pg_trickle_alert")

            # Slow: after the time limit PostgreSQL takes over.
            session.execute("SET pg_trickle.spark_timeout = 2")
            stopped(process)
            with refreshing(db, session) as slow:
                pass
            slow.result()
            db.assert_current("totals")
            executor, reason = last_executor(db)
            assert executor == "postgres"
            assert "Spark failed (57014: the job took too long); computed by PostgreSQL instead" in reason
            assert next(alerts(listener, "spark_failed"))["pgt_name"] == "totals"
            process.resume()
            session.execute("RESET pg_trickle.spark_timeout")

            # It has recovered.
            refreshed_on_spark_again(db, session)

            # Killed, and the policy says that the refresh fails.
            session.execute("SET pg_trickle.spark_failure_policy = error")
            change(db)
            stopped(process)
            with refreshing(db, session) as failing:
                killed(process)
            with pytest.raises(psycopg.errors.SystemError, match="Spark was lost in the middle of a job"):
                failing.result()
            connect.stop()

            # Another one on the same port takes its place.
            connect = ConnectServer(tmp_path, connect.port, name="another")
            session.execute("RESET pg_trickle.spark_failure_policy")
            session.execute("SELECT pgtrickle.refresh_stream_table('totals')")
            db.assert_current("totals")
            refreshed_on_spark_again(db, session)
    finally:
        connect.stop()


def test_jvm_killed_in_the_middle_of_a_refresh_is_replaced(tmp_path: Path) -> None:
    with served(tmp_path / "data", "--spark", "local[1]", *conf_options(SMALL), *DEBUG) as db:
        session = prepared(db)
        jvm = jvm_of(db.server)
        session.execute("SET pg_trickle.refresh_engine = spark")
        stopped(jvm)
        with refreshing(db, session) as refresh:
            killed(jvm)
        refresh.result()
        db.assert_current("totals")
        assert last_executor(db)[0] == "spark"
        assert jvm_of(db.server).pid != jvm.pid

        # Where Spark is not insisted on, PostgreSQL does it at once, and what comes while Spark is started again.
        session.execute("RESET pg_trickle.refresh_engine")
        change(db)
        jvm = jvm_of(db.server)
        stopped(jvm)
        with refreshing(db, session) as refresh:
            killed(jvm)
        refresh.result()
        db.assert_current("totals")
        executor, reason = last_executor(db)
        assert executor == "postgres"
        assert "Spark failed (58000: Spark was lost in the middle of a job)" in reason
        change(db)
        session.execute("SELECT pgtrickle.refresh_stream_table('totals')")
        executor, reason = last_executor(db)
        assert executor == "postgres"
        assert "Spark was lost, and is being started again" in reason
        refreshed_on_spark_again(db, session)


def test_worker_killed_in_the_middle_of_a_refresh_is_done_without(tmp_path: Path) -> None:
    cluster = StandaloneCluster(tmp_path)
    try:
        with served(tmp_path / "data", "--spark", cluster.url, *conf_options(SMALL), *DEBUG) as db:
            session = prepared(db)
            victim = cluster.workers[0]
            wait_until(lambda: bool(victim.children()), "the worker has an executor")
            processes = [*victim.children(), psutil.Process(victim.process.pid)]
            stopped(*processes)
            with refreshing(db, session) as refresh:
                killed(*processes)
            refresh.result()
            db.assert_current("totals")
            assert last_executor(db)[0] == "spark"

            # The last worker goes: nobody does the job, until the time limit.
            session.execute("SET pg_trickle.spark_timeout = 3")
            change(db)
            rest = cluster.workers[1]
            killed(*rest.children(), psutil.Process(rest.process.pid))
            session.execute("SELECT pgtrickle.refresh_stream_table('totals')")
            db.assert_current("totals")
            assert last_executor(db)[0] == "postgres"

            # A new worker joins, and gets work.
            session.execute("RESET pg_trickle.spark_timeout")
            cluster.add_worker()
            change(db)
            session.execute("SELECT pgtrickle.refresh_stream_table('totals')")
            db.assert_current("totals")
            assert last_executor(db)[0] == "spark"
    finally:
        cluster.stop()
