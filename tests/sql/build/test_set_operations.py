"""UNION, INTERSECT and EXCEPT with and without ALL, VALUES, SELECT without FROM."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable

QUERIES = {
    "union": "SELECT grp FROM item UNION SELECT rank FROM tag",
    "union of three": "SELECT grp FROM item UNION SELECT rank FROM tag UNION SELECT val FROM item",
    "union within union all": "SELECT grp FROM item UNION ALL (SELECT rank FROM tag UNION SELECT val FROM item)",
    "intersect": "SELECT grp, val FROM item INTERSECT SELECT grp, rank FROM tag",
    "intersect all": "SELECT grp FROM item INTERSECT ALL SELECT grp FROM tag",
    "except": "SELECT grp, val FROM item EXCEPT SELECT grp, rank FROM tag",
    "except all": "SELECT grp FROM item EXCEPT ALL SELECT grp FROM tag",
    "nested": "(SELECT grp FROM item EXCEPT ALL SELECT rank FROM tag) INTERSECT (SELECT val FROM item UNION SELECT 2)",
    "right side nested": "SELECT grp FROM item EXCEPT ALL (SELECT grp FROM tag INTERSECT ALL SELECT rank FROM tag)",
    "of one table": "SELECT grp FROM item EXCEPT ALL SELECT val FROM item",
    "coerced": "SELECT grp, label FROM item INTERSECT ALL SELECT free, NULL FROM item",
    "coerced to bigint": "SELECT wide FROM item EXCEPT SELECT grp FROM tag",
    "coerced through three": "SELECT grp FROM item UNION SELECT amount FROM item UNION SELECT rank::float8 FROM tag",
    "unfaithful": "SELECT free FROM item INTERSECT ALL SELECT amount FROM item",
    "unfaithful except": "SELECT free FROM item EXCEPT ALL SELECT rank FROM tag",
    "joined": "SELECT t.rank, q.grp FROM tag t JOIN (SELECT grp FROM item EXCEPT SELECT rank FROM tag) q USING (grp)",
    "aggregated": "SELECT g, count(*) FROM (SELECT grp g FROM item INTERSECT ALL SELECT grp FROM tag) q GROUP BY g",
    "filtered": "SELECT g FROM (SELECT grp g, val FROM item EXCEPT ALL SELECT grp, rank FROM tag) q WHERE g > val",
    "values": "VALUES (1, 'a'), (2, NULL), (NULL, 'c')",
    "values as a branch": "SELECT grp FROM item UNION ALL VALUES (1), (2), (2)",
    "values first": "VALUES (1.50), (7) EXCEPT ALL SELECT grp FROM item",
    "values in from": "SELECT b, i.id FROM (VALUES (1, 'a'), (2, 'b'), (NULL, 'c')) v(a, b) JOIN item i ON grp = a",
    "values with": "WITH v(a) AS (VALUES (1), (2)) SELECT v.a, t.grp FROM v, tag t WHERE t.rank > v.a",
    "one row": "SELECT 1 AS a, 'x' AS b, now() - now() AS c",
    "one row aggregated": "SELECT count(*), max(1)",
    "one row joined": "SELECT t.grp, o.x FROM tag t, (SELECT 2 AS x) o WHERE t.rank = o.x",
    "constants except": "SELECT 1 AS x UNION ALL SELECT 2 EXCEPT SELECT grp FROM item",
    "empty columns": "SELECT count(*) FROM (SELECT FROM tag UNION ALL SELECT FROM item) q",
    "shared with": "WITH c AS MATERIALIZED (SELECT grp, count(*) AS n FROM item GROUP BY grp) "
    "SELECT a.grp, b.n FROM c a JOIN c b ON a.n = b.grp UNION ALL SELECT grp, n FROM c",
    "chain": "SELECT grp FROM item UNION ALL SELECT rank FROM tag UNION ALL (SELECT val FROM item UNION ALL SELECT 2)"
    " UNION ALL SELECT amount FROM item UNION ALL SELECT id FROM item",
    "nested with": "SELECT grp FROM item UNION (WITH a AS (SELECT rank FROM tag),"
    " b AS NOT MATERIALIZED (SELECT rank + 1 AS r FROM a) SELECT r FROM b EXCEPT SELECT rank FROM a)",
}
BY_VALUE = {"unfaithful", "unfaithful except", "coerced", "coerced through three"}
"""Of equal values PostgreSQL itself leaves open which is given out."""

SMALL = st.sampled_from(["NULL", "1", "2", "3"])
ITEMS = st.builds(
    "INSERT INTO item VALUES ({}, {}, {}, {}, {}, 'x', {}) ON CONFLICT DO NOTHING".format,
    st.integers(1, 9),
    SMALL,
    SMALL,
    SMALL,
    st.sampled_from(["NULL", "1", "1.0", "2.00", "'NaN'"]),
    SMALL,
)
CHANGES = st.one_of(
    ITEMS,
    st.builds(
        "INSERT INTO tag SELECT {}, NULL, {} FROM generate_series(1, {})".format, SMALL, SMALL, st.integers(1, 2)
    ),
    st.builds("UPDATE item SET grp = {}, val = {} WHERE id % 3 = {}".format, SMALL, SMALL, st.integers(0, 2)),
    st.builds("UPDATE tag SET grp = {} WHERE rank = {}".format, SMALL, SMALL),
    st.builds("UPDATE item SET free = 1.000 WHERE grp = {}".format, SMALL),
    st.builds("DELETE FROM item WHERE grp = {}".format, SMALL),
    st.builds("DELETE FROM tag WHERE ctid IN (SELECT ctid FROM tag WHERE rank = {} LIMIT 1)".format, SMALL),
    st.just("DELETE FROM tag WHERE grp IS NULL"),
)


@pytest.fixture(scope="module")
def streams(shared_workspace: Workspace) -> dict[str, StreamTable]:
    """A stream table for every query."""
    return {name: shared_workspace.stream(f"st {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(before=st.lists(CHANGES, max_size=12), batches=st.lists(st.lists(CHANGES, min_size=1, max_size=4), max_size=3))
def test_set_operations_equal_their_queries(
    shared_workspace: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    shared_workspace.execute("TRUNCATE item, tag", *before)
    for stream in streams.values():
        stream.reset()
    for batch in batches:
        shared_workspace.execute(*batch)
        for name, stream in streams.items():
            stream.refresh()
            assert stream.difference(looks=name not in BY_VALUE) == [], name


def test_a_long_chain_of_unions_is_no_deep_query(workspace: Workspace) -> None:
    """PostgreSQL plans unions in unions in the cube of their depth."""
    items = "SELECT id, label FROM item"
    chain = workspace.stream("st", f"SELECT 0, note::text FROM tag UNION ALL {' UNION ALL '.join([items] * 50)}")
    assert len(chain.compiled.tree.splitlines()) < 3 * 50
    assert {line.index(line.strip()) for line in chain.compiled.tree.splitlines() if "Scan" in line} == {4}
    workspace.execute("INSERT INTO item (id, label) VALUES (1, 'a'), (2, 'b')")
    assert chain.refresh()["inserted"] == 100
    assert chain.difference() == []


def test_copies_are_counted_on_both_sides(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp) VALUES (1, 1), (2, 1), (3, 1)", "INSERT INTO tag VALUES (1), (1)")
    common = workspace.stream("st1", "SELECT grp FROM item INTERSECT ALL SELECT grp FROM tag")
    excess = workspace.stream("st2", "SELECT grp FROM item EXCEPT ALL SELECT grp FROM tag")
    workspace.execute("DELETE FROM tag WHERE ctid = (SELECT min(ctid) FROM tag)")
    assert common.refresh()["deleted"] == 1
    assert excess.refresh()["inserted"] == 1
    assert workspace.connection.execute("SELECT count(*) FROM st2").fetchone() == (2,)


def test_null_equals_null(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id) VALUES (1), (2)", "INSERT INTO tag VALUES (NULL)")
    stream = workspace.stream("st", "SELECT grp, val FROM item EXCEPT SELECT grp, rank FROM tag")
    assert workspace.connection.execute("SELECT grp, val FROM st").fetchall() == []
    workspace.execute("DELETE FROM tag")
    stream.refresh()
    assert workspace.connection.execute("SELECT grp, val FROM st").fetchall() == [(None, None)]


def test_a_row_that_stays_in_the_result_is_not_touched(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp) VALUES (1, 1), (2, 2)", "INSERT INTO tag VALUES (1), (1), (2)")
    stream = workspace.stream("st", "SELECT grp FROM item INTERSECT SELECT grp FROM tag")
    before = stream.tuples()
    workspace.execute("DELETE FROM tag WHERE ctid = (SELECT min(ctid) FROM tag)")
    stream.refresh()
    assert stream.tuples() == before


def test_constants_have_no_sources(workspace: Workspace) -> None:
    stream = workspace.stream("st", "VALUES (1, 'a'), (2, 'b')")
    assert stream.compiled.sources == ()
    assert stream.difference() == []
    assert stream.refresh()["inserted"] == 0
