"""GROUPING SETS, CUBE, ROLLUP and GROUPING(): after changes of all kinds the stream table equals its query."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from sql import NotDifferentiable
from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable

QUERIES = {
    "rollup": "SELECT grp, val, count(*) AS n, sum(amount) AS s FROM item GROUP BY ROLLUP (grp, val)",
    "cube": "SELECT grp, label, count(*) AS n, max(val) AS m, grouping(grp, label) AS g FROM item"
    " GROUP BY CUBE (grp, label)",
    "sets": "SELECT grp, val, label, sum(wide) AS s FROM item GROUP BY GROUPING SETS ((grp, val), (label), ())",
    "sets without the empty one": "SELECT grp, val, count(val) AS n FROM item"
    " GROUP BY GROUPING SETS ((grp, val), (val))",
    "plain keys and sets": "SELECT grp, val, label, count(*) AS n FROM item GROUP BY grp, ROLLUP (val, label)",
    "product of sets": "SELECT grp, val, label, avg(amount) AS a FROM item GROUP BY ROLLUP (grp), CUBE (val, label)",
    "sets of sets": "SELECT grp, val, label, min(val) AS lo, grouping(label) AS g"
    " FROM item GROUP BY GROUPING SETS (grp, ROLLUP (val, label), CUBE (label))",
    "composite elements": "SELECT grp, val, label, count(*) AS n FROM item GROUP BY ROLLUP ((grp, val), label)",
    "the same set twice": "SELECT grp, count(*) AS n FROM item GROUP BY GROUPING SETS (grp, grp, (), ())",
    "distinct sets": "SELECT grp, val, count(*) AS n FROM item"
    " GROUP BY DISTINCT ROLLUP (grp, val), ROLLUP (grp, label)",
    "one set": "SELECT grp, val, count(*) AS n FROM item GROUP BY GROUPING SETS ((grp, val))",
    "the empty set alone": "SELECT count(*) AS n, sum(val) AS s FROM item GROUP BY ()",
    "empty sets alone": "SELECT count(*) AS n, sum(val) AS s, 7 AS c FROM item GROUP BY GROUPING SETS ((), ())",
    "expressions": "SELECT grp + 1 AS g, lower(label) AS l, (grp + 1) * 2 AS twice, grouping(grp + 1) AS gr,"
    " count(*) AS n FROM item GROUP BY ROLLUP (grp + 1, lower(label))",
    "key and aggregated column": "SELECT grp, sum(grp) AS s, count(grp) AS n, count(*) FILTER (WHERE grp > 1) AS f"
    " FROM item GROUP BY CUBE (grp)",
    "having on grouping": "SELECT grp, val, count(*) AS n FROM item GROUP BY CUBE (grp, val)"
    " HAVING grouping(grp) = 1 OR count(*) > 1",
    "unfaithful keys": "SELECT grp, max(val) AS m, count(DISTINCT val) AS d FROM item GROUP BY ROLLUP (grp, amount)",
    "rescanned": "SELECT grp, val, array_agg(label ORDER BY label) AS a, count(DISTINCT val) AS d, every(val > 1) AS e"
    " FROM item GROUP BY ROLLUP (grp, val)",
    "over a join": "SELECT t.rank, i.label, count(*) AS n, sum(i.val) AS s FROM item i JOIN tag t USING (grp)"
    " GROUP BY ROLLUP (t.rank, i.label)",
    "below a join": "SELECT t.rank, d.* FROM (SELECT grp, val, sum(amount) AS s, grouping(val) AS g FROM item"
    " GROUP BY GROUPING SETS ((grp, val), grp, ())) d JOIN tag t ON t.grp = d.grp",
    "below an aggregate": "SELECT d.g, count(*) AS n, sum(d.n) AS s FROM (SELECT count(*) AS n, grouping(grp, val) AS g"
    " FROM item GROUP BY CUBE (grp, val)) d GROUP BY d.g",
    "grouping without sets": "SELECT grp, grouping(grp) AS g, count(*) AS n FROM item GROUP BY grp",
    "distinct": "SELECT DISTINCT grouping(grp) AS g, count(*) AS n FROM item GROUP BY CUBE (grp, val)",
    "union": "SELECT grp, count(*) AS n FROM item GROUP BY ROLLUP (grp)"
    " UNION ALL SELECT rank, count(*) FROM tag GROUP BY CUBE (rank)",
    "windows over sets": "SELECT grp, val, count(*) AS n, rank() OVER (PARTITION BY grouping(val)"
    " ORDER BY count(*)) AS r FROM item GROUP BY ROLLUP (grp, val)",
    "records alone": "SELECT count(*) AS n, ROW(grp, val)::text AS r, grouping(ROW(grp, val)) AS g"
    " FROM item GROUP BY ROW(grp, val)",
    "constants": "SELECT grp, 7 AS c, grouping(length('x'::text), 'y'::text) AS g,"
    " count(*) AS n, sum(length('x'::text)) AS s FROM item GROUP BY CUBE (length('x'::text), grp), ROLLUP ('y'::text)",
    "constant in all sets": "SELECT grp, length('x'::text) + 1 AS x, length('x'::text) AS y, count(*) AS n FROM item"
    " GROUP BY length('x'::text), ROLLUP (grp)",
    "constant of a subquery": "SELECT d.c, d.c + 1 AS x, count(*) AS n FROM (SELECT grp, 1 AS c FROM item) d"
    " GROUP BY ROLLUP (d.c, d.grp) HAVING d.c IS NULL OR count(*) > 1",
    "primary key": "SELECT id, label, count(*) AS n FROM item GROUP BY id, ROLLUP (grp)",
}


def literal(value: object) -> str:
    """An SQL literal."""
    return "NULL" if value is None else f"'{value}'"


def row(random: Random) -> str:
    """A row of item without its key."""
    small = [None, 0, 1, 2]
    values = [random.choice(small), random.choice(small), random.choice([None, "0.50", "1.50", "NaN"]), None]
    return ", ".join(map(literal, [*values, random.choice([None, "a", "A", "b"]), random.choice([None, 5, 2**62])]))


def batch(random: Random, number: int) -> list[str]:
    """Statements of all kinds."""
    rows = ", ".join(f"({number * 10 + i}, {row(random)})" for i in range(random.randrange(1, 4)))
    return [
        f"INSERT INTO item VALUES {rows}",
        f"UPDATE item SET grp = {random.randrange(3)}, label = 'b' WHERE id % 5 = {random.randrange(5)}",
        f"UPDATE item SET val = NULL, amount = 2 WHERE id % 7 = {random.randrange(7)}",
        f"DELETE FROM item WHERE id % 4 = {random.randrange(4)}",
        f"INSERT INTO tag VALUES ({random.randrange(3)}, '1', {random.randrange(3)})",
        f"DELETE FROM tag WHERE rank = {random.randrange(3)}",
    ]


def checked(workspace: Workspace, streams: dict[str, StreamTable], seed: int, rounds: int) -> None:
    """Change, refresh and compare, down to empty tables and up again."""
    random = Random(seed)
    workspace.execute("TRUNCATE item, tag", *batch(random, 1), *batch(random, 2))
    for stream in streams.values():
        stream.reset()
        assert stream.difference() == []
    batches = [random.sample(batch(random, number), 4) for number in range(3, 3 + rounds)]
    batches += [["DELETE FROM item"], batch(random, 90)]
    for statements in batches:
        workspace.execute(*statements)
        for name, stream in streams.items():
            stream.refresh()
            assert stream.difference() == [], (name, statements)
    for name, stream in streams.items():
        done = stream.full()
        assert (done["inserted"], done["updated"], done["deleted"]) == (0, 0, 0), name


def test_grouping_sets(shared_workspace: Workspace) -> None:
    streams = {}
    for i, (name, query) in enumerate(QUERIES.items()):
        streams[name] = shared_workspace.stream(f"gs {i}", query)
    checked(shared_workspace, streams, seed=1, rounds=4)


KEYS = ["grp", "val", "label", "amount", "grp + 1", "lower(label)"]


@st.composite
def groupings(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A GROUP BY clause, and the keys in it."""
    keys: list[str] = []

    def key() -> str:
        keys.append(draw(st.sampled_from(KEYS)))
        return f"({keys[-1]})"

    def element() -> str:
        return key() if draw(st.booleans()) else f"({key()}, {key()})"

    def item(depth: int = 0) -> str:
        kind = draw(st.sampled_from(["key", "ROLLUP", "CUBE", "GROUPING SETS"] + ["()"] * (depth > 0)))
        if kind == "key":
            return key()
        if kind == "()":
            return kind
        if kind == "GROUPING SETS":
            members = [item(1) if depth == 0 else element() for _ in range(draw(st.integers(1, 3)))]
        else:
            members = [element() for _ in range(draw(st.integers(1, 2)))]
        return f"{kind} ({', '.join(members)})"

    text = ", ".join(item() for _ in range(draw(st.integers(1, 2))))
    return ("DISTINCT " if draw(st.booleans()) else "") + text, list(dict.fromkeys(keys))


