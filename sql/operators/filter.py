"""Filter: the rows for which a condition is true.

Linear: ``ΔQ(A) = Q(ΔA)``, and so for the old state.

Refiltered: the same where another condition was the filter until now.
``ΔQ(A) = now(A + ΔA) - then(A + ΔA) + then(ΔA)``: the rows that one of the two conditions lets through and the other
does not, and what has changed in the input. So what is stored of a query follows the change of its filter as it follows
any change of its sources.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from sql.base.columns import Field
from sql.base.text import derived, select, union_all
from sql.operators.operator import Operator, Restriction, W, names
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
        changes = self.input.delta(plan)
        return changes if self.input.node in plan.given else self.filtered(plan, changes)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.filtered(plan, self.input.new(plan, only))

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.filtered(plan, self.input.old(plan, only))

    def row_key(self) -> list[tuple[int, str]] | None:
        return self.input.row_key()

    def describe(self) -> str:
        return "Filter"


FILTER = 0
"""What has changed where it is no source: no table has this OID."""


@dataclass(frozen=True, slots=True)
class Refiltered(Operator):
    """``then`` and ``now`` are conditions over the input's columns, None where there is none."""

    input: Operator
    then: exp.Expr | None
    now: exp.Expr | None

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.input.columns

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def sources(self) -> frozenset[int]:
        return self.input.sources | {FILTER}

    def delta(self, plan: Plan) -> str:
        moved = self._moved(plan)
        if not self.input.changed(plan):
            return moved
        return union_all([moved, self._filtered(plan, self.input.delta(plan), self.then)])

    def _moved(self, plan: Plan) -> str:
        """The rows of now that one condition lets through and the other does not."""
        then, now = (None if c is None else f"({plan.target.condition(c)}) IS TRUE" for c in (self.then, self.now))
        weight, moved = f"CASE WHEN {now} THEN 1 ELSE -1 END", f"({now}) <> ({then})"
        if then is None:
            weight, moved = "-1", f"NOT ({now})"
        elif now is None:
            weight, moved = "1", f"NOT ({then})"
        rows = derived(self.input.new(plan), "r")
        return select([*names(self.columns), f"({weight})::bigint AS {W}"], rows, where=[moved])

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self._filtered(plan, self.input.new(plan, only), self.now)

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        if self.input.changed(plan):
            rows = self.input.old(plan, only)
        else:
            now = derived(self.input.new(plan, only), "n")
            rows = select([*names(self.columns), f"1::bigint AS {W}"], now)
        return self._filtered(plan, rows, self.then)

    def _filtered(self, plan: Plan, rows: str, condition: exp.Expr | None) -> str:
        if condition is None:
            return rows
        return select(["*"], derived(rows, "f"), where=[f"({plan.target.condition(condition)})"])

    def row_key(self) -> list[tuple[int, str]] | None:
        return self.input.row_key()

    def describe(self) -> str:
        return "Refiltered"
