"""The two ends of a session: asyncio protocols that only pass on what happens, and slow each other down.

Back-pressure: while a side's transport cannot write, reading from the *other* side pauses. Each direction has
only its own sink to wait for, so that the relay adds no deadlock to those the two peers could make without it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from enum import IntFlag
from typing import cast

from engine.session.silence import Silence, silent_for

HIGH_WATER = 256 * 1024
"""Bytes waiting to be written on one side from which on the other side is no longer read."""


class PauseReason(IntFlag):
    """Why a side is not being read."""

    SLOW_PEER = 1
    BUSY = 2
    """The session cannot do anything with more bytes yet."""
    QUEUE = 4
    """Enough bytes wait to be conducted."""
    CANCEL = 8
    """A cancel request is on its way to PostgreSQL: no new statement may overtake it."""
    TURN = 16
    """So many messages wait that other sessions have their turns first."""
    ANSWERS = 32
    """So many batches have been passed on that PostgreSQL answers some of them first."""


def ignore(data: bytes) -> None:
    """Bytes that come when nobody wants them any more."""


class Endpoint(asyncio.Protocol):
    """One end. ``receive`` is exchanged as the session changes its state; ``lost`` is called at the end."""

    def __init__(self, lost: Callable[[], None]):
        self.peer: Endpoint | None = None
        """The other end of the session."""
        self.transport: asyncio.Transport | None = None
        self.receive: Callable[[bytes], None] = ignore
        self._lost = lost
        self.descriptor = -1
        """The socket's, where what is written need not be encrypted."""
        self.clogged = False
        """Whether the transport may still have bytes to write."""
        self.holds = PauseReason(0)
        self.slow: asyncio.Future[None] | None = None
        """Done when the transport takes bytes again; None while it does."""
        self._silence = Silence()
        self.received = 0
        """Bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.attach(cast(asyncio.Transport, transport))  # uvloop's are, without saying so

    def attach(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        plain = transport.get_extra_info("ssl_object") is None
        self.descriptor = transport.get_extra_info("socket").fileno() if plain else -1
        transport.set_write_buffer_limits(HIGH_WATER)
        if self.holds:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        self.receive(data)

    def write(self, data: bytes) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.clogged = True
            self.transport.write(data)

    def write_at_once(self, data: bytes) -> None:
        """Write without waiting for the end of the event loop's turn, as far as the socket takes it.

        For single chunks; what consists of many small messages is better collected by the transport.
        """
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self.descriptor >= 0 and not (self.clogged and transport.get_write_buffer_size()):
            try:
                written = os.write(self.descriptor, data)
            except OSError:  # takes nothing now, or is broken: the transport knows what to do
                written = 0
            if written == len(data):
                self.clogged = False
                return
            data = data[written:]
        self.clogged = True
        transport.write(data)

    async def drained(self) -> None:
        """Wait until the transport takes bytes again."""
        if self.slow is not None:
            await self.slow

    def hold(self, why: PauseReason) -> None:
        if not self.holds and self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()
        self.holds |= why

    def release(self, why: PauseReason) -> None:
        if not self.holds & why:
            return
        self.holds &= ~why
        if not self.holds and self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_writing(self) -> None:
        if self.slow is None:
            self.slow = asyncio.get_running_loop().create_future()
        if self.peer is not None:
            self.peer.hold(PauseReason.SLOW_PEER)

    def resume_writing(self) -> None:
        if self.slow is not None and not self.slow.done():
            self.slow.set_result(None)
        self.slow = None
        if self.peer is not None:
            self.peer.release(PauseReason.SLOW_PEER)

    def silent_for(self) -> float:
        """Seconds for which the peer has acknowledged nothing of what was sent to it; 0 where it owes nothing."""
        return silent_for(self._silence, self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.slow is not None and not self.slow.done():
            self.slow.set_result(None)  # nobody shall wait for a connection that is gone
        self.slow = None
        self.transport = None
        self._lost()
