"""The one cheap scan that every Query and Parse undergoes: does the text name something the relay must attend to?

A hit costs time, never correctness: the interceptor reads the text closely (``lexer``). So a long text is searched for
the words alone. No pattern here has a repetition without a small bound: the time is linear in the text's length. A
request function reached without being named (by a function of the user's, by EXECUTE) is noticed by the INFO it raises.
"""

from __future__ import annotations

import re
from enum import Flag, auto
from typing import NamedTuple

from server.protocol.lexer import leading


class Keyword(Flag):
    NOTHING = 0
    REQUEST = auto()
    """Names a function that makes an engine request."""
    DATABASE = auto()
    """May create, alter or drop a database, which PostgreSQL refuses while the engine is connected to it."""
    LOAD = auto()
    """May be COPY from files (``uri_copy``), or a statement of ``extensions``, ``request_statements``,
    ``setting_syntax`` or ``stream_table_names``."""
    SUBSCRIBE = auto()
    """May be a SUBSCRIBE in one of its forms, or speak of its cursor (``subscribe_syntax``, ``cursor_syntax``)."""
    CURSOR = auto()
    """Speaks of a cursor, which may be one of SUBSCRIBE's by the time at which the statement is run."""
    COPY_IN = auto()
    """May be a COPY from the client: its data come once, so that it cannot be run again where a trigger has made a
    request."""
    CALLER = auto()
    """May define something that makes an engine request wherever it is used: a function, a view, a default."""


NOTHING = Keyword.NOTHING

LONG = 1 << 15
"""Bytes of a text from which on only its parts are searched for, wherever they stand."""


class _Form(NamedTuple):
    """Texts that one keyword stands for."""

    keyword: Keyword
    words: tuple[bytes, ...]
    """One of them is in every such text."""
    steps: tuple[re.Pattern[bytes], ...]
    """Each is found behind the one before it."""
    first: tuple[bytes, ...]
    """What is searched for in a long text: one of these,"""
    then: tuple[bytes, ...] = ()
    """and one of these anywhere behind it."""
    everywhere: bool = False
    """Whether the fast path looks for it in statements that read or write rows, too."""

    def fits(self, lowered: bytes) -> bool:
        if not any(word in lowered for word in self.words):
            return False
        if len(lowered) > LONG:
            begin = min((at for word in self.first if (at := lowered.find(word)) >= 0), default=-1)
            return begin >= 0 and (not self.then or any(lowered.rfind(word) > begin for word in self.then))
        end = 0
        for step in self.steps:
            found = step.search(lowered, end)
            if found is None:
                return False
            end = found.end()
        return True


SCHEMA = b"pgtrickle"
RELATIONS = frozenset(("settings", "stream_tables_info", "pg_stat_stream_tables", "quick_health"))
"""Relations of that schema that begin with none of `PREFIXES`."""
PREFIXES = ("_", "pgt_")
_CHANGES = (b"create", b"alter", b"drop")
_EXTENSIONS = (b"pg_trickle", b"pgque", b"pg_accumulator")
_ON_STREAM_TABLES = tuple(
    verb + b"_stream_table"
    for verb in (b"create", b"replace", b"if_not_exists", b"drop", b"alter", b"refresh", b"resume")
)
_CHANGE, _COPY = re.compile(rb"\b(?:create|alter|drop)\b"), re.compile(rb"\bcopy\b")
_FROM, _URI = re.compile(rb"\bfrom\b"), re.compile(rb"'[a-z0-9]{1,16}://")
_EXTENSION = re.compile(rb"\bextension\b")
_SETS, _SETTING = re.compile(rb"\b(?:set|reset|show)\b"), re.compile(rb"\bpg_trickle\"?\s{0,64}+\.")
_OF_OURS = re.compile(rb"\b(?:pg_trickle|pgque|pg_accumulator)\b")
# A name in the schema of the functions that is none of its relations' and no function's. Behind one of these words it
# is a relation's, even if a list of columns follows.
_NAME = (
    rb'\bpgtrickle"?\s{0,64}+\.\s{0,64}+"?(?!%b|(?:%b)\b)'
    % tuple("|".join(sorted(each)).encode() for each in (PREFIXES, RELATIONS))
    + rb'(?:[a-z0-9_$ \x80-\xff]{1,63}+"|[a-z0-9_$\x80-\xff]{1,63}+)'
)
_IN_SCHEMA = re.compile(
    rb'\b(?:on|only|copy|into|view|analy[sz]e|vacuum)\s{1,64}+"?' + _NAME + rb"|" + _NAME + rb"\s{0,64}+(?!\()"
)
# Two words behind one another, or the first one in front of a comment or of much white space.
_SOURCE = re.compile(rb"\b(?:create|drop)\b\s{0,64}+(?:source\b|/\*|--|\s)")
_RETAIN = re.compile(rb"\bretain\b\s{0,64}+(?:history\b|/\*|--|\s)")
# Where a statement can begin, or behind FOR of a DECLARE, and followed by what can be subscribed to.
_SUBSCRIBE = re.compile(rb'(?:^|[\0;(/\r\n]|\bfor\b)\s{0,64}+(?:\s|subscribe\s{0,64}+(?:["(a-z_/\x80-\xff\s]|--))')
_REQUEST = re.compile(rb"(?:create|replace|if_not_exists|drop|alter|refresh|resume)_stream_table")
_PUBLISH = re.compile(rb'\b(?:un)?publish"?\s{0,64}+(?:\(|/\*|--|\s)')
_DATABASE = re.compile(rb"\bdatabase\b")
_STDIN = re.compile(rb"\bstdin\b")
_DEFINITION = re.compile(rb"\b(?:create|alter|prepare)\b")
_CALL = re.compile(
    rb"(?:create|replace|if_not_exists|drop|alter|refresh|resume)_stream_table|retain_history|\b(?:un)?publish\b"
)

