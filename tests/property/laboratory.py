"""A database in which random queries meet random changes: the engine in this process, PostgreSQL's sessions real."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncpg
from hypothesis import reject

from catalog.install import install
from catalog.session import SqlError
from catalog.values import Action, Initiator
from engine.refresh.executor_choice import NoSpark, Spark
from engine.refresh.record import RefreshOutcome
from engine.requests import requests
from engine.requests.immediate import enter_immediate
from engine.requests.requests import Request
from engine.session.pool import PooledSession
from server.postgres.cluster import EmbeddedPostgres
from tests.property.changes import Step
from tests.property.queries import Query
from tests.property.schemas import Table

T = TypeVar("T")

SESSIONS = 4
EXAMPLES = 50
"""So many examples have the same sessions: a session keeps the plans of functions that have been dropped."""
LOCK_TIMEOUT = "20ms"
EXPECTED = frozenset(
    {
        "23505",  # unique violation
        "23514",  # no partition for this row
        "25001",  # BEGIN of another isolation level within a transaction
        "25P02",  # in a failed transaction
        "25P01",  # no transaction
        "3B001",  # no such savepoint
        "40001",  # serialization failure
        "40P01",  # deadlock
        "55P03",  # lock not available
        "21000",  # ON CONFLICT twice
    }
)
"""What interleaved transactions may run into; the statement has no effect then."""

NOT_MAINTAINED = (
    "a constant in grouping sets that is used elsewhere",
    "grouping sets by two names of one column",
    "subquery in a function in FROM",
    "empty grouping set over an outer column",
    "FULL JOIN over an outer column",
    "COLLATE within an expression of a set operation",
    "RIGHT JOIN over an outer column",
    "operator over a WITH RECURSIVE whose rows depend on the order of others",
    "a query of this complexity",
)
"""What is refused in DIFFERENTIAL mode, as `docs/sql.md` says, and is generated all the same."""


@dataclass(frozen=True, slots=True)
class StreamTable:
    """A stream table of the present example."""

    pgt_id: int
    name: str
    query: Query
    columns: tuple[str, ...]


class Laboratory:
    """Sessions of one database, and the engine driven through them. Session 0 is the scheduler's."""

    def __init__(self, cluster: EmbeddedPostgres, database: str):
        self._runner = asyncio.Runner()
        self._cluster, self.database = cluster, database
        self.connections: list[asyncpg.Connection] = []
        self.stream_tables: list[StreamTable] = []
        self.tables: tuple[Table, ...] = ()
        self.spark: Spark = NoSpark("not here")
        self._examples = 0
        self.do(self._open())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run an example. One that PostgreSQL itself takes too long for is none."""
        try:
            return self._runner.run(work)
        except (SqlError, asyncpg.PostgresError) as error:
            if error.sqlstate == "57014":
                reject()
            raise

    def close(self) -> None:
        self.do(self._close())
        self._runner.close()

    async def _open(self) -> None:
        self.connections = [await self._connect() for _ in range(SESSIONS)]
        await install(self.session(0))

    async def _connect(self) -> asyncpg.Connection:
        return await asyncpg.connect(
            host=str(self._cluster.socket_dir),
            port=self._cluster.port,
            user=self._cluster.user,
            password=self._cluster.password,
            database=self.database,
            statement_cache_size=0,
            server_settings={
                "lock_timeout": LOCK_TIMEOUT,
                "client_min_messages": "error",
                "statement_timeout": "5s",
            },
        )

    async def _close(self) -> None:
        for connection in self.connections:
            await connection.close()

    def session(self, number: int) -> PooledSession:
        return PooledSession(self.connections[number])

    async def use_spark(self) -> None:
        """Have every full refresh computed on Spark that can be."""
        await self.connections[0].execute(f"ALTER DATABASE {self.database} SET pg_trickle.spark_min_rows = 0")
        await self.connections[0].execute("SET pg_trickle.spark_min_rows = 0")

    async def reset(self, tables: Sequence[Table], rows: Sequence[str]) -> None:
        """No stream tables, and these tables with these rows."""
        self._examples += 1
        if self._examples % EXAMPLES == 0:
            await self._close()
        for number, connection in enumerate(self.connections):
            if connection.is_closed():
                self.connections[number] = await self._connect()
            elif connection.is_in_transaction():
                await connection.execute("ROLLBACK")
        owner = self.session(0)
        names = await owner.fetch("SELECT pgt_name FROM pgtrickle.pgt_stream_tables ORDER BY pgt_id DESC")
        for (name,) in names:
            async with owner.transaction("read_committed"):
                await requests.drop(owner, Request(0, "drop", {"name": f"public.{name}"}, "public", "postgres"))
        self.stream_tables = []
        # Autovacuum may have one of them, here and when stream tables are made.
        await self.connections[0].execute("SET lock_timeout = '10s'")
        if tuple(tables) != self.tables:
            for table in self.tables:
                await self.connections[0].execute(f"DROP TABLE {table.name} CASCADE")
            self.tables = tuple(tables)
            for table in tables:
                await self.connections[0].execute(table.ddl)
        else:
            await self.connections[0].execute(f"TRUNCATE {', '.join(table.name for table in tables)}")
        for statement in rows:
            await self.run(0, statement)

    async def run(self, session: int, statement: str) -> bool:
        """Run a statement; False if it ran into what interleaved transactions may run into."""
        try:
            await self.connections[session].execute(statement)
        except asyncpg.PostgresError as error:
            if error.sqlstate not in EXPECTED:
                raise
            return False
        return True

    async def valid(self, query: Query) -> bool:
        """Whether PostgreSQL itself can compute the query."""
        try:
            await self.connections[0].execute(query.text)
        except asyncpg.PostgresError:
            return False
        return True

    async def create(
        self, name: str, query: Query, mode: str = "DIFFERENTIAL", *, refusable: bool = True
    ) -> StreamTable:
        """Create and populate a stream table, as the server does it in two steps.

        An example whose query is refused as documented is none, if it is `refusable`.
        """
        session = self.session(0)
        schedule = "calculated" if mode == "IMMEDIATE" else "1s"
        arguments = {"name": name, "query": query.text, "refresh_mode": mode, "schedule": schedule, "initialize": True}
        async with session.transaction("read_committed"):
            request = Request(0, "create", arguments, "public", "postgres")
            try:
                created = await requests.carry_out(session, request, self.spark, in_two_steps=True)
            except SqlError as error:
                if refusable and error.sqlstate == "0A000" and error.message.startswith(NOT_MAINTAINED):
                    reject()
                raise
        assert created is not None
        async with session.transaction():
            await requests.refresh_now(session, created, Initiator.INITIAL, self.spark)
        if mode == "IMMEDIATE":
            async with session.transaction("read_committed"):
                await enter_immediate(session, created, Initiator.INITIAL, self.spark)
        table = StreamTable(created, name, query, tuple(column for column, _ in query.columns))
        self.stream_tables.append(table)
        await self.check(0, table)
        return table

    async def refresh(self, session: int, table: StreamTable) -> RefreshOutcome | None:
        """Refresh, compare in the same snapshot; None if another session has the stream table, or this one failed."""
        own = self.session(session)
        try:
            if session == 0:
                async with own.transaction():
                    how = requests.Scheduled()
                    context = await how.ready(own, table.pgt_id)
                    outcome = await requests.refresh_scheduled(own, context, Initiator.SCHEDULER, self.spark, how)
                    await self.check(session, table)
                    return outcome
            inside = self.connections[session].is_in_transaction()
            if not inside:
                await self.connections[session].execute("BEGIN")
            outcome = await requests.refresh_now(own, table.pgt_id, Initiator.MANUAL, self.spark)
            await self.check(session, table)
            if not inside:
                await self.connections[session].execute("COMMIT")
            return outcome
        except (SqlError, asyncpg.LockNotAvailableError) as error:
            if session and not inside and self.connections[session].is_in_transaction():
                await self.connections[session].execute("ROLLBACK")
            if error.sqlstate not in EXPECTED:
                raise
            return None

    async def check(self, session: int, table: StreamTable) -> None:
        """The stream table equals its query, as multisets, in the session's snapshot."""
        columns = ", ".join(table.columns)
        found = await self._difference(session, f"SELECT {columns} FROM {table.name}", table.query.text)
        if not found and table.query.exact:
            texts = ", ".join(f"{column}::text" for column in table.columns)
            found = await self._difference(
                session, f"SELECT {texts} FROM {table.name}", f"SELECT {texts} FROM ({table.query.text}) AS q"
            )
        assert found == [], f"{table.name}: {table.query.text}"

    async def _difference(self, session: int, stored: str, query: str) -> list[tuple[Any, ...]]:
        rows = await self.connections[session].fetch(
            f"(SELECT 'missing' AS what, m::text FROM ((SELECT * FROM ({query}) AS q) EXCEPT ALL ({stored})) AS m)"
            f" UNION ALL (SELECT 'extra', e::text FROM (({stored}) EXCEPT ALL (SELECT * FROM ({query}) AS q)) AS e)"
        )
        return [tuple(row) for row in rows]

    async def change(self, steps: Sequence[Step]) -> None:
        """Run a script; after each statement each stream table is what its query gives the session."""
        await self.connections[0].execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
        commits = [Step(number, "COMMIT") for number in range(SESSIONS)]
        for step in [*steps, *commits]:
            connection = self.connections[step.session]
            if step.refresh is not None or (step.statement.startswith("TRUNCATE") and connection.is_in_transaction()):
                continue  # its lock would keep everybody else out
            if step.statement == "COMMIT" and not connection.is_in_transaction():
                continue
            if not await self.run(step.session, step.statement) and connection.is_in_transaction():
                await self.run(step.session, "ROLLBACK")
            for table in self.stream_tables:
                await self.check(step.session, table)

    async def play(self, steps: Sequence[Step]) -> None:
        """Run a script; at its end everything is committed, refreshed in order, and then up to date."""
        truncated = False
        await self.connections[0].execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
        for step in steps:
            if step.refresh is not None:
                outcome = await self.refresh(step.session, self.stream_tables[step.refresh % len(self.stream_tables)])
                if outcome is not None and not truncated:
                    assert outcome.action in (Action.NO_DATA, Action.DIFFERENTIAL)
            elif step.statement.startswith("TRUNCATE") and self.connections[step.session].is_in_transaction():
                continue  # its lock would keep everybody else out
            else:
                truncated = truncated or step.statement.startswith("TRUNCATE")
                await self.run(step.session, step.statement)
        for connection in self.connections:
            if connection.is_in_transaction():
                await connection.execute("COMMIT")
        await self.connections[0].execute("SET lock_timeout = '10s'")
        for table in self.stream_tables:
            await self.refresh(0, table)
        for table in self.stream_tables:
            outcome = await self.refresh(0, table)
            assert outcome is None or outcome.action is Action.NO_DATA, "refreshed without changes"
            await self.check(0, table)
