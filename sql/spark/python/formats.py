"""to_char, by formats that are literals, and width_bucket in Spark's dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark.dates import local, zoned
from sql.spark.numbers.exact import decimal_of
from sql.spark.protocol import Expressions, Rule
from sql.spark.python.calls import call
from sql.spark.python.values import date_formats, number_formats
from sql.spark.types import DATE, INTEGER, TEXT, TIMESTAMP, Typed, is_numeral
from sql.spark.values import converted, string

T = TypeVar("T")

_SHOWN = replace(TEXT, ordered=False)
"""Text in the database's own collation, whichever that is."""


def _to_char(expressions: Expressions, node: exp.TimeToStr) -> Typed:
    pattern = _pattern(node.args["format"])
    of_date = _date_as_moment(expressions, node.this)
    utc = expressions.environment.utc
    if of_date is not None and utc and _has_time(pattern):
        of_date = zoned(of_date)
    value = of_date or expressions.render(node.this)
    value = local(value) if utc else value
    if value.type.is_number or is_numeral(value.type):
        _check(number_formats.checked, pattern)
        text = value if is_numeral(value.type) else converted(value, TEXT)
        return Typed(call("number_shown", text.sql, string(pattern)), _SHOWN)
    if value.type in (DATE, TIMESTAMP):
        times = _has_time(pattern)
        if value.type == DATE and times:
            raise NotExpressible("to_char of a date with a time, which depends on the session's time zone")
        name = "date_shown" if value.type == DATE else "timestamp_shown"
        return Typed(call(name, value.sql, string(pattern)), _SHOWN)
    raise NotExpressible(f"function to_char of {value.type.name}")


def _date_as_moment(expressions: Expressions, node: Any) -> Typed | None:
    """The date that PostgreSQL has made a timestamp with time zone of, which is on the same day in that zone."""
    node = node.unnest()
    if not (isinstance(node, exp.Cast) and node.to.is_type("timestamptz")):
        return None
    value = node.this.unnest()
    if isinstance(value, exp.Literal | exp.Null):
        return None
    rendered = expressions.render(value)
    return rendered if rendered.type == DATE else None


def _pattern(node: Any) -> str:
    node = node.unnest()
    literal = node.this.unnest() if isinstance(node, exp.Cast) else node
    if not isinstance(literal, exp.Literal) or not literal.is_string or not literal.name:
        raise NotExpressible("function to_char with a format that is not a literal")
    return str(literal.name)


def _check(checked: Callable[[str], T], pattern: str) -> T:
    """Raises NotExpressible for a format that is not known."""
    try:
        return checked(pattern)
    except ValueError as reason:
        raise NotExpressible(f"function to_char: {reason}") from None


def _has_time(pattern: str) -> bool:
    """Whether a format asks for a time of day."""
    parts = _check(date_formats.parsed, pattern)
    times = {name.upper() for name in date_formats.TIME_FIELDS}
    return any(kind and name.upper() in times for kind, name in parts)


def _width_bucket(expressions: Expressions, node: exp.WidthBucket) -> Typed:
    values = [decimal_of(expressions.render(node.args[part])) for part in ("this", "min_value", "max_value")]
    count = expressions.render(node.args["num_buckets"])
    if any(value.type.name != "numeric" for value in values) or not count.type.is_integer:
        raise NotExpressible("width_bucket of anything but numerics")
    number = f"CAST({count.sql} AS INT)"
    return Typed(call("number_bucket", *(value.sql for value in values), number), INTEGER)


FORMATS: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    exp.WidthBucket: (_width_bucket, ("this", "min_value", "max_value", "num_buckets")),
    exp.TimeToStr: (_to_char, ("this", "format")),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
