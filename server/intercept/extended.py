"""Intercepting the extended protocol: the rest of a batch, from an Execute that may make an engine request to its Sync.

Every message is sent with a Flush and answered before the next one is looked at, so that the next statement of
a pipeline already finds what the engine has made. A transaction of ours is opened in front of the first such
Execute, and takes in what the batch has done before; all the batch is one transaction, as it would have been
without us.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

from catalog.session import SqlError
from server.intercept.base import COMPLETIONS, Interceptor, Refused
from server.intercept.relayed_session import BackendError, run_by_name
from server.intercept.simple import SimpleInterceptor
from server.protocol import messages as m
from server.protocol.executed import Executed, followed
from server.protocol.framing import CONTINUATION
from server.protocol.keyword_scan import Keyword
from server.protocol.lexer import WORDS_KEPT, Kind, kind_of, leading
from server.protocol.statement_registry import Attention
from server.protocol.transaction_control import WORDS, refused_outside, warned_of_outside
from server.subscriptions.extended import ExtendedSubscriptions

_TEXT_OF = (
    b"SELECT statement FROM pg_catalog.pg_prepared_statements WHERE name OPERATOR(pg_catalog.=) $1::pg_catalog.text"
)
_TURN = 1000
"""Messages that are read in one turn of the event loop."""
_ALREADY = "25001"
"""SQLSTATE of the warning that there is a transaction in progress already."""


def _look_up(name: bytes) -> bytes:
    """Messages that ask for the text of a statement with a name."""
    return run_by_name(_TEXT_OF, [name])


def _text_in(answers: list[tuple[int, bytes]]) -> bytes:
    """The text that PostgreSQL has answered with, empty if there is no such statement."""
    return next((data[11:] for kind, data in answers if kind == m.DATA_ROW), b"")


class ExtendedInterceptor(Interceptor):
    skipping = False
    """The batch has failed: PostgreSQL, or we, ignore everything up to Sync."""
    everything = False
    """Every Execute may make a request, named or not."""
    _executed_before: bool | None = None
    """Whether something has been executed in the batch before it was intercepted."""
    _warned: bytes | None = None
    """How PostgreSQL is asked to warn that there was no transaction, where the client ends ours by what it executes."""
    ran = 0
    """Executes run by us."""
    parsed: frozenset[bytes] = frozenset()
    """Named statements that a first run of the batch has left behind."""
    older: Mapping[bytes, bytes] = MappingProxyType({})
    """Texts of statements that earlier batches have prepared, as far as they are known."""

    async def run(self, kind: int, message: bytes, attention: Attention) -> None:
        """Run from an Execute that mentions something to the end of the batch."""
        await self.drain_answers()
        if self.traffic.copying:  # PostgreSQL ends the session
            await self.send(message)
            return
        if attention is not Attention.COMMIT or self.dialogue.requested or self.traffic.failed:
            await self._catch_up(attention)
        if attention is Attention.DATABASE and not self.skipping:
            await self.release_databases(self.text_of(message))
        if attention in (Attention.DATABASE, Attention.COMMIT) and not (self.skipping or self.own):
            await self.pass_one(m.EXECUTE, message)
            return
        await self.run_batch((kind, message))

    async def _catch_up(self, attention: Attention) -> None:
        """Learn how far the batch has come, and carry out what has been requested in it."""
        try:
            await self.drain()
        except Refused as error:
            await self.refuse(error)
        self.skipping |= self.traffic.failed
        if not self.skipping and not await self.carry_out_before():
            self.skipping = True
            if attention is Attention.COMMIT and self.status != m.IDLE:  # as where a commit fails
                await self.roll_back()
                self.own = False

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
        """Run messages until the batch is over, and no transaction of ours is left open behind it."""
        self.executed = await self._executed_so_far()
        while True:
            kind, data = first or await self.dialogue.next_from_client()
            first = None
            if kind == m.SYNC:
                await self._finish()
                return
            if kind in (m.QUERY, m.FUNCTION_CALL) and not self.skipping:  # else ignored, as everything up to Sync
                if not await self._goes_on_behind(kind, data):
                    return
                continue
            if kind == m.TERMINATE:
                self.traffic.goodbye()
                await self.send(data)
                return
            if kind != m.FLUSH and not self.skipping:
                await self._one(kind, data)
                await self.release()  # nobody knows whether the client waits for it, by a Flush, before it goes on

    async def _one(self, kind: int, data: bytes) -> None:
        if kind == CONTINUATION:
            await self.send(data)
            return
        self._follow(kind, data)
        if await self.subscriptions.take(kind, data):
            return
        if kind in (m.COPY_DATA, m.COPY_DONE, m.COPY_FAIL):
            return  # stray: PostgreSQL ignores it
        if kind == m.PARSE:
            data = self._parse_as_sent(data)
        if await self._is_prepared_already(kind, data):
            return
        self.dialogue.swallow = self._warned = None
        if kind == m.EXECUTE:
            self.asked, self.string = self.text_of(data), b""
            if not await self._may_execute(data):
                return
        await self._send_whole(data)
        await self.send(m.FLUSH_MESSAGE)
        await self._answer(kind)
        if kind == m.PARSE and self.skipping and data[5] == 0:
            self.executed.statements[b""] = b""  # it went before the new one was looked at
        if kind == m.EXECUTE:
            await self._executed(data)

    async def _executed(self, execute: bytes) -> None:
        """Behind the answer to an Execute: its completion is that of what the client has sent, its request is made."""
        if self.held is not None:
            self.held = self.completion_of(self.text_of(execute), self.held)
        if self.dialogue.requested and not self.skipping:
            await self.turn()

    async def _is_prepared_already(self, kind: int, data: bytes) -> bool:
        """Whether a message parses a statement that a first run of the batch has left behind: then it is answered."""
        if kind == m.CLOSE and data[5:6] == b"S":
            self.parsed -= {m.text_at(data, 6)}
        if kind != m.PARSE or m.text_at(data, 5) not in self.parsed:
            return False
        await self.give(m.PARSE_COMPLETE, m.PARSE_COMPLETE_MESSAGE)
        return True

    async def _may_execute(self, execute: bytes) -> bool:
        """Open a transaction in front of an Execute that needs one. False if that, or the Execute, has failed."""
        try:
            portal = m.text_at(execute, 5)
            if self._to_be_wrapped(execute):
                await self._open_for(portal)
            self.ran += 1
            return not self.own or await self._may_run_in_ours(await self._words(portal))
        except BackendError as error:  # cancelled, or out of time
            await self.report(error)
            self.skipping = True
            return False

    async def _may_run_in_ours(self, words: tuple[str, ...]) -> bool:
        """Make a transaction of ours look like none to what these words begin. False if PostgreSQL has refused it."""
        refused = refused_outside(words)
        if refused is not None:
            await self._refuse_outside(refused)
            return False
        if kind_of(words) is Kind.BEGIN:  # of the client's, makes ours its own
            self.dialogue.swallow = _ALREADY
        self._warned = warned_of_outside(words)
        return True

    async def _send_whole(self, data: bytes) -> None:
        """Send a message, of which this is the first piece, to its end."""
        missing = int.from_bytes(data[1:5], "big") + 1 - len(data)
        await self.send(data)
        while missing > 0:
            _, piece = await self.dialogue.next_from_client()
            missing -= len(piece)
            await self.send(piece)

    def _follow(self, kind: int, data: bytes) -> None:
        """Keep what the fast path keeps about prepared statements."""
        if kind in (m.PARSE, m.BIND, m.CLOSE):
            self.traffic.follow(kind, data)
            self.executed.follow(kind, data)

    # -- what is executed ----------------------------------------------------------------------------------------

    async def _executed_so_far(self) -> Executed:
        """What the batch has parsed and bound before it was intercepted."""
        executed = Executed(self.traffic.unnamed)
        if self.traffic.failed:
            return executed
        executed.statements.update(self.older)
        batch = self.traffic.batch
        for number, (kind, message) in enumerate(followed(b"".join(batch.raw or ()) if batch is not None else b"")):
            executed.follow(kind, message)
            if number % _TURN == _TURN - 1:
                await asyncio.sleep(0)
        return executed

    async def _words(self, portal: bytes) -> tuple[str, ...]:
        """The first words of what a portal runs."""
        name = self.executed.unknown(portal)
        if name is not None:
            self.executed.statements[name] = await self.look_up(name, flush=True)
        text = self.executed.text(portal) or b""
        return leading(text, WORDS, backslashes=self.backslashes, encoding=self.dialogue.client_encoding)

    async def _open_for(self, portal: bytes) -> None:
        """Open a transaction for what a portal runs, and look up its text with it where that is not known."""
        alone = self.alone and self.ran == 0 and self._before_sync()
        name = self.executed.unknown(portal)
        if name is None:
            await self.open(alone=alone)
        else:
            self.executed.statements[name] = _text_in(await self.open(alone=alone, also=_look_up(name)))

    async def look_up(self, name: bytes, *, flush: bool) -> bytes:
        """The text of a statement with a name that an earlier batch has prepared."""
        return _text_in(await self.exchange(_look_up(name), flush=flush))

    async def _refuse_outside(self, command: bytes) -> None:
        """Undo what the batch has done, and let PostgreSQL refuse a command that needs a transaction block."""
        try:
            await self.exchange(self.ours(b"ROLLBACK"), flush=True)
            self.own = self.changed = False
            self.status = m.IDLE
            await self.exchange(self.ours(command), flush=True)
        except BackendError as error:
            self.session.client.write(self.explained(error.response))
        self.skipping = True

    # -- transactions --------------------------------------------------------------------------------------------

    def _parse_as_sent(self, parse: bytes) -> bytes:
        """A Parse as PostgreSQL gets it."""
        name = m.text_at(parse, 5)
        statement = self.traffic.statements.get(name)
        if statement is None or Keyword.LOAD not in statement.mention:
            return parse
        self.warn_of(statement.text)
        self.asked = statement.text
        sent = self.as_sent(statement.text)
        if not self.is_the_same(statement.text, sent):
            return m.parse(name, sent)
        if self.written_elsewhere(sent) is None:  # else what PostgreSQL says when it is executed is explained
            self.traffic.keep_statement(name, statement.mention & ~Keyword.LOAD, sent)
        begin = 5 + len(name) + 1
        return parse[:begin] + sent + parse[begin + len(sent) :]  # its parameters keep their types

    def _to_be_wrapped(self, execute: bytes) -> bool:
        if self.own or self.status != m.IDLE:
            return False
        if self.everything:
            words = leading(self.executed.text(m.text_at(execute, 5)) or b"", WORDS)
            return kind_of(words) not in (Kind.BEGIN, Kind.END, Kind.SAVEPOINT)
        bound = self.traffic.portals.get(m.text_at(execute, 5))
        if bound is None or bound.mention is Keyword.DATABASE:
            return False
        words = leading(bound.text, WORDS_KEPT, backslashes=self.backslashes, encoding=self.dialogue.client_encoding)
        self.alone = words[:1] == ("SELECT",) and self._first()
        return kind_of(words) is Kind.QUERY

    def _first(self) -> bool:
        """Whether no Execute comes before this one in its batch."""
        batch = self.traffic.batch
        if batch is None:
            return self.ran == 0
        if self._executed_before is None:  # while the batch is intercepted, its Executes are counted in `ran`
            self._executed_before = batch.executed > 0
        return not self._executed_before

    def _before_sync(self) -> bool:
        """Whether Sync is the client's next message."""
        return self.traffic.client.partial.startswith(m.SYNC_MESSAGE)

    async def turn(self) -> None:
        """The engine's turn, in the middle of the batch."""
        self.alone = self.alone and self.ran == 1 and self._before_sync()
        if self.status == m.IDLE:
            try:
                await self.open()  # takes in what the implicit transaction has done
            except BackendError as error:  # cancelled, or out of time
                await self.report(error)
                self.skipping = True
                return
        if not await self.carry_out():
            self.skipping = True

    async def _answer(self, kind: int) -> None:
        """Pass the answer of one message on, but for a CommandComplete."""
        while True:
            answer, data = await self.dialogue.next_from_backend()
            if answer == m.ERROR:
                self.skipping = True
                self.held = None
                if self._warned is not None:
                    await self.exchange(b"")  # or PostgreSQL ignores what follows
                    await self.inject(self._warned)
                    self.own = False
                self.session.client.write(self.explained(data))
                return
            if answer == m.COMMAND_COMPLETE:
                self._completed(data)
                if self._warned is not None:
                    try:
                        await self.exchange(self.ours(self._warned), flush=True)
                    except BackendError as error:  # cancelled, or out of time
                        await self.report(error)
                        self.skipping = True
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
            if self.own and self.status != m.IDLE:
                await self.roll_back()
        await self.ready(self.status)
        self.traffic.left_unnamed(self.executed.statements.get(b"", b""))

    async def _until_ready(self) -> None:
        """Pass on what is still said before ReadyForQuery."""
        while True:
            kind, data = await self.dialogue.next_from_backend()
            if kind == m.READY:
                self.status = data[5]
                return
            await self.give(kind, data)

    async def _goes_on_behind(self, kind: int, data: bytes) -> bool:
        """A Query or FunctionCall without a Sync before it. Whether a transaction of ours goes on behind it.

        PostgreSQL runs it in the implicit transaction of what comes before it. That goes on unless the Query fails,
        ends it, or has several statements.
        """
        if not self.own:
            await self.pass_one(kind, data, afresh=True)
            return False
        if kind == m.QUERY and len(data) == int.from_bytes(data[1:5], "big") + 1:
            joining = SimpleInterceptor(self.session, self.dialogue)
            joining.go_on_from(self)
            self.session.interceptor = joining
            await joining.run_joined(data[5:-1])
            self.session.interceptor = self
            self.go_on_from(joining)
        else:
            await self._run_as_it_is(data)
        self.skipping = False
        return self.own

    async def _run_as_it_is(self, data: bytes) -> None:
        """Run a FunctionCall, or a Query that is too long to be read, in our transaction."""
        await self._send_whole(data)
        failed = False
        while True:
            kind, answer = await self.dialogue.next_from_backend()
            if kind == m.READY:
                break
            failed |= kind == m.ERROR
            await self.give(kind, self.explained(answer) if kind == m.ERROR else answer)
            if kind == m.COPY_IN:
                await self.pump_copy()
        self.status = answer[5]
        if not failed and self.dialogue.requested:
            failed = not await self.carry_out()
        if failed and self.status != m.IDLE:
            await self.roll_back()
        self.own = self.status != m.IDLE
        await self.ready(self.status)
