"""Conducting the simple protocol: a query string whose statements may make engine requests.

The statements run one by one, as PostgreSQL would run them: those outside an explicit transaction share one
implicit transaction that ends with the string, at COMMIT or at ROLLBACK; BEGIN makes the implicit transaction
explicit, with what it has done; an error ends the string. The implicit transaction is an explicit one of ours.
"""

from __future__ import annotations

import asyncio
from functools import cached_property

from catalog.session import SqlError
from server.conductor import ALONE, Conductor
from server.protocol import messages as m
from server.protocol.cursor_syntax import CloseCursor
from server.protocol.lexer import Kind, Statement, kind_of, split
from server.protocol.subscribe_syntax import SyntaxFault
from server.protocol.values import codec
from server.protocol.watch import Attention
from server.protocol.words import Mention, mentions
from server.request_session import BackendError
from server.subscriptions.held import Ours
from server.subscriptions.simple import SimpleSubscriptions

LONG = 65536
"""Bytes of a query string that is not split within one turn of the event loop."""

_NO_TRANSACTION = "25P01"
_ALREADY = "25001"


class SimpleConductor(Conductor):
    subscribing = False
    """Whether a statement is one of SUBSCRIBE's."""

    @cached_property
    def subscriptions(self) -> SimpleSubscriptions:
        return SimpleSubscriptions(self)

    async def run(self, message: bytes, attention: Attention) -> None:
        """Run a Query message that mentions something."""
        await self.drain()
        text = message[5:-1]
        await self.release_databases(text)
        # The server has other clients, too.
        statements = self.split(text) if len(text) < LONG else await asyncio.to_thread(self.split, text)
        self.subscribing = attention is Attention.SUBSCRIBE and any(
            self.subscriptions.look(text[statement.start : statement.end]) for statement in statements
        )
        if self.subscribing:
            await self.run_statements(text, statements)
            return
        if attention is Attention.SUBSCRIBE and Mention.REQUEST not in mentions(text):
            attention = Attention.DATABASE  # nothing to attend to, after all
        lone = kind_of(statements[0].words) if len(statements) == 1 else None
        # A lone statement that is no query makes no request, or may end the transaction itself: run as it is, a request
        # it makes all the same is noticed.
        if (
            attention is Attention.DATABASE
            or not statements
            or self.status == m.FAILED
            or lone not in (None, Kind.QUERY)
        ):
            await self.pass_one(m.QUERY, message)
            return
        self.alone = lone is Kind.QUERY and statements[0].words[0] == "SELECT"
        await self.run_statements(text, statements)

    def split(self, text: bytes) -> list[Statement]:
        return split(text, backslashes=self.backslashes, encoding=self.dialogue.client_encoding)

    async def run_statements(self, text: bytes, statements: list[Statement]) -> None:
        """Run all statements and end the batch."""
        going = True
        for statement in statements:
            await self.release()
            alone = len(statements) == 1
            part = text if alone else text[statement.start : statement.end]
            if statement.words[0] in ("COPY", "CREATE", "ALTER", "DROP"):
                part = self.as_sent(part)
            going = await self._run_one(part, 0 if alone else statement.start, text, kind_of(statement.words), alone)
            if not going:
                break
        if self.own:
            if going:
                error = await self.commit()
                if error is not None:
                    await self.report(error)
            else:
                await self.roll_back()
        await self.release()
        await self.ready(self.status)

    async def _run_one(self, part: bytes, start: int, text: bytes, kind: Kind, alone: bool) -> bool:
        asked = None
        if self.subscribing:
            await self.subscriptions.forget_lost()
            asked = self.subscriptions.look(part)
        if kind is Kind.SAVEPOINT and self.own:
            what = {"S": "SAVEPOINT", "R": "RELEASE SAVEPOINT"}[part[:1].decode().upper()]
            what = "ROLLBACK TO SAVEPOINT" if part[:2].upper() == b"RO" else what
            await self.report(SqlError(_NO_TRANSACTION, f"{what} can only be used in transaction blocks"))
            return False
        if kind is Kind.END and self.own:
            notice = m.notice_response(_NO_TRANSACTION, "there is no transaction in progress")
            self.session.client.write(notice)
            self.own = False
        elif kind is Kind.BEGIN and self.own:
            self.own = False  # our BEGIN becomes the client's; it may still add its isolation level
            self.dialogue.swallow = _ALREADY
        elif asked is not None and alone:
            pass  # has no use for a transaction
        elif self.status == m.IDLE and kind not in (Kind.BEGIN, Kind.END, Kind.SAVEPOINT):
            await self.open_simply()
        if asked == CloseCursor(None):  # PostgreSQL has cursors, too
            self.subscriptions.close(CloseCursor(None))
            asked = self.held = None
        if asked is not None:
            return await self._answer_here(part, start, text, asked)
        going = await self._answer(part, start, text)
        self.dialogue.swallow = None
        if going and self.dialogue.requested:
            going = self.status == m.IN_TRANSACTION and await self.carry_out()
        return going

    async def open_simply(self) -> None:
        """BEGIN, outside any batch of the extended protocol."""
        outcome = await self.inject(b"BEGIN", *([ALONE] if self.alone else []))
        if isinstance(outcome, BackendError):
            raise outcome
        self.own = True

    async def _answer(self, part: bytes, start: int, text: bytes) -> bool:
        """Run one statement and pass its answer on, but for its last CommandComplete. False if it failed."""
        await self.send(m.query(part))
        going = True
        while True:
            kind, data = await self.dialogue.next_from_backend()
            if kind == m.READY:
                self.status = data[5]
                return going
            await self.release()
            if kind == m.COMMAND_COMPLETE:
                self.note(data)
                self.held = data
            elif kind == m.ERROR:
                going = False
                data = self.explained(data)
                self.session.client.write(self._shifted(data, text[:start]) if start else data)
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
