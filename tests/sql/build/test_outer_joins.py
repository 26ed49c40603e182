"""Joins in any nesting: NULLs, duplicates, tables without keys, changes on all sides at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb

from server.postgres.cluster import EmbeddedPostgres
from tests.sql.conftest import Workspace, open_workspace
from tests.sql.harness import StreamTable, source
from tests.sql.random_changes import literal

TABLES = """
CREATE DOMAIN present AS int NOT NULL;
CREATE TABLE a (x int, y int);
CREATE TABLE b (id int PRIMARY KEY, x int, y bigint);
CREATE TABLE c (x int NOT NULL, y int NOT NULL, p present DEFAULT 1, PRIMARY KEY (x, y));
CREATE TABLE d (x bigint, y numeric, t text);
"""
SMALL = [None, 0, 1, 2]
VALUES: dict[str, dict[str, list[object]]] = {
    "a": {"x": SMALL, "y": SMALL},
    "b": {"id": [1, 2, 3, 4, 5], "x": SMALL, "y": SMALL},
    "c": {"x": [0, 1, 2], "y": [0, 1, 2]},
    "d": {"x": SMALL, "y": [None, "0", "1", "1.0", "2"], "t": [None, "u", "v"]},
}

QUERIES = {
    "left join": "SELECT a.x, a.y, b.id, b.y AS z FROM a LEFT JOIN b ON a.x = b.x",
    "left join of keys": "SELECT b.id, b.x, c.x AS cx, c.y AS cy, c.p FROM b LEFT JOIN c ON b.x = c.x AND b.y = c.y",
    "right join": "SELECT a.x, a.y, b.id FROM a RIGHT JOIN b ON a.x = b.x",
    "full join": "SELECT a.x, b.id, b.x AS bx FROM a FULL JOIN b ON a.x = b.x",
    "full join of keys": "SELECT b.id, c.x, c.y, c.p FROM b FULL JOIN c ON b.x = c.x AND b.y = c.y",
    "full join on true": "SELECT a.x, b.id FROM a FULL JOIN b ON TRUE",
    "full join on false": "SELECT a.x, b.id FROM a FULL JOIN b ON a.x = b.x AND FALSE",
    "left join on nothing": "SELECT a.x, b.id FROM a LEFT JOIN b ON TRUE",
    "left join on its own side": "SELECT a.x, b.id FROM a LEFT JOIN b ON a.x = 1",
    "left join on the other side": "SELECT a.x, b.id FROM a LEFT JOIN b ON b.x = 1",
    "non-equi left join": "SELECT a.x, b.id, b.x AS bx FROM a LEFT JOIN b ON a.x < b.x",
    "mixed conditions": "SELECT b.id, c.x, c.y FROM b LEFT JOIN c ON b.x = c.x AND b.y < c.y AND c.y > 0",
    "on an expression": "SELECT a.x, b.id FROM a LEFT JOIN b ON a.x + 1 = b.x",
    "on a disjunction": "SELECT a.x, b.id FROM a LEFT JOIN b ON a.x = b.x OR a.y = b.y",
    "on null-safe equality": "SELECT a.x, b.id FROM a LEFT JOIN b ON a.x IS NOT DISTINCT FROM b.x",
    "on other types": "SELECT b.id, d.x, d.y, d.t FROM b LEFT JOIN d ON b.x = d.x AND b.y = d.y",
    "using": "SELECT x, b.id FROM a LEFT JOIN b USING (x)",
    "right using": "SELECT x, b.id FROM a RIGHT JOIN b USING (x)",
    "full using": "SELECT x, a.y, b.id FROM a FULL JOIN b USING (x)",
    "full using of other types": "SELECT x * 3000000000 AS x, y, b.id, t FROM b FULL JOIN d USING (x, y)",
    "left using of other types": "SELECT x, y, t FROM a LEFT JOIN d USING (x, y)",
    "inner using of other types": "SELECT x * 3000000000 AS big, y, t FROM a JOIN d USING (x, y)",
    "right using of other types": "SELECT x * 3000000000 AS big, t FROM a RIGHT JOIN d USING (x)",
    "natural": "SELECT * FROM a NATURAL LEFT JOIN c",
    "natural full": "SELECT * FROM a NATURAL FULL JOIN c",
    "natural full chain": "SELECT * FROM a NATURAL FULL JOIN c NATURAL FULL JOIN b",
    "self-join": "SELECT p.id, q.id AS other FROM b p LEFT JOIN b q ON p.x = q.y",
    "full self-join": "SELECT p.x, q.y FROM a p FULL JOIN a q ON p.x = q.y",
    "chain": "SELECT b.id, c.x, c.y, d.t FROM b LEFT JOIN c ON b.x = c.x LEFT JOIN d ON c.y = d.x",
    "nested on the right": "SELECT a.x, b.id, d.t FROM a LEFT JOIN (b JOIN d ON b.x = d.x) ON a.y = b.y",
    "nested on the left": "SELECT a.x, b.id, c.y FROM (a JOIN b ON a.x = b.x) FULL JOIN c ON b.y = c.y",
    "over a cross join": "SELECT a.x, b.id, c.y FROM (a CROSS JOIN b) LEFT JOIN c ON a.x = c.x AND b.y = c.y",
    "cross join on the right": "SELECT a.x, b.id, c.y FROM a LEFT JOIN (b CROSS JOIN c) ON a.x = b.x AND a.y = c.y",
    "alias of a join": "SELECT j.p, j.q, d.t FROM (a LEFT JOIN b ON a.x = b.x) AS j (p, q, r, s, t)"
    " LEFT JOIN d ON j.s = d.x",
    "alias of a join that merges other types": "SELECT j.x, j.y, j.c FROM (a FULL JOIN d USING (x)) AS j (x, y, c, t)"
    " LEFT JOIN c ON j.x = c.x",
    "alias of merged columns": "SELECT u.x, a.x AS ax, b.x AS bx, b.id FROM a FULL JOIN b USING (x) AS u",
    "alias of merged columns of a left join": "SELECT u.x, u.y, t FROM a LEFT JOIN d USING (x, y) AS u WHERE u.x > 0",
    "whole rows": "SELECT a.x, row_to_json(b.*)::text AS r, b IS NULL AS n FROM a LEFT JOIN b USING (x)",
    "whole rows of both": "SELECT to_jsonb(a) AS a, to_jsonb(c) AS c FROM a FULL JOIN c ON a.x = c.x AND a.y = c.y",
    "whole rows of subqueries": "WITH w AS (SELECT x, count(*) AS n FROM a GROUP BY x) SELECT row_to_json(s)::text AS"
    ' s, row_to_json(w)::text AS w, s.* IS NULL AS n FROM w FULL JOIN (SELECT id AS x, y AS "Q" FROM b) AS s USING (x)',
    "filter above": "SELECT a.x, b.id FROM a LEFT JOIN b ON a.x = b.x WHERE b.id IS NULL OR b.y > 0",
    "anti-join by hand": "SELECT a.x, a.y FROM a LEFT JOIN b ON a.x = b.x WHERE b.id IS NULL",
    "strict filter above": "SELECT a.x, b.id FROM a LEFT JOIN b ON a.x = b.x WHERE b.y = a.y",
    "grouped": "SELECT a.x, count(b.id) AS n, sum(b.y) AS s, max(b.y) AS m FROM a LEFT JOIN b USING (x) GROUP BY a.x",
    "grouped full using": "SELECT x, count(*) AS n, sum(b.y) AS s FROM a FULL JOIN b USING (x) GROUP BY x",
    "onto aggregates": "SELECT a.x, u.n, v.s FROM a LEFT JOIN (SELECT x, count(*) AS n FROM b GROUP BY x) u"
    " ON u.x = a.x LEFT JOIN (SELECT x, sum(y) AS s FROM d GROUP BY x) v ON v.x = a.y",
    "onto aggregating CTEs": "WITH u AS (SELECT x, count(*) AS n FROM b GROUP BY x), v AS (SELECT u.n, sum(d.y) AS s"
    " FROM d LEFT JOIN u ON u.x = d.x GROUP BY u.n) SELECT a.x, u.n, v.s FROM a LEFT JOIN u USING (x)"
    " LEFT JOIN v USING (n)",
    "aggregates in full": "SELECT x, n, s FROM (SELECT x, count(*) AS n FROM a GROUP BY x) u"
    " FULL JOIN (SELECT x, sum(y) AS s FROM b GROUP BY x) v USING (x)",
    "joined with full using": "SELECT c.y, x, b.id FROM c JOIN (a FULL JOIN b USING (x)) USING (x)",
    "distinct": "SELECT DISTINCT a.x, b.y FROM a LEFT JOIN b ON a.x = b.x",
    "union": "SELECT a.x, b.id FROM a LEFT JOIN b USING (x) UNION ALL SELECT c.x, d.x FROM c FULL JOIN d ON c.y = d.y",
    "four full": "SELECT a.x, b.id, c.y, d.t FROM a FULL JOIN b ON a.x = b.x FULL JOIN c ON b.y = c.y"
    " FULL JOIN d ON c.x = d.x",
}


@st.composite
def statements(draw: st.DrawFn) -> str:
    """An INSERT, UPDATE (of keys, too) or DELETE."""
    table = draw(st.sampled_from(sorted(VALUES)))
    values = VALUES[table]
    kind = draw(st.sampled_from(["insert", "insert", "update", "update", "delete"]))
    if kind == "insert":
        row = st.tuples(*(st.sampled_from(column) for column in values.values()))
        rows = draw(st.lists(row, min_size=1, max_size=5))
        tuples = ", ".join("(" + ", ".join(map(literal, row)) + ")" for row in rows)
        return f"INSERT INTO {table} VALUES {tuples} ON CONFLICT DO NOTHING"
    column = draw(st.sampled_from(sorted(values)))
    condition = f"{column}::text IS NOT DISTINCT FROM {literal(draw(st.sampled_from(values[column])))}"
    if kind == "update":
        target = draw(st.sampled_from(sorted(values.keys() - {"id"}) if table != "c" else ["p"]))
        new = literal(draw(st.sampled_from(values.get(target, [3, 4]))))
        return f"UPDATE {table} SET {target} = {new} WHERE {condition}"
    return f"DELETE FROM {table} WHERE {condition}"


batches = st.lists(st.lists(statements(), min_size=1, max_size=6), min_size=1, max_size=3)


@dataclass(frozen=True)
class Item:
    """Something that can stand in FROM: its text, the columns one can speak of, how many it has, and whether ``x``
    alone names one of them."""

    sql: str
    columns: tuple[str, ...]
    width: int
    plain: bool


@st.composite
def items(draw: st.DrawFn, names: Iterator[int], leaves: int) -> Item:
    """A join of some tables and subqueries, nested at random."""
    if leaves == 1:
        alias = f"t{next(names)}"
        kind = draw(st.sampled_from(["table", "table", "table", "filtered", "grouped", "outer"]))
        table = draw(st.sampled_from(sorted(VALUES)))
        text = {
            "table": table,
            "filtered": f"(SELECT x, y FROM {table} WHERE y > 0)",
            "grouped": f"(SELECT x, count(*) AS y FROM {table} GROUP BY x)",
            "outer": f"(SELECT p.x, q.y FROM {table} p LEFT JOIN a q ON q.x = p.x)",
        }[kind]
        width = len(VALUES[table]) + (table == "c") if kind == "table" else 2
        return Item(f"{text} AS {alias}", (f"{alias}.x", f"{alias}.y"), width, True)
    share = draw(st.integers(1, leaves - 1))
    left, right = draw(items(names, share)), draw(items(names, leaves - share))
    kind = draw(st.sampled_from(["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN"]))
    # Unqualified, x could be ambiguous here.
    mine, theirs = ([column for column in side.columns if "." in column] for side in (left, right))
    equal = f"{draw(st.sampled_from(mine))} = {draw(st.sampled_from(theirs))}"
    more = f"{draw(st.sampled_from(mine))} < {draw(st.sampled_from(theirs))}"
    ways = ["equal", "equal", "both"] + (["using"] if left.plain and right.plain else [])
    ways += ["unequal", "or"] if kind != "FULL JOIN" else []
    way = draw(st.sampled_from(ways))
    on = {
        "equal": f"ON {equal}",
        "both": f"ON {equal} AND {more}",
        "using": "USING (x)",
        "unequal": f"ON {more}",
        "or": f"ON {equal} OR {more}",
    }[way]
    using = way == "using" and kind != "CROSS JOIN"
    text = f"({left.sql} {kind} {right.sql}{'' if kind == 'CROSS JOIN' else ' ' + on})"
    width = left.width + right.width - using
    columns = (*mine, *theirs, *(["x"] if using else []))
    if draw(st.integers(0, 3)) == 0:
        alias = f"j{next(names)}"
        renamed = ["x", "y", *(f"c{i}" for i in range(2, width))]
        return Item(f"{text} AS {alias} ({', '.join(renamed)})", (f"{alias}.x", f"{alias}.y"), width, True)
    return Item(text, columns, width, using)


@st.composite
def queries(draw: st.DrawFn) -> str:
    """A query over two to four tables."""
    item = draw(items(count(1), draw(st.integers(2, 4))))
    columns = [f"{column} AS c{i}" for i, column in enumerate(item.columns)]
    where = draw(st.sampled_from(["", "", f" WHERE {item.columns[0]} > 0", f" WHERE {item.columns[-1]} IS NULL"]))
    return f"SELECT {', '.join(columns)} FROM {item.sql}{where}"


@pytest.fixture(scope="module")
def joins(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """A database with the four tables."""
    yield from open_workspace(cluster, "sql_joins", TABLES, ["a", "b", "c", "d"])


@pytest.fixture(scope="module")
def streams(joins: Workspace) -> dict[str, StreamTable]:
    """A stream table for every named query."""
    return {name: joins.stream(f"join {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(before=st.lists(statements(), min_size=4, max_size=10), batches=batches)
def test_joins_equal_their_queries(
    joins: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    joins.execute("TRUNCATE a, b, c, d", *before)
    for stream in streams.values():
        stream.reset()
    for batch in batches:
        joins.execute(*batch)
        for name, stream in streams.items():
            stream.refresh()
            assert stream.difference() == [], name


def test_left_join_key_changes_while_its_partner_is_deleted(workspace: Workspace) -> None:
    workspace.execute(
        "INSERT INTO item (id, grp) VALUES (1, 1), (2, 2)", "INSERT INTO tag VALUES (1, '{}', 10), (2, '{}', NULL)"
    )
    stream = workspace.stream("st", "SELECT i.id, t.rank FROM item i LEFT JOIN tag t ON i.grp = t.grp")
    workspace.execute("UPDATE item SET grp = 3 WHERE id = 1", "DELETE FROM tag WHERE grp = 1")
    stream.refresh()
    assert stream.difference() == []
    for change in (
        "INSERT INTO tag VALUES (3, '{}', 30)",
        "UPDATE item SET grp = NULL WHERE id = 1",
        "INSERT INTO tag VALUES (NULL, '{}', 0), (1, '{}', 11)",
        "UPDATE item SET grp = 1",
        "DELETE FROM tag WHERE grp = 1",
    ):
        workspace.execute(change)
        stream.refresh()
        assert stream.difference() == []
    assert workspace.connection.execute("SELECT id, rank FROM st ORDER BY id").fetchall() == [(1, None), (2, None)]


def test_update_that_no_join_condition_reads_touches_matched_rows_alone(workspace: Workspace) -> None:
    workspace.execute(
        "INSERT INTO item (id, grp, val) VALUES (1, 1, 5), (2, 1, 6), (3, NULL, 7)",
        """INSERT INTO "Select" VALUES (1, 'a', 'bob'), (2, 'b', 'eve')""",
    )
    stream = workspace.stream(
        "st", 'SELECT i.id, s."from", s.person FROM item i FULL JOIN "Select" s ON i.grp = s."from"'
    )
    workspace.execute("""UPDATE "Select" SET person = 'Bob' WHERE "from" = 1""", "UPDATE item SET val = 0")
    done = stream.refresh()
    assert stream.difference() == []
    assert (done["inserted"], done["updated"], done["deleted"]) == (0, 2, 0)


def test_source_with_a_dropped_column(workspace: Workspace) -> None:
    connection = workspace.connection
    connection.execute("CREATE TABLE thin (gone int, x int, y int); ALTER TABLE thin DROP COLUMN gone")
    sources = [*workspace.sources, source(connection, "thin")]
    query = "SELECT j.p, j.q, j.id FROM (thin LEFT JOIN item ON item.grp = thin.x) AS j (p, q, id)"
    stream = StreamTable(connection, "st", query, sources)
    workspace.execute("INSERT INTO thin VALUES (1, 2), (NULL, 3)", "INSERT INTO item (id, grp) VALUES (1, 1)")
    stream.refresh()
    assert connection.execute("SELECT p, q, id FROM st ORDER BY q").fetchall() == [(1, 2, 1), (None, 3, None)]


LARGE = """
CREATE TABLE l (id int PRIMARY KEY, k int, v int);
CREATE TABLE r (id int PRIMARY KEY, k int, v int);
INSERT INTO l SELECT i, i % 5000, i FROM generate_series(1, 20000) i;
INSERT INTO r SELECT i, i % 7000, i FROM generate_series(1, 20000) i;
CREATE INDEX ON l (k);
CREATE INDEX ON r (k);
ANALYZE l, r;
"""


@pytest.fixture(scope="module")
def large(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """Two tables large enough that reading one is not the way to find ten rows in it."""
    yield from open_workspace(cluster, "sql_large", LARGE, ["l", "r"])


@pytest.mark.parametrize(
    "query",
    [
        "SELECT l.id, r.id AS other, r.v FROM l LEFT JOIN r ON l.k = r.k",
        "SELECT l.id, r.id AS other FROM l RIGHT JOIN r ON l.k = r.k AND l.v < r.v",
        "SELECT k, l.id, r.id AS other FROM l FULL JOIN r USING (k)",
        "SELECT k, count(l.v) AS n, max(r.v) AS m FROM l FULL JOIN r USING (k) GROUP BY k",
        "SELECT l.id, u.n FROM l LEFT JOIN (SELECT k, count(*) AS n FROM r GROUP BY k) u ON u.k = l.k",
        "SELECT k, l.id, u.n FROM l FULL JOIN (SELECT k, max(v) AS n FROM r GROUP BY k) u USING (k)",
    ],
)
def test_few_changes_do_not_read_whole_tables(large: Workspace, query: str) -> None:
    stream = large.stream("st", query)
    large.execute(f"ANALYZE {stream.storage}")
    for table in ("l", "r"):
        large.execute(
            f"UPDATE {table} SET v = v + 1 WHERE id % 5000 = 7",
            f"UPDATE {table} SET k = k + 1 WHERE id % 5000 = 9",
            f"DELETE FROM {table} WHERE id % 15000 = 11",
        )
    large.execute("SET search_path = pg_catalog, pg_temp", "BEGIN")
    refresh = stream.compiled.refresh_sql(stream.storage, stream.changed())
    lines = large.connection.execute(f"EXPLAIN (ANALYZE, TIMING OFF) {refresh}", [Jsonb(stream.frontier)]).fetchall()
    large.execute("ROLLBACK", "RESET search_path")
    plan = "\n".join(line for (line,) in lines)
    scans = re.findall(r"Scan (?:using \S+ )?on [lr] .*\(actual rows=([\d.]+) loops=(\d+)\)", plan)
    assert scans
    assert sum(float(rows) * int(loops) for rows, loops in scans) < 2000, plan
    stream.refresh()
    assert stream.difference() == []
    large.execute(f"DROP TABLE {stream.storage}")


_tables = count(1)


def check_random_join(joins: Workspace, query: str, before: list[str], batches: list[list[str]]) -> None:
    """The stream table of a query equals it after each batch of changes."""
    joins.execute("TRUNCATE a, b, c, d", *before)
    stream = joins.stream(f"random {next(_tables)}", query)
    for batch in batches:
        joins.execute(*batch)
        stream.refresh()
        assert stream.difference() == []
    joins.execute(f"DROP TABLE {stream.storage}")


EXAMPLES = st.lists(statements(), min_size=4, max_size=10)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(query=queries(), before=EXAMPLES, batches=batches)
def test_random_nested_joins_equal_their_queries(
    joins: Workspace, query: str, before: list[str], batches: list[list[str]]
) -> None:
    check_random_join(joins, query, before, batches)


@pytest.mark.long
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(query=queries(), before=EXAMPLES, batches=batches)
def test_many_random_nested_joins_equal_their_queries(
    joins: Workspace, query: str, before: list[str], batches: list[list[str]]
) -> None:
    check_random_join(joins, query, before, batches)
