"""Intervals in Spark's dialect, which are PostgreSQL's texts; to_date and to_timestamp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark.dates import local
from sql.spark.protocol import Expressions, Rule
from sql.spark.python.calls import call
from sql.spark.python.values import interval_values
from sql.spark.types import DATE, INTEGER, TIMESTAMP, TIMESTAMPTZ, SparkType, Typed, numeric
from sql.spark.values import string

INTERVAL = SparkType("interval", equatable=False, ordered=False, groupable=False)

_FIELDS = {"year": (9, 0), "month": (2, 0), "day": (10, 0), "hour": (10, 0), "minute": (2, 0), "second": (2, 6),
           "epoch": (18, 6)}  # fmt: skip
"""Digits before and after the point."""


def difference(left: Typed, right: Typed) -> Typed | None:
    """A timestamp minus another one, None if they are none."""
    if left.type != right.type or left.type not in (TIMESTAMP, TIMESTAMPTZ):
        return None
    return Typed(call("interval_difference", left.sql, right.sql), INTERVAL)


def compared(value: Typed) -> Typed:
    """What an interval is compared by."""
    type_ = numeric(26, 0)
    return Typed(f"CAST({call('interval_span', value.sql)} AS {type_.spark})", type_)


def totals(expressions: Expressions, value: Typed) -> list[str]:
    """The sums of the parts of intervals, as texts."""
    calls = (call("interval_part", value.sql, string(name)) for name in ("months", "days", "micros"))
    parts = (expressions.once(each) for each in calls)
    return [f"CAST(sum(CAST({part} AS DECIMAL(20, 0))){expressions.clause} AS STRING)" for part in parts]


def extracted(value: Typed, part: str) -> Typed:
    """A field of an interval. Raises NotExpressible."""
    if part not in _FIELDS:
        raise NotExpressible(f"EXTRACT({part} FROM interval)")
    type_ = numeric(*_FIELDS[part])
    return Typed(f"CAST({call('interval_field', value.sql, string(part))} AS {type_.spark})", type_)


def _age(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    values = [expressions.render(node) for node in nodes]
    if expressions.environment.utc:
        values = [local(value) for value in values]
    if [value.type for value in values] != [TIMESTAMP, TIMESTAMP]:
        raise NotExpressible("age of anything but two timestamps")
    return Typed(call("interval_age", *(value.sql for value in values)), INTERVAL)


def _to_date(expressions: Expressions, node: exp.StrToDate) -> Typed:
    return Typed(call("date_read", *_by_format(expressions, node, "to_date", interval_values.date_pattern)), DATE)


def _to_timestamp(expressions: Expressions, node: exp.StrToTime) -> Typed:
    if not expressions.environment.utc:
        raise NotExpressible("function to_timestamp of text, which depends on the session's time zone")
    read = _by_format(expressions, node, "to_timestamp", interval_values.moment_pattern)
    return Typed(call("moment_read", *read), TIMESTAMPTZ)


def _by_format(
    expressions: Expressions, node: exp.StrToDate | exp.StrToTime, name: str, pattern_of: Callable[[str], str]
) -> tuple[str, str]:
    """The text that a function reads, and the regular expression of its format. Raises NotExpressible."""
    text, layout = expressions.render(node.this), node.args["format"].unnest()
    literal = layout.this.unnest() if isinstance(layout, exp.Cast) else layout
    if text.type.name != "text" or not isinstance(literal, exp.Literal):
        raise NotExpressible(f"{name} of anything but text, or by a format that is not a literal")
    try:
        return text.sql, string(pattern_of(literal.name))
    except ValueError as reason:
        raise NotExpressible(f"function {name}: {reason}") from None


def _from_epoch(expressions: Expressions, node: exp.UnixToTime) -> Typed:
    seconds = expressions.render(node.this)
    if seconds.type.name != "double precision":
        raise NotExpressible(f"to_timestamp of {seconds.type.name}")
    return Typed(call("timestamptz_of_epoch", seconds.sql), TIMESTAMPTZ)


_INTERVAL_FIELDS = ("year", "month", "week", "day", "hour", "minute", "second")


def _make_interval(expressions: Expressions, node: exp.MakeInterval) -> Typed:
    arguments = []
    for field in _INTERVAL_FIELDS:
        part = node.args.get(field)
        part = part.expression if isinstance(part, exp.Kwarg) else part
        value = expressions.render(part) if part is not None else Typed("0", INTEGER)
        seconds = field == "second"
        if not (value.type.name == "double precision" if seconds and part is not None else value.type == INTEGER):
            raise NotExpressible(f"make_interval of {value.type.name}")
        arguments.append(f"CAST({value.sql} AS {'DOUBLE' if seconds else 'INT'})")
    return Typed(call("interval_made", *arguments), INTERVAL)


INTERVALS: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    exp.StrToDate: (_to_date, ("this", "format")),
    exp.UnixToTime: (_from_epoch, ("this",)),
    exp.StrToTime: (_to_timestamp, ("this", "format")),
    exp.MakeInterval: (_make_interval, _INTERVAL_FIELDS),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""

INTERVAL_FUNCTIONS = {"age": _age}
"""By PostgreSQL's names."""
