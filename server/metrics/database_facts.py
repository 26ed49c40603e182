"""What is known of a database: asked of it over the engine's connections, now and then, and with a time limit.

Scrapes never wait for it longer than a moment. What they get is what was last heard, and how old that is.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import structlog

from catalog.install import IS_UNINSTALLED, schema_of
from catalog.ownership import installed_query
from catalog.session import SqlError, Value
from catalog.systems import QUEUES, REGISTERS, STREAM_TABLES
from engine.session.background_worker import INTERRUPTIONS
from engine.session.pool import DatabasePool, PooledSession

log = structlog.get_logger(__name__)

EVERY_SECONDS = 5.0
"""A database is asked no more often than this, however many scrape."""

SHARE = 10.0
"""Nor more often than that it takes one part of so many of a connection's time."""

QUERY_SECONDS = 5
"""PostgreSQL gives up a query of these that takes longer."""

GIVEN_UP_SECONDS = 10.0
"""A database that has not answered all by then is down, as far as metrics go."""

_PREPARE = f"""
SELECT pg_catalog.set_config('statement_timeout', '{QUERY_SECONDS}s', true),
       pg_catalog.set_config('lock_timeout', '100ms', true),
       pg_catalog.set_config('max_parallel_workers_per_gather', '0', true)
"""

_DATABASE = """
SELECT pg_catalog.pg_database_size(pg_catalog.current_database()),
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity a
        WHERE a.datname = pg_catalog.current_database()),
       pg_catalog.current_setting('max_connections')::int
"""

_STREAM_TABLES = """
SELECT s.pgt_id, s.status, s.consecutive_errors,
       pg_catalog.date_part('epoch', s.staleness),
       pgtrickle._lag(s.pgt_id),
       s.stale, s.pgt_schema || '.' || s.pgt_name, s.refresh_mode
FROM pgtrickle.stream_tables_info s
ORDER BY s.pgt_id LIMIT $1::bigint
"""

_STATUSES = "SELECT status, pg_catalog.count(*) FROM pgtrickle.pgt_stream_tables GROUP BY status"

_BUFFERS = """
SELECT stream_table, pg_catalog.sum(pending_rows)::bigint, pg_catalog.sum(buffer_bytes)::bigint
FROM pgtrickle.change_buffer_sizes() GROUP BY stream_table ORDER BY pg_catalog.min(source_oid) LIMIT $1::bigint
"""

_SCHEDULER = """
SELECT h.scheduler_running, w.active_workers, w.max_workers, h.stale_tables
FROM pgtrickle.quick_health h, pgtrickle.worker_pool_status() w
"""

_MIRRORS = "SELECT pg_catalog.count(*) FROM pgtrickle.pgt_mirrors"

_SUBSCRIPTIONS = """
SELECT pg_catalog.count(*), coalesce(pg_catalog.sum(clients), 0)::bigint,
       coalesce(pg_catalog.sum(waiting_bytes), 0)::bigint,
       coalesce(pg_catalog.date_part('epoch', pg_catalog.max(lag)), 0)
FROM pgtrickle.subscription_status()
"""

_HISTORIES = """
SELECT name, changes, pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - held_since), error IS NOT NULL
FROM pgtrickle.history_status() ORDER BY name LIMIT $1::bigint
"""

_PUBLICATIONS = """
SELECT p.publication_id, s.pgt_schema || '.' || s.pgt_name, p.location, p.error IS NOT NULL, u.refreshes,
       greatest(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - u.since), 0)
FROM pgtrickle.pgt_published p JOIN pgtrickle.pgt_definitions s USING (pgt_id)
CROSS JOIN LATERAL pgtrickle._unpublished(p.publication_id) u
ORDER BY p.publication_id LIMIT $1::bigint
"""

_QUEUES = """
SELECT queue_name, depth, coalesce(pg_catalog.date_part('epoch', oldest_msg_age), 0),
       pg_catalog.date_part('epoch', pg_catalog.clock_timestamp() - last_tick_time), last_tick_id, dlq_count
FROM pgque.queue_stats() ORDER BY queue_id LIMIT $1::bigint
"""

_CONSUMERS = """
SELECT queue_name, consumer_name, pg_catalog.date_part('epoch', lag), pending_events
FROM pgque.consumer_stats() ORDER BY queue_name, consumer_name LIMIT $1::bigint
"""

