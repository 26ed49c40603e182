"""Settled: the same rows; what a delta takes away and gives back is left out of it.

An aggregate over a group that was touched takes the old row away and gives the new one, even if both are the same.
Below a join that would touch every row that joins with it. ``ΔQ = net(ΔA)``; the states are the input's.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..columns import Field
from ..netting import netted
from ..plan import Plan
from .operator import Operator, Restriction


@dataclass(frozen=True, slots=True)
class Settled(Operator):
    """The input under another delta."""

    input: Operator

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.input.columns

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    def delta(self, plan: Plan) -> str:
        return netted(self.input.delta(plan), self.columns)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.input.new(plan, only)

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.input.old(plan, only)

    def describe(self) -> str:
        return "Settled"
