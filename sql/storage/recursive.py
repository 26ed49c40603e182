"""Recursive: the rows of a WITH RECURSIVE query, from which the next refresh goes on.

What is stored is the recursion's state at the frontier, so a refresh propagates only what has changed. Where the
recursive term is not monotone in that, the query is computed again, and what differs is applied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sqlglot import exp

from ..columns import Column, Field
from ..expressions import equated
from ..operators import Filter, Join, Operator, Recursion
from ..operators.fixpoint import Fixpoint, Stored
from ..plan import Plan
from ..render import quote
from ..types import ORDERED
from .bag import Bag
from .recomputed import Recomputed
from .shape import Shape


@dataclass(frozen=True, slots=True)
class Recursive(Bag):
    """``recursion`` is below nothing but projections that pass all of its columns on, and add none."""

    recursion: Recursion | None = None

    @property
    def summed(self) -> Operator | None:
        return None

    def create(self, storage: str) -> tuple[str, ...]:
        """The recursive term looks for stored rows by the columns that it joins by."""
        columns = {column.name: name for name, column in reversed(self.fields)}
        assert self.recursion is not None and self.recursion.fixpoint is not None
        indexed = [columns[f.name] for f in joined_by(self.recursion.fixpoint) if f.type in ORDERED]
        return (*Bag.create(self, storage), *(f"CREATE INDEX ON {storage} ({quote(name)})" for name in indexed))

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        recursion = self.recursion
        assert recursion is not None and recursion.fixpoint is not None
        names = {f.name: name for name, f in reversed(self.fields)}
        hashed = tuple(replace(c, name=f.name) for c, (_, f) in zip(self.output, self.fields, strict=True))
        stored = Stored(storage, tuple((names[f.name], f) for f in recursion.columns), hashed)
        delta = recursion.fixpoint.delta(plan, stored)
        if delta is None:
            return self.apply_full(plan, storage, self.rows)
        plan.solved[id(recursion)] = delta
        return Bag.apply_delta(self, plan, storage)


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
            if isinstance(shape, Recursive) and shape.recursion is operator and operator.fixpoint is not None:
                strategy = operator.fixpoint.strategy
            elif isinstance(shape, Recomputed):
                strategy = "computed again, and compared with the stored rows"
            found[f"WITH RECURSIVE {operator.name}"] = strategy
    return found


def above(root: Operator, recursion: Recursion) -> Iterator[Operator]:
    """The operators above a recursion, one over the other."""
    while root is not recursion:
        yield root
        (root,) = root.inputs


def recursive(
    rows: str, output: tuple[Column, ...], root: Operator, fields: tuple[tuple[str, Field], ...], recursion: Recursion
) -> Recursive | None:
    """The shape for a recursion at the root, or None if the query's columns are not exactly the recursion's."""
    fixpoint = recursion.fixpoint
    if any(isinstance(operator, Filter) for operator in above(root, recursion)):
        return None
    columns = {f.name for f in recursion.columns}
    if fixpoint is None or fixpoint.sides() is None or columns != {f.name for _, f in fields}:
        return None
    return Recursive(rows, output, root, fields, recursion)
