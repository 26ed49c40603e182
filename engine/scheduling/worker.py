"""Work in transactions of the engine's own: scheduled refreshes, and requests made past the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from tenacity import (
    AsyncRetrying,
    retry_if_exception,
    retry_if_exception_type,
    stop_after_delay,
    wait_fixed,
    wait_random_exponential,
)

from catalog.session import SqlError
from catalog.values import Action, Initiator
from engine.capture.ahead import capturing_in
from engine.foreign_tables.polling import NotPolled
from engine.refresh.circle import Conduct, refresh_circle
from engine.refresh.executor_choice import NoSpark, Spark
from engine.refresh.failures import PERMANENT, attempting, record_failure
from engine.refresh.policy import is_fresh
from engine.refresh.record import Job, RefreshOutcome, finish
from engine.requests import requests
from engine.requests.circle_refresh import TOGETHER
from engine.requests.create import undo_creation
from engine.requests.immediate import awaiting_triggers, enter_if_possible
from engine.requests.repair import CaptureBroken, must_be_repaired, prepare
from engine.requests.requests import ComesLate, HeldBack, Request, Scheduled, refresh_scheduled
from engine.scheduling.scheduler import Turn
from engine.scheduling.waiting import skipped
from engine.session.pool import DatabasePool, PooledSession
from engine.session.transactions import set_role
from engine.stream_tables.refresh_state import RefreshContext, begin

logger = structlog.get_logger(__name__)

Result = TypeVar("Result")

LOST = SqlError("08006", "the connection to PostgreSQL was lost in it")
ORDERLY = "57P01"
"""Somebody has ended the session, or PostgreSQL: it is no fault of what was done in it."""

MOST_LOSSES = 3
"""So often a request may lose its connection: it could be what ends it."""

RECOVERY_SECONDS = 120.0
"""How long a connection to PostgreSQL, which recovers from a crash, is tried for."""

CLAIM_PAUSE = 0.02
"""Seconds between attempts while others give way."""

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


@dataclass(slots=True)
class Task:
    """Stream tables to be refreshed in one transaction, and how far that has got."""

    members: Mapping[int, Initiator]
    """By pgt_id, each after those that it reads."""
    on_schedule: bool = True
    """Whether nobody has asked for it: then it is not done while a gate holds it back."""
    one_snapshot: bool = False
    """Whether all of them must see their sources as of one moment, whatever that costs."""
    job: Job | None = None
    from_log: bool = False
    """Whether a source is captured from the write-ahead log, as far as is known before a transaction begins."""
    at: int = field(init=False)
    """The one that is being refreshed."""
    repaired: set[int] = field(default_factory=set)
    polled: set[int] = field(default_factory=set)
    whole: bool = False
    """Whether what is captured from the write-ahead log is read as a whole."""

    def __post_init__(self) -> None:
        self.at = next(iter(self.members))

    @property
    def together(self) -> bool:
        """Whether there are several."""
        return len(self.members) > 1


async def refresh(session: PooledSession, task: Task, spark: Spark) -> Turn:
    """Refresh in a transaction of its own; a failure is written down. Raises SqlError.

    What somebody keeps locked is left to a later look: meanwhile others can be refreshed.
    """
    try:
        if task.together and task.job is not None and task.job.claim > 0:
            worked = await _refresh_in_turn(session, task, spark, task.job.claim)
        else:
            worked = await _refresh(session, task, spark)
        await _enter_immediate(session, task, spark)
    except HeldBack:
        return Turn.HELD_BACK
    except SqlError as error:
        if contended(error):
            return Turn.AGAIN
        await _note_failure(session, task, error)
        raise
    except Exception as error:
        # The other stream tables must not suffer from it.
        logger.exception("refresh failed", pgt_id=task.at)
        failure = SqlError("XX000", f"internal error of the engine: {error!r}")
        await _note_failure(session, task, failure)
        raise failure from error
    return Turn.WORKED if worked else Turn.NOTHING


async def _refresh_in_turn(session: PooledSession, task: Task, spark: Spark, seconds: float) -> bool:
    """Refresh while those give way who refresh or change a member by hand, within so many seconds.

    A transaction with one snapshot cannot wait for who has one of them: it would not see what he leaves. So it begins
    when nobody has, and nobody comes any more. Raises HeldBack and SqlError as `_refresh`.
    """
    try:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, SqlError) and contended(error)),
            wait=wait_fixed(CLAIM_PAUSE),
            stop=stop_after_delay(seconds),
            reraise=True,
        ):
            with attempt:
                await session.fetch("SELECT pgtrickle._claim_turn($1::bigint[])::text", list(task.members))
                await _lock_members(session, task.members)  # only to see whether it can be done
                return await _refresh(session, task, spark)
        raise AssertionError("it raises the error of the last attempt")
    finally:
        if not session.lost:
            await session.fetch("SELECT pg_catalog.pg_advisory_unlock_all()::text")


async def _refresh(session: PooledSession, task: Task, spark: Spark) -> bool:
    """Refresh all or none; whether there was anything to do. Raises HeldBack and SqlError."""
    while True:
        try:
            isolation = "repeatable_read"
            if task.from_log and not task.one_snapshot:
                isolation = "read_committed"
            elif task.from_log and not task.whole:
                if await _is_up_to_date(session, task):
                    return False
                task.whole = True
            async with session.transaction(isolation, impatient=True):
                return await _refresh_members(session, task, spark)
        except CaptureBroken as broken:
            with attempting(Action.REINITIALIZE):
                await _repair(session, task.at)
            logger.warning("capture is repaired", stream_table=broken.stream_table, reason=str(broken))
            task.repaired.add(task.at)
        except NotPolled:
            async with session.transaction("read_committed", impatient=True):
                await requests.poll_scheduled(session, task.at, spark)
            task.polled.add(task.at)
        except ComesLate:  # it has become so just now
            task.from_log = True


async def _enter_immediate(session: PooledSession, task: Task, spark: Spark) -> None:
    """Have triggers maintain those that are to be so, each in a transaction of its own. Raises SqlError."""
    for pgt_id in await awaiting_triggers(session, list(task.members)):
        task.at = pgt_id
        async with session.transaction("read_committed", impatient=True):
            await enter_if_possible(session, pgt_id, task.members[pgt_id], spark, patience=0)


async def _refresh_members(session: PooledSession, task: Task, spark: Spark) -> bool:
    """Refresh each stream table in the session's transaction; whether there was anything to do."""
    if task.together:
        spark = NoSpark(TOGETHER, spark.lake)
    how = Scheduled(task.on_schedule, task.repaired, task.polled, task.whole, task.job)
    worked = locked = False
    done: set[int] = set()
    for pgt_id, initiator in task.members.items():
        if pgt_id in done:
            continue
        task.at = pgt_id
        context = await how.ready(session, pgt_id)
        if context.circle:
            done.update(context.circle)
            outcome = await _refresh_circle(session, task, context, how, spark)
        else:
            outcome = await refresh_scheduled(session, context, initiator, spark, how)
        if outcome is None:
            continue
        worked = worked or outcome.action is not Action.NO_DATA
        if task.together:
            await session.pin_again()  # what functions of one query have set must not reach the next
            if not locked:
                await _lock_members(session, task.members)
                locked = True
    if worked and task.together:
        await session.fetch("SELECT pgtrickle._count_epoch($1::bigint)::text", next(iter(task.members)))
    return worked


