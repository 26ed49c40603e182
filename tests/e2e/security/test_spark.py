"""Spark reads a mirror that the engine fills with its own rights; nobody gets more out of it than he may read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, Headwater


@pytest.mark.long
def test_forged_plan_reads_nothing_on_spark(tmp_path: Path) -> None:
    server = Headwater(tmp_path / "data", "--spark", "sail").start()
    database = Database(server, "postgres")
    try:
        forge(database)
    finally:
        database.close()
        server.stop()


def forge(db: Database) -> None:
    db.run(
        "CREATE TABLE secret (id int PRIMARY KEY, v int); INSERT INTO secret VALUES (1, 41);"
        "CREATE ROLE alice LOGIN PASSWORD 'secret'; GRANT CREATE ON SCHEMA public TO alice"
    )
    alice = db.connect(user="alice", password="secret")
    alice.execute("CREATE TABLE mine (id int PRIMARY KEY, v int); INSERT INTO mine VALUES (1, 5)")
    alice.execute(
        "SELECT pgtrickle.create_stream_table('st', 'SELECT id, v FROM mine',"
        " refresh_mode => 'FULL', engine => 'spark')"
    )
    assert db.history("st")[-1]["executor"] == "spark"
    state = db.state("st")
    oid = db.value("SELECT 'secret'::regclass::oid::bigint")
    for name, error in (("secret", psycopg.errors.InsufficientPrivilege), ("mine", psycopg.errors.FeatureNotSupported)):
        explain: dict[str, Any] = json.loads(json.dumps(state["explain"]))
        explain["inputs"]["sources"][0] |= {"oid": oid, "name": name}
        forged = {"explain": explain, "canonical_query": state["canonical_query"].replace("mine", name)}
        alice.execute("SELECT pgtrickle._set_state(%s, %s)", [state["pgt_id"], json.dumps(forged)])
        alice.execute("UPDATE mine SET v = v + 1")
        with pytest.raises(error):
            alice.execute("SELECT pgtrickle.refresh_stream_table('st')")
        assert alice.execute("SELECT v FROM st").fetchall() == [(5,)]
