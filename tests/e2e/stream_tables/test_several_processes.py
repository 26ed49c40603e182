"""Full refreshes whose query PostgreSQL computes by several processes, as a statement of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, drop_role

SEVERAL = "computed by several processes"
EAGER = "SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0"
"""Has PostgreSQL use several processes for little."""

KINDS = """
CREATE DOMAIN positive AS int CHECK (VALUE > 0);
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE pair AS (a int, b text);
CREATE TABLE kinds (
    id int PRIMARY KEY, c char(5), d varchar(9), e text COLLATE "C", f text COLLATE "POSIX", g numeric(9,3), h positive,
    i mood, j pair, l int[], m bit(3), n interval day, o timestamptz(3), p json, q "char", r name, w double precision,
    gone int);
ALTER TABLE kinds DROP COLUMN gone;
INSERT INTO kinds
    SELECT n, 'a' || n % 3, 'b', 'c' || n, 'D' || n, n / 8.0, n, 'glad', ROW(n::int, 'x')::pair, ARRAY[n, NULL], B'101',
           n * interval '1 h', '2020-02-02 02:02:02.0202+02', '{"a" :1}', 'q', 'r', 'NaN'
    FROM generate_series(1, 3000) AS n;
ANALYZE kinds
"""


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Two tables, and a session that computes by several processes what it can."""
    emptied_db.run(
        "CREATE TABLE t (id int PRIMARY KEY, k int, v int);"
        "INSERT INTO t SELECT n, n % 7, n FROM generate_series(1, 3000) AS n; ANALYZE t"
    )
    emptied_db.run(EAGER)
    return emptied_db


def reason(db: Database, name: str) -> str:
    """Why the last refresh was computed where it was."""
    found: str = db.history(name)[-1]["executor_reason"]
    return found


def make_slow(db: Database, name: str) -> None:
    """Have the next full refresh look for a plan with several processes: the last one took long."""
    db.run("UPDATE pgtrickle.pgt_definitions SET last_full_ms = 1000 WHERE pgt_id = pgtrickle._resolve(%s)", name)


def test_a_full_refresh_applies_the_differences_that_several_processes_find(db: Database) -> None:
    query = "SELECT k, count(*) AS n, sum(v) AS total, avg(v) AS mean FROM t GROUP BY k"
    db.create("totals", query, refresh_mode="FULL")
    assert SEVERAL in reason(db, "totals")
    db.create("below", "SELECT k, total FROM totals WHERE k < 3")
    db.assert_current("totals", "below")
    make_slow(db, "totals")
    db.run("UPDATE t SET v = v + 1 WHERE id = 1; DELETE FROM t WHERE k = 6; INSERT INTO t VALUES (0, 70, 1)")
    db.assert_refreshed("totals")
    assert db.last("totals") == ("FULL", 1, 1, 1)
    assert SEVERAL in reason(db, "totals")
    db.assert_differential("below")
    assert db.last("below") == ("DIFFERENTIAL", 1, 0, 1)


def test_columns_of_all_kinds_come_through_as_they_are(db: Database) -> None:
    db.run(KINDS)
    for name, query, changed in (
        ("keyed", "SELECT * FROM kinds WHERE id % 5 = 0 AND g < 200", (0, 1, 0)),
        (
            "bag",
            "SELECT c, d, e, f, g, h, i, j, l, m, n, o, p, q, r, w, 'own' AS own FROM kinds WHERE id % 500 = 0",
            (1, 0, 1),
        ),
        (
            "grouped",
            "SELECT c, f, h, min(e) AS least, max(g) AS most, count(*) AS n FROM kinds GROUP BY c, f, h",
            (0, 1, 0),
        ),
    ):
        db.create(name, query, refresh_mode="FULL")
        assert SEVERAL in reason(db, name), name
        db.assert_current(name)
        make_slow(db, name)
        db.run("UPDATE kinds SET g = g + 1, f = lower(f) WHERE id = 500")
        db.assert_refreshed(name)
        assert SEVERAL in reason(db, name), name
        assert db.last(name) == ("FULL", *changed)


