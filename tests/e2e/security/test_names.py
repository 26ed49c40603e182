"""Names that others have planted, rights that come and go: PostgreSQL's rules decide what a refresh means and may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Connection = psycopg.Connection[Any]


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture
def alice(db: Any, role: Callable[..., Connection]) -> Connection:
    connection = role("alice")
    connection.execute(
        "CREATE TABLE mine (id int PRIMARY KEY, v int, t text); INSERT INTO mine VALUES (1, 10, 'a'), (2, 20, 'b');"
        "CREATE TABLE loot (what text); GRANT ALL ON loot TO PUBLIC;"
        "CREATE FUNCTION spring() RETURNS text LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO public.loot VALUES (current_user); RETURN current_user; END $$"
    )
    return connection


def user(connection: Connection) -> str:
    return str(connection.info.user)


def loot(db: Any) -> set[str]:
    return {what for (what,) in db.rows("SELECT what FROM public.loot")}


FUNCTIONS = {
    "count": "bigint", "sum": "bigint", "coalesce_": "int", "hash_record_extended": "bigint", "record_eq": "boolean",
    "hashtextextended": "bigint", "hashint8extended": "bigint", "array_agg": "text[]", "generate_series": "int",
    "row_number": "bigint", "pg_visible_in_snapshot": "boolean", "to_jsonb": "jsonb", "current_setting": "text",
    "txid_current": "bigint", "max": "int", "set_config": "text", "nextval": "bigint",
}  # fmt: skip
ARGUMENTS = ("", "int", "text", "record", "text, bigint", "record, bigint", "record, record", "int, int", "text, text")
OPERATORS = ("=", "<>", "<", ">", "+", "-", "*", "||", "->>", "->", "@>", "<=", ">=")
OPERANDS = ("int", "text", "record", "bigint", "jsonb", "numeric")
TYPES = ("int4", "int8", "text", "jsonb", "numeric", "bool", "oid", "regclass", "pg_snapshot", "xid8")
RELATIONS = (
    *("pg_class", "pg_attribute", "pg_proc", "pg_namespace", "pg_roles", "pg_type", "pg_trigger", "pg_rewrite"),
    *("pg_depend", "pg_constraint", "pg_index", "pg_operator", "pg_inherits", "pg_settings", "pg_locks"),
    *("pgt_stream_tables", "pgt_dependencies", "pgt_captures", "pgt_requests", "pgt_refresh_history"),
)


def plant(connection: Connection, schema: str) -> None:
    """Everything that generated statements and the catalog's functions name, in another schema."""
    for name, result in FUNCTIONS.items():
        for arguments in ARGUMENTS:
            connection.execute(
                f"CREATE FUNCTION {schema}.{name}({arguments}) RETURNS {result} LANGUAGE plpgsql AS"
                " $$ BEGIN PERFORM public.spring(); RETURN NULL; END $$"
            )
    for number, operand in enumerate(OPERANDS):
        function = f"{schema}.planted_{number}"
        connection.execute(
            f"CREATE FUNCTION {function}(a {operand}, b {operand}) RETURNS boolean LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM public.spring(); RETURN false; END $$"
        )
        for operator in OPERATORS:
            connection.execute(
                f"CREATE OPERATOR {schema}.{operator}"
                f" (LEFTARG = {operand}, RIGHTARG = {operand}, FUNCTION = {function})"
            )
    for name in TYPES:
        connection.execute(f"CREATE DOMAIN {schema}.{name} AS pg_catalog.{name} CHECK (public.spring() IS NOT NULL)")
    for name in RELATIONS:
        source = f"pgtrickle.{name}" if name.startswith("pgt_") else f"pg_catalog.{name}"
        kind = "TEMPORARY VIEW" if schema == "pg_temp" else "VIEW"
        place = name if schema == "pg_temp" else f"{schema}.{name}"
        columns = "attrelid, attname, attnum, atttypid, attisdropped" if name == "pg_attribute" else "*"
        connection.execute(f"CREATE {kind} {place} AS SELECT {columns}, public.spring() AS planted FROM {source}")


