"""Sail in a process of its own, as its starter sees it: started, asked where it is, ended."""

from __future__ import annotations

import itertools
import os
import select
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import structlog

log = structlog.get_logger(__name__)

PROGRAM = Path(__file__).with_name("sail_program.py")
START_SECONDS = 60.0
STOP_SECONDS = 1.0
"""It has nothing to put in order."""

_numbers = itertools.count(1)


class SailFailed(Exception):
    """Sail could not be started; the message says why."""


class SailProcess:
    """One Sail. All methods block; they are called from threads.

    Only who may enter `work_dir`/sail reaches it. Where the system cannot turn others away, it is not started.
    """

    def __init__(self, work_dir: Path):
        self._directory = work_dir / "sail"
        self._name = f"socket-{os.getpid()}-{next(_numbers)}"
        """Of its own: the one that it comes after may still be ending, and removes what was its own."""
        self._entered: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False
        self.target = ""
        """Where gRPC connects to."""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def memory(self) -> int:
        """Bytes of its memory that are resident, 0 if it does not run."""
        try:
            process = psutil.Process(self.pid or 0)
            return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
        except psutil.Error:
            return 0

    def start(self) -> None:
        """Start it and wait until it listens. Raises SailFailed, OSError."""
        with self._lock:
            if self._stopped:
                raise SailFailed("Sail was stopped while it started")
            with self._listen() as listener:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", str(PROGRAM), str(listener.fileno())],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=[listener.fileno()],
                    env={"RUST_LOG": "error", **os.environ},
                    start_new_session=True,  # the terminal's Ctrl-C is for us, not for it
                )
        said = self._first_line(self._process)
        word, _, rest = said.partition(" ")
        if word != "ready":
            stopped = self._stopped
            self.stop()
            raise SailFailed("Sail was stopped while it started" if stopped else rest or "it ended without a word")
        log.info("sail_started", pid=self.pid)

    def _listen(self) -> socket.socket:
        """A Unix socket that only we can reach. It is named by the directory's descriptor: a path may be too long."""
        if not hasattr(os, "O_PATH"):
            raise SailFailed(f"there is no packet filter for it on {sys.platform}")
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._directory.chmod(0o700)
        for left in self._directory.iterdir():
            if not left.name.startswith(f"socket-{os.getpid()}-"):  # of a server that was killed
                left.unlink(missing_ok=True)
        self._entered = os.open(self._directory, os.O_PATH | os.O_DIRECTORY)
        path = f"/proc/self/fd/{self._entered}/{self._name}"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(path)
        listener.listen()
        self.target = f"unix:{path}"
        return listener

    @staticmethod
    def _first_line(process: subprocess.Popen[bytes]) -> str:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
        return process.stdout.readline().decode(errors="replace").strip() if ready else ""

    def stop(self) -> None:
        """End it, whatever it computes. Idempotent."""
        with self._lock:
            self._stopped = True
            process = self._process
            entered, self._entered = self._entered, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if entered is not None:
            os.close(entered)
            (self._directory / self._name).unlink(missing_ok=True)
