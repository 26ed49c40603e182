"""Intervals, as texts that PostgreSQL writes, and what gives them; dates by a format.

Moments are microseconds since 1970-01-01. Nothing here uses anything else of this program: Spark gets it by value.
"""

import calendar
import datetime
import re
from fractions import Fraction

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_FINITE = 1 << 58
"""No moment of the years 1 to 9999 is beyond; infinite ones are."""
_EPOCH = datetime.datetime(1970, 1, 1)
_PART = re.compile(r"\s*(?:([+-]?\d+) (years?|mons?|days?)|([+-]?)(\d+):(\d\d):(\d\d)(?:\.(\d{1,6}))?)(?=\s|$)")
_YEARS_2000 = 946_684_800.0


def _check(*moments: int) -> None:
    if any(abs(moment) > _FINITE for moment in moments):
        raise ValueError("an infinite timestamp, which PostgreSQL's versions compute with in different ways")


def written(months: int, days: int, micros: int) -> str:
    """An interval as text that is read as it, whatever the signs."""
    sign, rest = ("-", -micros) if micros < 0 else ("", micros)
    seconds, fraction = divmod(rest, _SECOND)
    clock = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
    return f"{months} mons {days} days {clock}"


def difference(later: int, earlier: int) -> str:
    """`timestamp - timestamp`.

    >>> difference(90_000_000_000, 0), difference(0, 90_000_000_000)
    ('0 mons 1 days 01:00:00.000000', '0 mons -1 days -01:00:00.000000')
    """
    _check(later, earlier)
    micros = later - earlier
    days = abs(micros) // _DAY * (-1 if micros < 0 else 1)
    return written(0, days, micros - days * _DAY)


def age(later: int, earlier: int) -> str:
    """`age(timestamp, timestamp)`: fields are subtracted, and borrow from the next larger ones.

    >>> age(31 * 86_400_000_000, 86_400_000_000 // 2)
    '0 mons 30 days 12:00:00.000000'
    """
    _check(later, earlier)
    if later < earlier:
        months, days, micros = _age(earlier, later)
        return written(-months, -days, -micros)
    return written(*_age(later, earlier))


def _age(later: int, earlier: int) -> tuple[int, int, int]:
    one, other = (_EPOCH + datetime.timedelta(microseconds=moment) for moment in (later, earlier))
    micros = later % _DAY - earlier % _DAY
    days, months = one.day - other.day, (one.year - other.year) * 12 + one.month - other.month
    if micros < 0:
        micros, days = micros + _DAY, days - 1
    while days < 0:
        days += calendar.monthrange(other.year, other.month)[1]
        months -= 1
    return months, days, micros


def parts(text: str) -> tuple[int, int, int]:
    """Months, days and microseconds of an interval's text. Raises ValueError for an infinite one."""
    months = days = micros = at = 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            raise ValueError("an interval that is not finite")
        at = found.end()
        if found[2]:
            number, unit = int(found[1]), found[2][0]
            months += number * {"y": 12, "m": 1, "d": 0}[unit]
            days += number if unit == "d" else 0
        else:
            seconds = (int(found[4]) * 60 + int(found[5])) * 60 + int(found[6])
            clock = seconds * _SECOND + int((found[7] or "").ljust(6, "0"))
            micros += -clock if found[3] == "-" else clock
    return months, days, micros


def span(text: str) -> str:
    """What intervals are compared by: microseconds, where a month has 30 days and a day 24 hours.

    >>> span("1 mon -1 days 00:00:01"), span("2 years")
    ('2505601000000', '62208000000000')
    """
    months, days, micros = parts(text)
    return str((months * 30 + days) * _DAY + micros)


def part(text: str, name: str) -> str:
    """What is kept of an interval: its months, days or microseconds."""
    return str(dict(zip(("months", "days", "micros"), parts(text), strict=True))[name])


def checked(months: int, days: int, micros: int) -> str:
    if max(abs(months), abs(days)) >= 1 << 31 or abs(micros) >= 1 << 63:
        raise ValueError("interval out of range")
    return written(months, days, micros)


def total(months: str, days: str, micros: str) -> str:
    """`sum` of intervals, whose parts add up to these.

    >>> total("1", "-40", "3600000000")
    '1 mons -40 days 01:00:00.000000'
    """
    return checked(int(months), int(days), int(micros))


