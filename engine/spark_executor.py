"""The Spark executor: a query's rows, computed from the mirror, into a staging table of the refreshing transaction.

Nothing of PostgreSQL's is touched before Spark has succeeded: the refreshing session only exports its snapshot, and
afterwards gets a temporary table filled by COPY.
"""

from __future__ import annotations

import asyncio
import datetime
import io
import itertools
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import structlog

from catalog.session import SqlSession
from engine.mirror import Connect, Mirror, MirrorVersion, Snapshot
from engine.mirror_copy import arrow_type
from engine.mirror_views import create_views, drop_views
from engine.spark_sessions import Session, SparkJobFailed, SparkSessions, SparkUnavailable
from sql.columns import Column, Source
from sql.render import quote
from sql.spark import NotExpressible, SparkQuery, render_spark
from sql.spark_types import column_type

log = structlog.get_logger(__name__)

CSV_ROWS = 16384
"""Rows in one chunk of COPY data."""

_FIRST_DAY = (datetime.date.min - datetime.date(1970, 1, 1)).days
_LAST_DAY = (datetime.date.max - datetime.date(1970, 1, 1)).days

_staging_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class SparkResult:
    """What a run did. ``staging`` is the quoted name of the staging table, its columns named as the query's.

    ``snapshot`` (`pg_snapshot` text) is what the rows are the result of. ``extracted`` counts source rows that had to
    be copied into the mirror, ``read`` all rows of the sources.
    """

    staging: str
    snapshot: str
    rows: int
    read: int
    extracted: int
    extract_ms: float
    compute_ms: float
    load_ms: float

    @property
    def detail(self) -> str:
        """For the history row."""
        return (
            f"{self.read} rows in the mirror ({self.extracted} copied anew),"
            f" extract {self.extract_ms:.0f} ms, compute {self.compute_ms:.0f} ms, load {self.load_ms:.0f} ms"
        )


class SparkExecutor:
    """Computes queries on the sessions of one Spark target, from one mirror."""

    def __init__(self, sessions: SparkSessions, mirror: Mirror):
        self._sessions = sessions
        self._mirror = mirror

    @property
    def warm(self) -> bool:
        """True if a job would not have to wait for Spark's start."""
        return self._sessions.warm

    async def run(
        self,
        session: SqlSession,
        *,
        database: str,
        connect: Connect,
        query: str,
        sources: Sequence[Source],
        owner: str,
        description: str,
        names: Sequence[str] = (),
        binary_order: bool = False,
        limit: float | None = None,
        tries: int = 2,
    ) -> SparkResult:
        """Compute `query` (canonical, or a plan's core) as of a snapshot of `session`, into a staging table there.

        `session` must be in a transaction that has not written to the sources, and not in a savepoint (a snapshot
        cannot be exported from one). `connect` gives a connection to the same database that may read the sources
        whole. `owner` is the role that may read the staging table. `names` replace the query's column names. `limit`
        is in seconds, for Spark's part. A job during which Spark dies is tried `tries` times.

        Raises NotExpressible, before `session` was touched unless a value turned out not to be expressible;
        SparkUnavailable (58000), SparkJobFailed (38000, 57014), SqlError.
        """
        collated = await _collated(session, sources) if binary_order else frozenset()
        spark_query = render_spark(query, sources, binary_order=binary_order, collated=collated)
        by_oid = {source.oid: source for source in sources}
        self._sessions.check_on()
        # Start Spark while the mirror is written.
        warming = asyncio.ensure_future(self._sessions.warm_up())
        warming.add_done_callback(lambda task: task.cancelled() or task.exception())
        ((exported, text),) = await session.fetch(
            "SELECT pg_catalog.pg_export_snapshot(), pg_catalog.pg_current_snapshot()::pg_catalog.text"
        )
        snapshot = Snapshot(exported, text)
        async with AsyncExitStack() as held:
            began = time.monotonic()
            versions = []
            for oid, columns in spark_query.reads.items():
                at = self._mirror.at(connect, database, by_oid[oid], columns, snapshot)
                versions.append(await held.enter_async_context(at))
            extracted = time.monotonic()
            table = await self.compute(spark_query, by_oid, versions, description=description, limit=limit, tries=tries)
            computed = time.monotonic()
        staging = await self._load(session, spark_query.columns, names, table, owner)
        return SparkResult(
            staging=staging,
            snapshot=text,
            rows=table.num_rows,
            read=sum(version.rows for version in versions),
            extracted=sum(version.rows for version in versions if not version.reused),
            extract_ms=(extracted - began) * 1000,
            compute_ms=(computed - extracted) * 1000,
            load_ms=(time.monotonic() - computed) * 1000,
        )

    async def compute(
        self,
        query: SparkQuery,
        sources: Mapping[int, Source],
        versions: Sequence[MirrorVersion],
        *,
        description: str,
        limit: float | None = None,
        tries: int = 2,
    ) -> pa.Table:
        """The query's rows, in the Arrow types of `query.columns`; tried so many times if Spark dies.

        Raises SparkUnavailable (58000), SparkJobFailed (38000, 57014).
        """

        def work(spark: Session) -> pa.Table:
            for version in versions:
                create_views(spark, sources[version.source], query.reads[version.source], version)
            try:
                return spark.sql(query.sql).toArrow()
            finally:
                for version in versions:
                    drop_views(spark, version)

        for last_try in (False,) * (tries - 1) + (True,):
            try:
                async with self._sessions.acquire() as lease:
                    table = await lease.run(work, description=description, limit=limit)
                return await asyncio.to_thread(_typed, table, query)
            except SparkUnavailable as error:
                if last_try or self._sessions.off or self._sessions.stopped:
                    raise
                log.warning("spark_job_repeated", job=description, error=error.message, detail=error.detail)
        raise AssertionError("unreachable")

    async def _load(
        self, session: SqlSession, columns: Sequence[Column], names: Sequence[str], table: pa.Table, owner: str
    ) -> str:
        """A temporary table with the rows, dropped at the end of the transaction."""
        name = f"__headwater_staging_{next(_staging_numbers)}"
        staging = quote("pg_temp", name)
        chosen = tuple(names) or tuple(column.name for column in columns)
        declared = ", ".join(f"{quote(n)} {_qualified(c.type)}" for n, c in zip(chosen, columns, strict=True))
        await session.execute(f"CREATE TEMPORARY TABLE {staging} ({declared}) ON COMMIT DROP")
        await session.execute(f"GRANT SELECT ON {staging} TO {quote(owner)}")
        if columns and table.num_rows:
            await session.copy_in("pg_temp", name, list(chosen), csv_chunks(table))
        await session.execute(f"ANALYZE {staging}")
        return staging


