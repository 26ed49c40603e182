"""The first copy of a source: parallel COPY over several connections that share one snapshot."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TypeVar

import asyncpg
import pyarrow as pa
import structlog

from catalog.session import SqlError
from engine.mirror_copy import copied, copy_out
from engine.mirror_source import Connect, Snapshot, snapshot_of
from engine.mirror_state import arrow_schema
from sql.columns import Source
from sql.render import quote
from sql.spark_types import column_type

log = structlog.get_logger(__name__)

T = TypeVar("T")

CONNECTIONS = max(1, min(4, (os.cpu_count() or 1)))
PART_PAGES = 8192
"""Pages (8 KiB) that one COPY reads of a table that is copied by several connections."""

PROGRESS_SECONDS = 10.0
BATCHES_IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class Part:
    """A query, and how many pages it reads."""

    query: str
    pages: int


# Whether the table, or a partition or child of it, was rewritten or truncated after the snapshot: then the snapshot
# finds it empty, since neither keeps old rows. The left side is as of the snapshot, the right side as of now.
_TREE = """
WITH RECURSIVE tree(relid) AS (
    SELECT $1::bigint::oid
    UNION
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree t ON i.inhparent = t.relid)
"""
_REWRITTEN_SQL = (
    _TREE
    + """
SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN tree t ON c.oid = t.relid
               WHERE c.relfilenode <> coalesce(pg_catalog.pg_relation_filenode(c.oid), 0))
"""
)
# A partition may be one that we cannot read directly, or no table of PostgreSQL's own.
_LEAVES_SQL = (
    _TREE
    + """
SELECT n.nspname::text, c.relname::text, c.relkind = 'r' AND a.amname = 'heap'
           AND pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_schema_privilege(n.oid, 'USAGE'),
       pg_catalog.pg_relation_size(c.oid) / pg_catalog.current_setting('block_size')::bigint
FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam
WHERE c.relkind <> 'p' ORDER BY c.oid
"""
)


async def lock(connection: asyncpg.Connection, source: Source) -> None:
    """Keep DDL away from a source until the transaction ends. Raises SqlError 40001 if the snapshot sees it empty."""
    await connection.execute(f"LOCK TABLE {quote(source.schema, source.name)} IN ACCESS SHARE MODE")
    if await connection.fetchval(_REWRITTEN_SQL, source.oid):
        raise SqlError("40001", f'table "{source.name}" was rewritten or truncated during the refresh')


async def parts(connection: asyncpg.Connection, source: Source, columns: Mapping[str, str]) -> list[Part]:
    """Queries that give all rows of a locked source between them, each once."""
    items = ", ".join(copied(name, column_type(type_)) for name, type_ in columns.items()) or "true"
    leaves = await connection.fetch(_LEAVES_SQL, source.oid)
    if sum(pages for _, _, _, pages in leaves) <= PART_PAGES or not all(direct for _, _, direct, _ in leaves):
        return [Part(f"SELECT {items} FROM {quote(source.schema, source.name)}", 1)]
    found = []
    for schema, name, _, pages in leaves:
        for first in range(0, max(pages, 1), PART_PAGES):
            # The last part is open, for the table may have grown since.
            last = f" AND ctid < '({first + PART_PAGES},0)'" if first + PART_PAGES < pages else ""
            query = f"SELECT {items} FROM ONLY {quote(schema, name)} WHERE ctid >= '({first},0)'{last}"
            found.append(Part(query, min(pages - first, PART_PAGES)))
    return found


async def extract(
    connect: Connect,
    connection: asyncpg.Connection,
    source: Source,
    snapshot: Snapshot,
    columns: Mapping[str, str],
    consume: Callable[[pa.Schema, Iterator[pa.RecordBatch]], T],
) -> T:
    """Give all rows of a source as of a snapshot to `consume`, which runs in a thread.

    `connection` is in a transaction with that snapshot, and has locked the source. Raises pyarrow.ArrowInvalid where a
    value does not fit its type, asyncpg.PostgresError, and what `consume` raises.
    """
    schema = arrow_schema(columns, source.name)
    work = await parts(connection, source, columns)
    if len(work) == 1:
        return await copy_out(connection, work[0].query, schema, lambda batches: consume(schema, batches))
    channel = _Channel()
    progress = _Progress(source.name, sum(part.pages for part in work))
    todo = iter(work)

    def forward(batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            progress.rows += batch.num_rows
            channel.put(batch)

    async def copy(own: asyncpg.Connection) -> None:
        for part in todo:
            await copy_out(own, part.query, schema, forward)
            progress.done(part.pages)

    reader = asyncio.ensure_future(asyncio.to_thread(channel.consumed, lambda batches: consume(schema, batches)))
    try:
        async with AsyncExitStack() as stack:
            connections = [connection]
            for _ in range(min(CONNECTIONS, len(work)) - 1):
                own = await connect()
                stack.callback(own.terminate)
                await stack.enter_async_context(snapshot_of(own, snapshot))
                connections.append(own)
            async with asyncio.TaskGroup() as group:
                for each in connections:
                    group.create_task(copy(each))
    except BaseException as error:
        await asyncio.shield(asyncio.to_thread(channel.end, failed=True))
        await asyncio.wait({reader})
        failure = reader.exception()
        # Whose error it was in the first place.
        if isinstance(error, BaseExceptionGroup):
            first = next((e for e in error.exceptions if not isinstance(e, _Abandoned)), failure)
            raise first or error from error
        raise
    await asyncio.to_thread(channel.end)
    return await asyncio.shield(reader)


class _Abandoned(Exception):
    """The other side has failed."""


class _Channel:
    """Batches from several threads to one."""

    def __init__(self) -> None:
        self._queue: queue.Queue[pa.RecordBatch | None] = queue.Queue(BATCHES_IN_FLIGHT)
        self._failed = False
        self._gone = threading.Event()

    def put(self, batch: pa.RecordBatch) -> None:
        while not self._gone.is_set():
            try:
                self._queue.put(batch, timeout=0.5)
                return
            except queue.Full:
                continue
        raise _Abandoned

    def end(self, *, failed: bool = False) -> None:
        """No more batches; blocks until there is room for saying so."""
        self._failed = failed
        while not self._gone.is_set():
            try:
                self._queue.put_nowait(None)
                return
            except queue.Full:
                if failed:
                    self._queue.get_nowait()
                else:
                    time.sleep(0.01)

    def consumed(self, consume: Callable[[Iterator[pa.RecordBatch]], T]) -> T:
        try:
            return consume(self._batches())
        finally:
            self._gone.set()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._queue.get()) is not None:
            yield batch
        if self._failed:
            raise _Abandoned


class _Progress:
    """Says in the log how far a long copy has come."""

    def __init__(self, table: str, pages: int):
        self._table, self._pages, self._read = table, pages, 0
        self._said = time.monotonic()
        self.rows = 0

    def done(self, pages: int) -> None:
        self._read += pages
        if time.monotonic() - self._said >= PROGRESS_SECONDS:
            self._said = time.monotonic()
            log.info("mirroring", table=self._table, rows=self.rows, part=round(self._read / self._pages, 3))
