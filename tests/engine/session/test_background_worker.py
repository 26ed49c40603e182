"""Work in the background goes on whatever interrupts it, rests, is woken, and is stopped without a wait for a peer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from catalog.session import SqlError
from engine.session import background_worker
from engine.session.background_worker import BackgroundWorker, WakeUp
from engine.session.backoff import LONGEST_PAUSE


def worker_of(work: Callable[[], Awaitable[None]], pause: float = 0.0) -> BackgroundWorker:
    return BackgroundWorker("work", "orders", work, pause)


class Runs:
    """Work whose runs end as they are told to, and which stays for ever when nothing is left to be told."""

    def __init__(self, *outcomes: Exception | None):
        self.left = list(outcomes)
        self.reached = asyncio.Event()

    async def __call__(self) -> None:
        if not self.left:
            self.reached.set()
            await asyncio.Event().wait()
        outcome = self.left.pop(0)
        if outcome is not None:
            raise outcome


async def pauses(monkeypatch: pytest.MonkeyPatch, *outcomes: Exception | None, pause: float = 2.0) -> list[float]:
    """The rests after runs that end so."""
    rests: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        rests.append(seconds)
        await sleep(0)

    work = Runs(*outcomes)
    worker = worker_of(work, pause)
    monkeypatch.setattr(background_worker.asyncio, "sleep", noted)
    worker.start()
    await work.reached.wait()
    assert await worker.stop()
    return rests


async def test_errors_of_postgresql_interrupt_and_are_logged() -> None:
    work = Runs(SqlError("57P01", "terminating connection"), OSError("no route"), ValueError("a defect"), None)
    worker = worker_of(work)
    with capture_logs() as logs:
        worker.start()
        await work.reached.wait()
    assert await worker.stop()
    assert [(entry["event"], entry["log_level"], entry["database"]) for entry in logs] == [
        ("work interrupted", "warning", "orders"),
        ("work interrupted", "warning", "orders"),
        ("work failed", "error", "orders"),
    ]


async def test_pause_is_the_same_after_interruptions(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = OSError("connection refused")
    assert await pauses(monkeypatch, None, lost, lost, None) == [2.0] * 4


async def test_defects_in_a_row_double_the_pause_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await pauses(monkeypatch, *[ValueError("a defect")] * 7, None, ValueError("a defect"))
    assert found == [2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE, LONGEST_PAUSE, 2.0, 2.0]


async def test_work_begins_after_the_seconds_that_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    rests, over = asyncio.Queue[float](), asyncio.Event()

    async def rest(seconds: float) -> None:
        rests.put_nowait(seconds)
        await over.wait()

    work = Runs()
    worker = worker_of(work)
    monkeypatch.setattr(background_worker.asyncio, "sleep", rest)
    worker.start(after=5.0)
    assert await rests.get() == 5.0
    assert not work.reached.is_set()
    over.set()
    await work.reached.wait()
    assert await worker.stop()


async def test_defect_after_a_long_run_is_the_first_again() -> None:
    times = iter((0.0, 0.0, 0.0, 0.0, 0.0, LONGEST_PAUSE, 0.0, 0.0))

    async def work() -> None:
        raise ValueError("a defect")

    worker = BackgroundWorker("work", "orders", work, 2.0, clock=lambda: next(times))
    assert [await worker._run_once() for _ in range(4)] == [2.0, 4.0, 2.0, 4.0]


async def test_pause_longer_than_the_limit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await pauses(monkeypatch, ValueError("a defect"), pause=300.0) == [300.0]


async def test_stop_ends_the_work_and_what_it_holds() -> None:
    held = asyncio.Event()

    async def work() -> None:
        held.set()
        try:
            await asyncio.Event().wait()
        finally:
            held.clear()

    worker = worker_of(work)
    assert not worker.started
    worker.start()
    await held.wait()
    assert await worker.stop()
    assert not held.is_set()
    assert worker.started


async def test_stop_does_not_wait_for_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_worker, "STOP_SECONDS", 0.05)
    under_way, answer = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        under_way.set()
        try:
            await asyncio.Event().wait()
        finally:
            await answer.wait()

    worker = worker_of(work)
    worker.start()
    await under_way.wait()
    assert not await worker.stop()
    assert not await worker.stop(), "what it waits for must not be cancelled by the second call"
    answer.set()
    assert await worker.stop()


async def test_stop_before_start_is_nothing() -> None:
    assert await worker_of(Runs()).stop()


async def test_work_that_fails_while_it_ends_has_ended() -> None:
    under_way = asyncio.Event()

    async def work() -> None:
        under_way.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("connection reset")

    worker = worker_of(work)
    worker.start()
    await under_way.wait()
    with capture_logs() as logs:
        assert await worker.stop()
    assert [entry["event"] for entry in logs] == ["work interrupted"]


async def test_task_that_ends_with_an_error_is_logged() -> None:
    async def work() -> None:
        raise ValueError("a defect")

    with capture_logs() as logs:
        assert await background_worker.ended([asyncio.create_task(work(), name="work")]) == set()
    assert [(entry["event"], entry["task"]) for entry in logs] == [("ended with an error", "work")]


async def test_start_begins_once_and_again_after_a_stop() -> None:
    runs = 0
    begun = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        begun.set()
        await asyncio.Event().wait()

    worker = worker_of(work)
    worker.start()
    worker.start()
    await begun.wait()
    await asyncio.sleep(0)
    assert runs == 1
    await worker.stop()
    begun.clear()
    worker.start()
    await begun.wait()
    assert runs == 2
    await worker.stop()


async def test_rest_ends_when_woken_and_otherwise_in_time() -> None:
    woken = WakeUp()
    assert not await woken.within(0.01)
    asyncio.get_running_loop().call_soon(woken.set)
    async with asyncio.timeout(30):
        assert await woken.within(60)
    assert await woken.within(0.01), "it stays woken until it is calmed"
    woken.clear()
    assert not await woken.within(0.0)
