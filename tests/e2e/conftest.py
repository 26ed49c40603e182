"""A whole server for the tests: `headwater serve` as users start it, spoken to by real clients through the wire."""

from __future__ import annotations

import atexit
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest
from psycopg import conninfo, sql
from psycopg.rows import dict_row, tuple_row

from engine.refresh.policy import SLOW_MS
from server.postgres.data_directory import DataDirectory
from tests.clusters import OTHER_PROGRAMS, OtherPostgres, drop_schemas, make_logins_cheap
from tests.e2e.registers.registers import INVENTORY
from tests.forked_program import ForkedProgram

START_SECONDS = 400.0
TEMPLATE = "e2e_template"
BLOCKED = 50
"""Milliseconds of CPU time for which nothing may keep the loop: five times what is meant.

On a machine that is shared, a second of CPU time does a half or a third of what it does on another one.
"""
BUFFERS = "128MB"
"""Shared buffers of the servers' clusters: all are looked through, several times, for each database made or dropped."""
FORGET_TIMES = "UPDATE pgtrickle.pgt_stream_tables SET auto_threshold = NULL WHERE auto_threshold IS NOT NULL"
"""How fast the machine was just now shall not decide how AUTO refreshes next."""
RENEW = (
    "SET SESSION AUTHORIZATION DEFAULT; RESET ALL; CLOSE ALL; UNLISTEN *; SELECT pg_advisory_unlock_all(); DISCARD TEMP"
)
OPTIONS = os.environ.get("HEADWATER_TEST_OPTIONS", "").split()
"""Further options of all servers, as `--workers 2`."""
_numbers = count(1)

# What creating a stream table leaves in a database, apart from the functions that run queries with a role's rights.
TRACES = """
SELECT 'stream table ' || pgt_schema || '.' || pgt_name FROM pgtrickle.pgt_stream_tables
UNION ALL SELECT 'dependency of ' || pgt_id FROM pgtrickle.pgt_dependencies
UNION ALL SELECT 'history of ' || pgt_id FROM pgtrickle.pgt_refresh_history
UNION ALL SELECT 'request ' || request_id FROM pgtrickle.pgt_requests
UNION ALL SELECT 'capture of ' || source_relid::regclass FROM pgtrickle.pgt_captures
UNION ALL SELECT 'relation ' || c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pgtrickle', 'pg_toast')
      AND n.nspname !~ '^pg_toast_temp'
UNION ALL SELECT 'trigger ' || tgname || ' on ' || tgrelid::regclass FROM pg_trigger
    WHERE NOT tgisinternal AND tgrelid::regclass::text NOT LIKE 'pgtrickle.%%'
UNION ALL SELECT 'function ' || p.oid::regprocedure FROM pg_proc p
    WHERE pronamespace IN ('pgtrickle_changes'::regnamespace, 'pgtrickle_roles'::regnamespace)
      AND proname !~ '^(rows_)?as_'
ORDER BY 1
"""


