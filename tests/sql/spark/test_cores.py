"""What the compiler hands to Spark: the cores of its queries, computed on Sail, equal PostgreSQL's rows."""

from __future__ import annotations

from pathlib import Path

import asyncpg
from psycopg import conninfo

from catalog.install import install
from engine.mirror.mirror import Mirror
from engine.session.pool import SESSION_SETTINGS, PooledSession
from engine.spark.executor import SparkExecutor
from engine.spark.sessions import SparkJobFailed, SparkSessions
from server.postgres.cluster import EmbeddedPostgres
from sql.spark.render import NotExpressible
from tests.sql.conftest import Workspace
from tests.sql.harness import StreamTable, source
from tests.sql.queries import QUERIES

ROWS = (
    "INSERT INTO item SELECT i, i % 5, nullif(i % 7, 3), i / 4.0, i * 1.5, nullif('l' || i % 3, 'l2'),"
    " i * 1000000000000"
    " FROM generate_series(1, 200) i",
    "INSERT INTO tag SELECT nullif(i % 4, 3), NULL, i % 6 FROM generate_series(1, 50) i",
    "INSERT INTO \"Select\" SELECT i, 'a' || i, 'P' || i FROM generate_series(1, 20) i",
    "INSERT INTO cell SELECT i, i % 6, i / 3.0, '2024-01-01'::timestamptz + i * '1 h'::interval"
    " FROM generate_series(1, 20) i",
)

MUST_BE_EXPRESSIBLE = frozenset(
    """filter, composite key, join using, counts, sums, having, distinct, union all, derived table, cte of cte,
    distinct aggregates, aggregate over join, aggregate of aggregate, join with distinct, no group by with having,
    expressions over aggregates""".replace("\n    ", " ").split(", ")
)


async def test_cores_of_compiled_queries_have_the_rows_of_postgresql(
    workspace: Workspace, cluster: EmbeddedPostgres, tmp_path: Path
) -> None:
    workspace.execute(*ROWS)
    tables = {name: workspace.stream(f"c{n}", query) for n, (name, query) in enumerate(QUERIES.items())}
    login = conninfo.conninfo_to_dict(cluster.dsn(workspace.connection.info.dbname))
    options = {"host": login["host"], "port": int(login["port"]), "user": login["user"]}
    options |= {"password": login["password"], "database": login["dbname"]}
    differing, computed = [], set()
    failed: dict[str, str] = {}

    async def connect() -> asyncpg.Connection:
        return await asyncpg.connect(**options, server_settings=SESSION_SETTINGS)

    sessions = SparkSessions("sail", tmp_path / "spark")
    executor = SparkExecutor(sessions, Mirror(tmp_path / "mirror"))
    connection = await connect()
    session = PooledSession(connection)
    # The workspace has capture of its own kind.
    await connection.execute("DROP SCHEMA pgtrickle_changes CASCADE")
    await install(session)

    async def differs(table: StreamTable) -> bool:
        core = table.compiled.core
        async with session.transaction():
            result = await executor.run(
                session,
                database="cores",
                connect=connect,
                query=core.spark,
                sources=table.sources,
                owner=options["user"],
                description="core",
                types=core.types,
            )
            one, other = (f"SELECT (q.*)::text FROM {rows} AS q" for rows in (f"({core.query})", result.staging))
            difference = f"({one} EXCEPT ALL {other}) UNION ALL ({other} EXCEPT ALL {one})"
            return bool(await session.fetch(f"SELECT 1 FROM ({difference}) AS d LIMIT 1"))

    try:
        for name, table in tables.items():
            try:
                if await differs(table):
                    differing.append(name)
                computed.add(name)
            except NotExpressible:
                continue
            except SparkJobFailed as error:
                failed[name] = str(error)
    finally:
        await connection.close()
        await sessions.stop()
    assert differing == []
    assert computed >= MUST_BE_EXPRESSIBLE
    assert failed.keys() == {"variances"}, failed  # whose numbers have too many digits


def test_staged_rows_whose_varchar_came_back_as_text_are_told_apart_from_stored_ones(workspace: Workspace) -> None:
    connection = workspace.connection
    workspace.execute(
        "CREATE TABLE word (id int PRIMARY KEY, name varchar(10), n int)",
        "INSERT INTO word VALUES (1, 'a', 1), (2, 'b', 2)",
    )
    words = source(connection, "word")
    for number, query in enumerate(("SELECT name, n FROM word", "SELECT name, sum(n) AS n FROM word GROUP BY name")):
        table = StreamTable(connection, f"words{number}", query, [words])
        core = table.compiled.core
        connection.execute("DROP TABLE IF EXISTS pg_temp.came")
        connection.execute(f"CREATE TEMP TABLE came AS {core.query}")
        connection.execute(f'ALTER TABLE pg_temp.came ALTER "{core.names[0]}" TYPE text')
        connection.execute(f"DELETE FROM {table.storage} WHERE name = 'a'")
        done = table.run(table.compiled.staged_sql(table.storage, "pg_temp.came"))
        assert (done["inserted"], done["updated"], done["deleted"]) == (1, 0, 0)
        assert table.difference() == []
