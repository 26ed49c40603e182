"""Dates, timestamps and intervals in Spark's dialect."""

from __future__ import annotations

import datetime
import re
from calendar import monthrange
from dataclasses import dataclass, replace

from sql.errors import NotExpressible
from sql.spark.numbers.exact import failure
from sql.spark.types import (
    BIGINT,
    DATE,
    INFINITE_DAYS,
    INTEGER,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    SparkType,
    Typed,
    numeric,
)

_UNITS = {
    "year": 12, "years": 12, "mon": 1, "mons": 1, "month": 1, "months": 1, "day": 0, "days": 0,
}  # fmt: skip
_PART = re.compile(r"\s*(?:([+-]?\d+) (years?|mons?|months?|days?)|([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?)(?=\s|$)")


@dataclass(frozen=True, slots=True)
class Interval:
    """PostgreSQL's interval: what is added as months, then as days, then as microseconds."""

    months: int = 0
    days: int = 0
    microseconds: int = 0

    def __neg__(self) -> Interval:
        return Interval(-self.months, -self.days, -self.microseconds)


def parse_interval(text: str) -> Interval:
    """An interval as PostgreSQL writes it. Raises NotExpressible.

    >>> parse_interval("1 year 2 mons -3 days -04:05:06.7")
    Interval(months=14, days=-3, microseconds=-14706700000)
    """
    months = days = microseconds = position = 0
    while position < len(text):
        found = _PART.match(text, position)
        if found is None:
            raise NotExpressible(f"interval '{text}'")
        position = found.end()
        if found[1]:
            months += int(found[1]) * _UNITS[found[2]]
            days += int(found[1]) if found[2].startswith("day") else 0
        else:
            seconds = (int(found[4]) * 60 + int(found[5])) * 60 + int(found[6])
            microseconds += (seconds * 1_000_000 + int((found[7] or "").ljust(6, "0"))) * (-1 if found[3] == "-" else 1)
    return Interval(months, days, microseconds)


def infinite(type_: SparkType, sign: str = "") -> str:
    """Infinity of a date or timestamp type, or with `sign` "-" its opposite.

    >>> infinite(DATE, "-")
    "date_sub(DATE '1970-01-01', 67108864)"
    """
    date = f"date_{'sub' if sign else 'add'}(DATE '1970-01-01', {INFINITE_DAYS})"
    return date if type_ == DATE else f"CAST({date} AS {type_.spark})"


def where_finite(value: Typed, sql: str, otherwise: str | None = None) -> str:
    """`sql`, which computes with a date or timestamp; where that is infinite `otherwise`, or the value itself."""
    if _constant(value) is not None:
        return sql
    ends = f"{infinite(value.type)}, {infinite(value.type, '-')}"
    return f"(CASE WHEN {value.sql} IN ({ends}) THEN {otherwise or value.sql} ELSE {sql} END)"


def local(value: Typed) -> Typed:
    """A timestamp with time zone as one without, in UTC, which is the zone of every session of Spark's."""
    return Typed(f"CAST({value.sql} AS TIMESTAMP_NTZ)", TIMESTAMP) if value.type == TIMESTAMPTZ else value


def zoned(value: Typed) -> Typed:
    """A date or timestamp without time zone as one with, in UTC."""
    return Typed(f"CAST({value.sql} AS TIMESTAMP)", TIMESTAMPTZ)


def in_utc(value: Typed, target: SparkType) -> Typed | None:
    """A cast that depends on the session's time zone, where that is UTC. None of any other cast."""
    if value.type in (DATE, TIMESTAMP) and target == TIMESTAMPTZ:
        return zoned(value)
    if value.type != TIMESTAMPTZ or target not in (DATE, TIMESTAMP, TEXT):
        return None
    if target == TEXT:
        return moment_text(value)
    return local(value) if target == TIMESTAMP else Typed(f"CAST({local(value).sql} AS DATE)", DATE)


