"""Once: an operator that is read in a second place of the tree, its delta computed once in a statement."""

from __future__ import annotations

from dataclasses import dataclass

from ..columns import Field
from ..plan import Plan
from .operator import Operator, Restriction
from .shared import shared_delta


@dataclass(frozen=True, slots=True)
class Once(Operator):
    """The input; both places refer to the same common table expression for its changes."""

    input: Operator

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.input.columns

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    def delta(self, plan: Plan) -> str:
        return shared_delta(plan, self.input)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.input.new(plan, only)

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.input.old(plan, only)

    def tree(self, depth: int = 0) -> str:
        return self.input.tree(depth)

    def describe(self) -> str:
        return self.input.describe()
