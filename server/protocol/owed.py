"""What PostgreSQL owes a session: which of the client's messages its next ReadyForQuery will answer.

The client's messages are counted when they pass, the answers when they come back. Two answers change what was counted.
After an error of the extended protocol PostgreSQL ignores everything up to the next Sync, Query and FunctionCall as
well; and while it copies from the client it ignores Sync. Both may have been sent already.
"""

from __future__ import annotations

from collections import deque

from server.protocol import messages as m
from server.protocol.batches import SHORT, Batch
from server.protocol.statement_registry import StatementRegistry


class Owed(StatementRegistry):
    """The batches of a session that have not been answered."""

    def __init__(self) -> None:
        super().__init__()
        self.outstanding: deque[Batch | bytes] = deque()
        """Batches to be answered; one that came alone, in one chunk, as that chunk."""
        self.batch: Batch | None = None
        """The batch that is still being sent."""
        self.copying = False
        """COPY data flows from the client; a Sync sent now is ignored by PostgreSQL."""
        self.skipping = False
        """The batch that is being sent has failed: PostgreSQL ignores everything up to its Sync."""
        self._received = 0
        """Completions since the last ReadyForQuery."""
        self._unnamed = b""
        self._unnamed_chunk: bytes | None = None

    @property
    def unnamed(self) -> bytes:
        """How the unnamed statement begins that the answered batches have left behind; empty if there is none."""
        if self._unnamed_chunk is not None:
            self.unnamed = Batch.of(self._unnamed_chunk).unnamed[-1][1]
        return self._unnamed

    @unnamed.setter
    def unnamed(self, text: bytes) -> None:
        self._unnamed, self._unnamed_chunk = text, None

    def oldest(self, number: int = 0) -> Batch:
        """The first of the outstanding batches, or the one after so many."""
        head = self.outstanding[number]
        if isinstance(head, bytes):
            head = self.outstanding[number] = Batch.of(head)
        return head

    # -- as the client sends -------------------------------------------------------------------------------------

    def current_batch(self) -> Batch:
        """The batch that is being sent, which may begin here."""
        if self.batch is None:
            self.batch = Batch()
        return self.batch

    def end_batch(self, kind: int, raw: bytes, *, whole: bool) -> None:
        """The batch that is being sent ends with a message of this kind.

        ``raw`` is what the chunk adds to it; not ``whole`` if the message's own end has not arrived.
        """
        batch = self.current_batch()
        self.batch = None
        batch.keep(raw)
        if kind != m.SYNC:
            batch.simple = True
            if batch.sent or kind == m.FUNCTION_CALL:
                batch.raw = None  # cannot be repeated as a Query
        if not whole:
            batch.raw = None
        self.outstanding.append(batch)

    # -- as an interceptor says ----------------------------------------------------------------------------------

    def pass_on(self, kind: int, data: bytes, *, afresh: bool = False) -> None:
        """A message at which somebody has looked is passed on as if nothing had been noticed about it.

        `afresh`: what the batch has had before it has been answered already.
        """
        if afresh:
            self.batch = None
        batch = self.current_batch()
        batch.keep(data)
        if kind == m.EXECUTE:
            batch.go_on(1, executed=1)
        else:
            batch.simple = True
            self.outstanding.append(batch)
            self.batch = None

    def owes_in_batch(self) -> bool:
        """Whether PostgreSQL has not answered yet all of the batch that is being sent."""
        return self.batch is not None and self._received < self.batch.sent

    def end_copy(self) -> None:
        """The data of a COPY have been passed on to their end."""
        self.copying = False

    def left_unnamed(self, text: bytes) -> None:
        """A batch has left this unnamed statement behind; empty if none."""
        self.unnamed = text

    # -- as PostgreSQL answers -----------------------------------------------------------------------------------

    def parsed(self, *, failed: bool) -> None:
        """PostgreSQL has answered the oldest batch, or an error in it: its Parses before that count.

        Where a Parse without a name fails, or a Query runs, there is no unnamed statement behind it.
        """
        if not failed and self.outstanding:
            head = self.outstanding[0]
            if isinstance(head, bytes) and len(head) <= SHORT and head[0] == m.PARSE and not head[5]:
                self._unnamed_chunk = head  # is looked at when somebody asks
                return
        batch = self.oldest() if self.outstanding else self.batch
        for step, text in batch.unnamed if batch is not None else ():
            if not failed or step <= self._received + 1:
                self.unnamed = text if not failed or step <= self._received else b""

    def error(self) -> None:
        """PostgreSQL has reported an error."""
        self.copying = False
        self.parsed(failed=True)
        head = self.oldest() if self.outstanding else None
        if head is not None and (not head.simple or self._received >= head.sent):
            return  # its own Sync ends it; or it is the Query that has failed
        if head is None and self.batch is None:
            return  # PostgreSQL ends the session
        sent = executed = 0
        while self.outstanding and (head := self.oldest()).simple:
            executed = sent + head.executed if head.executed else executed
            sent += head.sent
            self.outstanding.popleft()
        if self.outstanding:
            self.oldest().raw = None
            return
        batch = self.current_batch()
        batch.go_on(sent, executed)
        batch.raw = None
        self.skipping = True

    def begin_copy(self) -> None:
        """COPY FROM STDIN has begun: a Sync sent before the end of its data is ignored."""
        if not self.outstanding:
            self.copying = self.batch is None or not self.batch.copied(self._received + 1)
            return
        head = self.oldest()
        head.raw = None
        if not head.simple or self._received < head.sent:
            if head.copied(self._received + 1):
                return
            self.outstanding.popleft()
            sent, executed, first, unnamed = head.sent, head.executed, 0, head.unnamed
        else:
            sent, executed, first, unnamed = 0, 0, 1, []  # the Query will be answered by itself
        while len(self.outstanding) > first:
            following = self.oldest(first)
            if following.copied(0):
                following.precede(sent, executed, unnamed)
                return
            del self.outstanding[first]
            unnamed += [(step + sent, text) for step, text in following.unnamed]
            executed = sent + following.executed if following.executed else executed
            sent += following.sent
        if self.batch is not None and self.batch.copied(0):
            self.batch.precede(sent, executed, unnamed)
            return
        self.copying = True
        if first == 0 or self.batch is not None:
            self.current_batch().precede(sent, executed, unnamed)
