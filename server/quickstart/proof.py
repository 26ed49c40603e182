"""The proof: a stream table holds exactly what its query returns, duplicates counted."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql

from server.quickstart.served import Connection
from server.quickstart.stream_tables import StreamTable

_COLUMNS = """
SELECT attname::text FROM pg_catalog.pg_attribute
WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attname NOT LIKE '\\_\\_pgt\\_%%'
ORDER BY attnum
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A stream table against its query."""

    name: str
    rows: int
    missing: int
    """Rows of the query that the stream table lacks."""
    surplus: int
    """Rows of the stream table that the query does not return."""
    query_ms: float
    read_ms: float

    @property
    def equal(self) -> bool:
        return self.missing == 0 and self.surplus == 0


def compare(connection: Connection, stream_tables: Sequence[StreamTable]) -> Iterator[Comparison]:
    """Compare each with its query, all of them in one snapshot."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        for table in stream_tables:
            names = [str(name) for (name,) in connection.execute(_COLUMNS, [table.name])]
            columns = sql.SQL(", ").join(sql.Identifier(name) for name in names)
            stored = sql.SQL("SELECT {} FROM {}").format(columns, sql.Identifier(table.name))
            query = sql.SQL("SELECT {} FROM ({}) AS query").format(columns, sql.SQL(table.query))
            rows, read_ms = _counted(connection, stored)
            _, query_ms = _counted(connection, query)
            missing, _ = _counted(connection, sql.SQL("({}) EXCEPT ALL ({})").format(query, stored))
            surplus, _ = _counted(connection, sql.SQL("({}) EXCEPT ALL ({})").format(stored, query))
            yield Comparison(table.name, rows, missing, surplus, query_ms, read_ms)


def _counted(connection: Connection, query: sql.Composed) -> tuple[int, float]:
    """The number of rows and the milliseconds it took."""
    began = time.perf_counter()
    rows = connection.execute(query).fetchall()
    return len(rows), (time.perf_counter() - began) * 1000
