"""What the scripts say of each function: the first paragraph of the comment above it is for its users.

It is the function's comment in the database too, so that ``\\df+ pgtrickle.*`` describes them, and it is what the
reference is made of; nothing has to be written twice. Further paragraphs are for who reads the script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

_CREATED = re.compile(r"^CREATE (?:OR REPLACE )?(FUNCTION|PROCEDURE) ((?:@extschema@|\w+)\.[a-z]\w*)\(", re.MULTILINE)
_COMMENTED = re.compile(r"^COMMENT ON FUNCTION ((?:@extschema@|\w+)\.[a-z]\w*)\(", re.MULTILINE)
_COMMENT_IN_LIST = re.compile(r"--[^\n]*")
_SPACES = re.compile(r"\s+")
_ATTRIBUTE = re.compile(r"\n| LANGUAGE| AS | STABLE| IMMUTABLE|;")
_DEFAULT = re.compile(r" DEFAULT | := | = ")


@dataclass(frozen=True, slots=True)
class Routine:
    """A function or procedure for users, as a script makes it."""

    kind: str
    """FUNCTION or PROCEDURE."""
    name: str
    """With its schema, not quoted."""
    parameters: tuple[str, ...]
    """Each as it is declared, with its default."""
    result: str
    """What stands behind RETURNS; empty for a procedure, and where parameters are the result."""
    description: str
    """The first paragraph of the comment above it; empty if there is none."""

    @property
    def signature(self) -> str:
        """The name with the parameters, without defaults, as COMMENT wants it."""
        return f"{self.name}({', '.join(_DEFAULT.split(parameter)[0] for parameter in self.parameters)})"

    @property
    def comment(self) -> str:
        """The statement that says it in the database."""
        return f"COMMENT ON {self.kind} {self.signature} IS $says${self.description}$says$"


def routines(scripts: Iterable[str]) -> Iterator[Routine]:
    """The functions and procedures that scripts make and whose names do not begin with an underscore.

    >>> [one] = routines(['''-- One more,
    ... -- or several.
    ... CREATE OR REPLACE FUNCTION a.more(n int, step int DEFAULT greatest(1, 0)) RETURNS SETOF int
    ... LANGUAGE sql AS $$ SELECT $1 + $2 $$;'''])
    >>> one.description, one.parameters, one.result
    ('One more, or several.', ('n int', 'step int DEFAULT greatest(1, 0)'), 'SETOF int')
    >>> one.comment
    'COMMENT ON FUNCTION a.more(n int, step int) IS $says$One more, or several.$says$'
    """
    for script in scripts:
        for made in _CREATED.finditer(script):
            kind, name = made.groups()
            parameters, end = _list(script, made.end())
            yield Routine(kind, name, parameters, _result(script[end:]), _above(script[: made.start()]))


def commented(scripts: Iterable[str]) -> Iterator[Routine]:
    """The functions that scripts describe by a statement, since they are generated, or differ from one use to the next.

    >>> [one] = commented(["COMMENT ON FUNCTION a.f(n int) IS 'It''s ' 'one.';"])
    >>> one.name, one.parameters, one.description
    ('a.f', ('n int',), "It's one.")
    """
    for script in scripts:
        for statement in _COMMENTED.finditer(script):
            parameters, end = _list(script, statement.end())
            strings = script[end : script.index("';", end)].replace("''", "\0").split("'")[1::2]
            yield Routine("FUNCTION", statement[1], parameters, "", "".join(strings).replace("\0", "'"))


def _list(script: str, start: int) -> tuple[tuple[str, ...], int]:
    """The items of a list in parentheses that begins there, and where it ends."""
    depth, end = 1, start
    while depth:
        depth += {"(": 1, ")": -1}.get(script[end], 0)
        end += 1
    written = _SPACES.sub(" ", _COMMENT_IN_LIST.sub("", script[start : end - 1])).strip()
    items, depth = [""], 0
    for character in written:
        depth += {"(": 1, ")": -1, "[": 1, "]": -1}.get(character, 0)
        if character == "," and not depth:
            items.append("")
        else:
            items[-1] += character
    return tuple(item.strip() for item in items if item.strip()), end


def _result(behind: str) -> str:
    """What a function returns, if that is said next."""
    words = behind.lstrip()
    if not words.startswith("RETURNS "):
        return ""
    words = words.removeprefix("RETURNS ").lstrip()
    if words.startswith("TABLE"):
        columns, _ = _list(words, words.index("(") + 1)
        return f"TABLE({', '.join(columns)})"
    return _ATTRIBUTE.split(words, maxsplit=1)[0].strip()


def _above(script: str) -> str:
    """The first paragraph of the comment that ends a script, as one line."""
    lines = list(takewhile(lambda line: line.startswith("--"), reversed(script.removesuffix("\n").split("\n"))))
    said = (line.removeprefix("--").strip() for line in reversed(lines))
    return " ".join(takewhile(bool, said))
