"""A few slots that roles share: none of them has all, and whoever has the fewest is next.

The rule is that of `worker_pool`, for work that its task does itself.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class FairSlots:
    """So many slots, of which a role has at most `most` at once, so that others need not wait for it.

    A slot goes to the role with the fewest, and of several such roles to whoever has waited longest.
    """

    number: int
    most: int
    _waiting: list[tuple[str, asyncio.Future[None]]] = field(default_factory=list)
    _busy: Counter[str] = field(default_factory=Counter)

    @asynccontextmanager
    async def slot(self, role: str) -> AsyncIterator[None]:
        """A slot for the time of the block; waits for one."""
        turn = asyncio.get_running_loop().create_future()
        entry = role, turn
        self._waiting.append(entry)
        self._give()
        try:
            await turn
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
            else:  # it had just got one
                self._release(role)
            raise
        try:
            yield
        finally:
            self._release(role)

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Give out no slots during the block. It must not be entered while it is open elsewhere."""
        number, self.number = self.number, 0
        try:
            yield
        finally:
            self.number = number
            self._give()

    @property
    def idle(self) -> bool:
        """Whether nobody has a slot, or could have one."""
        return self.number > 0 and not self._busy

    def _release(self, role: str) -> None:
        self._busy[role] -= 1
        if not self._busy[role]:
            del self._busy[role]
        self._give()

    def _give(self) -> None:
        while self._busy.total() < self.number:
            entitled = [each for each in self._waiting if self._busy[each[0]] < self.most and not each[1].done()]
            if not entitled:
                return
            entry = min(entitled, key=lambda entry: self._busy[entry[0]])  # the first of several
            self._waiting.remove(entry)
            self._busy[entry[0]] += 1
            entry[1].set_result(None)
