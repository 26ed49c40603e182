"""Elections: of all server processes, one does a piece of work in a database, as long as its session lives.

Who is elected holds a lease: a row of `pgtrickle.pgt_leases`, which no other role can write, with the process and the
start of its session. It needs no transaction, and no statement in that session gives it up but the session's end.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar

import asyncpg
import structlog

from catalog.session import SqlError, SqlSession
from engine.pool import DatabasePool, PooledSession

logger = structlog.get_logger(__name__)

TAKE_OVER_SECONDS = 2.0
"""Between two attempts to take over from another server."""

DISCOVERY_SECONDS = 30.0
"""Between two looks for work that was made on connections that bypass every server."""

_ELECTION = "SELECT pgtrickle._take_lease($1::text)"
"""A standby elects nobody until it is promoted."""

_TAKEN = "SELECT pgtrickle._lease_holder($1::text) IS NOT NULL"


@asynccontextmanager
async def elected(
    pool: DatabasePool, lease: str, settings: Mapping[str, str] | None = None
) -> AsyncIterator[asyncpg.Connection | None]:
    """A connection that holds a lease, for the time of the block; None if another session holds it.

    What asyncpg raises in the block is raised as SqlError.
    """
    connection = await pool.connect(settings)
    session = PooledSession(connection)
    try:
        with session.as_sql_errors():
            ((won,),) = await session.fetch(_ELECTION, lease)
            yield connection if won else None
    finally:
        connection.terminate()


@dataclass(slots=True)
class Candidate(ABC):
    """Takes part in the election for a piece of work where there is any, and does it while elected.

    Where there is none, it has no connection at all.
    """

    title: ClassVar[str]
    """What it is called in the log: "queue clock"."""
    lease: ClassVar[str]
    """What whoever is elected holds."""
    settings: ClassVar[Mapping[str, str]] = {}
    """Of the connection that holds it."""

    pool: DatabasePool
    leading: bool = False
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _expected_until: float = -math.inf
    _look_within: float = DISCOVERY_SECONDS
    """Seconds after which there may be work where there is none now, if that is known."""

    def expect(self) -> None:
        """A session of this server makes work, in a transaction that has yet to commit."""
        self._expected_until = time.monotonic() + DISCOVERY_SECONDS

    @property
    def expected(self) -> bool:
        """Whether a transaction that commits now may bring work."""
        return time.monotonic() < self._expected_until

    @abstractmethod
    async def _has_work(self, session: SqlSession) -> bool:
        """Whether there is anything to be done in the database. Raises SqlError."""

    @abstractmethod
    async def _work(self, connection: asyncpg.Connection) -> None:
        """Work over the connection that holds the lease, while there is anything to do. Raises as asyncpg does."""

    async def run(self) -> None:
        """Take part in the election, and work while elected, until cancelled."""
        while True:
            pause = TAKE_OVER_SECONDS
            try:
                pause = await self._wait_for_work()
            except (SqlError, OSError) as error:
                logger.warning(f"{self.title} interrupted", database=self.pool.database, error=str(error))
            except Exception:
                logger.exception(f"{self.title} failed", database=self.pool.database)
            finally:
                self.leading = False
            if pause == TAKE_OVER_SECONDS:
                await asyncio.sleep(pause)
            else:
                await self._woken_within(pause)

    async def _wait_for_work(self) -> float:
        """Work while there is any that nobody else does; the seconds until it is worth another look."""
        self._woken.clear()
        async with self.pool.session() as session:
            if not await self._has_work(session):
                return min(self._look_within, DISCOVERY_SECONDS)
            ((taken,),) = await session.fetch(_TAKEN, self.lease)
        if not taken:
            async with elected(self.pool, self.lease, self.settings) as connection:
                if connection is not None:
                    logger.info(f"{self.title} elected", database=self.pool.database)
                    self.leading = True
                    await self._work(connection)
        return TAKE_OVER_SECONDS

    async def _woken_within(self, seconds: float) -> bool:
        """Sleep until woken, but not longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
                return True
        return False
