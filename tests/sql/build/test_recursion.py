"""WITH RECURSIVE over trees, graphs without and with cycles, and with duplicates."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sql import NotDifferentiable
from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable, source

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
    "closure, one column": CLOSURE + "SELECT b FROM c",
    "reached, computed": REACHED + "SELECT node * 2 AS twice, 'x' AS x FROM r",
    "anti join in the base, aggregated": "WITH RECURSIVE r AS (SELECT a, 0 AS n FROM edge WHERE a NOT IN (SELECT"
    " s.node FROM"
    " start s JOIN employee e ON e.id = s.node) UNION ALL SELECT a, n + 1 FROM r WHERE n < 1) SELECT a, count(*) FROM"
    " r GROUP BY a",
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


def tables(workspace: Workspace) -> Workspace:
    """A tree and a graph."""
    workspace.execute(TABLES)
    connection = workspace.connection
    return Workspace(connection, tuple(source(connection, name) for name in ("employee", "edge", "start")))


@pytest.fixture(scope="module")
def graphs(shared_workspace: Workspace) -> Workspace:
    """The tables for all queries."""
    return tables(shared_workspace)


class Streams(dict[str, StreamTable]):
    """Stream tables by the names of their queries, made when they are asked for."""

    def __init__(self, graphs: Workspace):
        self.graphs = graphs

    def __missing__(self, name: str) -> StreamTable:
        self[name] = self.graphs.stream(name, QUERIES[name])
        return self[name]


@pytest.fixture(scope="module")
def streams(graphs: Workspace) -> Streams:
    """Stream tables over the graphs."""
    return Streams(graphs)


def holds(streams: Streams, names: set[str], before: list[str], batches: list[list[str]]) -> None:
    """After each batch the stream tables equal their queries."""
    streams.graphs.execute("TRUNCATE employee, edge, start", *before)
    chosen = {name: streams[name] for name in sorted(names)}
    for stream in chosen.values():
        stream.reset()
    for batch in batches:
        streams.graphs.execute(*batch)
        for name, stream in chosen.items():
            stream.refresh()
            assert stream.difference(looks=name not in BY_VALUE) == [], name


PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
BEFORE = st.lists(CHANGES, min_size=4, max_size=15)
BATCHES = st.lists(st.lists(CHANGES, min_size=1, max_size=4), min_size=1, max_size=2)


@settings(max_examples=5, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
@given(names=st.sets(st.sampled_from(sorted(QUERIES)), min_size=4, max_size=5), before=BEFORE, batches=BATCHES)
def test_some_recursive_queries_equal_their_stream_tables(
    streams: Streams, names: set[str], before: list[str], batches: list[list[str]]
) -> None:
    holds(streams, names, before, batches)


@pytest.mark.long
@settings(max_examples=20, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
@given(before=BEFORE, batches=BATCHES)
def test_recursive_queries_equal_their_stream_tables(
    streams: Streams, before: list[str], batches: list[list[str]]
) -> None:
    holds(streams, set(QUERIES), before, batches)


def test_edge_deleted_from_a_cycle_takes_what_only_the_cycle_held(workspace: Workspace) -> None:
    graphs = tables(workspace)
    graphs.execute("INSERT INTO start VALUES (1)", "INSERT INTO edge VALUES (1, 2), (2, 3), (3, 2), (3, 4)")
    stream = graphs.stream("st", REACHED + "SELECT node FROM r")
    graphs.execute("DELETE FROM edge WHERE a = 1")
    assert stream.refresh()["deleted"] == 3
    assert stream.difference() == []


def test_row_with_another_derivation_stays(workspace: Workspace) -> None:
    graphs = tables(workspace)
    graphs.execute("INSERT INTO start VALUES (1)", "INSERT INTO edge VALUES (1, 2), (1, 3), (2, 4), (3, 4), (4, 5)")
    stream = graphs.stream("st", REACHED + "SELECT node FROM r")
    before = stream.tuples()
    graphs.execute("DELETE FROM edge WHERE a = 2")
    done = stream.refresh()
    assert (done["inserted"], done["deleted"]) == (0, 0)
    assert stream.tuples() == before


def test_derivations_are_counted_under_union_all(workspace: Workspace) -> None:
    graphs = tables(workspace)
    graphs.execute("INSERT INTO start VALUES (1)", "INSERT INTO edge VALUES (1, 2), (1, 2), (2, 3)")
    stream = graphs.stream("st", PATHS + "SELECT * FROM p")
    graphs.execute("DELETE FROM edge WHERE ctid = (SELECT min(ctid) FROM edge)", "INSERT INTO edge VALUES (2, 3)")
    stream.refresh()
    rows = "SELECT node, n, count(*) FROM st GROUP BY 1, 2 ORDER BY 1"
    assert workspace.connection.execute(rows).fetchall() == [(1, 0, 1), (2, 1, 1), (3, 2, 2)]


def test_subtree_that_moves_keeps_its_rows(workspace: Workspace) -> None:
    graphs = tables(workspace)
    graphs.execute("INSERT INTO employee VALUES (1, NULL), (2, 1), (3, 1), (4, 2), (5, 4)")
    stream = graphs.stream("st", REPORTS + "SELECT * FROM r")
    before = stream.tuples()
    graphs.execute("UPDATE employee SET boss = 3 WHERE id = 4")
    done = stream.refresh()
    assert (done["inserted"], done["deleted"]) == (1, 1)
    assert len(before.items() & stream.tuples().items()) == 4
    assert stream.difference() == []


def test_cycle_cut_off_in_the_same_refresh_does_not_run_for_ever(workspace: Workspace) -> None:
    graphs = tables(workspace)
    graphs.execute("INSERT INTO employee VALUES (1, NULL), (2, 1), (3, 2)", "SET statement_timeout = '90s'")
    stream = graphs.stream("st", REPORTS + "SELECT * FROM r")
    graphs.execute("UPDATE employee SET boss = 3 WHERE id = 2")
    assert stream.refresh()["deleted"] == 2
    graphs.execute("UPDATE employee SET boss = 1 WHERE id = 3")
    assert stream.refresh()["inserted"] == 2
    assert stream.difference() == []


def test_endless_recursion_is_an_error_as_in_postgresql(workspace: Workspace) -> None:
    graphs = tables(workspace)
    graphs.execute("INSERT INTO employee VALUES (1, NULL), (2, 1)")
    stream = graphs.stream("st", REPORTS + "SELECT * FROM r")
    graphs.execute("INSERT INTO employee VALUES (3, 3), (4, 3)")
    stream.refresh()
    assert stream.difference() == []
    endless = "WITH RECURSIVE r AS (SELECT a FROM edge UNION ALL SELECT e.b FROM edge e JOIN r ON e.a = r.a) "
    loop = graphs.stream("loop", endless + "SELECT a FROM r")
    graphs.execute("INSERT INTO edge VALUES (1, 1)", "SET statement_timeout = '500ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        loop.refresh()


@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE r AS (SELECT id FROM (SELECT id FROM employee ORDER BY boss LIMIT 2) q UNION ALL SELECT e.id"
        " FROM employee e JOIN r ON e.boss = r.id) SELECT * FROM r",
        "WITH RECURSIVE r AS (SELECT pay FROM employee UNION SELECT r.pay + 1 FROM r WHERE r.pay < 2) SELECT * FROM r",
        QUERIES["cycle"],
        QUERIES["except in the term"],
    ],
)
def test_what_sql_leaves_open_is_computed_again(workspace: Workspace, query: str) -> None:
    stream = tables(workspace).stream("st", query)
    assert stream.compiled.strategy["WITH RECURSIVE r"] == "computed again, and compared with the stored rows"


@pytest.mark.parametrize(
    ("query", "changed", "expected"),
    [
        (REPORTS + "SELECT * FROM r", "employee", True),
        (CLOSURE + "SELECT * FROM c", "edge", True),
        (QUERIES["not exists"], "edge", True),
        (QUERIES["not exists"], "employee", False),
        (QUERIES["outer join"], "start", True),
        (QUERIES["outer join"], "edge", False),
    ],
)
def test_the_way_is_chosen_by_what_has_changed(workspace: Workspace, query: str, changed: str, expected: bool) -> None:
    stream = tables(workspace).stream("st", query)
    oids = frozenset(s.oid for s in stream.compiled.sources if s.name == changed)
    assert ("__pgt_work" in stream.compiled.refresh_sql(stream.storage, oids)) is expected


def test_explain_says_how_a_recursion_is_maintained(workspace: Workspace) -> None:
    graphs = tables(workspace)
    strategy = graphs.stream("st1", CLOSURE + "SELECT * FROM c").compiled.strategy
    assert strategy["WITH RECURSIVE c"] == "semi-naive for inserts, delete and rederive for deletes"
    strategy = graphs.stream("st2", REPORTS + "SELECT * FROM r").compiled.strategy
    assert strategy["WITH RECURSIVE r"] == "semi-naive for inserts, derivations are counted"
    strategy = graphs.stream("st3", QUERIES["not exists"]).compiled.strategy
    assert strategy["WITH RECURSIVE r"].endswith("computed again when public.employee changes")
    strategy = graphs.stream("st4", REPORTS + "SELECT depth, count(*) FROM r GROUP BY depth").compiled.strategy
    assert strategy["WITH RECURSIVE r"] == "computed again, as it is and as it was"
    strategy = graphs.stream("st5", REPORTS + "SELECT * FROM r WHERE depth > 1").compiled.strategy
    assert strategy["WITH RECURSIVE r"] == "computed again, and compared with the stored rows"


@pytest.mark.parametrize(
    ("query", "construct"),
    [
        ("WITH RECURSIVE r AS (SELECT a FROM edge UNION SELECT a FROM (SELECT a, row_number() OVER () FROM r) q)"
         " SELECT count(*) FROM r", "operator over a WITH RECURSIVE whose rows depend on the order of others"),
        ("WITH RECURSIVE r AS (SELECT pay FROM employee UNION SELECT r.pay + 1 FROM r WHERE r.pay < 2)"
         " SELECT count(*) FROM r", "operator over a WITH RECURSIVE whose rows depend on the order of others"),
        ("WITH RECURSIVE r AS (SELECT a FROM ONLY edge UNION SELECT a + 1 FROM r WHERE a < 3) SELECT a FROM r",
         "FROM ONLY"),
    ],
)  # fmt: skip
def test_what_is_not_exact_is_refused(workspace: Workspace, query: str, construct: str) -> None:
    with pytest.raises(NotDifferentiable) as refused:
        tables(workspace).stream("st", query)
    assert refused.value.construct == construct
