"""What the relay costs: pgbench's select, and a million rows, direct, through Headwater, and through PgBouncer.

    python -m bench.relay [--rounds 3] [--seconds 4] [--only relay|workers|pipelined|beside|console]

All targets take turns within each round, so that they meet the same machine. PgBouncer takes part where it is
installed. All clients use TCP; both proxies reach PostgreSQL by its Unix socket, as Headwater reaches the embedded one.
The CPU time that a proxy takes for a statement depends less on what else the machine does than the rates.

Then whole servers with one relaying process and with two (`--workers`), with 1 to 64 clients (`workers`).

Then transactions that psycopg sends up to their COMMIT in a pipeline (`pipelined`), by turns through a relay to a
database in which functions may make engine requests, where COMMIT waits for what was sent before it, and one without.

Then what it is to others when ten clients have queries compiled that are too complex, one after the other: pgbench's
select through a server with its engine, by turns without and with them (`beside`). And the same with the graph of 40
stream tables open in the console, which asks for it anew each second, as it does where something changes (`console`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import psycopg
import uvloop
from psycopg import conninfo
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.serving import Served, served
from engine.child_process import python_command
from server.console.config import LISTENS, ConsoleConfig
from server.intercept.engine_interface import Backend, NoEngine
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory
from server.relay.listener import Listener
from server.relay.relay import Relay

MILLION_ROWS = "select n, 'row number ' || n, n / 7.0 from generate_series(1, 1000000) n"


@dataclass(frozen=True, slots=True)
class Target:
    """Where clients connect."""

    name: str
    host: str
    port: int
    pid: int | None = None
    """Of the process whose CPU time counts."""

    def cpu_seconds(self) -> float:
        if self.pid is None:
            return 0.0
        process = psutil.Process(self.pid)
        times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
        return sum(time.user + time.system for time in times)


class TcpCluster(EmbeddedPostgres):
    """The embedded PostgreSQL, listening on TCP as well: port 5432, by which its socket is called, has to be free."""


class Calling(NoEngine):
    """An engine in whose databases functions may make requests."""

    def look_for_callers(self, database: str, found: Callable[[], None]) -> None:
        found()


def serve(backend: Backend, told: Connection, hooks: NoEngine) -> None:
    """Run a relay without an engine in this process until it is killed; sends its port."""

    async def run() -> None:
        relay = Relay(backend, hooks)
        listener = Listener("127.0.0.1", 0, relay.admit)
        relay.start()
        await listener.start()
        told.send(listener.port)
        await asyncio.Event().wait()

    uvloop.run(run())


@contextmanager
def headwater(cluster: EmbeddedPostgres, name: str = "headwater", hooks: NoEngine | None = None) -> Iterator[Target]:
    """A relay in a process of its own."""
    here, there = multiprocessing.Pipe()
    backend = Backend(unix_socket_dir=cluster.socket_dir, port=cluster.port)
    process = multiprocessing.get_context("spawn").Process(
        target=serve, args=(backend, there, hooks or NoEngine()), daemon=True
    )
    process.start()
    try:
        assert process.pid is not None
        yield Target(name, "127.0.0.1", here.recv(), process.pid)
    finally:
        process.terminate()
        process.join()


@contextmanager
def pgbouncer(cluster: EmbeddedPostgres) -> Iterator[Target | None]:
    """PgBouncer in session mode, None where it is not installed."""
    program = shutil.which("pgbouncer")
    if program is None:
        yield None
        return
    port = 16432
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o755)
        users = home / "users"
        users.write_text(f'"{cluster.user}" "{cluster.password}"\n')
        settings = home / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={cluster.socket_dir} port={cluster.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
            f"listen_port = {port}\nunix_socket_dir =\nauth_type = scram-sha-256\nauth_file = {users}\n"
            "pool_mode = session\ndefault_pool_size = 100\nlogfile =\npidfile =\n"
        )
        command = [program, "-q", str(settings)]  # it does not run as root either
        process = subprocess.Popen(
            cluster.identity.command(command, shared=[cluster.socket_dir], die_with_parent=True),
        )
        time.sleep(1)
        try:
            yield Target("pgbouncer", "127.0.0.1", port, process.pid)
        finally:
            process.terminate()
            process.wait()


def environment(cluster: EmbeddedPostgres, target: Target) -> dict[str, str]:
    return {
        **os.environ,
        "PGHOST": target.host,
        "PGPORT": str(target.port),
        "PGUSER": cluster.user,
        "PGPASSWORD": cluster.password,
        "PGDATABASE": "postgres",
    }


def transactions(cluster: EmbeddedPostgres, target: Target, protocol: str, clients: int, seconds: int) -> float:
    """Transactions a second."""
    command = [str(cluster.bin_dir / "pgbench"), "-n", "-S", "-M", protocol, "-c", str(clients), "-T", str(seconds)]
    done = subprocess.run(command, env=environment(cluster, target), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"pgbench through {target.name}: {done.stderr}")
    found = re.search(r"tps = ([0-9.]+)", done.stdout)
    assert found is not None
    return float(found.group(1))


def rows(cluster: EmbeddedPostgres, target: Target) -> float:
    """Rows a second of a result of a million rows, read by psql."""
    command = [str(cluster.psql), "-X", "-A", "-t", "-q", "-o", "/dev/null", "-c", MILLION_ROWS]
    begin = time.perf_counter()
    subprocess.run(command, env=environment(cluster, target), check=True)
    return 1_000_000 / (time.perf_counter() - begin)


COMPLEX = "SELECT id, {} FROM complex_t".format(
    ", ".join(f"(SELECT count(*) FROM complex_t x WHERE x.a = complex_t.a + {n}) AS c{n}" for n in range(100))
)
"""A statement of 7 kB that takes seconds to compile, and is refused then."""


@contextmanager
def compiling(dsn: str, clients: int) -> Iterator[None]:
    """Clients that ask for nothing but a stream table of a complex query."""
    over = threading.Event()

    def ask(number: int) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not over.is_set():
                with suppress(psycopg.errors.FeatureNotSupported, psycopg.errors.StatementTooComplex):
                    connection.execute(
                        "SELECT pgtrickle.create_stream_table(%s, %s, refresh_mode => 'DIFFERENTIAL')",
                        [f"complex_{number}", COMPLEX],
                    )

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def latencies(pgbench: Path, target: dict[str, str], seconds: int, clients: int) -> list[float]:
    """Milliseconds of each of pgbench's selects."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(pgbench), "-n", "-S", "-M", "simple", "-c", str(clients), "-T", str(seconds), "-l"]
        subprocess.run(command, env={**os.environ, **target}, capture_output=True, check=True, cwd=folder)
        return [int(line.split()[2]) / 1000 for log in Path(folder).iterdir() for line in log.open()]


