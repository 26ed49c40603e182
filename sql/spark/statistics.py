"""Aggregates of all values of a group in Spark's dialect: variances, sums in an order, ordered-set aggregates, jsonb.

Variances are computed from a count, a sum and a sum of squares, as PostgreSQL computes them of exact numbers. What
depends on an order is a list of texts, `listagg`, that a function in Python goes through.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark.numbers.exact import arithmetic, decimal_of, shown, sum_of
from sql.spark.protocol import Expressions, Rule
from sql.spark.python.calls import call
from sql.spark.python.jsonb import JSONB, as_jsonb
from sql.spark.python.signatures import as_text, from_text
from sql.spark.types import FLOATS, NUMERAL, Display, SparkType, Typed, is_numeral
from sql.spark.user_defined.types import JsonbAgg, Picked
from sql.spark.windows import sort_key

_VARIANCES = {
    exp.Variance: (True, False), exp.VariancePop: (False, False), exp.Stddev: (True, True),
    exp.StddevSamp: (True, True), exp.StddevPop: (False, True),
}  # fmt: skip
"""Whether it is that of a sample, and whether its root is asked for."""


def _variance(expressions: Expressions, node: exp.AggFunc) -> Typed:
    sample, root = _VARIANCES[type(node)]
    if isinstance(node.this, exp.Distinct):
        raise NotExpressible("a variance of DISTINCT values")
    value = decimal_of(expressions.with_clause("").render(node.this))
    if not value.type.is_number:
        raise NotExpressible(f"a variance of {value.type.name}")
    value = Typed(f"CAST({value.sql} AS {(wide := value.type.as_numeric()).spark})", wide, value.display)
    clause = expressions.clause
    sums = (_shown(sum_of(each, "", clause)) for each in (value, arithmetic(value, value, "*")))
    flags = ("TRUE" if each else "FALSE" for each in (sample, root))
    return Typed(call("decimal_variance", f"count({value.sql}){clause}", *sums, *flags), NUMERAL)


def _shown(value: Typed) -> str:
    if is_numeral(value.type):
        return value.sql
    return shown(value) if value.type.name == "numeric" else f"CAST({value.sql} AS STRING)"


def ordered_floats(expressions: Expressions, node: exp.Order, name: str) -> Typed:
    """`sum` or `avg` of floating point numbers in an order. Raises NotExpressible."""
    plain = expressions.with_clause("")
    value = plain.render(node.this)
    if value.type.name != "double precision":
        raise NotExpressible(f"{name} of {value.type.name} in an order")
    listed = _listed(expressions, f"CAST({value.sql} AS STRING)", node.expressions, value)
    function = {"sum": "float_total", "avg": "float_average"}[name]
    return Typed(call(function, listed), SparkType("double precision", groupable=False))


def _listed(
    expressions: Expressions, text: str, items: list[Any], value: Typed | None = None, between: str = ","
) -> str:
    """Texts of all rows, with ``between`` between them, in an order, in which numbers equal to ``value`` are alike."""
    plain = expressions.with_clause("")
    keys = []
    for item in items:
        key = plain.render(item.this)
        if value is not None and key.sql == value.sql and key.type.name in FLOATS:
            key = replace(key, type=replace(key.type, groupable=True))
        keys.append(sort_key(key, item))
    return f"listagg({text}, '{between}') WITHIN GROUP (ORDER BY {', '.join(keys)}){expressions.clause}"


_LISTED = ("smallint", "integer", "bigint", "numeric", "date", "timestamp without time zone", "double precision")


def _within_group(expressions: Expressions, node: exp.WithinGroup) -> Typed:
    function, items = node.this, node.expression.expressions
    if len(items) != 1:
        raise NotExpressible("an ordered-set aggregate by several columns")
    value = expressions.with_clause("").render(items[0].this)
    if value.type.name not in _LISTED or value.type.display is not Display.FIXED:
        raise NotExpressible(f"an ordered-set aggregate of {value.type.name}")
    is_float = value.type.name == "double precision"
    text = f"CAST({value.sql} AS STRING)" if is_float else as_text(value)
    listed = _listed(expressions, text, items, value)
    if isinstance(function, exp.PercentileCont) and is_float:
        fraction = expressions.with_clause("").render(function.this)
        return Typed(call("float_percentile", listed, fraction.sql), value.type)
    if is_float:
        raise NotExpressible("percentile_disc or mode of double precision")
    if isinstance(function, exp.PercentileDisc):
        fraction = expressions.with_clause("").render(function.this)
        found = call("list_percentile", listed, fraction.sql)
    elif isinstance(function, exp.Mode):
        found = call("list_mode", listed)
    else:
        raise NotExpressible(f"an ordered-set aggregate {function.sql('postgres')}")
    if value.type.name == "numeric":
        return Typed(f"CAST({found} AS {value.type.spark})", value.type)
    return from_text(found, value.type.name)


def _jsonb_agg(expressions: Expressions, node: JsonbAgg) -> Typed:
    plain, order = expressions.with_clause(""), node.this
    if not isinstance(order, exp.Order):
        raise NotExpressible("function jsonb_agg without ORDER BY")
    value, keys = plain.render(order.this), [plain.render(item.this).sql for item in order.expressions]
    if value.sql not in keys:
        raise NotExpressible("function jsonb_agg in an order that may leave ties")
    listed = _listed(expressions, f"coalesce({as_jsonb(value)}, 'null')", order.expressions, between=", ")
    return Typed(f"concat('[', {listed}, ']')", JSONB)


def _jsonb_object_agg(expressions: Expressions, node: exp.JSONBObjectAgg) -> Typed:
    plain, order = expressions.with_clause(""), node.expression
    if not isinstance(order, exp.Order):
        raise NotExpressible("function jsonb_object_agg without ORDER BY")
    key, value = plain.render(node.this), plain.render(order.this)
    keys = [plain.render(item.this).sql for item in order.expressions]
    if key.type.name != "text" or key.sql not in keys or value.sql not in keys:
        raise NotExpressible(
            "function jsonb_object_agg in an order that may leave ties, or with keys that are not text"
        )
    none = f"CAST({_NO_KEY} AS STRING)"
    pair = f"concat(coalesce({call('jsonb_of_text', key.sql)}, {none}), ',', coalesce({as_jsonb(value)}, 'null'))"
    listed = _listed(expressions, pair, order.expressions)
    return Typed(call("jsonb_gathered", f"concat('[', {listed}, ']')"), JSONB)


_NO_KEY = "raise_error('field name must not be null')"


def alike(key: Typed) -> str:
    """What equal values of a type have in common where they can look different, nothing of other types."""
    if key.type == JSONB:
        return call("jsonb_normal", key.sql)
    if is_numeral(key.type) or key.type.display is Display.KEPT:
        return call("decimal_alike", _shown(key))
    return call("float_alike", key.sql) if key.type.name == "double precision" else ""


def is_written_out(key: Typed) -> bool:
    """Whether it is text that looks as the value does."""
    return key.type == JSONB or is_numeral(key.type)


def _picked(expressions: Expressions, node: Picked) -> Typed:
    """One of a group's equal values: the first by its text."""
    value = expressions.render(node.this)
    if value.type.groupable and value.type.display is Display.FIXED:
        return value
    if is_written_out(value):
        return replace(value, sql=f"min({expressions.once(value.sql)}){expressions.clause}")
    if value.type.name == "numeric":
        return Typed(f"min({shown(value)}){expressions.clause}", NUMERAL)
    if value.type.name == "double precision":
        return replace(value, sql=f"CAST(min(CAST({value.sql} AS STRING)){expressions.clause} AS DOUBLE)")
    raise NotExpressible(f"grouping by {value.type.name}, whose equal values can look different")


STATISTICS: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    **{kind: (_variance, ("this",)) for kind in _VARIANCES},
    exp.WithinGroup: (_within_group, ("this", "expression")),
    exp.JSONBObjectAgg: (_jsonb_object_agg, ("this", "expression")),
    JsonbAgg: (_jsonb_agg, ("this",)),
    Picked: (_picked, ("this",)),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
