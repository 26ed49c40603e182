"""The syntax of SUBSCRIBE, for which PostgreSQL has no grammar: what a statement asks for, and where its parts stand.

    SUBSCRIBE [TO] { object | (query) } [ENVELOPE { UPSERT | DEBEZIUM } (KEY (column, …))]
        [WITHIN TIMESTAMP ORDER BY expression, …] [WITH (option [= value], …)]
        [AS OF [AT LEAST] expression] [UP TO expression]
    COPY (SUBSCRIBE …) TO STDOUT [[WITH] (option, …)]
    DECLARE cursor [BINARY] [INSENSITIVE | ASENSITIVE] [NO SCROLL] CURSOR [WITHOUT HOLD] FOR SUBSCRIBE …

The statements about cursors are in ``cursor_syntax``. Only what is SUBSCRIBE's own is understood here; queries and
expressions are pieces of the text, which PostgreSQL itself reads later.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from catalog.session import SqlError
from engine.subscribe import EnvelopeKind
from server.protocol.lexer import Token, TooManyTokens, leading, tokens

_CLAUSES = ("ENVELOPE", "WITHIN", "WITH", "AS", "UP")
_RECOGNISED_BY = 16
"""So many words tell what a statement is: more than a DECLARE has before SUBSCRIBE."""
_BOOLEANS = {"TRUE": True, "ON": True, "1": True, "FALSE": False, "OFF": False, "0": False}


class SyntaxFault(SqlError):
    """An error at a place of the statement: ``at`` is a byte of its text."""

    def __init__(self, message: str, at: int, sqlstate: str = "42601", hint: str | None = None):
        super().__init__(sqlstate, message, hint=hint)
        self.at = at


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the statement's text, and where it begins there."""

    start: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Subscription:
    """SUBSCRIBE itself."""

    query: Piece
    """A query, or the name of a relation."""
    named: bool = False
    """Whether it is a name."""
    envelope: EnvelopeKind = EnvelopeKind.NONE
    keys: tuple[Piece, ...] = ()
    """Key columns: their names, unquoted."""
    order_by: Piece | None = None
    snapshot: bool = True
    progress: bool = False
    as_of: Piece | None = None
    at_least: bool = False
    up_to: Piece | None = None


@dataclass(frozen=True, slots=True)
class CopySubscription:
    """COPY (SUBSCRIBE …) TO STDOUT."""

    subscription: Subscription
    rest: Piece
    """What follows the parentheses, as written."""
    options: tuple[tuple[str, bytes], ...] = ()
    """Names, in upper case, and values of the options."""


@dataclass(frozen=True, slots=True)
class DeclareCursor:
    """DECLARE … CURSOR FOR SUBSCRIBE."""

    subscription: Subscription
    name: bytes
    binary: bool = False


@dataclass(slots=True)
class Reader:
    """Reads a statement token by token, without the semicolons around it."""

    text: bytes
    ahead: list[Token]
    at: int = 0

    @classmethod
    def of(cls, text: bytes, backslashes: bool = False, encoding: str = "UTF8") -> Reader:
        """Raises SyntaxFault if there are too many tokens."""
        try:
            found = list(tokens(text, backslashes=backslashes, encoding=encoding))
        except TooManyTokens as fault:
            raise SyntaxFault(fault.message, 0, fault.sqlstate, fault.hint) from None
        while found and found[-1].word == ";" and found[-1].kind == "other":
            found.pop()
        empty = next((n for n, token in enumerate(found) if token.word != ";" or token.kind != "other"), 0)
        return cls(text, found[empty:])

    @property
    def ended(self) -> bool:
        return self.at >= len(self.ahead)

    def peek(self, offset: int = 0) -> str:
        """The word so many tokens ahead, "" if it is no keyword or symbol."""
        position = self.at + offset
        if position >= len(self.ahead) or self.ahead[position].kind not in ("word", "other", "number"):
            return ""
        return self.ahead[position].word

    def accept(self, *words: str) -> bool:
        """Go past these words if they come next."""
        if all(self.peek(offset) == word for offset, word in enumerate(words)):
            self.at += len(words)
            return True
        return False

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accept(word):
                raise self.fault()

    def fault(self) -> SyntaxFault:
        """The error PostgreSQL would report here."""
        if self.ended:
            return SyntaxFault("syntax error at end of input", len(self.text))
        token = self.ahead[self.at]
        near = self.text[token.start : token.end].decode("utf-8", "replace")
        return SyntaxFault(f'syntax error at or near "{near}"', token.start)

    def take(self) -> Token:
        if self.ended:
            raise self.fault()
        self.at += 1
        return self.ahead[self.at - 1]

    def identifier(self) -> Piece:
        """A name: unquoted ones are folded as PostgreSQL folds them."""
        if self.ended or self.ahead[self.at].kind not in ("word", "quoted"):
            raise self.fault()
        token = self.take()
        written = self.text[token.start : token.end]
        if token.kind == "word":
            return Piece(token.start, written.lower())
        if not written.startswith(b'"'):
            self.at -= 1
            raise self.fault()  # U&"…"
        return Piece(token.start, written[1:-1].replace(b'""', b'"'))

    def between(self, begin: int, end: int) -> Piece:
        """The text of the tokens from `begin` up to but without `end`."""
        if begin >= end:
            raise self.fault()
        start = self.ahead[begin].start
        return Piece(start, self.text[start : self.ahead[end - 1].end])

    def parenthesised(self) -> Piece:
        """What stands between a parenthesis and its partner."""
        self.expect("(")
        begin = self.at
        depth = 1
        while depth:
            word = self.peek()
            self.take()
            depth += (word == "(") - (word == ")")
        self.at -= 1
        inside = self.between(begin, self.at)
        self.at += 1
        return inside

    def until_clause(self) -> Piece:
        """An expression, or a list of them, up to the next clause of SUBSCRIBE."""
        begin = self.at
        depth = 0
        while not self.ended and not (depth == 0 and (self.at_clause() or self.peek() == ")")):
            word = self.peek()
            depth += (word in ("(", "[")) - (word in (")", "]"))
            self.take()
        return self.between(begin, self.at)

    def at_clause(self) -> bool:
        word, following = self.peek(), self.peek(1)
        return (word, following) in (("WITHIN", "TIMESTAMP"), ("AS", "OF"), ("UP", "TO"), ("WITH", "(")) or (
            word == "ENVELOPE" and following in ("UPSERT", "DEBEZIUM")
        )


