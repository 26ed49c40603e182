"""A few workers that the roles of a database share: none of them has all, and they take turns.

What somebody asks the engine for can take as long as he likes. So it takes long for those alone who ask with the same
role, and for those who read what they have made.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

logger = structlog.get_logger(__name__)

Work = Callable[[], Awaitable[None]]
"""Must not raise."""


@dataclass(slots=True)
class Workers:
    """Does what it is given, a `number` of things at once.

    The next one is that of the role with the fewest under way, and of several such roles of the one that has waited
    longest for its turn. Where there are several workers one is left to other roles.
    """

    number: int = 4
    _waiting: OrderedDict[int, deque[Work]] = field(default_factory=OrderedDict)
    """By the OID of the role; whose turn it is comes first."""
    _busy: Counter[int] = field(default_factory=Counter)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def waiting(self) -> int:
        """How many things are still to begin."""
        return sum(len(works) for works in self._waiting.values())

    def add(self, role: int, work: Work) -> None:
        """Have something done for a role, after what it has asked for before has begun."""
        self._waiting.setdefault(role, deque()).append(work)
        self._begin()

    def resize(self, number: int) -> None:
        """Have so many workers from now on; what is under way goes on."""
        self.number = number
        self._begin()

    async def stop(self) -> None:
        """Give up all that waits or is under way, for good."""
        self._waiting.clear()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self) -> None:
        most = max(1, self.number - 1)
        while self._waiting and self._busy.total() < self.number:
            role = min(self._waiting, key=lambda role: self._busy[role])
            if self._busy[role] >= most:
                return
            work = self._waiting[role].popleft()
            self._waiting.move_to_end(role)
            if not self._waiting[role]:
                del self._waiting[role]
            self._busy[role] += 1
            task = asyncio.create_task(self._do(role, work), name="headwater worker")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _do(self, role: int, work: Work) -> None:
        try:
            await work()
        except Exception:
            logger.exception("work failed")
        finally:
            self._busy[role] -= 1
            if not self._busy[role]:
                del self._busy[role]
            self._begin()
