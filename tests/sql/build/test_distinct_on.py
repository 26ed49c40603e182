"""DISTINCT ON: the first row of each group in the query's order, among peers always the same one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.postgres.cluster import EmbeddedPostgres
from tests.sql.conftest import Workspace, open_workspace
from tests.sql.harness import StreamTable
from tests.sql.random_changes import BATCHES, BEFORE, examples, follow
from tests.sql.random_windows import COLUMNS, check, orders, total

QUERIES: dict[str, str] = {
    "latest of each group": "SELECT DISTINCT ON (grp) grp, id, val FROM item ORDER BY grp, val DESC, id",
    "sorted by what is not given out": "SELECT DISTINCT ON (grp) label FROM item ORDER BY grp, val + 1 DESC, id",
    "several keys": "SELECT DISTINCT ON (grp, val % 2) id, grp, amount FROM item ORDER BY val % 2 DESC, grp, id",
    "key by number": "SELECT DISTINCT ON (1) val % 2 AS odd, id FROM item ORDER BY 1, id DESC",
    "key by name": "SELECT DISTINCT ON (odd) val % 2 AS odd, id FROM item ORDER BY odd, id DESC",
    "over a join": "SELECT DISTINCT ON (t.rank) t.rank, i.id FROM item i JOIN tag t USING (grp) ORDER BY t.rank, i.id",
    "over groups": "SELECT DISTINCT ON (count(*)) count(*) AS n, grp FROM item GROUP BY grp ORDER BY count(*), grp",
    "over windows": "SELECT DISTINCT ON (grp) grp, id, rank() OVER (PARTITION BY grp ORDER BY val, id) AS r FROM item"
    " ORDER BY grp, r DESC",
    "joined": "SELECT t.rank, d.id FROM tag t JOIN (SELECT DISTINCT ON (grp) grp, id FROM item ORDER BY grp, val, id) d"
    " ON d.grp = t.grp",
    "aggregated": "SELECT d.val, count(*) AS n FROM (SELECT DISTINCT ON (grp) grp, val FROM item ORDER BY grp, val) d"
    " GROUP BY d.val",
    "filtered": "SELECT d.grp, d.id FROM (SELECT DISTINCT ON (grp) grp, id, val FROM item ORDER BY grp, id) d"
    " WHERE d.val > 1",
    "unfaithful key": "SELECT DISTINCT ON (free) free, id FROM item ORDER BY free, id",
    "citext key": 'SELECT DISTINCT ON (person) person, "from" FROM "Select" ORDER BY person, "from" DESC',
    "limited": "SELECT DISTINCT ON (grp) grp, id FROM item ORDER BY grp DESC NULLS LAST, id LIMIT 2",
}


@pytest.fixture(scope="module")
def sources(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """A database of the module's own."""
    yield from open_workspace(cluster, "sql_distinct_on")


PROPERTY = examples(6)


@pytest.fixture(scope="module")
def streams(sources: Workspace) -> dict[str, StreamTable]:
    """A stream table for every query."""
    return {name: sources.stream(f"d {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


@PROPERTY
@given(before=BEFORE, batches=BATCHES)
def test_stream_tables_equal_their_queries(
    sources: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    follow(sources, streams, before, batches)


def test_tie_goes_to_the_same_row_whatever_the_order_of_insertion(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp, val, label) VALUES (1, 1, 5, 'b'), (2, 1, 5, 'a')")
    stream = workspace.stream("st", "SELECT DISTINCT ON (grp) grp, label FROM item ORDER BY grp, val")
    assert workspace.connection.execute("SELECT grp, label FROM st").fetchall() == [(1, "a")]
    workspace.execute("UPDATE item SET val = val", "DELETE FROM item WHERE id = 2", "INSERT INTO item VALUES (3, 1, 5)")
    done = stream.refresh()
    assert workspace.connection.execute("SELECT grp, label FROM st").fetchall() == [(1, "b")]
    assert (done["inserted"], done["updated"], done["deleted"]) == (0, 1, 0)


def test_only_the_changed_group_is_touched(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp, val) SELECT i, i % 10, i FROM generate_series(1, 100) i")
    stream = workspace.stream("st", "SELECT DISTINCT ON (grp) grp, id, val FROM item ORDER BY grp, val DESC")
    before = stream.tuples()
    workspace.execute("UPDATE item SET val = 1000 WHERE id = 13")
    stream.refresh()
    after = stream.tuples()
    assert len([key for key in after if before.get(key) != after[key]]) == 1
    assert stream.difference() == []


@PROPERTY
@given(data=st.data(), table=st.sampled_from(["item", "tag"]), batches=BATCHES)
def test_random_distinct_on(sources: Workspace, data: st.DataObject, table: str, batches: list[list[str]]) -> None:
    keys = data.draw(st.lists(st.sampled_from(COLUMNS[table]), min_size=1, max_size=2, unique=True))
    order = data.draw(orders(table))
    # PostgreSQL wants the keys first.
    leading = [key for key in order if key.split()[0] in keys]
    rest = [key for key in order if key.split()[0] not in keys]
    named = {key.split()[0] for key in leading}
    order = leading + [key for key in keys if key not in named] + rest
    output = "id, label" if table == "item" else "grp, rank"
    query = f"SELECT DISTINCT ON ({', '.join(keys)}) {output} FROM {table} ORDER BY {', '.join(order)}"
    if data.draw(st.booleans()):
        query = f'SELECT q.*, s.person FROM ({query}) q CROSS JOIN "Select" s'
    sources.execute('TRUNCATE item, tag, "Select", cell', *data.draw(BEFORE))
    sources.execute("DROP TABLE IF EXISTS random")
    stream = sources.stream("random", query)
    for batch in batches:
        sources.execute(*batch)
        stream.refresh()
        check(stream, exact=total(order))
