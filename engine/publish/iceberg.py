"""A published Delta table as an Iceberg table, too: Iceberg's metadata over the same files.

The publication's location is that of the Iceberg table. Its metadata is in ``metadata/``, and the Delta table in
``data/``. Delta's log stays the truth: a version of it is described once it is committed, as a snapshot that differs
from the one before by the files that differ. So a crash between the two leaves a version that is described later.

A file that deltalake has written by a merge has texts in Arrow's views, which readers that go by Arrow (pyiceberg) can
neither filter nor put together with others. Such a file has a copy in ``files/``, under the same name, without them.

``version-hint.text`` has the number n of the newest metadata, ``v<n>.metadata.json``, as in tables that readers find by
their path (the Hadoop catalog of Iceberg). For a Delta table's version v it is at least v + 1: two servers that
describe two versions at the same time write different files, and no store needs to refuse a file that is there already.

Source: the Iceberg specification, version 2 (https://iceberg.apache.org/spec).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyiceberg import types
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFile, parquet_file_to_data_file
from pyiceberg.manifest import (
    DataFile,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetSnapshotRefUpdate,
    update_table_metadata,
)

from engine.mirror.delta_table import METADATA, Location, StorageFailed, last_metadata
from engine.publish.table import RETENTION_HOURS

log = structlog.get_logger(__name__)

SNAPSHOTS = 200
"""So many of them readers can travel back to at most. Each is 1 kB in every metadata file."""

READERS_SECONDS = 3600
"""So long the metadata of a snapshot that is gone stays for those who read it."""

COPIES = "files"
"""The directory of files that are not the Delta table's."""

_DELTA: Final = "delta-version"
_DELTA_ID: Final = "delta-table-id"
_FILE: Final = re.compile(r"v(\d+)\.metadata\.json")

_CODEC: Final = "deflate"

_UNREADABLE: Final = (FileNotFoundError, ValidationError, ValueError, EOFError, KeyError, TypeError, AttributeError)
"""What pyiceberg raises of files that are not there or not whole."""

_TYPES: Final[dict[str, types.IcebergType]] = {
    "boolean": types.BooleanType(),
    "byte": types.IntegerType(),
    "short": types.IntegerType(),
    "integer": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "date": types.DateType(),
    "timestamp": types.TimestamptzType(),
    "timestamp_ntz": types.TimestampType(),
    "string": types.StringType(),
    "binary": types.BinaryType(),
}


_WITHOUT_STATISTICS: Final = (types.FloatType, types.DoubleType, types.StringType, types.BinaryType)


class _Version(NamedTuple):
    """A version of a Delta table: the table's id, the number, and what the publication has said of it as JSON."""

    table: str
    number: int
    told: str

    @staticmethod
    def of(table: DeltaTable) -> _Version:
        return _Version(str(table.metadata().id), table.version(), json.dumps(last_metadata(table)))


@dataclass(frozen=True, slots=True)
class _Described:
    """What a metadata file says: the metadata, and its snapshot's entries of files by the names of these."""

    metadata: TableMetadata
    entries: Mapping[str, ManifestEntry]

    @property
    def version(self) -> _Version | None:
        """The Delta table's version that it is."""
        snapshot = self.metadata.current_snapshot()
        said = None if snapshot is None else snapshot.summary
        if said is None or (number := said.get(_DELTA)) is None:
            return None
        return _Version(str(said.get(_DELTA_ID)), int(number), str(said.get(METADATA)))


def describe(place: Location, table: DeltaTable) -> None:
    """Have the Iceberg table at `place` be what a Delta table below it is. Raises StorageFailed.

    Metadata that is not whole is begun anew.
    """
    with _storage_errors():
        store, version = _Store(place), _Version.of(table)
        newest = store.newest()
        found = None if newest is None else store.read(newest)
        if found is not None and found.version == version:
            return
        base = _continued(found, _schema(table), place.uri)
        _commit(store, max(version.number, newest or 0) + 1, base, table, version)


def tidy(place: Location) -> None:
    """Remove files of metadata that no snapshot needs any more. Raises StorageFailed."""
    with _storage_errors():
        _Store(place).remove_unneeded()


def _continued(found: _Described | None, schema: Schema, location: str) -> _Described:
    """What the next snapshot comes to: without any snapshots before it if the columns are others than they were."""
    if found is not None and found.metadata.schema().as_struct() == schema.as_struct():
        return found
    table_uuid = None if found is None else found.metadata.table_uuid
    properties = {"schema.name-mapping.default": create_mapping_from_schema(schema).model_dump_json()}
    for field in schema.fields:
        # Files have no statistics of these, which pyiceberg would warn of each time. Bounds of floats would be those of
        # other values than NaN, which is greater than all of them to PostgreSQL and Spark.
        if isinstance(field.field_type, _WITHOUT_STATISTICS):
            properties[f"write.metadata.metrics.column.{field.name}"] = "none"
    parts, order = UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER
    return _Described(new_table_metadata(schema, parts, order, location, properties, table_uuid), {})