async def _lock_members(session: PooledSession, members: Iterable[int]) -> None:
    await session.fetch("SELECT pgtrickle._lock_members($1::bigint[])::text", list(members))


async def _refresh_circle(
    session: PooledSession, task: Task, context: RefreshContext, how: Scheduled, spark: Spark
) -> RefreshOutcome | None:
    """Refresh the stream tables that read each other with one that is ready."""

    async def ready(pgt_id: int) -> RefreshContext:
        task.at = pgt_id
        return await how.ready(session, pgt_id)

    async def lock() -> None:
        await _lock_members(session, context.circle)
        await session.fetch(_NO_INTERFERENCE, list(context.circle))

    initiators = dict.fromkeys(context.circle, Initiator.SCHEDULER) | dict(task.members)
    conduct = Conduct(
        ready,
        initiators,
        NoSpark(TOGETHER, spark.lake),
        task.job,
        lock=lock,
        between=session.pin_again,
    )
    outcome = await refresh_circle(session, context.circle, conduct)
    if outcome is not None:
        await how.check_gates(session, context)
    return outcome


_NO_INTERFERENCE = """
SELECT pgtrickle._refuse_interference(s.pgt_relid)::text
FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = ANY ($1::bigint[])
"""


async def _is_up_to_date(session: PooledSession, task: Task) -> bool:
    """Whether none of them has anything to do. In a REPEATABLE READ transaction log capture would not tell."""
    async with session.transaction("read_committed", impatient=True):
        for pgt_id in task.members:
            task.at = pgt_id
            if not is_fresh(await begin(session, pgt_id, wait=False)):
                return False
    return True


