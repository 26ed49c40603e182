"""A thousand clients at once, most of whom do nothing."""

from __future__ import annotations

from pathlib import Path

import psutil
import psycopg
import pytest

from tests.e2e.conftest import Headwater

CLIENTS = 1000
MOST_KIB = 100
"""What the server may keep for an idle client. It was 11 KiB when this was written."""


@pytest.mark.long
def test_a_thousand_idle_connections(tmp_path: Path) -> None:
    server = Headwater(tmp_path / "data", "--max-connections", str(CLIENTS + 50)).start()
    try:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"ALTER SYSTEM SET max_connections = {CLIENTS + 100}")
        server.stop()
        server.start()
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        clients = [psycopg.connect(server.dsn(), autocommit=True)]
        clients[0].execute("CREATE TABLE t (id int PRIMARY KEY)")
        clients[0].execute("SELECT pgtrickle.create_stream_table('st', 'SELECT count(*) AS c FROM t', '1s')")
        before = process.memory_info().rss
        clients += [psycopg.connect(server.dsn(), autocommit=True) for _ in range(CLIENTS - 1)]
        each = (process.memory_info().rss - before) / 1024 / CLIENTS
        print(f"{each:.1f} KiB for each of {CLIENTS} idle clients")
        for n, client in enumerate(clients):
            client.execute("INSERT INTO t VALUES (%s)", (n,))
        clients[0].execute("SELECT pgtrickle.refresh_stream_table('st')")
        assert {client.execute("SELECT c FROM st").fetchone() for client in clients} == {(CLIENTS,)}
        for client in clients:
            client.close()
        assert each < MOST_KIB
    finally:
        server.stop()
