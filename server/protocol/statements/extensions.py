"""`CREATE | ALTER | DROP EXTENSION` of what the server installs, which PostgreSQL gets as an engine request.

In its place goes a DO block, as for COPY from files (``uri_copy``). The completion that the client sees is the
engine's. Statements about other extensions, and forms that we do not know, are PostgreSQL's own.
"""

from __future__ import annotations

from dataclasses import dataclass

from server.protocol.lexer import leading, single
from sql.base.text import plain_string

_BEGINS = frozenset(("CREATE", "ALTER", "DROP"))
NAMES = ("pg_trickle", "pgque", "pg_accumulator")
"""The extensions whose place the server takes."""


@dataclass(frozen=True, slots=True)
class ExtensionStatement:
    """What a statement asks for. `guarded` is IF [NOT] EXISTS."""

    action: str
    name: str
    guarded: bool = False
    cascade: bool = False
    schema: str | None = None


def parse(words: tuple[str, ...]) -> ExtensionStatement | None:
    """The statement of these words (`Statement.words`), None if it is not ours.

    >>> parse(("CREATE", "EXTENSION", "IF", "NOT", "EXISTS", "PGQUE", "SCHEMA", "PGQUE"))
    ExtensionStatement(action='create', name='pgque', guarded=True, cascade=False, schema='pgque')
    >>> parse(("CREATE", "EXTENSION", "HSTORE"))
    """
    if len(words) < 3 or words[0] not in ("CREATE", "ALTER", "DROP") or words[1] != "EXTENSION":
        return None
    action, rest = words[0].lower(), list(words[2:])
    guard = {"create": ["IF", "NOT", "EXISTS"], "drop": ["IF", "EXISTS"]}.get(action, [])
    guarded = bool(guard) and rest[: len(guard)] == guard
    rest = rest[len(guard) :] if guarded else rest
    if not rest or rest[0].lower() not in NAMES:
        return None
    name, rest = rest[0].lower(), rest[1:]
    if action == "alter":
        known = rest == ["UPDATE"] or (rest[:2] == ["UPDATE", "TO"] and len(rest) == 3)
        return ExtensionStatement(action, name) if known else None
    if action == "drop":
        known = rest in ([], ["CASCADE"], ["RESTRICT"])
        return ExtensionStatement(action, name, guarded, cascade=rest == ["CASCADE"]) if known else None
    return _creation(name, guarded, rest[1:] if rest[:1] == ["WITH"] else rest)


def _creation(name: str, guarded: bool, rest: list[str]) -> ExtensionStatement | None:
    """CREATE EXTENSION with these options, None if it is not ours."""
    schema: str | None = None
    cascade = False
    while rest:
        match rest:
            case ["SCHEMA", value, *rest]:
                # Words that were not quoted are in upper case.
                schema = value.encode("latin-1").lower().decode("latin-1") if value.isupper() else value
            case ["VERSION", _, *rest]:
                pass
            case ["CASCADE", *rest]:
                cascade = True
            case _:
                return None
    return ExtensionStatement("create", name, guarded, cascade, schema)


def as_request(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> bytes | None:
    """The request in the place of a statement, None if it is not ours.

    >>> as_request(b"drop extension pgque cascade;")
    b"DO $$BEGIN PERFORM pgtrickle._request_extension('drop', 'pgque', false, true, NULL); END$$"
    """
    if leading(text, 2, backslashes=backslashes, encoding=encoding)[1:] != ("EXTENSION",):
        return None
    statement = single(text, _BEGINS, backslashes=backslashes, encoding=encoding)
    asked = parse(statement.words) if statement is not None else None
    if asked is None:
        return None
    schema = "NULL" if asked.schema is None else plain_string(asked.schema.replace("$", ""))
    arguments = f"'{asked.action}', '{asked.name}', {asked.guarded}, {asked.cascade}, {schema}"
    arguments = arguments.replace("True", "true").replace("False", "false")
    return f"DO $$BEGIN PERFORM pgtrickle._request_extension({arguments}); END$$".encode("latin-1")