async def _note_failure(session: PooledSession, task: Task, error: SqlError) -> None:
    """Write down that the one at which it stood has failed, and that the others were not refreshed therefore."""
    initiator = task.members.get(task.at, Initiator.SCHEDULER)  # it may be of a circle that has just become one
    await record_failure(session, task.at, initiator, error, task.job)
    if task.together and not session.lost:
        try:
            ((title,),) = await session.fetch(_TITLE, task.at)
            for pgt_id in task.members.keys() - {task.at}:
                async with session.transaction("read_committed", impatient=True):
                    await finish(session, pgt_id, skipped(f"{title}, which is refreshed together with it, has failed"))
        except (SqlError, ValueError) as secondary:
            logger.warning("not noted", pgt_id=task.at, error=str(secondary))


_TITLE = """
SELECT format('stream table %I.%I', s.pgt_schema, s.pgt_name)
FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = $1::bigint
"""


async def _repair(session: PooledSession, pgt_id: int) -> None:
    """Have the sources captured anew, committed before a snapshot is taken. Raises SqlError.

    A source that is being written to, or a table that is being read, is not waited for: 55P03, to be tried again later.
    Meanwhile the worker does other work.

    Where the query has lost what it needs, its sources are let go: the triggers on a table that has lost a column
    would stand in the way of its writers.
    """
    try:
        async with session.transaction("read_committed", impatient=True):
            context = await begin(session, pgt_id, wait=False)
            if must_be_repaired(context):  # nobody else has done it meanwhile
                await prepare(session, context, patience=0)
    except SqlError as error:
        if error.sqlstate in PERMANENT:
            async with session.transaction("read_committed", impatient=True):
                await session.fetch("SELECT pgtrickle._set_dependencies($1::bigint, '[]'::jsonb)", pgt_id)
                await session.fetch("SELECT pgtrickle._untrack_sources()")
        raise


async def refresh_within(pool: DatabasePool, task: Task, spark: Spark, limit: float | None) -> Turn:
    """Refresh in a session of the pool, within so many seconds; a failure is written down. Raises SqlError.

    Also where the connection is lost: what ends PostgreSQL's process must not be tried for ever.
    """
    lost = False
    try:
        async with pool.session() as session:
            if task.job is not None:
                task.job.worker = session.process
            try:
                return await _within(limit, pool, session, refresh(session, task, spark))
            finally:
                lost = session.lost
    except OutOfTime as error:
        async with pool.session() as own:
            await _note_failure(own, task, error)
        raise
    except SqlError as error:
        if lost and error.sqlstate != ORDERLY:
            async with _connected_again(pool) as own:
                await _note_failure(own, task, LOST)
        raise


