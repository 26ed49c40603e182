"""`headwater serve --workers`: clients are served by several processes as they are by one."""

from __future__ import annotations

import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest

from server.postgres.processes import await_end
from tests.e2e.conftest import Headwater

WORKERS = 3
SECONDS = 60.0
LIMIT = 50


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Headwater]:
    data = tmp_path_factory.mktemp("workers") / "data"
    options = ("--workers", str(WORKERS), "--metrics", "0", "--max-connections", str(LIMIT))
    server = Headwater(data, *options).start()
    yield server
    assert server.stop() == 0


@pytest.fixture
def clients(running: Headwater) -> Iterator[list[psycopg.Connection[Any]]]:
    """As many connections as there are processes, one in each: nobody else is connected."""
    _until(lambda: _connected(running) == 0)
    with ExitStack() as stack:
        yield [_client(running, stack) for _ in range(WORKERS)]


def _client(server: Headwater, stack: ExitStack, **options: Any) -> psycopg.Connection[Any]:
    return stack.enter_context(psycopg.connect(server.dsn(**options), autocommit=True))


def _processes(server: Headwater) -> list[psutil.Process]:
    """The processes that relay."""
    assert server.process is not None
    return [process for process in psutil.Process(server.process.pid).children() if _relays(process)]


def _relays(process: psutil.Process) -> bool:
    try:
        return any("relay_worker" in word for word in process.cmdline())
    except psutil.Error:  # it has just ended
        return False


def _sockets(server: Headwater) -> list[int]:
    """How many clients each has."""
    return [
        sum(
            1 for one in process.net_connections("tcp") if one.status == "ESTABLISHED" and one.laddr.port == server.port
        )
        for process in _processes(server)
    ]


def _metric(server: Headwater, name: str) -> float:
    """The sum of a metric's samples."""
    lines = [line for line in server.log.splitlines() if "metrics are served" in line]
    url = lines[-1].partition("url=")[2].split()[0]
    text = urllib.request.urlopen(url).read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.partition("{")[0].split()[0] == name)


def _connected(server: Headwater) -> float:
    return _metric(server, "headwater_connections")


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_clients_are_spread_evenly(running: Headwater, clients: list[psycopg.Connection[Any]]) -> None:
    assert len(_processes(running)) == WORKERS
    assert _sockets(running) == [1] * WORKERS
    with ExitStack() as stack:
        for _ in range(WORKERS):
            _client(running, stack)
        assert _sockets(running) == [2] * WORKERS


def test_what_one_process_commits_is_refreshed_and_subscribed_to_in_the_others(
    clients: list[psycopg.Connection[Any]],
) -> None:
    first, second, third = clients
    first.execute("CREATE TABLE seen (id int PRIMARY KEY, v int)")
    first.execute(
        "SELECT pgtrickle.create_stream_table('totals', 'SELECT v, count(*) AS n FROM seen GROUP BY v', '1h')"
    )
    heard: list[tuple[Any, ...]] = []

    def listen() -> None:
        for row in third.cursor().stream("SUBSCRIBE seen WITH (snapshot = false)"):
            heard.append(row)
            if len(heard) == 2:
                break

    listening = threading.Thread(target=listen)
    listening.start()
    try:
        deadline = time.monotonic() + SECONDS
        number = 0
        while len(heard) < 2:
            assert time.monotonic() < deadline
            number += 1
            clients[number % 2].execute("INSERT INTO seen VALUES (%s, 1)", [number])
            time.sleep(0.2)
    finally:
        listening.join(SECONDS)
    second.execute("SELECT pgtrickle.refresh_stream_table('totals')")
    assert first.execute("SELECT v, n FROM totals").fetchall() == [(1, number)]
    assert _same_everywhere(clients, "SELECT v, n FROM totals")
    first.execute("SELECT pgtrickle.drop_stream_table('totals'); DROP TABLE seen")


def _same_everywhere(clients: list[psycopg.Connection[Any]], query: str) -> bool:
    return len({tuple(client.execute(query).fetchall()) for client in clients}) == 1  # type: ignore[call-overload]


def test_the_scheduler_is_woken_by_commits_of_every_process(clients: list[psycopg.Connection[Any]]) -> None:
    first = clients[0]
    first.execute("CREATE TABLE woken (id int PRIMARY KEY)")
    first.execute("SELECT pgtrickle.create_stream_table('counted', 'SELECT count(*) AS n FROM woken', '1s')")
    for number, client in enumerate(clients, 1):
        client.execute("INSERT INTO woken VALUES (%s)", [number])
        _until(lambda number=number: first.execute("SELECT n FROM counted").fetchone() == (number,))  # type: ignore[misc]
    first.execute("SELECT pgtrickle.drop_stream_table('counted'); DROP TABLE woken")


def test_a_cancel_request_reaches_the_session_in_whichever_process_it_is(
    clients: list[psycopg.Connection[Any]],
) -> None:
    """A cancel request comes by a connection of its own, which some other process may have been given."""
    for _ in range(2 * WORKERS):
        for client in clients:
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(client.execute, "SELECT pg_sleep(60)")
                _until(lambda client=client: client.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE)  # type: ignore[misc]
                time.sleep(0.05)
                client.cancel_safe()
                with pytest.raises(psycopg.errors.QueryCanceled):
                    waiting.result(SECONDS)


