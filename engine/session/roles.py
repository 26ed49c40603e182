"""Statements run with the rights of a role, in a session of the engine's or of a client's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from catalog.session import SqlSession
from engine.session.transactions import set_role


async def run_as_owner(
    session: SqlSession,
    owner: str,
    statement: str,
    parameters: dict[str, Any],
    *,
    current: str | None = None,
    making: bool = False,
) -> Any:
    """Run a statement that returns one jsonb with the rights of a role, which it cannot leave; None for no row.

    A session of another role takes on the owner's role for the time: that is the role the statement runs with, and
    the one that functions of the catalog see when they are called from inside. `current` is the role that the session
    acts as, where the caller knows it. `making`: the statement leaves temporary relations, in a session
    that runs nothing of other roles.
    """
    async with set_role(session, owner, current=current):
        call = "SELECT pgtrickle._run($1::text, $2::text::jsonb, $3::boolean)::text"
        rows = await session.fetch(call, statement, json.dumps(parameters, ensure_ascii=False), making)
    text = rows[0][0]
    return None if text is None else json.loads(text)


async def execute_as_owner(
    session: SqlSession, owner: str, statements: Sequence[str], *, current: str | None = None, making: bool = False
) -> None:
    """Execute statements one after the other, as `run_as_owner` does."""
    call = "SELECT pg_catalog.to_jsonb(pgtrickle._execute($1)::pg_catalog.text)"
    await run_as_owner(session, owner, call, {"statements": list(statements)}, current=current, making=making)
