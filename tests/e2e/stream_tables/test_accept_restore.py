"""A dump that is restored into another database: stream tables and registers go on there, by name."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from server.postgres.cluster import binaries


def restore(db: Any, target: str, dump: Path) -> None:
    """pg_dump through the server; pg_restore through the server into a database in which the catalog is."""
    subprocess.run([binaries() / "pg_dump", "-Fc", "-f", dump, db.server.dsn(db.name)], check=True)
    # What the catalog has already is reported, and passed over.
    subprocess.run([binaries() / "pg_restore", "-d", db.server.dsn(target), dump], check=False, capture_output=True)


def test_stream_tables_of_a_restored_dump_go_on(db: Any, tmp_path: Path) -> None:
    target = f"{db.name}_restored"
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    db.create("copy", "SELECT id, v FROM t")
    db.create("counts", "SELECT v, count(*) AS n FROM copy GROUP BY v")
    db.run(f"CREATE DATABASE {target}")
    try:
        with psycopg.connect(db.server.dsn(target), autocommit=True) as other:
            # So that an OID of the dump is somebody else's here.
            other.execute("CREATE TABLE unrelated AS SELECT generate_series(1, 3) AS i")
            restore(db, target, tmp_path / "dump")
            other.execute("INSERT INTO t VALUES (3, 'b')")
            other.execute("SELECT pgtrickle.refresh_stream_table('copy'), pgtrickle.refresh_stream_table('counts')")
            assert other.execute("SELECT v, n FROM counts ORDER BY v").fetchall() == [("a", 1), ("b", 2)]
            other.execute("DELETE FROM t WHERE id = 1")
            other.execute("SELECT pgtrickle.refresh_stream_table('copy'), pgtrickle.refresh_stream_table('counts')")
            assert other.execute("SELECT v, n FROM counts ORDER BY v").fetchall() == [("b", 2)]
            triggers = "SELECT count(*) FROM pg_trigger WHERE tgrelid = 't'::regclass AND NOT tgisinternal"
            assert other.execute(triggers).fetchone() == (4,)
            other.execute("SELECT pgtrickle.drop_stream_table('counts'), pgtrickle.drop_stream_table('copy')")
            assert other.execute(triggers).fetchone() == (0,)
            assert other.execute("SELECT count(*) FROM unrelated").fetchone() == (3,)
    finally:
        db.run(f"DROP DATABASE {target} WITH (FORCE)")


@pytest.mark.long
def test_gates_and_watermarks_of_a_restored_dump_hold(db: Any, tmp_path: Path, eventually: Any) -> None:
    target = f"{db.name}_restored"
    db.run("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    db.create("st", "SELECT count(*) AS n FROM t", schedule="1s")
    db.run("SELECT pgtrickle.gate_source('u'), pgtrickle.gate_source('t'), pgtrickle.ungate_source('u')")
    db.run("SELECT pgtrickle.advance_watermark('u', '2026-03-01'), pgtrickle.advance_watermark('t', '2026-03-02')")
    db.run("SELECT pgtrickle.create_watermark_group('both', ARRAY['t', 'u'], 86400)")
    db.run(f"CREATE DATABASE {target}")
    try:
        with psycopg.connect(db.server.dsn(target), autocommit=True) as other:
            other.execute("CREATE TABLE unrelated (id int); CREATE TABLE another (id int)")
            restore(db, target, tmp_path / "dump")
            other.execute("INSERT INTO t VALUES (3)")
            skipped = "SELECT error_message FROM pgtrickle.pgt_refresh_history WHERE action = 'SKIP'"
            eventually(lambda: other.execute(skipped).fetchall() == [("source public.t is gated",)])
            gates = "SELECT source_table, gated FROM pgtrickle.source_gates()"
            assert other.execute(gates).fetchall() == [("t", True), ("u", False)]
            status = "SELECT group_name, lag_secs, aligned, sources_total FROM pgtrickle.watermark_status()"
            assert other.execute(status).fetchall() == [("both", 86400.0, True, 2)]
            # This rewrites what was restored.
            other.execute("SELECT pgtrickle.advance_watermark('t', '2026-03-02 00:00:01')")
            assert other.execute(status).fetchall() == [("both", 86401.0, False, 2)]
            other.execute("SELECT pgtrickle.drop_watermark_group('both')")
            other.execute("SELECT pgtrickle.ungate_source('t')")
            eventually(lambda: other.execute("SELECT n FROM st").fetchall() == [(1,)])
    finally:
        db.run(f"DROP DATABASE {target} WITH (FORCE)")


@pytest.mark.long
def test_registers_of_a_restored_dump_go_on(db: Any, tmp_path: Path) -> None:
    """Standard, in high-write mode with a row that waits in the buffer, and of turnovers; what was corrected, too."""
    target = f"{db.name}_restored"
    for name, more in (("plain", ""), ("busy", ", high_write := true"), ("sales", ", kind := 'turnover'")):
        db.run(f"""SELECT accum.register_create('{name}', '{{"item": "int"}}', '{{"n": "int"}}'{more})""")
        for quantity in (1, 5):
            movements = json.dumps([{"period": "2026-04-18", "item": 1, "n": quantity}])
            db.run("SELECT accum.register_repost(%s, 'doc:1', %s::jsonb)", name, movements)
    db.run(f"CREATE DATABASE {target}")
    try:
        with psycopg.connect(db.server.dsn(target), autocommit=True) as other:
            restore(db, target, tmp_path / "dump")
            for name in ("plain", "busy", "sales"):
                movement = json.dumps({"recorder": "doc:2", "period": "2026-04-19", "item": 1, "n": 10})
                other.execute("SELECT accum.register_post(%s, %s::jsonb)", [name, movement])
                assert other.execute(f"SELECT accum.{name}_turnover()").fetchall() == [({"n": 15},)]
                audit = f"SELECT n, audit_operation FROM accum.{name}_movements_audit"
                assert other.execute(audit.encode()).fetchall() == [(1, "repost")]
                assert other.execute("SELECT accum.register_unpost(%s, 'doc:1')", [name]).fetchone() == (1,)
                checks = other.execute("SELECT DISTINCT status FROM accum.register_verify(%s)", [name]).fetchall()
                assert checks == [("OK",)]
            assert other.execute("SELECT accum.plain_balance(), accum.busy_balance()").fetchone() == (
                {"n": 10},
                {"n": 10},
            )
            other.execute("SELECT accum.register_create_partitions('plain', 5)")
            other.execute("SELECT accum.register_alter('plain', add_resources := '{\"m\": \"int\"}')")
            other.execute("SELECT accum.register_drop(name, true) FROM accum.register_list()")
    finally:
        db.run(f"DROP DATABASE {target} WITH (FORCE)")
