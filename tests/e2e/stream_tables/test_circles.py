"""Stream tables that read each other: they hold the least fixed point of their queries, after whatever change."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.clusters import OTHER_PROGRAMS
from tests.e2e.conftest import Database, Headwater
from tests.e2e.scheduling.loading import seen_while, skips

Eventually = Callable[..., Any]

CLOSING = "SELECT src, dst FROM edges UNION SELECT b.src, e.dst FROM reach_b b JOIN edges e ON e.src = b.dst"
REACHABLE = """
WITH RECURSIVE reach(src, dst) AS (
    SELECT src, dst FROM edges
    UNION
    SELECT r.src, e.dst FROM reach r JOIN edges e ON e.src = r.dst
)
SELECT src, dst FROM reach ORDER BY 1, 2
"""


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


def alter(db: Database, name: str, query: str) -> None:
    db.run("SELECT pgtrickle.alter_stream_table(%s, query => %s)", name, query)


def pair(db: Database, **options: Any) -> None:
    """reach_a and reach_b, which read each other: each holds which nodes can be reached from which."""
    db.run("CREATE TABLE edges (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, src int NOT NULL, dst int NOT NULL)")
    db.run("INSERT INTO edges (src, dst) VALUES (1, 2), (2, 3)")
    db.create("reach_a", "SELECT DISTINCT src, dst FROM edges", **options)
    db.create("reach_b", "SELECT src, dst FROM reach_a", **options)
    db.run("SET pg_trickle.allow_circular = on")
    alter(db, "reach_a", CLOSING)


def assert_reachable(db: Database, *names: str) -> None:
    """They hold what WITH RECURSIVE gives, and equal their queries."""
    for name in names:
        assert db.rows(f"SELECT src, dst FROM {name} ORDER BY 1, 2") == db.rows(REACHABLE), name
        db.assert_current(name)


def actions(db: Database, name: str) -> list[str]:
    return [row["action"] for row in db.history(name)]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "change",
    [
        "INSERT INTO edges (src, dst) VALUES (3, 4), (4, 5), (10, 11)",
        "INSERT INTO edges (src, dst) VALUES (3, 1)",
        "INSERT INTO edges (src, dst) VALUES (1, 2), (1, 1)",
        "DELETE FROM edges WHERE src = 2",
        "UPDATE edges SET dst = 7 WHERE src = 1",
        "UPDATE edges SET src = src",
        "TRUNCATE edges",
        "DELETE FROM edges WHERE src = 1; INSERT INTO edges (src, dst) VALUES (0, 1), (3, 0)",
    ],
)
@pytest.mark.parametrize("named", ["reach_a", "reach_b"])
def test_two_that_read_each_other_follow_every_change(db: Database, change: str, named: str) -> None:
    pair(db)
    assert_reachable(db, "reach_a", "reach_b")
    db.run("INSERT INTO edges (src, dst) VALUES (3, 4), (4, 2)")
    db.refresh(named)
    assert_reachable(db, "reach_a", "reach_b")
    db.run(change)
    db.refresh(named)
    assert_reachable(db, "reach_a", "reach_b")


def test_rows_that_only_support_each_other_go(db: Database) -> None:
    """Without the edge (1, 2) nothing leads into the cycle 2 -> 3 -> 2, whose rows rest on each other."""
    pair(db)
    db.run("TRUNCATE edges; INSERT INTO edges (src, dst) VALUES (1, 2), (2, 3), (3, 2)")
    alter(
        db,
        "reach_a",
        "SELECT 1 AS src, 1 AS dst UNION SELECT b.src, e.dst FROM reach_b b JOIN edges e ON e.src = b.dst",
    )
    assert db.rows("SELECT dst FROM reach_b ORDER BY 1") == [(1,), (2,), (3,)]
    db.run("DELETE FROM edges WHERE src = 1")
    db.refresh("reach_b")
    assert db.rows("SELECT dst FROM reach_a") == db.rows("SELECT dst FROM reach_b") == [(1,)]
    db.assert_current("reach_a", "reach_b")


def test_new_rows_are_followed_by_changes_alone(db: Database) -> None:
    pair(db)
    db.run("INSERT INTO edges (src, dst) VALUES (3, 4), (4, 5)")
    db.refresh("reach_a")
    rows = [row for row in db.history("reach_a") + db.history("reach_b") if row["action"] == "DIFFERENTIAL"]
    assert {row["rows_deleted"] for row in rows} == {0}
    assert actions(db, "reach_a")[-1] == actions(db, "reach_b")[-1] == "DIFFERENTIAL"
    db.run("DELETE FROM edges WHERE src = 4")
    db.refresh("reach_a")
    whole = [row for row in db.history("reach_a") if row["action"] == "FULL"][-1]
    assert whole["was_full_fallback"] and "rows were updated or deleted in public.edges" in whole["executor_reason"]


def test_what_nobody_reads_may_change(db: Database) -> None:
    """And what is taken away and given back: then no row has gone."""
    pair(db)
    db.run("ALTER TABLE edges ADD COLUMN length int; INSERT INTO edges (src, dst, length) VALUES (3, 4, 1)")
    db.create("lengths", "SELECT src, dst, length FROM edges")
    db.refresh("reach_a")
    before = len(db.history("reach_a"))
    db.run("UPDATE edges SET length = 7; INSERT INTO edges (src, dst) VALUES (4, 5)")
    db.run("DELETE FROM edges WHERE src = 2; INSERT INTO edges (src, dst) VALUES (2, 3)")
    db.refresh("reach_a")
    assert set(actions(db, "reach_a")[before:]) == {"DIFFERENTIAL"}
    assert_reachable(db, "reach_a", "reach_b")
    db.run("INSERT INTO edges (src, dst) VALUES (1, 2); DELETE FROM edges WHERE src = 1; UPDATE edges SET length = 8")
    db.refresh("reach_a")
    assert "FULL" in actions(db, "reach_a")[before:]
    assert_reachable(db, "reach_a", "reach_b")


def test_readers_below_get_what_differs(db: Database) -> None:
    """Members are emptied on the way, which is not what those below are told."""
    pair(db)
    db.run("INSERT INTO edges (src, dst) SELECT n, n + 1 FROM generate_series(3, 20) n")
    db.refresh("reach_a")
    db.create("fan_out", "SELECT src, count(*) AS n FROM reach_b GROUP BY src")
    subscribed = db.connect(autocommit=False)
    subscribed.execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT src, dst FROM reach_b) WITH (SNAPSHOT = false)")
    db.run("DELETE FROM edges WHERE dst = 21")
    db.refresh("reach_a")
    assert db.rows("SELECT src, dst FROM reach_b ORDER BY 1, 2") == db.rows(REACHABLE)
    db.refresh("fan_out")
    db.assert_current("fan_out")
    last = db.history("fan_out")[-1]
    assert (last["action"], last["delta_row_count"]) == ("DIFFERENTIAL", 20)
    changes: list[tuple[Any, ...]] = []
    while len(changes) < 20:
        changes += subscribed.execute("FETCH 100 c WITH (timeout = '10s')").fetchall()
    assert {row[1] for row in changes} == {-1} and len({row[2:] for row in changes}) == 20


@pytest.mark.long
def test_three_members_with_readers_and_sources_between(db: Database) -> None:
    """Alternating paths: an even number of steps by train, then by ship, then by train again."""
    db.run("CREATE TABLE train (a int, b int); CREATE TABLE ship (a int, b int); CREATE TABLE start (a int)")
    db.run("INSERT INTO start VALUES (1); INSERT INTO train VALUES (1, 2), (3, 4); INSERT INTO ship VALUES (2, 3)")
    db.create("harbours", "SELECT b FROM ship")
    db.create("by_train", "SELECT a AS place FROM start")
    db.create("arrived", "SELECT t.b AS place FROM by_train p JOIN train t ON t.a = p.place")
    db.create(
        "by_ship",
        "SELECT DISTINCT s.b AS place FROM arrived p JOIN ship s ON s.a = p.place JOIN harbours h ON h.b = s.b",
    )
    db.create("visits", "SELECT place, count(*) AS n FROM by_ship GROUP BY place")
    db.run("SET pg_trickle.allow_circular = on")
    alter(db, "by_train", "SELECT a AS place FROM start UNION SELECT place FROM by_ship")
    expected = """
        WITH RECURSIVE r(place) AS (
            SELECT a FROM start UNION
            SELECT s.b FROM r JOIN train t ON t.a = r.place JOIN ship s ON s.a = t.b
        ) SELECT place FROM r ORDER BY 1
    """
    for change in (
        "SELECT 1",
        "INSERT INTO ship VALUES (4, 1), (4, 5)",
        "INSERT INTO train VALUES (5, 4), (1, 2)",
        "DELETE FROM train WHERE a = 1",
        "INSERT INTO start VALUES (3); INSERT INTO train VALUES (1, 2)",
        "TRUNCATE ship",
        "INSERT INTO ship VALUES (2, 3), (4, 1)",
        "DELETE FROM start",
    ):
        db.run(change)
        db.refresh("harbours")
        db.refresh("arrived")
        db.refresh("visits")
        assert db.rows("SELECT place FROM by_train ORDER BY 1") == db.rows(expected), change
        db.assert_current("by_train", "arrived", "by_ship", "visits")


@pytest.mark.long
def test_what_has_no_fixed_point_is_given_up(db: Database) -> None:
    pair(db)
    with pytest.raises(psycopg.errors.ProgramLimitExceeded) as failure:
        db.run("INSERT INTO edges (src, dst) VALUES (3, 1)")
        alter(db, "reach_a", CLOSING.replace("UNION", "UNION ALL"))
    assert failure.value.diag.message_primary == (
        'stream tables "reach_a", "reach_b" have not come to a fixed point after 100 iterations'
    )
    db.refresh("reach_a")
    assert_reachable(db, "reach_a", "reach_b")
    # It has one as long as there is no cycle in the data, and each path counts.
    db.run("DELETE FROM edges WHERE src = 3")
    alter(db, "reach_a", CLOSING.replace("UNION", "UNION ALL"))
    db.run("INSERT INTO edges (src, dst) VALUES (3, 4), (2, 4)")
    db.refresh("reach_b")
    db.assert_current("reach_a", "reach_b")
    assert db.value("SELECT count(*) FROM reach_a WHERE (src, dst) = (1, 4)") == 2
    before = db.rows("SELECT src, dst FROM reach_a ORDER BY 1, 2")
    db.run("SET pg_trickle.max_fixpoint_iterations = 20; INSERT INTO edges (src, dst) VALUES (4, 1)")
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="after 20 iterations"):
        db.refresh("reach_b")
    assert db.rows("SELECT src, dst FROM reach_a ORDER BY 1, 2") == before


def test_a_long_way_needs_as_many_iterations(db: Database) -> None:
    pair(db)
    db.run("INSERT INTO edges (src, dst) SELECT n, n + 1 FROM generate_series(3, 31) n")
    db.run("SET pg_trickle.max_fixpoint_iterations = 20")
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        db.refresh("reach_a")
    db.run("SET pg_trickle.max_fixpoint_iterations = 31")
    db.refresh("reach_a")
    assert_reachable(db, "reach_a", "reach_b")
    assert db.state("reach_a")["last_fixpoint_iterations"] <= 31


def test_refused_unless_it_is_allowed(db: Database) -> None:
    db.run("CREATE TABLE edges (src int, dst int)")
    db.create("reach_a", "SELECT DISTINCT src, dst FROM edges")
    db.create("reach_b", "SELECT src, dst FROM reach_a")
    with pytest.raises(psycopg.errors.InvalidObjectDefinition, match="would be computed from itself") as failure:
        alter(db, "reach_a", CLOSING)
    assert "allow_circular" in (failure.value.diag.message_hint or "")
    db.run("SET pg_trickle.allow_circular = on")
    with pytest.raises(psycopg.errors.InvalidObjectDefinition) as failure:
        alter(db, "reach_a", "SELECT src, dst FROM edges UNION SELECT src, dst FROM reach_a")
    assert failure.value.diag.message_hint == "WITH RECURSIVE reads rows of its own."
    assert db.rows("SELECT * FROM pgtrickle.pgt_scc_status()") == []


@pytest.mark.parametrize("allowed", ["on", "off"])
def test_closed_by_two_that_do_not_see_each_other(db: Database, allowed: str) -> None:
    """One of them fails, or is tried again, and then sees the circle."""
    db.run("CREATE TABLE edges (src int, dst int)")
    for name in ("reach_a", "reach_b"):
        db.create(name, "SELECT DISTINCT src, dst FROM edges")
        db.create(f"over_{name}", f"SELECT src, dst FROM {name}")  # so that both are captured, which locks them
    others = [db.connect(), db.connect()]
    alteration = "SELECT pgtrickle.alter_stream_table(%s, query => %s)"
    for other, name, read in zip(others, ("reach_a", "reach_b"), ("reach_b", "reach_a"), strict=True):
        other.execute(f"SET pg_trickle.allow_circular = {allowed}".encode())
        other.execute("BEGIN")
        other.execute(alteration, [name, f"SELECT src, dst FROM edges UNION SELECT src, dst FROM {read}"])
    others[0].execute("COMMIT")
    with pytest.raises(psycopg.errors.SerializationFailure, match="what stream tables read"):
        others[1].execute("COMMIT")
    again = (alteration, ["reach_b", "SELECT src, dst FROM edges UNION SELECT src, dst FROM reach_a"])
    if allowed == "on":
        others[1].execute(*again)
        db.run("INSERT INTO edges VALUES (1, 2)")
        db.refresh("reach_a")
        assert db.rows("SELECT src, dst FROM reach_b") == [(1, 2)]
    else:
        with pytest.raises(psycopg.errors.InvalidObjectDefinition, match="would be computed from itself"):
            others[1].execute(*again)


@pytest.mark.parametrize(
    ("query", "construct"),
    [
        ("SELECT src, max(dst) AS dst FROM reach_b GROUP BY src", "an aggregate or GROUP BY"),
        ("SELECT src, dst FROM edges EXCEPT SELECT dst, src FROM reach_b", "EXCEPT"),
        ("SELECT src, (row_number() OVER (ORDER BY dst))::int AS dst FROM reach_b", "a window function"),
        (
            "SELECT src, dst FROM edges e WHERE NOT EXISTS (SELECT FROM reach_b b WHERE b.src = e.dst)",
            "NOT EXISTS, NOT IN or ALL",
        ),
        ("SELECT src, dst FROM edges WHERE src NOT IN (SELECT dst FROM reach_b)", "NOT EXISTS, NOT IN or ALL"),
        (
            "SELECT e.src, b.dst FROM edges e LEFT JOIN reach_b b ON b.src = e.dst",
            "an outer join or a scalar subquery",
        ),
        ("SELECT e.src, b.dst FROM edges e FULL JOIN reach_b b ON b.src = e.dst", "an outer join"),
        ("SELECT src, (SELECT min(dst) FROM reach_b) AS dst FROM edges", "an aggregate or GROUP BY"),
        (
            "SELECT src, (SELECT b.dst FROM reach_b b WHERE b.src = e.dst) AS dst FROM edges e",
            "an outer join or a scalar subquery",
        ),
        ("SELECT DISTINCT ON (src) src, dst FROM reach_b ORDER BY src, dst", "DISTINCT ON"),
        (
            "WITH RECURSIVE r AS (SELECT src, dst FROM reach_b UNION SELECT r.src, e.dst FROM r JOIN edges e ON"
            " e.src = r.dst) SELECT src, dst FROM r",
            "WITH RECURSIVE",
        ),
    ],
)
@pytest.mark.one_in(3)
def test_queries_that_are_not_monotone_are_refused_by_name(db: Database, query: str, construct: str) -> None:
    db.run("CREATE TABLE edges (src int, dst int)")
    db.create("reach_a", "SELECT DISTINCT src, dst FROM edges")
    db.create("reach_b", "SELECT src, dst FROM reach_a")
    db.run("SET pg_trickle.allow_circular = on")
    with pytest.raises(psycopg.errors.FeatureNotSupported) as failure:
        alter(db, "reach_a", query)
    assert failure.value.diag.message_primary == f"{construct} is not supported in a circle of stream tables"
    assert '"reach_a"' in (failure.value.diag.message_detail or "")


def test_other_members_must_be_monotone_as_well(db: Database) -> None:
    db.run("CREATE TABLE edges (src int, dst int)")
    db.create("reach_a", "SELECT DISTINCT src, dst FROM edges")
    db.create("counted", "SELECT src, max(dst) AS dst FROM reach_a GROUP BY src")
    db.create("whole", "SELECT src, dst FROM reach_a", refresh_mode="FULL")
    db.run("SET pg_trickle.allow_circular = on")
    with pytest.raises(psycopg.errors.FeatureNotSupported) as failure:
        alter(db, "reach_a", "SELECT src, dst FROM edges UNION SELECT src, dst FROM counted")
    assert '"counted"' in (failure.value.diag.message_detail or "")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match='"whole" cannot be in a circle in FULL mode'):
        alter(db, "reach_a", "SELECT src, dst FROM edges UNION SELECT src, dst FROM whole")


def test_monotone_constructs(db: Database) -> None:
    """Semi-joins, INTERSECT, DISTINCT, set-returning functions and views."""
    db.run("CREATE TABLE t (n int); INSERT INTO t SELECT generate_series(1, 10); CREATE VIEW v AS SELECT n FROM t")
    db.create("a", "SELECT n FROM t WHERE n = 1")
    db.create("b", "SELECT DISTINCT g AS n FROM a, generate_series(a.n, a.n + 1) g WHERE g IN (SELECT n FROM v)")
    db.create("c", "SELECT n FROM v INTERSECT SELECT n FROM b")
    db.run("SET pg_trickle.allow_circular = on")
    alter(
        db,
        "a",
        "SELECT n FROM t WHERE n = 1 UNION SELECT t.n FROM t WHERE EXISTS (SELECT FROM c WHERE c.n = t.n) AND n <> 7",
    )
    for change, highest in (
        ("SELECT 1", 6),
        ("DELETE FROM t WHERE n = 4", 3),
        ("INSERT INTO t VALUES (4)", 6),
        ("DELETE FROM t WHERE n = 1", None),
    ):
        db.run(change)
        db.refresh("c")
        assert db.value("SELECT max(n) FROM a") == highest
        db.assert_current("a", "b", "c")


def test_status_and_history(db: Database) -> None:
    pair(db)
    db.create("lonely", "SELECT src FROM edges")
    ((scc_id, count, members, iterations, converged),) = db.rows("SELECT * FROM pgtrickle.pgt_scc_status()")
    assert (count, members) == (2, ["public.reach_a", "public.reach_b"])
    assert db.state("reach_a")["scc_id"] == db.state("reach_b")["scc_id"] == scc_id
    assert db.state("lonely")["scc_id"] is None and db.state("lonely")["last_fixpoint_iterations"] is None
    assert db.state("reach_a")["last_fixpoint_iterations"] == iterations >= 2
    assert converged is not None
    db.run("INSERT INTO edges (src, dst) VALUES (3, 4)")
    db.refresh("reach_a")
    ((iterations,),) = db.rows("SELECT last_iterations FROM pgtrickle.pgt_scc_status()")
    of_last = [row["fixpoint_iteration"] for row in db.history("reach_a")][-iterations:]
    assert of_last == list(range(1, iterations + 1)) and iterations >= 2
    assert db.rows(
        "SELECT DISTINCT scc_id, last_fixpoint_iterations FROM pgtrickle.stream_tables_info WHERE scc_id IS NOT NULL"
    ) == [(scc_id, iterations)]
    assert {row["fixpoint_iteration"] for row in db.history("lonely")} == {None}
    before = db.rows("SELECT last_iterations FROM pgtrickle.pgt_scc_status()"), len(db.history("reach_b"))
    db.refresh("reach_a")
    assert actions(db, "reach_a")[-1] == "NO_DATA"
    assert (db.rows("SELECT last_iterations FROM pgtrickle.pgt_scc_status()"), len(db.history("reach_b"))) == before


@pytest.mark.parametrize("opened", ["alter a", "alter b", "drop a", "drop table b", "drop both"])
@pytest.mark.one_in(2)
def test_a_circle_that_is_opened_is_none(db: Database, opened: str) -> None:
    pair(db)
    if opened == "alter a":
        alter(db, "reach_a", "SELECT DISTINCT src, dst FROM edges")
        db.run("DELETE FROM edges WHERE src = 2")
        db.assert_refreshed("reach_a", "reach_b")
    elif opened == "alter b":
        alter(db, "reach_b", "SELECT src, dst FROM edges")
        db.run("DELETE FROM edges WHERE src = 2")
        db.assert_refreshed("reach_b", "reach_a")
    elif opened == "drop a":
        db.run("SELECT pgtrickle.drop_stream_table('reach_a')")
    elif opened == "drop table b":
        db.run("DROP TABLE reach_b")
    else:
        db.run("SELECT pgtrickle.drop_stream_table('reach_a'), pgtrickle.drop_stream_table('reach_b')")
    assert db.rows("SELECT * FROM pgtrickle.pgt_scc_status()") == []
    assert db.rows("SELECT scc_id, last_fixpoint_iterations FROM pgtrickle.pgt_stream_tables WHERE scc_id > 0") == []


def test_what_is_left_of_a_circle_stays_one(db: Database) -> None:
    pair(db)
    db.create("reach_c", "SELECT src, dst FROM reach_b")
    alter(db, "reach_b", "SELECT src, dst FROM reach_a UNION SELECT src, dst FROM reach_c")
    assert db.value("SELECT members FROM pgtrickle.pgt_scc_status()") == [f"public.reach_{n}" for n in "abc"]
    alter(db, "reach_a", "SELECT DISTINCT src, dst FROM edges")
    assert db.value("SELECT members FROM pgtrickle.pgt_scc_status()") == ["public.reach_b", "public.reach_c"]
    db.run("DELETE FROM edges WHERE src = 2")
    db.refresh("reach_a")
    db.refresh("reach_c")
    assert db.rows("SELECT src, dst FROM reach_b") == db.rows("SELECT src, dst FROM reach_c") == [(1, 2)]
    db.assert_current("reach_a", "reach_b", "reach_c")


def test_create_or_replace_and_a_view_close_one_too(db: Database) -> None:
    db.run("CREATE TABLE edges (src int, dst int); INSERT INTO edges VALUES (1, 2), (2, 3)")
    db.run("CREATE VIEW door AS SELECT src, dst FROM edges WHERE false")
    db.create("reach_a", CLOSING.replace("reach_b", "door"))
    db.create("reach_b", "SELECT src, dst FROM reach_a")
    db.run("SET pg_trickle.allow_circular = on")
    db.run("CREATE OR REPLACE VIEW door AS SELECT src, dst FROM reach_b")
    db.refresh("reach_a")
    assert_reachable(db, "reach_a", "reach_b")
    assert db.value("SELECT member_count FROM pgtrickle.pgt_scc_status()") == 2
    db.run("SELECT pgtrickle.create_or_replace_stream_table('reach_a', %s)", CLOSING)
    db.run("INSERT INTO edges VALUES (3, 1)")
    db.refresh("reach_a")
    assert_reachable(db, "reach_a", "reach_b")
    more = CLOSING.replace("src, dst", "src, dst, 'by edge' AS how").replace("e.dst F", "e.dst, 'by edge' F")
    db.run("SELECT pgtrickle.create_or_replace_stream_table('reach_a', %s)", more)
    assert db.rows("SELECT DISTINCT how FROM reach_a") == [("by edge",)]
    db.run("DELETE FROM edges WHERE src = 3")
    db.refresh("reach_b")
    assert_reachable(db, "reach_b")
    db.assert_current("reach_a")


def test_a_member_cannot_be_computed_as_a_whole(db: Database) -> None:
    pair(db)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot be in a circle in FULL mode"):
        db.run("SELECT pgtrickle.alter_stream_table('reach_b', refresh_mode => 'FULL')")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot be in a circle in FULL mode"):
        db.run(
            "SELECT pgtrickle.alter_stream_table('reach_b',"
            " query => 'SELECT src, dst FROM reach_a WHERE true', refresh_mode => 'FULL')"
        )


def test_refreshes_within_a_transaction(db: Database) -> None:
    """What the transaction has changed itself counts, at READ COMMITTED and above, before and after a refresh."""
    pair(db)
    db.create("fan_out", "SELECT src, count(*) AS n FROM reach_b GROUP BY src")
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        db.run(f"BEGIN ISOLATION LEVEL {level}")
        db.run("INSERT INTO edges (src, dst) VALUES (3, 4), (4, 1)")
        db.refresh("reach_b")
        assert_reachable(db, "reach_a", "reach_b")
        db.refresh("fan_out")
        db.run("DELETE FROM edges WHERE src = 2")
        db.refresh("reach_a")
        assert_reachable(db, "reach_a", "reach_b")
        db.run("INSERT INTO edges (src, dst) VALUES (2, 3)")
        db.refresh("reach_a")
        assert_reachable(db, "reach_a", "reach_b")
        db.refresh("fan_out")
        db.assert_current("fan_out")
        db.run("DELETE FROM edges WHERE src = 4")
        db.refresh("reach_b")
        db.run("COMMIT")
        assert_reachable(db, "reach_a", "reach_b")
        db.refresh("fan_out")
        db.assert_current("fan_out")


def test_the_scheduler_refreshes_all_members_at_once(live_db: Database, eventually: Eventually) -> None:
    """Nobody sees one without the other, or a member that is empty on the way."""
    db = live_db
    pair(db, schedule="1s")
    db.create("fan_out", "SELECT src, count(*) AS n FROM reach_b GROUP BY src", schedule="1s")
    torn = "SELECT (SELECT count(*) FROM reach_a) = (SELECT count(*) FROM reach_b), (SELECT count(*) > 0 FROM reach_a)"
    source = random.Random(17)
    with seen_while(db, torn) as seen:
        for _ in range(15):
            a, b = source.choices(range(1, 9), k=2)
            db.run("INSERT INTO edges (src, dst) VALUES (%s, %s)", a, b)
            db.run("DELETE FROM edges WHERE (src, dst) = (%s, %s) AND id > 1", *source.choices(range(1, 9), k=2))
            time.sleep(0.1)
        eventually(lambda: db.rows("SELECT src, dst FROM reach_b ORDER BY 1, 2") == db.rows(REACHABLE))
        eventually(lambda: not db.difference("fan_out"))
    assert seen == {(True, True)}
    assert_reachable(db, "reach_a", "reach_b")
    iterations = db.value("SELECT last_iterations FROM pgtrickle.pgt_scc_status()")
    assert iterations == max(row["fixpoint_iteration"] for row in db.history("reach_a")[-iterations:])
    jobs = db.rows(
        "SELECT DISTINCT unit_kind, member_count, status FROM pgtrickle.pgt_scheduler_jobs WHERE unit_key ~ ','"
    )
    assert jobs == [("atomic_group", 2, "SUCCEEDED")]


def test_a_failing_member_holds_all_back(live_db: Database, eventually: Eventually) -> None:
    db = live_db
    pair(db, schedule="1s")
    alter(db, "reach_b", "SELECT src, dst FROM reach_a WHERE 10 / (dst - 7) < 100")
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.max_consecutive_errors = 1")
    before = db.rows(REACHABLE)
    db.run("INSERT INTO edges (src, dst) VALUES (3, 7)")
    eventually(lambda: db.state("reach_b")["status"] == "SUSPENDED")
    assert db.history("reach_b")[-1]["error_message"].startswith("22012")
    assert db.rows("SELECT src, dst FROM reach_a ORDER BY 1, 2") == before
    said = "stream table public.reach_b, which is refreshed together with it, "
    eventually(lambda: said + "is suspended" in skips(db, "reach_a"))
    assert said + "has failed" in skips(db, "reach_a")
    db.run("UPDATE edges SET dst = 8 WHERE dst = 7")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match='"reach_b" is suspended'):
        db.refresh("reach_a")
    db.run("SELECT pgtrickle.resume_stream_table('reach_b')")
    eventually(lambda: db.rows("SELECT src, dst FROM reach_a ORDER BY 1, 2") == db.rows(REACHABLE))
    assert_reachable(db, "reach_a", "reach_b")


def test_what_has_no_fixed_point_counts_as_a_failure_of_the_scheduler(
    live_db: Database, eventually: Eventually
) -> None:
    db = live_db
    pair(db, schedule="1s")
    alter(db, "reach_a", CLOSING.replace("UNION", "UNION ALL"))
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.max_fixpoint_iterations = 12")
    before = db.rows("SELECT src, dst FROM reach_a ORDER BY 1, 2")
    db.run("INSERT INTO edges (src, dst) VALUES (3, 1)")
    eventually(lambda: any(db.state(name)["consecutive_errors"] for name in ("reach_a", "reach_b")))
    assert db.rows("SELECT src, dst FROM reach_a ORDER BY 1, 2") == before
    told = [
        row["error_message"] for name in ("reach_a", "reach_b") for row in db.history(name) if row["status"] == "FAILED"
    ]
    assert told[0].startswith(
        '54000: stream tables "reach_a", "reach_b" have not come to a fixed point after 12 iterations'
    )
    db.run("DELETE FROM edges WHERE src = 3")
    eventually(lambda: not any(db.state(name)["consecutive_errors"] for name in ("reach_a", "reach_b")))
    db.assert_current("reach_a", "reach_b")


@pytest.mark.parametrize("by_hand", [True, False])
def test_writers_beside_refreshes(live_db: Database, eventually: Eventually, by_hand: bool) -> None:
    """At READ COMMITTED a statement of a refresh can see a row go that was there when the refresh began."""
    db = live_db
    pair(db, schedule="1h" if by_hand else "1s")
    ended = threading.Event()
    writers = [db.connect() for _ in range(3)]

    def write(writer: psycopg.Connection[Any], seed: int) -> None:
        source = random.Random(seed)
        while not ended.is_set():
            writer.execute("INSERT INTO edges (src, dst) VALUES (%s, %s)", source.choices(range(1, 13), k=2))
            writer.execute(
                "DELETE FROM edges WHERE id IN (SELECT id FROM edges WHERE src = %s LIMIT 2)", [source.randrange(1, 13)]
            )

    threads = [threading.Thread(target=write, args=(writer, seed)) for seed, writer in enumerate(writers)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            if by_hand:
                try:
                    db.refresh("reach_b")
                except psycopg.errors.SerializationFailure as busy:
                    assert "were updated or deleted in public.edges" in str(busy)
            else:
                time.sleep(0.3)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    if by_hand:
        db.refresh("reach_b")
    eventually(lambda: db.rows("SELECT src, dst FROM reach_b ORDER BY 1, 2") == db.rows(REACHABLE))
    assert_reachable(db, "reach_a", "reach_b")


def test_rows_that_go_while_a_refresh_begins(db: Database, eventually: Eventually) -> None:
    """At READ COMMITTED the statement sees the deletion, which was not there when the refresh was decided."""
    pair(db)
    db.run("TRUNCATE edges; INSERT INTO edges (src, dst) VALUES (1, 2), (2, 3), (3, 2)")
    alter(
        db,
        "reach_a",
        "SELECT 1 AS src, 1 AS dst UNION SELECT b.src, e.dst FROM reach_b b JOIN edges e ON e.src = b.dst",
    )
    db.run("INSERT INTO edges (src, dst) VALUES (3, 9)")
    writer, refresher = db.connect(autocommit=False), db.connect()
    writer.execute("LOCK TABLE edges; DELETE FROM edges WHERE src = 1")
    thread = threading.Thread(target=refresher.execute, args=("SELECT pgtrickle.refresh_stream_table('reach_a')",))
    thread.start()
    waiting = "SELECT pid FROM pg_locks WHERE relation = 'edges'::regclass AND NOT granted"
    eventually(lambda: db.rows(waiting), what="a refresh that waits")
    writer.commit()
    thread.join()
    assert "FULL" in actions(db, "reach_a")[-3:]
    assert db.rows("SELECT dst FROM reach_a") == db.rows("SELECT dst FROM reach_b") == [(1,)]
    db.assert_current("reach_a", "reach_b")


def test_a_refresh_that_is_ended_midway_leaves_nothing_of_it(db: Database, eventually: Eventually) -> None:
    """At that moment reach_a is changed, or emptied, and reach_b is not."""
    pair(db)
    for change in ("INSERT INTO edges (src, dst) VALUES (3, 4)", "DELETE FROM edges WHERE src = 1"):
        before = db.rows("SELECT src, dst FROM reach_a ORDER BY 1, 2")
        db.run(change)
        holder, refresher = db.bypass(autocommit=False), db.connect()
        holder.execute("LOCK TABLE reach_b IN SHARE MODE")
        failures: list[BaseException] = []

        def refresh(connection: psycopg.Connection[Any], failures: list[BaseException]) -> None:
            try:
                connection.execute("SELECT pgtrickle.refresh_stream_table('reach_a')")
            except psycopg.Error as error:
                failures.append(error)

        thread = threading.Thread(target=refresh, args=(refresher, failures))
        thread.start()
        waiting = "SELECT l.pid FROM pg_locks l WHERE l.relation = 'reach_b'::regclass AND NOT l.granted"
        ((pid,),) = eventually(lambda query=waiting: db.rows(query), what="a refresh that waits")
        db.run("SELECT pg_terminate_backend(%s)", pid)
        thread.join()
        assert failures
        assert db.rows("SELECT src, dst FROM reach_a ORDER BY 1, 2") == before
        assert db.rows("SELECT src, dst FROM reach_b ORDER BY 1, 2") == before
        holder.rollback()
        db.refresh("reach_b")
        assert_reachable(db, "reach_a", "reach_b")


@pytest.mark.long
def test_a_server_that_is_killed_goes_on(own_server: Headwater, own_db: Database, eventually: Eventually) -> None:
    db = own_db
    pair(db, schedule="1s")
    db.run("INSERT INTO edges (src, dst) SELECT n, n + 1 FROM generate_series(3, 40) n")
    eventually(lambda: db.rows("SELECT src, dst FROM reach_b ORDER BY 1, 2") == db.rows(REACHABLE))
    db.run("DELETE FROM edges WHERE src = 20")
    running = "SELECT count(*) FROM pgtrickle.pgt_stat_progress_refresh"
    eventually(lambda: db.value(running) > 0, what="a refresh")
    own_server.kill()
    own_server.start()
    db.connection = db.connect()
    eventually(lambda: db.rows("SELECT src, dst FROM reach_b ORDER BY 1, 2") == db.rows(REACHABLE))
    assert_reachable(db, "reach_a", "reach_b")


def test_a_suspended_member_can_get_another_query(db: Database) -> None:
    """All are computed by it when it is resumed."""
    pair(db)
    db.run("SELECT pgtrickle.alter_stream_table('reach_b', status => 'SUSPENDED')")
    alter(db, "reach_b", "SELECT src, dst FROM reach_a WHERE dst < 100")
    alter(db, "reach_a", CLOSING.replace("FROM edges", "FROM edges WHERE src > 1", 1))
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        db.refresh("reach_a")
    db.run("SELECT pgtrickle.resume_stream_table('reach_b')")
    db.refresh("reach_a")
    db.assert_current("reach_a", "reach_b")
    assert db.rows("SELECT src, dst FROM reach_b") == [(2, 3)]


def test_refreshes_by_hand_at_once(db: Database) -> None:
    """They wait for each other in one order."""
    pair(db)
    failures: list[BaseException] = []

    def work(connection: psycopg.Connection[Any], name: str, seed: int) -> None:
        source = random.Random(seed)
        try:
            for _ in range(6):
                connection.execute("INSERT INTO edges (src, dst) VALUES (%s, %s)", source.choices(range(1, 9), k=2))
                connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [name])
        except psycopg.Error as error:
            failures.append(error)

    names = ["reach_a", "reach_b"] * 2
    threads = [threading.Thread(target=work, args=(db.connect(), name, seed)) for seed, name in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    db.refresh("reach_a")
    assert_reachable(db, "reach_a", "reach_b")


def test_members_of_other_roles(db: Database, role: Callable[..., psycopg.Connection[Any]]) -> None:
    """Members wait for each other, so nobody makes a circle with what belongs to a role that he may not act for."""
    alice, bob = role("alice"), role("bob")
    db.run("CREATE TABLE edges (src int, dst int)")
    db.run(f"GRANT SELECT ON edges TO {alice.info.user}, {bob.info.user}")
    alice.execute("SELECT pgtrickle.create_stream_table('reach_a', 'SELECT DISTINCT src, dst FROM edges')")
    alice.execute(f"GRANT SELECT ON reach_a TO {bob.info.user}".encode())
    bob.execute("SELECT pgtrickle.create_stream_table('reach_b', 'SELECT src, dst FROM reach_a')")
    bob.execute(f"GRANT SELECT ON reach_b TO {alice.info.user}".encode())
    alice.execute("SET pg_trickle.allow_circular = on")
    closing = "SELECT pgtrickle.alter_stream_table('reach_a', query => %s)"
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="cannot be in a circle with"):
        alice.execute(closing, [CLOSING])
    # Nor by what an owner may write down of it himself.
    read = [{"relid": db.value("SELECT 'reach_b'::regclass::oid::bigint"), "columns": []}]
    written = "SELECT pgtrickle._set_dependencies(pgtrickle._resolve('reach_a'), %s::jsonb)"
    alice.execute("BEGIN")
    alice.execute(written, [json.dumps(read)])
    assert alice.execute("SELECT * FROM pgtrickle.pgt_scc_status()").fetchall() == []
    with pytest.raises(psycopg.errors.SerializationFailure):
        alice.execute("COMMIT")
    db.run(f"GRANT {bob.info.user} TO {alice.info.user}")
    alice.execute(closing, [CLOSING])
    assert db.value("SELECT members FROM pgtrickle.pgt_scc_status()") == ["public.reach_a", "public.reach_b"]
    db.run("INSERT INTO edges VALUES (1, 2), (2, 3)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match='must be owner of stream table "reach_a"'):
        bob.execute("SELECT pgtrickle.refresh_stream_table('reach_b')")
    alice.execute("SELECT pgtrickle.refresh_stream_table('reach_b')")
    assert_reachable(db, "reach_a", "reach_b")
    db.run("DELETE FROM edges WHERE src = 1")
    alice.execute("SELECT pgtrickle.refresh_stream_table('reach_a')")
    assert_reachable(db, "reach_a", "reach_b")


@pytest.mark.parametrize("by_hand", [True, False])
def test_what_capture_has_missed_is_made_good_for(live_db: Database, eventually: Eventually, by_hand: bool) -> None:
    db = live_db
    pair(db, schedule="1h" if by_hand else "1s")
    db.run("INSERT INTO edges (src, dst) VALUES (3, 2)")
    db.refresh("reach_a")
    db.run(
        "ALTER TABLE edges DISABLE TRIGGER ALL; DELETE FROM edges WHERE src < 3;"
        " INSERT INTO edges (src, dst) VALUES (2, 9)"
    )
    db.run("ALTER TABLE edges ENABLE TRIGGER ALL")
    if by_hand:
        db.refresh("reach_b")
    eventually(lambda: db.rows("SELECT src, dst FROM reach_b ORDER BY 1, 2") == db.rows(REACHABLE))
    assert_reachable(db, "reach_a", "reach_b")
    assert "REINITIALIZE" in actions(db, "reach_a")
    db.run("DELETE FROM edges WHERE src = 3")
    if by_hand:
        db.refresh("reach_b")
    eventually(lambda: db.rows("SELECT src, dst FROM reach_b ORDER BY 1, 2") == db.rows(REACHABLE))
    assert_reachable(db, "reach_a", "reach_b")


def test_in_one_unit_with_others(live_db: Database, eventually: Eventually) -> None:
    """A refresh group takes the whole circle of a member in."""
    db = live_db
    pair(db, schedule="1s")
    db.create("fan_out", "SELECT count(*) AS n FROM reach_b", schedule="1s")
    db.run("SELECT pgtrickle.create_refresh_group('g', ARRAY['reach_b', 'fan_out'], 'repeatable_read')")
    with seen_while(db, "SELECT (SELECT count(*) FROM reach_a) = (SELECT n FROM fan_out)") as seen:
        for statement in ("INSERT INTO edges (src, dst) VALUES (3, 4)", "DELETE FROM edges WHERE src = 2"):
            db.run(statement)
            eventually(lambda: db.rows("SELECT src, dst FROM reach_a ORDER BY 1, 2") == db.rows(REACHABLE))
    assert seen == {(True,)}
    assert_reachable(db, "reach_a", "reach_b")
    assert db.value("SELECT max(member_count) FROM pgtrickle.pgt_scheduler_jobs") == 3
    assert len(db.rows("SELECT * FROM pgtrickle.dependency_tree()")) > 3


def test_what_lies_above_is_refreshed_before(live_db: Database, eventually: Eventually) -> None:
    db = live_db
    db.run("CREATE TABLE edges (src int, dst int); INSERT INTO edges VALUES (1, 2), (2, 3), (3, 1)")
    db.create("known", "SELECT src, dst, count(*) AS n FROM edges GROUP BY src, dst", schedule="1s")
    db.create("reach_a", "SELECT src, dst FROM known", schedule="1s")
    db.create("reach_b", "SELECT src, dst FROM reach_a")
    db.run("SET pg_trickle.allow_circular = on")
    alter(db, "reach_a", CLOSING.replace("edges", "known"))
    for change in ("INSERT INTO edges VALUES (3, 4), (1, 2)", "DELETE FROM edges WHERE src = 3", "TRUNCATE edges"):
        db.run(change)
        eventually(lambda: db.rows("SELECT src, dst FROM reach_b ORDER BY 1, 2") == db.rows(REACHABLE))
        assert_reachable(db, "reach_a")
        db.assert_current("reach_b", "known")


@pytest.mark.skipif(OTHER_PROGRAMS is not None, reason="the embedded one decodes its log")
def test_a_source_that_is_captured_from_the_log(live_db: Database, eventually: Eventually) -> None:
    """By hand at both levels, by the scheduler, and in a group that must see one moment."""
    db = live_db
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.cdc_mode = 'auto'")
    pair(db, schedule="1h")
    db.create("fan_out", "SELECT count(*) AS n FROM reach_b", schedule="1h")
    of_edges = "SELECT cdc_mode FROM pgtrickle.check_cdc_health() WHERE source_table = 'public.edges'"
    eventually(lambda: db.value(of_edges) == "WAL", what="capture from the log")
    changes = ["INSERT INTO edges (src, dst) VALUES (3, 4), (4, 1)", "DELETE FROM edges WHERE src = 4"]
    for change in changes:
        db.run(change)
        db.refresh("reach_b")
        assert_reachable(db, "reach_a", "reach_b")
    for change in changes:
        db.run(change)
        db.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
        db.refresh("reach_a")
        db.run("COMMIT")
        assert_reachable(db, "reach_a", "reach_b")
    for name in ("reach_a", "reach_b", "fan_out"):
        db.run("SELECT pgtrickle.alter_stream_table(%s, schedule => '1s')", name)
    for grouped in (False, True):
        if grouped:
            db.run("SELECT pgtrickle.create_refresh_group('g', ARRAY['reach_b', 'fan_out'], 'repeatable_read')")
        for change in changes:
            db.run(change)
            eventually(lambda: db.rows("SELECT src, dst FROM reach_b ORDER BY 1, 2") == db.rows(REACHABLE))
            assert_reachable(db, "reach_a", "reach_b")
            eventually(lambda: not db.difference("fan_out"))
    failed = "SELECT error_message FROM pgtrickle.pgt_refresh_history WHERE status = 'FAILED'"
    assert db.rows(failed) == []


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(3))
def test_random_changes(db: Database, seed: int) -> None:
    """Random edges among few nodes, so that there are cycles; by hand, in transactions, with a reader below."""
    source = random.Random(seed)
    db.run("CREATE TABLE edges (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, src int, dst int)")
    db.create("reach_a", "SELECT DISTINCT src, dst FROM edges")
    db.create("reach_b", "SELECT a.src, e.dst FROM reach_a a JOIN edges e ON e.src = a.dst")
    db.create("reach_c", "SELECT src, dst FROM reach_b UNION SELECT src, dst FROM reach_a WHERE src < dst")
    db.create("fan_out", "SELECT src, count(*) AS n FROM reach_c GROUP BY src")
    db.run("SET pg_trickle.allow_circular = on")
    alter(db, "reach_a", "SELECT src, dst FROM edges UNION SELECT src, dst FROM reach_c")

    def node() -> int | None:
        return source.choice([1, 2, 3, 4, 5, 6, 7, None])

    for _ in range(25):
        changes: list[tuple[str, tuple[Any, ...]]] = []
        for _ in range(source.choice([1, 1, 2, 4])):
            kind = source.random()
            if kind < 0.6:
                changes.append(("INSERT INTO edges (src, dst) VALUES (%s, %s)", (node(), node())))
            elif kind < 0.8:
                changes.append(("DELETE FROM edges WHERE src IS NOT DISTINCT FROM %s", (node(),)))
            elif kind < 0.97:
                changes.append(("UPDATE edges SET dst = %s WHERE dst IS NOT DISTINCT FROM %s", (node(), node())))
            else:
                changes.append(("TRUNCATE edges", ()))
        together = source.random() < 0.3
        if together:
            db.run("BEGIN")
        for statement, parameters in changes:
            db.run(statement, *parameters)
            if source.random() < 0.3:
                db.refresh(source.choice(["reach_a", "reach_b", "reach_c"]))
            if source.random() < 0.2:
                db.refresh("fan_out")
        db.refresh(source.choice(["reach_a", "reach_b", "reach_c"]))
        if together:
            db.run("COMMIT")
        assert_reachable(db, "reach_a")
        db.assert_current("reach_a", "reach_b", "reach_c")
        if source.random() < 0.7:
            db.refresh("fan_out")
            db.assert_current("fan_out")


TERMS = [
    "SELECT x, y FROM {m}",
    "SELECT y AS x, x AS y FROM {m}",
    "SELECT p.x, q.y FROM {m} p JOIN {n} q ON p.y = q.x",
    "SELECT p.x, p.y FROM {m} p WHERE EXISTS (SELECT FROM {n} q WHERE q.x = p.y)",
    "SELECT x, y FROM {m} WHERE x IN (SELECT y FROM {n})",
    "(SELECT x, y FROM {m} INTERSECT SELECT x, y FROM {n})",
    "SELECT p.x, g.y FROM {m} p, LATERAL (VALUES (p.y), (p.x)) AS g(y)",
    "(SELECT DISTINCT p.x, coalesce(q.x, p.y) AS y FROM {m} p, {n} q WHERE p.x < q.y)",
]


def random_query(source: random.Random, name: str) -> str:
    """A monotone query over the others and two tables, {a}, {b} and {c} standing for the stream tables."""
    others = [f"{{{other}}}" for other in "abc" if other != name]
    first = source.choice(TERMS[:3]).format(m=source.choice(["e", "f"]), n=source.choice(["e", *others]))
    terms = [
        source.choice(TERMS).format(m=source.choice(others), n=source.choice(["e", "f", *others]))
        for _ in range(source.randint(1, 2))
    ]
    return " UNION ".join([first, *terms])


def least_fixed_point(db: Database, queries: dict[str, str]) -> dict[str, list[tuple[Any, ...]]]:
    """What the queries come to from nothing, each over what the others came to in the round before."""
    tables = {name: f"of_{name}" for name in queries}
    db.run(f"TRUNCATE {', '.join(tables.values())}")
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in queries}
    while True:
        texts = {
            name: f"SELECT * FROM ({query.format(**tables)}) AS q ORDER BY 1, 2" for name, query in queries.items()
        }
        now = {name: db.rows(text) for name, text in texts.items()}
        if now == rows:
            return rows
        rows = now
        for name, found in rows.items():
            db.run(f"TRUNCATE of_{name}")
            with db.connection.cursor().copy(f"COPY of_{name} FROM STDIN".encode()) as copy:
                for row in found:
                    copy.write_row(row)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(2))
def test_random_monotone_queries(db: Database, seed: int) -> None:
    """Three stream tables, of which any may read any other, against going up from nothing by their definition."""
    source = random.Random(seed)
    db.run("CREATE TABLE e (x int, y int); CREATE TABLE f (x int, y int)")
    db.run("CREATE TABLE of_a (x int, y int); CREATE TABLE of_b (x int, y int); CREATE TABLE of_c (x int, y int)")
    for name in "abc":
        db.create(f"st_{name}", "SELECT x, y FROM e")
    db.run("SET pg_trickle.allow_circular = on")
    tables = {name: f"st_{name}" for name in "abc"}
    queries = dict.fromkeys("abc", "SELECT x, y FROM e")

    def node() -> int | None:
        return source.choice([1, 2, 3, 4, 5, None])

    for number in range(16):
        if number % 8 == 0:
            for name in source.sample("abc", 3):
                queries[name] = random_query(source, name)
                alter(db, f"st_{name}", queries[name].format(**tables))
        table, kind = source.choice("ef"), source.random()
        if kind < 0.65:
            db.run(f"INSERT INTO {table} VALUES (%s, %s), (%s, %s)", node(), node(), node(), node())
        elif kind < 0.85:
            db.run(f"DELETE FROM {table} WHERE x IS NOT DISTINCT FROM %s", node())
        else:
            db.run(f"UPDATE {table} SET y = %s WHERE x = %s", node(), node())
        for name in (
            source.choices("abc", k=2) + ["a", "b", "c"] * 2
        ):  # what is in no circle follows those that it reads
            db.refresh(f"st_{name}")
        expected = least_fixed_point(db, queries)
        assert {name: db.rows(f"SELECT x, y FROM st_{name} ORDER BY 1, 2") for name in "abc"} == expected
