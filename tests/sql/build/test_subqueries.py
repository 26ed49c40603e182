"""Subqueries in expressions: after any changes on both sides the stream table equals its query."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from server.postgres.cluster import EmbeddedPostgres
from sql import NotDifferentiable
from tests.sql.conftest import Workspace
from tests.sql.outer import START, follow, open_outer, statements
from tests.sql.outer_queries import queries

QUERIES = {
    "exists": "SELECT id, v FROM o WHERE EXISTS (SELECT FROM t WHERE t.k = o.k)",
    "exists uncorrelated": "SELECT id, v FROM o WHERE EXISTS (SELECT FROM t WHERE t.k = 3)",
    "not exists": "SELECT id, v FROM o WHERE NOT EXISTS (SELECT FROM t WHERE t.k = o.k AND t.v > o.v)",
    "in": "SELECT id, v FROM o WHERE k IN (SELECT t.k FROM t)",
    "in corr": "SELECT id, v FROM o WHERE k IN (SELECT t.k FROM t WHERE t.v = o.v)",
    "not in": "SELECT id, v FROM o WHERE k NOT IN (SELECT t.k FROM t WHERE t.v = 2)",
    "not in corr": "SELECT id, v FROM o WHERE k NOT IN (SELECT t.k FROM t WHERE t.v = o.v)",
    "not in notnull": "SELECT id, v FROM o WHERE id NOT IN (SELECT u.k FROM u WHERE u.v = o.v)",
    "not in multi": "SELECT id, v FROM o WHERE (k, v) NOT IN (SELECT t.k, t.v FROM t WHERE t.n = 1)",
    "in multi": "SELECT id, v FROM o WHERE (k, v) IN (SELECT t.k, t.v FROM t)",
    "any": "SELECT id, v FROM o WHERE k > ANY (SELECT t.v FROM t WHERE t.k = o.v)",
    "all": "SELECT id, v FROM o WHERE k > ALL (SELECT t.v FROM t WHERE t.k = o.v)",
    "neq all": "SELECT id, v FROM o WHERE k <> ALL (SELECT t.v FROM t WHERE t.k = 1)",
    "any array": "SELECT id FROM o WHERE k = ANY (ARRAY(SELECT t.v FROM t WHERE t.k = o.v))",
    "array": "SELECT id, ARRAY(SELECT t.v FROM t WHERE t.k = o.k ORDER BY t.v DESC) AS a FROM o",
    "scalar agg": "SELECT id, (SELECT sum(t.v) FROM t WHERE t.k = o.k) AS s FROM o",
    "scalar count": "SELECT id, (SELECT count(*) FROM t WHERE t.k = o.k) AS s FROM o",
    "scalar uncorrelated": "SELECT id, (SELECT max(t.v) FROM t) AS s FROM o",
    "scalar where": "SELECT id FROM o WHERE v > (SELECT avg(t.v) FROM t WHERE t.k = o.k)",
    "scalar where uncorr": "SELECT id FROM o WHERE v > (SELECT avg(t.v) FROM t)",
    "scalar key": "SELECT t.k, (SELECT u.l FROM u WHERE u.id = t.v) AS l FROM t",
    "in value": "SELECT id, k IN (SELECT t.k FROM t WHERE t.v = 1) AS i FROM o",
    "in value corr": "SELECT id, k NOT IN (SELECT t.k FROM t WHERE t.v = o.v) AS i FROM o",
    "in multi value": "SELECT id, (k, v) IN (SELECT t.k, t.v FROM t) AS i FROM o",
    "any value": "SELECT id, k < ANY (SELECT t.k FROM t WHERE t.v = o.v) AS i FROM o",
    "all value": "SELECT id, k >= ALL (SELECT t.k FROM t WHERE t.v = o.v) AS i FROM o",
    "or": "SELECT id FROM o WHERE v = 2 OR EXISTS (SELECT FROM t WHERE t.k = o.k)",
    "or not in": "SELECT id FROM o WHERE NOT (v = 2 OR k IN (SELECT t.k FROM t WHERE t.v = 1))",
    "case": "SELECT id, CASE WHEN k IN (SELECT t.k FROM t) THEN (SELECT max(t.v) FROM t WHERE t.k = o.v) ELSE -1 END"
    " AS c FROM o",
    "nested": "SELECT id FROM o WHERE EXISTS (SELECT FROM t WHERE t.k = o.k AND EXISTS (SELECT FROM u WHERE u.k ="
    " t.v AND u.v = o.v))",
    "nested scalar": "SELECT id, (SELECT count(*) FROM t WHERE t.k = o.k AND t.v > (SELECT min(u.v) FROM u WHERE u.k"
    " = t.k AND u.id > o.v)) AS c FROM o",
    "agg arg": "SELECT k, sum((SELECT count(*) FROM t WHERE t.k = o.v)) AS s FROM o GROUP BY k",
    "post agg": "SELECT k, count(*) AS n, (SELECT max(t.v) FROM t WHERE t.k = o.k) AS m FROM o GROUP BY k",
    "having": "SELECT k, count(*) AS n FROM o GROUP BY k HAVING count(*) > (SELECT count(*) FROM t WHERE t.k = o.k)",
    "having exists": "SELECT k, sum(v) AS n FROM o GROUP BY k HAVING EXISTS (SELECT FROM t WHERE t.v < sum(o.v))",
    "group by sub": "SELECT (SELECT max(t.v) FROM t WHERE t.k = o.k) AS m, count(*) AS n FROM o GROUP BY (SELECT"
    " max(t.v) FROM t WHERE t.k = o.k)",
    "join on": "SELECT o.id, u.id AS uid FROM o JOIN u ON o.k = u.k AND EXISTS (SELECT FROM t WHERE t.v = o.v AND"
    " t.k = u.v)",
    "grouped sub": "SELECT id FROM o WHERE v IN (SELECT count(*) FROM t WHERE t.k = o.k GROUP BY t.v)",
    "limit sub": "SELECT id, (SELECT t.v FROM t WHERE t.k = o.k ORDER BY t.v LIMIT 1) AS f FROM o",
    "distinct sub": "SELECT id, (SELECT count(*) FROM (SELECT DISTINCT t.v FROM t WHERE t.k = o.k) d) AS f FROM o",
    "union sub": "SELECT id FROM o WHERE k IN (SELECT t.v FROM t WHERE t.k = o.v UNION SELECT u.v FROM u)",
    "union exists": "SELECT id FROM o WHERE EXISTS (SELECT t.v FROM t WHERE t.k = o.v UNION ALL SELECT u.v FROM u"
    " WHERE u.k > o.k)",
    "numeric text": "SELECT id, (SELECT count(*) FROM t WHERE t.n::text = o.n::text) AS c FROM o",
    "numeric": "SELECT id, (SELECT max(t.v) || o.n::text FROM t WHERE t.n = o.n) AS c FROM o",
    "cte": "WITH c AS (SELECT k, count(*) AS n FROM t GROUP BY k) SELECT o.id, (SELECT c.n FROM c WHERE c.k = o.k)"
    " AS n FROM o",
    "cte inside": "SELECT o.id, (WITH c AS (SELECT t.v FROM t WHERE t.k = o.k) SELECT count(*) FROM c a, c b) AS n"
    " FROM o",
    "without table": "SELECT o.id, (SELECT max(x) FROM (VALUES (o.k), (o.v)) y(x)) AS n FROM o",
    "row compare": "SELECT o.id FROM o WHERE (o.k, o.v) < (SELECT u.k, u.v FROM u WHERE u.id = o.id)",
    "full join inside": "SELECT o.id, (SELECT count(*) FROM t FULL JOIN u USING (k)) AS n FROM o",
    "left on sub": "SELECT o.id, t.v FROM o LEFT JOIN t ON t.k = o.k AND t.v > (SELECT min(u.v) FROM u)",
    "left on corr": "SELECT o.id, t.v FROM o LEFT JOIN t ON t.k = o.k AND EXISTS (SELECT FROM u WHERE u.k = t.v AND"
    " u.v = o.v)",
    "coalesce": "SELECT id, coalesce((SELECT max(t.v) FROM t WHERE t.k = o.k), 0) + 1 AS c FROM o",
    "window with sub": "SELECT id, rank() OVER (PARTITION BY (SELECT max(t.v) FROM t WHERE t.k = o.k) ORDER BY id)"
    " AS r FROM o",
    "having sub no group": "SELECT count(*) AS n FROM o HAVING count(*) > (SELECT count(*) FROM t)",
    "CASE guards several rows": "SELECT t.k, CASE WHEN t.v > 1 THEN (SELECT u.l FROM u WHERE u.k = t.k AND u.v >"
    " 100) ELSE 'x' END AS l FROM t",
    "CASE guards a division": "SELECT o.id, CASE WHEN o.v > 0 THEN (SELECT sum(t.k * 10 / o.v) FROM t WHERE t.k >"
    " o.k) END AS l FROM o",
    "COALESCE guards a division": "SELECT o.id, coalesce(nullif(o.v, 0), (SELECT count(t.k / (coalesce(o.v, 0) + 1))"
    " FROM t WHERE t.k >= o.k)) AS l FROM o",
    "guarded and not": "SELECT o.id, CASE WHEN o.v > 0 THEN (SELECT sum(t.k * 10 + o.v) FROM t WHERE t.k > o.k) END"
    " AS l, (SELECT sum(t.k * 10 + o.v) FROM t WHERE t.k > o.k) AS m FROM o",
    "CASE within CASE": "SELECT o.id, CASE WHEN EXISTS (SELECT FROM u WHERE u.k = o.k) THEN CASE o.v WHEN 1 THEN"
    " (SELECT max(t.v + o.v) FROM t WHERE t.k >= o.k) WHEN 2 THEN (SELECT min(t.v - o.v) FROM t WHERE t.k >= o.k)"
    " ELSE 3 END END AS l FROM o",
    "outer join on a scalar of both sides": "SELECT o.id, x.id AS other FROM o LEFT JOIN u x ON x.k = o.k AND o.v <"
    " (SELECT a1.v FROM u a1 WHERE a1.v = o.k AND a1.k = x.k ORDER BY a1.v LIMIT 1)",
    "full join on a scalar": "SELECT o.id, x.id AS other FROM o FULL JOIN u x ON x.k = o.k AND o.v < (SELECT"
    " max(t.v) FROM t)",
    "right join inside": "SELECT o.id, (SELECT count(*) FROM t RIGHT JOIN u ON u.k = t.k WHERE u.v = o.v) AS n FROM o",
    "right join on an outer column": "SELECT o.id, (SELECT count(t.k) FROM t RIGHT JOIN u ON u.k = t.k AND u.v ="
    " o.v) AS n FROM o",
    "full join inside, filtered": "SELECT o.id, (SELECT count(t.k) FROM t FULL JOIN u ON u.k = t.k WHERE u.v = o.v)"
    " AS n FROM o",
    "set-returning function inside": "SELECT o.id, (SELECT sum(g.g) FROM t, LATERAL generate_series(0, t.v + o.v)"
    " g(g) WHERE t.k = o.k) AS n FROM o",
    "set-returning function of an outer column": "SELECT o.id, (SELECT count(*) FROM generate_series(0, o.v) g(g)"
    " JOIN t ON t.k = g.g) AS n FROM o",
    "with query read twice": "WITH c AS (SELECT k, v FROM t WHERE EXISTS (SELECT FROM u WHERE u.k = t.k)) SELECT"
    " o.id FROM o WHERE o.k IN (SELECT k FROM c) AND o.v NOT IN (SELECT v FROM c WHERE v IS NOT NULL)",
    "aggregates of distinct values": "SELECT o.id, (SELECT count(DISTINCT t.v) FROM t WHERE t.k = o.k) AS c, (SELECT"
    " string_agg(DISTINCT u.l, ',') FROM u WHERE u.k = o.k) AS s FROM o",
    "sum IN": "SELECT o.k, sum(o.v) AS s FROM o GROUP BY o.k HAVING sum(o.v) IN (SELECT t.v FROM t)",
    "count = ANY": "SELECT o.k, count(*) AS s FROM o GROUP BY o.k HAVING count(*) = ANY (SELECT t.v FROM t)",
    "scalar IN": "SELECT o.id FROM o WHERE (SELECT max(t.v) FROM t WHERE t.k = o.k) IN (SELECT u.k FROM u)",
    "array with limit": "SELECT o.id, ARRAY(SELECT u.l FROM u WHERE u.k = o.k ORDER BY u.id LIMIT 2) AS a FROM o",
    "in FILTER": "SELECT count(*) FILTER (WHERE EXISTS (SELECT FROM t WHERE t.k = o.k)) AS c, sum(o.v) FILTER (WHERE"
    " o.k NOT IN (SELECT u.k FROM u)) AS s FROM o",
    "in ORDER BY of an aggregate": "SELECT string_agg(o.l, ',' ORDER BY (SELECT count(*) FROM t WHERE t.k = o.k),"
    " o.id) AS s FROM o",
    "select distinct": "SELECT DISTINCT (SELECT max(t.v) FROM t WHERE t.k = o.k) AS m FROM o",
    "in a union": "SELECT id FROM o WHERE k IN (SELECT t.k FROM t) UNION SELECT id FROM u WHERE NOT EXISTS (SELECT"
    " FROM o WHERE o.id = u.id)",
    "in ORDER BY of a query": "SELECT o.id, (SELECT count(*) FROM t WHERE t.k = o.k) AS c FROM o ORDER BY (SELECT"
    " count(*) FROM t WHERE t.k = o.k), o.id LIMIT 3",
    "by text": "SELECT o.id, (SELECT max(u.id) FROM u WHERE u.l = o.l) AS c FROM o",
    "by IS NOT DISTINCT FROM": "SELECT o.id, (SELECT sum(t.v) FROM t WHERE t.k IS NOT DISTINCT FROM o.k) AS c FROM o",
    "three levels": "SELECT o.id FROM o WHERE o.v IN (SELECT t.v FROM t WHERE t.k IN (SELECT u.k FROM u WHERE u.v ="
    " o.v AND u.id > (SELECT min(x.id) FROM u x WHERE x.k = t.k AND x.v = o.v)))",
}


@pytest.fixture(scope="module")
def outer(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """A database of the module's own."""
    yield from open_outer(cluster, "sql_subqueries")


