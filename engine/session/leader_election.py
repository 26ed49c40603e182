"""Elections: of all server processes, one does a piece of work in a database, as long as its session lives.

Who is elected holds a lease: a row of `pgtrickle.pgt_leases`, which no other role can write, with the process and the
start of its session. It needs no transaction, and no statement in that session gives it up but the session's end.

Whoever holds a lease shows that it lives by working in that session: at each look, at least every few seconds, the loop
that does the work sends a statement, and PostgreSQL notes the time. Where that stands still, the others have a `Rival`
that hangs (its process is stopped, or its loop stuck), and the first to notice has PostgreSQL end all sessions of that
server in the database. Then the lease is free. The session is the token: once PostgreSQL has ended it, nothing can be
done in it any more, whatever becomes of that process, and what it had not committed is undone.
"""

from __future__ import annotations

import asyncio
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import asyncpg
import structlog

from catalog.session import SqlError, SqlSession
from engine.session.background_worker import BackgroundWorker, WakeUp
from engine.session.pool import DatabasePool, PooledSession

logger = structlog.get_logger(__name__)

TAKE_OVER_SECONDS = 2.0
"""Between two attempts to take over from another server."""

DISCOVERY_SECONDS = 30.0
"""Between two looks for work that was made on connections that bypass every server."""

HANGING_SECONDS = 15.0
"""Whoever holds a lease and shows no sign of life for so long hangs."""

BEAT_SECONDS = 5.0
"""Most seconds that who holds a lease may leave its session alone."""

# PostgreSQL's clock is not asked what time it is. A session that is not idle is at work.
_SIGN = """
SELECT pg_catalog.concat_ws(' ', a.pid, a.backend_start, a.state_change)
FROM pgtrickle.pgt_leases l
JOIN pg_catalog.pg_stat_get_activity(NULL) a
  ON a.pid OPERATOR(pg_catalog.=) l.pid AND a.usesysid OPERATOR(pg_catalog.=) l.role
 AND a.backend_start OPERATOR(pg_catalog.=) l.backend_start
WHERE l.name OPERATOR(pg_catalog.=) $1::pg_catalog.text AND a.state LIKE 'idle%'
"""

# Before a title, or behind one.
_SERVER = "pg_catalog.substring({}.application_name, '(?:^headwater engine |: )([0-9a-f]{{8}})(?::|$)')"

_END = f"""
SELECT pg_catalog.count(pg_catalog.pg_terminate_backend(a.pid))
FROM pgtrickle.pgt_leases l
JOIN pg_catalog.pg_stat_get_activity(NULL) h
  ON h.pid OPERATOR(pg_catalog.=) l.pid AND h.usesysid OPERATOR(pg_catalog.=) l.role
 AND h.backend_start OPERATOR(pg_catalog.=) l.backend_start
JOIN pg_catalog.pg_stat_get_activity(NULL) a
  ON a.usesysid OPERATOR(pg_catalog.=) h.usesysid AND a.datid OPERATOR(pg_catalog.=) h.datid
 AND (a.pid OPERATOR(pg_catalog.=) h.pid OR {_SERVER.format("a")} OPERATOR(pg_catalog.=) {_SERVER.format("h")})
WHERE l.name OPERATOR(pg_catalog.=) $1::pg_catalog.text
  AND pg_catalog.concat_ws(' ', h.pid, h.backend_start, h.state_change) OPERATOR(pg_catalog.=) $2::pg_catalog.text
"""

_ELECTION = "SELECT pgtrickle._take_lease($1::text)"
"""A standby elects nobody until it is promoted."""

_TAKEN = "SELECT pgtrickle._lease_holder($1::text) IS NOT NULL"


async def beat(session: SqlSession) -> None:
    """Show that who holds the session's lease lives. Raises SqlError where it does not hold it any more."""
    await session.fetch("SELECT")


@asynccontextmanager
async def beating(lease: asyncpg.Connection, worker: asyncpg.Connection) -> AsyncIterator[None]:
    """Show in the session that holds a lease that its holder lives, while the block works over another session.

    That one, `worker`, ends as soon as the lease is lost.
    """

    async def beat_on() -> None:
        try:
            while True:
                await asyncio.sleep(BEAT_SECONDS)
                await beat(PooledSession(lease))
        except SqlError as error:
            logger.warning("lease lost", error=error.message)
            worker.terminate()

    task = asyncio.create_task(beat_on())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@dataclass(slots=True)
class Rival:
    """Whoever else holds a lease, as this server sees it."""

    lease: str
    patience: float = HANGING_SECONDS
    clock: Callable[[], float] = time.monotonic
    _sign: str | None = None
    """Of life: the last one."""
    _since: float = math.inf

    async def look(self, session: SqlSession) -> None:
        """End the sessions of its server if it hangs. Raises SqlError."""
        rows = await session.fetch(_SIGN, self.lease)
        sign = str(rows[0][0]) if rows else None
        if sign is None or sign != self._sign:
            self._sign, self._since = sign, self.clock()
        elif self.clock() - self._since >= self.patience:
            ((ended,),) = await session.fetch(_END, self.lease, sign)
            self._sign = None
            if ended:
                logger.warning("server that hangs is replaced", lease=self.lease, sessions=int(ended))


@asynccontextmanager
async def elected(
    pool: DatabasePool, lease: str, settings: Mapping[str, str] | None = None, rival: Rival | None = None
) -> AsyncIterator[asyncpg.Connection | None]:
    """A connection that holds a lease, for the time of the block; None if another session holds it.

    What asyncpg raises in the block is raised as SqlError.
    """
    connection = await pool.connect(settings)
    session = PooledSession(connection)
    try:
        with session.as_sql_errors():
            ((won,),) = await session.fetch(_ELECTION, lease)
            if not won and rival is not None:
                await rival.look(session)
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
    worker: BackgroundWorker = field(init=False)
    leading: bool = False
    _woken: WakeUp = field(default_factory=WakeUp)
    _expected_until: float = -math.inf
    _look_within: float = DISCOVERY_SECONDS
    """Seconds after which there may be work where there is none now, if that is known."""
    _rival: Rival = field(init=False)

    def __post_init__(self) -> None:
        self.worker = BackgroundWorker(self.title, self.pool.database, self._take_part, TAKE_OVER_SECONDS)
        self._rival = Rival(self.lease)

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
        """Work over the connection that holds the lease, while there is anything to do. Raises as asyncpg does.

        It is to be used every `BEAT_SECONDS`.
        """

    async def _take_part(self) -> None:
        """Wait until there is work, and do it if nobody else does. Raises SqlError."""
        while not await self._is_wanted():
            await self._woken.within(min(self._look_within, DISCOVERY_SECONDS))
        async with self.pool.session() as session:
            ((taken,),) = await session.fetch(_TAKEN, self.lease)
            if taken:
                await self._rival.look(session)
                return
        async with elected(self.pool, self.lease, self.settings) as connection:
            if connection is None:
                return
            logger.info(f"{self.title} elected", database=self.pool.database)
            self.leading = True
            try:
                await self._work(connection)
            finally:
                self.leading = False

    async def _is_wanted(self) -> bool:
        self._woken.clear()
        async with self.pool.session() as session:
            return await self._has_work(session)
