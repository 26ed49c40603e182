"""RETAIN HISTORY: what is kept, for how long, and for whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.e2e.conftest import Database, Headwater, _database

Eventually = Callable[..., Any]

HELD = "SELECT held_from FROM pgtrickle.history_status() WHERE name = %s AND error IS NULL"


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture(scope="module")
def past(server: Headwater) -> Iterator[Database]:
    """One database for all of this file."""
    yield from _database(server)


@pytest.fixture(scope="module", autouse=True)
def short(server: Headwater) -> Iterator[tuple[Database, int]]:
    """A table with a history that is over when the other tests are."""
    for database in _database(server):
        database.run("CREATE TABLE short (id int)")
        database.run("SELECT pgtrickle.retain_history('short', '1 millisecond')")
        deadline = time.monotonic() + 90
        while (first := held(database, "public.short")) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        database.run("INSERT INTO short SELECT generate_series(1, 10)")
        yield database, first


def held(database: Database, name: str) -> int | None:
    rows = database.rows(HELD, name)
    return rows[0][0] if rows else None


def buffered(database: Database, table: str) -> int:
    """Rows in a table's change buffer, -1 where there is none."""
    relid = database.value("SELECT %s::regclass::oid::bigint", table)
    try:
        return int(database.value(f'SELECT count(*) FROM pgtrickle_changes.changes_{relid} WHERE "__pgt_w" <> 0'))
    except errors.UndefinedTable:
        return -1


def test_a_history_that_is_given_up_while_it_is_moved_on(past: Database, eventually: Eventually) -> None:
    """Both lock the relation's row before anything else of it: neither can have what the other one waits for."""
    past.run("CREATE TABLE given_up (id int)")
    past.run("SELECT pgtrickle.retain_history('given_up', '1 hour')")
    eventually(lambda: held(past, "public.given_up"))
    row = "FROM pgtrickle.pgt_history WHERE relid = 'given_up'::regclass"
    waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE pg_backend_pid() = ANY (pg_blocking_pids(pid)))"
    servers = "UPDATE pgtrickle.pgt_subscription_servers SET frontier = frontier"
    with ThreadPoolExecutor(1) as threads, psycopg.connect(past.server.direct_dsn(past.name)) as moving:
        moving.execute(f"SELECT {row} FOR UPDATE".encode())
        giving_up = threads.submit(past.run, "SELECT pgtrickle.retain_history('given_up', NULL)")
        eventually(lambda: moving.execute(waiting).fetchone() == (True,))
        moving.execute(f"{servers} WHERE server = (SELECT server {row})".encode())
        moving.commit()
        giving_up.result()
    assert past.rows("SELECT * FROM pgtrickle.history_status()") == []


def test_changes_are_kept_until_the_history_is_reset(past: Database, eventually: Eventually) -> None:
    past.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
    past.run("INSERT INTO t VALUES (1, 'before')")
    assert past.run("ALTER TABLE t SET (RETAIN HISTORY FOR '1hr')").statusmessage == "ALTER TABLE"
    first = eventually(lambda: held(past, "public.t"))
    past.run("INSERT INTO t VALUES (2, 'a'); UPDATE t SET v = 'b' WHERE id = 2; DELETE FROM t WHERE id = 1")
    newest = "SELECT count(*) FROM pgtrickle.pgt_timeline WHERE mz_timestamp > %s"
    eventually(lambda: past.value(newest, first) > 0)
    past.run("SELECT pgtrickle._cleanup_buffers()")
    assert buffered(past, "t") == 4
    ((name, period, changes, error),) = past.rows(
        "SELECT name, period::text, changes, error FROM pgtrickle.history_status()"
    )
    assert (name, period, changes, error) == ("public.t", "01:00:00", 4, None)
    past.run("ALTER TABLE t SET (RETAIN HISTORY FOR '2 hours')")
    assert held(past, "public.t") == first
    assert past.run("ALTER TABLE t RESET (RETAIN HISTORY)").statusmessage == "ALTER TABLE"
    eventually(lambda: buffered(past, "t") == -1)
    assert past.value("SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass AND NOT tgisinternal") == 0
    assert past.rows("SELECT * FROM pgtrickle.history_status()") == []


