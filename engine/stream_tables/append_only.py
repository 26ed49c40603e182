"""`append_only`: rows that come are inserted, and what is stored is not looked at, as long as no row goes."""

from __future__ import annotations

from catalog.session import SqlError, SqlSession
from catalog.values import RefreshMode
from engine.stream_tables.plan_inputs import PlanInputs, compiled
from engine.stream_tables.plan_store import set_state
from engine.stream_tables.refresh_state import RefreshContext

ROWS_GO = "rows were updated or deleted"
FULL = "its refresh mode is FULL"
IMMEDIATE = "its refresh mode is IMMEDIATE"
KEYLESS = "a table that it reads has no primary key"
_HINTS = {
    FULL: "Leave append_only out: a FULL refresh computes all rows.",
    IMMEDIATE: "Leave append_only out: triggers maintain it.",
    KEYLESS: "Leave append_only out, or give the table a primary key.",
}
_HINT = "Leave append_only out, or give out the primary key of each table that the query joins."


async def append_obstacle(inputs: PlanInputs, mode: RefreshMode, *, keyless: bool) -> str | None:
    """Why a stream table cannot be append_only, None if it can. Raises SqlError 54001."""
    if mode == RefreshMode.FULL:
        return FULL
    if mode == RefreshMode.IMMEDIATE:
        return IMMEDIATE
    if keyless:
        return KEYLESS
    if not (await compiled(inputs)).appendable:
        return "its query does not give out the primary keys of its tables as they are: its rows can change or repeat"
    return None


def refuse_append_only(obstacle: str | None) -> None:
    """Raises SqlError 0A000 where there is an obstacle."""
    if obstacle is not None:
        raise SqlError(
            "0A000",
            "append_only is not supported for this stream table",
            detail=f"The reason is that {obstacle}.",
            hint=_HINTS.get(obstacle, _HINT),
        )


async def revert_append_only(session: SqlSession, context: RefreshContext, reason: str) -> None:
    """End append_only, and tell the client."""
    await set_state(session, context.pgt_id, append_only=False)
    await session.fetch(
        "SELECT pgtrickle._notice('WARNING', $1::text, $2::text)",
        f'stream table "{context.name}" is not append_only any more: {reason}',
        "Its rows are compared with those stored again. alter_stream_table() with append_only => true takes it back.",
    )


async def rows_go(session: SqlSession, context: RefreshContext) -> bool:
    """Whether any captured change that the frontier has not seen is no new row."""
    ((goes,),) = await session.fetch("SELECT pgtrickle._rows_go($1::bigint)", context.pgt_id)
    return bool(goes)
