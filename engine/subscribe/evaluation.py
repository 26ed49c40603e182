"""One evaluation of a subscription, for all clients that follow the same thing in the same way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from catalog.session import SqlError
from engine.session.pool import PooledSession
from engine.session.transactions import set_role
from engine.subscribe.feed import SLOW_SECONDS, LiveFeed
from engine.subscribe.history import Past
from engine.subscribe.interface import Batch
from engine.subscribe.rendering import Rendering
from engine.subscribe.replay import Replay
from engine.subscribe.sessions import Limit, Rights

TURN = 64
"""Clients that are given something in one turn of the event loop."""

PIECE = 1 << 16
"""Bytes of changes that are handed out at once; less waits for the end of the timestamp."""

LONG = 1.0
"""Seconds after which who is told of the past hears how far that has got."""

LEFT_BEHIND = SqlError("57P01", "the subscription was not evaluated in time to end at UP TO", hint="Subscribe again.")

PATIENT = 3600.0
"""Seconds for which a snapshot waits for a client that goes on reading, if slowly: nobody else waits for it."""


class EvaluationGroup(Protocol):
    """Evaluations that share a session, one after the other."""

    @property
    def busy(self) -> bool:
        """Whether one of them is being evaluated."""
        ...


@dataclass(frozen=True, slots=True)
class Load:
    """What waits in this server for those who read a subscription (`pgtrickle.pgt_subscription_load`)."""

    clients: int
    waiting_bytes: int
    unread_since: int | None
    """The timestamp of the oldest changes that are not read, or yet to be computed; None where there are none."""


class Evaluation:
    """Gives the rows of one `Rendering` to its feeds."""

    def __init__(self, rendering: Rendering, subscription_id: int, engine_role: str):
        self.rendering = rendering
        self.preparation = rendering.preparation
        self.subscription_id = subscription_id
        self.feeds: dict[LiveFeed, None] = {}
        self.bounded: dict[LiveFeed, None] = {}
        """Those of them that have an end."""
        self.frontier: str | None = None
        """The snapshot up to which its feeds have everything."""
        self.timestamp = 0
        """That of the frontier."""
        self.sources = frozenset(source.oid for source in rendering.preparation.followed.compiled.sources)
        self.group: EvaluationGroup | None = None
        """Those that are evaluated together with it."""
        self.waits_since: float | None = None
        """Since when it has not moved on although others have, on the monotonic clock."""
        self.obstacle: SqlError | None = None
        """What was in its way when it was last tried."""
        self.losses = 0
        """How many connections were lost in its evaluation, one after the other."""
        self.joining = 0
        """Clients that have not got their first timestamp yet."""
        self.key: tuple[object, ...] = ()
        """What its hub knows it by."""
        self.dead = False
        """Whether it cannot go on; who comes again needs another one."""
        self.given_in_part = False
        """Whether feeds have been given a part of a timestamp's changes, and not yet all of them."""
        self.progressed_at = time.monotonic()
        """When its feeds were last told which times are closed."""
        self._engine_role = engine_role
        self._progress: dict[int, tuple[bytes, ...]] = {}
        """What stands around the digits of the time in the line of a progress message, by how many digits they are."""

    @property
    def rights(self) -> Rights:
        """Whose code can run when it is evaluated."""
        return Rights(self.preparation.role_oid, self.preparation.runs_as_oid)

    @property
    def is_busy(self) -> bool:
        """Whether it cannot move on yet, since it or another of its group is just being evaluated."""
        return self.group is not None and self.group.busy

    def has_moved(self, timestamp: int, snapshot: str) -> None:
        """Its feeds have everything up to a snapshot, which is no news where others have joined at a later one."""
        if timestamp >= self.timestamp:
            self.timestamp, self.frontier = timestamp, snapshot
        self.waits_since = self.obstacle = None

    @property
    def load(self) -> Load:
        """What waits for its clients now."""
        unread = [feed.unread_since for feed in self.feeds]
        if self.waits_since is not None:
            unread.append(self.timestamp)
        return Load(
            clients=len(self.feeds),
            waiting_bytes=sum(feed.waiting_bytes for feed in self.feeds),
            unread_since=min((since for since in unread if since is not None), default=None),
        )

    @property
    def is_constant(self) -> bool:
        """Whether nothing it reads can change."""
        return not self.preparation.followed.compiled.sources

    @property
    def live(self) -> list[LiveFeed]:
        """The feeds that want changes."""
        return [feed for feed in self.feeds if feed.started and not feed.finished]

    def admit(self, feed: LiveFeed) -> None:
        """Have one more feed, whose end is known."""
        self.feeds[feed] = None
        if feed.up_to is not None:
            self.bounded[feed] = None

    def dismiss(self, feed: LiveFeed) -> None:
        """A feed is not read any more."""
        self.feeds.pop(feed, None)
        self.bounded.pop(feed, None)

    @property
    def is_live(self) -> bool:
        """Whether any feed wants changes."""
        return any(feed.started and not feed.finished for feed in self.feeds)

    async def holds(self, session: PooledSession) -> bool:
        """Whether what it reads is what the transaction's snapshot sees, and stays so to its end. Raises SqlError."""
        if not self.sources:
            return True
        query = "SELECT pgtrickle._hold_sources($1::bigint[]::oid[])"
        ((held,),) = await session.fetch(query, sorted(self.sources))
        return bool(held)

    async def changes(
        self,
        session: PooledSession,
        timestamp: int,
        frontier: str,
        changed: Iterable[int],
        limit: Limit,
        *,
        missed: bool = False,
    ) -> bool:
        """Give the feeds what has changed since a frontier; whether there was anything. Raises SqlError.

        The session acts as the role whose rights the query has. What is little comes in one piece, with the message
        that the timestamp is closed. If it has `missed` timestamps, what happened at those is not told apart.
        """
        sources = frozenset(changed) & self.sources
        if not sources:
            return False
        query = await self.preparation.followed.changes(sources)
        feeds = [feed for feed in self.live if feed.up_to is None or timestamp < feed.up_to]
        kept: list[Batch] = []
        size, found = 0, False

        async def give(batch: Batch) -> None:
            nonlocal size, found
            found = True
            kept.append(batch)
            size += len(batch.messages)
            if size >= PIECE:
                await hand_out()

        async def hand_out() -> None:
            nonlocal size
            self.given_in_part = True
            whole = Batch(timestamp, b"".join(b.messages for b in kept), sum(b.rows for b in kept))
            kept.clear()
            size = 0
            limit.pause()  # PostgreSQL does not make clients slow
            await _give(feeds, whole)
            limit.go_on()

        current = self.preparation.runs_as
        await self._copy(session, query, timestamp, {"snapshot": frontier}, give, small=True, current=current)
        limit.pause()
        if found and missed:
            for feed in self.bounded:
                if feed.started and feed.up_to is not None and feed.up_to <= timestamp:
                    feed.fail(LEFT_BEHIND)
        if found and self.asks_progress:
            kept.append(Batch(timestamp, await self.progress(session, timestamp + 1), 1))
            self.progressed_at = time.monotonic()
        if kept:
            await hand_out()
        self.given_in_part = False
        return found

    async def past(self, session: PooledSession, timestamp: int, frontier: str, feed: LiveFeed) -> None:
        """Give a feed the rows as they were at a frontier. Raises SqlError."""
        query = await self.preparation.followed.past(self.sources)
        await self._copy(session, query, timestamp, {"snapshot": frontier}, put_with_backpressure(feed), small=False)

    async def since(self, session: PooledSession, past: Past, until: int, now: int, feed: LiveFeed) -> None:
        """Give a feed what has happened since a time, at the timestamps at which it happened. Raises SqlError.

        ``now`` is the timestamp of the session's snapshot, ``until`` the last that is wanted.
        """
        give = put_with_backpressure(feed)
        period: dict[str, Any] = {"snapshot": past.snapshot, "after": past.timestamp}
        query = await self.preparation.followed.history(self.sources)
        if query is not None:
            parameters = period | {"until": until, "rest": until == now}
            await self._copy(session, query, until, parameters, give, small=False, dated=True)
            return
        period |= {"until": now, "rest": True}
        replay = await Replay.of(session, self.preparation, self.subscription_id, period, self._engine_role)
        told = time.monotonic()
        for timestamp, changed in await replay.timestamps(until):
            if feed.over:
                raise SqlError("57014", "nobody reads the history")
            query = await replay.changes(timestamp, changed)
            await self._copy(session, query, timestamp, {"at": timestamp}, give, small=True)
            if self.asks_progress and timestamp < until and time.monotonic() - told > LONG:
                await give(Batch(timestamp + 1, await self.progress(session, timestamp + 1), 1))
                told = time.monotonic()

    async def snapshot(self, session: PooledSession, timestamp: int, give: Callable[[Batch], Awaitable[None]]) -> None:
        """Give out the rows as the session's snapshot has them. Raises SqlError, and what `give` raises."""
        query = await self.preparation.followed.snapshot()
        await self._copy(session, query, timestamp, {}, give, small=False)

    async def _copy(
        self,
        session: PooledSession,
        query: str,
        timestamp: int,
        parameters: dict[str, Any],
        give: Callable[[Batch], Awaitable[None]],
        *,
        small: bool,
        dated: bool = False,
        current: str | None = None,
    ) -> None:
        """Give out the rows of a query, which have this timestamp, or (`dated`) their own until then.

        `current` is the role that the session acts as, if that is not the engine's.
        """
        framer = self.rendering.framer()

        async def sink(piece: bytes) -> None:
            messages, rows = framer.frame(piece)
            if rows:
                await give(Batch(timestamp, messages, rows))

        moment = None if dated else timestamp
        statement = self.rendering.statement(query, moment, parameters, small=small, header=False)
        async with set_role(session, self.preparation.runs_as, current=current or self._engine_role):
            await session.copy_out(statement, sink)

    async def beginning(self, session: PooledSession, timestamp: int) -> list[Batch]:
        """What comes before a feed's first row. Raises SqlError."""
        first = self.rendering.beginning
        heading = self.rendering.heading
        if heading is not None:
            framer = self.rendering.framer(header=True)
            first += await _collected(session, heading, framer.frame)
        batches = [Batch(timestamp, first, 0)] if first else []
        if self.asks_progress:
            batches.append(Batch(timestamp, await self.progress(session, timestamp), 1))
        return batches

    @property
    def asks_progress(self) -> bool:
        """Whether its feeds want to know which times are closed."""
        return self.preparation.asked.progress

    async def progress(self, session: PooledSession, timestamp: int) -> bytes:
        """A progress message. Raises SqlError."""
        made = self.rendering.progress(timestamp)
        if isinstance(made, bytes):
            return made
        # A line for another time differs in its digits, unless these mean something in the options, such as NULL.
        digits = str(timestamp).encode()
        known = self._progress.get(len(digits))
        if known is None or made.count(str(timestamp)) > 1:
            line = await _collected(session, made, self.rendering.framer().frame)
            if line.count(digits) == 1:
                self._progress[len(digits)] = tuple(line.split(digits))
            return line
        return digits.join(known)

    async def progressed(self, session: PooledSession, timestamp: int, interval: float) -> None:
        """Tell feeds that have not heard of it for so long that all times before this one are closed."""
        if not self.is_progress_due(interval):
            return
        self.progressed_at = time.monotonic()
        batch = Batch(timestamp, await self.progress(session, timestamp), 1)
        for feed in self.live:
            if feed.up_to is None or timestamp <= feed.up_to:
                feed.put(batch)

    def is_progress_due(self, interval: float) -> bool:
        """Whether its feeds have not heard for so long which times are closed."""
        return self.asks_progress and time.monotonic() - self.progressed_at >= interval and self.is_live

    def fail(self, error: SqlError) -> None:
        """End all feeds with an error."""
        self.dead = True
        for feed in self.feeds:
            feed.fail(error)


async def _give(feeds: Sequence[LiveFeed], batch: Batch) -> None:
    """Give feeds a batch, and wait a while for those that have too much."""
    for number, feed in enumerate(feeds, 1):
        feed.put(batch)
        if number % TURN == 0:
            await asyncio.sleep(0)  # the server has other clients, too
    deadline = time.monotonic() + SLOW_SECONDS
    for feed in feeds:
        if feed.is_behind:
            await feed.room(deadline - time.monotonic())


def put_with_backpressure(feed: LiveFeed) -> Callable[[Batch], Awaitable[None]]:
    """Give a feed that has not joined the others yet: nobody else waits for it."""

    async def give(batch: Batch) -> None:
        feed.put(batch, snapshot=True)
        await feed.room(PATIENT)
        if feed.over:
            raise SqlError("57014", "nobody reads the snapshot")

    return give


async def _collected(session: PooledSession, statement: str, frame: Callable[[bytes], tuple[bytes, int]]) -> bytes:
    pieces: list[bytes] = []

    async def sink(piece: bytes) -> None:
        pieces.append(frame(piece)[0])

    await session.copy_out(statement, sink)
    return b"".join(pieces)
