"""Recursive queries, set-returning functions and set operations through the server, maintained differentially."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Database

TABLES = """
CREATE TABLE staff (id int PRIMARY KEY, boss int, name text, tags text[]);
INSERT INTO staff VALUES (1, NULL, 'ann', '{a}'), (2, 1, 'bob', '{a,b}'), (3, 2, 'cid', NULL), (4, 1, 'dan', '{}');
CREATE FUNCTION twice(n int) RETURNS SETOF int LANGUAGE sql IMMUTABLE AS 'SELECT n UNION ALL SELECT n';
"""
REPORTS = (
    "WITH RECURSIVE r AS (SELECT id, boss, name, 0 AS depth FROM staff WHERE boss IS NULL"
    " UNION ALL SELECT s.id, s.boss, s.name, r.depth + 1 FROM staff s JOIN r ON s.boss = r.id) "
)
QUERIES = {
    "hidden columns": REPORTS + "SELECT name, depth FROM r",
    "under an aggregate": REPORTS + "SELECT depth, count(*) AS n FROM r GROUP BY depth",
    "cycle": "WITH RECURSIVE r AS (SELECT id, boss FROM staff UNION ALL SELECT r.id, s.boss FROM staff s JOIN r"
    " ON s.id = r.boss) CYCLE boss SET again USING path SELECT id, boss, again FROM r",
    "function": "SELECT s.id, t.tag, n FROM staff s LEFT JOIN unnest(s.tags) WITH ORDINALITY t(tag, n) ON true",
    "user-defined function": "SELECT id, twice(boss) AS b FROM staff",
    "set operation": "SELECT id FROM staff EXCEPT ALL SELECT boss FROM staff",
    "values": "SELECT v.label, s.name FROM (VALUES (1, 'one'), (2, 'two')) v(n, label) LEFT JOIN staff s ON s.boss ="
    " v.n",
}


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
@pytest.mark.one_in(2)
def test_query_is_maintained_differentially(db: Database, query: str) -> None:
    db.run(TABLES)
    db.create("st", query, refresh_mode="DIFFERENTIAL")
    db.assert_current("st")
    for change in (
        "INSERT INTO staff VALUES (5, 3, 'eve', '{b,b}'), (6, 5, 'fay', '{c}')",
        "UPDATE staff SET boss = 4, tags = tags || 'z'::text WHERE id IN (3, 5)",
        "DELETE FROM staff WHERE id = 2",
    ):
        db.run(change)
        db.refresh("st")
        assert db.last("st")[0] == "DIFFERENTIAL"
        db.assert_current("st")
