"""Whether two texts say the same to PostgreSQL's parser, for all that their words show.

The compiler regenerates what it has understood, and PostgreSQL's canonical form of that must be the canonical text
again. Where the two texts differ only in what the parser itself takes for the same, they need not be analysed to know
it: in white space and the case of words, in ``CAST(x AS numeric)`` for ``x::numeric``, in ``LIKE`` for ``~~`` (an
operator's expression is in parentheses in the canonical form, so precedence is no matter), in types that the grammar
has two names for, and in an ``AS`` before an alias. Texts that differ in anything else may still mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>[eE]'(?:[^'\\]|\\.|'')*'|[bBxX]?'(?:[^']|'')*')
      | (?P<name>"(?:[^"]|"")+")
      | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)
      | (?P<word>[^\W\d][\w$]*)
      | (?P<sign>::|[-+*/<>=~!@\#%^&|`?]+|[()\[\],.:])
    )""",
    re.VERBOSE | re.DOTALL,
)

_TYPES: dict[str, tuple[str, ...]] = {
    "decimal": ("numeric",),
    "int": ("integer",),
    "varchar": ("character", "varying"),
    "char": ("character",),
    "timestamp": ("timestamp", "without", "time", "zone"),
    "timestamptz": ("timestamp", "with", "time", "zone"),
    "time": ("time", "without", "time", "zone"),
    "timetz": ("time", "with", "time", "zone"),
}
"""Types by one word, and what the canonical form calls them. Those of time are so only without a precision."""

_OPERATORS = {"like": "~~", "ilike": "~~*"}

_WORDS = """
    array asc at by collate columns current cycle day desc empty encoding error escape exclude fetch filter first
    following for format from groups having hour ignore in is isnull json keep last like limit locked lateral
    materialized minute month next notnull nulls object of offset omit on only operator ordinality over overlaps
    partition passing path preceding precision quotes range respect returning row rows scalar search second set
    similar skip string ties to uescape unbounded unique value values varying where window with within without
    wrapper year zone
"""
_CONTINUING = frozenset(_WORDS.split())
"""Words that go on with what stands before them where no AS does."""


_PREFIXES = frozenset({"not", "distinct", "select", "variadic"})
"""Words before parentheses that name no function."""


def same_wording(canonical: str, regenerated: str) -> bool:
    """Whether a canonical text and what was made of it are the same to the parser; if not, they can be nevertheless.

    >>> same_wording("SELECT (a)::numeric AS n FROM public.t x", "SELECT CAST((a) AS DECIMAL) AS n FROM public.t AS x")
    True
    >>> same_wording("SELECT '1'::interval AS day", "SELECT CAST('1' AS INTERVAL DAY)")
    False
    """
    expected, found = _tokens(canonical), _tokens(regenerated)
    if expected is None or found is None:
        return False
    rewritten = _with_signs(found)
    return rewritten is not None and _equal(expected, rewritten)


def _tokens(text: str) -> list[str] | None:
    """The tokens, words in lower case; None for a text with something in it that is not known here."""
    tokens: list[str] = []
    position, text = 0, text.strip().rstrip(";").rstrip()
    if "--" in text or "/*" in text:
        return None  # a comment, or something that only looks like one
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            return None
        token = match[match.lastgroup or 0]
        if match.lastgroup == "word":
            if text[match.end() : match.end() + 1] in ("'", "&"):
                return None  # an escape of a kind that is not known here, such as U&'...'
            token = token.lower() if token.isascii() else token
        tokens.append(token)
        position = match.end()
    return tokens


def _with_signs(tokens: Sequence[str]) -> list[str] | None:
    """The same with ``::`` for CAST and signs for LIKE; None if that would be read in another way."""
    result: list[str] = []
    opened: list[int | None] = []  # for each open parenthesis, where in the result a CAST's operand begins
    position = 0
    while position < len(tokens):
        token = tokens[position]
        if token == "cast" and tokens[position + 1 : position + 2] == ["("] and result[-1:] != ["."]:
            opened.append(len(result))
            position += 2
            continue
        if token == "(":
            opened.append(None)
        elif token == ")":
            start = opened.pop() if opened else None
            if start is not None:
                cast = _cast(result[start:])
                if cast is None:
                    return None
                result[start:] = cast
                position += 1
                continue
        elif token in _OPERATORS:
            sign = _OPERATORS[token]
            if result[-1:] == ["not"]:
                result[-1] = f"!{sign}"
            else:
                result.append(sign)
            position += 1
            continue
        result.append(token)
        position += 1
    return None if opened else result


def _cast(inside: list[str]) -> list[str] | None:
    """``x::t`` for the ``x AS t`` of a CAST, where ``::`` cannot take a part of x alone."""
    depth, place = 0, -1
    for i, token in enumerate(inside):
        depth += (token in "([") - (token in ")]")
        if token == "as" and depth == 0:
            place = i
    operand, target = inside[:place], inside[place + 1 :]
    if place < 0 or not _primary(operand):
        return None
    name = _TYPES.get(target[0], (target[0],))
    return None if len(name) > 2 and target[1:2] == ["("] else [*operand, "::", *name, *target[1:]]


def _primary(tokens: Sequence[str]) -> bool:
    """Whether it is one literal, one name, or something in parentheses or brackets, with nothing beside it."""
    if not tokens:
        return False
    if tokens[0] in _PREFIXES:
        return False
    head = 0
    while head < len(tokens) and tokens[head] not in "([":
        head += 1
    return _name_or_literal(tokens[:head]) and _closed(tokens[head:])


def _name_or_literal(tokens: Sequence[str]) -> bool:
    """Whether it is one name, qualified or not, or one literal, or nothing."""
    if not all((token == ".") == (i % 2 == 1) for i, token in enumerate(tokens)) or (tokens and len(tokens) % 2 == 0):
        return False
    return all(token[0] in "'\"." or token[0].isalnum() or token[0] == "_" or "'" in token for token in tokens)


def _closed(tokens: Sequence[str]) -> bool:
    """Whether it is nothing, or one pair of parentheses or brackets with what is in it."""
    depth = 0
    for i, token in enumerate(tokens):
        depth += (token in "([") - (token in ")]")
        if depth == 0:
            return i == len(tokens) - 1
    return not tokens


def _equal(expected: Sequence[str], found: Sequence[str]) -> bool:
    """Whether the tokens are the same, but for an AS before an alias that one says and the other does not."""
    i = 0
    for token in found:
        if i < len(expected) and token == expected[i]:
            i += 1
        elif token != "as" or i >= len(expected) or not _alias(expected[i]):
            return False
    return i == len(expected)


def _alias(token: str) -> bool:
    """Whether a token can be nothing but an alias where an AS before it may be left out."""
    return token[0] == '"' or (
        (token[0].isalpha() or token[0] == "_") and token not in _CONTINUING and "'" not in token
    )
