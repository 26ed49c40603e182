"""Health checks: each is OK until something is wrong, and says what."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Eventually = Callable[..., Any]
Role = Callable[..., psycopg.Connection[Any]]

CHECKS = [
    "scheduler_running",
    "error_tables",
    "stale_tables",
    "needs_reinit",
    "consecutive_errors",
    "buffer_growth",
    "slot_lag",
    "worker_pool",
    "job_queue",
]
POOL = "SELECT active_workers, max_workers, per_db_cap, parallel_mode FROM pgtrickle.worker_pool_status()"
LONG_RUNNING = "CREATE FUNCTION slow(int) RETURNS int LANGUAGE sql AS 'SELECT $1 FROM pg_sleep(60)'"


def problems(db: Database) -> dict[str, tuple[str, str]]:
    rows = db.rows("SELECT check_name, severity, detail FROM pgtrickle.health_check() WHERE severity != 'OK'")
    return {name: (severity, detail) for name, severity, detail in rows}


@pytest.fixture
def busy(live_db: Database, eventually: Eventually) -> Database:
    """A database in which one stream table is being refreshed, which takes a minute, and there is one worker."""
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.max_concurrent_refreshes = 1")
    live_db.run("CREATE TABLE src (id int PRIMARY KEY, v int)")
    live_db.run(LONG_RUNNING)
    live_db.create("whole", "SELECT slow(id) AS id FROM src", schedule="1s", refresh_mode="FULL")
    live_db.run("INSERT INTO src VALUES (1, 1)")
    # A look before the row is there takes a worker for a moment only.
    sleeping = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    eventually(lambda: live_db.rows(sleeping), what="it is being refreshed")
    return live_db


def test_all_is_well(live_db: Database, eventually: Eventually) -> None:
    live_db.run("CREATE TABLE src (id int PRIMARY KEY, v int); INSERT INTO src VALUES (1, 1)")
    live_db.create("st", "SELECT id, v FROM src", schedule="1s")
    eventually(lambda: problems(live_db) == {})
    assert [name for (name,) in live_db.rows("SELECT check_name FROM pgtrickle.health_check()")] == CHECKS
    eventually(lambda: live_db.rows(POOL) == [(0, 4, 4, "on")])


def test_without_stream_tables_all_is_well(live_db: Database, eventually: Eventually) -> None:
    eventually(lambda: problems(live_db) == {})


def test_scheduler_running(live_db: Database, eventually: Eventually) -> None:
    eventually(lambda: problems(live_db) == {})
    with live_db.connect(autocommit=False) as user:
        user.execute("DELETE FROM pgtrickle.pgt_leases WHERE name = 'scheduler'")
        found = user.execute("SELECT severity FROM pgtrickle.health_check() WHERE check_name = 'scheduler_running'")
        assert found.fetchall() == [("ERROR",)]
        user.rollback()
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.enabled = off")
    with live_db.connect() as user:
        found = user.execute("SELECT severity, detail FROM pgtrickle.health_check() WHERE severity <> 'OK'")
        assert found.fetchall() == [("WARN", "pg_trickle.enabled is off: nothing is refreshed by schedule")]
    running = "SELECT scheduler_running FROM pgtrickle.quick_health"
    eventually(lambda: live_db.value(running) is False, what="it is said that nothing is refreshed")
    live_db.run(f"ALTER DATABASE {live_db.name} RESET pg_trickle.enabled")
    eventually(lambda: live_db.value(running) is True, what="it is said that it goes on")


def test_errors(live_db: Database, eventually: Eventually) -> None:
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.max_consecutive_errors = 2")
    live_db.run("CREATE TABLE src (id int PRIMARY KEY, v int)")
    live_db.create("inverse", "SELECT id, 100 / v AS q FROM src", schedule="1s")
    live_db.run("INSERT INTO src VALUES (1, 0)")
    failed = ("WARN", "refreshes in a row that failed: public.inverse (1)")
    eventually(lambda: problems(live_db).get("consecutive_errors") == failed)
    assert "error_tables" not in problems(live_db)
    suspended = ("ERROR", "in error or suspended: public.inverse (SUSPENDED)")
    eventually(lambda: problems(live_db).get("error_tables") == suspended)


def test_what_waits(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE src (id int PRIMARY KEY, v int); CREATE TABLE other (id int)")
    db.create("st", "SELECT id, v FROM src", schedule="1s")
    db.create("hourly", "SELECT id FROM src", schedule="1h")
    db.run("INSERT INTO src SELECT n, n FROM generate_series(1, 10000) AS n")
    assert not {"buffer_growth", "needs_reinit"} & set(problems(db))
    db.run("INSERT INTO src VALUES (0, 0)")
    rows = [f"public.src (10001 rows for public.{name})" for name in ("hourly", "st")]
    more = f"more than 10000 changes wait: {', '.join(rows)}"
    assert problems(db)["buffer_growth"] == ("WARN", more)
    eventually(lambda: problems(db).get("stale_tables") == ("WARN", "older than their schedule: public.st"))
    db.run("SELECT pgtrickle.gate_source('src')")
    held = "older than their schedule: public.st (source public.src is gated)"
    assert problems(db)["stale_tables"] == ("WARN", held)
    db.run("ALTER TABLE src ALTER v TYPE bigint")
    assert problems(db)["needs_reinit"] == ("WARN", "to be computed anew: public.hourly, public.st")


def test_slot_that_keeps_the_log(db: Database, eventually: Eventually) -> None:
    db.run("CREATE TABLE src (id int PRIMARY KEY, v int)")
    db.create("st", "SELECT id, v FROM src", schedule="1h")
    slot = f"pg_trickle_slot_{db.name}"
    db.run("SELECT pg_create_physical_replication_slot(%s, true)", slot)
    try:
        db.run("UPDATE pgtrickle.pgt_captures SET slot_name = %s", slot)
        db.run("INSERT INTO src SELECT n, n FROM generate_series(1, 20000) AS n")
        assert "slot_lag" not in problems(db)
        db.run("SET pg_trickle.slot_lag_warning_threshold_mb = 1")
        # What was written is in the log, as far as PostgreSQL counts, within a moment.
        severity, detail = eventually(lambda: problems(db).get("slot_lag"))
        assert severity == "WARN" and detail.startswith(f"slots that keep more than 1 MB of write-ahead log: {slot} (")
    finally:
        db.run("SELECT pg_drop_replication_slot(%s)", slot)


def test_workers_that_are_all_at_work(busy: Database, eventually: Eventually) -> None:
    db = busy
    assert db.rows(POOL) == [(1, 1, 1, "on")]
    assert problems(db)["worker_pool"] == ("WARN", "all 1 workers are refreshing")
    assert "job_queue" not in problems(db)
    db.run("CREATE TABLE other (id int PRIMARY KEY)")
    for n in range(11):
        db.create(f"st{n}", "SELECT id FROM other", schedule="1s")
    db.run("INSERT INTO other VALUES (2)")
    eventually(lambda: problems(db).get("job_queue") == ("WARN", "11 jobs wait for a worker"))
    with db.connect() as user:
        user.execute("SET application_name = 'headwater engine 01234567: refresh'")
        user.execute("SET pg_trickle.parallel_refresh_mode = off")
        assert user.execute(POOL.encode()).fetchall() == [(0, 1, 1, "off")]
        found = user.execute("SELECT check_name FROM pgtrickle.health_check() WHERE severity <> 'OK'").fetchall()
        assert not {("worker_pool",), ("job_queue",)} & set(found)


def test_one_owner_has_all_workers_but_one(busy: Database) -> None:
    busy.run("SET pg_trickle.max_concurrent_refreshes = 2")
    assert problems(busy)["worker_pool"] == ("WARN", "all 1 workers are refreshing")
    busy.run("SET pg_trickle.max_concurrent_refreshes = 3")
    assert "worker_pool" not in problems(busy)


def test_session_of_another_role_is_no_worker(busy: Database) -> None:
    busy.run("CREATE ROLE nobody_ LOGIN PASSWORD 'secret'")
    try:
        with busy.bypass(user="nobody_", password="secret") as mallory:
            mallory.execute("SET application_name = 'headwater engine 01234567: refresh'")
            assert busy.rows(POOL)[0][0] == 1
            assert mallory.execute(POOL.encode()).fetchall() == [(1, 1, 1, "on")]
    finally:
        busy.run("DROP ROLE nobody_")


def test_without_parallel_refreshes_there_is_one_at_a_time(live_db: Database, eventually: Eventually) -> None:
    db = live_db
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.parallel_refresh_mode = off")
    db.run("CREATE TABLE src (id int PRIMARY KEY, v int)")
    db.run("CREATE FUNCTION slow(int) RETURNS int LANGUAGE sql AS 'SELECT $1 FROM pg_sleep(0.3)'")
    for name in ("first", "second", "third"):
        db.create(name, "SELECT slow(id) AS id FROM src", schedule="1s", refresh_mode="FULL")
    db.run("INSERT INTO src VALUES (1, 1)")
    names = ("first", "second", "third")
    eventually(lambda: all(db.history(name)[-1]["initiated_by"] == "SCHEDULER" for name in names))
    times = sorted((row["start_time"], row["end_time"]) for name in names for row in db.history(name)[1:2])
    assert all(end <= start for (_, end), (start, _) in pairwise(times))
