"""What a subscription's statements answer: rows as they come, COPY data, cursors declared, read and closed.

Each answer ends with a completion, which the interceptor holds (``Interceptor.held``) until the client may have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from catalog.session import SqlError
from engine.subscribe import Batch, CopyOutput, RowOutput
from server.intercept.relayed_session import run_by_name
from server.protocol import messages as m
from server.protocol.statements.cursor_syntax import CloseCursor, FetchRows, refuse_backward
from server.protocol.statements.subscribe_syntax import CopySubscription, DeclareCursor, Piece
from server.protocol.values import codec
from server.subscriptions.describe_query import with_formats
from server.subscriptions.format_conversion import FormatConversion
from server.subscriptions.literals import read_anywhere
from server.subscriptions.session_subscriptions import MARKER, Cursor, Portal, RowBuffer, RowReader, Statement
from server.subscriptions.subscriber import Subscriber

GRACE_SECONDS = 1.0
"""How long a FETCH goes on after its time while there always is another row."""

_READ_MARKER = f"SELECT pg_catalog.current_setting('{MARKER}', true)"
_READ_TIMEOUT = "SELECT pg_catalog.date_part('epoch', $1::pg_catalog.interval)::pg_catalog.float8"
_WRITE_MARKER = f"SELECT pg_catalog.set_config('{MARKER}', $1::pg_catalog.text, true)"
_SUSPENDED = m.message(m.PORTAL_SUSPENDED)

Write = Callable[[bytes], Awaitable[None]]


class Answers(Subscriber):
    # -- rows ----------------------------------------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Give the client messages, once it takes any."""
        client = self.session.client
        await client.drained()
        client.write_at_once(data)
        await asyncio.sleep(0)  # the server has other clients, too

    async def pass_rows(self, flow: RowReader, limit: int | None) -> int:
        """Pass on what comes until there are so many rows, or the flow ends; returns how many there were."""
        client, sent = self.session.client, 0

        def pass_on(batch: Batch) -> bool:
            nonlocal sent
            if client.slow is not None:
                return False
            client.write_at_once(batch.messages)
            sent += batch.rows
            return True

        while limit is None or sent < limit:
            taken = await (flow.take(None, None, pass_on) if limit is None else flow.take(limit - sent, None))
            if taken is None:
                break
            messages, rows = taken
            await self.write(messages)
            sent += rows
        return sent

    async def pass_ready_rows(
        self, flow: RowReader, limit: int | None, seconds: float | None, write: Write, kept: RowBuffer | None
    ) -> int:
        """Pass on what comes within so many seconds; without any, what is there once anything is.

        Stops where `kept`, into which they go, is full.
        """
        now = asyncio.get_running_loop().time
        deadline = None if seconds is None else now() + seconds
        sent = 0
        while limit is None or sent < limit:
            if deadline is None and sent:
                deadline = now()
            wait = None if deadline is None else max(0.0, deadline - now())
            try:
                taken = await flow.take(None if limit is None else limit - sent, wait)
            except TimeoutError:
                break
            if taken is None:
                break
            messages, rows = taken
            await write(messages)
            sent += rows
            if (deadline is not None and now() > deadline + GRACE_SECONDS) or (kept is not None and kept.is_full):
                break
        return sent

    # -- SUBSCRIBE -----------------------------------------------------------------------------------------------

    async def execute(self, portal: Portal, limit: int) -> None:
        """Give the next rows of a portal, at most `limit` unless that is 0, and the completion or suspension."""
        statement = portal.statement
        asked = statement.asked
        if isinstance(asked, CopySubscription):
            await self.copy(statement, portal.parameters)
        elif isinstance(asked, DeclareCursor):
            await self.declare(statement, portal.parameters)
        elif isinstance(asked, FetchRows):
            await self._execute_fetch(portal, asked, limit)
        elif isinstance(asked, CloseCursor):
            self.close(asked)
        else:
            if portal.flow is None:
                portal.flow = await self.start(asked, RowOutput(portal.formats), statement, portal.parameters)
            with self._reading(portal.flow, portal.name):
                await self.give_rows(portal.flow, limit)

    async def give_rows(self, flow: RowReader, limit: int) -> None:
        async with self.patience(flow):
            sent = await self.watched(self.pass_rows(flow, limit or None))
        if limit and sent == limit:
            self.session.client.write(_SUSPENDED)
        else:
            self.complete(f"SELECT {sent}")

    @contextmanager
    def _reading(self, flow: RowReader, name: bytes) -> Iterator[None]:
        """A flow whose reading fails cannot be read again: nobody would miss what is missing."""
        if flow.failed:
            shown = name.decode(codec(self.encoding), "replace")
            raise SqlError("55000", f'portal "{shown}" cannot be run')
        try:
            yield
        except BaseException:
            flow.failed = True
            self.held.drop(flow)
            raise

    def complete(self, tag: str) -> None:
        self.interceptor.held = m.message(m.COMMAND_COMPLETE, tag.encode() + b"\0")

    async def copy(self, statement: Statement, parameters: bytes = b"") -> None:
        """COPY (SUBSCRIBE …) TO STDOUT."""
        asked = statement.asked
        assert isinstance(asked, CopySubscription)
        response = await self.copy_response(statement)
        backslashes, encoding = self.interceptor.backslashes, self.encoding
        options = [
            f"{name} {read_anywhere(Piece(0, value), backslashes=backslashes, client_encoding=encoding)}".rstrip()
            for name, value in asked.options
        ]
        if not any(name == "ENCODING" for name, _ in asked.options):
            options.append(f"ENCODING '{self.encoding}'")
        output = CopyOutput(", ".join(options), binary=response[5] == 1)
        flow = await self.start(asked.subscription, output, statement, parameters)
        try:
            async with self.patience(flow):
                self.session.client.write(response)
                sent = await self.watched(self.pass_rows(flow, None))
        finally:
            self.held.drop(flow)
        self.session.client.write(m.COPY_DONE_MESSAGE)
        self.complete(f"COPY {sent}")

    # -- cursors -------------------------------------------------------------------------------------------------

    async def declare(self, statement: Statement, parameters: bytes = b"") -> None:
        """DECLARE … CURSOR FOR SUBSCRIBE: the subscription starts now."""
        asked = statement.asked
        assert isinstance(asked, DeclareCursor)
        if self.interceptor.status == m.IDLE:
            raise SqlError("25P01", "DECLARE CURSOR can only be used in transaction blocks")
        await self._refuse_second(asked.name)
        formats = (1,) if asked.binary else ()
        flow = await self.start(asked.subscription, RowOutput(formats), statement, parameters)
        cursor = Cursor(statement.columns, formats, flow)
        try:
            session = self.session_of_ours()
            live = [each.serial for each in (*self.held.cursors.values(), cursor)]
            await session.fetch(_WRITE_MARKER, ",".join(live))
        except BaseException:
            self.held.drop(flow)
            raise
        self.held.cursors[asked.name] = cursor
        self.traffic.open_portal(asked.name)
        self.complete("DECLARE CURSOR")

    async def forget_lost(self) -> None:
        """Close the cursors that ROLLBACK TO SAVEPOINT has undone."""
        if not self.traffic.rolled_back or self.interceptor.status != m.IN_TRANSACTION:
            return
        if self.held.cursors:
            ((marker,),) = await self._session(lambda: None).fetch(_READ_MARKER)
            live = str(marker or "").split(",")
            for name, cursor in list(self.held.cursors.items()):
                if cursor.serial not in live:
                    self.held.close_portal(name)
                    self.traffic.close_portal(name)
        self.traffic.lost_cursors_forgotten()

    async def _refuse_second(self, name: bytes) -> None:
        encoding = codec(self.encoding)
        asking = b"SELECT 1 FROM pg_catalog.pg_cursors WHERE name OPERATOR(pg_catalog.=) $1::pg_catalog.text"
        answers = await self.exchange(run_by_name(asking, [name]))
        if name in self.held.cursors or any(kind == m.DATA_ROW for kind, _ in answers):
            raise SqlError("42P03", f'cursor "{name.decode(encoding, "replace")}" already exists')

    async def _execute_fetch(self, portal: Portal, asked: FetchRows, limit: int) -> None:
        """FETCH in a portal: all its rows are taken at once, as PostgreSQL does, and given out as they are wanted."""
        if portal.flow is None and limit and not asked.move:
            kept = RowBuffer()
            portal.tag = await self.fetch(asked, portal.formats, into=kept)
            portal.flow = RowReader(kept, {})
        if portal.flow is None:
            self.complete(await self.fetch(asked, portal.formats))
            return
        with self._reading(portal.flow, portal.name):
            sent = await self.watched(self.pass_rows(portal.flow, limit or None))
        if limit and sent == limit:
            self.session.client.write(_SUSPENDED)
        else:
            self.complete(portal.tag)

    async def fetch(
        self, asked: FetchRows, formats: tuple[int, ...], *, describe: bool = False, into: RowBuffer | None = None
    ) -> str:
        """FETCH or MOVE, into `into` or else to the client; `describe` gives the rows' description as well.

        Returns the completion's tag.
        """
        shown = asked.name.decode(codec(self.encoding), "replace")
        seconds = await self._seconds(asked)
        cursor = self.held.cursors.get(asked.name)
        if cursor is None:
            raise SqlError("34000", f'cursor "{shown}" does not exist')
        if asked.backward:
            raise refuse_backward()
        recoding = None if cursor.formats or asked.move else FormatConversion.needed(self, cursor.columns, formats)
        kept = into if recoding is None else recoding.kept
        write: Write = _nowhere if asked.move else self.write if kept is None else kept.keep
        with self._reading(cursor.flow, asked.name):
            if describe and not asked.move:
                self.session.client.write(self.description_of(cursor, formats))
            async with self.patience(cursor.flow):
                sent = await self.watched(self.pass_ready_rows(cursor.flow, asked.count, seconds, write, kept))
            if recoding is not None:
                await recoding.give(self.write if into is None else into.keep)
        return f"{'MOVE' if asked.move else 'FETCH'} {sent}"

    async def _seconds(self, asked: FetchRows) -> float | None:
        """The seconds of a timeout."""
        if asked.timeout is None:
            return None
        given = asked.timeout.decode(codec(self.encoding), "replace")
        ((seconds,),) = await self.session_of_ours().fetch(_READ_TIMEOUT, given)
        if seconds < 0:
            raise SqlError("22023", "timeout of FETCH must not be negative")
        return float(seconds)

    def description_of(self, cursor: Cursor, formats: tuple[int, ...]) -> bytes:
        """RowDescription of what a cursor gives: a binary cursor gives that, else the client says."""
        return with_formats(cursor.columns, cursor.formats or formats)

    def close(self, asked: CloseCursor) -> None:
        """CLOSE of a cursor of ours, or of all of them."""
        for name in list(self.held.cursors) if asked.name is None else [asked.name]:
            self.held.close_portal(name)
            self.traffic.close_portal(name)
        self.complete("CLOSE CURSOR")


async def _nowhere(data: bytes) -> None:
    """What MOVE passes over."""
