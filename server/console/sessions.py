"""Sessions of browsers: who is logged in, for how long, and how often one may try.

All of it is in this process's memory and ends with it.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import psycopg
import structlog

from server.console.connections import Connection, Login

log = structlog.get_logger(__name__)

MOST_SESSIONS = 100
MOST_STREAMS = 8
"""Event streams that are open at once in one session."""
CONNECTION_IDLE_SECONDS = 60.0
"""A connection that no page has used for so long is closed; the next page opens another one."""
SWEEP_SECONDS = 5.0

WINDOW_SECONDS = 60.0
MOST_FAILURES = {"user": 5, "address": 20}
"""Failed logins in that time: of one user from one address, and from one address."""


@dataclass(slots=True)
class Session:
    """One browser that is logged in."""

    login: Login
    began_at: float
    used_at: float
    streams: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    _connection: Connection | None = None
    _connection_used_at: float = 0.0
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """The session's connection, for one page at a time. Raises psycopg.Error."""
        async with self._turn:
            connection = self._connection
            if connection is None or not connection.usable:
                connection = await self.login.connect()
            if self.ended.is_set():  # meanwhile
                await connection.close()
                raise psycopg.OperationalError("the session has ended")
            self._connection = connection
            try:
                yield connection
            except asyncio.CancelledError:
                await connection.close()  # a statement may still run in it
                raise
            finally:
                self._connection_used_at = time.monotonic()
                if self.ended.is_set():
                    await connection.close()

    async def rest(self, now: float) -> None:
        """Close the connection if no page has used it for a while."""
        if self._connection is not None and now - self._connection_used_at > CONNECTION_IDLE_SECONDS:
            if self._turn.locked():
                return
            connection, self._connection = self._connection, None
            await connection.close()

    async def end(self) -> None:
        """Close the connection; event streams end."""
        self.ended.set()
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._turn.locked():
            connection.hang_up()  # the page that waits for it closes it
        else:
            await connection.close()


class Attempts:
    """Failed logins of the last minute.

    >>> attempts = Attempts(lambda: 0.0)
    >>> for _ in range(5):
    ...     attempts.failed("127.0.0.1", "alice")
    >>> attempts.wait("127.0.0.1", "alice"), attempts.wait("127.0.0.1", "bob")
    (60.0, 0.0)
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._failures: dict[tuple[str, ...], deque[float]] = {}

    def wait(self, address: str, user: str) -> float:
        """Seconds until this user may try again from there; 0 for now."""
        now = self._clock()
        waits = [0.0]
        for key, most in self._keys(address, user):
            failures = self._failures.get(key, deque())
            while failures and now - failures[0] >= WINDOW_SECONDS:
                failures.popleft()
            if len(failures) >= most:
                waits.append(failures[-most] + WINDOW_SECONDS - now)
        return max(waits)

    def failed(self, address: str, user: str) -> None:
        """Note a failure."""
        now = self._clock()
        for key in [key for key, times in self._failures.items() if not times or now - times[-1] >= WINDOW_SECONDS]:
            del self._failures[key]
        for key, most in self._keys(address, user):
            self._failures.setdefault(key, deque(maxlen=most)).append(now)

    @staticmethod
    def _keys(address: str, user: str) -> list[tuple[tuple[str, ...], int]]:
        return [((address, user), MOST_FAILURES["user"]), ((address,), MOST_FAILURES["address"])]


class Sessions:
    """All sessions, by their random ids."""

    def __init__(self, idle_seconds: float, longest_seconds: float, clock: Callable[[], float] = time.monotonic):
        self._idle, self._longest, self._clock = idle_seconds, longest_seconds, clock
        self._sessions: dict[str, Session] = {}
        self.attempts = Attempts(clock)

    @property
    def full(self) -> bool:
        return len(self._sessions) >= MOST_SESSIONS

    def begin(self, login: Login) -> str:
        """A new session; returns its id."""
        now = self._clock()
        identity = secrets.token_urlsafe(32)
        self._sessions[identity] = Session(login, now, now)
        return identity

    def find(self, identity: str | None, *, used: bool) -> Session | None:
        """The session of that id, if it has not ended. With `used` its idle time begins anew."""
        session = self._sessions.get(identity or "")
        if session is None or self._is_over(session):
            return None
        if used:
            session.used_at = self._clock()
        return session

    def _is_over(self, session: Session) -> bool:
        now = self._clock()
        over = now - session.used_at >= self._idle or now - session.began_at >= self._longest
        return over or session.ended.is_set()

    async def end(self, identity: str | None) -> None:
        """Log out."""
        session = self._sessions.pop(identity or "", None)
        if session is not None:
            await session.end()

    async def sweep(self) -> None:
        """End what is over, and close connections that nobody uses, again and again."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for identity, session in tuple(self._sessions.items()):
                if self._is_over(session):
                    log.info("session has ended", user=session.login.user)
                    await self.end(identity)
                else:
                    await session.rest(time.monotonic())

    def end_streams(self) -> None:
        """Have all event streams end."""
        for session in self._sessions.values():
            session.ended.set()

    async def stop(self) -> None:
        """End all."""
        for identity in tuple(self._sessions):
            await self.end(identity)
