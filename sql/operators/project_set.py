"""Project set: a select list with set-returning functions in it.

Linear, as a projection is: ``ΔQ(A) = Q(ΔA)``. The functions run in lockstep, as PostgreSQL does it: the shorter ones
give NULL once they are done, and a row for which all are empty gives no row. What tells the input's rows apart does
not tell these rows apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Field
from sql.operators.operator import Operator, Restriction
from sql.operators.plan import Plan
from sql.operators.project import Project


@dataclass(frozen=True, slots=True)
class ProjectSet(Operator):
    """``projection`` is the select list over the input."""

    projection: Project

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.projection.columns

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return self.projection.inputs

    @property
    def linear(self) -> bool:
        return True

    def delta(self, plan: Plan) -> str:
        return self.projection.delta(plan)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.projection.new(plan, only)

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.projection.old(plan, only)

    def describe(self) -> str:
        return "Project set"
