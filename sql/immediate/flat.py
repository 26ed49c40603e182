"""Nested projections without a FROM of their own, as one expression for each column.

``SET (a, b) = (SELECT …)`` is a subquery that PostgreSQL runs for each row that is updated, which takes longer than all
the arithmetic in it. Expressions in its place are evaluated with the row.
"""

from __future__ import annotations

from sqlglot import exp

from sql.canonical.dialect import generate, parse
from sql.canonical.nodes import all_of, nodes

LONGEST = 4000
"""Characters that the expressions may have: what is used several times is written, and computed, as often."""

_KNOWN = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Null, exp.Boolean, exp.Paren, exp.Cast, exp.DataType),
    *(exp.Add, exp.Sub, exp.Mul, exp.Case, exp.If, exp.And, exp.Or, exp.Not, exp.Is, exp.Collate),
    *(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Anonymous, exp.Dot, exp.Neg),
)


def flat(query: str) -> dict[str, str] | None:
    """The columns of nested projections by their names, None where there is more in them than can be followed.

    >>> flat('SELECT f."n" FROM (SELECT d."n" + s."x" AS "n" FROM (SELECT excluded."n" AS "n") AS d) AS f')
    {'n': '(((excluded."n") + s."x"))'}
    >>> flat('SELECT f."n" FROM (SELECT "n" FROM t) AS f') is None
    True
    """
    found = _columns(parse(query))
    if found is None:
        return None
    texts = {name: generate(exp.paren(value)) for name, value in found.items()}
    return texts if sum(map(len, texts.values())) <= LONGEST else None


def _columns(query: exp.Expr) -> dict[str, exp.Expr] | None:
    """The expressions of a projection over others, in terms of columns that are of none of them."""
    if not isinstance(query, exp.Select) or any(
        value for part, value in query.args.items() if part not in ("expressions", "from_", "kind", "hint")
    ):
        return None
    below: dict[str, exp.Expr] = {}
    alias = ""
    if query.args.get("from_") is not None:
        source = query.args["from_"].this
        found = _columns(source.this) if isinstance(source, exp.Subquery) else None
        if found is None:
            return None
        below, alias = found, source.alias
    columns = {}
    for item in query.expressions:
        value = item.unalias()
        if not all(isinstance(node, _KNOWN) for node in nodes(value)):
            return None
        if any(not column.table and column.name not in below for column in all_of(value, exp.Column)):
            return None
        columns[item.alias_or_name] = value.copy().transform(lambda node: _replaced(node, alias, below))
    return columns


def _replaced(node: exp.Expr, alias: str, below: dict[str, exp.Expr]) -> exp.Expr:
    """A column of the projection below by what it is there."""
    if isinstance(node, exp.Column) and node.table in ("", alias) and node.name in below:
        return exp.paren(below[node.name].copy())
    return node
