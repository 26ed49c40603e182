"""Exact numbers in Spark's dialect: arithmetic, sums, PostgreSQL's division and averages, display scales.

A decimal of Spark has one scale for a whole column, a numeric of PostgreSQL has one for each value. Where those differ
from row to row, the decimal has the largest, and the scale to display is computed beside it (`SparkType.display`).

Decimals are written with explicit casts, so that Spark never derives a type of its own. No operation can pass its
type's digits without an error: operands are narrowed, by a cast that fails where a value does not fit, until the type
that Spark derives for the result has at most 38 digits; Sail checks no sum for overflow. Integer arithmetic is done one
size larger and cast back, for the same reason.
"""

from __future__ import annotations

import re
from dataclasses import replace

from sql.errors import NotExpressible
from sql.spark.types import BIGINT, INTEGERS, MAX_PRECISION, MIN_DIGITS, Display, SparkType, Typed, is_numeral, numeric

ROWS_DIGITS = 10
"""Digits that a sum of decimals has more than its terms."""

QUOTIENT_DIGITS, QUOTIENT_SCALE = 12, 24
"""Digits that a quotient can have before and after the point. More of the latter come about below 10^-8 or so."""


def fitted(value: Typed, type_: SparkType) -> str:
    """The number as a decimal of this type; an error if it does not fit. The scale must not be smaller."""
    return f"CAST({value.sql} AS {type_.spark})"


def opaque(sql: str) -> str:
    """The expression, so that no optimizer looks into it when it is compared with something.

    Sail would compare with a constant what a number was before a cast, so that there is no error where it does not fit;
    and it leaves out parts of files whose greatest number is too small, where the greatest of all, NaN, does not count.
    """
    return f"greatest({sql}, NULL)"


FREE = SparkType("numeric", 28, 10, display=Display.KEPT)
"""What can be computed with of numerics whose type says nothing: a sum of such decimals fits, and a product of two."""


MANY_DIGITS = "numeric of many digits"
"""The error of such a numeric that cannot."""


def decimal_of(value: Typed) -> Typed:
    """A number that is written as text as one to compute with; an error where it has more digits, or is NaN."""
    if not is_numeral(value.type):
        return value
    text = value.sql
    plain = rf"{text} RLIKE '\\A-?[0-9]{{1,{FREE.digits}}}([.][0-9]{{1,{FREE.scale}}})?\\z'"
    beyond = f"CAST({failure(MANY_DIGITS)} AS {FREE.spark})"
    sql = f"(CASE WHEN {plain} THEN CAST({text} AS {FREE.spark}) WHEN {text} IS NOT NULL THEN {beyond} END)"
    scale = f"(CASE WHEN instr({text}, '.') > 0 THEN char_length({text}) - instr({text}, '.') ELSE 0 END)"
    return Typed(sql, FREE, scale)


def scale_of(value: Typed) -> str:
    """The display scale of a number, in Spark SQL."""
    if value.type.display is Display.LOST:
        raise NotExpressible("numeric whose display scale depends on the order of rows")
    return value.display or str(value.type.scale)


def _display(*types: SparkType) -> Display:
    """What is known of the scale of a number that is computed from others."""
    kinds = {type_.display for type_ in types}
    return Display.LOST if Display.LOST in kinds else Display.KEPT if Display.KEPT in kinds else Display.FIXED


def wider(left: SparkType, right: SparkType) -> SparkType:
    """The integer type of an operation on two."""
    return max((SparkType(left.name), SparkType(right.name)), key=lambda t: list(INTEGERS).index(t.name))


def arithmetic(left: Typed, right: Typed, operator: str) -> Typed:
    """``+``, ``-`` or ``*`` of two numbers. Raises NotExpressible."""
    left, right = decimal_of(left), decimal_of(right)
    a, b = left.type, right.type
    if not (a.is_number and b.is_number):
        raise NotExpressible(f"{a.name} {operator} {b.name}")
    if a.is_integer and b.is_integer:
        type_ = wider(a, b)
        roomy = "DECIMAL(19, 0)" if type_ == BIGINT else "BIGINT"
        operation = f"CAST({left.sql} AS {roomy}) {operator} CAST({right.sql} AS {roomy})"
        return Typed(opaque(f"CAST(({operation}) AS {type_.spark})"), type_)
    a, b = a.as_numeric(), b.as_numeric()
    display = _display(a, b)
    if operator == "*":
        a, b = _factors(a, b)
        type_ = numeric(a.digits + b.digits, a.scale + b.scale, display)
    else:
        scale = max(a.scale, b.scale)
        room = MAX_PRECISION - 1 - scale
        a, b = (_narrowed(t, min(t.digits, room)) for t in (a, b))
        type_ = numeric(max(a.digits, b.digits) + 1, scale, display)
    sql = f"CAST(({fitted(left, a)} {operator} {fitted(right, b)}) AS {type_.spark})"
    scales = ""
    if display is Display.KEPT:
        one, other = scale_of(left), scale_of(right)
        scales = f"({one} + {other})" if operator == "*" else f"greatest({one}, {other})"
    return Typed(sql, type_, scales)


