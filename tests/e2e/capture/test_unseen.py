"""Changes that capture triggers did not see: what reads the table is computed anew soon, without another change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Eventually = Callable[..., Any]

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT n, n FROM generate_series(1, 5) AS n"


@pytest.fixture
def unseen(live_db: Database, eventually: Eventually) -> Database:
    """A stream table over `t` that the scheduler has found up to date: it looks again only where something changes."""
    live_db.run(TABLE + "; DELETE FROM t WHERE id = 5")
    live_db.create("total", "SELECT count(*) AS n, sum(v) AS s FROM t", schedule="1s")
    live_db.run("INSERT INTO t VALUES (5, 5)")
    eventually(lambda: live_db.rows("SELECT n, s FROM total") == [(5, 15)])
    return live_db


def is_marked(db: Database) -> bool:
    return bool(db.state("total")["needs_reinit"])


@pytest.mark.parametrize("role", ["origin", "replica"])
@pytest.mark.parametrize("which", ["ALL", "USER", "one"])
@pytest.mark.one_in(2)
def test_disabling_a_trigger_marks_what_reads_the_table(db: Database, which: str, role: str) -> None:
    db.run(TABLE)
    db.create("total", "SELECT count(*) AS n, sum(v) AS s FROM t", schedule="1s")
    db.create("above", "SELECT n FROM total")
    db.run(f"SET session_replication_role = {role}")
    oid = db.value("SELECT 't'::regclass::oid::int")
    trigger = f"pg_trickle_cdc_ins_{oid}" if which == "one" else which
    db.run(f"ALTER TABLE t DISABLE TRIGGER {trigger}")
    db.run("INSERT INTO t VALUES (6, 6)")
    db.run(f"ALTER TABLE t ENABLE TRIGGER {trigger}")
    assert is_marked(db)
    assert not db.state("above")["needs_reinit"]
    db.assert_refreshed("total", "above")
    assert db.last("total")[0] == "REINITIALIZE"
    db.run("INSERT INTO t VALUES (7, 7)")
    db.assert_differential("total")


def test_writes_of_a_replica_session_are_captured(db: Database) -> None:
    db.run(TABLE)
    db.create("total", "SELECT count(*) AS n, sum(v) AS s FROM t")
    db.run("SET session_replication_role = replica; INSERT INTO t VALUES (6, 6); DELETE FROM t WHERE id = 1")
    db.assert_differential("total")


def test_the_scheduler_computes_it_anew_though_nothing_changes(unseen: Database, eventually: Eventually) -> None:
    unseen.run("ALTER TABLE t DISABLE TRIGGER USER; INSERT INTO t VALUES (6, 6); ALTER TABLE t ENABLE TRIGGER USER")
    eventually(lambda: unseen.rows("SELECT n, s FROM total") == [(6, 21)])
    assert not is_marked(unseen)


@pytest.mark.parametrize("ddl", ["ALTER TABLE t DISABLE TRIGGER ALL", "DROP TRIGGER pg_trickle_cdc_ins_{oid} ON t"])
def test_what_no_event_trigger_sees_is_found_by_the_scheduler(
    unseen: Database, eventually: Eventually, ddl: str
) -> None:
    unseen.create("second", "SELECT count(*) AS n FROM t", schedule="1s")
    unseen.run("ALTER EVENT TRIGGER pg_trickle_ddl_tracker DISABLE")
    unseen.run(ddl.format(oid=unseen.value("SELECT 't'::regclass::oid::int")) + "; INSERT INTO t VALUES (6, 6)")
    eventually(lambda: unseen.rows("SELECT t.n, s, second.n FROM total t, second") == [(6, 21, 6)])


@pytest.mark.parametrize("mode", ["AUTO", "FULL"])
@pytest.mark.parametrize(
    "ddl",
    ["ALTER TABLE t ALTER v TYPE bigint USING v * 10", "CREATE OR REPLACE VIEW w AS SELECT id, v * 10 AS v FROM t"],
)
@pytest.mark.one_in(2)
def test_what_is_defined_anew_unseen_is_found_by_the_scheduler(
    live_db: Database, eventually: Eventually, ddl: str, mode: str
) -> None:
    """Nothing else changes in the database, and no event trigger tells of it."""
    live_db.run(TABLE + "; CREATE VIEW w AS SELECT id, v FROM t")
    source = "w" if "VIEW" in ddl else "t"
    live_db.create("total", f"SELECT count(*) AS n FROM {source} WHERE v > 20", schedule="1s", refresh_mode=mode)
    eventually(lambda: live_db.rows("SELECT n FROM total") == [(0,)])
    if source == "t":
        live_db.run("DROP VIEW w")
    for (name,) in live_db.rows("SELECT evtname FROM pg_event_trigger WHERE evtname LIKE 'pg\\_trickle%%'"):
        live_db.run(f"ALTER EVENT TRIGGER {name} DISABLE")
    live_db.run(ddl)
    eventually(lambda: live_db.value("SELECT n FROM total") == 3, 30)


def test_rows_of_a_new_partition(live_db: Database, eventually: Eventually) -> None:
    live_db.run(
        "CREATE TABLE p (kind int, v int) PARTITION BY LIST (kind);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); INSERT INTO p VALUES (1, 1)"
    )
    live_db.create("total", "SELECT sum(v) AS s FROM p", schedule="1s")
    live_db.run("CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2); INSERT INTO p2 VALUES (2, 10)")
    eventually(lambda: live_db.value("SELECT s FROM total") == 11)
    live_db.run("DROP TABLE p1")
    eventually(lambda: live_db.value("SELECT s FROM total") == 10)


def test_a_function_that_is_replaced_or_dropped(live_db: Database, eventually: Eventually) -> None:
    live_db.run(TABLE + "; CREATE FUNCTION twice(v int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 2 * v'")
    live_db.create("total", "SELECT sum(twice(v)) AS s FROM t", schedule="1s")
    live_db.run("CREATE OR REPLACE FUNCTION twice(v int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 3 * v'")
    eventually(lambda: live_db.value("SELECT s FROM total") == 45)
    live_db.run("DROP FUNCTION twice(int)")
    failed = "SELECT min(error_message) FROM pgtrickle.pgt_refresh_history WHERE status = 'FAILED'"
    eventually(lambda: live_db.value(failed))
    assert "twice" in live_db.value(failed)


@pytest.fixture
def publisher(db: Database) -> Iterator[psycopg.Connection[Any]]:
    """Another database of the cluster, with a table `t` that is published."""
    name = f"{db.name}_publisher"
    direct = db.server.administrator(direct=True)
    direct.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')  # type: ignore[arg-type]
    try:
        with psycopg.connect(db.server.direct_dsn(name), autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute("CREATE PUBLICATION all_of_t FOR TABLE t")
            connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
            yield connection
    finally:
        db.run("DROP SUBSCRIPTION IF EXISTS rows_of_t")
        drop = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
        direct.execute(drop, [name])
        direct.execute(f'DROP DATABASE "{name}" WITH (FORCE)')  # type: ignore[arg-type]


def test_rows_that_come_by_logical_replication(
    db: Database, publisher: psycopg.Connection[Any], eventually: Eventually
) -> None:
    """PostgreSQL applies them without statement triggers: who reads the table computes all of it."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    db.create("before", "SELECT count(*) AS n FROM t")
    db.create("insisting", "SELECT count(*) AS n FROM t", refresh_mode="DIFFERENTIAL")
    slot = publisher.info.dbname
    dsn = db.server.direct_dsn(slot)
    db.run(
        f"CREATE SUBSCRIPTION rows_of_t CONNECTION '{dsn}' PUBLICATION all_of_t"
        f" WITH (create_slot = false, slot_name = '{slot}')"
    )
    eventually(lambda: db.value("SELECT count(*) FROM t") == 5, what="the rows are copied")
    db.assert_refreshed("before")
    assert db.state("before")["refresh_mode"] == "FULL"
    assert "logical replication" in db.state("before")["fallback_reason"]
    db.create("after", "SELECT count(*) AS n, sum(v) AS s FROM t")
    publisher.execute("INSERT INTO t VALUES (6, 6)")
    eventually(lambda: db.value("SELECT count(*) FROM t") == 6, what="a row is applied")
    db.assert_refreshed("before", "after")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="logical replication"):
        db.refresh("insisting")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="logical replication"):
        db.create("insisting_too", "SELECT count(*) AS n FROM t", refresh_mode="DIFFERENTIAL")
