"""`headwater export spark`: the stream tables of a database as a project of Spark Declarative Pipelines.

PostgreSQL is only asked, in one READ ONLY transaction. What the export cannot take along it says, with the reason.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import asyncpg

from catalog.session import SqlError, SqlSession
from engine.session.pool import DatabasePool
from engine.spark.environment import environment_of
from engine.stream_tables.plan_inputs import PlanInputs
from server.postgres.data_directory import StartupError
from server.postgres.url import PostgresUrl
from sql import PLAN_FORMAT, NotDifferentiable, Source, jobs
from sql.errors import NotExpressible
from sql.export.dataset import Dataset, SourceView, dataset
from sql.export.source_table import spark_columns
from sql.spark.protocol import Environment
from sql.spark.values import identifier

_UNNAMEABLE = re.compile(r"[^a-z0-9_]")

_NO_DATABASE, _NOT_LET_IN = "3D000", "28"
"""An SQLSTATE, and the class of those of authentication."""

_STREAM_TABLES = """
SELECT s.pgt_relid::pg_catalog.int8, s.pgt_schema, s.pgt_name, s.canonical_query, (s.explain -> 'inputs')::text,
       s.requested_mode, s.schedule, pg_catalog.pg_get_userbyid(s.pgt_owner)::text, s.scc_id IS NOT NULL
