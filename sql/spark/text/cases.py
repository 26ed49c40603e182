"""upper, lower, initcap and matching without regard to case in Spark's dialect.

Where PostgreSQL changes the case of each character by itself (libc, and its own provider with simple mappings), it was
asked for all of them (`Casing`), and Spark is told to `translate`: what both know themselves differs, as for ß.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark.protocol import Expressions, Rule
from sql.spark.python.calls import call
from sql.spark.python.signatures import applied
from sql.spark.text.collations import ASCII, Casing
from sql.spark.text.patterns import same_everywhere
from sql.spark.text.regular_expressions import matches
from sql.spark.types import BOOLEAN, TEXT, SparkType, Typed
from sql.spark.values import converted, string


def _upper(expressions: Expressions, node: exp.Upper) -> Typed:
    value = expressions.render(node.this)
    if bound := applied("upper", [value]):
        return bound
    value = _as_text(value, "upper")
    return _translated(value, _casing(expressions, value.type, "upper").upper)


def _lower(expressions: Expressions, node: exp.Lower) -> Typed:
    value = expressions.render(node.this)
    if bound := applied("lower", [value]):
        return bound
    value = _as_text(value, "lower")
    return _translated(value, _casing(expressions, value.type, "lower").lower)


def _translated(value: Typed, letters: tuple[str, str]) -> Typed:
    return Typed(f"translate({value.sql}, {string(letters[0])}, {string(letters[1])})", value.type)


def _initcap(expressions: Expressions, node: exp.Initcap) -> Typed:
    value = _text(expressions, node, "initcap")
    casing = _casing(expressions, value.type, "initcap")
    if not casing.ordinary:
        raise NotExpressible("initcap under a collation that treats ASCII in its own way")
    # Which other characters begin a word is not known.
    return Typed(call("initcap" if casing == ASCII else "initcap_of_ascii", value.sql), value.type)


def _ilike(expressions: Expressions, node: exp.ILike) -> Typed:
    value, pattern = _text(expressions, node, "ILIKE"), _literal(node.expression)
    if pattern is None or "\\" in pattern:
        raise NotExpressible("ILIKE with a pattern that is not a literal without backslashes")
    casing = _casing(expressions, value.type, "ILIKE")
    lower = _translated(value, casing.lower).sql
    sql = f"({lower} LIKE {string(casing.lowered(pattern))})"
    return Typed(f"(NOT {sql})" if node.args.get("negate") else sql, BOOLEAN)


def _matches(expressions: Expressions, node: exp.RegexpILike) -> Typed:
    value, pattern = _text(expressions, node, "~*"), _literal(node.expression)
    if pattern is None:
        raise NotExpressible("regular expression that is not a literal")
    if not _casing(expressions, value.type, "~*").ordinary:
        raise NotExpressible("~* under a collation that treats ASCII in its own way")
    try:
        return Typed(f"({value.sql} RLIKE {string(same_everywhere(pattern, either_case=True))})", BOOLEAN)
    except NotExpressible:
        return matches(expressions, value, pattern, "i")


def _literal(node: Any) -> str | None:
    node = node.unnest()
    literal = node.this.unnest() if isinstance(node, exp.Cast) else node
    return str(literal.name) if isinstance(literal, exp.Literal) and literal.is_string else None


def _text(expressions: Expressions, node: Any, name: str) -> Typed:
    return _as_text(expressions.render(node.this), name)


def _as_text(value: Typed, name: str) -> Typed:
    if value.type.name == "character" and name in ("upper", "lower", "initcap"):
        value = converted(value, TEXT)
    if value.type.name != "text":
        raise NotExpressible(f"{name} of {value.type.name}")
    return value


def _casing(expressions: Expressions, type_: SparkType, name: str) -> Casing:
    casing = expressions.environment.collations.casing_of(type_.collation)
    if casing is None or not type_.equatable:
        raise NotExpressible(f"{name} under a collation that does not change each character by itself")
    return casing


CASES: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    exp.Upper: (_upper, ("this",)),
    exp.Lower: (_lower, ("this",)),
    exp.Initcap: (_initcap, ("this", "expression")),
    exp.ILike: (_ilike, ("this", "expression", "negate")),
    exp.RegexpILike: (_matches, ("this", "expression")),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
