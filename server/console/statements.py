"""The SQL pane: one statement, in a session of its own, with the user's rights and settings."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg

from server.console.connections import Connection, Login, as_error

MOST_ROWS = 1000
MOST_BYTES = 4 << 20
"""Of the rows that are shown; those after it are counted."""
SECONDS = 30
"""For a statement; the server ends it then."""
MOST_NOTICES = 100
GRACE_SECONDS = 3.0
"""What does not heed the time limit, as SUBSCRIBE, is ended so much later."""


class Result:
    """What a statement has given so far."""

    def __init__(self) -> None:
        self.columns: list[str] = []
        self.rows: list[list[str | None]] = []
        self.count = 0
        self.notices: list[dict[str, str | None]] = []
        self._bytes = 0

    def notice(self, said: psycopg.errors.Diagnostic) -> None:
        if len(self.notices) < MOST_NOTICES:
            self.notices.append(
                {
                    "severity": said.severity,
                    "message": said.message_primary,
                    "detail": said.message_detail,
                    "hint": said.message_hint,
                }
            )

    def row(self, values: list[str | None]) -> None:
        self.count += 1
        if len(self.rows) < MOST_ROWS and self._bytes < MOST_BYTES:
            self.rows.append(values)
            self._bytes += sum(len(value) for value in values if value is not None)


async def run(login: Login, statement: str) -> dict[str, Any]:
    """Its rows as PostgreSQL writes them, notices and the command tag; or the error, with what came before it."""
    began = time.monotonic()
    found = Result()
    tag, error = None, None
    connection = await login.connect(pinned=False, statement_seconds=SECONDS, lock_seconds=0)
    try:
        async with asyncio.timeout(SECONDS + GRACE_SECONDS):
            tag = await _execute(connection, statement, found)
    except psycopg.Error as failed:
        error = as_error(failed)
    except TimeoutError:
        error = {
            "severity": "ERROR",
            "sqlstate": "57014",
            "message": f"the statement took longer than {SECONDS} s and was ended",
        }
    finally:
        connection.cut()
    return {
        "columns": found.columns,
        "rows": found.rows,
        "count": found.count,
        "tag": tag,
        "notices": found.notices,
        "error": error,
        "ms": (time.monotonic() - began) * 1000,
    }


async def _execute(connection: Connection, statement: str, found: Result) -> str | None:
    """Run it, keeping what it gives row by row; returns the command tag. Raises psycopg.Error."""
    connection.raw.add_notice_handler(found.notice)
    tag = None
    async for result in connection.results(statement):
        found.columns = list(result.columns)
        for row in result.rows:
            found.row(row)
        tag = result.tag or tag
    return tag
