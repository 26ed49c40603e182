"""Splits a query string into its statements, as PostgreSQL's own scanner would, and says what kind each one is.

Only what has to be known to find the semicolons is understood: strings in all their forms, quoted identifiers,
dollar quotes, comments (nested ones too), parentheses (CREATE RULE), and BEGIN ATOMIC bodies. The text is taken
as bytes; all characters that matter are ASCII. Text that PostgreSQL would refuse yields some split or other;
PostgreSQL then says why.

Texts come from clients, who may mean harm, and are read on the event loop. So a text is read in one pass: every
repetition in the patterns of this module is possessive, which never goes back, and a pattern is only matched where a
token begins. No other module of ``server`` has a repetition without a small bound in a pattern. A long text is read in
steps (:data:`PAUSE`); what is not, ends after :data:`MOST_TOKENS`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice, pairwise
from typing import NamedTuple

from catalog.session import SqlError

_SIMPLE_COMMENT = rb"/\*(?:[^*/]++|\*(?!/)|/(?!\*))*+\*/"
"""A comment without another one in it."""
_GAP = rb"(?:\s++|--[^\r\n]*+|" + _SIMPLE_COMMENT + rb"){1,1000}+"


def _token(two_bytes: bytes) -> re.Pattern[bytes]:
    """The pattern of a token. ``two_bytes`` is that of characters whose second byte may look like ASCII, or empty."""
    either = two_bytes + b"|" if two_bytes else b""
    letter = rb"(?:" + either + rb"[A-Za-z_\x80-\xff])"
    escaped = _escaped(two_bytes)
    following = rb"[ \t\f\v]*+(?:--[^\r\n]*+)?[\r\n](?:\s++|--[^\r\n]*+[\r\n])*+"
    """Between a string and its continuation on another line."""
    return re.compile(
        rb"(?P<gap>" + _GAP + rb")"
        rb"|(?P<comment>/\*)"
        rb"|(?P<escaped>[eE]" + escaped + rb"(?:" + following + escaped + rb")*+)"
        rb"|(?P<string>(?:[bBxXnN]|[uU]&)?'[^']*+(?:''[^']*+)*+'?)"
        rb'|(?P<quoted>(?:[uU]&)?"[^"]*+(?:""[^"]*+)*+"?)'
        rb"|(?P<dollar>\$(?:" + letter + rb"(?:" + either + rb"[A-Za-z0-9_\x80-\xff])*+)?\$)"
        rb"|(?P<word>" + letter + rb"(?:" + either + rb"[A-Za-z0-9_$\x80-\xff])*+)"
        rb"|(?P<number>[0-9][A-Za-z0-9_.]*+|\$[0-9]++)"
        rb"|(?P<other>.)",
        re.DOTALL,
    )


def _escaped(two_bytes: bytes) -> bytes:
    """The pattern of a string in which a backslash escapes, without its prefix."""
    if not two_bytes:
        return rb"'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+'?"
    return rb"'(?:[^'\\\x80-\xff]++|" + two_bytes + rb"|[\x80-\xff]|\\(?:" + two_bytes + rb"|.)|'')*+'?"


def _backslash_string(two_bytes: bytes) -> re.Pattern[bytes]:
    return re.compile(rb"[nN]?" + _escaped(two_bytes), re.DOTALL)


_CHARACTERS = {
    **dict.fromkeys(("BIG5", "GBK", "UHC", "JOHAB"), rb"[\x81-\xfe][\x30-\xff]"),
    **dict.fromkeys(("SJIS", "SHIFT_JIS_2004"), rb"[\x81-\x9f\xe0-\xfc][\x40-\xff]"),
    "GB18030": rb"[\x81-\xfe][\x30-\x39\x40-\xff]",
}
"""Encodings in which the second byte of a character can be that of an ASCII character, such as the backslash. The four
bytes of a long character of GB18030 are two such pairs. No second byte is that of a quote, a dollar or a comment."""
_TOKEN, _BACKSLASH_STRING = _token(b""), _backslash_string(b"")
_TOKENS = {encoding: _token(pair) for encoding, pair in _CHARACTERS.items()}
_BACKSLASH_STRINGS = {encoding: _backslash_string(pair) for encoding, pair in _CHARACTERS.items()}
_IN_COMMENT = re.compile(rb"(?:[^*/]++|" + _SIMPLE_COMMENT + rb"|/(?!\*)|\*(?!/))*+", re.DOTALL)
"""What stands in a comment before its end, or before a comment with others in it."""

MOST_TOKENS = 5000
"""How many tokens of a text are looked at in one go, on the event loop: they take less than 10 ms."""
_STEP, _BYTES = 1000, 256
"""Tokens from one pause to the next; so many bytes take as long as a token."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a query string: its bytes are ``text[start:end]``, without the semicolon."""

    start: int
    end: int
    words: tuple[str, ...]
    """Its first tokens: keywords in upper case, quoted identifiers unquoted, other tokens as they are."""


