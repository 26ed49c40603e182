"""The ticker: moves all subscriptions of a database, in this server, from one timestamp to the next.

A tick takes a timestamp and a snapshot that belong together: a lock that all servers share is held while the snapshot
is taken, so snapshots grow with timestamps everywhere. Every subscription with changes is evaluated at that snapshot by
one statement, so that all its rows of a transaction carry one timestamp; what was committed between two ticks is
consolidated. No statement of a user's runs in the session of the ticker: those with the same rights are evaluated
together in a session of theirs (`groups`), which imports the snapshot. So does whoever joins, at a tick. When to tick
is said by its `TickSchedule`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from catalog.session import SqlError
from engine.session.background_worker import BackgroundWorker
from engine.session.pool import DatabasePool, PooledSession
from engine.subscribe.evaluation import Evaluation, Load
from engine.subscribe.feed import LiveFeed
from engine.subscribe.groups import LOCKED, Group, Tick
from engine.subscribe.join_request import Interrupted, JoinRequest, TooLate
from engine.subscribe.sessions import Rights, SessionsByRights
from engine.subscribe.tick_schedule import PROGRESS, TickSchedule, milliseconds

logger = structlog.get_logger(__name__)

REST = 0.004
"""Least seconds between two ticks, in which what a storm of commits brings comes together."""

THOROUGH = 1.0
"""Seconds between two looks at the rights and definitions of subscriptions without changes."""

KEPT_FRONTIER = 1.0
"""Seconds between two notes of how far this server has read, which lets go of the changes before."""

REPORTED = 1.0
"""Seconds between two reports of what waits for the clients."""

RECONNECT = 0.5

GRACE = 0.1
"""Seconds for which a tick waits for all that has changes to be evaluated. What takes longer is left behind, if others
have something to wait for: those with other rights."""

IMPORT_SECONDS = 5.0
"""Most seconds for which a snapshot is kept for sessions that are to import it."""


@dataclass(slots=True)
class Ticker:
    """Works while there are evaluations, see `run`."""

    pool: DatabasePool
    sessions: SessionsByRights
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    """By the id of the subscription."""
    server: int | None = None
    """The number under which subscriptions are registered, once there is one."""
    role: str = ""
    """The engine's own."""
    worker: BackgroundWorker = field(init=False)
    _pace: TickSchedule = field(init=False)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _background: set[asyncio.Task[None]] = field(default_factory=set)
    _groups: dict[Rights, Group] = field(default_factory=dict)
    _snapshot: str | None = None
    """Of the last tick."""
    _timestamp: int = 0
    _changed: set[int] = field(default_factory=set)
    """The sources with changes since the last tick but one."""
    _locked: set[int] = field(default_factory=set)
    """Those whose changes cannot be looked at just now."""
    _seconds: float | None = 60.0
    """How long an evaluation may take."""
    _thorough_at: float = 0.0
    _kept_at: float = 0.0
    _kept: str | None = None
    _reported_at: float = 0.0
    _reported: dict[int, Load] = field(default_factory=dict)
    """The last report of each subscription."""
    _system: str | None = None

    def __post_init__(self) -> None:
        self._pace = TickSchedule(self.evaluations)
        self.worker = BackgroundWorker("subscriptions", self.pool.database, self._lead, RECONNECT)

    def wake(self) -> None:
        """A transaction that changed data has committed."""
        self._pace.wake()

    def doubt(self) -> None:
        """PostgreSQL does not know this server any more: connect again. Without subscriptions nothing would show it."""
        self._ready.clear()
        self._pace.wake()

    def join(self, joining: JoinRequest) -> None:
        """Have clients join at the next tick, or at their target."""
        self._pace.joining.append(joining)
        self._pace.wake()

    async def ready(self) -> int:
        """The number of this server, as soon as it is known in the database."""
        await self._ready.wait()
        assert self.server is not None
        return self.server

    def fail(self, error: SqlError) -> None:
        """End all subscriptions."""
        for evaluation in tuple(self.evaluations.values()):
            evaluation.fail(error)
        refused, self._pace.joining = self._pace.joining, []
        for joining in refused:
            joining.fail(error)

    def add(self, evaluation: Evaluation) -> None:
        """Have one more evaluation move on."""
        rights = evaluation.rights
        group = self._groups.get(rights)
        if group is None:
            runs_as = evaluation.preparation.runs_as
            group = self._groups[rights] = Group(rights, runs_as, self.sessions, self._finished)
        evaluation.group = group
        group.members[evaluation.subscription_id] = evaluation
        group.warm()
        self.evaluations[evaluation.subscription_id] = evaluation

    def forget(self, evaluation: Evaluation) -> None:
        """Nobody reads an evaluation any more."""
        self.evaluations.pop(evaluation.subscription_id, None)
        if (group := self._groups.get(evaluation.rights)) is not None:
            group.members.pop(evaluation.subscription_id, None)

    # -- connection -------------------------------------------------------------------------------------------------

    async def _lead(self) -> None:
        connection = await self.pool.connect()
        try:
            session = PooledSession(connection)
            await session.execute("SET synchronous_commit = off")
            await self._register(session)
            self._ready.set()
            while True:
                await self._wait(session)
                await self._tick(session)
                await asyncio.sleep(REST)
        finally:
            self._ready.clear()
            connection.terminate()

    async def _register(self, session: PooledSession) -> None:
        """Hold the lease of this server, and be known under its number. Raises SqlError."""
        # Its start, too: a crash empties unlogged tables without a trace.
        ((system, role),) = await session.fetch(
            "SELECT pg_catalog.concat(pgtrickle._system(), pg_catalog.pg_postmaster_start_time()), current_user::text"
        )
        self.role, self._pace.position = role, None
        if self.server is not None:
            await session.fetch(_REGISTER, self.server)
            ((there,),) = await session.fetch(
                "SELECT EXISTS (SELECT FROM pgtrickle.pgt_subscription_servers v WHERE v.server = $1::int)", self.server
            )
            if there and system == self._system:
                return
            self.fail(Interrupted())
        self._system, self._snapshot, self._kept = system, None, None
        await session.fetch("SELECT pgtrickle._remove_lost_subscriptions()")
        self.server = secrets.randbelow(2**31 - 1) + 1
        await session.fetch(_REGISTER, self.server)
        await session.execute("INSERT INTO pgtrickle.pgt_subscription_servers (server) VALUES ($1::int)", self.server)

    # -- ticking ----------------------------------------------------------------------------------------------------

    async def _wait(self, session: PooledSession) -> None:
        """Until there is something to tick for. Raises SqlError."""
        pace = self._pace
        while self._ready.is_set():
            if pace.is_due():
                return
            woken = await pace.rest()
            if time.monotonic() - self._thorough_at >= THOROUGH and self.evaluations:
                self._thorough_at = time.monotonic()
                await self._look_thoroughly(session)
            if pace.is_due() or not self._ready.is_set():
                continue
            if not self.evaluations:
                pace.calm()
                continue
            if await pace.has_moved(session, woken=woken):
                return
        raise Interrupted

    async def _look_thoroughly(self, session: PooledSession) -> None:
        """Have the rights and definitions of all looked at, and end those that others have waited for too long."""
        ((seconds,),) = await session.fetch(_TIMEOUT)
        self._seconds = float(seconds) or None
        now = time.monotonic()
        for evaluation in tuple(self.evaluations.values()):
            waited = 0.0 if evaluation.waits_since is None else now - evaluation.waits_since
            if self._seconds and waited > self._seconds and not evaluation.is_busy:
                evaluation.fail(evaluation.obstacle or Interrupted())
        for rights, group in tuple(self._groups.items()):
            if group.members:
                group.check(self._seconds)
            else:
                del self._groups[rights]
                await group.close()
        await self._keep(session)
        await self._report(session)

    async def _tick(self, session: PooledSession) -> None:
        """Move on by one timestamp. Raises SqlError if the connection is lost."""
        await self._settled()
        self._pace.calm()
        joining = self._due()
        live = {id_ for id_, evaluation in self.evaluations.items() if evaluation.is_live}
        try:
            await session.run_script(_BEGIN)
            try:
                tick = await self._evaluate_and_join(session, joining, live)
            finally:
                await session.run_script("ROLLBACK")
        except BaseException as error:
            failure = Interrupted.if_of_connection(error) if isinstance(error, SqlError) else Interrupted()
            for each in joining:
                if not each.joined.done():
                    each.fail(failure)
            raise
        self._timestamp, self._snapshot = tick.timestamp, tick.snapshot
        for evaluation in self._up_to_date():
            # Not each at a time of its own, which would be a tick for each.
            await evaluation.progressed(session, tick.timestamp + 1, PROGRESS / 2)
        await self._keep(session)
        await self._report(session)
        for each in joining:
            self._has_joined(each, tick.timestamp)
        self._end_bounded(tick.timestamp)

    def _due(self) -> list[JoinRequest]:
        """Take the requests whose target has been reached, or which have none."""
        now = milliseconds()
        due = [j for j in self._pace.joining if j.target is None or j.target <= now]
        self._pace.joining = [j for j in self._pace.joining if j not in due]
        for each in due:
            each.taken = True
        return due

    async def _evaluate_and_join(self, session: PooledSession, joining: list[JoinRequest], live: set[int]) -> Tick:
        """Take the next timestamp; have evaluated what has changed, and let join who can. Raises SqlError.

        The session is in the transaction whose snapshot the others import; they all have when this returns.
        """
        tick = await self._take(session, min((j.target for j in joining if j.target is not None), default=None))
        turns = await self._turns(session)
        if turns or joining:
            ((exported,),) = await session.fetch("SELECT pg_catalog.pg_export_snapshot()")
            tick = replace(tick, exported=str(exported))
        # Those whose clients have been told of earlier times join with them, or not yet.
        first = [each for each in joining if each.evaluation.subscription_id not in live]
        then = [each for each in joining if each.evaluation.subscription_id in live]
        imports = [self._let_join(each, tick) for each in first]
        imports += [group.begin(tick, evaluations, self._seconds) for group, evaluations in turns.items()]
        behind = await self._evaluated(tick, live)
        for each in then:
            each.again = each.evaluation.subscription_id in behind
            if not each.again:
                imports.append(self._let_join(each, tick))
        await _all_set(imports)
        return tick

    def _has_joined(self, request: JoinRequest, timestamp: int) -> None:
        """Have the feeds of a request told of what follows, or the request tried again."""
        if request.again:
            request.taken = False
            self._pace.joining.append(request)
            self._pace.lagged_at = time.monotonic()
            return
        for feed in request.feeds:
            feed.started = not feed.finished
        if not request.joined.done():
            request.joined.set_result(timestamp)

    def _end_bounded(self, timestamp: int) -> None:
        """End the feeds that are asked for up to a time that is over."""
        for evaluation in self._up_to_date():
            for feed in tuple(evaluation.bounded):
                if feed.started and feed.up_to is not None and timestamp + 1 >= feed.up_to:
                    feed.end()

    async def _settled(self) -> None:
        """Wait for the groups that are busy: for `GRACE`, and as long as nobody else has anything to wait for."""
        while busy := [group for group in self._groups.values() if group.busy]:
            grace = max(group.busy_since for group in busy) + GRACE - time.monotonic()
            others = any(evaluation.is_live and not evaluation.is_busy for evaluation in self.evaluations.values())
            if grace <= 0 and (others or any(not joining.evaluation.is_live for joining in self._pace.joining)):
                return
            await asyncio.wait([group.task for group in busy if group.task], timeout=max(grace, 0) or GRACE)

    async def _take(self, session: PooledSession, target: int | None) -> Tick:
        """The next timestamp, which belongs to the snapshot of the session's transaction. Raises SqlError."""
        ((timestamp, snapshot, noted),) = await session.fetch(_TICK, target)
        await session.run_script(_UNLOCK)
        if noted:
            # Before anybody learns of the timestamp: who asks for it again must get this snapshot.
            async with self.pool.session() as own:
                await own.fetch("SELECT pgtrickle._note_tick($1::bigint, $2::text)::text", timestamp, snapshot)
        return Tick(int(timestamp), str(snapshot), "", self._timestamp)

    async def _turns(self, session: PooledSession) -> dict[Group, list[Evaluation]]:
        """What has to be evaluated, of those groups that are not busy: what may have changes. Raises SqlError."""
        self._changed, self._locked = set(), set()
        live = [evaluation for evaluation in self.evaluations.values() if evaluation.is_live]
        followed = sorted({source for evaluation in live for source in evaluation.sources})
        if not followed or self._snapshot is None:
            return {}
        for source, is_locked in await session.fetch(_CHANGED_SOURCES, followed, self._snapshot):
            (self._locked if is_locked else self._changed).add(int(source))
        turns: dict[Group, list[Evaluation]] = {}
        for evaluation in live:
            group = self._groups.get(evaluation.rights)
            if group is None or group.busy or evaluation.sources & self._locked:
                continue
            if evaluation.timestamp != self._timestamp or evaluation.sources & self._changed:
                turns.setdefault(group, []).append(evaluation)
        return turns

    async def _evaluated(self, tick: Tick, live: set[int]) -> set[int]:
        """Wait for those who are evaluated, and note who has everything up to the tick. Returns those who have not."""
        await self._settled()
        behind: set[int] = set()
        for id_, evaluation in self.evaluations.items():
            if id_ not in live:
                evaluation.has_moved(tick.timestamp, tick.snapshot)
            elif evaluation.timestamp == tick.timestamp or evaluation.dead:
                continue
            elif evaluation.timestamp == self._timestamp and not evaluation.sources & (self._changed | self._locked):
                evaluation.has_moved(tick.timestamp, tick.snapshot)
            else:
                behind.add(id_)
                evaluation.waits_since = evaluation.waits_since or time.monotonic()
                if evaluation.sources & self._locked:
                    evaluation.obstacle = LOCKED
        # Who is busy is tried again when that is over.
        self._pace.lagging = {id_ for id_ in behind if not self.evaluations[id_].is_busy}
        if self._pace.lagging:
            self._pace.lagged_at = time.monotonic()
        return behind

    def _finished(self, group: Group) -> None:
        """A group has done what it was busy with. Who has missed timestamps meanwhile is to be tried again at once."""
        left = {
            id_
            for id_, evaluation in group.members.items()
            if evaluation.is_live and evaluation.timestamp != self._timestamp and evaluation.waits_since is not None
        }
        if left:
            if not self._pace.lagging:
                self._pace.lagged_at = 0.0
            self._pace.lagging |= left
            self._pace.wake()

    def _up_to_date(self) -> list[Evaluation]:
        """The evaluations that have everything up to the last tick."""
        return [evaluation for evaluation in self.evaluations.values() if evaluation.timestamp == self._timestamp]

    def _let_join(self, joining: JoinRequest, tick: Tick) -> asyncio.Event:
        """Have a client begin at this timestamp; the event says that it has imported the snapshot."""
        imported = asyncio.Event()

        async def begin() -> None:
            try:
                await joining.begin(tick.timestamp, tick.exported, imported)
            except TooLate:
                joining.again = True
            except SqlError as error:
                joining.fail_feeds(Interrupted.if_of_connection(error))
            except Exception as error:
                logger.exception("snapshot failed", database=self.pool.database)
                joining.fail_feeds(SqlError("XX000", f"internal error of the engine: {error!r}"))
            finally:
                imported.set()

        joining.again = False
        task = asyncio.create_task(begin(), name=f"headwater snapshot {self.pool.database}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return imported

    async def _keep(self, session: PooledSession) -> None:
        """Note how far all have read, now and then: to where whoever has read least has."""
        live = [evaluation for evaluation in self.evaluations.values() if evaluation.is_live]
        last = min(live, key=lambda evaluation: evaluation.timestamp, default=None)
        frontier, timestamp = (last.frontier, last.timestamp) if last else (self._snapshot, self._timestamp)
        if frontier is not None and frontier != self._kept and time.monotonic() - self._kept_at >= KEPT_FRONTIER:
            await session.fetch(_KEEP, self.server, frontier, timestamp)
            self._kept, self._kept_at = frontier, time.monotonic()

    async def _report(self, session: PooledSession) -> None:
        """Report what waits for the clients of those where that has changed, now and then. Raises SqlError."""
        if time.monotonic() - self._reported_at < REPORTED:
            return
        self._reported_at = time.monotonic()
        loads = {id_: evaluation.load for id_, evaluation in self.evaluations.items()}
        news = {id_: load for id_, load in loads.items() if self._reported.get(id_) != load}
        if news:
            await session.fetch(
                _REPORT,
                list(news),
                [load.clients for load in news.values()],
                [load.waiting_bytes for load in news.values()],
                [-1 if load.unread_since is None else load.unread_since for load in news.values()],
            )
        self._reported = loads

    def leave(self, feed: LiveFeed) -> None:
        """A client does not want to join any more."""
        for joining in self._pace.joining:
            if feed in joining.feeds:
                joining.feeds.remove(feed)
                if not joining.feeds:
                    self._pace.joining.remove(joining)
                    joining.joined.cancel()
                return

    async def stop(self) -> None:
        """Give up what is being evaluated, and the snapshots that are being read."""
        for group in self._groups.values():
            await group.close()
        for task in tuple(self._background):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _all_set(events: list[asyncio.Event]) -> None:
    """Wait until a snapshot is not needed any more, but not for ever: who has not got it then cannot have it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(IMPORT_SECONDS):
            for event in events:
                await event.wait()


_REGISTER = "SELECT pgtrickle._take_lease('subscriptions ' || $1::int, taken_over => true)"

# A lock is no reason for a snapshot, which the transaction gets with the first query after it.
_BEGIN = """
BEGIN ISOLATION LEVEL REPEATABLE READ; SAVEPOINT __pgt_tick;
LOCK TABLE pgtrickle.pgt_timeline_lock IN EXCLUSIVE MODE
"""

_UNLOCK = "ROLLBACK TO SAVEPOINT __pgt_tick; RELEASE SAVEPOINT __pgt_tick"

_TICK = """
SELECT t.mz_timestamp, t.snapshot, pgtrickle._retains_history()
FROM pgtrickle._tick($1::bigint) AS t
"""

_CHANGED_SOURCES = """
SELECT source, is_locked FROM pgtrickle._changed_sources($1::bigint[], $2::text::pg_snapshot)
"""

_TIMEOUT = "SELECT pgtrickle._seconds('pg_trickle.subscription_timeout', 60)"

_KEEP = """
UPDATE pgtrickle.pgt_subscription_servers v SET frontier = $2::text::pg_snapshot, mz_timestamp = $3::bigint
WHERE v.server = $1::int
"""

_REPORT = """
WITH gone AS (DELETE FROM pgtrickle.pgt_subscription_load l
              WHERE NOT EXISTS (SELECT FROM pgtrickle.pgt_subscriptions s WHERE s.subscription_id = l.subscription_id))
INSERT INTO pgtrickle.pgt_subscription_load (subscription_id, clients, waiting_bytes, unread_since)
SELECT n.id, n.clients, n.bytes, nullif(n.since, -1)
FROM ROWS FROM (pg_catalog.unnest($1::bigint[]), pg_catalog.unnest($2::int[]), pg_catalog.unnest($3::bigint[]),
                pg_catalog.unnest($4::bigint[])) AS n(id, clients, bytes, since)
ON CONFLICT ON CONSTRAINT pgt_subscription_load_pkey DO UPDATE
SET clients = excluded.clients, waiting_bytes = excluded.waiting_bytes, unread_since = excluded.unread_since,
    reported_at = pg_catalog.clock_timestamp()
"""
