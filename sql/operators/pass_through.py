"""Pass-through: an operator whose rows are those of its input; only its delta is given out in another form."""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Field
from sql.operators.operator import Operator, Restriction
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class PassThrough(Operator):
    """The states are the input's."""

    input: Operator

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.input.columns

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.input.new(plan, only)

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.input.old(plan, only)
