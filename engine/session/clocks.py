"""Clocks: what a decision may rest on, and what is only shown.

How much time has passed is told by the monotonic clock of this process, which nobody sets. PostgreSQL's clock, like any
clock of a machine, can be set forward or back at any moment; its times are shown, and order nothing. `ClockWatch` sees
that it was set, so that it is said in the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from catalog.session import SqlSession

logger = structlog.get_logger(__name__)

JUMP_SECONDS = 1.0
"""What is less is how clocks are kept right."""

_PRESENT = "SELECT pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())::pg_catalog.float8"


@dataclass(slots=True)
class ClockWatch:
    """Compares the clock of a database's PostgreSQL with the time that has passed here."""

    database: str
    clock: Callable[[], float] = time.monotonic
    _ahead: tuple[float, float] | None = field(default=None, init=False)
    """Between what and what PostgreSQL's clock was ahead of this one."""

    async def look(self, session: SqlSession) -> float:
        """By how many seconds PostgreSQL's clock was set forward since the last look, or back if negative; 0.0 if it
        was not. A jump is logged. Raises SqlError.
        """
        before = self.clock()
        ((present,),) = await session.fetch(_PRESENT)
        return self.note(before, float(present), self.clock())

    def note(self, before: float, present: float, after: float) -> float:
        """As `look`, for a time that PostgreSQL gave between two moments of this clock.

        An answer that was long on its way tells little, and is no jump:

        >>> watch = ClockWatch("postgres")
        >>> watch.note(10.0, 1000.0, 10.1), watch.note(11.0, 1001.0, 11.1), watch.note(12.0, 1022.0, 32.0)
        (0.0, 0.0, 0.0)
        """
        earliest, latest = present - after, present - before
        known, jump = self._ahead, 0.0
        if known is not None and earliest - known[1] > JUMP_SECONDS:
            jump = earliest - known[1]
        elif known is not None and latest - known[0] < -JUMP_SECONDS:
            jump = latest - known[0]
        if known is None or jump or latest - earliest <= known[1] - known[0] + JUMP_SECONDS:
            self._ahead = earliest, latest  # clocks drift apart, so what is known is renewed
        if jump:
            logger.warning("clock of PostgreSQL was set", database=self.database, seconds=round(jump, 3))
        return jump
