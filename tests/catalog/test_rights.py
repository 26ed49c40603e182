"""Whose stream table it is: nobody acts for a role he is not a member of, however he calls the functions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from server.postgres.cluster import EmbeddedPostgres
from tests.catalog.conftest import Connect, Connection, Engine, connections, sqlstate
from tests.clusters import new_database


def made(alice: Connection) -> Engine:
    """Alice, with a stream table st (id 1) over her table t."""
    engine = Engine(alice)
    engine.connection.execute("CREATE TABLE t (id int)")
    engine.refresh(engine.create("st", t=["id"]))
    return engine


@pytest.fixture
def alice(connect: Connect) -> Engine:
    return made(connect("catalog_alice"))


@pytest.fixture
def bob(alice: Engine, connect: Connect) -> Connection:
    return connect("catalog_bob")


@pytest.fixture(scope="module")
def shared_connect(cluster: EmbeddedPostgres, template: str) -> Iterator[Connect]:
    """Connect to a database with alice's stream table, for all calls that are refused, and so change nothing."""
    with new_database(cluster, "rights", template) as name, connections(cluster.dsn(name)) as connect:
        made(connect("catalog_alice"))
        yield connect


def as_owner(connection: Connection, owner: str, statement: str, parameters: Any = None) -> Any:
    """Run a statement with a role's rights, as the engine does."""
    role = connection.execute("SELECT current_setting('role')").fetchone()
    assert role is not None
    connection.execute("SELECT set_config('role', %s, false)", [owner])
    result = connection.execute("SELECT pgtrickle._run(%s, %s)", [statement, json.dumps(parameters or {})]).fetchone()
    connection.execute("SELECT set_config('role', %s, false)", role)
    assert result is not None
    return result[0]


CALLS = [
    "_begin_refresh(1)",
    '_finish_refresh(1, \'{"status": "COMPLETED", "action": "FULL"}\')',
    '_set_state(1, \'{"status": "SUSPENDED"}\')',
    "_set_dependencies(1, '[]')",
    "_unregister(1)",
    "_track_source(1, 'public.t'::regclass, '{id}')",
    "_install_guard('public.t'::regclass)",
    "_runner('catalog_alice'::regrole)",
    "_runner('postgres'::regrole)",
    "_register(jsonb_build_object('pgt_relid', 'public.t'::regclass::oid::bigint, 'defining_query', ''))",
    "_cleanup_buffers()",
    "_claim_out_of_band_request(10)",
    "_out_of_band_requesters()",
    "_drop_capture('public.t'::regclass)",
    "_write_capture_functions('public.t'::regclass, '{id}')",
    "_note_dependency(1, 'public.t'::regclass, '{}', NULL)",
    "_owner_of(1)",
]


@pytest.mark.parametrize("call", CALLS)
def test_another_role_can_do_nothing(cluster: EmbeddedPostgres, shared_connect: Connect, call: str) -> None:
    call = call.replace("'postgres'", f"'{cluster.user}'")
    with shared_connect("catalog_bob") as bob:
        assert sqlstate(bob, f"SELECT pgtrickle.{call}") == "42501"


@pytest.mark.parametrize("call", [call for call in CALLS if "_runner" not in call])
def test_a_defining_query_cannot_act_for_others(shared_connect: Connect, call: str) -> None:
    # The engine, a superuser, refreshes bob's stream table under bob's role; his query calls the kernel.
    with shared_connect("catalog_bob") as bob, shared_connect(autocommit=False) as engine:
        bob.execute(
            "CREATE OR REPLACE FUNCTION sneaky(call text) RETURNS text LANGUAGE plpgsql AS "
            "$$ DECLARE r text; BEGIN EXECUTE 'SELECT pgtrickle.' || call INTO r; RETURN r; END $$"
        )
        engine.execute("SET LOCAL ROLE catalog_bob")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            as_owner(engine, "catalog_bob", "SELECT to_jsonb(public.sneaky($1->>'call'))", {"call": call})


@pytest.mark.parametrize("escape", ["RESET ROLE", "SET ROLE catalog_alice", "SET SESSION AUTHORIZATION DEFAULT"])
def test_nobody_leaves_the_role_a_query_runs_with(
    alice: Engine, bob: Connection, connect: Connect, escape: str
) -> None:
    bob.execute(
        "CREATE FUNCTION escape(statement text) RETURNS text LANGUAGE plpgsql AS "
        "$$ BEGIN EXECUTE statement; RETURN current_user; END $$"
    )
    engine = connect(autocommit=False)
    assert as_owner(engine, "catalog_bob", "SELECT to_jsonb(current_user::text)") == "catalog_bob"
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        as_owner(engine, "catalog_bob", "SELECT to_jsonb(public.escape($1->>'s'))", {"s": escape})


