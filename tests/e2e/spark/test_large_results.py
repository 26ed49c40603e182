"""Large results come over several connections; nothing of them stays, even if the server is killed in between."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater
from tests.spark_servers import wait_until

TABLES = """
SELECT c.relname FROM pg_class c WHERE c.relnamespace = 'pgtrickle_staging'::regnamespace AND c.relkind = 'r'
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Headwater]:
    data = tmp_path / "data"
    # As Spark's executors see it: Sail's are in the server's own process.
    url = f"postgresql://postgres@/postgres?host={data / 'socket'}&port=5432&passfile={data / 'pgpass'}"
    server = Headwater(data, "--spark", "sail", "--spark-postgres", url).start()
    yield server
    server.stop()


def prepared(db: Database, parallel_rows: int) -> None:
    db.run(
        "CREATE TABLE orders (id int PRIMARY KEY, amount numeric(10, 2), note text);"
        "INSERT INTO orders SELECT n, n / 7.0, repeat('x', n % 20) FROM generate_series(1, 8000) AS n; ANALYZE orders;"
        f"ALTER DATABASE postgres SET pg_trickle.spark_parallel_rows = {parallel_rows};"
        "ALTER DATABASE postgres SET pg_trickle.spark_min_rows = 0;"
        "ALTER DATABASE postgres SET pg_trickle.enabled = off"
    )


@pytest.mark.long
def test_server_killed_before_a_large_result_is_applied_leaves_nothing(server: Headwater) -> None:
    db = Database(server, "postgres")
    prepared(db, 1000)
    session = db.connect()
    session.execute(
        "SELECT pgtrickle.create_stream_table('copied', 'SELECT id, amount, note FROM orders', '1h', 'FULL')"
    )
    assert "parts" in db.history("copied")[-1]["executor_reason"]
    db.assert_current("copied")
    watcher = db.bypass()
    wait_until(lambda: watcher.execute(TABLES).fetchall() == [], "the staging tables are dropped")

    session.execute("UPDATE orders SET amount = amount + 1")
    blocker = db.bypass(autocommit=False)
    blocker.execute("LOCK TABLE copied IN ACCESS EXCLUSIVE MODE")
    with ThreadPoolExecutor(1) as pool:
        refresh = pool.submit(session.execute, "SELECT pgtrickle.refresh_stream_table('copied')")
        wait_until(lambda: watcher.execute(TABLES).fetchall() != [], "the result is being written")
        server.kill()
        wait_until(refresh.done, "the client has noticed")
    assert refresh.exception() is not None
    with suppress(psycopg.Error):
        db.close()
    server.start()
    after = Database(server, "postgres")
    after.run("ALTER DATABASE postgres RESET pg_trickle.enabled")
    wait_until(lambda: after.rows(TABLES) == [], "nothing is left behind")
    after.refresh("copied")
    after.assert_current("copied")
    after.close()
