"""`headwater status`: the running server, its databases, their schedulers, and what each of them keeps going.

It looks at PostgreSQL directly, not through the relay, so that looking installs nothing in a database
that has no stream tables.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.rows import class_row, tuple_row
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from catalog.install import IS_UNINSTALLED
from catalog.ownership import installed_query
from catalog.systems import QUEUES, STREAM_TABLES
from catalog.values import RefreshMode, RefreshStatus, Status
from server.commands.psql import reachable
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory, Running, StartupError
from server.postgres.url import PostgresUrl, take_nothing_over

Row = TypeVar("Row")

DATABASES = """
SELECT datname::text FROM pg_catalog.pg_database
WHERE datallowconn AND NOT datistemplate AND pg_catalog.has_database_privilege(oid, 'CONNECT')
ORDER BY datname
"""

_OVERVIEW = f"""
SELECT pg_catalog.pg_size_pretty(pg_catalog.pg_database_size(pg_catalog.current_database())) AS size,
       ({installed_query(STREAM_TABLES)}) AS installed,
       ({installed_query(QUEUES)}) AS has_queues,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_class c
        WHERE c.relkind = 'p' AND c.relname LIKE '%\\_movements' AND EXISTS (
            SELECT FROM pg_catalog.pg_namespace n WHERE n.oid = c.relnamespace
            AND pg_catalog.obj_description(n.oid, 'pg_namespace') LIKE 'Headwater registers, %')) AS registers,
       pg_catalog.to_regclass('pgtrickle.pgt_load_generators') IS NOT NULL AS has_subscriptions,
       pg_catalog.to_regclass('pgtrickle.pgt_leases') IS NOT NULL AS has_leases,
       pg_catalog.to_regprocedure('pgtrickle.xmin_holders()') IS NOT NULL AS has_monitoring,
       pg_catalog.to_regclass('pgtrickle.pgt_stat_progress_refresh') IS NOT NULL AS has_progress,
       pg_catalog.to_regclass('pgtrickle.pgt_publications') IS NOT NULL AS has_publications,
       {IS_UNINSTALLED} AS uninstalled
"""
"""A user may have made schemas that look like ours: nothing but PostgreSQL's own catalog is read here."""

_LEASES = """
SELECT l.name, l.pid,
       CASE WHEN a.state LIKE 'idle%' THEN greatest(pg_catalog.clock_timestamp() - a.state_change, '0') ELSE '0' END
FROM pgtrickle.pgt_leases l
JOIN pg_catalog.pg_stat_activity a
  ON a.pid = l.pid AND a.usesysid = l.role AND coalesce(a.backend_start = l.backend_start, true)
WHERE a.datname = pg_catalog.current_database()
"""
"""What is done in the database by the one server that is elected for it, in which session, and when that last did."""

_HOLDING = """
SELECT pg_catalog.concat(
           CASE kind WHEN 'prepared transaction'
                     THEN pg_catalog.format('prepared transaction %L of role "%s"', name, role)
                     WHEN 'replication slot' THEN pg_catalog.format('replication slot "%s"', name)
                     ELSE pg_catalog.format('%s%s of role "%s" (%s)', CASE kind WHEN 'standby' THEN 'standby, ' END,
                                            'process ' || pid, role, name) END,
           ' keeps what ', age, ' transactions have replaced or deleted',
           CASE WHEN of_catalogs THEN ' in the system catalogs' END, ' (xmin)',
           ', in a transaction since ' || pg_catalog.date_trunc('second', since))
FROM pgtrickle.xmin_holders()
WHERE since IS NULL OR pg_catalog.now() - since > '5 minutes'
ORDER BY age DESC LIMIT 3
"""
"""Who has PostgreSQL keep old rows for longer than refreshes take: tables that change often grow meanwhile."""

HANGS_AFTER = 15.0
"""Seconds after which whoever holds a lease and has done nothing hangs, and another server takes over."""

