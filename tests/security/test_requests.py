"""A request is made by the session itself: nobody else's code makes one in its name, whatever runs that code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Connection = psycopg.Connection[Any]

# What a superuser does for somebody else's table, which computes the expression of an index or a materialized view.
MAINTENANCE = (
    "ANALYZE bait",
    "VACUUM ANALYZE bait",
    "REINDEX TABLE bait",
    "REINDEX INDEX CONCURRENTLY bait_index",
    "CLUSTER bait USING bait_index",
    "CREATE INDEX ON bait (ask(id + 1))",
    "VACUUM FULL bait",
    "REFRESH MATERIALIZED VIEW bait_view",
)

# How it asks: through our functions, or by a row of its own. Each would do harm with a superuser's rights.
REQUESTS = {
    "drop extension": "PERFORM pgtrickle._request_extension('drop', 'pg_accumulator', false, true, NULL, NULL)",
    "row of an extension": "INSERT INTO pgtrickle.pgt_requests (kind, arguments, search_path) VALUES ('extension',"
    """ '{"action": "drop", "name": "pg_accumulator", "guarded": false, "cascade": true}', 'public')""",
    "statement": "PERFORM pgtrickle._request_statement('CREATE SOURCE public.planted FROM LOAD GENERATOR COUNTER')",
    "row of a statement": "INSERT INTO pgtrickle.pgt_requests (kind, arguments, search_path) VALUES ('statement',"
    """ '{"statement": "CREATE SOURCE public.planted FROM LOAD GENERATOR COUNTER"}', 'public')""",
    "copy": "PERFORM pgtrickle._request_copy('COPY public.admins_table FROM ''file:///etc/passwd''')",
    "create": "PERFORM pgtrickle.create_stream_table('public.planted', 'SELECT 1 AS n')",
    "drop": "PERFORM pgtrickle.drop_stream_table('public.admins')",
    "alter": "PERFORM pgtrickle.alter_stream_table('public.admins', status => 'SUSPENDED')",
    "refresh": "PERFORM pgtrickle.refresh_stream_table('public.admins')",
    "retain": "PERFORM pgtrickle.retain_history('public.admins_table', '1 hour')",
    "publish": "PERFORM pgtrickle.publish('public.admins', 'delta', '/nonexistent/admins')",
}

SETTINGS = "; ".join(
    f"PERFORM pg_catalog.set_config('{name}', '{{value}}', false)"
    for name in ("headwater.relay", "pgtrickle.carrying_out", "pgtrickle.maintenance", "headwater.alone")
)


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture
def mallory(db: Any, role: Callable[..., Connection]) -> Connection:
    db.run("CREATE TABLE admins_table (id int PRIMARY KEY, note text)")
    db.create("admins", "SELECT id FROM admins_table")
    return role("mallory")


def bait(mallory: Connection, request: str, value: str = "on") -> None:
    """Lay out a table, an index and a materialized view whose function makes a request in the session of another."""
    user = mallory.info.user
    mallory.execute(
        "CREATE FUNCTION act() RETURNS void VOLATILE LANGUAGE plpgsql AS $f$ BEGIN"
        # There PostgreSQL lets no trigger be deferred.
        f" {SETTINGS.format(value=value)}; SET CONSTRAINTS pgtrickle.request_left IMMEDIATE; {request};"
        " RAISE INFO USING ERRCODE = 'HW001', MESSAGE = '1'; EXCEPTION WHEN OTHERS THEN NULL; END $f$;"
        "CREATE FUNCTION ask(v bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $f$ BEGIN"
        f" IF session_user <> '{user}' THEN PERFORM public.act(); PERFORM public.called(); END IF; RETURN v; END $f$;"
        "CREATE TABLE calls (n int);"
        "CREATE FUNCTION called() RETURNS void LANGUAGE sql AS 'INSERT INTO public.calls VALUES (1)';"
        "CREATE TABLE bait AS SELECT n::int AS id FROM generate_series(1, 3) AS n;"
        "CREATE INDEX bait_index ON bait (public.ask(id));"
        "CREATE MATERIALIZED VIEW bait_view AS SELECT public.ask(id) AS v FROM public.bait"
    )


def assert_nothing_done(db: Any, history: int) -> None:
    state = db.rows(
        "SELECT to_regnamespace('accum') IS NOT NULL, to_regclass('public.planted') IS NULL,"
        " (SELECT status FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'admins'),"
        " (SELECT count(*) FROM pgtrickle.pgt_refresh_history), (SELECT count(*) FROM pgtrickle.pgt_history),"
        " (SELECT count(*) FROM admins_table), (SELECT count(*) FROM pgtrickle.pgt_requests)"
    )
    assert state == [(True, True, "ACTIVE", history, 0, 0, 0)]


@pytest.mark.parametrize("request_", list(REQUESTS))
@pytest.mark.one_in(2)
def test_maintenance_of_somebody_elses_table_makes_no_request(db: Any, mallory: Connection, request_: str) -> None:
    bait(mallory, REQUESTS[request_])
    history = db.value("SELECT count(*) FROM pgtrickle.pgt_refresh_history")
    for connection in (db.connection, db.bypass()):
        for statement in MAINTENANCE:
            mallory.execute("TRUNCATE calls; DROP INDEX IF EXISTS bait_expr_idx")
            connection.execute(statement)
            assert db.value("SELECT count(*) FROM calls") > 0, f"{statement} did not even call the function"
            assert_nothing_done(db, history)
            connection.execute("RESET ALL")


@pytest.mark.parametrize("request_", list(REQUESTS))
@pytest.mark.parametrize("value", ["on", "off"])
@pytest.mark.one_in(2)
def test_security_definer_function_makes_no_request_for_its_caller(
    db: Any, mallory: Connection, request_: str, value: str
) -> None:
    mallory.execute(
        "CREATE FUNCTION gift() RETURNS text SECURITY DEFINER LANGUAGE plpgsql AS $f$ BEGIN"
        f" {SETTINGS.format(value=value)}; {REQUESTS[request_]}; RETURN 'done'; END $f$"
    )
    history = db.value("SELECT count(*) FROM pgtrickle.pgt_refresh_history")
    for connection in (db.connection, db.bypass()):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="cannot request"):
            connection.execute("SELECT gift()")
        connection.execute("RESET ALL")
        assert_nothing_done(db, history)


def test_row_of_a_request_cannot_be_anothers(db: Any, mallory: Connection) -> None:
    columns = {
        "requested_by": "10",
        "session_role": "10",
        "xid": "'1'",
        "error": "'x'",
        "attempts": "7",
    }
    with db.bypass(user=mallory.info.user, password="secret") as past:
        for column, value in columns.items():
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                past.execute(
                    f"INSERT INTO pgtrickle.pgt_requests (kind, arguments, search_path, {column})"
                    f" VALUES ('drop', '{{}}', '', {value})"
                )
    # Whoever is let do so by mistake has a row of his own all the same.
    db.run(
        "ALTER DATABASE " + db.name + " SET pg_trickle.enabled = off; GRANT INSERT ON pgtrickle.pgt_requests TO PUBLIC"
    )
    with db.bypass(user=mallory.info.user, password="secret", autocommit=False) as past:
        row = past.execute(
            "INSERT INTO pgtrickle.pgt_requests (kind, arguments, search_path, requested_by, session_role, xid)"
            " VALUES ('drop', '{}', '', 10, 10, '1')"
            " RETURNING requested_by::regrole::text, session_role::regrole::text, xid = pg_current_xact_id()"
        ).fetchone()
        assert row == (mallory.info.user, mallory.info.user, True)
        past.rollback()


def test_request_is_for_the_role_that_the_session_ends_with(db: Any, mallory: Connection) -> None:
    user = mallory.info.user
    mallory.execute(
        f"CREATE FUNCTION as_mallory() RETURNS void LANGUAGE plpgsql SET role = {user} AS"
        " $f$ BEGIN PERFORM pgtrickle.create_stream_table('mine', 'SELECT 1 AS n'); END $f$"
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="cannot carry out a request of role"):
        db.run("SELECT as_mallory()")
    db.run(f"SET ROLE {user}")
    db.run("SELECT as_mallory()")
    db.run("RESET ROLE")
    assert db.value("SELECT tableowner FROM pg_tables WHERE tablename = 'mine'") == user


def test_what_a_session_asks_for_itself_is_carried_out(db: Any, mallory: Connection) -> None:
    """In a function with its caller's rights, in a trigger, in its own SECURITY DEFINER function."""
    mallory.execute(
        "CREATE TABLE t (id int PRIMARY KEY);"
        "CREATE FUNCTION make(name text) RETURNS void LANGUAGE plpgsql AS"
        " $f$ BEGIN PERFORM pgtrickle.create_stream_table(name, 'SELECT id FROM public.t'); END $f$;"
        "CREATE FUNCTION lend(name text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS"
        " $f$ BEGIN PERFORM public.make(name); END $f$;"
        "CREATE FUNCTION made() RETURNS trigger LANGUAGE plpgsql AS"
        " $f$ BEGIN PERFORM public.make('by_trigger'); RETURN NULL; END $f$;"
        "CREATE TABLE wishes (n int);"
        "CREATE TRIGGER made AFTER INSERT ON wishes FOR EACH ROW EXECUTE FUNCTION made()"
    )
    mallory.execute("SELECT make('by_function')")
    mallory.execute("SELECT lend('by_definer')")
    mallory.execute("INSERT INTO wishes VALUES (1)")
    assert db.rows("SELECT pgt_name FROM pgtrickle.pgt_stream_tables WHERE pgt_name LIKE 'by%' ORDER BY 1") == [
        ("by_definer",),
        ("by_function",),
        ("by_trigger",),
    ]
