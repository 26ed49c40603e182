"""Scalar and aggregate expressions in Spark's dialect, each with the type that it has in both systems.

Every construct has a rule of its own; one without a rule raises NotExpressible and names itself. The renderer writes
decimals with explicit casts, so that Spark never derives a scale of its own.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from sqlglot import exp

from . import spark_equality as equality
from .spark_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    INTEGER,
    INTEGERS,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    NotExpressible,
    SparkType,
    base_type,
    column_type,
    numeric,
)


@dataclass(frozen=True, slots=True)
class Typed:
    """An expression in Spark SQL and its type."""

    sql: str
    type: SparkType


Resolve = Callable[[exp.Column], Typed]

_COMPARISONS: dict[type[Any], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>", exp.NullSafeNEQ: "<=>",
}  # fmt: skip
_EQUALITIES = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ)
_FUNCTIONS = {function.name: function for function in equality.FUNCTIONS}
_SQLGLOT_NAMES: dict[type[exp.Expression], str] = {
    exp.Abs: "abs", exp.Length: "length", exp.Trim: "btrim", exp.Left: "left", exp.Right: "right",
    exp.ByteLength: "octet_length",
}  # fmt: skip


def string(text: str) -> str:
    """A string literal of Spark SQL, in which backslashes escape.

    >>> print(string("it's a \\\\"))
    'it\\'s a \\\\'
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def identifier(name: str) -> str:
    """A quoted name of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def unify(types: Sequence[SparkType], what: str) -> SparkType:
    """The common type of a CASE's branches or a column of a UNION ALL. Raises NotExpressible.

    Numerics must have one scale: PostgreSQL keeps each value's own.
    """
    known = [type_ for type_ in types if type_ != UNKNOWN]
    if not known:
        return TEXT
    first = known[0]
    if any(type_.name != first.name for type_ in known):
        raise NotExpressible(f"{what} of different types")
    if first.name == "numeric":
        if len({type_.scale for type_ in known}) > 1:
            raise NotExpressible(f"{what} of numerics with different scales")
        first = numeric(max(type_.digits for type_ in known), first.scale)
    return replace(
        first,
        equatable=all(t.equatable for t in known),
        ordered=all(t.ordered for t in known),
        groupable=all(t.groupable for t in known),
    )


class Expressions:
    """Renders expressions whose columns `resolve` knows."""

    def __init__(self, resolve: Resolve):
        self._resolve = resolve

    def render(self, node: Any) -> Typed:
        """The expression in Spark SQL. Raises NotExpressible."""
        if isinstance(node, exp.Paren):
            inner = self.render(node.this)
            return Typed(f"({inner.sql})", inner.type)
        if isinstance(node, exp.Dot) and node.this.name == "pg_catalog" and isinstance(node.expression, exp.Func):
            return self.render(node.expression)
        if type(node) in _COMPARISONS:
            return self._comparison(node)
        if (name := self._function_name(node)) is not None:
            return self._function(name, node)
        for kind in type(node).__mro__:
            rule = getattr(self, f"_{kind.__name__.lower()}", None)
            if rule is not None:
                return rule(node)  # type: ignore[no-any-return]
        raise NotExpressible(_named(node))

    def boolean(self, node: Any) -> str:
        """A condition."""
        rendered = self.render(node)
        if rendered.type not in (BOOLEAN, UNKNOWN):
            raise NotExpressible(f"condition of type {rendered.type.name}")
        return rendered.sql

    # Values

    def _column(self, node: exp.Column) -> Typed:
        return self._resolve(node)

    def _null(self, node: exp.Null) -> Typed:
        return Typed("NULL", UNKNOWN)

    def _boolean(self, node: exp.Boolean) -> Typed:
        return Typed("TRUE" if node.this else "FALSE", BOOLEAN)

    def _literal(self, node: exp.Literal) -> Typed:
        if node.is_string:
            return Typed(string(node.name), TEXT)
        return _number(node.name)

    def _cast(self, node: exp.Cast) -> Typed:
        declared = node.to.sql("postgres").lower()
        target = column_type(
            "numeric(38,0)"
            if base_type(_postgres_name(declared)) == "numeric" and not node.to.expressions
            else _postgres_name(declared)
        )
        if target.name == "text" and node.to.expressions:
            raise NotExpressible(f"cast to {declared}")
        value = node.this.unnest()
        if isinstance(value, exp.Neg) and isinstance(value.this, exp.Literal) and not value.this.is_string:
            value = exp.Literal.string("-" + value.this.name)
        if isinstance(value, exp.Literal):
            return self._constant(value.name, target, bool(node.to.expressions))
        inner = self.render(value)
        if inner.type == UNKNOWN:
            kept = target if target.name != "numeric" or node.to.expressions else UNKNOWN
            return Typed(f"CAST(NULL AS {target.spark})", kept)
        if target.name == "numeric" and inner.type.is_number and not node.to.expressions:
            target = inner.type.as_numeric()
        return self._converted(inner, target)

    def _converted(self, inner: Typed, target: SparkType) -> Typed:
        source = inner.type
        if source.name == target.name and source.name != "numeric":
            return inner
        if source.is_number and target.is_number:
            if source.name == "numeric" and target.scale < source.scale:
                # PostgreSQL rounds half away from zero; Spark's cast to an integer would truncate.
                inner = Typed(f"round({inner.sql}, {target.scale})", source)
            return Typed(f"CAST({inner.sql} AS {target.spark})", target)
        template = equality.CASTS.get((source.name, target.name))
        if template is None:
            raise NotExpressible(f"cast from {source.name} to {target.name}")
        return Typed(template.format(inner.sql), target)

    def _constant(self, text: str, target: SparkType, has_modifier: bool) -> Typed:
        """A literal of a type, `'…'::type`."""
        try:
            if target.name == "numeric" and not has_modifier:
                return _number(text.strip())
            if target.is_number:
                return self._converted(_number(text.strip()), target)
            if target.name == "date":
                return Typed(f"DATE '{datetime.date.fromisoformat(text)}'", target)
            if target.name.startswith("timestamp"):
                moment = datetime.datetime.fromisoformat(text)
                zoned = moment.tzinfo is not None
                if zoned != (target.name == "timestamp with time zone"):
                    raise NotExpressible(f"literal '{text}' of type {target.name}")
                utc = (moment.astimezone(datetime.UTC) if zoned else moment).replace(tzinfo=None)
                keyword = "TIMESTAMP_LTZ" if zoned else "TIMESTAMP_NTZ"
                return Typed(f"{keyword} '{utc.isoformat(' ', 'microseconds')}'", target)
            if target.name == "uuid":
                return Typed(string(str(uuid.UUID(text))), target)
            if target.name == "boolean" and text in ("t", "f", "true", "false"):
                return Typed("TRUE" if text[0] == "t" else "FALSE", target)
        except (ValueError, OverflowError):
            raise NotExpressible(f"literal '{text}' of type {target.name}") from None
        if target.is_text:
            return Typed(string(text), target)
        if target.name in ("real", "double precision"):
            return Typed(f"CAST({string(text)} AS {target.spark})", target)
        raise NotExpressible(f"literal of type {target.name}")

    # Operators

    def _comparison(self, node: exp.Binary) -> Typed:
        member = node.right.unnest() if not isinstance(node.right, exp.Any | exp.All) else node.right
        if isinstance(member, exp.Any | exp.All):
            return self._quantified(node, member)
        left, right = self.render(node.left), self.render(node.right)
        _check_comparable(left.type, right.type, ordering=not isinstance(node, _EQUALITIES))
        sql = f"({left.sql} {_COMPARISONS[type(node)]} {right.sql})"
        return Typed(f"(NOT {sql})" if isinstance(node, exp.NullSafeNEQ) else sql, BOOLEAN)

    def _quantified(self, node: exp.Binary, member: exp.Any | exp.All) -> Typed:
        array = member.this.unnest()
        wanted = exp.EQ if isinstance(member, exp.Any) else exp.NEQ
        if not isinstance(array, exp.Array) or type(node) is not wanted:
            raise NotExpressible("ANY or ALL over anything but a list of values with = or <>")
        return self._member(node.left, array.expressions, negated=wanted is exp.NEQ)

    def _in(self, node: exp.In) -> Typed:
        if node.args.get("query") or node.args.get("unnest") or not node.expressions:
            raise NotExpressible("IN with a subquery")
        return self._member(node.this, node.expressions, negated=False)

    def _member(self, this: Any, items: Sequence[Any], *, negated: bool) -> Typed:
        left, values = self.render(this), [self.render(item) for item in items]
        if not values:
            raise NotExpressible("an empty list of values")
        for value in values:
            _check_comparable(left.type, value.type, ordering=False)
        operator = "NOT IN" if negated else "IN"
        return Typed(f"({left.sql} {operator} ({', '.join(value.sql for value in values)}))", BOOLEAN)

    def _between(self, node: exp.Between) -> Typed:
        this, low, high = (self.render(node.args[name]) for name in ("this", "low", "high"))
        if node.args.get("symmetric"):
            raise NotExpressible("BETWEEN SYMMETRIC")
        for bound in (low, high):
            _check_comparable(this.type, bound.type, ordering=True)
        return Typed(f"({this.sql} BETWEEN {low.sql} AND {high.sql})", BOOLEAN)

    def _and(self, node: exp.And) -> Typed:
        return Typed(f"({self.boolean(node.left)} AND {self.boolean(node.right)})", BOOLEAN)

    def _or(self, node: exp.Or) -> Typed:
        return Typed(f"({self.boolean(node.left)} OR {self.boolean(node.right)})", BOOLEAN)

    def _not(self, node: exp.Not) -> Typed:
        return Typed(f"(NOT {self.boolean(node.this)})", BOOLEAN)

    def _is(self, node: exp.Is) -> Typed:
        this = self.render(node.this)
        if isinstance(node.expression, exp.Null):
            if node.this.unnest().find(exp.Tuple):
                raise NotExpressible("IS NULL of a row")
            return Typed(f"({this.sql} IS NULL)", BOOLEAN)
        if isinstance(node.expression, exp.Boolean) and this.type == BOOLEAN:
            return Typed(f"({this.sql} <=> {'TRUE' if node.expression.this else 'FALSE'})", BOOLEAN)
        raise NotExpressible("IS")

    def _like(self, node: exp.Like) -> Typed:
        text, pattern = self.render(node.this), node.expression.unnest()
        literal = pattern.this if isinstance(pattern, exp.Cast) else pattern
        if not isinstance(literal, exp.Literal) or "\\" in literal.name:
            raise NotExpressible("LIKE with a pattern that is not a literal without backslashes")
        if not text.type.is_text or not text.type.equatable:
            raise NotExpressible("LIKE under a collation that is not deterministic")
        return Typed(f"({text.sql} LIKE {string(literal.name)})", BOOLEAN)

    def _dpipe(self, node: exp.DPipe) -> Typed:
        left, right = self.render(node.left), self.render(node.right)
        if not (left.type.is_text and right.type.is_text):
            raise NotExpressible("|| of anything but text")
        return Typed(f"({left.sql} || {right.sql})", unify((left.type, right.type), "||"))

    def _neg(self, node: exp.Neg) -> Typed:
        this = self.render(node.this)
        if not this.type.is_number:
            raise NotExpressible(f"- of {this.type.name}")
        return Typed(f"(- {this.sql})", this.type)

    def _add(self, node: exp.Add) -> Typed:
        return self._plus_minus(node, "+")

    def _sub(self, node: exp.Sub) -> Typed:
        return self._plus_minus(node, "-")

    def _plus_minus(self, node: exp.Binary, operator: str) -> Typed:
        left, right = self.render(node.left), self.render(node.right)
        if left.type == DATE:
            return _date_arithmetic(left, right, operator)
        return _arithmetic(left, right, operator)

    def _mul(self, node: exp.Mul) -> Typed:
        return _arithmetic(self.render(node.left), self.render(node.right), "*")

    def _div(self, node: exp.Div) -> Typed:
        left, right = self.render(node.left), self.render(node.right)
        if not (left.type.is_integer and right.type.is_integer):
            raise NotExpressible("division of anything but integers")
        type_ = _wider(left.type, right.type)
        # Spark's div is a bigint whatever its operands; the cast fails where PostgreSQL's own division overflows.
        wide = (f"CAST({side.sql} AS BIGINT)" for side in (left, right))
        return Typed(f"CAST(({' div '.join(wide)}) AS {type_.spark})", type_)

    def _mod(self, node: exp.Mod) -> Typed:
        left, right = self.render(node.left), self.render(node.right)
        if not (left.type.is_integer and right.type.is_integer):
            raise NotExpressible("remainder of anything but integers")
        type_ = _wider(left.type, right.type)
        return Typed(f"CAST(({left.sql} % {right.sql}) AS {type_.spark})", type_)

    # Conditional expressions

    def _case(self, node: exp.Case) -> Typed:
        operand = node.this
        branches = [branch.args["true"] for branch in node.args["ifs"]]
        values = [self.render(value) for value in branches]
        if node.args.get("default") is not None:
            values.append(self.render(node.args["default"]))
        type_ = unify([value.type for value in values], "CASE")
        whens = []
        for branch, value in zip(node.args["ifs"], values, strict=False):
            condition = branch.this if operand is None else exp.EQ(this=operand.copy(), expression=branch.this.copy())
            whens.append(f"WHEN {self.boolean(condition)} THEN {_as(value, type_)}")
        default = f" ELSE {_as(values[-1], type_)}" if node.args.get("default") is not None else ""
        return Typed(f"(CASE {' '.join(whens)}{default} END)", type_)

    def _coalesce(self, node: exp.Coalesce) -> Typed:
        return self._chosen("coalesce", [node.this, *node.expressions])

    def _greatest(self, node: exp.Greatest) -> Typed:
        return self._chosen("greatest", [node.this, *node.expressions], ordering=True)

    def _least(self, node: exp.Least) -> Typed:
        return self._chosen("least", [node.this, *node.expressions], ordering=True)

    def _chosen(self, name: str, arguments: Sequence[Any], *, ordering: bool = False) -> Typed:
        values = [self.render(argument) for argument in arguments]
        type_ = unify([value.type for value in values], name.upper())
        if ordering and not (type_.ordered and type_.groupable):
            raise NotExpressible(f"{name.upper()} of {type_.name}")
        return Typed(f"{name}({', '.join(_as(value, type_) for value in values)})", type_)

    def _nullif(self, node: exp.Nullif) -> Typed:
        left, right = self.render(node.this), self.render(node.expression)
        _check_comparable(left.type, right.type, ordering=False)
        return Typed(f"nullif({left.sql}, {right.sql})", left.type)

    # Functions

    def _function_name(self, node: Any) -> str | None:
        if isinstance(node, exp.Anonymous):
            return str(node.name).lower()
        if isinstance(node, exp.Trim):
            if node.expression or node.args.get("collation"):
                raise NotExpressible("trim of other characters than blanks")
            return {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or "").upper(), "btrim")
        return _SQLGLOT_NAMES.get(type(node))

    def _function(self, name: str, node: exp.Expression) -> Typed:
        function = _FUNCTIONS.get(name)
        nodes = node.expressions if isinstance(node, exp.Anonymous) else [node.this, node.args.get("expression")]
        nodes = [argument for argument in nodes if argument is not None]
        if function is None or len(nodes) != len(function.arguments):
            raise NotExpressible(f"function {name}")
        rendered = []
        for wanted, argument in zip(function.arguments, nodes, strict=True):
            value = self.render(argument)
            if wanted == equality.LITERAL:
                if not (isinstance(argument, exp.Literal) and argument.is_int):
                    raise NotExpressible(f"function {name} with an argument that is not a literal")
            elif value.type.name != wanted and not (wanted == equality.NUMBER and value.type.is_number):
                raise NotExpressible(f"function {name} of {value.type.name}")
            rendered.append(value)
        result = rendered[0].type if function.result in (equality.NUMBER, "text") else SparkType(function.result)
        return Typed(function.spark.format(*(value.sql for value in rendered)), result)

    def _round(self, node: exp.Round) -> Typed:
        this, places = self.render(node.this), node.args.get("decimals")
        if this.type.name != "numeric" or not (places is None or (isinstance(places, exp.Literal) and places.is_int)):
            raise NotExpressible(f"round of {this.type.name}, or to places that are not a literal")
        scale = int(places.name) if places is not None else 0
        type_ = numeric(this.type.digits + (1 if scale < this.type.scale else 0), scale)
        return Typed(f"CAST(round({this.sql}, {min(scale, this.type.scale)}) AS {type_.spark})", type_)

    def _ceil(self, node: exp.Ceil) -> Typed:
        return self._whole(node, "ceil")

    def _floor(self, node: exp.Floor) -> Typed:
        return self._whole(node, "floor")

    def _whole(self, node: exp.Expression, name: str) -> Typed:
        this = self.render(node.this)
        if this.type.name != "numeric" or node.args.get("decimals"):
            raise NotExpressible(f"{name} of {this.type.name}")
        type_ = numeric(this.type.digits + 1, 0)
        return Typed(f"CAST({name}({this.sql}) AS {type_.spark})", type_)

    def _extract(self, node: exp.Extract) -> Typed:
        part, this = node.this.name.lower(), self.render(node.expression)
        known = equality.EXTRACT_PARTS.get(part)
        if known is None or this.type not in (TIMESTAMP, DATE) or (this.type == DATE and part in equality.TIME_PARTS):
            raise NotExpressible(f"EXTRACT({part} FROM {this.type.name})")
        template, digits, scale = known
        type_ = numeric(digits, scale)
        return Typed(f"CAST({template.format(this.sql)} AS {type_.spark})", type_)

    def _timestamptrunc(self, node: exp.Expression) -> Typed:
        this, unit = self.render(node.this), node.args["unit"].unnest()
        while isinstance(unit, exp.Cast):
            unit = unit.this.unnest()
        name = unit.name.lower()
        if this.type != TIMESTAMP or name not in equality.TRUNCATIONS or node.args.get("zone"):
            raise NotExpressible(f"date_trunc('{name}', {this.type.name})")
        return Typed(f"CAST(date_trunc('{name.upper()}', {this.sql}) AS TIMESTAMP_NTZ)", TIMESTAMP)

    # Aggregates

    def _filter(self, node: exp.Filter) -> Typed:
        aggregate = node.this
        while isinstance(aggregate, exp.Dot):
            aggregate = aggregate.expression
        if not isinstance(aggregate, exp.AggFunc):
            raise NotExpressible("FILTER")
        inner = self.render(aggregate)
        call = inner.sql.removeprefix("CAST(").rpartition(" AS ")[0] if inner.sql.startswith("CAST(") else inner.sql
        filtered = f"{call} FILTER (WHERE {self.boolean(node.expression.this)})"
        return Typed(f"CAST({filtered} AS {inner.type.spark})", inner.type)

    def _argument(self, node: Any) -> tuple[str, Typed]:
        if isinstance(node.this, exp.Distinct):
            if len(node.this.expressions) != 1 or node.this.args.get("on"):
                raise NotExpressible("DISTINCT over several columns in an aggregate")
            value = self.render(node.this.expressions[0])
            if not value.type.groupable:
                raise NotExpressible(f"DISTINCT over {value.type.name}")
            return "DISTINCT ", value
        return "", self.render(node.this)

    def _count(self, node: exp.Count) -> Typed:
        if node.expressions:
            raise NotExpressible("count of several columns")
        if isinstance(node.this, exp.Star):
            return Typed("count(*)", BIGINT)
        distinct, value = self._argument(node)
        return Typed(f"count({distinct}{value.sql})", BIGINT)

    def _sum(self, node: exp.Sum) -> Typed:
        distinct, value = self._argument(node)
        if value.type.name in ("smallint", "integer"):
            return Typed(f"sum({distinct}CAST({value.sql} AS BIGINT))", BIGINT)
        if not value.type.is_number:
            raise NotExpressible(f"sum of {value.type.name}")
        inner = value.type.as_numeric()
        # Spark adds ten digits for the sum, as many rows as fit a bigint need nine more; beyond 38 it would overflow.
        type_ = numeric(inner.digits + 10, inner.scale)
        return Typed(f"CAST(sum({distinct}CAST({value.sql} AS {inner.spark})) AS {type_.spark})", type_)

    def _min(self, node: exp.Min) -> Typed:
        return self._extremum(node, "min")

    def _max(self, node: exp.Max) -> Typed:
        return self._extremum(node, "max")

    def _extremum(self, node: exp.AggFunc, name: str) -> Typed:
        _, value = self._argument(node)
        if (
            node.expressions
            or not (value.type.ordered and value.type.groupable)
            or value.type.name in ("boolean", "uuid")
        ):
            raise NotExpressible(
                f"{name} of {value.type.name}" + ("" if value.type.ordered else " under this collation")
            )
        return Typed(f"{name}({value.sql})", value.type)

    def _logicaland(self, node: exp.LogicalAnd) -> Typed:
        return Typed(f"bool_and({self.boolean(node.this)})", BOOLEAN)

    def _logicalor(self, node: exp.LogicalOr) -> Typed:
        return Typed(f"bool_or({self.boolean(node.this)})", BOOLEAN)


def _number(text: str) -> Typed:
    """A number literal: integer, bigint or numeric as PostgreSQL reads it."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    whole, point, fraction = digits.partition(".")
    if not (whole + fraction).isdecimal() or not (whole + fraction).isascii() or (point and not whole):
        raise NotExpressible(f"number {text}")
    if not point:
        value = int(sign + whole)
        for name, bits in (("integer", 31), ("bigint", 63)):
            if -(1 << bits) <= value < 1 << bits:
                return Typed(f"CAST({value} AS {SparkType(name).spark})", SparkType(name))
    type_ = numeric(max(len(whole.lstrip("0")), 1), len(fraction))
    return Typed(f"CAST('{text}' AS {type_.spark})", type_)


