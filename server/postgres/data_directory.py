"""The data directory of one server: where things are, who has it locked, where the running server listens."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self


class StartupError(Exception):
    """The server cannot start, for a reason its user can do something about; `hint` says what."""

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint


def default_path() -> Path:
    """$HEADWATER_DATA, or `headwater` under $XDG_DATA_HOME (default ~/.local/share)."""
    if chosen := os.environ.get("HEADWATER_DATA"):
        return Path(chosen)
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "headwater"


@dataclass(frozen=True, slots=True)
class Running:
    """What a running server says about itself to `headwater psql` and `headwater status`."""

    pid: int
    host: str
    port: int
    version: str
    started_at: str
    user: str
    database: str
    postgres: str  # "embedded", or the URL of the PostgreSQL behind the server, without its password
    spark: str
    tls: bool


class DataDirectory:
    """Paths below the data directory, its lock, and the record of the server that runs on it.

    The lock is an flock: the kernel lets go of it when the process ends, however it ends.
    """

    def __init__(self, path: Path):
        self.path = path.expanduser().absolute()
        self._lock: int | None = None

    @property
    def postgres(self) -> Path:
        return self.path / "postgres"

    @property
    def passfile(self) -> Path:
        """Password of the embedded cluster's superuser, in the format of PGPASSFILE."""
        return self.path / "pgpass"

    @property
    def logs(self) -> Path:
        return self.path / "log"

    @property
    def _lock_file(self) -> Path:
        return self.path / "headwater.lock"

    @property
    def _run_file(self) -> Path:
        return self.path / "headwater.run"

    def create(self) -> Self:
        """Make the directory (mode 0700) if it is missing. Raises StartupError."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.logs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise StartupError(
                f'could not create data directory "{self.path}": {error.strerror}',
                "Choose another one with --data.",
            ) from error
        return self

    def lock(self) -> None:
        """Take the directory for this process. Raises StartupError if another server has it."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StartupError(
                f'could not open lock file "{self._lock_file}": {error.strerror}',
                "The data directory must belong to the user who runs headwater.",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise StartupError(
                f'data directory "{self.path}" is in use by another headwater server (pid {owner})',
                "Stop that server, or choose another directory with --data.",
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        self._lock = descriptor

    def unlock(self) -> None:
        """Let go of the directory; the file stays, since removing it would race with the next lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_locked(self) -> bool:
        """True if a server runs on this directory."""
        try:
            descriptor = os.open(self._lock_file, os.O_RDWR)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    def announce(self, running: Running) -> None:
        """Record where the server listens; replaced in one step, so that readers never see half of it."""
        new = self._run_file.with_suffix(".run.new")
        new.write_text(json.dumps(asdict(running)))
        os.replace(new, self._run_file)

    def withdraw(self) -> None:
        self._run_file.unlink(missing_ok=True)

    def running(self) -> Running | None:
        """The server that runs on this directory and accepts connections, if there is one."""
        if not self.is_locked():
            return None
        try:
            return Running(**json.loads(self._run_file.read_text()))
        except (OSError, ValueError, TypeError):
            return None
