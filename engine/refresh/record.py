"""What is written down of a refresh: its history row, and what the stream table keeps of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields
from typing import Any

from catalog.session import SqlSession
from catalog.values import Action, Executor, Initiator, RefreshStatus
from engine import tracing
from engine.refresh.tally import TALLY, reason_class
from engine.stream_tables.plan_inputs import dumps


@dataclass(frozen=True, slots=True)
class RefreshOutcome:
    """What a refresh did, as its history row says it."""

    action: Action
    executor: Executor
    executor_reason: str
    duration_ms: float
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    delta: int = 0
    """The captured row images that a differential refresh found when it began."""


@dataclass(slots=True)
class Job:
    """What the scheduler has a worker do: refresh the stream tables of one unit."""

    unit: str
    """What the unit is called: ``s:42``, or ``a:2,3,4`` where it has several stream tables."""
    enqueued: int
    """When it was found due, in microseconds since 1970 by PostgreSQL's clock. No two jobs have the same."""
    attempt: int
    """1, and one more for each time in a row that it has failed."""
    scheduler: int
    """The process of PostgreSQL that serves the scheduler."""
    worker: int | None = None
    """The same of the worker, once there is one."""
    started: int | None = None
    """When it began, as `enqueued`."""
    began: float | None = None
    """The same as `time.perf_counter()` was then."""
    claim: float = 0.0
    """Seconds for which those give way to it who refresh one of several stream tables by hand."""

    @property
    def seconds(self) -> float | None:
        """Since it has begun."""
        return None if self.began is None else time.perf_counter() - self.began

    def pending(self) -> dict[str, Any]:
        """What is noted of it until it ends (`pgtrickle._note_jobs`)."""
        return {name: getattr(self, name) for name in ("enqueued", "started", "unit", "attempt", "scheduler", "worker")}

    def to_record(self) -> dict[str, Any]:
        """What a history row says of it."""
        several = {} if self.unit.startswith("s:") else {"unit": self.unit}
        return several | {
            "enqueued": self.enqueued,
            "attempt": self.attempt,
            "scheduler": self.scheduler,
            "worker": self.worker,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshRecord:
    """The end of a refresh, as `pgtrickle._finish_refresh` takes it; what is None stays as the catalog has it."""

    action: Action | None
    """None if it failed before that was decided: then it is what the stream table's state asks for."""
    status: RefreshStatus
    initiated_by: Initiator
    seconds: float | None = None
    data_timestamp: str | None = None
    """As of when the rows are, where that is before the transaction: what was read was older."""
    rows_inserted: int | None = None
    rows_updated: int | None = None
    rows_deleted: int | None = None
    delta_row_count: int | None = None
    merge_strategy_used: str | None = None
    was_full_fallback: bool | None = None
    executor: Executor | None = None
    executor_reason: str | None = None
    error_message: str | None = None
    permanent: bool | None = None
    """Whether trying again does not mend the error."""
    frontier: dict[str, Any] | None = None
    """The snapshot that was read: ``snapshot``, ``xid`` and ``change_id``."""
    row_id_salt: int | None = None
    memory: dict[str, Any] | None = None
    """What the next refresh finds as `Learned.memory`; without it there is none."""
    last_full_ms: float | None = None
    auto_threshold: float | None = None
    executor_costs: dict[str, Any] | None = None
    texts: dict[str, str] | None = None
    """What Spark ran, by its name in `pgt_stream_tables.plan_texts`."""
    alert: dict[str, str] | None = None
    """``event`` and ``reason`` for those who listen on pg_trickle_alert."""
    job: dict[str, Any] | None = None
    """What it was to the scheduler (`Job.to_record`)."""
    fixpoint_iteration: int | None = None
    """In which round of its circle it was."""

    def to_json(self) -> str:
        """The keys that have a value, for a jsonb parameter."""
        values = ((name, getattr(self, name)) for name in _NAMES)
        return dumps({name: value for name, value in values if value is not None})


_NAMES = tuple(each.name for each in fields(RefreshRecord))


def as_attributes(record: RefreshRecord) -> dict[str, tracing.Attribute]:
    """What the span of a refresh says of it."""
    reason = reason_class(record.executor_reason or "") if record.was_full_fallback else None
    return {
        "headwater.action": record.action,
        "headwater.executor": record.executor,
        "headwater.fallback_reason": reason,
        "headwater.changes": record.delta_row_count,
        "headwater.rows.inserted": record.rows_inserted,
        "headwater.rows.updated": record.rows_updated,
        "headwater.rows.deleted": record.rows_deleted,
        "headwater.iteration": record.fixpoint_iteration,
    }


def spark_alert(reason: str) -> dict[str, str]:
    """The alert that Spark has failed."""
    return {"event": "spark_failed", "reason": reason}


async def finish(session: SqlSession, pgt_id: int, record: RefreshRecord, *, lazily: bool = False) -> None:
    """Write down how a refresh ended, in the session's transaction; `lazily` its commit does not wait for the disk.

    Raises SqlError.
    """
    call = "SELECT pgtrickle._finish_refresh($1::bigint, $2::text::jsonb)::text, pg_catalog.current_database()::text"
    if lazily:
        call += ", pg_catalog.set_config('synchronous_commit', 'off', true)"
    ((_, database, *_),) = await session.fetch(call, pgt_id, record.to_json())
    _count(str(database), pgt_id, record)


def _count(database: str, pgt_id: int, record: RefreshRecord) -> None:
    """Add a refresh to what this server has done."""
    pgt_id = TALLY.note(database, pgt_id, record.action or "unknown", record.status)
    if record.status is not RefreshStatus.COMPLETED:
        return
    for done, number in (
        ("inserted", record.rows_inserted),
        ("updated", record.rows_updated),
        ("deleted", record.rows_deleted),
    ):
        if number:
            TALLY.rows[database, pgt_id, done] += number
    if record.was_full_fallback:
        TALLY.fallbacks[database, reason_class(record.executor_reason or "")] += 1
    if record.action is not None and record.executor is not None and record.seconds is not None:
        TALLY.durations[database, record.action, record.executor].note(record.seconds)
