"""Foreign tables that are polled: a copy of each, which a refresh first makes equal to it.

The copy is an ordinary captured table in `pgtrickle_changes`, one for each stream table and foreign table, and the
stream table's plan reads it in the foreign table's place. So a poll is nothing but the DELETE and INSERT of the
difference, and what is written is captured, kept, mirrored and cleaned up as any other change.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog

from catalog.pinned_settings import PINNED_PATH
from catalog.session import SqlError, SqlSession
from engine.compile.pool import compilers
from engine.foreign_tables.difference import CHANGES, difference, run_poll
from engine.foreign_tables.lake_options import WRAPPER, lake_table
from engine.foreign_tables.lake_polling import LakeReader, poll_lake
from engine.session.transactions import set_role
from engine.stream_tables.analysis import Definition, Dependency, analysed, define
from engine.stream_tables.plan_inputs import guard
from engine.stream_tables.refresh_state import RefreshContext, lock
from sql import NotDifferentiable, View, jobs
from sql.base.text import quote

logger = structlog.get_logger(__name__)


class NotPolled(Exception):
    """Foreign tables must be polled, and that committed, before the snapshot of the refresh is taken."""


class CannotPoll(SqlError):
    """A query cannot read a copy of a foreign table instead of it; the message is the reason."""

    def __init__(self, reason: str):
        super().__init__("0A000", reason)


@dataclass(frozen=True, slots=True)
class Copy:
    """A foreign table and its copy, as `pgtrickle._create_copy` made it."""

    schema: str
    name: str
    copy: str
    columns: tuple[str, ...]
    relid: int

    @property
    def view(self) -> View:
        """What a query reads for the foreign table."""
        names = ", ".join(quote(name) for name in self.columns)
        return View(self.schema, self.name, self.columns, f"SELECT {names} FROM {CHANGES}.{quote(self.copy)}")


def foreign_tables(definition: Definition) -> list[Dependency]:
    """The foreign tables that a query reads, also through views."""
    return [dependency for dependency in definition.dependencies if dependency.kind == "FOREIGN_TABLE"]


_LAKE_TABLES = """
SELECT t.ftrelid::pg_catalog.int8,
       (SELECT coalesce(pg_catalog.jsonb_object_agg(o.option_name, o.option_value), '{}')::text
        FROM pg_catalog.pg_options_to_table(s.srvoptions) AS o),
       (SELECT coalesce(pg_catalog.jsonb_object_agg(o.option_name, o.option_value), '{}')::text
        FROM pg_catalog.pg_options_to_table(t.ftoptions) AS o)
FROM pg_catalog.pg_foreign_table t
JOIN pg_catalog.pg_foreign_server s ON s.oid OPERATOR(pg_catalog.=) t.ftserver
JOIN pg_catalog.pg_foreign_data_wrapper w ON w.oid OPERATOR(pg_catalog.=) s.srvfdw
WHERE t.ftrelid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.int8[]::pg_catalog.oid[])
  AND w.fdwname OPERATOR(pg_catalog.=) $2::pg_catalog.text
