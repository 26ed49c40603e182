"""`headwater doctor`: whether Headwater can work in front of a PostgreSQL, and what to do where it cannot.

The checks are in `doctor_checks`. Each runs in a READ ONLY transaction of its own, which is rolled back: nothing is
changed, and one that fails does not keep the others from being made.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import psycopg
from rich.console import Console
from rich.markup import escape

from catalog.session import SqlError
from engine.session.pool import DatabasePool, PooledSession
from server.commands.doctor_checks import CHECKS, Check, Finding, Outcome, Subject
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory, Running, StartupError
from server.postgres.url import PostgresUrl

LONG_TRANSACTION = timedelta(minutes=5)
COLOURS = {Outcome.OK: "green", Outcome.WARNING: "yellow", Outcome.ERROR: "red"}


def postgres_of(running: Running, data: DataDirectory) -> PostgresUrl:
    """The PostgreSQL behind a running server; the URL of one of the user's own has no password in it."""
    if running.postgres != "embedded":
        return PostgresUrl.parse(running.postgres)
    socket = str((data.path / "socket").resolve())
    parameters = {
        "host": socket,
        "port": str(EmbeddedPostgres.port),
        "user": running.user,
        "dbname": running.database,
        "passfile": str(data.passfile),
    }
    return PostgresUrl(socket, EmbeddedPostgres.port, running.user, running.database, parameters)


def examine(url: PostgresUrl, long_transaction: timedelta = LONG_TRANSACTION) -> list[Finding]:
    """What all checks find in the database of `url`, in their order; a transaction is long from that age on.

    Where one cannot connect, or not to PostgreSQL itself, that is the only finding.
    """
    try:
        version = url.check()
    except StartupError as error:
        return [Finding("connection", Outcome.ERROR, error.message, error.hint or "See the message.")]
    found = [Finding("connection", Outcome.OK, f"PostgreSQL {version} answers, and no pooler is in between")]
    return found + asyncio.run(_examine(Subject(url, long_transaction)))


async def _examine(subject: Subject) -> list[Finding]:
    def login(database: str) -> dict[str, Any]:
        return {"dsn": subject.url.dsn(database)}

    pool = DatabasePool(subject.url.database, login, max_size=1)
    found: list[Finding] = []
    try:
        async with pool.session() as session:
            for name, check in CHECKS.items():
                found += await _run(session, name, check, subject)
    except SqlError as error:
        found.append(Finding("connection", Outcome.ERROR, error.message, error.hint or "Try again."))
    finally:
        await pool.close()
    return found


async def _run(session: PooledSession, name: str, check: Check, subject: Subject) -> list[Finding]:
    """The findings of one check; one that the role may not make is a warning, and says so."""
    await session.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY")
    try:
        return [Finding(name, *found) for found in await check(session, subject)]
    except psycopg.Error as error:  # of a further connection
        return [Finding(name, Outcome.WARNING, f"not checked: {' '.join(str(error).split())}", "Try again.")]
    except SqlError as error:
        if error.is_of_connection:
            raise
        return [Finding(name, Outcome.WARNING, f"not checked: {error.message}", error.hint or "Check as a superuser.")]
    finally:
        await session.execute("ROLLBACK")


def passed(found: list[Finding]) -> bool:
    """Whether there is no error among the findings."""
    return all(one.status != Outcome.ERROR for one in found)


def as_json(url: PostgresUrl, found: list[Finding]) -> str:
    """The findings for programs: the URL without its password, whether all is well, and each check."""
    checks = [asdict(one) for one in found]
    return json.dumps({"postgres": url.dsn(with_password=False), "ok": passed(found), "checks": checks}, indent=2)


def show(url: PostgresUrl, found: list[Finding], console: Console) -> None:
    """Print a line for each finding, and below it what to do."""
    console.print(f"[bold]{escape(url.dsn(with_password=False))}[/]", highlight=False, soft_wrap=True)
    for one in found:
        mark = f"[{COLOURS[one.status]}]{one.status:<7}[/]"
        console.print(f"{mark} {one.check}: {escape(one.message)}", highlight=False, soft_wrap=True)
        if one.todo:
            console.print(f"        {escape(one.todo)}", highlight=False, soft_wrap=True)
