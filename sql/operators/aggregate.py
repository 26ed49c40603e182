"""Aggregate: one row for each group, or one row for everything.

Not linear. The general rule: the touched keys are those of the input's delta, and
``ΔQ(A) = Q(new(A) at the touched keys) - Q(old(A) at the touched keys)``.
At the root of the tree `storage.groups` has a shorter way: what the groups were is in the stream table.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..columns import Field
from ..identity import content_groups
from ..plan import Plan
from ..render import derived, quote, select, union_all
from .operator import Operator, Restriction, W, names, restricted


@dataclass(frozen=True, slots=True)
class Call:
    """An aggregate function over columns of the input; ``argument`` None is ``*``."""

    column: Field
    function: str
    argument: Field | None
    filter: Field | None = None
    distinct: bool = False

    def sql(self) -> str:
        """The call as PostgreSQL writes it."""
        argument = quote(self.argument.name) if self.argument else "*"
        call = f"{self.function}({'DISTINCT ' if self.distinct else ''}{argument})"
        return call + self.filter_sql()

    def describe(self) -> str:
        """The call in the words of the query, as far as they are columns."""
        argument = self.argument
        words = "*" if argument is None else argument.origin[1] if argument.origin else "expression"
        return f"{self.function}({'DISTINCT ' if self.distinct else ''}{words}){' FILTER' if self.filter else ''}"

    def filter_sql(self, *conditions: str) -> str:
        """The FILTER clause, with further conditions, or nothing."""
        parts = [*([quote(self.filter.name)] if self.filter else []), *conditions]
        return f" FILTER (WHERE {' AND '.join(parts)})" if parts else ""


@dataclass(frozen=True, slots=True)
class Aggregate(Operator):
    """``keys`` are columns of the input; ``grouped`` is False without GROUP BY, when there is always one row."""

    input: Operator
    keys: tuple[Field, ...]
    calls: tuple[Call, ...]
    grouped: bool

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.keys + tuple(call.column for call in self.calls)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def barrier(self) -> bool:
        return True

    def touched(self, plan: Plan) -> str:
        """A CTE of the distinct keys that the input's delta touches."""
        query = select(names(self.keys), derived(self.input.delta(plan), "d"), distinct=bool(self.keys))
        return plan.cte(plan.fresh("touched"), query if self.keys else f"{query} LIMIT 1")

    def at(self, touched: str) -> Restriction | None:
        """The restriction to touched keys, None where there is but one group."""
        return Restriction(touched, tuple((key.name, key) for key in self.keys)) if self.keys else None

    def input_new(self, plan: Plan, only: Restriction | None, *, rare: bool = False) -> str:
        """The input's rows, of the restriction's groups only."""
        only = only and only.to(self.keys)
        query = self.input.new(plan, only)
        return restricted(query, names(self.input.columns), only, self._nullable(), rare=rare) if only else query

    def _nullable(self) -> list[str]:
        return [key.name for key in self.keys if not key.not_null]

    def _grouped(self, query: str) -> str:
        columns = names(self.keys) + [f"{call.sql()} AS {quote(call.column.name)}" for call in self.calls]
        return select(columns, derived(query, "a"), group_by=names(self.keys) if self.grouped else None)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self._grouped(self.input_new(plan, only))

    def old_rows(self, plan: Plan, only: Restriction | None) -> str:
        """The input's old state as plain rows: weights netted and every row repeated by its weight."""
        only = only and only.to(self.keys)
        columns = self.input.columns
        query = self.input.old(plan, only)
        if only:
            query = restricted(query, [*names(columns), W], only, self._nullable())
        by, values = content_groups(columns)
        net = select(
            [f"{value} AS {quote(c.name)}" for value, c in zip(values, columns, strict=True)]
            + [f"pg_catalog.sum({W})::bigint AS {W}"],
            derived(query, "o"),
            group_by=by,
            having=[f"pg_catalog.sum({W}) > 0"],
        )
        repeat = f"CROSS JOIN LATERAL pg_catalog.generate_series(1, n.{W})"
        return select([f"n.{name}" for name in names(columns)], f"{derived(net, 'n')} {repeat}")

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        grouped = self._grouped(self.old_rows(plan, only))
        return select([*names(self.columns), f"1::bigint AS {W}"], derived(grouped, "g"))

    def delta(self, plan: Plan) -> str:
        touched = self.touched(plan)
        only = self.at(touched)
        # Nothing is computed at all unless something was touched.
        gate = [f"EXISTS (SELECT FROM {touched})"]
        return union_all(
            [
                select([*names(self.columns), f"1::bigint AS {W}"], derived(self.new(plan, only), "n"), where=gate),
                select([*names(self.columns), f"-{W} AS {W}"], derived(self.old(plan, only), "o"), where=gate),
            ]
        )

    def describe(self) -> str:
        return "Aggregate" + (f"({', '.join(c.function for c in self.calls)})" if self.calls else "")