def _narrowed(type_: SparkType, digits: int) -> SparkType:
    if digits < min(type_.digits, MIN_DIGITS):
        raise NotExpressible(f"numeric with {type_.scale} digits after the point")
    return replace(type_, precision=max(digits + type_.scale, 1))


def _factors(a: SparkType, b: SparkType) -> tuple[SparkType, SparkType]:
    """Types of two factors whose product fits: digits before the point are taken from the one that has more."""
    x, y = a.digits, b.digits
    while x + y + a.scale + b.scale > MAX_PRECISION - 1:
        if max(x, y) == 0:
            raise NotExpressible(f"product of numerics with {a.scale + b.scale} digits after the point")
        x, y = (x - 1, y) if x >= y else (x, y - 1)
    return _narrowed(a, x), _narrowed(b, y)


def negated(value: Typed) -> Typed:
    """The number with the other sign."""
    value = decimal_of(value)
    return replace(value, sql=f"(- {value.sql})")


def integer_division(left: Typed, right: Typed) -> Typed:
    """Division of integers, which truncates."""
    type_ = wider(left.type, right.type)
    # Spark's div is a bigint whatever its operands; the cast fails where PostgreSQL's own division overflows.
    wide = (f"CAST({side.sql} AS BIGINT)" for side in (left, right))
    return Typed(opaque(f"CAST(({' div '.join(wide)}) AS {type_.spark})"), type_)


def remainder(left: Typed, right: Typed) -> Typed:
    """The remainder, which has the sign of the dividend. Raises NotExpressible."""
    left, right = decimal_of(left), decimal_of(right)
    a, b = left.type, right.type
    if a.is_integer and b.is_integer:
        type_ = wider(a, b)
        return Typed(f"CAST(({left.sql} % {right.sql}) AS {type_.spark})", type_)
    if not (a.is_number and b.is_number):
        raise NotExpressible(f"{a.name} % {b.name}")
    a, b = a.as_numeric(), b.as_numeric()
    scale = max(a.scale, b.scale)
    display = _display(a, b)
    common = numeric(MAX_PRECISION - scale, scale, display)
    sql = f"CAST(({fitted(left, common)} % {fitted(right, common)}) AS {common.spark})"
    kept = display is Display.KEPT
    return Typed(sql, common, f"greatest({scale_of(left)}, {scale_of(right)})" if kept else "")


# Sums


def sum_of(value: Typed, distinct: str = "", condition: str = "", over: str = "") -> Typed:
    """sum() of numbers. ``condition`` and ``over`` are the clauses after the call. Raises NotExpressible."""
    clauses, value = condition + over, decimal_of(value)
    if value.type.name in ("smallint", "integer"):
        return Typed(f"sum({distinct}CAST({value.sql} AS BIGINT)){clauses}", BIGINT)
    if not value.type.is_number:
        raise NotExpressible(f"sum of {value.type.name}")
    inner = value.type.as_numeric()
    room = max(MAX_PRECISION - ROWS_DIGITS, inner.scale + MIN_DIGITS)
    term = _narrowed(inner, min(inner.digits, room - inner.scale))
    display = inner.display
    scales = ""
    if distinct and display is Display.KEPT:
        display = Display.LOST  # 1.0 and 1.00 are one value
    elif display is Display.KEPT:
        shown = f"CASE WHEN {value.sql} IS NOT NULL THEN {scale_of(value)} END"
        scales = f"max({shown}){clauses}"
    type_ = numeric(term.digits + ROWS_DIGITS, inner.scale, display)
    total = f"CAST(sum({distinct}{fitted(value, term)}){clauses} AS {type_.spark})"
    if term.precision + ROWS_DIGITS > MAX_PRECISION:
        few = 10 ** (MAX_PRECISION - term.precision)
        total = (
            f"(CASE WHEN count({value.sql}){clauses} <= {few} THEN {total} ELSE {failure('sum of many numbers')} END)"
        )
    return Typed(total, type_, scales)


