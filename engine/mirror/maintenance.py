"""The background task that keeps the mirrors of one database up to date, and small.

Every server runs one for each of its databases. Of a location that several servers share, one of them does the work,
elected (`leader_election`) in the database; a location that is a server's own needs no election. That nothing is stored
twice if two should do it at once does not hang on the election (`delta_table`).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from contextlib import nullcontext

import asyncpg
import structlog
from deltalake.exceptions import DeltaError

from engine.mirror.compaction import compact
from engine.mirror.delta_table import Location, StorageFailed, WriteConflict
from engine.mirror.mirror import Mirror, StaleMirror
from engine.mirror.source import has
from engine.mirror.state import base_of, changes_of, folder, load
from engine.object_store import storage_message
from engine.session.background_worker import BackgroundWorker, WakeUp
from engine.session.leader_election import Rival, beating, elected
from engine.session.pool import DatabasePool
from engine.session.snapshots import Frontier
from sql.errors import NotExpressible

log = structlog.get_logger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks at the changes where nobody wakes the task."""

REST = 0.3
"""Seconds between two shipments: commits that follow each other closely are stored together."""

QUIET_SECONDS = 10.0
"""A source without changes for so long is taken not to change any more for now."""

RENEW_SECONDS = 60.0
IDLE_SECONDS = 3600.0
"""A mirror that no refresh has used for so long is not followed any more; when it is needed it is copied anew."""

TIDY_SECONDS = 60.0
ELECTION_RETRY = 5.0

_MIRRORS_SQL = """
SELECT mirror::text, source_relid::bigint,
       used_at < pg_catalog.clock_timestamp() - pg_catalog.make_interval(secs => $1::float8)
FROM pgtrickle.pgt_mirrors ORDER BY source_relid
"""
_CHANGED_SQL = "SELECT coalesce(pgtrickle._changed_since($1::bigint::oid, $2::text), true)"

_FRONTIERS_SQL = """
SELECT s.frontier ->> 'snapshot' AS snapshot, s.frontier ->> 'xid' AS xid, s.frontier ->> 'change_id' AS change_id
FROM pgtrickle.pgt_dependencies d JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
WHERE d.source_relid = $1::bigint::oid AND d.cdc_mode IS NOT NULL AND s.frontier ->> 'snapshot' IS NOT NULL
"""


