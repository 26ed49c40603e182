"""Refreshes on Spark, as a refresh sees them: for one database, with a reason where Spark does not compute."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import structlog

from catalog.session import SqlSession
from catalog.values import Action, Executor
from engine.foreign_tables.lake_polling import LakeReader
from engine.mirror.mirror import MirrorUnavailable
from engine.refresh.executor_choice import NotOnSpark, SparkDelta, SparkJobError, SparkRows
from engine.refresh.policy import FailurePolicy, RefreshSettings, insisted_on, settings_of, whole_action
from engine.session.pool import DatabasePool
from engine.session.roles import run_as_owner
from engine.session.transactions import set_role
from engine.spark.executor import RunOptions, SparkExecutor
from engine.spark.known_failures import SparkFailures
from engine.spark.result_loading import Loading, Parallel
from engine.spark.sessions import SparkJobFailed, SparkUnavailable
from engine.stream_tables.plan_inputs import PlanInputs, compiled, guard
from engine.stream_tables.plan_store import KEPT_PLANS
from engine.stream_tables.refresh_state import RefreshContext
from engine.stream_tables.sql_functions import FunctionsRefused, SqlFunctions
from sql import NotDifferentiable
from sql.spark.render import NotExpressible

logger = structlog.get_logger(__name__)

WAITING_SECONDS = 3600.0
"""For which a job waits for its turn and for Spark, at most: the role of its executors is good for that and the job."""

ANY_JOB_SECONDS = 86400.0
"""How long it lasts where a job's time has no limit."""

# Shows that the refresh is on Spark.
_BEGIN_JOB = "SELECT pgtrickle._note_progress($1::bigint, 3, $2::text)"


