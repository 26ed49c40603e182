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
from collections import Counter
from collections.abc import Callable

from server.protocol import messages as m
from server.protocol.client_messages import MOST_MESSAGES, ClientMessages
from server.protocol.error_rewriting import is_own_debugging, without_own_context
from server.protocol.framing import AUTHENTICATION_LENGTHS, BACKEND_LENGTHS, FRONTEND_LENGTHS, WHOLE, Framer, check
from server.protocol.header_cache import HeaderCache, Rows
from server.protocol.statement_registry import Attention, HiddenRequests

_unpack = m.HEADER.unpack_from
_DATA_ROW = m.DATA_ROW

# Which types from_backend reads; what the others count for, as completions and as messages of an answer.
_READ = [kind in b"CZENSGWK" for kind in range(256)]
_COMPLETES = [int(kind in b"123TnIs") for kind in range(256)]
_COUNTS = [int(kind != m.NOTIFICATION) for kind in range(256)]

_COPY_ENDS = (m.COMMAND_COMPLETE, m.ERROR, m.READY)

MOST_TOLD = 1000
LONG_NOTICE = 1 << 12
"""Bytes of a notice that is not kept."""

SQLSTATE_CLASSES = frozenset(
    {
        *("03", "08", "09", "0A", "0B", "0F", "0L", "0P", "0Z", "10", "20", "21", "22", "23", "24", "25", "26", "27"),
        *("28", "2B", "2D", "2F", "34", "38", "39", "3B", "3D", "3F", "40", "42", "44", "53", "54", "55", "57", "58"),
        *("72", "F0", "HV", "P0", "XX"),
    }
)
"""PostgreSQL's classes of errors; functions of users can make up others."""

_CHANGES = re.compile(rb"(?:INSERT|UPDATE|DELETE|MERGE|COPY|TRUNCATE|DO|CALL)\b")
_CONTROLS = re.compile(rb"(?:BEGIN|START TRANSACTION|COMMIT|ROLLBACK|PREPARE TRANSACTION)\b")


TOO_LATE = m.error_response(
    "0A000",
    "an engine request could not be carried out before the transaction's end",
    hint="Name the function in the statement's own text, or wait for the statement's result before sending the next.",
)
"""Takes the place of the error with which the database refuses to commit a request that was left behind."""


