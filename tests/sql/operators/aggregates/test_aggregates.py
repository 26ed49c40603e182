"""Every aggregate: after changes of all kinds the stream table equals its query, at the root and inside the tree."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from server.postgres.cluster import EmbeddedPostgres
from tests.sql.conftest import Workspace, open_workspace
from tests.sql.harness import StreamTable, source

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TABLE sample (
    g int, x int, y int, small smallint, big bigint, n numeric, p numeric(8,2), f double precision, r real, b boolean,
    s text, c citext, j jsonb, js json, i interval, a int[], span int4range, wide numrange, spans int4multirange,
    bits bit(4), bytes bytea, m mood, cash money, at timestamptz, "Odd ""name" text
);
CREATE TABLE label (g int, name text);
CREATE AGGREGATE total(integer) (sfunc = int4pl, stype = integer, initcond = '0');
CREATE FUNCTION joined(text, VARIADIC text[]) RETURNS text LANGUAGE sql IMMUTABLE
    AS $$SELECT $1 || array_to_string($2, '-', '?') || ';'$$;
CREATE AGGREGATE joined_up(VARIADIC text[]) (sfunc = joined, stype = text, initcond = '');
CREATE FUNCTION median_of(internal, double precision) RETURNS double precision LANGUAGE internal
    AS 'percentile_cont_float8_final';
CREATE AGGREGATE fraction(double precision ORDER BY double precision)
    (sfunc = ordered_set_transition, stype = internal, finalfunc = median_of);
"""
SPECIAL = frozenset({f"aggregate public.{name}" for name in ("total", "joined_up", "fraction", "min", "max")})

VALUES: dict[str, list[str | None]] = {
    "g": [None, "1", "2", "3"],
    "x": [None, "0", "1", "2", "7"],
    "y": [None, "1", "2", "-3"],
    "small": [None, "3", "-4", "6"],
    "big": [None, "4611686018427387904", "5", "-4611686018427387904", "-1"],
    "n": [None, "1", "1.0", "1.00", "2.5", "-7.125", "0", "1e-3", "12345678901234567890.5", "NaN", "Infinity"],
    "p": [None, "0.00", "1.50", "99999.25", "-3.75"],
    "f": [None, "0", "-0", "1.5", "2.25", "-3", "NaN"],
    "r": [None, "0.5", "2", "-0.25"],
    "b": [None, "t", "f"],
    "s": [None, "a", "A", "b", ""],
    "c": [None, "bob", "Bob", "eve"],
    "j": [None, '{"a": 1}', "[1.0]", "[1.00]", '"x"'],
    "js": [None, '{"a":1}', '{"a": 1}', "[]"],
    "i": [None, "1 day", "24 hours", "00:30", "1 mon"],
    "a": [None, "{1,2}", "{3,4}", "{1,NULL}"],
    "span": [None, "[1,4)", "[3,6)", "empty", "[9,)"],
    "wide": [None, "[1.0,2]", "[1.00,2]", "(5,7)"],
    "spans": [None, "{[1,2),[4,5)}", "{}", "{[2,9)}"],
    "bits": [None, "0101", "1111", "0000"],
    "bytes": [None, "\\x00", "\\x0102", "\\x"],
    "m": [None, "sad", "happy", "ok"],
    "cash": [None, "1.50", "-2"],
    "at": [None, "2024-01-01 00:00Z", "infinity"],
    '"Odd ""name"': [None, "q", "z"],
}

