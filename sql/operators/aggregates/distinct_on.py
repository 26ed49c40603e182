"""Distinct on: of the rows that agree in the keys the first one.

Delta and old state are those of `recompute_groups`. Which row is first is decided by the order, among peers by content
(see `ordering`), so it is the same row whenever the group is computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Field
from sql.base.text import derived, select
from sql.operators.aggregates.recompute_groups import KeepsRows
from sql.operators.operator import names
from sql.operators.ordering import SortKey, order_by, total_order
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class DistinctOn(KeepsRows):
    """``keys`` are what DISTINCT ON names; ``order`` the ORDER BY, which may name them, too."""

    order: tuple[SortKey, ...]

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.input.columns

    def computed(self, plan: Plan, rows: str) -> str:
        within = tuple(key for key in self.order if key.column not in self.keys)
        ties = not self.input.told_apart([*self.keys, *(key.column for key in within)])
        order = total_order(self.keys, within, self.input.telling() if ties else ())
        keys = names(self.keys)
        if not keys:
            return f"{select(['*'], derived(rows, 'd'))}{order_by(order)} LIMIT 1"
        chosen = f"DISTINCT ON ({', '.join(keys)}) *"
        return select([chosen], derived(rows, "d")) + order_by([*keys, *order])

    def describe(self) -> str:
        return f"Distinct on({', '.join(key.origin[1] if key.origin else 'expression' for key in self.keys)})"
