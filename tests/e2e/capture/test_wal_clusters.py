"""Capture from the write-ahead log in front of a PostgreSQL of one's own: rights that are missing, a standby."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
import pytest

from server.postgres.cluster import EmbeddedPostgres
from server.postgres.data_directory import DataDirectory
from tests.clusters import OtherPostgres, started_cluster
from tests.e2e.capture.test_wal import PATIENCE, from_log, modes
from tests.e2e.conftest import Database, Headwater

Eventually = Callable[..., Any]


@contextmanager
def in_front_of(
    cluster: EmbeddedPostgres, directory: Path, *, database: str = "postgres", server_role: str = "", client: str = ""
) -> Iterator[Database]:
    """A server that logs in as one role (the superuser if it is not named), and a client that does as another."""
    places = {"host": cluster.socket_dir, "port": cluster.port, "password": cluster.password}
    url = f"postgresql://{server_role or cluster.user}@/{database}?{urlencode(places)}"
    directory.mkdir(exist_ok=True)
    server = Headwater(directory / "data", "--postgres", url).start()
    try:
        server.data.mkdir(exist_ok=True)
        (server.data / "pgpass").write_text(f"*:*:*:{client or cluster.user}:{cluster.password}")
        db = Database(server, database)
        yield db
        db.close()
    finally:
        server.stop()


@pytest.mark.long
def test_log_without_logical_decoding_is_refused(tmp_path: Path) -> None:
    with (
        started_cluster(tmp_path / "cluster", {"wal_level": "replica"}) as cluster,
        in_front_of(cluster, tmp_path / "server") as db,
    ):
        db.run("ALTER DATABASE postgres SET pg_trickle.enabled = off; CREATE TABLE t (id int PRIMARY KEY)")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as refused:
            db.create("counted", "SELECT count(*) AS n FROM t", cdc_mode="wal")
        assert refused.value.diag.message_primary == (
            'changes cannot be captured from the write-ahead log: wal_level of PostgreSQL is "replica"'
        )
        assert "ALTER SYSTEM SET wal_level = logical" in (refused.value.diag.message_hint or "")
        db.create("counted", "SELECT count(*) AS n FROM t", cdc_mode="auto")
        assert modes(db)["t"] == ("TRIGGER", 'wal_not_possible: wal_level of PostgreSQL is "replica"')
        db.run("INSERT INTO t VALUES (1)")
        db.assert_differential("counted")


def test_server_whose_role_is_no_superuser(tmp_path: Path, eventually: Eventually) -> None:
    with started_cluster(tmp_path / "cluster") as cluster, psycopg.connect(cluster.dsn(), autocommit=True) as admin:
        for role in ("headwater", "alice"):
            admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{cluster.password}'")
        admin.execute("CREATE DATABASE shop")
        admin.execute("GRANT CREATE ON DATABASE shop TO headwater, alice; GRANT alice TO headwater")
        with in_front_of(cluster, tmp_path, database="shop", server_role="headwater", client="alice") as db:
            db.run("CREATE SCHEMA a; SET search_path = a; CREATE TABLE a.t (id int PRIMARY KEY, v text)")
            with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as refused:
                db.create("a.counted", "SELECT count(*) AS n FROM a.t", cdc_mode="wal")
            why = 'the server\'s role "headwater" may not use replication'
            assert refused.value.diag.message_primary == f"changes cannot be captured from the write-ahead log: {why}"
            assert refused.value.diag.message_hint == (
                "ALTER ROLE headwater REPLICATION. Or use cdc_mode => 'auto', which goes on with triggers."
            )
            db.create("a.counted", "SELECT count(*) AS n FROM a.t", cdc_mode="auto")
            assert modes(db)["a.t"] == ("TRIGGER", f"wal_not_possible: {why}")
            admin.execute("ALTER ROLE headwater REPLICATION")
            eventually(from_log(db, "a.t"), PATIENCE)
            db.run("INSERT INTO a.t VALUES (1, 'x'), (2, 'y'); UPDATE a.t SET id = 0 WHERE id = 1")
            db.assert_differential("a.counted")
            # Without the right triggers take over; nothing is missed on the way.
            db.run("INSERT INTO a.t VALUES (4)")
            admin.execute("ALTER ROLE headwater NOREPLICATION")
            eventually(lambda: modes(db)["a.t"] == ("TRIGGER", f"wal_not_possible: {why}"), PATIENCE)
            db.run("INSERT INTO a.t VALUES (5)")
            db.assert_differential("a.counted")


@pytest.mark.long
def test_standby_refuses_and_goes_on_when_it_is_promoted(tmp_path: Path, eventually: Eventually) -> None:
    standby_data = tmp_path / "standby"
    with started_cluster(tmp_path / "primary") as primary:
        with in_front_of(primary, tmp_path / "first") as db:
            db.run("ALTER DATABASE postgres SET pg_trickle.enabled = off; CREATE TABLE t (id int PRIMARY KEY)")
            db.create("counted", "SELECT count(*) AS n FROM t", cdc_mode="wal")
            eventually(from_log(db, "t"), PATIENCE)
            db.run("INSERT INTO t VALUES (1)")
            db.assert_differential("counted")
            db.run("INSERT INTO t VALUES (2)")
            db.refresh("counted")
            _back_up(primary, tmp_path / "primary", standby_data)
        standby = OtherPostgres(DataDirectory(standby_data).create())
        standby.start()
        try:
            with in_front_of(standby, tmp_path / "second") as db:
                _refuses(db)
                db.run("SELECT pg_promote()")
                eventually(lambda: not db.value("SELECT pg_is_in_recovery()"))
                db.run("INSERT INTO t VALUES (3)")
                db.assert_refreshed("counted")
                assert db.last("counted")[0] == "REINITIALIZE"
                eventually(from_log(db, "t"), PATIENCE)
                db.run("INSERT INTO t VALUES (4)")
                db.assert_differential("counted")
                assert db.value("SELECT n FROM counted") == 4
        finally:
            standby.stop()


def _back_up(cluster: EmbeddedPostgres, data: Path, place: Path) -> None:
    place.mkdir()
    shutil.copy(data / "pgpass", place / "pgpass")
    subprocess.run(
        [cluster.bin_dir / "pg_basebackup", "-d", cluster.dsn(), "-D", place / "postgres", "-R", "-c", "fast"],
        check=True,
    )


def _refuses(standby: Database) -> None:
    """What is there can be read; nothing is captured, or refreshed."""
    assert standby.value("SELECT n FROM counted") == 2
    for call in (
        "SELECT pgtrickle.create_stream_table('other', 'SELECT count(*) AS n FROM t', cdc_mode => 'wal')",
        "SELECT pgtrickle.alter_stream_table('counted', cdc_mode => 'wal')",
        "SELECT pgtrickle.refresh_stream_table('counted')",
    ):
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction, match="on a hot standby") as refused:
            standby.run(call)
        assert refused.value.diag.message_hint == "Connect to the primary."
    # The slot is the primary's.
    assert modes(standby)["t"] == ("WAL", None)
