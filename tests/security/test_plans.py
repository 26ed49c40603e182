"""What an owner can write of a stream table is never text that the engine runs with its own rights."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import conninfo

import engine
from catalog.session import SqlError
from engine.session.pool import SESSION_SETTINGS, PooledSession
from engine.spark.result_loading import declared
from engine.spark.staging import check_plain_types
from sql import Column
from tests.e2e.conftest import Database, Headwater

HOSTILE = [
    "public.mood); ALTER ROLE mallory SUPERUSER; CREATE TABLE x (a int",
    'public."mood") ; SELECT 1; --',
    "public.mood DEFAULT public.trap()",
    "public.mood CHECK (public.trap())",
    "text DEFAULT 1",
    "text[] /* */ DEFAULT 1",
    "a.b.c",
    "mood",
    "integer; SELECT 1",
    "text with time zone",
]


@pytest.mark.parametrize("type_", HOSTILE)
@pytest.mark.parametrize("carrier", ["", "enum"])
def test_type_is_nothing_but_a_name(type_: str, carrier: str) -> None:
    with pytest.raises(SqlError):
        declared([Column("a", type_, carrier=carrier)])


@pytest.mark.parametrize(
    "type_",
    """text|numeric(10,2)|character(3)|bpchar|timestamp without time zone|double precision|jsonb|interval|bytea|uuid[]
    |time with time zone|integer[]|public."odd "" name\"""".replace("\n    ", "").split("|"),
)
def test_types_that_spark_gives_are_declared(type_: str) -> None:
    assert declared([Column("a", type_)]).endswith(type_)


@pytest.fixture
async def session(dsn: str) -> Any:
    login = conninfo.conninfo_to_dict(dsn)
    connection = await asyncpg.connect(
        host=login["host"], port=int(login["port"] or 0), user=login["user"], password=login["password"],
        database=login["dbname"], server_settings=SESSION_SETTINGS, statement_cache_size=0,
    )  # fmt: skip
    yield PooledSession(connection)
    await connection.close()


async def test_execute_is_one_statement(session: PooledSession) -> None:
    with pytest.raises(SqlError) as raised:
        await session.execute("SELECT 1; SELECT 2")
    assert raised.value.sqlstate == "42601"
    assert await session.execute("CREATE TEMPORARY TABLE one (a int)") == "CREATE TABLE"
    await session.run_script("SELECT 1; SELECT 2")


@pytest.mark.parametrize(
    ("type_", "plain"),
    [
        ("int", True),
        ("text[]", True),
        ("public.mood", True),
        ("public.checked", False),
        ("public.checked[]", False),
        ("public.pair", False),
    ],
)
async def test_staging_table_of_another_type_is_noticed(session: PooledSession, type_: str, plain: bool) -> None:
    await session.execute("CREATE TYPE public.mood AS ENUM ('sad')")
    await session.execute("CREATE DOMAIN public.checked AS int CHECK (VALUE > 0)")
    await session.execute("CREATE TYPE public.pair AS (a int)")
    await session.execute(f"CREATE TEMPORARY TABLE staged (a int, b {type_})")
    if plain:
        await check_plain_types(session, "pg_temp.staged")
    else:
        with pytest.raises(SqlError, match="a type was replaced"):
            await check_plain_types(session, "pg_temp.staged")


def scripts(text: str) -> Iterator[str]:
    """Calls of an asyncpg or psycopg connection that send a text which is no constant as a script."""
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "execute"):
            continue
        receiver = ast.unparse(node.func.value)
        if "connection" not in receiver or len(node.args) > 1 or any(k.arg == "binary" for k in node.keywords):
            continue
        names = {n.id for n in ast.walk(node.args[0]) if isinstance(n, ast.Name)}
        if any(not name.isupper() for name in names - {"isolation", "impatient"}):
            yield ast.unparse(node)


def test_engine_sends_no_script_with_anything_in_it() -> None:
    """A session's execute() is one statement; a connection's own is a script, unless it has arguments."""
    root = Path(str(engine.__file__)).parent
    found = [f"{path.name}: {call}" for path in sorted(root.rglob("*.py")) for call in scripts(path.read_text())]
    assert found == ["pool.py: self._connection.execute(script)"]
    assert list(scripts("await connection.execute(f'DROP TABLE {name}')")) != []


def test_state_that_others_would_fall_over_is_refused(db: Any, role: Callable[..., psycopg.Connection[Any]]) -> None:
    alice = role("alice")
    alice.execute("CREATE TABLE mine (id int PRIMARY KEY)")
    alice.execute("SELECT pgtrickle.create_stream_table('st', 'SELECT id FROM mine', schedule => '1h')")
    pgt_id = db.state("st")["pgt_id"]
    for state in (
        {"data_timestamp": "infinity"},
        {"data_timestamp": "-infinity"},
        {"data_timestamp": "9999-01-01"},
        {"consecutive_errors": -1},
        {"explain": []},
        {"explain": {"inputs": {"output": 1}}},
        {"function_hashes": "[]"},
        {"schedule": "0s"},
        {"schedule": "never"},
    ):
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            alice.execute("SELECT pgtrickle._set_state(%s, %s)", [pgt_id, json.dumps(state)])
    result = {"status": "COMPLETED", "action": "FULL", "data_timestamp": "infinity"}
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        alice.execute("SELECT pgtrickle._finish_refresh(%s, %s)", [pgt_id, json.dumps(result)])
    alice.execute("SELECT pgtrickle._set_state(%s, %s)", [pgt_id, json.dumps({"schedule": "2h"})])
    assert db.state("st")["schedule"] == "2h"


def test_text_that_postgresql_reads_otherwise_is_none_for_spark(
    tmp_path: Path,
) -> None:
    """Spark reads what the compiler reads in a kept text; whose rights are asked for PostgreSQL reads it for."""
    server = Headwater(tmp_path / "data", "--spark", "sail").start()
    db = Database(server, "postgres")
    try:
        db.run("CREATE ROLE alice LOGIN PASSWORD 'secret'; GRANT CREATE ON SCHEMA public TO alice")
        alice = db.connect(user="alice", password="secret")
        alice.execute("CREATE TABLE mine (id int PRIMARY KEY); INSERT INTO mine VALUES (1), (2)")
        alice.execute(
            "SELECT pgtrickle.create_stream_table('st', 'SELECT id FROM mine WHERE id > 0',"
            " refresh_mode => 'FULL', engine => 'spark')"
        )
        assert db.history("st")[-1]["executor"] == "spark"
        forged = {"canonical_query": " SELECT id FROM public.mine WHERE NOT id = 1 IS TRUE"}
        alice.execute("SELECT pgtrickle._set_state(%s, %s)", [db.state("st")["pgt_id"], json.dumps(forged)])
        alice.execute("INSERT INTO mine VALUES (3)")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="not understood exactly"):
            alice.execute("SELECT pgtrickle.refresh_stream_table('st')")
    finally:
        db.close()
        server.stop()
