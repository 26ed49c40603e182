"""Run the steps of several sessions in every order, as PostgreSQL's own isolation tests do.

A step that waits for another session's lock is left waiting, the others go on, and its session's next steps are taken
up when it has come through. After each commit, and after each step in the eyes of who took it, every stream table is
compared with its query.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import psycopg

RC, RR, S = "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"
COMMIT = "COMMIT"
HANG = 30.0
"""Seconds after which a step that nobody keeps waiting, or everybody does, hangs."""
SERIALIZATION, DEADLOCK = "40001", "40P01"

Order = tuple[int, ...]


def orders(lengths: Sequence[int]) -> Iterator[Order]:
    """All orders of the steps of sessions that have so many each, as the numbers of the sessions.

    >>> list(orders([2, 1]))
    [(0, 0, 1), (0, 1, 0), (1, 0, 0)]
    """
    if not any(lengths):
        yield ()
    for number, length in enumerate(lengths):
        if length:
            rest = [each - (other == number) for other, each in enumerate(lengths)]
            yield from ((number, *order) for order in orders(rest))


@dataclass
class Outcome:
    """What happened in one order: the errors, by session, and which sessions have waited for another one."""

    errors: dict[int, str] = field(default_factory=dict)
    waited: set[int] = field(default_factory=set)


class Stage:
    """Some sessions, past the server, and one that looks on."""

    def __init__(self, dsn: str, tables: dict[str, tuple[str, str]]):
        """``tables`` are queries and columns of stream tables, by their names."""
        self.dsn = dsn
        self.differences = [
            f"SELECT '{name}', count(*) FROM ((({query}) EXCEPT ALL {stored})"
            f" UNION ALL ({stored} EXCEPT ALL ({query}))) AS x"
            for name, (query, columns) in tables.items()
            for stored in [f"SELECT {columns} FROM {name}"]
        ]
        self.connections: list[psycopg.AsyncConnection[Any]] = []

    async def open(self, sessions: int) -> Stage:
        for _ in range(sessions + 1):
            connection = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True)
            # What deadlocks is found at once; and who waits for ever is told so.
            await connection.execute(f"SET deadlock_timeout = '20ms'; SET lock_timeout = '{HANG}s'")
            self.connections.append(connection)
        self.observer = self.connections.pop()
        return self

    async def close(self) -> None:
        for connection in [*self.connections, self.observer]:
            with suppress(psycopg.Error):
                await connection.close()

    async def play(self, reset: str, levels: Sequence[str], steps: Sequence[Sequence[str]], order: Order) -> Outcome:
        """One order of the steps, each session at its level; a COMMIT is the last step of each."""
        await self.observer.execute(reset)
        await self.check(self.observer, "reset")
        run = _Run(self, levels, steps)
        for number, level in enumerate(levels):
            await self.connections[number].execute(f"BEGIN ISOLATION LEVEL {level}")
        queue = list(order)
        while queue:
            place = next((i for i, number in enumerate(queue) if number not in run.waiting), None)
            if place is None:
                await run.wait_for_any()
            else:
                await run.take(queue.pop(place))
        while run.waiting:
            await run.wait_for_any()
        await self.check(self.observer, "end")
        return run.outcome

    async def check(self, connection: psycopg.AsyncConnection[Any], when: str) -> None:
        for difference in self.differences:
            ((name, count),) = await (await connection.execute(difference)).fetchall()
            assert count == 0, f"{when}: {name} differs from its query by {count} rows"

    async def look(self) -> None:
        """Compare in between; not where a TRUNCATE keeps everybody out."""
        await self.observer.execute("SET lock_timeout = '20ms'")
        with suppress(psycopg.errors.LockNotAvailable):
            await self.check(self.observer, "between steps")
        await self.observer.execute(f"SET lock_timeout = '{HANG}s'")

    async def blocked(self, number: int) -> bool:
        """Whether a session waits for a lock of another one's."""
        pid, *others = (
            self.connections[each].info.backend_pid
            for each in sorted(range(len(self.connections)), key=lambda each: each != number)
        )
        cursor = await self.observer.execute("SELECT pg_blocking_pids(%s) && %s::int[]", [pid, others])
        ((blocked,),) = await cursor.fetchall()
        return bool(blocked)


class _Run:
    def __init__(self, stage: Stage, levels: Sequence[str], steps: Sequence[Sequence[str]]):
        self.stage, self.levels, self.steps = stage, levels, steps
        self.next = [0] * len(steps)
        self.waiting: dict[int, asyncio.Task[None]] = {}
        self.outcome = Outcome()

    async def take(self, number: int) -> None:
        """The next step of a session; returns when it is done or waits, and with it all whom it has let go on."""
        step = self.steps[number][self.next[number]]
        self.next[number] += 1
        if number in self.outcome.errors and step != COMMIT:
            return
        self.waiting[number] = asyncio.create_task(self._step(number, step))
        await self._settle()

    async def _step(self, number: int, step: str) -> None:
        connection = self.stage.connections[number]
        try:
            await connection.execute(step)
        except psycopg.Error as error:
            if error.sqlstate is None:
                raise
            self.outcome.errors[number] = f"{error.sqlstate}: {error}"
            return
        if step != COMMIT and self._may_look(number):
            await self.stage.check(connection, f"after {step}")

    def _may_look(self, number: int) -> bool:
        """Not where its reads would count, nor where older snapshots see what TRUNCATE has left: nothing."""
        level = self.levels[number]
        truncates = any("TRUNCATE" in step for steps in self.steps for step in steps)
        return level == RC or (level == RR and not truncates)

    async def _settle(self) -> None:
        """Wait until each step is done or waits for another session."""
        for number in list(self.waiting):
            task = self.waiting[number]
            for turn in range(10_000):
                done, _ = await asyncio.wait([task], timeout=0.002 if turn < 100 else 0.02)
                if done:
                    del self.waiting[number]
                    task.result()
                    break
                if await self.stage.blocked(number):
                    self.outcome.waited.add(number)
                    break
            else:
                raise AssertionError(f"session {number} hangs")
        await self.stage.look()

    async def wait_for_any(self) -> None:
        done, _ = await asyncio.wait(self.waiting.values(), timeout=HANG, return_when=asyncio.FIRST_COMPLETED)
        assert done, "all sessions hang"
        await self._settle()