class Token(NamedTuple):
    """A token of a text: its bytes are ``text[start:end]``."""

    kind: str
    """word, quoted, string, escaped, dollar, number or other."""
    start: int
    end: int
    word: str
    """As `Statement.words` has it."""


PAUSE = Statement(-1, -1, ())
"""Stands between the statements of a long text, where something else should have its turn."""


class TooManyTokens(SqlError):
    """A text is too long to be read in one go."""

    def __init__(self) -> None:
        detail = f"It has more than {MOST_TOKENS} tokens."
        super().__init__("54001", "statement too complex", detail=detail, hint="Put a part of it into a view.")


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
_WORDS_OF_A_DATABASE = 100
"""More than the options of CREATE DATABASE have."""
WORDS_KEPT = 12
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
    text: bytes, *, backslashes: bool = False, encoding: str = "UTF8", words_kept: int = WORDS_KEPT
) -> list[Statement]:
    """The statements of a query string, without empty ones.

    ``backslashes`` is true where ``standard_conforming_strings`` is off; ``encoding`` is the ``client_encoding``.

    >>> text = b"select ';'; /* ; */ select $x$ ; $x$ -- ;"
    >>> [text[s.start:s.end] for s in split(text)]
    [b"select ';'", b'select $x$ ; $x$ -- ;']
    """
    found = statements(text, backslashes=backslashes, encoding=encoding, words_kept=words_kept)
    return [statement for statement in found if statement is not PAUSE]


def statements(
    text: bytes, *, backslashes: bool = False, encoding: str = "UTF8", words_kept: int = WORDS_KEPT
) -> Iterator[Statement]:
    """`split`, one statement after the other, and :data:`PAUSE` whenever something else should have its turn."""
    start = -1
    parentheses = blocks = 0
    atomic = False
    words: list[str] = []
    for group, position, _, token in _scan(text, backslashes, encoding):
        if group == "pause":
            yield PAUSE
        elif token == b";" and not parentheses and not blocks:
            if words:
                yield Statement(start, position, tuple(words))
            start, words, atomic = -1, [], False
        else:
            if start < 0:
                start = position
            if group == "word":
                if blocks or (words and words[0] == "CREATE"):
                    blocks, atomic = _body_depth(token.upper(), words, blocks, atomic)
            elif group == "other":
                parentheses = max(0, parentheses + (token == b"(") - (token == b")"))
            if len(words) < words_kept:
                words.append(_word(token, group))
    if words:
        yield Statement(start, len(text), tuple(words))


def single(
    text: bytes, begins: frozenset[str], *, backslashes: bool = False, encoding: str = "UTF8"
) -> Statement | None:
    """The one statement of a text with all its words, if it begins with one of these.

    None, too, if there are several statements, or too many tokens for a statement of ours.

    >>> single(b"drop source c;", frozenset(["DROP"])).words
    ('DROP', 'SOURCE', 'C')
    >>> single(b"drop source c; drop source d", frozenset(["DROP"]))
    """
    found = _one(text, begins, backslashes, encoding)
    if found is None:
        return None
    read, end = found
    return Statement(read[0].start, end, tuple(token.word for token in read))


def single_tokens(
    text: bytes, begins: frozenset[str], *, backslashes: bool = False, encoding: str = "UTF8"
) -> list[Token] | None:
    """The tokens of what `single` gives.

    >>> [token.kind for token in single_tokens(b"drop source 'c'", frozenset(["DROP"]))]
    ['word', 'word', 'string']
    """
    found = _one(text, begins, backslashes, encoding)
    return None if found is None else found[0]


def _one(text: bytes, begins: frozenset[str], backslashes: bool, encoding: str) -> tuple[list[Token], int] | None:
    """The tokens of the one statement of a text, and where it ends."""
    read: list[Token] = []
    end = -1
    with suppress(TooManyTokens):
        for token in tokens(text, backslashes=backslashes, encoding=encoding):
            if token.kind == "other" and token.word == ";":
                end = token.start if read and end < 0 else end
                continue
            if not read:
                if token.kind != "word" or token.word not in begins:
                    return None
            elif end >= 0:
                return None
            read.append(token)
        return (read, len(text) if end < 0 else end) if read else None
    return None


