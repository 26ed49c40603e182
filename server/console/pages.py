"""What the other pages show: queues, registers, subscriptions, settings."""

from __future__ import annotations

from typing import Any

from psycopg import sql

from server.console.connections import Connection
from server.console.graph import QUEUES, rows_or_none
from server.console.stream_tables import Unknown

CONSUMERS = """
SELECT consumer_name AS consumer, lag, last_seen, pending_events AS pending, current_batch AS batch
FROM pgque.get_consumer_info(%(name)s) ORDER BY 1
"""

QUEUE_LIST = """
SELECT q.queue_name AS name, q.queue_ticker_paused AS paused, q.ev_per_sec AS per_second, q.ev_new AS new,
       q.ticker_lag AS tick_age,
       (SELECT count(*) FROM pgque.get_consumer_info(q.queue_name)) AS consumers,
       (SELECT count(*) FROM pgque.dead_letter d JOIN pgque.queue i ON i.queue_id = d.dl_queue_id
        WHERE i.queue_name = q.queue_name) AS dead
FROM pgque.get_queue_info() q ORDER BY 1
"""

DEAD_LETTERS = """
SELECT d.dl_id AS id, d.dl_time AS at, d.dl_reason AS reason, c.co_name AS consumer, d.ev_id AS event,
       d.ev_time AS sent_at, d.ev_retry AS retries, d.ev_type AS type, left(d.ev_data, 20000) AS data,
       length(d.ev_data) > 20000 AS data_is_cut,
       d.ev_extra1 AS extra1, d.ev_extra2 AS extra2, d.ev_extra3 AS extra3, d.ev_extra4 AS extra4
FROM pgque.dlq_inspect(%(name)s, 100) d LEFT JOIN pgque.consumer c ON c.co_id = d.dl_consumer_id
ORDER BY d.dl_time DESC, d.dl_id DESC
"""

REGISTERS = """
SELECT r.name, r.kind, r.totals_period, r.partition_by, r.high_write, r.dimensions, r.resources, r.created_at,
       o.rolname AS owner, o.rolname = current_user OR o.rolsuper AS is_trusted, c.relname AS movements
FROM accum._registers r
JOIN pg_class c ON c.oid = r.movements::oid
JOIN pg_roles o ON o.oid = c.relowner
WHERE coalesce(has_table_privilege(c.oid, 'SELECT'), false) ORDER BY r.name
"""

PERIODS = {"day": "60 days", "month": "24 months", "quarter": "5 years", "year": "20 years"}
"""How far back each is shown."""

SUBSCRIPTIONS = """
SELECT subscription_id AS id, reads, subscriber, started_at, clients, waiting_bytes, lag
FROM pgtrickle.subscription_status()
"""

HISTORIES = "SELECT * FROM pgtrickle.history_status()"

SETTINGS = """
SELECT name, setting, unit, short_desc AS description, source, boot_val AS default, enumvals AS choices, error
FROM pgtrickle.settings ORDER BY name
"""


async def queues(connection: Connection) -> dict[str, Any]:
    """Raises psycopg.Error, for who is no reader of queues too."""
    return {"queues": await connection.rows(QUEUE_LIST)}


async def queue(connection: Connection, name: str) -> dict[str, Any]:
    """One queue with its consumers and dead letters. Raises Unknown, psycopg.Error."""
    if name not in [row["name"] for row in await connection.rows(QUEUES)]:
        raise Unknown(f'there is no queue "{name}"')
    return {
        "name": name,
        "consumers": await connection.rows(CONSUMERS, {"name": name}),
        "dead_letters": await connection.rows(DEAD_LETTERS, {"name": name}),
    }


async def replay(connection: Connection, identity: int) -> dict[str, Any]:
    """Put a dead letter back into its queue, as a new event. Raises psycopg.Error."""
    ((row),) = await connection.rows("SELECT pgque.dlq_replay(%(id)s) AS event", {"id": identity})
    return row


async def replay_all(connection: Connection, name: str) -> dict[str, Any]:
    """The same with all dead letters of a queue: how many were replayed, and how many failed. Raises psycopg.Error."""
    ((row),) = await connection.rows(
        "SELECT replayed, failed, first_error FROM pgque.dlq_replay_all(%(name)s)", {"name": name}
    )
    return row


async def registers(connection: Connection) -> dict[str, Any]:
    return {"registers": await rows_or_none(connection, REGISTERS)}


async def register(connection: Connection, name: str, period: str, dimensions: str, confirmed: bool) -> dict[str, Any]:
    """One register with its balances over time. Raises Unknown, psycopg.Error.

    The functions of a register belong to its owner and run with the rights of who calls them. So those of somebody else
    are called only if the user has `confirmed` it.
    """
    found = [row for row in await rows_or_none(connection, REGISTERS) if row["name"] == name]
    if not found or period not in PERIODS:
        raise Unknown(f'there is no register "{name}" that you may read')
    shown = found[0] | {"balances": None, "period": period}
    if not (shown["is_trusted"] or confirmed) or shown["kind"] != "balance":
        return shown
    call = sql.SQL(
        "SELECT period_start AS at, balance, turnover FROM accum.{}(%(period)s,"
        " from_date => now() - %(back)s::interval, dimensions => nullif(%(dimensions)s, '')::jsonb)"
    ).format(sql.Identifier(f"{name}_balance_at_each"))
    parameters = {"period": period, "back": PERIODS[period], "dimensions": dimensions}
    shown["balances"] = await connection.rows(call.as_string(None), parameters)
    return shown


async def subscriptions(connection: Connection) -> dict[str, Any]:
    return {
        "subscriptions": await rows_or_none(connection, SUBSCRIPTIONS),
        "histories": await rows_or_none(connection, HISTORIES),
    }


async def settings(connection: Connection) -> dict[str, Any]:
    return {"settings": await rows_or_none(connection, SETTINGS)}
