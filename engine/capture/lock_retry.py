"""Locks that writers stand in the way of: tried for again and again, so that new writers do not queue up behind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from catalog.session import SqlError, SqlSession, Value
from engine.capture.ahead import capture_ahead

LOCK_PATIENCE = 30.0
"""Seconds for which a lock on a source is tried for."""


async def with_lock_retry(
    session: SqlSession, statement: str, *args: Value, patience: float = LOCK_PATIENCE
) -> dict[str, Any]:
    """The JSON object that a statement returns, as text, once it has had its locks.

    Where it could not have them soon it must have undone everything, and return {"locked": message}; or {"ahead": …} if
    a source must be captured before. Raises SqlError 55P03 if that does not change.
    """
    answer: dict[str, Any] = {}
    async for attempt in AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, SqlError) and error.sqlstate == "55P03"),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        stop=stop_after_delay(patience),
        reraise=True,
    ):
        with attempt:
            answer = await _answer(session, statement, args)
            captured = []
            while (wanted := answer.get("ahead")) is not None:
                if wanted in captured:  # it was ended again already
                    raise SqlError("55P03", "changes of a table that is being captured are not captured any more")
                await capture_ahead(wanted)
                captured.append(wanted)
                answer = await _answer(session, statement, args)
            if "locked" in answer:
                raise SqlError("55P03", answer["locked"])
    return answer


async def _answer(session: SqlSession, statement: str, args: Sequence[Value]) -> dict[str, Any]:
    ((text,),) = await session.fetch(statement, *args)
    return dict(json.loads(text))
