"""Stream tables that read each other: they hold the least fixed point of their queries, after whatever change."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

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
    """Without the edge (1, 2) nothing leads into the cycle 2 -> 3 -> 2, whose rows rest on each other through reach_b."""
    pair(db)
    db.run("TRUNCATE edges; INSERT INTO edges (src, dst) VALUES (1, 2), (2, 3), (3, 2)")
    alter(db, "reach_a", "SELECT 1 AS src, 1 AS dst UNION SELECT b.src, e.dst FROM reach_b b JOIN edges e ON e.src = b.dst")
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
