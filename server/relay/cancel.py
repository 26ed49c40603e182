"""Cancel requests: which session a key belongs to, and when a cancel must not be let through."""

from __future__ import annotations

from typing import Protocol

from server.intercept.engine_interface import Backend
from server.protocol.startup import CancelRequest
from server.relay.upstream import cancel


class Cancellable(Protocol):
    async def cancel(self, request: CancelRequest) -> None:
        """Cancel what the session is doing now, if that may be cancelled."""
        ...


class CancelRegistry:
    """The sessions of this server by the keys PostgreSQL gave them; a client gets PostgreSQL's own key."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self._sessions: dict[tuple[int, bytes], Cancellable] = {}

    def add(self, pid: int, key: bytes, session: Cancellable) -> None:
        self._sessions[pid, key] = session

    def remove(self, pid: int, key: bytes, session: Cancellable) -> None:
        if self._sessions.get((pid, key)) is session:
            del self._sessions[pid, key]

    async def cancel(self, request: CancelRequest) -> None:
        """Carry out a CancelRequest. A key we do not know may be another server's before the same PostgreSQL."""
        session = self._sessions.get((request.pid, request.key))
        if session is None:
            await cancel(self._backend, request)
        else:
            await session.cancel(request)
