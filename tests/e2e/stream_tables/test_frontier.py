"""Nothing is lost and nothing counted twice, however transactions and refreshes interleave."""

from __future__ import annotations

import itertools
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

SUMS = "SELECT k, count(*) AS n, sum(v) AS total FROM t GROUP BY k"


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture(autouse=True)
def source(db: Any) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, k int, v int)")
    db.run("INSERT INTO t SELECT n, n % 3, n FROM generate_series(1, 9) AS n")


def test_change_that_precedes_the_frontier_but_commits_after_the_refresh(db: Any) -> None:
    db.create("sums", SUMS)
    late = db.connect(autocommit=False)
    late.execute("INSERT INTO t VALUES (100, 0, 1000)")
    db.run("INSERT INTO t VALUES (101, 0, 5)")
    db.assert_refreshed("sums")
    late.commit()
    db.run("INSERT INTO t VALUES (102, 1, 7)")
    db.assert_refreshed("sums")
    assert db.value("SELECT total FROM sums WHERE k = 0") == 18 + 5 + 1000


def test_several_open_transactions_across_several_refreshes(db: Any) -> None:
    db.create("sums", SUMS)
    db.create("copy", "SELECT id, v FROM t WHERE v > 2")
    opened = [db.connect(autocommit=False) for _ in range(4)]
    for n, connection in enumerate(opened):
        connection.execute("INSERT INTO t VALUES (%s, %s, %s)", [200 + n, n, n * 10])
        db.assert_refreshed("sums", "copy")
        connection.execute("UPDATE t SET v = v + 1 WHERE id = %s", [n + 1])
        db.assert_refreshed("sums", "copy")
    for n in (2, 0, 3, 1):
        (opened[n].rollback if n == 3 else opened[n].commit)()
        db.assert_refreshed("sums", "copy")
    assert db.value("SELECT sum(n) FROM sums") == 9 + 3


def test_rolled_back_savepoints_leave_nothing(db: Any) -> None:
    db.create("sums", SUMS)
    other = db.connect()
    for statement in [
        "BEGIN",
        "INSERT INTO t VALUES (300, 0, 1)",
        "SAVEPOINT a",
        "UPDATE t SET v = v + 100",
        "SAVEPOINT b",
        "DELETE FROM t",
        "ROLLBACK TO b",
        "INSERT INTO t VALUES (301, 1, 2)",
        "ROLLBACK TO a",
        "INSERT INTO t VALUES (302, 2, 3)",
    ]:
        other.execute(statement)
        db.assert_refreshed("sums")
    other.execute("COMMIT")
    db.assert_refreshed("sums")
    assert db.rows("SELECT k, n::int, total::int FROM sums ORDER BY k") == [(0, 4, 19), (1, 3, 12), (2, 4, 18)]


def test_creation_while_another_transaction_has_an_uncommitted_insert(db: Any) -> None:
    db.create("other", "SELECT id, k, v FROM t")  # capture is installed, so that creation need not wait for the writer
    writer = db.connect(autocommit=False)
    writer.execute("INSERT INTO t VALUES (400, 0, 1)")
    db.create("sums", SUMS)
    writer.commit()
    db.assert_refreshed("sums", "other")
    assert db.value("SELECT sum(n) FROM sums") == 10


def test_creation_waits_for_a_writer_where_capture_is_new(db: Any, eventually: Any) -> None:
    writer = db.connect(autocommit=False)
    writer.execute("INSERT INTO t VALUES (400, 0, 1)")
    creator = db.connect()
    pid = creator.info.backend_pid
    creator.pgconn.send_query(b"SELECT pgtrickle.create_stream_table('sums', '" + SUMS.encode() + b"')")
    eventually(
        lambda: (
            db.value("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", pid)
            or db.value("SELECT query LIKE '%%_track_source%%' FROM pg_stat_activity WHERE pid = %s", pid)
        ),
        what="waiting for the writer",
    )
    other = db.connect()  # new writers are not kept out meanwhile
    other.execute("SET lock_timeout = '60s'")
    other.execute("INSERT INTO t VALUES (401, 0, 1)")
    writer.commit()
    while (result := creator.pgconn.get_result()) is not None:
        assert result.status == psycopg.pq.ExecStatus.TUPLES_OK
    db.assert_refreshed("sums")
    assert db.value("SELECT sum(n) FROM sums") == 11


