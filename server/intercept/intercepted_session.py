"""What interceptors, and subscribers behind them, have of the session that they work for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from server.intercept.engine_interface import EngineInterface
from server.protocol.traffic import Traffic
from server.relay.endpoints import Endpoint
from server.subscriptions.session_subscriptions import SessionSubscriptions


class CancellableWork(Protocol):
    """An interceptor at work."""

    def cancel_work(self) -> bool:
        """Cancel it; returns whether PostgreSQL, too, is at work for it and is to be cancelled."""
        ...


@dataclass(slots=True)
class InterceptedSession:
    """One session for as long as it is intercepted."""

    database: str
    client: Endpoint
    traffic: Traffic
    hooks: EngineInterface
    settled: Callable[[], Awaitable[None]]
    """Waits until no cancel request is on its way."""
    subscriptions: Callable[[], SessionSubscriptions]
    interceptor: CancellableWork | None = None
    """The interceptor at work, for cancel requests."""
