"""Sessions in which code of users runs: those of one set of rights never serve another one.

A function in a query can take locks, change settings, prepare statements, or sleep. In a session of its owner's alone
that concerns nobody else; and what it leaves behind is undone before the session is used again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from catalog.session import SqlError
from engine.session.pool import DatabasePool, PooledSession

MOST_OF_ONE = 8
"""Sessions that one set of rights can use at once."""

MOST = 32
"""Sessions in use from which on a set of rights gets no second one. A first one it always gets."""

IDLE_SECONDS = 30.0
"""For so long a session is kept that nobody uses."""

RESET_SECONDS = 5.0
"""A session that has not been reset by then is ended."""

LOOK_SECONDS = 0.5
"""How often it is looked whether anybody still wants what PostgreSQL works on."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Whose code can run: the subscriber's, by role and OID, and that of whom the query runs as."""

    role: int
    runs_as: int


@dataclass(slots=True)
class SessionsByRights:
    """Opens sessions when they are first used."""

    pool: DatabasePool
    _idle: dict[Rights, list[tuple[PooledSession, float]]] = field(default_factory=dict)
    """With the time since when each is idle."""
    _used: Counter[Rights] = field(default_factory=Counter)
    _given_back: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _open: set[PooledSession] = field(default_factory=set)

    @asynccontextmanager
    async def session(self, rights: Rights) -> AsyncIterator[PooledSession]:
        """A session for the time of the block, as if it had just been opened. Raises SqlError."""
        while self._used[rights] >= MOST_OF_ONE or (self._used[rights] and self._used.total() >= MOST):
            self._given_back.clear()
            await self._given_back.wait()
        self._used[rights] += 1
        try:
            session = await self.open(rights)
        except BaseException:
            self._release(rights)
            raise
        try:
            yield session
        finally:
            self._in_background(self._give_back(rights, session))

    async def open(self, rights: Rights) -> PooledSession:
        """A session that the caller must `close` or `keep`, whatever else is in use. Raises SqlError."""
        idle = self._idle.get(rights, [])
        while idle:
            session, _ = idle.pop()
            if not session.lost:
                return session
            self._open.discard(session)
        session = PooledSession(await self.pool.connect())
        self._open.add(session)
        return session

    async def keep(self, rights: Rights, session: PooledSession) -> None:
        """Have a session that is not needed now serve the same rights again."""
        if await self.clean(session):
            self._idle.setdefault(rights, []).append((session, time.monotonic()))
            asyncio.get_running_loop().call_later(IDLE_SECONDS, self._expire)

    async def clean(self, session: PooledSession) -> bool:
        """Undo what was left behind in a session; False if that could not be done, and it has been ended."""
        try:
            async with asyncio.timeout(RESET_SECONDS):
                await session.reset()
        except (SqlError, TimeoutError):
            await self.end(session)
            return False
        return True

    async def end(self, session: PooledSession) -> None:
        """End a session, whatever goes on in it."""
        self._open.discard(session)
        await self.pool.end(session)

    async def close(self) -> None:
        """End all sessions, and what goes on in them."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._idle.clear()
        for session in self._open:
            session.terminate()
        self._open.clear()

    async def _give_back(self, rights: Rights, session: PooledSession) -> None:
        try:
            await self.keep(rights, session)
        finally:
            self._release(rights)

    def _release(self, rights: Rights) -> None:
        self._used[rights] -= 1
        if not self._used[rights]:
            del self._used[rights]
        self._given_back.set()

    def _expire(self) -> None:
        limit = time.monotonic() - IDLE_SECONDS + 0.1
        for rights, sessions in tuple(self._idle.items()):
            for session, _ in (each for each in sessions if each[1] <= limit):
                self._open.discard(session)
                session.terminate()
            self._idle[rights] = [each for each in sessions if each[1] > limit]
            if not self._idle[rights]:
                del self._idle[rights]

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Limit:
    """Ends a session that PostgreSQL takes too long in, or works in for nobody.

    What waits for others in between can be left out. It raises SqlError 57014 in place of what the end of the session
    raises.
    """

    def __init__(
        self,
        sessions: SessionsByRights,
        session: PooledSession,
        seconds: float | None,
        wanted: Callable[[], bool] = lambda: True,
    ):
        self._sessions, self._session, self._seconds, self._wanted = sessions, session, seconds, wanted
        self._until = float("inf")
        self._timer: asyncio.TimerHandle | None = None
        self._error: SqlError | None = None
        self._ending: asyncio.Task[None] | None = None

    def __enter__(self) -> Limit:
        self.go_on()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.pause()
        if self._error is not None and isinstance(error, SqlError):
            raise self._error from error

    def go_on(self) -> None:
        """PostgreSQL has work to do."""
        if self._error is None:
            self._until = time.monotonic() + (self._seconds or float("inf"))
            self._look()

    def pause(self) -> None:
        """It has answered."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        left = self._until - time.monotonic()
        if not self._wanted():
            self._error = SqlError("57014", "nobody reads the subscription")
        elif left <= 0:
            self._error = SqlError(
                "57014",
                f"evaluation of the subscription takes longer than {self._seconds:g} s",
                hint="The limit is the setting pg_trickle.subscription_timeout.",
            )
        else:
            self._timer = asyncio.get_running_loop().call_later(min(left, LOOK_SECONDS), self._look)
            return
        self._ending = asyncio.create_task(self._sessions.end(self._session))
