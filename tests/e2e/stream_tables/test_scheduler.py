"""What the scheduler does by itself: on time, in order, and nothing where nothing has changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from server.commands.status import _HOLDING

Eventually = Callable[..., Any]


@pytest.fixture
def live_db(emptied_live_db: Any) -> Any:
    return emptied_live_db


@pytest.fixture(autouse=True)
def source(live_db: Any) -> None:
    live_db.run("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT n, n FROM generate_series(1, 10) n")


def test_change_becomes_visible_on_schedule(live_db: Any, eventually: Eventually) -> None:
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule="1s")
    for n in range(3):
        live_db.run("INSERT INTO t VALUES (%s, 1000)", 100 + n)
        eventually(lambda n=n: live_db.value("SELECT s FROM total") == 55 + 1000 * (n + 1))
    done = [(row["initiated_by"], row["action"]) for row in live_db.history("total")]
    assert done[0] == ("INITIAL", "FULL") and {by for by, _ in done[1:]} == {"SCHEDULER"}
    assert ("SCHEDULER", "DIFFERENTIAL") in done


def test_nothing_is_refreshed_without_changes(live_db: Any, eventually: Eventually) -> None:
    live_db.create("idle", "SELECT sum(v) AS s FROM t", schedule="1s")
    live_db.run("CREATE TABLE other (id int PRIMARY KEY)")
    live_db.create("busy", "SELECT count(*) AS n FROM other", schedule="1s")
    before = live_db.history("idle")
    for n in range(3):
        live_db.run("INSERT INTO other VALUES (%s)", n)
        eventually(lambda n=n: live_db.value("SELECT n FROM busy") == n + 1)
    assert live_db.history("idle") == before
    assert [row["action"] for row in live_db.history("busy")].count("NO_DATA") == 0


def test_full_mode_is_not_refreshed_without_changes_either(live_db: Any, eventually: Eventually) -> None:
    live_db.create("full", "SELECT id, v FROM t WHERE random() >= 0", schedule="1s")
    live_db.create("marker", "SELECT count(*) AS n FROM t WHERE id > 100", schedule="1s")
    live_db.run("INSERT INTO t VALUES (101, 1)")
    eventually(lambda: live_db.value('SELECT count(*) FROM "full"') == 11)
    rows = len(live_db.history('"full"'))
    live_db.run("CREATE TABLE other (id int PRIMARY KEY)")
    live_db.create("later", "SELECT count(*) AS n FROM other", schedule="1s")
    for n in range(2):
        live_db.run("INSERT INTO other VALUES (%s)", n)
        eventually(lambda n=n: live_db.value("SELECT n FROM later") == n + 1)
    assert len(live_db.history('"full"')) == rows


def test_dependency_order_and_calculated_schedules(live_db: Any, eventually: Eventually) -> None:
    live_db.create("base", "SELECT id, v * 2 AS v FROM t")  # calculated: as often as who reads it
    live_db.create("middle", "SELECT id, v FROM base WHERE v > 4", schedule="calculated")
    live_db.create("top", "SELECT count(*) AS n, sum(v) AS s FROM middle", schedule="1s")
    live_db.run("UPDATE t SET v = v + 100")
    eventually(lambda: live_db.value("SELECT s FROM top") == 2 * (55 + 1000))
    live_db.assert_current("base", "middle", "top")
    starts = [live_db.history(name)[-1]["start_time"] for name in ("base", "middle", "top")]
    assert starts == sorted(starts)


def test_calculated_without_dependents_is_not_hurried(live_db: Any, eventually: Eventually) -> None:
    live_db.create("lazy", "SELECT sum(v) AS s FROM t")
    live_db.create("eager", "SELECT sum(v) AS s FROM t", schedule="1s")
    live_db.run("UPDATE t SET v = 0 WHERE id = 1")
    eventually(lambda: live_db.value("SELECT s FROM eager") == 54)
    live_db.assert_refreshed("lazy")


def test_long_schedule_is_kept(live_db: Any, eventually: Eventually) -> None:
    live_db.create("hourly", "SELECT sum(v) AS s FROM t", schedule="1h")
    live_db.create("eager", "SELECT sum(v) AS s FROM t", schedule="1s")
    for n in range(2):
        live_db.run("UPDATE t SET v = v + 1")
        eventually(lambda n=n: live_db.value("SELECT s FROM eager") == 65 + 10 * n)
    assert live_db.value("SELECT s FROM hourly") == 55
    assert len(live_db.history("hourly")) == 1


def test_alter_makes_the_schedule_count_at_once(live_db: Any, eventually: Eventually) -> None:
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule="1h")
    live_db.run("UPDATE t SET v = v + 1")
    live_db.run("SELECT pgtrickle.alter_stream_table('total', schedule => '1s')")
    eventually(lambda: live_db.value("SELECT s FROM total") == 65)


def test_suspended_table_is_left_alone_and_taken_up_when_resumed(live_db: Any, eventually: Eventually) -> None:
    live_db.create("resting", "SELECT sum(v) AS s FROM t", schedule="1s")
    live_db.create("eager", "SELECT sum(v) AS s FROM t", schedule="1s")
    live_db.run("SELECT pgtrickle.alter_stream_table('resting', status => 'SUSPENDED')")
    live_db.run("UPDATE t SET v = v + 1")
    eventually(lambda: live_db.value("SELECT s FROM eager") == 65)
    assert live_db.value("SELECT s FROM resting") == 55
    live_db.run("SELECT pgtrickle.resume_stream_table('resting')")
    eventually(lambda: live_db.value("SELECT s FROM resting") == 65)


def test_failures_are_recorded_and_suspend_the_table(live_db: Any, eventually: Eventually) -> None:
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.max_consecutive_errors = 2")
    live_db.run("LISTEN pg_trickle_alert")
    live_db.create("inverse", "SELECT id, 100 / v AS q FROM t", schedule="1s")
    live_db.run("INSERT INTO t VALUES (50, 0)")
    eventually(lambda: live_db.state("inverse")["status"] == "SUSPENDED")
    failed = [row for row in live_db.history("inverse") if row["status"] == "FAILED"]
    assert len(failed) == 2 and all("division by zero" in row["error_message"] for row in failed)
    assert any("auto_suspended" in note.payload for note in live_db.connection.notifies(timeout=60))
    live_db.run("DELETE FROM t WHERE id = 50")
    live_db.run("SELECT pgtrickle.resume_stream_table('inverse')")
    live_db.assert_refreshed("inverse")
    assert live_db.state("inverse")["consecutive_errors"] == 0


def test_one_failing_table_does_not_hold_up_the_others(live_db: Any, eventually: Eventually) -> None:
    live_db.create("inverse", "SELECT id, 100 / v AS q FROM t", schedule="1s")
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule="1s")
    for n in range(3):
        live_db.run("INSERT INTO t VALUES (%s, 0)", 60 + n)
        live_db.run("UPDATE t SET v = v + 1 WHERE id = 1")
        eventually(lambda n=n: live_db.value("SELECT s FROM total") == 56 + n)


def test_uninitialised_table_is_populated_by_the_scheduler(live_db: Any, eventually: Eventually) -> None:
    live_db.create("later", "SELECT sum(v) AS s FROM t", schedule="1s", initialize=False)
    eventually(lambda: live_db.rows("SELECT s::int FROM later") == [(55,)])


def test_changes_that_bypass_the_server_are_found(live_db: Any, eventually: Eventually) -> None:
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule="1s")
    live_db.bypass().execute("INSERT INTO t VALUES (70, 1000)")
    eventually(lambda: live_db.value("SELECT s FROM total") == 1055)


def test_commit_of_a_long_transaction_is_found(live_db: Any, eventually: Eventually) -> None:
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule="1s")
    writer = live_db.connect(autocommit=False)
    writer.execute("INSERT INTO t VALUES (80, 1000)")
    live_db.run("INSERT INTO t VALUES (81, 1)")
    eventually(lambda: live_db.value("SELECT s FROM total") == 56)
    writer.commit()
    eventually(lambda: live_db.value("SELECT s FROM total") == 1056)


def test_buffers_are_emptied_when_everybody_has_seen_the_changes(live_db: Any, eventually: Eventually) -> None:
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule="1s")
    live_db.run("INSERT INTO t SELECT n, 1 FROM generate_series(1000, 2000) n")
    buffer = live_db.value("SELECT 'pgtrickle_changes.changes_' || 't'::regclass::oid")
    eventually(lambda: live_db.value("SELECT s FROM total") == 55 + 1001)
    eventually(lambda: live_db.value(f"SELECT count(*) FROM {buffer}") == 0, what="cleanup")
    live_db.run("DELETE FROM t WHERE id > 1500")
    eventually(lambda: live_db.value("SELECT s FROM total") == 55 + 501)


def test_buffer_is_kept_for_a_second_consumer(live_db: Any, eventually: Eventually) -> None:
    live_db.create("eager", "SELECT sum(v) AS s FROM t", schedule="1s")
    live_db.create("hourly", "SELECT sum(v) AS s FROM t", schedule="1h")
    for n in range(3):
        live_db.run("INSERT INTO t VALUES (%s, 100)", 200 + n)
        eventually(lambda n=n: live_db.value("SELECT s FROM eager") == 155 + 100 * n)
    live_db.assert_refreshed("hourly")
    assert live_db.last("hourly")[0] == "DIFFERENTIAL"


def test_scheduler_switched_off_and_on(live_db: Any, eventually: Eventually) -> None:
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule="1s")
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.enabled = off")
    live_db.run("UPDATE t SET v = v + 1")
    live_db.assert_refreshed("total")  # perhaps by a turn of the scheduler's that had begun
    rows = len(live_db.history("total"))
    live_db.run("UPDATE t SET v = v + 1")
    live_db.assert_refreshed("total")
    assert len(live_db.history("total")) == rows + 1
    live_db.run("UPDATE t SET v = v + 1")
    live_db.run(f"ALTER DATABASE {live_db.name} RESET pg_trickle.enabled")
    eventually(lambda: live_db.value("SELECT s FROM total") == 85)


def test_concurrent_branches_and_a_diamond(live_db: Any, eventually: Eventually) -> None:
    live_db.create("left_side", "SELECT id, v FROM t WHERE v % 2 = 0", schedule="1s")
    live_db.create("right_side", "SELECT id, v FROM t WHERE v % 2 = 1", schedule="1s")
    live_db.create("bottom", "SELECT v FROM left_side UNION ALL SELECT v FROM right_side", schedule="1s")
    for n in range(3):
        live_db.run("UPDATE t SET v = v + 1; INSERT INTO t VALUES (%s, 0)" % (300 + n))
        eventually(lambda n=n: live_db.value("SELECT count(*) FROM bottom") == 11 + n)
    live_db.run("UPDATE t SET v = 3")
    eventually(lambda: live_db.difference("bottom") == [] and live_db.value("SELECT min(v) FROM bottom") == 3)


GATE = """
CREATE FUNCTION gate(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
    WHILE v = 1000 AND NOT pg_catalog.pg_try_advisory_xact_lock_shared(1) LOOP
        PERFORM pg_catalog.pg_sleep(0.02);
    END LOOP;
    RETURN v;
END $$
"""
"""Whom it is given 1000 it lets pass while nobody holds an advisory lock. It waits without one."""

STANDS_BEFORE_IT = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"


def test_slow_table_delays_only_those_that_read_it(live_db: Any, eventually: Eventually) -> None:
    # A commit alone may refresh those that are cheap, and what they read, which is not, later.
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.event_driven_wake = off")
    live_db.run(GATE)
    live_db.create("slow", "SELECT id, gate(v) AS v FROM t", schedule="1s")
    live_db.create("middle", "SELECT id, v FROM slow WHERE v > 2", schedule="calculated")
    live_db.create("after", "SELECT (SELECT sum(v) FROM middle) AS s, (SELECT count(*) FROM t) AS n", schedule="1s")
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule="1s")
    live_db.create("beside", "SELECT s + 1 AS s FROM total", schedule="1s")
    before = {name: len(live_db.history(name)) for name in ("slow", "middle", "after")}
    gate = live_db.connect(autocommit=False)
    gate.execute("SELECT pg_advisory_xact_lock(1)")
    live_db.run("INSERT INTO t VALUES (100, 1000)")
    eventually(lambda: live_db.value(STANDS_BEFORE_IT) == 1, what="the slow refresh")
    for n in range(2):
        live_db.run("INSERT INTO t VALUES (%s, 1)", 200 + n)
        eventually(lambda n=n: live_db.value("SELECT s FROM beside") == 1056 + n + 1)
    assert {name: len(live_db.history(name)) for name in before} == before
    gate.rollback()
    eventually(lambda: live_db.rows("SELECT s::int, n::int FROM after") == [(1052, 13)])
    eventually(lambda: live_db.difference("slow") == [], what="what was written while slow was refreshed")
    live_db.assert_current("slow", "middle", "after", "total", "beside")
    first = [live_db.history(name)[count] for name, count in before.items()]
    assert first[0]["end_time"] <= first[1]["start_time"] and first[1]["end_time"] <= first[2]["start_time"]


def test_suspending_a_table_that_waits_for_a_slow_one(live_db: Any, eventually: Eventually) -> None:
    live_db.run(GATE)
    live_db.create("slow", "SELECT id, gate(v) AS v FROM t", schedule="1s")
    live_db.create("after", "SELECT sum(v) AS s FROM slow", schedule="1s")
    live_db.create("marker", "SELECT count(*) AS n FROM t", schedule="1s")
    gate = live_db.connect(autocommit=False)
    gate.execute("SELECT pg_advisory_xact_lock(1)")
    live_db.run("INSERT INTO t VALUES (100, 1000)")
    eventually(lambda: live_db.value(STANDS_BEFORE_IT) == 1, what="the slow refresh")
    live_db.run("SELECT pgtrickle.alter_stream_table('after', status => 'SUSPENDED')")
    live_db.run("INSERT INTO t VALUES (101, 1)")
    eventually(lambda: live_db.value("SELECT n FROM marker") == 12, what="a look after the suspension")
    gate.rollback()
    eventually(lambda: live_db.value("SELECT count(*) FROM slow") == 12)
    live_db.run("INSERT INTO t VALUES (102, 1)")
    eventually(lambda: live_db.value("SELECT n FROM marker") == 13)
    assert {row["status"] for row in live_db.history("after")} == {"COMPLETED"}
    live_db.run("SELECT pgtrickle.resume_stream_table('after')")
    eventually(lambda: live_db.value("SELECT s FROM after") == 55 + 1000 + 2)


def test_who_is_waited_for_is_said_and_is_no_failure(live_db: Any, eventually: Eventually) -> None:
    live_db.run("CREATE TABLE parted (id int) PARTITION BY LIST (id); CREATE TABLE part PARTITION OF parted DEFAULT")
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.max_consecutive_errors = 1")
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule="1s", refresh_mode="FULL")
    live_db.create("parts", "SELECT count(*) AS n FROM parted", schedule="1s", refresh_mode="FULL")
    live_db.run("INSERT INTO t VALUES (90, 1000); INSERT INTO parted VALUES (1)")
    eventually(lambda: live_db.rows("SELECT s, n FROM total, parts") == [(1055, 1)])
    live_db.run("CREATE TABLE other (id int PRIMARY KEY)")
    live_db.create("unrelated", "SELECT count(*) AS n FROM other", schedule="1s")
    holder = live_db.connect(autocommit=False)
    pid = holder.execute("SELECT pg_backend_pid()").fetchone()[0]
    holder.execute("INSERT INTO t VALUES (91, 1000); INSERT INTO parted VALUES (2)")
    writer = live_db.connect()
    writer.execute("INSERT INTO t VALUES (92, 1000); INSERT INTO parted VALUES (3)")
    holder.execute("LOCK TABLE t; LOCK TABLE part")
    live_db.run("INSERT INTO other VALUES (1)")
    for name, table in (("total", "public.t"), ("parts", "public.part")):

        def waits(name: str = name, table: str = table) -> bool:
            said = f'{table} is locked by process {pid} of role "postgres" (AccessExclusiveLock)'
            return any(r["action"] == "SKIP" and r["error_message"].startswith(said) for r in live_db.history(name))

        eventually(waits, what=f"it is said whom {name} waits for")
        assert live_db.state(name)["status"] == "ACTIVE" and not live_db.state(name)["consecutive_errors"]
        assert f"public.{name} waits: {table} is locked by process {pid}" in live_db.server.status()
    eventually(lambda: live_db.value("SELECT n FROM unrelated") == 1)
    assert [row["status"] for row in live_db.history("total")].count("SKIPPED") == 1
    holder.commit()
    eventually(lambda: live_db.rows("SELECT s, n FROM total, parts") == [(3055, 3)])
    assert "public.total waits" not in live_db.server.status()


def test_operator_sees_who_leads_and_who_keeps_old_rows(live_db: Any, eventually: Eventually) -> None:
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule="1s")
    leads = rf"{live_db.name}.*runs \(backend \d+, [0-5]\.\d s ago\)"
    eventually(lambda: re.search(leads, live_db.server.status()), what="the leader is shown, and when it last looked")
    with live_db.bypass(autocommit=False, application_name="a report") as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT FROM t")
        live_db.run("INSERT INTO t VALUES (95, 1)")
        said = live_db.rows(_HOLDING.replace("5 minutes", "0 s"))
        assert any(f'process {holder.info.backend_pid} of role "postgres" (a report) keeps' in text for (text,) in said)


def test_repair_of_a_capture_is_logged_with_name_and_reason(live_db: Any, eventually: Eventually) -> None:
    live_db.create("total", "SELECT sum(v) AS s FROM t", schedule="1s")
    live_db.run(
        "ALTER TABLE t DISABLE TRIGGER USER; INSERT INTO t VALUES (96, 1000); ALTER TABLE t ENABLE TRIGGER USER"
    )
    eventually(lambda: live_db.value("SELECT s FROM total") == 1055)
    live_db.run("UPDATE pgtrickle.pgt_stream_tables SET needs_reinit = true")
    eventually(lambda: not live_db.state("total")["needs_reinit"])
    logged = [line for line in live_db.server.log.splitlines() if "capture is repaired" in line]
    assert any("public.total" in line and "capture triggers of public.t were dropped" in line for line in logged)
    assert any("public.total" in line and "it is marked to be computed anew" in line for line in logged)
