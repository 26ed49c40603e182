"""The laboratory with a hub of subscriptions, and what PostgreSQL itself says at each of its ticks."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from decimal import Decimal, InvalidOperation
from typing import Any

from hypothesis import assume, reject

from catalog.session import SqlError
from engine.session.pool import DatabasePool, PooledSession
from engine.session.transactions import savepoint
from engine.subscribe import Envelope, EnvelopeKind, RowOutput, Subscribe
from engine.subscribe.feed import LiveFeed
from engine.subscribe.groups import Tick
from engine.subscribe.hub import Hub
from engine.subscribe.ticker import Ticker
from server.postgres.cluster import EmbeddedPostgres
from tests.engine.subscribe.subscription_laboratory import PATIENCE, Row, decoded
from tests.property.changes import Step
from tests.property.laboratory import LOCK_TIMEOUT, NOT_MAINTAINED, Laboratory
from tests.property.queries import Query

NOT_FOLLOWED = "WITH RECURSIVE whose rows depend on the order of others"
"""What stream tables compute as a whole at each refresh, which subscriptions have no other mode for."""

DATA_ERRORS = ("21", "22")
"""Classes of errors that rows can lead to which came and went."""

_HOLD = """
SELECT pgtrickle._hold_sources(
    array_remove(ARRAY(SELECT to_regclass('public.' || name)::oid FROM unnest($1::text[]) AS name), NULL))
"""


class Witness(Ticker):
    """Asks, at each tick and in its snapshot, for the rows of a query."""

    __slots__ = ("query", "reads", "seen", "session")
    query: str
    reads: list[str]
    """The tables that it reads, and names of its own."""
    seen: dict[int, Counter[Row]]
    session: PooledSession

    async def _take(self, session: PooledSession, target: int | None) -> Tick:
        self.session = session
        return await Ticker._take(self, session, target)

    async def _evaluated(self, tick: Tick, live: set[int]) -> set[int]:
        behind = await Ticker._evaluated(self, tick, live)
        if self.query and not behind:
            await self._ask(self.session, tick.timestamp)
        return behind

    async def _ask(self, session: PooledSession, timestamp: int) -> None:
        try:
            async with savepoint(session):
                # TRUNCATE, committed after the snapshot was taken, leaves nothing for it to see.
                ((held,),) = await session.fetch(_HOLD, self.reads)
                if not held:
                    return
                await session.execute("SET LOCAL search_path = public")
                rows = await session.fetch(self.query)
                await session.execute("SET LOCAL search_path = pg_catalog, pg_temp")
        except SqlError as error:
            if not error.sqlstate.startswith(DATA_ERRORS):
                raise
        else:
            self.seen[timestamp] = Counter(tuple(json.loads(text)) for (text,) in rows)


class Following:
    """Follows random queries in a laboratory's database."""

    def __init__(self, laboratory: Laboratory, cluster: EmbeddedPostgres):
        self.laboratory = laboratory
        arguments: dict[str, Any] = {
            "host": str(cluster.socket_dir),
            "port": cluster.port,
            "user": cluster.user,
            "password": cluster.password,
        }
        self.pool = DatabasePool(laboratory.database, lambda _: arguments)
        self.hub = Hub(self.pool)
        self.witness = Witness(self.pool, self.hub._sessions)
        self.witness.query, self.witness.reads, self.witness.seen = "", [], {}
        self.hub._ticker = self.witness

    async def close(self) -> None:
        await self.hub.close()
        await self.pool.close()

    async def follow(self, query: Query, steps: list[Step], key: str | None, *, before: bool) -> None:
        """Follow a query while a script runs; the laboratory has its tables."""
        laboratory, witness = self.laboratory, self.witness
        if not await laboratory.valid(query):
            assume(False)
        kind = EnvelopeKind.NONE if key is None else EnvelopeKind.DEBEZIUM if before else EnvelopeKind.UPSERT
        asked = Subscribe(query.text, Envelope(kind, (key,) if key else ()), settings={"search_path": "public"})
        session = laboratory.session(1)
        try:
            prepared = await self.hub.prepare(session, asked)
        except SqlError as error:
            if error.sqlstate == "0A000" and error.message.startswith((*NOT_MAINTAINED, NOT_FOLLOWED)):
                reject()
            raise
        values = ", ".join(
            f"CASE WHEN q.{name} IS NOT NULL THEN pg_catalog.format('%s', q.{name}) END" for name, _ in query.columns
        )
        witness.seen = {}
        witness.reads = sorted(query.reads)
        witness.query = f"SELECT pg_catalog.json_build_array({values})::text FROM ({query.text}) AS q"
        feeds = [await self.hub.open(session, prepared, RowOutput())]
        started = max(witness.seen)
        try:
            await laboratory.connections[0].execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
            for step in steps:
                if step.statement.startswith("TRUNCATE") and laboratory.connections[step.session].is_in_transaction():
                    continue  # its lock would keep everybody else out
                await laboratory.run(step.session, step.statement)
                self.hub.committed()
            for connection in laboratory.connections:
                if connection.is_in_transaction():
                    await connection.execute("COMMIT")
            # Who joins has a tick made, at which everybody is given what has been committed.
            feeds.append(await self.hub.open(session, prepared, RowOutput()))
            self._compare(query, key, before, started, *[await _taken(feed) for feed in feeds])
        finally:
            witness.query = ""
            for feed in feeds:
                await feed.close()

    def _compare(
        self, query: Query, key: str | None, before: bool, started: int, followed: list[Row], joined: list[Row]
    ) -> None:
        names = [name for name, _ in query.columns]
        at = 0
        relation = _Relation() if key is None else _Keys(before)
        for timestamp in sorted(self.witness.seen):
            while at < len(followed) and int(followed[at][0] or 0) <= timestamp:
                relation.apply(followed[at][1:])
                at += 1
            if timestamp >= started:
                expected = self.witness.seen[timestamp]
                found = relation.rows(exact=query.exact)
                wanted = relation.expected(expected, names, key, exact=query.exact)
                assert found == wanted, (timestamp, found, wanted, query.text)
        if at == len(followed):
            fresh = _Relation() if key is None else _Keys(before)
            for row in joined:
                fresh.apply(row[1:])
            assert fresh.rows(exact=query.exact) == relation.rows(exact=query.exact), query.text