def test_a_view_and_a_stream_table(past: Database, eventually: Eventually) -> None:
    past.run("CREATE TABLE base (id int PRIMARY KEY, a int, unused text)")
    past.run("CREATE VIEW seen AS SELECT a, count(*) AS n FROM base WHERE a > 0 GROUP BY a")
    past.create("summed", "SELECT a, sum(id) AS total FROM base GROUP BY a")
    assert past.run("ALTER VIEW IF EXISTS seen SET (RETAIN HISTORY FOR '10 min')").statusmessage == "ALTER VIEW"
    statement = "ALTER MATERIALIZED VIEW public.summed SET (RETAIN HISTORY FOR '10 min')"
    assert past.run(statement).statusmessage == "ALTER MATERIALIZED VIEW"
    for name in ("public.seen", "public.summed"):
        eventually(lambda name=name: held(past, name))
    past.run("INSERT INTO base SELECT n, n % 3, 'x' FROM generate_series(1, 9) AS n")
    past.refresh("summed")
    past.run("SELECT pgtrickle._cleanup_buffers()")
    assert (buffered(past, "base"), buffered(past, "summed")) == (9, 3)
    old = held(past, "public.seen")
    past.run("CREATE OR REPLACE VIEW seen AS SELECT a, count(*) AS n FROM base WHERE a > 1 GROUP BY a")
    eventually(lambda: (held(past, "public.seen") or 0) > (old or 0))
    past.run("DROP VIEW seen")
    eventually(lambda: past.rows("SELECT name FROM pgtrickle.history_status()") == [("public.summed",)])
    past.run("SELECT pgtrickle.drop_stream_table('summed')")
    eventually(lambda: past.rows("SELECT name FROM pgtrickle.history_status()") == [])
    eventually(lambda: buffered(past, "base") == -1)


def test_a_gap_in_the_capture_ends_what_is_held(past: Database, eventually: Eventually) -> None:
    past.run("CREATE TABLE gap (id int)")
    past.run("SELECT pgtrickle.retain_history('gap', '1 day')")
    first = eventually(lambda: held(past, "public.gap"))
    past.run("ALTER TABLE gap ADD COLUMN more text")
    second = eventually(lambda: (found := held(past, "public.gap")) and found > first and found)
    past.run("ALTER TABLE gap DISABLE TRIGGER USER")
    past.run("INSERT INTO gap VALUES (1, 'unseen')")
    past.run("ALTER TABLE gap ENABLE TRIGGER USER")
    third = eventually(lambda: (found := held(past, "public.gap")) and found > second and found)
    past.run("TRUNCATE gap")
    eventually(lambda: past.value("SELECT max(mz_timestamp) FROM pgtrickle.pgt_timeline") > third)
    assert buffered(past, "gap") == 1
    past.run("DROP TABLE gap")


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE other ALTER v TYPE int USING v * 10",
        "BEGIN; ALTER TABLE other DROP v; ALTER TABLE other ADD v int DEFAULT 7; COMMIT",
        "BEGIN; ALTER TABLE other RENAME v TO w; ALTER TABLE other RENAME id TO v;"
        " ALTER TABLE other RENAME w TO id; COMMIT",
    ],
)
def test_columns_that_have_become_others_end_what_is_held(past: Database, eventually: Eventually, change: str) -> None:
    past.run("CREATE TABLE other (id int, v int); INSERT INTO other VALUES (1, 1)")
    past.run("SELECT pgtrickle.retain_history('other', '1 day')")
    first = eventually(lambda: held(past, "public.other"))
    subscription = f"SUBSCRIBE other AS OF {first} UP TO {first + 1}"
    assert [row[1:] for row in past.rows(subscription)] == [(1, 1, 1)]
    past.run(change)
    with pytest.raises(errors.InvalidParameterValue):
        past.rows(subscription)
    eventually(lambda: (found := held(past, "public.other")) and found > first and found)
    with pytest.raises(errors.InvalidParameterValue):
        past.rows(subscription)
    past.run("DROP TABLE other")


def test_a_part_of_the_transaction(past: Database) -> None:
    past.run("CREATE TABLE later (id int)")
    connection = past.connect(autocommit=False)
    connection.execute("ALTER TABLE later SET (RETAIN HISTORY FOR '1h')", prepare=True)
    connection.rollback()
    assert past.rows("SELECT * FROM pgtrickle.history_status()") == []
    assert buffered(past, "later") == -1


