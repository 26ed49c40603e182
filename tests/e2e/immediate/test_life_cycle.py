"""IMMEDIATE stream tables from their creation to their end."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tests.e2e.client_threads import ClientThreads
from tests.e2e.conftest import Database

SUMS = "SELECT g, count(*) AS n, sum(v) AS s FROM t GROUP BY g"
JOINED = "SELECT t.id, t.v, u.name FROM t JOIN u ON u.g = t.g"
QUERIES = {"sums": SUMS, "joined": JOINED, "rows": "SELECT id, v FROM t WHERE v % 2 = 0"}

LEFT_BEHIND = (
    "SELECT count(*) FROM (SELECT FROM pg_trigger WHERE tgname ~ 'pg_trickle_immediate' UNION ALL SELECT FROM pg_proc"
    " WHERE pronamespace::regnamespace::text ~ '^pgtrickle_' AND proname ~ '^immediate_' UNION ALL SELECT FROM pg_class"
    " WHERE relnamespace = 'pgtrickle_changes'::regnamespace AND relname ~ '^immediate_') AS found"
)


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


def tables(db: Database) -> None:
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, g int, v int); CREATE TABLE u (g int PRIMARY KEY, name text);"
        "INSERT INTO t SELECT i, i % 5, i FROM generate_series(1, 100) i;"
        "INSERT INTO u SELECT i, 'u' || i FROM generate_series(0, 3) i"
    )


@pytest.fixture
def tu(db: Database) -> Database:
    tables(db)
    return db


@pytest.fixture
def live(live_db: Database) -> Database:
    """The same with its scheduler at work."""
    tables(live_db)
    return live_db


CHANGES = (
    "INSERT INTO t VALUES (1000, 1, 1), (1001, 77, 2)",
    "UPDATE t SET v = v + 1, g = 3 WHERE id < 5",
    "UPDATE u SET name = 'another' WHERE g = 3",
    "DELETE FROM t WHERE g = 2",
    "DELETE FROM t WHERE id > 900",
)


def assert_immediate(db: Database, *names: str) -> None:
    """They say that they are, and after each statement they are equal to their queries."""
    for name in names:
        state = db.state(name)
        assert (state["refresh_mode"], state["schedule"]) == ("IMMEDIATE", None), state["fallback_reason"]
    with db.connection.transaction(force_rollback=True):
        for change in CHANGES:
            db.run(change)
            db.assert_current(*names)
    db.assert_current(*names)


def test_created_in_autocommit_and_in_a_transaction_block(tu: Database) -> None:
    tu.create("sums", SUMS, refresh_mode="IMMEDIATE")
    with tu.connection.transaction():
        tu.run("INSERT INTO t VALUES (500, 1, 1)")
        tu.create("joined", JOINED, refresh_mode="IMMEDIATE")
        tu.run("INSERT INTO t VALUES (501, 1, 1)")
        tu.assert_current("joined", "sums")
    assert_immediate(tu, "sums", "joined")
    with tu.connection.transaction(force_rollback=True):
        tu.create("rows", QUERIES["rows"], refresh_mode="IMMEDIATE")
    assert tu.value("SELECT to_regclass('rows')") is None
    assert_immediate(tu, "sums", "joined")


def test_auto_stays_deferred(tu: Database) -> None:
    tu.create("sums", SUMS)
    assert tu.state("sums")["refresh_mode"] == "DIFFERENTIAL"


def test_created_without_rows(live: Database, eventually: Callable[..., Any]) -> None:
    """The server populates it, and then triggers maintain it."""
    live.create("sums", SUMS, refresh_mode="IMMEDIATE", initialize=False)
    eventually(lambda: live.state("sums")["refresh_mode"] == "IMMEDIATE")
    assert_immediate(live, "sums")


def test_if_not_exists_and_or_replace(tu: Database) -> None:
    call = "SELECT pgtrickle.create_{}('sums', %s, refresh_mode => %s)"
    tu.run(call.format("stream_table_if_not_exists"), SUMS, "IMMEDIATE")
    tu.run(call.format("stream_table_if_not_exists"), JOINED, "FULL")
    assert_immediate(tu, "sums")
    before = tu.value("SELECT max(xmin::text::int) FROM pg_trigger WHERE tgname ~ 'pg_trickle_immediate'")
    tu.run(call.format("or_replace_stream_table"), SUMS, "IMMEDIATE")
    assert_immediate(tu, "sums")
    assert before == tu.value("SELECT max(xmin::text::int) FROM pg_trigger WHERE tgname ~ 'pg_trickle_immediate'")
    tu.run(call.format("or_replace_stream_table"), SUMS + " HAVING count(*) > 1", "IMMEDIATE")
    assert_immediate(tu, "sums")
    tu.run(call.format("or_replace_stream_table"), JOINED, "IMMEDIATE")
    assert_immediate(tu, "sums")
    tu.run(call.format("or_replace_stream_table"), JOINED, "AUTO")
    assert (tu.state("sums")["refresh_mode"], tu.state("sums")["schedule"]) == ("DIFFERENTIAL", "calculated")
    tu.assert_refreshed("sums")


def test_another_query(tu: Database) -> None:
    tu.create("sums", SUMS, refresh_mode="IMMEDIATE")
    for query in (
        SUMS + " HAVING sum(v) > 10",
        "SELECT g, count(*) AS n, sum(v) AS s, max(v) AS m FROM t GROUP BY g",
        JOINED,
        "SELECT id, name, v FROM (" + JOINED + ") AS j",
    ):
        tu.run("SELECT pgtrickle.alter_stream_table('sums', query => %s)", query)
        assert_immediate(tu, "sums")
    with pytest.raises(psycopg.errors.FeatureNotSupported):
        tu.run("SELECT pgtrickle.alter_stream_table('sums', query => 'SELECT random() AS r FROM t')")
    assert_immediate(tu, "sums")


def test_back_and_forth_computes_nothing_anew(tu: Database) -> None:
    for name, query in QUERIES.items():
        tu.create(name, query, schedule="1h")
    for name in QUERIES:
        tu.run("INSERT INTO t SELECT max(id) + 1, 3, 3 FROM t")
        tu.run("SELECT pgtrickle.alter_stream_table(%s, refresh_mode => 'IMMEDIATE')", name)
        assert_immediate(tu, name)
        tu.run("SELECT pgtrickle.alter_stream_table(%s, refresh_mode => 'DIFFERENTIAL', schedule => '5m')", name)
        tu.assert_current(name)
        state = tu.state(name)
        assert (state["refresh_mode"], state["requested_mode"], state["schedule"]) == (*["DIFFERENTIAL"] * 2, "5m")
        for change in CHANGES:
            tu.run(change)
        tu.assert_differential(name)
        assert [row["action"] for row in tu.history(name)] == ["FULL", "DIFFERENTIAL", "DIFFERENTIAL"]


def test_left_in_the_transaction_that_has_written(tu: Database) -> None:
    """What it wrote before and after is applied once."""
    for mode in ("AUTO", "FULL", "DIFFERENTIAL"):
        tu.run("INSERT INTO t VALUES (2000, 1, 1) ON CONFLICT (id) DO UPDATE SET v = t.v + 1")
        tu.create("sums", SUMS, refresh_mode="IMMEDIATE")
        with tu.connection.transaction():
            tu.run("INSERT INTO t VALUES (2001, 1, 1), (2002, 9, 9)")
            tu.run("SELECT pgtrickle.alter_stream_table('sums', refresh_mode => %s)", mode)
            tu.run("DELETE FROM t WHERE id = 2002")
            tu.run("INSERT INTO t VALUES (2003, 1, 1)")
        tu.assert_refreshed("sums")
        tu.run("DELETE FROM t WHERE id > 2000; SELECT pgtrickle.drop_stream_table('sums')")


def test_at_repeatable_read(tu: Database) -> None:
    tu.create("sums", SUMS, refresh_mode="IMMEDIATE")
    with tu.connection.transaction():
        tu.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t")
        other = tu.connect()
        other.execute("INSERT INTO t VALUES (3000, 1, 1)")
        with pytest.raises(psycopg.errors.Error) as refused, tu.connection.transaction():
            tu.run("SELECT pgtrickle.alter_stream_table('sums', refresh_mode => 'DIFFERENTIAL')")
            tu.refresh("sums")
        assert refused.value.sqlstate in ("25001", "40001")
    assert_immediate(tu, "sums")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("schedule => '5s'", "schedule => '5s' is not supported in IMMEDIATE mode"),
        ("cdc_mode => 'wal'", "cdc_mode => 'wal' is not supported in IMMEDIATE mode"),
        ("append_only => true", "append_only is not supported in IMMEDIATE mode"),
    ],
)
def test_options_of_refreshes_are_refused(tu: Database, arguments: str, message: str) -> None:
    before = tu.traces()
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=message):
        tu.run(f"SELECT pgtrickle.create_stream_table('s', %s, refresh_mode => 'IMMEDIATE', {arguments})", SUMS)
    assert tu.traces() == before
    tu.create("s", SUMS, refresh_mode="IMMEDIATE")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=message):
        tu.run(f"SELECT pgtrickle.alter_stream_table('s', {arguments})")
    assert_immediate(tu, "s")
    tu.run("SELECT pgtrickle.alter_stream_table('s', refresh_mode => 'DIFFERENTIAL')")
    if "append" not in arguments:
        tu.run(f"SELECT pgtrickle.alter_stream_table('s', {arguments})")
    if "wal" in arguments:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match=message):
            tu.run("SELECT pgtrickle.alter_stream_table('s', refresh_mode => 'IMMEDIATE')")
        tu.run("SELECT pgtrickle.alter_stream_table('s', cdc_mode => 'auto')")
    tu.run("SELECT pgtrickle.alter_stream_table('s', refresh_mode => 'IMMEDIATE')")
    assert_immediate(tu, "s")


def test_append_only_ends_when_it_becomes_immediate(tu: Database) -> None:
    tu.create("rows", "SELECT id, v FROM t", append_only=True)
    tu.run("SELECT pgtrickle.alter_stream_table('rows', refresh_mode => 'IMMEDIATE')")
    assert not tu.state("rows")["append_only"]
    assert_immediate(tu, "rows")


def test_spark_is_refused(tu: Database) -> None:
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="engine => 'spark' is not supported in IMMEDIATE"):
        tu.create("s", SUMS, refresh_mode="IMMEDIATE", engine="spark")


def test_capture_from_the_log_as_the_databases_choice_is_no_matter(tu: Database) -> None:
    told: list[str] = []
    tu.run(f"ALTER DATABASE {tu.name} SET pg_trickle.cdc_mode = 'wal'")
    tu.connection = tu.connect()
    tu.connection.add_notice_handler(lambda d: told.append(f"{d.severity} {d.message_primary}"))
    tu.create("s", SUMS, refresh_mode="IMMEDIATE")
    assert [text for text in told if "IMMEDIATE" in text] == [
        "INFO pg_trickle.cdc_mode = 'wal' does not apply to IMMEDIATE mode: triggers maintain the stream table"
    ]
    assert_immediate(tu, "s")


def test_suspended_and_resumed(tu: Database) -> None:
    tu.create("sums", SUMS, refresh_mode="IMMEDIATE")
    tu.run("SELECT pgtrickle.alter_stream_table('sums', status => 'SUSPENDED')")
    rows = tu.rows("SELECT * FROM sums ORDER BY 1")
    tu.run("INSERT INTO t VALUES (5000, 1, 1)")
    assert tu.rows("SELECT * FROM sums ORDER BY 1") == rows
    assert tu.state("sums")["status"] == "SUSPENDED"
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        tu.refresh("sums")
    tu.run("SELECT pgtrickle.resume_stream_table('sums')")
    tu.refresh("sums")
    assert_immediate(tu, "sums")
    tu.run("SELECT pgtrickle.alter_stream_table('sums', status => 'SUSPENDED')")
    tu.run("DELETE FROM t WHERE id = 5000")
    tu.run("SELECT pgtrickle.alter_stream_table('sums', status => 'ACTIVE')")
    assert_immediate(tu, "sums")


def test_resumed_by_the_scheduler(live: Database, eventually: Callable[..., Any]) -> None:
    live.create("joined", JOINED, refresh_mode="IMMEDIATE")
    live.run("SELECT pgtrickle.alter_stream_table('joined', status => 'SUSPENDED')")
    live.run("INSERT INTO t VALUES (5000, 1, 1)")
    live.run("SELECT pgtrickle.resume_stream_table('joined')")
    eventually(lambda: live.state("joined")["refresh_mode"] == "IMMEDIATE")
    assert_immediate(live, "joined")


def test_refreshed_by_hand(tu: Database) -> None:
    """All rows are computed, which mends what somebody has done to them."""
    tu.create("sums", SUMS, refresh_mode="IMMEDIATE")
    tu.create("joined", JOINED, refresh_mode="IMMEDIATE")
    tu.run("SET pgtrickle.maintenance = 'on'; DELETE FROM joined WHERE id = 1; DELETE FROM sums")
    tu.run("SET pgtrickle.maintenance = ''")
    with pytest.raises(psycopg.errors.DataCorrupted, match='1 rows are missing in stream table "sums"'):
        tu.run("DELETE FROM t WHERE id = 1")
    tu.refresh("sums")
    tu.run("DELETE FROM t WHERE id = 2")
    tu.refresh("joined")
    assert_immediate(tu, "sums", "joined")
    with tu.connection.transaction():
        tu.run("INSERT INTO t VALUES (6001, 1, 1)")
        tu.refresh("sums")
        tu.run("INSERT INTO t VALUES (6002, 1, 1)")
        tu.assert_current("sums")
    assert_immediate(tu, "sums")


def test_dropped(live: Database, eventually: Callable[..., Any]) -> None:
    live.run("DROP TABLE u CASCADE; DROP TABLE t CASCADE")
    before = live.traces()
    tables(live)
    for name, query in QUERIES.items():
        live.create(name, query, refresh_mode="IMMEDIATE")
    live.run("SELECT pgtrickle.drop_stream_table('sums')")
    live.run("DROP TABLE joined")
    live.run("INSERT INTO t VALUES (1000, 1, 1)")
    live.assert_current("rows")
    live.run("DROP TABLE t, u CASCADE")
    assert live.state("rows")["status"] == "ERROR"
    live.run("SELECT pgtrickle.drop_stream_table('rows')")
    eventually(lambda: live.traces() == before, what=f"without traces: {live.traces()}")


def test_dropped_while_its_source_is_written_to(live: Database, eventually: Callable[..., Any]) -> None:
    live.create("joined", JOINED, refresh_mode="IMMEDIATE")
    writer = live.connect(autocommit=False)
    writer.execute("INSERT INTO t VALUES (1000, 1, 1)")
    live.run("SELECT pgtrickle.alter_stream_table('joined', status => 'SUSPENDED')")
    writer.execute("INSERT INTO t VALUES (1001, 1, 1)")
    live.run("SET lock_timeout = '60s'")
    writer.commit()
    live.run("SELECT pgtrickle.drop_stream_table('joined')")
    live.run("INSERT INTO t VALUES (1002, 1, 1)")
    eventually(lambda: live.value(LEFT_BEHIND) == 0)


class Writers(ClientThreads):
    """Clients that change both tables, in transactions of several statements, some of which are rolled back."""

    def __init__(self, db: Database, number: int):
        super().__init__()
        self.errors: list[str] = []
        self.done = 0
        for n in range(number):
            self._add(self._run, db, n)

    def _run(self, db: Database, n: int) -> None:
        rng = random.Random(n)
        with psycopg.connect(db.server.dsn(db.name), autocommit=True) as connection:
            while not self._stop.is_set():
                try:
                    with suppress(psycopg.errors.DeadlockDetected), connection.transaction():
                        for _ in range(rng.randrange(1, 4)):
                            self._change(connection, rng, n)
                        if rng.random() < 0.2:
                            raise psycopg.Rollback
                    self.done += 1
                except psycopg.Error as error:
                    self.errors.append(f"{error.sqlstate} {error}")

    @staticmethod
    def _change(connection: psycopg.Connection[Any], rng: random.Random, n: int) -> None:
        key = n * 10_000 + rng.randrange(100)
        match rng.randrange(6):
            case 0 | 1:
                connection.execute(
                    "INSERT INTO t VALUES (%s, %s, %s) ON CONFLICT (id) DO UPDATE SET v = excluded.v",
                    [key, rng.randrange(6), rng.randrange(100)],
                )
            case 2:
                connection.execute(
                    "UPDATE t SET g = (g + 1) %% 6, v = v + 1 WHERE id BETWEEN %s AND %s", [key, key + 9]
                )
            case 3:
                connection.execute("DELETE FROM t WHERE id = %s", [key])
            case 4:
                connection.execute("UPDATE u SET name = %s WHERE g = %s", [f"n{key}", rng.randrange(4)])
            case _:
                connection.execute("SELECT count(*) FROM joined")


@pytest.mark.long
@pytest.mark.parametrize("rounds", [4, 60])
def test_back_and_forth_under_writers_loses_nothing(
    live: Database, eventually: Callable[..., Any], rounds: int
) -> None:
    def altered(name: str, mode: str) -> bool:
        """False where the writers left no room for it."""
        with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
            live.run("SELECT pgtrickle.alter_stream_table(%s, refresh_mode => %s)", name, mode)
            return True
        return False

    for name, query in QUERIES.items():
        live.create(name, query, schedule="1s")
    rng = random.Random(1)
    with Writers(live, 8) as writers:
        for _ in range(rounds):
            name = rng.choice(list(QUERIES))
            altered(name, rng.choice(["IMMEDIATE", "IMMEDIATE", "DIFFERENTIAL", "AUTO"]))
        for name in QUERIES:
            eventually(lambda name=name: altered(name, "IMMEDIATE"), what=f"{name} in IMMEDIATE mode")
    assert writers.errors == []
    assert writers.done > 50
    assert_immediate(live, *QUERIES)


def test_created_one_after_the_other_while_the_scheduler_works(live: Database, eventually: Callable[..., Any]) -> None:
    """Whoever is first has the triggers made; and captures end later, which others do not deadlock with."""
    for number in range(6):
        live.create(
            f"st{number}", f"SELECT g, count(*) AS n FROM t WHERE v > {number} GROUP BY g", refresh_mode="IMMEDIATE"
        )
    assert_immediate(live, *(f"st{number}" for number in range(6)))
    eventually(lambda: live.value("SELECT count(*) FROM pgtrickle.pgt_captures") == 0)
    assert [len(live.history(f"st{number}")) for number in range(6)] == [1] * 6


def test_refreshed_in_a_transaction_whose_changes_are_captured_for_another_one(tu: Database) -> None:
    """What it has written before is counted once."""
    tu.create("deferred", SUMS, schedule="1h")
    tu.create("sums", SUMS, refresh_mode="IMMEDIATE")
    with tu.connection.transaction():
        tu.run("INSERT INTO t VALUES (7000, 1, 1)")
        tu.refresh("sums")
        tu.assert_current("sums")
        tu.run("INSERT INTO t VALUES (7001, 1, 1)")
        tu.assert_current("sums")
    assert_immediate(tu, "sums")
    tu.assert_refreshed("deferred")


class Refreshing(Writers):
    """The same, and one that has all rows computed by hand, again and again."""

    def __init__(self, db: Database, number: int):
        super().__init__(db, number)
        self.refreshed = 0
        self._add(self._refresh, db)

    def _refresh(self, db: Database) -> None:
        with psycopg.connect(db.server.dsn(db.name), autocommit=True) as connection:
            while not self._stop.is_set():
                with suppress(psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
                    connection.execute("SELECT pgtrickle.refresh_stream_table('named')")
                    self.refreshed += 1


def test_refreshed_by_hand_under_writers_whose_changes_are_captured(live: Database) -> None:
    """Nobody's triggers are at work while it is computed, though no capture has to begin."""
    for name, query in QUERIES.items():
        live.create(name, query, refresh_mode="IMMEDIATE")
    live.create("named", "SELECT name, count(*) AS n FROM joined GROUP BY name", refresh_mode="IMMEDIATE")
    live.create("captures", "SELECT name, count(*) AS n FROM joined GROUP BY name", schedule="1h")
    with Refreshing(live, 4) as writers:
        deadline = time.monotonic() + 60
        while writers.refreshed < 12 and time.monotonic() < deadline:
            time.sleep(0.1)
    assert writers.errors == []
    assert writers.refreshed > 3 and writers.done > 20
    live.assert_current(*QUERIES, "named")


