"""Server-sent events: that something has changed, and the rows that came and went, by SUBSCRIBE.

The catalog of stream tables cannot be subscribed to: it is the engine's own. What happens in it is told on its channels
(LISTEN), and twice a second a short statement says whether anything else is new. The rows of tables come by SUBSCRIBE.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg
from psycopg import sql

from server.console.connections import Connection, Login, as_error
from server.console.graph import NOT_HERE

LOOK_SECONDS = 0.4
ALIVE_SECONDS = 15.0
"""Something is sent at least as often, so that a browser that has gone is noticed."""
MOST_ROWS_AT_ONCE = 100
COLLECT_SECONDS = 0.1
"""Rows that come so soon after one another are one event."""

CATALOG = """
SELECT concat_ws(' ', count(*), max(s.pgt_id), max(s.updated_at), max(s.last_refresh_at))
FROM pgtrickle.pgt_stream_tables s
"""

LOOKS = {
    "graph": (
        CATALOG,
        """SELECT string_agg(concat_ws(' ', queue_name, consumer_name, pending_events, current_batch), ',')
           FROM pgque.get_consumer_info()""",
        "SELECT string_agg(concat_ws(' ', subscription_id, reads, clients), ',') FROM pgtrickle.subscription_status()",
        "SELECT string_agg(r.name, ',') FROM accum._registers r",
    ),
    "stream tables": (CATALOG,),
    "queues": (
        """SELECT string_agg(concat_ws(' ', queue_name, consumer_name, pending_events, current_batch), ',')
           FROM pgque.get_consumer_info()""",
        "SELECT string_agg(concat_ws(' ', queue_name, ev_new, queue_ticker_paused), ',') FROM pgque.get_queue_info()",
        "SELECT concat_ws(' ', count(*), max(dl_id)) FROM pgque.dead_letter",
    ),
    "subscriptions": (
        """SELECT string_agg(concat_ws(' ', subscription_id, reads, clients, waiting_bytes), ',')
           FROM pgtrickle.subscription_status()""",
        "SELECT md5(string_agg(h::text, ',')) FROM pgtrickle.history_status() h",
    ),
    "spark": (
        CATALOG,
        "SELECT string_agg(concat_ws(' ', pgt_id, phase, action), ',') FROM pgtrickle.pgt_stat_progress_refresh",
    ),
    "registers": ("SELECT string_agg(concat_ws(' ', r.name, r.created_at), ',') FROM accum._registers r",),
    "settings": ("SELECT md5(string_agg(concat_ws(' ', name, setting, error), ',')) FROM pgtrickle.settings",),
}
"""What is looked at for each kind of page: statements that give another text when the page has."""


def event(name: str, data: Any) -> str:
    """One event of the stream.

    >>> event("changed", {"of": "graph"})
    'event: changed\\ndata: {"of": "graph"}\\n\\n'
    """
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


async def changes(login: Login, kind: str, ended: asyncio.Event) -> AsyncIterator[str]:
    """An event each time that a page of this kind would look otherwise, until `ended`."""
    connection = await login.connect()
    try:
        for channel in ("pg_trickle_refresh", "pg_trickle_alert"):
            await connection.raw.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        before = await _look(connection, kind)
        yield event("ready", {"of": kind})
        sent_at = _now()
        while not ended.is_set():
            told = [notice.pid async for notice in connection.raw.notifies(timeout=LOOK_SECONDS, stop_after=1)]
            seen = await _look(connection, kind)
            if seen != before or (told and LOOKS[kind][0] == CATALOG):
                before, sent_at = seen, _now()
                yield event("changed", {"of": kind})
            elif _now() - sent_at > ALIVE_SECONDS:
                sent_at = _now()
                yield ": alive\n\n"
        yield event("ended", {})
    except psycopg.Error as error:
        yield event("failed", as_error(error))
    finally:
        await connection.close()


async def _look(connection: Connection, kind: str) -> list[str | None]:
    seen: list[str | None] = []
    for statement in LOOKS[kind]:
        try:
            ((row),) = await connection.rows(statement)
        except NOT_HERE:
            row = {}
        seen.extend(row.values())
    return seen


def _now() -> float:
    return asyncio.get_running_loop().time()


async def rows(login: Login, schema: str, name: str, ended: asyncio.Event) -> AsyncIterator[str]:
    """The rows of a table that come and go from now on, by SUBSCRIBE, until `ended`; some 100 of them an event."""
    connection = await login.connect(statement_seconds=0, lock_seconds=0)
    waiting: asyncio.Queue[list[str | None] | None] = asyncio.Queue(maxsize=10 * MOST_ROWS_AT_ONCE)
    columns: list[str] = []
    failure: list[psycopg.Error] = []

    async def follow() -> None:
        statement = sql.SQL("SUBSCRIBE {} WITH (SNAPSHOT = false, PROGRESS = true)").format(
            sql.Identifier(schema, name)
        )
        try:
            async for result in connection.results(statement.as_string(None)):
                columns[:] = result.columns
                for row in result.rows:
                    await waiting.put(row)
        except psycopg.Error as error:
            failure.append(error)
        await waiting.put(None)

    following = asyncio.create_task(follow())
    over = asyncio.create_task(ended.wait())
    first = asyncio.create_task(waiting.get())
    try:
        while True:
            await asyncio.wait({first, over}, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                yield event("ended", {})
                return
            batch = await _collect(first.result(), waiting)
            first = asyncio.create_task(waiting.get())
            yield _told([row for row in batch if row is not None], columns)
            if None in batch:
                yield event("failed", as_error(failure[0])) if failure else event("ended", {})
                return
    finally:
        for task in (first, over, following):
            task.cancel()
        await asyncio.gather(first, over, following, return_exceptions=True)
        connection.cut()  # with it the SUBSCRIBE ends


async def _collect(first: list[str | None] | None, waiting: asyncio.Queue[list[str | None] | None]) -> list[Any]:
    await asyncio.sleep(COLLECT_SECONDS)
    batch: list[Any] = [first]
    while not waiting.empty() and batch[-1] is not None:
        batch.append(waiting.get_nowait())
    return batch


def _told(batch: list[list[str | None]], columns: list[str]) -> str:
    """The event for what SUBSCRIBE gave: time, whether it is mere progress, weight, values."""
    changed = [row for row in batch if row[1] != "t"]
    if not changed:
        return ": alive\n\n"
    shown = [{"at": row[0], "diff": int(row[2] or 0), "values": row[3:]} for row in changed[-MOST_ROWS_AT_ONCE:]]
    return event("rows", {"columns": columns[3:], "rows": shown, "left_out": len(changed) - len(shown)})
