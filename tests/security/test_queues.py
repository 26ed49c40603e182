"""Queues: what an administrator of queues writes never runs with the rights of the schema's owner."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import conninfo

from catalog.install import Script, Scripts, bundled_scripts
from catalog.session import SqlError
from catalog.systems import QUEUES
from engine.queues import maintenance
from engine.queues.maintenance import QueueMaintenance
from engine.session.pool import DatabasePool
from server.postgres.cluster import EmbeddedPostgres
from tests.catalog.conftest import Queue, install_into, queue, queue_database
from tests.catalog.test_queue_roles import GRANTS, ROLES
from tests.clusters import new_database

__all__ = ["queue", "queue_database"]

EVE = "queue_eve"

# A function whose every call is seen, and by whom it was made.
SETUP = f"""
CREATE ROLE {EVE} LOGIN PASSWORD 'x';
GRANT pgque_admin TO {EVE};
CREATE SCHEMA evil AUTHORIZATION {EVE};
CREATE TABLE public.seen (who text, what text);
GRANT ALL ON public.seen TO PUBLIC;
SET ROLE {EVE};
CREATE FUNCTION evil.note(what text) RETURNS int LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO public.seen VALUES (current_user, what); RETURN 1; END $$;
RESET ROLE
"""

# Internals that public functions without rights of their own call.
HELPERS = {
    "pgque_reader": set[str](),
    "pgque_writer": {
        *("_check_trigger", "_trigger_event", "_listed_columns", "_row_columns", "_base_type", "_primary_key"),
        *("_row_texts", "_row_json", "_row_urlencoded", "_urlencode", "_row_expression", "_row_sql"),
    },
    "pgque_admin": {
        *("_server", "_has_cron", "_cursor_query", "_tick_early", "_is_own_role", "_refuse", "_name_objection"),
        *("_json_key", "_event_slot", "_slots"),
    },
}


@pytest.fixture
def eve(queue: Queue, queue_database: str) -> Iterator[Queue]:
    """The queue, on a connection of an administrator of queues who is nothing else."""
    queue.connection.execute(SETUP)
    with psycopg.connect(conninfo.make_conninfo(queue_database, user=EVE, password="x"), autocommit=True) as connection:
        yield Queue(connection, queue.name)
    queue.connection.execute(
        "UPDATE pgque.queue SET queue_extra_maint = NULL; DROP TABLE public.seen;"
        f"DROP OWNED BY {EVE} CASCADE; DROP ROLE {EVE}"
    )


def seen(queue: Queue) -> set[str]:
    """Whose rights the administrator's code has had."""
    return {who for (who,) in queue.rows("SELECT who FROM public.seen")}


def hook(eve: Queue, body: str, arguments: str = "text") -> None:
    """Register a hook of the administrator's own."""
    eve.connection.execute(
        f"CREATE FUNCTION evil.hook({arguments}) RETURNS int LANGUAGE plpgsql SECURITY DEFINER AS $hook${body}$hook$"
    )
    eve.connection.execute("UPDATE pgque.queue SET queue_extra_maint = '{evil.hook}' WHERE queue_name = %s", [eve.name])


def maintain(dsn: str, *after: str) -> list[str]:
    """What the owner's session is told when it calls the hooks, and then executes other statements."""
    notices: list[str] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
        connection.execute("SELECT pgque.maint()")
        for statement in after:
            connection.execute(statement.encode())
    return notices


def test_a_name_of_a_granted_function_resolves_to_nothing_of_the_callers(queue: Queue, eve: Queue) -> None:
    eve.connection.execute(
        "CREATE FUNCTION evil.checked(v pg_snapshot) RETURNS bool LANGUAGE sql AS $$ SELECT evil.note('type') = 1 $$;"
        "CREATE DOMAIN pg_temp.pg_snapshot AS pg_catalog.pg_snapshot CHECK (evil.checked(VALUE));"
        "CREATE FUNCTION evil.same(text, text) RETURNS bool LANGUAGE sql AS $$ SELECT evil.note('operator') = 1 $$;"
        "CREATE OPERATOR evil.= (function = evil.same, leftarg = text, rightarg = text);"
        "SET search_path = evil, pg_temp, pg_catalog"
    )
    internals = queue.rows(
        "SELECT p.oid::regprocedure::text, proname, pronargs FROM pg_proc p "
        "WHERE pronamespace = 'pgque'::regnamespace AND proname ~ '^_' AND prorettype <> 'trigger'::regtype"
    )
    assert ("_snapshot", 0) in {(name, count) for _, name, count in internals}
    for _, name, count in internals:  # so that whatever may be called is compiled now
        try:
            eve.connection.execute(f"SELECT pgque.{name}({', '.join(['NULL'] * count)})".encode())
        except psycopg.Error as error:
            if name not in HELPERS["pgque_writer"] | HELPERS["pgque_admin"]:
                assert error.sqlstate in ("42501", "42725"), name
    eve.connection.execute("TRUNCATE public.seen")
    eve.value("SELECT pgque.force_next_tick(%s)", eve.name)
    assert eve.value("SELECT pgque.ticker(%s)", eve.name) is not None
    eve.connection.execute("CALL pgque.ticker_loop()")
    assert seen(queue) == set()


