"""Set returning: every row of the input with the rows that a function, or anything else without tables, makes of it.

``Q(A) = A ⋈ f(row)``. A row's results depend on the row alone, so the operator is linear: ``ΔQ(A) = Q(ΔA)``, and so
for the old state; the function is called for changed rows only. A left join with a condition over the row and the
function's columns pads a row that has no results, which again concerns that row alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from sql.base.columns import Field
from sql.base.text import aliased, derived, quote, select
from sql.canonical.dialect import generate
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.plan import Plan

ROW = "__pgt_row"
"""The name of the input's row in ``source``."""


@dataclass(frozen=True, slots=True)
class SetReturning(Operator):
    """``source`` is an item of FROM called ``f`` that gives the columns ``given``; they become ``results``.

    ``padded``: rows without results are kept, with NULLs. ``condition`` is that of a left join.
    """

    input: Operator
    source: str
    given: tuple[str, ...]
    results: tuple[Field, ...]
    name: str
    padded: bool = False
    condition: exp.Expr | None = None

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.input.columns + self.results

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def linear(self) -> bool:
        return True

    def _expanded(self, query: str, *weight: str) -> str:
        called = select(
            [aliased(quote("f", name), result.name) for name, result in zip(self.given, self.results, strict=True)],
            self.source,
        )
        row, result = derived(query, quote(ROW)), derived(called, "r")
        condition = generate(self.condition) if self.condition is not None else "TRUE"
        kind = "LEFT JOIN" if self.padded else "JOIN"
        columns = [quote(ROW, column.name) for column in self.input.columns] + [f"r.{n}" for n in names(self.results)]
        return select(
            [*columns, *(f"{quote(ROW)}.{w}" for w in weight)], f"{row} {kind} LATERAL {result} ON {condition}"
        )

    def delta(self, plan: Plan) -> str:
        return self._expanded(self.input.delta(plan), W)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        inner = only and only.to(self.input.columns)
        return self._of_touched(plan, self.input.new(plan, inner), only, inner)

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        inner = only and only.to(self.input.columns)
        return self._of_touched(plan, self.input.old(plan, inner), only, inner, W)

    def _of_touched(
        self, plan: Plan, query: str, only: Restriction | None, inner: Restriction | None, *weight: str
    ) -> str:
        """What becomes of the input's rows, of which a restriction wants only some.

        Where it speaks of results, too, PostgreSQL would join each row with all keys that agree in the other columns
        before it calls the function. So the input's rows are restricted here, each once, and OFFSET keeps the planner
        from joining further before the function has been called.
        """
        early = plan.target.early(only)
        if early is None or (inner is not None and len(inner.pairs) == len(early.pairs)):
            return self._expanded(query, *weight)
        if inner is not None:
            nullable = [column.name for column in self.input.columns if not column.not_null]
            query = plan.target.restricted(query, [*names(self.input.columns), *weight], inner, nullable)
        return plan.target.fence(self._expanded(query, *weight))

    def describe(self) -> str:
        return f"Set returning({self.name}{', left join' if self.padded else ''})"
