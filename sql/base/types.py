"""Types of columns that the compiler cannot know by itself, and those it can.

PostgreSQL is asked for the others: a *probe* is a SELECT whose output columns the caller describes. The operator tree
is built without the answers to learn the probes, again where the answers lead to further probes, and then with all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from sql.base.columns import Column, Field, base_type

_EXACT = frozenset(
    """smallint integer bigint date oid boolean uuid "time without time zone" "timestamp without time zone"
    "timestamp with time zone" """.replace('"', "").split()
) | {"timestamp without time zone", "timestamp with time zone", "time without time zone"}

ORDERED = _EXACT - {"boolean", "uuid"} | {
    "numeric",
    "real",
    "double precision",
    "interval",
    "money",
    "time with time zone",
    "text",
    "character varying",
    "character",
}
"""Types with min and max whose comparison operators are in pg_catalog."""

_SUMS = {
    "smallint": "bigint",
    "integer": "bigint",
    "bigint": "numeric",
    "numeric": "numeric",
    "real": "real",
    "double precision": "double precision",
    "interval": "interval",
    "money": "money",
}
POWERS = frozenset({"stddev", "stddev_pop", "stddev_samp", "var_pop", "var_samp", "variance"})
"""Aggregates made of the sums of the first two powers."""

_AVERAGES = {
    "smallint": "numeric",
    "integer": "numeric",
    "bigint": "numeric",
    "numeric": "numeric",
    "real": "double precision",
    "double precision": "double precision",
    "interval": "interval",
}


_WHOLE_FIELDS = {
    *("millennium", "century", "decade", "year", "isoyear", "quarter", "month", "week"),
    *("day", "dow", "isodow", "doy", "hour", "minute", "timezone"),
}
"""Fields that EXTRACT gives out as a numeric without decimals, whatever it extracts them from."""


@dataclass(slots=True)
class Types:
    """Answers to probes, as far as known; unknown ones are collected in `asked`."""

    answers: Mapping[str, Sequence[Column]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def describe(self, query: str, width: int) -> Sequence[Column]:
        """The output columns of a query; placeholders as long as there is no answer."""
        answer = self.answers.get(query)
        if answer is not None:
            return answer
        if query not in self.asked:
            self.asked.append(query)
        return [Column("", "") for _ in range(width)]


def aggregate_result(name: str, function: str, argument: Field | None) -> Field | None:
    """The result column of an aggregate, None where only PostgreSQL knows.

    ``argument`` is the only one, or the first of several.

    >>> aggregate_result("s", "sum", Field("x", "integer"))
    Field(name='s', type='bigint', not_null=False, hashable=True, equality_is_identity=True, origin=None, scale=0)
    """
    if function in ("count", "regr_count"):
        return Field(name, "bigint", not_null=True, scale=0)
    if argument is None:
        return None
    if function in ("sum", "avg"):
        return _sum_result(name, function, argument)
    if function in ("min", "max"):
        return _extremum_result(name, argument)
    if function in ("bool_and", "bool_or", "every"):
        return Field(name, "boolean")
    if function in ("bit_and", "bit_or", "bit_xor") and argument.type in ("smallint", "integer", "bigint"):
        return Field(name, argument.type, scale=0)
    if function in POWERS and argument.base_type in _AVERAGES and argument.base_type != "interval":
        return Field(name, _AVERAGES[argument.base_type], equality_is_identity=False)
    return None


def _sum_result(name: str, function: str, argument: Field) -> Field | None:
    result = (_SUMS if function == "sum" else _AVERAGES).get(argument.base_type)
    if result is None:
        return None
    known = {"numeric": argument.scale, "bigint": 0} if function == "sum" else {}
    scale = known.get(result)
    alike = scale is not None or result == "money"
    return Field(name, result, equality_is_identity=alike, hashable=result != "money", scale=scale)


def _extremum_result(name: str, argument: Field) -> Field | None:
    if argument.type in ORDERED and argument.base_type not in ("character varying", "character"):
        return Field(name, argument.type, False, argument.hashable, argument.equality_is_identity, None, argument.scale)
    if argument.base_type == "numeric":
        return Field(name, "numeric", False, True, argument.scale is not None, None, argument.scale)
    return None


_INTEGERS = ("smallint", "integer", "bigint")
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)


def result_type(node: exp.Expr, fields: Mapping[str, Field]) -> str | None:
    """The type of an expression over exact numbers or truth values, None where PostgreSQL has to be asked.

    Canonical text names the schema of an operator that is not PostgreSQL's own, so these are.

    >>> from sqlglot import parse_one
    >>> fields = {"p": Field("p", "numeric(15,2)"), "n": Field("n", "integer"), "t": Field("t", "text")}
    >>> def of(text):
    ...     return result_type(parse_one(text, read="postgres"), fields)
    >>> of("(p * ((1)::numeric - p))"), of("CASE WHEN (t = 'a'::text) THEN n ELSE 0 END"), of("(n + 1) < 2")
    ('numeric', 'integer', 'boolean')
    >>> of("p * n"), of("CASE WHEN true THEN p ELSE p END"), of("t || 'a'"), of("n + 99999999999")
    (None, None, None, 'bigint')
    """
    found = _type(node, fields)
    return found if found is not None and base_type(found) == found else None


def _column_type(column: Field | None) -> str | None:
    return column.type if column is not None and column.base_type in (*_INTEGERS, "numeric", "boolean") else None


def _type(node: exp.Expr, fields: Mapping[str, Field]) -> str | None:
    """The same with the modifier of a column or cast, where the expression is nothing else."""
    node = node.unnest()
    if isinstance(node, exp.Column):
        return _column_type(fields.get(node.name))
    if isinstance(node, exp.Literal):
        return _literal_type(node)
    if isinstance(node, exp.Boolean | exp.And | exp.Or | exp.Not):
        return "boolean"
    if isinstance(node, _COMPARISONS):
        return None if isinstance(node.expression, exp.Any | exp.All) else "boolean"
    if isinstance(node, exp.Neg):
        negated = _type(node.this, fields)
        return base_type(negated) if negated else None
    if isinstance(node, exp.Mul | exp.Add | exp.Sub):
        return _arithmetic_type(_type(node.left, fields), _type(node.right, fields))
    if isinstance(node, exp.Extract):
        return "numeric"
    if isinstance(node, exp.Cast):
        return "numeric" if node.to.this == exp.DataType.Type.DECIMAL and not node.to.expressions else None
    if isinstance(node, exp.Case):
        return _case_type(node, fields)
    return None


def _literal_type(node: exp.Literal) -> str | None:
    if node.is_string:
        return None
    if not node.name.isdigit():
        return "numeric" if node.name.replace(".", "", 1).isdigit() else None
    return "integer" if int(node.name) < 2**31 else "bigint" if int(node.name) < 2**63 else "numeric"


def _arithmetic_type(left: str | None, right: str | None) -> str | None:
    if left in _INTEGERS and right in _INTEGERS:
        return max(left, right, key=_INTEGERS.index)
    # An integer beside a numeric is cast in canonical text.
    return "numeric" if left and right and base_type(left) == base_type(right) == "numeric" else None


def _case_type(node: exp.Case, fields: Mapping[str, Field]) -> str | None:
    branches = [branch.args.get("true") for branch in node.args["ifs"]] + [node.args.get("default")]
    types = {_type(branch, fields) for branch in branches if branch is not None}
    if len(types) == 1:
        return types.pop()
    # Modifiers that differ are none.
    known = {base_type(type_) for type_ in types if type_}
    return known.pop() if None not in types and len(known) == 1 else None


def expression_scale(node: exp.Expr, fields: Mapping[str, Field]) -> int | None:
    """The display scale that every value of a numeric expression has, None if they may differ.

    Integers have scale 0. PostgreSQL adds scales in a product and takes the larger in a sum.

    >>> from sqlglot import parse_one
    >>> fields = {"p": Field("p", "numeric(15,2)", scale=2), "d": Field("d", "numeric(15,2)", scale=2)}
    >>> expression_scale(parse_one("(p * ((1)::numeric - d))", read="postgres"), fields)
    4
    >>> expression_scale(parse_one("EXTRACT(year FROM d)", read="postgres"), fields)
    0
    """
    node = node.unnest()
    if isinstance(node, exp.Column):
        found = fields.get(node.name)
        return found.scale if found else None
    if isinstance(node, exp.Literal) and not node.is_string:
        whole, _, fraction = node.name.partition(".")
        return len(fraction) if (whole + fraction).isdigit() else None
    if isinstance(node, exp.Neg):
        return expression_scale(node.this, fields)
    if isinstance(node, exp.Mul | exp.Add | exp.Sub):
        left, right = expression_scale(node.left, fields), expression_scale(node.right, fields)
        if left is None or right is None:
            return None
        return left + right if isinstance(node, exp.Mul) else max(left, right)
    if isinstance(node, exp.Cast):
        return _cast_scale(node, fields)
    if isinstance(node, exp.Extract):
        return 0 if node.name.lower() in _WHOLE_FIELDS else None
    return None


def _cast_scale(node: exp.Cast, fields: Mapping[str, Field]) -> int | None:
    kind = node.to
    if kind.this in (exp.DataType.Type.INT, exp.DataType.Type.BIGINT, exp.DataType.Type.SMALLINT):
        return 0
    if kind.this != exp.DataType.Type.DECIMAL:
        return None
    if kind.expressions:
        parts = [part.name for part in kind.expressions]
        return int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 0 if len(parts) == 1 else None
    return expression_scale(node.this, fields)
