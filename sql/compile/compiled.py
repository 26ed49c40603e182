"""A compiled query: everything the engine runs for one stream table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from sql.base.columns import Column, Field, Source
from sql.base.text import quote, select
from sql.compile.tick_accumulators import Running
from sql.operators import Operator, Scan
from sql.operators.captured_changes import (
    AWAIT,
    AWAITED,
    DATES,
    delta_name,
    late_changes,
    late_name,
    pending_dates,
    source_delta,
)
from sql.operators.plan import Plan, TreeFacts
from sql.operators.statement import MOST, Stage, StagedStatement, StagedText, Statement, Types, staged_rows
from sql.operators.versions.versions import changes_at
from sql.storage import Bag, Shape
from sql.storage.shape import StorageColumn, current_rows, report

PLAN_FORMAT = 5
"""Raised when the compiler asks other probes, reads other columns, lays storage tables out in another way or hashes
rows otherwise than before. What was planned by an earlier one is then planned, and computed, anew."""


@dataclass(frozen=True, slots=True)
class Core:
    """What an external executor computes: a query as PostgreSQL is asked it, as Spark is, and its columns.

    For a root aggregate these are the group keys and base aggregates; PostgreSQL finishes them in `staged_sql`.
    ``types`` are its columns as `staged_rows` wants them.
    """

    query: str
    spark: str
    types: Types

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(name for name, _ in self.types)


@dataclass(frozen=True, slots=True)
class RemotePlan:
    """A differential refresh whose delta an external executor computes.

    ``views`` are named queries, each over the sources, the sources' net deltas (`delta_name`)
    and the views before it; ``stages`` are the queries over all these whose rows PostgreSQL wants to have. The
    ``statement`` applies these.
    """

    views: tuple[tuple[str, exp.Expr], ...]
    stages: tuple[Stage, ...]
    statement: StagedText


@dataclass(frozen=True, slots=True)
class Remembered:
    """An operator, made from these sources, that hands something on under a name.

    See `cached_accumulators` and `threshold_band`.
    """

    name: str
    sources: frozenset[int]


@dataclass(slots=True)
class Compiled:
    """Statements take the frontier as ``$1`` and return one jsonb.

    ``storage`` and ``staging`` are quoted, qualified names. ``$1`` is a jsonb that holds, beside the frontier's own
    keys, ``salt`` and ``memory``: what the last refresh has returned as such.
    """

    shape: Shape
    sources: tuple[Source, ...]
    used_columns: Mapping[int, tuple[str, ...]]
    tree: str
    strategy: Mapping[str, str]
    core: Core
    conditions: Mapping[int, str] = field(default_factory=dict)
    """Conditions on the pending changes of sources, see `predicate_pushdown`."""
    facts: TreeFacts = field(default_factory=TreeFacts)
    remembered: Mapping[int, Remembered] = field(default_factory=dict)
    """Operators, by node, of which a refresh hands something on to the next."""
    netted_later: frozenset[int] = frozenset()
    """Sources whose changes are consolidated by whoever reads them, see `single_use_deltas`."""
    root: Operator | None = None
    """The operator tree, None for a query that is only ever evaluated in full."""
    fields: tuple[tuple[str, Field], ...] = ()
    """By the query's names, the root's columns that it gives out."""
    versioned: bool = False
    """Whether the tree reads the sources at a timestamp in the past, see `versions`."""
    running: tuple[Running, ...] = ()
    """Aggregates whose groups are kept from one such timestamp to the next, each after those that it reads."""
    whole: str | None = None
    """The query's own text, where its rows are sure to be those of the tree."""
    always: frozenset[int] = frozenset()
    """What changes beside the sources, so that a refresh has something to do in any case."""
    _cache: dict[tuple[str, frozenset[int], bool, frozenset[int]], str] = field(default_factory=dict)

    @property
    def keyed(self) -> bool:
        """Whether a row's identity is a key within its content."""
        return self.shape.keyed

    @property
    def output(self) -> tuple[Column, ...]:
        """The user's columns."""
        return self.shape.output

    @property
    def columns(self) -> tuple[StorageColumn, ...]:
        """The storage table's columns after ``__pgt_row_id``."""
        user = len(self.shape.output)
        return tuple(StorageColumn(name, i >= user) for i, name in enumerate(self.shape.names))

    @property
    def storage_query(self) -> str:
        """The storage's rows but for the columns that number them."""
        return self.shape.rows

    @property
    def rows_on_spark(self) -> str:
        """The query's rows as Spark is asked for them; those of `core` PostgreSQL finishes."""
        if self.root is None:
            return self.core.spark
        return current_rows(self.root, self.fields, Plan(frozenset(), statement=StagedStatement()))

    @property
    def differential(self) -> bool:
        """Whether `refresh_sql` can be asked for."""
        return not (isinstance(self.shape, Bag) and self.shape.root is None)

    def create_storage_sql(self, storage: str) -> tuple[str, ...]:
        """Statements that create the empty storage table with its primary key and index."""
        return self.shape.create(storage)

    @property
    def whole_query(self) -> str:
        """The storage's rows, as `storage_query`, in the way in which PostgreSQL computes all of them best."""
        return self.whole or self.shape.rows

    @property
    def whole_names(self) -> tuple[str, ...]:
        """The columns of `whole_query`, in order."""
        return (*(column.name for column in self.output), *self.shape.computed)

    def populate_sql(self, storage: str, uncaptured: frozenset[int] = frozenset(), apart: Types = ()) -> str:
        """Fill the empty storage table. The changes of `uncaptured` sources are not captured.

        ``apart``: `whole_query` is ``$1->>'rows'``, and computed by a statement of its own (`pgtrickle._query_rows`);
        these are its columns, as a list of column definitions has them.
        """
        plan = Plan(frozenset())
        return self._finished(plan, self.shape.populate(plan, storage, self._all_rows(apart)), uncaptured)

    def full_sql(self, storage: str, uncaptured: frozenset[int] = frozenset(), apart: Types = ()) -> str:
        """Make the storage equal to the query, touching only rows that differ; see `populate_sql`."""
        return self._full(storage, self._all_rows(apart), uncaptured)

    def _all_rows(self, apart: Types) -> str:
        if not apart:
            return self.whole_query
        columns = ", ".join(f"{quote(name)} {type_}" for name, type_ in apart)
        return select(["*"], f"pgtrickle._query_rows($1->>'rows', $1) AS r({columns})")

    def staged_sql(self, storage: str, staging: str, uncaptured: frozenset[int] = frozenset()) -> str:
        """As `full_sql`, from a staging table that holds the rows of `core`."""
        return self._full(storage, self.shape.from_core(staged_rows(staging, self.core.types)), uncaptured)

    def _full(self, storage: str, rows: str, uncaptured: frozenset[int]) -> str:
        plan = Plan(frozenset())
        return self._finished(plan, self.shape.apply_full(plan, storage, rows), uncaptured)

    def _finished(self, plan: Plan, done: Mapping[str, str], uncaptured: frozenset[int]) -> str:
        captured = [source.oid for source in self.sources if source.oid not in uncaptured]
        return plan.statement.text(report(plan, done, captured, changes=False))

    def refresh_sql(
        self, storage: str, changed: frozenset[int], *, usual: bool = False, late: frozenset[int] = frozenset()
    ) -> str:
        """Bring the storage from the frontier ``$1`` to now, reading the changes of `changed` sources only.

        If others have pending changes, too, the result says so: ``overlooked``. It must be undone then. A ``usual``
        statement, which PostgreSQL plans faster, says so, too, if what is hardly ever needed was needed, or something
        is not in ``$1->'memory'`` (`remembers`). The others report that as ``unusual``, and are right nevertheless.

        ``late``: the sources whose latest changes are waited for (`late_changes`).
        """
        key = storage, changed, usual, late
        cached = self._cache.get(key)
        if cached is None:
            cached = self._cache[key] = self._refresh(storage, changed, usual, late=late)
        return cached

    def check_length(self) -> None:
        """Write down the statement that a refresh takes after changes of all sources. Raises NotDifferentiable."""
        every = frozenset(source.oid for source in self.sources)
        self._refresh(quote("storage"), every, usual=False, most=MOST)

    def remembers(self, memory: Mapping[str, object]) -> bool:
        """Whether what a refresh has returned as ``memory`` is all that a usual statement builds on."""
        return all(aggregate.name in memory for aggregate in self.remembered.values())

    def remote_plan(self, storage: str, changed: frozenset[int]) -> RemotePlan:
        """As `refresh_sql`, with the delta computed by another executor, which knows that no other source has changed.

        Raises NotExpressible if it cannot be.
        """
        statement = StagedStatement()
        facts = TreeFacts(bounds=self.facts.bounds, narrowed=self.facts.narrowed)
        plan = Plan(changed, facts=facts, statement=statement)
        done = self.shape.apply_staged_delta(plan, storage)
        used = [source.oid for source in self.sources if source.oid in changed]
        applied = statement.applied(report(plan, done, used, changes=True))
        return RemotePlan(tuple(statement.views), tuple(statement.stages), applied)

    def _refresh(
        self,
        storage: str,
        changed: frozenset[int],
        usual: bool,
        most: int | None = None,
        late: frozenset[int] = frozenset(),
    ) -> str:
        plan = Plan(
            changed | self.always,
            self.streamed(self.shape.summed),
            replace(self.facts, remembered={known: each.name for known, each in self.remembered.items()}),
            Statement(most=most),
            usual=usual,
            late=late,
        )
        if late:
            plan.cte(AWAITED, AWAIT)
        for oid in sorted(late):
            plan.cte(late_name(oid).strip('"'), late_changes(oid))
        used = self._with_changes(plan)
        done = self.shape.apply_delta(plan, storage) if used or self.always else {}
        unread = [source.oid for source in self.sources if source.oid not in changed]
        same = [a.name for a in self.remembered.values() if not a.sources & changed]
        read = [source.oid for source in used]
        return plan.statement.text(report(plan, done, read, changes=True, unread=unread, same=same))

    def immediate_sql(self, storage: str, deltas: Mapping[int, str]) -> str:
        """Bring the storage up to date with changes of some sources that the tables have already.

        ``deltas`` are queries of their net changes with weights, by the source's oid. Returns how many rows were to be
        changed and are not stored. The statement has ``salt`` alone of the parameters.
        """
        plan = Plan(frozenset(deltas), facts=self.facts, bounded=True)
        for oid, query in deltas.items():
            plan.cte(delta_name(oid).strip('"'), f"{query} OFFSET 0", materialized=None)
        return self._immediate(plan, self.shape.apply_delta(plan, storage) if deltas else {})

    def immediate_full_sql(self, storage: str) -> str:
        """As `full_sql`, with what `immediate_sql` returns."""
        plan = Plan(frozenset())
        return self._immediate(plan, self.shape.apply_full(plan, storage, self.shape.rows))

    def _immediate(self, plan: Plan, done: Mapping[str, str]) -> str:
        missing = f"(SELECT coalesce(pg_catalog.sum(m.n), 0) FROM {done['missing']} AS m)" if "missing" in done else "0"
        return plan.statement.text(f"SELECT {missing}::bigint INTO __pgt_missing")

    def following(
        self, changed: frozenset[int], *, streamed: frozenset[int], dated: bool = False, most: int | None = None
    ) -> Plan:
        """A plan to which the changes of sources since the frontier ``$1`` are known, for what stores nothing.

        If they are ``dated`` it has each with its timestamp. ``most``: see `Statement`.
        """
        plan = Plan(changed, streamed, self.facts, Statement(most=most))
        self._with_changes(plan, dated=dated)
        return plan

    def _with_changes(self, plan: Plan, *, dated: bool = False) -> list[Source]:
        """Have the net changes of sources in the plan; the sources that have changed."""
        used = [source for source in self.sources if source.oid in plan.changed]
        if dated:
            plan.cte(DATES, pending_dates(used))
        for source in used:
            if source.oid not in plan.streamed:
                used_columns, condition = self.used_columns[source.oid], self.conditions.get(source.oid)
                if self.versioned:
                    net = changes_at(source, used_columns)
                else:
                    net = source_delta(source, used_columns, condition, dated=dated, late=source.oid in plan.late)
                    plan.given |= self._given(source.oid)
                # If it is read once, which PostgreSQL counts, its rows need not be put down first. But conditions of
                # the reader must not move below OFFSET: they can raise errors for rows that came and went.
                plan.cte(delta_name(source.oid).strip('"'), f"{net} OFFSET 0", materialized=None)
        return used

    def _given(self, oid: int) -> frozenset[int]:
        """The scans of a source, by node, whose readers find what they ask for alone in its changes."""
        scans = [operator for operator in self.root.walk() if isinstance(operator, Scan)] if self.root else []
        return frozenset(scan.node for scan in scans if scan.source.oid == oid) & self.facts.pushed

    def streamed(self, summed: Operator | None) -> frozenset[int]:
        """The sources that are read once, by an operator that nets its changes or below one whose delta is added up."""
        if summed is None:
            return self.netted_later
        once = [*summed.streamable()]
        every = [operator.source.oid for operator in summed.walk() if isinstance(operator, Scan)]
        return self.netted_later | {oid for oid in once if every.count(oid) == 1}
