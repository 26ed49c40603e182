"""Semi-join reduction: what the other side of a join lets through of an operator's rows, before they are computed.

In ``A ⋈ (SELECT k, agg(x) FROM B GROUP BY k)`` the groups that no row of A asks for do not matter, now or before. So
where conditions make A smaller, the changes of B are reduced to A's keys before the touched groups are put together:
a semi-join with ``new(A) + ΔA``, which holds all rows that A has or had.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from sql.base.text import all_of, any_of, derived, quote, select, union_all
from sql.operators.operator import Operator
from sql.operators.plan import Plan


@dataclass(frozen=True, slots=True)
class SemiJoinReduction:
    """Rows whose columns ``pairs`` equate with no row of ``operator`` that satisfies the ``conditions`` do not matter.

    ``pairs`` maps columns of the bounded operator to those of ``operator``, of the same types.
    """

    operator: Operator
    conditions: tuple[exp.Expr, ...]
    pairs: tuple[tuple[str, str], ...]

    def to(self, columns: dict[str, str]) -> SemiJoinReduction | None:
        """The bound of an input, given under which names it has columns; what speaks of others is left out."""
        pairs = tuple((columns[mine], theirs) for mine, theirs in self.pairs if mine in columns)
        return replace(self, pairs=pairs) if pairs else None

    def sql(self, plan: Plan, alias: str) -> str:
        """The condition that a row with this alias matters."""
        columns = [quote(name) for name in dict.fromkeys(theirs for _, theirs in self.pairs)]
        where = [f"({plan.target.condition(condition)})" for condition in self.conditions]
        states = [self.operator.new(plan)]
        if self.operator.changed(plan):
            states.append(self.operator.delta(plan))
        rows = [select(columns, derived(state, "s"), where=where) for state in states]
        equal = [all_of([f"b.{quote(theirs)} = {alias}.{quote(mine)}" for mine, theirs in self.pairs])]
        if not (self._by_key and plan.target.one_statement):
            rows = [union_all(rows)]
        # PostgreSQL looks up no keys in a union. With OR it chooses to look them up or to hash all rows.
        return any_of([f"EXISTS ({select([], derived(query, 'b'), where=equal)})" for query in rows])

    @property
    def _by_key(self) -> bool:
        """Whether the columns have a primary key among them, so that there is an index to look up rows by."""
        compared = {theirs for _, theirs in self.pairs}
        return self.operator.told_apart([f for f in self.operator.columns if f.name in compared])


def bounded(plan: Plan, operator: Operator, changes: str) -> str:
    """Those changes of an operator's input that can matter to whoever reads the operator."""
    bounds = plan.facts.bounds.get(operator.node, ())
    return select(["d.*"], derived(changes, "d"), where=[b.sql(plan, "d") for b in bounds]) if bounds else changes
