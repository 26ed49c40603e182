"""What has changed in a Delta table since a version of it was read, by the table's change data feed.

The net of the changes that the feed has between two versions is the difference of their rows, whatever has made it:
`OPTIMIZE` changes nothing, an overwrite is the deletion of all that was there. The feed is trusted where every commit
since that version can be read and is one of the table that was read, and none changes schema or properties.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from pyarrow import fs

from catalog.session import SqlError, SqlSession
from engine.files.copy_from_files import value_texts
from engine.files.listing import check_below, stepwise
from engine.foreign_tables.change_feed import FILE, ROW
from engine.foreign_tables.lake_options import LakeTable
from engine.foreign_tables.lake_polling import STAGING, NotFollowed
from engine.object_store import environment_options, storage_message
from engine.spark.staging import copy_data

ENABLED = "delta.enableChangeDataFeed"

UNREAD = frozenset({"deletionVectors", "columnMapping"})
"""Features of tables that are not read."""

MAPPING = 2
"""The version of readers that says the same of column mapping."""

MOST_COMMITS = 1000
"""More of them are not gone through one by one: the table is compared."""

_PARTITIONED_BY = frozenset(("string", "byte", "short", "integer", "long", "date"))
"""Types whose values a feed has as the log has them."""

_NO_PARTITION = pa.array(["", "__HIVE_DEFAULT_PARTITION__"], pa.large_string())
"""Texts that are NULL where a table is partitioned by them."""

_WEIGHTS = {"insert": "1", "update_postimage": "1", "delete": "-1", "update_preimage": "-1"}

_ERRORS = (DeltaError, OSError, ValueError, KeyError, pa.ArrowException)


@dataclass(frozen=True, slots=True)
class DeltaVersion:
    """A version of a Delta table, as it is known again: ``table`` is its id.

    ``layout`` differs where options, schema or properties do; ``commit`` where the log has another history, empty if
    the log does not have the commit any more. ``rows`` is -1 if the log does not say how many there are.
    """

    table: str
    version: int
    layout: str
    commit: str
    rows: int

    def __str__(self) -> str:
        return f"delta {self.table} {self.version} {self.layout} {self.commit or '-'} {self.rows}"

    @classmethod
    def read(cls, state: str | None) -> DeltaVersion | None:
        """The inverse of `str`; None for anything else.

        >>> str(DeltaVersion.read("delta a-b 7 c0 - -1"))
        'delta a-b 7 c0 - -1'
        """
        parts = (state or "").split(" ")
        if len(parts) != 6 or parts[0] != "delta":
            return None
        return cls(parts[1], int(parts[2]), parts[3], parts[4].removeprefix("-"), int(parts[5]))


def open_delta(table: LakeTable, version: int | None = None) -> DeltaTable:
    """The Delta table. Raises DeltaError, OSError."""
    root = f"{table.location}/{table.path}"
    options = environment_options() if "s3://" in root else None
    return DeltaTable(root.removeprefix("file://"), version=version, storage_options=options)


def version_of(table: LakeTable, delta: DeltaTable, actions: Sequence[dict[str, Any]]) -> DeltaVersion:
    """The version that was opened; ``actions`` are its files."""
    described = repr((table, _description(delta)))
    counts = [int(count) for action in actions if (count := action.get("num_records")) is not None]
    rows = sum(counts) if len(counts) == len(actions) else -1
    try:
        commit = _commit(table, delta.version())
    except OSError:
        commit = None
    known = "" if commit is None else _digest(commit)
    return DeltaVersion(str(delta.metadata().id), delta.version(), _digest(described.encode()), known, rows)


def _description(delta: DeltaTable) -> str:
    """What a commit can change of a table beside its rows."""
    metadata = delta.metadata()
    return _described(metadata.id, delta.schema().to_json(), metadata.partition_columns, metadata.configuration)


def _described(id_: Any, schema: str, partitions: Sequence[str], properties: Mapping[str, str]) -> str:
    return json.dumps([str(id_), json.loads(schema), partitions, properties], sort_keys=True)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _commit(table: LakeTable, version: int) -> bytes | None:
    """What the log says of a commit; None if it says no more. Raises OSError."""
    system, path = fs.FileSystem.from_uri(f"{table.uri.rstrip('/')}/_delta_log/{version:020}.json")
    try:
        with system.open_input_stream(path) as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class DeltaFeed:
    """The changes of a table after one version, up to another one."""

    table: LakeTable
    columns: tuple[str, ...]
    since: DeltaVersion
    until: DeltaVersion

    @property
    def rows(self) -> int | None:
        """How many rows more there are now; None if that is not known."""
        return None if -1 in (self.since.rows, self.until.rows) else self.until.rows - self.since.rows

    async def fill(self, session: SqlSession, staging: str) -> None:
        """Copy the changes into a table of texts in `STAGING`, with their weights in the place of ROW.

        Raises NotFollowed, also for what PostgreSQL does not take: it is found again, and told, when all is read.
        """
        failure: list[BaseException] = []
        try:
            await session.copy_in(STAGING, staging, [*self.columns, FILE, ROW], self._chunks(failure))
        except SqlError as error:
            if error.is_of_connection:
                raise
            raise NotFollowed(storage_message(failure[0]) if failure else error.message) from error

    async def _chunks(self, failure: list[BaseException]) -> AsyncIterator[bytes]:
        try:
            async for rows in stepwise(self._batches()):
                async for chunk in copy_data(rows, [(name, None) for name in rows.column_names]):
                    yield chunk
        except _ERRORS as error:
            failure.append(error)
            raise SqlError("58030", "the change data feed could not be read") from error

    def _batches(self) -> Iterator[pa.Table]:
        delta = open_delta(self.table, self.until.version)
        partitions = delta.metadata().partition_columns
        feed = delta.load_cdf(self.since.version + 1, self.until.version)
        for batch in pa.RecordBatchReader.from_stream(feed):
            if batch.num_rows:
                yield _texts(pa.table(batch), self.columns, partitions)


def _texts(rows: pa.Table, columns: Sequence[str], partitions: Sequence[str]) -> pa.Table:
    """Changes as texts, FILE and the weight as ROW."""
    kinds = rows.column("_change_type").to_pylist()
    found: dict[str, Any] = {}
    for name in columns:
        values = _plain(rows.column(name))
        if name in partitions and pa.types.is_large_string(values.type):
            values = pc.if_else(pc.is_in(values, _NO_PARTITION), pa.scalar(None, pa.large_string()), values)
        texts = [value_texts(chunk, array=False) for chunk in values.chunks]
        found[name] = pa.chunked_array(texts, pa.large_string())
    found[FILE] = pa.array(["0"] * len(kinds), pa.large_string())
    found[ROW] = pa.array([_WEIGHTS[kind] for kind in kinds], pa.large_string())
    return pa.table(found)


def _plain(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Texts and bytes as arrays of their own, not as views of others."""
    if pa.types.is_string_view(values.type):
        return values.cast(pa.large_string())
    return values.cast(pa.large_binary()) if pa.types.is_binary_view(values.type) else values


