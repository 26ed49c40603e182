"""`headwater serve`: everything that makes up a running server, started in order and stopped in reverse.

PostgreSQL first (our own, or one that runs already), then the engine on top of it, then the relay that lets
clients in. Whatever ends the process, nothing that it started stays behind: a signal ends it cleanly, and
after kill -9 the kernel tells the embedded PostgreSQL (`launch`) and the closed pipe tells Spark's JVM.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import asyncpg
import structlog
import uvloop

from engine.compile import pool
from engine.publish.places import Places
from engine.refresh.executor_choice import NoSpark, Spark
from engine.requests.requests import Loader
from engine.service import Engine, Maintenance
from engine.session.pool import DatabasePool
from engine.spark.tally import SparkLoad
from server import __version__
from server.commands import traces
from server.commands.spark_parts import LoadedParts, SparkParts
from server.intercept.engine_interface import Backend
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory, Running, StartupError
from server.postgres.url import PostgresUrl
from server.relay.context import Limits
from server.relay.listener import Relay
from server.relay.loop_watch import LoopWatch

if TYPE_CHECKING:
    from server.metrics.collector import Collector
    from server.metrics.service import MetricsService

log = structlog.get_logger(__name__)

LOOK_AFTER_POSTGRES_SECONDS = 0.5

INTERRUPT_JOBS_SECONDS = 0.3
"""So long jobs of Spark have to be interrupted when the server stops."""

CONNECT_TO_WRITE_SECONDS = 1.0
"""A PostgreSQL that does not answer within this time when the server is stopped is not waited for."""


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
class Storage:
    """The PostgreSQL behind the server, as each part needs to see it."""

    backend: Backend
    login: Callable[[str], dict[str, Any]]
    """Keyword arguments of `asyncpg.connect` that log the engine's role in to a database."""
    user: str
    database: str
    description: str
    alive: Callable[[], bool]
    embedded: bool = False


class Interrupted(BaseException):
    """SIGTERM, SIGINT or SIGHUP came before the server was ready."""


def serve(options: ServeOptions, ready: Callable[[str], None]) -> int:
    """Run a server until a signal ends it; returns the exit status.

    `ready` is called with the server's URL once it accepts connections. Raises StartupError.
    """
    try:
        with ExitStack() as stack:
            _interrupt_on_signals()
            data = DataDirectory(options.data).create()
            data.lock()
            stack.callback(data.unlock)
            data.withdraw()  # what a killed server said about itself
            tls = _tls_context(options)
            exporting = traces.start(options.traces)
            storage = _storage(options, data, stack)
            status = uvloop.run(_run(options, data, storage, tls, exporting, ready))
            _ignore_signals()  # the rest is short, and ends by itself
            return status
    except Interrupted:
        return 0


def _storage(options: ServeOptions, data: DataDirectory, stack: ExitStack) -> Storage:
    if options.spark_postgres is not None and options.spark_postgres.has_password:
        log.warning("the password in --spark-postgres is not used: Spark's executors log in as roles made for each job")
    if (url := options.postgres) is not None:
        version = url.check(creates_roles=options.spark_postgres is not None)
        log.info("in front of PostgreSQL", url=url.dsn(with_password=False), version=version)
        if lines := url.lines_without_proof():
            log.warning(
                "pg_hba.conf lets the server in without asking its clients for a password"
                + (", and so everybody who reaches it" if options.allow_trust else "; they will be refused"),
                lines=lines,
            )
        return Storage(
            backend=url.backend,
            login=lambda database: {"dsn": url.dsn(database)},
            user=url.user,
            database=url.database,
            description=url.dsn(with_password=False),
            alive=lambda: True,
        )
    cluster = EmbeddedPostgres(data)
    stack.callback(cluster.stop)
    cluster.start()
    log.info("embedded PostgreSQL runs", directory=str(data.postgres), pid=cluster.pid)
    return Storage(
        backend=Backend(port=cluster.port, unix_socket_dir=cluster.socket_dir),
        login=lambda database: {
            "host": str(cluster.socket_dir),
            "port": cluster.port,
            "user": cluster.user,
            "password": cluster.password,
        },
        user=cluster.user,
        database="postgres",
        description="embedded",
        alive=lambda: cluster.poll() is None,
        embedded=True,
    )


