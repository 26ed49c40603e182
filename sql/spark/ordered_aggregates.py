"""string_agg and array_agg in Spark's dialect: `listagg`, in an order that leaves no choice.

Spark has arrays as PostgreSQL's text, and so an array of values is a list of their texts, as `array_in` reads them. The
compiler ends each ORDER BY with the arguments (`sql.operators.aggregates.call`): the order of peers does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark.dates import moment_text
from sql.spark.numbers.exact import shown
from sql.spark.protocol import Expressions, Rule
from sql.spark.types import DATE, TEXT, TIMESTAMP, TIMESTAMPTZ, UNKNOWN, SparkType, Typed, is_numeral
from sql.spark.values import converted, string
from sql.spark.windows import sort_key


def _string_agg(expressions: Expressions, node: exp.GroupConcat) -> Typed:
    separator = (node.args.get("separator") or exp.Null()).unnest()
    literal = separator.this.unnest() if isinstance(separator, exp.Cast) else separator
    if not isinstance(literal, exp.Literal) or not literal.is_string:
        raise NotExpressible("string_agg with a separator that is not a literal")
    rows = _rows(expressions, node, "string_agg")
    if not rows.value.type.is_text:
        raise NotExpressible(f"string_agg of {rows.value.type.name}")
    text, between = converted(rows.value, TEXT), string(literal.name)
    if rows.distinct:
        listed = f"array_join({rows.distinct}, {between})"
        return replace(text, sql=f"(CASE WHEN count({text.sql}){expressions.clause} > 0 THEN {listed} END)")
    return replace(text, sql=f"listagg({text.sql}, {between}){rows.order}{expressions.clause}")


def _array_agg(expressions: Expressions, node: exp.ArrayAgg) -> Typed:
    rows, clause = _rows(expressions, node, "array_agg"), expressions.clause
    value = rows.value
    type_ = SparkType(f"{value.type.declared}[]", equatable=False, ordered=False, groupable=False)
    if not rows.distinct:
        listed = f"listagg(coalesce({_element(value)}, 'NULL'), ','){rows.order}{clause}"
        return Typed(f"concat('{{', {listed}, '}}')", type_)
    each = _element(replace(value, sql="x"))
    null = f"CASE WHEN count({value.sql}){clause} < count(*){clause} THEN 'NULL' END"
    others = f"nullif(array_join(transform({rows.distinct}, x -> {each}), ','), '')"
    listed = f"{null}, {others}" if rows.nulls_first else f"{others}, {null}"
    return Typed(f"(CASE WHEN count(*){clause} > 0 THEN concat('{{', concat_ws(',', {listed}), '}}') END)", type_)


@dataclass(frozen=True, slots=True)
class _Rows:
    """What an aggregate reads: ``value`` in the ``order``, or the ``distinct`` values as an array without NULL."""

    value: Typed
    order: str = ""
    distinct: str = ""
    nulls_first: bool = False


def _rows(expressions: Expressions, node: Any, name: str) -> _Rows:
    """Raises NotExpressible where the order could leave a choice."""
    plain, argument = expressions.with_clause(""), node.this
    items = argument.expressions if isinstance(argument, exp.Order) else []
    argument = argument.this if isinstance(argument, exp.Order) else argument
    if isinstance(argument, exp.Distinct):
        items = items or [exp.Ordered(this=each) for each in argument.expressions]
        value, (item, *more) = plain.render(argument.expressions[0]), items
        key = plain.render(item.this)
        sort_key(key, item)
        if more or key.sql != value.sql:
            raise NotExpressible(f"function {name} of DISTINCT values in another order")
        ascending = "false" if item.args.get("desc") else "true"
        distinct = f"sort_array(collect_set({value.sql}){expressions.clause}, {ascending})"
        return _Rows(value, distinct=distinct, nulls_first=bool(item.args.get("nulls_first")))
    if not items:
        raise NotExpressible(f"function {name} without ORDER BY")
    value, keys = plain.render(argument), [plain.render(item.this) for item in items]
    ordered = ", ".join(sort_key(key, item) for key, item in zip(keys, items, strict=True))
    if value.sql not in (key.sql for key in keys):
        raise NotExpressible(f"function {name} in an order that may leave ties")
    return _Rows(value, f" WITHIN GROUP (ORDER BY {ordered})")


def _element(value: Typed) -> str:
    """A value as an array's text has it, NULL if it is."""
    if value.type.is_number:
        return shown(value) if value.type.name == "numeric" else f"CAST({value.sql} AS STRING)"
    if value.type.name in ("boolean", "uuid"):
        return f"CAST({value.sql} AS STRING)"
    if value.type.name == "text":
        return f"concat('\"', replace(replace({value.sql}, '\\\\', '\\\\\\\\'), '\"', '\\\\\"'), '\"')"
    if value.type in (DATE, TIMESTAMP, TIMESTAMPTZ):
        return f"concat('\"', {moment_text(value).sql}, '\"')"
    raise NotExpressible(
        f"array_agg of {'numeric' if is_numeral(value.type) or value.type == UNKNOWN else value.type.name}"
    )


ORDERED_AGGREGATES: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    exp.GroupConcat: (_string_agg, ("this", "separator")),
    exp.ArrayAgg: (_array_agg, ("this",)),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
