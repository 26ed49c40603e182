"""The columns of a storage table, and how they become those of another query or of another version of the compiler."""

from __future__ import annotations

import json
from dataclasses import dataclass

from catalog.session import SqlSession
from engine.session.roles import execute_as_owner
from engine.session.transactions import local_setting, set_role
from engine.stream_tables.analysis import HIDDEN_PREFIX, analysed
from engine.stream_tables.plan_inputs import PlanInputs, compiled
from engine.stream_tables.refresh_state import RefreshContext
from sql.base.text import quote
from sql.storage.shape import ROW_ID

Layout = dict[str, str]
"""Columns in order: the name, and the type with its collation as ALTER TABLE takes it."""


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """What must be done to the columns of a storage table."""

    dropped: tuple[str, ...]
    added: Layout

    @classmethod
    def between(cls, present: Layout, wanted: Layout) -> ColumnChanges:
        """From the columns that are present to those that are wanted, in the order of these.

        What is added comes last. So a column stays where it has its type, and all that are wanted before it stay, too,
        and stand before it. The others are dropped and added.
        """
        names, kept = list(present), 0
        for number, (name, definition) in enumerate(wanted.items()):
            if present.get(name) != definition or name not in names[kept:]:
                added = dict(list(wanted.items())[number:])
                break
            kept = names.index(name, kept) + 1
        else:
            added = {}
        staying = wanted.keys() - added.keys()
        return cls(tuple(name for name in present if name not in staying), added)

    @property
    def rebuilt(self) -> tuple[str, ...]:
        """The columns that are dropped and added: their type, or their place, is another one."""
        return tuple(name for name in self.added if name in self.dropped)


async def column_changes(
    session: SqlSession, context: RefreshContext, inputs: PlanInputs
) -> tuple[ColumnChanges, ColumnChanges]:
    """What must be done to the storage table so that it can hold the rows of a query: to the user's columns, and to
    the hidden ones.
    """
    built = await compiled(inputs)
    async with set_role(session, context.owner, current=context.caller):
        described: Layout = dict((await analysed(session, built.storage_query, ("layout",)))["layout"])
    ((text,),) = await session.fetch("SELECT pgtrickle._layout($1::bigint::oid)::text", context.relid)
    present: Layout = {name: definition for name, definition in json.loads(text) if name != ROW_ID}
    wanted = {column.name: described.get(column.name, "bigint") for column in built.columns if column.hidden}
    hidden = {name: definition for name, definition in present.items() if name.startswith(HIDDEN_PREFIX)}
    added = {name: definition for name, definition in wanted.items() if hidden.get(name) != definition}
    return (
        ColumnChanges.between(
            {name: definition for name, definition in present.items() if name not in hidden},
            {column.name: described[column.name] for column in built.output},
        ),
        ColumnChanges(tuple(name for name in hidden if name not in wanted or name in added), added),
    )


async def change_columns(
    session: SqlSession, context: RefreshContext, inputs: PlanInputs, *changes: ColumnChanges
) -> None:
    """Change the columns of the storage table, whose OID stays. What is in those that are added is computed afterwards.

    Raises SqlError 2BP01 where a view or something else in PostgreSQL depends on a column that is dropped.
    """
    dropped = [f"DROP COLUMN {quote(name)}" for change in changes for name in change.dropped]
    added = {name: definition for change in changes for name, definition in change.added.items()}
    if not dropped and not added:
        return
    columns = [f"ADD COLUMN {quote(name)} {definition}" for name, definition in added.items()]
    built = await compiled(inputs)
    indexes = [
        statement
        for statement in await built.create_storage_sql(context.storage)
        if statement.startswith("CREATE INDEX") and any(statement.endswith(f"({quote(name)})") for name in added)
    ]
    async with local_setting(session, "pgtrickle.maintenance", "on"):
        alter = f"ALTER TABLE {context.storage} {', '.join(dropped + columns)}"
        await execute_as_owner(session, context.owner, [alter, *indexes], current=context.caller)
