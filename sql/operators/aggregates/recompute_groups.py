"""Recompute groups: the rule for operators whose rows of a group depend on nothing but the input's rows of it.

Not linear. The touched keys are those of the input's delta, and

    ΔQ(A) = Q(new(A) at the touched keys) - Q(old(A) at the touched keys),

where at these keys ``old(A) = new(A) - ΔA``, since all of ``ΔA`` is there. So the delta costs what the touched groups
have rows. Aggregates (the group), DISTINCT and set operations (the whole row), windows (the partition) differ in what
their key is.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from sql.base.columns import Field
from sql.base.consolidate import counted_out
from sql.base.text import derived, select, union_all
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.plan import Plan
from sql.operators.semi_join_reduction import bounded


@dataclass(frozen=True, slots=True)
class RecomputeGroups(Operator):
    """``keys`` are columns of the input; without any the whole input is one group.

    A restriction of this operator's rows is passed on to the input as far as it speaks of ``keys``, which therefore
    keep their names in ``columns`` if they are given out.
    """

    input: Operator
    keys: tuple[Field, ...]

    @abstractmethod
    def computed(self, plan: Plan, rows: str) -> str:
        """The operator's rows, a query with `columns`, from the input's rows of whole groups, a query with the input's.

        A delta takes away the old rows as they were given out. So the result may depend on the rows as a multiset
        only, not on their order: ties are broken by content. Whether a group without rows gives a row is up to the
        operator; there is such a group only where there are no keys.
        """

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
        """The input's rows, of the restriction's groups only; ``rare``: they are hardly ever asked for."""
        only = only and only.to(self.keys)
        quick, plan.quick = plan.quick, plan.quick or rare
        query = self.input.new(plan, only)
        plan.quick = quick
        return (
            plan.target.restricted(query, names(self.input.columns), only, self._nullable(), rare=rare)
            if only
            else query
        )

    def _nullable(self) -> list[str]:
        return [key.name for key in self.keys if not key.not_null]

    def within(self, plan: Plan, query: str, touched: str, *weight: str) -> str:
        """Those of rows with the input's columns that are in touched groups."""
        only = self.at(touched)
        columns = [*names(self.input.columns), *weight]
        return plan.target.restricted(query, columns, only, self._nullable()) if only else query

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        return self.computed(plan, self.input_new(plan, only))

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        only = only and only.to(self.keys)
        query = self.input.old(plan, only)
        if only:
            query = plan.target.restricted(query, [*names(self.input.columns), W], only, self._nullable())
        return select(
            [*names(self.columns), f"1::bigint AS {W}"],
            derived(self.computed(plan, counted_out(query, self.input.columns, plan.target.copies)), "g"),
        )

    def delta(self, plan: Plan) -> str:
        changes = select(["*"], plan.cte(plan.fresh("changes"), bounded(plan, self, self.input.delta(plan))))
        touched = self._touched(plan, changes)
        members = select(["*"], plan.cte(plan.fresh("members"), self.input_new(plan, self.at(touched))))
        return self.recomputed(plan, touched, members, changes)

    def recomputed(self, plan: Plan, touched: str, members: str, changes: str) -> str:
        """The delta of touched groups: their rows from the ``members`` of now, less those from the members before.

        The old members are the new ones less the ``changes``, all of which are in these groups.
        """
        columns = names(self.input.columns)
        before = union_all(
            [
                select([*columns, f"1::bigint AS {W}"], derived(members, "m")),
                select([*columns, f"-{W} AS {W}"], derived(changes, "c")),
            ]
        )
        # Where there are no keys there may be a row in any case: it matters only if something was touched.
        gate = [f"EXISTS (SELECT FROM {touched})"]
        after = derived(self.computed(plan, members), "n")
        return union_all(
            [
                select([*names(self.columns), f"1::bigint AS {W}"], after, where=gate),
                select(
                    [*names(self.columns), f"-1::bigint AS {W}"],
                    derived(self.computed(plan, counted_out(before, self.input.columns, plan.target.copies)), "o"),
                    where=gate,
                ),
            ]
        )


@dataclass(frozen=True, slots=True)
class KeepsRows(RecomputeGroups):
    """An operator whose rows are rows of its only input, each at most once, possibly with further columns."""

    def row_key(self) -> list[tuple[int, str]] | None:
        return self.input.row_key()
