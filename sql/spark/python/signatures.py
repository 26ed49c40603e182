"""PostgreSQL's functions and operators that are calls of functions in Python, by the types of their arguments.

An argument is of a type of PostgreSQL's, or `number` (any exact one, as its text), `array` and `element` (of it),
`range` and `bound` (of it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from sql.errors import NotExpressible
from sql.spark.dates import moment_text
from sql.spark.numbers.exact import shown
from sql.spark.python.calls import call
from sql.spark.text.collations import common
from sql.spark.types import (
    BOOLEAN,
    DATE,
    IDENTICAL,
    NUMERAL,
    RANGES,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UNKNOWN,
    SparkType,
    Typed,
    base_type,
    column_type,
    is_numeral,
)


@dataclass(frozen=True, slots=True)
class Signature:
    """``constants`` in Spark SQL follow the arguments. ``searching``: it compares text, as its collation does."""

    arguments: tuple[str, ...]
    result: str
    function: str
    constants: tuple[str, ...] = ()
    searching: bool = False


def _of(*arguments: str, result: str, call: str, constants: tuple[str, ...] = (), searching: bool = False) -> Signature:
    return Signature(arguments, result, call, constants, searching)


_MOMENT = "timestamp without time zone"
_NULL = ("CAST(NULL AS STRING)",)

SIGNATURES: Mapping[str, tuple[Signature, ...]] = {
    # Text and bytea.
    "left": (_of("text", "integer", result="text", call="string_left"),),
    "right": (_of("text", "integer", result="text", call="string_right"),),
    "substring": (
        _of("text", "integer", "integer", result="text", call="string_part"),
        _of("text", "integer", result="text", call="string_from"),
    ),
    "repeat": (_of("text", "integer", result="text", call="string_repeated"),),
    "lpad": (_of("text", "integer", "text", result="text", call="string_left_padded"),),
    "rpad": (_of("text", "integer", "text", result="text", call="string_right_padded"),),
    "replace": (_of("text", "text", "text", result="text", call="string_replaced", searching=True),),
    "strpos": (_of("text", "text", result="integer", call="string_position", searching=True),),
    "starts_with": (_of("text", "text", result="boolean", call="string_starts", searching=True),),
    "split_part": (_of("text", "text", "integer", result="text", call="string_field", searching=True),),
    "translate": (_of("text", "text", "text", result="text", call="string_translated"),),
    "chr": (_of("integer", result="text", call="string_character"),),
    "quote_literal": (_of("text", result="text", call="string_literal"),),
    "length": (_of("bytea", result="integer", call="bytes_length"),),
    "octet_length": (_of("bytea", result="integer", call="bytes_length"),),
    **{
        name: (_of("bytea", result="bytea", call="bytes_hashed", constants=(f"'{name}'",)),)
        for name in ("sha224", "sha256", "sha384", "sha512")
    },
    # Numbers.
    "gcd": (
        _of("integer", "integer", result="integer", call="whole_gcd"),
        _of("bigint", "bigint", result="bigint", call="whole_gcd"),
    ),
    "lcm": (
        _of("integer", "integer", result="integer", call="whole_lcm"),
        _of("bigint", "bigint", result="bigint", call="whole_lcm"),
    ),
    "div": (_of("number", "number", result="numeric", call="decimal_whole_quotient"),),
    "min_scale": (_of("number", result="integer", call="decimal_least_scale"),),
    "trim_scale": (_of("number", result="numeric", call="decimal_trimmed"),),
    "factorial": (_of("bigint", result="numeric", call="decimal_factorial"),),
    "sqrt": (_of("number", result="numeric", call="decimal_root"),),
    "ln": (_of("number", result="numeric", call="decimal_logarithm"),),
    "ceil": (_of("double precision", result="double precision", call="float_ceiling"),),
    "floor": (_of("double precision", result="double precision", call="float_floor"),),
    "trunc": (_of("double precision", result="double precision", call="float_truncated"),),
    "sign": (_of("double precision", result="double precision", call="float_sign"),),
    # Arrays.
    "array_length": (_of("array", "integer", result="integer", call="array_size"),),
    "array_lower": (_of("array", "integer", result="integer", call="array_low"),),
    "array_upper": (_of("array", "integer", result="integer", call="array_high"),),
    "array_ndims": (_of("array", result="integer", call="array_dimensions"),),
    "array_dims": (_of("array", result="text", call="array_shape"),),
    "cardinality": (_of("array", result="integer", call="array_cardinality"),),
    "array_append": (_of("array", "element", result="array", call="array_appended"),),
    "array_prepend": (_of("element", "array", result="array", call="array_prepended"),),
    "array_cat": (_of("array", "array", result="array", call="array_joined"),),
    "||": (
        _of("array", "array", result="array", call="array_joined"),
        _of("array", "element", result="array", call="array_appended"),
        _of("element", "array", result="array", call="array_prepended"),
        _of("jsonb", "jsonb", result="jsonb", call="jsonb_joined"),
    ),
    "array_remove": (_of("array", "element", result="array", call="array_without", searching=True),),
    "array_replace": (_of("array", "element", "element", result="array", call="array_replaced", searching=True),),
    "array_position": (_of("array", "element", result="integer", call="array_place", searching=True),),
    "array_positions": (_of("array", "element", result="integer[]", call="array_places", searching=True),),
    "array_to_string": (
        _of("array", "text", result="text", call="array_text", constants=_NULL),
        _of("array", "text", "text", result="text", call="array_text"),
    ),
    "string_to_array": (
        _of("text", "text", result="text[]", call="array_split", constants=_NULL, searching=True),
        _of("text", "text", "text", result="text[]", call="array_split", searching=True),
    ),
    "trim_array": (_of("array", "integer", result="array", call="array_trimmed"),),
    "any": (_of("element", "array", result="boolean", call="array_has", searching=True),),
    "[]": (_of("array", "integer", result="element", call="array_element"),),
    # Arrays, ranges and jsonb.
    "@>": (
        _of("array", "array", result="boolean", call="array_contains_all", searching=True),
        _of("range", "range", result="boolean", call="range_contains"),
        _of("range", "bound", result="boolean", call="range_holds"),
    ),
    "&&": (
        _of("array", "array", result="boolean", call="array_shares", searching=True),
        _of("range", "range", result="boolean", call="range_overlaps"),
    ),
    "<<": (_of("range", "range", result="boolean", call="range_before"),),
    "-|-": (_of("range", "range", result="boolean", call="range_beside"),),
    "*": (
        _of("range", "range", result="range", call="range_common"),
        _of("interval", "double precision", result="interval", call="interval_times"),
    ),
    "+": (
        _of("range", "range", result="range", call="range_union"),
        _of("interval", "interval", result="interval", call="interval_plus"),
        _of(_MOMENT, "interval", result=_MOMENT, call="moment_moved", constants=("CAST(1 AS INT)",)),
    ),
    "-": (
        _of("interval", "interval", result="interval", call="interval_minus"),
        _of(_MOMENT, "interval", result=_MOMENT, call="moment_moved", constants=("CAST(-1 AS INT)",)),
        _of("jsonb", "text", result="jsonb", call="jsonb_without_key"),
        _of("jsonb", "integer", result="jsonb", call="jsonb_without_index"),
    ),
    "=": (_of("range", "range", result="boolean", call="range_equal"),),
    "lower": (_of("range", result="bound", call="range_low"),),
    "upper": (_of("range", result="bound", call="range_high"),),
    "isempty": (_of("range", result="boolean", call="range_empty"),),
    "lower_inc": (_of("range", result="boolean", call="range_has_low"),),
    "upper_inc": (_of("range", result="boolean", call="range_has_high"),),
    "lower_inf": (_of("range", result="boolean", call="range_endless_low"),),
    "upper_inf": (_of("range", result="boolean", call="range_endless_high"),),
    # Dates and times.
    "make_timestamp": (_of(*(["integer"] * 5), "double precision", result=_MOMENT, call="moment_made"),),
    "date_bin": (_of("interval", _MOMENT, _MOMENT, result=_MOMENT, call="moment_bin"),),
    "justify_hours": (_of("interval", result="interval", call="interval_justified_hours"),),
    "justify_days": (_of("interval", result="interval", call="interval_justified_days"),),
    # jsonb.
    "jsonb_strip_nulls": (_of("jsonb", result="jsonb", call="jsonb_stripped"),),
    "jsonb_pretty": (_of("jsonb", result="text", call="jsonb_pretty"),),
    "jsonb_concat": (_of("jsonb", "jsonb", result="jsonb", call="jsonb_joined"),),
    "jsonb_exists": (_of("jsonb", "text", result="boolean", call="jsonb_has_key"),),
}

BOUND_KINDS = {
    "int4range": "whole",
    "int8range": "whole",
    "numrange": "number",
    "daterange": "day",
    "tsrange": "moment",
}
"""How bounds are compared (`range_values`)."""


def applied(name: str, values: Sequence[Typed]) -> Typed | None:
    """A function or operator of values, None if none of that name is here. Raises NotExpressible."""
    for signature in SIGNATURES.get(name, ()):
        if len(signature.arguments) != len(values):
            continue
        element, range_ = _bound(signature.arguments, values)
        given = [_given(v, wanted, element, range_) for v, wanted in zip(values, signature.arguments, strict=True)]
        if all(given):
            return _applied(name, signature, values, [sql for sql in given if sql], element, range_)
    return None


def _applied(
    name: str, signature: Signature, values: Sequence[Typed], given: Sequence[str], element: str, range_: str
) -> Typed:
    if signature.searching and any(_compares_otherwise(value.type) for value in values):
        raise NotExpressible(f"function {name} under a collation that is not deterministic")
    constants = signature.constants
    if range_ and (len(values) > 1 or signature.result == "range"):
        constants = (*constants, f"'{BOUND_KINDS[range_]}'")
    sql = call(signature.function, *given, *constants)
    wanted = {"element": element, "array": f"{element}[]", "range": range_}.get(signature.result, signature.result)
    if signature.result == "bound":
        wanted = RANGES[range_]
    if wanted == "integer" and signature.function.startswith("whole_"):
        sql = f"CAST({sql} AS INT)"
    if signature.result in ("element", "bound"):
        return from_text(sql, wanted)
    result = NUMERAL if wanted == "numeric" else column_type(wanted)
    if result.is_text:
        texts = [value.type.collation for value in values if value.type.name == "text"]
        result = replace(result, collation=common(texts), ordered=False)
    return Typed(sql, result)


def _compares_otherwise(type_: SparkType) -> bool:
    return (type_.is_text or type_.name.endswith("[]")) and not type_.equatable


def _bound(arguments: Sequence[str], values: Sequence[Typed]) -> tuple[str, str]:
    """The types that `element` and `range` stand for."""
    element = range_ = ""
    for wanted, value in zip(arguments, values, strict=True):
        if wanted == "array" and value.type.name.endswith("[]"):
            element = base_type(value.type.name.removesuffix("[]"))
        if wanted == "range" and value.type.name in RANGES:
            range_ = value.type.name
    return (element if element in IDENTICAL else ""), range_


def _given(value: Typed, wanted: str, element: str, range_: str) -> str | None:
    """The value as the function is to get it, None if it is of another type."""
    if wanted == "array":
        return _array(value, element)
    if wanted == "element":
        return _of_type(value, element)
    if wanted in ("range", "bound") and not range_:
        return None
    if wanted == "bound":
        return _of_type(value, RANGES[range_])
    return _plain(value, range_ if wanted == "range" else wanted)


def _plain(value: Typed, wanted: str) -> str | None:
    """The value as one of a type of PostgreSQL's, or as the text of a number."""
    if value.type == UNKNOWN:
        return f"CAST(NULL AS {'STRING' if wanted == 'number' else column_type(wanted).spark})"
    if wanted == "number":
        return as_text(value) if value.type.is_number or is_numeral(value.type) else None
    if wanted in ("integer", "bigint"):
        fits = value.type.is_integer and (wanted == "bigint" or value.type.name != "bigint")
        return f"CAST({value.sql} AS {'INT' if wanted == 'integer' else 'BIGINT'})" if fits else None
    return value.sql if value.type.name == wanted or (wanted == "text" and value.type.is_text) else None