def _commit(store: _Store, number: int, base: _Described, delta: DeltaTable, version: _Version) -> None:
    """Write a snapshot that has the files of a Delta table's version.

    One manifest has all of them: to read many of pyiceberg's costs more, and a change writes most files anew anyway.
    """
    paths = {os.path.basename(path): path for path in delta.file_uris()}
    gone = [base.entries[name] for name in base.entries.keys() - paths.keys()]
    kept = [base.entries[name] for name in base.entries.keys() & paths.keys()]
    new = [store.readable(paths[name]) for name in sorted(paths.keys() - base.entries.keys())]
    added = [parquet_file_to_data_file(store, base.metadata, path) for path in new]
    said = {
        _DELTA_ID: version.table,
        _DELTA: str(version.number),
        METADATA: version.told,
        "added-data-files": str(len(added)),
        "deleted-data-files": str(len(gone)),
        "total-data-files": str(len(paths)),
        "total-records": str(sum(file.record_count for file in (*(each.data_file for each in kept), *added))),
    }
    write = store.writing(base.metadata)
    manifests = [write.manifest(added, kept, gone)] if paths or gone else []
    store.write(number, _with_snapshot(base.metadata, write.snapshot(manifests, Summary(Operation.OVERWRITE, **said))))


def _with_snapshot(metadata: TableMetadata, snapshot: Snapshot) -> TableMetadata:
    """The metadata with one more snapshot, and without those that readers cannot travel back to any more."""
    head = SetSnapshotRefUpdate.model_validate(
        {"ref-name": MAIN_BRANCH, "type": SnapshotRefType.BRANCH, "snapshot-id": snapshot.snapshot_id}
    )
    metadata = update_table_metadata(metadata, (AddSnapshotUpdate(snapshot=snapshot), head))
    if expired := _expired(metadata.snapshots):
        removal = RemoveSnapshotsUpdate.model_validate({"snapshot-ids": expired})
        metadata = update_table_metadata(metadata, (removal,))
    return metadata


def _schema(table: DeltaTable) -> Schema:
    """A Delta table's columns, numbered in their order."""
    fields = [(field.name, _type(field.type)) for field in table.schema().fields]
    return Schema(*(types.NestedField(n, name, type_, required=False) for n, (name, type_) in enumerate(fields, 1)))


def _type(delta: Any) -> types.IcebergType:
    """Iceberg's type of a Delta type that a publication has.

    >>> from deltalake.schema import PrimitiveType
    >>> _type(PrimitiveType("decimal(20,2)")), _type(PrimitiveType("timestamp_ntz"))
    (DecimalType(precision=20, scale=2), TimestampType())
    """
    name = str(delta.type)
    if name.startswith("decimal"):
        precision, scale = (int(number) for number in re.findall(r"\d+", name))
        return types.DecimalType(precision, scale)
    return _TYPES[name]


def _expired(snapshots: Sequence[Snapshot]) -> list[int]:
    """The ids of those that readers cannot travel back to any more, as they are old or many. The newest one stays."""
    since = (time.time() - RETENTION_HOURS * 3600) * 1000
    many, others = snapshots[:-SNAPSHOTS], snapshots[-SNAPSHOTS:-1]
    return [each.snapshot_id for each in (*many, *(each for each in others if each.timestamp_ms < since))]


def _without_views(schema: pa.Schema) -> pa.Schema:
    """The schema with plain texts and bytes.

    >>> _without_views(pa.schema([("s", pa.string_view()), ("i", pa.int64())])).types
    [DataType(string), DataType(int64)]
    """
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    return pa.schema([field.with_type(plain.get(field.type, field.type)) for field in schema])


@dataclass(frozen=True, slots=True)
class _Writing:
    """A snapshot that is being written."""

    store: _Store
    metadata: TableMetadata
    number: int
    """Its id."""

    def _file(self, name: str) -> OutputFile:
        return self.store.new_output(f"{self.metadata.location}/metadata/{name}-{self.number}-{uuid4()}.avro")

    def manifest(
        self, added: Iterable[DataFile], kept: Iterable[ManifestEntry], gone: Iterable[ManifestEntry]
    ) -> ManifestFile:
        """Write a manifest of the files that come, stay and go."""
        schema, spec = self.metadata.schema(), self.metadata.spec()
        with write_manifest(2, spec, schema, self._file("manifest"), self.number, _CODEC) as written:
            for file in added:
                written.add(ManifestEntry.from_args(status=ManifestEntryStatus.ADDED, data_file=file))
            for entry in kept:
                written.existing(entry)
            for entry in gone:
                written.delete(entry)
        return written.to_manifest_file()

    def snapshot(self, manifests: list[ManifestFile], summary: Summary) -> Snapshot:
        """The snapshot, whose list of manifests is written by this."""
        parent, place = self.metadata.current_snapshot_id, self._file("snap")
        sequence = self.metadata.next_sequence_number()
        with write_manifest_list(2, place, self.number, parent, sequence, _CODEC) as written:
            written.add_manifests(manifests)
        return Snapshot.model_validate(
            {
                "snapshot-id": self.number,
                "parent-snapshot-id": parent,
                "sequence-number": sequence,
                "manifest-list": place.location,
                "summary": summary,
                "schema-id": self.metadata.current_schema_id,
            }
        )


