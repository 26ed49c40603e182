"""`COPY table FROM 'scheme://…'`: files loaded by COPY, one COPY a file. Parquet is read by Spark.

CSV and text files go to PostgreSQL as they are, so that what they mean is what PostgreSQL's COPY says they
mean. Of Parquet and JSON files, whose values have names, each value goes into the column of its name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain, islice
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from catalog.session import RequestSession, SqlError
from engine.compile.pool import compilers, on_behalf_of
from engine.files.listing import (
    DataFile,
    lines_of,
    list_files,
    pieces_of,
    read_file,
    read_parquet,
    stepwise,
    stored_parquet,
)
from engine.session.transactions import local_setting
from engine.spark.sessions import SparkSessions
from sql.base.text import quote
from sql.statements.copy_from_files import Load, LoadError, parse_load

log = structlog.get_logger(__name__)

CHUNK_ROWS = 16384
"""Rows in one piece of COPY data."""

_JSON_LIST = msgspec.json.Decoder(list[Any], float_hook=Decimal)
_JSON_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_JSON_ENCODER = msgspec.json.Encoder(decimal_format="number")

_ROW = re.compile(r"COPY [^\n]*?, line (\d+)(?:, column ([^\n:]+))?")

# The columns that a COPY without a column list would fill, with their types' categories.
_TABLE = """
SELECT n.nspname::text, c.relname::text, a.attname::text, t.typcategory::text
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid OPERATOR(pg_catalog.=) c.oid AND a.attnum OPERATOR(pg_catalog.>) 0
    AND NOT a.attisdropped AND a.attgenerated OPERATOR(pg_catalog.=) ''
JOIN pg_catalog.pg_type t ON t.oid OPERATOR(pg_catalog.=) a.atttypid
WHERE c.oid OPERATOR(pg_catalog.=) $1::pg_catalog.int8::pg_catalog.oid
ORDER BY a.attnum
"""


class FileLoader:
    """Carries out COPY from files, on the sessions of one Spark target."""

    def __init__(self, sessions: SparkSessions):
        self._sessions = sessions

    async def load(self, session: RequestSession, statement: str, search_path: str) -> int:
        """Load the files into the table, in the session's transaction and with the rights of its user.

        Returns the number of rows. Raises SqlError: what PostgreSQL's COPY raises, with the file and the row in its
        detail; 42501 if the user may not read the server's files; 42703 for a value without a column; 22P04 for a
        line that is no JSON object; 54000 for one that is too long; 58P01, 58030, 58000, 38000.
        """
        ((role, allowed),) = await session.fetch(
            "SELECT current_user::text, pg_catalog.pg_has_role(current_user, 'pg_read_server_files', 'USAGE')"
        )
        if not allowed:
            raise SqlError(
                "42501",
                "permission denied to COPY from a file",
                detail='Only roles with privileges of the "pg_read_server_files" role may COPY from a file.',
                hint="Anyone can COPY from stdin. psql's \\copy command also works for anyone.",
            )
        try:
            with on_behalf_of(role):
                load = await compilers().run(parse_load, statement)
        except LoadError as error:
            raise SqlError(error.sqlstate, str(error), hint=error.hint) from error
        target = await _target(session, load, search_path)
        rows = 0
        for file in await asyncio.to_thread(list_files, load.uri):
            loaded = await self._load_file(session, load, target, file)
            log.info("loaded", table=target.name, file=file.uri, rows=loaded)
            rows += loaded
        return rows

    async def _load_file(self, session: RequestSession, load: Load, target: Target, file: DataFile) -> int:
        content: _Parquet | _Json | _Text
        unordered: _Parquet | None = None
        if load.format == "parquet":
            description = f"COPY {target.name} FROM {file.uri}"
            table, in_order = await read_file(self._sessions, file, read_parquet, description)
            content = _Parquet(table, target, file)
            unordered = None if in_order else content
        else:
            content = _Text(file, load.columns)
            if load.format == "json":
                content = _Json(target, file)
                await content.name_columns()
        names = f" ({', '.join(quote(name) for name in content.columns)})" if content.columns else ""
        if not content.columns and load.format in ("parquet", "json"):
            return 0  # not one value in it
        command = f"COPY {target.name}{names} FROM STDIN ({load.copy_options})"
        try:
            return await session.copy_from(command, stepwise(content.chunks()))
        except SqlError as error:
            found = _ROW.search(error.context or "")
            if found is None:
                raise
            line = int(found[1])
            row = await asyncio.to_thread(_row_in_file, unordered, line, target, file) if unordered else line
            where = f'row {row} of file "{file.uri}"' if row else f'file "{file.uri}"'
            where += f', column "{found[2]}"' if found[2] else ""
            detail = f"{error.detail}\n{where}" if error.detail else where
            raise SqlError(error.sqlstate, error.message, detail=detail, hint=error.hint) from error


def _row_in_file(content: _Parquet, row: int, target: Target, file: DataFile) -> int | None:
    """Where a row that Spark gave stands in the file: the first there that is loaded in the same way."""
    wanted = next(islice(content.lines(), row - 1, None))
    there = _Parquet(stored_parquet(file.uri), target, file).lines()
    return next((number for number, line in enumerate(there, 1) if line == wanted), None)


@dataclass(frozen=True, slots=True)
class Target:
    """The table that is loaded: its quoted name, its columns with their types' categories, the list that was given."""

    name: str
    columns: dict[str, str]
    given: tuple[str, ...]

    def column(self, name: str, file: DataFile, row: int | None = None) -> str | None:
        """The column for a value of that name, None if the column list leaves it out. Raises SqlError 42703."""
        if self.given and name not in self.given:
            return None
        if name not in self.columns:
            where = f'row {row} of file "{file.uri}"' if row else f'file "{file.uri}"'
            raise SqlError(
                "42703",
                f'column "{name}" of relation {self.name} does not exist',
                detail=where,
                hint="Name the columns to be loaded: COPY table (column, ...) FROM ...",
            )
        return name


