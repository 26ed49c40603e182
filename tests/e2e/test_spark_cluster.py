"""Refreshes on Spark servers of their own: a standalone cluster and a Spark Connect server, as real processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import Database, Headwater
from tests.spark_servers import SMALL, ConnectServer, StandaloneCluster, conf_options

pytestmark = pytest.mark.xdist_group("jvm")

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


@pytest.mark.long
def test_full_refresh_on_a_standalone_cluster_of_two_workers(tmp_path: Path) -> None:
    cluster = StandaloneCluster(tmp_path)
    try:
        with served(tmp_path / "data", "--spark", cluster.url, *conf_options(SMALL)) as db:
            refreshed_on_spark(db)
            assert all(worker.children() for worker in cluster.workers), "each worker has started an executor"
    finally:
        cluster.stop()


def test_full_refresh_on_a_spark_connect_server(tmp_path: Path) -> None:
    connect = ConnectServer(tmp_path)
    try:
        with served(tmp_path / "data", "--spark", connect.url) as db:
            refreshed_on_spark(db)
    finally:
        connect.stop()
