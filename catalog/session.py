"""The SQL session: the one async interface through which catalog and engine speak to PostgreSQL.

There are two implementations: a relayed client connection (``server``), in the client's own transaction, and a
connection of the engine's pool (``engine``). Both report a database error as :class:`SqlError`.

Parameters are bound (``$1``), and every parameter is cast in the SQL text (``$1::text``), so that both
implementations infer the same type. Results are limited to the types of :data:`Value`; anything else
(timestamps, numeric, jsonb, snapshots) is cast to text in the query.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Sequence
from typing import Any, Protocol

Value = str | int | float | bool | None | list[str] | list[int]
Row = tuple[Any, ...]


class SqlError(Exception):
    """An error with an SQLSTATE, made by PostgreSQL or in PostgreSQL's style.

    ``message`` is lower case, has no full stop and quotes names; ``hint`` says what to do, where there is a way out.
    """

    def __init__(
        self,
        sqlstate: str,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        context: str | None = None,
    ):
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.detail = detail
        self.hint = hint
        self.context = context
        """Where PostgreSQL was, such as the line of a COPY."""
        self.action: str | None = None
        """What the refresh was about to do that it has ended, as its history says it."""

    @property
    def is_of_connection(self) -> bool:
        """Whether the connection, or PostgreSQL itself, has gone: nothing more can be done in this session."""
        return self.sqlstate.startswith(("08", "57P"))


class SqlSession(Protocol):
    """A connection to one database, inside a transaction or in autocommit."""

    async def fetch(self, sql: str, *args: Value) -> list[Row]:
        """Run one statement and return its rows as tuples of :data:`Value`. Raises SqlError."""
        ...

    async def execute(self, sql: str, *args: Value) -> str:
        """Run one statement and return its command tag. Raises SqlError, 42601 for several statements."""
        ...

    async def execute_later(self, sql: str, *args: Value) -> None:
        """Run one statement before the session's next one, or now: it need not be waited for.

        Where it fails, the next one is not run and raises its SqlError.
        """
        ...

    async def copy_in(self, schema: str, table: str, columns: Sequence[str], source: AsyncIterable[bytes]) -> int:
        """COPY CSV bytes (no header, NULL an unquoted empty field) into a table; returns the rows written."""
        ...

    async def keep_settings(self, role: str) -> None:
        """To be called before statements that run code of a role's: what it sets does not outlast this use.

        Raises SqlError.
        """
        ...


class ScriptSession(SqlSession, Protocol):
    """The session of an installation."""

    async def run_script(self, script: str) -> None:
        """Run the statements of a script that comes with the server: nothing that is read from a database may be in it.

        Raises SqlError.
        """
        ...


class RequestSession(SqlSession, Protocol):
    """The session on which an engine request is carried out, in the transaction of the requesting statement."""

    async def copy_from(self, command: str, source: AsyncIterable[bytes]) -> int:
        """Run a COPY … FROM STDIN with these bytes; returns the rows written. Raises SqlError with its `context`."""
        ...

    tag: str | None
    """The tag that completes the client's statement, where it is not to be PostgreSQL's own."""

    @property
    def database(self) -> str:
        """Name of the database the client is connected to."""
        ...

    @property
    def autocommit(self) -> bool:
        """True if the transaction is this one statement (the relay opened it), so that `restart` is allowed."""
        ...

    async def restart(self, isolation: str = "REPEATABLE READ") -> None:
        """COMMIT what has been done and BEGIN ISOLATION LEVEL `isolation`. Only where `autocommit`."""
        ...

    async def commit_before(self) -> bool:
        """COMMIT what has been done so far, and BEGIN anew, where no transaction block of the client's is open.

        Whether that was so. Raises SqlError.
        """
        ...

    async def abandon(self) -> None:
        """ROLLBACK what has been done since the last COMMIT, and BEGIN anew; only where `autocommit`.

        Works in an aborted transaction, and after the client has cancelled the statement. Raises SqlError.
        """
        ...
