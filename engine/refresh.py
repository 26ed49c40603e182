"""One refresh of one stream table: decide, compute, apply and record, in the session's transaction.

The delta and the new state are read by one statement, hence by one snapshot, whose `pg_snapshot` becomes the new
frontier. In a REPEATABLE READ transaction all statements share a snapshot, so sources that had no change when the
refresh began drop out of the plan; at READ COMMITTED every source takes part.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

import structlog

from catalog.session import SqlError, SqlSession
from engine.definition import quoted
from engine.plans import PlanInputs, compiled, dumps
from engine.stored import load_plan
from sql import Compiled

logger = structlog.get_logger(__name__)

UNIQUE_VIOLATION = "23505"


class Action(StrEnum):
    """What a refresh did (`pgt_refresh_history.action`)."""

    NO_DATA = "NO_DATA"
    FULL = "FULL"
    DIFFERENTIAL = "DIFFERENTIAL"
    REINITIALIZE = "REINITIALIZE"


class Initiator(StrEnum):
    """Who asked for a refresh (`pgt_refresh_history.initiated_by`)."""

    SCHEDULER = "SCHEDULER"
    MANUAL = "MANUAL"
    INITIAL = "INITIAL"


@dataclass(frozen=True, slots=True)
class SourceState:
    """A source as a refresh finds it."""

    oid: int
    schema: str
    name: str
    kind: str
    pending: int
    """Captured changes that the frontier has not seen; counting stops at some bound."""
    truncated: bool
    tracked: bool
    estimated_rows: int


@dataclass(frozen=True, slots=True)
class RefreshContext:
    """A stream table, locked for a refresh (`pgtrickle._begin_refresh`)."""

    pgt_id: int
    schema: str
    name: str
    relid: int
    owner: str
    status: str
    refresh_mode: str
    requested_mode: str
    engine: str
    is_populated: bool
    needs_reinit: bool
    salt: int
    canonical_query: str
    frontier: dict[str, Any] | None
    sources: tuple[SourceState, ...]
    broken: tuple[str, ...]
    denied: tuple[str, ...]

    @classmethod
    def from_json(cls, text: str) -> RefreshContext:
        """Read what `_begin_refresh` returned."""
        values = json.loads(text)
        values["sources"] = tuple(
            SourceState(**{key: source[key] for key in SourceState.__slots__}) for source in values["sources"]
        )
        values["broken"], values["denied"] = tuple(values["broken"]), tuple(values["denied"])
        return cls(**{key: values[key] for key in cls.__slots__})

    @property
    def storage(self) -> str:
        """The storage table, quoted."""
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    @property
    def pending(self) -> int:
        """Captured changes of all sources that the frontier has not seen."""
        return sum(source.pending for source in self.sources)

    @property
    def changed(self) -> frozenset[int]:
        """The sources with pending changes."""
        return frozenset(source.oid for source in self.sources if source.pending)

    @property
    def estimated_rows(self) -> int:
        """Rows that a full refresh reads."""
        return sum(source.estimated_rows for source in self.sources)


@dataclass(frozen=True, slots=True)
class Decision:
    """How a stream table will be refreshed, and why."""

    action: Action
    reason: str
    fallback: bool = False
    """True if a differential stream table is refreshed in full this time."""


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
    duration_ms: float


@dataclass(frozen=True, slots=True)
class RefreshSettings:
    """The `pg_trickle.*` settings that a refresh looks at."""

    engine: str = "auto"
    spark_min_rows: int = 100_000
    max_change_ratio: float = 0.15


@dataclass(frozen=True, slots=True)
class SparkRows:
    """Rows that Spark computed, in a staging table of the refreshing session."""

    staging: str
    snapshot: str
    rows: int
    detail: str


class NotOnSpark(Exception):
    """Spark cannot (or may not now) compute this query with PostgreSQL's results; the text says why."""


