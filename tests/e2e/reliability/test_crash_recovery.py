"""Processes are killed at random moments under load; nothing is lost, and nothing is left behind."""

from __future__ import annotations

import logging
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psutil
import psycopg
import pytest

from tests.e2e.client_threads import ClientThreads
from tests.e2e.conftest import Database, Headwater

logger = logging.getLogger(__name__)

QUERIES = {
    "by_region": "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region",
    "named": "SELECT o.id, o.amount, r.name FROM orders o JOIN regions r ON r.id = o.region",
    "distinct_amounts": "SELECT DISTINCT amount FROM orders",
    "over_another": "SELECT count(*) AS regions, sum(n) AS n FROM by_region",
}

# What exists without a row of the catalog that accounts for it.
ORPHANS = """
SELECT 'buffer ' || c.relname FROM pg_class c
WHERE c.relnamespace = 'pgtrickle_changes'::regnamespace AND c.relkind = 'r'
  AND NOT EXISTS (SELECT FROM pgtrickle.pgt_captures k WHERE c.relname = 'changes_' || k.source_relid)
  AND NOT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s
                  WHERE c.relname = 'immediate_' || s.pgt_id AND s.requested_mode = 'IMMEDIATE')
UNION ALL
SELECT 'slot ' || r.slot_name FROM pg_replication_slots r
WHERE r.database = current_database()
  AND NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d WHERE d.slot_name = r.slot_name)
UNION ALL
SELECT 'trigger ' || t.tgname || ' on ' || t.tgrelid::regclass FROM pg_trigger t
WHERE t.tgname ~ '^pg_trickle_cdc'
  AND NOT EXISTS (SELECT FROM pgtrickle.pgt_captures k
                  WHERE t.tgrelid = ANY (k.relations) AND t.tgname ~ ('_' || k.source_relid || '$'))
UNION ALL
SELECT 'function ' || p.proname FROM pg_proc p
WHERE p.pronamespace = 'pgtrickle_changes'::regnamespace
  AND NOT EXISTS (SELECT FROM pgtrickle.pgt_captures k WHERE p.proname ~ ('_' || k.source_relid || '$'))
  AND NOT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s
                  WHERE p.proname ~ ('^immediate_' || s.pgt_id || '_') AND s.requested_mode = 'IMMEDIATE')
UNION ALL
SELECT 'capture of ' || k.source_relid FROM pgtrickle.pgt_captures k
WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_dependencies d WHERE d.source_relid = k.source_relid)
   OR NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = k.source_relid)
UNION ALL
SELECT 'stream table without storage ' || s.pgt_name FROM pgtrickle.pgt_stream_tables s
WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = s.pgt_relid)
UNION ALL
SELECT 'storage without stream table ' || c.relname FROM pg_class c
WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r' AND c.relname NOT IN ('orders', 'regions')
  AND NOT EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_relid = c.oid)
UNION ALL
SELECT 'request ' || q.request_id FROM pgtrickle.pgt_requests q
UNION ALL
SELECT 'refresh never ended ' || h.refresh_id FROM pgtrickle.pgt_refresh_history h WHERE h.status = 'RUNNING'
"""


