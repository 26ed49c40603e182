"""Comparisons with a scalar aggregate, WITH queries read several times, aggregates over all groups of another."""

from __future__ import annotations

import re

import pytest
from hypothesis import given

from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable
from tests.sql.random_changes import BATCHES, BEFORE, examples, follow

SUMS = "WITH sums AS (SELECT grp, sum(val) AS s, count(*) AS n, min(label) AS m FROM item GROUP BY grp)"
QUERIES = {
    "above the average": "SELECT id, val FROM item WHERE val > (SELECT avg(val) FROM item WHERE grp IS NOT NULL)",
    "aggregate on the left": "SELECT id FROM item WHERE (SELECT count(*) FROM tag) <= val AND grp >= 1",
    "in an expression": "SELECT id FROM item WHERE coalesce((SELECT max(rank) FROM tag WHERE grp > 1), 0) + 1 > val",
    "nothing to compare with": "SELECT id FROM item"
    " WHERE val < (SELECT min(rank) FROM tag WHERE grp = 3) OR val IS NULL",
    "two comparisons": "SELECT id FROM item WHERE val >= (SELECT min(rank) FROM tag)"
    " AND val <= (SELECT max(rank) FROM tag) AND NOT EXISTS (SELECT FROM tag t WHERE t.grp = item.grp AND t.rank = 1)",
    "between": "SELECT id FROM item WHERE val BETWEEN (SELECT min(rank) FROM tag) AND (SELECT max(rank) FROM tag)",
    "having": "SELECT grp, sum(val) AS s FROM item GROUP BY grp HAVING sum(val) > (SELECT avg(rank) FROM tag)",
    "counted": "SELECT count(*) AS n, sum(val) AS s FROM item WHERE val <> (SELECT count(DISTINCT rank) FROM tag)",
    "no columns of its own": "SELECT id FROM item WHERE 2 < (SELECT count(*) FROM tag)",
    "largest sum": f"{SUMS} SELECT t.rank, sums.s, sums.m FROM tag t JOIN sums USING (grp)"
    " WHERE sums.s = (SELECT max(s) FROM sums)",
    "above the average sum": f"{SUMS} SELECT grp, s FROM sums WHERE s >= (SELECT avg(s) FROM sums)",
    "with itself": f"{SUMS} SELECT a.grp, b.grp AS other FROM sums a JOIN sums b ON a.s < b.s AND a.n = b.n",
    "in groups of the same table": "SELECT id, val FROM item WHERE id IN (SELECT id FROM item GROUP BY id HAVING"
    " sum(val) > 1) AND EXISTS (SELECT FROM (SELECT x, y, count(*) AS n, max(v) AS m FROM cell GROUP BY x, y) c"
    " WHERE c.x = item.id AND c.n = c.y)",
    "in and not in": f"{SUMS} SELECT id FROM item WHERE grp IN (SELECT grp FROM sums WHERE n > 1)"
    " AND NOT EXISTS (SELECT FROM sums WHERE s = item.val)",
    "in the select list": f"{SUMS} SELECT id, (SELECT s FROM sums WHERE sums.grp = item.grp) AS s,"
    " (SELECT sum(n) FROM sums) AS n FROM item",
    "both sides of a union": f"{SUMS} SELECT s FROM sums WHERE n > 1"
    " UNION ALL SELECT n FROM sums LEFT JOIN tag USING (grp)",
    "groups of groups": "SELECT max(n) AS n, sum(n) AS s FROM (SELECT grp, count(*) AS n FROM item GROUP BY grp) g,"
    " tag WHERE tag.grp = 1 AND tag.rank > 0",
    "over all groups": "SELECT t.rank, m.* FROM tag t, (SELECT max(s) AS most, count(*) AS n, avg(s) AS a FROM"
    " (SELECT grp, sum(val) AS s FROM item GROUP BY grp) g) m WHERE t.rank <= m.n",
    "distinct values counted": "SELECT t.grp, c.n FROM tag t,"
    " (SELECT count(*) AS n FROM (SELECT DISTINCT val FROM item) d) c",
    "most frequent": "SELECT x, count(*) AS n FROM cell GROUP BY x ORDER BY n DESC, x LIMIT 2",
    "most frequent with ties": "SELECT count(v) FILTER (WHERE v > 0) + 1 AS m, c.x, count(*) AS n"
    " FROM cell c GROUP BY c.x ORDER BY n FETCH FIRST 1 ROW WITH TIES",
    "all of them, in order": "SELECT c.x, c.y, count(*) AS n FROM cell c JOIN tag ON grp = x GROUP BY c.x, c.y"
    " ORDER BY n DESC, c.x, c.y LIMIT 9",
}


@pytest.fixture(scope="module")
def streams(shared_workspace: Workspace) -> dict[str, StreamTable]:
    """A stream table for every query."""
    return {name: shared_workspace.stream(f"st {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


@examples(15)
@given(before=BEFORE, batches=BATCHES)
def test_stream_tables_equal_their_queries(
    shared_workspace: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    follow(shared_workspace, streams, before, batches)


def test_stored_counts_are_not_counted_again(streams: dict[str, StreamTable]) -> None:
    def statement(name: str) -> str:
        compiled = streams[name].compiled
        return compiled.refresh_sql("st", frozenset(source.oid for source in compiled.sources))

    counts = [name for name in QUERIES if "__pgt_known_" in statement(name)]
    assert counts == ["most frequent", "all of them, in order"]


def test_comparisons_are_semi_joins_but_for_equality(streams: dict[str, StreamTable]) -> None:
    trees = {name: stream.compiled.tree for name, stream in streams.items()}
    assert "Semi-join" in trees["above the average"] and "Join" not in trees["above the average"].replace(
        "Semi-join", ""
    )
    assert trees["two comparisons"].count("Semi-join") == 2
    assert "Semi-join" not in trees["largest sum"]


def test_query_that_is_read_twice_is_read_once(streams: dict[str, StreamTable]) -> None:
    compiled = streams["largest sum"].compiled
    statement = compiled.refresh_sql("st", frozenset(source.oid for source in compiled.sources))
    names = set(re.findall(r'"(__pgt_all_\d+)" AS MATERIALIZED', statement))
    assert len(names) == 2  # the sums, and the largest of them
