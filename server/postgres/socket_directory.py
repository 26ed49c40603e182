"""The directory of the embedded PostgreSQL's Unix socket, which only we can enter."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from server.postgres.data_directory import StartupError
from server.postgres.unprivileged import Identity

SOCKET_NAME = ".s.PGSQL.5432"
SOCKET_PATH_LIMIT = 103  # bytes of sun_path that Linux (107) and macOS (103) both allow


class SocketDirectory:
    """`name`, or where that is too long for a socket a short one to which `name` is a link.

    The link is there so that the next start finds and removes what a killed server has left.
    """

    def __init__(self, name: Path, identity: Identity):
        self.path = name
        self._name = name
        self._identity = identity
        _remove(name)
        if len(os.fsencode(name / SOCKET_NAME)) > SOCKET_PATH_LIMIT:
            short = Path(tempfile.mkdtemp(prefix="headwater-", dir=_runtime_dir()))
            name.symlink_to(short)
            self.path = short / "socket"
            if identity.uid is not None:
                short.chmod(0o711)  # and not the other user's, who could put something else into its place
        self.path.mkdir(mode=0o700)
        identity.give(self.path)

    def close(self) -> None:
        """The other user has made his socket, and is to put nothing else there: clients connect to it as root.

        Raises StartupError if it is not a socket.
        """
        if self._identity.uid is None:
            return
        os.chown(self.path, os.geteuid(), -1)
        self._identity.let_pass(self.path)
        if not stat.S_ISSOCK((self.path / SOCKET_NAME).lstat().st_mode):
            raise StartupError(f'what PostgreSQL has made in "{self.path}" is not a socket')

    def remove(self) -> None:
        _remove(self._name)


def _remove(name: Path) -> None:
    if name.is_symlink():
        shutil.rmtree(name.readlink(), ignore_errors=True)
        name.unlink()
    else:
        shutil.rmtree(name, ignore_errors=True)


def _runtime_dir() -> str:
    if os.geteuid() == 0:  # root's own is closed to PostgreSQL's user
        return "/tmp"
    place = os.environ.get("XDG_RUNTIME_DIR", "")
    return place if place and len(place) < 40 and os.access(place, os.W_OK) else "/tmp"
