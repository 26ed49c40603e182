"""Consolidate: the same rows; what a delta takes away and gives back is left out of it.

An aggregate over a group that was touched takes the old row away and gives the new one, even if both are the same.
Below a join that would touch every row that joins with it. ``ΔQ = net(ΔA)``; the states are the input's.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.consolidate import consolidated
from sql.operators.pass_through import PassThrough
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class Consolidate(PassThrough):
    """The input under another delta."""

    def delta(self, plan: Plan) -> str:
        return consolidated(self.input.delta(plan), self.columns)

    def describe(self) -> str:
        return "Consolidate"
