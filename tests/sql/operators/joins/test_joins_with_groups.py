"""Joins with groups: these are asked for by the rows that they can meet, and semi-joins come before other joins."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable
from tests.sql.random_changes import BATCHES, BEFORE, examples, follow

LARGE = "SELECT grp FROM item GROUP BY grp HAVING sum(val) > 2"
SIZES = "SELECT grp, count(*) AS n FROM tag GROUP BY grp"
QUERIES = {
    "in groups": f"SELECT i.id, i.val, t.rank FROM item i, tag t WHERE t.rank = i.val AND i.grp IN ({LARGE})",
    "of three tables": "SELECT i.id, t.rank, c.y FROM item i JOIN tag t ON t.grp = i.grp JOIN cell c ON c.x = i.val"
    f" WHERE i.grp IN ({LARGE})",
    "not in groups": "SELECT i.id, t.rank FROM item i JOIN tag t ON t.rank = i.val WHERE NOT EXISTS"
    f" (SELECT FROM ({SIZES}) g WHERE g.grp = i.grp AND g.n > 1)",
    "a condition beside it": "SELECT i.id, t.rank FROM item i JOIN tag t ON t.rank = i.val"
    f" WHERE t.rank < 3 AND i.grp IN ({LARGE})",
    "above a group's average": "SELECT t.grp FROM tag t WHERE t.rank IN (SELECT i.val FROM item i WHERE amount >"
    " (SELECT avg(j.amount) FROM item j WHERE j.grp = i.grp AND j.wide = i.wide))",
    "keys with NULL": f"SELECT i.label, array_agg(val ORDER BY val) AS vs, sum(g.n) AS n FROM item i JOIN ({SIZES}) g"
    " ON g.grp = i.grp GROUP BY i.label",
    "partitions with NULL": "SELECT i.id, g.n, rank() OVER (PARTITION BY i.free ORDER BY g.n, i.id) AS place"
    f" FROM item i JOIN ({SIZES}) g ON g.grp = i.val",
    "of two groups": "SELECT t.rank FROM tag t WHERE t.rank IN (SELECT i.val FROM item i"
    f" JOIN ({SIZES}) g ON g.grp = i.grp JOIN (SELECT grp, max(val) AS m FROM item GROUP BY grp) h"
    " ON h.grp = i.grp WHERE h.m > g.n)",
    "groups that no row asks for": "SELECT t.grp, t.rank FROM tag t WHERE t.rank IN (SELECT g.n FROM item i"
    f" CROSS JOIN ({SIZES}) g WHERE i.val < g.grp)",
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


def test_groups_of_other_rows_are_not_computed(workspace: Workspace) -> None:
    workspace.execute(
        "INSERT INTO item SELECT i, i % 10, i % 4, i, 1, NULL, 1 FROM generate_series(1, 200) i",
        "INSERT INTO tag SELECT i, '{}', i FROM generate_series(0, 3) i",
    )
    stream = workspace.stream("st", QUERIES["above a group's average"])
    workspace.execute("INSERT INTO tag VALUES (7, '{}', 2)")
    oids = frozenset(source.oid for source in stream.compiled.sources if source.name == "tag")
    assert '"__pgt_rows_' in stream.compiled.refresh_sql(stream.storage, oids)
    stream.refresh()
    assert stream.difference() == []
