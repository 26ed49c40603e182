"""Real clients through the relay: psql, psycopg, asyncpg."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import conninfo

from server.postgres.cluster import EmbeddedPostgres
from tests.server.conftest import cancel_when_active


def test_psql_logs_in_with_scram_and_runs_statements(cluster: EmbeddedPostgres, relayed: str) -> None:
    done = subprocess.run(
        [str(cluster.psql), "-X", "-At", relayed, "-c", "select 1; select 2"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n2\n", "")


def test_wrong_password_is_refused_in_postgresqls_words(relayed: str) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(conninfo.make_conninfo(relayed, password="wrong"))


def test_headwater_relay_setting_is_on_even_if_the_client_says_otherwise(relayed: str) -> None:
    with psycopg.connect(conninfo.make_conninfo(relayed, options="-c headwater.relay=off")) as connection:
        assert connection.execute("show headwater.relay").fetchone() == ("on",)


def test_copy_in_and_out(connection: psycopg.Connection[Any]) -> None:
    connection.execute("create table t(a int, b text)")
    with connection.cursor() as cursor:
        with cursor.copy("copy t from stdin") as copy:
            for n in range(200_000):
                copy.write_row((n, "x" * 20))
        with cursor.copy("copy t to stdout") as copy:
            assert sum(len(block) for block in copy) == sum(len(f"{n}\t{'x' * 20}\n") for n in range(200_000))
    assert connection.execute("select count(*), sum(a) from t").fetchone() == (200_000, 19999900000)


def test_copy_in_that_fails_leaves_the_session_usable(connection: psycopg.Connection[Any]) -> None:
    connection.execute("create table t(a int)")
    with pytest.raises(psycopg.errors.InvalidTextRepresentation), connection.cursor().copy("copy t from stdin") as copy:
        copy.write("1\nx\n")
    assert connection.execute("select 1", prepare=True).fetchone() == (1,)


def test_pipeline(connection: psycopg.Connection[Any]) -> None:
    with connection.pipeline() as pipeline:
        cursors = [connection.execute("select %s::int", (n,)) for n in range(2000)]
        pipeline.sync()
        assert [cursor.fetchone() for cursor in cursors] == [(n,) for n in range(2000)]


def test_cancel_reaches_the_statement_and_only_it(connection: psycopg.Connection[Any], dsn: str) -> None:
    for _ in range(3):
        cancel_when_active(connection, dsn)
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("select pg_sleep(20)")
        assert connection.execute("select 1").fetchone() == (1,)


def test_cancel_of_an_idle_session_is_dropped(connection: psycopg.Connection[Any]) -> None:
    for n in range(20):
        connection.cancel_safe()
        assert connection.execute("select %s::int + 0 * length(pg_sleep(0.005)::text)", (n,)).fetchone() == (n,)


def test_notifications(connection: psycopg.Connection[Any], relayed: str) -> None:
    connection.execute("listen news")
    with psycopg.connect(relayed, autocommit=True) as other:
        other.execute("notify news, 'hello'")
    received = next(connection.notifies(timeout=60))
    assert (received.channel, received.payload) == ("news", "hello")


def test_large_values_pass_both_ways(connection: psycopg.Connection[Any]) -> None:
    value = "0123456789abcdef" * (3 << 16)
    row = connection.execute("select %s::text, length(%s::text)", (value, value)).fetchone()
    assert row == (value, len(value))
    literal = "'" + value + "'"
    assert connection.execute(f"select length({literal})").fetchone() == (len(value),)


def test_million_rows(connection: psycopg.Connection[Any]) -> None:
    with connection.cursor("c") as cursor:
        connection.execute("begin")
        cursor.itersize = 100_000
        cursor.execute("select n from generate_series(1, 300000) n")
        assert sum(row[0] for row in cursor) == 300_000 * 300_001 // 2


async def test_asyncpg(relayed: str) -> None:
    options = conninfo.conninfo_to_dict(relayed)
    options["database"] = options.pop("dbname")
    connection = await asyncpg.connect(**options)
    assert await connection.fetchval("select $1::int + 1", 41) == 42
    await connection.execute("create table t(a int, b text)")
    await connection.copy_records_to_table("t", records=[(n, str(n)) for n in range(10_000)])
    await connection.executemany("insert into t values ($1, $2)", [(n, "y") for n in range(1000)])
    assert await connection.fetchval("select count(*) from t") == 11_000
    async with connection.transaction():
        assert [r["a"] async for r in connection.cursor("select a from t where b = 'y' order by a")] == list(
            range(1000)
        )
    with pytest.raises(TimeoutError):
        await connection.fetchval("select pg_sleep(20)", timeout=0.2)
    assert await connection.fetchval("select 1") == 1
    await connection.close()


def test_programs_of_postgresql(cluster: EmbeddedPostgres, relayed: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute("create table t as select n, 'row ' || n as name from generate_series(1, 1000) n")
    connection.execute("create database copy_of_t")

    def run(*command: str, text: str | None = None) -> str:
        program = str(cluster.bin_dir / command[0])
        done = subprocess.run([program, *command[1:]], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        dump = run("pg_dump", "-d", relayed)
        copy = conninfo.make_conninfo(relayed, dbname="copy_of_t")
        run("psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-1", "-d", copy, text=dump)
        assert run("psql", "-XAt", "-d", copy, "-c", "select count(*), max(n) from t") == "1000|1000\n"
        assert "name" in run("psql", "-X", "-d", relayed, "-c", r"\d t")
        paged = run("psql", "-XAt", "-v", "FETCH_COUNT=7", "-d", copy, "-c", "select n from t order by n")
        assert paged.split() == [str(n) for n in range(1, 1001)]
        run("pgbench", "-i", "-q", "-d", relayed)
        for mode in ("simple", "extended", "prepared"):
            run("pgbench", "-n", "-M", mode, "-c", "4", "-t", "20", "-d", relayed)
        assert connection.execute("select count(*) from pgbench_history").fetchone() == (240,)
    finally:
        connection.execute("drop database copy_of_t")


def test_backend_terminated_gives_its_own_words(connection: psycopg.Connection[Any], dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as direct:
        direct.execute("select pg_terminate_backend(%s, 60000)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.errors.AdminShutdown, match="due to administrator command"):
        connection.execute("select 1")


def test_client_that_vanishes_takes_its_running_statement_along(relayed: str, dsn: str) -> None:
    connection = psycopg.connect(relayed, autocommit=True)
    pid = connection.info.backend_pid
    connection.pgconn.send_query(b"select pg_sleep(60)")
    with psycopg.connect(dsn, autocommit=True) as direct:
        active = "select count(*) from pg_stat_activity where pid = %s and state = 'active'"
        _wait(lambda: direct.execute(active, (pid,)).fetchone() == (1,))
        import os
        import socket

        socket.socket(fileno=os.dup(connection.pgconn.socket)).shutdown(socket.SHUT_RDWR)
        _wait(lambda: direct.execute("select count(*) from pg_stat_activity where pid = %s", (pid,)).fetchone() == (0,))


def _wait(condition: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
