"""jsonb in Spark's dialect: it is carried as PostgreSQL's text, and functions in Python look into that."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark.dates import moment_text
from sql.spark.protocol import Expressions, Rule
from sql.spark.python.calls import call
from sql.spark.python.signatures import applied
from sql.spark.text.collations import DEFAULT
from sql.spark.types import BOOLEAN, DATE, INTEGER, TEXT, TIMESTAMP, UNKNOWN, SparkType, Typed
from sql.spark.values import converted, string

JSONB = SparkType("jsonb", equatable=False, ordered=False, groupable=False)
_SHOWN = replace(TEXT, ordered=False)
"""Text in the database's own collation, whichever that is."""

_BY_KEY: Mapping[type[Any], tuple[str, str, SparkType]] = {
    exp.JSONExtract: ("jsonb_member", "jsonb_element", JSONB),
    exp.JSONExtractScalar: ("jsonb_member_text", "jsonb_element_text", _SHOWN),
}
_BY_PATH: Mapping[type[Any], tuple[str, SparkType]] = {
    exp.JSONBExtract: ("jsonb_path", JSONB),
    exp.JSONBExtractScalar: ("jsonb_path_text", _SHOWN),
}
_BY_KEYS: Mapping[type[Any], str] = {
    exp.JSONBContainsAnyTopKeys: "jsonb_has_any",
    exp.JSONBContainsAllTopKeys: "jsonb_has_all",
}
_PLAIN_ELEMENT = re.compile(r'[^\s{}",\\]+')


def _value(expressions: Expressions, node: Any, what: str) -> Typed:
    value = expressions.render(node)
    if value.type != JSONB:
        raise NotExpressible(f"{what} of {value.type.name}")
    return value


def _extract(expressions: Expressions, node: exp.Expression) -> Typed:
    by_key, by_index, type_ = _BY_KEY[type(node)]
    value, key = _value(expressions, node.this, "-> or ->>"), node.expression
    if isinstance(key, exp.JSONPath):
        # A literal index, as the parser has read it.
        _, *parts = key.expressions
        if len(parts) != 1 or not isinstance(parts[0], exp.JSONPathSubscript) or not isinstance(parts[0].this, int):
            raise NotExpressible("a path within jsonb")
        return Typed(call(by_index, value.sql, f"CAST({parts[0].this} AS INT)"), type_)
    found = expressions.render(key)
    if found.type == UNKNOWN or not (found.type.name == "text" or found.type.is_integer):
        raise NotExpressible(f"-> or ->> with {found.type.name}")
    if type_.is_text:
        type_ = replace(type_, collation=found.type.collation)
    return Typed(call(by_key if found.type.name == "text" else by_index, value.sql, found.sql), type_)


def _extract_path(expressions: Expressions, node: exp.Expression) -> Typed:
    name, type_ = _BY_PATH[type(node)]
    value = _value(expressions, node.this, "#> or #>>")
    return Typed(call(name, value.sql, _listed(node.expression, "#> or #>>")), type_)


def _has_key(expressions: Expressions, node: exp.JSONBContainsTopKey) -> Typed:
    value, key = _value(expressions, node.this, "?"), expressions.render(node.expression)
    if key.type.name != "text":
        raise NotExpressible(f"? with {key.type.name}")
    return Typed(call("jsonb_has_key", value.sql, key.sql), BOOLEAN)


def _has_keys(expressions: Expressions, node: exp.Expression) -> Typed:
    value = _value(expressions, node.this, "?| or ?&")
    return Typed(call(_BY_KEYS[type(node)], value.sql, _listed(node.expression, "?| or ?&")), BOOLEAN)


def _contains(expressions: Expressions, node: exp.Expression) -> Typed:
    values = [expressions.render(each) for each in (node.this, node.expression)]
    whole, part = values if isinstance(node, exp.ArrayContainsAll) else values[::-1]
    if (whole.type, part.type) == (JSONB, JSONB):
        return Typed(call("jsonb_contains", whole.sql, part.sql), BOOLEAN)
    found = applied("@>", [whole, part])
    if found is None:
        raise NotExpressible(f"@> or <@ of {values[0].type.name}")
    return found


def less(expressions: Expressions, left: Typed, operator: str, right: Typed) -> Typed:
    """A comparison of the order of two values. Raises NotExpressible."""
    if not expressions.environment.collations.ordered(DEFAULT):
        raise NotExpressible("order of jsonb under a collation other than C")
    return Typed(f"({call('jsonb_compared', left.sql, right.sql)} {operator} 0)", BOOLEAN)


def _without_path(expressions: Expressions, node: exp.JSONBDeleteAtPath) -> Typed:
    value = _value(expressions, node.this, "#-")
    return Typed(call("jsonb_without_path", value.sql, _listed(node.expression, "#-")), JSONB)


