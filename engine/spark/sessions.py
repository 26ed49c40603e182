"""The one factory of Spark sessions: started at the first job, kept warm, restarted when it died, gone after `stop`.

Four kinds of target, one interface:

- ``local``, ``local[N]``, ``local[*]``: Apache Spark in a JVM of our own, through classic PySpark;
- ``spark://host:port``: the same, with executors on a standalone cluster;
- ``sc://host:port``: a Spark Connect server that somebody else runs;
- ``sail``: Sail, in a process of our own, spoken to by Spark Connect over a Unix socket.

``off`` is a target too; it refuses every job.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import structlog

from catalog.session import SqlError
from engine.compile.pool import served
from engine.imports import freeze_imported
from engine.session.fair_slots import FairSlots
from engine.spark.backends import Backend, ClassicBackend, ConnectBackend, Session
from engine.spark.jvm import JvmFailed
from engine.spark.sail_process import SailFailed
from engine.spark.tally import SparkLoad
from engine.spark.target import Kind, SparkTargetError, Target

log = structlog.get_logger(__name__)

T = TypeVar("T")
IDLE_SECONDS = 600.0
"""So long a session is kept for another job. A Spark Connect server forgets one that was idle for an hour."""

SESSION_SECONDS = 60.0
"""Within this time a Spark that runs must give a new session."""

RENEWAL_SECONDS = 300.0
"""So long a Sail runs at least, however large it is: what one job needs shall not end it each time."""

INTERRUPT_GRACE = 4.0
"""Seconds that an interrupted job has to come back before its backend is given up."""

INTERRUPT_TRIES = 8
"""Interrupts within that time: one that comes before the server has seen the job is lost."""


class SparkUnavailable(SqlError):
    """No Spark to be had: off, unreachable, died or stopped. The job may be repeated or done by PostgreSQL."""

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None):
        super().__init__("58000", message, detail=detail, hint=hint)


class SparkJobFailed(SqlError):
    """Spark is there, but this job failed, for instance by an overflow. PostgreSQL has the right error or result."""

    def __init__(self, message: str, *, sqlstate: str = "38000", detail: str | None = None):
        super().__init__(sqlstate, message, detail=detail)


class _Lost(Exception):
    """Spark is gone; the text is the first line of how that showed."""


class _KeptRowsLost(Exception):
    """An executor is gone, and with it rows that the job had kept there: only that job has failed."""


_KEPT_ROWS_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"
"""Spark can compute again all that an executor had, but for local checkpoints (`SparkJob`), which have no history."""


class SparkSessions:
    """The sessions of one Spark target. Make one per process; nothing runs before the first `acquire`.

    `work_dir` is for everything Spark writes besides results: logs, shuffle files, warehouse. `options` are Spark
    properties (``spark.executor.memory`` ...) that come on top of our own. At most `concurrency` jobs of one role run
    at once, and one more of others, each in a session of its own, so that their temporary views and settings do not
    meet. A Spark Connect server or master that does not answer for `patience` seconds counts as unreachable, and is
    left alone for `rest` seconds. A Sail that has more than `memory` bytes (0: however many) is replaced by a new one
    while nothing runs on it, but not before it has run for `RENEWAL_SECONDS`.
    """

    def __init__(
        self,
        target: str,
        work_dir: Path,
        *,
        options: Mapping[str, str] | None = None,
        concurrency: int = 2,
        memory: int = 0,
        patience: float = 10.0,
        rest: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.target = Target.parse(target)
        self._work_dir = work_dir.absolute()
        self._options = dict(options or {})
        self._memory = memory
        self._patience = patience
        self._rest = rest
        self._clock = clock
        self._refused: tuple[float, SparkUnavailable] | None = None
        """When Spark could last not be started, and why."""
        self._threads = ThreadPoolExecutor(concurrency + 2, thread_name_prefix="spark")
        self._slots = FairSlots(concurrency + 1, concurrency)
        self._starting = asyncio.Lock()
        self._backend: Backend | None = None
        self._idle: list[tuple[float, Session]] = []
        """Sessions to be used again, and until when."""
        self._stopped = False
        self._up = False
        """Whether it ran when it was last started."""
        self._recovery: asyncio.Task[None] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._renew_at = math.inf
        self._ended: Counter[str] = Counter()
        self._running = 0
        self.started_in: float | None = None
        """Seconds that the last start took, None if there was none."""

    @property
    def off(self) -> bool:
        return self.target.kind is Kind.OFF

    def check_on(self) -> None:
        """Raises SparkUnavailable (58000) if there never will be a session."""
        if self.off:
            raise SparkUnavailable("Spark is switched off", hint="Start the server with --spark local[*].")

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def warm(self) -> bool:
        """True if a job would not have to wait for a start."""
        return self._backend is not None and self._backend.alive()

    @property
    def recovering(self) -> bool:
        """True if Spark ran, was lost, and does not run again yet: asking has it started in the background."""
        if self.warm or self._stopped:
            return False
        if self._recovery is not None and not self._recovery.done():
            return True
        if not self._up:
            return False
        self._recovery = asyncio.create_task(self._recover(), name="headwater recovery of Spark")
        return True

    async def _recover(self) -> None:
        with suppress(SparkUnavailable):  # who needs it next hears of it
            await self.warm_up()

    @property
    def load(self) -> SparkLoad:
        """What it has to do."""
        return SparkLoad(self.warm, self._running, dict(self._ended))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """The block is one job."""
        self._running += 1
        how = "interrupted"
        try:
            yield
            how = "completed"
        except SparkUnavailable:
            how = "lost"
            raise
        except SqlError:
            how = "failed"
            raise
        finally:
            self._running -= 1
            self._ended[how] += 1

    async def _blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _make_backend(self) -> Backend:
        self._work_dir.mkdir(parents=True, exist_ok=True)
        if self.target.kind in (Kind.LOCAL, Kind.CLUSTER):
            return ClassicBackend(self.target, self._work_dir, self._options, self._patience)
        return ConnectBackend(self.target, self._work_dir, self._options, self._patience)

    async def warm_up(self) -> None:
        """Start Spark now if it is not running. Raises SparkUnavailable (58000)."""
        self.check_on()
        async with self._starting:
            if self._stopped:
                raise SparkUnavailable("Spark has been stopped")
            if self.warm:
                return
            if self._refused is not None and self._clock() < self._refused[0] + self._rest:
                raise self._refused[1]
            if self._backend is not None:
                log.warning("spark_died", target=self.target.shown)
                await self._discard()
            self._backend = backend = self._make_backend()
            up, self._up = self._up, False
            began = time.monotonic()
            start = asyncio.ensure_future(self._blocking(backend.start))
            try:
                await asyncio.shield(start)
            except asyncio.CancelledError:
                self._up = up
                # The start goes on in its thread; what it has made so far must not stay.
                await asyncio.shield(self._discard())
                await asyncio.wait({start})
                await asyncio.shield(asyncio.to_thread(backend.stop))
                raise
            except Exception as error:
                await self._discard()
                unavailable = self._unavailable(error)
                self._refused = self._clock(), unavailable
                raise unavailable from error
            freeze_imported()
            self._refused = None
            if self._stopped:
                await self._discard()
                raise SparkUnavailable("Spark has been stopped")
            self.started_in = time.monotonic() - began
            self._renew_at = self._clock() + RENEWAL_SECONDS
            self._up = True
            log.info("spark_started", target=self.target.shown, seconds=round(self.started_in, 2))

    def _unavailable(self, error: Exception) -> SparkUnavailable:
        if self._stopped:
            return SparkUnavailable("Spark has been stopped")
        if isinstance(error, JvmFailed):
            return SparkUnavailable(
                "could not start Spark",
                detail=str(error),
                hint="Install Java 17 or newer, or use --spark sail.",
            )
        if isinstance(error, SailFailed):
            return SparkUnavailable("could not start Sail", detail=str(error), hint="Use --spark local[*], or off.")
        return SparkUnavailable(
            f'could not reach Spark at "{self.target.shown}"',
            detail=_first_line(error),
            hint="Check that it runs and can be reached from here, or use --spark local[*].",
        )

    async def _discard(self) -> None:
        """Stop the backend, whatever state it is in; its sessions are void."""
        backend, self._backend, self._idle = self._backend, None, []
        if backend is not None:
            await asyncio.to_thread(backend.stop)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[SparkLease]:
        """A session for the time of the block; waits for a free one. Raises SparkUnavailable (58000).

        It is for the role on whose behalf the task works (`compile_pool.on_behalf_of`).
        """
        async with self._slots.slot(served()):
            await self.warm_up()
            backend = self._backend
            if backend is None:
                raise SparkUnavailable("Spark has been stopped")
            try:
                session = self._reusable()
                if session is None:
                    session = await asyncio.wait_for(self._blocking(backend.new_session), SESSION_SECONDS)
            except Exception as error:
                await self._discard()
                raise self._unavailable(error) from error
            lease = SparkLease(self, backend, session)
            yield lease
            if not lease.void and backend is self._backend:
                self._idle.append((self._clock() + IDLE_SECONDS, session))
        if self._memory and self._clock() >= self._renew_at and self._renewal is None:
            self._renewal = asyncio.create_task(self._renew(), name="headwater renewal of Sail")

    async def _renew(self) -> None:
        """Replace a backend that has become too large by a new one, if nothing runs on it.

        What is not needed any more it does not always give back: Sail grows with each job.
        """
        try:
            backend = self._backend
            size = 0 if backend is None else await asyncio.to_thread(backend.memory)
            if size <= self._memory or backend is not self._backend or not self._slots.idle or self._stopped:
                return
            with self._slots.closed():
                log.info("spark_renewed", target=self.target.shown, megabytes=size >> 20)
                async with self._starting:
                    if backend is self._backend:
                        await self._discard()
                with suppress(SparkUnavailable):  # who needs it next hears of it
                    await self.warm_up()
        finally:
            self._renewal = None

    def _reusable(self) -> Session | None:
        while self._idle:
            until, session = self._idle.pop()
            if self._clock() < until:
                return session
        return None

    async def stop(self) -> None:
        """End everything this factory started, also in the middle of a start or a job. Idempotent."""
        self._stopped = True
        await self._discard()
        async with self._starting:
            await self._discard()
        background = {task for task in (self._renewal, self._recovery) if task is not None}
        if background:
            await asyncio.wait(background)
        self._threads.shutdown(wait=False, cancel_futures=True)


class SparkLease:
    """A Spark session held by one task."""

    def __init__(self, sessions: SparkSessions, backend: Backend, session: Session):
        self._sessions = sessions
        self._backend = backend
        self._session = session
        self.void = False

    async def run(self, work: Callable[[Session], T], *, description: str, limit: float | None = None) -> T:
        """Run blocking `work(session)` in a thread; its Spark jobs carry `description`.

        On cancellation and after `limit` seconds the jobs are interrupted. Raises SparkJobFailed (38000, 57014
        after a timeout) and SparkUnavailable (58000) if Spark died meanwhile.
        """
        with self._sessions.counting():
            return await self._run(work, description, limit)

    async def _run(self, work: Callable[[Session], T], description: str, limit: float | None) -> T:
        tag = f"headwater-{uuid.uuid4().hex}"
        # All that Spark Connect says of a job is its tags, which must not hold a comma.
        named = f"{description.replace(',', ' ')} {tag}"
        # A classic session keeps its tags per thread, so that no other thread can interrupt them: use a job group.
        classic = getattr(self._session, "_sc", None)

        def tagged() -> T:
            if classic is not None:
                classic.setJobGroup(tag, description, interruptOnCancel=True)
                return work(self._session)
            self._session.addTag(named)
            try:
                return work(self._session)
            finally:
                with suppress(Exception):
                    self._session.removeTag(named)

        def body() -> T:
            try:
                return tagged()
            except SqlError:
                raise
            except Exception as error:
                if self._backend.lost(error):
                    raise _Lost(_first_line(error)) from error
                if _KEPT_ROWS_LOST in str(error):
                    raise _KeptRowsLost(_first_line(error)) from error
                raise

        log.debug("spark_job", job=description, tag=tag)
        job = asyncio.ensure_future(self._sessions._blocking(body))
        try:
            return await asyncio.wait_for(asyncio.shield(job), limit)
        except (asyncio.CancelledError, TimeoutError) as error:
            await asyncio.shield(self._interrupt(tag if classic is not None else named, job))
            if isinstance(error, TimeoutError):
                raise SparkJobFailed(
                    f"Spark job timed out after {limit:g} s: {description}", sqlstate="57014"
                ) from None
            raise
        except SqlError:
            raise
        except _Lost as error:
            self.void = True
            if self._sessions._backend is self._backend:
                await self._sessions._discard()
            raise SparkUnavailable("Spark was lost in the middle of a job", detail=str(error)) from error
        except _KeptRowsLost as error:
            self.void = True
            raise SparkUnavailable("Spark lost an executor in the middle of a job", detail=str(error)) from error
        except Exception as error:
            self.void = True
            raise SparkJobFailed(f"Spark job failed: {_first_line(error)}", detail=description) from error

    async def _interrupt(self, tag: str, job: asyncio.Future[T]) -> None:
        self.void = True
        classic = getattr(self._session, "_sc", None)

        def interrupt() -> None:
            with suppress(Exception):
                if classic is not None:
                    # The job may not have got as far as Spark's scheduler yet.
                    classic._jsc.sc().cancelJobGroupAndFutureJobs(tag)
                else:
                    self._session.interruptTag(tag)

        for _ in range(INTERRUPT_TRIES):
            threading.Thread(target=interrupt, daemon=True).start()
            done, _ = await asyncio.wait({job}, timeout=INTERRUPT_GRACE / INTERRUPT_TRIES)
            if done:
                job.exception()
                return
        log.warning("spark_job_does_not_stop", tag=tag)
        if self._sessions._backend is self._backend:
            await self._sessions._discard()
        job.add_done_callback(lambda late: late.cancelled() or late.exception())


_RAISED = re.compile(r"^ *(\w*Error: .+)$", re.MULTILINE)
"""What a function in Python has failed with, at the end of where it was."""


def _first_line(error: BaseException) -> str:
    details = getattr(error, "details", None)  # of a gRPC error, whose text begins with its class
    text = str(details() if callable(details) else error)
    if "Traceback (most recent call last)" in text and (raised := _RAISED.findall(text)):
        return str(raised[-1])[:500]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:500]


__all__ = ["Session", "SparkJobFailed", "SparkLease", "SparkSessions", "SparkTargetError", "SparkUnavailable", "Target"]