_FORMS = (
    _Form(Keyword.LOAD, (b"://",), (_COPY, _FROM, _URI), (b"copy",), (b"://",)),
    _Form(Keyword.LOAD, (b"extension",), (_CHANGE, _EXTENSION, _OF_OURS), (b"extension",), _EXTENSIONS),
    _Form(Keyword.LOAD, (b"pg_trickle",), (_SETS, _SETTING), (b"set", b"show"), (b"pg_trickle",)),
    _Form(Keyword.LOAD, (b"source",), (_SOURCE,), (b"create", b"drop"), (b"source",)),
    _Form(Keyword.LOAD, (b"retain",), (_RETAIN,), (b"retain",), (b"history",)),
    _Form(Keyword.LOAD, (SCHEMA,), (_IN_SCHEMA,), (SCHEMA,)),
    _Form(Keyword.SUBSCRIBE, (b"subscribe",), (_SUBSCRIBE,), (b"subscribe",)),
    _Form(Keyword.REQUEST, (b"stream_table",), (_REQUEST,), _ON_STREAM_TABLES, everywhere=True),
    # It is rare: where the fast path passes it, it is noticed by the INFO that it raises.
    _Form(Keyword.REQUEST, (b"retain_history",), (), (b"retain_history",)),
    _Form(Keyword.REQUEST, (b"publish",), (_PUBLISH,), (b"publish",), (b"(",)),
    _Form(Keyword.DATABASE, (b"database",), (_CHANGE, _DATABASE), _CHANGES, (b"database",), everywhere=True),
    _Form(Keyword.COPY_IN, (b"stdin",), (_COPY, _STDIN), (b"copy",), (b"stdin",)),
    _Form(
        Keyword.CALLER,
        (b"stream_table", b"retain_history", b"publish"),
        (_DEFINITION, _CALL),
        (b"create ", b"alter ", b"prepare "),
        (*_ON_STREAM_TABLES, b"retain_history", b"publish"),
    ),
)

_WORDS = tuple({word: None for form in _FORMS for word in form.words})
EVERYWHERE = tuple(word for form in _FORMS if form.everywhere for word in form.words)
IN_EVERYWHERE = b"tab"
"""What all of these have in common: most texts are done with after one look."""
ELSEWHERE = tuple({word: None for form in _FORMS if not form.everywhere for word in form.words})
"""The words of all other forms."""
CURSOR_WORDS = (b"fetch", b"close", b"move")
"""A text without any of them does not speak of a cursor."""

_CURSOR = re.compile(rb"\b(?:fetch|close|move)\b")
COMMIT_WORDS = (b"commit", b"end", b"prepare")
"""A text without any of them does not commit a transaction."""
_COMMIT = re.compile(rb"\b(?:commit|end|prepare)\b")
_SENDS = re.compile(
    rb'pgque"?\s{0,64}\.\s{0,64}"?(?:send|insert_event|dlq_replay|force_|create_queue|resume_queue|start)'
)


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
    >>> mentions(b"SELECT n FROM pgtrickle.totals"), mentions(b"SELECT * FROM pgtrickle.pgt_status()")
    (<Keyword.LOAD: 4>, <Keyword.NOTHING: 0>)
    >>> mentions(b"select pgtrickle.get_staleness ('x')"), mentions(b'TABLE "pgtrickle" . "Odd one"')
    (<Keyword.NOTHING: 0>, <Keyword.LOAD: 4>)
    >>> mentions(b"CREATE INDEX ON pgtrickle.totals (n)"), mentions(b"SELECT pgtrickle.quick_health (n)")
    (<Keyword.LOAD: 4>, <Keyword.NOTHING: 0>)
    >>> mentions(b"COPY t FROM STDIN"), mentions(b"copy t to stdout")
    (<Keyword.COPY_IN: 32>, <Keyword.NOTHING: 0>)
    >>> mentions(b"declare c cursor for subscribe t"), mentions(b"SELECT subscribe FROM users")
    (<Keyword.SUBSCRIBE: 8>, <Keyword.NOTHING: 0>)
    >>> mentions(b"create function f() returns void return pgtrickle.resume_stream_table('x')")
    <Keyword.REQUEST|CALLER: 65>
    """
    lowered = text.lower()
    for word in _WORDS:
        if word in lowered:
            break
    else:
        return NOTHING
    found = NOTHING
    for form in _FORMS:
        if form.keyword not in found and form.fits(lowered):
            found |= form.keyword
    return found


def speaks_of_cursors(text: bytes) -> bool:
    """Whether a text may read or close a cursor.

    >>> speaks_of_cursors(b"FETCH ALL c"), speaks_of_cursors(b"select closed from shops")
    (True, False)
    """
    lowered = text.lower()
    if not any(word in lowered for word in CURSOR_WORDS):
        return False
    return len(lowered) > LONG or _CURSOR.search(lowered) is not None


def commits(lowered: bytes) -> bool:
    """Whether a text, in lower case, may commit a transaction; of several statements, whether one of them may.

    >>> commits(b"/* all */ commit work"), commits(b"select case when a then 1 end"), commits(b"select 1; end")
    (True, False, True)
    """
    if not any(word in lowered for word in COMMIT_WORDS):
        return False
    if len(lowered) > LONG:
        return b";" in lowered
    if b";" in lowered.rstrip(b"; \t\r\n"):
        return _COMMIT.search(lowered) is not None
    first = leading(lowered, 2)
    return first[:1] in (("COMMIT",), ("END",)) or first == ("PREPARE", "TRANSACTION")


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
