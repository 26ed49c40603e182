"""PostgreSQL's errors, with what a client needs to know and without what says nothing to it."""

from __future__ import annotations

from server.protocol import messages as m

_TERMINATION = "2D000"
_NO_ENDING = (
    "An engine request is carried out in the transaction of the whole statement, in which no procedure can COMMIT or"
    " ROLLBACK. Call the function outside the procedure."
)
_LONGEST = 1 << 16
"""Bytes of a context that is looked at: ours have a few lines."""
_FUNCTION = (b"PL/pgSQL function ", b"SQL function ")
_OURS = tuple(kind + schema for kind in _FUNCTION for schema in (b"pgtrickle.", b'"pgtrickle".'))


def explained(response: bytes, *, in_our_transaction: bool) -> bytes:
    """An ErrorResponse of a statement of the client's, which may run in a transaction that it does not know of.

    A context of nothing but functions of the catalog goes: to its users these are one function, as if written in C.
    """
    fields = m.report_fields(response[5:])
    before = dict(fields)
    if in_our_transaction and fields.get("C") == _TERMINATION.encode():
        fields.setdefault("H", _NO_ENDING.encode())
    if "W" in fields and _is_ours(fields["W"]):
        del fields["W"]
    return response if fields == before else m.rebuild_report(m.ERROR, fields)


def _is_ours(context: bytes) -> bool:
    """
    >>> inner = b'PL/pgSQL function pgtrickle._f(text) line 1 at RAISE\\nSQL statement "SELECT pgtrickle._f(x)"\\n'
    >>> _is_ours(inner + b"PL/pgSQL function pgtrickle.g(text) line 3 at PERFORM")
    True
    >>> _is_ours(inner + b"PL/pgSQL function inline_code_block line 1 at PERFORM"), _is_ours(b"COPY t, line 1")
    (False, False)
    """
    if len(context) > _LONGEST:
        return False
    lines = context.split(b"\n")
    called = [line for line in lines if line.startswith(_FUNCTION)]
    return bool(called) and all(line.startswith(_OURS) for line in called) and lines[-1] is called[-1]