def parse(
    text: bytes, *, backslashes: bool = False, encoding: str = "UTF8"
) -> Subscription | CopySubscription | DeclareCursor | None:
    """What a statement asks for, None if it is not one of these. Raises SyntaxFault.

    >>> parse(b"SUBSCRIBE TO mview WITH (SNAPSHOT = false) UP TO 7")
    Subscription(query=Piece(start=13, text=b'mview'), named=True, envelope=<EnvelopeKind.NONE: 'none'>, keys=(), \
order_by=None, snapshot=False, progress=False, as_of=None, at_least=False, up_to=Piece(start=49, text=b'7'))
    >>> parse(b"select subscribe from t")
    """
    begins = leading(text, _RECOGNISED_BY, backslashes=backslashes, encoding=encoding)
    if not (
        begins[:1] == ("SUBSCRIBE",)
        or begins[:3] == ("COPY", "(", "SUBSCRIBE")
        or (begins[:1] == ("DECLARE",) and ("FOR", "SUBSCRIBE") in pairwise(begins))
    ):
        return None
    reader = Reader.of(text, backslashes, encoding)
    if reader.accept("SUBSCRIBE"):
        found = _subscription(reader)
        if not reader.ended:
            raise reader.fault()
        return found
    if reader.accept("COPY", "(", "SUBSCRIBE"):
        return _copy(reader)
    if reader.accept("DECLARE"):
        return _declare(reader)
    return None


def _subscription(reader: Reader) -> Subscription:
    if reader.peek(1) != "." or reader.peek() != "TO":
        reader.accept("TO")
    named = False
    if reader.peek() == "(":
        query = reader.parenthesised()
    else:
        begin = reader.at
        reader.identifier()
        while reader.accept("."):
            reader.identifier()
        query = reader.between(begin, reader.at)
        named = True
    found = Subscription(query, named)
    seen: set[str] = set()
    while reader.peek() in _CLAUSES:
        clause = reader.peek()
        if clause in seen:
            raise reader.fault()
        seen.add(clause)
        found = _clause(reader, found)
    return found


def _clause(reader: Reader, found: Subscription) -> Subscription:
    if reader.accept("ENVELOPE"):
        kind = EnvelopeKind.UPSERT if reader.accept("UPSERT") else EnvelopeKind.DEBEZIUM
        if kind is EnvelopeKind.DEBEZIUM:
            reader.expect("DEBEZIUM")
        reader.expect("(", "KEY", "(")
        keys = [reader.identifier()]
        while reader.accept(","):
            keys.append(reader.identifier())
        reader.expect(")", ")")
        return replace(found, envelope=kind, keys=tuple(keys))
    if reader.accept("WITHIN"):
        reader.expect("TIMESTAMP", "ORDER", "BY")
        return replace(found, order_by=reader.until_clause())
    if reader.accept("WITH"):
        return _options(reader, found)
    if reader.accept("AS"):
        reader.expect("OF")
        at_least = reader.accept("AT", "LEAST")
        return replace(found, as_of=reader.until_clause(), at_least=at_least)
    reader.expect("UP", "TO")
    return replace(found, up_to=reader.until_clause())


