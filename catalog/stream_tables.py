"""Stream tables as the catalog has them: what the scheduler and the dependency graph look at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from catalog.session import Row, SqlSession
from catalog.values import RefreshMode, Status


@dataclass(frozen=True, slots=True)
class StreamTable:
    """A row of `pgtrickle.pgt_stream_tables`, with what it reads."""

    pgt_id: int
    schema: str
    name: str
    relid: int
    """OID of its storage table, by which others depend on it."""
    owner: int
    """OID of the role with whose rights it is refreshed."""
    status: Status
    refresh_mode: RefreshMode
    is_populated: bool
    needs_reinit: bool
    age_seconds: float
    """Since it was created."""
    staleness: float | None
    """Seconds since its rows were read, negative if the clock was set back; None before it is populated."""
    as_of: str | None
    """The time of that, to be compared with itself alone."""
    schedule_seconds: float | None
    """Seconds between refreshes; None for a `calculated` schedule, and for cron."""
    cron: str | None
    """The schedule, if it is a cron expression."""
    time_zone: str
    """In which the times of that are."""
    clock: float
    """PostgreSQL's, in seconds since 1970."""
    default_seconds: float
    """Seconds between refreshes of a `calculated` one that nobody reads."""
    sources: tuple[int, ...]
    """OIDs of the relations it reads, stream tables' storage among them."""
    untracked: bool
    """Whether only a refresh can tell whether there is something to do: it reads something whose changes are not
    captured, or triggers are to maintain it and do not yet."""
    held_back: str | None = None
    """Why the scheduler must not refresh it now (`pgtrickle._held_back`)."""
    atomic: bool = False
    """Whether the diamond that meets in it is refreshed in one transaction."""
    all_atomic: bool = False
    """Whether that is so of all diamonds of the database, by its operator's will."""
    slowest: bool = False
    """Whether that diamond waits until all of its members are due."""
    group: int | None = None
    """The number of the refresh group that it is a member of."""
    group_owner: int | None = None
    """OID of the role that has made the group, None if that is gone."""
    one_snapshot: bool = False
    """Whether all members of the group must see their sources as of one moment."""
    on_spark: bool = False
    """Whether nothing but Spark may compute it."""
    circle: int | None = None
    """The number of the circle that it is a member of: stream tables that read each other (`scc_id`)."""
    from_log: bool = False
    """Whether a source is captured from the write-ahead log: a REPEATABLE READ transaction does not see all of it."""


_STREAM_TABLES = """
SELECT s.pgt_id, s.pgt_schema, s.pgt_name, s.pgt_relid::bigint, s.pgt_owner::bigint, s.status, s.refresh_mode,
       s.is_populated, s.needs_reinit,
       extract(epoch FROM pg_catalog.clock_timestamp() - s.created_at)::double precision,
       extract(epoch FROM pg_catalog.clock_timestamp() - r.read_at)::double precision, r.read_at::text,
       c.seconds,
       CASE WHEN s.schedule ~ '[ @]' THEN s.schedule END, g.time_zone,
       extract(epoch FROM pg_catalog.clock_timestamp())::double precision,
       g.default_seconds,
       coalesce(d.sources, '{}'::bigint[]), coalesce(d.untracked, false)
       OR s.requested_mode = 'IMMEDIATE' AND s.refresh_mode <> 'IMMEDIATE' AND s.fallback_reason IS NULL, h.reason,
       s.diamond_consistency = 'atomic' OR g.all_atomic, g.all_atomic, s.diamond_schedule_policy = 'slowest',
       m.group_id, m.group_owner::bigint, coalesce(m.isolation = 'repeatable_read', false),
       coalesce(s.engine = 'spark', false), s.scc_id, coalesce(d.from_log, false)
FROM (
    SELECT pgtrickle._setting('pg_trickle.default_schedule_seconds', '1')::double precision AS default_seconds,
           pgtrickle._setting('TimeZone', 'UTC') AS time_zone,
           pgtrickle._setting('pg_trickle.diamond_consistency', 'none') = 'atomic' AS all_atomic
    OFFSET 0  -- once, not for each stream table
) AS g
CROSS JOIN pgtrickle.pgt_stream_tables s
LEFT JOIN (
    -- There are many stream tables, and few schedules.
    SELECT schedule, pgtrickle._duration_seconds(schedule)::double precision AS seconds
    FROM pgtrickle.pgt_stream_tables
    GROUP BY schedule
) AS c USING (schedule)
LEFT JOIN (
    SELECT pgt_id, pg_catalog.array_agg(source_relid::bigint ORDER BY source_relid) AS sources,
           pg_catalog.bool_or(cdc_mode IS NULL AND source_type <> 'VIEW') AS untracked,
           pg_catalog.bool_or(cdc_mode = 'WAL') AS from_log
    FROM pgtrickle.pgt_dependencies
    GROUP BY pgt_id
) d USING (pgt_id)
LEFT JOIN pgtrickle._held_back() AS h USING (pgt_id)
CROSS JOIN LATERAL (
    -- Its data_timestamp is earlier where what was read was older already: to read that again would not help.
    SELECT greatest(s.data_timestamp, (s.frontier->>'at')::timestamptz) AS read_at
) AS r
LEFT JOIN pgtrickle._group_members() AS m ON m.relid = s.pgt_relid
ORDER BY s.pgt_id
"""


