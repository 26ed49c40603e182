"""A commit is visible in what reads its table long before the schedule has gone by."""

from __future__ import annotations

import statistics
import time

import psycopg
import pytest

from tests.e2e.conftest import Database


def visible_after(db: Database, leaf: str, n: int) -> float:
    """Seconds from a commit until the stream table shows it."""
    db.run("UPDATE source SET n = %s WHERE id = 1", n)
    began = time.perf_counter()
    while db.value(f"SELECT n FROM {leaf} WHERE id = 1") != n:
        assert time.perf_counter() < began + 90
        time.sleep(0.001)
    return time.perf_counter() - began


def test_commit_is_visible_at_once_through_a_chain(live_db: Database) -> None:
    """Where each waited for its schedule it would take half of 10 s in the median."""
    db = live_db
    db.run("CREATE TABLE source (id int PRIMARY KEY, n int)")
    db.run("INSERT INTO source VALUES (1, 0), (2, 0)")
    db.create("first", "SELECT id, n FROM source", schedule="10s")
    db.create("second", "SELECT id, n FROM first", schedule="10s")
    db.create("seldom", "SELECT id, n FROM source", schedule="10m")
    db.create("at_commit", "SELECT id, n FROM source", schedule="ON COMMIT")
    assert db.state("at_commit")["schedule"] == "1s"
    took = [visible_after(db, "second", n) for n in range(1, 8)]
    assert statistics.median(took) < 2
    assert db.value("SELECT n FROM seldom WHERE id = 1") == 0  # a long schedule saves work
    db.assert_current("first", "second")
    db.run("SET pg_trickle.min_schedule_seconds = 60")
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="the minimum is 60 s"):
        db.run("SELECT pgtrickle.alter_stream_table('first', schedule => 'on commit')")
    db.run("SET pg_trickle.min_schedule_seconds = 5")
    db.run("SELECT pgtrickle.alter_stream_table('seldom', schedule => 'on commit')")
    assert db.state("seldom")["schedule"] == "5s"
