"""Several at once: refreshes by hand and by schedule, creations, drops, writers and cleanup."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater

EXPECTED = {"40001", "40P01", "55P03"}


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@pytest.fixture(autouse=True)
def source(live_db: Any) -> None:
    live_db.run("CREATE TABLE t (id int PRIMARY KEY, k int, v int)")
    live_db.run("INSERT INTO t SELECT n, n % 5, n FROM generate_series(1, 200) n")


def at_once(db: Any, *work: Callable[[psycopg.Connection[Any]], Any]) -> list[str]:
    """Run each in a thread with a connection of its own; returns the SQLSTATEs that were raised."""
    states: list[str] = []
    surprises: list[BaseException] = []

    def one(job: Callable[[psycopg.Connection[Any]], Any], connection: psycopg.Connection[Any]) -> None:
        try:
            job(connection)
        except psycopg.Error as error:
            states.append(error.sqlstate or str(error))
        except BaseException as error:
            surprises.append(error)

    threads = [threading.Thread(target=one, args=(job, db.connect())) for job in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    assert surprises == []
    return states


def repeatedly(statement: str, seconds: float = 1.5) -> Callable[[psycopg.Connection[Any]], None]:
    def run(connection: psycopg.Connection[Any]) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.execute(statement)

    return run


def test_concurrent_manual_refreshes_all_succeed(live_db: Any) -> None:
    live_db.create("sums", "SELECT k, sum(v) AS s FROM t GROUP BY k", schedule="1h")
    live_db.run("UPDATE t SET v = v + 1")
    refresh = "SELECT pgtrickle.refresh_stream_table('sums')"
    assert at_once(live_db, *[lambda c: c.execute(refresh)] * 6) == []
    live_db.assert_current("sums")
    assert [row["action"] for row in live_db.history("sums")].count("DIFFERENTIAL") == 1


def test_manual_refreshes_while_the_scheduler_refreshes_and_writers_write(live_db: Any) -> None:
    live_db.create("sums", "SELECT k, count(*) AS n, sum(v) AS s, min(v) AS low FROM t GROUP BY k", schedule="1s")
    live_db.create(
        "pairs", "SELECT a.id AS x, b.id AS y FROM t a JOIN t b ON a.k = b.k AND a.v < 5 AND b.v < 9", schedule="1s"
    )
    states = at_once(
        live_db,
        repeatedly("SELECT pgtrickle.refresh_stream_table('sums')", 3),
        repeatedly("SELECT pgtrickle.refresh_stream_table('pairs')", 3),
        repeatedly("UPDATE t SET v = (v * 7 + 3) % 31, k = (k + 1) % 6 WHERE id = 1 + (random() * 199)::int", 3),
        repeatedly("INSERT INTO t SELECT max(id) + 1, 3, 7 FROM t", 3),
    )
    assert states == []
    live_db.assert_refreshed("sums", "pairs")


def test_refresh_and_drop_at_once(live_db: Any) -> None:
    for _ in range(4):
        live_db.create("sums", "SELECT k, sum(v) AS s FROM t GROUP BY k", schedule="1s")
        live_db.run("UPDATE t SET v = v + 1")
        states = at_once(
            live_db,
            lambda c: c.execute("SELECT pgtrickle.refresh_stream_table('sums')"),
            lambda c: c.execute("SELECT pgtrickle.drop_stream_table('sums')"),
            lambda c: c.execute("SELECT pgtrickle.refresh_stream_table('sums')"),
        )
        assert set(states) <= {"42P01"}, states
        assert live_db.value("SELECT to_regclass('sums')") is None


def test_concurrent_creations_of_one_name(live_db: Any) -> None:
    create = "SELECT pgtrickle.create_stream_table('one', 'SELECT id FROM t')"
    states = at_once(live_db, *[lambda c: c.execute(create)] * 4)
    assert len(states) == 3 and set(states) <= {"42P07", "23505"}, states
    live_db.assert_refreshed("one")


def test_concurrent_creations_and_drops_over_one_source(live_db: Any) -> None:
    def life(name: str) -> Callable[[psycopg.Connection[Any]], None]:
        def run(connection: psycopg.Connection[Any]) -> None:
            for _ in range(4):
                connection.execute(
                    "SELECT pgtrickle.create_stream_table(%s, 'SELECT k, sum(v) AS s FROM t GROUP BY k', '1s')", [name]
                )
                connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [name])
                connection.execute("SELECT pgtrickle.drop_stream_table(%s)", [name])

        return run

    live_db.create("stays", "SELECT k, count(*) AS n FROM t GROUP BY k", schedule="1s")
    states = at_once(live_db, life("a"), life("b"), life("c"), repeatedly("UPDATE t SET v = v + 1 WHERE id < 20"))
    assert states == []
    live_db.assert_refreshed("stays")


def test_creation_does_not_keep_writers_out_while_populating(live_db: Any, eventually: Callable[..., Any]) -> None:
    live_db.run(
        "CREATE FUNCTION gate(int) RETURNS int IMMUTABLE LANGUAGE plpgsql"
        " AS $$ BEGIN PERFORM pg_catalog.pg_advisory_xact_lock_shared(1); RETURN $1; END $$"
    )
    gate = live_db.connect(autocommit=False)
    gate.execute("SELECT pg_advisory_xact_lock(1)")
    creator = live_db.connect()
    pid = creator.info.backend_pid
    creator.pgconn.send_query(
        b"SELECT pgtrickle.create_stream_table('slow', 'SELECT gate(k) AS k, count(*) AS n FROM t GROUP BY k')"
    )
    waits = "SELECT count(*) FROM pg_locks WHERE pid = %s AND locktype = 'advisory' AND NOT granted"
    eventually(lambda: live_db.value(waits, pid) == 1, what="population")
    writer = live_db.connect()
    writer.execute("SET lock_timeout = '30s'")
    writer.execute("INSERT INTO t VALUES (9000, 1, 1)")
    writer.execute("UPDATE t SET v = 1 WHERE id = 1")
    assert live_db.value(waits, pid) == 1, "the population should still be running"
    gate.rollback()
    while (result := creator.pgconn.get_result()) is not None:
        assert result.status == psycopg.pq.ExecStatus.TUPLES_OK, result.error_message
    live_db.assert_refreshed("slow")


def test_refresh_waits_for_nobody_who_only_writes(live_db: Any) -> None:
    live_db.create("sums", "SELECT k, sum(v) AS s FROM t GROUP BY k", schedule="1h")
    writer = live_db.connect(autocommit=False)
    writer.execute("UPDATE t SET v = v + 1")
    live_db.run("SET statement_timeout = '60s'")
    live_db.run("INSERT INTO t VALUES (8000, 1, 1)")
    live_db.assert_refreshed("sums")
    writer.rollback()


def test_manual_refresh_that_waits_can_be_cancelled(live_db: Any, eventually: Callable[..., Any]) -> None:
    live_db.create("sums", "SELECT k, sum(v) AS s FROM t GROUP BY k", schedule="1h")
    holder = live_db.connect(autocommit=False)
    holder.execute("SELECT pgtrickle.refresh_stream_table('sums')")
    waiter = live_db.connect()
    pid = waiter.info.backend_pid
    waiter.pgconn.send_query(b"SELECT pgtrickle.refresh_stream_table('sums')")
    eventually(lambda: live_db.value("SELECT count(*) FROM pg_locks WHERE pid = %s AND NOT granted", pid) > 0)
    waiter.cancel_safe()
    result = waiter.pgconn.get_result()
    assert result is not None and result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) == b"57014"
    while waiter.pgconn.get_result() is not None:
        pass
    assert waiter.execute("SELECT 1").fetchone() == (1,)
    holder.commit()
    live_db.assert_refreshed("sums")


def test_second_server_shares_the_database(
    live_db: Any, tmp_path: Any, eventually: Callable[..., Any], server: Any
) -> None:
    """Two servers in front of one PostgreSQL: one scheduler is elected, and both carry requests out."""
    live_db.create("sums", "SELECT sum(v) AS s FROM t", schedule="1s")
    parts = psycopg.conninfo.conninfo_to_dict(server.direct_dsn(live_db.name))
    url = f"postgresql:///{live_db.name}?host={parts['host']}&port={parts['port']}&user={parts['user']}&password={parts['password']}"
    second = type(server)(tmp_path / "second", "--postgres", url).start()
    try:
        login = {key: parts[key] for key in ("user", "password")}
        with psycopg.connect(
            host="127.0.0.1", port=second.port, dbname=live_db.name, autocommit=True, **login
        ) as other:
            other.execute("SELECT pgtrickle.create_stream_table('theirs', 'SELECT count(*) AS n FROM t', '1s')")
            other.execute("INSERT INTO t VALUES (7000, 1, 1000)")
            eventually(lambda: live_db.value("SELECT s FROM sums") == 20100 + 1000)
            eventually(lambda: live_db.value("SELECT n FROM theirs") == 201)
    finally:
        assert second.stop() == 0
    live_db.run("INSERT INTO t VALUES (7001, 1, 1000)")
    eventually(lambda: live_db.value("SELECT s FROM sums") == 20100 + 2000)


@pytest.mark.long
def test_repair_that_waits_for_a_writer_holds_up_neither_other_stream_tables_nor_shutdown(
    own_server: Headwater, own_db: Database, eventually: Callable[..., Any]
) -> None:
    for setting in ("enabled = off", "max_concurrent_refreshes = 2"):
        own_db.run(f"ALTER DATABASE postgres SET pg_trickle.{setting}")
    own_db.run("CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    own_db.create("over_a", "SELECT count(*) AS n FROM a", schedule="1s")
    own_db.create("over_b", "SELECT count(*) AS n FROM b", schedule="1s")
    own_db.run("ALTER TABLE a DISABLE TRIGGER USER; INSERT INTO a VALUES (1); ALTER TABLE a ENABLE TRIGGER USER")
    with closing(psycopg.connect(own_server.direct_dsn())) as writer:
        writer.execute("INSERT INTO a VALUES (2)")
        own_db.run("ALTER DATABASE postgres RESET pg_trickle.enabled")
        waits = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'a'::regclass"
        eventually(lambda: own_db.rows(waits), what="a repair that waits")
        took = []
        for number in range(1, 9):
            began = time.monotonic()
            own_db.run("INSERT INTO b VALUES (%s)", number)
            eventually(lambda number=number: own_db.value("SELECT n FROM over_b") == number)
            took.append(time.monotonic() - began)
        assert statistics.median(took) < 8, took  # the repair waits for ten seconds each time
        assert own_db.state("over_a")["consecutive_errors"] == 0
        eventually(lambda: own_db.rows(waits), what="a repair that waits")
        own_db.close()
        began = time.monotonic()
        assert own_server.stop() == 0
        assert time.monotonic() - began < 60  # the writer goes on for ever


@pytest.mark.long
def test_creations_and_drops_over_one_source_do_not_fail_each_other(live_db: Any) -> None:
    """In autocommit at READ COMMITTED: nobody is told to try again."""

    def anew(name: str) -> Callable[[psycopg.Connection[Any]], None]:
        def run(connection: psycopg.Connection[Any]) -> None:
            end = time.monotonic() + 8
            while time.monotonic() < end:
                query = "SELECT k, sum(v) AS s FROM t GROUP BY k"
                connection.execute("SELECT pgtrickle.create_stream_table(%s, %s)", [name, query])
                connection.execute("SELECT pgtrickle.drop_stream_table(%s)", [name])

        return run

    assert at_once(live_db, anew("one"), anew("two"), anew("three")) == []
    assert live_db.rows("SELECT pgt_name FROM pgtrickle.pgt_stream_tables") == []
