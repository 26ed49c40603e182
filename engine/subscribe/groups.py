"""Subscriptions that are evaluated with the same rights: together, in a session of theirs alone.

What one group takes long for, or leaves behind in its session, is no other group's concern: a tick waits for nobody who
is slow, and gives him later, at one timestamp, what has happened in between.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import asyncpg
import structlog

from catalog.session import SqlError
from engine.session.pool import BE_IMPATIENT, RESET, PooledSession
from engine.subscribe.evaluation import Evaluation
from engine.subscribe.join_request import Interrupted
from engine.subscribe.sessions import RESET_SECONDS, Limit, Rights, SessionsByRights

logger = structlog.get_logger(__name__)

MOST_LOSSES = 3
"""So often a connection may be lost in one evaluation: its query could be what ends it."""

CONTENTION = frozenset({"55P03", "40P01", "40001"})
"""What goes by itself."""

DDL = frozenset({"42703", "42P01", "42704", "42883", "42804", "42846"})
"""What a statement meets that was made for tables and columns which are others now."""

CHANGED = SqlError("55000", "what the subscription reads was dropped or changed", hint="Subscribe again.")

LOCKED = SqlError("55P03", "what the subscription reads is locked for too long", hint="Subscribe again.")


@dataclass(frozen=True, slots=True)
class Tick:
    """A timestamp and its snapshot, also under the name by which other sessions import it."""

    timestamp: int
    snapshot: str
    exported: str
    previous: int
    """The timestamp of the tick before."""


@dataclass(slots=True, eq=False)
class Group:
    """The evaluations of one set of rights. One thing is done at a time; meanwhile it is `busy`."""

    rights: Rights
    runs_as: str
    sessions: SessionsByRights
    finished: Callable[[Group], None]
    """To be called when what it was busy with is over."""
    members: dict[int, Evaluation] = field(default_factory=dict)
    """By the id of the subscription."""
    task: asyncio.Task[None] | None = None
    """What it is busy with."""
    busy_since: float = 0.0
    """When it was last begun, on the monotonic clock."""
    _session: PooledSession | None = None
    _cleaning: asyncio.Task[None] | None = None
    _closed: bool = False

    @property
    def busy(self) -> bool:
        """Whether it cannot take part in a tick."""
        return self.task is not None

    def warm(self) -> None:
        """It will soon be needed: open its session, which a tick should not have to wait for."""
        if self._session is None and self._cleaning is None:
            self._cleaning = asyncio.create_task(self._open())

    def begin(self, tick: Tick, evaluations: Sequence[Evaluation], seconds: float | None) -> asyncio.Event:
        """Have evaluations move on to a tick; the event says that its snapshot is not needed any more."""
        imported = asyncio.Event()
        task = self._start(self._move(tick, evaluations, seconds, imported))
        task.add_done_callback(lambda _: imported.set())
        return imported

    def check(self, seconds: float | None) -> None:
        """Look at the rights and definitions of all that are followed, unless it is busy."""
        live = {id_: evaluation for id_, evaluation in self.members.items() if evaluation.is_live}
        if not self.busy and live:
            self._start(self._check(live, seconds))

    async def close(self) -> None:
        """Give up what is going on, and the session."""
        self._closed = True
        for task in (self.task, self._cleaning):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        if self._session is not None:
            await self.sessions.end(self._session)
            self._session = None

    def _start(self, work: Awaitable[None]) -> asyncio.Task[None]:
        async def run() -> None:
            try:
                await work
            except (SqlError, OSError) as error:
                logger.warning("subscriptions wait", role=self.runs_as, error=str(error))
            except Exception as error:
                logger.exception("subscriptions failed", role=self.runs_as)
                for evaluation in tuple(self.members.values()):
                    evaluation.fail(SqlError("XX000", f"internal error of the engine: {error!r}"))
            finally:
                self.task = None
                if not self._closed:
                    self._cleaning = asyncio.create_task(self._clean())
                    self.finished(self)

        self.task = task = asyncio.create_task(run(), name=f"headwater subscriptions of {self.runs_as}")
        self.busy_since = time.monotonic()
        return task

    # -- the session ------------------------------------------------------------------------------------------------

    async def _ready(self) -> PooledSession:
        """Its session, in which nothing is left of what was done before. Raises SqlError."""
        if self._cleaning is not None:
            await asyncio.wait({self._cleaning})
            self._cleaning = None
        if self._session is None or self._session.lost:
            self._session = await self.sessions.open(self.rights)
        return self._session

    async def _open(self) -> None:
        with suppress(SqlError, OSError):  # it is tried again when it is needed
            self._session = await self.sessions.open(self.rights)

    async def _clean(self) -> None:
        """Undo all that was done in the session: nothing that is evaluated is to have effects."""
        session = self._session
        if session is None:
            return
        try:
            async with asyncio.timeout(RESET_SECONDS):
                await session.run_script(f"ROLLBACK; {RESET}")
        except (SqlError, TimeoutError):
            self._session = None
            await self.sessions.end(session)

    # -- what is done -----------------------------------------------------------------------------------------------

    async def _move(
        self, tick: Tick, evaluations: Sequence[Evaluation], seconds: float | None, imported: asyncio.Event
    ) -> None:
        session = await self._ready()
        await session.run_script(
            "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY;"
            f" SET TRANSACTION SNAPSHOT '{tick.exported}'; {BE_IMPATIENT}"
        )
        imported.set()
        changed = await self._news(session, evaluations, seconds)
        await session.fetch("SELECT pg_catalog.set_config('role', $1::text, true)", self.runs_as)
        await session.run_script("SAVEPOINT __pgt_evaluation")
        for evaluation in evaluations:
            if not _wants(evaluation, tick):
                continue
            sources = changed.get(evaluation.subscription_id)
            if sources is None:
                evaluation.obstacle = LOCKED
            elif not sources:
                evaluation.has_moved(tick.timestamp, tick.snapshot)
            elif not await self._evaluate(session, tick, evaluation, sources, seconds):
                return

    async def _news(
        self, session: PooledSession, evaluations: Sequence[Evaluation], seconds: float | None
    ) -> dict[int, list[int]]:
        """The sources with changes of those who can go on now; those who cannot go on at all are ended."""
        ids = [evaluation.subscription_id for evaluation in evaluations]
        oldest = min(evaluations, key=lambda evaluation: evaluation.timestamp).frontier
        with Limit(self.sessions, session, seconds):
            found = await session.fetch(_NEWS, ids, oldest)
        changed: dict[int, list[int]] = {id_: [] for id_ in ids}
        for id_, sources, held, code, message in found:
            if code is not None:
                self._end(int(id_), str(code), str(message))
            elif held:
                changed[int(id_)] = sources
            else:
                del changed[int(id_)]
        return changed

    async def _evaluate(
        self, session: PooledSession, tick: Tick, evaluation: Evaluation, sources: list[int], seconds: float | None
    ) -> bool:
        """Give one evaluation's feeds what has changed; False if the session is lost in it."""
        failure: SqlError | None = None
        try:
            with Limit(self.sessions, session, seconds, lambda: _wants(evaluation, tick)) as limit:
                await evaluation.changes(
                    session,
                    tick.timestamp,
                    evaluation.frontier or "",
                    sources,
                    limit,
                    missed=evaluation.timestamp != tick.previous,
                )
        except SqlError as error:
            failure = error
        except asyncpg.PostgresError as error:
            failure = SqlError("XX000", str(error))
        try:
            # What its functions have changed for the session is undone. What they raise may look like anything.
            await session.run_script("ROLLBACK TO SAVEPOINT __pgt_evaluation")
        except SqlError:
            evaluation.losses += 1
            if failure is None:
                evaluation.has_moved(tick.timestamp, tick.snapshot)
            elif not _wants(evaluation, tick):
                evaluation.given_in_part = False
            elif not failure.is_of_connection:
                evaluation.fail(failure)
            elif evaluation.given_in_part or evaluation.losses >= MOST_LOSSES:
                evaluation.fail(Interrupted())
            return False
        if failure is None:
            evaluation.losses = 0
            evaluation.has_moved(tick.timestamp, tick.snapshot)
        elif not _wants(evaluation, tick):
            evaluation.given_in_part = False
        elif failure.sqlstate in CONTENTION and not evaluation.given_in_part:
            evaluation.obstacle = failure
        else:
            evaluation.fail(CHANGED if failure.sqlstate in DDL else failure)
        return True

    async def _check(self, live: dict[int, Evaluation], seconds: float | None) -> None:
        session = await self._ready()
        await session.run_script(f"BEGIN ISOLATION LEVEL READ COMMITTED, READ ONLY; {BE_IMPATIENT}")
        with Limit(self.sessions, session, seconds):
            found = await session.fetch(_OBSTACLES, list(live))
        for id_, code, message in found:
            self._end(int(id_), str(code), str(message))

    def _end(self, id_: int, code: str, message: str) -> None:
        """A subscription's rights or sources are not what they were."""
        evaluation = self.members.get(id_)
        if evaluation is not None:
            evaluation.fail(SqlError(code, message, hint="Subscribe again." if code == "55000" else None))


def _wants(evaluation: Evaluation, tick: Tick) -> bool:
    """Whether anybody still waits for what a tick brings: all may have gone, and others have joined at a later one."""
    return evaluation.is_live and evaluation.timestamp < tick.timestamp


_NEWS = """
SELECT id, changed, held, code, message
FROM pgtrickle._subscription_news($1::bigint[], $2::text::pg_snapshot, false)
"""

_OBSTACLES = "SELECT id, code, message FROM pgtrickle._subscription_obstacles($1::bigint[])"