QUERIES = {
    "grouped": "SELECT t, count(*) AS n, sum(v) AS s, max(v) AS m FROM public.mine GROUP BY t",
    "joined": "SELECT a.id, b.v FROM public.mine a LEFT JOIN public.mine b ON a.v = b.v AND a.t <> b.t",
    "ranked": "SELECT id, row_number() OVER (PARTITION BY t ORDER BY v) AS n FROM public.mine",
    "excepted": "SELECT v, t FROM public.mine EXCEPT ALL SELECT v, t FROM public.mine WHERE v > 10",
    "inside": "SELECT id FROM public.mine WHERE v IN (SELECT max(v) FROM public.mine) OR t || 'x' = 'ax'",
}


@pytest.mark.parametrize("schema", ["public", "pg_temp"])
@pytest.mark.parametrize("path", ["public, pg_catalog", "pg_temp, public, pg_catalog", '"$user", public'])
@pytest.mark.one_in(2)
def test_planted_names_mean_nothing_to_maintenance(db: Any, alice: Connection, schema: str, path: str) -> None:
    """Functions, operators, types, views, in a schema that comes first or in the temporary one, as in several CVEs."""
    for name, query in QUERIES.items():
        alice.execute("SELECT pgtrickle.create_stream_table(%s, %s, refresh_mode => 'DIFFERENTIAL')", [name, query])
    plant(alice, schema)
    calls = [
        *(f"SELECT pgtrickle.refresh_stream_table('public.{name}')" for name in QUERIES),
        "SELECT 1 FROM pgtrickle.explain_st('public.grouped')",
        "SELECT 1 FROM pgtrickle.pgt_status()",
        "SELECT 1 FROM pgtrickle.get_refresh_history('public.grouped')",
        "SELECT 1 FROM pgtrickle.list_sources('public.grouped')",
        "SELECT 1 FROM pgtrickle.change_buffer_sizes()",
        "SELECT 1 FROM pgtrickle.trigger_inventory()",
        "SELECT pgtrickle.alter_stream_table('public.grouped', schedule => '1h')",
        "SELECT pgtrickle.create_stream_table('public.another', 'SELECT id FROM public.mine', 'calculated')",
        "SELECT pgtrickle.drop_stream_table('public.another')",
    ]
    with db.connect() as admin:
        for connection in (alice, admin):
            connection.execute(f"SET search_path = {path}")
            connection.execute(
                "INSERT INTO public.mine SELECT pg_catalog.max(id) OPERATOR(pg_catalog.+) 1, 20, 'b' FROM public.mine"
            )
            connection.execute("UPDATE public.mine SET v = 30 WHERE id OPERATOR(pg_catalog.=) 1")
            for call in calls:
                connection.execute(call)
    assert loot(db) <= {user(alice)}
    db.assert_refreshed(*QUERIES)
    assert db.rows("SELECT count(*), sum(n) FROM public.grouped") == [(2, 4)]


def refused(connection: Connection, statement: str, match: str) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=match):
        connection.execute(statement)


REFRESH = "SELECT pgtrickle.refresh_stream_table('st')"


