"""What a database's registers need besides their own triggers: pending rows merged, partitions made ahead of time.

Any number of server processes may take part; one of them is elected (`leader_election`). A register's work is done with
the rights of its owner, in a way that code of the owner's cannot leave, in one transaction for each register, so that
killing the engine at any moment loses nothing, and what somebody has locked holds up nobody else.

The server has connections of its own for this only in a database that has registers in high-write mode; for the others
it comes once in `pg_accumulator.maintenance_interval`.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import structlog

from catalog.install import quoted, schema_of
from catalog.session import SqlError, SqlSession
from catalog.systems import REGISTERS
from engine.session.backoff import Backoff
from engine.session.leader_election import BEAT_SECONDS, DISCOVERY_SECONDS, Candidate, beat
from engine.session.pool import SERVER, PooledSession
from engine.session.roles import run_as_owner
from sql.base.text import quote as identifier

logger = structlog.get_logger(__name__)

LEASE = "register maintenance"
"""What the server holds whose workers are elected; `_maintenance_status()` looks for it."""

WORKER = "pg_accumulator maintenance"
"""What a worker's session is called, followed by its number, by what it does, and by which server it is of."""

LOCK_TIMEOUT = "2s"
"""A worker gives up what somebody holds locked for longer, and comes back to it."""

STATEMENT_SECONDS = 900
"""An owner's trigger may wait for ever; a register's turn that takes longer is given up."""

ACTIVE_SECONDS = 10.0
"""For so long after the last row a register's buffer is looked at in each cycle: transactions may be open yet."""

LOOK_SECONDS = 60.0
"""Between two looks at a buffer into which nothing seems to have been written. Reads are right all the same."""

VACUUM_ROWS = 10_000
"""After so many merged rows a buffer is vacuumed. Autovacuum comes too rarely: reads go through what is dead, too."""

_SETTINGS = "SELECT name, setting, problem FROM {schema}._config"
_REGISTERS = "SELECT register, owner, high_write, written FROM accum_internal._maintained()"
_DUE = (
    "SELECT workers, merges, partitions_in, accum_internal._setting('delta_merge_interval') / 1000.0::pg_catalog.float8"
    " FROM accum_internal._maintenance_due()"
)
_DELTAS = (
    "SELECT accum_internal._maintain_deltas("
    "$1->>'register', ($1->>'delay')::pg_catalog.int4, ($1->>'batch')::pg_catalog.int4)"
)
_PARTITIONS = (
    "SELECT pg_catalog.jsonb_build_object('made', "
    "accum_internal._maintain_partitions($1->>'register', ($1->>'ahead')::pg_catalog.int4))"
)
_SET_TITLE = "SELECT pg_catalog.set_config('application_name', $1::pg_catalog.text, false)"
_NOTE = (
    "SELECT accum_internal._note_maintenance('partitions', $1::pg_catalog.text::pg_catalog.timestamptz)"
    "::pg_catalog.text"
)


def _title(number: int, task: str = "delta merge") -> str:
    return f"{WORKER} {number}: {task}: {SERVER}"


def _worker(number: int) -> dict[str, str]:
    """The settings of a worker's session."""
    return {
        "application_name": _title(number),
        "lock_timeout": LOCK_TIMEOUT,
        "statement_timeout": f"{STATEMENT_SECONDS}s",
    }


@dataclass(frozen=True, slots=True)
class Register:
    """A register as a worker sees it."""

    name: str
    owner: str
    high_write: bool
    position: int | None
    """How far its buffer has been written, also by transactions that are open or were rolled back."""


@dataclass(slots=True)
class _Buffer:
    """What is remembered of a register's buffer; it may be forgotten at any time."""

    position: int | None = None
    moved: float = -math.inf
    looked: float = -math.inf
    rest: bool = True
    """Whether rows were left in it."""
    full: bool = False
    """Whether there was more than one batch."""
    merged: int = 0
    """Rows since it was last vacuumed."""

    def is_due(self, position: int | None, now: float) -> bool:
        """Whether it is worth a look."""
        if position != self.position:
            self.position, self.moved = position, now
        return self.rest or now < self.moved + ACTIVE_SECONDS or now >= self.looked + LOOK_SECONDS


