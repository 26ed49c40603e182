"""Connections through the relay as the user who is logged in, who may see there what every client of that user may."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from typing import Any

import psycopg
from psycopg import conninfo, pq, sql
from psycopg.rows import dict_row

from catalog.pinned_settings import PINNED

APPLICATION = "headwater console"
CONNECT_SECONDS = 10
STATEMENT_SECONDS = 30
"""For what a page shows."""
LOCK_SECONDS = 5
"""So long a page waits for a table that somebody has locked."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Login:
    """Who is logged in, and where. The password is here and nowhere else."""

    host: str
    port: int
    user: str
    database: str
    password: str = field(repr=False)

    async def connect(
        self, *, pinned: bool = True, statement_seconds: int = STATEMENT_SECONDS, lock_seconds: int = LOCK_SECONDS
    ) -> Connection:
        """A new connection (autocommit); 0 seconds are no limit. Raises psycopg.Error.

        With `pinned`, names mean PostgreSQL's own, so that no statement of the console's calls a function that somebody
        has put into a schema of the user's search_path.
        """
        # No file of the process's own user takes part: neither a password nor a service.
        parameters = conninfo.make_conninfo(
            host=self.host,
            port=self.port,
            user=self.user,
            dbname=self.database,
            password=self.password,
            passfile=os.devnull,
            sslmode="disable",  # to the same machine; the relay takes both
            gssencmode="disable",
            channel_binding="disable",
            connect_timeout=CONNECT_SECONDS,
            application_name=APPLICATION,
            client_encoding="utf8",
        )
        connection = await psycopg.AsyncConnection.connect(parameters, autocommit=True, row_factory=dict_row)
        try:
            settings = {"statement_timeout": f"{statement_seconds}s", "lock_timeout": f"{lock_seconds}s"}
            settings |= PINNED if pinned else {}
            calls = ", ".join(["pg_catalog.set_config(%s, %s, false)"] * len(settings))
            await connection.execute(sql.SQL(f"SELECT {calls}"), [each for pair in settings.items() for each in pair])
        except BaseException:
            await connection.close()
            raise
        return Connection(connection)


@dataclass(frozen=True, slots=True)
class Result:
    """A piece of what a statement gives: in single-row mode a row, and at the end none with the command tag."""

    columns: tuple[str, ...]
    rows: list[list[str | None]]
    tag: str | None


class Connection:
    """A connection of psycopg's that gives rows as JSON has them."""

    def __init__(self, connection: psycopg.AsyncConnection[Row]):
        self.raw = connection

    @property
    def usable(self) -> bool:
        return not self.raw.closed and not self.raw.broken

    async def rows(self, statement: str, parameters: Mapping[str, Any] | None = None) -> list[Row]:
        """Raises psycopg.Error."""
        cursor = await self.raw.execute(sql.SQL(statement), parameters or None)
        return [{name: as_json(value) for name, value in row.items()} for row in await cursor.fetchall()]

    async def results(self, statement: str) -> AsyncIterator[Result]:
        """What one statement gives, as it comes, with values as PostgreSQL writes them. Raises psycopg.Error.

        It is sent as it is, by the extended protocol: what has several statements is refused by PostgreSQL.
        """
        wire = self.raw.pgconn
        wire.send_query_params(statement.encode(), None)
        wire.set_single_row_mode()
        while (result := await self._next()) is not None:
            status = pq.ExecStatus(result.status)
            if status == pq.ExecStatus.FATAL_ERROR:
                raise psycopg.errors.error_from_result(result)
            if status in (pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_BOTH):
                raise psycopg.NotSupportedError("COPY is not done here; use psql, or a SELECT")
            fields = range(result.nfields)
            yield Result(
                tuple(_text(result.fname(place)) or "" for place in fields),
                [[_text(result.get_value(row, place)) for place in fields] for row in range(result.ntuples)],
                _text(result.command_status),
            )

    async def _next(self) -> pq.abc.PGresult | None:
        """The next result as soon as it is there; None at the end."""
        wire = self.raw.pgconn
        while wire.flush():
            await _ready(wire.socket, writing=True)
        while wire.is_busy():
            await _ready(wire.socket)
            wire.consume_input()
        return wire.get_result()

    def hang_up(self) -> None:
        """Have whoever waits for it find that it has ended.

        To close it would give its descriptor to a new connection while the event loop still waits for this one: it then
        aborts the process.
        """
        with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(self.raw.fileno())) as wire:
            wire.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End the connection at once, and with it what still runs in it."""
        self.raw.pgconn.finish()

    async def close(self) -> None:
        with suppress(psycopg.Error, OSError):
            await self.raw.close()


async def _ready(descriptor: int, *, writing: bool = False) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    add, remove = (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    add(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        remove(descriptor)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")


def as_json(value: Any) -> Any:
    """A value as JSON can say it: times as ISO 8601, intervals as seconds, numerics as text.

    >>> as_json(timedelta(seconds=1.5)), as_json(b"x"), as_json([date(2026, 1, 2)])
    (1.5, '\\\\x78', ['2026-01-02'])
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # neither NaN nor infinity is JSON
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return str(value)


def as_error(error: psycopg.Error) -> dict[str, str | None]:
    """What PostgreSQL has said, part by part."""
    said = error.diag
    return {
        "severity": said.severity or "ERROR",
        "sqlstate": said.sqlstate or error.sqlstate,
        "message": said.message_primary or _refusal(str(error)) or type(error).__name__,
        "detail": said.message_detail,
        "hint": said.message_hint,
        "position": said.statement_position,
    }


def _refusal(text: str) -> str:
    """The reason for which a login was refused, without the address of the relay, which libpq puts before it.

    >>> _refusal('connection failed: connection to server at "10.0.0.1", port 5432 failed: FATAL:  no entry')
    'no entry'
    >>> _refusal("something else")
    'something else'
    """
    told = text.removeprefix("connection failed: ")
    if told.startswith("connection to server at "):
        told = told.partition(" failed: ")[2]
    return told.removeprefix("FATAL:").strip()
