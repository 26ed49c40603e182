"""The Sparks there are: how each kind is started, asked for sessions and rows, and stopped."""

from __future__ import annotations

import logging
import os
import re
import shutil
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import psutil
import pyarrow as pa
import structlog

from engine.arrow_spill import gathered
from engine.spark.jvm import SparkJvm
from engine.spark.sail_process import SailProcess
from engine.spark.target import SESSION_CONF, Kind, Target

Session = Any
"""A `pyspark.sql.SparkSession` or its Spark Connect twin; PySpark has no common typed interface for both."""


def frame_of(session: Session, query: str) -> Any:
    """The frame of a query. With Spark Connect nothing is sent before its rows are asked for, or it is made a view.

    (`session.sql` asks the server at once, since the text could be a command.)
    """
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.plan import SQL
    from pyspark.sql.connect.session import SparkSession

    return DataFrame(SQL(query), session) if isinstance(session, SparkSession) else session.sql(query)


def batches_of(frame: Any) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The rows of a frame, as they come, and the types of Arrow that they come in.

    (`toArrow` would have all of them in memory. That of Spark Connect asks for the types first, for which the server
    plans the query once more.)
    """
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.pandas.types import to_arrow_schema

    if not isinstance(frame, DataFrame):
        schema = to_arrow_schema(frame.schema, timezone="UTC")
        return schema, (batch.cast(schema) for batch in _classic_batches(frame))
    found = frame._session.client.to_table_as_iterator(
        frame._plan.to_proto(frame._session.client), frame._plan.observations
    )
    # The types as the server has them, and those of Arrow with the first rows, if there are any.
    types = None
    for first in found:
        if isinstance(first, pa.Table):
            rest = (table for table in chain([first], found) if isinstance(table, pa.Table))
            return first.schema, (batch for table in rest for batch in table.to_batches())
        types = first
    return to_arrow_schema(types, timezone="UTC"), iter(())


def _classic_batches(frame: Any) -> Iterator[pa.RecordBatch]:
    """What `toArrow` makes a table of, each partition as soon as it has been computed."""
    from pyspark.errors.exceptions.captured import unwrap_spark_exception
    from pyspark.sql.pandas.serializers import ArrowCollectSerializer
    from pyspark.util import _load_from_socket

    port, secret, serving = frame._jdf.collectAsArrowToPython()
    try:
        with _load_from_socket((port, secret), ArrowCollectSerializer()) as found:
            # At the end comes the order that the batches had.
            yield from (batch for batch in found if isinstance(batch, pa.RecordBatch))
    finally:
        with unwrap_spark_exception():
            serving.getResult()  # raises what the job has failed with


def rows_of(frame: Any) -> pa.Table:
    """The rows of a frame, of which many are not in memory (`gathered`)."""
    return gathered(*batches_of(frame))


TUNING = {
    "spark.sql.constraintPropagation.enabled": "false",
    "spark.sql.optimizer.avoidDoubleFilterEval": "true",
    "spark.sql.ui.explainMode": "simple",
}
"""What Apache Spark needs for expressions as large as exact numerics take: conditions that it infers itself, or moves
closer to the tables, would have copies of them, and copies of what these are made of. It writes each plan down, and
again whenever adaptive execution changes it, which for such plans took a fifth of the driver's time."""


log = structlog.get_logger(__name__)

RETRIES = {"max_retries": 5, "initial_backoff": 100, "backoff_multiplier": 2.0, "max_backoff": 2000, "jitter": 0}
"""How a Spark Connect client bridges a hiccup of the network: for some three seconds (backoffs are in milliseconds)."""


