"""The clock's switches: start, stop, status, the period, pg_cron in a server's place, uninstall.

There is no pg_cron in the embedded PostgreSQL. A schema `cron` with the two functions that are called, written as
pg_cron documents them, stands in for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import psycopg
import pytest

from catalog.systems import QUEUES
from tests.catalog.conftest import Queue, install_into

CRON = """
CREATE SCHEMA cron;
CREATE TABLE cron.job (jobid bigserial PRIMARY KEY, jobname text UNIQUE, schedule text, command text, username text);
CREATE FUNCTION cron.schedule(job_name text, schedule text, command text) RETURNS bigint LANGUAGE sql AS $$
    INSERT INTO cron.job (jobname, schedule, command, username) VALUES (job_name, schedule, command, current_user)
    ON CONFLICT (jobname) DO UPDATE SET schedule = excluded.schedule, command = excluded.command RETURNING jobid
$$;
CREATE FUNCTION cron.unschedule(job_id bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM cron.job WHERE jobid = job_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'could not find valid entry for job %', job_id;
    END IF;
    RETURN true;
END $$;
"""
JOBS = [
    ("pgque_maint", "30 seconds", "SELECT pgque.maint()"),
    ("pgque_retry_events", "30 seconds", "SELECT pgque.maint_retry_events()"),
    ("pgque_rotate_step2", "10 seconds", "SELECT pgque.maint_rotate_tables_step2()"),
    ("pgque_ticker", "1 second", "CALL pgque.ticker_loop()"),
]


@pytest.fixture
def fresh(queue: Queue) -> Iterator[Queue]:
    """The queue, in a database where nobody has started or stopped anything."""
    reset = "UPDATE pgque.config SET clock_stopped = DEFAULT, tick_period_ms = DEFAULT, ticker_job_id = NULL, "
    reset += "retry_job_id = NULL, maint_job_id = NULL, step2_job_id = NULL"
    yield queue
    queue.connection.execute(f"{reset}; DROP SCHEMA IF EXISTS cron CASCADE; SELECT pg_advisory_unlock_all()")


@pytest.fixture
def cron(fresh: Queue) -> Queue:
    """The same with pg_cron."""
    fresh.connection.execute(CRON)
    return fresh


def jobs(queue: Queue) -> list[tuple[Any, ...]]:
    return queue.rows("SELECT jobname, schedule, command FROM cron.job ORDER BY jobname")


def status(queue: Queue) -> dict[str, str]:
    return dict(queue.rows("SELECT component, status FROM pgque.status()"))


def clock(queue: Queue) -> tuple[bool, int]:
    """Whether a server's clock is to tick, and its period."""
    [(tick, period)] = queue.rows("SELECT * FROM pgque._clock()")
    return tick, period


def test_start_without_server_and_pg_cron_is_an_error(fresh: Queue) -> None:
    error = fresh.fails("SELECT pgque.start()")
    assert error.sqlstate == "55000"
    assert "pg_cron is not installed" in str(error)
    assert clock(fresh) == (True, 100)
    assert status(fresh)["ticker"] == "not running"


def test_stop_works_without_pg_cron(fresh: Queue) -> None:
    fresh.value("SELECT pgque.stop()")
    fresh.value("SELECT pgque.stop()")
    assert clock(fresh) == (False, 100)
    assert status(fresh)["ticker"] == "stopped"


def test_start_schedules_four_jobs_once(cron: Queue) -> None:
    cron.value("SELECT pgque.start()")
    assert jobs(cron) == JOBS
    cron.value("SELECT pgque.start()")
    assert jobs(cron) == JOBS
    ids = "ARRAY[maint_job_id, retry_job_id, step2_job_id, ticker_job_id]"
    assert (
        cron.value(f"SELECT {ids} = (SELECT array_agg(jobid ORDER BY jobname) FROM cron.job) FROM pgque.config") is True
    )
    assert clock(cron) == (False, 100), "a server leaves the work to pg_cron"
    components = ("ticker", "retry_events", "maintenance", "rotate_step2")
    assert {status(cron)[component] for component in components} == {"scheduled"}


def test_stop_unschedules_the_jobs(cron: Queue) -> None:
    cron.value("SELECT pgque.start()")
    cron.value("SELECT pgque.stop()")
    assert jobs(cron) == []
    assert (
        cron.value("SELECT num_nonnulls(ticker_job_id, retry_job_id, maint_job_id, step2_job_id) FROM pgque.config")
        == 0
    )
    assert clock(cron) == (False, 100)
    assert status(cron)["maintenance"] == "stopped"


def test_a_job_that_is_gone_does_not_hinder_stop(cron: Queue) -> None:
    cron.value("SELECT pgque.start()")
    cron.connection.execute("DELETE FROM cron.job WHERE jobname = 'pgque_maint'")
    notices: list[str] = []
    cron.connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    cron.value("SELECT pgque.stop()")
    assert len(notices) == 1
    assert "could not unschedule job" in notices[0]
    assert jobs(cron) == []


def test_jobs_of_a_pg_cron_that_is_gone_are_reported(cron: Queue) -> None:
    cron.value("SELECT pgque.start()")
    cron.connection.execute("DROP SCHEMA cron CASCADE")
    assert status(cron)["ticker"] == "missing"
    cron.value("SELECT pgque.stop()")
    assert status(cron)["ticker"] == "stopped"


@pytest.mark.parametrize("lease", ["queue clock", "scheduler"])
def test_with_a_server_start_only_starts_its_clock(cron: Queue, queue_database: str, lease: str) -> None:
    install_into(queue_database)
    cron.value("SELECT pgque.stop()")
    with psycopg.connect(queue_database, autocommit=True) as server:
        assert server.execute("SELECT pgtrickle._take_lease(%s)", [lease]).fetchone() == (True,)
        assert status(cron)["ticker"] == "stopped"
        cron.value("SELECT pgque.start()")
        assert jobs(cron) == []
        assert clock(cron) == (True, 100)
        assert status(cron)["ticker"] == ("running" if lease == "queue clock" else "waiting")


def test_a_server_of_another_database_does_not_count(fresh: Queue, dsn: str) -> None:
    install_into(dsn)
    with psycopg.connect(dsn, autocommit=True) as server:
        assert server.execute("SELECT pgtrickle._take_lease('queue clock')").fetchone() == (True,)
        assert status(fresh)["ticker"] == "not running"


def test_changes_tell_the_clock(fresh: Queue, queue_database: str) -> None:
    with psycopg.connect(queue_database, autocommit=True) as listener:
        listener.execute("LISTEN pgque_clock")
        for call in ("stop()", "set_tick_period_ms(20)"):
            fresh.value(f"SELECT pgque.{call}")
            assert [n.channel for n in listener.notifies(timeout=60, stop_after=1)] == ["pgque_clock"]


def test_a_schema_named_cron_of_somebody_else_is_not_called(fresh: Queue) -> None:
    fresh.connection.execute("CREATE ROLE queue_mallory; " + CRON)
    try:
        fresh.connection.execute("ALTER FUNCTION cron.schedule(text, text, text) OWNER TO queue_mallory")
        assert "pg_cron is not installed" in str(fresh.fails("SELECT pgque.start()"))
    finally:
        fresh.connection.execute("DROP SCHEMA cron CASCADE; DROP ROLE queue_mallory")


def test_tick_period_must_divide_a_second(fresh: Queue) -> None:
    divisors = [ms for ms in range(1, 1001) if 1000 % ms == 0]
    for ms in divisors:
        assert fresh.value("SELECT pgque.set_tick_period_ms(%s)", ms) == ms
        assert clock(fresh) == (True, ms)
    for wrong in (0, -1, 3, 999, 1001, 2000, None):
        error = fresh.fails("SELECT pgque.set_tick_period_ms(%s)", wrong)
        assert error.sqlstate == "22023"
        assert "exact divisor of 1000" in str(error)
    assert clock(fresh) == (True, 1000)


def test_ticker_loop_ticks_for_a_second_in_transactions_of_their_own(fresh: Queue, queue_database: str) -> None:
    fresh.value("SELECT pgque.set_tick_period_ms(50)")
    fresh.connection.execute(
        "UPDATE pgque.queue SET queue_ticker_idle_period = '1 microsecond' WHERE queue_name = %s", [fresh.name]
    )
    ticks = (
        "SELECT count(*), count(DISTINCT t.xmin::text) FROM pgque.tick t JOIN pgque.queue ON queue_id = tick_queue "
        "WHERE queue_name = %s"
    )
    fresh.connection.execute("CALL pgque.ticker_loop()")
    [(number, transactions)] = fresh.rows(ticks, fresh.name)
    assert number == transactions, "each tick has been committed by itself"
    assert 2 <= number <= 21, "twenty at most, and the queue's first"
    fresh.value("SELECT pgque.set_tick_period_ms(1000)")
    fresh.connection.execute("CALL pgque.ticker_loop()")
    assert fresh.rows(ticks, fresh.name) == [(number + 1, number + 1)]


def test_status_has_a_row_for_each_component(fresh: Queue) -> None:
    fresh.value("SELECT pgque.subscribe(%s, 'c')", fresh.name)
    rows = {component: (state, detail) for component, state, detail in fresh.rows("SELECT * FROM pgque.status()")}
    assert list(rows) == [
        *(
            "postgresql",
            "pgque",
            "ticker",
            "retry_events",
            "maintenance",
            "rotate_step2",
            "queues",
            "consumers",
            "roles",
        )
    ]
    assert rows["postgresql"] == ("ok", fresh.value("SHOW server_version"))
    assert rows["pgque"] == ("ok", fresh.value("SELECT pgque.version()"))
    assert rows["queues"] == ("ok", str(fresh.value("SELECT count(*) FROM pgque.queue")))
    assert rows["consumers"] == ("ok", str(fresh.value("SELECT count(*) FROM pgque.subscription")))
    assert rows["roles"][0] == "ok"


def test_version_is_the_distributions(fresh: Queue) -> None:
    assert fresh.value("SELECT pgque.version()") == version("headwater")


def test_uninstall_removes_all_but_the_roles_and_can_be_followed_by_an_installation(
    cron: Queue, queue_database: str
) -> None:
    cron.value("SELECT pgque.start()")
    cron.value("SELECT pgque.uninstall()")
    assert cron.rows("SELECT FROM pg_namespace WHERE nspname = 'pgque'") == []
    assert jobs(cron) == []
    assert (
        cron.value("SELECT count(*) FROM pg_roles WHERE rolname IN ('pgque_reader', 'pgque_writer', 'pgque_admin')")
        == 3
    )
    assert install_into(queue_database, system=QUEUES).changed is True
    assert cron.value("SELECT pgque.create_queue('again')") == 1
