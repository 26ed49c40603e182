"""PostgreSQL's errors and messages, with what a client needs to know and without what says nothing to it."""

from __future__ import annotations

import re
from collections.abc import Callable

from server.protocol import messages as m
from sql.base.text import quote

_TERMINATION = "2D000"
_NO_ENDING = (
    "An engine request is carried out in the transaction of the whole statement, in which no procedure can COMMIT or"
    " ROLLBACK. Call the function outside the procedure."
)
_NOT_FOUND = (b"42P01", b"42704")
_MISSING = (b"42P01", b"42883")
_NOT_YET = (
    "What a function or block asks the engine for is done when its statement has been answered. Make the stream table"
    " in a statement of its own, and wait for its result, before what reads it."
)
_ELSEWHERE = (
    'Stream tables are not in the schema "pgtrickle" but where they were created, in "public" unless a schema was said:'
    " write public.{}."
)
_LONGEST = 1 << 16
"""Bytes of a context that is looked at: ours have a few lines."""
_FUNCTION = (b"PL/pgSQL function ", b"SQL function ")
_IN_SQL = re.compile(rb'SQL function "([^"]{0,63})"')
"""PostgreSQL does not say its schema."""
SQL_FUNCTIONS = frozenset(
    (
        *("bootstrap_gate_status", "change_buffer_sizes", "dependency_tree", "diamond_groups"),
        *("engine_tables", "explain_st", "get_lag", "get_refresh_history", "get_staleness"),
        *("list_sources", "parallel_job_status", "parse_duration_seconds", "pg_trickle_hash", "pg_trickle_hash_multi"),
        *("pgt_scc_status", "pgt_status", "refresh_groups", "refresh_timeline"),
        *("slot_health", "source_gates", "source_status", "st_refresh_stats", "subscription_status"),
        *("trigger_inventory", "version", "watermark_groups", "watermark_status"),
        *("watermarks", "worker_pool_status", "xmin_holders"),
    )
)
"""Functions of the schema `pgtrickle` that are written in SQL, but for those that begin with an underscore."""
_EVENT_TRIGGER = b"\0REventTriggerInvoke\0"
_SCHEMAS = (
    *(b" pgtrickle.", b" pgtrickle_changes.", b" pgtrickle_roles.", b" pgque."),
    *(b" accum.", b" accum_internal.", b" accum_roles."),
)
_OURS = (b"PL/pgSQL function pgtrickle.", b'PL/pgSQL function "pgtrickle".')


def explained(
    response: bytes,
    *,
    in_our_transaction: bool,
    requested: bool = False,
    elsewhere: Callable[[], str | None] = lambda: None,
    uninstalled: str | None = None,
) -> bytes:
    """An ErrorResponse of a statement of the client's, which may run in a transaction that it does not know of.

    `requested`: the statement had asked the engine for something, which it may then not have found.
    `elsewhere` gives the name in the schema `pgtrickle` by which it changes what is not there, if it does.
    `uninstalled` tells what has been taken out of the database, if anything has.
    """
    fields = m.report_fields(response[5:])
    before = dict(fields)
    if in_our_transaction and fields.get("C") == _TERMINATION.encode():
        fields.setdefault("H", _NO_ENDING.encode())
    if requested and fields.get("C") in _NOT_FOUND:
        fields.setdefault("H", _NOT_YET.encode())
    if fields.get("C") in _NOT_FOUND and (name := elsewhere()) is not None and name.isascii():
        fields.setdefault("H", _ELSEWHERE.format(quote(name)).encode())
    if uninstalled is not None and fields.get("C") in _MISSING and b"pgtrickle." in fields.get("M", b""):
        fields["H"] = uninstalled.encode()
    return without_own_context(response if fields == before else m.rebuild_report(m.ERROR, fields))


def without_own_context(response: bytes) -> bytes:
    """An ErrorResponse without its context, where that tells of nothing but functions of the catalog.

    To its users these are one function, as if written in C.
    """
    if b"\0WPL/pgSQL function " not in response and b"\0WSQL function " not in response:
        return response
    fields = m.report_fields(response[5:])
    if not _is_ours(fields.get("W", b"")):
        return response
    del fields["W"]
    return m.rebuild_report(m.ERROR, fields)


def is_own_debugging(body: bytes) -> bool:
    """Whether a notice's body is a DEBUG message that the client would not get without us.

    PostgreSQL announces each function that an event trigger calls, without saying in its name which one: all of these
    are left out.

    >>> is_own_debugging(b"SDEBUG\\0VDEBUG\\0C00000\\0MEventTriggerInvoke 1\\0REventTriggerInvoke\\0\\0")
    True
    >>> is_own_debugging(b"SDEBUG\\0VDEBUG\\0C00000\\0Mhere\\0WPL/pgSQL function pgque.send(text) line 3\\0\\0")
    True
    >>> is_own_debugging(b"SDEBUG\\0VDEBUG\\0C00000\\0Mhere\\0WPL/pgSQL function mine(text) line 3\\0\\0")
    False
    """
    if not m.is_debugging(body):
        return False
    return _EVENT_TRIGGER in body or any(map(_is_at_work, m.report_fields(body).get("W", b"").split(b"\n")))


def _is_at_work(line: bytes) -> bool:
    """Whether a line of a context, in any language, tells of a function of the catalog; a statement in it is quoted."""
    place = line.partition(b'"')[0]
    return b"PL/pgSQL" in place and any(schema in place for schema in _SCHEMAS)


def _is_ours(context: bytes) -> bool:
    """
    >>> inner = b'PL/pgSQL function pgtrickle._f(text) line 1 at RAISE\\nSQL statement "SELECT pgtrickle._f(x)"\\n'
    >>> _is_ours(inner + b"PL/pgSQL function pgtrickle.g(text) line 3 at PERFORM")
    True
    >>> _is_ours(inner + b'SQL function "list_sources" statement 1'), _is_ours(inner + b'SQL function "f" statement 1')
    (True, False)
    >>> _is_ours(inner + b"PL/pgSQL function inline_code_block line 1 at PERFORM"), _is_ours(b"COPY t, line 1")
    (False, False)
    """
    if len(context) > _LONGEST:
        return False
    lines = context.split(b"\n")
    called = [line for line in lines if line.startswith(_FUNCTION)]
    return bool(called) and all(map(_tells_of_ours, called)) and lines[-1] is called[-1]


def _tells_of_ours(line: bytes) -> bool:
    """Whether a line of a context tells of a function of the catalog."""
    found = _IN_SQL.match(line)
    if found is None:
        return line.startswith(_OURS)
    return found[1].startswith(b"_") or found[1].decode("latin-1") in SQL_FUNCTIONS
