"""``pgtrickle.name`` in statements of clients: pg_trickle's examples read stream tables so, which are in ``public``.

Where such a statement names what the schema ``pgtrickle`` does not have, PostgreSQL gets ``public`` in its place, and
blanks behind it, so that positions in errors stay. It can only be what is read, or a stream table of which is said how
it is read (indexes, statistics, privileges, publications, policies, comments): nothing is written, altered or dropped
under a name that it does not have. There the client is told the name.
"""

from __future__ import annotations

from contextlib import suppress

from server.protocol.keyword_scan import PREFIXES, RELATIONS, SCHEMA
from server.protocol.lexer import Token, TooManyTokens, tokens

_NAME = SCHEMA.decode()
_READS = frozenset(
    (
        *("SELECT", "WITH", "TABLE", "VALUES", "(", "EXPLAIN", "DECLARE", "PREPARE", "SUBSCRIBE"),
        *("COPY", "INSERT", "UPDATE", "DELETE", "MERGE"),
        *("ANALYZE", "ANALYSE", "VACUUM", "LOCK"),
    )
)
"""What a statement begins with that can read, or prepare for it."""
_CREATES = frozenset(("VIEW", "TABLE", "INDEX", "STATISTICS", "PUBLICATION", "POLICY"))
_MODIFIERS = frozenset(("OR", "REPLACE", "MATERIALIZED", "TEMP", "TEMPORARY", "UNLOGGED", "RECURSIVE", "UNIQUE"))
_NO_TABLES = frozenset(("FUNCTION", "PROCEDURE", "ROUTINE", "SEQUENCE", "TYPE", "DOMAIN"))
"""What privileges are granted on otherwise, by names in a schema."""
_ABOUT_TABLES = (["ALTER", "PUBLICATION"], ["ALTER", "POLICY"], ["DROP", "POLICY"])
_COMMENTED = (["COMMENT", "ON", "TABLE"], ["COMMENT", "ON", "COLUMN"])
_HAVE_COLUMNS = frozenset(("INTO", "COPY", "VIEW", "ANALYZE", "ANALYSE", "VACUUM"))
"""What stands before the name of a relation that may have a list of columns behind it."""
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
    >>> as_request(b"COPY pgtrickle.a (n) TO STDOUT"), as_request(b"COPY pgtrickle.a (n) FROM STDIN")
    (b'COPY public   .a (n) TO STDOUT', None)
    >>> as_request(b"GRANT SELECT ON pgtrickle.a TO b"), as_request(b"GRANT ALL ON FUNCTION pgtrickle.a TO b")
    (b'GRANT SELECT ON public   .a TO b', None)
    >>> as_request(b'CREATE INDEX i ON pgtrickle.a (pgtrickle.f(n)) WHERE pgtrickle.g(n)')
    b'CREATE INDEX i ON public   .a (pgtrickle.f(n)) WHERE pgtrickle.g(n)'
    """
    if SCHEMA not in text.lower():
        return None
    with suppress(TooManyTokens):
        changed = bytearray(text)
        for token, _, written in _named(list(tokens(text, backslashes=backslashes, encoding=encoding))):
            if not written:
                name = b'"public"' if token.kind == "quoted" else b"public"
                changed[token.start : token.end] = name.ljust(token.end - token.start)
        return bytes(changed) if changed != text else None
    return None


def written_elsewhere(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> str | None:
    """The first name, behind that of the schema, of what the statement makes or changes and the schema does not have.

    >>> written_elsewhere(b'ALTER TABLE pgtrickle.a RENAME TO b'), written_elsewhere(b'TRUNCATE t, "pgtrickle"."A b"')
    ('a', 'A b')
    >>> written_elsewhere(b"CREATE INDEX ON pgtrickle.a (n)"), written_elsewhere(b"UPDATE pgtrickle.pgt_stream_tables")
    (None, None)
    """
    if SCHEMA in text.lower():
        with suppress(TooManyTokens):
            for _, name, written in _named(list(tokens(text, backslashes=backslashes, encoding=encoding))):
                if written:
                    return name
    return None


def _named(found: list[Token]) -> list[tuple[Token, str, bool]]:
    """The tokens that name the schema of what it does not have, its name, and whether it is written or made.

    There are none where the word may also be an alias.
    """
    kind = _kind([token.word for token in found])
    places = [at for at, token in enumerate(found) if _identifier(token) == _NAME]
    words = ["", "", *(token.word for token in found), ""]  # those from two before a place are words[at:]
    if any(words[at + 1] == "." or words[at + 3] != "." for at in places):
        return []
    return [
        (found[at], _identifier(found[at + 2]), not kind or _is_written(kind, words[at : at + 2], words[at + 5 :]))
        for at in places
        if at + 2 < len(found)
        and _is_elsewhere(found[at + 2])
        and (words[at + 5] != "(" or _has_columns(kind, words[at + 1]))
    ]


def _is_elsewhere(token: Token) -> bool:
    """Whether it names no relation of the schema's own."""
    name = _identifier(token)
    return bool(name) and name not in RELATIONS and not name.startswith(PREFIXES)


def _has_columns(kind: str, before: str) -> bool:
    """Whether what stands behind this word, and has a parenthesis behind it, is a relation; else it is a function."""
    return before in _HAVE_COLUMNS or (kind == "INDEX" and before in ("ON", "ONLY"))


def _kind(words: list[str]) -> str:
    """What a statement does, by one word; empty if it is none of those that are looked at."""
    while words[:1] == [";"]:
        words = words[1:]
    first = words[0] if words else ""
    if first in _READS:
        return first
    if first == "CREATE":
        return _created(words)
    if first in ("GRANT", "REVOKE"):
        return first if _NO_TABLES.isdisjoint(words) else ""
    if words[:2] in _ABOUT_TABLES or words[:3] in _COMMENTED:
        return words[1]
    secures = [word for word in words if word != ";"][-3:] == ["ROW", "LEVEL", "SECURITY"]
    return "SECURITY" if words[:2] == ["ALTER", "TABLE"] and secures else ""


def _created(words: list[str]) -> str:
    """What a CREATE makes, if it is one of those that are looked at."""
    made = next((word for word in words[1:5] if word not in _MODIFIERS), "")
    return made if made in _CREATES else ""


def _is_written(kind: str, before: list[str], behind: list[str]) -> bool:
    """Whether what stands between these words is written, or made."""
    if before[1] == "TABLE":
        return before[0] == "INTO" or (kind == "TABLE" and before[0] not in ("", ";"))
    if before == ["ON", "ONLY"]:  # an index
        return False
    if before[1] == "COPY":
        columns = behind.index(")") + 1 if behind[0] == "(" and ")" in behind else 0
        return behind[columns] != "TO"
    return before == ["DELETE", "FROM"] or before[1] in _WRITES


def _identifier(token: Token) -> str:
    """The identifier that a token is, as PostgreSQL folds it; empty if it is none."""
    if token.kind == "word":
        return token.word.lower()
    return token.word if token.kind == "quoted" else ""
