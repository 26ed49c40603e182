"""Capture from the write-ahead log: what stream tables hold, whatever comes between."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tests.e2e.client_threads import ClientThreads
from tests.e2e.conftest import Database, Headwater, _database

Eventually = Callable[..., Any]
PATIENCE = 90.0
"""Seconds for what takes two or three looks of the server, one a second."""

QUERIES = {
    "by_group": "SELECT g, count(*) AS n, sum(x) AS total, max(v) AS last FROM a GROUP BY g",
    "joined": "SELECT a.id, a.v, b.id AS b, b.w, k.x FROM a JOIN b ON b.a = a.id LEFT JOIN k ON k.g = a.g",
    "keyless": "SELECT g, x, count(*) AS n FROM k GROUP BY g, x",
    "exists": "SELECT a.g, sum(b.w) AS w FROM a LEFT JOIN b ON b.a = a.id"
    " WHERE EXISTS (SELECT FROM k WHERE k.g = a.g) GROUP BY a.g",
}

TABLES = """
CREATE TABLE a (id int PRIMARY KEY, g int, v text, x int);
CREATE TABLE b (id int PRIMARY KEY, a int, w numeric);
CREATE TABLE k (g int, x int);
"""


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@pytest.fixture(scope="module")
def wal_db(server: Headwater) -> Iterator[Database]:
    """One database in which everything is to be captured from the log, and nothing is refreshed but by hand."""
    for database in _database(server):
        database.run(
            f"ALTER DATABASE {database.name} SET pg_trickle.enabled = off;"
            f"ALTER DATABASE {database.name} SET pg_trickle.cdc_mode = 'auto';"
            f"ALTER DATABASE {database.name} SET pg_trickle.wal_transition_timeout = 1"
        )
        yield database


@pytest.fixture
def db(wal_db: Database) -> Iterator[Database]:
    """The same without tables; those that a test makes are dropped after it."""
    yield wal_db
    wal_db.run("ROLLBACK")
    for (name,) in wal_db.rows("SELECT format('%I.%I', pgt_schema, pgt_name) FROM pgtrickle.pgt_stream_tables"):
        wal_db.run("SELECT pgtrickle.drop_stream_table(%s)", name)
    for (name,) in wal_db.rows(
        "SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'public'::regnamespace"
        " AND relkind IN ('r', 'p') AND NOT relispartition"
    ):
        wal_db.run(f"DROP TABLE IF EXISTS {name} CASCADE")


def modes(db: Database) -> dict[str, tuple[str, str | None]]:
    """How each source is captured, and what is wrong with that."""
    found = db.rows("SELECT source_table, cdc_mode, alert FROM pgtrickle.check_cdc_health()")
    return {table.removeprefix("public."): (mode, alert) for table, mode, alert in found}


def from_log(db: Database, *tables: str) -> Callable[[], bool]:
    """Whether these tables are captured from the log, and all is well."""
    return lambda: all(modes(db).get(table) == ("WAL", None) for table in tables)


def by_triggers(db: Database, table: str) -> Callable[[], bool]:
    return lambda: modes(db)[table][0] == "TRIGGER"


class Writers(ClientThreads):
    """Threads that change the tables at random until they are told to stop; connections lost are opened anew."""

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], seed: int, *, truncate: bool = False):
        super().__init__()
        self._connect = connect
        self._truncate = truncate
        self.commits = 0
        self.unexpected: list[str] = []
        for number in range(3):
            self._add(self._run, random.Random(seed * 100 + number))

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        assert self.unexpected == []
        assert self.commits > 10

    def _run(self, chance: random.Random) -> None:
        try:
            while not self._stop.is_set():
                with suppress(psycopg.OperationalError, FileNotFoundError), self._connect() as connection:
                    while not self._stop.is_set():
                        self._transaction(connection, chance)
                time.sleep(0.02)
        except Exception as error:
            self.unexpected.append(repr(error))

    def _transaction(self, connection: psycopg.Connection[Any], chance: random.Random) -> None:
        try:
            for _ in range(chance.choice([1, 1, 1, 2, 5])):
                connection.execute(self._statement(chance))  # type: ignore[arg-type]
            if chance.random() < 0.1:
                connection.execute("SAVEPOINT s; DELETE FROM a WHERE id < 10; ROLLBACK TO s")
            if self._truncate and chance.random() < 0.005:
                connection.execute("TRUNCATE k")
            (connection.rollback if chance.random() < 0.1 else connection.commit)()
            self.commits += 1
            time.sleep(0.002)
        except (psycopg.errors.DeadlockDetected, psycopg.errors.UniqueViolation):
            connection.rollback()

    @staticmethod
    def _statement(chance: random.Random) -> str:
        i, other, g, x = chance.randrange(60), chance.randrange(60), chance.randrange(6), chance.randrange(3)
        return chance.choice(
            [
                f"INSERT INTO a VALUES ({i}, {g}, 'v{x}', {other}) ON CONFLICT (id) DO UPDATE SET x = excluded.x",
                f"DELETE FROM a WHERE id = {i}",
                f"UPDATE a SET v = v || '\\', x = x + 1 WHERE g = {g} AND length(v) < 20",
                f"UPDATE a SET id = id + 1000 WHERE id = {i}",
                f"INSERT INTO b VALUES ({i}, {other}, {x}) ON CONFLICT (id) DO UPDATE SET a = excluded.a",
                f"DELETE FROM b WHERE id = {i}",
                f"UPDATE b SET w = w + 0.5 WHERE a = {other}",
                f"INSERT INTO k VALUES ({g}, {x}), ({g}, {x})",
                f"DELETE FROM k WHERE ctid IN (SELECT ctid FROM k WHERE g = {g} LIMIT 1)",
                f"UPDATE k SET x = x + 1 WHERE g = {g} AND x < 2",
            ]
        )


def create_all(db: Database, **arguments: Any) -> None:
    """Which may meet that a source that it reads is just beginning to be captured from the log; see `refresh_all`."""
    db.run(TABLES)
    for name, query in QUERIES.items():
        while not db.value("SELECT to_regclass(%s) IS NOT NULL", name):
            with suppress(psycopg.errors.SerializationFailure):
                db.create(name, query, refresh_mode="DIFFERENTIAL", **arguments)


def refresh_all(db: Database) -> None:
    """A refresh may have to wait for the log, or meet the engine's own locks; then it is to be tried again."""
    for name in QUERIES:
        with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.SerializationFailure):
            db.refresh(name)


