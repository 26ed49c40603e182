"""Give a stream table another query: its table keeps its OID, and with it views, grants, policies and publications."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

from catalog.session import SqlError, SqlSession
from catalog.values import Initiator, RefreshMode
from engine.compile.pool import work_on_behalf_of
from engine.foreign_tables.polling import note_copies, polled
from engine.refresh.executor_choice import NoSpark, Spark
from engine.refresh.refresh import exchange_query, refresh
from engine.requests.beside import Beside, beside
from engine.requests.circles import check_circle
from engine.requests.create import Defined, announce, define_stream_table, explanation, rights_to_sources
from engine.requests.exchange import AllDiffers, Exchange, exchange
from engine.requests.repair import warn_of
from engine.session.roles import execute_as_owner
from engine.session.transactions import set_role
from engine.stream_tables.analysis import define
from engine.stream_tables.plan_inputs import captured_columns, expanded
from engine.stream_tables.plan_store import load_plan, set_state, track
from engine.stream_tables.refresh_state import RefreshContext, lock
from engine.stream_tables.storage_columns import ColumnChanges, column_changes

NOW = "in a transaction that has just begun to capture more of its sources"
"""Spark reads what other transactions have committed."""


async def redefine(
    session: SqlSession,
    context: RefreshContext,
    query: str,
    search_path: str,
    spark: Spark,
    requested: RefreshMode,
) -> None:
    """Give a locked stream table another query, and compute its rows, in the session's transaction.

    `requested` is the refresh mode to be.

    Raises SqlError: as `create.create` does for the query; 25001 in a transaction whose snapshot may be older than the
    capture of a source; 42P17 if the stream table would read itself; 2BP01 if something depends on a column that would
    go.
    """
    if context.one_snapshot:
        raise SqlError(
            "25001",
            f'the query of stream table "{context.name}" cannot be changed in a transaction with one snapshot',
            detail="The transaction may not see changes that were committed before they were captured.",
            hint="Use a READ COMMITTED transaction, or a SELECT of its own outside a transaction block.",
        )
    old = await load_plan(session, context)
    defined = await _defined(session, context, query, search_path, requested)
    changes = await column_changes(session, context, defined.inputs)
    await _refuse_readers(session, context, changes[0])
    await execute_as_owner(session, context.owner, [rights_to_sources(defined.definition)], current=context.caller)
    try:
        exchanged: Exchange | str = await exchange(session, context, old, defined, changes)
    except AllDiffers as reason:
        exchanged = str(reason)
    place = await beside(session, context, defined.inputs, *changes)
    state = await _state(context, defined)
    await _capture(session, context, defined)
    if isinstance(exchanged, Exchange):
        exchanged = await _caught_up(session, await lock(session, context.pgt_id), exchanged, spark)
    await set_state(session, context.pgt_id, **state, needs_reinit=not isinstance(exchanged, Exchange))
    await announce(session, defined)
    await warn_of(session, context, changes[0])
    await _compute(session, await lock(session, context.pgt_id), place, exchanged, spark)
    await place.switch(session)


async def _caught_up(session: SqlSession, found: RefreshContext, exchanged: Exchange, spark: Spark) -> Exchange | str:
    """Refresh it by its old query if it must be: what is captured from now on has all columns of the new one.

    What is returned instead is why an exchange is not possible after all.
    """
    if found.capture.broken:
        return "; ".join(found.capture.broken)
    if exchanged.lacks(found):
        await refresh(session, found, initiator=Initiator.MANUAL, spark=NoSpark(NOW, spark.lake))
    return exchanged


async def _compute(
    session: SqlSession, found: RefreshContext, place: Beside, exchanged: Exchange | str, spark: Spark
) -> None:
    """What differs, or all rows where an exchange is not possible: then it is the reason."""
    now = replace(found, storage=place.storage, capture=replace(found.capture, broken=()))
    if isinstance(exchanged, Exchange):
        reason = f"another query: what differs is {exchanged.what}"
        await exchange_query(session, now, exchanged.plan, reason, initiator=Initiator.MANUAL)
        return
    if found.capture.polled:
        polling, _ = await polled(session, found, spark.lake)
        now, spark = replace(now, capture=replace(polling.capture, broken=())), NoSpark(NOW, spark.lake)
    why = f"another query: all rows are computed, since {exchanged}"
    whole = replace(now, needs_reinit=True, capture=replace(now.capture, broken=(why,)))
    await refresh(session, whole, initiator=Initiator.MANUAL, spark=spark)


async def _defined(
    session: SqlSession, context: RefreshContext, query: str, search_path: str, requested: RefreshMode
) -> Defined:
    work_on_behalf_of(context.owner)
    async with set_role(session, context.owner, current=context.caller):
        defined = await define_stream_table(session, query, search_path, requested, context.owner)
    sources = [d.source.oid for d in defined.definition.dependencies]
    mode = requested if requested == RefreshMode.IMMEDIATE else defined.mode
    await check_circle(session, context, sources, defined.inputs, mode)
    return defined


async def is_query(session: SqlSession, context: RefreshContext, query: str, search_path: str, present: str) -> bool:
    """Whether a query is the `present` one of a stream table, as its `defining_query` says it. Raises SqlError."""
    work_on_behalf_of(context.owner)
    async with set_role(session, context.owner, current=context.caller):
        definition = await define(session, query, search_path)
        # Earlier versions kept the names of views.
        return present in (definition.canonical, await expanded(session, definition))


_READERS = """
SELECT pg_catalog.format('%I.%I', s.pgt_schema, s.pgt_name), c.name
FROM pgtrickle.pgt_dependencies d
JOIN pgtrickle.pgt_stream_tables s ON s.pgt_id OPERATOR(pg_catalog.=) d.pgt_id
JOIN pg_catalog.unnest($2::text[]) AS c (name) ON c.name OPERATOR(pg_catalog.=) ANY (d.columns_used)
WHERE d.source_relid OPERATOR(pg_catalog.=) $1::bigint::oid
ORDER BY 1, 2
"""


async def _refuse_readers(session: SqlSession, context: RefreshContext, changes: ColumnChanges) -> None:
    """Raises SqlError 2BP01 where another stream table reads a column that would go or change, as for a view."""
    readers = await session.fetch(_READERS, context.relid, [*changes.dropped, *changes.retyped])
    if readers:
        raise SqlError(
            "2BP01",
            f'cannot drop or retype columns of stream table "{context.name}" because other stream tables read them',
            detail="\n".join(f'stream table {reader} reads column "{column}"' for reader, column in readers),
            hint="Change or drop these first.",
        )


async def _state(context: RefreshContext, defined: Defined) -> dict[str, Any]:
    """What the catalog says of the new query."""
    definition, top = defined.definition, defined.definition.inspected.topk
    limits = asdict(top) if top else {"limit": None, "order_by": None, "offset": None}
    state = defined.properties | {f"topk_{name}": value for name, value in limits.items()}
    return state | {"explain": await explanation(defined.inputs, definition, context.storage)}


async def _capture(session: SqlSession, context: RefreshContext, defined: Defined) -> None:
    """Have its sources captured: as late as possible, since what is locked stays so until the transaction ends."""
    dependencies = defined.definition.dependencies
    if context.capture.polled:
        await session.fetch("SELECT pgtrickle._forget_polls($1::bigint)", context.pgt_id)
    # Before anybody looks for copies that belong to no stream table.
    await note_copies(session, context.pgt_id, defined.copies)
    read = [{"relid": d.source.oid, "columns": list(d.columns_used)} for d in dependencies]
    read += [{"relid": copy.relid, "columns": list(copy.columns)} for copy in defined.copies]
    await session.fetch(
        "SELECT pgtrickle._set_dependencies($1::bigint, $2::text::jsonb)", context.pgt_id, json.dumps(read)
    )
    tracked = [d.source.oid for d in dependencies if d.trackable]
    columns = await captured_columns(defined.inputs, tracked, defined.mode, context.engine)
    await track(session, context.pgt_id, columns, context.engine)
