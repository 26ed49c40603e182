"""Function calls in Spark's dialect: those of the equality list, and those whose result's type depends on arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from sql.errors import NotExpressible
from sql.spark import equality as equality
from sql.spark.dates import epoch, infinite, local, where_finite, years_of, zoned
from sql.spark.numbers.exact import decimal_of, failure, scale_of
from sql.spark.numbers.floats import float_arithmetic
from sql.spark.numbers.wide import is_wide, wide_magnitude, wide_rounded
from sql.spark.protocol import Expressions, Rule
from sql.spark.python.calls import call
from sql.spark.python.intervals import INTERVAL, INTERVAL_FUNCTIONS, extracted
from sql.spark.python.jsonb import JSONB_FUNCTIONS
from sql.spark.python.ranges import RANGE_FUNCTIONS
from sql.spark.python.signatures import applied
from sql.spark.text.regular_expressions import REGULAR_FUNCTIONS, part
from sql.spark.types import (
    BOOLEAN,
    DATE,
    FLOATS,
    INTEGER,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    SparkType,
    Typed,
    is_numeral,
    numeric,
)
from sql.spark.user_defined.types import label_at
from sql.spark.values import converted, unify

# sqlglot's classes: PostgreSQL's function, and the parts that are its arguments, in order.
_NAMES: dict[type[Any], tuple[str, tuple[str, ...]]] = {
    exp.Length: ("length", ("this",)),
    exp.ByteLength: ("octet_length", ("this",)),
    exp.BitLength: ("bit_length", ("this",)),
    exp.Substring: ("substring", ("this", "start", "length")),
    exp.StrPosition: ("strpos", ("this", "substr")),
    exp.Replace: ("replace", ("this", "expression", "replacement")),
    exp.Reverse: ("reverse", ("this",)),
    exp.Repeat: ("repeat", ("this", "times")),
    exp.MD5: ("md5", ("this",)),
    exp.StartsWith: ("starts_with", ("this", "expression")),
    exp.SplitPart: ("split_part", ("this", "delimiter", "part_index")),
    exp.Translate: ("translate", ("this", "from_", "to")),
    exp.Ascii: ("ascii", ("this",)),
    exp.ArraySize: ("array_length", ("this", "expression")),
    exp.ArrayAppend: ("array_append", ("this", "expression")),
    exp.ArrayPrepend: ("array_prepend", ("expression", "this")),
    exp.ArrayRemove: ("array_remove", ("this", "expression")),
    exp.ArrayPosition: ("array_position", ("this", "expression")),
    exp.ArrayToString: ("array_to_string", ("this", "expression", "null")),
    exp.StringToArray: ("string_to_array", ("this", "expression", "null")),
    exp.ArrayOverlaps: ("&&", ("this", "expression")),
    exp.Adjacent: ("-|-", ("this", "expression")),
    exp.Ln: ("ln", ("this",)),
    exp.JustifyHours: ("justify_hours", ("this",)),
    exp.JustifyDays: ("justify_days", ("this",)),
    exp.JSONBExists: ("jsonb_exists", ("this", "path")),
    exp.Factorial: ("factorial", ("this",)),
    exp.TimestampFromParts: ("make_timestamp", ("year", "month", "day", "hour", "min", "sec")),
    exp.DateBin: ("date_bin", ("this", "expression", "unit")),
}


def _trim(expressions: Expressions, node: exp.Trim) -> Typed:
    names = {"": "btrim", "BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}
    of = [node.this] if node.expression is None else [node.this, node.expression]
    return _call(expressions, names[str(node.args.get("position") or "").upper()], of)


def _anonymous(expressions: Expressions, node: exp.Anonymous) -> Typed:
    name = str(node.name).lower()
    own = _OWN.get(name)
    return _call(expressions, name, node.expressions) if own is None else own(expressions, node.expressions)


def _named(expressions: Expressions, node: exp.Func) -> Typed:
    name, parts = _NAMES[type(node)]
    if isinstance(node, exp.Substring) and _is_text(node.args.get("start")):
        return part(expressions, node)
    return _call(expressions, name, [node.args[part] for part in parts if node.args.get(part) is not None])


def _is_text(node: Any) -> bool:
    """Whether a node is a literal text."""
    node = None if node is None else node.unnest()
    literal = node.this.unnest() if isinstance(node, exp.Cast) and node.to.is_type("text") else node
    return isinstance(literal, exp.Literal) and bool(literal.is_string)


def _call(expressions: Expressions, name: str, nodes: Sequence[Any]) -> Typed:
    values = [expressions.render(node) for node in nodes]
    functions = [f for f in equality.FUNCTIONS if f.name == name and len(f.arguments) == len(nodes)]
    try:
        if not functions:
            raise NotExpressible(f"function {name}")
        return _by_list(functions[0], nodes, values)
    except NotExpressible:
        in_python = applied(name, values)
        if in_python is None:
            raise
        return in_python


def _by_list(function: equality.Function, nodes: Sequence[Any], values: Sequence[Typed]) -> Typed:
    """Raises NotExpressible."""
    arguments = zip(function.arguments, nodes, values, strict=True)
    rendered = [_argument(function, wanted, node, value) for wanted, node, value in arguments]
    result = rendered[0].type if function.result == equality.NUMBER else SparkType(function.result)
    if function.result == "text":
        result = unify([value.type for value in rendered if value.type.name == "text"], function.name)
    display = rendered[0].display if function.result == equality.NUMBER else ""
    return Typed(function.spark.format(*(value.sql for value in rendered)), result, display)


def _argument(function: equality.Function, wanted: str, node: Any, value: Typed) -> Typed:
    if wanted in (equality.POSITIVE, equality.LITERAL, equality.WORDS):
        _check_literal(function, wanted, node.unnest())
        return value
    if wanted == "text" and value.type.name == "character":
        if function.name in equality.PADDED:
            raise NotExpressible(f"function {function.name} of character")
        return converted(value, TEXT)
    if (wanted == equality.NUMBER and value.type.is_number) or wanted == value.type.name:
        if wanted == "text" and not value.type.equatable and function.name in equality.SEARCHING:
            raise NotExpressible(f"function {function.name} under a collation that is not deterministic")
        return value
    raise NotExpressible(f"function {function.name} of {value.type.name}")


def _check_literal(function: equality.Function, wanted: str, literal: Any) -> None:
    """Raises NotExpressible for what is not the literal that is wanted."""
    while isinstance(literal, exp.Cast):
        literal = literal.this.unnest()
    if wanted == equality.WORDS:
        if not (isinstance(literal, exp.Literal) and literal.is_string and literal.name):
            raise NotExpressible(f"function {function.name} with an argument that is not a literal of some length")
        return
    number = isinstance(literal, exp.Literal) and literal.is_int
    if not number or (wanted == equality.POSITIVE and int(literal.name) <= 0):
        raise NotExpressible(f"function {function.name} with an argument that is not a literal")


def _left(expressions: Expressions, node: exp.Left) -> Typed:
    return _end(expressions, node, "left", "left({0}, greatest(char_length({0}) - {1}, 0))")


def _right(expressions: Expressions, node: exp.Right) -> Typed:
    return _end(expressions, node, "right", "substring({0}, {1} + 1)")


def _end(expressions: Expressions, node: exp.Expression, name: str, without: str) -> Typed:
    """So many characters; of a negative number, all but so many at the other end, which is ``without``."""
    number = node.args["expression"].unnest()
    negative = number.this.name if isinstance(number, exp.Cast) else ""
    if not (negative.startswith("-") and negative[1:].isdecimal()):
        return _call(expressions, name, [node.this, number])
    # The same of the positive number, but for the text.
    plain = _call(expressions, name, [node.this, exp.Literal.number(negative[1:])])
    this = expressions.render(node.this)
    return replace(plain, sql=without.format(this.sql, negative[1:]))


def _overlay(expressions: Expressions, node: exp.Overlay) -> Typed:
    text, placed = (expressions.render(part) for part in (node.this, node.expression))
    start, length = node.args["from_"].unnest(), node.args.get("for_")
    numbers = [start, *([] if length is None else [length.unnest()])]
    literal = all(isinstance(number, exp.Literal) and number.is_int for number in numbers)
    if text.type.name != "text" or placed.type.name != "text" or not literal or int(start.name) < 1:
        raise NotExpressible("overlay of anything but text, or at a place that is not a literal above zero")
    over = f"char_length({placed.sql})" if length is None else length.unnest().name
    rest = f"substring({text.sql}, {start.name} + {over})"
    sql = f"(left({text.sql}, {int(start.name) - 1}) || {placed.sql} || {rest})"
    return Typed(sql, unify((text.type, placed.type), "overlay"))


def _abs(expressions: Expressions, node: exp.Abs) -> Typed:
    value = expressions.render(node.this)
    if is_wide(value):
        return wide_magnitude(value)
    this = decimal_of(value)
    if not this.type.is_number and this.type.name not in FLOATS:
        raise NotExpressible(f"abs of {this.type.name}")
    return replace(this, sql=f"abs({this.sql})")


def _sqrt(expressions: Expressions, node: exp.Sqrt) -> Typed:
    this = expressions.render(node.this)
    if root := applied("sqrt", [this]):
        return root
    if this.type.name != "double precision":
        raise NotExpressible(f"sqrt of {this.type.name}")
    negative = f"CAST({failure('cannot take square root of a negative number')} AS DOUBLE)"
    return replace(this, sql=f"(CASE WHEN {this.sql} < 0 THEN {negative} ELSE sqrt({this.sql}) END)")


def _sign(expressions: Expressions, node: exp.Sign) -> Typed:
    value = expressions.render(node.this)
    if of_float := applied("sign", [value]):
        return of_float
    this = decimal_of(value)
    if this.type.name != "numeric":
        raise NotExpressible(f"sign of {this.type.name}")
    type_ = numeric(1, 0)
    whens = " ".join(f"WHEN {this.sql} {sign} 0 THEN {value}" for sign, value in ((">", 1), ("<", -1), ("=", 0)))
    return Typed(f"CAST(CASE {whens} END AS {type_.spark})", type_)


def _places(expressions: Expressions, node: Any, name: str) -> tuple[Typed, int]:
    this, places = expressions.render(node.this), node.args.get("decimals")
    if is_numeral(this.type) and name == "round" and (places is None or isinstance(places, exp.Literal)):
        # However many digits it has that are not wanted.
        type_ = numeric(ROUNDED_DIGITS, int(places.name) if places is not None else 0)
        rounded = call("text_rounded", this.sql, f"CAST({type_.scale} AS INT)")
        return Typed(f"CAST({rounded} AS {type_.spark})", type_), type_.scale
    this = decimal_of(this)
    if this.type.name != "numeric" or not (places is None or (isinstance(places, exp.Literal) and places.is_int)):
        raise NotExpressible(f"{name} of {this.type.name}, or to places that are not a literal")
    return this, int(places.name) if places is not None else 0


def _wide_places(expressions: Expressions, node: Any, name: str) -> Typed | None:
    """`round` or `trunc` of a number of many digits."""
    this, places = expressions.render(node.this), node.args.get("decimals")
    literal = places is None or (isinstance(places, exp.Literal) and places.is_int)
    return wide_rounded(this, int(places.name) if places else 0, name) if is_wide(this) and literal else None


def _round(expressions: Expressions, node: exp.Round) -> Typed:
    if node.args.get("decimals") is None and (this := expressions.render(node.this)).type.name == "double precision":
        return replace(this, sql=equality.ROUNDED.format(this.sql))
    if wide := _wide_places(expressions, node, "round"):
        return wide
    this, scale = _places(expressions, node, "round")
    type_ = numeric(this.type.digits + (1 if scale < this.type.scale else 0), scale)
    return Typed(f"CAST(round({this.sql}, {min(scale, this.type.scale)}) AS {type_.spark})", type_)


def _trunc(expressions: Expressions, node: exp.Trunc) -> Typed:
    if node.args.get("decimals") is None and (of_float := applied("trunc", [expressions.render(node.this)])):
        return of_float
    if wide := _wide_places(expressions, node, "trunc"):
        return wide
    this, scale = _places(expressions, node, "trunc")
    type_ = numeric(this.type.digits, scale)
    if scale >= this.type.scale:
        return Typed(f"CAST({this.sql} AS {type_.spark})", type_)
    # As text: Sail's own truncation goes through floating point numbers.
    text = f"CAST({this.sql} AS STRING)"
    cut = this.type.scale - scale + (1 if scale == 0 else 0)
    return Typed(f"CAST(left({text}, length({text}) - {cut}) AS {type_.spark})", type_)


def _ceil(expressions: Expressions, node: exp.Ceil) -> Typed:
    return _whole(expressions, node, "ceil")


def _floor(expressions: Expressions, node: exp.Floor) -> Typed:
    return _whole(expressions, node, "floor")


def _whole(expressions: Expressions, node: exp.Expression, name: str) -> Typed:
    value = expressions.render(node.this)
    if of_float := applied(name, [value]):
        return of_float
    this = decimal_of(value)
    if this.type.name != "numeric":
        raise NotExpressible(f"{name} of {this.type.name}")
    type_ = numeric(this.type.digits + 1, 0)
    return Typed(f"CAST({name}({this.sql}) AS {type_.spark})", type_)


def _extract(expressions: Expressions, node: exp.Extract) -> Typed:
    named, this = node.this, expressions.render(node.expression)
    part = (named if isinstance(named, exp.Var) else named.this).name.lower()
    if this.type == INTERVAL and isinstance(named, exp.Var):
        return extracted(this, part)
    known = equality.EXTRACT_PARTS.get(part)
    if expressions.environment.utc:
        this = local(this)
    if special := _special_part(this, part, written=isinstance(named, exp.Var)):
        return special
    if known is None or this.type not in (TIMESTAMP, DATE) or (this.type == DATE and part in equality.TIME_PARTS):
        raise NotExpressible(f"EXTRACT({part} FROM {this.type.name})")
    template, digits, scale = known
    type_ = numeric(digits, scale)
    sql = template.format(this.sql)
    number = years_of(this, sql) if part in equality.YEAR_PARTS else where_finite(this, sql, "NULL")
    if isinstance(named, exp.Var):
        return Typed(f"CAST({number} AS {type_.spark})", type_)
    if scale:
        raise NotExpressible(f"date_part('{part}'), which has a fraction")
    return Typed(f"CAST({number} AS DOUBLE)", SparkType("double precision"))


_FRACTIONS = {"second": "moment_second", "epoch": "moment_epoch"}
"""Fields with a fraction, as `date_part` gives them: by what function."""

JULIAN = 2_440_588
"""1970-01-01 as a Julian day."""


def _special_part(this: Typed, part: str, *, written: bool) -> Typed | None:
    """A field that is not a number by itself; ``written``: by EXTRACT, not by `date_part`."""
    if part == "epoch" and written and this.type in (DATE, TIMESTAMP, TIMESTAMPTZ):
        return epoch(this)
    if part in _FRACTIONS and this.type == TIMESTAMP and not written:
        return _part_of_seconds(this, part)
    if part == "julian" and this.type == DATE:
        day = f"datediff({this.sql}, DATE '1970-01-01') + {JULIAN}"
        return Typed(f"CAST({years_of(this, day)} AS DECIMAL(9, 0))", numeric(9, 0))
    return None


def _part_of_seconds(this: Typed, part: str) -> Typed:
    """A field with a fraction, as a floating point number."""
    nothing = f"CAST({failure('epoch of infinity')} AS DOUBLE)" if part == "epoch" else "NULL"
    return Typed(where_finite(this, call(_FRACTIONS[part], this.sql), nothing), SparkType("double precision"))


def _degrees(expressions: Expressions, node: exp.Degrees) -> Typed:
    return _by_radian(expressions, node, "/")


def _radians(expressions: Expressions, node: exp.Radians) -> Typed:
    return _by_radian(expressions, node, "*")


def _by_radian(expressions: Expressions, node: exp.Expression, operator: str) -> Typed:
    this = expressions.render(node.this)
    radian = Typed("CAST('0.0174532925199432957692' AS DOUBLE)", SparkType("double precision"))
    return float_arithmetic(this, radian, operator, expressions.layered)


def _timestamptrunc(expressions: Expressions, node: exp.Expression) -> Typed:
    this, unit = expressions.render(node.this), node.args["unit"].unnest()
    while isinstance(unit, exp.Cast):
        unit = unit.this.unnest()
    name, zone = unit.name.lower(), node.args.get("zone")
    in_utc = this.type == TIMESTAMPTZ and (expressions.environment.utc if zone is None else is_utc(zone))
    moment = local(this) if in_utc else this
    if moment.type != TIMESTAMP or name not in equality.TRUNCATIONS:
        raise NotExpressible(f"date_trunc('{name}', {this.type.name})")
    truncated = Typed(where_finite(moment, equality.TRUNCATIONS[name].format(moment.sql)), TIMESTAMP)
    return zoned(truncated) if in_utc else truncated


def _at_time_zone(expressions: Expressions, node: exp.AtTimeZone) -> Typed:
    this = expressions.render(node.this)
    if this.type not in (TIMESTAMP, TIMESTAMPTZ) or not is_utc(node.args["zone"]):
        raise NotExpressible(f"AT TIME ZONE of {this.type.name}, or of another zone than UTC")
    return local(this) if this.type == TIMESTAMPTZ else zoned(this)


def is_utc(zone: Any) -> bool:
    """Whether a time zone is written as UTC."""
    zone = zone.unnest()
    literal = zone.this.unnest() if isinstance(zone, exp.Cast) else zone
    return isinstance(literal, exp.Literal) and literal.is_string and literal.name.upper() == "UTC"


def _isfinite(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    value = expressions.render(nodes[0])
    if value.type not in (DATE, TIMESTAMP, TIMESTAMPTZ):
        raise NotExpressible(f"isfinite of {value.type.name}")
    return Typed(f"({value.sql} NOT IN ({infinite(value.type)}, {infinite(value.type, '-')}))", BOOLEAN)


def _pad(expressions: Expressions, node: exp.Pad) -> Typed:
    arguments = [node.this, node.expression, node.args.get("fill_pattern") or exp.Literal.string(" ")]
    return _call(expressions, "lpad" if node.args.get("is_left") else "rpad", arguments)


def _concat(expressions: Expressions, node: exp.Concat) -> Typed:
    values = _texts(expressions, node.expressions, "concat")
    parts = [f"coalesce({value.sql}, '')" for value in values]
    return Typed(f"concat({', '.join(parts)})", unify([value.type for value in values], "concat"))


def _concat_ws(expressions: Expressions, node: exp.ConcatWs) -> Typed:
    values = _texts(expressions, node.expressions, "concat_ws")
    return Typed(f"concat_ws({', '.join(value.sql for value in values)})", unify([v.type for v in values], "concat_ws"))


def _texts(expressions: Expressions, nodes: Sequence[Any], name: str) -> list[Typed]:
    values = [expressions.render(node) for node in nodes]
    plain = [value.type.is_number or value.type in (DATE, TIMESTAMP) for value in values]
    values = [converted(value, TEXT) if is_plain else value for value, is_plain in zip(values, plain, strict=True)]
    if any(value.type.name != "text" for value in values):
        raise NotExpressible(f"function {name} of anything but text, numbers and dates")
    return values


def _make_date(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    values = [expressions.render(node) for node in nodes]
    if len(values) != 3 or any(not value.type.is_integer for value in values):
        raise NotExpressible("function make_date of anything but whole numbers")
    year, month, day = (value.sql for value in values)
    beyond = f"CAST({failure('year before 1 or after 9999')} AS DATE)"
    # Where a month or a day is not one, NULL is no answer.
    wrong = f"CAST({failure('date field value out of range')} AS DATE)"
    there = f"{year} IS NOT NULL AND {month} IS NOT NULL AND {day} IS NOT NULL"
    within = f"{month} BETWEEN 1 AND 12 AND {day} BETWEEN 1 AND day(last_day(make_date({year}, {month}, 1)))"
    made = f"make_date({year}, {month}, {day})"
    return Typed(
        f"(CASE WHEN {there} THEN CASE WHEN {year} NOT BETWEEN 1 AND 9999 THEN {beyond}"
        f" WHEN {within} THEN {made} ELSE {wrong} END END)",
        DATE,
    )


def _end_of_enum(at: int) -> OwnRule:
    """`enum_first` or `enum_last`, which do not look at their argument."""

    def render(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
        value = expressions.render(nodes[0])
        last = len(expressions.environment.labels(value.type.name)) - 1
        return label_at(str(last if at else 0), value.type, expressions.environment)

    return render


def _scale(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
    value = decimal_of(expressions.render(nodes[0]))
    if value.type.name != "numeric" or len(nodes) != 1:
        raise NotExpressible(f"function scale of {value.type.name}")
    return Typed(f"(CASE WHEN {value.sql} IS NOT NULL THEN {scale_of(value)} END)", INTEGER)


def _nulls(are: str) -> OwnRule:
    def render(expressions: Expressions, nodes: Sequence[Any]) -> Typed:
        if any(node.unnest().find(exp.Tuple) for node in nodes):
            raise NotExpressible("num_nulls of a row")
        counted = (f"CASE WHEN {expressions.render(node).sql} IS {are} THEN 1 ELSE 0 END" for node in nodes)
        return Typed(f"({' + '.join(counted)})", INTEGER)

    return render


ROUNDED_DIGITS = 20
"""Before the point, of what is rounded of a numeric whose type says nothing: a larger one is an error."""

OwnRule = Callable[[Expressions, Sequence[Any]], Typed]

_OWN: Mapping[str, OwnRule] = {
    "make_date": _make_date,
    "isfinite": _isfinite,
    "scale": _scale,
    "enum_first": _end_of_enum(0),
    "enum_last": _end_of_enum(-1),
    "num_nulls": _nulls("NULL"),
    "num_nonnulls": _nulls("NOT NULL"),
    **JSONB_FUNCTIONS,
    **INTERVAL_FUNCTIONS,
    **REGULAR_FUNCTIONS,
    **RANGE_FUNCTIONS,
}
"""By PostgreSQL's names: functions that sqlglot does not know, and that are more than a call."""


