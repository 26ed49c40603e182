"""Take up again a stream table whose capture cannot be trusted, or whose sources have another definition now."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

from catalog.pinned_settings import PINNED_PATH
from catalog.session import SqlError, SqlSession
from catalog.values import RefreshMode
from engine.capture.lock_retry import LOCK_PATIENCE, with_lock_retry
from engine.compile.pool import compilers, work_on_behalf_of
from engine.foreign_tables.polling import begin_polls
from engine.requests.circles import check_circle
from engine.requests.create import explanation, notice
from engine.session.transactions import savepoint, set_role
from engine.stream_tables.analysis import (
    TRACKABLE_KINDS,
    Definition,
    Dependency,
    define,
    function_hashes,
)
from engine.stream_tables.plan_inputs import PlanInputs, captured_columns, compiled, expanded, opaque, plan
from engine.stream_tables.plan_store import load_plan, set_state, track
from engine.stream_tables.refresh_state import RefreshContext, begin
from engine.stream_tables.storage_columns import ColumnChanges, change_columns, column_changes
from sql import Column, NotDifferentiable, Renamed, jobs

MARKED = "it is marked to be computed anew"
"""After DDL on what it reads, or because somebody has asked for it."""


class CaptureBroken(Exception):
    """Capture must be repaired and committed before a snapshot is taken to recompute from."""

    def __init__(self, stream_table: str, reasons: tuple[str, ...]):
        super().__init__("; ".join(reasons) or MARKED)
        self.stream_table = stream_table


def must_be_repaired(context: RefreshContext) -> bool:
    """True if what has been captured since the frontier cannot be used, or the plan cannot."""
    return context.outdated or (context.is_populated and (context.needs_reinit or bool(context.capture.broken)))


OUTDATED = "it was planned by another version of the server"


async def repair(session: SqlSession, context: RefreshContext) -> RefreshContext:
    """Plan the query anew and capture its sources anew; what is returned asks for a reinitialisation.

    Raises SqlError: 25001 in a transaction whose snapshot is older than the repair, 0A000 if the stream table would
    have other columns now, 42703 if it reads a column that is gone, PostgreSQL's own if the query does not work any
    more.
    """
    if context.one_snapshot:
        raise SqlError(
            "25001",
            f'stream table "{context.name}" must be recomputed: {"; ".join(reasons(context)) or "it is marked"}',
            hint="Refresh it outside of a transaction block, or in one that is READ COMMITTED.",
        )
    await prepare(session, context)
    found = await begin(session, context.pgt_id)  # what is captured by now, of which this transaction may have some
    trusted = replace(found.capture, broken=())
    return replace(found, capture=trusted, needs_reinit=True, plan="", plan_format=None)


def reasons(context: RefreshContext) -> tuple[str, ...]:
    """Why it must be repaired; none where it is marked."""
    return (*context.capture.broken, OUTDATED) if context.outdated else context.capture.broken


async def prepare(session: SqlSession, context: RefreshContext, *, patience: float = LOCK_PATIENCE) -> None:
    """The part of a repair that must be committed, or seen, before the snapshot of the recomputation.

    Raises SqlError as `repair` does, and 55P03 if a source stays locked for `patience` seconds (`track`).
    """
    if not context.storage:
        raise SqlError(
            "55P03",
            f'the table of stream table "{context.name}" has not been restored',
            hint="Restore it with its triggers, or drop the stream table and create it again.",
        )
    await flush_immediate(session, context.pgt_id, patience)
    work_on_behalf_of(context.owner)
    old = await load_plan(session, context)
    polls = await begin_polls(session, context)
    canonical, dropped = await _in_names_of_now(session, context)
    definition = await _defined(session, context, canonical, dropped)
    async with set_role(session, context.owner):
        shown = {} if polls else {"defining_query": await expanded(session, definition)}
    _refuse_other_names(context, old.output, definition.output)
    inputs, fallback = opaque(definition), {}
    if old.differentiable:
        try:
            async with set_role(session, context.owner):
                inputs = await plan(session, _as_before(definition, old))
        except NotDifferentiable as reason:
            fallback = await _full_from_now_on(session, context, reason.construct)
    fallback = fallback or await _fall_back(session, context, definition)
    mode = RefreshMode.FULL if fallback else context.refresh_mode
    await check_circle(session, context, [d.source.oid for d in definition.dependencies], inputs, mode)
    await _follow_columns(session, context, old, inputs)
    await session.fetch(
        "SELECT pgtrickle._set_dependencies($1::bigint, $2::text::jsonb)",
        context.pgt_id,
        json.dumps(
            [{"relid": d.source.oid, "columns": list(d.columns_used)} for d in definition.dependencies]
            + [{"relid": poll["relid"], "columns": poll["columns"]} for poll in polls]
        ),
    )
    tracked = [d.source.oid for d in definition.dependencies if d.trackable]
    columns = await captured_columns(inputs, tracked, mode, context.engine)
    explained = await explanation(inputs, definition, context.storage)
    # As late as possible: what is locked here stays so until the transaction ends.
    await track(session, context.pgt_id, columns, context.engine, patience)
    await set_state(
        session,
        context.pgt_id,
        canonical_query=definition.canonical,
        **shown,
        functions_used=sorted({use.name for use in definition.functions}),
        function_hashes=function_hashes(definition.functions),
        explain=explained,
        needs_reinit=True,
        **fallback,
    )


async def flush_immediate(session: SqlSession, pgt_id: int, patience: float = LOCK_PATIENCE) -> None:
    """Wait for those whose statements triggers of a stream table follow, if it has any, and keep others out.

    What they still do to it would be mixed with what is computed. Raises SqlError 55P03.
    """
    statement = "SELECT pgtrickle._try_flush_immediate($1::bigint)::text"
    await with_lock_retry(session, statement, pgt_id, patience=patience)


async def _follow_columns(session: SqlSession, context: RefreshContext, old: PlanInputs, inputs: PlanInputs) -> None:
    """Give the storage table the columns that it is to have: a source or a view may be another one, or the compiler.

    What is in new columns is computed afterwards. Raises SqlError 0A000 where a view reads one that is retyped.
    """
    # What another version of the compiler was given this one may not be able to compile.
    if (
        context.outdated
        or _types(old) != _types(inputs)
        or await _storage_of(context, inputs) != await _storage_of(context, old)
    ):
        user, hidden = await column_changes(session, context, inputs)
        await change_columns(session, context, inputs, user, hidden)
        await warn_of(session, context, user)


async def _storage_of(context: RefreshContext, inputs: PlanInputs) -> tuple[str, ...]:
    """The statements by which the storage table would be created."""
    return await (await compiled(inputs)).create_storage_sql(context.storage)


def _as_before(definition: Definition, old: PlanInputs) -> Definition:
    """The definition as if sources that had no primary key still had none, and all could be captured.

    So rows are told apart as they have been, and the storage table keeps its columns.
    """
    keyless = {source.oid for source in old.sources if not source.key}

    def before(dependency: Dependency) -> Dependency:
        source = dependency.source
        return replace(dependency, source=replace(source, key=()) if source.oid in keyless else source, obstacle=None)

    return replace(definition, dependencies=tuple(before(d) for d in definition.dependencies))


async def _fall_back(session: SqlSession, context: RefreshContext, definition: Definition) -> dict[str, str]:
    """What becomes of a stream table, one of whose sources cannot be captured any more: it is computed in full.

    Raises SqlError 0A000 if DIFFERENTIAL was asked for.
    """
    obstacles = [d.obstacle for d in definition.dependencies if d.kind in TRACKABLE_KINDS and d.obstacle]
    if not obstacles or context.refresh_mode != RefreshMode.DIFFERENTIAL:
        return {}
    return await _full_from_now_on(session, context, f"a source whose changes cannot be captured ({obstacles[0]})")


async def _full_from_now_on(session: SqlSession, context: RefreshContext, reason: str) -> dict[str, str]:
    """The state of a stream table whose query can only be computed as a whole any more.

    Raises SqlError 0A000 if DIFFERENTIAL was asked for.
    """
    if context.requested_mode == RefreshMode.DIFFERENTIAL:
        raise SqlError(
            "0A000",
            f'stream table "{context.name}" cannot be refreshed in DIFFERENTIAL mode: {reason}',
            hint="Use pgtrickle.alter_stream_table() with refresh_mode => 'AUTO' or 'FULL'.",
        )
    message = f'stream table "{context.name}" uses FULL refresh from now on: {reason}'
    await notice(session, "WARNING", message, "Each refresh computes the whole query. See pgtrickle.explain_st().")
    return {"refresh_mode": RefreshMode.FULL, "fallback_reason": reason}


_NAMES = """
SELECT (p.column_snapshot->'known')::text, pgtrickle._known_names(p.source_relid)::text
FROM pgtrickle.pgt_dependencies p WHERE p.pgt_id = $1::bigint
"""


async def _in_names_of_now(session: SqlSession, context: RefreshContext) -> tuple[str, list[tuple[str, str]]]:
    """The canonical query after its tables and their columns have been renamed, as a view's text would follow them.

    Also the columns that have gone, as relation and name. Raises SqlError 0A000 if the text cannot follow.
    """
    renamed: list[tuple[tuple[str, str], Renamed]] = []
    dropped: list[tuple[str, str]] = []
    for known_text, present_text in await session.fetch(_NAMES, context.pgt_id):
        if known_text is None or present_text is None:
            continue  # noted by an earlier version, or dropped: what has its name now is read
        known, present = json.loads(known_text), json.loads(present_text)
        if not known or known == present:
            continue
        relation, gone = _compared(known, present)
        dropped += [(f"{relation.schema}.{relation.name}", name) for name in gone]
        former = (known["schema"], known["name"])
        is_moved = former != (relation.schema, relation.name)
        if is_moved or any(place is not None and name != relation.known[place] for name, place in relation.columns):
            renamed.append((former, relation))
    if not renamed:
        return context.canonical_query, dropped
    text = await compilers().run(jobs.renamed, context.canonical_query, tuple(renamed))
    if text is None:
        (_, moved), *_ = renamed
        raise SqlError(
            "0A000",
            f'the query of stream table "{context.name}" cannot follow that "{moved.schema}.{moved.name}", or a column'
            " of it, was renamed",
            detail="; ".join(context.capture.broken) or None,
            hint="Rename it back, or drop the stream table and create it again.",
        )
    return text, dropped


def _compared(known: Any, present: Any) -> tuple[Renamed, list[str]]:
    """A relation as it is named now, and the columns that it has no more, by their former names."""
    places = {number: place for place, (number, *_) in enumerate(known["columns"])}
    columns = tuple((name, places.get(number)) for number, name, *_ in present["columns"])
    numbers, added = {n for n, *_ in present["columns"]}, {name for name, place in columns if place is None}
    gone = [name for number, name, *_ in known["columns"] if number not in numbers and name not in added]
    names = tuple(name for _, name, *_ in known["columns"])
    return Renamed(present["schema"], present["name"], names, columns), gone


async def _defined(
    session: SqlSession, context: RefreshContext, canonical: str, dropped: list[tuple[str, str]]
) -> Definition:
    """What the query is now. Raises SqlError as `define`; of a column that was `dropped` it says so."""
    try:
        async with savepoint(session), set_role(session, context.owner):
            return await define(session, canonical, PINNED_PATH)
    except SqlError as error:
        found = [(relation, name) for relation, name in dropped if name in re.split(r'[" .]', error.message)]
        if error.sqlstate != "42703" or not found:
            raise
        relation, name = found[0]
        raise SqlError(
            "42703",
            f'column "{name}" of "{relation}", which stream table "{context.name}" reads, was dropped',
            hint=f'Add a column "{name}" again, or drop the stream table and create it without the column.',
        ) from error


def _types(inputs: PlanInputs) -> list[str]:
    return [column.type for column in inputs.output]


def _refuse_other_names(context: RefreshContext, old: tuple[Column, ...], new: tuple[Column, ...]) -> None:
    """The columns of a stream table keep their names. Raises SqlError 0A000."""
    for before, now in zip(old, new, strict=True):
        if before.name != now.name:
            raise SqlError(
                "0A000",
                f'column "{before.name}" of stream table "{context.name}" would be "{now.name}" now',
                detail="; ".join(context.capture.broken) or None,
                hint="Give the column of the source its former name again, or give the stream table another query.",
            )


async def warn_of(session: SqlSession, context: RefreshContext, changes: ColumnChanges) -> None:
    """Tell the client of columns that are not what they have been to those who read the table."""
    if changes.retyped:
        names = ", ".join(f'"{name}"' for name in changes.retyped)
        await notice(session, "WARNING", f'columns of stream table "{context.name}" have another type now: {names}')
    if changes.moved:
        names = ", ".join(f'"{name}"' for name in changes.moved)
        message = f'columns of stream table "{context.name}" have another place now: {names}'
        await notice(session, "WARNING", message, "What was defined on these columns, such as an index, is gone.")
