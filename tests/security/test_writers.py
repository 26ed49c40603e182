"""Who may only read a table keeps nobody from writing to it, or from changing who may read it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Connection = psycopg.Connection[Any]
Role = Callable[..., Connection]
Eventually = Callable[..., Any]

QUERY = "SELECT customer, count(*) AS n FROM orders GROUP BY customer"


@pytest.fixture
def mallory(db: Database, role: Role) -> Connection:
    """May read a table of somebody else's, and has a stream table that is not captured."""
    db.run("CREATE TABLE orders (id int PRIMARY KEY, customer text); INSERT INTO orders VALUES (1, 'a')")
    connection = role("mallory")
    db.run(f"GRANT SELECT ON orders TO {connection.info.user}")
    return connection


def create(connection: Connection, name: str, query: str = QUERY, **arguments: Any) -> None:
    arguments = {"name": name, "query": query, **arguments}
    named = ", ".join(f"{key} => %s" for key in arguments)
    connection.execute(f"SELECT pgtrickle.create_stream_table({named})".encode(), list(arguments.values()))


def assert_nobody_waits(db: Database, role: Role) -> None:
    """Neither who writes to the table, nor who gives rights to it, nor who else wants it captured."""
    db.run("SET lock_timeout = '5s'")
    db.run("INSERT INTO orders VALUES (2, 'b'); UPDATE orders SET customer = 'c' WHERE id = 2")
    db.run("DELETE FROM orders WHERE id = 2")
    locks = db.rows(
        "SELECT DISTINCT mode FROM pg_locks WHERE relation = 'orders'::regclass"
        " AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'SIReadLock')"
    )
    assert locks == []
    other = role("other")
    db.run(f"GRANT SELECT ON orders TO {other.info.user}")
    other.execute("SET lock_timeout = '5s'")
    create(other, f"of_{other.info.user}")
    db.run(f"REVOKE SELECT ON orders FROM {other.info.user}")
    db.run("RESET lock_timeout")


def test_creation_in_a_transaction_that_stays_open(db: Database, mallory: Connection, role: Role) -> None:
    mallory.execute("BEGIN")
    create(mallory, "held")
    assert mallory.execute("SELECT customer, n FROM held").fetchall() == [("a", 1)]
    assert_nobody_waits(db, role)
    create(mallory, "held_too", initialize=False)
    mallory.execute("COMMIT")
    db.refresh("held")
    db.assert_current("held")
    assert db.last("held")[0] == "DIFFERENTIAL"


def test_other_changes_in_a_transaction_that_stays_open(db: Database, mallory: Connection, role: Role) -> None:
    create(mallory, "whole", refresh_mode="FULL")
    mallory.execute("BEGIN")
    mallory.execute("SELECT pgtrickle.alter_stream_table('whole', refresh_mode => 'DIFFERENTIAL')")
    assert_nobody_waits(db, role)
    mallory.execute("COMMIT")
    db.run("ALTER TABLE orders DISABLE TRIGGER USER; ALTER TABLE orders ENABLE TRIGGER USER")
    mallory.execute("BEGIN")
    mallory.execute("SELECT pgtrickle.refresh_stream_table('whole')")  # what was captured cannot be trusted
    assert_nobody_waits(db, role)
    mallory.execute("COMMIT")
    db.assert_current("whole")
    mallory.execute("BEGIN")
    mallory.execute("SELECT pgtrickle.drop_stream_table('whole')")
    assert_nobody_waits(db, role)
    mallory.execute("COMMIT")


def test_history_of_a_view_over_it(db: Database, mallory: Connection, role: Role, eventually: Eventually) -> None:
    mallory.execute("CREATE VIEW mine AS SELECT id FROM orders")
    mallory.execute("BEGIN")
    mallory.execute("SELECT pgtrickle.retain_history('mine', '1 hour')")
    assert_nobody_waits(db, role)
    mallory.execute("COMMIT")
    eventually(lambda: db.value("SELECT held_from FROM pgtrickle.history_status()"), what="a history")
    assert db.value("SELECT error FROM pgtrickle.history_status()") is None


