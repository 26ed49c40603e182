"""Whether a query is monotone: whether more rows in the tables that it reads never take a row from its result.

The least fixed point of stream tables that read each other exists if all of their queries are (Tarski). A query is
monotone if every operator of its tree is: those that work row by row, joins, semi-joins, unions, and the removal of
duplicates. `INTERSECT` is, `EXCEPT` is not. Whatever is not listed here counts as not monotone.
"""

from __future__ import annotations

from sql.operators import (
    Aggregate,
    AntiJoin,
    Constants,
    Distinct,
    DistinctOn,
    Expand,
    Filter,
    FullJoin,
    Join,
    LeftJoin,
    Limit,
    Operator,
    Project,
    ProjectSet,
    Recursion,
    Scan,
    SemiJoin,
    SetOperation,
    SetReturning,
    UnionAll,
    Window,
)
from sql.operators.pass_through import PassThrough

MONOTONE = (
    Constants,
    Distinct,
    Filter,
    Join,
    PassThrough,
    Project,
    ProjectSet,
    Scan,
    SemiJoin,
    SetReturning,
    UnionAll,
)

_CONSTRUCTS: tuple[tuple[type[Operator], str], ...] = (
    (Expand, "GROUPING SETS"),
    (Window, "a window function"),
    (DistinctOn, "DISTINCT ON"),
    (Limit, "LIMIT"),
    (Aggregate, "an aggregate or GROUP BY"),
    (AntiJoin, "NOT EXISTS, NOT IN or ALL"),
    (LeftJoin, "an outer join or a scalar subquery"),
    (FullJoin, "an outer join"),
    (Recursion, "WITH RECURSIVE"),
)


def not_monotone(root: Operator) -> str | None:
    """The construct for which a query is not known to be monotone, in words; None if it is."""
    found = next((operator for operator in root.walk() if not _is_monotone(operator)), None)
    if found is None:
        return None
    if isinstance(found, SetOperation):
        return f"{found.kind} ALL" if found.all else found.kind
    return next((words for kind, words in _CONSTRUCTS if isinstance(found, kind)), found.describe())


def _is_monotone(operator: Operator) -> bool:
    if isinstance(operator, SetOperation):
        return operator.kind == "INTERSECT"
    return isinstance(operator, MONOTONE)
