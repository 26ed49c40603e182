"""Window: window functions of one PARTITION BY list, in any orders and frames.

Delta and old state are those of `recompute_groups`, the key being the partition: the functions are computed again over
the partitions that changed, as they are and as they were.

What SQL leaves open among peers is decided by key or content (see `ordering`), and peers stay peers where they count:

- a function that depends on peers only as a set (``rank``, ``count``, a sum of integers) keeps its ORDER BY;
- one that depends on the order of rows, over a frame that does not look at peers (``row_number``, ``lag``, ROWS), gets
  a total order: its ORDER BY, then what tells rows apart;
- one that depends on the order of rows, over a frame that does look at peers (``array_agg`` in RANGE, GROUPS or with
  EXCLUDE TIES), keeps its ORDER BY, and reads rows that are already sorted by the total order: PostgreSQL does not sort
  again what is sorted by more than it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlglot import exp

from sql.base.columns import Field
from sql.base.consolidate import consolidated
from sql.base.text import aliased, derived, quote, select
from sql.canonical.dialect import generate
from sql.operators.aggregates.recompute_groups import KeepsRows
from sql.operators.operator import Restriction, names
from sql.operators.ordering import SortKey, order_by, tie_break
from sql.operators.plan import Plan

POSITION = quote("__pgt_position")

FIRST, LAST, CURRENT = "UNBOUNDED PRECEDING", "UNBOUNDED FOLLOWING", "CURRENT ROW"

_POSITIONS = frozenset({"row_number", "ntile", "lag", "lead"})
"""Functions of a row's position in its partition, whatever the frame."""

_PEERS = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})
"""Functions of the peers' position in their partition, whatever the frame."""

_SETS = frozenset({"count", "bool_and", "bool_or", "every", "bit_and", "bit_or", "bit_xor"})
"""Aggregates that the order of rows makes no difference to."""

_SUMS = frozenset({"sum", "avg", "stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp"})
"""Aggregates that the order of rows makes no difference to if addition is associative."""

_EXACT = frozenset({"smallint", "integer", "bigint", "numeric", "money"})


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame clause: ROWS, RANGE or GROUPS, its bounds, and what it excludes."""

    kind: str = "RANGE"
    start: str = FIRST
    end: str = CURRENT
    exclude: str = "NO OTHERS"

    @property
    def sql(self) -> str:
        """The frame as PostgreSQL writes it; nothing for the default."""
        if self == Frame():
            return ""
        exclude = "" if self.exclude == "NO OTHERS" else f" EXCLUDE {self.exclude}"
        return f" {self.kind} BETWEEN {self.start} AND {self.end}{exclude}"

    def by_rows(self, function: str, *, ordered: bool) -> Frame | None:
        """A ROWS frame in a total order that gives a function the same rows; None if there is none.

        >>> Frame().by_rows("sum", ordered=False)
        Frame(kind='ROWS', start='UNBOUNDED PRECEDING', end='UNBOUNDED FOLLOWING', exclude='NO OTHERS')
        >>> Frame().by_rows("sum", ordered=True) is None
        True
        """
        if self.exclude in ("GROUP", "TIES"):
            return None
        if self.kind == "ROWS":
            return self
        from_first = self.start == FIRST or (self.start == CURRENT and not ordered)
        to_last = self.end == LAST or (self.end == CURRENT and not ordered)
        if from_first and to_last:
            return replace(self, kind="ROWS", start=FIRST, end=LAST)
        # The first row and the last one are whose the peers' are, wherever the frame ends on the other side.
        if function == "first_value" and self == Frame():
            return Frame("ROWS", FIRST, CURRENT)
        if function == "last_value" and self == Frame("RANGE", CURRENT, LAST):
            return Frame("ROWS", CURRENT, LAST)
        return None


@dataclass(frozen=True, slots=True)
class WindowCall:
    """A window function call. ``function`` speaks of the input's columns, its FILTER clause included."""

    column: Field
    name: str
    function: exp.Expr
    arguments: tuple[Field, ...]
    order: tuple[SortKey, ...]
    frame: Frame

    @property
    def orderly(self) -> bool:
        """Whether the order of peers makes a difference."""
        if self.name in _PEERS:
            return False
        if self.frame.kind == "ROWS" and (self.frame.start, self.frame.end) != (FIRST, LAST):
            return True
        if self.name in _SETS:
            return False
        if self.name in _SUMS:
            return not all(argument.base_type in _EXACT for argument in self.arguments)
        if self.name in ("min", "max"):
            return not all(argument.equality_is_identity for argument in self.arguments)
        return True

    def over(self, keys: Sequence[Field], order: Sequence[str], frame: Frame | None) -> str:
        """The call over a window, named as its column."""
        clauses = [f"PARTITION BY {', '.join(names(keys))}"] if keys else []
        text = "".join(clauses) + order_by(order) + (frame.sql if frame else "")
        return aliased(f"{generate(self.function)} OVER ({text.strip()})", self.column.name)

    def describe(self) -> str:
        """The call in short."""
        return self.name


