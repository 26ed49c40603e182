"""The processes of a PostgreSQL cluster: finding them, ending them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import structlog

log = structlog.get_logger(__name__)

FAST_STOP_SECONDS = 60.0
FAST_STOP_SECONDS_AT_START = 3.0
"""While it starts: nobody has written anything yet, and what is being recovered is recovered again next time."""
IMMEDIATE_STOP_SECONDS = 10.0
POLL_SECONDS = 0.01


def processes_in(directory: Path) -> list[psutil.Process]:
    """The PostgreSQL processes of a cluster: each has the data directory as its working directory."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.name().startswith("postgres") and os.path.samefile(process.cwd(), directory):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def without_children(processes: list[psutil.Process]) -> list[psutil.Process]:
    """The postmasters among a cluster's processes: the others end when their postmaster does."""
    pids = {process.pid for process in processes}
    found = []
    for process in processes:
        try:
            if process.ppid() not in pids:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def stop_process(process: psutil.Process, patience: float = FAST_STOP_SECONDS) -> None:
    """Fast shutdown for so many seconds, then immediate shutdown, then SIGKILL.

    Its children have ended as well then: the log collector is the only one that outlives a postmaster, by a moment.
    """
    steps = (
        (signal.SIGINT, patience),
        (signal.SIGQUIT, IMMEDIATE_STOP_SECONDS),
        (signal.SIGKILL, IMMEDIATE_STOP_SECONDS),
    )
    for number, seconds in steps:
        try:
            children = process.children()
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return
        if not await_end([process], seconds):
            await_end(children, IMMEDIATE_STOP_SECONDS)
            return
        log.warning("PostgreSQL does not stop", pid=process.pid, signal=number.name, waited_seconds=seconds)


def await_end(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait for processes to end, so long at most; those that have not.

    A zombie has ended. How long it stays one is up to its parent, which may be the system's init: `psutil.wait_procs`
    waits for that, a second or two in some containers.
    """
    until = time.monotonic() + seconds
    while running := [process for process in processes if not _has_ended(process)]:
        if time.monotonic() >= until:
            break
        time.sleep(POLL_SECONDS)
    return running


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
