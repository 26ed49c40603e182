"""What clients are given at their first timestamp.

All who come to one evaluation before a tick are served together: one session imports the snapshot of the tick, and if
the rows are few they are read once for everybody. If they are many nobody is to wait for who reads slowly: the others
are served one by one, also by other sessions as far as there are any, of which each imports the snapshot in its turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from functools import partial

from catalog.session import SqlError
from engine.session.pool import PooledSession
from engine.subscribe.as_of import AsOfStart
from engine.subscribe.evaluation import PATIENT, Evaluation, put_with_backpressure
from engine.subscribe.feed import LiveFeed
from engine.subscribe.interface import Batch
from engine.subscribe.join_request import Interrupted, JoinRequest, TooLate
from engine.subscribe.sessions import Limit, SessionsByRights

SHARED = 1 << 20
"""Bytes of a snapshot up to which it is kept until it is complete, and given to all at once."""

HELPERS = 4
"""Most other sessions that read a snapshot for clients who came together."""


class InitialSnapshot:
    """Gives the clients of a `JoinRequest` what they begin with, by a session that is `acquire`d before its tick.

    `past` is where a client begins that is alone.
    """

    def __init__(
        self, evaluation: Evaluation, feed: LiveFeed, sessions: SessionsByRights, past: AsOfStart | None = None
    ):
        self.joining = JoinRequest(evaluation, [feed], self._begin)
        self._evaluation, self._sessions, self._past = evaluation, sessions, past
        self._held = AsyncExitStack()
        self._session: PooledSession | None = None
        self._begun = False

    async def acquire(self) -> None:
        """Get a session. Raises SqlError."""
        self._session = await self._held.enter_async_context(self._sessions.session(self._evaluation.rights))

    async def release_unless_begun(self) -> None:
        """Give the session back, if nothing uses it."""
        if not self._begun:
            await self._held.aclose()

    async def _begin(self, timestamp: int, exported: str, imported: asyncio.Event) -> None:
        """Give them what the exported snapshot has. Raises SqlError."""
        try:
            await self._give_beginning(timestamp, exported, imported)
        except TooLate:
            raise
        except BaseException as error:
            if self._past is not None:
                self._past.settle(Interrupted.if_of_connection(error) if isinstance(error, SqlError) else error)
            raise
        if self._past is not None:
            self._past.settle()  # where the client had an end before its beginning

    async def _give_beginning(self, timestamp: int, exported: str, imported: asyncio.Event) -> None:
        feeds = [feed for feed in self.joining.feeds if not feed.over]
        if not feeds:
            return
        session = self._session
        assert session is not None
        self._begun = True
        try:
            # What is told of the past is put together in temporary tables.
            async with session.sight(exported, read_only=self._past is None):
                if not await self._evaluation.holds(session):
                    self._begun = False  # the session waits for another tick
                    raise TooLate
                imported.set()
                with Limit(self._sessions, session, None, partial(_any_wants, feeds)):
                    if self._past is not None and await self._past.give(session, self._evaluation, feeds[0], timestamp):
                        feeds[0].snapshot_complete()
                    else:
                        await self._give(session, feeds, timestamp)
        finally:
            if self._begun:
                await self._held.aclose()

    async def _give(self, session: PooledSession, feeds: list[LiveFeed], timestamp: int) -> None:
        """Give them the rows of now, and what comes before and after these. Raises SqlError."""
        evaluation = self._evaluation
        before = await evaluation.beginning(session, timestamp)
        closed = await evaluation.progress(session, timestamp + 1) if evaluation.asks_progress else b""

        def complete(feed: LiveFeed) -> None:
            if closed:
                feed.put(Batch(timestamp + 1, closed, 1), snapshot=True)
            if evaluation.is_constant:
                feed.end()
            feed.snapshot_complete()

        wanting = []
        for feed in feeds:
            nothing = feed.up_to is not None and (feed.up_to == timestamp or feed.up_to == feed.as_of)
            if feed.up_to is not None and feed.up_to < timestamp and not nothing:
                feed.fail(too_early(feed.up_to, timestamp))
                continue
            for batch in before:
                feed.put(batch, snapshot=True)
            if nothing:
                feed.end()
                feed.snapshot_complete()
            elif feed.asked.snapshot:
                wanting.append(feed)
            else:
                complete(feed)
        if wanting:
            await _Snapshot(evaluation, timestamp, wanting, self._sessions, complete).give(session)


class _Snapshot:
    """The rows of one evaluation, for clients who came together."""

    def __init__(
        self,
        evaluation: Evaluation,
        timestamp: int,
        feeds: list[LiveFeed],
        sessions: SessionsByRights,
        complete: Callable[[LiveFeed], None],
    ):
        self._evaluation, self._timestamp, self._sessions = evaluation, timestamp, sessions
        self._complete = complete
        self._waiting = deque(feeds)
        self._together = tuple(feeds)
        self._first = feeds[0]
        self._kept: list[Batch] | None = []
        """What nobody has been given yet, while it is little."""
        self._size = 0
        self._exported = ""
        self._helpers: set[asyncio.Task[None]] = set()
        self._working: set[asyncio.Task[None]] = set()
        """The helpers that have somebody to serve."""

    async def give(self, session: PooledSession) -> None:
        """Give it to all, from a session that has the snapshot. Raises SqlError."""
        if len(self._waiting) == 1:
            await self._evaluation.snapshot(session, self._timestamp, put_with_backpressure(self._first))
            self._complete(self._first)
            return
        ((self._exported,),) = await session.fetch("SELECT pg_catalog.pg_export_snapshot()")
        try:
            await self._evaluation.snapshot(session, self._timestamp, self._take)
            if self._kept is not None:
                for feed in self._waiting:
                    for batch in self._kept:
                        feed.put(batch, snapshot=True)
                    self._complete(feed)
                return
            self._complete(self._first)
            await self._serve(session)
            # Their sessions import the snapshot of this transaction.
            await asyncio.gather(*self._working)
        finally:
            for helper in self._helpers:
                helper.cancel()

    async def _take(self, batch: Batch) -> None:
        """A batch of the first reading: for all, until it turns out to be too much for that, and then for the first."""
        if self._kept is None:
            await _let_have(self._first, batch)
            return
        self._kept.append(batch)
        self._size += len(batch.messages)
        if self._size > SHARED:
            kept, self._kept = self._kept, None
            self._first = self._waiting.popleft()
            for _ in range(min(HELPERS, len(self._waiting))):
                self._helpers.add(asyncio.create_task(self._help()))
            for each in kept:
                await _let_have(self._first, each)

    async def _serve(self, session: PooledSession) -> None:
        """Give it to one after another of those who wait."""
        while self._waiting:
            feed = self._waiting.popleft()
            if not feed.over:
                await self._evaluation.snapshot(session, self._timestamp, partial(_let_have, feed))
                self._complete(feed)

    async def _help(self) -> None:
        async with self._sessions.session(self._evaluation.rights) as session:
            task = asyncio.current_task()
            if self._waiting and task is not None:
                self._working.add(task)
                wanted = partial(_any_wants, self._together)
                async with session.sight(self._exported):
                    with Limit(self._sessions, session, None, wanted):
                        await self._serve(session)


def _any_wants(feeds: Iterable[LiveFeed]) -> bool:
    """Whether any client is still there."""
    return any(not feed.over for feed in feeds)


async def _let_have(feed: LiveFeed, batch: Batch) -> None:
    """Give a client its next batch, for as long as it wants any: the session that reads has others to serve."""
    feed.put(batch, snapshot=True)
    if feed.is_full:
        await feed.room(PATIENT)


def too_early(up_to: int, as_of: int) -> SqlError:
    """UP TO is before AS OF."""
    return SqlError("22023", f"UP TO {up_to} is earlier than AS OF {as_of}")
