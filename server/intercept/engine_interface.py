"""What the relay asks of the engine, and where its PostgreSQL is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from catalog.session import RequestSession, SqlError
from engine.subscribe import SubscriptionHub


@dataclass(frozen=True, slots=True)
class Backend:
    """The address of a PostgreSQL: a TCP host, or the directory of its Unix socket."""

    host: str | None = None
    port: int = 5432
    unix_socket_dir: str | Path | None = None
    sslmode: str = "disable"
    """As libpq's ``sslmode``; a Unix socket never uses TLS."""
    sslrootcert: str | Path | None = None

    def __str__(self) -> str:
        return f"{self.unix_socket_dir or self.host}:{self.port}"


class EngineInterface(Protocol):
    """The engine as the relay calls it."""

    async def database_ready(self, database: str) -> str | None:
        """Called when a client has logged in, before it may send anything. Returns a warning for it, or None."""
        ...

    def is_trusted(self, database: str) -> bool:
        """Whether functions of the catalog may be called for a client: nobody else has put something in their place."""
        ...

    def uninstalled(self, database: str) -> str | None:
        """What is told of extensions that somebody has taken out of the database, None if nobody has."""
        ...

    def look_for_callers(self, database: str, found: Callable[[], None]) -> None:
        """Call `found` if a database has something that may make requests without being named by statements.

        At once if that is known, else as soon as it is found out. Never blocks.
        """
        ...

    async def carry_out(self, session: RequestSession) -> None:
        """Carry out the pending requests of the session's transaction. Raises SqlError."""
        ...

    def committed(self, database: str) -> None:
        """A transaction that changed data has committed. Never blocks."""
        ...

    def sent(self, database: str) -> None:
        """A session that sends events to queues or makes registers has ended a transaction. Never blocks."""
        ...

    async def subscriptions(self, database: str) -> SubscriptionHub:
        """The subscriptions of a database. Raises SqlError if there can be none."""
        ...

    async def release_database(self, database: str, role: str) -> None:
        """Close the engine's own connections to the database: this role is about to drop, rename or copy it."""
        ...


class NoEngine:
    """Hooks that do nothing: the server as a plain relay."""

    async def database_ready(self, database: str) -> str | None:
        return None

    def is_trusted(self, database: str) -> bool:
        return True

    def uninstalled(self, database: str) -> str | None:
        return None

    def look_for_callers(self, database: str, found: Callable[[], None]) -> None:
        return None

    async def carry_out(self, session: RequestSession) -> None:
        return None

    def committed(self, database: str) -> None:
        return None

    def sent(self, database: str) -> None:
        return None

    async def subscriptions(self, database: str) -> SubscriptionHub:
        raise SqlError("0A000", "SUBSCRIBE is not supported without the engine")

    async def release_database(self, database: str, role: str) -> None:
        return None
