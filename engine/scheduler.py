"""The scheduler of one database: refreshes what is due, in dependency order.

Any number of server processes may run one; one of them is elected (`engine.election`). All it must remember stands
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
from engine.election import elected
from engine.pool import DatabasePool, PooledSession

logger = structlog.get_logger(__name__)

LEASE = "scheduler"
"""What a database's scheduler holds while it is elected; `pgtrickle._scheduler_running()` looks for it."""

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
    AGAIN = "it is busy elsewhere: look again"


Refresh = Callable[[PooledSession, StreamTable], Awaitable[Turn]]
"""Refresh one stream table in a transaction of its own. Raises SqlError if that fails."""


@dataclass(slots=True)
class _Pace:
    """What the scheduler remembers of a stream table between two looks; it may forget it at any time."""

    seen: int | None = None
    """Position of the database's changes at which it was last found up to date."""
    failures: int = 0
    retry: float = -math.inf
    """When it may be tried again after a failure, on the monotonic clock."""


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
    _cleaned_at: float = -math.inf
    _cleaned_position: int | None = None
    _pruned_at: float = -math.inf
    _asked_at: float = -math.inf

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
            except Exception:
                logger.exception("scheduler failed", database=self.pool.database)
            finally:
                self.leading = False
            await asyncio.sleep(ELECTION_RETRY)

    async def _lead(self) -> None:
        async with elected(self.pool, LEASE) as connection:
            if connection is None:
                return
            logger.info("scheduler elected", database=self.pool.database)
            self.leading = True
            self._paces.clear()
            session = PooledSession(connection)
            while True:
                self._woken.clear()
                pause = await self._cycle(session)
                self.last_cycle = self.clock()
                await asyncio.sleep(min(REST, pause))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._woken.wait()

    async def _cycle(self, session: SqlSession) -> float:
        """Refresh what is due and may have changes; returns the seconds until the next look."""
        await self.strays()
        if not await self._enabled(session):
            return LOOK_INTERVAL
        # The position is read before anything is refreshed: what is captured later moves it again.
        ((position, settled),) = await session.fetch(
            "SELECT change_position, settled FROM pgtrickle._change_position()"
        )
        position = position if settled else None
        tables = await stream_tables(session)
        now = self.clock()
        next_look = now + LOOK_INTERVAL
        graph = DependencyGraph(tables)
        schedules = graph.effective_schedules()
        self._paces = {table.pgt_id: self._paces.get(table.pgt_id, _Pace()) for table in tables}
        worked = False
        for generation in graph.generations():
            due: list[StreamTable] = []
            for table in generation:
                # What an upstream stream table has just changed moves the position, too.
                if table.status == "SUSPENDED" or (self._is_idle(table, position) and not worked):
                    continue
                wait = self._seconds_to_wait(table, schedules[table.pgt_id], now)
                if wait > 0:
                    next_look = min(next_look, now + wait)
                else:
                    due.append(table)
            for start in range(0, len(due), self.max_concurrent):
                batch = due[start : start + self.max_concurrent]
                turns = await asyncio.gather(*(self._turn(table, schedules[table.pgt_id], position) for table in batch))
                worked = worked or Turn.WORKED in turns
                if Turn.AGAIN in turns:
                    next_look = min(next_look, self.clock() + REST)
        await self._tidy(session, position, worked)
        return max(0.0, next_look - self.clock())

    async def _enabled(self, session: SqlSession) -> bool:
        if await _is_on(session):
            return True
        # A session keeps the setting it began with, even if ALTER DATABASE ... RESET has taken that back.
        if self.clock() - self._asked_at < LOOK_INTERVAL:
            return False
        self._asked_at = self.clock()
        connection = await self.pool.connect()
        try:
            return await _is_on(PooledSession(connection))
        finally:
            connection.terminate()

    def _is_idle(self, table: StreamTable, position: int | None) -> bool:
        """Nothing at all has been captured since the stream table was found up to date."""
        seen = self._paces[table.pgt_id].seen
        return seen is not None and seen == position and not table.needs_reinit and not table.untracked

    def _seconds_to_wait(self, table: StreamTable, schedule: float, now: float) -> float:
        """Until a stream table that may have changes is due: its rows may be as old as its schedule says."""
        rest = POPULATION_GRACE - table.age_seconds if table.staleness is None else schedule - table.staleness
        return max(rest, self._paces[table.pgt_id].retry - now)

    async def _tidy(self, session: SqlSession, position: int | None, worked: bool) -> None:
        """Remove changes that everybody has seen, and old history."""
        now = self.clock()
        moved = position is None or position != self._cleaned_position
        if worked or (moved and now - self._cleaned_at >= CLEANUP_INTERVAL):
            await session.fetch("SELECT pgtrickle._cleanup_buffers()")
            self._cleaned_at, self._cleaned_position = now, position
        if now - self._pruned_at >= PRUNING_INTERVAL:
            await session.fetch("SELECT pgtrickle._prune_history()")
            self._pruned_at = now

    async def _turn(self, table: StreamTable, schedule: float, position: int | None) -> Turn:
        """Refresh one table in a connection of its own. Afterwards it has all changes up to `position`."""
        pace = self._paces[table.pgt_id]
        try:
            async with self.pool.session() as session:
                turn = await self.refresh(session, table)
        except SqlError as error:
            pace.failures += 1
            pace.retry = self.clock() + max(schedule, min(60.0, 2.0 ** min(pace.failures, 6)))
            logger.warning(
                "refresh failed",
                stream_table=f"{table.schema}.{table.name}",
                sqlstate=error.sqlstate,
                error=error.message,
            )
            return Turn.NOTHING
        if turn is not Turn.AGAIN:
            pace.failures, pace.retry, pace.seen = 0, -math.inf, position
        return turn


async def _is_on(session: SqlSession) -> bool:
    ((enabled,),) = await session.fetch("SELECT pgtrickle._setting('pg_trickle.enabled', 'on')")
    return str(enabled).lower() not in ("off", "false", "0", "no")
