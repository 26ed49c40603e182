"""Names that a query has qualified by a schema, as its user wrote it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType


@dataclass(frozen=True, slots=True)
class Qualified:
    """`name` behind the schema that stands in ``query[start:end]``."""

    start: int
    end: int
    name: str


def qualified_by(query: str, schema: str) -> tuple[Qualified, ...]:
    """What the query names in a schema, but for functions; nothing where the same word may also be an alias.

    >>> found = qualified_by('SELECT n FROM app.t JOIN "app"."U" ON app.f(1) = n', "app")
    >>> [(each.start, each.end, each.name) for each in found]
    [(14, 17, 't'), (25, 30, 'U')]
    >>> qualified_by("SELECT app.n FROM t AS app", "app"), qualified_by("SELECT 'app.t', $$app.t$$ -- app.t", "app")
    ((), ())
    """
    try:
        tokens = Postgres().tokenize(query)
    except (SqlglotError, RecursionError):
        return ()
    found = []
    for at, token in enumerate(tokens):
        if _name(token) != schema:
            continue
        before = tokens[at - 1].token_type if at else None
        dot, named, behind = [*tokens[at + 1 : at + 4], None, None, None][:3]
        if before is TokenType.DOT or dot is None or dot.token_type is not TokenType.DOT:
            return ()
        name = _name(named) if named is not None else None
        if name is not None and (behind is None or behind.token_type is not TokenType.L_PAREN):
            found.append(Qualified(token.start, token.end + 1, name))
    return tuple(found)


def _name(token: Token) -> str | None:
    """The identifier that a token is, as PostgreSQL folds it."""
    if token.token_type is TokenType.IDENTIFIER:
        return token.text
    if token.token_type in (TokenType.STRING, TokenType.HEREDOC_STRING, TokenType.BYTE_STRING):
        return None
    return token.text.lower() if token.text.replace("$", "_").isidentifier() else None
