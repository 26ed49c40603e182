"""Locks that writers stand in the way of: tried for again and again, so that new writers do not queue up behind."""

from __future__ import annotations

import json
from typing import Any

from tenacity import AsyncRetrying, retry_if_exception, stop_after_delay, wait_random_exponential

from catalog.session import SqlError, SqlSession, Value

LOCK_PATIENCE = 30.0
"""Seconds for which a lock on a source is tried for."""


async def patiently(
    session: SqlSession, statement: str, *args: Value, patience: float = LOCK_PATIENCE
) -> dict[str, Any]:
    """The JSON object that a statement returns, as text, once it has had its locks.

    Where it could not have them soon it must have undone everything, and return {"locked": message}. Raises SqlError
    55P03 if that does not change.
    """
    answer: dict[str, Any] = {}
    async for attempt in AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, SqlError) and error.sqlstate == "55P03"),
        wait=wait_random_exponential(multiplier=0.05, max=1.0),
        stop=stop_after_delay(patience),
        reraise=True,
    ):
        with attempt:
            ((text,),) = await session.fetch(statement, *args)
            answer = json.loads(text)
            if "locked" in answer:
                raise SqlError("55P03", answer["locked"])
    return answer
