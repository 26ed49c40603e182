"""Join: the inner join of any number of inputs under any conditions; also a cross join and a self-join.

Multilinear. With ``old(A) = new(A) - ΔA`` the delta of a join of n inputs, k of them changed, is

    ΔQ = Σ over the non-empty sets S of changed inputs of (-1)^(|S|+1) · ⋈{ΔA : A ∈ S} ⋈ ⋈{new(A) : A ∉ S}

which never looks at an old state, and whose terms beyond |S| = 1 join small things with each other. From
`MAX_EXPANDED` changed inputs on the 2^k - 1 terms would be too many, and the telescoping sum of k terms is used:

    ΔQ = Σ over i of  old(A1) ⋈ … ⋈ old(Ai-1) ⋈ ΔAi ⋈ new(Ai+1) ⋈ … ⋈ new(An).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from sqlglot import exp

from ..columns import Field
from ..dialect import generate
from ..expressions import equated
from ..plan import Plan
from ..render import derived, quote, select, union_all
from ..same import Same
from .operator import Operator, Restriction, W, names
from .shared import shared_delta

MAX_EXPANDED = 5


@dataclass(frozen=True, slots=True)
class Join(Operator):
    """``conditions`` are ANDed and speak of the inputs' columns, whose names differ from each other."""

    joined: tuple[Operator, ...]
    conditions: tuple[exp.Expr, ...]
    columns: tuple[Field, ...]

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return self.joined

    def _joined(self, relations: Sequence[str], weight: str | None) -> str:
        columns = names(self.columns) + ([f"{weight} AS {W}"] if weight else [])
        where = [f"({generate(condition)})" for condition in self.conditions]
        return select(columns, " CROSS JOIN ".join(relations), where=where)

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self._joined(
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
        return self._joined(relations, " * ".join(weights))

    def delta(self, plan: Plan) -> str:
        changed = [i for i, operator in enumerate(self.joined) if operator.changed(plan)]
        deltas = {i: self._delta_of(plan, i, shared=len(changed) > 1) for i in changed}
        if len(changed) <= MAX_EXPANDED:
            sets = [s for size in range(1, len(changed) + 1) for s in combinations(changed, size)]
            return union_all([self._term(plan, deltas, s) for s in sets])
        return union_all([self._telescoped(plan, deltas, i) for i in changed])

    def _delta_of(self, plan: Plan, i: int, *, shared: bool) -> str:
        operator = self.joined[i]
        if shared or id(operator) in plan.deltas or self._feeds_barrier(i):
            return shared_delta(plan, operator)
        return operator.delta(plan)

    def _term(self, plan: Plan, deltas: dict[int, str], inside: tuple[int, ...]) -> str:
        relations = [derived(deltas[i], f"j{i}") for i in inside]
        for i, operator in enumerate(self.joined):
            if i not in inside:
                relations.append(derived(operator.new(plan, self._restriction(plan, deltas, inside, i)), f"j{i}"))
        weight = " * ".join(f"j{i}.{W}" for i in inside)
        return self._joined(relations, weight if len(inside) % 2 else f"-({weight})")

    def _telescoped(self, plan: Plan, deltas: dict[int, str], at: int) -> str:
        relations = [derived(deltas[at], f"j{at}")]
        weights = [f"j{at}.{W}"]
        for i, operator in enumerate(self.joined):
            only = self._restriction(plan, deltas, (at,), i) if i != at else None
            if i < at and operator.changed(plan):
                relations.append(derived(operator.old(plan, only), f"j{i}"))
                weights.append(f"j{i}.{W}")
            elif i != at:
                relations.append(derived(operator.new(plan, only), f"j{i}"))
        return self._joined(relations, " * ".join(weights))

    def _restriction(self, plan: Plan, deltas: dict[int, str], inside: tuple[int, ...], i: int) -> Restriction | None:
        """For an input that aggregates: only the rows that can join with the delta."""
        if not self.joined[i].barrier:
            return None
        for j in inside:
            equal = self.equalities(i, j)
            pairs = [*equal, *self._agreements(i, j)]
            if pairs:
                names = [quote(name) for name in dict.fromkeys(theirs.name for _, theirs in pairs)]
                keys = select(
                    names,
                    derived(deltas[j], "d"),
                    where=[f"{quote(name)} IS NOT NULL" for name in dict.fromkeys(theirs.name for _, theirs in equal)],
                    distinct=True,
                )
                return Restriction(plan.cte(plan.fresh("keys"), keys), tuple((m.name, t) for m, t in pairs))
        return None

    def _feeds_barrier(self, j: int) -> bool:
        return any(
            operator.barrier and (self.equalities(i, j) or self._agreements(i, j))
            for i, operator in enumerate(self.joined)
            if i != j
        )

    def equalities(self, i: int, j: int) -> list[tuple[Field, Field]]:
        """The columns of one input and of another, of the same type, that are equal in every row."""
        return self._pairs(i, j, [equated(condition) for condition in self.conditions])

    def _agreements(self, i: int, j: int) -> list[tuple[Field, Field]]:
        """The columns of one input and of another, of the same type, that agree in every row, be it in NULL."""
        sides = [(c.this.unnest(), c.expression.unnest()) for c in self.conditions if isinstance(c, Same)]
        columns = [pair for pair in sides if all(isinstance(side, exp.Column) for side in pair)]
        return self._pairs(i, j, [(left.name, right.name) for left, right in columns])

    def _pairs(self, i: int, j: int, conditions: Sequence[tuple[str, str]]) -> list[tuple[Field, Field]]:
        mine = {column.name: column for column in self.joined[i].columns}
        theirs = {column.name: column for column in self.joined[j].columns}
        pairs = []
        for left, right in conditions:
            if left in mine and right in theirs:
                pairs.append((mine[left], theirs[right]))
            elif right in mine and left in theirs:
                pairs.append((mine[right], theirs[left]))
        return [(m, t) for m, t in dict.fromkeys(pairs) if m.type == t.type]

    def describe(self) -> str:
        return "Join" if self.conditions else "Cross join"