"""


async def has_lake_tables(session: SqlSession, foreign: Sequence[Dependency]) -> bool:
    """Whether there are lake tables among foreign tables: PostgreSQL itself cannot read them.

    Raises SqlError 22023 for one whose options are wrong.
    """
    rows = await session.fetch(_LAKE_TABLES, [dependency.source.oid for dependency in foreign], WRAPPER)
    for _, server, table in rows:
        lake_table(json.loads(server), json.loads(table))
    return bool(rows)


async def polling(session: SqlSession) -> bool:
    """Whether `pg_trickle.foreign_table_polling` is on."""
    ((value,),) = await session.fetch("SELECT pgtrickle._setting('pg_trickle.foreign_table_polling', 'off')")
    return bool(value == "on")


async def read_from_copies(
    session: SqlSession, definition: Definition, owner: str
) -> tuple[Definition, tuple[Copy, ...]]:
    """The definition over new copies of its foreign tables, which are empty yet. The session acts as the `owner`.

    Views are replaced by what they stand for. Raises SqlError 42501 if the owner may not read a foreign table,
    CannotPoll if the query cannot read a copy instead; the transaction must then go back to a savepoint.
    """
    for dependency in definition.dependencies:
        if dependency.denied is not None:
            raise CannotPoll(f"what is read with a view's rights ({dependency.denied})")
    try:
        for canonical in (definition.canonical, *(d.view.text for d in definition.dependencies if d.view is not None)):
            await guard(session, canonical)
    except NotDifferentiable as reason:
        raise CannotPoll(reason.construct) from reason
    copies = []
    for dependency in foreign_tables(definition):
        ((text,),) = await session.fetch(
            "SELECT pgtrickle._create_copy($1::bigint::oid, $2::text::regrole::oid)::text",
            dependency.source.oid,
            quote(owner),
        )
        made = json.loads(text)
        copies.append(Copy(made["schema"], made["name"], made["copy"], tuple(made["columns"]), made["relid"]))
    views = [d.view for d in definition.dependencies if d.view is not None] + [copy.view for copy in copies]
    text = await compilers().run(jobs.without_views, definition.canonical, views)
    found = await analysed(session, text, ("columns",), errors_told=True)
    if "failed" in found:
        raise CannotPoll(f"a use of it that no other table can take ({found['message']})")
    instead = await define(session, text, PINNED_PATH)
    if [(c.name, c.type) for c in instead.output] != [(c.name, c.type) for c in definition.output]:
        raise CannotPoll("a whole row of it")
    return replace(instead, original=definition.original), tuple(copies)


async def note_copies(session: SqlSession, pgt_id: int, copies: Sequence[Copy]) -> None:
    """Write down that a stream table reads these copies."""
    if copies:
        text = json.dumps([{"relid": copy.relid, "copy": copy.copy} for copy in copies])
        await session.fetch("SELECT pgtrickle._note_polls($1::bigint, $2::text::jsonb)", pgt_id, text)


async def begin_polls(session: SqlSession, context: RefreshContext) -> list[dict[str, Any]]:
    """What `pgtrickle._polls` says is to be polled, with its errors."""
    if not context.capture.polled:
        return []
    ((text,),) = await session.fetch("SELECT pgtrickle._polls($1::bigint)::text", context.pgt_id)
    return list(json.loads(text))


async def polled(session: SqlSession, context: RefreshContext, lake: LakeReader | None) -> tuple[RefreshContext, int]:
    """Make the copies equal to their foreign tables; the context as it is then, and how many rows that took.

    In the session's transaction, with the rights of the stream table's owner. Raises SqlError: 42P01, 0A000 or 42501
    where a foreign table is gone, has other columns, or may not be read; HV00N if its server cannot be reached; and
    whatever the foreign data wrapper says.
    """
    if not context.capture.polled:
        return context, 0
    changed = 0
    for poll in await begin_polls(session, context):
        counts = await _poll(session, context, poll, lake)
        changed += int(counts["gone"]) + int(counts["come"])
        logger.debug("polled", foreign_table=f"{poll['schema']}.{poll['name']}", **counts)
    if not changed:
        return context, 0
    now = await lock(session, context.pgt_id)
    return (
        replace(
            now,
            capture=replace(now.capture, broken=context.capture.broken),
            needs_reinit=context.needs_reinit,
            plan=context.plan,
            plan_format=context.plan_format,
        ),
        changed,
    )


async def _poll(
    session: SqlSession, context: RefreshContext, poll: dict[str, Any], lake: LakeReader | None
) -> dict[str, Any]:
    if poll["wrapper"] == WRAPPER:
        return await poll_lake(session, context, poll, lake)
    source = quote(poll["schema"], poll["name"])
    statement = difference(source, f"{CHANGES}.{quote(poll['copy'])}", poll["columns"])
    async with set_role(session, context.owner, current=context.caller):
        return await run_poll(session, statement)
