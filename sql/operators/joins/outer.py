"""Outer joins: the inner join, and the rows without a match padded with NULLs.

    L ⟕ R = (L ⋈ R) + pad(L ▷ R)           L ⟗ R = (L ⟕ R) + pad(R ▷ L)

so their deltas are those of the inner join and of the anti-joins. Where R has not changed, ``Δ(L ⟕ R) = ΔL ⟕ R``.
A right join is a left join of the mirrored inputs. ``old(Q) = new(Q) - ΔQ``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from sql.base.columns import Field
from sql.base.text import aliased, derived, quote, select, union_all
from sql.operators.aggregates.aggregate import Aggregate
from sql.operators.joins.join import Join
from sql.operators.joins.match import Match
from sql.operators.joins.matching import AntiJoin
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.plan import Plan
from sql.operators.shared import shared_delta


def nullable(fields: tuple[Field, ...]) -> tuple[Field, ...]:
    """The columns of the side that is padded."""
    return tuple(replace(f, not_null=False) for f in fields)


@dataclass(frozen=True, slots=True)
class Outer(Operator):
    """``conditions`` are ANDed and speak of both inputs' columns, whose names differ from each other."""

    left: Operator
    right: Operator
    conditions: tuple[exp.Expr, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.left, self.right)

    @property
    def match(self) -> Match:
        """The conditions between the inputs."""
        return Match(self.conditions, self.left.columns, self.right.columns)

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        columns = names(self.columns)
        delta = select([*columns, f"-{W} AS {W}"], derived(shared_delta(plan, self), "d"))
        return union_all([select([*columns, f"1::bigint AS {W}"], derived(self.new(plan, only), "n")), delta])

    def _keys(self) -> list[tuple[int, str]] | None:
        """The keys of both sides: one padded with NULLs has no key of all NULLs besides."""
        left, right = self.left.row_key(), self.right.row_key()
        return None if left is None or right is None else left + right

    def _joined(self, plan: Plan, kind: str, left: str, right: str, *weight: str) -> str:
        columns = [*names(self.left.columns), *names(self.right.columns), *weight]
        return select(columns, f"{derived(left, 'l')} {kind} JOIN {derived(right, 'r')} ON {self.match.sql(plan)}")

    def _padded(self, plan: Plan, rows: str, padded: Operator, *weight: str) -> str:
        """Rows of one side beside NULLs in place of the ``padded`` one's."""
        empty = {f.name: f"NULL::{f.type} AS {quote(f.name)}" if f.type else "NULL" for f in padded.columns}
        source = derived(rows, "a")
        if not all(f.builtin for f in padded.columns):
            # A NULL of a domain that forbids NULLs comes from an outer join alone.
            source += f" LEFT JOIN {derived(padded.new(plan), 'n')} ON FALSE"
            empty = {f.name: f"n.{quote(f.name)}" for f in padded.columns}
        columns = [empty.get(f.name, f"a.{quote(f.name)}") for f in (*self.left.columns, *self.right.columns)]
        return select([*columns, *weight], source)

    def _left_delta(self, plan: Plan) -> str:
        """The delta of the left join of the inputs, in their columns."""
        if not self.right.changed(plan):
            left = shared_delta(plan, self.left)
            only = self.match.mirrored().keys(plan, left) if self.right.barrier else None
            return self._joined(plan, "LEFT", left, self.right.new(plan, only), f"l.{W}")
        for operator in (self.left, self.right):
            if operator.changed(plan):
                shared_delta(plan, operator)
        inner = Join((self.left, self.right), self.conditions, (*self.left.columns, *self.right.columns))
        alone = AntiJoin(self.left, self.right, self.conditions)
        return union_all([inner.delta(plan), self._padded(plan, alone.delta(plan), self.right, f"a.{W}")])


@dataclass(frozen=True, slots=True)
class LeftJoin(Outer):
    """``L ⟕ R``. The columns are the left's, then the right's, which can be NULL."""

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return (*self.left.columns, *nullable(self.right.columns))

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        left, through = self.match.restricted(plan, self.left, self.right, only)
        return self._joined(plan, "LEFT", left, self.right.new(plan, through))

    def delta(self, plan: Plan) -> str:
        return self._left_delta(plan)

    def row_key(self) -> list[tuple[int, str]] | None:
        return self.left.row_key() if self._one_match() else self._keys()

    def _one_match(self) -> bool:
        """Whether a row on the left has one match at most."""
        key = self.right.row_key()
        matched = {
            pair.right_field.origin
            for pair in self.match.pairs
            if pair.left_field and pair.right_field and pair.left_field.type == pair.right_field.type
        }
        return key is not None and set(key) <= matched

    def describe(self) -> str:
        return "Left join"


