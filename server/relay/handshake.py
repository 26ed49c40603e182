"""How a session begins: encryption, the startup message, authentication, and the engine's look at the database."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

import structlog

from server.protocol import authentication, startup
from server.protocol import messages as m
from server.protocol.state import Event, State
from server.relay import upstream
from server.relay.endpoints import PauseReason, ignore
from server.relay.session import RelaySession

log = structlog.get_logger(__name__)

_TEMPLATES = frozenset(("template0", "template1"))
_BINDING_HINT = (
    "The server reaches PostgreSQL by TLS, and a login cannot be bound to two TLS channels. Set"
    ' "channel_binding=disable" in the client\'s connection string, or let the server reach PostgreSQL'
    " by a Unix socket or with sslmode=disable."
)


_TRUST_HINT = (
    "PostgreSQL has let the server in without a password (trust, peer, ident or cert in pg_hba.conf), not the client."
    " Let pg_hba.conf ask for scram-sha-256 where the server connects, or, if everybody who reaches the server may log"
    " in as anybody, start it with --allow-trust."
)


class StartupHandshake:
    """Takes a session from its first byte to the state in which bytes pass."""

    def __init__(self, session: RelaySession, is_full: Callable[[], bool]):
        self.session = session
        self.is_full = is_full
        """Whether as many clients have a PostgreSQL connection as may have one."""
        self.backend_tls = False
        self._requests: set[startup.EncryptionRequest] = set()
        self._asked = False
        """Whether PostgreSQL waits for a password message."""
        self._proof_asked_for = False
        """Whether PostgreSQL has asked the client to prove who it is."""

    def begin(self) -> None:
        loop = asyncio.get_running_loop()
        self.session.timer = loop.call_later(self.session.relay.limits.startup_seconds, self._startup_expired)
        self.session.client.receive = self._startup

    def _startup_expired(self) -> None:
        if self.session.state in (State.STARTUP, State.SECURING):
            self.session.abort()
        else:
            self.session.fail("57014", "canceling authentication due to timeout")

    def _startup(self, data: bytes) -> None:
        framer = self.session.traffic.client
        framer.feed(data)
        try:
            while self.session.state is State.STARTUP and (found := startup.read(framer.partial)) is not None:
                packet, framer.partial = found
                if isinstance(packet, startup.EncryptionRequest):
                    self._encrypt(packet)
                elif isinstance(packet, startup.CancelRequest):
                    self.session.client.receive = ignore
                    self.session.spawn(self._pass_cancel(packet))
                    return
                else:
                    self._start(packet)
        except m.ProtocolViolation as error:
            self.session.violated(error)

    def _encrypt(self, packet: startup.EncryptionRequest) -> None:
        if packet in self._requests:
            raise m.ProtocolViolation("encryption was asked for twice")
        self._requests.add(packet)
        # What is already there was not encrypted: somebody may have put it there (CVE-2021-23214, CVE-2021-23222).
        if self.session.traffic.client.size:
            raise m.ProtocolViolation("received unencrypted data after encryption request")
        transport = self.session.client.transport
        assert transport is not None
        encrypted = transport.get_extra_info("ssl_object") is not None
        if packet.gss or encrypted or self.session.relay.tls is None:
            self.session.client.write(b"N")
            return
        self.session.move(Event.TLS_BEGINS)
        self.session.client.receive = ignore
        transport.pause_reading()
        self.session.client.write(b"S")
        self.session.spawn(self._secure(transport, self.session.relay.tls))

    async def _secure(self, plain: asyncio.Transport, context: ssl.SSLContext) -> None:
        self.session.client.receive = self._startup
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain,
                self.session.client,
                context,
                server_side=True,
                ssl_handshake_timeout=self.session.relay.limits.startup_seconds,
            )
        except (OSError, ssl.SSLError) as error:
            log.info("TLS handshake failed", client=self.session.client_address, error=str(error))
            secured = None
        if secured is None or self.session.state is State.CLOSED:
            self.session.abort()
            return
        self.session.client.attach(secured)
        self.session.move(Event.TLS_DONE)
        if self.session.traffic.client.size:  # came while the handshake was being finished
            self._startup(b"")

    async def _pass_cancel(self, request: startup.CancelRequest) -> None:
        await self.session.relay.cancels.cancel(request)
        self.session.close()

    def _start(self, packet: startup.StartupMessage) -> None:
        if self.is_full():
            self.session.fail("53300", "sorry, too many clients already")
            return
        self.session.move(Event.STARTUP_MESSAGE)
        self.session.database = packet.database
        self.session.replication = packet.replication
        self.session.client.hold(PauseReason.BUSY)
        self.session.client.receive = self._authentication_from_client
        self.session.traffic.authenticate(watching=not self.session.replication)
        if not self.session.replication:
            packet = packet.with_parameter(b"headwater.relay", b"on")
        self.session.spawn(self._connect(packet))

    async def _connect(self, packet: startup.StartupMessage) -> None:
        try:
            _, _, self.backend_tls = await upstream.connect(self.session.relay.backend, lambda: self.session.backend)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.session.fail("08006", f"could not connect to PostgreSQL at {self.session.relay.backend}: {reason}")
            return
        self.session.move(Event.BACKEND_CONNECTED)
        self.session.backend.receive = self._authentication_from_backend
        self.session.backend.write(packet.encode())
        self.session.client.release(PauseReason.BUSY)
        self._authentication_from_client(b"")

    # -- authentication ----------------------------------------------------------------------------------------------

    def _authentication_from_client(self, data: bytes) -> None:
        framer = self.session.traffic.client
        framer.feed(data)
        if self.session.state is not State.AUTHENTICATION:
            return
        try:
            while framer.partial[:1] == b"p" and (found := framer.next()) is not None:
                _, message = found
                if self.backend_tls and authentication.binding_refused(message[5:]):
                    self.session.fail("28000", "login is bound to the TLS channel", _BINDING_HINT)
                    return
                self._asked = False
                self.session.backend.write(message)
        except m.ProtocolViolation as error:
            self.session.violated(error)
            return
        if framer.partial[:1] not in (b"", b"p"):
            if self._asked:
                self.session.violated(
                    m.ProtocolViolation(f"expected password response, got message type {framer.partial[0]}")
                )
            self.session.client.hold(PauseReason.BUSY)  # sent ahead of being let in: waits

    def _authentication_from_backend(self, data: bytes) -> None:
        framer = self.session.traffic.backend
        framer.feed(data)
        try:
            while self.session.state is State.AUTHENTICATION and (found := framer.next()) is not None:
                kind, message = found
                body = message[5:]
                if kind == m.AUTHENTICATION:
                    message = authentication.without_channel_binding(body) or message
                    self._asked = authentication.asks(body)
                    self._proof_asked_for |= authentication.asks_for_proof(body)
                    if authentication.is_ok(body) and not (self._proof_asked_for or self.session.relay.allow_trust):
                        self.session.fail("28000", "PostgreSQL has not asked the client for a password", _TRUST_HINT)
                        return
                    if authentication.is_ok(body) and self.session.timer is not None:
                        self.session.timer.cancel()
                elif kind == m.BACKEND_KEY_DATA:
                    self.session.key = int.from_bytes(body[:4], "big"), body[4:]
                    self.session.relay.cancels.add(*self.session.key, self.session)
                elif kind in (m.PARAMETER_STATUS, m.ERROR):
                    self.session.traffic.read(kind, body)
                elif kind == m.READY:
                    self._greet(body[0])
                    return
                self.session.client.write(message)
                if self._asked:
                    self._authentication_from_client(b"")
        except m.ProtocolViolation as error:
            self.session.violated(error)

    def _greet(self, status: int) -> None:
        self.session.move(Event.BACKEND_READY)
        self.session.traffic.authenticated(status)
        self.session.backend.hold(PauseReason.BUSY)
        self.session.client.hold(PauseReason.BUSY)
        if self.session.replication or self.session.database in _TEMPLATES:
            self.session.begin(None)
        else:
            self.session.spawn(self._make_database_ready())

    def _note_what_the_database_has(self) -> None:
        relay, database = self.session.relay, self.session.database
        trusted, hidden = relay.hooks.is_trusted(database), relay.hidden_requests(database)
        self.session.traffic.database_ready(trusted=trusted, hidden=hidden)
        if trusted and not hidden.possible:
            relay.hooks.look_for_callers(database, hidden.expect)

    async def _make_database_ready(self) -> None:
        try:
            warning = await self.session.relay.hooks.database_ready(self.session.database)
            self._note_what_the_database_has()
        except Exception as error:  # whatever the engine's trouble is, the client's database is still usable
            log.error("database not ready", database=self.session.database, exc_info=error)
            warning = f'the engine cannot work in database "{self.session.database}": {error}'
            self.session.traffic.database_ready(trusted=False)
        if self.session.state is State.GREETING:
            self.session.begin(warning)
