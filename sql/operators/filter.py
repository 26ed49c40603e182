"""Filter: the rows for which a condition is true.

Linear: ``ΔQ(A) = Q(ΔA)``, and so for the old state.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from sql.base.columns import Field
from sql.base.text import derived, select
from sql.operators.operator import Operator, Restriction
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class Filter(Operator):
    """``condition`` speaks of the input's columns."""

    input: Operator
    condition: exp.Expr
    columns: tuple[Field, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def linear(self) -> bool:
        return True

    def filtered(self, plan: Plan, query: str) -> str:
        """Those of any rows with the input's columns that satisfy the condition."""
        return select(["*"], derived(query, "f"), where=[f"({plan.target.condition(self.condition)})"])

    def delta(self, plan: Plan) -> str:
        return self.filtered(plan, self.input.delta(plan))

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.filtered(plan, self.input.new(plan, only))

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.filtered(plan, self.input.old(plan, only))

    def row_key(self) -> list[tuple[int, str]] | None:
        return self.input.row_key()

    def describe(self) -> str:
        return "Filter"
