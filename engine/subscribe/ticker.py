"""The ticker: moves all subscriptions of a database, in this server, from one timestamp to the next.

A tick takes a timestamp and a snapshot that belong together: a lock that all servers share is held while the snapshot
is taken, so snapshots grow with timestamps everywhere. In that one transaction every subscription with changes is
evaluated by one statement, so that all rows of a transaction carry one timestamp; what was committed between two ticks
is consolidated. Whoever joins does so at a tick, and is given the rows of its snapshot by a session that
imports it. When to tick is said by its `Pace`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field

import asyncpg
import structlog

from catalog.session import SqlError
from engine.pool import DatabasePool, PooledSession
from engine.subscribe.evaluation import Evaluation
from engine.subscribe.feed import LiveFeed
from engine.subscribe.joining import Interrupted, Joining, TooLate
from engine.subscribe.pace import PROGRESS, Pace, milliseconds

logger = structlog.get_logger(__name__)

REST = 0.004
"""Least seconds between two ticks, in which what a storm of commits brings comes together."""

THOROUGH = 1.0
"""Seconds between two looks at the rights and definitions of subscriptions without changes."""

KEPT_FRONTIER = 1.0
"""Seconds between two notes of how far this server has read, which lets go of the changes before."""

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
    _pace: Pace = field(init=False)
    _ready: asyncio.Event = field(default_factory=asyncio.Event)
    _background: set[asyncio.Task[None]] = field(default_factory=set)
    _frontier: str | None = None
    _timestamp: int = 0
    _thorough_at: float = 0.0
    _kept_at: float = 0.0
    _kept: str | None = None
    _system: str | None = None

    def __post_init__(self) -> None:
        self._pace = Pace(self.evaluations)

    def wake(self) -> None:
        """A transaction that changed data has committed."""
        self._pace.wake()

    def doubt(self) -> None:
        """PostgreSQL does not know this server any more: connect again. Without subscriptions nothing would show it."""
        self._ready.clear()
        self._pace.wake()

    def join(self, joining: Joining) -> None:
        """Have clients join at the next tick, or at their target."""
        self._pace.joining.append(joining)
        self._pace.wake()

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
        refused, self._pace.joining = self._pace.joining, []
        for joining in refused:
            joining.fail(error)

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
        self.role, self._pace.position = role, None
        if self.server is not None:
            await session.fetch(_HOLD, self.server)
            ((there,),) = await session.fetch(
                "SELECT EXISTS (SELECT FROM pgtrickle.pgt_subscription_servers v WHERE v.server = $1::int)", self.server
            )
            if there and system == self._system:
                return
            self.fail(Interrupted())
        self._system, self._frontier, self._kept = system, None, None
        await session.fetch("SELECT pgtrickle._remove_lost_subscriptions()")
        self.server = secrets.randbelow(2**31 - 1) + 1
        await session.fetch(_HOLD, self.server)
        await session.execute("INSERT INTO pgtrickle.pgt_subscription_servers (server) VALUES ($1::int)", self.server)

    # -- ticking ----------------------------------------------------------------------------------------------------

    async def _wait(self, session: PooledSession) -> None:
        """Until there is something to tick for. Raises SqlError."""
        pace = self._pace
        while self._ready.is_set():
            if pace.is_due():
                return
            woken = await pace.rest()
            if pace.is_due() or not self._ready.is_set():
                continue
            if not self.evaluations:
                pace.calm()
                continue
            if not woken and time.monotonic() - self._thorough_at >= THOROUGH:
                self._thorough_at = time.monotonic()
                await self._end_those_that_cannot_go_on(session, thorough=True)
                await self._keep(session)
            if await pace.has_moved(session, woken=woken):
                return
        raise Interrupted

    async def _tick(self, session: PooledSession) -> None:
        """Move on by one timestamp. Raises SqlError if the connection is lost."""
        self._pace.calm()
        now = milliseconds()
        joining = [j for j in self._pace.joining if j.target is None or j.target <= now]
        self._pace.joining = [j for j in self._pace.joining if j not in joining]
        for each in joining:
            each.taken = True
        imports: list[asyncio.Event] = []
        try:
            target = min((j.target for j in joining if j.target is not None), default=None)
            await session.execute("SELECT pg_catalog.pg_advisory_lock(pgtrickle._timeline_lock())")
            async with session.transaction("repeatable_read"):
                ((timestamp, snapshot, exported, noted),) = await session.fetch(_TICK, target, bool(joining))
                if noted:
                    # Before anybody learns of the timestamp: who asks for it again must get this snapshot.
                    async with self.pool.session() as own:
                        await own.fetch("SELECT pgtrickle._note_tick($1::bigint, $2::text)::text", timestamp, snapshot)
                await self._changes(session, timestamp, snapshot)
                for each in joining:
                    each.again = each.evaluation.subscription_id in self._pace.lagging
                    if not each.again:
                        imports.append(self._let_join(each, timestamp, exported))
                for evaluation in self._up_to_date():
                    # Not each at a time of its own, which would be a tick for each.
                    await evaluation.progressed(session, timestamp + 1, PROGRESS / 2)
                for imported in imports:
                    await imported.wait()
        except BaseException as error:
            failure = Interrupted.if_of_connection(error) if isinstance(error, SqlError) else Interrupted()
            for evaluation in self.evaluations.values():
                if evaluation.given_in_part:
                    evaluation.fail(Interrupted())
            for each in joining:
                if not each.joined.done():
                    each.fail(failure)
            raise
        if not self._pace.lagging:
            self._frontier = snapshot
        self._timestamp = timestamp
        for evaluation in self._up_to_date():
            evaluation.frontier = snapshot
        await self._keep(session)
        for each in joining:
            if each.again:
                each.taken = False
                self._pace.joining.append(each)
                self._pace.lagged_at = time.monotonic()
                continue
            for feed in each.feeds:
                feed.started = not feed.finished
            if not each.joined.done():
                each.joined.set_result(timestamp)
        for evaluation in self._up_to_date():
            for feed in evaluation.bounded:
                if feed.started and feed.up_to is not None and timestamp + 1 >= feed.up_to:
                    feed.end()

    def _up_to_date(self) -> list[Evaluation]:
        """The evaluations that have moved on with the last tick."""
        return [evaluation for id_, evaluation in self.evaluations.items() if id_ not in self._pace.lagging]

    def _let_join(self, joining: Joining, timestamp: int, exported: str) -> asyncio.Event:
        """Have a client begin at this timestamp; the event says that it has imported the snapshot."""
        imported = asyncio.Event()

        async def begin() -> None:
            try:
                await joining.begin(timestamp, exported, imported)
            except TooLate:
                joining.again = True
            except SqlError as error:
                joining.fail_feeds(Interrupted.if_of_connection(error))
            except Exception as error:
                logger.exception("snapshot failed", database=self.pool.database)
                joining.fail_feeds(SqlError("XX000", f"internal error of the engine: {error!r}"))
            finally:
                imported.set()

        task = asyncio.create_task(begin(), name=f"headwater snapshot {self.pool.database}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return imported

    async def _changes(self, session: PooledSession, timestamp: int, snapshot: str) -> None:
        """Give every subscription what has changed. Raises SqlError.

        Who has been given all of it goes on from there, even if the tick fails after that.
        """
        self._pace.lagging = set()
        changed = await self._end_those_that_cannot_go_on(session, thorough=False)
        if changed:
            # One for all: an evaluation changes nothing that another would need.
            await session.execute("SAVEPOINT __pgt_evaluation")
        for id_, sources in changed.items():
            evaluation = self.evaluations.get(id_)
            if evaluation is None or not evaluation.is_live:
                continue
            try:
                if await evaluation.changes(session, timestamp, evaluation.frontier or "", sources):
                    evaluation.frontier = snapshot
            except SqlError as error:
                lost = error.is_of_connection
                if not lost:
                    await session.execute("ROLLBACK TO SAVEPOINT __pgt_evaluation")
                if error.sqlstate in CONTENTION and not evaluation.given_in_part:
                    self._lag(id_)
                    continue
                if evaluation.given_in_part or not lost:
                    evaluation.fail(CHANGED if error.sqlstate in DDL else Interrupted.if_of_connection(error))
                if lost:
                    raise
            except asyncpg.PostgresError as error:
                evaluation.fail(SqlError("XX000", str(error)))
                raise

    async def _end_those_that_cannot_go_on(self, session: PooledSession, *, thorough: bool) -> dict[int, list[int]]:
        """End subscriptions whose rights or sources are not what they were; of others, the sources with changes."""
        ids = [id_ for id_, evaluation in self.evaluations.items() if evaluation.is_live]
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
        self._pace.lagging.add(id_)
        self._pace.lagged_at = time.monotonic()

    async def _keep(self, session: PooledSession) -> None:
        """Note how far this server has read, now and then."""
        if self._frontier != self._kept and time.monotonic() - self._kept_at >= KEPT_FRONTIER:
            await session.fetch(_KEEP, self.server, self._frontier, self._timestamp)
            self._kept, self._kept_at = self._frontier, time.monotonic()

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
        """Give up the snapshots that are being read."""
        for task in tuple(self._background):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


CONTENTION = frozenset({"55P03", "40P01", "40001"})
"""What goes by itself."""

DDL = frozenset({"42703", "42P01", "42704", "42883", "42804", "42846"})
"""What a statement meets that was made for tables and columns which are others now."""

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
