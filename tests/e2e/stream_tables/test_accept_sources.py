"""Sources whose changes triggers cannot see, and names at which two meet."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture
def notices(db: Any) -> Iterator[list[str]]:
    texts: list[str] = []
    db.connection.add_notice_handler(lambda diagnostic: texts.append(diagnostic.message_primary))
    yield texts


@pytest.mark.parametrize("table", ["leaf", "child"])
def test_partition_or_child_by_itself_is_computed_in_full(db: Any, notices: list[str], table: str) -> None:
    db.run(
        "CREATE TABLE root (id int, k int) PARTITION BY LIST (k);"
        "CREATE TABLE leaf PARTITION OF root FOR VALUES IN (1);"
        "CREATE TABLE parent (id int, k int); CREATE TABLE child () INHERITS (parent);"
        f"INSERT INTO {table} VALUES (1, 1)"
    )
    db.create("copy", f"SELECT id FROM {table}")
    (notice,) = notices
    assert "a source whose changes cannot be captured" in notice
    assert f'"public.{table}" is a partition or child' in notice
    db.run("INSERT INTO root VALUES (2, 1); UPDATE parent SET id = 3")
    db.assert_refreshed("copy")
    assert db.last("copy")[0] == "FULL"
    db.create("whole", f"SELECT count(*) AS n FROM {table}", refresh_mode="FULL")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot be captured"):
        db.create("refused", f"SELECT id FROM {table}", refresh_mode="DIFFERENTIAL")
    db.run(f"INSERT INTO {table} VALUES (4, 1)")
    db.assert_refreshed("copy", "whole")


def test_system_catalog_is_computed_in_full(db: Any, notices: list[str]) -> None:
    """At each refresh, also through views, and also where nothing else changes. It counts itself."""
    with pytest.raises(psycopg.errors.FeatureNotSupported, match='system catalog "pg_class" is not supported') as error:
        db.create("names", "SELECT relname FROM pg_class", refresh_mode="DIFFERENTIAL")
    assert error.value.diag.message_hint == "Use refresh_mode => 'FULL'."
    db.run("CREATE VIEW own_view AS SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace")
    db.run("CREATE TABLE t (name text); INSERT INTO t VALUES ('t')")
    queries = {
        "names": "SELECT relname FROM pg_class",
        "how_many": "SELECT count(*) FROM pg_catalog.pg_class",
        "of_view": "SELECT count(*) FROM own_view",
        "of_standard": "SELECT table_name FROM information_schema.tables",
        "of_system_view": "SELECT tablename FROM pg_tables",
        "statistics": "SELECT count(*) FROM pg_stat_user_tables",
        "joined": "SELECT t.name, c.relkind FROM t LEFT JOIN pg_class c ON c.relname = t.name AND c.relkind = 'r'",
        "inside": "SELECT name, (SELECT count(*) FROM pg_class) AS n FROM t",
        "common": "WITH c AS (SELECT count(*) FROM pg_class) SELECT * FROM c",
    }
    for name, query in queries.items():
        notices.clear()
        db.create(name, query)
        assert 'system catalog "' in notices[0], name
        assert "is not supported in DIFFERENTIAL mode" in notices[0], name
        assert "defining query reads system catalog" in notices[1], name
    db.create("kept", "SELECT relname FROM pg_class", refresh_mode="FULL")
    for change in ("CREATE TABLE one_more (id int)", "DROP TABLE one_more", "INSERT INTO t VALUES ('names')"):
        db.run(change)
        db.assert_refreshed(*queries, "kept")
        assert db.last("how_many")[0] == "FULL"
    assert db.value("SELECT count(*) FROM names WHERE relname = 'names'") == 1


def test_information_schema_shows_what_the_owner_of_the_stream_table_may_see(db: Any, role: Any) -> None:
    db.run("CREATE TABLE hidden (id int)")
    alice = role("alice")
    alice.execute("CREATE TABLE mine (id int)")
    alice.execute("SELECT pgtrickle.create_stream_table('tables', 'SELECT table_name FROM information_schema.tables')")
    db.refresh("tables")
    seen = {
        name for (name,) in db.rows("SELECT table_name FROM tables WHERE table_name IN ('mine', 'hidden', 'tables')")
    }
    assert seen == {"mine", "tables"}


@pytest.mark.parametrize("mode", ["AUTO", "FULL", "DIFFERENTIAL"])
def test_temporary_table_is_no_source(db: Any, mode: str) -> None:
    before = db.traces()
    db.run("CREATE TEMPORARY TABLE mine (id int)")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match='temporary relation "mine" cannot be a source'):
        db.create("copy", "SELECT id FROM mine", refresh_mode=mode)
    db.run("DROP TABLE mine")
    assert db.traces() == before


@pytest.mark.parametrize("schema", ["pgtrickle", "pgtrickle_changes"])
def test_schemas_of_the_catalog_are_reserved(db: Any, schema: str) -> None:
    with pytest.raises(psycopg.errors.ReservedName, match=f'schema "{schema}" is reserved'):
        db.create(f"{schema}.copy", "SELECT 1 AS one")


@pytest.mark.parametrize("function", ["create_stream_table", "create_stream_table_if_not_exists"])
def test_many_create_the_same_name_at_once(db: Any, function: str) -> None:
    db.run("CREATE TABLE t (id int)")
    connections = [db.connect() for _ in range(5)]

    def create(connection: psycopg.Connection[Any]) -> str | None:
        try:
            connection.execute(f"SELECT pgtrickle.{function}('copy', 'SELECT id FROM t')")
        except psycopg.Error as error:
            return error.sqlstate
        return None

    with ThreadPoolExecutor(len(connections)) as pool:
        outcomes = list(pool.map(create, connections))
    expected = "42P07" if function == "create_stream_table" else None
    assert sorted(outcomes, key=str) == sorted([None] + [expected] * 4, key=str)
    db.assert_refreshed("copy")


def test_source_that_becomes_a_partition_is_computed_in_full_from_then_on(db: Any) -> None:
    db.run(
        "CREATE TABLE root (id int, k int) PARTITION BY LIST (k);"
        "CREATE TABLE leaf (id int, k int); INSERT INTO leaf VALUES (1, 1)"
    )
    db.create("auto", "SELECT k, count(*) AS n FROM leaf GROUP BY k")
    db.create("strict", "SELECT id FROM leaf", refresh_mode="DIFFERENTIAL")
    db.run("ALTER TABLE root ATTACH PARTITION leaf FOR VALUES IN (1); INSERT INTO root VALUES (2, 1)")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="is a partition or child"):
        db.refresh("strict")
    db.assert_refreshed("auto")
    db.run("INSERT INTO root VALUES (3, 1)")
    db.assert_refreshed("auto")
    assert (db.last("auto")[0], db.state("auto")["requested_mode"]) == ("FULL", "AUTO")
    db.run(
        "ALTER TABLE root DETACH PARTITION leaf; SELECT pgtrickle.alter_stream_table('auto', refresh_mode => 'AUTO')"
    )
    db.assert_refreshed("auto", "strict")
    db.run("INSERT INTO leaf VALUES (4, 1); DELETE FROM leaf WHERE id = 1")
    db.assert_refreshed("auto", "strict")
    assert (db.state("auto")["refresh_mode"], db.last("strict")[0]) == ("DIFFERENTIAL", "DIFFERENTIAL")
