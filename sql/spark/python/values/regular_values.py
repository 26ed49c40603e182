"""Regular expressions of PostgreSQL's, by Python's, for patterns of which both can find the same.

PostgreSQL finds the longest match that begins first (the shortest if counts are written with ``?``), Python the first
one that it tries. So Python is only asked where a match begins, and whether it can end at a place.
"""

import re
from collections.abc import Iterator
from typing import Any

from sql.spark.python.values.array_values import made

_ATOM = re.compile(
    r"(?P<any>\.)"
    r"|(?P<set>\[\^?(?:\]|\[:[a-z]+:\]|\\[dswtnr\\\]\[^-]|[^\]\[\\])(?:\[:[a-z]+:\]|\\[dswtnr\\\]\[^-]|[^\]\[\\])*\])"
    r"|(?P<class>\\[dswDSW])"
    r"|(?P<edge>\\[yYAZ]|[$^])"
    r"|(?P<control>\\[tnrfv])"
    r"|(?P<escaped>\\[^A-Za-z0-9])"
    r"|(?P<plain>[^\\\[\](){}|*+?.^$])",
    re.DOTALL,
)
_COUNT = re.compile(r"(?:[*+?]|\{(\d{1,3})(?:(,)(\d{0,3}))?\})(\?)?")
_EDGES = {"^": r"\A", "$": r"\Z", r"\y": r"\b", r"\Y": r"\B", r"\A": r"\A", r"\Z": r"\Z"}
_NAMED = {
    "alpha": "A-Za-z", "digit": "0-9", "alnum": "A-Za-z0-9", "upper": "A-Z", "lower": "a-z", "xdigit": "0-9A-Fa-f",
    "space": r" \t\n\r\f\v", "punct": r"!-/:-@\[-`{-~", "blank": r" \t",
}  # fmt: skip
_IN_SETS = {r"\d": "0-9", r"\s": r" \t\n\r\f\v", r"\w": "A-Za-z0-9_"}


_OTHER_OR_GROUP = re.compile(r"(\\.|\[\^?\]?(?:\[:[a-z]+:\]|\\.|[^\]\\])*\])|\((?!\?)", re.DOTALL)


class Pattern:
    """``expression`` is Python's. ``shortest``: the shortest match is wanted. ``by_letters``: characters beyond ASCII
    may count otherwise under a collation that is not C. ``groups``: how many there are that a match is asked for.

    ``ways`` is how many of its parts may be of one length or another: with one at most, what Python tries first is the
    longest match, or the shortest. With more, the time that it takes grows with a power of the text's length."""

    def __init__(self, reader: "_Reader", expression: Any, by_letters: bool):
        self.expression, self.by_letters = expression, by_letters
        self.shortest, self.groups, self.ways = reader.lazy, reader.groups, reader.ways


