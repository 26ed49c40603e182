"""Small things done inside a session's transaction: settings and roles for a while, savepoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from catalog.session import SqlError, SqlSession
from engine.compile.pool import on_behalf_of

A = TypeVar("A")
B = TypeVar("B")


_SET = "SELECT pg_catalog.set_config($1::pg_catalog.text, $2::pg_catalog.text, true)"
# What a subquery in FROM returns is computed before the outer list; OFFSET keeps it one. What is so already is not set.
_LOOK_AND_SET = """
SELECT before.value,
       CASE WHEN before.value OPERATOR(pg_catalog.<>) $2::pg_catalog.text
            THEN pg_catalog.set_config($1::pg_catalog.text, $2::pg_catalog.text, true) END
FROM (SELECT coalesce(pg_catalog.current_setting($1::pg_catalog.text, true), '') AS value OFFSET 0) AS before
"""


@asynccontextmanager
async def local_setting(session: SqlSession, name: str, value: str) -> AsyncIterator[None]:
    """Set a parameter for the time of the block, inside the session's transaction.

    On an error the transaction is aborted, and PostgreSQL itself brings the old value back.
    """
    ((before, _),) = await session.fetch(_LOOK_AND_SET, name, value)
    yield
    if before != value:
        await session.execute_later(_SET, name, before)


@asynccontextmanager
async def set_role(session: SqlSession, role: str, *, current: str | None = None) -> AsyncIterator[None]:
    """Have the block's statements run with a role's rights.

    They run no code of users, but inside `pgtrickle._run`. What the block compiles is compiled on behalf of the role.

    `current` is the role that the session acts as, where the caller knows it.

    Raises SqlError 42501 if the session's user is not a member of the role.
    """
    if current is None:
        current = (await session.fetch("SELECT current_user::text"))[0][0]
    await session.keep_settings(role)
    with on_behalf_of(role):
        if current == role:
            yield
            return
        async with local_setting(session, "role", role):
            yield


@asynccontextmanager
async def savepoint(session: SqlSession) -> AsyncIterator[None]:
    """A savepoint around the block: an error in it undoes the block alone, and is raised on.

    That holds for a cancelled statement, too: an outer transaction left in a failed savepoint would keep its locks.
    Where the connection itself is lost there is nothing to go back to, and the error is raised as it is.
    """
    await session.execute("SAVEPOINT __pgt_savepoint")
    try:
        yield
    except SqlError as error:
        if not error.is_of_connection:
            await session.execute("ROLLBACK TO SAVEPOINT __pgt_savepoint")
            await session.execute("RELEASE SAVEPOINT __pgt_savepoint")
        raise
    await session.execute_later("RELEASE SAVEPOINT __pgt_savepoint")


async def overlap(statement: Coroutine[Any, Any, A], work: Callable[[], Awaitable[B]]) -> tuple[A, B]:
    """What PostgreSQL answers to a statement, and what is computed elsewhere while it works on it.

    A session has one conversation at a time: this one is over before an error of either is raised.
    """
    running = asyncio.ensure_future(statement)
    try:
        await asyncio.sleep(0)  # it is written
        await asyncio.sleep(0)  # and sent
        done = await work()
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError):
            running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        raise
    return await running, done
