"""Slots that roles share: how many at once, whose turn it is, and what becomes of those that are given up."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine.compile.pool import on_behalf_of
from engine.session.fair_slots import FairSlots
from engine.spark.sessions import SparkSessions


class Jobs:
    """Tasks that hold a slot until they are ended; `begun` are those that have got one, in order."""

    def __init__(self, slots: FairSlots) -> None:
        self.slots = slots
        self.begun: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.ends: dict[str, asyncio.Event] = {}

    async def add(self, *names: str) -> None:
        """The first letter of a name is the role."""
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._hold(name))
            await settled()

    async def _hold(self, name: str) -> None:
        async with self.slots.slot(name[0]):
            self.begun.append(name)
            await self.ends[name].wait()

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await settled()

    async def give_up(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
        await settled()

    async def close(self) -> None:
        await self.give_up(*self.tasks)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_role_never_has_all_slots() -> None:
    jobs = Jobs(FairSlots(3, 2))
    await jobs.add("a1", "a2", "a3", "a4")
    assert jobs.begun == ["a1", "a2"]
    await jobs.add("b1", "b2")
    assert jobs.begun == ["a1", "a2", "b1"]
    await jobs.end("a1")
    assert jobs.begun[3:] == ["a3"], "each has one: the first comes first"
    await jobs.end("a2")
    assert jobs.begun[4:] == ["a4"]
    await jobs.end("b1")
    assert jobs.begun[5:] == ["b2"]
    await jobs.close()


async def test_role_with_the_fewest_is_next_however_late_it_comes() -> None:
    jobs = Jobs(FairSlots(3, 3))
    await jobs.add("a1", "a2", "a3", "a4", "b1")
    await jobs.end("a2")
    assert jobs.begun == ["a1", "a2", "a3", "b1"]
    await jobs.close()


async def test_slot_of_what_is_given_up_goes_to_the_next() -> None:
    jobs = Jobs(FairSlots(1, 1))
    await jobs.add("a1", "a2", "b1", "c1")
    await jobs.give_up("a1", "a2")
    assert jobs.begun == ["a1", "b1"]
    jobs.ends["b1"].set()
    jobs.tasks["c1"].cancel()  # at the moment at which it would have got the slot
    await settled()
    await jobs.add("d1")
    assert jobs.begun == ["a1", "b1", "d1"]
    await jobs.close()


async def test_spark_does_what_another_role_asks_beside_what_goes_on(tmp_path: Path) -> None:
    sessions = SparkSessions("sail", tmp_path, concurrency=2)
    go_on = asyncio.Event()
    held: list[str] = []

    async def hold(role: str) -> None:
        with on_behalf_of(role):
            async with sessions.acquire():
                held.append(role)
                await go_on.wait()

    mine = [asyncio.create_task(hold("alice")) for _ in range(3)]
    try:
        async with asyncio.timeout(120):
            while len(held) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            bobs = asyncio.create_task(hold("bob"))
            while "bob" not in held:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert held == ["alice", "alice", "bob"]
        go_on.set()
        await asyncio.gather(*mine, bobs)
    finally:
        await sessions.stop()
