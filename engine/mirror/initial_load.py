"""The first copy of a source into its mirror: a new base, and an empty log that begins where the base ends."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import structlog
from deltalake.exceptions import DeltaError

from engine.mirror.delta_table import Committed, Location, WriteConflict
from engine.mirror.parallel_extract import extract, lock
from engine.mirror.source import Connections, Snapshot, SourceNow, connections, hold, look, snapshot_of
from engine.mirror.state import (
    CHANGE_FIELDS,
    MirrorState,
    arrow_schema,
    base_metadata,
    base_of,
    carried,
    changes_metadata,
    changes_of,
    declared,
    load,
    ranged_column,
)
from engine.session.snapshots import PgSnapshot
from sql.base.columns import Source
from sql.errors import NotExpressible

log = structlog.get_logger(__name__)

REFUSED_SECONDS = 600.0
"""How long a column that had a value which cannot be carried is not tried again."""


class _ValueRefused(Exception):
    """A value that cannot be carried, and its column."""

    def __init__(self, text: str, column: str):
        super().__init__(text)
        self.column = column


class InitialLoads:
    """Copies sources, and remembers which columns had values that cannot be carried."""

    def __init__(self) -> None:
        self._refused: defaultdict[str, dict[str, float]] = defaultdict(dict)

    async def copied(
        self,
        connected: Connections,
        place: Location,
        source: Source,
        names: Sequence[str],
        snapshot: Snapshot,
    ) -> MirrorState | Committed:
        """Copy the table without the columns that have a value which cannot be carried. Raises NotExpressible if one
        of them is asked for; that is remembered for a while, since it takes a copy to find out.
        """
        refused = self._refused[place.uri]
        for name, until in list(refused.items()):
            if until < time.monotonic():
                del refused[name]
        while True:
            for name in names:
                if name in refused:
                    raise NotExpressible(unkept(name, source.name))
            try:
                return await self._copy(connected, place, source, names, snapshot, set(refused))
            except _ValueRefused as refusal:
                refused[refusal.column] = time.monotonic() + REFUSED_SECONDS
                log.info("mirror_leaves_out_column", table=source.name, column=refusal.column, reason=str(refusal))
                if refusal.column in names:
                    raise NotExpressible(unkept(refusal.column, source.name)) from refusal

    async def _copy(
        self,
        connected: Connections,
        place: Location,
        source: Source,
        names: Sequence[str],
        snapshot: Snapshot,
        refused: set[str],
    ) -> MirrorState | Committed:
        """Copy the table as of the snapshot; only the base if its changes are not kept from there on."""
        mirror = str(uuid.uuid4())
        wanted = declared(source, names)
        connection = await connected.own()
        async with snapshot_of(connection, snapshot) as here:
            await lock(connection, source)
            now = await look(connection, source.oid, None)
            if now is not None and (
                not wanted.items() <= now.columns.items() or not await _hold(connected, mirror, source.oid, here, now)
            ):
                now = None
            columns = wanted if now is None else carried(_without(now.columns, refused), wanted, source.name)
            identity = now.identity if now else None

            def write(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> None:
                failure: list[BaseException] = []
                metadata = base_metadata(mirror, here, identity, columns)
                try:
                    ranged = ranged_column(identity, columns)
                    base_of(place).overwrite(None, schema, watched(batches, failure), metadata, statistics=ranged)
                except DeltaError as error:
                    if failure:
                        raise failure[0] from error
                    raise

            try:
                await extract(connected.another, connection, source, snapshot, columns, write)
            except pa.ArrowInvalid as error:
                text = innermost(error)
                column = refused_column(error)
                if column is None:
                    raise
                raise _ValueRefused(text, list(columns)[column]) from error
        base = await asyncio.to_thread(base_of(place).committed)
        if base is None or base.metadata["mirror"] != mirror:
            raise WriteConflict("the table was copied at once by somebody else")
        if now is None:
            return base
        schema = pa.schema([*CHANGE_FIELDS, *arrow_schema(columns, source.name)])
        metadata = changes_metadata(mirror, here, here, now.cleaned)
        await asyncio.to_thread(changes_of(place).overwrite, None, schema, (), metadata)
        state = await asyncio.to_thread(load, place)
        if state is None or state.mirror != mirror:
            raise WriteConflict("the table was copied at once by somebody else")
        return state


async def _hold(connected: Connections, mirror: str, source: int, snapshot: PgSnapshot, now: SourceNow) -> bool:
    """Have the buffer of a source kept from a snapshot on. The job's own connection is in the middle of a copy."""
    async with connections(connected.another) as others:
        return await hold(await others.own(), mirror, source, snapshot, now.cleaned)


def refused_column(error: pa.ArrowInvalid) -> int | None:
    """The column whose value does not fit its type, counted from 0; None where that was not what was wrong."""
    column = re.search(r"CSV column #(\d+)", innermost(error))
    return None if column is None else int(column[1])


def watched(batches: Iterator[pa.RecordBatch], failure: list[BaseException]) -> Iterator[pa.RecordBatch]:
    """The batches as they are. Why they ended too soon is noted in `failure`: who reads them tells it otherwise."""
    try:
        yield from batches
    except BaseException as error:
        failure.append(error)
        raise


def _without(columns: Mapping[str, str], names: set[str]) -> dict[str, str]:
    return {name: type_ for name, type_ in columns.items() if name not in names}


def unkept(column: str, table: str) -> str:
    """The reason why a query stays in PostgreSQL. Everybody reads it: so the value itself is not in it.

    >>> unkept("n", "t")
    'a value of table "t", in column "n", which the mirror cannot keep'
    """
    return f'a value of table "{table}", in column "{column}", which the mirror cannot keep'


def innermost(error: BaseException) -> str:
    """What Arrow says of a value, without where it was when it said so."""
    return str(error).split("Detail:")[0].strip()