def test_a_cancel_request_reaches_what_the_server_does_for_a_client(clients: list[psycopg.Connection[Any]]) -> None:
    first = clients[0]
    first.execute("CREATE TABLE quiet (id int PRIMARY KEY)")
    for client in clients:
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lambda client=client: list(client.cursor().stream("SUBSCRIBE quiet")))  # type: ignore[misc]
            _until(lambda client=client: client.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE)  # type: ignore[misc]
            time.sleep(0.3)
            client.cancel_safe()
            with pytest.raises(psycopg.errors.QueryCanceled):
                waiting.result(SECONDS)
    first.execute("DROP TABLE quiet")


def test_a_database_can_be_dropped_that_all_processes_have_used(
    running: Headwater, clients: list[psycopg.Connection[Any]]
) -> None:
    clients[0].execute("CREATE DATABASE gone")
    with ExitStack() as stack:
        for number in range(2 * WORKERS):
            used = _client(running, stack, dbname="gone")
            used.execute(b"CREATE TABLE t%d (id int)" % number)
            used.execute("SELECT pgtrickle.create_stream_table(%s, %s)", [f"s{number}", f"SELECT id FROM t{number}"])
    _until(lambda: _connected(running) == WORKERS)
    clients[1].execute("DROP DATABASE gone")
    assert clients[2].execute("SELECT count(*) FROM pg_database WHERE datname = 'gone'").fetchone() == (0,)


def test_functions_that_make_requests_are_known_everywhere(clients: list[psycopg.Connection[Any]]) -> None:
    """Else a request that is pipelined with its COMMIT would be refused where the function has not been seen."""
    first = clients[0]
    first.execute("CREATE TABLE of_function (id int PRIMARY KEY)")
    first.execute(
        "CREATE FUNCTION hidden(name text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pgtrickle.create_stream_table(name, 'SELECT id FROM of_function'); END $$"
    )
    for number, client in enumerate(clients):
        with client.pipeline():
            client.execute("BEGIN")
            client.execute("SELECT hidden(%s)", [f"by_function_{number}"])
            client.execute("COMMIT")
    assert first.execute("SELECT count(*) FROM pgtrickle.pgt_stream_tables").fetchone() == (WORKERS,)
    for number in range(WORKERS):
        first.execute("SELECT pgtrickle.drop_stream_table(%s)", [f"by_function_{number}"])
    first.execute("DROP FUNCTION hidden; DROP TABLE of_function")


def test_the_limit_of_connections_holds_for_all_together(running: Headwater) -> None:
    _until(lambda: _connected(running) == 0)
    with ExitStack() as stack:
        for _ in range(LIMIT):
            _client(running, stack)
        assert _connected(running) == LIMIT
        for _ in range(WORKERS):
            with pytest.raises(psycopg.OperationalError, match="too many clients already"):
                psycopg.connect(running.dsn())
        assert sorted(_sockets(running)) == [LIMIT // WORKERS, *[LIMIT // WORKERS + 1] * (LIMIT % WORKERS)]
    _until(lambda: _connected(running) == 0)


def test_metrics_are_those_of_all_processes(running: Headwater, clients: list[psycopg.Connection[Any]]) -> None:
    for client in clients:
        client.execute("SELECT 1")
    before = _metric(running, "headwater_statements_total")
    for client in clients:
        for _ in range(10):
            client.execute("SELECT 1", prepare=False)
    assert _metric(running, "headwater_statements_total") == before + 10 * WORKERS
    assert _connected(running) == WORKERS


def test_a_process_that_is_killed_takes_only_its_clients_along(
    running: Headwater, clients: list[psycopg.Connection[Any]]
) -> None:
    opened = _metric(running, "headwater_connections_opened_total")
    clients[0].execute("CREATE TABLE kept (id int PRIMARY KEY)")
    before = {process.pid for process in _processes(running)}
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    _until(lambda: len(_processes(running)) == WORKERS and victim not in {one.pid for one in _processes(running)})
    lost = 0
    for number, client in enumerate(clients):
        try:
            client.execute("INSERT INTO kept VALUES (%s)", [number])
        except psycopg.OperationalError:
            lost += 1
    assert lost == 1
    with ExitStack() as stack:
        fresh = _client(running, stack)
        assert fresh.execute("SELECT count(*) FROM kept").fetchone() == (WORKERS - 1,)
        fresh.execute("DROP TABLE kept")
    assert _metric(running, "headwater_connections_opened_total") > opened  # what the killed one had counted is kept


def test_nothing_stays_behind(tmp_path: Path) -> None:
    """After SIGKILL of the main process, as after SIGTERM."""
    for end in (signal.SIGTERM, signal.SIGKILL):
        server = Headwater(tmp_path / "data", "--workers", "2").start()
        assert server.process is not None
        all_of_them = psutil.Process(server.process.pid).children(recursive=True)
        with psycopg.connect(server.dsn(), autocommit=True) as client:
            assert client.execute("SELECT 1").fetchone() == (1,)
            os.kill(server.process.pid, end)
            server.process.wait(SECONDS)
            assert await_end(all_of_them, SECONDS) == []
            with pytest.raises(psycopg.OperationalError):
                client.execute("SELECT 1")
