"""What Spark's executors know of PostgreSQL is of no use but for the rows that they are to write, and not for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psutil
import psycopg
import pyarrow as pa
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from catalog.install import install
from catalog.session import SqlError
from engine.session.pool import SESSION_SETTINGS, PooledSession
from engine.spark.partition_writer import writer
from engine.spark.result_loading import PARTS
from engine.spark.sessions import SparkSessions
from engine.spark.staging import StagingArea
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import StartupError
from server.postgres.url import PostgresUrl
from tests.e2e.conftest import Headwater
from tests.spark_servers import wait_until

Connect = Callable[[], Awaitable[asyncpg.Connection]]

BATCH = pa.RecordBatch.from_pydict({"c0": pa.array([1, 2, 3], pa.int32())})
WRITERS = """
SELECT r.rolname FROM pg_roles r JOIN pg_database d ON starts_with(r.rolname, format('pgtrickle_staging_%s_', d.oid))
WHERE d.datname = current_database()
"""


@asynccontextmanager
async def engine_as(dsn: str, user: str | None = None, password: str | None = None) -> AsyncIterator[Connect]:
    """How an engine that logs in as a role connects to a database where that role has installed the catalog."""
    login = conninfo_to_dict(dsn) | ({"user": user, "password": password} if user else {})
    options = {key: login[key] for key in ("host", "port", "user", "password")} | {"database": login["dbname"]}

    async def connect() -> asyncpg.Connection:
        logged = {} if user else {"log_statement": "all"}  # which a superuser alone may set
        return await asyncpg.connect(**options, server_settings=SESSION_SETTINGS | logged)

    connection = await connect()
    await install(PooledSession(connection))
    yield connect
    await connection.close()


async def area_of(connect: Connect, dsn: str, seconds: float = 300) -> StagingArea:
    """An area that executors may fill."""
    area = await StagingArea.open(connect, "PUBLIC", ["c0"], '"c0" int')
    await area.admit(dsn, seconds)
    return area


def write(area: StagingArea, login: str | None = None) -> str:
    """What an executor does; the name of the part."""
    (found,) = writer(area.number, login or area.login, [("c0", pa.int32())])([BATCH])
    return str(found.to_pylist()[0]["part"])


def writers(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as admin:
        return [name for (name,) in admin.execute(WRITERS)]


def attempts(area: StagingArea, other: StagingArea, done: str) -> list[str]:
    """What an executor could try with the role that it was given, all of which needs a right that it has not."""
    fresh = "0" * 32
    tables = "pgtrickle_staging"
    return [
        "SELECT * FROM public.secrets",
        "INSERT INTO public.secrets VALUES ('x')",
        "CREATE TABLE public.mine (n int)",
        "CREATE SCHEMA mine",
        f'CREATE TABLE {tables}."{area.number}_{fresh}" (n int)',
        f'SELECT * FROM {tables}."{area.number}_like"',
        f'INSERT INTO {tables}."{area.number}_like" VALUES (1)',
        f'DROP TABLE {tables}."{area.number}_like"',
        f'SELECT * FROM {tables}."{area.number}_{done}"',
        f'INSERT INTO {tables}."{area.number}_{done}" VALUES (1)',
        f'TRUNCATE {tables}."{area.number}_{done}"',
        f'CREATE TRIGGER t AFTER INSERT ON {tables}."{area.number}_{done}" EXECUTE FUNCTION pgtrickle._pin()',
        f"SELECT pgtrickle._begin_staging_part({other.number}, '{fresh}')",
        f"SELECT pgtrickle._finish_staging_part({other.number}, '{fresh}')",
        f"SELECT pgtrickle._begin_staging_part({area.number}, 'like')",
        f"SELECT pgtrickle._begin_staging_part({area.number}, E'{fresh}\\n')",
        f"SELECT pgtrickle._begin_staging_part({area.number}, '../x')",
        f"SELECT pgtrickle._admit_staging_writer({other.number}, 'x', 60)",
        "SELECT pgtrickle._remove_staging_leftovers()",
        "SELECT pgtrickle._take_lease('scheduler', true)",
        "SELECT * FROM pg_authid",
        "SELECT pg_read_file('PG_VERSION')",
        "COPY (SELECT 1) TO PROGRAM 'true'",
        "SET ROLE postgres",
        "SET SESSION AUTHORIZATION postgres",
        "ALTER ROLE CURRENT_USER CREATEDB",
        "ALTER ROLE CURRENT_USER VALID UNTIL 'infinity'",
        "CREATE ROLE another LOGIN",
    ]


async def test_executor_can_write_parts_of_its_area_and_nothing_else(dsn: str) -> None:
    async with engine_as(dsn) as connect:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("CREATE TABLE public.secrets (t text); INSERT INTO public.secrets VALUES ('s')")
        area, other = await area_of(connect, dsn), await area_of(connect, dsn)
        done = await asyncio.to_thread(write, area)
        with psycopg.connect(area.login, autocommit=True) as executor:
            for statement in attempts(area, other, done):
                try:
                    executor.execute(statement.encode())
                except psycopg.errors.InsufficientPrivilege:
                    continue
                pytest.fail(f"an executor was not refused {statement}")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await asyncio.to_thread(write, other, area.login)
        await area.expel()
        await area.add([(done, 3)])
        with psycopg.connect(dsn) as admin:
            assert admin.execute(f"SELECT count(*) FROM {area.source} s".encode()).fetchone() == (3,)
        await area.drop()
        await other.drop()
        assert writers(dsn) == []


async def test_nothing_is_left_to_an_executor_when_its_job_is_done(dsn: str) -> None:
    """Its sessions end, with what they have not committed, and nobody logs in again."""
    async with engine_as(dsn) as connect:
        area = await area_of(connect, dsn)
        login = area.login
        part = "0" * 32
        executor = await asyncio.to_thread(psycopg.connect, login)
        executor.execute(f"SELECT pgtrickle._begin_staging_part({area.number}, '{part}')".encode())
        await area.expel()
        with pytest.raises(psycopg.OperationalError):
            executor.execute("SELECT 1")
        with pytest.raises(psycopg.OperationalError, match="authentication failed"):
            psycopg.connect(login)
        await area.drop()


async def test_executor_logs_in_for_a_limited_time_even_if_its_server_was_killed(dsn: str) -> None:
    async with engine_as(dsn) as connect:
        area = await area_of(connect, dsn, seconds=-1)
        with pytest.raises(psycopg.OperationalError, match="authentication failed"):
            psycopg.connect(area.login)
        pid = area._connection.get_server_pid()
        area._connection.terminate()
        with psycopg.connect(dsn, autocommit=True) as admin:
            held = "SELECT FROM pg_stat_activity WHERE pid = %s"
            wait_until(lambda: admin.execute(held, [pid]).fetchall() == [], "its session has ended")
            admin.execute("SELECT pgtrickle._remove_staging_leftovers()")
        assert writers(dsn) == []


async def test_name_of_a_part_is_a_name_whatever_an_executor_says(dsn: str) -> None:
    async with engine_as(dsn) as connect:
        area = await area_of(connect, dsn)
        with pytest.raises(SqlError) as refused:
            await area.add([('0" TO PUBLIC; GRANT postgres TO PUBLIC --', 1)])
        assert refused.value.sqlstate == "42P01"
        await area.drop()


async def test_role_that_may_create_roles_is_enough(cluster: EmbeddedPostgres, database: str, dsn: str) -> None:
    """It can end the executors' sessions, too. One that may not create roles is refused."""
    user, password = "staging_engine", "plain"
    own = make_conninfo(dsn, user=user, password=password)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {user} LOGIN CREATEROLE NOINHERIT PASSWORD '{password}'".encode())
        admin.execute(f'ALTER DATABASE "{database}" OWNER TO {user}'.encode())
        admin.execute(f'REVOKE CONNECT ON DATABASE "{database}" FROM PUBLIC'.encode())
        try:
            async with engine_as(dsn, user, password) as connect:
                area = await area_of(connect, dsn)
                part = await asyncio.to_thread(write, area)
                executor = await asyncio.to_thread(psycopg.connect, area.login)
                await area.expel()
                with pytest.raises(psycopg.OperationalError):
                    executor.execute("SELECT 1")
                await area.add([(part, 3)])
                await area.drop()
                assert writers(dsn) == []

                url = PostgresUrl.parse(_url(own))
                assert await asyncio.to_thread(url.check, creates_roles=True)
                admin.execute(f"ALTER ROLE {user} NOCREATEROLE".encode())
                with pytest.raises(StartupError, match="may not create roles"):
                    await asyncio.to_thread(url.check, creates_roles=True)
                with pytest.raises(SqlError, match="may not create the roles that Spark's executors log in as"):
                    await area_of(connect, dsn)
        finally:
            admin.execute(f"REASSIGN OWNED BY {user} TO CURRENT_USER; DROP OWNED BY {user}; DROP ROLE {user}".encode())


