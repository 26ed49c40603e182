"""Constants: rows that depend on no table. VALUES, and the one row without columns that SELECT without FROM reads.

``new`` is the rows themselves, ``Δ = 0``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import exp

from sql.base.columns import Field
from sql.base.text import quote, select
from sql.canonical.dialect import generate
from sql.operators.operator import Operator, Restriction, W
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class Constants(Operator):
    """``rows`` are expressions without columns, as many in each as there are ``columns``."""

    rows: tuple[tuple[exp.Expr, ...], ...]
    columns: tuple[Field, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return ()

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        if not self.columns:
            return " UNION ALL ".join(["SELECT"] * len(self.rows))
        rows = ", ".join(f"({', '.join(map(generate, row))})" for row in self.rows)
        return select(["*"], f"(VALUES {rows}) AS v({', '.join(quote(column.name) for column in self.columns)})")

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        return select(["c.*", f"1::bigint AS {W}"], f"({self.new(plan)}) AS c")

    def delta(self, plan: Plan) -> str:
        return select(["c.*", f"1::bigint AS {W}"], f"({self.new(plan)}) AS c", where=["FALSE"])

    def describe(self) -> str:
        return f"Constants({len(self.rows)} rows)" if self.columns else "One row"
