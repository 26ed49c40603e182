"""The statement of a fixpoint's delta: of a recursion whose rows at the frontier are stored.

The recursion is ``P = B + R(P)`` (UNION ALL) or ``P = δ(B + R(P))`` (UNION), where R joins P once with *sides* X, which
do not depend on P. ``X⁺`` and ``X⁻`` are the rows that have come to a side and gone from it, ``X_mid = X_new - X⁺``.

UNION ALL counts derivations, of which each is a row. What goes is propagated through what stays, what comes through
what is there now (semi-naive evaluation), so that both end where the recursion itself does:

    D = B⁻ + (R_old - R_mid)(P_old) + R_mid(D)
    I = B⁺ + (R_new - R_mid)(P_old - D) + R_new(I)          ΔP = I - D

UNION deletes and rederives (A. Gupta, I. Mumick, V. Subrahmanian: *Maintaining Views Incrementally*, SIGMOD 1993):

    D = rows of P_old in B⁻, in R with some side's X⁻ over P_old, or in R(D)
    K = P_old - D                                           what has a derivation that nothing of this touches
    A = rows not in K in B⁺, in D ∩ B, in D ∩ R(K), in R with some side's X⁺ over K, or in R(A)      ΔP = A - D

An insert alone leaves D empty: then this is semi-naive evaluation, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sql.base.consolidate import consolidated
from sql.base.identity import content_hash, same_content
from sql.base.text import derived, quote, repeated, select, union_all
from sql.operators.input import Input, substituted
from sql.operators.operator import Operator, Restriction, W, names
from sql.operators.plan import Plan
from sql.operators.recursion.fixpoint import Fixpoint, Stored, Term
from sql.operators.recursion.rounds import counted
from sql.operators.scan import Scan

HASH = quote("__pgt_hash")
_WORKING = -1
"""In place of a source's oid: the rows that the recursion has come to."""


def fixpoint_delta(fixpoint: Fixpoint, plan: Plan, stored: Stored) -> str | None:
    """The recursion's changes; None where the term is not monotone in what has changed."""
    sides = fixpoint.sides()
    if sides is None or not fixpoint.monotone(plan):
        return None
    delta = _FixpointDelta(fixpoint, plan, stored, sides)
    try:
        return delta.query() if delta.changes or delta.base else None
    except _NestedError:
        return None


class _NestedError(Exception):
    """An operator of the term needs a common table expression where there can be none."""