def _url(dsn: str) -> str:
    parts = conninfo_to_dict(dsn)
    return (
        f"postgresql://{parts['user']}:{parts['password']}@/{parts['dbname']}?host={parts['host']}&port={parts['port']}"
    )


@pytest.mark.long
def test_server_that_stops_in_the_middle_of_a_job_takes_its_executors_away(dsn: str, tmp_path: Path) -> None:
    url = _url(dsn)
    server = Headwater(tmp_path / "data", "--postgres", url, "--spark", "sail", "--spark-postgres", url).start()
    client = psycopg.connect(make_conninfo(dsn, host="127.0.0.1", port=server.port), autocommit=True)
    try:
        client.execute(
            "CREATE TABLE t (id int); INSERT INTO t SELECT generate_series(1, 3000); ANALYZE t;"
            "SET pg_trickle.spark_parallel_rows = 1000"
        )
        query = "SELECT a.id, b.id AS other, c.id AS third FROM t a, t b, t c"
        create = "SELECT pgtrickle.create_stream_table('endless', %s, '1h', 'FULL', engine => 'spark')"
        with ThreadPoolExecutor(1) as pool:
            creating = pool.submit(client.execute, create, [query])
            wait_until(lambda: creating.done() or writers(dsn) != [], "its executors may log in")
            assert not creating.done(), creating.exception()
            server.stop()
            assert creating.exception() is not None
        assert writers(dsn) == []
    finally:
        server.stop()
        client.close()


