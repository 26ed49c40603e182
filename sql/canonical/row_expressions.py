"""Expressions of one row: what they may contain, and their columns."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from sql.base.columns import Field
from sql.base.functions import AGGREGATES, HYPOTHETICAL_SET, SET_RETURNING, WINDOW_FUNCTIONS
from sql.canonical.aggregates import JsonAggregate
from sql.canonical.dialect import generate
from sql.canonical.nodes import all_of, nodes
from sql.errors import NotDifferentiable

SIMPLE_AGGREGATES: dict[type[exp.Expr], str] = {
    exp.Count: "count",
    exp.Sum: "sum",
    exp.Avg: "avg",
    exp.Min: "min",
    exp.Max: "max",
}


def check(node: exp.Expr, special: frozenset[str] = frozenset()) -> None:
    """Raise NotDifferentiable for anything in an expression that needs more than one row, or gives more than one.

    Aggregates pass; whether one may stand here, PostgreSQL has already checked.
    """
    for part in nodes(node):
        if isinstance(part, exp.Window | exp.WindowSpec):
            raise NotDifferentiable("window function")
        if isinstance(part, exp.Exists):
            raise NotDifferentiable("EXISTS")
        if isinstance(part, exp.In) and part.args.get("query"):
            raise NotDifferentiable("IN with a subquery")
        if isinstance(part, exp.Query):
            raise NotDifferentiable("subquery in an expression")
        if isinstance(part, exp.Func) and not isinstance(part, exp.Binary | exp.Cast):
            _check_function(part, special)


def _check_function(node: exp.Func, special: frozenset[str]) -> None:
    parent = node.parent
    if aggregate_name(parent if isinstance(parent, exp.Dot) else node, special):
        return
    if isinstance(parent, exp.Dot):
        name = generate(parent).partition("(")[0]
        if name.replace('"', "") in special or name in special:
            raise NotDifferentiable(f"function {name}")
        return
    name = generate(node).partition("(")[0].strip().lower()
    if isinstance(node, exp.AggFunc):
        raise NotDifferentiable(f"aggregate {name}")
    if name in WINDOW_FUNCTIONS:
        raise NotDifferentiable("window function")


def aggregate_name(node: exp.Expr, special: frozenset[str]) -> str | None:
    """The name of the aggregate function that a node calls (without FILTER and WITHIN GROUP), None if it does not.

    A user-defined one has its schema, and is in ``special`` as ``aggregate schema.name``.
    """
    if isinstance(node, exp.Dot):
        call = node.expression
        if not isinstance(call, exp.Func):
            return None
        name = generate(node).partition("(")[0]
        return name if "aggregate " + name.replace('"', "") in special else None
    if isinstance(node.parent, exp.Dot) and node.arg_key == "expression":
        return None
    if type(node) in SIMPLE_AGGREGATES:
        return SIMPLE_AGGREGATES[type(node)]
    if isinstance(node, JsonAggregate):
        return node.name
    if isinstance(node, exp.Anonymous) and isinstance(node.this, str):
        name = node.this.lower()
        hypothetical = name in HYPOTHETICAL_SET and isinstance(node.parent, exp.WithinGroup)
        return name if hypothetical or name in AGGREGATES else None
    return None


def returns_set(node: exp.Expr, special: frozenset[str]) -> bool:
    """Whether an expression calls a function that returns a set.

    >>> from .dialect import parse
    >>> expressions = parse("SELECT 1 + unnest(a), app.f(b), upper(c)").expressions
    >>> [returns_set(expression, frozenset({"set app.f"})) for expression in expressions]
    [True, True, False]
    """
    for part in all_of(node, exp.Func):
        parent = part.parent
        if isinstance(parent, exp.Dot) and part.arg_key == "expression":
            if "set " + generate(parent).partition("(")[0].replace('"', "") in special:
                return True
        elif isinstance(part, exp.Anonymous) and str(part.this).lower() in SET_RETURNING:
            return True
    return False


def replace_columns(node: exp.Expr, column: Callable[[exp.Column], Field]) -> exp.Expr:
    """A copy with each column replaced by the operator column it means."""

    if isinstance(node, exp.Column):
        return named(column(node))
    result = node.copy()
    for part in all_of(result, exp.Column):
        part.replace(named(column(part)))
    return result


def named(column: Field) -> exp.Column:
    """A reference to an operator's column."""
    return exp.Column(this=exp.Identifier(this=column.name, quoted=True))


def conjuncts(node: exp.Expr) -> list[exp.Expr]:
    """The conditions that are ANDed in a condition.

    >>> from sqlglot import parse_one
    >>> [c.sql() for c in conjuncts(parse_one("((a = 1) AND ((b = 2) AND (c OR d)))"))]
    ['a = 1', 'b = 2', 'c OR d']
    """
    node = node.unnest()
    if isinstance(node, exp.And):
        return conjuncts(node.left) + conjuncts(node.right)
    return [node]


def equated(condition: exp.Expr) -> tuple[str, str]:
    """The names of the two columns that a condition equates, or two empty names. They are not NULL where it is true.

    >>> from sqlglot import parse_one
    >>> equated(parse_one("(a = b)")), equated(parse_one("a < b"))
    (('a', 'b'), ('', ''))
    """
    condition = condition.unnest()
    if isinstance(condition, exp.EQ):
        left, right = condition.left.unnest(), condition.right.unnest()
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            return left.name, right.name
    return "", ""
