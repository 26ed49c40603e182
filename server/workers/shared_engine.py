"""The engine as a process that relays has it: what clients ask for is done there, the rest in the main process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from catalog.session import RequestSession
from engine.service import Engine
from engine.subscribe import SubscriptionHub
from server.protocol.startup import CancelRequest
from server.workers.channel import Channel, ChannelClosed


@dataclass(slots=True)
class SharedEngine:
    """Implements the relay's `EngineInterface` and its `Siblings` for one of several processes.

    `engine` carries out what a client asks for, and has its subscriptions; it does no work of its own (`idle`). What
    others are woken by, and what they must know before this process goes on, is said over the channel.
    """

    engine: Engine
    channel: Channel
    _committed: set[str] = field(default_factory=set)
    """Databases of whose commits the main process has not been told."""
    _sent: set[str] = field(default_factory=set)

    async def database_ready(self, database: str) -> str | None:
        if database not in self.engine.pools:  # the main process installs what is missing, and begins its work there
            await self.channel.ask("database_ready", database)
        return await self.engine.database_ready(database)

    def is_trusted(self, database: str) -> bool:
        return self.engine.is_trusted(database)

    def uninstalled(self, database: str) -> str | None:
        return self.engine.uninstalled(database)

    def look_for_callers(self, database: str, found: Callable[[], None]) -> None:
        self.engine.look_for_callers(database, found)

    async def carry_out(self, session: RequestSession) -> None:
        await self.engine.carry_out(session)

    def committed(self, database: str) -> None:
        self.engine.committed(database)
        self._note(self._committed, database)

    def sent(self, database: str) -> None:
        self._note(self._sent, database)

    async def subscriptions(self, database: str) -> SubscriptionHub:
        self.channel.tell("subscribed", database)
        return await self.engine.subscriptions(database)

    async def release_database(self, database: str, role: str) -> None:
        elsewhere = self.channel.ask("release_database", database, role)
        await asyncio.gather(self.engine.release_database(database, role), elsewhere)

    async def cancel(self, request: CancelRequest) -> bool:
        try:
            return bool(await self.channel.ask("cancel", request))
        except ChannelClosed:
            return False

    def expect(self, database: str) -> None:
        """A client has been given what is to be looked after (`Engine.expecting`)."""
        with suppress(ChannelClosed):
            self.channel.tell("expect", database)

    def hidden_requests_found(self, database: str) -> None:
        with suppress(ChannelClosed):
            self.channel.tell("hidden_requests_found", database)

    def departed(self) -> None:
        with suppress(ChannelClosed):
            self.channel.tell("departed")

    def _note(self, databases: set[str], database: str) -> None:
        """Tell of it at the end of this turn of the event loop: then there may be more of the same."""
        if not self._committed and not self._sent:
            asyncio.get_running_loop().call_soon(self._tell)
        databases.add(database)

    def _tell(self) -> None:
        committed, sent = self._committed, self._sent
        self._committed, self._sent = set(), set()
        with suppress(ChannelClosed):
            self.channel.tell("ended", committed, sent)
