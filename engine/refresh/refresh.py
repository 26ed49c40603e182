"""One refresh of one stream table: decide, compute, apply and record, in the session's transaction.

The delta and the new state are read by one statement, hence by one snapshot, whose `pg_snapshot` becomes the new
frontier. In a REPEATABLE READ transaction all statements share a snapshot, so sources that had no change when the
refresh began drop out of the plan; at READ COMMITTED every source takes part.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from catalog.session import SqlError, SqlSession
from engine.compile.compiled_query import CompiledQuery
from engine.compile.pool import work_on_behalf_of
from engine.refresh.executor_choice import (
    NoSpark,
    NotOnSpark,
    Spark,
    SparkDelta,
    SparkFallback,
    SparkRows,
    delta_from_spark,
    learned_costs,
    rows_from_spark,
    rows_of_changes,
)
from engine.refresh.policy import (
    SLOW_MS,
    Action,
    Decision,
    RefreshSettings,
    decide,
    depends_on_size,
    is_fresh,
    learned_threshold,
    settings_of,
    time_limit,
)
from engine.session.roles import run_as_owner
from engine.session.transactions import local_setting, savepoint, set_role
from engine.stream_tables.plan_inputs import compiled, dumps
from engine.stream_tables.plan_store import load_plan
from engine.stream_tables.refresh_state import RefreshContext

logger = structlog.get_logger(__name__)

UNIQUE_VIOLATION = "23505"
QUERY_CANCELED = "57014"
MISSED_CHANGES = "HW003"
"""A source has changed that had not when the refresh began, or was truncated since; or a usual statement did not do."""


class Initiator(StrEnum):
    """Who asked for a refresh (`pgt_refresh_history.initiated_by`)."""

    SCHEDULER = "SCHEDULER"
    MANUAL = "MANUAL"
    INITIAL = "INITIAL"


@dataclass(frozen=True, slots=True)
class RefreshOutcome:
    """What a refresh did, as its history row says it."""

    action: Action
    executor: str
    executor_reason: str
    inserted: int
    updated: int
    deleted: int
    delta: int
    """The captured row images that a differential refresh found when it began."""
    duration_ms: float


async def refresh(
    session: SqlSession,
    context: RefreshContext,
    *,
    initiator: Initiator,
    spark: Spark,
    alone: bool = False,
) -> RefreshOutcome:
    """Bring a stream table up to date and record it, in the session's transaction.

    Where the refresh is `alone` in the transaction and finds nothing, the commit does not wait for the disk. Raises
    SqlError; the caller's transaction is then aborted, or to be rolled back.
    """
    work_on_behalf_of(context.owner)
    clock = time.perf_counter()
    settings, estimated_rows = RefreshSettings(), 0
    if not is_fresh(context):
        settings = settings_of(context)
        if depends_on_size(context, settings):
            estimated_rows = await _estimated_rows(session, context)
    decision = decide(context, settings, estimated_rows)
    salt, executor, executor_reason = context.row_id_salt, "postgres", "nothing to compute"
    applying, computing, given_up = clock, clock, False
    cold, alert, rows_read = False, None, 0
    texts: dict[str, str] = {}
    match decision.action:
        case Action.NO_DATA:
            result: dict[str, Any] = {}
        case Action.DIFFERENTIAL:
            inputs = await load_plan(session, context)
            plan = await compiled(inputs)
            rows_read = rows_of_changes(context)
            delta: SparkDelta | None = None
            try:
                delta = await delta_from_spark(session, context, inputs, settings, spark)
                executor, executor_reason, cold = "spark", delta.detail, delta.cold
                texts = {"spark_delta_sql": delta.sql}
                statement = delta.statement
            except NotOnSpark as reason:
                executor_reason = f"{context.pending} changes; {reason}"
                alert = reason.alert if isinstance(reason, SparkFallback) else None
                statement = await plan.refresh_sql(context.storage, context.changed, usual=_is_usual(context, plan))
            applying = time.perf_counter()
            try:
                result = await _differential(session, context, plan, statement, delta, time_limit(context, settings))
            except _NotApplied as failure:
                executor, given_up = "postgres", failure.given_up
                action = Action.FULL if given_up else Action.REINITIALIZE
                decision = Decision(action, str(failure), fallback=True)
                computing = time.perf_counter()
                result, salt = await _full_with_salts(session, context, plan, None, first=salt + failure.salts_used)
            finally:
                if delta is not None:
                    delta.release()
        case _:
            inputs, rows_read = await load_plan(session, context), estimated_rows
            rows: SparkRows | None = None
            try:
                rows = await rows_from_spark(session, context, inputs, settings, estimated_rows, spark)
                executor, executor_reason, cold = "spark", rows.detail, rows.cold
                texts = {"spark_sql": rows.sql}
            except NotOnSpark as reason:
                executor_reason = str(reason)
                alert = reason.alert if isinstance(reason, SparkFallback) else None
            try:
                result, salt = await _full_with_salts(session, context, await compiled(inputs), rows, first=salt)
            finally:
                if rows is not None:
                    rows.release()
    finished = time.perf_counter()
    outcome = RefreshOutcome(
        action=decision.action,
        executor=executor,
        executor_reason=executor_reason,
        inserted=int(result.get("inserted", 0)),
        updated=int(result.get("updated", 0)),
        deleted=int(result.get("deleted", 0)),
        delta=context.pending if decision.action is Action.DIFFERENTIAL else 0,
        duration_ms=(finished - clock) * 1000,
    )
    record = {
        "action": outcome.action,
        "status": "COMPLETED",
        "initiated_by": initiator,
        "seconds": time.perf_counter() - clock,
        "rows_inserted": outcome.inserted,
        "rows_updated": outcome.updated,
        "rows_deleted": outcome.deleted,
        "delta_row_count": outcome.delta,
        "executor": executor,
        "executor_reason": f"{decision.reason}; {executor_reason}",
        "was_full_fallback": decision.fallback,
    }
    if outcome.action is not Action.NO_DATA:
        record |= {
            "frontier": {key: result.get(key) for key in ("snapshot", "xid", "change_id")},
            "merge_strategy_used": "DELETE+UPDATE+INSERT",
            "row_id_salt": salt,
        }
    if "memory" in result or result.get("unusual"):
        record["memory"] = {"groups": result.get("memory", {}), "unusual": bool(result.get("unusual"))}
    if outcome.action in (Action.FULL, Action.REINITIALIZE):
        record["last_full_ms"] = (finished - computing) * 1000
    if texts:
        record["texts"] = texts
    if alert is not None:
        record["alert"] = {"event": "spark_failed", "reason": alert}
    elif not cold and not isinstance(spark, NoSpark):
        costs = learned_costs(context, settings, outcome.action, executor, rows_read, outcome.duration_ms)
        record |= {} if costs is None else {"executor_costs": costs}
    applied_ms = (finished - applying) * 1000
    if (decision.action is Action.DIFFERENTIAL or given_up) and not estimated_rows and applied_ms > SLOW_MS:
        estimated_rows = await _estimated_rows(session, context)
    threshold = learned_threshold(context, decision, estimated_rows, applied_ms, given_up=given_up)
    if threshold is not None:
        record["auto_threshold"] = threshold
    finish = "SELECT pgtrickle._finish_refresh($1::bigint, $2::text::jsonb)::text"
    if alone and outcome.action is Action.NO_DATA:
        finish += ", pg_catalog.set_config('synchronous_commit', 'off', true)"
    await session.fetch(finish, context.pgt_id, dumps(record))
    logger.debug(
        "refreshed",
        stream_table=f"{context.schema}.{context.name}",
        action=outcome.action.value,
        reason=decision.reason,
        executor=executor,
        inserted=outcome.inserted,
        updated=outcome.updated,
        deleted=outcome.deleted,
        ms=round(outcome.duration_ms, 1),
    )
    return outcome


async def _estimated_rows(session: SqlSession, context: RefreshContext) -> int:
    """Rows that a full refresh reads, as PostgreSQL's planner estimates them from the present size of the tables."""
    # Not: what is only read through a view, which the owner of the stream table may be forbidden to read.
    read = [source.qualified for source in context.sources if source.captured]
    if not read:
        return 0
    every = " UNION ALL ".join(f"SELECT 1 FROM {name}" for name in read)
    plans = await run_as_owner(session, context.owner, f"EXPLAIN (FORMAT JSON) {every}", {}, current=context.caller)
    return int(plans[0]["Plan"]["Plan Rows"])


