"""What a client's transaction must not lock is captured ahead, in transactions of the engine's own.

To capture a source takes a lock that its writers wait for until the transaction ends, and a client may leave its own
open. So where its role could not lock the source by itself, the catalog asks for the capture to be committed before
(`pgtrickle._ask_for_capture`), and the client's transaction finds it there.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from catalog.session import SqlError, SqlSession

Sessions = Callable[[], AbstractAsyncContextManager[SqlSession]]
"""Gives a session of the engine's own in the client's database, for the time of a block."""

_sessions: ContextVar[Sessions | None] = ContextVar("sessions_of_the_engine", default=None)


@contextmanager
def capturing_in(sessions: Sessions) -> Iterator[None]:
    """What the block asks to have captured ahead is captured in such sessions."""
    before = _sessions.set(sessions)
    try:
        yield
    finally:
        _sessions.reset(before)


@asynccontextmanager
async def own_session() -> AsyncIterator[SqlSession | None]:
    """A session of the engine's own in the client's database, None where there is none."""
    sessions = _sessions.get()
    if sessions is None:
        yield None
        return
    async with sessions() as own:
        yield own


async def capture_ahead(wanted: dict[str, Any]) -> None:
    """Capture a source as `pgtrickle._ask_for_capture` says. Raises SqlError.

    55P03 if a lock cannot be had soon, 40001 if the client's transaction is too old to see the capture.
    """
    async with own_session() as own:
        if own is None:
            raise SqlError("55000", "changes cannot be captured here for a role that may not lock the table")
        ((text,),) = await own.fetch("SELECT pgtrickle._capture_ahead($1::text::jsonb)::text", json.dumps(wanted))
    answer = json.loads(text)
    if "locked" in answer:
        raise SqlError("55P03", answer["locked"])
    if wanted.get("one_snapshot"):
        raise SqlError(
            "40001",
            "could not serialize access due to concurrent change capture",
            hint="Try again, in a new transaction, or in one that is READ COMMITTED.",
        )
