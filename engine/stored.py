"""Plans of existing stream tables: read back from the catalog, and changed when the refresh mode changes."""

from __future__ import annotations

import json
from functools import lru_cache

from catalog.session import SqlError, SqlSession
from engine.plans import PlanInputs, used_columns


@lru_cache(maxsize=1024)
def _parsed(canonical: str, inputs: str) -> PlanInputs:
    return PlanInputs.from_json(canonical, json.loads(inputs))


async def load_plan(session: SqlSession, pgt_id: int) -> PlanInputs:
    """The plan inputs of a stream table, as kept when it was defined."""
    ((canonical, inputs),) = await session.fetch(
        "SELECT canonical_query, (explain -> 'inputs')::text FROM pgtrickle.pgt_stream_tables WHERE pgt_id = $1::bigint",
        pgt_id,
    )
    return _parsed(canonical, inputs)


async def set_refresh_mode(session: SqlSession, pgt_id: int, name: str, requested: str) -> None:
    """Switch between AUTO, FULL and DIFFERENTIAL; the next refresh recomputes the table.

    Raises SqlError 0A000 if DIFFERENTIAL is asked for a query that can only be computed as a whole.
    """
    plan = await load_plan(session, pgt_id)
    ((reason,),) = await session.fetch(
        "SELECT fallback_reason FROM pgtrickle.pgt_stream_tables WHERE pgt_id = $1::bigint", pgt_id
    )
    if requested == "DIFFERENTIAL" and not plan.differentiable:
        raise SqlError(
            "0A000",
            f'stream table "{name}" cannot be refreshed in DIFFERENTIAL mode: {reason}',
            hint="Use refresh_mode => 'AUTO' or 'FULL'.",
        )
    effective = "DIFFERENTIAL" if plan.differentiable and requested != "FULL" else "FULL"
    if effective == "DIFFERENTIAL":
        sources = await session.fetch(
            "SELECT source_relid::bigint FROM pgtrickle.pgt_dependencies WHERE pgt_id = $1::bigint", pgt_id
        )
        used = used_columns(plan, [int(oid) for (oid,) in sources])
        await track(session, pgt_id, used)
    await session.fetch(
        "SELECT pgtrickle._set_state($1::bigint, $2::text::jsonb)",
        pgt_id,
        json.dumps({"refresh_mode": effective, "requested_mode": requested, "needs_reinit": True}),
    )


async def track(session: SqlSession, pgt_id: int, columns: dict[int, tuple[str, ...]]) -> None:
    """Have changes of these columns of these sources captured for a stream table.

    Sources are locked in the order of their oids, so that two of these cannot deadlock.
    """
    for oid in sorted(columns):
        await session.fetch(
            "SELECT pgtrickle._track_source($1::bigint, $2::bigint::oid, $3::text[])", pgt_id, oid, list(columns[oid])
        )
