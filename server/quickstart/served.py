"""The server of the quickstart: a `headwater serve` of its own, spoken to over the wire as by any client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from server.postgres.data_directory import DataDirectory, StartupError
from server.postgres.unprivileged import LAUNCH

STOP_SECONDS = 90.0

Connection = psycopg.Connection[tuple[object, ...]]


class QuickstartError(Exception):
    """The quickstart cannot go on, or has shown what it must not; `hint` says what to do."""

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Served:
    """A server that accepts connections."""

    process: subprocess.Popen[str]
    data: Path
    url: str

    def connect(self, database: str) -> Connection:
        """A connection through the server, in autocommit."""
        return psycopg.connect(
            f"{self.url.rsplit('/', 1)[0]}/{database}",
            passfile=str(self.data / "pgpass"),
            autocommit=True,
            application_name="headwater quickstart",
        )


@contextmanager
def served(data: Path, spark: str, *, keep: bool) -> Iterator[Served]:
    """Run `headwater serve` for the time of the block, and with `keep` beyond it, if the block succeeds.

    Raises StartupError if the server does not start.
    """
    DataDirectory(data).create()
    log = data / "headwater.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            _command(data, spark, keep=keep),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            cwd="/",
            env={k: v for k, v in os.environ.items() if not k.startswith("HEADWATER_")},
            start_new_session=True,  # Ctrl-C is for us; we stop the server
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready: "):
            process.wait(timeout=STOP_SECONDS)
            raise StartupError(f"the server did not start: {_last_lines(log)}", f'Its log is in "{log}".')
        with _terminable():
            yield Served(process, data, line.removeprefix("ready: ").strip())
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """End the server and everything it started."""
    process.terminate()
    try:
        process.wait(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _command(data: Path, spark: str, *, keep: bool) -> list[str]:
    server = [sys.executable, "-P", "-m", "headwater", "serve", "--data", str(data), "--port", "0", "--spark", spark]
    if keep or sys.platform != "linux":
        return server
    return [sys.executable, "-I", "-S", str(LAUNCH), "--parent", str(os.getpid()), "--", *server]


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the block as an exception does."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _last_lines(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return "; ".join(lines[-3:]) or "it said nothing"
