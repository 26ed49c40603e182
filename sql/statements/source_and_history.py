"""Statements that PostgreSQL has no grammar for: CREATE SOURCE, DROP SOURCE, and RETAIN HISTORY of a relation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

RELATION_KINDS = ("TABLE", "VIEW", "MATERIALIZED VIEW", "SOURCE")
"""What can stand before the name in ALTER … SET (RETAIN HISTORY …)."""


class StatementError(Exception):
    """A statement that is not understood. ``sqlstate`` is 42601, 42622 or 0A000; the text is in PostgreSQL's style."""

    def __init__(self, sqlstate: str, message: str, hint: str | None = None):
        super().__init__(sqlstate, message, hint)
        self.sqlstate = sqlstate
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class CreateSource:
    """CREATE SOURCE … FROM LOAD GENERATOR COUNTER. ``name`` has one or two parts; intervals are as written."""

    name: tuple[str, ...]
    guarded: bool = False
    tick_interval: str | None = None
    retain: str | None = None


@dataclass(frozen=True, slots=True)
class DropSource:
    """DROP SOURCE. ``guarded`` is IF EXISTS."""

    name: tuple[str, ...]
    guarded: bool = False
    cascade: bool = False


@dataclass(frozen=True, slots=True)
class RetainHistory:
    """ALTER … SET (RETAIN HISTORY FOR 'period'), or RESET (RETAIN HISTORY): then ``period`` is None."""

    kind: str
    name: tuple[str, ...]
    period: str | None
    guarded: bool = False


Statement: TypeAlias = CreateSource | DropSource | RetainHistory


def parse_statement(text: str) -> Statement:
    """Read a statement. Raises StatementError.

    >>> parse_statement("create source if not exists s.\\"C\\" from load generator counter (tick interval '500ms');")
    CreateSource(name=('s', 'C'), guarded=True, tick_interval='500ms', retain=None)
    >>> parse_statement("DROP SOURCE counter CASCADE")
    DropSource(name=('counter',), guarded=False, cascade=True)
    >>> parse_statement("ALTER MATERIALIZED VIEW v SET (RETAIN HISTORY FOR '1hr')")
    RetainHistory(kind='MATERIALIZED VIEW', name=('v',), period='1hr', guarded=False)
    >>> parse_statement("ALTER TABLE t RESET (RETAIN HISTORY)").period is None
    True
    """
    words = _Words(text)
    if words.accept("CREATE", "SOURCE"):
        found: Statement = _create_source(words)
    elif words.accept("DROP", "SOURCE"):
        guarded = words.accept("IF", "EXISTS")
        name = words.name()
        found = DropSource(name, guarded, words.accept("CASCADE"))
        words.accept("RESTRICT")
    else:
        words.expect("ALTER")
        kind = next((kind for kind in RELATION_KINDS if words.accept(*kind.split())), None)
        if kind is None:
            raise words.error()
        guarded = words.accept("IF", "EXISTS")
        name = words.name()
        if words.accept("RESET", "("):
            words.expect("RETAIN", "HISTORY")
            found = RetainHistory(kind, name, None, guarded)
        else:
            words.expect("SET", "(")
            found = RetainHistory(kind, name, words.period(), guarded)
        words.expect(")")
    words.end()
    return found


def _create_source(words: _Words) -> CreateSource:
    guarded = words.accept("IF", "NOT", "EXISTS")
    name = words.name()
    words.expect("FROM")
    if not words.accept("LOAD", "GENERATOR"):
        raise StatementError(
            "0A000", "sources other than load generators are not supported", "Write FROM LOAD GENERATOR COUNTER."
        )
    if not words.accept("COUNTER"):
        raise StatementError("0A000", f'load generator "{words.text}" is not supported', "There is COUNTER.")
    tick = retain = None
    if words.accept("("):
        words.expect("TICK", "INTERVAL")
        words.accept("=")
        tick = words.string()
        words.expect(")")
    if words.accept("WITH", "("):
        retain = words.period()
        words.expect(")")
    return CreateSource(name, guarded, tick, retain)


class _Words:
    """The tokens of a statement, read from left to right."""

    def __init__(self, text: str):
        try:
            self._tokens: list[Token] = [
                token for token in Postgres().tokenize(text) if token.token_type is not TokenType.SEMICOLON
            ]
        except SqlglotError as error:
            raise StatementError("42601", "syntax error") from error
        self._at = 0

    @property
    def text(self) -> str:
        """The next token as it was written."""
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def accept(self, *words: str) -> bool:
        """Whether these words come next, none of them quoted; then they are passed."""
        following = self._tokens[self._at : self._at + len(words)]
        matches = [
            token.token_type not in (TokenType.STRING, TokenType.IDENTIFIER) and token.text.upper() == word
            for token, word in zip(following, words, strict=False)
        ]
        if len(matches) < len(words) or not all(matches):
            return False
        self._at += len(words)
        return True

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accept(word):
                raise self.error()

    def name(self) -> tuple[str, ...]:
        """A name of one or two parts, folded to lower case where it is not quoted."""
        parts = [self._identifier()]
        while self.accept("."):
            parts.append(self._identifier())
        if len(parts) > 2:
            raise StatementError("42601", f"improper qualified name (too many dotted names): {'.'.join(parts)}")
        if len(parts[-1].encode()) > 63:
            raise StatementError("42622", f'name "{parts[-1]}" is too long', "Names have at most 63 bytes.")
        return tuple(parts)

    def _identifier(self) -> str:
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if token is None or not token.text or token.token_type in (TokenType.STRING, TokenType.NUMBER):
            raise self.error()
        quoted = token.token_type is TokenType.IDENTIFIER
        if not quoted and not (token.text[0].isalpha() or token.text[0] == "_"):
            raise self.error()
        self._at += 1
        return token.text if quoted else token.text.lower()

    def string(self) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at].token_type is not TokenType.STRING:
            raise self.error()
        self._at += 1
        return str(self._tokens[self._at - 1].text)

    def period(self) -> str:
        """RETAIN HISTORY [=] FOR 'period'."""
        self.expect("RETAIN", "HISTORY")
        self.accept("=")
        self.expect("FOR")
        return self.string()

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self.error()

    def error(self) -> StatementError:
        where = f'at or near "{self.text}"' if self.text else "at end of input"
        return StatementError("42601", f"syntax error {where}")