ALGEBRAIC = """
count(*)|count(x)|count(s) FILTER (WHERE x > 0)|count(1)|sum(x)|sum(small)|sum(big)|sum(n)|sum(p)|sum(1)
avg(x)|avg(small)|avg(big)|avg(n)|avg(p)|sum(x * p) FILTER (WHERE b)|sum(x ORDER BY y)|count("Odd ""name")
stddev(x)|stddev_pop(x)|stddev_samp(small)|variance(x)|var_pop(big)|var_samp(big)|stddev(p)|var_pop(p)
stddev_pop(n)|var_samp(n) FILTER (WHERE x > 0)|stddev(big)|variance(n)|stddev_samp(p * 1000000)
bool_and(b)|bool_or(b)|every(x > 0)|bool_and(b) FILTER (WHERE x > 0)|bit_xor(x)|bit_xor(big)|bit_xor(small)
regr_count(x, y)|regr_count(f, n)|regr_count(1, x) FILTER (WHERE b)
"""
SEMI_ALGEBRAIC = """
min(x)|max(x)|min(s)|max(at)|min(p)|max(p) FILTER (WHERE b)|max(s COLLATE "C")|bit_and(x)|bit_or(x)|bit_and(big)
bit_or(small)|bit_or(x) FILTER (WHERE y > 0)|min(DISTINCT x)
"""
RESCANNED = """
count(DISTINCT x)|count(DISTINCT n)|count(DISTINCT (x, y))|sum(DISTINCT x)|avg(DISTINCT p)|sum(i)|avg(i)|sum(cash)
sum(f)|avg(f)|sum(r)|max(f + 0)|min(m)|max(a)|min(bytes)|bit_and(bits)|bit_or(bits)|bit_xor(bits)
string_agg(s, ',' ORDER BY s)|string_agg(DISTINCT s, ',')|string_agg(DISTINCT s, ',' ORDER BY s DESC)
string_agg(s, x::text ORDER BY s, x) FILTER (WHERE y > 0)|string_agg(bytes, '\\x2c' ORDER BY bytes)
array_agg(x ORDER BY x DESC NULLS LAST)|array_agg(DISTINCT s)|array_agg(a ORDER BY a) FILTER (WHERE a IS NOT NULL)
array_agg(s ORDER BY s COLLATE "C" DESC)|json_agg(x ORDER BY x)|jsonb_agg(s ORDER BY s)|json_agg(js ORDER BY js::text)
json_object_agg(coalesce(s, '?'), x ORDER BY s, x)|jsonb_object_agg(coalesce(s, '?'), y ORDER BY s, y)
JSON_ARRAYAGG(x ORDER BY x)|JSON_ARRAYAGG(s ORDER BY s DESC NULL ON NULL RETURNING jsonb)
JSON_OBJECTAGG(coalesce(s, '?') : 1 RETURNING jsonb)
JSON_OBJECTAGG(coalesce(s, '?') VALUE 2 ABSENT ON NULL) FILTER (WHERE s = 'a')
range_agg(span)|range_agg(spans)|range_intersect_agg(span)|range_intersect_agg(spans) FILTER (WHERE b)
mode() WITHIN GROUP (ORDER BY x)|mode() WITHIN GROUP (ORDER BY s DESC)|percentile_cont(0.5) WITHIN GROUP (ORDER BY x)
percentile_cont(0.25) WITHIN GROUP (ORDER BY p) FILTER (WHERE b)|percentile_disc(0.5) WITHIN GROUP (ORDER BY s)
percentile_disc('{0.1,0.9}'::float8[]) WITHIN GROUP (ORDER BY x DESC)
percentile_cont('{0,1}'::float8[]) WITHIN GROUP (ORDER BY y)
rank(1) WITHIN GROUP (ORDER BY x)|dense_rank(1, 'a') WITHIN GROUP (ORDER BY x DESC, s)
percent_rank(2) WITHIN GROUP (ORDER BY x)
cume_dist(2) WITHIN GROUP (ORDER BY x NULLS FIRST)|public.total(x)|public.total(DISTINCT x)
public.total(x) FILTER (WHERE b)
public.joined_up(s, x::text ORDER BY s, x)|public.joined_up(VARIADIC ARRAY[s] ORDER BY s)
public.fraction(0.5) WITHIN GROUP (ORDER BY y)
public.total(x ORDER BY y)|regr_avgx(x, y)|regr_sxx(0, 1)
"""
GROUPED = """
rank(g) WITHIN GROUP (ORDER BY x)|percentile_disc((g / 10.0)::float8) WITHIN GROUP (ORDER BY x)
"""
UNORDERED = {
    "string_agg(s, ',')": "string_agg(s, ',' ORDER BY s)",
    "string_agg(s, ',' ORDER BY x)": "string_agg(s, ',' ORDER BY x, s)",
    "array_agg(x)": "array_agg(x ORDER BY x)",
    "array_agg(n)": 'array_agg(n ORDER BY n, n::text COLLATE "C")',
    "array_agg(c)": 'array_agg(c ORDER BY c::text COLLATE "C")',
    "json_agg(js)": 'json_agg(js ORDER BY js::text COLLATE "C")',
    "jsonb_agg(x) FILTER (WHERE b)": "jsonb_agg(x ORDER BY x) FILTER (WHERE b)",
    "json_agg_strict(x)": "json_agg_strict(x ORDER BY x)",
    "jsonb_agg_strict(s)": "jsonb_agg_strict(s ORDER BY s)",
    "json_object_agg(coalesce(x, 0), s)": "json_object_agg(coalesce(x, 0), s ORDER BY coalesce(x, 0), s)",
    "jsonb_object_agg(coalesce(x, 0), y)": "jsonb_object_agg(coalesce(x, 0), y ORDER BY coalesce(x, 0), y)",
    "json_object_agg_strict(coalesce(x, 0), y)": "json_object_agg_strict(coalesce(x, 0), y ORDER BY coalesce(x, 0), y)",
    "JSON_ARRAYAGG(s)": "JSON_ARRAYAGG(s ORDER BY s)",
    "any_value(x)": "min(x)",
    "any_value(s) FILTER (WHERE b)": "min(s) FILTER (WHERE b)",
    "range_agg(wide)": 'range_agg(wide ORDER BY wide::text COLLATE "C")',
    "public.joined_up(s, x::text)": 'public.joined_up(s, x::text ORDER BY ARRAY[s, x::text]::text COLLATE "C")',
    "public.joined_up(VARIADIC ARRAY[s])": 'public.joined_up(VARIADIC ARRAY[s] ORDER BY ARRAY[s]::text COLLATE "C")',
}


