"""What the engine reads of users' tables with its own rights runs no code of theirs, and is the table it was to be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from catalog.session import SqlError
from engine.mirror import parallel_extract
from engine.session.relations import Relation, check_opened, locked, relation
from sql import Column, Source
from sql.errors import NotExpressible
from tests.engine.mirror.mirror_laboratory import Laboratory, contents, open_laboratory

TRAP = """
CREATE FUNCTION attack.trap(anyelement) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
        RAISE EXCEPTION 'trap ran as %', current_user;
    END IF;
    RETURN true;
END $$"""
"""What an attacker has for code that runs with a superuser's rights."""


class Attacker:
    """A plain role with a schema of its own, beside a laboratory."""

    def __init__(self, laboratory: Laboratory, connection: asyncpg.Connection):
        self.laboratory = laboratory
        self.connection = connection

    async def run(self, *statements: str) -> None:
        for statement in statements:
            await self.connection.execute(statement)

    async def source(self, name: str, *columns: Column) -> Source:
        oid = await self.connection.fetchval("SELECT $1::text::regclass::oid::bigint", f"attack.{name}")
        return Source(int(oid), "attack", name, columns)

    async def mirrored(self, source: Source, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        async def known(table: str) -> Source:
            return source

        monkeypatch.setattr(self.laboratory, "source", known)
        names = [column.name for column in source.columns]
        async with self.laboratory.at(*names, table=source.name) as version:
            return contents(version, *names)


@pytest.fixture
async def laboratory(dsn: str, tmp_path: Path) -> AsyncIterator[Laboratory]:
    async with open_laboratory(dsn, tmp_path / "mirror") as laboratory:
        yield laboratory


@pytest.fixture
async def attacker(laboratory: Laboratory) -> AsyncIterator[Attacker]:
    await laboratory.run("CREATE ROLE attacker", "CREATE SCHEMA attack AUTHORIZATION attacker")
    database = await laboratory.connection.fetchval("SELECT current_database()")
    await laboratory.run(f'GRANT CREATE ON DATABASE "{database}" TO attacker')
    connection = await laboratory.connect()
    try:
        await connection.execute("SET ROLE attacker")
        await connection.execute(TRAP)
        yield Attacker(laboratory, connection)
    finally:
        await connection.close()
        await laboratory.run("DROP OWNED BY attacker CASCADE", "DROP ROLE attacker")


ID, V = Column("id", "integer"), Column("v", "text")
ROWS = "INSERT INTO attack.t (id, v) VALUES (1, 'one'), (2, 'two')"


@pytest.mark.parametrize(
    "planned",
    [
        "CREATE INDEX ON attack.t (id) WHERE attack.trap(1)",
        "CREATE INDEX ON attack.t ((attack.trap(1) AND id > 0))",
        "CREATE STATISTICS attack.s ON (attack.trap(1) AND id > 0), v FROM attack.t",
        "ALTER TABLE attack.t ADD CHECK (attack.trap(1))",
        "CREATE POLICY p ON attack.t USING (attack.trap(1))",
    ],
)
async def test_planner_evaluates_nothing_of_a_mirrored_table(
    attacker: Attacker, monkeypatch: pytest.MonkeyPatch, planned: str
) -> None:
    await attacker.run("CREATE TABLE attack.t (id int, v text)", ROWS, planned)
    if "POLICY" in planned:
        await attacker.run("ALTER TABLE attack.t ENABLE ROW LEVEL SECURITY")
    source = await attacker.source("t", ID, V)
    assert await attacker.mirrored(source, monkeypatch) == [(1, "one"), (2, "two")]


async def test_partition_with_code_in_an_index_is_read_without_it(
    attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await attacker.run(
        "CREATE TABLE attack.t (id int, v text) PARTITION BY LIST (id)",
        "CREATE TABLE attack.t1 PARTITION OF attack.t FOR VALUES IN (1)",
        "CREATE TABLE attack.t2 PARTITION OF attack.t FOR VALUES IN (2)",
        "CREATE INDEX ON attack.t2 (id) WHERE attack.trap(1)",
        ROWS,
    )
    source = await attacker.source("t", ID, V)
    assert await attacker.mirrored(source, monkeypatch) == [(1, "one"), (2, "two")]


async def test_cast_of_the_types_owner_is_not_called(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that says of an enum's column that it is a char(n), which is copied without its padding."""
    await attacker.run(
        "CREATE TYPE attack.mood AS ENUM ('sad', 'glad')",
        "CREATE FUNCTION attack.told(attack.mood) RETURNS text LANGUAGE sql AS $$ SELECT attack.trap(1)::text $$",
        "CREATE CAST (attack.mood AS text) WITH FUNCTION attack.told(attack.mood)",
        "CREATE TABLE attack.t (id int, m attack.mood, c char(5))",
        "INSERT INTO attack.t VALUES (1, 'sad', 'ab')",
    )
    source = await attacker.source("t", ID, Column("m", "character(4)"), Column("c", "character(5)"))
    assert await attacker.mirrored(source, monkeypatch) == [(1, "sad", "ab")]


async def test_view_that_takes_the_tables_place_is_not_read(
    attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy waits for the table; meanwhile the schema gets another name, and another schema gets its."""
    await attacker.run("CREATE TABLE attack.t (id int, v text)", ROWS)
    source = await attacker.source("t", ID, V)
    await attacker.run("BEGIN", "LOCK TABLE attack.t IN ACCESS EXCLUSIVE MODE")
    copying = asyncio.create_task(attacker.mirrored(source, monkeypatch))
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = $1::bigint::oid AND NOT granted"
    async with asyncio.timeout(60):
        while not await attacker.laboratory.connection.fetchval(waiting, source.oid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    other = await attacker.laboratory.connect()
    await other.execute("SET ROLE attacker")
    await other.execute("ALTER SCHEMA attack RENAME TO gone")
    await other.execute("CREATE SCHEMA attack")
    await other.execute("CREATE VIEW attack.t AS SELECT 1 AS id, gone.trap(1)::text AS v")
    await other.close()
    await attacker.run("COMMIT")
    with pytest.raises(SqlError, match="was renamed, replaced or dropped") as raised:
        await copying
    assert raised.value.sqlstate == "40001"
    assert await attacker.mirrored(source, monkeypatch) == [(1, "one"), (2, "two")]


async def test_table_that_takes_the_place_just_before_the_copy_is_noticed(
    attacker: Attacker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await attacker.run("CREATE TABLE attack.t (id int, v text)", ROWS)
    await attacker.laboratory.run(
        "CREATE TABLE public.secret (id int, v text)", "INSERT INTO public.secret VALUES (7, 'x')"
    )
    source = await attacker.source("t", ID, V)

    async def fooled(connection: asyncpg.Connection, oid: int) -> Relation | None:
        found = await relation(connection, oid)
        return found and Relation(oid, "public", "secret", "table")

    with monkeypatch.context() as patched:
        patched.setattr(parallel_extract, "relation", fooled)
        with pytest.raises(SqlError, match="was renamed, replaced or dropped"):
            await attacker.mirrored(source, monkeypatch)
    assert await attacker.mirrored(source, monkeypatch) == [(1, "one"), (2, "two")]


async def test_foreign_partition_is_not_read(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it would log in elsewhere in the server's name."""
    await attacker.run("CREATE TABLE attack.t (id int, v text) PARTITION BY LIST (id)")
    await attacker.laboratory.run(
        "CREATE FOREIGN DATA WRAPPER w",
        "CREATE SERVER s FOREIGN DATA WRAPPER w",
        "CREATE FOREIGN TABLE attack.f PARTITION OF attack.t FOR VALUES IN (1) SERVER s",
    )
    source = await attacker.source("t", ID, V)
    with pytest.raises(NotExpressible, match='table "f"'):
        await attacker.mirrored(source, monkeypatch)
    await attacker.laboratory.run("DROP FOREIGN DATA WRAPPER w CASCADE")


async def test_relation_is_locked_by_its_oid(attacker: Attacker) -> None:
    await attacker.run('CREATE TABLE attack."a "" b" (id int)')
    connection = await attacker.laboratory.connect()
    oid = await connection.fetchval("SELECT oid::bigint FROM pg_class WHERE relname = 'a \" b'")
    async with connection.transaction(isolation="repeatable_read"):
        found = await locked(connection, oid, "a")
        assert (found.qualified, found.kind) == ('"attack"."a "" b"', "table")
        await connection.fetch("SELECT FROM public.t")
        with pytest.raises(SqlError, match="was renamed"):
            await check_opened(connection, [oid], "a")
    await connection.close()


async def test_generated_columns_are_left_out_and_say_so(attacker: Attacker, monkeypatch: pytest.MonkeyPatch) -> None:
    await attacker.run("CREATE TABLE attack.t (id int, v text, g int GENERATED ALWAYS AS (id * 2) STORED)", ROWS)
    assert await attacker.mirrored(await attacker.source("t", ID, V), monkeypatch) == [(1, "one"), (2, "two")]
    with pytest.raises(NotExpressible, match='column "g" of table "t"'):
        await attacker.mirrored(await attacker.source("t", ID, Column("g", "integer")), monkeypatch)


async def test_truncate_of_a_followed_table_reads_it_with_its_owners_rights(attacker: Attacker) -> None:
    await attacker.run(
        "CREATE TYPE attack.mood AS ENUM ('sad', 'glad')",
        "CREATE DOMAIN attack.short AS varchar(9)",
        "CREATE TABLE attack.t (gone int, id int, v attack.short, m attack.mood, c char(3))",
        "ALTER TABLE attack.t DROP COLUMN gone",
        "INSERT INTO attack.t VALUES (1, 'one', 'sad', 'x'), (2, NULL, NULL, NULL)",
        "CREATE INDEX ON attack.t (id) WHERE attack.trap(1)",
    )
    run = attacker.laboratory.connection.fetchval
    oid = await run("SELECT 'attack.t'::regclass::oid::bigint")
    await run(
        "SELECT pgtrickle._capture_source($1::bigint::oid, $2::bigint::oid, '{id,v,m,c}', false, false, NULL)::text",
        await run("SELECT 'attacker'::regrole::oid::bigint"),
        oid,
    )
    await run("SELECT pgtrickle._capture_emptying($1::bigint::oid)::text", oid)
    await attacker.run("TRUNCATE attack.t")
    rows = await attacker.laboratory.connection.fetch(
        f"SELECT id, v, m::text, c FROM pgtrickle_changes.changes_{oid} WHERE __pgt_w = -1 ORDER BY id"
    )
    assert [tuple(row) for row in rows] == [(1, "one", "sad", "x  "), (2, None, None, None)]


def test_constant_in_a_query_of_the_past_has_the_subscribers_rights(
    db: Any, role: Callable[..., psycopg.Connection[Any]], eventually: Callable[..., Any]
) -> None:
    """To tell what happened at each timestamp the query goes into temporary tables: whoever makes them analyses it."""
    alice = role("alice")
    alice.execute(
        "CREATE FUNCTION trap(int) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        " IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN"
        " RAISE EXCEPTION 'trap ran as %', current_user; END IF; RETURN true; END $$;"
        "CREATE DOMAIN trapped AS int CHECK (public.trap(VALUE));"
        "CREATE TABLE t (id int PRIMARY KEY, g int, x int); INSERT INTO t VALUES (1, 1, 5)"
    )
    alice.execute("ALTER TABLE t SET (RETAIN HISTORY FOR '1h')")
    eventually(lambda: db.value("SELECT held_from FROM pgtrickle.history_status()"))
    follower = db.connect(autocommit=False, user=alice.info.user, password="secret")
    follower.execute("DECLARE c CURSOR FOR SUBSCRIBE t WITH (PROGRESS, SNAPSHOT = false)")
    ((start, *_),) = follower.execute("FETCH 1 c").fetchall()
    alice.execute("UPDATE t SET x = 6")
    last = start
    while last <= start + 1:
        last = max(row[0] for row in follower.execute("FETCH ALL c"))
    follower.rollback()
    query = "SELECT g, sum(x) AS s, max(x) AS most FROM t WHERE g = ANY ('{1,2}'::trapped[]) GROUP BY g"
    rows = alice.execute(
        f"SUBSCRIBE ({query}) WITH (SNAPSHOT = false) AS OF {start} UP TO {last + 1}".encode()
    ).fetchall()
    assert sorted(row[1:] for row in rows) == [(-1, 1, 5, 5), (1, 1, 6, 6)]
