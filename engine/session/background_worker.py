"""Work in the background: it goes on until it is stopped, whatever interrupts it, and can be woken while it rests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from dataclasses import dataclass

import asyncpg
import structlog

from catalog.session import SqlError
from engine.session.backoff import LONGEST_PAUSE, pause_after

logger = structlog.get_logger(__name__)

INTERRUPTIONS = (SqlError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
"""What a worker meets when PostgreSQL refuses something, or is not there."""

STOP_SECONDS = 2.0
"""So long a task that is being ended may take."""


class WakeUp(asyncio.Event):
    """An event that ends a rest."""

    async def within(self, seconds: float) -> bool:
        """Sleep until woken, but not longer than so many seconds; whether it was woken."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait()
                return True
        return False


@dataclass(slots=True)
class BackgroundWorker:
    """Calls `work` again and again, `pause` seconds after it has returned or was interrupted.

    An error that is not one of `INTERRUPTIONS` is a defect. Each one in a row doubles the pause, up to `LONGEST_PAUSE`.
    One that ends a run of so many seconds is the first of a row.
    """

    title: str
    """What the log calls it."""
    database: str
    work: Callable[[], Awaitable[None]]
    pause: float
    clock: Callable[[], float] = time.monotonic
    _task: asyncio.Task[None] | None = None
    _cancelled: bool = False
    _failures: int = 0

    @property
    def started(self) -> bool:
        """Whether it has ever been started."""
        return self._task is not None

    def start(self, *, after: float = 0.0) -> None:
        """Begin after so many seconds, unless it runs already."""
        if self._task is None or self._task.done() or self._cancelled:
            self._cancelled = False
            begun = self._run_after(after) if after else self.run()
            self._task = asyncio.create_task(begun, name=f"headwater {self.title} {self.database}")

    def cancel(self) -> None:
        """Have the work end."""
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    async def stop(self) -> bool:
        """Have the work end and wait for it, but not for a peer that says nothing; whether it has ended.

        Called again it only waits again.
        """
        self.cancel()
        return self._task is None or not await ended([self._task])

    async def _run_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.run()

    async def run(self) -> None:
        """Work until cancelled, also if the cancelled work ends with another error."""
        task = asyncio.current_task()
        assert task is not None
        while not task.cancelling():
            pause = await self._run_once()
            await asyncio.sleep(pause)

    async def _run_once(self) -> float:
        """Work, and return the seconds until it is time to work again."""
        began = self.clock()
        failures, self._failures = self._failures, 0
        try:
            await self.work()
        except INTERRUPTIONS as error:
            logger.warning(f"{self.title} interrupted", database=self.database, error=str(error))
        except Exception:
            logger.exception(f"{self.title} failed", database=self.database)
            self._failures = 1 if self.clock() - began >= LONGEST_PAUSE else failures + 1
            return pause_after(self._failures, first=self.pause, longest=max(self.pause, LONGEST_PAUSE))
        return self.pause


async def ended(tasks: Collection[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Wait `STOP_SECONDS` for tasks that are being ended. Returns those that are still there."""
    if not tasks:
        return set()
    done, left = await asyncio.wait(tasks, timeout=STOP_SECONDS)
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("ended with an error", task=task.get_name(), error=repr(error))
    return left
