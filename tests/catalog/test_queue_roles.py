"""Who may do what: the table of roles, function by function and role by role (`queue_roles.txt`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo, sql

from catalog.systems import QUEUES
from server.postgres.cluster import EmbeddedPostgres
from tests.catalog.conftest import Queue, install_into

ROLES = ("pgque_reader", "pgque_writer", "pgque_admin")
NOBODY = "queue_nobody"


@dataclass(frozen=True)
class Grant:
    """A line of the table."""

    function: str
    role: str | None
    call: str

    def allowed(self, role: str) -> bool:
        """Whether a role may call the function."""
        return self.role is not None and role in {self.role, "pgque_admin"}


def read_table() -> dict[str, Grant]:
    """The grants by the functions' signatures."""
    grants = {}
    for line in (Path(__file__).parent / "queue_roles.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            function, role, call = (part.strip() for part in line.split("|", 2))
            grants[function] = Grant(function, None if role == "-" else role, call)
    return grants


GRANTS = read_table()


@pytest.fixture
def ordinary(queue: Queue) -> Iterator[str]:
    """A role that is a member of nothing."""
    queue.connection.execute(f"CREATE ROLE {NOBODY}")
    yield NOBODY
    queue.connection.execute(f"DROP OWNED BY {NOBODY}; DROP ROLE {NOBODY}")


@pytest.fixture
def situation(queue: Queue) -> dict[str, Any]:
    """What the placeholders of the calls stand for."""
    for suffix in ("empty", "external"):
        queue.value("SELECT pgque.create_queue(%s)", f"{queue.name} {suffix}")
    queue.value("SELECT pgque.set_queue_config(%s, 'external_ticker', 'true')", f"{queue.name} external")
    for consumer in ("reader", "idle"):
        queue.value("SELECT pgque.subscribe(%s, %s)", queue.name, consumer)
    queue.value("SELECT pgque.set_queue_config(%s, 'max_retries', '0')", queue.name)
    queue.send("dead", "alive")
    tick = queue.tick()
    nack = "SELECT pgque.nack(m.batch_id, m) FROM pgque.receive(%s, 'reader') m WHERE payload = 'dead'"
    assert queue.value(nack, queue.name) == 1
    [(batch, event)] = queue.rows(
        "SELECT batch_id, msg_id FROM pgque.receive(%s, 'reader') WHERE payload = 'alive'", queue.name
    )
    return {
        "q": queue.name,
        "batch": batch,
        "event": event,
        "tick": tick,
        "dead": queue.value("SELECT dl_id FROM pgque.dlq_inspect(%s)", queue.name),
        "empty": f"{queue.name} empty",
        "external": f"{queue.name} external",
    }


def signatures(queue: Queue, condition: str = "true") -> set[str]:
    """The functions of the schema that users may know."""
    rows = queue.rows(
        "SELECT p.proname || '(' || coalesce((SELECT string_agg(format_type(t, NULL), ', ' ORDER BY n) "
        "FROM unnest(p.proargtypes) WITH ORDINALITY AS a (t, n)), '') || ')' "
        f"FROM pg_proc p WHERE pronamespace = 'pgque'::regnamespace AND proname !~ '^_' AND {condition}"
    )
    return {signature for (signature,) in rows}


def test_the_table_has_every_function(queue: Queue) -> None:
    assert signatures(queue) == set(GRANTS)


@pytest.mark.parametrize("role", [*ROLES, NOBODY])
def test_privileges_of_functions(queue: Queue, ordinary: str, role: str) -> None:
    granted = signatures(queue, f"has_function_privilege('{role}', p.oid, 'EXECUTE')")
    assert granted == {function for function, grant in GRANTS.items() if grant.allowed(role)}


@pytest.mark.parametrize("role", [*ROLES, NOBODY])
def test_calls(queue: Queue, queue_database: str, situation: dict[str, Any], ordinary: str, role: str) -> None:
    """What is granted works, with the role's own rights and nothing else; everything else is refused by PostgreSQL."""
    install_into(queue_database)
    wrong = []
    for grant in GRANTS.values():
        if grant.function == "ticker_loop()":
            continue  # commits: has its own test
        outcome = "worked"
        try:
            with queue.connection.transaction(force_rollback=True):
                if grant.function == "start()":
                    assert queue.value("SELECT pgtrickle._take_lease('queue clock')")
                queue.connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
                queue.connection.execute(grant.call.format(**situation).encode())
        except psycopg.Error as error:
            outcome = "refused" if error.sqlstate == "42501" else str(error)
        if outcome != ("worked" if grant.allowed(role) else "refused"):
            wrong.append((grant.function, outcome))
    assert wrong == []


def test_ticker_loop_by_role(queue: Queue, ordinary: str) -> None:
    queue.value("SELECT pgque.set_tick_period_ms(1000)")
    for role in (NOBODY, "pgque_reader", "pgque_writer"):
        queue.connection.execute(f"SET ROLE {role}")
        assert queue.fails("CALL pgque.ticker_loop()").sqlstate == "42501"
    queue.connection.execute("SET ROLE pgque_admin")
    queue.send("x")
    queue.connection.execute("CALL pgque.ticker_loop()")
    queue.connection.execute("RESET ROLE")
    assert queue.rows("SELECT ev_new FROM pgque.get_queue_info(%s)", queue.name) == [(0,)]


@pytest.mark.parametrize("table", ["r", "S"])
def test_privileges_of_tables_and_sequences(queue: Queue, ordinary: str, table: str) -> None:
    """Also those of a queue that was created later than the roles.

    Administrators lack what would run code of theirs with the owner's rights; nobody touches the locks, nor changes
    what says which version is installed.
    """
    function, privileges = {
        "r": ("has_table_privilege", ["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"]),
        "S": ("has_sequence_privilege", ["SELECT", "UPDATE", "USAGE"]),
    }[table]
    expected = {
        NOBODY: set[str](),
        "pgque_writer": set[str](),
        "pgque_reader": {"SELECT"} if table == "r" else set[str](),
        "pgque_admin": set(privileges) - {"TRIGGER", "REFERENCES"},
    }
    exceptions: dict[tuple[str, str], set[str]] = {
        (role, table): set() for role in expected for table in ("mutex", "forced_tick")
    }
    exceptions["pgque_admin", "schema_version"] = {"SELECT"}
    for role, wanted in expected.items():
        rows = queue.rows(
            f"SELECT relname, array_agg(p ORDER BY p) FILTER (WHERE {function}(%s, c.oid, p)) "
            "FROM pg_class c, unnest(%s::text[]) p WHERE relnamespace = 'pgque'::regnamespace AND relkind = %s "
            "GROUP BY relname",
            *(role, privileges, table),
        )
        assert len(rows) > 5
        assert {name: set(held or []) for name, held in rows} == {
            name: exceptions.get((role, name), wanted) for name, _ in rows
        }


def test_schema_and_membership(queue: Queue, ordinary: str) -> None:
    rights = {
        role: [
            queue.value("SELECT has_schema_privilege(%s, 'pgque', %s)", role, privilege)
            for privilege in ("USAGE", "CREATE")
        ]
        for role in (*ROLES, NOBODY)
    }
    assert rights == {
        "pgque_reader": [True, False],
        "pgque_writer": [True, False],
        "pgque_admin": [True, True],
        NOBODY: [False, False],
    }
    memberships = queue.rows(
        "SELECT m.rolname, r.rolname FROM pg_roles m, pg_roles r WHERE m.rolname = ANY (%s) AND r.rolname = ANY (%s) "
        "AND m.oid <> r.oid AND pg_has_role(m.oid, r.oid, 'USAGE') ORDER BY 1, 2",
        *(list(ROLES), list(ROLES)),
    )
    assert memberships == [("pgque_admin", "pgque_reader"), ("pgque_admin", "pgque_writer")]
    assert (
        queue.rows("SELECT rolname FROM pg_roles WHERE rolname = ANY (%s) AND (rolcanlogin OR rolsuper)", list(ROLES))
        == []
    )


def test_public_has_nothing(queue: Queue) -> None:
    """No object of the schema has a grant to PUBLIC, nor the default ones, which PUBLIC has part in."""
    assert (
        queue.rows(
            "SELECT 'function', oid::regprocedure::text FROM pg_proc p WHERE pronamespace = 'pgque'::regnamespace "
            "  AND EXISTS (SELECT FROM aclexplode(coalesce(proacl, acldefault('f', proowner))) WHERE grantee = 0) "
            "UNION ALL SELECT 'relation', oid::regclass::text FROM pg_class WHERE relnamespace = 'pgque'::regnamespace "
            "  AND EXISTS (SELECT FROM aclexplode(relacl) WHERE grantee = 0) "
            "UNION ALL SELECT 'schema', nspname FROM pg_namespace WHERE nspname = 'pgque' "
            "  AND EXISTS (SELECT FROM aclexplode(nspacl) WHERE grantee = 0) "
            "UNION ALL SELECT 'type', t.oid::regtype::text FROM pg_type t JOIN pg_class c ON c.oid = t.typrelid "
            "  WHERE typnamespace = 'pgque'::regnamespace AND c.relkind = 'c' "
            "  AND EXISTS (SELECT FROM aclexplode(coalesce(typacl, acldefault('T', typowner))) WHERE grantee = 0)"
        )
        == []
    )


def test_functions_with_rights_of_their_own_pin_the_search_path(queue: Queue) -> None:
    """A path that ends with the temporary schema, and has nothing in it where others may create."""
    pinned = ["search_path=pg_catalog, pg_temp"]
    unpinned = queue.rows(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'pgque'::regnamespace AND prosecdef "
        "AND NOT coalesce(proconfig && %s::text[], false)",
        pinned,
    )
    assert unpinned == []
    invoked = signatures(queue, "NOT prosecdef")
    assert invoked == {
        "get_batch_cursor(bigint, text, integer)",
        "get_batch_cursor(bigint, text, integer, text)",
        *("jsontriga()", "logutriga()", "sqltriga()"),
        *("ack(bigint)", "ticker_loop()", "start()", "stop()", "uninstall()", "quote_fqname(text)"),
    }


def test_administrators_cannot_reach_the_owners_rights_through_a_cursor(
    queue: Queue, situation: dict[str, Any]
) -> None:
    with queue.connection.transaction(force_rollback=True):
        queue.connection.execute("SET LOCAL ROLE pgque_admin")
        error = queue.fails(
            "SELECT * FROM pgque.get_batch_cursor(%s, 'c', 1, 'EXISTS (SELECT FROM pg_catalog.pg_authid)')",
            situation["batch"],
        )
    assert error.sqlstate == "42501"


def test_no_code_of_an_administrator_runs_with_more_rights(queue: Queue, situation: dict[str, Any]) -> None:
    """What is stored in the tables, put on them or beside them, or written into a trigger or a hook."""
    queue.connection.execute(
        """
        DROP TABLE IF EXISTS secret, public.seen, own;
        CREATE TABLE secret (x int);
        CREATE TABLE public.seen (who text);
        GRANT ALL ON public.seen TO PUBLIC;
        GRANT CREATE ON SCHEMA public TO pgque_admin;
        CREATE ROLE queue_eve;
        GRANT pgque_admin TO queue_eve;
        SET ROLE queue_eve;
        CREATE FUNCTION public.note() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO public.seen VALUES (current_user); RETURN NEW; END $$;
        CREATE FUNCTION public.note(text) RETURNS bool LANGUAGE plpgsql AS
            $$ BEGIN INSERT INTO public.seen VALUES (current_user); RETURN true; END $$;
        CREATE FUNCTION public.hook(text) RETURNS bool LANGUAGE sql AS 'SELECT public.note($1)';
        CREATE TABLE public.own (id int)
        """
    )
    name = situation["q"]
    for attempt in (
        "CREATE TRIGGER eve BEFORE INSERT ON pgque.tick FOR EACH ROW EXECUTE FUNCTION public.note()",
        "CREATE FUNCTION pgque.ticker(int) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION pgque._note() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE PROCEDURE pgque.note() LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE pgque.note (x int)",
        "CREATE TYPE pgque.note AS ENUM ('a')",
        "CREATE OPERATOR pgque.=== (FUNCTION = texteq, LEFTARG = text, RIGHTARG = text)",
        "ALTER FUNCTION public.note() SET SCHEMA pgque; ALTER FUNCTION pgque.note() RENAME TO send",
        "ALTER TABLE public.own SET SCHEMA pgque",
        "ALTER FUNCTION pgque.ticker() SECURITY INVOKER",
        "CREATE OR REPLACE FUNCTION pgque.ticker() RETURNS bigint LANGUAGE sql AS 'SELECT 1'",
        "ALTER TABLE pgque.tick ADD COLUMN eve int DEFAULT 1",
        "CREATE RULE eve AS ON INSERT TO pgque.tick DO ALSO SELECT public.note('x')",
    ):
        assert queue.fails(attempt).sqlstate == "42501"
    for column in ("data_pfx", "event_seq", "tick_seq"):
        assert queue.fails(f"UPDATE pgque.queue SET queue_{column} = 'public.own'").sqlstate == "23514"
    assert queue.fails("UPDATE pgque.queue SET queue_cur_table = 7").sqlstate == "23514"
    queue.connection.execute("UPDATE pgque.queue SET queue_extra_maint = '{public.hook}' WHERE queue_name = %s", [name])
    expression = "when=(SELECT count(*) = 0 FROM public.secret)"
    queue.connection.execute(
        "CREATE TRIGGER eve AFTER INSERT ON public.own FOR EACH ROW "
        f"EXECUTE FUNCTION pgque.jsontriga('{name}', 'when=public.note(id::text)')"
    )
    queue.connection.execute(
        "CREATE TRIGGER eve2 AFTER UPDATE ON public.own FOR EACH ROW "
        f"EXECUTE FUNCTION pgque.jsontriga('{name}', '{expression}')"
    )
    queue.connection.execute("INSERT INTO public.own VALUES (1)")
    assert queue.fails("UPDATE public.own SET id = 2").sqlstate == "42501"
    queue.connection.execute("RESET ROLE")
    queue.value("SELECT pgque.maint()")
    queue.tick()
    seen = queue.rows("SELECT who FROM public.seen")
    queue.connection.execute(
        "UPDATE pgque.queue SET queue_extra_maint = NULL; DROP TABLE secret, public.seen; "
        "REVOKE CREATE ON SCHEMA public FROM pgque_admin; DROP OWNED BY queue_eve; DROP ROLE queue_eve"
    )
    # The expression has the rights of who changed the table, the hook of who attached it.
    assert seen == [("queue_eve",)] * 2


@pytest.fixture
def without_roles(queue: Queue) -> Iterator[None]:
    """The cluster as if nobody had installed queues before: the roles have other names meanwhile."""
    for role in ROLES:
        queue.connection.execute(f"ALTER ROLE {role} RENAME TO {role}_away")
    yield
    for role in ROLES:
        queue.connection.execute(f"DROP ROLE IF EXISTS {role}")
        queue.connection.execute(f"ALTER ROLE {role}_away RENAME TO {role}")


@pytest.fixture
def owner(cluster: EmbeddedPostgres, without_roles: None, queue: Queue) -> Iterator[str]:
    """The DSN of a role that owns an empty database, and may not create roles."""
    queue.connection.execute("CREATE ROLE queue_owner LOGIN PASSWORD 'x'")
    queue.connection.execute("CREATE DATABASE queue_owned OWNER queue_owner")
    yield conninfo.make_conninfo(cluster.dsn("queue_owned"), user="queue_owner", password="x")
    queue.connection.execute("DROP DATABASE queue_owned WITH (FORCE)")
    queue.connection.execute("DROP ROLE queue_owner")


def test_without_the_right_to_create_roles_all_else_works(owner: str, queue: Queue, cluster: EmbeddedPostgres) -> None:
    result = install_into(owner, system=QUEUES)
    assert [warning for warning in result.warnings if "does not exist" in warning] == [
        f'role {role} does not exist, since role "queue_owner" lacks CREATEROLE: '
        "create it, then call pgque._install_roles()"
        for role in sorted(ROLES)
    ]
    with psycopg.connect(owner, autocommit=True) as connection:
        mine = Queue(connection, "mine")
        assert mine.value("SELECT pgque.create_queue('mine')") == 1
        mine.value("SELECT pgque.subscribe('mine', 'me')")
        mine.send("x")
        mine.tick()
        assert mine.rows("SELECT payload FROM pgque.receive('mine', 'me')") == [("x",)]
        assert mine.rows("SELECT status FROM pgque.status() WHERE component = 'roles'") == [("warning",)]
        assert install_into(owner, system=QUEUES).warnings == result.warnings, "it says so until it is mended"
        # Somebody else creates the roles; then they get what they should have.
        with psycopg.connect(cluster.dsn("queue_owned"), autocommit=True) as admin:
            admin.execute("CREATE ROLE pgque_reader; CREATE ROLE pgque_writer; CREATE ROLE pgque_admin")
            partly = mine.value("SELECT pgque._install_roles()")
            assert [warning.rsplit(": ", 1)[1] for warning in partly] == [
                "GRANT pgque_reader TO pgque_admin",
                "GRANT pgque_writer TO pgque_admin",
            ]
            admin.execute("GRANT pgque_reader, pgque_writer TO pgque_admin")
            assert mine.value("SELECT pgque._missing_roles()") == []
            admin.execute("SET ROLE pgque_reader")
            assert admin.execute("SELECT ev_data FROM pgque.event_1").fetchall() == [("x",)]
            assert admin.execute("SELECT count(*) FROM pgque.get_queue_info()").fetchone() == (1,)
            admin.execute("SET ROLE pgque_writer")
            assert admin.execute("SELECT pgque.send('mine', 'y')").fetchone() is not None


def test_the_owner_attaches_a_hook_of_its_own_and_keeps_its_rights(owner: str, queue: Queue) -> None:
    install_into(owner, system=QUEUES)
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(
            "SELECT pgque.create_queue('mine');"
            "CREATE SCHEMA own; CREATE TABLE own.seen (queue text, who text);"
            "CREATE FUNCTION own.hook(queue text) RETURNS void LANGUAGE sql AS"
            " 'INSERT INTO own.seen VALUES (queue, current_user)';"
            "UPDATE pgque.queue SET queue_extra_maint = '{own.hook}'"
        )
        mine = Queue(connection, "mine")
        for _ in range(2):
            assert mine.value("SELECT pgque.maint()") >= 1
        assert mine.rows("SELECT DISTINCT queue, who FROM own.seen") == [("mine", "queue_owner")]
        assert mine.value("SELECT pgque.create_queue('another')") == 1


def test_roles_are_installed_once_for_all_databases(queue: Queue, queue_database: str) -> None:
    """A second installation, and a repeated one, find the roles and change nothing."""
    before = queue.rows("SELECT oid, rolname FROM pg_roles WHERE rolname = ANY (%s) ORDER BY 1", list(ROLES))
    assert queue.value("SELECT pgque._install_roles()") == []
    assert install_into(queue_database, system=QUEUES).changed is False
    assert queue.rows("SELECT oid, rolname FROM pg_roles WHERE rolname = ANY (%s) ORDER BY 1", list(ROLES)) == before


def test_a_grant_of_ones_own_survives_the_repeated_installation(queue: Queue, ordinary: str) -> None:
    queue.connection.execute(f"GRANT EXECUTE ON FUNCTION pgque.force_next_tick(text) TO {ordinary}")
    queue.value("SELECT pgque._install_roles()")
    assert queue.value("SELECT has_function_privilege(%s, 'pgque.force_next_tick(text)', 'EXECUTE')", ordinary) is True
