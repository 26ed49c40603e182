"""Files in a directory or an object store: listed by Arrow; of Parquet read by Spark, of lines as they stand."""

from __future__ import annotations

import asyncio
import fnmatch
import os
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote as percent
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from catalog.session import SqlError
from engine.object_store import storage_message
from engine.spark.sessions import Session, SparkJobFailed, SparkSessions

Contents = TypeVar("Contents")
Item = TypeVar("Item")

PIECE = 1 << 20
"""Bytes of a file that are in memory at once."""

LINE = 64 << 20
"""Bytes that a line may have."""

_WILDCARDS = re.compile(r"[*?\[]")
_HIDDEN = ("_", ".")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file: its whole URI, its size in bytes, and when it was modified, in nanoseconds since 1970."""

    uri: str
    size: int
    modified: int | None = None


def list_files(uri: str) -> list[DataFile]:
    """The files that a URI names, in the order of their names: one, those of a directory, or those a pattern matches.

    ``*``, ``?`` and ``[…]`` match within one part of the path. In a directory, and everywhere below it, names that
    begin with ``_`` or ``.`` are left out, as writers of Parquet expect. Raises SqlError 58P01 if there are none,
    58030 if it cannot be looked at, 22023.
    """
    scheme, _, rest = uri.partition("://")  # not by urlsplit: a ? is a wildcard
    host, slash, below = rest.partition("/")
    path = unquote(slash + below if scheme == "file" else rest)
    if scheme == "file" and host not in ("", "localhost"):
        raise SqlError("22023", f'"{uri}" names a host', hint="Write file:///path with three slashes.")
    fixed = _WILDCARDS.search(path)
    start = path[: fixed.start()].rpartition("/")[0] if fixed else path
    try:
        if fixed:
            files = [info for info in _below(*_opened(scheme, start)) if _matches(info.path, path)]
        else:
            files = _at(*_opened(scheme, start))
    except (OSError, pa.ArrowException) as error:
        raise SqlError("58030", f'could not look at "{uri}"', detail=storage_message(error)) from error
    if not files:
        raise SqlError("58P01", f'no file at "{uri}"')
    return [
        DataFile(_uri(scheme, info.path), info.size, info.mtime_ns)
        for info in sorted(files, key=lambda info: str(info.path))
    ]


def _opened(scheme: str, path: str) -> tuple[fs.FileSystem, str]:
    """The file system, and the path as it names it."""
    system, root = fs.FileSystem.from_uri(_uri(scheme, path or "/"))
    return system, str(root)


def _at(system: fs.FileSystem, root: str) -> list[fs.FileInfo]:
    """The file of that path, or the files of a directory that are not hidden."""
    info = system.get_file_info(root)
    if info.type == fs.FileType.Directory:
        return [info for info in _below(system, root) if not _hidden(info.path[len(root) :])]
    return [info] if info.type == fs.FileType.File else []


def _below(system: fs.FileSystem, root: str) -> list[fs.FileInfo]:
    """The files of a directory and of those in it."""
    found = system.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
    return [info for info in found if info.type == fs.FileType.File]


def _uri(scheme: str, path: str) -> str:
    return f"{scheme}://{percent(path)}"


def check_below(location: str, uri: str) -> None:
    """A symbolic link must not lead out of a location. Raises SqlError 42501."""
    if not uri.startswith("file:"):
        return
    root = os.path.realpath(unquote(urlsplit(location).path))
    if os.path.commonpath([root, os.path.realpath(unquote(urlsplit(uri).path))]) != root:
        raise SqlError("42501", f'file "{uri}" is not below the location of its server')


def _hidden(relative: str) -> bool:
    return any(part.startswith(_HIDDEN) for part in relative.strip("/").split("/"))


def _matches(path: str, pattern: str) -> bool:
    """
    >>> _matches("/data/2026/a.csv", "/data/*/?.csv"), _matches("/data/2026/a.csv", "/data/*.csv")
    (True, False)
    """
    parts, wanted = path.strip("/").split("/"), pattern.strip("/").split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


async def read_file(
    sessions: SparkSessions, file: DataFile, read: Callable[[Session, str], Contents], description: str
) -> Contents:
    """What `read` makes of a file's URI in a job of Spark's. Raises SparkUnavailable, SqlError with the file's name."""
    try:
        async with sessions.acquire() as lease:
            return await lease.run(lambda spark: read(spark, file.uri), description=description)
    except SparkJobFailed as error:
        raise SqlError(error.sqlstate, f'Spark could not read file "{file.uri}"', detail=error.message) from error


