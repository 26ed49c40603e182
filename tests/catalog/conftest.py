"""A database with the catalog installed, two ordinary roles, and the calls an engine would make."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import conninfo, sql

from catalog.install import InstallResult, Scripts, install
from catalog.systems import QUEUES, REGISTERS, STREAM_TABLES, System
from engine.session.pool import PooledSession
from server.postgres.cluster import EmbeddedPostgres
from tests.clusters import new_database

PASSWORD = "correct horse"
ROLES = ("catalog_alice", "catalog_bob")

_numbers = count(1)

Connection = psycopg.Connection[Any]
Connect = Callable[..., Connection]


def install_into(
    dsn: str, scripts: Scripts | None = None, system: System = STREAM_TABLES, schema: str | None = None
) -> InstallResult:
    """Install over a connection of the engine's kind."""

    async def run() -> InstallResult:
        options = conninfo.conninfo_to_dict(dsn)
        connection = await asyncpg.connect(
            host=options["host"],
            port=int(options["port"]),
            user=options["user"],
            password=options["password"],
            database=options["dbname"],
        )
        try:
            return await install(PooledSession(connection), scripts, system=system, schema=schema)
        finally:
            await connection.close()

    return asyncio.run(run())


@contextmanager
def connections(dsn: str) -> Iterator[Connect]:
    """Connect to a database, as a superuser or as one of the ordinary roles; the connections are closed at the end."""
    opened: list[Connection] = []
    with psycopg.connect(dsn, autocommit=True) as admin:
        for role in ROLES:
            if admin.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchone() is None:
                admin.execute(
                    sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(role), sql.Literal(PASSWORD))
                )
        admin.execute("GRANT ALL ON SCHEMA public TO PUBLIC")

    def connect(role: str | None = None, *, autocommit: bool = True, **options: Any) -> Connection:
        login = {} if role is None else {"user": role, "password": PASSWORD}
        opened.append(psycopg.connect(conninfo.make_conninfo(dsn, **login, **options), autocommit=autocommit))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


@pytest.fixture
def bare_connect(dsn: str) -> Iterator[Connect]:
    """Connect to a database without the catalog, as a superuser or as one of the ordinary roles."""
    with connections(dsn) as connect:
        yield connect


@pytest.fixture(scope="session")
def template(cluster: EmbeddedPostgres) -> Iterator[str]:
    """A database with the catalog installed, to be copied."""
    with new_database(cluster, "template") as name:
        install_into(cluster.dsn(name))
        yield name


