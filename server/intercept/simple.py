"""Intercepting the simple protocol: a query string whose statements may make engine requests.

The statements run one by one, as PostgreSQL would run them: those outside an explicit transaction share one
implicit transaction that ends with the string, at COMMIT or at ROLLBACK; BEGIN makes the implicit transaction
explicit, with what it has done; an error ends the string. The implicit transaction is an explicit one of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from server.intercept.base import ALONE, Interceptor, Refused
from server.intercept.relayed_session import BackendError
from server.protocol import messages as m
from server.protocol.keyword_scan import SCHEMA, Keyword, mentions
from server.protocol.lexer import Kind, Statement, kind_of
from server.protocol.statement_registry import Attention
from server.protocol.statements.cursor_syntax import CloseCursor
from server.protocol.statements.subscribe_syntax import SyntaxFault
from server.protocol.transaction_control import refused_outside, warned_of_outside
from server.protocol.values import codec
from server.subscriptions.session_subscriptions import Ours
from server.subscriptions.simple import SimpleSubscriptions

_ALREADY = "25001"


_OURS = ("COPY", "CREATE", "ALTER", "DROP", "SET", "SHOW", "RESET")
"""What a statement can begin with that PostgreSQL gets as another."""


def _may_be_ours(statement: Statement, text: bytes) -> bool:
    """Whether PostgreSQL may get another statement in the place of one."""
    return statement.words[0] in _OURS or SCHEMA in text.lower()


@dataclass(slots=True)
class Survey:
    """What a query string consists of."""

    first: Statement | None = None
    several: bool = False
    subscribing: bool = False
    """Whether a statement is one of SUBSCRIBE's."""
    ours: bool = False
    """Whether PostgreSQL gets another statement in the place of one, or what it says of one is to be explained."""
    renamed: bytearray | None = None
    """The string with the schemas of stream tables in the place of ours, where it differs in nothing else."""
    copying: bool = False
    """Whether a statement is a COPY."""

    @property
    def lone(self) -> Kind | None:
        return kind_of(self.first.words) if self.first is not None and not self.several else None

    def begins_with(self, word: str) -> bool:
        return self.first is not None and self.first.words[0] == word


