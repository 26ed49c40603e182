"""A session: one client and its own PostgreSQL connection, from the first byte to the last."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import structlog

from server import upstream
from server.conductor import Conductor, conduct
from server.dialogue import BackendGone, Dialogue
from server.protocol import authentication, startup
from server.protocol import messages as m
from server.protocol.framing import AUTHENTICATION_LIMITS, FRONTEND_LIMITS
from server.protocol.state import Event, State, after
from server.protocol.traffic import Attention, Traffic
from server.sides import BackendSide, ClientSide, Hold

if TYPE_CHECKING:
    from server.relay import Relay

log = structlog.get_logger(__name__)

_TEMPLATES = frozenset(("template0", "template1"))
_BINDING_HINT = (
    "The server reaches PostgreSQL by TLS, and a login cannot be bound to two TLS channels. Set"
    ' "channel_binding=disable" in the client\'s connection string, or let the server reach PostgreSQL'
    " by a Unix socket or with sslmode=disable."
)


class RelaySession:
    """States and transitions are those of ``protocol.state``."""

    def __init__(self, relay: Relay):
        self.relay = relay
        self.state = State.STARTUP
        self.client = ClientSide(self)
        self.backend = BackendSide(self)
        self.traffic = Traffic(self._committed)
        self.database = ""
        self.replication = False
        self.backend_tls = False
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._key: tuple[int, bytes] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.dialogue: Dialogue | None = None
        self.conductor: Conductor | None = None
        self._cancels = 0
        self._settled = asyncio.Event()
        self._settled.set()
        relay.sessions.add(self)

    # -- life --------------------------------------------------------------------------------------------------------

    @property
    def started(self) -> bool:
        """Whether the session has, or is getting, a PostgreSQL connection."""
        return self.state not in (State.STARTUP, State.SECURING, State.CLOSED)

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

    def ignore(self, data: bytes) -> None:
        """Bytes that come when nobody wants them any more."""

    def fail(self, sqlstate: str, text: str, hint: str | None = None) -> None:
        """Tell the client why its session ends, and end it."""
        if self.state is State.CLOSED:
            return
        if not self.traffic.backend.skip:  # in the middle of a message nothing can be said
            self.client.write(m.error_response(sqlstate, text, severity="FATAL", hint=hint))
        self.close()

    def violated(self, error: m.ProtocolViolation) -> None:
        self.fail(error.sqlstate, str(error))

    def close(self) -> None:
        """End the session; the client still gets what has been written to it."""
        if self.state is State.CLOSED:
            return
        self.move(Event.CLOSE)
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self._leave_backend()
        self.client.receive = self.backend.receive = self.ignore
        if self._key is not None:
            self.relay.cancels.remove(*self._key, self)
        if self.client.transport is None:
            self.abort()
        else:
            self.client.release(~Hold(0))
            self.client.transport.close()
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.relay.limits.linger_seconds, self.abort)

    def abort(self) -> None:
        """End the session at once."""
        self.close()
        if self._timer is not None:
            self._timer.cancel()
        for side in (self.client, self.backend):
            if side.transport is not None:
                side.transport.abort()
        self.relay.sessions.discard(self)
        if not self.ended.done():
            self.ended.set_result(None)

    def _leave_backend(self) -> None:
        transport = self.backend.transport
        if transport is None:
            return
        busy = (
            self.dialogue or self.traffic.outstanding or self.traffic.batch or self.traffic.status == m.IN_TRANSACTION
        )
        if busy and not self.traffic.terminated and self._key is not None:
            # A backend at work notices that its client is gone only when it writes.
            request = startup.CancelRequest(*self._key)
            work = asyncio.get_running_loop().create_task(upstream.cancel(self.relay.backend, request))
            self.relay.keep(work)
        if not self.traffic.terminated and not self.traffic.client.skip:
            transport.write(m.TERMINATE_MESSAGE)
        if transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()

    def client_lost(self) -> None:
        self.abort()

    def backend_lost(self) -> None:
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

    # -- startup -----------------------------------------------------------------------------------------------------

    def client_connected(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.relay.limits.startup_seconds, self._startup_expired)
        self.client.receive = self._startup

    def _startup_expired(self) -> None:
        if self.state in (State.STARTUP, State.SECURING):
            self.abort()
        else:
            self.fail("57014", "canceling authentication due to timeout")

    def _startup(self, data: bytes) -> None:
        framer = self.traffic.client
        framer.feed(data)
        try:
            while self.state is State.STARTUP and (found := startup.read(framer.partial)) is not None:
                packet, framer.partial = found
                if isinstance(packet, startup.EncryptionRequest):
                    self._encrypt(packet)
                elif isinstance(packet, startup.CancelRequest):
                    self.client.receive = self.ignore
                    self.spawn(self._pass_cancel(packet))
                    return
                else:
                    self._start(packet)
        except m.ProtocolViolation as error:
            self.violated(error)

    def _encrypt(self, packet: startup.EncryptionRequest) -> None:
        # What is already there was not encrypted: somebody may have put it there (CVE-2021-23214, CVE-2021-23222).
        if self.traffic.client.partial:
            raise m.ProtocolViolation("received unencrypted data after encryption request")
        encrypted = self.client.transport is not None and self.client.transport.get_extra_info("ssl_object")
        if packet.gss or encrypted or self.relay.tls is None:
            self.client.write(b"N")
            return
        self.move(Event.TLS_BEGINS)
        self.client.receive = self.ignore
        assert self.client.transport is not None
        self.client.transport.pause_reading()
        self.client.write(b"S")
        self.spawn(self._secure(self.client.transport, self.relay.tls))

    async def _secure(self, plain: asyncio.Transport, context: ssl.SSLContext) -> None:
        self.client.receive = self._startup
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain,
                self.client,
                context,
                server_side=True,
                ssl_handshake_timeout=self.relay.limits.startup_seconds,
            )
        except (OSError, ssl.SSLError) as error:
            log.info("TLS handshake failed", error=str(error))
            secured = None
        if secured is None or self.state is State.CLOSED:
            self.abort()
            return
        self.client.attach(secured)
        self.move(Event.TLS_DONE)
        if self.traffic.client.partial:  # came while the handshake was being finished
            self._startup(b"")

    async def _pass_cancel(self, request: startup.CancelRequest) -> None:
        await self.relay.cancels.cancel(request)
        self.close()

    def _start(self, packet: startup.StartupMessage) -> None:
        if self.relay.full:
            self.fail("53300", "sorry, too many clients already")
            return
        self.move(Event.STARTUP_MESSAGE)
        self.database = packet.database
        self.replication = packet.replication
        self.client.hold(Hold.BUSY)
        self.client.receive = self._authentication_from_client
        self.traffic.client.limits = AUTHENTICATION_LIMITS
        if not self.replication:
            packet = packet.with_parameter(b"headwater.relay", b"on")
        self.spawn(self._connect(packet))

    async def _connect(self, packet: startup.StartupMessage) -> None:
        try:
            _, _, self.backend_tls = await upstream.connect(self.relay.backend, lambda: self.backend)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.fail("08006", f"could not connect to PostgreSQL at {self.relay.backend}: {reason}")
            return
        self.move(Event.BACKEND_CONNECTED)
        self.backend.receive = self._authentication_from_backend
        self.backend.write(packet.encode())
        self.client.release(Hold.BUSY)
        self._authentication_from_client(b"")

    # -- authentication ----------------------------------------------------------------------------------------------

    def _authentication_from_client(self, data: bytes) -> None:
        framer = self.traffic.client
        framer.feed(data)
        if self.state is not State.AUTHENTICATION:
            return
        try:
            while framer.partial[:1] == b"p" and (found := framer.next()) is not None:
                _, message = found
                if self.backend_tls and authentication.binding_refused(message[5:]):
                    self.fail("28000", "login is bound to the TLS channel", _BINDING_HINT)
                    return
                self.backend.write(message)
        except m.ProtocolViolation as error:
            self.violated(error)
            return
        if framer.partial[:1] not in (b"", b"p"):
            self.client.hold(Hold.BUSY)  # sent ahead of being let in: waits

    def _authentication_from_backend(self, data: bytes) -> None:
        framer = self.traffic.backend
        framer.feed(data)
        try:
            while self.state is State.AUTHENTICATION and (found := framer.next()) is not None:
                kind, message = found
                body = message[5:]
                if kind == m.AUTHENTICATION:
                    message = authentication.without_channel_binding(body) or message
                    if authentication.is_ok(body) and self._timer is not None:
                        self._timer.cancel()
                elif kind == m.BACKEND_KEY_DATA:
                    self._key = int.from_bytes(body[:4], "big"), body[4:]
                    self.relay.cancels.add(*self._key, self)
                elif kind in (m.PARAMETER_STATUS, m.ERROR):
                    self.traffic.read(kind, body)
                elif kind == m.READY:
                    self._greet(body[0])
                    return
                self.client.write(message)
        except m.ProtocolViolation as error:
            self.violated(error)

    def _greet(self, status: int) -> None:
        self.move(Event.BACKEND_READY)
        self.traffic.note_ready(status)
        self.backend.hold(Hold.BUSY)
        self.client.hold(Hold.BUSY)
        self.traffic.client.limits = FRONTEND_LIMITS
        if self.replication or self.database in _TEMPLATES:
            self._begin(None)
        else:
            self.spawn(self._make_database_ready())

    async def _make_database_ready(self) -> None:
        try:
            warning = await self.relay.hooks.database_ready(self.database)
        except Exception as error:  # whatever the engine's trouble is, the client's database is still usable
            log.error("database not ready", database=self.database, exc_info=error)
            warning = f'the engine cannot work in database "{self.database}": {error}'
        if self.state is State.GREETING:
            self._begin(warning)

    def _begin(self, warning: str | None) -> None:
        if warning:
            self.client.write(m.notice_response("01000", warning))
        self.client.write(m.ready(self.traffic.status))
        self.move(Event.DATABASE_READY)
        self.pass_bytes()

    # -- relay -------------------------------------------------------------------------------------------------------

    def pass_bytes(self) -> None:
        """Let bytes pass, beginning with those that came meanwhile."""
        self.client.receive = self.from_client
        self.backend.receive = self.from_backend
        self.backend.release(Hold.BUSY | Hold.QUEUE)
        self.client.release(Hold.BUSY | Hold.QUEUE)
        if self.traffic.backend.partial:
            self.from_backend(b"")
        if self.traffic.client.partial and self.state is State.RELAY:
            self.from_client(b"")

    def from_client(self, data: bytes) -> None:
        try:
            passed = self.traffic.from_client(data)
        except m.ProtocolViolation as error:
            self.violated(error)
            return
        if passed:
            self.backend.write(passed)
        if self.traffic.attention is not None:
            self._attend(self.traffic.attention)

    def from_backend(self, data: bytes) -> None:
        try:
            passed = self.traffic.from_backend(data)
        except m.ProtocolViolation as error:
            self.violated(error)
            return
        if passed:
            self.client.write(passed)
        if self.traffic.attention is not None:
            self._attend(self.traffic.attention)

    def _attend(self, attention: Attention) -> None:
        self.traffic.attention = None
        self.move(Event.ATTENTION)
        self.dialogue = Dialogue(self)
        self.client.receive = self.dialogue.from_client
        self.backend.receive = self.dialogue.from_backend
        self.spawn(self._attended(self.dialogue, attention))

    async def _attended(self, dialogue: Dialogue, attention: Attention) -> None:
        try:
            await conduct(self, dialogue, attention)
        except BackendGone:
            self._lost_backend()
            return
        except m.ProtocolViolation as error:
            self.violated(error)
            return
        finally:
            self.dialogue = self.conductor = None
        dialogue.leave()
        self.move(Event.ATTENTION_DONE)
        self.pass_bytes()

    def _committed(self) -> None:
        self.relay.hooks.committed(self.database)

    async def settled(self) -> None:
        """Wait until no cancel request is on its way."""
        await self._settled.wait()

    async def cancel(self, request: startup.CancelRequest) -> None:
        """Cancel what the client waits for; new statements wait until the cancel has arrived."""
        if self.conductor is not None:
            if not self.conductor.cancel_work():
                return
        elif not self.traffic.outstanding and self.traffic.batch is None:
            return
        self._cancels += 1
        self._settled.clear()
        self.client.hold(Hold.CANCEL)
        try:
            await upstream.cancel(self.relay.backend, request)
        finally:
            self._cancels -= 1
            if not self._cancels:
                self._settled.set()
                self.client.release(Hold.CANCEL)
