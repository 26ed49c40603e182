"""When a stream table is refreshed before its schedule has gone by, so that a change is visible as soon as it can be.

A schedule bounds how old rows may become. It is no clock: where a refresh costs little it is done as soon as a change
is committed. Two rules keep that cheap. After a refresh its stream table rests `REST_FACTOR` times as long as the
refresh took. And all early refreshes of a database share a budget, `SHARE` of the time of one worker: where it is used
up changes are collected, until there is some again or a schedule has gone by.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

LONGEST_SCHEDULE = 10.0
"""Seconds up to which a schedule is taken to ask for fresh rows. A longer one is there to save work."""

CHEAP = 1 / 20
"""Part of its schedule that a refresh may take at most, to be done early."""

REST_FACTOR = 3.0

SHARE = 0.3

SAVED_SECONDS = 0.4
"""As much of the budget can be saved for a burst, such as a long chain of stream tables."""


@dataclass(slots=True)
class Cost:
    """What refreshes of a stream table have cost."""

    seconds: float = 0.0
    """That the shorter of the last two took which have changed it: a single one can be slow by chance."""
    last: float = math.inf
    """The same of the last one."""
    rested: float = -math.inf
    """When it may be refreshed early again, on the monotonic clock."""

    def note(self, seconds: float, ended: float, *, worked: bool) -> None:
        """A refresh has taken so many seconds until then; `worked` if it found changes."""
        if worked:
            self.seconds, self.last = min(seconds, self.last), seconds
        self.rested = ended + REST_FACTOR * seconds


@dataclass(slots=True)
class Budget:
    """The time that early refreshes may take together. It can be overdrawn, by refreshes that take long."""

    saved: float = SAVED_SECONDS
    at: float = -math.inf
    """When `saved` was right, on the monotonic clock."""

    def spend(self, seconds: float, now: float) -> None:
        """An early refresh has taken so many seconds.

        >>> budget = Budget()
        >>> budget.spend(1.0, now=0.0)
        >>> round(budget.until_some(now=0.0), 3), budget.until_some(now=2.5)
        (2.0, 0.0)
        """
        self._earn(now)
        self.saved -= seconds

    def until_some(self, now: float) -> float:
        """Seconds until there is some of it; 0 if there is."""
        self._earn(now)
        return max(0.0, -self.saved / SHARE)

    def _earn(self, now: float) -> None:
        self.saved = min(SAVED_SECONDS, self.saved + SHARE * max(0.0, now - self.at))
        self.at = now


def until_early(cost: Cost, budget: Budget, schedule: float, now: float) -> float:
    """Seconds until a stream table that has changes may be refreshed early; infinite if its schedule decides.

    `schedule` is in seconds, `now` on the monotonic clock.
    """
    if schedule > LONGEST_SCHEDULE or cost.seconds > CHEAP * schedule:
        return math.inf
    return max(0.0, cost.rested - now, budget.until_some(now))
