"""The command line, as its users meet it: real processes, real signals, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import psycopg
import pytest

from server import __version__
from server.postgres.processes import await_end
from tests.e2e.conftest import copy_used_data_directory

HEADWATER = [str(Path(sys.executable).with_name("headwater"))]


def environment(**variables: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HEADWATER_", "PG", "XDG_"))}
    return {**clean, "COLUMNS": "200", "NO_COLOR": "1", **variables}


def headwater(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HEADWATER, *map(str, arguments)],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )


def _hang_up_by_default() -> None:
    """In the child: nohup, around the tests, would have SIGHUP ignored."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Served:
    """A `headwater serve` process that has said it is ready, on a new data directory only if that is to be `fresh`."""

    def __init__(self, data: Path, *arguments: str, fresh: bool = False, **variables: str):
        self.data = data
        if not fresh and not data.exists() and "HEADWATER_POSTGRES" not in variables:
            copy_used_data_directory(data)
        self.log = data.with_suffix(".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*HEADWATER, "serve", "--data", str(data), "--port", "0", "--spark", "off", *arguments],
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                preexec_fn=_hang_up_by_default,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("ready: "), self.log.read_text()
        self.url = line.removeprefix("ready: ").strip()
        self.port = int(self.url.rsplit(":", 1)[1].split("/")[0])
        self.tree = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(
            f"{self.url.rsplit('/', 1)[0]}/{database}", passfile=str(self.data / "pgpass"), autocommit=True
        )

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=180)


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[Served] = []

    def start(*arguments: str, data: Path | None = None, fresh: bool = False, **variables: str) -> Served:
        started.append(Served(data or tmp_path / "data", *arguments, fresh=fresh, **variables))
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.end()
    assert not left_behind(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for tests that do it no harm."""
    served = Served(tmp_path_factory.mktemp("shared") / "data")
    yield served
    assert served.end() == 0
    assert not left_behind(served.data)


def left_behind(data: Path) -> list[str]:
    """Processes that have to do with a data directory: by their arguments, or by where they are at work."""
    found = []
    for process in psutil.process_iter():
        try:
            arguments, place = process.cmdline(), process.cwd()
        except psutil.Error:
            continue
        if process.pid != os.getpid() and (str(data) in " ".join(arguments) or place.startswith(str(data))):
            found.append(f"{process.pid} {' '.join(arguments)}")
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, "it did not happen in time"
        time.sleep(min(max(0.02, waited / 10), 0.2))


# serve


def test_ready_line_is_the_only_output_and_leads_to_the_server(serve: Serve) -> None:
    served = serve(fresh=True)
    assert served.url == f"postgresql://postgres@127.0.0.1:{served.port}/postgres"
    with served.connect() as connection:
        assert connection.execute("SELECT 6 * 7").fetchone() == (42,)
    assert served.end() == 0
    assert served.process.stdout is not None
    assert served.process.stdout.read() == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_everything_that_was_started(serve: Serve, number: signal.Signals) -> None:
    served = serve()
    with served.connect() as connection:
        assert served.end(number) == 0
        with pytest.raises(psycopg.OperationalError, match="terminating connection"):
            connection.execute("SELECT 1")
    assert await_end(served.tree, 60) == []
    assert not left_behind(served.data)


def test_postgres_writes_what_has_changed_while_the_rest_of_the_server_ends(serve: Serve) -> None:
    data = None
    for _ in range(5):  # where the rest has ended at once, PostgreSQL is stopped before it is asked
        served = serve(data=data)
        data = served.data
        with served.connect() as connection:
            connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n; DROP TABLE kept")
        assert served.end() == 0
        assert "no checkpoint before the end" not in served.log.read_text()
        log = "".join(file.read_text() for file in (data / "log").glob("postgres-*.log"))
        run = log.rpartition("database system is ready to accept connections")[2]
        before, _, after = run.partition("received fast shutdown request")
        assert after.count("checkpoint starting: shutdown") == 1
        if written := before.count("checkpoint starting: immediate force wait"):
            break
    assert written == 1


@pytest.mark.parametrize("signals", [signal.SIGTERM, signal.SIGINT])
def test_signal_during_the_start_ends_it_cleanly(tmp_path: Path, signals: signal.Signals) -> None:
    data = tmp_path / "data"
    with subprocess.Popen(
        [*HEADWATER, "serve", "--data", str(data), "--port", "0", "--spark", "off"],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        wait_until(lambda: (data / "postgres.new").exists())
        process.send_signal(signals)
        assert process.wait(timeout=180) == 0, process.stderr and process.stderr.read().decode()
    wait_until(lambda: not left_behind(data))


def test_kill_of_everything_loses_nothing(serve: Serve) -> None:
    served = serve()
    with served.connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    for process in served.tree:
        with suppress(psutil.NoSuchProcess):  # one may have gone with another
            process.kill()
    again = serve(data=served.data)
    with again.connect() as connection:
        assert connection.execute("SELECT sum(n) FROM kept").fetchone() == (500500,)


def test_kill_of_the_server_alone_stops_postgres_and_the_next_start_recovers(serve: Serve) -> None:
    served = serve()
    with served.connect() as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 1000) AS n")
    served.process.kill()
    again = serve(data=served.data)
    with again.connect() as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (1000,)
    assert await_end(served.tree, 60) == []


def test_end_of_postgres_ends_the_server(serve: Serve) -> None:
    served = serve()
    postmaster = int((served.data / "postgres" / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGKILL)
    assert served.process.wait(timeout=180) == 1
    assert "has ended by itself" in served.log.read_text()


def test_second_server_on_a_directory_is_refused(shared: Served) -> None:
    second = headwater("serve", "--data", shared.data, "--port", "0", "--spark", "off")
    assert second.returncode == 1
    assert f"in use by another headwater server (pid {shared.process.pid})" in second.stderr
    assert "hint:" in second.stderr
    with shared.connect() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_port_in_use_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    copy_used_data_directory(tmp_path / "data")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = headwater("serve", "--data", tmp_path / "data", "--port", port, "--spark", "off")
    assert result.returncode == 1
    assert f"could not listen on 127.0.0.1 port {port}" in result.stderr
    assert "Traceback" not in result.stderr
    assert not left_behind(tmp_path)


def test_address_of_another_machine_is_an_error_about_the_host(tmp_path: Path) -> None:
    copy_used_data_directory(tmp_path / "data")
    result = headwater("serve", "--data", tmp_path / "data", "--host", "192.0.2.1", "--port", "0", "--spark", "off")
    assert result.returncode == 1
    assert "could not listen on 192.0.2.1" in result.stderr
    assert "--host" in result.stderr
    assert not left_behind(tmp_path)


def test_empty_data_directory_is_not_the_present_one(tmp_path: Path) -> None:
    result = subprocess.run(
        [*HEADWATER, "serve", "--data", "", "--port", "0", "--spark", "off"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 2
    assert "it is empty" in result.stderr
    assert not list(tmp_path.iterdir())


def test_data_directory_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = headwater("serve", "--data", tmp_path / "file" / "data")
    assert result.returncode == 1
    assert "could not create data directory" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "--port"),
        (["--port", "http"], "--port"),
        (["--max-connections", "0"], "--max-connections"),
        (["--spark", "yarn"], "yarn"),
        (["--postgres", "mysql://root@localhost/db"], "postgresql://"),
        (["--postgres", "postgresql://u@h/d?channel_binding=require"], "channel_binding"),
        (["--postgres", "postgresql://u@a,b/d"], "several"),
        (["--mirror", ""], "it is empty"),
        (["--tls-cert", __file__], "go together"),
        (["--tls-cert", "/nowhere", "--tls-key", "/nowhere"], "/nowhere"),
        (["--log-level", "loud"], "loud"),
        (["--log-format", "xml"], "none of console, json"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
@pytest.mark.one_in(3)
def test_bad_option_is_named_and_exits_with_2(tmp_path: Path, arguments: list[str], message: str) -> None:
    result = headwater("serve", "--data", tmp_path / "data", *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert not (tmp_path / "data").exists()


def test_connections_are_limited(serve: Serve) -> None:
    served = serve("--max-connections", "1")
    with served.connect(), pytest.raises(psycopg.OperationalError, match="too many clients already"):
        served.connect()


def test_certificate_that_is_none_is_an_error(tmp_path: Path) -> None:
    result = headwater("serve", "--data", tmp_path / "data", "--tls-cert", __file__, "--tls-key", __file__)
    assert result.returncode == 1
    assert "could not use certificate" in result.stderr


def test_options_come_from_the_environment(tmp_path: Path) -> None:
    result = headwater("serve", HEADWATER_SPARK="yarn", HEADWATER_DATA=str(tmp_path / "data"))
    assert (result.returncode, "HEADWATER_SPARK" in result.stderr) == (2, True)
    # What Kubernetes sets beside a service called "headwater" is not meant for us.
    result = headwater("serve", "--spark", "yarn", HEADWATER_PORT="tcp://10.0.0.1:7432")
    assert "HEADWATER_PORT" not in result.stderr


def test_unreachable_postgres_is_an_error_without_the_password(tmp_path: Path) -> None:
    url = "postgresql://app:secret@127.0.0.1:1/shop"
    result = headwater("serve", "--data", tmp_path / "data", "--postgres", url)
    assert result.returncode == 1
    assert "postgresql://app@127.0.0.1:1/shop" in result.stderr
    assert "secret" not in result.stderr
    assert "PGPASSWORD" not in result.stderr


def test_password_that_is_wrong_says_where_it_can_be_given(tmp_path: Path, dsn: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    url = f"postgresql://postgres:secret@/postgres?host={parts['host']}"
    result = headwater("serve", "--data", tmp_path / "data", "--postgres", url)
    assert (result.returncode, "PGPASSWORD" in result.stderr, "secret" in result.stderr) == (1, True, False)


def test_server_in_front_of_another_postgres(serve: Serve, cluster: object, dsn: str, database: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    served = serve(HEADWATER_POSTGRES=f"postgresql://postgres:{parts['password']}@/{database}?host={parts['host']}")
    assert served.url.endswith(f"/{database}")
    with psycopg.connect(served.url, password=str(parts["password"])) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == (database,)
    assert not (served.data / "postgres").exists()
    assert str(parts["password"]) not in served.log.read_text()
    shown = headwater("status", "--data", served.data, PGPASSWORD=str(parts["password"]))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert database in shown.stdout


def test_database_without_an_encoding(serve: Serve, dsn: str) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(dsn)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("CREATE DATABASE plain_ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        try:
            served = serve(
                HEADWATER_POSTGRES=f"postgresql://postgres:{parts['password']}@/plain_ascii?host={parts['host']}"
            )
            shown = headwater("status", "--data", served.data, PGPASSWORD=str(parts["password"]))
            assert (shown.returncode, shown.stderr) == (0, "")
            assert "│ plain_ascii │" in shown.stdout
            assert served.end() == 0
        finally:
            admin.execute("DROP DATABASE plain_ascii WITH (FORCE)")


# psql, status, version


def test_psql_is_connected_to_the_running_server(shared: Served) -> None:
    query = "SELECT current_user, current_database()"
    result = headwater("psql", "--data", shared.data, "-Atc", query, PGPORT="1", PGUSER="nobody", PGHOST="/nowhere")
    assert (result.stdout, result.stderr, result.returncode) == ("postgres|postgres\n", "", 0)
    result = headwater("psql", "--data", shared.data, "-d", "template1", "-Atc", "SELECT current_database()")
    assert result.stdout == "template1\n"
    result = headwater("psql", "--data", shared.data, "-v", "ON_ERROR_STOP=1", "-c", "SELECT 1/0")
    assert result.returncode == 1
    assert "division by zero" in result.stderr


@pytest.mark.parametrize("command", ["psql", "status", "repair", "export spark"])
def test_no_server_is_exit_status_3(tmp_path: Path, command: str) -> None:
    result = headwater(*command.split(), "--data", tmp_path / "data")
    assert result.returncode == 3
    assert "no headwater server runs" in result.stderr
    assert f"headwater serve --data {tmp_path / 'data'}" in result.stderr


def test_status_after_a_kill_does_not_believe_the_record(serve: Serve) -> None:
    served = serve()
    served.process.kill()
    served.process.wait()
    assert headwater("status", "--data", served.data).returncode == 3
    wait_until(lambda: not left_behind(served.data))


def test_status_shows_server_and_databases(shared: Served) -> None:
    with shared.connect() as connection:
        connection.execute("CREATE DATABASE shop")
    result = headwater("status", "--data", shared.data)
    assert (result.returncode, result.stderr) == (0, "")
    assert f"127.0.0.1 port {shared.port}" in result.stdout
    assert "yes, in" in result.stdout
    shop = next(line for line in result.stdout.splitlines() if "shop" in line)
    assert "not used yet" in shop


def test_status_lists_subscriptions_and_sources(shared: Served) -> None:
    with shared.connect() as connection:
        connection.execute("CREATE TABLE followed (id int)")
        connection.execute("CREATE SOURCE counted FROM LOAD GENERATOR COUNTER (TICK INTERVAL '250ms')")
        connection.execute("BEGIN")
        connection.execute("DECLARE c CURSOR FOR SUBSCRIBE followed")
        shown = headwater("status", "--data", shared.data).stdout
        connection.execute("ROLLBACK")
        connection.execute("DROP SOURCE counted; DROP TABLE followed")
    lines = shown.splitlines()
    assert any("public.followed" in line and "postgres" in line for line in lines)
    assert any("public.counted" in line and "0.25 s" in line for line in lines)
    assert any("postgres" in line and "pgtrickle." in line and "dead)" in line for line in lines)


def test_repair_puts_back_what_was_dropped(shared: Served) -> None:
    with shared.connect() as connection:
        connection.execute("SELECT count(*) FROM pgtrickle.pgt_status()")
        connection.execute("DROP FUNCTION pgtrickle.pgt_status(); DROP FUNCTION pgque.version()")
        expected = [
            "postgres: function pgtrickle.pgt_status() is missing",
            "postgres: function pgque.version() is missing",
        ]
        for _ in range(2):  # the first has changed nothing
            shown = headwater("repair", "--dry-run", "--data", shared.data)
            assert (shown.stdout.splitlines(), shown.stderr, shown.returncode) == (expected, "", 1)
        shown = headwater("repair", "--data", shared.data)
        assert (shown.stdout.splitlines(), shown.returncode) == ([f"{line}, repaired" for line in expected], 0)
        connection.execute("SELECT pgque.version() FROM pgtrickle.pgt_status()")
        shown = headwater("repair", "--data", shared.data)
        assert (shown.stdout, shown.stderr, shown.returncode) == ("nothing is damaged\n", "", 0)


def test_version_and_help() -> None:
    assert headwater("--version").stdout == f"headwater {__version__}\n"
    commands = headwater("--help").stdout
    for command in ("serve", "psql", "status", "repair", "quickstart"):
        assert command in commands
        result = headwater(command, "--help")
        assert (result.returncode, "Usage: " in result.stdout) == (0, True)
