"""Registers: nobody's code has the rights of the server's role, and nobody makes a function beside the server's."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from catalog.install import Script, Scripts, bundled_scripts
from catalog.systems import REGISTERS
from tests.catalog.conftest import Connect, Connection, bare_connect, database, install_into

__all__ = ["bare_connect", "database"]

ALICE, BOB = "catalog_alice", "catalog_bob"

# A function that tries to become somebody else, and counts its calls, and those with all rights, in sequences.
TRAP = """
CREATE SEQUENCE public.ran;
CREATE SEQUENCE public.breached;
GRANT ALL ON SEQUENCE public.ran, public.breached TO PUBLIC;
CREATE FUNCTION public.trap() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    BEGIN
        PERFORM pg_catalog.set_config('role', 'none', false);
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    PERFORM pg_catalog.nextval('public.ran');
    IF (SELECT a.rolsuper FROM pg_catalog.pg_roles AS a WHERE a.rolname = current_user) THEN
        PERFORM pg_catalog.nextval('public.breached');
    END IF;
    RETURN true;
END $$;
CREATE FUNCTION public.trap_row() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.trap(); RETURN COALESCE(NEW, OLD); END $$;
ALTER FUNCTION public.trap() OWNER TO catalog_alice;
ALTER FUNCTION public.trap_row() OWNER TO catalog_alice
"""

CREATE = """SELECT accum.register_create('cash', '{"account": "int"}', '{"n": "int"}')"""
POST = """SELECT accum.register_post('cash', '{"recorder": "r", "period": "2024-04-18", "account": 1, "n": 1}')"""

OWNERS_CODE = {
    "check": "ALTER TABLE accum.cash_movements ADD CONSTRAINT trap CHECK (public.trap())",
    "default": "ALTER TABLE accum.cash_movements ADD COLUMN mine boolean DEFAULT public.trap()",
    "policy": "ALTER TABLE accum.cash_movements ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
    " CREATE POLICY trap ON accum.cash_movements USING (public.trap())",
    "trigger": "CREATE TRIGGER trap BEFORE INSERT ON accum.cash_totals_year_stored"
    " FOR EACH ROW EXECUTE FUNCTION public.trap_row()",
}


@pytest.fixture
def roles(dsn: str, bare_connect: Connect) -> Connect:
    """Connections to a database with registers, in which two roles may create them."""
    install_into(dsn, system=REGISTERS)
    admin = bare_connect()
    admin.execute(TRAP)
    admin.execute(f"GRANT INSERT ON accum._registers TO {ALICE}")
    return bare_connect


def upgrade(dsn: str) -> None:
    """Install the functions anew."""
    old = bundled_scripts(REGISTERS)
    newer = Scripts(old.migrations, (Script("00", "SELECT 1"), *old.functions), old.superuser, old.title)
    assert install_into(dsn, newer, REGISTERS).changed


def calls(connection: Connection, sequence: str) -> int:
    row = connection.execute(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM public.{sequence}").fetchone()
    assert row is not None
    return int(row[0])


def refused(connection: Connection, statement: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.encode())


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE FUNCTION accum.register_post(text, text) RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION accum_internal.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION accum_roles.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE VIEW accum.x_movements AS SELECT public.trap()",
        "ALTER FUNCTION accum.cash_balance RENAME TO register_info",
        """CREATE OR REPLACE FUNCTION accum_internal."cash.post"(jsonb) RETURNS int LANGUAGE sql AS 'SELECT 1'""",
        "ALTER TABLE accum.cash_movements RENAME TO other",
        "INSERT INTO accum._registers (name, dimensions, resources) VALUES ('x', '{}', '{\"n\": \"int\"}')",
    ],
)
def test_owner_of_a_register_makes_nothing_beside_the_servers(roles: Connect, statement: str) -> None:
    alice = roles(ALICE)
    alice.execute(CREATE)
    refused(alice, statement)
    assert alice.execute(POST).fetchone() == (1,)


def test_right_to_create_of_an_earlier_version_becomes_that_to_create_registers(
    dsn: str, bare_connect: Connect
) -> None:
    new = bundled_scripts(REGISTERS)
    install_into(dsn, Scripts(new.migrations[:2], (Script("00", "SELECT 1"),), (), new.title), REGISTERS)
    admin = bare_connect()
    admin.execute(f"GRANT USAGE, CREATE ON SCHEMA accum TO {ALICE}")
    alice = bare_connect(ALICE)
    alice.execute("CREATE FUNCTION accum.register_post(text, text) RETURNS int LANGUAGE sql AS 'SELECT -1'")
    install_into(dsn, system=REGISTERS)
    refused(alice, "CREATE FUNCTION accum.register_info(varchar) RETURNS int LANGUAGE sql AS 'SELECT -1'")
    alice.execute(CREATE)
    assert admin.execute(POST).fetchone() == (1,)


def test_list_of_registers_evaluates_no_view_and_nothing_with_the_readers_rights(roles: Connect) -> None:
    admin, alice = roles(), roles(ALICE)
    alice.execute(CREATE)
    alice.execute(POST)
    admin.execute(f"GRANT CREATE ON SCHEMA accum TO {ALICE}")  # as an administrator may all the same
    alice.execute("CREATE VIEW accum.x_movements AS SELECT public.trap()")
    assert admin.execute("SELECT name, movements_count FROM accum.register_list()").fetchall() == [("cash", 1)]
    assert calls(admin, "ran") == 0
    alice.execute(OWNERS_CODE["policy"])
    assert admin.execute("SELECT name, movements_count FROM accum.register_list()").fetchall() == [("cash", 1)]
    assert (calls(admin, "ran"), calls(admin, "breached")) == (1, 0)


@pytest.mark.parametrize("kind", list(OWNERS_CODE))
@pytest.mark.one_in(2)
def test_owners_code_has_the_owners_rights_when_an_administrator_alters(dsn: str, roles: Connect, kind: str) -> None:
    admin, alice = roles(), roles(ALICE)
    alice.execute(CREATE.replace('"int"}\')', '"int"}\', high_write := true)'))
    alice.execute(POST)
    alice.execute(OWNERS_CODE[kind].encode())
    before = calls(admin, "ran")
    upgrade(dsn)
    admin.execute("SELECT accum.register_create_partitions('cash', interval '-4 years')")
    admin.execute("SELECT accum.register_alter('cash', high_write := false)")
    admin.execute("""SELECT accum.register_alter('cash', '{"lot": "text"}', '{"m": "int"}')""")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        admin.execute("SELECT accum.register_drop('cash')")
    admin.execute("SELECT accum.register_detach_partitions('cash', '2025-01-01')")
    admin.execute("SELECT accum.register_drop('cash', true)")
    assert calls(admin, "ran") > before or kind == "default"  # of which only the definition is copied
    assert calls(admin, "breached") == 0
    assert admin.execute("SELECT current_user = session_user").fetchone() == (True,)


def test_domain_of_the_caller_with_the_name_of_a_type(roles: Connect) -> None:
    admin, alice = roles(), roles(ALICE)
    for name in ("text", "int4", "jsonb", "boolean", "name", "oid"):
        alice.execute(
            f'CREATE DOMAIN pg_temp."{name}" AS pg_catalog."{"bool" if name == "boolean" else name}"'
            " CHECK (public.trap())"
        )
    alice.execute("SET search_path = pg_temp, pg_catalog")
    alice.execute(CREATE)
    alice.execute(POST)
    alice.execute("SELECT accum.register_alter('cash', high_write := true)")
    alice.execute("SELECT accum.register_create_partitions('cash', interval '-4 years'), accum._force_delta_merge()")
    alice.execute("SELECT accum.register_list(), accum.register_detach_partitions('cash', '2025-01-01')")
    alice.execute("SELECT accum.register_drop('cash', true)")
    assert calls(admin, "breached") == 0


def test_type_of_a_recorder_that_runs_code(dsn: str, roles: Connect) -> None:
    admin, alice = roles(), roles(ALICE)
    alice.execute("CREATE DOMAIN public.doc AS text CHECK (public.trap())")
    alice.execute(CREATE.replace('"int"}\')', "\"int\"}', recorder_type := 'public.doc')"))
    alice.execute(POST)
    upgrade(dsn)
    admin.execute("SELECT accum.register_create_partitions('cash', interval '-4 years')")
    admin.execute("""SELECT accum.register_alter('cash', '{"lot": "text"}', '{"m": "int"}', true)""")
    assert calls(admin, "ran") > 0
    assert calls(admin, "breached") == 0


FORGED: dict[str, Callable[[str], str]] = {
    "view": lambda admin: (
        "INSERT INTO accum_internal.call (caller, operation, arguments)"
        f" VALUES ('{admin}', 'drop', '{{\"name\": \"cash\", \"force\": true}}')"
    ),
    "call": lambda _: """SELECT accum_internal._call('drop', '{"name": "cash", "force": true}')""",
    "function": lambda admin: (
        f"""SELECT accum_internal._drop_register('{admin}', '{{"name": "cash", "force": true}}')"""
    ),
    "trigger": lambda _: (
        "CREATE TRIGGER t INSTEAD OF INSERT ON accum_internal.call FOR EACH ROW"
        " EXECUTE FUNCTION accum_internal._carry_out()"
    ),
    "default": lambda admin: f"ALTER VIEW accum_internal.call ALTER caller SET DEFAULT '{admin}'",
    "owner": lambda _: "SELECT accum_internal._as_owner(10, 'SELECT pg_catalog.to_jsonb(1)', NULL)",
}


@pytest.mark.parametrize("way", list(FORGED))
def test_caller_cannot_be_forged(roles: Connect, way: str) -> None:
    admin, alice, bob = roles(), roles(ALICE), roles(BOB)
    alice.execute(CREATE)
    refused(bob, FORGED[way](admin.info.user))
    assert admin.execute("SELECT name FROM accum._registers").fetchall() == [("cash",)]
    alice.execute("SELECT accum.register_drop('cash')")


LAIR = """
CREATE SCHEMA lair AUTHORIZATION catalog_alice;
SET ROLE catalog_alice;
CREATE FUNCTION lair.lurk(n int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$ BEGIN
    IF session_user <> current_user THEN
        PERFORM pg_catalog.set_config('search_path', 'lair, pg_catalog', false);
    END IF;
    RETURN n;
END $$;
CREATE FUNCTION lair.differ(a text[], b text[]) RETURNS boolean LANGUAGE plpgsql AS
    $$ BEGIN RETURN public.trap(); END $$;
CREATE FUNCTION lair.differ(a text, b text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN public.trap(); END $$;
CREATE FUNCTION lair.differ(a jsonb, b jsonb) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RETURN public.trap(); END $$;
CREATE OPERATOR lair.<> (FUNCTION = lair.differ, LEFTARG = text[], RIGHTARG = text[]);
CREATE OPERATOR lair.<> (FUNCTION = lair.differ, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR lair.<> (FUNCTION = lair.differ, LEFTARG = jsonb, RIGHTARG = jsonb);
CREATE FUNCTION lair.current_setting(a text) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.trap(); RETURN 'pg_catalog, pg_temp'; END $$;
CREATE FUNCTION lair.set_config(a text, b text, c boolean) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.trap(); RETURN b; END $$;
CREATE FUNCTION lair.format(VARIADIC a text[]) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN PERFORM public.trap(); RETURN a[1]; END $$;
RESET ROLE
"""


def test_search_path_that_owners_code_sets_is_looked_at_before_anything_follows_it(roles: Connect) -> None:
    """Extended statistics of the owner's: the planner computes them wherever the movements are counted."""
    roles().execute(LAIR)
    alice, bob = roles(ALICE), roles(BOB)
    alice.execute(CREATE)
    alice.execute(POST)
    alice.execute(f"GRANT SELECT ON accum.cash_movements TO {BOB}")
    alice.execute("CREATE STATISTICS lair.trap ON (lair.lurk(1)), account FROM accum.cash_movements")
    alice.execute("ANALYZE accum.cash_movements")
    for session in (bob, roles()):
        for _ in range(2):
            session.execute("SELECT * FROM accum.register_list()")
            assert calls(bob, "breached") == 0
