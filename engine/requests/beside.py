"""The next contents of a stream table, computed beside the present ones: readers wait for the switch alone.

`ALTER TABLE` locks readers out until its transaction ends. So what is to be new are columns that another transaction
has added before, empty and under names that nobody knows. The transaction that computes the contents writes them there,
which locks nobody out: readers see the rows as they were until it commits. In the end it drops the columns that go, and
gives the new ones their names; that alone takes the lock, for milliseconds.

The statements of a refresh write through a view in which the new columns have their names to be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from tenacity import AsyncRetrying, retry_if_result, stop_after_delay, wait_random_exponential

from catalog.session import SqlError, SqlSession
from engine.capture.ahead import own_session
from engine.capture.lock_retry import LOCK_PATIENCE
from engine.session.roles import execute_as_owner
from engine.session.transactions import local_setting, savepoint
from engine.stream_tables.plan_inputs import PlanInputs
from engine.stream_tables.refresh_state import RefreshContext
from engine.stream_tables.storage_columns import ColumnChanges, Layout, change_columns, index_on, indexed_of, layout
from sql.base.text import quote
from sql.storage.shape import ROW_ID

logger = structlog.get_logger(__name__)

NEXT = "__pgt_next_"
"""How the names of columns begin that hold what is to come."""

SOON = "200ms"
"""How long the lock of the switch is waited for at a time: meanwhile all who come to read wait, too."""

LOCK_NOT_AVAILABLE = "55P03"


@dataclass(frozen=True, slots=True)
class Beside:
    """A stream table whose columns change; `storage` is what its next contents are written to."""

    context: RefreshContext
    storage: str
    user: ColumnChanges
    hidden: ColumnChanges
    places: Mapping[str, str]
    """By their names to be, the columns that are new or have another type, as they are called until then."""
    indexed: tuple[str, ...]
    """Those of them, by their names to be, that have an index."""

    async def switch(self, session: SqlSession) -> None:
        """Make the columns what they are to be. What runs in the session later, in its transaction, readers wait for.

        Raises SqlError where PostgreSQL refuses a change of a column.
        """
        context, changes = self.context, (self.user, self.hidden)
        if not any(change.clauses for change in changes):
            return
        indexes = [index_on(context, self.places[name]) for name in self.indexed]
        async with local_setting(session, "pgtrickle.maintenance", "on"):
            await execute_as_owner(session, context.owner, indexes, current=context.caller)
            await _lock_out(session, context)
            await session.fetch("SELECT pgtrickle._drop_beside($1::bigint)", context.pgt_id)
            await execute_as_owner(session, context.owner, self._statements, current=context.caller)

    @property
    def _statements(self) -> list[str]:
        alter = f"ALTER TABLE {self.context.storage}"
        retyped = {**self.user.retyped, **self.hidden.retyped}
        clauses = [f"DROP COLUMN {quote(name)}" for change in (self.user, self.hidden) for name in change.dropped]
        clauses += [
            f"ALTER COLUMN {quote(name)} TYPE {type_} USING {quote(self.places[name])}"
            for name, type_ in retyped.items()
        ]
        statements = [f"{alter} {', '.join(clauses)}"] if clauses else []
        if retyped:
            statements.append(f"{alter} {', '.join(f'DROP COLUMN {quote(self.places[name])}' for name in retyped)}")
        added = [name for name in self.places if name not in retyped]
        return statements + [f"{alter} RENAME COLUMN {quote(self.places[name])} TO {quote(name)}" for name in added]


async def beside(
    session: SqlSession,
    context: RefreshContext,
    inputs: PlanInputs,
    user: ColumnChanges,
    hidden: ColumnChanges,
) -> Beside:
    """What the next contents of a locked stream table are written to; `Beside.switch` must follow.

    Where something depends on a column that goes, or the session's transaction has locked the table itself, the columns
    are changed at once, and readers wait until it ends. Raises SqlError, as `change_columns` does.
    """
    changing = [*user.dropped, *user.retyped, *hidden.dropped, *hidden.retyped]
    new = {**user.added, **user.retyped, **hidden.added, **hidden.retyped}
    if not changing and not new:
        return Beside(context, context.storage, user, hidden, {}, ())
    ((held,),) = await session.fetch(
        "SELECT pgtrickle._columns_held($1::bigint::oid, $2::text[])", context.relid, changing
    )
    present = await layout(session, context)
    places = dict(zip(new, _free_names(present, len(new)), strict=True))
    if held or (new and not await _add_ahead(context, {places[name]: type_ for name, type_ in new.items()})):
        await change_columns(session, context, inputs, user, hidden)
        nothing = ColumnChanges((), {})
        return Beside(context, context.storage, nothing, nothing, {}, ())
    storage = context.storage
    if new:
        going = {*changing, *(name for name in present if name.startswith(NEXT))}
        kept = [[name, name] for name in (ROW_ID, *present) if name not in going]
        columns = json.dumps(kept + [[place, name] for name, place in places.items()])
        ((storage,),) = await session.fetch(
            "SELECT pgtrickle._view_beside($1::bigint, $2::text::jsonb)", context.pgt_id, columns
        )
    return Beside(context, storage, user, hidden, places, tuple(await indexed_of(context, inputs, new)))


def _free_names(present: Layout, count: int) -> list[str]:
    """Names for new columns beside those that are present, of which some may have been left by a failure.

    >>> _free_names({"a": "int", "__pgt_next_2": "int"}, 2)
    ['__pgt_next_1', '__pgt_next_3']
    """
    candidates = (f"{NEXT}{number}" for number in range(1, count + len(present) + 1))
    return [name for name in candidates if name not in present][:count]


async def _add_ahead(context: RefreshContext, columns: Layout) -> bool:
    """Add columns in a transaction of the engine's own; false where that cannot be done now."""
    async with own_session() as own:
        if own is None:
            return False
        await own.execute("BEGIN")
        try:
            await own.fetch("SELECT pgtrickle._note_columns_ahead($1::bigint, $2::text[])", context.pgt_id, [*columns])
            added = ", ".join(f"ADD COLUMN {quote(name)} {type_}" for name, type_ in columns.items())
            async with local_setting(own, "pgtrickle.maintenance", "on"):
                if not await _locked_out(own, context):
                    raise SqlError(LOCK_NOT_AVAILABLE, "it is being read")
                await execute_as_owner(own, context.owner, [f"ALTER TABLE {context.storage} {added}"])
            await own.execute("COMMIT")
        except SqlError as error:
            if not error.is_of_connection:
                await own.execute("ROLLBACK")
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            logger.info("columns are not added ahead", stream_table=context.storage, reason=error.message)
            return False
    return True


async def _locked_out(session: SqlSession, context: RefreshContext) -> bool:
    """Lock the table for a change of its columns; false if it was read all the time."""

    async def locked() -> bool:
        try:
            async with savepoint(session), local_setting(session, "lock_timeout", SOON):
                await execute_as_owner(session, context.owner, [_lock(context)])
        except SqlError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            return False
        return True

    return bool(
        await AsyncRetrying(
            retry=retry_if_result(lambda done: not done),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            stop=stop_after_delay(LOCK_PATIENCE),
            retry_error_callback=lambda _: False,
        )(locked)
    )


async def _lock_out(session: SqlSession, context: RefreshContext) -> None:
    """The same; one that is read all the time is waited for in the end, as any ALTER TABLE does."""
    if not await _locked_out(session, context):
        await execute_as_owner(session, context.owner, [_lock(context)], current=context.caller)


def _lock(context: RefreshContext) -> str:
    return f"LOCK TABLE ONLY {context.storage} IN ACCESS EXCLUSIVE MODE"