class Headwater:
    """A `headwater serve` process on a data directory."""

    def __init__(self, data: Path, *options: str):
        self.data = data
        self._options = options
        self.process: ForkedProgram | None = None
        self.port = 0
        self.postgres: OtherPostgres | None = None
        self._administrators: dict[bool, psycopg.Connection[Any]] = {}

    def administrator(self, *, direct: bool = False) -> psycopg.Connection[Any]:
        """A connection (autocommit) that is opened once, through the server or past it."""
        connection = self._administrators.get(direct)
        try:
            assert connection is not None
            connection.execute("SELECT")
        except (AssertionError, psycopg.OperationalError):
            connection = psycopg.connect(self.direct_dsn() if direct else self.dsn(), autocommit=True)
            self._administrators[direct] = connection
        return connection

    def start(self) -> Headwater:
        """Start the server, on a copy of a used data directory if it has none, and wait for its `ready:` line."""
        if OTHER_PROGRAMS is None and "--postgres" not in self._options and not self.data.exists():
            copy_used_data_directory(self.data)
        self._start()
        return self

    def _start(self) -> None:
        options = [*OPTIONS, *self._options, *self._other_postgres()]
        arguments = ["serve", "--data", str(self.data), "--port", "0", "--spark", "off", *options]
        self.process = ForkedProgram(arguments, self.data.parent / "server.log")
        try:
            url = _ready_line(self.process).removeprefix("ready: ")
        except RuntimeError as error:
            raise RuntimeError(f"{error}:\n{self.log[-2000:]}") from None
        self.port = int(conninfo.conninfo_to_dict(url)["port"])

    def _other_postgres(self) -> list[str]:
        """Where the tests run in front of another PostgreSQL: it is started, and the option that leads to it."""
        if OTHER_PROGRAMS is None or "--postgres" in self._options:
            return []
        if self.postgres is None or self.postgres.poll() is not None:
            self.postgres = OtherPostgres(DataDirectory(self.data).create())
            self.postgres.start()
        places = {"host": self.postgres.socket_dir, "port": self.postgres.port, "passfile": self.data / "pgpass"}
        return ["--postgres", f"postgresql://postgres@/postgres?{urlencode(places)}"]

    @property
    def log(self) -> str:
        """What the server wrote to stderr, over all its starts."""
        return (self.data.parent / "server.log").read_text()

    def status(self) -> str:
        """What `headwater status` shows, in lines that are long enough for all of it."""
        command = [sys.executable, "-m", "server", "status", "--data", str(self.data)]
        environment = {**os.environ, "COLUMNS": "200"}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=True).stdout

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        assert self.process is not None
        while self._administrators:
            self._administrators.popitem()[1].close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(180)
        if self.postgres is not None:
            self.postgres.stop()
            self.postgres = None
        return status

    def kill(self) -> None:
        """SIGKILL, as the kernel does when memory is short."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def dsn(self, database: str = "postgres", **options: Any) -> str:
        """A connection string that leads through the server."""
        return conninfo.make_conninfo(
            **{"host": "127.0.0.1", "port": self.port, "dbname": database, **self._login(), **options}
        )

    def direct_dsn(self, database: str = "postgres", **options: Any) -> str:
        """A connection string that bypasses the server, over the Unix socket of its PostgreSQL."""
        lines = (self.data / "postgres" / "postmaster.pid").read_text().splitlines()
        return conninfo.make_conninfo(
            **{"host": lines[4], "port": lines[3], "dbname": database, **self._login(), **options}
        )

    def _login(self) -> dict[str, str]:
        user, password = (self.data / "pgpass").read_text().strip().rsplit(":", 2)[-2:]
        return {"user": user, "password": password}


def copy_used_data_directory(place: Path) -> None:
    """Make a data directory that a server has been used on."""
    subprocess.run(["cp", "-a", _used_data_directory(), place], check=True)


@cache
def _used_data_directory() -> Path:
    """The data directory of a server that has been used and stopped: its cluster, with the catalog in `postgres`.

    To copy it takes 0.7 s of CPU time less than initdb and the installation, for each server.
    """
    directory = Path(tempfile.mkdtemp(prefix="headwater-used-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    made = Headwater(directory / "data")
    made._start()
    made.administrator(direct=True).execute(f"ALTER SYSTEM SET shared_buffers = '{BUFFERS}'")
    psycopg.connect(made.dsn()).close()
    assert made.stop() == 0
    shutil.rmtree(made.data / "log")
    return made.data


def _ready_line(process: ForkedProgram) -> str:
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if selector.select(START_SECONDS):
            line = process.stdout.readline().strip()
            if line.startswith("ready: "):
                return line
    process.kill()
    raise RuntimeError(f"the server did not become ready; exit status {process.wait(60)}")


class Database:
    """A database of its own behind a server, and a connection (autocommit, through the server) to it."""

    def __init__(self, server: Headwater, name: str, connection: psycopg.Connection[Any] | None = None):
        self.server = server
        self.name = name
        self._connections: list[psycopg.Connection[Any]] = []
        self.connection = connection or self.connect()

    def connect(self, *, autocommit: bool = True, **options: Any) -> psycopg.Connection[Any]:
        """One more connection through the server; closed when the test ends."""
        return self._opened(self.server.dsn(self.name, **options), autocommit)

    def bypass(self, *, autocommit: bool = True, **options: Any) -> psycopg.Connection[Any]:
        """A connection to PostgreSQL itself, past the server."""
        return self._opened(self.server.direct_dsn(self.name, **options), autocommit)

    def _opened(self, dsn: str, autocommit: bool) -> psycopg.Connection[Any]:
        connection = psycopg.connect(dsn, autocommit=autocommit)
        self._connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def renew(self) -> None:
        """Have the connection as a new one is; the functions that its session has compiled and planned it keeps."""
        try:
            self.connection.rollback()
            self.connection.prepare_threshold = 5
            self.connection.autocommit = True
            self.connection.row_factory = tuple_row
            self.connection.execute(RENEW)
        except psycopg.OperationalError:
            self.connection = self.connect()

    def run(self, statement: str, *parameters: Any) -> psycopg.Cursor[Any]:
        return self.connection.execute(statement, parameters or None)  # type: ignore[arg-type]

    def rows(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.run(statement, *parameters).fetchall()

    def value(self, statement: str, *parameters: Any) -> Any:
        ((value,),) = self.rows(statement, *parameters)
        return value

    def create(self, name: str, query: str, **arguments: Any) -> None:
        """`pgtrickle.create_stream_table` with named arguments; no schedule but that of its dependents unless said."""
        arguments = {"name": name, "query": query, **arguments}
        named = ", ".join(f"{key} => %s" for key in arguments)
        self.run(f"SELECT pgtrickle.create_stream_table({named})", *arguments.values())

    def refresh(self, name: str) -> None:
        """Refresh it by hand. That it took long by chance, on a busy machine, has no later refresh be a full one."""
        began = time.monotonic()
        self.run("SELECT pgtrickle.refresh_stream_table(%s)", name)
        idle = self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if time.monotonic() - began > SLOW_MS / 1000 and idle:
            with suppress(psycopg.errors.InsufficientPrivilege):
                self.run(FORGET_TIMES)

    def state(self, name: str) -> dict[str, Any]:
        """The row of `pgt_stream_tables`."""
        with self.connection.cursor(row_factory=dict_row) as cursor:
            row = cursor.execute(
                "SELECT * FROM pgtrickle.pgt_stream_tables WHERE pgt_id = pgtrickle._resolve(%s)", [name]
            ).fetchone()
        assert row is not None
        return row

    def history(self, name: str) -> list[dict[str, Any]]:
        """Rows of `pgt_refresh_history`, the oldest first."""
        with self.connection.cursor(row_factory=dict_row) as cursor:
            return cursor.execute(
                "SELECT * FROM pgtrickle.pgt_refresh_history WHERE pgt_id = pgtrickle._resolve(%s) ORDER BY refresh_id",
                [name],
            ).fetchall()

    def last(self, name: str) -> tuple[str, int, int, int]:
        """(action, rows inserted, updated, deleted) of the last refresh."""
        row = self.history(name)[-1]
        return row["action"], row["rows_inserted"], row["rows_updated"], row["rows_deleted"]

    def difference(self, name: str) -> list[tuple[Any, ...]]:
        """Rows that the stream table lacks ('missing') or has in excess ('extra'), compared as text."""
        state = self.state(name)
        columns = self.rows(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
            " AND attname NOT LIKE '\\_\\_pgt\\_%%' ORDER BY attnum",
            state["pgt_relid"],
        )
        places = sql.SQL(", ").join(sql.Identifier(f"c{n}") for n in range(len(columns)))
        texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(f"c{n}")) for n in range(len(columns)))
        stored = sql.SQL("SELECT {} FROM (SELECT {} FROM {}.{}) AS s({})").format(
            texts,
            sql.SQL(", ").join(sql.Identifier(name) for (name,) in columns),
            sql.Identifier(state["pgt_schema"]),
            sql.Identifier(state["pgt_name"]),
            places,
        )
        query = sql.SQL("SELECT {} FROM ({}) AS q({})").format(texts, sql.SQL(state["defining_query"]), places)
        return self.connection.execute(
            sql.SQL(
                "(SELECT 'missing', * FROM ({query} EXCEPT ALL {stored}) AS m)"
                " UNION ALL (SELECT 'extra', * FROM ({stored} EXCEPT ALL {query}) AS e)"
            ).format(query=query, stored=stored)
        ).fetchall()

    def assert_current(self, *names: str) -> None:
        """The stream tables equal their queries, as multisets."""
        for name in names:
            assert self.difference(name) == []

    def assert_refreshed(self, *names: str) -> None:
        """After a refresh of each, the stream tables equal their queries."""
        for name in names:
            self.refresh(name)
            self.assert_current(name)

    def assert_differential(self, name: str) -> None:
        """As `assert_refreshed`, and the refresh was a differential one."""
        self.assert_refreshed(name)
        assert self.last(name)[0] == "DIFFERENTIAL", self.history(name)[-1]["executor_reason"]

    def empty(self, *, scheduled: bool = False) -> None:
        """Drop what is not the server's, stream tables and all, and settings.

        Nothing is refreshed but by hand, unless `scheduled`.
        """
        # Who has a connection left open would have it wait for ever.
        self.run(f"SET lock_timeout = '1min'; ALTER DATABASE {self.name} SET pg_trickle.enabled = off")
        given_way(lambda: drop_schemas(self.connection, "accum", "pgque", "pgtrickle"))
        self.run("SELECT pgque.drop_queue(queue_name, true) FROM pgque.queue")
        self.run("SELECT accum.register_drop(name, force := true) FROM accum._registers")
        self.run("SELECT pgtrickle.drop_watermark_group(group_name) FROM pgtrickle.pgt_watermark_groups")
        self.run("SELECT pgtrickle.drop_refresh_group(group_name) FROM pgtrickle.pgt_refresh_groups")
        self.run(f"ALTER DATABASE {self.name} RESET ALL")
        if not scheduled:
            self.run(f"ALTER DATABASE {self.name} SET pg_trickle.enabled = off")
        assert self.rows("SELECT pgt_schema, pgt_name FROM pgtrickle.pgt_stream_tables") == []
        for _ in range(20):  # the engine would end them too, while the next test is already looking at what there is
            if not self.value("SELECT pgtrickle._unfollowed()"):
                break
            self.run("SELECT pgtrickle._end_captures()")

    def traces(self) -> list[str]:
        """Everything that stream tables have left in the database, and the user's relations."""
        return [text for (text,) in self.rows(TRACES)]


