"""What one client reads: a queue of batches, bounded in bytes, with what comes before and after them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import structlog

from catalog.session import SqlError
from engine.subscribe.interface import Batch, PassOn, Subscribe
from engine.subscribe.rendering import Rendering

logger = structlog.get_logger(__name__)

MOST_BYTES = 32 << 20
"""What waits for a client. One that has more waiting slows down what it is read from, for a while."""

MOST_HELD = 4 * MOST_BYTES
"""What comes while the snapshot is read. Nobody waits for it to be read."""

STALL_SECONDS = 10.0
"""A client that has more waiting than `MOST_BYTES`, and has read nothing for so long, is dropped."""

SLOW_SECONDS = 5.0
"""So long do the other subscriptions wait for a client that reads too slowly; then it is dropped."""

TOO_SLOW = SqlError(
    "53400",
    "subscription is read too slowly",
    detail=f"More than {MOST_BYTES >> 20} MB of its updates wait for the client.",
    hint="Read without pauses, or subscribe again from the last timestamp, AS OF a time that is retained.",
)


class LiveFeed:
    """Implements `Feed`. Belongs to a hub, which fills it; `leave` tells the hub that nobody reads it any more."""

    def __init__(self, asked: Subscribe, rendering: Rendering, leave: Callable[[LiveFeed], None]):
        self.asked = asked
        self.rendering = rendering
        self.up_to: int | None = None
        self.as_of: int | None = None
        self.started = False
        """Whether AS OF has come: from then on it is given all changes."""
        self.last_timestamp = 0
        self._leave = leave
        self._queue: deque[Batch] = deque()
        self._held: list[Batch] | None = []
        """What comes after the snapshot, while that is read; None afterwards."""
        self._size = 0
        """Bytes in the queue."""
        self._held_size = 0
        self._ended = False
        self._ends = False
        """Whether it ends after the snapshot."""
        self._failure: SqlError | None = None
        self._waiter: asyncio.Future[None] | None = None
        """Of its one reader. (For a thousand feeds an Event takes twice the time.)"""
        self._pass_on: PassOn | None = None
        """What takes batches while the reader waits."""
        self._drained = asyncio.Event()
        self._read_at = time.monotonic()
        self._closed = False

    # -- the client's side --------------------------------------------------------------------------------------------

    async def next(self, wait: float | None = None, pass_on: PassOn | None = None) -> Batch | None:
        self._read_at = time.monotonic()
        if not self._queue and not self._ended:
            if wait is not None and wait <= 0:
                raise TimeoutError
            self._waiter = asyncio.get_running_loop().create_future()
            self._pass_on = pass_on
            try:
                if wait is None:
                    await self._waiter
                else:
                    async with asyncio.timeout(wait):
                        await self._waiter
            finally:
                self._pass_on = None
        self._read_at = time.monotonic()
        if self._queue:
            batch = self._queue.popleft()
            self._size -= len(batch.messages)
            self._drained.set()
            return batch
        if self._failure is not None:
            raise self._failure
        return None

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.drop()
            self._leave(self)

    def _wake(self) -> None:
        """There is something to read, or an end."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- the hub's side -----------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        """Whether it takes nothing any more."""
        return self._ended or self._closed

    @property
    def finished(self) -> bool:
        """Whether it takes nothing any more that comes after the snapshot."""
        return self.over or self._ends

    def put(self, batch: Batch, *, snapshot: bool = False) -> None:
        """Give it a batch. What is no part of the snapshot waits until that is complete."""
        if self.over or (self._ends and not snapshot):
            return
        self.last_timestamp = batch.timestamp
        if self._held is not None and not snapshot:
            self._held.append(batch)
            self._held_size += len(batch.messages)
            if self._held_size > MOST_HELD:
                self.fail(TOO_SLOW)
            return
        if self._pass_on is not None and not self._queue and self._pass_on(batch):
            self._read_at = time.monotonic()
            return
        self._queue.append(batch)
        self._size += len(batch.messages)
        self._wake()

    @property
    def waiting_bytes(self) -> int:
        """What waits for the client, its snapshot and what has come since that included."""
        return self._size + self._held_size

    @property
    def unread_since(self) -> int | None:
        """The timestamp of the first batch that waits for the client, if any does."""
        first = self._queue[0] if self._queue else self._held[0] if self._held else None
        return None if first is None else first.timestamp

    @property
    def is_full(self) -> bool:
        """Whether more waits for the client than should."""
        return self._size > MOST_BYTES

    @property
    def is_behind(self) -> bool:
        """Whether it must read before it is given more changes. Those that come during its snapshot just wait."""
        return self.is_full and self._held is None

    def snapshot_complete(self) -> None:
        """Now comes what has come after the snapshot."""
        if self._held is None:
            return
        held, self._held = self._held, None
        self._queue.extend(held)
        self._size, self._held_size = self._size + self._held_size, 0
        self._ended = self._ended or self._ends
        if self._ended or held:
            self._wake()

    async def room(self, seconds: float) -> None:
        """Wait until it has room, or drop it: it has read nothing for `STALL_SECONDS`, or too slowly for `seconds`."""
        deadline = time.monotonic() + seconds
        while self.is_full and not self.over:
            now = time.monotonic()
            if now >= deadline or now - self._read_at > STALL_SECONDS:
                self.fail(TOO_SLOW)
                return
            self._drained.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(1.0, deadline - now)):
                    await self._drained.wait()

    def end(self) -> None:
        """There is nothing more to come."""
        if not self.finished:
            ending = self.rendering.ending
            if ending:
                self.put(Batch(self.last_timestamp, ending, 0))
            if self._held is None:
                self._ended = True
                self._wake()
            else:
                self._ends = True

    def fail(self, error: SqlError) -> None:
        """It cannot go on. What waits for the client is read first, unless that is too much."""
        if self.over:
            return
        if error is TOO_SLOW:
            preparation = self.rendering.preparation
            logger.warning(
                "subscriber reads too slowly and is ended",
                role=preparation.role,
                query=preparation.canonical[:200],
                waiting_bytes=self.waiting_bytes,
                last_read_seconds=round(time.monotonic() - self._read_at, 1),
            )
        if self.is_full:
            self._empty()
        self._give_up_held()
        self._failure = error
        self._ended = True
        self._wake()
        self._drained.set()

    def drop(self) -> None:
        """Nobody reads it."""
        self._empty()
        self._give_up_held()
        self._ended = True
        self._wake()
        self._drained.set()

    def _empty(self) -> None:
        self._queue.clear()
        self._size = 0

    def _give_up_held(self) -> None:
        self._held = None
        self._held_size = 0
