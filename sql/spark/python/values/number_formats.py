"""Numbers by a format of `to_char`: digits, zeros, a point, commas, FM, as by NUM_processor (formatting.c); buckets.

Nothing here uses anything else of this program: Spark gets it by value.
"""

import re
from decimal import Decimal
from fractions import Fraction

PATTERN = re.compile(r"(?:FM)?[09,]*(?:\.[09]*)?")


def checked(pattern: str) -> None:
    """Raises ValueError for a format with more than that, or without a digit."""
    if not PATTERN.fullmatch(pattern) or not re.search("[09]", pattern):
        raise ValueError(f"{pattern} as a format of a number")


def shown(text: str, pattern: str) -> str:
    """`to_char` of a number, which is written as `numeric_out` writes it.

    >>> shown("1234.567", "9,990.99"), shown("0.10", "FM9.99"), shown("-5", "000"), shown("1000", "999")
    (' 1,234.57', '.1', '-005', ' ###')
    """
    fill = pattern.startswith("FM")
    layout = pattern.removeprefix("FM")
    before, point, after = layout.partition(".")
    whole, places = re.sub("[^09]", "", before), len(after)
    sign, number = _rounded(text, places)
    digits = len(number.partition(".")[0])
    if digits > len(whole):
        number, digits = "#" * len(whole) + ("." + "#" * places if point else ""), len(whole)
    writer = _Writer(number, len(whole) - digits, whole.find("0") + 1, bool(places), sign, fill)
    if fill and point and places:
        last_zero = layout.replace(",", "").replace(".", "").rfind("0") + 1
        writer.last = _last_relevant(number, last_zero - writer.spaces)
    return "".join(map(writer.part, layout))


def _rounded(text: str, places: int) -> tuple[str, str]:
    """Sign and magnitude with so many digits after the point, rounded half away from zero."""
    negative, magnitude = text.startswith("-"), text.removeprefix("-")
    whole, _, fraction = magnitude.partition(".")
    number = int(whole + fraction[:places].ljust(places, "0")) + (fraction[places : places + 1] >= "5")
    digits = str(number).rjust(places + 1, "0")
    sign = "-" if negative and number else ""
    return sign, f"{digits[:-places]}.{digits[-places:]}" if places else digits


def _last_relevant(number: str, last_zero: int) -> int:
    """Where the last digit is that FM leaves: one after the point that is not 0, or that the format has a 0 for."""
    point = number.find(".")
    last = max(point, len(number.rstrip("0")) - 1)
    return max(last, min(len(number) - 1, last_zero)) if last_zero > 0 else last


class _Writer:
    """Goes through a format; ``at`` is the place in the number, ``position`` that among the format's digits."""

    def __init__(self, number: str, spaces: int, zero_start: int, decimal: bool, sign: str, fill: bool):
        self.number, self.spaces, self.zero_start = number, spaces, zero_start
        self.decimal, self.sign, self.fill = decimal, sign, fill
        self.last: int | None = None
        self.at = self.position = 0
        self.sign_written = self.begun = False

    @property
    def _zero_before_point(self) -> bool:
        """Whether what comes is the zero of 0.1, which a 9 has no place for."""
        return not self.zero_start and self.at == 0 and self.number[0] == "0" and self.decimal

    @property
    def _whole(self) -> bool:
        """Whether FM leaves nothing behind the point."""
        return self.last is not None and self.number[self.last] == "."

    def part(self, character: str) -> str:
        if character == ",":
            return "," if self.begun else "" if self.fill else " "
        written = self._sign()
        if self.position < self.spaces:
            written += self._before()
        else:
            written += self._digit(character)
            self.at += 1
        self.position += 1
        return written

    def _sign(self) -> str:
        here = self.position >= self.spaces or (self.zero_start and self.zero_start - 1 <= self.position)
        if self.sign_written or not here or (self._zero_before_point and not self._whole):
            return ""
        self.sign_written = True
        return self.sign or ("" if self.fill else " ")

    def _before(self) -> str:
        if not self.zero_start or self.zero_start - 1 > self.position:
            return "" if self.fill else " "
        self.begun = True
        return "0"

    def _digit(self, character: str) -> str:
        if self.at >= len(self.number):
            return ""
        digit = self.number[self.at]
        if digit == ".":
            return "."
        if self.last is not None and self.at > self.last and character != "0":
            return ""
        if self._zero_before_point:
            return " " if not self.fill else "0" if self._whole else ""
        self.begun = True
        return digit


def bucket(value: Decimal, low: Decimal, high: Decimal, count: int) -> int:
    """`width_bucket` of numerics. Raises ValueError, where PostgreSQL has an error.

    >>> bucket(Decimal("5.35"), Decimal("0.024"), Decimal("10.06"), 5), bucket(Decimal(1), Decimal(3), Decimal(0), 3)
    (3, 3)
    """
    if count <= 0 or low == high:
        raise ValueError("no bounds, or no number of buckets")
    sign = 1 if low < high else -1
    above, width = (Fraction(value) - Fraction(low)) * sign, (Fraction(high) - Fraction(low)) * sign
    if above < 0:
        return 0
    return count + 1 if above >= width else int(above * count // width) + 1
