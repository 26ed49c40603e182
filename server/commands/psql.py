"""`headwater psql`: the bundled psql, connected to the running server."""

from __future__ import annotations

import os
from collections.abc import Sequence

from server.postgres.cluster import binaries
from server.postgres.data_directory import DataDirectory, Running

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def command(arguments: Sequence[str]) -> list[str]:
    """The command line, psql's own path first. Raises StartupError if there is no psql for this platform."""
    return [str(binaries() / "psql"), *arguments]


def environment(running: Running, data: DataDirectory) -> dict[str, str]:
    """Our environment, with libpq's variables pointing at the server. Options given to psql win over them."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PGHOSTADDR", "PGSERVICE", "PGSSLMODE")}
    connection = {
        "PGHOST": reachable(running.host),
        "PGPORT": str(running.port),
        "PGUSER": running.user,
        "PGDATABASE": running.database,
    }
    if running.postgres == "embedded":
        connection["PGPASSFILE"] = str(data.passfile)
        inherited.pop("PGPASSWORD", None)
    return {**inherited, **connection}


def reachable(host: str) -> str:
    """The address under which a server that listens on `host` is reached from this machine.

    >>> reachable("0.0.0.0")
    '127.0.0.1'
    """
    return ANY_ADDRESS.get(host, host)
