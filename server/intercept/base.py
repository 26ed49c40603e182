"""Intercepts a session: engine requests are carried out inside the statement that made them.

One coroutine at a time, from the message that needed attention to the ReadyForQuery that ends its batch. It
lets what is under way come to its end, opens a transaction where the client has none, runs the client's
messages one by one, calls the engine after each statement that made a request, commits, and only then lets the
client have the last CommandComplete. Nothing is held from a client that asks for it by Flush, and nothing waits
for an answer that PostgreSQL gives only at Flush or Sync: every message goes out with a Flush of ours.

``intercept.simple`` and ``intercept.extended`` have the two protocols; here is what they share.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import structlog

from catalog.session import SqlError
from engine import tracing
from server.intercept.definition_errors import located
from server.intercept.intercepted_session import InterceptedSession
from server.intercept.message_stream import BackendGone, MessageStream
from server.intercept.relayed_session import NAME, BackendError, RelayedSession, run_by_name
from server.protocol import messages as m
from server.protocol.error_rewriting import explained
from server.protocol.framing import CONTINUATION, kinds, parsed
from server.protocol.lexer import PAUSE, Statement, databases_touched, leading, statements
from server.protocol.statements import (
    extensions,
    request_statements,
    setting_syntax,
    stream_table_names,
    trace_comment,
    uri_copy,
)
from server.protocol.traffic import TOO_LATE
from server.protocol.values import codec
from server.subscriptions.interface import Cancellable

log = structlog.get_logger(__name__)

ALONE = b"SET LOCAL headwater.alone = 'on'"
"""Tells functions of the catalog that the transaction is ours and holds one statement of the client's."""
COMPLETIONS = frozenset(b"123TnCIs")
"""What ends the answer to one message of the extended protocol."""
_ENDS = frozenset(("COMMIT", "END", "ROLLBACK", "ABORT"))


class Refused(SqlError):
    """The relay itself refuses to go on with a batch."""


