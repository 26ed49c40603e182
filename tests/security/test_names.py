"""Hostile names wherever a name can stand: each object works under it, and nothing in the name is carried out."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests.e2e.conftest import Database, Headwater, _database

INJECTED = "CREATE TABLE public.injected ()"

TELLING = (
    'a"b', "a'b", "\\'", "$$", f"$$; {INJECTED}; $$", f"'; {INJECTED}; --", f'"; {INJECTED}; --', "%I %L %%",
    "@extschema@", "a\nb", "Ünïcödé 表 🐘",
)  # fmt: skip
"""What ends quotes, the marks of PostgreSQL's templates and of our own, and what is not ASCII."""

OTHERS = (
    '""', '"', "''", "'", "\\", "E'\\x", "$1", "$tag$", f"); {INJECTED}; --", "x' || (SELECT '{}') || '", "-- a",
    "/* a", "*/", "a;b", "a.b", "%s", "{}", "{0.__class__}", "a\tb", " ", "SELECT", "n" * 63,
)  # fmt: skip

NAMES = (*TELLING, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS))

Q = sql.Identifier


@pytest.fixture(scope="module")
def named(server: Headwater) -> Iterator[Database]:
    """A database for all names; nothing is refreshed in it but by hand."""
    for database in _database(server):
        database.run(f"ALTER DATABASE {database.name} SET pg_trickle.enabled = off")
        yield database
        assert database.value("SELECT to_regclass('public.injected') IS NULL")
        assert database.rows("SELECT rolname FROM pg_roles WHERE rolsuper AND rolname <> 'postgres'") == []


def literal(identifier: str) -> str:
    """A name as an identifier in quotes, to be given as an argument."""
    return '"' + identifier.replace('"', '""') + '"'


def run(database: Database, text: str, **names: sql.Composable) -> None:
    """Execute a statement, or several, with the names in their places."""
    database.connection.execute(sql.SQL(text).format(**names))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(3)
def test_stream_table(named: Database, name: str) -> None:
    """Schema, table, columns, enum type and label, view, function and the stream table have the name."""
    n = Q(name)
    run(
        named,
        "CREATE SCHEMA {n}; CREATE TYPE {n}.{e} AS ENUM ('usual', {label});"
        "CREATE TABLE {n}.{n} (id int PRIMARY KEY, {n} text, e {n}.{e});"
        "CREATE FUNCTION {n}.{n}(text) RETURNS text IMMUTABLE LANGUAGE sql RETURN $1 || '!';"
        "INSERT INTO {n}.{n} VALUES (1, {label}, {label}), (2, 'other', 'usual');"
        "CREATE VIEW {n}.v AS SELECT id, {n}, e FROM {n}.{n}",
        n=n,
        e=Q(name[:61] + "_e"),
        label=sql.Literal(name),
    )
    stream_table = f"{literal(name)}.st"
    for place, query in enumerate(
        (
            "SELECT {n}, e, count(*) AS n FROM {n}.{n} GROUP BY {n}, e",
            "SELECT id, {n}.{n}({n}) AS {n}, e FROM {n}.v WHERE {n} <> {label} OR e = {label}",
        )
    ):
        text = sql.SQL(query).format(n=n, label=sql.Literal(name)).as_string(named.connection)
        target = stream_table if place else f"{literal(name)}.{literal(name[:60] + '_s')}"
        named.run("SELECT pgtrickle.create_stream_table(%s, %s, refresh_mode => 'DIFFERENTIAL')", target, text)
        run(
            named,
            "INSERT INTO {n}.{n} VALUES ({id}, {label}, 'usual')",
            id=sql.Literal(3 + place),
            n=n,
            label=sql.Literal(name),
        )
        run(named, "UPDATE {n}.{n} SET {n} = {n} || 'x' WHERE id = 2", n=n)
        named.refresh(target)
        named.assert_current(target)
    assert named.value("SELECT count(*) FROM pgtrickle.explain_st(%s)", stream_table) > 0
    run(named, "ALTER TABLE {n}.{n} SET (RETAIN HISTORY FOR '1 hour')", n=n)
    run(named, "DROP SCHEMA {n} CASCADE", n=n)
    assert named.rows("SELECT pgt_name FROM pgtrickle.pgt_stream_tables WHERE pgt_schema = %s", name) == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(2)
