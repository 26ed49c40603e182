"""Spark's own servers, as real processes on loopback: a standalone master with workers, and a Spark Connect server.

They come out of the package pyspark. Each takes a free port and says in its log which.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from engine.spark.jvm import Java, find_java, spark_command, spark_environment

START_SECONDS = 300.0
LAUNCHER = Path(__file__).parents[1] / "server" / "postgres" / "launch.py"

SMALL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.executor.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.executor.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Properties with which a driver and its executors fit on a busy machine."""


def wait_until(condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"in {seconds:g} s not true: {what}"
        time.sleep(0.05)


def conf_options(conf: Mapping[str, str]) -> list[str]:
    """Spark properties as options of `headwater serve`."""
    return [word for name, value in conf.items() for word in ("--spark-conf", f"{name}={value}")]


class SparkProgram:
    """One process that runs one of Spark's programs; it ends with this one."""

    def __init__(
        self, work_dir: Path, name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
    ):
        self.log_file = work_dir / f"{name}.log"
        self._scratch = work_dir / name
        self._scratch.mkdir(parents=True, exist_ok=True)
        java = find_java(os.environ)
        settings = {**os.environ, **spark_environment(java), "SPARK_LOCAL_IP": "127.0.0.1"}
        settings |= {"SPARK_LOCAL_DIRS": str(self._scratch), "SPARK_DAEMON_MEMORY": "256m"}
        settings |= {"SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", **(environment or {})}
        command = spark_command(java, arguments, settings, self._scratch)
        if not java.has_vector_module:
            settings["JAVA_HOME"] = str(_without_vector_module(java, work_dir))
        launch = [sys.executable, "-I", "-S", str(LAUNCHER), "--parent", str(os.getpid()), "--"]
        with self.log_file.open("wb") as output:
            self.process = subprocess.Popen(
                [*launch, *command],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env=settings,
                cwd=self._scratch,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def said(self, pattern: str) -> re.Match[str]:
        """Wait until the log matches."""
        wait_until(lambda: bool(re.search(pattern, self.log)) or self.process.poll() is not None, pattern)
        found = re.search(pattern, self.log)
        assert found is not None, f"{self.log_file.name} ended:\n{self.log[-2000:]}"
        return found

    def children(self) -> list[psutil.Process]:
        """What it has started: a worker's executors."""
        return [child for child in psutil.Process(self.process.pid).children() if child.is_running()]

    def kill(self) -> None:
        """SIGKILL, the process and what it has started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(30)


def _without_vector_module(java: Java, work_dir: Path) -> Path:
    """A Java home whose `java` drops the module that the executors' command line asks for and this Java lacks."""
    home = work_dir / "java"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    script = home / "bin" / "java"
    script.write_text(
        "#!/bin/sh\nfor a; do shift; case $a in --add-modules=jdk.incubator.vector) ;;"
        f' *) set -- "$@" "$a";; esac; done\nexec "{java.binary}" "$@"\n'
    )
    script.chmod(0o755)
    return home


class StandaloneCluster:
    """A standalone master, and workers with one core each."""

    def __init__(
        self, work_dir: Path, workers: int = 2, environment: Mapping[str, str] | None = None, memory: str = "1g"
    ):
        self._work_dir = work_dir
        self._memory = memory
        self._environment = environment
        self.workers: list[SparkProgram] = []
        master = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        self.master = SparkProgram(work_dir, "master", ["org.apache.spark.deploy.master.Master", *master])
        try:
            self.url = self.master.said(r"Starting Spark master at (spark://\S+)")[1]
            for _ in range(workers):
                self.add_worker()
        except BaseException:
            self.stop()
            raise

    def add_worker(self) -> SparkProgram:
        """One more worker, registered at the master."""
        name = f"worker{len(self.workers)}"
        # Each has an address of its own: Spark does no task a second time, speculatively, on the same host.
        host = f"127.0.0.{len(self.workers) + 1}"
        options = ["--host", host, "--cores", "1", "--memory", self._memory, "--webui-port", "0"]
        options += ["--work-dir", str(self._work_dir / name / "work")]
        arguments = ["org.apache.spark.deploy.worker.Worker", *options, self.url]
        worker = SparkProgram(self._work_dir, name, arguments, self._environment)
        self.workers.append(worker)
        worker.said("Successfully registered with master")
        return worker

    def stop(self) -> None:
        for program in (*self.workers, self.master):
            for child in program.children() if program.process.poll() is None else []:
                child.kill()
            program.kill()


class ConnectServer:
    """A Spark Connect server over one local core, on a port of its own or a given one."""

    def __init__(self, work_dir: Path, port: int = 0, conf: Mapping[str, str] | None = None, name: str = "connect"):
        settings = SMALL | {
            "spark.master": "local[1]",
            "spark.ui.enabled": "false",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.sql.warehouse.dir": (work_dir / name / "warehouse").as_uri(),
            **(conf or {}),
        }
        arguments = ["org.apache.spark.deploy.SparkSubmit"]
        for key, value in settings.items():
            arguments += ["--conf", f"{key}={value}"]
        arguments += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        # Spark's launcher takes it for a daemon, whose memory is not the driver's.
        self.program = SparkProgram(work_dir, name, arguments, {"SPARK_DAEMON_MEMORY": SMALL["spark.driver.memory"]})
        try:
            self.port = int(self.program.said(r"Spark Connect server started at: \S*:(\d+)")[1])
        except BaseException:
            self.program.kill()
            raise
        self.url = f"sc://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self.program.kill()
