"""Expand: every row once for each grouping set, with NULL in the keys that are not in the set.

GROUPING SETS, CUBE and ROLLUP are one aggregate over this, which groups by the expanded keys and the set's number. So
all that maintains an aggregate maintains them, and the input is read once.

Linear: ``ΔQ(A) = Q(ΔA)``, and so for the old state, but for one row of each empty set ``()``, which is always there:
such a set has a result even if there is nothing to aggregate. In this row ``present`` is false and all else is NULL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sql.base.columns import Field
from sql.base.text import aliased, derived, quote, select, union_all
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class Expand(Operator):
    """``keys`` are columns of the input and the columns that hold them expanded; ``sets`` are positions in ``keys``.

    A key that is in every set is expanded to itself.
    """

    input: Operator
    keys: tuple[tuple[Field, Field], ...]
    sets: tuple[frozenset[int], ...]
    number: Field
    present: Field

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        expanded = (new for old, new in self.keys if new.name != old.name)
        return (*self.input.columns, *expanded, self.number, self.present)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.input,)

    @property
    def linear(self) -> bool:
        return True

    def _expanded(self, query: str, *weight: str) -> str:
        columns = [f"e.{name}" for name in names(self.input.columns)]
        for i, (old, new) in enumerate(self.keys):
            if new.name != old.name:
                within = ", ".join(str(n) for n, keys in enumerate(self.sets) if i in keys)
                columns.append(aliased(f"CASE WHEN s.n IN ({within}) THEN e.{quote(old.name)} END", new.name))
        columns += [aliased("s.n", self.number.name), aliased("TRUE", self.present.name)]
        numbers = ", ".join(f"({n})" for n in range(len(self.sets)))
        source = f"{derived(query, 'e')} CROSS JOIN (VALUES {numbers}) AS s(n)"
        return select([*columns, *(f"e.{w}" for w in weight)], source)

    def _always(self, weight: Sequence[str] = ()) -> list[str]:
        """The rows that are there whatever the input."""
        empty = [n for n, keys in enumerate(self.sets) if not keys]
        rest = [aliased("FALSE", self.present.name), *weight]
        # Without a cast the modifiers of types would be lost; as long as types are not known it does not matter.
        casts = [f"::{column.type}" if column.type else "" for column in self.columns[:-2]]
        nulls = [f"NULL{cast} AS {quote(c.name)}" for cast, c in zip(casts, self.columns[:-2], strict=True)]
        return [select([*nulls, aliased(str(n), self.number.name), *rest]) for n in empty]

    def delta(self, plan: Plan) -> str:
        return self._expanded(self.input.delta(plan), W)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        rows = self.input.new(plan, only and only.to(self.input.columns))
        return union_all([self._expanded(rows), *self._always()])

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        rows = self.input.old(plan, only and only.to(self.input.columns))
        return union_all([self._expanded(rows, W), *self._always([f"1::bigint AS {W}"])])

    def describe(self) -> str:
        return f"Expand({len(self.sets)} grouping sets)"
