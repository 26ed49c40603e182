"""Aggregate: one row for each group, or one row for everything.

Not linear. The general rule: the touched keys are those of the input's delta, and
``ΔQ(A) = Q(new(A) at the touched keys) - Q(old(A) at the touched keys)``, where at these keys ``old(A) = new(A) - ΔA``.
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

    def sql(self, *, reproducible: bool) -> str:
        """The call as PostgreSQL writes it; ``reproducible``: the same rows give the same bits."""
        argument = quote(self.argument.name) if self.argument else "*"
        order = ""
        if reproducible and self.argument and not self.argument.faithful:
            if self.function in ("min", "max"):
                direction = "ASC" if self.function == "min" else "DESC"
                order = f'ORDER BY {argument} {direction} NULLS LAST, {argument}::text COLLATE "C"'
                return f"(pg_catalog.array_agg({argument} {order}){self.filter_sql()})[1]"
            if self.argument.base_type in ("real", "double precision") and not self.distinct:
                # Floating point addition is not associative.
                order = f" ORDER BY {argument}"
        return f"{self.function}({'DISTINCT ' if self.distinct else ''}{argument}{order}){self.filter_sql()}"

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
    """``keys`` are columns of the input; ``grouped`` is False without GROUP BY, when there is always one row.

    A delta takes away the old rows as they were given out, so what PostgreSQL leaves open (the spelling of a key, the
    last bits of a sum of floats) must be ``reproducible``, except at the root, where the old rows are stored.
    """

    input: Operator
    keys: tuple[Field, ...]
    calls: tuple[Call, ...]
    grouped: bool
    reproducible: bool = True

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
        return self._touched(plan, self.input.delta(plan))

    def _touched(self, plan: Plan, changes: str) -> str:
        query = select(names(self.keys), derived(changes, "d"), distinct=bool(self.keys))
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

    def _key(self, key: Field) -> str:
        name = quote(key.name)
        if key.faithful or not self.reproducible:
            return name
        return f'(pg_catalog.array_agg({name} ORDER BY {name}::text COLLATE "C"))[1] AS {name}'

    def _grouped(self, query: str) -> str:
        columns = [self._key(key) for key in self.keys]
        columns += [f"{call.sql(reproducible=self.reproducible)} AS {quote(call.column.name)}" for call in self.calls]
        by = [f"a.{name}" for name in names(self.keys)]
        return select(columns, derived(query, "a"), group_by=by if self.grouped else None)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self._grouped(self.input_new(plan, only))

    def _net(self, query: str) -> str:
        """The rows of a Z-set: weights netted and every row repeated by its weight."""
        columns = self.input.columns
        by, values = content_groups(columns, "o")
        net = select(
            [f"{value} AS {quote(c.name)}" for value, c in zip(values, columns, strict=True)]
            + [f"pg_catalog.sum(o.{W})::bigint AS {W}"],
            derived(query, "o"),
            group_by=by,
            having=[f"pg_catalog.sum(o.{W}) > 0"],
        )
        repeat = f"CROSS JOIN LATERAL pg_catalog.generate_series(1, n.{W})"
        return select([f"n.{name}" for name in names(columns)], f"{derived(net, 'n')} {repeat}")

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        only = only and only.to(self.keys)
        query = self.input.old(plan, only)
        if only:
            query = restricted(query, [*names(self.input.columns), W], only, self._nullable())
        return select([*names(self.columns), f"1::bigint AS {W}"], derived(self._grouped(self._net(query)), "g"))

    def delta(self, plan: Plan) -> str:
        """The old rows of the touched groups are the new ones less the delta, all of which is in these groups."""
        changes = select(["*"], plan.cte(plan.fresh("changes"), self.input.delta(plan)))
        touched = self._touched(plan, changes)
        members = select(["*"], plan.cte(plan.fresh("members"), self.input_new(plan, self.at(touched))))
        columns = names(self.input.columns)
        before = union_all(
            [
                select([*columns, f"1::bigint AS {W}"], derived(members, "m")),
                select([*columns, f"-{W} AS {W}"], derived(changes, "c")),
            ]
        )
        # Without GROUP BY there is a row in any case: it matters only if something was touched.
        gate = [f"EXISTS (SELECT FROM {touched})"]
        after = derived(self._grouped(members), "n")
        return union_all(
            [
                select([*names(self.columns), f"1::bigint AS {W}"], after, where=gate),
                select(
                    [*names(self.columns), f"-1::bigint AS {W}"],
                    derived(self._grouped(self._net(before)), "o"),
                    where=gate,
                ),
            ]
        )

    def describe(self) -> str:
        return "Aggregate" + (f"({', '.join(c.function for c in self.calls)})" if self.calls else "")