@pytest.mark.parametrize("mode", ["FULL", "DIFFERENTIAL"])
def test_execute_that_is_revoked_stops_the_refresh_until_it_is_granted_again(
    db: Any, alice: Connection, mode: str
) -> None:
    db.run(
        "CREATE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN 2 * $1; END';"
        "CREATE FUNCTION added(int, int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 + $2; END';"
        "CREATE AGGREGATE added_of (int) (SFUNC = added, STYPE = int, INITCOND = '0');"
        "REVOKE EXECUTE ON FUNCTION twice FROM PUBLIC; REVOKE EXECUTE ON FUNCTION added_of FROM PUBLIC"
    )
    create = "SELECT pgtrickle.create_stream_table('st', %s, refresh_mode => %s)"
    query = "SELECT t, added_of(twice(v)) AS w FROM mine GROUP BY t"
    before = db.traces()
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="function"):
        alice.execute(create, [query, mode])
    db.run(f"GRANT EXECUTE ON FUNCTION twice TO {user(alice)}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="added_of"):
        alice.execute(create, [query, mode])
    assert db.traces() == before
    db.run(f"GRANT EXECUTE ON FUNCTION added_of TO {user(alice)}")
    alice.execute(create, [query, mode])
    for function in ("twice", "added_of"):
        db.run(f"REVOKE EXECUTE ON FUNCTION {function} FROM {user(alice)}")
        alice.execute("UPDATE mine SET v = v + 1")
        for connection in (alice, db.connection):
            refused(connection, REFRESH, function)
        db.run(f"GRANT EXECUTE ON FUNCTION {function} TO {user(alice)}")
        db.assert_refreshed("st")


@pytest.mark.parametrize("mode", ["FULL", "DIFFERENTIAL"])
def test_usage_of_a_schema_that_is_revoked_stops_the_refresh_until_it_is_granted_again(
    db: Any, alice: Connection, mode: str
) -> None:
    db.run(
        "CREATE SCHEMA lent; CREATE TABLE lent.t (id int PRIMARY KEY, v int); INSERT INTO lent.t VALUES (1, 1);"
        f"GRANT USAGE ON SCHEMA lent TO {user(alice)}; GRANT SELECT ON lent.t TO {user(alice)}"
    )
    alice.execute("SELECT pgtrickle.create_stream_table('st', 'SELECT id, v FROM lent.t', refresh_mode => %s)", [mode])
    for taken, given in (
        (f"REVOKE USAGE ON SCHEMA lent FROM {user(alice)}", f"GRANT USAGE ON SCHEMA lent TO {user(alice)}"),
        (f"REVOKE SELECT ON lent.t FROM {user(alice)}", f"GRANT SELECT ON lent.t TO {user(alice)}"),
    ):
        db.run(taken)
        db.run("UPDATE lent.t SET v = v + 1")
        for connection in (alice, db.connection):
            refused(connection, REFRESH, "permission denied")
        db.run(given)
        db.assert_refreshed("st")


def test_current_user_is_the_owner_and_in_a_security_definer_function_its_owner(
    db: Any, alice: Connection, role: Callable[..., Connection]
) -> None:
    bob = role("bob")
    bob.execute(
        "CREATE TABLE bobs (v int); INSERT INTO bobs VALUES (7);"
        "CREATE FUNCTION lent(int) RETURNS text SECURITY DEFINER IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN current_user || (SELECT max(v) FROM public.bobs); END $$;"
        "CREATE FUNCTION own(int) RETURNS text SECURITY INVOKER IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN current_user || (SELECT count(*) FROM public.bobs); END $$;"
        "CREATE FUNCTION who(int) RETURNS text SECURITY INVOKER IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN current_user; END $$"
    )
    for mode in ("FULL", "DIFFERENTIAL"):
        create = f"SELECT pgtrickle.create_stream_table('st', %s, refresh_mode => '{mode}')"
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="bobs"):
            alice.execute(create, ["SELECT id, own(v) AS w FROM mine"])
        alice.execute(create, ["SELECT id, lent(v) AS l, who(v) AS w FROM mine"])
        alice.execute("INSERT INTO mine SELECT max(id) + 1, 1, 'c' FROM mine")
        db.refresh("st")
        assert db.rows("SELECT DISTINCT l, w FROM st") == [(f"{user(bob)}7", user(alice))]
        alice.execute("SELECT pgtrickle.drop_stream_table('st')")


