"""How a Spark job's rows get into PostgreSQL: a temporary table, or for many rows a staging area filled in parallel.

Few rows come through this process and one connection, into a temporary table of the refreshing session. Many are
written by Spark's executors, each partition by a COPY of its own, where they have been told how to reach PostgreSQL
and so many are expected; else by this process over several connections.

Spark computes nothing in a client's transaction block, which could be prepared for a commit in two phases, if there
were nothing temporary in it.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from catalog.session import SqlError, SqlSession
from engine.mirror.arrow_copy import arrow_type
from engine.spark.backends import rows_of
from engine.spark.partition_writer import Fields, checked, writer
from engine.spark.sessions import SparkJobFailed
from engine.spark.staging import Connect, StagingArea, check_plain_types, copy_data
from sql.base.columns import Column
from sql.base.text import quote
from sql.spark.render import SparkQuery
from sql.spark.types import CARRIED, RANGES, base_type, column_type

PARTS = "part string, rows bigint"
"""What executors give to the driver: the names of the tables that they have filled, and their rows."""

_staging_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Parallel:
    """From how many rows on results are written in parallel, and by whom.

    ``rows`` is the least number of rows (0: never), ``expected`` how many the planner thinks there will be,
    ``address`` where Spark's executors find the database (a connection string without role and password), None if they
    cannot, ``seconds`` how long the role as which they log in may do so at most.
    """

    rows: int = 0
    expected: int = 0
    address: str | None = None
    seconds: float = 86400.0


@dataclass(slots=True)
class Loading:
    """The way of one job's results. Its areas are to be dropped when the refresh has ended (`drop`)."""

    connect: Connect
    owner: str
    """The role that may read the rows."""
    parallel: Parallel = field(default_factory=Parallel)
    areas: list[StagingArea] = field(default_factory=list)
    _written: list[StagingArea] = field(default_factory=list)
    """The area of each query, where Spark's executors write."""

    async def prepare(self, queries: Sequence[SparkQuery]) -> None:
        """Before the job: decide who writes. Raises SqlError."""
        many = self.parallel.rows and self.parallel.expected >= self.parallel.rows
        if self.parallel.address is not None and many and all(query.columns for query in queries):
            for query in queries:
                area = await self._area(query.columns)
                await area.admit(self.parallel.address, self.parallel.seconds)
                self._written.append(area)

    def collect(self, number: int, query: SparkQuery, frame: Any) -> pa.Table:
        """In the job: the rows of its query of that number, or the names of the parts that they were written to."""
        if not self._written:
            return rows_of(frame)
        area = self._written[number]
        write = writer(area.number, area.login, fields(query))
        return frame.mapInArrow(write, PARTS).toArrow()

    async def load(self, session: SqlSession, number: int, query: SparkQuery, table: pa.Table) -> tuple[str, int]:
        """After the job: what to read its rows by in FROM, and how many they are. Raises SparkJobFailed, SqlError."""
        if self._written:
            area = self._written[number]
            await area.expel()
            await area.add((row["part"], row["rows"]) for row in table.to_pylist())
            if not area.rows:
                await area.fill(self.connect, pa.table({}), [])
            return area.source, area.rows
        try:
            await asyncio.to_thread(check, table, fields(query))
        except OverflowError as error:
            raise SparkJobFailed(str(error)) from error
        if self.parallel.rows and table.num_rows >= self.parallel.rows and query.columns:
            area = await self._area(query.columns)
            await area.fill(self.connect, table, fields(query))
            return area.source, area.rows
        return await self._temporary(session, query, table), table.num_rows

    async def _area(self, columns: Sequence[Column]) -> StagingArea:
        area = await StagingArea.open(
            self.connect, quote(self.owner), [column.name for column in columns], declared(columns)
        )
        self.areas.append(area)
        return area

    async def _temporary(self, session: SqlSession, query: SparkQuery, table: pa.Table) -> str:
        """A temporary table with the rows, dropped at the end of the transaction."""
        columns = query.columns
        name = f"__headwater_staging_{next(_staging_numbers)}"
        staging = quote("pg_temp", name)
        await session.execute(f"CREATE TEMPORARY TABLE {staging} ({declared(columns)}) ON COMMIT DROP")
        await check_plain_types(session, staging)
        await session.execute(f"GRANT SELECT ON {staging} TO {quote(self.owner)}")
        if columns and table.num_rows:
            rows = copy_data(table, fields(query))
            await session.copy_in("pg_temp", name, [column.name for column in columns], rows)
        await session.execute(f"ANALYZE {staging}")
        return staging

    @property
    def described(self) -> str:
        """How the rows came, for the history; empty for the ordinary way."""
        parts = sum(area.parts for area in self.areas)
        return f" in {parts} parts, by {'the executors' if self._written else 'the server'}" if self.areas else ""

    async def drop(self) -> None:
        """Drop the areas, once the transaction that reads them has ended: this waits for it."""
        areas, self.areas = self.areas, []
        for area in areas:
            await area.drop()


def declared(columns: Sequence[Column]) -> str:
    """Columns with their types as SQL. Raises SqlError 42704 for what is no type that Spark gives.

    The types can come from a kept plan, which its owner can write. So they are read by a grammar that has nothing but
    names in it, and what a table made with them has is looked at before anything is put into it (`check_plain_types`).

    >>> declared([Column("a", "numeric(10,2)"), Column("b", "text[]"), Column("c", 'public."Mood"', carrier="enum")])
    '"a" numeric(10,2), "b" pg_catalog.text[], "c" public."Mood"'
    """
    return ", ".join(f"{quote(column.name)} {_qualified(column.type)}" for column in columns)


_IDENTIFIER = r'(?:"(?:[^"\0]|"")+"|[a-z_][a-z0-9_]*)'
_ENUM = re.compile(rf"{_IDENTIFIER}\.{_IDENTIFIER}")
_BUILT_IN = re.compile(r"([a-z][a-z0-9]*(?: [a-z]+)*)(\(\d+(?:,-?\d+)?\))?( with(?:out)? time zone)?((?:\[\])?)")


def _qualified(type_: str) -> str:
    """A type's name that no search_path can redirect; the ones without a schema are keywords."""
    found = _BUILT_IN.fullmatch(type_)
    if found is not None:
        name, modifier, zone, array = found[1], found[2] or "", found[3] or "", found[4]
        if base_type(name + zone) in CARRIED and (not zone or name in ("time", "timestamp")):
            return f"pg_catalog.{type_}" if name in _NAMES and not modifier else f"{name}{modifier}{zone}{array}"
    elif _ENUM.fullmatch(type_):
        return type_
    raise SqlError("42704", f'type "{type_}" is none that Spark gives')


_NAMES = frozenset(("text", "date", "uuid", "bytea", "bpchar", "json", "jsonb", "inet", "cidr", "macaddr", *RANGES))


def fields(query: SparkQuery) -> Fields:
    """The columns of a result with their Arrow types, where PostgreSQL's determine them."""
    types = [(f"c{n}", column.stored) for n, column in enumerate(query.columns)]
    return [(name, None if type_ == "numeric" else arrow_type(column_type(type_))) for name, type_ in types]


def check(table: pa.Table, fields: Fields) -> None:
    """See that all values can be written. (They are converted as they are written.) Raises as `checked` does."""
    for batch in table.to_batches():
        checked(batch, fields)


Collect = Callable[[int, SparkQuery, Any], pa.Table]
"""`Loading.collect`."""

__all__ = ["Collect", "Loading", "Parallel"]
