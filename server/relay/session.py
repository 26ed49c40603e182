"""A session: one client and its own PostgreSQL connection, from the first byte to the last."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from server.intercept.dispatch import intercept
from server.intercept.intercepted_session import InterceptedSession
from server.intercept.message_stream import BackendGone, MessageStream
from server.protocol import messages as m
from server.protocol import startup
from server.protocol.fast_path import is_answer, is_batch
from server.protocol.state import Event, State, after
from server.protocol.statement_registry import Attention
from server.protocol.traffic import Traffic
from server.relay import upstream
from server.relay.context import RelayContext
from server.relay.endpoints import Endpoint, PauseReason, ignore
from server.subscriptions.session_subscriptions import SessionSubscriptions

log = structlog.get_logger(__name__)

_CANCEL_POLL_SECONDS = 0.01
_MOST_OUTSTANDING = 10_000
"""Batches that are passed on without having been answered: each is kept until then, and may have five bytes."""


class RelaySession:
    """States and transitions are those of ``protocol.state``. It begins with a ``relay.handshake``."""

    def __init__(self, relay: RelayContext):
        self.relay = relay
        self.state = State.STARTUP
        self.client = Endpoint(self.abort)
        self.backend = Endpoint(self._backend_lost)
        self.client.peer, self.backend.peer = self.backend, self.client
        self.traffic = Traffic(self._committed, self._sent, self._portals_ended, relay.counts.errors)
        self._held: SessionSubscriptions | None = None
        self.database = ""
        self.replication = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.key: tuple[int, bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.dialogue: MessageStream | None = None
        self.intercepted: InterceptedSession | None = None
        self._cancels = 0
        self._settled = asyncio.Event()
        self._settled.set()

    # -- life --------------------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether the session has, or is getting, a PostgreSQL connection."""
        return self.state not in (State.STARTUP, State.SECURING, State.CLOSED)

    @property
    def client_address(self) -> str:
        """Where the client is, for the log; empty once it has gone."""
        transport = self.client.transport
        peer = transport.get_extra_info("peername") if transport is not None else None
        return f"{peer[0]}:{peer[1]}" if peer else ""

    def move(self, event: Event) -> None:
        self.state = after(self.state, event)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine that ends with the session; if it fails the session ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("session failed", database=self.database, exc_info=error)
            self.fail("XX000", f"internal error of the server: {error}")

    def fail(self, sqlstate: str, text: str, hint: str | None = None) -> None:
        """Tell the client why its session ends, and end it."""
        if self.state is State.CLOSED:
            return
        self.traffic.note_error(sqlstate)
        if not self.traffic.backend.skip:  # in the middle of a message nothing can be said
            self.client.write(m.error_response(sqlstate, text, severity="FATAL", hint=hint))
        self.close()

    def violated(self, error: m.ProtocolViolation) -> None:
        log.info(
            "protocol violated",
            client=self.client_address,
            database=self.database,
            state=self.state.name,
            error=str(error),
        )
        self.fail(error.sqlstate, str(error))

    def close(self) -> None:
        """End the session; the client still gets what has been written to it."""
        if self.state is State.CLOSED:
            return
        self.move(Event.CLOSE)
        if self.timer is not None:
            self.timer.cancel()
        if self.dialogue is not None:
            self.dialogue.backend_closed()
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self._leave_backend()
        self._portals_ended()
        self.client.receive = self.backend.receive = ignore
        if self.key is not None:
            self.relay.cancels.remove(*self.key, self)
        if self.client.transport is None:
            self.abort()
        else:
            self.client.release(~PauseReason(0))
            self.client.transport.close()
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(self.relay.limits.linger_seconds, self.abort)

    def abort(self) -> None:
        """End the session at once."""
        self.close()
        if self.timer is not None:
            self.timer.cancel()
        for side in (self.client, self.backend):
            if side.transport is not None:
                side.transport.abort()
        if not self.ended.done():
            self.ended.set_result(None)

    def end_if_silent(self, limit: float) -> None:
        """End the session if one of its peers has acknowledged nothing for `limit` seconds of what was sent to it."""
        for side, peer in ((self.client, "client"), (self.backend, "PostgreSQL")):
            seconds = side.silent_for()
            if seconds < limit:
                continue
            log.warning(
                "connection is silent and given up",
                peer=peer,
                client=self.client_address,
                database=self.database,
                seconds=round(seconds, 1),
            )
            if side is self.client:
                self.abort()
            else:
                self.fail("08006", f"PostgreSQL has acknowledged nothing for {seconds:.0f} seconds")
            return

    def _leave_backend(self) -> None:
        transport = self.backend.transport
        if transport is None:
            return
        busy = self.dialogue or self.traffic.outstanding or self.traffic.batch
        if busy and not self.traffic.terminated and self.key is not None:
            # A backend at work notices that its client is gone only when it writes.
            request = startup.CancelRequest(*self.key)
            self.relay.outlive(upstream.cancel(self.relay.backend, request))
        if not self.traffic.terminated and not self.traffic.client.skip:
            transport.write(m.TERMINATE_MESSAGE)
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()

    def _backend_lost(self) -> None:
        while self.state is State.RELAY and self.traffic.more_from_backend:  # the client gets what was said last
            self.from_backend(b"")
        if self.dialogue is not None:
            self.dialogue.backend_closed()
        else:
            self._lost_backend()

    def _lost_backend(self) -> None:
        if self.state is State.CLOSED:
            return
        if self.traffic.fatal or self.traffic.terminated:
            self.close()
        else:
            self.fail("57P01", "terminating connection because PostgreSQL closed its side")

    # -- relay -------------------------------------------------------------------------------------------------------

    def begin(self, warning: str | None) -> None:
        """The client may begin."""
        if warning:
            self.client.write(m.notice_response("01000", warning))
        self.client.write(m.ready(self.traffic.status))
        self.move(Event.DATABASE_READY)
        self.pass_bytes()

    def pass_bytes(self) -> None:
        """Let bytes pass, beginning with those that came meanwhile."""
        self.client.receive = self.from_client
        self.backend.receive = self.from_backend
        self.backend.release(PauseReason.BUSY | PauseReason.QUEUE)
        self.client.release(PauseReason.BUSY | PauseReason.QUEUE)
        if self.traffic.backend.size:
            self.from_backend(b"")
        if self.traffic.client.size and self.state is State.RELAY:
            self.from_client(b"")

    def from_client(self, data: bytes) -> None:
        if is_batch(self.traffic, data):
            self.backend.write_at_once(data)
            self._wait_for_answers()
            return
        try:
            passed = self.traffic.from_client(data)
        except m.ProtocolViolation as error:
            self.violated(error)
            return
        if passed:
            self.backend.write_at_once(passed)
        if (attention := self.traffic.attend()) is not None:
            self._attend(attention)
            return
        self._wait_for_answers()
        if self.traffic.more_from_client:
            self.client.hold(PauseReason.TURN)
            asyncio.get_running_loop().call_soon(self._more_from_client)

    def _wait_for_answers(self) -> None:
        if len(self.traffic.outstanding) > _MOST_OUTSTANDING and not self.traffic.copying:
            self.client.hold(PauseReason.ANSWERS)

    def _answered(self) -> None:
        """Read from the client again, if there are answers enough, or PostgreSQL waits for its data."""
        if len(self.traffic.outstanding) < _MOST_OUTSTANDING // 2 or self.traffic.copying:
            self.client.release(PauseReason.ANSWERS)
            if self.traffic.more_from_client:
                asyncio.get_running_loop().call_soon(self._more_from_client)

    def _more_from_client(self) -> None:
        if self.client.holds & PauseReason.ANSWERS:
            return
        if self._cancels and self.state is not State.CLOSED:  # no new statement may overtake a cancel request
            asyncio.get_running_loop().call_later(_CANCEL_POLL_SECONDS, self._more_from_client)
            return
        self.client.release(PauseReason.TURN)
        if self.state is State.RELAY and self.traffic.more_from_client:
            self.from_client(b"")

    def from_backend(self, data: bytes) -> None:
        if is_answer(self.traffic, data):
            self.client.write_at_once(data)
            if self.client.holds & PauseReason.ANSWERS:
                self._answered()
            return
        try:
            passed = self.traffic.from_backend(data)
        except m.ProtocolViolation as error:
            self.violated(error)
            return
        if passed:
            self.client.write_at_once(passed)
        if (attention := self.traffic.attend()) is not None:
            self._attend(attention)
            return
        if self.client.holds & PauseReason.ANSWERS:
            self._answered()
        if self.traffic.more_from_backend:
            self.backend.hold(PauseReason.TURN)
            asyncio.get_running_loop().call_soon(self._more_from_backend)

    def _more_from_backend(self) -> None:
        self.backend.release(PauseReason.TURN)
        if self.state is State.RELAY and self.traffic.more_from_backend:
            self.from_backend(b"")

    def _attend(self, attention: Attention) -> None:
        self.client.release(
            PauseReason.ANSWERS | PauseReason.TURN
        )  # all answers are waited for first, and then goes on what is left
        self.move(Event.ATTENTION)
        self.dialogue = MessageStream(self.client, self.backend, self.traffic, self.settled)
        self.client.receive = self.dialogue.from_client
        self.backend.receive = self.dialogue.from_backend
        self.spawn(self._intercepted(self.dialogue, attention))

    async def _intercepted(self, dialogue: MessageStream, attention: Attention) -> None:
        self.intercepted = InterceptedSession(
            self.database, self.client, self.traffic, self.relay.hooks, self.settled, self.subscriptions
        )
        try:
            await intercept(self.intercepted, dialogue, attention)
        except BackendGone:
            self._lost_backend()
            return
        except m.ProtocolViolation as error:
            self.violated(error)
            return
        finally:
            self.dialogue = self.intercepted = None
        dialogue.leave()
        self.move(Event.ATTENTION_DONE)
        self.pass_bytes()
        if dialogue.backend_gone:  # without that anybody has read so far
            self._backend_lost()

    def _committed(self) -> None:
        self.relay.hooks.committed(self.database)

    def _sent(self) -> None:
        self.relay.hooks.sent(self.database)

    def subscriptions(self) -> SessionSubscriptions:
        """The session's subscriptions."""
        if self._held is None:
            self._held = SessionSubscriptions(self.relay.outlive)
        return self._held

    def _portals_ended(self) -> None:
        if self._held is not None:
            self._held.end()

    async def settled(self) -> None:
        """Wait until no cancel request is on its way."""
        await self._settled.wait()

    async def cancel(self, request: startup.CancelRequest) -> None:
        """Cancel what the client waits for; new statements wait until the cancel has arrived."""
        if self.intercepted is not None and self.intercepted.interceptor is not None:
            if not self.intercepted.interceptor.cancel_work():
                return
        elif not self.traffic.outstanding and self.traffic.batch is None:
            return
        self._cancels += 1
        self._settled.clear()
        self.client.hold(PauseReason.CANCEL)
        try:
            await upstream.cancel(self.relay.backend, request)
        finally:
            self._cancels -= 1
            if not self._cancels:
                self._settled.set()
                self.client.release(PauseReason.CANCEL)
