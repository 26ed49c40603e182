"""The server that a benchmark measures: one of its own, on a data directory that goes with it, or is kept."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import conninfo, sql

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class Served:
    """A running server."""

    dsn: str
    """Through the server."""
    direct: str
    """To its PostgreSQL, past the server."""
    data: Path
    pid: int


@contextmanager
def served(
    spark: str = "off", max_connections: int | None = None, data: Path | None = None, root: Path = ROOT
) -> Iterator[Served]:
    """Start a server, and stop it in the end; what it has logged is shown where the benchmark fails.

    With `max_connections` it is started twice: PostgreSQL reads that once, when it starts. `data` is a data directory
    to be kept, which may be there already; `root` the checkout whose server it is.
    """
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as directory:
        log = Path(directory) / "server.log"
        data = data or Path(directory) / "data"
        if max_connections is not None:
            with (
                _started(data, log, spark, root) as server,
                psycopg.connect(server.direct, autocommit=True) as connection,
            ):
                setting = sql.SQL("ALTER SYSTEM SET max_connections = {}").format(sql.Literal(max_connections))
                connection.execute(setting)
        with _started(data, log, spark, root, max_connections) as server:
            yield server


@contextmanager
def _started(data: Path, log: Path, spark: str, root: Path, most: int | None = None) -> Iterator[Served]:
    options = [] if most is None else ["--max-connections", str(most)]
    command = [sys.executable, "-m", "server", "serve", "--data", str(data), "--port", "0", "--spark", spark, *options]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=root)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip().removeprefix("ready: ")
        user, password = (data / "pgpass").read_text().strip().rsplit(":", 2)[-2:]
        socket = (data / "postgres" / "postmaster.pid").read_text().splitlines()
        yield Served(
            conninfo.make_conninfo(url, user=user, password=password),
            conninfo.make_conninfo(host=socket[4], port=socket[3], dbname="postgres", user=user, password=password),
            data,
            process.pid,
        )
    except BaseException:
        print(log.read_text()[-3000:], file=sys.stderr)
        raise
    finally:
        process.terminate()
        process.wait(60)
