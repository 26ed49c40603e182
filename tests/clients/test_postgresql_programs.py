"""PostgreSQL's own programs through a server: jobs, pipelines, replication, protocol versions."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from server.postgres.cluster import binaries
from tests.e2e.conftest import Database

PIPELINE = r"""
\set aid random(1, 1000)
BEGIN;
\startpipeline
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (1, 1, :aid, 1, now());
\endpipeline
COMMIT;
"""


def program(name: str, *arguments: str | Path) -> str:
    """Run one of PostgreSQL's programs; returns what it printed."""
    command = [str(binaries() / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_dump_and_restore_with_jobs(db: Database, tmp_path: Path) -> None:
    for n in range(4):
        db.run(f"CREATE TABLE t{n} AS SELECT i AS id, i % 7 AS k FROM generate_series(1, 2000) AS i")
        db.run(f"ALTER TABLE t{n} ADD PRIMARY KEY (id)")
        db.create(f"s{n}", f"SELECT k, count(*) AS c FROM t{n} GROUP BY k")
    program("pg_dump", "-Fd", "-j", "3", "-f", tmp_path / "dump", db.server.dsn(db.name))
    target = f"{db.name}_restored"
    db.run(f"CREATE DATABASE {target}")
    try:
        past = db.server.direct_dsn(target)
        program("pg_restore", "-j", "3", "-d", past, tmp_path / "dump")
        restored = Database(db.server, target)
        try:
            restored.run("INSERT INTO t3 VALUES (2001, 6)")
            restored.assert_refreshed("s0", "s1", "s2", "s3")
        finally:
            restored.close()
    finally:
        db.run(f"DROP DATABASE {target} WITH (FORCE)")


@pytest.mark.parametrize("mode", ["simple", "extended", "prepared"])
def test_pgbench_beside_a_stream_table(db: Database, tmp_path: Path, mode: str) -> None:
    """TPC-B and, where the protocol can, pipelines: the accounts and their stream tables agree afterwards."""
    program("pgbench", "-i", "-q", db.server.dsn(db.name))
    db.create("sums", "SELECT bid, count(*) AS accounts, sum(abalance) AS balance FROM pgbench_accounts GROUP BY bid")
    db.create("deltas", "SELECT aid, sum(delta) AS delta FROM pgbench_history GROUP BY aid")
    program("pgbench", "-n", "-M", mode, "-c", "4", "-t", "25", db.server.dsn(db.name))
    if mode != "simple":
        (tmp_path / "pipeline.sql").write_text(PIPELINE)
        piped = ["-f", str(tmp_path / "pipeline.sql"), "-c", "4", "-t", "25"]
        program("pgbench", "-n", "-M", mode, *piped, db.server.dsn(db.name))
    db.assert_differential("sums")
    db.assert_refreshed("deltas")
    assert db.value("SELECT sum(balance) FROM sums") == db.value("SELECT sum(delta) FROM pgbench_history")


def test_pg_recvlogical_follows_a_table(own_db: Database, tmp_path: Path, eventually: Callable[..., Any]) -> None:
    own_db.run("ALTER SYSTEM SET wal_level = logical")
    own_db.close()
    own_db.server.stop()
    own_db.server.start()
    dsn = own_db.server.dsn()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
        program("pg_recvlogical", "-d", dsn, "--slot", "s", "--create-slot", "--plugin", "test_decoding")
        changes = tmp_path / "changes"
        changes.touch()
        follow = ["-d", dsn, "--slot", "s", "--start", "-f", str(changes)]
        with subprocess.Popen([str(binaries() / "pg_recvlogical"), *follow]) as following:
            try:
                connection.execute("INSERT INTO t VALUES (7)")
                eventually(lambda: "id[integer]:7" in changes.read_text())
            finally:
                following.terminate()
        assert following.returncode == 0
        program("pg_recvlogical", "-d", dsn, "--slot", "s", "--drop-slot")


def test_protocol_3_2(db: Database) -> None:
    """psql 18 insists on protocol 3.2, and its cancel key, which is longer there, works."""
    dsn = db.server.dsn(db.name, min_protocol_version="3.2", max_protocol_version="3.2")
    assert program("psql", "-XAt", "-d", dsn, "-c", "SELECT 42") == "42\n"
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    created = "SELECT pgtrickle.create_stream_table('st', 'SELECT count(*) AS c FROM t')"
    program("psql", "-X", "-d", dsn, "-c", created, "-c", "INSERT INTO t VALUES (1)")
    db.assert_refreshed("st")