async def _taken(feed: LiveFeed) -> list[Row]:
    """What is in a feed, once its snapshot is."""
    rows: list[Row] = []
    async with asyncio.timeout(PATIENCE):
        while feed._held is not None and not feed.over:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    while True:
        try:
            batch = await feed.next(0)
        except TimeoutError:
            return rows
        except SqlError as error:
            if not error.sqlstate.startswith(DATA_ERRORS):
                raise
            reject()
        if batch is None:  # nothing that the query reads can change
            return rows
        rows += decoded(batch)


def _plain(row: Row, *, exact: bool) -> tuple[object, ...]:
    """A row; where equal values can look different, its values as numbers."""
    return row if exact else tuple(_number(value) for value in row)


def _number(value: str | None) -> object:
    try:
        number = Decimal(value or "")
    except InvalidOperation:
        return value
    return str(number) if number.is_nan() else number.normalize() + 0


class _Relation:
    """Sums up updates without an envelope."""

    def __init__(self) -> None:
        self._rows: Counter[Row] = Counter()

    def apply(self, row: Row) -> None:
        diff, *values = row
        assert diff not in (None, "0")
        self._rows[tuple(values)] += int(diff or 0)

    def rows(self, *, exact: bool) -> object:
        assert all(count >= 0 for count in self._rows.values()), self._rows
        total: Counter[tuple[object, ...]] = Counter()
        for row, count in self._rows.items():
            total[_plain(row, exact=exact)] += count
        return +total

    def expected(self, found: Counter[Row], names: list[str], key: str | None, *, exact: bool) -> object:
        total: Counter[tuple[object, ...]] = Counter()
        for row, count in found.items():
            total[_plain(row, exact=exact)] += count
        return total


class _Keys(_Relation):
    """Applies updates within an envelope: by each key its values, or that it has several rows."""

    def __init__(self, before: bool) -> None:
        self._before = before
        self._keys: dict[str | None, Row | None] = {}

    def apply(self, row: Row) -> None:
        state, key, *values = row
        if self._before:
            half = len(values) // 2
            old, values = tuple(values[:half]), values[half:]
            known = self._keys.get(key)
            if state == "insert":
                assert key not in self._keys and old == (None,) * half
            elif state == "upsert" or (state == "delete" and known is not None):
                assert key in self._keys and old == (known or (None,) * half)
        if state == "delete":
            assert values == [None] * len(values)
            self._keys.pop(key)
        elif state == "key_violation":
            self._keys[key] = None
        else:
            assert state in ("upsert", "insert")
            self._keys[key] = tuple(values)

    def rows(self, *, exact: bool) -> object:
        return {key: None if row is None else _plain(row, exact=exact) for key, row in self._keys.items()}

    def expected(self, found: Counter[Row], names: list[str], key: str | None, *, exact: bool) -> object:
        assert key is not None
        place = names.index(key)
        by_key: dict[str | None, list[Row]] = defaultdict(list)
        for row in found.elements():
            by_key[row[place]].append(row[:place] + row[place + 1 :])
        return {k: None if len(rows) > 1 else _plain(rows[0], exact=exact) for k, rows in by_key.items()}
