"""Running groups: what the groups of an aggregate are made of at one timestamp of the past after the other.

Nothing of a query that is followed is stored, so the touched groups of an aggregate are put together from all of their
rows. Where many timestamps are to be told one after the other, each would do so again. So what adds up is kept in a
temporary table: one row for each timestamp at which a group is touched, with its parts then and before. The rows of a
group are read when it is touched for the first time, and where parts do not say it (an extremum goes, NaN).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sql.base.consolidate import W, counted_out
from sql.base.identity import key_hash, same_key
from sql.base.text import any_of, derived, quote, select, union_all
from sql.operators import Aggregate
from sql.operators.aggregates.accumulators import Maintained, auxiliaries, state
from sql.operators.aggregates.linear_aggregate import addable, former, sums
from sql.operators.captured_changes import AT
from sql.operators.operator import names
from sql.operators.plan import NOTHING, Plan
from sql.operators.versions.versions import BUCKET, NOW


@dataclass(frozen=True, slots=True)
class Running:
    """The groups of an aggregate over version scans; ``original`` is the same over the tables as they are."""

    aggregate: Aggregate
    original: Aggregate
    parts: tuple[Maintained, ...]
    number: int

    @property
    def table(self) -> str:
        """The temporary table."""
        return quote("pg_temp", f"__pgt_groups_{self.number}")

    @property
    def groups(self) -> str:
        """A query: the groups touched at the timestamp."""
        return select(["g.*", "FALSE AS __pgt_doubt"], f"{self.table} AS g", where=[f"g.{quote(AT)} = {NOW}"])

    def create(self) -> tuple[str, ...]:
        """Statements that create the table, empty. For the role that is to fill and read it."""
        aggregate = self.original
        rows = state(aggregate.keys, self.parts, aggregate.input.new(NOTHING), grouped=aggregate.grouped)
        before = [f"q.{part} AS {name}" for part, name in zip(*self._columns, strict=True)]
        empty = select(
            [f"NULL::bigint AS {quote(BUCKET)}", f"NULL::bigint AS {quote(AT)}", "q.*", *before], derived(rows, "q")
        )
        return (
            f"CREATE TEMPORARY TABLE {self.table} ON COMMIT DROP AS {empty} WITH NO DATA",
            f"CREATE INDEX ON {self.table} ({quote(BUCKET)}, {quote(AT)})",
            f"CREATE INDEX ON {self.table} ({quote(AT)})",
        )

    def advance(self, plan: Plan) -> str:
        """Add the groups that are touched at the timestamp; returns, as jsonb, how many are left to `complete`."""
        here, were = self._columns
        merged, _ = self._merged(plan)
        sure = select(
            [self._bucket("m"), NOW, *(f"m.{column}" for column in (*names(self.aggregate.keys), *here, *were))],
            f"{merged} AS m",
            where=["m.__pgt_sure"],
        )
        self._add(plan, sure)
        return plan.statement.text(
            select(["pg_catalog.to_jsonb(pg_catalog.count(*))"], merged, where=["NOT __pgt_sure"])
        )

    def complete(self, plan: Plan) -> str:
        """Add those that `advance` has left, from their rows."""
        aggregate, keys = self.aggregate, names(self.aggregate.keys)
        here, were = self._columns
        merged, changes = self._merged(plan)
        again = plan.cte("__pgt_again", select([*keys, "__pgt_known"], merged, where=["NOT __pgt_sure"]))
        members = plan.cte("__pgt_members", aggregate.input_new(plan, aggregate.at(again)))
        columns = names(aggregate.input.columns)
        before = union_all(
            [
                select([*columns, f"1::bigint AS {W}"], members),
                select([*columns, f"-{W} AS {W}"], derived(aggregate.within(plan, changes, again, W), "c")),
            ]
        )
        unknown = f"EXISTS ({select([], again, where=['NOT __pgt_known'])})"
        now = self._state(select(["*"], members))
        then = select(["s.*"], derived(self._state(counted_out(before, aggregate.input.columns)), "s"), where=[unknown])
        rows = select(
            [self._bucket("m"), NOW, *(f"m.{key}" for key in keys), *(f"n.{name}" for name in here)]
            + [
                f"CASE WHEN m.__pgt_known THEN m.{name} ELSE b.{part} END"
                for name, part in zip(were, here, strict=True)
            ],
            f"{merged} AS m LEFT JOIN {derived(now, 'n')} ON {self._same('n')}"
            f" LEFT JOIN {derived(then, 'b')} ON {self._same('b')}",
            where=["NOT m.__pgt_sure"],
        )
        added = self._add(plan, rows)
        return plan.statement.text(select(["pg_catalog.to_jsonb(pg_catalog.count(*))"], added))

    def _merged(self, plan: Plan) -> tuple[str, str]:
        """A CTE of the touched groups, as far as addition says what they are made of; and the input's changes.

        Of those that are ``__pgt_sure`` it does. Of those that are ``__pgt_known`` what they were is right.
        """
        keys, made_of = self.aggregate.keys, auxiliaries(self.parts)
        changes, summed = sums(self.aggregate, self.parts, plan)
        same = [f"k.{quote(BUCKET)} = {self._bucket('d')}", same_key(keys, "k", "d"), f"k.{quote(AT)} < {NOW}"]
        last = f"{select(['k.*'], f'{self.table} AS k', where=same)} ORDER BY k.{quote(AT)} DESC LIMIT 1"
        rescan = any_of([f"coalesce({a.rescan}, FALSE)" for a in made_of if a.rescan])
        merged = select(
            [f"d.{key}" for key in names(keys)]
            + [f"{a.merge} AS {quote(a.name)}" for a in made_of]
            + [f"s.{quote(a.name)} AS {former(a)}" for a in made_of]
            + [f"s.{quote(BUCKET)} IS NOT NULL AS __pgt_known"]
            + [f"s.{quote(BUCKET)} IS NOT NULL AND NOT {rescan} AS __pgt_sure"],
            f"{summed} AS d LEFT JOIN LATERAL {derived(last, 's')} ON TRUE",
        )
        return plan.cte("__pgt_merged", merged), changes

    def _add(self, plan: Plan, rows: str) -> str:
        here, were = self._columns
        targets = [quote(BUCKET), quote(AT), *names(self.aggregate.keys), *here, *were]
        return plan.statement.modification(
            "__pgt_added", f"INSERT INTO {self.table} ({', '.join(targets)}) {rows} RETURNING 1"
        )

    @property
    def _columns(self) -> tuple[list[str], list[str]]:
        """The columns of what a group is made of, and of what it was made of before."""
        made_of = auxiliaries(self.parts)
        return [quote(a.name) for a in made_of], [former(a) for a in made_of]

    def _state(self, rows: str) -> str:
        return state(self.aggregate.keys, self.parts, rows, grouped=self.aggregate.grouped)

    def _bucket(self, alias: str) -> str:
        return key_hash(self.aggregate.keys, alias, "0") if self.aggregate.keys else "0::bigint"

    def _same(self, alias: str) -> str:
        return f"{self._bucket(alias)} = {self._bucket('m')} AND {same_key(self.aggregate.keys, alias, 'm')}"


def running(aggregates: Sequence[tuple[Aggregate, Aggregate]]) -> tuple[Running, ...]:
    """Those of the aggregates, each with the ``original``, whose groups can be kept."""
    found: list[Running] = []
    for aggregate, original in aggregates:
        parts = addable(aggregate)
        if parts is not None:
            found.append(Running(aggregate, original, parts, len(found)))
    return tuple(found)