@contextmanager
def page_open(server: Served) -> Iterator[None]:
    """A page of the console that is told of changes, and asks for the graph each second."""
    given = conninfo.conninfo_to_dict(server.dsn)
    config = ConsoleConfig("127.0.0.1", 0, str(given["host"]), int(given["port"]), str(given["dbname"]))
    program = python_command("from server.console.__main__ import main; sys.exit(main())")
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps(asdict(config)), file=process.stdin, flush=True)
        origin = f"http://127.0.0.1:{process.stdout.readline().strip().removeprefix(LISTENS)}"
        login = {"user": given["user"], "password": given["password"], "database": given["dbname"]}
        headers = {"Origin": origin, "Content-Type": "application/json"}
        with urlopen(Request(f"{origin}/api/login", json.dumps(login).encode(), headers)) as answer:
            headers["Cookie"] = str(answer.headers["Set-Cookie"]).partition(";")[0]
        over = threading.Event()

        def look() -> None:
            while not over.wait(1):
                urlopen(Request(f"{origin}/api/graph", headers=headers)).read()

        looking = threading.Thread(target=look)
        try:
            with urlopen(Request(f"{origin}/api/changes?of=graph", headers=headers)):
                looking.start()
                yield
                over.set()
                looking.join()
        finally:
            over.set()
            process.stdin.close()


