"""A client's own time limits end an engine request as they end any statement: its error, and a session that goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Connection = psycopg.Connection[Any]
REFRESH = "SELECT pgtrickle.refresh_stream_table('pairs')"


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


def _simple(connection: Connection) -> None:
    connection.execute(REFRESH)


def _several(connection: Connection) -> None:
    connection.execute(f"SELECT 1; {REFRESH}; SELECT 2")


def _prepared(connection: Connection) -> None:
    connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", ["pairs"], prepare=True)


def _in_a_block(connection: Connection) -> None:
    with connection.transaction():
        connection.execute(REFRESH)


def _in_a_pipeline(connection: Connection) -> None:
    with connection.pipeline():
        connection.execute("SELECT 1")
        connection.execute(REFRESH)
        connection.execute("SELECT 2")


def _unannounced(connection: Connection) -> None:
    connection.execute("DO $$ BEGIN EXECUTE 'SELECT pgtrickle.refresh_stream' || '_table(''pairs'')'; END $$")


@pytest.fixture
def busy(db: Database) -> Database:
    """A stream table with changes to apply, one of whose sources somebody else has locked."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, i FROM generate_series(1, 100) AS i")
    db.create("pairs", "SELECT a.id, b.v FROM t AS a JOIN t AS b ON a.id = b.v")
    db.run("INSERT INTO t VALUES (101, 101)")
    db.bypass(autocommit=False).execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
    return db


@pytest.mark.parametrize(("setting", "sqlstate"), [("statement_timeout", "57014"), ("lock_timeout", "55P03")])
@pytest.mark.parametrize(
    "call",
    [_simple, _several, _prepared, _in_a_block, _in_a_pipeline, _unannounced],
    ids=lambda call: call.__name__[1:],
)
@pytest.mark.one_in(3)
def test_refresh_that_is_out_of_time_is_an_error_and_the_session_goes_on(
    busy: Database, setting: str, sqlstate: str, call: Callable[[Connection], None]
) -> None:
    connection = busy.connect()
    connection.execute(f"SET {setting} = '200ms'")
    with pytest.raises(psycopg.Error) as raised:
        call(connection)
    assert raised.value.sqlstate == sqlstate
    assert connection.execute("SELECT 42").fetchone() == (42,)


def test_stream_table_that_is_read_in_the_block_that_makes_it_says_how_to_split_it(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    made_and_read = (
        "DO $$ BEGIN PERFORM pgtrickle.create_stream_table('st', 'SELECT id FROM t'); PERFORM count(*) FROM st; END $$"
    )
    with pytest.raises(psycopg.errors.UndefinedTable) as raised:
        db.run(made_and_read)
    assert "in a statement of its own" in str(raised.value.diag.message_hint)
    with pytest.raises(psycopg.errors.UndefinedTable) as raised:
        db.run("SELECT * FROM nowhere")
    assert raised.value.diag.message_hint is None


def reset_timeout(db: Database) -> None:
    """However short it is: the statement that resets it can be cancelled by it, too."""
    while True:
        try:
            db.run("SET statement_timeout = 0")
            return
        except psycopg.errors.QueryCanceled:
            continue


def test_analysis_that_is_cancelled_leaves_nothing_that_stands_in_the_way_of_the_next(db: Database) -> None:
    """Wherever the cancel comes: the query is prepared, among other things, which no rollback takes back."""
    db.run("CREATE TABLE wide (id int PRIMARY KEY, v int)")
    columns = ", ".join(f"id + {n} + v * {n} AS c{n}" for n in range(1500))
    analyse = "SELECT pgtrickle._analysed(%s, 'public', '{definition}', false)->>'definition'"
    cancelled = 0
    for milliseconds in range(1, 60):
        db.run(f"SET statement_timeout = {milliseconds}")
        try:
            db.run(analyse, f"SELECT {columns} FROM wide")
        except psycopg.errors.QueryCanceled:
            cancelled += 1
        reset_timeout(db)
        assert db.value(analyse, "SELECT id FROM wide") == " SELECT id\n   FROM public.wide".strip()
    assert cancelled > 5
    assert db.rows("SELECT name FROM pg_prepared_statements WHERE name LIKE '\\_\\_pgt%%'") == []
