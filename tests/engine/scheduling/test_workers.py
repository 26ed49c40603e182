"""Workers that roles share: how many at once, whose turn it is, and what becomes of the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from engine.scheduling.worker_pool import Workers

ALICE, BOB, CAROL = 1, 2, 3


class Gate:
    """Work that goes on until it is let go; notes what began, in order."""

    def __init__(self) -> None:
        self.begun: list[tuple[int, int]] = []
        self.running: dict[tuple[int, int], asyncio.Event] = {}
        self.given_up: list[tuple[int, int]] = []

    def work(self, role: int, number: int) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            self.begun.append((role, number))
            self.running[role, number] = gate = asyncio.Event()
            try:
                await gate.wait()
            except asyncio.CancelledError:
                self.given_up.append((role, number))
                raise
            finally:
                del self.running[role, number]

        return run

    def add(self, workers: Workers, role: int, *numbers: int) -> None:
        for number in numbers:
            workers.add(role, self.work(role, number))

    async def let_go(self, *which: tuple[int, int]) -> None:
        for each in which:
            self.running[each].set()
        await settled()


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_one_role_never_has_all_workers() -> None:
    gate, workers = Gate(), Workers(4)
    gate.add(workers, ALICE, *range(10))
    await settled()
    assert len(gate.running) == 3
    gate.add(workers, BOB, 1)
    await settled()
    assert (BOB, 1) in gate.running and len(gate.running) == 4
    await gate.let_go((ALICE, 0))
    assert gate.begun[-1] == (ALICE, 3)
    await workers.stop()


async def test_a_free_worker_goes_to_the_role_that_has_fewest_and_waits_longest() -> None:
    gate, workers = Gate(), Workers(4)
    gate.add(workers, ALICE, *range(5))
    gate.add(workers, BOB, *range(5))
    gate.add(workers, CAROL, *range(5))
    await settled()
    assert gate.begun == [(ALICE, 0), (ALICE, 1), (ALICE, 2), (BOB, 0)]
    await gate.let_go((ALICE, 0))
    assert gate.begun[-1] == (CAROL, 0)
    await gate.let_go((ALICE, 1))
    assert gate.begun[-1] == (ALICE, 3)  # all three have one, and her last turn was before theirs
    await gate.let_go((ALICE, 2))
    assert gate.begun[-1] == (BOB, 1)
    await workers.stop()


async def test_one_worker_serves_everybody_in_turn() -> None:
    gate, workers = Gate(), Workers(1)
    gate.add(workers, ALICE, 0, 1, 2)
    gate.add(workers, BOB, 0)
    await settled()
    # When the first ended her second had waited longer than his; then it was his turn.
    for expected in [(ALICE, 0), (ALICE, 1), (BOB, 0), (ALICE, 2)]:
        assert list(gate.running) == [expected]
        await gate.let_go(expected)
    assert not gate.running


async def test_more_workers_begin_at_once_and_fewer_end_nothing() -> None:
    gate, workers = Gate(), Workers(2)
    gate.add(workers, ALICE, *range(6))
    await settled()
    assert len(gate.running) == 1
    workers.resize(5)
    await settled()
    assert len(gate.running) == 4
    workers.resize(2)
    await gate.let_go((ALICE, 0), (ALICE, 1), (ALICE, 2))
    assert list(gate.running) == [(ALICE, 3)]
    await workers.stop()


async def test_failing_work_makes_room() -> None:
    gate, workers = Gate(), Workers(2)

    async def fail() -> None:
        raise RuntimeError("expected")

    workers.add(ALICE, fail)
    gate.add(workers, ALICE, 1)
    await settled()
    assert list(gate.running) == [(ALICE, 1)]
    await workers.stop()


async def test_stopping_gives_up_what_runs_and_begins_nothing() -> None:
    gate, workers = Gate(), Workers(4)
    gate.add(workers, ALICE, *range(6))
    await settled()
    await workers.stop()
    assert sorted(gate.given_up) == [(ALICE, 0), (ALICE, 1), (ALICE, 2)] and len(gate.begun) == 3
