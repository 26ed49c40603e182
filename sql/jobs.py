"""What the compiler is asked for: plain data in, plain data out, so that another process can do it.

The tree of operators that a query becomes stays where it was made. A caller names the query each time, and gets the
texts and the facts that it needs. Trees are kept for a while by what they were made from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sql.base.columns import Column, Source
from sql.build.topk import TopK, topk
from sql.canonical.constant_keys import without_positions
from sql.canonical.equivalence import same_wording
from sql.canonical.explain_rewrites import rewrites
from sql.canonical.other_filter import read_rows
from sql.canonical.rejected import rejected
from sql.canonical.renamed import Renamed, follow_renames
from sql.canonical.schema_names import Qualified, qualified_by
from sql.canonical.stars import gives_out_star
from sql.canonical.views import View, inlined
from sql.changes.change_query import Followed
from sql.compile.compile import ParsedQuery, exchanges_filter, opaque_query, parse_query, regenerate
from sql.compile.compiled import Compiled, Core
from sql.compile.monotone import not_monotone
from sql.errors import NotDifferentiable
from sql.immediate import Program, program
from sql.immediate.settings import needs
from sql.operators import Recursion
from sql.operators.statement import StagedText, Types
from sql.spark.protocol import Environment
from sql.spark.render import SparkQuery, render_spark
from sql.spark.stages import SparkStages, render_stages
from sql.spark.user_defined.functions import obstacle
from sql.storage.keyed import AppendedRows, Keyed, KeyedRows
from sql.storage.shape import Shape, StorageColumn


@dataclass(frozen=True, slots=True)
class Query:
    """A query and all that the compiler must know of it. One that is not ``differentiable`` is not looked into.

    ``answers`` are those to the compiler's probes.
    """

    canonical: str
    output: tuple[Column, ...]
    sources: tuple[Source, ...] = ()
    views: tuple[View, ...] = ()
    special: frozenset[str] = frozenset()
    answers: tuple[tuple[str, tuple[Column, ...]], ...] = ()
    differentiable: bool = True
    append_only: bool = False
    """Whether rows are expected only to come, see `AppendedRows`."""
    before: str | None = None
    """The canonical text of a query with another filter, or more columns, in whose place it comes: `refresh` takes what
    is stored from that one to this one."""


# -- before a query is compiled ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a canonical text says of itself, in every mode."""

    without_positions: str
    rejected: tuple[str, str] | None
    topk: TopK | None


def inspect(canonical: str) -> Inspected:
    """See `without_positions`, `rejected` and `topk`."""
    return Inspected(without_positions(canonical), rejected(canonical), topk(canonical))


def has_star(query: str) -> bool:
    """See `gives_out_star`."""
    return gives_out_star(query)


def names_qualified_by(query: str, schema: str) -> tuple[Qualified, ...]:
    """See `qualified_by`."""
    return qualified_by(query, schema)


def reworded(canonical: str) -> str | None:
    """The query as the compiler would write it, None where PostgreSQL's parser takes it for the same.

    Raises NotDifferentiable.
    """
    regenerated = regenerate(canonical)
    return None if same_wording(canonical, regenerated) else regenerated


def renamed(canonical: str, relations: tuple[tuple[tuple[str, str], Renamed], ...]) -> str | None:
    """See `follow_renames`; None where the compiler would write the query as another one."""
    try:
        return None if reworded(canonical) is not None else follow_renames(canonical, dict(relations))
    except NotDifferentiable:
        return None


def without_views(canonical: str, views: Sequence[View]) -> str:
    """See `inlined`."""
    return inlined(canonical, views)


def rows_read(before: str, canonical: str) -> tuple[str, str, str]:
    """See `read_rows`."""
    return read_rows(before, canonical)


def grouping_sets(query: Query) -> int:
    """The number of sets of the GROUP BY that has most. Raises NotDifferentiable."""
    return _parsed(query).grouping_sets


def probes(query: Query) -> tuple[str, ...]:
    """See `ParsedQuery.probes`; the answers so far are the query's."""
    return _parsed(query).probes(dict(query.answers))