class MirrorMaintenance:
    """Ships changes of the mirrors of one database, compacts them, and removes what is not needed."""

    def __init__(self, mirror: Mirror, pool: DatabasePool):
        self._mirror = mirror
        self._pool = pool
        self.worker = BackgroundWorker("maintenance of mirrors", pool.database, self._lead, ELECTION_RETRY)
        location = hashlib.md5(mirror.root.uri.encode(), usedforsecurity=False).hexdigest()
        self._rival = Rival(f"mirrors of {location}")
        self._woken = WakeUp()
        self._position: int | None = None
        self._listed = -RENEW_SECONDS
        self._renewed: dict[str, float] = {}
        self._shipped: dict[str, float] = {}
        self._tidied = -TIDY_SECONDS
        self._compacting: dict[str, asyncio.Task[None]] = {}

    def wake(self) -> None:
        """A transaction that changed data has committed."""
        self._woken.set()

    async def forget(self) -> None:
        """The database is gone."""
        await self._mirror.forget(self._pool.database)

    async def _lead(self) -> None:
        """Work as long as there is a connection; where others may, too, while elected. Raises as `run` catches."""
        if self._mirror.root.private:
            await self._follow_all(None)
            return
        async with elected(self._pool, self._rival.lease, rival=self._rival) as lease:
            if lease is not None:
                await self._follow_all(lease)

    async def _follow_all(self, lease: asyncpg.Connection | None) -> None:
        connection = await self._pool.connect()
        try:
            # To write into the store takes as long as it takes. Meanwhile the session that works is idle.
            async with nullcontext() if lease is None else beating(lease, connection):
                self._position = None
                while not connection.is_closed():
                    self._woken.clear()
                    await self.cycle(connection)
                    await asyncio.sleep(REST)
                    await self._woken.within(LOOK_INTERVAL - REST)
        finally:
            for task in self._compacting.values():
                task.cancel()
            connection.terminate()

    async def cycle(self, connection: asyncpg.Connection) -> None:
        """One look: ship what has been committed, and say that the buffers are still needed."""
        now = time.monotonic()
        # The position is read before anything is shipped: what is captured later moves it again.
        position, settled = await connection.fetchrow(
            "SELECT change_position, settled FROM pgtrickle._change_position()"
        )
        moved = not settled or position != self._position
        if moved or now - self._listed >= RENEW_SECONDS:
            self._listed = now
            rows = await connection.fetch(_MIRRORS_SQL, IDLE_SECONDS)
            self._renewed = {mirror: self._renewed.get(mirror, 0.0) for mirror, _, _ in rows}
            self._shipped = {mirror: self._shipped.get(mirror, now) for mirror, _, _ in rows}
            followed = True
            for mirror, source, idle in rows:
                if connection.is_closed():
                    return
                followed = await self._follow(connection, mirror, source, idle=idle, moved=moved) and followed
            self._position = position if settled and followed else None
        if now - self._tidied >= TIDY_SECONDS:
            self._tidied = now
            await self.tidy(connection)

    async def compacted(self) -> None:
        """Wait until no mirror is being compacted: one that is, is not followed."""
        await asyncio.gather(*self._compacting.values())

    async def _follow(
        self, connection: asyncpg.Connection, mirror: str, source: int, *, idle: bool, moved: bool
    ) -> bool:
        """Do for one mirror what there is to do; False if it has to be looked at again."""
        place = self._mirror.place(self._pool.database, source)
        now = time.monotonic()
        if self._mirror.writing(place).locked():
            return False  # by a refresh, perhaps for a first copy: the others shall not wait for it
        try:
            async with self._mirror.writing(place):
                state = await asyncio.to_thread(load, place)
                if state is None or state.mirror != mirror:
                    return True  # somebody else's, or just being made, or gone: it will not be held for long
                if idle:
                    await self._let_go(connection, mirror)
                    return True
                if moved and await connection.fetchval(_CHANGED_SQL, source, str(state.to)):
                    state = await self._mirror.catch_up(connection, place, source, state)
                    self._shipped[mirror] = now
                if now - self._renewed[mirror] >= RENEW_SECONDS:
                    self._renewed[mirror] = now
                    await has(connection, mirror, None, state.changes.version, used=False)
        except (StaleMirror, NotExpressible) as reason:
            log.info("mirror_given_up", source=source, reason=str(reason))
            if not connection.is_closed():
                await self._let_go(connection, mirror)
            return True
        except (WriteConflict, StorageFailed, DeltaError) as error:
            log.warning("mirror_not_written", source=source, error=storage_message(error))
            return False
        except asyncpg.LockNotAvailableError as error:
            log.info("mirror_waits", source=source, reason=str(error))
            return False
        if place.uri not in self._compacting:
            frontiers = [Frontier.parse(dict(row)) for row in await connection.fetch(_FRONTIERS_SQL, source)]
            quiet = now - self._shipped[mirror] >= QUIET_SECONDS
            self._compacting[place.uri] = task = asyncio.create_task(self._compact(place, frontiers, quiet=quiet))
            task.add_done_callback(lambda _: self._compacting.pop(place.uri, None))
        return True

    async def _compact(self, place: Location, frontiers: list[Frontier], *, quiet: bool) -> None:
        try:
            await compact(self._mirror, place, frontiers, quiet=quiet)
        except (StorageFailed, DeltaError, OSError) as error:
            log.warning("mirror_not_compacted", uri=place.uri, error=storage_message(error))
        except Exception:
            log.exception("mirror_not_compacted", uri=place.uri)

    async def _let_go(self, connection: asyncpg.Connection, mirror: str) -> None:
        await connection.execute("DELETE FROM pgtrickle.pgt_mirrors WHERE mirror = $1::text::uuid", mirror)

    async def tidy(self, connection: asyncpg.Connection) -> None:
        """Remove the mirrors of sources that no stream table reads any more."""
        root = self._mirror.root.below(folder(self._pool.database))
        try:
            names = await asyncio.to_thread(root.names)
            rows = await connection.fetch("SELECT DISTINCT source_relid::bigint FROM pgtrickle.pgt_dependencies")
            needed = {str(source) for (source,) in rows}
            for name in names:
                place = root.below(name)
                if not name.isdigit() or name in needed:
                    continue
                async with self._mirror.writing(place):
                    if not self._mirror.held(base_of(place)) and not self._mirror.held(changes_of(place)):
                        await asyncio.to_thread(place.remove)
                        log.info("mirror_removed", uri=place.uri)
                await connection.execute(
                    "DELETE FROM pgtrickle.pgt_mirrors WHERE source_relid = $1::bigint::oid", int(name)
                )
        except StorageFailed as error:
            log.warning("mirrors_not_tidied", error=str(error))
