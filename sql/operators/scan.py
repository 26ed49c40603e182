"""Scan: the rows of a source table.

``new(t) = t``. ``Δt`` is the net of the captured changes. ``old(t) = t - Δt``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sql.base.columns import Field, Source
from sql.base.text import aliased, quote, select, union_all
from sql.operators.captured_changes import delta_name, pending_changes, recorded
from sql.operators.operator import Operator, Restriction, W
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class Scan(Operator):
    """One reference to a table. ``number`` tells the references to one table apart."""

    source: Source
    number: int
    columns: tuple[Field, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return ()

    @property
    def sources(self) -> frozenset[int]:
        return frozenset({self.source.oid})

    def streamable(self) -> Iterator[int]:
        yield self.source.oid

    def row_key(self) -> list[tuple[int, str]] | None:
        return [(self.number, name) for name in self.source.key] or None

    @property
    def barrier(self) -> bool:
        return False

    def _columns(self, alias: str) -> list[str]:
        return [aliased(f"{alias}.{quote(f.origin[1])}", f.name) for f in self.columns if f.origin]

    def delta(self, plan: Plan) -> str:
        if self.source.oid in plan.streamed:
            captured = [aliased(recorded(f"c.{quote(f.origin[1])}", f.type), f.name) for f in self.columns if f.origin]
            names, late = [f.origin[1] for f in self.columns if f.origin], self.source.oid in plan.late
            return pending_changes(self.source, [*captured, f'c."__pgt_w"::bigint AS {W}'], names, late=late)
        return select([*self._columns("d"), f"d.{W}"], f"{delta_name(self.source.oid)} AS d")

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return select(self._columns("t"), f"{quote(self.source.schema, self.source.name)} AS t")

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        rows = f"{quote(self.source.schema, self.source.name)} AS t"
        return union_all(
            [
                select([*self._columns("t"), f"1::bigint AS {W}"], rows),
                select([*self._columns("d"), f"-d.{W} AS {W}"], f"{delta_name(self.source.oid)} AS d"),
            ]
        )

    def describe(self) -> str:
        return f"Scan({self.source.schema}.{self.source.name})"
