"""TopK: the first rows in an order at the top of a query, and LIMIT within it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.postgres.cluster import EmbeddedPostgres
from tests.sql.conftest import Workspace, open_workspace
from tests.sql.harness import StreamTable
from tests.sql.random_changes import BATCHES, BEFORE, examples, follow
from tests.sql.random_windows import check, orders, total

QUERIES: dict[str, str] = {
    "first": "SELECT id, val FROM item ORDER BY val DESC, id LIMIT 3",
    "page": "SELECT id, val FROM item ORDER BY val NULLS FIRST, id LIMIT 3 OFFSET 2",
    "all but the first": "SELECT id FROM item ORDER BY id OFFSET 2",
    "fetch first": "SELECT id FROM item ORDER BY id FETCH FIRST 2 ROWS ONLY",
    "fetch first row": "SELECT id FROM item ORDER BY id FETCH FIRST ROW ONLY",
    "with ties": "SELECT id, val FROM item ORDER BY val FETCH FIRST 2 ROWS WITH TIES",
    "with ties of a page": "SELECT val FROM item ORDER BY val OFFSET 1 FETCH FIRST 2 ROWS WITH TIES",
    "limit all": "SELECT id, val FROM item ORDER BY val LIMIT ALL",
    "limit null": "SELECT id, val FROM item ORDER BY val LIMIT NULL",
    "limit zero": "SELECT id, val FROM item ORDER BY val LIMIT 0",
    "ties of zero": "SELECT id FROM item ORDER BY val OFFSET 1 FETCH FIRST 0 ROWS WITH TIES",
    "expression": "SELECT id FROM item ORDER BY id LIMIT 1 + 2 OFFSET length('a')",
    "sorted by what is not given out": "SELECT label FROM item ORDER BY val + grp DESC, id LIMIT 3",
    "sorted by name and number": "SELECT val % 2 AS odd, id FROM item ORDER BY odd DESC, 2 LIMIT 3",
    "without a key": "SELECT grp, rank FROM tag ORDER BY rank DESC, grp LIMIT 3",
    "of groups": "SELECT grp, sum(val) AS s FROM item GROUP BY grp ORDER BY sum(val) DESC NULLS LAST, grp LIMIT 2",
    "of groups by an expression": "SELECT grp FROM item GROUP BY grp ORDER BY count(*) * 2, grp LIMIT 2",
    "of distinct rows": "SELECT DISTINCT grp, val FROM item ORDER BY val, grp LIMIT 3",
    "of distinct rows by a constant": "SELECT DISTINCT 3 AS c, val FROM item ORDER BY 1 FETCH FIRST 2 ROWS WITH TIES",
    "by a constant within": "SELECT q.id + 1 AS i FROM (SELECT id, 'x' AS c FROM item ORDER BY 2 OFFSET 0 FETCH FIRST"
    " ROW WITH TIES) q",
    "of a join": "SELECT i.id, t.rank FROM item i JOIN tag t USING (grp) ORDER BY i.id, t.rank LIMIT 3",
    "of a union": "SELECT grp, rank FROM tag UNION ALL SELECT id, val FROM item ORDER BY 2, 1 LIMIT 3",
    "of windows": "SELECT id, rank() OVER w AS r FROM item WINDOW w AS (ORDER BY val)"
    " ORDER BY rank() OVER w, id LIMIT 3",
    "in a subquery": "SELECT q.grp, count(*) AS n FROM (SELECT grp, id FROM item ORDER BY id LIMIT 4) q GROUP BY q.grp",
    "in a cte, joined": "WITH top AS (SELECT grp, val FROM item ORDER BY val DESC NULLS LAST, id LIMIT 2 OFFSET 1)"
    " SELECT t.rank, top.val FROM tag t JOIN top ON top.grp = t.grp",
    "ties in a subquery": "SELECT q.val, q.id + 1 AS i FROM (SELECT id, val FROM item ORDER BY val FETCH FIRST 2 ROWS"
    " WITH TIES) q",
    "offset in a subquery": "SELECT q.id + 1 AS i FROM (SELECT id FROM item ORDER BY id OFFSET 2) q WHERE q.id > 3",
    "for each row": "SELECT i.id, l.rank FROM item i CROSS JOIN LATERAL (SELECT t.rank FROM tag t WHERE t.grp = i.grp"
    " ORDER BY t.rank NULLS FIRST LIMIT 2 OFFSET 1) l",
    "in a scalar subquery": "SELECT i.id, (SELECT t.rank FROM tag t WHERE t.grp = i.grp ORDER BY t.rank LIMIT 1) AS r"
    " FROM item i ORDER BY (SELECT count(*) FROM tag t WHERE t.grp = i.grp) DESC, id LIMIT 3",
    "of values": "VALUES (1, 'a'), (2, 'b'), (3, NULL) ORDER BY 1 DESC, 2 LIMIT 2",
    "in the branches of a union": "(SELECT id, val FROM item ORDER BY id LIMIT 2) UNION ALL (SELECT grp, rank FROM tag"
    " ORDER BY rank, grp OFFSET 1) ORDER BY 2, 1 LIMIT 3",
    "limit of a limit": "SELECT q.id FROM (SELECT id, val FROM item ORDER BY val, id LIMIT 4) q"
    " ORDER BY q.id DESC LIMIT 2",
}


@pytest.fixture(scope="module")
def sources(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """A database of the module's own."""
    yield from open_workspace(cluster, "sql_topk")