_OWN_TABLES = """
SELECT pg_catalog.pg_size_pretty(coalesce(pg_catalog.sum(total_bytes), 0)) AS size,
       coalesce(pg_catalog.sum(live_rows), 0)::bigint AS live, coalesce(pg_catalog.sum(dead_rows), 0)::bigint AS dead,
       (SELECT pg_catalog.format('%s (%s, %s dead)', m.table_name, pg_catalog.pg_size_pretty(m.total_bytes),
                                 m.dead_rows)
        FROM pgtrickle.engine_tables() m WHERE m.total_bytes IS NOT NULL ORDER BY m.total_bytes DESC LIMIT 1) AS largest
FROM pgtrickle.engine_tables()
"""

_QUEUES = """
SELECT (SELECT pg_catalog.count(*) FROM pgque.queue), clock_stopped, ticker_job_id IS NOT NULL, tick_period_ms
FROM pgque.config
"""

_STREAM_TABLES = """
SELECT s.pgt_schema || '.' || s.pgt_name AS name, s.status, s.refresh_mode, s.requested_mode, s.schedule,
       s.is_populated, s.consecutive_errors, pg_catalog.now() - s.data_timestamp AS staleness,
       h.action, h.executor, h.status AS refresh_status, h.error_message,
       pg_catalog.date_part('epoch', coalesce(
           (h.row->>'last_end_time')::timestamptz - (h.row->>'last_start_time')::timestamptz,
           h.end_time - h.start_time)) * 1000 AS milliseconds
FROM pgtrickle.pgt_stream_tables s
LEFT JOIN LATERAL (
    SELECT h.*, pg_catalog.to_jsonb(h) AS row FROM pgtrickle.pgt_refresh_history h
    WHERE h.pgt_id = s.pgt_id ORDER BY h.refresh_id DESC LIMIT 1
) h ON true
ORDER BY s.pgt_schema, s.pgt_name
"""
"""A catalog of an earlier version has no `last_…` columns: they are read from the row as JSON."""

_UNDER_WAY = """
SELECT pgt_schema || '.' || pgt_name AS name, pid, coalesce(action, '') AS action, phase, initial,
       pg_catalog.clock_timestamp() - transaction_start AS since,
       coalesce(wait_event_type || ': ' || wait_event, '') AS waits_for, source_rows, rows_copied,
       pg_catalog.pg_size_pretty(table_bytes) AS table_size
FROM pgtrickle.pgt_stat_progress_refresh ORDER BY since DESC NULLS LAST, pid
"""

_SUBSCRIPTIONS = """
SELECT reads, subscriber, started_at, clients, pg_catalog.pg_size_pretty(waiting_bytes) AS waiting, lag
FROM pgtrickle.subscription_status()
"""

_SUBSCRIPTIONS_OF_EARLIER_VERSIONS = """
SELECT (SELECT pg_catalog.string_agg(DISTINCT n.nspname || '.' || c.relname, ', ')
        FROM pgtrickle.pgt_subscription_sources u
        JOIN pg_catalog.pg_class c ON c.oid = u.source_relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        WHERE u.subscription_id = s.subscription_id) AS reads,
       a.rolname::text AS subscriber, s.started_at, NULL::int AS clients, NULL::text AS waiting, NULL::interval AS lag
FROM pgtrickle.pgt_subscriptions s LEFT JOIN pg_catalog.pg_roles a ON a.oid = s.subscriber
WHERE s.server > 0
ORDER BY s.subscription_id
"""
"""A subscription is shown once, however many clients follow it. Those below 0 keep history."""

_SOURCES = """
SELECT n.nspname || '.' || c.relname AS name, g.tick_interval, g.last_value, g.last_tick_at, g.error
FROM pgtrickle.pgt_load_generators g
JOIN pg_catalog.pg_class c ON c.oid = g.source_relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
ORDER BY n.nspname, c.relname
"""

_PUBLICATIONS = """
SELECT pgt_schema || '.' || pgt_name AS name, location, state, version, unpublished_refreshes AS unpublished, lag,
       last_error AS error
FROM pgtrickle.pgt_publications
"""

_FAILED_REQUESTS = """
SELECT kind || ': ' || coalesce(error_state || ' ', '') || error FROM pgtrickle.pgt_request_errors
ORDER BY request_id DESC LIMIT 5
"""


