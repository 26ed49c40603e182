"""What the engine is given of the Spark that the options name, or of none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from engine.compile import pool
from engine.compile.pool import CompilePool
from engine.publish.places import Places
from engine.refresh.executor_choice import NoSpark, Spark
from engine.requests.requests import Loader
from engine.service import Engine, Maintenance
from engine.session.pool import DatabasePool
from engine.spark.tally import SparkLoad
from server.commands.options import ServeOptions, Storage
from server.commands.spark_parts import LoadedParts, SparkParts
from server.postgres.data_directory import DataDirectory
from server.relay.loop_watch import LoopWatch

log = structlog.get_logger(__name__)

INTERRUPT_JOBS_SECONDS = 0.3
"""So long jobs of Spark have to be interrupted when the server stops."""


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


@dataclass(frozen=True, slots=True)
class MadeEngine:
    """An engine that has not been started, and what it works with."""

    engine: Engine
    parts: EngineParts
    compilers: CompilePool


async def make_engine(
    options: ServeOptions,
    data: DataDirectory,
    storage: Storage,
    stack: AsyncExitStack,
    *,
    place: str = "spark",
    idle: bool = False,
    expecting: Callable[[str], None] = lambda database: None,
) -> MadeEngine:
    """The engine of this process, which `stack` stops.

    `place` is the directory, below that of the data, in which its Spark works; for the rest see `Engine`.
    """
    stack.callback(LoopWatch(options.warn_blocked).stop)
    compilers = pool.configure(options.compiling)
    stack.callback(compilers.stop)
    parts = await stack.enter_async_context(_spark_parts(options, data, place))
    engine = Engine(
        storage.login,
        parts.spark_for,
        storage.database,
        loader=parts.loader,
        mirror_maintenance_for=None if idle else parts.mirror_maintenance_for,
        places=Places((data.path,)),
        idle=idle,
        expecting=expecting,
    )
    stack.push_async_callback(_stop, engine.stop, parts.stop)
    return MadeEngine(engine, parts, compilers)


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
async def _spark_parts(options: ServeOptions, data: DataDirectory, place: str) -> AsyncIterator[EngineParts]:
    """The Spark of this process, for each database and for COPY from files; what needs it first starts it."""
    if options.spark == "off":
        from engine.spark.installed import default_target

        if default_target() == "off":
            log.info("no Spark is installed: PostgreSQL computes everything", to_do="pip install 'headwater[spark]'")
        switched_off = NoSpark("the server runs with --spark off")
        yield EngineParts(lambda pool: switched_off, _nothing_to_stop)
        return
    parts = SparkParts(_load_spark, lambda: _make_spark(options, data, place))
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


def _make_spark(options: ServeOptions, data: DataDirectory, work_directory: str) -> LoadedParts:
    from engine.files.copy_from_files import FileLoader
    from engine.files.lake_tables import Lake
    from engine.mirror.location import location, spark_properties
    from engine.mirror.maintenance import MirrorMaintenance
    from engine.mirror.mirror import Mirror
    from engine.refresh.spark_refresh import DatabaseOnSpark
    from engine.spark.executor import SparkExecutor
    from engine.spark.sessions import SparkSessions
    from engine.spark.target import parse_conf

    place = location(options.mirror, options.mirror_options, data.path / "mirror", alone=options.workers == 1)
    properties = spark_properties(place, options.spark) | parse_conf(options.spark_conf)
    sessions = SparkSessions(
        options.spark, data.path / work_directory, options=properties, memory=options.sail_memory << 20
    )
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
