"""Large results on their way into PostgreSQL: a staging area of unlogged tables, filled over several connections.

An area is the tables ``pgtrickle_staging."<number>_<part>"``, all made like ``"<number>_like"``. Whoever uses it holds
a lease of its number, on a connection of its own, until they are dropped. So areas whose server was killed are
recognised, and removed by `pgtrickle._remove_staging_leftovers`.

Spark's executors, which may run on other machines, fill an area as a role that is made for it and dropped as soon as
they have. It may do nothing but make parts of it and put rows into them (catalog/pgtrickle/functions/63_staging.sql).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import random
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

import asyncpg
import pyarrow as pa
import structlog
from psycopg.conninfo import make_conninfo

from catalog.session import SqlError, SqlSession
from engine.session.pool import PooledSession
from engine.spark.partition_writer import STAGING_SCHEMA, Fields, checked, csv_chunks
from sql.base.text import quote

log = structlog.get_logger(__name__)

Connect = Callable[[], Awaitable[asyncpg.Connection]]

WRITERS = 4
"""Connections over which this process fills an area."""

_BROKEN = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)


class StagingArea:
    """Tables for one result. `source` is what a query reads them by."""

    def __init__(self, connection: asyncpg.Connection, number: int, owner: str, columns: Sequence[str]):
        self._connection = connection
        self._session = PooledSession(connection)
        self.number = number
        self._owner = owner
        self._columns = list(columns)
        self._names: list[str] = []
        self.login = ""
        """How the area's writer logs in, between `admit` and `expel`."""
        self.rows = 0

    @staticmethod
    async def open(
        connect: Connect, owner: str, columns: Sequence[str], declared: str, choose: random.Random | None = None
    ) -> StagingArea:
        """An empty area for the role `owner` (quoted) to read; `declared` is the SQL of its `columns` and types.

        Raises SqlError, 42501 if the engine may not create tables in `pgtrickle_staging`, 40001 for other types than
        `check_plain_types` allows.
        """
        choose = choose or random.SystemRandom()
        connection = await connect()
        session = PooledSession(connection)
        try:
            while True:
                number = choose.randrange(1, 10**9)
                if (await session.fetch("SELECT pgtrickle._take_lease('staging ' || $1::int4)", number)) == [(True,)]:
                    break
            area = StagingArea(connection, number, owner, columns)
            async with session.transaction("read_committed"):
                await session.execute(f"CREATE UNLOGGED TABLE {area._table('like')} ({declared})")
                await check_plain_types(session, area._table("like"))
        except BaseException:
            connection.terminate()
            raise
        return area

    def _table(self, part: str) -> str:
        return quote(STAGING_SCHEMA, f"{self.number}_{part}")

    async def admit(self, address: str, seconds: float) -> None:
        """Make a role that can fill the area for so long at most, and log in at `address`, which names no other.

        Raises SqlError, 42501 if the engine may not create roles.
        """
        password = secrets.token_urlsafe(32)
        admitting = "SELECT pgtrickle._admit_staging_writer($1::int4, $2::text, $3::float8)::text"
        ((writer,),) = await self._session.fetch(admitting, self.number, scram_verifier(password), seconds)
        self.login = make_conninfo(address, user=writer, password=password)

    async def expel(self) -> None:
        """Drop that role, if there is one. Its sessions end. Raises SqlError."""
        if self.login:
            await self._session.fetch("SELECT pgtrickle._bar_staging_writer($1::int4)", self.number)
            await self._session.fetch("SELECT pgtrickle._drop_staging_writer($1::int4)", self.number)
            self.login = ""

    async def add(self, parts: Iterable[tuple[str, int]]) -> None:
        """Parts that were written: their names and numbers of rows. The owner may read them. Raises SqlError."""
        for name, rows in parts:
            self._names.append(name)
            self.rows += rows
        if self._names:
            tables = ", ".join(self._table(name) for name in self._names)
            await self._session.execute(f"GRANT SELECT ON {tables} TO {self._owner}")

    async def fill(self, connect: Connect, table: pa.Table, fields: Fields, writers: int = WRITERS) -> None:
        """Write a table's rows, whose columns `fields` are, over so many connections at once. Raises SqlError."""
        share = -(-table.num_rows // writers)
        slices = [table.slice(start, share) for start in range(0, table.num_rows, max(share, 1))] or [table]
        written = [
            asyncio.ensure_future(self._fill_part(connect, str(n), rows, fields)) for n, rows in enumerate(slices)
        ]
        try:
            await asyncio.gather(*written)
        except BaseException:
            for task in written:
                task.cancel()
            await asyncio.gather(*written, return_exceptions=True)
            raise
        await self.add((str(n), rows.num_rows) for n, rows in enumerate(slices))

    async def _fill_part(self, connect: Connect, name: str, rows: pa.Table, fields: Fields) -> None:
        connection = await connect()
        try:
            async with connection.transaction():
                table = self._table(name)
                await connection.fetch(f"CREATE UNLOGGED TABLE {table} (LIKE {self._table('like')})")
                await connection.copy_to_table(
                    *(f"{self.number}_{name}",),
                    schema_name=STAGING_SCHEMA,
                    columns=self._columns,
                    source=copy_data(rows, fields),
                    format="csv",
                    freeze=True,
                )
                await connection.fetch(f"ANALYZE {table}")
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
        parts = [f"SELECT * FROM {self._table(name)}" for name in self._names]
        return f"({' UNION ALL '.join(parts)})"

    async def drop(self) -> None:
        """Drop the tables, once the transaction that reads them has ended; this waits for it. Errors are logged."""
        try:
            await self.expel()
            for (name,) in await self._session.fetch(_TABLES, STAGING_SCHEMA, str(self.number)):
                await self._session.execute(f"DROP TABLE IF EXISTS {quote(STAGING_SCHEMA, name)}")
            await self._session.execute(
                "DELETE FROM pgtrickle.pgt_leases l WHERE l.name = 'staging ' || $1::int4", self.number
            )
        except SqlError as error:
            log.warning("staging_not_dropped", number=self.number, error=error.message)
        finally:
            self._connection.terminate()


_ONLY_PLAIN_TYPES = """
SELECT coalesce(
    pg_catalog.bool_and(t.typtype = 'e' OR t.typtype IN ('b', 'r') AND t.oid::pg_catalog.int8 < 16384), true)
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid AND a.attnum > 0
"""


async def check_plain_types(session: SqlSession, table: str) -> None:
    """Raises SqlError 40001 unless a table has columns of PostgreSQL's own types and of enums alone.

    COPY puts values into these without any code of users. (A domain has CHECKs; a name can have become that of another
    type.)
    """
    if await session.fetch(_ONLY_PLAIN_TYPES, table) != [(True,)]:
        raise SqlError("40001", "a type was replaced by another one during the refresh")


def scram_verifier(password: str) -> str:
    """What a server that authenticates by SCRAM-SHA-256 keeps of a password (RFC 5803), in PostgreSQL's form.

    The server is given this: a password would stand in its log.
    """
    salt, iterations = os.urandom(16), 4096
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, iterations)
    client, server = (hmac.digest(salted, role, "sha256") for role in (b"Client Key", b"Server Key"))
    stored = hashlib.sha256(client).digest()
    shown = [b64encode(value).decode() for value in (salt, stored, server)]
    return f"SCRAM-SHA-256${iterations}:{shown[0]}${shown[1]}:{shown[2]}"


async def copy_data(table: pa.Table, fields: Fields) -> AsyncIterator[bytes]:
    """The table as CSV for COPY: no header, NULL an unquoted empty field, text quoted. Raises as `checked` does."""
    for batch in table.to_batches():
        chunks = csv_chunks(await asyncio.to_thread(checked, batch, fields))
        while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
            yield chunk


_TABLES = """
SELECT c.relname::text FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relkind = 'r' AND pg_catalog.split_part(c.relname, '_', 1) = $2
"""