FUNCTIONS: Mapping[type[Any], tuple[Rule, tuple[str, ...]]] = {
    exp.Trim: (_trim, ("this", "position", "expression")),
    exp.Anonymous: (_anonymous, ("this", "expressions")),
    **{kind: (_named, parts) for kind, (_, parts) in _NAMES.items()},
    exp.Pad: (_pad, ("this", "expression", "fill_pattern", "is_left")),
    exp.Concat: (_concat, ("expressions", "coalesce")),
    exp.ConcatWs: (_concat_ws, ("expressions", "coalesce")),
    exp.Left: (_left, ("this", "expression")),
    exp.Right: (_right, ("this", "expression")),
    exp.Overlay: (_overlay, ("this", "expression", "from_", "for_")),
    exp.Abs: (_abs, ("this",)),
    exp.Sqrt: (_sqrt, ("this",)),
    exp.Sign: (_sign, ("this",)),
    exp.Round: (_round, ("this", "decimals")),
    exp.Trunc: (_trunc, ("this", "decimals")),
    exp.Ceil: (_ceil, ("this",)),
    exp.Floor: (_floor, ("this",)),
    exp.Degrees: (_degrees, ("this",)),
    exp.Radians: (_radians, ("this",)),
    exp.Extract: (_extract, ("this", "expression")),
    exp.TimestampTrunc: (_timestamptrunc, ("this", "unit", "zone")),
    exp.AtTimeZone: (_at_time_zone, ("this", "zone")),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
