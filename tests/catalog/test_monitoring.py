"""Status functions and views."""

from __future__ import annotations

import json

import pytest

from tests.catalog.conftest import Connect, Engine, sqlstate


@pytest.fixture
def refreshed(engine: Engine) -> Engine:
    """Stream table st over t: refreshed in full, then incrementally, then one failure."""
    engine.connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    pgt_id = engine.create("st", t=["id", "a"])
    engine.refresh(
        pgt_id, rows_inserted=10, executor="spark", executor_reason="many rows", initiated_by="INITIAL", seconds=0.5
    )
    engine.refresh(pgt_id, action="DIFFERENTIAL", rows_inserted=1, rows_deleted=2, executor="postgres")
    engine.finish(pgt_id, status="FAILED", action="DIFFERENTIAL", error_message="22012: division by zero")
    state = {"schedule": "5m", "explain": {"operator_tree": "Scan(t)", "strategy": {"sum": "adds up"}, "inputs": {}}}
    engine.value("SELECT pgtrickle._set_state(%s, %s)", pgt_id, json.dumps(state))
    return engine


def test_status(refreshed: Engine) -> None:
    cursor = refreshed.connection.execute("SELECT * FROM pgtrickle.pgt_status()")
    assert [column.name for column in cursor.description or ()] == [
        "name", "status", "refresh_mode", "is_populated", "consecutive_errors", "schedule", "data_timestamp",
        "staleness",
    ]  # fmt: skip
    (row,) = cursor.fetchall()
    assert row[:6] == ("public.st", "ACTIVE", "DIFFERENTIAL", True, 1, "5m")
    assert row[7].total_seconds() >= 0


def test_history_latest_first(refreshed: Engine) -> None:
    rows = refreshed.connection.execute(
        "SELECT action, status, rows_inserted, rows_deleted, error_message FROM pgtrickle.get_refresh_history('st')"
    ).fetchall()
    assert rows == [
        ("DIFFERENTIAL", "FAILED", 0, 0, "22012: division by zero"),
        ("DIFFERENTIAL", "COMPLETED", 1, 2, None),
        ("FULL", "COMPLETED", 10, 0, None),
    ]
    assert refreshed.value("SELECT count(*) FROM pgtrickle.get_refresh_history('public.st', 2)") == 2
    assert (
        refreshed.value("SELECT duration_ms FROM pgtrickle.get_refresh_history('st') ORDER BY refresh_id LIMIT 1")
        == 500
    )
    assert refreshed.value("SELECT max(duration_ms) FROM pgtrickle.get_refresh_history('st')") < 60_000
    assert refreshed.value("SELECT count(*) FROM pgtrickle.refresh_timeline(2)") == 2


def test_names_are_found_along_the_search_path_then_in_public(refreshed: Engine) -> None:
    refreshed.connection.execute("CREATE SCHEMA other; SET search_path = other")
    assert refreshed.value("SELECT pgtrickle.get_staleness('st')") >= 0
    assert refreshed.value('SELECT pgtrickle.get_staleness(\'"public"."st"\')') >= 0
    second = refreshed.create("st")
    assert refreshed.value("SELECT pgtrickle._resolve('st')") == second
    assert refreshed.value("SELECT pgtrickle.get_staleness('st')") is None
    assert refreshed.value("SELECT pgtrickle._resolve('st', 'public, other')") == 1
    assert refreshed.value("SELECT pgtrickle._resolve('st', '\"$user\", \"other\"')") == second
    assert refreshed.value("SELECT pgtrickle._resolve('nothing', '', true)") is None
    assert sqlstate(refreshed.connection, "SELECT pgtrickle._resolve('nothing')") == "42P01"


