"""The graph of a database: sources, stream tables, registers, queues, subscriptions, and how far each edge lags."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg

from server.console.connections import Connection, Row
from server.console.layout import layout

VISIBLE = """
(coalesce(has_table_privilege(s.pgt_relid, 'SELECT'), false) OR pg_has_role('pg_monitor', 'USAGE')
 OR EXISTS (SELECT FROM pg_roles r WHERE r.oid = s.pgt_owner AND pg_has_role(r.oid, 'USAGE')))
"""
"""Of a row `s` of pgt_stream_tables: whether it is the user's business."""

STREAM_TABLES = f"""
SELECT s.pgt_id, s.pgt_relid::bigint AS relid, s.pgt_schema AS schema, s.pgt_name AS name, s.status, s.refresh_mode,
       s.schedule, s.is_populated, s.consecutive_errors, s.data_timestamp,
       extract(epoch FROM clock_timestamp() - s.data_timestamp)::float8 AS age
FROM pgtrickle.pgt_stream_tables s WHERE {VISIBLE} ORDER BY s.pgt_schema, s.pgt_name
"""

DEPENDENCIES = f"""
SELECT s.pgt_id, d.source_relid::bigint AS relid, lower(d.source_type) AS kind, lower(d.cdc_mode) AS capture,
       n.nspname AS schema, c.relname AS name, g.gated, pg_has_role('pg_monitor', 'USAGE')
       OR coalesce(has_any_column_privilege(d.source_relid, 'SELECT'), false) AS readable
FROM pgtrickle.pgt_stream_tables s
JOIN pgtrickle.pgt_dependencies d USING (pgt_id)
LEFT JOIN pg_class c ON c.oid = d.source_relid
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pgtrickle.pgt_source_gates g ON g.source_relid = d.source_relid
WHERE {VISIBLE}
"""

PENDING = "SELECT stream_table, source_oid AS relid, pending_rows FROM pgtrickle.change_buffer_sizes()"

REGISTERS = """
SELECT r.name, r.kind, r.movements::oid::bigint AS relid FROM accum._registers r
WHERE coalesce(has_table_privilege(r.movements::oid, 'SELECT'), false) ORDER BY r.name
"""

QUEUES = """
SELECT queue_name AS name, ev_new AS new, queue_ticker_paused AS paused FROM pgque.get_queue_info() ORDER BY queue_name
"""

CONSUMERS = "SELECT queue_name AS queue, consumer_name AS consumer, lag, pending_events FROM pgque.get_consumer_info()"

SUBSCRIPTIONS = """
SELECT s.subscription_id AS id, s.subscriber, s.clients, s.lag, s.waiting_bytes, part.name AS reads,
       to_regclass(part.name)::oid::bigint AS relid
FROM pgtrickle.subscription_status() s CROSS JOIN LATERAL unnest(string_to_array(s.reads, ', ')) AS part(name)
"""

NOT_HERE = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.InvalidSchemaName,
    psycopg.errors.UndefinedTable,
    psycopg.errors.UndefinedFunction,
)
"""Nothing of the kind is in the database, or it is not for this user."""


async def rows_or_none(connection: Connection, statement: str, parameters: Row | None = None) -> list[Row]:
    """The rows, and none where the user may not ask."""
    try:
        return await connection.rows(statement, parameters)
    except NOT_HERE:
        return []


class Graph:
    """Nodes and edges as they are found; an edge to a node that is not shown is left out."""

    def __init__(self) -> None:
        self.nodes: dict[str, Row] = {}
        self.edges: list[Row] = []
        self._of_relation: dict[int, str] = {}

    def add(self, identity: str, kind: str, title: str, relid: int | None = None, **more: Any) -> None:
        self.nodes.setdefault(identity, {"id": identity, "kind": kind, "title": title, **more})
        if relid is not None:
            self._of_relation.setdefault(relid, identity)

    def relation(self, relid: int) -> str | None:
        return self._of_relation.get(relid)

    def connect(self, source: str, target: str, lag: float | None, pending: int | None, **more: Any) -> None:
        self.edges.append({"source": source, "target": target, "lag": lag, "pending": pending, **more})

    def as_json(self) -> dict[str, Any]:
        found = layout(sorted(self.nodes), [(edge["source"], edge["target"]) for edge in self.edges])
        for identity, (x, y) in found.nodes.items():
            self.nodes[identity] |= {"x": x, "y": y}
        for edge in self.edges:
            edge["through"] = found.lanes.get((edge["source"], edge["target"]), [])
        return {"nodes": [self.nodes[name] for name in sorted(self.nodes)], "edges": self.edges}


