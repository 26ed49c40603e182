"""A call of a function in the database, and the two ways to make it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from psycopg import AsyncConnection, Connection, sql
from psycopg.rows import tuple_row

T = TypeVar("T")
Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A statement with the values that are bound to it, and what its rows mean."""

    statement: sql.SQL | sql.Composed
    parameters: Sequence[object]
    read: Callable[[Rows], T]


def value(rows: Rows) -> Any:
    """The one value of the one row."""
    ((only,),) = rows
    return only


def make(connection: Connection[Any], call: Call[T]) -> T:
    """Make the call in the connection's transaction, whatever rows the connection has for others."""
    with connection.cursor(row_factory=tuple_row) as cursor:
        return call.read(cursor.execute(call.statement, call.parameters).fetchall())


async def make_async(connection: AsyncConnection[Any], call: Call[T]) -> T:
    """The same, on an asynchronous connection."""
    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(call.statement, call.parameters)
        return call.read(await cursor.fetchall())
