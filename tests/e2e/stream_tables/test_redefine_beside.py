"""Another query for a stream table that is read all the while: readers do not wait for what is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

SOURCE = """
CREATE TABLE orders (id int PRIMARY KEY, region text, amount numeric(10, 2));
INSERT INTO orders SELECT n, 'r' || n % 3, n FROM generate_series(1, 50) AS n;
CREATE TABLE gate (open int);
CREATE FUNCTION held(x numeric) RETURNS numeric LANGUAGE plpgsql IMMUTABLE AS
    'BEGIN PERFORM count(*) FROM public.gate; RETURN x; END';
"""
TOTALS = "SELECT region, sum(amount) AS total FROM orders GROUP BY region"
QUERIES = {
    "one more": "SELECT region, sum(amount) AS total, sum(held(amount)) AS again FROM orders GROUP BY region",
    "one less": "SELECT region FROM orders WHERE held(amount) > 3 GROUP BY region",
    "rows": "SELECT region, held(amount) AS price FROM orders",
    "another type": "SELECT region, max(held(amount))::text AS total FROM orders GROUP BY region",
}
AHEAD = (
    "SELECT attname FROM pg_attribute WHERE attrelid = 'st'::regclass AND attname LIKE '%next%' AND NOT attisdropped"
)


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@contextmanager
def computing(db: Database, eventually: Callable[..., Any], query: str, end: str = "") -> Iterator[list[BaseException]]:
    """Another query for `st` is being computed in the block, and cannot go on; in the end it has become its query."""
    failures: list[BaseException] = []

    def alter() -> None:
        client = db.connect(autocommit=not end)
        try:
            client.execute("SELECT pgtrickle.alter_stream_table('st', query => %s)", [query])
            if end:
                client.execute(end)  # type: ignore[arg-type]
        except psycopg.Error as error:
            failures.append(error)

    keeper = db.bypass(autocommit=False)
    keeper.execute("LOCK TABLE gate")
    thread = threading.Thread(target=alter)
    thread.start()
    try:
        waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'gate'::regclass"
        eventually(lambda: db.rows(waits) or failures, what="the computation has begun")
        yield failures
    finally:
        keeper.rollback()
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize("name", QUERIES)
@pytest.mark.one_in(2)
def test_readers_go_on_while_another_query_is_computed(db: Database, eventually: Callable[..., Any], name: str) -> None:
    db.run(SOURCE)
    db.create("st", TOTALS)
    db.run("CREATE INDEX st_region ON st (region)")
    oid = db.value("SELECT 'st'::regclass::oid::int")
    with computing(db, eventually, QUERIES[name], end="COMMIT" if name == "rows" else "") as failures:
        db.run("SET statement_timeout = '60s'")
        assert db.value("SELECT sum(total) FROM st") == 1275
        db.run("UPDATE orders SET amount = amount + 1 WHERE id <= 10; SET statement_timeout = 0")
    assert failures == []
    assert db.rows(AHEAD) == [] and db.value("SELECT count(*) FROM pgtrickle.pgt_columns_ahead") == 0
    assert db.value("SELECT 'st'::regclass::oid::int") == oid
    assert db.value("SELECT count(*) FROM pg_indexes WHERE indexname = 'st_region'") == 1
    db.assert_refreshed("st")
    db.run("DELETE FROM orders WHERE id % 2 = 0; INSERT INTO orders VALUES (100, 'new', 1)")
    db.assert_refreshed("st")


def test_what_has_failed_leaves_no_columns(db: Database, eventually: Callable[..., Any]) -> None:
    db.run(SOURCE)
    db.create("st", TOTALS)
    with computing(db, eventually, QUERIES["one more"], end="ROLLBACK") as failures:
        assert db.rows(AHEAD) != []
    assert failures == []
    eventually(lambda: not db.rows(AHEAD), what="the columns have been dropped")
    assert db.value("SELECT count(*) FROM pgtrickle.pgt_columns_ahead") == 0
    db.run("UPDATE orders SET amount = 7 WHERE id = 3")
    db.assert_refreshed("st")


def test_in_a_transaction_that_has_read_the_table(db: Database) -> None:
    db.run(SOURCE)
    db.create("st", TOTALS)
    client = db.connect(autocommit=False)
    client.execute("SELECT * FROM st")
    client.execute("SELECT pgtrickle.alter_stream_table('st', query => %s)", [QUERIES["one more"]])
    client.commit()
    db.assert_current("st")
    assert db.rows(AHEAD) == []