def _parsed(query: Query) -> ParsedQuery:
    return parse_query(query.canonical, query.sources, query.output, query.special, query.views, query.before)


# -- a compiled query -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a compiled query without a further question; see `Compiled`."""

    sources: tuple[Source, ...]
    used_columns: Mapping[int, tuple[str, ...]]
    core: Core
    keyed: bool
    output: tuple[Column, ...]
    columns: tuple[StorageColumn, ...]
    storage_query: str
    remembered: frozenset[str]
    """The names of the aggregates that a usual statement builds on."""
    appendable: bool
    """Whether rows that come to the sources can only add rows that are told apart by keys."""
    told_apart: tuple[str, ...]
    """The shape of the storage table, and the columns that its row ids are made from: where they and all columns agree,
    two queries store a row that both give in the same way."""
    whole_query: str
    """See `Compiled.whole_query`."""
    whole_names: tuple[str, ...]
    """Its columns."""
    refiltered: bool
    """Whether it comes in the place of a query with another filter."""
    not_monotone: str | None
    """The construct for which more rows of its sources may take rows from its result; None if they cannot."""


def facts(query: Query) -> Facts:
    """Compile a query. Raises NotDifferentiable."""
    compiled = _compiled(query)
    return Facts(
        compiled.sources,
        dict(compiled.used_columns),
        compiled.core,
        compiled.keyed,
        compiled.output,
        compiled.columns,
        compiled.storage_query,
        frozenset(aggregate.name for aggregate in compiled.remembered.values()),
        isinstance(compiled.shape, KeyedRows),
        told_apart(compiled.shape),
        compiled.whole_query,
        compiled.whole_names,
        exchanges_filter(compiled.root),
        None if compiled.root is None else not_monotone(compiled.root),
    )


def told_apart(shape: Shape) -> tuple[str, ...]:
    """See `Facts`."""
    kind = KeyedRows if isinstance(shape, KeyedRows) else type(shape)
    columns = shape.key if isinstance(shape, Keyed) else shape.output
    return (kind.__name__, *(column.name for column in columns))


def check_length(query: Query) -> None:
    """See `Compiled.check_length`. Raises NotDifferentiable."""
    _compiled(query).check_length()


def create_storage(query: Query, storage: str) -> tuple[str, ...]:
    """See `Compiled.create_storage_sql`."""
    return _compiled(query).create_storage_sql(storage)


def populate(query: Query, storage: str, uncaptured: frozenset[int], apart: Types = ()) -> str:
    """See `Compiled.populate_sql`."""
    return _compiled(query).populate_sql(storage, uncaptured, apart)


def full(query: Query, storage: str, uncaptured: frozenset[int], apart: Types = ()) -> str:
    """See `Compiled.full_sql`."""
    return _compiled(query).full_sql(storage, uncaptured, apart)


def staged(query: Query, storage: str, staging: str, uncaptured: frozenset[int]) -> str:
    """See `Compiled.staged_sql`."""
    return _compiled(query).staged_sql(storage, staging, uncaptured)


def refresh(query: Query, storage: str, changed: frozenset[int], usual: bool, late: frozenset[int]) -> str:
    """See `Compiled.refresh_sql`."""
    return _compiled(query).refresh_sql(storage, changed, usual=usual, late=late)


def immediate(query: Query, storage: str, pgt_id: int, salt: int) -> Program:
    """See `sql.immediate.program`. Raises NotDifferentiable."""
    settings = needs(query.canonical, query.sources, views=bool(query.views))
    return program(_compiled(query), storage, pgt_id, salt, settings)


def explain(query: Query, storage: str) -> dict[str, Any]:
    """What ``explain_st`` shows of a plan; ``texts`` are the long ones."""
    compiled = _compiled(query)
    texts: dict[str, Any] = {}
    if query.differentiable:
        every = frozenset(source.oid for source in compiled.sources)
        texts = {
            "rewrites": rewrites(query.canonical, query.views),
            "rewritten_query": compiled.storage_query,
            "delta_sql": compiled.refresh_sql(storage, every, usual=True),
        }
    return {"operator_tree": compiled.tree, "strategy": dict(compiled.strategy), "texts": texts}


