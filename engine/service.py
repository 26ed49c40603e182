"""The engine: what the server holds on to. One pool, one scheduler and one clock for each database in use."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import structlog

from catalog.install import InstallResult, how_to_return, in_order, install, uninstalled
from catalog.ownership import UntrustedSchema, installed_query
from catalog.session import RequestSession, SqlError, SqlSession
from catalog.systems import QUEUES, REGISTERS, STREAM_TABLES, System
from catalog.values import Initiator
from engine.capture.ahead import capturing_in
from engine.capture.maintenance import CaptureMaintenance
from engine.capture.wal.capture import WalCapture
from engine.load_generators import SourceClock
from engine.publish.places import Places
from engine.publish.publisher import Publisher
from engine.queues.ticker import QueueTicker
from engine.refresh.executor_choice import NoSpark, Spark
from engine.refresh.record import Job
from engine.registers.maintenance import RegisterMaintenance
from engine.requests import requests
from engine.requests.callers import Callers, has_callers
from engine.requests.extensions import Installer
from engine.requests.immediate import awaiting_triggers, enter_immediate
from engine.requests.requests import Loader
from engine.scheduling import worker
from engine.scheduling.scheduler import MOST_WORKERS, Scheduler, Turn
from engine.scheduling.units import Unit
from engine.scheduling.waiting import note_skipped, note_waiting
from engine.session.background_worker import BackgroundWorker, ended
from engine.session.pool import ConnectArguments, DatabasePool, PooledSession
from engine.subscribe import SubscriptionHub
from engine.subscribe.history import HistoryClock
from engine.subscribe.hub import Hub

logger = structlog.get_logger(__name__)

DISCOVERY_INTERVAL = 30.0

OTHER_CONNECTIONS = 8
"""So many connections of a database's pool are for other things than the scheduler's workers."""

FIRST_LOOKS_APART = 0.1
"""Seconds between the first looks of a database's workers, which one after another need one connection of the pool."""

RELEASE_SECONDS = 2.0
"""How long the engine stays away from a database that somebody wants to drop, rename or copy."""

