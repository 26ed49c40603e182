"""Splits a query string into its statements, as PostgreSQL's own scanner would, and says what kind each one is.

Only what has to be known to find the semicolons is understood: strings in all their forms, quoted identifiers,
dollar quotes, comments (nested ones too), parentheses (CREATE RULE), and BEGIN ATOMIC bodies. The text is taken
as bytes; all characters that matter are ASCII. Text that PostgreSQL would refuse yields some split or other;
PostgreSQL then says why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

_TOKEN = re.compile(
    rb"""
      (?P<space> \s+ | --[^\r\n]* )
    | (?P<comment> /\* )
    | (?P<escaped> [eE]'(?:[^'\\]|\\.|'')*'? (?:
        # The string goes on in quotes on another line.
        [ \t\f\v]*(?:--[^\r\n]*)?[\r\n](?:\s|--[^\r\n]*[\r\n])*'(?:[^'\\]|\\.|'')*'? )* )
    | (?P<string> (?:[bBxXnN]|[uU]&)?'(?:[^']|'')*'? )
    | (?P<quoted> (?:[uU]&)?"(?:[^"]|"")*"? )
    | (?P<dollar> \$(?:[A-Za-z_\x80-\xff][A-Za-z0-9_\x80-\xff]*)?\$ )
    | (?P<word> [A-Za-z_\x80-\xff][A-Za-z0-9_$\x80-\xff]* )
    | (?P<number> [0-9][A-Za-z0-9_.]* | \$[0-9]+ )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
_BACKSLASH_STRING = re.compile(rb"[nN]?'(?:[^'\\]|\\.|'')*'?", re.DOTALL)
# Encodings in which the second byte of a character can be that of an ASCII character, such as the backslash.
_TWO_BYTES = re.compile(rb"[\x81-\xfe][\x30-\xff]", re.DOTALL)
_CHARACTERS = {
    **dict.fromkeys(("BIG5", "GBK", "UHC", "JOHAB"), _TWO_BYTES),
    **dict.fromkeys(("SJIS", "SHIFT_JIS_2004"), re.compile(rb"[\x81-\x9f\xe0-\xfc][\x40-\xff]")),
    "GB18030": re.compile(rb"[\x81-\xfe](?:[\x30-\x39][\x81-\xfe][\x30-\x39]|[\x40-\xff])"),
}
_COMMENT_EDGE = re.compile(rb"/\*|\*/")


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a query string: its bytes are ``text[start:end]``, without the semicolon."""

    start: int
    end: int
    words: tuple[str, ...]
    """Its first tokens: keywords in upper case, quoted identifiers unquoted, other tokens as they are."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a text: its bytes are ``text[start:end]``."""

    kind: str
    """word, quoted, string, escaped, dollar, number or other."""
    start: int
    end: int
    word: str
    """As `Statement.words` has it."""


class Kind(Enum):
    """What a statement means for the transaction around it."""

    BEGIN = auto()
    END = auto()
    """COMMIT, ROLLBACK and their synonyms."""
    SAVEPOINT = auto()
    """SAVEPOINT, RELEASE, ROLLBACK TO."""
    QUERY = auto()
    """May make engine requests, and may run in a transaction block."""
    BLOCK = auto()
    """DO and CALL: may make engine requests, and may end transactions themselves."""
    OTHER = auto()


_QUERIES = frozenset(
    ("SELECT", "WITH", "VALUES", "TABLE", "INSERT", "UPDATE", "DELETE", "MERGE", "EXPLAIN", "EXECUTE", "COPY", "(")
)
_WORDS_KEPT = 12
"""As many as ALTER MATERIALIZED VIEW IF EXISTS schema.name SET (RETAIN HISTORY has."""


def kind_of(words: tuple[str, ...]) -> Kind:
    """
    >>> kind_of(("ROLLBACK", "TO", "s"))
    <Kind.SAVEPOINT: 3>
    """
    first = words[0] if words else ""
    if first in ("BEGIN", "START"):
        return Kind.BEGIN
    if first in ("SAVEPOINT", "RELEASE") or (first == "ROLLBACK" and "TO" in words[1:3]):
        return Kind.SAVEPOINT
    if first in ("COMMIT", "END", "ROLLBACK", "ABORT") and "PREPARED" not in words[1:2]:
        return Kind.END
    if first in _QUERIES or words[1:2] in (("EXTENSION",), ("SOURCE",)):
        return Kind.QUERY
    if first == "ALTER" and "RETAIN" in words:
        return Kind.QUERY
    return Kind.BLOCK if first in ("DO", "CALL") else Kind.OTHER


