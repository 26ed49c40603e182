"""What the client sends: which batch each message belongs to, and in front of which one somebody must look.

It stops in front of a message that needs attention, and of one that may, as long as too little of it has arrived.
"""

from __future__ import annotations

from collections.abc import Callable

from server.protocol import messages as m
from server.protocol.batches import beginning
from server.protocol.framing import FRONTEND_LENGTHS, WHOLE, Framer, check
from server.protocol.keyword_scan import NOTHING, commits
from server.protocol.owed import Owed
from server.protocol.statement_registry import Attention, reason

MOST_MESSAGES = 1000
"""Messages of a chunk, rows not counted, that are looked at in one turn of the event loop."""

_BEGINNING = 4096
"""Bytes of a long message in which its names stand."""

_unpack = m.HEADER.unpack_from


class ClientMessages(Owed):
    """The client's direction of a session whose bytes pass through."""

    def __init__(self) -> None:
        super().__init__()
        self.client = Framer(FRONTEND_LENGTHS)
        self._begin = 0
        """Where the batch that is being sent begins in the client's chunk."""
        self._wanted = 0
        """How much of the last message of that chunk must be there."""
        self.more_from_client = False
        """Whether the chunk had more messages than :data:`MOST_MESSAGES`: the others wait in the framer."""
        self.terminated = False
        """The client has said goodbye."""
        self.status = m.IDLE
        """Transaction status of the last ReadyForQuery."""

    def goodbye(self) -> None:
        """The client has said goodbye."""
        self.terminated = True

    def from_client(self, data: bytes) -> bytes:
        """The bytes to pass on to the backend. Raises ProtocolViolation."""
        framer = self.client
        self.more_from_client = False
        if framer.size:
            framer.feed(data)
            if framer.size < framer.wanted:
                return b""
            data = framer.take()
        end = len(data)
        position = framer.skip
        self._begin = 0 if self.batch is not None else min(position, end)
        self._wanted = 0
        if position <= end:
            position = self._note_messages(data, position)
        framer.skip = max(position - end, 0)
        if position < end:
            if end - position < 5 and not FRONTEND_LENGTHS[data[position]]:
                check(FRONTEND_LENGTHS, data[position], 4)
            framer.partial = data[position:]
            framer.wanted = self._wanted
            data = data[:position]
        if self.batch is not None:
            self.batch.keep(data[self._begin :])
        return data

    def _note_messages(self, data: bytes, position: int) -> int:
        """Take note of the client's messages from there on; returns the end of the last that passes."""
        last = len(data) - 5
        left = MOST_MESSAGES
        while position <= last:
            left -= 1
            if not left:
                self.more_from_client = True
                break
            kind, length = _unpack(data, position)
            if length not in FRONTEND_LENGTHS[kind]:
                check(FRONTEND_LENGTHS, kind, length)
            following = position + 1 + length
            if not _NOTES[kind](self, kind, data, position, following):
                break
            if self.batch is None:
                self._begin = following
            position = following
        return position

    # Each takes note of one message, from `position` to `following`, which may be behind the end of what has arrived.
    # False if the message does not pass: it needs attention, or more of it must be there first.

    def _note_step(self, kind: int, data: bytes, position: int, following: int) -> bool:
        kept = self.statements or self.portals or (self.committing and self.hidden.possible)
        if (kept or kind == m.PARSE) and self._stops(kind, data, position, following):
            return False
        batch = self.batch or self.current_batch()
        batch.sent += 1
        if kind == m.EXECUTE:
            batch.executed = batch.sent
        elif kind == m.PARSE and data[position + 5] == 0 and not self.skipping:
            batch.unnamed.append((batch.sent, beginning(data, position)))
        return True

    def _stops(self, kind: int, data: bytes, position: int, following: int) -> bool:
        """Whether a message may be about something that is kept, and needs attention or is not there far enough."""
        wanted = min(following - position, WHOLE if kind == m.PARSE else _BEGINNING)
        return (
            self._lacks(wanted, data, position, following)
            or self.look(kind, data, position, following)
            or (kind == m.EXECUTE and self._commits_behind(data, position))
        )

    def _lacks(self, wanted: int, data: bytes, position: int, following: int) -> bool:
        """Whether less than so many bytes of a message have arrived: they are waited for."""
        if following <= len(data) or len(data) - position >= wanted:
            return False
        self._wanted = wanted
        return True

    def _note_query(self, kind: int, data: bytes, position: int, following: int) -> bool:
        if following - position <= WHOLE and self._lacks(following - position, data, position, following):
            return False
        if following <= len(data) and self._watching:
            found = self.mentioned(data[position + 5 : following])
            if found is not NOTHING:
                self.attention = reason(found)
                return False
            if self.hidden.possible and self._query_commits_behind(data[position + 5 : following]):
                return False
        if self.statements:
            self.statements.pop(b"", None)
        self.committing.discard(b"")
        return self._note_call(kind, data, position, following)

    def _note_call(self, kind: int, data: bytes, position: int, following: int) -> bool:
        if not self.skipping:
            self._note_end(kind, data, following)
        return True

    def _note_sync(self, kind: int, data: bytes, position: int, following: int) -> bool:
        if not self.copying:
            self.skipping = False
            self._note_end(kind, data, following)
        return True

    def _note_end(self, kind: int, data: bytes, following: int) -> None:
        alone = self._begin == 0 and following == len(data)
        self.end_batch(kind, data if alone else data[self._begin : following], whole=following <= len(data))

    def _note_copy(self, kind: int, data: bytes, position: int, following: int) -> bool:
        """COPY data belong to a COPY that has begun, or may begin, or to nothing."""
        if kind != m.COPY_DATA:
            if self.copying:
                self.copying = False
            elif self.outstanding or self.batch is not None:
                batch = self.current_batch()
                batch.copies.append(batch.sent)
        if self.batch is not None:
            self.batch.raw = None  # cannot be repeated
        return True

    def _note_terminate(self, kind: int, data: bytes, position: int, following: int) -> bool:
        self.goodbye()
        return True

    def _note_flush(self, kind: int, data: bytes, position: int, following: int) -> bool:
        return True

    def _note_unknown(self, kind: int, data: bytes, position: int, following: int) -> bool:
        raise m.ProtocolViolation(f"invalid frontend message type {kind}")

    def _commits_behind(self, data: bytes, position: int) -> bool:
        """Whether an Execute that commits must wait for what comes before it: then that needs attention."""
        if not self._committing_portals or m.text_at(data, position + 5) not in self._committing_portals:
            return False
        if (self.outstanding or self._executes()) and not (self.failed or self.skipping):
            self.attention = Attention.COMMIT
        return self.attention is not None

    def _query_commits_behind(self, text: bytes) -> bool:
        """Whether a Query that may commit must wait for what comes before it, in its own text as well.

        Any Query ends the batch of what is executed before it without a Sync: then it cannot be run again.
        """
        if not self.trusted or self.skipping:
            return False
        executes = self._executes()
        waits = self.outstanding or executes or (self.status == m.IN_TRANSACTION and b";" in text)
        if (executes and self.status == m.IDLE) or (waits and commits(text[:-1].lower())):
            self.attention = Attention.COMMIT
        return self.attention is not None

    def _executes(self) -> bool:
        """Whether something is executed in the batch that is being sent, of which PostgreSQL has not answered all."""
        return self.batch is not None and self.batch.executed > self._received


_Note = Callable[[ClientMessages, int, bytes, int, int], bool]

# How from_client takes note of a type.
_NOTES: list[_Note] = [ClientMessages._note_unknown] * 256
for _kinds, _note in (
    (b"PBDEC", ClientMessages._note_step),
    (b"Q", ClientMessages._note_query),
    (b"F", ClientMessages._note_call),
    (b"S", ClientMessages._note_sync),
    (b"dcf", ClientMessages._note_copy),
    (b"X", ClientMessages._note_terminate),
    (b"H", ClientMessages._note_flush),
):
    for _kind in _kinds:
        _NOTES[_kind] = _note
