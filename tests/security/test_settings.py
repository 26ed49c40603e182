"""Who refreshes a stream table of another role's keeps the settings of his session, whatever its functions set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Role = Callable[..., psycopg.Connection[Any]]

LURK = """
SET search_path = lair, pg_catalog;
CREATE FUNCTION lurk() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
    IF pg_catalog.current_setting('lair.quiet', true) = 'yes' THEN
        RETURN;
    END IF;
    -- What holds from the commit on, below values that look as they should until then.
    PERFORM pg_catalog.set_config('search_path', 'lair, pg_catalog', false),
            pg_catalog.set_config('standard_conforming_strings', 'off', false),
            pg_catalog.set_config('work_mem', '77MB', false);
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
            pg_catalog.set_config('standard_conforming_strings', 'on', true),
            pg_catalog.set_config('work_mem', '5MB', true),
            pg_catalog.set_config('default_transaction_read_only', 'on', false),
            pg_catalog.set_config('lock_timeout', '1', true),
            pg_catalog.set_config('row_security', 'off', false),
            pg_catalog.set_config('headwater.engine', 'on', false),
            pg_catalog.set_config('pgtrickle.revoking', 'on', false);
END $$;
CREATE FUNCTION lurking(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM lair.lurk(); RETURN n; END $$;
CREATE FUNCTION lurk_later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM lair.lurk(); RETURN NULL; END $$;
CREATE TABLE late (n int);
CREATE CONSTRAINT TRIGGER later AFTER INSERT ON late DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION lurk_later();
CREATE FUNCTION equal(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN PERFORM lair.lurk(); RETURN 1; END $$;
CREATE TABLE exclusive (
    n int, EXCLUDE USING btree (equal(n) WITH OPERATOR(pg_catalog.=)) DEFERRABLE INITIALLY DEFERRED
);
CREATE FUNCTION put_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    SET CONSTRAINTS ALL DEFERRED;
    EXECUTE pg_catalog.format('INSERT INTO lair.%I VALUES (1)', TG_ARGV[0]);
    -- What would have been in conflict has gone by the time that is looked at.
    EXECUTE pg_catalog.format('DELETE FROM lair.%I WHERE xmin <> pg_current_xact_id()::xid', TG_ARGV[0]);
    RETURN NULL;
END $$;
INSERT INTO exclusive VALUES (1);
RESET search_path;
"""
CALLS = "SELECT id, lair.lurking(v) AS v FROM public.t"
PLAIN = "SELECT id, v FROM public.t"
PUT_OFF = """
CREATE CONSTRAINT TRIGGER first AFTER INSERT OR UPDATE ON lair.st DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION lair.put_off(%s)
"""


@pytest.fixture
def lair(db: Database, role: Role) -> psycopg.Connection[Any]:
    """Mallory's session, quiet; her schema `lair`, and a table that she may read."""
    mallory = role("mallory")
    db.run(
        f"CREATE SCHEMA lair AUTHORIZATION {mallory.info.user}; CREATE TABLE t (id int PRIMARY KEY, v int);"
        f"GRANT SELECT ON t TO {mallory.info.user}; INSERT INTO t VALUES (1, 1)"
    )
    mallory.execute("SET lair.quiet = 'yes'")
    mallory.execute(LURK)
    return mallory


def settings(session: psycopg.Connection[Any]) -> dict[str, str]:
    session.execute("DO $$ BEGIN END $$")  # PL/pgSQL has settings, too, once it is there
    return dict(session.execute("SELECT name, setting FROM pg_catalog.pg_settings").fetchall())


def changed(session: psycopg.Connection[Any], before: dict[str, str]) -> set[tuple[str, str]]:
    return set(settings(session).items()) ^ set(before.items())


def test_settings_are_as_before(db: Database, lair: psycopg.Connection[Any]) -> None:
    for way, query, prepared in (
        ("a function in the query", CALLS, ""),
        ("with the owner's role", CALLS, ""),
        ("a trigger that is put off", PLAIN, PUT_OFF % "late"),
        ("a constraint that is put off", PLAIN, PUT_OFF % "exclusive"),
    ):
        lair.execute("SELECT pgtrickle.create_stream_table('lair.st', %s, '1h')", [query])
        lair.execute(prepared.encode())
        admin = db.connect()
        admin.execute("SET search_path = public, pg_catalog; SET work_mem = '9MB'; SET lock_timeout = '7min'")
        if way == "with the owner's role":
            admin.execute(f"SET ROLE {lair.info.user}".encode())
        before = settings(admin)
        for block in (False, True):
            db.run("UPDATE t SET v = v + 1")
            if block:
                admin.execute("BEGIN")
            admin.execute("SELECT pgtrickle.refresh_stream_table('lair.st')")
            assert changed(admin, before) == set(), way
            if block:
                admin.execute("COMMIT")
                assert changed(admin, before) == set(), way
            own = "SELECT current_setting('headwater.engine', true), current_setting('pgtrickle.revoking', true)"
            assert admin.execute(own.encode()).fetchone() == ("", ""), way
        assert db.rows("SELECT id, v FROM lair.st") == db.rows("SELECT id, v FROM t")
        lair.execute("SELECT pgtrickle.drop_stream_table('lair.st')")
    db.run("DROP SCHEMA lair CASCADE")


def test_settings_of_a_transaction_are_undone_by_its_rollback(db: Database, lair: psycopg.Connection[Any]) -> None:
    lair.execute("SELECT pgtrickle.create_stream_table('lair.st', %s, '1h')", [CALLS])
    db.run("UPDATE t SET v = v + 1")
    admin = db.connect()
    before = settings(admin)
    admin.execute("BEGIN; SET LOCAL search_path = public, pg_catalog")
    admin.execute("SELECT pgtrickle.refresh_stream_table('lair.st')")
    assert admin.execute("SHOW search_path").fetchone() == ("public, pg_catalog",)
    admin.execute("ROLLBACK")
    assert changed(admin, before) == set()
    db.run("DROP SCHEMA lair CASCADE")


def test_nothing_is_left_in_the_schema_of_temporary_objects(db: Database, lair: psycopg.Connection[Any]) -> None:
    """A function there is preferred to one of the session's own whose arguments fit less well."""
    lair.execute(
        "CREATE FUNCTION lair.lay(n int) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
        " IF session_user <> current_user THEN"
        "     EXECUTE 'CREATE OR REPLACE FUNCTION pg_temp.trap(int) RETURNS int LANGUAGE sql RETURN 666';"
        " END IF; END $$;"
        "CREATE FUNCTION lair.laying(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN PERFORM lair.lay(n); RETURN n; END $$"
    )
    admin = db.connect()
    lair.execute("SELECT pgtrickle.create_stream_table('lair.st', 'SELECT id, lair.laying(v) AS v FROM t', '1h')")
    admin.execute("CREATE FUNCTION pg_temp.trap(bigint) RETURNS int LANGUAGE sql RETURN 1")
    db.run("UPDATE t SET v = v + 1")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="temporary objects"):
        admin.execute("SELECT pgtrickle.refresh_stream_table('lair.st')")
    assert admin.execute("SELECT pg_temp.trap(1)").fetchone() == (1,)
    db.run("DROP SCHEMA lair CASCADE")
