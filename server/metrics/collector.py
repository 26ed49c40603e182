"""Puts together what a scrape gets: what the server itself counts, and what its databases were last heard to say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from engine.publish.tally import PublicationKey
from engine.session.pool import DatabasePool
from server import __version__
from server.metrics.database_facts import DatabaseFacts
from server.metrics.described import DESCRIBED
from server.metrics.families import Families
from server.protocol.traffic import SQLSTATE_CLASSES
from server.relay.figures import STATES, Clients, Figures

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 1.0
"""So long a scrape waits for databases that are being asked; then it gets what they said before."""

OTHER = "other"
"""The label of what has no series of its own."""


@dataclass(slots=True)
class Collector:
    """`most` databases, and of all databases together `most` objects of each kind, have series of their own."""

    clients: Clients
    pools: Callable[[], Mapping[str, DatabasePool]]
    embedded_alive: Callable[[], bool] | None
    most: int
    facts: dict[str, DatabaseFacts] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    _figures: Figures = field(default_factory=Figures)
    """As they were when it was last asked."""
    _told: set[str] = field(default_factory=set)

    def collect(self, *, up: bool, ready: bool) -> Families:
        """The metrics of now. `up`: PostgreSQL answers; `ready`: clients may come."""
        found = Families(DESCRIBED)
        found.add("headwater_up", up)
        found.add("headwater_ready", ready)
        self._server(found)
        self._relay(found)
        self._spark(found)
        names = self._databases(found)
        self._refreshes(found, names.stream_tables)
        self._published(found, names.publications)
        return found

    async def ask(self) -> None:
        """Have the databases asked that it is time for, and wait a moment for those; see what has been counted."""
        self._figures = await self.clients.figures()
        pools = self.pools()
        for name in [name for name, facts in self.facts.items() if pools.get(name) is not facts.pool]:
            await self.facts.pop(name).stop()
        for name in sorted(pools)[: self.most]:
            if name not in self.facts:
                self.facts[name] = DatabaseFacts(pools[name], self.most)
        asking = [task for facts in self.facts.values() if (task := facts.refresh()) is not None]
        if asking:
            await asyncio.wait(asking, timeout=PATIENCE_SECONDS)

    async def stop(self) -> None:
        """Ask no more."""
        for facts in self.facts.values():
            await facts.stop()

    # -- the server ------------------------------------------------------------------------------------------------

    def _server(self, found: Families) -> None:
        found.add("headwater_info", 1, __version__)
        found.add("headwater_uptime_seconds", time.monotonic() - self.began)
        if self.embedded_alive is not None:
            found.add("headwater_embedded_postgres_up", self.embedded_alive())

    def _relay(self, found: Families) -> None:
        counts = self._figures.relay
        for state in STATES:
            found.add("headwater_connections", self._figures.connections[state], state)
        found.add("headwater_connections_limit", self.clients.max_connections)
        found.add("headwater_connections_opened", counts.connections)
        found.add("headwater_statements", counts.statements)
        found.add("headwater_received_bytes", counts.from_client, "client")
        found.add("headwater_received_bytes", counts.from_postgres, "postgres")
        for sqlstate_class in sorted(SQLSTATE_CLASSES | {OTHER}):  # from zero on: else the first one is no increase
            found.add("headwater_errors", counts.errors[sqlstate_class], sqlstate_class)
        for name, durations in (
            ("headwater_statement_duration_seconds", counts.waited),
            ("headwater_relay_added_seconds", counts.added),
        ):
            found.histogram(name, durations.cumulative(), durations.seconds)

    def _spark(self, found: Families) -> None:
        load = self._figures.spark
        if load is not None:
            found.add("headwater_spark_up", load.up)
            found.add("headwater_spark_jobs_running", load.running)
            for status in ("completed", "failed", "interrupted", "lost"):
                found.add("headwater_spark_jobs", load.ended.get(status, 0), status)

    # -- databases -------------------------------------------------------------------------------------------------

    def _databases(self, found: Families) -> _Names:
        """What databases have said; the names of what has series of its own."""
        shown = _Budget(self.most)
        names = _Names()
        for database, facts in sorted(self.facts.items()):
            busy_and_idle, idle, limit = facts.pool.connections
            found.add("headwater_engine_pool_connections", busy_and_idle - idle, database, "busy")
            found.add("headwater_engine_pool_connections", idle, database, "idle")
            found.add("headwater_engine_pool_connections_limit", limit, database)
            found.add("headwater_database_up", facts.up, database)
            found.add("headwater_database_asking_seconds", facts.took, database)
            found.add("headwater_database_unanswered", facts.facts.failed, database)
            if facts.answered_at is not None:
                found.add("headwater_database_age_seconds", time.monotonic() - facts.answered_at, database)
                _told(found, shown, names, database, facts.facts.rows)
        shown.left_out["databases"] = max(len(self.pools()) - self.most, 0)
        for kind, number in shown.left_out.items():
            found.add("headwater_left_out", number, kind)
            if number and kind not in self._told:
                self._told.add(kind)
                log.warning("more objects than --metrics-objects: some have no metrics", kind=kind, most=self.most)
        return names

    def _refreshes(self, found: Families, names: Mapping[tuple[str, int], str]) -> None:
        for (database, pgt_id, action, status), number in self._figures.tally.ended.items():
            shown = database if database in self.facts else OTHER
            name = names.get((database, pgt_id), OTHER)
            found.count("headwater_stream_table_refreshes", number, shown, name, action.lower(), status.lower())
        for (database, pgt_id, change), number in self._figures.tally.rows.items():
            shown = database if database in self.facts else OTHER
            found.count("headwater_stream_table_rows", number, shown, names.get((database, pgt_id), OTHER), change)
        for (database, reason), number in self._figures.tally.fallbacks.items():
            found.count("headwater_refresh_fallbacks", number, database if database in self.facts else OTHER, reason)
        for (database, action, executor), durations in self._figures.tally.durations.items():
            if database in self.facts:
                labels = (database, action.lower(), executor)
                found.histogram(
                    "headwater_refresh_duration_seconds", durations.cumulative(), durations.seconds, *labels
                )

    def _published(self, found: Families, names: Mapping[PublicationKey, tuple[str, str]]) -> None:
        """What this server has published; of what it knows from zero on, else the first one would be no increase."""
        counted = self._figures.published
        for key in names.keys() | counted.commits.keys() | counted.failures.keys():
            labels = (key[0] if key[0] in self.facts else OTHER, *names.get(key, (OTHER, OTHER)))
            found.count("headwater_publication_commits", counted.commits[key], *labels)
            found.count("headwater_publication_rows", counted.written[key], *labels, "written")
            found.count("headwater_publication_rows", counted.removed[key], *labels, "removed")
            found.count("headwater_publication_failures", counted.failures[key], *labels)


@dataclass(slots=True)
class _Names:
    """What has series of its own, by database and number."""

    stream_tables: dict[tuple[str, int], str] = field(default_factory=dict)
    publications: dict[PublicationKey, tuple[str, str]] = field(default_factory=dict)
    """The stream table, and the location."""


@dataclass(slots=True)
class _Budget:
    """How many objects of each kind may still have series, and how many have none."""

    most: int
    used: dict[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    def take(self, kind: str, rows: Sequence[tuple[Any, ...]], total: int | None = None) -> Sequence[tuple[Any, ...]]:
        """The rows of a database that have series. There are `total`, if that is known."""
        used = self.used.get(kind, 0)
        taken = rows[: max(self.most - used, 0)]
        self.used[kind] = used + len(taken)
        total = len(rows) if total is None else max(total, len(rows))
        self.left_out[kind] = self.left_out.get(kind, 0) + total - len(taken)
        return taken


def _told(
    found: Families, shown: _Budget, names: _Names, database: str, rows: Mapping[str, list[tuple[Any, ...]]]
) -> None:
    for size, sessions, _ in rows.get("database", ()):
        found.add("headwater_database_size_bytes", size, database)
        found.add("headwater_database_sessions", sessions, database)
    for running, active, limit, stale in rows.get("scheduler", ()):
        found.add("headwater_scheduler_running", running, database)
        found.add("headwater_workers_active", active, database)
        found.add("headwater_workers_limit", limit, database)
        found.add("headwater_stream_tables_stale", stale, database)
    for (number,) in rows.get("mirrors", ()):
        found.add("headwater_mirrors", number, database)
    for number, clients, waiting, lag in rows.get("subscriptions", ()):
        found.add("headwater_subscriptions", number, database)
        found.add("headwater_subscription_clients", clients, database)
        found.add("headwater_subscription_waiting_bytes", waiting, database)
        found.add("headwater_subscription_lag_seconds", lag, database)
    _queues(found, shown, database, rows)
    _registers(found, shown, database, rows)
    _stream_tables(found, shown, names, database, rows)
    _publications(found, shown, names, database, rows)


def _stream_tables(
    found: Families, shown: _Budget, names: _Names, database: str, rows: Mapping[str, list[tuple[Any, ...]]]
) -> None:
    statuses = dict(rows.get("statuses", ()))
    for status in ("INITIALIZING", "ACTIVE", "SUSPENDED", "ERROR"):
        found.add("headwater_stream_tables", statuses.get(status, 0), database, status.lower())
    buffers = {name: (pending, size) for name, pending, size in rows.get("buffers", ())}
    known = rows.get("stream_tables", ())
    for row in shown.take("stream tables", known, sum(statuses.values()) if known else 0):
        pgt_id, status, errors, staleness, lag, stale, name, mode = row
        names.stream_tables[database, pgt_id] = name
        labels = (database, name)
        pending, size = buffers.get(name, (0 if mode in ("FULL", "IMMEDIATE") else None, None))
        found.add("headwater_stream_table_lag_seconds", lag, *labels)
        found.add("headwater_stream_table_lag_rows", pending, *labels)
        found.add("headwater_stream_table_buffer_bytes", size, *labels)
        found.add("headwater_stream_table_staleness_seconds", staleness, *labels)
        found.add("headwater_stream_table_stale", stale, *labels)
        found.add("headwater_stream_table_suspended", status == "SUSPENDED", *labels)
        found.add("headwater_stream_table_consecutive_errors", errors, *labels)
    for name, changes, held, _ in shown.take("histories", rows.get("histories", ())):
        found.add("headwater_history_changes", changes, database, name)
        found.add("headwater_history_held_seconds", held, database, name)


def _publications(
    found: Families, shown: _Budget, names: _Names, database: str, rows: Mapping[str, list[tuple[Any, ...]]]
) -> None:
    for number, name, location, failing, refreshes, lag in shown.take("publications", rows.get("publications", ())):
        labels = (database, name, location)
        names.publications[database, number] = (name, location)
        found.add("headwater_publication_lag_seconds", lag, *labels)
        found.add("headwater_publication_unpublished_refreshes", refreshes, *labels)
        found.add("headwater_publication_failing", failing, *labels)


def _queues(found: Families, shown: _Budget, database: str, rows: Mapping[str, list[tuple[Any, ...]]]) -> None:
    for queue, depth, age, tick_age, tick, dead in shown.take("queues", rows.get("queues", ())):
        labels = (database, queue)
        found.add("headwater_queue_depth", depth, *labels)
        found.add("headwater_queue_age_seconds", age, *labels)
        found.add("headwater_queue_tick_age_seconds", tick_age, *labels)
        found.add("headwater_queue_ticks", tick, *labels)
        found.add("headwater_queue_dead_letters", dead, *labels)
    for queue, consumer, lag, pending in shown.take("consumers", rows.get("consumers", ())):
        found.add("headwater_consumer_lag_seconds", lag, database, queue, consumer)
        found.add("headwater_consumer_pending_events", pending, database, queue, consumer)


def _registers(found: Families, shown: _Budget, database: str, rows: Mapping[str, list[tuple[Any, ...]]]) -> None:
    if "registers" in rows:
        found.add("headwater_registers", len(rows["registers"]), database)
    for register, high_write, pending in shown.take("registers", rows.get("registers", ())):
        if high_write:
            found.add("headwater_register_pending_rows", pending, database, register)