async def _run(
    options: ServeOptions,
    data: DataDirectory,
    storage: Storage,
    tls: ssl.SSLContext | None,
    exporting: traces.Exporting | None,
    ready: Callable[[str], None],
) -> int:
    stopping = _stop_on_signals()
    async with AsyncExitStack() as parting, AsyncExitStack() as stack:
        if exporting is not None:
            stack.push_async_callback(exporting.stop)
        stack.callback(LoopWatch(options.warn_blocked).stop)
        compilers = pool.configure(options.compiling)
        stack.callback(compilers.stop)
        parts = await stack.enter_async_context(_spark(options, data))
        metrics = await _listen_for_metrics(options, storage, stack)
        engine = Engine(
            storage.login,
            parts.spark_for,
            storage.database,
            loader=parts.loader,
            mirror_maintenance_for=parts.mirror_maintenance_for,
            places=Places((data.path,)),
        )
        stack.push_async_callback(_stop, engine.stop, parts.stop)
        await engine.start()
        relay = await _let_clients_in(options, storage, engine, tls, stack)
        await _serve_console(options, storage, relay.port, stack)
        if metrics is not None:
            metrics.collector = _collector(options, storage, relay, engine, parts)
        gc.freeze()  # what is there now stays: looking for garbage in it would only hold clients up
        gc.enable()
        data.announce(_description(options, storage, relay.port))
        stack.callback(data.withdraw)
        ready(_address(options.host, relay.port, storage.user, storage.database))
        compilers.warm_up()  # not before: it would compete for the machine with the rest of the start
        status = await _until_stopped(stopping, storage)
        if status == 0 and storage.embedded:
            await parting.enter_async_context(_checkpoint(storage))
        return status


async def _let_clients_in(
    options: ServeOptions, storage: Storage, engine: Engine, tls: ssl.SSLContext | None, stack: AsyncExitStack
) -> Relay:
    """The relay, which listens. Raises StartupError."""
    limits = Limits(max_connections=options.max_connections)
    measured = options.metrics is not None
    relay = Relay(
        storage.backend, engine, tls, options.host, options.port, limits, options.allow_trust, measured=measured
    )
    stack.push_async_callback(relay.stop)
    try:
        await relay.start()
    except OSError as error:
        raise StartupError(
            f"could not listen on {options.host} port {options.port}: {error.strerror or error}",
            "Choose another port with --port (0 takes any free one)."
            if error.errno in (errno.EADDRINUSE, errno.EACCES)
            else "Choose an address of this machine with --host.",
        ) from error
    return relay


async def _listen_for_metrics(options: ServeOptions, storage: Storage, stack: AsyncExitStack) -> MetricsService | None:
    """What answers scrapers and load balancers, from now on, though nothing is ready yet. Raises StartupError."""
    if options.metrics is None:
        return None
    from server.metrics.service import MetricsService, PostgresCheck

    check = PostgresCheck(DatabasePool(storage.database, storage.login, max_size=1))
    service = MetricsService(*options.metrics, check, storage.alive)
    stack.push_async_callback(service.stop)
    await service.start()
    return service


async def _serve_console(options: ServeOptions, storage: Storage, relay_port: int, stack: AsyncExitStack) -> None:
    """Start the console's process, if there is to be one. Raises StartupError."""
    if options.console is None:
        return
    from server.console.child import ConsoleProcess
    from server.console.config import ConsoleConfig, local_address

    host, port = options.console
    console = ConsoleProcess(
        ConsoleConfig(
            host=host,
            port=port,
            relay_host=local_address(options.host),
            relay_port=relay_port,
            database=storage.database,
            log_level=options.log_level,
            log_format=options.log_format,
            tls_cert=None if options.tls_cert is None else str(options.tls_cert.absolute()),
            tls_key=None if options.tls_key is None else str(options.tls_key.absolute()),
        )
    )
    stack.push_async_callback(console.stop)
    await console.start()


def _collector(options: ServeOptions, storage: Storage, relay: Relay, engine: Engine, parts: EngineParts) -> Collector:
    from server.metrics.collector import Collector

    return Collector(
        relay, lambda: engine.pools, parts.load, storage.alive if storage.embedded else None, options.metrics_objects
    )


async def _stop(stop_engine: Callable[[], Awaitable[None]], stop_spark: Callable[[], Awaitable[None]]) -> None:
    """Stop the engine, and Spark a moment after it has begun to end: a job that does not let itself be interrupted, and
    the refresh that waits for it, end with Spark.
    """
    ending = asyncio.ensure_future(stop_engine())
    try:
        await asyncio.wait({ending}, timeout=INTERRUPT_JOBS_SECONDS)
        await stop_spark()
    finally:
        await ending


@asynccontextmanager
async def _checkpoint(storage: Storage) -> AsyncIterator[None]:
    """Have PostgreSQL write, while all else ends, what it would otherwise write when it is stopped itself.

    It goes on with that where the rest has ended earlier.
    """

    try:
        connection = await asyncpg.connect(**storage.login(storage.database), timeout=CONNECT_TO_WRITE_SECONDS)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        log.warning("no checkpoint before the end", error=str(error))  # it takes longer then, that is all
        yield
        return
    writing = asyncio.create_task(connection.execute("CHECKPOINT"), name="headwater checkpoint")
    try:
        yield
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        connection.terminate()


