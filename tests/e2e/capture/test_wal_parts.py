"""Capture from the write-ahead log of sources of several tables: partitions and inheritance children."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import psycopg
import pytest

from tests.e2e.capture.test_wal import PATIENCE, Writers, db, from_log, modes, wal_db
from tests.e2e.conftest import Database

Eventually = Callable[..., Any]

__all__ = ["db", "wal_db"]

PARTITIONED = (
    "CREATE TABLE p (id int, k int, v text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);"
    "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
    "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k);"
    "CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN (11, 12); CREATE TABLE p2b PARTITION OF p2 DEFAULT;"
    # Its columns have another order, and one of them has gone.
    "CREATE TABLE p3 (v text, gone int, k int NOT NULL, id int NOT NULL); ALTER TABLE p3 DROP gone;"
    "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30);"
    "INSERT INTO p SELECT n, n, 'v' || n % 4 FROM generate_series(0, 29) n"
)
INHERITED = (
    "CREATE TABLE p (id int, k int, v text); CREATE TABLE p1 (more int) INHERITS (p); CREATE TABLE p3 () INHERITS (p1);"
    "INSERT INTO p SELECT n, n, 'v' || n % 4 FROM generate_series(0, 9) n; INSERT INTO p1 VALUES (10, 1, 'child', 7);"
    "INSERT INTO p3 VALUES (11, 22, 'grandchild', 8)"
)


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@pytest.fixture
def partitioned(db: Database, eventually: Eventually) -> Database:
    return captured(db, PARTITIONED, eventually)


@pytest.fixture
def inherited(db: Database, eventually: Eventually) -> Database:
    return captured(db, INHERITED, eventually)


def captured(db: Database, tables: str, eventually: Eventually) -> Database:
    db.run(tables)
    db.create("copy", "SELECT id, k, v FROM p", refresh_mode="DIFFERENTIAL", cdc_mode="wal")
    db.create("counts", "SELECT v, count(*) AS n, sum(k) AS s FROM p GROUP BY v", refresh_mode="DIFFERENTIAL")
    eventually(from_log(db, "p"), PATIENCE)
    assert db.rows("SELECT tgrelid::regclass FROM pg_trigger WHERE tgname ~ 'pg_trickle_(cdc|count|updates|pin)'") == []
    return db


def identities(db: Database) -> dict[str, str]:
    return dict(
        db.rows(
            "SELECT relname, relreplident::text FROM pg_class"
            " WHERE relnamespace = 'public'::regnamespace AND relname ~ '^p' AND relkind = 'r'"
        )
    )


def test_statements_on_the_whole_and_on_partitions(partitioned: Database) -> None:
    for change in (
        "INSERT INTO p VALUES (100, 5, 'a'), (101, 15, 'b'), (102, 25, 'c'); UPDATE p SET v = v || '+'",
        "UPDATE p SET k = (k + 10) % 30",  # each row goes to another partition
        "INSERT INTO p1 VALUES (200, 1, 'd'); DELETE FROM p2a; UPDATE p2b SET v = 'e'; UPDATE p3 SET v = NULL",
        "MERGE INTO p USING (VALUES (0, 21), (1, 12)) AS s (id, k) ON p.id = s.id WHEN MATCHED THEN UPDATE SET k = s.k",
        "DELETE FROM p WHERE id % 3 = 0",
    ):
        partitioned.run(change)
        partitioned.assert_differential("copy")
        partitioned.assert_differential("counts")
    assert from_log(partitioned, "p")()


@pytest.mark.parametrize("emptied", ["p", "p2", "p2a", "p3"])
@pytest.mark.one_in(2)
def test_partition_or_root_is_truncated(partitioned: Database, emptied: str) -> None:
    partitioned.run(f"TRUNCATE {emptied}; INSERT INTO p VALUES (1, 11, 'new')")
    partitioned.assert_refreshed("copy", "counts")
    partitioned.run("UPDATE p SET v = 'x'")
    partitioned.assert_differential("copy")
    assert from_log(partitioned, "p")()


def test_statements_on_inheritance_children(inherited: Database) -> None:
    for change in (
        "UPDATE p SET v = v || '+'; DELETE FROM p WHERE id = 3; INSERT INTO p3 VALUES (20, 2, 'x', 1)",
        "UPDATE ONLY p SET k = k + 1; UPDATE p1 SET more = 5; UPDATE p3 SET k = 7",
        "DELETE FROM p1",
    ):
        inherited.run(change)
        inherited.assert_differential("copy")
        inherited.assert_differential("counts")
    inherited.run("TRUNCATE ONLY p")
    inherited.assert_refreshed("copy", "counts")
    inherited.run("INSERT INTO p1 VALUES (30, 3, 'y', 2); INSERT INTO p VALUES (31, 3, 'y')")
    inherited.assert_differential("copy")
    inherited.run("ALTER TABLE p3 NO INHERIT p1; INSERT INTO p3 VALUES (32, 3, 'away', 2)")
    inherited.assert_refreshed("copy", "counts")
    assert identities(inherited)["p3"] == "d"


@pytest.mark.parametrize(
    "change",
    [
        "CREATE TABLE p4 PARTITION OF p FOR VALUES FROM (30) TO (40); INSERT INTO p4 VALUES (400, 31, 'new')",
        "CREATE TABLE p4 (LIKE p INCLUDING ALL); INSERT INTO p4 VALUES (400, 31, 'new');"
        " ALTER TABLE p ATTACH PARTITION p4 FOR VALUES FROM (30) TO (40)",
        "INSERT INTO p1 VALUES (500, 1, 'before'); ALTER TABLE p DETACH PARTITION p1;"
        " INSERT INTO p1 VALUES (501, 2, 'after')",
        "DELETE FROM p3; DROP TABLE p3",
    ],
    ids=["created", "attached", "detached", "dropped"],
)
@pytest.mark.one_in(2)
def test_partition_comes_or_goes(partitioned: Database, eventually: Eventually, change: str) -> None:
    db = partitioned
    db.run(change)
    db.assert_refreshed("copy", "counts")
    eventually(from_log(db, "p"), PATIENCE)
    parts = {name for (name,) in db.rows("SELECT relid::regclass::text FROM pg_partition_tree('p') WHERE isleaf")}
    assert {name: identity == "f" for name, identity in identities(db).items()} == {
        name: name in parts for name in identities(db)
    }
    db.run("INSERT INTO p VALUES (600, 11, 'x'); UPDATE p SET v = v || '-'; DELETE FROM p WHERE k = 31")
    db.assert_differential("copy")
    db.assert_differential("counts")


@pytest.mark.parametrize("part", ["p1", "p2b"])
@pytest.mark.parametrize(
    "fault",
    [
        "ALTER TABLE {} REPLICA IDENTITY DEFAULT",
        "ALTER PUBLICATION pgtrickle_cdc DROP TABLE {}",
        pytest.param("ALTER PUBLICATION pgtrickle_cdc SET TABLE {} WHERE (id > 5)", marks=pytest.mark.long),
        pytest.param("ALTER PUBLICATION pgtrickle_cdc SET (publish_via_partition_root = true)", marks=pytest.mark.long),
    ],
)
def test_what_may_have_been_missed_of_a_partition_is_computed_anew(
    partitioned: Database, eventually: Eventually, part: str, fault: str
) -> None:
    db = partitioned
    db.run(fault.format(part))
    db.run(f"UPDATE {part} SET v = 'changed'; DELETE FROM {part} WHERE id = 5 OR id = 13")
    db.assert_refreshed("copy", "counts")
    eventually(from_log(db, "p"), PATIENCE)
    db.run("UPDATE p SET k = (k + 10) % 30")
    db.assert_differential("copy")


def test_partition_whose_old_rows_were_not_logged_for_a_moment(partitioned: Database, eventually: Eventually) -> None:
    """Nobody has looked meanwhile: the log itself says so."""
    db = partitioned
    db.run(
        "BEGIN; ALTER TABLE p1 REPLICA IDENTITY DEFAULT; DELETE FROM p1 WHERE id = 1;"
        " UPDATE p1 SET v = 'z' WHERE id = 2; ALTER TABLE p1 REPLICA IDENTITY FULL; COMMIT"
    )
    db.assert_refreshed("copy", "counts")
    eventually(from_log(db, "p"), PATIENCE)


def test_what_partitions_had_comes_back(partitioned: Database, eventually: Eventually) -> None:
    db = partitioned
    db.run("SELECT pgtrickle.alter_stream_table('copy', cdc_mode => 'trigger')")
    eventually(lambda: modes(db)["p"] == ("TRIGGER", None), PATIENCE)
    assert set(identities(db).values()) == {"d"}
    db.run("CREATE UNIQUE INDEX p1_id ON p1 (id); ALTER TABLE p1 ALTER id SET NOT NULL")
    db.run("ALTER TABLE p1 REPLICA IDENTITY USING INDEX p1_id; ALTER TABLE p2a REPLICA IDENTITY NOTHING")
    db.run("SELECT pgtrickle.alter_stream_table('copy', cdc_mode => 'wal')")
    eventually(from_log(db, "p"), PATIENCE)
    assert set(identities(db).values()) == {"f"}
    db.run("UPDATE p SET k = (k + 10) % 30")
    db.assert_differential("copy")
    db.run("SELECT pgtrickle.drop_stream_table('copy'); SELECT pgtrickle.drop_stream_table('counts')")
    eventually(lambda: identities(db) == {"p1": "i", "p2a": "n", "p2b": "d", "p3": "d"})
    eventually(lambda: db.rows("SELECT FROM pg_publication") == [])


def test_captured_table_becomes_a_partition(partitioned: Database, eventually: Eventually) -> None:
    db = partitioned
    db.run("CREATE TABLE lone (id int, k int, v text, PRIMARY KEY (id, k)); INSERT INTO lone VALUES (700, 45, 'x')")
    db.create("alone", "SELECT id, v FROM lone")
    eventually(from_log(db, "lone"), PATIENCE)
    db.run("ALTER TABLE p ATTACH PARTITION lone FOR VALUES FROM (40) TO (50); INSERT INTO p VALUES (701, 46, 'y')")
    db.assert_refreshed("alone", "copy", "counts")
    eventually(from_log(db, "p"), PATIENCE)
    assert "lone" not in modes(db)
    db.run("INSERT INTO p VALUES (702, 47, 'z'); DELETE FROM lone WHERE id = 700; UPDATE p SET v = 'all'")
    db.assert_refreshed("alone")
    db.assert_differential("copy")
    db.run("SELECT pgtrickle.drop_stream_table(x) FROM (VALUES ('copy'), ('counts'), ('alone')) AS s (x)")
    eventually(lambda: db.value("SELECT relreplident::text FROM pg_class WHERE relname = 'lone'") == "d")


class PartitionWriters(Writers):
    """The same for the partitioned table: rows that move, and statements on parts."""

    @staticmethod
    def _statement(chance: random.Random) -> str:
        i, k, part = chance.randrange(60), chance.randrange(30), chance.choice(["p", "p", "p1", "p2", "p2b", "p3"])
        return chance.choice(
            [
                f"INSERT INTO p VALUES ({i}, {k}, 'v{i % 4}') ON CONFLICT DO NOTHING",
                f"DELETE FROM {part} WHERE id = {i}",
                f"UPDATE {part} SET v = 'w' || id % 3 WHERE id > {i}",
                f"UPDATE p SET k = {k} WHERE id = {i} AND NOT EXISTS (SELECT FROM p q WHERE q.id = {i} AND q.k = {k})",
            ]
        )


@pytest.mark.long
@pytest.mark.parametrize("turns", [1, 15])
def test_partitions_come_and_go_while_tables_are_written(
    partitioned: Database, eventually: Eventually, turns: int
) -> None:
    db = partitioned
    db.run("CREATE TABLE a (id int); CREATE TABLE k (id int); CREATE TABLE spare (LIKE p INCLUDING ALL)")
    with PartitionWriters(lambda: psycopg.connect(db.server.direct_dsn(db.name)), seed=turns):
        for turn in range(turns):
            for change in (
                f"CREATE TABLE p9_{turn} PARTITION OF p FOR VALUES FROM ({100 + turn}) TO ({101 + turn})",
                "ALTER TABLE p ATTACH PARTITION spare FOR VALUES FROM (50) TO (60)",
                "INSERT INTO p VALUES (1000, 55, 'spare')",
                "ALTER TABLE p DETACH PARTITION spare; TRUNCATE spare",
            ):
                eventually(lambda change=change: _done(db, change))
                eventually(lambda: _refreshed(db) and from_log(db, "p")(), PATIENCE)
    db.assert_refreshed("copy", "counts")
    assert set(identities(db)) - {name for name, identity in identities(db).items() if identity == "f"} == set()
    assert db.value("SELECT relreplident::text FROM pg_class WHERE relname = 'spare'") == "d"


def _done(db: Database, change: str) -> bool:
    with suppress(psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable):
        db.run(change)
        return True
    return False


def _refreshed(db: Database) -> bool:
    with suppress(
        psycopg.errors.DeadlockDetected, psycopg.errors.LockNotAvailable, psycopg.errors.SerializationFailure
    ):
        db.refresh("copy")
        db.refresh("counts")
        return True
    return False


def test_transaction_that_has_changed_a_partition_cannot_refresh(partitioned: Database) -> None:
    partitioned.run("BEGIN; INSERT INTO p2a VALUES (1, 11, 'own')")
    with pytest.raises(psycopg.errors.ObjectInUse, match="changed by this transaction"):
        partitioned.refresh("copy")
    partitioned.run("ROLLBACK")