async def _target(session: RequestSession, load: Load, search_path: str) -> Target:
    async with local_setting(session, "search_path", search_path):
        ((oid,),) = await session.fetch("SELECT $1::pg_catalog.text::pg_catalog.regclass::pg_catalog.int8", load.table)
    rows = await session.fetch(_TABLE, oid)
    if not rows:
        raise SqlError("42809", f"cannot copy to relation {load.table}")
    schema, name = rows[0][:2]
    columns = {str(column): str(category) for _, _, column, category in rows}
    return Target(quote(schema, name), columns, load.columns)


class _Text:
    """A CSV or text file, as it is."""

    def __init__(self, file: DataFile, columns: tuple[str, ...]):
        self._file = file
        self.columns = columns

    def chunks(self) -> Iterator[bytes]:
        return pieces_of(self._file)


class _Json:
    """A file with one JSON object a line. A value is loaded as its text, a string as what it says.

    It is read twice where no columns were given: for the names in it, and for the values.
    """

    def __init__(self, target: Target, file: DataFile):
        self._target = target
        self._file = file
        self.columns = target.given

    async def name_columns(self) -> None:
        """Find out which columns there are values for. Raises SqlError."""
        if self.columns:
            return
        found: set[str] = set()
        async for names in stepwise(self._names()):
            found |= names
        self.columns = tuple(name for name in self._target.columns if name in found)

    def chunks(self) -> Iterator[bytes]:
        arrays = frozenset(name for name in self.columns if self._target.columns.get(name) == "A")
        known = {*self.columns}
        for begin, rows in self._rows():
            for number, row in enumerate(rows, begin):
                for name in row.keys() - known:
                    if self._target.column(name, self._file, number) is not None:
                        raise SqlError("55000", f'file "{self._file.uri}" has changed while it was read')
            yield "".join("\t".join(self._cells(row, arrays)) + "\n" for row in rows).encode()

    def _names(self) -> Iterator[set[str]]:
        found: set[str] = set()
        for begin, rows in self._rows():
            for number, row in enumerate(rows, begin):
                for name in row.keys() - found:
                    if self._target.column(name, self._file, number) is not None:
                        found.add(name)
            yield found

    def _rows(self) -> Iterator[tuple[int, list[dict[str, msgspec.Raw]]]]:
        """Some rows at a time, with the number of the first one."""
        number = 1
        for lines in lines_of(self._file):
            yield number, [json_object(line, row, self._file) for row, line in enumerate(lines, number)]
            number += len(lines)

    def _cells(self, row: dict[str, msgspec.Raw], arrays: frozenset[str]) -> Iterator[str]:
        for name in self.columns:
            text = json_value(bytes(row.get(name, b"null")), array=name in arrays)
            yield "\\N" if text is None else _escaped(text)


