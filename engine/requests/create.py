"""Create a stream table: define, plan, make its storage, register it, capture its sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from catalog.session import SqlError, SqlSession
from catalog.values import Engine, RefreshMode, argument
from engine.compile.pool import TooComplex, compilers, work_on_behalf_of
from engine.foreign_tables.polling import (
    CannotPoll,
    Copy,
    foreign_tables,
    has_lake_tables,
    note_copies,
    polling,
    read_from_copies,
)
from engine.requests.diamonds import refuse_foreign_diamond
from engine.session.roles import execute_as_owner
from engine.session.transactions import local_setting, overlap, savepoint, set_role
from engine.stream_tables.analysis import HIDDEN_PREFIX, Definition, define, function_hashes
from engine.stream_tables.append_only import append_obstacle, refuse_append_only
from engine.stream_tables.cron import check_schedule
from engine.stream_tables.plan_inputs import (
    SYSTEM_SCHEMAS,
    ForeignSource,
    PlanInputs,
    captured_columns,
    compiled,
    expanded,
    opaque,
    plan,
)
from engine.stream_tables.plan_store import track
from sql import NotDifferentiable, jobs
from sql.base.text import quote

logger = structlog.get_logger(__name__)

RESERVED_SCHEMAS = frozenset({"pgtrickle", "pgtrickle_changes", "pgtrickle_roles", "pgtrickle_staging"})


async def create(
    session: SqlSession, arguments: dict[str, Any], search_path: str, owner: str, *, in_two_steps: bool
) -> int | None:
    """Create a stream table that is not populated yet.

    `in_two_steps` says that the caller commits before it populates.
    Returns its id if it is to be populated, None if `initialize` is false or if it existed and `if_not_exists` was
    said. Raises SqlError: 42P07 if the name exists, 3F000 without its schema, 42501 without a right of `owner`, 0A000
    for a construct that the mode does not support, and PostgreSQL's own for a wrong query.
    """
    target = await creation_target(session, arguments["name"])
    if target.exists:
        await _skip_existing(session, target, arguments)
        return None
    requested = argument(RefreshMode, "refresh mode", arguments.get("refresh_mode") or RefreshMode.AUTO)
    engine = argument(Engine, "engine", arguments.get("engine") or Engine.AUTO)
    refuse_options(requested, engine, arguments)
    work_on_behalf_of(owner)
    async with set_role(session, owner, current=target.caller):
        defined = await define_stream_table(session, arguments["query"], search_path, requested, owner)
    await announce(session, defined)

    storage, inputs, definition = target.storage, defined.inputs, defined.definition
    if arguments.get("append_only"):
        refuse_append_only(await append_obstacle(inputs, defined.mode, keyless=defined.keyless))
    # The first one checks the rights to the sources, by PostgreSQL's own rules; creating a view or a table does not.
    statements = [rights_to_sources(definition), *await (await compiled(inputs)).create_storage_sql(storage)]
    _, explained = await overlap(
        execute_as_owner(session, owner, statements, current=target.caller),
        lambda: explanation(inputs, definition, storage),
    )
    tracked = [d.source.oid for d in definition.dependencies if d.trackable]
    properties = defined.properties | {
        "schedule": check_schedule(arguments.get("schedule") or "calculated"),
        "engine": engine,
        "append_only": bool(arguments.get("append_only")),
        "requested_cdc_mode": arguments.get("cdc_mode"),
        "diamond_consistency": arguments.get("diamond_consistency"),
        "diamond_schedule_policy": arguments.get("diamond_schedule_policy"),
        "explain": explained,
        "topk": asdict(top) if (top := definition.inspected.topk) else None,
        "dependencies": [  # the others are noted when they are captured
            {"relid": d.source.oid, "columns": list(d.columns_used)} for d in definition.dependencies if not d.trackable
        ],
    }
    ((pgt_id, _),) = await session.fetch(_REGISTER, storage, json.dumps(properties))
    await note_copies(session, int(pgt_id), defined.copies)
    fresh = await track(session, int(pgt_id), await captured_columns(inputs, tracked, defined.mode, engine), engine)
    if requested == RefreshMode.IMMEDIATE:
        await check_immediate(session, int(pgt_id))
    await refuse_foreign_diamond(session, int(pgt_id), arguments.get("diamond_consistency"))
    if not arguments.get("initialize", True):
        return None
    if fresh and not in_two_steps:
        _refuse_old_snapshot(target)
    return int(pgt_id)


def refuse_options(requested: RefreshMode, engine: Engine, arguments: Mapping[str, Any]) -> None:
    """Raises SqlError 0A000 for what says how an IMMEDIATE stream table were to be refreshed."""
    if requested != RefreshMode.IMMEDIATE:
        return
    given = arguments.get("schedule") or "calculated"
    refused = {
        "cdc_mode => 'wal'": arguments.get("cdc_mode") == "wal",
        "append_only": bool(arguments.get("append_only")),
        "engine => 'spark'": engine == Engine.SPARK,
        f"schedule => '{given}'": given != "calculated",
    }
    for option, is_given in refused.items():
        if is_given:
            raise SqlError(
                "0A000",
                f"{option} is not supported in IMMEDIATE mode",
                detail="The statements that change the sources maintain the stream table, by triggers in PostgreSQL.",
                hint="Leave it out, or use refresh_mode => 'DIFFERENTIAL'.",
            )


async def check_immediate(session: SqlSession, pgt_id: int) -> None:
    """Raises SqlError 0A000 where triggers cannot maintain a stream table, 42501 where its owner may not make them.

    The client is told where the database captures from the write-ahead log, which is nothing to these triggers.
    """
    await session.fetch("SELECT pgtrickle._check_immediate($1::bigint)", pgt_id)
    ((mode,),) = await session.fetch("SELECT pgtrickle._setting('pg_trickle.cdc_mode', 'trigger')")
    if mode == "wal":
        message = "pg_trickle.cdc_mode = 'wal' does not apply to IMMEDIATE mode: triggers maintain the stream table"
        await notice(session, "INFO", message)


SYSTEM_COLUMNS = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""Those that PostgreSQL gives every table."""