def forty_stream_tables(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    """What the console's graph shows."""
    for number in range(40):
        source = "pgbench_branches" if number < 20 else f"st_{number - 20}"
        connection.execute(
            "SELECT pgtrickle.create_stream_table(%s, %s, '1s')", [f"st_{number}", f"SELECT bid FROM {source}"]
        )


def beside(
    rounds: int,
    seconds: int,
    title: str,
    prepare: Callable[[psycopg.Connection[tuple[object, ...]]], object],
    load: Callable[[Served], AbstractContextManager[None]],
) -> None:
    """The latency of selects with and without a load beside them."""
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    with served() as server:
        given = conninfo.conninfo_to_dict(server.dsn)
        target = {f"PG{name.upper()}": str(given[name]) for name in ("host", "port", "user", "password")}
        target["PGDATABASE"] = str(given["dbname"])
        pgbench = EmbeddedPostgres(DataDirectory(server.data)).bin_dir / "pgbench"
        subprocess.run(
            [str(pgbench), "-i", "-q", "-s", "5"], env={**os.environ, **target}, check=True, capture_output=True
        )
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            prepare(connection)
        for _ in range(rounds):
            for clients in (1, 8):
                for case in ("alone", "beside"):
                    with load(server) if case == "beside" else nullcontext():
                        measured = sorted(latencies(pgbench, target, seconds, clients))
                    of = [measured[int(len(measured) * share)] for share in (0.5, 0.99)]
                    found.setdefault((clients, case), []).append((of[0], of[1]))
    table = Table(title=f"select beside {title}, ms (median of rounds)")
    for heading in ("", "median", "p99", "p99 to alone"):
        table.add_column(heading, justify="right")
    for (clients, case), times in found.items():
        p50, p99 = (statistics.median(column) for column in zip(*times, strict=True))
        alone = statistics.median(p99 for _, p99 in found[clients, "alone"])
        table.add_row(
            f"{clients} client{'s' * (clients > 1)}, {case}", f"{p50:.3f}", f"{p99:.3f}", f"{p99 / alone:.2f}"
        )
    Console(width=120).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--only", choices=["relay", "workers", "pipelined", "beside", "console"])
    options = parser.parse_args()
    if options.only in (None, "relay"):
        relay(options.rounds, options.seconds)
    if options.only in (None, "workers"):
        workers(options.rounds, options.seconds)
    if options.only in (None, "pipelined"):
        pipelined(options.rounds)
    if options.only in (None, "beside"):
        made = "CREATE TABLE complex_t (id int PRIMARY KEY, a int)"
        beside(
            *(options.rounds, options.seconds, "ten complex statements"),
            lambda connection: connection.execute(made),
            lambda server: compiling(server.dsn, 10),
        )
    if options.only in (None, "console"):
        beside(options.rounds, options.seconds, "an open page of the console", forty_stream_tables, page_open)


SYNCS = ("a Sync for all", "for each transaction", "for each statement")


def send_transactions(connection: psycopg.Connection[tuple[object, ...]], syncs: str, count: int) -> None:
    """Send transactions of one INSERT each in a pipeline."""
    with connection.pipeline() as pipeline:
        for _ in range(count):
            for statement in ("BEGIN", "INSERT INTO pipelined VALUES (1)", "COMMIT"):
                connection.execute(statement)
                if syncs == "for each statement":
                    pipeline.sync()
            if syncs == "for each transaction":
                pipeline.sync()


def pipelined(rounds: int, count: int = 2000) -> None:
    """Time, and the relay's CPU time, for transactions in a pipeline, with and without functions that make requests."""
    elapsed: dict[tuple[str, str], list[float]] = {}
    spent: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        cluster = TcpCluster(DataDirectory(Path(folder) / "data").create(), {"fsync": "off"})
        cluster.start()
        try:
            with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
                connection.execute("CREATE UNLOGGED TABLE pipelined (i int)")
            with (
                headwater(cluster, "without such functions") as without,
                headwater(cluster, "with them", Calling()) as with_them,
            ):
                for _ in range(rounds):
                    for syncs in SYNCS:
                        for target in (without, with_them):
                            dsn = conninfo.make_conninfo(cluster.dsn(), host=target.host, port=target.port)
                            with psycopg.connect(dsn, autocommit=True) as connection:
                                cpu, begin = target.cpu_seconds(), time.perf_counter()
                                send_transactions(connection, syncs, count)
                                each = (time.perf_counter() - begin) / count
                            elapsed.setdefault((syncs, target.name), []).append(each * 1e6)
                            spent.setdefault((syncs, target.name), []).append(
                                (target.cpu_seconds() - cpu) / count * 1e6
                            )
        finally:
            cluster.stop()
    table = Table(title="a pipelined transaction, µs: median of rounds; CPU of the relay, mean")
    for heading in ("", "without such functions", "with them"):
        table.add_column(heading, justify="right")
    for syncs in SYNCS:
        cells = [
            f"{statistics.median(elapsed[syncs, name]):.0f}; {statistics.mean(spent[syncs, name]):.0f}"
            for name in ("without such functions", "with them")
        ]
        table.add_row(syncs, *cells)
    Console(width=120).print(table)


def relay(rounds: int, seconds: int) -> None:
    """Rates and CPU time, against a direct connection and PgBouncer."""
    found = Rates()
    with filled_cluster() as (cluster, direct), headwater(cluster) as through, pgbouncer(cluster) as bouncer:
        targets = [target for target in (direct, through, bouncer) if target is not None]
        for _ in range(rounds):
            for protocol in ("simple", "prepared"):
                for clients in (1, 8):
                    for target in targets:
                        found.measure(cluster, target, protocol, clients, seconds)
            for target in targets:
                before = target.cpu_seconds()
                rate = rows(cluster, target)
                found.note("1 M rows", target, rate, target.cpu_seconds() - before)
    report(found, [target.name for target in targets])


def workers(rounds: int, seconds: int) -> None:
    """Rates and CPU time of whole servers, with one process that relays and with two."""
    found = Rates()
    with filled_cluster() as (cluster, direct), ExitStack() as stack:
        servers = [stack.enter_context(server(cluster, number)) for number in (1, 2)]
        bouncer = stack.enter_context(pgbouncer(cluster))
        targets = [target for target in (direct, *servers, bouncer) if target is not None]
        for _ in range(rounds):
            for protocol in ("simple", "extended", "prepared"):
                for clients in (1, 8, 64):
                    for target in targets:
                        found.measure(cluster, target, protocol, clients, seconds)
    report(found, [target.name for target in targets])


@contextmanager
def filled_cluster() -> Iterator[tuple[EmbeddedPostgres, Target]]:
    """A PostgreSQL with pgbench's tables."""
    with tempfile.TemporaryDirectory() as folder:
        data = DataDirectory(Path(folder) / "data").create()
        cluster = TcpCluster(data, {"fsync": "off", "listen_addresses": "127.0.0.1"})
        cluster.start()
        try:
            direct = Target("direct", "127.0.0.1", cluster.port)
            subprocess.run(
                [str(cluster.bin_dir / "pgbench"), "-i", "-q", "-s", "10"],
                env=environment(cluster, direct),
                check=True,
                capture_output=True,
            )
            yield cluster, direct
        finally:
            cluster.stop()


@contextmanager
def server(cluster: EmbeddedPostgres, number: int) -> Iterator[Target]:
    """A whole server, with so many processes that relay."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"host={cluster.socket_dir}&port={cluster.port}&passfile={cluster.passfile}"
        options = {"--data": folder, "--port": "0", "--spark": "off", "--workers": str(number)}
        options["--postgres"] = f"postgresql://{cluster.user}@/postgres?{place}"
        command = [sys.executable, "-m", "server", "serve", *(word for option in options.items() for word in option)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            try:
                port = int(process.stdout.readline().rpartition(":")[2].partition("/")[0])
                yield Target(f"--workers {number}", "127.0.0.1", port, process.pid)
            finally:
                process.terminate()


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured, by case and target."""

    measured: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """Per second."""
    spent: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """CPU time of the proxy, in microseconds."""

    def measure(self, cluster: EmbeddedPostgres, target: Target, protocol: str, clients: int, seconds: int) -> None:
        """Measure pgbench's select."""
        before = target.cpu_seconds()
        rate = transactions(cluster, target, protocol, clients, seconds)
        each = (target.cpu_seconds() - before) / (rate * seconds)
        self.note(f"select, {protocol}, {clients} client{'s' * (clients > 1)}", target, rate, each * 1e6)

    def note(self, case: str, target: Target, rate: float, each: float) -> None:
        self.measured.setdefault((case, target.name), []).append(rate)
        self.spent.setdefault((case, target.name), []).append(each)


def report(found: Rates, names: list[str]) -> None:
    measured, spent = found.measured, found.spent
    table = Table(title="median per second (ratio to direct), CPU µs a statement and row")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for case in dict.fromkeys(case for case, _ in measured):
        medians = {name: statistics.median(measured[case, name]) for name in names}
        cells = []
        for name in names:
            cell = f"{medians[name]:,.0f} ({medians[name] / medians['direct']:.2f})"
            cells.append(cell if name == "direct" else f"{cell} {statistics.median(spent[case, name]):.2f} µs")
        table.add_row(case, *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
