"""Nothing is installed into a schema that somebody else has made or could change, and nothing in it is run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import conninfo

from catalog.install import bundled_scripts, install
from catalog.ownership import UntrustedSchema
from catalog.systems import QUEUES, REGISTERS, STREAM_TABLES, System
from engine.session.pool import PooledSession
from tests.e2e.conftest import Headwater

ROLE = "squatter"
SCHEMAS = [
    ("pgtrickle", STREAM_TABLES),
    ("pgtrickle_changes", STREAM_TABLES),
    ("pgtrickle_roles", STREAM_TABLES),
    ("pgtrickle_staging", STREAM_TABLES),
    ("pgque", QUEUES),
    ("accum", REGISTERS),
    ("accum_internal", REGISTERS),
    ("accum_roles", REGISTERS),
]


class Squatted:
    """A database that no client of the server's has touched, and a role that may create schemas in it."""

    def __init__(self, server: Headwater, name: str):
        self.server = server
        self.name = name
        self.admin = psycopg.connect(server.direct_dsn(name), autocommit=True)
        self.mallory = psycopg.connect(server.direct_dsn(name, user=ROLE, password="secret"), autocommit=True)

    def install(self, system: System) -> None:
        """As the server does, by a superuser."""

        async def run() -> None:
            options = conninfo.conninfo_to_dict(self.server.direct_dsn(self.name))
            names = {"dbname": "database"}
            arguments: dict[str, Any] = {names.get(key, key): value for key, value in options.items()}
            connection = await asyncpg.connect(**arguments)
            try:
                await install(PooledSession(connection), system=system)
            finally:
                await connection.close()

        asyncio.run(run())

    def refused(self, system: System) -> UntrustedSchema:
        with pytest.raises(UntrustedSchema) as failure:
            self.install(system)
        assert failure.value.sqlstate == "42710"
        assert f'role "{ROLE}"' in failure.value.message
        assert failure.value.hint is not None
        return failure.value

    def value(self, query: str) -> Any:
        row = self.admin.execute(query).fetchone()
        assert row is not None
        return row[0]


