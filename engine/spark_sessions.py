"""The one factory of Spark sessions: started at the first job, kept warm, restarted when it died, gone after `stop`.

Four kinds of target, one interface:

- ``local``, ``local[N]``, ``local[*]``: Apache Spark in a JVM of our own, through classic PySpark;
- ``spark://host:port``: the same, with executors on a standalone cluster;
- ``sc://host:port``: a Spark Connect server that somebody else runs;
- ``sail``: Sail, inside this process, spoken to by Spark Connect.

``off`` is a target too; it refuses every job.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil
import structlog

from catalog.session import SqlError
from engine.spark_jvm import JvmFailed, SparkJvm

log = structlog.get_logger(__name__)

T = TypeVar("T")
Session = Any
"""A `pyspark.sql.SparkSession` or its Spark Connect twin; PySpark has no common typed interface for both."""

INTERRUPT_GRACE = 10.0
"""Seconds that an interrupted job has to come back before its backend is given up."""

INTERRUPT_TRIES = 20
"""Interrupts within that time: one that comes before the server has seen the job is lost."""

SESSION_CONF = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
}
"""What results depend on: set on every session, whatever the server's own configuration."""


class SparkTargetError(ValueError):
    """A `--spark` value that is none; `hint` lists those that are."""

    hint = "use local[*], local[N], spark://host:port, sc://host:port, sail or off"

    def __init__(self, target: str):
        super().__init__(f'invalid Spark target "{target}"')


class SparkUnavailable(SqlError):
    """No Spark to be had: off, unreachable, died or stopped. The job may be repeated or done by PostgreSQL."""

    def __init__(self, message: str, *, detail: str | None = None, hint: str | None = None):
        super().__init__("58000", message, detail=detail, hint=hint)


class SparkJobFailed(SqlError):
    """Spark is there, but this job failed, for instance by an overflow. PostgreSQL has the right error or result."""

    def __init__(self, message: str, *, sqlstate: str = "38000", detail: str | None = None):
        super().__init__(sqlstate, message, detail=detail)


class Kind(Enum):
    LOCAL = "local"
    CLUSTER = "cluster"
    CONNECT = "connect"
    SAIL = "sail"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Target:
    """A parsed Spark target.

    >>> Target.parse("local[2]").kind
    <Kind.LOCAL: 'local'>
    >>> Target.parse("yarn")
    Traceback (most recent call last):
    engine.spark_sessions.SparkTargetError: invalid Spark target "yarn"
    """

    kind: Kind
    url: str

    @staticmethod
    def parse(text: str) -> Target:
        """Raises SparkTargetError."""
        if text in ("off", "sail"):
            return Target(Kind(text), text)
        if re.fullmatch(r"local(\[(\*|[1-9]\d*)\])?", text):
            return Target(Kind.LOCAL, text)
        if re.fullmatch(r"spark://[^/\s:]+:\d+(,[^/\s:]+:\d+)*", text):
            return Target(Kind.CLUSTER, text)
        if re.fullmatch(r"sc://[^/\s:;]+(:\d+)?(/(;[^\s]*)?)?", text):
            return Target(Kind.CONNECT, text)
        raise SparkTargetError(text)


class Backend(Protocol):
    """A running Spark. Every method blocks."""

    def start(self) -> None: ...
    def alive(self) -> bool: ...
    def new_session(self) -> Session: ...
    def stop(self) -> None: ...