def split(
    text: bytes, *, backslashes: bool = False, encoding: str = "UTF8", words_kept: int = _WORDS_KEPT
) -> list[Statement]:
    """The statements of a query string, without empty ones.

    ``backslashes`` is true where ``standard_conforming_strings`` is off; ``encoding`` is the ``client_encoding``.

    >>> text = b"select ';'; /* ; */ select $x$ ; $x$ -- ;"
    >>> [text[s.start:s.end] for s in split(text)]
    [b"select ';'", b'select $x$ ; $x$ -- ;']
    """
    statements: list[Statement] = []
    start = -1
    parentheses = blocks = 0
    atomic = False
    words: list[str] = []
    for group, position, _, token in _scan(text, backslashes, encoding):
        if token == b";" and not parentheses and not blocks:
            if words:
                statements.append(Statement(start, position, tuple(words)))
            start, words, atomic = -1, [], False
        else:
            if start < 0:
                start = position
            if group == "word":
                blocks, atomic = _body_depth(token.upper(), words, blocks, atomic)
            parentheses = max(0, parentheses + (token == b"(") - (token == b")"))
            if len(words) < words_kept:
                words.append(_word(token, group))
    if words:
        statements.append(Statement(start, len(text), tuple(words)))
    return statements


def tokens(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> Iterator[Token]:
    """The tokens of a text, without white space and comments.

    >>> [token.word for token in tokens(b'subscribe to "My Table" -- all of it')]
    ['SUBSCRIBE', 'TO', 'My Table']
    """
    for group, start, end, token in _scan(text, backslashes, encoding):
        yield Token(group, start, end, _word(token, group))


def _scan(text: bytes, backslashes: bool, encoding: str) -> Iterator[tuple[str, int, int, bytes]]:
    """Group of `_TOKEN`, begin, end and bytes of each token."""
    if encoding in _CHARACTERS:
        text = _CHARACTERS[encoding].sub(lambda found: bytes(byte | 0x80 for byte in found.group()), text)
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        assert found is not None  # `other` matches any byte
        group, end = found.lastgroup or "other", found.end()
        if group == "comment":
            end = _comment_end(text, end)
        if group in ("space", "comment"):
            position = end
            continue
        if group == "dollar":
            close = text.find(found.group(), end)
            end = len(text) if close < 0 else close + end - position
        elif group == "string" and backslashes and text[position : position + 1] in b"'nN":
            again = _BACKSLASH_STRING.match(text, position)
            end = again.end() if again else end
        yield group, position, end, text[position:end]
        position = end


def _comment_end(text: bytes, position: int) -> int:
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(text, position)
        if edge is None:
            return len(text)
        depth += 1 if edge.group() == b"/*" else -1
        position = edge.end()
    return position


def _body_depth(word: bytes, words: list[str], blocks: int, atomic: bool) -> tuple[int, bool]:
    """How deep in an SQL-standard function body (BEGIN ATOMIC ... END) we are after a word, as psql counts it."""
    if blocks:
        return blocks + (word in (b"BEGIN", b"CASE")) - (word == b"END"), False
    if atomic and word == b"ATOMIC":
        return 1, False
    routine = words[:1] == ["CREATE"] and any(w in ("FUNCTION", "PROCEDURE") for w in words[1:4])
    return 0, routine and word == b"BEGIN"


def _word(token: bytes, group: str) -> str:
    text = token.decode("latin-1")
    if group == "word":
        return text.upper()
    if group == "quoted" and text.startswith('"'):
        return text[1:-1].replace('""', '"')
    return text


def databases_touched(text: bytes, statements: list[Statement]) -> list[str]:
    """The databases that statements drop, rename, move or copy, as far as their names are written plainly.

    >>> text = b'drop database if exists "My Shop"'
    >>> databases_touched(text, split(text))
    ['My Shop']
    >>> text = b'alter database shop set work_mem = 1'
    >>> databases_touched(text, split(text))
    []
    """
    names: list[str] = []
    for statement in statements:
        words = statement.words
        if len(words) < 3 or words[0] not in ("CREATE", "ALTER", "DROP") or words[1] != "DATABASE":
            continue
        if words[0] == "CREATE":
            template = re.search(
                rb'template\s*=?\s*("(?:[^"]|"")*"|[\w$\x80-\xff]+)', text[statement.start : statement.end], re.I
            )
            names += [_identifier(template.group(1))] if template else []
        else:
            body = text[statement.start : statement.end]
            if words[0] == "ALTER" and not re.search(rb"\brename\s+to\b|\bset\s+tablespace\b", body, re.I):
                continue  # whoever is connected may stay
            name = re.search(rb'database\s+(?:if\s+exists\s+)?("(?:[^"]|"")*"|[\w$\x80-\xff]+)', body, re.I)
            names += [_identifier(name.group(1))] if name else []
    return names


def _identifier(token: bytes) -> str:
    text = token.decode("utf-8", "surrogateescape")
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()
