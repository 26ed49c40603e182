"""Alembic's operations for stream tables. Every value is bound; offline, Alembic writes it as a literal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import sqlalchemy as sa
from alembic.operations import MigrateOperation, Operations

CREATED_WITH = (
    *("schedule", "refresh_mode", "initialize", "diamond_consistency", "diamond_schedule_policy"),
    *("cdc_mode", "append_only", "engine"),
)
"""What a stream table can be created with, beside name and query; see `pgtrickle.create_stream_table`."""

ALTERED = (
    *("query", "schedule", "refresh_mode", "status", "diamond_consistency", "diamond_schedule_policy"),
    *("cdc_mode", "append_only"),
)
"""What can be altered; see `pgtrickle.alter_stream_table`."""

EXISTING = "existing_"


def qualified(name: str, schema: str | None) -> str:
    """A name as the server's functions take it; both parts are quoted, so that they mean what they say.

    >>> qualified("totals", "shop"), qualified('a"b', None)
    ('"shop"."totals"', '"a""b"')
    """
    return ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name) if part is not None)


def call(function: str, arguments: Mapping[str, Any]) -> sa.Executable:
    """A SELECT of a function of `pgtrickle` with named arguments, which are bound."""
    named = ", ".join(f"{name} => :{name}" for name in arguments)
    types = {name: sa.Boolean if isinstance(value, bool) else sa.Text for name, value in arguments.items()}
    bound = [sa.bindparam(name, value, types[name]) for name, value in arguments.items()]
    return sa.text(f"SELECT pgtrickle.{function}({named})").bindparams(*bound)


def _checked(options: Mapping[str, Any], known: tuple[str, ...], function: str) -> dict[str, Any]:
    """Those that are given. Raises TypeError for one that there is not."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise TypeError(f"{function}() has no parameter {', '.join(unknown)}; it has {', '.join(known)}")
    return {name: value for name, value in options.items() if value is not None}


@Operations.register_operation("create_stream_table")
class CreateStreamTableOp(MigrateOperation):
    """A stream table is created; reversed, it is dropped."""

    def __init__(self, name: str, query: str, *, schema: str | None = None, **options: Any):
        self.name = name
        self.query = query
        self.schema = schema
        self.options = _checked(options, CREATED_WITH, "create_stream_table")

    @classmethod
    def create_stream_table(
        cls, operations: Operations, name: str, query: str, *, schema: str | None = None, **options: Any
    ) -> None:
        """Create a stream table over a query.

        `options` are the parameters of `pgtrickle.create_stream_table`: schedule, refresh_mode, initialize,
        diamond_consistency, diamond_schedule_policy, cdc_mode, append_only, engine. Raises TypeError for others.
        """
        operations.invoke(cls(name, query, schema=schema, **options))

    def reverse(self) -> DropStreamTableOp:
        return DropStreamTableOp(self.name, schema=self.schema, existing=self)


@Operations.register_operation("drop_stream_table")
class DropStreamTableOp(MigrateOperation):
    """A stream table is dropped; reversed, it is created again, if it is known how."""

    def __init__(self, name: str, *, schema: str | None = None, existing: CreateStreamTableOp | None = None):
        self.name = name
        self.schema = schema
        self.existing = existing

    @classmethod
    def drop_stream_table(
        cls,
        operations: Operations,
        name: str,
        *,
        schema: str | None = None,
        existing_query: str | None = None,
        **existing: Any,
    ) -> None:
        """Drop a stream table, with what depends on it.

        `existing_query` and `existing_schedule` and so on say what it was created with: nothing is done with them, but
        the operation can be reversed then. Raises TypeError for others.
        """
        options = _checked(
            {name.removeprefix(EXISTING): value for name, value in existing.items()},
            CREATED_WITH,
            "create_stream_table",
        )
        made = None if existing_query is None else CreateStreamTableOp(name, existing_query, schema=schema, **options)
        operations.invoke(cls(name, schema=schema, existing=made))

    def reverse(self) -> CreateStreamTableOp:
        if self.existing is None:
            raise ValueError(f"stream table {self.name}: say existing_query=… for it to be created again")
        return self.existing


@Operations.register_operation("alter_stream_table")
class AlterStreamTableOp(MigrateOperation):
    """A stream table is given another query, or other parameters; reversed, those that it had."""

    def __init__(
        self, name: str, changes: Mapping[str, Any], existing: Mapping[str, Any], *, schema: str | None = None
    ):
        self.name = name
        self.schema = schema
        self.changes = _checked(changes, ALTERED, "alter_stream_table")
        self.existing = _checked(existing, ALTERED, "alter_stream_table")

    @classmethod
    def alter_stream_table(
        cls, operations: Operations, name: str, *, schema: str | None = None, **options: Any
    ) -> None:
        """Alter a stream table: query, schedule, refresh_mode, status, diamond_consistency, diamond_schedule_policy,
        cdc_mode, append_only, as in `pgtrickle.alter_stream_table`; what is not given stays.

        The same with `existing_` before them say what was before: nothing is done with them, but the operation can be
        reversed then. Raises TypeError for others.
        """
        existing = {name.removeprefix(EXISTING): value for name, value in options.items() if name.startswith(EXISTING)}
        changes = {name: value for name, value in options.items() if not name.startswith(EXISTING)}
        operations.invoke(cls(name, changes, existing, schema=schema))

    def reverse(self) -> Self:
        unknown = sorted(set(self.changes) - set(self.existing))
        if unknown:
            said = ", ".join(f"{EXISTING}{name}=…" for name in unknown)
            raise ValueError(f"stream table {self.name}: say {said} for it to be altered back")
        before = {name: self.existing[name] for name in self.changes}
        return type(self)(self.name, before, self.changes, schema=self.schema)


@Operations.implementation_for(CreateStreamTableOp)
def _create(operations: Operations, operation: CreateStreamTableOp) -> None:
    arguments = {"name": qualified(operation.name, operation.schema), "query": operation.query, **operation.options}
    operations.execute(call("create_stream_table", arguments))


@Operations.implementation_for(DropStreamTableOp)
def _drop(operations: Operations, operation: DropStreamTableOp) -> None:
    operations.execute(call("drop_stream_table", {"name": qualified(operation.name, operation.schema)}))


@Operations.implementation_for(AlterStreamTableOp)
def _alter(operations: Operations, operation: AlterStreamTableOp) -> None:
    arguments = {"name": qualified(operation.name, operation.schema), **operation.changes}
    operations.execute(call("alter_stream_table", arguments))