def listed(text: str) -> list[str]:
    """The calls of a list."""
    return [call for line in text.strip().splitlines() for call in line.split("|")]


def literal(value: str | None) -> str:
    """An SQL literal."""
    return "NULL" if value is None else "'" + value.replace("'", "''") + "'"


def rows(random: Random, count: int) -> str:
    """An INSERT of random rows."""
    tuples = (", ".join(literal(random.choice(values)) for values in VALUES.values()) for _ in range(count))
    return f"INSERT INTO sample VALUES {', '.join(f'({row})' for row in tuples)}"


def changes(random: Random) -> list[str]:
    """A few statements of all kinds."""
    columns = sorted(VALUES)
    result = [rows(random, random.randrange(1, 4))]
    for _ in range(3):
        column, other = random.choice(columns), random.choice(columns)
        result.append(
            f"UPDATE sample SET {column} = {literal(random.choice(VALUES[column]))}"
            f" WHERE ctid IN (SELECT ctid FROM sample ORDER BY md5({other}::text), ctid LIMIT {random.randrange(1, 4)})"
        )
    result.append(f"DELETE FROM sample WHERE ctid IN (SELECT ctid FROM sample LIMIT {random.randrange(3)})")
    result.append(f"DELETE FROM sample WHERE g = {random.randrange(1, 4)} AND x > 1")
    return random.sample(result, 4)


@pytest.fixture(scope="module")
def workspace(cluster: EmbeddedPostgres) -> Iterator[Workspace]:
    """A database of the module's own with one table of many types."""
    for opened in open_workspace(cluster, "sql_aggregates"):
        opened.connection.execute(TABLES)
        sources = tuple(source(opened.connection, name) for name in ("sample", "label"))
        yield Workspace(opened.connection, sources)


def refreshed(
    workspace: Workspace, streams: dict[str, StreamTable], seed: int, rounds: int = 5, *, looks: bool = True
) -> None:
    """Change, refresh and compare, until nothing is left and something comes again."""
    random = Random(seed)
    workspace.execute(
        "TRUNCATE sample, label", rows(random, 12), "INSERT INTO label VALUES (1, 'one'), (1, 'uno'), (2, 'two')"
    )
    for stream in streams.values():
        stream.reset()
    batches = [changes(random) for _ in range(rounds)]
    batches[1:1] = [["UPDATE label SET g = 3 WHERE name = 'two'", *changes(random)]]
    batches += [
        ["UPDATE sample SET g = 1"],
        ["DELETE FROM sample WHERE x IS NOT NULL"],
        ["DELETE FROM sample"],
        [rows(random, 3)],
    ]
    for batch in batches:
        workspace.execute(*batch)
        for name, stream in streams.items():
            stream.refresh()
            assert stream.difference(looks=looks) == [], (name, batch)
    for name, stream in streams.items() if looks else ():
        done = stream.full()
        assert (done["inserted"], done["updated"], done["deleted"]) == (0, 0, 0), name


def stream(workspace: Workspace, name: str, query: str, expected: str | None = None) -> StreamTable:
    """A stream table; ``expected`` is a query with the same result that SQL leaves nothing open in."""
    made = StreamTable(workspace.connection, name, query, workspace.sources, special=SPECIAL)
    made.canonical = expected or made.canonical
    return made


def columns(calls: list[str], *, text: bool = False) -> str:
    """A select list."""
    return ", ".join(f"({call}){'::text' if text else ''} AS o{i}" for i, call in enumerate(calls))


