"""Apply what a refresh has computed to the storage table; where changes cannot be applied, all rows are."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import structlog

from catalog.session import SqlError, SqlSession
from catalog.values import Action, Executor
from engine.refresh.computing import Computed, handed_on
from engine.refresh.estimated_costs import too_dear
from engine.refresh.policy import Decision, whole_action
from engine.refresh.whole import Whole, whole_query
from engine.session.transactions import local_setting, savepoint, set_role
from engine.stream_tables.plan_inputs import dumps
from engine.stream_tables.refresh_state import RefreshContext

logger = structlog.get_logger(__name__)

STORING = 4
"""The phase of a refresh, as `pgtrickle._note_progress` takes it."""
UNIQUE_VIOLATION = "23505"
QUERY_CANCELED = "57014"
MANY_CHANGES = 10_000
"""From so many captured changes on the statement that applies them gets `pg_trickle.merge_work_mem_mb`."""
MISSED_CHANGES = "HW003"
"""A source has changed that had not when the refresh began, or was truncated since; or a usual statement did not do."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done to the storage table."""

    decision: Decision
    """What was decided, or what was done instead."""
    executor: Executor
    result: dict[str, Any]
    """What the statement has returned: counts of rows, and what was read."""
    salt: int
    """Of the row ids."""
    ms: float
    """What that has taken."""
    instead_ms: float | None = None
    """What it has taken to store all rows where changes were to be applied; None where that was not done."""
    given_up: bool = False
    """Whether the changes were, since they took too long."""


async def apply_rows(session: SqlSession, context: RefreshContext, decision: Decision, rows: Computed) -> Applied:
    """Store all rows. Raises SqlError."""
    began = time.perf_counter()
    whole = Whole(rows.statement, rows.parameters)
    result, salt = await _with_salts(session, context, whole, first=context.learned.row_id_salt)
    return Applied(decision, rows.executor, _as_of(result, rows), salt, ms_since(began))


async def apply_changes(
    session: SqlSession, context: RefreshContext, decision: Decision, changes: Computed, limit: float | None
) -> Applied:
    """Apply the changes; where that is estimated to be far dearer than to store all rows, or fails, or takes longer
    than the limit in milliseconds, store all rows.

    Raises SqlError.
    """
    began = time.perf_counter()
    try:
        result = await _apply_changes(session, context, changes, limit)
        return Applied(decision, changes.executor, result, context.learned.row_id_salt, ms_since(began))
    except _NotApplied as failure:
        instead, given_up = failure.decision, failure.given_up
        first = context.learned.row_id_salt + failure.salts_used
    began_instead = time.perf_counter()
    whole = await whole_query(session, context, changes.plan)
    result, salt = await _with_salts(session, context, whole, first=first)
    return Applied(instead, Executor.POSTGRES, result, salt, ms_since(began), ms_since(began_instead), given_up)


class _NotApplied(Exception):
    """The changes were not applied, or not all of them; the table has to be computed as a whole."""

    def __init__(
        self, reason: str, *, salts_used: int = 0, given_up: bool = False, by_estimate: Decision | None = None
    ):
        super().__init__(reason)
        self.salts_used = salts_used
        self.given_up = given_up
        """Whether it only took too long."""
        action = Action.FULL if given_up else Action.REINITIALIZE
        self.decision = by_estimate or Decision(action, reason, fallback=True)


async def _apply_changes(
    session: SqlSession, context: RefreshContext, changes: Computed, limit: float | None
) -> dict[str, Any]:
    """Apply the changes.

    Raises _NotApplied, also if that is estimated to be far dearer than a full refresh, or if a statement takes longer
    than the limit in milliseconds.
    """
    parameters = dict(context.capture.frontier or {}) | {
        "salt": context.learned.row_id_salt,
        "memory": handed_on(context),
    }
    if changes.snapshot is None and (
        decision := await too_dear(session, context, changes.plan, changes.statement, parameters)
    ):
        raise _NotApplied(decision.reason, by_estimate=decision)
    result = await _apply_within(session, context, changes.statement, parameters, limit)
    if result.get("failed") == MISSED_CHANGES:
        if changes.snapshot is not None:
            raise _NotApplied("a source was truncated while Spark computed the changes")
        every = await changes.plan.refresh_sql(
            context.storage,
            frozenset(source.oid for source in context.capture.sources),
            late=context.capture.late,
        )
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
    return _as_of(result, changes)


def _as_of(result: dict[str, Any], computed: Computed) -> dict[str, Any]:
    """The result, with the snapshot of the input: Spark's is older than the statement that stores what it computed."""
    if computed.snapshot is None:
        return result
    return result | {"snapshot": computed.snapshot, "xid": None, "change_id": None}


async def _with_salts(
    session: SqlSession, context: RefreshContext, whole: Whole, *, first: int
) -> tuple[dict[str, Any], int]:
    """Store all rows; every collision of row ids is answered with another salt. The result, and the salt."""
    for salt in range(first, first + 8):
        result = await _apply(session, context, whole.statement, {**whole.parameters, "salt": salt}, changes=False)
        if not result.get("failed"):
            return result, salt
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
        passed = ms_since(began)
        if error.sqlstate != QUERY_CANCELED or passed < limit or "user request" in error.message:
            raise
    full = f"a full refresh, which took {context.learned.last_full_ms or 0:.0f} ms"
    raise _NotApplied(f"to apply the changes took {limit:.0f} ms and had not ended, against {full}", given_up=True)


async def _apply(
    session: SqlSession, context: RefreshContext, statement: str, parameters: dict[str, Any], *, changes: bool
) -> dict[str, Any]:
    """Run a statement that changes the storage table; {"failed": SQLSTATE} if it was undone (`pgtrickle._apply`).

    ``changes``: it is that of a differential refresh.
    """
    called = _applying_changes(context) if changes else "_apply($1::text, $2::text::jsonb, false)"
    query = f"SELECT pgtrickle._note_progress($3::bigint, {STORING}, $4::text), pgtrickle.{called}::text"
    action = Action.DIFFERENTIAL if changes else whole_action(context)
    async with set_role(session, context.owner, current=context.caller):
        ((_, text),) = await session.fetch(query, statement, dumps(parameters), context.pgt_id, action.value)
    return dict(json.loads(text))


def _applying_changes(context: RefreshContext) -> str:
    """The call that applies changes, with the help that the settings allow the planner."""
    if context.settings.get("merge_planner_hints") == "off":
        return "_apply($1::text, $2::text::jsonb, true)"
    if context.capture.pending < MANY_CHANGES:
        return "_apply_changes($1::text, $2::text::jsonb)"
    return f"_apply_many_changes($1::text, $2::text::jsonb, {int(context.settings['merge_work_mem_mb'])})"


def ms_since(began: float) -> float:
    """Milliseconds since `time.perf_counter()` was that."""
    return (time.perf_counter() - began) * 1000
