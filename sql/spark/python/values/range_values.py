"""Ranges, as texts that PostgreSQL writes, and what is done with them.

Bounds are texts as well, compared as numbers, or as dates and timestamps in ISO 8601. ``kind`` is what they are:
`whole`, `day`, `number` or `moment`; ranges of the first two begin with a bound that is in them and end with one that
is not. Nothing here uses anything else of this program: Spark gets it by value.
"""

import datetime
import re
from decimal import Decimal
from typing import Any

_RANGE = re.compile(r'([\[(])(?:"([^"]*)"|([^",]*)),(?:"([^"]*)"|([^",\])]*))([\])])')
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:.]+")
_LIMITS = {"integer": 1 << 31, "bigint": 1 << 63}


def _key(bound: str, kind: str) -> Any:
    if kind == "whole":
        return int(bound)
    if kind == "number":
        number = Decimal(bound)
        if not number.is_finite():
            raise ValueError("a bound that is not finite")
        return number
    if not (_DAY if kind == "day" else _MOMENT).fullmatch(bound):
        raise ValueError("a bound before the year 1, after 9999 or infinite")
    return bound


class Range:
    """``low`` and ``high`` are None where there is no bound; ``with_low`` and ``with_high``: it is in the range."""

    def __init__(self, low: str | None, high: str | None, with_low: bool, with_high: bool, empty: bool, kind: str):
        self.low, self.high, self.with_low, self.with_high = low, high, with_low, with_high
        self.empty, self.kind = empty, kind
        # Below the least, and above the greatest bound, are those that are not there.
        self.start = (-1,) if low is None else (0, _key(low, kind), 0 if with_low else 1)
        self.end = (1,) if high is None else (0, _key(high, kind), 0 if with_high else -1)


def parsed(text: str, kind: str) -> Range:
    """The range of a text. Raises ValueError for bounds that are not compared here."""
    if text == "empty":
        return Range(None, None, False, False, True, kind)
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError("malformed range")
    low, high = found[2] or found[3], found[4] or found[5]
    return Range(low or None, high or None, found[1] == "[", found[6] == "]", False, kind)


def written(value: Range) -> str:
    """The text of a range."""
    if value.empty:
        return "empty"
    low, high = (
        "" if bound is None else f'"{bound}"' if value.kind == "moment" else bound for bound in (value.low, value.high)
    )
    return f"{'[' if value.with_low else '('}{low},{high}{']' if value.with_high else ')'}"


def _made(low: str | None, high: str | None, with_low: bool, with_high: bool, kind: str) -> Range:
    """The range as PostgreSQL keeps it."""
    value = Range(low, high, with_low and low is not None, with_high and high is not None, False, kind)
    if low is not None and high is not None:
        one, other = _key(low, kind), _key(high, kind)
        if one > other:
            raise ValueError("range lower bound must be less than or equal to range upper bound")
        if one == other and not (with_low and with_high):
            return parsed("empty", kind)
    return _canonical(value) if kind in ("whole", "day") else value


def _canonical(value: Range) -> Range:
    low, high = value.low, value.high
    if low is not None and not value.with_low:
        low = _next(low, value.kind)
    if high is not None and value.with_high:
        high = _next(high, value.kind)
    if low is not None and high is not None and _key(low, value.kind) >= _key(high, value.kind):
        return parsed("empty", value.kind)
    return Range(low, high, low is not None, False, False, value.kind)


def _next(bound: str, kind: str) -> str:
    if kind == "whole":
        return str(int(bound) + 1)
    day = datetime.date.fromisoformat(bound)
    if day == datetime.date.max:
        raise ValueError("a bound after the year 9999")
    return str(day + datetime.timedelta(days=1))


