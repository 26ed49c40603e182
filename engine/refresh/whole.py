"""The statement that computes all rows and stores them, by several processes of PostgreSQL's where that is worth it.

A statement that changes a table has a plan for one process. Where PostgreSQL would compute the query alone by several,
as it does for REFRESH MATERIALIZED VIEW, the statement reads the query's rows from a function that runs the query as a
statement of its own (`pgtrickle._query_rows`), with the snapshot of the one that calls it. So what is read, what is
compared and what is recorded as the frontier are of one snapshot, as ever.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from catalog.session import SqlSession
from engine.compile.compiled_query import CompiledQuery
from engine.session.transactions import set_role
from engine.stream_tables.refresh_state import RefreshContext
from sql.base.text import derived, quote, select

WORTH_ASKING_MS = 20.0
"""PostgreSQL is asked how it would compute the query where the last full refresh took as long."""

_APART = "SELECT pgtrickle._apart($1::bigint, $2::bigint[], $3::text)::text"


@dataclass(frozen=True, slots=True)
class Whole:
    """A statement that stores all rows."""

    statement: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What it takes beside the salt: the query, where it is computed as a statement of its own."""


async def whole_query(session: SqlSession, context: RefreshContext, plan: CompiledQuery) -> Whole:
    """The statement by which PostgreSQL computes all rows and stores them. Raises SqlError, 54001 among others."""
    types = await _types_apart(session, context, plan)
    make = plan.full_sql if context.is_populated else plan.populate_sql
    definitions = tuple((name, definition) for name, _, definition in types)
    statement = await make(context.storage, uncaptured(context), definitions)
    if not types:
        return Whole(statement)
    # A column that the storage table has as another type than the query is converted, as it would be when it is stored.
    columns = [f"q.{quote(name)}::{type_} AS {quote(name)}" for name, type_, _ in types]
    return Whole(statement, {"rows": select(columns, derived(plan.whole_query, "q"))})


async def _types_apart(
    session: SqlSession, context: RefreshContext, plan: CompiledQuery
) -> tuple[tuple[str, str, str], ...]:
    """The names, types and definitions of the query's columns where it is to be computed by itself, else nothing."""
    last = context.learned.last_full_ms
    if last is not None and last < WORTH_ASKING_MS:
        return ()
    sources = [source.oid for source in context.capture.sources]
    async with set_role(session, context.owner, current=context.caller):
        ((found,),) = await session.fetch(_APART, context.relid, sources, plan.whole_query)
    if found is None:
        return ()
    stored = json.loads(found)
    return tuple((name, *stored[name]) for name in plan.whole_names)


def uncaptured(context: RefreshContext) -> frozenset[int]:
    """The sources whose changes are not captured."""
    return frozenset(source.oid for source in context.capture.sources if not source.captured)
