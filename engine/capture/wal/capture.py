"""Which sources are captured from the write-ahead log: an elected server looks every second, and runs the pump.

A source begins with triggers. Where all stream tables over it would have it so, and it can be, the log takes their
place once the pump runs. Where that does not come about within `pg_trickle.wal_transition_timeout` the triggers stay.
They come back where somebody asks for them, where a subscription comes, which cannot wait for the log, and where
changes may have been missed: the slot is gone, or the publication or the table's REPLICA IDENTITY was changed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import asyncpg
import structlog

from catalog.session import SqlError, SqlSession
from engine.capture.wal.pump import Pump
from engine.session.leader_election import Candidate
from engine.session.pool import PooledSession

logger = structlog.get_logger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks at what is to be captured how."""

SLOT_SECONDS = 30
"""How long one attempt to make the slot may take: PostgreSQL waits for all transactions that are under way."""

MOST_FAILURES = 5
"""Pumps that fail one after another: then the slot is given up, and sources are captured by triggers."""

STEADY_SECONDS = 10.0
"""A pump that runs for so long is not one of those that fail soon."""

_SLOT = """
SELECT s.wal_status, s.active, pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), s.restart_lsn)::bigint,
       pgtrickle._seconds('pg_trickle.slot_lag_warning_threshold_mb', 100),
       pgtrickle._wal_publication() IS NOT NULL
FROM pg_catalog.pg_replication_slots s WHERE s.slot_name OPERATOR(pg_catalog.=) pgtrickle._wal_slot()
"""
_SOURCES = "SELECT source::bigint, mode, wanted, obstacle, intact FROM pgtrickle._wal_sources()"


