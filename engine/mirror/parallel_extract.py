"""The first copy of a source: COPY of its tables, over several connections that share one snapshot."""

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
from engine.mirror.arrow_copy import copy_table, padded
from engine.mirror.source import Connect, Snapshot, snapshot_of
from engine.mirror.state import PRESENCE, arrow_schema
from engine.session.relations import check_opened, locked, relation
from sql.base.columns import Source
from sql.errors import NotExpressible

log = structlog.get_logger(__name__)

T = TypeVar("T")
R = TypeVar("R")

CONNECTIONS = max(1, min(4, (os.cpu_count() or 1)))

PROGRESS_SECONDS = 10.0
BATCHES_IN_FLIGHT = 16


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables that hold a source's rows, of which each is copied by itself, and what is copied of them."""

    oids: tuple[int, ...]
    rows: int
    """How many there are about, as PostgreSQL knows."""
    columns: tuple[str, ...]


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
SELECT c.oid::bigint, c.relkind = 'p', c.relname::text,
       c.relkind = 'r' AND pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE')
           AND pg_catalog.has_any_column_privilege(c.oid, 'SELECT'),
       greatest(c.reltuples, 0)::bigint
FROM tree t JOIN pg_catalog.pg_class c ON c.oid = t.relid
ORDER BY c.oid
"""
)
# Those of which COPY gives the stored values, the ones that are quick to read first.
_STORED_SQL = """
SELECT a.attname::text FROM pg_catalog.pg_attribute a
WHERE a.attrelid = $1::bigint::oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attlen < 0, a.attnum
"""


async def lock(connection: asyncpg.Connection, source: Source) -> None:
    """Keep DDL away from a source until the transaction ends. Raises SqlError 40001 if the snapshot sees it empty, or
    it is not there any more.
    """
    await locked(connection, source.oid, source.name)
    await _check_not_rewritten(connection, source)


async def _check_not_rewritten(connection: asyncpg.Connection, source: Source) -> None:
    if await connection.fetchval(_REWRITTEN_SQL, source.oid):
        raise SqlError("40001", f'table "{source.name}" was rewritten or truncated during the refresh')


async def tables(connection: asyncpg.Connection, source: Source, columns: Mapping[str, str]) -> Tables:
    """What to copy of a locked source. Raises NotExpressible where COPY does not give it."""
    stored = [name for (name,) in await connection.fetch(_STORED_SQL, source.oid)]
    for name in columns:
        if name not in stored:
            raise NotExpressible(f'column "{name}" of table "{source.name}", which is not stored or generated')
    leaves = await connection.fetch(_LEAVES_SQL, source.oid)
    for _, partitioned, name, readable, _ in leaves:
        if not partitioned and not readable:
            raise NotExpressible(f'table "{name}", which is no plain table or one that the server may not read')
    oids = tuple(oid for oid, partitioned, *_ in leaves if not partitioned)
    # Any column tells how many rows there are.
    return Tables(oids, sum(rows for *_, rows in leaves), tuple(columns) or tuple(stored[:1]))


async def extract(
    connect: Connect,
    connection: asyncpg.Connection,
    source: Source,
    snapshot: Snapshot,
    columns: Mapping[str, str],
    consume: Callable[[pa.Schema, Iterator[pa.RecordBatch]], T],
    *,
    certain: bool = False,
) -> T:
    """Give all rows of a source as of a snapshot to `consume`, which runs in a thread.

    `connection` is in a transaction with that snapshot, and has locked the source. What `consume` was given is to be
    believed only when this has returned, or, if it is to be `certain`, when it has come to an end. Raises
    pyarrow.ArrowInvalid where a value does not fit its type, SqlError 40001, NotExpressible, and what `consume` raises.
    """
    schema = arrow_schema(columns, source.name)
    work = await tables(connection, source, columns)
    read_schema, blank = schema if columns else pa.schema([(PRESENCE, pa.string())]), padded(columns)
    progress, channel, todo = _Progress(source.name, work.rows), _Channel(), iter(work.oids)

    def given(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            progress.add(batch.num_rows)
            yield batch if columns else pa.RecordBatch.from_arrays([pa.repeat(True, batch.num_rows)], schema=schema)

    def forward(batches: Iterator[pa.RecordBatch]) -> None:
        for batch in given(batches):
            channel.put(batch)

    async def copy(own: asyncpg.Connection, take: Callable[[Iterator[pa.RecordBatch]], R]) -> list[R]:
        taken = []
        for oid in todo:
            found = await relation(own, oid)
            if found is None:
                raise SqlError("40001", f'a partition of table "{source.name}" was dropped during the refresh')
            place = (found.schema, found.name)
            taken.append(await copy_table(own, place, work.columns, read_schema, take, padded=blank))
        await check_opened(own, (source.oid, *work.oids), source.name)
        await _check_not_rewritten(own, source)
        return taken

    if len(work.oids) == 1 and not certain:
        (result,) = await copy(connection, lambda batches: consume(schema, given(batches)))
        return result
    reader = asyncio.ensure_future(asyncio.to_thread(channel.consumed, lambda batches: consume(schema, batches)))
    try:
        async with AsyncExitStack() as stack:
            more = [await _opened(stack, connect, snapshot) for _ in range(min(CONNECTIONS, len(work.oids)) - 1)]
            async with asyncio.TaskGroup() as group:
                for each in (connection, *more):
                    group.create_task(copy(each, forward))
    except BaseException as error:
        await asyncio.shield(asyncio.to_thread(channel.end, failed=True))
        await asyncio.wait({reader})
        if isinstance(error, BaseExceptionGroup):
            raise _first(error, reader.exception()) from error
        raise
    await asyncio.to_thread(channel.end)
    return await asyncio.shield(reader)


async def _opened(stack: AsyncExitStack, connect: Connect, snapshot: Snapshot) -> asyncpg.Connection:
    """One more connection, in a transaction with the snapshot, until the stack is left."""
    own = await connect()
    stack.callback(own.terminate)
    await stack.enter_async_context(snapshot_of(own, snapshot))
    return own


def _first(errors: BaseExceptionGroup[BaseException], failure: BaseException | None) -> BaseException:
    """The error that the others follow from: a connection's own, or else the `failure` of the reader."""
    return next((e for e in errors.exceptions if not isinstance(e, _Abandoned)), failure) or errors


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

    def __init__(self, table: str, expected: int):
        self._table, self._expected = table, expected
        self._said = time.monotonic()
        self._rows = 0

    def add(self, rows: int) -> None:
        self._rows += rows
        if time.monotonic() - self._said >= PROGRESS_SECONDS:
            self._said = time.monotonic()
            log.info("mirroring", table=self._table, rows=self._rows, expected=self._expected)