@pytest.fixture(scope="module")
def streams(sources: Workspace) -> dict[str, StreamTable]:
    """A stream table for every query."""
    return {name: sources.stream(f"t {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


PROPERTY = examples(6)


@PROPERTY
@given(before=BEFORE, batches=BATCHES)
def test_stream_tables_equal_their_queries(
    sources: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    follow(sources, streams, before, batches)


def test_rows_that_stay_are_left_alone(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, val) SELECT i, i FROM generate_series(1, 20) i")
    stream = workspace.stream("st", "SELECT id, val FROM item ORDER BY val DESC LIMIT 5")
    workspace.execute("UPDATE item SET val = 100 WHERE id = 1", "UPDATE item SET val = 50 WHERE id = 20")
    done = stream.refresh()
    assert (done["inserted"], done["updated"], done["deleted"]) == (1, 1, 1)
    rows = workspace.connection.execute("SELECT id FROM st ORDER BY val DESC").fetchall()
    assert rows == [(1,), (20,), (19,), (18,), (17,)]


def test_tie_at_the_limit_goes_to_the_same_row_whatever_the_order_of_insertion(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, val, label) VALUES (1, 5, 'b'), (2, 5, 'c'), (3, 5, 'a')")
    stream = workspace.stream("st", "SELECT label FROM item ORDER BY val LIMIT 2")
    rows = "SELECT label FROM st ORDER BY label"
    assert workspace.connection.execute(rows).fetchall() == [("a",), ("b",)]
    workspace.execute("UPDATE item SET val = val WHERE id = 3", "INSERT INTO item (id, val, label) VALUES (4, 5, 'aa')")
    stream.refresh()
    assert workspace.connection.execute(rows).fetchall() == [("a",), ("aa",)]


def test_row_with_a_stable_function_goes(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, val) SELECT i, i FROM generate_series(1, 9) i")
    for count in (3, 30):
        query = f"SELECT id, now() AS at FROM item ORDER BY id LIMIT {count}"
        stream = workspace.stream(f"st {count}", query)
        workspace.execute(f"DELETE FROM item WHERE id = {count // 10 + 1}")
        stream.refresh()
        rows = workspace.connection.execute(f'SELECT id FROM "st {count}" ORDER BY id').fetchall()
        assert rows == workspace.connection.execute(f"SELECT id FROM item ORDER BY id LIMIT {count}").fetchall()


def test_negative_limit_fails_as_in_postgresql(workspace: Workspace) -> None:
    with pytest.raises(psycopg.errors.InvalidRowCountInLimitClause):
        workspace.stream("st", "SELECT id FROM item ORDER BY id LIMIT -1")


@PROPERTY
@given(data=st.data(), table=st.sampled_from(["item", "tag"]), batches=BATCHES)
def test_random_limits(sources: Workspace, data: st.DataObject, table: str, batches: list[list[str]]) -> None:
    order = data.draw(orders(table, 1))
    count, offset = data.draw(st.integers(0, 4)), data.draw(st.sampled_from(["", " OFFSET 1", " OFFSET 3"]))
    ties = data.draw(st.booleans())
    limit = f"{offset} FETCH FIRST {count} ROWS WITH TIES" if ties else f" LIMIT {count}{offset}"
    query = f"SELECT {'id, label' if table == 'item' else 'grp, rank'} FROM {table} ORDER BY {', '.join(order)}{limit}"
    form = data.draw(st.sampled_from(["top", "joined", "grouped"]))
    if form == "joined":
        query = f'SELECT q.*, s.person FROM ({query}) q CROSS JOIN "Select" s'
    if form == "grouped":
        query = f"SELECT count(*) AS n, min(q.{'label' if table == 'item' else 'grp'}) AS m FROM ({query}) q"
    sources.execute('TRUNCATE item, tag, "Select", cell', *data.draw(BEFORE))
    sources.execute("DROP TABLE IF EXISTS random")
    stream = sources.stream("random", query)
    for batch in batches:
        sources.execute(*batch)
        stream.refresh()
        check(stream, exact=total(order) or (ties and not offset))
