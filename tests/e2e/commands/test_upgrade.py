"""Stream tables that an earlier version of the server has planned are planned and computed anew when they are due."""

from __future__ import annotations

import psycopg
import pytest

from tests.e2e.conftest import Database

# As if an earlier compiler had asked nothing, and laid the storage table out in another way.
AGE = """
UPDATE pgtrickle.pgt_definitions
SET explain = jsonb_set(explain, '{inputs}', (explain->'inputs') - 'format' || '{"types": []}')
WHERE pgt_name = %s
"""


@pytest.fixture
def sales(db: Database) -> Database:
    db.run("CREATE TABLE sales (id int PRIMARY KEY, region text, amount numeric(10,2), at timestamptz)")
    db.run("INSERT INTO sales SELECT n, 'r' || n % 3, n, now() FROM generate_series(1, 30) AS n")
    return db


def age(db: Database, name: str, *alterations: str) -> None:
    db.run(AGE, name)
    for alteration in alterations:
        with psycopg.connect(db.server.dsn(db.name)) as connection:
            connection.execute("SET pgtrickle.maintenance = 'on'")
            connection.execute(f"ALTER TABLE {name} {alteration}")


def test_refresh_after_an_upgrade_plans_and_computes_anew(sales: Database) -> None:
    db = sales
    db.create(
        "totals",
        "SELECT region, sum(amount) AS total, count(*) AS n, max(lower(region)) AS m FROM sales GROUP BY region",
    )
    age(db, "totals", "DROP COLUMN __pgt_count", "ADD COLUMN __pgt_former text")
    db.run("UPDATE sales SET amount = amount + 1, region = 'r1' WHERE id < 7")
    db.refresh("totals")
    db.assert_current("totals")
    assert db.last("totals")[0] == "REINITIALIZE"
    hidden = "SELECT attname FROM pg_attribute WHERE attrelid = 'totals'::regclass AND attnum > 0 AND NOT attisdropped"
    names = {name for (name,) in db.rows(hidden)}
    assert "__pgt_count" in names and "__pgt_former" not in names
    db.run("DELETE FROM sales WHERE region = 'r2'")
    db.refresh("totals")
    assert db.last("totals")[0] == "DIFFERENTIAL"
    db.assert_current("totals")


def test_rows_without_a_key_get_their_numbers_and_index_back(sales: Database) -> None:
    db = sales
    db.create("regions", "SELECT region, upper(region) AS u FROM sales")
    age(db, "regions", "DROP COLUMN __pgt_hash")
    db.run("INSERT INTO sales VALUES (31, 'r1'), (32, 'r1')")
    db.refresh("regions")
    db.assert_current("regions")
    assert (
        db.value("SELECT count(*) FROM pg_indexes WHERE tablename = 'regions' AND indexdef LIKE '%%__pgt_hash%%'") == 1
    )


def test_stream_table_that_was_never_populated_is_planned_anew(sales: Database) -> None:
    db = sales
    db.create("later", "SELECT region, max(lower(region)) AS m FROM sales GROUP BY region", initialize=False)
    age(db, "later")
    db.refresh("later")
    db.assert_current("later")


def test_mode_is_changed_after_an_upgrade(sales: Database) -> None:
    db = sales
    db.create("totals", "SELECT region, max(lower(region)) AS m FROM sales GROUP BY region", refresh_mode="FULL")
    age(db, "totals")
    db.run("DELETE FROM sales WHERE id = 1")
    db.run("SELECT pgtrickle.alter_stream_table('totals', refresh_mode => 'DIFFERENTIAL')")
    db.refresh("totals")
    db.assert_current("totals")


def test_source_captured_without_its_key_gets_it_when_its_stream_table_is_planned_anew(sales: Database) -> None:
    db = sales
    captured = (
        "SELECT array_to_string(captured_columns, ' ') FROM pgtrickle.pgt_captures"
        " WHERE source_relid = 'sales'::regclass"
    )
    # What only PostgreSQL refreshes is captured without the key, as all sources once were.
    db.create("totals", "SELECT region, sum(amount) AS total FROM sales GROUP BY region", engine="postgres")
    assert "id" not in db.value(captured).split()
    db.run("UPDATE pgtrickle.pgt_stream_tables SET engine = 'auto' WHERE pgt_name = 'totals'")
    age(db, "totals")
    db.run("UPDATE sales SET amount = amount + 1 WHERE id < 7")
    db.refresh("totals")
    assert {"id", "region", "amount"} <= set(db.value(captured).split())
    db.assert_current("totals")
    db.run("UPDATE sales SET amount = amount + 1 WHERE id < 7")
    db.refresh("totals")
    assert db.last("totals")[0] == "DIFFERENTIAL"
    db.assert_current("totals")
