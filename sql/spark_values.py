"""Values in Spark's dialect with their types: literals, casts, arithmetic, what may be compared or unified.

Decimals are written with explicit casts, so that Spark never derives a scale of its own. Integer arithmetic is done one
size larger and cast back, since not every Spark finds an overflow by itself.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from . import spark_equality as equality
from .spark_types import (
    BIGINT,
    DATE,
    INTEGER,
    INTEGERS,
    TEXT,
    UNKNOWN,
    NotExpressible,
    SparkType,
    numeric,
)


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression in Spark SQL and its type."""

    sql: str
    type: SparkType


def string(text: str) -> str:
    """A string literal of Spark SQL, in which backslashes escape.

    >>> print(string("it's a \\\\"))
    'it\\'s a \\\\'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def identifier(name: str) -> str:
    """A quoted name of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


_WHOLE = ("smallint", "integer", "bigint")


def unify(types: Sequence[SparkType], what: str) -> SparkType:
    """The common type of a CASE's branches or a column of a UNION ALL. Raises NotExpressible.

    Numerics must have one scale: PostgreSQL keeps each value's own.
    """
    known = [type_ for type_ in types if type_ != UNKNOWN]
    if not known:
        return TEXT
    if all(type_.name in _WHOLE or (type_.name == "numeric" and type_.scale == 0) for type_ in known):
        # Whole numbers have one representation in all these types: the widest holds them all.
        return max(known, key=lambda type_: (*_WHOLE, "numeric").index(type_.name))
    first = known[0]
    if any(type_.name != first.name for type_ in known):
        raise NotExpressible(f"{what} of different types")
    if first.name == "numeric":
        if len({type_.scale for type_ in known}) > 1:
            raise NotExpressible(f"{what} of numerics with different scales")
        first = numeric(max(type_.digits for type_ in known), first.scale)
    return replace(
        first,
        equatable=all(t.equatable for t in known),
        ordered=all(t.ordered for t in known),
        groupable=all(t.groupable for t in known),
    )


def converted(inner: Typed, target: SparkType) -> Typed:
    """A cast. Raises NotExpressible."""
    source = inner.type
    if source.name == target.name and source.name != "numeric":
        return inner
    if source.is_number and target.is_number:
        if source.name == "numeric" and target.scale < source.scale:
            # PostgreSQL rounds half away from zero; Spark's cast to an integer would truncate.
            inner = Typed(f"round({inner.sql}, {target.scale})", source)
        return Typed(f"CAST({inner.sql} AS {target.spark})", target)
    template = equality.CASTS.get((source.name, target.name))
    if template is None:
        raise NotExpressible(f"cast from {source.name} to {target.name}")
    return Typed(template.format(inner.sql), target)


def constant(text: str, target: SparkType, has_modifier: bool) -> Typed:
    """A literal of a type, `'…'::type`."""
    try:
        if target.name == "numeric" and not has_modifier:
            value = number(text.strip())
            return converted(value, value.type.as_numeric())
        if target.is_number:
            return converted(number(text.strip()), target)
        if target.name == "date":
            return Typed(f"DATE '{datetime.date.fromisoformat(text)}'", target)
        if target.name.startswith("timestamp"):
            moment = datetime.datetime.fromisoformat(text)
            zoned = moment.tzinfo is not None
            if zoned != (target.name == "timestamp with time zone"):
                raise NotExpressible(f"literal '{text}' of type {target.name}")
            utc = (moment.astimezone(datetime.UTC) if zoned else moment).replace(tzinfo=None)
            keyword = "TIMESTAMP_LTZ" if zoned else "TIMESTAMP_NTZ"
            return Typed(f"{keyword} '{utc.isoformat(' ', 'microseconds')}'", target)
        if target.name == "uuid":
            return Typed(string(str(uuid.UUID(text))), target)
        if target.name == "boolean" and text in ("t", "f", "true", "false"):
            return Typed("TRUE" if text[0] == "t" else "FALSE", target)
    except (ValueError, OverflowError):
        raise NotExpressible(f"literal '{text}' of type {target.name}") from None
    if target.is_text:
        return Typed(string(text), target)
    if target.name in ("real", "double precision"):
        return Typed(f"CAST({string(text)} AS {target.spark})", target)
    raise NotExpressible(f"literal of type {target.name}")


