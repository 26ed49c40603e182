"""Which functions there are in Python, and what Spark calls them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from sql.spark.python import values
from sql.spark.python.values import (
    array_values,
    date_formats,
    decimal_values,
    float_values,
    interval_changes,
    interval_values,
    jsonb_changes,
    jsonb_values,
    number_formats,
    range_values,
    regular_values,
    string_values,
    text_values,
)

_PREFIX = "headwater_"


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """``function`` gets values that are not NULL, unless it is not ``strict``. ``result`` is a type of Spark's.

    Dates are days, and timestamps microseconds, since 1970-01-01, both as arguments and as a result.
    """

    function: Callable[..., Any]
    result: str
    strict: bool = True


def _lax(function: Callable[..., Any], result: str) -> PythonFunction:
    """One that gets NULL as None."""
    return PythonFunction(function, result, strict=False)


FUNCTIONS: Mapping[str, PythonFunction] = {
    "jsonb_member": PythonFunction(jsonb_values.member, "string"),
    "jsonb_member_text": PythonFunction(jsonb_values.member_text, "string"),
    "jsonb_element": PythonFunction(jsonb_values.element, "string"),
    "jsonb_element_text": PythonFunction(jsonb_values.element_text, "string"),
    "jsonb_path": PythonFunction(jsonb_values.path, "string"),
    "jsonb_path_text": PythonFunction(jsonb_values.path_text, "string"),
    "jsonb_has_key": PythonFunction(jsonb_values.has_key, "boolean"),
    "jsonb_has_any": PythonFunction(jsonb_values.has_any, "boolean"),
    "jsonb_has_all": PythonFunction(jsonb_values.has_all, "boolean"),
    "jsonb_normal": PythonFunction(jsonb_values.normal, "string"),
    "jsonb_contains": PythonFunction(jsonb_values.contains, "boolean"),
    "jsonb_kind": PythonFunction(jsonb_values.kind, "string"),
    "jsonb_length": PythonFunction(jsonb_values.length, "int"),
    "jsonb_number": PythonFunction(jsonb_values.number, "string"),
    "jsonb_boolean": PythonFunction(jsonb_values.boolean, "boolean"),
    "initcap": PythonFunction(text_values.initcap, "string"),
    "initcap_of_ascii": PythonFunction(text_values.initcap_of_ascii, "string"),
    "text_numeric": PythonFunction(text_values.numeric, "string"),
    "float_numeric": PythonFunction(text_values.float_numeric, "string"),
    "text_rounded": PythonFunction(text_values.rounded, "string"),
    "text_boolean": PythonFunction(text_values.boolean, "boolean"),
    "text_double": PythonFunction(text_values.double, "double"),
    "text_uuid": PythonFunction(text_values.uuid, "string"),
    "text_date": PythonFunction(text_values.date, "date"),
    "text_timestamp": PythonFunction(text_values.timestamp, "timestamp_ntz"),
    "text_timestamptz": PythonFunction(text_values.timestamptz, "timestamp"),
    "date_shown": PythonFunction(date_formats.shown_date, "string"),
    "timestamp_shown": PythonFunction(date_formats.shown, "string"),
    "interval_difference": PythonFunction(interval_values.difference, "string"),
    "interval_age": PythonFunction(interval_values.age, "string"),
    "interval_span": PythonFunction(interval_values.span, "string"),
    "interval_part": PythonFunction(interval_values.part, "string"),
    "interval_total": PythonFunction(interval_values.total, "string"),
    "interval_average": PythonFunction(interval_values.average, "string"),
    "interval_field": PythonFunction(interval_values.field, "string"),
    "timestamptz_of_epoch": PythonFunction(interval_values.from_epoch, "timestamp"),
    "date_read": PythonFunction(interval_values.to_date, "date"),
    "number_bucket": PythonFunction(number_formats.bucket, "int"),
    "number_shown": PythonFunction(number_formats.shown, "string"),
    "array_made": _lax(array_values.made, "string"),
    "array_element": PythonFunction(array_values.element, "string"),
    "array_part": _lax(array_values.part, "string"),
    "array_trimmed": PythonFunction(array_values.trimmed, "string"),
    "array_size": PythonFunction(array_values.size, "int"),
    "array_low": PythonFunction(array_values.low, "int"),
    "array_high": PythonFunction(array_values.high, "int"),
    "array_dimensions": PythonFunction(array_values.dimensions, "int"),
    "array_shape": PythonFunction(array_values.shape, "string"),
    "array_cardinality": PythonFunction(array_values.cardinality, "int"),
    "array_appended": _lax(array_values.appended, "string"),
    "array_prepended": _lax(array_values.prepended, "string"),
    "array_joined": _lax(array_values.joined, "string"),
    "array_without": _lax(array_values.without, "string"),
    "array_replaced": _lax(array_values.replaced, "string"),
    "array_place": _lax(array_values.place, "int"),
    "array_places": _lax(array_values.places, "string"),
    "array_text": _lax(array_values.shown, "string"),
    "array_split": _lax(array_values.split, "string"),
    "array_has": _lax(array_values.has, "boolean"),
    "array_contains_all": PythonFunction(array_values.contains, "boolean"),
    "array_shares": PythonFunction(array_values.overlaps, "boolean"),
    "regular_found": PythonFunction(regular_values.is_found, "boolean"),
    "regular_replaced": PythonFunction(regular_values.replaced, "string"),
    "regular_match": PythonFunction(regular_values.match, "string"),
    "regular_part": PythonFunction(regular_values.part, "string"),
    "regular_whole": PythonFunction(regular_values.whole, "string"),
    "regular_place": PythonFunction(regular_values.place, "int"),
    "regular_count": PythonFunction(regular_values.count, "int"),
    "regular_split": PythonFunction(regular_values.split, "string"),
    "string_left": PythonFunction(string_values.left, "string"),
    "string_right": PythonFunction(string_values.right, "string"),
    "string_part": PythonFunction(string_values.substring, "string"),
    "string_from": PythonFunction(string_values.substring_from, "string"),
    "string_repeated": PythonFunction(string_values.repeated, "string"),
    "string_left_padded": PythonFunction(string_values.left_padded, "string"),
    "string_right_padded": PythonFunction(string_values.right_padded, "string"),
    "string_replaced": PythonFunction(string_values.replaced, "string"),
    "string_position": PythonFunction(string_values.position, "int"),
    "string_starts": PythonFunction(string_values.starts, "boolean"),
    "string_field": PythonFunction(string_values.field, "string"),
    "string_translated": PythonFunction(string_values.translated, "string"),
    "string_character": PythonFunction(string_values.character, "string"),
    "string_like": PythonFunction(string_values.like, "boolean"),
    "string_literal": PythonFunction(string_values.literal, "string"),
    "string_formatted": _lax(string_values.formatted, "string"),
    "string_cut_character": PythonFunction(string_values.cut_character, "string"),
    "bytes_length": PythonFunction(string_values.byte_length, "int"),
    "bytes_encoded": PythonFunction(string_values.encoded, "string"),
    "bytes_decoded": PythonFunction(string_values.decoded, "string"),
    "bytes_hashed": PythonFunction(string_values.hashed, "string"),
    "decimal_plus": PythonFunction(decimal_values.plus, "string"),
    "decimal_minus": PythonFunction(decimal_values.minus, "string"),
    "decimal_times": PythonFunction(decimal_values.times, "string"),
    "decimal_quotient": PythonFunction(decimal_values.quotient, "string"),
    "decimal_whole_quotient": PythonFunction(decimal_values.whole_quotient, "string"),
    "decimal_modulo": PythonFunction(decimal_values.modulo, "string"),
    "decimal_compared": PythonFunction(decimal_values.compared, "int"),
    "decimal_negated": PythonFunction(decimal_values.negated, "string"),
    "decimal_magnitude": PythonFunction(decimal_values.magnitude, "string"),
    "decimal_rounded": PythonFunction(decimal_values.rounded, "string"),
    "decimal_truncated": PythonFunction(decimal_values.truncated, "string"),
    "decimal_least_scale": PythonFunction(decimal_values.least_scale, "int"),
    "decimal_trimmed": PythonFunction(decimal_values.trimmed, "string"),
    "decimal_alike": PythonFunction(decimal_values.alike, "string"),
    "decimal_factorial": PythonFunction(decimal_values.factorial, "string"),
    "decimal_root": PythonFunction(decimal_values.root, "string"),
    "decimal_logarithm": PythonFunction(decimal_values.logarithm, "string"),
    "decimal_limb": PythonFunction(decimal_values.limb, "string"),
    "decimal_total": PythonFunction(decimal_values.total, "string"),
    "whole_gcd": PythonFunction(decimal_values.greatest_divisor, "bigint"),
    "whole_lcm": PythonFunction(decimal_values.least_multiple, "bigint"),
    "float_text": PythonFunction(float_values.text, "string"),
    "real_text": PythonFunction(float_values.real_text, "string"),
    "float_alike": PythonFunction(float_values.alike, "string"),
    "float_ceiling": PythonFunction(float_values.ceiling, "double"),
    "float_floor": PythonFunction(float_values.floor, "double"),
    "float_truncated": PythonFunction(float_values.truncated, "double"),
    "float_sign": PythonFunction(float_values.sign, "double"),
    "float_total": PythonFunction(float_values.total, "double"),
    "float_percentile": PythonFunction(float_values.percentile, "double"),
    "list_percentile": PythonFunction(decimal_values.percentile, "string"),
    "list_mode": PythonFunction(decimal_values.mode, "string"),
    "decimal_variance": PythonFunction(decimal_values.variance, "string"),
    "float_average": PythonFunction(float_values.average, "double"),
    "range_made": _lax(range_values.made, "string"),
    "range_low": PythonFunction(range_values.low, "string"),
    "range_high": PythonFunction(range_values.high, "string"),
    "range_empty": PythonFunction(range_values.is_empty, "boolean"),
    "range_has_low": PythonFunction(range_values.has_low, "boolean"),
    "range_has_high": PythonFunction(range_values.has_high, "boolean"),
    "range_endless_low": PythonFunction(range_values.endless_low, "boolean"),
    "range_endless_high": PythonFunction(range_values.endless_high, "boolean"),
    "range_holds": PythonFunction(range_values.holds, "boolean"),
    "range_contains": PythonFunction(range_values.contains, "boolean"),
    "range_overlaps": PythonFunction(range_values.overlaps, "boolean"),
    "range_before": PythonFunction(range_values.before, "boolean"),
    "range_beside": PythonFunction(range_values.beside, "boolean"),
    "range_common": PythonFunction(range_values.common, "string"),
    "range_union": PythonFunction(range_values.union, "string"),
    "range_equal": PythonFunction(range_values.equal, "boolean"),
    "interval_shown": PythonFunction(interval_changes.shown, "string"),
    "interval_plus": PythonFunction(interval_changes.plus, "string"),
    "interval_minus": PythonFunction(interval_changes.minus, "string"),
    "interval_negated": PythonFunction(interval_changes.negated, "string"),
    "interval_times": PythonFunction(interval_changes.times, "string"),
    "interval_justified_hours": PythonFunction(interval_changes.justified_hours, "string"),
    "interval_justified_days": PythonFunction(interval_changes.justified_days, "string"),
    "interval_made": PythonFunction(interval_changes.made, "string"),
    "moment_moved": PythonFunction(interval_changes.moved, "timestamp_ntz"),
    "moment_bin": PythonFunction(interval_changes.bin_of, "timestamp_ntz"),
    "moment_made": PythonFunction(interval_changes.moment_of, "timestamp_ntz"),
    "moment_read": PythonFunction(interval_changes.moment_read, "timestamp"),
    "moment_clock": PythonFunction(interval_changes.clock, "string"),
    "moment_second": PythonFunction(interval_changes.second, "double"),
    "moment_epoch": PythonFunction(interval_changes.epoch, "double"),
    "jsonb_of_text": PythonFunction(jsonb_changes.of_text, "string"),
    "jsonb_array": _lax(jsonb_changes.array, "string"),
    "jsonb_entries": _lax(jsonb_changes.entries, "string"),
    "jsonb_gathered": PythonFunction(jsonb_changes.gathered, "string"),
    "jsonb_joined": PythonFunction(jsonb_changes.joined, "string"),
    "jsonb_without_key": PythonFunction(jsonb_changes.without_key, "string"),
    "jsonb_without_index": PythonFunction(jsonb_changes.without_index, "string"),
    "jsonb_without_path": PythonFunction(jsonb_changes.without_path, "string"),
    "jsonb_with_path": PythonFunction(jsonb_changes.with_path, "string"),
    "jsonb_stripped": PythonFunction(jsonb_changes.stripped, "string"),
    "jsonb_pretty": PythonFunction(jsonb_changes.pretty, "string"),
    "jsonb_compared": PythonFunction(jsonb_changes.compared, "int"),
}

MODULES = tuple(import_module(f"{values.__name__}.{found.name}") for found in iter_modules(values.__path__))
"""What the functions are in: Spark's processes have nothing of this program."""

_CALL = re.compile(rf"\b{_PREFIX}({'|'.join(FUNCTIONS)})\(")


def call(name: str, *arguments: str) -> str:
    """A call in Spark SQL.

    >>> call("jsonb_member", "r0.`j`", "'a'")
    "headwater_jsonb_member(r0.`j`, 'a')"
    """
    assert name in FUNCTIONS, name
    return f"{_PREFIX}{name}({', '.join(arguments)})"


def called(*queries: str) -> dict[str, PythonFunction]:
    """The functions that queries of Spark's call, by the names that they have there.

    >>> [*called("SELECT headwater_jsonb_kind(j) FROM t")]
    ['headwater_jsonb_kind']
    """
    names = dict.fromkeys(name for query in queries for name in _CALL.findall(query))
    return {_PREFIX + name: FUNCTIONS[name] for name in names}