class ClassicBackend:
    """Apache Spark through a JVM that we start, with the work done in it or on a standalone cluster."""

    def __init__(self, target: Target, work_dir: Path, options: Mapping[str, str]):
        self._work_dir = work_dir
        local = target.kind is Kind.LOCAL
        # A laptop's share: a quarter of the memory, at least what Spark needs, at most 8 GiB.
        memory = min(max(psutil.virtual_memory().total // 4 >> 20, 1024), 8192)
        conf = {
            "spark.master": target.url,
            "spark.app.name": "Headwater",
            "spark.driver.memory": f"{memory}m",
            "spark.driver.maxResultSize": "0",
            "spark.local.dir": str(work_dir / "local"),
            "spark.sql.warehouse.dir": (work_dir / "warehouse").as_uri(),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.extraJavaOptions": (
                f"-Dlog4j2.configurationFile={(work_dir / 'log4j2.properties').as_uri()}"
                f" -Dderby.system.home={work_dir} -Djava.io.tmpdir={work_dir / 'tmp'}"
            ),
        }
        environment = dict(os.environ)
        if local:
            cores = os.cpu_count() or 1
            if (number := re.search(r"\d+", target.url)) or "*" not in target.url:
                cores = int(number[0]) if number else 1
            conf |= {
                "spark.sql.shuffle.partitions": str(max(2, cores)),
                "spark.driver.host": "127.0.0.1",
                "spark.driver.bindAddress": "127.0.0.1",
            }
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        self._conf = conf | SESSION_CONF | dict(options)
        self.jvm = SparkJvm(work_dir, self._conf, environment)
        self._root: Session = None

    def start(self) -> None:
        for name in ("local", "tmp"):
            shutil.rmtree(self._work_dir / name, ignore_errors=True)
        for name in ("local", "tmp", "warehouse"):
            (self._work_dir / name).mkdir(parents=True, exist_ok=True)
        (self._work_dir / "log4j2.properties").write_text(
            "rootLogger.level = warn\nrootLogger.appenderRef.file.ref = console\n"
            "appender.console.type = Console\nappender.console.name = console\nappender.console.target = SYSTEM_ERR\n"
            "appender.console.layout.type = PatternLayout\n"
            "appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex\n"
        )
        self.jvm.start()
        # PySpark and py4j write every failed query and every lost connection to their loggers as well as raising.
        for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger", "py4j"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
        from py4j.java_gateway import java_import
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        _forget_classic_session()
        gateway = ClientServer(
            java_parameters=JavaParameters(port=self.jvm.port, auth_token=self.jvm.secret, auto_convert=True),
            python_parameters=PythonParameters(port=0, eager_load=False),
        )
        # The names that PySpark's own launch_gateway imports and its SQL part uses.
        for name in (
            "org.apache.spark.SparkConf",
            "org.apache.spark.api.java.*",
            "org.apache.spark.api.python.*",
            "org.apache.spark.resource.*",
            "org.apache.spark.sql.Encoders",
            "org.apache.spark.sql.OnSuccessCall",
            "org.apache.spark.sql.functions",
            "org.apache.spark.sql.classic.*",
            "org.apache.spark.sql.api.python.*",
            "org.apache.spark.sql.hive.*",
            "scala.Tuple2",
        ):
            java_import(gateway.jvm, name)
        conf = SparkConf(_jvm=gateway.jvm).setAll(list(self._conf.items()))
        self._root = SparkSession(SparkContext(gateway=gateway, conf=conf))

    def alive(self) -> bool:
        return self._root is not None and self.jvm.alive

    def new_session(self) -> Session:
        return self._root.newSession()

    def stop(self) -> None:
        if self._root is not None:
            self._root = None
            # First the connections, so that nothing speaks to a dead JVM; a JVM that hangs may not answer to that.
            closing = threading.Thread(target=_forget_classic_session, daemon=True)
            closing.start()
            closing.join(2.0)
        self.jvm.kill()
        for name in ("local", "tmp"):
            shutil.rmtree(self._work_dir / name, ignore_errors=True)


def _forget_classic_session() -> None:
    """Clear PySpark's process-wide state, which outlives its JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._gateway is not None:
        with suppress(Exception):
            SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


class ConnectBackend:
    """A Spark Connect server: somebody else's, or Sail inside this process."""

    def __init__(self, target: Target, options: Mapping[str, str], patience: float):
        self._patience = patience
        self._url = target.url
        self._sail = target.kind is Kind.SAIL
        self._options = SESSION_CONF | dict(options)
        self._server: Any = None
        self._alive = False
        self._sessions: list[Session] = []

    def start(self) -> None:
        if self._sail:
            os.environ.setdefault("RUST_LOG", "error")
            from pysail.spark import SparkConnectServer

            self._server = SparkConnectServer("127.0.0.1", 0)
            self._server.start(background=True)
            self._url = f"sc://127.0.0.1:{self._server.listening_address[1]}"
        else:
            self._await_server()
        self.new_session()
        self._alive = True

    def _await_server(self) -> None:
        """Raises a `grpc.FutureTimeoutError` if nobody answers; PySpark itself would retry for minutes."""
        import grpc
        from pyspark.sql.connect.client import DefaultChannelBuilder

        channel = DefaultChannelBuilder(self._url).toChannel()
        try:
            grpc.channel_ready_future(channel).result(self._patience)
        finally:
            channel.close()

    def alive(self) -> bool:
        return self._alive and (self._server is None or bool(self._server.running))

    def new_session(self) -> Session:
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession.builder.remote(self._url).create()
        for name, value in self._options.items():
            session.conf.set(name, value)
        self._sessions.append(session)
        return session

    def stop(self) -> None:
        self._alive = False
        for session in self._sessions:
            # Not session.stop(): it asks the server, and waits for it. A call under way fails at once.
            with suppress(Exception):
                session.client._channel.close()
        self._sessions.clear()
        if self._server is not None:
            self._server.stop()
            self._server = None


class SparkSessions:
    """The sessions of one Spark target. Make one per process; nothing runs before the first `acquire`.

    `work_dir` is for everything Spark writes besides results: logs, shuffle files, warehouse. `options` are Spark
    properties (``spark.executor.memory`` ...) that come on top of our own. At most `concurrency` jobs run at once,
    each in a session of its own, so that their temporary views and settings do not meet. A Spark Connect server that
    does not answer for `patience` seconds counts as unreachable.
    """

    def __init__(
        self,
        target: str,
        work_dir: Path,
        *,
        options: Mapping[str, str] | None = None,
        concurrency: int = 2,
        patience: float = 30.0,
    ):
        self.target = Target.parse(target)
        self._work_dir = work_dir.absolute()
        self._options = dict(options or {})
        self._patience = patience
        self._threads = ThreadPoolExecutor(concurrency + 1, thread_name_prefix="spark")
        self._slots = asyncio.Semaphore(concurrency)
        self._starting = asyncio.Lock()
        self._backend: Backend | None = None
        self._idle: list[Session] = []
        self._stopped = False
        self.started_in: float | None = None
        """Seconds that the last start took, None if there was none."""

    @property
    def off(self) -> bool:
        return self.target.kind is Kind.OFF

    def check_on(self) -> None:
        """Raises SparkUnavailable (58000) if there never will be a session."""
        if self.off:
            raise SparkUnavailable("Spark is switched off", hint="start the server with --spark local[*]")

    @property
    def stopped(self) -> bool:
        return self._stopped

    @property
    def warm(self) -> bool:
        """True if a job would not have to wait for a start."""
        return self._backend is not None and self._backend.alive()

    async def _blocking(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _make_backend(self) -> Backend:
        self._work_dir.mkdir(parents=True, exist_ok=True)
        if self.target.kind in (Kind.LOCAL, Kind.CLUSTER):
            return ClassicBackend(self.target, self._work_dir, self._options)
        return ConnectBackend(self.target, self._options, self._patience)

    async def warm_up(self) -> None:
        """Start Spark now if it is not running. Raises SparkUnavailable (58000)."""
        self.check_on()
        async with self._starting:
            if self._stopped:
                raise SparkUnavailable("Spark has been stopped")
            if self.warm:
                return
            if self._backend is not None:
                log.warning("spark_died", target=self.target.url)
                await self._discard()
            self._backend = backend = self._make_backend()
            began = time.monotonic()
            start = asyncio.ensure_future(self._blocking(backend.start))
            try:
                await asyncio.shield(start)
            except asyncio.CancelledError:
                # The start goes on in its thread; what it has made so far must not stay.
                await asyncio.shield(self._discard())
                await asyncio.wait({start})
                await asyncio.shield(asyncio.to_thread(backend.stop))
                raise
            except Exception as error:
                await self._discard()
                raise self._unavailable(error) from error
            if self._stopped:
                await self._discard()
                raise SparkUnavailable("Spark has been stopped")
            self.started_in = time.monotonic() - began
            log.info("spark_started", target=self.target.url, seconds=round(self.started_in, 2))

    def _unavailable(self, error: Exception) -> SparkUnavailable:
        if self._stopped:
            return SparkUnavailable("Spark has been stopped")
        if isinstance(error, JvmFailed):
            return SparkUnavailable(
                "could not start Spark",
                detail=str(error),
                hint="install Java 17 or newer, or use --spark sail",
            )
        return SparkUnavailable(
            f'could not reach Spark at "{self.target.url}"',
            detail=_first_line(error),
            hint="check that it runs and can be reached from here, or use --spark local[*]",
        )

    async def _discard(self) -> None:
        """Stop the backend, whatever state it is in; its sessions are void."""
        backend, self._backend, self._idle = self._backend, None, []
        if backend is not None:
            await asyncio.to_thread(backend.stop)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[SparkLease]:
        """A session for the time of the block; waits for a free one. Raises SparkUnavailable (58000)."""
        async with self._slots:
            await self.warm_up()
            backend = self._backend
            if backend is None:
                raise SparkUnavailable("Spark has been stopped")
            try:
                session = self._idle.pop() if self._idle else await self._blocking(backend.new_session)
            except Exception as error:
                await self._discard()
                raise self._unavailable(error) from error
            lease = SparkLease(self, backend, session)
            yield lease
            if not lease.void and backend is self._backend:
                self._idle.append(session)

    async def stop(self) -> None:
        """End everything this factory started, also in the middle of a start or a job. Idempotent."""
        self._stopped = True
        await self._discard()
        async with self._starting:
            await self._discard()
        self._threads.shutdown(wait=False, cancel_futures=True)


class SparkLease:
    """A Spark session held by one task."""

    def __init__(self, sessions: SparkSessions, backend: Backend, session: Session):
        self._sessions = sessions
        self._backend = backend
        self._session = session
        self.void = False

    async def run(self, work: Callable[[Session], T], *, description: str, limit: float | None = None) -> T:
        """Run blocking `work(session)` in a thread; its Spark jobs carry `description`.

        On cancellation and after `limit` seconds the jobs are interrupted. Raises SparkJobFailed (38000, 57014
        after a timeout) and SparkUnavailable (58000) if Spark died meanwhile.
        """
        tag = f"headwater-{uuid.uuid4().hex}"
        # A classic session keeps its tags per thread, so that no other thread can interrupt them: use a job group.
        classic = getattr(self._session, "_sc", None)

        def body() -> T:
            if classic is not None:
                classic.setJobGroup(tag, description, interruptOnCancel=True)
                return work(self._session)
            self._session.addTag(tag)
            try:
                return work(self._session)
            finally:
                with suppress(Exception):
                    self._session.removeTag(tag)

        job = asyncio.ensure_future(self._sessions._blocking(body))
        try:
            return await asyncio.wait_for(asyncio.shield(job), limit)
        except (asyncio.CancelledError, TimeoutError) as error:
            await asyncio.shield(self._interrupt(tag, job))
            if isinstance(error, TimeoutError):
                raise SparkJobFailed(
                    f"Spark job timed out after {limit:g} s: {description}", sqlstate="57014"
                ) from None
            raise
        except SqlError:
            raise
        except Exception as error:
            self.void = True
            if not self._backend.alive() or _is_connection_loss(error):
                raise SparkUnavailable(
                    "Spark was lost in the middle of a job",
                    detail=_first_line(error),
                    hint="the next job restarts it",
                ) from error
            raise SparkJobFailed(f"Spark job failed: {_first_line(error)}", detail=description) from error

    async def _interrupt(self, tag: str, job: asyncio.Future[T]) -> None:
        self.void = True
        classic = getattr(self._session, "_sc", None)

        def interrupt() -> None:
            with suppress(Exception):
                if classic is not None:
                    # The job may not have got as far as Spark's scheduler yet.
                    classic._jsc.sc().cancelJobGroupAndFutureJobs(tag)
                else:
                    self._session.interruptTag(tag)

        for _ in range(INTERRUPT_TRIES):
            threading.Thread(target=interrupt, daemon=True).start()
            done, _ = await asyncio.wait({job}, timeout=INTERRUPT_GRACE / INTERRUPT_TRIES)
            if done:
                job.exception()
                return
        log.warning("spark_job_does_not_stop", tag=tag)
        if self._sessions._backend is self._backend:
            await self._sessions._discard()
        job.add_done_callback(lambda late: late.cancelled() or late.exception())


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:500]


def _is_connection_loss(error: BaseException) -> bool:
    from py4j.protocol import Py4JNetworkError

    if isinstance(error, (Py4JNetworkError, ConnectionError, EOFError)):
        return True
    try:
        import grpc
    except ImportError:
        return False
    return isinstance(error, grpc.RpcError) and error.code() == grpc.StatusCode.UNAVAILABLE