@lru_cache(maxsize=128)
def _compiled(query: Query) -> Compiled:
    if not query.differentiable:
        return opaque_query(query.canonical, query.output)
    compiled = _parsed(query).compile(dict(query.answers))
    if query.append_only and isinstance(shape := compiled.shape, KeyedRows):
        compiled.shape = AppendedRows(shape.rows, shape.output, shape.key, shape.fields, shape.root)
    return compiled


# -- for Spark --------------------------------------------------------------------------------------------------------


def spark_query(text: str, sources: tuple[Source, ...], total_orders: bool, environment: Environment) -> SparkQuery:
    """See `render_spark`. Raises NotExpressible."""
    return render_spark(text, sources, environment=environment, total_orders=total_orders)


def body_obstacle(definition: str, defaults: tuple[str, ...]) -> str:
    """See `obstacle`."""
    return obstacle(definition, defaults)


def spark_rows(query: Query) -> str:
    """See `Compiled.rows_on_spark`. Raises NotDifferentiable."""
    return _compiled(query).rows_on_spark


def spark_refresh(
    query: Query,
    storage: str,
    changed: frozenset[int],
    sources: tuple[Source, ...],
    environment: Environment,
) -> tuple[StagedText, SparkStages]:
    """See `Compiled.remote_plan` and `render_stages`: what PostgreSQL executes in the end, and what Spark computes.

    Raises NotExpressible.
    """
    plan = _compiled(query).remote_plan(storage, changed)
    return plan.statement, render_stages(plan, sources, changed, environment=environment)


# -- a query that is followed -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Following:
    """A query that is followed; see `Followed`.

    With ``versions`` it is that at timestamps in the past (`Followed.at_timestamps`).
    """

    query: Query
    keys: tuple[str, ...] = ()
    before: bool = False
    versions: tuple[tuple[int, tuple[str, ...]], ...] | None = None

    @property
    def canonical(self) -> str:
        """The text that is followed."""
        return self.query.canonical


@dataclass(frozen=True, slots=True)
class FollowingFacts:
    """What is known of a query that is followed without a further question; see `Followed`."""

    columns: tuple[tuple[str, Column, str], ...]
    sources: tuple[tuple[Source, tuple[str, ...]], ...]
    reproducible: bool
    """Whether the rows of no WITH RECURSIVE depend on the order of others."""


def follow(following: Following) -> FollowingFacts:
    """Compile a query to be followed, of now or of the past. Raises NotDifferentiable, also if it is too long."""
    followed = _followed(following)
    if following.versions is None:
        followed.check_length()
    root = followed.compiled.root
    recursions = [o for o in root.walk() if isinstance(o, Recursion)] if root is not None else []
    return FollowingFacts(followed.columns, followed.sources, all(o.reproducible for o in recursions))


def snapshot(following: Following) -> str:
    """See `Followed.snapshot`."""
    return _followed(following).snapshot()


def past(following: Following, changed: frozenset[int]) -> str:
    """See `Followed.past`."""
    return _followed(following).past(changed)


def changes(following: Following, changed: frozenset[int]) -> str:
    """See `Followed.changes`."""
    return _followed(following).changes(changed)


def history(following: Following, changed: frozenset[int]) -> str | None:
    """See `Followed.history`."""
    return _followed(following).history(changed)


def running(following: Following, changed: frozenset[int]) -> list[tuple[str, str]]:
    """See `Followed.running`."""
    return _followed(following).running(changed)


def create_running(following: Following) -> tuple[str, ...]:
    """The statements that create the tables of `running`, for the role that is to fill and read them."""
    return tuple(text for kept in _followed(following).compiled.running for text in kept.create())


@lru_cache(maxsize=128)
def _followed(following: Following) -> Followed:
    followed = Followed(_compiled(following.query), following.keys, following.before)
    return followed if following.versions is None else followed.at_timestamps(dict(following.versions))
