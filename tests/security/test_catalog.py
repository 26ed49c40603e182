"""What holds for every function, table and schema that is installed: pinned, granted to few, owned by one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from catalog.systems import SYSTEMS
from server.postgres.cluster import EmbeddedPostgres
from tests.catalog.conftest import install_into
from tests.clusters import new_database
from tests.security.name_lookup import unqualified

OURS = r"^(pgtrickle|pgque|accum)(_|$)"
"""Schemas of the server's own, as a regular expression."""

PINNED = "search_path=pg_catalog, pg_temp"
"""The temporary schema is named last: without mention it would come first, for types and relations."""


def declared(file: str) -> list[str]:
    """The lines of a table beside this module, without comments."""
    text = Path(__file__).with_name(file).read_text()
    return [line for line in text.splitlines() if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def installed(cluster: EmbeddedPostgres) -> Iterator[psycopg.Connection[Any]]:
    """A superuser's connection to a database with everything installed, and with what users' objects bring about."""
    with new_database(cluster, "catalog_checks") as name:
        for system in SYSTEMS:
            install_into(cluster.dsn(name), system=system)
        with psycopg.connect(cluster.dsn(name), autocommit=True) as connection:
            connection.execute("SELECT pgque.create_queue('orders'); SELECT pgque.subscribe('orders', 'billing')")
            connection.execute(
                'SELECT accum.register_create(\'stock\', \'{"item": "int"}\', \'{"n": "int"}\');'
                'SELECT accum.register_create(\'quick\', \'{"item": "int"}\', \'{"n": "int"}\', high_write := true)'
            )
            yield connection


@dataclass(frozen=True)
class Function:
    """A row of pg_proc."""

    signature: str
    language: str
    pinned: bool
    parsed: bool
    """Whether its names were bound when it was created."""
    source: str
    arguments: tuple[str, ...]
    definer: bool


def functions(connection: psycopg.Connection[Any]) -> list[Function]:
    rows = connection.execute(
        "SELECT n.nspname || '.' || p.oid::regprocedure::text, l.lanname, coalesce(%s = ANY (p.proconfig), false),"
        " p.prosqlbody IS NOT NULL, p.prosrc, coalesce(p.proargnames, '{}'), p.prosecdef"
        " FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace JOIN pg_language l ON l.oid = p.prolang"
        " WHERE n.nspname ~ %s ORDER BY 1",
        [PINNED, OURS],
    ).fetchall()
    return [Function(*row[:5], tuple(row[5]), row[6]) for row in rows]


# -- pinned or qualified ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "DECLARE a text; BEGIN RETURN NULL; END",
        "DECLARE a record; BEGIN RETURN NULL; END",
        "BEGIN RETURN a = b; END",
        "BEGIN RETURN a || b; END",
        "BEGIN RETURN a::text; END",
        "BEGIN RETURN CAST(a AS text); END",
        "BEGIN RETURN lower(a); END",
        "BEGIN PERFORM 1 FROM pg_class; END",
        "BEGIN RETURN a IN (b); END",
        "BEGIN RETURN a LIKE b; END",
        "BEGIN RETURN a IS DISTINCT FROM b; END",
        "BEGIN RETURN a BETWEEN b AND b; END",
        "BEGIN RETURN NULLIF(a, b); END",
        "BEGIN RETURN CASE a WHEN b THEN a END; END",
        "BEGIN RETURN -a; END",
        "BEGIN RETURN a(b); END",
        "BEGIN FOR i IN 1 .. 3 LOOP END LOOP; END",
    ],
)
def test_a_name_that_is_left_to_the_caller_is_noticed(source: str) -> None:
    assert unqualified(source, ("a", "b")) != []


@pytest.mark.parametrize(
    "source",
    [
        "DECLARE c pg_catalog.text; BEGIN c := pg_catalog.lower(a); RETURN c OPERATOR(pg_catalog.=) b; END",
        "SELECT pgtrickle._f(a, pg_catalog.current_setting('search_path'))",
        "BEGIN INSERT INTO pgtrickle.t VALUES (a, b::pg_catalog.text); RETURN NULL; END",
        "BEGIN IF a IS NULL THEN RAISE EXCEPTION USING ERRCODE = '0A000'; END IF; END".replace(" = ", " := "),
        "SELECT count.n FROM pgtrickle._g(a => b) AS count (n)",
    ],
)
def test_a_qualified_source_is_accepted(source: str) -> None:
    assert unqualified(source, ("a", "b")) == []


def test_no_function_leaves_a_name_to_its_caller(installed: psycopg.Connection[Any]) -> None:
    """PL/pgSQL looks types up at the first call in a session, and operators at the first call with each search_path."""
    wrong = {
        function.signature: names
        for function in functions(installed)
        if not function.pinned and not function.parsed and (names := unqualified(function.source, function.arguments))
    }
    assert wrong == {}


def test_every_function_with_its_owners_rights_is_pinned(installed: psycopg.Connection[Any]) -> None:
    assert [f.signature for f in functions(installed) if f.definer and not f.pinned and not f.parsed] == []


@pytest.mark.parametrize("name", ["_session_objects", "_session_locks", "_advisory_key", "_restore_session"])
def test_what_a_query_may_not_leave_behind_is_the_same_in_all_systems(
    installed: psycopg.Connection[Any], name: str
) -> None:
    """Each can be installed alone, so there are three copies of it."""
    found = {}
    for function in functions(installed):
        if f".{name}(" in function.signature:
            schema = function.signature.partition(".")[0]
            found[schema] = function.source.replace(f"{schema}.", "")
    assert set(found) == {"pgtrickle", "pgque", "accum_internal"}
    assert len(set(found.values())) == 1


