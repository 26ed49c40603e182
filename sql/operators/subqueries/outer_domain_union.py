"""Outer-domain union: the rows of a body, and one row that stands for nothing for every outer row.

An aggregate without GROUP BY has a row even for outer rows that leave nothing to aggregate. Grouped by the outer
columns it finds a group for each of them here; its calls skip the added rows by FILTER.

Linear in both inputs: ``Δ(B + D) = ΔB + ΔD``.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Field
from sql.base.text import derived, quote, select, union_all
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class OuterDomainUnion(Operator):
    """The first columns of both inputs, as many as ``outer`` has, are the outer columns; the next is the marker.

    ``columns`` name the result, position by position.
    """

    body: Operator
    outer: Operator
    body_output: tuple[Field, ...]
    outer_output: tuple[Field, ...]
    columns: tuple[Field, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.body, self.outer)

    @property
    def linear(self) -> bool:
        return True

    def _present(self, query: str, *weight: str) -> str:
        pairs = zip(names(self.body_output), names(self.columns), strict=True)
        return select([*(f"b.{theirs} AS {mine}" for theirs, mine in pairs), *weight], derived(query, "b"))

    def _added(self, query: str, *weight: str, alone: bool = False) -> str:
        width = len(self.outer_output)
        pairs = zip(names(self.outer_output), names(self.columns), strict=False)
        columns = [f"d.{theirs} AS {mine}" for theirs, mine in pairs]
        columns.append(f"FALSE AS {quote(self.columns[width].name)}")
        for f in self.columns[width + 1 :]:
            # Beside the body a bare NULL takes the type of the body's column.
            columns.append(f"NULL{f'::{f.type}' if alone and f.type else ''} AS {quote(f.name)}")
        return select([*columns, *weight], derived(query, "d"))

    def _below(self, only: Restriction | None, output: tuple[Field, ...]) -> Restriction | None:
        if only is None:
            return None
        theirs = {mine.name: their.name for mine, their in zip(self.columns, output, strict=False)}
        outer = {f.name for f in self.columns[: len(self.outer_output)]}
        return only.of(tuple((theirs[name], key) for name, key in only.pairs if name in outer))

    def delta(self, plan: Plan) -> str:
        parts = []
        if self.body.changed(plan):
            parts.append(self._present(self.body.delta(plan), f"b.{W}"))
        if self.outer.changed(plan):
            parts.append(self._added(self.outer.delta(plan), f"d.{W}", alone=not parts))
        return union_all(parts)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        body = self.body.new(plan, self._below(only, self.body_output))
        outer = self.outer.new(plan, self._below(only, self.outer_output))
        return union_all([self._present(body), self._added(outer)])

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        below = self._below(only, self.body_output), self._below(only, self.outer_output)
        if self.body.changed(plan):
            body = self._present(self.body.old(plan, below[0]), f"b.{W}")
        else:
            body = self._present(self.body.new(plan, below[0]), f"1::bigint AS {W}")
        if self.outer.changed(plan):
            outer = self._added(self.outer.old(plan, below[1]), f"d.{W}")
        else:
            outer = self._added(self.outer.new(plan, below[1]), f"1::bigint AS {W}")
        return union_all([body, outer])

    def describe(self) -> str:
        return "Every outer row"