def test_subscription(named: Database, name: str) -> None:
    """Table, column and cursor have the name; so has the source of a load generator."""
    n = Q(name)
    run(
        named,
        "CREATE TABLE {n} (id int PRIMARY KEY, {n} text); INSERT INTO {n} VALUES (1, {v})",
        n=n,
        v=sql.Literal(name),
    )
    connection = named.connect(autocommit=False)
    try:
        connection.execute(sql.SQL("DECLARE {n} CURSOR FOR SUBSCRIBE (SELECT {n} FROM {n})").format(n=n))
        assert [row[2] for row in connection.execute(sql.SQL("FETCH 1 {n}").format(n=n)).fetchall()] == [name]
        run(named, "UPDATE {n} SET {n} = 'next'", n=n)
        rows = connection.execute(sql.SQL("FETCH 2 {n} WITH (timeout = '60s')").format(n=n)).fetchall()
        while len(rows) < 2:
            rows += connection.execute(sql.SQL("FETCH 1 {n} WITH (timeout = '60s')").format(n=n)).fetchall()
        assert sorted(row[1:] for row in rows) == sorted([(-1, name), (1, "next")])
    finally:
        connection.close()
    run(named, "DROP TABLE {n}", n=n)


@pytest.mark.parametrize("name", NAMES)
def test_queue(named: Database, name: str) -> None:
    """Queue, consumer, event type and payload have the name, where queues accept it."""
    try:
        named.run("SELECT pgque.create_queue(%s)", name)
    except psycopg.Error as error:
        assert error.sqlstate not in (None, "42601", "XX000"), error
        return
    named.run("SELECT pgque.subscribe(%s, %s)", name, name)
    named.run("SELECT pgque.send(%s, %s, %s::text)", name, name, name)
    named.run("SELECT pgque.force_tick(%s)", name)
    named.run("SELECT pgque.ticker(%s)", name)
    rows = named.rows("SELECT batch_id, type, payload FROM pgque.receive(%s, %s, 10)", name, name)
    assert [row[1:] for row in rows] == [(name, name)]
    named.run("SELECT pgque.ack(%s)", rows[0][0])
    named.run("SELECT pgque.drop_queue(%s, true)", name)


@pytest.mark.parametrize("name", NAMES)
def test_register(named: Database, name: str) -> None:
    """Register, dimension and resource have the name, where registers accept it; the value of a dimension always."""
    try:
        named.run('SELECT accum.register_create(%s, %s, \'{"n": "int"}\')', name, json.dumps({name: "text"}))
        register, dimension = name, name
    except psycopg.Error as error:
        assert error.sqlstate not in (None, "42601", "XX000"), error
        register, dimension = "plain", "item"
        named.run('SELECT accum.register_create(\'plain\', \'{"item": "text"}\', \'{"n": "int"}\')')
    movement = {"recorder": name, "period": "2026-04-18", dimension: name, "n": 3}
    named.run("SELECT accum.register_post(%s, %s)", register, json.dumps(movement))
    balance = sql.SQL("SELECT accum.{}(%s::jsonb)").format(Q(f"{register}_balance"))
    ((found,),) = named.connection.execute(balance, [json.dumps({dimension: name})]).fetchall()
    assert found in (3, {"n": 3}), found
    named.run("SELECT accum.register_unpost(%s, %s)", register, name)
    named.run("SELECT accum.register_drop(%s, true)", register)


@pytest.mark.parametrize("name", NAMES)
def test_role(named: Database, name: str) -> None:
    """The owner of a stream table has the name."""
    n = Q(name)
    run(
        named,
        "CREATE ROLE {n} LOGIN PASSWORD 'secret'; GRANT CREATE, USAGE ON SCHEMA public TO {n}",
        n=n,
    )
    try:
        connection = named.connect(user=name, password="secret")
        connection.execute("CREATE TABLE owned (id int PRIMARY KEY, v int); INSERT INTO owned VALUES (1, 1)")
        connection.execute("SELECT pgtrickle.create_stream_table('sums', 'SELECT sum(v) AS s FROM owned')")
        connection.execute("INSERT INTO owned VALUES (2, 2)")
        connection.execute("SELECT pgtrickle.refresh_stream_table('sums')")
        named.refresh("sums")
        assert connection.execute("SELECT s FROM sums").fetchall() == [(3,)]
        connection.close()
    finally:
        run(named, "DROP OWNED BY {n} CASCADE; DROP ROLE {n}", n=n)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(2)
def test_database(server: Headwater, name: str) -> None:
    """The database has the name: stream tables, queues and status work in it."""
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE e2e_template").format(Q(name)))
        try:
            with psycopg.connect(server.dsn(name), autocommit=True) as connection:
                connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
                connection.execute("SELECT pgtrickle.create_stream_table('st', 'SELECT count(*) AS n FROM t')")
                connection.execute("INSERT INTO t VALUES (1)")
                connection.execute("SELECT pgtrickle.refresh_stream_table('st')")
                assert connection.execute("SELECT n FROM st").fetchall() == [(1,)]
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(Q(name)))