class _RowIdCollision(Exception):
    """Two different rows of a stream table hash to one `__pgt_row_id` under the present salt."""


class _NotApplied(Exception):
    """The changes were not applied, or not all of them; the table has to be computed as a whole."""

    def __init__(self, reason: str, *, salts_used: int = 0, given_up: bool = False):
        super().__init__(reason)
        self.salts_used = salts_used
        self.given_up = given_up
        """Whether it only took too long."""


def _groups(context: RefreshContext) -> dict[str, Any]:
    """What the last differential refresh has handed on to the statement of this one."""
    return dict((context.memory or {}).get("groups", {}))


def _is_usual(context: RefreshContext, plan: CompiledQuery) -> bool:
    """Whether a statement will do that leaves out what is hardly ever needed."""
    return plan.remembers(_groups(context)) and not (context.memory or {}).get("unusual")


async def _differential(
    session: SqlSession,
    context: RefreshContext,
    plan: CompiledQuery,
    statement: str,
    delta: SparkDelta | None,
    limit: float | None,
) -> dict[str, Any]:
    """Apply the changes. Raises _NotApplied, also if a statement takes longer than the limit in milliseconds."""
    parameters = dict(context.frontier or {}) | {"salt": context.row_id_salt, "memory": _groups(context)}
    result = await _apply_within(session, context, statement, parameters, limit)
    if delta is not None and not result.get("failed"):
        # The changes are those up to the snapshot that Spark's input was read at.
        result |= {"snapshot": delta.snapshot, "xid": None, "change_id": None}
    if delta is not None and result.get("failed") == MISSED_CHANGES:
        raise _NotApplied("a source was truncated while Spark computed the changes")
    if result.get("failed") == MISSED_CHANGES:
        every = await plan.refresh_sql(context.storage, frozenset(source.oid for source in context.sources))
        result = await _apply_within(session, context, every, parameters, limit)
    failed = result.get("failed")
    if failed == MISSED_CHANGES:
        raise _NotApplied("a source was truncated meanwhile")
    if failed == UNIQUE_VIOLATION:
        raise _NotApplied("two rows had one __pgt_row_id", salts_used=1)
    if failed:
        # A row that is gone may have met one that never was beside it; what is there now decides.
        # Only its class: the message can quote a row, and the history is read by everybody.
        raise _NotApplied(f"the changes alone cannot be computed ({failed})")
    if result.get("missing"):
        raise _NotApplied(f"{result['missing']} rows were missing in the storage table")
    return result


