"""Files by which the embedded PostgreSQL knows what the server installs as extensions (`catalog.registration`).

PostgreSQL 18 looks for them where `extension_control_path` says. They are in the cluster's own directory, written anew
at every start. An entry in `pg_extension` is all that their scripts make.

The directory belongs to PostgreSQL's user, while the server may be root: so no link in it is followed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from catalog.systems import EARLIER_VERSIONS, MADE_BY, SYSTEMS, VERSION, System
from server.postgres.unprivileged import Identity

DIRECTORY = "extension"
"""PostgreSQL adds this name to what `extension_control_path` says."""
SCRIPT = r"\echo Connect through Headwater, which installs this. \quit" + "\n"


def extension_settings(cluster: Path, version: int) -> dict[str, str]:
    """The setting by which a PostgreSQL of this major version finds the files, where it can."""
    if version < 18 or ":" in str(cluster):  # there is no way to write a colon
        return {}
    return {"extension_control_path": f"{cluster}:$system"}


def write_extension_files(cluster: Path, identity: Identity) -> None:
    """Write the files of all systems into a cluster's directory. Raises OSError."""
    place = os.open(cluster, os.O_DIRECTORY)
    try:
        with suppress(FileExistsError):
            os.mkdir(DIRECTORY, 0o700, dir_fd=place)
        directory = os.open(DIRECTORY, os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
        try:
            identity.give(directory)
            for name, text in _files().items():
                _put(directory, name, text, identity)
        finally:
            os.close(directory)
    finally:
        os.close(place)


def _files() -> dict[str, str]:
    """The texts of all files, by their names."""
    files = {}
    for system in SYSTEMS:
        files[f"{system.extension}.control"] = _control(system)
        files[f"{system.extension}--{VERSION}.sql"] = SCRIPT
        files |= {f"{system.extension}--{earlier}--{VERSION}.sql": SCRIPT for earlier in EARLIER_VERSIONS}
    return files


def _control(system: System) -> str:
    lines = [f"comment = '{MADE_BY}{system.title}'", f"default_version = '{VERSION}'", "relocatable = false"]
    lines += [] if system.movable else [f"schema = '{system.schema}'"]
    return "\n".join(lines) + "\n"


def _put(directory: int, name: str, text: str, identity: Identity) -> None:
    """Write a file in the place of whatever has this name."""
    new = f"{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(new, dir_fd=directory)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory), "w") as file:
        identity.give(file.fileno())
        file.write(text)
    os.replace(new, name, src_dir_fd=directory, dst_dir_fd=directory)
