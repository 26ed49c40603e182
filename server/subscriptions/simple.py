"""Subscriptions in the simple protocol."""

from __future__ import annotations

from catalog.session import SqlError
from engine.subscribe import RowOutput
from server.protocol import messages as m
from server.protocol.statements.cursor_syntax import CloseCursor, FetchRows
from server.protocol.statements.subscribe_syntax import CopySubscription, DeclareCursor, SyntaxFault
from server.subscriptions.answers import Answers
from server.subscriptions.describe_query import with_formats
from server.subscriptions.session_subscriptions import Ours
from server.subscriptions.subscriber import ABORTED


class SimpleSubscriptions(Answers):
    async def answer(self, text: bytes, asked: Ours | SyntaxFault) -> bytes | None:
        """Answer a statement, but for its completion. Returns the ErrorResponse if it failed."""
        error = await self.run(self._answer(text, asked))
        return self.response(error, text) if error is not None else None

    async def _answer(self, text: bytes, asked: Ours | SyntaxFault) -> None:
        if self.interceptor.status == m.FAILED:
            raise ABORTED
        if isinstance(asked, SqlError):
            raise asked
        if isinstance(asked, FetchRows):
            self.complete(await self.fetch(asked, (), describe=True))
        elif isinstance(asked, CloseCursor):
            self.close(asked)
        else:
            statement = await self.prepare(asked, text)
            if isinstance(asked, CopySubscription):
                await self.copy(statement)
            elif isinstance(asked, DeclareCursor):
                await self.declare(statement)
            else:
                flow = await self.start(asked, RowOutput(), statement)
                try:
                    self.session.client.write(with_formats(statement.columns, ()))
                    await self.give_rows(flow, 0)
                finally:
                    self.held.drop(flow)
