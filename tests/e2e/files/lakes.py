"""A database with a lake server, which several servers of the tests serve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.e2e.conftest import Database, Headwater


@contextmanager
def lake_database(server: Headwater, location: Path, *settings: str) -> Iterator[Database]:
    """The database `postgres`, in which nothing is refreshed but by hand, with a lake server `lake` over a directory.

    `settings` are statements that are run before. In the end the stream tables and the lake server are dropped.
    """
    database = Database(server, "postgres")
    try:
        database.run("ALTER DATABASE postgres SET pg_trickle.enabled = off")
        for statement in settings:
            database.run(statement)
        database.run(f"CREATE SERVER lake FOREIGN DATA WRAPPER headwater_lake OPTIONS (location 'file://{location}')")
        yield database
        database.run(
            "SELECT pgtrickle.drop_stream_table(pgt_schema || '.' || pgt_name) FROM pgtrickle.pgt_stream_tables"
        )
        database.run("DROP SERVER lake CASCADE")
    finally:
        database.close()
