"""PostgreSQL's side of a mirror: snapshots, what the source is now, and what its change buffer holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncpg
import pyarrow as pa
import pyarrow.compute as pc

from catalog.pinned_settings import VALUES_AS_TEXT, set_local
from engine.arrow_spill import gathered
from engine.mirror.arrow_copy import copy_query, padded
from engine.mirror.as_of_sql import CHANGE_ID, WEIGHT, XID
from engine.mirror.state import CHANGE_FIELDS, arrow_schema
from engine.session.snapshots import PgSnapshot
from sql.base.frontier import unseen
from sql.base.text import quote

Connect = Callable[[], Awaitable[asyncpg.Connection]]

MOST_CHANGES = 4_000_000
"""Row images that are taken from a buffer at once. Where there are more the table is copied anew."""


HOLD_SECONDS = 600.0
"""How long a buffer is kept for a mirror after its server has last been heard of."""

_SETTINGS_SQL = set_local({**VALUES_AS_TEXT, "row_security": "off", "TimeZone": "UTC"})
"""Rows hidden by a policy must not silently be missing, and text must not depend on anybody's settings."""

_HAS_SQL = "SELECT pgtrickle._mirror_has($1::text::uuid, $2::text::pg_snapshot, $3::bigint, $4::float8, $5::boolean)"


class Connections:
    """Connections of one job to a database: its own, which it uses for one thing after the other, and more at once."""

    def __init__(self, connect: Connect):
        self.another = connect
        self._own: asyncpg.Connection | None = None

    async def own(self) -> asyncpg.Connection:
        """Opened when it is first needed, and again after an error in the middle of something has closed it."""
        if self._own is None or self._own.is_closed():
            self._own = await self.another()
        return self._own

    def close(self) -> None:
        if self._own is not None:
            self._own.terminate()