def test_nothing_of_a_login_is_taken_from_the_url() -> None:
    url = PostgresUrl.parse("postgresql://postgres:s3cret@db.example/shop?sslmode=require&passfile=/etc/pgpass")
    assert conninfo_to_dict(url.address("orders")) == {
        **{"host": "db.example", "port": "5432"},
        **{"dbname": "orders", "sslmode": "require"},
    }


@pytest.mark.parametrize("target", ["sail", pytest.param("local[1]", marks=pytest.mark.long)])
async def test_password_of_an_executor_is_in_no_log_plan_file_or_command_line(
    cluster: EmbeddedPostgres, dsn: str, target: str, tmp_path: Path
) -> None:
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": tmp_path.as_uri(), "spark.log.level": "DEBUG"}
    sessions = SparkSessions(target, tmp_path, options=conf if target != "sail" else {})
    seen: list[str] = []
    async with engine_as(dsn) as connect:
        area = await area_of(connect, dsn)

        def work(spark: Any) -> list[str]:
            write = writer(area.number, area.login, [("c0", pa.int32())])
            frame = spark.sql("SELECT CAST(id AS INT) AS c0 FROM range(3)").mapInArrow(write, PARTS)
            seen.append(explained(frame))
            processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
            seen.extend(" ".join([*p.cmdline(), *p.environ().values()]) for p in processes)
            return [row["part"] for row in frame.toArrow().to_pylist()]

        async with sessions.acquire() as lease:
            parts = await lease.run(work, description="beside an attack")
        password = str(conninfo_to_dict(area.login)["password"])
        await sessions.stop()
        await area.expel()
        await area.add((part, 1) for part in parts)
        await area.drop()
    assert parts
    assert "MapInArrow" in seen[0] or "MapPartitions" in seen[0]
    kept = [*contents(tmp_path), *contents(cluster._data.logs)]
    assert any(b"_admit_staging_writer" in content for content in kept), "PostgreSQL logs what the engine says"
    assert not [content for content in (*kept, *(text.encode() for text in seen)) if password.encode() in content]


def contents(directory: Path) -> list[bytes]:
    """Of all files below a directory."""
    return [path.read_bytes() for path in directory.rglob("*") if path.is_file()]


def explained(frame: Any) -> str:
    """What Spark tells of how it computes a frame."""
    if hasattr(frame, "_explain_string"):
        return str(frame._explain_string(extended=True))
    return str(frame._jdf.queryExecution().toString())


async def test_role_that_is_called_nearly_like_a_writer_is_left_alone(dsn: str) -> None:
    async with engine_as(dsn):
        with psycopg.connect(dsn, autocommit=True) as admin:
            (found,) = admin.execute("SELECT pgtrickle._staging_writer(0)").fetchone() or ("",)
            like = f"{found}7"  # with the number "07"
            admin.execute(f"CREATE ROLE {like}".encode())
            try:
                admin.execute("SELECT pgtrickle._remove_staging_leftovers()")
                assert admin.execute("SELECT count(*) FROM pg_roles WHERE rolname = %s", [like]).fetchone() == (1,)
            finally:
                admin.execute(f"DROP ROLE {like}".encode())
