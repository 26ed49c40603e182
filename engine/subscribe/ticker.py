"""The ticker: moves all subscriptions of a database, in this server, from one timestamp to the next.

A tick takes a timestamp and a snapshot that belong together: a lock that all servers share is held while the snapshot
is taken, so snapshots grow with timestamps everywhere. In that one transaction every subscription with changes is
evaluated by one statement, so that all rows of a transaction carry one timestamp; what was committed between two ticks
is consolidated. Whoever joins does so at a tick, and is given the rows of its snapshot by a session that imports it.

Commits that pass through the server wake the ticker. Others are found by a look at the number of the last captured
statement: often while it moves, seldom while it stands still.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import asyncpg
import structlog

from catalog.session import SqlError
from engine.pool import DatabasePool, PooledSession
from engine.subscribe.evaluation import Evaluation
from engine.subscribe.feed import LiveFeed
from engine.subscribe.joining import Joining, TooLate
from engine.transactions import savepoint

logger = structlog.get_logger(__name__)

LOOK_INTERVAL = 1.0
"""Most seconds between two looks for changes made on connections that bypass the server."""

QUICK_LOOK = 0.02
"""Seconds between two looks while such changes come, or while a transaction that has changed something is open."""

REST = 0.004
"""Least seconds between two ticks, in which what a storm of commits brings comes together."""

THOROUGH = 1.0
"""Seconds between two looks at the rights and definitions of subscriptions without changes."""

PROGRESS = 1.0
"""Most seconds between two progress messages."""

KEPT_FRONTIER = 1.0
"""Seconds between two notes of how far this server has read, which lets go of the changes before."""

LAG_RETRY = 0.03
"""Seconds until a subscription is tried again whose sources somebody is just emptying or rewriting."""

RECONNECT = 0.5


@dataclass(slots=True)
class Ticker:
    """Works while there are evaluations, see `run`."""

    pool: DatabasePool
    evaluations: dict[int, Evaluation] = field(default_factory=dict)
    """By the id of the subscription."""
    server: int | None = None
    """The number under which subscriptions are registered, once there is one."""
    role: str = ""
    """The engine's own."""
    _joining: list[Joining] = field(default_factory=list)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _background: set[asyncio.Task[None]] = field(default_factory=set)
    _frontier: str | None = None
    _timestamp: int = 0
    _position: int | None = None
    """Of the captured changes, if all up to it had been committed at the last tick."""
    _last_position: int | None = None
    _look: float = LOOK_INTERVAL
    _thorough_at: float = 0.0
    _kept_at: float = 0.0
    _kept: str | None = None
    _system: str | None = None
    _lagging: set[int] = field(default_factory=set)
    """Evaluations that were left out of the last tick."""
    _lagged_at: float = 0.0

    def wake(self) -> None:
        """A transaction that changed data has committed."""
        self._woken.set()

    def join(self, joining: Joining) -> None:
        """Have a client join at the next tick, or at its target."""
        self._joining.append(joining)
        self._woken.set()

    async def ready(self) -> int:
        """The number of this server, as soon as it is known in the database."""
        await self._ready.wait()
        assert self.server is not None
        return self.server

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            try:
                await self._lead()
            except (SqlError, OSError) as error:
                logger.warning("subscriptions interrupted", database=self.pool.database, error=str(error))
            except Exception:
                logger.exception("subscriptions failed", database=self.pool.database)
            finally:
                self._ready.clear()
            await asyncio.sleep(RECONNECT)

    def fail(self, error: SqlError) -> None:
        """End all subscriptions."""
        for evaluation in tuple(self.evaluations.values()):
            evaluation.fail(error)
        self._refuse(lambda _: True, error)

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
            connection.terminate()

    async def _register(self, session: PooledSession) -> None:
        """Hold the lock of this server, and be known under its number. Raises SqlError."""
        # Its start, too: a crash empties unlogged tables without a trace.
        ((system, role),) = await session.fetch(
            "SELECT pg_catalog.concat(pgtrickle._system(), pg_catalog.pg_postmaster_start_time()), current_user::text"
        )
        self.role, self._position = role, None
        if self.server is not None:
            await session.fetch(_HOLD, self.server)
            ((there,),) = await session.fetch(
                "SELECT EXISTS (SELECT FROM pgtrickle.pgt_subscription_servers v WHERE v.server = $1::int)", self.server
            )
            if there and system == self._system:
                return
            self.fail(INTERRUPTED)
        self._system, self._frontier, self._kept = system, None, None
        await session.fetch("SELECT pgtrickle._remove_lost_subscriptions()")
        self.server = secrets.randbelow(2**31 - 1) + 1
        await session.fetch(_HOLD, self.server)
        await session.execute("INSERT INTO pgtrickle.pgt_subscription_servers (server) VALUES ($1::int)", self.server)

    # -- when -------------------------------------------------------------------------------------------------------

    async def _wait(self, session: PooledSession) -> None:
        """Until there is something to tick for. Raises SqlError."""
        while True:
            if self._is_due():
                return
            woken = await self._sleep(self._pause())
            if self._is_due():
                return
            if not self.evaluations:
                self._woken.clear()
                continue
            if not woken and time.monotonic() - self._thorough_at >= THOROUGH:
                self._thorough_at = time.monotonic()
                await self._end_those_that_cannot_go_on(session, thorough=True)
                await self._keep(session)
            if await self._has_moved(session, woken=woken):
                return

    def _is_due(self) -> bool:
        """Whether a client waits for a timestamp that has come, or wants to know that there is nothing new."""
        now, moment = _milliseconds(), time.monotonic()
        if self._lagging and moment - self._lagged_at >= LAG_RETRY:
            return True
        if any((j.target is None or j.target <= now) and not self._must_wait(j, moment) for j in self._joining):
            return True
        return any(
            (feed.up_to is not None and now >= feed.up_to)
            or (feed.asked.progress and moment - feed.progressed_at >= PROGRESS)
            for evaluation in self.evaluations.values()
            for feed in evaluation.live
        )

    def _must_wait(self, joining: Joining, moment: float) -> bool:
        """Whether a client that could not join at the last tick is not to be tried again yet."""
        return joining.again and moment - self._lagged_at < LAG_RETRY

    def _pause(self) -> float:
        """Seconds until the next look, or until something is due."""
        now, moment = _milliseconds(), time.monotonic()
        pause = self._look if self.evaluations else 3600.0
        if self._lagging or any(joining.again for joining in self._joining):
            pause = min(pause, self._lagged_at + LAG_RETRY - moment)
        for joining in self._joining:
            if joining.again:
                continue
            pause = min(pause, ((joining.target or now) - now) / 1000)
        for evaluation in self.evaluations.values():
            for feed in evaluation.live:
                if feed.up_to is not None:
                    pause = min(pause, (feed.up_to - now) / 1000)
                if feed.asked.progress:
                    pause = min(pause, feed.progressed_at + PROGRESS - moment)
        return max(0.0, pause)

    async def _sleep(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()
                return True
        return False

    async def _has_moved(self, session: PooledSession, *, woken: bool) -> bool:
        """Whether anything may have been captured since the last tick."""
        self._woken.clear()
        ((position, settled),) = await session.fetch(
            "SELECT change_position, settled FROM pgtrickle._change_position()"
        )
        moved = bool(position != self._position)
        if not woken:
            # Changes that nobody has told of: more may be on their way.
            busy = position != self._last_position
            self._look = QUICK_LOOK if busy else min(self._look * 2, LOOK_INTERVAL)
        self._last_position = position
        self._position = position if settled else None
        return moved

    # -- what -------------------------------------------------------------------------------------------------------

    async def _tick(self, session: PooledSession) -> None:
        """Move on by one timestamp. Raises SqlError if the connection is lost."""
        self._woken.clear()
        now = _milliseconds()
        joining = [j for j in self._joining if j.target is None or j.target <= now]
        self._joining = [j for j in self._joining if j not in joining]
        imports: list[asyncio.Event] = []
        found: set[int] = set()
        try:
            target = min((j.target for j in joining if j.target is not None), default=None)
            await session.execute("SELECT pg_catalog.pg_advisory_lock(pgtrickle._timeline_lock())")
            async with session.transaction("repeatable_read"):
                ((timestamp, snapshot, exported, noted),) = await session.fetch(_TICK, target, bool(joining))
                if noted:
                    # Before anybody learns of the timestamp: who asks for it again must get this snapshot.
                    async with self.pool.session() as own:
                        await own.fetch("SELECT pgtrickle._note_tick($1::bigint, $2::text)::text", timestamp, snapshot)
                await self._changes(session, timestamp, snapshot, found)
                for each in joining:
                    each.again = each.evaluation.subscription_id in self._lagging
                    if not each.again:
                        imports.append(self._let_join(each, timestamp, exported))
                for evaluation in self._up_to_date():
                    await evaluation.progressed(
                        session, timestamp + 1, found=evaluation.subscription_id in found, interval=PROGRESS
                    )
                for imported in imports:
                    await imported.wait()
        except BaseException as error:
            failure = error if isinstance(error, SqlError) else INTERRUPTED
            for evaluation in self.evaluations.values():
                if evaluation.given_in_part:
                    evaluation.fail(INTERRUPTED)
            for each in joining:
                if not each.joined.done():
                    each.joined.set_exception(failure)
                    each.feed.fail(failure)
            raise
        if not self._lagging:
            self._frontier = snapshot
        self._timestamp = timestamp
        for evaluation in self._up_to_date():
            evaluation.frontier = snapshot
        await self._keep(session)
        for each in joining:
            if each.again:
                self._joining.append(each)
                self._lagged_at = time.monotonic()
                continue
            each.feed.started = not each.feed.finished
            each.feed.progressed_at = time.monotonic()
            if not each.joined.done():
                each.joined.set_result(timestamp)
        for evaluation in self._up_to_date():
            for feed in evaluation.live:
                if feed.up_to is not None and timestamp + 1 >= feed.up_to:
                    feed.end()

    def _up_to_date(self) -> list[Evaluation]:
        """The evaluations that have moved on with the last tick."""
        return [evaluation for id_, evaluation in self.evaluations.items() if id_ not in self._lagging]

    def _let_join(self, joining: Joining, timestamp: int, exported: str) -> asyncio.Event:
        """Have a client begin at this timestamp; the event says that it has imported the snapshot."""
        imported = asyncio.Event()

        async def begin() -> None:
            try:
                await joining.begin(timestamp, exported, imported)
            except TooLate:
                joining.again = True
            except SqlError as error:
                joining.feed.fail(error)
            except Exception as error:
                logger.exception("snapshot failed", database=self.pool.database)
                joining.feed.fail(SqlError("XX000", f"internal error of the engine: {error!r}"))
            finally:
                imported.set()

        task = asyncio.create_task(begin(), name=f"headwater snapshot {self.pool.database}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return imported

    async def _changes(self, session: PooledSession, timestamp: int, snapshot: str, found: set[int]) -> None:
        """Give every subscription what has changed; `found` are those that had anything. Raises SqlError.

        Who has been given all of it goes on from there, even if the tick fails after that.
        """
        self._lagging = set()
        changed = await self._end_those_that_cannot_go_on(session, thorough=False)
        for id_, sources in changed.items():
            evaluation = self.evaluations.get(id_)
            if evaluation is None or not evaluation.live:
                continue
            try:
                async with savepoint(session):
                    if await evaluation.changes(session, timestamp, evaluation.frontier or "", sources):
                        found.add(id_)
                        evaluation.frontier = snapshot
            except SqlError as error:
                if error.sqlstate in CONTENTION and not evaluation.given_in_part:
                    self._lag(id_)
                    continue
                lost = error.sqlstate.startswith(("08", "57P"))
                if evaluation.given_in_part or not lost:
                    evaluation.fail(CHANGED if error.sqlstate in DDL else error)
                if lost:
                    raise
            except asyncpg.PostgresError as error:
                evaluation.fail(SqlError("XX000", str(error)))
                raise

    async def _end_those_that_cannot_go_on(self, session: PooledSession, *, thorough: bool) -> dict[int, list[int]]:
        """End subscriptions whose rights or sources are not what they were; of others, the sources with changes."""
        ids = [id_ for id_, evaluation in self.evaluations.items() if evaluation.live]
        if not ids or self._frontier is None:
            return {}
        changed: dict[int, list[int]] = {}
        for id_, sources, held, code, message in await session.fetch(_NEWS, ids, self._frontier, thorough):
            if code is None and held:
                changed[int(id_)] = sources
            elif code is None:
                self._lag(int(id_))
            if code is None:
                continue
            hint = "Subscribe again." if code == "55000" else None
            self.evaluations[int(id_)].fail(SqlError(code, message, hint=hint))
        return changed

    def _lag(self, id_: int) -> None:
        """Leave an evaluation out of this tick."""
        self._lagging.add(id_)
        self._lagged_at = time.monotonic()

    async def _keep(self, session: PooledSession) -> None:
        """Note how far this server has read, now and then."""
        if self._frontier != self._kept and time.monotonic() - self._kept_at >= KEPT_FRONTIER:
            await session.fetch(_KEEP, self.server, self._frontier, self._timestamp)
            self._kept, self._kept_at = self._frontier, time.monotonic()

    def _refuse(self, which: Callable[[Joining], bool], error: SqlError) -> None:
        refused = [j for j in self._joining if which(j)]
        self._joining = [j for j in self._joining if not which(j)]
        for joining in refused:
            joining.feed.fail(error)
            if not joining.joined.done():
                joining.joined.set_exception(error)

    def leave(self, feed: LiveFeed) -> None:
        """A client does not want to join any more."""
        self._joining = [j for j in self._joining if j.feed is not feed]

    async def stop(self) -> None:
        """Give up the snapshots that are being read."""
        for task in tuple(self._background):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


CONTENTION = frozenset({"55P03", "40P01", "40001"})
"""What goes by itself."""

DDL = frozenset({"42703", "42P01", "42704", "42883", "42804", "42846"})
"""What a statement meets that was made for tables and columns which are others now."""

INTERRUPTED = SqlError("57P01", "the subscription was interrupted", hint="Subscribe again.")

CHANGED = SqlError("55000", "what the subscription reads was dropped or changed", hint="Subscribe again.")

_HOLD = "SELECT pg_catalog.pg_advisory_lock(pgtrickle._subscription_lock_class(), $1::int)::text"

_TICK = """
SELECT t.mz_timestamp, t.snapshot, CASE WHEN $2::boolean THEN pg_catalog.pg_export_snapshot() END,
       pgtrickle._retains_history()
FROM pgtrickle._tick($1::bigint) AS t
"""

_NEWS = """
SELECT id, changed, held, code, message
FROM pgtrickle._subscription_news($1::bigint[], $2::text::pg_snapshot, $3::boolean)
"""

_KEEP = """
UPDATE pgtrickle.pgt_subscription_servers v SET frontier = $2::text::pg_snapshot, mz_timestamp = $3::bigint
WHERE v.server = $1::int
"""


def _milliseconds() -> int:
    return time.time_ns() // 1_000_000
