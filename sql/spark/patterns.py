"""Regular expressions: those that mean the same to PostgreSQL, to Java and to Rust."""

from __future__ import annotations

import re
from collections.abc import Iterator

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


def same_everywhere(pattern: str) -> str:
    """A pattern of PostgreSQL's, of which only is asked whether it matches somewhere, as Spark is to get it.

    Which of several matches is found differs, whether there is one does not: for characters, ``.``, classes of ASCII
    characters and ranges, groups, ``|``, counts, and ``^`` and ``$`` at the ends. Raises NotExpressible for all else.

    >>> same_everywhere("^(a|b[0-9]+).*x$")
    '(?s)\\\\A(a|b[0-9]+).*x\\\\z'
    """
    inner = pattern.removeprefix("^")
    ends = inner.endswith("$") and not inner.endswith("\\$")
    inner = inner[:-1] if ends else inner
    anchored = ends or pattern.startswith("^")
    kinds, depth, previous = [*_kinds(inner), "end"], 0, "begin"
    for kind in kinds:
        depth += {"open": 1, "close": -1}.get(kind, 0)
        # An anchor beside branches belongs to one of them alone.
        if kind not in _FOLLOWS[previous] or depth < 0 or (kind == "or" and anchored and not depth):
            raise _refusal(pattern)
        previous = kind
    if depth:
        raise _refusal(pattern)
    return f"(?s){BEGIN if pattern.startswith('^') else ''}{inner}{END if ends else ''}"


BEGIN, END = r"\A", r"\z"


def _kinds(pattern: str) -> Iterator[str]:
    """The kinds of a pattern's parts, in order."""
    position = 0
    while position < len(pattern):
        matches = ((kind, part.match(pattern, position)) for kind, part in _PARTS.items())
        kind, found = next((pair for pair in matches if pair[1]), ("", None))
        if found is None or any(low > high for low, high in _RANGE.findall(found[0])):
            raise _refusal(pattern)
        position = found.end()
        yield kind


def _refusal(pattern: str) -> NotExpressible:
    return NotExpressible(f"regular expression '{pattern}', parts of which other systems read otherwise")
