"""The auto-rewrite pipeline is a list, and says which of its steps a query takes."""

from __future__ import annotations

import pytest

from sql import View
from sql.canonical.explain_rewrites import PIPELINE, rewrites


def test_pipeline_has_the_steps_of_the_reference_in_order() -> None:
    assert [rewrite.number for rewrite in PIPELINE] == list(range(8))


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ("SELECT t.a FROM public.t WHERE (t.a > 1)", []),
        ("SELECT DISTINCT ON (t.a) t.a FROM public.t", [1]),
        ("SELECT t.a, count(*) AS n FROM public.t GROUP BY CUBE(t.a, t.b)", [2]),
        ("SELECT t.a FROM public.t WHERE (t.a = ( SELECT max(u.a) AS max FROM public.u))", [3]),
        ("SELECT t.a, ( SELECT max(u.a) AS max FROM public.u WHERE (u.b = t.b)) AS m FROM public.t", [4]),
        ("SELECT t.a FROM public.t WHERE ((t.a = 1) OR (EXISTS ( SELECT 1 FROM public.u)))", [5]),
        ("SELECT t.a FROM public.t WHERE ((t.a = 1) OR (t.b IN ( SELECT u.b FROM public.u)))", [5]),
        ("SELECT t.a FROM public.t WHERE (EXISTS ( SELECT 1 FROM public.u))", []),
        (
            "SELECT rank() OVER (PARTITION BY t.a ORDER BY t.b) AS r, count(*) OVER (PARTITION BY t.b) AS s"
            " FROM public.t",
            [6],
        ),
        ("SELECT (rank() OVER (ORDER BY t.b) + 1) AS r FROM public.t", [7]),
        ("SELECT d.a FROM ( SELECT DISTINCT ON (t.a) t.a FROM public.t) d", [1]),
    ],
)
def test_steps_of_a_query(query: str, numbers: list[int]) -> None:
    assert [int(step[1]) for step in rewrites(query)] == numbers


def test_views_come_first_and_what_is_in_them_counts() -> None:
    view = View("public", "v", ("a",), " SELECT DISTINCT ON (t.a) t.a FROM public.t;")
    assert rewrites("SELECT v.a FROM public.v", [view]) == (
        "#0 view in FROM: its definition as a subquery (public.v)",
        "#1 DISTINCT ON: the first row of each group",
    )
