"""Compilation outside of the server's process: a few workers, kept warm, that everybody gets a fair share of.

What a client sends decides how long a query takes to compile, so nothing of it is done on the event loop. A worker is a
process of its own (`compile.worker`), started when it is needed first. A job that takes too much is an error, 54001; a
job that nobody waits for any more ends with its process, which is replaced.

Jobs wait in one queue for each role on whose behalf they are done. Roles take turns, and while there are several
workers no role has all of them.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import select
import signal
import subprocess
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

import structlog

from catalog.session import SqlError
from engine.child_process import python_command
from engine.compile.worker import DONE, FAILED, RAISED, TOO_DEEP, read_message, write_message

logger = structlog.get_logger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

PATIENCE = 6.0
"""A worker that has not answered after so many times the CPU time that a job may take is ended, too."""

STARTING = 120.0
"""Seconds that a worker may take to start, on a machine that does other things."""

RECENT = 64
"""How many texts a worker is thought to remember what they were compiled to."""

_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "TZ")

_PROGRAM = "from engine.compile.worker import main; main({}, {})"

_on_behalf_of: ContextVar[str] = ContextVar("compiling_on_behalf_of", default="")


@dataclass(frozen=True, slots=True)
class Limits:
    """How many workers there are, and what a job may take: seconds on the CPU, bytes of memory."""

    workers: int = 2
    cpu_seconds: int = 10
    memory: int = 512 << 20


class TooComplex(SqlError):
    """A statement takes more to compile than it may: 54001."""

    def __init__(self, detail: str):
        hint = "Simplify the query, or split it into several stream tables that read each other."
        super().__init__("54001", "statement too complex", detail=detail, hint=hint)


@contextmanager
def on_behalf_of(role: str) -> Iterator[None]:
    """Say for which role the block compiles."""
    before = _on_behalf_of.set(role)
    try:
        yield
    finally:
        _on_behalf_of.reset(before)


def served() -> str:
    """The role for which the task works, empty where that has not been said."""
    return _on_behalf_of.get()


def work_on_behalf_of(role: str) -> None:
    """Say for which role this task compiles from now on."""
    _on_behalf_of.set(role)


@dataclass(slots=True, eq=False)
class _Job:
    content: bytes
    subject: int
    """What it is about: a worker that has done something about it before is faster."""
    role: str
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    abandoned: bool = False
    """Nobody waits for it any more."""

    def answer(self, result: object) -> None:
        """Have the one who waits go on, if there is one."""

        def told() -> None:
            if not self.future.done():
                if isinstance(result, BaseException):
                    self.future.set_exception(result)
                else:
                    self.future.set_result(result)

        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(told)


@dataclass(slots=True, eq=False)
class _Worker:
    """A process and the thread that speaks with it."""

    jobs: SimpleQueue[_Job | None] = field(default_factory=SimpleQueue)
    job: _Job | None = None
    process: subprocess.Popen[bytes] | None = None
    killed: bool = False
    """The process has been told to end."""
    recent: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def end(self) -> None:
        """End the process, at once."""
        self.killed = True
        if self.process is not None:
            self.process.kill()


class CompilePool:
    """Runs functions of `sql.jobs` in workers."""

    def __init__(self, limits: Limits | None = None):
        self.limits = limits or Limits()
        self._lock = threading.Lock()
        self._workers: list[_Worker] = []
        self._waiting: OrderedDict[str, deque[_Job]] = OrderedDict()
        """By role; whose turn it is comes first."""

    async def run(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """What a function of `sql.jobs` returns for these arguments, the first of which is what it is about.

        Raises what it raises of the compiler's own errors; TooComplex (54001); SqlError XX000. If the caller is
        cancelled the work ends.
        """
        if kwargs:
            raise TypeError("jobs take positional arguments")
        loop = asyncio.get_running_loop()
        subject = hash(getattr(args[0], "canonical", args[0]))
        content = pickle.dumps((work, args), pickle.HIGHEST_PROTOCOL)
        job = _Job(content, subject, _on_behalf_of.get(), loop, loop.create_future())
        with self._lock:
            self._waiting.setdefault(job.role, deque()).append(job)
            self._dispatch()
        try:
            result: R = await job.future
        except asyncio.CancelledError:
            self._abandon(job)
            raise
        return result

    def warm_up(self) -> None:
        """Start the first worker, so that the first statement need not wait for it."""
        with self._lock:
            if not self._workers:
                self._add_worker()

    def stop(self) -> None:
        """End all workers. Whoever waits gets an error."""
        with self._lock:
            workers, self._workers = self._workers, []
            waiting = [job for jobs in self._waiting.values() for job in jobs]
            self._waiting.clear()
            for worker in workers:
                worker.jobs.put(None)
                worker.end()
        for job in (*waiting, *(worker.job for worker in workers if worker.job is not None)):
            job.answer(SqlError("57P01", "the server is shutting down"))

    @property
    def pids(self) -> list[int]:
        """The processes of its workers."""
        with self._lock:
            return [worker.process.pid for worker in self._workers if worker.process is not None]

    # -- under the lock -----------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Give jobs to workers that have nothing to do, role by role."""
        running: dict[str, int] = {}
        for worker in self._workers:
            if worker.job is not None:
                running[worker.job.role] = running.get(worker.job.role, 0) + 1
        each = max(1, self.limits.workers - 1)
        while (idle := self._idle()) is not None:
            role = next((role for role in self._waiting if running.get(role, 0) < each), None)
            if role is None:
                return
            job = self._waiting[role].popleft()
            self._waiting.move_to_end(role)
            if not self._waiting[role]:
                del self._waiting[role]
            running[role] = running.get(role, 0) + 1
            worker = idle if (known := self._knowing(job)) is None else known
            worker.job = job
            worker.recent[job.subject] = None
            worker.recent.move_to_end(job.subject)
            if len(worker.recent) > RECENT:
                worker.recent.popitem(last=False)
            worker.jobs.put(job)

    def _idle(self) -> _Worker | None:
        """A worker that has nothing to do, a new one if there may be more."""
        for worker in self._workers:
            if worker.job is None:
                return worker
        return self._add_worker() if len(self._workers) < self.limits.workers and self._waiting else None

    def _knowing(self, job: _Job) -> _Worker | None:
        return next((w for w in self._workers if w.job is None and job.subject in w.recent), None)

    def _add_worker(self) -> _Worker:
        worker = _Worker()
        self._workers.append(worker)
        threading.Thread(target=self._serve, args=(worker,), name="headwater compiler", daemon=True).start()
        return worker

    # -- anywhere -----------------------------------------------------------------------------------------------------

    def _abandon(self, job: _Job) -> None:
        """Nobody waits for a job any more: it is not begun, or its process ends."""
        with self._lock:
            waiting = self._waiting.get(job.role)
            if waiting is not None and job in waiting:
                waiting.remove(job)
                if not waiting:
                    del self._waiting[job.role]
                return
            job.abandoned = True
            for worker in self._workers:
                if worker.job is job:
                    worker.end()

    # -- in a worker's thread -----------------------------------------------------------------------------------------

    def _serve(self, worker: _Worker) -> None:
        """Do a worker's jobs until it is stopped."""
        with suppress(OSError, SqlError):  # the first job says it
            self._prepared(worker)
        while (job := worker.jobs.get()) is not None:
            try:
                result = self._result(worker, job)
            except SqlError as error:
                result = error
            except Exception as error:
                logger.error("compiler cannot be used", exc_info=error)
                result = SqlError("58000", "the compiler cannot be started", detail=str(error))
            with self._lock:
                worker.job = None
                self._dispatch()
            job.answer(result)
        self._forget(worker)

    def _result(self, worker: _Worker, job: _Job) -> object:
        process = self._prepared(worker)
        assert process.stdin is not None
        with self._lock:
            if job.abandoned:
                return None
        try:
            write_message(process.stdin, job.content)
            answer = _answered(process, self.limits.cpu_seconds * PATIENCE)
        except OSError:
            answer = None
        if answer is None:
            return self._ended(worker, job)
        kind, value, retire = pickle.loads(answer)
        if retire:
            self._forget(worker)
        return self._judged(kind, value)

    def _judged(self, kind: str, value: object) -> object:
        if kind in (DONE, RAISED):
            return value
        if kind == FAILED:
            logger.error("compilation failed", error=value)
            last = str(value).strip().rpartition("\n")[2]
            return SqlError("XX000", f"internal error of the compiler: {last}")
        return self._too_deep() if kind == TOO_DEEP else self._too_large()

    def _ended(self, worker: _Worker, job: _Job) -> SqlError | None:
        """Why a process has ended in the middle of a job, or has not answered in time."""
        status = self._forget(worker)
        if job.abandoned:
            return None
        if status in (-signal.SIGXCPU, None):
            logger.warning("compilation ended", reason="time", cpu_seconds=self.limits.cpu_seconds)
            return TooComplex(f"Compiling it takes more than {self.limits.cpu_seconds} s.")
        logger.warning("compilation ended", reason="the compiler's process has ended", status=status)
        return self._too_large()

    def _too_large(self) -> SqlError:
        return TooComplex(f"Compiling it takes more than {self.limits.memory >> 20} MB of memory.")

    def _too_deep(self) -> SqlError:
        return TooComplex("It is nested too deeply.")

    def _prepared(self, worker: _Worker) -> subprocess.Popen[bytes]:
        """A worker's process, ready for a job. Raises OSError, SqlError."""
        with self._lock:
            if worker not in self._workers:
                raise SqlError("57P01", "the server is shutting down")
            process = worker.process
            if process is not None and not worker.killed and process.poll() is None:
                return process
        self._forget(worker)
        process = _started(self.limits)
        with self._lock:
            worker.process = process
            worker.killed = False
            worker.recent.clear()
        if _answered(process, STARTING) != b"ready":
            status = self._forget(worker)
            raise SqlError("58000", "the compiler cannot be started", detail=f"Its exit status is {status}.")
        return process

    def _forget(self, worker: _Worker) -> int | None:
        """End a worker's process and close what leads to it. Returns the status of one that has ended by itself."""
        process = worker.process
        if process is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            process.wait(0 if process.poll() is None and not _closed(process) else 5)
        status = process.returncode
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with self._lock:
            worker.process = None
        return status


def _started(limits: Limits) -> subprocess.Popen[bytes]:
    """A new process of a worker."""
    environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    return subprocess.Popen(
        python_command(_PROGRAM.format(limits.cpu_seconds, limits.memory)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        # One arena: what threads reserve of the address space counts, too.
        env=environment | {"MALLOC_ARENA_MAX": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=True,
    )


def _answered(process: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """The next message of a process; None if it has ended, or does not begin one in time."""
    assert process.stdout is not None
    return read_message(process.stdout) if _readable(process, seconds) else None


def _readable(process: subprocess.Popen[bytes], seconds: float) -> bool:
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)  # type: ignore[arg-type]
    return bool(poll.poll(seconds * 1000))


def _closed(process: subprocess.Popen[bytes]) -> bool:
    """Whether a process that does not answer has closed its output: it is about to end."""
    return _readable(process, 0)


_pool: CompilePool | None = None


def compilers() -> CompilePool:
    """The pool of this process."""
    global _pool
    if _pool is None:
        _pool = CompilePool()
    return _pool


def configure(limits: Limits) -> CompilePool:
    """The pool of this process, with these limits; to be called before it is used."""
    global _pool
    if _pool is not None:
        _pool.stop()
    _pool = CompilePool(limits)
    return _pool
