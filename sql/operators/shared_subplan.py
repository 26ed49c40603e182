"""Shared subplan: an operator that is read in a second place of the tree, its delta computed once in a statement."""

from __future__ import annotations

from dataclasses import dataclass

from sql.operators.pass_through import PassThrough
from sql.operators.plan import Plan
from sql.operators.shared import shared_delta


@dataclass(frozen=True, slots=True)
class SharedSubplan(PassThrough):
    """The input; both places refer to the same common table expression for its changes."""

    def delta(self, plan: Plan) -> str:
        return shared_delta(plan, self.input)

    def tree(self, depth: int = 0) -> str:
        return self.input.tree(depth)

    def describe(self) -> str:
        return self.input.describe()
