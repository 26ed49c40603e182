"""Intervals that are made, changed and shown; timestamps that are moved by them, or put into bins.

Moments are microseconds since 1970-01-01. Of this program it uses `interval_values` alone: Spark gets both by value.
"""

import calendar
import datetime
from fractions import Fraction

from sql.spark.python.values.interval_values import checked, numbers, parts

_SECOND = 1_000_000
_DAY = 86_400 * _SECOND
_INFINITE = (1 << 26) * _DAY
_EPOCH = datetime.datetime(1970, 1, 1)
_FIRST, _LAST = -62_135_596_800 * _SECOND, 253_402_300_800 * _SECOND


def shown(text: str) -> str:
    """`interval::text`.

    >>> shown("14 mons -3 days -04:05:06.700000"), shown("0 mons 0 days 00:00:00"), shown("1 mons 1 days 00:00:00")
    ('1 year 2 mons -3 days -04:05:06.7', '00:00:00', '1 mon 1 day')
    """
    months, days, micros = parts(text)
    years = abs(months) // 12 * (-1 if months < 0 else 1)
    written: list[str] = []
    before = False
    for number, unit in ((years, "year"), (months - years * 12, "mon"), (days, "day")):
        if number:
            plus = "+" if before and number > 0 else ""
            written.append(f"{plus}{number} {unit}{'' if number == 1 else 's'}")
            before = number < 0
    if micros or not written:
        seconds, fraction = divmod(abs(micros), _SECOND)
        sign = "-" if micros < 0 else "+" if before else ""
        rest = f".{fraction:06}".rstrip("0") if fraction else ""
        written.append(f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{rest}")
    return " ".join(written)


def plus(one: str, other: str) -> str:
    """`interval + interval`."""
    a, b = parts(one), parts(other)
    return checked(a[0] + b[0], a[1] + b[1], a[2] + b[2])


def minus(one: str, other: str) -> str:
    """`interval - interval`."""
    a, b = parts(one), parts(other)
    return checked(a[0] - b[0], a[1] - b[1], a[2] - b[2])


def negated(text: str) -> str:
    """`- interval`."""
    months, days, micros = parts(text)
    return checked(-months, -days, -micros)


def times(text: str, factor: float) -> str:
    """`interval * double precision` (interval_mul, timestamp.c), with floating point numbers as there.

    >>> times("1 mons 1 days 00:00:00", 1.5)
    '1 mons 16 days 12:00:00.000000'
    """
    months, days, micros = parts(text)
    by_months, by_days = months * factor, days * factor
    if not abs(by_months) < 1 << 31 or not abs(by_days) < 1 << 31:
        raise ValueError("interval out of range")
    month, day = int(by_months), int(by_days)
    rest_days = _to_micros((by_months - month) * 30)
    rest_seconds = _to_micros((by_days - day + rest_days - int(rest_days)) * 86_400)
    if abs(rest_seconds) >= 86_400:
        day += int(rest_seconds / 86_400)
        rest_seconds -= int(rest_seconds / 86_400) * 86_400
    day += int(rest_days)
    # Some processors multiply and add at once, with one rounding instead of two.
    micro = round(micros * factor + rest_seconds * 1e6)
    exact = Fraction(micros) * Fraction(factor) + Fraction(rest_seconds) * _SECOND
    if abs(exact - micro) > Fraction(4999, 10_000):
        raise ValueError("a product of an interval that depends on the processor")
    return checked(month, day, micro)


def _to_micros(number: float) -> float:
    """Rounded to so many places."""
    return round(number * 1e6) / 1e6


def _carried(larger: int, smaller: int, size: int) -> tuple[int, int]:
    """Units that a smaller one has so many of, both with the same sign in the end."""
    whole = abs(smaller) // size * (-1 if smaller < 0 else 1)
    larger, smaller = larger + whole, smaller - whole * size
    if larger > 0 > smaller:
        return larger - 1, smaller + size
    return (larger + 1, smaller - size) if larger < 0 < smaller else (larger, smaller)


def justified_hours(text: str) -> str:
    """`justify_hours`.

    >>> justified_hours("0 mons 1 days -25:00:00"), justified_days("1 mons -35 days 00:00:00")
    ('0 mons 0 days -01:00:00.000000', '0 mons -5 days 00:00:00.000000')
    """
    months, days, micros = parts(text)
    return checked(months, *_carried(days, micros, _DAY))


def justified_days(text: str) -> str:
    """`justify_days`."""
    months, days, micros = parts(text)
    months, days = _carried(months, days, 30)
    return checked(months, days, micros)


def made(years: int, months: int, weeks: int, days: int, hours: int, minutes: int, seconds: float) -> str:
    """`make_interval`."""
    micros = (hours * 60 + minutes) * 60 * _SECOND + round(seconds * 1e6)
    return checked(years * 12 + months, weeks * 7 + days, micros)


def moved(micros: int, text: str, sign: int) -> int:
    """A timestamp plus an interval (``sign`` 1), or minus one (-1).

    >>> moved(86_400_000_000 * 30, "1 mons 0 days 00:00:00", 1) // 86_400_000_000
    58
    """
    if abs(micros) >= _INFINITE:
        return micros
    months, days, rest = (part * sign for part in parts(text))
    moment = _EPOCH + datetime.timedelta(microseconds=micros)
    years, month = divmod(moment.month - 1 + months, 12)
    year = moment.year + years
    if not 1 <= year <= 9999:
        raise ValueError("before the year 1 or after 9999")
    day = min(moment.day, calendar.monthrange(year, month + 1)[1])
    within = micros % _DAY
    start = (datetime.datetime(year, month + 1, day) - _EPOCH).days
    found = (start + days) * _DAY + within + rest
    if not _FIRST <= found < _LAST:
        raise ValueError("before the year 1 or after 9999")
    return found


def bin_of(stride: str, micros: int, origin: int) -> int:
    """`date_bin`.

    >>> bin_of("00:15:00", 1_000_000_000, 0), bin_of("00:15:00", -1, 0)
    (900000000, -900000000)
    """
    months, days, rest = parts(stride)
    width = days * _DAY + rest
    if months or width <= 0 or max(abs(micros), abs(origin)) >= _INFINITE:
        raise ValueError("a stride with months, or that is not above zero; a timestamp that is not finite")
    return origin + (micros - origin) // width * width


def moment_of(year: int, month: int, day: int, hour: int, minute: int, second: float) -> int:
    """`make_timestamp`."""
    if not 1 <= year <= 9999 or not 0 <= hour <= 23 or not 0 <= minute <= 59 or not 0 <= second < 60:
        raise ValueError("time field value out of range, or at its end")
    days = datetime.date(year, month, day).toordinal() - _EPOCH.toordinal()
    return days * _DAY + (hour * 60 + minute) * 60 * _SECOND + round(second * 1e6)


def clock(micros: int) -> str:
    """`timestamp::time`."""
    if abs(micros) >= _INFINITE:
        raise ValueError("a timestamp that is not finite")
    seconds, fraction = divmod(micros % _DAY, _SECOND)
    rest = f".{fraction:06}".rstrip("0") if fraction else ""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{rest}"


def moment_read(text: str, pattern: str) -> int:
    """`to_timestamp`, of text that is what the format says, digit by digit."""
    fields = numbers(text, pattern)
    time = (fields.get(name, 0) for name in "hns")
    return moment_of(fields["y"], fields["m"], fields["d"], *time)


def second(micros: int) -> float:
    """`date_part('second', …)`."""
    return micros // _SECOND % 60 + micros % _SECOND / 1e6


def epoch(micros: int) -> float:
    """`date_part('epoch', …)`."""
    return micros / 1e6