@dataclass(slots=True)
class RegisterMaintenance(Candidate):
    """Merges and makes partitions for the registers of one database while it is elected."""

    title = "register maintenance"
    lease = LEASE
    settings = _worker(0)

    clock: Callable[[], float] = time.monotonic
    _schema: str = ""
    _partitions_due: bool = False
    _merge_interval: float = 0.0
    _look_planned: asyncio.TimerHandle | None = None
    _settings: dict[str, int] = field(default_factory=dict)
    _problems: dict[str, str] = field(default_factory=dict)
    _buffers: dict[str, _Buffer] = field(default_factory=dict)
    _troubles: Backoff = field(default_factory=Backoff)

    def made(self) -> None:
        """A session that makes registers has ended a transaction; it may have made the first in high-write mode.

        There is one look for all that end within the time between two merges.
        """
        if not self.leading and self._look_planned is None:
            self._look_planned = asyncio.get_running_loop().call_later(self._merge_interval, self._look)

    def _look(self) -> None:
        self._look_planned = None
        self._woken.set()

    async def _has_work(self, session: SqlSession) -> bool:
        schema = await schema_of(session, REGISTERS)
        if schema is None:
            self._look_within = DISCOVERY_SECONDS
            return False
        self._schema = quoted(schema)
        ((workers, merges, partitions_in, self._merge_interval),) = await session.fetch(self._of_schema(_DUE))
        self._partitions_due = partitions_in is not None and partitions_in <= 0
        self._look_within = DISCOVERY_SECONDS if partitions_in is None else partitions_in
        return bool(workers) and (bool(merges) or self._partitions_due)

    def _of_schema(self, statement: str) -> str:
        return statement.replace("{schema}", self._schema)

    async def _work(self, connection: asyncpg.Connection) -> None:
        """Cycle after cycle, until there are no more registers in high-write mode."""
        self._buffers.clear()
        async with AsyncExitStack() as opened:
            workers = [PooledSession(connection)]
            while True:
                session = workers[0]
                if not await self._has_work(session):
                    return
                await self._read_settings(session)
                registers = [Register(*row) for row in await session.fetch(self._of_schema(_REGISTERS))]
                for number in range(len(workers), self._settings["background_workers"]):
                    extra = await self.pool.connect(_worker(number))
                    opened.callback(extra.terminate)
                    workers.append(PooledSession(extra))
                if self._partitions_due:
                    await self._make_partitions(session, registers)
                if not any(register.high_write for register in registers):
                    return
                await self._merge(workers[: self._settings["background_workers"]], registers)
                if not any(buffer.full for buffer in self._buffers.values()):
                    await self._rest(session, self._settings["delta_merge_interval"] / 1000)

    async def _rest(self, session: SqlSession, seconds: float) -> None:
        while seconds > BEAT_SECONDS:
            await asyncio.sleep(BEAT_SECONDS)
            await beat(session)
            seconds -= BEAT_SECONDS
        await asyncio.sleep(seconds)

    async def _read_settings(self, session: SqlSession) -> None:
        rows = await session.fetch(self._of_schema(_SETTINGS))
        self._settings = {name.removeprefix("pg_accumulator."): setting for name, setting, _ in rows}
        problems = {name: problem for name, _, problem in rows if problem}
        for name, problem in problems.items():
            if self._problems.get(name) != problem:
                logger.warning("setting not used", database=self.pool.database, setting=name, problem=problem)
        self._problems = problems

    async def _merge(self, workers: list[PooledSession], registers: list[Register]) -> None:
        """One batch of each buffer that is worth a look, the buffers shared out to the workers."""
        now = self.clock()
        here = {register.name: register for register in registers if register.high_write}
        self._buffers = {name: self._buffers.get(name, _Buffer()) for name in here}
        names = [register.name for register in registers]
        self._troubles.keep([*names, *map(_partitions_of, names)])
        due = [
            r
            for r in here.values()
            if self._buffers[r.name].is_due(r.position, now) and not self._troubles.waits(r.name, now)
        ]

        async def work(session: PooledSession) -> None:
            while due:
                await self._merge_one(session, due.pop(0))

        await self._together([work(session) for session in workers[: len(due)]], workers[0])

    async def _together(self, turns: Sequence[Coroutine[Any, Any, None]], leader: PooledSession) -> None:
        """Wait for all turns. The first, which is the leader's, may be over long before: it lives all the same."""
        tasks = [asyncio.ensure_future(turn) for turn in turns]
        pending = set(tasks)
        try:
            while pending:
                _, pending = await asyncio.wait(pending, timeout=BEAT_SECONDS)
                if pending and tasks[0] not in pending:
                    await beat(leader)
        finally:
            for task in pending:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def _merge_one(self, session: PooledSession, register: Register) -> None:
        buffer = self._buffers[register.name]
        buffer.full = False
        batch = self._settings["delta_merge_batch_size"]
        parameters = {"register": register.name, "delay": self._settings["delta_merge_delay"], "batch": batch}
        try:
            done = await self._turn(session, register, _DELTAS, parameters)
            if done.get("lost"):
                logger.warning("register repaired after a crash", database=self.pool.database, register=register.name)
                done = await self._turn(session, register, _DELTAS, parameters, "repeatable_read")
        except SqlError as error:
            self._failed(register.name, "pending rows not merged", error)
            return
        self._troubles.over(register.name)
        buffer.looked = self.clock()
        buffer.rest = bool(done["rest"])
        buffer.full = done["merged"] >= batch
        buffer.merged += done["merged"]
        if buffer.merged >= VACUUM_ROWS:
            buffer.merged = 0
            await self._vacuum(session, register)

    async def _vacuum(self, session: PooledSession, register: Register) -> None:
        """PostgreSQL itself sees to it that a vacuum runs nothing of the owner's with more rights than his."""
        table = f"{self._schema}.{identifier(f'{register.name}_balance_cache_delta')}"
        try:
            await session.execute(f"VACUUM (SKIP_LOCKED) {table}")
        except SqlError as error:
            self._failed(register.name, "buffer not vacuumed", error)

    async def _make_partitions(self, session: PooledSession, registers: list[Register]) -> None:
        """Partitions of all registers, and a note that it was done."""
        ((started,),) = await session.fetch("SELECT pg_catalog.clock_timestamp()::pg_catalog.text")
        for register in registers:
            if self._troubles.waits(_partitions_of(register.name), self.clock()):
                continue
            parameters = {"register": register.name, "ahead": self._settings["partitions_ahead"]}
            await session.fetch(_SET_TITLE, _title(0, "partitions"))
            try:
                await self._turn(session, register, _PARTITIONS, parameters)
            except SqlError as error:
                self._failed(_partitions_of(register.name), "partitions not made", error)
            else:
                self._troubles.over(_partitions_of(register.name))
        await session.fetch(self._of_schema(_NOTE), started)

    async def _turn(
        self,
        session: PooledSession,
        register: Register,
        statement: str,
        parameters: dict[str, object],
        isolation: str = "read_committed",
    ) -> dict[str, Any]:
        """One statement with the rights of the register's owner, in a transaction of its own. Raises SqlError.

        What code of the owner's has set or locked in the session is undone: the next turn is another owner's.
        """
        try:
            async with self.pool.at_most(session, STATEMENT_SECONDS + 5), session.transaction(isolation):
                result: dict[str, Any] = await run_as_owner(
                    session, register.owner, self._of_schema(statement), parameters
                )
        finally:
            if not session.lost:
                await session.reset()
        return result

    def _failed(self, name: str, what: str, error: SqlError) -> None:
        """Leave it alone for a while. Raises the error where the connection is lost."""
        if error.is_of_connection:
            raise error
        pause = self._troubles.note(name, self.clock())
        logger.warning(
            what,
            database=self.pool.database,
            register=name,
            sqlstate=error.sqlstate,
            error=error.message,
            retry_seconds=pause,
        )


def _partitions_of(register: str) -> str:
    return f"partitions of {register}"
