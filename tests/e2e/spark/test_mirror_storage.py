"""A mirror whose storage cannot be used: what becomes of refreshes, and what clients and listeners are told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.e2e.conftest import Database, Headwater, alerts

QUERY = "SELECT g, count(*) AS n, sum(v) AS s FROM items GROUP BY g"
FALLEN = 'Spark failed (58030: could not read or write the mirror of table "items"); computed by PostgreSQL instead'


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Behind a server whose mirror is to be in an object store that nobody serves."""
    options = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
    options |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "max_retries": "0", "retry_timeout": "1s"}
    words = [word for name, value in options.items() for word in ("--mirror-option", f"{name}={value}")]
    data = tmp_path_factory.mktemp("gone") / "data"
    server = Headwater(data, "--spark", "sail", "--mirror", "s3://mirrors/here", *words).start()
    database = Database(server, "postgres")
    try:
        database.run("ALTER DATABASE postgres SET pg_trickle.enabled = off; SET pg_trickle.spark_min_rows = 1000")
        database.run("CREATE TABLE items (id int PRIMARY KEY, g int, v numeric(12, 2))")
        database.run("INSERT INTO items SELECT i, i % 10, i FROM generate_series(1, 5000) i")
        yield database
    finally:
        database.close()
        server.stop()


def is_explained(error: psycopg.Error) -> None:
    """The table, the cause in one plain line, and where to look."""
    assert 'could not read or write the mirror of table "items"' in (error.diag.message_primary or "")
    detail = error.diag.message_detail or ""
    assert "http://127.0.0.1:1/" in detail and "Connection refused" in detail
    assert detail.isprintable()
    assert error.diag.message_hint == "See --mirror and --mirror-option."


def test_postgresql_computes_and_listeners_are_told(db: Database) -> None:
    listener = db.bypass()
    listener.execute("LISTEN pg_trickle_alert")
    db.create("totals", QUERY, schedule="1h", refresh_mode="FULL")
    db.run("UPDATE items SET v = v + 1 WHERE g = 3")
    db.refresh("totals")
    db.assert_current("totals")
    history: list[dict[str, Any]] = db.history("totals")
    assert [(row["status"], row["executor"]) for row in history] == [("COMPLETED", "postgres")] * 2
    assert all(FALLEN in row["executor_reason"] for row in history)
    told = islice(alerts(listener, "spark_failed"), 2)
    assert [(alert["pgt_name"], alert["reason"]) for alert in told] == [("totals", FALLEN)] * 2


def test_refresh_that_is_to_fail_says_what_and_why(db: Database) -> None:
    db.create("failing", QUERY, schedule="1h", refresh_mode="FULL")
    db.run("UPDATE items SET v = v + 1 WHERE g = 4")
    with db.connect() as session:
        session.execute("SET pg_trickle.spark_min_rows = 1000; SET pg_trickle.spark_failure_policy = error")
        with pytest.raises(errors.IoError) as raised:
            session.execute("SELECT pgtrickle.refresh_stream_table('failing')")
    is_explained(raised.value)


def test_stream_table_bound_to_spark_is_not_created(db: Database) -> None:
    with pytest.raises(errors.IoError) as raised:
        db.create("bound", QUERY, engine="spark")
    is_explained(raised.value)
    assert db.value("SELECT to_regclass('bound')") is None


def test_log_has_one_plain_line_for_each_failure(db: Database) -> None:
    with pytest.raises(errors.IoError):
        db.create("once_more", QUERY, engine="spark")
    lines = [line for line in db.server.log.splitlines() if "Spark failed" in line]
    assert lines
    assert all("Connection refused" in line and "\x1b" not in line for line in lines)
