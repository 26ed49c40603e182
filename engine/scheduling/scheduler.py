"""The scheduler of one database: refreshes what is due, in dependency order.

Any number of server processes may run one; one of them is elected (`leader_election`). All it must remember stands
in the catalog, so killing it at any moment loses nothing. It sleeps until a commit wakes it, a schedule falls due, or
it is time to look for changes that did not come through this server.

It waits for no refresh: workers refresh what a look has found due (`worker_pool`), and meanwhile it looks again. What
is refreshed at once is a unit (`units`), most often of one stream table. It waits for those that it reads, directly or
through others, that were due or under way when it was found due, and for nobody else.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any
from zoneinfo import ZoneInfoNotFoundError

import structlog
from cronsim import CronSimError

from catalog.graph import DependencyGraph
from catalog.session import SqlError, SqlSession
from catalog.stream_tables import StreamTable, acting_roles, stream_tables, version_of_stream_tables
from catalog.values import RefreshMode, Status
from engine.refresh.record import Job
from engine.scheduling.announcements import Announcements
from engine.scheduling.early import Budget, Cost, until_early
from engine.scheduling.units import Unit, is_declared, units
from engine.scheduling.worker_pool import Workers
from engine.session.background_worker import BackgroundWorker, WakeUp
from engine.session.backoff import pause_after
from engine.session.clocks import ClockWatch
from engine.session.leader_election import Rival, elected
from engine.session.pool import APPLICATION_NAME, DatabasePool, PooledSession
from engine.stream_tables.cron import next_time

logger = structlog.get_logger(__name__)

LEASE = "scheduler"
"""What a database's scheduler holds while it is elected; `pgtrickle._scheduler_running()` looks for it."""

TITLE = f"{APPLICATION_NAME}: scheduler"
"""`application_name` of its session, with the position up to which changes have been there for `SETTLED_SECONDS`, by
which `pgtrickle._is_stale` tells what is late from what has just been changed, and the number of jobs that wait."""

SETTLED_SECONDS = 2.0

ELECTION_RETRY = 5.0
LOOK_INTERVAL = 1.0
"""Seconds between looks for changes made on connections that bypass every server, unless the database sets others."""

REST = 0.05
"""Seconds until what must not be refreshed at the moment, or is busy elsewhere, is tried again."""

LOOK_SHARE = 0.2
"""Part of its time that the scheduler looks, at most, so that a storm of commits does not become a storm of looks."""

CHECK_SECONDS = 0.06
"""A stream table without captured changes can be out of date if capture has a gap, which a refresh notices. So while
anything changes in the database one after the other is checked, one in so many seconds."""

SHORTEST_PAUSE = 0.002
"""Least seconds between two looks."""

CLEANUP_INTERVAL = 1.0

BUSY_CLEANUP_INTERVAL = 5.0
"""The same while stream tables are being refreshed: most often they soon are, and it is better done then."""

GAP_INTERVAL = 5.0
"""Seconds between looks for stream tables whose capture has a gap that no event trigger has seen."""

PRUNING_INTERVAL = 3600.0

PRUNING_BATCHES = 10
"""After so many batches of old history the rest is left to the next cleanup."""

POPULATION_GRACE = 5.0
"""Seconds after its creation for which an empty stream table is left to the session that creates it."""

MOST_WORKERS = 32
"""The largest `pg_trickle.max_concurrent_refreshes`."""

MOST_BUSY = 5.0
"""Most seconds until what was found busy elsewhere is tried again."""

TOLD_BUSY = 4
"""After so many times in a row that is logged."""

CLAIMING_BUSY = 4
"""After so many, and then after twice as many each time, those who refresh by hand give way to a unit."""

MOST_CLAIM = 60.0
"""Most seconds that they do (`pgtrickle._give_way`)."""

LONG_SECONDS = 0.5
"""From then on it is written down that a job waits, or is being done."""

NO_LIMIT = 1e7
"""Seconds from which on a time limit is none."""