def test_stream_tables_follow_changes_inside_and_outside(outer: Workspace) -> None:
    follow(outer, {name: outer.stream(f"q {i}", query) for i, (name, query) in enumerate(QUERIES.items())})


def _random(outer: Workspace, query: str, before: list[str], batches: list[list[str]]) -> None:
    outer.execute(*START, *before)
    stream = outer.stream("random", query)
    try:
        assert stream.difference() == []
        for batch in batches:
            outer.execute(*batch)
            stream.refresh()
            assert stream.difference() == []
    finally:
        outer.execute('DROP TABLE "random"')


CHANGES = {
    "query": queries(),
    "before": st.lists(statements(), max_size=3),
    "batches": st.lists(st.lists(statements(), min_size=1, max_size=4), min_size=1, max_size=3),
}
SETTINGS = settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@SETTINGS
@given(**CHANGES)
def test_random_subqueries(outer: Workspace, query: str, before: list[str], batches: list[list[str]]) -> None:
    _random(outer, query, before, batches)


@pytest.mark.long
@settings(SETTINGS, max_examples=1000)
@given(**CHANGES)
def test_many_random_subqueries(outer: Workspace, query: str, before: list[str], batches: list[list[str]]) -> None:
    _random(outer, query, before, batches)


def test_several_rows_of_a_scalar_subquery_are_an_error_and_change_nothing(outer: Workspace) -> None:
    outer.execute(*START, "DELETE FROM t WHERE k = 1 AND v = 2", "DELETE FROM t WHERE ctid = (SELECT min(ctid) FROM t)")
    stream = outer.stream("several", "SELECT id, (SELECT t.v FROM t WHERE t.k = o.k) AS v FROM o")
    before = outer.connection.execute("SELECT * FROM several ORDER BY id").fetchall()
    frontier = stream.frontier
    outer.execute("INSERT INTO t VALUES (2, 7, 7)")
    with pytest.raises(psycopg.errors.CardinalityViolation, match="more than one row returned by a subquery"):
        stream.refresh()
    assert stream.frontier == frontier
    assert outer.connection.execute("SELECT * FROM several ORDER BY id").fetchall() == before
    with pytest.raises(psycopg.errors.CardinalityViolation):
        stream.full()
    outer.execute("DELETE FROM t WHERE v = 7")
    stream.refresh()
    assert stream.difference() == []