@pytest.mark.parametrize("mode", ["FULL", "DIFFERENTIAL"])
@pytest.mark.parametrize("invoker", ["false", "true"])
def test_row_level_security_below_a_view_is_not_circumvented(
    db: Any, alice: Connection, role: Callable[..., Connection], mode: str, invoker: str
) -> None:
    """What a role does not see in a view it does not see in a stream table either: there are its rows, or an error."""
    bob = role("bob")
    bob.execute(
        "CREATE TABLE notes (id int PRIMARY KEY, reader text, note text);"
        f"INSERT INTO notes VALUES (1, '{user(alice)}', 'for alice'), (2, '{user(bob)}', 'for bob');"
        "ALTER TABLE notes ENABLE ROW LEVEL SECURITY; ALTER TABLE notes FORCE ROW LEVEL SECURITY;"
        "CREATE POLICY own ON notes USING (reader = current_user);"
        f"CREATE VIEW shown WITH (security_invoker = {invoker}) AS SELECT id, note FROM notes;"
        f"GRANT SELECT ON notes, shown TO {user(alice)}"
    )
    query = "SELECT id, note FROM public.shown"
    seen = sorted(alice.execute(query).fetchall())
    try:
        alice.execute("SELECT pgtrickle.create_stream_table('st', %s, refresh_mode => %s)", [query, mode])
        db.run(f"INSERT INTO notes VALUES (3, '{user(alice)}', 'later'), (4, '{user(bob)}', 'later')")
        seen = sorted(alice.execute(query).fetchall())
        db.refresh("st")
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported):
        return
    assert sorted(db.rows("SELECT id, note FROM st")) == seen


def test_policy_that_does_not_apply_to_the_owner_is_none(db: Any, alice: Connection) -> None:
    db.run(
        "CREATE TABLE notes (id int PRIMARY KEY, note text); INSERT INTO notes VALUES (1, 'a');"
        "ALTER TABLE notes ENABLE ROW LEVEL SECURITY; CREATE POLICY none ON notes USING (false);"
        f"GRANT SELECT ON notes TO {user(alice)}; ALTER ROLE {user(alice)} BYPASSRLS"
    )
    alice.execute("SELECT pgtrickle.create_stream_table('st', 'SELECT id, note FROM notes')")
    db.run("INSERT INTO notes VALUES (2, 'b')")
    alice.execute(REFRESH)
    assert db.value("SELECT count(*) FROM st") == 2
    db.run(f"ALTER ROLE {user(alice)} NOBYPASSRLS; INSERT INTO notes VALUES (3, 'c')")
    for connection in (alice, db.connection):
        refused(connection, REFRESH, "(?i)row-level security")
    db.run("ALTER TABLE notes DISABLE ROW LEVEL SECURITY")
    db.assert_refreshed("st")


@pytest.mark.parametrize("invoker", ["false", "true"])
def test_rights_below_a_view_are_those_of_its_owner_unless_it_says_otherwise(
    db: Any, alice: Connection, invoker: str
) -> None:
    db.run(
        "CREATE TABLE secret (id int PRIMARY KEY, v int); INSERT INTO secret VALUES (1, 1);"
        f"CREATE VIEW shown WITH (security_invoker = {invoker}) AS SELECT id, v FROM secret;"
        f"GRANT SELECT ON shown TO {user(alice)}"
    )
    create = "SELECT pgtrickle.create_stream_table('st', 'SELECT id, v FROM shown')"
    if invoker == "true":
        refused(alice, create, "secret")
        return
    alice.execute(create)
    db.run("UPDATE secret SET v = 2")
    db.assert_refreshed("st")
    db.run(f"REVOKE SELECT ON shown FROM {user(alice)}; UPDATE secret SET v = 3")
    for connection in (alice, db.connection):
        refused(connection, REFRESH, "shown")
    db.run(f"GRANT SELECT ON shown TO {user(alice)}; ALTER VIEW shown SET (security_invoker = true)")
    for connection in (alice, db.connection):
        refused(connection, REFRESH, "secret")
    assert db.rows("SELECT v FROM st") == [(2,)]