def average(months: str, days: str, micros: str, count: int) -> str:
    """`avg` of so many intervals, whose parts add up to these: interval_div (timestamp.c), floating point as there.

    >>> average("1", "1", "0", 2)
    '0 mons 15 days 12:00:00.000000'
    """
    total(months, days, micros)
    number = float(count)
    by_months, by_days, by_micros = (float(int(part)) / number for part in (months, days, micros))
    month, day = int(by_months), int(by_days)
    rest_days = _to_micros((by_months - month) * 30)
    rest_seconds = _to_micros((by_days - day + rest_days - int(rest_days)) * 86_400)
    if abs(rest_seconds) >= 86_400:
        day += int(rest_seconds / 86_400)
        rest_seconds -= int(rest_seconds / 86_400) * 86_400
    day += int(rest_days)
    # Some processors multiply and add at once, with one rounding instead of two.
    micro = round(by_micros + rest_seconds * 1e6)
    if micro != round(float(Fraction(by_micros) + Fraction(rest_seconds) * _SECOND)):
        raise ValueError("an average of intervals that depends on the processor")
    return checked(month, day, micro)


def _to_micros(number: float) -> float:
    """Rounded to so many places."""
    return round(number * 1e6) / 1e6


def _divided(number: int, by: int) -> int:
    """Towards zero."""
    return abs(number) // by * (-1 if number < 0 else 1)


def field(text: str, name: str) -> str:
    """`EXTRACT(name FROM interval)` as text.

    >>> field("1 year 2 mons -3 days -04:05:06.7", "hour"), field("1 mon 1 day 00:00:00.5", "epoch")
    ('-4', '2678400.500000')
    """
    months, days, micros = parts(text)
    years, rest = _divided(months, 12), months - _divided(months, 12) * 12
    seconds = micros - _divided(micros, 60 * _SECOND) * 60 * _SECOND
    if name == "epoch":
        # A year has 365.25 days here.
        return _seconds((years * 1461 * _DAY) // 4 + (rest * 30 + days) * _DAY + micros)
    if name == "second":
        return _seconds(seconds)
    minutes = _divided(micros, 60 * _SECOND)
    return str({"year": years, "month": rest, "day": days, "hour": _divided(micros, 3600 * _SECOND),
                "minute": minutes - _divided(minutes, 60) * 60}[name])  # fmt: skip


def _seconds(micros: int) -> str:
    return f"{'-' if micros < 0 else ''}{abs(micros) // _SECOND}.{abs(micros) % _SECOND:06}"


def from_epoch(seconds: float) -> int:
    """`to_timestamp(double precision)`: PostgreSQL computes with seconds since 2000-01-01, rounds half to even.

    >>> from_epoch(1.5), from_epoch(0.0000005)
    (1500000, 0)
    """
    if not -62_135_596_800 <= seconds < 253_402_300_799:
        raise ValueError("before the year 1 or after 9999")
    return round((seconds - _YEARS_2000) * 1e6) + int(_YEARS_2000) * _SECOND


_DATE = {"YYYY": "y", "MM": "m", "DD": "d"}
_MOMENT = {**_DATE, "HH24": "h", "MI": "n", "SS": "s"}


def _pattern(layout: str, fields: dict[str, str], kind: str) -> str:
    found = re.findall(r"YYYY|MM|DD|HH24|MI|SS|[-./_:, ]|.", layout.upper(), re.DOTALL)
    given = [part for part in found if part in fields]
    separated = all(part in fields or part in "-./_:, " for part in found)
    if not separated or len({*given}) < len(given) or not {*_DATE} <= {*given}:
        raise ValueError(f"{layout} as a format of a {kind}")
    pieces = (rf"(?P<{fields[p]}>[0-9]{{{4 if p == 'YYYY' else 2}}})" if p in fields else re.escape(p) for p in found)
    return "".join(pieces)


def numbers(text: str, pattern: str) -> dict[str, int]:
    """The fields of text that is what a format says, digit by digit. Raises ValueError."""
    found = re.fullmatch(pattern, text)
    if found is None:
        raise ValueError("text that is not what the format says")
    return {name: int(digits) for name, digits in found.groupdict().items()}


def date_pattern(layout: str) -> str:
    """The regular expression of a format of `to_date` that is made of YYYY, MM, DD and `-./_:,` or blanks.

    Raises ValueError for another one.

    >>> bool(re.fullmatch(date_pattern("DD.MM.YYYY"), "31.12.1999"))
    True
    """
    return _pattern(layout, _DATE, "date")


def moment_pattern(layout: str) -> str:
    """The regular expression of a format of `to_timestamp` that is made of YYYY, MM, DD, HH24, MI, SS and separators.

    Raises ValueError for another one.

    >>> bool(re.fullmatch(moment_pattern("YYYY-MM-DD HH24:MI"), "1999-12-31 23:59"))
    True
    """
    return _pattern(layout, _MOMENT, "timestamp")


def to_date(text: str, pattern: str) -> int:
    """`to_date`, of text that is what the format says, digit by digit, as days since 1970-01-01."""
    fields = numbers(text, pattern)
    day = datetime.date(fields["y"], fields["m"], fields["d"])
    return day.toordinal() - _EPOCH.toordinal()
