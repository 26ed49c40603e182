"""IMMEDIATE mode: have triggers on its sources maintain a stream table, and no longer.

A stream table that is to be IMMEDIATE (`requested_mode`) is refreshed like a DIFFERENTIAL one until it is: when it is
created, after DDL on its sources, and while it is suspended. So each refresh of it ends in having the triggers made,
which takes a lock on the sources for as long as it takes to apply what has been captured meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from catalog.session import SqlError, SqlSession
from catalog.values import Initiator, RefreshMode
from engine.capture.lock_retry import LOCK_PATIENCE, with_lock_retry
from engine.compile.pool import compilers, work_on_behalf_of
from engine.refresh.executor_choice import NoSpark, Spark
from engine.refresh.policy import is_fresh
from engine.refresh.refresh import refresh
from engine.requests.create import notice
from engine.requests.repair import flush_immediate, must_be_repaired
from engine.stream_tables.plan_store import capture_sources, load_plan
from engine.stream_tables.refresh_state import RefreshContext, begin
from sql import NotDifferentiable, jobs

LOCKED = "in a transaction that keeps writers out of its sources"


def awaits_triggers(context: RefreshContext) -> bool:
    """Whether it is to be maintained by triggers and is not."""
    return context.requested_mode == RefreshMode.IMMEDIATE != context.refresh_mode


async def awaiting_triggers(session: SqlSession, tables: Sequence[int]) -> list[int]:
    """Those of some stream tables, by id, that are up to date and to be maintained by triggers, and are not.

    Those that are known not to be possible (`fallback_reason`) are left out.
    """
    rows = await session.fetch(
        "SELECT s.pgt_id FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id OPERATOR(pg_catalog.=) ANY ($1::bigint[])"
        " AND s.is_populated AND NOT s.needs_reinit AND s.status = 'ACTIVE' AND s.fallback_reason IS NULL"
        " AND s.requested_mode = 'IMMEDIATE' AND s.refresh_mode <> 'IMMEDIATE' ORDER BY s.pgt_id",
        list(tables),
    )
    return [int(pgt_id) for (pgt_id,) in rows]


async def enter_if_possible(
    session: SqlSession, pgt_id: int, initiator: Initiator, spark: Spark, patience: float = LOCK_PATIENCE
) -> None:
    """The same as `enter_immediate` where nothing is in the way; otherwise what is becomes its `fallback_reason`.

    Raises SqlError 25001 and 55P03 as that does.
    """
    ((name, known, reason, differentiable),) = await session.fetch(_OBSTACLE, pgt_id)
    if reason is None and not differentiable:
        reason = "its query can only be computed as a whole"
    if reason is None:
        try:
            await enter_immediate(session, pgt_id, initiator, spark, patience)
        except NotDifferentiable as error:
            reason = f"{error.construct} is not supported: {error.detail}"
    if reason is not None and reason != known:
        await session.fetch(_REMEMBER, pgt_id, json.dumps({"fallback_reason": reason}))
        message = f'stream table "{name}" cannot be maintained by triggers: {reason}'
        await notice(session, "WARNING", message, "It is refreshed on its schedule until it can.")


_OBSTACLE = """
SELECT s.pgt_name, s.fallback_reason, pgtrickle._why_not_immediate(s.pgt_id),
       coalesce((s.explain->'inputs'->>'differentiable')::boolean, false)
FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = $1::bigint
"""

_REMEMBER = "SELECT pgtrickle._set_state($1::bigint, $2::text::jsonb)"


async def enter_immediate(
    session: SqlSession, pgt_id: int, initiator: Initiator, spark: Spark, patience: float = LOCK_PATIENCE
) -> None:
    """Have triggers maintain a stream table that was just refreshed, from now on.

    In a READ COMMITTED transaction. One that must be repaired meanwhile stays as it is: each refresh tries this again.
    Raises SqlError: 0A000 where a source cannot have such triggers, 42501 where the owner may not make them, 55P03 if a
    source stays locked for `patience` seconds; and NotDifferentiable.
    """
    await with_lock_retry(session, "SELECT pgtrickle._try_lock_sources($1::bigint)::text", pgt_id, patience=patience)
    found = await begin(session, pgt_id)
    if found.one_snapshot:
        raise SqlError(
            "25001",
            f'stream table "{found.name}" cannot become IMMEDIATE in a transaction with one snapshot',
            detail="It may not see changes that were committed before the triggers are there.",
            hint="Use a READ COMMITTED transaction, or no transaction block.",
        )
    if not awaits_triggers(found):
        return  # another session was faster
    if must_be_repaired(found):
        # What it reads was altered while this waited. A partition that was attached then is not among what is locked.
        return
    work_on_behalf_of(found.owner)
    if not is_fresh(found):
        await refresh(session, found, initiator=initiator, spark=NoSpark(LOCKED, spark.lake))
        found = await begin(session, pgt_id)
    inputs = await load_plan(session, found)
    salt = found.learned.row_id_salt
    program = await compilers().run(jobs.immediate, inputs.query, found.storage, found.pgt_id, salt)
    await session.fetch(
        "SELECT pgtrickle._install_immediate($1::bigint, $2::text::jsonb)", found.pgt_id, json.dumps(asdict(program))
    )


async def leave_immediate(session: SqlSession, context: RefreshContext) -> RefreshContext:
    """Have triggers no longer maintain it, and its sources captured for it.

    What is captured from now on is what it lacks; where that is not certain it is marked to be computed anew. Raises
    SqlError 55P03 if a source stays locked.
    """
    pgt_id = context.pgt_id
    if context.one_snapshot or must_be_repaired(context):
        return await end_immediate(session, context)
    await with_lock_retry(session, "SELECT pgtrickle._try_lock_sources($1::bigint)::text", pgt_id)
    ((released,),) = await session.fetch("SELECT pgtrickle._release_immediate($1::bigint)", pgt_id)
    if not released:
        return await end_immediate(session, context)
    await capture_sources(session, context)
    return await begin(session, pgt_id)


async def end_immediate(session: SqlSession, context: RefreshContext) -> RefreshContext:
    """Have triggers no longer maintain it: it is computed anew when it is next refreshed.

    No writer uses them any more, but for a transaction with one snapshot, which cannot compute it. Raises SqlError
    55P03.
    """
    if not context.one_snapshot:
        await flush_immediate(session, context.pgt_id)
    await session.fetch("SELECT pgtrickle._end_immediate($1::bigint)", context.pgt_id)
    return await begin(session, context.pgt_id)
