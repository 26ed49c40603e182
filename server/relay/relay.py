"""The relay: gives each client that has come a session."""

from __future__ import annotations

import asyncio
import socket
import ssl

import structlog

from engine.session.liveness import keep_alive
from server.intercept.engine_interface import Backend, EngineInterface
from server.protocol.startup import TLS_HANDSHAKE
from server.protocol.state import State
from server.relay.context import Alone, Limits, RelayContext, Siblings
from server.relay.counts import RelayCounts
from server.relay.handshake import StartupHandshake
from server.relay.listener import BACKLOG, turn_away
from server.relay.measured_session import MeasuredSession
from server.relay.session import RelaySession
from server.relay.tls import ALPN

log = structlog.get_logger(__name__)

NEWCOMERS = 100
"""Connections above the limit that may still ask: they are told that it is reached, or cancel a statement."""

_LOOKS = 6
"""Looks at each peer in the time after which a silent one is given up."""
_TURN = 100
"""Sessions that are looked at in one turn of the event loop."""


class Relay:
    """Sessions in front of one PostgreSQL, for the connections that a `Listener` accepts.

    ``tls`` is a context from ``server.relay.tls.server_context``, None to refuse TLS. `measured`: how long clients wait
    is noted in `counts`.
    """

    def __init__(
        self,
        backend: Backend,
        hooks: EngineInterface,
        tls: ssl.SSLContext | None = None,
        limits: Limits | None = None,
        allow_trust: bool = False,
        *,
        measured: bool = False,
        siblings: Siblings | None = None,
    ):
        self.context = RelayContext(backend, hooks, tls, limits or Limits(), allow_trust, siblings or Alone())
        self.sessions: set[RelaySession] = set()
        self._kind = MeasuredSession if measured else RelaySession
        self._arrivals: set[asyncio.Task[None]] = set()
        self._watch: asyncio.Task[None] | None = None

    @property
    def counts(self) -> RelayCounts:
        return self.context.counts

    @property
    def full(self) -> bool:
        """Whether as many clients have a PostgreSQL connection as may have one."""
        return sum(1 for session in self.sessions if session.started) >= self.context.limits.max_connections

    def start(self) -> None:
        """Look after the sessions from now on."""
        self._watch = asyncio.get_running_loop().create_task(self._look_for_silence(), name="headwater relay silence")

    def admit(self, accepted: socket.socket) -> None:
        """A client has connected; the socket is the relay's from now on. Never blocks."""
        task = asyncio.get_running_loop().create_task(self._admit(accepted))
        self._arrivals.add(task)
        task.add_done_callback(self._arrivals.discard)

    async def stop(self) -> None:
        """End all sessions, as PostgreSQL does at a fast shutdown. Nobody is admitted any more."""
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
        self.context.siblings.departed()

    async def _admit(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        accepted.setblocking(False)
        keep_alive(accepted, idle=60, interval=10, count=6)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if len(self.sessions) >= self.context.limits.max_connections + NEWCOMERS:
            self.counts.errors["53"] += 1
            await turn_away(accepted, patient=len(self._arrivals) <= BACKLOG)
            self.context.siblings.departed()
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