def _array(value: Typed, element: str) -> str | None:
    if value.type == UNKNOWN:
        return "CAST(NULL AS STRING)" if element else None
    array = value.type.name.endswith("[]") and bool(element)
    return value.sql if array and base_type(value.type.name.removesuffix("[]")) == element else None


def _of_type(value: Typed, type_: str) -> str | None:
    """The text of a value of a type, None if it is of another one."""
    if value.type == UNKNOWN:
        return "CAST(NULL AS STRING)"
    exact = value.type.name == type_ or (type_ == "numeric" and (value.type.is_number or is_numeral(value.type)))
    return as_text(value) if type_ and exact else None


def as_text(value: Typed) -> str:
    """A value as PostgreSQL writes it in arrays and ranges. Raises NotExpressible."""
    type_ = value.type
    if type_ == BOOLEAN:
        return f"(CASE WHEN {value.sql} THEN 't' WHEN NOT {value.sql} THEN 'f' END)"
    if type_.is_integer or type_.name == "uuid":
        return f"CAST({value.sql} AS STRING)"
    if type_.name == "numeric":
        return shown(value)
    if type_ in (DATE, TIMESTAMP, TIMESTAMPTZ):
        return moment_text(value).sql
    if type_.is_text or type_.name == "numeral":
        return value.sql
    raise NotExpressible(f"{type_.name} in an array")


def from_text(sql: str, name: str) -> Typed:
    """The value of a type that a text of Spark's is of."""
    name = base_type(name)
    type_ = NUMERAL if name == "numeric" else column_type(name)
    if type_ == BOOLEAN:
        return Typed(f"({sql} = 't')", type_)
    if type_.is_integer:
        return Typed(f"CAST({sql} AS {type_.spark})", type_)
    reading = {DATE: "text_date", TIMESTAMP: "text_timestamp", TIMESTAMPTZ: "text_timestamptz"}.get(type_)
    return Typed(call(reading, sql) if reading else sql, replace(type_, ordered=False) if type_ == TEXT else type_)
