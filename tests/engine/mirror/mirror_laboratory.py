"""A database with the catalog, a captured table and a mirror, for the tests of the mirror."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow.parquet as pq
from psycopg import conninfo

from catalog.install import install
from engine.mirror.mirror import Mirror, MirrorVersion, Snapshot
from engine.mirror.source import connections
from engine.session.pool import SESSION_SETTINGS, PooledSession
from sql import Column, Source

FIVE = [(i, f"v{i}") for i in range(1, 6)]
"""What the columns `id` and `v` of its table `t` are at first."""


class Laboratory:
    """A database with the catalog, a captured table `t`, and a mirror."""

    def __init__(self, options: dict[str, Any], root: Path):
        self.options = options
        self.root = root
        self.mirror = Mirror(root)
        self.captures = 0
        self.connection: asyncpg.Connection

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(**self.options, server_settings=SESSION_SETTINGS)

    async def run(self, *statements: str) -> None:
        for statement in statements:
            await self.connection.execute(statement)

    async def capture(self, table: str, columns: Sequence[str], *, keyed: bool = False) -> None:
        """Have the changes of a table captured, for a stream table that is never refreshed."""
        self.captures += 1
        name = f"public.st_{table}_{self.captures}"
        await self.run(f"CREATE TABLE {name} (__pgt_row_id bigint PRIMARY KEY)")
        oid = await self.connection.fetchval("SELECT $1::text::regclass::oid::bigint", name)
        definition = {"pgt_relid": oid, "defining_query": "SELECT", "canonical_query": "SELECT"}
        pgt_id = await self.connection.fetchval("SELECT pgtrickle._register($1::text::jsonb)", json.dumps(definition))
        await self.connection.execute(
            "SELECT pgtrickle._track_source($1::bigint, $2::text::regclass, $3::text[], $4::boolean)",
            pgt_id,
            f"public.{table}",
            list(columns),
            keyed,
        )
        self.pgt_id = pgt_id

    async def set_frontier(self) -> None:
        """The stream table has seen everything: its changes may be removed."""
        async with self.connection.transaction():
            await self.connection.execute("SELECT pgtrickle._begin_refresh($1::bigint)", self.pgt_id)
            snapshot = await self.connection.fetchval("SELECT pg_catalog.pg_current_snapshot()::text")
            frontier = {"snapshot": snapshot, "xid": None, "change_id": None}
            result = {"status": "COMPLETED", "action": "FULL", "frontier": frontier}
            await self.connection.execute(
                "SELECT pgtrickle._finish_refresh($1::bigint, $2::text::jsonb)", self.pgt_id, json.dumps(result)
            )

    async def frontier(self) -> dict[str, Any]:
        """What a stream table that is refreshed now has seen."""
        snapshot = await self.connection.fetchval("SELECT pg_catalog.pg_current_snapshot()::text")
        return {"snapshot": snapshot, "xid": None, "change_id": None}

    async def source(self, table: str = "t") -> Source:
        connection = await self.connect()
        rows = await connection.fetch(
            "SELECT attname, format_type(atttypid, atttypmod), attrelid::bigint FROM pg_attribute"
            " WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            f"public.{table}",
        )
        await connection.close()
        return Source(rows[0][2], "public", table, tuple(Column(name, type_) for name, type_, _ in rows))

    @asynccontextmanager
    async def at(
        self,
        *names: str,
        table: str = "t",
        exporter: asyncpg.Connection | None = None,
        since: dict[str, Any] | None = None,
    ) -> AsyncIterator[MirrorVersion]:
        """The mirror at the exporter's snapshot; without one at a snapshot of now."""
        async with AsyncExitStack() as stack:
            if exporter is None:
                exporter = await self.connect()
                stack.push_async_callback(exporter.close)
                await stack.enter_async_context(exporter.transaction(isolation="repeatable_read"))
            row = await exporter.fetchrow("SELECT pg_export_snapshot(), pg_current_snapshot()::text")
            source = await self.source(table)
            connected = await stack.enter_async_context(connections(self.connect))
            version = self.mirror.at(connected, "lab", source, names, Snapshot(row[0], row[1]), since)
            yield await stack.enter_async_context(version)

    async def rows_in_mirror(self, *names: str, table: str = "t") -> int:
        """Have a table mirrored."""
        async with self.at(*names, table=table) as version:
            return version.rows

    async def rows(
        self,
        *names: str,
        table: str = "t",
        exporter: asyncpg.Connection | None = None,
        since: dict[str, Any] | None = None,
    ) -> list[Any]:
        async with self.at(*names, table=table, exporter=exporter, since=since) as version:
            return contents(version, *names)


def contents(version: MirrorVersion, *names: str) -> list[Any]:
    """The rows of some columns (all without), by the formula that `as_of_sql` gives."""
    counted: Counter[tuple[Any, ...]] = Counter()
    for file in version.files:
        counted.update(tuple(row[name] for name in names or row) for row in pq.read_table(file).to_pylist())
    for file in version.changes:
        for row in pq.read_table(file).to_pylist():
            xid, weight = row.pop("__pgt_xid"), row.pop("__pgt_w")
            row.pop("__pgt_change_id")
            seen = version.snapshot.sees(xid) - version.base_snapshot.sees(xid)
            counted[tuple(row[name] for name in names or row)] += weight * seen
    assert all(times >= 0 for times in counted.values())
    return sorted(counted.elements(), key=str)


def net_changes(version: MirrorVersion, *names: str) -> dict[tuple[Any, ...], int]:
    """What came and went since the frontier that the version was asked for with."""
    assert version.since is not None
    counted: Counter[tuple[Any, ...]] = Counter()
    for file in version.since_changes:
        for row in pq.read_table(file).to_pylist():
            xid, number = row["__pgt_xid"], row["__pgt_change_id"]
            seen = number <= version.since.change_id if xid == version.since.xid else version.since.snapshot.sees(xid)
            counted[tuple(row[name] for name in names)] += row["__pgt_w"] * (version.snapshot.sees(xid) - seen)
    return {row: times for row, times in counted.items() if times}


@asynccontextmanager
async def open_laboratory(dsn: str, root: Path) -> AsyncIterator[Laboratory]:
    login = conninfo.conninfo_to_dict(dsn)
    options = {"host": login["host"], "port": int(login["port"]), "user": login["user"]}
    options |= {"password": login["password"], "database": login["dbname"]}
    """With a captured table t (id, v, n) of five rows."""
    laboratory = Laboratory(options, root)
    laboratory.connection = await laboratory.connect()
    await install(PooledSession(laboratory.connection))
    await laboratory.run(
        "CREATE TABLE public.t (id int PRIMARY KEY, v text, n numeric(10,2))",
        "INSERT INTO public.t SELECT i, 'v' || i, i / 4.0 FROM generate_series(1, 5) i",
    )
    await laboratory.capture("t", ["id", "v", "n"])
    yield laboratory
    await laboratory.connection.close()
