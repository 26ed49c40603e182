"""Compiled queries as the engine sees them: facts at hand, and statements that are compiled elsewhere and kept.

The statements of a refresh are asked for each time. So each is kept by what it was asked for with, and only the first
one that asks waits for the compiler (`compile.pool`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, ParamSpec, TypeVar

from engine.compile.pool import compilers, on_behalf_of
from sql import Column, Source, jobs
from sql.compile.compiled import Core
from sql.jobs import Facts, Following, FollowingFacts, Query
from sql.operators.statement import StagedText, Types
from sql.spark.protocol import Environment
from sql.spark.stages import SparkStages
from sql.storage.shape import StorageColumn

P = ParamSpec("P")
R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

KEPT_QUERIES = 1024

KEPT_STATEMENTS = 64
"""Of one query: there is one for each set of sources that can have changed."""


class Kept(Generic[K, V]):
    """What was computed, by what it follows from; the last ones used."""

    def __init__(self, most: int):
        self._most = most
        self._found: OrderedDict[K, V] = OrderedDict()

    async def get(self, key: K, make: Callable[[], Awaitable[V]]) -> V:
        """What is kept, or what `make` makes, which is kept from now on."""
        if key in self._found:
            self._found.move_to_end(key)
            return self._found[key]
        made = self._found[key] = await make()
        if len(self._found) > self._most:
            self._found.popitem(last=False)
        return made


class CompiledQuery:
    """A compiled query; see `sql.Compiled` for what its statements are."""

    def __init__(self, query: Query, facts: Facts):
        self.query = query
        self._facts = facts
        self._statements: Kept[Hashable, Any] = Kept(KEPT_STATEMENTS)

    @property
    def sources(self) -> tuple[Source, ...]:
        """The sources whose changes it is maintained from."""
        return self._facts.sources

    @property
    def used_columns(self) -> Mapping[int, tuple[str, ...]]:
        """The columns of each source that it reads."""
        return self._facts.used_columns

    @property
    def core(self) -> Core:
        """What an external executor computes."""
        return self._facts.core

    @property
    def appendable(self) -> bool:
        """Whether rows that come to the sources can only add rows that are told apart by keys."""
        return self._facts.appendable

    @property
    def keyed(self) -> bool:
        """Whether a row's identity is a key within its content."""
        return self._facts.keyed

    @property
    def told_apart(self) -> tuple[str, ...]:
        """The shape of the storage table, and the columns that row ids are made from."""
        return self._facts.told_apart

    @property
    def refiltered(self) -> bool:
        """Whether it comes in the place of a query with another filter."""
        return self._facts.refiltered

    @property
    def not_monotone(self) -> str | None:
        """The construct for which more rows of its sources may take rows from its result; None if they cannot."""
        return self._facts.not_monotone

    @property
    def output(self) -> tuple[Column, ...]:
        """The user's columns."""
        return self._facts.output

    @property
    def columns(self) -> tuple[StorageColumn, ...]:
        """The storage table's columns after ``__pgt_row_id``."""
        return self._facts.columns

    @property
    def storage_query(self) -> str:
        """The storage's rows but for the columns that number them."""
        return self._facts.storage_query

    def remembers(self, memory: Mapping[str, object]) -> bool:
        """Whether what a refresh has returned as ``memory`` is all that a usual statement builds on."""
        return self._facts.remembered <= memory.keys()

    async def check_length(self) -> None:
        """See `sql.Compiled.check_length`. Raises NotDifferentiable, SqlError."""
        await compilers().run(jobs.check_length, self.query)

    async def create_storage_sql(self, storage: str) -> tuple[str, ...]:
        """Statements that create the empty storage table with its primary key and index. Raises SqlError."""
        return await self._kept(jobs.create_storage, self.query, storage)

    @property
    def whole_query(self) -> str:
        """The storage's rows, as `storage_query`, in the way in which PostgreSQL computes all of them best."""
        return self._facts.whole_query

    @property
    def whole_names(self) -> tuple[str, ...]:
        """The columns of `whole_query`, in order."""
        return self._facts.whole_names

    async def populate_sql(self, storage: str, uncaptured: frozenset[int], apart: Types = ()) -> str:
        """Fill the empty storage table; see `sql.Compiled.populate_sql`. Raises SqlError."""
        return await self._kept(jobs.populate, self.query, storage, uncaptured, apart)

    async def full_sql(self, storage: str, uncaptured: frozenset[int], apart: Types = ()) -> str:
        """Make the storage equal to the query, touching only rows that differ; see `populate_sql`. Raises SqlError."""
        return await self._kept(jobs.full, self.query, storage, uncaptured, apart)

    async def staged_sql(self, storage: str, staging: str, uncaptured: frozenset[int]) -> str:
        """As `full_sql`, from a staging table that holds the rows of `core`. Raises SqlError."""
        return await compilers().run(jobs.staged, self.query, storage, staging, uncaptured)

    async def refresh_sql(
        self, storage: str, changed: frozenset[int], *, usual: bool = False, late: frozenset[int] = frozenset()
    ) -> str:
        """See `sql.Compiled.refresh_sql`. Raises SqlError."""
        return await self._kept(jobs.refresh, self.query, storage, changed, usual, late)

    async def explain(self, storage: str) -> dict[str, Any]:
        """What ``explain_st`` shows of the plan. Raises SqlError."""
        return await compilers().run(jobs.explain, self.query, storage)

    async def spark_refresh(
        self,
        storage: str,
        changed: frozenset[int],
        sources: Sequence[Source],
        environment: Environment,
    ) -> tuple[StagedText, SparkStages]:
        """See `sql.Compiled.remote_plan` and `render_stages`. Raises NotExpressible, SqlError."""
        arguments = self.query, storage, changed, tuple(sources), environment
        return await self._kept(jobs.spark_refresh, *arguments)

    async def _kept(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        found: R = await self._statements.get((work, args[1:]), lambda: compilers().run(work, *args, **kwargs))
        return found


_queries: Kept[Query, CompiledQuery] = Kept(KEPT_QUERIES)


async def compiled_query(query: Query) -> CompiledQuery:
    """Compile a query. Raises NotDifferentiable, SqlError 54001."""

    async def made() -> CompiledQuery:
        return CompiledQuery(query, await compilers().run(jobs.facts, query))

    return await _queries.get(query, made)


class FollowedQuery:
    """A query that is followed; see `sql.Followed` for what its statements are."""

    def __init__(self, compiled: CompiledQuery, following: Following, facts: FollowingFacts, role: str):
        self.compiled = compiled
        self._following = following
        self._facts = facts
        self._role = role
        self._statements: Kept[Hashable, Any] = Kept(KEPT_STATEMENTS)

    @classmethod
    async def of(cls, compiled: CompiledQuery, following: Following, role: str) -> FollowedQuery:
        """Compile it on behalf of a role. Raises NotDifferentiable, SqlError 54001."""
        with on_behalf_of(role):
            return cls(compiled, following, await compilers().run(jobs.follow, following), role)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by whose values rows are told apart, if they are."""
        return self._following.keys

    @property
    def columns(self) -> tuple[tuple[str, Column, str], ...]:
        """The columns: how the statements name them, what they hold, and the prefix of their public name."""
        return self._facts.columns

    @property
    def sources(self) -> tuple[tuple[Source, tuple[str, ...]], ...]:
        """The sources, each with the columns that are read."""
        return self._facts.sources

    @property
    def reproducible(self) -> bool:
        """Whether its rows follow from those of its sources."""
        return self._facts.reproducible

    async def snapshot(self) -> str:
        """The rows as they are. Raises SqlError."""
        return await self._kept(jobs.snapshot, self._following)

    async def past(self, changed: frozenset[int]) -> str:
        """The rows as they were at the frontier, after which these sources have changed. Raises SqlError."""
        return await self._kept(jobs.past, self._following, changed)

    async def changes(self, changed: frozenset[int]) -> str:
        """What has happened since the frontier, after which these sources, and no others, have changed.

        Raises SqlError.
        """
        return await self._kept(jobs.changes, self._following, changed)

    async def history(self, changed: frozenset[int]) -> str | None:
        """See `sql.Followed.history`. Raises SqlError."""
        return await self._kept(jobs.history, self._following, changed)

    async def running(self, changed: frozenset[int]) -> list[tuple[str, str]]:
        """See `sql.Followed.running`. Raises SqlError."""
        return await self._kept(jobs.running, self._following, changed)

    async def create_running(self) -> tuple[str, ...]:
        """The statements that create the tables of `running`. Raises SqlError."""
        return await self._kept(jobs.create_running, self._following)

    async def at_timestamps(self, keys: Mapping[int, Sequence[str]]) -> FollowedQuery:
        """See `sql.Followed.at_timestamps`. Raises SqlError."""
        versions = tuple(sorted((oid, tuple(names)) for oid, names in keys.items()))
        return await self.of(self.compiled, replace(self._following, versions=versions), self._role)

    async def _kept(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        async def made() -> R:
            with on_behalf_of(self._role):
                return await compilers().run(work, *args, **kwargs)

        found: R = await self._statements.get((work, args[1:]), made)
        return found


__all__ = ["CompiledQuery", "FollowedQuery", "Kept", "compiled_query"]
