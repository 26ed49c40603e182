"""Refreshes on Spark servers of their own: a standalone cluster and a Spark Connect server, as real processes."""

from __future__ import annotations

import json
import socket
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Database, Headwater
from tests.spark_servers import SMALL, ConnectServer, StandaloneCluster, conf_options

pytestmark = pytest.mark.long

SOURCES = """
CREATE TABLE customers (id int PRIMARY KEY, region text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, amount numeric(10, 2), made date NOT NULL);
INSERT INTO customers SELECT n, 'region ' || n % 7 FROM generate_series(1, 500) AS n;
INSERT INTO orders SELECT n, 1 + n % 500, nullif(n % 977, 5) / 4.0, date '2020-01-01' + n % 1000
FROM generate_series(1, 20000) AS n
"""
QUERY = """
SELECT c.region, extract(year FROM o.made) AS year, count(*) AS orders, sum(o.amount) AS total, max(o.made) AS latest
FROM orders o JOIN customers c ON c.id = o.customer WHERE o.amount > 1 GROUP BY 1, 2
"""


@contextmanager
def served(data: Path, *options: str) -> Iterator[Database]:
    """A database behind a server with these options, with the sources."""
    server = Headwater(data, *options)
    server.start()
    database = Database(server, "postgres")
    try:
        database.run(SOURCES)
        yield database
    finally:
        database.close()
        server.stop()


def refreshed_on_spark(db: Database) -> None:
    """A stream table is populated and refreshed in full on Spark, after changes."""
    db.create("totals", QUERY, schedule="1h", refresh_mode="FULL", engine="spark")
    db.assert_current("totals")
    db.run("DELETE FROM orders WHERE id % 3 = 0; UPDATE customers SET region = 'north' WHERE id % 5 = 0")
    db.assert_refreshed("totals")
    assert [(row["action"], row["executor"]) for row in db.history("totals")] == [("FULL", "spark")] * 2


def written_by_executors(db: Database) -> None:
    """A large result is written by the executors themselves."""
    db.run("ALTER DATABASE postgres SET pg_trickle.spark_parallel_rows = 1000; ANALYZE orders")
    session = db.connect()
    session.execute("SET pg_trickle.spark_parallel_rows = 1000")
    query = "SELECT id, customer, amount, made FROM orders"
    session.execute("SELECT pgtrickle.create_stream_table('copied', %s, '1h', 'FULL', engine => 'spark')", [query])
    db.assert_current("copied")
    assert "parts, by the executors" in db.history("copied")[-1]["executor_reason"]


def free_port() -> int:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        return int(reserved.getsockname()[1])


def jobs_of(port: int) -> list[dict[str, Any]]:
    """What Spark's own REST API says of the jobs of the one application there."""

    def get(path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/applications{path}", timeout=60) as response:
            return json.load(response)

    (application,) = get("")
    return list(get(f"/{application['id']}/jobs"))


def test_full_refresh_on_a_standalone_cluster_of_two_workers(tmp_path: Path) -> None:
    cluster = StandaloneCluster(tmp_path)
    try:
        data, port = tmp_path / "data", free_port()
        conf = SMALL | {"spark.ui.enabled": "true", "spark.ui.port": str(port), "spark.pyspark.python": sys.executable}
        url = f"postgresql://postgres@/postgres?host={data / 'socket'}&port=5432&passfile={data / 'pgpass'}"
        with served(data, "--spark", cluster.url, "--spark-postgres", url, *conf_options(conf)) as db:
            refreshed_on_spark(db)
            assert all(worker.children() for worker in cluster.workers), "each worker has started an executor"
            jobs = jobs_of(port)
            assert {job["description"] for job in jobs} == {"full refresh of stream table public.totals"}
            assert len({job["jobGroup"] for job in jobs}) == 2, "one group for each refresh"
            written_by_executors(db)
    finally:
        cluster.stop()


def test_full_refresh_on_a_spark_connect_server(tmp_path: Path) -> None:
    connect = ConnectServer(tmp_path, conf={"spark.ui.enabled": "true", "spark.ui.port": "0"})
    try:
        with served(tmp_path / "data", "--spark", connect.url) as db:
            refreshed_on_spark(db)
        port = int(connect.program.said(r"service 'SparkUI' on port (\d+)")[1])
        tags = {tag for job in jobs_of(port) for tag in job["jobTags"]}
        assert any("full refresh of stream table public.totals headwater-" in tag for tag in tags)
    finally:
        connect.stop()