async def graph(connection: Connection) -> dict[str, Any]:
    """All that the user may see. Raises psycopg.Error."""
    found = Graph()
    tables = await rows_or_none(connection, STREAM_TABLES)
    for row in tables:
        title = qualified(row["schema"], row["name"])
        found.add(f"stream table {row['pgt_id']}", "stream table", title, row["relid"], **_state(row))
    for row in await rows_or_none(connection, REGISTERS):
        found.add(f"register {row['name']}", "register", row["name"], row["relid"], note=row["kind"], name=row["name"])
    await _sources(connection, found, {row["pgt_id"]: row for row in tables})
    await _queues(connection, found)
    await _subscriptions(connection, found)
    return found.as_json()


def qualified(schema: str, name: str) -> str:
    """What people call a relation."""
    return name if schema == "public" else f"{schema}.{name}"


def _state(row: Row) -> Row:
    return {
        name: row[name] for name in ("schema", "name", "status", "refresh_mode", "schedule", "age", "is_populated")
    } | {"errors": row["consecutive_errors"]}


async def _sources(connection: Connection, found: Graph, tables: dict[int, Row]) -> None:
    pending = {
        (row["stream_table"], row["relid"]): row["pending_rows"] for row in await rows_or_none(connection, PENDING)
    }
    by_relation = {row["relid"]: row for row in tables.values()}
    for row in await rows_or_none(connection, DEPENDENCIES):
        table = tables.get(row["pgt_id"])
        if table is None:
            continue
        identity = found.relation(row["relid"])
        if identity is None:
            identity = f"relation {row['relid']}"
            title = qualified(row["schema"], row["name"]) if row["name"] is not None else "(dropped)"
            title = title if row["readable"] or row["name"] is None else "(a table that you may not read)"
            kind = "view" if row["kind"] == "view" else "source"
            found.add(identity, kind, title, row["relid"], note="gated" if row["gated"] else row["kind"])
        rows = pending.get((f"{table['schema']}.{table['name']}", row["relid"]))
        lag = _lag(rows, by_relation.get(row["relid"]), table)
        found.connect(identity, f"stream table {row['pgt_id']}", lag, rows, capture=row["capture"])


def _lag(pending: int | None, source: Row | None, table: Row) -> float | None:
    """Seconds by which a stream table is behind a source: none where no change waits, else the age of its rows."""
    if pending == 0:
        return 0.0
    if pending is None and source is not None and source["data_timestamp"] and table["data_timestamp"]:
        behind = datetime.fromisoformat(source["data_timestamp"]) - datetime.fromisoformat(table["data_timestamp"])
        return max(0.0, behind.total_seconds())
    return table["age"] if pending else None


async def _queues(connection: Connection, found: Graph) -> None:
    for row in await rows_or_none(connection, QUEUES):
        note = "paused" if row["paused"] else f"{row['new'] or 0} new"
        found.add(f"queue {row['name']}", "queue", row["name"], note=note, name=row["name"])
    for row in await rows_or_none(connection, CONSUMERS):
        queue, consumer = f"queue {row['queue']}", f"consumer {row['queue']} {row['consumer']}"
        if queue in found.nodes:
            found.add(consumer, "consumer", row["consumer"], queue=row["queue"])
            found.connect(queue, consumer, row["lag"] if row["pending_events"] else 0.0, row["pending_events"])


async def _subscriptions(connection: Connection, found: Graph) -> None:
    for row in await rows_or_none(connection, SUBSCRIPTIONS):
        if row["relid"] is None:
            continue
        source = found.relation(row["relid"])
        if source is None:
            source = f"relation {row['relid']}"
            found.add(source, "source", row["reads"].removeprefix("public."), row["relid"], note="table")
        target = f"subscription {row['id']}"
        clients = row["clients"]
        note = "clients unknown" if clients is None else f"{clients} client{'' if clients == 1 else 's'}"
        found.add(target, "subscription", row["subscriber"] or "(dropped role)", note=note)
        found.connect(source, target, row["lag"], None)
