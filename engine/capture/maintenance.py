"""Who may read captured changes: looked after every second, whatever else the engine is busy with.

Captured changes are in tables that owners of stream tables and subscribers may read as long as they may read the
source. PostgreSQL tells nobody when a role leaves another one, so an elected server (`leader_election`) looks. It also
ends captures that nobody needs any more, of tables that those who needed them may not lock.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import asyncpg

from catalog.session import SqlSession
from engine.session.leader_election import Candidate
from engine.session.pool import PooledSession

LOOK_INTERVAL = 1.0
"""Seconds for which a right that was lost can outlive its loss."""

EASE = 40
"""How much longer than an attempt to end captures is the time before the next: writers of a busy table wait for it."""


@dataclass(slots=True)
class CaptureMaintenance(Candidate):
    """Keeps the captures of one database while it is elected."""

    title = "maintenance of captures"
    lease = "captures"

    _look_within: float = LOOK_INTERVAL

    async def _has_work(self, session: SqlSession) -> bool:
        ((found,),) = await session.fetch(
            "SELECT EXISTS (SELECT FROM pgtrickle.pgt_captures) OR pgtrickle._unfollowed()"
            " OR EXISTS (SELECT FROM pgtrickle.pgt_columns_ahead)"
        )
        return bool(found)

    async def _work(self, connection: asyncpg.Connection) -> None:
        """Look until nothing is captured."""
        session = PooledSession(connection)
        state: str | None = None
        again = 0.0
        while await self._has_work(session):
            ((state,),) = await session.fetch("SELECT pgtrickle._keep_captures($1::text)", state)
            if time.monotonic() >= again:
                began = time.monotonic()
                await session.fetch(_END)
                await session.fetch(_DROP)
                again = time.monotonic() + EASE * (time.monotonic() - began)
            await asyncio.sleep(LOOK_INTERVAL)


_DROP = """
SELECT CASE WHEN EXISTS (SELECT FROM pgtrickle.pgt_columns_ahead) THEN pgtrickle._drop_columns_ahead()::text END
"""
_END = "SELECT CASE WHEN pgtrickle._unfollowed() THEN pgtrickle._end_captures()::text END"
