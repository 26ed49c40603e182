"""The embedded PostgreSQL: made whole or not at all, started again after anything, never two on one directory."""

from __future__ import annotations

import os
import platform
import resource
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory, StartupError
from server.postgres.processes import await_end, processes_in, stop_process
from server.postgres.settings import sync_method

FAST = {"fsync": "off", "shared_buffers": "32MB"}

# A process that starts a cluster, says so, and waits to be killed.
HOLDER = """
    import sys, time
    from pathlib import Path
    from server.commands import logs
    from server.postgres.data_directory import DataDirectory
    from server.postgres.cluster import EmbeddedPostgres
    logs.configure("error")
    postgres = EmbeddedPostgres(DataDirectory(Path(sys.argv[1])).create(), {"fsync": "off"})
    postgres.start()
    print(postgres.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def postgres(data_directory: DataDirectory) -> Iterator[EmbeddedPostgres]:
    cluster = EmbeddedPostgres(data_directory, FAST)
    cluster.start()
    yield cluster
    cluster.stop()


def value(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
        assert row is not None
        return row[0]


def restarted(data: DataDirectory) -> object:
    """Start the cluster once more, read what `write` wrote, stop it."""
    cluster = EmbeddedPostgres(data, FAST)
    cluster.start()
    try:
        assert len([p for p in processes_in(data.postgres) if p.pid == cluster.pid]) == 1
        return value(cluster.dsn(), "SELECT sum(n) FROM kept")
    finally:
        cluster.stop()


def write(cluster: EmbeddedPostgres) -> None:
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 100) AS n")


def test_cluster_is_utf8_scram_logical_and_has_no_tcp(postgres: EmbeddedPostgres) -> None:
    shown = {
        name: value(postgres.dsn(), f"SHOW {name}")
        for name in ("server_encoding", "password_encryption", "wal_level", "listen_addresses")
    }
    assert shown == {
        "server_encoding": "UTF8",
        "password_encryption": "scram-sha-256",
        "wal_level": "logical",
        "listen_addresses": "",
    }
    methods = "SELECT array_agg(DISTINCT auth_method) FROM pg_hba_file_rules"
    assert value(postgres.dsn(), methods) == ["scram-sha-256"]
    locale = "SELECT datlocprovider::text || ' ' || datlocale FROM pg_database WHERE datname = 'template1'"
    assert value(postgres.dsn(), locale) == "b C.UTF-8"


def test_a_stop_and_a_recovery_have_little_to_write(postgres: EmbeddedPostgres) -> None:
    assert value(postgres.dsn(), "SHOW checkpoint_timeout") == "5min"
    expected = sync_method(platform.system(), platform.release())
    assert value(postgres.dsn(), "SHOW recovery_init_sync_method") == expected


def test_wrong_password_is_refused(postgres: EmbeddedPostgres) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(postgres.dsn().replace(postgres.password, "wrong"))


def test_password_file_is_private_and_serves_libpq(postgres: EmbeddedPostgres) -> None:
    assert stat.S_IMODE(postgres.passfile.stat().st_mode) == 0o600
    result = subprocess.run(
        [postgres.psql, "-h", postgres.socket_dir, "-U", "postgres", "-w", "-Atc", "SELECT 42"],
        env={**os.environ, "PGPASSFILE": str(postgres.passfile)},
        capture_output=True,
        text=True,
    )
    assert (result.stdout.strip(), result.stderr) == ("42", "")


def test_stop_leaves_no_process_and_no_socket(data_directory: DataDirectory) -> None:
    cluster = EmbeddedPostgres(data_directory, FAST)
    cluster.start()
    assert processes_in(data_directory.postgres)
    directory = cluster.socket_dir
    cluster.stop()
    assert not processes_in(data_directory.postgres)
    assert not directory.exists()


def test_data_survives_kill_of_the_postmaster(data_directory: DataDirectory) -> None:
    cluster = EmbeddedPostgres(data_directory, FAST)
    cluster.start()
    write(cluster)
    assert cluster.pid is not None
    os.kill(cluster.pid, signal.SIGKILL)
    assert restarted(data_directory) == 5050
    cluster.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's notice of a parent's death is Linux's")
def test_kill_of_the_owner_takes_postgres_along(data_directory: DataDirectory) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), str(data_directory.path)], stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        postmaster = psutil.Process(int(holder.stdout.readline()))
        processes = [postmaster, *postmaster.children()]
        holder.kill()
    assert await_end(processes, 120) == []
    assert not processes_in(data_directory.postgres)


def test_postgres_left_running_is_stopped_before_a_new_one_starts(data_directory: DataDirectory) -> None:
    left = EmbeddedPostgres(data_directory, FAST)
    left.start()
    write(left)
    assert restarted(data_directory) == 5050
    assert left.poll() is not None
    left.stop()


def test_postgres_is_stopped_while_it_starts(data_directory: DataDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    first = EmbeddedPostgres(data_directory, FAST)
    first.start()
    write(first)
    first.stop()
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedPostgres, "_wait_until_ready", lambda *_: None)
        starting = EmbeddedPostgres(data_directory, FAST)
        starting.start()
        starting.stop()
    assert not processes_in(data_directory.postgres)
    assert restarted(data_directory) == 5050


def test_process_that_misses_the_signal_to_stop_gets_another() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        stop_process(psutil.Process(process.pid), 0.1)
        assert process.poll() == -signal.SIGQUIT


def test_process_that_nobody_has_asked_about_has_ended() -> None:
    """As one of PostgreSQL's has, where the system's init takes its time."""
    asleep = "import time; print(flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", asleep], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        known = psutil.Process(process.pid)
        assert await_end([known], 0) == [known]
        os.kill(process.pid, signal.SIGKILL)  # process.kill() would ask about it
        assert await_end([known], 60) == []
        assert known.status() == psutil.STATUS_ZOMBIE


def test_pid_file_that_names_another_process_does_not_block(data_directory: DataDirectory) -> None:
    cluster = EmbeddedPostgres(data_directory, FAST)
    cluster.start()
    write(cluster)
    cluster.stop()
    (data_directory.postgres / "postmaster.pid").write_text(f"{os.getpid()}\n{data_directory.postgres}\n")
    assert restarted(data_directory) == 5050


def test_half_made_cluster_is_made_anew(data_directory: DataDirectory) -> None:
    half = data_directory.path / "postgres.new" / "base"
    half.mkdir(parents=True)
    (half / "junk").write_text("half of an initdb")
    data_directory.passfile.write_text("*:*:*:postgres:of another cluster\n")
    cluster = EmbeddedPostgres(data_directory, FAST)
    cluster.start()
    try:
        assert value(cluster.dsn(), "SELECT 1") == 1
        assert not half.parent.exists()
    finally:
        cluster.stop()


def test_failing_initdb_says_why_and_leaves_nothing(data_directory: DataDirectory) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, hard))  # as a disk that is full
    try:
        with pytest.raises(StartupError, match="could not create a PostgreSQL cluster") as failure:
            EmbeddedPostgres(data_directory, FAST).start()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "initdb failed without saying why" not in failure.value.message
    assert not data_directory.postgres.exists()
    assert not (data_directory.path / "postgres.new").exists()


def test_cluster_that_cannot_start_says_why(data_directory: DataDirectory) -> None:
    cluster = EmbeddedPostgres(data_directory, FAST)
    cluster.start()
    cluster.stop()
    for segment in (data_directory.postgres / "pg_wal").glob("0*"):
        segment.unlink()
    with pytest.raises(StartupError, match="could not locate a valid checkpoint record"):
        EmbeddedPostgres(data_directory, FAST).start()


def test_directory_with_other_files_is_refused(data_directory: DataDirectory) -> None:
    data_directory.postgres.mkdir()
    (data_directory.postgres / "thesis.txt").write_text("years of work")
    with pytest.raises(StartupError, match="is not a PostgreSQL data directory"):
        EmbeddedPostgres(data_directory, FAST).start()
    assert (data_directory.postgres / "thesis.txt").read_text() == "years of work"


def test_cluster_of_another_version_is_refused(data_directory: DataDirectory) -> None:
    cluster = EmbeddedPostgres(data_directory, FAST)
    cluster.start()
    cluster.stop()
    (data_directory.postgres / "PG_VERSION").write_text("99\n")
    with pytest.raises(StartupError, match="was made by PostgreSQL 99") as failure:
        EmbeddedPostgres(data_directory, FAST).start()
    assert failure.value.hint is not None
    assert "pg_upgrade" in failure.value.hint


def test_lost_password_file_gets_a_new_password(data_directory: DataDirectory) -> None:
    cluster = EmbeddedPostgres(data_directory, FAST)
    cluster.start()
    write(cluster)
    cluster.stop()
    data_directory.passfile.unlink()
    assert restarted(data_directory) == 5050


def test_password_that_was_changed_is_not_started_with(data_directory: DataDirectory) -> None:
    cluster = EmbeddedPostgres(data_directory, FAST)
    cluster.start()
    write(cluster)
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute("ALTER ROLE postgres PASSWORD 'changed'")
    cluster.stop()
    with pytest.raises(StartupError, match="is not that of role postgres"):
        EmbeddedPostgres(data_directory, FAST).start()
    assert not processes_in(data_directory.postgres)
    data_directory.passfile.write_text("*:*:*:postgres:changed\n")
    assert restarted(data_directory) == 5050


def test_broken_configuration_says_why_and_leaves_no_process(data_directory: DataDirectory) -> None:
    with pytest.raises(StartupError, match="no_such_setting"):
        EmbeddedPostgres(data_directory, {"no_such_setting": "1"}).start()
    assert not processes_in(data_directory.postgres)


def test_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / ("d" * 120)).create()
    cluster = EmbeddedPostgres(data, FAST)
    cluster.start()
    short = cluster.socket_dir
    assert value(cluster.dsn(), "SELECT 1") == 1
    cluster.stop()
    assert not short.exists()
    assert not (data.path / "socket").is_symlink()


def test_path_with_quotes_and_backslashes_is_written_as_it_is(tmp_path: Path) -> None:
    data = DataDirectory(tmp_path / 'it\'s \\n "here"').create()
    cluster = EmbeddedPostgres(data, FAST)
    cluster.start()
    try:
        with psycopg.connect(cluster.dsn()) as connection:
            shown = connection.execute("SHOW log_directory").fetchone()
    finally:
        cluster.stop()
    assert shown == (str(data.logs),)


def test_second_lock_is_refused_and_names_the_owner(data_directory: DataDirectory) -> None:
    data_directory.lock()
    with pytest.raises(StartupError, match=f"pid {os.getpid()}"):
        DataDirectory(data_directory.path).lock()
    data_directory.unlock()
    other = DataDirectory(data_directory.path)
    other.lock()
    other.unlock()
