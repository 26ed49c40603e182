"""Give a stream table another query: its table keeps its OID, and with it views, grants, policies and publications."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from catalog.session import SqlError, SqlSession
from catalog.values import Initiator, RefreshMode
from engine.compile.pool import work_on_behalf_of
from engine.refresh.executor_choice import Spark
from engine.refresh.refresh import refresh
from engine.requests.beside import beside
from engine.requests.create import Defined, announce, define_stream_table, explanation, rights_to_sources
from engine.requests.repair import refuse_cycle, warn_of
from engine.session.roles import execute_as_owner
from engine.session.transactions import set_role
from engine.stream_tables.analysis import define
from engine.stream_tables.plan_inputs import captured_columns
from engine.stream_tables.plan_store import set_state, track
from engine.stream_tables.refresh_state import RefreshContext, lock
from engine.stream_tables.storage_columns import ColumnChanges, column_changes

NOT_WITH_POLLS = "changing the query of a stream table that reads foreign tables by polling is not supported yet"


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
            hint="Use a READ COMMITTED transaction, or no transaction block.",
        )
    defined = await _defined(session, context, query, search_path, requested)
    user, hidden = await column_changes(session, context, defined.inputs)
    await _refuse_readers(session, context, user)
    await execute_as_owner(session, context.owner, [rights_to_sources(defined.definition)], current=context.caller)
    place = await beside(session, context, defined.inputs, user, hidden)
    await _note(session, context, defined)
    await announce(session, defined)
    await warn_of(session, context, user)
    found = await lock(session, context.pgt_id)
    whole = replace(found, storage=place.storage, needs_reinit=True, capture=replace(found.capture, broken=()))
    await refresh(session, whole, initiator=Initiator.MANUAL, spark=spark)
    await place.switch(session)


async def _defined(
    session: SqlSession, context: RefreshContext, query: str, search_path: str, requested: RefreshMode
) -> Defined:
    work_on_behalf_of(context.owner)
    async with set_role(session, context.owner, current=context.caller):
        defined = await define_stream_table(session, query, search_path, requested, context.owner)
    if defined.copies or context.capture.polled:
        raise SqlError("0A000", NOT_WITH_POLLS, hint="Drop the stream table and create it again.")
    await refuse_cycle(session, context, [d.source.oid for d in defined.definition.dependencies])
    return defined


async def is_query(session: SqlSession, context: RefreshContext, query: str, search_path: str, present: str) -> bool:
    """Whether a query is the `present` one of a stream table, as PostgreSQL writes it. Raises SqlError."""
    work_on_behalf_of(context.owner)
    async with set_role(session, context.owner, current=context.caller):
        return (await define(session, query, search_path)).canonical == present


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


async def _note(session: SqlSession, context: RefreshContext, defined: Defined) -> None:
    """Write down the new query, and have its sources captured."""
    definition, top = defined.definition, defined.definition.inspected.topk
    await session.fetch(
        "SELECT pgtrickle._set_dependencies($1::bigint, $2::text::jsonb)",
        context.pgt_id,
        json.dumps([{"relid": d.source.oid, "columns": list(d.columns_used)} for d in definition.dependencies]),
    )
    limits = asdict(top) if top else {"limit": None, "order_by": None, "offset": None}
    state = defined.properties | {f"topk_{name}": value for name, value in limits.items()}
    state |= {"explain": await explanation(defined.inputs, definition, context.storage), "needs_reinit": True}
    tracked = [d.source.oid for d in definition.dependencies if d.trackable]
    columns = await captured_columns(defined.inputs, tracked, defined.mode, context.engine)
    # As late as possible: what is locked here stays so until the transaction ends.
    await track(session, context.pgt_id, columns, context.engine)
    await set_state(session, context.pgt_id, **state)
