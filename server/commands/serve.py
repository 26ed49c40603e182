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
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import asyncpg
import structlog
import uvloop

from engine.imports import freeze
from engine.service import Engine
from engine.session.pool import DatabasePool
from server import __version__
from server.commands import traces
from server.commands.engine_parts import MadeEngine, make_engine
from server.commands.options import EmbeddedLogin, ServeOptions, Storage, make_relay, tls_context
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory, Running, StartupError
from server.relay.figures import Clients, OneProcess
from server.relay.listener import Listener

if TYPE_CHECKING:
    from server.metrics.collector import Collector
    from server.metrics.service import MetricsService

log = structlog.get_logger(__name__)

LOOK_AFTER_POSTGRES_SECONDS = 0.5

CONNECT_TO_WRITE_SECONDS = 1.0
"""A PostgreSQL that does not answer within this time when the server is stopped is not waited for."""


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
            tls = tls_context(options)
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
        return Storage.of_url(url)
    cluster = EmbeddedPostgres(data)
    stack.callback(cluster.stop)
    cluster.start()
    log.info("embedded PostgreSQL runs", directory=str(data.postgres), pid=cluster.pid)
    login = EmbeddedLogin(cluster.socket_dir, cluster.port, cluster.user, cluster.password)
    return Storage.of_embedded(login, lambda: cluster.poll() is None)


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
        made = await make_engine(options, data, storage, stack)
        metrics = await _listen_for_metrics(options, storage, stack)
        await made.engine.start()
        clients, port = await _let_clients_in(options, storage, made, tls, stack)
        await _serve_console(options, storage, port, stack)
        if metrics is not None:
            metrics.collector = _collector(options, storage, clients, made.engine)
        freeze()
        gc.enable()
        data.announce(_description(options, storage, port))
        stack.callback(data.withdraw)
        ready(_address(options.host, port, storage.user, storage.database))
        made.compilers.warm_up()  # not before: it would compete for the machine with the rest of the start
        status = await _until_stopped(stopping, storage)
        if status == 0 and storage.embedded:
            await parting.enter_async_context(_checkpoint(storage))
        return status


async def _let_clients_in(
    options: ServeOptions, storage: Storage, made: MadeEngine, tls: ssl.SSLContext | None, stack: AsyncExitStack
) -> tuple[Clients, int]:
    """What relays, and the port on which it is reached. Raises StartupError."""
    admit: Callable[[socket.socket], None]
    clients: Clients
    if options.workers == 1:
        relay = make_relay(options, storage, made.engine, tls, options.max_connections)
        stack.push_async_callback(relay.stop)
        relay.start()
        admit, clients = relay.admit, OneProcess(relay, lambda: made.parts.load())
    else:
        admit, clients = await _start_workers(options, storage, made, stack)
    listener = Listener(options.host, options.port, admit)
    stack.callback(listener.stop)
    try:
        await listener.start()
    except OSError as error:
        raise StartupError(
            f"could not listen on {options.host} port {options.port}: {error.strerror or error}",
            "Choose another port with --port (0 takes any free one)."
            if error.errno in (errno.EADDRINUSE, errno.EACCES)
            else "Choose an address of this machine with --host.",
        ) from error
    return clients, listener.port


async def _start_workers(
    options: ServeOptions, storage: Storage, made: MadeEngine, stack: AsyncExitStack
) -> tuple[Callable[[socket.socket], None], Clients]:
    """The processes that relay, each of which takes clients. Raises StartupError."""
    from server.commands.relay_worker import PROGRAM, configuration
    from server.workers.relay_workers import RelayWorkers

    workers = RelayWorkers(
        PROGRAM,
        partial(configuration, options, storage.embedded),
        options.workers,
        options.max_connections,
        made.engine,
        made.parts.load,
    )
    stack.push_async_callback(workers.stop)
    await workers.start()
    return workers.admit, workers


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


def _collector(options: ServeOptions, storage: Storage, clients: Clients, engine: Engine) -> Collector:
    from server.metrics.collector import Collector

    return Collector(
        clients, lambda: engine.pools, storage.alive if storage.embedded else None, options.metrics_objects
    )


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
