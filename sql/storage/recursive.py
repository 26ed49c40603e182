"""Recursive: the rows of a WITH RECURSIVE query, from which the next refresh goes on.

What is stored is the recursion's state at the frontier, so a refresh propagates only what has changed. Where the
recursive term is not monotone in that, the query is computed again, and what differs is applied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from sql.base.columns import Column, Field
from sql.base.text import derived, quote, select
from sql.base.types import ORDERED
from sql.canonical.row_expressions import equated
from sql.errors import NotExpressible
from sql.operators import Join, Operator, Project, Recursion
from sql.operators.input import Input, substituted
from sql.operators.plan import Plan
from sql.operators.recursion.fixpoint import Fixpoint, Stored
from sql.operators.recursion.fixpoint_delta import fixpoint_delta
from sql.operators.recursion.recursion import tell_delta
from sql.storage.bag import Bag
from sql.storage.recomputed import Recomputed
from sql.storage.shape import Shape, output_columns


@dataclass(frozen=True, slots=True)
class Recursive(Recomputed):
    """``root`` is a projection of ``recursion`` that passes all of its columns on: they are in ``bag``'s columns, of
    which the first ``width`` are the user's. The other ones are hidden.
    """

    bag: Bag
    width: int
    root: Operator
    recursion: Recursion
    fixpoint: Fixpoint

    @property
    def output(self) -> tuple[Column, ...]:  # type: ignore[override]
        return self.bag.output[: self.width]

    @property
    def hidden(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.bag.output[self.width :]) + self.bag.hidden

    def create(self, storage: str) -> tuple[str, ...]:
        """The recursive term looks for stored rows by the columns that it joins by."""
        columns = {column.name: name for name, column in reversed(self.bag.fields)}
        indexed = [columns[f.name] for f in joined_by(self.fixpoint) if f.type in ORDERED]
        return (*self.bag.create(storage), *(f"CREATE INDEX ON {storage} ({quote(name)})" for name in indexed))

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        names = {f.name: name for name, f in reversed(self.bag.fields)}
        hashed = tuple(replace(c, name=f.name) for c, (_, f) in zip(self.bag.output, self.bag.fields, strict=True))

        def projected(rows: str) -> str:
            given = Input(self.recursion.columns, rows)
            return substituted(self.root, {self.recursion.node: given}).new(Plan(frozenset()))

        stored = Stored(storage, tuple((names[f.name], f) for f in self.recursion.columns), hashed, projected)
        delta = fixpoint_delta(self.fixpoint, plan, stored)
        if delta is None:
            return self.apply_full(plan, storage, self.rows)
        tell_delta(plan, self.recursion, delta)
        return self.bag.apply_delta(plan, storage)

    def apply_staged_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        raise NotExpressible("WITH RECURSIVE")


def joined_by(fixpoint: Fixpoint) -> list[Field]:
    """The recursion's columns that its recursive term joins by."""
    working = {mine.name: theirs for mine, theirs in zip(fixpoint.working.columns, fixpoint.columns, strict=True)}
    conditions: list[exp.Expr] = []
    for operator in fixpoint.step.operator.walk():
        if isinstance(operator, Join):
            conditions += operator.conditions
    found = [working[name] for condition in conditions for name in equated(condition) if name in working]
    return list(dict.fromkeys(found))


def recursion_strategies(root: Operator, shape: Shape) -> dict[str, str]:
    """For each recursion of a query how it is maintained."""
    found = {}
    for operator in root.walk():
        if isinstance(operator, Recursion):
            strategy = "computed again, as it is and as it was"
            if isinstance(shape, Recursive) and shape.recursion is operator:
                strategy = shape.fixpoint.strategy
            elif isinstance(shape, Recomputed):
                strategy = "computed again, and compared with the stored rows"
            found[f"WITH RECURSIVE {operator.name}"] = strategy
    return found


def recursive(
    output: tuple[Column, ...], root: Operator, fields: tuple[tuple[str, Field], ...], recursion: Recursion
) -> Recursive | None:
    """The shape for a recursion that is only projected, or None if it has to be computed as a whole."""
    fixpoint = recursion.fixpoint
    if fixpoint is None or fixpoint.sides() is None or not isinstance(root, Project) or root.input is not recursion:
        return None
    shown = {f.name for _, f in fields}
    missing = {f"__pgt_r{i}": f for i, f in enumerate(recursion.columns, 1) if f.name not in shown}
    root = replace(
        root,
        expressions=root.expressions
        + tuple(exp.column(exp.to_identifier(f.name, quoted=True)) for f in missing.values()),
        columns=root.columns + tuple(missing.values()),
    )
    fields += tuple(missing.items())
    hidden = tuple(Column(name, f.type, False, f.hashable, f.equality_is_identity) for name, f in missing.items())
    rows = select(output_columns(fields), derived(root.new(Plan(frozenset())), "o"))
    bag = Bag(rows, output + hidden, root, fields)
    return Recursive(bag, bag, len(output), root, recursion, fixpoint)