@settings(max_examples=8, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_grouping_sets(shared_workspace: Workspace, data: st.DataObject) -> None:
    text, keys = data.draw(groupings())
    shown = [f"({key}) AS k{i}" for i, key in enumerate(keys) if data.draw(st.booleans()) and key != "amount"]
    bits = f"grouping({', '.join(f'({key})' for key in keys)})" if keys else "0"
    calls = ["count(*) AS n", "sum(val) AS s", f"{bits} AS g", "max(wide) AS m", "count(DISTINCT label) AS d"]
    columns = data.draw(st.lists(st.sampled_from(calls), min_size=1, unique=True))
    query = f"SELECT {', '.join(shown + columns)} FROM item GROUP BY {text}"
    if data.draw(st.booleans()):
        query += f" HAVING {bits} <> 1 AND count(*) <> 2"
    if data.draw(st.booleans()):
        query = f"SELECT d.*, t.rank FROM ({query}) d LEFT JOIN tag t ON t.grp = length(d::text) % 3"
        query = query.replace("d::text", f"d.{columns[0].rpartition(' ')[2]}::text")
    shared_workspace.connection.execute('DROP TABLE IF EXISTS "random sets"')
    made = shared_workspace.stream("random sets", query)
    checked(shared_workspace, {query: made}, seed=data.draw(st.integers(0, 99)), rounds=3)


@pytest.mark.parametrize("keys", ["CUBE (d.a, d.b)", "ROLLUP (d.a, d.b)", "d.a, ROLLUP (d.b)"])
def test_two_names_of_one_column_are_left_to_postgresql(shared_workspace: Workspace, keys: str) -> None:
    query = f"SELECT d.a, d.b, count(*) AS n FROM (SELECT grp AS a, grp AS b FROM item) AS d GROUP BY {keys}"
    with pytest.raises(NotDifferentiable, match="two names of one column"):
        shared_workspace.stream("two names", query)