def test_sources_and_buffers(refreshed: Engine) -> None:
    refreshed.connection.execute("INSERT INTO t VALUES (1, 'a')")
    oid = refreshed.oid("t")
    sources = refreshed.connection.execute("SELECT * FROM pgtrickle.list_sources('st')").fetchall()
    assert sources == [("public.t", oid, "table", "trigger", "a, id")]
    buffers = refreshed.connection.execute("SELECT * FROM pgtrickle.change_buffer_sizes()").fetchall()
    assert buffers[0][:5] == ("public.st", "public.t", oid, "trigger", 1)
    assert buffers[0][5] > 0
    triggers = refreshed.connection.execute("SELECT * FROM pgtrickle.trigger_inventory()").fetchall()
    assert [(row[0], row[3], row[4], row[5]) for row in triggers].count(("public.t", "DML", True, True)) == 3
    refreshed.connection.execute(f"DROP TRIGGER pg_trickle_cdc_truncate_{oid} ON t; ALTER TABLE t DISABLE TRIGGER USER")
    triggers = refreshed.connection.execute("SELECT * FROM pgtrickle.trigger_inventory()").fetchall()
    assert [row[4:] for row in triggers] == [(True, False), (True, False), (False, False), (True, False)]
    tracking = refreshed.connection.execute(
        "SELECT source_relid::bigint, tracked_by_pgt_ids, captured_columns FROM pgtrickle.pgt_change_tracking"
    ).fetchall()
    assert tracking == [(oid, [1], ["id", "a"])]
    cdc = refreshed.connection.execute(
        "SELECT pgt_name, source_name, cdc_mode FROM pgtrickle.pgt_cdc_status"
    ).fetchall()
    assert cdc == [("st", "t", "trigger")]


def test_explain(refreshed: Engine) -> None:
    refreshed.refresh(1, executor="spark", executor_reason="120000 rows to read")
    explained = dict(refreshed.connection.execute("SELECT * FROM pgtrickle.explain_st('st')").fetchall())
    assert explained["Defining Query"] == "SELECT"
    assert (explained["Refresh Mode"], explained["Requested Mode"]) == ("DIFFERENTIAL", "AUTO")
    assert explained["Operator Tree"] == "Scan(t)"
    assert explained["Source Tables"] == f"public.t (oid={refreshed.oid('t')})"
    assert explained["DVM Supported"] == "Yes"
    assert explained["Last Executor"] == "spark (120000 rows to read)"
    assert explained["Strategy: sum"] == "adds up"
    assert "inputs" not in " ".join(explained)
    state = {"fallback_reason": "window function", "refresh_mode": "FULL"}
    refreshed.value("SELECT pgtrickle._set_state(1, %s)", json.dumps(state))
    explained = dict(refreshed.connection.execute("SELECT * FROM pgtrickle.explain_st('st')").fetchall())
    assert (explained["DVM Supported"], explained["Fallback Reason"]) == ("No", "window function")


def test_stale_means_due_and_changed(refreshed: Engine) -> None:
    stale = "SELECT stale FROM pgtrickle.stream_tables_info"
    assert refreshed.value(stale) is False
    refreshed.connection.execute("UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = now() - interval '1 hour'")
    assert refreshed.value(stale) is False
    refreshed.connection.execute("INSERT INTO t VALUES (1, 'a')")
    assert refreshed.value(stale) is True
    refreshed.value('SELECT pgtrickle._set_state(1, \'{"schedule": "2h"}\')')
    assert refreshed.value(stale) is False


def test_change_that_has_just_been_made_does_not_make_stale_where_a_scheduler_works(refreshed: Engine) -> None:
    stale = "SELECT stale FROM pgtrickle.stream_tables_info"
    refreshed.connection.execute("UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = now() - interval '1 hour'")
    refreshed.connection.execute("INSERT INTO t VALUES (1, 'a')")
    position = refreshed.value("SELECT change_position FROM pgtrickle._change_position()")
    assert refreshed.value("SELECT pgtrickle._take_lease('scheduler')")
    for noted, expected in (
        (f": scheduler {position - 1}", False),
        (": scheduler -1 0", False),
        (f": scheduler {position - 1} 3", False),
        (f": scheduler {position} 0", True),
        ("", True),
    ):
        refreshed.connection.execute(f"SET application_name = 'headwater engine 0f{noted}'".encode())
        assert refreshed.value(stale) is expected, noted
    refreshed.connection.execute(
        "UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = now() - interval '301 seconds'"
    )
    assert refreshed.value(stale) is False, "the schedule is 5m, and a refresh that is due takes some time"