EXTREMA = """min(x)|max(x)|min(s)|max(at)|min(p)|max(p) FILTER (WHERE b)|max(s COLLATE "C")|count(x)"""
LISTS = {"algebraic": listed(ALGEBRAIC), "semi-algebraic": listed(SEMI_ALGEBRAIC), "rescanned": listed(RESCANNED)}


@pytest.mark.parametrize("kind", LISTS)
def test_every_aggregate_at_the_root(workspace: Workspace, kind: str) -> None:
    calls = LISTS[kind]
    streams = {
        "grouped": stream(workspace, f"{kind} grouped", f"SELECT g, {columns(calls)} FROM sample GROUP BY g"),
        "total": stream(workspace, f"{kind} total", f"SELECT {columns(calls)} FROM sample"),
        "key left out": stream(workspace, f"{kind} keyless", f"SELECT {columns(calls[:5])} FROM sample GROUP BY g, b"),
    }
    way = "group rescan" if kind == "rescanned" else kind
    assert all(strategy.startswith(way) for strategy in streams["grouped"].compiled.strategy.values())
    refreshed(workspace, streams, seed=1)


def test_explanations_say_why_a_group_is_rescanned(workspace: Workspace) -> None:
    calls = "sum(f), avg(x), count(DISTINCT x), mode() WITHIN GROUP (ORDER BY x), array_agg(s ORDER BY s, x DESC)"
    made = stream(workspace, "explained", f"SELECT g, {columns(calls.split(', ', 4))} FROM sample GROUP BY g")
    assert made.compiled.strategy == {
        "sum(f)": "group rescan: a running sum of floating point numbers would drift",
        "avg(x)": "group rescan, as the rest of its query",
        "count(DISTINCT x)": "group rescan: DISTINCT",
        "mode() WITHIN GROUP (ORDER BY x)": "group rescan: ordered set",
        "array_agg(s ORDER BY s, x DESC)": "group rescan",
    }


@pytest.mark.parametrize("kind", [*LISTS, "extrema"])
def test_every_aggregate_below_a_join_and_below_an_aggregate(workspace: Workspace, kind: str) -> None:
    calls = LISTS.get(kind) or listed(EXTREMA)
    groups = f"SELECT g, {columns(calls, text=True)} FROM sample GROUP BY g"
    words = "concat_ws('|', " + ", ".join(f"d.o{i}" for i in range(len(calls))) + ")"
    refreshed(
        workspace,
        {
            "joined": stream(
                workspace, f"{kind} join", f"SELECT l.name, d.* FROM ({groups}) d JOIN label l ON l.g = d.g"
            ),
            "aggregated": stream(
                workspace,
                f"{kind} again",
                f'SELECT string_agg({words}, $$;$$ ORDER BY {words} COLLATE "C"), count(d.o0) FROM ({groups}) d',
            ),
        },
        seed=2,
    )


def test_direct_arguments_speak_of_keys(workspace: Workspace) -> None:
    made = stream(
        workspace, "direct arguments", f"SELECT g / 1 AS k, {columns(listed(GROUPED))} FROM sample GROUP BY g"
    )
    refreshed(workspace, {"direct": made}, seed=3)


def test_order_that_the_query_leaves_open_is_that_of_the_arguments(workspace: Workspace) -> None:
    """So a differential refresh gives what a full one gives, and rows do not change with the plan."""
    written, ordered = list(UNORDERED), list(UNORDERED.values())
    nested = "SELECT l.name, d.* FROM (SELECT g, {} FROM sample GROUP BY g) d JOIN label l ON l.g = d.g"
    streams = {
        "root": stream(
            workspace,
            "open order",
            f"SELECT g, {columns(written)} FROM sample GROUP BY g",
            f"SELECT g, {columns(ordered)} FROM sample GROUP BY g",
        ),
        "nested": stream(
            workspace, "open order in tree", nested.format(columns(written)), nested.format(columns(ordered))
        ),
    }
    refreshed(workspace, streams, seed=4)


