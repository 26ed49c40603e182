"""Numerics of any number of digits, as texts that PostgreSQL writes: a value is a whole number and a display scale.

Infinity and NaN raise ValueError: PostgreSQL then computes. Nothing here uses anything else of this program: Spark gets
it by value.
"""

import math
import re
from decimal import Context, Decimal

_TEXT = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?")
_SIGNIFICANT = 16
"""Digits that a quotient or root has at least (NUMERIC_MIN_SIG_DIGITS)."""
_MAX_SCALE = 1000
_MAX_DIGITS = 131_072


def _read(text: str) -> tuple[int, int]:
    found = _TEXT.fullmatch(text)
    if found is None:
        raise ValueError("NaN or infinity")
    digits = int(found[2] + (found[3] or ""))
    return -digits if found[1] else digits, len(found[3] or "")


def _write(number: int, scale: int) -> str:
    digits = str(abs(number)).rjust(scale + 1, "0")
    if len(digits) - scale > _MAX_DIGITS:
        raise ValueError("value overflows numeric format")
    sign = "-" if number < 0 else ""
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else sign + digits


def _scaled(number: int, scale: int, wanted: int) -> int:
    """The number with another scale, rounded half away from zero."""
    if wanted >= scale:
        return number * _power(wanted - scale)
    step = _power(scale - wanted)
    quotient, rest = divmod(abs(number), step)
    rounded = quotient + (rest * 2 >= step)
    return -rounded if number < 0 else rounded


def _power(places: int) -> int:
    return int(10**places)


def _both(a: str, b: str) -> tuple[int, int, int]:
    (x, p), (y, q) = _read(a), _read(b)
    scale = max(p, q)
    return _scaled(x, p, scale), _scaled(y, q, scale), scale


def plus(a: str, b: str) -> str:
    """`a + b`.

    >>> plus("1.50", "-0.5"), times("1.50", "-0.5"), quotient("1", "3"), modulo("-7.5", "2")
    ('1.00', '-0.750', '0.33333333333333333333', '-1.5')
    """
    x, y, scale = _both(a, b)
    return _write(x + y, scale)


def minus(a: str, b: str) -> str:
    """`a - b`."""
    x, y, scale = _both(a, b)
    return _write(x - y, scale)


def times(a: str, b: str) -> str:
    """`a * b`."""
    (x, p), (y, q) = _read(a), _read(b)
    scale = p + q
    if scale > 16383:
        raise ValueError("a product of many digits")
    return _write(x * y, scale)


def _first(number: int, scale: int) -> tuple[int, int]:
    """The first digit to the base 10 000 and its weight, as `select_div_scale` looks at them."""
    digits = str(abs(number)) + "0" * (-scale % 4)
    if not number:
        return 0, 0
    length = len(digits)
    head = (length - 1) % 4 + 1
    return int(digits[:head]), (length - 1) // 4 - (scale + (-scale % 4)) // 4


def quotient(a: str, b: str) -> str:
    """`a / b`."""
    (x, p), (y, q) = _read(a), _read(b)
    if not y:
        raise ValueError("division by zero")
    (one, weight), (other, less) = _first(x, p), _first(y, q)
    estimate = weight - less - (one <= other)
    scale = min(max(_SIGNIFICANT - estimate * 4, p, q, 0), _MAX_SCALE)
    # One digit more, and whether anything follows it, decide how it is rounded.
    shift = scale + q - p
    numerator, denominator = abs(x) * 10 ** max(shift, 0), abs(y) * 10 ** max(-shift, 0)
    whole, rest = divmod(numerator, denominator)
    whole += rest * 2 >= denominator
    return _write(-whole if (x < 0) != (y < 0) else whole, scale)


def whole_quotient(a: str, b: str) -> str:
    """`div(a, b)`."""
    x, y, _ = _both(a, b)
    if not y:
        raise ValueError("division by zero")
    whole = abs(x) // abs(y)
    return _write(-whole if (x < 0) != (y < 0) else whole, 0)


def modulo(a: str, b: str) -> str:
    """`a % b`."""
    x, y, scale = _both(a, b)
    if not y:
        raise ValueError("division by zero")
    rest = abs(x) % abs(y)
    return _write(-rest if x < 0 else rest, scale)


def compared(a: str, b: str) -> int:
    """Below, at or above zero as a is less than, equal to or greater than b."""
    x, y, _ = _both(a, b)
    return (x > y) - (x < y)


def negated(a: str) -> str:
    """`- a`."""
    number, scale = _read(a)
    return _write(-number, scale)


def magnitude(a: str) -> str:
    """`abs(a)`."""
    return a.removeprefix("-")


def rounded(a: str, places: int) -> str:
    """`round(a, places)`."""
    number, scale = _read(a)
    return _write(_scaled(number, scale, places), max(places, 0)) if places >= 0 else _tens(number, scale, places)


def _tens(number: int, scale: int, places: int) -> str:
    return _write(_scaled(number, scale, places) * 10**-places, 0)


def truncated(a: str, places: int) -> str:
    """`trunc(a, places)`, to places after the point."""
    number, scale = _read(a)
    if places >= scale:
        return _write(_scaled(number, scale, places), places)
    cut = abs(number) // 10 ** (scale - places)
    return _write(-cut if number < 0 else cut, places)


def least_scale(a: str) -> int:
    """`min_scale`."""
    number, scale = _read(a)
    while scale and number % 10 == 0:
        number, scale = number // 10, scale - 1
    return scale


def trimmed(a: str) -> str:
    """`trim_scale`."""
    return rounded(a, least_scale(a))


