"""What an operator is told when it is asked for a delta or a state: what has changed, and where the answer goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

from sql.operators.statement import Statement
from sql.operators.targets.target import Target

Memo = TypeVar("Memo")


class Bound(Protocol):
    """What leaves out rows of a delta that cannot matter; see `semi_join_reduction`."""

    def sql(self, plan: Plan, alias: str) -> str:
        """The condition that a row with this alias matters."""


@dataclass(frozen=True, slots=True)
class TreeFacts:
    """What is known of the operators of a tree before anything is written, by their `Operator.node`."""

    bounds: Mapping[int, Sequence[Bound]] = field(default_factory=dict)
    """What bounds the deltas of operators, see `semi_join_reduction`."""
    whole: frozenset[int] = frozenset()
    """Aggregates of which all groups are read in any case, see `linear_aggregate`."""
    narrowed: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """The columns of joins that are read, see `column_pruning`."""
    remembered: Mapping[int, str] = field(default_factory=dict)
    """The names under which something of operators is remembered, see `cached_accumulators` and `threshold_band`."""
    pushed: frozenset[int] = frozenset()
    """Scans whose changes in buffers are read under all conditions on their rows, see `predicate_pushdown`."""
    running: Mapping[int, str] = field(default_factory=dict)
    """Queries of what the touched groups of aggregates are made of, and were, see `tick_accumulators`."""


@dataclass(slots=True)
class Plan:
    """One evaluation of a tree: the sources that have changed, the facts of the tree, and the statement.

    The changes of ``streamed`` sources are read straight from their buffers, once and as captured: whoever reads them
    adds weights up anyway.
    """

    changed: frozenset[int]
    streamed: frozenset[int] = frozenset()
    facts: TreeFacts = field(default_factory=TreeFacts)
    statement: Statement = field(default_factory=Statement)
    usual: bool = False
    """Whether what is hardly ever needed is left out; `Statement.violations` tell where it would be needed."""
    quick: bool = False
    """Whether what is written is hardly ever executed, and should above all be quick to plan."""
    late: frozenset[int] = frozenset()
    """The sources whose latest changes are not in their buffers yet, see `late_changes`."""
    bounded: bool = False
    """Whether recursions are followed only so deep, see `recursion.rounds`."""
    given: frozenset[int] = frozenset()
    """Scans whose delta satisfies all that is said of their rows alone: nobody need say it again."""
    _memos: dict[type[object], object] = field(default_factory=dict)

    def memo(self, kind: type[Memo]) -> Memo:
        """What the rules of an operator have noted for later ones of the same statement: private to their module."""
        return cast(Memo, self._memos.setdefault(kind, kind()))

    @property
    def target(self) -> Target:
        """What is written now is for it."""
        return self.statement.target

    def fresh(self, prefix: str) -> str:
        """A name nothing else in the statement has."""
        return self.statement.fresh(prefix)

    def cte(self, name: str, query: str, *, materialized: bool | None = True) -> str:
        """Add a common table expression and return its quoted name; ``materialized``: None if it is read once."""
        return self.statement.cte(name, query, materialized=materialized)


NOTHING = Plan(frozenset())
"""For rows as they are, which need no common table expressions where nothing has changed."""
