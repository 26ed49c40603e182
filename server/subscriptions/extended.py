"""Subscriptions in the extended protocol: Parse, Bind, Describe, Execute and Close of what is answered here.

Parse and Bind go to PostgreSQL with the stand-in, which so checks parameters and formats and knows the columns. There
portals are closed as soon as they have been described.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from catalog.session import SqlError
from server.intercept.relayed_session import BackendError
from server.protocol import messages as m
from server.protocol.keyword_scan import Keyword
from server.protocol.statements.cursor_syntax import CloseCursor, FetchRows
from server.protocol.statements.subscribe_syntax import CopySubscription, Subscription
from server.subscriptions.answers import Answers
from server.subscriptions.describe_query import DescribeQuery
from server.subscriptions.interface import AnsweredExtendedBatch
from server.subscriptions.session_subscriptions import Ours, Portal, Statement
from server.subscriptions.subscriber import ABORTED, BACK, SAVEPOINT

_NO_DATA = m.message(m.NO_DATA)
_NO_PARAMETERS = m.message(m.PARAMETER_DESCRIPTION, m.INT16.pack(0))


class ExtendedSubscriptions(Answers):
    interceptor: AnsweredExtendedBatch

    async def take(self, kind: int, data: bytes) -> bool:
        """Answer a message, if it is about a subscription. False if PostgreSQL is to answer it."""
        await self.forget_lost()
        if kind == m.PARSE:
            return await self._take_parse(data)
        if kind == m.BIND:
            return await self._take_bind(data)
        if kind == m.DESCRIBE:
            return self._take_describe(m.text_at(data, 6), data[5:6] == b"S")
        if kind == m.EXECUTE:
            return await self._take_execute(data)
        if kind == m.CLOSE:  # PostgreSQL completes it, whether it knows the name or not
            if data[5:6] == b"S":
                self.held.statements.pop(m.text_at(data, 6), None)
            else:
                self.held.close_portal(m.text_at(data, 6))
        return False

    async def _attempt(self, work: Coroutine[Any, Any, None], text: bytes) -> None:
        """Run something; if it fails the batch has failed."""
        error = await self.run(work)
        if error is None:
            return
        if self.interceptor.status == m.IDLE and not isinstance(error, BackendError):
            # What the batch has done before must not be committed: let PostgreSQL fail, too.
            await self.interceptor.fail_batch()
        self.interceptor.held = None
        self.interceptor.skipping = True
        self.session.client.write(self.response(error, text))

    # -- statements ----------------------------------------------------------------------------------------------

    async def _take_parse(self, data: bytes) -> bool:
        name = m.text_at(data, 5)
        text = m.text_at(data, 6 + len(name))
        types = data[7 + len(name) + len(text) :]
        noted = self.traffic.statements.get(name)
        if noted is None or Keyword.SUBSCRIBE not in noted.mention:
            self.held.statements.pop(name, None)
            return False
        asked = self.look(text)
        if asked is None:
            self.held.statements.pop(name, None)
            self.traffic.keep_statement(name, noted.mention & ~Keyword.SUBSCRIBE, text)
            return False
        await self._attempt(self._parse(name, text, asked, types), text)
        return True

    async def _parse(self, name: bytes, text: bytes, asked: Ours | SqlError, types: bytes) -> None:
        if isinstance(asked, SqlError):
            raise asked
        if isinstance(asked, (FetchRows, CloseCursor)):
            plain = asked.plain() if isinstance(asked, FetchRows) else text
            await self.exchange(m.parse(name, plain, types), flush=True)
            self.held.statements[name] = Statement(text, asked, DescribeQuery())
        else:
            self.held.statements[name] = await self.prepare(asked, text, name, types, flush=True)
        self.session.client.write(m.PARSE_COMPLETE_MESSAGE)

    def _statement(self, name: bytes) -> Statement | None:
        noted = self.traffic.statements.get(name)
        if noted is not None and noted.mention is Keyword.CURSOR:  # prepared before there was such a cursor
            asked = self.look(noted.text)
            return (
                Statement(noted.text, asked, DescribeQuery()) if isinstance(asked, (FetchRows, CloseCursor)) else None
            )
        found = self.held.statements.get(name)
        # Parsed again where nobody looked, the name means something else.
        return found if noted is not None and found is not None and found.text == noted.text else None

    # -- portals -------------------------------------------------------------------------------------------------

    async def _take_bind(self, data: bytes) -> bool:
        name = m.text_at(data, 5)
        statement = self._statement(m.text_at(data, 6 + len(name)))
        if statement is None or not self.is_ours(statement.asked):
            if statement is not None:
                self.traffic.close_portal(name)
            if name and (name in self.held.portals or name in self.held.cursors):
                self.traffic.open_portal(name)
                await self._attempt(_refuse_second(name), b"")
                return True
            self.held.close_portal(name)
            return False
        if statement.asked == CloseCursor(None):
            self.held.close_portal(name)
            self.held.portals[name] = Portal(name, statement, _NO_DATA)
            return False
        pieces = [data]
        missing = int.from_bytes(data[1:5], "big") + 1 - len(data)
        while missing > 0:
            _, piece = await self.dialogue.next_from_client()
            missing -= len(piece)
            pieces.append(piece)
        await self._attempt(self._bind(name, statement, b"".join(pieces)), statement.text)
        return True

    async def _bind(self, name: bytes, statement: Statement, data: bytes) -> None:
        if name and (name in self.held.portals or name in self.held.cursors):
            await _refuse_second(name)
        inside = self.interceptor.status == m.IN_TRANSACTION
        messages = self.interceptor.ours(SAVEPOINT) if inside else b""
        messages += data + m.describe_portal(name) + m.close_portal(name)
        messages += self.interceptor.ours(*BACK) if inside else b""
        answers = await self.exchange(messages, flush=True)
        parameters, formats = _bound(data, 7 + len(name) + len(m.text_at(data, 6 + len(name))))
        self.held.close_portal(name)
        description = next((d for kind, d in answers if kind == m.ROW_DESCRIPTION), _NO_DATA)
        if isinstance(statement.asked, FetchRows) and not statement.asked.move:
            columns = self.held.cursors[statement.asked.name].columns
            if len(formats) > 1 and len(formats) != len(columns):
                raise SqlError(
                    "08P01", f"bind message has {len(formats)} result formats but query has {len(columns)} columns"
                )
            description = self.description_of(self.held.cursors[statement.asked.name], formats)
        self.held.portals[name] = Portal(name, statement, description, formats, parameters)
        self.traffic.open_portal(name, statement.text)
        self.session.client.write(m.BIND_COMPLETE_MESSAGE)

    def _take_describe(self, name: bytes, of_statement: bool) -> bool:
        if of_statement:
            statement = self._statement(name)
            if statement is None or not isinstance(statement.asked, FetchRows) or not self.is_ours(statement.asked):
                return False
            cursor = self.held.cursors[statement.asked.name]
            description = _NO_DATA if statement.asked.move else self.description_of(cursor, ())
            self.session.client.write(_NO_PARAMETERS + description)
            return True
        portal = self._portal(name)
        if portal is not None and portal.statement.asked != CloseCursor(None):
            self.session.client.write(portal.description)
            return True
        return False

    def _portal(self, name: bytes, limit: int | None = None) -> Portal | None:
        """A bound portal, or a cursor, which is one, too: then one that fetches at most `limit` rows."""
        found, cursor = self.held.portals.get(name), self.held.cursors.get(name)
        if found is None and cursor is not None:
            statement = Statement(b"", FetchRows(name, limit), DescribeQuery(), cursor.columns)
            return Portal(name, statement, self.description_of(cursor, ()))
        return found

    async def _take_execute(self, data: bytes) -> bool:
        name = m.text_at(data, 5)
        if len(data) != 10 + len(name):
            raise m.ProtocolViolation("invalid message format")
        limit = m.int32_at(data, 6 + len(name))
        portal = self._portal(name, limit or None)
        if portal is None:
            return False
        if portal.statement.asked == CloseCursor(None):
            self.close(CloseCursor(None))
            self.interceptor.held = None
            return False
        await self._attempt(self._execute(portal, limit), portal.statement.text)
        self.interceptor.ran += 1
        return True

    async def _execute(self, portal: Portal, limit: int) -> None:
        interceptor = self.interceptor
        if interceptor.status == m.FAILED:
            raise ABORTED
        begins = isinstance(portal.statement.asked, (Subscription, CopySubscription)) and portal.flow is None
        if begins and interceptor.status == m.IDLE and not interceptor.nothing_ran():
            await interceptor.open()  # takes in what the implicit transaction has done
        await self.execute(portal, limit)


async def _refuse_second(name: bytes) -> None:
    raise SqlError("42P03", f'portal "{name.decode("utf-8", "replace")}" already exists')


def _bound(data: bytes, position: int) -> tuple[bytes, tuple[int, ...]]:
    """What a Bind says of its parameters, as it says it, and the result formats; ``position`` is behind the names."""
    begin = position
    position += 2 + 2 * m.int16_at(data, position)
    count = m.int16_at(data, position)
    position += 2
    for _ in range(count):
        length = m.int32_at(data, position)
        position += 4 + (0 if length == 0xFFFFFFFF else length)
    formats = tuple(m.int16_at(data, position + 2 + 2 * n) for n in range(m.int16_at(data, position)))
    return data[begin:position], formats
