"""Guards: the conditions under which PostgreSQL computes a subquery in an expression at all.

CASE computes no branch that it does not take, COALESCE nothing behind the first value. A subquery there that could
raise an error (several rows, a division by zero) is computed for those outer rows only that need it: D is that of the
rows that satisfy the guard. PostgreSQL makes no such promise for AND, OR and the conditions of WHERE. A subquery
without outer columns is computed once, whether a row needs it or not.
"""

from __future__ import annotations

from sqlglot import exp

from sql.build.protocol import Kind, Subplan
from sql.canonical.local_nodes import own_aggregates

OWN = "own"
"""The key in a CASE's meta that says that no query has it: it combines truth values."""

_HARMLESS = (
    exp.Query,
    exp.From,
    exp.Join,
    exp.Table,
    exp.TableAlias,
    exp.Alias,
    exp.Where,
    exp.Group,
    exp.Having,
    exp.Order,
    exp.Ordered,
    exp.Limit,
    exp.Identifier,
    exp.Column,
    exp.Star,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Paren,
    exp.And,
    exp.Or,
    exp.Not,
    exp.Is,
    exp.In,
    exp.Exists,
    exp.Any,
    exp.All,
    exp.EQ,
    exp.NEQ,
    exp.GT,
    exp.GTE,
    exp.LT,
    exp.LTE,
    exp.Count,
    exp.Max,
    exp.Min,
    exp.Distinct,
)


def may_raise(subplan: Subplan) -> bool:
    """Whether an expression in a subquery could raise an error, as far as can be seen."""
    return bool(subplan.parameters) and not all(isinstance(part, _HARMLESS) for part in subplan.query.walk())


def several_rows(subplan: Subplan, special: frozenset[str]) -> bool:
    """Whether a scalar subquery could have several rows."""
    if subplan.kind is not Kind.SCALAR or not subplan.parameters or not subplan.reads_tables:
        return False
    query = subplan.query
    if query.args.get("limit") is not None:
        return False
    return not (isinstance(query, exp.Select) and not query.args.get("group") and one_aggregate(query, special))


def one_aggregate(query: exp.Select, special: frozenset[str]) -> bool:
    """Whether a query aggregates."""
    return any(True for _ in own_aggregates(query, special))


def guard(node: exp.Expr) -> list[exp.Expr]:
    """The conditions that are all true of the rows for which a node of an expression is computed.

    >>> from sqlglot import parse_one
    >>> case = parse_one("CASE WHEN a THEN 1 WHEN b THEN x ELSE coalesce(c, y) END")
    >>> {column.name: [g.sql() for g in guard(column)] for column in case.find_all(exp.Column)}["x"]
    ['(b)', 'NOT (a) IS TRUE']
    >>> {column.name: [g.sql() for g in guard(column)] for column in case.find_all(exp.Column)}["y"]
    ['(c) IS NULL', 'NOT (a) IS TRUE', 'NOT (b) IS TRUE']
    """
    found: list[exp.Expr] = []
    while node.parent is not None:
        parent = node.parent
        if isinstance(parent, exp.If) and isinstance(parent.parent, exp.Case):
            case = parent.parent
            if case.meta.get(OWN):
                node = case
                continue
            before = _before(case, parent)
            if node.arg_key == "true":
                found.append(_condition(case, parent))
            found += [_not(_condition(case, branch)) for branch in before]
            node = case
            continue
        if isinstance(parent, exp.Case) and node.arg_key == "default" and not parent.meta.get(OWN):
            found += [_not(_condition(parent, branch)) for branch in parent.args["ifs"]]
        values = _coalesced(parent)
        if values:
            position = next(i for i, value in enumerate(values) if value is node)
            found += [exp.Is(this=exp.paren(value.copy()), expression=exp.null()) for value in values[:position]]
        node = parent
    return found


def _before(case: exp.Expr, branch: exp.Expr) -> list[exp.Expr]:
    branches = case.args["ifs"]
    position = next(i for i, candidate in enumerate(branches) if candidate is branch)
    return list(branches[:position])


def _condition(case: exp.Expr, branch: exp.Expr) -> exp.Expr:
    operand = case.args.get("this")
    condition = branch.this.copy()
    if operand is None:
        return exp.paren(condition)
    return exp.paren(exp.EQ(this=exp.paren(operand.copy()), expression=exp.paren(condition)))


def _not(condition: exp.Expr) -> exp.Expr:
    return exp.Not(this=exp.Is(this=condition, expression=exp.true()))


def _coalesced(node: exp.Expr) -> list[exp.Expr]:
    if isinstance(node, exp.Coalesce):
        return [node.this, *node.expressions]
    if isinstance(node, exp.Anonymous) and str(node.this).upper() == "COALESCE":
        return list(node.expressions)
    return []
