"""The auto-rewrite pipeline: what a query contains that is maintained as something else, in the reference's order.

The reference rewrites text. Here only views are replaced in the query's tree (`views`); the others become operators of
their own when the tree is built, which has the same effect and leaves nothing to be parsed again. So the query as it is
computed can be read from the operator tree alone: that is what ``explain_st`` shows as the rewritten query.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlglot import exp

from sql.canonical.dialect import generate, parse
from sql.canonical.nodes import all_of, contains, nodes
from sql.canonical.views import View


@dataclass(frozen=True, slots=True)
class Rewrite:
    """One step: what it is about, what that becomes, and whether a query has it."""

    number: int
    trigger: str
    becomes: str
    applies: Callable[[exp.Expr], bool]

    def __str__(self) -> str:
        return f"#{self.number} {self.trigger}: {self.becomes}"


def _in_clause(node: exp.Expr, kind: type[exp.Expr]) -> bool:
    """Whether a node stands in such a clause of its own query."""
    found = node.find_ancestor(kind, exp.Select)
    return isinstance(found, kind)


def _scalar_subqueries(query: exp.Expr) -> list[exp.Expr]:
    membership = (exp.Exists, exp.In, exp.Any, exp.All, exp.From, exp.Join, exp.Lateral, exp.CTE, exp.SetOperation)
    return [
        node
        for node in all_of(query, exp.Subquery)
        if isinstance(node.this, exp.Query) and not isinstance(node.parent, membership)
    ]


def _distinct_on(query: exp.Expr) -> bool:
    return any(node.args.get("on") for node in all_of(query, exp.Distinct))


def _grouping_sets(query: exp.Expr) -> bool:
    return contains(query, exp.GroupingSets, exp.Cube, exp.Rollup)


def _scalar_in_where(query: exp.Expr) -> bool:
    return any(_in_clause(node, exp.Where) for node in _scalar_subqueries(query))


def _scalar_in_select(query: exp.Expr) -> bool:
    elsewhere = (exp.Where, exp.Having, exp.Group, exp.Order)
    return any(not any(_in_clause(node, clause) for clause in elsewhere) for node in _scalar_subqueries(query))


def _subquery_under_or(query: exp.Expr) -> bool:
    tests = (exp.Exists, exp.In, exp.Any, exp.All)
    return any(
        _in_clause(node, exp.Or) and (isinstance(node, exp.Exists) or contains(node, exp.Query))
        for node in nodes(query)
        if isinstance(node, tests)
    )


def _partitions(query: exp.Expr) -> bool:
    found: dict[int, set[str]] = {}
    for window in all_of(query, exp.Window):
        owner = window.find_ancestor(exp.Select)
        partition = ", ".join(generate(part) for part in window.args.get("partition_by") or ())
        found.setdefault(id(owner), set()).add(partition)
    return any(len(partitions) > 1 for partitions in found.values())


def _window_in_expression(query: exp.Expr) -> bool:
    return any(not isinstance(window.parent, exp.Alias | exp.Select) for window in all_of(query, exp.Window))


PIPELINE: tuple[Rewrite, ...] = (
    Rewrite(0, "view in FROM", "its definition as a subquery", lambda query: False),
    Rewrite(1, "DISTINCT ON", "the first row of each group", _distinct_on),
    Rewrite(2, "GROUPING SETS, CUBE, ROLLUP", "one aggregate over every row once for each set", _grouping_sets),
    Rewrite(3, "scalar subquery in WHERE", "a join with the subquery's row", _scalar_in_where),
    Rewrite(4, "scalar subquery in SELECT", "a left join with what it gives for each row", _scalar_in_select),
    Rewrite(5, "EXISTS or IN under OR", "a column that tells whether there is a match", _subquery_under_or),
    Rewrite(6, "several PARTITION BY", "one window operator after the other", _partitions),
    Rewrite(7, "window function in an expression", "a column of the window operator below", _window_in_expression),
)
"""The steps in order. Views (#0) are known from outside of the query's text."""


def rewrites(canonical: str, views: Sequence[View] = ()) -> tuple[str, ...]:
    """The steps of the pipeline that a query takes, in words.

    >>> for step in rewrites("SELECT DISTINCT ON (t.k) t.k, t.v FROM public.t ORDER BY t.k, t.v"):
    ...     print(step)
    #1 DISTINCT ON: the first row of each group
    """
    texts = [canonical, *(view.text for view in views)]
    queries = [parse(text) for text in texts]
    found = [rewrite for rewrite in PIPELINE[1:] if any(rewrite.applies(query) for query in queries)]
    inlined = [f"{PIPELINE[0]} ({', '.join(f'{view.schema}.{view.name}' for view in views)})"] if views else []
    return (*inlined, *map(str, found))
