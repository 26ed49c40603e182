"""`append_only`: new rows are inserted without a look at those stored, until a row goes."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

EVENTS = "SELECT id, kind, v FROM events WHERE v > 0"


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture
def events(db: Database) -> Database:
    db.run("CREATE TABLE events (id int PRIMARY KEY, kind int, v int)")
    db.run("CREATE TABLE kinds (kind int PRIMARY KEY, name text); INSERT INTO kinds VALUES (0, 'zero')")
    db.run("INSERT INTO events SELECT n, n % 3, n FROM generate_series(1, 9) AS n")
    return db


def strategy(db: Database, name: str) -> tuple[str, str]:
    last = db.history(name)[-1]
    return last["action"], last["merge_strategy_used"]


def told(db: Database) -> list[str]:
    found: list[str] = []
    db.connection.add_notice_handler(lambda notice: found.append(f"{notice.severity} {notice.message_primary}"))
    return found


JOINED = "SELECT e.id, k.kind, k.name FROM events AS e JOIN kinds AS k USING (kind)"


@pytest.mark.parametrize("query", [EVENTS, JOINED])
def test_new_rows_are_inserted(events: Database, query: str) -> None:
    events.create("log", query, append_only=True)
    assert events.state("log")["append_only"]
    for start in (10, 20):
        events.run(f"INSERT INTO events SELECT n, n % 3, n - 12 FROM generate_series({start}, {start} + 5) AS n")
        events.run(f"INSERT INTO kinds VALUES ({start // 10}, 'new')")
        events.assert_refreshed("log")
        assert strategy(events, "log") == ("DIFFERENTIAL", "INSERT")
    events.create("normal", query)
    events.run("INSERT INTO events VALUES (50, 1, 1)")
    events.assert_refreshed("normal", "log")
    assert strategy(events, "normal") == ("DIFFERENTIAL", "DELETE+UPDATE+INSERT")


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE events SET v = v + 1 WHERE id = 3",
        "DELETE FROM events WHERE id = 3",
        "INSERT INTO events VALUES (40, 0, 1); DELETE FROM events WHERE id = 40",
        "TRUNCATE events",
    ],
)
def test_a_row_that_goes_ends_it(events: Database, change: str) -> None:
    events.create("log", EVENTS, append_only=True)
    events.run("INSERT INTO events VALUES (10, 0, 1)")
    events.run(change)
    notices = told(events)
    events.assert_refreshed("log")
    assert notices == ['WARNING stream table "log" is not append_only any more: rows were updated or deleted']
    assert not events.state("log")["append_only"]
    assert "append_only was reverted" in events.history("log")[-1]["executor_reason"]
    events.run("INSERT INTO events VALUES (11, 0, 1); DELETE FROM events WHERE id = 1")
    events.assert_refreshed("log")
    events.run("SELECT pgtrickle.alter_stream_table('log', append_only => true); INSERT INTO events VALUES (12, 0, 1)")
    events.assert_refreshed("log")
    assert strategy(events, "log") == ("DIFFERENTIAL", "INSERT")


def test_an_insert_that_takes_a_row_away(events: Database) -> None:
    """No row of the sources goes, but one of the query does: it is found by the statement."""
    query = "SELECT e.id, k.kind, k.name FROM events AS e LEFT JOIN kinds AS k USING (kind)"
    events.create("log", query, append_only=True)
    events.run("INSERT INTO kinds VALUES (1, 'one')")
    events.assert_refreshed("log")
    events.run("INSERT INTO events VALUES (60, 1, 1)")
    events.assert_refreshed("log")


@pytest.mark.parametrize(
    ("query", "arguments", "reason"),
    [
        (EVENTS, {"refresh_mode": "FULL"}, "refresh mode is FULL"),
        ("SELECT kind, count(*) AS n FROM events GROUP BY kind", {}, "primary keys"),
        ("SELECT v FROM events", {}, "primary keys"),
        ("SELECT v FROM bare", {}, "no primary key"),
    ],
)
def test_what_cannot_be_append_only(events: Database, query: str, arguments: dict[str, Any], reason: str) -> None:
    events.run("CREATE TABLE bare (v int)")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="append_only") as refused:
        events.create("log", query, append_only=True, **arguments)
    hint = str(refused.value.diag.message_hint)
    assert reason in str(refused.value.diag.message_detail) and hint.startswith("Leave append_only out")
    assert ("FULL" in reason) == ("FULL" in hint) and ("no primary key" in reason) == ("give the table" in hint)
    events.create("log", query, **arguments)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="append_only"):
        events.run("SELECT pgtrickle.alter_stream_table('log', append_only => true)")
    assert not events.state("log")["append_only"]


def test_another_query_or_mode_ends_it(events: Database) -> None:
    events.create("log", EVENTS, append_only=True)
    events.run("SELECT pgtrickle.alter_stream_table('log', query => 'SELECT id, v FROM events')")
    assert events.state("log")["append_only"]
    notices = told(events)
    events.run("SELECT pgtrickle.alter_stream_table('log', query => 'SELECT kind, sum(v) AS v FROM events GROUP BY 1')")
    assert not events.state("log")["append_only"]
    assert any("is not append_only any more" in notice for notice in notices)
    replace = "SELECT pgtrickle.create_or_replace_stream_table('log', %s, append_only => %s)"
    events.run(replace, EVENTS, True)
    assert events.state("log")["append_only"]
    events.run(replace, EVENTS, True)
    assert notices[-1] != "" and events.state("log")["append_only"]
    events.run("SELECT pgtrickle.alter_stream_table('log', refresh_mode => 'FULL')")
    assert not events.state("log")["append_only"]
    events.assert_refreshed("log")
