"""What a client says about a cursor that it has declared for SUBSCRIBE: FETCH, MOVE and CLOSE.

{ FETCH | MOVE } [direction] [FROM | IN] cursor [WITH (timeout = 'interval')]
CLOSE { cursor | ALL }
"""

from __future__ import annotations

from dataclasses import dataclass

from catalog.session import SqlError
from server.protocol.lexer import leading
from server.protocol.statements.subscribe_syntax import Piece, Reader, SyntaxFault

_LONGEST_NUMBER = 18
"""Digits of a number; PostgreSQL takes ten."""
_FORWARD_ONLY = "cursor can only scan forward"


@dataclass(frozen=True, slots=True)
class FetchRows:
    """FETCH, or MOVE."""

    name: bytes
    count: int | None
    """Most rows; None for ALL."""
    timeout: bytes | None = None
    """An interval, unquoted."""
    move: bool = False
    backward: bool = False
    """Asks for what has been read before, which nobody keeps."""

    def plain(self) -> bytes:
        """The statement as PostgreSQL knows it.

        >>> FetchRows(b"c", None).plain()
        b'FETCH ALL FROM "c"'
        """
        count = b"ALL" if self.count is None else b"%d" % self.count
        return (b"MOVE " if self.move else b"FETCH ") + count + b' FROM "' + self.name.replace(b'"', b'""') + b'"'


@dataclass(frozen=True, slots=True)
class CloseCursor:
    """CLOSE; None stands for ALL."""

    name: bytes | None


def parse(text: bytes, *, backslashes: bool = False, encoding: str = "UTF8") -> FetchRows | CloseCursor | None:
    """What a statement says about a cursor, None if it says nothing. Raises SyntaxFault.

    What is no FETCH, MOVE or CLOSE of PostgreSQL's either is None, too: PostgreSQL says what is wrong with it.

    >>> parse(b"FETCH 100 c WITH (timeout='1s');")
    FetchRows(name=b'c', count=100, timeout=b'1s', move=False, backward=False)
    >>> parse(b"fetch backward all in c").backward
    True
    """
    if leading(text, 1, backslashes=backslashes, encoding=encoding) not in (("FETCH",), ("MOVE",), ("CLOSE",)):
        return None
    try:
        reader = Reader.of(text, backslashes, encoding)
        if reader.accept("CLOSE"):
            found = CloseCursor(None) if reader.accept("ALL") else CloseCursor(reader.identifier().text)
            return found if reader.ended else None
        move = reader.accept("MOVE")
        if not move and not reader.accept("FETCH"):
            return None
        count, backward = _direction(reader)
        name = reader.identifier().text
    except SyntaxFault:
        return None
    timeout = _timeout(reader) if not reader.ended else None
    return FetchRows(name, count, timeout.text if timeout else None, move, backward)


def refuse_backward() -> SqlError:
    return SqlError("55000", _FORWARD_ONLY, hint="What a subscription has given out is not kept.")


def _direction(reader: Reader) -> tuple[int | None, bool]:
    """How many rows, and whether they lie behind. Leaves the reader at the cursor's name."""
    word = reader.peek()
    following = reader.peek(1)
    named = reader.at + 1 >= len(reader.ahead) or following == "WITH"  # this word is the cursor's name
    if named:
        return 1, False
    if word in ("FROM", "IN"):
        reader.take()
        return 1, False
    backward = word in ("PRIOR", "LAST", "FIRST", "ABSOLUTE", "RELATIVE", "BACKWARD")
    if word in ("NEXT", "PRIOR", "FIRST", "LAST"):
        reader.take()
        count: int | None = 1
    elif word in ("ABSOLUTE", "RELATIVE"):
        reader.take()
        count = _number(reader)
    else:
        if word in ("FORWARD", "BACKWARD"):
            reader.take()
        if reader.peek() == "ALL":
            reader.take()
            count = None
        elif reader.peek() in ("-", "+") or _is_number(reader.peek()[:1]):
            count = _number(reader)
            backward |= count < 0
        elif word in ("FORWARD", "BACKWARD"):
            count = 1
        else:
            raise reader.fault()
    if reader.peek() in ("FROM", "IN"):
        reader.take()
    return count, backward


def _number(reader: Reader) -> int:
    sign = -1 if reader.accept("-") else 1
    reader.accept("+")
    if not _is_number(reader.peek()):
        raise reader.fault()
    return sign * int(reader.take().word)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= _LONGEST_NUMBER


def _timeout(reader: Reader) -> Piece:
    """WITH (timeout = 'interval'), where a cursor's name would have ended PostgreSQL's FETCH."""
    reader.expect("WITH", "(")
    if not reader.accept("TIMEOUT"):
        raise reader.fault()
    reader.accept("=")
    if reader.ended or reader.ahead[reader.at].kind != "string":
        raise reader.fault()
    token = reader.take()
    written = reader.text[token.start : token.end]
    reader.expect(")")
    if not reader.ended:
        raise reader.fault()
    return Piece(token.start, written[1:-1].replace(b"''", b"'"))