@dataclass(frozen=True, slots=True)
class Defined:
    """A query, and how a stream table over it is maintained."""

    definition: Definition
    """The query as it is maintained: over copies of the foreign tables that are polled."""
    shown: str
    """The query over the foreign tables themselves, and what its views stand for."""
    copies: tuple[Copy, ...]
    inputs: PlanInputs
    requested: RefreshMode
    mode: RefreshMode
    fallback: str | None
    """Why it can only be computed as a whole, if that is so."""

    @property
    def keyless(self) -> bool:
        """Whether a table that it reads has no primary key."""
        return any(not d.source.key for d in self.definition.dependencies if d.kind != "VIEW")

    @property
    def properties(self) -> dict[str, Any]:
        """Columns of `pgt_stream_tables` that follow from the query and the mode."""
        definition = self.definition
        return {
            "defining_query": self.shown,
            "original_query": definition.original,
            "canonical_query": definition.canonical,
            "refresh_mode": self.mode,
            "requested_mode": self.requested,
            "functions_used": sorted({use.name for use in definition.functions}),
            "function_hashes": function_hashes(definition.functions),
            "has_keyless_source": self.keyless,
            "fallback_reason": self.fallback,
        }


async def define_stream_table(
    session: SqlSession, query: str, search_path: str, requested: RefreshMode, owner: str
) -> Defined:
    """Look at a query that is to define a stream table; the session acts as its `owner`.

    Raises SqlError: 0A000 for a construct that the mode does not support, and PostgreSQL's own for a wrong query.
    """
    definition = await define(session, query, search_path)
    _refuse_in_every_mode(definition)
    shown = await expanded(session, definition)
    if requested == RefreshMode.IMMEDIATE:
        for dependency in foreign_tables(definition):
            raise SqlError(
                "0A000",
                f'foreign table "{dependency.source.name}" is not supported in IMMEDIATE mode',
                detail="No trigger in PostgreSQL sees its changes.",
                hint="Use refresh_mode => 'AUTO'.",
            )
    definition, copies = await _over_copies(session, definition, requested, owner)
    inputs, fallback = await _plan(session, definition, requested)
    whole = fallback is not None or requested == RefreshMode.FULL
    mode = RefreshMode.FULL if whole else RefreshMode.DIFFERENTIAL
    return Defined(definition, shown, copies, inputs, requested, mode, fallback)


def rights_to_sources(definition: Definition) -> str:
    """A statement that fails where the role that runs it may not read a source."""
    return f"SELECT 1 FROM ({definition.canonical}) AS rights LIMIT 0"


