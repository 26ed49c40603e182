"""What many subscribers cost: the server's CPU time and memory.

    python bench/subscribers.py [1 10 50] [--queries one distinct] [--commits 50]

The CPU time of the server's process is measured, and its memory, while the same number of commits is followed by more
and more clients: of one query, and each of its own. PostgreSQL's processes are not in that. The engine's part of it is
measured by itself: a hub whose feeds are read in its own process.
"""

from __future__ import annotations

import argparse
import asyncio
import selectors
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg
import uvloop
from psycopg import conninfo, pq
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import Served, served
from engine.session.pool import DatabasePool
from engine.subscribe import Batch, Feed, RowOutput, Subscribe
from engine.subscribe.hub import Hub

IDLE = 5.0
"""Seconds for which they listen while nothing is committed."""

SPARE = 50
"""Connections that PostgreSQL has to have beside those of the subscribers."""


class Crowd:
    """Many clients of one thread, each of which reads COPY (SUBSCRIBE …)."""

    def __init__(self, server: Served, query: str, number: int):
        self._selector = selectors.DefaultSelector()
        dsn = server.dsn.encode()
        with ThreadPoolExecutor(16) as workers:
            self._clients = list(workers.map(lambda _: pq.PGconn.connect(dsn), range(number)))
        self._rows = dict.fromkeys(self._clients, 0)
        for place, client in enumerate(self._clients):
            if client.status != pq.ConnStatus.OK:
                raise SystemExit(f"client {place} of {number}: {client.error_message.decode()}")
            client.nonblocking = 1
            text = query.format(n=place)
            client.send_query(f"COPY (SUBSCRIBE ({text}) WITH (SNAPSHOT = false, PROGRESS)) TO STDOUT".encode())
            while client.flush():
                pass
            self._selector.register(client.socket, selectors.EVENT_READ, client)

    def wait(self, rows: int, seconds: float = 120) -> None:
        """Until each has got so many rows; the first is the progress message with which a subscription begins."""
        missing = {client for client in self._clients if self._rows[client] < rows}
        deadline = time.monotonic() + seconds
        while missing:
            if time.monotonic() > deadline:
                raise SystemExit(f"{len(missing)} of {len(self._clients)} subscribers have not got row {rows}")
            for key, _ in self._selector.select(1):
                self._read(key.data)
                if self._rows[key.data] >= rows:
                    missing.discard(key.data)

    def _read(self, client: Any) -> None:
        client.consume_input()
        while not client.is_busy():
            size, data = client.get_copy_data(1)
            if size > 0:
                self._rows[client] += bytes(data).split(b"\t")[1] == b"f" or not self._rows[client]
            elif size == 0:
                return
            elif (result := client.get_result()) is None or result.status != pq.ExecStatus.COPY_OUT:
                raise SystemExit(f"a subscription has ended: {client.error_message.decode()}")

    def close(self) -> None:
        for client in self._clients:
            self._selector.unregister(client.socket)
            client.finish()
        self._selector.close()


@dataclass(frozen=True, slots=True)
class Costs:
    """What subscribers cost the server: its own process, and the processes of its PostgreSQL, apart."""

    opening: float
    """Seconds until all had begun."""
    cpu: float
    """CPU seconds of the server's process for all commits, each seen by every subscriber."""
    idle: float
    """Share of a CPU that the server's process takes while nothing happens but a progress message a second to each."""
    memory: float
    """Bytes that the server's process has grown by."""


def follow(server: Served, query: str, number: int, commits: int) -> Costs:
    """What `number` subscribers cost."""
    process = psutil.Process(server.pid)
    begun, at = process.memory_info().rss, time.perf_counter()
    crowd = Crowd(server, query, number)
    crowd.wait(1)
    opening = time.perf_counter() - at
    memory = process.memory_info().rss - begun

    def cpu() -> float:
        times = process.cpu_times()
        return float(times.user + times.system)

    with psycopg.connect(server.dsn, autocommit=True) as writer:
        writer.execute("INSERT INTO news VALUES (-1)")
        crowd.wait(2)
        before = cpu()
        for n in range(commits):
            writer.execute("INSERT INTO news VALUES (%s)", [n])
            crowd.wait(n + 3)  # one timestamp each
        used = cpu() - before
        before, at = cpu(), time.perf_counter()
        with suppress(SystemExit):
            crowd.wait(commits + 3, IDLE)
        idle = (cpu() - before) / (time.perf_counter() - at)
    crowd.close()
    return Costs(opening, used, idle, memory)


