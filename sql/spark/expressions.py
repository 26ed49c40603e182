"""Scalar and aggregate expressions in Spark's dialect, each with the type that it has in both systems.

Every construct has a rule of its own, `RULES`; one without a rule, or with a part that its rule does not know, raises
NotExpressible and names itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlglot import exp

from sql.base.columns import ENUM
from sql.errors import NotExpressible
from sql.spark.aggregates import AGGREGATES
from sql.spark.conditional import CONDITIONALS
from sql.spark.dates import Interval, date_arithmetic, date_beside_timestamp, in_utc, local, moved, parse_interval
from sql.spark.functions import FUNCTIONS
from sql.spark.numbers.bits import BITS
from sql.spark.numbers.exact import Layers, arithmetic, integer_division, negated, quotient, remainder
from sql.spark.numbers.floats import float_arithmetic, is_float
from sql.spark.numbers.wide import is_wide, wide_arithmetic, wide_comparison, wide_negated
from sql.spark.ordered_aggregates import ORDERED_AGGREGATES
from sql.spark.protocol import Environment
from sql.spark.python.arrays import ARRAY_RULES, member_of
from sql.spark.python.calls import call, called
from sql.spark.python.formats import FORMATS
from sql.spark.python.intervals import INTERVAL, INTERVALS, compared, difference
from sql.spark.python.jsonb import JSONB, JSONB_RULES, less, same_look
from sql.spark.python.signatures import applied
from sql.spark.statistics import STATISTICS
from sql.spark.text.cases import CASES
from sql.spark.text.collations import BYTES, DEFAULT
from sql.spark.text.patterns import same_everywhere
from sql.spark.text.regular_expressions import REGULAR_EXPRESSIONS, literal, matches, similar
from sql.spark.text.strings import STRINGS, cut
from sql.spark.types import (
    BOOLEAN,
    DATE,
    TEXT,
    TIMESTAMP,
    UNKNOWN,
    SparkType,
    Typed,
    base_type,
    column_type,
    is_numeral,
    sqlglot_type,
)
from sql.spark.user_defined.functions import Passed
from sql.spark.user_defined.types import Label, place_of
from sql.spark.values import comparable, constant, converted, number, numeral, string, unify
from sql.spark.windows import WINDOWS

Resolve = Callable[[exp.Column], Typed]
Subquery = Callable[[Any], str]

_COMPARISONS: dict[type[Any], str] = {
    exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
    exp.NullSafeEQ: "<=>", exp.NullSafeNEQ: "<=>",
}  # fmt: skip
_EQUALITIES = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.NullSafeNEQ)


class SparkExpressions:
    """Renders expressions whose columns `resolve` knows.

    ``exists`` renders the query of an EXISTS, where one may stand. ``layers`` take what a division needs, where there
    may be one. ``clause`` follows an aggregate call: FILTER, OVER. ``keys`` are expressions that are computed already;
    ``before`` has one computed for each row that is grouped.
    """

    def __init__(
        self,
        resolve: Resolve,
        environment: Environment,
        *,
        exists: Subquery | None = None,
        layers: Layers | None = None,
        clause: str = "",
        keys: Sequence[tuple[exp.Expr, Typed]] = (),
        before: Callable[[str], str] | None = None,
    ):
        self._resolve = resolve
        self.environment = environment
        self._exists_query = exists
        self._layers = layers
        self.clause = clause
        self._keys = keys
        self._before = before

    def with_clause(self, clause: str) -> SparkExpressions:
        """The same with another clause after aggregate calls."""
        return self._with(clause=clause)

    def with_queries(self, exists: Subquery) -> SparkExpressions:
        """The same where EXISTS may stand."""
        return self._with(exists=exists)

    def with_keys(self, keys: Sequence[tuple[exp.Expr, Typed]]) -> SparkExpressions:
        """The same where these expressions are computed already."""
        return self._with(keys=keys)

    def over_groups(self, before: Callable[[str], str]) -> SparkExpressions:
        """The same where rows are grouped, for each of which something can be computed before."""
        return self._with(before=before)

    def _with(self, **changed: Any) -> SparkExpressions:
        same = {
            "exists": self._exists_query,
            "layers": self._layers,
            "clause": self.clause,
            "keys": self._keys,
            "before": self._before,
        }
        return SparkExpressions(self._resolve, self.environment, **{**same, **changed})

    def layered(self, what: str) -> Layers:
        """Where a division's steps go. Raises NotExpressible where there may be none."""
        if self._layers is None:
            raise NotExpressible(f"{what} in this place")
        return self._layers

    def once(self, sql: str) -> str:
        """See `Expressions.once`."""
        return self._before(sql) if self._before and called(sql) else sql

    def render(self, node: Any) -> Typed:
        """The expression in Spark SQL. Raises NotExpressible."""
        for key, computed in self._keys:
            if node == key:
                return computed
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

    def _column(self, node: exp.Column) -> Typed:
        return self._resolve(node)

    def _null(self, node: exp.Null) -> Typed:
        return Typed("NULL", UNKNOWN)

    def _label(self, node: Label) -> Typed:
        type_ = column_type(node.args["to"].name, carrier=ENUM)
        null = isinstance(node.this, exp.Null)
        return Typed("CAST(NULL AS STRING)" if null else string(node.this.name), type_)

    def _boolean(self, node: exp.Boolean) -> Typed:
        return Typed("TRUE" if node.this else "FALSE", BOOLEAN)

    def _literal(self, node: exp.Literal) -> Typed:
        if node.is_string:
            return Typed(string(node.name), TEXT)
        return number(node.name)

    def _cast(self, node: exp.Cast) -> Typed:
        target, bare = _cast_to(node)
        value = node.this.unnest()
        if target.is_text and not bare and not isinstance(value, exp.Literal | exp.Null):
            length = int(node.to.expressions[0].name)
            return cut(self.render(value), length, padded=target.name == "character")
        if isinstance(value, exp.Neg) and isinstance(value.this, exp.Literal) and not value.this.is_string:
            value = exp.Literal.string("-" + value.this.name)
        if isinstance(value, exp.Literal):
            return constant(value.name, target, not bare)
        return self._converted(self.render(value), target, bare=bare)

    def _passed(self, node: Passed) -> Typed:
        value = self.render(node.this)
        if value.type.collation != DEFAULT:
            # Within the body all texts would be under it.
            raise NotExpressible("argument of a function with a collation of its own")
        if value.type.name == base_type(node.args["declared"].name) != "numeric":
            return value
        target, bare = _cast_to(node)
        return self._converted(value, target, bare=bare)

    def _converted(self, inner: Typed, target: SparkType, *, bare: bool) -> Typed:
        if inner.type == UNKNOWN:
            # A NULL numeric has no scale; it takes that of its surroundings.
            return (
                Typed("NULL", UNKNOWN)
                if bare and target.name == "numeric"
                else Typed(f"CAST(NULL AS {target.spark})", target)
            )
        if bare and target.name == "numeric" and inner.type.is_number:
            return inner if inner.type.name == "numeric" else converted(inner, inner.type.as_numeric())
        if bare and target.name == "numeric":
            return inner if is_numeral(inner.type) else numeral(inner)
        depending = in_utc(inner, target) if self.environment.utc else None
        return depending or converted(inner, target)

    # Operators

    def _comparison(self, node: exp.Binary) -> Typed:
        right = node.right
        if isinstance(right, exp.Any | exp.All) or (isinstance(right, exp.Anonymous) and right.name.upper() == "ALL"):
            return self._quantified(node, right)
        if _is_row(node.left) and _is_row(right):
            return self._rows(node, node.left.expressions, right.expressions)
        a, b = self.render(node.left), self.render(right)
        in_python = self._compared(node, a, b)
        if in_python is not None:
            return in_python
        if self.environment.utc and a.type != b.type:
            a, b = local(a), local(b)
        if (a.type, b.type) == (DATE, TIMESTAMP):
            a, b = date_beside_timestamp(a, b)
        elif (a.type, b.type) == (TIMESTAMP, DATE):
            b, a = date_beside_timestamp(b, a)
        elif (a.type, b.type) == (INTERVAL, INTERVAL):
            a, b = compared(a), compared(b)
        elif (a.type, b.type) == (JSONB, JSONB) and isinstance(node, _EQUALITIES):
            a, b = same_look(a), same_look(b)
        x, y = comparable(a, b, ordering=not isinstance(node, _EQUALITIES))
        sql = f"({x} {_COMPARISONS[type(node)]} {y})"
        return Typed(f"(NOT {sql})" if isinstance(node, exp.NullSafeNEQ) else sql, BOOLEAN)

    def _compared(self, node: exp.Binary, a: Typed, b: Typed) -> Typed | None:
        """A comparison that a function in Python makes."""
        operator, equality = _COMPARISONS[type(node)], type(node) in (exp.EQ, exp.NEQ)
        if a.type.enum and a.type == b.type and operator not in ("=", "<>", "<=>"):
            a, b = place_of(a, self.environment), place_of(b, self.environment)
            return Typed(f"({a.sql} {operator} {b.sql})", BOOLEAN)
        if is_wide(a, b) and operator != "<=>":
            return wide_comparison(a, b, operator)
        if (a.type, b.type) == (JSONB, JSONB) and not isinstance(node, _EQUALITIES):
            return less(self, a, operator, b)
        found = applied("=", (a, b)) if equality else None
        return replace(found, sql=f"(NOT {found.sql})") if found and isinstance(node, exp.NEQ) else found

    def _rows(self, node: exp.Binary, left: Sequence[Any], right: Sequence[Any]) -> Typed:
        """A comparison of rows, by the first of their values that differ."""
        kind = type(node)
        pairs = [*zip(left, right, strict=True)]
        if kind in _EQUALITIES:
            if kind not in (exp.EQ, exp.NEQ):
                raise NotExpressible("IS DISTINCT FROM of rows")
            equal = f"({' AND '.join(self._comparison(exp.EQ(this=a, expression=b)).sql for a, b in pairs)})"
            return Typed(equal if kind is exp.EQ else f"(NOT {equal})", BOOLEAN)
        strict = exp.LT if kind in (exp.LT, exp.LTE) else exp.GT
        one, other = pairs[-1]
        sql = self._comparison(kind(this=one, expression=other)).sql
        for one, other in reversed(pairs[:-1]):
            equal = self._comparison(exp.EQ(this=one, expression=other)).sql
            sql = f"(CASE WHEN {equal} THEN {sql} ELSE {self._comparison(strict(this=one, expression=other)).sql} END)"
        return Typed(sql, BOOLEAN)

    def _quantified(self, node: exp.Binary, member: Any) -> Typed:
        array = (member.expressions[0] if isinstance(member, exp.Anonymous) else member.this).unnest()
        wanted = exp.EQ if isinstance(member, exp.Any) else exp.NEQ
        if type(node) is not wanted:
            raise NotExpressible("ANY or ALL with anything but = or <>")
        if not isinstance(array, exp.Array):
            found = member_of(self.render(node.left), self.render(array))
            return found if wanted is exp.EQ else replace(found, sql=f"(NOT {found.sql})")
        return self._member(node.left, array.expressions, negated=wanted is exp.NEQ)

    def _in(self, node: exp.In) -> Typed:
        return self._member(node.this, node.expressions, negated=False)

    def _member(self, this: Any, items: Sequence[Any], *, negated: bool) -> Typed:
        left, values = self.render(this), [self.render(item) for item in items]
        if not values:
            raise NotExpressible("an empty list of values")
        pairs = [comparable(left, value, ordering=False) for value in values]
        if all(pair == (left.sql, value.sql) for pair, value in zip(pairs, values, strict=True)):
            operator = "NOT IN" if negated else "IN"
            return Typed(f"({left.sql} {operator} ({', '.join(value.sql for value in values)}))", BOOLEAN)
        equal = f"({' OR '.join(f'{one} = {other}' for one, other in pairs)})"
        return Typed(f"(NOT {equal})" if negated else equal, BOOLEAN)

    def _between(self, node: exp.Between) -> Typed:
        this, low, high = (self.render(node.args[name]) for name in ("this", "low", "high"))
        above, below = comparable(this, low, ordering=True), comparable(this, high, ordering=True)
        return Typed(f"({above[0]} >= {above[1]} AND {below[0]} <= {below[1]})", BOOLEAN)

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
        if not text.type.is_text or not text.type.equatable:
            raise NotExpressible("LIKE under a collation that is not deterministic")
        if not isinstance(literal, exp.Literal) or "\\" in literal.name:
            return self._like_by_row(node, text)
        sql = text.sql
        if text.type.name == "character" and not text.type.precision:
            raise NotExpressible("LIKE of a character without a length")
        if text.type.name == "character":
            # Here alone the blanks count.
            sql = f"rpad({sql}, {text.type.precision}, ' ')"
        return _negated(node, f"({sql} LIKE {string(literal.name)})")

    def _like_by_row(self, node: exp.Like, text: Typed) -> Typed:
        """LIKE with a pattern of each row's own, or with backslashes."""
        pattern = self.render(node.expression)
        if text.type.name != "text" or pattern.type.name != "text" or not pattern.type.equatable:
            raise NotExpressible(f"LIKE of {text.type.name} with a pattern that is not a literal without backslashes")
        return _negated(node, call("string_like", text.sql, pattern.sql))

    def _matches(self, node: exp.RegexpLike) -> Typed:
        text, pattern = self.render(node.this), node.expression.unnest()
        if isinstance(pattern, exp.Anonymous) and pattern.name.lower() == "similar_to_escape":
            return matches(self, text, similar(literal(pattern.expressions[0])))
        if text.type.name != "text" or not text.type.equatable:
            raise NotExpressible(
                "regular expression of anything but text, or under a collation that is not deterministic"
            )
        flags = node.args.get("flag")
        if flags is not None:
            return matches(self, text, literal(pattern), literal(flags))
        try:
            return Typed(f"({text.sql} RLIKE {string(same_everywhere(literal(pattern)))})", BOOLEAN)
        except NotExpressible:
            return matches(self, text, literal(pattern))

    def _dpipe(self, node: exp.DPipe) -> Typed:
        values = [self.render(node.left), self.render(node.right)]
        if in_python := applied("||", values):
            return in_python
        left, right = map(self._as_text, values)
        if not (left.type.is_text and right.type.is_text):
            raise NotExpressible("|| of anything but text, numbers, truth values and dates")
        return Typed(f"({left.sql} || {right.sql})", unify((left.type, right.type), "||"))

    def _as_text(self, value: Typed) -> Typed:
        plain = value.type.name == "character" or value.type.is_number or value.type in (BOOLEAN, DATE, TIMESTAMP)
        return converted(value, TEXT) if plain else value

    def _neg(self, node: exp.Neg) -> Typed:
        this = self.render(node.this)
        if is_wide(this):
            return wide_negated(this)
        if this.type == INTERVAL:
            return replace(this, sql=call("interval_negated", this.sql))
        if not this.type.is_number and not is_numeral(this.type) and not is_float(this):
            raise NotExpressible(f"- of {this.type.name}")
        return negated(this)

    def _add(self, node: exp.Add) -> Typed:
        return self._plus_minus(node, "+")

    def _sub(self, node: exp.Sub) -> Typed:
        return self._plus_minus(node, "-")

    def _plus_minus(self, node: exp.Binary, operator: str) -> Typed:
        interval = _interval(node.right)
        value = self.render(node.left)
        if interval is not None and value.type != INTERVAL:
            return moved(value, -interval if operator == "-" else interval, utc=self.environment.utc)
        left, right = value, self.render(node.right)
        if left.type == DATE and right.type == INTERVAL:
            left = converted(left, TIMESTAMP)
        if in_python := applied(operator, (left, right)):
            return in_python
        if left.type == DATE:
            return date_arithmetic(left, right, operator)
        between = difference(left, right) if operator == "-" else None
        return between or self._arithmetic(left, right, operator)

    def _mul(self, node: exp.Mul) -> Typed:
        left, right = self.render(node.left), self.render(node.right)
        if right.type == INTERVAL:
            left, right = right, left
        return applied("*", (left, right)) or self._arithmetic(left, right, "*")

    def _arithmetic(self, left: Typed, right: Typed, operator: str) -> Typed:
        if is_float(left, right):
            return float_arithmetic(left, right, operator, self.layered)
        if is_wide(left, right):
            return wide_arithmetic(left, right, operator)
        return arithmetic(left, right, operator)

    def _div(self, node: exp.Div) -> Typed:
        left, right = self.render(node.left), self.render(node.right)
        if is_float(left, right):
            return float_arithmetic(left, right, "/", self.layered)
        if is_wide(left, right):
            return wide_arithmetic(left, right, "/")
        if left.type.is_integer and right.type.is_integer:
            return integer_division(left, right)
        return quotient(left, right, self.layered("division of numerics"))

    def _mod(self, node: exp.Mod) -> Typed:
        left, right = self.render(node.left), self.render(node.right)
        return wide_arithmetic(left, right, "%") if is_wide(left, right) else remainder(left, right)

    def _int_div(self, node: exp.IntDiv) -> Typed:
        found = applied("div", (self.render(node.left), self.render(node.right)))
        if found is None:
            raise NotExpressible("function div")
        return found

    # Queries, and orders of text

    def _exists(self, node: exp.Exists) -> Typed:
        if self._exists_query is None:
            raise NotExpressible("subquery in an expression")
        return Typed(f"EXISTS ({self._exists_query(node.this)})", BOOLEAN)

    def _collate(self, node: exp.Collate) -> Typed:
        this = self.render(node.this)
        # One with a schema is somebody's own.
        bare = isinstance(node.expression, exp.Identifier)
        if not this.type.is_text or not bare or node.expression.name not in ("C", "POSIX", "ucs_basic"):
            raise NotExpressible("collate")
        return replace(this, type=replace(this.type, ordered=True, equatable=True, groupable=True, collation=BYTES))


