"""Arrays in Spark's dialect: they are carried as PostgreSQL's texts, and functions in Python look into these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark.protocol import Expressions, Rule
from sql.spark.python.calls import call
from sql.spark.python.signatures import applied, as_text
from sql.spark.python.values import array_values
from sql.spark.types import IDENTICAL, INTEGERS, UNKNOWN, SparkType, Typed, base_type, column_type


def _made(expressions: Expressions, node: exp.Array) -> Typed:
    values = [expressions.render(item) for item in node.expressions]
    known = [value.type for value in values if value.type != UNKNOWN]
    if not known or any(type_.name != known[0].name or type_.name not in IDENTICAL for type_ in known):
        raise NotExpressible(f"ARRAY of {' and '.join(dict.fromkeys(type_.name for type_ in known)) or 'nothing'}")
    same = all(type_.equatable for type_ in known)
    type_ = replace(column_type(f"{known[0].declared}[]"), equatable=same, groupable=same)
    items = ["CAST(NULL AS STRING)" if value.type == UNKNOWN else as_text(value) for value in values]
    return Typed(call("array_made", *items), type_)


def _subscript(expressions: Expressions, node: exp.Bracket) -> Typed:
    array, subscripts = expressions.render(node.this), node.expressions
    if not array.type.name.endswith("[]") or len(subscripts) != 1:
        raise NotExpressible("several subscripts, or those of anything but an array")
    (subscript,) = subscripts
    if isinstance(subscript, exp.Slice):
        return _part(expressions, array, subscript)
    index = expressions.render(subscript)
    if isinstance(subscript, exp.Literal):
        # The parser counts from 0.
        index = replace(index, sql=f"CAST({int(subscript.name) + 1} AS INT)")
    found = applied("[]", [array, index])
    if found is None:
        raise NotExpressible(f"subscript of {array.type.declared}")
    return found


def _part(expressions: Expressions, array: Typed, node: exp.Slice) -> Typed:
    ends = [None if end is None else expressions.render(end) for end in (node.this, node.expression)]
    if any(end is not None and not (end.type.is_integer and end.type.name != "bigint") for end in ends):
        raise NotExpressible("subscript of anything but integers")
    numbers = (f"CAST({'NULL' if end is None else end.sql} AS INT)" for end in ends)
    missing = ("TRUE" if end is None else "FALSE" for end in ends)
    return Typed(call("array_part", array.sql, *numbers, *missing), array.type)


def _joined(expressions: Expressions, node: exp.ArrayConcat) -> Typed:
    values = [expressions.render(each) for each in (node.this, *node.expressions)]
    found = applied("array_cat", values)
    if found is None:
        raise NotExpressible("function array_cat")
    return found


def written_array(text: str, target: SparkType) -> str | None:
    """A literal of an array as PostgreSQL writes the value, None where that is not known.

    >>> written_array("{ 1, +2}", SparkType("integer[]")), written_array("{a,NULL}", SparkType("text[]"))
    ('{1,2}', '{a,NULL}')
    """
    element = base_type(target.name.removesuffix("[]"))
    if element not in (*INTEGERS, "text") or not text.startswith("{"):
        return None
    try:
        array = array_values.parsed(text)
        if element != "text":
            array.items = [None if item is None else str(int(item)) for item in array.items]
        elif array_values.written(array) != text:
            return None
    except (ValueError, IndexError):
        return None
    return array_values.written(array)


def member_of(item: Typed, array: Typed) -> Typed:
    """`item = ANY (array)`. Raises NotExpressible."""
    found = applied("any", [item, array])
    if found is None:
        raise NotExpressible(f"ANY or ALL over {array.type.declared}")
    return found


ARRAY_RULES: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    exp.Array: (_made, ("expressions", "bracket_notation")),
    exp.Bracket: (_subscript, ("this", "expressions", "offset")),
    exp.ArrayConcat: (_joined, ("this", "expressions")),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