def test_a_source_with_a_history(past: Database, eventually: Eventually) -> None:
    past.run("CREATE SOURCE counter FROM LOAD GENERATOR COUNTER (TICK INTERVAL '50ms') WITH (RETAIN HISTORY FOR '1h')")
    eventually(lambda: held(past, "public.counter"))
    assert past.run("ALTER SOURCE counter RESET (RETAIN HISTORY)").statusmessage == "ALTER SOURCE"
    past.run("DROP SOURCE counter")


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        (
            "ALTER TABLE nowhere SET (RETAIN HISTORY FOR '1h')",
            errors.UndefinedTable,
            'relation "nowhere" does not exist',
        ),
        ("ALTER VIEW plain SET (RETAIN HISTORY FOR '1h')", errors.WrongObjectType, '"plain" is not a view'),
        (
            "ALTER MATERIALIZED VIEW plain SET (RETAIN HISTORY FOR '1h')",
            errors.WrongObjectType,
            '"plain" is not a materialized view',
        ),
        ("ALTER SOURCE plain SET (RETAIN HISTORY FOR '1h')", errors.WrongObjectType, '"plain" is not a source'),
        ("ALTER TABLE plain SET (RETAIN HISTORY FOR '-1h')", errors.InvalidParameterValue, "positive period"),
        ("ALTER TABLE plain SET (RETAIN HISTORY FOR 'long')", errors.InvalidDatetimeFormat, "interval"),
        ("ALTER TABLE plain SET (RETAIN HISTORY '1h')", errors.SyntaxError, "syntax error at or near"),
        ("ALTER MATERIALIZED VIEW m SET (RETAIN HISTORY FOR '1h')", errors.FeatureNotSupported, "cannot retain"),
        ("ALTER TABLE pg_class SET (RETAIN HISTORY FOR '1h')", errors.FeatureNotSupported, "cannot capture changes"),
        ("SELECT pgtrickle.retain_history('nowhere', '1h')", errors.UndefinedTable, "does not exist"),
        (
            "SELECT pgtrickle.retain_history(NULL, '1h')",
            errors.NullValueNotAllowed,
            "name of the relation must not be null",
        ),
    ],
)
def test_what_is_wrong_is_said(past: Database, statement: str, error: type[Exception], message: str) -> None:
    past.run("CREATE TABLE IF NOT EXISTS plain (id int)")
    past.run("CREATE MATERIALIZED VIEW IF NOT EXISTS m AS SELECT 1 AS one")
    with pytest.raises(error, match=message):
        past.run(statement)
    assert past.rows("SELECT * FROM pgtrickle.history_status()") == []


def test_only_the_owner_may(db: Database, role: Callable[..., psycopg.Connection[Any]]) -> None:
    alice, bob = role("alice"), role("bob")
    alice.execute("CREATE TABLE hers (id int)")
    alice.execute("GRANT SELECT ON hers TO PUBLIC")
    with pytest.raises(errors.InsufficientPrivilege, match="must be owner of"):
        bob.execute("ALTER TABLE hers SET (RETAIN HISTORY FOR '1h')")
    with pytest.raises(errors.InsufficientPrivilege):
        bob.execute("SELECT pgtrickle._retain_history('hers'::regclass, '1h')")
    with pytest.raises(errors.InsufficientPrivilege):
        bob.execute("SELECT pgtrickle._as_of(1, 1, true)")
    alice.execute("ALTER TABLE hers SET (RETAIN HISTORY FOR '1h')")
    assert db.rows("SELECT name FROM pgtrickle.history_status()") == [("public.hers",)]
    with pytest.raises(errors.InsufficientPrivilege, match="must be owner of"):
        bob.execute("ALTER TABLE hers RESET (RETAIN HISTORY)")


def test_what_is_older_than_the_period_goes(short: tuple[Database, int], eventually: Eventually) -> None:
    """Ten seconds beyond the period, which a transaction has to get hold of what it asks for."""
    database, first = short
    eventually(lambda: held(database, "public.short") not in (None, first))
    eventually(lambda: buffered(database, "short") == 0)
    assert database.value("SELECT min(mz_timestamp) FROM pgtrickle.pgt_timeline") > first
    database.run("SELECT pgtrickle.retain_history('short', NULL)")
    eventually(lambda: buffered(database, "short") == -1)