def average_of(value: Typed, layers: Layers, distinct: str = "", condition: str = "") -> Typed:
    """avg() of integers or numerics: the sum divided by the number of values. Raises NotExpressible."""
    value = decimal_of(value)
    if not value.type.is_number:
        raise NotExpressible(f"avg of {value.type.name}")
    exact = value
    if value.type.name == "bigint":
        exact = Typed(fitted(value, value.type.as_numeric()), value.type.as_numeric())
    total = sum_of(exact, distinct, condition)
    if total.type.name != "numeric":
        # Cast afterwards: beside `sum` of the same column Sail takes a sum of its casts for the same name.
        total = Typed(fitted(total, total.type.as_numeric()), total.type.as_numeric())
    number = Typed(f"nullif(count({distinct}{value.sql}){condition}, 0)", BIGINT)
    return quotient(total, number, layers)


# Division


_STEPS = (9, 8, 8)
"""Digits of a long division found at once: a rest of up to 25 with so many more is a number that Sail can divide."""


def failure(reason: str) -> str:
    """An expression that ends the job."""
    return f"raise_error('{reason}')"


def _zeros(text: str, number: int) -> str:
    return f"concat({text}, '{'0' * number}')" if number else text


def _digits(sql: str) -> str:
    """The digits of a decimal's magnitude, as text without the point."""
    return f"replace(CAST(abs({sql}) AS STRING), '.', '')"


def _whole(text: str) -> str:
    return f"CAST({text} AS DECIMAL(38, 0))"


def _leading(sql: str, scale: int) -> str:
    """Digits after the point filled up to groups of four, and leading zeros gone."""
    return f"trim(LEADING '0' FROM {_zeros(_digits(sql), -scale % 4)})"


def _weight(text: str, scale: int) -> str:
    """The power of 10 000 that a number's first digit to that base has; 0 for zero."""
    return f"(CASE WHEN {text} = '' THEN 0 ELSE CAST(floor((length({text}) - 1) / 4) AS INT) - {-(-scale // 4)} END)"


def _first(text: str) -> str:
    return f"(CASE WHEN {text} = '' THEN 0 ELSE CAST(left({text}, (length({text}) - 1) % 4 + 1) AS INT) END)"


class Layers:
    """Selects around a relation that compute what a division needs, step by step.

    As one expression it would have its operands in it a hundred times. ``alias`` is what the relation is called in all
    of them; ``steps[i]`` are expressions over the relation and the steps before.
    """

    def __init__(self, alias: str):
        self.alias = alias
        self.steps: list[list[str]] = []
        self._levels: list[int] = []
        self._once: dict[int, list[tuple[str, str]]] = {}
        """For each level the names and expressions of what must not be repeated."""
        self._found: dict[tuple[int, str], str] = {}
        """What was added, by level and expression."""

    def above(self, *expressions: str) -> int:
        """The level at which expressions over columns of other levels can be computed."""
        used = (found for sql in expressions for found in re.findall(rf"\b{self.alias}\.l(\d+)\b", sql))
        return max((self._levels[int(number)] + 1 for number in used), default=0)

    def soon(self, sql: str) -> str:
        """`add` at the first possible level."""
        return self.add(self.above(sql), sql)

    def add(self, level: int, sql: str) -> str:
        """A column computed at a level, unless it is there already; returns the reference for the levels above."""
        if (level, sql) not in self._found:
            name = self._name(level, sql)
            self.steps[level].append(f"{sql} AS {name}")
        return self._found[level, sql]

    def add_once(self, level: int, sql: str) -> str:
        """The same, of a level above the first, and the expression is never put in place of the reference.

        Spark does so with every condition that it moves closer to the tables, again at each level, until there are
        thousands of copies. It moves none past rows that were made of an array.
        """
        if (level, sql) not in self._found:
            name = self._name(level, sql)
            self._once.setdefault(level, []).append((name, sql))
        return self._found[level, sql]

    def _name(self, level: int, sql: str) -> str:
        """The next column, which is that expression."""
        while len(self.steps) <= level:
            self.steps.append([])
        name = f"l{len(self._levels)}"
        self._levels.append(level)
        self._found[level, sql] = f"{self.alias}.{name}"
        return name

    def around(self, rows: str) -> str:
        """An item of FROM (``rows`` with its alias) with the columns of all levels but the first."""
        for level, step in enumerate(self.steps[1:], 1):
            once = self._once.get(level, ())
            items = [f"{self.alias}.*", *step, *(f"{self.alias}{name}.{name}" for name, _ in once)]
            arrays = (f" LATERAL VIEW explode(array({sql})) {self.alias}{name} AS {name}" for name, sql in once)
            rows = f"(SELECT {', '.join(items)} FROM {rows}{''.join(arrays)}) AS {self.alias}"
        return rows


