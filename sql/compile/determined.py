"""Whether a query leaves PostgreSQL no choice: its rows look the same in whatever way they are computed.

SQL leaves open which of equal values GROUP BY or max() gives out (1.0 or 1.00), the last bits of a sum of floats, the
order in which array_agg() reads, and which rows LIMIT or row_number() takes first among peers. The tree decides, so
that deltas take away what was given out (see `call`). Where a query has nothing of the kind its own text does as well.
"""

from __future__ import annotations

from sql.base.columns import Field
from sql.operators import (
    Aggregate,
    AntiJoin,
    Call,
    Constants,
    Filter,
    Join,
    LeftJoin,
    Operator,
    Project,
    Scan,
    SemiJoin,
    UnionAll,
)
from sql.operators.aggregates.call import EXACT
from sql.operators.pass_through import PassThrough
from sql.operators.subqueries.enforce_single_row import EnforceSingleRow
from sql.operators.subqueries.outer_domain_union import OuterDomainUnion

_ROW_BY_ROW = (
    AntiJoin,
    Constants,
    EnforceSingleRow,
    Filter,
    Join,
    LeftJoin,
    OuterDomainUnion,
    PassThrough,
    Project,
    Scan,
    SemiJoin,
    UnionAll,
)
_SUMS = frozenset({"sum", "avg"})
_EXTREMA = frozenset({"min", "max"})


def determined(root: Operator) -> bool:
    """Whether all operators of a tree are known to give rows that follow from those of the sources."""
    return all(_is_determined(operator) for operator in root.walk())


def _is_determined(operator: Operator) -> bool:
    if isinstance(operator, Aggregate):
        return all(map(_looks_one_way, operator.keys)) and all(map(_gives_one_value, operator.calls))
    return isinstance(operator, _ROW_BY_ROW)


def _gives_one_value(call: Call) -> bool:
    if call.function == "count":
        return True
    if call.function in _SUMS:
        values = [column.base_type for column in call.columns]
        return all(type_ in EXACT for type_ in values) and not (call.distinct and "numeric" in values)
    return call.function in _EXTREMA and all(map(_looks_one_way, call.columns))


def _looks_one_way(column: Field) -> bool:
    """Whether equal values look alike. Numerics do where all have one display scale."""
    return column.equality_is_identity or (column.base_type == "numeric" and column.scale is not None)