def alike(a: str) -> str:
    """What numbers that are equal have in common.

    >>> alike("1.50"), alike("100.0"), alike("NaN")
    ('1.5', '100', 'NaN')
    """
    return trimmed(a) if _TEXT.fullmatch(a) else a


def factorial(number: int) -> str:
    """`factorial`."""
    if not 0 <= number < 5000:
        raise ValueError("factorial of a number below zero, or of a large one")
    return str(math.factorial(number))


def root(a: str) -> str:
    """`sqrt` of a numeric: at least 16 digits, rounded half away from zero.

    >>> root("2"), root("16.00"), root("0.0004")
    ('1.414213562373095', '4.000000000000000', '0.02000000000000000')
    """
    number, scale = _read(a)
    if number < 0:
        raise ValueError("cannot take square root of a negative number")
    if not number:
        return _write(0, _root_scale(1, scale))
    _, weight = _first(number, scale)
    wanted = _root_scale((weight + 1) * 2 - 1, scale)
    # The root with one digit more than wanted, cut off, and whether there is more, decide how it is rounded.
    shift = 2 * (wanted + 1) - scale
    above = abs(number) * 10 ** max(shift, 0) // 10 ** max(-shift, 0)
    return _write(_scaled(math.isqrt(above), wanted + 1, wanted), wanted)


def _root_scale(estimate: int, scale: int) -> int:
    return min(max(_SIGNIFICANT - estimate, scale, 0), _MAX_SCALE)


def limb(a: str, scale: int, number: int) -> str:
    """Eighteen digits of a number with that scale, with its sign, from the lowest on. They add up by themselves."""
    value, own = _read(a)
    digits = abs(value) * 10 ** (scale - own) // 10 ** (18 * number) % 10**18
    return str(-digits if value < 0 else digits)


def total(scale: int, *limbs: str) -> str:
    """What sums of limbs come to."""
    return _write(sum(int(part) * 10 ** (18 * n) for n, part in enumerate(limbs)), scale)


def logarithm(a: str) -> str:
    """`ln` of a numeric: as many digits as `numeric_ln` gives. Near a tie of rounding it raises ValueError.

    >>> logarithm("2"), logarithm("1.00")
    ('0.6931471805599453', '0.0000000000000000')
    """
    number, scale = _read(a)
    if number <= 0:
        raise ValueError("cannot take logarithm of zero or of a negative number")
    wanted = min(max(_SIGNIFICANT - _weight_of_logarithm(number, scale), scale, 0), _MAX_SCALE)
    exact = Context(prec=wanted + 40).ln(Decimal(number).scaleb(-scale, Context(prec=len(str(number)) + 2)))
    above = int(exact.scaleb(wanted + 12, Context(prec=wanted + 60)).to_integral_value())
    if abs(abs(above) % 10**12 - 5 * 10**11) < 10**6:
        raise ValueError("a logarithm near a tie of rounding")
    return _write(_scaled(above, wanted + 12, wanted), wanted)


def _weight_of_logarithm(number: int, scale: int) -> int:
    """About the power of ten that a logarithm begins with (`estimate_ln_dweight`)."""
    one = 10**scale
    if 9 * one <= number * 10 <= 11 * one:
        first, weight = _first(number - one, scale)
        return weight * 4 + len(str(first)) - 1 if first else 0
    first, weight = _first(number, scale)
    digits, power = first, weight * 4
    if number * 10 ** (-scale % 4) % 10 ** (len(str(number)) + -scale % 4 - len(str(first))):
        rest = (str(number) + "0" * (-scale % 4))[len(str(first)) :][:4]
        digits, power = first * 10_000 + int(rest), power - 4
    return int(math.log10(abs(math.log(digits) + power * 2.302585092994046)))


def greatest_divisor(a: int, b: int) -> int:
    """`gcd` of bigints."""
    return _fitting(math.gcd(a, b))


def least_multiple(a: int, b: int) -> int:
    """`lcm` of bigints."""
    return _fitting(math.lcm(a, b))


def _fitting(number: int) -> int:
    if number >= 1 << 63:
        raise ValueError("bigint out of range")
    return number


def variance(count: int, total: str, squares: str, sample: bool, root: bool) -> str | None:
    """`var_samp`, `var_pop`, `stddev_samp` and `stddev_pop` of so many numbers (numeric_stddev_internal, numeric.c).

    >>> variance(2, "4", "10", True, False), variance(2, "4", "10", False, True), variance(1, "4", "16", True, True)
    ('2.0000000000000000', '1.00000000000000000000', None)
    """
    if count <= sample:
        return None
    (x, scale), (xx, own) = _read(total), _read(squares)
    numerator = count * _scaled(xx, own, scale * 2) - x * x
    if numerator <= 0:
        return "0"
    found = quotient(_write(numerator, scale * 2), str(count * (count - 1 if sample else count)))
    if not root:
        return found
    number, wanted = _read(found)
    return _write(_scaled(math.isqrt(number * 10 ** (wanted + 2)), wanted + 1, wanted), wanted)


def percentile(listed: str, fraction: float) -> str:
    """`percentile_disc` of values, in their order.

    >>> percentile("1,2,4", 0.5), percentile("1,2", 0), mode("1,2,2,3,3")
    ('2', '1', '2')
    """
    if not 0 <= fraction <= 1:
        raise ValueError("percentile value is not between 0 and 1")
    values = listed.split(",")
    return values[max(math.ceil(fraction * len(values)), 1) - 1]


def mode(listed: str) -> str:
    """`mode` of values, in their order: of several the first."""
    counted: dict[str, int] = {}
    for value in listed.split(","):
        counted[value] = counted.get(value, 0) + 1
    return max(counted, key=lambda value: counted[value])
