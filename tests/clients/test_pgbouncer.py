"""PgBouncer in front of a server, and behind one."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import conninfo

from server.commands.doctor import examine
from server.commands.doctor_checks import Outcome
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.url import PostgresUrl
from tests.clients.packages import tool
from tests.e2e.conftest import Database, Headwater

Eventually = Callable[..., Any]


@contextmanager
def bouncing(cluster: EmbeddedPostgres, upstream: str, mode: str, eventually: Eventually) -> Iterator[str]:
    """PgBouncer before `upstream`, a connection string; yields the connection string of PgBouncer.

    It runs as the user of the cluster, since it refuses to be root and has to reach the cluster's socket.
    """
    program = tool("pgbouncer")
    options = conninfo.conninfo_to_dict(upstream)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        home.chmod(0o755)
        users, settings = home / "users", home / "pgbouncer.ini"
        users.write_text(f'"{options["user"]}" "{options["password"]}"\n')
        settings.write_text(
            f"[databases]\n* = host={options['host']} port={options['port']}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {users}\npool_mode = {mode}\ndefault_pool_size = 5\n"
            "logfile =\npidfile =\nignore_startup_parameters = extra_float_digits\n"
        )
        command = cluster.identity.command(
            [program, "-q", str(settings)], shared=[cluster.socket_dir], die_with_parent=True
        )
        with subprocess.Popen(command) as process:
            try:
                dsn = conninfo.make_conninfo(upstream, host="127.0.0.1", port=port)
                eventually(lambda: process.poll() is not None or _answers(dsn), what="PgBouncer")
                assert process.poll() is None, "PgBouncer has ended"
                yield dsn
            finally:
                process.terminate()


def _answers(dsn: str) -> bool:
    try:
        psycopg.connect(dsn).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_clients_come_through_pgbouncer(
    cluster: EmbeddedPostgres, db: Database, tmp_path: Path, mode: str, eventually: Eventually
) -> None:
    """Connections of the server are shared by clients, in transaction mode from one transaction to the next."""
    with bouncing(cluster, db.server.dsn(db.name), mode, eventually) as dsn:
        clients = [psycopg.connect(dsn, autocommit=True, prepare_threshold=None) for _ in range(4)]
        clients[0].execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
        clients[1].execute(
            "SELECT pgtrickle.create_stream_table(%s, %s)", ("st", "SELECT v, count(*) AS c FROM t GROUP BY v")
        )
        for n, client in enumerate(clients):
            with client.transaction():
                client.execute(
                    "INSERT INTO t SELECT i, %s FROM generate_series(%s::int, %s::int) AS i", (n, 10 * n, 10 * n + 4)
                )
                client.execute("SELECT pgtrickle.refresh_stream_table('st')")
                seen = client.execute("SELECT c FROM st WHERE v = %s", (n,)).fetchone()
                assert seen == (5,)
        with clients[2].transaction():
            clients[2].execute("DECLARE c CURSOR FOR SUBSCRIBE (SELECT v, c FROM st)")
            assert sorted(row[2:] for row in clients[2].execute("FETCH 4 c")) == [(n, 5) for n in range(4)]
        with pytest.raises(psycopg.errors.UndefinedTable):
            clients[3].execute("SELECT pgtrickle.create_stream_table('bad', 'SELECT * FROM nowhere')")
        for client in clients:
            client.close()
    db.assert_refreshed("st")


def test_server_in_front_of_pgbouncer_is_refused(
    cluster: EmbeddedPostgres, dsn: str, tmp_path: Path, eventually: Eventually
) -> None:
    """A pooler hides sessions, process ids and startup parameters from the server."""
    with bouncing(cluster, dsn, "session", eventually) as bouncer:
        options = conninfo.conninfo_to_dict(bouncer)
        url = f"postgresql://postgres:{options['password']}@127.0.0.1:{options['port']}/{options['dbname']}"
        (found,) = examine(PostgresUrl.parse(url))
        assert found.status == Outcome.ERROR and "there is a connection pooler between" in found.message
        assert "connect to PostgreSQL itself" in found.todo
        server = Headwater(tmp_path / "data", "--postgres", url)
        with pytest.raises(RuntimeError, match="there is a connection pooler between the server and the PostgreSQL"):
            server.start()
