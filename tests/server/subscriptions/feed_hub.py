"""A subscription hub for the tests of the server's part: its feeds give what the test pushes into them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import psycopg

from catalog.session import SqlError, SqlSession
from engine.subscribe import Batch, CopyOutput, Described, EnvelopeKind, Output, PassOn, RowOutput, Subscribe
from server.protocol import messages as m
from tests.server.subscriptions.table_engine import TableEngine

Row = Sequence[object]


class PushedFeed:
    """Rows arrive by `put`, in the event loop's thread."""

    def __init__(self, columns: Sequence[Described], output: Output, dsn: str):
        self.columns, self.output = columns, output
        self.closed = threading.Event()
        self._dsn = dsn
        self.waiting: deque[Batch | SqlError | None] = deque()
        self._news = asyncio.Event()
        self._pass_on: PassOn | None = None
        self._first = True

    def put(self, item: Batch | SqlError | None) -> None:
        if isinstance(item, Batch) and self._pass_on is not None and not self.waiting and self._pass_on(item):
            return
        self.waiting.append(item)
        self._news.set()

    async def next(self, wait: float | None = None, pass_on: PassOn | None = None) -> Batch | None:
        self._pass_on = pass_on
        try:
            async with asyncio.timeout(wait):
                while not self.waiting:
                    if wait == 0:
                        raise TimeoutError
                    self._news.clear()
                    await self._news.wait()
        finally:
            self._pass_on = None
        item = self.waiting.popleft()
        if isinstance(item, SqlError):
            raise item
        return item

    async def close(self) -> None:
        self.closed.set()

    def batch(self, rows: Sequence[Row]) -> Batch:
        """Rows of one timestamp, which is their first column, as PostgreSQL writes them."""
        with psycopg.connect(self._dsn) as connection:
            names = ", ".join(f"%s::{t}" for t in self._types(connection))
            write = self._copied if isinstance(self.output, CopyOutput) else self._row
            made = b"".join(write(connection, names, row) for row in rows)
        return Batch(int(str(rows[0][0])), made, len(rows))

    def _types(self, connection: psycopg.Connection[Any]) -> list[str]:
        oids = [column.oid for column in self.columns]
        found = connection.execute("SELECT format_type(t, -1) FROM unnest(%s::oid[]) t", (oids,))
        return [name for (name,) in found]

    def _row(self, connection: psycopg.Connection[Any], names: str, row: Any) -> bytes:
        assert isinstance(self.output, RowOutput)
        formats = [*self.output.formats] or [0]
        formats = formats * len(self.columns) if len(formats) == 1 else formats
        values = []
        for binary in (False, True):
            result = connection.cursor(binary=binary).execute(f"SELECT {names}", [_text(v) for v in row]).pgresult
            assert result is not None
            values.append([result.get_value(0, n) for n in range(len(row))])
        parts = [m.INT16.pack(len(row))]
        for n, code in enumerate(formats):
            value = values[code][n]
            parts.append(b"\xff\xff\xff\xff" if value is None else m.INT32.pack(len(value)) + value)
        return m.message(m.DATA_ROW, b"".join(parts))

    def _copied(self, connection: psycopg.Connection[Any], names: str, row: Any) -> bytes:
        assert isinstance(self.output, CopyOutput)
        options = self.output.options if self._first else self.output.options.replace("HEADER", "HEADER false")
        heads = " , ".join(f'"{column.name}"' for column in self.columns)
        command = f"COPY (SELECT * FROM (VALUES ({names})) v({heads})) TO STDOUT ({options})"
        with connection.cursor().copy(command, [_text(v) for v in row]) as copy:  # type: ignore[arg-type]
            blocks = [bytes(block) for block in copy]
        if self.output.binary:
            data = b"".join(blocks)
            blocks = [data[0 if self._first else 19 : -2]]
        self._first = False
        return b"".join(m.message(m.COPY_DATA, block) for block in blocks)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


class PreparedFeed:
    def __init__(self, asked: Subscribe, columns: tuple[Described, ...]):
        self.asked, self.columns = asked, columns


class FeedHub:
    """Remembers what was asked, and hands out feeds."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.asked: list[Subscribe] = []
        self.feeds: list[PushedFeed] = []
        self.loop: asyncio.AbstractEventLoop | None = None
        self.refusal: SqlError | None = None
        self.holding: threading.Event | None = None
        """Where it is set no subscription starts."""
        self._scripts: deque[tuple[Sequence[Row] | None, ...]] = deque()

    async def prepare(self, session: SqlSession, asked: Subscribe) -> PreparedFeed:
        self.loop = asyncio.get_running_loop()
        assert await session.fetch("SELECT pg_catalog.current_setting('search_path')") == [("pg_catalog, pg_temp",)]
        self.asked.append(asked)
        if self.refusal is not None:
            raise self.refusal
        if self.holding is not None:
            await asyncio.Event().wait()
        return PreparedFeed(asked, await asyncio.to_thread(self._columns, asked))

    def _columns(self, asked: Subscribe) -> tuple[Described, ...]:
        with psycopg.connect(self.dsn) as connection:
            connection.execute("SELECT set_config('search_path', %s, false)", (asked.settings["search_path"],))
            found = connection.execute(f"SELECT * FROM ({asked.query}) q LIMIT 0").description or []
            described = {c.name: Described(c.name, c.type_code, c.internal_size or -1, -1) for c in found}
        head = [Described("mz_timestamp", 1700, -1, -1)]
        head += [Described("mz_progressed", 16, 1, -1)] if asked.progress else []
        if asked.envelope.kind is EnvelopeKind.NONE:
            return (*head, Described("mz_diff", 20, 8, -1), *described.values())
        keys = [described.pop(key) for key in asked.envelope.keys]
        values = list(described.values())
        if asked.envelope.kind is EnvelopeKind.DEBEZIUM:
            values = [Described(p + c.name, c.oid, c.typlen, -1) for p in ("before_", "after_") for c in values]
        return (*head, Described("mz_state", 25, -1, -1), *keys, *values)

    async def open(self, session: SqlSession, prepared: Any, output: Output) -> PushedFeed:
        feed = PushedFeed(prepared.columns, output, self.dsn)
        self.feeds.append(feed)
        for rows in self._scripts.popleft() if self._scripts else ():
            feed.put(None if rows is None else await asyncio.to_thread(feed.batch, rows))
        return feed

    # -- for the test ------------------------------------------------------------------------------------------------

    def feed(self, number: int = 0) -> PushedFeed:
        """The feed of that number, once it is there."""
        deadline = time.monotonic() + 60
        while len(self.feeds) <= number:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        return self.feeds[number]

    def later(self, *batches: Sequence[Row] | None) -> None:
        """What the next feed that has no other gives as soon as it is there; None for its end."""
        self._scripts.append(batches)

    def push(self, *rows: Row, number: int = 0) -> None:
        """Let a batch of rows come."""
        feed = self.feed(number)
        self.put(feed, feed.batch(rows))

    def end(self, error: SqlError | None = None, number: int = 0) -> None:
        """Let a feed end."""
        self.put(self.feed(number), error)

    def put(self, feed: PushedFeed, item: Batch | SqlError | None) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(feed.put, item)


class FeedEngine(TableEngine):
    """An engine whose subscriptions are the test's."""

    def __init__(self, dsn: str) -> None:
        super().__init__()
        self.hub = FeedHub(dsn)

    async def subscriptions(self, database: str) -> FeedHub:
        return self.hub
