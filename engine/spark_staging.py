"""Large results on their way into PostgreSQL: a staging area of unlogged tables, filled over several connections.

An area is the tables ``pgtrickle_staging."<number>_<part>"``. Whoever uses it holds a lease of its number, on
a connection of its own, until they are dropped. So areas whose server was killed are recognised, and removed by
`pgtrickle._remove_staging_leftovers`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import asyncpg
import pyarrow as pa
import structlog

from catalog.session import SqlError
from engine.spark_writer import ONLY_PLAIN_TYPES, OTHER_TYPES, STAGING_SCHEMA, Part, csv_chunks
from sql.render import quote

log = structlog.get_logger(__name__)

Connect = Callable[[], Awaitable[asyncpg.Connection]]

WRITERS = 4
"""Connections over which this process fills an area."""

_BROKEN = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


class StagingArea:
    """Tables for one result. `source` is what a query reads them by."""

    def __init__(self, connection: asyncpg.Connection, part: Part, columns: Sequence[str]):
        self._connection = connection
        self.part = part
        self._columns = list(columns)
        self._names: list[str] = []
        self.rows = 0

    @staticmethod
    async def open(
        connect: Connect, owner: str, columns: Sequence[str], declared: str, choose: random.Random | None = None
    ) -> StagingArea:
        """An empty area for the role `owner` (quoted) to read; `declared` is the SQL of its `columns` and types.

        Raises SqlError, 42501 if the engine may not create tables in `pgtrickle_staging`.
        """
        connection = await connect()
        choose = choose or random.SystemRandom()
        while True:
            number = choose.randrange(1, 1 << 31)
            if await connection.fetchval("SELECT pgtrickle._take_lease('staging ' || $1::int4)", number):
                return StagingArea(connection, Part(number, declared, owner), columns)

    def add(self, parts: Iterable[tuple[str, int]]) -> None:
        """Parts that were written elsewhere: their names and numbers of rows."""
        for name, rows in parts:
            self._names.append(name)
            self.rows += rows

    async def fill(self, connect: Connect, table: pa.Table, writers: int = WRITERS) -> None:
        """Write a table's rows over so many connections at once. Raises SqlError."""
        share = -(-table.num_rows // writers)
        slices = [table.slice(start, share) for start in range(0, table.num_rows, max(share, 1))] or [table]
        written = [asyncio.ensure_future(self._fill_part(connect, str(n), rows)) for n, rows in enumerate(slices)]
        try:
            await asyncio.gather(*written)
        except BaseException:
            for task in written:
                task.cancel()
            await asyncio.gather(*written, return_exceptions=True)
            raise
        self.add((str(n), rows.num_rows) for n, rows in enumerate(slices))

    async def _fill_part(self, connect: Connect, name: str, rows: pa.Table) -> None:
        connection = await connect()
        try:
            async with connection.transaction():
                for statement in self.part.create(name):
                    await connection.fetch(statement)  # one statement, by the extended protocol
                if not await connection.fetchval(ONLY_PLAIN_TYPES.format("$1::pg_catalog.text"), self.part.table(name)):
                    raise SqlError("40001", OTHER_TYPES)
                table = f"{self.part.number}_{name}"
                await connection.copy_to_table(
                    *(table,),
                    schema_name=STAGING_SCHEMA,
                    columns=self._columns,
                    source=_chunks(rows),
                    format="csv",
                    freeze=True,
                )
                await connection.fetch(f"ANALYZE {self.part.table(name)}")
        except asyncpg.PostgresError as error:
            raise SqlError(error.sqlstate or "XX000", error.message or str(error)) from error
        except (asyncpg.InterfaceError, OSError) as error:
            raise SqlError("08006", f"connection to PostgreSQL failed: {error}") from error
        finally:
            with suppress(*_BROKEN):
                await connection.close()

    @property
    def parts(self) -> int:
        return len(self._names)

    @property
    def source(self) -> str:
        """For FROM, followed by an alias."""
        parts = [f"SELECT * FROM {self.part.table(name)}" for name in self._names]
        return f"({' UNION ALL '.join(parts)})"

    async def drop(self) -> None:
        """Drop the tables, once the transaction that reads them has ended; this waits for it. Errors are logged."""
        try:
            await _drop(self._connection, self.part.number)
            await self._connection.execute(
                "DELETE FROM pgtrickle.pgt_leases l WHERE l.name = 'staging ' || $1::int4", self.part.number
            )
        except _BROKEN as error:
            log.warning("staging_not_dropped", number=self.part.number, error=str(error))
        finally:
            self._connection.terminate()


async def _chunks(table: pa.Table) -> AsyncIterator[bytes]:
    for batch in table.to_batches():
        chunks = csv_chunks(batch)
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk


_TABLES = """
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r' AND pg_catalog.split_part(c.relname, '_', 1) = $2
"""


async def _drop(connection: asyncpg.Connection, number: int) -> None:
    for (name,) in await connection.fetch(_TABLES, STAGING_SCHEMA, str(number)):
        await connection.fetch(f"DROP TABLE IF EXISTS {quote(STAGING_SCHEMA, name)}")
