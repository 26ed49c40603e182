"""What a refresh applies: the statement, and what Spark has computed for it where Spark is chosen."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from catalog.session import SqlSession
from catalog.values import Executor
from engine import tracing
from engine.compile.compiled_query import CompiledQuery
from engine.refresh.executor_choice import (
    NotOnSpark,
    Spark,
    SparkFallback,
    delta_from_spark,
    rows_from_spark,
    rows_of_changes,
)
from engine.refresh.policy import RefreshSettings
from engine.refresh.whole import uncaptured, whole_query
from engine.stream_tables.plan_inputs import compiled
from engine.stream_tables.plan_store import load_plan
from engine.stream_tables.refresh_state import RefreshContext

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Computed:
    """A statement that changes the storage table, and who computes what it applies."""

    plan: CompiledQuery
    statement: str
    executor: Executor
    executor_reason: str
    rows_read: int
    """As estimated: of the changes, or of all sources."""
    snapshot: str | None = None
    """At which Spark has read its input; None where the statement reads it."""
    cold: bool = False
    """Whether Spark had to be started."""
    alert: str | None = None
    """Why Spark has failed, where PostgreSQL computes instead."""
    append_only: bool = False
    """Whether the statement only inserts, unless that does not do."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """What Spark ran, to be shown."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What the statement takes beside the salt."""


@asynccontextmanager
async def changes_to_apply(
    session: SqlSession, context: RefreshContext, settings: RefreshSettings, spark: Spark
) -> AsyncIterator[Computed]:
    """The changes since the frontier. What Spark has staged of them is there within the block.

    Raises as `delta_from_spark`, but for NotOnSpark, and SqlError 54001.
    """
    with tracing.span("headwater.refresh.plan"):
        inputs, rows_read = await load_plan(session, context), rows_of_changes(context)
        plan = await compiled(inputs)
    delta = await _unless_refused(delta_from_spark(session, context, inputs, settings, spark))
    if isinstance(delta, NotOnSpark):
        usual, late = _is_usual(context, plan), context.capture.late
        with tracing.span("headwater.refresh.write"):
            text = await plan.refresh_sql(context.storage, context.capture.changed, usual=usual, late=late)
        reason = f"{context.capture.pending} changes; {delta}"
        append_only = inputs.append_only
        yield Computed(plan, text, Executor.POSTGRES, reason, rows_read, alert=_alert(delta), append_only=append_only)
        return
    try:
        texts = {"spark_delta_sql": delta.sql}
        yield Computed(
            plan, delta.statement, Executor.SPARK, delta.detail, rows_read, delta.snapshot, cold=delta.cold, texts=texts
        )
    finally:
        delta.release()


@asynccontextmanager
async def rows_to_apply(
    session: SqlSession, context: RefreshContext, settings: RefreshSettings, estimated_rows: int, spark: Spark
) -> AsyncIterator[Computed]:
    """All rows. What Spark has staged of them is there within the block.

    `estimated_rows` is how many it takes to read. Raises as `rows_from_spark`, but for NotOnSpark, and SqlError 54001.
    """
    with tracing.span("headwater.refresh.plan"):
        inputs = await load_plan(session, context)
        plan = await compiled(inputs)
    rows = await _unless_refused(rows_from_spark(session, context, inputs, settings, estimated_rows, spark))
    if isinstance(rows, NotOnSpark):
        with tracing.span("headwater.refresh.write"):
            whole = await whole_query(session, context, plan)
        reason = f"{rows}; computed by several processes" if whole.parameters else str(rows)
        yield Computed(
            plan,
            whole.statement,
            Executor.POSTGRES,
            reason,
            estimated_rows,
            alert=_alert(rows),
            parameters=whole.parameters,
        )
        return
    try:
        texts = {"spark_sql": rows.sql}
        text = await plan.staged_sql(context.storage, rows.staging, uncaptured(context))
        yield Computed(
            plan, text, Executor.SPARK, rows.detail, estimated_rows, rows.snapshot, cold=rows.cold, texts=texts
        )
    finally:
        rows.release()


def handed_on(context: RefreshContext) -> dict[str, Any]:
    """What the last differential refresh has handed on to the statement of this one."""
    return dict((context.learned.memory or {}).get("groups", {}))


def _is_usual(context: RefreshContext, plan: CompiledQuery) -> bool:
    """Whether a statement will do that leaves out what is hardly ever needed."""
    return plan.remembers(handed_on(context)) and not (context.learned.memory or {}).get("unusual")


async def _unless_refused(work: Awaitable[R]) -> R | NotOnSpark:
    try:
        return await work
    except NotOnSpark as reason:
        return reason


def _alert(reason: NotOnSpark) -> str | None:
    return reason.alert if isinstance(reason, SparkFallback) else None