@dataclass(frozen=True, slots=True)
class EngineParts:
    """What the engine is given of a Spark, or of none."""

    spark_for: Callable[[DatabasePool], Spark]
    stop: Callable[[], Awaitable[None]]
    """Ends Spark, which the engine then cannot use any more. Idempotent."""
    load: Callable[[], SparkLoad | None] = lambda: None
    """What Spark has to do, as far as it has been needed."""
    loader: Loader | None = None
    mirror_maintenance_for: Callable[[DatabasePool], Maintenance] | None = None


@asynccontextmanager
async def _spark(options: ServeOptions, data: DataDirectory) -> AsyncIterator[EngineParts]:
    """The Spark of this server, for each database and for COPY from files; what needs it first starts it."""
    if options.spark == "off":
        from engine.spark.installed import default_target

        if default_target() == "off":
            log.info("no Spark is installed: PostgreSQL computes everything", to_do="pip install 'headwater[spark]'")
        switched_off = NoSpark("the server runs with --spark off")
        yield EngineParts(lambda pool: switched_off, _nothing_to_stop)
        return
    parts = SparkParts(_load_spark, lambda: _make_spark(options, data))
    try:
        yield EngineParts(parts.spark_for, parts.stop, lambda: parts.load, parts.loader, parts.mirror_maintenance_for)
    finally:
        await parts.stop()


async def _nothing_to_stop() -> None:
    """There is no Spark."""


def _load_spark() -> None:
    """Load the modules that `_make_spark` needs."""
    import engine.files.copy_from_files
    import engine.files.lake_tables
    import engine.mirror.maintenance
    import engine.refresh.spark_refresh  # noqa: F401


def _make_spark(options: ServeOptions, data: DataDirectory) -> LoadedParts:
    from engine.files.copy_from_files import FileLoader
    from engine.files.lake_tables import Lake
    from engine.mirror.location import location, spark_properties
    from engine.mirror.maintenance import MirrorMaintenance
    from engine.mirror.mirror import Mirror
    from engine.refresh.spark_refresh import DatabaseOnSpark
    from engine.spark.executor import SparkExecutor
    from engine.spark.sessions import SparkSessions
    from engine.spark.target import parse_conf

    place = location(options.mirror, options.mirror_options, data.path / "mirror")
    properties = spark_properties(place, options.spark) | parse_conf(options.spark_conf)
    sessions = SparkSessions(options.spark, data.path / "spark", options=properties, memory=options.sail_memory << 20)
    mirror = Mirror(place)
    executor = SparkExecutor(sessions, mirror)
    lake = Lake(sessions)
    address = options.spark_postgres.address if options.spark_postgres is not None else None
    return LoadedParts(
        sessions=sessions,
        lake=lake,
        loader=FileLoader(sessions),
        spark_for=lambda pool: DatabaseOnSpark(executor, pool, address, lake),
        mirror_maintenance_for=lambda pool: MirrorMaintenance(mirror, pool),
    )


async def _until_stopped(stopping: asyncio.Event, storage: Storage) -> int:
    while not stopping.is_set():
        if not storage.alive():
            log.error("the embedded PostgreSQL has ended by itself; stopping")
            return 1
        try:
            async with asyncio.timeout(LOOK_AFTER_POSTGRES_SECONDS):
                await stopping.wait()
        except TimeoutError:
            continue
    log.info("stopping")
    return 0


def _interrupt_on_signals() -> None:
    """Until the event loop runs, a signal ends the start-up as an exception does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    for number in _ending_signals():
        signal.signal(number, interrupt)


def _ignore_signals() -> None:
    for number in _ending_signals():
        signal.signal(number, signal.SIG_IGN)


def _stop_on_signals() -> asyncio.Event:
    """An event that the first signal sets; a second one does not wait for anything any more."""
    stopping = asyncio.Event()

    def stop() -> None:
        if stopping.is_set():
            os._exit(130)
        stopping.set()

    for number in _ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop)
    return stopping


def _ending_signals() -> list[signal.Signals]:
    # nohup has SIGHUP ignored, and so shall we.
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, signal.SIGINT, *hangup]


def _tls_context(options: ServeOptions) -> ssl.SSLContext | None:
    if options.tls_cert is None or options.tls_key is None:
        return None
    from server.relay.tls import server_context

    try:
        return server_context(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise StartupError(
            f'could not use certificate "{options.tls_cert}" with key "{options.tls_key}": {error}'
        ) from error


def _description(options: ServeOptions, storage: Storage, port: int) -> Running:
    return Running(
        pid=os.getpid(),
        host=options.host,
        port=port,
        version=__version__,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        user=storage.user,
        database=storage.database,
        postgres=storage.description,
        spark=options.spark.partition(";")[0],  # what follows may be a token
        tls=options.tls_cert is not None,
    )


def _address(host: str, port: int, user: str, database: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"postgresql://{user}@{shown}:{port}/{database}"
