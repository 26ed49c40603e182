"""Operations on the bits of whole numbers in Spark's dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark.numbers.exact import wider
from sql.spark.protocol import Expressions, Rule
from sql.spark.python.signatures import applied
from sql.spark.types import BIGINT, INTEGER, SMALLINT, TEXT, Typed

_OPERATORS: Mapping[type[Any], tuple[str, str]] = {
    exp.BitwiseAnd: ("&", "&"),
    exp.BitwiseOr: ("|", "|"),
    exp.BitwiseXor: ("#", "^"),
}
"""Of two numbers: what PostgreSQL calls it, and Spark."""

_BITS = {SMALLINT: 16, INTEGER: 32, BIGINT: 64}
_PLAIN = {type_.name: type_ for type_ in _BITS}


def _whole(expressions: Expressions, node: Any, what: str) -> Typed:
    value = expressions.render(node)
    if not value.type.is_integer:
        raise NotExpressible(f"{what} of {value.type.name}")
    return replace(value, type=_PLAIN[value.type.name])


def _binary(expressions: Expressions, node: exp.Binary) -> Typed:
    theirs, ours = _OPERATORS[type(node)]
    left, right = (_whole(expressions, side, theirs) for side in (node.left, node.right))
    type_ = wider(left.type, right.type)
    return Typed(f"(CAST({left.sql} AS {type_.spark}) {ours} CAST({right.sql} AS {type_.spark}))", type_)


def _not(expressions: Expressions, node: exp.BitwiseNot) -> Typed:
    value = _whole(expressions, node.this, "~")  # Sail's own leaves the type's range
    return replace(value, sql=f"({value.sql} ^ CAST(-1 AS {value.type.spark}))")


def _shift_left(expressions: Expressions, node: exp.BitwiseLeftShift) -> Typed:
    if of_ranges := applied("<<", [expressions.render(node.left), expressions.render(node.right)]):
        return of_ranges
    value, places = _whole(expressions, node.this, "<<"), _places(expressions, node, "<<")
    if value.type == SMALLINT:
        raise NotExpressible("<< of smallint")  # its upper bits fall off, where Spark finds an overflow
    return replace(value, sql=f"shiftleft({value.sql}, {places})")


def _shift_right(expressions: Expressions, node: exp.BitwiseRightShift) -> Typed:
    if of_ranges := applied("<<", [expressions.render(node.right), expressions.render(node.left)]):
        return of_ranges
    value, places = _whole(expressions, node.this, ">>"), _places(expressions, node, ">>")
    if value.type == SMALLINT:
        return replace(value, sql=f"CAST(shiftright(CAST({value.sql} AS INT), {places}) AS SMALLINT)")
    return replace(value, sql=f"shiftright({value.sql}, {places})")


def _places(expressions: Expressions, node: exp.Binary, what: str) -> int:
    """By how many places is shifted: by more than there are it is the processor's choice what comes out."""
    number, bits = node.right.unnest(), _BITS[_whole(expressions, node.left, what).type]
    if not (isinstance(number, exp.Literal) and number.is_int and int(number.name) < bits):
        raise NotExpressible(f"{what} by anything but a literal below {bits}")
    return int(number.name)


def _hexadecimal(expressions: Expressions, node: exp.Hex) -> Typed:
    value = _whole(expressions, node.this, "to_hex")
    digits = f"CAST({value.sql} AS BIGINT)"
    if value.type != BIGINT:  # negative numbers as the 32 bits that they are
        digits = f"({digits} & CAST({(1 << 32) - 1} AS BIGINT))"
    return Typed(f"lower(hex({digits}))", replace(TEXT, ordered=False))


def _aggregate(name: str) -> Rule:
    def render(expressions: Expressions, node: exp.AggFunc) -> Typed:
        if isinstance(node.this, exp.Distinct):
            raise NotExpressible(f"{name} of DISTINCT values")
        value = _whole(expressions.with_clause(""), node.this, name)
        return replace(value, sql=f"{name}({value.sql}){expressions.clause}")

    return render


BITS: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    **{kind: (_binary, ("this", "expression")) for kind in _OPERATORS},
    exp.BitwiseNot: (_not, ("this",)),
    exp.BitwiseLeftShift: (_shift_left, ("this", "expression")),
    exp.BitwiseRightShift: (_shift_right, ("this", "expression")),
    exp.Hex: (_hexadecimal, ("this",)),
    exp.BitwiseAndAgg: (_aggregate("bit_and"), ("this",)),
    exp.BitwiseOrAgg: (_aggregate("bit_or"), ("this",)),
    exp.BitwiseXorAgg: (_aggregate("bit_xor"), ("this",)),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