async def _skip_existing(session: SqlSession, target: CreationTarget, arguments: Mapping[str, Any]) -> None:
    """Say that a stream table of this name exists, where that is no error. Raises SqlError 42P07 where it is one."""
    if not (arguments.get("if_not_exists") and target.is_stream_table):
        raise SqlError("42P07", f'relation "{target.name}" already exists')
    await notice(session, "INFO", f'stream table "{target.name}" already exists, skipping')


def _refuse_old_snapshot(target: CreationTarget) -> None:
    """Raises SqlError 25001 where the transaction's snapshot may be older than the capture of the sources."""
    if target.isolation in ("repeatable read", "serializable"):
        raise SqlError(
            "25001",
            f"a stream table cannot be created and populated in a {target.isolation.upper()} transaction block",
            detail="The transaction may not see changes that were committed before they were captured.",
            hint="Use a READ COMMITTED transaction, no transaction block, or initialize => false.",
        )


async def undo_creation(session: SqlSession, pgt_id: int) -> None:
    """Take back the first of creation's two steps. Harmless if the stream table is gone."""
    rows = await session.fetch(
        "SELECT pgt_relid::bigint FROM pgtrickle.pgt_stream_tables WHERE pgt_id = $1::bigint AND NOT is_populated",
        pgt_id,
    )
    for (relid,) in rows:
        await session.fetch("SELECT pgtrickle._unregister($1::bigint)", pgt_id)
        await drop_storage(session, relid)


async def drop_storage(session: SqlSession, relid: int) -> None:
    """Drop the table of a stream table, with all that depends on it. Raises SqlError 40001 if it was just renamed."""
    async with local_setting(session, "pgtrickle.maintenance", "on"):
        await session.fetch("SELECT pgtrickle._drop_table($1::bigint::oid, true)::text", relid)


async def notice(session: SqlSession, level: str, message: str, hint: str | None = None) -> None:
    """Tell the client something, as far as its `client_min_messages` wants to know."""
    await session.fetch("SELECT pgtrickle._notice($1::text, $2::text, $3::text)", level, message, hint)


_REGISTER = """
SELECT pgtrickle._register($2::text::jsonb || pg_catalog.jsonb_build_object('pgt_relid', relid)),
       pgtrickle._install_guard(relid)::pg_catalog.text
FROM (SELECT $1::text::pg_catalog.regclass::oid AS relid) AS storage
"""


@dataclass(frozen=True, slots=True)
class CreationTarget:
    """The name of a stream table to be created, and the session that creates it."""

    schema: str
    name: str
    exists: bool
    is_stream_table: bool
    caller: str
    """The role that the session acts as."""
    isolation: str

    @property
    def storage(self) -> str:
        """The storage table, qualified and quoted."""
        return quote(self.schema, self.name)


_TARGET = """
SELECT t.parts, t.has_schema, t.is_taken, t.is_stream_table,
       current_user::text, pg_catalog.current_setting('transaction_isolation')
FROM pgtrickle._creation_target($1::text) AS t
"""


async def creation_target(session: SqlSession, name: str) -> CreationTarget:
    """The stream table to be created, in `public` where no schema is said. Its name is locked."""
    ((parts, has_schema, is_taken, is_stream_table, caller, isolation),) = await session.fetch(_TARGET, name)
    if len(parts) > 2:
        raise SqlError("42601", f'improper stream table name "{name}" (too many dotted names)')
    schema, table = parts
    if schema in RESERVED_SCHEMAS:
        raise SqlError("42939", f'schema "{schema}" is reserved', hint="Choose another schema for the stream table.")
    if not has_schema:
        raise SqlError("3F000", f'schema "{schema}" does not exist')
    return CreationTarget(schema, table, is_taken, is_stream_table, caller, isolation)


def _refuse_in_every_mode(definition: Definition) -> None:
    for column in definition.output:
        if column.name.startswith(HIDDEN_PREFIX):
            raise SqlError(
                "42939",
                f'column name "{column.name}" is reserved',
                hint=f'Names that start with "{HIDDEN_PREFIX}" are.',
            )
        if column.name in SYSTEM_COLUMNS:
            raise SqlError(
                "42701",
                f'system column "{column.name}" cannot be a column of a stream table',
                hint=f"Leave it out, or give it another name: {column.name} AS source_{column.name}.",
            )
    for dependency in definition.dependencies:
        if dependency.source.schema.startswith("pg_temp"):
            raise SqlError(
                "0A000", f'temporary relation "{dependency.source.name}" cannot be a source of a stream table'
            )
    refused = definition.inspected.rejected
    if refused is not None:
        construct, hint = refused
        raise SqlError("0A000", f"{construct} is not supported in a defining query", hint=hint)


