"""Who may read captured changes: looked after every second, whatever else the engine is busy with.

Captured changes are in tables that owners of stream tables and subscribers may read as long as they may read the
source. PostgreSQL tells nobody when a role leaves another one, so an elected server (`engine.election`) looks. It also
ends captures that nobody needs any more, of tables that those who needed them may not lock.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import asyncpg

from catalog.session import SqlSession
from engine.election import Candidate
from engine.pool import PooledSession

LOOK_INTERVAL = 1.0
"""Seconds for which a right that was lost can outlive its loss."""


@dataclass(slots=True)
class CaptureKeeper(Candidate):
    """Keeps the captures of one database while it is elected."""

    title = "keeper of captures"
    lease = "captures"

    _look_within: float = LOOK_INTERVAL

    async def _has_work(self, session: SqlSession) -> bool:
        ((found,),) = await session.fetch(
            "SELECT EXISTS (SELECT FROM pgtrickle.pgt_captures) OR pgtrickle._unfollowed()"
        )
        return bool(found)

    async def _work(self, connection: asyncpg.Connection) -> None:
        """Look until nothing is captured."""
        session = PooledSession(connection)
        state: str | None = None
        while await self._has_work(session):
            ((state,),) = await session.fetch("SELECT pgtrickle._keep_captures($1::text)", state)
            await session.fetch("SELECT CASE WHEN pgtrickle._unfollowed() THEN pgtrickle._unsubscribe('{}')::text END")
            await asyncio.sleep(LOOK_INTERVAL)
