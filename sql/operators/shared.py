"""A delta that several terms of a formula read is computed once in a statement."""

from __future__ import annotations

from dataclasses import dataclass, field

from sql.base.text import select
from sql.operators.operator import Operator
from sql.operators.plan import Plan


@dataclass(slots=True)
class _Deltas:
    """By node, the queries that have been made."""

    queries: dict[int, str] = field(default_factory=dict)


def is_shared(plan: Plan, operator: Operator) -> bool:
    """Whether the operator's delta has been computed for several readers."""
    return operator.node in plan.memo(_Deltas).queries


def shared_delta(plan: Plan, operator: Operator) -> str:
    """The operator's delta as a query that is cheap to repeat."""
    queries = plan.memo(_Deltas).queries
    if operator.node in queries:
        return queries[operator.node]
    query = operator.delta(plan)
    # A source's net changes are a common table expression already.
    found = select(["*"], plan.cte(plan.fresh("delta"), query)) if operator.inputs else query
    queries[operator.node] = found
    return found
