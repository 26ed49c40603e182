"""AS OF a time in the past: what a client is given whose subscription begins where history is retained.

It gets the rows as they were (unless it asks for none), at that time, and then what has happened since, up to the
timestamp at which it joins the others: nothing is missing and nothing comes twice, whatever was committed in between.
Where UP TO lies in the past, too, it gets what had happened until then, and that is all.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from catalog.session import SqlError
from engine.session.pool import PooledSession
from engine.session.transactions import savepoint
from engine.subscribe.evaluation import Evaluation
from engine.subscribe.feed import LiveFeed
from engine.subscribe.history import Past, begin_at
from engine.subscribe.interface import Batch

NOT_HELD = "22023"


@dataclass(slots=True)
class AsOfStart:
    """Where a subscription shall begin that asks for a time in the past.

    `is_now` says that it means now where nothing is held of it: it is short ago, and the rows of now are asked for.
    """

    as_of: int
    at_least: bool
    is_now: bool
    found: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Done once it is known that the subscription can begin; its exception says why not."""

    def settle(self, error: BaseException | None = None) -> None:
        """Nothing more will be found out."""
        if self.found.done():
            return
        if error is None:
            self.found.set_result(None)
        else:
            self.found.set_exception(error)
            self.found.exception()  # it is raised elsewhere as well

    async def give(self, session: PooledSession, evaluation: Evaluation, feed: LiveFeed, timestamp: int) -> bool:
        """Give a client all that there is at `timestamp`, whose snapshot the session has. Raises SqlError.

        False if the subscription is to begin now.
        """
        past = await self._find(session, evaluation, ended=feed.up_to is not None and feed.up_to < timestamp)
        self.settle()
        if past is None:
            return False
        feed.as_of = past.timestamp
        for batch in await evaluation.beginning(session, past.timestamp):
            feed.put(batch, snapshot=True)
        if feed.up_to is not None and feed.up_to <= past.timestamp:
            feed.end()
            return True
        if feed.asked.snapshot:
            await evaluation.past(session, past.timestamp, past.snapshot, feed)
        closed = timestamp if feed.up_to is None else min(timestamp, feed.up_to - 1)
        await evaluation.since(session, past, closed, timestamp, feed)
        if feed.asked.progress:
            feed.put(Batch(closed + 1, await evaluation.progress(session, closed + 1), 1), snapshot=True)
        if closed < timestamp or evaluation.is_constant:
            feed.end()
        return True

    async def _find(self, session: PooledSession, evaluation: Evaluation, *, ended: bool) -> Past | None:
        """The snapshot to begin with; None for that of now. `ended` says that the client wants nothing of now."""
        if evaluation.is_constant:
            return None
        try:
            # Where it is not held the transaction goes on.
            async with savepoint(session):
                return await begin_at(session, evaluation.subscription_id, self.as_of, at_least=self.at_least)
        except SqlError as error:
            if error.sqlstate == NOT_HELD and self.is_now and not ended:
                return None
            raise