async def _over_copies(
    session: SqlSession, definition: Definition, requested: RefreshMode, owner: str
) -> tuple[Definition, tuple[Copy, ...]]:
    """The definition as it is maintained: over copies of its foreign tables, if these are to be polled."""
    foreign = foreign_tables(definition)
    if not foreign:
        return definition, ()
    names = ", ".join(f'"{dependency.source.name}"' for dependency in foreign)
    lake = await has_lake_tables(session, foreign)
    if lake or (requested != RefreshMode.FULL and await polling(session)):
        try:
            async with savepoint(session):
                found = await read_from_copies(session, definition, owner)
        except CannotPoll as reason:
            if lake:
                message = f"lake table {names} cannot be read in this query because of {reason.message}"
                raise SqlError("0A000", message) from reason
            fallback = reason.message
        else:
            told = f"foreign table {names} is polled: each refresh reads all of it and compares it with a local copy"
            await notice(session, "INFO", told)
            return found
        hint = f"It is not polled because of {fallback}."
    else:
        hint = "With pg_trickle.foreign_table_polling = on it is polled, and changes are applied incrementally."
    told = f"changes of foreign table {names} cannot be captured: each refresh computes the whole query"
    await notice(session, "INFO", told, hint)
    return definition, ()


async def _plan(session: SqlSession, definition: Definition, requested: RefreshMode) -> tuple[PlanInputs, str | None]:
    """Plan inputs, and the reason why the query can only be computed as a whole, if it can."""
    try:
        return await plan(session, definition), None
    except TooComplex as reason:
        if requested == RefreshMode.FULL:
            return opaque(definition), "a query of this complexity"
        hint = f"{reason.hint} With refresh_mode => 'FULL' it need not be compiled."
        raise SqlError(reason.sqlstate, reason.message, detail=reason.detail, hint=hint) from reason
    except ForeignSource as reason:
        return opaque(definition), reason.construct
    except NotDifferentiable as reason:
        if requested in (RefreshMode.DIFFERENTIAL, RefreshMode.IMMEDIATE):
            raise SqlError(
                "0A000",
                f"{reason.construct} is not supported in {requested} mode",
                detail=reason.detail,
                hint=reason.hint or "Use refresh_mode => 'AUTO' or 'FULL'.",
            ) from reason
        return opaque(definition), reason.construct


async def announce(session: SqlSession, defined: Defined) -> None:
    """Tell the client what it might not expect of a query that it has defined a stream table by."""
    definition, fallback = defined.definition, defined.fallback
    if defined.requested == RefreshMode.AUTO and fallback is not None:
        await notice(
            session,
            "NOTICE",
            f"stream table uses FULL refresh: {fallback} is not supported in DIFFERENTIAL mode",
            "Each refresh computes the whole query. See pgtrickle.explain_st().",
        )
    catalogs = [d.source.name for d in definition.dependencies if d.source.schema in SYSTEM_SCHEMAS and d.view is None]
    if catalogs:
        await notice(
            session,
            "NOTICE",
            f'defining query reads system catalog "{catalogs[0]}"',
            "Each refresh shows what the stream table's owner sees, the stream table itself included.",
        )
    stable = definition.functions_of("s")
    if defined.mode == RefreshMode.DIFFERENTIAL and stable:
        await notice(
            session,
            "WARNING",
            f"defining query uses stable function {', '.join(stable)}",
            "Rows keep the value of the refresh that wrote them.",
        )
    if await _has_star(definition.original):
        await notice(
            session,
            "NOTICE",
            "* in the defining query stands for the columns that its sources have now",
            "As in a view, columns that are added to them later do not appear.",
        )


async def _has_star(query: str) -> bool:
    """Whether a query gives out `*`, as far as that can be seen in its text."""
    try:
        return ("*" in query or "table" in query.lower()) and bool(await compilers().run(jobs.has_star, query))
    except TooComplex:
        return False


async def explanation(inputs: PlanInputs, definition: Definition, storage: str) -> dict[str, Any]:
    """What `pgt_stream_tables.explain` keeps: the compiler's inputs, and what `explain_st` shows of the plan.

    ``texts`` goes into `plan_texts`, which no refresh reads.
    """
    shown = await (await compiled(inputs)).explain(storage)
    return shown | {
        "inputs": inputs.to_json(),
        "sources": [f"{d.source.schema}.{d.source.name} (oid={d.source.oid})" for d in definition.dependencies],
    }