def json_object(line: str, number: int, file: DataFile) -> dict[str, msgspec.Raw]:
    """The object that is a row of a file. Raises SqlError 22P04."""
    if not line.strip():
        raise SqlError("22P04", "empty line in a JSON file", detail=f'row {number} of file "{file.uri}"')
    try:
        return _JSON_OBJECT.decode(line)
    except msgspec.DecodeError as error:
        raise SqlError("22P04", f"not a JSON object: {error}", detail=f'row {number} of file "{file.uri}"') from error


def json_value(raw: bytes, *, array: bool) -> str | None:
    """The text of a JSON value for PostgreSQL: of a string what it says, of a list an array if one is wanted."""
    if raw == b"null":
        return None
    if raw[:1] == b'"':
        return str(msgspec.json.decode(raw))
    if raw[:1] == b"[" and array:
        return array_text(_JSON_LIST.decode(raw))
    return raw.decode()


class _Parquet:
    """A Parquet file's rows."""

    def __init__(self, table: pa.Table, target: Target, file: DataFile):
        names = [name for name in table.column_names if target.column(name, file) is not None]
        missing = [name for name in target.given if name not in names]
        if missing:
            raise SqlError("42703", f'column "{missing[0]}" does not exist in the file', detail=f'file "{file.uri}"')
        self.columns = tuple(names)
        self._table = table.select(names)
        self._arrays = frozenset(name for name in names if target.columns.get(name) == "A")

    def chunks(self) -> Iterator[bytes]:
        for lines in self._batches():
            yield "".join(f"{line}\n" for line in lines).encode()

    def lines(self) -> Iterator[str]:
        """What is loaded, row by row."""
        return chain.from_iterable(self._batches())

    def _batches(self) -> Iterator[list[str]]:
        for batch in self._table.to_batches(max_chunksize=CHUNK_ROWS):
            cells = [self._texts(name, batch.column(name)) for name in self.columns]
            lines = pc.binary_join_element_wise(*cells, pa.scalar("\t", pa.large_string()))
            yield lines.to_pylist()

    def _texts(self, name: str, values: pa.Array) -> pa.Array:
        """The texts of values for COPY's text format."""
        kind, found = values.type, value_texts(values, array=name in self._arrays)
        if not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_boolean(kind)):
            for plain, escaped in _ESCAPES:
                found = pc.replace_substring(found, plain, escaped)
        return pc.fill_null(found, "\\N")


def value_texts(values: pa.Array, *, array: bool) -> pa.Array:
    """The texts of values for PostgreSQL to read; of lists arrays if these are wanted."""
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.array([None if v is None else "\\x" + v.hex() for v in values.to_pylist()], pa.large_string())
    if pa.types.is_nested(kind):
        return pa.array([_nested(v, array) for v in values.to_pylist()], pa.large_string())
    return values.cast(pa.large_string())


def _nested(value: Any, array: bool) -> str | None:
    if value is None:
        return None
    if isinstance(value, list) and array:
        return array_text(value)
    return _JSON_ENCODER.encode(value).decode()


_ESCAPES = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))


def _escaped(text: str) -> str:
    """A value in COPY's text format."""
    for plain, escaped in _ESCAPES:
        text = text.replace(plain, escaped)
    return text


def array_text(values: Sequence[Any]) -> str:
    """A list as the text of a PostgreSQL array.

    >>> array_text([1, None, 'a "b"', [True]])
    '{1,NULL,"a \\\\"b\\\\"",{"true"}}'
    """
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return array_text(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, bytes):
        value = "\\x" + value.hex()
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
