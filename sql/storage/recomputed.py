"""Recomputed: a query whose every row can depend on every row of its sources, or whose first rows are read quickly.

What is stored then says nothing about the rows that are not, or that are to change. So a refresh computes the query
again, and applies what differs: for LIMIT, where an index may give the order, and for windows over everything.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Column
from sql.operators import Operator
from sql.operators.plan import Plan
from sql.storage.shape import Shape


@dataclass(frozen=True, slots=True)
class Recomputed(Shape):
    """``base`` is the shape that tells the rows apart."""

    base: Shape

    @property
    def rows(self) -> str:  # type: ignore[override]
        return self.base.rows

    @property
    def output(self) -> tuple[Column, ...]:  # type: ignore[override]
        return self.base.output

    @property
    def keyed(self) -> bool:
        return self.base.keyed

    @property
    def hidden(self) -> tuple[str, ...]:
        return self.base.hidden

    @property
    def numbers(self) -> tuple[str, ...]:
        return self.base.numbers

    @property
    def summed(self) -> Operator | None:
        return None

    def core(self, plan: Plan) -> str:
        return self.base.core(plan)

    def create(self, storage: str) -> tuple[str, ...]:
        return self.base.create(storage)

    def identified(self, rows: str) -> str:
        return self.base.identified(rows)

    def apply_full(self, plan: Plan, storage: str, rows: str) -> dict[str, str]:
        return self.base.apply_full(plan, storage, rows)

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        return self.base.apply_full(plan, storage, self.rows)

    def apply_staged_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        """See `Shape.apply_staged_delta`. Without an index, and without what is stored, all rows are looked at."""
        types = {column.name: column.type for column in self.output} | dict.fromkeys(self.computed, "")
        return self.base.apply_full(plan, storage, plan.statement.staged("__pgt_rows", self.core(plan), types))
