"""What `headwater serve` has been told, and its PostgreSQL: what each process of the server has to know."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.compile import pool
from server.intercept.engine_interface import Backend, EngineInterface
from server.postgres.data_directory import StartupError
from server.postgres.url import PostgresUrl
from server.relay.context import Limits, Siblings
from server.relay.relay import Relay


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `headwater serve`, checked."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 7432
    postgres: PostgresUrl | None = None
    spark: str = "local[*]"
    spark_conf: tuple[str, ...] = ()
    spark_postgres: PostgresUrl | None = None
    sail_memory: int = 1024
    """Megabytes from which on Sail is replaced by a new one, 0 for never."""
    mirror: str | None = None
    mirror_options: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    workers: int = 1
    """Processes that relay; with one it is the main process."""
    max_connections: int = 1000
    allow_trust: bool = False
    compiling: pool.Limits = field(default_factory=pool.Limits)
    metrics: tuple[str, int] | None = None
    """Host and port on which metrics are served; None for none."""
    metrics_objects: int = 200
    """So many objects of each kind have metrics of their own."""
    console: tuple[str, int] | None = None
    """Host and port of the console for browsers; None for none."""
    log_level: str = "info"
    log_format: str = "console"
    traces: str | None = None
    """The URL of a collector to which spans are exported; None for what the environment says."""
    warn_blocked: float = 0.1
    """Seconds of CPU time from which on a callback of the event loop is logged."""


@dataclass(frozen=True, slots=True)
class EmbeddedLogin:
    """Where the embedded PostgreSQL is reached, and by whom."""

    socket_dir: Path
    port: int
    user: str
    password: str


@dataclass(frozen=True, slots=True)
class Storage:
    """The PostgreSQL behind the server, as each part needs to see it."""

    backend: Backend
    login: Callable[[str], dict[str, Any]]
    """Keyword arguments of `asyncpg.connect` that log the engine's role in to a database."""
    user: str
    database: str
    description: str
    alive: Callable[[], bool]
    embedded: EmbeddedLogin | None = None
    """Of the embedded PostgreSQL, None with one of the user's."""

    @staticmethod
    def of_url(url: PostgresUrl) -> Storage:
        """A PostgreSQL of the user's."""
        return Storage(
            backend=url.backend,
            login=lambda database: {"dsn": url.dsn(database)},
            user=url.user,
            database=url.database,
            description=url.dsn(with_password=False),
            alive=lambda: True,
        )

    @staticmethod
    def of_embedded(login: EmbeddedLogin, alive: Callable[[], bool]) -> Storage:
        """The embedded PostgreSQL."""
        return Storage(
            backend=Backend(port=login.port, unix_socket_dir=login.socket_dir),
            login=lambda database: {
                "host": str(login.socket_dir),
                "port": login.port,
                "user": login.user,
                "password": login.password,
            },
            user=login.user,
            database="postgres",
            description="embedded",
            alive=alive,
            embedded=login,
        )


def tls_context(options: ServeOptions) -> ssl.SSLContext | None:
    """What TLS is done with, None without it. Raises StartupError."""
    if options.tls_cert is None or options.tls_key is None:
        return None
    from server.relay.tls import server_context

    try:
        return server_context(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(
            f'could not use certificate "{options.tls_cert}" with key "{options.tls_key}": {error}'
        ) from error


def make_relay(
    options: ServeOptions,
    storage: Storage,
    engine: EngineInterface,
    tls: ssl.SSLContext | None,
    max_connections: int,
    siblings: Siblings | None = None,
) -> Relay:
    """The relay of a process, which may have so many clients."""
    return Relay(
        storage.backend,
        engine,
        tls,
        Limits(max_connections=max_connections),
        options.allow_trust,
        measured=options.metrics is not None,
        siblings=siblings,
    )