def _as(value: Typed, type_: SparkType) -> str:
    """The value with exactly this type, for branches that Spark would otherwise unify by itself."""
    if value.type == UNKNOWN or type_.name == "numeric":
        return f"CAST({value.sql} AS {type_.spark})"
    return value.sql


def _wider(left: SparkType, right: SparkType) -> SparkType:
    return max((SparkType(left.name), SparkType(right.name)), key=lambda t: list(INTEGERS).index(t.name))


def _arithmetic(left: Typed, right: Typed, operator: str) -> Typed:
    a, b = left.type, right.type
    if not (a.is_number and b.is_number):
        raise NotExpressible(f"{a.name} {operator} {b.name}")
    if a.is_integer and b.is_integer:
        type_ = _wider(a, b)
        sides = (f"CAST({side.sql} AS {type_.spark})" if side.type != type_ else side.sql for side in (left, right))
        return Typed(f"({f' {operator} '.join(sides)})", type_)
    a, b = a.as_numeric(), b.as_numeric()
    if operator == "*":
        type_ = numeric(a.digits + b.digits, a.scale + b.scale)
        if a.precision + b.precision + 1 > 38:  # what Spark derives before our cast
            raise NotExpressible("product of numerics with more than 37 digits")
    else:
        type_ = numeric(max(a.digits, b.digits) + 1, max(a.scale, b.scale))
    operation = f"CAST({left.sql} AS {a.spark}) {operator} CAST({right.sql} AS {b.spark})"
    return Typed(f"CAST(({operation}) AS {type_.spark})", type_)