class _Reader:
    """Goes through a pattern. Raises ValueError for what the two may read in different ways."""

    def __init__(self, pattern: str, fold: bool):
        self.pattern, self.at, self.fold = pattern, 0, fold
        self.greedy = self.lazy = self.choice = self.by_letters = False
        self.groups = 0
        self.ways = 0
        self.counted = False
        """Whether what a group matches may depend on how the two try."""

    def all(self) -> str:
        """The whole pattern as Python's."""
        written = self.branches()
        if self.at < len(self.pattern):
            raise ValueError("a parenthesis that is not opened")
        if self.lazy and (self.greedy or self.choice):
            raise ValueError("counts that want as much as possible beside others")
        if self.groups and (self.choice or self.counted):
            raise ValueError("groups beside branches or repeated ones")
        return written

    def branches(self, depth: int = 0) -> str:
        written = [self._branch(depth)]
        while self._next() == "|":
            self.at += 1
            self.choice = True
            self.ways += 1
            written.append(self._branch(depth))
        return "|".join(written)

    def _next(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _branch(self, depth: int) -> str:
        written = ""
        while self._next() not in ("", "|") and not (self._next() == ")" and depth):
            written += self._piece(depth)
        if not written:
            raise ValueError("an empty branch")
        return written

    def _piece(self, depth: int) -> str:
        if self._next() == "(":
            greedy, lazy, choice = self.greedy, self.lazy, self.choice
            self.greedy = self.lazy = self.choice = False
            atom, edge = self._group(depth), False
            varies = self.greedy or self.lazy or self.choice
            self.greedy, self.lazy, self.choice = self.greedy or greedy, self.lazy or lazy, self.choice or choice
        else:
            found = _ATOM.match(self.pattern, self.at)
            if found is None:
                raise ValueError("a part that is not known")
            self.at = found.end()
            atom, varies, edge = self._atom(found), False, found["edge"] is not None
        count = _COUNT.match(self.pattern, self.at)
        if count is None:
            return atom
        if edge:
            raise ValueError("a count of a place")
        return atom + self._count(count, varies=varies)

    def _count(self, count: "re.Match[str]", *, varies: bool) -> str:
        """A count of something, of which several matches may be of several lengths (``varies``)."""
        self.at = count.end()
        self.counted = self.counted or varies
        if varies and (count[1] is None or count[2]) and count[0][0] != "?":
            raise ValueError("a count of what varies")  # Python could take for ever
        self.ways += varies
        if _COUNT.match(self.pattern, self.at):
            raise ValueError("a count of a count")
        self._preference(count)
        return count[0]

    def _preference(self, count: "re.Match[str]") -> None:
        numbers = [int(number) for number in (count[1], count[3]) if number]
        if any(number > 255 for number in numbers) or numbers != sorted(numbers):
            raise ValueError("a count that is none")
        fixed = count[1] is not None and (count[2] is None or count[3] == count[1])
        self.ways += not fixed
        self.greedy = self.greedy or not (fixed or count[4])
        self.lazy = self.lazy or bool(count[4] and not fixed)

    def _group(self, depth: int) -> str:
        opening = "(?:" if self.pattern.startswith("(?:", self.at) else "("
        self.at += len(opening)
        if opening == "(":
            if self._next() == "?":
                raise ValueError("a constraint")
            self.groups += 1
        inner = self.branches(depth + 1)
        if self._next() != ")":
            raise ValueError("a parenthesis that is not closed")
        self.at += 1
        return f"{opening}{inner})"

    def _atom(self, found: "re.Match[str]") -> str:
        kind, text = str(found.lastgroup), found[0]
        if self.fold and not text.isascii():
            raise ValueError("a letter beyond ASCII, whatever its case")
        if kind == "set":
            return self._set(text)
        if kind == "edge":
            self.by_letters = self.by_letters or text in (r"\y", r"\Y")
            return _EDGES[text]
        self.by_letters = self.by_letters or kind == "class"
        return text if kind in ("any", "class", "control") else re.escape(text[-1])

    def _set(self, text: str) -> str:
        inner, negated = text[1:-1], ""
        if inner.startswith("^"):
            inner, negated = inner[1:], "^"
        written, at = "", 0
        while at < len(inner):
            if inner.startswith("[:", at):
                end = inner.index(":]", at)
                written += _NAMED[inner[at + 2 : end]] if inner[at + 2 : end] in _NAMED else self._unknown()
                at, self.by_letters = end + 2, True
            elif inner[at] == "\\":
                pair = inner[at : at + 2]
                self.by_letters = self.by_letters or pair in _IN_SETS
                written += _IN_SETS.get(pair) or (pair if pair[1] in "tnr" else re.escape(pair[1]))
                at += 2
            elif inner[at + 1 : at + 2] == "-" and at + 2 < len(inner):
                low, high = inner[at], inner[at + 2]
                if low > high or high in "[\\" or not (low + high).isascii():
                    self._unknown()
                written += f"{re.escape(low)}-{re.escape(high)}"
                at += 3
            else:
                written += re.escape(inner[at])
                at += 1
        return f"[{negated}{written}]"

    def _unknown(self) -> str:
        raise ValueError("a part of a set that is not known")


def compiled(pattern: str, flags: str) -> Pattern:
    """Raises ValueError for a pattern, or flags other than `g`, `i` and `c`, that the two may read in different ways.

    >>> compiled("a+b*", "").shortest, compiled("a+?", "").shortest
    (False, True)
    """
    if set(flags) - set("gic") or ("i" in flags and "c" in flags):
        raise ValueError("flags")
    if not pattern or (pattern.startswith(("***", "(?")) and not pattern.startswith("(?:")):
        raise ValueError("a pattern with a director")
    reader = _Reader(pattern, "i" in flags)
    written = reader.all()
    options = re.DOTALL | re.ASCII | (re.IGNORECASE if "i" in flags else 0)
    return Pattern(reader, re.compile(written, options), reader.by_letters or "i" in flags)


def without_groups(pattern: str) -> str:
    """The pattern with groups that nothing is asked of."""
    return _OTHER_OR_GROUP.sub(lambda found: found[1] or "(?:", pattern)


_patterns: dict[tuple[str, str], Pattern] = {}


_LONG = 1000
"""Characters of a text beyond which a pattern must not be able to match in many ways."""


def _known(pattern: str, flags: str, text: str, c_collation: bool, most: int = 1) -> Pattern:
    found = _patterns.get((pattern, flags))
    if found is None:
        found = _patterns[pattern, flags] = compiled(pattern, flags)
    if found.by_letters and not c_collation and not text.isascii():
        raise ValueError("characters beyond ASCII, under a collation other than C")
    if found.ways > most and len(text) > _LONG:
        raise ValueError("a long text, for a pattern that can match it in many ways")
    return found


def _match(pattern: Pattern, text: str, start: int) -> Any:
    """The match that begins first from a place on."""
    found = pattern.expression.search(text, start)
    if found is None or pattern.ways < 2:
        return found
    first = found.start()
    ends = range(first, found.end() + 1) if pattern.shortest else range(len(text), found.end() - 1, -1)
    for end in ends:
        # `endpos` would be taken for the end of the text by what asks for that.
        exact = pattern.expression.fullmatch(text, first) if end == len(text) else _until(pattern, text, first, end)
        if exact is not None:
            return exact
    return found


def _until(pattern: Pattern, text: str, first: int, end: int) -> Any:
    if r"\Z" in pattern.expression.pattern or r"\b" in pattern.expression.pattern.lower():
        rest = re.compile(f"(?:{pattern.expression.pattern})(?=.{{{len(text) - end}}}\\Z)", pattern.expression.flags)
        return rest.match(text, first)
    return pattern.expression.fullmatch(text, first, end)


def _matches(pattern: Pattern, text: str, every: bool) -> Iterator[Any]:
    at = 0
    while at <= len(text):
        found = _match(pattern, text, at)
        if found is None:
            return
        yield found
        if not every:
            return
        at = found.end() + (found.end() == found.start())


def is_found(text: str, pattern: str, flags: str, c_collation: bool) -> bool:
    """`text ~ pattern`."""
    return _known(pattern, flags, text, c_collation, 2).expression.search(text) is not None


def replaced(text: str, pattern: str, other: str, flags: str, c_collation: bool) -> str:
    r"""`regexp_replace`.

    >>> replaced("abcabd", "ab(c|d)?", "X", "g", True)
    Traceback (most recent call last):
    ValueError: groups beside branches or repeated ones
    >>> replaced("aab ab", "(a+)b", r"<\1\&>", "g", True), replaced("abc", "x*", "-", "g", True)
    ('<aaaab> <aab>', '-a-b-c-')
    """
    written, at = "", 0
    for found in _matches(_known(pattern, flags, text, c_collation), text, "g" in flags):
        written += text[at : found.start()] + _put(other, found)
        at = found.end()
    return written + text[at:]


def _put(other: str, found: Any) -> str:
    def part(escape: Any) -> str:
        letter = escape[0][1]
        if letter == "\\":
            return "\\"
        number = 0 if letter == "&" else int(letter)
        return (found[number] or "") if number <= found.re.groups else ""

    return re.sub(r"\\[1-9&\\]", part, other)


def groups(text: str, pattern: str, flags: str, c_collation: bool) -> list[str | None] | None:
    """`regexp_match`, as a list."""
    known = _known(pattern, flags, text, c_collation)
    found = _match(known, text, 0)
    return None if found is None else [*found.groups()] if known.groups else [found[0]]


def match(text: str, pattern: str, flags: str, c_collation: bool) -> str | None:
    """`regexp_match`."""
    found = groups(text, pattern, flags, c_collation)
    return None if found is None else made(*found)


def part(text: str, pattern: str, c_collation: bool) -> str | None:
    """`substring(text FROM pattern)`: of the first group, if there is one."""
    found = groups(text, pattern, "", c_collation)
    return None if found is None else found[0]


def whole(text: str, pattern: str, c_collation: bool) -> str | None:
    """`regexp_substr`."""
    found = _match(_known(pattern, "", text, c_collation), text, 0)
    return None if found is None else str(found[0])


def place(text: str, pattern: str, c_collation: bool) -> int:
    """`regexp_instr`."""
    found = _match(_known(pattern, "", text, c_collation), text, 0)
    return 0 if found is None else int(found.start()) + 1


def count(text: str, pattern: str, c_collation: bool) -> int:
    """`regexp_count`."""
    return sum(1 for _ in _matches(_known(pattern, "", text, c_collation), text, True))


def split(text: str, pattern: str, c_collation: bool) -> str:
    """`regexp_split_to_array`.

    >>> split("a  b c", " +", True), split("ab", "x*", True)
    ('{a,b,c}', '{a,b}')
    """
    pieces: list[str | None] = []
    at = last = 0
    for found in _matches(_known(pattern, "", text, c_collation), text, True):
        if found.start() < len(text) and found.end() > last:
            pieces.append(text[at : found.start()])
            at = found.end()
        last = found.end()
    return made(*pieces, text[at:])