def test_source_that_changes_after_the_refresh_has_looked_what_changed(db: Any, eventually: Any) -> None:
    """The statement is planned for the sources that had changed when the refresh began."""
    db.run("CREATE TABLE u (k int, w int); INSERT INTO u SELECT n, n FROM generate_series(0, 2) AS n")
    db.create("pairs", "SELECT t.id, u.w FROM t JOIN u ON t.k = u.k", refresh_mode="DIFFERENTIAL")
    db.run("INSERT INTO t VALUES (100, 0, 5)")
    other = db.connect(autocommit=False)
    other.execute("LOCK TABLE u IN ACCESS EXCLUSIVE MODE")
    with ThreadPoolExecutor(1) as threads:
        refreshing = threads.submit(db.refresh, "pairs")
        eventually(lambda: other.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone() is not None)
        other.execute("INSERT INTO u VALUES (0, 10)")
        other.commit()
        refreshing.result(90)
    db.assert_current("pairs")
    db.run("DELETE FROM u WHERE w = 10")
    db.assert_refreshed("pairs")


@pytest.mark.parametrize("changed", [False, True], ids=["unchanged before", "changed before"])
def test_source_that_is_truncated_after_the_refresh_has_looked(db: Any, eventually: Any, changed: bool) -> None:
    db.run("CREATE TABLE u (k int, w int); INSERT INTO u SELECT n, n FROM generate_series(0, 2) AS n")
    db.create("pairs", "SELECT t.id, u.w FROM t JOIN u ON t.k = u.k", refresh_mode="DIFFERENTIAL")
    db.run("INSERT INTO t VALUES (100, 0, 5)")
    if changed:
        db.run("INSERT INTO u VALUES (0, 10)")
    other = db.connect(autocommit=False)
    other.execute("TRUNCATE u")
    with ThreadPoolExecutor(1) as threads:
        refreshing = threads.submit(db.refresh, "pairs")
        eventually(lambda: other.execute("SELECT FROM pg_locks WHERE NOT granted").fetchone() is not None)
        other.commit()
        refreshing.result(90)
    db.assert_current("pairs")


def test_insert_refresh_insert_in_one_transaction(db: Any) -> None:
    db.create("sums", SUMS)
    for isolation in ("READ COMMITTED", "REPEATABLE READ"):
        connection = db.connect()
        connection.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        connection.execute("INSERT INTO t SELECT 1 + max(id), 0, 1 FROM t")
        connection.execute("SELECT pgtrickle.refresh_stream_table('sums')")
        first = connection.execute("SELECT sum(n) FROM sums").fetchone()
        connection.execute("INSERT INTO t SELECT 1 + max(id), 1, 1 FROM t")
        connection.execute("SELECT pgtrickle.refresh_stream_table('sums')")
        second = connection.execute("SELECT sum(n) FROM sums").fetchone()
        connection.execute("DELETE FROM t WHERE id = (SELECT max(id) FROM t)")
        connection.execute("COMMIT")
        assert first is not None and second is not None and second[0] == first[0] + 1
        db.assert_refreshed("sums")
        db.refresh("sums")
        assert db.last("sums")[0] == "NO_DATA"


def test_creation_in_a_transaction_that_has_changed_a_captured_source(db: Any) -> None:
    db.create("other", "SELECT id, k, v FROM t")
    for isolation in ("READ COMMITTED", "REPEATABLE READ"):
        name = isolation.split()[0].lower()
        connection = db.connect()
        connection.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        connection.execute("INSERT INTO t SELECT 1 + max(id), 0, 1 FROM t")
        connection.execute("SELECT pgtrickle.create_stream_table(%s, %s)", [name, SUMS])
        connection.execute("INSERT INTO t SELECT 1 + max(id), 1, 1 FROM t")
        connection.execute("COMMIT")
        db.assert_refreshed(name, "other")
    db.assert_refreshed("read", "repeatable")


def test_refresh_rolled_back_with_its_transaction_is_repeated(db: Any) -> None:
    db.create("sums", SUMS)
    connection = db.connect(autocommit=False)
    connection.execute("DELETE FROM t WHERE k = 0")
    connection.execute("SELECT pgtrickle.refresh_stream_table('sums')")
    connection.rollback()
    db.run("DELETE FROM t WHERE k = 1")
    db.assert_refreshed("sums")
    assert db.rows("SELECT k FROM sums ORDER BY k") == [(0,), (2,)]


