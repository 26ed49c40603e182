"""The scheduler of one database: refreshes what is due, in dependency order.

Any number of server processes may run one; an advisory lock elects the one that works. All it must remember stands
in the catalog, so killing it at any moment loses nothing. It sleeps until a commit wakes it, a schedule falls due, or
it is time to look for changes that did not come through this server.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

import structlog

from catalog.graph import DependencyGraph
from catalog.session import SqlError, SqlSession
from catalog.stream_tables import StreamTable, stream_tables
from engine.pool import DatabasePool, PooledSession

logger = structlog.get_logger(__name__)

ELECTION_LOCK = 0x4865616477617465
"""Key of the advisory lock that elects a database's scheduler ("Headwate" in ASCII)."""

ELECTION_RETRY = 5.0
LOOK_INTERVAL = 1.0
"""Seconds between looks for changes made on connections that bypass every server."""

REST = 0.05
"""Least seconds between two looks, so that a storm of commits does not become a storm of looks."""

CLEANUP_INTERVAL = 1.0

PRUNING_INTERVAL = 3600.0

POPULATION_GRACE = 5.0
"""Seconds after its creation for which an empty stream table is left to the session that creates it."""


class Turn(Enum):
    """How a stream table's turn went."""

    WORKED = "it was refreshed"
    NOTHING = "it had no changes"
    AGAIN = "it is busy elsewhere, or failed: look again"


Refresh = Callable[[PooledSession, StreamTable], Awaitable[Turn]]
"""Refresh one stream table in a transaction of its own. Raises SqlError if that fails."""


@dataclass(slots=True)
class _Pace:
    """When a stream table's next turn may come, on the monotonic clock."""

    due: float = 0.0
    failures: int = 0


@dataclass(slots=True)
class Scheduler:
    """Keeps the stream tables of one database on schedule."""

    pool: DatabasePool
    refresh: Refresh
    strays: Callable[[], Awaitable[None]]
    """Carries out the requests of connections that bypass the server."""
    max_concurrent: int = 4
    clock: Callable[[], float] = time.monotonic
    leading: bool = False
    last_cycle: float | None = None
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _paces: dict[int, _Pace] = field(default_factory=dict)
    _seen_position: int | None = None
    _cleaned_at: float = 0.0
    _pruned_at: float = -math.inf

    def wake(self) -> None:
        """A transaction that changed data has committed."""
        self._woken.set()

    async def run(self) -> None:
        """Take part in the election until cancelled, and work while elected."""
        while True:
            try:
                await self._lead()
            except (SqlError, OSError) as error:
                logger.warning("scheduler interrupted", database=self.pool.database, error=str(error))
            finally:
                self.leading = False
            await asyncio.sleep(ELECTION_RETRY)

    async def _lead(self) -> None:
        connection = await self.pool.connect()
        try:
            session = PooledSession(connection)
            ((elected,),) = await session.fetch("SELECT pg_catalog.pg_try_advisory_lock($1::bigint)", ELECTION_LOCK)
            if not elected:
                return
            logger.info("scheduler elected", database=self.pool.database)
            self.leading = True
            self._seen_position = None
            while True:
                self._woken.clear()
                pause = await self._cycle(session)
                self.last_cycle = self.clock()
                await asyncio.sleep(min(REST, pause))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()
        finally:
            connection.terminate()

    async def _cycle(self, session: SqlSession) -> float:
        """Refresh what is due and may have changes; returns the seconds until the next look."""
        await self.strays()
        ((enabled,),) = await session.fetch("SELECT pgtrickle._setting('pg_trickle.enabled', 'on')")
        if str(enabled).lower() in ("off", "false", "0", "no"):
            return LOOK_INTERVAL
        # The position is read before anything is refreshed: what is captured later moves it again.
        ((position, settled),) = await session.fetch(
            "SELECT change_position, settled FROM pgtrickle._change_position()"
        )
        tables = await stream_tables(session)
        quiet = settled and position == self._seen_position
        graph = DependencyGraph(tables)
        schedules = graph.effective_schedules()
        now = self.clock()
        for known in set(self._paces) - {table.pgt_id for table in tables}:
            del self._paces[known]

        worked, waiting = False, False
        next_look = now + LOOK_INTERVAL
        for generation in graph.generations():
            due: list[StreamTable] = []
            for table in generation:
                settled_table = table.is_populated and not table.needs_reinit and not table.untracked
                idle = quiet and not worked and settled_table
                if idle or table.status == "SUSPENDED":
                    continue
                if not table.is_populated and table.age_seconds < POPULATION_GRACE:
                    waiting = True
                    continue
                pace = self._paces.setdefault(table.pgt_id, _Pace())
                if pace.due > now:
                    next_look, waiting = min(next_look, pace.due), True
                else:
                    due.append(table)
            for start in range(0, len(due), self.max_concurrent):
                turns = await asyncio.gather(
                    *(self._turn(table, schedules[table.pgt_id]) for table in due[start : start + self.max_concurrent])
                )
                worked = worked or Turn.WORKED in turns
                waiting = waiting or Turn.AGAIN in turns
        if worked or (not quiet and now - self._cleaned_at >= CLEANUP_INTERVAL):
            await session.fetch("SELECT pgtrickle._cleanup_buffers()")
            self._cleaned_at = now
        if now - self._pruned_at >= PRUNING_INTERVAL:
            await session.fetch("SELECT pgtrickle._prune_history()")
            self._pruned_at = now
        self._seen_position = position if settled and not waiting else None
        for pace in self._paces.values():
            if pace.due > now:
                next_look = min(next_look, pace.due)
        return max(0.0, next_look - self.clock())

    async def _turn(self, table: StreamTable, schedule: float) -> Turn:
        """Refresh one table in a connection of its own; its next turn is one schedule later if it did anything."""
        pace = self._paces[table.pgt_id]
        started = self.clock()
        try:
            async with self.pool.session() as session:
                turn = await self.refresh(session, table)
        except SqlError as error:
            pace.failures += 1
            pace.due = self.clock() + max(schedule, min(60.0, 2.0**pace.failures))
            logger.warning(
                "refresh failed",
                stream_table=f"{table.schema}.{table.name}",
                sqlstate=error.sqlstate,
                error=error.message,
            )
            return Turn.AGAIN
        pace.failures = 0
        if turn is Turn.WORKED or table.untracked:
            pace.due = started + schedule
        elif turn is Turn.AGAIN:
            pace.due = self.clock() + REST
        return turn