class Load(ClientThreads):
    """Clients that write, refresh, create, drop and redefine until told to stop; a lost connection is opened anew."""

    def __init__(self, server: Headwater, seed: int):
        super().__init__()
        self._server = server
        self.unexpected: list[str] = []
        self.done = 0
        work = (self._write, self._write, self._refresh, self._create_and_drop, self._redefine)
        for number, step in enumerate(work):
            self._add(self._run, step, random.Random(seed * 10 + number))

    def _run(self, step: Callable[[Any, random.Random], None], rng: random.Random) -> None:
        while not self._stop.is_set():
            try:
                with closing(psycopg.connect(self._server.dsn(connect_timeout=60), autocommit=True)) as connection:
                    while not self._stop.is_set():
                        try:
                            step(connection, rng)
                            self.done += 1
                        except (
                            psycopg.errors.UndefinedTable,
                            psycopg.errors.DuplicateTable,
                            psycopg.errors.SerializationFailure,
                            psycopg.errors.DeadlockDetected,
                            psycopg.errors.LockNotAvailable,
                            psycopg.errors.FeatureNotSupported,  # IMMEDIATE mode with changes from the log
                        ):
                            pass
            except (psycopg.OperationalError, psycopg.Rollback):
                self._stop.wait(0.05)  # the server is down
            except psycopg.Error as error:
                self.unexpected.append(f"{error.sqlstate} {error}")

    @staticmethod
    def _write(connection: psycopg.Connection[Any], rng: random.Random) -> None:
        low = rng.randrange(2000)
        with connection.transaction():
            match rng.randrange(4):
                case 0:
                    connection.execute(
                        "INSERT INTO orders SELECT nextval('order_ids'), i %% 7, i"
                        " FROM generate_series(%s::int, %s::int) AS i",
                        [low, low + rng.randrange(40)],
                    )
                case 1:
                    connection.execute("UPDATE orders SET amount = amount + 1 WHERE amount = %s::int", [low % 50])
                case 2:
                    connection.execute("DELETE FROM orders WHERE id %% 97 = %s::int", [low % 97])
                case _:
                    connection.execute("UPDATE regions SET name = %s WHERE id = %s::int", [f"r{low}", low % 7])
            if rng.random() < 0.2:
                raise psycopg.Rollback

    @staticmethod
    def _refresh(connection: psycopg.Connection[Any], rng: random.Random) -> None:
        connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [rng.choice(list(QUERIES))])

    @staticmethod
    def _create_and_drop(connection: psycopg.Connection[Any], rng: random.Random) -> None:
        name = f"passing_{rng.randrange(3)}"
        if rng.random() < 0.5:
            query = rng.choice([query for name, query in QUERIES.items() if name != "over_another"])
            how = rng.choice(["schedule => '1s'", "cdc_mode => 'wal', schedule => '1s'", "refresh_mode => 'IMMEDIATE'"])
            connection.execute(f"SELECT pgtrickle.create_stream_table(%s, %s, {how})", [name, query])
        else:
            connection.execute("SELECT pgtrickle.drop_stream_table(%s)", [name])

    @staticmethod
    def _redefine(connection: psycopg.Connection[Any], rng: random.Random) -> None:
        query = rng.choice(list(REDEFINED))
        match rng.randrange(5):
            case 0:
                connection.execute("SELECT pgtrickle.alter_stream_table('changing', query => %s)", [query])
            case 1:
                connection.execute("SELECT pgtrickle.create_or_replace_stream_table('changing', %s, '1s')", [query])
            case 2:
                change = rng.choice(["refresh_mode => 'FULL'", "refresh_mode => 'AUTO'", "refresh_mode => 'IMMEDIATE'"])
                connection.execute(f"SELECT pgtrickle.alter_stream_table('changing', {change})")
            case 3:
                change = rng.choice(["cdc_mode => 'wal'", "cdc_mode => 'trigger'"])
                connection.execute(f"SELECT pgtrickle.alter_stream_table('changing', {change})")
            case _:  # what triggers do not see, in the midst of which the kill may come
                connection.execute("ALTER TABLE regions DISABLE TRIGGER USER")
                connection.execute("UPDATE regions SET name = name || '!' WHERE id = %s", [rng.randrange(7)])
                connection.execute("ALTER TABLE regions ENABLE TRIGGER USER")


REDEFINED = (
    "SELECT id, region FROM orders",
    "SELECT id, region, amount FROM orders WHERE amount > 5",
    "SELECT region, count(*) AS n FROM orders GROUP BY region",
    "SELECT o.id, r.name FROM orders o JOIN regions r ON r.id = o.region",
)
"""The queries that one stream table gets in turn."""


