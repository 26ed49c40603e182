"""What a refresh would cost, as PostgreSQL's planner estimates it. Nothing is executed.

The estimate covers the one statement that applies the changes in PostgreSQL. It does not cover the changes that Spark
computes, nor the statement for all sources that takes its place where another source has changed meanwhile: for these
there is the limit on time alone.
"""

from __future__ import annotations

from typing import Any

from catalog.session import SqlError, SqlSession
from engine.compile.compiled_query import CompiledQuery
from engine.refresh.policy import AppliedChanges, Decision, decide_by_cost, is_proven, may_be_dear
from engine.refresh.whole import uncaptured
from engine.session.roles import run_as_owner
from engine.session.transactions import local_setting, savepoint
from engine.stream_tables.refresh_state import RefreshContext

DATA_EXCEPTION = "22"

LAST_DIFFERENTIAL = """
SELECT h.delta_row_count, (1000 * extract(epoch FROM h.end_time - h.start_time))::pg_catalog.float8
FROM (SELECT l.* FROM pgtrickle.pgt_refresh_history l
      WHERE l.pgt_id OPERATOR(pg_catalog.=) $1::pg_catalog.int8 ORDER BY l.refresh_id DESC LIMIT 100) AS h
WHERE h.action = 'DIFFERENTIAL' AND h.status = 'COMPLETED' AND h.executor = 'postgres'
ORDER BY h.refresh_id DESC LIMIT 1
"""


async def too_dear(
    session: SqlSession, context: RefreshContext, plan: CompiledQuery, statement: str, parameters: dict[str, Any]
) -> Decision | None:
    """Decide for a full refresh where the statement that applies the changes is estimated to be far dearer.

    None where the changes are to be applied. That few changes are, or about as many as were applied quickly the last
    time, is not asked of the planner. Raises SqlError.
    """
    if not may_be_dear(context) or is_proven(context, await last_differential(session, context)):
        return None
    full = await plan.full_sql(context.storage, uncaptured(context))
    # What is put back afterwards is what holds before the setting does.
    await session.keep_settings(context.owner)
    try:
        async with savepoint(session):
            # As `pgtrickle._apply_changes` has it.
            async with local_setting(session, "enable_mergejoin", "off"):
                of_changes = await _cost(session, context, statement, parameters)
            of_all = await _cost(session, context, full, {"salt": context.learned.row_id_salt})
    except SqlError as error:
        # The planner computes constants, and fails where they cannot be. A refresh has its own answer to that.
        if not error.sqlstate.startswith(DATA_EXCEPTION):
            raise
        return None
    return decide_by_cost(context, of_changes, of_all)


async def last_differential(session: SqlSession, context: RefreshContext) -> AppliedChanges | None:
    """The last differential refresh that PostgreSQL has computed, if it was one of the last hundred refreshes."""
    rows = await session.fetch(LAST_DIFFERENTIAL, context.pgt_id)
    return AppliedChanges(int(rows[0][0]), float(rows[0][1])) if rows else None


async def estimated_rows(session: SqlSession, context: RefreshContext, statement: str) -> float:
    """How many rows a statement would give. Raises SqlError."""
    return float((await _planned(session, context, statement, {}))["Plan Rows"])


async def _cost(session: SqlSession, context: RefreshContext, statement: str, parameters: dict[str, Any]) -> float:
    return float((await _planned(session, context, statement, parameters))["Total Cost"])


async def _planned(
    session: SqlSession, context: RefreshContext, statement: str, parameters: dict[str, Any]
) -> dict[str, Any]:
    """How a statement is planned with the rights, settings and parameters it would be run with."""
    explain = f"EXPLAIN (FORMAT JSON) {statement}"
    plans = await run_as_owner(session, context.owner, explain, parameters, current=context.caller)
    return dict(plans[0]["Plan"])