def test_each_kind_of_change_arrives_as_it_was(db: Database, eventually: Eventually) -> None:
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text, big text, e interval, a numeric(8,2)[], f float8, z timestamptz)"
    )
    db.run("ALTER TABLE t ALTER big SET STORAGE EXTERNAL")
    db.run(
        "INSERT INTO t SELECT i, 'v', repeat(md5(i::text), 500), '1 day', '{1.5,NULL}', 0.1, now()"
        " FROM generate_series(1, 50) i"
    )
    db.create("copy", "SELECT id, v, md5(big) AS big, e, a, f, z FROM t", refresh_mode="DIFFERENTIAL")
    eventually(from_log(db, "t"), PATIENCE)
    assert db.rows("SELECT tgname FROM pg_trigger WHERE tgrelid = 't'::regclass") == []
    for change in (
        "UPDATE t SET v = 'w' WHERE id < 5",  # the large value is not in the log again
        "UPDATE t SET big = repeat('x', 20000) WHERE id < 3",
        r"UPDATE t SET v = E'a\tb\\n\nc\\.\r', a = '{}' WHERE id = 7",
        "UPDATE t SET v = NULL, a = NULL, e = NULL, f = 'NaN', z = 'infinity' WHERE id = 8",
        "UPDATE t SET id = 100 WHERE id = 9; DELETE FROM t WHERE id = 10; UPDATE t SET id = 10 WHERE id = 11",
        "SET TimeZone = 'Asia/Kathmandu'; SET DateStyle = 'German'; SET IntervalStyle = 'sql_standard'; "
        "INSERT INTO t VALUES (200, '', NULL, '-1 year 2:03', '{{1},{2}}', 1e-300, '2020-02-29 12:00'); RESET ALL",
    ):
        db.run(change)
        db.assert_differential("copy")
    db.run("TRUNCATE t; INSERT INTO t (id) VALUES (1)")
    db.assert_refreshed("copy")
    db.run("BEGIN; INSERT INTO t (id) VALUES (2); SAVEPOINT s; INSERT INTO t (id) VALUES (3); ROLLBACK TO s; COMMIT")
    db.assert_differential("copy")
    assert db.value("SELECT count(*) FROM copy") == 2


