"""Which settings the functions of a query need: each SET clause of a function costs as much as an expression in it.

How dates, times, intervals, floats and bytea are read and written follows settings of the session, and so do functions
that PostgreSQL calls stable. A query that has nothing of the kind computes the same whatever they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from sql.base.columns import Source, base_type
from sql.canonical.dialect import parse
from sql.canonical.nodes import all_of, nodes

ORDERS = 4
"""Tables up to which a delta joins so few that PostgreSQL looks through all orders by itself."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the functions need: see `Program`."""

    formats: bool = True
    many: bool = True


def needs(canonical: str, sources: Sequence[Source], *, views: bool) -> Needs:
    """What a query needs; one that reads ``views`` is taken to need all.

    >>> from sql.base.columns import Column
    >>> table = Source(1, "public", "t", (Column("k", "integer"), Column("s", "text"), Column("d", "date")))
    >>> needs("SELECT k, sum(k) AS s FROM public.t WHERE ((s = 'x'::text) OR (k > 1)) GROUP BY k", [table], views=False)
    Needs(formats=False, many=False)
    >>> needs("SELECT k, d FROM public.t", [table], views=False).formats
    False
    >>> needs("SELECT k, (d)::text AS d FROM public.t", [table], views=False).formats
    True
    >>> needs("SELECT to_char(k, 'x'::text) AS c FROM public.t", [table], views=False).formats
    True
    """
    if views:
        return Needs()
    query = parse(canonical)
    return Needs(not _same_whatever_is_set(query, sources), len(all_of(query, exp.Table)) > ORDERS)


_PLAIN = (
    *(
        exp.Select,
        exp.From,
        exp.Table,
        exp.TableAlias,
        exp.Alias,
        exp.Join,
        exp.Where,
        exp.Group,
        exp.Having,
        exp.Subquery,
    ),
    *(exp.Column, exp.Identifier, exp.Star, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Distinct),
    *(exp.And, exp.Or, exp.Not, exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Is, exp.In, exp.Any, exp.Array),
    *(exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Case, exp.If, exp.DataType, exp.DataTypeParam),
    *(exp.Count, exp.Sum, exp.Min, exp.Max, exp.Avg, exp.Filter, exp.Window, exp.WindowSpec, exp.Order, exp.Ordered),
    *(exp.RowNumber, exp.Rank, exp.DenseRank, exp.Union, exp.Intersect, exp.Except, exp.With, exp.CTE),
)
_FUNCTIONS = frozenset({"COALESCE", "RANK", "ROW_NUMBER", "DENSE_RANK", "LOWER", "UPPER", "LENGTH"})
_TYPES = frozenset({"smallint", "integer", "bigint", "numeric", "boolean", "text", "character varying", "uuid"})
_TIMES = frozenset({"date", "timestamp without time zone", "timestamp with time zone"})
"""Of one of these the values are compared alike; two of them are, by the time zone."""


def _same_whatever_is_set(query: exp.Expr, sources: Sequence[Source]) -> bool:
    names = {column.name for column in all_of(query, exp.Column)}
    types = {base_type(column.type) for source in sources for column in source.columns if column.name in names}
    return types <= _TYPES | _TIMES and len(types & _TIMES) <= 1 and all(map(_is_plain, nodes(query)))


def _is_plain(node: exp.Expr) -> bool:
    if isinstance(node, exp.Cast):
        # Of a constant, or among types of numbers.
        return base_type(node.to.sql(dialect="postgres").lower()) in {*_CASTS, "text"} and isinstance(
            node.this, exp.Literal
        )
    if isinstance(node, exp.Anonymous):
        return node.name.upper() in _FUNCTIONS
    return isinstance(node, _PLAIN)


_CASTS = frozenset({"smallint", "int", "integer", "bigint", "numeric", "decimal", "boolean", "varchar"})
