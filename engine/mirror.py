"""The mirror: a Delta Lake copy of each source that Spark reads, as of one exact PostgreSQL snapshot.

Layout: ``<root>/<database>/<oid of the source>/`` is an ordinary Delta table with the columns somebody asked for, under
their own names. The commit's metadata (key ``headwater``) records what it is a copy of. Only a committed version whose
metadata matches and whose files are all there, with their sizes, is ever used; everything else is made anew.

A version is used again for a later snapshot as long as nothing changed in between. That is known from the change
buffers: see `Mirror._unchanged`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import asyncpg
import pyarrow as pa
import structlog
from deltalake import CommitProperties, DeltaTable, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError

from catalog.session import SqlError
from engine.mirror_copy import BytePipe, PipeBroken, arrow_type, record_batches
from sql.columns import Source
from sql.render import quote
from sql.spark_types import NotExpressible, column_type

log = structlog.get_logger(__name__)

Connect = Callable[[], Awaitable[asyncpg.Connection]]

FORMAT = 1
"""Raised when the way values are stored changes: older mirrors are made anew."""

PRESENCE = "__headwater_row"
"""The column of a mirror of which only the number of rows matters."""

ROW_GROUP_ROWS = 128 * 1024


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot exported by a transaction that is still open, and the same as `pg_snapshot` text."""

    exported: str
    text: str


@dataclass(frozen=True, slots=True)
class MirrorVersion:
    """A version of a source's mirror, held against removal while its context is open."""

    source: int
    path: Path
    version: int
    files: tuple[str, ...]
    rows: int
    reused: bool
    seconds: float
    since: str | None = None
    """The frontier whose net changes the version knows, if it was asked for with one."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What a version is a copy of. Two versions with the same identity have the same content."""

    system: str
    database_oid: int
    generation: str
    cleaned: str
    files: str
    columns: dict[str, str]
    format: int = FORMAT


# What the source is now. `cleaned` is the version of the capture's own row, which every removal of captured changes
# updates; `files` changes when the table is rewritten. No row if the source's changes are not (all) captured.
_CAPTURE_SQL = """
SELECT pgtrickle._system()::text,
       (SELECT oid::bigint FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()),
       c.generation::text,
       c.xmin::text || c.ctid::text,
       (SELECT pg_catalog.string_agg(
                    coalesce(pg_catalog.pg_relation_filenode(r::regclass), 0)::text, ',' ORDER BY r::text)
        FROM pg_catalog.unnest(c.relations) AS r)
FROM pgtrickle.pgt_captures c
WHERE c.source_relid = $1::bigint::oid AND c.captured_columns @> $2::text[]
  AND c.trigger_state = pgtrickle._trigger_state(c.source_relid, c.relations)
"""

# Whether the table, or a partition or child of it, was rewritten or truncated after the snapshot: then the snapshot
# finds it empty, since neither keeps old rows. The left side is as of the snapshot, the right side as of now.
_REWRITTEN_SQL = """
WITH RECURSIVE tree(relid) AS (
    SELECT $1::bigint::oid
    UNION
    SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN tree t ON i.inhparent = t.relid)
SELECT EXISTS (SELECT FROM pg_catalog.pg_class c JOIN tree t ON c.oid = t.relid
               WHERE c.relfilenode <> coalesce(pg_catalog.pg_relation_filenode(c.oid), 0))
"""

# A version as of snapshot $2 serves the current snapshot if the current one sees all that the version saw, and no
# captured change lies between.
_UNCHANGED_SQL = """
SELECT pg_catalog.pg_snapshot_xmax($2::text::pg_catalog.pg_snapshot)
           <= pg_catalog.pg_snapshot_xmax(pg_catalog.pg_current_snapshot())
   AND NOT EXISTS (SELECT FROM pg_catalog.pg_snapshot_xip(pg_catalog.pg_current_snapshot()) AS x
                   WHERE pg_catalog.pg_visible_in_snapshot(x, $2::text::pg_catalog.pg_snapshot))
   AND NOT coalesce(pgtrickle._changed_since($1::bigint::oid, $2::text), true)
"""


def arrow_schema(source: Source, names: Sequence[str]) -> pa.Schema:
    """The mirror's columns. Raises NotExpressible if a column's type or name cannot be carried."""
    if not names:
        return pa.schema([(PRESENCE, pa.bool_())])
    columns = {column.name: column for column in source.columns}
    fields = []
    for name in names:
        if set(name) & set(' ,;{}()\n\t=`."') or name == PRESENCE:
            raise NotExpressible(f'column name "{name}"')
        try:
            fields.append((name, arrow_type(column_type(columns[name].type))))
        except NotExpressible as reason:
            raise NotExpressible(f'{reason} of column "{name}" of "{source.name}"') from None
    if len({name.lower() for name in names}) < len(names):
        raise NotExpressible(f'columns of "{source.name}" that differ in case only')
    return pa.schema(fields)


