"""Everything that a server listens on, with all the processes that it has started: nobody gets in without a secret.

Each socket is the announced one, or a Unix socket that other users cannot reach, or one of the loopback interface
alone that gives nothing to those who have no secret.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.e2e.conftest import Database, Headwater

ANSWERED = 0.5
"""Seconds after which a connection that was dropped counts as refused, and silence as an answer."""

_ACCEPTS = 0x10000
"""The flag of a Unix socket that listens, in /proc/net/unix."""

_STRING = b"\xac\xed\x00\x05t\x00\x03abc"
PROBES = {
    "a request of Spark's RPC": struct.pack(">QBQI", 21 + len(_STRING), 3, 7, len(_STRING)) + _STRING,
    "a call of Java as Python's gateway takes it": b"c\nz:java.lang.System\ngetProperty\nsuser.name\ne\n",
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "gRPC": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0",
}
"""What those say who have no secret, to programs of all kinds."""

REFUSED = re.compile(rb"|.*(Authentication error|Expected SaslMessage|Unknown command received).*", re.DOTALL)
"""What they may hear: nothing at all, or that."""


@dataclass(frozen=True)
class Listening:
    """What the processes of a tree listen on."""

    addresses: frozenset[tuple[str, int]]
    datagrams: frozenset[tuple[str, int]]
    paths: frozenset[Path]


def listening(root: int) -> Listening:
    tree = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    found = [c for process in tree for c in process.net_connections("inet")]
    inodes = {inode for process in tree for inode in _socket_inodes(process.pid)}
    paths = {_reached_by(path, tree) for inode, path in _unix_listeners() if inode in inodes}
    return Listening(
        frozenset((c.laddr.ip, c.laddr.port) for c in found if c.status == psutil.CONN_LISTEN),
        frozenset((c.laddr.ip, c.laddr.port) for c in found if c.type == socket.SOCK_DGRAM and c.laddr),
        frozenset(paths),
    )


def _socket_inodes(pid: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(descriptor.readlink())
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            yield target.removeprefix("socket:[").removesuffix("]")


def _unix_listeners() -> Iterator[tuple[str, str]]:
    """Inodes and paths, as they were given to bind(); those in the abstract namespace begin with @.

    Linux gives the list in pieces and may leave one out between two of them while other sockets come and go, so it is
    read several times.
    """
    for line in {line for _ in range(5) for line in Path("/proc/net/unix").read_text().splitlines()[1:]}:
        fields = line.split(maxsplit=7)
        if int(fields[3], 16) & _ACCEPTS:
            yield fields[6], fields[7] if len(fields) > 7 else ""


def _reached_by(path: str, tree: list[psutil.Process]) -> Path:
    """Where a socket is that was perhaps bound by the descriptor of its directory, which one of the processes holds."""
    if not path.startswith("/proc/self/"):
        return Path(path)
    candidates = [Path(path.replace("self", str(process.pid), 1)) for process in tree]
    (found,) = {candidate.resolve() for candidate in candidates if candidate.exists()}
    return found


def out_of_reach(path: Path) -> bool:
    """Whether a directory above the socket, or the socket itself, is its owner's alone."""
    return any(stat.S_IMODE(part.stat().st_mode) & 0o077 == 0 for part in (path, *path.parents))


def answers(address: tuple[str, int]) -> Iterator[tuple[str, bytes]]:
    """What comes back for each probe; nothing from a port that takes no connection, not even from its own user."""
    for kind, message in PROBES.items():
        try:
            connection = socket.create_connection(address, timeout=ANSWERED)
        except OSError:
            return
        with connection:
            try:
                connection.sendall(message)
                yield kind, connection.recv(1000)
            except OSError:
                yield kind, b""


def check(server: Headwater, *, other_ports: bool) -> None:
    """What holds for a server, which has started all that it starts."""
    assert server.process is not None
    found = listening(server.process.pid)
    announced = ("127.0.0.1", server.port)
    assert announced in found.addresses
    assert found.datagrams == frozenset()
    others = found.addresses - {announced}
    assert bool(others) == other_ports
    for ip, port in others:
        address = ip_address(ip.removeprefix("::ffff:"))
        assert address.is_loopback, f"port {port} listens on {ip}"
        for kind, heard in answers((str(address), port)):
            assert REFUSED.fullmatch(heard), f"port {port} answers {kind}: {heard!r}"
    assert found.paths, "PostgreSQL has a socket"
    for path in found.paths:
        assert path.is_socket()
        assert out_of_reach(path), f"others reach {path}"
    for dsn in (server.dsn(), server.direct_dsn()):
        nobody = make_conninfo(**{**conninfo_to_dict(dsn), "password": "", "passfile": os.devnull})
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(nobody)


def test_what_a_server_without_spark_listens_on(server: Headwater, db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.create("st", "SELECT id FROM t")
    check(server, other_ports=False)


@pytest.mark.parametrize("spark", ["sail", pytest.param("local[2]", marks=pytest.mark.long)])
def test_what_a_server_with_spark_listens_on(tmp_path: Path, spark: str) -> None:
    server = Headwater(tmp_path / "data", "--spark", spark).start()
    try:
        db = Database(server, "postgres")
        db.run("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
        db.run("SELECT pgtrickle.create_stream_table('st', 'SELECT id FROM t', '1h', 'FULL', engine => 'spark')")
        assert db.history("st")[-1]["executor"] == "spark"
        check(server, other_ports=True)
        db.close()
    finally:
        server.stop()


def test_socket_that_others_reach_is_noticed(tmp_path: Path) -> None:
    """And one without a path, and one of all interfaces."""
    with (
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.create_server(("0.0.0.0", 0)) as everywhere,
    ):
        tmp_path.chmod(0o700)
        named.bind(str(tmp_path / "named"))
        named.listen()
        abstract.bind("\0headwater-test-" + str(os.getpid()))
        abstract.listen()
        found = listening(os.getpid())
        assert ("0.0.0.0", everywhere.getsockname()[1]) in found.addresses
        assert tmp_path / "named" in found.paths
        assert out_of_reach(tmp_path / "named")
        (without_path,) = [path for path in found.paths if "headwater-test" in str(path)]
        assert not without_path.is_socket()
