"""What a page shows of stream tables."""

from __future__ import annotations

from typing import Any

from server.console.connections import Connection, Row
from server.console.graph import VISIBLE, rows_or_none
from server.console.plan_tree import Relation, tree

LIST = f"""
SELECT s.pgt_schema AS schema, s.pgt_name AS name, s.status, s.refresh_mode, p.schedule,
       extract(epoch FROM s.staleness)::float8 AS age, s.stale, s.total_refreshes AS refreshes,
       s.failed_refreshes AS failed, s.avg_duration_ms, s.consecutive_errors AS errors
FROM pgtrickle.pg_stat_stream_tables s
JOIN (SELECT s.pgt_id, s.schedule FROM pgtrickle.pgt_stream_tables s WHERE {VISIBLE}) AS p USING (pgt_id)
ORDER BY 1, 2
"""

ONE = f"""
SELECT s.pgt_id, s.pgt_relid::bigint AS relid, s.pgt_schema AS schema, s.pgt_name AS name, s.status, s.refresh_mode,
       s.requested_mode, s.schedule, s.engine, s.is_populated, s.consecutive_errors, s.needs_reinit, s.data_timestamp,
       extract(epoch FROM clock_timestamp() - s.data_timestamp)::float8 AS age, s.created_at,
       coalesce(s.original_query, s.defining_query) AS query, s.explain->>'operator_tree' AS operators,
       (SELECT r.rolname FROM pg_roles r WHERE r.oid = s.pgt_owner) AS owner,
       format('%%I.%%I', s.pgt_schema, s.pgt_name) AS quoted,
       nullif(c.reltuples, -1)::bigint AS estimated_rows, pg_total_relation_size(c.oid) AS bytes,
       pg_indexes_size(c.oid) AS index_bytes
FROM pgtrickle.pgt_stream_tables s LEFT JOIN pg_class c ON c.oid = s.pgt_relid
WHERE s.pgt_schema = %(schema)s AND s.pgt_name = %(name)s AND {VISIBLE}
"""

INDEXES = """
SELECT i.indexrelid::regclass::text AS name, pg_get_indexdef(i.indexrelid) AS definition, i.indisvalid AS valid,
       pg_relation_size(i.indexrelid) AS bytes, u.idx_scan AS scans
FROM pg_index i LEFT JOIN pg_stat_all_indexes u USING (indexrelid)
WHERE i.indrelid = %(relid)s ORDER BY 1
"""

SOURCES = """
SELECT d.source_relid::bigint AS relid, n.nspname AS schema, c.relname AS name, lower(d.source_type) AS kind,
       lower(d.cdc_mode) AS capture, nullif(c.reltuples, -1)::bigint AS rows, b.pending_rows AS pending
FROM pgtrickle.pgt_dependencies d
LEFT JOIN pg_class c ON c.oid = d.source_relid
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pgtrickle.change_buffer_sizes() b
    ON b.source_oid = d.source_relid::bigint AND b.stream_table = %(schema)s || '.' || %(name)s
WHERE d.pgt_id = %(pgt_id)s ORDER BY 2, 3
"""

HISTORY = """
SELECT h.refresh_id AS id, h.start_time AS began, h.action, h.status, h.initiated_by, h.executor, h.executor_reason,
       h.delta_row_count AS changes, h.rows_inserted AS inserted, h.rows_updated AS updated, h.rows_deleted AS deleted,
       (extract(epoch FROM h.end_time - h.start_time) * 1000)::float8 AS ms, h.repeats, h.error_message AS error
FROM pgtrickle.pgt_refresh_history h WHERE h.pgt_id = %(pgt_id)s ORDER BY h.refresh_id DESC LIMIT 200
"""

ERRORS = """
SELECT h.start_time AS at, h.action, h.error_message AS error
FROM pgtrickle.pgt_refresh_history h WHERE h.pgt_id = %(pgt_id)s AND h.status = 'FAILED'
ORDER BY h.refresh_id DESC LIMIT 10
"""

ACTIONS = {
    "refresh": "SELECT pgtrickle.refresh_stream_table(%(quoted)s)",
    "suspend": "SELECT pgtrickle.alter_stream_table(%(quoted)s, status => 'SUSPENDED')",
    "resume": "SELECT pgtrickle.resume_stream_table(%(quoted)s)",
}

JOBS = """
SELECT p.pgt_schema AS schema, p.pgt_name AS name, p.action, p.phase, p.initial,
       extract(epoch FROM clock_timestamp() - p.transaction_start)::float8 AS seconds, p.source_rows, p.rows_copied
FROM pgtrickle.pgt_stat_progress_refresh p ORDER BY p.transaction_start
"""

ON_SPARK = f"""
SELECT s.pgt_schema AS schema, s.pgt_name AS name, h.start_time AS began, h.action, h.status, h.executor,
       h.executor_reason, h.delta_row_count AS changes, h.error_message AS error,
       (extract(epoch FROM h.end_time - h.start_time) * 1000)::float8 AS ms
FROM pgtrickle.pgt_refresh_history h JOIN pgtrickle.pgt_stream_tables s USING (pgt_id)
WHERE h.executor <> 'postgres' AND {VISIBLE}
ORDER BY h.refresh_id DESC LIMIT 100
"""

CHOICES = f"""
SELECT s.pgt_schema AS schema, s.pgt_name AS name, s.engine, h.executor, h.executor_reason AS why
FROM pgtrickle.pgt_stream_tables s
CROSS JOIN LATERAL (SELECT r.executor, r.executor_reason FROM pgtrickle.pgt_refresh_history r
                    WHERE r.pgt_id = s.pgt_id AND r.status <> 'SKIPPED' ORDER BY r.refresh_id DESC LIMIT 1) AS h
WHERE {VISIBLE} ORDER BY 1, 2
"""


class Unknown(Exception):
    """There is nothing of that name that the user may see."""


async def all_of_them(connection: Connection) -> dict[str, Any]:
    return {"stream_tables": await rows_or_none(connection, LIST)}


async def find(connection: Connection, schema: str, name: str) -> Row:
    """The one of that name. Raises Unknown."""
    found = await rows_or_none(connection, ONE, {"schema": schema, "name": name})
    if not found:
        raise Unknown(f'there is no stream table "{schema}.{name}" that you may read')
    return found[0]


async def one(connection: Connection, schema: str, name: str) -> dict[str, Any]:
    """All that the page of one shows. Raises Unknown."""
    table = await find(connection, schema, name)
    sources = await connection.rows(SOURCES, table)
    known = {f"{row['schema']}.{row['name']}": Relation(row["rows"], row["pending"]) for row in sources}
    properties = await connection.rows("SELECT property, value FROM pgtrickle.explain_st(%(quoted)s)", table)
    return {
        "stream_table": table,
        "sources": sources,
        "plan": tree(table.pop("operators") or "", known),
        "properties": properties,
        "history": await connection.rows(HISTORY, table),
        "errors": await connection.rows(ERRORS, table),
        "indexes": await connection.rows(INDEXES, table),
    }


async def act(connection: Connection, schema: str, name: str, action: str) -> None:
    """Refresh, suspend or resume one. Raises Unknown, psycopg.Error."""
    table = await find(connection, schema, name)
    await connection.rows(ACTIONS[action], table)


async def spark(connection: Connection) -> dict[str, Any]:
    """What is under way, what Spark has computed, and who computes what."""
    return {
        "under_way": await rows_or_none(connection, JOBS),
        "on_spark": await rows_or_none(connection, ON_SPARK),
        "choices": await rows_or_none(connection, CHOICES),
    }
