"""From PostgreSQL to Arrow: COPY CSV, streamed through a bounded pipe into record batches.

COPY gives every value as text that determines it exactly; a value that the Arrow type cannot hold (a numeric NaN, a
year before Christ) does not parse, which is how such values are found. Dates and timestamps are read as text at first,
since infinite ones have stand-ins.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import asyncpg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from sql.spark.types import INFINITE_DAYS, SparkType, column_type

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


def padded(columns: Mapping[str, str]) -> frozenset[str]:
    """The columns, by name and type, whose values lose their padding, which means nothing and is put back later.

    It is taken off here: a cast in PostgreSQL could be one that a user has made.

    >>> sorted(padded({"code": "character(5)", "name": "text"}))
    ['code']
    """
    return frozenset(name for name, type_ in columns.items() if column_type(type_).name == "character")


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


def infinities(type_: pa.DataType) -> tuple[pa.Scalar, pa.Scalar]:
    """What stands for -infinity and infinity in a column of dates or timestamps."""
    unit = 1 if pa.types.is_date(type_) else 86_400_000_000
    number = pa.int32() if unit == 1 else pa.int64()
    start, end = (pa.scalar(days * unit, number).cast(type_) for days in (-INFINITE_DAYS, INFINITE_DAYS))
    return start, end


def _moments(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Dates or timestamps from PostgreSQL's texts. Raises pyarrow.ArrowInvalid."""
    if isinstance(texts, pa.DictionaryArray):
        return _moments(texts.dictionary, type_).take(texts.indices)
    infinite = pc.match_substring(texts, "infinity")
    if not pc.any(infinite).as_py():
        return texts.cast(type_)
    start, end = infinities(type_)
    finite = pc.if_else(infinite, pa.scalar(None, pa.string()), texts).cast(type_)
    ends = pc.if_else(pc.starts_with(texts, "-"), start, end)
    return pc.if_else(infinite, ends, finite)


def _parsed(batch: pa.RecordBatch, schema: pa.Schema, padded: Iterable[str]) -> pa.RecordBatch:
    """The batch with the schema's types. Raises pyarrow.ArrowInvalid, which names the column as the parser does."""
    columns = []
    for number, (column, field) in enumerate(zip(batch.columns, schema, strict=True)):
        try:
            columns.append(column if column.type == field.type else _moments(column, field.type))
        except pa.ArrowInvalid as error:
            raise pa.ArrowInvalid(f"In CSV column #{number}: {error}") from error
    for name in padded:
        number = schema.get_field_index(name)
        columns[number] = pc.utf8_rtrim(columns[number], characters=" ")
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def record_batches(pipe: BytePipe, schema: pa.Schema, padded: Iterable[str] = ()) -> Iterator[pa.RecordBatch]:
    """Parse COPY CSV without a header. Raises pyarrow.ArrowInvalid where a value does not fit its type."""
    if pipe.at_end():
        return
    batches = pyarrow.csv.open_csv(
        pa.PythonFile(pipe, mode="r"),
        read_options=pyarrow.csv.ReadOptions(column_names=schema.names, block_size=BLOCK_BYTES),
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
        yield _parsed(batch, schema, padded)


async def copy_query(
    connection: asyncpg.Connection,
    query: str,
    schema: pa.Schema,
    consume: Callable[[Iterator[pa.RecordBatch]], T],
    *,
    padded: Iterable[str] = (),
) -> T:
    """COPY the rows of a query to `consume`, which runs in a thread and may read them in parts.

    Only for queries over relations of the engine's own: a query over a user's table runs code of that user, with the
    rights of the session. (The planner evaluates what it can of the expressions of indexes and statistics.)

    Raises pyarrow.ArrowInvalid where a value does not fit its type, asyncpg.PostgresError, and what `consume` raises.
    """

    async def start(write: Callable[[bytes], Awaitable[None]]) -> None:
        await connection.copy_from_query(query, output=write, format="csv", encoding="utf8")

    return await _copied(connection, start, schema, padded, consume)


async def copy_table(
    connection: asyncpg.Connection,
    table: tuple[str, str],
    columns: Sequence[str],
    schema: pa.Schema,
    consume: Callable[[Iterator[pa.RecordBatch]], T],
    *,
    padded: Iterable[str] = (),
) -> T:
    """COPY a table's own rows (without its children's) to `consume`; without `columns`, all that are not generated.

    PostgreSQL plans nothing for that, and evaluates no code of users; what is not a table it refuses. It takes the
    table by its name: the caller finds out afterwards which one it was. Raises what `copy_query` raises.
    """
    schema_name, name = table

    async def start(write: Callable[[bytes], Awaitable[None]]) -> None:
        arguments: dict[str, Any] = {"columns": list(columns)} if columns else {}
        await connection.copy_from_table(
            name, schema_name=schema_name, output=write, format="csv", encoding="utf8", **arguments
        )

    return await _copied(connection, start, schema, padded, consume)


async def _copied(
    connection: asyncpg.Connection,
    start: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]],
    schema: pa.Schema,
    padded: Iterable[str],
    consume: Callable[[Iterator[pa.RecordBatch]], T],
) -> T:
    pipe = BytePipe()

    def work() -> T:
        try:
            return consume(record_batches(pipe, schema, padded))
        finally:
            pipe.abandon()

    reader = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        await start(pipe.write)
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
