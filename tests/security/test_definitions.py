"""What stream tables are computed from is shown to those who may read them, and to nobody else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

SECRET = "SELECT id, v FROM t WHERE v <> 'the password is 4711'"
EVERYWHERE = """
SELECT format('SELECT count(*) FROM %s AS r WHERE r::text LIKE ''%%is 4711%%''', c.oid::regclass)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname IN ('pgtrickle', 'pgtrickle_changes') AND c.relkind IN ('r', 'v', 'm', 'f', 'p')
  AND has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT')
"""
FUNCTIONS = """
SELECT format('SELECT count(*) FROM pgtrickle.%I(''public.hidden'') AS r WHERE r::text LIKE ''%%is 4711%%''', p.proname)
FROM pg_proc p
WHERE p.pronamespace = 'pgtrickle'::regnamespace AND p.proretset AND p.prokind = 'f' AND p.proname !~ '^_'
  AND p.pronargs - p.pronargdefaults = 1 AND p.proargtypes[0] = 'text'::regtype
"""


@pytest.fixture
def db(emptied_db: Database) -> Database:
    return emptied_db


@pytest.fixture
def hidden(db: Database) -> Database:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'x')")
    db.create("hidden", SECRET)
    return db


def shown(connection: psycopg.Connection[Any]) -> list[str]:
    """The relations and functions of the catalog in which a role finds the query."""
    found = []
    for (statement,) in connection.execute(EVERYWHERE).fetchall() + connection.execute(FUNCTIONS).fetchall():
        try:
            ((count,),) = connection.execute(statement).fetchall()
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.FeatureNotSupported):
            continue
        if count:
            found.append(statement)
    return found


def test_a_stranger_finds_no_query_anywhere(hidden: Database, role: Callable[..., psycopg.Connection[Any]]) -> None:
    stranger = role("stranger")
    assert shown(stranger) == []
    (row,) = stranger.execute("SELECT pgt_name, status, defining_query, topk_order_by FROM pgtrickle.pgt_stream_tables")
    assert row == ("hidden", "ACTIVE", None, None)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        stranger.execute("SELECT FROM pgtrickle.pgt_definitions")
    for change in (
        "UPDATE pgtrickle.pgt_stream_tables SET needs_reinit = true",
        "DELETE FROM pgtrickle.pgt_stream_tables",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            stranger.execute(change)  # type: ignore[arg-type]


def test_who_may_read_it_finds_its_query(hidden: Database, role: Callable[..., psycopg.Connection[Any]]) -> None:
    reader = role("reader")
    hidden.run(f"GRANT SELECT ON hidden TO {reader.info.user}")
    query = "SELECT defining_query, original_query FROM pgtrickle.stream_tables_info"
    assert reader.execute(query).fetchone() == (hidden.state("hidden")["defining_query"], SECRET)
    assert len(shown(reader)) >= 3
    hidden.run(f"REVOKE SELECT ON hidden FROM {reader.info.user}")
    assert shown(reader) == []


def test_the_owner_finds_it_without_rights_to_the_table(
    hidden: Database, role: Callable[..., psycopg.Connection[Any]]
) -> None:
    owner = role("owner")
    hidden.run(f"GRANT SELECT ON t TO {owner.info.user}")
    owner.execute("SELECT pgtrickle.create_stream_table('mine', %s)", [SECRET])
    owner.execute(f"REVOKE ALL ON mine FROM {owner.info.user}")  # type: ignore[arg-type]
    (found,) = owner.execute("SELECT original_query FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'mine'")
    assert found == (SECRET,)
    assert shown(owner) != []


def test_a_function_that_pretends_to_be_the_test_is_not_asked(
    hidden: Database, role: Callable[..., psycopg.Connection[Any]]
) -> None:
    """Nothing that a role can define, or set, makes the view take it for another one."""
    stranger = role("pretender")
    stranger.execute("CREATE FUNCTION has_table_privilege(name, oid, text) RETURNS bool LANGUAGE sql AS 'SELECT true'")
    stranger.execute("CREATE FUNCTION pg_has_role(name, oid, text) RETURNS bool LANGUAGE sql AS 'SELECT true'")
    stranger.execute("SET search_path = public, pg_catalog")
    assert shown(stranger) == []