class Turn(Enum):
    """How a stream table's turn went."""

    WORKED = "it was refreshed"
    NOTHING = "it had no changes"
    AGAIN = "it is busy elsewhere: look again"
    HELD_BACK = "it must not be refreshed now: the next look says why"


Refresh = Callable[[Unit, Job, float | None], Awaitable[Turn]]
"""Refresh a unit in a transaction of its own, within so many seconds. Raises SqlError if that fails."""

CarryOut = Callable[[int, float | None], Awaitable[bool]]
"""Carry out the oldest request that a role has made past the server, within so many seconds; False if there is none."""


NoteWaiting = Callable[[int], Awaitable[str | None]]
"""Find out, and write down, who has locked what the stream table of this id needs. Raises SqlError."""

NoteSkipped = Callable[[int, str], Awaitable[None]]
"""Write down why the stream table of this id is not refreshed though it is due. Raises SqlError."""


@dataclass(slots=True)
class _Pace:
    """What the scheduler remembers of a stream table between two looks; it may forget it at any time."""

    seen: int | None = None
    """Position of the database's changes at which it was last found up to date."""
    failures: int = 0
    busy: int = 0
    """How often in a row it was found busy elsewhere."""
    retry: float = -math.inf
    """When it may be tried again after a failure, on the monotonic clock."""
    as_of: str | None = None
    """The time that was last found written down for its rows."""
    since: float | None = None
    """From when its age counts, on the monotonic clock."""
    skipped: str | None = None
    """Why it is not refreshed though it is due, as its history says already."""
    fired: float = -math.inf
    """Up to when its cron schedule has been heeded, by PostgreSQL's clock."""
    told: bool = False
    """Whether it was logged that its schedule is not understood."""
    cost: Cost = field(default_factory=Cost)
    checked: float = -math.inf
    """When it was last refreshed or found up to date, on the monotonic clock."""

    def age(self, table: StreamTable, now: float) -> float:
        """Seconds since the snapshot of its rows, or, before there are any, since its creation.

        How old they were when their time was first seen only PostgreSQL's clock can say, if it was not set back
        meanwhile. From then on the monotonic clock tells.
        """
        if self.since is None or self.as_of != table.as_of:
            self.as_of = table.as_of
            self.since = now - max(0.0, table.age_seconds if table.staleness is None else table.staleness)
        return now - self.since

    def until_fire(self, table: StreamTable, after: float) -> float:
        """Seconds until its cron schedule fires for the first time after that (by PostgreSQL's clock); negative if it
        has fired.
        """
        try:
            fire = next_time(table.cron or "", table.time_zone, after)
        except (CronSimError, ZoneInfoNotFoundError) as error:
            if not self.told:
                self.told = True
                logger.warning(
                    "its schedule is not understood", stream_table=f"{table.schema}.{table.name}", error=str(error)
                )
            fire = None
        return math.inf if fire is None else fire - table.clock


@dataclass(slots=True)
class _Look:
    """What a look finds of a unit."""

    unit: Unit
    upstream: set[int] = field(default_factory=set)
    """The units that it has to wait for if it is due, by the ids of their first members."""
    live: list[StreamTable] = field(default_factory=list)
    """Its members that may have changes, or may get some from another one."""
    changed: bool = False
    """Whether one may have changes already."""

    def add(self, table: StreamTable, reads: list[int], upstream: set[int], *, idle: bool) -> None:
        """The next member, which reads those stream tables; `upstream` is what is due of those outside of the unit."""
        self.upstream |= upstream
        if table.refresh_mode == RefreshMode.IMMEDIATE and not table.needs_reinit:
            return  # triggers maintain it
        self.changed = self.changed or not idle
        if not idle or upstream or any(each.pgt_id in reads for each in self.live):
            self.live.append(table)


