"""As whom PostgreSQL runs: never as root, and never with root's rights.

An ordinary user runs it as himself. Root runs it as a user who owns the cluster and nothing else: whoever can
make PostgreSQL read a file, write one or start a program (its superusers can) has that user's rights. So root
follows no link and opens no file by its name in a directory that belongs to this user: `text_of` and
`put_text` are for that. The data directory itself, with everything else in it, stays root's.
"""

from __future__ import annotations

import grp
import os
import pwd
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from server.postgres.data_directory import DataDirectory, StartupError

log = structlog.get_logger(__name__)

LAUNCH = Path(__file__).with_name("launch.py")
SYSTEM_USER = "headwater"
INITDB_USER = "nobody"
NUMBERS = (range(0x70000000, 0x7FFE0000), range(60578, 61184))
"""User ids that belong to nobody by systemd's table (UIDS-GIDS.md): many, and a few below 65536, which is where
the ids of a container in a user namespace end."""
SAY_AFTER_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """As whom programs are started: the user `uid` in the group `gid`, or without them whoever we are."""

    uid: int | None = None
    gid: int | None = None

    def command(
        self,
        command: Sequence[str],
        *,
        reach: Iterable[Path] = (),
        shared: Iterable[Path] = (),
        die_with_parent: bool = False,
    ) -> list[str]:
        """The command line that runs `command` so; on Linux it can be tied to our own life.

        `reach` are the directories of the other user that it must get to, `shared` those that are not his.
        """
        options: list[str] = []
        if self.uid is not None:
            options += ["--user", f"{self.uid}:{self.gid}"]
            if sys.platform == "linux":
                options += [option for path in reach for option in ("--reach", str(path))]
                options += [option for path in shared for option in ("--shared", str(path))]
        if die_with_parent and sys.platform == "linux":
            options += ["--parent", str(os.getpid())]
        if not options:
            return list(command)
        return [sys.executable, "-I", "-S", str(LAUNCH), *options, "--", *command]

    def give(self, path: Path | int) -> None:
        """Make the other user the owner of `path`, if there is another user. Raises OSError."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def let_pass(self, directory: Path) -> None:
        """Let the other user's group through a directory of ours, if there is another user."""
        if self.gid is not None:
            os.chown(directory, -1, self.gid)
            directory.chmod(0o710)

    def for_initdb(self) -> Identity:
        """The same group with a user who has a name: initdb looks its own up, and can do without nothing else."""
        if self.uid is None or _has_name(self.uid):
            return self
        try:
            return Identity(pwd.getpwnam(INITDB_USER).pw_uid, self.gid)
        except KeyError:
            raise StartupError(
                f"initdb cannot run as root, nor as a user without a name, and there is no user {INITDB_USER} here",
                f"Make a system user {SYSTEM_USER}, or run headwater as an ordinary user.",
            ) from None


def choose_identity(data: DataDirectory) -> Identity:
    """The identity for a cluster: that of its owner, or for a new one (or root's) another one. Raises StartupError."""
    if os.geteuid() != 0:
        return Identity()
    if (owner := data.path.stat().st_uid) != 0:
        raise StartupError(
            f'data directory "{data.path}" belongs to user id {owner}, and headwater runs as root',
            f'Run headwater as that user, or give the directory itself to root: chown root "{data.path}"',
        )
    if data.postgres.exists() and (cluster := data.postgres.stat()).st_uid != 0:
        return Identity(cluster.st_uid, cluster.st_gid or cluster.st_uid)
    try:
        entry = pwd.getpwnam(SYSTEM_USER)
        return Identity(entry.pw_uid, entry.pw_gid)
    except KeyError:
        return _a_new_one()


def _a_new_one() -> Identity:
    """A user of whom nobody has heard: the number alone, which the ownership of the cluster keeps."""
    for numbers in NUMBERS:
        if _exist("/proc/self/uid_map", numbers) and _exist("/proc/self/gid_map", numbers):
            while _has_name(number := secrets.choice(numbers)) or _is_a_group(number):
                continue
            return Identity(number, number)
    raise StartupError(
        "PostgreSQL cannot run as root, and there are no other user ids here (/proc/self/uid_map)",
        "Run headwater as an ordinary user.",
    )


