"""Nobody else on the machine gets anything out of the Spark that a server has started."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.sail_process import SailProcess
from engine.spark_jvm import SparkJvm, find_java
from engine.spark_sessions import SparkSessions
from engine.spark_target import Target

ANSWERED = 1.0
"""Seconds after which a connection that was dropped counts as refused."""


@pytest.fixture
def sail(tmp_path: Path) -> Iterator[SailProcess]:
    process = SailProcess(tmp_path)
    process.start()
    yield process
    process.stop()


def _listening(process: SailProcess) -> list[tuple[str, int]]:
    """Where the processes that were started listen on TCP."""
    assert process.pid is not None
    root = psutil.Process(process.pid)
    found = set()
    for one in (root, *root.children(recursive=True)):
        for connection in one.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.add((connection.laddr.ip, connection.laddr.port))
    return sorted(found)


def test_nobody_connects_to_sail_past_the_unix_socket(sail: SailProcess, tmp_path: Path) -> None:
    """Its own user is turned away, too, so that every other one is."""
    addresses = _listening(sail)
    assert addresses
    assert {host for host, _ in addresses} == {"127.0.0.1"}
    for address in addresses:
        with pytest.raises(OSError):
            socket.create_connection(address, timeout=ANSWERED)
    directory = (tmp_path / "sail").stat()
    assert stat.S_IMODE(directory.st_mode) == 0o700
    assert directory.st_uid == os.geteuid()


def _listeners() -> set[tuple[str, int]]:
    """Where this process, and those that it has started, listen on TCP."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    found = {c for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    return {(c.laddr.ip, c.laddr.port) for c in found}


async def test_jobs_run_and_the_port_stays_closed(tmp_path: Path) -> None:
    sessions = SparkSessions("sail", tmp_path)
    before = _listeners()

    def work(spark: Any) -> list[int]:
        opened = _listeners() - before
        assert opened
        for address in opened:
            with pytest.raises(OSError):
                socket.create_connection(address, timeout=ANSWERED)
        return list(spark.sql("SELECT id FROM range(3) ORDER BY id").toArrow().column(0).to_pylist())

    async with sessions.acquire() as lease:
        assert await lease.run(work, description="beside an attack") == [0, 1, 2]
    await sessions.stop()
    assert _listeners() == before


def test_end_of_its_starter_ends_sail(tmp_path: Path) -> None:
    process = SailProcess(tmp_path)
    process.start()
    assert process.pid is not None
    tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    assert len(tree) == 2
    tree[0].kill()
    process._process.wait(30)  # type: ignore[union-attr]
    _, alive = psutil.wait_procs(tree[1:], timeout=30)
    assert not alive
    process.stop()


def test_no_property_stands_on_a_command_line(tmp_path: Path) -> None:
    """Spark's launcher is given a file that only its owner reads; secrets are in no command line."""
    secret = "s3cret-that-nobody-sees"
    conf = {"spark.master": "local[1]", "spark.app.name": "x", "spark.authenticate.secret": secret}
    jvm = SparkJvm(tmp_path, conf, dict(os.environ))
    try:
        jvm.start()
        assert jvm.pid is not None
        assert secret not in " ".join(psutil.Process(jvm.pid).cmdline())
        assert stat.S_IMODE((tmp_path / "spark.properties").stat().st_mode) == 0o600
        assert find_java(dict(os.environ)) == jvm.java
    finally:
        jvm.kill()


def test_token_is_not_shown() -> None:
    assert "secret" not in Target.parse("sc://host:15002/;token=secret;use_ssl=true").shown
