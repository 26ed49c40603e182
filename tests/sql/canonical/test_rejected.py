"""What is not maintained incrementally is refused by name."""

from __future__ import annotations

import pytest

from sql import Column, NotDifferentiable, Source, opaque_query, parse_query, regenerate, rejected

ITEM = Source(
    1,
    "public",
    "item",
    (Column("id", "integer", not_null=True), Column("grp", "integer"), Column("val", "integer")),
    ("id",),
)
TAG = Source(
    2, "public", "tag", (Column("grp", "integer"), Column("note", "json", hashable=False, equality_is_identity=False))
)


KEY = "length('x'::text)"
CONSTANTS = [
    f"SELECT {KEY} AS x, {KEY} AS y FROM public.item GROUP BY ROLLUP ({KEY}, id)",
    f"SELECT {KEY} AS x, id AS y FROM public.item GROUP BY ROLLUP ({KEY}, id)",
    f"SELECT id AS x, ({KEY} + 1) AS y FROM public.item GROUP BY ROLLUP ({KEY}, id)",
    f"SELECT id AS x, count(*) AS y FROM public.item GROUP BY CUBE ({KEY}, id) HAVING ({KEY} IS NULL)",
    f"SELECT id AS x, lag({KEY}) OVER (ORDER BY id) AS y FROM public.item GROUP BY ROLLUP ({KEY}, id)",
    f"SELECT {KEY} AS x, id AS y FROM public.item GROUP BY ROLLUP ({KEY}, id) ORDER BY {KEY}, id LIMIT 3",
    "SELECT COALESCE(1, val) AS x, (COALESCE(1, val) + 1) AS y FROM public.item GROUP BY ROLLUP (COALESCE(1, val))",
    "SELECT public.one(val) AS x, public.one(val) AS y FROM public.item GROUP BY ROLLUP (public.one(val))",
    "SELECT ( SELECT max(i.id) AS max FROM public.item i) AS x, ( SELECT max(i.id) AS max FROM public.item i) AS y"
    " FROM public.item GROUP BY ROLLUP (( SELECT max(i.id) AS max FROM public.item i))",
]
"""PostgreSQL has NULL for the key in one of the places alone, if at all."""


@pytest.mark.parametrize(
    ("query", "construct"),
    [
        ("SELECT public.total(val) AS s FROM public.item", "function public.total"),
        (
            "SELECT sum(DISTINCT ROW(val, id)) AS s FROM public.item",
            "sum(DISTINCT ROW(...))",
        ),
        (
            "SELECT JSON_OBJECTAGG(val : id RETURNING text) AS s FROM public.item",
            "JSON_OBJECTAGG with RETURNING text",
        ),
        ("SELECT ctid FROM public.item", 'reference "ctid"'),
        ("SELECT id FROM ONLY public.item", "FROM ONLY"),
        *((query, "a constant in grouping sets that is used elsewhere") for query in CONSTANTS),
        ("SELECT id FROM public.elsewhere", 'relation "public.elsewhere"'),
        ("SELECT DISTINCT note FROM public.tag", "DISTINCT of type json"),
        ("SELECT id FROM public.item WHERE (id IN ( SELECT", "syntax that the compiler does not know"),
    ],
)
def test_construct_is_named(query: str, construct: str) -> None:
    output = [Column("x", "integer"), Column("y", "integer")]
    with pytest.raises(NotDifferentiable) as refused:
        parse_query(query, [ITEM, TAG], output, frozenset({"public.total"}))
    assert refused.value.construct == construct


@pytest.mark.parametrize(
    ("query", "construct"),
    [
        ("SELECT id FROM public.item LIMIT 1", "LIMIT without ORDER BY"),
        ("SELECT id FROM public.item OFFSET 1", "OFFSET without ORDER BY"),
        ("SELECT d.id FROM ( SELECT item.id FROM public.item LIMIT 1) d", "LIMIT without ORDER BY"),
        ("SELECT id FROM public.item FOR UPDATE OF item", "FOR UPDATE or FOR SHARE"),
        ("SELECT id FROM public.item FOR SHARE OF item", "FOR UPDATE or FOR SHARE"),
        ("SELECT id FROM public.item TABLESAMPLE system (10)", "TABLESAMPLE"),
    ],
)
def test_query_without_a_determined_result_is_rejected(query: str, construct: str) -> None:
    found = rejected(query)
    assert found is not None
    assert found[0] == construct


def test_ordered_limit_is_not_rejected() -> None:
    assert rejected("SELECT id FROM public.item ORDER BY id LIMIT 1") is None


@pytest.mark.parametrize(
    "query",
    [
        "SELECT strpos(a, 'x'::text), now(), date_part('year'::text, b), TRIM(TRAILING FROM a) FROM public.t",
        "SELECT (a !~ 'x'::text), (b IS NOT TRUE), (b IS NOT UNKNOWN), (c ^ (2)::double precision) FROM public.t",
    ],
)
def test_canonical_text_comes_back_in_words_of_its_own(query: str) -> None:
    again = regenerate(query)
    assert "POSITION" not in again and "CURRENT_TIMESTAMP" not in again and "EXTRACT" not in again
    assert regenerate(again) == again


def test_a_column_may_have_the_name_of_another_dialects_constructor() -> None:
    query = "SELECT list[1] AS e, map[1] AS m, ARRAY[1, 2] AS a FROM public.t"
    assert regenerate(query) == query


def test_opaque_query_is_full_only() -> None:
    compiled = opaque_query("SELECT whatever;", [Column("x", "integer")])
    assert not compiled.differential
    assert not compiled.keyed
    assert compiled.storage_query == "SELECT whatever"
