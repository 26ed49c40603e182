"""A delta that several terms of a formula read is computed once in a statement."""

from __future__ import annotations

from sql.base.text import select
from sql.operators.operator import Operator
from sql.operators.statement import Plan


def shared_delta(plan: Plan, operator: Operator) -> str:
    """The operator's delta as a query that is cheap to repeat."""
    known = plan.deltas.get(id(operator))
    if known is not None:
        return known[1]
    query = operator.delta(plan)
    # A source's net changes are a common table expression already.
    found = select(["*"], plan.cte(plan.fresh("delta"), query)) if operator.inputs else query
    plan.deltas[id(operator)] = (operator, found)
    return found