def quotient(left: Typed, right: Typed, layers: Layers) -> Typed:
    """Division of numerics: value and display scale as by PostgreSQL's `select_div_scale` and `div_var` (numeric.c).

    With both operands' first digits to the base 10 000 and their weights, the quotient's weight is estimated, and as
    many digits after the point are computed as make 16 significant ones, at least as many as an operand shows. The
    quotient is rounded half away from zero.

    Here a long division of integers gives 25 digits after the point, more than are ever wanted; a half of the last
    wanted one is added, and what follows it is cut off. A quotient of 10^12 or more, or with more than 24 digits after
    the point, is an error. Raises NotExpressible.
    """
    left, right = decimal_of(left), decimal_of(right)
    if not (left.type.is_number and right.type.is_number):
        raise NotExpressible(f"{left.type.name} / {right.type.name}")
    a, b = left.type.as_numeric(), right.type.as_numeric()
    # Each operand as soon as it can be computed: beside aggregates only what divides is computed later.
    scales = [layers.soon(scale_of(side)) if side.display else scale_of(side) for side in (left, right)]
    x, y = layers.soon(fitted(left, a)), layers.soon(fitted(right, b))
    base = layers.above(x, y, *scales) - 1
    p, q = layers.add(base + 1, _leading(x, a.scale)), layers.add(base + 1, _leading(y, b.scale))
    # As integers.
    common = max(a.scale, b.scale)
    dividend = layers.add(base + 1, _whole(_zeros(_digits(x), common - a.scale)))
    divisor = layers.add(base + 1, f"CASE WHEN {y} <> 0 THEN {_whole(_zeros(_digits(y), common - b.scale))} END")
    weight = f"{_weight(p, a.scale)} - {_weight(q, b.scale)} - CASE WHEN {_first(p)} <= {_first(q)} THEN 1 ELSE 0 END"
    scale = layers.add(base + 2, f"greatest(16 - 4 * ({weight}), {scales[0]}, {scales[1]}, 0)")
    limit = _whole(_zeros(f"CAST({divisor} AS STRING)", QUOTIENT_DIGITS))
    rest = layers.add(base + 2, f"CASE WHEN {dividend} < {limit} THEN {dividend} END")
    digits = [layers.add(base + 3, f"CAST({rest} div {divisor} AS STRING)"), "'.'"]
    for step, count in enumerate(_STEPS, base + 3):
        rest = layers.add(step, _whole(_zeros(f"CAST({rest} % {divisor} AS STRING)", count)))
        digits.append(layers.add(step + 1, f"lpad(CAST({rest} div {divisor} AS STRING), {count}, '0')"))
    halves = " ".join(f"WHEN {n} THEN CAST('0.{'0' * n}5' AS DECIMAL(26, 25))" for n in range(QUOTIENT_SCALE + 1))
    value = f"CAST(concat({', '.join(digits)}) AS DECIMAL(37, 25)) + CASE {scale} {halves} END"
    # As text of a known length: the sum's 13 digits, the point, the digits wanted.
    text = layers.add_once(base + 4 + len(_STEPS), f"left(lpad(CAST({value} AS STRING), 39, '0'), 14 + {scale})")
    sign = f"CASE WHEN ({x} < 0) <> ({y} < 0) THEN '-' ELSE '' END"
    type_ = SparkType("numeric", QUOTIENT_DIGITS + QUOTIENT_SCALE, QUOTIENT_SCALE, display=Display.KEPT)
    guards = (
        (f"{y} = 0", "division by zero"),
        (f"{text} IS NULL AND {x} IS NOT NULL AND {y} IS NOT NULL", "quotient of many digits"),
    )
    whens = " ".join(f"WHEN {guard} THEN CAST({failure(why)} AS {type_.spark})" for guard, why in guards)
    return Typed(f"(CASE {whens} ELSE CAST(concat({sign}, {text}) AS {type_.spark}) END)", type_, scale)


# What is shown


def shown(value: Typed) -> str:
    """A numeric as PostgreSQL writes it."""
    text = f"CAST({value.sql} AS STRING)"
    if value.type.display is Display.FIXED:
        return text
    missing = f"{value.type.scale} - {scale_of(value)}"
    return f"left({text}, length({text}) - ({missing}) - CASE WHEN {scale_of(value)} = 0 THEN 1 ELSE 0 END)"


__all__ = ["Layers", "arithmetic", "average_of", "fitted", "quotient", "scale_of", "shown", "sum_of", "wider"]