def test_default_argument_of_a_hook(queue: Queue, eve: Queue, queue_database: str) -> None:
    hook(eve, "BEGIN RETURN 1; END", "text, x int DEFAULT evil.note('default')")
    assert len(maintain(queue_database)) == 1
    assert seen(queue) <= {EVE}


@pytest.mark.parametrize("hidden", [False, True])
def test_search_path_that_a_hook_leaves(queue: Queue, eve: Queue, queue_database: str, hidden: bool) -> None:
    """A local setting on top of it hides one that holds after the transaction."""
    eve.connection.execute(
        "CREATE FUNCTION evil.plus(int, int) RETURNS int LANGUAGE sql AS $$ SELECT evil.note('operator') $$;"
        "CREATE OPERATOR evil.+ (function = evil.plus, leftarg = int, rightarg = int)"
    )
    hide = "PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);" if hidden else ""
    hook(
        eve, f"BEGIN PERFORM set_config('search_path', 'evil, pg_catalog', false); {hide} RETURN evil.note('hook'); END"
    )
    notices = maintain(queue_database, "SELECT 1 + 1")
    assert (notices == []) is hidden
    assert seen(queue) == ({EVE} if hidden else set())


@pytest.mark.parametrize(
    "body",
    [
        "EXECUTE 'DECLARE c CURSOR WITH HOLD FOR SELECT evil.note(''held'')';",
        "EXECUTE 'PREPARE p AS SELECT evil.note(''prepared'')';",
        "EXECUTE 'CREATE TEMP VIEW orders AS SELECT evil.note(''view'')';",
        "PERFORM set_config('role', 'none', false); PERFORM evil.note('role');",
        "SET SESSION AUTHORIZATION DEFAULT; PERFORM evil.note('session');",
    ],
)
def test_what_a_hook_leaves_in_the_session_or_becomes(queue: Queue, eve: Queue, queue_database: str, body: str) -> None:
    hook(eve, f"BEGIN {body} RETURN 1; END")
    assert len(maintain(queue_database, "SELECT 1")) == 1
    assert seen(queue) <= {EVE}


def test_deferred_trigger_of_a_hook(queue: Queue, eve: Queue, queue_database: str) -> None:
    eve.connection.execute(
        "CREATE TABLE evil.t (x int);"
        "CREATE FUNCTION evil.later() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM evil.note('later'); "
        "RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER later AFTER INSERT ON evil.t DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION evil.later()"
    )
    hook(eve, "BEGIN INSERT INTO evil.t VALUES (1); RETURN 1; END")
    maintain(queue_database)
    assert seen(queue) <= {EVE}


def test_hook_works_with_its_owners_rights(queue: Queue, eve: Queue, queue_database: str) -> None:
    hook(eve, "BEGIN RETURN evil.note($1); END")
    assert maintain(queue_database) == []
    assert queue.rows("SELECT * FROM public.seen") == [(EVE, eve.name)]
    assert queue.rows("SELECT FROM pg_proc WHERE proname ~ '^_calls_hook'") == []


def test_a_role_does_not_lend_its_rights_to_a_function_that_another_may_change(
    queue: Queue, eve: Queue, queue_database: str
) -> None:
    eve.connection.execute("CREATE FUNCTION evil.hook(text) RETURNS int LANGUAGE sql AS 'SELECT evil.note($1)'")
    attach = "UPDATE pgque.queue SET queue_extra_maint = '{evil.hook}' WHERE queue_name = %s"
    queue.connection.execute(attach, [queue.name])
    (refused,) = maintain(queue_database)
    assert f"role {EVE} could make anything of it" in refused
    assert seen(queue) == set()


