"""Batches: what a client sends that is answered by one ReadyForQuery, as long as it has not been answered."""

from __future__ import annotations

from collections.abc import Iterable

from server.protocol import messages as m
from server.protocol.framing import WHOLE

_STEPS = frozenset(b"PBDEC")
"""The messages that are owed a completion of their own."""

SHORT = 2048
"""Bytes that are kept of a statement without a name: it may be one that ends a transaction."""


class Batch:
    """Messages of the client that are answered by one ReadyForQuery."""

    __slots__ = ("copies", "executed", "raw", "sent", "simple", "size", "unnamed")

    def __init__(self, raw: bytes = b"", sent: int = 0, simple: bool = False) -> None:
        self.raw: list[bytes] | None = [raw]
        """The batch as it was sent; None if it is too long to be repeated, or was followed by COPY data."""
        self.size = len(raw)
        self.sent = sent
        """Messages that are owed a completion of their own."""
        self.simple = simple
        """Whether a Query or FunctionCall ends it."""
        self.executed = 0
        """Which of the messages that are owed a completion is its last Execute, from 1; 0 if there is none."""
        self.copies: list[int] = []
        """Where COPY data has been ended: behind so many of the messages that are owed a completion."""
        self.unnamed: list[tuple[int, bytes]] = []
        """Its Parses without a name: which of those messages each is, from 1, and how the statement begins."""

    @classmethod
    def of(cls, raw: bytes) -> Batch:
        """A batch from all its bytes."""
        sent = position = executed = 0
        unnamed = []
        while position < len(raw):
            kind, length = m.HEADER.unpack_from(raw, position)
            sent += kind in _STEPS
            if kind == m.EXECUTE:
                executed = sent
            if kind == m.PARSE and not raw[position + 5]:
                unnamed.append((sent, beginning(raw, position)))
            position += length + 1
        batch = cls(raw, sent, raw[0] == m.QUERY)
        batch.unnamed = unnamed
        batch.executed = executed
        return batch

    def keep(self, data: bytes) -> None:
        if self.raw is not None:
            self.size += len(data)
            if self.size > WHOLE:
                self.raw = None
            else:
                self.raw.append(data)

    def copied(self, behind: int) -> bool:
        """Whether the data of a COPY have been ended behind so many of its messages: that end is then used up."""
        if behind in self.copies:
            self.copies.remove(behind)
            return True
        return False

    def go_on(self, sent: int, executed: int) -> None:
        """So many more of its messages have been sent; the last Execute among them is this one of them, if any."""
        if executed:
            self.executed = self.sent + executed
        self.sent += sent

    def precede(self, sent: int, executed: int, unnamed: Iterable[tuple[int, bytes]] = ()) -> None:
        """So many messages before its first belong to it, too, with these Parses and this last Execute among them."""
        self.raw = None
        self.executed = self.executed + sent if self.executed else executed
        self.sent += sent
        self.copies = [behind + sent for behind in self.copies]
        self.unnamed = [*unnamed, *((step + sent, text) for step, text in self.unnamed)]


def beginning(data: bytes, position: int) -> bytes:
    """How the statement of a Parse without a name begins.

    >>> beginning(m.SYNC_MESSAGE + m.parse(b"", b"select 1"), len(m.SYNC_MESSAGE))
    b'select 1'
    """
    text = position + 6
    end = data.find(0, text, text + SHORT)
    return data[text : end if end >= 0 else text + SHORT]