class _Store(FileIO):
    """The files of an Iceberg table, reached as those of the Delta table below it are."""

    def __init__(self, place: Location) -> None:
        super().__init__()
        self._place, self._files = place, place.storage()

    def path(self, number: int) -> str:
        """Of a metadata file."""
        return f"{self._place.uri}/metadata/v{number}.metadata.json"

    def _file(self, location: str) -> PyArrowFile:
        return PyArrowFile(location, self._below_place(location), self._files)

    def _below_place(self, location: str) -> str:
        return location.removeprefix(self._place.uri).lstrip("/")

    def new_input(self, location: str) -> InputFile:
        return self._file(location)

    def new_output(self, location: str) -> OutputFile:
        return self._file(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        path = location if isinstance(location, str) else location.location
        with suppress(FileNotFoundError):
            self._files.delete_file(self._below_place(path))

    def writing(self, metadata: TableMetadata) -> _Writing:
        """A new snapshot of a table."""
        return _Writing(self, metadata, metadata.new_snapshot_id())

    def readable(self, path: str) -> str:
        """A Parquet file, or its copy if it has columns in Arrow's views."""
        with self.new_input(path).open() as source:
            file = pq.ParquetFile(source)
            schema = _without_views(file.schema_arrow)
            if schema == file.schema_arrow:
                return path
            copy = f"{self._place.uri}/{COPIES}/{os.path.basename(path)}"
            with self.new_output(copy).create(overwrite=True) as target, pq.ParquetWriter(target, schema) as writer:
                for group in range(file.num_row_groups):
                    writer.write_table(file.read_row_group(group).cast(schema))
        return copy

    def newest(self) -> int | None:
        """The number of the newest metadata file: that of the hint, or of one that was written since."""
        try:
            with self.new_input(self._hint).open() as file:
                number = int(file.read())
        except (FileNotFoundError, ValueError):
            numbers = [int(found[1]) for info in self._metadata() if (found := _FILE.fullmatch(info.base_name))]
            return max(numbers, default=None)
        return self._last_from(number)

    def _last_from(self, number: int) -> int:
        while self.new_input(self.path(number + 1)).exists():
            number += 1
        return number

    def read(self, number: int) -> _Described | None:
        """What a metadata file says; None if that cannot be read as a whole."""
        try:
            metadata = FromInputFile.table_metadata(self.new_input(self.path(number)))
            snapshot = metadata.current_snapshot()
            manifests = [] if snapshot is None else snapshot.manifests(self)
            entries = [each for manifest in manifests for each in manifest.fetch_manifest_entry(self)]
        except _UNREADABLE as error:
            log.warning("iceberg_metadata_unreadable", uri=self._place.uri, number=number, error=str(error))
            return None
        return _Described(metadata, {os.path.basename(entry.data_file.file_path): entry for entry in entries})

    @property
    def _hint(self) -> str:
        return f"{self._place.uri}/metadata/version-hint.text"

    def _metadata(self) -> list[pa.fs.FileInfo]:
        return self._below("metadata")

    def _below(self, name: str) -> list[pa.fs.FileInfo]:
        return list(self._files.get_file_info(pa.fs.FileSelector(name, allow_not_found=True)))

    def write(self, number: int, metadata: TableMetadata) -> None:
        """Write a metadata file, and have readers find it, or one after it that somebody else has written."""
        ToOutputFile.table_metadata(metadata, self.new_output(self.path(number)), overwrite=True)
        with self.new_output(self._hint).create(overwrite=True) as file:
            file.write(str(self._last_from(number)).encode())

    def remove_unneeded(self) -> None:
        """Remove what was written before the oldest snapshot, but for what it has itself."""
        newest = self.newest()
        found = None if newest is None else self.read(newest)
        if newest is None or found is None or not found.metadata.snapshots:
            return
        oldest = found.metadata.snapshots[0]
        needed = {self._hint, self.path(newest), oldest.manifest_list}
        for manifest in oldest.manifests(self):
            needed |= {
                manifest.manifest_path,
                *(file.data_file.file_path for file in manifest.fetch_manifest_entry(self)),
            }
        before = oldest.timestamp_ms / 1000 - READERS_SECONDS
        for info in (*self._metadata(), *self._below(COPIES)):
            path = f"{self._place.uri}/{info.path.lstrip('/')}"
            if path not in needed and info.mtime is not None and info.mtime.timestamp() < before:
                self.delete(path)


@contextmanager
def _storage_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, DeltaError) as error:
        raise StorageFailed(error) from error
