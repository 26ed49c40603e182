"""What a query's function sets for the time after its transaction is gone when the engine goes on in that session."""

from __future__ import annotations

from psycopg.conninfo import conninfo_to_dict

from engine.session.pool import DatabasePool, PooledSession


async def test_path_that_holds_after_the_commit_only(dsn: str) -> None:
    """Inside the transaction the path looks as it should: the value of the session is hidden below a local one."""
    login = {key: value for key, value in conninfo_to_dict(dsn).items() if key in ("host", "port", "user", "password")}
    pool = DatabasePool(str(conninfo_to_dict(dsn)["dbname"]), lambda _: login)
    connection = await pool.connect()
    session = PooledSession(connection)
    hidden = (
        "DO $$ BEGIN PERFORM set_config('search_path', 'public, pg_catalog', false);"
        " PERFORM set_config('search_path', 'pg_catalog, pg_temp', true);"
        " PERFORM set_config('standard_conforming_strings', 'off', false);"
        " PERFORM set_config('standard_conforming_strings', 'on', true); END $$"
    )
    settings = "SELECT current_setting('search_path'), current_setting('standard_conforming_strings')"
    try:
        async with session.transaction():
            await session.execute(hidden)
            assert await session.fetch(settings) == [("pg_catalog, pg_temp", "on")]
        assert await session.fetch(settings) == [("pg_catalog, pg_temp", "on")]
    finally:
        await connection.close()