@dataclass(frozen=True, slots=True)
class _Overview:
    size: str
    installed: bool
    has_queues: bool
    registers: int
    has_subscriptions: bool
    """Whether the catalog is new enough for subscriptions and sources."""
    has_leases: bool
    has_monitoring: bool
    """Whether it says what subscriptions and its own tables take, and who keeps old rows."""
    has_progress: bool
    """Whether it shows refreshes under way."""
    has_publications: bool
    uninstalled: bool
    """Whether stream tables have been dropped, with all that tells of them."""


@dataclass(frozen=True, slots=True)
class _Lease:
    process: int
    idle_seconds: float

    def __str__(self) -> str:
        """
        >>> str(_Lease(4711, 0.42)), str(_Lease(4711, 99.5))
        ('backend 4711, 0.4 s ago', '[red]backend 4711 hangs[/], 99.5 s ago')
        """
        backend = f"backend {self.process}"
        if self.idle_seconds > HANGS_AFTER:
            backend = f"[red]{backend} hangs[/]"
        return f"{backend}, {self.idle_seconds:.1f} s ago"


@dataclass(frozen=True, slots=True)
class _Queues:
    """The queues of a database, and how they are ticked."""

    number: int
    stopped: bool
    by_cron: bool
    period: int


@dataclass(frozen=True, slots=True)
class _StreamTable:
    name: str
    status: str
    refresh_mode: str
    requested_mode: str
    schedule: str | None
    is_populated: bool
    consecutive_errors: int
    staleness: timedelta | None
    action: str | None
    executor: str | None
    refresh_status: str | None
    error_message: str | None
    milliseconds: float | None


@dataclass(frozen=True, slots=True)
class _UnderWay:
    """A refresh that is not over."""

    name: str
    pid: int
    action: str
    phase: str
    initial: bool
    since: timedelta | None
    waits_for: str
    source_rows: int | None
    rows_copied: int | None
    table_size: str | None


@dataclass(frozen=True, slots=True)
class _Subscription:
    reads: str | None
    subscriber: str | None
    started_at: datetime
    clients: int | None
    waiting: str | None
    """Bytes."""
    lag: timedelta | None


@dataclass(frozen=True, slots=True)
class _OwnTables:
    """What the engine's own tables take in a database."""

    size: str
    live: int
    dead: int
    largest: str | None


@dataclass(frozen=True, slots=True)
class _Source:
    name: str
    tick_interval: timedelta
    last_value: int
    last_tick_at: datetime | None
    error: str | None


@dataclass(frozen=True, slots=True)
class _Publication:
    name: str
    location: str
    state: str
    version: int | None
    unpublished: int | None
    """Refreshes; None where none are kept for it."""
    lag: timedelta
    error: str | None


@dataclass(slots=True)
class _Database:
    name: str
    overview: _Overview
    leases: dict[str, _Lease] = field(default_factory=dict)
    """The processes of PostgreSQL that work for elected servers, by what for."""
    queues: _Queues | None = None
    stream_tables: list[_StreamTable] = field(default_factory=list)
    under_way: list[_UnderWay] = field(default_factory=list)
    subscriptions: list[_Subscription] = field(default_factory=list)
    sources: list[_Source] = field(default_factory=list)
    publications: list[_Publication] = field(default_factory=list)
    failed_requests: list[str] = field(default_factory=list)
    own_tables: _OwnTables | None = None
    holding: list[str] = field(default_factory=list)
    """The transactions and slots for which PostgreSQL keeps old rows."""


def show(running: Running, data: DataDirectory, postgres: PostgresUrl | None, console: Console) -> None:
    """Print the status. Raises StartupError if the PostgreSQL behind the server cannot be asked."""
    try:
        databases = list(_databases(running, data, postgres))
    except psycopg.Error as error:
        raise StartupError(
            f"could not ask the PostgreSQL behind the server: {' '.join(str(error).split())}",
            "Give its password in PGPASSWORD or PGPASSFILE, or the same --postgres as to the server.",
        ) from error
    console.print(_server_table(running, data))
    console.print(_database_table(databases))
    if any(database.stream_tables for database in databases):
        console.print(_stream_table_table(databases))
    if any(database.under_way for database in databases):
        console.print(_under_way_table(databases))
    if any(database.own_tables for database in databases):
        console.print(_own_tables_table(databases))
    if any(database.subscriptions for database in databases):
        console.print(_subscription_table(databases))
    if any(database.sources for database in databases):
        console.print(_source_table(databases))
    if any(database.publications for database in databases):
        console.print(_publication_table(databases))
    for line in _errors(databases):
        console.print(line, style="red", markup=False, highlight=False)


