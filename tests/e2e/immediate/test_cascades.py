"""IMMEDIATE stream tables among others: between deferred ones, in groups, behind gates, subscribed to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.conftest import Database

Eventually = Callable[..., Any]


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@pytest.fixture
def t(live_db: Database) -> Database:
    live_db.run(
        "CREATE TABLE t (id int PRIMARY KEY, g int, v int); CREATE TABLE u (g int PRIMARY KEY, name text);"
        "INSERT INTO t SELECT i, i % 5, i FROM generate_series(1, 50) i;"
        "INSERT INTO u SELECT i, 'u' || i FROM generate_series(0, 3) i"
    )
    return live_db


def modes(db: Database) -> dict[str, str]:
    return dict(db.rows("SELECT pgt_name, refresh_mode FROM pgtrickle.pgt_stream_tables"))


def test_immediate_ones_over_immediate_ones(t: Database) -> None:
    """A diamond: both sides are changed by one statement."""
    t.create("sums", "SELECT g, sum(v) AS s, count(*) AS n FROM t GROUP BY g", refresh_mode="IMMEDIATE")
    t.create("left_", "SELECT g, s FROM sums WHERE s > 10", refresh_mode="IMMEDIATE")
    t.create("right_", "SELECT g, n FROM sums", refresh_mode="IMMEDIATE")
    t.create(
        "tip",
        "SELECT l.g, l.s, r.n, t.id FROM left_ l JOIN right_ r USING (g) JOIN t USING (g)",
        refresh_mode="IMMEDIATE",
    )
    for statement in (
        "INSERT INTO t VALUES (1000, 1, 1), (1001, 9, 100)",
        "UPDATE t SET g = g + 1 WHERE id % 3 = 0",
        "DELETE FROM t WHERE g = 1",
        "TRUNCATE t",
        "INSERT INTO t SELECT i, i % 5, i FROM generate_series(1, 50) i",
    ):
        t.run(statement)
        t.assert_current("sums", "left_", "right_", "tip")
    assert set(modes(t).values()) == {"IMMEDIATE"}


def test_between_deferred_ones(t: Database, eventually: Eventually) -> None:
    """Deferred, IMMEDIATE, deferred, IMMEDIATE: a refresh reaches what triggers maintain in its own transaction."""
    t.create("first", "SELECT g, sum(v) AS s FROM t GROUP BY g", schedule="1s")
    t.create("second", "SELECT first.g, first.s, u.name FROM first JOIN u USING (g)", refresh_mode="IMMEDIATE")
    t.create("third", "SELECT name, max(s) AS s FROM second GROUP BY name", schedule="1s")
    t.create("fourth", "SELECT count(*) AS n, sum(s) AS s FROM third", refresh_mode="IMMEDIATE")
    names = ("first", "second", "third", "fourth")
    for statement in (
        "INSERT INTO t VALUES (1000, 1, 1000)",
        "UPDATE u SET name = name || '!'",
        "DELETE FROM t WHERE g = 2",
        "TRUNCATE t",
        "INSERT INTO t SELECT i, i % 5, i FROM generate_series(1, 50) i",
    ):
        t.run(statement)
        t.assert_current("second", "fourth")
        eventually(lambda: all(not t.difference(name) for name in names))
    t.run("SELECT pgtrickle.alter_stream_table('first', query => 'SELECT g, sum(v) + 1 AS s FROM t GROUP BY g')")
    eventually(lambda: all(not t.difference(name) for name in names))
    eventually(
        lambda: [m for n, m in sorted(modes(t).items())] == ["DIFFERENTIAL", "IMMEDIATE", "IMMEDIATE", "DIFFERENTIAL"]
    )
    t.run("INSERT INTO t VALUES (2000, 1, 1000)")
    t.refresh("first")
    t.assert_current("first", "second")
    t.refresh("third")
    t.assert_current("third", "fourth")


def test_in_a_diamond_and_a_refresh_group(t: Database, eventually: Eventually) -> None:
    """Deferred members are refreshed together; the IMMEDIATE one is there already, and becomes so within a group."""
    t.create("a", "SELECT g, sum(v) AS s FROM t GROUP BY g", refresh_mode="IMMEDIATE")
    t.create("b", "SELECT g, count(*) AS n FROM t GROUP BY g", schedule="1s")
    t.create("tip", "SELECT a.g, a.s, b.n FROM a JOIN b USING (g)", schedule="1s", diamond_consistency="atomic")
    t.run("SELECT pgtrickle.create_refresh_group('together', ARRAY['a', 'b'], 'repeatable_read')")
    for n in range(3):
        t.run("INSERT INTO t VALUES (%s, %s, 7)", 1000 + n, n)
        t.assert_current("a")
        eventually(lambda: not t.difference("b") and not t.difference("tip"))
    t.run("ALTER TABLE t ADD COLUMN more int; ALTER TABLE t DISABLE TRIGGER USER; ALTER TABLE t ENABLE TRIGGER USER")
    t.run("INSERT INTO t VALUES (2000, 1, 7)")
    eventually(lambda: modes(t)["a"] == "IMMEDIATE" and not t.state("a")["needs_reinit"])
    t.assert_current("a")
    eventually(lambda: not t.difference("b") and not t.difference("tip"))


def test_a_gate_does_not_hold_back_what_is_part_of_the_statement(t: Database, eventually: Eventually) -> None:
    t.create("a", "SELECT g, sum(v) AS s FROM t GROUP BY g", refresh_mode="IMMEDIATE")
    t.create("b", "SELECT g, s FROM a", schedule="1s")
    t.run("SELECT pgtrickle.gate_source('t')")
    t.run("INSERT INTO t VALUES (1000, 1, 7)")
    t.assert_current("a")
    t.run("SELECT pgtrickle.ungate_source('t')")
    eventually(lambda: not t.difference("b"))


def test_subscribed_to(t: Database) -> None:
    t.create("a", "SELECT g, sum(v) AS s FROM t WHERE g = 1 GROUP BY g", refresh_mode="IMMEDIATE")
    subscriber = t.connect(autocommit=False)
    subscriber.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT s FROM a)")

    def fetched() -> list[tuple[int, int]]:
        rows: list[tuple[int, int]] = []
        while not rows:
            rows = [(row[1], row[2]) for row in subscriber.execute("FETCH ALL c WITH (timeout = '5s')").fetchall()]
        return sorted(rows)

    ((_, before),) = fetched()
    with t.bypass() as direct:
        direct.execute("INSERT INTO t VALUES (1000, 1, 7)")
    assert fetched() == [(-1, before), (1, before + 7)]


def test_monitoring(t: Database, eventually: Eventually) -> None:
    t.create("first", "SELECT g, sum(v) AS s FROM t GROUP BY g", schedule="1h")
    t.create("now_", "SELECT t.g, u.name FROM t JOIN u USING (g)", refresh_mode="IMMEDIATE")
    t.create("later", "SELECT g, s FROM first WHERE s > 0", refresh_mode="IMMEDIATE")
    oid = t.value("SELECT 't'::regclass::oid::bigint")
    status = {
        name: row for name, *row in t.rows("SELECT name, status, refresh_mode, schedule FROM pgtrickle.pgt_status()")
    }
    assert status["public.now_"] == ["ACTIVE", "IMMEDIATE", None]
    t.run("SELECT pg_sleep(2.5)")
    t.run(f"SET my.began = '{t.value('SELECT clock_timestamp()')}'")
    t.run("INSERT INTO t VALUES (1000, 1, 1)")
    since = "clock_timestamp() - current_setting('my.began')::timestamptz"  # where it is the 2.5 s older, it is not new
    seconds = f"extract(epoch FROM {since})"
    for new in (
        f"SELECT pgtrickle.get_staleness('now_') <= {seconds}",
        f"SELECT staleness <= {since} FROM pgtrickle.pgt_status() WHERE name = 'public.now_'",
        f"SELECT staleness_secs <= {seconds} AND NOT stale FROM pgtrickle.st_refresh_stats() WHERE pgt_name = 'now_'",
        f"SELECT staleness <= {since} AND NOT stale FROM pgtrickle.pg_stat_stream_tables WHERE pgt_name = 'now_'",
        f"SELECT staleness <= {since} FROM pgtrickle.stream_tables_info WHERE pgt_name = 'now_'",
    ):
        assert t.value(new), new
    # What it reads lacks that row.
    assert t.value("SELECT pgtrickle.get_staleness('later')") > 2
    assert t.value("SELECT stale FROM pgtrickle.st_refresh_stats() WHERE pgt_name = 'later'") is False
    assert (
        t.rows("SELECT * FROM pgtrickle.health_check() WHERE severity <> 'OK' AND check_name <> 'scheduler_running'")
        == []
    )
    explained = dict(t.rows("SELECT * FROM pgtrickle.explain_st('now_')"))
    assert explained["Refresh Mode"] == "IMMEDIATE"
    assert explained["Lock"].startswith("of the stream table")
    number = t.state("now_")["pgt_id"]
    functions = {name: body for name, body in explained.items() if name.startswith("Function ")}
    assert set(functions) == {
        *(f"Function pgtrickle_roles.immediate_{number}_{part}()" for part in ("1", "2", "hold")),
        f"Function pgtrickle_changes.immediate_{number}_left()",
    }
    assert "__pgt_new" in functions[f"Function pgtrickle_roles.immediate_{number}_1()"]
    inventory = t.rows(
        "SELECT source_table, trigger_name, present AND enabled FROM pgtrickle.trigger_inventory()"
        " WHERE trigger_name ~ 'immediate' AND source_oid = %s",
        oid,
    )
    assert {name.rsplit("_", 1)[1] for _, name, _ in inventory} == {
        *("begin", "hold", "insert", "update", "delete", "truncate")
    }
    assert {(table, good) for table, _, good in inventory} == {("public.t", True)}
    assert [row[0] for row in t.rows("SELECT source_table FROM pgtrickle.list_sources('now_')")] == [
        "public.t",
        "public.u",
    ]
    assert ("now_", "IMMEDIATE") in [
        (node.split(".")[1], mode)
        for node, mode in t.rows("SELECT node, refresh_mode FROM pgtrickle.dependency_tree() WHERE status IS NOT NULL")
    ]
    shown = [line for line in t.server.status().splitlines() if "public.now_" in line and t.name in line]
    assert (
        len(shown) == 1 and "IMMEDIATE" in shown[0] and "the last change" in shown[0] and "calculated" not in shown[0]
    )
    t.run("ALTER TABLE u RENAME TO w")
    assert dict(t.rows("SELECT * FROM pgtrickle.explain_st('now_')"))["Requested Mode"] == "IMMEDIATE"
    eventually(lambda: modes(t)["now_"] == "IMMEDIATE")
    eventually(lambda: not t.rows("SELECT FROM pgtrickle.trigger_inventory() WHERE NOT present OR NOT enabled"))
