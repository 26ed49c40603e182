"""Sources: tables that gain a row per tick while a server runs (CREATE SOURCE … FROM LOAD GENERATOR COUNTER).

All state stands in `pgtrickle.pgt_load_generators`, and changes in the transaction of the tick: killing a server at any
moment repeats no value and leaves none out. Of all servers one ticks, elected (`leader_election`); a database without
sources has no connection for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import asyncpg
import structlog

from catalog.session import RequestSession, SqlError, SqlSession
from engine.session.backoff import Backoff
from engine.session.leader_election import Candidate, beat
from engine.session.pool import PooledSession
from engine.session.transactions import local_setting, set_role
from sql.base.text import quote
from sql.statements.source_and_history import CreateSource, DropSource

logger = structlog.get_logger(__name__)

LOOK_INTERVAL = 1.0
"""Seconds between two looks for sources that came or went."""

LOCK_TIMEOUT = "500ms"
"""Whoever holds a source's table locked must not hold up the others."""

TICK_SECONDS = 5.0
"""So long a tick may take: a table's triggers are its owner's."""

_FAIL = "SELECT pgtrickle._fail_tick($1::bigint::oid, $2::text)::text"


async def create_source(session: RequestSession, statement: CreateSource, search_path: str) -> str | None:
    """Create the table, with the rights of the session's user, and register it; returns its name, quoted.

    None if it is there and the statement says IF NOT EXISTS. Raises SqlError, what CREATE TABLE raises.
    """
    schema = await _schema(session, statement.name, search_path)
    table = quote(schema, statement.name[-1])
    if statement.guarded:
        ((present,),) = await session.fetch("SELECT pg_catalog.to_regclass($1::text) IS NOT NULL", table)
        if present:
            await _notice(session, f'relation "{statement.name[-1]}" already exists, skipping')
            return None
    await session.execute(f"CREATE TABLE {table} (counter pg_catalog.int8 NOT NULL)")
    await session.fetch(
        "SELECT pgtrickle._register_source(pg_catalog.to_regclass($1::text)::oid, $2::text)::text",
        table,
        statement.tick_interval,
    )
    return table


async def drop_source(session: RequestSession, statement: DropSource, search_path: str) -> None:
    """Drop a source's table, with the rights of the session's user. Raises SqlError, what DROP TABLE raises."""
    written = ".".join(statement.name)
    found = await find_relation(session, statement.name, search_path)
    if found is None:
        if not statement.guarded:
            raise SqlError("42P01", f'source "{written}" does not exist')
        await _notice(session, f'source "{written}" does not exist, skipping')
        return
    ((is_source,),) = await session.fetch("SELECT pgtrickle._is_source($1::bigint::oid)", found)
    if not is_source:
        raise SqlError("42809", f'"{written}" is not a source')
    await session.fetch("SELECT pgtrickle._drop_table($1::bigint::oid, $2::boolean)::text", found, statement.cascade)


async def find_relation(session: SqlSession, name: tuple[str, ...], search_path: str) -> int | None:
    """The OID of the relation that a name means along a search_path."""
    written = quote(*name)
    async with local_setting(session, "search_path", search_path):
        ((relid,),) = await session.fetch(
            "SELECT pg_catalog.to_regclass($1::pg_catalog.text)::pg_catalog.oid::pg_catalog.int8", written
        )
    return None if relid is None else int(relid)


async def _schema(session: SqlSession, name: tuple[str, ...], search_path: str) -> str:
    """The schema in which something of this name is created. Raises SqlError 3F000."""
    if len(name) == 2:
        return name[0]
    async with local_setting(session, "search_path", search_path):
        ((schema,),) = await session.fetch("SELECT pg_catalog.current_schema()::pg_catalog.text")
    if schema is None:
        raise SqlError("3F000", "no schema has been selected to create in")
    return str(schema)


async def _notice(session: SqlSession, text: str) -> None:
    await session.fetch("SELECT pgtrickle._notice('NOTICE', $1::text, NULL)::text", text)


@dataclass(slots=True)
class SourceClock(Candidate):
    """Ticks the sources of one database while it is elected."""

    title = "clock of sources"
    lease = "sources"

    committed: Callable[[], None] = lambda: None
    """To be called when rows have been added."""
    clock: Callable[[], float] = time.monotonic
    _due: dict[int, float] = field(default_factory=dict)
    _troubles: Backoff = field(default_factory=Backoff)

    def noticed(self) -> None:
        """A transaction that changed data has committed; it may have created a source that is expected."""
        if self.expected:
            self._woken.set()

    async def _has_work(self, session: SqlSession) -> bool:
        return bool(await _live(session))

    async def _work(self, connection: asyncpg.Connection) -> None:
        """Tick until the last source is gone."""
        session = PooledSession(connection)
        self._due.clear()
        self._troubles.clear()
        look, intervals = self.clock(), dict[int, float]()
        while True:
            if self._woken.is_set() or self.clock() >= look:
                self._woken.clear()
                intervals = await _live(session)
                if not intervals:
                    return
                self._due = {source: self._due.get(source, self.clock()) for source in intervals}
                self._troubles.keep(map(str, intervals))
                look = self.clock() + LOOK_INTERVAL
            for source, interval in intervals.items():
                await self._tick_if_due(source, interval)
                await beat(session)
            await self._woken.within(max(min(look, *self._due.values()) - self.clock(), 0))

    async def _tick_if_due(self, source: int, interval: float) -> None:
        """Tick a source as often as it is due, in one transaction, in a session where nothing of ours can be changed.

        Raises SqlError where the connection is lost.
        """
        now = self.clock()
        if now < self._due[source]:
            return
        ticks = int((now - self._due[source]) / interval) + 1
        if not self._troubles.waits(str(source), now):
            async with self.pool.session() as session:
                try:
                    async with self.pool.at_most(session, TICK_SECONDS), session.transaction("read_committed"):
                        await session.execute(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}'")
                        await tick(session, source, ticks)
                except SqlError as error:
                    if error.is_of_connection:
                        raise
                    self._troubles.note(str(source), now)
                    logger.warning("source not ticked", source=source, sqlstate=error.sqlstate, error=error.message)
                    async with self.pool.session() as other:
                        await other.fetch(_FAIL, source, error.message)
                else:
                    self._troubles.over(str(source))
                    self.committed()
        self._due[source] += ticks * interval


async def tick(session: SqlSession, source: int, ticks: int) -> None:
    """Add rows to a source, with the rights of its table's owner. Raises SqlError."""
    rows = await session.fetch("SELECT * FROM pgtrickle._begin_tick($1::bigint::oid, $2::bigint)", source, ticks)
    for owner, statement, parameters in rows:
        async with set_role(session, owner):
            await session.fetch("SELECT pgtrickle._run($1::text, $2::text::jsonb)::text", statement, parameters)


async def _live(session: SqlSession) -> dict[int, float]:
    """The sources, each with its tick interval in seconds."""
    rows = await session.fetch("SELECT source, seconds FROM pgtrickle._live_sources()")
    return {int(source): float(seconds) for source, seconds in rows}
