"""Compaction: the log of changes moves into the base, and what nobody needs any more goes.

The new base, or the part of it in which rows have changed, is computed with DataFusion (which comes with deltalake)
from the old base and the log, and committed as its successor; readers go on with the files they hold. A crash before
the commit leaves files that a later vacuum removes, one after it a log that has more than it needs: both are harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from deltalake import QueryBuilder

from engine.mirror.as_of_sql import DATAFUSION, XID, MirrorColumn, net_changes, rows_as_of
from engine.mirror.delta_table import Location, WriteConflict
from engine.mirror.mirror import Mirror
from engine.mirror.state import (
    CHANGE_FIELDS,
    MirrorState,
    arrow_schema,
    base_metadata,
    base_of,
    changes_metadata,
    changes_of,
    floor,
    load,
    ranged_column,
    relevant,
)
from engine.session.snapshots import Frontier, PgSnapshot

log = structlog.get_logger(__name__)

COMPACTION_ROWS, COMPACTION_RATIO = 50_000, 0.05
"""Changes are compacted when there are so many, and so many for each row of the base."""

COMPACTION_MOST_ROWS = 2_000_000
"""So many changes are compacted however large the base is: they are in memory, some 400 bytes for each."""

QUIET_ROWS, QUIET_RATIO = 1_000, 0.01
"""The same for a log that has not grown for a while: readers shall not go on merging what is no more changing."""

SMALL_FILES, SMALL_BYTES = 32, 32 << 20
"""So many files of the log, or so many small ones of the base, are made into few."""

SORTED_BYTES = 32 << 20
"""A base of at most so many bytes is sorted by its key whenever it is written anew, in memory. To sort a larger one
takes three times as long as to write it, on disk: that is done when the table is quiet."""


def is_due(state: MirrorState, *, quiet: bool = False) -> bool:
    """Whether the log has become so long that reading it costs more than compacting it."""
    waiting = sum(file.rows for file in relevant(state.changes.files, state.to, state.snapshot))
    rows, ratio = (QUIET_ROWS, QUIET_RATIO) if quiet else (COMPACTION_ROWS, COMPACTION_RATIO)
    return waiting > min(max(rows, ratio * state.base.rows), COMPACTION_MOST_ROWS)


def is_trimmable(state: MirrorState, bottom: PgSnapshot) -> bool:
    """Whether half of a long log is behind everybody."""
    needed = sum(file.rows for file in _needed(state, bottom))
    return state.changes.rows > COMPACTION_ROWS and needed < state.changes.rows / 2


async def compact(mirror: Mirror, place: Location, frontiers: Iterable[Frontier], *, quiet: bool = False) -> None:
    """Do what is due for one mirror; `frontiers` are those whose changes have to stay. `quiet`: it is not changing.

    Raises StorageFailed; somebody else who writes at once is left alone.
    """
    try:
        state = await asyncio.to_thread(load, place)
        if state is None:
            return
        if is_due(state, quiet=quiet):
            if await asyncio.to_thread(_damaged, place, state, base=True):
                return
            unsorted = await asyncio.to_thread(compact_base, place, state)
            if unsorted is not None and quiet:
                await asyncio.to_thread(base_of(place).optimize, unsorted)
            elif sum(file.size < SMALL_BYTES for file in state.base.files) > SMALL_FILES:
                await asyncio.to_thread(base_of(place).optimize)
            async with mirror.writing(place):
                await asyncio.to_thread(base_of(place).vacuum, mirror.held(base_of(place)), full=False)
            log.info("mirror_compacted", uri=place.uri, rows=state.base.rows, changes=state.changes.rows)
        async with mirror.writing(place):
            state = await asyncio.to_thread(load, place)
            if state is None:
                return
            bottom = lowest([state.snapshot, *(floor(frontier) for frontier in frontiers)])
            trimmable = is_trimmable(state, bottom)
            if not trimmable and len(state.changes.files) <= SMALL_FILES:
                return
            if await asyncio.to_thread(_damaged, place, state, base=False):
                return
            if trimmable:
                await asyncio.to_thread(_trim, place, state, bottom)
            else:
                await asyncio.to_thread(changes_of(place).optimize)
            await asyncio.to_thread(changes_of(place).vacuum, mirror.held(changes_of(place)), full=False)
    except WriteConflict as error:
        log.info("mirror_overtaken", uri=place.uri, error=str(error))


def lowest(snapshots: list[PgSnapshot]) -> PgSnapshot:
    """The one that sees least. Snapshots of one PostgreSQL are ordered."""
    found = snapshots[0]
    for each in snapshots[1:]:
        if each.within(found):
            found = each
    return found


def compacted_sql(state: MirrorState, part: str | None = None) -> str:
    """The rows as of the end of the log, in DataFusion's dialect, out of mirror_base and mirror_log.

    With `part`, a condition that each changed row has met and meets, those that meet it.
    """
    schema = arrow_schema(state.columns, "")
    columns = {field.name: MirrorColumn.of(field.type) for field in schema}
    xid = DATAFUSION.quote(XID)
    net = net_changes(DATAFUSION, "mirror_log", columns, state.to.condition(xid), state.snapshot.condition(xid))
    base = "mirror_base" if part is None else f"(SELECT * FROM mirror_base WHERE {part})"
    rows = rows_as_of(DATAFUSION, base, "mirror_net", columns, state.key, schema.names)
    return f"WITH mirror_net AS ({net}) {rows}"


def changed_part(state: MirrorState) -> str | None:
    """The rows of the base among which those are that have changed, as a condition: values of its key from … to ….

    None where most files of the base may have such rows, or do not say what they have. So what has been inserted at the
    end of a large table, and changed there, is compacted without the rest.
    """
    column = ranged_column(state.identity, state.columns)
    if column is None:
        return None
    name, xid = DATAFUSION.quote(column), DATAFUSION.quote(XID)
    seen = f"({state.to.condition(xid)}) <> ({state.snapshot.condition(xid)})"
    query = f"SELECT MIN({name}) AS lowest, MAX({name}) AS highest FROM mirror_log WHERE {seen}"
    found = pa.table(cast(Any, QueryBuilder().register("mirror_log", state.changes.table).execute(query)))
    ((lowest, highest),) = zip(*found.to_pydict().values(), strict=True)
    if lowest is None:
        return None
    met = [
        file
        for file in state.base.files
        if file.lowest is None or file.highest is None or (file.lowest <= highest and lowest <= file.highest)
    ]
    if sum(file.rows for file in met) > state.base.rows / 2:
        return None
    return f"{name} >= {lowest} AND {name} <= {highest}"


def _damaged(place: Location, state: MirrorState, *, base: bool) -> bool:
    """Whether a file has rotted: what it says must not get into a new one. The next reader has the mirror made anew."""
    found = changes_of(place).discard_damaged(state.changes.files)
    return (base and base_of(place).discard_damaged(state.base.files)) or found


def compact_base(place: Location, state: MirrorState) -> str | None:
    """Bring the log into the base. Returns the column by which its rows should be sorted, if they are left unsorted.

    DataFusion gives the rows of a whole base in any order. Each of its files would have rows of all keys, so that
    neither a reader nor the next compaction could pass over one. Raises WriteConflict, StorageFailed.
    """
    schema = arrow_schema(state.columns, "")
    query = QueryBuilder().register("mirror_base", state.base.table).register("mirror_log", state.changes.table)
    part = changed_part(state)
    column = ranged_column(state.identity, state.columns) if part is None else None
    small = sum(file.size for file in state.base.files) <= SORTED_BYTES
    sql = compacted_sql(state, part) + (f" ORDER BY {DATAFUSION.quote(column)}" if column and small else "")
    reader = pa.RecordBatchReader.from_stream(cast(Any, query.execute(sql)))

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in reader:
            yield pa.RecordBatch.from_arrays(
                [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)], schema=schema
            )

    metadata = base_metadata(state.mirror, state.to, state.identity, state.columns)
    base_of(place).overwrite(state.base, schema, batches(), metadata, part=part)
    return None if small else column


def _needed(state: MirrorState, bottom: PgSnapshot) -> list[Any]:
    return list(relevant(state.changes.files, state.to, bottom))


def _trim(place: Location, state: MirrorState, bottom: PgSnapshot) -> None:
    """Keep the files of the log that have changes which `bottom` does not see."""
    changes = changes_of(place)
    schema = pa.schema([*CHANGE_FIELDS, *arrow_schema(state.columns, "")])
    kept = _needed(state, bottom)

    def batches() -> Iterator[pa.RecordBatch]:
        storage = changes.storage()
        for file in kept:
            with storage.open_input_file(file.path) as source:
                yield from pq.read_table(source, schema=schema).to_batches()

    metadata = changes_metadata(state.mirror, bottom, state.to, state.cleaned)
    changes.overwrite(state.changes, schema, batches(), metadata)
    log.info("mirror_trimmed", uri=place.uri, before=state.changes.rows, after=sum(file.rows for file in kept))
