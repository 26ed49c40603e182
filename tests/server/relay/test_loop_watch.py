"""The watch on the event loop reports what blocks it, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Coroutine
from typing import Any

import structlog
import uvloop

from server.relay.loop_watch import LoopWatch

LIMIT = 0.03


def _spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def _wait() -> None:
    """Wait until that is reported, as long as a busy machine may take for it."""
    (captured,) = structlog.get_config()["processors"]
    end = time.monotonic() + 60
    while not captured.entries and time.monotonic() < end:
        time.sleep(0.1)


def _reports(work: Coroutine[Any, Any, None]) -> list[Any]:
    async def run() -> None:
        watch = LoopWatch(LIMIT)
        await asyncio.sleep(0)
        await asyncio.create_task(work)
        await asyncio.sleep(2 * LIMIT)
        watch.stop()

    with structlog.testing.capture_logs() as written:
        uvloop.run(run())
    return written


def test_a_callback_that_takes_long_is_reported_once_with_its_place() -> None:
    async def work() -> None:
        for _ in range(2):
            _spin(10 * LIMIT)
            await asyncio.sleep(LIMIT)

    place = "tests/server/relay/test_loop_watch.py:_spin"  # on a busy machine its caller is seen as well
    (report,) = [report for report in _reports(work()) if report["place"] == place]
    assert report["event"] == "event loop blocked"
    assert report["cpu_ms"] >= LIMIT * 1000
    assert "work" in report["stack"]


def test_a_callback_that_waits_for_something_is_reported() -> None:
    async def work() -> None:
        _spin(LIMIT)
        _wait()

    assert "tests/server/relay/test_loop_watch.py:_wait" in [report["place"] for report in _reports(work())]


def test_many_short_callbacks_are_not_reported() -> None:
    async def short() -> None:
        _spin(LIMIT / 30)

    async def work() -> None:
        for _ in range(10):
            await asyncio.gather(*(short() for _ in range(60)))

    assert _reports(work()) == []


def test_a_search_for_garbage_is_told_and_no_fault_of_a_callback() -> None:
    kept: list[list[object]] = []
    took = 0.0
    while took < 4 * LIMIT:
        kept += [[] for _ in range(500_000)]
        before = time.thread_time()
        gc.collect()
        took = time.thread_time() - before

    async def work() -> None:
        for _ in range(10):
            gc.collect()
            await asyncio.sleep(LIMIT / 10)

    assert {report["event"] for report in _reports(work())} == {"garbage collected"}
    del kept
