"""Lake tables: files that Spark reads, brought into a temporary table as the texts of their values.

The texts become values by a statement that runs with the rights of the stream table's owner, since a domain's CHECK is
code of a user's.
"""

from __future__ import annotations

import csv as pycsv
import hashlib
import io
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import csv

from catalog.session import SqlError, SqlSession
from engine.files import DataFile, lines_of, list_files, read_bytes, read_file, read_parquet
from engine.lake_options import LakeTable
from engine.lake_polls import FILE, ROW
from engine.loading import json_value, value_texts
from engine.spark_load import csv_chunks
from engine.spark_sessions import SparkSessions
from engine.storage import storage_message

RECENT = 5.0
"""Seconds within which a file can be written again under the same time: such files are read anew at the next poll."""

_REFUSED = frozenset({"deletionVectors", "columnMapping"})

pycsv.field_size_limit(1 << 30)  # as large as a value of PostgreSQL's


@dataclass(frozen=True, slots=True)
class LakeFiles:
    """The files of a lake table at one moment."""

    files: tuple[DataFile, ...]
    state: str | None
    """Differs when they do; None if they may change without that it does."""
    partitions: tuple[dict[str, Any], ...] = field(default=())
    """Of Delta: what columns hold that are not in the file, for each file."""

    def uri(self, number: int) -> str:
        """The URI of one of them."""
        return self.files[number].uri


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
            _check_below(table, file.uri)
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
        """Copy the rows of the files into a temporary table of texts with the columns `columns`, FILE and ROW.

        `columns` are names, and whether an array is wanted. ROW is null where the rows are not in the file's order.
        Raises SqlError: 42703 for a file without a column, 22P04 for a line that is no JSON object or has no such
        fields, 58000, 38000.
        """
        names = [column for column, _ in columns]
        for number, file in enumerate(found.files):
            given = found.partitions[number] if found.partitions else {}
            rows, in_order = await self._rows(table, file, columns, given, name)
            if rows.num_rows:
                rows = rows.append_column(FILE, pa.array([str(number)] * rows.num_rows, pa.large_string()))
                first = 2 if table.format == "csv" and table.header else 1  # as COPY counts them
                numbers = pa.array(range(first, first + rows.num_rows))
                places = numbers.cast(pa.large_string()) if in_order else pa.nulls(rows.num_rows, pa.large_string())
                rows = rows.append_column(ROW, places)
                try:
                    await session.copy_in("pg_temp", staging, [*names, FILE, ROW], csv_chunks(rows))
                except SqlError as error:
                    detail = _with_nul(rows, names, file) or error.detail
                    raise SqlError(error.sqlstate, error.message, detail=detail, hint=error.hint) from error

    async def _rows(
        self,
        table: LakeTable,
        file: DataFile,
        columns: Sequence[tuple[str, bool]],
        given: dict[str, Any],
        name: str,
    ) -> tuple[pa.Table, bool]:
        """The texts of a file's rows, and whether they are in its order."""
        if table.format in ("parquet", "delta"):
            rows, in_order = await read_file(self._sessions, file, read_parquet, f"poll of {name}: {file.uri}")
            return _parquet(rows, columns, given, file), in_order
        lines = lines_of(await read_bytes(file), file)
        return (_json(lines, columns, file) if table.format == "json" else _csv(lines, columns, table, file)), True


def _state(table: LakeTable, files: Sequence[DataFile]) -> str | None:
    if any(file.modified is None or time.time() - file.modified / 1e9 < RECENT for file in files):
        return None
    return _digest(repr((table, files)))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _check_below(table: LakeTable, uri: str) -> None:
    """A symbolic link must not lead out of the location. Raises SqlError 42501."""
    if not uri.startswith("file:"):
        return
    root = os.path.realpath(unquote(urlsplit(table.location).path))
    if os.path.commonpath([root, os.path.realpath(unquote(urlsplit(uri).path))]) != root:
        raise SqlError("42501", f'file "{uri}" is not below the location of its server')


