"""What is captured of a table is stored with the engine's rights: its owner must have no code run on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

TRAP = """
CREATE TYPE trap.evil AS (x int);
CREATE FUNCTION trap.spring(trap.evil) RETURNS int LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO trap.sprung VALUES (current_user); RETURN 1; END $$;
CREATE FUNCTION trap.made(int) RETURNS trap.evil LANGUAGE sql AS $$ SELECT ROW($1)::trap.evil $$;
CREATE CAST (trap.evil AS int) WITH FUNCTION trap.spring(trap.evil) AS IMPLICIT;
CREATE CAST (int AS trap.evil) WITH FUNCTION trap.made(int) AS ASSIGNMENT;
CREATE TABLE trap.sprung (who name)
"""

PLAIN = "CREATE TABLE trap.t (id int PRIMARY KEY, a int)"
RETYPED = "ALTER TABLE trap.t ALTER a TYPE trap.evil USING ROW (1)::trap.evil"
ROW = "INSERT INTO trap.t VALUES (1, ROW (1)::trap.evil)"

# What the table is, what happens to it while it is captured, and what brings the value in.
UNSEEN = {
    "parent": (PLAIN, "ALTER TABLE trap.t INHERIT trap.p; ALTER TABLE trap.p ALTER a TYPE trap.evil", ROW),
    "type of the table": (
        "CREATE TYPE trap.form AS (id int, a int); CREATE TABLE trap.t OF trap.form (PRIMARY KEY (id))",
        "ALTER TYPE trap.form ALTER ATTRIBUTE a TYPE trap.evil CASCADE",
        ROW,
    ),
    "column": (PLAIN, RETYPED, ROW),
    "another column": (PLAIN, "ALTER TABLE trap.t DROP a, ADD a trap.evil", ROW),
    "domain": ("CREATE DOMAIN trap.d AS int; CREATE TABLE trap.t (id int PRIMARY KEY, a trap.d)", RETYPED, ROW),
}


@pytest.fixture
def mallory(db: Any, role: Callable[..., psycopg.Connection[Any]]) -> psycopg.Connection[Any]:
    """An ordinary role."""
    return role("mallory")


def capture(db: Any, mallory: psycopg.Connection[Any], table: str, column: str = "a") -> None:
    """In a schema of its own, with a type that runs code where it becomes an integer."""
    db.run("DROP SCHEMA IF EXISTS trap CASCADE")
    db.run(f"CREATE SCHEMA trap AUTHORIZATION {mallory.info.user}")
    mallory.execute(TRAP)
    mallory.execute(f"CREATE TABLE trap.p (a int); {table}")
    query = f"SELECT {column}, count(*) AS n FROM trap.t GROUP BY {column}"
    mallory.execute("SELECT pgtrickle.create_stream_table('trap.st', %s)", [query])


def attempt(mallory: psycopg.Connection[Any], statement: str) -> str | None:
    """The error of a statement, if any; nobody else has run the code."""
    try:
        mallory.execute(statement)
        return None
    except psycopg.Error as error:
        return error.sqlstate
    finally:
        assert mallory.execute("SELECT who FROM trap.sprung").fetchall() == []


def test_column_of_another_type_is_not_converted(db: Any, mallory: psycopg.Connection[Any]) -> None:
    """Where another relation is altered, and this one with it: capture follows, and the table can be written."""
    for table, alteration, row in (UNSEEN["parent"], UNSEEN["type of the table"]):
        capture(db, mallory, table)
        mallory.execute(alteration)
        assert attempt(mallory, row) is None
        assert attempt(mallory, "UPDATE trap.t SET a = ROW (2)::trap.evil") is None
        assert attempt(mallory, "DELETE FROM trap.t") is None


def test_column_whose_change_goes_unnoticed_is_not_converted(db: Any, mallory: psycopg.Connection[Any]) -> None:
    """An event trigger notices; a server without a superuser's rights has none."""
    for case, (table, alteration, row) in UNSEEN.items():
        db.run("ALTER EVENT TRIGGER pg_trickle_ddl_tracker ENABLE")
        capture(db, mallory, table)
        db.run("ALTER EVENT TRIGGER pg_trickle_ddl_tracker DISABLE")
        mallory.execute(alteration)
        assert attempt(mallory, row) == ("55000" if case == "domain" else "42883")


def test_expression_of_a_column_that_was_replaced_is_not_computed(db: Any, mallory: psycopg.Connection[Any]) -> None:
    if db.connection.info.server_version < 180000:
        pytest.skip("no virtual columns")
    capture(
        db, mallory, "CREATE TABLE trap.t (id int PRIMARY KEY, a int, v int GENERATED ALWAYS AS (a + 1) VIRTUAL)", "v"
    )
    db.run("ALTER EVENT TRIGGER pg_trickle_ddl_tracker DISABLE")
    mallory.execute("ALTER TABLE trap.t DROP v, DROP a")
    mallory.execute("ALTER TABLE trap.t ADD a trap.evil, ADD v int GENERATED ALWAYS AS (id + 1) VIRTUAL")
    assert attempt(mallory, ROW) == "55000"


def test_columns_with_any_name_and_of_any_kind_are_captured(db: Any) -> None:
    """What is of a domain, of an enum, an array, or has a sign in its name that formats know."""
    db.run("CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE TYPE mood AS ENUM ('sad', 'ok')")
    db.run('CREATE TABLE t ("100%s" int PRIMARY KEY, "%I" positive, "a""b" mood, n numeric(9, 2)[], c varchar(3))')
    db.create("st", "SELECT * FROM t")
    db.run("INSERT INTO t VALUES (1, 2, 'sad', '{1.5}', 'abc'), (2, 3, 'ok', '{}', NULL)")
    db.assert_differential("st")
    db.run("""UPDATE t SET "%I" = 9 WHERE "100%s" = 1""")
    db.assert_differential("st")