@pytest.mark.parametrize("change", ["queue_extra_maint_roles = '{postgres}'", "queue_extra_maint_roles = NULL"])
def test_who_attached_a_hook_is_not_to_choose(queue: Queue, eve: Queue, queue_database: str, change: str) -> None:
    hook(eve, "BEGIN RETURN evil.note($1); END")
    eve.connection.execute("ALTER FUNCTION evil.hook(text) SECURITY INVOKER")
    for statement in (f"SET {change}", f"SET {change}, queue_extra_maint = '{{evil.hook}}'"):
        eve.connection.execute(f"UPDATE pgque.queue {statement} WHERE queue_name = %s", [eve.name])
    assert maintain(queue_database) == []
    assert seen(queue) == {EVE}


def test_a_hook_of_an_administrator_that_is_none_any_more_is_not_called(
    queue: Queue, eve: Queue, queue_database: str
) -> None:
    hook(eve, "BEGIN RETURN evil.note($1); END")
    queue.connection.execute(f"REVOKE pgque_admin FROM {EVE}")
    (refused,) = maintain(queue_database)
    assert f"the role that attached it, {EVE}, may not administer queues" in refused
    assert seen(queue) == set()


@pytest.mark.parametrize("arguments", ["text", "int"])
def test_an_upgrade_is_refused_whose_name_somebody_has_taken(
    queue: Queue, eve: Queue, queue_database: str, arguments: str
) -> None:
    """A function of this signature would keep its owner, one of another could be called in the place of ours."""
    eve.connection.execute(f"CREATE FUNCTION pgque.to_come({arguments}) RETURNS int LANGUAGE sql AS 'SELECT 1'")
    present = bundled_scripts(QUEUES)
    body = "RETURNS int LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'SELECT 2'"
    more = Script("98_to_come", f"-- To come.\nCREATE OR REPLACE FUNCTION pgque.to_come(text) {body}")
    later = Scripts(
        present.migrations, (*present.functions[:-1], more, present.functions[-1]), present.superuser, present.title
    )
    with pytest.raises(SqlError, match="this version needs the name of") as refused:
        install_into(queue_database, later, QUEUES)
    assert refused.value.sqlstate == "42710"
    eve.connection.execute(f"DROP FUNCTION pgque.to_come({arguments})")
    assert install_into(queue_database, later, QUEUES).changed
    assert install_into(queue_database, system=QUEUES).changed
    queue.connection.execute("DROP FUNCTION pgque.to_come(text)")


