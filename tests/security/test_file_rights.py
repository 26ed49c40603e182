"""Started by root, the embedded PostgreSQL has no rights of root's: nor has who may do everything in it."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
from psycopg import errors, sql

from server.postgres import cluster as embedded
from server.postgres import unprivileged
from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory, StartupError

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="only root can become another user, and only on Linux for sure"
)

FAST = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "32MB"}
SECRET = "a secret of root's"

# Stands before `launch.py`: what root may do, but for one capability.
WITHOUT_CAPABILITY = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(24, {capability}, 0, 0, 0) == 0  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, "-I", "-S", {launch!r}, *sys.argv[1:]])
"""
CAP_SETUID = 7
CAP_SYS_ADMIN = 21


@pytest.fixture(scope="module")
def secret() -> Iterator[Path]:
    """A file that only root can read, in directories that all can pass."""
    place = Path(tempfile.mkdtemp(prefix="headwater-secret-"))
    place.chmod(0o755)
    file = place / "file"
    file.write_text(SECRET)
    file.chmod(0o600)
    yield file
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that only root can pass, below others."""
    place = tmp_path_factory.mktemp("closed")
    place.chmod(0o700)
    return place


@pytest.fixture
def opened() -> Iterator[Path]:
    """A directory that all can pass."""
    place = Path(tempfile.mkdtemp(prefix="headwater-open-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def postgres(closed: Path) -> Iterator[EmbeddedPostgres]:
    """The cluster of most tests, with programs below a closed directory, started with a secret in the environment."""
    package = embedded.binaries().parent.parent
    for directory in (package, *package.parent.glob(f"{package.name}.libs")):
        shutil.copytree(directory, closed / "packages" / directory.name, ignore=shutil.ignore_patterns("include"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(embedded, "binaries", lambda: closed / "packages" / package.name / "pginstall" / "bin")
        cluster = EmbeddedPostgres(DataDirectory(closed / "data").create(), FAST)
        patch.setenv("HEADWATER_POSTGRES", SECRET)
        cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def superuser(postgres: EmbeddedPostgres) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        yield connection


def output_of(connection: psycopg.Connection, program: str) -> str:
    """What a program writes that PostgreSQL runs."""
    connection.execute("CREATE TEMP TABLE IF NOT EXISTS output (line text)")
    connection.execute("TRUNCATE output")
    # No character of the output is one of the format's.
    connection.execute(
        sql.SQL("COPY output FROM PROGRAM {} (FORMAT csv, DELIMITER E'\\x01', QUOTE E'\\x02')").format(
            sql.Literal(f"{program}; true")
        )
    )
    return "\n".join(line or "" for (line,) in connection.execute("SELECT line FROM output"))


def test_superuser_reads_no_file_of_roots(
    superuser: psycopg.Connection, postgres: EmbeddedPostgres, secret: Path
) -> None:
    superuser.execute("CREATE TEMP TABLE loot (line text)")
    for file in ("/etc/shadow", str(secret), str(postgres.passfile)):
        for attack in ("COPY loot FROM {}", "SELECT pg_read_file({})", "SELECT lo_import({})"):
            with pytest.raises(psycopg.Error) as failure:
                superuser.execute(sql.SQL(attack).format(sql.Literal(file)))
            # A password file that is not there: the mount namespace shows nothing but PostgreSQL's own.
            assert isinstance(failure.value, errors.InsufficientPrivilege | errors.UndefinedFile)
    for directory in ("mirror", "spark"):
        with pytest.raises((errors.InsufficientPrivilege, errors.UndefinedFile)):
            superuser.execute("SELECT pg_ls_dir(%s)", (str(postgres.passfile.parent / directory),))


def test_superuser_writes_no_file_of_roots(superuser: psycopg.Connection, secret: Path) -> None:
    directory = secret.parent
    for file in (secret, directory / "new"):
        with pytest.raises(errors.InsufficientPrivilege):
            superuser.execute(sql.SQL("COPY (SELECT 1) TO {}").format(sql.Literal(str(file))))
    output_of(superuser, f"rm -rf {directory}/file; ln -s / {directory}/link")
    assert [(file.name, file.read_text()) for file in directory.iterdir()] == [("file", SECRET)]


def test_programs_have_neither_roots_id_nor_capabilities_nor_secrets(
    superuser: psycopg.Connection, postgres: EmbeddedPostgres
) -> None:
    status = dict(
        line.split(":", 1) for line in output_of(superuser, "cat /proc/self/status").splitlines() if ":" in line
    )
    uid, gid = str(postgres.identity.uid), str(postgres.identity.gid)
    assert status["Uid"].split() == [uid] * 4 and uid != "0"
    assert status["Gid"].split() == [gid] * 4 and gid != "0"
    assert set(status["Groups"].split()) <= {gid}
    capabilities = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    assert set(capabilities.values()) == {0}
    assert status["NoNewPrivs"].strip() == "1"
    assert SECRET not in output_of(superuser, "env")
    assert SECRET not in output_of(superuser, f"cat /proc/{os.getpid()}/environ")


def test_superuser_puts_nothing_beside_the_socket(superuser: psycopg.Connection, postgres: EmbeddedPostgres) -> None:
    """Clients of the server's connect there as root."""
    directory = postgres.socket_dir
    before = sorted(os.listdir(directory))
    output_of(superuser, f"cd {directory} && rm -f .s.PGSQL.5432; ln -sf /run/other .s.PGSQL.5432; touch new")
    assert sorted(os.listdir(directory)) == before
    assert stat.S_ISSOCK((directory / ".s.PGSQL.5432").lstat().st_mode)
    assert (directory.stat().st_uid, directory.parent.stat().st_uid) == (0, 0)


