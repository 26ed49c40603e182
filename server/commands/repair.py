"""`headwater repair`: puts back what has been dropped or changed of the catalog in the databases behind the server.

A start of the server does the same. Like `headwater status` this looks at PostgreSQL directly, and installs nothing
where nothing is installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg

from catalog.install import examine, install
from catalog.session import SqlError
from catalog.systems import SYSTEMS, System
from engine.session.pool import DatabasePool, PooledSession
from server.commands.status import DATABASES
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory, Running, StartupError
from server.postgres.url import PostgresUrl


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found in a database, and what became of it."""

    database: str
    what: str
    repaired: bool

    def __str__(self) -> str:
        return f"{self.database}: {self.what}"


def repair(running: Running, data: DataDirectory, postgres: PostgresUrl | None, *, dry_run: bool) -> list[Finding]:
    """Repair the catalogs of all databases, or with `dry_run` only find out what that would be. Raises StartupError."""
    try:
        return asyncio.run(_repair(running, data, postgres, dry_run=dry_run))
    except (SqlError, OSError, asyncpg.PostgresError) as error:
        raise StartupError(
            f"could not ask the PostgreSQL behind the server: {error}",
            "Give its password in PGPASSWORD or PGPASSFILE, or the same --postgres as to the server.",
        ) from error


async def _repair(
    running: Running, data: DataDirectory, postgres: PostgresUrl | None, *, dry_run: bool
) -> list[Finding]:
    def login(database: str) -> dict[str, Any]:
        if running.postgres == "embedded":
            return {
                "host": str((data.path / "socket").resolve()),
                "port": EmbeddedPostgres.port,
                "user": running.user,
                "passfile": str(data.passfile),
            }
        return {"dsn": (postgres or PostgresUrl.parse(running.postgres)).dsn(database)}

    @asynccontextmanager
    async def session(database: str) -> AsyncIterator[PooledSession]:
        pool = DatabasePool(database, login, max_size=1)
        try:
            async with pool.session() as session:
                yield session
        finally:
            await pool.close()

    async with session(running.database) as first:
        names = [str(name) for (name,) in await first.fetch(DATABASES)]
    found: list[Finding] = []
    for name in names:
        async with session(name) as own:
            for system in SYSTEMS:
                found += await _repair_system(own, name, system, dry_run=dry_run)
    return found


async def _repair_system(session: PooledSession, database: str, system: System, *, dry_run: bool) -> list[Finding]:
    damaged = await examine(session, system) or []
    if dry_run or not damaged:
        return [Finding(database, str(one), False) for one in damaged]
    try:
        result = await install(session, system=system)
    except SqlError as error:
        return [Finding(database, f"{system.title} could not be repaired: {error.message}", False)]
    left = [one for one in damaged if one not in result.repaired]
    failed = [Finding(database, warning, False) for warning in result.warnings] if left else []
    return [Finding(database, str(one), True) for one in result.repaired] + failed
