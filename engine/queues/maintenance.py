"""What the clock of a database's queues does besides ticking: retries, delayed events, rotation, hooks.

Each step is a transaction of its own in a session of the pool, beside the ticks, so that no step holds up a tick or
another step. What fails is logged and tried again later, ever more rarely. Hooks, which are users' functions, run
beside the steps, those of each queue over a connection of their own that ends with them, and for a limited time.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from catalog.session import SqlError
from engine.session.background_worker import BackgroundWorker
from engine.session.backoff import Backoff
from engine.session.pool import DatabasePool, PooledSession

logger = structlog.get_logger(__name__)

RETRY_INTERVAL = 1.0
"""Seconds between two looks for retries and delayed events that are due."""

ROTATION_INTERVAL = 10.0
MAINTENANCE_INTERVAL = 30.0

HOOK_SECONDS = 60
"""The hooks of one queue may take so long, together."""

LOCK_TIMEOUT = "2s"
"""A step gives up what somebody holds locked for longer, and comes back to it."""

_QUEUES = "SELECT queue_name::text FROM pgque.queue ORDER BY queue_id"


_HOOKED = "SELECT queue_name::text FROM pgque.queue WHERE queue_extra_maint <> '{}' ORDER BY queue_id"


@dataclass(slots=True)
class _Step:
    """A function that is to be called again and again."""

    function: str
    interval: float
    by_queue: str = ""
    """What does the same for one queue, where one queue's failure must not stop the others."""
    due: float = -math.inf


@dataclass(slots=True)
class QueueMaintenance:
    """Calls the maintenance functions of `pgque` in one database while `active` is set."""

    pool: DatabasePool
    clock: Callable[[], float] = time.monotonic
    active: asyncio.Event = field(default_factory=asyncio.Event)
    _troubles: Backoff = field(default_factory=Backoff)
    _workers: tuple[BackgroundWorker, ...] = field(init=False)
    _steps: tuple[_Step, ...] = field(
        default_factory=lambda: (
            _Step("pgque.maint_retry_events()", RETRY_INTERVAL),
            _Step("pgque.maint_deliver_delayed()", RETRY_INTERVAL),
            _Step("pgque.maint_rotate_tables_step2()", ROTATION_INTERVAL),
            _Step("pgque._maint_queues()", MAINTENANCE_INTERVAL, by_queue="pgque.maint_rotate_tables_step1"),
        )
    )

    def __post_init__(self) -> None:
        database = self.pool.database
        self._workers = (
            BackgroundWorker("queue maintenance", database, self._cycle, RETRY_INTERVAL),
            BackgroundWorker("hooks of queues", database, self._call_hooks, MAINTENANCE_INTERVAL),
        )

    def start(self) -> None:
        """Begin."""
        for worker in self._workers:
            worker.start()

    async def stop(self) -> None:
        """End it, without a wait for a peer that says nothing."""
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    async def _call_hooks(self) -> None:
        """Call each queue's hooks over a connection of their own."""
        await self.active.wait()
        async with self.pool.session() as session:
            names = [name for (name,) in await session.fetch(_HOOKED)]
        for name in names:
            what = f"hooks, {name}"
            if self._troubles.waits(what, self.clock()):
                continue
            connection = await self.pool.connect()
            pid, session = connection.get_server_pid(), PooledSession(connection)
            try:
                await session.execute(f"SET statement_timeout = '{HOOK_SECONDS}s'")
                async with asyncio.timeout(HOOK_SECONDS + 5):
                    await self._call(session, "SELECT pgque._call_hooks($1::text)", what, name)
            except TimeoutError:  # a function may catch its cancellation
                pause = self._troubles.note(what, self.clock())
                logger.warning("hooks do not end", database=self.pool.database, queue=name, retry_seconds=pause)
                async with self.pool.session() as other:
                    await other.execute(f"SELECT pg_catalog.pg_terminate_backend({pid})")
            finally:
                connection.terminate()

    async def _cycle(self) -> None:
        """Take each step that is due, in a transaction of its own."""
        await self.active.wait()
        async with self.pool.session() as session:
            await session.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")  # until the session returns to the pool
            for step in self._steps:
                now = self.clock()
                if now < step.due or self._troubles.waits(step.function, now):
                    continue
                step.due = now + step.interval
                if not await self._call(session, f"SELECT {step.function}", step.function) and step.by_queue:
                    names = [name for (name,) in await session.fetch(_QUEUES)]
                    for name in names:
                        await self._call(session, f"SELECT {step.by_queue}($1::text)", f"{step.by_queue}, {name}", name)

    async def _call(self, session: PooledSession, statement: str, what: str, *args: str) -> bool:
        """Whether it succeeded. Raises SqlError where the connection is lost."""
        if self._troubles.waits(what, self.clock()):
            return False
        try:
            await session.execute(statement, *args)
        except SqlError as error:
            if error.is_of_connection:
                raise
            pause = self._troubles.note(what, self.clock())
            logger.warning(
                "queue maintenance failed",
                database=self.pool.database,
                step=what,
                sqlstate=error.sqlstate,
                error=error.message,
                retry_seconds=pause,
            )
            return False
        self._troubles.over(what)
        return True