FROM pgtrickle.pgt_stream_tables s ORDER BY s.pgt_schema, s.pgt_name
"""

_NAMES = """
SELECT c.oid::pg_catalog.int8, n.nspname::pg_catalog.text, c.relname::pg_catalog.text
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
WHERE c.oid OPERATOR(pg_catalog.=) ANY ($1::pg_catalog.int8[]::pg_catalog.oid[])
"""


@dataclass(frozen=True, slots=True)
class StreamTable:
    """A stream table as the catalog has it; ``plan`` is None, for a ``reason``, where it cannot be read."""

    oid: int
    schema: str
    name: str
    mode: str
    schedule: str | None
    owner: str
    plan: PlanInputs | None
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table, or a stream table that stays in PostgreSQL, and the columns that are read of it."""

    source: Source
    dataset: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What is exported of a database: stream tables by the names of their datasets, and what these read."""

    database: str
    datasets: Mapping[str, tuple[StreamTable, Dataset]]
    sources: tuple[SourceTable, ...]
    left: tuple[tuple[StreamTable, str], ...]
    """What is not exported, each with the reason."""


@dataclass(slots=True)
class _Export:
    """An export in the making: what the database is like, and the datasets so far."""

    names: Mapping[int, str]
    """Of datasets, by oid."""
    relations: Mapping[int, tuple[str, str]]
    environment: Environment
    done: dict[int, Dataset] = field(default_factory=dict)
    sources: dict[int, SourceTable] = field(default_factory=dict)

    def add(self, table: StreamTable) -> None:
        """Make a dataset of a stream table. Raises NotExpressible, NotDifferentiable."""
        plan = table.plan
        if plan is None:
            raise NotExpressible(table.reason)
        if not plan.sources:
            raise NotExpressible("a source that is not an ordinary table")
        for source in plan.sources:
            if self.relations.get(source.oid) != (source.schema, source.name):
                raise NotExpressible(f'table "{source.name}", which is not what it was when the query was planned')
        found = dataset(
            jobs.spark_rows(plan.query),
            plan.sources,
            plan.output,
            {source.oid: self._view(source) for source in plan.sources},
            environment=self.environment,
            total_orders=plan.differentiable,
        )
        read = [self._read(source, found) for source in plan.sources if source.oid in found.reads]
        self.sources |= {one.source.oid: one for one in read if one is not None}
        self.done[table.oid] = found

    def _view(self, source: Source) -> SourceView:
        known, name = self.done.get(source.oid), self.names[source.oid]
        return known.as_source(name) if known else SourceView(identifier(name))

    def _read(self, source: Source, found: Dataset) -> SourceTable | None:
        """What is read of a table in all; None of a dataset. Raises NotExpressible where Spark cannot have it."""
        if source.oid in self.done:
            return None
        before = self.sources.get(source.oid)
        wanted = {*found.reads[source.oid], *(before.columns if before else ())}
        columns = tuple(column.name for column in source.columns if column.name in wanted)
        spark_columns(source, columns)
        return SourceTable(source, self.names[source.oid], columns)


def pipeline(url: PostgresUrl, database: str | None = None) -> Pipeline:
    """What can be exported of a database, by default that of the URL. Raises StartupError."""
    name = database or url.database
    try:
        return asyncio.run(_pipeline(url, name))
    except (SqlError, OSError, asyncpg.PostgresError) as error:
        raise StartupError(
            f'could not read the stream tables of database "{name}": {error}', _hint(getattr(error, "sqlstate", None))
        ) from error


def _hint(sqlstate: str | None) -> str | None:
    """What to do about an error of the connection, where that is known."""
    if sqlstate == _NO_DATABASE:
        return "Name another one by --database."
    if sqlstate is not None and sqlstate.startswith(_NOT_LET_IN):
        return "Give a password in PGPASSWORD or PGPASSFILE, or in the URL."
    return None


async def _pipeline(url: PostgresUrl, database: str) -> Pipeline:
    def login(name: str) -> dict[str, Any]:
        return {"dsn": url.dsn(name)}

    pool = DatabasePool(database, login, max_size=1)
    try:
        async with pool.session() as session, session.sight():
            ((installed,),) = await session.fetch("SELECT pg_catalog.to_regclass('pgtrickle.pgt_stream_tables')::text")
            tables = [_stream_table(*row) for row in await session.fetch(_STREAM_TABLES)] if installed else []
            if not tables:
                raise StartupError(f'database "{database}" has no stream tables', "Name another one by --database.")
            return _exported(database, tables, await _begun(session, tables))
    finally:
        await pool.close()


def _stream_table(
    oid: int,
    schema: str,
    name: str,
    canonical: str | None,
    inputs: str | None,
    mode: str,
    schedule: str | None,
    owner: str,
    circular: bool,
) -> StreamTable:
    found = StreamTable(oid, schema, name, mode, schedule, owner, None)
    if canonical is None or inputs is None:
        return replace(found, reason="the role may not see its query")
    planned = json.loads(inputs)
    if planned.get("format") != PLAN_FORMAT:
        return replace(found, reason="it was planned by another version of Headwater; have it refreshed by this one")
    if circular:
        return replace(found, reason="it and others read each other, and a pipeline has no circles")
    return replace(found, plan=PlanInputs.from_json(canonical, planned))


async def _begun(session: SqlSession, tables: Sequence[StreamTable]) -> _Export:
    """The database as an export has to know it."""
    relations = {table.oid: (table.schema, table.name) for table in tables}
    read = {source.oid for table in tables if table.plan for source in table.plan.sources}
    relations |= {int(oid): (s, n) for oid, s, n in await session.fetch(_NAMES, sorted(read - {*relations}))}
    return _Export(dataset_names(relations), relations, await environment_of(session, read))


def dataset_names(relations: Mapping[int, tuple[str, str]]) -> dict[int, str]:
    """A name in Spark for each relation, from its schema and name: Spark has letters, digits and _, in one case.

    >>> dataset_names({1: ("public", "Orders"), 2: ("sales", "orders"), 3: ("public", "o r"), 4: ("public", "o-r")})
    {1: 'orders', 3: 'o_r', 4: 'o_r_2', 2: 'sales_orders'}
    """
    names: dict[int, str] = {}
    for oid, (schema, name) in sorted(relations.items(), key=lambda item: item[1]):
        plain = _UNNAMEABLE.sub("_", (name if schema == "public" else f"{schema}_{name}").lower())
        numbered = (plain if n == 1 else f"{plain}_{n}" for n in range(1, len(relations) + 1))
        names[oid] = next(each for each in numbered if each not in names.values())
    return names


def _exported(database: str, tables: Sequence[StreamTable], export: _Export) -> Pipeline:
    left = []
    for table in _upstream_first(tables):
        try:
            export.add(table)
        except NotDifferentiable as reason:
            left.append((table, reason.construct))
        except NotExpressible as reason:
            left.append((table, str(reason)))
        except RecursionError:
            left.append((table, "its query is too complex"))
    datasets = {
        export.names[table.oid]: (table, export.done[table.oid]) for table in tables if table.oid in export.done
    }
    sources = sorted(export.sources.values(), key=lambda source: source.dataset)
    return Pipeline(database, datasets, tuple(sources), tuple(left))


def _upstream_first(tables: Iterable[StreamTable]) -> Iterator[StreamTable]:
    """The stream tables, each after those that it reads. Where that cannot be, they are left as circular ones are."""
    waiting = {table.oid: table for table in tables}
    while waiting:
        ready = [table for table in waiting.values() if not _reads(table) & {*waiting}]
        yield from ready or (replace(table, plan=None, reason="it reads itself") for table in waiting.values())
        waiting = {table.oid: table for table in waiting.values() if ready and table not in ready}


def _reads(table: StreamTable) -> set[int]:
    return {source.oid for source in table.plan.sources} if table.plan else set()