def _exist(namespace: str, numbers: range) -> bool:
    """True if these ids exist in our user namespace."""
    try:
        lines = Path(namespace).read_text().splitlines()
    except FileNotFoundError:  # not Linux: there are no namespaces
        return True
    mapped = [(int(first), int(first) + int(count)) for first, _, count in map(str.split, lines)]
    return any(first <= numbers[0] and numbers[-1] < end for first, end in mapped)


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _is_a_group(gid: int) -> bool:
    try:
        grp.getgrgid(gid)
    except KeyError:
        return False
    return True


# What belongs to whom


def let_in(data: DataDirectory, identity: Identity) -> None:
    """Let the other user through the data directory, to what is his in it and to nothing else. Raises OSError.

    A directory that has been closed to everybody is opened to his group, after what is in it has been closed.
    One that the operator has opened, to all or to a group of his own, is left as it is.
    """
    if identity.uid is None or identity.gid is None:
        return
    status = data.path.stat()
    passing = status.st_mode & 0o077
    if passing not in (0, 0o010) or (passing and status.st_gid != identity.gid and _is_a_group(status.st_gid)):
        return
    for name in ("mirror", "spark"):
        if not os.path.lexists(data.path / name):
            (data.path / name).mkdir(mode=0o700)
    if not passing:
        for entry in os.scandir(data.path):
            if not entry.is_symlink():
                os.chmod(entry.path, stat.S_IMODE(entry.stat().st_mode) & 0o700)
    identity.let_pass(data.path)


def hand_over(data: DataDirectory, identity: Identity) -> None:
    """Give a cluster of root's to the other user, and the logs. Raises OSError.

    What is in a directory comes before the directory itself, and the cluster's own is the last of all: whose
    that is, his is everything.
    """
    if identity.uid is None:
        return
    if data.postgres.stat().st_uid == 0:
        log.info("giving the embedded PostgreSQL to a user of its own", directory=str(data.postgres), uid=identity.uid)
        for space in tablespaces(data.postgres):
            for version in space.glob("PG_*"):
                give_tree(version, identity)
            identity.give(space)
        for wal in wal_elsewhere(data.postgres):
            give_tree(wal, identity)
        give_tree(data.postgres, identity)
    if data.logs.stat().st_uid != identity.uid:
        give_tree(data.logs, identity)


def give_tree(top: Path, identity: Identity) -> None:
    """Make the other user the owner of everything below `top`, and of `top` itself last. No link is followed.

    Raises OSError.
    """
    if identity.uid is None or identity.gid is None:
        return
    top = top.resolve()
    said, count = time.monotonic(), 0
    for _, directories, files, handle in os.fwalk(top, topdown=False, onerror=_raise):
        for name in (*files, *directories):
            os.chown(name, identity.uid, identity.gid, dir_fd=handle, follow_symlinks=False)
        count += len(files)
        if time.monotonic() - said > SAY_AFTER_SECONDS:
            said = time.monotonic()
            log.info("still giving files to PostgreSQL's user", directory=str(top), files=count)
    identity.give(top)


def _raise(error: OSError) -> None:
    raise error


def tablespaces(cluster: Path) -> list[Path]:
    """Where a cluster's tablespaces are, as far as they are there."""
    try:
        return _where_links_lead(os.scandir(cluster / "pg_tblspc"))
    except OSError:  # PostgreSQL will say what it lacks
        return []


def wal_elsewhere(cluster: Path) -> list[Path]:
    """Where a cluster's WAL is, if it is not in the cluster."""
    return _where_links_lead([cluster / "pg_wal"])


def _where_links_lead(paths: Iterable[Path | os.DirEntry[str]]) -> list[Path]:
    return [Path(os.path.realpath(path)) for path in paths if path.is_symlink() and os.path.isdir(path)]


# Files in a directory of the other user's


def text_of(path: Path) -> str:
    """What is in an ordinary file; a link is not followed, and a pipe not waited for. Raises OSError."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), errors="replace") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(f"{path} is not a file")
        return file.read()


def put_text(path: Path, text: str, identity: Identity) -> None:
    """Write a new file in the place of whatever has this name. Raises OSError."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        identity.give(file.fileno())
        file.write(text)
    os.replace(new, path)
