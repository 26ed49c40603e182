"""Plans of existing stream tables: read back from the catalog, and changed when the refresh mode changes."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import replace

from catalog.session import SqlError, SqlSession
from catalog.values import Engine, RefreshMode
from engine.capture.lock_retry import LOCK_PATIENCE, with_lock_retry
from engine.stream_tables.plan_inputs import PlanInputs, captured_columns
from engine.stream_tables.refresh_state import RefreshContext

KEPT_PLANS = 1024

_plans: OrderedDict[str, PlanInputs] = OrderedDict()
"""Plan inputs by what `_begin_refresh` calls their plan; the last ones used."""


async def load_plan(session: SqlSession, context: RefreshContext) -> PlanInputs:
    """The plan inputs of a stream table, as kept when it was defined."""
    known = _plans.get(context.plan)
    if known is None or not context.plan:
        ((canonical, inputs),) = await session.fetch(
            "SELECT canonical_query, (explain -> 'inputs')::text FROM pgtrickle.pgt_stream_tables"
            " WHERE pgt_id = $1::bigint",
            context.pgt_id,
        )
        known = _plans[context.plan] = PlanInputs.from_json(canonical, json.loads(inputs))
        if len(_plans) > KEPT_PLANS:
            _plans.popitem(last=False)
    _plans.move_to_end(context.plan)
    return replace(known, append_only=True) if context.append_only else known


async def set_refresh_mode(session: SqlSession, context: RefreshContext, requested: RefreshMode) -> None:
    """Switch between AUTO, FULL, DIFFERENTIAL and, to come, IMMEDIATE.

    The next refresh recomputes the table, unless its changes have been captured and still are.

    Raises SqlError 0A000 if DIFFERENTIAL is asked for a query that can only be computed as a whole.
    """
    pgt_id, name = context.pgt_id, context.name
    plan = await load_plan(session, context)
    ((reason,),) = await session.fetch(
        "SELECT fallback_reason FROM pgtrickle.pgt_stream_tables WHERE pgt_id = $1::bigint", pgt_id
    )
    if requested in (RefreshMode.DIFFERENTIAL, RefreshMode.IMMEDIATE) and not plan.differentiable:
        raise SqlError(
            "0A000",
            f'stream table "{name}" cannot be refreshed in {requested} mode: {reason}',
            hint="Use refresh_mode => 'AUTO' or 'FULL'.",
        )
    incremental = plan.differentiable and requested != RefreshMode.FULL
    effective = RefreshMode.DIFFERENTIAL if incremental else RefreshMode.FULL
    fresh = True
    if incremental:
        fresh = await capture_sources(session, context)
    state: dict[str, str | bool | None] = {
        "refresh_mode": effective,
        "requested_mode": requested,
        "needs_reinit": fresh or context.needs_reinit or effective != context.refresh_mode,
    }
    if incremental:
        state["fallback_reason"] = None
    await set_state(session, pgt_id, **state)


async def capture_sources(session: SqlSession, context: RefreshContext) -> bool:
    """Have all that a stream table reads captured for it; true if any was not yet. Raises SqlError as `track`."""
    plan = await load_plan(session, context)
    sources = await session.fetch(
        "SELECT source_relid::bigint FROM pgtrickle.pgt_dependencies WHERE pgt_id = $1::bigint", context.pgt_id
    )
    oids = [int(oid) for (oid,) in sources]
    columns = await captured_columns(plan, oids, RefreshMode.DIFFERENTIAL, context.engine)
    return await track(session, context.pgt_id, columns, context.engine)


async def set_state(session: SqlSession, pgt_id: int, **values: object) -> None:
    """Change columns of `pgt_stream_tables`."""
    await session.fetch("SELECT pgtrickle._set_state($1::bigint, $2::text::jsonb)", pgt_id, json.dumps(values))


async def track(
    session: SqlSession,
    pgt_id: int,
    columns: dict[int, tuple[str, ...]],
    engine: Engine,
    patience: float = LOCK_PATIENCE,
) -> bool:
    """Have changes of these columns of these sources captured for a stream table; true if any were not yet.

    Unless `engine` keeps it in PostgreSQL the keys of the sources are captured, too: mirrors tell rows apart by them.

    Installing triggers waits for the writers of a source, and new writers would queue up behind it: so each attempt
    gives up soon, lets go of all sources, and lets them pass. Raises SqlError 55P03 if a source stays locked for
    `patience` seconds; 0 is one attempt.
    """
    sources = json.dumps(
        [
            {"relid": oid, "columns": used, "keyed": bool(used) and engine != Engine.POSTGRES}
            for oid, used in columns.items()
        ]
    )
    answer = await with_lock_retry(
        session,
        "SELECT pgtrickle._try_track_sources($1::bigint, $2::text::jsonb)::text",
        pgt_id,
        sources,
        patience=patience,
    )
    return bool(answer["fresh"])
