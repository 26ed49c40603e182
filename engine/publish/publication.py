"""One publication brought up to date: a commit for each refresh that its Delta table has not, or all rows anew.

What is followed is the change buffer of the stream table's own table. A transaction that has refreshed it is one
commit, in the order in which they did (`pgt_published_refreshes`): nobody has ever seen a state between. Changes that
came another way (triggers in IMMEDIATE mode, a superuser) have no such order: then all that is there is one commit.
Where changes are missing, or are more than are read at once, one commit replaces the contents.

A publication as an Iceberg table has the same commits: each is described over the Delta table's files (`iceberg`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from engine.capture.lock_retry import with_lock_retry
from engine.mirror.as_of_sql import XID
from engine.mirror.delta_table import Committed, Location, Mark
from engine.mirror.initial_load import refused_column, watched
from engine.mirror.parallel_extract import extract, lock
from engine.mirror.source import Connections, Snapshot, read_changes, snapshot_of, truncations
from engine.publish.net import GONE, ROW_ID, Unpublishable, added, finite, infinite_column, net_changes, only_adds
from engine.publish.places import ICEBERG, ICEBERG_DATA
from engine.publish.publications import Publication
from engine.publish.table import Position, Published, location_of, look
from engine.session.pool import PooledSession
from engine.session.snapshots import PgSnapshot
from sql.base.columns import Source

log = structlog.get_logger(__name__)

HOUSEKEEPING_COMMITS = 100
"""After so many commits small files are put together, and those go that no version of the last week needs."""

FOLLOW_PATIENCE = 5.0

_GAP_SQL = "SELECT pgtrickle._publication_gap($1::bigint)"
_FOLLOW_SQL = "SELECT pgtrickle._follow_for_publication($1::bigint)::text"
_FOLLOWED_SQL = "SELECT p.subscription_id FROM pgtrickle.pgt_published p WHERE p.publication_id = $1::bigint"
# A refresh that has changed nothing is noted, too.
_CHANGED_SQL = """
SELECT coalesce(pgtrickle._changed_since($1::bigint::oid, $2::text), true) OR EXISTS (
    SELECT FROM pgtrickle.pgt_published_refreshes r
    WHERE r.pgt_id = $3::bigint AND NOT pg_catalog.pg_visible_in_snapshot(r.xid, $2::text::pg_snapshot))