_FIELDS = tuple(field.name for field in fields(StreamTable))
_STATUS, _MODE, _SOURCES = map(_FIELDS.index, ("status", "refresh_mode", "sources"))


async def stream_tables(session: SqlSession) -> list[StreamTable]:
    """All stream tables of the session's database, by id."""
    return [_from_row(row) for row in await session.fetch(_STREAM_TABLES)]


def _from_row(row: Row) -> StreamTable:
    values: list[Any] = list(row)
    values[_STATUS], values[_MODE] = Status(values[_STATUS]), RefreshMode(values[_MODE])
    values[_SOURCES] = tuple(values[_SOURCES])
    return StreamTable(*values)


_VERSION = """
SELECT CASE WHEN EXISTS (SELECT FROM pgtrickle.pgt_source_gates g WHERE g.gated)
              OR EXISTS (SELECT FROM pgtrickle.pgt_watermark_groups) THEN NULL ELSE pg_catalog.concat_ws(
    ' ',
    (SELECT pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(
        pg_catalog.hashint8extended(s.pgt_id, s.xmin::text::bigint))) FROM pgtrickle.pgt_definitions s),
    (SELECT pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(
        pg_catalog.hashint8extended(d.pgt_id << 32 | d.source_relid::bigint, d.xmin::text::bigint)))
     FROM pgtrickle.pgt_dependencies d),
    (SELECT pg_catalog.concat(pg_catalog.count(*), ':', pg_catalog.sum(
        pg_catalog.hashint8extended(g.group_id, g.xmin::text::bigint))) FROM pgtrickle.pgt_refresh_groups g),
    pgtrickle._setting('pg_trickle.default_schedule_seconds', '1'),
    pgtrickle._setting('TimeZone', 'UTC'),
    pgtrickle._setting('pg_trickle.diamond_consistency', 'none')) END
"""
"""Each change of a row makes another version of it, which has the id of the transaction that has made it."""


async def version_of_stream_tables(session: SqlSession) -> str | None:
    """What is another text whenever `stream_tables` would tell anything new, times apart; None where it may any time.

    To find it takes a small part of the time of that, with many stream tables. Raises SqlError.
    """
    ((version,),) = await session.fetch(_VERSION)
    return None if version is None else str(version)


async def acting_roles(session: SqlSession, tables: Iterable[StreamTable]) -> frozenset[tuple[int, int]]:
    """Pairs of roles, of which the first may act for the second: of the owners of stream tables and refresh groups."""
    owners = {table.owner for table in tables}
    makers = owners | {table.group_owner for table in tables if table.group_owner is not None}
    return frozenset(await session.fetch(_ACTING_ROLES, sorted(makers), sorted(owners)))


_ACTING_ROLES = """
SELECT a.oid::bigint, b.oid::bigint
FROM pg_catalog.pg_roles a CROSS JOIN pg_catalog.pg_roles b
WHERE a.oid = ANY ($1::bigint[]::oid[]) AND b.oid = ANY ($2::bigint[]::oid[]) AND pgtrickle._may_become(a.oid, b.oid)
"""