def test_triggers_are_used_again_while_somebody_is_about_to_remove_them(
    tu: Database, eventually: Callable[..., Any]
) -> None:
    """Who waited for their tables looks again."""
    tu.create("sums", SUMS, refresh_mode="IMMEDIATE")
    other, onlooker = tu.connect(), tu.bypass()
    waits = f"SELECT FROM pg_locks WHERE pid = {other.info.backend_pid} AND NOT granted"
    seen = threading.Event()

    def remove() -> None:
        while not seen.is_set():  # it waits for half a second at most
            other.execute("SELECT pgtrickle._end_captures()")

    with ThreadPoolExecutor() as threads:
        removing = None
        while removing is None:
            tu.run("SELECT pgtrickle.alter_stream_table('sums', refresh_mode => 'DIFFERENTIAL')")
            with tu.connection.transaction():
                tu.run("SELECT pgtrickle.alter_stream_table('sums', refresh_mode => 'IMMEDIATE')")
                if onlooker.execute("SELECT FROM pgtrickle._unused_immediate()").fetchall():  # the server was not first
                    removing = threads.submit(remove)
                    try:
                        eventually(lambda: onlooker.execute(waits.encode()).fetchall(), what="somebody who waits")
                    finally:
                        seen.set()
        removing.result()
    assert_immediate(tu, "sums")
