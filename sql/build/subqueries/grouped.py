"""Aggregates over the rows that are equal to an outer row: one aggregate for all outer rows, no D.

``(SELECT sum(x) FROM t WHERE t.k = o.k AND …)`` is the sum of o's group in ``SELECT k, sum(x) FROM t … GROUP BY k``,
and NULL, or 0 for a count, if there is no such group (W. Kim, 1982; R. Ganski, H. Wong, 1987).

Groups that no outer row asks for are computed as well. So nothing in the aggregates may raise an error that
PostgreSQL, which computes what it is asked for, would not raise: they are over columns and comparisons of columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from sql.base.columns import Field
from sql.build.protocol import Builder, Subplan
from sql.build.subqueries.domain import reference
from sql.build.subqueries.simple_select import split_conditions
from sql.canonical.dialect import generate
from sql.canonical.local_nodes import own, own_aggregates
from sql.canonical.row_expressions import aggregate_name
from sql.operators import Operator

_COUNTS = frozenset({"count", "regr_count"})
_NULL_WITHOUT_ROWS = frozenset(
    [
        "any_value",
        "array_agg",
        "avg",
        "bit_and",
        "bit_or",
        "bit_xor",
        "bool_and",
        "bool_or",
        "corr",
        "covar_pop",
        "covar_samp",
        "every",
        "json_agg",
        "json_object_agg",
        "jsonb_agg",
        "jsonb_object_agg",
        "max",
        "min",
        "mode",
        "percentile_cont",
        "percentile_disc",
        "regr_avgx",
        "regr_avgy",
        "regr_intercept",
        "regr_r2",
        "regr_slope",
        "regr_sxx",
        "regr_sxy",
        "regr_syy",
        "stddev",
        "stddev_pop",
        "stddev_samp",
        "string_agg",
        "sum",
        "var_pop",
        "var_samp",
        "variance",
    ]
)
_HARMLESS = (
    exp.Column,
    exp.Identifier,
    exp.Star,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Paren,
    exp.Order,
    exp.Ordered,
    exp.Distinct,
    exp.Where,
    exp.And,
    exp.Or,
    exp.Not,
    exp.Is,
    exp.EQ,
    exp.NEQ,
    exp.GT,
    exp.GTE,
    exp.LT,
    exp.LTE,
)
_STRICT = (exp.Column, exp.Identifier, exp.Literal, exp.Paren, exp.Neg, exp.Add, exp.Sub, exp.Mul, exp.Div)


@dataclass(frozen=True, slots=True)
class KeyedAggregate:
    """The groups, the conditions that one is an outer row's, and the results where it is NULL if there is none.

    ``strict``: without a group the results are NULL.
    """

    rows: Operator
    conditions: tuple[exp.Expr, ...]
    values: tuple[exp.Expr, ...]
    strict: bool


def keyed_aggregate(
    builder: Builder, subplan: Subplan, query: exp.Expr, arguments: Sequence[exp.Expr]
) -> KeyedAggregate | None:
    """The aggregate by key that a scalar subquery is, None if it is not one."""
    calls = _plain_calls(query, builder.special) if subplan.parameters else {}
    split = _split(query, subplan) if calls and isinstance(query, exp.Select) else None
    if split is None:
        return None
    keys, conditions_within = split
    inner = _by_keys(query, [key for _, key in keys], [*calls.values()], conditions_within)
    relation = builder.query(inner, subplan.scope)
    fields = [f for _, f in relation.output]
    mine = dict(zip(subplan.parameters, arguments, strict=True))
    conditions = tuple(
        exp.EQ(this=mine[name].copy(), expression=reference(f)) for (name, _), f in zip(keys, fields, strict=False)
    )
    found = zip(calls.items(), fields[len(keys) :], strict=True)
    results = {text: _result(call, f, builder.special) for (text, call), f in found}
    values = tuple(node.unalias().transform(_replaced, results) for node in query.expressions)
    return KeyedAggregate(relation.operator, conditions, values, all(strict(v) for v in values))


def _plain_calls(query: exp.Expr, special: frozenset[str]) -> dict[str, exp.Expr]:
    """By their text, the aggregates of a query that gives out one row made of them and is nothing more; else none."""
    if type(query) is not exp.Select:
        return {}
    if any(query.args.get(key) for key in ("group", "having", "distinct", "limit", "offset", "order", "windows")):
        return {}
    if any(True for _ in own(query, exp.Window)) or any(e.find(exp.Query) for e in query.expressions):
        return {}
    calls = {generate(call): call for call in own_aggregates(query, special)}
    return calls if all(_harmless(call, special) for call in calls.values()) else {}


def _result(call: exp.Expr, column: Field, special: frozenset[str]) -> exp.Expr:
    """The value of an aggregate where it is NULL if there is no group: a count is 0 then."""
    if _function(call, special) not in _COUNTS:
        return reference(column)
    return exp.Anonymous(this="COALESCE", expressions=[reference(column), exp.Literal.number(0)])


def strict(node: exp.Expr) -> bool:
    """Whether an expression is surely NULL where one of its columns is."""
    return all(isinstance(part, _STRICT) for part in node.walk())


def _function(call: exp.Expr, special: frozenset[str]) -> str:
    while isinstance(call, exp.Filter | exp.WithinGroup):
        call = call.this
    return aggregate_name(call, special) or ""


def _harmless(call: exp.Expr, special: frozenset[str]) -> bool:
    inner = call
    while isinstance(inner, exp.Filter | exp.WithinGroup):
        inner = inner.this
    if _function(call, special) not in _COUNTS | _NULL_WITHOUT_ROWS:
        return False
    return all(part is inner or isinstance(part, (*_HARMLESS, exp.Filter, exp.WithinGroup)) for part in call.walk())


def _key(condition: exp.Expr, outer: str) -> tuple[str, exp.Expr]:
    """The parameter that a condition equates, and with what; an empty name if it does not."""
    if isinstance(condition, exp.EQ):
        for mine, theirs in ((condition.left, condition.right), (condition.right, condition.left)):
            mine, theirs = mine.unnest(), theirs.unnest()
            if not (isinstance(mine, exp.Column) and isinstance(theirs, exp.Column)):
                continue
            if mine.table == outer and theirs.table != outer:
                return mine.name, theirs
    return "", condition


def _split(query: exp.Select, subplan: Subplan) -> tuple[list[tuple[str, exp.Expr]], list[exp.Expr]] | None:
    """The keys that all outer columns are equated with, each beside the name of one, and the other conditions."""
    split = split_conditions(query, subplan.outer)
    if split is None:
        return None
    keys = [_key(condition, subplan.outer) for condition in split[1]]
    return (keys, split[0]) if keys and {name for name, _ in keys} == set(subplan.parameters) else None


def _by_keys(
    query: exp.Expr, keys: Sequence[exp.Expr], calls: Sequence[exp.Expr], conditions: Sequence[exp.Expr]
) -> exp.Expr:
    """The query with its calls for each key, of the rows that satisfy conditions."""
    inner = query.copy()
    items = [*keys, *calls]
    inner.set("expressions", [exp.alias_(item.copy(), f"c{i}", quoted=True) for i, item in enumerate(items)])
    inner.set("where", exp.Where(this=exp.and_(*(c.copy() for c in conditions), wrap=True)) if conditions else None)
    inner.set("group", exp.Group(expressions=[key.copy() for key in keys]))
    return inner


def _replaced(node: exp.Expr, results: Mapping[str, exp.Expr]) -> exp.Expr:
    """A call's result in its place."""
    found = results.get(generate(node))
    return found.copy() if found is not None else node
