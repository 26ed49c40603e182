"""Nobody else on the machine gets anything out of the Spark that a server has started."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from engine.spark.jvm import SparkJvm, find_java
from engine.spark.sail_process import SailProcess
from engine.spark.sessions import SparkSessions
from engine.spark.target import Target
from server.postgres.processes import await_end

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
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # ended meanwhile
            found |= {c for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
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
    assert await_end(tree[1:], 30) == []
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


DRIVER = """
import asyncio, sys, time
from pathlib import Path
from engine.spark.sessions import SparkSessions

async def main():
    sessions = SparkSessions("local[1]", Path(sys.argv[1]))
    async with sessions.acquire() as lease:
        table = await lease.run(lambda s: s.sql("SELECT 1 AS n").toArrow(), description="beside an attack")
    print("rows", table.num_rows, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await sessions.stop()

asyncio.run(main())
"""


@pytest.mark.long
def test_driver_deserializes_nothing_without_its_secret(tmp_path: Path) -> None:
    """A message of Spark's RPC that carries a serialized object is not looked into. (What else listens wants a secret
    before it says a word.)"""
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert b"rows 1\n" in iter(process.stdout.readline, b"")
        started = psutil.Process(process.pid)
        tree = [started, *started.children(recursive=True)]
        listening = {c.laddr for p in tree for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        assert listening
        assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
        answers = [_answer(address.port, RPC) for address in listening]
        gateway = [_answer(address.port, PY4J) for address in listening]
    finally:
        process.stdin.close()
        process.wait(60)
    assert sum(b"Expected SaslMessage" in answer for answer in answers) == 2  # the RPC, and the block manager
    assert not [answer for answer in gateway if answer.startswith(b"!y")], "Java was called"
    assert any(b"Authentication error" in answer for answer in gateway)


_STRING = b"\xac\xed\x00\x05t\x00\x03abc"
RPC = struct.pack(">QBQI", 21 + len(_STRING), 3, 7, len(_STRING)) + _STRING
"""A request of Spark's RPC: a string as Java serializes it."""
PY4J = b"c\nz:java.lang.System\ngetProperty\nsuser.name\ne\n"
"""A call of a method of Java, as Python's gateway takes it."""


def _answer(port: int, message: bytes) -> bytes:
    """What comes back for a message that is sent without a secret."""
    with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
        connection.sendall(message)
        try:
            return connection.recv(1000)
        except OSError:
            return b""


def test_token_is_not_shown() -> None:
    assert "secret" not in Target.parse("sc://host:15002/;token=secret;use_ssl=true").shown
