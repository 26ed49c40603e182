"""Scalar and aggregate expressions in Spark's dialect, each with the type that it has in both systems.

Every construct has a rule of its own, `RULES`; one without a rule, or with a part that its rule does not know, raises
NotExpressible and names itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlglot import exp

from . import spark_equality as equality
from .spark_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    NotExpressible,
    SparkType,
    column_type,
    numeric,
    sqlglot_type,
)
from .spark_values import (
    Typed,
    arithmetic,
    as_type,
    check_comparable,
    constant,
    converted,
    date_arithmetic,
    number,
    string,
    unify,
    wider,
)

Resolve = Callable[[exp.Column], Typed]

_COMPARISONS: dict[type[Any], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>", exp.NullSafeNEQ: "<=>",
}  # fmt: skip
_EQUALITIES = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ)
_FUNCTIONS = {function.name: function for function in equality.FUNCTIONS}
_NAMES: dict[type[Any], str] = {
    exp.Abs: "abs", exp.Length: "length", exp.Left: "left", exp.Right: "right", exp.ByteLength: "octet_length",
}  # fmt: skip


class Expressions:
    """Renders expressions whose columns `resolve` knows."""

    def __init__(self, resolve: Resolve):
        self._resolve = resolve

    def render(self, node: Any) -> Typed:
        """The expression in Spark SQL. Raises NotExpressible."""
        rule = RULES.get(type(node))
        if rule is None:
            raise NotExpressible(_named(node))
        method, parts = rule
        for part, value in node.args.items():
            if value and part not in parts and part not in _MEANINGLESS:
                raise NotExpressible(f"{_named(node)} with {part.replace('_', ' ').strip()}")
        return method(self, node)

    def boolean(self, node: Any) -> str:
        """A condition."""
        rendered = self.render(node)
        if rendered.type not in (BOOLEAN, UNKNOWN):
            raise NotExpressible(f"condition of type {rendered.type.name}")
        return rendered.sql

    # Values

    def _paren(self, node: exp.Paren) -> Typed:
        return self.render(node.this)

    def _qualified(self, node: exp.Dot) -> Typed:
        if node.this.name != "pg_catalog" or not isinstance(node.expression, exp.Func):
            raise NotExpressible(node.sql("postgres"))
        return self.render(node.expression)

    def _column(self, node: exp.Column) -> Typed:
        return self._resolve(node)

    def _null(self, node: exp.Null) -> Typed:
        return Typed("NULL", UNKNOWN)

    def _boolean(self, node: exp.Boolean) -> Typed:
        return Typed("TRUE" if node.this else "FALSE", BOOLEAN)

    def _literal(self, node: exp.Literal) -> Typed:
        if node.is_string:
            return Typed(string(node.name), TEXT)
        return number(node.name)

    def _cast(self, node: exp.Cast) -> Typed:
        bare = not node.to.expressions
        declared = sqlglot_type(node.to.sql("postgres"))
        target = SparkType("numeric", 38, 0) if bare and declared == "numeric" else column_type(declared)
        if target.is_text:
            if not bare:
                raise NotExpressible(f"cast to {declared}")
            target = TEXT
        value = node.this.unnest()
        if isinstance(value, exp.Neg) and isinstance(value.this, exp.Literal) and not value.this.is_string:
            value = exp.Literal.string("-" + value.this.name)
        if isinstance(value, exp.Literal):
            return constant(value.name, target, not bare)
        inner = self.render(value)
        if inner.type == UNKNOWN:
            # A NULL numeric has no scale; it takes that of its surroundings.
            return (
                Typed("NULL", UNKNOWN)
                if bare and target.name == "numeric"
                else Typed(f"CAST(NULL AS {target.spark})", target)
            )
        if bare and target.name == "numeric" and inner.type.is_number:
            target = inner.type.as_numeric()
        return converted(inner, target)

    # Operators

    def _comparison(self, node: exp.Binary) -> Typed:
        right = node.right
        if isinstance(right, exp.Any | exp.All) or (isinstance(right, exp.Anonymous) and right.name.upper() == "ALL"):
            return self._quantified(node, right)
        a, b = self.render(node.left), self.render(right)
        check_comparable(a.type, b.type, ordering=not isinstance(node, _EQUALITIES))
        sql = f"({a.sql} {_COMPARISONS[type(node)]} {b.sql})"
        return Typed(f"(NOT {sql})" if isinstance(node, exp.NullSafeNEQ) else sql, BOOLEAN)

    def _quantified(self, node: exp.Binary, member: Any) -> Typed:
        array = (member.expressions[0] if isinstance(member, exp.Anonymous) else member.this).unnest()
        wanted = exp.EQ if isinstance(member, exp.Any) else exp.NEQ
        if not isinstance(array, exp.Array) or type(node) is not wanted:
            raise NotExpressible("ANY or ALL over anything but a list of values with = or <>")
        return self._member(node.left, array.expressions, negated=wanted is exp.NEQ)

    def _in(self, node: exp.In) -> Typed:
        return self._member(node.this, node.expressions, negated=False)

    def _member(self, this: Any, items: Sequence[Any], *, negated: bool) -> Typed:
        left, values = self.render(this), [self.render(item) for item in items]
        if not values:
            raise NotExpressible("an empty list of values")
        for value in values:
            check_comparable(left.type, value.type, ordering=False)
        operator = "NOT IN" if negated else "IN"
        return Typed(f"({left.sql} {operator} ({', '.join(value.sql for value in values)}))", BOOLEAN)

    def _between(self, node: exp.Between) -> Typed:
        this, low, high = (self.render(node.args[name]) for name in ("this", "low", "high"))
        for bound in (low, high):
            check_comparable(this.type, bound.type, ordering=True)
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
            return _negated(node, f"({this.sql} IS NULL)")
        if isinstance(node.expression, exp.Boolean) and this.type == BOOLEAN:
            return _negated(node, f"({this.sql} <=> {'TRUE' if node.expression.this else 'FALSE'})")
        raise NotExpressible("IS")

    def _like(self, node: exp.Like) -> Typed:
        text, pattern = self.render(node.this), node.expression.unnest()
        literal = pattern.this if isinstance(pattern, exp.Cast) else pattern
        if not isinstance(literal, exp.Literal) or "\\" in literal.name:
            raise NotExpressible("LIKE with a pattern that is not a literal without backslashes")
        if not text.type.is_text or not text.type.equatable:
            raise NotExpressible("LIKE under a collation that is not deterministic")
        return _negated(node, f"({text.sql} LIKE {string(literal.name)})")

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
            return date_arithmetic(left, right, operator)
        return arithmetic(left, right, operator)

    def _mul(self, node: exp.Mul) -> Typed:
        return arithmetic(self.render(node.left), self.render(node.right), "*")

    def _div(self, node: exp.Div) -> Typed:
        left, right = self.render(node.left), self.render(node.right)
        if not (left.type.is_integer and right.type.is_integer):
            raise NotExpressible("division of anything but integers")
        type_ = wider(left.type, right.type)
        # Spark's div is a bigint whatever its operands; the cast fails where PostgreSQL's own division overflows.
        wide = (f"CAST({side.sql} AS BIGINT)" for side in (left, right))
        return Typed(f"CAST(({' div '.join(wide)}) AS {type_.spark})", type_)

    def _mod(self, node: exp.Mod) -> Typed:
        left, right = self.render(node.left), self.render(node.right)
        if not (left.type.is_integer and right.type.is_integer):
            raise NotExpressible("remainder of anything but integers")
        type_ = wider(left.type, right.type)
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
            whens.append(f"WHEN {self.boolean(condition)} THEN {as_type(value, type_)}")
        default = f" ELSE {as_type(values[-1], type_)}" if node.args.get("default") is not None else ""
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
        return Typed(f"{name}({', '.join(as_type(value, type_) for value in values)})", type_)

    def _nullif(self, node: exp.Nullif) -> Typed:
        left, right = self.render(node.this), self.render(node.expression)
        check_comparable(left.type, right.type, ordering=False)
        return Typed(f"nullif({left.sql}, {right.sql})", left.type)

    # Functions

    def _trim(self, node: exp.Trim) -> Typed:
        names = {"": "btrim", "BOTH": "btrim", "LEADING": "ltrim", "TRAILING": "rtrim"}
        return self._call(names[str(node.args.get("position") or "").upper()], [node.this])

    def _function(self, node: exp.Func) -> Typed:
        if isinstance(node, exp.Anonymous):
            return self._call(str(node.name).lower(), node.expressions)
        arguments = [node.this, node.args.get("expression")]
        return self._call(_NAMES[type(node)], [argument for argument in arguments if argument is not None])

    def _call(self, name: str, nodes: Sequence[Any]) -> Typed:
        function = _FUNCTIONS.get(name)
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
        if this.type.name != "numeric":
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
        if this.type != TIMESTAMP or name not in equality.TRUNCATIONS:
            raise NotExpressible(f"date_trunc('{name}', {this.type.name})")
        return Typed(equality.TRUNCATIONS[name].format(this.sql), TIMESTAMP)

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


def _negated(node: exp.Expression, sql: str) -> Typed:
    return Typed(f"(NOT {sql})" if node.args.get("negate") else sql, BOOLEAN)


def _named(node: Any) -> str:
    """How a user would recognise a construct."""
    if isinstance(node, exp.Subquery | exp.Select | exp.Exists):
        return "subquery in an expression"
    if isinstance(node, exp.Window):
        return "window function"
    if isinstance(node, exp.Anonymous):
        return f"function {node.name.lower()}"
    if isinstance(node, exp.Func):
        return f"function {node.sql_name().lower()}"
    return str(node.key).replace("_", " ") if hasattr(node, "key") else type(node).__name__


_MEANINGLESS = frozenset(("typed", "safe", "big_int", "value_constructor"))
"""Notes of the parser to itself."""

_BINARY = ("this", "expression")

RULES: Mapping[type[Any], tuple[Callable[[Expressions, Any], Typed], tuple[str, ...]]] = {
    exp.Paren: (Expressions._paren, ("this",)),
    exp.Dot: (Expressions._qualified, _BINARY),
    exp.Column: (Expressions._column, ("this", "table")),
    exp.Null: (Expressions._null, ()),
    exp.Boolean: (Expressions._boolean, ("this",)),
    exp.Literal: (Expressions._literal, ("this", "is_string")),
    exp.Cast: (Expressions._cast, ("this", "to")),
    **{kind: (Expressions._comparison, _BINARY) for kind in _COMPARISONS},
    exp.In: (Expressions._in, ("this", "expressions")),
    exp.Between: (Expressions._between, ("this", "low", "high")),
    exp.And: (Expressions._and, _BINARY),
    exp.Or: (Expressions._or, _BINARY),
    exp.Not: (Expressions._not, ("this",)),
    exp.Is: (Expressions._is, (*_BINARY, "negate")),
    exp.Like: (Expressions._like, (*_BINARY, "negate")),
    exp.DPipe: (Expressions._dpipe, _BINARY),
    exp.Neg: (Expressions._neg, ("this",)),
    exp.Add: (Expressions._add, _BINARY),
    exp.Sub: (Expressions._sub, _BINARY),
    exp.Mul: (Expressions._mul, _BINARY),
    exp.Div: (Expressions._div, _BINARY),
    exp.Mod: (Expressions._mod, _BINARY),
    exp.Case: (Expressions._case, ("this", "ifs", "default")),
    exp.Coalesce: (Expressions._coalesce, ("this", "expressions")),
    exp.Greatest: (Expressions._greatest, ("this", "expressions", "ignore_nulls")),
    exp.Least: (Expressions._least, ("this", "expressions", "ignore_nulls")),
    exp.Nullif: (Expressions._nullif, _BINARY),
    exp.Trim: (Expressions._trim, ("this", "position")),
    exp.Anonymous: (Expressions._function, ("this", "expressions")),
    **{kind: (Expressions._function, _BINARY) for kind in _NAMES},
    exp.Round: (Expressions._round, ("this", "decimals")),
    exp.Ceil: (Expressions._ceil, ("this",)),
    exp.Floor: (Expressions._floor, ("this",)),
    exp.Extract: (Expressions._extract, _BINARY),
    exp.TimestampTrunc: (Expressions._timestamptrunc, ("this", "unit")),
    exp.Filter: (Expressions._filter, _BINARY),
    exp.Count: (Expressions._count, ("this",)),
    exp.Sum: (Expressions._sum, ("this",)),
    exp.Min: (Expressions._min, ("this",)),
    exp.Max: (Expressions._max, ("this",)),
    exp.LogicalAnd: (Expressions._logicaland, ("this",)),
    exp.LogicalOr: (Expressions._logicalor, ("this",)),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