async def evaluate(server: Served, number: int, commits: int) -> float:
    """CPU seconds of a hub in this process, without any server, for commits that so many feeds are given."""
    options = conninfo.conninfo_to_dict(server.direct)
    arguments = {"host": options["host"], "port": int(str(options["port"])), "user": options["user"]}
    arguments["password"] = options["password"]
    pools = [DatabasePool(str(options["dbname"]), lambda _: arguments) for _ in range(2)]
    hub = Hub(pools[0])
    asked = Subscribe("SELECT n FROM news", progress=True, snapshot=False, settings={"search_path": "public"})
    async with pools[1].session() as session:
        prepared = await hub.prepare(session, asked)

    async def opened() -> Feed:
        async with pools[1].session() as session:
            return await hub.open(session, prepared, RowOutput())

    feeds = await asyncio.gather(*(opened() for _ in range(number)))
    seen, news = dict.fromkeys(feeds, 0), asyncio.Event()
    latest = 0

    async def read(feed: Feed) -> None:
        def taken(batch: Batch) -> bool:
            nonlocal latest
            if batch.rows > 1:  # a row, and the message that its time is closed
                seen[feed] += 1
                latest += 1
                if latest % number == 0:
                    news.set()
            return True

        while (batch := await feed.next(None, taken)) is not None:
            taken(batch)

    readers = [asyncio.create_task(read(feed)) for feed in feeds]
    async with pools[1].session() as writer:
        used = 0.0
        for n in range(commits + 1):
            news.clear()
            await writer.execute("INSERT INTO public.news VALUES ($1::int)", n)
            before = time.process_time()
            hub.committed()
            await asyncio.wait_for(news.wait(), 60)
            used += time.process_time() - before if n else 0.0
    if set(seen.values()) != {commits + 1}:
        raise SystemExit("a feed has missed something")
    for reader in readers:
        reader.cancel()
    await hub.close()
    for pool in pools:
        await pool.close()
    return used


def measure_engine(server: Served, numbers: list[int], commits: int, console: Console) -> None:
    table = Table("feeds of one query", "CPU ms per commit", "times that of one", title="CPU of the engine alone")
    alone = 0.0
    for number in numbers:
        cpu = uvloop.run(evaluate(server, number, commits))
        alone = alone or cpu
        table.add_row(str(number), f"{cpu / commits * 1000:.2f}", f"{cpu / alone:.1f}")
    console.print(table)


def measure_subscribers(server: Served, kinds: list[str], numbers: list[int], commits: int, console: Console) -> None:
    columns = ("queries", "subscribers", "s to open", "CPU ms per commit", "times that of one", "% idle", "kB each")
    table = Table(*columns, title="CPU and memory of the server's process, without its PostgreSQL")
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE news (n int)")
    for name, query in (("one", "SELECT n FROM news"), ("distinct", "SELECT n, {n} AS mine FROM news")):
        alone = 0.0
        for number in numbers if name in kinds else []:
            costs = follow(server, query, number, commits)
            alone = alone or costs.cpu
            table.add_row(
                name,
                str(number),
                f"{costs.opening:.1f}",
                f"{costs.cpu / commits * 1000:.1f}",
                f"{costs.cpu / alone:.1f}",
                f"{costs.idle * 100:.1f}",
                f"{costs.memory / number / 1024:.0f}" if number > 1 else "",
            )
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("numbers", type=int, nargs="*", default=[1, 10, 50], help="how many subscribers")
    parser.add_argument("--queries", nargs="+", choices=["one", "distinct"], default=["one", "distinct"])
    parser.add_argument("--commits", type=int, default=50, help="commits that all subscribers see")
    options = parser.parse_args()
    console = Console()
    with served(max_connections=max(options.numbers) + SPARE) as server:
        measure_subscribers(server, options.queries, options.numbers, options.commits, console)
        if "one" in options.queries:
            measure_engine(server, options.numbers, options.commits, console)


if __name__ == "__main__":
    main()
