"""What is dropped is what was meant: names can go to another table while a lock is waited for."""

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


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT pgtrickle.drop_stream_table('mine.st')",
        pytest.param("DROP SOURCE mine.st", marks=pytest.mark.long),
        pytest.param("undo_creation", marks=pytest.mark.long),
    ],
)
def test_table_that_gets_the_name_meanwhile_is_not_dropped(
    db: Database, role: Role, eventually: Eventually, statement: str
) -> None:
    """A superuser drops a table in a schema of somebody's, who waits for that with another schema at hand."""
    mallory = role("mallory")
    user = mallory.info.user
    db.run(f"CREATE SCHEMA mine AUTHORIZATION {user}; CREATE SCHEMA bait AUTHORIZATION {user}")
    db.run("CREATE TABLE bait.st (n int); INSERT INTO bait.st VALUES (1)")
    # Without event triggers, which only a superuser can make, a renamed schema is not noticed.
    db.run(f"GRANT CREATE ON DATABASE {db.name} TO {user}; ALTER EVENT TRIGGER pg_trickle_ddl_tracker DISABLE")
    if statement.startswith("DROP SOURCE"):
        db.run("CREATE SOURCE mine.st FROM LOAD GENERATOR COUNTER (TICK INTERVAL '1 hour')")
        db.run(f"GRANT SELECT ON mine.st TO {user}")
    else:
        mallory.execute("SELECT pgtrickle.create_stream_table('mine.st', 'SELECT 1 AS n', initialize => false)")
    if statement == "undo_creation":  # what the server does where the second step of a creation fails
        statement = "SELECT pgtrickle._drop_table('mine.st'::regclass, true)"
    failures: list[psycopg.Error] = []

    def drop() -> None:
        try:
            db.run(statement)
        except psycopg.Error as error:
            failures.append(error)

    mallory.execute("BEGIN; LOCK TABLE mine.st IN ACCESS SHARE MODE")
    thread = threading.Thread(target=drop)
    thread.start()
    spy = db.bypass()
    waits = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'mine.st'::regclass"
    try:
        eventually(lambda: spy.execute(waits).fetchall(), what="the drop")
        mallory.execute("ALTER SCHEMA mine RENAME TO away; ALTER SCHEMA bait RENAME TO mine; COMMIT")
    finally:
        mallory.close()
        thread.join(60)
    assert not thread.is_alive()
    assert [error.sqlstate for error in failures] == ["40001"]
    assert spy.execute("SELECT n FROM mine.st").fetchall() == [(1,)]
    assert spy.execute("SELECT to_regclass('away.st') IS NOT NULL").fetchone() == (True,)
