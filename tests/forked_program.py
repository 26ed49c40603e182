"""The program `headwater` in a process that has Python's packages loaded already: forked from one that has loaded them.

To load them takes most of the CPU time that a server needs until it is ready, and the tests start some hundred servers.
Headwater's own modules are loaded anew, but for the compiler's, which keep nothing. What is tested is how a server
behaves; how its command is started is tested in `e2e/commands`, where it is started as users do.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import TimeoutExpired

_FORKING = get_context("forkserver")
_FORKING.set_forkserver_preload(
    [
        *(
            "asyncpg",
            "cronsim",
            "networkx",
            "prometheus_client",
            "psutil",
            "psycopg",
            "rich.markdown",
            "rich.traceback",
        ),
        *("structlog", "tenacity", "typer._adapters", "typer.rich_utils", "uvloop", "sql.jobs"),
    ]
)


class ForkedProgram:
    """A `headwater` command that runs, in the words of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], log: Path):
        """Start it, with the environment of this process. Its stderr is added to `log`."""
        self.arguments = list(arguments)
        reading, writing = _FORKING.Pipe(duplex=False)
        self._process = _FORKING.Process(target=_run, args=(self.arguments, writing, log, dict(os.environ)))
        self._process.start()
        writing.close()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdout = os.fdopen(os.dup(reading.fileno()))
        reading.close()

    def poll(self) -> int | None:
        """Its exit status, negative for a signal's number; None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, once it has ended. Raises TimeoutExpired (seconds)."""
        self._process.join(timeout)
        status = self.poll()
        if status is None:
            raise TimeoutExpired(["headwater", *self.arguments], timeout or 0)
        return status

    def send_signal(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(arguments: Sequence[str], stdout: Connection, log: Path, environment: Mapping[str, str]) -> None:
    with log.open("ab") as stderr:
        os.dup2(stderr.fileno(), sys.stderr.fileno())
    os.dup2(stdout.fileno(), sys.stdout.fileno())
    stdout.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["headwater", *arguments]
    from server.commands.cli import main

    main()