def test_several_rows_are_no_error_where_no_outer_row_asks(outer: Workspace) -> None:
    outer.execute(*START, "UPDATE o SET k = 3 WHERE k = 1")
    stream = outer.stream("unasked", "SELECT id, (SELECT t.v FROM t WHERE t.k = o.k AND t.v > 0) AS v FROM o")
    outer.execute("INSERT INTO t VALUES (1, 5, 5)")
    stream.refresh()
    assert stream.difference() == []


def test_an_error_in_a_branch_that_is_not_taken_is_not_raised(outer: Workspace) -> None:
    outer.execute(*START)
    branch = "CASE WHEN o.v > 1 THEN (SELECT t.v FROM t WHERE t.k = o.k) END"
    division = "CASE WHEN o.v > 0 THEN (SELECT max(t.k / o.v) FROM t WHERE t.k >= o.k) END"
    outer.execute("DELETE FROM t WHERE k = 1", "UPDATE o SET v = 1 WHERE v = 2", "UPDATE o SET v = 0 WHERE id = 0")
    stream = outer.stream("untaken", f"SELECT o.id, {branch} AS a, {division} AS b FROM o")
    outer.execute("INSERT INTO t VALUES (1, 1, 1), (1, 2, 2)")
    stream.refresh()
    assert stream.difference() == []
    outer.execute("UPDATE o SET v = 3 WHERE id = 1")
    with pytest.raises(psycopg.errors.CardinalityViolation):
        stream.refresh()


