"""The relay: listens for clients and gives each a session."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

import structlog

from engine.session.liveness import keep_alive
from server.intercept.engine_interface import Backend, EngineInterface
from server.protocol.messages import error_response
from server.protocol.startup import MAX_LENGTH, TLS_HANDSHAKE
from server.protocol.state import State
from server.relay.context import Limits, RelayContext
from server.relay.counts import RelayCounts
from server.relay.handshake import StartupHandshake
from server.relay.measured_session import MeasuredSession
from server.relay.session import RelaySession
from server.relay.tls import ALPN

log = structlog.get_logger(__name__)

_BACKLOG = 512
_PAUSE_SECONDS = 0.5
_NEWCOMERS = 100
"""Connections above the limit that may still ask: they are told that it is reached, or cancel a statement."""

_LOOKS = 6
"""Looks at each peer in the time after which a silent one is given up."""
_TURN = 100
"""Sessions that are looked at in one turn of the event loop."""


class Relay:
    """A listening server in front of one PostgreSQL.

    ``tls`` is a context from ``server.relay.tls.server_context``, None to refuse TLS. Port 0 takes any free port.
    `measured`: how long clients wait is noted in `counts`.
    """

    def __init__(
        self,
        backend: Backend,
        hooks: EngineInterface,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 7432,
        limits: Limits | None = None,
        allow_trust: bool = False,
        *,
        measured: bool = False,
    ):
        self.host = host
        self.port = port
        self.context = RelayContext(backend, hooks, tls, limits or Limits(), allow_trust)
        self.sessions: set[RelaySession] = set()
        self._kind = MeasuredSession if measured else RelaySession
        self._listeners: list[socket.socket] = []
        self._arrivals: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    @property
    def counts(self) -> RelayCounts:
        return self.context.counts

    @property
    def full(self) -> bool:
        """Whether as many clients have a PostgreSQL connection as may have one."""
        return sum(1 for session in self.sessions if session.started) >= self.context.limits.max_connections

    async def start(self) -> None:
        """Listen. Raises OSError if the address cannot be used."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                listener = socket.socket(family, kind, protocol)
                self._listeners.append(listener)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.setblocking(False)
                listener.bind((address[0], self.port, *address[2:]))
                self.port = listener.getsockname()[1]
                listener.listen(_BACKLOG)
                loop.add_reader(listener.fileno(), self._accept, listener)
        except OSError:
            self._stop_listening()
            raise
        self._watch = loop.create_task(self._look_for_silence(), name="headwater relay silence")

    async def stop(self) -> None:
        """Stop listening and end all sessions, as PostgreSQL does at a fast shutdown."""
        self._stop_listening()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait([self._watch])
        for task in list(self._arrivals):
            task.cancel()
        for session in list(self.sessions):
            session.fail("57P01", "terminating connection due to administrator command")
        waiting = [session.ended for session in self.sessions]
        if waiting:
            await asyncio.wait(waiting, timeout=self.context.limits.linger_seconds / 4)
        for session in list(self.sessions):
            session.abort()
        if self.context.farewells:
            await asyncio.wait(self.context.farewells, timeout=self.context.limits.linger_seconds / 4)

    async def _look_for_silence(self) -> None:
        """End the sessions whose peers are gone without a word."""
        while True:
            await asyncio.sleep(self.context.limits.silent_seconds / _LOOKS)
            for number, session in enumerate(tuple(self.sessions), 1):
                session.end_if_silent(self.context.limits.silent_seconds)
                if number % _TURN == 0:
                    await asyncio.sleep(0)

    def _stop_listening(self) -> None:
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_BACKLOG):
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptors left: some may be free again soon
                log.error("cannot accept a connection", error=str(error))
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener.fileno())
                loop.call_later(_PAUSE_SECONDS, self._accept_again, listener)
                return
            task = asyncio.get_running_loop().create_task(self._admit(accepted))
            self._arrivals.add(task)
            task.add_done_callback(self._arrivals.discard)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener.fileno(), self._accept, listener)

    async def _turn_away(self, accepted: socket.socket) -> None:
        """Say that there are too many clients, and give this one time to read it: who closes first takes it back."""
        with accepted, suppress(OSError, TimeoutError):
            self.counts.errors["53"] += 1
            accepted.send(error_response("53300", "sorry, too many clients already", severity="FATAL"))
            accepted.shutdown(socket.SHUT_WR)
            if len(self._arrivals) <= _BACKLOG:
                async with asyncio.timeout(_PAUSE_SECONDS):
                    while await asyncio.get_running_loop().sock_recv(accepted, MAX_LENGTH):
                        pass

    def _session(self) -> RelaySession:
        session = self._kind(self.context)
        self.sessions.add(session)
        self.counts.connections += 1
        session.ended.add_done_callback(lambda _: self._ended(session))
        StartupHandshake(session, lambda: self.full).begin()
        return session

    def _ended(self, session: RelaySession) -> None:
        self.sessions.discard(session)
        self.counts.statements += session.traffic.finished
        self.counts.from_client += session.client.received
        self.counts.from_postgres += session.backend.received

    async def _admit(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        accepted.setblocking(False)
        keep_alive(accepted, idle=60, interval=10, count=6)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.sessions) >= self.context.limits.max_connections + _NEWCOMERS:
            await self._turn_away(accepted)
            return
        session = self._session()
        try:
            tls = None
            if self.context.tls is not None:
                async with asyncio.timeout(self.context.limits.startup_seconds):
                    if await _first_byte(accepted) == TLS_HANDSHAKE:
                        tls = self.context.tls
            transport, _ = await loop.connect_accepted_socket(
                lambda: session.client,
                accepted,
                ssl=tls,
                ssl_handshake_timeout=self.context.limits.startup_seconds if tls else None,
            )
            if session.state is State.CLOSED:
                transport.abort()
            elif tls is not None:
                tunnel = transport.get_extra_info("ssl_object")
                if tunnel is None or tunnel.selected_alpn_protocol() != ALPN:
                    session.fail("08P01", "direct TLS connection without ALPN protocol negotiation")
        except (OSError, TimeoutError) as error:
            client = session.client_address or _address(accepted)
            log.info("connection not established", client=client, error=str(error) or type(error).__name__)
            session.abort()
            accepted.close()
        except asyncio.CancelledError:
            session.abort()
            accepted.close()
            raise


async def _first_byte(accepted: socket.socket) -> int | None:
    """The first byte the client sends, which stays in the socket; None at its end."""
    loop = asyncio.get_running_loop()
    descriptor = accepted.fileno()
    arrival = asyncio.Event()
    loop.add_reader(descriptor, arrival.set)
    try:
        await arrival.wait()
    finally:
        loop.remove_reader(descriptor)
    first = accepted.recv(1, socket.MSG_PEEK)
    return first[0] if first else None


def _address(connection: socket.socket) -> str:
    try:
        host, port, *_ = connection.getpeername()
    except OSError:  # it has gone
        return ""
    return f"{host}:{port}"