def _is_row(node: Any) -> bool:
    return isinstance(node, exp.Anonymous) and node.name.upper() == "ROW"


def _interval(node: Any) -> Interval | None:
    """The value of a literal interval."""
    node = node.unnest()
    if isinstance(node, exp.Cast) and node.to.is_type("interval") and isinstance(node.this.unnest(), exp.Literal):
        return parse_interval(node.this.unnest().name)
    return None


def _negated(node: exp.Expression, sql: str) -> Typed:
    return Typed(f"(NOT {sql})" if node.args.get("negate") else sql, BOOLEAN)


def _cast_to(node: exp.Cast) -> tuple[SparkType, bool]:
    """The type of a cast, and whether it is without a modifier."""
    bare = not node.to.expressions
    declared = sqlglot_type(node.to.sql("postgres"))
    if declared.startswith("character varying") and isinstance(node.this.unnest(), exp.Null):
        bare = True
    target = SparkType("numeric", 38, 0) if bare and declared == "numeric" else column_type(declared)
    if target.name == "character":
        target = SparkType("character", target.precision)
    return (TEXT if target.name == "text" else target), bare


def _named(node: Any) -> str:
    """How a user would recognise a construct."""
    if isinstance(node, exp.Subquery | exp.Select | exp.Exists):
        return "subquery in an expression"
    if isinstance(node, exp.Window):
        return "window function"
    if isinstance(node, exp.Dot):
        return str(node.sql("postgres"))
    if isinstance(node, exp.Anonymous):
        return f"function {node.name.lower()}"
    if isinstance(node, exp.Func | exp.WithinGroup):
        # By PostgreSQL's name, which sqlglot's own is not always.
        call = re.match(r"(\w+)\(", node.sql("postgres"))
        name = call[1] if call else node.sql_name() if isinstance(node, exp.Func) else node.key
        return f"function {name.lower()}"
    return str(node.key).replace("_", " ") if hasattr(node, "key") else type(node).__name__


