"""Set-returning functions: in FROM, beside earlier items and padded, and in the select list."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable, source

TABLES = """
CREATE TYPE pair AS (a int, b text);
CREATE TABLE doc (id int PRIMARY KEY, n int, arr int[], words text[], body jsonb, note json, line text, markup xml);
CREATE TABLE part (doc int, i int);
CREATE FUNCTION times(n int) RETURNS TABLE (i int, label text) LANGUAGE sql IMMUTABLE
    AS $$ SELECT g, 'x' || g FROM generate_series(1, least(n, 3)) g $$;
CREATE FUNCTION evens(n int) RETURNS SETOF int LANGUAGE sql IMMUTABLE
    AS $$ SELECT g FROM generate_series(2, least(n, 4), 2) g $$;
"""
SPECIAL = frozenset({"set public.times", "set public.evens"})

QUERIES = {
    "unnest": "SELECT d.id, e FROM doc d, unnest(d.arr) e",
    "unnest of a keyless table": "SELECT p.doc, e FROM part p, unnest(ARRAY[p.i, 1, p.i]) e",
    "cross join lateral": "SELECT d.id, e.x FROM doc d CROSS JOIN LATERAL unnest(d.arr) AS e(x) WHERE e.x > d.n",
    "several arrays": "SELECT d.id, e.* FROM doc d, unnest(d.arr, d.words) WITH ORDINALITY AS e(a, w, i)",
    "left join": "SELECT d.id, e FROM doc d LEFT JOIN LATERAL unnest(d.arr) e ON true",
    "left join with a condition": "SELECT d.id, e.* FROM doc d"
    " LEFT JOIN unnest(d.arr) WITH ORDINALITY e(x, i) ON e.x > d.n",
    "left join, then a join": "SELECT d.id, e, i FROM (doc d LEFT JOIN unnest(d.arr) e ON true) JOIN part ON i = e",
    "after an outer join": "SELECT d.id, p.i, g FROM doc d LEFT JOIN part p ON p.doc = d.id, generate_series(1, p.i) g",
    "padded after an outer join": "SELECT d.id, p.i, g FROM doc d FULL JOIN part p ON p.doc = d.n"
    " LEFT JOIN LATERAL generate_series(p.i, d.n) g ON g <> 2",
    "of two tables": "SELECT d.id, p.i, g FROM doc d, part p, generate_series(d.n, p.i) g WHERE p.doc = d.id",
    "of two tables joined": "SELECT d.id, g FROM doc d JOIN part p ON p.doc = d.id JOIN LATERAL"
    " generate_series(d.n, p.i) g(id) USING (id)",
    "of another function": "SELECT d.id, i, d.arr[i], g FROM doc d, generate_subscripts(d.arr, 1) i,"
    " generate_series(1, i) g",
    "alone": "SELECT g, g * 2 AS h FROM generate_series(1, 3) g",
    "alone, joined": "SELECT g, p.* FROM generate_series(1, 3) g LEFT JOIN part p ON p.i = g",
    "on the padded side": "SELECT d.id, g FROM doc d RIGHT JOIN generate_series(1, 3) g ON g = d.n",
    "jsonb elements": "SELECT d.id, e.value, e.ordinality"
    " FROM doc d, jsonb_array_elements(d.body->'c') WITH ORDINALITY e",
    "jsonb texts": "SELECT d.id, e FROM doc d, jsonb_array_elements_text(d.body->'c') e",
    "jsonb each": "SELECT d.id, e.key, e.value FROM doc d, jsonb_each(d.body) e",
    "jsonb each text": "SELECT e.key, count(*), max(e.value) FROM doc d, jsonb_each_text(d.body) e GROUP BY e.key",
    "json": "SELECT d.id, e.key, e.value::text FROM doc d, json_each(d.note) e",
    "jsonb keys": "SELECT DISTINCT e FROM doc d, jsonb_object_keys(d.body) e",
    "jsonb path": "SELECT d.id, jsonb_path_query(d.body, '$.c[*] ? (@.a > 1)') AS e FROM doc d",
    "recordset": """SELECT d.id, r.* FROM doc d, jsonb_to_recordset(d.body->'c') AS r(a int, "B b" text)""",
    "populated": "SELECT d.id, r.a, r.b FROM doc d, jsonb_populate_recordset(NULL::pair, d.body->'c') r",
    "regexp matches": "SELECT d.id, m[1] FROM doc d, regexp_matches(d.line, '([a-z])', 'g') m",
    "split": "SELECT d.id, w, s FROM doc d, regexp_split_to_table(d.line, ' ') w, string_to_table(d.line, ' ') s",
    "rows from": "SELECT d.id, r.* FROM doc d, ROWS FROM (unnest(d.arr), jsonb_to_recordset(d.body->'c')"
    " AS (a int, b text), generate_series(1, d.n)) WITH ORDINALITY AS r(e, a, b, g, i)",
    "user-defined": "SELECT d.id, t.i, t.label, e FROM doc d, times(d.n) t LEFT JOIN evens(t.i) e ON true",
    "json table": """SELECT d.id, j.* FROM doc d, JSON_TABLE(d.body, '$' COLUMNS (i FOR ORDINALITY, c jsonb PATH '$.c',
        NESTED PATH '$.c[*]' COLUMNS (a int PATH '$.a' DEFAULT 7 ON EMPTY, has boolean EXISTS PATH '$.b'),
        NESTED PATH '$.k[*]' AS ks COLUMNS ("K k" text PATH '$'))) j""",
    "json table with arguments": "SELECT d.id, j.a FROM doc d LEFT JOIN JSON_TABLE(d.body, '$.c[*] ? (@.a > $low)'"
    " PASSING d.n AS low COLUMNS (a int PATH '$.a')) j ON j.a < 9",
    "lateral values": "SELECT d.id, v.* FROM doc d, LATERAL (VALUES (d.n, 'n'), (cardinality(d.arr), 'c')) v(x, what)",
    "lateral subquery without tables": "SELECT d.id, s.* FROM doc d"
    " LEFT JOIN LATERAL (SELECT max(e.e) AS m, sum(e.e) AS s FROM unnest(d.arr) e HAVING count(*) > 1) s ON s.m > d.n",
    "of a subquery": "SELECT d.id, g FROM doc d, generate_series((SELECT min(p.i) FROM part p WHERE p.doc = d.id), 3)"
    " g",
    "of a subquery, padded": "SELECT d.id, g FROM doc d LEFT JOIN generate_series(d.n, (SELECT max(i) FROM part)) g"
    " ON g > 1",
    "of an expression of a subquery": "SELECT d.id, g FROM doc d JOIN part p ON true"
    " JOIN generate_series(0, least((SELECT max(i) FROM part), 2)) g ON true",
    "of a subquery alone": "SELECT e FROM unnest((SELECT array_agg(i ORDER BY i) FROM part)) e",
    "lateral constants": "SELECT d.id, x.y FROM doc d JOIN LATERAL (SELECT v.y FROM (SELECT * FROM (VALUES (3, 'x'),"
    " (1, 'y'))"
    " AS v (x, y)) AS v WHERE v.x > d.n) x ON true",
    "values with a limit": "SELECT v.x, p.doc FROM (VALUES (1), (2), (3) ORDER BY 1 DESC LIMIT 2) v(x) JOIN part p ON"
    " p.i = v.x",
    "select list": "SELECT id, unnest(arr) AS e FROM doc",
    "select list, duplicates": "SELECT doc, generate_series(1, i) AS g FROM part",
    "select list, in lockstep": "SELECT id, unnest(arr) + 1 AS e, unnest(words) AS w,"
    " generate_series(1, n) AS g FROM doc",
    "select list, record": "SELECT id, (jsonb_each(body)).key AS k, (jsonb_each(body)).value AS v FROM doc",
    "select list, user-defined": "SELECT id, evens(n) AS e, (times(n)).label FROM doc",
    "select list, nested": "SELECT id, unnest(ARRAY[generate_series(1, n), 9]) AS e FROM doc",
    "select list, no rows": "SELECT generate_series(1, 3) AS g",
    "grouped by": "SELECT unnest(arr) AS e, count(*) AS c, min(n) AS m FROM doc GROUP BY 1",
    "over groups": "SELECT doc, unnest(ARRAY[min(i), max(i)]) AS e FROM part GROUP BY doc",
    "distinct": "SELECT DISTINCT unnest(arr) AS e, n FROM doc",
    "filtered above": "SELECT * FROM (SELECT id, unnest(arr) AS e FROM doc) q JOIN part p ON p.i = q.e",
    "in a union": "SELECT unnest(arr) FROM doc EXCEPT ALL SELECT i FROM part",
}

ITEMS = "doc d {} LATERAL jsonb_array_elements(d.body->'k') WITH ORDINALITY AS e(x, n) ON {}"
ABOVE = {
    "first": "SELECT DISTINCT ON (e.x) e.x, d.id, e.n FROM {items} ORDER BY e.x, d.id, e.n",
    "first of each place": "SELECT DISTINCT ON (e.n) e.n + 1 AS next, e.x FROM {items} ORDER BY e.n, d.id DESC",
    "first by both": "SELECT DISTINCT ON (d.n, e.x) d.n, e.n AS place FROM {items} ORDER BY d.n, e.x, d.id, e.n",
    "first inside": "SELECT p.i, q.* FROM part p LEFT JOIN"
    " (SELECT DISTINCT ON (e.x) e.x, d.id FROM {items} ORDER BY e.x, d.id) AS q ON q.id = p.i",
    "distinct": "SELECT DISTINCT e.x, e.n FROM {items}",
    "grouped": "SELECT e.x, count(*) AS c, max(e.n) AS last FROM {items} GROUP BY e.x",
    "grouped and listed": "SELECT e.x, array_agg(d.id ORDER BY d.id, e.n) AS ids FROM {items} GROUP BY e.x",
    "window": "SELECT d.id, e.x, row_number() OVER (PARTITION BY e.x ORDER BY d.id, e.n) AS r FROM {items}",
    "first rows": "SELECT e.x, e.n, d.id FROM {items} ORDER BY e.x, d.id, e.n LIMIT 4",
    "union": "SELECT e.x FROM {items} UNION SELECT d.body FROM doc d",
    "except": "SELECT e.x FROM {items} EXCEPT SELECT d.body->'k'->0 FROM doc d WHERE d.n > 1",
    "semi-join": "SELECT p.doc FROM part p WHERE EXISTS (SELECT FROM {items} WHERE e.n = p.i)",
    "joined": "SELECT p.doc, e.x, e.n FROM {items} FULL JOIN part p ON p.i = e.n",
    "scalar": "SELECT p.doc, (SELECT max(e.n) FROM {items} WHERE d.n = p.i) AS m FROM part p",
}
"""What stands above elements with their places."""
QUERIES |= {
    f"elements, {name}{said}": query.format(items=ITEMS.format(join, condition))
    for name, query in ABOVE.items()
    for said, join, condition in (("", "JOIN", "true"), (" padded", "LEFT JOIN", "e.n < 9"))
}

ARRAYS = st.sampled_from(["NULL", "'{}'", "'{1,2,2}'", "'{3,NULL,1,2}'", "'{2}'"])
BODIES = st.sampled_from(
    ["NULL", """'{"c": [{"a": 1, "b": "x"}, {"a": 2}, {"B b": null}], "k": ["p", "q", 1, [1], [[1]], null]}'""",
     """'{"c": []}'""",
     """'{"c": [{"a": 3}, {"a": 3}], "d": 1.50, "k": [[1], 1, {}, []]}'"""]
)  # fmt: skip
NUMBERS = st.sampled_from(["NULL", "0", "1", "2", "3"])
CHANGES = st.one_of(
    st.builds(
        "INSERT INTO doc VALUES ({0}, {1}, {2}, {3}, {4}, {4}, {5}) ON CONFLICT DO NOTHING".format,
        st.integers(1, 8),
        NUMBERS,
        ARRAYS,
        st.sampled_from(["NULL", "'{a,b}'", "'{c}'"]),
        BODIES,
        st.sampled_from(["NULL", "''", "'a b  c'", "'a a'"]),
    ),
    st.builds("INSERT INTO part SELECT {}, {} FROM generate_series(1, {})".format, NUMBERS, NUMBERS, st.integers(1, 2)),
    st.builds("UPDATE doc SET arr = {}, n = {} WHERE id % 3 = {}".format, ARRAYS, NUMBERS, st.integers(0, 2)),
    st.builds("UPDATE doc SET body = {0}, note = {0} WHERE n = {1}".format, BODIES, NUMBERS),
    st.builds("UPDATE part SET doc = {}, i = {} WHERE i = {}".format, NUMBERS, NUMBERS, NUMBERS),
    st.builds("DELETE FROM doc WHERE n = {}".format, NUMBERS),
    st.builds("DELETE FROM part WHERE ctid IN (SELECT ctid FROM part WHERE i = {} LIMIT 1)".format, NUMBERS),
)
INSERT = """INSERT INTO doc VALUES (1, 2, '{1,2,2}', '{a}', '{"c": [{"a": 5}]}', '{"c": [{"a": 5}]}', 'a b')"""


@pytest.fixture(scope="module")
def documents(shared_workspace: Workspace) -> Workspace:
    """Tables with arrays and documents."""
    shared_workspace.execute(TABLES)
    connection = shared_workspace.connection
    return Workspace(connection, (source(connection, "doc"), source(connection, "part")))


def stream(documents: Workspace, name: str, query: str) -> StreamTable:
    """A stream table over the documents."""
    return StreamTable(documents.connection, name, query, documents.sources, special=SPECIAL)


@pytest.fixture(scope="module")
def streams(documents: Workspace) -> dict[str, StreamTable]:
    """A stream table for every query."""
    return {name: stream(documents, f"st {i}", query) for i, (name, query) in enumerate(QUERIES.items())}


@settings(
    max_examples=8,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(before=st.lists(CHANGES, max_size=12), batches=st.lists(st.lists(CHANGES, min_size=1, max_size=4), max_size=2))
def test_set_returning_functions_equal_their_queries(
    documents: Workspace, streams: dict[str, StreamTable], before: list[str], batches: list[list[str]]
) -> None:
    documents.execute("TRUNCATE doc, part", *before)
    for table in streams.values():
        table.reset()
    for batch in batches:
        documents.execute(*batch)
        for name, table in streams.items():
            table.refresh()
            assert table.difference() == [], name


def test_rows_of_other_rows_are_not_computed_again(documents: Workspace) -> None:
    documents.execute("TRUNCATE doc, part", INSERT, "INSERT INTO doc (id, arr) VALUES (2, '{7,8}'), (3, '{}')")
    table = stream(documents, "few", "SELECT d.id, e FROM doc d LEFT JOIN unnest(d.arr) e ON true")
    before = table.tuples()
    documents.execute("UPDATE doc SET arr = '{7,9}' WHERE id = 2")
    done = table.refresh()
    assert (done["inserted"], done["deleted"]) == (1, 1)
    assert len(before.items() & table.tuples().items()) == 5


def test_row_without_results_is_padded_and_unpadded(documents: Workspace) -> None:
    documents.execute("TRUNCATE doc, part", INSERT)
    table = stream(documents, "padded", "SELECT d.id, e FROM doc d LEFT JOIN unnest(d.arr) e ON e > d.n")
    rows = "SELECT id, e FROM padded"
    assert documents.connection.execute(rows).fetchall() == [(1, None)]
    documents.execute("UPDATE doc SET n = 1")
    table.refresh()
    assert documents.connection.execute(rows).fetchall() == [(1, 2), (1, 2)]
    documents.execute("UPDATE doc SET arr = NULL")
    table.refresh()
    assert documents.connection.execute(rows).fetchall() == [(1, None)]


def test_xml_table_is_a_function_of_its_row(documents: Workspace) -> None:
    # The embedded server cannot read XML, but it analyses and plans the query, as long as there are no rows.
    documents.execute("TRUNCATE doc, part")
    query = (
        "SELECT d.id, x.* FROM doc d, XMLTABLE('/r/i' PASSING d.markup"
        " COLUMNS a int PATH '@a', o FOR ORDINALITY, b int DEFAULT d.n PATH 'b') x"
    )
    table = stream(documents, "xml", query)
    assert "Set returning(xmltable)" in table.compiled.tree