async def carry_out_of_band(pool: DatabasePool, role: int, spark: Spark, limit: float | None) -> bool:
    """Carry out the oldest request that a role, given by OID, has made on connections that bypass the server.

    Each of its transactions may take so many seconds. False if there is none. Raises SqlError if its connection is
    lost; then the request is there as before, unless it has lost too many.
    """
    claimed: list[Request] = []

    async def carry_out(session: PooledSession) -> int | None:
        async with session.transaction("read_committed"):
            rows = await session.fetch("SELECT * FROM pgtrickle._claim_out_of_band_request($1::bigint::oid)", role)
            if not rows:
                return None
            request = Request.from_row(rows[0])
            claimed.append(request)
            await session.fetch("SELECT pgtrickle._finish_request($1::bigint)", request.request_id)
            async with set_role(session, request.requested_by):
                with capturing_in(pool.session):
                    return await requests.carry_out(session, request, spark, in_two_steps=True)

    lost = False
    try:
        async with pool.session() as session:
            try:
                created = await _within(limit, pool, session, carry_out(session))
            finally:
                lost = session.lost
    except OutOfTime as error:
        await _fail(pool, claimed, error)
    except SqlError as error:
        if lost:  # not by its SQLSTATE, which can be anything that a function of a user's says
            if claimed and error.sqlstate != ORDERLY:
                await _note_loss(pool, claimed)
            raise
        await _fail(pool, claimed, error)
    except Exception as error:
        logger.exception("request failed")
        await _fail(pool, claimed, SqlError("XX000", f"internal error of the engine: {error}"))
    else:
        if created is not None:
            try:
                await refresh_within(pool, Task({created: Initiator.INITIAL}, on_schedule=False), spark, limit)
            except SqlError as error:  # it is in the history of the stream table, which the scheduler populates
                logger.warning("not populated", pgt_id=created, sqlstate=error.sqlstate, error=error.message)
    return bool(claimed)


class OutOfTime(SqlError):
    """Work of the engine's was ended, since it has taken too long: 57014."""

    def __init__(self, limit: float):
        super().__init__("57014", f"it takes longer than {limit:g} s, the limit of pg_trickle.refresh_timeout")


async def _within(
    limit: float | None, pool: DatabasePool, session: PooledSession, work: Coroutine[Any, Any, Result]
) -> Result:
    """What is done in a session, which is ended after so many seconds, whatever goes on in it. Raises OutOfTime."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=limit)
        if task.done() or limit is None:
            return task.result()
        await pool.end(session)  # a function of a user's can refuse to be cancelled
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if task.cancelled() or task.exception() is not None:
        raise OutOfTime(limit)
    return task.result()


async def undo(pool: DatabasePool, created: list[int]) -> None:
    """Undo creations whose first step has been committed."""
    try:
        async with pool.session() as own, own.transaction("read_committed", impatient=True):
            for pgt_id in created:
                await undo_creation(own, pgt_id)
    except SqlError as error:
        logger.warning("creation not undone", pgt_ids=created, sqlstate=error.sqlstate, error=error.message)


@asynccontextmanager
async def _connected_again(pool: DatabasePool) -> AsyncIterator[PooledSession]:
    """A session as soon as PostgreSQL answers again. Raises SqlError or OSError where that takes too long."""
    async with AsyncExitStack() as stack:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type((SqlError, OSError)),
            wait=wait_random_exponential(multiplier=0.1, max=2.0),
            stop=stop_after_delay(RECOVERY_SECONDS),
            reraise=True,
        ):
            with attempt:
                session = await stack.enter_async_context(pool.session())
        yield session


async def _note_loss(pool: DatabasePool, claimed: list[Request]) -> None:
    """Note on a request that its connection was lost. After a few times it has failed."""
    (request,) = claimed
    async with _connected_again(pool) as own:
        rows = await own.fetch(
            "UPDATE pgtrickle.pgt_requests q SET attempts = q.attempts + 1 WHERE q.request_id = $1::bigint"
            " RETURNING q.attempts",
            request.request_id,
        )
    if any(int(attempts) >= MOST_LOSSES for (attempts,) in rows):
        await _fail(pool, claimed, LOST)


async def _fail(pool: DatabasePool, claimed: list[Request], error: SqlError) -> None:
    """Note on a request that it has failed: it must not come up again. Raises the error where there is none."""
    if not claimed:
        raise error
    (request,) = claimed
    logger.warning("request failed", kind=request.kind, sqlstate=error.sqlstate, error=error.message)
    async with pool.session() as own:
        await own.fetch(
            "SELECT pgtrickle._fail_request($1::bigint, $2::text, $3::text)",
            request.request_id,
            error.sqlstate,
            error.message,
        )