def test_hooks_that_do_not_end_stop_nobody_elses(
    queue: Queue, eve: Queue, queue_database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that catches its cancellation."""
    monkeypatch.setattr(maintenance, "HOOK_SECONDS", 1)
    hook(
        eve,
        "BEGIN LOOP BEGIN PERFORM pg_sleep(600); EXCEPTION WHEN query_canceled THEN END; END LOOP; END",
    )
    other = f"{queue.name} other"
    queue.value("SELECT pgque.create_queue(%s)", other)
    eve.connection.execute(
        "CREATE FUNCTION evil.works(text) RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT evil.note($1)'"
    )
    eve.connection.execute("UPDATE pgque.queue SET queue_extra_maint = '{evil.works}' WHERE queue_name = %s", [other])
    login = conninfo.conninfo_to_dict(queue_database)

    async def call() -> None:
        arguments = {key: login[key] for key in ("host", "port", "user", "password")}
        pool = DatabasePool(str(login["dbname"]), lambda _: arguments)
        try:
            queues = QueueMaintenance(pool)
            queues.active.set()
            await queues._call_hooks()
        finally:
            await pool.close()

    asyncio.run(call())
    assert queue.rows("SELECT * FROM public.seen") == [(EVE, other)]
    while queue.rows(
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND query ~ '_call_hooks.*text'"
        " AND pid <> pg_backend_pid()"
    ):  # the test's own time limit ends this
        pass


def test_implicit_cast_behind_a_foreign_key(queue: Queue, eve: Queue) -> None:
    eve.connection.execute(
        "CREATE TYPE evil.e AS ENUM ('a');"
        "CREATE FUNCTION evil.cast_it(evil.e) RETURNS int LANGUAGE sql AS $$ SELECT evil.note('cast') $$;"
        "CREATE CAST (evil.e AS int) WITH FUNCTION evil.cast_it(evil.e) AS IMPLICIT"
    )
    error = eve.fails("CREATE TABLE evil.t (x evil.e REFERENCES pgque.queue (queue_id))")
    assert error.sqlstate == "42501"


def test_names_that_go_into_statements_are_not_to_choose(queue: Queue, eve: Queue) -> None:
    for column in ("data_pfx", "event_seq", "tick_seq"):
        assert eve.fails(f"UPDATE pgque.queue SET queue_{column} = 'evil.t; SELECT 1'").sqlstate == "23514"
    assert eve.fails("UPDATE pgque.schema_version SET version = 'x'").sqlstate == "42501"
    assert eve.fails("CREATE TABLE pgque.event_999 (x int)").sqlstate == "42501"


def test_roles_execute_the_documented_functions_only(queue: Queue) -> None:
    for role in ROLES:
        members = ROLES if role == "pgque_admin" else (role,)
        rows = queue.rows(
            "SELECT proname FROM pg_proc p WHERE pronamespace = 'pgque'::regnamespace "
            "AND has_function_privilege(%s, p.oid, 'EXECUTE')",
            role,
        )
        public = {grant.function.split("(")[0] for grant in GRANTS.values() if grant.allowed(role)}
        assert {name for (name,) in rows} == public.union(*(HELPERS[member] for member in members))


def test_every_function_pins_its_search_path(queue: Queue) -> None:
    """Or has names that were bound when it was made, or qualifies them all."""
    unpinned = queue.rows(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'pgque'::regnamespace AND prosqlbody IS NULL "
        "AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false) ORDER BY 1"
    )
    assert unpinned == [("_guard_batch",), ("_urlencode",), ("ticker_loop",)]


def test_nobody_else_can_hold_up_ticks(queue: Queue, eve: Queue) -> None:
    for statement in ("SELECT FROM pgque.mutex FOR UPDATE", "LOCK TABLE pgque.mutex", "SELECT FROM pgque.mutex"):
        assert eve.fails(statement).sqlstate == "42501"
    number = queue.value("SELECT queue_id FROM pgque.queue WHERE queue_name = %s", queue.name)
    for key in ("pgque.queue", "pgque.tick"):  # what they were locked by
        for second in (0, number):
            eve.value(f"SELECT pg_advisory_lock('{key}'::regclass::oid::int, %s)::text", second)
    queue.connection.execute("SET lock_timeout = '60s'")
    queue.send("x")
    assert queue.tick() is not None
    assert queue.value("SELECT pgque.create_queue(%s)", f"{queue.name} beside") == 1


def test_a_transaction_of_a_reader_does_not_hold_up_other_queues(queue: Queue, queue_database: str) -> None:
    other = f"{queue.name} other"
    queue.value("SELECT pgque.create_queue(%s)", other)
    queue.connection.execute("SET lock_timeout = '60s'; UPDATE pgque.queue SET queue_switch_step2 = NULL")
    with psycopg.connect(queue_database) as reader:
        reader.execute("SET ROLE pgque_reader")
        reader.execute("SELECT pgque.subscribe(%s, 'c')", [queue.name])
        queue.value("SELECT pgque.maint_rotate_tables_step2()")
    assert queue.rows("SELECT queue_name FROM pgque.queue WHERE queue_switch_step2 IS NULL") == [(queue.name,)]
    assert queue.value("SELECT pgque.maint_rotate_tables_step2()") == 1


@pytest.fixture
def foreign_roles(queue: Queue) -> Iterator[str]:
    """The cluster with a pgque_admin that an ordinary role has made for itself."""
    for role in ROLES:
        queue.connection.execute(f"ALTER ROLE {role} RENAME TO {role}_away")
    queue.connection.execute("CREATE ROLE queue_mallory CREATEROLE; SET ROLE queue_mallory; CREATE ROLE pgque_admin")
    queue.connection.execute("GRANT pgque_admin TO queue_mallory; RESET ROLE")
    yield "queue_mallory"
    for role in ROLES:
        queue.connection.execute(f"DROP ROLE IF EXISTS {role}")
        queue.connection.execute(f"ALTER ROLE {role}_away RENAME TO {role}")
    queue.connection.execute("DROP ROLE queue_mallory")


def test_role_that_somebody_else_decides_over_is_given_nothing(cluster: EmbeddedPostgres, foreign_roles: str) -> None:
    with new_database(cluster, "foreign") as name:
        warnings = install_into(cluster.dsn(name), system=QUEUES).warnings
        assert len(warnings) == 1
        assert "adopt => true" in warnings[0]
        with psycopg.connect(cluster.dsn(name), autocommit=True) as connection:
            here = Queue(connection, "q")
            usage = "SELECT has_schema_privilege('pgque_admin', 'pgque', 'USAGE')"
            assert here.value(usage) is False
            here.value("SELECT pgque.create_queue('q')")
            assert here.value("SELECT has_table_privilege('pgque_admin', 'pgque.event_1_0', 'INSERT')") is False
            assert here.value("SELECT pgque._install_roles(adopt => true)") == []
            assert here.value(usage) is True
            connection.execute("DROP OWNED BY pgque_admin, pgque_reader, pgque_writer")