def _date_arithmetic(left: Typed, right: Typed, operator: str) -> Typed:
    if right.type == DATE and operator == "-":
        return Typed(f"datediff({left.sql}, {right.sql})", INTEGER)
    # Spark wraps around where PostgreSQL finds a date out of range: only offsets that cannot get there.
    literal = right.sql.removeprefix("CAST(").removesuffix(" AS INT)")
    if right.type == INTEGER and literal.lstrip("-").isdecimal() and abs(int(literal)) < 1_000_000:
        return Typed(f"date_{'add' if operator == '+' else 'sub'}({left.sql}, {right.sql})", DATE)
    raise NotExpressible(f"date {operator} anything but a date or an integer literal")


def _check_comparable(a: SparkType, b: SparkType, *, ordering: bool) -> None:
    if UNKNOWN in (a, b):
        return
    if a.is_number and b.is_number:
        x, y = a.as_numeric(), b.as_numeric()
        numeric(max(x.digits, y.digits), max(x.scale, y.scale))
        return
    if a.name != b.name:
        raise NotExpressible(f"comparison of {a.name} with {b.name}")
    if not (a.equatable and b.equatable):
        raise NotExpressible("comparison under a collation that is not deterministic")
    if ordering and not (a.ordered and b.ordered):
        raise NotExpressible("order of text under a collation other than C")


def _postgres_name(declared: str) -> str:
    """The type's PostgreSQL name from how sqlglot writes it."""
    head, bracket, rest = declared.partition("(")
    names = {
        "int": "integer", "decimal": "numeric", "timestamp": "timestamp without time zone",
        "timestamptz": "timestamp with time zone", "varchar": "character varying", "double": "double precision",
    }  # fmt: skip
    name = names.get(head.strip(), head.strip())
    modifier = (bracket + rest).replace(" ", "")
    return (
        name + modifier
        if "time zone" not in name
        else reduce(lambda t, p: t.replace(*p), [(" with", modifier + " with")], name)
    )


def _named(node: Any) -> str:
    """How a user would recognise a construct."""
    if isinstance(node, exp.Subquery | exp.Select | exp.Exists):
        return "subquery in an expression"
    if isinstance(node, exp.Window):
        return "window function"
    if isinstance(node, exp.Func):
        return f"function {node.sql_name().lower()}"
    return str(node.key).replace("_", " ") if hasattr(node, "key") else type(node).__name__