class _FixpointDelta:
    """The statement's common table expressions for one delta."""

    def __init__(self, fixpoint: Fixpoint, plan: Plan, stored: Stored, sides: Sequence[Operator]):
        self.fixpoint, self.plan, self.stored, self.sides = fixpoint, plan, stored, sides
        self.columns = fixpoint.columns
        self.names = names(self.columns)
        self.changes = {
            i: plan.cte(plan.fresh("side"), consolidated(side.delta(plan), side.columns))
            for i, side in enumerate(sides)
            if side.changed(plan)
        }
        self.now = [self._now(side) for side in sides]
        base = fixpoint.base
        self.base = None
        if base.operator.changed(plan):
            self.base = plan.cte(
                plan.fresh("base"), consolidated(self._placed(base, base.operator.delta(plan), W), self.columns)
            )

    def query(self) -> str:
        """The changes with weights."""
        gone, come = self._rederived() if self.fixpoint.distinct else self._counted()
        return union_all(
            [
                select([*self.names, f"{weight} AS {W}"], derived(rows, "r"))
                for rows, weight in ((gone, f"-{W}"), (come, W))
            ]
        )

    def _now(self, side: Operator) -> str:
        query = side.new(self.plan)
        # What PostgreSQL cannot look into would be computed in each round.
        return select(["*"], self.plan.cte(self.plan.fresh("side"), query)) if side.barrier else query

    def _placed(self, term: Term, query: str, *weight: str) -> str:
        """A term's rows as the recursion's."""
        columns = [
            f"t.{quote(f.name)}::{c.type} AS {n}" for f, c, n in zip(term.fields, self.columns, self.names, strict=True)
        ]
        return select([*columns, *(f"t.{w}" for w in weight)], derived(query, "t"))

    def _step(self, working: Input, sides: Callable[[int], Input]) -> Operator:
        others: dict[int, Operator] = {side.node: sides(i) for i, side in enumerate(self.sides)}
        given = replace(working, columns=self.fixpoint.working.columns)
        return substituted(self.fixpoint.step.operator, {**others, self.fixpoint.working.node: given})

    def _working(self, relation: str, alias: str = "w") -> str:
        """A relation with the recursion's columns as the working table's rows."""
        mine = self.fixpoint.working.columns
        columns = [f"{alias}.{n} AS {quote(f.name)}" for n, f in zip(self.names, mine, strict=True)]
        return select(columns, f"{relation} AS {alias}")

    def _inside(self, render: Callable[[Plan], str]) -> str:
        """A query inside a recursion, where there can be no common table expressions."""
        plan = Plan(frozenset({_WORKING}))
        query = render(plan)
        if plan.statement.ctes:
            raise _NestedError
        return query

    def _side(self, i: int, rows: str, changes: str = "") -> Input:
        side = self.sides[i]
        return Input(side.columns, rows, changes, side.sources & self.plan.changed if changes else frozenset())

    def _part(self, i: int, sign: str) -> str:
        """The rows of a side that have come (>) or gone (<), with their weights."""
        return select(["*"], self.changes[i], where=[f"{W} {sign} 0"])

    def _repeated(self, i: int, sign: str) -> str:
        columns = names(self.sides[i].columns)
        repeat = f"CROSS JOIN {repeated(f'pg_catalog.abs(c.{W})')} AS r"
        return select([f"c.{n}" for n in columns], f"{self.changes[i]} AS c {repeat}", where=[f"c.{W} {sign} 0"])

    def _old_rows(self) -> str:
        return select(
            [f"s.{quote(name)} AS {quote(f.name)}" for name, f in self.stored.columns] + [f"s.{HASH}"],
            f"{self.stored.table} AS s",
        )

    # UNION ALL: derivations are counted.

    def _counted(self) -> tuple[str, str]:
        plan, columns = self.plan, self.columns
        old = f"({self._old_rows()})"
        mid = {i: self._mid(i) for i in self.changes}
        before = [self._derived(old, mid.__getitem__, "<", "-")] if self.changes else []
        if self.base:
            before.append(select([*self.names, f"-{W} AS {W}"], self.base, where=[f"{W} < 0"]))
        seeds = plan.cte(plan.fresh("seeds"), consolidated(union_all(before), columns))
        gone = self._propagated(seeds, lambda i: self._side(i, mid.get(i, self.now[i])))
        after = []
        if self.changes:
            repeat = f"CROSS JOIN {repeated(f'g.{W}')} AS r"
            minus = select([f"g.{n}" for n in self.names], f"{gone} AS g {repeat}")
            after = [
                self._derived(old, self.now.__getitem__, ">", ""),
                self._derived(f"({minus})", self.now.__getitem__, ">", "-"),
            ]
        if self.base:
            after.append(select([*self.names, W], self.base, where=[f"{W} > 0"]))
        seeds = plan.cte(plan.fresh("seeds"), consolidated(union_all(after), columns))
        come = self._propagated(seeds, lambda i: self._side(i, self.now[i]))
        return select(["*"], gone), select(["*"], come)

    def _derived(self, working: str, rows: Callable[[int], str], sign: str, negated: str) -> str:
        """What the changes of the sides make of some rows of the recursion."""
        step = self._step(
            Input((), self._working(working)),
            lambda i: self._side(i, rows(i), self._part(i, sign)) if i in self.changes else self._side(i, self.now[i]),
        )
        query = self._placed(self.fixpoint.step, step.delta(self.plan), W)
        return select([*self.names, f"{negated}{W} AS {W}"], derived(query, "q"))

    def _propagated(self, seeds: str, sides: Callable[[int], Input]) -> str:
        """A CTE: some rows with their weights, and all that the step makes of them."""
        mine = self.fixpoint.working.columns
        working = select(
            [f"w.{n} AS {quote(f.name)}" for n, f in zip(self.names, mine, strict=True)] + [f"w.{W}"],
            f"{quote('__pgt_work')} AS w",
        )
        step = self._step(Input((), "", working, frozenset({_WORKING})), sides)
        term = self._inside(lambda plan: self._placed(self.fixpoint.step, step.delta(plan), W))
        first = select([*self._cast("s"), f"s.{W}"], f"{seeds} AS s")
        return self._recursive("UNION ALL", [*self.names, W], first, term)

    def _mid(self, i: int) -> str:
        """The rows of a side that were there before and are still."""
        side, changes = self.sides[i], self.changes[i]
        columns = names(side.columns)
        if isinstance(side, Scan):
            key = [f for f in side.columns if f.origin and f.origin[1] in side.source.key and f.builtin]
            if key and len(key) == len(side.source.key):
                same = [f"c.{n} = x.{n}" for n in names(key)]
                come = select([], f"{changes} AS c", where=[f"c.{W} > 0", *same])
                return select([f"x.{n}" for n in columns], derived(self.now[i], "x"), where=[f"NOT EXISTS ({come})"])
        hashes = content_hash(side.columns, "c", "0"), content_hash(side.columns, "x", "0")
        same = [f"{hashes[0]} = {hashes[1]}", same_content(side.columns, "c", "x")]
        come = select([], f"{changes} AS c", where=[f"c.{W} > 0", *same])
        others = select([f"x.{n}" for n in columns], derived(self.now[i], "x"), where=[f"NOT EXISTS ({come})"])
        # Of a row that has come there may have been copies before.
        copies = select(
            [*(f"x.{n}" for n in columns), f"1::bigint AS {W}"],
            f"{derived(self.now[i], 'x')} JOIN {changes} AS c ON c.{W} > 0 AND {' AND '.join(same)}",
        )
        minus = select([*columns, f"-{W} AS {W}"], changes, where=[f"{W} > 0"])
        net = self.plan.cte(self.plan.fresh("copies"), consolidated(union_all([copies, minus]), side.columns))
        repeat = f"CROSS JOIN {repeated(f'n.{W}')} AS r"
        return union_all([others, select([f"n.{n}" for n in columns], f"{net} AS n {repeat}")])

    # UNION: deleted and derived again.

    def _rederived(self) -> tuple[str, str]:
        plan = self.plan
        old = f"({self._old_rows()})"
        gone = self._deleted()
        kept = select(
            ["s.*"], f"{old} AS s", where=[f"NOT EXISTS ({select([], f'{gone} AS d', where=[self._same('d', 's')])})"]
        )
        seeds = [self._through(kept, i, ">") for i in self.changes]
        if self.base:
            seeds.append(select(self.names, self.base, where=[f"{W} > 0"]))
        there = [f"EXISTS (SELECT FROM {gone})"]
        again = self._step(Input((), self._working(f"({kept})")), lambda i: self._side(i, self.now[i])).new(plan)
        base = self.fixpoint.base
        for query in (self._placed(self.fixpoint.step, again), self._placed(base, base.operator.new(plan))):
            seeds.append(select(self.names, derived(self._among(query, gone), "a"), where=there))
        first = plan.cte(plan.fresh("seeds"), self._absent(union_all(seeds), gone, distinct=True))
        step = self._step(Input((), self._working(quote("__pgt_work"))), lambda i: self._side(i, self.now[i]))
        term = self._inside(lambda inside: self._placed(self.fixpoint.step, step.new(inside)))
        come = self._recursive("UNION", self.names, select(self._cast("s"), f"{first} AS s"), self._absent(term, gone))
        weight = f"1::bigint AS {W}"
        return select([*self.names, weight], gone), select([*self.names, weight], come)

    def _deleted(self) -> str:
        """A CTE of the stored rows that have lost some derivation, with their hash."""
        seeds = [self._through(self._old_rows(), i, "<") for i in self.changes]
        if self.base:
            seeds.append(select(self.names, self.base, where=[f"{W} < 0"]))
        first = self.plan.cte(self.plan.fresh("seeds"), self._present(union_all(seeds), distinct=True))
        step = self._step(Input((), self._working(quote("__pgt_work"))), lambda i: self._side(i, self.now[i]))
        term = self._inside(lambda inside: self._placed(self.fixpoint.step, step.new(inside)))
        columns = [*self.names, HASH]
        return self._recursive(
            "UNION", columns, select([*self._cast("s"), f"s.{HASH}"], f"{first} AS s"), self._present(term)
        )

    def _through(self, working: str, i: int, sign: str) -> str:
        """What the step makes of some rows of the recursion and the rows that have come to one side or gone from it."""

        def given(j: int) -> Input:
            if j == i:
                return self._side(j, self._repeated(j, sign))
            rows = self.now[j]
            if sign == "<" and j in self.changes:
                rows = union_all([rows, self._repeated(j, "<")])
            return self._side(j, rows)

        step = self._step(Input((), self._working(f"({working})")), given)
        return self._placed(self.fixpoint.step, step.new(self.plan))

    def _present(self, rows: str, *, distinct: bool = False) -> str:
        """Those of some rows that are stored, with their hash."""
        return select(
            [*(f"x.{n}" for n in self.names), f"x.{HASH}"],
            self._hashed(rows),
            where=[f"{self._stored_hash()} IS NOT NULL"],
            distinct=distinct,
        )

    def _absent(self, rows: str, gone: str, *, distinct: bool = False) -> str:
        """Those of some rows that are not stored, or are among those gone."""
        return select(
            [f"x.{n}" for n in self.names],
            f"{self._hashed(rows)} LEFT JOIN {gone} AS d ON {self._same('x', 'd')}",
            where=[f"(d.{HASH} IS NOT NULL OR {self._stored_hash()} IS NULL)"],
            distinct=distinct,
        )

    def _stored_hash(self) -> str:
        # Not a join: these are few rows beside those stored, whatever PostgreSQL thinks a recursion comes to.
        found = select([f"s.{HASH}"], f"({self._old_rows()}) AS s", where=[self._same("x", "s")])
        return f"({found} LIMIT 1)"

    def _among(self, rows: str, gone: str) -> str:
        """Those of some rows that are in another relation."""
        sure = [f for f in self.fixpoint.not_null() if f.builtin]
        if not sure:
            only = Restriction(gone, tuple((f.name, f) for f in self.columns))
            return self.plan.target.restricted(rows, self.names, only, [f.name for f in self.columns])
        same = [f"x.{n} = k.{n}" for n in names(sure)]
        same.append(same_content([f for f in self.columns if f not in sure], "x", "k"))
        return select([f"x.{n}" for n in self.names], f"{derived(rows, 'x')} JOIN {gone} AS k ON {' AND '.join(same)}")

    def _hashed(self, rows: str) -> str:
        hashed = content_hash(self.stored.hashed, "h")
        whole = derived(self.stored.projected(rows), "h")
        return derived(select([*(f"h.{n}" for n in self.names), f"{hashed} AS {HASH}"], whole), "x")

    def _same(self, left: str, right: str) -> str:
        return f"{left}.{HASH} = {right}.{HASH} AND {same_content(self.columns, left, right)}"

    def _cast(self, alias: str) -> list[str]:
        return [f"{alias}.{n}::{c.type} AS {n}" for c, n in zip(self.columns, self.names, strict=True)]

    def _recursive(self, union: str, columns: Sequence[str], first: str, term: str) -> str:
        """A CTE that is recursive within itself."""
        work, name = quote("__pgt_work"), self.plan.fresh("fixpoint")
        if self.plan.bounded:
            first, term = counted(name, first, term)
        query = f"WITH RECURSIVE {work}({', '.join(columns)}) AS ({first} {union} {term}) SELECT * FROM {work}"
        return self.plan.cte(name, query)