def _set(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    value, new = (_value(expressions, node, "jsonb_set") for node in (nodes[0], nodes[2]))
    create = nodes[3].unnest() if len(nodes) > 3 else exp.true()
    if not isinstance(create, exp.Boolean):
        raise NotExpressible("jsonb_set with a last argument that is not a literal")
    path = _listed(nodes[1], "jsonb_set")
    return Typed(call("jsonb_with_path", value.sql, path, new.sql, "TRUE" if create.this else "FALSE"), JSONB)


def as_jsonb(value: Typed) -> str:
    """What `to_jsonb` makes of a value, NULL of NULL. Raises NotExpressible."""
    type_ = value.type
    if type_ in (JSONB, UNKNOWN):
        return value.sql if type_ == JSONB else "CAST(NULL AS STRING)"
    if type_.is_number or type_ == BOOLEAN:
        return converted(value, TEXT).sql
    if type_.name == "text" or type_.enum:
        return call("jsonb_of_text", value.sql)
    if type_.name == "uuid" or type_ in (DATE, TIMESTAMP):
        text = value.sql if type_.name == "uuid" else moment_text(value).sql
        return f"concat('\"', replace({text}, ' ', 'T'), '\"')"
    raise NotExpressible(f"jsonb of {type_.name}")


def _to_jsonb(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    return Typed(as_jsonb(expressions.render(nodes[0])), JSONB)


def _build_array(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    items = [as_jsonb(expressions.render(node)) for node in nodes]
    return Typed(call("jsonb_array", *items) if items else "'[]'", JSONB)


def _build_object(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    values = [expressions.render(node) for node in nodes]
    if len(values) % 2 or any(value.type.name != "text" for value in values[::2]):
        raise NotExpressible("jsonb_build_object with a key that is not text")
    items = [as_jsonb(value) if n % 2 else value.sql for n, value in enumerate(values)]
    return Typed(call("jsonb_entries", *items) if items else "'{}'", JSONB)


def same_look(value: Typed) -> Typed:
    """What jsonb is compared for equality by, as text."""
    return Typed(call("jsonb_normal", value.sql), replace(TEXT, ordered=False))


def _listed(node: Any, what: str) -> str:
    """A literal array of text, as a literal of JSON. Raises NotExpressible."""
    node = node.unnest()
    if isinstance(node, exp.Array):
        items = [item.this.unnest() if isinstance(item, exp.Cast) else item for item in node.expressions]
        if not all(isinstance(item, exp.Literal) and item.is_string for item in items):
            raise NotExpressible(f"{what} with anything but literals")
        return string(json.dumps([item.name for item in items]))
    literal = node.this.unnest() if isinstance(node, exp.Cast) else node
    if not isinstance(literal, exp.Literal) or not re.fullmatch(r"\{.*\}", literal.name, re.DOTALL):
        raise NotExpressible(f"{what} with anything but a literal")
    elements = literal.name[1:-1].split(",") if literal.name != "{}" else []
    if any(not _PLAIN_ELEMENT.fullmatch(each) or each.upper() == "NULL" for each in elements):
        raise NotExpressible(f"{what} with '{literal.name}'")
    return string(json.dumps(elements))


def _path_function(name: str, type_: SparkType) -> Callable[[Expressions, Sequence[Any]], Typed]:
    def render(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
        if len(nodes) != 2 or not isinstance(nodes[1], exp.Variadic):
            raise NotExpressible("jsonb_extract_path with anything but literals")
        value = _value(expressions, nodes[0], "jsonb_extract_path")
        return Typed(call(name, value.sql, _listed(nodes[1].this, "jsonb_extract_path")), type_)

    return render


def _typeof(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    value = _value(expressions, nodes[0], "jsonb_typeof")
    return Typed(call("jsonb_kind", value.sql), _SHOWN)


def _array_length(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    value = _value(expressions, nodes[0], "jsonb_array_length")
    return Typed(call("jsonb_length", value.sql), INTEGER)


JSONB_RULES: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    **{kind: (_extract, ("this", "expression", "only_json_types")) for kind in _BY_KEY},
    **{kind: (_extract_path, ("this", "expression")) for kind in _BY_PATH},
    **{kind: (_has_keys, ("this", "expression")) for kind in _BY_KEYS},
    exp.ArrayContainsAll: (_contains, ("this", "expression")),
    exp.ArrayContainedBy: (_contains, ("this", "expression")),
    exp.JSONBDeleteAtPath: (_without_path, ("this", "expression")),
    exp.JSONBContainsTopKey: (_has_key, ("this", "expression")),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""

JSONB_FUNCTIONS: Mapping[str, Callable[[Expressions, Sequence[Any]], Typed]] = {
    "jsonb_typeof": _typeof,
    "jsonb_set": _set,
    "to_jsonb": _to_jsonb,
    "jsonb_build_array": _build_array,
    "jsonb_build_object": _build_object,
    "jsonb_array_length": _array_length,
    "jsonb_extract_path": _path_function("jsonb_path", JSONB),
    "jsonb_extract_path_text": _path_function("jsonb_path_text", _SHOWN),
}
"""By PostgreSQL's names."""
