"""Aggregate calls in Spark's dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlglot import exp

from sql.canonical.written import read
from sql.errors import NotExpressible
from sql.operators.aggregates.accumulators import scale_digits
from sql.spark.numbers.exact import average_of, decimal_of, scale_of, sum_of
from sql.spark.numbers.wide import is_wide, wide_sum
from sql.spark.protocol import Expressions, Rule
from sql.spark.python.calls import call
from sql.spark.python.intervals import INTERVAL, totals
from sql.spark.statistics import ordered_floats
from sql.spark.types import BIGINT, BOOLEAN, NUMERAL, Display, SparkType, Typed
from sql.spark.user_defined.types import label_at, place_of


def _filter(expressions: Expressions, node: exp.Filter) -> Typed:
    aggregate = node.this
    if not isinstance(aggregate, exp.AggFunc):
        raise NotExpressible("FILTER")
    condition = expressions.once(expressions.boolean(node.expression.this))
    return expressions.with_clause(f" FILTER (WHERE {condition})").render(aggregate)


def _argument(expressions: Expressions, node: Any) -> tuple[str, Typed]:
    """DISTINCT or nothing, and what is aggregated."""
    inner = expressions.with_clause("")
    if isinstance(node.this, exp.Distinct):
        if len(node.this.expressions) != 1 or node.this.args.get("on"):
            raise NotExpressible("DISTINCT over several columns in an aggregate")
        value = inner.render(node.this.expressions[0])
        if not value.type.groupable:
            raise NotExpressible(f"DISTINCT over {value.type.name}")
        return "DISTINCT ", _before(expressions, value)
    return "", _before(expressions, inner.render(node.this))


def _before(expressions: Expressions, value: Typed) -> Typed:
    """The value, computed for each row before; behind FILTER for those alone that it leaves."""
    return value if expressions.clause else replace(value, sql=expressions.once(value.sql))


def _count(expressions: Expressions, node: exp.Count) -> Typed:
    if isinstance(node.this, exp.Star):
        return Typed(f"count(*){expressions.clause}", BIGINT)
    distinct, value = _argument(expressions, node)
    return Typed(f"count({distinct}{value.sql}){expressions.clause}", BIGINT)


def _sum(expressions: Expressions, node: exp.Sum) -> Typed:
    if (digits := _scale_digits(expressions, node.this)) is not None:
        return digits
    if isinstance(node.this, exp.Order):
        return ordered_floats(expressions, node.this, "sum")
    distinct, value = _argument(expressions, node)
    if value.type == INTERVAL:
        return Typed(call("interval_total", *totals(expressions, value)), INTERVAL)
    if is_wide(value) and not distinct and (total := wide_sum(value, expressions.clause)):
        return total
    return sum_of(value, distinct, expressions.clause)


def _scale_digits(expressions: Expressions, node: Any) -> Typed | None:
    """The count of values of each display scale, as the number that `auxiliaries.scale_digits` sums up: in text.

    In a delta each value counts by its weight, or that negated, of which there are only positive ones then.
    """
    weight = None
    if isinstance(node, exp.Mul):
        weight, node = expressions.with_clause("").render(node.expression), node.this.unnest()
    scales = [call for call in node.find_all(exp.Anonymous) if call.name.lower() == "scale" and call.expressions]
    column = scales[0].expressions[0] if scales else None
    if not isinstance(column, exp.Column):
        return None
    if node != read(scale_digits(column.sql("postgres"))):
        return None
    value = decimal_of(expressions.with_clause("").render(column))
    scale = scale_of(value)
    counts = []
    for n in range(value.type.scale, -1, -1):
        which = f"CASE WHEN {value.sql} IS NOT NULL AND {scale} = {n} THEN"
        count = f"count({which} 1 END){expressions.clause}"
        if weight is not None:
            count = f"coalesce(sum({which} {weight.sql} END){expressions.clause}, CAST(0 AS BIGINT))"
        counts.append(f"lpad(CAST({count} AS STRING), 20, '0')")
    number = f"concat({', '.join(counts)})"
    return Typed(f"CASE WHEN count({value.sql}){expressions.clause} > 0 THEN {number} END", NUMERAL)


def _avg(expressions: Expressions, node: exp.Avg) -> Typed:
    if isinstance(node.this, exp.Order):
        return ordered_floats(expressions, node.this, "avg")
    distinct, value = _argument(expressions, node)
    if value.type == INTERVAL:
        count = f"CAST(count({value.sql}){expressions.clause} AS BIGINT)"
        return Typed(call("interval_average", *totals(expressions, value), count), INTERVAL)
    return average_of(value, expressions.layered("avg"), distinct, expressions.clause)


def _min(expressions: Expressions, node: exp.Min) -> Typed:
    return _extremum(expressions, node, "min")


def _max(expressions: Expressions, node: exp.Max) -> Typed:
    return _extremum(expressions, node, "max")


def _extremum(expressions: Expressions, node: exp.AggFunc, name: str) -> Typed:
    _, value = _argument(expressions, node)
    type_ = value.type
    if type_.enum and not node.expressions:
        place = place_of(value, expressions.environment).sql
        return label_at(f"{name}({place}){expressions.clause}", type_, expressions.environment)
    if node.expressions or not (type_.ordered and type_.groupable) or type_.name in ("boolean", "uuid"):
        collated = " under this collation" if type_.is_text and not type_.ordered else ""
        raise NotExpressible(f"{name} of {type_.name}{collated}")
    if type_.display is Display.KEPT:
        # Which of 1.0 and 1.00 it is depends on the order of rows.
        type_ = SparkType(type_.name, type_.precision, type_.scale, display=Display.LOST)
    return Typed(f"{name}({value.sql}){expressions.clause}", type_)


def _every(expressions: Expressions, node: exp.LogicalAnd) -> Typed:
    return Typed(f"bool_and({_condition(expressions, node)}){expressions.clause}", BOOLEAN)


def _any(expressions: Expressions, node: exp.LogicalOr) -> Typed:
    return Typed(f"bool_or({_condition(expressions, node)}){expressions.clause}", BOOLEAN)


def _condition(expressions: Expressions, node: exp.AggFunc) -> str:
    return _before(expressions, Typed(expressions.with_clause("").boolean(node.this), BOOLEAN)).sql


AGGREGATES: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    exp.Filter: (_filter, ("this", "expression")),
    exp.Count: (_count, ("this",)),
    exp.Sum: (_sum, ("this",)),
    exp.Avg: (_avg, ("this",)),
    exp.Min: (_min, ("this",)),
    exp.Max: (_max, ("this",)),
    exp.LogicalAnd: (_every, ("this",)),
    exp.LogicalOr: (_any, ("this",)),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
