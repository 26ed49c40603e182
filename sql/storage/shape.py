"""What the shapes have in common: the storage table, its population, and the report of a refresh."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sql.base.columns import WEIGHT, Column, Field
from sql.base.consolidate import consolidated
from sql.base.text import any_of, derived, quote, select, union_all
from sql.operators import Operator
from sql.operators.aggregates.cached_accumulators import memories
from sql.operators.captured_changes import PENDING, captured
from sql.operators.plan import Plan
from sql.operators.statement import Types

ROW_ID = "__pgt_row_id"
W = quote(WEIGHT)

FILLFACTOR = 90
"""Percent. With room on its page a row is updated without touching an index."""


@dataclass(frozen=True, slots=True)
class StorageColumn:
    """A column of the storage table. ``hidden`` ones are the compiler's own."""

    name: str
    hidden: bool


def output_columns(output: Sequence[tuple[str, Field]]) -> list[str]:
    """The operator's columns under the query's names."""
    return [f"{quote(f.name)} AS {quote(name)}" for name, f in output]


def current_rows(operator: Operator, output: Sequence[tuple[str, Field]], plan: Plan) -> str:
    """The operator's rows as they are now, under the query's names."""
    return select(output_columns(output), derived(operator.new(plan), "o"))


def net_delta(plan: Plan, operator: Operator, output: Sequence[tuple[str, Field]], *, single: bool = False) -> str:
    """A CTE of the operator's delta under the query's names, rows of the same content added up.

    ``single``: there is but one row of a content, so that weights are small. PostgreSQL adds them up in half the time:
    the sum of bigint is numeric.
    """
    weight = f"d.{W}::int" if single and plan.target.one_statement else f"d.{W}"
    fields, columns = [f for _, f in output], [name for name, _ in output]
    query = consolidated(operator.delta(plan), fields, columns, weight=weight)
    return plan.statement.stage("__pgt_delta", query, {name: f.type for name, f in output} | {WEIGHT: "bigint"})


class Shape(ABC):
    """How the rows of a query are stored and compared.

    ``rows`` is the query for the storage's rows without row ids: the user's columns, then the hidden ones that are
    computed from the query (not those that number rows).
    """

    output: tuple[Column, ...]
    rows: str

    @property
    @abstractmethod
    def keyed(self) -> bool:
        """Whether a row's identity is a key within its content."""

    @property
    @abstractmethod
    def hidden(self) -> tuple[str, ...]:
        """The hidden columns after the user's."""

    @abstractmethod
    def identified(self, rows: str) -> str:
        """Rows with everything a storage row has."""

    @abstractmethod
    def apply_full(self, plan: Plan, storage: str, rows: str) -> dict[str, str]:
        """Make the storage equal to `rows`. Returns the CTEs whose rows were inserted, updated, deleted."""

    @abstractmethod
    def apply_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        """Add the statements of a differential refresh. Returns the CTEs of rows inserted, updated, deleted."""

    def apply_staged_delta(self, plan: Plan, storage: str) -> dict[str, str]:
        """As `apply_delta`, where another executor begins, which knows nothing of what is stored.

        Raises NotExpressible if it cannot.
        """
        return self.apply_delta(plan, storage)

    @property
    @abstractmethod
    def summed(self) -> Operator | None:
        """The operator whose delta the refresh adds up by itself, None if it wants net deltas."""

    def create(self, storage: str) -> tuple[str, ...]:
        """Statements that create the empty storage table."""
        numbers = [f"NULL::bigint AS {quote(name)}" for name in self.numbers]
        empty = select([f"NULL::bigint AS {quote(ROW_ID)}", "q.*", *numbers], derived(self.rows, "q"))
        return (
            f"CREATE TABLE {storage} WITH (fillfactor = {FILLFACTOR}) AS {empty} WITH NO DATA",
            f"ALTER TABLE {storage} ADD PRIMARY KEY ({quote(ROW_ID)})",
        )

    @property
    def numbers(self) -> tuple[str, ...]:
        """Hidden columns that `identified` adds."""
        return ()

    @property
    def computed(self) -> tuple[str, ...]:
        """Hidden columns that `rows` has."""
        return tuple(name for name in self.hidden if name not in self.numbers)

    @property
    def names(self) -> tuple[str, ...]:
        """All columns but the row id."""
        return tuple(column.name for column in self.output) + self.hidden

    @property
    def described(self) -> tuple[Column, ...]:
        """The columns whose types are known."""
        return self.output

    @abstractmethod
    def core(self, plan: Plan) -> str:
        """The query of the rows that `from_core` takes, for the plan's target; nothing has changed."""

    @property
    def core_types(self) -> Types:
        """The columns of `core`."""
        types = {column.name: column.type for column in self.described}
        names = (*(column.name for column in self.output), *self.computed)
        return tuple((name, types.get(name, "")) for name in names)

    def from_core(self, rows: str) -> str:
        """The storage's rows without row ids, from those of `core`."""
        return rows

    def insert(self, storage: str, query: str) -> str:
        """Insert complete rows."""
        columns = ", ".join(quote(name) for name in (ROW_ID, *self.names))
        return f"INSERT INTO {storage} ({columns}) {query}"

    def different(self, plan: Plan, storage: str, rows: str, known: str, alike: str) -> str:
        """A CTE of what is to be done to make the storage equal to `rows`, by one join with it.

        A row that comes has all columns; ``__pgt_known`` if it takes the place of a stored one. Of a row that goes
        there is but ``__pgt_gone``, its row id. ``known`` and ``alike`` compare a stored row (alias s) and one of
        `rows` (alias n) that have one row id: whether it is the same row, and whether it has not changed. Where it is
        another row, by chance, it is inserted beside the stored one, and violates the uniqueness of row ids.
        """
        # OFFSET: a row id is computed once, and what is constant is no condition that a FULL JOIN cannot have.
        new = derived(f"{self.identified(rows)} OFFSET 0", "n")
        columns = [f"n.{quote(name)}" for name in (ROW_ID, *self.names)]
        both = f"n.{quote(ROW_ID)} IS NOT NULL AND s.{quote(ROW_ID)} IS NOT NULL"
        found = select(
            [*columns, f"{both} AND {known} AS __pgt_known", f"s.{quote(ROW_ID)} AS __pgt_gone"],
            f"{new} FULL JOIN {storage} AS s ON n.{quote(ROW_ID)} = s.{quote(ROW_ID)}",
            where=[f"({both} AND {alike}) IS NOT TRUE"],
        )
        return plan.cte("__pgt_different", found)

    def delete_gone(self, plan: Plan, storage: str, different: str) -> str:
        """Delete the rows that go."""
        where = f"d.{quote(ROW_ID)} IS NULL AND s.{quote(ROW_ID)} = d.__pgt_gone"
        return plan.statement.modification(
            "__pgt_deleted", f"DELETE FROM {storage} AS s USING {different} AS d WHERE {where} RETURNING 1"
        )

    def insert_unknown(self, plan: Plan, storage: str, different: str) -> str:
        """Insert the rows that come and take no stored one's place."""
        columns = [quote(name) for name in (ROW_ID, *self.names)]
        come = select(columns, different, where=[f"{quote(ROW_ID)} IS NOT NULL", "NOT __pgt_known"])
        return plan.statement.modification("__pgt_inserted", f"{self.insert(storage, come)} RETURNING 1")

    def populate(self, plan: Plan, storage: str, rows: str) -> dict[str, str]:
        """Fill the empty storage table with `rows`. Returns the CTE of the rows inserted."""
        columns = [f"n.{quote(name)}" for name in (ROW_ID, *self.names)]
        statement = self.insert(storage, select(columns, derived(self.identified(rows), "n")))
        return {"inserted": plan.statement.modification("__pgt_inserted", f"{statement} RETURNING 1")}