def lay_trap(bob: Connection, body: str) -> str:
    """A trigger that is put off, and a query that springs it."""
    bob.execute(
        "CREATE TABLE trap (who text); CREATE TABLE caught (who text); GRANT ALL ON caught TO PUBLIC; "
        "CREATE FUNCTION spring() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {body}; INSERT INTO public.caught VALUES (current_user); RETURN NULL; END $$; "
        "CREATE CONSTRAINT TRIGGER spring AFTER INSERT ON trap DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION spring(); "
        "CREATE FUNCTION into_trap() RETURNS int LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO public.trap VALUES ('x'); RETURN 1; END $$"
    )
    return "SELECT pg_catalog.to_jsonb(public.into_trap())"


def test_deferred_triggers_of_a_query_fire_with_its_rights(bob: Connection, connect: Connect) -> None:
    query = lay_trap(bob, "NULL")
    engine = connect(autocommit=False)
    as_owner(engine, "catalog_bob", query)
    assert engine.execute("SELECT who FROM caught").fetchall() == [("catalog_bob",)]
    engine.execute("SELECT pgtrickle._row_runner('catalog_bob'::regrole)")
    engine.execute("SET ROLE catalog_bob")
    rows = "SELECT pgtrickle._rows('SELECT public.into_trap()', '{}', '{}', ARRAY['n'], ARRAY['int'::regtype])"
    engine.execute(rows.replace("SELECT pgtrickle", "SELECT * FROM pgtrickle", 1) + " AS r(n int)")
    engine.execute("RESET ROLE")
    assert engine.execute("SELECT who FROM caught").fetchall() == [("catalog_bob",)] * 2
    engine.commit()
    assert bob.execute("SELECT who FROM caught").fetchall() == [("catalog_bob",)] * 2


@pytest.mark.parametrize("times", [3, None])
def test_deferred_triggers_cannot_put_others_off_to_the_commit(
    bob: Connection, connect: Connect, times: int | None
) -> None:
    again = "SET CONSTRAINTS ALL DEFERRED; INSERT INTO public.trap VALUES ('y')"
    query = lay_trap(
        bob, again if times is None else f"IF (SELECT count(*) FROM public.trap) < {times} THEN {again}; END IF"
    )
    engine = connect(autocommit=False)
    if times is None:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            as_owner(engine, "catalog_bob", query)
    else:
        as_owner(engine, "catalog_bob", query)
        assert engine.execute("SELECT count(*) FROM caught").fetchone() == (times,)
    engine.rollback()


def test_deferred_constraint_of_a_query_is_checked_with_its_rights(bob: Connection, connect: Connect) -> None:
    """Before PostgreSQL 18 a commit would compute its index with the rights of whoever commits."""
    query = lay_trap(bob, "SET CONSTRAINTS ALL DEFERRED; INSERT INTO public.twice VALUES (1), (1)")
    bob.execute("CREATE TABLE twice (n int, EXCLUDE USING btree (abs(n) WITH =) DEFERRABLE INITIALLY DEFERRED)")
    engine = connect(autocommit=False)
    replaced = "replace(pg_get_functiondef('pgtrickle._deferrable_writes'::regproc), '180000', '990000')"
    engine.execute(f"DO $$ BEGIN EXECUTE {replaced}; END $$")
    with pytest.raises(psycopg.errors.ExclusionViolation):
        as_owner(engine, "catalog_bob", query)
    engine.rollback()


@pytest.mark.parametrize(
    "left",
    [
        "CREATE TEMP TABLE orders (id int)",
        "CREATE DOMAIN pg_temp.text AS pg_catalog.text",
        "CREATE TEMP VIEW t AS SELECT 1",
    ],
)
def test_temporary_objects_of_a_query_do_not_stay_in_the_session(bob: Connection, connect: Connect, left: str) -> None:
    """Names mean the temporary object first."""
    bob.execute(f"CREATE FUNCTION leave() RETURNS int LANGUAGE plpgsql AS $$ BEGIN {left}; RETURN 1; END $$")
    engine = connect()
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="temporary objects"):
        as_owner(engine, "catalog_bob", "SELECT pg_catalog.to_jsonb(public.leave())")
    as_owner(bob, "catalog_bob", "SELECT pg_catalog.to_jsonb(public.leave())")  # its own session


def test_runner_pins_what_a_query_could_see(alice: Engine) -> None:
    alice.connection.execute("SET search_path = public; SET datestyle = 'German'; SET timezone = 'Asia/Tokyo'")
    assert as_owner(
        alice.connection,
        "catalog_alice",
        "SELECT to_jsonb(ARRAY[current_setting('search_path'), current_setting('datestyle'), "
        "current_setting('timezone'), current_setting('row_security'), current_setting('pgtrickle.maintenance')])",
    ) == ["pg_catalog, pg_temp", "ISO, YMD", "UTC", "off", "on"]
    assert alice.value("SELECT coalesce(current_setting('pgtrickle.maintenance', true), '')") == ""