class Traffic(ClientMessages):
    """What is known about a session whose bytes pass through."""

    def __init__(
        self,
        committed: Callable[[], None],
        sent: Callable[[], None] = lambda: None,
        portals_ended: Callable[[], None] = lambda: None,
        errors: Counter[str] | None = None,
    ) -> None:
        super().__init__()
        self._committed = committed
        """Called when a transaction that changed data has committed."""
        self.sent = sent
        """Called when a session that sends events to queues has ended a transaction."""
        self._portals_ended = portals_ended
        """Called when a transaction that had portals of ours has ended."""
        self.backend = Framer(BACKEND_LENGTHS)
        self.more_from_backend = False
        """Whether the chunk had more messages than :data:`MOST_MESSAGES`: the others wait in the framer."""
        self.fatal = False
        """PostgreSQL has said why it ends the session."""
        self.parameters: dict[str, str] = {}
        """What ParameterStatus said."""
        self.batches, self.answers = HeaderCache(), HeaderCache()
        """Shapes of whole batches and whole answers (``fast_path``)."""
        self._past_rows = Rows().past
        self.finished = 0
        """Batches that have been answered."""
        self.errors: Counter[str] = Counter() if errors is None else errors
        """Errors that the client has got, by SQLSTATE class; sessions may share it."""
        # Since the last ReadyForQuery:
        self.seen = 0
        """Messages other than rows and asynchronous ones."""
        self.rows = False
        """Whether a row has been passed on."""
        self.controls: list[bytes] = []
        """Tags of transaction control."""
        self.told: list[bytes] = []
        """Bodies of the notices that the client has got, `MOST_TOLD` at most."""
        self.ended = 0
        """Completions up to the last that ended a transaction."""
        self._requested = False
        """Whether a COPY from the client has made a request."""
        self.changed = False
        """Whether the current transaction has changed data, as far as tags tell."""

    # -- as the session begins -----------------------------------------------------------------------------------

    def authenticate(self, *, watching: bool) -> None:
        """The client logs in; `watching`: the texts that it sends afterwards are looked at."""
        self.client.lengths = AUTHENTICATION_LENGTHS
        self._watching = watching

    def authenticated(self, status: int) -> None:
        """PostgreSQL has let the client in, with this transaction status."""
        self.note_ready(status)
        self.client.lengths = FRONTEND_LENGTHS

    def database_ready(self, *, trusted: bool, hidden: HiddenRequests | None = None) -> None:
        """It is known whether the database's catalog is the server's, and what it may hide."""
        self.trusted = trusted
        if hidden is not None:
            self.hidden = hidden

    # -- as an interceptor says ----------------------------------------------------------------------------------

    def completed(self) -> None:
        """PostgreSQL has completed one message of the batch that it answers."""
        self._received += 1
        self.seen += 1

    def answered(self, status: int, *, changed: bool, oldest: bool = False) -> None:
        """The intercepted batch has been answered, with this status; it may have changed data.

        `oldest`: it was the oldest of several, and the one that is being sent goes on.
        """
        self.changed |= changed
        self.finished += 1
        following = self.batch if oldest else None
        self.batch = None
        self.note_ready(status)
        self.batch = following

    def undone(self) -> None:
        """The transaction has been rolled back: it has changed nothing."""
        self.changed = False

    def dismissed(self) -> None:
        """PostgreSQL has said why it ends the session."""
        self.fatal = True

    # -- backend to client ---------------------------------------------------------------------------------------

    def from_backend(self, data: bytes) -> bytes:
        """The bytes to pass on to the client. Raises ProtocolViolation."""
        framer = self.backend
        self.more_from_backend = False
        if framer.size:
            framer.feed(data)
            data = framer.take()
        data, position = self._pass_messages(data, framer.skip)
        end = len(data)
        framer.skip = max(position - end, 0)
        if position < end:
            framer.partial = data[position:]
            data = data[:position]
        return data

    def _pass_messages(self, data: bytes, position: int) -> tuple[bytes, int]:
        """Take note of PostgreSQL's messages from there on; what the client gets, and the end of the last that passes.

        That may be behind the end of what has arrived.
        """
        end = len(data)
        received, seen = self._received, self.seen
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
                position = self._past_rows(data, position, last)
                if position > last:
                    break
                kind, length = _unpack(data, position)
            following = position + 1 + length
            if length not in BACKEND_LENGTHS[kind]:
                check(BACKEND_LENGTHS, kind, length)
            if not _READ[kind]:
                received += _COMPLETES[kind]
                seen += _COUNTS[kind]
            elif following > end:
                if length < WHOLE:
                    break
            elif kind == m.COMMAND_COMPLETE and data[position + 5 : position + 7] == b"SE" and not self._requested:
                received += 1  # SELECT or SET: says nothing about the transaction
                seen += 1
            elif kind == m.READY and not self._requested:
                self.finished += 1
                self.note_ready(data[position + 5])
                received = seen = 0
            else:
                self._received, self.seen = received, seen
                data, following = self._read_in_passing(kind, data, position, following)
                received, seen = self._received, self.seen
                end = len(data)
                last = end - 5
                if self.attention is not None:
                    break
            position = following
        self._received, self.seen = received, seen
        return data, position

    def _read_in_passing(self, kind: int, data: bytes, position: int, following: int) -> tuple[bytes, int]:
        """Take note of a message that passes, from `position` to `following`; both as the client gets them.

        Where attention is needed afterwards, what the client gets waits until then.
        """
        if self._requested and kind in _COPY_ENDS:
            self.attention = Attention.REQUEST_MADE
            self._requested = False
            return data, following
        if not self.read_for_client(kind, data[position + 5 : following]):
            if kind != m.ERROR or not self.trusted or following > len(data):
                return data, following
            instead = without_own_context(data[position:following])
        else:
            instead = TOO_LATE if kind == m.ERROR else b""
        return data[:position] + instead + data[following:], position + len(instead)

    def read_for_client(self, kind: int, body: bytes) -> bool:
        """The same as `read`, of a message that the client gets: its errors and answers are counted."""
        if kind == m.ERROR:
            self.note_error(m.sqlstate_of(body))
        elif kind == m.READY:
            self.finished += 1
        return self.read(kind, body)

    def read(self, kind: int, body: bytes) -> bool:
        """Take note of a message that says something about the session.

        True if the client must not see it: an engine request, the error of one that was left behind, or what work of
        ours says to those who look for mistakes.
        """
        if kind == m.COMMAND_COMPLETE:
            self._received += 1
            self.seen += 1
            if body[0] != 83 or body[1] == 84:  # not SELECT, SET, SHOW, but START TRANSACTION
                self.note_tag(body)
        elif kind == m.READY:
            self.note_ready(body[0])
        elif kind == m.NOTICE:
            return self._read_notice(body)
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

    def _read_notice(self, body: bytes) -> bool:
        """The same of a notice."""
        if self.trusted and m.sqlstate_of(body) == m.REQUEST_MADE:
            self.hidden.expect()
            if self.copying:  # the client must go on; what ends the COPY needs attention
                self._requested = True
            else:
                self.attention = Attention.REQUEST_MADE
            return True
        if self.trusted and is_own_debugging(body):
            return True
        self.note_told(body)
        return False

    def take_told(self) -> list[bytes]:
        """What the client has been told by notices so far, which does not count any more: it will be told again."""
        told, self.told = self.told, []
        return told

    def note_error(self, sqlstate: str) -> None:
        """Take note of an error that the client gets."""
        found = sqlstate[:2]
        self.errors[found if found in SQLSTATE_CLASSES else "other"] += 1

    def note_told(self, body: bytes) -> None:
        """Take note of a notice that the client gets: the statement may be run again."""
        if len(self.told) < MOST_TOLD and len(body) < LONG_NOTICE:
            self.told.append(body)

    def note_tag(self, tag: bytes) -> None:
        """Take note of a CommandComplete's tag."""
        if _CHANGES.match(tag):
            self.changed = True
        elif _CONTROLS.match(tag):
            self.controls.append(tag.rstrip(b"\0"))
            if not tag.startswith((b"BEGIN", b"START")):
                self.ended = self._received
            if self.portals and tag.startswith(b"COMMIT"):
                self._end_portals()
            elif self.portals and tag.startswith(b"ROLLBACK"):
                self.rolled_back = True

    def note_ready(self, status: int) -> None:
        """Take note of a ReadyForQuery: the oldest batch has been answered."""
        self.status = status
        if not self.failed:
            self.parsed(failed=False)
        self._received = self.seen = 0
        self.rows = False
        if self.told:
            self.told = []
        if self.outstanding:
            self.outstanding.popleft()
        elif self.skipping:  # a Sync that was taken for ignored has come behind an error
            self.batch = None
        if self.failed or self.copying or self.controls:
            self.failed = self.copying = self.skipping = False
            self.controls = []
            self.ended = 0
        if status == m.IDLE:
            if self._committing_portals:
                self._committing_portals.clear()
            if self.portals:
                self._end_portals()
            if self.changed:
                self.changed = False
                self._committed()
            if self.sending:
                self.sent()

    def _end_portals(self) -> None:
        self.portals.clear()
        self.rolled_back = False
        self._portals_ended()
