"""The columns of a storage table, and how they become those of another query or of another version of the compiler."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, field

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
    retyped: Layout = field(default_factory=dict)

    @classmethod
    def between(cls, present: Layout, wanted: Layout) -> ColumnChanges:
        """From the columns that are present to those that are wanted, in the order of these.

        What is added comes last. So a column stays as long as all that are wanted before it stay, and stand before it.
        The others are dropped and added.
        """
        names, kept = list(present), 0
        staying: list[str] = []
        for name in wanted:
            if name not in names[kept:]:
                break
            kept = names.index(name, kept) + 1
            staying.append(name)
        return cls(
            tuple(name for name in present if name not in staying),
            {name: definition for name, definition in wanted.items() if name not in staying},
            {name: wanted[name] for name in staying if wanted[name] != present[name]},
        )

    @property
    def moved(self) -> tuple[str, ...]:
        """The columns that are dropped and added, since their place is another one."""
        return tuple(name for name in self.added if name in self.dropped)

    @property
    def clauses(self) -> list[str]:
        """Of ALTER TABLE. What is in columns that are added or retyped is computed afterwards."""
        return [
            *(f"DROP COLUMN {quote(name)}" for name in self.dropped),
            *(f"ALTER COLUMN {quote(name)} TYPE {type_} USING NULL" for name, type_ in self.retyped.items()),
            *(f"ADD COLUMN {quote(name)} {definition}" for name, definition in self.added.items()),
        ]


async def layout(session: SqlSession, context: RefreshContext) -> Layout:
    """The columns that the storage table has beside the row id."""
    ((text,),) = await session.fetch("SELECT pgtrickle._layout($1::bigint::oid)::text", context.relid)
    return {name: definition for name, definition in json.loads(text) if name != ROW_ID}


async def column_changes(
    session: SqlSession, context: RefreshContext, inputs: PlanInputs
) -> tuple[ColumnChanges, ColumnChanges]:
    """What must be done to the storage table so that it can hold the rows of a query: to the user's columns, and to
    the hidden ones.
    """
    built = await compiled(inputs)
    async with set_role(session, context.owner, current=context.caller):
        described: Layout = dict((await analysed(session, built.storage_query, ("layout",)))["layout"])
    present = await layout(session, context)
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
    """Change the columns of the storage table, whose OID stays. What is in those that are new is computed afterwards.

    Raises SqlError where a view or something else in PostgreSQL depends on a column: 2BP01 if it is dropped, 0A000 if
    it is to have another type.
    """
    clauses = [clause for change in changes for clause in change.clauses]
    if not clauses:
        return
    added = [name for change in changes for name in change.added]
    indexes = [index_on(context, name) for name in await indexed_of(context, inputs, added)]
    async with local_setting(session, "pgtrickle.maintenance", "on"):
        alter = f"ALTER TABLE {context.storage} {', '.join(clauses)}"
        await execute_as_owner(session, context.owner, [alter, *indexes], current=context.caller)


async def indexed_of(context: RefreshContext, inputs: PlanInputs, names: Collection[str]) -> list[str]:
    """Those of the storage table's columns that have an index of the compiler's."""
    statements = await (await compiled(inputs)).create_storage_sql(context.storage)
    return [name for name in names if index_on(context, name) in statements]


def index_on(context: RefreshContext, name: str) -> str:
    """The statement that makes an index on a column of the storage table."""
    return f"CREATE INDEX ON {context.storage} ({quote(name)})"
