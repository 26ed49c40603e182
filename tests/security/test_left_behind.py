"""What an owner's code does in the session of somebody else who refreshes by hand ends with the refresh."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Connection = psycopg.Connection[Any]
Role = Callable[..., Connection]


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture
def admin(db: Database, role: Role) -> Connection:
    """A superuser's session, before a refresh of mallory's stream table, whose query calls what `lay` does in it."""
    mallory = role("mallory")
    db.run(
        f"CREATE SCHEMA lair AUTHORIZATION {mallory.info.user}; CREATE TABLE t (id int PRIMARY KEY, v int);"
        f"GRANT SELECT ON t TO {mallory.info.user}; INSERT INTO t VALUES (1, 1)"
    )
    mallory.execute(
        "CREATE TABLE lair.code (statement text);"
        "CREATE FUNCTION lair.lay(n int) RETURNS void LANGUAGE plpgsql AS $$ DECLARE s text; BEGIN"
        " IF session_user <> current_user"
        "     AND pg_current_xact_id()::text IS DISTINCT FROM current_setting('lair.laid', true) THEN"
        "     PERFORM set_config('lair.laid', pg_current_xact_id()::text, true);"
        "     FOR s IN SELECT statement FROM lair.code LOOP EXECUTE s; END LOOP;"
        " END IF; END $$;"
        "CREATE FUNCTION lair.laying(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN PERFORM lair.lay(n); RETURN n; END $$"
    )
    mallory.execute("SELECT pgtrickle.create_stream_table('lair.st', 'SELECT id, lair.laying(v) AS v FROM t', '1h')")
    db.run("UPDATE t SET v = v + 1")
    return db.connect()


def lay(db: Database, *statements: str) -> None:
    db.run("TRUNCATE lair.code")
    for statement in statements:
        db.run("INSERT INTO lair.code VALUES (%s)", statement)


def refused(admin: Connection, match: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=match):
        admin.execute("SELECT pgtrickle.refresh_stream_table('lair.st')")


def locks(admin: Connection) -> list[tuple[Any, ...]]:
    """The session's advisory locks: how often each is held is found out by releasing them."""
    held = admin.execute(
        "SELECT classid::int, objid::int, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    ).fetchall()
    return sorted(held)


@pytest.mark.parametrize("kind", ["TABLE {} (n int)", "VIEW {} AS SELECT 1 AS n", "SEQUENCE {}"])
def test_no_temporary_relation_is_left_whatever_its_name(db: Database, admin: Connection, kind: str) -> None:
    lay(db, "CREATE TEMPORARY " + kind.format("__pgt_trap"))
    refused(admin, "temporary objects")
    assert admin.execute("SELECT to_regclass('pg_temp.__pgt_trap')").fetchone() == (None,)


def test_no_advisory_lock_is_left(db: Database, admin: Connection) -> None:
    admin.execute("SELECT pg_advisory_lock(-7), pg_advisory_lock_shared(1, -2)")
    before = locks(admin)
    for taken in ("pg_advisory_lock(4711)", "pg_advisory_lock(-7)", "pg_advisory_lock_shared(1, -2)"):
        lay(db, f"SELECT {taken}")
        refused(admin, "advisory locks")
        assert locks(admin) == before, taken
    lay(db, "SELECT pg_advisory_lock(4711)", "SELECT 1/0")  # a statement that fails keeps them, too
    with pytest.raises(psycopg.errors.DivisionByZero):
        admin.execute("SELECT pgtrickle.refresh_stream_table('lair.st')")
    assert locks(admin) == before
    released = "SELECT pg_advisory_unlock(-7), pg_advisory_unlock_shared(1, -2)"
    assert admin.execute(released).fetchone() == (True, True)
    assert locks(admin) == [], "each was held once"


def test_no_advisory_lock_is_lost(db: Database, admin: Connection) -> None:
    admin.execute("SELECT pg_advisory_lock(-7), pg_advisory_lock(-7)")
    for released in ("pg_advisory_unlock(-7)", "pg_advisory_unlock_all()"):
        lay(db, f"SELECT {released}")
        refused(admin, "advisory locks")
        assert len(locks(admin)) == 1
    for held in (True, True, False):
        assert admin.execute("SELECT pg_advisory_unlock(-7)").fetchone() == (held,)


def test_advisory_locks_of_the_transaction_are_no_error(db: Database, admin: Connection) -> None:
    lay(db, "SELECT pg_advisory_xact_lock(4711)")
    admin.execute("SELECT pgtrickle.refresh_stream_table('lair.st')")
    assert locks(admin) == []
    assert db.rows("SELECT id, v FROM lair.st") == db.rows("SELECT id, v FROM t")


def test_no_prepared_statement_is_left_by_what_fails(db: Database, admin: Connection) -> None:
    lay(db, "PREPARE trap AS SELECT 666", "SELECT 1/0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        admin.execute("SELECT pgtrickle.refresh_stream_table('lair.st')")
    assert admin.execute("SELECT name FROM pg_prepared_statements WHERE name = 'trap'").fetchall() == []


def test_no_cursor_is_left_open(db: Database, admin: Connection) -> None:
    lay(db, "DECLARE trap CURSOR WITH HOLD FOR SELECT 666")
    refused(admin, "cursors")
    assert admin.execute("SELECT name FROM pg_cursors WHERE is_holdable").fetchall() == []


def test_session_listens_to_what_it_has_listened_to(db: Database, admin: Connection) -> None:
    admin.execute('LISTEN "Mine"; LISTEN other')
    for statements in (["LISTEN hers"], ["UNLISTEN *"], ['UNLISTEN "Mine"', "LISTEN hers"]):
        lay(db, *statements)
        db.run("UPDATE t SET v = v + 1")
        admin.execute("SELECT pgtrickle.refresh_stream_table('lair.st')")
        heard = admin.execute("SELECT pg_listening_channels() ORDER BY 1").fetchall()
        assert heard == [("Mine",), ("other",)], statements
    assert db.rows("SELECT id, v FROM lair.st") == db.rows("SELECT id, v FROM t")


def test_temporary_tables_of_a_replay_are_read_with_the_subscribers_rights(
    db: Database, role: Role, eventually: Callable[..., Any]
) -> None:
    """They are the subscriber's, whose code can put a view in their place."""
    mallory = role("mallory")
    mallory.execute("CREATE TABLE mine (id int PRIMARY KEY, v int); INSERT INTO mine VALUES (1, 1)")
    mallory.execute(
        "CREATE FUNCTION evil() RETURNS bigint LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'evil %', current_user; END $$;"
        "CREATE FUNCTION trap(n int) RETURNS boolean LANGUAGE plpgsql AS $$"
        " DECLARE versions text := '__pgt_versions_' || 'public.mine'::regclass::oid; BEGIN"
        " IF session_user <> current_user"
        "     AND EXISTS (SELECT FROM pg_class WHERE relname = versions AND relkind = 'r') THEN"
        "     EXECUTE format('DROP TABLE pg_temp.%I', versions);"
        "     EXECUTE format('CREATE VIEW pg_temp.%I AS SELECT 1 AS id, 1 AS v, 1::bigint AS __pgt_copies,"
        " public.evil() AS __pgt_since, public.evil() AS __pgt_until', versions);"
        " END IF; RETURN true; END $$;"
        "CREATE DOMAIN trapping AS int CHECK (trap(VALUE))"
    )
    mallory.execute("SELECT pgtrickle.retain_history('mine', '1 hour')")
    held = "SELECT max(held_from) FROM pgtrickle.history_status() HAVING count(held_from) = 1"
    ((since,),) = eventually(lambda: db.rows(held), what="it is held")
    mallory.execute("INSERT INTO mine VALUES (2, 2)")
    query = "SELECT v % 2 AS odd, max(id) AS most FROM mine WHERE '{1}'::trapping[] IS NOT NULL GROUP BY v % 2"
    asked = f"COPY (SUBSCRIBE ({query}) WITH (SNAPSHOT = false) AS OF {since}) TO STDOUT"
    with (
        pytest.raises(psycopg.Error, match=f"evil {mallory.info.user}"),
        mallory.cursor().copy(asked.encode()) as copy,
    ):
        next(iter(copy))


def test_no_other_encoding_is_left(db: Database, admin: Connection) -> None:
    """What the engine says afterwards would be read as something else, such as names in the session's search_path."""
    admin.execute("SET search_path = \"Käse\", public; SET application_name = 'Müller'")
    path = admin.execute("SHOW search_path").fetchone()
    lay(db, "SELECT set_config('client_encoding', 'LATIN1', false)")
    refused(admin, "client_encoding")
    assert admin.execute("SHOW client_encoding").fetchone() == ("UTF8",)
    assert admin.execute("SHOW search_path").fetchone() == path
