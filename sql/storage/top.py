"""Top: the first n rows of a query in an order, kept up to date from its delta while that is enough.

Rows that are not stored come after the last one that is. So of the new rows up to that one all are known: they are the
stored ones less what has gone plus what has come. If there are still n of them, the first n are among them; likewise if
fewer than n rows were stored, which were all there were. Otherwise rows have to move up that are not known, and the
first rows are read again: the statement holds both ways, and takes the second only then. A `Reserve` of rows that are
known without being stored makes that rare; a usual statement does without the second way then.
"""

from __future__ import annotations

from dataclasses import dataclass

from sql.base.columns import Field
from sql.base.identity import content_groups
from sql.base.text import derived, quote, repeated, select, union_all
from sql.operators import Aggregate, Limit, Operator, Project
from sql.operators.aggregates.accumulators import COUNT
from sql.operators.aggregates.linear_aggregate import in_view, tell_stored
from sql.operators.operator import names
from sql.operators.ordering import order_by
from sql.operators.plan import Plan
from sql.storage.recomputed import Recomputed
from sql.storage.reserve import POSITION, Reserve
from sql.storage.shape import W, output_columns

STORED = quote("__pgt_stored")


@dataclass(frozen=True, slots=True)
class Top(Recomputed):
    """``fields`` are the query's columns under the names they are stored by; all columns of the limit's input."""

    limit: Limit
    fields: tuple[tuple[str, Field], ...]

    @property
    def summed(self) -> Operator | None:
        return self.limit.input

    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        limit = self.limit
        name = plan.facts.remembered.get(limit.node)
        reserve = Reserve(name, limit) if name else None
        full = f"(SELECT pg_catalog.count(*) FROM {storage}) >= {limit.count}"
        if reserve is not None:
            full = f"(SELECT there FROM {plan.cte('__pgt_full', f'SELECT {reserve.full(full)} AS there')})"
        stored = self._stored(plan, storage, reserve)
        self._give_groups(plan, stored, full)
        near = reserve.not_after(plan, stored, full) if reserve else []
        ranked = self._ranked(plan, stored, near)
        last = f"(SELECT pg_catalog.max({POSITION}) FROM {ranked} WHERE {STORED})"
        up_to_last = [f"(r.{POSITION} <= {last} OR NOT {full})"]
        left = select([f"coalesce(pg_catalog.sum(r.{W}), 0)"], f"{ranked} AS r", where=[f"r.{W} > 0", *up_to_last])
        # A row that goes and is not there: a stable function in the query gave it another value when it was stored.
        unknown = select([], f"{ranked} AS r", where=[f"r.{W} < 0", *up_to_last])
        enough = plan.cte(
            "__pgt_enough",
            f"SELECT (NOT {full} OR ({left}) >= {limit.count}) AND NOT EXISTS ({unknown}) AS enough",
        )
        enough = f"(SELECT enough FROM {enough})"
        copies = f"{ranked} AS r CROSS JOIN {repeated(f'r.{W}')} AS c"
        rows = select([f"r.{name}" for name in names(limit.columns)], copies, where=[f"r.{W} > 0", *up_to_last])
        if reserve is None:
            chosen = _either(enough, limit.computed(plan, rows), limit.new(plan))
        else:
            plan.statement.violated(f"NOT {enough}")
            first, complete = reserve.first(rows), f"NOT {full}"
            if not plan.usual:
                first = _either(enough, first, reserve.first(limit.input.new(plan)))
                complete = f"NOT ({full} AND {enough})"
            chosen = reserve.hand_on(plan, first, complete)
        return self.base.apply_full(plan, storage, select(output_columns(self.fields), derived(chosen, "o")))

    def _stored(self, plan: Plan, storage: str, reserve: Reserve | None) -> str:
        """The rows that are known, as the columns of the limit's input; a query that is cheap to repeat."""
        stored_as = {f.name: name for name, f in reversed(self.fields)}
        columns = [f"s.{quote(stored_as[c.name])} AS {quote(c.name)}" for c in self.limit.input.columns]
        stored = select(columns, f"{storage} AS s")
        if reserve is None:
            return stored
        return select(["*"], plan.cte("__pgt_stored_rows", union_all([stored, reserve.before()])))

    def _ranked(self, plan: Plan, stored: str, near: list[str]) -> str:
        """A CTE of the known rows as they were, and of changes, added up by content, each with its position.

        ``near`` are conditions on the changes (alias d).
        """
        limit = self.limit
        columns = limit.input.columns
        before = select(["s.*", f"1::bigint AS {W}", f"TRUE AS {STORED}"], derived(stored, "s"))
        delta = derived(limit.input.delta(plan), "d")
        changes = select([*names(columns), W, f"FALSE AS {STORED}"], delta, where=near)
        by, values = content_groups(columns, "e")
        known = select(
            [f"{value} AS {quote(c.name)}" for value, c in zip(values, columns, strict=True)]
            + [f"pg_catalog.sum(e.{W})::bigint AS {W}", f"pg_catalog.bool_or(e.{STORED}) AS {STORED}"],
            derived(union_all([before, changes]), "e"),
            group_by=by,
        )
        # With ties all peers of the last row are stored: up to them, too, all rows are known.
        by = limit.peers if limit.ties else limit.total
        place = f"pg_catalog.rank() OVER ({order_by(by).strip()}) AS {POSITION}"
        return plan.cte("__pgt_ranked", select(["*", place], derived(known, "k")))

    def _give_groups(self, plan: Plan, stored: str, full: str) -> None:
        """Tell an aggregate right below the limit which groups are known: all there are while there is room left."""
        below = self.limit.input
        while isinstance(below, Project):
            below = below.input
        if not isinstance(below, Aggregate):
            return
        size = in_view(below)
        given = {f.name for f in self.limit.input.columns}
        if size is None or not all(f.name in given for f in (*below.columns, size)):
            return
        keys = [f"s.{quote(f.name)}" for f in below.columns if f != size]
        groups = select([*keys, f"s.{quote(size.name)} AS {quote(COUNT)}"], derived(stored, "s"))
        tell_stored(plan, below, groups, f"NOT {full}")


def _either(condition: str, rows: str, otherwise: str) -> str:
    """These rows where a condition is true, else the others."""
    return union_all(
        [
            select(["*"], derived(rows, "o"), where=[condition]),
            select(["*"], derived(otherwise, "o"), where=[f"NOT {condition}"]),
        ]
    )


def maintainable(limit: Limit, fields: tuple[tuple[str, Field], ...]) -> bool:
    """Whether `Top` can keep the first rows: all they are sorted by is stored, and none before the first is missing."""
    stored = {f.name for _, f in fields}
    simple = limit.count is not None and limit.count.isdigit() and int(limit.count) > 0
    return simple and not limit.offset and all(c.name in stored for c in limit.input.columns)
