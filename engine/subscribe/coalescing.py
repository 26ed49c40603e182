"""Work that many ask for at once, done for all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Round(Generic[T]):
    task: asyncio.Task[T]
    waiting: int = 0
    begun: bool = False


class Coalescing(Generic[K, T]):
    """Gives everybody the result of work that has begun after they asked for it: as fresh as if each had done it alone.

    Who comes while it is done waits for the next round, with all the others who do. A round that nobody waits for any
    more is given up.
    """

    def __init__(self) -> None:
        self._rounds: dict[K, list[_Round[T]]] = {}
        """By what is asked for: the round that is being done, and the one after it."""

    async def result(self, key: K, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` returns, or raises; whoever asks with the same key must mean the same work."""
        rounds = self._rounds.setdefault(key, [])
        if rounds and not rounds[-1].begun:
            mine = rounds[-1]
        else:
            mine = _Round(asyncio.create_task(self._run(key, work)))
            rounds.append(mine)
        mine.waiting += 1
        try:
            return await asyncio.shield(mine.task)
        finally:
            mine.waiting -= 1
            if not mine.waiting and not mine.task.done():
                mine.task.cancel()
                if not mine.begun:
                    self._over(key, mine)  # whoever comes now begins another

    async def _run(self, key: K, work: Callable[[], Awaitable[T]]) -> T:
        rounds = self._rounds[key]
        mine = rounds[-1]
        try:
            while (first := rounds[0]) is not mine:
                await asyncio.wait({first.task})
            mine.begun = True
            return await work()
        finally:
            self._over(key, mine)

    def _over(self, key: K, round_: _Round[T]) -> None:
        rounds = self._rounds.get(key, [])
        if round_ in rounds:
            rounds.remove(round_)
            if not rounds:
                del self._rounds[key]
