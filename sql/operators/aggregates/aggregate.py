"""Aggregate: one row for each group, or one row for everything.

Delta and old state are those of `recompute_groups`: touched groups are aggregated again, as they are and as they were.
Where all that is computed adds up the delta is that of `linear_aggregate`.
At the root of the tree `storage.groups` has a shorter way: what the groups were is in the stream table.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.text import select, union_all
from sql.operators.aggregates.accumulators import results
from sql.operators.aggregates.linear_aggregate import addable, all_groups, delta_by_addition, known_groups, reads_all
from sql.operators.aggregates.recomputed_aggregate import RecomputedAggregate
from sql.operators.operator import Restriction, names
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class Aggregate(RecomputedAggregate):
    """The aggregate, by the rule that takes least."""

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        only = only and only.to(self.keys)
        parts = addable(self)
        if parts is not None and only is None and reads_all(self, plan):
            return results(self.keys, parts, select(["*"], all_groups(self, parts, plan)[0]))
        if parts is not None and only is not None and self.node in plan.facts.remembered and reads_all(self, plan):
            every = results(self.keys, parts, select(["*"], all_groups(self, parts, plan)[0]))
            return plan.target.restricted(every, names(self.columns), only, self._nullable())
        known = known_groups(self, parts, only, plan) if parts is not None and only is not None else None
        if parts is None or known is None:
            return RecomputedAggregate.new(self, plan, only)
        return union_all([results(self.keys, parts, known[0]), RecomputedAggregate.new(self, plan, known[1])])

    def delta(self, plan: Plan) -> str:
        parts = addable(self)
        return RecomputedAggregate.delta(self, plan) if parts is None else delta_by_addition(self, parts, plan)