"""
_STATE_SQL = """
SELECT pgtrickle._system(), s.frontier::text, s.data_timestamp,
       ARRAY(SELECT c.key || E'\\n' || (c.value OPERATOR(pg_catalog.#>>) '{}')
             FROM pg_catalog.json_each(pgtrickle._published_columns(s.pgt_relid))
                  WITH ORDINALITY AS c(key, value, place)
             ORDER BY c.place), s.pgt_schema || '.' || s.pgt_name
FROM pgtrickle.pgt_definitions s WHERE s.pgt_id = $1::bigint
"""
_REFRESHES_SQL = """
SELECT r.xid::text::bigint, r.frontier::text, r.data_timestamp
FROM pgtrickle.pgt_published_refreshes r WHERE r.pgt_id = $1::bigint ORDER BY r.place
"""
_HAS_SQL = "SELECT pgtrickle._has_published($1::bigint, $2::bigint, $3::text::pg_snapshot, $4::bigint, $5::timestamptz)"


class Interrupted(Exception):
    """What is published has changed meanwhile, or is gone: look again."""


@dataclass(frozen=True, slots=True)
class _State:
    """A stream table as a snapshot sees it."""

    system: str
    frontier: dict[str, Any] | None
    data_timestamp: datetime | None
    columns: dict[str, str]
    name: str


@dataclass(frozen=True, slots=True)
class _Step:
    """The images of the rows that one commit brings, which state they lead to, and what the table has then."""

    images: pa.Table
    frontier: dict[str, Any] | None
    data_timestamp: datetime | None
    position: Position


@dataclass(slots=True)
class Publishing:
    """An attempt to bring a publication up to date, over connections of its own."""

    connected: Connections
    publication: Publication
    count: Callable[[int, int], None]
    """Told of each commit: how many rows it has written, and removed."""
    found: Published | None = None
    """Its Delta table, if that is known from the attempt before."""
    _described: int | None = None
    """The version of the Delta table that the Iceberg table was last brought to."""

    async def bring_up_to_date(self) -> Published | None:
        """Publish what is there; the table as it is then, None where it was not needed to look at it.

        Raises NotOurs, Unpublishable, NotExpressible, WriteConflict, StorageFailed, Interrupted, SqlError, DeltaError,
        asyncpg.PostgresError.
        """
        connection, here = await self.connected.own(), self.publication
        gap = await connection.fetchval(_GAP_SQL, here.publication_id)
        if gap is None and here.frontier is not None and not await self._has_changed(connection):
            return self.found
        found = self.found or await asyncio.to_thread(look, self._place, here.generation)
        followed = here.followed if gap is None else await self._follow(connection, gap)
        system = await connection.fetchval("SELECT pgtrickle._system()")
        position = None if found is None else self._continued(found, system, followed)
        if found is None or position is None:
            return await self._replace(connection, found, followed)
        return await self._continue(connection, found, position)

    def _continued(self, found: Published, system: str, followed: int) -> Position | None:
        """Which changes the table has, of what is followed now; None if that cannot be said.

        What the catalog has been told of the table is true unless an earlier version was put back. It may be more than
        the last commit says: changes that cancel out need none.
        """
        position, here = found.position, self.publication
        if position is None or (position.system, position.followed) != (system, followed):
            return None
        if found.table.version() < here.version or here.frontier is None:
            return None
        told = PgSnapshot.parse(here.frontier)
        return replace(position, snapshot=told) if position.snapshot.within(told) else position

    async def _has_changed(self, connection: asyncpg.Connection) -> bool:
        here = self.publication
        return bool(await connection.fetchval(_CHANGED_SQL, here.relid, here.frontier, here.pgt_id))

    @property
    def _place(self) -> Location:
        """Where the Delta table is."""
        place = location_of(self.publication.location)
        return place.below(ICEBERG_DATA) if self.publication.format == ICEBERG else place

    def _describe(self, published: Published) -> None:
        """Have the Iceberg table, if the publication is one, be what its Delta table is. Raises StorageFailed."""
        version = published.table.version()
        if self.publication.format == ICEBERG and self._described != version:
            from engine.publish import iceberg  # a package that other publications do not need

            iceberg.describe(location_of(self.publication.location), published.table)
            self._described = version

    async def _follow(self, connection: asyncpg.Connection, gap: str) -> int:
        """Have the changes of the stream table captured and kept from now on. Raises SqlError."""
        log.info("publication begins anew", stream_table=self.publication.name, reason=gap)
        session, number = PooledSession(connection), self.publication.publication_id
        await with_lock_retry(session, _FOLLOW_SQL, number, patience=FOLLOW_PATIENCE)
        followed = await connection.fetchval(_FOLLOWED_SQL, number)
        if followed is None:
            raise Interrupted("it is not published any more")
        return int(followed)

    async def _state(self, connection: asyncpg.Connection) -> _State:
        row = await connection.fetchrow(_STATE_SQL, self.publication.pgt_id)
        if row is None:
            raise Interrupted("the stream table is gone")
        columns = dict(item.rsplit("\n", 1) for item in row[3])
        return _State(row[0], None if row[1] is None else json.loads(row[1]), row[2], columns, row[4])

    async def _replace(self, connection: asyncpg.Connection, found: Published | None, followed: int) -> Published:
        """Publish all rows as of now, in the place of whatever is there."""
        here = self.publication
        source = Source(here.relid, here.schema, here.name, ())
        async with snapshot_of(connection, None) as snapshot:
            await lock(connection, source)
            state = await self._state(connection)
            number = 1 if found is None else found.number + 1
            position = Position(state.system, followed, snapshot)
            metadata = self._metadata(number, state.name, position, state.frontier, state.data_timestamp)
            place, marked = self._place, Mark(here.generation, number)
            failure: list[BaseException] = []
            written = 0

            def counted(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                nonlocal written
                for batch in batches:
                    written += batch.num_rows
                    yield batch

            def write(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> DeltaTable:
                rows = watched(finite(counted(batches)), failure)
                try:
                    if found is None:
                        return place.create(schema, rows, metadata, marked)
                    return place.overwrite(Committed.of(found.table), schema, rows, metadata, marked)
                except (DeltaError, pa.ArrowException) as error:
                    raise (failure[0] if failure else error) from error

            try:
                seen = Snapshot("0", str(snapshot))
                connect, columns = self.connected.another, state.columns
                table = await extract(connect, connection, source, seen, columns, write, certain=True)
            except pa.ArrowInvalid as error:
                raise _unpublishable(error, list(state.columns)) from error
        self.count(written, 0)
        published = Published(table, number, position)
        await self._note(connection, published, snapshot, state.data_timestamp)
        return published

    async def _continue(self, connection: asyncpg.Connection, found: Published, position: Position) -> Published:
        """Publish what has changed since what the table has."""
        here = self.publication
        try:
            async with snapshot_of(connection, None) as snapshot:
                state = await self._state(connection)
                refreshes = await connection.fetch(_REFRESHES_SQL, here.pgt_id)
                images = await read_changes(connection, here.relid, state.columns, position.snapshot)
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
            raise Interrupted(str(error)) from error
        except pa.ArrowInvalid:
            images = None  # a value that Delta does not hold: perhaps it has gone again
        # Only now is it known that nothing of it was touched while it was read.
        connection = await self.connected.own()
        gap = await connection.fetchval(_GAP_SQL, here.publication_id)
        if gap is not None:
            raise Interrupted(gap)
        known = [(int(xid), *rest) for xid, *rest in refreshes]
        steps = None if images is None else await asyncio.to_thread(_steps, images, known, position, snapshot, state)
        if steps is None:
            return await self._replace(connection, found, position.followed)
        published, as_of = found, None
        for step in steps:
            published = await asyncio.to_thread(self._commit, published, step, state.name)
            as_of = step.data_timestamp
        end = Position(position.system, position.followed, snapshot)
        published = replace(published, position=end)
        await self._note(connection, published, snapshot, as_of or state.data_timestamp)
        return await asyncio.to_thread(self._keep_house, found, published)

    def _commit(self, found: Published, step: _Step, name: str) -> Published:
        """One commit, or none if all that was changed was taken back."""
        number = found.number + 1
        metadata = self._metadata(number, name, step.position, step.frontier, step.data_timestamp)
        marked = Mark(self.publication.generation, number)
        base = Committed.of(found.table)
        if only_adds(step.images):
            rows = added(step.images)
            self._place.append(base, rows, metadata, marked)
            self.count(rows.num_rows, 0)
        else:
            changes = net_changes(step.images)
            if changes.num_rows == 0:
                return found
            self._place.merge(base, changes, ROW_ID, GONE, metadata, marked)
            gone = pc.sum(changes[GONE]).as_py()
            self.count(changes.num_rows - gone, gone)
        published = Published(found.table, number, step.position)
        self._describe(published)
        return published

    def _metadata(
        self,
        number: int,
        name: str,
        position: Position,
        frontier: dict[str, Any] | None,
        data_timestamp: datetime | None,
    ) -> dict[str, Any]:
        return {
            "publication": self.publication.generation,
            "number": number,
            "stream_table": name,
            "frontier": frontier,
            "data_timestamp": None if data_timestamp is None else data_timestamp.isoformat(),
            **position.as_metadata(),
        }

    async def _note(
        self, connection: asyncpg.Connection, published: Published, seen: PgSnapshot, as_of: datetime | None
    ) -> None:
        """Tell the catalog what the table has: changes need not be kept any more."""
        await asyncio.to_thread(self._describe, published)
        position = published.position
        assert position is not None
        number, version = self.publication.publication_id, published.table.version()
        if not await connection.fetchval(_HAS_SQL, number, position.followed, str(seen), version, as_of):
            raise Interrupted("it is not published any more, or begins anew")

    def _keep_house(self, before: Published, published: Published) -> Published:
        if before.number // HOUSEKEEPING_COMMITS == published.number // HOUSEKEEPING_COMMITS:
            return published
        self._place.optimize()
        self._place.vacuum((), full=True)
        found = look(self._place, self.publication.generation)
        if found is None:
            return published
        self._describe(found)
        if self.publication.format == ICEBERG:
            from engine.publish import iceberg

            iceberg.tidy(location_of(self.publication.location))
        return replace(published, table=found.table)


def _steps(
    images: pa.Table,
    refreshes: Sequence[tuple[Any, ...]],
    position: Position,
    snapshot: PgSnapshot,
    state: _State,
) -> list[_Step] | None:
    """The commits that bring the images, each of a transaction (xid, frontier, data_timestamp) of `refreshes`.

    If one of them is of another transaction they are one commit. None where the table was truncated, or there is or was
    a value that Delta does not hold.
    """
    if truncations(images) or infinite_column(images) is not None:
        return None
    if position.also:
        images = images.filter(pc.invert(pc.is_in(images[XID], value_set=pa.array(sorted(position.also), pa.int64()))))
    changed = set(pc.unique(images[XID]).to_pylist())
    end = Position(position.system, position.followed, snapshot)
    if not changed:
        return []
    if not changed <= {xid for xid, *_ in refreshes}:
        return [_Step(images, state.frontier, state.data_timestamp, end)]
    steps, also = [], position.also
    for xid, frontier, data_timestamp in refreshes:
        if xid in changed:
            also |= {xid}
            own = images.filter(pc.equal(images[XID], xid))
            seen = replace(position, also=also)
            steps.append(_Step(own, None if frontier is None else json.loads(frontier), data_timestamp, seen))
    steps[-1] = replace(steps[-1], position=end)
    return steps


def _unpublishable(error: Exception, names: list[str]) -> Exception:
    column = refused_column(error)
    if column is None:
        return error
    return Unpublishable(f'a value in column "{names[column]}" that its type in the Delta table does not have')