def test_not_in_over_a_null_has_no_rows(outer: Workspace) -> None:
    outer.execute(*START, "DELETE FROM t", "INSERT INTO t VALUES (3, 3, 3)")
    stream = outer.stream("not in", "SELECT id FROM o WHERE k NOT IN (SELECT t.k FROM t)")
    assert outer.connection.execute('SELECT count(*) FROM "not in"').fetchone() == (3,)
    outer.execute("INSERT INTO t VALUES (NULL, 0, 0)")
    assert stream.refresh()["deleted"] == 3
    outer.execute("DELETE FROM t")
    assert stream.refresh()["inserted"] == 4
    assert stream.difference() == []


@pytest.mark.parametrize(
    "rows",
    ["DISTINCT ON (t.k) t.v FROM t ORDER BY t.k, t.v", "t.v FROM t WHERE t.v IS NOT NULL ORDER BY t.v LIMIT 1"],
)
@pytest.mark.parametrize("operator", ["IN", "NOT IN", "= ANY", "<> ALL"])
def test_what_a_subquery_leaves_out_is_not_compared(outer: Workspace, operator: str, rows: str) -> None:
    outer.execute(*START)
    stream = outer.stream("left out", f"SELECT id FROM o WHERE v {operator} (SELECT {rows})")
    try:
        assert stream.difference() == []
        outer.execute("INSERT INTO t VALUES (2, 0, 0), (1, 3, 3)", "DELETE FROM t WHERE v = 1")
        stream.refresh()
        assert stream.difference() == []
    finally:
        outer.execute('DROP TABLE "left out"')


