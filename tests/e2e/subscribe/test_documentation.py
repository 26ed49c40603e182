"""The programs of docs/subscribe.md: each goes on where it was, whoever is killed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg import conninfo

from server.postgres.cluster import binaries
from tests.clients import packages
from tests.e2e.conftest import Database, Headwater
from tests.e2e.documentation import page

PROGRAM = re.compile(r"<!-- program: (\S+) -->\n```\w+\n(.*?)```\n", re.DOTALL)
QUERY = "SELECT customer, amount FROM orders WHERE amount > 0"
JDBC = "jdbc:postgresql://{host}:{port}/{dbname}?user={user}&password={password}"


@pytest.fixture(scope="module")
def java(request: pytest.FixtureRequest) -> list[str]:
    """java with PostgreSQL's JDBC driver."""
    return packages.java(Path(request.config.cache.mkdir("client-jdbc")))


class Program:
    """A program of the page that follows `QUERY`."""

    def __init__(self, folder: Path, name: str, *command: str, dsn: str):
        (folder / name).write_text(dict(PROGRAM.findall(page("subscribe.md")))[name])
        self.file = folder / f"{name}.state"
        self._command = [*command, str(folder / name), dsn, QUERY, str(self.file)]
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        path = f"{binaries()}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            self._command,
            env={**os.environ, "PATH": path},
            stdout=self._log.open("ab"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(60)

    def rows(self) -> Counter[tuple[str, int]]:
        """What it has kept, as far as that is closed."""
        if not self.file.exists():
            return Counter()
        text = self.file.read_text()
        if text.startswith("{"):
            return Counter({(row[0], row[1]): copies for row, copies in json.loads(text)["rows"]})
        lines = [line.split("\t") for line in text.splitlines() if line.count("\t") == 4]
        closed = max((n for n, line in enumerate(lines) if line[1] == "t"), default=0)
        found: Counter[tuple[str, int]] = Counter()
        for _, progressed, diff, customer, amount in lines[:closed]:
            if progressed == "f":
                found[customer, int(amount)] += int(diff)
        assert all(copies >= 0 for copies in found.values())
        return +found


@pytest.mark.long
def test_programs_survive_restarts(tmp_path: Path, java: list[str], eventually: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server = Headwater(tmp_path / "data", "--port", port).start()
    options = conninfo.conninfo_to_dict(server.dsn())
    uri = "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**options)
    programs = [
        Program(tmp_path, "follow.sh", "sh", dsn=uri),
        Program(tmp_path, "follow_psycopg.py", sys.executable, dsn=uri),
        Program(tmp_path, "follow_asyncpg.py", sys.executable, dsn=uri),
        Program(tmp_path, "Follow.java", *java, dsn=JDBC.format(**options)),
    ]
    started: list[Program] = []
    try:
        database = Database(server, "postgres")
        database.run("CREATE TABLE orders (id int PRIMARY KEY, customer text, amount int)")
        database.run("ALTER TABLE orders SET (RETAIN HISTORY FOR '1 hour')")
        eventually(lambda: database.value("SELECT held_from FROM pgtrickle.history_status()"))
        database.run("INSERT INTO orders SELECT n, 'customer ' || n % 3, n % 5 FROM generate_series(1, 100) AS n")

        def all_follow() -> bool:
            truth = Counter(database.rows(QUERY))
            return all(program.rows() == truth for program in programs)

        for program in programs:
            program.start()
            started.append(program)
        eventually(all_follow)
        for program in programs:
            program.kill()
            started.remove(program)
        database.run("UPDATE orders SET amount = amount + 1 WHERE id % 2 = 0; DELETE FROM orders WHERE id % 7 = 0")
        for program in programs:
            program.start()
            started.append(program)
        database.run("INSERT INTO orders VALUES (1000, 'after a restart', 1)")
        eventually(all_follow)
        database.close()
        server.kill()
        server.start()
        database = Database(server, "postgres")
        database.run("DELETE FROM orders WHERE id % 3 = 0")
        eventually(all_follow)
        database.close()
    finally:
        for program in started:
            program.kill()
        server.stop()


PAGED = """
import java.sql.*;

class Paged {
    public static void main(String[] arguments) throws Exception {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            connection.setAutoCommit(false);
            PreparedStatement statement = connection.prepareStatement("SUBSCRIBE (SELECT id, note FROM paged"
                + " WHERE id >= ?) UP TO (extract(epoch FROM clock_timestamp()) * 1000 + 3000)");
            statement.setInt(1, 3);
            statement.setFetchSize(4);
            ResultSet rows = statement.executeQuery();
            while (rows.next()) {
                System.out.println(rows.getLong(2) + "|" + rows.getInt(3) + "|" + rows.getString(4));
            }
            connection.commit();
        }
    }
}
"""


@pytest.mark.long
def test_jdbc_with_a_fetch_size(tmp_path: Path, live_db: Database, java: list[str]) -> None:
    """The portal is suspended after every four rows; a parameter stands in the query."""
    live_db.run("CREATE TABLE paged (id int PRIMARY KEY, note text)")
    live_db.run("INSERT INTO paged SELECT n, 'note ' || n FROM generate_series(1, 21) AS n")
    options = conninfo.conninfo_to_dict(live_db.server.dsn(live_db.name))
    (tmp_path / "Paged.java").write_text(PAGED)
    done = subprocess.run(
        [*java, str(tmp_path / "Paged.java"), JDBC.format(**options)],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == sorted(f"1|{n}|note {n}" for n in range(3, 22))