def test_a_refresh_sees_what_has_committed_just_before(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.create("counted", "SELECT count(*) AS n FROM t")
    eventually(from_log(db, "t"), PATIENCE)
    other = db.connect()
    for number in range(1, 30):
        other.execute("INSERT INTO t VALUES (%s)", [number])
        db.refresh("counted")
        assert db.value("SELECT n FROM counted") == number


@pytest.mark.parametrize("seconds", [3, pytest.param(120, marks=pytest.mark.long)])
def test_whatever_is_written_meanwhile_nothing_is_lost(db: Database, eventually: Eventually, seconds: int) -> None:
    create_all(db)
    eventually(from_log(db, "a", "b", "k"), PATIENCE)
    with Writers(lambda: psycopg.connect(db.server.direct_dsn(db.name)), seed=seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for name in QUERIES:
                db.refresh(name)
    assert from_log(db, "a", "b", "k")()
    db.assert_refreshed(*QUERIES)
    # Nothing was computed as a whole on the way, which would have put right what was lost.
    for name in QUERIES:
        assert {row["action"] for row in db.history(name)[1:]} <= {"DIFFERENTIAL", "NO_DATA"}


@pytest.mark.parametrize("turns", [1, pytest.param(30, marks=pytest.mark.long)])
def test_triggers_and_log_take_turns_while_tables_are_written(db: Database, eventually: Eventually, turns: int) -> None:
    create_all(db, cdc_mode="trigger")
    generations = db.rows("SELECT source_relid, generation FROM pgtrickle.pgt_captures ORDER BY 1")
    listener = db.bypass()
    listener.execute("LISTEN pg_trickle_cdc_transition")
    with Writers(lambda: psycopg.connect(db.server.direct_dsn(db.name)), seed=turns, truncate=True):
        for _ in range(turns):
            for mode, reached in (("wal", "WAL"), ("trigger", "TRIGGER")):
                for name in QUERIES:
                    db.run("SELECT pgtrickle.alter_stream_table(%s, cdc_mode => %s)", name, mode)

                def settled(reached: str = reached) -> bool:
                    refresh_all(db)
                    return {found for found, _ in modes(db).values()} == {reached}

                eventually(settled, PATIENCE)
    db.assert_refreshed(*QUERIES)
    # Nothing was missed on the way, so nothing was computed anew for it.
    assert db.rows("SELECT source_relid, generation FROM pgtrickle.pgt_captures ORDER BY 1") == generations
    moves = [json.loads(note.payload) for note in listener.notifies(timeout=0.1)]
    source = db.value("SELECT 'a'::regclass::oid::bigint")
    given_up = ("TRANSITIONING", "TRIGGER")  # since it took long, to be tried again
    found = dict.fromkeys((m["from"], m["to"]) for m in moves if m["source_oid"] == source)
    assert [move for move in found if move != given_up] == [
        ("TRIGGER", "TRANSITIONING"),
        ("TRANSITIONING", "WAL"),
        ("WAL", "TRIGGER"),
    ]


@pytest.mark.parametrize(
    "fault",
    [
        "ALTER TABLE t REPLICA IDENTITY DEFAULT",
        "ALTER PUBLICATION pgtrickle_cdc DROP TABLE t",
        "ALTER TABLE t ALTER x TYPE bigint",
        *(
            pytest.param(fault, marks=pytest.mark.long)
            for fault in (
                "ALTER PUBLICATION pgtrickle_cdc SET (publish = 'insert')",
                "DROP PUBLICATION pgtrickle_cdc",
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE slot_name = pgtrickle._wal_slot()",
                "ALTER TABLE t DROP x, ADD x text",
                "ALTER TABLE t RENAME x TO y; ALTER TABLE t RENAME spare TO x",
            )
        ),
    ],
)
def test_what_may_have_been_missed_is_computed_anew(db: Database, eventually: Eventually, fault: str) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, x int, spare int)")
    db.run("INSERT INTO t SELECT i, i % 3, i FROM generate_series(1, 100) i")
    db.create("counted", "SELECT count(*) AS n FROM t WHERE x::text > '0'")
    eventually(from_log(db, "t"), PATIENCE)
    db.run(fault)
    db.run("UPDATE t SET id = 1000 WHERE id = 1; DELETE FROM t WHERE id = 5; INSERT INTO t (id) VALUES (2000)")
    db.assert_refreshed("counted")
    eventually(from_log(db, "t"), PATIENCE)
    db.run("DELETE FROM t WHERE id = 8")
    db.assert_refreshed("counted")


def test_old_rows_that_were_not_logged_for_a_moment(db: Database, eventually: Eventually) -> None:
    """Nobody has looked meanwhile: the log itself says so, while a refresh waits for it."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, x int); INSERT INTO t SELECT i, i FROM generate_series(1, 9) i")
    db.create("counted", "SELECT x, count(*) AS n FROM t GROUP BY x")
    eventually(from_log(db, "t"), PATIENCE)
    db.run(
        "BEGIN; ALTER TABLE t REPLICA IDENTITY DEFAULT; DELETE FROM t WHERE id = 1; UPDATE t SET x = 0 WHERE id = 2;"
        " ALTER TABLE t REPLICA IDENTITY FULL; COMMIT"
    )
    db.assert_refreshed("counted")
    eventually(from_log(db, "t"), PATIENCE)


def test_slot_that_somebody_drops(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.create("counted", "SELECT count(*) AS n FROM t")
    eventually(from_log(db, "t"), PATIENCE)

    def dropped() -> bool:
        with suppress(psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
            db.run(
                "SELECT pg_terminate_backend(s.active_pid, 1000), pg_drop_replication_slot(s.slot_name)"
                " FROM pg_replication_slots s WHERE s.slot_name = pgtrickle._wal_slot()"
            )
            return True
        return False

    eventually(dropped)
    db.run("INSERT INTO t VALUES (1)")

    def refreshed() -> bool:
        with suppress(psycopg.errors.LockNotAvailable):  # it waits for the slot that has just gone
            db.refresh("counted")
            return True
        return False

    eventually(refreshed)
    db.assert_current("counted")
    eventually(from_log(db, "t"), PATIENCE)
    db.run("INSERT INTO t VALUES (2)")
    db.assert_refreshed("counted")


def test_transaction_that_has_changed_a_source_cannot_refresh(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.create("counted", "SELECT count(*) AS n FROM t")
    eventually(from_log(db, "t"), PATIENCE)
    db.run("BEGIN; INSERT INTO t VALUES (1)")
    with pytest.raises(psycopg.errors.ObjectInUse, match="changed by this transaction") as refused:
        db.refresh("counted")
    assert refused.value.diag.message_hint == "Commit first. Or use cdc_mode => 'trigger'."
    db.run("ROLLBACK")
    db.run("INSERT INTO t VALUES (2)")
    db.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT")
    db.refresh("counted")
    db.run("COMMIT")
    db.assert_current("counted")
    assert "snapshot is older" in db.history("counted")[-1]["executor_reason"]
    db.run("INSERT INTO t VALUES (3)")
    db.assert_differential("counted")


def test_history_has_triggers_take_the_place_of_the_log(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.create("counted", "SELECT count(*) AS n FROM t")
    eventually(from_log(db, "t"), PATIENCE)
    db.run("INSERT INTO t VALUES (1)")
    db.run("ALTER TABLE t SET (RETAIN HISTORY FOR '1 minute')")
    assert modes(db)["t"] == ("TRIGGER", "wal_not_possible: a subscription or a history follows it")
    assert db.value("SELECT relreplident::text FROM pg_class WHERE oid = 't'::regclass") == "d"
    db.run("INSERT INTO t VALUES (2)")
    db.assert_differential("counted")
    db.run("ALTER TABLE t RESET (RETAIN HISTORY)")
    eventually(from_log(db, "t"), PATIENCE)
    db.run("INSERT INTO t VALUES (3)")
    db.assert_differential("counted")


def test_subscriber_has_triggers_take_the_place_of_the_log(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    db.create("counted", "SELECT count(*) AS n FROM t")
    eventually(from_log(db, "t"), PATIENCE)
    for number in (2, 3):
        subscriber = db.connect(autocommit=False)
        subscriber.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT id FROM t)")
        followed = {row[-1] for row in subscriber.execute("FETCH ALL c")}
        assert modes(db)["t"] == ("TRIGGER", "wal_not_possible: a subscription or a history follows it")
        assert followed == set(range(1, number))
        db.run("INSERT INTO t VALUES (%s)", number)
        assert [row[-1] for row in subscriber.execute("FETCH ALL c")] == [number]
        db.assert_differential("counted")
        subscriber.close()  # the last one: what is written next pays nothing again
        eventually(from_log(db, "t"), PATIENCE)
        assert db.rows("SELECT tgname FROM pg_trigger WHERE tgrelid = 't'::regclass") == []


def test_subscriber_of_a_stream_table_leaves_its_sources_to_the_log(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.create("counted", "SELECT count(*) AS n FROM t")
    eventually(from_log(db, "t"), PATIENCE)
    subscriber = db.connect(autocommit=False)
    subscriber.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT n FROM counted)")
    assert [row[-1] for row in subscriber.execute("FETCH ALL c")] == [0]
    db.run("INSERT INTO t VALUES (1)")
    db.assert_differential("counted")
    assert sorted(row[-2:] for row in subscriber.execute("FETCH ALL c")) == [(-1, 0), (1, 1)]
    assert from_log(db, "t")()


def test_what_cannot_be_captured_from_the_log(db: Database, eventually: Eventually) -> None:
    db.run(
        "CREATE TABLE p (id int, k int) PARTITION BY LIST (id); CREATE UNLOGGED TABLE p1 PARTITION OF p DEFAULT;"
        "CREATE UNLOGGED TABLE u (id int);"
        "CREATE TABLE h (id int); CREATE UNLOGGED TABLE h1 () INHERITS (h);"
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE TYPE pair AS (a positive, b int);"
        "CREATE TABLE c (id int, pair pair); CREATE TABLE d (id positive)"
    )
    for table, column, why in (
        ("p", "id", '"public.p1" is not logged.'),
        ("u", "id", '"public.u" is not logged.'),
        ("h", "id", '"public.h1" is not logged.'),
        ("c", "(pair).b", 'column "pair" of "public.c" is of type public.pair.'),
    ):
        query = f"SELECT {column} AS x, count(*) AS n FROM {table} GROUP BY 1"
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            db.create(f"of_{table}", query, cdc_mode="wal")
        assert (
            refused.value.diag.message_primary
            == f'changes of "public.{table}" cannot be captured from the write-ahead log'
        )
        assert refused.value.diag.message_detail == why
        db.create(f"of_{table}", query)
        assert modes(db)[table] == ("TRIGGER", "wal_not_possible: " + why.rstrip("."))
    db.create("of_d", "SELECT id, count(*) AS n FROM d GROUP BY 1", cdc_mode="wal")
    eventually(from_log(db, "d"), PATIENCE)
    db.run("INSERT INTO d VALUES (3)")
    db.assert_differential("of_d")


def test_stored_generated_columns(db: Database, eventually: Eventually) -> None:
    db.run(
        "CREATE TABLE g (id int PRIMARY KEY, v text, twice int GENERATED ALWAYS AS (id * 2) STORED,"
        " big text GENERATED ALWAYS AS (repeat(v, 3000)) STORED); ALTER TABLE g ALTER big SET STORAGE EXTERNAL;"
        "INSERT INTO g SELECT i, 'v' || i FROM generate_series(1, 9) i"
    )
    query = "SELECT twice, md5(big) AS big, count(*) AS n FROM g GROUP BY 1, 2"
    if db.connection.info.server_version < 180000:
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            db.create("generated", query, cdc_mode="wal")
        why = 'column "twice" of "public.g" is generated, which PostgreSQL publishes from version 18 on.'
        assert refused.value.diag.message_detail == why
        query = "SELECT id, v FROM g"
    db.create("generated", query, cdc_mode="wal")
    eventually(from_log(db, "g"), PATIENCE)
    db.run("UPDATE g SET v = 'w' WHERE id < 3; UPDATE g SET id = 100 WHERE id = 3; DELETE FROM g WHERE id = 4")
    db.assert_differential("generated")
    db.run("INSERT INTO g VALUES (50, NULL); UPDATE g SET id = id + 1000; TRUNCATE g; INSERT INTO g VALUES (7, 'z')")
    db.assert_refreshed("generated")
    assert from_log(db, "g")()


def test_virtual_column_that_comes_later_has_triggers_take_the_place_of_the_log(
    db: Database, eventually: Eventually
) -> None:
    """PostgreSQL would refuse UPDATE and DELETE of the table otherwise."""
    if db.connection.info.server_version < 180000:
        pytest.skip("virtual columns are there from PostgreSQL 18 on")
    db.run("CREATE TABLE p (id int); CREATE TABLE h (twice int GENERATED ALWAYS AS (id * 2) VIRTUAL) INHERITS (p)")
    with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
        db.create("of_p", "SELECT count(*) AS n FROM p", cdc_mode="wal")
    virtual = "is generated and virtual, which PostgreSQL does not publish"
    assert refused.value.diag.message_detail == f'column "twice" of "public.h" {virtual}.'
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    db.create("copy", "SELECT id, v FROM t")
    eventually(from_log(db, "t"), PATIENCE)
    db.run("BEGIN; DELETE FROM t WHERE id = 3")
    db.run("ALTER TABLE t ADD twice int GENERATED ALWAYS AS (v * 2) VIRTUAL; UPDATE t SET v = 5 WHERE id = 1; COMMIT")
    db.run("UPDATE t SET v = v + 1; DELETE FROM t WHERE id = 2")
    db.assert_refreshed("copy")
    assert modes(db)["t"] == ("TRIGGER", f'wal_not_possible: column "twice" of "public.t" {virtual}')
    db.run("UPDATE t SET v = v + 1")
    db.assert_differential("copy")
    db.run("ALTER TABLE t DROP twice")
    eventually(from_log(db, "t"), PATIENCE)


def test_publications_of_others_that_old_rows_do_not_go_with(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int, twice int GENERATED ALWAYS AS (id * 2) STORED)")
    db.run("INSERT INTO t VALUES (1, 1)")
    db.create("copy", "SELECT id, v FROM t")
    eventually(from_log(db, "t"), PATIENCE)
    publications = [("FOR TABLE t (id)", 'holds some columns of "public.t" only')]
    if db.connection.info.server_version >= 180000:
        left_out = 'leaves out the generated columns of "public.t"'
        publications += [("FOR ALL TABLES", left_out), ("FOR TABLES IN SCHEMA public", left_out)]
    for what, why in publications:
        db.run(f"CREATE PUBLICATION another {what}")
        alert = f'wal_not_possible: publication "another" {why}, which does not go with REPLICA IDENTITY FULL'
        eventually(lambda alert=alert: modes(db)["t"] == ("TRIGGER", alert), PATIENCE)
        db.run("UPDATE t SET v = v + 1")
        db.assert_differential("copy")
        db.run("DROP PUBLICATION another")
        eventually(from_log(db, "t"), PATIENCE)
    db.run("CREATE PUBLICATION another FOR TABLE t WHERE (v > 0) WITH (publish = 'insert')")
    db.run("INSERT INTO t VALUES (2, 2)")
    db.assert_differential("copy")
    assert from_log(db, "t")()
    db.run("DROP PUBLICATION another")


def test_one_stream_table_that_wants_triggers_has_them(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.create("counted", "SELECT count(*) AS n FROM t", cdc_mode="auto")
    eventually(from_log(db, "t"), PATIENCE)
    db.create("summed", "SELECT sum(id) AS n FROM t", cdc_mode="trigger")
    eventually(by_triggers(db, "t"), PATIENCE)
    db.run("INSERT INTO t VALUES (1)")
    db.assert_refreshed("counted", "summed")
    db.run("SELECT pgtrickle.create_or_replace_stream_table('summed', 'SELECT sum(id) AS n FROM t', cdc_mode => 'wal')")
    assert db.state("summed")["requested_cdc_mode"] == "wal"
    eventually(from_log(db, "t"), PATIENCE)


def test_transition_waits_for_writers_and_is_given_up(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.create("counted", "SELECT count(*) AS n FROM t", cdc_mode="trigger")
    with db.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO t VALUES (1)")
        db.run("SELECT pgtrickle.alter_stream_table('counted', cdc_mode => 'wal')")
        eventually(lambda: modes(db)["t"][0] == "TRANSITIONING", PATIENCE)
        assert db.value("SELECT cdc_mode FROM pgtrickle.pgt_cdc_status") == "transitioning"
        eventually(lambda: "wal_not_possible" in (modes(db)["t"][1] or ""), PATIENCE)
        assert modes(db)["t"][0] == "TRIGGER"
        assert db.value("SELECT cdc_mode FROM pgtrickle.pgt_cdc_status") == "trigger"
    eventually(from_log(db, "t"), PATIENCE)
    db.assert_differential("counted")


def test_monitoring_shows_slot_and_mode(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE idle (id int)")
    db.create("counted", "SELECT count(*) AS n FROM t")
    eventually(from_log(db, "t"), PATIENCE)
    source, slot = db.value("SELECT 't'::regclass::oid::bigint"), db.value("SELECT pgtrickle._wal_slot()")
    ((name, relid, active, retained, status),) = db.rows("SELECT * FROM pgtrickle.slot_health()")
    assert (name, relid, active, status) == (slot, source, True, "reserved")
    assert retained >= 0
    ((*found, lag, confirmed),) = db.rows(
        "SELECT source_relid, source_table, cdc_mode, slot_name, alert, lag_bytes, confirmed_lsn"
        " FROM pgtrickle.check_cdc_health()"
    )
    assert found == [source, "public.t", "WAL", slot, None]
    assert lag >= 0 and "/" in confirmed
    db.run("INSERT INTO t VALUES (0)")
    db.assert_differential("counted")
    assert db.rows(
        "SELECT c.cdc_mode, c.slot_name, c.decoder_confirmed_lsn >= t.last_consumed_lsn AND t.last_consumed_lsn > '0/0'"
        " FROM pgtrickle.pgt_cdc_status c JOIN pgtrickle.pgt_change_tracking t USING (source_relid)"
    ) == [("wal", slot, True)]
    assert db.rows("SELECT * FROM pgtrickle.trigger_inventory()") == []
    # Who writes elsewhere does not have the log kept: the slot follows.
    db.run("INSERT INTO idle SELECT generate_series(1, 20000)")
    written = db.value("SELECT pg_current_wal_lsn()::text")
    eventually(
        lambda: db.value("SELECT confirmed_lsn::pg_lsn >= %s::pg_lsn FROM pgtrickle.check_cdc_health()", written)
    )
    with db.connect(autocommit=False) as writer:  # what it has written is kept until it has ended
        writer.execute("INSERT INTO t VALUES (1)")
        db.run("INSERT INTO idle SELECT generate_series(1, 40000)")
        db.run("SET pg_trickle.slot_lag_warning_threshold_mb = 1")
        retained = "SELECT retained_wal_bytes > 1048576 FROM pgtrickle.slot_health()"
        eventually(lambda: db.value(retained), PATIENCE)
        assert db.rows("SELECT severity FROM pgtrickle.health_check() WHERE check_name = 'slot_lag'") == [("WARN",)]
        alert = "SELECT alert FROM pgtrickle.check_cdc_health()"
        assert db.value(alert) is None
        db.run("SET pg_trickle.slot_lag_critical_threshold_mb = 1")

        def lags() -> bool:  # until the slot has followed, which it soon has
            db.run("INSERT INTO idle SELECT generate_series(1, 40000)")
            return bool(db.value(alert) == "slot_lag_exceeds_threshold")

        eventually(lags, what="more than 1 MB that is not confirmed")
    db.run("RESET pg_trickle.slot_lag_warning_threshold_mb; RESET pg_trickle.slot_lag_critical_threshold_mb")


def test_nothing_is_left_when_nobody_needs_the_log(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE t (id int, v text); CREATE UNIQUE INDEX t_id ON t (id); ALTER TABLE t ALTER id SET NOT NULL")
    db.run("ALTER TABLE t REPLICA IDENTITY USING INDEX t_id")
    db.create("counted", "SELECT count(*) AS n FROM t")
    eventually(from_log(db, "t"), PATIENCE)
    assert db.value("SELECT relreplident::text FROM pg_class WHERE oid = 't'::regclass") == "f"
    db.run("SELECT pgtrickle.drop_stream_table('counted')")
    assert db.value("SELECT relreplident::text FROM pg_class WHERE oid = 't'::regclass") == "i"
    eventually(lambda: db.rows("SELECT FROM pg_replication_slots WHERE slot_name = pgtrickle._wal_slot()") == [])
    eventually(lambda: db.rows("SELECT FROM pg_publication") == [])


def _connected(server: Headwater) -> Database | None:
    with suppress(psycopg.OperationalError):
        return Database(server, "postgres")
    return None


@pytest.mark.long
def test_log_that_is_gone_is_given_up(own_server: Headwater, eventually: Eventually) -> None:
    """A transaction that stays open has the slot keep more of the log than PostgreSQL is told to keep."""
    db = Database(own_server, "postgres")
    for setting in ("max_slot_wal_keep_size = '16MB'", "min_wal_size = '32MB'", "max_wal_size = '48MB'"):
        db.run(f"ALTER SYSTEM SET {setting}")
    db.run("SELECT pg_reload_conf(); CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE idle (v text)")
    db.run("ALTER DATABASE postgres SET pg_trickle.wal_transition_timeout = 1")
    db.create("counted", "SELECT count(*) AS n FROM t", cdc_mode="wal")
    eventually(from_log(db, "t"), PATIENCE)
    with db.connect(autocommit=False) as open_for_long:
        open_for_long.execute("INSERT INTO t VALUES (1)")

        def lost() -> bool:
            db.run("INSERT INTO idle SELECT repeat(md5(i::text), 50) FROM generate_series(1, 20000) i; CHECKPOINT")
            return bool("replication slot dropped" in own_server.log)

        eventually(lost)
    db.run("INSERT INTO t VALUES (2)")
    db.assert_refreshed("counted")
    eventually(from_log(db, "t"), PATIENCE)
    db.run("INSERT INTO t VALUES (3)")
    db.assert_refreshed("counted")
    db.close()


BEGUN = re.compile(rb"\[(\d+)\] .* LOG:  statement: BEGIN ISOLATION LEVEL (\w+ \w+)")
REFRESHED = re.compile(rb"\[(\d+)\] .* LOG:  execute \S+: SELECT pgtrickle\._begin_refresh\(")


def test_scheduled_refresh_begins_once(own_server: Headwater, eventually: Eventually) -> None:
    """A REPEATABLE READ transaction would find that it cannot see all of the log, and be for nothing."""
    db = Database(own_server, "postgres")
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.create("counted", "SELECT count(*) AS n FROM t", cdc_mode="wal", schedule="1s")
    eventually(from_log(db, "t"), PATIENCE)
    db.run("ALTER SYSTEM SET log_statement = 'all'")
    db.run("SELECT pg_reload_conf()")

    def written(number: int) -> None:
        db.run("INSERT INTO t VALUES (%s)", number)
        eventually(lambda: db.value("SELECT n FROM counted") == number)

    written(1)  # by then a look has seen how its source is captured
    log = own_server.data / db.value("SELECT pg_current_logfile()")
    start = log.stat().st_size
    for number in range(2, 8):
        written(number)
    began: dict[bytes, bytes] = {}
    transactions = []
    at = 0
    for line in log.read_bytes().splitlines(keepends=True):  # from its start: a transaction may have begun before
        at += len(line)
        if (found := BEGUN.search(line)) is not None:
            began[found[1]] = found[2]
        elif at > start and (found := REFRESHED.search(line)) is not None:
            transactions.append(began[found[1]])
    assert len(transactions) >= 6 and set(transactions) == {b"read committed"}
    db.close()


@pytest.mark.parametrize("rounds", [1, pytest.param(40, marks=pytest.mark.long)])
def test_killed_processes_lose_nothing(own_server: Headwater, eventually: Eventually, rounds: int) -> None:
    """Server and PostgreSQL are killed while tables are written; what was delivered is neither lost nor there twice."""
    chance = random.Random(rounds)
    db = Database(own_server, "postgres")
    create_all(db, cdc_mode="wal")
    eventually(from_log(db, "a", "b", "k"), PATIENCE)
    generations = db.rows("SELECT source_relid, generation FROM pgtrickle.pgt_captures ORDER BY 1")
    for number in range(rounds):
        with Writers(lambda: psycopg.connect(own_server.direct_dsn()), seed=number):
            end = time.monotonic() + 0.5 + chance.random()
            while time.monotonic() < end:
                refresh_all(db)
            if number % 2:
                own_server.kill()  # PostgreSQL goes with it, at once
                own_server.start()
            else:  # PostgreSQL ends all sessions, and recovers
                pump = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = pgtrickle._wal_slot()"
                os.kill(db.value(pump), signal.SIGKILL)
        db = eventually(lambda: _connected(own_server), PATIENCE)
        eventually(from_log(db, "a", "b", "k"), PATIENCE)
        db.assert_refreshed(*QUERIES)
    assert db.rows("SELECT source_relid, generation FROM pgtrickle.pgt_captures ORDER BY 1") == generations
    db.close()