def moment_text(value: Typed) -> Typed:
    """The text of a date or timestamp, in UTC."""
    text = f"CAST({value.sql} AS STRING)"
    text = f"concat({text}, '+00')" if value.type == TIMESTAMPTZ else text
    ends = (("", "infinity"), ("-", "-infinity"))
    whens = " ".join(f"WHEN {value.sql} = {infinite(value.type, sign)} THEN '{name}'" for sign, name in ends)
    return Typed(f"(CASE {whens} ELSE {text} END)", replace(TEXT, ordered=False))


def years_of(value: Typed, sql: str) -> str:
    """`sql`, which counts years of a date or timestamp; an error where it is infinite, or before the year 1."""
    if _constant(value) is not None:
        return sql
    before = "DATE '0001-01-01'" if value.type == DATE else "TIMESTAMP_NTZ '0001-01-01 00:00:00'"
    outside = f"{value.sql} < {before} OR {value.sql} = {infinite(value.type)}"
    return f"(CASE WHEN {outside} THEN CAST({failure('year of infinity or before the year 1')} AS INT) ELSE {sql} END)"


def epoch(value: Typed) -> Typed:
    """The seconds since 1970-01-01 of a date or timestamp; an error where it is infinite."""
    value = local(value)
    days = f"datediff(CAST({value.sql} AS DATE), DATE '1970-01-01')"
    type_, seconds = numeric(12, 0), f"CAST({days} AS BIGINT) * 86400"
    if value.type == TIMESTAMP:
        type_ = numeric(12, 6)
        minutes = f"(hour({value.sql}) * 60 + minute({value.sql}))"
        seconds = f"CAST({seconds} + {minutes} * 60 AS DECIMAL(12, 0)) + extract(SECOND FROM {value.sql})"
    infinity = f"CAST({failure('epoch of infinity')} AS {type_.spark})"
    return Typed(where_finite(value, f"CAST({seconds} AS {type_.spark})", infinity), type_)


_DAY = 24 * 60 * 60 * 1_000_000

_LONGEST = 100_000
"""Months, or days, that an interval may have: no sum gets to the stand-ins of infinity."""


