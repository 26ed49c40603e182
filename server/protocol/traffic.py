"""The fast path: follows both directions of a session chunk by chunk, and says where somebody must look.

What the client sends falls into *batches*: a Query, a FunctionCall, or everything up to a Sync. Each batch is owed one
ReadyForQuery. Batches that are complete and not yet answered stand in :attr:`Traffic.outstanding`, the oldest first;
the one that is still being sent is :attr:`Traffic.batch`. Within a batch of the extended protocol every Parse, Bind,
Describe, Execute and Close is owed one completion (``1 2 3 T n C I s``), until an error, after which nothing is owed
but the ReadyForQuery of the Sync.

:meth:`Traffic.from_client` and :meth:`Traffic.from_backend` take a chunk as it came from the socket and return
the bytes to pass on, nearly always the chunk itself. They walk the headers, keep those counts, and stop in
front of a message that needs attention; the bytes from there on stay in the direction's framer, and
:attr:`Traffic.attention` says why. A batch's own bytes are kept until it is answered, up to 1 MiB, because it
may have to be run again (``intercept``).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from server.protocol import messages as m
from server.protocol.batches import beginning
from server.protocol.error_rewriting import is_own_debugging
from server.protocol.framing import BACKEND_LENGTHS, FRONTEND_LENGTHS, WHOLE, Framer, check
from server.protocol.header_cache import HeaderCache, Rows
from server.protocol.keyword_scan import NOTHING, commits
from server.protocol.owed import Owed
from server.protocol.statement_registry import Attention, reason

MOST_MESSAGES = 1000
"""Messages of a chunk, rows not counted, that are looked at in one turn of the event loop."""

_BEGINNING = 4096
"""Bytes of a long message in which its names stand."""

_unpack = m.HEADER.unpack_from
_DATA_ROW = m.DATA_ROW

# How from_backend treats a type: pass it, count it as a completion, or read it.
_PASS, _COUNT, _READ = 0, 1, 2
_TREATMENT = [_PASS] * 256
for _kind in b"123TnIs":
    _TREATMENT[_kind] = _COUNT
for _kind in b"CZENSGWK":
    _TREATMENT[_kind] = _READ

_COPY_ENDS = (m.COMMAND_COMPLETE, m.ERROR, m.READY)

_CHANGES = re.compile(rb"(?:INSERT|UPDATE|DELETE|MERGE|COPY|TRUNCATE|DO|CALL)\b")
_CONTROLS = re.compile(rb"(?:BEGIN|START TRANSACTION|COMMIT|ROLLBACK|PREPARE TRANSACTION)\b")


TOO_LATE = m.error_response(
    "0A000",
    "an engine request could not be carried out before the transaction's end",
    hint="Name the function in the statement's own text, or wait for the statement's result before sending the next.",
)
"""Takes the place of the error with which the database refuses to commit a request that was left behind."""


class Traffic(Owed):
    """What is known about a session whose bytes pass through."""

    def __init__(
        self,
        committed: Callable[[], None],
        sent: Callable[[], None] = lambda: None,
        portals_ended: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__()
        self.committed = committed
        """Called when a transaction that changed data has committed."""
        self.sent = sent
        """Called when a session that sends events to queues has ended a transaction."""
        self.portals_ended = portals_ended
        """Called when a transaction that had portals of ours has ended."""
        self.client = Framer(FRONTEND_LENGTHS)
        self.backend = Framer(BACKEND_LENGTHS)
        self._begin = 0
        """Where the batch that is being sent begins in the client's chunk."""
        self._wanted = 0
        """How much of the last message of that chunk must be there."""
        self.more_from_client = self.more_from_backend = False
        """Whether the chunk had more messages than :data:`MOST_MESSAGES`: the others wait in the framer."""
        self.terminated = False
        """The client has said goodbye."""
        self.fatal = False
        """PostgreSQL has said why it ends the session."""
        self.status = m.IDLE
        """Transaction status of the last ReadyForQuery."""
        self.parameters: dict[str, str] = {}
        """What ParameterStatus said."""
        self.batches, self.answers = HeaderCache(), HeaderCache()
        """Shapes of whole batches and whole answers (``express``)."""
        self.past_rows = Rows().past
        # Since the last ReadyForQuery:
        self.seen = 0
        """Messages other than rows and asynchronous ones."""
        self.rows = False
        """Whether a row has been passed on."""
        self.controls: list[bytes] = []
        """Tags of transaction control."""
        self.ended = 0
        """Completions up to the last that ended a transaction."""
        self.requested = False
        """Whether a COPY from the client has made a request."""
        self.changed = False
        """Whether the current transaction has changed data, as far as tags tell."""

    # -- client to backend ---------------------------------------------------------------------------------------

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
        if (kind == m.PARSE or self.followed) and self._stops(kind, data, position, following):
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
        if following <= len(data) and self.watching:
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
        self.terminated = True
        return True

    def _note_flush(self, kind: int, data: bytes, position: int, following: int) -> bool:
        return True

    def _note_unknown(self, kind: int, data: bytes, position: int, following: int) -> bool:
        raise m.ProtocolViolation(f"invalid frontend message type {kind}")

    def _commits_behind(self, data: bytes, position: int) -> bool:
        """Whether an Execute that commits must wait for what comes before it: then that needs attention."""
        if not self.committing_portals or m.text_at(data, position + 5) not in self.committing_portals:
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
        return self.batch is not None and self.batch.executed > self.received

    # -- backend to client ---------------------------------------------------------------------------------------

    def from_backend(self, data: bytes) -> bytes:
        """The bytes to pass on to the client. Raises ProtocolViolation."""
        framer = self.backend
        self.more_from_backend = False
        if framer.size:
            framer.feed(data)
            data = framer.take()
        end = len(data)
        position = framer.skip
        received, seen = self.received, self.seen
        last = end - 5
        left = MOST_MESSAGES
        while position <= last:
            left -= 1
            if not left:
                self.more_from_backend = True
                break
            kind, length = _unpack(data, position)
            if kind == _DATA_ROW:
                self.rows = True
                position = self.past_rows(data, position, last)
                if position > last:
                    break
                kind, length = _unpack(data, position)
            following = position + 1 + length
            how = _TREATMENT[kind]
            if length not in BACKEND_LENGTHS[kind]:
                check(BACKEND_LENGTHS, kind, length)
            if how == _COUNT:
                received += 1
                seen += 1
            elif how == _PASS:
                seen += kind != m.NOTIFICATION
            elif following > end:
                if length < WHOLE:
                    break
            elif kind == m.COMMAND_COMPLETE and data[position + 5 : position + 7] == b"SE" and not self.requested:
                received += 1  # SELECT or SET: says nothing about the transaction
                seen += 1
            elif kind == m.READY and not self.requested:
                self.note_ready(data[position + 5])
                received = seen = 0
            else:
                self.received, self.seen = received, seen
                instead = self._read_in_passing(kind, data[position + 5 : following])
                received, seen = self.received, self.seen
                if instead is not None:
                    data = data[:position] + instead + data[following:]
                    following = position + len(instead)
                    end = len(data)
                    last = end - 5
                if self.attention is not None:
                    break
            position = following
        self.received, self.seen = received, seen
        framer.skip = max(position - end, 0)
        if position < end:
            framer.partial = data[position:]
            data = data[:position]
        return data

    def _read_in_passing(self, kind: int, body: bytes) -> bytes | None:
        """Take note of a message that passes; returns what the client gets in its place, None if it gets the message.

        Where attention is needed afterwards, what the client gets waits until then.
        """
        if self.requested and kind in _COPY_ENDS:
            self.attention = Attention.REQUEST_MADE
            self.requested = False
            return None
        if not self.read(kind, body):
            return None
        return TOO_LATE if kind == m.ERROR else b""

    def read(self, kind: int, body: bytes) -> bool:
        """Take note of a message that says something about the session.

        True if the client must not see it: an engine request, the error of one that was left behind, or what work of
        ours says to those who look for mistakes.
        """
        if kind == m.COMMAND_COMPLETE:
            self.received += 1
            self.seen += 1
            if body[0] != 83 or body[1] == 84:  # not SELECT, SET, SHOW, but START TRANSACTION
                self.note_tag(body)
        elif kind == m.READY:
            self.note_ready(body[0])
        elif kind == m.NOTICE:
            if self.trusted and m.sqlstate_of(body) == m.REQUEST_MADE:
                self.hidden.expect()
                if self.copying:  # the client must go on; what ends the COPY needs attention
                    self.requested = True
                else:
                    self.attention = Attention.REQUEST_MADE
                return True
            return self.trusted and is_own_debugging(body)
        elif kind == m.ERROR:
            self.seen += 1
            self.failed = True
            self.error()
            self.fatal = m.is_fatal(body)
            return self.trusted and m.sqlstate_of(body) == m.REQUEST_LEFT
        elif kind == m.PARAMETER_STATUS:
            name = m.text_at(body)
            value = m.text_at(body, len(name) + 1)
            self.parameters[name.decode("ascii", "replace")] = value.decode("utf-8", "replace")
        elif kind == m.COPY_IN or kind == m.COPY_BOTH:
            self.seen += 1
            self.begin_copy()
        return False

    def note_tag(self, tag: bytes) -> None:
        """Take note of a CommandComplete's tag."""
        if _CHANGES.match(tag):
            self.changed = True
        elif _CONTROLS.match(tag):
            self.controls.append(tag.rstrip(b"\0"))
            if not tag.startswith((b"BEGIN", b"START")):
                self.ended = self.received
            if self.portals and tag.startswith(b"COMMIT"):
                self._end_portals()
            elif self.portals and tag.startswith(b"ROLLBACK"):
                self.rolled_back = True

    def note_ready(self, status: int) -> None:
        """Take note of a ReadyForQuery: the oldest batch has been answered."""
        self.status = status
        if not self.failed:
            self.parsed(failed=False)
        self.received = self.seen = 0
        self.rows = False
        if self.outstanding:
            self.outstanding.popleft()
        elif self.skipping:  # a Sync that was taken for ignored has come behind an error
            self.batch = None
        if self.failed or self.copying or self.controls:
            self.failed = self.copying = self.skipping = False
            self.controls = []
            self.ended = 0
        if status == m.IDLE:
            if self.committing_portals:
                self.committing_portals.clear()
            if self.portals:
                self._end_portals()
            if self.changed:
                self.changed = False
                self.committed()
            if self.sending:
                self.sent()

    def _end_portals(self) -> None:
        self.portals.clear()
        self.rolled_back = False
        self.portals_ended()


_Note = Callable[[Traffic, int, bytes, int, int], bool]

# How from_client takes note of a type.
_NOTES: list[_Note] = [Traffic._note_unknown] * 256
for _kinds, _note in (
    (b"PBDEC", Traffic._note_step),
    (b"Q", Traffic._note_query),
    (b"F", Traffic._note_call),
    (b"S", Traffic._note_sync),
    (b"dcf", Traffic._note_copy),
    (b"X", Traffic._note_terminate),
    (b"H", Traffic._note_flush),
):
    for _kind in _kinds:
        _NOTES[_kind] = _note
