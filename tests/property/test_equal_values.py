"""Values that are equal and not the same (1.0 and 1.00, 'Bob' and 'BOB' of citext) through every operator.

Wherever PostgreSQL itself cannot give but one of them, the stream table has that one, to the bit. What a group of equal
values that look different is shown as, PostgreSQL leaves open: see "What SQL leaves open" in docs/sql.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from catalog.values import Action, Initiator
from engine.requests.requests import refresh_now
from server.postgres.cluster import EmbeddedPostgres
from tests.clusters import new_database
from tests.property.laboratory import Laboratory, StreamTable
from tests.property.queries import Query
from tests.property.schemas import Table

TYPES = {
    "numeric": ("1.0", "1.00", "2"),
    "real": ("'0'", "'-0'", "1"),
    "double precision": ("'0'", "'-0'", "1"),
    "interval": ("'1 month'", "'30 days'", "'1 day'"),
    "jsonb": ("'{\"a\": 1.0}'", "'{\"a\": 1.00}'", "'{\"b\": 0}'"),
    "citext": ("'bob'", "'BOB'", "'eve'"),
    "bpchar": ("'a '::char(2)", "'a'::char(4)", "'b'::char(1)"),
    "price": ("1.0", "1.00", "2"),
    "padded": ("'a '::char(2)", "'a'::char(4)", "'b'::char(1)"),
    "numeric[]": ("'{1.0,NULL}'", "'{1.00,NULL}'", "'{2}'"),
    "bpchar[]": ("array['a '::char(2)]", "array['a'::char(4)]", "array['b'::char(1)]"),
    "citext[]": ("'{bob}'", "'{BOB}'", "'{eve}'"),
    "numrange": ("'[1.0,3)'", "'[1.00,3)'", "'empty'"),
    "nummultirange": ("'{[1.0,3)}'", "'{[1.00,3)}'", "'{}'"),
    "pair": ("row(1.0, 'a')", "row(1.00, 'a')", "row(2, 'a')"),
    "pair[]": ("array[row(1.0, 'a')::pair]", "array[row(1.00, 'a')::pair]", "'{}'"),
}
"""For each type two values that are equal, and another one."""

NUMBERED = tuple(enumerate(TYPES))
ALL = ", ".join(f"v{n}" for n, _ in NUMBERED)


def of(alias: str) -> str:
    return ", ".join(f"{alias}.v{n}" for n, _ in NUMBERED)


ROWS = {
    "keyed": f"SELECT id, {ALL} FROM t",
    "bag": f"SELECT {ALL} FROM u",
    "union all": f"SELECT {ALL} FROM t UNION ALL SELECT {ALL} FROM u",
    "join": f"SELECT {of('t')}, u.k FROM t JOIN u ON t.v0 = u.v0",
    "left join": f"SELECT t.id, {of('u')} FROM t LEFT JOIN u ON t.k = u.k",
    "full join": f"SELECT {of('t')}, t.k, u.k AS l, u.v6 AS w6, u.v7 AS w7, u.v8 AS w8 FROM t FULL JOIN u ON t.k = u.k",
    "semi-join": f"SELECT {ALL} FROM u WHERE EXISTS (SELECT FROM t WHERE t.v5 = u.v5)",
    "anti-join": f"SELECT {ALL} FROM u WHERE k NOT IN (SELECT t.k FROM t WHERE t.v0 > 1)",
    "window": f"SELECT {ALL}, count(*) OVER (PARTITION BY v0), rank() OVER (ORDER BY v3) FROM u",
    "first rows": f"SELECT id, {ALL} FROM t ORDER BY id LIMIT 4",
    "distinct on": f"SELECT DISTINCT ON (id) id, {ALL} FROM t ORDER BY id",
    "lateral": f"SELECT t.id, x.* FROM t, LATERAL (SELECT {ALL} FROM u WHERE u.k = t.k) AS x",
    "nested": f"SELECT q.* FROM (SELECT {ALL}, row_number() OVER (PARTITION BY id) AS r FROM t) AS q WHERE q.r = 1",
    "expression": ", ".join(["SELECT k", *(f"CASE WHEN k > 0 THEN v{n} END AS v{n}" for n, _ in NUMBERED)]) + " FROM u",
    "ordered": ", ".join(["SELECT k", *(f"array_agg(v{n} ORDER BY id) AS v{n}" for n in (0, 3, 5, 6))])
    + " FROM t GROUP BY k",
    "recursive": "WITH RECURSIVE r(k, v) AS (SELECT k, v6 FROM u UNION ALL SELECT k + 9, v FROM r WHERE k < 9)"
    " SELECT k, v FROM r",
}
"""Queries that give out values of single rows."""

GROUPS = {
    "distinct": "SELECT DISTINCT {v} FROM u",
    "distinct inside": "SELECT t.id, q.v FROM t LEFT JOIN (SELECT DISTINCT k, {v} AS v FROM u) AS q ON q.k = t.k",
    "union": "SELECT {v} FROM u UNION SELECT {v} FROM t",
    "intersect all": "SELECT {v} FROM u INTERSECT ALL SELECT {v} FROM t",
    "except": "SELECT {v} FROM t EXCEPT SELECT {v} FROM u WHERE k > 1",
    "grouped": "SELECT {v}, count(*), sum(k) FROM u GROUP BY {v}",
    "grouped inside": "SELECT q.v, q.n FROM (SELECT {v} AS v, count(*) AS n FROM u GROUP BY {v}) AS q WHERE q.n < 9",
    "grouped and listed": "SELECT {v}, array_agg(k ORDER BY k) FROM u GROUP BY {v}",
    "distinct on it": "SELECT DISTINCT ON ({v}) {v} FROM t ORDER BY {v}",
    "partitioned": "SELECT {v}, count(*) OVER (PARTITION BY {v}) FROM u",
    "joined": "SELECT t.{v}, u.{v} AS other FROM t JOIN u USING ({v})",
    "merged": "SELECT {v} FROM t FULL JOIN u USING ({v})",
    "extremes": "SELECT k, max({v}), min({v}) AS least FROM u GROUP BY k",
    "only extremes": "SELECT max({v}) FROM u",
    "first rows": "SELECT {v} FROM u ORDER BY {v} LIMIT 3",
    "recursive": "WITH RECURSIVE r(k, v) AS (SELECT k, {v} FROM u UNION SELECT k + 1, v FROM r WHERE k < 4)"
    " SELECT k, v FROM r",
}
"""Queries that give out one of several equal values."""

NO_EXTREMES = {"jsonb", "numrange", "nummultirange", "pair", "pair[]"}
NO_GROUPS = {"pair", "pair[]"}
"""Types that are never keys."""
NO_USING = {"citext", "citext[]"}


GROUPED = tuple((n, type_) for n, type_ in NUMBERED if type_ not in NO_GROUPS)


@pytest.fixture(scope="module")
def lab(cluster: EmbeddedPostgres) -> Iterator[Laboratory]:
    with new_database(cluster, "equal_values") as name:
        made = Laboratory(cluster, name)
        columns = ", ".join(f"v{n} {type_}" for n, type_ in NUMBERED)
        made.do(
            _all(
                made,
                "CREATE EXTENSION citext",
                "CREATE DOMAIN price AS numeric",
                "CREATE DOMAIN padded AS bpchar",
                "CREATE TYPE pair AS (n numeric, t text)",
                f"CREATE TABLE t (id int PRIMARY KEY, k int, {columns})",
                f"CREATE TABLE u (k int, {columns})",
            )
        )
        made.tables = (Table("t", ()), Table("u", ()))
        yield made
        made.close()


async def _all(lab: Laboratory, *statements: str) -> None:
    for statement in statements:
        await lab.connections[0].execute(statement)


def values(look: int, other: int | None = None, other_look: int = 1) -> str:
    """All values in one look, but for one column in another."""
    return ", ".join(f"{TYPES[type_][other_look if n == other else look]}::{type_}" for n, type_ in NUMBERED)


async def difference(lab: Laboratory, table: StreamTable) -> list[str]:
    """Rows that are missing or too many, by the binary form of what is in them."""
    columns = ", ".join(f"c{n}" for n in range(len(table.columns)))
    rows = f"SELECT encode(record_send(ROW({columns})), 'hex') FROM (%s) AS q({columns})"
    stored = rows % f"SELECT {', '.join(table.columns)} FROM {table.name}"
    asked = rows % table.query.text
    return [
        str(row[0])
        for row in await lab.connections[0].fetch(
            f"(SELECT 'missing ' || m FROM ({asked} EXCEPT ALL {stored}) AS m(m))"
            f" UNION ALL (SELECT 'extra ' || e FROM ({stored} EXCEPT ALL {asked}) AS e(e))"
        )
    ]


def follow(lab: Laboratory, queries: dict[str, str], *changes: str) -> list[str]:
    """Stream tables of the queries, refreshed after each change: those that once were not their queries, and when."""

    async def run() -> list[str]:
        await lab.reset(lab.tables, changes[:1])
        tables = {}
        for number, (name, query) in enumerate(queries.items()):
            described = await lab.connections[0].prepare(query)
            columns = tuple((attribute.name, "") for attribute in described.get_attributes())
            tables[name] = await lab.create(f"st{number}", Query(query, columns, exact=False))
        wrong = []
        for change in changes[1:]:
            await _all(lab, change)
            for name, table in tables.items():
                async with lab.session(0).transaction():
                    outcome = await refresh_now(lab.session(0), table.pgt_id, Initiator.MANUAL, lab.spark)
                if outcome.action not in (Action.DIFFERENTIAL, Action.NO_DATA):
                    wrong.append(f"{name}, refreshed by {outcome.action} after {change[:60]}")
                wrong += [f"{name} after {change[:60]}: {row}" for row in await difference(lab, table)]
        return wrong

    return lab.do(run())


def test_a_row_has_the_values_that_it_was_made_of(lab: Laboratory) -> None:
    looks = [f"({n}, {n % 3}, {values(0, n)})" for n, _ in NUMBERED] + [f"(90, 1, {values(0)}), (91, 1, {values(1)})"]
    wrong = follow(
        lab,
        ROWS,
        f"INSERT INTO t VALUES {', '.join(looks)}; INSERT INTO u SELECT k, {ALL} FROM t",
        f"INSERT INTO u SELECT k, {ALL} FROM t WHERE id < 90",
        f"UPDATE t SET ({ALL}) = ROW({values(1)}) WHERE id % 2 = 0; DELETE FROM u WHERE v0::text = '1.0'",
        f"INSERT INTO u VALUES (1, {values(1)}), (1, {values(0)}), (2, {values(1, 6, 0)}), (2, {values(2)})",
        "DELETE FROM u WHERE ctid IN (SELECT DISTINCT ON (k) ctid FROM u ORDER BY k, ctid DESC)",
        f"UPDATE u SET ({ALL}) = ROW({values(0)}) WHERE k = 1; UPDATE t SET k = 2 WHERE id < 3",
        "DELETE FROM u WHERE k = 2; DELETE FROM t WHERE id > 8",
    )
    assert wrong == []


@pytest.mark.parametrize(
    ("number", "type_"),
    [
        pytest.param(n, type_, id=re.sub(r"\W+", "_", type_), marks=[pytest.mark.long] if place % 3 else [])
        for place, (n, type_) in enumerate(GROUPED)
    ],
)
@pytest.mark.one_in(2)
def test_equal_values_that_look_alike_are_shown_as_they_look(lab: Laboratory, number: int, type_: str) -> None:
    queries = {
        name: query.format(v=f"v{number}")
        for name, query in GROUPS.items()
        if not ("extremes" in name and type_ in NO_EXTREMES) and not ("USING" in query and type_ in NO_USING)
    }
    one, two, other = (f"{value}::{type_}" for value in TYPES[type_])
    v = f"v{number}"
    wrong = follow(
        lab,
        queries,
        f"INSERT INTO t (id, k, {v}) VALUES (1, 1, {one}), (2, 2, {other}), (3, 1, {one}), (4, 0, NULL);"
        f"INSERT INTO u (k, {v}) SELECT k, {v} FROM t",
        f"INSERT INTO u (k, {v}) VALUES (1, {one}), (3, {one}), (3, NULL)",
        f"UPDATE t SET {v} = {two} WHERE {v} = {one}; UPDATE u SET {v} = {two} WHERE {v} = {one}",
        f"DELETE FROM u WHERE ctid IN (SELECT min(ctid) FROM u WHERE {v} = {two})",
        f"INSERT INTO u (k, {v}) VALUES (2, {two}), (2, {two}), (0, {other}); DELETE FROM t WHERE id = 1",
        f"DELETE FROM u WHERE {v} = {two}; INSERT INTO u (k, {v}) VALUES (1, {one});"
        f"UPDATE t SET {v} = {one} WHERE {v} = {two}",
    )
    assert wrong == []
