"""What a subscriber needs of the interceptor whose batch it answers."""

from __future__ import annotations

from typing import Protocol

from catalog.session import SqlError
from server.intercept.intercepted_session import InterceptedSession
from server.intercept.message_stream import MessageStream
from server.intercept.relayed_session import BackendError, RelayedSession
from server.protocol.traffic import Traffic


class Cancellable(Protocol):
    """An answer that may be cancelled."""

    def cancel(self) -> bool:
        """Cancel it; returns whether PostgreSQL, too, is at work for it and is to be cancelled."""
        ...


class AnsweredBatch(Protocol):
    """The interceptor of the batch, see ``server.intercept.base``."""

    session: InterceptedSession
    dialogue: MessageStream
    traffic: Traffic
    status: int
    held: bytes | None
    subscriber: Cancellable | None

    @property
    def backslashes(self) -> bool: ...

    @staticmethod
    def ours(*commands: bytes) -> bytes: ...

    async def exchange(self, messages: bytes, *, flush: bool = False) -> list[tuple[int, bytes]]: ...

    async def inject(self, *commands: bytes) -> str | BackendError: ...

    async def abort(self, session: RelayedSession, error: SqlError) -> SqlError: ...


class AnsweredExtendedBatch(AnsweredBatch, Protocol):
    """The interceptor of a batch of the extended protocol, see ``server.intercept.extended``."""

    skipping: bool
    ran: int

    def nothing_ran(self) -> bool: ...

    async def open(self) -> None: ...

    async def fail_batch(self) -> None: ...