def _delta(table: LakeTable) -> LakeFiles:
    root = f"{table.location}/{table.path}"
    _check_below(table, table.uri)
    try:
        delta = DeltaTable(
            root.removeprefix("file://"), storage_options=_storage_options() if "s3://" in root else None
        )
        features = set(delta.protocol().reader_features or ()) & _REFUSED
        if delta.protocol().min_reader_version == 2 or features:
            what = ", ".join(sorted(features)) or "columnMapping"
            raise SqlError("0A000", f'Delta table "{root}" uses {what}, which is not supported')
        actions = pa.table(delta.get_add_actions(flatten=True)).to_pylist()
        version = f"{delta.metadata().id} {delta.version()}"
        absent = dict.fromkeys(column.name for column in delta.schema().fields)  # where a file is older than a column
    except (DeltaError, OSError) as error:
        raise SqlError("58030", f'could not look at Delta table "{root}"', detail=storage_message(error)) from error
    base = table.uri.rstrip("/")
    files, partitions = [], []
    for action in sorted(actions, key=lambda action: str(action["path"])):
        files.append(DataFile(f"{base}/{action['path']}", int(action["size_bytes"])))
        _check_below(table, files[-1].uri)
        values = {key.removeprefix("partition."): v for key, v in action.items() if key.startswith("partition.")}
        partitions.append(absent | values)
    return LakeFiles(tuple(files), _digest(repr((table, version))), tuple(partitions))


def _storage_options() -> dict[str, str]:
    """deltalake reads AWS_* of the environment itself, but for plain HTTP, which it must be allowed."""
    plain = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    return {"AWS_ALLOW_HTTP": "true"} if plain else {}


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


def _json(lines: Sequence[str], columns: Sequence[tuple[str, bool]], file: DataFile) -> pa.Table:
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    values: list[list[str | None]] = [[] for _ in columns]
    for number, line in enumerate(lines, 1):
        try:
            row = decoder.decode(line)
        except msgspec.DecodeError as error:
            where = f'row {number} of file "{file.uri}"'
            raise SqlError("22P04", f"not a JSON object: {error}", detail=where) from error
        for cells, (name, array) in zip(values, columns, strict=True):
            cells.append(json_value(bytes(row.get(name, b"null")), array=array))
    return pa.table(
        {name: pa.array(cells, pa.large_string()) for cells, (name, _) in zip(values, columns, strict=True)}
    )


def _csv(lines: Sequence[str], columns: Sequence[tuple[str, bool]], table: LakeTable, file: DataFile) -> pa.Table:
    names = [name for name, _ in columns]
    if not lines:
        if table.header:
            raise _no_column(names[0], file)
        return pa.table({name: pa.array([], pa.large_string()) for name in names})
    data = "".join(f"{line}\n" for line in lines).encode()
    try:
        # Every column as text: which there are the first record says.
        first = next(pycsv.reader(io.StringIO(data.decode()), delimiter=table.delimiter))
        every = first if table.header else [f"f{number}" for number in range(len(first))]
        _check_records(lines, len(first), table, file)
        reader = csv.read_csv(
            io.BytesIO(data),
            # One thread, which knows the row that is wrong.
            read_options=csv.ReadOptions(autogenerate_column_names=not table.header, use_threads=False),
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
    except (pa.ArrowInvalid, pycsv.Error) as error:
        raise SqlError("22P04", str(error), detail=f'file "{file.uri}"') from error
    if not table.header:
        if reader.num_columns != len(names):
            message = f"{reader.num_columns} fields where {len(names)} columns are declared"
            raise SqlError("22P04", message, detail=f'file "{file.uri}"')
        reader = reader.rename_columns(names)
    for name in names:
        if name not in reader.column_names:
            raise _no_column(name, file)
        if reader.column_names.count(name) > 1:
            raise SqlError("42702", f'there are several columns "{name}" in the file', detail=f'file "{file.uri}"')
    return pa.table({name: pc.cast(reader.column(name), pa.large_string()) for name in names})


def _check_records(lines: Sequence[str], columns: int, table: LakeTable, file: DataFile) -> None:
    """An empty line is a value where there is one column, and else no record. Raises SqlError 22P04."""
    if columns == 1 or not any(line in ("", "\r") for line in lines):
        return
    for number, record in enumerate(pycsv.reader((f"{line}\n" for line in lines), delimiter=table.delimiter), 1):
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
