"""Union all: the rows of all inputs together.

Linear in each input: ``Δ(A + B) = ΔA + ΔB``; weights add up, so duplicates are counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sql.base.columns import Field
from sql.base.text import derived, quote, select, union_all
from sql.operators.operator import Operator, Restriction, W
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class UnionAll(Operator):
    """``columns`` name the result, ``outputs`` the columns of each branch that go into them, position by position."""

    branches: tuple[Operator, ...]
    outputs: tuple[tuple[Field, ...], ...]
    columns: tuple[Field, ...]

    @classmethod
    def of(
        cls, branches: Sequence[Operator], outputs: Sequence[tuple[Field, ...]], columns: tuple[Field, ...]
    ) -> UnionAll:
        """The rows of all branches, without unions in unions: PostgreSQL plans those in the cube of their depth."""
        flat: list[tuple[Operator, tuple[Field, ...]]] = []
        for branch, output in zip(branches, outputs, strict=True):
            if isinstance(branch, UnionAll) and all(a.type == b.type for a, b in zip(columns, output, strict=True)):
                places = {column.name: place for place, column in enumerate(branch.columns)}
                wanted = [places[field.name] for field in output]
                inner = zip(branch.branches, branch.outputs, strict=True)
                flat += [(operator, tuple(fields[place] for place in wanted)) for operator, fields in inner]
            else:
                flat.append((branch, output))
        return cls(tuple(branch for branch, _ in flat), tuple(output for _, output in flat), columns)

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return self.branches

    @property
    def linear(self) -> bool:
        return True

    def _branch(self, i: int, query: str, *weight: str) -> str:
        columns = []
        for mine, theirs in zip(self.columns, self.outputs[i], strict=True):
            # With a branch left out of a delta, PostgreSQL would not find the common type of all branches.
            cast = "" if mine.type in (theirs.type, "") else f"::{mine.type}"
            columns.append(f"{quote(theirs.name)}{cast} AS {quote(mine.name)}")
        return select([*columns, *weight], derived(query, "u"))

    def _below(self, i: int, only: Restriction | None) -> Restriction | None:
        if only is None:
            return None
        theirs = {m.name: t for m, t in zip(self.columns, self.outputs[i], strict=True) if m.type == t.type}
        pairs = tuple((theirs[name].name, key) for name, key in only.pairs if name in theirs)
        return only.of(pairs)

    def delta(self, plan: Plan) -> str:
        changed = [(i, b) for i, b in enumerate(self.branches) if b.changed(plan)]
        return union_all([self._branch(i, b.delta(plan), W) for i, b in changed])

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return union_all([self._branch(i, b.new(plan, self._below(i, only))) for i, b in enumerate(self.branches)])

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        queries = []
        for i, b in enumerate(self.branches):
            below = self._below(i, only)
            if b.changed(plan):
                queries.append(self._branch(i, b.old(plan, below), W))
            else:
                queries.append(self._branch(i, b.new(plan, below), f"1::bigint AS {W}"))
        return union_all(queries)

    def describe(self) -> str:
        return "Union all"
