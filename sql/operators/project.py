"""Project: expressions over the columns of one row.

Linear: ``ΔQ(A) = Q(ΔA)``, and so for the old state. Duplicates stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from sql.base.columns import Field
from sql.base.text import aliased, derived, select
from sql.canonical.dialect import generate
from sql.operators.operator import Operator, Restriction, W
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class Project(Operator):
    """``expressions`` compute ``columns`` from the input's columns. A column passed on keeps its name."""

    input: Operator
    expressions: tuple[exp.Expr, ...]
    columns: tuple[Field, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def linear(self) -> bool:
        return True

    def projected(self, query: str, *weight: str) -> str:
        """The expressions over any rows that have the input's columns."""
        columns = [
            aliased(generate(expression), column.name)
            for expression, column in zip(self.expressions, self.columns, strict=True)
        ]
        return select([*columns, *weight], derived(query, "p"))

    def delta(self, plan: Plan) -> str:
        return self.projected(self.input.delta(plan), W)

    def _below(self, only: Restriction | None) -> Restriction | None:
        """A restriction as far as it speaks of columns that are passed on, be it under another name."""
        if only is None:
            return None
        theirs = {
            column.name: expression.name
            for expression, column in zip(self.expressions, self.columns, strict=True)
            if isinstance(expression, exp.Column)
        }
        return only.of(tuple((theirs[name], key) for name, key in only.pairs if name in theirs))

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.projected(self.input.new(plan, self._below(only)))

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.projected(self.input.old(plan, self._below(only)), W)

    def row_key(self) -> list[tuple[int, str]] | None:
        return self.input.row_key()

    def describe(self) -> str:
        return "Project"
