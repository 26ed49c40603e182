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
from server.protocol.batches import COPY, END, ROLE, STEP, beginning
from server.protocol.error_rewriting import is_own_debugging
from server.protocol.framing import BACKEND_LENGTHS, FRONTEND_LENGTHS, WHOLE, Framer, check
from server.protocol.header_cache import HeaderCache, Rows
from server.protocol.keyword_scan import NOTHING
from server.protocol.owed import Copies, Owed, Unnamed
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
        if position > end:
            framer.skip = position - end
            if self.batch is not None:
                self.batch.keep(data)
            return data
        framer.skip = 0
        batch = self.batch  # what an earlier chunk has begun
        begin = 0 if batch is not None else position  # where the current batch begins in this chunk
        sent = 0  # its messages in this chunk
        executed = 0  # which of these is the last Execute
        unnamed: Unnamed = None  # and the Parses without a name among them
        copies: Copies = None  # its COPY data in this chunk
        watching = bool(self.statements or self.portals)
        last = end - 5
        left = MOST_MESSAGES
        wanted = 0  # how much of the last message must be there
        while position <= last:
            left -= 1
            if not left:
                self.more_from_client = True
                break
            kind, length = _unpack(data, position)
            if length not in FRONTEND_LENGTHS[kind]:
                check(FRONTEND_LENGTHS, kind, length)
            following = position + 1 + length
            role = ROLE[kind]
            if role == STEP:
                if watching or kind == m.PARSE:
                    if following > end:
                        wanted = length + 1 if kind == m.PARSE and length < WHOLE else min(length + 1, _BEGINNING)
                        if end - position < wanted:
                            break
                        wanted = 0
                    if self.look(kind, data, position, following):
                        break
                    watching = bool(self.statements or self.portals)
                sent += 1
                if kind == m.EXECUTE:
                    executed = sent
                elif kind == m.PARSE and data[position + 5] == 0 and not self.skipping:
                    unnamed = unnamed or []
                    unnamed.append((sent + (batch.sent if batch is not None else 0), beginning(data, position)))
            elif role == END:
                if kind == m.QUERY:
                    if following > end:
                        if length < WHOLE:
                            wanted = length + 1
                            break
                    elif self.watching and (found := self.mentioned(data[position + 5 : following])) is not NOTHING:
                        self.attention = reason(found)
                        break
                    if watching:
                        self.statements.pop(b"", None)
                if kind == m.SYNC:
                    ends = not self.copying
                    self.skipping &= self.copying
                else:
                    ends = not self.skipping
                if ends:
                    self.end_batch(kind, data, begin, following, sent, executed, unnamed, copies)
                    batch = unnamed = copies = None
                    sent = executed = 0
            elif role == COPY:  # belongs to a COPY that has begun, or may begin, or to nothing
                copies = copies or []
                if kind == m.COPY_DATA:
                    pass
                elif self.copying:
                    self.copying = False
                elif self.outstanding or sent or batch is not None:
                    copies.append(sent + (batch.sent if batch is not None else 0))
            elif kind == m.TERMINATE:
                self.terminated = True
            elif kind != m.FLUSH:
                raise m.ProtocolViolation(f"invalid frontend message type {kind}")
            if not sent and batch is None and not copies:
                begin = following
                copies = None
            position = following
        if position > end:
            framer.skip = position - end
        elif position < end:
            if end - position < 5 and not FRONTEND_LENGTHS[data[position]]:
                check(FRONTEND_LENGTHS, data[position], 4)
            framer.partial = data[position:]
            framer.wanted = wanted
            data = data[:position]
        if sent or batch is not None or copies:
            self.begin_batch(data[begin:], sent, executed, unnamed, copies)
        return data

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
        if position > end:
            framer.skip = position - end
            return data
        framer.skip = 0
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
            elif self.requested and kind in _COPY_ENDS:
                self.attention = Attention.REQUEST_MADE
                self.requested = False
                framer.partial = data[position:]
                data = data[:position]
                end = position
                break
            elif kind == m.READY:
                self.note_ready(data[position + 5])
                received = seen = 0
            elif kind == m.COMMAND_COMPLETE and data[position + 5 : position + 7] == b"SE":
                received += 1  # SELECT or SET: says nothing about the transaction
                seen += 1
            else:
                self.received, self.seen = received, seen
                unwanted = self.read(kind, data[position + 5 : following])
                received, seen = self.received, self.seen
                if self.attention is not None:
                    framer.partial = data[following:]
                    data = data[:position]
                    end = position
                    break
                if unwanted:
                    instead = TOO_LATE if kind == m.ERROR else b""
                    data = data[:position] + instead + data[following:]
                    following = position + len(instead)
                    end = len(data)
                    last = end - 5
            position = following
        self.received, self.seen = received, seen
        if position > end:
            framer.skip = position - end
        elif position < end:
            framer.partial = data[position:]
            data = data[:position]
        return data

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
