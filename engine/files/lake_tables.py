"""Lake tables: files that Spark reads, brought into a table as the texts of their values.

The texts become values by a statement that runs with the rights of the stream table's owner, since a domain's CHECK is
code of a user's.
"""

from __future__ import annotations

import asyncio
import csv as pycsv
import hashlib
import io
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError
from pyarrow import csv

from catalog.session import SqlError, SqlSession
from engine.files.copy_from_files import json_object, json_value, value_texts
from engine.files.delta_changes import MAPPING, UNREAD, DeltaFeed, DeltaVersion, feed_since, open_delta, version_of
from engine.files.listing import LINE, DataFile, check_below, lines_of, list_files, read_file, read_parquet, stepwise
from engine.foreign_tables.change_feed import FILE, ROW
from engine.foreign_tables.lake_options import LakeTable
from engine.foreign_tables.lake_polling import STAGING
from engine.object_store import storage_message
from engine.spark.sessions import SparkSessions
from engine.spark.staging import copy_data

RECENT = 5.0
"""Seconds within which a file can be written again under the same time: such files are read anew at the next poll."""

BLOCK = 4 << 20
"""Bytes of a CSV file that are parsed at once. A record can have no more."""

pycsv.field_size_limit(LINE)


@dataclass(frozen=True, slots=True)
class LakeFiles:
    """The files of a lake table at one moment."""

    files: tuple[DataFile, ...]
    state: str | None
    """Differs when they do; None if they may change without that it does."""
    partitions: tuple[dict[str, Any], ...] = field(default=())
    """Of Delta: what columns hold that are not in the file, for each file."""
    table: LakeTable | None = None
    version: DeltaVersion | None = None
    """Of Delta, too: the table and its version."""

    def uri(self, number: int) -> str:
        """The URI of one of them."""
        return self.files[number].uri

    async def since(self, before: str | None, columns: Sequence[tuple[str, bool]]) -> DeltaFeed | None:
        """See `feed_since`; None of what is no Delta table. Raises NotFollowed."""
        if self.table is None or self.version is None:
            return None
        return await asyncio.to_thread(feed_since, self.table, before, self.version, columns)


class Lake:
    """Reads lake tables on the sessions of one Spark target."""

    def __init__(self, sessions: SparkSessions):
        self._sessions = sessions

    def look(self, table: LakeTable) -> LakeFiles:
        """The table's files. Raises SqlError 58P01, 58030, 42501 for a file outside of the location, 0A000."""
        if table.format == "delta":
            return _delta(table)
        files = tuple(list_files(table.uri))
        for file in files:
            check_below(table.location, file.uri)
        return LakeFiles(files, _state(table, files))

    async def fill(
        self,
        session: SqlSession,
        staging: str,
        columns: Sequence[tuple[str, bool]],
        table: LakeTable,
        found: LakeFiles,
        name: str,
    ) -> None:
        """Copy the rows of the files into a table of texts in `STAGING` with the columns `columns`, FILE and ROW.

        `columns` are names, and whether an array is wanted. ROW is null where the rows are not in the file's order.
        Raises SqlError: 42703 for a file without a column, 22P04 for a line that is no JSON object or has no such
        fields, 58000, 38000.
        """
        for number, file in enumerate(found.files):
            given = found.partitions[number] if found.partitions else {}
            reading = _Reading(file, number, [column for column, _ in columns], _first_row(table))
            tables = self._tables(table, file, columns, given, name)
            try:
                await session.copy_in(STAGING, staging, [*reading.names, FILE, ROW], reading.chunks(tables))
            except SqlError as error:
                if reading.failure is not None:
                    raise reading.failure from error
                raise SqlError(
                    error.sqlstate, error.message, detail=reading.nul or error.detail, hint=error.hint
                ) from error

    async def _tables(
        self,
        table: LakeTable,
        file: DataFile,
        columns: Sequence[tuple[str, bool]],
        given: dict[str, Any],
        name: str,
    ) -> AsyncIterator[tuple[pa.Table, bool]]:
        """The texts of a file's rows, some at a time, and whether they are in its order."""
        if table.format in ("parquet", "delta"):
            rows, in_order = await read_file(self._sessions, file, read_parquet, f"poll of {name}: {file.uri}")
            yield await asyncio.to_thread(_parquet, rows, columns, given, file), in_order
            return
        async for rows in stepwise(_json(columns, file) if table.format == "json" else _csv(columns, table, file)):
            yield rows, True


