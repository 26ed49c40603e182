"""What is written down of a refresh: its history row, and what the stream table keeps of it."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from catalog.session import SqlSession
from catalog.values import Action, Executor, Initiator, RefreshStatus
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

    def to_json(self) -> str:
        """The keys that have a value, for a jsonb parameter."""
        values = ((name, getattr(self, name)) for name in _NAMES)
        return dumps({name: value for name, value in values if value is not None})


_NAMES = tuple(each.name for each in fields(RefreshRecord))


def spark_alert(reason: str) -> dict[str, str]:
    """The alert that Spark has failed."""
    return {"event": "spark_failed", "reason": reason}


async def finish(session: SqlSession, pgt_id: int, record: RefreshRecord, *, lazily: bool = False) -> None:
    """Write down how a refresh ended, in the session's transaction; `lazily` its commit does not wait for the disk.

    Raises SqlError.
    """
    call = "SELECT pgtrickle._finish_refresh($1::bigint, $2::text::jsonb)::text"
    if lazily:
        call += ", pg_catalog.set_config('synchronous_commit', 'off', true)"
    await session.fetch(call, pgt_id, record.to_json())