def _databases(running: Running, data: DataDirectory, postgres: PostgresUrl | None) -> Iterator[_Database]:
    def conninfo(database: str) -> str:
        if running.postgres == "embedded":
            return make_conninfo(
                "",
                host=str((data.path / "socket").resolve()),
                port=EmbeddedPostgres.port,
                user=running.user,
                passfile=str(data.passfile),
                dbname=database,
            )
        return (postgres or PostgresUrl.parse(running.postgres)).conninfo(database)

    def connect(database: str) -> psycopg.Connection[tuple[object, ...]]:
        connection = psycopg.connect(
            conninfo(database),
            autocommit=True,
            connect_timeout=10,
            client_encoding="UTF8",  # a database in SQL_ASCII would have us read bytes
            application_name="headwater status",
        )
        take_nothing_over(connection)
        return connection

    with closing(connect(running.database)) as connection:
        names = [str(name) for (name,) in connection.execute(DATABASES)]
    for name in names:
        with closing(connect(name)) as connection:
            yield _database(connection, name)


def _database(connection: psycopg.Connection[tuple[object, ...]], name: str) -> _Database:
    """What one database says of itself; what its catalog is too old for is left out."""
    (overview,) = _fetch(connection, _Overview, _OVERVIEW)
    found = _Database(name, overview)
    if overview.has_queues and (row := connection.execute(_QUEUES).fetchone()) is not None:
        found.queues = _Queues(*row)  # type: ignore[arg-type]
    if not overview.installed:
        return found
    if overview.has_leases:
        found.leases = _leases(connection)
    if overview.uninstalled:
        return found
    found.stream_tables = _fetch(connection, _StreamTable, _STREAM_TABLES)
    found.failed_requests = [str(text) for (text,) in connection.execute(_FAILED_REQUESTS)]
    if overview.has_progress:
        found.under_way = _fetch(connection, _UnderWay, _UNDER_WAY)
    if overview.has_monitoring:
        found.holding = [str(text) for (text,) in connection.execute(_HOLDING)]
        (found.own_tables,) = _fetch(connection, _OwnTables, _OWN_TABLES)
    if overview.has_subscriptions:
        subscriptions = _SUBSCRIPTIONS if overview.has_monitoring else _SUBSCRIPTIONS_OF_EARLIER_VERSIONS
        found.subscriptions = _fetch(connection, _Subscription, subscriptions)
        found.sources = _fetch(connection, _Source, _SOURCES)
    if overview.has_publications:
        found.publications = _fetch(connection, _Publication, _PUBLICATIONS)
    return found


def _leases(connection: psycopg.Connection[tuple[object, ...]]) -> dict[str, _Lease]:
    with connection.cursor(row_factory=tuple_row) as cursor:
        return {
            str(name): _Lease(int(process), idle.total_seconds()) for name, process, idle in cursor.execute(_LEASES)
        }


def _fetch(connection: psycopg.Connection[tuple[object, ...]], kind: type[Row], query: str) -> list[Row]:
    with connection.cursor(row_factory=class_row(kind)) as cursor:
        return cursor.execute(query.encode()).fetchall()


