"""Join: the inner join of any number of inputs under any conditions; also a cross join and a self-join.

Multilinear. With the changed inputs in some order A1, A2, … and ``old(A) = new(A) - ΔA`` the delta is

    ΔQ = Σ over i of  ΔAi ⋈ (new(A1) - ΔA1) ⋈ … ⋈ (new(Ai-1) - ΔAi-1) ⋈ new(Ai+1) ⋈ … ⋈ new(inputs without changes).

Each summand is a chain of joins that begins with a delta and takes up one input after the other (`join_graph`), those
with a minus twice: the rows so far with what is there now, less the rows so far with what has changed. So no old state
is looked at, and n inputs take n² joins of two relations, not 2ⁿ joins of n. A delta is read by the chains of the
inputs behind its own only; so an input whose rows determine those of others, and which thus has most, comes last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from sql.base.columns import Field
from sql.base.text import derived, select
from sql.canonical.row_expressions import equated
from sql.operators.joins.join_chain import delta_by_chains, rows_at, rows_by_chain
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class Join(Operator):
    """``conditions`` are ANDed and speak of the inputs' columns, whose names differ from each other."""

    joined: tuple[Operator, ...]
    conditions: tuple[exp.Expr, ...]
    columns: tuple[Field, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return self.joined

    def _read(self, plan: Plan) -> tuple[Field, ...]:
        """The columns that somebody reads, see `column_pruning`."""
        read = plan.facts.narrowed.get(self.node)
        return self.columns if read is None else tuple(f for f in self.columns if f.name in read)

    def _joined(self, plan: Plan, relations: Sequence[str], weight: str | None) -> str:
        columns = names(self._read(plan)) + ([f"{weight} AS {W}"] if weight else [])
        where = [f"({plan.target.condition(condition)})" for condition in self.conditions]
        return select(columns, " CROSS JOIN ".join(relations), where=where)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        if plan.quick and len(self.joined) > 2:
            return rows_by_chain(plan, self.joined, self.conditions, self._read(plan), only)
        if only is not None and self.barrier and plan.target.one_statement:
            found = rows_at(plan, self.joined, self.conditions, self._read(plan), only)
            if found is not None:
                return found
        return self._joined(
            plan,
            [
                derived(operator.new(plan, only and only.to(operator.columns)), f"j{i}")
                for i, operator in enumerate(self.joined)
            ],
            None,
        )

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        relations: list[str] = []
        weights: list[str] = []
        for i, operator in enumerate(self.joined):
            below = only and only.to(operator.columns)
            if operator.changed(plan):
                relations.append(derived(operator.old(plan, below), f"j{i}"))
                weights.append(f"j{i}.{W}")
            else:
                relations.append(derived(operator.new(plan, below), f"j{i}"))
        return self._joined(plan, relations, " * ".join(weights))

    def delta(self, plan: Plan) -> str:
        return delta_by_chains(plan, self.joined, self.conditions, self._read(plan))

    def equalities(self, i: int, j: int) -> list[tuple[Field, Field]]:
        """The columns of one input and of another, of the same type, that are equal in every row."""
        mine = {column.name: column for column in self.joined[i].columns}
        theirs = {column.name: column for column in self.joined[j].columns}
        pairs = []
        for condition in self.conditions:
            left, right = equated(condition)
            if left in mine and right in theirs:
                pairs.append((mine[left], theirs[right]))
            elif right in mine and left in theirs:
                pairs.append((mine[right], theirs[left]))
        return [(m, t) for m, t in dict.fromkeys(pairs) if m.type == t.type]

    def row_key(self) -> list[tuple[int, str]] | None:
        """The keys of as few inputs as determine all the others.

        A table says nothing more about which row it is if its whole primary key is equated with columns of the other
        tables: each of their rows goes with one row of it at most. So a fact table joined with its dimensions has the
        fact table's key.
        """
        keys = [joined.row_key() for joined in self.joined]
        known = [key for key in keys if key is not None]
        if len(known) < len(keys):
            return None
        every = set(range(len(keys)))
        equal = {
            (i, j, mine.origin) for i in every for j in every - {i} for mine, _ in self.equalities(i, j) if mine.origin
        }
        needed = set(every)
        for i in reversed(range(len(keys))):
            if _determined(needed - {i}, known, equal) == every:
                needed -= {i}
        return [part for i in sorted(needed) for part in known[i]]

    def describe(self) -> str:
        return "Join" if self.conditions else "Cross join"


def _determined(
    inputs: set[int], keys: list[list[tuple[int, str]]], equal: set[tuple[int, int, tuple[int, str]]]
) -> set[int]:
    """The inputs of which there is one row at most for each row of the given ones."""
    found = set(inputs)
    while more := {
        i
        for i, key in enumerate(keys)
        if i not in found and all(any((i, j, part) in equal for j in found) for part in key)
    }:
        found |= more
    return found
