"""Watches the event loop: what keeps it from its other work for too long is logged, with where it was.

A thread looks at the loop's thread. While that takes time on the CPU the thread puts a callback of its own at the end
of the loop's queue. Until it is run every other callback runs once at most, so what is at work at several looks is one
callback. What counts is time on the CPU: a machine that does other things is not reported. A callback that waits for
something takes none, and is reported after much longer; waiting for a CPU does not count.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType

import structlog

log = structlog.get_logger(__name__)

LOOK = 0.002
"""Seconds between two looks while the loop is at work."""

WAITING = 20
"""A callback that waits is reported after so many times the CPU time that one may take."""

SURE = 5
"""What is seen only once is reported after so many times the CPU time that one may take."""

_ROOT = f"{Path(__file__).resolve().parent.parent.parent}{os.sep}"
"""Where the program is; what is installed may be in an environment within it, as it may be in one itself."""


class LoopWatch:
    """Reports callbacks that take more than `limit` seconds of the loop's thread, each place once.

    To be made in that thread, by what runs in a uvloop.
    """

    def __init__(self, limit: float):
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._thread_clock = _clock_of(self._thread)
        self._searched = self._longest = 0.0
        self._search_began: float | None = None
        self._schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        self._own_schedstat = Path("/proc/thread-self/schedstat")
        self._told: set[str] = set()
        self._stopped = threading.Event()
        frame = sys._getframe()
        while frame.f_back is not None and frame.f_code is not asyncio.Runner.run.__code__:
            frame = frame.f_back
        self._base = frame
        """What the loop, which is not written in Python, is called from; and callbacks by it."""
        gc.callbacks.append(self._searching)
        # What comes before the thread has a CPU counts, too.
        thread = threading.Thread(target=self._watch, args=[self._clock()], name="headwater loop watch", daemon=True)
        thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        with suppress(ValueError):
            gc.callbacks.remove(self._searching)

    def _searching(self, phase: str, found: Mapping[str, int]) -> None:
        """Python searches for garbage, or has done so, in whichever thread. Not the place to log: see `_watch`."""
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._search_began = self._thread_clock()
        elif self._search_began is not None:
            took = self._thread_clock() - self._search_began
            self._searched += took
            self._longest = max(self._longest, took)
            self._search_began = None

    def _clock(self) -> float:
        """The time that the loop's thread has spent on the CPU, but for searches for garbage."""
        began = self._search_began
        return (self._thread_clock() if began is None else began) - self._searched

    def _watch(self, before: float) -> None:
        kept = before - _delayed(self._own_schedstat)
        while not self._stopped.wait(self._limit / 2):
            if self._clock() - before > self._limit / 4:
                self._follow(kept)
            if self._longest > self._limit:
                log.info("garbage collected", cpu_ms=round(self._longest * 1000))
                self._longest = 0.0
            before, kept = self._clock(), self._kept()

    def _follow(self, kept: float) -> None:
        """Look at the loop until it has come to the end of its queue."""
        came = threading.Event()
        try:
            self._loop.call_soon_threadsafe(came.set)
        except RuntimeError:  # it is closed
            self._stopped.set()
            return
        callback: FrameType | None = None
        cpu, wall = self._clock(), self._wall()
        while not came.wait(LOOK) and not self._stopped.is_set():
            frame = sys._current_frames().get(self._thread)
            if frame is None:
                return
            found, now = self._callback(frame), self._clock()
            if found is not callback:
                # One that holds the interpreter keeps this thread from looking until it is nearly over.
                held = self._kept() - kept
                callback, cpu, wall = found, now - held if held > SURE * self._limit else now, self._wall()
            kept = self._kept()
            waited = self._wall() - wall
            if callback is not None and (now - cpu > self._limit or waited > self._limit * WAITING):
                self._tell(frame, now - cpu, waited)

    def _wall(self) -> float:
        """The time that passes while the loop's thread does not wait for a CPU, as far as the system tells that."""
        return time.monotonic() - _delayed(self._schedstat)

    def _kept(self) -> float:
        """The loop's time on the CPU but for that in which this thread, the looking one, waited for a CPU.

        Others that run on all processors keep it from looking as well, while the loop goes from callback to callback.
        """
        return self._clock() - _delayed(self._own_schedstat)

    def _callback(self, frame: FrameType) -> FrameType | None:
        """The outermost frame of the callback that runs; None if none does."""
        at: FrameType | None = frame
        while at is not None and at.f_back is not self._base:
            at = at.f_back
        return at

    def _tell(self, frame: FrameType, cpu: float, waited: float) -> None:
        stack = traceback.extract_stack(frame)
        own = [entry for entry in stack if _is_own(entry.filename)]
        place = own[-1] if own else stack[-1]
        name = f"{place.filename.removeprefix(_ROOT)}:{place.name}"
        if name in self._told:
            return
        self._told.add(name)
        log.warning(
            "event loop blocked",
            place=name,
            cpu_ms=round(cpu * 1000),
            ms=round(waited * 1000),
            stack=" < ".join(f"{Path(e.filename).name}:{e.lineno} {e.name}" for e in reversed(stack[-25:])),
        )


def _clock_of(thread: int) -> Callable[[], float]:
    """The time that a thread has spent on the CPU; where that cannot be asked, the time that passes."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    clock = time.pthread_getcpuclockid(thread)
    return lambda: time.clock_gettime(clock)


def _delayed(schedstat: Path) -> float:
    """Seconds for which a thread could have run and has waited for a CPU, as far as the system tells that."""
    try:
        return int(schedstat.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def _is_own(file: str) -> bool:
    return file.startswith(_ROOT) and not file.startswith(f"{_ROOT}.venv{os.sep}")