# Columns with a collation other than the database's own and the ones that compare bytes.
_COLLATED_SQL = """
SELECT a.attrelid::pg_catalog.int8, a.attname::pg_catalog.text
FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_collation c ON c.oid OPERATOR(pg_catalog.=) a.attcollation
WHERE a.attrelid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.text::pg_catalog.oid[])
  AND NOT c.collname OPERATOR(pg_catalog.=)
      ANY ('{default,C,POSIX,ucs_basic,pg_c_utf8}'::pg_catalog.name[])
"""


async def _collated(session: SqlSession, sources: Sequence[Source]) -> frozenset[tuple[int, str]]:
    oids = "{" + ",".join(str(source.oid) for source in sources) + "}"
    return frozenset((int(oid), str(name)) for oid, name in await session.fetch(_COLLATED_SQL, oids))


def _qualified(type_: str) -> str:
    """A type's name that no search_path can redirect; the others are keywords."""
    return f"pg_catalog.{type_}" if type_ in ("text", "date", "uuid") else type_


def _typed(table: pa.Table, query: SparkQuery) -> pa.Table:
    """The result with exactly the types that were promised; a value that does not fit is an error."""
    fields = [
        (f"c{n}", table.schema.field(n).type if column.type == "numeric" else arrow_type(column_type(column.type)))
        for n, column in enumerate(query.columns)
    ]
    table = table.cast(pa.schema(fields))
    for column in table.columns:
        if pa.types.is_temporal(column.type) and not _in_years_1_to_9999(column):
            raise SparkJobFailed("Spark job gave a date outside the years 1 to 9999")
    return table


def _in_years_1_to_9999(column: pa.ChunkedArray) -> bool:
    """Dates and timestamps outside have no CSV text that PostgreSQL reads back."""
    extremes = pc.min_max(column.cast(pa.date32()))
    low, high = extremes["min"].cast(pa.int32()).as_py(), extremes["max"].cast(pa.int32()).as_py()
    return low is None or (low >= _FIRST_DAY and high <= _LAST_DAY)


async def csv_chunks(table: pa.Table) -> AsyncIterator[bytes]:
    """The table as CSV for COPY: no header, NULL an unquoted empty field, text quoted."""
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")

    def chunk(batch: pa.RecordBatch) -> bytes:
        sink = io.BytesIO()
        pyarrow.csv.write_csv(batch, sink, options)
        return sink.getvalue()

    for batch in table.to_batches(max_chunksize=CSV_ROWS):
        yield await asyncio.to_thread(chunk, batch)


__all__ = ["NotExpressible", "SparkExecutor", "SparkResult", "csv_chunks"]
