"""Work in transactions of the engine's own: scheduled refreshes, and requests made past the server."""

from __future__ import annotations

import structlog

from catalog.session import SqlError
from engine import requests
from engine.ahead import capturing_in
from engine.context import begin
from engine.creation import undo_creation
from engine.decision import Action
from engine.failures import LASTING, record_failure
from engine.placement import Spark
from engine.polling import NotPolled
from engine.pool import DatabasePool, PooledSession
from engine.refresh import Initiator
from engine.repair import CaptureBroken, prepare
from engine.requests import Request
from engine.scheduler import Turn
from engine.transactions import acting_as

logger = structlog.get_logger(__name__)

CONTENTION = frozenset({"55P03", "40001", "40P01"})
"""Somebody else refreshes or changes the stream table right now; the next look sees what they left."""


def contended(error: SqlError) -> bool:
    """Whether it is enough to try again.

    GRANT, REVOKE and DROP OWNED do not wait for each other: of two that change a table's privileges at once, users' or
    the engine's own, one fails.

    >>> contended(SqlError("XX000", "tuple concurrently updated")), contended(SqlError("XX000", "cache lookup failed"))
    (True, False)
    """
    return error.sqlstate in CONTENTION or error.message in ("tuple concurrently updated", "tuple concurrently deleted")


async def refresh(session: PooledSession, pgt_id: int, initiator: Initiator, spark: Spark) -> Turn:
    """Refresh in a transaction of its own; a failure is written down. Raises SqlError."""
    try:
        repaired = polled = False
        while True:
            try:
                async with session.transaction("repeatable_read"):
                    outcome = await requests.refresh_scheduled(
                        session, pgt_id, initiator, spark, repaired=repaired, after_poll=polled
                    )
                break
            except CaptureBroken as broken:
                logger.warning("capture is repaired", pgt_id=pgt_id, reason=str(broken))
                await _repair(session, pgt_id)
                repaired = True
            except NotPolled:
                async with session.transaction("read_committed"):
                    await requests.poll_scheduled(session, pgt_id, spark)
                polled = True
    except SqlError as error:
        if contended(error):
            return Turn.AGAIN
        await record_failure(session, pgt_id, initiator, error)
        raise
    except Exception as error:
        # The other stream tables must not suffer from it.
        logger.exception("refresh failed", pgt_id=pgt_id)
        failure = SqlError("XX000", f"internal error of the engine: {error!r}")
        await record_failure(session, pgt_id, initiator, failure)
        raise failure from error
    return Turn.NOTHING if outcome is None or outcome.action is Action.NO_DATA else Turn.WORKED


async def _repair(session: PooledSession, pgt_id: int) -> None:
    """Have the sources captured anew, committed before a snapshot is taken. Raises SqlError.

    Where the query has lost what it needs, its sources are let go: the triggers on a table that has lost a column
    would stand in the way of its writers.
    """
    try:
        async with session.transaction("read_committed"):
            await prepare(session, await begin(session, pgt_id, wait=False))
    except SqlError as error:
        if error.sqlstate in LASTING:
            async with session.transaction("read_committed"):
                await session.fetch("SELECT pgtrickle._set_dependencies($1::bigint, '[]'::jsonb)", pgt_id)
                await session.fetch("SELECT pgtrickle._untrack_sources()")
        raise


async def carry_out_strays(pool: DatabasePool, spark: Spark) -> None:
    """Carry out what was requested on connections that bypass the server, one transaction each."""
    with capturing_in(pool.session):
        await _carry_out_strays(pool, spark)


async def _carry_out_strays(pool: DatabasePool, spark: Spark) -> None:
    while True:
        async with pool.session() as session:
            request: Request | None = None
            try:
                async with session.transaction("read_committed"):
                    rows = await session.fetch("SELECT * FROM pgtrickle._claim_stray_request()")
                    if not rows:
                        return
                    request = Request.from_row(rows[0])
                    await session.fetch("SELECT pgtrickle._finish_request($1::bigint)", request.request_id)
                    async with acting_as(session, request.requested_by):
                        created = await requests.carry_out(session, request, spark, in_two_steps=True)
                if created is not None:
                    await refresh(session, created, Initiator.INITIAL, spark)
            except SqlError as error:
                if request is None or error.is_of_connection:
                    raise
                logger.warning("request failed", kind=request.kind, sqlstate=error.sqlstate, error=error.message)
                await _fail(session, request, error)
            except Exception as error:
                if request is None:
                    raise
                # It must not come up again and again, in front of all others.
                logger.exception("request failed", kind=request.kind)
                await _fail(session, request, SqlError("XX000", f"internal error of the engine: {error}"))


async def undo(pool: DatabasePool, created: list[int]) -> None:
    """Undo creations whose first step has been committed."""
    try:
        async with pool.session() as own, own.transaction("read_committed"):
            for pgt_id in created:
                await undo_creation(own, pgt_id)
    except SqlError as error:
        logger.warning("creation not undone", pgt_ids=created, sqlstate=error.sqlstate, error=error.message)


async def _fail(session: PooledSession, request: Request, error: SqlError) -> None:
    """Note on a request that it has failed."""
    await session.fetch(
        "SELECT pgtrickle._fail_request($1::bigint, $2::text, $3::text)",
        request.request_id,
        error.sqlstate,
        error.message,
    )