@dataclass(frozen=True, slots=True)
class Window(KeepsRows):
    """Adds the ``calls`` to each row; ``keys`` are the partition, none of them being one partition of everything."""

    calls: tuple[WindowCall, ...]

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.input.columns + tuple(call.column for call in self.calls)

    def computed(self, plan: Plan, rows: str) -> str:
        ties = tie_break(self.input.telling(), self.keys)
        sorts = {(call.order, self._total_frame(call)) for call in self.calls if self._tied(call)}
        if len(sorts) > 1 and not self.input.told_apart(self.input.columns):
            # Rows that look the same are in the same order for all calls.
            by = f"PARTITION BY {', '.join(names(self.keys))}" if self.keys else ""
            position = f"pg_catalog.row_number() OVER ({by}{order_by(ties)}) AS {POSITION}"
            rows, ties = select(["*", position], derived(rows, "n")), [POSITION]
        at_once: list[str] = []
        sorted_first: dict[tuple[SortKey, ...], list[str]] = {}
        for call in self.calls:
            order = [key.sql() for key in call.order]
            frame = None if call.name in _POSITIONS | _PEERS else call.frame
            if not self._tied(call):
                at_once.append(call.over(self.keys, order, frame))
            elif total := self._total_frame(call):
                at_once.append(call.over(self.keys, [*order, *ties], frame and total))
            else:
                sorted_first.setdefault(call.order, []).append(call.over(self.keys, order, frame))
        query = select(["*", *at_once], derived(rows, "w"))
        for keys, calls in sorted_first.items():
            by_all = [*names(self.keys), *(key.sql() for key in keys), *ties]
            query = select(["*", *calls], derived(select(["*"], derived(query, "s")) + order_by(by_all), "w"))
        return select(names(self.columns), derived(query, "c"))

    def input_new(self, plan: Plan, only: Restriction | None, *, rare: bool = False) -> str:
        """Whole partitions, also where the restriction speaks of other columns: those that have one of its rows."""
        some = only and only.to(self.input.columns)
        if some and self.keys and not some.to(self.keys):
            nullable = [column.name for column in self.input.columns if not column.not_null]
            rows = plan.target.restricted(self.input.new(plan, some), names(self.input.columns), some, nullable)
            partitions = select(names(self.keys), derived(rows, "r"), distinct=True)
            only = self.at(plan.cte(plan.fresh("partitions"), partitions))
        return KeepsRows.input_new(self, plan, only, rare=rare)

    def delta(self, plan: Plan) -> str:
        """Rows of a partition that stay as they are do not reach the operators above."""
        return consolidated(KeepsRows.delta(self, plan), self.columns)

    def _tied(self, call: WindowCall) -> bool:
        """Whether SQL leaves the call's result open."""
        return call.orderly and not self.input.told_apart([*self.keys, *(key.column for key in call.order)])

    def _total_frame(self, call: WindowCall) -> Frame | None:
        """The frame of a call whose ORDER BY becomes a total order, None if peers must stay peers."""
        return Frame() if call.name in _POSITIONS else call.frame.by_rows(call.name, ordered=bool(call.order))

    @property
    def partition(self) -> str:
        """The PARTITION BY list in the words of the query, as far as it is columns."""
        keys = [key.origin[1] if key.origin else "expression" for key in self.keys]
        return f"PARTITION BY {', '.join(keys)}" if keys else ""

    def describe(self) -> str:
        return f"Window({' '.join(filter(None, (', '.join(call.describe() for call in self.calls), self.partition)))})"
