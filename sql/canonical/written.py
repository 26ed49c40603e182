"""What operators write, read as expressions in which sqlglot knows the functions."""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.dialects.dialect import DialectType
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from sql.errors import NotExpressible


class Written(Postgres):
    """PostgreSQL's dialect, but for the schema of its own functions: of a qualified call sqlglot knows nothing."""

    def tokenize(self, sql: str, dialect: DialectType = None) -> list[Token]:
        """The tokens of a text without ``pg_catalog.`` before the name of a function."""
        tokens = super().tokenize(sql, dialect)
        dropped = set[int]()
        for i, token in enumerate(tokens[:-3]):
            call = tokens[i + 1].token_type is TokenType.DOT and tokens[i + 3].token_type is TokenType.L_PAREN
            if call and token.token_type is TokenType.VAR and token.text == "pg_catalog":
                dropped |= {i, i + 1}
        return [token for i, token in enumerate(tokens) if i not in dropped] if dropped else tokens


def read(query: str) -> exp.Expr:
    """A query, or an expression of one. Raises NotExpressible.

    >>> read("SELECT pg_catalog.sum(x)::bigint AS n FROM t").find(exp.Sum) is not None
    True
    """
    try:
        return sqlglot.parse_one(query, read=Written)
    except SqlglotError as error:
        raise NotExpressible("syntax that is not understood") from error
