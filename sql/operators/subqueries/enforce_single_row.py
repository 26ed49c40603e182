"""Enforce single row: at most one row for each outer row, or the error that PostgreSQL raises for a scalar subquery.

Where no error is raised this is the identity, and so are its delta and its states: ``ΔQ = ΔA``. The check looks at the
new rows of the keys that the delta touches.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Field
from sql.base.text import derived, quote, select
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.plan import Plan
from sql.operators.shared import shared_delta

N = quote("__pgt_n")
CHECK = f"CASE WHEN c.{N} > 1 THEN (SELECT TRUE FROM pg_catalog.generate_series(1, c.{N})) ELSE TRUE END"
"""A scalar subquery of several rows: PostgreSQL itself raises 21000, in its own words."""


@dataclass(frozen=True, slots=True)
class EnforceSingleRow(Operator):
    """``keys`` are the input's columns that tell outer rows apart; without any there may be one row in all."""

    input: Operator
    keys: tuple[Field, ...]

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.input.columns

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def barrier(self) -> bool:
        return True

    def _below(self, only: Restriction | None) -> Restriction | None:
        return only and only.to(self.keys)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        by = f"PARTITION BY {', '.join(names(self.keys))}" if self.keys else ""
        counted = select(
            ["i.*", f"pg_catalog.count(*) OVER ({by}) AS {N}"], derived(self.input.new(plan, self._below(only)), "i")
        )
        return select([f"c.{name}" for name in names(self.columns)], derived(counted, "c"), where=[CHECK])

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.input.old(plan, self._below(only))

    def delta(self, plan: Plan) -> str:
        changes = shared_delta(plan, self.input)
        come = derived(changes, "d")
        only = None
        if self.keys:
            touched = plan.cte(
                plan.fresh("touched"), select(names(self.keys), come, where=[f"d.{W} > 0"], distinct=True)
            )
            only = Restriction(touched, tuple((key.name, key) for key in self.keys))
        members = self.input.new(plan, only)
        if only is not None:
            nullable = [key.name for key in self.keys if not key.not_null]
            members = plan.target.restricted(members, names(self.columns), only, nullable)
        by = names(self.keys) if self.keys else None
        counts = select([f"pg_catalog.count(*) AS {N}"], derived(members, "m"), group_by=by)
        check = select([f"pg_catalog.bool_and({CHECK})"], derived(counts, "c"))
        return select(["d.*"], derived(changes, "d"), where=[f"coalesce(({check}), TRUE)"])

    def describe(self) -> str:
        return "Single row"
