"""The mirror: each source that Spark reads as a Delta Lake base and a log of changes (`mirror.state`).

A base is copied once, in one snapshot. From then on the source's change buffer is kept until its changes are in the
log: those that the present snapshot sees and the log has not are appended, in the background (`mirror.maintenance`) and
by readers. What is stored is only used if it is whole, if the source is still what it was when it was copied, and if
the catalog says that the buffer has been kept for this mirror all the time; else the source is copied anew.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import structlog
from deltalake.exceptions import DeltaError

from catalog.session import SqlError
from engine.mirror.arrow_copy import PipeBroken
from engine.mirror.delta_table import Committed, Location, StorageFailed, WriteConflict
from engine.mirror.digests import damaged, discard
from engine.mirror.initial_load import InitialLoads, innermost
from engine.mirror.source import (
    Connections,
    Snapshot,
    SourceNow,
    await_log,
    has,
    hold,
    look,
    read_changes,
    snapshot_of,
    truncations,
)
from engine.mirror.state import (
    MirrorState,
    arrow_schema,
    base_of,
    changes_metadata,
    changes_of,
    declared,
    floor,
    folder,
    load,
    relevant,
)
from engine.object_store import storage_message
from engine.session.snapshots import Frontier, PgSnapshot
from sql.base.columns import Source
from sql.errors import NotExpressible

log = structlog.get_logger(__name__)

USE_SECONDS = 30.0
"""How often it is written down that a mirror is in use."""

TRIES = 4
"""How often a reader looks again when another server has written in between."""


@dataclass(frozen=True, slots=True)
class MirrorVersion:
    """The rows of a source as of a snapshot: a base, and changes that lead from it to there.

    Held against removal while its context is open. `files` and `changes` are Parquet files of the base and of the log;
    without `changes` the base is what is asked for. `key` is what tells rows apart, if all of it is in the mirror.
    """

    source: int
    files: tuple[str, ...]
    rows: int
    reused: bool
    seconds: float
    columns: Mapping[str, str]
    base_snapshot: PgSnapshot
    snapshot: PgSnapshot
    changes: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    since: Frontier | None = None
    """The frontier whose net changes can be told, if it was asked for with one."""
    since_changes: tuple[str, ...] = ()
    """Files of the log that have them."""

    @property
    def all_files(self) -> tuple[str, ...]:
        """Every file that may be read."""
        return tuple(dict.fromkeys((*self.files, *self.changes, *self.since_changes)))


_Held = tuple[tuple[str, int], ...]
"""Delta tables and their versions."""


class StaleMirror(Exception):
    """What is stored cannot be led to the wanted snapshot; the text says why."""


class Damaged(Exception):
    """Files of a mirror are not what was written. They have been removed, so that it is made anew."""


class MirrorUnavailable(SqlError):
    """The mirror cannot be read or written now, whatever the query: PostgreSQL can still compute it."""


class Mirror:
    """The mirrors below one location. One per process."""

    def __init__(self, root: Location | Path):
        self.root = root if isinstance(root, Location) else Location.local(root)
        self._writing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._readers: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._said_used: dict[str, float] = {}
        self._copies = InitialLoads()

    def place(self, database: str, source: int) -> Location:
        """Where the mirror of a source lies."""
        return self.root.below(folder(database), str(source))

    def writing(self, place: Location) -> asyncio.Lock:
        """Held while this process writes the log of a mirror, or copies its source anew."""
        return self._writing[place.uri]

    @asynccontextmanager
    async def at(
        self,
        connected: Connections,
        database: str,
        source: Source,
        names: Sequence[str],
        snapshot: Snapshot,
        since: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[MirrorVersion]:
        """The columns `names` of a source exactly as of a snapshot, readable for the time of the block.

        `connected` may read the whole table and the catalog. `since` is a stream table's frontier (`snapshot`, `xid`,
        `change_id`): then the net changes from there to the snapshot are readable, too. Raises NotExpressible if a type
        or a value cannot be carried or the changes are not known, SqlError if PostgreSQL or the storage refuses.
        """
        place = self.place(database, source.oid)
        arrow_schema(declared(source, names), source.name)
        frontier = None if since is None else Frontier.parse(since)
        async with self.writing(place):
            version, held = await self._ensure(connected, place, source, names, snapshot, frontier)
            for uri, number in held:
                self._readers[uri][number] += 1
        try:
            yield version
        finally:
            for uri, number in held:
                self._readers[uri][number] -= 1
                self._readers[uri] += Counter()

    async def _ensure(
        self,
        connected: Connections,
        place: Location,
        source: Source,
        names: Sequence[str],
        snapshot: Snapshot,
        frontier: Frontier | None,
    ) -> tuple[MirrorVersion, _Held]:
        began = time.monotonic()
        try:
            for _ in range(TRIES):
                try:
                    return await self._try(connected, place, source, names, snapshot, frontier, began)
                except WriteConflict as error:
                    log.info("mirror_overtaken", table=source.name, error=str(error))
            raise SqlError("40001", f'the mirror of table "{source.name}" is being written by another server')
        except asyncpg.PostgresError as error:
            raise SqlError(
                error.sqlstate or "XX000", error.message or str(error), detail=error.detail, hint=error.hint
            ) from error
        except pa.ArrowInvalid as error:
            log.info("mirror_refuses_value", table=source.name, reason=innermost(error))
            raise NotExpressible(f'a changed value of table "{source.name}", which the mirror cannot keep') from error
        except (DeltaError, PipeBroken, StorageFailed) as error:
            raise MirrorUnavailable(
                "58030",
                f'could not read or write the mirror of table "{source.name}"',
                detail=storage_message(error),
                hint="See --mirror and --mirror-option." if place.remote else None,
            ) from error
        except (asyncpg.InterfaceError, OSError) as error:
            raise MirrorUnavailable("58000", f'could not mirror table "{source.name}": {error}') from error

    async def _try(
        self,
        connected: Connections,
        place: Location,
        source: Source,
        names: Sequence[str],
        snapshot: Snapshot,
        frontier: Frontier | None,
        began: float,
    ) -> tuple[MirrorVersion, _Held]:
        state = await asyncio.to_thread(load, place)
        seen = PgSnapshot.parse(snapshot.text)
        if state is not None and declared(source, names).items() <= state.columns.items():
            try:
                state = await self.catch_up(await connected.own(), place, source.oid, state, snapshot, frontier)
                return _version(source, place, state, seen, frontier, began, reused=True), _both(place, state)
            except StaleMirror as reason:
                log.info("mirror_given_up", table=source.name, reason=str(reason))
        made = await self._copies.copied(connected, place, source, names, snapshot)
        await asyncio.to_thread(self.vacuum, place, full=True)
        if isinstance(made, Committed):
            if frontier is not None:
                raise NotExpressible(f'changes of table "{source.name}" are not kept for the mirror')
            version = MirrorVersion(
                source=source.oid,
                files=base_of(place).full_paths(made.files),
                rows=made.rows,
                reused=False,
                seconds=time.monotonic() - began,
                columns=made.metadata["columns"],
                base_snapshot=seen,
                snapshot=seen,
            )
            held: _Held = ((base_of(place).uri, made.version),)
        else:
            if frontier is not None:
                try:
                    made = await self.catch_up(await connected.own(), place, source.oid, made, snapshot, frontier)
                except StaleMirror as reason:
                    raise NotExpressible(f'changes of table "{source.name}" since the last refresh: {reason}') from None
            version = _version(source, place, made, seen, frontier, began, reused=False)
            held = _both(place, made)
        log.info("mirrored", table=source.name, rows=version.rows, seconds=round(version.seconds, 3))
        return version, held

    async def catch_up(
        self,
        connection: asyncpg.Connection,
        place: Location,
        source: int,
        state: MirrorState,
        snapshot: Snapshot | None = None,
        frontier: Frontier | None = None,
    ) -> MirrorState:
        """Append to the log what it lacks up to a snapshot (None: that of now), and back to a frontier.

        In `writing`. What is known at the end need not have been stored if no change lies between. Raises StaleMirror,
        NotExpressible, WriteConflict, StorageFailed, asyncpg.PostgresError.
        """
        before = await self._held(connection, source, state)
        bottom = floor(frontier) if frontier else None
        rows, to, since = await _lacking(connection, source, state, snapshot, bottom, late=before.late)
        if rows is None:
            await self._say_used(connection, state, snapshot is not None)
            return state
        # Only now is it known that nobody has touched the buffer's columns, or what it holds, while it was read.
        if connection.is_closed():
            raise StaleMirror("the connection was lost")
        now = await self._held(connection, source, state)
        if now.switched != before.switched:
            raise WriteConflict("changes of the source began to be captured in another way")
        for xid in truncations(rows):
            if state.to.sees(xid):
                raise NotExpressible("a table was truncated since the last refresh")
            raise StaleMirror("the table was truncated")
        if rows.num_rows == 0:
            await self._say_used(connection, state, snapshot is not None)
            return replace(state, to=to, since=since)
        changes = changes_of(place)
        metadata = changes_metadata(state.mirror, since, to, now.cleaned)
        await asyncio.to_thread(changes.append, state.changes, rows, metadata)
        stored = await asyncio.to_thread(changes.committed)
        if stored is None or stored.metadata != metadata:
            raise WriteConflict("the log was written to at once by somebody else")
        await has(connection, state.mirror, to, stored.version, used=snapshot is not None)
        return replace(state, changes=stored, to=to, since=since, cleaned=now.cleaned)

    async def _held(self, connection: asyncpg.Connection, source: int, state: MirrorState) -> SourceNow:
        """See that the buffer has been kept for this mirror; returns what the source is.

        A mirror that was let go of is held again, where nothing has been removed since it was last written to.
        Raises StaleMirror.
        """
        now = await look(connection, source, state.mirror)
        _check(now, state)
        assert now is not None
        if now.log_version is None:
            if not await hold(connection, state.mirror, source, state.to, state.cleaned):
                raise StaleMirror("its changes were not kept")
        elif now.log_version > state.changes.version:
            raise StaleMirror("it is older than it was")
        return now

    async def _say_used(self, connection: asyncpg.Connection, state: MirrorState, used: bool) -> None:
        if used and time.monotonic() - self._said_used.get(state.mirror, -USE_SECONDS) >= USE_SECONDS:
            self._said_used[state.mirror] = time.monotonic()
            await has(connection, state.mirror, None, state.changes.version, used=True)

    async def check(self, versions: Sequence[MirrorVersion]) -> None:
        """Compare all files of the versions with their digests, where they have any. Raises Damaged, MirrorUnavailable.

        It reads every file once, out of memory if Spark has just read them; to be done beside what Spark does.
        """
        if self.root.remote:
            return
        try:
            found = await asyncio.to_thread(damaged, [path for version in versions for path in version.all_files])
            await asyncio.to_thread(discard, found)
        except OSError as error:
            raise MirrorUnavailable("58030", "could not read the mirror", detail=storage_message(error)) from error
        if found:
            raise Damaged(", ".join(found))

    def held(self, table: Location) -> list[int]:
        """The versions of a Delta table that are being read in this process."""
        return [version for version, number in self._readers[table.uri].items() if number > 0]

    def vacuum(self, place: Location, *, full: bool) -> None:
        """Remove files that no version needs which is the last or being read. In `writing`; not beside a compaction."""
        for table in (base_of(place), changes_of(place)):
            table.vacuum(self.held(table), full=full)

    async def forget(self, database: str) -> None:
        """Remove the mirrors of a database that is gone."""
        await asyncio.to_thread(self.root.below(folder(database)).remove)


async def _lacking(
    connection: asyncpg.Connection,
    source: int,
    state: MirrorState,
    snapshot: Snapshot | None,
    bottom: PgSnapshot | None,
    *,
    late: bool,
) -> tuple[pa.Table | None, PgSnapshot, PgSnapshot]:
    """The changes that the log lacks, up to a snapshot and back to another; and what it reaches to and from with them.

    None for the changes if it lacks none. Those that come `late` are read by a later snapshot, which has all of them.
    Raises StaleMirror, asyncpg.PostgresError.
    """
    try:
        async with snapshot_of(connection, snapshot) as here:
            forward = not here.within(state.to)
            backward = bottom if bottom is not None and not state.since.within(bottom) else None
            if not forward and not state.since.within(here):
                raise StaleMirror("it begins after the snapshot")
            if not forward and backward is None:
                return None, state.to, state.since
            before = (backward, state.since) if backward is not None else None
            if not late:
                rows = await read_changes(connection, source, state.columns, state.to, before)
        if late:
            await await_log(connection)
            async with snapshot_of(connection, None):
                rows = await read_changes(connection, source, state.columns, state.to, before, of=here)
        if rows is None:
            raise StaleMirror("too many changes")
        return rows, here if forward else state.to, state.since if backward is None else backward
    except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
        raise StaleMirror(str(error)) from error
    except pa.ArrowInvalid as error:
        # Perhaps the table has that value no more, or not in a column that is asked for.
        raise StaleMirror(innermost(error)) from error


def _both(place: Location, state: MirrorState) -> _Held:
    return (base_of(place).uri, state.base.version), (changes_of(place).uri, state.changes.version)


def _check(now: SourceNow | None, state: MirrorState) -> None:
    if now is None:
        raise StaleMirror("changes are not captured completely")
    if now.identity != state.identity:
        raise StaleMirror("the source, or the capture of its changes, is not what it was")


def _version(
    source: Source,
    place: Location,
    state: MirrorState,
    snapshot: PgSnapshot,
    frontier: Frontier | None,
    began: float,
    *,
    reused: bool,
) -> MirrorVersion:
    base, changes = base_of(place), changes_of(place)
    files = relevant(state.changes.files, snapshot, state.snapshot)
    since = relevant(state.changes.files, snapshot, floor(frontier)) if frontier else ()
    return MirrorVersion(
        source=source.oid,
        files=base.full_paths(state.base.files),
        rows=state.base.rows,
        reused=reused,
        seconds=time.monotonic() - began,
        columns=state.columns,
        base_snapshot=state.snapshot,
        snapshot=snapshot,
        changes=changes.full_paths(files),
        key=state.key,
        since=frontier,
        since_changes=changes.full_paths(since),
    )


__all__ = ["Connections", "Location", "Mirror", "MirrorVersion", "Snapshot", "StaleMirror"]