def test_start_follows_no_link_in_the_cluster(postgres: EmbeddedPostgres, secret: Path) -> None:
    cluster = postgres.passfile.parent / "postgres"
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        for name in ("headwater.conf", "headwater.conf.new", "headwater.hba", "headwater.hba.new"):
            output_of(connection, f"ln -sf {secret} {cluster}/{name}")
    postgres.stop()
    assert (cluster / "headwater.conf").is_symlink()
    postgres.passfile.unlink()  # and so a new password is set
    postgres.start()
    with psycopg.connect(postgres.dsn()) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert "shared_buffers" in (cluster / "headwater.conf").read_text()
    version, aside = cluster / "PG_VERSION", cluster / "aside"
    version.rename(aside)
    version.symlink_to(secret)
    try:
        with pytest.raises(StartupError, match="could not start the embedded PostgreSQL") as failure:
            EmbeddedPostgres(DataDirectory(postgres.passfile.parent), FAST).start()
        assert SECRET not in failure.value.message
    finally:
        aside.rename(version)
    status = secret.stat()
    assert (secret.read_text(), status.st_uid, stat.S_IMODE(status.st_mode)) == (SECRET, 0, 0o600)


def owners(top: Path) -> set[int]:
    """The owners of everything below a directory, and of itself."""
    return {path.lstat().st_uid for path in (top, *top.rglob("*"))}


def as_before(data: DataDirectory, *more: Path) -> None:
    """Make a cluster one as earlier versions made it: everything is root's, and the directory is closed."""
    for top in (data.path, *more):
        for path in (top, *top.rglob("*")):
            os.chown(path, 0, 0, follow_symlinks=False)
    data.path.chmod(0o700)


class Killed(BaseException):
    """Stands for the end of the process."""