@asynccontextmanager
async def connections(connect: Connect) -> AsyncIterator[Connections]:
    """For the time of the block."""
    opened = Connections(connect)
    try:
        yield opened
    finally:
        opened.close()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot exported by a transaction that is still open, and the same as `pg_snapshot` text."""

    exported: str
    text: str


@dataclass(frozen=True, slots=True)
class SourceNow:
    """What a captured source is at the moment (`pgtrickle._mirrored_source`).

    `log_version` is what the catalog knows of a mirror's log, None if the buffer is not kept for that mirror. Changes
    that come `late`, from the write-ahead log, are in the buffer after the table shows them (`await_log`); `switched`
    counts how often that has become so or otherwise.
    """

    identity: str
    columns: Mapping[str, str]
    cleaned: str
    log_version: int | None
    switched: int
    late: bool


# Columns as name and type with a line end between, in order.
_LOOK_SQL = """
SELECT s.identity,
       (SELECT pg_catalog.array_agg(c.key || E'\\n' || (c.value OPERATOR(pg_catalog.#>>) '{}') ORDER BY c.place)
        FROM pg_catalog.json_each(s.columns) WITH ORDINALITY AS c(key, value, place)),
       s.cleaned, m.log_version, s.switched, s.late
FROM pgtrickle._mirrored_source($1::bigint::oid) s
LEFT JOIN pgtrickle.pgt_mirrors m ON m.mirror = $2::text::uuid
"""


@asynccontextmanager
async def snapshot_of(connection: asyncpg.Connection, snapshot: Snapshot | None) -> AsyncIterator[PgSnapshot]:
    """A read-only transaction that sees what the exporting transaction saw, or what is there now; and what that is.

    After an error the connection is closed. The exporting transaction itself, if it has an id, is not seen, although
    its own text may look as if it was.
    """
    if snapshot is not None and not all(c in "0123456789ABCDEF-" for c in snapshot.exported):
        raise ValueError(f"not the name of a snapshot: {snapshot.exported}")
    await connection.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        if snapshot is not None:
            await connection.fetch(f"SET TRANSACTION SNAPSHOT '{snapshot.exported}'")
        await connection.execute(_SETTINGS_SQL)
        yield PgSnapshot.parse(await connection.fetchval("SELECT pg_catalog.pg_current_snapshot()::text"))
        await connection.execute("COMMIT")
    except BaseException:
        # It may be in the middle of a COPY that nobody reads.
        connection.terminate()
        raise


async def look(connection: asyncpg.Connection, source: int, mirror: str | None) -> SourceNow | None:
    """The source as the connection's snapshot sees it; None if its changes are not captured (completely)."""
    row = await connection.fetchrow(_LOOK_SQL, source, mirror)
    if row is None:
        return None
    columns = dict(item.rsplit("\n", 1) for item in row[1] or ())
    return SourceNow(row[0], columns, *row[2:])


async def hold(connection: asyncpg.Connection, mirror: str, source: int, snapshot: PgSnapshot, cleaned: str) -> bool:
    """Have the buffer of a source kept for a mirror from a snapshot on; False if something has gone since.

    `cleaned` is `SourceNow.cleaned` as that snapshot saw it.
    """
    query = "SELECT pgtrickle._hold_for_mirror($1::text::uuid, $2::bigint::oid, $3::text::pg_snapshot, $4::text)"
    return bool(await connection.fetchval(query, mirror, source, str(snapshot), cleaned))


async def has(
    connection: asyncpg.Connection, mirror: str, snapshot: PgSnapshot | None, version: int, *, used: bool
) -> None:
    """Say that a version of a mirror's log has all that a snapshot sees (None: what it had), and is still wanted."""
    await connection.execute(_HAS_SQL, mirror, snapshot and str(snapshot), version, HOLD_SECONDS, used)


async def await_log(connection: asyncpg.Connection) -> None:
    """Wait until the buffers have all changes from the write-ahead log that have been committed by now.

    Raises asyncpg.LockNotAvailableError where nobody decodes it.
    """
    await connection.execute("SELECT pgtrickle._await_wal()")


async def read_changes(
    connection: asyncpg.Connection,
    source: int,
    columns: Mapping[str, str],
    after: PgSnapshot,
    before: tuple[PgSnapshot, PgSnapshot] | None = None,
    *,
    of: PgSnapshot | None = None,
) -> pa.Table | None:
    """What the transaction sees in the buffer of a source and snapshot `after` does not; only what `of` sees, if given.

    With `before` also what the first snapshot of it does not see and the second does. None if there is too much.
    Raises pyarrow.ArrowInvalid, asyncpg.PostgresError.
    """
    schema = pa.schema([*CHANGE_FIELDS, *arrow_schema(columns, str(source))])
    xid = f"{quote(XID)}::pg_catalog.text::pg_catalog.int8"
    items = [xid, quote(CHANGE_ID), quote(WEIGHT)]
    items += [quote(name) for name in columns] or ["true"]
    condition = _unseen(after)
    if before is not None:
        condition += f" OR ({_unseen(before[0])}) AND NOT ({_unseen(before[1])})"
    if of is not None:
        condition = f"({condition}) AND NOT ({_unseen(of)})"
    query = (
        f"SELECT {', '.join(items)} FROM {quote('pgtrickle_changes', f'changes_{source}')} AS c WHERE {condition}"
        f" LIMIT {MOST_CHANGES + 1}"
    )

    def collect(batches: Iterator[pa.RecordBatch]) -> pa.Table:
        return gathered(schema, batches)

    table = await copy_query(connection, query, schema, collect, padded=padded(columns))
    return None if table.num_rows > MOST_CHANGES else table


def truncations(changes: pa.Table) -> list[int]:
    """The transactions that truncated the source, among changes."""
    markers = changes.select([XID, WEIGHT]).filter(pc.equal(changes[WEIGHT], 0))
    return [int(xid) for xid in markers[XID].to_pylist()]


def _unseen(snapshot: PgSnapshot) -> str:
    return unseen(f"'{snapshot}'::pg_catalog.pg_snapshot")
