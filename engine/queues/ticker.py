"""The clock of one database's queues: ticks them, and moves retries, delayed events and rotation on.

Any number of server processes may run one; one of them is elected (`leader_election`), and another takes over when its
session ends. All state stands in the schema `pgque`, so killing a clock at any moment loses nothing: a tick is one
statement in a transaction of its own, and events that waited through a pause are in the next tick.

A clock whose queues receive events ticks at the period that `pgque.set_tick_period_ms` says. After some seconds
without events it looks once a second, until a commit that passes through the relay wakes it. In a database without
queues it has no connection at all.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import asyncpg
import structlog

from catalog.ownership import installed_query
from catalog.session import SqlSession
from catalog.systems import QUEUES
from engine.queues.maintenance import QueueMaintenance
from engine.session.backoff import Backoff
from engine.session.leader_election import Candidate

logger = structlog.get_logger(__name__)

LEASE = "queue clock"
"""What a database's clock holds while it is elected; `pgque.status()` looks for it."""

CHANNEL = "pgque_clock"
"""Where `pgque.start`, `stop` and `set_tick_period_ms` say that something has changed."""

LOOK_INTERVAL = 1.0
"""Seconds between two ticks where no events come: those sent past every server are found so late at most."""

ACTIVE_SECONDS = 3.0
"""For so long after the last event the clock goes on ticking at its period."""

LOCK_TIMEOUT = "200ms"
"""Whoever holds a queue's row (DROP in an open transaction, say) must not hold up the others."""

_INSTALLED = installed_query(QUEUES)

_FOUND = "SELECT EXISTS (SELECT FROM pgque.queue)"

# The position moves with every event, also with one whose transaction is still open or will be rolled back. A queue
# that is broken must not stop the others, hence to_regclass().
_STATE = """
SELECT c.tick, c.tick_period_ms::float8 / 1000, q.queues, q.position, {ticked}
FROM pgque._clock() AS c
CROSS JOIN (
    SELECT count(*) AS queues,
           coalesce(sum(pg_catalog.pg_sequence_last_value(pg_catalog.to_regclass(queue_event_seq))), 0) AS position
    FROM pgque.queue) AS q
"""
_ROUND = _STATE.format(ticked="CASE WHEN c.tick THEN pgque._tick_early() END")
_LOOK = _STATE.format(ticked="NULL::bigint")

_TICKED_HERE = """
SELECT queue_name::text FROM pgque.queue
WHERE NOT queue_external_ticker AND NOT queue_ticker_paused ORDER BY queue_id
"""


@dataclass(frozen=True, slots=True)
class State:
    """What one round has seen."""

    ticks: bool
    """Whether the clock is to tick: not after `pgque.stop()`, and not where pg_cron does."""
    period: float
    queues: int
    position: int


@dataclass(slots=True)
class QueueTicker(Candidate):
    """Ticks the queues of one database while it is elected."""

    title = "queue clock"
    lease = LEASE

    clock: Callable[[], float] = time.monotonic
    absent: Callable[[], None] = lambda: None
    """Called where queues are not installed in the database: somebody may have taken them out."""
    _position: int | None = None
    _active_until: float = -math.inf
    _troubles: Backoff = field(default_factory=Backoff)

    def committed(self) -> None:
        """A transaction that changed data has committed; triggers may have sent events."""
        if self.leading:
            self._woken.set()

    def sent(self) -> None:
        """A transaction of a session that names the functions of `pgque` has ended."""
        self._woken.set()

    async def _has_work(self, session: SqlSession) -> bool:
        ((installed,),) = await session.fetch(_INSTALLED)
        if not installed:
            self.absent()
            return False
        ((found,),) = await session.fetch(_FOUND)
        return bool(found)

    async def _work(self, connection: asyncpg.Connection) -> None:
        maintenance = QueueMaintenance(self.pool, self.clock)
        maintenance.start()
        try:
            await self._tick(connection, maintenance)
        finally:
            await maintenance.stop()

    async def _tick(self, connection: asyncpg.Connection, maintenance: QueueMaintenance) -> None:
        """Round after round, until the last queue is gone."""
        await connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
        await connection.add_listener(CHANNEL, lambda *_: self._woken.set())
        # Nothing but the functions of `pgque` runs in this session (hooks of the maintenance do not), so a prepared
        # statement is what it was prepared as.
        one_round, look = await connection.prepare(_ROUND), await connection.prepare(_LOOK)
        self._position = None
        self._troubles.clear()
        due = self.clock()
        while True:
            self._woken.clear()
            state = await self._round(connection, one_round, look)
            if not state.queues:
                return
            if state.ticks:
                maintenance.active.set()
            else:
                maintenance.active.clear()
            now = self.clock()
            if state.position != self._position:
                self._position, self._active_until = state.position, now + ACTIVE_SECONDS
            # Rounds keep to their times; those that a pause has swallowed are not made up for, since one tick has all.
            due = max(due + state.period, now)
            await asyncio.sleep(due - now)
            if not state.ticks or now >= self._active_until:
                if await self._woken.within(LOOK_INTERVAL - state.period):
                    self._active_until = self.clock() + ACTIVE_SECONDS
                due = self.clock()

    async def _round(
        self,
        connection: asyncpg.Connection,
        one_round: asyncpg.prepared_stmt.PreparedStatement,
        look: asyncpg.prepared_stmt.PreparedStatement,
    ) -> State:
        """Tick all queues in one round trip; where that fails, each by itself."""
        if not self._troubles:
            try:
                with connection.under_way():
                    return _state(await one_round.fetchrow())
            except asyncpg.PostgresError as error:
                if connection.is_closed():
                    raise
                logger.warning("queues are ticked one by one", database=self.pool.database, error=str(error))
        with connection.under_way():
            state = _state(await look.fetchrow())
        if state.ticks:
            names = [name for (name,) in await connection.fetch(_TICKED_HERE)]
            self._troubles.keep(names)
            for name in names:
                if self._troubles.waits(name, self.clock()):
                    continue
                try:
                    await connection.fetchval("SELECT pgque._tick_early($1::text)", name)
                except asyncpg.PostgresError as error:
                    if connection.is_closed():
                        raise
                    pause = self._troubles.note(name, self.clock())
                    logger.warning(
                        "queue not ticked",
                        database=self.pool.database,
                        queue=name,
                        sqlstate=error.sqlstate,
                        error=str(error),
                        retry_seconds=pause,
                    )
                else:
                    self._troubles.over(name)
        return state


def _state(row: asyncpg.Record | None) -> State:
    assert row is not None
    ticks, period, queues, position, _ = row
    return State(ticks, period, queues, int(position))
