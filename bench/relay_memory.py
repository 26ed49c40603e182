"""Memory of the relay while a client asks for ten million rows and does not read them.

    python -m bench.relay_memory [--rows 10000000] [--stall 10]

The client reads nothing for a while, then everything, as fast as it can. Printed is the resident memory of the relay's
process: before the query, at most while the client stalls, and at most while it reads.
"""

from __future__ import annotations

import argparse
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from bench.relay import TcpCluster, headwater
from server.postgres.data_directory import DataDirectory

MIB = 1024 * 1024
READY = b"Z\0\0\0\5I"


class Peak(threading.Thread):
    """Samples a process's resident memory."""

    def __init__(self, pid: int):
        super().__init__(daemon=True)
        self._process = psutil.Process(pid)
        self._stopping = threading.Event()
        self.peak = 0
        self.start()

    def run(self) -> None:
        while not self._stopping.wait(0.02):
            self.peak = max(self.peak, self._process.memory_info().rss)

    def stop(self) -> float:
        """The highest value since the start, in MiB."""
        self._stopping.set()
        self.join()
        return self.peak / MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--stall", type=float, default=10.0, help="seconds without reading")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = TcpCluster(DataDirectory(Path(folder) / "data").create(), {"fsync": "off"})
        cluster.start()
        try:
            with headwater(cluster) as relay:
                assert relay.pid is not None
                before = psutil.Process(relay.pid).memory_info().rss / MIB
                client = psycopg.connect(
                    f"host={relay.host} port={relay.port} user={cluster.user} dbname=postgres",
                    password=cluster.password,
                    autocommit=True,
                )
                sql = f"select n, 'row number ' || n from generate_series(1, {options.rows:d}) n"
                client.pgconn.send_query(sql.encode())
                client.pgconn.flush()
                stalled = Peak(relay.pid)
                time.sleep(options.stall)
                during = stalled.stop()
                reading = Peak(relay.pid)
                begin = time.perf_counter()
                received = drain(client.pgconn.socket)
                seconds = time.perf_counter() - begin
                after = reading.stop()
        finally:
            cluster.stop()
    table = Table(title=f"{options.rows:,} rows, {received / MIB:,.0f} MiB, read in {seconds:.1f} s")
    for title in ("before", f"stalled {options.stall:g} s", "reading"):
        table.add_column(title, justify="right")
    table.add_row(*(f"{value:.1f} MiB" for value in (before, during, after)))
    Console().print(table)


def drain(descriptor: int) -> int:
    """Read a connection up to ReadyForQuery; returns the bytes read."""
    connection = socket.socket(fileno=os.dup(descriptor))
    connection.setblocking(True)
    received = 0
    end = b""
    while not end.endswith(READY):
        data = connection.recv(1 << 20)
        if not data:
            raise SystemExit("the connection ended early")
        received += len(data)
        end = (end + data)[-len(READY) :]
    return received


if __name__ == "__main__":
    main()