def test_values_that_are_equal_and_look_different_are_different_arguments(outer: Workspace) -> None:
    outer.execute(*START)
    query = "SELECT id, (SELECT string_agg(o.n::text || u.l, ',') FROM u WHERE u.id < o.n) AS s FROM o"
    stream = outer.stream("looks", query)
    assert outer.connection.execute("SELECT s FROM looks WHERE id < 2 ORDER BY id").fetchall() == [("1a",), ("1.0a",)]
    outer.execute("UPDATE o SET n = 1.000 WHERE id = 0")
    stream.refresh()
    assert stream.difference() == []


def test_too_many_subqueries_that_depend_on_each_other_are_refused(
    outer: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each that is asked for only if the one before says so makes the tree larger by a factor."""
    text = "o.v"
    for n in range(4):
        text = f"CASE WHEN {text} > {n} THEN (SELECT s{n}.k FROM u s{n} WHERE s{n}.id = o.id + {n}) ELSE {n} END"
    query = f"SELECT o.id, {text} AS x FROM o"
    stream = outer.stream("dependent", query)
    outer.execute("UPDATE u SET k = k + 1", "UPDATE o SET v = 3 - v")
    stream.refresh()
    assert stream.difference() == []
    monkeypatch.setattr("sql.build.subqueries.attach.MOST_OPERATORS", 10)
    with pytest.raises(NotDifferentiable, match="depend on each other"):
        outer.stream("refused", query.replace("AS x", "AS y"))  # another text: trees are kept
