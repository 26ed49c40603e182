"""Faults of every kind under a counted load: nothing is lost, nothing comes twice, and work goes on by itself.

Two servers share a PostgreSQL. The first one runs it, and clients send events, consume them and write rows through it.
The second one reaches it over a network that can fall silent, and takes over what the first one cannot do. After each
fault a row and an event are written past both, and it is timed how long it takes until the stream table and the
consumer have them. In the end each consumer must have each event once, every transaction that was confirmed must be
there, and the stream tables equal their queries. `docs/reliability.md` has the figures of a run.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from tests.e2e.client_threads import ClientThreads
from tests.e2e.conftest import Database, Headwater
from tests.e2e.queues.queue_crews import DONE, Crew
from tests.e2e.reliability.test_crash_recovery import connected, kill
from tests.e2e.reliability.test_silence import RemotePlan
from tests.silent_network import SilentNetwork, silent_network

Eventually = Callable[..., Any]

ROUNDS = int(os.environ.get("HEADWATER_FAULT_ROUNDS", "200"))
CONSUMERS = ("ann", "bob", "cem")
RECOVERY_SECONDS = 180.0

QUERIES = {
    "counted": "SELECT writer, count(*) AS n, sum(id) AS total FROM ledger GROUP BY writer",
    "named": "SELECT l.id, l.writer, w.name FROM ledger l JOIN writers w ON w.id = l.writer WHERE l.id % 7 = 0",
    "over_another": "SELECT count(*) AS writers, sum(n) AS n FROM counted",
}

SET_BACK = """
UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = data_timestamp + interval '1 hour',
       last_refresh_at = last_refresh_at + interval '1 hour', created_at = created_at + interval '1 hour';