def number(text: str) -> Typed:
    """A number literal: integer, bigint or numeric as PostgreSQL reads it."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, point, fraction = digits.partition(".")
    if not (whole + fraction).isdecimal() or not (whole + fraction).isascii() or (point and not whole):
        raise NotExpressible(f"number {text}")
    if not point:
        value = int(sign + whole)
        for name, bits in (("integer", 31), ("bigint", 63)):
            if -(1 << bits) <= value < 1 << bits:
                return Typed(f"CAST({value} AS {SparkType(name).spark})", SparkType(name))
    type_ = numeric(max(len(whole.lstrip("0")), 1), len(fraction))
    return Typed(f"CAST('{text}' AS {type_.spark})", type_)


def as_type(value: Typed, type_: SparkType) -> str:
    """The value with exactly this type, for branches that Spark would otherwise unify by itself."""
    if value.type == UNKNOWN or type_.name == "numeric":
        return f"CAST({value.sql} AS {type_.spark})"
    return value.sql


def wider(left: SparkType, right: SparkType) -> SparkType:
    """The integer type of an operation on two."""
    return max((SparkType(left.name), SparkType(right.name)), key=lambda t: list(INTEGERS).index(t.name))


def arithmetic(left: Typed, right: Typed, operator: str) -> Typed:
    """``+``, ``-`` or ``*`` of two numbers. Raises NotExpressible."""
    a, b = left.type, right.type
    if not (a.is_number and b.is_number):
        raise NotExpressible(f"{a.name} {operator} {b.name}")
    if a.is_integer and b.is_integer:
        type_ = wider(a, b)
        roomy = "DECIMAL(19, 0)" if type_ == BIGINT else "BIGINT"
        operation = f"CAST({left.sql} AS {roomy}) {operator} CAST({right.sql} AS {roomy})"
        return Typed(f"CAST(({operation}) AS {type_.spark})", type_)
    a, b = a.as_numeric(), b.as_numeric()
    if operator == "*":
        type_ = numeric(a.digits + b.digits, a.scale + b.scale)
        if a.precision + b.precision + 1 > 38:  # what Spark derives before our cast
            raise NotExpressible("product of numerics with more than 37 digits")
    else:
        type_ = numeric(max(a.digits, b.digits) + 1, max(a.scale, b.scale))
    operation = f"CAST({left.sql} AS {a.spark}) {operator} CAST({right.sql} AS {b.spark})"
    return Typed(f"CAST(({operation}) AS {type_.spark})", type_)


def date_arithmetic(left: Typed, right: Typed, operator: str) -> Typed:
    """A date plus or minus days, or a difference of dates. Raises NotExpressible."""
    if right.type == DATE and operator == "-":
        return Typed(f"datediff({left.sql}, {right.sql})", INTEGER)
    # Spark wraps around where PostgreSQL finds a date out of range: only offsets that cannot get there.
    literal = right.sql.removeprefix("CAST(").removesuffix(" AS INT)")
    if right.type == INTEGER and literal.lstrip("-").isdecimal() and abs(int(literal)) < 1_000_000:
        return Typed(f"date_{'add' if operator == '+' else 'sub'}({left.sql}, {right.sql})", DATE)
    raise NotExpressible(f"date {operator} anything but a date or an integer literal")


def check_comparable(a: SparkType, b: SparkType, *, ordering: bool) -> None:
    """Raises NotExpressible unless ``=`` (with `ordering` also ``<``) means the same in both systems."""
    if UNKNOWN in (a, b):
        return
    if a.is_number and b.is_number:
        x, y = a.as_numeric(), b.as_numeric()
        numeric(max(x.digits, y.digits), max(x.scale, y.scale))
        return
    if a.name != b.name:
        raise NotExpressible(f"comparison of {a.name} with {b.name}")
    if not (a.equatable and b.equatable):
        raise NotExpressible("comparison under a collation that is not deterministic")
    if ordering and not (a.ordered and b.ordered):
        raise NotExpressible("order of text under a collation other than C")
