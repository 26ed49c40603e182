"""Semi-join and anti-join: the rows of the left input that match some row of the right, or that match none.

With ``m_new(l)`` and ``m_old(l)`` for "l matches a row of the right input now / at the frontier",

    Δ(L ⋉ R) = ΔL · [m_old] + Σ over rows l of new(L) that match some row of ΔR: [m_new] - [m_old]
    Δ(L ▷ R) = ΔL - Δ(L ⋉ R)

No old state is read: the matches at the frontier are those of now less the weights of the matches in ΔR. Matches are
counted once for all left rows that agree in the columns that the conditions mention, and only the part of ΔR that is
in these columns matters. If R has one row, whatever it is made of, and nothing is equated with it, no matches are
counted: the rows of new(L) are those that compare otherwise with that row now than with the one before. Where that is
told by one value a refresh hands on to the next which rows may do so, see `threshold_band`.
``old(Q) = new(Q) - ΔQ``.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from sqlglot import exp

from sql.base.columns import Field, equality_is_identity
from sql.base.consolidate import consolidated
from sql.base.identity import content_partition
from sql.base.text import all_of, derived, quote, select, union_all
from sql.canonical.row_expressions import equated
from sql.operators.aggregates.aggregate import Aggregate
from sql.operators.joins.match import Match
from sql.operators.joins.threshold_band import ThresholdBand, threshold_band
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.pass_through import PassThrough
from sql.operators.plan import Plan
from sql.operators.project import Project
from sql.operators.shared import shared_delta

N = quote("__pgt_n")


@dataclass(frozen=True, slots=True)
class Matching(Operator):
    """``conditions`` are ANDed and speak of both inputs' columns, whose names differ. The columns are the left's."""

    left: Operator
    right: Operator
    conditions: tuple[exp.Expr, ...]

    @property
    @abstractmethod
    def wanted(self) -> bool:
        """Whether rows with a match are in the result, or those without."""

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        return self.left.columns

    @property
    def inputs(self) -> tuple[Operator, ...]:
        return (self.left, self.right)

    def row_key(self) -> list[tuple[int, str]] | None:
        return self.left.row_key()

    @property
    def match(self) -> Match:
        """The conditions between the inputs."""
        return Match(self.conditions, self.left.columns, self.right.columns)

    def _chosen(self, plan: Plan, left: str, right: str, *weight: str) -> str:
        exists = f"EXISTS ({select([], derived(right, 'r'), where=[self.match.sql(plan)])})"
        columns = [f"l.{name}" for name in names(self.left.columns)]
        return select([*columns, *weight], derived(left, "l"), where=[exists if self.wanted else f"NOT {exists}"])

    def new(self, plan: Plan, only: Restriction | None = None) -> str:
        left, through = self.match.restricted(plan, self.left, self.right, only)
        return self._chosen(plan, left, self.right.new(plan, through))

    def old(self, plan: Plan, only: Restriction | None = None) -> str:
        columns = names(self.columns)
        delta = select([*columns, f"-{W} AS {W}"], derived(shared_delta(plan, self), "d"))
        return union_all([select([*columns, f"1::bigint AS {W}"], derived(self.new(plan, only), "n")), delta])

    def delta(self, plan: Plan) -> str:
        match = self.match
        left = shared_delta(plan, self.left) if self.left.changed(plan) else None
        if not self.right.changed(plan):
            assert left is not None
            if (band := self._band(plan)) is not None:
                band.kept(plan, left)
            only = match.mirrored().keys(plan, left) if self.right.barrier else None
            return self._chosen(plan, left, self.right.new(plan, only), f"l.{W}")
        streamed = self.right.sources <= plan.streamed
        right = self.right.delta(plan) if streamed else shared_delta(plan, self.right)
        changes = select(["*"], plan.cte(plan.fresh("changes"), consolidated(right, match.right_used)))
        columns = names(self.left.columns)
        if self.with_one_row:
            by_values = self._delta_by_values(plan, left, changes)
            if by_values is not None:
                return by_values
        state = derived(match.matched(plan, self.left, changes, single=_one_row(self.right)), "l")
        candidates = [select([*columns, f"NULL::bigint AS {W}"], state)]
        if left is not None:
            candidates.append(select([*columns, W], derived(left, "l")))
        every = derived(union_all(candidates), "u")
        numbers = [] if self._told_by(plan) != [N] else [f"{_rank(match.left_used) if match.left_used else '1'} AS {N}"]
        rows = plan.cte(plan.fresh("rows"), select(["u.*", *numbers], every))
        counts = self._counts(plan, rows, changes)
        before, now = ("was", "now") if self.wanted else ("was IS NOT TRUE", "now IS NOT TRUE")
        weight = f"coalesce(c.{W}, ({now})::integer - ({before})::integer)"
        # A NULL that is compared for equality finds no counts, and no match.
        return select(
            [*(f"c.{name}" for name in columns), f"{weight} AS {W}"],
            f"{rows} AS c LEFT JOIN {counts} AS m ON {self._agree(plan, 'm', 'c')}",
            where=[f"CASE WHEN c.{W} IS NULL THEN was <> now ELSE {before} END"],
        )

    def _delta_by_values(self, plan: Plan, left: str | None, changes: str) -> str | None:
        """The delta where the right input has one row: no matches need be counted.

        Its ``changes`` are the row before and the row now, or nothing. None if no expression can hold a query.
        """
        match, columns = self.match, names(self.left.columns)
        come = select(["d.*"], derived(changes, "d"), where=[f"d.{W} > 0"])
        now = match.with_values(plan, come)
        if now is None:
            return None
        holds = f"({now}) IS TRUE"
        weight = f"CASE WHEN {holds} THEN 1 ELSE -1 END" if self.wanted else f"CASE WHEN {holds} THEN -1 ELSE 1 END"
        crossing, band = match.matched(plan, self.left, changes, single=True), self._band(plan)
        if band is not None:
            crossing = band.crossed(plan, left, changes, crossing)
        terms = [select([*columns, f"({weight})::bigint AS {W}"], derived(crossing, "l"))]
        if left is not None:
            values, none = names(match.right_used), f"NOT EXISTS ({select([], derived(changes, 'd'))})"
            gone = select(values, derived(changes, "d"), where=[f"d.{W} < 0"])
            same = select(values, derived(self.right.new(plan), "r"), where=[none])
            before = plan.cte(plan.fresh("before"), union_all([gone, same]))
            held = f"({match.with_values(plan, select(['*'], before))}) IS TRUE"
            terms.append(select([*columns, W], derived(left, "l"), where=[held if self.wanted else f"NOT {held}"]))
        return union_all(terms)

    @property
    def with_one_row(self) -> bool:
        """Whether the right input has one row, whatever it is made of, and nothing is equated with it."""
        match = self.match
        return _one_row(self.right) and bool(match.right_used) and not match.pairs

    def _band(self, plan: Plan) -> ThresholdBand | None:
        name = plan.facts.remembered.get(self.node)
        return None if name is None else threshold_band(self.left, self.match, name)

    def _counts(self, plan: Plan, rows: str, changes: str) -> str:
        """A CTE: for each distinct content of the columns that decide, whether it had a match, and whether it has."""
        match, told_by = self.match, self._told_by(plan)
        columns = list(dict.fromkeys([*told_by, *names(match.left_used)]))
        one = plan.target.one_of_each(N, columns, rows) if told_by == [N] else select(columns, rows, distinct=True)
        distinct = plan.cte(plan.fresh("distinct"), one)
        contents = [f"d.{name}" for name in told_by]
        changed = select(
            [*contents, f"pg_catalog.sum(r.{W})::bigint AS n"],
            f"{distinct} AS d CROSS JOIN {derived(changes, 'r')}",
            where=[match.sql(plan)],
            group_by=contents,
        )
        net = plan.cte(plan.fresh("net"), changed)
        keys = select(names(match.left_used), f"{distinct} AS k")
        only = match.mirrored().keys(plan, keys) if self.right.barrier else None
        right = self.right.new(plan, only)
        # All rows of the left have the same matches: one more than what has come tells what there was.
        enough = plan.target.value(f"SELECT greatest(coalesce(pg_catalog.max(n.n), 0), 0) + 1 FROM {net} AS n")
        if match.left_used or enough is None:
            present = select(
                [*contents, "pg_catalog.count(*) AS n"],
                f"{distinct} AS d CROSS JOIN {derived(right, 'r')}",
                where=[match.sql(plan)],
                group_by=contents,
            )
        else:
            some = f"{select([], derived(right, 'r'), where=[match.sql(plan)])} LIMIT {enough}"
            present = select([f"d.{N}", f"(SELECT pg_catalog.count(*) FROM ({some}) AS s) AS n"], f"{distinct} AS d")
        return plan.cte(
            plan.fresh("matches"),
            select(
                [*contents, "coalesce(p.n, 0) > coalesce(n.n, 0) AS was", "coalesce(p.n, 0) > 0 AS now"],
                f"{distinct} AS d LEFT JOIN {derived(present, 'p')} ON {self._agree(plan, 'p', 'd')}"
                f" LEFT JOIN {net} AS n ON {self._agree(plan, 'n', 'd')}",
            ),
        )

    def _told_by(self, plan: Plan) -> list[str]:
        """The columns that tell apart the contents that decide; a number where PostgreSQL could not join by them."""
        used = self.match.left_used
        return names(used) if used and plan.target.joins_by_contents(plain=self._plain) else [N]

    @property
    def _plain(self) -> bool:
        """Whether contents that decide differ in the sense of ``=``, or hold a NULL and match nothing."""
        equal = {pair.left_field for pair in self.match.pairs}
        return all(
            f.hashable and f.builtin and equality_is_identity(f) and (f.not_null or f in equal)
            for f in self.match.left_used
        )

    def _agree(self, plan: Plan, left: str, right: str) -> str:
        told_by = self._told_by(plan)
        if told_by == [N]:
            return f"{left}.{N} = {right}.{N}"
        return all_of([plan.target.same(f"{left}.{name}", f"{right}.{name}") for name in told_by])


@dataclass(frozen=True, slots=True)
class SemiJoin(Matching):
    """``L ⋉ R``: the rows of the left input that match a row of the right."""

    @property
    def wanted(self) -> bool:
        return True

    @property
    def columns(self) -> tuple[Field, ...]:  # type: ignore[override]
        sure = {name for condition in self.conditions for name in equated(condition)}
        return tuple(f.where_not_null() if f.name in sure else f for f in self.left.columns)

    def describe(self) -> str:
        return "Semi-join"


@dataclass(frozen=True, slots=True)
class AntiJoin(Matching):
    """``L ▷ R``: the rows of the left input that match no row of the right."""

    @property
    def wanted(self) -> bool:
        return False

    def describe(self) -> str:
        return "Anti-join"


def _one_row(operator: Operator) -> bool:
    """Whether an operator has one row, whatever its input, so that its delta has two at most."""
    while isinstance(operator, Project | PassThrough):
        operator = operator.input
    return isinstance(operator, Aggregate) and not operator.grouped


def _rank(fields: tuple[Field, ...]) -> str:
    return f"pg_catalog.dense_rank() OVER (ORDER BY {', '.join(content_partition(fields, 'u'))})"