class Mirror:
    """The mirrors below one directory. One per process; a source's mirror is written by one task at a time."""

    def __init__(self, root: Path):
        self._root = root.absolute()
        self._writing: defaultdict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._readers: defaultdict[Path, Counter[int]] = defaultdict(Counter)

    def path(self, database: str, source: int) -> Path:
        """Where the mirror of a source lies."""
        return self._root / _folder(database) / str(source)

    @asynccontextmanager
    async def at(
        self,
        connect: Connect,
        database: str,
        source: Source,
        names: Sequence[str],
        snapshot: Snapshot,
        since: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[MirrorVersion]:
        """The columns `names` of a source exactly as of a snapshot, readable for the time of the block.

        `connect` gives a connection that may read the whole table and the catalog. `since` is a stream table's frontier
        (`snapshot`, `xid`, `change_id`): then the net changes from there to the snapshot are readable, too. Raises
        NotExpressible if a type or a value cannot be carried, SqlError if PostgreSQL refuses.
        """
        if since is not None:
            raise NotExpressible("no change log")
        path = self.path(database, source.oid)
        schema = arrow_schema(source, names)
        async with self._writing[path]:
            version = await self._ensure(connect, path, source, names, schema, snapshot)
            self._readers[path][version.version] += 1
        try:
            yield version
        finally:
            self._readers[path][version.version] -= 1
            self._readers[path] += Counter()

    async def _ensure(
        self,
        connect: Connect,
        path: Path,
        source: Source,
        names: Sequence[str],
        schema: pa.Schema,
        snapshot: Snapshot,
    ) -> MirrorVersion:
        began = time.monotonic()
        current = await asyncio.to_thread(_current, path)
        connection = await connect()
        try:
            if current and await self._unchanged(connection, current, source, names, snapshot):
                table = current.table
                return _version(source, path, table, reused=True, seconds=time.monotonic() - began)
            table = await self._extract(connection, path, source, names, schema, snapshot)
        except asyncpg.PostgresError as error:
            raise SqlError(
                error.sqlstate or "XX000", error.message or str(error), detail=error.detail, hint=error.hint
            ) from error
        except (asyncpg.InterfaceError, OSError) as error:
            raise SqlError("58000", f'could not mirror table "{source.name}": {error}') from error
        finally:
            connection.terminate()
        await asyncio.to_thread(self._vacuum, path, table)
        version = _version(source, path, table, reused=False, seconds=time.monotonic() - began)
        log.info("mirrored", table=source.name, rows=version.rows, seconds=round(version.seconds, 3))
        return version

    async def _unchanged(
        self,
        connection: asyncpg.Connection,
        current: _Committed,
        source: Source,
        names: Sequence[str],
        snapshot: Snapshot,
    ) -> bool:
        """Whether the committed version holds the wanted columns exactly as of the snapshot.

        The buffer tells whether anything changed in between, unless it has been emptied since: then the capture's row
        has another version. The row is read after the buffer, in a snapshot of its own, since TRUNCATE empties the
        buffer for older snapshots, too.
        """
        recorded = current.identity
        wanted = _declared(source, names)
        if recorded.format != FORMAT or not wanted.items() <= recorded.columns.items():
            return False
        async with _snapshot_of(connection, snapshot):
            unchanged = await connection.fetchval(_UNCHANGED_SQL, source.oid, current.snapshot)
        if not unchanged:
            return False
        now = await _identity(connection, source, list(recorded.columns), recorded.columns)
        return now == recorded

    async def _extract(
        self,
        connection: asyncpg.Connection,
        path: Path,
        source: Source,
        names: Sequence[str],
        schema: pa.Schema,
        snapshot: Snapshot,
    ) -> DeltaTable:
        """Copy the table as of the snapshot into a new version."""
        pipe = BytePipe()
        async with _snapshot_of(connection, snapshot):
            table = quote(source.schema, source.name)
            await connection.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
            if await connection.fetchval(_REWRITTEN_SQL, source.oid):
                raise SqlError("40001", f'table "{source.name}" was rewritten or truncated during the refresh')
            identity = await _identity(connection, source, names, _declared(source, names))
            metadata = {"snapshot": snapshot.text, "identity": asdict(identity) if identity else None}
            writer = asyncio.ensure_future(asyncio.to_thread(_write, path, pipe, schema, metadata))
            selected = ", ".join(quote(name) for name in names) or "true"
            query = f"SELECT {selected} FROM {table}"
            try:
                await connection.copy_from_query(query, output=pipe.write, format="csv", encoding="utf8")
            except PipeBroken:
                log.debug("mirror_writer_gave_up", table=source.name)
            except BaseException:
                pipe.finish(failed=True)
                await asyncio.wait({writer})
                writer.exception()
                raise
            else:
                pipe.finish()
            try:
                return await asyncio.shield(writer)
            except pa.ArrowInvalid as error:
                raise NotExpressible(f'a value of table "{source.name}": {_innermost(error)}') from error
            except (DeltaError, PipeBroken) as error:
                raise SqlError("58030", f'could not write the mirror of table "{source.name}": {error}') from error

    def _vacuum(self, path: Path, table: DeltaTable) -> None:
        """Remove files that neither the current version nor one that is being read needs."""
        held = [version for version, readers in self._readers[path].items() if readers > 0]
        try:
            table.vacuum(
                retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True, keep_versions=held
            )
        except (DeltaError, OSError) as error:
            log.warning("mirror_vacuum_failed", path=str(path), error=str(error))

    async def forget(self, database: str) -> None:
        """Remove the mirrors of a database that is gone."""
        await asyncio.to_thread(shutil.rmtree, self.path(database, 0).parent, ignore_errors=True)


def _folder(database: str) -> str:
    """A directory name of letters, digits and ``_ - ~`` only, which no reader takes for a pattern or decodes.

    >>> _folder("sales"), _folder("../a b")
    ('sales', '~2e~~2e~~2f~a~20~b')
    """
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"~{ord(found[0]):x}~", database)


