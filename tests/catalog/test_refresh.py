"""Beginning and ending refreshes, frontiers beside open transactions, and the cleaning of buffers."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest

from tests.catalog.conftest import Connect, Connection, Engine, sqlstate


@pytest.fixture
def table(engine: Engine) -> Engine:
    """Table t, captured and refreshed once; stream table st has id 1."""
    engine.connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    engine.refresh(engine.create("st", t=["id", "a"]))
    return engine


@pytest.fixture
def writer(table: Engine, connect: Connect) -> Iterator[Connection]:
    """Somebody else, in transactions."""
    connection = connect(autocommit=False)
    yield connection
    connection.rollback()


def status(engine: Engine) -> tuple[str, int]:
    row = engine.connection.execute("SELECT status, consecutive_errors FROM pgtrickle.pgt_stream_tables").fetchone()
    assert row is not None
    return row[0], row[1]


def test_begin_says_what_the_engine_needs(table: Engine) -> None:
    table.connection.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'); ANALYZE t")
    context = table.begin(1)
    expected = {
        "pgt_id": 1, "schema": "public", "name": "st", "storage": "public.st", "status": "ACTIVE", "engine": "auto",
        "refresh_mode": "DIFFERENTIAL", "is_populated": True, "broken": [], "denied": [],
    }  # fmt: skip
    assert {key: context[key] for key in expected} == expected
    assert context["sources"] == [
        {
            "oid": table.oid("t"), "qualified": "public.t", "schema": "public", "name": "t", "type": "TABLE",
            "captured": True, "columns": ["a", "id"], "pending": 2, "truncated": False, "late": False, "rows": 2,
        }
    ]  # fmt: skip


def test_second_refresh_at_the_same_time_is_refused_or_waits(table: Engine, connect: Connect) -> None:
    other = connect(autocommit=False)
    table.connection.execute("INSERT INTO t VALUES (1, 'new')")
    other.execute("SELECT pgtrickle._begin_refresh(1)")
    with pytest.raises(psycopg.errors.LockNotAvailable, match='refresh of stream table "st" is already running'):
        table.value("SELECT pgtrickle._begin_refresh(1)")
    assert (
        sqlstate(table.connection, "SET LOCAL statement_timeout = '50ms'; SELECT pgtrickle._begin_refresh(1, true)")
        == "57014"
    )
    other.rollback()
    table.value("SELECT pgtrickle._begin_refresh(1, true)")


def test_stream_table_changed_after_the_snapshot_is_a_serialization_failure(table: Engine, connect: Connect) -> None:
    other = connect(autocommit=False)
    other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    table.connection.execute("INSERT INTO t VALUES (1, 'new')")
    other.execute("SELECT 1 FROM pg_class LIMIT 1")
    table.refresh(1)
    assert sqlstate(other, "SELECT pgtrickle._begin_refresh(1)") == "40001"


def test_a_look_that_finds_nothing_writes_nothing(table: Engine, connect: Connect) -> None:
    table.refresh(1)
    other = connect(autocommit=False)
    ((context, xid),) = other.execute("SELECT pgtrickle._begin_refresh(1), pg_current_xact_id_if_assigned()").fetchall()
    assert (context["fresh"], context["sources"][0]["pending"], xid) == (True, 0, None)
    assert table.value("SELECT pgtrickle._begin_refresh(1)")["fresh"]  # nor does it keep anybody from looking
    other.rollback()
    table.connection.execute("INSERT INTO t VALUES (1, 'new')")
    assert table.value("SELECT pgtrickle._begin_refresh(1)")["fresh"] is False


def test_transaction_open_across_refreshes_loses_nothing(table: Engine, writer: Connection) -> None:
    writer.execute("INSERT INTO t VALUES (1, 'early')")
    table.connection.execute("INSERT INTO t VALUES (2, 'late')")
    assert table.pending(1) == {"t": 1}
    table.refresh(1)
    assert table.pending(1) == {"t": 0}
    writer.commit()
    assert table.pending(1) == {"t": 1}
    table.refresh(1)
    assert table.pending(1) == {"t": 0}


def test_refresh_inside_a_transaction_that_wrote(table: Engine) -> None:
    counter = 'SELECT max("__pgt_change_id") FROM pgtrickle_changes.changes_{}'.format(table.oid("t"))
    with table.connection.transaction():
        table.connection.execute("INSERT INTO t VALUES (1, 'before')")
        frontier = table.value(
            "SELECT jsonb_build_object('snapshot', pg_current_snapshot()::text, 'xid', pg_current_xact_id()::text, "
            f"'change_id', ({counter}))"
        )
        table.refresh(1, frontier=frontier)
        assert table.pending(1) == {"t": 0}
        table.connection.execute("INSERT INTO t VALUES (2, 'after')")
    assert table.pending(1) == {"t": 1}


def test_failures_are_counted_and_suspend(table: Engine) -> None:
    notices: list[str] = []
    table.connection.add_notify_handler(lambda notify: notices.append(notify.payload))
    table.connection.execute("LISTEN pg_trickle_alert")
    for errors, state in ((1, "ACTIVE"), (2, "ACTIVE"), (3, "SUSPENDED")):
        result = table.finish(1, status="FAILED", action="DIFFERENTIAL", error_message="22012: division by zero")
        assert (result["status"], result["consecutive_errors"]) == (state, errors)
    table.connection.execute("SELECT 1")
    assert json.loads(notices[0]) == {
        "event": "auto_suspended", "pgt_schema": "public", "pgt_name": "st", "reason": "22012",
    }  # fmt: skip
    table.value("SELECT pgtrickle._set_state(1, %s)", json.dumps({"status": "ACTIVE", "consecutive_errors": 0}))
    assert status(table) == ("ACTIVE", 0)


def test_success_forgets_errors_and_a_permanent_error_stops_at_once(table: Engine) -> None:
    table.finish(1, status="FAILED", action="FULL", error_message="x", permanent=True)
    assert status(table) == ("ERROR", 1)
    table.refresh(1)
    assert status(table) == ("ACTIVE", 0)


def test_failed_refresh_moves_nothing(table: Engine) -> None:
    before = table.begin(1)["frontier"]
    table.finish(1, status="FAILED", action="FULL", frontier={"snapshot": "1:1:"}, error_message="x")
    assert table.begin(1)["frontier"] == before


def test_reinitialisation_clears_its_mark_and_differential_does_not(table: Engine) -> None:
    table.value("SELECT pgtrickle._set_state(1, '{\"needs_reinit\": true}')")
    table.refresh(1, action="DIFFERENTIAL")
    assert table.begin(1)["needs_reinit"] is True
    table.refresh(1, action="REINITIALIZE")
    assert table.begin(1)["needs_reinit"] is False


def test_frontier_of_another_cluster_is_void(table: Engine) -> None:
    table.connection.execute(
        'UPDATE pgtrickle.pgt_stream_tables SET frontier = frontier || \'{"system": "1.00000001.5"}\''
    )
    (reason,) = table.begin(1)["broken"]
    assert reason.startswith("the database was restored, copied or promoted")


def test_capture_that_came_from_another_cluster_is_begun_anew(table: Engine) -> None:
    table.connection.execute("INSERT INTO t VALUES (1, 'a'); UPDATE pgtrickle.pgt_captures SET system = 'elsewhere'")
    assert table.track(1, "t", ["id", "a"])["installed"] is True
    assert table.changes("t") == []


@pytest.mark.parametrize(
    "source",
    ["CREATE UNLOGGED TABLE t (id int)",
     "CREATE TABLE t (id int) PARTITION BY LIST (id); CREATE UNLOGGED TABLE t1 PARTITION OF t DEFAULT"],
)  # fmt: skip
def test_unlogged_source_is_void_after_a_crash(engine: Engine, source: str) -> None:
    engine.connection.execute(source)
    engine.refresh(engine.create("st", t=["id"]))
    assert engine.begin(1)["broken"] == []
    # What PostgreSQL does to all unlogged tables when it recovers.
    engine.connection.execute("TRUNCATE pgtrickle.pgt_crash_witnesses")
    assert engine.begin(1)["broken"] == ["unlogged table public.t may have lost rows in a crash of PostgreSQL"]
    assert engine.track(1, "t", ["id"])["installed"] is True
    assert engine.begin(1)["broken"] == []


def test_unknown_state_is_refused(table: Engine) -> None:
    assert sqlstate(table.connection, "SELECT pgtrickle._set_state(1, '{\"pgt_owner\": 10}')") == "22023"


def test_old_history_is_pruned_but_for_the_latest(table: Engine) -> None:
    table.refresh(1)
    table.connection.execute("UPDATE pgtrickle.pgt_refresh_history SET start_time = now() - interval '31 days'")
    table.connection.execute("SET pg_trickle.history_retention_days = 0")
    assert table.value("SELECT pgtrickle._prune_history()") == 0
    table.connection.execute("RESET pg_trickle.history_retention_days")
    assert table.value("SELECT pgtrickle._prune_history()") == 1
    assert table.value("SELECT count(*) FROM pgtrickle.pgt_refresh_history") == 1


def test_history_is_pruned_to_a_number_of_rows_in_batches_that_wait_for_nobody(table: Engine, connect: Connect) -> None:
    table.refresh(1)
    table.connection.execute(
        "INSERT INTO pgtrickle.pgt_refresh_history (pgt_id, data_timestamp, start_time, action, status)"
        " SELECT 1, now(), now(), 'NO_DATA', 'COMPLETED' FROM generate_series(1, 12000)"
    )
    ids = "SELECT array_agg(refresh_id ORDER BY refresh_id DESC) FROM pgtrickle.pgt_refresh_history"
    latest = table.value(ids)[:7]
    table.connection.execute("SET pg_trickle.history_max_rows = 0")
    assert table.value("SELECT pgtrickle._prune_history()") == 0
    table.connection.execute("SET pg_trickle.history_max_rows = 7; SET lock_timeout = '1ms'")
    with connect() as other, other.transaction():
        other.execute("SELECT FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id LIMIT 1 FOR UPDATE")
        removed = [table.value("SELECT pgtrickle._prune_history()") for _ in range(3)]
    assert removed == [4999, 4999, 1996]
    assert table.value("SELECT pgtrickle._prune_history()") == 1
    assert table.value(ids) == latest


HISTORY = "SELECT action, initiated_by, repeats FROM pgtrickle.pgt_refresh_history ORDER BY refresh_id"


def test_refreshes_without_changes_in_a_row_are_one_row_of_the_history(table: Engine) -> None:
    table.connection.execute("DELETE FROM pgtrickle.pgt_refresh_history")
    table.refresh(1, action="NO_DATA", initiated_by="SCHEDULER", seconds=2)
    first = "SELECT start_time, end_time, data_timestamp FROM pgtrickle.pgt_refresh_history"
    before = table.connection.execute(first).fetchall()
    for _ in range(3):
        table.refresh(1, action="NO_DATA", initiated_by="SCHEDULER", seconds=4)
    assert table.connection.execute(HISTORY).fetchall() == [("NO_DATA", "SCHEDULER", 3)]
    assert table.connection.execute(first).fetchall() == before
    assert table.value(
        "SELECT repeats_duration = '12 s' AND last_end_time - last_start_time = '4 s' AND last_end_time > end_time"
        " AND last_end_time <= clock_timestamp() FROM pgtrickle.pgt_refresh_history"
    )
    # Any other refresh of the stream table ends the row, and so does another reason to refresh.
    table.refresh(1, action="DIFFERENTIAL", initiated_by="SCHEDULER", seconds=8)
    table.refresh(1, action="NO_DATA", initiated_by="SCHEDULER", seconds=10)
    for _ in range(2):
        table.refresh(1, action="NO_DATA", initiated_by="MANUAL", seconds=2)
    table.finish(1, status="FAILED", action="DIFFERENTIAL", error_message="22012", seconds=100)
    table.refresh(1, action="NO_DATA", initiated_by="MANUAL", seconds=2)
    assert table.connection.execute(HISTORY).fetchall() == [
        ("NO_DATA", "SCHEDULER", 3),
        ("DIFFERENTIAL", "SCHEDULER", 0),
        ("NO_DATA", "SCHEDULER", 0),
        ("NO_DATA", "MANUAL", 1),
        ("DIFFERENTIAL", None, 0),
        ("NO_DATA", "MANUAL", 0),
    ]
    # Each refresh counts, however many rows there are: 2 + 3 * 4, 8, 10, 2 * 2, 2 seconds in 9 that succeeded.
    counted = table.connection.execute(
        "SELECT total_refreshes, successful_refreshes, failed_refreshes, round(avg_duration_ms::numeric)"
        " FROM pgtrickle.st_refresh_stats()"
    ).fetchall()
    assert counted == [(10, 9, 1, round((2 + 12 + 8 + 10 + 4 + 2) * 1000 / 9))]


def test_history_row_is_old_when_its_last_refresh_is(table: Engine) -> None:
    table.connection.execute("DELETE FROM pgtrickle.pgt_refresh_history")
    for action in ("NO_DATA", "NO_DATA", "FULL"):
        table.refresh(1, action=action)
    table.connection.execute("UPDATE pgtrickle.pgt_refresh_history SET start_time = now() - interval '31 days'")
    assert table.value("SELECT pgtrickle._prune_history()") == 0
    table.connection.execute("UPDATE pgtrickle.pgt_refresh_history SET last_end_time = now() - interval '31 days'")
    assert table.value("SELECT pgtrickle._prune_history()") == 1


# Cleaning


def buffered(engine: Engine) -> int:
    return len(engine.changes("t"))


def clean(connection: Connection) -> int:
    row = connection.execute("SELECT pgtrickle._cleanup_buffers()").fetchone()
    assert row is not None
    return int(row[0])


def test_cleanup_removes_what_all_have_seen(table: Engine) -> None:
    second = table.create("second", t=["id"])
    table.connection.execute("INSERT INTO t VALUES (1, 'a')")
    table.refresh(1)
    assert clean(table.connection) == 0 and buffered(table) == 1  # the second has no frontier yet
    table.refresh(second)
    table.connection.execute("INSERT INTO t VALUES (2, 'b')")
    table.refresh(1)
    assert clean(table.connection) == 1 and buffered(table) == 1
    table.refresh(second)
    assert clean(table.connection) == 1 and buffered(table) == 0
    assert clean(table.connection) == 0


def test_cleanup_spares_changes_of_open_transactions(table: Engine, writer: Connection) -> None:
    writer.execute("INSERT INTO t VALUES (1, 'open')")
    table.connection.execute("INSERT INTO t VALUES (2, 'seen')")
    table.refresh(1)
    clean(table.connection)
    writer.commit()
    assert table.pending(1) == {"t": 1}


def test_cleanup_does_not_wait_for_readers_or_writers(table: Engine, connect: Connect, writer: Connection) -> None:
    table.connection.execute("SET statement_timeout = '60s'; INSERT INTO t VALUES (1, 'a')")
    reader = connect(autocommit=False)
    reader.execute(f"SELECT * FROM pgtrickle_changes.changes_{table.oid('t')}")
    table.refresh(1)
    assert clean(table.connection) == 1 and buffered(table) == 0  # by DELETE: the reader keeps the lock
    writer.execute("INSERT INTO t VALUES (2, 'b')")
    assert clean(table.connection) == 0


def test_cleanup_leaves_a_buffer_alone_that_somebody_starts_to_read(table: Engine, connect: Connect) -> None:
    table.connection.execute("INSERT INTO t VALUES (1, 'a')")
    table.refresh(1)
    creator = connect(autocommit=False)
    Engine(creator).create("second", t=["id"])
    assert clean(table.connection) == 0 and buffered(table) == 1
    creator.rollback()
    assert clean(table.connection) == 1


def test_cleanup_without_truncate(table: Engine) -> None:
    table.connection.execute("SET pg_trickle.cleanup_use_truncate = off; INSERT INTO t VALUES (1, 'a')")
    table.refresh(1)
    node = f"SELECT pg_relation_filenode('pgtrickle_changes.changes_{table.oid('t')}')"
    before = table.value(node)
    assert clean(table.connection) == 1 and buffered(table) == 0 and table.value(node) == before


def test_refresh_that_began_before_the_cleanup_still_reads_its_changes(table: Engine, connect: Connect) -> None:
    table.connection.execute("INSERT INTO t VALUES (1, 'a')")
    reader = connect(autocommit=False)
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    assert Engine(reader).pending(1) == {"t": 1}
    clean(table.connection)
    assert Engine(reader).pending(1) == {"t": 1}


# Positions


def test_position_is_unsettled_while_a_capture_is_uncommitted(table: Engine, writer: Connection) -> None:
    position = "SELECT change_position, settled FROM pgtrickle._change_position()"
    before = table.connection.execute(position).fetchone()
    assert before is not None
    writer.execute("INSERT INTO t VALUES (1, 'a')")
    assert table.connection.execute(position).fetchone() == (before[0] + 1, False)
    writer.commit()
    assert table.connection.execute(position).fetchone() == (before[0] + 1, True)
    # Other open transactions do not matter.
    writer.execute("CREATE TEMP TABLE mine (a int); INSERT INTO mine VALUES (1)")
    assert table.connection.execute(position).fetchone() == (before[0] + 1, True)


def test_changed_since(table: Engine, writer: Connection) -> None:
    changed = "SELECT pgtrickle._changed_since('t'::regclass, %s)"
    snapshot = table.value("SELECT pg_current_snapshot()::text")
    assert table.value(changed, snapshot) is False
    table.connection.execute("INSERT INTO t VALUES (1, 'a')")
    assert table.value(changed, snapshot) is True
    assert table.value("SELECT pgtrickle._changed_since('st'::regclass, %s)", snapshot) is None


def test_changed_stream_tables(table: Engine, writer: Connection) -> None:
    """What a frontier has seen is no change; what somebody has locked may be one."""
    changed = "SELECT array_agg(c ORDER BY c) FROM pgtrickle._changed_stream_tables() AS c"
    frontier = (
        "UPDATE pgtrickle.pgt_stream_tables SET frontier = jsonb_build_object('snapshot', pg_current_snapshot()::text)"
    )
    table.connection.execute(frontier)
    assert table.value(changed) is None
    table.connection.execute("INSERT INTO t VALUES (1, 'a')")
    assert table.value(changed) == [1]
    table.connection.execute(frontier)
    assert table.value(changed) is None
    writer.execute(f"LOCK TABLE pgtrickle_changes.changes_{table.oid('t')} IN ACCESS EXCLUSIVE MODE")
    assert table.value(changed) == [1]
    writer.rollback()
    table.connection.execute("UPDATE pgtrickle.pgt_dependencies SET capture_generation = gen_random_uuid()")
    assert table.value(changed) == [1]


def test_changed_stream_tables_since_they_were_looked_for(table: Engine, writer: Connection) -> None:
    """What was found then is looked at again; of the rest only what has changed since then."""
    again = "SELECT array_agg(c) FROM pgtrickle._changed_stream_tables(%s, %s::bigint[]) AS c"
    frontier = (
        "UPDATE pgtrickle.pgt_stream_tables SET frontier = jsonb_build_object('snapshot', pg_current_snapshot()::text)"
    )
    position = "SELECT change_position FROM pgtrickle._change_position()"
    table.connection.execute(frontier)
    before = table.value(position)
    assert table.value(again, before, []) is None
    table.connection.execute("INSERT INTO t VALUES (1, 'a')")
    assert table.value(again, before, []) == [1]
    after = table.value(position)
    assert table.value(again, after, []) is None
    assert table.value(again, after, [1]) == [1]
    table.connection.execute(frontier)
    assert table.value(again, after, [1]) is None
    writer.execute("INSERT INTO t VALUES (2, 'b')")
    assert table.value(again, after, []) is None  # not committed
    writer.commit()
    assert table.value(again, after, []) == [1]