def test_refresh_rolled_back_to_a_savepoint_is_repeated(db: Any) -> None:
    db.create("sums", SUMS)
    connection = db.connect(autocommit=False)
    connection.execute("DELETE FROM t WHERE k = 0")
    connection.execute("SAVEPOINT s")
    connection.execute("INSERT INTO t VALUES (500, 5, 5)")
    connection.execute("SELECT pgtrickle.refresh_stream_table('sums')")
    connection.execute("ROLLBACK TO s")
    connection.execute("SELECT pgtrickle.refresh_stream_table('sums')")
    connection.commit()
    db.assert_current("sums")
    db.assert_refreshed("sums")


def test_stream_table_changed_by_another_session_at_repeatable_read(db: Any) -> None:
    db.create("sums", SUMS)
    old = db.connect()
    old.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    old.execute("SELECT 1 FROM t")
    db.run("INSERT INTO t VALUES (600, 0, 6)")
    db.refresh("sums")
    with pytest.raises(psycopg.errors.SerializationFailure):
        old.execute("SELECT pgtrickle.refresh_stream_table('sums')")
    old.execute("ROLLBACK")
    db.assert_refreshed("sums")


def test_concurrent_updates_of_both_sides_of_a_self_join(db: Any) -> None:
    db.create("pairs", "SELECT a.id AS x, b.id AS y, a.v + b.v AS s FROM t a JOIN t b ON a.k = b.k")
    one, two = db.connect(autocommit=False), db.connect(autocommit=False)
    one.execute("UPDATE t SET k = 1 WHERE id = 3")
    two.execute("UPDATE t SET k = 1, v = 50 WHERE id = 2")
    db.assert_refreshed("pairs")
    one.commit()
    db.assert_refreshed("pairs")
    two.execute("DELETE FROM t WHERE id = 1")
    two.commit()
    db.assert_refreshed("pairs")


def test_frontier_of_a_refresh_that_ran_among_open_writers_in_its_own_transaction(db: Any) -> None:
    db.create("sums", SUMS)
    writer, refresher = db.connect(autocommit=False), db.connect(autocommit=False)
    writer.execute("INSERT INTO t VALUES (700, 0, 1)")
    refresher.execute("INSERT INTO t VALUES (701, 0, 2)")
    refresher.execute("SELECT pgtrickle.refresh_stream_table('sums')")
    writer.commit()
    refresher.execute("SELECT pgtrickle.refresh_stream_table('sums')")
    assert refresher.execute("SELECT sum(n) FROM sums").fetchone() == (11,)
    refresher.commit()
    db.assert_refreshed("sums")


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 10))])
def test_random_interleaving(db: Any, seed: int) -> None:
    chance = random.Random(seed)
    db.create("sums", SUMS)
    db.create("pairs", "SELECT a.id AS x, b.id AS y FROM t a JOIN t b ON a.v = b.k")
    db.create("over", "SELECT s.k, s.total, t.id FROM sums s JOIN t ON t.k = s.k")
    connections = [db.connect(autocommit=False) for _ in range(4)]
    numbers = itertools.count(1000)
    for connection in connections:
        connection.execute("SET lock_timeout = '30ms'")
        connection.commit()
    for _ in range(60):
        connection = chance.choice(connections)
        statement = chance.choice(
            [
                f"INSERT INTO t VALUES ({next(numbers)}, {chance.randint(0, 3)}, {chance.randint(0, 3)})",
                f"UPDATE t SET k = {chance.randint(0, 3)}, v = v + 1 WHERE id % 7 = {chance.randint(0, 6)}",
                f"DELETE FROM t WHERE id % 11 = {chance.randint(0, 10)}",
                "SAVEPOINT s",
                "ROLLBACK TO s",
                "COMMIT",
                "COMMIT",
                "ROLLBACK",
                "refresh",
                "refresh",
            ]
        )
        if statement == "refresh":
            db.assert_refreshed(chance.choice(["sums", "pairs"]))
            continue
        try:
            connection.execute(statement)
        except psycopg.Error:
            connection.rollback()
    for connection in connections:
        connection.commit()
    db.assert_refreshed("sums", "pairs", "over")


def test_prepared_transaction_is_waited_for_by_nobody_and_seen_when_it_commits(db: Any) -> None:
    db.create("sums", SUMS)
    connection = db.connect()
    connection.execute("BEGIN")
    connection.execute("INSERT INTO t VALUES (800, 0, 8)")
    connection.execute("PREPARE TRANSACTION 'two_phase_test'")
    db.run("INSERT INTO t VALUES (801, 0, 9)")
    db.assert_refreshed("sums")
    db.run("COMMIT PREPARED 'two_phase_test'")
    db.assert_refreshed("sums")
    assert db.value("SELECT sum(n) FROM sums") == 11