def _server_table(running: Running, data: DataDirectory) -> Table:
    table = Table(title="headwater " + running.version, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    since = datetime.fromisoformat(running.started_at).astimezone()
    tls = " (TLS)" if running.tls else ""
    table.add_row("listens on", escape(f"{running.host} port {running.port}{tls}"))
    table.add_row("answers", _answer(running))
    table.add_row("process", f"{running.pid}, since {since:%Y-%m-%d %H:%M:%S}")
    table.add_row("PostgreSQL", escape(running.postgres))
    table.add_row("Spark", escape(running.spark))
    table.add_row("data", escape(str(data.path)))
    return table


def _answer(running: Running) -> str:
    """Whether the relay lets clients through to PostgreSQL: a login without a password gets that far."""
    began = time.monotonic()
    try:
        psycopg.connect(
            host=reachable(running.host),
            port=running.port,
            user=running.user,
            dbname=running.database,
            connect_timeout=5,
            passfile="/nonexistent",
        ).close()
    except psycopg.OperationalError as error:
        message = " ".join(str(error).split())
        if "password" not in message and "authentication" not in message:
            return f"[red]no: {escape(message)}[/]"
    return f"yes, in {(time.monotonic() - began) * 1000:.0f} ms"


def _database_table(databases: list[_Database]) -> Table:
    from engine.queues import ticker
    from engine.registers import maintenance
    from engine.scheduling import scheduler

    table = Table(title="Databases", title_justify="left")
    for heading in ("database", "size", "stream tables", "scheduler", "queues", "clock", "registers"):
        table.add_column(heading)
    for database in databases:
        overview = database.overview
        backend = database.leases.get(scheduler.LEASE)
        table.add_row(
            escape(database.name),
            overview.size,
            _stream_tables(database),
            ("" if not overview.installed else f"runs ({backend})" if backend else "none"),
            str(database.queues.number) if database.queues else "",
            _clock(database.queues, database.leases.get(ticker.LEASE)),
            _registers(overview, database.leases.get(maintenance.LEASE)),
        )
    return table


def _stream_tables(database: _Database) -> str:
    if database.overview.installed and database.overview.uninstalled:
        return "uninstalled"
    return str(len(database.stream_tables)) if database.overview.installed else "not used yet"


def _registers(overview: _Overview, worker: _Lease | None) -> str:
    if not overview.registers:
        return ""
    return f"{overview.registers} (merged by {worker})" if worker else str(overview.registers)


def _clock(queues: _Queues | None, backend: _Lease | None) -> str:
    if queues is None or not queues.number:
        return ""
    if queues.by_cron:
        return "pg_cron"
    if queues.stopped:
        return "stopped"
    return f"every {queues.period} ms ({backend})" if backend else "none"


def _stream_table_table(databases: list[_Database]) -> Table:
    table = Table(title="Stream tables", title_justify="left")
    for heading in ("database", "stream table", "mode", "schedule", "status", "data is from", "last refresh"):
        # Names are to be copied: they are never broken, and nothing is cut off.
        table.add_column(heading, overflow="fold", no_wrap=heading in ("database", "stream table"))
    for database in databases:
        for row in database.stream_tables:
            asked = f" ({row.requested_mode})" if row.requested_mode != row.refresh_mode else ""
            colour = "green" if row.status == Status.ACTIVE and not row.consecutive_errors else "red"
            table.add_row(
                escape(database.name),
                escape(row.name),
                row.refresh_mode + asked,
                row.schedule or "none",
                f"[{colour}]{row.status}[/]",
                _data_is_from(row),
                _last_refresh(row),
            )
    return table


def _data_is_from(row: _StreamTable) -> str:
    if row.refresh_mode == RefreshMode.IMMEDIATE:
        return "the last change"
    return f"{_duration(row.staleness)} ago" if row.staleness is not None else "not populated"


def _under_way_table(databases: list[_Database]) -> Table:
    table = Table(title="Refreshes under way", title_justify="left")
    for heading in ("database", "stream table", "phase", "since", "backend", "waits for", "reads", "table"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("database", "stream table"))
    for database in databases:
        for row in database.under_way:
            kind = "initial population" if row.initial else row.action
            copied = f"{row.rows_copied} rows copied of " if row.rows_copied is not None else ""
            table.add_row(
                escape(database.name),
                escape(row.name),
                f"{row.phase} ({kind})" if kind else row.phase,
                _duration(row.since) if row.since is not None else "",
                str(row.pid),
                escape(row.waits_for),
                f"{copied}about {row.source_rows or 0} rows",
                row.table_size or "",
            )
    return table


def _own_tables_table(databases: list[_Database]) -> Table:
    table = Table(title="Tables of the engine", title_justify="left")
    for heading in ("database", "size", "live rows", "dead rows", "largest"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "database")
    for database in databases:
        if own := database.own_tables:
            table.add_row(escape(database.name), own.size, str(own.live), str(own.dead), escape(own.largest or ""))
    return table


def _subscription_table(databases: list[_Database]) -> Table:
    table = Table(title="Subscriptions", title_justify="left")
    for heading in ("database", "reads", "role", "since", "clients", "waits for them", "lag"):
        table.add_column(heading, overflow="fold")
    for database in databases:
        for row in database.subscriptions:
            since = f"{row.started_at.astimezone():%Y-%m-%d %H:%M:%S}"
            table.add_row(
                escape(database.name),
                escape(row.reads or ""),
                escape(row.subscriber or ""),
                since,
                "" if row.clients is None else str(row.clients),
                row.waiting or "",
                "" if row.lag is None else f"{row.lag.total_seconds():.1f} s",
            )
    return table


def _source_table(databases: list[_Database]) -> Table:
    table = Table(title="Sources", title_justify="left")
    for heading in ("database", "source", "tick interval", "counter", "last tick"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("database", "source"))
    for database in databases:
        for row in database.sources:
            ticked = f"{row.last_tick_at.astimezone():%Y-%m-%d %H:%M:%S}" if row.last_tick_at else "none"
            if row.error:
                ticked = "[red]failed[/]"
            interval = f"{row.tick_interval.total_seconds():g} s"
            table.add_row(escape(database.name), escape(row.name), interval, str(row.last_value), ticked)
    return table


def _publication_table(databases: list[_Database]) -> Table:
    table = Table(title="Publications", title_justify="left")
    for heading in ("database", "stream table", "location", "state", "version", "unpublished refreshes", "lag"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("database", "stream table"))
    for database in databases:
        for row in database.publications:
            colour = "red" if row.error else "green"
            table.add_row(
                escape(database.name),
                escape(row.name),
                escape(row.location),
                f"[{colour}]{row.state}[/]",
                "" if row.version is None else str(row.version),
                "" if row.unpublished is None else str(row.unpublished),
                f"{row.lag.total_seconds():.1f} s",
            )
    return table


def _last_refresh(row: _StreamTable) -> str:
    if row.action is None:
        return "none"
    took = f", {row.milliseconds:.1f} ms" if row.milliseconds is not None else ""
    executor = f" on {row.executor}" if row.executor else ""
    outcome = "" if row.refresh_status == RefreshStatus.COMPLETED else f", {row.refresh_status}"
    return f"{row.action}{executor}{took}{outcome}"


def _errors(databases: list[_Database]) -> Iterator[str]:
    for database in databases:
        for row in database.stream_tables:
            if row.refresh_status == RefreshStatus.SKIPPED:
                yield f"{database.name}: {row.name} waits: {row.error_message}"
            if row.consecutive_errors:
                said = row.error_message or "no message recorded"
                yield f"{database.name}: {row.name} failed {row.consecutive_errors} times in a row: {said}"
        for source in database.sources:
            if source.error:
                yield f"{database.name}: source {source.name} does not tick: {source.error}"
        for publication in database.publications:
            if publication.error:
                where = f"{publication.name} is not published to {publication.location}"
                yield f"{database.name}: {where}: {publication.error}"
        for text in database.holding:
            yield f"{database.name}: {text}"
        for text in database.failed_requests:
            yield f"{database.name}: request failed: {text}"


def _duration(value: timedelta) -> str:
    """A time span in its two largest units.

    >>> _duration(timedelta(minutes=2, seconds=30.4))
    '2 min 30 s'
    """
    seconds = max(int(value.total_seconds()), 0)
    parts = (seconds // 86400, seconds // 3600 % 24, seconds // 60 % 60, seconds % 60)
    shown = [f"{number} {unit}" for number, unit in zip(parts, ("d", "h", "min", "s"), strict=True) if number]
    return " ".join(shown[:2]) or "0 s"
