"""Cancel requests: which session a key belongs to, and when a cancel must not be let through."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from server.intercept.engine_interface import Backend
from server.protocol.startup import CancelRequest
from server.relay.upstream import cancel


class Cancellable(Protocol):
    async def cancel(self, request: CancelRequest) -> None:
        """Cancel what the session is doing now, if that may be cancelled."""
        ...


class CancelRegistry:
    """The sessions of this process by the keys PostgreSQL gave them; a client gets PostgreSQL's own key.

    `elsewhere` has another process of the server carry a request out, and tells whether one of them knows the key.
    """

    def __init__(self, backend: Backend, elsewhere: Callable[[CancelRequest], Awaitable[bool]]):
        self._backend = backend
        self._elsewhere = elsewhere
        self._sessions: dict[tuple[int, bytes], Cancellable] = {}

    def add(self, pid: int, key: bytes, session: Cancellable) -> None:
        self._sessions[pid, key] = session

    def remove(self, pid: int, key: bytes, session: Cancellable) -> None:
        if self._sessions.get((pid, key)) is session:
            del self._sessions[pid, key]

    async def cancel(self, request: CancelRequest) -> None:
        """Carry out a CancelRequest. A key we do not know may be another server's before the same PostgreSQL."""
        if not await self.cancel_here(request) and not await self._elsewhere(request):
            await cancel(self._backend, request)

    async def cancel_here(self, request: CancelRequest) -> bool:
        """Carry it out if the key is that of a session of this process; whether it is."""
        session = self._sessions.get((request.pid, request.key))
        if session is not None:
            await session.cancel(request)
        return session is not None
