"""The one cheap scan that every Query and Parse undergoes: does the text name something the relay must attend to?

A hit costs time, never correctness: a request function reached without being named (by a function of the user's, by
EXECUTE) is noticed by the INFO it raises.
"""

from __future__ import annotations

import re
from enum import Flag, auto


class Mention(Flag):
    NOTHING = 0
    REQUEST = auto()
    """Names a function that makes an engine request."""
    DATABASE = auto()
    """May create, alter or drop a database, which PostgreSQL refuses while the engine is connected to it."""
    LOAD = auto()
    """May be a statement of ours: COPY from files (``uri_copy``), one of ``extensions`` or of ``own_statements``."""
    SUBSCRIBE = auto()
    """May be a SUBSCRIBE in one of its forms, or speak of its cursor (``subscribe_syntax``, ``cursor_syntax``)."""
    CURSOR = auto()
    """Speaks of a cursor, which may be one of SUBSCRIBE's by the time at which the statement is run."""


NOTHING = Mention.NOTHING

_REQUEST = re.compile(
    rb"retain_history|(?:create|replace|create_or_replace|if_not_exists|drop|alter|refresh|resume)_stream_table"
)
_CHANGE = re.compile(rb"\b(?:create|alter|drop)\b")
_DATABASE = re.compile(rb"\bdatabase\b")
_SENDS = re.compile(rb'pgque"?\s*\.\s*"?(?:send|insert_event|dlq_replay|force_|create_queue|resume_queue|start)')
_EXTENSION = re.compile(rb"\bextension\b.+\b(?:pg_trickle|pgque|pg_accumulator)\b", re.DOTALL)
_GAP = rb"(?:\s|--[^\r\n]*|/\*.*?\*/)+"
_OWN = re.compile(rb"\b(?:(?:create|drop)" + _GAP + rb"source|retain" + _GAP + rb"history)\b", re.DOTALL)
# Where a statement can begin, or behind FOR of a DECLARE, and followed by what can be subscribed to.
_SUBSCRIBE = re.compile(rb'(?:^|[\0;(/\r\n]|\bfor\b)\s*subscribe\s*(?:["(a-z_/\x80-\xff]|--)')
_CURSOR = re.compile(rb"\b(?:fetch|close|move)\b")
_LOAD = re.compile(rb"\bcopy\b.+\bfrom\b\s*'[a-z0-9]+://", re.DOTALL)


def mentions(text: bytes) -> Mention:
    """
    >>> mentions(b"SELECT pgtrickle.Drop_Stream_Table('x')")
    <Mention.REQUEST: 1>
    >>> mentions(b"SELECT current_database()")
    <Mention.NOTHING: 0>
    >>> mentions(b"copy t from 's3://lake/t.parquet'")
    <Mention.LOAD: 4>
    >>> mentions(b"create extension if not exists pgque"), mentions(b"ALTER EXTENSION pg_accumulator UPDATE")
    (<Mention.LOAD: 4>, <Mention.LOAD: 4>)
    >>> mentions(b"CREATE /* a */ SOURCE c FROM LOAD GENERATOR COUNTER"), mentions(b"CREATE TABLE t (source text)")
    (<Mention.LOAD: 4>, <Mention.NOTHING: 0>)
    >>> mentions(b"declare c cursor for subscribe t"), mentions(b"SELECT subscribe FROM users")
    (<Mention.SUBSCRIBE: 8>, <Mention.NOTHING: 0>)
    """
    lowered = text.lower()
    if (
        b"stream_table" not in lowered
        and b"database" not in lowered
        and b"://" not in lowered
        and b"extension" not in lowered
        and b"source" not in lowered
        and b"retain" not in lowered
        and b"subscribe" not in lowered
    ):
        return NOTHING
    found = NOTHING
    if b"://" in lowered and _LOAD.search(lowered):
        found |= Mention.LOAD
    if b"extension" in lowered and _EXTENSION.search(lowered) and _CHANGE.search(lowered):
        found |= Mention.LOAD
    if (b"source" in lowered or b"retain" in lowered) and _OWN.search(lowered):
        found |= Mention.LOAD
    if b"subscribe" in lowered and _SUBSCRIBE.search(lowered):
        found |= Mention.SUBSCRIBE
    if (b"stream_table" in lowered or b"retain" in lowered) and _REQUEST.search(lowered):
        found |= Mention.REQUEST
    if b"database" in lowered:
        change = _CHANGE.search(lowered)
        if change and _DATABASE.search(lowered, change.end()):
            found |= Mention.DATABASE
    return found


def speaks_of_cursors(text: bytes) -> bool:
    """Whether a text may read or close a cursor.

    >>> speaks_of_cursors(b"FETCH ALL c"), speaks_of_cursors(b"select closed from shops")
    (True, False)
    """
    return _CURSOR.search(text.lower()) is not None


def sends(lowered: bytes) -> bool:
    """Whether a text, in lower case, sends events to queues or makes registers by name: its session's commits wake
    the queues' clock and who maintains registers.

    What is done without naming a function (by triggers, by functions of the user's) they find by themselves, later.

    >>> sends(b"select pgque.send_batch('orders', array['a', 'b'])")
    True
    >>> sends(b"select * from pgque.receive('orders', 'billing')")
    False
    >>> sends(b"select accum.register_create('stock', '{}', '{}')"), sends(b"select accum.register_post('stock', '{}')")
    (True, False)
    """
    if b"register_create" in lowered or b"register_alter" in lowered:
        return True
    return b"pgque" in lowered and _SENDS.search(lowered) is not None
