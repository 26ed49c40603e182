"""Window functions: every function, frame and exclusion, ties broken the same way each time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from server.postgres.cluster import EmbeddedPostgres
from tests.sql.conftest import Workspace, open_workspace
from tests.sql.harness import StreamTable
from tests.sql.random_changes import BATCHES, BEFORE, examples, follow
from tests.sql.random_windows import Generated, calls, check

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
    "over joined groups": "SELECT a.grp AS x, b.grp AS y, a.n, row_number() OVER (ORDER BY a.grp, b.grp, a.n, b.n) AS r"
    " FROM (SELECT grp, count(*) AS n FROM tag GROUP BY grp) a FULL JOIN (SELECT grp, count(*) AS n FROM item"
    " GROUP BY grp) b ON a.grp = b.grp",
    "over each group": "SELECT grp, label, count(*) AS n, rank() OVER (PARTITION BY grp ORDER BY count(*)) AS r"
    " FROM item GROUP BY grp, label",
    "first of each partition": "SELECT * FROM (SELECT id, grp, val, row_number() OVER (PARTITION BY grp ORDER BY val"
    " DESC, id) AS n FROM item) q WHERE n <= 2",
    "joined": "WITH r AS (SELECT grp, val, rank() OVER (PARTITION BY grp ORDER BY val) AS k FROM item)"
    " SELECT t.grp, t.rank, r.k, r.val FROM tag t JOIN r ON r.grp = t.grp AND r.k = t.rank",
    "joined by another column than the partition": "SELECT t.grp, r.id, r.k FROM tag t JOIN (SELECT id, val, rank()"
    " OVER (PARTITION BY grp ORDER BY val, id) AS k FROM item) r ON r.val = t.rank",
    "outer join": "SELECT t.grp, r.k FROM tag t LEFT JOIN (SELECT grp, count(*) OVER (PARTITION BY val) AS k FROM item)"
    " r ON r.grp = t.grp AND r.k > 1",
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
    "rows": "SELECT id, rank() OVER (ORDER BY ROW(val, grp) DESC) AS r, count(*) OVER (PARTITION BY ROW(grp, val)) AS n"
    " FROM item",
    "subqueries": "SELECT i.id, sum((SELECT count(*) FROM tag t WHERE t.grp = i.grp)) OVER w AS s,"
    " lag(val, 1, (SELECT min(grp) FROM tag)) OVER (ORDER BY id) AS l FROM item i"
    " WINDOW w AS (PARTITION BY (SELECT max(t.rank) FROM tag t WHERE t.grp = i.val), (SELECT count(*) FROM tag))",
    "correlated": "SELECT i.id, (SELECT max(q.r) FROM (SELECT rank() OVER (ORDER BY t.rank) AS r FROM tag t"
    " WHERE t.grp = i.grp) q) AS x FROM item i",
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


@examples(6)
@given(before=BEFORE, batches=BATCHES)
def test_stream_tables_equal_their_queries(
    windows: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    follow(windows, streams, before, batches)


TIES: dict[str, str] = {
    "positions": "SELECT label, row_number() OVER w AS n, lag(id) OVER w AS l, ntile(3) OVER w AS t FROM item"
    " WINDOW w AS (PARTITION BY grp ORDER BY val)",
    "within frames of peers": "SELECT label, array_agg(id) OVER w AS a, last_value(label) OVER w AS l,"
    " string_agg(label, ',') OVER (w GROUPS 1 PRECEDING EXCLUDE TIES) AS s FROM item"
    " WINDOW w AS (PARTITION BY grp ORDER BY val)",
    "without an order": "SELECT grp, rank, row_number() OVER () AS n, array_agg(note::text) OVER (PARTITION BY grp)"
    " AS a, first_value(note) OVER (PARTITION BY rank) AS f FROM tag",
    "sums of floats": "SELECT x, sum(v) OVER (PARTITION BY x) AS s, avg(v) OVER (ORDER BY y ROWS 1 PRECEDING) AS a,"
    " sum(v) OVER (ORDER BY x) AS r FROM cell",
    "minimum of numerics": "SELECT grp, min(free) OVER (PARTITION BY grp) AS m, max(free) OVER (ORDER BY grp) AS x"
    " FROM item",
}


@pytest.mark.parametrize("inner", TIES.values(), ids=TIES)
@pytest.mark.parametrize("nested", [False, True], ids=["root", "nested"])
def test_ties_are_broken_the_same_way_each_time(workspace: Workspace, inner: str, nested: bool) -> None:
    nested_query = f'SELECT q.*, s."from" FROM ({inner}) q CROSS JOIN "Select" s'
    workspace.execute(
        "INSERT INTO item SELECT i, i % 2, i % 3 / 2, 1, (ARRAY['1', '1.0', '1.00'])[i % 3 + 1]::numeric,"
        " 'l' || i % 4, i FROM generate_series(1, 12) i",
        "INSERT INTO tag SELECT i % 2, to_json(i % 3), 1 FROM generate_series(1, 12) i",
        "INSERT INTO cell SELECT i % 2, i, 0.1 * i FROM generate_series(1, 12) i",
        'INSERT INTO "Select" VALUES (1), (2)',
    )
    stream = workspace.stream("st", nested_query if nested else inner)
    for change in (
        "UPDATE item SET val = val WHERE id % 5 = 0; UPDATE tag SET grp = grp; UPDATE cell SET v = v WHERE y % 2 = 0",
        "UPDATE item SET label = 'new', val = 0 WHERE id = 3; DELETE FROM tag WHERE ctid = (SELECT max(ctid) FROM tag);"
        " UPDATE cell SET v = 1e16 WHERE y = 5",
        "DELETE FROM item WHERE id IN (3, 4, 7); INSERT INTO tag VALUES (1, '7', 1); DELETE FROM cell WHERE y = 5",
    ):
        workspace.execute(*change.split(";"))
        stream.refresh()
        check(stream, exact=False)


@examples(25)
@given(
    data=st.data(),
    table=st.sampled_from(["item", "tag"]),
    batches=BATCHES,
)
def test_random_windows(windows: Workspace, data: st.DataObject, table: str, batches: list[list[str]]) -> None:
    found: list[Generated] = data.draw(st.lists(calls(table), min_size=1, max_size=4))
    columns = ", ".join(f"{call.sql} AS w{i}" for i, call in enumerate(found))
    exact = all(call.exact for call in found)
    query = f"SELECT {'id, label' if table == 'item' else 'grp, rank'}, {columns} FROM {table}"
    form = data.draw(st.sampled_from(["root", "filtered", "grouped"]))
    if form == "filtered":
        query = f"SELECT q.* FROM ({query}) q WHERE q.w0 IS NOT NULL AND q.w0::text < '3'"
    if form == "grouped":
        query = f"SELECT q.w0, count(*) AS n FROM ({query}) q GROUP BY q.w0"
    windows.execute('TRUNCATE item, tag, "Select", cell', *data.draw(BEFORE))
    windows.execute("DROP TABLE IF EXISTS random")
    stream = windows.stream("random", query)
    for batch in batches:
        windows.execute(*batch)
        stream.refresh()
        check(stream, exact=exact)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id, grp, val, rank() OVER (PARTITION BY grp ORDER BY val) AS r FROM item",
        "SELECT grp, val, row_number() OVER (PARTITION BY grp ORDER BY val) AS r FROM item",
        "SELECT q.id, q.grp FROM (SELECT id, grp, row_number() OVER (PARTITION BY grp ORDER BY val) AS n FROM item) q"
        " WHERE q.n < 3",
        "SELECT DISTINCT ON (grp) grp, val FROM item ORDER BY grp, val DESC",
        "SELECT id, val FROM item ORDER BY val LIMIT 5",
    ],
)
def test_table_is_not_read_where_one_group_has_changed(workspace: Workspace, query: str) -> None:
    workspace.execute(
        "INSERT INTO item (id, grp, val) SELECT i, i % 2000, i FROM generate_series(1, 20000) i",
        "CREATE INDEX ON item (grp)",
        "ANALYZE item",
    )
    stream = workspace.stream("st", query)
    workspace.execute("ANALYZE st", "UPDATE item SET val = -val WHERE id = 7777")
    refresh = stream.compiled.refresh_sql(stream.storage, stream.changed())
    with workspace.connection.transaction(force_rollback=True):
        lines = workspace.connection.execute(f"EXPLAIN ANALYZE {refresh}", [Jsonb(stream.frontier)]).fetchall()
    read = [line for (line,) in lines if "Seq Scan on item" in line and "never executed" not in line]
    assert read == []
    stream.refresh()
    assert stream.difference() == []
