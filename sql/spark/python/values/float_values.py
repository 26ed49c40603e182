"""Floating point numbers: texts as PostgreSQL writes them, whole numbers near them, sums in an order that is given.

Nothing here uses anything else of this program: Spark gets it by value.
"""

import math
import struct
from fractions import Fraction


def text(value: float) -> str:
    """`double precision::text`: the shortest digits that are read as the number.

    >>> text(0.1), text(1e15), text(123456789012345.0), text(-0.0), text(1e-5), text(1e23)
    ('0.1', '1e+15', '123456789012345', '-0', '1e-05', '9.999999999999999e+22')
    """
    special = _special(value)
    return special or _written(_shortest(value), 15)


def alike(value: float) -> str:
    """What numbers that are equal have in common: zero has two signs."""
    return text(value + 0.0)


def real_text(value: float) -> str:
    """`real::text`.

    >>> real_text(0.10000000149011612), real_text(1000000.0), real_text(16777216.0)
    ('0.1', '1e+06', '1.6777216e+07')
    """
    special = _special(value)
    return special or _written(_shortest_real(value), 6)


def _special(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (math.inf, -math.inf):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    return ""


def _written(shortest: str, large: int) -> str:
    """The digits as PostgreSQL writes them, with an exponent below 10^-4 and from 10^large on."""
    mantissa, _, exponent = shortest.lower().partition("e")
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.removeprefix("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) + len(whole) - 1 - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if power < -4 or power >= large:
        rest = f".{digits[1:]}" if digits[1:] else ""
        return f"{sign}{digits[0]}{rest}e{'-' if power < 0 else '+'}{abs(power):02}"
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    digits = digits.ljust(power + 1, "0")
    rest = digits[power + 1 :]
    return sign + digits[: power + 1] + (f".{rest}" if rest else "")


def _shortest(value: float) -> str:
    """Digits nearer to the number than to any other. (Python's may be halfway between, as 1e23 is, from 2^53 on.)"""
    shortest = repr(value)
    if abs(value) < 1 << 53:
        return shortest
    exact, most = Fraction(abs(value)), math.nextafter(math.inf, 0)
    above = Fraction(2) ** 1024 if abs(value) == most else Fraction(math.nextafter(abs(value), math.inf))
    low, high = (Fraction(math.nextafter(abs(value), 0)) + exact) / 2, (exact + above) / 2
    digits = len(shortest.lower().partition("e")[0].strip("-").replace(".", "").strip("0"))
    while not low < abs(Fraction(shortest)) < high:
        digits += 1
        shortest = f"{value:.{digits - 1}e}"
    return shortest


def _shortest_real(value: float) -> str:
    (bits,) = struct.unpack("I", struct.pack("f", abs(value)))
    below, above = (_real(bits + step) for step in (-1, 1))
    exact = Fraction(abs(value))
    low, high = (below + exact) / 2, (above + exact) / 2
    for digits in range(1, 10):
        # The nearest one may be outside where the next one on the other side is not: below a power of two the
        # numbers are closer to each other than above it.
        nearest = f"{abs(value):.{digits - 1}e}"
        step = Fraction(10) ** (int(nearest.partition("e")[2]) - digits + 1)
        inside = [each for n in (0, 1, -1) if low < (each := Fraction(nearest) + n * step) < high]
        if inside:
            return ("-" if value < 0 else "") + f"{float(inside[0]):.{digits - 1}e}"
    raise AssertionError("nine digits tell all numbers apart")


def _real(bits: int) -> Fraction:
    if bits >= 0x7F800000:
        return Fraction(2) ** 128
    return Fraction(struct.unpack("f", struct.pack("I", bits))[0])


def ceiling(value: float) -> float:
    """`ceil`."""
    return value if not math.isfinite(value) else math.copysign(float(math.ceil(value)), value)


def floor(value: float) -> float:
    """`floor`."""
    return value if not math.isfinite(value) else math.copysign(float(math.floor(value)), value)


def truncated(value: float) -> float:
    """`trunc`."""
    return value if not math.isfinite(value) else math.copysign(float(math.trunc(value)), value)


def sign(value: float) -> float:
    """`sign`, of NaN zero."""
    return 1.0 if value > 0 else -1.0 if value < 0 else 0.0


def _numbers(listed: str) -> list[float]:
    return [float(each) for each in listed.split(",")] if listed else []


def total(listed: str) -> float | None:
    """`sum` of numbers, in their order. Raises ValueError where it is out of range.

    >>> total("0.1,0.2,0.3"), average("0.1,0.2,0.3")
    (0.6000000000000001, 0.20000000000000004)
    """
    numbers = _numbers(listed)
    if not numbers:
        return None
    result = numbers[0]
    for number in numbers[1:]:
        result = _added(result, number)
    return result


def _added(one: float, other: float) -> float:
    result = one + other
    if math.isinf(result) and not (math.isinf(one) or math.isinf(other)):
        raise ValueError("value out of range: overflow")
    return result


def average(listed: str) -> float | None:
    """`avg` of numbers, in their order."""
    numbers = _numbers(listed)
    result = 0.0
    for number in numbers:
        result = _added(result, number)
    return result / len(numbers) if numbers else None


def percentile(listed: str, fraction: float) -> float | None:
    """`percentile_cont` of numbers, in their order.

    >>> percentile("1,2,4", 0.5), percentile("1,2", 0.25)
    (2.0, 1.25)
    """
    if not 0 <= fraction <= 1:
        raise ValueError("percentile value is not between 0 and 1")
    numbers = _numbers(listed)
    place = fraction * (len(numbers) - 1)
    low, high = numbers[math.floor(place)], numbers[math.ceil(place)]
    return low if math.floor(place) == math.ceil(place) else low + (place - math.floor(place)) * (high - low)
