"""Which statement's text each portal of a batch runs, where an interceptor must know it before the statement is run.

Portals of a transaction that is the relay's are bound in the batch itself, since they end with their transaction. The
statement may be older: PostgreSQL knows its text if it has a name, and `Owed.unnamed` has the one without.
"""

from __future__ import annotations

from collections.abc import Iterator

from server.protocol import messages as m
from server.protocol.framing import FRONTEND_LENGTHS, check


class Executed:
    """Texts of the statements that a batch has parsed, and of its portals."""

    def __init__(self, unnamed: bytes = b"") -> None:
        self.statements: dict[bytes, bytes] = {b"": unnamed}
        """Texts by the name of the statement, as far as they are known."""
        self._portals: dict[bytes, bytes] = {}  # names of statements whose texts were not known at their Bind
        self._bound: dict[bytes, bytes] = {}  # texts

    def follow(self, kind: int, message: bytes) -> None:
        """Take note of a Parse, Bind or Close, or of the first piece of one. Raises ProtocolViolation."""
        if kind == m.PARSE:
            name = m.text_at(message, 5)
            end = message.find(b"\0", 6 + len(name))
            self.statements[name] = message[6 + len(name) : end if end >= 0 else len(message)]
        elif kind == m.BIND:
            portal, name = m.text_at(message, 5), _bound_name(message)
            self._bound.pop(portal, None)
            self._portals.pop(portal, None)
            if name in self.statements:
                self._bound[portal] = self.statements[name]
            else:
                self._portals[portal] = name
        elif kind == m.CLOSE and message[5:6] == b"S":
            self.statements.pop(m.text_at(message, 6), None)

    def text(self, portal: bytes) -> bytes | None:
        """The text that a portal runs; None if it is not known, or there is no such portal.

        >>> executed = Executed()
        >>> executed.follow(m.PARSE, m.parse(b"s", b"commit"))
        >>> executed.follow(m.BIND, m.bind(b"p", b"s"))
        >>> executed.follow(m.CLOSE, m.close_statement(b"s"))
        >>> executed.text(b"p"), executed.text(b"")
        (b'commit', None)
        """
        found = self._bound.get(portal)
        return self.statements.get(self._portals.get(portal, b"\0")) if found is None else found

    def unknown(self, portal: bytes) -> bytes | None:
        """The name of the statement that a portal runs, where its text is not known."""
        name = self._portals.get(portal)
        return None if name in self.statements else name


def followed(raw: bytes) -> Iterator[tuple[int, bytes]]:
    """The messages of a run of whole messages that say what is executed: Parse, Bind, Execute and Close.

    >>> [kind for kind, _ in followed(m.parse(b"", b"x") + m.FLUSH_MESSAGE + m.execute(b""))] == [m.PARSE, m.EXECUTE]
    True
    """
    position = 0
    while position + 5 <= len(raw):
        kind, length = m.HEADER.unpack_from(raw, position)
        check(FRONTEND_LENGTHS, kind, length)
        if kind in (m.PARSE, m.BIND, m.EXECUTE, m.CLOSE):
            yield kind, raw[position : position + length + 1]
        position += length + 1


def prepared_again(batch: bytes) -> frozenset[bytes] | None:
    """Names of the statements that a batch has left prepared, which it would prepare anew where it runs once more.

    None where it would then bind others than before: a statement's preparation is not undone with its transaction.

    >>> closed = m.parse(b"a", b"x") + m.bind(b"", b"a") + m.close_statement(b"a")
    >>> prepared_again(closed), prepared_again(closed + m.parse(b"b", b"y"))
    (frozenset(), frozenset({b'b'}))
    >>> prepared_again(m.bind(b"", b"a") + m.close_statement(b"a")) is None
    True
    >>> prepared_again(m.bind(b"", b"") + m.parse(b"", b"x")) is None
    True
    >>> prepared_again(m.parse(b"", b"x") + m.bind(b"", b"") + m.parse(b"", b"y"))
    frozenset()
    """
    messages = list(followed(batch))
    present: dict[bytes, int | None] = {}  # which message has prepared the statement of a name, None if it is closed
    bound: list[int | None] = []  # by each Bind; -1 for what is older
    for number, (kind, message) in enumerate(messages):
        if kind == m.BIND:
            bound.append(present.get(_bound_name(message), -1))
        else:
            _follow_name(present, number, kind, message)
    left = frozenset(name for name, number in present.items() if name and number is not None)
    again = iter(bound)
    for number, (kind, message) in enumerate(messages):
        if kind == m.BIND:
            if present.get(_bound_name(message), -1) != next(again):
                return None
            continue
        if kind == m.PARSE and (name := m.text_at(message, 5)) and present.get(name) not in (None, number):
            return None
        _follow_name(present, number, kind, message)
    return left


def _bound_name(bind: bytes) -> bytes:
    """The name of the statement that a Bind takes."""
    return m.text_at(bind, 6 + len(m.text_at(bind, 5)))


def _follow_name(present: dict[bytes, int | None], number: int, kind: int, message: bytes) -> None:
    """Note in `present` what a Parse or Close of that number does to the statement of its name."""
    if kind == m.PARSE:
        present[m.text_at(message, 5)] = number
    elif kind == m.CLOSE and message[5:6] == b"S":
        present[m.text_at(message, 6)] = None
