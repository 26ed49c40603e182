"""Values of types from their texts, where PostgreSQL reads these whatever a session's settings are.

What else it would read raises ValueError, as what it would not: then PostgreSQL decides. Nothing here uses anything
else of this program: Spark gets it by value.
"""

import datetime
import re

_NUMBER = re.compile(
    r"[ \t\n\v\f\r]*([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:[eE]([+-]?[0-9]{1,4}))?[ \t\n\v\f\r]*"
)
_DATE = r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
_MOMENT = re.compile(
    _DATE + r"[ T]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]{1,6}))?)?(Z|[+-][0-9]{2}(?::?[0-9]{2})?)?"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_WORDS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False, "1": True, "0": False}
_INFINITE_DAYS = 1 << 26
_DAY = 86_400_000_000


def _digits(text: str) -> tuple[str, str, str]:
    """Sign, digits before and after the point. Raises ValueError."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise ValueError("no number that is read the same everywhere")
    sign, whole, fraction, only, exponent = found.groups()
    whole, fraction, shift = whole or "", fraction or only or "", int(exponent or 0)
    if shift >= 0:
        fraction = fraction.ljust(shift, "0")
        whole, fraction = whole + fraction[:shift], fraction[shift:]
    else:
        whole = whole.rjust(-shift, "0")
        whole, fraction = whole[:shift], whole[shift:] + fraction
    whole = whole.lstrip("0") or "0"
    return ("-" if sign == "-" and (whole + fraction).strip("0") else ""), whole, fraction


def initcap(text: str) -> str:
    """`initcap` under collation C, which knows the letters and digits of ASCII.

    >>> initcap("o'NEIL été_x 1st")
    "O'Neil éTé_X 1st"
    """
    return re.sub("[A-Za-z0-9]+", lambda word: word[0][0].upper() + word[0][1:].lower(), text)


def initcap_of_ascii(text: str) -> str:
    """`initcap` of text in ASCII, under whichever collation changes ASCII as C does."""
    if not text.isascii():
        raise ValueError("initcap of what is not ASCII, under a collation other than C")
    return initcap(text)


def numeric(text: str) -> str:
    """`text::numeric`, as PostgreSQL writes it.

    >>> numeric(" -01.50e1"), numeric("-.00"), numeric("12e-3"), numeric("1e2")
    ('-15.0', '0.00', '0.012', '100')
    """
    sign, whole, fraction = _digits(text)
    return f"{sign}{whole}.{fraction}" if fraction else sign + whole


def rounded(text: str, scale: int) -> str:
    """`text::numeric(p, scale)`: half away from zero.

    >>> rounded("-0.125", 2), rounded("9.5", 0), rounded("7", 2), rounded("-0.001", 2)
    ('-0.13', '10', '7.00', '0.00')
    """
    sign, whole, fraction = _digits(text)
    number = int(whole + fraction[:scale].ljust(scale, "0"))
    number += fraction[scale : scale + 1] >= "5"
    digits = str(number).rjust(scale + 1, "0")
    sign = sign if number else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def float_numeric(value: float, digits: int) -> str:
    """`double precision::numeric` as text; of `real`, 6 digits count instead of 15.

    >>> float_numeric(0.1 + 0.2, 15), float_numeric(1e20, 15), float_numeric(1 / 3, 6), float_numeric(-1.5e-7, 15)
    ('0.3', '100000000000000000000', '0.333333', '-0.00000015')
    """
    if value != value or value in (float("inf"), float("-inf")):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return numeric(f"{value:.{digits}g}")


def boolean(text: str) -> bool:
    """`text::boolean`.

    >>> boolean(" T"), boolean("of")
    (True, False)
    """
    word = text.strip(" \t\n\v\f\r").lower()
    if not word or word == "o":
        raise ValueError("no truth value")
    return next(value for name, value in _WORDS.items() if name.startswith(word))


def double(text: str) -> float:
    """`text::double precision`."""
    if _NUMBER.fullmatch(text) is None:
        raise ValueError("no number that is read the same everywhere")
    value = float(text)
    if value in (float("inf"), float("-inf")) or (value == 0 and "".join(_digits(text)[1:]).strip("0")):
        raise ValueError("out of range for type double precision")
    return value


def uuid(text: str) -> str:
    """`text::uuid`."""
    if _UUID.fullmatch(text) is None:
        raise ValueError("no uuid as PostgreSQL writes it")
    return text.lower()


def date(text: str) -> int:
    """`text::date` in days since 1970-01-01.

    >>> date("1970-02-01"), date("infinity")
    (31, 67108864)
    """
    if text in ("infinity", "-infinity"):
        return _INFINITE_DAYS if text[0] == "i" else -_INFINITE_DAYS
    found = re.fullmatch(_DATE, text)
    if found is None:
        raise ValueError("no date in ISO 8601")
    year, month, day = map(int, found.groups())
    return datetime.date(year, month, day).toordinal() - datetime.date(1970, 1, 1).toordinal()


def _offset(text: str) -> int:
    """Seconds that a time zone is ahead by."""
    if text == "Z":
        return 0
    digits = text[1:].replace(":", "").ljust(4, "0")
    hours, minutes = int(digits[:2]), int(digits[2:])
    if hours > 15 or minutes > 59:
        raise ValueError("no offset of a time zone")
    return (hours * 60 + minutes) * 60 * (-1 if text[0] == "-" else 1)


def _moment(text: str, *, zoned: bool) -> int:
    if text in ("infinity", "-infinity"):
        return date(text) * _DAY
    found = _MOMENT.fullmatch(text)
    if found is None or (found[8] is not None) != zoned:
        raise ValueError("no timestamp in ISO 8601")
    hour, minute, second = int(found[4]), int(found[5]), int(found[6] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("no time of day")
    seconds = (hour * 60 + minute) * 60 + second - _offset(found[8] or "Z")
    micros = date(text[:10]) * _DAY + seconds * 1_000_000 + int((found[7] or "").ljust(6, "0"))
    first, last = date("0001-01-01"), date("9999-12-31")
    if not first * _DAY <= micros < (last + 1) * _DAY:
        raise ValueError("before the year 1 or after 9999")
    return micros


def timestamp(text: str) -> int:
    """`text::timestamp` in microseconds since 1970-01-01.

    >>> timestamp("1970-01-01T00:01:02.5")
    62500000
    """
    return _moment(text, zoned=False)


def timestamptz(text: str) -> int:
    """`text::timestamptz`, where the text has an offset, in microseconds since 1970-01-01.

    >>> timestamptz("1970-01-01 02:00:00+01:30")
    1800000000
    """
    return _moment(text, zoned=True)
