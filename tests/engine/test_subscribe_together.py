"""Many who subscribe at once: one analysis and one snapshot serve them all, and none is as if it had come later."""

from __future__ import annotations

import asyncio

import pytest

from engine.subscribe.coalescing import Coalescing


def test_result_is_of_work_that_began_after_it_was_asked_for() -> None:
    async def run() -> None:
        shared: Coalescing[str, int] = Coalescing()
        state, rounds, begun, going = 0, 0, asyncio.Event(), asyncio.Event()

        async def work() -> int:
            nonlocal rounds
            rounds += 1
            begun.set()
            found = state
            await going.wait()
            return found

        async def ask() -> int:
            return await shared.result("q", work)

        first = asyncio.create_task(ask())
        await begun.wait()
        state = 1
        later = [asyncio.create_task(ask()) for _ in range(100)]
        await asyncio.sleep(0)
        going.set()
        assert await first == 0
        assert await asyncio.gather(*later) == [1] * 100
        assert rounds == 2
        state = 2
        assert await ask() == 2

    asyncio.run(run())


def test_work_is_given_up_when_nobody_waits_and_goes_on_while_somebody_does() -> None:
    async def run() -> None:
        shared: Coalescing[str, int] = Coalescing()
        begun, given_up, going = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def work() -> int:
            begun.set()
            try:
                await going.wait()
            except asyncio.CancelledError:
                given_up.set()
                raise
            return 1

        async def three() -> list[asyncio.Task[int]]:
            asking = [asyncio.create_task(shared.result("q", work)) for _ in range(3)]
            await begun.wait()
            return asking

        asking = await three()
        for one in asking[:2]:
            one.cancel()
        await asyncio.wait(asking[:2])
        assert not given_up.is_set()
        asking[2].cancel()
        await given_up.wait()
        begun.clear()
        asking = await three()
        going.set()
        assert await asyncio.gather(*asking) == [1, 1, 1]

    asyncio.run(run())


def test_failure_is_told_to_all_and_not_kept() -> None:
    async def run() -> None:
        shared: Coalescing[str, int] = Coalescing()
        answers = [ValueError("wrong"), 7]

        async def work() -> int:
            answer = answers.pop(0)
            if isinstance(answer, ValueError):
                raise answer
            return answer

        found = await asyncio.gather(*(shared.result("q", work) for _ in range(3)), return_exceptions=True)
        assert [str(error) for error in found] == ["wrong"] * 3
        assert await shared.result("q", work) == 7

    asyncio.run(run())


def test_work_for_one_key_does_not_wait_for_another() -> None:
    async def run() -> None:
        shared: Coalescing[str, str] = Coalescing()

        async def never() -> str:
            await asyncio.Event().wait()
            return ""

        async def now() -> str:
            return "b"

        stuck = asyncio.create_task(shared.result("a", never))
        assert await shared.result("b", now) == "b"
        stuck.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stuck

    asyncio.run(run())
