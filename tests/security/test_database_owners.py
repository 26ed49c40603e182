"""The owner of a database decides how sessions in it begin: the server's own are not his."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater

OWNER = "mallory_owner"
BASE = "mallory_base"

TRAP = """
CREATE SCHEMA trap;
CREATE TABLE trap.sprung (who name);
CREATE FUNCTION trap.spring(text, text) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO trap.sprung VALUES (current_user); RETURN $1; END $$;
CREATE OPERATOR trap.|| (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.spring);
CREATE FUNCTION trap.same(text, text) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO trap.sprung VALUES (current_user); RETURN true; END $$;
CREATE OPERATOR trap.= (LEFTARG = text, RIGHTARG = text, FUNCTION = trap.same)
"""


@pytest.fixture
def owned(server: Headwater) -> Iterator[Database]:
    """A role's own database, in which each session begins as that role; connected to as that role."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {OWNER} LOGIN PASSWORD 'secret'".encode())
        connection.execute(f"CREATE DATABASE {BASE} OWNER {OWNER}".encode())
        try:
            with psycopg.connect(server.dsn(user=OWNER, password="secret"), autocommit=True) as before:
                before.execute(f"ALTER DATABASE {BASE} SET role = '{OWNER}'".encode())
            database = Database(server, BASE)
            database.connection = database.connect(user=OWNER, password="secret")
            yield database
            database.close()
        finally:
            connection.execute(f"DROP DATABASE {BASE} WITH (FORCE)".encode())
            connection.execute(f"DROP ROLE {OWNER}".encode())


def test_role_and_operators_of_a_database_are_not_the_servers(owned: Database) -> None:
    """What is installed would else be the owner's to replace, and be called in sessions of a superuser."""
    ours = "SELECT count(*) FROM pg_namespace n WHERE n.nspname ~ '^(pgtrickle|pgque|accum)' AND"
    assert owned.value(f"{ours} pg_has_role(n.nspowner, 'USAGE')") == 0
    assert owned.value(f"{ours} true") > 5
    owned.run("CREATE TABLE t (id int PRIMARY KEY)")
    owned.create("st", "SELECT id FROM t", schedule="1s")
    owned.run(TRAP)
    owned.run(f"ALTER DATABASE {BASE} SET search_path = trap, pg_catalog, public")
    assert "public.st" in owned.server.status()
    assert owned.rows("SELECT who FROM trap.sprung") == []
