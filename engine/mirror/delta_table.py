"""One Delta Lake table, of a mirror or published, on a local path or an object store: the only writer of such tables.

A mirror's is found whole, or not found at all.

Every commit of ours carries metadata under the key ``headwater`` and goes in only as the successor of the version that
its writer has read (no retries): so of two writers, in this process or another, one fails, and nothing is in twice.
Commits that move rows without changing them (OPTIMIZE, VACUUM) carry none. A table whose last other commit is not
ours, or that misses a file or has one of another size, is not whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import structlog
from deltalake import ColumnProperties, CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from engine.mirror import digests
from engine.mirror.as_of_sql import XID
from engine.object_store import storage_message
from sql.base.text import quote

log = structlog.get_logger(__name__)

ROW_GROUP_ROWS = 128 * 1024
METADATA = "headwater"
SORTING_BYTES = 256 << 20
"""Of memory; what is sorted beyond that is on disk meanwhile."""
SHARED_RETENTION_HOURS = 1
"""How long files that no version needs any more stay where other servers may be reading them."""

_STATISTICS = "delta.dataSkippingStatsColumns"

# What a Delta log keeps of itself: one entry a second while changes arrive.
_CONFIGURATION = {
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.checkpointInterval": "50",
    # Of the log `__pgt_xid`, its first column. What stands for infinity has no text that every reader could parse.
    _STATISTICS: XID,
}


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a table keeps of its past: its properties, and how long files stay that its last version does not need."""

    configuration: Mapping[str, str]
    hours: int
    text_statistics: bool = True
    """Whether files have statistics of texts. `merge` writes these as views, which Arrow cannot compare with them."""


_OF_MIRRORS = Keeping(_CONFIGURATION, SHARED_RETENTION_HOURS)


@dataclass(frozen=True, slots=True)
class Mark:
    """What a commit says in the log by which its writer finds out how far it has got: `version` only grows."""

    application: str
    version: int


_NEUTRAL = ("VACUUM", "OPTIMIZE")
_LOOK_BACK = 20


class WriteConflict(Exception):
    """Somebody else has committed since the table was read: read it again."""


class StorageFailed(Exception):
    """The storage cannot be read or written now. What it holds is not judged by that."""

    def __init__(self, error: BaseException):
        super().__init__(storage_message(error))


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A Parquet file of a version; `lowest` and `highest` bound what it has in the column with statistics, if known."""

    path: str
    rows: int
    size: int
    lowest: int | None = None
    highest: int | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed version of a table. Of one of a mirror's it is known that it is whole."""

    table: DeltaTable
    version: int
    metadata: Mapping[str, Any]
    files: tuple[StoredFile, ...]
    table_id: str = ""

    @staticmethod
    def of(table: DeltaTable) -> Committed:
        """What a commit is to be the successor of, whoever has written it."""
        return Committed(table, table.version(), {}, ())

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def same(self, table: DeltaTable, files: tuple[StoredFile, ...]) -> bool:
        """Whether it is this version; tables that were made anew, or put back, have other files or another id."""
        return self.version == table.version() and self.files == files and self.table_id == str(table.metadata().id)