class NoSpark:
    """In place of Spark where it is switched off or must not be used; says why."""

    def __init__(self, reason: str):
        self._reason = reason

    async def compute(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkRows:
        """Always raises NotOnSpark."""
        raise NotOnSpark(self._reason)


class Spark(Protocol):
    """The Spark executor as a refresh sees it."""

    async def compute(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkRows:
        """Compute the plan's core at a snapshot of `session` into a staging table of it.

        Raises NotOnSpark before anything was done to the session, SqlError if Spark failed.
        """
        ...


async def begin(session: SqlSession, pgt_id: int, *, wait: bool = True) -> RefreshContext:
    """Lock the stream table and read its state; `wait` for a running refresh of it to end.

    Raises SqlError: 42501 without membership in its owner's role or if the owner lost its right to a source, 55P03 while
    another refresh of it runs and `wait` is false, 40001 if it changed after a REPEATABLE READ session's snapshot, 55000 if it is suspended.
    """
    ((text,),) = await session.fetch("SELECT pgtrickle._begin_refresh($1::bigint, $2::boolean)::text", pgt_id, wait)
    context = RefreshContext.from_json(text)
    if context.status == "SUSPENDED":
        raise SqlError(
            "55000",
            f'stream table "{context.name}" is suspended',
            hint=f"Resume it with pgtrickle.resume_stream_table('{context.schema}.{context.name}').",
        )
    if context.denied:
        raise SqlError("42501", context.denied[0], hint=f'Grant it to the owner of the stream table, "{context.owner}".')
    return context


def decide(context: RefreshContext, settings: RefreshSettings) -> Decision:
    """Choose what to do. A full refresh of a differential stream table always has a reason."""
    if not context.is_populated or context.frontier is None:
        return Decision(Action.FULL, "not populated yet")
    if context.broken:
        return Decision(Action.REINITIALIZE, "; ".join(context.broken), fallback=True)
    if context.needs_reinit:
        return Decision(Action.REINITIALIZE, "marked for reinitialisation", fallback=True)
    if not context.pending and all(source.tracked for source in context.sources):
        return Decision(Action.NO_DATA, "no changes")
    if context.refresh_mode == "FULL":
        return Decision(Action.FULL, "refresh mode FULL")
    truncated = [source.name for source in context.sources if source.truncated]
    if truncated:
        return Decision(Action.FULL, f'"{truncated[0]}" was truncated', fallback=True)
    # An update is two captured rows, so a ratio of changed rows counts each row once at most.
    if context.requested_mode != "DIFFERENTIAL" and context.pending > 2 * settings.max_change_ratio * max(
        context.estimated_rows, 1000
    ):
        return Decision(
            Action.FULL,
            f"{context.pending} changes in {context.estimated_rows} rows exceed "
            f"pg_trickle.differential_max_change_ratio = {settings.max_change_ratio}",
            fallback=True,
        )
    return Decision(Action.DIFFERENTIAL, "changes are applied incrementally")


async def settings_of(session: SqlSession) -> RefreshSettings:
    """Read the settings, as the session, the database or the server sets them."""
    ((engine, rows, ratio),) = await session.fetch(
        "SELECT pgtrickle._setting('pg_trickle.refresh_engine', 'auto'),"
        " pgtrickle._setting('pg_trickle.spark_min_rows', '100000'),"
        " pgtrickle._setting('pg_trickle.differential_max_change_ratio', '0.15')"
    )
    try:
        return RefreshSettings(str(engine).lower(), int(rows), float(ratio))
    except ValueError as error:
        raise SqlError("22023", f"invalid value of a pg_trickle setting: {error}") from error


async def refresh(
    session: SqlSession,
    context: RefreshContext,
    *,
    initiator: Initiator,
    one_snapshot: bool,
    spark: Spark,
) -> RefreshOutcome:
    """Bring a stream table up to date and record it, in the session's transaction.

    `one_snapshot` says that the transaction is REPEATABLE READ or stricter. Raises SqlError; the caller's transaction is
    then aborted, or rolled back to where `begin` was called.
    """
    started, clock = datetime.now(UTC), time.perf_counter()
    settings = await settings_of(session) if context.pending or not context.is_populated else RefreshSettings()
    decision = decide(context, settings)
    salt, executor, executor_reason = context.salt, "postgres", "few rows"
    match decision.action:
        case Action.NO_DATA:
            result: dict[str, Any] = {}
        case Action.DIFFERENTIAL:
            executor_reason = f"{context.pending} changes"
            try:
                plan = compiled(await load_plan(session, context.pgt_id))
                result = await _differential(session, context, plan, one_snapshot)
            except _RowIdCollision:
                decision = Decision(Action.REINITIALIZE, "two rows had one __pgt_row_id", fallback=True)
                result, salt = await _full_with_salts(session, context, plan, None, first=salt + 1)
        case _:
            inputs = await load_plan(session, context.pgt_id)
            rows: SparkRows | None = None
            try:
                rows = await _on_spark(session, context, inputs, settings, spark)
                executor, executor_reason = "spark", rows.detail
            except NotOnSpark as reason:
                executor_reason = str(reason)
            result, salt = await _full_with_salts(session, context, compiled(inputs), rows, first=salt)
    outcome = RefreshOutcome(
        action=decision.action,
        executor=executor,
        executor_reason=executor_reason,
        inserted=int(result.get("inserted", 0)),
        updated=int(result.get("updated", 0)),
        deleted=int(result.get("deleted", 0)),
        delta=int(result.get("delta", 0)),
        duration_ms=(time.perf_counter() - clock) * 1000,
    )
    await session.fetch(
        "SELECT pgtrickle._finish_refresh($1::bigint, $2::text::jsonb)",
        context.pgt_id,
        dumps(
            {
                "action": outcome.action,
                "status": "COMPLETED",
                "initiated_by": initiator,
                "start_time": started.isoformat(),
                "frontier": _frontier(result),
                "inserted": outcome.inserted,
                "updated": outcome.updated,
                "deleted": outcome.deleted,
                "delta": outcome.delta,
                "executor": executor,
                "executor_reason": f"{decision.reason}; {executor_reason}",
                "was_full_fallback": decision.fallback,
                "merge_strategy_used": None if decision.action == Action.NO_DATA else "DELETE+UPDATE+INSERT",
                "duration_ms": outcome.duration_ms,
                "salt": salt,
            }
        ),
    )
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


def _frontier(result: dict[str, Any]) -> dict[str, Any] | None:
    """The frontier that a refresh statement reported; `_finish_refresh` adds which system it belongs to."""
    if "snapshot" not in result:
        return None
    return {key: result.get(key) for key in ("snapshot", "xid", "change_id")}


class _RowIdCollision(Exception):
    """Two different rows of a stream table hash to one `__pgt_row_id` under the present salt."""


async def _differential(
    session: SqlSession, context: RefreshContext, plan: Compiled, one_snapshot: bool
) -> dict[str, Any]:
    changed = context.changed if one_snapshot else frozenset(source.oid for source in context.sources)
    parameters = dict(context.frontier or {}) | {"salt": context.salt}
    async with _row_id_collisions(session):
        return await run_as_owner(session, context.owner, plan.refresh_sql(context.storage, changed), parameters)


async def _full(
    session: SqlSession, context: RefreshContext, plan: Compiled, salt: int, rows: SparkRows | None = None
) -> dict[str, Any]:
    if rows is not None:
        statement = plan.staged_sql(context.storage, rows.staging)
    elif context.is_populated:
        statement = plan.full_sql(context.storage)
    else:
        statement = plan.populate_sql(context.storage)
    async with _row_id_collisions(session):
        result = await run_as_owner(session, context.owner, statement, {"salt": salt})
    if rows is not None:
        # The rows are as of the snapshot that Spark's input was read at, not as of the statement that stored them.
        result |= {"snapshot": rows.snapshot, "xid": None, "change_id": None}
    return result


async def _full_with_salts(
    session: SqlSession, context: RefreshContext, plan: Compiled, rows: SparkRows | None, *, first: int
) -> tuple[dict[str, Any], int]:
    """A full refresh; every collision of row ids is answered with another salt."""
    for salt in range(first, first + 8):
        try:
            return await _full(session, context, plan, salt, rows), salt
        except _RowIdCollision:
            logger.warning("row id collision", stream_table=context.storage, salt=salt)
    raise SqlError("XX000", f'row ids of stream table "{context.name}" collide under every salt')


@asynccontextmanager
async def _row_id_collisions(session: SqlSession) -> AsyncIterator[None]:
    """A savepoint around a statement that writes row ids."""
    await session.fetch("SAVEPOINT __pgt_refresh")
    try:
        yield
    except SqlError as error:
        if error.sqlstate != UNIQUE_VIOLATION or "__pgt_row_id" not in (error.detail or ""):
            raise
        await session.fetch("ROLLBACK TO SAVEPOINT __pgt_refresh")
        raise _RowIdCollision from error
    await session.fetch("RELEASE SAVEPOINT __pgt_refresh")


async def run_as_owner(
    session: SqlSession, owner: str, statement: str, parameters: dict[str, Any]
) -> dict[str, Any]:
    """Run a statement that returns one jsonb with the rights of a role, which it cannot leave."""
    runner = await runner_of(session, owner)
    rows = await session.fetch(f"SELECT {runner}($1::text, $2::text::jsonb)::text", statement, dumps(parameters))
    text = rows[0][0]
    return dict(json.loads(text)) if text else {}


async def runner_of(session: SqlSession, owner: str) -> str:
    """The function that runs statements with a role's rights, quoted."""
    ((name,),) = await session.fetch("SELECT pgtrickle._runner($1::text::name)", owner)
    return str(name)


async def _on_spark(
    session: SqlSession,
    context: RefreshContext,
    plan: PlanInputs,
    settings: RefreshSettings,
    spark: Spark,
) -> SparkRows:
    """Rows computed by Spark, where the settings and the sizes ask for it. Raises NotOnSpark."""
    engine = context.engine if context.engine != "auto" else settings.engine
    if engine == "postgres":
        raise NotOnSpark("engine is set to postgres")
    if engine == "auto" and context.estimated_rows < settings.spark_min_rows:
        raise NotOnSpark(
            f"about {context.estimated_rows} rows to read, fewer than pg_trickle.spark_min_rows = {settings.spark_min_rows}"
        )
    try:
        return await spark.compute(session, context, plan)
    except NotOnSpark as reason:
        if engine == "spark":
            raise SqlError("0A000", f'stream table "{context.name}" cannot be computed on Spark: {reason}') from reason
        raise
