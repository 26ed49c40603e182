"""Where a full refresh is computed: on Spark from the mirror, or in PostgreSQL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from catalog.session import SqlError, SqlSession
from engine.context import RefreshContext
from engine.decision import RefreshSettings
from engine.plans import PlanInputs


@dataclass(frozen=True, slots=True)
class SparkRows:
    """Rows that Spark computed, in a staging table of the refreshing session."""

    staging: str
    snapshot: str
    rows: int
    detail: str


class NotOnSpark(Exception):
    """Spark cannot (or may not now) compute this query with PostgreSQL's results; the text says why."""


class NoSpark:
    """In place of Spark where it is switched off or must not be used; says why."""

    def __init__(self, reason: str):
        self._reason = reason

    async def compute(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkRows:
        """Always raises NotOnSpark."""
        raise NotOnSpark(self._reason)


class Spark(Protocol):
    """The Spark executor as a refresh sees it."""

    async def compute(self, session: SqlSession, context: RefreshContext, plan: PlanInputs) -> SparkRows:
        """Compute the plan's core at a snapshot of `session` into a staging table of it.

        Raises NotOnSpark before anything was done to the session, SqlError if Spark failed.
        """
        ...


async def rows_from_spark(
    session: SqlSession,
    context: RefreshContext,
    plan: PlanInputs,
    settings: RefreshSettings,
    estimated_rows: int,
    spark: Spark,
) -> SparkRows:
    """Rows computed by Spark, where the settings and the sizes ask for it. Raises NotOnSpark."""
    engine = context.engine if context.engine != "auto" else settings.engine
    if engine == "postgres":
        raise NotOnSpark("engine is set to postgres")
    if engine == "auto" and estimated_rows < settings.spark_min_rows:
        raise NotOnSpark(
            f"about {estimated_rows} rows to read, fewer than pg_trickle.spark_min_rows = {settings.spark_min_rows}"
        )
    try:
        return await spark.compute(session, context, plan)
    except NotOnSpark as reason:
        if engine == "spark":
            raise SqlError("0A000", f'stream table "{context.name}" cannot be computed on Spark: {reason}') from reason
        raise