def made(low: str | None, high: str | None, bounds: str, kind: str, type_: str) -> str:
    """`int4range(low, high, bounds)` and the like.

    >>> made("1", "3", "[]", "whole", "integer"), made("1", "1", "()", "whole", "integer")
    ('[1,4)', 'empty')
    >>> made("1.0", None, "(]", "number", "")
    '(1.0,)'
    """
    if bounds not in ("[]", "[)", "(]", "()"):
        raise ValueError("invalid range bound flags")
    value = _made(low, high, bounds[0] == "[", bounds[1] == "]", kind)
    limit = _LIMITS.get(type_)
    if limit and any(bound is not None and int(bound) >= limit for bound in (value.low, value.high)):
        raise ValueError(f"{type_} out of range")
    return written(value)


def low(text: str) -> str | None:
    """`lower`."""
    found = _RANGE.fullmatch(text)
    return (found[2] or found[3] or None) if found else None


def high(text: str) -> str | None:
    """`upper`."""
    found = _RANGE.fullmatch(text)
    return (found[4] or found[5] or None) if found else None


def is_empty(text: str) -> bool:
    """`isempty`."""
    return text == "empty"


def has_low(text: str) -> bool:
    """`lower_inc`."""
    return text.startswith("[")


def has_high(text: str) -> bool:
    """`upper_inc`."""
    return text.endswith("]")


def endless_low(text: str) -> bool:
    """`lower_inf`."""
    return text != "empty" and text[1] == ","


def endless_high(text: str) -> bool:
    """`upper_inf`."""
    return text != "empty" and text[-2] == ","


def holds(text: str, item: str, kind: str) -> bool:
    """`range @> element`.

    >>> holds("[1,4)", "3", "whole"), holds("[1,4)", "4", "whole"), holds("(1.0,)", "1.00", "number")
    (True, False, False)
    """
    value, key = parsed(text, kind), (0, _key(item, kind), 0)
    return not value.empty and value.start <= key <= value.end


def contains(text: str, other: str, kind: str) -> bool:
    """`range @> range`."""
    one, two = parsed(text, kind), parsed(other, kind)
    return two.empty or (not one.empty and one.start <= two.start and two.end <= one.end)


def overlaps(text: str, other: str, kind: str) -> bool:
    """`range && range`."""
    one, two = parsed(text, kind), parsed(other, kind)
    return not (one.empty or two.empty) and one.start <= two.end and two.start <= one.end


def before(text: str, other: str, kind: str) -> bool:
    """`range << range`."""
    one, two = parsed(text, kind), parsed(other, kind)
    return not (one.empty or two.empty) and one.end < two.start


def beside(text: str, other: str, kind: str) -> bool:
    """`range -|- range`.

    >>> beside("[1,4)", "[4,5)", "whole"), beside("[1,4]", "[4,5)", "number")
    (True, False)
    """
    one, two = parsed(text, kind), parsed(other, kind)
    return not (one.empty or two.empty) and (_meet(one, two) or _meet(two, one))


def _meet(one: Range, two: Range) -> bool:
    if one.high is None or two.low is None:
        return False
    return bool(_key(one.high, one.kind) == _key(two.low, two.kind) and one.with_high != two.with_low)


def common(text: str, other: str, kind: str) -> str:
    """`range * range`."""
    one, two = parsed(text, kind), parsed(other, kind)
    if not overlaps(text, other, kind):
        return "empty"
    start = one if one.start >= two.start else two
    end = one if one.end <= two.end else two
    return written(Range(start.low, end.high, start.with_low, end.with_high, False, kind))


def union(text: str, other: str, kind: str) -> str:
    """`range + range`."""
    one, two = parsed(text, kind), parsed(other, kind)
    if one.empty or two.empty:
        return other if one.empty else text
    if not overlaps(text, other, kind) and not beside(text, other, kind):
        raise ValueError("result of range union would not be contiguous")
    start = one if one.start < two.start else two
    end = one if one.end > two.end else two
    return written(Range(start.low, end.high, start.with_low, end.with_high, False, kind))


def equal(text: str, other: str, kind: str) -> bool:
    """`range = range`."""
    one, two = parsed(text, kind), parsed(other, kind)
    if one.empty or two.empty:
        return one.empty and two.empty
    return one.start == two.start and one.end == two.end