def test_cluster_of_roots_is_taken_over_with_its_tablespaces(closed: Path, opened: Path) -> None:
    data = DataDirectory(closed / "earlier").create()
    cluster = EmbeddedPostgres(data, FAST)
    cluster.start()
    space = opened / "space"
    space.mkdir()
    cluster.identity.give(space)
    with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE TABLESPACE elsewhere LOCATION {}").format(sql.Literal(str(space))))
        connection.execute("CREATE TABLE kept TABLESPACE elsewhere AS SELECT generate_series(1, 100) AS n")
    cluster.stop()
    # Earlier versions could have one below a closed directory.
    space = Path(shutil.move(space, closed / "space"))
    (link,) = (data.postgres / "pg_tblspc").iterdir()
    link.unlink()
    link.symlink_to(space)
    keep, untouched = closed / "keep", closed / "space" / "untouched"
    (data.path / "mirror" / "copy").write_text("")
    for file in (keep, untouched):
        file.write_text("")
    as_before(data, space)
    (data.path / "mirror").chmod(0o755)
    (data.postgres / "link").symlink_to(keep)

    chown, calls = os.chown, 0

    def killed_after_a_while(*args: object, **options: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 300:
            raise Killed
        chown(*args, **options)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unprivileged.os, "chown", killed_after_a_while)
        with pytest.raises(Killed):
            EmbeddedPostgres(data, FAST).start()
    assert data.postgres.stat().st_uid == 0
    assert len(owners(data.postgres)) == 2

    again = EmbeddedPostgres(data, FAST)
    again.start()
    try:
        uid = again.identity.uid
        assert owners(data.postgres) == owners(data.logs) == {uid}
        assert owners(next(space.glob("PG_*"))) == {uid} and space.stat().st_uid == uid
        assert keep.stat().st_uid == untouched.stat().st_uid == 0
        assert owners(data.path / "mirror") == {data.path.stat().st_uid} == {0}
        assert stat.S_IMODE((data.path / "mirror").stat().st_mode) == 0o700
        with psycopg.connect(again.dsn(), autocommit=True) as connection:
            assert connection.execute("SELECT sum(n) FROM kept").fetchone() == (5050,)
            assert output_of(connection, f"ls {closed}").split() == ["earlier", "space"]
    finally:
        again.stop()


def test_without_a_closed_directory_there_is_no_namespace_and_the_owner_stays(opened: Path) -> None:
    data = DataDirectory(opened / "data").create()
    for _ in range(2):
        cluster = EmbeddedPostgres(data, FAST)
        cluster.start()
        try:
            owner = data.postgres.stat().st_uid
            assert owner == cluster.identity.uid != 0
            assert os.readlink(f"/proc/{cluster.pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt")
            assert owner == psutil.Process(cluster.pid).uids().real
            assert (data.path.stat().st_uid, stat.S_IMODE(data.path.stat().st_mode)) == (0, 0o710)
            with psycopg.connect(cluster.dsn(), autocommit=True) as connection:
                for path in (data.passfile, data.path / "headwater.lock", data.path / "mirror", data.path / "spark"):
                    assert output_of(connection, f"ls -d {path} && cat {path}/* {path}") in ("", str(path))
        finally:
            cluster.stop()
    os.chown(data.path, owner, owner)
    with pytest.raises(StartupError, match=f"belongs to user id {owner}, and headwater runs as root"):
        EmbeddedPostgres(data, FAST).start()


@pytest.mark.parametrize(
    ("capability", "place", "said"),
    [
        (CAP_SETUID, "opened", "root may not become user id"),
        (CAP_SYS_ADMIN, "closed", 'may not pass "/.*", and this system does not permit a mount namespace'),
    ],
)
def test_where_root_lacks_a_capability_nothing_is_started(
    capability: int,
    place: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    launch = tmp_path / "launch.py"
    launch.write_text(WITHOUT_CAPABILITY.format(capability=capability, launch=str(unprivileged.LAUNCH)))
    monkeypatch.setattr(unprivileged, "LAUNCH", launch)
    data = DataDirectory(request.getfixturevalue(place) / "refused").create()
    with pytest.raises(StartupError, match=said) as failure:
        EmbeddedPostgres(data, FAST).start()
    assert "Run headwater as an ordinary user" in (failure.value.hint or "")
    assert not data.postgres.exists()
