"""What two processes of a server say to each other arrives once, whole and in order; sockets with their messages."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from server.workers.channel import Channel, ChannelClosed

SECONDS = 60.0


@dataclass
class Pair:
    """Both ends, in one process; what has come to the second one."""

    first: Channel
    second: Channel
    heard: list[tuple[Any, ...]] = field(default_factory=list)
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_heard(self, number: int) -> None:
        """Wait until so many messages have come: what is asked last is answered last."""
        async with asyncio.timeout(SECONDS):
            await self.first.ask("slow", 0)
        assert len(self.heard) == number


@asynccontextmanager
async def channels() -> AsyncIterator[Pair]:
    here, there = socket.socketpair()
    heard: list[tuple[Any, ...]] = []
    lost = asyncio.Event()

    async def slow(value: int) -> int:
        await asyncio.sleep(0.02 if value % 2 else 0)
        return value * value

    def fails() -> None:
        raise ValueError("no such thing")

    answers = {"said": lambda *what: heard.append(what), "slow": slow, "fails": fails, "for ever": asyncio.Event().wait}
    pair = Pair(Channel(here, {}, lost.set), Channel(there, answers, lost.set), heard, lost)
    try:
        yield pair
    finally:
        pair.first.close()
        pair.second.close()


async def test_messages_arrive_in_order_however_large_they_are() -> None:
    async with channels() as pair:
        sizes = [0, 1, 1 << 16, 5 << 20, 3, 1 << 20, *range(1000)]
        for number, size in enumerate(sizes):
            pair.first.tell("said", number, b"x" * size)
        await pair.until_heard(len(sizes))
        assert [(number, len(content)) for number, content in pair.heard] == list(enumerate(sizes))


async def test_sockets_arrive_with_their_messages_and_are_closed_on_the_other_side() -> None:
    async with channels() as pair:
        kept, passed = [], []
        for number in range(200):
            mine, other = socket.socketpair()
            kept.append(mine)
            passed.append(other)
            pair.first.tell("said", number, b"x" * (number % 7 * 20_000), passed=other)
            pair.first.tell("said", "between")
        await pair.until_heard(400)
        assert all(one.fileno() == -1 for one in passed)
        arrived = [what for what in pair.heard if what[0] != "between"]
        assert [what[0] for what in arrived] == list(range(200))
        for number, _, connection in arrived:
            kept[number].send(b"%d" % number)
            assert connection.recv(10) == b"%d" % number
            connection.close()
            kept[number].close()


async def test_answers_belong_to_their_questions() -> None:
    async with channels() as pair:
        assert await asyncio.gather(*(pair.first.ask("slow", n) for n in range(100))) == [n * n for n in range(100)]


async def test_what_cannot_be_answered_is_an_error_there_and_nowhere_else() -> None:
    async with channels() as pair:
        with pytest.raises(RuntimeError, match="no such thing"):
            await pair.first.ask("fails")
        assert await pair.first.ask("slow", 3) == 9


async def test_who_waits_for_an_answer_learns_that_the_other_side_has_ended() -> None:
    async with channels() as pair:
        waiting = asyncio.ensure_future(pair.first.ask("for ever"))
        await asyncio.sleep(0.01)
        pair.second.close()
        with pytest.raises(ChannelClosed):
            await waiting
        async with asyncio.timeout(SECONDS):
            await pair.lost.wait()
        before = len(os.listdir("/proc/self/fd"))
        with pytest.raises(ChannelClosed):
            mine, other = socket.socketpair()
            mine.close()
            pair.first.tell("said", passed=other)
        assert len(os.listdir("/proc/self/fd")) == before  # what could not be passed on is closed


async def test_sockets_that_were_not_passed_on_yet_are_closed_at_the_end() -> None:
    async with channels() as pair:
        before = len(os.listdir("/proc/self/fd"))
        mine, other = socket.socketpair()
        pair.first.tell("said", b"x" * (8 << 20))  # more than the kernel takes
        pair.first.tell("said", passed=other)
        pair.first.close()
        mine.close()
        assert len(os.listdir("/proc/self/fd")) == before - 1
