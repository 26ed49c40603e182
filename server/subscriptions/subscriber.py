"""Carries out what a client says about subscriptions, in the middle of an intercepted batch.

What is common to both protocols: asking PostgreSQL about stand-ins, starting a subscription through the hub, and ending
whatever is under way when it is cancelled or fails. While rows flow PostgreSQL has nothing to do; a transaction of the
client's stays open, and an error aborts it as any error would.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import structlog

from catalog.session import SqlError
from engine.subscribe import CLIENT_SETTINGS, Feed, Output
from server.intercept.message_stream import BackendGone
from server.intercept.relayed_session import CLEAR, NAME, BackendError, RelayedSession, run_by_name
from server.protocol import messages as m
from server.protocol.statements import cursor_syntax, subscribe_syntax
from server.protocol.statements.cursor_syntax import CloseCursor, FetchRows
from server.protocol.statements.subscribe_syntax import CopySubscription, DeclareCursor, Subscription, SyntaxFault
from server.protocol.values import codec
from server.subscriptions import describe_query, literals
from server.subscriptions.describe_query import Column, DescribeQuery
from server.subscriptions.interface import AnsweredBatch
from server.subscriptions.session_subscriptions import Ours, RowReader, SessionSubscriptions, Statement
from sql.base.text import text

log = structlog.get_logger(__name__)

SAVEPOINT = b"SAVEPOINT __hw"
BACK = (b"ROLLBACK TO SAVEPOINT __hw", b"RELEASE SAVEPOINT __hw")
ABORTED = SqlError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
CANCELLED = SqlError("57014", "canceling statement due to user request")
Subscribing = Subscription | CopySubscription | DeclareCursor
_NOT_LOCKED = "55P03"
_OWN_LOCK = (
    "The transaction may itself hold the lock, by a change of the table. Subscribe before changing what is followed."
)
_BASE_TYPES = (
    "SELECT CASE typbasetype WHEN 0 THEN t.oid ELSE typbasetype END::pg_catalog.int8"
    " FROM pg_catalog.unnest($1::pg_catalog.int8[]) WITH ORDINALITY AS u(o, n)"
    " JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) u.o::pg_catalog.oid ORDER BY n"
)
IDLE_IN_TRANSACTION, IDLE_SESSION = "idle_in_transaction_session_timeout", "idle_session_timeout"
"""Parameters that would make PostgreSQL end a session whose client only listens."""
_OTHER_SETTINGS = "SELECT name, pg_catalog.current_setting(name) FROM pg_catalog.unnest($1::pg_catalog.text[]) AS name"


class Subscriber:
    """What one intercepted batch does with subscriptions."""

    def __init__(self, interceptor: AnsweredBatch):
        self.interceptor = interceptor
        self.session = interceptor.session
        self.dialogue = interceptor.dialogue
        self.traffic = interceptor.traffic
        self.held: SessionSubscriptions = self.session.subscriptions()
        self._task: asyncio.Task[None] | None = None
        self._busy = False
        """Whether PostgreSQL works on something of ours."""
        self._inside: RelayedSession | None = None
        """The session that the hub works with."""
        self._timeouts: dict[str, str] = {}
        self._temporary = False
        """Whether there is a transaction of ours, for the time of a start."""
        self._cancelled = False
        self._gone: Exception | None = None
        self._afterwards: bytes | None = None
        """What is to be run after a failure."""

    @property
    def encoding(self) -> str:
        return self.dialogue.client_encoding

    # -- recognising ---------------------------------------------------------------------------------------------

    def recognise(self, text: bytes) -> Ours | None:
        """What a statement asks for, if it is to be answered here. Raises SyntaxFault."""
        backslashes, encoding = self.interceptor.backslashes, self.encoding
        found = subscribe_syntax.parse(text, backslashes=backslashes, encoding=encoding)
        if found is None and self.held.cursors:
            about = cursor_syntax.parse(text, backslashes=backslashes, encoding=encoding)
            return about if about is not None and self.is_ours(about) else None
        return found

    def look(self, text: bytes) -> Ours | SyntaxFault | None:
        """`recognise`, with the error instead of raising it."""
        try:
            return self.recognise(text)
        except SyntaxFault as fault:
            return fault

    def is_ours(self, asked: Ours) -> bool:
        """Whether a FETCH or CLOSE is about cursors of ours."""
        if isinstance(asked, (FetchRows, CloseCursor)) and asked.name is not None:
            return asked.name in self.held.cursors
        return True

    # -- running, and being stopped ------------------------------------------------------------------------------

    async def run(self, work: Coroutine[Any, Any, None]) -> SqlError | None:
        """Run something that a cancel request ends. Returns why it failed; the transaction is aborted then.

        Raises BackendGone, ProtocolViolation.
        """
        self.interceptor.subscriber = self
        self._cancelled = False
        task = self._task = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:  # the session ends
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            self.interceptor.subscriber = self._task = self._inside = None
        if self._gone is not None:
            raise self._gone
        failure = CANCELLED if task.cancelled() else task.exception()
        if failure is None:
            return None
        if isinstance(failure, (BackendGone, m.ProtocolViolation)) or not isinstance(failure, Exception):
            raise failure
        if not isinstance(failure, SqlError):
            log.error("subscription failed", database=self.session.database, exc_info=failure)
            failure = SqlError("XX000", f"internal error of the engine: {failure}")
        if failure.sqlstate == _NOT_LOCKED and self.interceptor.status == m.IN_TRANSACTION and not self._temporary:
            failure = SqlError(failure.sqlstate, failure.message, detail=failure.detail, hint=_OWN_LOCK)
        await self._abort(failure)
        return failure

    async def _abort(self, error: SqlError) -> None:
        if self._temporary:
            self._temporary = False
            await self.interceptor.inject(b"ROLLBACK")
        elif not isinstance(error, BackendError):
            session = self._session(lambda: None)
            await self.interceptor.abort(session, error)
            self.interceptor.status = session.status
        self.dialogue.pinned = False
        if self._afterwards is not None:
            await self.interceptor.inject(self._afterwards)
            self._afterwards = None

    def cancel(self) -> bool:
        """A cancel request has come. True if PostgreSQL is to be told."""
        self._cancelled = True
        if self._busy or (self._inside is not None and self._inside.busy):
            return True
        if self._task is not None:
            self._task.cancel()
        return False

    def _check(self) -> None:
        if self._cancelled:
            raise CANCELLED

    @asynccontextmanager
    async def patience(self, flow: RowReader) -> AsyncIterator[None]:
        """Keep PostgreSQL from ending the session for being idle, while its client is not."""
        local = self.interceptor.status == m.IN_TRANSACTION
        name = IDLE_IN_TRANSACTION if local else IDLE_SESSION
        before = flow.timeouts.get(name, "0")
        if before == "0":
            yield
            return
        await self.exchange(run_by_name(_set(name, "0", local)))
        self._afterwards = None if local else _set(name, before, local)  # an error undoes what is local
        yield
        self._afterwards = None
        await self.exchange(run_by_name(_set(name, before, local)))

    async def watched(self, work: Coroutine[Any, Any, int]) -> int:
        """Run what does not speak with PostgreSQL, until PostgreSQL is gone or the client says goodbye."""
        if self._cancelled:
            work.close()
            raise CANCELLED

        async def watch(task: asyncio.Task[None] | None) -> None:
            try:
                await self.dialogue.quiet()
            except (BackendGone, m.ProtocolViolation) as gone:
                self._gone = gone
            if task is not None:
                task.cancel()

        watcher = asyncio.get_running_loop().create_task(watch(self._task))
        try:
            return await work
        finally:
            watcher.cancel()

    def response(self, error: SqlError, text: bytes) -> bytes:
        """The error as the client gets it, with its place in ``text``, the statement."""
        if isinstance(error, BackendError):
            return error.response
        encoding = codec(self.encoding)
        position = None
        if isinstance(error, SyntaxFault):
            position = len(text[: error.at].decode(encoding, "replace")) + 1
        return m.error_response(
            error.sqlstate,
            error.message,
            detail=error.detail,
            hint=error.hint,
            position=position,
            encoding=encoding,
        )

    # -- PostgreSQL ----------------------------------------------------------------------------------------------

    async def exchange(self, messages: bytes, *, flush: bool = False) -> list[tuple[int, bytes]]:
        """Send messages of ours with Sync, or Flush, and read all answers. Raises BackendError."""
        self._check()
        self._busy = True
        try:
            return await self.interceptor.exchange(messages, flush=flush)
        finally:
            self._busy = False

    def session_of_ours(self) -> RelayedSession:
        """The client's connection, for queries of ours, until something else is done with it."""
        self._inside = self._session(self._check)
        return self._inside

    def _session(self, check: Callable[[], None]) -> RelayedSession:
        async def never() -> None:
            raise SqlError("25001", "cannot commit in the client's transaction")

        return RelayedSession(self.dialogue, self.session.database, self.interceptor.status, check, never)

    async def prepare(
        self, asked: Subscribing, text: bytes, name: bytes = NAME, types: bytes = m.UNTYPED, *, flush: bool = False
    ) -> Statement:
        """Let PostgreSQL prepare the stand-in under a name. ``types`` are those of the parameters, as Parse has them.

        In a transaction it is done behind a savepoint, so that no locks stay.
        """
        subscription = asked if isinstance(asked, Subscription) else asked.subscription
        inside = self.interceptor.status == m.IN_TRANSACTION
        asking = describe_query.names(subscription)
        messages = self.interceptor.ours(SAVEPOINT) if inside else b""
        declared = describe_query.of_query(
            subscription, types, backslashes=self.interceptor.backslashes, encoding=self.encoding
        )
        messages += CLEAR + m.parse(NAME, asking.text, declared) + m.describe_statement(NAME) + CLEAR
        found = _columns(await self._ask(asking, text, messages, flush))
        made = describe_query.build(subscription, found)
        form = describe_query.build(asked, found)
        messages = m.parse(NAME, made.text, types) + m.describe_statement(NAME)
        if name != NAME:
            messages += m.parse(name, form.text, types)
        messages += CLEAR + (self.interceptor.ours(*BACK) if inside else b"")
        answers = await self._ask(made, text, messages, flush)
        return Statement(text, asked, form, _columns(answers), _parameter_types(answers))

    async def _ask(self, about: DescribeQuery, text: bytes, messages: bytes, flush: bool) -> list[tuple[int, bytes]]:
        """`exchange` about a stand-in: an error has its place in the client's statement."""
        try:
            return await self.exchange(messages, flush=flush)
        except BackendError as error:
            raise BackendError(about.translate(error.response, text, self.encoding)) from None

    async def copy_response(self, statement: Statement) -> bytes:
        """The CopyOutResponse that PostgreSQL itself gives for the stand-in's COPY, after it has read the options."""
        inside = self.interceptor.status == m.IN_TRANSACTION
        messages = self.interceptor.ours(SAVEPOINT) if inside else b""
        messages += CLEAR + m.parse(NAME, statement.form.text) + m.bind(NAME, NAME) + m.execute(NAME) + CLEAR
        messages += self.interceptor.ours(*BACK) if inside else b""
        answers = await self._ask(statement.form, statement.text, messages, flush=False)
        return next(data for kind, data in answers if kind == m.COPY_OUT)

    # -- starting ------------------------------------------------------------------------------------------------

    async def start(
        self, subscription: Subscription, output: Output, statement: Statement, parameters: bytes = b""
    ) -> RowReader:
        """Start a subscription. ``parameters`` are those of the portal, as Bind has them.

        What is done for it on the client's connection is undone.
        """
        self._temporary = self.interceptor.status == m.IDLE
        await self.exchange(self.interceptor.ours(b"BEGIN" if self._temporary else SAVEPOINT))
        session = self.session_of_ours()
        feed: Feed | None = None
        try:
            await session.pin()
            await session.flush()
            feed = await self._open(session, subscription, output, statement, parameters)
            await self.exchange(self.interceptor.ours(*((b"ROLLBACK",) if self._temporary else BACK)))
        except BaseException as error:
            if feed is not None:
                self.held.drop(RowReader(feed, {}))
            if isinstance(error, BackendError):  # speaks of a text that the client does not know
                raise BackendError(self.dialogue.for_client(m.without(error.response, "PpqW"))) from None
            raise
        self._temporary = self.dialogue.pinned = False
        return RowReader(feed, self._timeouts)

    async def _open(
        self,
        session: RelayedSession,
        subscription: Subscription,
        output: Output,
        statement: Statement,
        parameters: bytes,
    ) -> Feed:
        encoding = codec(self.encoding)
        values = await literals.of(self.exchange, session, statement.parameter_types, parameters)
        names = [name for name in (*CLIENT_SETTINGS, IDLE_SESSION) if name not in session.before]
        settings = {**session.before, **dict(await session.fetch(_OTHER_SETTINGS, names))}
        self._timeouts = {name: settings[name] for name in (IDLE_IN_TRANSACTION, IDLE_SESSION)}
        asked = literals.asked(subscription, values, settings)
        hub = await self.session.hooks.subscriptions(self.session.database)
        try:
            prepared = await hub.prepare(session, asked)
        except SqlError as error:
            if error.sqlstate == "42P01":  # though the client's session sees it
                error.hint = "It may be temporary, or its transaction has not committed."
            raise
        described = [column.name.decode(encoding, "replace") for column in statement.columns]
        types = [column.oid for column in prepared.columns]
        while (base := [int(oid) for (oid,) in await session.fetch(_BASE_TYPES, types)]) != types:
            types = base  # as RowDescription has domains
        if described != [c.name for c in prepared.columns] or types != [c.oid for c in statement.columns]:
            raise SqlError("0A000", "cached plan must not change result type")
        return await hub.open(session, prepared, output)


def _set(name: str, value: str, local: bool) -> bytes:
    return f"SELECT pg_catalog.set_config({text(name)}, {text(value)}, {str(local).lower()})".encode()


def _columns(answers: list[tuple[int, bytes]]) -> tuple[Column, ...]:
    described = [data for kind, data in answers if kind == m.ROW_DESCRIPTION]
    return tuple(describe_query.columns(described[0])) if described else ()


def _parameter_types(answers: list[tuple[int, bytes]]) -> tuple[int, ...]:
    described = next(data for kind, data in answers if kind == m.PARAMETER_DESCRIPTION)
    return tuple(m.int32_at(described, 7 + 4 * n) for n in range(m.int16_at(described, 5)))
