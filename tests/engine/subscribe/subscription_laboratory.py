"""A database with the catalog, a hub and a maintenance of captures in this process.

Its subscribers are sessions of PostgreSQL's own.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import asyncpg
import pytest

from catalog.install import install
from catalog.session import SqlError
from engine.capture.maintenance import CaptureMaintenance
from engine.session.pool import DatabasePool, PooledSession
from engine.subscribe import AsOf, Batch, Envelope, EnvelopeKind, Output, RowOutput, Subscribe
from engine.subscribe.feed import LiveFeed
from engine.subscribe.hub import Hub
from server.postgres.cluster import EmbeddedPostgres

T = TypeVar("T")

PATIENCE = 90.0
"""Seconds after which what has not come does not come."""

Row = tuple[str | None, ...]


@dataclass
class Subscriber:
    """A client that has everything in text. Rows are as the protocol has them, the timestamp first."""

    feed: LiveFeed
    names: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)

    async def take(self, wait: float = PATIENCE) -> list[Row] | None:
        """The rows of the next batch; None at the end."""
        batch = await self.feed.next(wait)
        if batch is None:
            return None
        rows = decoded(batch)
        self.rows += rows
        return rows

    async def until(self, count: int) -> list[Row]:
        """The rows without their timestamps, once there are so many."""
        while len(self.rows) < count:
            if await self.take() is None:
                break
        return [row[1:] for row in self.rows]

    async def at_end(self) -> list[Row]:
        """The rows without their timestamps, once it has ended."""
        while await self.take() is not None:
            pass
        return [row[1:] for row in self.rows]

    async def quiet(self) -> list[Row]:
        """The rows without their timestamps, which are to be all there are in the queue."""
        while True:
            try:
                if await self.take(0) is None:
                    break
            except TimeoutError:
                break
        return [row[1:] for row in self.rows]

    def folded(self) -> Counter[Row]:
        """The relation that the updates sum up to."""
        total: Counter[Row] = Counter()
        for row in self.rows:
            total[row[2:]] += int(row[1] or 0)
        assert all(count >= 0 for count in total.values()), total
        return +total


def decoded(batch: Batch) -> list[Row]:
    """The DataRow messages of a batch."""
    data, position, rows = batch.messages, 0, []
    while position < len(data):
        assert data[position : position + 1] == b"D"
        end = position + 1 + int.from_bytes(data[position + 1 : position + 5], "big")
        count = int.from_bytes(data[position + 5 : position + 7], "big")
        position += 7
        values: list[str | None] = []
        for _ in range(count):
            length = int.from_bytes(data[position : position + 4], "big", signed=True)
            position += 4
            values.append(None if length < 0 else data[position : position + length].decode())
            position += max(length, 0)
        assert position == end
        rows.append(tuple(values))
    assert len(rows) == batch.rows
    return rows


class Subscriptions:
    """Everything in one place, driven from tests that are not asynchronous."""

    def __init__(self, cluster: EmbeddedPostgres, database: str):
        self.arguments: dict[str, Any] = {
            "host": str(cluster.socket_dir),
            "port": cluster.port,
            "user": cluster.user,
            "password": cluster.password,
        }
        self.database = database
        self._runner = asyncio.Runner()
        self.do(self._open())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(3 * PATIENCE):
                return await work

        return self._runner.run(bounded())

    def close(self) -> None:
        self.do(self._close())
        self._runner.close()

    async def _open(self) -> None:
        self.pool = DatabasePool(self.database, lambda _: self.arguments)
        async with self.pool.session() as session:
            await install(session)
        self.hub = self.another_hub()
        self._keeper = asyncio.create_task(CaptureMaintenance(self.pool).worker.run())
        self.admin = await self.connect()
        self.client = await self.connect()

    async def _close(self) -> None:
        await self.hub.close()
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        await self.admin.close()
        await self.client.close()
        await self.pool.close()

    def another_hub(self) -> Hub:
        """As in another server process."""
        return Hub(self.pool)

    async def connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(**self.arguments, database=self.database, statement_cache_size=0)

    async def run(self, *statements: str) -> None:
        """Run statements as a client that does through the server, which tells the hub."""
        for statement in statements:
            await self.admin.execute(statement)
        self.hub.committed()

    async def subscribe(
        self,
        query: str,
        *,
        keys: tuple[str, ...] = (),
        before: bool = False,
        order_by: str | None = None,
        snapshot: bool = True,
        progress: bool = False,
        as_of: AsOf | None = None,
        up_to: str | None = None,
        output: Output | None = None,
        role: str | None = None,
        hub: Hub | None = None,
        **settings: str,
    ) -> Subscriber:
        kind = EnvelopeKind.NONE if not keys else EnvelopeKind.DEBEZIUM if before else EnvelopeKind.UPSERT
        asked = Subscribe(
            query,
            Envelope(kind, keys),
            order_by,
            snapshot,
            progress,
            as_of,
            up_to,
            {"search_path": "public"} | settings,
        )
        session, hub = PooledSession(self.client), hub or self.hub
        async with self.client.transaction():
            if role is not None:
                await self.client.execute(f"SET LOCAL ROLE {role}")
            prepared = await hub.prepare(session, asked)
            feed = await hub.open(session, prepared, output or RowOutput())
        return Subscriber(feed, tuple(column.name for column in prepared.columns))

    async def value(self, query: str) -> Any:
        return await self.admin.fetchval(query)

    async def becomes(self, query: str, expected: Any) -> None:
        """Wait until a query has a value."""
        deadline = asyncio.get_running_loop().time() + PATIENCE
        while (found := await self.value(query)) != expected:
            assert asyncio.get_running_loop().time() < deadline, f"{found!r} instead of {expected!r}: {query}"
            await asyncio.sleep(0.02)


async def ended(s: Subscriber) -> SqlError:
    """The error that a subscription ends with."""
    with pytest.raises(SqlError) as found:
        while await s.take() is not None:
            pass
    await s.feed.close()
    return found.value
