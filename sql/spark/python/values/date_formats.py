"""Dates and timestamps by a format of `to_char`, of which `parsed` says what is in it.

Nothing here uses anything else of this program: Spark gets it by value.
"""

import datetime

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_EPOCH = datetime.datetime(1970, 1, 1)
_JULIAN = 1721425
"""The Julian day of the day before 0001-01-01."""

DATE_FIELDS = (
    "YYYY", "YYY", "YY", "Y", "IYYY", "IYY", "IY", "I", "MM", "DDD", "DD", "D", "IDDD", "ID", "IW", "WW", "W", "Q",
    "CC", "J", "MONTH", "Month", "month", "MON", "Mon", "mon", "DAY", "Day", "day", "DY", "Dy", "dy",
)  # fmt: skip
TIME_FIELDS = (
    "HH24", "HH12", "HH", "MI", "SSSSS", "SSSS", "SS", "MS", "US", "FF1", "FF2", "FF3", "FF4", "FF5", "FF6", "AM", "PM",
    "am", "pm", "A.M.", "P.M.", "a.m.", "p.m.",
)  # fmt: skip
_NAMES = frozenset(("MONTH", "MON", "DAY", "DY", "AM", "PM", "A.M.", "P.M."))
FIELDS = tuple(sorted({*DATE_FIELDS, *TIME_FIELDS} | {f.lower() for f in (*DATE_FIELDS, *TIME_FIELDS)}, key=len))[::-1]
"""The longest first. Those that are no names are the same in lower case."""

_WIDTHS = {
    "YYYY": 4, "YYY": 3, "YY": 2, "Y": 1, "IYYY": 4, "IYY": 3, "IY": 2, "I": 1, "MM": 2, "DDD": 3, "DD": 2, "D": 1,
    "IDDD": 3, "ID": 1, "IW": 2, "WW": 2, "W": 1, "Q": 1, "CC": 2,
    "J": 0, "HH24": 2, "HH12": 2, "HH": 2, "MI": 2, "SS": 2,
    "SSSS": 0, "SSSSS": 0,
}  # fmt: skip
_FRACTIONS = {"MS": 3, "US": 6, "FF1": 1, "FF2": 2, "FF3": 3, "FF4": 4, "FF5": 5, "FF6": 6}


def parsed(pattern: str) -> list[tuple[str, str]]:
    """The parts of a format: ("", text), ("field", name) or ("FM", name).

    Raises ValueError for what has letters that belong to no field of these, which may be fields of PostgreSQL's.

    >>> parsed('FMDD. "of" YYYY')
    [('FM', 'DD'), ('', '. of '), ('field', 'YYYY')]
    """
    parts: list[tuple[str, str]] = []
    at = 0
    while at < len(pattern):
        filled = pattern[at : at + 2] not in ("FM", "fm")
        start = at if filled else at + 2
        field = next((name for name in FIELDS if pattern.startswith(name, start)), None)
        if field is not None:
            parts.append(("field" if filled else "FM", field))
            at = start + len(field)
            if pattern[at : at + 2].upper() in ("TH", "SP"):
                raise ValueError(f"{pattern[at : at + 2]} in a format")
            continue
        text, at = _text(pattern, at)
        joined = parts.pop()[1] if parts and not parts[-1][0] else ""
        parts.append(("", joined + text))
    return parts


def _text(pattern: str, at: int) -> tuple[str, int]:
    """What stands for itself at a place, and where it ends."""
    if pattern[at] == '"':
        end = pattern.find('"', at + 1)
        if end < 0 or "\\" in pattern[at:end]:
            raise ValueError("a quoted part of a format without its end, or with backslashes")
        return pattern[at + 1 : end], end + 1
    if pattern[at].isalpha() or pattern[at] == "\\" or not pattern[at].isascii():
        raise ValueError(f"{pattern[at:]} in a format")
    return pattern[at], at + 1


def shown(micros: int, pattern: str) -> str | None:
    """`to_char` of a timestamp, in microseconds since 1970-01-01; NULL of an infinite one.

    >>> shown(0, "FMDay, YYYY-MM-DD HH12:MI am"), shown(86_400_000_000 << 26, "YYYY")
    ('Thursday, 1970-01-01 12:00 am', None)
    """
    if abs(micros) >= (1 << 26) * 86_400_000_000:
        return None
    moment = _EPOCH + datetime.timedelta(microseconds=micros)
    return "".join(_part(moment, *part) for part in parsed(pattern))


def shown_date(days: int, pattern: str) -> str | None:
    """`to_char` of a date, in days since 1970-01-01."""
    return shown(days * 86_400_000_000, pattern)


def _part(moment: datetime.datetime, kind: str, name: str) -> str:
    if not kind:
        return name
    upper = name.upper()
    if upper in _NAMES:
        return _name(moment, name, padded=kind != "FM")
    if upper in _FRACTIONS:
        places = _FRACTIONS[upper]
        return str(moment.microsecond // 10 ** (6 - places)).rjust(places, "0")
    number = _numbers(moment)[upper]
    return str(number).rjust(0 if kind == "FM" else _WIDTHS[upper], "0")


def _name(moment: datetime.datetime, name: str, *, padded: bool) -> str:
    """The name of a month, of a day, of a half of the day, in the case of the field's own name."""
    upper = name.upper()
    if upper in ("AM", "PM", "A.M.", "P.M."):
        half = "P" if moment.hour >= 12 else "A"
        text = f"{half}.M." if "." in name else f"{half}M"
        return text if name == upper else text.lower()
    text = _MONTHS[moment.month - 1] if upper[0] == "M" else _DAYS[moment.weekday()]
    text = text.ljust(9) if upper in ("MONTH", "DAY") and padded else text if upper in ("MONTH", "DAY") else text[:3]
    return text.upper() if name == upper else text.lower() if name == name.lower() else text


def _numbers(moment: datetime.datetime) -> dict[str, int]:
    iso_year, week, iso_day = moment.isocalendar()
    day_of_year = moment.timetuple().tm_yday
    second = (moment.hour * 60 + moment.minute) * 60 + moment.second
    return {
        "YYYY": moment.year, "YYY": moment.year % 1000, "YY": moment.year % 100, "Y": moment.year % 10,
        "IYYY": iso_year, "IYY": iso_year % 1000, "IY": iso_year % 100, "I": iso_year % 10,
        "MM": moment.month, "DDD": day_of_year, "DD": moment.day, "D": iso_day % 7 + 1,
        "IDDD": (week - 1) * 7 + iso_day, "ID": iso_day, "IW": week, "WW": (day_of_year - 1) // 7 + 1,
        "W": (moment.day - 1) // 7 + 1, "Q": (moment.month + 2) // 3, "CC": (moment.year - 1) // 100 + 1,
        "J": moment.toordinal() + _JULIAN, "HH24": moment.hour, "HH12": (moment.hour + 11) % 12 + 1,
        "HH": (moment.hour + 11) % 12 + 1, "MI": moment.minute, "SS": moment.second, "SSSS": second, "SSSSS": second,
    }  # fmt: skip