def test_search_path_that_a_roles_code_may_have_set_is_checked_before_anything_is_looked_up(
    installed: psycopg.Connection[Any],
) -> None:
    """A SET inside a function with SET holds until that ends, also for the operators that follow."""
    calls = re.compile(
        r"\bEXECUTE (?:call|format\('SELECT %s\(\$1\)', caller\))[^;]*;"  # with a role's rights
        r"(?:\s*EXCEPTION WHEN OTHERS OR query_canceled OR assert_failure THEN"  # which undoes the search_path
        r"\s*PERFORM \w+\._restore_session\(known, locks\);\s*RAISE;)?"
        r"(?:\s*(?:END|END IF|ELSE\b|--[^\n]*|locks := \w+\._session_locks\(\)|BEGIN\b);?)*\s*(.*)"
    )
    found = {}
    for function in functions(installed):
        for follows in calls.findall(function.source):
            found.setdefault(function.signature.split("(")[0].split(".", 1)[1], set()).add(follows)
    assert set(found) == {"pgtrickle._run", "pgtrickle._rows", "pgque._call_hook", "accum_internal._as_owner"}
    for signature, statements in found.items():
        schema = signature.split(".")[0]
        for statement in statements - {"EXECUTE call INTO result USING statement, parameters;"}:
            checked = rf"PERFORM {schema}\._check_\w+\(pg_catalog\.current_setting\('search_path'\)(, \w+)+\);"
            assert re.fullmatch(checked, statement), signature


def test_functions_are_written_in_languages_that_are_checked(installed: psycopg.Connection[Any]) -> None:
    assert {f.language for f in functions(installed)} == {"sql", "plpgsql"}


# -- granted ----------------------------------------------------------------------------------------------------------

GRANTS = """
SELECT n.nspname || '.' || p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
       CASE WHEN p.prosecdef THEN 'owner' ELSE 'caller' END,
       CASE WHEN p.prorettype IN ('trigger'::regtype, 'event_trigger'::regtype) THEN 'trigger'
            ELSE coalesce((SELECT string_agg(coalesce(a.rolname, 'PUBLIC'), ', ' ORDER BY coalesce(a.rolname, 'PUBLIC'))
                           FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) g
                           LEFT JOIN pg_roles a ON a.oid = g.grantee
                           WHERE g.grantee <> p.proowner), '-') END
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE n.nspname ~ %s
ORDER BY 1
"""


def test_who_may_call_which_function(installed: psycopg.Connection[Any]) -> None:
    """The whole matrix of functions and roles: what is new there was meant."""
    found = [" | ".join(row) for row in installed.execute(GRANTS, [OURS]).fetchall()]
    assert sorted(found) == sorted(declared("function_rights.txt"))


def test_nobody_else_may_create_in_our_schemas(installed: psycopg.Connection[Any]) -> None:
    rows = installed.execute(
        "SELECT n.nspname, g.privilege_type, coalesce(g.grantee::regrole::text, '-') FROM pg_namespace n,"
        " aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) g"
        " WHERE n.nspname ~ %s AND g.grantee <> n.nspowner AND g.privilege_type <> 'USAGE'",
        [OURS],
    ).fetchall()
    assert rows == [("pgque", "CREATE", "pgque_admin")], "functions, whose names an event trigger checks"


WRITERS = """
SELECT n.nspname || '.' || c.relname,
       coalesce(nullif(g.grantee, 0)::regrole::text, 'PUBLIC'),
       string_agg(lower(g.privilege_type), ', ' ORDER BY g.privilege_type)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
     aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's'::"char" ELSE 'r' END, c.relowner))) g
WHERE n.nspname ~ %s AND g.grantee <> c.relowner AND g.privilege_type NOT IN ('SELECT', 'USAGE')
GROUP BY 1, 2 ORDER BY 1, 2
"""


def test_who_may_write_which_table(installed: psycopg.Connection[Any]) -> None:
    """Where columns are granted the right is not shown: `pg_class.relacl` is for whole tables."""
    found = [" | ".join(row) for row in installed.execute(WRITERS, [OURS]).fetchall()]
    assert sorted(found) == sorted(declared("table_rights.txt"))


# -- owned ------------------------------------------------------------------------------------------------------------

OWNERS = """
SELECT 'schema', n.nspname, n.nspowner::regrole::text FROM pg_namespace n WHERE n.nspname ~ %(ours)s
UNION ALL SELECT 'relation', c.oid::regclass::text, c.relowner::regrole::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname ~ %(ours)s
UNION ALL SELECT 'function', p.oid::regprocedure::text, p.proowner::regrole::text
FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname ~ %(ours)s
UNION ALL SELECT 'type', t.oid::regtype::text, t.typowner::regrole::text
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE n.nspname ~ %(ours)s
UNION ALL SELECT 'operator', o.oid::regoperator::text, o.oprowner::regrole::text
FROM pg_operator o JOIN pg_namespace n ON n.oid = o.oprnamespace WHERE n.nspname ~ %(ours)s
"""


def test_everything_is_owned_by_the_role_that_installs(installed: psycopg.Connection[Any]) -> None:
    rows = installed.execute(OWNERS, {"ours": OURS}).fetchall()
    assert len(rows) > 300
    owner = installed.execute("SELECT current_user").fetchone()
    assert owner is not None
    assert [row for row in rows if row[2] != owner[0]] == []


def test_no_operator_or_cast_of_ours_can_be_met_by_chance(installed: psycopg.Connection[Any]) -> None:
    """A cast has no schema: whoever owns one of its types could change what a statement of ours means."""
    assert installed.execute("SELECT castfunc::regprocedure FROM pg_cast WHERE oid >= 16384").fetchall() == []