_known: dict[str, Committed] = {}
"""The version of each table that was last found whole. Of an object store it is not looked at again: files there do not
change, and deltalake holds the GIL while it waits for what they say."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where mirrors are: a directory, or the URI of an object store with deltalake's options for it.

    `private`: no other process reads or writes there, so that files can go as soon as nobody here needs them.
    """

    uri: str
    options: Mapping[str, str]
    private: bool = True
    keeping: Keeping = field(default_factory=lambda: _OF_MIRRORS)

    @staticmethod
    def local(path: Path, *, private: bool = True) -> Location:
        return Location(str(path.absolute()), {}, private)

    @property
    def remote(self) -> bool:
        return "://" in self.uri

    def below(self, *names: str) -> Location:
        return Location("/".join((self.uri.rstrip("/"), *names)), self.options, self.private, self.keeping)

    def storage(self) -> pyarrow.fs.PyFileSystem:
        return pyarrow.fs.PyFileSystem(DeltaStorageHandler(self.uri, dict(self.options)))

    def names(self) -> list[str]:
        """What lies directly below. Raises StorageFailed."""
        try:
            if not self.remote:
                return sorted(os.listdir(self.uri)) if os.path.isdir(self.uri) else []
            found = self.storage().get_file_info(pyarrow.fs.FileSelector("", allow_not_found=True, recursive=True))
            return sorted({info.path.lstrip("/").split("/")[0] for info in found})
        except OSError as error:
            raise StorageFailed(error) from error

    def remove(self) -> None:
        """Remove everything there. Raises StorageFailed."""
        if not self.remote:
            shutil.rmtree(self.uri, ignore_errors=True)
            return
        try:
            storage = self.storage()
            for info in storage.get_file_info(pyarrow.fs.FileSelector("", allow_not_found=True, recursive=True)):
                if info.type == pyarrow.fs.FileType.File:
                    storage.delete_file(info.path)
        except OSError as error:
            raise StorageFailed(error) from error

    def sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """Bytes of those of the files that are there. Raises StorageFailed."""
        sizes = {}
        try:
            if self.remote:
                found = self.storage().get_file_info(pyarrow.fs.FileSelector("", allow_not_found=True))
                return {info.path.lstrip("/"): info.size for info in found}
            for path in paths:
                try:
                    sizes[path] = os.stat(os.path.join(self.uri, path)).st_size
                except FileNotFoundError:
                    continue
        except OSError as error:
            raise StorageFailed(error) from error
        return sizes

    def committed(self) -> Committed | None:
        """The table's last version, None if there is none that is whole. Raises StorageFailed."""
        try:
            return self._last_version()
        except TableNotFoundError:
            return None
        except (DeltaError, OSError, KeyError, TypeError, ValueError) as error:
            if self.remote and (isinstance(error, OSError) or "Generic" in str(error)):
                raise StorageFailed(error) from error
            if self.remote or os.path.exists(self.uri):
                log.warning("mirror_unusable", uri=self.uri, error=storage_message(error))
            return None

    def _last_version(self) -> Committed:
        """The table's last version. Raises ValueError where it is not whole, and whatever deltalake says."""
        table = DeltaTable(self.uri, storage_options=dict(self.options) or None)
        files = self._files(table)
        known = _known.get(self.uri)
        if self.remote and known and known.same(table, files):
            return Committed(table, table.version(), known.metadata, files, known.table_id)
        metadata = last_metadata(table)
        if metadata is None:
            raise ValueError("the last commit is not ours")
        sizes = self.sizes([file.path for file in files])
        for file in files:
            if sizes.get(file.path) != file.size:
                raise ValueError(f"{file.path} is not there or has another size")
        if not self.remote:
            digests.note(self.full_paths(files))
        found = Committed(table, table.version(), metadata, files, str(table.metadata().id))
        _known[self.uri] = found
        return found

    def _files(self, table: DeltaTable) -> tuple[StoredFile, ...]:
        actions = pa.table(cast(Any, table.get_add_actions(flatten=True))).to_pylist()
        bounded = table.metadata().configuration.get(_STATISTICS)
        return tuple(
            StoredFile(
                unquote(action["path"]),
                action["num_records"],
                action["size_bytes"],
                action.get(f"min.{bounded}"),
                action.get(f"max.{bounded}"),
            )
            for action in actions
        )

    def full_paths(self, files: Iterable[StoredFile]) -> tuple[str, ...]:
        return tuple(f"{self.uri}/{file.path}" for file in files)

    def discard_damaged(self, files: Iterable[StoredFile]) -> bool:
        """Remove the files that are not what was written: then the table is not whole. Raises StorageFailed."""
        try:
            found = [] if self.remote else digests.damaged(self.full_paths(files))
            digests.discard(found)
        except OSError as error:
            raise StorageFailed(error) from error
        return bool(found)

    def opened(self) -> DeltaTable | None:
        """The table's last version, whoever has written it; None if there is no table. Raises StorageFailed."""
        try:
            return DeltaTable(self.uri, storage_options=dict(self.options) or None)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise StorageFailed(error) from error

    def create(
        self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], metadata: Mapping[str, Any], mark: Mark
    ) -> DeltaTable:
        """Make the table, where there is none. Raises WriteConflict, StorageFailed."""
        try:
            return self._write(self.uri, pa.RecordBatchReader.from_batches(schema, batches), "error", metadata, mark)
        except DeltaError as error:
            if "already exists" in str(error):
                raise WriteConflict(str(error)) from error
            raise

    def merge(
        self, base: Committed, changes: pa.Table, key: str, gone: str, metadata: Mapping[str, Any], mark: Mark
    ) -> DeltaTable:
        """Bring in changed rows, as the successor of `base`, which has each value of the column `key` once at most.

        Each row of `changes` takes the place of the one with its key, or comes anew; where its column `gone`, which the
        table has not, is true that one goes. Files without such rows stay as they are. Raises WriteConflict,
        StorageFailed.
        """
        lowest, highest = pc.min_max(changes[key]).as_py().values()
        quoted = quote(key)
        same = f"t.{quoted} = s.{quoted} AND t.{quoted} >= {lowest} AND t.{quoted} <= {highest}"
        merger = base.table.merge(
            changes,
            predicate=same,
            source_alias="s",
            target_alias="t",
            streamed_exec=False,
            writer_properties=self._writer_properties(changes.schema),
            commit_properties=_commit_properties(metadata, mark),
        )
        merger = merger.when_matched_delete(f"s.{quote(gone)}").when_matched_update_all(except_cols=[gone])
        with _as_our_errors():
            merger.when_not_matched_insert_all(f"NOT s.{quote(gone)}", except_cols=[gone]).execute()
        return base.table

    def overwrite(
        self,
        base: Committed | None,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        metadata: Mapping[str, Any],
        mark: Mark | None = None,
        *,
        part: str | None = None,
        statistics: str | None = None,
    ) -> DeltaTable:
        """Replace all rows, as the successor of `base` if that is given, and of whatever is there if not.

        With `part`, a condition that all of `batches` meet, only the rows that meet it: files without any stay. The
        files of a new table say what they have in the column `statistics` at least and at most. Raises WriteConflict,
        StorageFailed.
        """
        if base is None:
            self._make_writable(statistics)
        target = base.table if base else self.uri
        data = pa.RecordBatchReader.from_batches(schema, batches)
        return self._write(target, data, "overwrite", metadata, mark, part=part, statistics=statistics)

    def append(
        self, base: Committed, table: pa.Table, metadata: Mapping[str, Any], mark: Mark | None = None
    ) -> DeltaTable:
        """Add rows, as the successor of `base`. Raises WriteConflict, StorageFailed."""
        return self._write(base.table, table, "append", metadata, mark)

    def _write(
        self,
        target: Any,
        data: Any,
        mode: Any,
        metadata: Mapping[str, Any],
        mark: Mark | None = None,
        *,
        part: str | None = None,
        statistics: str | None = None,
    ) -> DeltaTable:
        with _as_our_errors():
            write_deltalake(
                target,
                data,
                mode=mode,
                schema_mode="overwrite" if mode == "overwrite" and part is None else None,
                predicate=part,
                storage_options=dict(self.options) or None,
                configuration=None if mode == "append" else self._configuration(statistics),
                writer_properties=self._writer_properties(data.schema),
                commit_properties=_commit_properties(metadata, mark),
            )
        if isinstance(target, DeltaTable):
            return target
        return DeltaTable(self.uri, storage_options=dict(self.options) or None)

    def _configuration(self, statistics: str | None) -> Mapping[str, str]:
        return {**self.keeping.configuration, _STATISTICS: statistics} if statistics else self.keeping.configuration

    def _writer_properties(self, schema: pa.Schema) -> WriterProperties:
        """How files are written.

        Floats have no statistics: NaN is no part of these, so that Sail would take a column of NaN and one other value
        for a constant, and pass over row groups whose NaN is greater than what is asked for.
        """
        texts = () if self.keeping.text_statistics else schema
        without = [column.name for column in schema if pa.types.is_floating(column.type)]
        without += [column.name for column in texts if pa.types.is_string(column.type)]
        return WriterProperties(
            compression="SNAPPY",  # Zstandard would take a fifth less space, and queries 6 % more of their CPU time
            max_row_group_size=ROW_GROUP_ROWS,
            column_properties={name: ColumnProperties(statistics_enabled="NONE") for name in without},
        )

    def _make_writable(self, statistics: str | None) -> None:
        """A log that cannot be read cannot be continued. The files go with the next vacuum."""
        if not self.remote:
            Path(self.uri).mkdir(parents=True, exist_ok=True)
        try:
            table = DeltaTable(self.uri, storage_options=dict(self.options) or None)
            wanted = self._configuration(statistics).get(_STATISTICS)
            if wanted and table.metadata().configuration.get(_STATISTICS) != wanted:
                table.alter.set_table_properties({_STATISTICS: wanted})  # to replace all rows does not do that
        except TableNotFoundError:
            return
        except (DeltaError, ValueError) as error:
            if self.remote and "Generic" in str(error):
                raise StorageFailed(error) from error
            self.below("_delta_log").remove()

    def optimize(self, column: str | None = None) -> None:
        """Make large files of small ones, or, with a `column`, of all, sorted by it; the rows stay the same."""
        try:
            table = DeltaTable(self.uri, storage_options=dict(self.options) or None)
            properties = self._writer_properties(pa.schema(table.schema().to_arrow()))
            if column is None:
                table.optimize.compact(writer_properties=properties)
            else:
                table.optimize.z_order([column], writer_properties=properties, max_spill_size=SORTING_BYTES)
        except (DeltaError, OSError) as error:
            log.warning("mirror_optimize_failed", uri=self.uri, error=storage_message(error))

    def vacuum(self, held: Iterable[int], *, full: bool) -> None:
        """Remove files that only versions before the last one need, except the `held` ones.

        `full`: also files of writers that never committed. Where other processes may be reading, files stay for the
        hours of `keeping`.
        """
        try:
            table = DeltaTable(self.uri, storage_options=dict(self.options) or None)
            table.vacuum(
                retention_hours=0 if self.private else self.keeping.hours,
                enforce_retention_duration=False,
                dry_run=False,
                full=full,
                keep_versions=sorted(held),
            )
            if not self.remote:
                digests.tidy(self.uri)
        except (DeltaError, OSError) as error:
            log.warning("mirror_vacuum_failed", uri=self.uri, error=storage_message(error))


def _commit_properties(metadata: Mapping[str, Any], mark: Mark | None) -> CommitProperties:
    """Of a commit that goes in only as the successor of the version that was read."""
    marks = None if mark is None else [Transaction(mark.application, mark.version)]
    return CommitProperties(
        custom_metadata={METADATA: json.dumps(metadata)}, max_commit_retries=0, app_transactions=marks
    )


@contextmanager
def _as_our_errors() -> Iterator[None]:
    try:
        yield
    except CommitFailedError as error:
        raise WriteConflict(str(error)) from error
    except OSError as error:
        raise StorageFailed(error) from error


def last_metadata(table: DeltaTable) -> Mapping[str, Any] | None:
    """What the last commit that changed rows says, None if it is not ours."""
    for commit in table.history(_LOOK_BACK):
        if METADATA in commit:
            return cast(Mapping[str, Any], json.loads(commit[METADATA]))
        if not str(commit.get("operation", "")).startswith(_NEUTRAL):
            return None
    return None