def test_rows_and_frontier_are_of_one_snapshot(db: Database, eventually: Callable[..., Any]) -> None:
    db.run(
        "CREATE TABLE pace (seconds float); INSERT INTO pace VALUES (4);"
        "CREATE FUNCTION slowly(id int) RETURNS int STABLE PARALLEL SAFE LANGUAGE plpgsql AS $$ BEGIN"
        " IF id = 1 THEN PERFORM pg_catalog.pg_sleep(seconds) FROM public.pace; END IF; RETURN id; END $$"
    )
    query = "SELECT k, count(*) AS n, sum(slowly(id)) AS total FROM t GROUP BY k"
    creating = threading.Thread(target=db.create, args=("slow", query))
    creating.start()
    writer = db.connect()
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    eventually(lambda: writer.execute(sleeping).fetchone() == (1,))
    writer.execute("INSERT INTO t SELECT n, 100, 1 FROM generate_series(5001, 5003) AS n; DELETE FROM t WHERE id = 2")
    writer.execute("UPDATE pace SET seconds = 0")
    creating.join(120)
    assert SEVERAL in reason(db, "slow")
    assert db.value("SELECT count(*) FROM slow") == 7  # without what came while it was computed
    db.assert_differential("slow")


def test_rights_are_those_of_the_owner_in_every_process(db: Database) -> None:
    db.run("CREATE ROLE several_owner; GRANT CREATE, USAGE ON SCHEMA public TO several_owner")
    try:
        db.run("GRANT SELECT ON t TO several_owner; SET ROLE several_owner")
        query = "SELECT current_user::text AS who, k, count(*) AS n FROM t WHERE current_user::text <> 'x' GROUP BY k"
        db.create("whose", query, refresh_mode="FULL")
        db.run("RESET ROLE")
        assert SEVERAL in reason(db, "whose")
        make_slow(db, "whose")
        db.run("INSERT INTO t VALUES (9000, 8, 8)")
        db.refresh("whose")
        assert SEVERAL in reason(db, "whose")
        assert db.rows("SELECT DISTINCT who FROM whose") == [("several_owner",)]
        db.run("REVOKE SELECT ON t FROM several_owner; INSERT INTO t VALUES (9001, 8, 8)")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.refresh("whose")
    finally:
        db.run("RESET ROLE")
        drop_role(db.connection, "several_owner")


def test_small_tables_and_quick_refreshes_have_one_process(db: Database) -> None:
    query = "SELECT k, count(*) AS n FROM t GROUP BY k"
    db.create("quick", query, refresh_mode="FULL")
    db.run("UPDATE pgtrickle.pgt_definitions SET last_full_ms = 1; INSERT INTO t VALUES (9000, 8, 8)")
    db.assert_refreshed("quick")
    assert SEVERAL not in reason(db, "quick")
    db.run("SET min_parallel_table_scan_size = '8MB'")
    db.create("small", query, refresh_mode="FULL")
    assert SEVERAL not in reason(db, "small")
    db.run(f"{EAGER}; SET max_parallel_workers_per_gather = 0")
    db.create("alone", query, refresh_mode="FULL")
    assert SEVERAL not in reason(db, "alone")


def test_a_transaction_prepared_after_it_leaves_nothing(db: Database) -> None:
    if db.value("SELECT current_setting('max_prepared_transactions')::int") == 0:
        pytest.skip("no prepared transactions")
    db.create("prepared", "SELECT k, count(*) AS n FROM t GROUP BY k", refresh_mode="FULL")
    make_slow(db, "prepared")
    db.run("BEGIN; INSERT INTO t VALUES (9000, 8, 8)")
    db.refresh("prepared")
    db.run("PREPARE TRANSACTION 'several'")
    db.run("COMMIT PREPARED 'several'")
    assert SEVERAL in reason(db, "prepared")
    db.assert_current("prepared")


def test_a_function_that_does_not_find_its_table_is_told_so(db: Database) -> None:
    db.run(
        "CREATE TABLE rates (rate int); INSERT INTO rates VALUES (2);"
        "CREATE FUNCTION rate() RETURNS int IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN (SELECT r.rate FROM rates r); END $$"
    )
    with pytest.raises(psycopg.errors.UndefinedTable) as failure:
        db.create("rated", "SELECT k, sum(v * rate()) AS total FROM t GROUP BY k", refresh_mode="FULL")
    assert "Name the schemas in function" in (failure.value.diag.message_hint or "")
