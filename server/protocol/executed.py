"""Which statement's text each portal of a batch runs, where an interceptor must know it before the statement is run.

Portals of a transaction that is the relay's are bound in the batch itself, since they end with their transaction. The
statement may be older: PostgreSQL knows its text if it has a name, and `Watch.unnamed` has the last one without.
"""

from __future__ import annotations

from collections.abc import Iterator

from server.protocol import messages as m
from server.protocol.framing import FRONTEND_LENGTHS, check


class Executed:
    """Texts of the statements that a batch has parsed, and of its portals."""

    def __init__(self) -> None:
        self.statements: dict[bytes, bytes] = {}
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
            portal = m.text_at(message, 5)
            name = m.text_at(message, 6 + len(portal))
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


def unnamed_text(chunk: bytes) -> bytes | None:
    """The text of the last Parse without a name in a chunk that begins with a message; None if it has none.

    >>> unnamed_text(m.parse(b"", b"commit and chain") + m.SYNC_MESSAGE)
    b'commit and chain'
    """
    executed = Executed()
    for kind, message in followed(chunk):
        if kind == m.PARSE:
            executed.follow(kind, message)
    return executed.statements.get(b"")
