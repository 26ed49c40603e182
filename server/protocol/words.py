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
    """May be a statement of ours: COPY from files that Spark reads (``uri_copy``), or one of ``extensions``."""


NOTHING = Mention.NOTHING

_REQUEST = re.compile(rb"(?:create|replace|create_or_replace|if_not_exists|drop|alter|refresh|resume)_stream_table")
_CHANGE = re.compile(rb"\b(?:create|alter|drop)\b")
_DATABASE = re.compile(rb"\bdatabase\b")
_SENDS = re.compile(rb'pgque"?\s*\.\s*"?(?:send|insert_event|dlq_replay|force_|create_queue|resume_queue|start)')
_EXTENSION = re.compile(rb"\bextension\b.+\b(?:pg_trickle|pgque)\b", re.DOTALL)
_LOAD = re.compile(rb"\bcopy\b.+\bfrom\b\s*'[a-z0-9]+://", re.DOTALL)


def mentions(text: bytes) -> Mention:
    """
    >>> mentions(b"SELECT pgtrickle.Drop_Stream_Table('x')")
    <Mention.REQUEST: 1>
    >>> mentions(b"SELECT current_database()")
    <Mention.NOTHING: 0>
    >>> mentions(b"copy t from 's3://lake/t.parquet'")
    <Mention.LOAD: 4>
    >>> mentions(b"create extension if not exists pgque")
    <Mention.LOAD: 4>
    """
    lowered = text.lower()
    if (
        b"stream_table" not in lowered
        and b"database" not in lowered
        and b"://" not in lowered
        and b"extension" not in lowered
    ):
        return NOTHING
    found = NOTHING
    if b"://" in lowered and _LOAD.search(lowered):
        found |= Mention.LOAD
    if b"extension" in lowered and _EXTENSION.search(lowered) and _CHANGE.search(lowered):
        found |= Mention.LOAD
    if b"stream_table" in lowered and _REQUEST.search(lowered):
        found |= Mention.REQUEST
    if b"database" in lowered:
        change = _CHANGE.search(lowered)
        if change and _DATABASE.search(lowered, change.end()):
            found |= Mention.DATABASE
    return found


def sends(lowered: bytes) -> bool:
    """Whether a text, in lower case, sends events to queues by name: its session's commits wake the queues' clock.

    Events sent without naming a function (by triggers, by functions of the user's) are found by the clock itself.

    >>> sends(b"select pgque.send_batch('orders', array['a', 'b'])")
    True
    >>> sends(b"select * from pgque.receive('orders', 'billing')")
    False
    """
    return b"pgque" in lowered and _SENDS.search(lowered) is not None