def report(
    plan: Plan,
    done: Mapping[str, str],
    sources: Sequence[int],
    *,
    changes: bool,
    unread: Sequence[int] = (),
    same: Sequence[str] = (),
) -> str:
    """The final SELECT: what was done, and the new frontier.

    What this very transaction has changed in the ``sources`` is seen by the statement though it is not over,
    so the frontier remembers how far. With ``changes``, ``overlooked`` tells whether ``unread`` sources have pending
    changes after all, or one of ``sources`` was truncated: then what was done is wrong. ``same`` is what stays in the
    memory as it is.
    """
    current = "pg_catalog.pg_current_xact_id_if_assigned()"
    # Of the changes of other transactions, which are most, two quick comparisons must be enough.
    own = f'c."__pgt_xid" = (SELECT {current})'
    columns, where = ['pg_catalog.max(c."__pgt_change_id") AS own'], [own]
    if changes:
        mine = f'FILTER (WHERE c."__pgt_xid" = {current})'
        columns = [
            f'pg_catalog.max(c."__pgt_change_id") {mine} AS own',
            'pg_catalog.bool_or(c."__pgt_w" = 0) AS truncated',
        ]
        where = [f'(c."__pgt_w" = 0 OR {own})', *PENDING]
    seen = [select(columns, captured(oid, (), late=oid in plan.late), where=where) for oid in sources]
    entries = []
    for key in ("inserted", "updated", "deleted"):
        count = f"(SELECT pg_catalog.count(*) FROM {done[key]})" if key in done else "0"
        entries.append(f"'{key}', {count}")
    if "missing" in done:
        entries.append(f"'missing', (SELECT coalesce(pg_catalog.sum(m.n), 0) FROM {done['missing']} AS m)")
    before = f"CASE WHEN ($1->>'xid') = {current}::text THEN ($1->>'change_id')::bigint END"
    last = before
    if seen:
        read = plan.cte("__pgt_seen", union_all(seen))
        last = f"GREATEST({before}, (SELECT pg_catalog.max(own) FROM {read}))"
    if changes:
        overlooked = [
            f"EXISTS ({select([], captured(oid, (), late=oid in plan.late), where=PENDING)})" for oid in unread
        ]
        if seen:
            overlooked.append(f"(SELECT pg_catalog.bool_or(truncated) FROM {read}) IS TRUE")
        if plan.statement.violations:
            alarm = plan.cte("__pgt_alarm", f"SELECT {any_of(plan.statement.violations)} AS raised")
            raised = f"(SELECT raised FROM {alarm})"
            entries.append(f"'unusual', {raised}")
            overlooked += [raised] if plan.usual else []
        entries.append(f"'overlooked', {any_of(overlooked)}")
    if plan.statement.memory or same:
        entries.append(f"'memory', {memories(plan, same)}")
    entries += [
        "'snapshot', pg_catalog.pg_current_snapshot()::text",
        f"'xid', {current}::text",
        f"'change_id', {last}",
    ]
    return f"SELECT pg_catalog.jsonb_build_object({', '.join(entries)})"
