"""Window functions: every function, frame and exclusion, ties broken the same way each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from server.embedded import EmbeddedPostgres

from .conftest import Workspace, open_workspace
from .harness import StreamTable
from .test_random_changes import statements

QUERIES: dict[str, str] = {
    "positions": "SELECT id, grp, row_number() OVER w AS n, rank() OVER (PARTITION BY grp ORDER BY val) AS r,"
    " dense_rank() OVER (PARTITION BY grp ORDER BY val) AS d, ntile(2) OVER w AS t,"
    " percent_rank() OVER (PARTITION BY grp ORDER BY val) AS p, cume_dist() OVER (PARTITION BY grp ORDER BY val) AS c"
    " FROM item WINDOW w AS (PARTITION BY grp ORDER BY val DESC NULLS LAST, id)",
    "neighbours": "SELECT id, lag(val) OVER w AS a, lag(val, 2, -1) OVER w AS b, lead(label) OVER w AS c,"
    " lead(amount, grp, 0) OVER w AS d FROM item WINDOW w AS (PARTITION BY grp ORDER BY val, id)",
    "values": "SELECT id, first_value(val) OVER w AS a, last_value(val) OVER w AS b, nth_value(val, 2) OVER w AS c,"
    " nth_value(val, 2) OVER (w ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW) AS d"
    " FROM item WINDOW w AS (PARTITION BY grp ORDER BY val, id)",
    "aggregates": "SELECT id, sum(val) OVER (PARTITION BY grp) AS s, count(*) OVER (PARTITION BY grp ORDER BY val) AS"
    " n, avg(amount) OVER (PARTITION BY grp ORDER BY val) AS a, min(label) OVER (PARTITION BY grp ORDER BY val) AS m,"
    " max(val) FILTER (WHERE val < 3) OVER (PARTITION BY grp ORDER BY id ROWS 2 PRECEDING) AS f FROM item",
    "frames": "SELECT id, sum(val) OVER (w RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS a,"
    " count(*) OVER (w GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES) AS b,"
    " sum(id) OVER (w RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE GROUP) AS c,"
    " sum(wide) OVER (w GROUPS BETWEEN CURRENT ROW AND 1 FOLLOWING) AS d"
    " FROM item WINDOW w AS (PARTITION BY grp ORDER BY val)",
    "one partition": "SELECT id, row_number() OVER (ORDER BY val, id) AS n, count(*) OVER () AS c FROM item",
    "range of times": "SELECT x, y, count(*) OVER (PARTITION BY x ORDER BY at RANGE BETWEEN '31 days' PRECEDING AND"
    " CURRENT ROW) AS n FROM cell WHERE isfinite(at)",
    "several partitions": "SELECT id, sum(val) OVER (PARTITION BY grp) AS a, count(*) OVER (PARTITION BY label) AS b,"
    " rank() OVER (PARTITION BY grp, label ORDER BY val) AS c, row_number() OVER (ORDER BY id) AS d FROM item",
    "expressions": "SELECT id, CASE WHEN row_number() OVER (PARTITION BY grp ORDER BY val DESC, id) = 1 THEN 'top'"
    " ELSE 'other' END AS c, abs(rank() OVER (ORDER BY val + grp) - 5) + val AS r,"
    " coalesce(lag(val * 2) OVER (ORDER BY id), 0) AS l FROM item",
    "expressions as keys": "SELECT id, count(*) OVER (PARTITION BY val % 2, lower(label)) AS n FROM item",
    "over groups": "SELECT grp, sum(val) AS s, rank() OVER (ORDER BY sum(val) DESC) AS r, sum(count(*)) OVER () AS"
    " total, sum(val) * 100 / nullif(sum(sum(val)) OVER (), 0) AS share FROM item GROUP BY grp HAVING count(*) > 1",
    "first of each partition": "SELECT * FROM (SELECT id, grp, val, row_number() OVER (PARTITION BY grp ORDER BY val"
    " DESC, id) AS n FROM item) q WHERE n <= 2",
    "joined": "WITH r AS (SELECT grp, val, rank() OVER (PARTITION BY grp ORDER BY val) AS k FROM item)"
    " SELECT t.grp, t.rank, r.k, r.val FROM tag t JOIN r ON r.grp = t.grp AND r.k = t.rank",
    "aggregated": "SELECT q.d, count(*) AS n, sum(q.val) AS s FROM (SELECT val, dense_rank() OVER (PARTITION BY grp"
    " ORDER BY val) AS d FROM item) q GROUP BY q.d",
    "of windows": "SELECT q.id, q.s, rank() OVER (ORDER BY q.s) AS r FROM (SELECT id, sum(val) OVER (PARTITION BY grp)"
    " AS s FROM item) q",
    "distinct": "SELECT DISTINCT grp, count(*) OVER (PARTITION BY grp) AS n FROM tag",
    "over a join": "SELECT i.id, t.rank, count(*) OVER (PARTITION BY t.rank ORDER BY i.val) AS n FROM item i JOIN tag t"
    " USING (grp)",
    "without a key": "SELECT grp, rank, rank() OVER (PARTITION BY grp ORDER BY rank) AS r,"
    " row_number() OVER (PARTITION BY grp ORDER BY rank) AS n FROM tag",
    "unfaithful partition": "SELECT id, free, count(*) OVER (PARTITION BY free) AS n, rank() OVER (ORDER BY free) AS r"
    " FROM item",
    "citext partition": 'SELECT person, count(*) OVER (PARTITION BY person) AS n FROM "Select"',
}


@pytest.fixture(scope="module")
def windows(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """A database of the module's own."""
    yield from open_workspace(cluster, "sql_windows")


@pytest.fixture(scope="module")
def streams(windows: Workspace) -> dict[str, StreamTable]:
    """A stream table for every query."""
    return {name: windows.stream(f"w {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


@settings(
    max_examples=12,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    before=st.lists(statements(), min_size=4, max_size=10),
    batches=st.lists(st.lists(statements(), min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_stream_tables_equal_their_queries(
    windows: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    windows.execute('TRUNCATE item, tag, "Select", cell', *before)
    for stream in streams.values():
        stream.reset()
    for batch in batches:
        windows.execute(*batch)
        for name, stream in streams.items():
            stream.refresh()
            assert stream.difference() == [], name
