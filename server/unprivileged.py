"""As whom PostgreSQL runs: it refuses to be root.

An ordinary user runs it as himself. Root runs it in a user namespace in which root is seen as an ordinary
user, so that every file stays root's; where the system does not permit that, as a system user to whom the
cluster is given.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from server.data_directory import StartupError

LAUNCH = Path(__file__).with_name("launch.py")
SYSTEM_USERS = ("headwater", "postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Identity:
    """How a program is started so that it is not root."""

    user_namespace: bool = False
    uid: int | None = None
    gid: int | None = None

    def command(self, command: Sequence[str], *, die_with_parent: bool = False) -> list[str]:
        """The command line that runs `command` so; on Linux it can be tied to our own life."""
        options: list[str] = []
        if self.user_namespace:
            options.append("--user-namespace")
        if self.uid is not None:
            options += ["--run-as", f"{self.uid}:{self.gid}"]
        if die_with_parent and sys.platform == "linux":
            options += ["--parent", str(os.getpid())]
        if not options:
            return list(command)
        return [sys.executable, "-I", "-S", str(LAUNCH), *options, "--", *command]

    def give(self, path: Path) -> None:
        """Make the other user the owner of `path`, if there is another user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)


def choose_identity(data: Path, cluster: Path, programs: Path) -> Identity:
    """The identity for a cluster: the one it was made with, or the best there is. Raises StartupError."""
    if os.geteuid() != 0:
        return Identity()
    owner = cluster.stat().st_uid if cluster.exists() else 0
    if owner != 0:
        identity = Identity(uid=owner, gid=cluster.stat().st_gid)
        if not _reaches(identity, data, programs):
            raise StartupError(
                f'PostgreSQL cannot run as root, and user id {owner}, who owns "{cluster}", '
                f'cannot reach it or "{programs}"',
                "Run headwater as that user.",
            )
        return identity
    if user_namespaces_work():
        return Identity(user_namespace=True)
    for name in SYSTEM_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        identity = Identity(uid=entry.pw_uid, gid=entry.pw_gid)
        if _reaches(identity, data, programs):
            identity.give(data)
            return identity
    raise StartupError(
        "PostgreSQL cannot run as root: user namespaces are not permitted here, and no system user "
        f'({", ".join(SYSTEM_USERS)}) can reach both "{data}" and "{programs}"',
        "Run headwater as an ordinary user, or use a PostgreSQL that runs already with --postgres URL.",
    )


@lru_cache
def user_namespaces_work() -> bool:
    """True if root may enter a user namespace here (containers often forbid it)."""
    if sys.platform != "linux":
        return False
    command = Identity(user_namespace=True).command(["/bin/sh", "-c", 'test "$(id -u)" != 0'])
    return subprocess.run(command, capture_output=True).returncode == 0


def _reaches(identity: Identity, data: Path, programs: Path) -> bool:
    """True if this user can start the programs and get through to the data directory."""
    script = 'test -x "$0/postgres" && "$0/postgres" --version && test -x "$1"'
    command = identity.command(["/bin/sh", "-c", script, str(programs), str(data.parent)])
    return subprocess.run(command, capture_output=True).returncode == 0
