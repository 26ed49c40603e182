"""The one cheap scan that every Query and Parse undergoes: does the text name something the relay must attend to?

A hit costs time, never correctness: the interceptor reads the text closely (``lexer``). So a long text is searched for
the words alone. No pattern here has a repetition without a small bound: the time is linear in the text's length. A
request function reached without being named (by a function of the user's, by EXECUTE) is noticed by the INFO it raises.
"""

from __future__ import annotations

import re
from enum import Flag, auto


class Keyword(Flag):
    NOTHING = 0
    REQUEST = auto()
    """Names a function that makes an engine request."""
    DATABASE = auto()
    """May create, alter or drop a database, which PostgreSQL refuses while the engine is connected to it."""
    LOAD = auto()
    """May be COPY from files (``uri_copy``), or a statement of ``extensions`` or of ``request_statements``."""
    SUBSCRIBE = auto()
    """May be a SUBSCRIBE in one of its forms, or speak of its cursor (``subscribe_syntax``, ``cursor_syntax``)."""
    CURSOR = auto()
    """Speaks of a cursor, which may be one of SUBSCRIBE's by the time at which the statement is run."""
    COPY_IN = auto()
    """May be a COPY from the client: its data come once, so that it cannot be run again where a trigger has made a
    request."""


NOTHING = Keyword.NOTHING

LONG = 1 << 15
"""Bytes of a text from which on only its parts are searched for, wherever they stand."""

_REQUESTS = (
    b"retain_history",
    *(verb + b"_stream_table" for verb in (b"create", b"replace", b"if_not_exists", b"drop", b"alter", b"refresh")),
    b"resume_stream_table",
)
_EXTENSIONS = (b"pg_trickle", b"pgque", b"pg_accumulator")
_CHANGES = (b"create", b"alter", b"drop")
_CURSORS = (b"fetch", b"close", b"move")

_CHANGE = re.compile(rb"\b(?:create|alter|drop)\b")
_DATABASE = re.compile(rb"\bdatabase\b")
_SENDS = re.compile(
    rb'pgque"?\s{0,64}\.\s{0,64}"?(?:send|insert_event|dlq_replay|force_|create_queue|resume_queue|start)'
)
_EXTENSION = re.compile(rb"\bextension\b")
_OF_OURS = re.compile(rb"\b(?:pg_trickle|pgque|pg_accumulator)\b")
# Two words behind one another, or the first one in front of a comment or of much white space.
_OWN = re.compile(rb"\b(?:(?:create|drop)\b\s{0,64}+(?:source\b|/\*|--|\s)|retain\b\s{0,64}+(?:history\b|/\*|--|\s))")
# Where a statement can begin, or behind FOR of a DECLARE, and followed by what can be subscribed to.
_SUBSCRIBE = re.compile(rb'(?:^|[\0;(/\r\n]|\bfor\b)\s{0,64}+(?:\s|subscribe\s{0,64}+(?:["(a-z_/\x80-\xff\s]|--))')
_CURSOR = re.compile(rb"\b(?:fetch|close|move)\b")
_STDIN = re.compile(rb"\bstdin\b")
_COPY, _FROM, _URI = re.compile(rb"\bcopy\b"), re.compile(rb"\bfrom\b"), re.compile(rb"'[a-z0-9]{1,16}://")


def mentions(text: bytes) -> Keyword:
    """
    >>> mentions(b"SELECT pgtrickle.Drop_Stream_Table('x')")
    <Keyword.REQUEST: 1>
    >>> mentions(b"SELECT current_database()")
    <Keyword.NOTHING: 0>
    >>> mentions(b"copy t from 's3://lake/t.parquet'")
    <Keyword.LOAD: 4>
    >>> mentions(b"create extension if not exists pgque"), mentions(b"ALTER EXTENSION pg_accumulator UPDATE")
    (<Keyword.LOAD: 4>, <Keyword.LOAD: 4>)
    >>> mentions(b"CREATE /* a */ SOURCE c FROM LOAD GENERATOR COUNTER"), mentions(b"CREATE TABLE t (source text)")
    (<Keyword.LOAD: 4>, <Keyword.NOTHING: 0>)
    >>> mentions(b"COPY t FROM STDIN"), mentions(b"copy t to stdout")
    (<Keyword.COPY_IN: 32>, <Keyword.NOTHING: 0>)
    >>> mentions(b"declare c cursor for subscribe t"), mentions(b"SELECT subscribe FROM users")
    (<Keyword.SUBSCRIBE: 8>, <Keyword.NOTHING: 0>)
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
        and b"stdin" not in lowered
    ):
        return NOTHING
    found = NOTHING
    short = len(lowered) <= LONG
    if _loads(lowered, short) or _speaks_of_extensions(lowered, short) or _is_own(lowered, short):
        found |= Keyword.LOAD
    if b"subscribe" in lowered and (not short or _SUBSCRIBE.search(lowered)):
        found |= Keyword.SUBSCRIBE
    if (b"stream_table" in lowered or b"retain" in lowered) and any(name in lowered for name in _REQUESTS):
        found |= Keyword.REQUEST
    if _touches_databases(lowered, short):
        found |= Keyword.DATABASE
    if _copies_from_client(lowered, short):
        found |= Keyword.COPY_IN
    return found


def _loads(lowered: bytes, short: bool) -> bool:
    if b"://" not in lowered:
        return False
    if not short:
        return _follow(lowered, (b"copy",), (b"://",))
    copy = _COPY.search(lowered)
    source = _FROM.search(lowered, copy.end()) if copy else None
    return source is not None and _URI.search(lowered, source.end()) is not None


def _copies_from_client(lowered: bytes, short: bool) -> bool:
    if b"stdin" not in lowered:
        return False
    if not short:
        return _follow(lowered, (b"copy",), (b"stdin",))
    copy = _COPY.search(lowered)
    return copy is not None and _STDIN.search(lowered, copy.end()) is not None


def _speaks_of_extensions(lowered: bytes, short: bool) -> bool:
    if b"extension" not in lowered:
        return False
    if not short:
        return _follow(lowered, (b"extension",), _EXTENSIONS)
    word = _EXTENSION.search(lowered)
    return word is not None and _OF_OURS.search(lowered, word.end()) is not None and bool(_CHANGE.search(lowered))


def _is_own(lowered: bytes, short: bool) -> bool:
    if b"source" not in lowered and b"retain" not in lowered:
        return False
    if not short:
        return _follow(lowered, (b"create", b"drop"), (b"source",)) or _follow(lowered, (b"retain",), (b"history",))
    return _OWN.search(lowered) is not None


def _touches_databases(lowered: bytes, short: bool) -> bool:
    if b"database" not in lowered:
        return False
    if not short:
        return _follow(lowered, _CHANGES, (b"database",))
    change = _CHANGE.search(lowered)
    return change is not None and _DATABASE.search(lowered, change.end()) is not None


def _follow(lowered: bytes, first: tuple[bytes, ...], then: tuple[bytes, ...]) -> bool:
    """Whether one of the latter stands anywhere behind one of the former."""
    begin = min((at for word in first if (at := lowered.find(word)) >= 0), default=-1)
    return begin >= 0 and any(lowered.rfind(word) > begin for word in then)


def speaks_of_cursors(text: bytes) -> bool:
    """Whether a text may read or close a cursor.

    >>> speaks_of_cursors(b"FETCH ALL c"), speaks_of_cursors(b"select closed from shops")
    (True, False)
    """
    lowered = text.lower()
    if not any(word in lowered for word in _CURSORS):
        return False
    return len(lowered) > LONG or _CURSOR.search(lowered) is not None


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
