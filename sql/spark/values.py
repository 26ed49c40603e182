"""Values in Spark's dialect with their types: literals, casts, what may be compared or unified."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import replace

from sql.errors import NotExpressible
from sql.spark import equality as equality
from sql.spark.dates import infinite, moment_text, parse_interval
from sql.spark.numbers.exact import decimal_of, opaque, scale_of, shown
from sql.spark.python.arrays import written_array
from sql.spark.python.calls import call
from sql.spark.python.values.jsonb_values import is_written
from sql.spark.text.collations import common
from sql.spark.types import (
    DATE,
    FLOATS,
    NUMERAL,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    Display,
    SparkType,
    Typed,
    is_numeral,
    numeric,
)

__all__ = [
    "Typed",
    "as_type",
    "check_comparable",
    "comparable",
    "constant",
    "converted",
    "identifier",
    "number",
    "string",
    "unify",
]


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
_ENDLESS = ("date", "timestamp without time zone", "timestamp with time zone")


def unify(types: Sequence[SparkType], what: str) -> SparkType:
    """The common type of a CASE's branches or a column of a UNION ALL. Raises NotExpressible.

    Each value of a numeric keeps its own display scale, as in PostgreSQL.
    """
    known = [type_ for type_ in types if type_ != UNKNOWN]
    if not known:
        return TEXT
    if all(map(_is_whole, known)):
        return _widest(known)
    if any(map(is_numeral, known)) and all(is_numeral(type_) or type_.is_number for type_ in known):
        return NUMERAL
    if any(type_.name == "numeric" for type_ in known) and all(type_.is_number for type_ in known):
        known = [type_.as_numeric() for type_ in known]
    return _of_one_name(known, what)


def _widest(whole: Sequence[SparkType]) -> SparkType:
    """The type that holds all values of some types of whole numbers, which have one representation in all of these."""
    if any(type_.name == "numeric" for type_ in whole):
        return numeric(max(type_.digits for type_ in whole), 0)
    return max(whole, key=lambda type_: _WHOLE.index(type_.name))


def _is_whole(type_: SparkType) -> bool:
    """Whether it has whole numbers only."""
    return type_.name in _WHOLE or (type_.name == "numeric" and type_.scale == 0)


def _common_numeric(known: Sequence[SparkType]) -> SparkType:
    """The numeric that holds the values of all of these numerics."""
    display = Display.KEPT if len({type_.scale for type_ in known}) > 1 else Display.FIXED
    for kind in (Display.KEPT, Display.LOST):
        display = kind if any(type_.display is kind for type_ in known) else display
    return numeric(max(type_.digits for type_ in known), max(type_.scale for type_ in known), display)


def _of_one_name(known: Sequence[SparkType], what: str) -> SparkType:
    """The common type of types that differ in their modifiers, or in what can be done with their values."""
    first = known[0]
    if any(type_.name != first.name for type_ in known):
        raise NotExpressible(f"{what} of different types")
    if first.name == "numeric":
        first = _common_numeric(known)
    if first.name == "character" and any(type_.precision != first.precision for type_ in known):
        first = replace(first, precision=0)
    return replace(
        first,
        equatable=all(t.equatable for t in known),
        ordered=all(t.ordered for t in known),
        groupable=all(t.groupable for t in known),
        collation=common(t.collation for t in known),
    )


def converted(inner: Typed, target: SparkType) -> Typed:
    """A cast. Raises NotExpressible."""
    source = inner.type
    if source.name == target.name and source.name != "numeric":
        return inner
    if target.is_text and (text := _as_text(inner, target)) is not None:
        return text
    if is_numeral(source):
        inner = decimal_of(inner)
        source = inner.type
    if source.is_number and target.is_number:
        cast = _number_as(inner, target)
        return Typed(opaque(cast) if _narrows(source, target) else cast, target)
    return Typed(_cast(inner, target), replace(target, ordered=False) if target.name == "text" else target)


def _as_text(inner: Typed, target: SparkType) -> Typed | None:
    """A value whose text is in Spark already, or depends on more than its type."""
    source = inner.type
    if source.name == "character":
        return Typed(inner.sql, replace(source, name="text", precision=0))
    # In whatever order the database's collation has.
    target = target if source.is_text else replace(target, ordered=False)
    if source.enum or is_numeral(source):
        return Typed(inner.sql, target)
    if source in (DATE, TIMESTAMP):
        return replace(moment_text(inner), type=target)
    return Typed(shown(inner), target) if source.name == "numeric" else None


def _cast(inner: Typed, target: SparkType) -> str:
    """A cast by the list."""
    source = inner.type
    written = source.name in ("text", "jsonb") or (source.name in FLOATS and target.name == "numeric")
    if written and target.is_number and (source.name, target.name) not in equality.CASTS:
        text = inner.sql if source.name == "text" else numeral(inner).sql
        return opaque(f"CAST({call('text_rounded', text, str(target.scale))} AS {target.spark})")
    template = equality.CASTS.get((source.name, target.name))
    if template is None:
        raise NotExpressible(f"cast from {source.name} to {target.name}")
    return template.format(inner.sql)


def numeral(value: Typed) -> Typed:
    """Text, jsonb or a floating point number as a numeric of any number of digits. Raises NotExpressible."""
    if value.type.name in FLOATS:
        digits = {"real": 6, "double precision": 15}[value.type.name]
        return Typed(call("float_numeric", f"CAST({value.sql} AS DOUBLE)", f"CAST({digits} AS INT)"), NUMERAL)
    if value.type.name not in ("text", "jsonb"):
        raise NotExpressible(f"cast from {value.type.name} to numeric")
    name = "text_numeric" if value.type.name == "text" else "jsonb_number"
    return Typed(call(name, value.sql), NUMERAL)


def _number_as(value: Typed, target: SparkType) -> str:
    """A number as another type of number."""
    sql = value.sql
    if value.type.name == "numeric" and target.scale < value.type.scale:
        # PostgreSQL rounds half away from zero; Spark's cast to an integer would truncate.
        sql = f"round({sql}, {target.scale})"
    return f"CAST({sql} AS {target.spark})"


def _narrows(source: SparkType, target: SparkType) -> bool:
    """Whether not every number of a type is one of the other."""
    if source.is_integer and target.is_integer:
        return source.digits > target.digits
    # Rounding can give one digit more; not all numbers of so many digits are integers of their type.
    return source.digits + (source.scale > target.scale) + target.is_integer > target.digits


def constant(text: str, target: SparkType, has_modifier: bool) -> Typed:
    """A literal of a type, `'…'::type`."""
    if target.name == "character" and not target.precision:
        return Typed(string(text.rstrip(" ")), target)
    try:
        if target.is_number:
            return _number_literal(number(text.strip()), target, has_modifier)
        if target.name in _ENDLESS and text in ("infinity", "-infinity"):
            return Typed(infinite(target, text.removesuffix("infinity")), target)
        if target.name == "date":
            return Typed(f"DATE '{datetime.date.fromisoformat(text)}'", target)
        if target.name.startswith("timestamp"):
            return _timestamp(text, target)
        if target.name == "uuid":
            return Typed(string(str(uuid.UUID(text))), target)
        if target.name == "boolean" and text in ("t", "f", "true", "false"):
            return Typed("TRUE" if text[0] == "t" else "FALSE", target)
    except (ValueError, OverflowError):
        raise NotExpressible(f"literal '{text}' of type {target.name}") from None
    return _written(text, target)


def _written(text: str, target: SparkType) -> Typed:
    """A literal that Spark reads as PostgreSQL does, or not at all."""
    if target.is_text or (target.name == "jsonb" and is_written(text)):
        return Typed(string(text), target)
    if target.name.endswith("[]") and (array := written_array(text, target)) is not None:
        return Typed(string(array), target)
    if target.name == "interval":
        parse_interval(text)
        return Typed(string(text), target)
    if target.name in ("real", "double precision"):
        return Typed(f"CAST({string(text)} AS {target.spark})", target)
    raise NotExpressible(f"literal of type {target.name}")


def _number_literal(value: Typed, target: SparkType, has_modifier: bool) -> Typed:
    """A literal number; a numeric without a modifier has the digits that are written."""
    if target.name == "numeric" and not has_modifier:
        return converted(value, value.type.as_numeric())
    return Typed(_number_as(value, target), target)


def _timestamp(text: str, target: SparkType) -> Typed:
    """A literal with a time zone exactly where the type has one."""
    moment = datetime.datetime.fromisoformat(text)
    zoned = moment.tzinfo is not None
    if zoned != (target.name == "timestamp with time zone"):
        raise NotExpressible(f"literal '{text}' of type {target.name}")
    utc = (moment.astimezone(datetime.UTC) if zoned else moment).replace(tzinfo=None)
    keyword = "TIMESTAMP_LTZ" if zoned else "TIMESTAMP_NTZ"
    return Typed(f"{keyword} '{utc.isoformat(' ', 'microseconds')}'", target)


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
    if is_numeral(type_) and value.type.name == "numeric":
        return shown(value)
    if value.type == UNKNOWN or value.type.spark != type_.spark:
        return f"CAST({value.sql} AS {type_.spark})"
    return value.sql


def kept_scale(value: Typed, type_: SparkType) -> str:
    """The display scale that a value has beside others of a common type, "" if the type has one for all."""
    if type_.display is not Display.KEPT:
        return ""
    return "0" if value.type == UNKNOWN else scale_of(value)


def check_comparable(a: SparkType, b: SparkType, *, ordering: bool) -> None:
    """Raises NotExpressible unless ``=`` (with `ordering` also ``<``) means the same in both systems."""
    if UNKNOWN in (a, b) or (a.is_number and b.is_number):
        return
    if a.name != b.name:
        raise NotExpressible(f"comparison of {a.name} with {b.name}")
    if not (a.equatable and b.equatable) and not a.is_text:
        raise NotExpressible(f"comparison of {a.declared}")
    if not (a.equatable and b.equatable):
        raise NotExpressible("comparison under a collation that is not deterministic")
    if ordering and not (a.ordered and b.ordered):
        if a.enum:
            raise NotExpressible(f"order of enum {a.name}")
        raise NotExpressible("order of text under a collation other than C")


def comparable(a: Typed, b: Typed, *, ordering: bool) -> tuple[str, str]:
    """Two values as they can be compared in Spark. Raises NotExpressible."""
    numerals = [is_numeral(each.type) for each in (a, b)]
    if any(numerals) and all(each.type.is_number or numeral for each, numeral in zip((a, b), numerals, strict=True)):
        a, b = decimal_of(a), decimal_of(b)
    check_comparable(a.type, b.type, ordering=ordering)
    if a.type.name in ("real", "double precision"):
        return opaque(a.sql), opaque(b.sql)
    if "numeric" in (a.type.name, b.type.name) and UNKNOWN not in (a.type, b.type):
        x, y = a.type.as_numeric(), b.type.as_numeric()
        common = numeric(max(x.digits, y.digits), max(x.scale, y.scale))
        if common.digits < max(x.digits, y.digits):
            # Spark itself would compare rounded values.
            return as_type(a, common), as_type(b, common)
    return a.sql, b.sql
