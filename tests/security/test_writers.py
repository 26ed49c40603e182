"""Who may only read a table keeps nobody from writing to it, or from changing who may read it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
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


def assert_nobody_waits(db: Database, other: Connection) -> None:
    """Neither who writes to the table, nor who gives rights to it, nor who else wants it captured."""
    user = other.info.user
    db.run("SET lock_timeout = '60s'")
    db.run("INSERT INTO orders VALUES (2, 'b'); UPDATE orders SET customer = 'c' WHERE id = 2")
    db.run("DELETE FROM orders WHERE id = 2")
    locks = db.rows(
        "SELECT DISTINCT mode FROM pg_locks WHERE relation = 'orders'::regclass"
        " AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'SIReadLock')"
    )
    assert locks == []
    db.run(f"GRANT SELECT ON orders TO {user}")
    other.execute("SET lock_timeout = '60s'")
    create(other, f"of_{user}")
    db.run(f"REVOKE SELECT ON orders FROM {user}")
    db.run(f"DROP TABLE of_{user}; RESET lock_timeout")


def test_transactions_that_stay_open(db: Database, mallory: Connection, role: Role, eventually: Eventually) -> None:
    other = role("other")
    create(mallory, "whole", refresh_mode="FULL")
    mallory.execute("BEGIN")
    create(mallory, "held")
    create(mallory, "held_too", initialize=False)
    assert mallory.execute("SELECT customer, n FROM held").fetchall() == [("a", 1)]
    assert_nobody_waits(db, other)
    mallory.execute("SELECT pgtrickle.alter_stream_table('whole', refresh_mode => 'DIFFERENTIAL')")
    assert_nobody_waits(db, other)
    mallory.execute("COMMIT")
    db.assert_differential("held")
    db.run("ALTER TABLE orders DISABLE TRIGGER USER; ALTER TABLE orders ENABLE TRIGGER USER")
    mallory.execute("BEGIN")
    mallory.execute("SELECT pgtrickle.refresh_stream_table('whole')")  # what was captured cannot be trusted
    assert_nobody_waits(db, other)
    mallory.execute("COMMIT")
    db.assert_current("whole")
    mallory.execute("CREATE VIEW mine AS SELECT id FROM orders")
    mallory.execute("BEGIN")
    mallory.execute("SELECT pgtrickle.retain_history('mine', '1 hour')")
    assert_nobody_waits(db, other)
    mallory.execute("COMMIT")
    assert db.rows("SELECT period, error FROM pgtrickle.history_status()") == [(timedelta(hours=1), None)]
    mallory.execute("BEGIN")
    mallory.execute("SELECT pgtrickle.retain_history('mine', NULL)")
    for name in ("whole", "held", "held_too"):
        mallory.execute("SELECT pgtrickle.drop_stream_table(%s)", [name])
    mallory.execute("SELECT pgtrickle._untrack_sources()")
    assert_nobody_waits(db, other)
    mallory.execute("COMMIT")
    mallory.execute("BEGIN")
    create(mallory, "never")
    mallory.execute("ROLLBACK")
    eventually(
        lambda: db.value("SELECT count(*) FROM pg_trigger WHERE tgrelid = 'orders'::regclass") == 0,
        what="the end of the capture",
    )


def test_functions_of_the_server_called_by_hand(db: Database, mallory: Connection) -> None:
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
    for call in ("_capture_ahead('{}')", "_may_lock(1)", "_keep_captures(NULL)", "_try_lock_privileges(1)"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            mallory.execute(f"SELECT pgtrickle.{call}".encode())
    # A transaction that would wait for itself is refused, and one that would not see what is captured.
    db.run(f"GRANT INSERT ON orders TO {mallory.info.user}")
    mallory.execute("BEGIN; INSERT INTO orders VALUES (3, 'd')")
    with pytest.raises(psycopg.errors.ObjectInUse, match="while this transaction uses it"):
        create(mallory, "held")
    mallory.execute("ROLLBACK")
    mallory.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    with pytest.raises(psycopg.errors.SerializationFailure, match="concurrent change capture"):
        create(mallory, "held", initialize=False)
    mallory.execute("ROLLBACK")
    # Who could lock the table has it captured in his own transaction.
    db.run(f"GRANT DELETE ON orders TO {mallory.info.user}")
    mallory.execute("BEGIN; DELETE FROM orders")
    create(mallory, "held")
    assert mallory.execute("SELECT customer, n FROM held").fetchall() == []
    mallory.execute("ROLLBACK")


@pytest.mark.long
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
    other = role("other")
    sleeping = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND usename = %s"
    try:
        eventually(lambda: db.rows(sleeping, mallory.info.user), what="the commit")
        assert_nobody_waits(db, other)
    finally:
        db.run(f"SELECT pg_terminate_backend(pid) FROM ({sleeping}) AS s", mallory.info.user)
        thread.join(60)
    assert not thread.is_alive()