def leading(text: bytes, most: int, *, backslashes: bool = False, encoding: str = "UTF8") -> tuple[str, ...]:
    """The first words of a text, as `Statement.words` has them, without semicolons before them.

    >>> leading(b"; /* what */ select 1", 1)
    ('SELECT',)
    """
    words: list[str] = []
    with suppress(TooManyTokens):
        for token in tokens(text, backslashes=backslashes, encoding=encoding):
            if token.kind == "other" and token.word == ";" and not words:
                continue
            words.append(token.word)
            if len(words) == most:
                break
    return tuple(words)


def tokens(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> Iterator[Token]:
    """The tokens of a text, without white space and comments. Raises TooManyTokens.

    >>> [token.word for token in tokens(b'subscribe to "My Table" -- all of it')]
    ['SUBSCRIBE', 'TO', 'My Table']
    """
    pauses, most = 0, MOST_TOKENS // _STEP
    for group, start, end, token in _scan(text, backslashes, encoding):
        if group == "pause":
            pauses += 1
            if pauses > most:
                raise TooManyTokens
        else:
            yield Token(group, start, end, _word(token, group))


def _scan(text: bytes, backslashes: bool, encoding: str) -> Iterator[tuple[str, int, int, bytes]]:
    """Group of `_TOKEN`, begin, end and bytes of each token; the group "pause" after every :data:`_STEP` matches."""
    match = _TOKENS.get(encoding, _TOKEN).match
    string = _BACKSLASH_STRINGS.get(encoding, _BACKSLASH_STRING).match
    position = depth = 0
    length = len(text)
    left = _STEP
    while position < length:
        if left <= 0:
            left = _STEP
            yield "pause", position, position, b""
        if depth:
            position, depth = _comment_edge(text, position, depth)
            left -= 1
            continue
        found = match(text, position)
        assert found is not None  # `other` matches any byte
        group, end = found.lastgroup or "other", found.end()
        left -= 1 + (end - position) // _BYTES
        if group == "gap":
            position = end
            continue
        if group == "comment":
            position, depth = end, 1
            continue
        if group == "dollar":
            close = text.find(found.group(), end)
            end = length if close < 0 else close + end - position
        elif group == "string" and backslashes and text[position : position + 1] in b"'nN":
            again = string(text, position)
            end = again.end() if again else end
        yield group, position, end, text[position:end]
        position = end


def _comment_edge(text: bytes, position: int, depth: int) -> tuple[int, int]:
    """Behind the next place in a comment where another begins or one ends, and how deep in comments that is."""
    inside = _IN_COMMENT.match(text, position)
    position = inside.end() if inside else position
    if text.startswith(b"*/", position):
        return position + 2, depth - 1
    if text.startswith(b"/*", position):
        return position + 2, depth + 1
    return len(text), depth


def _body_depth(word: bytes, words: list[str], blocks: int, atomic: bool) -> tuple[int, bool]:
    """How deep in an SQL-standard function body (BEGIN ATOMIC ... END) we are after a word, as psql counts it."""
    if blocks:
        return blocks + (word in (b"BEGIN", b"CASE")) - (word == b"END"), False
    if atomic and word == b"ATOMIC":
        return 1, False
    routine = words[:1] == ["CREATE"] and any(w in ("FUNCTION", "PROCEDURE") for w in words[1:4])
    return 0, routine and word == b"BEGIN"


def _word(token: bytes, group: str) -> str:
    if group == "word":
        return token.upper().decode("latin-1")  # of ASCII alone, as PostgreSQL folds keywords
    text = token.decode("latin-1")
    if group == "quoted" and text.startswith('"'):
        return text[1:-1].replace('""', '"')
    return text


def databases_touched(text: bytes, statements: Iterable[Statement]) -> list[str]:
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
        found = list(islice(tokens(text[statement.start : statement.end]), _WORDS_OF_A_DATABASE))
        pairs = [(token.kind, token.word) for token in found]
        if words[0] == "CREATE":
            at = pairs.index(("word", "TEMPLATE")) + 1 if ("word", "TEMPLATE") in pairs else len(pairs)
            at += pairs[at : at + 1] == [("other", "=")]
        else:
            rename, move = [("word", "RENAME"), ("word", "TO")], [("word", "SET"), ("word", "TABLESPACE")]
            if words[0] == "ALTER" and not any([*pair] in (rename, move) for pair in pairwise(pairs)):
                continue  # whoever is connected may stay
            at = 4 if pairs[2:4] == [("word", "IF"), ("word", "EXISTS")] else 2
        names += [
            _identifier(text[statement.start + token.start : statement.start + token.end])
            for token in found[at : at + 1]
            if token.kind in ("word", "quoted")
        ]
    return names


def _identifier(token: bytes) -> str:
    text = token.decode("utf-8", "surrogateescape")
    return text[1:-1].replace('""', '"') if text.startswith('"') else text.lower()
