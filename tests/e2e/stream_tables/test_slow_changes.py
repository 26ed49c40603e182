"""Changes that take far longer to apply than the whole query takes to compute."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

QUERY = "SELECT id, slowly(id) AS v FROM t"

PAIRS = """
CREATE TABLE a (id int PRIMARY KEY, k {type}, v int);
INSERT INTO a SELECT n, n::bigint::{type}, n FROM generate_series(1, 100000) AS n;
CREATE TABLE b (id int PRIMARY KEY, k {type}, v int);
INSERT INTO b SELECT n, n::bigint::{type}, n FROM generate_series(1, 100000) AS n;
ANALYZE a, b
"""
"""Two tables that are joined without an index."""


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture
def slow_db(db: Any) -> Any:
    """A table one row of which takes for ever to be computed once it is gone."""
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(-1, 2000);"
        "CREATE TABLE pace (seconds float); INSERT INTO pace VALUES (0);"
        "CREATE FUNCTION slowly(id int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN"
        " IF id = -1 THEN PERFORM pg_catalog.pg_sleep(seconds) FROM public.pace; END IF; RETURN id; END $$"
    )
    return db


def make_slow(db: Any) -> None:
    db.run("UPDATE pace SET seconds = 600; DELETE FROM t WHERE id = -1; INSERT INTO t VALUES (5000)")


def test_changes_that_take_too_long_are_given_up_for_a_full_refresh(slow_db: Any) -> None:
    slow_db.create("slow", QUERY)
    slow_db.run("INSERT INTO t VALUES (4000)")
    slow_db.assert_differential("slow")
    make_slow(slow_db)
    slow_db.run("SELECT pgtrickle.refresh_stream_table('slow')")
    slow_db.assert_current("slow")
    assert slow_db.last("slow") == ("FULL", 1, 0, 1)
    last = slow_db.history("slow")[-1]
    assert last["was_full_fallback"]
    assert "to apply the changes took" in last["executor_reason"]
    state = slow_db.state("slow")
    assert state["last_full_ms"] < 2000  # without the time that the changes took
    assert slow_db.value("SELECT current_setting('statement_timeout')") == "0"
    # So many are not tried again.
    slow_db.run("INSERT INTO t VALUES (6000), (6001)")
    slow_db.assert_refreshed("slow")
    assert slow_db.last("slow")[0] == "FULL"
    assert "were slower to apply" in slow_db.history("slow")[-1]["executor_reason"]


def test_a_transaction_goes_on_after_changes_were_given_up(slow_db: Any) -> None:
    slow_db.create("slow", QUERY)
    with slow_db.connect(autocommit=False) as connection:
        connection.execute("SET LOCAL statement_timeout = '5min'")
        connection.execute("UPDATE pace SET seconds = 600")
        connection.execute("DELETE FROM t WHERE id = -1")
        connection.execute("SELECT pgtrickle.refresh_stream_table('slow')")
        assert connection.execute("SELECT current_setting('statement_timeout')").fetchone() == ("5min",)
        assert connection.execute("SELECT count(*) FROM slow").fetchone() == (2001,)
    slow_db.assert_current("slow")


@pytest.mark.parametrize("mode", ["AUTO", "DIFFERENTIAL"])
def test_the_sessions_own_statement_timeout_is_an_error(slow_db: Any, mode: str) -> None:
    slow_db.create("slow", QUERY, refresh_mode=mode)
    make_slow(slow_db)
    slow_db.run("SET statement_timeout = '800ms'")
    with pytest.raises(psycopg.errors.QueryCanceled, match="statement timeout"):
        slow_db.refresh("slow")
    slow_db.run("RESET statement_timeout; UPDATE pace SET seconds = 0")
    assert slow_db.value("SELECT current_setting('statement_timeout')") == "0"
    slow_db.assert_differential("slow")


@pytest.mark.parametrize("mode", ["AUTO", "DIFFERENTIAL"])
def test_whoever_cancels_a_refresh_ends_it(slow_db: Any, mode: str, eventually: Callable[..., Any]) -> None:
    slow_db.create("slow", QUERY, refresh_mode=mode)
    make_slow(slow_db)
    failed: list[BaseException] = []

    def refresh() -> None:
        try:
            slow_db.refresh("slow")
        except psycopg.Error as error:
            failed.append(error)

    thread = threading.Thread(target=refresh)
    thread.start()
    watching = slow_db.connect()
    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()"
    eventually(lambda: watching.execute(sleeping).fetchone() == (1,))
    slow_db.connection.cancel()
    thread.join(60)
    assert [type(error) for error in failed] == [psycopg.errors.QueryCanceled]
    slow_db.run("UPDATE pace SET seconds = 0")
    slow_db.assert_differential("slow")


def test_who_insists_on_changes_waits_for_them(slow_db: Any) -> None:
    slow_db.create("slow", QUERY, refresh_mode="DIFFERENTIAL")
    make_slow(slow_db)
    slow_db.run("UPDATE pace SET seconds = 2.5")
    slow_db.assert_differential("slow")


@pytest.mark.parametrize(("key", "action"), [("money", "FULL"), ("int", "DIFFERENTIAL")])
def test_changes_that_are_estimated_to_be_far_dearer_are_not_begun(db: Any, key: str, action: str) -> None:
    # `money` cannot be hashed: each change is compared with each row.
    db.run(PAIRS.format(type=key))
    db.create("pairs", "SELECT a.id, b.id AS other, a.v + b.v AS v FROM a JOIN b ON a.k = b.k")
    db.run("SET pg_trickle.differential_max_change_ratio = 0.5")  # so that the number of changes decides nothing
    db.run("UPDATE a SET v = v + 1 WHERE id % 10 = 3; UPDATE b SET v = v + 1 WHERE id % 10 = 4")
    db.assert_refreshed("pairs")
    assert db.last("pairs") == (action, 0, 20000, 0)
    last = db.history("pairs")[-1]
    assert last["was_full_fallback"] == (action == "FULL")
    costs = re.search(r"40000 changed row images has an estimated cost of (\d+) against (\d+)", last["executor_reason"])
    assert (costs is not None) == (action == "FULL"), last["executor_reason"]
    assert costs is None or int(costs[1]) > 100 * int(costs[2])
    if action == "FULL":  # an estimate teaches nothing; what the changes take where they are applied may
        assert db.state("pairs")["auto_threshold"] is None
    assert db.value("SELECT current_setting('enable_mergejoin')") == "on"
    # Few changes are not estimated, and leave nothing of the kind behind.
    db.run("UPDATE a SET v = v + 1 WHERE id <= 10")
    db.assert_differential("pairs")
