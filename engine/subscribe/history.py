"""RETAIN HISTORY: changes are kept for a period, with the timestamps at which they became visible.

What is retained stands in `pgtrickle.pgt_history`. Of all servers one keeps it going, elected (`leader_election`): it
gives a timestamp to what was committed, so that a subscription can begin at any time in the period, lets what is older
go, and captures anew what could not be trusted any more. Where there are subscriptions these note their timestamps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import asyncpg
import structlog

from catalog.session import SqlError, SqlSession
from engine.capture.lock_retry import with_lock_retry
from engine.load_generators import find_relation
from engine.session.backoff import Backoff
from engine.session.leader_election import Candidate
from engine.session.pool import PooledSession

logger = structlog.get_logger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks for changes that did not come through this server, and for what has become too old."""

REST = 0.1
"""Least seconds between two timestamps given here: what a storm of commits is told apart by."""

KINDS = {"TABLE": "rpvmf", "VIEW": "v", "SOURCE": "r", "MATERIALIZED VIEW": "mr"}
"""What a relation that is called so can be in pg_class: a stream table may be called a materialized view."""


async def retain_history(
    session: SqlSession,
    name: tuple[str, ...],
    period: str | None,
    search_path: str,
    *,
    kind: str = "TABLE",
    guarded: bool = False,
) -> None:
    """Retain the history of a relation of the session's user, or, without a period, no longer.

    Raises SqlError 42P01, 42809 if it is not of this kind, 42501, 0A000, 22007, 22023, 55P03.
    """
    written = ".".join(name)
    relid = await find_relation(session, name, search_path)
    if relid is None:
        if not guarded:
            raise SqlError("42P01", f'relation "{written}" does not exist')
        await session.fetch(
            "SELECT pgtrickle._notice('NOTICE', $1::text, NULL)::text", f'relation "{written}" does not exist, skipping'
        )
        return
    ((relkind, is_source, is_stream_table),) = await session.fetch(
        "SELECT c.relkind::text, pgtrickle._is_source(c.oid),"
        " EXISTS (SELECT FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_relid = c.oid)"
        " FROM pg_catalog.pg_class c WHERE c.oid = $1::bigint::oid",
        relid,
    )
    is_it = {"SOURCE": is_source, "MATERIALIZED VIEW": is_stream_table or relkind == "m"}.get(kind, True)
    if relkind not in KINDS[kind] or not is_it:
        raise SqlError("42809", f'"{written}" is not a {kind.lower()}')
    await with_lock_retry(
        session, "SELECT pgtrickle._retain_history($1::bigint::oid, $2::text::interval)::text", relid, period
    )


@dataclass(frozen=True, slots=True)
class Past:
    """Where a subscription begins that asks for a time in the past. `snapshot` is a `pg_snapshot` as text."""

    timestamp: int
    snapshot: str


async def begin_at(session: SqlSession, subscription_id: int, as_of: int, *, at_least: bool) -> Past | None:
    """Find the snapshot of a timestamp, and keep the changes since then in place until the transaction ends.

    To be called first of all in a transaction that sees the subscription. None where nothing is held and `at_least`
    allows to begin now. Raises SqlError 22023 if the timestamp is not held, or not any longer.
    """
    ((timestamp, snapshot),) = await session.fetch(
        "SELECT mz_timestamp, snapshot FROM pgtrickle._as_of($1::bigint, $2::bigint, $3::boolean)",
        subscription_id,
        as_of,
        at_least,
    )
    return None if timestamp is None or snapshot is None else Past(int(timestamp), str(snapshot))


@dataclass(slots=True)
class HistoryClock(Candidate):
    """Keeps the history of one database going while it is elected."""

    title = "clock of history"
    lease = "history"

    clock: Callable[[], float] = time.monotonic
    ticking: Callable[[], bool] = lambda: False
    """Whether subscriptions of this server take the timestamps: clients shall not be told others than history holds."""
    _position: int | None = None
    """Of the database's changes when the last timestamp was given, if nobody was just changing anything."""
    _advanced_at: float = 0.0
    _troubles: Backoff = field(default_factory=Backoff)

    def committed(self) -> None:
        """A transaction that changed data has committed, or one that retains a history."""
        if self.leading or self.expected:
            self._woken.set()

    async def _has_work(self, session: SqlSession) -> bool:
        ((found,),) = await session.fetch("SELECT pgtrickle._retains_history()")
        return bool(found)

    async def _work(self, connection: asyncpg.Connection) -> None:
        """Give timestamps until no history is retained."""
        session = PooledSession(connection)
        self._position, self._advanced_at = None, self.clock() - LOOK_INTERVAL
        while await self._has_work(session):
            self._woken.clear()
            ((position, settled),) = await session.fetch(
                "SELECT change_position, settled FROM pgtrickle._change_position()"
            )
            ((begins,),) = await session.fetch(
                "SELECT EXISTS (SELECT FROM pgtrickle.pgt_history h WHERE h.held_from IS NULL)"
            )
            if self.ticking() and not begins:
                self._position = None
            elif position != self._position or begins:
                await note_now(session)
                self._position = position if settled else None
            if begins or self.clock() - self._advanced_at >= LOOK_INTERVAL:
                self._advanced_at = self.clock()
                await self._advance(session)
            await asyncio.sleep(REST)
            await self._woken.within(LOOK_INTERVAL - REST if settled else REST)
        await self._advance(session)

    async def _advance(self, session: PooledSession) -> None:
        """Let go of what is too old, and capture anew what cannot be trusted. Raises SqlError."""
        found = await session.fetch("SELECT relid, is_broken FROM pgtrickle._advance_history()")
        broken = [int(relid) for relid, is_broken in found if is_broken]
        self._troubles.keep(map(str, broken))
        for relid in broken:
            if self._troubles.waits(str(relid), self.clock()):
                continue
            try:
                await with_lock_retry(
                    session, "SELECT pgtrickle._follow_for_history($1::bigint::oid)::text", relid, patience=5.0
                )
            except SqlError as error:
                if error.is_of_connection:
                    raise
                self._troubles.note(str(relid), self.clock())
                logger.warning("history is not retained", relation=relid, sqlstate=error.sqlstate, error=error.message)
                await session.fetch(
                    "SELECT pgtrickle._fail_history($1::bigint::oid, $2::text)::text", relid, error.message
                )
            else:
                self._troubles.over(str(relid))
        if len(broken) < len(found):
            await session.fetch("SELECT pgtrickle._cleanup_buffers()")


async def note_now(session: PooledSession) -> int:
    """Give what is committed now a timestamp, and note it; returns it."""
    async with session.transaction("repeatable_read"):
        # A lock is no reason for a snapshot, which the transaction gets with the first query after it.
        await session.execute("LOCK TABLE pgtrickle.pgt_timeline_lock IN EXCLUSIVE MODE")
        ((timestamp, snapshot),) = await session.fetch(
            "SELECT mz_timestamp, snapshot FROM pgtrickle._tick(NULL::bigint)"
        )
    await session.fetch("SELECT pgtrickle._note_tick($1::bigint, $2::text)::text", timestamp, snapshot)
    return int(timestamp)