@dataclass(slots=True)
class WalCapture(Candidate):
    """Captures sources of one database from the write-ahead log, while it is elected."""

    title = "capture from the write-ahead log"
    lease = "wal"

    delivered: Callable[[], None] = lambda: None
    """Called when changes have come into the buffers."""
    _pump: Pump | None = None
    _pump_started: float = 0.0
    _failures: int = 0
    """Pumps in a row that have failed soon."""
    _warned: bool = False
    _reasons: dict[int, str] = field(default_factory=dict)
    """Why sources are not captured from the log though that is wanted, as the log has said."""
    _look_within: float = LOOK_INTERVAL

    async def _has_work(self, session: SqlSession) -> bool:
        ((found,),) = await session.fetch("SELECT pgtrickle._wal_in_use()")
        return bool(found)

    async def _work(self, connection: asyncpg.Connection) -> None:
        session = PooledSession(connection)
        try:
            while await self._has_work(session):
                await self._look(session)
                await asyncio.sleep(LOOK_INTERVAL)
        finally:
            await self._stop_pump()

    async def _look(self, session: PooledSession) -> None:
        await session.fetch("SELECT pgtrickle._forget_transitions()")
        sources = [
            _Source(int(oid), mode == "WAL", bool(wanted), obstacle, bool(intact))
            for oid, mode, wanted, obstacle, intact in await session.fetch(_SOURCES)
        ]
        slot = await self._usable_slot(session)
        for source in sources:
            if source.from_log and not source.stays:
                await self._return_to_triggers(session, source)
        coming = [source for source in sources if not source.from_log and source.may_come]
        if coming or any(source.from_log for source in sources):
            await self._go_on(session, coming, has_slot=slot is not None)
        elif slot is not None:
            await self._drop_slot(session, "nothing is captured from the write-ahead log any more")
            await session.fetch("SELECT pgtrickle._drop_publication()")

    async def _usable_slot(self, session: PooledSession) -> str | None:
        """The state of the slot, as PostgreSQL calls it; None if there is none, or none any more."""
        rows = await session.fetch(_SLOT)
        if not rows:
            return None
        status, active, retained, threshold, published = rows[0]
        if (broken := self._broken(str(status), bool(published))) is not None:
            await self._drop_slot(session, broken)
            return None
        await self._warn_of_lag(session, bool(active), int(retained or 0), float(threshold))
        return str(status)

    async def _go_on(self, session: PooledSession, coming: list[_Source], *, has_slot: bool) -> None:
        """See to it that the log is read, and have it take the place of triggers that are waiting for it."""
        for source in coming:
            await session.fetch("SELECT pgtrickle._note_transition($1::bigint::oid)", source.oid)
        reason = None if has_slot else await self._make_slot(session)
        if reason is None:
            reason = await self._keep_pumping(session)
        for source in coming:
            await self._leave_triggers(session, source, reason)

    async def _leave_triggers(self, session: PooledSession, source: _Source, reason: str | None) -> None:
        if reason is None:
            ((reason,),) = await session.fetch("SELECT pgtrickle._begin_wal($1::bigint::oid)", source.oid)
        if reason is None:
            self._reasons.pop(source.oid, None)
            logger.info("captured from the write-ahead log", source=source.oid)
            return
        self._note(source, reason)
        ((given_up,),) = await session.fetch(
            "SELECT pgtrickle._give_up_transition($1::bigint::oid, $2::text)", source.oid, reason
        )
        if given_up:
            logger.warning("not captured from the write-ahead log", source=source.oid, reason=reason)

    async def _return_to_triggers(self, session: PooledSession, source: _Source) -> None:
        ((reason,),) = await session.fetch("SELECT pgtrickle._back_to_triggers($1::bigint::oid)", source.oid)
        if reason is None:
            logger.info("captured by triggers again", source=source.oid, reason=source.obstacle)
        else:
            self._note(source, reason)

    def _note(self, source: _Source, reason: str) -> None:
        if self._reasons.get(source.oid) != reason:
            self._reasons[source.oid] = reason
            logger.info("capture of a source cannot be changed yet", source=source.oid, reason=reason)

    async def _make_slot(self, session: PooledSession) -> str | None:
        """Make publication and slot. Returns why that is not possible now."""
        await self._stop_pump()
        try:
            await session.fetch("SELECT pgtrickle._make_publication()")
            await session.run_script(f"SET statement_timeout = '{SLOT_SECONDS}s'")
            try:
                await session.fetch(
                    "SELECT pg_catalog.pg_create_logical_replication_slot(pgtrickle._wal_slot(), 'pgoutput')"
                )
            finally:
                await session.run_script("SET statement_timeout = 0")
            await session.fetch("SELECT pgtrickle._note_slot()")
        except SqlError as error:
            if session.lost:
                raise
            waits = error.sqlstate == "57014"
            return "PostgreSQL waits for transactions that are under way" if waits else error.message
        logger.info("replication slot made", database=self.pool.database)
        return None

    async def _drop_slot(self, session: PooledSession, why: str) -> None:
        await self._stop_pump()
        drop = (
            "SELECT pg_catalog.pg_drop_replication_slot(s.slot_name) FROM pg_catalog.pg_replication_slots s"
            " WHERE s.slot_name OPERATOR(pg_catalog.=) pgtrickle._wal_slot() AND NOT s.active"
        )
        await session.fetch(drop)
        await session.fetch("SELECT pgtrickle._note_slot()")
        self._failures = 0
        logger.info("replication slot dropped", database=self.pool.database, reason=why)

    async def _keep_pumping(self, session: PooledSession) -> str | None:
        """See to it that the pump runs. Returns why it does not yet."""
        if self._pump is not None and self._pump.streaming:
            if time.monotonic() - self._pump_started > STEADY_SECONDS:
                self._failures = 0
            return None
        failure = None
        if self._pump is None or not self._pump.alive:
            failure = self._pump.failure if self._pump is not None else None
            self._failures += failure is not None
            self._pump_started = time.monotonic()
            loop = asyncio.get_running_loop()
            ((slot,),) = await session.fetch("SELECT pgtrickle._wal_slot()::text")
            self._pump = Pump(
                self.pool.login,
                self.pool.database,
                slot,
                session.process,
                lambda: _tell(loop, self.delivered),
            )
            self._pump.start()
        return failure or "the write-ahead log is not streamed yet"

    async def _stop_pump(self) -> None:
        pump, self._pump = self._pump, None
        if pump is not None:
            pump.stop()
            await asyncio.to_thread(pump.join)

    def _broken(self, status: str, published: bool) -> str | None:
        """Why the slot is of no use any more, None if it is."""
        if status == "lost":
            return "PostgreSQL has removed write-ahead log that it needs"
        if not published:
            return (
                "the publication was dropped or changed"  # and if there is another one, it was not there at all times
            )
        return "it could not be read again and again" if self._failures >= MOST_FAILURES else None

    async def _warn_of_lag(self, session: PooledSession, active: bool, retained: int, threshold: float) -> None:
        """Say once that the slot keeps much of the log."""
        exceeded = retained > threshold * (1 << 20)
        if exceeded and not self._warned:
            logger.warning("replication slot keeps much write-ahead log", bytes=retained, active=active)
            payload = json.dumps({"event": "slot_lag_warning", "retained_wal_bytes": retained})
            await session.fetch("SELECT pg_catalog.pg_notify('pg_trickle_alert', $1::text)", payload)
        self._warned = exceeded


def _tell(loop: asyncio.AbstractEventLoop, delivered: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the server is ending
        loop.call_soon_threadsafe(delivered)


@dataclass(frozen=True, slots=True)
class _Source:
    oid: int
    from_log: bool
    wanted: bool
    obstacle: str | None
    intact: bool

    @property
    def stays(self) -> bool:
        """Whether it goes on to be captured from the log."""
        return self.may_come and self.intact

    @property
    def may_come(self) -> bool:
        """Whether it is to be captured from the log, and can be."""
        return self.wanted and self.obstacle is None
