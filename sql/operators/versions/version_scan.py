"""Version scan: the rows of a source table at a timestamp in the past, see `versions`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sql.base.text import derived, quote, select, union_all
from sql.operators.captured_changes import delta_name
from sql.operators.operator import Restriction, W, names
from sql.operators.plan import Plan
from sql.operators.scan import Scan
from sql.operators.versions.versions import unchanged, versions_at


@dataclass(frozen=True, slots=True)
class VersionScan(Scan):
    """``used`` are the columns of which there are versions."""

    used: tuple[str, ...]

    @property
    def barrier(self) -> bool:
        # PostgreSQL does not look things up along an index in a union of which a part is filtered.
        return True

    def streamable(self) -> Iterator[int]:
        return iter(())

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        table = f"{quote(self.source.schema, self.source.name)} AS t"
        parts = [
            select(self._columns("t"), table, where=[unchanged(self.source, self.used)]),
            versions_at(self.source, self.used, self._columns("v")),
        ]
        only = only and only.to(self.columns)
        if only is not None:
            nullable = [column.name for column in self.columns if not column.not_null]
            parts = [plan.target.restricted(part, names(self.columns), only, nullable) for part in parts]
        return union_all(parts)

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        now = select([*names(self.columns), f"1::bigint AS {W}"], derived(self.new(plan, only), "n"))
        changes = select([*self._columns("d"), f"-d.{W} AS {W}"], f"{delta_name(self.source.oid)} AS d")
        return union_all([now, changes])
