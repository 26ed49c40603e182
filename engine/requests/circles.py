"""Which stream tables may read each other in a circle."""

from __future__ import annotations

import json
from collections.abc import Sequence

from catalog.graph import DependencyGraph
from catalog.session import SqlError, SqlSession
from catalog.stream_tables import StreamTable, acting_roles, stream_tables
from catalog.values import RefreshMode
from engine.stream_tables.plan_inputs import PlanInputs, compiled
from engine.stream_tables.refresh_state import RefreshContext


async def check_circle(
    session: SqlSession, context: RefreshContext, sources: Sequence[int], inputs: PlanInputs, mode: RefreshMode
) -> None:
    """Refuse a query of a stream table that would be computed from itself, unless that comes to a fixed point.

    `sources` are the OIDs of the relations that the query reads, and `mode` how it is refreshed.
    Raises SqlError: 42P17 if it closes a circle and `pg_trickle.allow_circular` is off, or it names the stream table
    itself; 0A000 if a member of the circle is not maintained from changes, or its query is not monotone; 42501 if a
    member belongs to a role that the owner may not act for.
    """
    graph = DependencyGraph(await stream_tables(session))
    cycle = graph.would_cycle(context.relid, sources)
    if cycle is None:
        return
    circle = graph.circle(context.relid, sources)
    await _refuse_unless_allowed(session, context, sources, circle, f"The cycle is: {', '.join(cycle)}.")
    await _refuse_foreign(session, context, circle)
    for member in circle:
        if member.pgt_id == context.pgt_id:
            await _refuse_member(context.name, inputs, mode)
        else:
            await _refuse_member(member.name, await _inputs(session, member), member.refresh_mode)
    on_spark = next((member.name for member in circle if member.on_spark), None)
    if on_spark is not None:
        raise SqlError(
            "0A000",
            f'stream table "{on_spark}" cannot be in a circle on Spark',
            detail="Those of a circle are refreshed in one transaction, and what Spark reads is read by others.",
            hint="Create it with another engine.",
        )


async def _refuse_unless_allowed(
    session: SqlSession, context: RefreshContext, sources: Sequence[int], circle: Sequence[StreamTable], cycle: str
) -> None:
    """A circle that is there may stay. Raises SqlError 42P17."""
    message = f'stream table "{context.name}" would be computed from itself'
    if context.relid in sources:
        raise SqlError("42P17", message, detail=cycle, hint="WITH RECURSIVE reads rows of its own.")
    if {member.pgt_id for member in circle} <= {*context.circle}:
        return
    ((allowed,),) = await session.fetch("SELECT pgtrickle._setting('pg_trickle.allow_circular', 'off')::boolean")
    if not allowed:
        hint = "pg_trickle.allow_circular = on allows it, where more rows never take rows away."
        raise SqlError("42P17", message, detail=cycle, hint=hint)


async def _refuse_foreign(session: SqlSession, context: RefreshContext, circle: Sequence[StreamTable]) -> None:
    """Members wait for each other. Raises SqlError 42501."""
    (owner,) = (member.owner for member in circle if member.pgt_id == context.pgt_id)
    acting = await acting_roles(session, circle)
    for member in circle:
        if member.owner != owner and (owner, member.owner) not in acting and member.pgt_id not in context.circle:
            raise SqlError(
                "42501",
                f'stream table "{context.name}" cannot be in a circle with "{member.schema}.{member.name}"',
                detail="It belongs to a role that the owner is no member of.",
            )


async def _refuse_member(name: str, inputs: PlanInputs, mode: RefreshMode) -> None:
    """Raises SqlError 0A000 where going round and round with a stream table might never end."""
    if mode != RefreshMode.DIFFERENTIAL:
        raise SqlError(
            "0A000",
            f'stream table "{name}" cannot be in a circle in {mode} mode',
            detail="Those of a circle are refreshed by changes, until there are none.",
            hint="Use refresh_mode => 'DIFFERENTIAL'.",
        )
    if any(source.schema == "pgtrickle_changes" for source in inputs.sources):
        raise SqlError("0A000", f'stream table "{name}", which reads a foreign table, cannot be in a circle')
    construct = (await compiled(inputs)).not_monotone
    if construct is not None:
        raise SqlError(
            "0A000",
            f"{construct} is not supported in a circle of stream tables",
            detail=f'It is in the query of "{name}": with more rows to read that query may give less, so that there may'
            " be no fixed point.",
            hint="Joins, filters, UNION, DISTINCT, INTERSECT, EXISTS and IN are supported.",
        )


async def _inputs(session: SqlSession, member: StreamTable) -> PlanInputs:
    """What a member is planned from. Raises SqlError 42501 where the session's role may not see that."""
    ((canonical, inputs),) = await session.fetch(_INPUTS, member.pgt_id)
    if canonical is None:
        raise SqlError("42501", f'must be owner of stream table "{member.name}"')
    return PlanInputs.from_json(canonical, json.loads(inputs))


_INPUTS = """
SELECT canonical_query, (explain -> 'inputs')::text FROM pgtrickle.pgt_stream_tables WHERE pgt_id = $1::bigint
"""