def postmaster(server: Headwater) -> int:
    return int((server.data / "postgres" / "postmaster.pid").read_text().splitlines()[0])


def kill(server: Headwater, what: str, rng: random.Random) -> None:
    """SIGKILL for Headwater, PostgreSQL, both, or one backend (which has PostgreSQL end all the others)."""
    main = postmaster(server)
    if what == "backend":
        children = psutil.Process(main).children()
        clients = []
        for child in children:
            with suppress(psutil.NoSuchProcess):  # sessions end of themselves, too
                if " postgres " in " ".join(child.cmdline()):
                    clients.append(child)
        victim = rng.choice(clients or children)
        victim.kill()
        psutil.wait_procs(clients, timeout=60)
        deadline = time.monotonic() + 60
        while psutil.pid_exists(victim.pid) and time.monotonic() < deadline:  # until PostgreSQL has noticed
            time.sleep(0.01)
        return
    if what in ("headwater", "both"):
        server.kill()
    if what in ("postgres", "both"):
        with suppress(ProcessLookupError):  # it may have ended with Headwater
            os.kill(main, signal.SIGKILL)


@contextmanager
def connected(server: Headwater, seconds: float = 180.0) -> Iterator[Database]:
    """A connection as soon as there can be one; the server is started again if it has ended."""
    deadline = time.monotonic() + seconds
    while True:
        assert server.process is not None
        if server.process.poll() is not None:
            server.start()
        try:
            database = Database(server, "postgres")
            break
        except psycopg.OperationalError:
            assert time.monotonic() < deadline, "no connection after the crash"
            time.sleep(0.1)
    try:
        yield database
    finally:
        database.close()


def check(database: Database, eventually: Callable[..., Any]) -> None:
    """The catalog is consistent, and every stream table catches up."""
    eventually(lambda: not database.rows(ORPHANS), what=f"without orphans: {database.rows(ORPHANS)}")
    for (name,) in database.rows("SELECT pgt_name FROM pgtrickle.pgt_stream_tables ORDER BY pgt_id"):
        try:
            database.refresh(name)
        except psycopg.errors.UndefinedTable:
            # Its creation was ended midway, and is undone.
            assert not database.rows("SELECT FROM pgtrickle.pgt_stream_tables WHERE pgt_name = %s", name)
            continue
        assert database.state(name)["status"] == "ACTIVE"
        assert database.difference(name) == [], name


def crash_rounds(server: Headwater, rounds: int, seed: int, eventually: Callable[..., Any]) -> None:
    rng = random.Random(seed)
    with connected(server) as database:
        database.run(
            "CREATE SEQUENCE order_ids; CREATE TABLE orders (id bigint PRIMARY KEY, region int, amount int);"
            "CREATE TABLE regions (id int PRIMARY KEY, name text);"
            "INSERT INTO regions SELECT i, 'r' || i FROM generate_series(0, 6) AS i"
        )
        for name, query in QUERIES.items():
            database.create(name, query, schedule="1s")
        database.create("changing", REDEFINED[0], schedule="1s")
    for number in range(rounds):
        logger.info("round %s", number)
        what = rng.choice(["headwater", "backend", "postgres", "both"])
        with Load(server, seed * 1000 + number) as load:
            time.sleep(rng.uniform(0.3, 1.5))
            kill(server, what, rng)
            if what in ("headwater", "both"):
                load._stop.set()
        assert load.unexpected == [], f"round {number}, {what} killed"
        with connected(server) as database:
            try:
                check(database, eventually)
            except BaseException as error:
                error.add_note(f"round {number}, {what} killed")
                raise


def test_killed_under_load(own_server: Headwater, eventually: Callable[..., Any]) -> None:
    crash_rounds(own_server, 1, 2, eventually)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_killed_under_load_many_times(own_server: Headwater, eventually: Callable[..., Any]) -> None:
    crash_rounds(own_server, int(os.environ.get("HEADWATER_CRASH_ROUNDS", "40")), 20, eventually)