@dataclass(frozen=True, slots=True)
class _Committed:
    """The last committed version, found whole."""

    table: DeltaTable
    snapshot: str
    identity: Identity


def _current(path: Path) -> _Committed | None:
    """The mirror's last version if it can be used again: committed by us, of a captured source, all files there."""
    try:
        table = DeltaTable(str(path))
        written = next(c for c in table.history(20) if not c.get("operation", "").startswith("VACUUM"))
        metadata = json.loads(written["headwater"])
        if metadata["identity"] is None:
            return None
        actions = pa.table(cast(Any, table.get_add_actions(flatten=True))).to_pylist()
        for action in actions:
            if (path / unquote(action["path"])).stat().st_size != action["size_bytes"]:
                raise OSError(f"{action['path']} has another size")
        return _Committed(table, metadata["snapshot"], Identity(**metadata["identity"]))
    except (DeltaError, OSError, KeyError, TypeError, ValueError, StopIteration) as error:
        if path.exists():
            log.warning("mirror_unusable", path=str(path), error=str(error))
        return None


def _version(source: Source, path: Path, table: DeltaTable, *, reused: bool, seconds: float) -> MirrorVersion:
    actions = pa.table(cast(Any, table.get_add_actions(flatten=True))).to_pylist()
    files = tuple(os.path.join(path, unquote(action["path"])) for action in actions)
    rows = sum(action["num_records"] for action in actions)
    return MirrorVersion(source.oid, path, table.version(), files, rows, reused, seconds)


def _declared(source: Source, names: Sequence[str]) -> dict[str, str]:
    types = {column.name: column.type for column in source.columns}
    return {name: types[name] for name in names}


async def _identity(
    connection: asyncpg.Connection, source: Source, names: Sequence[str], columns: dict[str, str]
) -> Identity | None:
    row = await connection.fetchrow(_CAPTURE_SQL, source.oid, list(names))
    if row is None:
        return None
    system, database_oid, generation, cleaned, files = row
    return Identity(system, database_oid, generation, cleaned, files, columns)


@asynccontextmanager
async def _snapshot_of(connection: asyncpg.Connection, snapshot: Snapshot) -> AsyncIterator[None]:
    """A read-only transaction that sees what the exporting transaction saw; after an error the connection is closed."""
    if not all(c in "0123456789ABCDEF-" for c in snapshot.exported):
        raise ValueError(f"not the name of a snapshot: {snapshot.exported}")
    await connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        await connection.execute(f"SET TRANSACTION SNAPSHOT '{snapshot.exported}'")
        # Rows hidden by a policy must not silently be missing, and text must not depend on anybody's settings.
        await connection.execute(
            "SET LOCAL row_security = off; SET LOCAL timezone = 'UTC'; SET LOCAL datestyle = 'ISO, YMD';"
            " SET LOCAL extra_float_digits = 1"
        )
        yield
        await connection.execute("COMMIT")
    except BaseException:
        # It may be in the middle of a COPY that nobody reads.
        connection.terminate()
        raise


def _write(path: Path, pipe: BytePipe, schema: pa.Schema, metadata: Mapping[str, object]) -> DeltaTable:
    """Write the piped rows as a new version; in a thread. Nothing is committed if the rows end in an error."""
    failure: list[BaseException] = []

    def batches() -> Any:
        try:
            yield from record_batches(pipe, schema)
        except BaseException as error:
            failure.append(error)
            raise

    def write() -> None:
        write_deltalake(
            str(path),
            pa.RecordBatchReader.from_batches(schema, batches()),
            mode="overwrite",
            schema_mode="overwrite",
            writer_properties=WriterProperties(compression="ZSTD", max_row_group_size=ROW_GROUP_ROWS),
            commit_properties=CommitProperties(custom_metadata={"headwater": json.dumps(metadata)}),
        )

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if path.exists():
                DeltaTable(str(path))
        except (DeltaError, ValueError):
            # A log that cannot be read cannot be continued. The files go with the next vacuum.
            shutil.rmtree(path / "_delta_log", ignore_errors=True)
        write()
        return DeltaTable(str(path))
    except DeltaError as error:
        if failure:
            raise failure[0] from error
        raise
    finally:
        pipe.abandon()


def _innermost(error: BaseException) -> str:
    return str(error).split("Detail:")[0].strip()
