"""Who may have the stream tables of a diamond refreshed together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from catalog.graph import DependencyGraph
from catalog.session import SqlError, SqlSession
from catalog.stream_tables import acting_roles, stream_tables
from engine.stream_tables.plan_store import set_state


async def settle_diamond(session: SqlSession, pgt_id: int, changes: Mapping[str, Any]) -> None:
    """Change how the diamond that meets in a stream table is refreshed, or its query. Raises SqlError 42501."""
    options = {key: changes[key] for key in ("diamond_consistency", "diamond_schedule_policy") if key in changes}
    if options:
        await set_state(session, pgt_id, **options)
    await refuse_foreign_diamond(
        session, pgt_id, "atomic" if "query" in changes else options.get("diamond_consistency")
    )


async def refuse_foreign_diamond(session: SqlSession, pgt_id: int, consistency: str | None) -> None:
    """Where a stream table says that its diamond is ``atomic``, its owner must have the rights of the members' owners.

    Members are refreshed all or none, so they would wait for it. Raises SqlError 42501.
    """
    if consistency != "atomic":
        return
    tables = {table.pgt_id: table for table in await stream_tables(session)}
    meeting = tables[pgt_id]
    if not meeting.atomic or meeting.all_atomic:
        return
    members = [tables[each] for each in sorted(DependencyGraph(tables.values()).diamond(pgt_id))]
    acting = await acting_roles(session, members)
    for member in members:
        if member.owner != meeting.owner and (meeting.owner, member.owner) not in acting:
            raise SqlError(
                "42501",
                f'stream table "{meeting.name}" cannot have "{member.schema}.{member.name}" refreshed with it',
                detail="It belongs to a role that the owner is no member of.",
                hint="pg_trickle.diamond_consistency = 'atomic' for the database holds for all stream tables.",
            )
