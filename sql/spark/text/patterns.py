"""Regular expressions: those that mean the same to PostgreSQL, to Java and to Rust."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sql.errors import NotExpressible

_PARTS = {
    "atom": re.compile(
        r"\."
        r"|\[\^?(?:[A-Za-z0-9_ .,:;@#%/=](?:-[A-Za-z0-9])?)+\]"
        r"|\\[.\\*+?|()\[\]{}^$/-]"
        r"|[A-Za-z0-9 ,:;@#%&='\"/<>~!`_-]|[^\x00-\x7f]"
    ),
    "count": re.compile(r"[*+?]|\{\d{1,2}(?:,\d{0,2})?\}"),
    "open": re.compile(r"\("),
    "close": re.compile(r"\)"),
    "or": re.compile(r"\|"),
}
_BEGUN, _DONE = frozenset(("atom", "open")), frozenset(("atom", "open", "close", "or", "end"))
_FOLLOWS = {"begin": _BEGUN, "open": _BEGUN, "or": _BEGUN, "count": _DONE, "atom": _DONE | {"count"}}
_FOLLOWS["close"] = _FOLLOWS["atom"]
"""What may follow what. A count of a count means something else in each system."""
_RANGE = re.compile(r"([A-Za-z0-9])-([A-Za-z0-9])")


def same_everywhere(pattern: str, *, either_case: bool = False) -> str:
    """A pattern of PostgreSQL's, of which only is asked whether it matches somewhere, as Spark is to get it.

    Which of several matches is found differs, whether there is one does not: for characters, ``.``, classes of ASCII
    characters and ranges, groups, ``|``, counts, and ``^`` and ``$`` at the ends. Raises NotExpressible for all else.
    With ``either_case`` each letter, which is one of ASCII's then, stands for both of its cases.

    >>> same_everywhere("^(a|b[0-9]+).*x$")
    '(?s)\\\\A(a|b[0-9]+).*x\\\\z'
    >>> same_everywhere("ab[x-z]+", either_case=True)
    '(?s)[aA][bB][x-zXYZ]+'
    """
    inner = pattern.removeprefix("^")
    ends = inner.endswith("$") and not inner.endswith("\\$")
    inner = inner[:-1] if ends else inner
    anchored = ends or pattern.startswith("^")
    parts = [*_parts(inner)]
    if not _well_formed([kind for kind, _ in parts], anchored) or (either_case and not inner.isascii()):
        raise _refusal(pattern)
    if either_case:
        inner = "".join(_either_case(part) if kind == "atom" else part for kind, part in parts)
    return f"(?s){BEGIN if pattern.startswith('^') else ''}{inner}{END if ends else ''}"


def _well_formed(kinds: Sequence[str], anchored: bool) -> bool:
    """Whether parts of these kinds may follow each other, with an anchor before or behind them."""
    depth, previous = 0, "begin"
    for kind in [*kinds, "end"]:
        depth += {"open": 1, "close": -1}.get(kind, 0)
        # An anchor beside branches belongs to one of them alone.
        if kind not in _FOLLOWS[previous] or depth < 0 or (kind == "or" and anchored and not depth):
            return False
        previous = kind
    return not depth


def _either_case(atom: str) -> str:
    """A character or a class with the other cases of its letters."""
    if atom[0] != "[":
        return f"[{atom}{atom.swapcase()}]" if atom.isalpha() else atom
    ends = ((ord(low), ord(high or low)) for low, high in re.findall(r"(.)(?:-(.))?", atom[1:-1].removeprefix("^")))
    letters = {chr(each) for low, high in ends for each in range(low, high + 1) if chr(each).isalpha()}
    return atom[:-1] + "".join(sorted({letter.swapcase() for letter in letters} - letters)) + "]"


BEGIN, END = r"\A", r"\z"


def _parts(pattern: str) -> Iterator[tuple[str, str]]:
    """The parts of a pattern, in order, each with its kind."""
    position = 0
    while position < len(pattern):
        matches = ((kind, part.match(pattern, position)) for kind, part in _PARTS.items())
        kind, found = next((pair for pair in matches if pair[1]), ("", None))
        if found is None or any(low > high for low, high in _RANGE.findall(found[0])):
            raise _refusal(pattern)
        position = found.end()
        yield kind, found[0]


def _refusal(pattern: str) -> NotExpressible:
    return NotExpressible(f"regular expression '{pattern}', parts of which other systems read otherwise")
