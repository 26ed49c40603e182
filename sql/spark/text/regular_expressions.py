"""Literal regular expressions in Spark's dialect, by functions in Python: others would read them in other ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark.protocol import Expressions, Rule
from sql.spark.python.calls import call
from sql.spark.python.values import regular_values
from sql.spark.text.collations import ASCII
from sql.spark.types import BOOLEAN, INTEGER, TEXT, Typed, column_type
from sql.spark.values import converted, string

_SHOWN = replace(TEXT, ordered=False)


def matches(expressions: Expressions, text: Typed, pattern: str, flags: str = "") -> Typed:
    """Whether a text has a match. Raises NotExpressible."""
    text, options = _text(expressions, text), string(flags)
    return Typed(
        call("regular_found", text.sql, _checked(pattern, flags, groups=False), options, _by(expressions, text)),
        BOOLEAN,
    )


def _text(expressions: Expressions, value: Typed) -> Typed:
    value = converted(value, TEXT) if value.type.name == "character" else value
    if value.type.name != "text" or not value.type.equatable:
        raise NotExpressible(f"regular expression of {value.type.name}, or under a collation that is not deterministic")
    return value


def _by(expressions: Expressions, text: Typed) -> str:
    """Whether the text's collation has the letters of ASCII alone."""
    return "TRUE" if expressions.environment.collations.casing_of(text.type.collation) == ASCII else "FALSE"


def literal(node: Any) -> str:
    """A literal text. Raises NotExpressible."""
    node = node.unnest()
    found = node.this.unnest() if isinstance(node, exp.Cast) else node
    if not isinstance(found, exp.Literal) or not found.is_string:
        raise NotExpressible("regular expression, or what goes with it, that is not a literal")
    return str(found.name)


def _checked(pattern: str, flags: str, *, groups: bool) -> str:
    """The pattern as a literal; without ``groups`` nothing is asked of these."""
    pattern = pattern if groups else regular_values.without_groups(pattern)
    try:
        regular_values.compiled(pattern, flags)
    except ValueError as reason:
        raise NotExpressible(f"regular expression '{pattern}': {reason}") from None
    return string(pattern)


def _replace(expressions: Expressions, node: exp.RegexpReplace) -> Typed:
    text = _text(expressions, expressions.render(node.this))
    other, modifiers = literal(node.args["replacement"]), node.args.get("modifiers")
    flags = "" if modifiers is None else literal(modifiers)
    pattern = _checked(literal(node.expression), flags, groups=any(f"\\{n}" in other for n in range(1, 10)))
    sql = call("regular_replaced", text.sql, pattern, string(other), string(flags), _by(expressions, text))
    return Typed(sql, replace(_SHOWN, collation=text.type.collation))


def _found(name: str, type_: Any) -> Rule:
    def render(expressions: Expressions, node: Any) -> Typed:
        text = _text(expressions, expressions.render(node.this))
        pattern = _checked(literal(node.expression), "", groups=False)
        result = replace(type_, collation=text.type.collation) if type_.is_text else type_
        return Typed(call(name, text.sql, pattern, _by(expressions, text)), result)

    return render


def part(expressions: Expressions, node: exp.Substring) -> Typed:
    """`substring(text FROM pattern)`. Raises NotExpressible."""
    text = _text(expressions, expressions.render(node.this))
    pattern = _checked(literal(node.args["start"]), "", groups=True)
    sql = call("regular_part", text.sql, pattern, _by(expressions, text))
    return Typed(sql, replace(_SHOWN, collation=text.type.collation))


def _match(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    text, flags = _text(expressions, expressions.render(nodes[0])), literal(nodes[2]) if len(nodes) == 3 else ""
    pattern = _checked(literal(nodes[1]), flags, groups=True)
    if "g" in flags:
        raise NotExpressible("regexp_match with the flag g")
    sql = call("regular_match", text.sql, pattern, string(flags), _by(expressions, text))
    return Typed(sql, column_type("text[]"))


def _split(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    if len(nodes) != 2:
        raise NotExpressible("regexp_split_to_array with flags")
    text = _text(expressions, expressions.render(nodes[0]))
    pattern = _checked(literal(nodes[1]), "", groups=False)
    return Typed(call("regular_split", text.sql, pattern, _by(expressions, text)), column_type("text[]"))


def similar(pattern: str) -> str:
    """The regular expression of a pattern of SIMILAR TO, in which a backslash escapes. Raises NotExpressible.

    >>> similar("(a|b)%_.")
    '^(?:(a|b).*.\\\\\\\\.)$'
    """
    if "\\" in pattern or '"' in pattern:
        raise NotExpressible("SIMILAR TO with escapes")
    others = {"%": ".*", "_": ".", ".": r"\\.", "^": r"\\^", "$": r"\\$"}
    return f"^(?:{''.join(others.get(letter, letter) for letter in pattern)})$"


REGULAR_EXPRESSIONS: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    exp.RegexpReplace: (_replace, ("this", "expression", "replacement", "modifiers", "single_replace")),
    exp.RegexpCount: (_found("regular_count", INTEGER), ("this", "expression")),
    exp.RegexpSubstr: (_found("regular_whole", _SHOWN), ("this", "expression")),
    exp.RegexpInstr: (_found("regular_place", INTEGER), ("this", "expression")),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""

REGULAR_FUNCTIONS = {"regexp_match": _match, "regexp_split_to_array": _split}
"""By PostgreSQL's names."""
