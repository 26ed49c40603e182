"""One evaluation of a subscription, for all clients that follow the same thing in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from catalog.session import SqlError
from engine.pool import PooledSession
from engine.subscribe.feed import SLOW_SECONDS, LiveFeed
from engine.subscribe.interface import Batch
from engine.subscribe.rendering import Rendering
from engine.transactions import acting_as

PATIENT = 3600.0
"""Seconds for which a snapshot waits for a client that goes on reading, if slowly: nobody else waits for it."""


class Evaluation:
    """Gives the rows of one `Rendering` to its feeds."""

    def __init__(self, rendering: Rendering, subscription_id: int, engine_role: str):
        self.rendering = rendering
        self.preparation = rendering.preparation
        self.subscription_id = subscription_id
        self.feeds: list[LiveFeed] = []
        self.frontier: str | None = None
        """The snapshot up to which its feeds have everything."""
        self.joining = 0
        """Clients that have not got their first timestamp yet."""
        self.key: tuple[object, ...] = ()
        """What its hub knows it by."""
        self.dead = False
        """Whether it cannot go on; who comes again needs another one."""
        self.given_in_part = False
        """Whether feeds have been given a part of a timestamp's changes, and not yet all of them."""
        self._engine_role = engine_role
        self._statements: dict[frozenset[int], str] = {}

    @property
    def is_constant(self) -> bool:
        """Whether nothing it reads can change."""
        return not self.preparation.followed.compiled.sources

    @property
    def live(self) -> list[LiveFeed]:
        """The feeds that want changes."""
        return [feed for feed in self.feeds if feed.started and not feed.finished]

    async def holds(self, session: PooledSession) -> bool:
        """Whether what it reads is what the transaction's snapshot sees, and stays so to its end. Raises SqlError."""
        sources = [source.oid for source in self.preparation.followed.compiled.sources]
        if not sources:
            return True
        ((held,),) = await session.fetch("SELECT pgtrickle._hold_sources($1::bigint[]::oid[])", sources)
        return bool(held)

    async def changes(self, session: PooledSession, timestamp: int, frontier: str, changed: Iterable[int]) -> bool:
        """Give the feeds what has changed since a frontier; whether there was anything. Raises SqlError."""
        sources = frozenset(changed) & self._sources
        if not sources:
            return False
        query = self._statements.get(sources)
        if query is None:
            query = self._statements[sources] = self.preparation.followed.changes(sources)
        feeds = [feed for feed in self.live if feed.up_to is None or timestamp < feed.up_to]
        found = False

        async def give(batch: Batch) -> None:
            nonlocal found
            found = self.given_in_part = True
            for feed in feeds:
                feed.put(batch)
            deadline = time.monotonic() + SLOW_SECONDS
            for feed in feeds:
                await feed.room(deadline - time.monotonic())

        await self._copy(session, query, timestamp, {"snapshot": frontier}, give, small=True)
        self.given_in_part = False
        return found

    async def past(self, session: PooledSession, timestamp: int, frontier: str, feed: LiveFeed) -> None:
        """Give a feed the rows as they were at a frontier. Raises SqlError."""
        query = self.preparation.followed.past(self._sources)
        await self._copy(session, query, timestamp, {"snapshot": frontier}, _patiently(feed), small=False)

    async def since(
        self, session: PooledSession, timestamp: int, frontier: str, until: str | None, feed: LiveFeed
    ) -> None:
        """Give a feed what has happened since a frontier, until now or another frontier. Raises SqlError."""
        followed = self.preparation.followed
        query = followed.changes(self._sources) if until is None else followed.between(self._sources)
        parameters = {"snapshot": frontier} | ({} if until is None else {"until": until})
        await self._copy(session, query, timestamp, parameters, _patiently(feed), small=False)

    @property
    def _sources(self) -> frozenset[int]:
        return frozenset(source.oid for source in self.preparation.followed.compiled.sources)

    async def snapshot(self, session: PooledSession, timestamp: int, feeds: Sequence[LiveFeed]) -> None:
        """Give feeds the rows as the session's snapshot has them. Raises SqlError."""

        async def give(batch: Batch) -> None:
            for feed in feeds:
                feed.put(batch, snapshot=True)
            for feed in feeds:
                await feed.room(PATIENT)
            if all(feed.over for feed in feeds):
                raise SqlError("57014", "nobody reads the snapshot")

        await self._copy(session, self.preparation.followed.snapshot(), timestamp, {}, give, small=False)

    async def _copy(
        self,
        session: PooledSession,
        query: str,
        timestamp: int,
        parameters: dict[str, Any],
        give: Callable[[Batch], Any],
        *,
        small: bool,
    ) -> None:
        framer = self.rendering.framer()

        async def sink(piece: bytes) -> None:
            messages, rows = framer.frame(piece)
            if rows:
                await give(Batch(timestamp, messages, rows))

        statement = self.rendering.statement(query, timestamp, parameters, small=small, header=False)
        async with acting_as(session, self.preparation.runs_as, current=self._engine_role):
            await session.copy_out(statement, sink)

    async def begin(self, session: PooledSession, timestamp: int, feed: LiveFeed) -> None:
        """Give a feed what comes before its first row. Raises SqlError."""
        first = self.rendering.beginning
        heading = self.rendering.heading
        if heading is not None:
            framer = self.rendering.framer(header=True)
            first += await _collected(session, heading, framer.frame)
        if first:
            feed.put(Batch(timestamp, first, 0), snapshot=True)
        if feed.asked.progress:
            feed.put(Batch(timestamp, await self.progress(session, timestamp), 1), snapshot=True)

    async def progress(self, session: PooledSession, timestamp: int) -> bytes:
        """A progress message. Raises SqlError."""
        made = self.rendering.progress(timestamp)
        if isinstance(made, bytes):
            return made
        return await _collected(session, made, self.rendering.framer().frame)

    async def progressed(self, session: PooledSession, timestamp: int, *, found: bool, interval: float) -> None:
        """Tell feeds that want to know that all times before this one are closed."""
        now = time.monotonic()
        due = [f for f in self.live if f.asked.progress and (found or now - f.progressed_at >= interval)]
        due = [feed for feed in due if feed.up_to is None or timestamp <= feed.up_to]
        if due:
            batch = Batch(timestamp, await self.progress(session, timestamp), 1)
            for feed in due:
                feed.progressed_at = now
                feed.put(batch)

    def fail(self, error: SqlError) -> None:
        """End all feeds with an error."""
        self.dead = True
        for feed in self.feeds:
            feed.fail(error)


def _patiently(feed: LiveFeed) -> Callable[[Batch], Any]:
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