_MAY_TAKE = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_database d, pg_catalog.pg_roles r
    WHERE d.datname OPERATOR(pg_catalog.=) $1::text AND r.rolname OPERATOR(pg_catalog.=) $2::text
      AND (r.rolsuper OR pg_catalog.pg_has_role(r.oid, d.datdba, 'MEMBER') OR r.rolcreatedb AND d.datistemplate)
)
"""

_SCHEMAS = """
SELECT n.nspname::pg_catalog.text FROM pg_catalog.pg_namespace n
WHERE n.nspname OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.text[]) ORDER BY 1
"""

IN_TRANSACTION = "inside a transaction block"


class Maintenance(Protocol):
    """Maintains the mirrors of one database (`mirror.maintenance`), as the engine sees it."""

    worker: BackgroundWorker

    def wake(self) -> None:
        """A transaction that changed data has committed."""
        ...

    async def forget(self) -> None:
        """The database is gone."""
        ...


@dataclass(slots=True)
class _Database:
    """A database in which the catalog is installed."""

    pool: DatabasePool
    scheduler: Scheduler
    clock: QueueTicker
    sources: SourceClock
    history: HistoryClock
    publisher: Publisher
    registers: RegisterMaintenance
    workers: list[BackgroundWorker]
    spark: Spark
    mirrors: Maintenance | None
    hub: Hub
    callers: Callers
    told: str | None
    """What new sessions are told, where something has been taken out of the database."""
    changing_until: float = -math.inf
    """Up to when, on the monotonic clock, a commit may take something out of it."""


@dataclass(slots=True)
class Engine:
    """Implements the relay's `EngineInterface`.

    `connect_arguments` gives, for a database's name, how the engine logs in; `spark_for` gives the Spark executor to be
    used with a database's pool.
    """

    connect_arguments: Callable[[str], ConnectArguments]
    spark_for: Callable[[DatabasePool], Spark]
    maintenance_database: str = "postgres"
    mirror_maintenance_for: Callable[[DatabasePool], Maintenance] | None = None
    """Gives what maintains a database's mirrors, where there are mirrors."""
    loader: Loader | None = None
    """Carries out COPY from files; None without Spark."""
    idle: bool = False
    """Whether it only does what clients ask for: of several processes of a server one works beside that."""
    expecting: Callable[[str], None] = lambda database: None
    """Called, with a database, where a client has been given what is to be looked after there."""
    places: Places = field(default_factory=Places)
    """Where stream tables may be published."""
    _databases: dict[str, _Database] = field(default_factory=dict)
    _unavailable: dict[str, str] = field(default_factory=dict)
    _untrusted: set[str] = field(default_factory=set)
    """Databases in which the schemas of stream tables are somebody else's."""
    _opening: dict[str, asyncio.Lock] = field(default_factory=dict)
    _released: dict[str, float] = field(default_factory=dict)
    """Databases let go a moment ago, and until when, on the monotonic clock, discovery does not connect to them."""
    _discovery: BackgroundWorker | None = None
    _background: set[asyncio.Future[None]] = field(default_factory=set)

    async def start(self) -> None:
        """Take up the databases that already have stream tables."""
        self._discovery = BackgroundWorker("discovery", self.maintenance_database, self._discover, DISCOVERY_INTERVAL)
        self._discovery.start()

    async def stop(self) -> None:
        """Stop the schedulers; refreshes in progress are rolled back and repeated after the next start."""
        if self._discovery is not None:
            await self._discovery.stop()
        await asyncio.gather(*(self._let_go(name) for name in list(self._databases)))
        for task in tuple(self._background):
            task.cancel()

    async def database_ready(self, database: str) -> str | None:
        """Install or upgrade the catalog at first use and start the database's scheduler.

        Returns a warning for the client if the catalog could not be installed.
        """
        if database in self._databases:
            return self._databases[database].told
        if database in ("template0", "template1"):
            return None
        async with self._opened(database):
            if database in self._databases:
                return self._databases[database].told
            pool = DatabasePool(database, self.connect_arguments, max_size=MOST_WORKERS + OTHER_CONNECTIONS)
            try:
                async with pool.session() as session:
                    gone = await uninstalled(session)
                    found = await in_order(session, gone)
                    result = found.get(STREAM_TABLES) or await install(session)
                    absent = [how_to_return(gone)] + [
                        await self._install_beside(session, database, system, found.get(system))
                        for system in (QUEUES, REGISTERS)
                        if system not in gone
                    ]
                    callers = Callers(pool, await has_callers(session))
            except SqlError as error:
                await pool.close()
                if isinstance(error, UntrustedSchema):
                    self._untrusted.add(database)
                logger.warning("catalog not installed", database=database, error=error.message, hint=error.hint)
                hint = f" ({error.hint})" if error.hint else ""
                return f'stream tables are not available in database "{database}": {error.message}{hint}'
            self._untrusted.discard(database)
            for warning in result.warnings:
                logger.warning("catalog installed with limits", database=database, warning=warning)
            _log_repaired(database, STREAM_TABLES, result)
            self._take_up(database, pool, callers, gone)
            return "; ".join(filter(None, absent)) or None

    @property
    def pools(self) -> dict[str, DatabasePool]:
        """The engine's connections to each database that it serves."""
        return {name: entry.pool for name, entry in self._databases.items()}

    def is_trusted(self, database: str) -> bool:
        """Whether functions of the catalog may be called for a client: nobody else has put something in their place."""
        return database not in self._untrusted

    def uninstalled(self, database: str) -> str | None:
        """What is told of extensions that somebody has taken out of the database, None if nobody has."""
        entry = self._databases.get(database)
        return entry.told if entry is not None else None

    def look_for_callers(self, database: str, found: Callable[[], None]) -> None:
        """Call `found` if a database has something that may make requests without being named by statements.

        At once if that is known, else as soon as it is found out. Never blocks.
        """
        entry = self._databases.get(database)
        if entry is not None and entry.callers.present:
            found()
        elif entry is not None and entry.callers.to_be_looked_for:
            self._in_background(self._look_for_callers(database, entry.callers, found))

    def _look_for_uninstalled(self, database: str) -> None:
        """See what somebody has taken out of a database, so that new sessions can be told. Never blocks."""
        entry = self._databases.get(database)
        if entry is not None:
            self._in_background(self._see_uninstalled(database, entry))

    async def _see_uninstalled(self, database: str, entry: _Database) -> None:
        """The same at once. Where stream tables are uninstalled there is nothing to be scheduled."""
        try:
            async with entry.pool.session() as session:
                gone = await uninstalled(session)
        except SqlError as error:
            logger.warning("not known what was uninstalled", database=database, error=error.message)
            return
        if self._databases.get(database) is not entry:
            return
        entry.told = how_to_return(gone)
        if STREAM_TABLES in gone:
            await entry.scheduler.worker.stop()
        elif not self.idle:
            entry.scheduler.worker.start()

    async def _look_for_callers(self, database: str, callers: Callers, found: Callable[[], None]) -> None:
        try:
            await callers.look(found)
        except SqlError as error:
            logger.warning("functions that make requests not looked for", database=database, error=error.message)

    async def _install_beside(
        self, session: PooledSession, database: str, system: System, found: InstallResult | None
    ) -> str | None:
        """Install or upgrade what stream tables do not need, unless it was `found` in order.

        Returns a warning if it could not be.
        """
        try:
            result = found or await install(session, system=system)
        except SqlError as error:
            logger.warning(f"{system.title} not installed", database=database, error=error.message, hint=error.hint)
            hint = f" ({error.hint})" if error.hint else ""
            return f'{system.title} are not available in database "{database}": {error.message}{hint}'
        for warning in result.warnings:
            logger.warning(f"{system.title} installed with limits", database=database, warning=warning)
        _log_repaired(database, system, result)
        return None

    def _take_up(self, name: str, pool: DatabasePool, callers: Callers, gone: frozenset[System]) -> None:
        """Begin to serve a database, of which some systems may be uninstalled."""
        spark = self.spark_for(pool)

        async def refresh(unit: Unit, job: Job, limit: float | None) -> Turn:
            task = worker.Task(
                {
                    table.pgt_id: Initiator.SCHEDULER if table.is_populated else Initiator.INITIAL
                    for table in unit.members
                },
                one_snapshot=unit.one_snapshot,
                job=job,
                from_log=any(table.from_log for table in unit.members),
            )
            return await worker.refresh_within(pool, task, spark, limit)

        async def carry_out(role: int, limit: float | None) -> bool:
            return await worker.carry_out_of_band(pool, role, spark, limit)

        scheduler = Scheduler(pool, refresh, carry_out, partial(note_waiting, pool), partial(note_skipped, pool))
        clock = QueueTicker(pool, absent=lambda: self._look_for_uninstalled(name))
        sources = SourceClock(pool, committed=lambda: self.committed(name))
        hub = Hub(pool)
        history = HistoryClock(pool, ticking=lambda: hub.is_ticking)
        publisher = Publisher(pool, places=self.places)
        registers = RegisterMaintenance(pool)
        mirrors = self.mirror_maintenance_for(pool) if self.mirror_maintenance_for else None
        wal = WalCapture(pool, delivered=lambda: self.committed(name))
        working = (scheduler, clock, sources, history, publisher, CaptureMaintenance(pool), wal, registers, mirrors)
        workers = [each.worker for each in working if each is not None]
        for number, each in enumerate(workers):
            if self.idle or (each is scheduler.worker and STREAM_TABLES in gone):
                continue
            each.start(after=max(0, number - 1) * FIRST_LOOKS_APART)  # the scheduler has a connection of its own
        self._databases[name] = _Database(
            pool,
            scheduler,
            clock,
            sources,
            history,
            publisher,
            registers,
            workers,
            spark,
            mirrors,
            hub,
            callers,
            how_to_return(gone),
        )

    async def release_database(self, database: str, role: str) -> None:
        """Close the engine's connections to a database, so that this role can drop, rename or copy it, if it may.

        If the database is still there a little later its scheduler is taken up again.
        """
        if not await self._may_take(database, role):
            return
        self._released[database] = time.monotonic() + RELEASE_SECONDS
        async with self._opened(database):  # after a connection that is just being made
            entry = await self._let_go(database)
        self._in_background(self._return_to(database, entry.mirrors if entry else None))

    async def _return_to(self, database: str, mirrors: Maintenance | None) -> None:
        await asyncio.sleep(RELEASE_SECONDS)
        if database in self._databases:
            return
        if await self._exists(database):
            if await self._has_catalog(database):
                await self.database_ready(database)
        elif mirrors is not None:
            await mirrors.forget()

    async def _may_take(self, database: str, role: str) -> bool:
        """Whether a role, or one that it is a member of, may drop, rename or copy a database."""
        try:
            async with self._maintenance_session() as session:
                ((found,),) = await session.fetch(_MAY_TAKE, database, role)
            return bool(found)
        except SqlError as error:
            logger.warning("database not released", database=database, error=error.message)
            return False

    async def _exists(self, database: str) -> bool:
        """Whether there is such a database; True if that cannot be found out."""
        try:
            async with self._maintenance_session() as session:
                query = "SELECT EXISTS (SELECT FROM pg_catalog.pg_database WHERE datname = $1::text)"
                ((found,),) = await session.fetch(query, database)
            return bool(found)
        except SqlError:
            return True

    @asynccontextmanager
    async def _maintenance_session(self) -> AsyncIterator[PooledSession]:
        """A session in the maintenance database: of its pool where it is served, else of its own. Raises SqlError."""
        entry = self._databases.get(self.maintenance_database)
        pool = entry.pool if entry else DatabasePool(self.maintenance_database, self.connect_arguments, max_size=1)
        try:
            async with pool.session() as session:
                yield session
        finally:
            if entry is None:
                await pool.close()

    def _opened(self, database: str) -> asyncio.Lock:
        """Held while connections to a database are opened for the first time, or all closed."""
        return self._opening.setdefault(database, asyncio.Lock())

    def _is_released(self, database: str) -> bool:
        return self._released.get(database, 0.0) > time.monotonic()

    async def _let_go(self, database: str) -> _Database | None:
        entry = self._databases.pop(database, None)
        if entry is not None:
            closing = asyncio.create_task(entry.hub.close(), name=f"headwater closing {database}")
            await ended([closing])
            await asyncio.gather(*(worker.stop() for worker in entry.workers))
            await entry.pool.close()
            # Where they were waiting for PostgreSQL, which has gone silent, they have nothing to wait for any more.
            left = [task.get_name() for task in await ended([closing])]
            over = await asyncio.gather(*(worker.stop() for worker in entry.workers))
            left += [worker.title for worker, is_over in zip(entry.workers, over, strict=True) if not is_over]
            for name in left:
                logger.warning("does not end", database=database, task=name)
        return entry

    def committed(self, database: str) -> None:
        """A transaction that changed data has committed: let the scheduler, the clock and maintenance look."""
        entry = self._databases.get(database)
        if entry is not None:
            entry.scheduler.wake()
            entry.clock.committed()
            entry.hub.committed()
            entry.sources.noticed()
            entry.history.committed()
            entry.publisher.committed()
            if entry.mirrors is not None:
                entry.mirrors.wake()
            if self.is_changing(database):
                self._look_for_uninstalled(database)

    def sent(self, database: str) -> None:
        """A session that sends events to queues or makes registers has ended a transaction: let their engines look."""
        entry = self._databases.get(database)
        if entry is not None:
            entry.clock.sent()
            entry.registers.made()

    def expect(self, database: str) -> None:
        """A transaction that is to commit may add sources or a history, or take something out."""
        entry = self._databases.get(database)
        if entry is not None:
            entry.sources.expect()
            entry.history.expect()
            entry.publisher.expect()
            entry.changing_until = time.monotonic() + DISCOVERY_INTERVAL

    def is_changing(self, database: str) -> bool:
        """Whether a commit may take something out of it."""
        entry = self._databases.get(database)
        return entry is not None and time.monotonic() < entry.changing_until

    async def subscriptions(self, database: str) -> SubscriptionHub:
        """The subscriptions of a database. Raises SqlError if the engine does not serve it."""
        return (await self._entry(database)).hub

    async def carry_out(self, session: RequestSession) -> None:
        """Carry out the pending requests of the session's transaction. Raises SqlError."""
        entry = await self._entry(session.database)
        spark: Spark = entry.spark if session.autocommit else NoSpark(IN_TRANSACTION, entry.spark.lake)

        async def installer(system: System, schema: str | None) -> bool:
            changed = await self._install_again(entry.pool, session, system, schema)
            await self._see_uninstalled(session.database, entry)
            return changed

        def expect() -> None:
            self.expect(session.database)
            self.expecting(session.database)

        with capturing_in(entry.pool.session):
            await self._carry_out(session, entry.pool, spark, installer, expect)

    async def _carry_out(
        self,
        session: RequestSession,
        pool: DatabasePool,
        spark: Spark,
        installer: Installer,
        expect: Callable[[], None],
    ) -> None:
        created = await requests.carry_out_all(session, spark, self.loader, installer, expect, self.places)
        if not created:
            return
        await session.restart()
        try:
            for pgt_id in created:
                await requests.refresh_now(session, pgt_id, Initiator.INITIAL, spark, restart=session.restart)
            if immediate := await awaiting_triggers(session, created):
                await session.restart("READ COMMITTED")
                for pgt_id in immediate:
                    await enter_immediate(session, pgt_id, Initiator.INITIAL, spark)
        except SqlError:
            # Its locks must be gone before another connection can undo the first step.
            await session.abandon()
            await worker.undo(pool, created)
            raise
        except BaseException:
            # The client is gone or has cancelled: what it created half is not wanted. Its locks go when its session
            # has ended, which waits for this.
            self._in_background(worker.undo(pool, created))
            raise

    async def _install_again(
        self, pool: DatabasePool, client: RequestSession, system: System, schema: str | None
    ) -> bool:
        """Install what was dropped, or what shall be elsewhere, in a transaction of the engine's own. Raises SqlError.

        Gives whether there was anything to do. Whoever asks may hold locks in the transaction that waits for this.
        """
        async with pool.session() as own:
            if await _sees_otherwise(own, client, [schema or system.schema, system.schema]):
                raise SqlError(
                    "25001",
                    f'extension "{system.extension}" cannot be created in the transaction that has created its schema, '
                    "or has dropped it",
                    detail="The server makes it in a transaction of its own, which does not see what this one does.",
                    hint="Commit before.",
                )
            await own.execute("SET lock_timeout = '5s'")
            try:
                return (await install(own, system=system, schema=schema, anew=True)).changed
            finally:
                await own.execute("RESET lock_timeout")

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _entry(self, database: str) -> _Database:
        """The database as it is served, taken up again if it was released. Raises SqlError."""
        warning = await self.database_ready(database)
        entry = self._databases.get(database)
        if entry is None:
            raise SqlError("55000", warning or f'the engine does not serve database "{database}" at the moment')
        return entry

    async def _discover(self) -> None:
        """Find databases with stream tables that no client of this server has touched since it started."""
        async with self._maintenance_session() as session:
            rows = await session.fetch(
                "SELECT datname::text FROM pg_catalog.pg_database WHERE datallowconn AND NOT datistemplate"
                " AND pg_catalog.has_database_privilege(oid, 'CONNECT')"
            )
        for (name,) in rows:
            self._look_for_uninstalled(name)
            if not self.idle and name not in self._databases and await self._has_catalog(name):
                await self.database_ready(name)

    async def _has_catalog(self, database: str) -> bool:
        """Whether to take up a database; not while somebody wants it for himself."""
        async with self._opened(database):
            if self._is_released(database):
                return False
            pool = DatabasePool(database, self.connect_arguments, max_size=1)
            try:
                async with pool.session() as session:
                    ((found,),) = await session.fetch(installed_query(STREAM_TABLES))
                return bool(found)
            except SqlError:
                return False
            finally:
                await pool.close()


async def _sees_otherwise(own: SqlSession, client: SqlSession, schemas: list[str]) -> bool:
    """Whether a client's transaction has made or dropped schemas, or extensions, of which the engine sees nothing."""
    ((gone,),) = await client.fetch("SELECT ARRAY(SELECT u.extension FROM pgtrickle.pgt_uninstalled u ORDER BY 1)")
    seen = sorted(system.extension for system in await uninstalled(own))
    return bool(gone != seen or await own.fetch(_SCHEMAS, schemas) != await client.fetch(_SCHEMAS, schemas))


def _log_repaired(database: str, system: System, result: InstallResult) -> None:
    for damage in result.repaired:
        logger.warning(f"{system.title} repaired", database=database, damage=str(damage))
