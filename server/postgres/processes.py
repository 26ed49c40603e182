"""The processes of a PostgreSQL cluster: finding them, ending them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import structlog

log = structlog.get_logger(__name__)

FAST_STOP_SECONDS = 60.0
FAST_STOP_SECONDS_AT_START = 3.0
"""While it starts: nobody has written anything yet, and what is being recovered is recovered again next time."""
IMMEDIATE_STOP_SECONDS = 10.0


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
            process.wait(timeout=seconds)
            psutil.wait_procs(children, timeout=IMMEDIATE_STOP_SECONDS)
            return
        except psutil.NoSuchProcess:
            return
        except psutil.TimeoutExpired:
            log.warning("PostgreSQL does not stop", pid=process.pid, signal=number.name, waited_seconds=seconds)
