"""SUBSCRIBE with real clients: psql, psycopg, asyncpg, against feeds that the test fills."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from decimal import Decimal
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import conninfo

from server.postgres.cluster import EmbeddedPostgres
from tests.server.subscriptions.subscribing import Subscribed

ROWS = [(1, 1, 1, "one"), (1, 1, 2, None)]
SEEN = [(Decimal(1), 1, 1, "one"), (Decimal(1), 1, 2, None)]


def test_psql(cluster: EmbeddedPostgres, subscribed: Subscribed) -> None:
    commands = (
        "COPY (SUBSCRIBE t) TO STDOUT",
        "BEGIN; DECLARE c CURSOR FOR SUBSCRIBE t; FETCH ALL c; COMMIT",
        "SUBSCRIBE t",
    )
    for end in ((None,), (), (None,)):
        subscribed.hub.later(ROWS, *end)
    script = ";\n".join(commands) + ";\n"
    done = subprocess.run(
        [str(cluster.psql), "-X", "-At", subscribed.dsn], input=script, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    as_text, as_rows = "1\t1\t1\tone\n1\t1\t2\t\\N\n", "1|1|1|one\n1|1|2|\n"
    assert done.stdout == as_text + "BEGIN\nDECLARE CURSOR\n" + as_rows + "COMMIT\n" + as_rows


def test_psql_is_interrupted(cluster: EmbeddedPostgres, subscribed: Subscribed) -> None:
    process = subprocess.Popen(
        [str(cluster.psql), "-X", "-At", subscribed.dsn, "-c", "COPY (SUBSCRIBE t) TO STDOUT"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    subscribed.hub.feed()
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (out, errors.splitlines()[-1]) == ("", "ERROR:  canceling statement due to user request")


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_stream(subscribed: Subscribed, binary: bool) -> None:
    subscribed.hub.later(ROWS, ROWS)
    with psycopg.connect(subscribed.dsn) as client, client.cursor(binary=binary) as cursor:
        seen = []
        for row in cursor.stream("SUBSCRIBE (SELECT a, b FROM t WHERE a > %s)", (0,)):
            seen.append(row)
            if len(seen) == 3:
                break
        assert seen == [*SEEN, SEEN[0]]
        assert [column.name for column in cursor.description or []] == ["mz_timestamp", "mz_diff", "a", "b"]
    assert "E'0'::smallint" in subscribed.hub.asked[0].query


def test_psycopg_copy(subscribed: Subscribed) -> None:
    with psycopg.connect(subscribed.dsn) as client, client.cursor() as cursor:
        subscribed.hub.later(ROWS, None)
        with cursor.copy("COPY (SUBSCRIBE t) TO STDOUT") as copy:
            assert list(copy.rows()) == [("1", "1", "1", "one"), ("1", "1", "2", None)]
        subscribed.hub.later(ROWS, None)
        with cursor.copy("COPY (SUBSCRIBE t) TO STDOUT (FORMAT binary)") as copy:
            copy.set_types(["numeric", "int8", "int4", "text"])
            assert list(copy.rows()) == SEEN


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_fetch_in_a_loop(subscribed: Subscribed, binary: bool) -> None:
    subscribed.hub.later(ROWS, ROWS, ROWS)
    with psycopg.connect(subscribed.dsn) as client, client.cursor(binary=binary) as cursor:
        cursor.execute("DECLARE c CURSOR FOR SUBSCRIBE t")
        found = []
        for _ in range(7):  # soon as a prepared statement
            found += cursor.execute("FETCH ALL c WITH (timeout = '0s')").fetchall()
        assert found == SEEN * 3
        subscribed.hub.push(*ROWS)
        assert cursor.execute("FETCH 1 c").fetchall() == SEEN[:1]
        assert cursor.execute("FETCH ALL c").fetchall() == SEEN[1:]
        client.rollback()
        cursor.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT b FROM t)")
        subscribed.hub.push((7, 1, "b"), number=1)
        assert cursor.execute("FETCH 2 c").fetchall() == [(7, 1, "b")]


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_server_side_cursor(subscribed: Subscribed, binary: bool) -> None:
    subscribed.hub.later(ROWS, ROWS)
    with psycopg.connect(subscribed.dsn) as client:
        with client.cursor("c", binary=binary) as cursor:
            cursor.execute("SUBSCRIBE (SELECT a, b FROM t WHERE b <> %s)", ("it's",))
            assert [column.name for column in cursor.description or []] == ["mz_timestamp", "mz_diff", "a", "b"]
            assert cursor.fetchone() == SEEN[0]
            assert cursor.fetchmany(1) == SEEN[1:]
            assert cursor.fetchmany(2) == SEEN
        assert subscribed.hub.feed().closed.wait(60)
        assert client.execute("select 1").fetchone() == (1,)


async def connected(dsn: str) -> Any:
    options = conninfo.conninfo_to_dict(dsn)
    options["database"] = options.pop("dbname")
    return await asyncpg.connect(**options)


async def test_asyncpg_cursor(subscribed: Subscribed) -> None:
    subscribed.hub.later(ROWS, ROWS, None)
    client = await connected(subscribed.dsn)
    async with client.transaction():
        cursor = await client.cursor("SUBSCRIBE (SELECT a, b FROM t WHERE a > $1)", 0)
        assert [tuple(row) for row in await cursor.fetch(3)] == [*SEEN, SEEN[0]]
        assert [tuple(row) for row in await cursor.fetch(3)] == SEEN[1:]
        assert await cursor.fetch(3) == []
    async with client.transaction():
        subscribed.hub.later(ROWS, ROWS, None)
        found = [tuple(row) async for row in client.cursor("SUBSCRIBE t", prefetch=2)]
        assert found == SEEN * 2
    await client.close()


async def test_asyncpg_fetches_from_a_declared_cursor(subscribed: Subscribed) -> None:
    subscribed.hub.later(ROWS)
    client = await connected(subscribed.dsn)
    async with client.transaction():
        await client.execute("DECLARE c CURSOR FOR SUBSCRIBE t")
        assert [tuple(row) for row in await client.fetch("FETCH 2 c")] == SEEN
        assert await client.fetch("FETCH ALL c WITH (timeout = '0s')") == []
    assert subscribed.hub.feed().closed.wait(60)
    with pytest.raises(TimeoutError):
        await client.fetch("SUBSCRIBE t", timeout=0.2)
    assert await client.fetchval("select 1") == 1
    await client.close()


async def test_asyncpg_copy(subscribed: Subscribed) -> None:
    subscribed.hub.later(ROWS, ROWS, None)
    client = await connected(subscribed.dsn)
    blocks = []

    async def keep(block: bytes) -> None:
        blocks.append(block)
        await asyncio.sleep(0)

    assert await client.copy_from_query("SUBSCRIBE t", output=keep, format="csv") == "COPY 4"
    assert b"".join(blocks) == b"1,1,1,one\n1,1,2,\n" * 2
    await client.close()