def test_functions_of_the_server_called_by_hand(db: Database, mallory: Connection, role: Role) -> None:
    create(mallory, "whole", refresh_mode="FULL")
    track = (
        "SELECT pgtrickle._track_source(s.pgt_id, 'orders'::regclass, '{id}'), pg_sleep(3600)"
        " FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_name = 'whole'"
    )
    with pytest.raises(psycopg.Error) as failure:
        mallory.execute(track)
    assert failure.value.sqlstate == "HW005"
    mallory.execute("CREATE VIEW mine AS SELECT id FROM orders")
    answer = mallory.execute("SELECT pgtrickle._retain_history('mine'::regclass, '1 hour')").fetchone()
    assert answer is not None and list(answer[0]) == ["ahead"]
    create(mallory, "captured")
    mallory.execute("SELECT pgtrickle.drop_stream_table('captured')")
    mallory.execute("BEGIN")
    mallory.execute("SELECT pgtrickle._untrack_sources()")
    assert_nobody_waits(db, role)
    mallory.execute("ROLLBACK")
    for call in ("_capture_ahead('{}')", "_may_lock(1)", "_keep_captures(NULL)", "_try_lock_privileges(1)"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            mallory.execute(f"SELECT pgtrickle.{call}".encode())


def test_commit_that_takes_long(db: Database, mallory: Connection, role: Role, eventually: Eventually) -> None:
    """A trigger of the role's own, deferred to the commit that creates the stream table."""
    mallory.execute(
        "CREATE TABLE mine (n int);"
        "CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS"
        " $f$ BEGIN PERFORM pg_sleep(3600); RETURN NULL; END $f$;"
        "CREATE CONSTRAINT TRIGGER sleep AFTER INSERT ON mine DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION sleep()"
    )

    def attack() -> None:
        with pytest.raises(psycopg.errors.AdminShutdown):
            mallory.execute(
                b"WITH i AS (INSERT INTO mine VALUES (1) RETURNING n)"
                b" SELECT pgtrickle.create_stream_table('held', 'SELECT customer FROM orders') FROM i"
            )

    thread = threading.Thread(target=attack)
    thread.start()
    sleeping = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND usename = %s"
    try:
        eventually(lambda: db.rows(sleeping, mallory.info.user), what="the commit")
        assert_nobody_waits(db, role)
    finally:
        db.run(f"SELECT pg_terminate_backend(pid) FROM ({sleeping}) AS s", mallory.info.user)
        thread.join(60)
    assert not thread.is_alive()


def test_transaction_that_would_wait_for_itself_is_refused(db: Database, mallory: Connection) -> None:
    db.run(f"GRANT INSERT ON orders TO {mallory.info.user}")
    mallory.execute("BEGIN; INSERT INTO orders VALUES (3, 'd')")
    with pytest.raises(psycopg.errors.ObjectInUse, match="while this transaction uses it"):
        create(mallory, "held")
    mallory.execute("ROLLBACK")
    mallory.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    with pytest.raises(psycopg.errors.SerializationFailure, match="concurrent change capture"):
        create(mallory, "held", initialize=False)
    mallory.execute("ROLLBACK")


def test_who_may_lock_the_table_captures_in_his_own_transaction(db: Database, mallory: Connection) -> None:
    db.run(f"GRANT DELETE ON orders TO {mallory.info.user}")
    mallory.execute("BEGIN; DELETE FROM orders")
    create(mallory, "held")
    assert mallory.execute("SELECT customer, n FROM held").fetchall() == []
    mallory.execute("ROLLBACK")
    assert db.value("SELECT count(*) FROM pgtrickle.pgt_captures") == 0


def test_capture_for_a_transaction_that_is_rolled_back_ends(
    db: Database, mallory: Connection, eventually: Eventually
) -> None:
    mallory.execute("BEGIN")
    create(mallory, "held")
    mallory.execute("ROLLBACK")
    eventually(
        lambda: db.value("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'orders'::regclass") == 0,
        what="the end of the capture",
    )