def test_statistics_and_health(refreshed: Engine) -> None:
    row = refreshed.connection.execute(
        "SELECT total_refreshes, successful_refreshes, failed_refreshes, total_rows_inserted, total_rows_deleted, "
        "last_refresh_action, last_refresh_status, cdc_modes FROM pgtrickle.pg_stat_stream_tables"
    ).fetchone()
    assert row == (3, 2, 1, 11, 2, "DIFFERENTIAL", "FAILED", ["trigger"])
    health = (
        "SELECT total_stream_tables, error_tables, stale_tables, scheduler_running, status FROM pgtrickle.quick_health"
    )
    assert refreshed.connection.execute(health).fetchone() == (1, 1, 0, False, "WARNING")
    refreshed.refresh(1)
    assert refreshed.value("SELECT pgtrickle._take_lease('scheduler')")
    for title, running in (
        ("scheduler", False),
        ("scheduler 1 0", True),
    ):  # the first notes no position: it is switched off
        refreshed.connection.execute(f"SET application_name = 'headwater engine 0f: {title}'".encode())
        assert refreshed.connection.execute(health).fetchone() == (1, 0, 0, running, "OK")
    refreshed.value('SELECT pgtrickle._set_state(1, \'{"status": "SUSPENDED"}\')')
    assert refreshed.value("SELECT status FROM pgtrickle.quick_health") == "CRITICAL"
    refreshed.value("SELECT pgtrickle._unregister(1)")
    assert refreshed.value("SELECT status FROM pgtrickle.quick_health") == "EMPTY"


def test_everybody_may_look(refreshed: Engine, connect: Connect) -> None:
    bob = connect("catalog_bob")
    for call in (
        "pgt_status()",
        "get_refresh_history('st')",
        "explain_st('st')",
        "list_sources('st')",
        "st_refresh_stats()",
        "change_buffer_sizes()",
        "trigger_inventory()",
        "stream_tables_info",
        "pg_stat_stream_tables",
        "quick_health",
    ):
        assert bob.execute(f"SELECT count(*) FROM pgtrickle.{call}").fetchone() != (0,)


def test_sizes_of_the_engines_own_tables(refreshed: Engine, connect: Connect) -> None:
    refreshed.connection.execute("SELECT pg_stat_force_next_flush()")
    sizes = {
        name: rest for name, *rest in refreshed.connection.execute("SELECT * FROM pgtrickle.engine_tables()").fetchall()
    }
    source = refreshed.value("SELECT 't'::regclass::oid")
    assert {"pgtrickle.pgt_refresh_history", f"pgtrickle_changes.changes_{source}"} <= set(sizes)
    assert not any(name.startswith("public.") for name in sizes)
    size, live, dead, _ = sizes["pgtrickle.pgt_definitions"]
    assert size >= 8192
    assert live == 1
    assert dead > 0  # each refresh leaves a version of the row
    with connect() as other, other.transaction():
        other.execute("LOCK pgtrickle.pgt_stream_tables")
        locked = "SELECT total_bytes FROM pgtrickle.engine_tables() WHERE table_name = 'pgtrickle.pgt_definitions'"
        assert refreshed.value(locked) is None


