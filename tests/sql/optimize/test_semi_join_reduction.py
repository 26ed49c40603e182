"""Aggregates inside a join follow the changes that the other side of the join lets through, and no others."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable, one
from tests.sql.random_changes import BATCHES, BEFORE, examples, follow

GROUPS = "SELECT grp, count(*) AS n, sum(val) AS s, max(label) AS m FROM item GROUP BY grp"
QUERIES = {
    "scalar": "SELECT i.id, i.val, t.rank FROM item i JOIN tag t ON t.grp = i.grp WHERE t.rank = 1"
    " AND i.val > (SELECT avg(j.val) FROM item j WHERE j.grp = t.grp)",
    "in": "SELECT t.grp, t.rank FROM tag t WHERE t.rank >= 2"
    " AND t.grp IN (SELECT grp FROM item GROUP BY grp HAVING sum(val) > 2)",
    "in filters the aggregate": f"SELECT g.* FROM ({GROUPS}) g WHERE g.grp IN (SELECT grp FROM tag WHERE rank < 2)",
    "exists": "SELECT t.grp FROM tag t WHERE t.rank = 2"
    " AND NOT EXISTS (SELECT FROM (SELECT grp, count(*) AS n FROM item"
    " GROUP BY grp) g WHERE g.grp = t.grp AND g.n > 1)",
    "left join": "SELECT t.grp, t.rank, g.n, g.m FROM (SELECT * FROM tag WHERE rank > 1) t"
    f" LEFT JOIN ({GROUPS}) g"
    " ON g.grp = t.grp AND g.n > 1",
    "nested aggregates": "SELECT t.rank, g.most FROM tag t JOIN (SELECT grp, max(n) AS most FROM (SELECT grp, val,"
    " count(*) AS n FROM item GROUP BY grp, val) v GROUP BY grp) g ON g.grp = t.grp AND t.rank <> 3",
    "distinct on": "SELECT t.rank, f.id FROM tag t"
    " JOIN (SELECT DISTINCT ON (grp) grp, id FROM item ORDER BY grp, val, id)"
    " f ON f.grp = t.grp WHERE t.rank = 1",
    "two tables away": f"SELECT a.id, g.s FROM item a JOIN tag t ON t.grp = a.grp JOIN ({GROUPS}) g ON g.grp = a.grp"
    " WHERE t.rank IN (0, 1)",
    "by part of the key": "SELECT t.rank, g.val, g.n FROM tag t JOIN (SELECT grp, val, count(*) AS n, sum(free) AS f"
    " FROM item GROUP BY grp, val) g ON g.grp = t.grp AND g.n >= t.rank WHERE t.rank > 0",
    "by the other's key": "SELECT i.id, g.n FROM item i JOIN (SELECT rank, count(*) AS n FROM tag GROUP BY rank) g"
    " ON g.rank = i.id WHERE i.val = 1",
    "numbers that look different": "SELECT i.id, g.n FROM item i JOIN (SELECT free, count(*) AS n FROM item GROUP BY"
    " free) g ON g.free = i.free WHERE i.val = 2",
}


@pytest.fixture(scope="module")
def streams(shared_workspace: Workspace) -> dict[str, StreamTable]:
    """A stream table for every query."""
    return {name: shared_workspace.stream(f"st {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


@examples(20)
@given(before=BEFORE, batches=BATCHES)
def test_stream_tables_equal_their_queries(
    shared_workspace: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    follow(shared_workspace, streams, before, batches)


def test_group_is_asked_for_again_after_it_has_changed_unasked(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO item (id, grp, val) SELECT n, n % 4, n FROM generate_series(1, 20) n")
    workspace.execute("INSERT INTO tag SELECT n, '{}', n FROM generate_series(0, 3) n")
    stream = workspace.stream("st", QUERIES["scalar"])
    for change in (
        "UPDATE item SET val = val + id WHERE grp = 2",  # nobody asks for it
        "UPDATE tag SET rank = 3 - rank",  # now somebody does
        "UPDATE item SET val = -val WHERE id < 9; UPDATE tag SET rank = 3 - rank",
        "DELETE FROM tag WHERE rank = 1; UPDATE item SET val = 0",
    ):
        workspace.execute(change)
        stream.refresh()
        assert stream.difference() == []


def test_what_is_read_twice_is_not_bounded(workspace: Workspace) -> None:
    query = f"SELECT g.n, (SELECT count(*) FROM tag t WHERE t.rank > g.n) AS more FROM ({GROUPS}) g, tag u"
    stream = workspace.stream("st", f"{query} WHERE u.grp = g.grp AND u.rank = 1")
    workspace.execute("INSERT INTO tag VALUES (1, '{}', 1), (2, '{}', 2)", "INSERT INTO item (id, grp) VALUES (1, 1)")
    stream.refresh()
    assert stream.difference() == []
    workspace.execute("INSERT INTO item (id, grp) VALUES (2, 1), (3, 2)", "UPDATE tag SET rank = 3 - rank")
    stream.refresh()
    assert stream.difference() == []


def test_keys_of_few_changes_are_looked_up(workspace: Workspace) -> None:
    workspace.execute(
        "INSERT INTO item (id, val) SELECT n, n % 500 FROM generate_series(1, 100000) n",
        "INSERT INTO tag (rank) SELECT n FROM generate_series(1, 3000) n",
        "ANALYZE item, tag",
        "SET random_page_cost = 1.1",
    )
    stream = workspace.stream("st", QUERIES["by the other's key"])
    workspace.execute("INSERT INTO tag (rank) VALUES (1), (2), (501)", "UPDATE item SET val = 1 WHERE id IN (2, 9000)")
    read = "SELECT seq_scan FROM pg_stat_xact_user_tables WHERE relname = 'item'"
    with workspace.connection.transaction():
        before = one(workspace.connection, read)
        stream.refresh()
        assert one(workspace.connection, read) == before
    assert stream.difference() == []