@dataclass(slots=True, eq=False)
class _Due:
    """A unit that is to be refreshed, or just is."""

    unit: Unit
    paces: tuple[_Pace, ...]
    """Of its members."""
    schedule: float
    position: int | None
    """That of the database's changes when it was found due."""
    changed: bool
    """Whether it may have changes already; otherwise it may have if one of those that it waits for is refreshed."""
    waits_for: set[int]
    """Upstream units that are still to be refreshed before, by the ids of their first members."""
    job: Job
    found: float
    """When it was found due, on the monotonic clock."""
    begun: bool = False
    early: bool = False
    """Whether its rows might have been older."""
    again: bool = False
    """Whether it may have got changes since it has begun."""

    @property
    def id(self) -> int:
        """The id of its first member."""
        return self.unit.members[0].pgt_id


@dataclass(slots=True)
class Scheduler:
    """Keeps the stream tables of one database on schedule."""

    pool: DatabasePool
    refresh: Refresh
    carry_out: CarryOut
    note_waiting: NoteWaiting
    note_skipped: NoteSkipped
    clock: Callable[[], float] = time.monotonic
    worker: BackgroundWorker = field(init=False)
    leading: bool = False
    _woken: WakeUp = field(default_factory=WakeUp)
    _workers: Workers = field(default_factory=Workers)
    _limit: float | None = None
    """Seconds that a refresh or a request may take."""
    _interval: float = LOOK_INTERVAL
    """Seconds between two looks of which no commit tells."""
    _due: dict[int, _Due] = field(default_factory=dict)
    """By the id of each member."""
    _process: int = 0
    """The process of PostgreSQL that serves its session."""
    _enqueued: int = 0
    """When the last job was, in microseconds since 1970."""
    _asking: set[int] = field(default_factory=set)
    """Roles whose requests past the server are being carried out."""
    _paces: dict[int, _Pace] = field(default_factory=dict)
    _next_look: float = math.inf
    _worked: bool = False
    """Whether anything was refreshed since the last cleanup began."""
    _tidying: asyncio.Task[None] | None = None
    _position: int | None = None
    _cleaned_at: float = -math.inf
    _calm_at: float = -math.inf
    """When nothing was last being refreshed."""
    _cleaned_position: int | None = None
    _pruned_at: float = -math.inf
    _asked_at: float = -math.inf
    _gaps_at: float = -math.inf
    """When gaps of captures were last looked for."""
    _positions: deque[tuple[float, int]] = field(default_factory=deque)
    """When the database's changes stood where: the last one that is `SETTLED_SECONDS` old, and those after it."""
    _pending: list[dict[str, Any]] | None = None
    """The jobs that are written down as queued or running; None where that is not known."""
    _refused: set[str] = field(default_factory=set)
    """Why declared units are none, as it was said."""
    _noted: str = ""
    """What the session is called."""
    _changes: frozenset[int] = frozenset()
    """The stream tables that a captured change may wait for."""
    _asked_position: int = -1
    """Up to which changes were looked for, when all of them were there to be seen."""
    _resting: tuple[int | None, str | None] | None = None
    """Position and version at which all stream tables were found to rest: while it is that there is nothing to do."""
    _eager: bool = True
    """Whether a commit can bring about a refresh before a schedule has gone by."""
    _budget: Budget = field(default_factory=Budget)
    _rival: Rival = field(default_factory=lambda: Rival(LEASE))
    _announcements: Announcements = field(init=False)

    def __post_init__(self) -> None:
        self.worker = BackgroundWorker("scheduler", self.pool.database, self._lead, ELECTION_RETRY)
        self._announcements = Announcements(self.pool)

    def wake(self) -> None:
        """A transaction that changed data has committed."""
        self._woken.set()

    async def _lead(self) -> None:
        """Take part in the election, and work while elected. Raises SqlError."""
        async with elected(self.pool, LEASE, rival=self._rival) as connection:
            if connection is None:
                return
            logger.info("scheduler elected", database=self.pool.database)
            self.leading = True
            self._paces.clear()
            self._positions.clear()
            self._changes, self._asked_position, self._resting = frozenset(), -1, None
            self._noted, self._pending = "", None
            self._workers = Workers()
            session = PooledSession(connection)
            self._process = session.process
            watch = ClockWatch(self.pool.database, self.clock)
            self._announcements = Announcements(self.pool)
            try:
                await self._announcements.begin(session)
                while True:
                    self._woken.clear()
                    await watch.look(session)
                    began = self.clock()
                    pause = await self._look(session)
                    await asyncio.sleep(min(pause, max(SHORTEST_PAUSE, (self.clock() - began) * (1 / LOOK_SHARE - 1))))
                    await self._woken.within(pause)
            finally:
                self.leading = False
                await self._give_up()

    async def _give_up(self) -> None:
        """End what is under way."""
        self._due.clear()
        self._asking.clear()
        await self._workers.stop()
        await self._announcements.worker.stop()
        if self._tidying is not None:
            self._tidying.cancel()
            await asyncio.gather(self._tidying, return_exceptions=True)

    async def _look(self, session: SqlSession) -> float:
        """Have refreshed what is due and may have changes; returns the seconds until the next look."""
        ((enabled, eager, workers, limit, roles, interval),) = await session.fetch(_SETTINGS)
        self._eager, self._interval = eager, float(interval)
        self._workers.resize(int(max(1, min(MOST_WORKERS, workers))))
        self._limit = float(limit) if 0 < limit < NO_LIMIT else None
        for role in roles:
            self._ask(role)
        if not await self._enabled(enabled):
            self._keep(())
            self._positions.clear()
            self._resting = None
            self._announcements.compare(await stream_tables(session))
            await self._note(session, TITLE)  # nothing that changes is refreshed
            await self._note_jobs(session)
            return LOOK_INTERVAL
        # The position is read before anything is refreshed: what is captured later moves it again.
        ((position, settled),) = await session.fetch(
            "SELECT change_position, settled FROM pgtrickle._change_position()"
        )
        self._position = position if settled else None
        if position < self._asked_position:  # what is counted was made anew
            self._asked_position, self._changes = -1, frozenset()
        await self._note(session, f"{TITLE} {self._settled(position)} {self._workers.waiting}")
        if self.clock() - self._gaps_at >= GAP_INTERVAL:
            self._gaps_at = self.clock()
            await session.fetch("SELECT pgtrickle._mark_gaps()")
        version = await version_of_stream_tables(session)
        if self._resting is not None and self._resting == (self._position, version):
            self._next_look = self.clock() + self._interval
        else:
            await self._look_through(session, version)
        await self._note_jobs(session)
        self._tidy()
        return max(0.0, self._next_look - self.clock())

    async def _look_through(self, session: SqlSession, version: str | None) -> None:
        """Look at all stream tables; `version` is theirs, read before them."""
        changed = await self._changed(session)
        tables = await stream_tables(session)
        acting = await acting_roles(session, tables) if is_declared(tables) else frozenset()
        self._next_look = self._find_due(tables, self._position, changed, acting)
        rest = version is not None and self._position is not None and not self._due
        self._resting = (self._position, version) if rest and all(map(self._rests, tables)) else None
        self._announcements.compare(tables)

    def _rests(self, table: StreamTable) -> bool:
        """Whether a stream table is not due, and time alone does not make it so."""
        return table.cron is None and (table.status == Status.SUSPENDED or self._is_idle(table, self._position))

    async def _changed(self, session: SqlSession) -> frozenset[int]:
        """The stream tables that a captured change may wait for. Not asked again while nothing can have changed."""
        if self._position is None or self._position != self._asked_position or self._changes:
            rows = await session.fetch(_CHANGED, self._asked_position, sorted(self._changes))
            self._changes = frozenset(pgt_id for (pgt_id,) in rows)
            if self._position is not None:  # it was read before the changes were looked for
                self._asked_position = self._position
        return self._changes

    def _settled(self, position: int) -> int:
        """Where the changes stood `SETTLED_SECONDS` ago, -1 if that is not known; they are at `position` now."""
        now = self.clock()
        if not self._positions or self._positions[-1][1] != position:
            self._positions.append((now, position))
        while len(self._positions) > 1 and self._positions[1][0] <= now - SETTLED_SECONDS:
            self._positions.popleft()
        since, settled = self._positions[0]
        return settled if since <= now - SETTLED_SECONDS else -1

    async def _note(self, session: SqlSession, title: str) -> None:
        if title != self._noted:
            await session.fetch("SELECT pg_catalog.set_config('application_name', $1::pg_catalog.text, false)", title)
            self._noted = title

    async def _note_jobs(self, session: SqlSession) -> None:
        """Write down what has been queued or running for a while. Most often that is nothing, as before."""
        now = self.clock()
        jobs = {due.id: due.job.pending() for due in self._due.values() if now - due.found >= LONG_SECONDS}
        pending = list(jobs.values())
        if pending != self._pending:
            await session.fetch("SELECT pgtrickle._note_jobs($1::text::jsonb)::text", json.dumps(pending))
            self._pending = pending

    async def _enabled(self, setting: bool) -> bool:
        if setting:
            return True
        # A session keeps the setting it began with, even if ALTER DATABASE ... RESET has taken that back.
        if self.clock() - self._asked_at < LOOK_INTERVAL:
            return False
        self._asked_at = self.clock()
        connection = await self.pool.connect()
        try:
            ((setting, *_),) = await PooledSession(connection).fetch(_SETTINGS)
            return bool(setting)
        finally:
            connection.terminate()

    # -- what is due ------------------------------------------------------------------------------------------------

    def _find_due(
        self,
        tables: list[StreamTable],
        position: int | None,
        changed: frozenset[int] | None = None,
        acting: frozenset[tuple[int, int]] = frozenset(),
    ) -> float:
        """Have refreshed what is due, each after what it reads; returns when to look again.

        `changed` are those that captured changes may wait for, None if that is not known; `acting` as `units` takes it.
        """
        now = self.clock()
        next_look = now + self._interval
        graph = DependencyGraph(tables)
        schedules = graph.effective_schedules()
        found = units(tables, graph, acting, self._refuse)
        self._paces = {table.pgt_id: self._paces.get(table.pgt_id, _Pace()) for table in tables}
        if self._due:
            self._keep({unit.key for unit in found if unit.blocked is None and not unit.suspended})
        nearest: dict[int, set[int]] = {}
        """What those have to wait for that read a stream table: its unit, or else what is due upstream of it."""
        for unit in found:
            look = _Look(unit)
            for table in unit.members:
                self._paces[table.pgt_id].age(table, now)  # counts from now on, whatever becomes of PostgreSQL's clock
                read = graph.reads(table.pgt_id)
                upstream: set[int] = set().union(*(nearest[each] for each in read if each not in unit.ids))
                idle = self._is_idle(table, position) or (
                    changed is not None and table.pgt_id not in changed and self._is_checked(table, now)
                )
                look.add(table, read, upstream, idle=idle)
            due, wait = self._due_now(look, schedules, position, now)
            next_look = min(next_look, now + wait)
            nearest |= dict.fromkeys(unit.ids, due or look.upstream)
        return next_look

    def _refuse(self, reason: str) -> None:
        """Say once that stream tables are not refreshed together, though that was declared."""
        if reason not in self._refused:
            self._refused.add(reason)
            logger.warning("not refreshed together", database=self.pool.database, reason=reason)

    def _due_now(
        self, look: _Look, schedules: Mapping[int, float], position: int | None, now: float
    ) -> tuple[set[int], float]:
        """What readers of a unit have to wait for if it is due, by id; and seconds until it will be due, infinite where
        that is not known yet.

        `schedules` are in seconds, and have none for cron.
        """
        unit = look.unit
        if under_way := self._under_way(look):
            return under_way, math.inf
        if unit.suspended:
            return set(), math.inf
        if not look.live:
            for table in unit.members:
                self._paces[table.pgt_id].fired = table.clock  # with nothing to do
            return set(), math.inf
        wait, schedule = self._wait(look, schedules, now)
        early = wait > 0
        if early and not unit.slowest:
            of_each = [self._until_early(table, schedules.get(table.pgt_id, math.inf), now) for table in look.live]
            wait = min(wait, *of_each)
        if wait > 0:
            return set(), wait
        paces = tuple(self._paces[table.pgt_id] for table in unit.members)
        job = self._job(unit, paces)
        due = _Due(unit, paces, schedule, position, look.changed, look.upstream, job, now, early=early)
        return {due.id} if self._take_up(due) else set(), math.inf

    def _under_way(self, look: _Look) -> set[int]:
        """The ids of what members of a unit are being refreshed in, or are going to be; it may be another unit."""
        found = [due for each in look.unit.ids if (due := self._due.get(each)) is not None]
        for due in found:
            due.changed = due.changed or look.changed
            due.again = due.again or (due.begun and look.changed)
        return {due.id for due in found}

    def _wait(self, look: _Look, schedules: Mapping[int, float], now: float) -> tuple[float, float]:
        """Seconds until the schedule of a unit has gone by, and it: of one member, or of all where it says so."""
        of_each = []
        for table in look.unit.members if look.unit.slowest else look.live:
            schedule = schedules.get(table.pgt_id)
            if schedule is None:
                schedule = self._paces[table.pgt_id].until_fire(table, table.clock)
            of_each.append((self._seconds_to_wait(table, schedule, now, found=look.unit.slowest), schedule))
        return max(of_each) if look.unit.slowest else min(of_each)

    def _job(self, unit: Unit, paces: tuple[_Pace, ...]) -> Job:
        self._enqueued = max(self._enqueued + 1, int(unit.members[0].clock * 1e6))
        return Job(unit.key, self._enqueued, 1 + max(pace.failures for pace in paces), self._process)

    def _is_idle(self, table: StreamTable, position: int | None) -> bool:
        """Nothing at all has been captured since the stream table was found up to date."""
        seen = self._paces[table.pgt_id].seen
        return seen is not None and seen == position and not table.needs_reinit and not table.untracked

    def _is_checked(self, table: StreamTable, now: float) -> bool:
        """Whether it was refreshed or found up to date so lately that only a captured change makes it due."""
        pace = self._paces[table.pgt_id]
        if pace.seen is None or table.needs_reinit or table.untracked:
            return False
        spread = 0.5 + table.pgt_id * 0.618 % 1  # not all at once
        return now - pace.checked < CHECK_SECONDS * len(self._paces) * spread

    def _seconds_to_wait(self, table: StreamTable, schedule: float, now: float, *, found: bool = False) -> float:
        """Until a stream table that may have changes is due: its rows may be as old as its schedule says, or its cron
        schedule fires. With `found` that it was found up to date counts as a refresh.
        """
        pace = self._paces[table.pgt_id]
        if table.cron is not None and table.staleness is not None:
            return max(pace.until_fire(table, max(table.clock - table.staleness, pace.fired)), pace.retry - now)
        whole = POPULATION_GRACE if table.staleness is None else schedule
        age = min(pace.age(table, now), now - pace.checked) if found else pace.age(table, now)
        return max(whole - age, pace.retry - now)

    def _until_early(self, table: StreamTable, schedule: float, now: float) -> float:
        """Seconds until it may be refreshed though its rows may be older; infinite if its schedule decides."""
        pace = self._paces[table.pgt_id]
        if not self._eager or table.cron is not None or table.staleness is None or pace.retry > now:
            return math.inf
        return until_early(pace.cost, self._budget, schedule, now)

    def _keep(self, wanted: Container[str]) -> None:
        """Of the units whose turn has not begun, refresh these only, by their keys."""
        for due in tuple(self._due.values()):
            if not due.begun and due.unit.key not in wanted:
                self._end(due, worked=False)

    def _take_up(self, due: _Due) -> bool:
        """Have refreshed what is due. If something holds it back its history says so, once until it is refreshed."""
        reason = due.unit.blocked
        if reason is None:
            self._due |= dict.fromkeys(due.unit.ids, due)
            if not due.waits_for:
                self._begin(due)
            return True
        for table, pace in zip(due.unit.members, due.paces, strict=True):
            if pace.skipped != reason and table.status != Status.SUSPENDED:
                pace.skipped = reason
                self._workers.add(due.unit.owner, partial(self._note_skipped, table, pace))
        return False

    async def _note_skipped(self, table: StreamTable, pace: _Pace) -> None:
        if (reason := pace.skipped) is None:
            return
        logger.info("refresh is held back", stream_table=f"{table.schema}.{table.name}", reason=reason)
        try:
            await self.note_skipped(table.pgt_id, reason)
        except (SqlError, OSError) as error:
            logger.warning("not noted", stream_table=f"{table.schema}.{table.name}", error=str(error))

    def _begin(self, due: _Due) -> None:
        self._workers.add(due.unit.owner, partial(self._take_turn, due))

    def _end(self, ended: _Due, *, worked: bool) -> None:
        """A unit's turn is over: those that have waited for it alone go on."""
        over = [(ended, worked)]
        while over:
            due, changes = over.pop()
            if self._due.get(due.id) is not due:
                continue
            for each in due.unit.ids:
                del self._due[each]
            for reader in (each for each in tuple(self._due.values()) if due.id in each.waits_for):
                reader.waits_for.discard(due.id)
                reader.changed = reader.changed or changes
                if not reader.waits_for and reader.changed:
                    self._begin(reader)
                elif not reader.waits_for:
                    over.append((reader, False))

    # -- what workers do --------------------------------------------------------------------------------------------

    async def _take_turn(self, due: _Due) -> None:
        if self._due.get(due.id) is not due:  # it was suspended or dropped while it waited
            return
        due.begun = True
        began = self.clock()
        due.job.started, due.job.began = due.job.enqueued + int((began - due.found) * 1e6), time.perf_counter()
        turn = Turn.NOTHING
        try:
            turn = await self._refreshed(due)
        finally:
            ended = self.clock()
            for pace in due.paces:
                pace.cost.note(ended - began, ended, worked=turn is Turn.WORKED)
            if due.early:
                self._budget.spend(ended - began, ended)
            self._worked = self._worked or turn is Turn.WORKED
            self._announcements.wake()
            self._end(due, worked=turn is Turn.WORKED)
        # It is due again one schedule after its snapshot; no look has counted that in, since it was not over.
        pace = due.paces[0]
        again = pace.retry if turn in (Turn.AGAIN, Turn.HELD_BACK) else began + due.schedule
        if due.again and self._eager:
            again = min(again, max(pace.retry, pace.cost.rested))
        if again < self._next_look:
            asyncio.get_running_loop().call_later(max(0.0, again - self.clock()), self.wake)
        self._tidy()

    async def _refreshed(self, due: _Due) -> Turn:
        """Refresh one unit. Afterwards it has all changes up to the position at which it was found due."""
        due.job.claim = claim_after(max(pace.busy for pace in due.paces))
        try:
            turn = await self.refresh(due.unit, due.job, self._limit)
        except (SqlError, OSError) as error:
            for pace in due.paces:
                pace.failures += 1
                pace.retry = self.clock() + max(due.schedule, pause_after(pace.failures, first=2.0))
            logger.warning(
                "refresh failed",
                stream_table=due.unit.title,
                sqlstate=getattr(error, "sqlstate", None),
                error=str(error),
            )
            return Turn.NOTHING
        for table, pace in zip(due.unit.members, due.paces, strict=True):
            if turn is Turn.HELD_BACK:
                pace.retry = self.clock() + REST
            elif turn is Turn.AGAIN:
                pace.busy += 1
                pace.retry = self.clock() + pause_after(pace.busy, first=REST, longest=MOST_BUSY)
            else:
                pace.failures, pace.busy, pace.retry, pace.seen, pace.skipped = 0, 0, -math.inf, due.position, None
                pace.fired, pace.checked = table.clock, self.clock()
        if turn is Turn.AGAIN and due.paces[0].busy == TOLD_BUSY:
            await self._tell(due.unit)
        return turn

    async def _tell(self, unit: Unit) -> None:
        """Say whom a unit waits for."""
        holder = None
        try:
            for table in unit.members:
                holder = holder or await self.note_waiting(table.pgt_id)
        except (SqlError, OSError) as error:
            logger.warning("not known who is waited for", database=self.pool.database, error=str(error))
        logger.info("refresh waits", stream_table=unit.title, reason=holder or "it is being refreshed or changed")

    def _ask(self, role: int) -> None:
        """Have the oldest request of a role carried out, one at a time."""
        if role not in self._asking:
            self._asking.add(role)
            self._workers.add(role, partial(self._carry_out, role))

    async def _carry_out(self, role: int) -> None:
        more = False
        try:
            more = await self.carry_out(role, self._limit)
        except (SqlError, OSError) as error:
            logger.warning("requests wait", database=self.pool.database, role=role, error=str(error))
        finally:
            self._asking.discard(role)
        if more:
            self._ask(role)

    def _tidy(self) -> None:
        """Have what everybody has seen removed, after a round of refreshes and now and then, and old history."""
        if self._tidying is not None and not self._tidying.done():
            return
        now = self.clock()
        moved = self._worked or self._position is None or self._position != self._cleaned_position
        if self._due:
            wanted = moved and now - max(self._cleaned_at, self._calm_at) >= BUSY_CLEANUP_INTERVAL
        else:
            self._calm_at = now
            wanted = self._worked or (moved and now - self._cleaned_at >= CLEANUP_INTERVAL)
        if wanted:
            self._worked = False
            self._cleaned_at, self._cleaned_position = now, self._position
            self._tidying = asyncio.create_task(self._cleanup(), name="headwater cleanup")

    async def _cleanup(self) -> None:
        try:
            async with self.pool.session() as session:
                await session.fetch("SELECT pgtrickle._cleanup_buffers()")
                if self.clock() - self._pruned_at >= PRUNING_INTERVAL:
                    for _ in range(PRUNING_BATCHES):
                        ((removed,),) = await session.fetch("SELECT pgtrickle._prune_history()")
                        if not removed:
                            self._pruned_at = self.clock()
                            break
        except (SqlError, OSError) as error:
            logger.warning("cleanup failed", database=self.pool.database, error=str(error))


