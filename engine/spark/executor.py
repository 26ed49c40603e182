"""The Spark executor: a query's rows, computed from the mirror, into a staging table of the refreshing transaction.

Nothing of PostgreSQL's is touched before Spark has succeeded: the refreshing session only exports its snapshot, and
afterwards gets a temporary table filled by COPY; or, for many rows, tables that others have filled (`result_loading`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, NotRequired, Protocol, TypedDict, Unpack

import pyarrow as pa
import structlog

from catalog.session import SqlSession
from engine import tracing
from engine.compile.compiled_query import Kept
from engine.compile.pool import compilers
from engine.mirror.mirror import Damaged, Mirror, MirrorUnavailable, MirrorVersion, Snapshot
from engine.mirror.source import Connect, connections
from engine.spark.backends import rows_of
from engine.spark.environment import environment_of
from engine.spark.job import SparkJob
from engine.spark.result_loading import Collect, Loading, Parallel
from engine.spark.sessions import Session, SparkSessions, SparkUnavailable
from engine.spark.target import Kind
from sql import jobs
from sql.base.columns import Source
from sql.operators.statement import StagedText, Types
from sql.spark.protocol import Environment
from sql.spark.render import NotExpressible, SparkQuery, typed
from sql.spark.stages import SparkStages
from sql.spark.user_defined.functions import SqlFunction

log = structlog.get_logger(__name__)

DAMAGED_TRIES = 3
"""How often a job is done if the mirror turns out to be damaged: anew over a new copy."""


@dataclass(frozen=True, slots=True)
class SparkResult:
    """What a run did. ``stagings`` are the quoted names of the staging tables, their columns named as the queries'.

    ``snapshot`` (`pg_snapshot` text) is what the rows are the result of. ``extracted`` counts source rows that had to
    be copied into the mirror, ``read`` all rows of the sources.
    """

    stagings: tuple[str, ...]
    loading: Loading
    """To be dropped when the refresh has ended."""
    snapshot: str
    rows: int
    read: int
    extracted: int
    extract_ms: float
    compute_ms: float
    load_ms: float
    sql: str
    """What Spark ran, to be shown."""

    @property
    def staging(self) -> str:
        """The staging table of a job with one query."""
        (staging,) = self.stagings
        return staging

    @property
    def detail(self) -> str:
        """For the history row."""
        return (
            f"{self.read} rows in the mirror ({self.extracted} copied anew),"
            f" extract {self.extract_ms:.0f} ms, compute {self.compute_ms:.0f} ms, load {self.load_ms:.0f} ms"
            + self.loading.described
        )


class Planned(Protocol):
    """Gives the statement of a differential refresh after changes of some sources, and what Spark computes of it."""

    async def __call__(
        self,
        changed: frozenset[int],
        sources: Sequence[Source],
        environment: Environment,
        /,
    ) -> tuple[StagedText, SparkStages]:
        """Raises NotExpressible, SqlError."""
        ...


class RunOptions(TypedDict):
    """What a run must know beside what it computes.

    `connect` gives connections to the session's own database that may read the sources whole. `owner` is the role that
    may read the staging tables. `limit` is in seconds, for Spark's part. A job during which Spark dies is tried `tries`
    times (2). `parallel` says from how many rows on results are written over several connections. `functions` are those
    of users that the query calls.
    """

    database: str
    connect: Connect
    sources: Sequence[Source]
    owner: str
    description: str
    limit: NotRequired[float | None]
    tries: NotRequired[int]
    parallel: NotRequired[Parallel]
    functions: NotRequired[tuple[SqlFunction, ...]]


class SparkExecutor:
    """Computes queries on the sessions of one Spark target, from one mirror."""

    def __init__(self, sessions: SparkSessions, mirror: Mirror):
        self._sessions = sessions
        self._mirror = mirror

    @property
    def warm(self) -> bool:
        """True if a job would not have to wait for Spark's start."""
        return self._sessions.warm

    @property
    def recovering(self) -> bool:
        """True if Spark was lost and does not run again yet."""
        return self._sessions.recovering

    async def run(
        self,
        session: SqlSession,
        *,
        query: str,
        types: Types = (),
        total_orders: bool = True,
        **around: Unpack[RunOptions],
    ) -> SparkResult:
        """Compute `query` (canonical, or a plan's core) as of a snapshot of `session`, into a staging table there.

        `session` must be in a transaction that has not written to the sources, and not in a savepoint (a snapshot
        cannot be exported from one). `types` are names for the query's columns, each with the type that it
        has in PostgreSQL, or ""; of `total_orders` see `render_spark`.

        Raises NotExpressible, before `session` was touched unless a value turned out not to be expressible;
        SparkUnavailable (58000), SparkJobFailed (38000, 57014), SqlError.
        """
        rendered = await _rendered(query, tuple(around["sources"]), total_orders, await _environment(session, around))
        if types:
            rendered = typed(rendered, types, around["sources"])
        return await self._run(session, SparkJob.of_query(rendered), {}, around)

    async def run_refresh(
        self,
        session: SqlSession,
        *,
        planned: Planned,
        changed: frozenset[int],
        since: Mapping[str, Any],
        **around: Unpack[RunOptions],
    ) -> tuple[SparkResult, StagedText]:
        """Compute the stages of a differential refresh from the changes of its sources since a frontier.

        `changed` are the sources that may have changed. The mirror tells which of them have, as of the snapshot:
        the refresh is `planned` for these. As `run` in everything else; there is a staging table for each stage.
        """
        environment = await _environment(session, around)

        async def job_of(changed: frozenset[int]) -> tuple[StagedText, SparkJob]:
            applied, stages = await planned(changed, around["sources"], environment)
            return applied, SparkJob.of_stages(stages)

        applied, job = await job_of(changed)

        async def narrowed(versions: Sequence[MirrorVersion]) -> SparkJob:
            nonlocal applied
            found = frozenset(version.source for version in versions if version.since_changes)
            if not found or found == changed:
                return job
            narrower, smaller = await job_of(found)
            if any(not {*names} <= {*job.reads.get(oid, ())} for oid, names in smaller.reads.items()):
                return job  # it reads what has not been extracted
            applied = narrower
            return smaller

        result = await self._run(session, job, dict.fromkeys(changed, since), around, narrowed)
        return result, applied

    async def _run(
        self,
        session: SqlSession,
        job: SparkJob,
        since: Mapping[int, Mapping[str, Any]],
        around: RunOptions,
        narrowed: Callable[[Sequence[MirrorVersion]], Awaitable[SparkJob]] | None = None,
    ) -> SparkResult:
        for _ in range(DAMAGED_TRIES):
            try:
                return await self._try(session, job, since, around, narrowed)
            except Damaged as error:
                log.warning(
                    "spark_job_repeated", job=around["description"], error="the mirror was damaged", detail=str(error)
                )
        raise MirrorUnavailable("58030", "the mirror is damaged again and again", hint="Look after the disk it is on.")

    async def _try(
        self,
        session: SqlSession,
        job: SparkJob,
        since: Mapping[int, Mapping[str, Any]],
        around: RunOptions,
        narrowed: Callable[[Sequence[MirrorVersion]], Awaitable[SparkJob]] | None,
    ) -> SparkResult:
        self._sessions.check_on()
        # Start Spark while the mirror is written.
        warming = asyncio.ensure_future(self._sessions.warm_up())
        warming.add_done_callback(lambda task: task.cancelled() or task.exception())
        snapshot = await _exported(session)
        async with AsyncExitStack() as held:
            began = time.monotonic()
            with tracing.span("headwater.refresh.extract"):
                versions = await self._extracted(held, job, around, snapshot, since)
            if narrowed is not None:
                job = await narrowed(versions)
            extracted = time.monotonic()
            loading = Loading(around["connect"], around["owner"], around.get("parallel", Parallel()))
            checked = asyncio.ensure_future(self._mirror.check(versions))
            try:
                with tracing.span("headwater.refresh.compute"):
                    await loading.prepare(job.queries)
                    tables = await self._computed(job, versions, around, loading.collect, checked)
                computed = time.monotonic()
                with tracing.span("headwater.refresh.load"):
                    loaded = [
                        await loading.load(session, number, query, table)
                        for number, (query, table) in enumerate(zip(job.queries, tables, strict=True))
                    ]
            except BaseException:
                checked.cancel()
                await asyncio.shield(asyncio.gather(checked, return_exceptions=True))
                await asyncio.shield(loading.drop())
                raise
        return SparkResult(
            stagings=tuple(staging for staging, _ in loaded),
            loading=loading,
            snapshot=snapshot.text,
            rows=sum(rows for _, rows in loaded),
            read=sum(version.rows for version in versions),
            extracted=sum(version.rows for version in versions if not version.reused),
            extract_ms=(extracted - began) * 1000,
            compute_ms=(computed - extracted) * 1000,
            load_ms=(time.monotonic() - computed) * 1000,
            sql=job.sql,
        )

    async def _extracted(
        self,
        held: AsyncExitStack,
        job: SparkJob,
        around: RunOptions,
        snapshot: Snapshot,
        since: Mapping[int, Mapping[str, Any]],
    ) -> list[MirrorVersion]:
        """The mirrors of what a job reads, as of a snapshot; held until `held` ends."""
        by_oid = {source.oid: source for source in around["sources"]}
        versions = []
        async with connections(around["connect"]) as connected:
            for oid, read in job.reads.items():
                at = self._mirror.at(connected, around["database"], by_oid[oid], read, snapshot, since.get(oid))
                versions.append(await held.enter_async_context(at))
        return versions

    async def _computed(
        self,
        job: SparkJob,
        versions: Sequence[MirrorVersion],
        around: RunOptions,
        collect: Collect,
        checked: Awaitable[None],
    ) -> list[pa.Table]:
        """The results of a job over versions that have been `checked`. Raises Damaged, and what `compute` raises."""
        try:
            tables = await self.compute(
                job,
                {source.oid: source for source in around["sources"]},
                versions,
                description=around["description"],
                limit=around.get("limit"),
                tries=around.get("tries", 2),
                collect=collect,
            )
        except Exception:
            await checked  # perhaps that is why
            raise
        # Nothing that Spark has read in a damaged file gets any further.
        await checked
        return tables

    async def compute(
        self,
        job: SparkJob,
        sources: Mapping[int, Source],
        versions: Sequence[MirrorVersion],
        *,
        description: str,
        limit: float | None = None,
        tries: int = 2,
        collect: Collect = lambda _, __, frame: rows_of(frame),
    ) -> list[pa.Table]:
        """What `collect` makes of the job's queries; tried so many times if Spark dies.

        Raises SparkUnavailable (58000), SparkJobFailed (38000, 57014).
        """
        keeps = self._sessions.target.kind is not Kind.SAIL

        def work(spark: Session) -> list[pa.Table]:
            return job.computed(spark, sources, versions, collect, keeps=keeps)

        for last_try in (False,) * (tries - 1) + (True,):
            try:
                async with self._sessions.acquire() as lease:
                    return await lease.run(work, description=description, limit=limit)
            except SparkUnavailable as error:
                if last_try or self._sessions.off or self._sessions.stopped:
                    raise
                log.warning("spark_job_repeated", job=description, error=error.message, detail=error.detail)
        raise AssertionError("unreachable")


_queries: Kept[Hashable, SparkQuery] = Kept(512)


async def _exported(session: SqlSession) -> Snapshot:
    """The snapshot of the session's transaction, for other sessions. Raises SqlError."""
    ((exported, text),) = await session.fetch(
        "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::pg_catalog.text"
    )
    return Snapshot(exported, text)


async def _rendered(
    query: str,
    sources: tuple[Source, ...],
    total_orders: bool,
    environment: Environment,
) -> SparkQuery:
    """A refresh asks for it each time."""
    asked = query, sources, total_orders, environment
    return await _queries.get(asked, lambda: compilers().run(jobs.spark_query, *asked))


async def _environment(session: SqlSession, around: RunOptions) -> Environment:
    found = await environment_of(session, (source.oid for source in around["sources"]))
    return replace(found, functions=around.get("functions", ()))


__all__ = ["NotExpressible", "RunOptions", "SparkExecutor", "SparkResult"]