@pytest.fixture
def squatted(server: Headwater) -> Iterator[Squatted]:
    name = "squatted"
    with psycopg.connect(server.direct_dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'secret'")
        admin.execute(f"CREATE DATABASE {name}")
        admin.execute(f"GRANT CREATE ON DATABASE {name} TO {ROLE}")
        database = Squatted(server, name)
        yield database
        database.admin.close()
        database.mallory.close()
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        admin.execute(f"DROP ROLE {ROLE}")


@pytest.mark.parametrize(("schema", "system"), SCHEMAS, ids=[schema for schema, _ in SCHEMAS])
@pytest.mark.one_in(2)
def test_schema_that_was_there_before(squatted: Squatted, schema: str, system: System) -> None:
    squatted.mallory.execute(f"CREATE SCHEMA {schema}")
    assert f'schema {schema} belongs to role "{ROLE}"' in str(squatted.refused(system).detail)
    # Whatever it says of itself.
    state = bundled_scripts(system).state(superuser=True)
    squatted.mallory.execute(f"COMMENT ON SCHEMA {schema} IS '{state}'")
    squatted.mallory.execute(f"CREATE TABLE {schema}.{system.versions} (version text PRIMARY KEY)")
    squatted.refused(system)
    assert squatted.value(f"SELECT count(*) FROM pg_proc WHERE pronamespace = '{schema}'::regnamespace") == 0
    squatted.mallory.execute(f"DROP SCHEMA {schema} CASCADE")
    squatted.install(system)
    squatted.install(system)


def test_nothing_is_asked_of_a_stranger_about_what_was_uninstalled(squatted: Squatted) -> None:
    """The list of what was uninstalled is read before anything is installed: a view in its place would run code."""
    for statement in (
        "CREATE SCHEMA pgtrickle",
        "CREATE TABLE pgtrickle.ran (who text)",
        "CREATE FUNCTION pgtrickle.evil() RETURNS text LANGUAGE sql VOLATILE AS"
        " $$ INSERT INTO pgtrickle.ran VALUES (current_user) RETURNING 'pg_trickle' $$",
        "CREATE VIEW pgtrickle.pgt_uninstalled AS SELECT pgtrickle.evil() AS extension",
    ):
        squatted.mallory.execute(statement)
    squatted.refused(STREAM_TABLES)
    with psycopg.connect(squatted.server.dsn(squatted.name), autocommit=True) as client:
        client.execute("SELECT 1")
    assert squatted.value("SELECT count(*) FROM pgtrickle.ran") == 0
    squatted.mallory.execute("DROP SCHEMA pgtrickle CASCADE")
    squatted.install(STREAM_TABLES)


@pytest.mark.parametrize("system", [STREAM_TABLES, QUEUES, REGISTERS], ids=lambda system: str(system.schema))
def test_schema_that_changed_hands_after_the_installation(squatted: Squatted, system: System) -> None:
    squatted.install(system)
    squatted.admin.execute(f"ALTER SCHEMA {system.schema} OWNER TO {ROLE}")
    squatted.refused(system)
    squatted.admin.execute(f"ALTER SCHEMA {system.schema} OWNER TO CURRENT_USER")
    squatted.install(system)


OBJECTS = {
    "overload": "CREATE FUNCTION {schema}._setting(text, varchar) RETURNS text LANGUAGE sql AS 'SELECT NULL::text'",
    "function": "CREATE FUNCTION {schema}._f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "table": "CREATE TABLE {schema}.t (a int)",
    "view": "CREATE VIEW {schema}.v AS SELECT 1 AS a",
    "type": "CREATE DOMAIN {schema}.text AS pg_catalog.text",
    "operator": "CREATE OPERATOR {schema}.= (LEFTARG = int, RIGHTARG = text, FUNCTION = public.same)",
    "collation": 'CREATE COLLATION {schema}.c FROM "C"',
}


@pytest.mark.parametrize("schema", ["pgtrickle", "pgtrickle_changes"])
@pytest.mark.parametrize("kind", list(OBJECTS))
@pytest.mark.one_in(2)
def test_object_in_a_schema_of_the_servers(squatted: Squatted, schema: str, kind: str) -> None:
    squatted.install(STREAM_TABLES)
    squatted.admin.execute(f"GRANT CREATE, USAGE ON SCHEMA {schema} TO {ROLE}; GRANT ALL ON SCHEMA public TO {ROLE}")
    squatted.mallory.execute("CREATE FUNCTION public.same(int, text) RETURNS boolean LANGUAGE sql AS 'SELECT true'")
    squatted.mallory.execute(OBJECTS[kind].format(schema=schema).encode())
    error = squatted.refused(STREAM_TABLES)
    assert kind.replace("overload", "function") in str(error.detail)


def test_nobody_else_may_create_in_the_schemas_after_an_installation(squatted: Squatted) -> None:
    schemas = "pgtrickle, pgtrickle_changes, pgtrickle_roles, pgtrickle_staging"
    for name in schemas.split(", "):
        squatted.admin.execute(f"CREATE SCHEMA {name}; GRANT ALL ON SCHEMA {name} TO PUBLIC, {ROLE}")
    squatted.install(STREAM_TABLES)
    for name in schemas.split(", "):
        assert squatted.value(f"SELECT has_schema_privilege('{ROLE}', '{name}', 'CREATE')") is False


TRAPS = """
CREATE SCHEMA pgtrickle; GRANT USAGE ON SCHEMA pgtrickle TO PUBLIC;
CREATE TABLE pgtrickle.caught (who text, how text); GRANT ALL ON pgtrickle.caught TO PUBLIC;
CREATE FUNCTION pgtrickle.catch(how text) RETURNS text LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO pgtrickle.caught VALUES (current_user, how); RETURN how; END $$;
CREATE TABLE pgtrickle.pgt_schema_version (version text);
CREATE VIEW pgtrickle.pgt_stream_tables AS SELECT pgtrickle.catch('pgt_stream_tables') AS pgt_schema;
CREATE VIEW pgtrickle.pgt_request_errors AS SELECT pgtrickle.catch('pgt_request_errors') AS kind, '' AS error,
    '' AS error_state, 1 AS request_id;
CREATE VIEW pgtrickle.pgt_load_generators AS SELECT pgtrickle.catch('pgt_load_generators') AS error;
CREATE FUNCTION pgtrickle._request_extension(text, text, boolean, boolean, text, text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN PERFORM pgtrickle.catch('_request_extension'); RAISE INFO USING ERRCODE = 'HW001'; END $$;
CREATE FUNCTION pgtrickle._request_statement(text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN PERFORM pgtrickle.catch('_request_statement'); END $$;
CREATE FUNCTION pgtrickle._request_copy(text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN PERFORM pgtrickle.catch('_request_copy'); END $$;
CREATE FUNCTION pgtrickle._raise(text, text, text, text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN PERFORM pgtrickle.catch('_raise'); END $$;
CREATE FUNCTION pgtrickle._pending_requests() RETURNS TABLE (request_id bigint, kind text, arguments text,
    search_path text, requested_by text) LANGUAGE plpgsql AS
$$ BEGIN PERFORM pgtrickle.catch('_pending_requests'); END $$;
CREATE FUNCTION public.tells() RETURNS void LANGUAGE plpgsql AS
$$ BEGIN RAISE INFO USING ERRCODE = 'HW001', MESSAGE = '1'; END $$;
"""

STATEMENTS = (
    "CREATE EXTENSION pgque",
    "DROP EXTENSION IF EXISTS pg_accumulator",
    "CREATE SOURCE s FROM LOAD GENERATOR COUNTER",
    "CREATE TABLE loaded (a int)",
    "COPY loaded FROM 'file:///etc/passwd'",
    "SUBSCRIBE (SELECT 1 AS a)",
    "SELECT public.tells()",
    "BEGIN",
    "SELECT public.tells()",
    "ROLLBACK",
)


def test_server_calls_nothing_in_a_schema_of_somebody_elses(squatted: Squatted) -> None:
    """A superuser logs in through the server and uses statements for which it would call functions of the catalog."""
    squatted.admin.execute(f"GRANT CREATE ON SCHEMA public TO {ROLE}")
    squatted.mallory.execute(TRAPS)
    with psycopg.connect(squatted.server.dsn(squatted.name), autocommit=True) as connection:
        connection.prepare_threshold = None
        for statement in STATEMENTS:
            for prepare in (False, True):
                with suppress(psycopg.Error):
                    connection.execute(statement.encode(), prepare=prepare)
    squatted.server.status()
    assert squatted.admin.execute("SELECT * FROM pgtrickle.caught").fetchall() == []


def test_queues_of_somebody_elses_are_not_ticked(squatted: Squatted, eventually: Callable[..., Any]) -> None:
    squatted.mallory.execute(
        "CREATE SCHEMA pgque; CREATE TABLE pgque.caught (who text); CREATE TABLE pgque.schema_version (version text);"
        "CREATE FUNCTION pgque.catch() RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO pgque.caught VALUES (current_user); RETURN 'x'; END $$;"
        "CREATE VIEW pgque.queue AS SELECT pgque.catch() AS queue_name"
    )
    # The engine takes the database up, and its clock looks for queues at once, before the scheduler has refreshed.
    with psycopg.connect(squatted.server.dsn(squatted.name), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        connection.execute("SELECT pgtrickle.create_stream_table('st', 'SELECT id FROM t', '1s')")
        connection.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: connection.execute("SELECT count(*) FROM st").fetchone() == (1,))
    squatted.server.status()
    assert squatted.admin.execute("SELECT * FROM pgque.caught").fetchall() == []


def test_lock_of_the_installation_that_another_role_holds(squatted: Squatted) -> None:
    squatted.mallory.execute("SELECT pg_advisory_lock(%s)", [STREAM_TABLES.advisory_lock])
    squatted.install(STREAM_TABLES)
    assert squatted.value("SELECT to_regclass('pgtrickle.pgt_stream_tables') IS NOT NULL")


def test_repair_runs_nothing_of_another_roles(squatted: Squatted) -> None:
    """Whoever may create in a schema for once can take the name of a function that is gone, and has it found."""
    squatted.install(STREAM_TABLES)
    squatted.admin.execute("DROP FUNCTION pgtrickle.get_staleness(text); GRANT CREATE ON SCHEMA pgtrickle TO PUBLIC")
    squatted.mallory.execute(
        "CREATE FUNCTION pgtrickle.get_staleness(text) RETURNS float8 LANGUAGE sql AS 'SELECT 1.0'"
    )
    assert "get_staleness" in squatted.refused(STREAM_TABLES).detail
    squatted.admin.execute("DROP FUNCTION pgtrickle.get_staleness(text)")
    squatted.install(STREAM_TABLES)
    squatted.mallory.execute("SELECT pgtrickle.get_staleness('none') WHERE false")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        squatted.mallory.execute("CREATE FUNCTION pgtrickle.more() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    for statement in (
        "UPDATE pgtrickle.pgt_schema_version SET objects = NULL",
        "DELETE FROM pgtrickle.pgt_schema_version",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            squatted.mallory.execute(statement)