def _options(reader: Reader, found: Subscription) -> Subscription:
    reader.expect("(")
    seen: set[str] = set()
    while True:
        at = reader.at
        token = reader.take()
        name = token.word.upper()
        if token.kind not in ("word", "quoted"):
            reader.at = at
            raise reader.fault()
        if name not in ("SNAPSHOT", "PROGRESS"):
            raise SyntaxFault(f'unrecognized SUBSCRIBE option "{name.lower()}"', token.start)
        if name in seen:
            raise SyntaxFault("conflicting or redundant options", token.start)
        seen.add(name)
        value = True
        equals = reader.accept("=")
        if equals or reader.peek() not in (",", ")"):
            given = reader.take()
            written = given.word.strip("'").upper()
            if given.kind not in ("word", "number", "string") or written not in _BOOLEANS:
                raise SyntaxFault(f"{name.lower()} requires a Boolean value", given.start)
            value = _BOOLEANS[written]
        found = replace(found, snapshot=value) if name == "SNAPSHOT" else replace(found, progress=value)
        if reader.accept(")"):
            return found
        reader.expect(",")


def _copy(reader: Reader) -> CopySubscription:
    subscription = _subscription(reader)
    reader.expect(")")
    begin = reader.at
    if not reader.accept("TO", "STDOUT"):
        if reader.peek() == "TO":
            to = reader.ahead[reader.at].start
            raise SyntaxFault("COPY of a subscription can only go to STDOUT", to, "0A000")
        raise reader.fault()
    rest = reader.between(begin, len(reader.ahead))
    reader.accept("WITH")
    options = _listed_options(reader) if reader.peek() == "(" else _plain_options(reader)
    if not reader.ended:
        raise reader.fault()
    return CopySubscription(subscription, rest, options)


def _listed_options(reader: Reader) -> tuple[tuple[str, bytes], ...]:
    """(FORMAT csv, …)."""
    reader.expect("(")
    found = []
    while True:
        name = reader.identifier().text.decode("latin-1").upper()
        begin, depth = reader.at, 0
        while not reader.ended and (depth or reader.peek() not in (",", ")")):
            word = reader.peek()
            depth += (word == "(") - (word == ")")
            reader.take()
        value = reader.between(begin, reader.at).text if reader.at > begin else b""
        found.append((name, value))
        if reader.accept(")"):
            return tuple(found)
        reader.expect(",")


def _plain_options(reader: Reader) -> tuple[tuple[str, bytes], ...]:
    """What COPY took before it had parentheses: CSV HEADER DELIMITER AS ';'."""
    found: list[tuple[str, bytes]] = []
    while not reader.ended:
        word = reader.peek()
        if word in ("CSV", "BINARY"):
            reader.take()
            found.append(("FORMAT", word.lower().encode()))
        elif word == "HEADER":
            reader.take()
            found.append((word, b""))
        elif word in ("DELIMITER", "DELIMITERS", "NULL", "QUOTE", "ESCAPE", "ENCODING"):
            reader.take()
            reader.accept("AS")
            value = reader.take()
            found.append((word.removesuffix("S"), reader.text[value.start : value.end]))
        elif reader.accept("FORCE", "QUOTE"):
            begin = reader.at
            if not reader.accept("*"):
                reader.identifier()
                while reader.accept(","):
                    reader.identifier()
                found.append(("FORCE_QUOTE", b"(" + reader.between(begin, reader.at).text + b")"))
            else:
                found.append(("FORCE_QUOTE", b"*"))
        else:
            raise reader.fault()
    return tuple(found)


def _declare(reader: Reader) -> DeclareCursor | None:
    name = reader.identifier().text
    binary = False
    refused: SyntaxFault | None = None
    while not reader.accept("CURSOR"):
        at = reader.ahead[reader.at].start if not reader.ended else 0
        if reader.accept("BINARY"):
            binary = True
        elif reader.accept("SCROLL"):
            refused = SyntaxFault("a cursor for SUBSCRIBE cannot scroll", at, "0A000")
        elif not (reader.accept("INSENSITIVE") or reader.accept("ASENSITIVE") or reader.accept("NO", "SCROLL")):
            return None  # PostgreSQL says what is wrong
    at = reader.ahead[reader.at].start if not reader.ended else 0
    if reader.accept("WITH", "HOLD"):
        refused = SyntaxFault(
            "a cursor for SUBSCRIBE cannot be held", at, "0A000", hint="Read it within its transaction."
        )
    else:
        reader.accept("WITHOUT", "HOLD")
    if not reader.accept("FOR", "SUBSCRIBE"):
        return None
    if refused is not None:
        raise refused
    subscription = _subscription(reader)
    if not reader.ended:
        raise reader.fault()
    return DeclareCursor(subscription, name, binary)
