"""WITH RECURSIVE over trees, graphs without and with cycles, and with duplicates."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from .conftest import Workspace
from .harness import StreamTable, source

TABLES = """
CREATE TABLE employee (id int PRIMARY KEY, boss int, name text, pay numeric);
CREATE TABLE edge (a int, b int, cost int);
CREATE TABLE start (node int PRIMARY KEY, label text);
"""
REPORTS = (
    "WITH RECURSIVE r AS (SELECT id, boss, name, 0 AS depth FROM employee WHERE boss IS NULL"
    " UNION ALL SELECT e.id, e.boss, e.name, r.depth + 1 FROM employee e JOIN r ON e.boss = r.id) "
)
CLOSURE = "WITH RECURSIVE c(a, b) AS (SELECT a, b FROM edge UNION SELECT c.a, e.b FROM c JOIN edge e ON e.a = c.b) "
PATHS = (
    "WITH RECURSIVE p AS (SELECT s.node, 0 AS n FROM start s"
    " UNION ALL SELECT e.b, p.n + 1 FROM p, edge e WHERE e.a = p.node AND p.n < 3) "
)
REACHED = "WITH RECURSIVE r(node) AS (SELECT node FROM start UNION SELECT e.b FROM r, edge e WHERE e.a = r.node) "

QUERIES = {
    "tree": REPORTS + "SELECT * FROM r",
    "tree, some columns": REPORTS + "SELECT name, depth FROM r",
    "tree, filtered": REPORTS + "SELECT id, upper(name) AS n FROM r WHERE depth > 0",
    "tree, joined": REPORTS + "SELECT r.id, e.name, e.pay FROM r JOIN employee e ON e.boss = r.id",
    "tree, aggregated": REPORTS + "SELECT depth, count(*) AS n, max(name) AS m FROM r GROUP BY depth",
    "tree, twice": REPORTS + "SELECT x.id, y.id AS other FROM r x JOIN r y ON x.depth = y.depth AND x.id < y.id",
    "closure": CLOSURE + "SELECT * FROM c",
    "closure, counted": CLOSURE + "SELECT a, count(*) FROM c GROUP BY a",
    "closure, cycles": CLOSURE + "SELECT a FROM c WHERE a = b",
    "closure, except": CLOSURE + "SELECT a, b FROM c EXCEPT SELECT a, b FROM edge",
    "paths with duplicates": PATHS + "SELECT * FROM p",
    "paths, counted": PATHS + "SELECT node, count(*) AS n FROM p GROUP BY node",
    "reached": REACHED + "SELECT node FROM r",
    "reached, not": REACHED + "SELECT s.label, r.node FROM start s FULL JOIN r ON r.node = s.node + 1",
    "backwards": "WITH RECURSIVE r AS (SELECT id, boss FROM employee UNION SELECT r.id, e.boss FROM employee e, r"
    " WHERE e.id = r.boss) SELECT * FROM r",
    "two tables": "WITH RECURSIVE r AS (SELECT node, label FROM start UNION SELECT e.b, s.label FROM r JOIN edge e"
    " ON e.a = r.node JOIN start s ON s.node = e.cost) SELECT * FROM r",
    "same table twice": "WITH RECURSIVE r AS (SELECT node FROM start UNION SELECT f.b FROM r JOIN edge e ON e.a ="
    " r.node"
    " JOIN edge f ON f.a = e.b) SELECT * FROM r",
    "numbers": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4) SELECT i, e.* FROM n"
    " LEFT JOIN edge e ON e.cost = i",
    "values": "WITH RECURSIVE n(i, x) AS (VALUES (1, 1), (2, 1) UNION ALL SELECT n.i + 1, e.b FROM n JOIN edge e"
    " ON e.a = n.x WHERE n.i < 4) SELECT * FROM n",
    "several": "WITH RECURSIVE s AS (SELECT node FROM start WHERE node > 1), r AS (SELECT node FROM s UNION SELECT b"
    " FROM"
    " edge JOIN r ON a = node), q AS (SELECT node FROM r UNION SELECT a FROM edge JOIN q ON b = node) SELECT * FROM q",
    "not exists": "WITH RECURSIVE r AS (SELECT node FROM start UNION SELECT e.b FROM r JOIN edge e ON e.a = r.node"
    " WHERE NOT EXISTS (SELECT FROM employee x WHERE x.id = e.b)) SELECT * FROM r",
    "outer join": "WITH RECURSIVE r AS (SELECT node, 0 AS n FROM start UNION SELECT coalesce(e.b, 9), n + 1 FROM r"
    " LEFT JOIN"
    " edge e ON e.a = r.node WHERE n < 3) SELECT * FROM r",
    "aggregate in a subquery": "WITH RECURSIVE r AS (SELECT node FROM start UNION SELECT m.b FROM r JOIN (SELECT a,"
    " max(b)"
    " AS b FROM edge GROUP BY a) m ON m.a = r.node) SELECT * FROM r",
    "except in the term": "WITH RECURSIVE r AS (SELECT node FROM start UNION (SELECT e.b FROM r JOIN edge e ON e.a ="
    " r.node"
    " EXCEPT SELECT id FROM employee)) SELECT * FROM r",
    "lateral": "WITH RECURSIVE r AS (SELECT node FROM start UNION SELECT x FROM r JOIN edge e ON e.a = r.node,"
    " unnest(ARRAY[e.b, e.cost]) x) SELECT * FROM r",
    "search": "WITH RECURSIVE r AS (SELECT id, boss FROM employee WHERE boss IS NULL UNION ALL SELECT e.id, e.boss"
    " FROM employee e JOIN r ON e.boss = r.id) SEARCH DEPTH FIRST BY id SET o SELECT id, boss FROM r",
    "cycle": "WITH RECURSIVE r AS (SELECT a, b FROM edge UNION ALL SELECT r.a, e.b FROM r JOIN edge e ON e.a = r.b)"
    " CYCLE b SET again USING path SELECT a, b, again FROM r",
    "cycle, marked": "WITH RECURSIVE r AS (SELECT a, b FROM edge UNION ALL SELECT r.a, e.b FROM r JOIN edge e ON e.a"
    " = r.b)"
    " CYCLE a, b SET again TO 1 DEFAULT 0 USING path SELECT a, count(*) FROM r WHERE again = 1 GROUP BY a",
    "nested": "SELECT q.node, s.label FROM (" + REACHED + "SELECT node FROM r) q JOIN start s ON s.node = q.node",
    "in a subquery": "SELECT id FROM employee WHERE id IN (" + REACHED + "SELECT node FROM r)",
    "recursive in name alone": "WITH RECURSIVE x AS (SELECT node FROM y), y AS (SELECT node FROM start) SELECT * FROM"
    " x",
    "numeric keys": "WITH RECURSIVE r AS (SELECT pay AS p FROM employee UNION SELECT r.p + 1.0 FROM r WHERE r.p < 2)"
    " SELECT p FROM r",
}
BY_VALUE = {"numeric keys"}

NODE = st.integers(1, 5)
MAYBE = st.sampled_from(["NULL", "1", "2", "3", "4"])
CHANGES = st.one_of(
    st.builds("INSERT INTO edge VALUES ({}, {}, {})".format, NODE, NODE, MAYBE),
    st.builds("INSERT INTO edge SELECT {}, {}, {} FROM generate_series(1, 2)".format, NODE, NODE, MAYBE),
    st.builds("INSERT INTO start VALUES ({}, 's') ON CONFLICT DO NOTHING".format, NODE),
    # A boss has a smaller number, so that there are no cycles: a UNION ALL over one would never end.
    st.builds(
        "INSERT INTO employee VALUES ({0}, nullif({0} - {1}, 0), 'n{1}', {1}.0) ON CONFLICT DO NOTHING".format,
        st.integers(3, 7),
        st.integers(1, 3),
    ),
    st.builds("INSERT INTO employee VALUES ({}, NULL, 'top', 1.00) ON CONFLICT DO NOTHING".format, st.integers(1, 3)),
    st.builds(
        "UPDATE employee SET boss = {0} WHERE id > {0} AND id % 2 = {1}".format, st.integers(1, 3), st.integers(0, 1)
    ),
    st.builds("UPDATE employee SET name = 'm{}' WHERE id = {}".format, st.integers(1, 3), NODE),
    st.builds("UPDATE edge SET b = {} WHERE a = {}".format, NODE, NODE),
    st.builds("UPDATE edge SET cost = {} WHERE b = {}".format, MAYBE, NODE),
    st.builds(
        "UPDATE start SET node = {0} WHERE node = {1} AND NOT EXISTS (SELECT FROM start WHERE node = {0})".format,
        NODE,
        NODE,
    ),
    st.builds("DELETE FROM edge WHERE a = {} AND b = {}".format, NODE, NODE),
    st.builds("DELETE FROM edge WHERE ctid IN (SELECT ctid FROM edge WHERE a = {} LIMIT 1)".format, NODE),
    st.builds("DELETE FROM start WHERE node = {}".format, NODE),
    st.builds("DELETE FROM employee WHERE id = {}".format, st.integers(1, 7)),
)


@pytest.fixture(scope="module")
def graphs(shared_workspace: Workspace) -> Workspace:
    """A tree and a graph."""
    shared_workspace.execute(TABLES)
    connection = shared_workspace.connection
    return Workspace(connection, tuple(source(connection, name) for name in ("employee", "edge", "start")))


@pytest.fixture(scope="module")
def streams(graphs: Workspace) -> dict[str, StreamTable]:
    """A stream table for every query."""
    return {name: graphs.stream(f"st {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(before=st.lists(CHANGES, max_size=15), batches=st.lists(st.lists(CHANGES, min_size=1, max_size=4), max_size=3))
def test_recursive_queries_equal_their_stream_tables(
    graphs: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    graphs.execute("TRUNCATE employee, edge, start", *before)
    for stream in streams.values():
        stream.reset()
    for batch in batches:
        graphs.execute(*batch)
        for name, stream in streams.items():
            stream.refresh()
            assert stream.difference(looks=name not in BY_VALUE) == [], name
