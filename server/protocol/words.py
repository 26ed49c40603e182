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


NOTHING = Mention.NOTHING

_REQUEST = re.compile(rb"(?:create|replace|create_or_replace|if_not_exists|drop|alter|refresh|resume)_stream_table")
_CHANGE = re.compile(rb"\b(?:create|alter|drop)\b")
_DATABASE = re.compile(rb"\bdatabase\b")


def mentions(text: bytes) -> Mention:
    """
    >>> mentions(b"SELECT pgtrickle.Drop_Stream_Table('x')")
    <Mention.REQUEST: 1>
    >>> mentions(b"SELECT current_database()")
    <Mention.NOTHING: 0>
    """
    lowered = text.lower()
    if b"stream_table" not in lowered and b"database" not in lowered:
        return NOTHING
    found = NOTHING
    if b"stream_table" in lowered and _REQUEST.search(lowered):
        found |= Mention.REQUEST
    if b"database" in lowered:
        change = _CHANGE.search(lowered)
        if change and _DATABASE.search(lowered, change.end()):
            found |= Mention.DATABASE
    return found