async def _full(
    session: SqlSession, context: RefreshContext, plan: CompiledQuery, salt: int, rows: SparkRows | None = None
) -> dict[str, Any]:
    uncaptured = frozenset(source.oid for source in context.sources if not source.captured)
    if rows is not None:
        statement = await plan.staged_sql(context.storage, rows.staging, uncaptured)
    elif context.is_populated:
        statement = await plan.full_sql(context.storage, uncaptured)
    else:
        statement = await plan.populate_sql(context.storage, uncaptured)
    result = await _apply(session, context, statement, {"salt": salt}, changes=False)
    if result.get("failed"):
        raise _RowIdCollision
    if rows is not None:
        # The rows are as of the snapshot that Spark's input was read at, not as of the statement that stored them.
        result |= {"snapshot": rows.snapshot, "xid": None, "change_id": None}
    return result


async def _full_with_salts(
    session: SqlSession, context: RefreshContext, plan: CompiledQuery, rows: SparkRows | None, *, first: int
) -> tuple[dict[str, Any], int]:
    """A full refresh; every collision of row ids is answered with another salt."""
    for salt in range(first, first + 8):
        try:
            return await _full(session, context, plan, salt, rows), salt
        except _RowIdCollision:
            logger.warning("row id collision", stream_table=context.storage, salt=salt)
    raise SqlError("XX000", f'row ids of stream table "{context.name}" collide under every salt')


async def _apply_within(
    session: SqlSession, context: RefreshContext, statement: str, parameters: dict[str, Any], limit: float | None
) -> dict[str, Any]:
    """`_apply` for changes. What takes longer than the limit, in milliseconds, is undone. Raises _NotApplied."""
    if limit is None:
        return await _apply(session, context, statement, parameters, changes=True)
    # What is put back afterwards is what holds before the limit does.
    await session.keep_settings(context.owner)
    began = time.perf_counter()
    try:
        async with savepoint(session), local_setting(session, "statement_timeout", f"{limit:.0f}ms"):
            began = time.perf_counter()
            return await _apply(session, context, statement, parameters, changes=True)
    except SqlError as error:
        # The session's own statement_timeout is longer. Whoever cancels the statement means the refresh.
        passed = (time.perf_counter() - began) * 1000
        if error.sqlstate != QUERY_CANCELED or passed < limit or "user request" in error.message:
            raise
    full = f"a full refresh, which took {context.last_full_ms or 0:.0f} ms"
    raise _NotApplied(f"to apply the changes took {limit:.0f} ms and had not ended, against {full}", given_up=True)


async def _apply(
    session: SqlSession, context: RefreshContext, statement: str, parameters: dict[str, Any], *, changes: bool
) -> dict[str, Any]:
    """Run a statement that changes the storage table; {"failed": SQLSTATE} if it was undone (`pgtrickle._apply`).

    ``changes``: it is that of a differential refresh.
    """
    called = "_apply_changes($1::text, $2::text::jsonb)" if changes else "_apply($1::text, $2::text::jsonb, false)"
    async with set_role(session, context.owner, current=context.caller):
        ((text,),) = await session.fetch(f"SELECT pgtrickle.{called}::text", statement, dumps(parameters))
    return dict(json.loads(text))
