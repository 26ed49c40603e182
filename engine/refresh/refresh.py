"""One refresh of one stream table: decide, compute, apply and record, in the session's transaction.

The delta and the new state are read by one statement, hence by one snapshot, whose `pg_snapshot` becomes the new
frontier. In a REPEATABLE READ transaction all statements share a snapshot, so sources that had no change when the
refresh began drop out of the plan; at READ COMMITTED every source takes part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from typing import Any

import structlog

from catalog.session import SqlError, SqlSession
from catalog.values import Action, Executor, Initiator, RefreshStatus
from engine import tracing
from engine.compile.compiled_query import CompiledQuery
from engine.compile.pool import work_on_behalf_of
from engine.refresh.applying import Applied, apply_changes, apply_rows, ms_since
from engine.refresh.computing import Computed, changes_to_apply, rows_to_apply
from engine.refresh.estimated_costs import last_differential
from engine.refresh.executor_choice import NoSpark, Spark, learned_costs, rows_of_changes
from engine.refresh.failures import attempting
from engine.refresh.policy import (
    NO_ROWS,
    Decision,
    RefreshSettings,
    Sizes,
    decide,
    depends_on_size,
    is_fresh,
    learned_threshold,
    may_teach,
    settings_of,
    time_limit,
)
from engine.refresh.record import Job, RefreshOutcome, RefreshRecord, as_attributes, finish, spark_alert
from engine.session.roles import run_as_owner
from engine.stream_tables.append_only import ROWS_GO, revert_append_only, rows_go
from engine.stream_tables.refresh_state import RefreshContext

logger = structlog.get_logger(__name__)


async def refresh(
    session: SqlSession,
    context: RefreshContext,
    *,
    initiator: Initiator,
    spark: Spark,
    alone: bool = False,
    job: Job | None = None,
    iteration: int | None = None,
) -> RefreshOutcome:
    """Bring a stream table up to date and record it, in the session's transaction.

    Where the refresh is `alone` in the transaction and finds nothing, the commit does not wait for the disk. `job` is
    what the scheduler has told a worker to do; `iteration` counts the rounds of a circle. Raises
    Unpopulated, before anything is done, and SqlError; the caller's transaction is then aborted, or to be rolled back.
    """
    with _traced(context, initiator) as traced:
        outcome, record = await _refresh(session, context, initiator, spark, job, iteration)
        with tracing.span("headwater.refresh.record"):
            await finish(session, context.pgt_id, record, lazily=alone and outcome.action is Action.NO_DATA)
        traced.set(as_attributes(record))
        logger.debug(
            "refreshed",
            stream_table=f"{context.schema}.{context.name}",
            action=outcome.action.value,
            reason=record.executor_reason,
            executor=outcome.executor,
            inserted=outcome.inserted,
            updated=outcome.updated,
            deleted=outcome.deleted,
            ms=round(outcome.duration_ms, 1),
        )
    return outcome


@contextmanager
def _traced(context: RefreshContext, initiator: Initiator) -> Iterator[tracing.Span]:
    """The span of a refresh."""
    with tracing.span("headwater.refresh") as traced:
        if tracing.is_recording():
            name = f"{context.schema}.{context.name}"
            traced.set({"headwater.stream_table": name, "headwater.initiator": initiator.value})
        yield traced


async def _refresh(
    session: SqlSession,
    context: RefreshContext,
    initiator: Initiator,
    spark: Spark,
    job: Job | None,
    iteration: int | None,
) -> tuple[RefreshOutcome, RefreshRecord]:
    """Decide, compute and apply; what was done, and what is to be recorded of it."""
    work_on_behalf_of(context.owner)
    began = time.perf_counter()
    decision, settings, sizes = await _decide(session, context)
    if decision.action in (Action.FULL, Action.REINITIALIZE):
        await _refuse_unpopulated(session, context)
    if decision.action is Action.NO_DATA:
        outcome = RefreshOutcome(decision.action, Executor.POSTGRES, "nothing to compute", duration_ms=ms_since(began))
        record = _record(initiator, decision, outcome)
    else:
        context, decision = await _without_append_only(session, context, decision)
        with attempting(decision.action):
            async with _compute(session, context, decision, settings, sizes.total, spark) as computed:
                with tracing.span("headwater.refresh.apply"):
                    applied = await _apply(session, context, decision, settings, computed)
        decision, outcome = applied.decision, _outcome(context, computed, applied, ms_since(began))
        record = replace(
            _with_state(_record(initiator, decision, outcome), computed, applied),
            last_full_ms=_full_ms(applied, outcome),
            executor_costs=_learned_costs(context, settings, computed, applied, outcome, spark),
            auto_threshold=await _learned_threshold(session, context, applied, sizes),
        )
    record = replace(record, data_timestamp=context.read_as_of, fixpoint_iteration=iteration)
    if job is not None:
        record = replace(record, job=job.to_record())
    return outcome, record


async def exchange_query(
    session: SqlSession, context: RefreshContext, plan: CompiledQuery, reason: str, *, initiator: Initiator
) -> RefreshOutcome:
    """Take a stream table from its query to another one by a `plan` that has its place (`Query.before`), up to date.

    In the session's transaction. Where that fails, all rows are computed. Raises SqlError.
    """
    work_on_behalf_of(context.owner)
    began = time.perf_counter()
    with _traced(context, initiator) as traced:
        statement = await plan.refresh_sql(context.storage, context.capture.changed, late=context.capture.late)
        reads = f"{context.capture.pending} changes"
        computed = Computed(plan, statement, Executor.POSTGRES, reads, rows_of_changes(context))
        with tracing.span("headwater.refresh.apply"):
            applied = await apply_changes(session, context, Decision(Action.DIFFERENTIAL, reason), computed, None)
        outcome = _outcome(context, computed, applied, ms_since(began))
        record = _with_state(_record(initiator, applied.decision, outcome), computed, applied)
        with tracing.span("headwater.refresh.record"):
            await finish(session, context.pgt_id, record)
        traced.set(as_attributes(record))
    return outcome


async def _decide(session: SqlSession, context: RefreshContext) -> tuple[Decision, RefreshSettings, Sizes]:
    """What to do; by which settings; and how many rows a full refresh reads, none where that decides nothing."""
    if is_fresh(context):
        settings = RefreshSettings()
        return decide(context, settings, NO_ROWS), settings, NO_ROWS
    settings = settings_of(context)
    sizes = await _sizes(session, context) if depends_on_size(context, settings) else NO_ROWS
    return decide(context, settings, sizes), settings, sizes


_UNPOPULATED = """
SELECT pg_catalog.format('%I.%I', s.pgt_schema, s.pgt_name)
FROM pgtrickle.pgt_dependencies d
JOIN pgtrickle.pgt_stream_tables s ON s.pgt_relid OPERATOR(pg_catalog.=) d.source_relid
WHERE d.pgt_id OPERATOR(pg_catalog.=) $1::bigint AND NOT s.is_populated
  AND s.pgt_id OPERATOR(pg_catalog.<>) ALL ($2::bigint[])