UPDATE pgque.tick SET tick_time = tick_time + interval '1 hour';
UPDATE pgque.queue SET queue_switch_time = queue_switch_time + interval '1 hour';
UPDATE pgque.subscription SET sub_active = sub_active + interval '1 hour';
UPDATE pgque.retry_queue SET ev_retry_after = ev_retry_after + interval '1 hour' WHERE isfinite(ev_retry_after);
SELECT setval('pgtrickle.pgt_timeline_seq', last_value + 3600000) FROM pgtrickle.pgt_timeline_seq
"""
"""What is stored, as it is when the clock of the machine has been set back by an hour."""


class Writers(ClientThreads):
    """Threads that write rows, and know of which transactions the commit was confirmed."""

    def __init__(self, server: Headwater, number: int):
        super().__init__()
        self.confirmed: list[set[int]] = [set() for _ in range(number)]
        self.unsure: set[int] = set()
        self.errors: list[str] = []
        self._server = server
        for writer in range(number):
            self._add(self._run, writer)

    def _run(self, writer: int) -> None:
        id_ = writer * 100_000_000
        while not self._stop.is_set():
            try:
                with closing(psycopg.connect(self._server.dsn(connect_timeout=30), autocommit=True)) as connection:
                    while not self._stop.is_set():
                        id_ += 1
                        try:
                            connection.execute("INSERT INTO ledger VALUES (%s, %s)", [id_, writer])
                        except BaseException:
                            self.unsure.add(id_)
                            raise
                        self.confirmed[writer].add(id_)
                        self._stop.wait(0.002)
            except psycopg.OperationalError:
                self._stop.wait(0.05)  # the server is down
            except Exception as error:
                self.errors.append(repr(error))
                return


class Probe:
    """Somebody who goes past the servers, and sees whether they do their work."""

    def __init__(self, server: Headwater):
        self._server, self._number = server, 0

    def wait(self, began: float, what: str) -> float:
        """Seconds from then until a new row is in the stream table and a new event at its consumer."""
        self._number += 1
        row, event = -self._number, f"probe {self._number}"
        written = False
        while True:
            with suppress(psycopg.OperationalError), closing(self._connect()) as connection:
                if not written:
                    with connection.transaction():
                        connection.execute("INSERT INTO ledger VALUES (%s, 99) ON CONFLICT DO NOTHING", [row])
                        connection.execute("SELECT pgque.send('probed', %s::text)", [event])
                    written = True
                while True:
                    seen = connection.execute("SELECT total FROM counted WHERE writer = 99").fetchall()
                    if seen == [(-self._number * (self._number + 1) // 2,)] and self._received(connection, event):
                        return time.monotonic() - began
                    assert time.monotonic() - began < RECOVERY_SECONDS, f"no recovery: {what}"
                    time.sleep(0.05)
            assert time.monotonic() - began < RECOVERY_SECONDS, f"no recovery: {what}"
            time.sleep(0.05)

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            return psycopg.connect(self._server.direct_dsn(connect_timeout=5), autocommit=True)
        except (OSError, IndexError) as error:  # PostgreSQL is just starting
            raise psycopg.OperationalError(str(error)) from error

    def _received(self, connection: psycopg.Connection[Any], event: str) -> bool:
        rows = connection.execute("SELECT batch_id, payload FROM pgque.receive('probed', 'probe')").fetchall()
        if rows:
            connection.execute("SELECT pgque.ack(%s)", [rows[0][0]])
            self._seen = {payload for _, payload in rows}
        return event in getattr(self, "_seen", ())


class Faults:
    """What can go wrong. Each returns what is to be done once the work has gone on without."""

    def __init__(self, first: Headwater, second: Headwater, network: SilentNetwork, rng: random.Random):
        self._first, self._second, self._network, self._rng = first, second, network, rng
        self.kinds: dict[str, Callable[[], Callable[[], None] | None]] = {
            "kill -9 of a server, and of the PostgreSQL it runs": self._kill_server,
            "kill -9 of a session of PostgreSQL": self._kill_session,
            "kill -9 of PostgreSQL": self._kill_postgres,
            "end of all the engines' sessions": self._end_sessions,
            "a server is stopped (SIGSTOP)": self._stop_server,
            "the network falls silent": self._silence,
            "the clock is set back by an hour": self._set_back,
        }

    def _kill_server(self) -> None:
        self._first.kill()
        self._first.start()

    def _kill_session(self) -> None:
        kill(self._first, "backend", self._rng)

    def _kill_postgres(self) -> None:
        kill(self._first, "postgres", self._rng)
        assert self._first.process is not None
        assert self._first.process.wait(180) == 1
        self._first.start()

    def _end_sessions(self) -> None:
        with psycopg.connect(self._first.direct_dsn(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'headwater engine%'"
            )

    def _stop_server(self) -> Callable[[], None]:
        process = self._rng.choice([self._first, self._second]).process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
        return lambda: os.kill(process.pid, signal.SIGCONT)

    def _silence(self) -> Callable[[], None]:
        self._network.fall_silent()
        if self._rng.random() < 0.5:
            self._network.recover()
        return self._network.recover

    def _set_back(self) -> None:
        with psycopg.connect(self._first.direct_dsn(), autocommit=True) as connection:
            connection.execute(SET_BACK)


@contextmanager
def second_server(first: Headwater, path: Path) -> Iterator[tuple[Headwater, SilentNetwork]]:
    """Another server, over a network."""
    login = conninfo.conninfo_to_dict(first.direct_dsn())
    with silent_network(login["host"], int(login["port"])) as network:
        url = f"postgresql://{login['user']}:{login['password']}@127.0.0.1:{network.port}/postgres?sslmode=disable"
        path.mkdir()
        server = RemotePlan(path / "data", "--postgres", url)
        server.login = {key: str(login[key]) for key in ("user", "password")}
        server.start()
        try:
            yield server, network
        finally:
            network.recover()
            server.stop()


@pytest.mark.long
def test_nothing_is_lost_in_faults_of_every_kind(
    own_server: Headwater, tmp_path: Path, eventually: Eventually, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(17)
    with connected(own_server) as database:
        database.run("CREATE TABLE ledger (id int PRIMARY KEY, writer int)")
        database.run(
            "CREATE TABLE writers (id int PRIMARY KEY, name text); INSERT INTO writers VALUES (0, 'a'), (1, 'b')"
        )
        for name, query in QUERIES.items():
            database.create(name, query, schedule="1s")
        database.run("SELECT pgque.create_queue('counted_events'), pgque.create_queue('probed')")
        database.run("SELECT pgque.subscribe('probed', 'probe')")
        for consumer in CONSUMERS:
            database.run("SELECT pgque.subscribe('counted_events', %s)", consumer)
        database.run(DONE)
    recovered: dict[str, list[float]] = defaultdict(list)
    probe = Probe(own_server)
    with second_server(own_server, tmp_path / "second") as (second, network):
        faults = Faults(own_server, second, network, rng)
        kinds = [kind for _ in range(ROUNDS // len(faults.kinds) + 1) for kind in faults.kinds][:ROUNDS]
        rng.shuffle(kinds)
        with (
            Writers(own_server, 2) as writers,
            Crew(lambda: own_server.dsn(connect_timeout=30), "counted_events") as crew,
        ):
            for consumer in CONSUMERS:
                crew.consume(consumer)
            for number, kind in enumerate(kinds):
                crew.produce(f"a{number}", 200, seed=2 * number)
                crew.produce(f"b{number}", 200, seed=2 * number + 1)
                time.sleep(rng.uniform(0.2, 1.0))  # somewhere in the midst of it
                began = time.monotonic()
                after = faults.kinds[kind]()
                recovered[kind].append(probe.wait(began, f"round {number}: {kind}"))
                if after is not None:
                    after()
                    probe.wait(time.monotonic(), f"round {number}: {kind}, and it is over")
                assert not writers.errors and not crew.errors, (number, kind, writers.errors, crew.errors)
            crew.all_sent()
            with psycopg.connect(own_server.direct_dsn(), autocommit=True) as past:
                eventually(lambda: crew.arrived(past, *CONSUMERS), 600.0, what="all events")
                crew.check(past, *CONSUMERS)
    with connected(own_server) as database:
        present = {id_ for (id_,) in database.rows("SELECT id FROM ledger WHERE id > 0")}
        confirmed = set().union(*writers.confirmed)
        assert confirmed - present == set(), "confirmed, and lost"
        assert present - confirmed - writers.unsure == set()
        _compare(database, eventually)
    with capsys.disabled():
        print(_figures(recovered, crew.sent.total(), len(confirmed)))


def _compare(database: Database, eventually: Eventually) -> None:
    for name in QUERIES:
        eventually(lambda name=name: not database.difference(name), what=f"{name} equals its query")
        assert database.state(name)["status"] == "ACTIVE"


def _figures(recovered: dict[str, list[float]], events: int, transactions: int) -> str:
    """The table of `docs/reliability.md`."""
    rows = [f"| {'fault':52} | rounds | median s | longest s |", f"|{'-' * 54}|---|---|---|"]
    for kind, times in [*sorted(recovered.items()), ("all", [t for each in recovered.values() for t in each])]:
        rows.append(f"| {kind:52} | {len(times)} | {statistics.median(times):.1f} | {max(times):.1f} |")
    counted = f"{events} events times {len(CONSUMERS)} consumers, {transactions} confirmed transactions: nothing lost"
    return "\n".join(["", *rows, "", counted])