def _first_row(table: LakeTable) -> int:
    """The number of the first row, as COPY counts them."""
    return 2 if table.format == "csv" and table.header else 1


@dataclass(slots=True)
class _Reading:
    """A file on its way into the table of texts."""

    file: DataFile
    number: int
    names: list[str]
    next: int
    """The number of the next row."""
    failure: SqlError | None = None
    """Why it cannot be read."""
    nul: str | None = None
    """Where a text has a NUL, which PostgreSQL does not store."""

    async def chunks(self, tables: AsyncIterator[tuple[pa.Table, bool]]) -> AsyncIterator[bytes]:
        """The rows as CSV, with the numbers of file and row."""
        try:
            async for rows, in_order in tables:
                if rows.num_rows:
                    numbered = await asyncio.to_thread(self._numbered, rows, in_order)
                    async for chunk in copy_data(numbered, [(name, None) for name in numbered.column_names]):
                        yield chunk
        except SqlError as error:
            self.failure = error
            raise

    def _numbered(self, rows: pa.Table, in_order: bool) -> pa.Table:
        rows = rows.append_column(FILE, pa.array([str(self.number)] * rows.num_rows, pa.large_string()))
        numbers = pa.array(range(self.next, self.next + rows.num_rows))
        self.next += rows.num_rows
        places = numbers.cast(pa.large_string()) if in_order else pa.nulls(rows.num_rows, pa.large_string())
        rows = rows.append_column(ROW, places)
        self.nul = self.nul or _with_nul(rows, self.names, self.file)
        return rows