def alerts(listener: psycopg.Connection[Any], event: str) -> Iterator[dict[str, Any]]:
    """The alerts of one kind that a connection which listens to them is told, as they come."""
    for notify in listener.notifies(timeout=90):
        alert: dict[str, Any] = json.loads(notify.payload)
        if alert["event"] == event:
            yield alert


def given_way(run: Callable[[], Any]) -> None:
    """Do what the engine may just be in the way of: where one of the two must give way, again.

    It may be refreshing what is dropped, or change privileges of the same table; or it has just made the function again
    by which it acts as a role.
    """
    for remaining in reversed(range(20)):
        try:
            run()
            return
        except (
            psycopg.errors.DeadlockDetected,
            psycopg.errors.DependentObjectsStillExist,
            psycopg.errors.InternalError_,
        ) as error:
            if not remaining or (error.sqlstate == "XX000" and "concurrently" not in str(error)):
                raise


def drop_role(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop a role with all that it owns."""
    given_way(lambda: connection.execute(f"DROP OWNED BY {name} CASCADE; DROP ROLE {name}"))


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Headwater]:
    """One server for the whole run, whose event loop nothing blocks from its start on."""
    running = Headwater(tmp_path_factory.mktemp("server") / "data", "--warn-blocked", str(BLOCKED)).start()
    starting = len(running.log)
    try:
        administrator = running.administrator()
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):  # nobody pulls the plug
            administrator.execute(f"ALTER SYSTEM SET {setting} = off")
        administrator.execute("SELECT pg_reload_conf()")
        make_logins_cheap(running.dsn())
        administrator.execute(f"CREATE DATABASE {TEMPLATE}_made")
        psycopg.connect(running.dsn(f"{TEMPLATE}_made")).close()
        administrator.execute(f"ALTER DATABASE {TEMPLATE}_made ALLOW_CONNECTIONS false")
        # Who renames it makes the engine let go of it, and the engine cannot come back.
        administrator.execute(f"ALTER DATABASE {TEMPLATE}_made RENAME TO {TEMPLATE}")
        yield running
    finally:
        status = running.stop()
    assert status == 0
    assert [line for line in running.log[starting:].splitlines() if "event loop blocked" in line] == []


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Headwater]:
    """A server of the test's own, to be killed and started again."""
    running = Headwater(tmp_path / "data").start()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def shared_db(server: Headwater) -> Iterator[Database]:
    """One database for a module's tests that leave nothing behind; nothing is refreshed in it but by hand."""
    for database in _database(server):
        database.run(f"ALTER DATABASE {database.name} SET pg_trickle.enabled = off")
        yield database


@pytest.fixture
def emptied_db(shared_db: Database) -> Iterator[Database]:
    """The module's database and a session of it, as new; what the test makes is dropped after it.

    It takes a third of the CPU time of a new one: the engine has its connections and caches there already, and the
    session its functions. For tests that need no scheduler, and in which neither ids nor what the engine has learned
    plays a part. A module has its tests run there by a fixture `db` of its own.
    """
    yield from _emptied(shared_db)


@pytest.fixture(scope="module")
def live_shared_db(server: Headwater) -> Iterator[Database]:
    """One database for a module's tests that leave nothing behind, with its scheduler at work."""
    yield from _database(server)


@pytest.fixture
def emptied_live_db(live_shared_db: Database) -> Iterator[Database]:
    """The same as `emptied_db`, with the scheduler at work, for a fixture `live_db` of a module's own."""
    yield from _emptied(live_shared_db, scheduled=True)


def _emptied(shared: Database, *, scheduled: bool = False) -> Iterator[Database]:
    shared.renew()
    database = Database(shared.server, shared.name, shared.connection)
    yield database
    database.close()
    shared.renew()
    shared.empty(scheduled=scheduled)


@pytest.fixture
def fresh_db(server: Headwater) -> Iterator[Database]:
    """A fresh database, made and dropped through the server, with its scheduler at work."""
    yield from _database(server)


@pytest.fixture
def live_db(fresh_db: Database) -> Database:
    """The same, unless a module has its own."""
    return fresh_db


@pytest.fixture
def db(live_db: Database) -> Database:
    """A fresh database in which nothing is refreshed but by hand."""
    live_db.run(f"ALTER DATABASE {live_db.name} SET pg_trickle.enabled = off")
    return live_db


@pytest.fixture(scope="module")
def register_database(server: Headwater) -> Iterator[Database]:
    """One database, in UTC, for a module's tests of registers."""
    for database in _database(server):
        database.run(f"ALTER DATABASE {database.name} SET TimeZone = 'UTC'")
        database.connection = database.connect()
        yield database


@pytest.fixture
def registers(register_database: Database) -> Iterator[Database]:
    """The same without registers; those that a test makes are dropped after it."""
    yield register_database
    register_database.run("ROLLBACK; SELECT accum.register_drop(name, force := true) FROM accum.register_list()")


@pytest.fixture
def inventory(registers: Database) -> Database:
    """With the register `inventory` of the reference, empty."""
    registers.run(INVENTORY)
    return registers


@pytest.fixture
def own_db(own_server: Headwater) -> Iterator[Database]:
    """A fresh database behind the test's own server."""
    database = Database(own_server, "postgres")
    yield database
    database.close()


def _database(server: Headwater) -> Iterator[Database]:
    name = f"e2e_{next(_numbers)}"
    # Copied from one in which the catalog is installed. That it is dropped through the server makes the engine let go.
    copied = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(*map(sql.Identifier, (name, TEMPLATE)))
    server.administrator(direct=True).execute(copied)
    database = Database(server, name)
    try:
        yield database
    finally:
        database.close()
        server.administrator().execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def eventually() -> Callable[..., Any]:
    """Wait until a condition holds, and return what it returned; the deadline is for what never comes."""

    def wait(condition: Callable[[], Any], seconds: float = 90.0, what: str = "the condition") -> Any:
        began = time.monotonic()
        while not (result := condition()):
            waited = time.monotonic() - began
            assert waited < seconds, f"{what} did not hold within {seconds} s"
            time.sleep(min(max(0.02, waited / 10), 0.2))  # to ask costs more than to wait
        return result

    return wait


@pytest.fixture
def role(db: Database) -> Iterator[Callable[..., psycopg.Connection[Any]]]:
    """Make a plain login role, and a connection of it through the server: `role("alice")`."""
    made: list[str] = []

    def make(name: str, options: str = "") -> psycopg.Connection[Any]:
        unique = f"{name}_{os.getpid()}_{next(_numbers)}"
        db.run(f"CREATE ROLE {unique} LOGIN PASSWORD 'secret' {options}")
        db.run(f"GRANT CREATE, USAGE ON SCHEMA public TO {unique}")
        made.append(unique)
        return db.connect(user=unique, password="secret")

    yield make
    db.close()
    with psycopg.connect(db.server.dsn(db.name), autocommit=True) as connection:
        for name in made:
            drop_role(connection, name)