def claim_after(busy: int) -> float:
    """Seconds for which those give way to a unit who refresh its members by hand, after it was found busy so often.

    They wait for it, so it is rare, and is for long only where refreshes are: each claim lasts twice as long as the
    one before, and comes after twice as many attempts.

    >>> [claim_after(busy) for busy in (0, 3, 4, 5, 8, 64, 1024)]
    [0.0, 0.0, 2.0, 0.0, 4.0, 32.0, 60.0]
    """
    is_time = busy >= CLAIMING_BUSY and busy.bit_count() == 1
    return min(busy / 2, MOST_CLAIM) if is_time else 0.0


_CHANGED = "SELECT * FROM pgtrickle._changed_stream_tables($1::bigint, $2::bigint[])"

_SETTINGS = """
SELECT pgtrickle._setting('pg_trickle.enabled', 'on') = 'on',
       pgtrickle._setting('pg_trickle.event_driven_wake', 'on') = 'on',
       CASE pgtrickle._setting('pg_trickle.parallel_refresh_mode', 'on') WHEN 'off' THEN 1
            ELSE pgtrickle._seconds('pg_trickle.max_concurrent_refreshes', 4) END,
       pgtrickle._seconds('pg_trickle.refresh_timeout', 7200), pgtrickle._out_of_band_requesters(),
       pgtrickle._seconds('pg_trickle.scheduler_interval_ms', 1000) / 1000
"""
