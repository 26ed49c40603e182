"""Sending, in the transaction of a connection that the program has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from psycopg import AsyncConnection, Connection, sql

from headwater.calls import Call, make, make_async, value

DEFAULT_TYPE = "default"
_SEND = sql.SQL("SELECT pgque.send(%s, %s, %s::text)")
_SEND_BATCH = sql.SQL("SELECT pgque.send_batch(%s, %s, %s::text[])")
_INSERT = sql.SQL("SELECT pgque.insert_event(%s, %s, %s, %s, %s, %s, %s)")
_EXTRAS = 4
_json = msgspec.json.Encoder(decimal_format="number")


def _text(payload: object) -> str:
    """A string as it is, anything else as JSON."""
    if isinstance(payload, str):
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        raise TypeError("a payload is text: encode bytes, in base64 for instance")
    return _json.encode(payload).decode()


def _send(queue: str, payload: object, type: str, extra: Sequence[str | None]) -> Call[int]:
    if not extra:
        return Call(_SEND, (queue, type, _text(payload)), value)
    if isinstance(extra, str) or len(extra) > _EXTRAS:
        raise ValueError(f"extra is a sequence of at most {_EXTRAS} strings")
    extras = (*extra, *[None] * (_EXTRAS - len(extra)))
    return Call(_INSERT, (queue, type, _text(payload), *extras), value)


def _send_batch(queue: str, payloads: Iterable[object], type: str) -> Call[list[int]]:
    return Call(_SEND_BATCH, (queue, type, [_text(payload) for payload in payloads]), value)


class Producer:
    """Sends events to a queue. They are there when the connection's transaction has been committed, all or none."""

    def __init__(self, connection: Connection[Any], queue: str):
        self.connection = connection
        self.queue = queue

    def send(self, payload: object, type: str = DEFAULT_TYPE, *, extra: Sequence[str | None] = ()) -> int:
        """Send one event; returns its id.

        payload: A string is sent as it is. Anything else is sent as JSON: dicts, lists, dataclasses, `msgspec.Struct`,
            with `Decimal` as a number, dates and times in ISO 8601.
        extra: `extra1` to `extra4` of the event.
        """
        return make(self.connection, _send(self.queue, payload, type, extra))

    def send_batch(self, payloads: Iterable[object], type: str = DEFAULT_TYPE) -> list[int]:
        """Send many of one type in one statement; returns their ids, in the order of the payloads."""
        return make(self.connection, _send_batch(self.queue, payloads, type))


class AsyncProducer:
    """`Producer` over an asynchronous connection."""

    def __init__(self, connection: AsyncConnection[Any], queue: str):
        self.connection = connection
        self.queue = queue

    async def send(self, payload: object, type: str = DEFAULT_TYPE, *, extra: Sequence[str | None] = ()) -> int:
        """See `Producer.send`."""
        return await make_async(self.connection, _send(self.queue, payload, type, extra))

    async def send_batch(self, payloads: Iterable[object], type: str = DEFAULT_TYPE) -> list[int]:
        """See `Producer.send_batch`."""
        return await make_async(self.connection, _send_batch(self.queue, payloads, type))
