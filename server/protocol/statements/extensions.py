"""`CREATE | ALTER | DROP EXTENSION` of what the server installs, which PostgreSQL gets as engine requests.

In its place goes a DO block, as for COPY from files (``uri_copy``). The completion that the client sees is the
engine's. Statements about other extensions, and what is no statement of PostgreSQL's grammar, are PostgreSQL's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.protocol.lexer import Token, leading, single_tokens
from sql.base.text import plain_string

_BEGINS = frozenset(("CREATE", "ALTER", "DROP"))
NAMES = ("pg_trickle", "pgque", "pg_accumulator")
"""The extensions whose place the server takes."""


@dataclass(frozen=True, slots=True)
class ExtensionStatement:
    """What a statement asks for.

    `action` is create, update, move, members or drop, and others where ours are dropped together with what is not.
    `guarded` is IF [NOT] EXISTS. `schema` and `version` are string literals, or None.
    """

    action: str
    names: tuple[str, ...]
    guarded: bool = False
    cascade: bool = False
    schema: str | None = None
    version: str | None = None


def parse(read: list[Token]) -> ExtensionStatement | None:
    """The statement of these tokens, None if it is not ours.

    >>> from server.protocol.lexer import tokens
    >>> parse([*tokens(b"CREATE EXTENSION PGQUE SCHEMA PgQue VERSION '1'")])
    ExtensionStatement(action='create', names=('pgque',), guarded=False, cascade=False, schema="'pgque'", version="'1'")
    >>> parse([*tokens(b"CREATE EXTENSION HSTORE")])
    """
    if len(read) < 3 or _words(read[:1])[0] not in _BEGINS or _words(read[1:2]) != ["EXTENSION"]:
        return None
    action, rest = read[0].word, read[2:]
    guard = {"CREATE": ["IF", "NOT", "EXISTS"], "DROP": ["IF", "EXISTS"]}.get(action, [])
    guarded = bool(guard) and _words(rest[: len(guard)]) == guard
    rest = rest[len(guard) :] if guarded else rest
    if action == "DROP":
        return _removal(rest, guarded)
    name = _name(rest[0]) if rest else None
    if name not in NAMES:
        return None
    if action == "ALTER":
        return _alteration(name, rest[1:])
    return _creation(name, guarded, rest[2:] if _words(rest[1:2]) == ["WITH"] else rest[1:])


def _creation(name: str, guarded: bool, rest: list[Token]) -> ExtensionStatement | None:
    """CREATE EXTENSION with these options, None where PostgreSQL's grammar has them otherwise."""
    given: dict[str, str | None] = {}
    while rest:
        option = rest[0].word
        if option in given or rest[0].kind != "word":
            return None
        if option == "CASCADE":
            given[option], rest = None, rest[1:]
            continue
        if option not in ("SCHEMA", "VERSION") or len(rest) < 2:
            return None
        value = _version(rest[1]) if option == "VERSION" else _identifier(rest[1])
        if value is None:
            return None
        given[option], rest = value, rest[2:]
    return ExtensionStatement("create", (name,), guarded, "CASCADE" in given, given.get("SCHEMA"), given.get("VERSION"))


def _alteration(name: str, rest: list[Token]) -> ExtensionStatement | None:
    """ALTER EXTENSION: another version, another schema, other members."""
    words = _words(rest)
    if words == ["UPDATE"]:
        return ExtensionStatement("update", (name,))
    if words[:2] == ["UPDATE", "TO"] and len(rest) == 3:
        version = _version(rest[2])
        return None if version is None else ExtensionStatement("update", (name,), version=version)
    if words[:2] == ["SET", "SCHEMA"] and len(rest) == 3:
        schema = _identifier(rest[2])
        return None if schema is None else ExtensionStatement("move", (name,), schema=schema)
    return ExtensionStatement("members", (name,)) if words[:1] in (["ADD"], ["DROP"]) and len(rest) > 2 else None


def _removal(rest: list[Token], guarded: bool) -> ExtensionStatement | None:
    """DROP EXTENSION of one or several."""
    names: list[str | None] = []
    while rest:
        names.append(_name(rest[0]))
        rest = rest[1:]
        if not rest or (rest[0].kind, rest[0].word) != ("other", ","):
            break
        rest = rest[1:]
    ours = tuple(name for name in names if name in NAMES)
    how = _words(rest)
    if not ours or None in names or how not in ([], ["CASCADE"], ["RESTRICT"]):
        return None
    action = "drop" if len(ours) == len(names) else "others"
    return ExtensionStatement(action, tuple(dict.fromkeys(ours)), guarded, how == ["CASCADE"])


def _words(read: list[Token]) -> list[str | None]:
    """The keywords of tokens, None for what is none."""
    return [token.word if token.kind == "word" else None for token in read]


def _name(token: Token) -> str | None:
    """An identifier as PostgreSQL reads it, None for what is none. Bytes are characters."""
    if token.kind == "word":
        return token.word.encode("latin-1").lower().decode("latin-1")
    return token.word if token.kind == "quoted" and not token.word.startswith(("U&", "u&")) else None


def _identifier(token: Token) -> str | None:
    """A name as a string literal."""
    name = _name(token)
    return None if name is None else plain_string(name)


def _version(token: Token) -> str | None:
    """A version as a string literal: it is one already, or a word."""
    if token.kind in ("string", "escaped", "dollar"):
        return token.word if token.word[:1].upper() not in ("B", "X", "N") else None
    return _identifier(token)


def as_request(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> bytes | None:
    """The requests in the place of a statement, None if it is not ours.

    >>> as_request(b"drop extension pgque cascade;")
    b"DO $hw0$BEGIN PERFORM pgtrickle._request_extension('drop', 'pgque', false, true, NULL, NULL); END$hw0$"
    """
    if leading(text, 2, backslashes=backslashes, encoding=encoding)[1:] != ("EXTENSION",):
        return None
    read = single_tokens(text, _BEGINS, backslashes=backslashes, encoding=encoding)
    asked = parse(read) if read is not None else None
    if asked is None:
        return None
    options = ", ".join(
        (str(asked.guarded).lower(), str(asked.cascade).lower(), asked.schema or "NULL", asked.version or "NULL")
    )
    calls = " ".join(
        f"PERFORM pgtrickle._request_extension('{asked.action}', '{name}', {options});" for name in asked.names
    )
    number = 0
    while f"$hw{number}$" in calls:
        number += 1
    return f"DO $hw{number}$BEGIN {calls} END$hw{number}$".encode("latin-1")
