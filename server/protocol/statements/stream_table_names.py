"""``pgtrickle.name`` in statements of clients: pg_trickle's examples read stream tables so, which are in ``public``.

Where such a statement names what the schema ``pgtrickle`` does not have, PostgreSQL gets ``public`` in its place, and
blanks behind it, so that positions in errors stay. It can only be what is read, or a stream table of which is said how
it is read (publications, policies): nothing is written, altered or dropped under a name that it does not have.
"""

from __future__ import annotations

from contextlib import suppress

from server.protocol.keyword_scan import PREFIXES, RELATIONS, SCHEMA
from server.protocol.lexer import Token, TooManyTokens, tokens

_NAME = SCHEMA.decode()
_READS = frozenset(
    (
        "SELECT",
        "WITH",
        "TABLE",
        "VALUES",
        "(",
        "EXPLAIN",
        "DECLARE",
        "PREPARE",
        "COPY",
        "INSERT",
        "UPDATE",
        "DELETE",
        "MERGE",
    )
)
"""What a statement begins with that can read."""
_CREATES = frozenset(("VIEW", "TABLE", "PUBLICATION", "POLICY"))
_MODIFIERS = frozenset(("OR", "REPLACE", "MATERIALIZED", "TEMP", "TEMPORARY", "UNLOGGED", "RECURSIVE"))
_WRITES = frozenset(("INTO", "UPDATE", "COPY", "VIEW", "EXISTS", "ONLY"))
"""What stands before the name of something that is written or made."""


def as_request(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> bytes | None:
    """The statement as PostgreSQL gets it, None if it is the same.

    >>> as_request(b'SELECT pgtrickle.a.n FROM "pgtrickle" . a, pgtrickle.pgt_status()')
    b'SELECT public   .a.n FROM "public"    . a, pgtrickle.pgt_status()'
    >>> as_request(b"SELECT pgtrickle.n FROM t AS pgtrickle"), as_request(b"DELETE FROM pgtrickle.a")
    (None, None)
    >>> as_request(b"WITH gone AS (DELETE FROM pgtrickle.a) SELECT 'pgtrickle.b' FROM pgtrickle.pgt_stream_tables")
    >>> as_request(b"CREATE VIEW pgtrickle.v AS SELECT * FROM pgtrickle.a")
    b'CREATE VIEW pgtrickle.v AS SELECT * FROM public   .a'
    """
    if SCHEMA not in text.lower():
        return None
    with suppress(TooManyTokens):
        found = list(tokens(text, backslashes=backslashes, encoding=encoding))
        changed = bytearray(text)
        for token in _to_change(found):
            name = b'"public"' if token.kind == "quoted" else b"public"
            changed[token.start : token.end] = name.ljust(token.end - token.start)
        return bytes(changed) if changed != text else None
    return None


def _to_change(found: list[Token]) -> list[Token]:
    """The tokens that name the schema of what it does not have; none where the word may also be an alias."""
    kind = _kind([token.word for token in found])
    places = [at for at, token in enumerate(found) if _identifier(token) == _NAME] if kind else []
    words = ["", "", *(token.word for token in found), ""]  # those from two before a place are words[at:]
    if any(words[at + 1] == "." or words[at + 3] != "." for at in places):
        return []
    return [
        found[at]
        for at in places
        if _is_elsewhere(found[at + 2 : at + 4]) and not _is_written(kind, words[at : at + 2])
    ]


def _is_elsewhere(following: list[Token]) -> bool:
    """Whether the first of these tokens names no relation and no function of the schema's own."""
    name = _identifier(following[0]) if following else ""
    if not name or name in RELATIONS or name.startswith(PREFIXES):
        return False
    return [token.word for token in following[1:]] != ["("]


def _kind(words: list[str]) -> str:
    """What a statement does, by one word; empty if it is none of those that are looked at."""
    while words[:1] == [";"]:
        words = words[1:]
    first = words[0] if words else ""
    if first in _READS:
        return first
    if first == "CREATE":
        made = next((word for word in words[1:5] if word not in _MODIFIERS), "")
        return made if made in _CREATES else ""
    if words[:2] in (["ALTER", "PUBLICATION"], ["ALTER", "POLICY"], ["DROP", "POLICY"]):
        return words[1]
    secures = [word for word in words if word != ";"][-3:] == ["ROW", "LEVEL", "SECURITY"]
    return "SECURITY" if words[:2] == ["ALTER", "TABLE"] and secures else ""


def _is_written(kind: str, before: list[str]) -> bool:
    """Whether what stands behind these words is written, or made."""
    if before[1] == "TABLE":
        return before[0] == "INTO" or (kind == "TABLE" and before[0] not in ("", ";"))
    return before == ["DELETE", "FROM"] or before[1] in _WRITES


def _identifier(token: Token) -> str:
    """The identifier that a token is, as PostgreSQL folds it; empty if it is none."""
    if token.kind == "word":
        return token.word.lower()
    return token.word if token.kind == "quoted" else ""
