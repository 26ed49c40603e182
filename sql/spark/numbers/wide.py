"""Numerics that are declared with more digits than Spark's decimals have: texts that functions in Python compute with.

Each value of such a column has the declared scale, so that of what is computed is known as well; -1 where it is not.
"""

from __future__ import annotations

from dataclasses import replace

from sql.errors import NotExpressible
from sql.spark.numbers.exact import shown
from sql.spark.python.calls import call
from sql.spark.types import BOOLEAN, MAX_PRECISION, NUMERAL, Display, SparkType, Typed, is_numeral

_LIMB = 18
_MOST = 8
"""Limbs of a sum."""


def is_wide(*values: Typed) -> bool:
    """Whether any of the numbers is one of many digits."""
    return any(is_numeral(value.type) and value.type.precision > 0 for value in values)


def _type(precision: int, scale: int) -> SparkType:
    return replace(NUMERAL, precision=max(precision, MAX_PRECISION + 1), scale=scale)


def _scale(type_: SparkType) -> int:
    known = type_.is_integer or (type_.name == "numeric" and type_.display is Display.FIXED)
    return type_.scale if known or (type_.precision > 0 and is_numeral(type_)) else -1


def _text(value: Typed) -> str:
    if is_numeral(value.type):
        return value.sql
    if not value.type.is_number:
        raise NotExpressible(f"numeric beside {value.type.name}")
    return shown(value) if value.type.name == "numeric" else f"CAST({value.sql} AS STRING)"


_OPERATIONS = {"+": "decimal_plus", "-": "decimal_minus", "*": "decimal_times", "/": "decimal_quotient",
               "%": "decimal_modulo"}  # fmt: skip


def wide_arithmetic(left: Typed, right: Typed, operator: str) -> Typed:
    """``+``, ``-``, ``*``, ``/`` or ``%``. Raises NotExpressible."""
    sql = call(_OPERATIONS[operator], _text(left), _text(right))
    one, other = _scale(left.type), _scale(right.type)
    digits = max(left.type.precision or 19, right.type.precision or 19) * 2
    if operator == "/" or min(one, other) < 0:
        return Typed(sql, _type(digits, -1))
    return Typed(sql, _type(digits, one + other if operator == "*" else max(one, other)))


def wide_comparison(left: Typed, right: Typed, operator: str) -> Typed:
    """Raises NotExpressible."""
    compared = call("decimal_compared", _text(left), _text(right))
    return Typed(f"({compared} {operator} 0)", BOOLEAN)


def wide_rounded(value: Typed, places: int, name: str) -> Typed:
    """`round` or `trunc` to literal places."""
    function = {"round": "decimal_rounded", "trunc": "decimal_truncated"}[name]
    return Typed(call(function, value.sql, f"CAST({places} AS INT)"), _type(value.type.precision, places))


def wide_negated(value: Typed) -> Typed:
    """The number with the other sign."""
    return replace(value, sql=call("decimal_negated", value.sql))


def wide_magnitude(value: Typed) -> Typed:
    """`abs`."""
    return replace(value, sql=call("decimal_magnitude", value.sql))


def wide_sum(value: Typed, clause: str) -> Typed | None:
    """`sum`, of groups of eighteen digits each; None where there are too many of these, or the scale is not known."""
    type_ = value.type
    limbs = -(-type_.precision // _LIMB)
    if type_.scale < 0 or limbs > _MOST:
        return None
    scale = f"CAST({type_.scale} AS INT)"
    parts = (call("decimal_limb", value.sql, scale, f"CAST({n} AS INT)") for n in range(limbs))
    sums = (f"CAST(sum(CAST({part} AS DECIMAL(28, 0))){clause} AS STRING)" for part in parts)
    return Typed(call("decimal_total", scale, *sums), _type(type_.precision + 10, type_.scale))