def moved(value: Typed, interval: Interval, *, utc: bool) -> Typed:
    """A date or timestamp plus an interval; ``utc``: that is the session's time zone. Raises NotExpressible."""
    known = _constant(value)
    if known is not None:
        return timestamp(_moved(known, interval))
    if max(abs(interval.months), abs(interval.days), abs(interval.microseconds) // _DAY) > _LONGEST:
        raise NotExpressible("very long interval")
    if value.type == TIMESTAMPTZ:
        if utc and (interval.months or interval.days):
            return zoned(moved(local(value), interval, utc=utc))
        if interval.months or interval.days:
            raise NotExpressible("days or months on timestamp with time zone, which depend on the session's time zone")
        return Typed(where_finite(value, f"({value.sql} {_time(interval.microseconds)})"), TIMESTAMPTZ)
    if value.type not in (DATE, TIMESTAMP):
        raise NotExpressible(f"{value.type.name} with an interval")
    value = value if value.type == TIMESTAMP else Typed(f"CAST({value.sql} AS TIMESTAMP_NTZ)", TIMESTAMP)
    sql = value.sql
    if interval.months:
        sign, months = _sign(interval.months)
        sql = f"({sql} {sign} INTERVAL '{months}' MONTH)"
    if interval.days:
        sign, days = _sign(interval.days)
        sql = f"({sql} {sign} INTERVAL '{days}' DAY)"
    if interval.microseconds:
        sql = f"({sql} {_time(interval.microseconds)})"
    return Typed(where_finite(value, sql), TIMESTAMP)


def _sign(number: int) -> tuple[str, int]:
    return ("-", -number) if number < 0 else ("+", number)


def _time(microseconds: int) -> str:
    sign, rest = ("-", -microseconds) if microseconds < 0 else ("+", microseconds)
    seconds, fraction = divmod(rest, 1_000_000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"{sign} INTERVAL '{days} {hours:02}:{minutes:02}:{seconds:02}.{fraction:06}' DAY TO SECOND"


_LITERAL = re.compile(r"(DATE|TIMESTAMP_NTZ) '([^']+)'")


def _constant(value: Typed) -> datetime.datetime | None:
    """The value of a literal date or timestamp without time zone."""
    found = _LITERAL.fullmatch(value.sql)
    return datetime.datetime.fromisoformat(found[2]) if found else None


def _moved(moment: datetime.datetime, interval: Interval) -> datetime.datetime:
    try:
        years, month = divmod(moment.month - 1 + interval.months, 12)
        year = moment.year + years
        day = min(moment.day, monthrange(year, month + 1)[1])
        whole = moment.replace(year=year, month=month + 1, day=day)
        return whole + datetime.timedelta(days=interval.days, microseconds=interval.microseconds)
    except (ValueError, OverflowError):
        raise NotExpressible("date outside the years 1 to 9999") from None


def timestamp(moment: datetime.datetime) -> Typed:
    """A literal timestamp without time zone."""
    return Typed(f"TIMESTAMP_NTZ '{moment.isoformat(' ', 'microseconds')}'", TIMESTAMP)


def date_beside_timestamp(date: Typed, other: Typed) -> tuple[Typed, Typed]:
    """A date and a timestamp without time zone, to be compared. The date stays what it is beside a literal midnight."""
    moment = _constant(other)
    if moment is not None and moment.time() == datetime.time():
        return date, Typed(f"DATE '{moment.date()}'", DATE)
    return Typed(f"CAST({date.sql} AS TIMESTAMP_NTZ)", TIMESTAMP), other


def date_arithmetic(left: Typed, right: Typed, operator: str) -> Typed:
    """A date plus or minus days, or a difference of dates. Raises NotExpressible."""
    if right.type == DATE and operator == "-":
        beyond = f"CAST({failure('cannot subtract infinite dates')} AS INT)"
        difference = f"datediff({left.sql}, {right.sql})"
        return Typed(where_finite(left, where_finite(right, difference, beyond), beyond), INTEGER)
    # Spark wraps around where PostgreSQL finds a date out of range.
    literal = right.sql.removeprefix("CAST(").removesuffix(" AS INT)")
    if right.type == INTEGER and literal.lstrip("-").isdecimal() and abs(int(literal)) < 1_000_000:
        moved_by = f"date_{'add' if operator == '+' else 'sub'}({left.sql}, {right.sql})"
        return Typed(where_finite(left, moved_by), DATE)
    if right.type.is_integer and right.type != BIGINT:
        infinite_still = f"CASE WHEN {right.sql} IS NOT NULL THEN {left.sql} END"
        return Typed(where_finite(left, _moved_by_days(left, right, operator), infinite_still), DATE)
    raise NotExpressible(f"date {operator} {right.type.name}")


def _moved_by_days(date: Typed, days: Typed, operator: str) -> str:
    """A date plus or minus days; an error where that is before the year 1 or after 9999."""
    day = f"datediff({date.sql}, DATE '1970-01-01') {operator} CAST({days.sql} AS BIGINT)"
    beyond = f"CAST({failure('date before the year 1 or after 9999')} AS INT)"
    within = f"CASE WHEN {day} BETWEEN {_FIRST_DAY} AND {_LAST_DAY} THEN CAST({days.sql} AS INT)"
    missing = f"WHEN {date.sql} IS NULL OR {days.sql} IS NULL THEN NULL"
    return f"date_{'add' if operator == '+' else 'sub'}({date.sql}, {within} {missing} ELSE {beyond} END)"


_EPOCH = datetime.date(1970, 1, 1).toordinal()
_FIRST_DAY, _LAST_DAY = (day.toordinal() - _EPOCH for day in (datetime.date.min, datetime.date.max))
"""Of the years 1 and 9999, as days since 1970-01-01."""
