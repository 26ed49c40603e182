"""Which queries are monotone, and what the others are refused for; and that rows never go from those that are."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from server.postgres.cluster import EmbeddedPostgres
from sql.compile.monotone import not_monotone
from tests.sql.conftest import Workspace, open_workspace

MONOTONE = [
    "SELECT id, k FROM a WHERE v > 1",
    "SELECT DISTINCT k FROM a",
    "SELECT a.id, b.id AS other FROM a JOIN b ON a.k = b.k",
    "SELECT k FROM a UNION SELECT k FROM b",
    "SELECT k FROM a UNION ALL SELECT k FROM b",
    "SELECT k FROM a INTERSECT SELECT k FROM b",
    "SELECT k FROM a INTERSECT ALL SELECT k FROM b",
    "SELECT id FROM a WHERE EXISTS (SELECT FROM b WHERE b.k = a.k)",
    "SELECT id FROM a WHERE k IN (SELECT k FROM b)",
    "SELECT id, g FROM a, generate_series(1, v) AS g",
    "SELECT id, generate_series(1, v) AS g FROM a",
    "WITH w AS (SELECT k FROM a) SELECT w.k FROM w JOIN b ON b.k = w.k",
]
OTHERS = {
    "SELECT count(*) AS n FROM a": "an aggregate or GROUP BY",
    "SELECT k FROM a GROUP BY k": "an aggregate or GROUP BY",
    "SELECT k FROM a EXCEPT SELECT k FROM b": "EXCEPT",
    "SELECT k FROM a EXCEPT ALL SELECT k FROM b": "EXCEPT ALL",
    "SELECT id FROM a WHERE NOT EXISTS (SELECT FROM b WHERE b.k = a.k)": "NOT EXISTS, NOT IN or ALL",
    "SELECT id FROM a WHERE k NOT IN (SELECT k FROM b)": "NOT EXISTS, NOT IN or ALL",
    "SELECT id FROM a WHERE k > ALL (SELECT k FROM b)": "NOT EXISTS, NOT IN or ALL",
    "SELECT a.id, b.id AS other FROM a LEFT JOIN b ON a.k = b.k": "an outer join or a scalar subquery",
    "SELECT a.id, b.id AS other FROM a RIGHT JOIN b ON a.k = b.k": "an outer join or a scalar subquery",
    "SELECT a.id, b.id AS other FROM a FULL JOIN b ON a.k = b.k": "an outer join",
    "SELECT id, row_number() OVER (ORDER BY id) AS n FROM a": "a window function",
    "SELECT DISTINCT ON (k) k, id FROM a ORDER BY k, id": "DISTINCT ON",
    "SELECT id FROM a ORDER BY id LIMIT 3": "LIMIT",
    "SELECT k, id, count(*) AS n FROM a GROUP BY CUBE (k, id)": "an aggregate or GROUP BY",
    "WITH RECURSIVE r AS (SELECT k FROM a UNION SELECT r.k + 1 FROM r WHERE r.k < 9) SELECT k FROM r": "WITH RECURSIVE",
}


@pytest.fixture(scope="module")
def tables(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """The tables a and b, of the same three columns."""
    made = "CREATE TABLE {} (id int PRIMARY KEY, k int, v int)"
    yield from open_workspace(cluster, "sql_monotone", f"{made.format('a')}; {made.format('b')}", ("a", "b"))


@pytest.mark.parametrize("query", MONOTONE)
def test_rows_only_come_to_a_monotone_query(tables: Workspace, query: str) -> None:
    root = tables.stream(f"m{MONOTONE.index(query)}", query).compiled.root
    assert root is not None and not_monotone(root) is None
    tables.execute("TRUNCATE a, b")
    source, before = random.Random(query), Counter[tuple[object, ...]]()
    for number in range(20):
        rows = (number, source.choice([1, 2, 3, "NULL"]), source.choice([0, 1, 2, "NULL"]))
        tables.execute(f"INSERT INTO {source.choice('ab')} VALUES ({', '.join(map(str, rows))})")
        after = Counter(map(tuple, tables.connection.execute(query).fetchall()))
        assert before <= after
        before = after
    assert before


@pytest.mark.parametrize("query", OTHERS)
def test_others_are_named(tables: Workspace, query: str) -> None:
    root = tables.stream(f"o{[*OTHERS].index(query)}", query).compiled.root
    assert root is not None and not_monotone(root) == OTHERS[query]
