"""Record a failed refresh: history row, error count, suspension. In a transaction of its own, after the rollback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from catalog.session import SqlError
from catalog.values import Action, Executor, Initiator, RefreshStatus
from engine.refresh.executor_choice import SparkFailure
from engine.refresh.record import Job, RefreshRecord, finish, spark_alert
from engine.session.pool import PooledSession

logger = structlog.get_logger(__name__)

LOCK_TIMEOUT = "10s"
"""Nobody waits longer than this only to write down that something has failed."""

PERMANENT = frozenset({"0A000", "42P01", "42703", "42704", "42883", "3F000"})
"""Errors that trying again does not mend: something the query needs is gone, or is not what it was."""


@contextmanager
def attempting(action: Action) -> Iterator[None]:
    """An error of what is done here says that a refresh of this kind was attempted."""
    try:
        yield
    except SqlError as error:
        error.action = error.action or action
        raise


async def record_failure(
    session: PooledSession, pgt_id: int, initiator: Initiator, error: SqlError, job: Job | None = None
) -> None:
    """Write down that a refresh failed; after `pg_trickle.max_consecutive_errors` the stream table is suspended.

    Where it is not known what was attempted it is what the state of the stream table asks for.
    Where its connection was lost nothing can be written: whoever called does that in another session.
    """
    if session.lost:
        return
    alert = error.alert if isinstance(error, SparkFailure) else None
    record = RefreshRecord(
        action=None if error.action is None else Action(error.action),
        status=RefreshStatus.FAILED,
        initiated_by=initiator,
        seconds=None if job is None else job.seconds,
        error_message=f"{error.sqlstate}: {error.message}",
        executor=Executor.POSTGRES if alert is None else Executor.SPARK,
        permanent=error.sqlstate in PERMANENT,
        alert=None if alert is None else spark_alert(alert),
        job=None if job is None else job.to_record(),
    )
    try:
        async with session.transaction("read_committed"):
            # Another refresh of it may run, by hand.
            await session.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
            await finish(session, pgt_id, record)
    except SqlError as secondary:
        logger.warning("failure not recorded", pgt_id=pgt_id, error=secondary.message)
