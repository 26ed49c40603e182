"""A refresh on Spark takes no more of the server's and of the driver's memory because its tables are larger."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater
from tests.spark_servers import SMALL, StandaloneCluster, conf_options

pytestmark = pytest.mark.long

FEW, MANY = 500_000, 2_000_000
ROW = 108
"""Bytes of a row in Arrow."""
GROWTH = 120 << 20
"""What the server may take more of for many rows: less than what they take more of as one table of Arrow's."""


SMALL_DRIVER = {
    "spark.pyspark.python": sys.executable,
    "spark.driver.maxResultSize": "2m",
    "spark.sql.autoBroadcastJoinThreshold": "512k",
    "spark.sql.adaptive.autoBroadcastJoinThreshold": "512k",
}
"""A job that brings the driver more than 2 MB, be it to broadcast them, fails."""


class Watch:
    """The most memory of its own that a process has had, sampled."""

    def __init__(self, pid: int):
        self._status = Path(f"/proc/{pid}/status")
        self.most = 0

    def sample(self) -> None:
        for line in self._status.read_text().splitlines():
            if line.startswith("RssAnon:"):
                self.most = max(self.most, int(line.split()[1]) << 10)


@contextmanager
def watched(pid: int) -> Iterator[Watch]:
    watch, ended = Watch(pid), threading.Event()

    def sample() -> None:
        while not ended.wait(0.02):
            watch.sample()

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()
        watch.sample()


def fill(db: Database, rows: int) -> None:
    db.run(
        "TRUNCATE events; INSERT INTO events"
        " SELECT n, n % 1000, md5(n::text) || md5((n + 1)::text) || md5((n + 2)::text)"
        f" FROM generate_series(1, {rows}) AS n; ANALYZE events"
    )


def refreshed(db: Database, server: Headwater, name: str, action: str) -> int:
    """Refresh on Spark; the most memory that the server had."""
    assert server.process is not None
    with watched(server.process.pid) as watch:
        db.run("SELECT pgtrickle.refresh_stream_table(%s)", name)
    row = db.history(name)[-1]
    assert (row["action"], row["executor"]) == (action, "spark"), row["executor_reason"]
    return watch.most


def peaks(db: Database, server: Headwater, rows: int) -> dict[str, int]:
    """The most memory that the server had in refreshes whose results grow with the table: all rows, and all rows anew,
    since those of the groups have changed."""
    fill(db, rows)
    found = {"full": refreshed(db, server, "copied", "FULL")}
    refreshed(db, server, "joined", "FULL")  # after TRUNCATE
    db.run("UPDATE groups SET name = name || '!'")
    found["differential"] = refreshed(db, server, "joined", "DIFFERENTIAL")
    assert db.last("joined") == ("DIFFERENTIAL", 0, rows, 0)
    return found


def prepare(db: Database) -> None:
    db.run(
        "CREATE TABLE events (id int PRIMARY KEY, grp int NOT NULL, note text NOT NULL);"
        "CREATE TABLE groups (id int PRIMARY KEY, name text NOT NULL);"
        "INSERT INTO groups SELECT n, 'group ' || n FROM generate_series(0, 999) AS n;"
        "ALTER DATABASE postgres SET pg_trickle.spark_min_rows = 0;"
        "ALTER DATABASE postgres SET pg_trickle.differential_max_change_ratio = 1;"
        "ALTER DATABASE postgres SET pg_trickle.enabled = off"
    )
    db.create("copied", "SELECT id, grp, note FROM events", schedule="1d", refresh_mode="FULL", engine="spark")
    joined = "SELECT e.id, g.name, e.note FROM events e JOIN groups g ON g.id = e.grp"
    db.create("joined", joined, schedule="1d", refresh_mode="DIFFERENTIAL", engine="spark")


def test_memory_of_the_server_does_not_grow_with_the_table(tmp_path: Path) -> None:
    server = Headwater(tmp_path / "data", "--spark", "sail")
    server.start()
    try:
        db = Database(server, "postgres")
        prepare(db)
        few = peaks(db, server, FEW)
        many = peaks(db, server, MANY)
        db.assert_current("joined")
        assert (MANY - FEW) * ROW > GROWTH
        grown = {kind: many[kind] - few[kind] for kind in many}
        assert all(most <= GROWTH for most in grown.values()), f"{few} bytes, then {many}"
        db.close()
    finally:
        server.stop()


def test_nothing_of_the_table_goes_through_the_driver_where_executors_write(tmp_path: Path) -> None:
    data, cluster = tmp_path / "data", StandaloneCluster(tmp_path)
    url = f"postgresql://postgres@/postgres?host={data / 'socket'}&port=5432&passfile={data / 'pgpass'}"
    options = conf_options(SMALL | SMALL_DRIVER)
    server = Headwater(data, "--spark", cluster.url, "--spark-postgres", url, *options)
    server.start()
    try:
        db = Database(server, "postgres")
        prepare(db)
        fill(db, FEW)
        assert FEW * ROW > 10 * 2 << 20
        db.run("SET pg_trickle.spark_parallel_rows = 1000")
        refreshed(db, server, "copied", "FULL")
        assert "parts, by the executors" in db.history("copied")[-1]["executor_reason"]
        db.assert_current("copied")
        refreshed(db, server, "joined", "FULL")
        db.run("UPDATE events SET note = 'another' WHERE id <= 1000")
        refreshed(db, server, "joined", "DIFFERENTIAL")
        db.assert_current("joined")
        db.run("SET pg_trickle.spark_parallel_rows = 0")
        db.run("UPDATE events SET note = 'one more' WHERE id <= 1000")
        with pytest.raises(psycopg.errors.ExternalRoutineException):  # the limit is one
            db.run("SELECT pgtrickle.refresh_stream_table('copied')")
        db.close()
    finally:
        server.stop()
        cluster.stop()
