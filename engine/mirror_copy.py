"""From PostgreSQL to Arrow: COPY CSV, streamed through a bounded pipe into record batches.

COPY gives every value as text that determines it exactly; a value that the Arrow type cannot hold (a numeric NaN, a
year before Christ) does not parse, which is how such values are found. Dates and timestamps are read as text at first,
since infinite ones have stand-ins.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

import asyncpg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from sql.render import quote
from sql.spark_types import INFINITE_DAYS, SparkType

T = TypeVar("T")

CHUNKS_IN_FLIGHT = 32
"""Chunks of COPY data (up to about 0.5 MiB each) that may wait for the writer."""

BLOCK_BYTES = 4 << 20

_ARROW = {
    "boolean": pa.bool_(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "real": pa.float32(),
    "double precision": pa.float64(),
    "date": pa.date32(),
    "timestamp without time zone": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", tz="UTC"),
}


def arrow_type(type_: SparkType) -> pa.DataType:
    """The Arrow type that holds a carried type."""
    if type_.name == "numeric":
        return pa.decimal128(type_.precision, type_.scale)
    if type_.spark == "STRING":
        return pa.string()
    return _ARROW[type_.name]


def copied(name: str, type_: SparkType) -> str:
    """How a column is selected for COPY. A char(n) loses its padding, which means nothing and is put back later."""
    return f"{quote(name)}::pg_catalog.text" if type_.name == "character" else quote(name)


class PipeBroken(Exception):
    """The other end of the pipe has failed."""


class BytePipe:
    """Bytes from a coroutine to a thread that reads them like a file, with back-pressure."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(CHUNKS_IN_FLIGHT)
        self._chunks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._rest = memoryview(b"")
        self._ended = False
        self._writer_failed = False
        self._reader_gone = threading.Event()
        self.closed = False

    async def write(self, data: bytes) -> None:
        """Hand over a chunk; waits while too many are under way."""
        await self._room.acquire()
        if self._reader_gone.is_set():
            raise PipeBroken
        self._chunks.put(data)

    def finish(self, *, failed: bool = False) -> None:
        """No more data; with `failed` the reader gets an error instead of an end."""
        self._writer_failed = self._writer_failed or failed
        self._chunks.put(None)

    def abandon(self) -> None:
        """The reader gives up: the writer gets PipeBroken at its next chunk. Called from the reader's thread."""
        self._reader_gone.set()
        self._loop.call_soon_threadsafe(self._room.release)

    def _next(self) -> bool:
        if self._ended:
            return False
        chunk = self._chunks.get()
        if chunk is None:
            self._ended = True
            if self._writer_failed:
                raise PipeBroken
            return False
        self._loop.call_soon_threadsafe(self._room.release)
        self._rest = memoryview(chunk)
        return True

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, fewer only at the end."""
        parts: list[memoryview] = []
        missing = size
        while missing and (len(self._rest) or self._next()):
            parts.append(self._rest[:missing])
            self._rest = self._rest[len(parts[-1]) :]
            missing -= len(parts[-1])
        return b"".join(parts)

    def at_end(self) -> bool:
        """Whether nothing is left to read; waits for the first bytes."""
        return not len(self._rest) and not self._next()

    def close(self) -> None:
        """Part of the file interface that Arrow wants."""
        self.closed = True


_DAYS = pa.dictionary(pa.int32(), pa.string())
"""How dates are read: of a block's few different ones each is parsed once."""


def _read_as(type_: pa.DataType) -> pa.DataType:
    return _DAYS if pa.types.is_date(type_) else pa.string() if pa.types.is_timestamp(type_) else type_


def _moments(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Dates or timestamps from PostgreSQL's texts. Raises pyarrow.ArrowInvalid."""
    if isinstance(texts, pa.DictionaryArray):
        return _moments(texts.dictionary, type_).take(texts.indices)
    infinite = pc.match_substring(texts, "infinity")
    if not pc.any(infinite).as_py():
        return texts.cast(type_)
    unit = 1 if pa.types.is_date(type_) else 86_400_000_000
    end = pa.scalar(INFINITE_DAYS * unit, pa.int32() if unit == 1 else pa.int64()).cast(type_)
    start = pa.scalar(-INFINITE_DAYS * unit, pa.int32() if unit == 1 else pa.int64()).cast(type_)
    finite = pc.if_else(infinite, pa.scalar(None, pa.string()), texts).cast(type_)
    ends = pc.if_else(pc.starts_with(texts, "-"), start, end)
    return pc.if_else(infinite, ends, finite)


def _parsed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the schema's types. Raises pyarrow.ArrowInvalid, which names the column as the parser does."""
    columns = []
    for number, (column, field) in enumerate(zip(batch.columns, schema, strict=True)):
        try:
            columns.append(column if column.type == field.type else _moments(column, field.type))
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"In CSV column #{number}: {error}") from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def record_batches(pipe: BytePipe, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Parse COPY CSV without a header. Raises pyarrow.ArrowInvalid where a value does not fit its type."""
    if pipe.at_end():
        return
    batches = pyarrow.csv.open_csv(
        pa.PythonFile(pipe, mode="r"),
        read_options=pyarrow.csv.ReadOptions(column_names=schema.names, block_size=BLOCK_BYTES, use_threads=False),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pyarrow.csv.ConvertOptions(
            column_types={field.name: _read_as(field.type) for field in schema},
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    for batch in batches:
        yield _parsed(batch, schema)


async def copy_out(
    connection: asyncpg.Connection,
    query: str,
    schema: pa.Schema,
    consume: Callable[[Iterator[pa.RecordBatch]], T],
) -> T:
    """COPY a query's rows to `consume`, which runs in a thread and may read them in parts.

    Raises pyarrow.ArrowInvalid where a value does not fit its type, asyncpg.PostgresError, and what `consume` raises.
    """
    pipe = BytePipe()

    def work() -> T:
        try:
            return consume(record_batches(pipe, schema))
        finally:
            pipe.abandon()

    reader = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await connection.copy_from_query(query, output=pipe.write, format="csv", encoding="utf8")
    except PipeBroken:
        connection.terminate()  # in the middle of a COPY that nobody reads
    except BaseException:
        pipe.finish(failed=True)
        await asyncio.wait({reader})
        reader.exception()
        raise
    else:
        pipe.finish()
    return await asyncio.shield(reader)