def test_who_keeps_old_rows(engine: Engine, connect: Connect) -> None:
    holders = "SELECT kind, pid, name, role, since IS NOT NULL, age, of_catalogs FROM pgtrickle.xmin_holders()"
    engine.connection.execute("CREATE TABLE t (id int)")
    with connect() as reader, connect() as writer, connect() as idle:
        for connection, name in ((reader, "reads"), (writer, "writes"), (idle, "rests")):
            connection.execute(f"SET application_name = '{name}'")
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute("SELECT FROM t")
        engine.connection.execute("INSERT INTO t VALUES (1)")
        # Its snapshot is gone, its transaction is not.
        writer.execute("BEGIN")
        writer.execute("INSERT INTO t VALUES (2)")
        engine.connection.execute("INSERT INTO t VALUES (3)")
        idle.execute("BEGIN")
        idle.execute("SELECT 1")
        found = {row[2]: row for row in engine.connection.execute(holders).fetchall()}
        names = [row[2] for row in engine.connection.execute(holders).fetchall()]
        user = engine.value("SELECT current_user::text")
        assert found["reads"][:5] == ("session", reader.info.backend_pid, "reads", user, True)
        assert found["writes"][:5] == ("session", writer.info.backend_pid, "writes", user, True)
        assert found["reads"][5] > found["writes"][5] > 0
        assert names.index("reads") < names.index("writes")
        assert "rests" not in found
        reader.execute("ROLLBACK")
        writer.execute("ROLLBACK")
        idle.execute("ROLLBACK")
        # First: it waits for all transactions that have written.
        engine.value("SELECT pg_create_logical_replication_slot('slot_of_monitoring', 'pgoutput')::text")
        writer.execute("BEGIN; INSERT INTO t VALUES (4); PREPARE TRANSACTION 'prepared'")
        engine.connection.execute("INSERT INTO t VALUES (5)")
        found = {row[2]: row for row in engine.connection.execute(holders).fetchall()}
        engine.value("SELECT pg_drop_replication_slot('slot_of_monitoring')::text")
        writer.execute("ROLLBACK PREPARED 'prepared'")
        assert found["prepared"] == ("prepared transaction", None, "prepared", user, True, 2, False)
        assert found["slot_of_monitoring"][:5] == ("replication slot", None, "slot_of_monitoring", None, False)
        assert found["slot_of_monitoring"][6]
    assert not {"reads", "writes"} & {row[2] for row in engine.connection.execute(holders).fetchall()}


def test_what_a_source_is(engine: Engine) -> None:
    engine.connection.execute(
        'CREATE TABLE "T" (a int, b numeric, c text COLLATE "C", d jsonb, e int[], f float8, PRIMARY KEY (c, a)); '
        "CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child () INHERITS (parent)"
    )
    table, parent = engine.value("SELECT pgtrickle._source_info(ARRAY['\"T\"'::regclass, 'parent'::regclass]::oid[])")
    assert (table["qualified"], table["type"], table["key"], table["obstacle"]) == (
        'public."T"',
        "TABLE",
        ["c", "a"],
        None,
    )
    assert {column["name"]: (column["hashable"], column["faithful"]) for column in table["columns"]} == {
        "a": (True, True), "b": (True, False), "c": (True, True), "d": (True, False), "e": (True, True),
        "f": (True, False),
    }  # fmt: skip
    assert parent["key"] == []  # children need not keep to it


@pytest.mark.parametrize(
    ("setting", "seconds"),
    [
        ("5", 5.0),
        ("0", 0.0),
        ("-1", 60.0),
        ("-Infinity", 60.0),
        ("Infinity", 60.0),
        ("NaN", 60.0),
        ("1e999", 60.0),
        ("x", 60.0),
    ],
)
def test_time_limit_is_a_number_whatever_it_is_set_to(engine: Engine, setting: str, seconds: float) -> None:
    engine.value("SELECT set_config('pg_trickle.subscription_timeout', %s, false)", setting)
    assert engine.value("SELECT pgtrickle._seconds('pg_trickle.subscription_timeout', 60)") == seconds
