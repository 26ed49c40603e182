"""Types of users in tables of the server's: none is taken for another, and none of their functions has its rights."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Role = Callable[..., psycopg.Connection[Any]]
Eventually = Callable[..., Any]


@pytest.fixture
def mallory(db: Database, role: Role) -> psycopg.Connection[Any]:
    """A session of a role that has a schema `lair`."""
    session = role("mallory")
    db.run(f"CREATE SCHEMA lair AUTHORIZATION {session.info.user}")
    return session


def types_of(db: Database, source: str) -> list[tuple[str, int]]:
    """The columns of a source's buffer, with the OIDs of their types."""
    return db.rows(
        "SELECT a.attname::text, a.atttypid::int FROM pg_attribute a"
        f" WHERE a.attrelid = ('pgtrickle_changes.changes_' || '{source}'::regclass::oid)::regclass"
        " AND a.attnum > 0 AND NOT a.attisdropped AND a.attname !~ '^__pgt'"
    )


def test_type_that_takes_the_name_of_a_columns_type_gets_into_no_buffer(
    db: Database, mallory: psycopg.Connection[Any], eventually: Eventually
) -> None:
    """Between the look at the name and its use is the wait for the lock of the buffer, which a reader of it holds."""
    mallory.execute(
        "CREATE TYPE lair.mood AS ENUM ('sad'); CREATE TABLE lair.t (id int PRIMARY KEY, m lair.mood);"
        "CREATE FUNCTION lair.told(v text) RETURNS boolean LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'code of mallory as %', current_user; END $$"
    )
    mallory.execute("SELECT pgtrickle.create_stream_table('lair.first', 'SELECT id FROM lair.t', '1h')")
    reader, renamer = (db.connect(user=mallory.info.user, password="secret") for _ in range(2))
    watcher = db.bypass()
    reader.execute("BEGIN")
    oid = db.value("SELECT 'lair.t'::regclass::oid")
    reader.execute(f"SELECT id FROM pgtrickle_changes.changes_{oid}".encode())
    with ThreadPoolExecutor(1) as pool:
        create = "SELECT pgtrickle.create_stream_table('lair.second', 'SELECT id, m FROM lair.t', '1h')"
        creating = pool.submit(mallory.execute, create)
        waiting = "SELECT FROM pg_locks WHERE NOT granted AND relation = to_regclass(%s)"
        eventually(
            lambda: watcher.execute(waiting, [f"pgtrickle_changes.changes_{oid}"]).fetchall(),
            what="the wait for the lock",
        )
        renamer.execute(
            "ALTER TYPE lair.mood RENAME TO other; CREATE DOMAIN lair.mood AS text CHECK (lair.told(VALUE))"
        )
        reader.execute("ROLLBACK")
        assert isinstance(creating.exception(), psycopg.errors.SerializationFailure)
    assert dict(types_of(db, "lair.t")).keys() == {"id"}
    db.run("INSERT INTO lair.t VALUES (1, 'sad')")
    mallory.execute(create)
    assert dict(types_of(db, "lair.t"))["m"] == db.value("SELECT 'lair.other'::regtype::oid::int")
    assert db.rows("SELECT id, m::text FROM lair.second") == [(1, "sad")]
    db.run("DROP SCHEMA lair CASCADE")


def test_statistics_call_no_function_of_a_type(db: Database, mallory: psycopg.Connection[Any]) -> None:
    """ANALYZE, also autovacuum's, asks a range type's own function for the lengths of ranges, as the table's owner."""
    mallory.execute(
        "CREATE FUNCTION lair.told(a int, b int) RETURNS float8 LANGUAGE plpgsql IMMUTABLE AS"
        " $$ BEGIN RAISE EXCEPTION 'code of mallory as %', current_user; END $$;"
        "CREATE TYPE lair.span AS RANGE (subtype = int, subtype_diff = lair.told, multirange_type_name = lair.spans);"
        "CREATE DOMAIN lair.within AS lair.span;"
        "CREATE TABLE lair.t (id int PRIMARY KEY, s lair.span, t lair.spans, u lair.within, v lair.span[])"
    )
    mallory.execute("SELECT pgtrickle.create_stream_table('lair.st', 'SELECT * FROM lair.t', '1h')")
    mallory.execute(
        "INSERT INTO lair.t SELECT n, lair.span(n, n + 5), lair.spans(lair.span(n, n + 5)), lair.span(n, n + 5),"
        " ARRAY[lair.span(n, n + 5)] FROM generate_series(1, 50) AS n"
    )
    db.run("ANALYZE pgtrickle_changes.changes_" + str(db.value("SELECT 'lair.t'::regclass::oid::int")))
    seen = (
        "SELECT attname::text FROM pg_stats WHERE schemaname = 'pgtrickle_changes' AND attname !~ '^__pgt' ORDER BY 1"
    )
    assert db.rows(seen) == [("id",), ("v",)]

    db.run(
        "CREATE FOREIGN DATA WRAPPER lair_wrapper; CREATE SERVER lair_server FOREIGN DATA WRAPPER lair_wrapper;"
        "CREATE FOREIGN TABLE lair.f (id int, s lair.span, t lair.spans, u lair.within) SERVER lair_server;"
        f"ALTER FOREIGN TABLE lair.f OWNER TO {mallory.info.user}"
    )
    copy = f"SELECT pgtrickle._create_copy('lair.f'::regclass, '{mallory.info.user}'::regrole) ->> 'copy'"
    name = db.value(copy)
    db.run(f"INSERT INTO pgtrickle_changes.{name} SELECT id, s, t, u FROM lair.t; ANALYZE pgtrickle_changes.{name}")
    db.run("DROP FOREIGN DATA WRAPPER lair_wrapper CASCADE; DROP SCHEMA lair CASCADE")
