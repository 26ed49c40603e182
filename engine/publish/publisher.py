"""The background task that writes the publications of a database. Of all servers one does it, elected.

Nothing hangs on the election but work that is done twice: what a Delta table has, its log says (`table`). Each
publication is written by a task of its own, a few at once, so that a place that does not answer holds up no other, and
no refresh.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import asyncpg
import structlog

from catalog.session import SqlError, SqlSession
from engine.imports import freeze_imported
from engine.object_store import storage_message
from engine.publish.places import Places, check_installed
from engine.publish.publications import Publication, publications
from engine.publish.tally import PUBLISHED
from engine.session.background_worker import ended
from engine.session.backoff import Backoff
from engine.session.leader_election import Candidate, beat
from engine.session.pool import PooledSession

logger = structlog.get_logger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks for changes that did not come through this server."""

REST = 0.1
"""Seconds between two looks where commits come all the time."""

THOROUGH_SECONDS = 10.0
"""Seconds between two looks at what has no changes: whether its definition is what it was."""

AT_ONCE = 2
"""So many publications are written at once: each has a connection, and a thread that may wait for a store."""


@dataclass(slots=True)
class Publisher(Candidate):
    """Writes the publications of one database while it is elected."""

    title = "publisher"
    lease = "publications"

    places: Places = field(default_factory=Places)
    clock: Callable[[], float] = time.monotonic
    _position: int | None = None
    """Of the database's changes at the last look, if nobody was just changing anything, and nothing is left to do."""
    _looked_at: float = 0.0
    _running: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    _known: dict[int, Any] = field(default_factory=dict)
    """The Delta tables as this server has left them (`table.Published`), by publication."""
    _idle: list[Any] = field(default_factory=list)
    """Connections that no attempt uses just now (`mirror.source.Connections`)."""
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _troubles: Backoff = field(default_factory=Backoff)

    def committed(self) -> None:
        """A transaction that changed data has committed, or one that publishes."""
        if self.leading or self.expected:
            self._woken.set()

    async def _has_work(self, session: SqlSession) -> bool:
        ((found,),) = await session.fetch("SELECT pgtrickle._publishes()")
        return bool(found)

    async def _work(self, connection: asyncpg.Connection) -> None:
        session = PooledSession(connection)
        self._position, self._looked_at = None, self.clock() - THOROUGH_SECONDS
        self._known.clear()
        woken = True
        try:
            while await self._has_work(session):
                self._woken.clear()
                ((position, settled),) = await session.fetch(
                    "SELECT change_position, settled FROM pgtrickle._change_position()"
                )
                due = self.clock() - self._looked_at >= THOROUGH_SECONDS
                if due or woken or self._troubles or position != self._position:
                    self._looked_at = self.clock() if due else self._looked_at
                    done = await self._look(session)
                    self._position = position if settled and done else None
                await asyncio.sleep(REST)
                pause = LOOK_INTERVAL - REST if settled and self._position is not None else REST
                woken = await self._woken.within(pause) and self.expected
                await beat(session)
        finally:
            tasks = list(self._running.values())
            for task in tasks:
                task.cancel()
            await ended(tasks)
            self._running.clear()
            while self._idle:
                self._idle.pop().close()

    async def _look(self, session: SqlSession) -> bool:
        """Begin to write what is not being written; whether nothing is. Raises SqlError."""
        busy = set(self._running)  # what is read of these is soon out of date, also if they end meanwhile
        found = await publications(session)
        self._troubles.keep(str(each.publication_id) for each in found)
        for number in self._known.keys() - {each.publication_id for each in found}:
            del self._known[number]
        for each in found:
            if each.publication_id in busy or self._troubles.waits(str(each.publication_id), self.clock()):
                continue
            if each.is_overdue:
                logger.warning("publication lags behind for too long", stream_table=each.name, location=each.location)
                await session.fetch("SELECT pgtrickle._let_go_of_publication($1::bigint)::text", each.publication_id)
                continue
            task = asyncio.create_task(self._write(each), name=f"headwater publication {each.name}")
            self._running[each.publication_id] = task
            task.add_done_callback(partial(self._ended, each.publication_id))
        return not busy and not self._running

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        if self._running.get(number) is task:
            del self._running[number]

    async def _write(self, publication: Publication) -> None:
        """One attempt. What goes wrong is noted, for the next one and for users."""
        number = publication.publication_id
        error: str | None = None
        async with self._slots:
            try:
                error = await self._attempt(publication)
            except Exception:
                logger.exception("publication failed", stream_table=publication.name)
                error = "internal error, see the log of the server"
        if error is not None or publication.has_failed:
            await self._note(publication, error)
        if error is None:
            self._troubles.over(str(number))
        else:
            PUBLISHED.failures[self.pool.database, number] += 1
            self._known.pop(number, None)
            pause = self._troubles.note(str(number), self.clock())
            logger.warning("not published", stream_table=publication.name, error=error, again_in=pause)

    async def _note(self, publication: Publication, error: str | None) -> None:
        """Tell users what is wrong, or that nothing is any more."""
        number = publication.publication_id
        try:
            async with self.pool.session() as session:
                await session.fetch("SELECT pgtrickle._fail_publication($1::bigint, $2::text)::text", number, error)
        except SqlError as unnoted:
            logger.warning("publication not noted", stream_table=publication.name, error=unnoted.message)

    async def _attempt(self, publication: Publication) -> str | None:
        """Publish what there is; what is wrong, None if nothing is."""
        if publication.obstacle is not None:
            return publication.obstacle
        try:
            check_installed(publication.format)
            publication = replace(publication, location=self.places.checked(publication.location))
        except SqlError as refusal:
            return refusal.message
        # It loads Arrow, which takes its time, and which a server without publications need not have.
        attempt = await asyncio.to_thread(import_module, "engine.publish.attempt")
        freeze_imported()
        known = self._known.get(publication.publication_id)
        count = partial(PUBLISHED.commit, (self.pool.database, publication.publication_id))
        connected = self._idle.pop() if self._idle else attempt.Connections(self.pool.connect)
        try:
            found, error = await attempt.attempted(connected, publication, known, count)
        finally:
            self._idle.append(connected)
        if error is None and found is not None:
            self._known[publication.publication_id] = found
        else:
            self._known.pop(publication.publication_id, None)
        return None if error is None else storage_message(Exception(error))
