"""Limit: the first rows in an order, of everything or of each group.

The general rule of `recompute_groups`, with one difference where there are no groups. The old first m + n rows are
among the new first m + n + k ones, where k rows have come since, and among the rows that have gone. So the input is
read once, in order, and no further than that:

    members = first m + n + k rows of new(A),     ΔQ(A) = Q(members) - Q(members - ΔA).

Peers are told apart by content (see `ordering`), so the same rows are the first ones whenever they are computed again;
with ties, all peers of the last row stay together.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Field
from sql.base.consolidate import counted_out
from sql.base.text import derived, quote, select, union_all
from sql.operators.aggregates.recompute_groups import KeepsRows
from sql.operators.operator import W, names
from sql.operators.ordering import SortKey, order_by, total_order
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class Limit(KeepsRows):
    """``count`` and ``offset`` are SQL expressions, None where there is no such clause; ``keys`` are the groups."""

    order: tuple[SortKey, ...]
    count: str | None
    offset: str | None = None
    ties: bool = False

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.input.columns

    @property
    def total(self) -> list[str]:
        """Sort expressions that tell all rows apart."""
        within = [*self.keys, *(key.column for key in self.order)]
        return total_order(self.keys, self.order, () if self.input.told_apart(within) else self.input.telling())

    @property
    def peers(self) -> list[str]:
        """Sort expressions that leave peers together."""
        return [key.sql() for key in self.order]

    @property
    def _skipped(self) -> str:
        return f"coalesce(({self.offset})::bigint, 0)" if self.offset else "0"

    def _end(self, more: str = "0") -> str:
        """How many rows there are up to the last one, NULL for no end."""
        return f"(({self.count})::bigint + {self._skipped} + {more})" if self.count else "NULL"

    def _first(self, rows: str, number: str) -> str:
        """The first rows of all, in any order."""
        query = select(["*"], derived(rows, "l"))
        if self.ties and not self.peers:
            return query
        if self.ties:
            return f"{query}{order_by(self.peers)} FETCH FIRST {number} ROWS WITH TIES"
        return f"{query}{order_by(self.total)} LIMIT {number}"

    def computed(self, plan: Plan, rows: str) -> str:
        if self.keys:
            return self._by_group(rows)
        if self.ties and self.peers:
            rows = self._first(rows, f"(CASE WHEN ({self.count})::bigint <= 0 THEN 0 ELSE {self._end()} END)")
        elif self.ties:
            # Without an order all rows are peers.
            rows = select(["*"], derived(rows, "l"), where=[f"({self.count})::bigint > 0"])
        query = select(["*"], derived(rows, "l")) + order_by(self.total)
        query += f" LIMIT {self.count}" if self.count and not self.ties else ""
        return query + (f" OFFSET {self.offset}" if self.offset else "")

    def _by_group(self, rows: str) -> str:
        by = ", ".join(names(self.keys))
        position = quote("__pgt_position")
        numbered = f"pg_catalog.row_number() OVER (PARTITION BY {by}{order_by(self.total)})"
        columns = ["*", f"{numbered} AS {position}"]
        last = position
        if self.ties:
            last = quote("__pgt_rank")
            ranked = f"pg_catalog.rank() OVER (PARTITION BY {by}{order_by(self.peers)})"
            columns.append(f"{ranked} AS {last}")
        where = [f"{position} > {self._skipped}"]
        if self.count:
            where += [f"{last} <= coalesce({self._end()}, {last})", f"coalesce(({self.count})::bigint, 1) > 0"]
        return select(names(self.columns), derived(select(columns, derived(rows, "l")), "n"), where=where)

    def delta(self, plan: Plan) -> str:
        if self.keys:
            return KeepsRows.delta(self, plan)
        changes = plan.cte(plan.fresh("changes"), self.input.delta(plan))
        added = f"pg_catalog.sum({W}) FILTER (WHERE {W} > 0)"
        come = plan.target.value(select([f"coalesce({added}, 0)::bigint"], changes))
        first = self.input.new(plan)
        if come is not None:
            first = self._first(first, self._end(come))
        members = plan.cte(
            plan.fresh("members"), select(["*"], derived(first, "m"), where=[f"EXISTS (SELECT FROM {changes})"])
        )
        columns = names(self.columns)
        before = union_all(
            [
                select([*columns, f"1::bigint AS {W}"], members),
                select([*columns, f"-{W} AS {W}"], changes),
            ]
        )
        return union_all(
            [
                select([*columns, f"1::bigint AS {W}"], derived(self.computed(plan, select(["*"], members)), "n")),
                select(
                    [*columns, f"-1::bigint AS {W}"],
                    derived(self.computed(plan, counted_out(before, self.input.columns, plan.target.copies)), "o"),
                ),
            ]
        )

    def describe(self) -> str:
        words = [f"first {self.count}" if self.count else "", f"from {self.offset}" if self.offset else ""]
        words += ["with ties" if self.ties else ""]
        return f"Limit({', '.join(word for word in words if word)})"
