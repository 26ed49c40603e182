"""Conducting the extended protocol: the rest of a batch, from an Execute that may make an engine request to its Sync.

Every message is sent with a Flush and answered before the next one is looked at, so that the next statement of
a pipeline already finds what the engine has made. A transaction of ours is opened in front of the first such
Execute, and takes in what the batch has done before; all the batch is one transaction, as it would have been
without us.
"""

from __future__ import annotations

from functools import cached_property

from catalog.session import SqlError
from server.conductor import COMPLETIONS, Conductor, Refused
from server.protocol import messages as m
from server.protocol.framing import CONTINUATION, begins
from server.protocol.lexer import WORDS_KEPT, Kind, kind_of, leading
from server.protocol.watch import Attention
from server.protocol.words import Mention
from server.request_session import BackendError
from server.subscriptions.extended import ExtendedSubscriptions


class ExtendedConductor(Conductor):
    skipping = False
    """The batch has failed: PostgreSQL, or we, ignore everything up to Sync."""
    everything = False
    """Every Execute may make a request, named or not."""
    _executed_before: bool | None = None
    """Whether something has been executed in the batch before it was attended to."""
    ran = 0
    """Executes run by us."""
    parsed: frozenset[bytes] = frozenset()
    """Named statements that a first run of the batch has left behind."""

    async def run(self, kind: int, message: bytes, attention: Attention) -> None:
        """Run from an Execute that mentions something to the end of the batch."""
        try:
            await self.drain()
        except Refused as error:
            await self.refuse(error)
        self.skipping |= self.traffic.failed
        if self.traffic.copying:  # PostgreSQL ends the session
            await self.send(message)
            return
        if attention is Attention.DATABASE and not self.skipping:
            await self.release_databases(self.text_of(message))
            await self.pass_one(m.EXECUTE, message)
            return
        await self.run_batch((kind, message))

    @cached_property
    def subscriptions(self) -> ExtendedSubscriptions:
        return ExtendedSubscriptions(self)

    async def refuse(self, error: SqlError) -> None:
        """Let the batch fail."""
        await self.fail_batch()
        await self.report(error)
        self.skipping = True

    def nothing_ran(self) -> bool:
        """Whether nothing has been executed in this batch yet."""
        return self.ran == 0 and self._first()

    def text_of(self, execute: bytes) -> bytes:
        bound = self.traffic.portals.get(m.text_at(execute, 5))
        return bound.text if bound is not None else b""

    async def run_batch(self, first: tuple[int, bytes] | None = None) -> None:
        """Run messages until the batch is over."""
        while True:
            kind, data = first or await self.dialogue.next_from_client()
            first = None
            if kind == m.SYNC:
                await self._finish()
                return
            if kind in (m.QUERY, m.FUNCTION_CALL) and not self.skipping:  # else ignored, as everything up to Sync
                if await self._end_by_query(kind, data):
                    return
                continue
            if kind == m.TERMINATE:
                self.traffic.terminated = True
                await self.send(data)
                return
            if kind == m.FLUSH:
                await self.release()
            elif not self.skipping:
                await self._one(kind, data)

    async def _one(self, kind: int, data: bytes) -> None:
        if kind == CONTINUATION:
            await self.send(data)
            return
        await self.release()
        self._follow(kind, data)
        if await self.subscriptions.take(kind, data):
            return
        if kind in (m.COPY_DATA, m.COPY_DONE, m.COPY_FAIL):
            return  # stray: PostgreSQL ignores it
        if kind == m.PARSE:
            data = self._parse_as_sent(data)
        if kind == m.PARSE and m.text_at(data, 5) in self.parsed:
            await self.give(m.PARSE_COMPLETE, m.PARSE_COMPLETE_MESSAGE)
            return
        if kind == m.EXECUTE and self._to_be_wrapped(data):
            try:
                await self.open(alone=self.alone and self.ran == 0 and self._before_sync())
            except BackendError as error:  # cancelled
                await self.report(error)
                self.skipping = True
                return
        self.ran += kind == m.EXECUTE
        self.dialogue.swallow = "25001" if self.own else None  # a BEGIN of the client's makes ours its own
        length = int.from_bytes(data[1:5], "big") + 1
        await self.send(data)
        missing = length - len(data)
        while missing > 0:
            _, piece = await self.dialogue.next_from_client()
            missing -= len(piece)
            await self.send(piece)
        await self.send(m.FLUSH_MESSAGE)
        await self._answer(kind)
        if kind == m.EXECUTE and self.dialogue.requested and not self.skipping:
            await self.turn()

    def _follow(self, kind: int, data: bytes) -> None:
        """Keep what the fast path keeps about prepared statements."""
        if kind in (m.PARSE, m.BIND, m.CLOSE):
            self.traffic.look(kind, data, 0, len(data))
            self.traffic.attention = None  # we are attending

    def _parse_as_sent(self, parse: bytes) -> bytes:
        """A Parse as PostgreSQL gets it."""
        name = m.text_at(parse, 5)
        statement = self.traffic.statements.get(name)
        if statement is None or Mention.LOAD not in statement.mention:
            return parse
        return m.parse(name, self.as_sent(statement.text))

    def _to_be_wrapped(self, execute: bytes) -> bool:
        if self.own or self.status != m.IDLE:
            return False
        if self.everything:
            return True
        bound = self.traffic.portals.get(m.text_at(execute, 5))
        if bound is None or bound.mention is Mention.DATABASE:
            return False
        words = leading(bound.text, WORDS_KEPT, backslashes=self.backslashes, encoding=self.dialogue.client_encoding)
        self.alone = words[:1] == ("SELECT",) and self._first()
        return kind_of(words) is Kind.QUERY

    def _first(self) -> bool:
        """Whether no Execute comes before this one in its batch."""
        batch = self.traffic.batch
        if batch is None:
            return self.ran == 0
        if self._executed_before is None:  # while the batch is attended to, its Executes are counted in `ran`
            self._executed_before = batch.raw is None or begins(b"".join(batch.raw), m.EXECUTE, 0)[0]
        return not self._executed_before

    def _before_sync(self) -> bool:
        """Whether Sync is the client's next message."""
        return self.traffic.client.partial.startswith(m.SYNC_MESSAGE)

    async def turn(self) -> None:
        """The engine's turn, in the middle of the batch."""
        self.alone = self.alone and self.ran == 1 and self._before_sync()
        if self.status == m.IDLE:
            await self.open()  # takes in what the implicit transaction has done
        if not await self.carry_out():
            self.skipping = True

    async def _answer(self, kind: int) -> None:
        """Pass the answer of one message on, but for a CommandComplete."""
        while True:
            answer, data = await self.dialogue.next_from_backend()
            if answer == m.ERROR:
                self.skipping = True
                self.held = None
                self.session.client.write(self.explained(data))
                return
            if answer == m.COMMAND_COMPLETE:
                self._completed(data)
                return
            await self.give(answer, data)
            if answer == m.COPY_IN:
                await self.pump_copy()
                await self.send(m.FLUSH_MESSAGE)
            elif answer in COMPLETIONS:
                return

    def _completed(self, data: bytes) -> None:
        self.held = data
        tag = data[5:-1]
        self.traffic.note_tag(tag)
        self.changed |= self.traffic.changed
        if tag in (b"BEGIN", b"START TRANSACTION"):
            self.own = False  # ours has become the client's
            self.status = m.IN_TRANSACTION
        elif tag in (b"COMMIT", b"ROLLBACK", b"PREPARE TRANSACTION") and self.own:
            self.own = False
            self.status = m.IDLE

    async def _finish(self) -> None:
        """The client's Sync."""
        if self.dialogue.requested and not self.skipping:
            await self.turn()
        if self.own and not self.skipping:
            error = await self.commit()
            if error is not None:
                await self.report(error)
        else:
            await self.send(m.SYNC_MESSAGE)
            await self._until_ready()
            if self.own:
                await self.roll_back()
        await self.release()
        await self.ready(self.status)

    async def _until_ready(self) -> None:
        """Pass on what is still said before ReadyForQuery."""
        while True:
            kind, data = await self.dialogue.next_from_backend()
            if kind == m.READY:
                self.status = data[5]
                return
            if kind == m.ERROR:  # a deferred constraint, at the end of the implicit transaction
                self.held = None
            await self.release()
            await self.give(kind, data)

    async def _end_by_query(self, kind: int, data: bytes) -> bool:
        """A Query or FunctionCall without a Sync before it ends the batch as well, unless what was ours has failed."""
        if self.own:
            error: SqlError | None = await self.commit()
            if error is not None:
                await self.report(error)
                self.skipping = True
                return False
        await self.release()
        self.own = False
        self.traffic.batch = None
        await self.pass_one(kind, data)
        return True