def _state(table: LakeTable, files: Sequence[DataFile]) -> str | None:
    if any(file.modified is None or time.time() - file.modified / 1e9 < RECENT for file in files):
        return None
    return _digest(repr((table, files)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _delta(table: LakeTable) -> LakeFiles:
    root = f"{table.location}/{table.path}"
    check_below(table.location, table.uri)
    try:
        delta = open_delta(table)
        features = set(delta.protocol().reader_features or ()) & UNREAD
        if delta.protocol().min_reader_version == MAPPING or features:
            what = ", ".join(sorted(features)) or "columnMapping"
            raise SqlError("0A000", f'Delta table "{root}" uses {what}, which is not supported')
        actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        version = version_of(table, delta, actions)
        absent = dict.fromkeys(column.name for column in delta.schema().fields)  # where a file is older than a column
    except (DeltaError, OSError) as error:
        raise SqlError("58030", f'could not look at Delta table "{root}"', detail=storage_message(error)) from error
    base = table.uri.rstrip("/")
    files, partitions = [], []
    for action in sorted(actions, key=lambda action: str(action["path"])):
        files.append(DataFile(f"{base}/{action['path']}", int(action["size_bytes"])))
        check_below(table.location, files[-1].uri)
        values = {key.removeprefix("partition."): v for key, v in action.items() if key.startswith("partition.")}
        partitions.append(absent | values)
    return LakeFiles(tuple(files), str(version), tuple(partitions), table, version)


def _parquet(table: pa.Table, columns: Sequence[tuple[str, bool]], given: dict[str, Any], file: DataFile) -> pa.Table:
    arrays: dict[str, pa.ChunkedArray] = {}
    for name, array in columns:
        if name in table.column_names:
            chunks = [value_texts(chunk, array=array) for chunk in table.column(name).chunks]
        elif name in given:
            value = None if given[name] is None else str(given[name])
            chunks = [pa.array([value] * table.num_rows, pa.large_string())]
        else:
            raise _no_column(name, file)
        arrays[name] = pa.chunked_array(chunks, pa.large_string())
    return pa.table(arrays)


def _json(columns: Sequence[tuple[str, bool]], file: DataFile) -> Iterator[pa.Table]:
    number = 1
    for lines in lines_of(file):
        values: list[list[str | None]] = [[] for _ in columns]
        for row_number, line in enumerate(lines, number):
            row = json_object(line, row_number, file)
            for cells, (name, array) in zip(values, columns, strict=True):
                cells.append(json_value(bytes(row.get(name, b"null")), array=array))
        number += len(lines)
        yield pa.table(
            {name: pa.array(cells, pa.large_string()) for cells, (name, _) in zip(values, columns, strict=True)}
        )


class _Lines(io.RawIOBase):
    """A file of lines for Arrow to read; the last one ends, too. Empty lines are told of before they are read."""

    def __init__(self, file: DataFile, on_empty: Callable[[], None]):
        super().__init__()
        self._lines = lines_of(file)
        self._on_empty = on_empty
        self._told = False
        self._left = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """Some bytes, as many as there are at hand."""
        if not self._left:
            lines = next(self._lines, None)
            if lines is None:
                return b""
            if not self._told and any(line in ("", "\r") for line in lines):
                self._told = True
                self._on_empty()
            self._left = "".join(f"{line}\n" for line in lines).encode()
        size = len(self._left) if size < 0 else size
        found, self._left = self._left[:size], self._left[size:]
        return found


def _csv(columns: Sequence[tuple[str, bool]], table: LakeTable, file: DataFile) -> Iterator[pa.Table]:
    names = [name for name, _ in columns]
    try:
        # Every column as text: which there are the first record says.
        first = next(_records(table, file), None)
        if first is None:
            if table.header:
                raise _no_column(names[0], file)
            return
        every = first if table.header else [f"f{number}" for number in range(len(first))]
        reader = csv.open_csv(
            _Lines(file, lambda: _check_records(len(first), table, file)),
            # One thread, which knows the row that is wrong.
            read_options=csv.ReadOptions(
                autogenerate_column_names=not table.header, use_threads=False, block_size=BLOCK
            ),
            parse_options=csv.ParseOptions(
                delimiter=table.delimiter, newlines_in_values=True, ignore_empty_lines=False, double_quote=True
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(every, pa.large_string()),
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                null_values=[""],
            ),
        )
        found = list(reader.schema.names)
        if not table.header:
            if len(found) != len(names):
                message = f"{len(found)} fields where {len(names)} columns are declared"
                raise SqlError("22P04", message, detail=f'file "{file.uri}"')
            found = names
        for name in names:
            if name not in found:
                raise _no_column(name, file)
            if found.count(name) > 1:
                raise SqlError("42702", f'there are several columns "{name}" in the file', detail=f'file "{file.uri}"')
        for batch in reader:
            yield pa.table({name: pc.cast(batch.column(found.index(name)), pa.large_string()) for name in names})
    except (pa.ArrowInvalid, pycsv.Error) as error:
        raise SqlError("22P04", str(error), detail=f'file "{file.uri}"') from error


def _records(table: LakeTable, file: DataFile) -> Iterator[list[str]]:
    """The records of a CSV file, one after the other."""
    lines = (f"{line}\n" for lines in lines_of(file) for line in lines)
    return iter(pycsv.reader(lines, delimiter=table.delimiter))


def _check_records(columns: int, table: LakeTable, file: DataFile) -> None:
    """An empty line is a value where there is one column, and else no record. Raises SqlError 22P04."""
    if columns == 1:
        return
    for number, record in enumerate(_records(table, file), 1):
        if not record:
            raise SqlError("22P04", "empty line in a CSV file", detail=f'row {number} of file "{file.uri}"')


def _with_nul(rows: pa.Table, names: Sequence[str], file: DataFile) -> str | None:
    """Where a text has a NUL, which PostgreSQL does not store; None if none has."""
    for name in names:
        index = pc.index(pc.match_substring(rows.column(name), "\0"), True).as_py()
        if index >= 0:
            row = rows.column(ROW)[index].as_py()
            return ("" if row is None else f"row {row} of ") + f'file "{file.uri}", column "{name}"'
    return None


def _no_column(name: str, file: DataFile) -> SqlError:
    return SqlError("42703", f'column "{name}" does not exist in the file', detail=f'file "{file.uri}"')
