"""LATERAL subqueries: only the outer rows whose subquery has changed are computed again, and all equal their query."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from server.postgres.cluster import EmbeddedPostgres
from tests.sql.conftest import Workspace
from tests.sql.outer import START, follow, open_outer

QUERIES = {
    "lateral": "SELECT o.id, l.s, l.c FROM o, LATERAL (SELECT sum(t.v) AS s, count(*) AS c FROM t WHERE t.k = o.k) l",
    "lateral rows": "SELECT o.id, l.v FROM o, LATERAL (SELECT t.v FROM t WHERE t.k > o.k) l",
    "lateral left": "SELECT o.id, l.v FROM o LEFT JOIN LATERAL (SELECT t.v FROM t WHERE t.k = o.k) l ON l.v > o.v",
    "lateral limit": "SELECT o.id, l.v FROM o CROSS JOIN LATERAL (SELECT t.v FROM t WHERE t.k = o.k ORDER BY t.v"
    " DESC LIMIT 2) l",
    "lateral left limit": "SELECT o.id, l.v FROM o LEFT JOIN LATERAL (SELECT t.v FROM t WHERE t.k = o.k ORDER BY t.v"
    " DESC LIMIT 2) l ON true",
    "lateral union": "SELECT o.id, l.v FROM o, LATERAL (SELECT t.v FROM t WHERE t.k = o.k UNION SELECT o.v UNION ALL"
    " SELECT u.v FROM u) l",
    "lateral window": "SELECT o.id, l.v, l.r FROM o, LATERAL (SELECT t.v, sum(t.v) OVER (ORDER BY t.v) AS r FROM t"
    " WHERE t.k = o.k) l",
    "lateral distinct on": "SELECT o.id, l.v FROM o, LATERAL (SELECT DISTINCT ON (t.v) t.v FROM t WHERE t.k = o.k"
    " ORDER BY t.v) l",
    "lateral group": "SELECT o.id, l.v, l.c FROM o, LATERAL (SELECT t.v, count(*) AS c FROM t WHERE t.k = o.k GROUP"
    " BY t.v HAVING count(*) < o.v) l",
    "lateral chain": "SELECT o.id, a.s, b.v FROM o, LATERAL (SELECT sum(t.v) AS s FROM t WHERE t.k = o.k) a, LATERAL"
    " (SELECT u.v FROM u WHERE u.k = a.s OR u.v = o.v) b",
    "lateral outer join in": "SELECT o.id, l.a, l.b FROM o, LATERAL (SELECT t.v AS a, u.l AS b FROM t LEFT JOIN u ON"
    " u.k = t.v AND u.v = o.v WHERE t.k = o.k) l",
    "lateral values": "SELECT o.id, l.x FROM o, LATERAL (VALUES (o.k), (o.v)) l(x)",
    "lateral derived": "SELECT o.id, l.m FROM o, LATERAL (SELECT d.m FROM (SELECT t.v, max(t.k) AS m FROM t WHERE"
    " t.v = o.v GROUP BY t.v) d JOIN u ON u.k = d.m) l",
    "select list set": "SELECT o.id, l.g FROM o, LATERAL (SELECT generate_series(1, t.v) AS g FROM t WHERE t.k ="
    " o.k) l",
    "lateral left ties": "SELECT o.id, l.v FROM o LEFT JOIN LATERAL (SELECT t.v FROM t WHERE t.k = o.k ORDER BY t.v"
    " FETCH FIRST 1 ROW WITH TIES) l ON true",
    "lateral offset": "SELECT o.id, l.v FROM o, LATERAL (SELECT t.v FROM t WHERE t.k <= o.k ORDER BY t.v OFFSET 2) l",
    "lateral of two": "SELECT o.id, u.id AS uid, l.c FROM o JOIN u ON u.k = o.k, LATERAL (SELECT count(*) AS c FROM"
    " t WHERE t.k = o.v OR t.v = u.v) l",
    "lateral right": "SELECT o.id, l.c, u.id AS x FROM o CROSS JOIN LATERAL (SELECT count(*) AS c FROM t WHERE t.k ="
    " o.v) l RIGHT JOIN u ON u.v = l.c",
}


@pytest.fixture(scope="module")
def outer(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """A database of the module's own."""
    yield from open_outer(cluster, "sql_lateral")


def test_stream_tables_follow_changes_inside_and_outside(outer: Workspace) -> None:
    follow(outer, {name: outer.stream(f"q {i}", query) for i, (name, query) in enumerate(QUERIES.items())})


def test_rows_that_nothing_has_happened_to_stay_where_they_are(outer: Workspace) -> None:
    outer.execute(*START)
    query = "SELECT o.id, l.v FROM o, LATERAL (SELECT t.v FROM t WHERE t.k = o.k ORDER BY t.v LIMIT 1) l"
    stream = outer.stream("stays", query)
    before = stream.tuples()
    outer.execute("INSERT INTO t VALUES (2, -1, 0)")
    done = stream.refresh()
    assert (done["inserted"], done["deleted"]) == (1, 1)
    assert len(before.items() & stream.tuples().items()) == len(before) - 1
