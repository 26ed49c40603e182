"""When the ticker is to tick: for commits, for clients who wait, and to say that nothing has happened.

Commits that pass through the server wake it. Others are found by a look at the number of the last captured statement:
often while it moves, seldom while it stands still.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from catalog.session import SqlSession
from engine.session.background_worker import WakeUp
from engine.subscribe.evaluation import Evaluation
from engine.subscribe.join_request import JoinRequest

LOOK_INTERVAL = 1.0
"""Most seconds between two looks for changes made on connections that bypass the server."""

QUICK_LOOK = 0.02
"""Seconds between two looks while such changes come, or while a transaction that has changed something is open."""

PROGRESS = 1.0
"""Most seconds between two progress messages."""

IDLE = 3600.0
"""Seconds of rest where nobody subscribes; a subscription wakes the ticker."""

LAG_RETRY = 0.03
"""Seconds until a subscription is tried again whose sources somebody is just emptying or rewriting."""


@dataclass(slots=True)
class TickSchedule:
    """What the ticker waits for."""

    evaluations: Mapping[int, Evaluation]
    joining: list[JoinRequest] = field(default_factory=list)
    """Who waits for a first timestamp."""
    lagging: set[int] = field(default_factory=set)
    """Evaluations that were left out of the last tick."""
    lagged_at: float = 0.0
    """When something was last left out."""
    position: int | None = None
    """Of the captured changes, if all up to it had been committed at the last look."""
    _last_position: int | None = None
    _look: float = LOOK_INTERVAL
    _woken: WakeUp = field(default_factory=WakeUp)

    def wake(self) -> None:
        """Something may have happened."""
        self._woken.set()

    def calm(self) -> None:
        """What has happened is about to be looked at."""
        self._woken.clear()

    def is_due(self) -> bool:
        """Whether a client waits for a timestamp that has come, or wants to know that there is nothing new."""
        now, moment = milliseconds(), time.monotonic()
        if self.lagging and moment - self.lagged_at >= LAG_RETRY:
            return True
        if any((j.target is None or j.target <= now) and not self._must_wait(j, moment) for j in self.joining):
            return True
        return any(
            any(feed.started and not feed.finished and now >= (feed.up_to or 0) for feed in evaluation.bounded)
            or evaluation.is_progress_due(PROGRESS)
            for evaluation in self.evaluations.values()
        )

    def _must_wait(self, joining: JoinRequest, moment: float) -> bool:
        """Whether clients who could not join at the last tick are not to be tried again yet."""
        return joining.again and (joining.evaluation.is_busy or moment - self.lagged_at < LAG_RETRY)

    async def rest(self) -> bool:
        """Until somebody wakes it, or something is due, or it is time for a look; whether it was woken."""
        return await self._woken.within(self._pause())

    def _pause(self) -> float:
        """Seconds until the next look, or until something is due."""
        now, moment = milliseconds(), time.monotonic()
        pauses = [self._look if self.evaluations else IDLE, *self._until_joined(now, moment)]
        for evaluation in self.evaluations.values():
            pauses += [
                (feed.up_to - now) / 1000
                for feed in evaluation.bounded
                if feed.started and not feed.finished and feed.up_to is not None
            ]
            if evaluation.asks_progress and evaluation.is_live:
                pauses.append(evaluation.progressed_at + PROGRESS - moment)
        return max(0.0, min(pauses))

    def _until_joined(self, now: int, moment: float) -> Iterator[float]:
        """Seconds until each waiting client's timestamp comes, or until those that were left out are tried again."""
        if self.lagging or any(joining.again and not joining.evaluation.is_busy for joining in self.joining):
            yield self.lagged_at + LAG_RETRY - moment
        for joining in self.joining:
            if not joining.again:
                yield ((joining.target or now) - now) / 1000

    async def has_moved(self, session: SqlSession, *, woken: bool) -> bool:
        """Whether anything may have been captured since the last tick. Raises SqlError."""
        self.calm()
        ((position, settled),) = await session.fetch(
            "SELECT change_position, settled FROM pgtrickle._change_position()"
        )
        moved = bool(position != self.position)
        if not woken:
            # Changes that nobody has told of: more may be on their way.
            busy = position != self._last_position
            self._look = QUICK_LOOK if busy else min(self._look * 2, LOOK_INTERVAL)
        self._last_position = position
        self.position = position if settled else None
        return moved


def milliseconds() -> int:
    """The time since the epoch."""
    return time.time_ns() // 1_000_000
