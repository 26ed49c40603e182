"""Programs with dependencies of their own, each in an environment of its own: pgcli and dbt."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from psycopg import conninfo

from tests.clients.packages import environment
from tests.e2e.conftest import Database

pytestmark = pytest.mark.long

MODELS = {
    "staged.sql": "{{ config(materialized='view') }} SELECT id, k, v FROM {{ source('shop', 't') }}",
    "daily.sql": "{{ config(materialized='table') }} SELECT k, sum(v) AS total FROM {{ ref('staged') }} GROUP BY k",
    "newest.sql": (
        "{{ config(materialized='incremental', unique_key='id') }} SELECT id, v FROM {{ ref('staged') }}"
        " {% if is_incremental() %} WHERE id > (SELECT max(id) FROM {{ this }}) {% endif %}"
    ),
    "from_stream_table.sql": "SELECT k, c FROM {{ source('shop', 'st') }} WHERE c > 1",
    "sources.yml": json.dumps(
        {"sources": [{"name": "shop", "schema": "public", "tables": [{"name": "t"}, {"name": "st"}]}]}
    ),
}


@pytest.fixture
def shop(db: Database) -> Database:
    """A table and a stream table over it."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, k int, v int)")
    db.run("INSERT INTO t SELECT i, i % 3, i FROM generate_series(1, 10) AS i")
    db.create("st", "SELECT k, count(*) AS c FROM t GROUP BY k")
    return db


def test_pgcli(shop: Database, request: pytest.FixtureRequest) -> None:
    programs = environment(Path(request.config.cache.mkdir("client-pgcli")), "pgcli==4.*", "psycopg[binary]")
    commands = "\\dt\nSELECT pgtrickle.refresh_stream_table('nowhere');\nSELECT 42 AS answer FROM st LIMIT 1;\n"
    done = subprocess.run(
        [str(programs / "pgcli"), shop.server.dsn(shop.name), "--less-chatty"],
        input=commands,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "TERM": "dumb", "PAGER": "cat", "PROMPT_TOOLKIT_NO_CPR": "1"},
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    assert all(text in shown for text in ("public", "answer", "42", "nowhere")), shown


def test_dbt(shop: Database, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Views, tables, incremental models and their tests, from tables and stream tables, twice."""
    programs = environment(Path(request.config.cache.mkdir("client-dbt")), "dbt-core==1.10.*", "dbt-postgres==1.9.*")
    options = conninfo.conninfo_to_dict(shop.server.dsn(shop.name))
    target = {
        **{"type": "postgres", "schema": "marts", "threads": 2, "dbname": shop.name},
        **{key: options[key] for key in ("host", "user", "password")},
        "port": int(str(options["port"])),
    }
    (tmp_path / "profiles.yml").write_text(json.dumps({"shop": {"target": "it", "outputs": {"it": target}}}))
    project = {"name": "shop", "version": "1.0", "profile": "shop", "model-paths": ["models"]}
    (tmp_path / "dbt_project.yml").write_text(json.dumps(project))
    (tmp_path / "models").mkdir()
    for name, text in MODELS.items():
        (tmp_path / "models" / name).write_text(text)

    def run() -> None:
        command = [str(programs / "dbt"), "run", "--profiles-dir", str(tmp_path), "--no-use-colors"]
        environment = {**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "PASS=4 WARN=0 ERROR=0" in done.stdout, done.stdout

    run()
    assert shop.rows("SELECT k, total FROM marts.daily ORDER BY k") == [(0, 18), (1, 22), (2, 15)]
    shop.run("INSERT INTO t VALUES (11, 2, 11)")
    shop.refresh("st")
    run()
    assert shop.rows("SELECT k, total FROM marts.daily ORDER BY k") == [(0, 18), (1, 22), (2, 26)]
    assert shop.value("SELECT count(*) FROM marts.newest") == 11
    assert shop.rows("SELECT k, c FROM marts.from_stream_table ORDER BY k") == [(0, 3), (1, 4), (2, 4)]
    # A stream table over a model is kept current, too, as long as dbt does not replace the model's table.
    shop.create("per_model", "SELECT count(*) AS c FROM marts.newest")
    shop.run("INSERT INTO t VALUES (12, 0, 12)")
    run()
    shop.assert_refreshed("per_model")
