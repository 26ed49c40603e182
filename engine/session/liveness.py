"""Connections that have gone silent: whoever waits for an answer over one must not wait for ever.

Where a network, or a machine, goes away without a word, a connection stays open and nothing comes over it any more. The
kernel notices that by keepalive, and by what it has sent and nobody has acknowledged; but a proxy or a load balancer in
between acknowledges everything. So the engine asks, too: where a command has been under way for some seconds it looks,
over a connection of its own, whether PostgreSQL is still at it. That is no limit on commands: they may take as long as
PostgreSQL works on them.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

import asyncpg
import structlog

from engine.session.background_worker import BackgroundWorker
from engine.session.silence import Silence, silent_for

logger = structlog.get_logger(__name__)

CONNECT_SECONDS = 10.0
"""So long it may take to connect, with all that PostgreSQL does before it is ready."""

LOST_SECONDS = 1.0
"""So often a COPY to PostgreSQL looks whether the connection is still there."""

RELEASE_SECONDS = 10.0
"""So long a connection may take to be reset before somebody else gets it; then it is given up."""

UNACKNOWLEDGED_SECONDS = 60.0
"""So long it is waited for the acknowledgement of what has been sent."""

KEEPALIVE = {"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
"""Settings of a session: PostgreSQL ends that of an engine that is gone, with its leases and locks."""

_IDENTITY = """
SELECT pg_catalog.concat(pid, ' ', backend_start) FROM pg_catalog.pg_stat_get_activity(pg_catalog.pg_backend_pid())
"""

# Of an idle session the state says so, or PostgreSQL does not have it any more. What it does not say is no reason.
_AT_WORK = """
SELECT pg_catalog.concat(pid, ' ', backend_start) FROM pg_catalog.pg_stat_get_activity(NULL)
WHERE pg_catalog.concat(pid, ' ', backend_start) OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.text[])
  AND (state IS NULL OR state NOT LIKE 'idle%')
"""

_END = """
SELECT pg_catalog.pg_terminate_backend(pid) FROM pg_catalog.pg_stat_get_activity(NULL)
WHERE pg_catalog.concat(pid, ' ', backend_start) OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.text[])
"""


def keep_alive(connection: socket.socket, *, idle: int, interval: int, count: int) -> None:
    """Have the kernel end a connection whose other end is gone: `count` questions after `idle` seconds of silence."""
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", idle), ("TCP_KEEPINTVL", interval), ("TCP_KEEPCNT", count)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


class WatchedConnection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that knows since when a command is under way in it."""

    __slots__ = ("_silence", "busy_since", "commands", "process")

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.busy_since: float | None = None
        self.commands = 0
        """How many have begun."""
        self.process = ""
        """Of PostgreSQL, and since when, as that says itself: what a pooler in between says is its own affair."""
        self._silence = Silence()

    async def begin(self) -> None:
        """What is to be done before it is used. Raises as asyncpg does."""
        keep_alive(self._transport.get_extra_info("socket"), idle=30, interval=10, count=3)
        self.process = str(await self.fetchval(_IDENTITY))

    def silent_for(self) -> float:
        """Seconds for which PostgreSQL has acknowledged nothing of what was sent to it; 0 where it owes nothing."""
        return silent_for(self._silence, self._transport)

    def is_busy_since(self, moment: float) -> bool:
        """Whether a command has been under way in it since that moment of the monotonic clock, or for longer."""
        began = self.busy_since
        return began is not None and began <= moment and bool(self.process) and not self.is_closed()

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """A command is, in this block: for what asyncpg sends by other methods than those below."""
        if self.busy_since is not None:  # the outer one counts
            yield
            return
        self.busy_since = time.monotonic()
        self.commands += 1
        try:
            yield
        finally:
            self.busy_since = None

    async def execute(self, *args: Any, **options: Any) -> Any:
        with self.under_way():
            return await super().execute(*args, **options)

    async def _execute(self, *args: Any, **options: Any) -> Any:
        with self.under_way():
            return await super()._execute(*args, **options)

    async def _prepare(self, *args: Any, **options: Any) -> Any:
        with self.under_way():
            return await super()._prepare(*args, **options)

    async def _copy_in(self, *args: Any) -> Any:
        """As asyncpg's, which waits for ever where the connection is lost while it takes no more bytes."""
        with self.under_way():
            copying = asyncio.create_task(super()._copy_in(*args))
            try:
                while not (await asyncio.wait([copying], timeout=LOST_SECONDS))[0]:
                    if self.is_closed():
                        raise ConnectionError("connection to PostgreSQL was lost during COPY")
            finally:
                if not copying.done():
                    copying.cancel()
                    await asyncio.wait([copying])
                    if not copying.cancelled():
                        copying.exception()  # of no interest
            return copying.result()

    async def _copy_out(self, *args: Any) -> Any:
        with self.under_way():
            return await super()._copy_out(*args)