_REGISTERS = """
SELECT r.register, r.high_write, t.n_live_tup
FROM accum_internal._maintained() r
LEFT JOIN pg_catalog.pg_stat_all_tables t
    ON t.schemaname OPERATOR(pg_catalog.=) $2::text
    AND t.relname OPERATOR(pg_catalog.=) (r.register || '_balance_cache_delta')
LIMIT $1::bigint
"""
"""What is pending is in a table of the register's owner, which is not read here: PostgreSQL's statistics are."""


@dataclass(slots=True)
class Facts:
    """What a database said, by the name of what was asked; rows as the queries above have them."""

    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    failed: int = 0
    """Questions that it did not answer."""


@dataclass(slots=True)
class DatabaseFacts:
    """What is known of one database. `most` rows of each kind are asked for, and one to see whether there are more."""

    pool: DatabasePool
    most: int
    facts: Facts = field(default_factory=Facts)
    up: bool = False
    """Whether it has answered when it was last asked."""
    answered_at: float | None = None
    """When, on the monotonic clock."""
    took: float = 0.0
    """Seconds that asking took."""
    _next: float = 0.0
    _asking: asyncio.Task[None] | None = None
    _told: set[str] = field(default_factory=set)
    """Of what the log has said that it is not known."""

    def refresh(self) -> asyncio.Task[None] | None:
        """Have the database asked if it is time to; the task that does, if one is under way."""
        if self._asking is not None and not self._asking.done():
            return self._asking
        if time.monotonic() < self._next:
            return None
        self._asking = asyncio.create_task(self._ask(), name=f"headwater metrics of {self.pool.database}")
        return self._asking

    async def stop(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking}, timeout=1.0)

    async def _ask(self) -> None:
        began = time.monotonic()
        up = False
        try:
            found = await self._within(GIVEN_UP_SECONDS)
            up = True
        except (TimeoutError, *INTERRUPTIONS) as error:
            if self.up:
                log.warning("no metrics of a database", database=self.pool.database, error=str(error) or "no answer")
        else:
            self.facts, self.answered_at = found, time.monotonic()
        finally:
            self.up = up
            self.took = time.monotonic() - began
            self._next = time.monotonic() + max(EVERY_SECONDS, SHARE * self.took if up else 0.0)

    async def _within(self, seconds: float) -> Facts:
        """Ask. A connection that does not answer in time is given up. Raises TimeoutError and SqlError."""
        async with asyncio.timeout(seconds), self.pool.session() as session:
            try:
                return await self._asked(session)
            except asyncio.CancelledError:
                session.terminate()
                raise

    async def _asked(self, session: PooledSession) -> Facts:
        found = Facts()
        await self._question(session, found, "database", _DATABASE)
        most = self.most + 1
        ((streams, queues),) = await session.fetch(
            f"SELECT ({installed_query(STREAM_TABLES)}) AND NOT {IS_UNINSTALLED}, ({installed_query(QUEUES)})"
        )
        if streams:
            await self._question(session, found, "stream_tables", _STREAM_TABLES, most)
            await self._question(session, found, "statuses", _STATUSES)
            await self._question(session, found, "buffers", _BUFFERS, most)
            await self._question(session, found, "scheduler", _SCHEDULER)
            await self._question(session, found, "mirrors", _MIRRORS)
            await self._question(session, found, "subscriptions", _SUBSCRIPTIONS)
            await self._question(session, found, "histories", _HISTORIES, most)
            await self._question(session, found, "publications", _PUBLICATIONS, most)
        if queues:
            await self._question(session, found, "queues", _QUEUES, most)
            await self._question(session, found, "consumers", _CONSUMERS, most)
        if (schema := await schema_of(session, REGISTERS)) is not None:
            await self._question(session, found, "registers", _REGISTERS, most, schema)
        return found

    async def _question(self, session: PooledSession, found: Facts, name: str, query: str, *values: Value) -> None:
        """Ask one thing; what fails, as by its time limit, is not known, and the others are."""
        try:
            async with session.sight():
                await session.fetch(_PREPARE)
                found.rows[name] = await session.fetch(query, *values)
        except SqlError as error:
            if error.is_of_connection or session.lost:
                raise
            found.failed += 1
            if name not in self._told:
                self._told.add(name)
                log.warning("not known for metrics", database=self.pool.database, what=name, error=error.message)