@dataclass(frozen=True, slots=True)
class Merged:
    """A column that both sides of USING share: the left one, or the right one where there is no left row."""

    column: Field
    left: Field
    right: Field


@dataclass(frozen=True, slots=True)
class FullJoin(Outer):
    """``L ⟗ R``. The columns are both sides', all of which can be NULL, then the ``merged`` ones."""

    merged: tuple[Merged, ...] = ()

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return (*nullable(self.left.columns), *nullable(self.right.columns), *(m.column for m in self.merged))

    @property
    def barrier(self) -> bool:
        return True

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        if only is None and (self.match.pairs or not self.conditions):
            both = self._joined(plan, "FULL", self.left.new(plan), self.right.new(plan))
            merged = [
                f"coalesce(j.{quote(m.left.name)}, j.{quote(m.right.name)}) AS {quote(m.column.name)}"
                for m in self.merged
            ]
            return select([*names(self.columns[: -len(merged) or None]), *merged], derived(both, "j"))
        left, right = self._sides(only)
        matching, through = self.match.restricted(plan, self.left, self.right, left)
        rows = self._joined(plan, "LEFT", matching, self.right.new(plan, through))
        alone = AntiJoin(self.right, self.left, self.conditions).new(plan, right)
        return union_all(
            [
                self._restricted(plan, self._with_merged(rows, left=True), only, left=True),
                self._restricted(
                    plan, self._with_merged(self._padded(plan, alone, self.left), left=False), only, left=False
                ),
            ]
        )

    def delta(self, plan: Plan) -> str:
        terms = [self._with_merged(self._left_delta(plan), W, left=True)]
        alone = AntiJoin(self.right, self.left, self.conditions)
        padded = self._padded(plan, alone.delta(plan), self.left, f"a.{W}")
        return union_all([*terms, self._with_merged(padded, W, left=False)])

    def _with_merged(self, rows: str, *weight: str, left: bool) -> str:
        merged = [aliased(quote((m.left if left else m.right).name), m.column.name) for m in self.merged]
        columns = [*names(self.left.columns), *names(self.right.columns)]
        return select([*columns, *merged, *weight], derived(rows, "m")) if merged else rows

    def _sides(self, only: Restriction | None) -> tuple[Restriction | None, Restriction | None]:
        """A restriction of the result as one of the left rows, and one of the right rows without a match."""
        if only is None:
            return None, None
        sides = []
        for inputs, chosen in (
            (self.left, [m.left for m in self.merged]),
            (self.right, [m.right for m in self.merged]),
        ):
            known = {f.name: f.name for f in inputs.columns}
            known |= {m.column.name: f.name for m, f in zip(self.merged, chosen, strict=True)}
            sides.append(only.of(tuple((known[name], key) for name, key in only.pairs if name in known)))
        return sides[0], sides[1]

    def _restricted(self, plan: Plan, rows: str, only: Restriction | None, *, left: bool) -> str:
        mine = only and only.to(self.columns)
        if mine is None:
            return rows
        possibly = [f.name for f in self.columns if not f.not_null]
        # Within one side a merged column is a column of a table, which can have an index.
        origins = {m.column.name: (m.left if left else m.right).origin for m in self.merged}
        pairs = tuple((name, replace(key, origin=origins.get(name, key.origin))) for name, key in mine.pairs)
        return plan.target.restricted(rows, names(self.columns), Restriction(mine.relation, pairs), possibly)

    def row_key(self) -> list[tuple[int, str]] | None:
        # Either side can have a group of NULLs without a match, and both would look like padding.
        return None if _grouped(self.left) and _grouped(self.right) else self._keys()

    def describe(self) -> str:
        return "Full join"


def _grouped(operator: Operator) -> bool:
    return any(isinstance(part, Aggregate) for part in operator.walk())
