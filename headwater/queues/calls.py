"""The calls that a consumer makes: documented functions of the schema `pgque`."""

from __future__ import annotations

from datetime import timedelta

from psycopg import sql

from headwater.calls import Call, Rows, value
from headwater.queues.events import Event
from headwater.queues.subscription import Subscription

WHOLE_BATCH = 2**31 - 1
"""A batch is acknowledged as a whole, so all of it is asked for."""

_EVENTS = "SELECT msg_id, batch_id, type, payload, retry_count, created_at, extra1, extra2, extra3, extra4 FROM "
_RECEIVE = sql.SQL(_EVENTS + "pgque.receive(%s, %s, %s)")
_RECEIVE_COOP = sql.SQL(_EVENTS + "pgque.receive_coop(%s, %s, %s, %s, %s)")
_BATCH_EVENTS = sql.SQL(
    "SELECT ev_id, %s::bigint, ev_type, ev_data, ev_retry, ev_time, ev_extra1, ev_extra2, ev_extra3, ev_extra4"
    " FROM pgque.get_batch_events(%s)"
)
# Of the message only its id is looked at.
_NACK = sql.SQL(
    "SELECT pgque.nack(%s, ROW(%s, %s, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::pgque.message, %s, %s)"
)


def listen(of: Subscription) -> sql.Composed:
    """A statement: each tick with events is announced on this channel."""
    return sql.SQL("LISTEN {}").format(sql.Identifier("pgque_" + of.queue))


def subscribe(of: Subscription) -> Call[int]:
    """Nothing changes where the consumer is registered already."""
    if of.member is None:
        return Call(sql.SQL("SELECT pgque.subscribe(%s, %s)"), (of.queue, of.name), value)
    names = (of.queue, of.name, of.member)
    return Call(sql.SQL("SELECT pgque.subscribe_subconsumer(%s, %s, %s)"), names, value)


def receive(of: Subscription) -> Call[tuple[Event, ...]]:
    if of.member is None:
        return Call(_RECEIVE, (of.queue, of.name, WHOLE_BATCH), _events)
    return Call(_RECEIVE_COOP, (of.queue, of.name, of.member, WHOLE_BATCH, of.dead_interval), _events)


def next_batch(of: Subscription) -> Call[int | None]:
    """The id of the batch that the consumer has, or gets by this; None where there is none."""
    if of.member is None:
        return Call(sql.SQL("SELECT pgque.next_batch(%s, %s)"), (of.queue, of.name), value)
    names = (of.queue, of.name, of.member)
    return Call(sql.SQL("SELECT pgque.next_batch(%s, %s, %s, %s)"), (*names, of.dead_interval), value)


def batch_events(batch_id: int) -> Call[tuple[Event, ...]]:
    return Call(_BATCH_EVENTS, (batch_id, batch_id), _events)


def ack(batch_id: int) -> Call[int]:
    """1, or 0 if there is no such batch any more."""
    return Call(sql.SQL("SELECT pgque.ack(%s)"), (batch_id,), value)


def nack(event: Event, after: timedelta, reason: str | None) -> Call[int]:
    return Call(_NACK, (event.batch_id, event.id, event.batch_id, after, reason), value)


def touch(of: Subscription) -> Call[int]:
    """Raises ValueError for a consumer that is no member of anything."""
    if of.member is None:
        raise ValueError("only a member of a cooperative consumer can show a sign of life")
    names = (of.queue, of.name, of.member)
    return Call(sql.SQL("SELECT pgque.touch_subconsumer(%s, %s, %s)"), names, value)


def _events(rows: Rows) -> tuple[Event, ...]:
    return tuple(
        Event(id, batch, type, payload, retries or 0, *rest) for id, batch, type, payload, retries, *rest in rows
    )