def test_equal_values_that_look_different_inside_the_tree(workspace: Workspace) -> None:
    calls = listed("""
        max(n)|min(c)|array_agg(DISTINCT n)|string_agg(DISTINCT c::text, ',')|array_agg(DISTINCT c)|sum(DISTINCT n)
        mode() WITHIN GROUP (ORDER BY n)|percentile_disc(0.5) WITHIN GROUP (ORDER BY i)
        count(DISTINCT c)|max(s)
        range_agg(DISTINCT wide)|min(f)|jsonb_agg(DISTINCT j)|max(a)
        percentile_cont(0.5) WITHIN GROUP (ORDER BY f)|max(n) FILTER (WHERE b)
    """)
    calls = [call.strip() for call in calls if call.strip()]
    joined = "SELECT l.name, d.* FROM ({}) d JOIN label l ON l.g = d.k"
    streams = {
        "grouped": stream(workspace, "equal", joined.format(f"SELECT g AS k, {columns(calls)} FROM sample GROUP BY g")),
        "key": stream(
            workspace,
            "equal key",
            joined.format(
                "SELECT n::int AS k, n, sum(x) AS s FROM sample"
                " WHERE n NOT IN ('NaN', 'Infinity') AND n < 1000 GROUP BY n"
            ),
        ),
        "array key": stream(
            workspace,
            "array key",
            "SELECT d.a, d.s, l.name FROM (SELECT a, max(g) AS k, sum(x) AS s FROM sample"
            " GROUP BY a) d JOIN label l ON l.g = d.k",
        ),
    }
    refreshed(workspace, streams, seed=5, looks=False)


EVERY = [call for calls in LISTS.values() for call in calls]
KEYS = ["g", "x", "b", "s", "m", "p", "x % 2", "g, b", "lower(s), y"]
CONDITIONS = ["x > 0", "b", "s <> 'a' OR y IS NULL", "n > 1"]


@settings(max_examples=6, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_aggregates(workspace: Workspace, data: st.DataObject) -> None:
    calls = data.draw(st.lists(st.sampled_from(EVERY), min_size=1, max_size=6))
    key, condition = data.draw(st.sampled_from(KEYS)), data.draw(st.sampled_from(CONDITIONS))
    source_rows = f"SELECT * FROM sample WHERE {condition}" if data.draw(st.booleans()) else "SELECT * FROM sample"
    query = f"SELECT {columns(calls)}, {key} FROM ({source_rows}) sample GROUP BY {key}"
    if data.draw(st.booleans()):
        query += f" HAVING {data.draw(st.sampled_from(['count(*) > 1', 'sum(x) > 2', 'bool_or(b)', 'max(y) = 2']))}"
    if data.draw(st.booleans()):
        texts = ", ".join(f"d.o{i}::text AS t{i}" for i in range(len(calls)))
        query = f"SELECT {texts}, l.name FROM ({query}) d LEFT JOIN label l ON l.g = length(d.o0::text)"
    workspace.connection.execute('DROP TABLE IF EXISTS "random"')
    refreshed(workspace, {query: stream(workspace, "random", query)}, seed=data.draw(st.integers(0, 99)), rounds=2)


def test_having_keeps_what_satisfies_it_by_addition(workspace: Workspace) -> None:
    """Groups that fail are nowhere, so one of them is read again when something in it changes."""
    queries = {
        "having": "SELECT g, sum(x) AS s FROM sample GROUP BY g HAVING count(*) > 3 AND sum(x) <> 5",
        "key left out": "SELECT sum(x) AS s, max(y) AS m FROM sample GROUP BY g, b HAVING max(y) > 0",
        "outer condition": "SELECT d.s + 1 AS t FROM (SELECT g, sum(x) AS s, bool_or(b) AS o FROM sample GROUP BY g) d"
        " WHERE d.o AND d.s > 2",
        "total": "SELECT sum(x) AS s FROM sample HAVING count(*) > 8",
        "distinct": "SELECT d.x FROM (SELECT DISTINCT x, y FROM sample) d WHERE d.x > 0",
        "rollup": "SELECT g, sum(x) AS s FROM sample GROUP BY ROLLUP (g, b) HAVING sum(x) > 4 OR grouping(g) = 1",
        "rescanned": "SELECT sum(x) AS s FROM sample GROUP BY g, m HAVING count(DISTINCT x) > 1",
    }
    streams = {name: stream(workspace, f"having {name}", query) for name, query in queries.items()}
    for name in queries.keys() - {"distinct", "rescanned"}:
        ways = streams[name].compiled.strategy.values()
        assert all("algebraic" in way for way in ways), (name, ways)
    refreshed(workspace, streams, seed=6, rounds=8)


def test_aggregates_whose_parts_would_not_fit_into_a_row_are_computed_again(workspace: Workspace) -> None:
    calls = ", ".join(f"sum(x + {n}) AS s{n}, min(y - {n}) AS m{n}" for n in range(180))
    streams = {"wide": stream(workspace, "too wide", f"SELECT g, {calls} FROM sample GROUP BY g")}
    assert len(streams["wide"].compiled.columns) < 400
    refreshed(workspace, streams, seed=2)
