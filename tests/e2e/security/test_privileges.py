"""Whose rights count: a stream table's query runs with its owner's, and nothing in it can become anybody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture(autouse=True)
def secrets(db: Any) -> None:
    db.run(
        "CREATE TABLE secret (id int PRIMARY KEY, visible text, hidden text, tenant text DEFAULT 'none');"
        "INSERT INTO secret VALUES (1, 'v', 'h'), (2, 'w', 'i')"
    )


@pytest.fixture
def alice(role: Callable[..., Any]) -> psycopg.Connection[Any]:
    connection = role("alice")
    connection.execute("CREATE TABLE mine (id int PRIMARY KEY, v int); INSERT INTO mine VALUES (1, 10), (2, 20)")
    return connection


def create(connection: psycopg.Connection[Any], name: str, query: str, mode: str = "AUTO") -> None:
    connection.execute("SELECT pgtrickle.create_stream_table(%s, %s, refresh_mode => %s)", [name, query, mode])


def refresh(connection: psycopg.Connection[Any], name: str) -> None:
    connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [name])


def user(connection: psycopg.Connection[Any]) -> str:
    return str(connection.info.user)


def test_plain_user_over_own_table(db: Any, alice: psycopg.Connection[Any]) -> None:
    create(alice, "doubled", "SELECT id, v * 2 AS v FROM mine")
    assert db.value("SELECT tableowner FROM pg_tables WHERE tablename = 'doubled'") == user(alice)
    alice.execute("INSERT INTO mine VALUES (3, 30); UPDATE mine SET v = 0 WHERE id = 1")
    refresh(alice, "doubled")
    assert alice.execute("SELECT id, v FROM doubled ORDER BY id").fetchall() == [(1, 0), (2, 40), (3, 60)]
    assert db.last("doubled")[0] == "DIFFERENTIAL"
    alice.execute("SELECT pgtrickle.alter_stream_table('doubled', schedule => '5m', refresh_mode => 'FULL')")
    alice.execute("SELECT pgtrickle.alter_stream_table('doubled', status => 'SUSPENDED')")
    alice.execute("SELECT pgtrickle.resume_stream_table('doubled')")
    alice.execute("SELECT pgtrickle.drop_stream_table('doubled')")
    assert db.value("SELECT to_regclass('doubled')") is None


@pytest.mark.parametrize("mode", ["AUTO", "FULL", "DIFFERENTIAL"])
@pytest.mark.parametrize(
    "query", ["SELECT visible FROM secret", "SELECT count(*) AS n FROM secret", "SELECT 1 AS one FROM secret"]
)
def test_no_right_to_read_a_source(db: Any, alice: psycopg.Connection[Any], mode: str, query: str) -> None:
    before = db.traces()
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="secret"):
        create(alice, "stolen", query, mode)
    assert db.traces() == before


@pytest.mark.parametrize("mode", ["FULL", "DIFFERENTIAL"])
def test_column_rights(db: Any, alice: psycopg.Connection[Any], mode: str) -> None:
    db.run(f"GRANT SELECT (id, visible) ON secret TO {user(alice)}")
    create(alice, "seen", "SELECT id, visible FROM secret", mode)
    db.run("UPDATE secret SET visible = 'changed' WHERE id = 1; INSERT INTO secret VALUES (3, 'x', 'y')")
    refresh(alice, "seen")
    assert alice.execute("SELECT visible FROM seen ORDER BY id").fetchall() == [("changed",), ("w",), ("x",)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        create(alice, "stolen", "SELECT id, hidden FROM secret", mode)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        create(alice, "stolen", "SELECT id FROM secret WHERE hidden = 'h'", mode)


def test_change_buffer_shows_no_column_beyond_the_rights(db: Any, alice: psycopg.Connection[Any]) -> None:
    db.run(f"GRANT SELECT (id, visible) ON secret TO {user(alice)}")
    create(alice, "seen", "SELECT id, visible FROM secret")
    db.create("everything", "SELECT * FROM secret")
    db.run("UPDATE secret SET hidden = 'deeply hidden'")
    buffer = db.value("SELECT 'pgtrickle_changes.changes_' || 'secret'::regclass::oid")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        alice.execute(f"SELECT hidden FROM {buffer}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        alice.execute(f"INSERT INTO {buffer} DEFAULT VALUES")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        alice.execute(f"DELETE FROM {buffer}")


def test_revoked_right_stops_the_refresh(db: Any, alice: psycopg.Connection[Any]) -> None:
    db.run(f"GRANT SELECT ON secret TO {user(alice)}")
    create(alice, "seen", "SELECT id, visible FROM secret")
    db.run(f"REVOKE ALL ON secret FROM {user(alice)}; UPDATE secret SET visible = 'new'")
    for connection in (alice, db.connection):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="secret"):
            refresh(connection, "seen")
    assert db.rows("SELECT visible FROM seen ORDER BY id") == [("v",), ("w",)]


def test_row_level_security_is_not_circumvented(db: Any, alice: psycopg.Connection[Any]) -> None:
    db.run(
        f"GRANT SELECT ON secret TO {user(alice)}; ALTER TABLE secret ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY own ON secret USING (tenant = current_user)"
    )
    for mode in ("AUTO", "FULL", "DIFFERENTIAL"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"(?i)row-level security"):
            create(alice, "all_rows", "SELECT id, visible FROM secret", mode)
    assert db.value("SELECT to_regclass('all_rows')") is None


def test_row_level_security_switched_on_later(db: Any, alice: psycopg.Connection[Any]) -> None:
    db.run(f"GRANT SELECT ON secret TO {user(alice)}")
    create(alice, "seen", "SELECT id, visible FROM secret")
    db.run("ALTER TABLE secret ENABLE ROW LEVEL SECURITY; INSERT INTO secret VALUES (4, 'n', 'n')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"(?i)row-level security") as refused:
        refresh(alice, "seen")
    # The hint says what can be done: that it works.
    assert "ALTER TABLE public.seen OWNER TO" in str(refused.value.diag.message_hint)
    db.run("ALTER TABLE public.seen OWNER TO CURRENT_USER")
    db.assert_refreshed("seen")


def test_row_level_security_on_own_table_does_not_apply_to_its_owner(db: Any, alice: psycopg.Connection[Any]) -> None:
    alice.execute("ALTER TABLE mine ENABLE ROW LEVEL SECURITY")
    create(alice, "doubled", "SELECT id, v * 2 AS v FROM mine")
    alice.execute("INSERT INTO mine VALUES (3, 3)")
    refresh(alice, "doubled")
    assert db.value("SELECT count(*) FROM doubled") == 3


def test_another_users_stream_table_is_untouchable(
    db: Any, alice: psycopg.Connection[Any], role: Callable[..., Any]
) -> None:
    create(alice, "doubled", "SELECT id, v * 2 AS v FROM mine")
    mallory = role("mallory")
    for call in (
        "refresh_stream_table('doubled')",
        "drop_stream_table('doubled')",
        "resume_stream_table('doubled')",
        "alter_stream_table('doubled', schedule => '1s')",
        "alter_stream_table('doubled', status => 'SUSPENDED')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="doubled"):
            mallory.execute(f"SELECT pgtrickle.{call}")
    for statement in ("SELECT * FROM doubled", "SET pgtrickle.maintenance = on; DELETE FROM doubled"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            mallory.execute(statement)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="doubled"):
        create(mallory, "copycat", "SELECT id FROM doubled")
    assert db.state("doubled")["status"] == "ACTIVE"


def test_stream_table_over_another_users_with_a_grant(alice: psycopg.Connection[Any], role: Callable[..., Any]) -> None:
    create(alice, "doubled", "SELECT id, v * 2 AS v FROM mine")
    bob = role("bob")
    alice.execute(f"GRANT SELECT ON doubled TO {user(bob)}")
    create(bob, "summed", "SELECT sum(v) AS s FROM doubled")
    alice.execute("INSERT INTO mine VALUES (3, 5)")
    refresh(alice, "doubled")
    refresh(bob, "summed")
    assert bob.execute("SELECT s FROM summed").fetchone() == (70,)


def test_no_right_to_create_in_a_schema(db: Any, alice: psycopg.Connection[Any]) -> None:
    db.run("CREATE SCHEMA closed")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="closed"):
        create(alice, "closed.st", "SELECT id FROM mine")


def test_catalog_cannot_be_written_by_plain_users(alice: psycopg.Connection[Any]) -> None:
    create(alice, "doubled", "SELECT id, v * 2 AS v FROM mine")
    for statement in (
        "UPDATE pgtrickle.pgt_definitions SET canonical_query = 'SELECT 1'",
        "UPDATE pgtrickle.pgt_stream_tables SET needs_reinit = true",
        "DELETE FROM pgtrickle.pgt_dependencies",
        "INSERT INTO pgtrickle.pgt_requests (kind, arguments, search_path, requested_by) VALUES ('drop', '{}', '', 10)",
        "CREATE TABLE pgtrickle.t (a int)",
        "CREATE TABLE pgtrickle_changes.t (a int)",
        "CREATE FUNCTION pgtrickle.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "SELECT pgtrickle._claim_out_of_band_request(10)",
        "SELECT pgtrickle_roles.as_10('SELECT to_jsonb(1)', '{}')",
        "SELECT pgtrickle._runner(10)",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            alice.execute(statement)


INNOCENT = "CREATE FUNCTION reach(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN {}; RETURN $1; END $$"
"""A function that says it is immutable and has no effects, and calls one that has."""

ESCAPES = {
    "nothing": "INSERT INTO public.loot VALUES (current_user)",
    "reset_role": "EXECUTE 'RESET ROLE'; INSERT INTO public.loot VALUES (current_user)",
    "set_role": "EXECUTE 'SET ROLE postgres'; INSERT INTO public.loot VALUES (current_user)",
    "session_authorization": "EXECUTE 'RESET SESSION AUTHORIZATION'; INSERT INTO public.loot VALUES (current_user)",
    "set_session_authorization": "EXECUTE 'SET SESSION AUTHORIZATION postgres'; INSERT INTO public.loot VALUES"
    " (current_user)",
    "set_config": "PERFORM set_config('role', 'postgres', false); INSERT INTO public.loot VALUES (current_user)",
    "read_secret": "INSERT INTO public.loot SELECT hidden FROM public.secret",
    "create_superuser": "EXECUTE 'CREATE ROLE evil SUPERUSER'",
    "runner_of_postgres": "PERFORM pgtrickle_roles.as_10('SELECT to_jsonb(hidden) FROM public.secret', '{}')",
    "run_as_whoever_calls": "PERFORM pgtrickle._run('WITH l AS (INSERT INTO public.loot VALUES (current_user) RETURNING"
    " 1)"
    " SELECT to_jsonb(1) FROM l', '{}')",
    "drop_others": "PERFORM pgtrickle._unregister(pgt_id) FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'admins'",
    "be_the_superuser": "EXECUTE 'ALTER ROLE ' || quote_ident(session_user) || ' NOSUPERUSER'",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("by", ["owner", "superuser"])
@pytest.mark.parametrize("escape", list(ESCAPES))
def test_function_in_a_defining_query_gains_no_rights(
    db: Any, alice: psycopg.Connection[Any], escape: str, by: str
) -> None:
    """The function pretends to be immutable, waits until somebody refreshes, and then reaches for more."""
    db.create("admins", "SELECT id FROM secret")
    alice.execute(
        "CREATE TABLE loot (what text); GRANT ALL ON loot TO PUBLIC;"
        "CREATE FUNCTION act() RETURNS void VOLATILE LANGUAGE plpgsql AS $$ BEGIN"
        f" {ESCAPES[escape]}; EXCEPTION WHEN OTHERS THEN NULL; END $$;" + INNOCENT.format("PERFORM public.act()")
    )
    create(alice, "trap", "SELECT id, reach(v) AS v FROM mine")
    alice.execute("INSERT INTO mine VALUES (3, 3)")
    try:
        refresh(alice if by == "owner" else db.connection, "trap")
    except psycopg.errors.WrongObjectType:
        assert escape == "run_as_whoever_calls"  # ended its own maintenance
    own = user(alice)
    loot = {what for (what,) in db.rows("SELECT what FROM loot")}
    assert loot <= {own}
    assert loot or escape != "nothing", "the function was not even called"
    assert db.rows("SELECT FROM pg_roles WHERE rolname = 'evil'") == []
    assert db.value("SELECT count(*) FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'admins'") == 1
    assert db.value("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    assert db.value("SELECT current_user = session_user")


# What takes effect only when the query is over and the session has its own rights again.
TRAPS = {
    "search_path": "EXECUTE 'SET search_path = planted, pg_catalog'",
    "search_path_config": "PERFORM set_config('search_path', 'planted, pg_catalog', false)",
    "holdable_cursor": "EXECUTE 'DECLARE later CURSOR WITH HOLD FOR SELECT public.spring()'",
    "prepared_statement": "EXECUTE 'PREPARE __asyncpg_stmt_1__ AS SELECT public.spring()'",
    "prepared_instead_of_another": "FOR n IN SELECT name FROM pg_prepared_statements LOOP"
    " EXECUTE format('DEALLOCATE %I', n);"
    " EXECUTE format('PREPARE %I AS SELECT public.spring()', n); END LOOP",
    "temporary_type": "EXECUTE 'CREATE DOMAIN pg_temp.text AS pg_catalog.text CHECK (public.spring() IS NOT NULL)'",
    "temporary_table": "EXECUTE 'CREATE TEMP TABLE pg_class (x int)'",
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("by", ["owner", "superuser", "scheduler"])
@pytest.mark.parametrize("trap", list(TRAPS))
def test_what_a_function_leaves_in_the_session_gains_no_rights(
    db: Any, alice: psycopg.Connection[Any], trap: str, by: str, eventually: Callable[..., Any]
) -> None:
    alice.execute(
        "CREATE TABLE loot (what text); GRANT ALL ON loot TO PUBLIC; CREATE TABLE armed (yes bool);"
        "CREATE FUNCTION spring() RETURNS text LANGUAGE plpgsql AS $$ BEGIN"
        " BEGIN EXECUTE 'RESET ROLE'; EXCEPTION WHEN OTHERS THEN NULL; END;"
        " INSERT INTO public.loot VALUES (current_user); RETURN 'x'; END $$;"
        "CREATE FUNCTION act(v int) RETURNS void VOLATILE LANGUAGE plpgsql AS $$ DECLARE n text; BEGIN"
        " IF EXISTS (SELECT FROM public.armed) AND session_user <> current_user OR v = 99 THEN"
        f" {TRAPS[trap]}; END IF; EXCEPTION WHEN duplicate_object OR duplicate_prepared_statement OR duplicate_cursor"
        " OR duplicate_table THEN NULL; END $$;" + INNOCENT.format("PERFORM public.act($1)")
    )
    db.run("CREATE SCHEMA planted; GRANT ALL ON SCHEMA planted TO PUBLIC")
    alice.execute(
        "CREATE DOMAIN planted.text AS pg_catalog.text CHECK (public.spring() IS NOT NULL);"
        "CREATE DOMAIN planted.jsonb AS pg_catalog.jsonb CHECK (public.spring() IS NOT NULL)"
    )
    create(alice, "trap", "SELECT id, reach(v) AS v FROM mine")
    alice.execute("INSERT INTO armed VALUES (true)")
    for n in range(1 if by == "scheduler" else 3):
        alice.execute("INSERT INTO mine VALUES (%s, %s)", [10 + n, 99 if by == "owner" else n])
        if by == "scheduler":
            alice.execute("SELECT pgtrickle.alter_stream_table('trap', schedule => '1s')")
            db.run(f"ALTER DATABASE {db.name} SET pg_trickle.enabled = on")
            eventually(lambda: len(db.history("trap")) > 1)
        else:
            connection = alice if by == "owner" else db.connection
            try:
                refresh(connection, "trap")
            except psycopg.errors.InsufficientPrivilege as error:
                assert "of the session" in str(error)
            connection.execute("SELECT * FROM pgtrickle.pgt_status()")
    assert {what for (what,) in db.rows("SELECT what FROM loot")} <= {user(alice)}


def test_owner_cannot_alter_the_function_his_queries_run_in(db: Any, alice: psycopg.Connection[Any]) -> None:
    create(alice, "doubled", "SELECT id, v * 2 AS v FROM mine")
    oid = db.value("SELECT %s::regrole::oid", user(alice))
    for change in ("SECURITY INVOKER", "RESET ALL", "SET search_path = public"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            alice.execute(f"ALTER FUNCTION pgtrickle_roles.as_{oid}(text, jsonb) {change}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        alice.execute(f"SELECT pgtrickle_roles.as_{oid}('SELECT to_jsonb(1)', '{{}}')")


def test_deferred_trigger_on_own_table_gains_no_rights(db: Any, alice: psycopg.Connection[Any]) -> None:
    alice.execute(
        "CREATE TABLE loot (what text); CREATE TABLE queue (x int);"
        "CREATE FUNCTION later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.loot VALUES (current_user); RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER later AFTER INSERT ON queue DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION later();"
        "CREATE FUNCTION act(int) RETURNS void VOLATILE LANGUAGE sql AS $$ INSERT INTO public.queue VALUES ($1) $$;"
        + INNOCENT.format("PERFORM public.act($1)")
    )
    create(alice, "trap", "SELECT id, reach(v) AS v FROM mine")
    alice.execute("INSERT INTO mine VALUES (3, 3)")
    refresh(db.connection, "trap")
    assert {what for (what,) in db.rows("SELECT what FROM loot")} == {user(alice)}


def test_user_trigger_on_own_stream_table_gains_no_rights(db: Any, alice: psycopg.Connection[Any]) -> None:
    create(alice, "doubled", "SELECT id, v * 2 AS v FROM mine")
    alice.execute(
        "CREATE TABLE loot (what text);"
        "CREATE FUNCTION reach() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " BEGIN EXECUTE 'RESET ROLE'; EXCEPTION WHEN OTHERS THEN NULL; END;"
        " INSERT INTO public.loot VALUES (current_user); RETURN NEW; END $$;"
        "CREATE TRIGGER reach AFTER INSERT OR UPDATE ON doubled FOR EACH ROW EXECUTE FUNCTION reach()"
    )
    alice.execute("INSERT INTO mine VALUES (3, 3)")
    refresh(db.connection, "doubled")
    assert {what for (what,) in db.rows("SELECT what FROM loot")} == {user(alice)}


def test_operator_and_function_in_the_callers_search_path_are_not_used(db: Any, alice: psycopg.Connection[Any]) -> None:
    """A trap of CVEs in maintenance functions: names planted in a schema that comes first."""
    db.create("admins", "SELECT id, visible FROM secret WHERE id > 0")
    alice.execute(
        "CREATE FUNCTION public.count(text) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN EXECUTE 'ALTER ROLE '"
        " || quote_ident(current_user) || ' VALID UNTIL ''2001-01-01'''; RETURN 0; END $$;"
        "CREATE FUNCTION public.planted(int, int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        " RAISE 'planted operator called by %', current_user; END $$;"
        "CREATE OPERATOR public.= (LEFTARG = int, RIGHTARG = int, FUNCTION = public.planted);"
        "CREATE OPERATOR public.> (LEFTARG = int, RIGHTARG = int, FUNCTION = public.planted)"
    )
    db.run("SET search_path = public, pg_catalog")
    db.run("INSERT INTO secret VALUES (5, 'x', 'y')")
    db.refresh("admins")
    db.run("SELECT * FROM pgtrickle.pgt_status()")
    db.run("SELECT pgtrickle.drop_stream_table('admins')")


def test_set_role_creates_for_that_role(db: Any, alice: psycopg.Connection[Any]) -> None:
    db.run(f"SET ROLE {user(alice)}")
    db.create("doubled", "SELECT id, v * 2 AS v FROM mine")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.create("stolen", "SELECT id FROM secret")
    db.run("INSERT INTO mine VALUES (3, 3)")
    db.refresh("doubled")
    assert db.value("SELECT current_user") == user(alice)
    db.run("RESET ROLE")
    assert db.value("SELECT tableowner FROM pg_tables WHERE tablename = 'doubled'") == user(alice)


def test_security_definer_function_cannot_request_for_an_owner_whom_the_caller_is_no_member_of(
    db: Any, alice: psycopg.Connection[Any]
) -> None:
    db.run(
        "CREATE FUNCTION publish() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN"
        " PERFORM pgtrickle.create_stream_table('published', 'SELECT id, visible FROM public.secret'); END $$;"
        f"GRANT EXECUTE ON FUNCTION publish() TO {user(alice)}"
    )
    before = db.traces()
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="postgres"):
        alice.execute("SELECT publish()")
    assert db.traces() == before
    db.run("SELECT publish()")
    assert db.value("SELECT tableowner FROM pg_tables WHERE tablename = 'published'") == "postgres"


def test_change_of_owner_is_followed(db: Any, alice: psycopg.Connection[Any], role: Callable[..., Any]) -> None:
    create(alice, "doubled", "SELECT id, v * 2 AS v FROM mine")
    bob = role("bob")
    db.run(f"ALTER TABLE doubled OWNER TO {user(bob)}; INSERT INTO mine VALUES (3, 3)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        refresh(bob, "doubled")
    db.run(f"GRANT SELECT ON mine TO {user(bob)}")
    refresh(bob, "doubled")
    assert db.value("SELECT count(*) FROM doubled") == 3


def test_view_with_its_own_rights_is_read_as_a_whole(db: Any, alice: psycopg.Connection[Any]) -> None:
    """A view shows what its owner may see; the changes of the tables below are not for who may only read the view."""
    db.run(
        "CREATE VIEW window_on AS SELECT id, visible FROM secret;"
        f"CREATE VIEW through AS SELECT visible FROM window_on; GRANT SELECT ON window_on, through TO {user(alice)}"
    )
    told: list[str] = []
    alice.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
    before = db.traces()
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=r"through a view.*permission denied.*secret"):
        create(alice, "insisted", "SELECT visible FROM through", "DIFFERENTIAL")
    assert db.traces() == before
    assert told == []
    create(alice, "seen", "SELECT visible FROM through")
    assert "uses FULL refresh" in told[0]
    assert "permission denied" in told[0]
    create(alice, "asked", "SELECT visible FROM window_on", "FULL")
    create(alice, "joined", "SELECT m.v, w.visible FROM mine m JOIN window_on w USING (id)")
    assert len(told) == 2
    assert "FROM public.window_on" in db.state("asked")["defining_query"]  # of what is below she reads nothing
    db.run("INSERT INTO secret VALUES (6, 'z', 'z'); UPDATE secret SET visible = 'changed' WHERE id = 1")
    alice.execute("UPDATE mine SET v = 11 WHERE id = 1")
    for name in ("seen", "asked", "joined"):
        refresh(alice, name)
        assert db.last(name)[0] == "FULL"
    for name in ("seen", "asked"):
        assert alice.execute(f"SELECT visible FROM {name} ORDER BY 1").fetchall() == [("changed",), ("w",), ("z",)]
    assert alice.execute("SELECT v, visible FROM joined ORDER BY 1").fetchall() == [(11, "changed"), (20, "w")]
    # No change of the table below is captured for her.
    assert db.value("SELECT count(*) FROM pgtrickle.pgt_captures WHERE source_relid = 'secret'::regclass") == 0


def test_view_that_may_be_read_no_longer(db: Any, alice: psycopg.Connection[Any]) -> None:
    db.run(f"CREATE VIEW window_on AS SELECT visible FROM secret; GRANT SELECT ON window_on TO {user(alice)}")
    create(alice, "seen", "SELECT visible FROM window_on")
    db.run(f"REVOKE SELECT ON window_on FROM {user(alice)}; INSERT INTO secret VALUES (6, 'z', 'z')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="window_on"):
        refresh(alice, "seen")
    assert db.value("SELECT count(*) FROM seen") == 2
    db.run(f"GRANT SELECT ON window_on TO {user(alice)}")
    refresh(alice, "seen")
    assert db.value("SELECT count(*) FROM seen") == 3


def test_right_to_the_table_below_a_view_is_taken_away(db: Any, alice: psycopg.Connection[Any]) -> None:
    db.run(
        "CREATE VIEW window_on AS SELECT id, visible FROM secret;"
        f"GRANT SELECT ON window_on TO {user(alice)}; GRANT SELECT (id, visible) ON secret TO {user(alice)}"
    )
    create(alice, "seen", "SELECT visible FROM window_on", "DIFFERENTIAL")
    db.run(f"REVOKE SELECT (id, visible) ON secret FROM {user(alice)}; INSERT INTO secret VALUES (6, 'z', 'z')")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="secret"):
        refresh(alice, "seen")
    oid = db.value("SELECT 'secret'::regclass::oid")
    buffer = f"pgtrickle_changes.changes_{oid}"
    assert db.value(f"SELECT has_any_column_privilege('{user(alice)}', '{buffer}', 'SELECT')") is False


def test_view_that_asks_for_its_readers_rights(db: Any, alice: psycopg.Connection[Any]) -> None:
    db.run(
        "CREATE VIEW window_on WITH (security_invoker) AS SELECT visible FROM secret;"
        f"GRANT SELECT ON window_on TO {user(alice)}"
    )
    for mode in ("AUTO", "FULL"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="secret"):
            create(alice, "stolen", "SELECT visible FROM window_on", mode)
