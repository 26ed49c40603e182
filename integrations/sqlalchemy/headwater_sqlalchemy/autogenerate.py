"""What autogenerate must not touch: what the server has made. Both functions are hooks of `context.configure`."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from sqlalchemy import Table
from sqlalchemy.sql.schema import SchemaItem

STREAM_TABLE: Final[dict[str, Any]] = {"info": {"stream_table": True}}
"""`__table_args__` of a class, or keyword arguments of a `Table`, that stands for a stream table and is only read."""

SERVER_SCHEMAS: Final = frozenset(
    {"pgtrickle", "pgtrickle_changes", "pgtrickle_roles", "pgque", "accum", "accum_internal"}
)
"""Schemas of the server's: its catalog, change buffers, queues and registers."""

ROW_ID: Final = "__pgt_row_id"
"""The column that each stream table has, and nothing else."""


def include_name(
    name: str | None, type_: str, parent_names: MutableMapping[str, str | None] | Mapping[str, str | None]
) -> bool:
    """False for the server's schemas and what is in them.

    >>> include_name("pgque", "schema", {}), include_name("shop", "schema", {}), include_name(None, "schema", {})
    (False, True, True)
    """
    return (name if type_ == "schema" else parent_names.get("schema_name")) not in SERVER_SCHEMAS


def include_object(
    object: SchemaItem, name: str | None, type_: str, reflected: bool, compare_to: SchemaItem | None
) -> bool:
    """False for stream tables, with their indexes: they are made by migrations, never by comparing.

    A stream table is what is declared with `STREAM_TABLE`, or has the column `__pgt_row_id` in the database.
    """
    if any(_is_stream_table(_table_of(item)) for item in (object, compare_to)):
        return False
    table = _table_of(object)
    return table is None or table.schema not in SERVER_SCHEMAS


def _table_of(item: SchemaItem | None) -> Table | None:
    table = item if isinstance(item, Table) else getattr(item, "table", None)
    return table if isinstance(table, Table) else None


def _is_stream_table(table: Table | None) -> bool:
    return table is not None and (bool(table.info.get("stream_table")) or ROW_ID in table.c)