def test_runner_of_odd_roles(connect: Connect) -> None:
    admin = connect()
    admin.execute('DROP ROLE IF EXISTS "Odd ""role"; CREATE ROLE "Odd ""role"')
    try:
        assert as_owner(admin, 'Odd "role', "SELECT to_jsonb(current_user::text)") == 'Odd "role'
        assert as_owner(admin, 'Odd "role', "SELECT to_jsonb(1) LIMIT 0") is None
    finally:
        admin.execute('DROP OWNED BY "Odd ""role"; DROP ROLE "Odd ""role"')


def test_member_of_the_owners_role_may(alice: Engine, bob: Connection, connect: Connect) -> None:
    admin = connect()
    admin.execute("GRANT catalog_alice TO catalog_bob")
    try:
        Engine(bob).refresh(1)
    finally:
        admin.execute("REVOKE catalog_alice FROM catalog_bob")
    assert sqlstate(bob, "SELECT pgtrickle._begin_refresh(1)") == "42501"


@pytest.mark.parametrize(
    "options", ["SET FALSE, INHERIT FALSE", "SET FALSE, INHERIT TRUE", "ADMIN TRUE, SET FALSE, INHERIT FALSE"]
)
def test_member_who_may_not_become_the_owner_may_not(
    alice: Engine, bob: Connection, connect: Connect, options: str
) -> None:
    admin = connect()
    admin.execute(f"GRANT catalog_alice TO catalog_bob WITH {options}")
    try:
        assert sqlstate(bob, "SELECT pgtrickle._begin_refresh(1)") == "42501"
        assert sqlstate(bob, "SELECT pgtrickle._set_state(1, '{}')") == "42501"
    finally:
        admin.execute("REVOKE catalog_alice FROM catalog_bob CASCADE")


def test_superuser_who_took_another_role_has_only_its_rights(alice: Engine, connect: Connect) -> None:
    admin = connect()
    admin.execute("SELECT pgtrickle._begin_refresh(1)")
    admin.execute("SET ROLE catalog_bob")
    assert sqlstate(admin, "SELECT pgtrickle._begin_refresh(1)") == "42501"


def test_buffer_shows_an_owner_only_the_columns_he_may_read(connect: Connect) -> None:
    admin = Engine(connect())
    admin.connection.execute("CREATE TABLE t (id int, secret text); GRANT SELECT (id) ON t TO catalog_alice")
    admin.create("all_of_it", t=["id", "secret"])
    alice = Engine(connect("catalog_alice"), ahead=admin.connection)
    pgt_id = alice.create("st", t=["id"])
    buffer = f"pgtrickle_changes.changes_{admin.oid('t')}"
    alice.connection.execute(f'SELECT "__pgt_change_id", "__pgt_xid", "__pgt_w", id FROM {buffer}')
    assert sqlstate(alice.connection, f"SELECT secret FROM {buffer}") == "42501"
    assert sqlstate(alice.connection, f"DELETE FROM {buffer}") == "42501"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for column secret of table"):
        alice.track(pgt_id, "t", ["secret"])
    assert sqlstate(connect("catalog_bob"), f"SELECT id FROM {buffer}") == "42501"


def test_storage_of_somebody_elses_cannot_be_registered_or_dropped(alice: Engine, bob: Connection) -> None:
    assert sqlstate(bob, "INSERT INTO pgtrickle.pgt_stream_tables (pgt_relid) VALUES (1)") == "42501"
    assert sqlstate(bob, "DELETE FROM pgtrickle.pgt_captures") == "42501"
    assert sqlstate(bob, "SELECT nextval('pgtrickle_changes.change_id_seq')") == "42501"


def test_name_that_exists(alice: Engine) -> None:
    assert (
        sqlstate(
            alice.connection,
            "SELECT pgtrickle._register("
            "jsonb_build_object('pgt_relid', 'st'::regclass::oid::bigint, 'defining_query', ''))",
        )
        == "42P07"
    )


def test_what_runs_for_a_role_may_have_been_made_after_the_snapshot(connect: Connect) -> None:
    early = connect(autocommit=False)
    early.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    early.execute("SELECT 1")
    assert as_owner(connect(), "catalog_alice", "SELECT to_jsonb(current_user)") == "catalog_alice"
    assert as_owner(early, "catalog_alice", "SELECT to_jsonb(current_user)") == "catalog_alice"


def test_what_runs_for_a_role_is_made_by_one_of_those_who_want_it_at_once(connect: Connect) -> None:
    first, second, watching = connect(autocommit=False), connect(), connect()
    assert as_owner(first, "catalog_alice", "SELECT to_jsonb(current_user)") == "catalog_alice"
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(as_owner, second, "catalog_alice", "SELECT to_jsonb(current_user)")
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pid = %s)"
        while watching.execute(waits, [second.info.backend_pid]).fetchone() != (True,):
            assert not waiting.done()
        first.commit()
        assert waiting.result(60) == "catalog_alice"