class DatabaseOnSpark:
    """Implements `placement.Spark` for the stream tables of one database."""

    def __init__(
        self,
        executor: SparkExecutor,
        pool: DatabasePool,
        address: Callable[[str], str] | None = None,
        lake: LakeReader | None = None,
    ):
        """`address` gives, for a database's name, where Spark's executors find it to write large results themselves."""
        self._executor = executor
        self._pool = pool
        self._address = address
        self.lake = lake
        self._dropping: set[asyncio.Future[None]] = set()
        self._failures = SparkFailures()
        self._understood: set[str] = set()
        """Plans whose texts mean to the compiler what they mean to PostgreSQL."""
        self._functions = SqlFunctions()

    async def compute(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkRows:
        """See `placement.Spark.compute`. A Spark that fails is a reason not to use it, and is logged."""
        if not plan.sources:
            raise NotOnSpark("a source is not an ordinary table")
        cold = not self._executor.warm
        core = (await compiled(plan)).core
        self._check_not_failed(context, "full", core.query)
        await self._check_understood(session, context, plan)
        expected = await _check_readable(session, context.owner, plan, core.query)
        with self._reasons(context, "full", core.query):
            result = await self._executor.run(
                session,
                query=core.spark,
                types=core.types,
                total_orders=plan.differentiable,
                **await self._circumstances(session, context, plan, "full", expected),
            )
        release = partial(self._release, result.loading)
        return SparkRows(result.staging, result.snapshot, result.rows, result.detail, cold, release, result.sql)

    async def compute_delta(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkDelta:
        """See `placement.Spark.compute_delta`."""
        cold = not self._executor.warm
        query = await compiled(plan)
        # Each statement of a READ COMMITTED transaction can see changes that the one before did not.
        every = frozenset(source.oid for source in query.sources)
        changed = context.capture.changed & every if context.one_snapshot else every
        self._check_not_failed(context, "differential", query.core.query)
        await self._check_understood(session, context, plan)
        await _check_readable(session, context.owner, plan, query.core.query)
        with self._reasons(context, "differential", query.core.query):
            result, applied = await self._executor.run_refresh(
                session,
                planned=partial(query.spark_refresh, context.storage),
                changed=changed,
                since=context.capture.frontier or {},
                **await self._circumstances(session, context, plan, "differential"),
            )
        statement = applied.over(result.stagings)
        release = partial(self._release, result.loading)
        return SparkDelta(statement, result.snapshot, result.detail, cold, release, result.sql)

    def _check_not_failed(self, context: RefreshContext, kind: str, query: str) -> None:
        """Raises NotOnSpark where Spark would fail once more, or is to be waited for, unless it is insisted on."""
        if _insisted(context, settings_of(context)):
            return
        if self._executor.recovering:
            raise NotOnSpark("Spark was lost, and is being started again")
        if reason := self._failures.reason(context.pgt_id, kind, query):
            raise NotOnSpark(reason)

    async def _check_understood(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> None:
        """See to it that Spark reads what PostgreSQL is asked about: the owner can write the texts that are kept.

        Raises NotOnSpark for a text that PostgreSQL reads otherwise, and SqlError for one that it does not read.
        """
        if context.plan in self._understood:
            return
        try:
            async with set_role(session, context.owner, current=context.caller):
                for text in (plan.canonical, *(view.text for view in plan.views)):
                    await guard(session, text)
        except NotDifferentiable as reason:
            raise NotOnSpark(f"Spark cannot compute it with PostgreSQL's results: {reason.construct}") from reason
        if context.plan:
            if len(self._understood) >= KEPT_PLANS:
                self._understood.clear()
            self._understood.add(context.plan)

    @contextmanager
    def _reasons(self, context: RefreshContext, kind: str, query: str) -> Iterator[None]:
        """Why Spark does not compute, as a refresh wants to hear it."""
        try:
            yield
        except NotExpressible as reason:
            raise NotOnSpark(f"Spark cannot compute it with PostgreSQL's results: {reason}") from reason
        except (SparkUnavailable, SparkJobFailed, MirrorUnavailable) as error:
            self._failures.note(context.pgt_id, kind, query, error.sqlstate)
            stream_table = f"{context.schema}.{context.name}"
            logger.warning("Spark failed", stream_table=stream_table, error=error.message, detail=error.detail)
            raise SparkJobError(error) from error

    def _release(self, loading: Loading) -> None:
        """Drop the staging areas of a refresh as soon as its transaction has ended."""
        if loading.areas:
            dropping = asyncio.ensure_future(loading.drop())
            self._dropping.add(dropping)
            dropping.add_done_callback(self._dropping.discard)

    async def _circumstances(
        self, session: SqlSession, context: RefreshContext, plan: PlanInputs, kind: str, expected: int = 0
    ) -> RunOptions:
        settings = settings_of(context)
        address = self._address and self._address(self._pool.database)
        # What PostgreSQL can do does not wait until a Spark that was lost has been started again.
        tries = 2 if settings.spark_failure_policy == FailurePolicy.RETRY and _insisted(context, settings) else 1
        seconds = (settings.spark_timeout + WAITING_SECONDS) * tries if settings.spark_timeout else ANY_JOB_SECONDS
        try:
            functions = await self._functions.of(session, context.pgt_id, context.owner, context.caller)
        except FunctionsRefused as reason:
            raise NotOnSpark(str(reason)) from reason
        action = Action.DIFFERENTIAL if kind == "differential" else whole_action(context)
        await session.fetch(_BEGIN_JOB, context.pgt_id, action.value)
        return {
            "database": self._pool.database,
            "connect": self._pool.connect,
            "sources": plan.sources,
            "functions": functions,
            "owner": context.owner,
            "description": f"{kind} refresh of stream table {context.schema}.{context.name}",
            "limit": settings.spark_timeout or None,
            "tries": tries,
            "parallel": Parallel(settings.spark_parallel_rows, expected, address, seconds),
        }


def _insisted(context: RefreshContext, settings: RefreshSettings) -> bool:
    """Whether nobody but Spark is to compute it."""
    return insisted_on(context.engine, settings) is Executor.SPARK


_NAMES = """
SELECT c.oid::pg_catalog.int8, n.nspname::pg_catalog.text, c.relname::pg_catalog.text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.oid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.int8[]::pg_catalog.oid[])
"""


async def _check_readable(session: SqlSession, owner: str, plan: PlanInputs, query: str) -> int:
    """Returns how many rows PostgreSQL's planner expects of the query.

    The mirror is filled with the engine's rights, so PostgreSQL is asked first what it thinks of the owner's.

    Plans are kept where the owner can change them: what they say of a source is compared with what it is. Raises
    NotOnSpark, and SqlError 42501 if the owner may not read all that the query reads.
    """
    names = await session.fetch(_NAMES, [source.oid for source in plan.sources])
    if {(int(oid), schema, name) for oid, schema, name in names} != {(s.oid, s.schema, s.name) for s in plan.sources}:
        raise NotOnSpark("a source is not what it was when the query was planned")
    plans = await run_as_owner(session, owner, f"EXPLAIN (FORMAT JSON) {query}", {})
    return int(plans[0]["Plan"]["Plan Rows"])