def read_parquet(spark: Session, uri: str) -> tuple[pa.Table, bool]:
    """The rows of a Parquet file, and whether they are in its order.

    Sail reads the row groups of a file beside each other, in an order of its own that cannot be told from the rows. And
    it takes a column whose least and greatest value are equal for a constant, although NaN is no part of statistics:
    such a file is read without it.
    """
    from pyspark.sql.connect.session import SparkSession

    rows = spark.read.parquet(uri).toArrow()
    if rows.num_rows == 0 or not isinstance(spark, SparkSession):
        return rows, True
    system, path = fs.FileSystem.from_uri(uri)
    footer = pq.read_metadata(path, filesystem=system)
    if _seems_constant(footer):
        return stored_parquet(uri), True
    return rows, footer.num_row_groups == 1


def _seems_constant(footer: pq.FileMetaData) -> bool:
    """Whether the statistics of a column of floats have one value only."""
    for number in range(footer.num_columns):
        if footer.schema.column(number).physical_type in ("FLOAT", "DOUBLE"):
            groups = (footer.row_group(group).column(number).statistics for group in range(footer.num_row_groups))
            bounds = {bound for group in groups if group and group.has_min_max for bound in (group.min, group.max)}
            if len(bounds) == 1:
                return True
    return False


def stored_parquet(uri: str) -> pa.Table:
    """The rows of a Parquet file in its order, read without Spark."""
    system, path = fs.FileSystem.from_uri(uri)
    return pq.read_table(path, filesystem=system)


def pieces_of(file: DataFile) -> Iterator[bytes]:
    """What a file of lines says, in its order, decompressed as its name's ending tells. Blocks.

    Whatever a compressed file expands to, there is one piece in memory. Raises SqlError 58030.

    Without Spark, which reads the parts of a large file beside each other: Sail then gives them in any order, and
    tells of no row where in the file it stood.
    """
    try:
        system, path = fs.FileSystem.from_uri(file.uri)
        with system.open_input_stream(path) as stream:
            while piece := stream.read(PIECE):
                yield bytes(piece)
    except (OSError, pa.ArrowException) as error:
        raise SqlError("58030", f'could not read file "{file.uri}"', detail=storage_message(error)) from error


def lines_of(file: DataFile) -> Iterator[list[str]]:
    """The lines of a text in UTF-8, without their ends, some at a time. Blocks.

    Raises SqlError 22021, 58030, 54000 for a line that is too long.
    """
    row = 1
    begun: list[bytes] = []
    for piece in pieces_of(file):
        end = piece.rfind(b"\n")
        if end >= 0:
            lines = _decoded(b"".join([*begun, piece[:end]]), row, file).split("\n")
            begun = []
            row += len(lines)
            yield lines
        begun.append(piece[end + 1 :])
        if sum(map(len, begun)) > LINE:
            raise SqlError(
                "54000",
                "line of a file is too long",
                detail=f'row {row} of file "{file.uri}" has more than {LINE >> 20} MB',
            )
    last = b"".join(begun)
    if last:
        yield _decoded(last, row, file).split("\n")


def _decoded(content: bytes, row: int, file: DataFile) -> str:
    """The text of lines, the first of which is that row of the file. Raises SqlError 22021."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        row += content.count(b"\n", 0, error.start)
        wrong = " ".join(f"0x{byte:02x}" for byte in content[error.start : error.end])
        raise SqlError(
            "22021",
            f'invalid byte sequence for encoding "UTF8": {wrong}',
            detail=f'row {row} of file "{file.uri}"',
        ) from error


async def stepwise(iterator: Iterator[Item]) -> AsyncIterator[Item]:
    """What an iterator gives, each step made in a thread: it blocks, or takes its time."""
    while (item := await asyncio.to_thread(next, iterator, None)) is not None:
        yield item