_MEANINGLESS = frozenset(("typed", "safe", "big_int", "value_constructor"))
"""Notes of the parser to itself."""

_BINARY = ("this", "expression")

RULES: Mapping[type[Any], tuple[Callable[[SparkExpressions, Any], Typed], tuple[str, ...]]] = {
    exp.Paren: (SparkExpressions._paren, ("this",)),
    exp.Column: (SparkExpressions._column, ("this", "table")),
    exp.Null: (SparkExpressions._null, ()),
    exp.Boolean: (SparkExpressions._boolean, ("this",)),
    Label: (SparkExpressions._label, ("this", "to")),
    exp.Literal: (SparkExpressions._literal, ("this", "is_string")),
    exp.Cast: (SparkExpressions._cast, ("this", "to")),
    Passed: (SparkExpressions._passed, ("this", "to", "declared")),
    **{kind: (SparkExpressions._comparison, _BINARY) for kind in _COMPARISONS},
    exp.In: (SparkExpressions._in, ("this", "expressions")),
    exp.Between: (SparkExpressions._between, ("this", "low", "high")),
    exp.And: (SparkExpressions._and, _BINARY),
    exp.Or: (SparkExpressions._or, _BINARY),
    exp.Not: (SparkExpressions._not, ("this",)),
    exp.Is: (SparkExpressions._is, (*_BINARY, "negate")),
    exp.Like: (SparkExpressions._like, (*_BINARY, "negate")),
    exp.RegexpLike: (SparkExpressions._matches, (*_BINARY, "flag")),
    exp.DPipe: (SparkExpressions._dpipe, _BINARY),
    exp.Neg: (SparkExpressions._neg, ("this",)),
    exp.Add: (SparkExpressions._add, _BINARY),
    exp.Sub: (SparkExpressions._sub, _BINARY),
    exp.Mul: (SparkExpressions._mul, _BINARY),
    exp.Div: (SparkExpressions._div, _BINARY),
    exp.Mod: (SparkExpressions._mod, _BINARY),
    exp.Exists: (SparkExpressions._exists, ("this",)),
    exp.Collate: (SparkExpressions._collate, _BINARY),
    **FUNCTIONS,
    **BITS,
    **CONDITIONALS,
    **AGGREGATES,
    **ORDERED_AGGREGATES,
    **JSONB_RULES,
    **FORMATS,
    **INTERVALS,
    **WINDOWS,
    **CASES,
    **ARRAY_RULES,
    **REGULAR_EXPRESSIONS,
    **STRINGS,
    **STATISTICS,
    exp.IntDiv: (SparkExpressions._int_div, _BINARY),
}
"""By construct: how it is rendered, and the parts of it that the rendering looks at."""
