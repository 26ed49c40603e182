"""Queries that take long to compile: refused in bounded time and memory, while everybody else is answered."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from psycopg import errors

from tests.e2e.conftest import Database, Headwater

SECONDS = 1
"""CPU time that the servers of these tests allow a step of compiling."""

MEGABYTES = 256
"""Memory that they allow it."""

LATENCY = 3.0 if "PYTEST_XDIST_WORKER" in os.environ else 1.0
"""Seconds within which others are answered; where other tests run beside they may be busy for longer."""

PATIENT = ("--compile-seconds", "3600", "--compile-memory", "8000")
"""Options of a server that lets a compilation take as long as it wants."""

OWN = 200 << 20
"""Bytes that a compiler has in memory before it does anything, with much to spare."""


def _joins(number: int) -> str:
    text = "t AS t0"
    for n in range(1, number):
        text += f" JOIN t AS t{n} ON t{n}.id = t{n - 1}.a"
    return f"SELECT t0.id FROM {text}"


def _derived(depth: int) -> str:
    text = "SELECT a FROM t"
    for n in range(depth):
        text = f"SELECT x{n}.a FROM ({text}) AS x{n}"
    return text


def _doubling(depth: int) -> str:
    """A tree of 2^depth scans."""
    chain = "".join(f", c{n} AS (SELECT x.a FROM c{n - 1} x JOIN c{n - 1} y ON x.a = y.a)" for n in range(1, depth))
    return f"WITH c0 AS (SELECT a FROM t){chain} SELECT a FROM c{depth - 1}"


def _chain(number: int) -> str:
    chain = "".join(f", c{n} AS (SELECT a FROM c{n - 1} WHERE a > {n})" for n in range(1, number))
    return f"WITH c0 AS (SELECT a FROM t){chain} SELECT a FROM c{number - 1}"


SHAPES: dict[str, str] = {
    "scalar subqueries": "SELECT id, "
    + ", ".join(f"(SELECT count(*) FROM t x WHERE x.a = t.a + {n}) AS c{n}" for n in range(100))
    + " FROM t",
    "ORs": "SELECT id FROM t WHERE " + " OR ".join(f"a = {n}" for n in range(2000)),
    "joins": _joins(60),
    "parentheses": "SELECT " + "(" * 300 + "a" + " + 1)" * 300 + " AS a FROM t",
    "subqueries in FROM": _derived(150),
    "IN list": f"SELECT id FROM t WHERE a IN ({', '.join(map(str, range(50_000)))})",
    "UNION chain": " UNION ALL ".join(["SELECT a FROM t"] * 400),
    "1 MB select list": "SELECT " + ", ".join(f"a + {'0' * 1000}{n} AS c{n}" for n in range(1000)) + " FROM t",
    "CTEs": _chain(100),
    "doubling CTEs": _doubling(24),
    "CUBE": "SELECT count(*) FROM t GROUP BY CUBE (" + ", ".join(f"(a + {n})" for n in range(12)) + ")",
}

EXPONENTIAL = _doubling(24)
"""Takes as long as it is let."""

REFUSALS = (errors.StatementTooComplex, errors.FeatureNotSupported)


class Neighbour(threading.Thread):
    """Somebody else, who asks for a constant all the time, and looks at the memory of the compilers."""

    def __init__(self, server: Headwater):
        super().__init__(daemon=True)
        self.slowest = 0.0
        self.answers = 0
        self.largest = 0
        self.failure: BaseException | None = None
        self._connection = psycopg.connect(server.dsn(), autocommit=True)
        self._server = server
        self._over = threading.Event()
        self._first = threading.Event()

    def start(self) -> None:
        """Gives back when the first answer has come: what is refused at once would be over before it."""
        super().start()
        self._first.wait()

    def run(self) -> None:
        try:
            while not self._over.wait(0.02):
                before = time.perf_counter()
                assert self._connection.execute("SELECT 1").fetchone() == (1,)
                self.slowest = max(self.slowest, time.perf_counter() - before)
                self.answers += 1
                self._first.set()
                if self.answers % 5 == 0:
                    self.largest = max([self.largest, *map(_memory, compilers(self._server))])
        except BaseException as error:
            self.failure = error
        finally:
            self._first.set()

    def end(self) -> None:
        self._over.set()
        self.join()
        self._connection.close()


def compilers(server: Headwater) -> list[psutil.Process]:
    """The processes of a server that compile."""
    assert server.process is not None
    found = []
    for child in psutil.Process(server.process.pid).children():
        try:
            if any("engine.compile.worker" in word for word in child.cmdline()):
                found.append(child)
        except psutil.NoSuchProcess:
            pass
    return found


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Headwater]:
    """A server that allows little."""
    options = ("--compile-seconds", str(SECONDS), "--compile-memory", str(MEGABYTES))
    running = Headwater(tmp_path_factory.mktemp("strict") / "data", *options).start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Headwater]:
    """A server that allows much."""
    running = Headwater(tmp_path_factory.mktemp("patient") / "data", *PATIENT).start()
    yield running
    running.stop()


@pytest.fixture
def database(strict: Headwater) -> Iterator[Database]:
    with prepared(strict) as database:
        yield database


@contextmanager
def prepared(server: Headwater) -> Iterator[Database]:
    """A database with a table; stream tables are dropped at the end."""
    found = Database(server, "postgres")
    found.run("DROP TABLE IF EXISTS t CASCADE; CREATE TABLE t (id int PRIMARY KEY, a int)")
    yield found
    for (name,) in found.rows("SELECT format('%I.%I', pgt_schema, pgt_name) FROM pgtrickle.pgt_stream_tables"):
        found.run("SELECT pgtrickle.drop_stream_table(%s)", name)
    found.close()


@contextmanager
def answered(server: Headwater) -> Iterator[Neighbour]:
    """Whatever the block does, somebody else is answered soon, and the log has no error of the program."""
    begin = len(server.log)
    neighbour = Neighbour(server)
    neighbour.start()
    try:
        yield neighbour
    finally:
        neighbour.end()
    assert neighbour.failure is None
    assert neighbour.answers
    assert neighbour.slowest < LATENCY
    assert neighbour.largest < OWN + (MEGABYTES << 20)
    written = server.log[begin:]
    for word in ("Traceback", "RecursionError", "MemoryError", "engine request failed"):
        assert word not in written, written
    # How long statements are read is the matter of the protocol's own tests.
    blocked = [line for line in written.splitlines() if "event loop blocked" in line]
    assert [line for line in blocked if "place=server/protocol/" not in line] == []


OFTEN = ("scalar subqueries", "ORs", "IN list", "CTEs")
"""What programs write; tried each time in both places."""


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    "shape",
    [pytest.param(s, marks=[] if s in (*OFTEN, "joins", "doubling CTEs") else pytest.mark.long) for s in SHAPES],
)
def test_stream_table_of_a_complex_query(strict: Headwater, database: Database, shape: str) -> None:
    with answered(strict):
        try:
            database.create("complex", SHAPES[shape], schedule="1h", initialize=False)
        except REFUSALS as error:
            assert error.diag.message_hint
        else:
            assert database.value("SELECT count(*) FROM pgtrickle.pgt_stream_tables") == 1
    database.create("simple", "SELECT a, count(*) AS n FROM t GROUP BY a", schedule="1h")
    assert database.state("simple")["refresh_mode"] == "DIFFERENTIAL"


@pytest.mark.parametrize("shape", [pytest.param(s, marks=[] if s in OFTEN else pytest.mark.long) for s in SHAPES])
@pytest.mark.one_in(2)
def test_subscription_to_a_complex_query(strict: Headwater, database: Database, shape: str) -> None:
    with answered(strict):
        try:
            database.run(f"BEGIN; DECLARE c CURSOR FOR SUBSCRIBE ({SHAPES[shape]})")
        except REFUSALS as error:
            assert error.diag.message_hint
        database.run("ROLLBACK")
    database.run("BEGIN; DECLARE c CURSOR FOR SUBSCRIBE (SELECT a, count(*) AS n FROM t GROUP BY a); COMMIT")


STATEMENTS = {
    "columns to load": f"COPY t ({', '.join(f'c{n}' for n in range(2400))}) FROM 's3://lake/t.parquet'",
    "a nested list to load": f"COPY t ({'(' * 2400}) FROM 's3://lake/t.parquet'",
    "options of a source": f"CREATE SOURCE s FROM LOAD GENERATOR COUNTER ({', '.join(['tick interval 1'] * 1100)})",
}


@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS.keys())
def test_a_statement_of_the_servers_own_with_many_tokens(strict: Headwater, database: Database, statement: str) -> None:
    with answered(strict), pytest.raises(psycopg.Error) as raised:
        database.run(statement)
    assert raised.value.sqlstate in ("42601", "42703", "54001", "0A000", "58000")


@pytest.mark.parametrize(
    ("query", "detail"),
    [
        (EXPONENTIAL, f"Compiling it takes more than {SECONDS} s."),
        ("SELECT " + "(" * 1500 + "a" + " + 1)" * 1500 + " AS a FROM t", "It is nested too deeply."),
    ],
    ids=["time", "depth"],
)
def test_what_is_too_complex_says_why_and_what_to_do(
    strict: Headwater, database: Database, query: str, detail: str
) -> None:
    with answered(strict), pytest.raises(errors.StatementTooComplex, match="statement too complex") as raised:
        database.create("complex", query)
    assert raised.value.diag.message_detail == detail
    assert "split it into several stream tables" in (raised.value.diag.message_hint or "")
    assert database.value("SELECT count(*) FROM pgtrickle.pgt_stream_tables") == 0


def test_query_too_complex_to_be_maintained_can_be_computed_in_full(strict: Headwater, database: Database) -> None:
    database.run("INSERT INTO t VALUES (1, 1)")
    query = _doubling(15)
    with answered(strict), pytest.raises(errors.StatementTooComplex, match="statement too complex") as raised:
        database.create("complex", query)
    assert "refresh_mode => 'FULL'" in (raised.value.diag.message_hint or "")
    with answered(strict):
        database.create("complex", query, refresh_mode="FULL")
    assert database.rows("SELECT a FROM complex") == [(1,)]


@pytest.mark.long
def test_complex_queries_of_one_role_leave_compilers_to_others(strict: Headwater, database: Database) -> None:
    database.run("DROP ROLE IF EXISTS mallory")
    database.run("CREATE ROLE mallory LOGIN PASSWORD 'secret'; GRANT ALL ON SCHEMA public TO mallory")
    database.run("GRANT SELECT, TRIGGER ON t TO mallory")
    attackers = [database.connect(user="mallory", password="secret") for _ in range(6)]

    def attack(connection: psycopg.Connection[Any], number: int) -> None:
        with pytest.raises(errors.StatementTooComplex):
            connection.execute("SELECT pgtrickle.create_stream_table(%s, %s)", [f"complex_{number}", EXPONENTIAL])

    threads = [threading.Thread(target=attack, args=(c, n)) for n, c in enumerate(attackers)]
    with answered(strict):
        for thread in threads:
            thread.start()
        for number in range(3):
            begin = time.monotonic()
            database.create(f"simple_{number}", f"SELECT a, count(*) + {number} AS n FROM t GROUP BY a")
            assert time.monotonic() - begin < 2 * SECONDS
        assert any(thread.is_alive() for thread in threads)
        for thread in threads:
            thread.join()
    database.run("DROP OWNED BY mallory; DROP ROLE mallory")


@pytest.mark.parametrize("statement", ["SELECT pgtrickle.create_stream_table('x', $q${}$q$)", "SUBSCRIBE ({})"])
@pytest.mark.one_in(2)
def test_cancel_ends_the_compilation(patient: Headwater, eventually: Callable[..., Any], statement: str) -> None:
    with prepared(patient) as database:
        database.create("simple", "SELECT a, count(*) AS n FROM t GROUP BY a")
        victim = database.connect()
        raised: list[BaseException] = []

        def ask() -> None:
            try:
                victim.execute(statement.format(EXPONENTIAL))  # type: ignore[arg-type]
            except psycopg.Error as error:
                raised.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        busy = eventually(
            lambda: [p for p in compilers(patient) if p.cpu_percent(0.2) > 2 and p.cpu_times().user > SECONDS],
            what="a compiler at work",
        )
        victim.cancel_safe(timeout=10)
        asking.join(30)
        assert isinstance(raised[0], errors.QueryCanceled)
        assert eventually(lambda: not any(p.is_running() for p in busy), what="the end of the work")
        database.create("other", "SELECT a, sum(id) AS n FROM t GROUP BY a")


def test_compilers_have_nothing_of_the_server_and_end_with_it(
    tmp_path: Path, eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "a secret")
    server = Headwater(tmp_path / "data", *PATIENT).start()
    database = Database(server, "postgres")
    try:
        database.run("CREATE TABLE t (id int PRIMARY KEY, a int)")
        asking = threading.Thread(target=_fails, args=(database.connect(), EXPONENTIAL))
        asking.start()
        busy = eventually(
            lambda: [p for p in compilers(server) if p.cpu_percent(0.2) > 2 and p.cpu_times().user > SECONDS],
            what="a compiler at work",
        )
        for process in compilers(server):
            assert not {"PGPASSWORD", "HEADWATER_POSTGRES"} & process.environ().keys()
            assert process.net_connections("all") == []
            assert all("data" not in Path(file.path).parts for file in process.open_files())
        server.kill()
        asking.join()
        assert eventually(lambda: not any(p.is_running() for p in busy), what="the end of the compilers")
    finally:
        server.stop()


def _fails(connection: psycopg.Connection[Any], query: str) -> None:
    with pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT pgtrickle.create_stream_table('x', %s)", [query])
