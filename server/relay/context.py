"""What all sessions of a relay share."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from server.intercept.engine_interface import Backend, EngineInterface
from server.protocol.startup import CancelRequest
from server.protocol.statement_registry import HiddenRequests
from server.relay.cancel import CancelRegistry
from server.relay.counts import RelayCounts


@dataclass(frozen=True, slots=True)
class Limits:
    max_connections: int = 1000
    startup_seconds: float = 60.0
    """Time a client has from connecting to being authenticated."""
    linger_seconds: float = 10.0
    """Time a client has to read what was still sent to it when its session ended."""
    silent_seconds: float = 60.0
    """Time after which a peer is given up that acknowledges nothing of what is sent to it."""


class Siblings(Protocol):
    """The other processes that relay for the same server."""

    async def cancel(self, request: CancelRequest) -> bool:
        """Have one of them carry out a cancel request; whether the key is that of one of their sessions."""
        ...

    def hidden_requests_found(self, database: str) -> None:
        """Statements of a database may make requests that they do not name. Never blocks."""
        ...

    def departed(self) -> None:
        """A connection that was passed on to this process has ended. Never blocks."""
        ...


class Alone:
    """There are none."""

    async def cancel(self, request: CancelRequest) -> bool:
        return False

    def hidden_requests_found(self, database: str) -> None:
        return None

    def departed(self) -> None:
        return None


class RelayContext:
    """The PostgreSQL behind a relay, its engine, its limits, and the work that outlives sessions."""

    def __init__(
        self,
        backend: Backend,
        hooks: EngineInterface,
        tls: ssl.SSLContext | None,
        limits: Limits,
        allow_trust: bool,
        siblings: Siblings,
    ):
        self.backend = backend
        self.hooks = hooks
        self.tls = tls
        self.limits = limits
        self.allow_trust = allow_trust
        """Whether clients may log in without having been asked for anything."""
        self.siblings = siblings
        self.cancels = CancelRegistry(backend, siblings.cancel)
        self.counts = RelayCounts()
        self._hidden: dict[str, HiddenRequests] = {}
        self.farewells: set[asyncio.Task[None]] = set()
        """Tasks that outlive their sessions."""

    def hidden_requests(self, database: str) -> HiddenRequests:
        """What all sessions of a database know about requests that no statement names."""
        if (known := self._hidden.get(database)) is None:
            known = HiddenRequests(found=partial(self.siblings.hidden_requests_found, database))
            self._hidden[database] = known
        return known

    def outlive(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that may end after the session that began it."""
        task = asyncio.get_running_loop().create_task(work)
        self.farewells.add(task)
        task.add_done_callback(self.farewells.discard)
