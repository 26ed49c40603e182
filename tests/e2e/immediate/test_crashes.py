"""kill -9 while clients write: what triggers maintain is equal to its queries as soon as PostgreSQL is there again."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

from tests.e2e.client_threads import ClientThreads
from tests.e2e.conftest import Database, Headwater
from tests.e2e.reliability.test_crash_recovery import connected, kill

QUERIES = {
    "sums": "SELECT g, count(*) AS n, sum(v) AS s, max(v) AS m FROM t GROUP BY g",
    "rows": "SELECT id, v FROM t WHERE v % 2 = 0",
    "joined": "SELECT t.id, t.v, u.name FROM t LEFT JOIN u ON u.g = t.g",
    "named": "SELECT name, count(*) AS n FROM joined GROUP BY name",
    "parts": "SELECT p.k, t.v, p.id FROM p JOIN t ON t.id = p.id",
}

LEFT_BEHIND = """
SELECT 'trigger ' || t.tgname FROM pg_trigger t
WHERE t.tgname ~ '^~?pg_trickle_immediate_' AND NOT EXISTS (
    SELECT FROM pgtrickle.pgt_immediate i WHERE t.tgname ~ ('_' || lpad(i.pgt_id::text, 12, '0') || '_'))
UNION ALL
SELECT 'function ' || p.proname FROM pg_proc p
WHERE p.pronamespace::regnamespace::text ~ '^pgtrickle_' AND p.proname ~ '^immediate_' AND NOT EXISTS (
    SELECT FROM pgtrickle.pgt_immediate i WHERE p.proname ~ ('^immediate_' || i.pgt_id || '_'))
UNION ALL
SELECT 'table ' || c.relname FROM pg_class c
WHERE c.relnamespace = 'pgtrickle_changes'::regnamespace AND c.relkind = 'r' AND c.relname ~ '^immediate_'
  AND NOT EXISTS (SELECT FROM pgtrickle.pgt_immediate i WHERE c.relname = 'immediate_' || i.pgt_id)
"""

BUSY = (psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable, psycopg.errors.SerializationFailure)


class Load(ClientThreads):
    """Clients that write through the server and past it, and one that takes the mode back and forth."""

    def __init__(self, server: Headwater, seed: int):
        super().__init__()
        self._server = server
        self.unexpected: list[str] = []
        self.done = 0
        for number, step in enumerate((self._write, self._write, self._write, self._alter)):
            self._add(self._run, step, random.Random(seed * 10 + number), number == 2)

    def _run(self, step: Callable[[Any, random.Random], None], rng: random.Random, direct: bool) -> None:
        while not self._stop.is_set():
            try:
                dsn = self._server.direct_dsn if direct else self._server.dsn
                with closing(psycopg.connect(dsn(connect_timeout=60), autocommit=True)) as connection:
                    while not self._stop.is_set():
                        with suppress(*BUSY):
                            step(connection, rng)
                            self.done += 1
            except (psycopg.OperationalError, psycopg.Rollback, OSError, IndexError):
                self._stop.wait(0.05)  # it is down
            except psycopg.Error as error:
                self.unexpected.append(f"{error.sqlstate} {error}")

    @staticmethod
    def _write(connection: psycopg.Connection[Any], rng: random.Random) -> None:
        low = rng.randrange(500)
        with connection.transaction():
            for _ in range(rng.randrange(1, 4)):
                match rng.randrange(6):
                    case 0 | 1:
                        connection.execute(
                            "INSERT INTO t SELECT i, i %% 7, %s FROM generate_series(%s::int, %s::int) AS i"
                            " ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                            [low, low, low + rng.randrange(20)],
                        )
                    case 2:
                        connection.execute("UPDATE t SET v = v + 1, g = (g + 1) %% 7 WHERE id = %s::int", [low])
                    case 3:
                        connection.execute("DELETE FROM t WHERE id BETWEEN %s AND %s", [low, low + 9])
                    case 4:
                        connection.execute("UPDATE u SET name = %s WHERE g = %s::int", [f"n{low}", low % 7])
                    case _:
                        connection.execute(
                            "INSERT INTO p VALUES (%s, %s) ON CONFLICT (id, k) DO NOTHING", [low, 1 + low % 2]
                        )
            if rng.random() < 0.2:
                raise psycopg.Rollback

    @staticmethod
    def _alter(connection: psycopg.Connection[Any], rng: random.Random) -> None:
        mode = rng.choice(["IMMEDIATE", "DIFFERENTIAL"])
        match rng.randrange(4):
            case 0 | 1:
                name = rng.choice(["rows", "parts"])
                connection.execute("SELECT pgtrickle.alter_stream_table(%s, refresh_mode => %s)", [name, mode])
            case 2:
                connection.execute("SELECT pgtrickle.refresh_stream_table('named')")
            case _:
                with connection.transaction():
                    connection.execute("SET LOCAL lock_timeout = '1s'")
                    connection.execute("ALTER TABLE p DETACH PARTITION p2")
                    connection.execute("ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2)")


def check(database: Database, eventually: Callable[..., Any]) -> None:
    immediate = [
        name
        for (name,) in database.rows(
            "SELECT pgt_name FROM pgtrickle.pgt_stream_tables WHERE refresh_mode = 'IMMEDIATE' AND NOT needs_reinit"
        )
    ]
    for name in immediate:
        # Nothing has to be done for it first. (Where DDL was rolled back the scheduler may be about to look.)
        assert database.difference(name) == [], f"{name} is not equal after the crash"
    for name in QUERIES:
        if name in ("rows", "parts"):
            database.run("SELECT pgtrickle.alter_stream_table(%s, refresh_mode => 'IMMEDIATE')", name)
        eventually(lambda name=name: database.state(name)["refresh_mode"] == "IMMEDIATE", what=f"{name} is IMMEDIATE")
        assert database.state(name)["status"] == "ACTIVE"
        assert database.difference(name) == [], name
    eventually(lambda: not database.rows(LEFT_BEHIND), what=f"without remains: {database.rows(LEFT_BEHIND)}")


def crash_rounds(server: Headwater, rounds: int, seed: int, eventually: Callable[..., Any]) -> None:
    rng = random.Random(seed)
    with connected(server) as database:
        database.run(
            "CREATE TABLE t (id int PRIMARY KEY, g int, v int); CREATE TABLE u (g int PRIMARY KEY, name text);"
            "CREATE TABLE p (id int, k int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);"
            "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);"
            "INSERT INTO u SELECT i, 'u' || i FROM generate_series(0, 5) AS i"
        )
        for name, query in QUERIES.items():
            database.create(name, query, refresh_mode="IMMEDIATE")
    for number in range(rounds):
        what = rng.choice(["headwater", "backend", "postgres", "both"])
        with Load(server, seed * 1000 + number) as load:
            eventually(lambda load=load: load.done > 2, what="work")
            time.sleep(rng.uniform(0.1, 1.5))
            kill(server, what, rng)
            load._stop.set()
        assert load.unexpected == [], f"round {number}, {what} killed"
        with connected(server) as database:
            try:
                check(database, eventually)
            except BaseException as error:
                error.add_note(f"round {number}, {what} killed")
                raise


def test_killed_while_clients_write(own_server: Headwater, eventually: Callable[..., Any]) -> None:
    crash_rounds(own_server, 1, 2, eventually)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_while_clients_write_many_times(own_server: Headwater, eventually: Callable[..., Any]) -> None:
    crash_rounds(own_server, int(os.environ.get("HEADWATER_CRASH_ROUNDS", "50")), 21, eventually)