@dataclass(slots=True)
class Liveness:
    """Looks after the connections to one database, and gives up those over which nothing comes any more."""

    database: str
    connect: Callable[[], Awaitable[WatchedConnection]]
    """One more connection, past the others."""
    patience: float = 5.0
    """Seconds after which a command is looked at, and between two looks."""
    answer_seconds: float = 8.0
    """So long a look may take."""
    connections: WeakSet[WatchedConnection] = field(default_factory=WeakSet)
    _suspects: dict[WatchedConnection, int] = field(default_factory=dict)
    """What was found without sign of life at the last look, at which command."""
    _worker: BackgroundWorker = field(init=False)

    def __post_init__(self) -> None:
        self._worker = BackgroundWorker("liveness", self.database, self._watch, 0.0)

    async def admit(self, connection: WatchedConnection) -> None:
        """Look after one more connection. Raises as asyncpg does."""
        self.connections.add(connection)
        self._worker.start()
        async with asyncio.timeout(CONNECT_SECONDS):
            await connection.begin()

    def close(self) -> None:
        """Give up all connections, whatever goes on in them."""
        self._worker.cancel()
        for connection in tuple(self.connections):
            connection.terminate()

    async def _watch(self) -> None:
        await asyncio.sleep(self.patience)
        await self._look()

    async def _look(self) -> None:
        """Give up the connections that show no sign of life twice, at the same command."""
        latest = time.monotonic() - self.patience
        asked = [each for each in self.connections if each.is_busy_since(latest)]
        at_work = await self._at_work([each.process for each in asked]) if asked else set()
        # Data of a COPY may be on their way there for ever, and PostgreSQL is at work as long as it waits for them.
        gone = {each for each in asked if each.silent_for() >= UNACKNOWLEDGED_SECONDS}
        silent = {each: each.commands for each in asked if each.process not in at_work or each in gone}
        lost = self._lost(silent, gone)
        self._suspects = {each: command for each, command in silent.items() if each not in lost}
        if lost:
            await self._give_up(lost)

    def _lost(
        self, silent: Mapping[WatchedConnection, int], gone: Collection[WatchedConnection]
    ) -> list[WatchedConnection]:
        """Of the silent connections, with their commands, those that are `gone` or were silent at that command before.

        A connection whose command has ended since is not one of them.
        """
        return [
            each
            for each, command in silent.items()
            if each.busy_since and (each in gone or self._suspects.get(each) == command)
        ]

    async def _give_up(self, lost: list[WatchedConnection]) -> None:
        """End connections for those who wait for them, and what they hold in PostgreSQL."""
        for each in lost:
            logger.warning(
                "connection to PostgreSQL is silent and given up",
                database=self.database,
                process=each.process.partition(" ")[0],
                seconds=round(time.monotonic() - (each.busy_since or time.monotonic()), 1),
            )
            each.terminate()
        with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            await self._ask(_END, [each.process for each in lost])

    async def _at_work(self, processes: list[str]) -> set[str]:
        """Those of PostgreSQL's processes that are at work; none if it does not answer, all if it will not say."""
        try:
            return await self._ask(_AT_WORK, processes)
        except asyncpg.PostgresConnectionError:
            return set()
        except asyncpg.PostgresError:
            return set(processes)  # it has answered: no more connections, say
        except (OSError, asyncpg.InterfaceError):
            return set()

    async def _ask(self, query: str, processes: list[str]) -> set[str]:
        """Over a connection of its own. Raises as asyncpg does, and TimeoutError."""
        connection: WatchedConnection | None = None
        try:
            async with asyncio.timeout(self.answer_seconds):
                connection = await self.connect()
                return {str(answer) for (answer,) in await connection.fetch(query, processes)}
        finally:
            if connection is not None:
                connection.terminate()