ORDER BY 1
"""


class Unpopulated(SqlError):
    """A stream table would be computed from the empty table of another one, its `source`: 55000."""

    def __init__(self, name: str, source: str):
        hint = f"Refresh that first: SELECT pgtrickle.refresh_stream_table('{source}');"
        super().__init__("55000", f'stream table "{name}" reads "{source}", which is not populated', hint=hint)
        self.source = source


async def _refuse_unpopulated(session: SqlSession, context: RefreshContext) -> None:
    """Raises Unpopulated if it reads a stream table that has never been computed, and is not computed with it."""
    computed = context.circle if context.computed_whole is not None else ()
    for (source,) in await session.fetch(_UNPOPULATED, context.pgt_id, list(computed)):
        raise Unpopulated(context.name, str(source))


async def _without_append_only(
    session: SqlSession, context: RefreshContext, decision: Decision
) -> tuple[RefreshContext, Decision]:
    """Where rows are expected only to come, and one has gone, that is over."""
    if not (context.append_only and await rows_go(session, context)):
        return context, decision
    await revert_append_only(session, context, ROWS_GO)
    reason = f"{decision.reason}; append_only was reverted, since {ROWS_GO}"
    return replace(context, append_only=False), replace(decision, reason=reason)


def _compute(
    session: SqlSession,
    context: RefreshContext,
    decision: Decision,
    settings: RefreshSettings,
    estimated_rows: int,
    spark: Spark,
) -> AbstractAsyncContextManager[Computed]:
    """The changes, or all rows."""
    if decision.action is Action.DIFFERENTIAL:
        return changes_to_apply(session, context, settings, spark)
    return rows_to_apply(session, context, settings, estimated_rows, spark)


async def _apply(
    session: SqlSession, context: RefreshContext, decision: Decision, settings: RefreshSettings, computed: Computed
) -> Applied:
    if decision.action is Action.DIFFERENTIAL:
        return await apply_changes(session, context, decision, computed, time_limit(context, settings))
    return await apply_rows(session, context, decision, computed)


def _outcome(context: RefreshContext, computed: Computed, applied: Applied, duration_ms: float) -> RefreshOutcome:
    action = applied.decision.action
    return RefreshOutcome(
        action=action,
        executor=applied.executor,
        executor_reason=computed.executor_reason,
        inserted=int(applied.result.get("inserted", 0)),
        updated=int(applied.result.get("updated", 0)),
        deleted=int(applied.result.get("deleted", 0)),
        delta=context.capture.pending if action is Action.DIFFERENTIAL else 0,
        duration_ms=duration_ms,
    )


def _record(initiator: Initiator, decision: Decision, outcome: RefreshOutcome) -> RefreshRecord:
    """What the history says of a refresh."""
    return RefreshRecord(
        action=outcome.action,
        status=RefreshStatus.COMPLETED,
        initiated_by=initiator,
        seconds=outcome.duration_ms / 1000,
        rows_inserted=outcome.inserted,
        rows_updated=outcome.updated,
        rows_deleted=outcome.deleted,
        delta_row_count=outcome.delta,
        executor=outcome.executor,
        executor_reason=f"{decision.reason}; {outcome.executor_reason}",
        was_full_fallback=decision.fallback,
    )


def _with_state(record: RefreshRecord, computed: Computed, applied: Applied) -> RefreshRecord:
    """With what the storage table holds now, and what the next refresh builds on."""
    result, memory = applied.result, None
    if "memory" in result or result.get("unusual"):
        memory = {"groups": result.get("memory", {}), "unusual": bool(result.get("unusual"))}
    return replace(
        record,
        merge_strategy_used=_strategy(applied.decision.action, computed, result),
        frontier={key: result.get(key) for key in ("snapshot", "xid", "change_id")},
        row_id_salt=applied.salt,
        memory=memory,
        texts=dict(computed.texts) or None,
        alert=None if computed.alert is None else spark_alert(computed.alert),
    )


def _strategy(action: Action, computed: Computed, result: dict[str, Any]) -> str:
    """How the storage table was changed: a statement that only inserts does not count what it has not found."""
    inserts = action is Action.DIFFERENTIAL and computed.append_only and "missing" not in result
    return "INSERT" if inserts else "DELETE+UPDATE+INSERT"


def _full_ms(applied: Applied, outcome: RefreshOutcome) -> float | None:
    """What a full refresh has taken, from its decision on; None if it was none."""
    if outcome.action is Action.DIFFERENTIAL:
        return None
    return outcome.duration_ms if applied.instead_ms is None else applied.instead_ms


def _learned_costs(
    context: RefreshContext,
    settings: RefreshSettings,
    computed: Computed,
    applied: Applied,
    outcome: RefreshOutcome,
    spark: Spark,
) -> dict[str, Any] | None:
    """The new `executor_costs`, None where there is nothing to learn: there was no choice, or something was unusual."""
    if isinstance(spark, NoSpark) or computed.cold or computed.alert is not None:
        return None
    # How many rows are read where all are stored instead of the changes is not known.
    read, ms = computed.rows_read if applied.instead_ms is None else 0, outcome.duration_ms
    return learned_costs(context, settings, outcome.action, outcome.executor, read, ms)


async def _learned_threshold(
    session: SqlSession, context: RefreshContext, applied: Applied, sizes: Sizes
) -> float | None:
    """The new `auto_threshold`, None where there is nothing to learn."""
    decision, before = applied.decision, None
    if not applied.given_up:
        if not may_teach(context, decision, applied.ms):
            return None
        before = await last_differential(session, context)
    if not sizes.rows:
        sizes = await _sizes(session, context)
    return learned_threshold(context, decision, sizes, applied.ms, given_up=applied.given_up, before=before)


async def _sizes(session: SqlSession, context: RefreshContext) -> Sizes:
    """Rows that a full refresh reads, as PostgreSQL's planner estimates them from the present size of the tables."""
    # Not: what is only read through a view, which the owner of the stream table may be forbidden to read.
    read = {f"s{source.oid}": source for source in context.capture.sources if source.captured}
    if not read:
        return NO_ROWS
    every = " UNION ALL ".join(f"SELECT 1 FROM {source.qualified} AS {alias}" for alias, source in read.items())
    plans = await run_as_owner(session, context.owner, f"EXPLAIN (FORMAT JSON) {every}", {}, current=context.caller)
    rows = dict.fromkeys((source.oid for source in read.values()), 0)
    for scan in _scans(plans[0]["Plan"]):
        source = read.get(str(scan["Alias"]).partition("_")[0])  # that of a partition goes on: s16384_1
        if source is not None:
            rows[source.oid] += int(scan["Plan Rows"])
    return Sizes(rows)


def _scans(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The scans of a plan: what has an alias and nothing below."""
    for below in plan.get("Plans", ()):
        yield from _scans(below)
    if "Alias" in plan and not plan.get("Plans"):
        yield plan