class Interceptor:
    """What both protocols share: our transaction, the held completion, the engine's turn."""

    def __init__(self, session: InterceptedSession, dialogue: MessageStream):
        self.session = session
        self.traffic = session.traffic
        self.dialogue = dialogue
        self.status = self.traffic.status
        """Transaction status as it is now."""
        self.own = False
        """Whether the transaction is the relay's: opened around the client's batch."""
        self.alone = False
        """Whether the batch is one SELECT that names its request: its transaction may be restarted."""
        self.held: bytes | None = None
        """The last CommandComplete, which the client must not see before the commit."""
        self.asked = b""
        """The statement that PostgreSQL got last of those that may be explained."""
        self.string = b""
        """The query string that it is part of, or the batch, where that is known."""
        self.changed = False
        self.committing = False
        self._cancelled = False
        self._work: asyncio.Task[None] | None = None
        self._injected: RelayedSession | None = None
        self.subscriber: Cancellable | None = None
        """What is being answered instead of PostgreSQL."""

    def go_on_from(self, other: Interceptor) -> None:
        """Take another interceptor's place, in the middle of a transaction."""
        self.own, self.status, self.changed = other.own, other.status, other.changed

    # -- the client's statements -------------------------------------------------------------------------------

    @property
    def backslashes(self) -> bool:
        """Whether a backslash escapes in plain strings."""
        return self.traffic.parameters.get("standard_conforming_strings") == "off"

    def as_sent(self, text: bytes) -> bytes:
        """A statement as PostgreSQL gets it: one of ours becomes a request."""
        ours = (uri_copy.as_request, extensions.as_request, request_statements.as_request, setting_syntax.as_request)
        for as_request in (*ours, stream_table_names.as_request):
            request = as_request(text, backslashes=self.backslashes, encoding=self.dialogue.client_encoding)
            if request is not None:
                return request
        return text

    def is_the_same(self, text: bytes, sent: bytes) -> bool:
        """Whether a statement is sent as it is, but for the schema of stream tables that it names."""
        encoding = self.dialogue.client_encoding
        return sent is text or sent == stream_table_names.as_request(
            text, backslashes=self.backslashes, encoding=encoding
        )

    def written_elsewhere(self, text: bytes) -> str | None:
        """What a statement changes by a name in the schema `pgtrickle`, which that schema does not have."""
        encoding = self.dialogue.client_encoding
        return stream_table_names.written_elsewhere(text, backslashes=self.backslashes, encoding=encoding)

    def completion_of(self, text: bytes, completion: bytes) -> bytes:
        """The CommandComplete of a statement, by that of what PostgreSQL got in its place."""
        shown = setting_syntax.is_shown(text, backslashes=self.backslashes, encoding=self.dialogue.client_encoding)
        return m.message(m.COMMAND_COMPLETE, setting_syntax.SHOWN + b"\0") if shown else completion

    def warn_of(self, text: bytes) -> None:
        """Tell the client of a setting in a statement that is none."""
        encoding = self.dialogue.client_encoding
        warning = setting_syntax.unknown(text, backslashes=self.backslashes, encoding=encoding)
        if warning is not None:
            notice = m.notice_response(warning.sqlstate, warning.message, hint=warning.hint, encoding=codec(encoding))
            self.session.client.write(notice)

    # -- answers -----------------------------------------------------------------------------------------------

    async def send(self, data: bytes) -> None:
        await self.dialogue.to_backend(data)

    async def give(self, kind: int, data: bytes) -> None:
        await self.dialogue.to_client(kind, data)

    async def release(self) -> None:
        """Let the client have the held completion."""
        if self.held is not None:
            held, self.held = self.held, None
            await self.give(m.COMMAND_COMPLETE, held)

    async def report(self, error: SqlError) -> None:
        """Give the client an error of ours, or PostgreSQL's own; no position but those in a defining query."""
        self.held = None
        self.traffic.note_error(error.sqlstate)
        if error.sqlstate == m.REQUEST_LEFT:
            self.session.client.write(TOO_LATE)
        elif isinstance(error, BackendError):
            response = located(error.response)
            if self._injected is not None:
                response = m.without(response, "W")
            self.session.client.write(self.dialogue.for_client(response))
        else:
            encoding = codec(self.dialogue.client_encoding)
            self.session.client.write(
                m.error_response(error.sqlstate, error.message, detail=error.detail, hint=error.hint, encoding=encoding)
            )

    def explained(self, response: bytes) -> bytes:
        """PostgreSQL's error as the client gets it."""
        self.traffic.note_error(m.sqlstate_of(response[5:]))
        if m.sqlstate_of(response[5:]) == m.REQUEST_LEFT:
            return TOO_LATE
        return explained(
            response,
            in_our_transaction=self.own,
            requested=self.dialogue.requested,
            elsewhere=lambda: self.written_elsewhere(self.asked),
            uninstalled=self.session.hooks.uninstalled(self.session.database),
        )

    async def ready(self, status: int, *, oldest: bool = False) -> None:
        """End the batch: tell the client, and let go of what was noted about it. `oldest`: others come behind it."""
        self.traffic.answered(status, changed=self.changed, oldest=oldest)
        self.status = status
        self.session.client.write(m.ready(status))

    async def fail_batch(self, *, flush: bool = True) -> None:
        """Let PostgreSQL undo what the batch has done outside a transaction block, and ignore it up to its Sync."""
        with suppress(BackendError):
            await self.exchange(m.parse(NAME, b"SUBSCRIBE"), flush=flush)

    async def pump_copy(self) -> None:
        """Pass the client's COPY data on until it ends it, or PostgreSQL does."""
        while (found := await self.dialogue.copy_data()) is not None:
            kind, data = found
            if kind in (m.COPY_DATA, m.COPY_DONE, m.COPY_FAIL, m.TERMINATE, CONTINUATION):
                await self.send(data)
            if kind in (m.COPY_DONE, m.COPY_FAIL, m.TERMINATE):
                return
            if kind not in (m.COPY_DATA, m.FLUSH, m.SYNC, CONTINUATION):
                raise m.ProtocolViolation(f'unexpected message type "{chr(kind)}" during COPY from stdin')

    # -- the relay's transaction -------------------------------------------------------------------------------

    @staticmethod
    def ours(*commands: bytes) -> bytes:
        """Messages that run commands under our own names, one after the other."""
        return b"".join(map(run_by_name, commands))

    async def exchange(self, messages: bytes, *, flush: bool = False) -> list[tuple[int, bytes]]:
        """Send messages of ours with Sync, or with Flush, and read all answers. Raises BackendError.

        After a Sync PostgreSQL is ready again in any case; after an error behind a Flush it ignores what comes before
        the next Sync.
        """
        await self.send(messages + (m.FLUSH_MESSAGE if flush else m.SYNC_MESSAGE))
        steps = len(kinds(messages)) if flush else 0
        answers: list[tuple[int, bytes]] = []
        error: BackendError | None = None
        while True:
            kind, data = await self.dialogue.next_from_backend()
            if kind == m.READY:
                self.status = data[5]
                if error is not None:
                    raise error
                return answers
            if kind == m.ERROR:
                error = BackendError(data)
                if flush:
                    raise error
            answers.append((kind, data))
            if flush and kind in COMPLETIONS and (steps := steps - 1) == 0:
                return answers

    async def inject(self, *commands: bytes) -> str | BackendError:
        """Run commands of ours; returns the last one's tag, or the error. Ends with Sync.

        Raises ProtocolViolation if PostgreSQL has ignored them, as it does everything behind an error up to a Sync.
        """
        try:
            answers = await self.exchange(self.ours(*commands))
        except BackendError as error:
            return error
        tags = [data for kind, data in answers if kind == m.COMMAND_COMPLETE]
        if not tags:
            raise m.ProtocolViolation("PostgreSQL has ignored a command of the server's")
        return tags[-1][5:-1].decode("ascii", "replace")

    async def open(self, *, alone: bool = False, also: bytes = b"") -> list[tuple[int, bytes]]:
        """BEGIN. Before a Sync it takes the client's implicit transaction in, with all it has done.

        `alone`: our COMMIT comes right behind the client's one statement, which may have its own ideas about it. `also`
        are messages of ours that go with it: where they fail, a transaction may be open. Returns the answers. Raises
        BackendError.
        """
        self.own = bool(also)
        answers = await self.exchange(self.ours(b"BEGIN", *([ALONE] if alone else [])) + also, flush=True)
        self.own = True
        self.status = m.IN_TRANSACTION
        return answers

    async def commit(self) -> SqlError | None:
        """COMMIT our transaction; returns why that failed."""
        await self.session.settled()
        self.committing = True
        try:
            outcome = await self.inject(b"COMMIT")
        finally:
            self.committing = False
            self.dialogue.pinned = False
        if isinstance(outcome, SqlError):
            return outcome
        return None

    async def roll_back(self) -> None:
        await self.inject(b"ROLLBACK")
        self.dialogue.pinned = False
        self.changed = False
        self.traffic.undone()

    # -- the engine's turn -------------------------------------------------------------------------------------

    async def carry_out(self) -> bool:
        """Let the engine carry out what was requested. False if that failed and the client has been told."""
        parent = trace_comment.traceparent(self.string or self.asked) if tracing.is_recording() else None
        with tracing.span("headwater.statement", parent=parent, of_client=True) as traced:
            traced.set({"db.system.name": "postgresql", "db.namespace": self.session.database})
            return await self._carry_out(traced)

    async def _carry_out(self, traced: tracing.Span) -> bool:
        self.dialogue.requested = False
        session = RelayedSession(
            self.dialogue, self.session.database, self.status, self._check_cancelled, self._commit_for_restart
        )
        session.own = self.own
        session.autocommit = self.own and self.alone
        self._injected = session
        loop = asyncio.get_running_loop()
        self._work = loop.create_task(self._engine(session))
        try:
            await asyncio.shield(self._work)
        except asyncio.CancelledError:
            if not self._cancelled:  # the session ends
                self._work.cancel()
                await asyncio.gather(self._work, return_exceptions=True)
                raise
            error: SqlError = SqlError("57014", "canceling statement due to user request")
        except (BackendGone, m.ProtocolViolation):
            raise
        except SqlError as failed:
            error = failed
        except Exception as failed:
            log.error("engine request failed", database=self.session.database, exc_info=failed)
            error = SqlError("XX000", f"internal error of the engine: {failed}")
        else:
            self.changed = True
            self._injected = None
            if session.tag is not None:
                self.held = m.message(m.COMMAND_COMPLETE, session.tag.encode() + b"\0")
            return True
        finally:
            self._work = None
            self.status = session.status
            self._cancelled = False
        traced.failed(error)
        await self._fail(session, error)
        self._injected = None
        return False

    async def carry_out_before(self) -> bool:
        """Carry out what was requested before this message, and noticed behind it. False as for `carry_out`.

        An implicit transaction, of a batch without its Sync, becomes one of ours.
        """
        if not self.dialogue.requested or self.status == m.FAILED:
            return True
        if self.status == m.IDLE:
            try:
                await self.open()
            except BackendError as error:  # cancelled, or out of time
                self.dialogue.requested = False
                await self.report(error)
                return False
        done = await self.carry_out()
        if done:
            self.held = None  # the statement's own completion has been given
        return done

    async def _engine(self, session: RelayedSession) -> None:
        await session.pin()
        await self.session.hooks.carry_out(session)
        await session.flush()
        if session.disturbed or not session.autocommit:
            await session.unpin()  # the relay's own COMMIT, which comes next, does it anyway where nothing was SET

    async def _fail(self, session: RelayedSession, error: SqlError) -> None:
        """Report an error of the engine, which aborts the transaction."""
        await self.report(await self.abort(session, error))
        self.dialogue.pinned = False
        self.status = session.status

    async def abort(self, session: RelayedSession, error: SqlError) -> SqlError:
        """Abort the transaction, if there is one. PostgreSQL itself raises the error; returns it as it was raised."""
        if session.status == m.IN_TRANSACTION:
            try:
                await session.fetch(
                    "SELECT pgtrickle._raise($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text,"
                    " $4::pg_catalog.text)",
                    error.sqlstate,
                    error.message,
                    error.detail,
                    error.hint,
                )
            except BackendError as made:
                if not isinstance(error, BackendError) and (made.sqlstate, made.message) == (
                    error.sqlstate,
                    error.message,
                ):
                    return made
            except SqlError:
                pass
        return error

    async def _commit_for_restart(self) -> None:
        self.dialogue.pinned = False
        error = await self.commit()
        assert self._injected is not None
        self._injected.status = self.status
        if error is not None:
            if isinstance(error, BackendError):
                self._injected.last_error = error
            raise error

    def _check_cancelled(self) -> None:
        if self._cancelled:
            raise SqlError("57014", "canceling statement due to user request")

    def cancel_work(self) -> bool:
        """A cancel request has come. True if PostgreSQL is to be told."""
        if self.committing:
            return False
        if self.subscriber is not None:
            return self.subscriber.cancel()
        if self._work is not None:
            self._cancelled = True
            if self._injected is not None and not self._injected.busy:
                self._work.cancel()
                return False
        return True

    # -- coming in ---------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Let everything that was passed on before be answered, and learn the transaction's status. Raises Refused."""
        await self.drain_answers()
        if not self.traffic.failed:
            self.status = self.status_in_batch()

    async def drain_answers(self) -> None:
        """Let everything that was passed on before be answered, or come to a COPY, which must not be interrupted."""
        traffic = self.traffic
        while traffic.outstanding and not traffic.copying:
            await self._pass_answer()
        if traffic.owes_in_batch() and not traffic.copying:
            await self.send(m.FLUSH_MESSAGE)
            while traffic.owes_in_batch() and not (traffic.failed or traffic.copying):
                await self._pass_answer()

    async def _pass_answer(self) -> None:
        kind, data = await self.dialogue.next_from_backend()
        traffic = self.traffic
        if kind in b"CZGE":
            if traffic.read_for_client(kind, data[5:]):
                data = TOO_LATE
            if kind == m.READY and data[5] == m.IDLE:
                self.dialogue.requested = False  # it was undone, or refused
        elif kind in COMPLETIONS:
            traffic.completed()
        await self.give(kind, data)

    def status_in_batch(self) -> int:
        """Transaction status in the middle of a batch, from the tags of transaction control since its beginning."""
        status = self.traffic.status
        ends = [tag for tag in self.traffic.controls if tag in (b"COMMIT", b"ROLLBACK")]
        if ends:
            raw = b"".join(self.traffic.batch.raw or []) if self.traffic.batch else b""
            # A plain end ends the transaction; ROLLBACK TO and AND CHAIN have the same tags and do not.
            if sum(map(_is_plain_end, parsed(raw))) < len(ends):
                raise Refused(
                    "0A000",
                    "cannot carry out an engine request behind COMMIT or ROLLBACK in the same pipeline",
                    hint="Send Sync after the end of the transaction.",
                )
        for tag in self.traffic.controls:
            status = m.IN_TRANSACTION if tag in (b"BEGIN", b"START TRANSACTION") else m.IDLE
        return status

    async def pass_one(self, kind: int, data: bytes, *, afresh: bool = False) -> None:
        """Pass a message on as if nothing had been noticed about it. `afresh`: its batch has been answered so far."""
        self.traffic.pass_on(kind, data, afresh=afresh)
        await self.send(data)

    async def statements(self, text: bytes) -> AsyncIterator[Statement]:
        """The statements of a query string, one by one, while the server's other clients have their turns."""
        for statement in statements(text, backslashes=self.backslashes, encoding=self.dialogue.client_encoding):
            if statement is PAUSE:
                await asyncio.sleep(0)
            else:
                yield statement

    async def release_databases(self, text: bytes) -> None:
        async for statement in self.statements(text):
            await self.release_databases_of(text, statement)

    async def release_databases_of(self, text: bytes, statement: Statement) -> None:
        role = self.traffic.parameters.get("session_authorization", "")
        for name in databases_touched(text, [statement]):
            await self.session.hooks.release_database(name, role)


def _is_plain_end(text: bytes) -> bool:
    """Whether a statement ends a transaction, and begins none.

    >>> _is_plain_end(b"commit work;"), _is_plain_end(b"rollback to s"), _is_plain_end(b"COMMIT AND CHAIN")
    (True, False, False)
    """
    first, *rest = leading(text, 4) or ("",)
    return first in _ENDS and [word for word in rest if word != ";"] in ([], ["WORK"], ["TRANSACTION"])
