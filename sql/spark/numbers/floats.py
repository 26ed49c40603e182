"""Arithmetic of floating point numbers in Spark's dialect.

Both systems compute by IEEE 754, operation by operation, so the results are the same bits. PostgreSQL finds it an error
where a result is infinite, or zero, that its operands do not account for (float.h), and so does what is written here.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from sql.errors import NotExpressible
from sql.spark.numbers.exact import Layers, failure
from sql.spark.types import FLOATS, SparkType, Typed

_SIMPLE = re.compile(r"r\d+\.(`[^`]*`|[cl]\d+)|CAST\('?[-+.\w]*'? AS (DOUBLE|FLOAT)\)")
"""What may be repeated: a column, a literal."""


def is_float(*values: Typed) -> bool:
    """Whether any of the numbers is a floating point one."""
    return any(value.type.name in FLOATS for value in values)


def float_arithmetic(left: Typed, right: Typed, operator: str, layers: Callable[[str], Layers]) -> Typed:
    """``+``, ``-``, ``*`` or ``/`` of two floating point numbers; ``layers`` as `Expressions.layered`.

    Raises NotExpressible.
    """
    if not (is_float(left) and is_float(right)):
        raise NotExpressible(f"{left.type.name} {operator} {right.type.name}")
    type_ = left.type if left.type.name == right.type.name else SparkType("double precision", groupable=False)
    what = f"{operator} of floating point numbers that are computed"
    a, b = (_once(side, type_, what, layers) for side in (left, right))
    # Spark divides reals as doubles; rounded once more that is the same.
    result = f"CAST(({a} {operator} {b}) AS FLOAT)" if type_.name == "real" else f"({a} {operator} {b})"
    errors = []
    if operator == "/":
        errors.append((f"{b} = 0 AND {a} IS NOT NULL", "division by zero"))
    account = "" if operator == "/" else f" AND {_finite(b, type_)}"
    errors.append((f"NOT {_finite(result, type_)} AND {_finite(a, type_)}{account}", "value out of range: overflow"))
    if operator in "*/":
        lost = f"{b} <> 0" if operator == "*" else _finite(b, type_)
        errors.append((f"{result} = 0 AND {a} <> 0 AND {lost}", "value out of range: underflow"))
    whens = " ".join(f"WHEN {when} THEN CAST({failure(why)} AS {type_.spark})" for when, why in errors)
    return Typed(f"(CASE {whens} ELSE {result} END)", type_)


def _once(value: Typed, type_: SparkType, what: str, layers: Callable[[str], Layers]) -> str:
    """An operand, as something that may be repeated."""
    sql = value.sql if value.type.name == type_.name else f"CAST({value.sql} AS {type_.spark})"
    return sql if _SIMPLE.fullmatch(sql) else layers(what).soon(sql)


def _finite(sql: str, type_: SparkType) -> str:
    """Whether a number is not infinite; NaN is not."""
    return f"(abs({sql}) <> CAST('Infinity' AS {type_.spark}))"