class SimpleInterceptor(Interceptor):
    subscribing = False
    """Whether a statement is one of SUBSCRIBE's."""

    @cached_property
    def subscriptions(self) -> SimpleSubscriptions:
        return SimpleSubscriptions(self)

    async def run(self, message: bytes, attention: Attention) -> None:
        """Run a Query message that mentions something."""
        try:
            await self.drain()
        except Refused as error:
            if attention is Attention.COMMIT and not self.dialogue.requested:
                await self.pass_one(m.QUERY, message)
                return
            await self.fail_batch(flush=False)
            await self.report(error)
            await self.ready(self.status)
            return
        if self.traffic.skipping:
            return  # behind an error PostgreSQL ignores everything up to Sync, a Query as well
        if self.traffic.copying:  # PostgreSQL ends the session
            await self.pass_one(m.QUERY, message)
            return
        text = message[5:-1]
        found = await self.survey(text, subscribing=attention is Attention.SUBSCRIBE)
        if not await self.carry_out_before():
            await self._end_failed(found)
            return
        self.subscribing = found.subscribing
        if self._passes_whole(text, found, attention):
            await self.pass_one(m.QUERY, message if found.renamed is None else m.query(bytes(found.renamed)))
            return
        joins = self._joins()
        self.alone = not self.subscribing and not found.several and found.begins_with("SELECT") and not joins
        await self.run_statements(text, alone=not found.several, joins=joins)

    def _passes_whole(self, text: bytes, found: Survey, attention: Attention) -> bool:
        """Whether the string may be run as it is, in one piece."""
        if self.subscribing or self.own:
            return False
        mentioned = mentions(text)
        # A request of a trigger on what is copied into is noticed too late outside a transaction block.
        copies = Keyword.COPY_IN in mentioned and found.copying and (found.several or self.status == m.IDLE)
        # A lone statement that is no query makes no request, or may end the transaction itself: run as it is, a request
        # it makes all the same is noticed.
        commits = attention is Attention.COMMIT and found.several and self.status == m.IN_TRANSACTION
        return (
            not (found.ours or copies or commits or Keyword.REQUEST in mentioned)
            or self.status == m.FAILED
            or not (found.several or found.ours or found.lone is Kind.QUERY)
        )

    async def _end_failed(self, found: Survey) -> None:
        """End the Query before which a request has failed: it did not run, or fails as a COMMIT does."""
        if self.status != m.IDLE and (self.own or found.lone is Kind.END):
            await self.roll_back()
        self.own = False
        await self.ready(self.status)

    def _joins(self) -> bool:
        """Whether something has been executed without a Sync in the transaction in which the Query will run."""
        batch = self.traffic.batch
        return batch is not None and batch.executed > self.traffic.ended

    async def run_joined(self, text: bytes) -> None:
        """Run a Query in the transaction of ours in which what came before it, without a Sync, has run."""
        subscribing = Keyword.SUBSCRIBE in self.traffic.mentioned(text)
        found = await self.survey(text, subscribing=subscribing)
        self.subscribing = found.subscribing
        if found.first is None:
            await self._answer(text, 0, text)
            await self.ready(self.status)
        else:
            await self.run_statements(text, alone=not found.several, joins=True)

    async def survey(self, text: bytes, *, subscribing: bool) -> Survey:
        """Look at all statements; databases that one is about are released. ``subscribing``: look for SUBSCRIBE."""
        found = Survey()
        async for statement in self.statements(text):
            found.several = found.first is not None
            found.first = found.first or statement
            part = text[statement.start : statement.end]
            if subscribing and not found.subscribing:
                found.subscribing = self.subscriptions.look(part) is not None
            found.copying |= statement.words[0] == "COPY"
            if _may_be_ours(statement, part):
                self._survey_ours(found, statement, text)
                self.warn_of(part)
            await self.release_databases_of(text, statement)
        return found

    def _survey_ours(self, found: Survey, statement: Statement, text: bytes) -> None:
        """Look at a statement in the place of which PostgreSQL may get another one."""
        part = text[statement.start : statement.end]
        sent = self.as_sent(part)
        if sent is not part and self.is_the_same(part, sent):
            found.renamed = bytearray(text) if found.renamed is None else found.renamed
            found.renamed[statement.start : statement.end] = sent
        elif sent is not part or self.written_elsewhere(part) is not None:
            found.ours = True

    async def run_statements(self, text: bytes, *, alone: bool, joins: bool = False) -> None:
        """Run all statements and end the batch. ``alone``: there is but one.

        ``joins``: others have come before it without a Sync. PostgreSQL ends their transaction behind several
        statements, but not behind one.
        """
        going = True
        async for statement in self.statements(text):
            await self.release()
            asked = text if alone else text[statement.start : statement.end]
            part = self.as_sent(asked) if _may_be_ours(statement, asked) else asked
            going = await self._run_one(part, 0 if alone else statement.start, text, statement.words, alone)
            if not going:
                break
            if self.held is not None and part is not asked:
                self.held = self.completion_of(asked, self.held)
        if self.own and not (joins and alone and going):
            self.own = False
            if going:
                error = await self.commit()
                if error is not None:
                    await self.report(error)
            else:
                await self.roll_back()
        await self.release()
        await self.ready(self.status)

    async def _run_one(self, part: bytes, start: int, text: bytes, words: tuple[str, ...], alone: bool) -> bool:
        """Run one statement of the string. False if the string ends with it."""
        asked = None
        if self.subscribing:
            await self.subscriptions.forget_lost()
            asked = self.subscriptions.look(part)
        refused = refused_outside(words) if self.own else None
        if refused is not None:
            await self.roll_back()
            self.own = False
            return await self._answer(refused, 0, text)
        needs = kind_of(words) not in (Kind.BEGIN, Kind.END, Kind.SAVEPOINT) and not (asked is not None and alone)
        if needs and self.status == m.IDLE:
            try:
                await self.open_simply()
            except BackendError as error:  # cancelled
                await self.report(error)
                return False
        if asked == CloseCursor(None):  # PostgreSQL has cursors, too
            self.subscriptions.close(CloseCursor(None))
            asked = self.held = None
        if asked is not None:
            return await self._answer_here(part, start, text, asked)
        return await self._run_plain(part, start, text, words)

    async def _run_plain(self, part: bytes, start: int, text: bytes, words: tuple[str, ...]) -> bool:
        """Run a statement of PostgreSQL's, and carry out what it has requested. False if either has failed."""
        warned = warned_of_outside(words) if self.own else None
        begins = kind_of(words) is Kind.BEGIN and self.own
        if begins:  # ours becomes the client's, which may still add its isolation level
            self.dialogue.swallow = _ALREADY
        going = await self._answer(part, start, text, warned)
        self.dialogue.swallow = None
        self.own = self.own and warned is None and not (begins and going)
        if going and self.dialogue.requested:
            going = self.status == m.IN_TRANSACTION and await self.carry_out()
        return going

    async def open_simply(self) -> None:
        """BEGIN. It takes in what a batch of the extended protocol without a Sync has done."""
        if self.traffic.batch is not None:
            await self.open(alone=self.alone)
            return
        outcome = await self.inject(b"BEGIN", *([ALONE] if self.alone else []))
        if isinstance(outcome, BackendError):
            raise outcome
        self.own = True

    async def _answer(self, part: bytes, start: int, text: bytes, warned: bytes | None = None) -> bool:
        """Run one statement and pass its answer on, but for its last CommandComplete. False if it failed.

        ``warned``: how PostgreSQL is asked to warn that there was no transaction, where the statement ends one of ours.
        """
        self.asked, self.string = part, text
        await self.send(m.query(part))
        going = True
        failure = b""
        while True:
            kind, data = await self.dialogue.next_from_backend()
            if kind == m.READY:
                self.status = data[5]
                if warned is not None:
                    await self.inject(warned)
                self.session.client.write(failure)
                return going
            await self.release()
            if kind == m.COMMAND_COMPLETE:
                self.note(data)
                self.held = data
            elif kind == m.ERROR:
                going = False
                data = self.explained(data)
                failure = self._shifted(data, text[:start]) if start else data
            else:
                await self.give(kind, data)
                if kind == m.COPY_IN:
                    await self.pump_copy()

    async def _answer_here(self, part: bytes, start: int, text: bytes, asked: Ours | SyntaxFault) -> bool:
        """Answer a statement that PostgreSQL does not know. False if it failed."""
        response = await self.subscriptions.answer(part, asked)
        if response is None:
            return True
        self.held = None
        self.session.client.write(self._shifted(response, text[:start]) if start else response)
        return False

    def note(self, completion: bytes) -> None:
        self.traffic.note_tag(completion[5:])
        self.changed |= self.traffic.changed

    def _shifted(self, response: bytes, before: bytes) -> bytes:
        """The error with its position in the whole string."""
        fields = m.report_fields(response[5:])
        if "P" in fields:
            offset = len(before.decode(codec(self.dialogue.client_encoding), "replace"))
            fields["P"] = str(int(fields["P"]) + offset).encode()
        return m.rebuild_report(m.ERROR, fields)
