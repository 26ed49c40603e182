"""Partitioned sources: statements on the whole and on its parts, parts that come and go, rows that move."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.e2e.conftest import Database


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture
def p(db: Database) -> Database:
    db.run(
        "CREATE TABLE p (id int, k int, v int, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20) PARTITION BY LIST (k);"
        "CREATE TABLE p2a PARTITION OF p2 FOR VALUES IN (11, 12); CREATE TABLE p2b PARTITION OF p2 DEFAULT;"
        "INSERT INTO p SELECT n, n, n % 4 FROM generate_series(0, 19) n"
    )
    db.create("copy", "SELECT id, k, v FROM p")
    db.create("sums", "SELECT v, count(*) AS n, sum(k) AS s FROM p GROUP BY v")
    return db


def test_through_the_parent(p: Database) -> None:
    p.run("INSERT INTO p VALUES (100, 5, 1), (101, 15, 1); UPDATE p SET v = v + 1; DELETE FROM p WHERE id = 3")
    p.assert_differential("copy")
    p.assert_differential("sums")


def test_row_moved_to_another_partition(p: Database) -> None:
    p.run("UPDATE p SET k = k + 5 WHERE k < 10")
    p.assert_differential("copy")
    p.assert_differential("sums")


def test_merge_that_updates_after_it_has_inserted(p: Database) -> None:
    """PostgreSQL puts the inserted row in the place of the updated one, if there is nothing to keep it from that."""
    p.run(
        "MERGE INTO p USING (VALUES (100, 5), (2, 2), (101, 11), (11, 11), (12, 12)) AS m(id, k) ON p.id = m.id"
        " WHEN MATCHED THEN UPDATE SET v = p.v + 10 WHEN NOT MATCHED THEN INSERT VALUES (m.id, m.k, 7)"
    )
    p.assert_differential("copy")
    p.assert_differential("sums")


def test_partition_named_directly(p: Database) -> None:
    p.run(
        "INSERT INTO p1 VALUES (200, 1, 1); DELETE FROM p2a; UPDATE p2b SET v = 77; INSERT INTO p2 VALUES (201, 11, 1)"
    )
    with p.connection.cursor() as cursor, cursor.copy("COPY p1 FROM STDIN") as copy:
        copy.write_row((202, 2, 2))
    p.assert_differential("copy")
    p.assert_differential("sums")


def test_partition_truncated(p: Database) -> None:
    p.run("TRUNCATE p2a")
    p.assert_refreshed("copy", "sums")


def test_parent_truncated(p: Database) -> None:
    p.run("TRUNCATE p; INSERT INTO p VALUES (1, 1, 1)")
    p.assert_refreshed("copy", "sums")


def test_attach_partition_with_rows(p: Database) -> None:
    p.run(
        "CREATE TABLE p3 (id int NOT NULL, k int NOT NULL, v int, PRIMARY KEY (id, k));"
        " INSERT INTO p3 VALUES (300, 25, 1)"
    )
    p.run("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30)")
    p.assert_refreshed("copy", "sums")
    p.run("INSERT INTO p3 VALUES (301, 26, 1); INSERT INTO p VALUES (302, 27, 1)")
    p.assert_refreshed("copy", "sums")
    assert p.value("SELECT count(*) FROM copy WHERE k >= 20") == 3


def test_new_partition(p: Database) -> None:
    p.run("CREATE TABLE p4 PARTITION OF p FOR VALUES FROM (30) TO (40); INSERT INTO p4 VALUES (400, 31, 1)")
    p.assert_refreshed("copy", "sums")
    p.run("INSERT INTO p4 VALUES (401, 32, 1)")
    p.assert_refreshed("copy", "sums")


def test_detach_partition(p: Database) -> None:
    p.run("INSERT INTO p1 VALUES (500, 1, 1); ALTER TABLE p DETACH PARTITION p1")
    p.assert_refreshed("copy", "sums")
    p.run("INSERT INTO p1 VALUES (501, 2, 2); DELETE FROM p WHERE id = 11")
    p.assert_refreshed("copy", "sums")


def test_partition_that_is_being_detached_concurrently(p: Database, eventually: Callable[..., Any]) -> None:
    """Nobody reads it any more while DETACH waits for an older transaction."""
    with ThreadPoolExecutor() as pool, p.bypass(autocommit=False) as older:
        older.execute("LOCK TABLE ONLY p IN ACCESS SHARE MODE")
        detached = pool.submit(p.bypass().execute, "ALTER TABLE p DETACH PARTITION p1 CONCURRENTLY")
        eventually(lambda: p.value("SELECT bool_or(inhdetachpending) FROM pg_inherits"))
        p.assert_refreshed("copy", "sums")
        assert p.value("SELECT count(*) FROM copy WHERE k < 10") == 0
        p.run("INSERT INTO p1 VALUES (510, 1, 1); DELETE FROM p WHERE id = 11")
        p.assert_refreshed("copy", "sums")
        older.commit()
        detached.result(60)
    p.run("INSERT INTO p1 VALUES (511, 2, 2)")
    p.assert_refreshed("copy", "sums")


def test_drop_partition(p: Database) -> None:
    p.run("DROP TABLE p1")
    p.assert_refreshed("copy", "sums")


def test_stream_table_over_one_partition(p: Database) -> None:
    try:
        p.create("part", "SELECT id, v FROM p2a", refresh_mode="DIFFERENTIAL")
    except psycopg.errors.FeatureNotSupported as error:
        assert "p2a" in str(error)
        p.create("part", "SELECT id, v FROM p2a")
    p.run("INSERT INTO p VALUES (600, 12, 1); UPDATE p SET v = 9 WHERE k = 13; DELETE FROM p2a WHERE k = 17")
    p.assert_refreshed("part")


def test_tracked_table_becomes_a_partition(p: Database, eventually: Callable[..., Any]) -> None:
    """Its changes can be made unseen: they are captured no more, and refreshes compute the whole query."""
    p.run(
        "CREATE TABLE lone (id int NOT NULL, k int NOT NULL, v int, PRIMARY KEY (id, k));"
        " INSERT INTO lone VALUES (700, 45, 1)"
    )
    p.create("alone", "SELECT id, v FROM lone")
    p.run("ALTER TABLE p ATTACH PARTITION lone FOR VALUES FROM (40) TO (50); INSERT INTO p VALUES (701, 46, 2)")
    p.assert_refreshed("alone", "copy")
    buffer = "SELECT to_regclass('pgtrickle_changes.changes_' || 'lone'::regclass::oid)::text"
    eventually(lambda: p.value(buffer) is None, what="the end of the capture")
    p.run("INSERT INTO p VALUES (702, 47, 2); DELETE FROM lone WHERE id = 700")
    p.assert_refreshed("alone", "copy")


@pytest.fixture
def parts(db: Database) -> Database:
    db.run("CREATE TABLE parts (id int, k int, v text) PARTITION BY LIST (k)")
    for k in (1, 2):
        db.run(f"CREATE TABLE parts_{k} PARTITION OF parts FOR VALUES IN ({k})")
    db.run("INSERT INTO parts SELECT n, 1 + n % 2, 'v' || n % 3 FROM generate_series(1, 10) AS n")
    db.create("kept", "SELECT k, v, count(*) AS n FROM parts GROUP BY k, v")
    return db


@pytest.mark.parametrize(
    "merge",
    [
        "WHEN MATCHED THEN UPDATE SET k = s.k",
        "WHEN MATCHED THEN UPDATE SET k = s.k WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.k, 'new')",
        "WHEN MATCHED AND s.id = 3 THEN DELETE WHEN MATCHED THEN UPDATE SET k = s.k",
        "WHEN MATCHED AND s.id = 3 THEN UPDATE SET v = 'x' WHEN MATCHED THEN UPDATE SET k = 3 - t.k",
    ],
)
@pytest.mark.one_in(2)
def test_merge_that_moves_rows_is_refused(parts: Database, merge: str) -> None:
    statement = (
        f"MERGE INTO parts AS t USING (VALUES (1, 1), (2, 2), (3, 2), (70, 1)) AS s (id, k) ON t.id = s.id {merge}"
    )
    with pytest.raises(errors.FeatureNotSupported, match=r'MERGE that moves rows of "public\.parts"'):
        parts.run(statement)
    parts.assert_refreshed("kept")
    parts.run("SELECT pgtrickle.drop_stream_table('kept')")
    parts.run(statement)  # nobody captures any more


def test_all_other_ways_are_captured(parts: Database) -> None:
    for statement in (
        "UPDATE parts SET k = 3 - k WHERE id < 5",
        "MERGE INTO parts AS t USING (VALUES (1, 'm'), (80, 'n')) AS s (id, v) ON t.id = s.id"
        " WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.id, 1, s.v)",
        "UPDATE parts_1 SET v = 'direct'",
        "CREATE TABLE parts_3 PARTITION OF parts FOR VALUES IN (3)",
        "UPDATE parts SET k = k + 1",
        "UPDATE parts_3 SET v = 'third'",
        "ALTER TABLE parts DETACH PARTITION parts_3",
        "UPDATE parts_3 SET v = 'gone'",
        "WITH first AS (UPDATE parts SET v = 'a' WHERE id % 2 = 0) UPDATE parts SET v = 'b' WHERE id % 2 = 1",
    ):
        parts.run(statement)
        parts.assert_refreshed("kept")


def test_statements_within_statements_are_counted_apart(parts: Database) -> None:
    """By a trigger, by a function, with savepoints, and where another trigger keeps a row from being updated."""
    parts.run(
        "CREATE FUNCTION touched(n int) RETURNS int LANGUAGE plpgsql AS"
        " $$ BEGIN UPDATE parts SET v = v || '+' WHERE id = n; RETURN n; END $$"
    )
    parts.run(
        "CREATE FUNCTION zealous() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.id = 5 THEN RETURN NULL; END IF;"
        " IF pg_trigger_depth() = 1 THEN UPDATE parts SET k = 3 - k WHERE id = NEW.id + 1; END IF;"
        " RETURN NEW; END $$"
    )
    parts.run("CREATE TRIGGER zealous BEFORE UPDATE ON parts FOR EACH ROW EXECUTE FUNCTION zealous()")
    parts.run("UPDATE parts SET v = 'one' WHERE id IN (1, 5)")
    parts.assert_refreshed("kept")
    parts.run("UPDATE parts SET v = touched(id + 3)::text WHERE id IN (3, 5)")
    parts.assert_refreshed("kept")
    parts.run("DROP TRIGGER zealous ON parts")
    with parts.connect(autocommit=False) as connection:
        connection.execute("UPDATE parts SET v = 'all'")
        with pytest.raises(errors.DivisionByZero), connection.transaction():
            connection.execute("UPDATE parts SET v = (1 / (id - 4))::text")
        connection.execute("UPDATE parts SET k = 3 - k WHERE id > 7")
        with pytest.raises(errors.FeatureNotSupported), connection.transaction():
            connection.execute(
                "MERGE INTO parts AS t USING parts AS s ON t.id = s.id WHEN MATCHED THEN UPDATE SET k = 3 - t.k"
            )
        connection.execute("UPDATE parts SET v = v || k")
    parts.assert_refreshed("kept")