_OTHER_SERVER = re.compile(r"INVALID_HANDLE\.(SESSION|OPERATION)_\w+")
"""What a Spark Connect server says of sessions that it does not know, since it was started after them."""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what it came from, outermost first."""
    seen: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in seen:
        seen.append(following)
        following = following.__cause__ or following.__context__
    yield from seen


class Backend(Protocol):
    """A running Spark. Every method blocks."""

    def start(self) -> None: ...
    def alive(self) -> bool: ...
    def memory(self) -> int: ...
    def lost(self, error: Exception) -> bool:
        """Whether a job failed because this Spark is gone; every session of it is void then."""
        ...

    def new_session(self) -> Session: ...
    def stop(self) -> None: ...


CLUSTER_GRACE = 1.5
"""Seconds that a JVM has to tell its cluster that it ends."""


class ClassicBackend:
    """Apache Spark through a JVM that we start, with the work done in it or on a standalone cluster."""

    def __init__(self, target: Target, work_dir: Path, options: Mapping[str, str], patience: float = 10.0):
        self._work_dir = work_dir
        self._patience = patience
        self._masters = target.url.removeprefix("spark://").split(",") if target.kind is Kind.CLUSTER else []
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
            # A differential refresh generates some dozens of classes, which the next one of the query can use again.
            "spark.sql.codegen.cache.maxEntries": "2000",
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
                # Its ports deserialize nothing before a secret was shown, which Spark makes itself, in its memory.
                "spark.authenticate": "true",
                "spark.network.crypto.enabled": "true",
            }
            environment["SPARK_LOCAL_IP"] = "127.0.0.1"
        self._conf = conf | TUNING | SESSION_CONF | dict(options)
        self.jvm = SparkJvm(work_dir, self._conf, environment)
        self._root: Session = None

    def start(self) -> None:
        if self._masters:
            self._await_master()
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
        context = SparkContext(gateway=gateway, conf=conf)
        # What runs the parts of a job that are written in Python.
        own = sys.executable if not self._masters else "python3"
        context.pythonExec = self._conf.get("spark.pyspark.python", own)
        self._root = SparkSession(context)

    def _await_master(self) -> None:
        """Raises the last OSError if no master can be reached; Spark itself would try for a minute, in a JVM."""
        until = time.monotonic() + self._patience
        while True:
            for master in self._masters:
                host, port = master.rsplit(":", 1)
                try:
                    socket.create_connection((host, int(port)), timeout=self._patience).close()
                    return
                except OSError as error:
                    refused = error
            if time.monotonic() > until:
                raise refused
            time.sleep(0.2)

    def alive(self) -> bool:
        return self._root is not None and self.jvm.alive

    def memory(self) -> int:
        """Nothing: the JVM has a limit of its own."""
        return 0

    def lost(self, error: Exception) -> bool:
        from py4j.protocol import Py4JNetworkError

        if not self.alive() or any(
            isinstance(e, (Py4JNetworkError, ConnectionError, EOFError)) for e in _causes(error)
        ):
            return True
        try:
            # A context ends without its JVM where the cluster's master has removed the application.
            return bool(self._root.sparkContext._jsc.sc().isStopped())
        except Exception:
            return True

    def new_session(self) -> Session:
        return self._root.newSession()

    def stop(self) -> None:
        if self._root is not None:
            self._root = None
            # First the connections, so that nothing speaks to a dead JVM; a JVM that hangs may not answer to that.
            closing = threading.Thread(target=_forget_classic_session, daemon=True)
            closing.start()
            closing.join(0.5)
        # A cluster is to hear that the application has ended; without one nothing outlives the JVM but the files below.
        self.jvm.kill(CLUSTER_GRACE if self._masters else 0.0)
        for name in ("local", "tmp"):
            shutil.rmtree(self._work_dir / name, ignore_errors=True)


def _forget_classic_session() -> None:
    """Clear PySpark's process-wide state, which outlives its JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if (context := SparkContext._active_spark_context) is not None:
        with suppress(Exception):
            # Otherwise it writes to stderr that its JVM has gone, and so does what still listens to the JVM.
            context._accumulatorServer.handle_error = lambda *_: None
            context._accumulatorServer.shutdown()
    if SparkContext._gateway is not None:
        with suppress(Exception):
            SparkContext._gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


class ConnectBackend:
    """A Spark Connect server: somebody else's, or Sail in a process of its own that nobody else reaches."""

    def __init__(
        self,
        target: Target,
        work_dir: Path,
        options: Mapping[str, str],
        patience: float,
    ):
        self._patience = patience
        self._url = target.url
        self._sail = SailProcess(work_dir) if target.kind is Kind.SAIL else None
        self._options = ({} if self._sail else TUNING) | SESSION_CONF | dict(options)
        self._alive = False
        self._sessions: list[Session] = []

    def start(self) -> None:
        if self._sail is not None:
            self._sail.start()
        self.new_session()
        self._alive = True

    def _await_server(self) -> None:
        """Raises TimeoutError if nobody answers; PySpark itself would retry for minutes."""
        import grpc
        from pyspark.sql.connect.client import DefaultChannelBuilder

        channel = DefaultChannelBuilder(self._url).toChannel()
        try:
            grpc.channel_ready_future(channel).result(self._patience)
        except grpc.FutureTimeoutError:
            raise TimeoutError(f"no connection within {self._patience:g} s") from None
        finally:
            channel.close()

    def alive(self) -> bool:
        return self._alive and (self._sail is None or self._sail.alive)

    def memory(self) -> int:
        """Bytes of memory of a process of our own that are resident."""
        return self._sail.memory if self._sail is not None else 0

    def lost(self, error: Exception) -> bool:
        import grpc

        return not self.alive() or any(
            isinstance(e, grpc.RpcError) and (e.code() == grpc.StatusCode.UNAVAILABLE or _OTHER_SERVER.search(str(e)))
            for e in _causes(error)
        )

    def new_session(self) -> Session:
        from pyspark.sql.connect.client import DefaultChannelBuilder
        from pyspark.sql.connect.client.retries import DefaultPolicy
        from pyspark.sql.connect.session import SparkSession

        warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]", UserWarning)  # it is raised, too
        if self._sail is not None:
            builder: DefaultChannelBuilder = _to_sail(self._sail.target)
        else:
            self._await_server()
            builder = DefaultChannelBuilder(self._url)
        session = SparkSession.builder.channelBuilder(builder).create()
        # PySpark would try for ten minutes to reach a server that is gone.
        session.client.set_retry_policies([DefaultPolicy(**RETRIES)])
        if self._sail is not None:
            # Within one machine no answer can be lost on its way: it need not be given twice, nor acknowledged.
            session.client.disable_reattachable_execute()
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
        if self._sail is not None:
            self._sail.stop()


def _to_sail(target: str) -> Any:
    """What makes channels to Sail; PySpark's own takes no Unix sockets."""
    from pyspark.sql.connect.client import DefaultChannelBuilder

    class ToSail(DefaultChannelBuilder):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("sc://localhost")
            # Otherwise it is the socket's path, which Sail takes for a malformed one.
            self.setChannelOption("grpc.default_authority", "localhost")

        def toChannel(self) -> Any:
            return self._insecure_channel(target)

    return ToSail()
