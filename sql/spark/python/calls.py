"""Which functions there are in Python, and what Spark calls them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sql.spark.python import date_formats, interval_values, jsonb_values, number_formats, text_values

_PREFIX = "headwater_"


@dataclass(frozen=True, slots=True)
class PythonFunction:
    """``function`` gets values that are not NULL. ``result`` is a type of Spark's.

    Dates are days, and timestamps microseconds, since 1970-01-01, both as arguments and as a result.
    """

    function: Callable[..., Any]
    result: str


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
}

MODULES = (date_formats, interval_values, jsonb_values, number_formats, text_values)
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