def feed_since(
    table: LakeTable, before: str | None, now: DeltaVersion, columns: Sequence[tuple[str, bool]]
) -> DeltaFeed | None:
    """The changes after the version whose state was noted; None where there is no feed. Blocks.

    `columns` are names, and whether an array is wanted. Raises NotFollowed where the feed has a gap.
    """
    since = DeltaVersion.read(before)
    if since is None:
        return None
    try:
        delta = open_delta(table, now.version)
        if not _has_feed(delta, [name for name, _ in columns]):
            return None
        if (since.table, since.layout) != (now.table, now.layout):
            raise NotFollowed("it is another table, or its schema, its properties or the options have changed")
        if not 0 < now.version - since.version <= MOST_COMMITS:
            raise NotFollowed(f"it was at version {since.version}, and is at {now.version}")
        commit = _commit(table, since.version)
        if commit is None or _digest(commit) != since.commit:
            raise NotFollowed(f"version {since.version} is not in the log any more, or is another one")
        for version in range(since.version + 1, now.version + 1):
            _check_commit(table, version, _description(delta))
    except _ERRORS as error:
        raise NotFollowed(storage_message(error)) from error
    return DeltaFeed(table, tuple(name for name, _ in columns), since, now)


def _has_feed(delta: DeltaTable, columns: Sequence[str]) -> bool:
    """Whether a table has a feed whose values of these columns are those that its files have."""
    metadata = delta.metadata()
    types = {field.name: field.type for field in delta.schema().fields}
    for name in columns:
        type_ = types.get(name)
        if not isinstance(type_, PrimitiveType):
            return False
        if name in metadata.partition_columns and type_.type not in _PARTITIONED_BY:
            return False
    return metadata.configuration.get(ENABLED, "").lower() == "true"


def _check_commit(table: LakeTable, version: int, description: str) -> None:
    """A commit must change rows only, by files that are below the location.

    Raises NotFollowed, ValueError, KeyError, OSError.
    """
    commit = _commit(table, version)
    if commit is None:
        raise NotFollowed(f"version {version} is not in the log any more")
    for line in commit.splitlines():
        action = json.loads(line) if line.strip() else {}
        if _changes_more(action, description):
            raise NotFollowed(f"version {version} changes the schema or properties")
        for named in (action[kind] for kind in ("add", "remove", "cdc") if action.get(kind)):
            if named.get("deletionVector"):
                raise NotFollowed(f"version {version} has deletion vectors")
            if not _is_below(table, str(named["path"])):
                raise NotFollowed(f"version {version} has a file that is not below the location")


def _changes_more(action: Mapping[str, Any], description: str) -> bool:
    """Whether an action changes the table otherwise than by rows: RESTORE, for one, repeats what there is already."""
    if protocol := action.get("protocol"):
        return bool(UNREAD & {*(protocol.get("readerFeatures") or ())}) or protocol["minReaderVersion"] == MAPPING
    if (stated := action.get("metaData")) is None:
        return False
    described = stated["id"], stated["schemaString"], stated["partitionColumns"], stated.get("configuration") or {}
    return _described(*described) != description


def _is_below(table: LakeTable, path: str) -> bool:
    """Whether the path of a file is relative, and leads nowhere else, also behind symbolic links."""
    plain = unquote(path)
    if plain.startswith("/") or ":" in plain.partition("/")[0] or ".." in PurePosixPath(plain).parts:
        return False
    try:
        check_below(table.location, f"{table.uri.rstrip('/')}/{path}")
    except SqlError:
        return False
    return True
