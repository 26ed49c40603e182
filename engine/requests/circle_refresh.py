"""Refresh stream tables that read each other in the transaction of a request."""

from __future__ import annotations

from dataclasses import replace

from catalog.session import SqlSession
from catalog.values import Initiator
from engine.refresh.circle import Conduct, refresh_circle
from engine.refresh.executor_choice import NoSpark, Spark
from engine.refresh.record import RefreshOutcome
from engine.requests.repair import must_be_repaired, repair
from engine.stream_tables.refresh_state import RefreshContext, begin

TOGETHER = "in one transaction with other stream tables"
"""What Spark reads is read by other transactions, which do not see what this one has changed."""


async def refresh_circle_now(
    session: SqlSession, context: RefreshContext, initiator: Initiator, spark: Spark, *, anew: str | None = None
) -> RefreshOutcome | None:
    """Refresh the circle of a locked stream table in the session's transaction; None if nobody had anything to do.

    `anew` is a reason to compute all members from nothing. Raises SqlError as `refresh_circle`, `begin` and `repair`.
    """
    repaired: set[int] = set()

    async def ready(pgt_id: int) -> RefreshContext:
        found = await begin(session, pgt_id)
        if must_be_repaired(found):
            if pgt_id not in repaired:
                await repair(session, found)
                repaired.add(pgt_id)
                found = await begin(session, pgt_id)
            found = replace(found, capture=replace(found.capture, broken=()), needs_reinit=True)
        return found

    initiators = dict.fromkeys(context.circle, Initiator.MANUAL) | {context.pgt_id: initiator}
    conduct = Conduct(ready, initiators, NoSpark(TOGETHER, spark.lake))
    return await refresh_circle(session, context.circle, conduct, anew=anew)
