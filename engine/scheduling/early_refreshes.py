"""Which stream tables are refreshed before their schedule asks for it: a schedule says how old rows may become.

A stream table with a schedule of a few seconds is refreshed as soon as a commit has changed what it reads, as long as
all refreshes of the database together take a small part of the time. Beyond that its schedule holds, and one refresh
carries what many commits have changed. This is a leaky bucket: the time that refreshes take is poured into it, and it
runs out at the rate that early ones may take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LONGEST_SCHEDULE = 5.0
"""Seconds: who asks for fresh rows less often than that wants the work of many commits to be done at once."""

SHARE = 0.5
"""The part of one worker's time that refreshes of a database may take while there are early ones."""

BURST = 0.5
"""Seconds of refreshes that may follow one another at once: a chain of ten, after a while without any."""


@dataclass(slots=True)
class EarlyRefreshes:
    """What refreshes have taken lately, in seconds, and whether that leaves room for early ones."""

    clock: Callable[[], float]
    _level: float = 0.0
    _since: float = 0.0

    def spend(self, seconds: float) -> None:
        """A refresh has taken so long."""
        self._run_out()
        self._level += seconds

    def wait(self, schedule: float) -> float:
        """Seconds until a stream table may be refreshed early; its schedule where it may not.

        >>> now = 0.0
        >>> early = EarlyRefreshes(lambda: now)
        >>> early.wait(1.0), early.wait(60.0)
        (0.0, 60.0)
        >>> early.spend(0.75); early.wait(1.0), early.wait(0.1)
        (0.5, 0.1)
        >>> now = 0.6; early.wait(1.0)
        0.0
        """
        if schedule > LONGEST_SCHEDULE:
            return schedule
        self._run_out()
        return min(schedule, max(0.0, self._level - BURST) / SHARE)

    def _run_out(self) -> None:
        now = self.clock()
        self._level = max(0.0, self._level - (now - self._since) * SHARE)
        self._since = now
