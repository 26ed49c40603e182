"""Rows that go to another partition: PostgreSQL does not tell triggers of those that MERGE moves."""

from __future__ import annotations

import pytest
from psycopg import errors

from tests.e2e.conftest import Database

QUERY = "SELECT k, v, count(*) AS n FROM parts GROUP BY k, v"


@pytest.fixture
def parts(db: Database) -> Database:
    db.run("CREATE TABLE parts (id int, k int, v text) PARTITION BY LIST (k)")
    for k in (1, 2):
        db.run(f"CREATE TABLE parts_{k} PARTITION OF parts FOR VALUES IN ({k})")
    db.run("INSERT INTO parts SELECT n, 1 + n % 2, 'v' || n % 3 FROM generate_series(1, 10) AS n")
    db.create("kept", QUERY)
    return db


def check(parts: Database) -> None:
    parts.refresh("kept")
    assert sorted(parts.rows("SELECT k, v, n FROM kept")) == sorted(parts.rows(QUERY))


@pytest.mark.parametrize(
    "merge",
    [
        "WHEN MATCHED THEN UPDATE SET k = s.k",
        "WHEN MATCHED THEN UPDATE SET k = s.k WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.k, 'new')",
        "WHEN MATCHED AND s.id = 3 THEN DELETE WHEN MATCHED THEN UPDATE SET k = s.k",
        "WHEN MATCHED AND s.id = 3 THEN UPDATE SET v = 'x' WHEN MATCHED THEN UPDATE SET k = 3 - t.k",
    ],
)
def test_merge_that_moves_rows_is_refused(parts: Database, merge: str) -> None:
    statement = (
        f"MERGE INTO parts AS t USING (VALUES (1, 1), (2, 2), (3, 2), (70, 1)) AS s (id, k) ON t.id = s.id {merge}"
    )
    with pytest.raises(errors.FeatureNotSupported, match=r'MERGE that moves rows of "public\.parts"'):
        parts.run(statement)
    check(parts)
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
        check(parts)


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
    check(parts)
    parts.run("UPDATE parts SET v = touched(id + 3)::text WHERE id IN (3, 5)")
    check(parts)
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
    check(parts)