@pytest.fixture
def database(cluster: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[str]:
    """The test's database: with the catalog for tests that `connect`, else empty."""
    template = request.getfixturevalue("template") if "connect" in request.fixturenames else "template1"
    with new_database(cluster, "catalog", template) as name:
        yield name


@pytest.fixture
def connect(bare_connect: Connect) -> Connect:
    """The same with the catalog installed (see `database`)."""
    return bare_connect


@pytest.fixture
def engine(connect: Connect) -> Engine:
    """What the engine does, on a superuser's connection."""
    return Engine(connect())


@contextmanager
def _with(system: System, cluster: EmbeddedPostgres) -> Iterator[str]:
    """The DSN of a new database with the catalog of one system."""
    with new_database(cluster, system.schema) as name:
        install_into(cluster.dsn(name), system=system)
        yield cluster.dsn(name)


@pytest.fixture(scope="module")
def queue_database(cluster: EmbeddedPostgres) -> Iterator[str]:
    """The DSN of a database with the catalog of queues, and nobody who ticks; one for all tests of a file."""
    with _with(QUEUES, cluster) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def register_database(cluster: EmbeddedPostgres) -> Iterator[str]:
    """The DSN of a database with the catalog of registers, which nobody maintains; one for all tests of a file."""
    with _with(REGISTERS, cluster) as dsn:
        yield dsn


@pytest.fixture
def queue(queue_database: str) -> Iterator[Queue]:
    """A new queue of this test's own, on a superuser's connection."""
    with psycopg.connect(queue_database, autocommit=True) as connection:
        queue = Queue(connection, f"queue {next(_numbers)}")
        queue.value("SELECT pgque.create_queue(%s)", queue.name)
        yield queue


class Queue:
    """A queue, a connection in autocommit, and the calls that most tests make."""

    def __init__(self, connection: Connection, name: str):
        self.connection = connection
        self.name = name

    def value(self, statement: str, *args: Any) -> Any:
        """The one value of a statement."""
        row = self.connection.execute(statement, args).fetchone()
        assert row is not None
        return row[0]

    def rows(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement."""
        return self.connection.execute(statement, args).fetchall()

    def send(self, *payloads: str) -> list[int]:
        """Send events; their ids."""
        return list(self.value("SELECT pgque.send_batch(%s, %s::text[])", self.name, list(payloads)))

    def tick(self) -> int:
        """Make a tick, whether there are events or not."""
        self.value("SELECT pgque.force_next_tick(%s)", self.name)
        return int(self.value("SELECT pgque.ticker(%s)", self.name))

    def fails(self, statement: str, *args: Any) -> psycopg.Error:
        """The error of a statement."""
        with pytest.raises(psycopg.Error) as failure, self.connection.transaction():
            self.connection.execute(statement, args)
        return failure.value


class Engine:
    """The engine's calls of the catalog's functions, on one connection.

    What is to be captured ahead for its role is captured over another one, a superuser's.
    """

    def __init__(self, connection: Connection, ahead: Connection | None = None):
        self.connection = connection
        self.ahead = ahead

    def value(self, statement: str, *args: Any) -> Any:
        """The one value of a statement."""
        row = self.connection.execute(statement, args).fetchone()
        assert row is not None
        return row[0]

    def oid(self, table: str) -> int:
        return int(self.value("SELECT %s::regclass::oid::bigint", table))

    def create(self, name: str, **sources: Sequence[str]) -> int:
        """A stream table over columns of some tables, its storage owned by the current role, not populated."""
        self.connection.execute(
            sql.SQL("CREATE TABLE {} (__pgt_row_id bigint PRIMARY KEY, value text)").format(sql.Identifier(name))
        )
        definition = {"pgt_relid": self.oid(name), "defining_query": "SELECT", "canonical_query": "SELECT"}
        pgt_id = int(self.value("SELECT pgtrickle._register(%s::jsonb)", json.dumps(definition)))
        self.value("SELECT pgtrickle._install_guard(%s::regclass)", name)
        for table, columns in sources.items():
            self.track(pgt_id, table, columns)
        return pgt_id

    def track(self, pgt_id: int, table: str, columns: Sequence[str]) -> dict[str, Any]:
        call = ("SELECT pgtrickle._track_source(%s, %s::regclass, %s::text[])", pgt_id, table, list(columns))
        try:
            return dict(self.value(*call))
        except psycopg.Error as error:
            if error.sqlstate != "HW005" or self.ahead is None:
                raise
            self.ahead.execute("SELECT pgtrickle._capture_ahead(%s::jsonb)", [error.diag.message_detail])
            return dict(self.value(*call))

    def refresh(self, pgt_id: int, **result: Any) -> dict[str, Any]:
        """A refresh that computes nothing: it takes the present snapshot for the frontier."""
        with self.connection.transaction():
            context = dict(self.value("SELECT pgtrickle._begin_refresh(%s)", pgt_id))
            frontier = self.value(
                "SELECT jsonb_build_object('snapshot', pg_current_snapshot()::text, 'xid', null, 'change_id', null)"
            )
            self.finish(pgt_id, **{"status": "COMPLETED", "action": "FULL", "frontier": frontier} | result)
        return context

    def finish(self, pgt_id: int, **result: Any) -> dict[str, Any]:
        return dict(self.value("SELECT pgtrickle._finish_refresh(%s, %s::jsonb)", pgt_id, json.dumps(result)))

    def begin(self, pgt_id: int) -> dict[str, Any]:
        """What a refresh would find, without beginning one."""
        with self.connection.transaction(force_rollback=True):
            return dict(self.value("SELECT pgtrickle._begin_refresh(%s)", pgt_id))

    def changes(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """The buffer of a table in order: weight and the columns."""
        wanted = ['"__pgt_w"', *(f'"{column}"' for column in columns)]
        return self.connection.execute(
            f"SELECT {', '.join(wanted)} FROM pgtrickle_changes.changes_{self.oid(table)} "
            'ORDER BY "__pgt_change_id", "__pgt_w"'
        ).fetchall()

    def net(self, table: str, *columns: str) -> Counter[tuple[Any, ...]]:
        """The buffer as a Z-set: rows with weights that are not zero."""
        weights: Counter[tuple[Any, ...]] = Counter()
        for weight, *row in self.changes(table, *columns):
            weights[tuple(row)] += weight
        return Counter({row: weight for row, weight in weights.items() if weight})

    def pending(self, pgt_id: int) -> dict[str, int]:
        """Pending changes by source, as a refresh would find them."""
        return {source["name"]: source["pending"] for source in self.begin(pgt_id)["sources"]}

    def triggers(self, table: str) -> int:
        """How many capture triggers are on a table."""
        return int(
            self.value(
                "SELECT count(*) FROM pg_trigger WHERE tgrelid = %s::regclass AND tgname LIKE 'pg\\_trickle\\_cdc%%'",
                table,
            )
        )


def sqlstate(connection: Connection, statement: str, *args: Any) -> str | None:
    """The SQLSTATE with which a statement fails."""
    with pytest.raises(psycopg.Error) as failure, connection.transaction():
        connection.execute(statement, args)
    return failure.value.sqlstate
