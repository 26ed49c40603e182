"""`headwater export spark`: the project is one that Spark runs, and its tables are the stream tables."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg import sql
from psycopg.types.string import TextLoader

from engine.spark.jvm import find_java
from server.commands.spark_project import LIST
from sql.spark.types import INFINITE_DAYS
from tests.e2e.conftest import Database

PIPELINES = str(Path(sys.executable).with_name("spark-pipelines"))

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE customer (
    id int PRIMARY KEY, name text, tier char(4), feeling mood, born date, seen timestamptz, extra jsonb
);
INSERT INTO customer VALUES
    (1, 'ann', 'gold', 'ok', '1970-02-28', '2024-03-31 02:30:00.123456+02', '{"a": [1, 2]}'),
    (2, 'bob; -- "x" ''y'' \\ ${env:HOME}', 'g', 'sad', 'infinity', '-infinity', NULL),
    (3, NULL, NULL, NULL, NULL, NULL, NULL),
    (4, 'dora', 'gold', 'ok', '0001-01-01', '9999-12-31 23:59:59.999999+00', 'null');
CREATE TABLE "Order Lines" (
    id bigint PRIMARY KEY, customer int, amount numeric(10, 2), rate double precision, at timestamp, free numeric,
    paid boolean
);
INSERT INTO "Order Lines"
SELECT n, 1 + n % 5, nullif(n % 13, 0) * 1.25, CASE n % 4 WHEN 0 THEN 'NaN' WHEN 1 THEN '-infinity' ELSE n / 3.0 END,
       '2024-01-01'::timestamp + n * '1 hour'::interval, n / 7.0, n % 3 = 0 FROM generate_series(1, 200) AS n;
"""

STREAM_TABLES = {
    "totals": """SELECT customer, count(*) AS orders, sum(amount) AS total, avg(amount) AS mean
                 FROM "Order Lines" GROUP BY customer""",
    "big": "SELECT t.customer, t.total * 2 AS twice, t.mean > 8 AS high FROM totals t WHERE t.total > 300",
    "customers": "SELECT id, name, tier, feeling, born, seen, extra FROM customer",
    "marked": "SELECT id FROM customer WHERE name = 'bob; -- \"x\" ''y'' \\ ${env:HOME}'",
    "lines": """SELECT o.id, o.rate, o.at, o.free, o.paid, c.name
                FROM "Order Lines" o LEFT JOIN customer c ON c.id = o.customer""",
    "rows": 'SELECT count(*) AS n FROM "Order Lines"',
    "top": 'SELECT id, amount FROM "Order Lines" ORDER BY id DESC LIMIT 3',
    "latest": """SELECT customer, id, row_number() OVER (PARTITION BY customer ORDER BY id DESC) AS place
                 FROM "Order Lines" """,
    "loud": "SELECT id, normalize(name) AS name FROM customer",
    "after_loud": "SELECT count(*) AS n, max(id) AS most FROM loud",
}


@pytest.fixture
def db(emptied_db: Database) -> Database:
    emptied_db.run(TABLES)
    for name, query in STREAM_TABLES.items():
        emptied_db.run("SELECT pgtrickle.create_stream_table(%s, %s, '1h')", name, query)
    return emptied_db


def export(db: Database, *options: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "server", "export", "spark", "--data", str(db.server.data), "--database", db.name]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("HEADWATER_", "PG"))}
    return subprocess.run([*command, *map(str, options)], capture_output=True, text=True, timeout=300, env=variables)


class Registry:
    """What a pipeline is told of by its Python files."""

    def __init__(self) -> None:
        self.outputs: list[str] = []

    def register_output(self, output: Any) -> None:
        self.outputs.append(output.name)

    def register_flow(self, flow: Any) -> None:
        assert callable(flow.func)


def test_project_has_a_dataset_for_each_stream_table_and_source(db: Database, tmp_path: Path) -> None:
    from pyspark.pipelines.cli import load_pipeline_spec
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context

    done = export(db, "--output", tmp_path / "project")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "not exported: public.loud: function normalize"
    project = tmp_path / "project"
    assert {path.stem for path in project.glob("transformations/*.sql")} == {*STREAM_TABLES} - {"loud"}
    assert "- public.loud: function normalize" in (project / "README.md").read_text()
    spec = load_pipeline_spec(project / "spark-pipeline.yml")
    assert spec.configuration["spark.sql.ansi.enabled"] == "true"
    registry = Registry()
    with graph_element_registration_context(registry):  # type: ignore[arg-type]
        exec((project / "transformations/sources.py").read_text(), {})
    assert registry.outputs == ["customer", "loud", "order_lines"]
    assert "password" not in (project / "spark-pipeline.yml").read_text().lower()
    text = (project / "transformations/big.sql").read_text()
    assert "FROM `totals` AS r" in text
    assert 'schedule "1h"' in text


def test_other_modes_and_schemas_are_exported_and_recursions_are_not(emptied_db: Database, tmp_path: Path) -> None:
    db = emptied_db
    db.run(
        "CREATE SCHEMA sales; CREATE TABLE sales.t (id int PRIMARY KEY, up int); CREATE TABLE t (id int PRIMARY KEY)"
    )
    db.create("sales.now", "SELECT id FROM sales.t WHERE up > 1", refresh_mode="IMMEDIATE")
    db.create("whole", "SELECT t.id FROM t JOIN sales.t s ON s.id = t.id", refresh_mode="FULL")
    db.create("drawn", "SELECT id FROM t WHERE random() < 0.5", refresh_mode="FULL")
    db.create(
        "deep", "WITH RECURSIVE r AS (SELECT id FROM t UNION SELECT r.id + 1 FROM r WHERE r.id < 9) SELECT id FROM r"
    )
    done = export(db, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "not exported: public.deep: WITH RECURSIVE",
        "not exported: public.drawn: function random",
    ]
    texts = {path.stem: path.read_text() for path in tmp_path.glob("transformations/*.sql")}
    assert {*texts} == {"whole", "sales_now"}
    assert "FROM `sales_t` AS" in texts["sales_now"]
    assert "refresh mode IMMEDIATE" in texts["sales_now"]
    assert "`t` AS" in texts["whole"]


def test_circles_are_not_exported_and_those_below_read_them_in_postgresql(emptied_db: Database, tmp_path: Path) -> None:
    db = emptied_db
    db.run("CREATE TABLE edges (id int PRIMARY KEY, src int NOT NULL, dst int NOT NULL)")
    db.create("a", "SELECT DISTINCT src, dst FROM edges")
    db.create("b", "SELECT src, dst FROM a")
    db.create("below", "SELECT src, dst FROM b WHERE src <> dst")
    db.run("SET pg_trickle.allow_circular = on")
    closing = "SELECT src, dst FROM edges UNION SELECT b.src, e.dst FROM b JOIN edges e ON e.src = b.dst"
    db.run("SELECT pgtrickle.alter_stream_table('a', query => %s)", closing)
    done = export(db, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    reason = "it and others read each other, and a pipeline has no circles"
    assert done.stderr.splitlines() == [f"not exported: public.{name}: {reason}" for name in "ab"]
    assert [path.stem for path in tmp_path.glob("transformations/*.sql")] == ["below"]
    assert '\\"public\\".\\"b\\"' in (tmp_path / "transformations/sources.py").read_text()


def test_directory_that_is_not_empty_is_written_into_only_if_told_so(db: Database, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.txt").write_text("kept")
    refused = export(db, "--output", project)
    assert refused.returncode == 1
    assert "is not empty" in refused.stderr
    assert [path.name for path in project.iterdir()] == ["mine.txt"]
    assert export(db, "--output", project, "--force").returncode == 0
    db.run("SELECT pgtrickle.drop_stream_table('marked')")
    assert export(db, "--output", project, "--force").returncode == 0
    assert not (project / "transformations/marked.sql").exists()
    assert (project / "transformations/big.sql").exists()
    assert (project / "mine.txt").read_text() == "kept"
    assert "transformations/marked.sql" not in json.loads((project / LIST).read_text())


def test_database_without_stream_tables_is_an_error(shared_db: Database, tmp_path: Path) -> None:
    refused = export(shared_db, "--output", tmp_path / "project")
    assert refused.returncode == 1
    assert "has no stream tables" in refused.stderr
    assert not (tmp_path / "project").exists()
    refused = export(shared_db, "--output", tmp_path / "project", "--database", "nowhere")
    assert refused.returncode == 1
    assert 'database "nowhere" does not exist\nhint: Name another one by --database.' in refused.stderr


@pytest.mark.long
@pytest.mark.timeout(600)
def test_tables_of_the_pipeline_are_the_stream_tables(db: Database, tmp_path: Path) -> None:
    java = find_java(os.environ)
    if not java.has_vector_module:
        pytest.skip("spark-pipelines needs a Java with jdk.incubator.vector")
    project = tmp_path / "project"
    assert export(db, "--output", project).returncode == 0
    environment = {**os.environ, "JAVA_HOME": str(java.binary.parent.parent), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYSPARK_PYTHON"] = sys.executable
    options = []
    if driver := os.environ.get("HEADWATER_TEST_JDBC"):
        options = ["--driver-class-path", driver]
        environment |= jdbc(db)
    else:
        read_from_files(db, project, tmp_path)
    for step in ("dry-run", "run"):
        done = subprocess.run(
            [PIPELINES, *options, step], cwd=project, env=environment, capture_output=True, text=True, timeout=280
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    for name in {*STREAM_TABLES} - {"loud"}:
        assert stored(project / "spark-warehouse" / name) == expected(db, name), name


def jdbc(db: Database) -> dict[str, str]:
    """Where the pipeline finds the database, through the server."""
    login = psycopg.conninfo.conninfo_to_dict(db.server.dsn(db.name))
    url = f"jdbc:postgresql://{login['host']}:{login['port']}/{db.name}"
    return {
        "HEADWATER_JDBC_URL": url,
        "HEADWATER_JDBC_USER": str(login["user"]),
        "HEADWATER_JDBC_PASSWORD": str(login["password"]),
    }


def read_from_files(db: Database, project: Path, folder: Path) -> None:
    """Put the rows of all sources into files, as JDBC would give them, and have the project read these."""
    sources = project / "transformations" / "sources.py"
    text = sources.read_text()
    connection = db.connect(options="-c TimeZone=UTC")
    queries = [json.loads(found) for found in re.findall(r"return rows\(\n +(\".*\")\n", text)]
    assert len(queries) == 3
    for query in queries:
        cursor = connection.execute(query)
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        columns = dict(zip(names, map(list, zip(*cursor.fetchall(), strict=True)), strict=True))
        pq.write_table(pa.table(columns), folder / f"{hashlib.sha256(query.encode()).hexdigest()}.parquet")
    reader = (
        "def rows(query):\n    import hashlib\n    name = hashlib.sha256(query.encode()).hexdigest()\n"
        f"    return SparkSession.active().read.parquet('{folder}/' + name + '.parquet')\n\n\ndef by_jdbc(query):"
    )
    sources.write_text(text.replace("def rows(query):", reader))


def stored(folder: Path) -> list[tuple[str, ...]]:
    """The rows of a table of Spark's."""
    table = pq.read_table(sorted(folder.glob("*.parquet")))
    columns = [[*shown(column)] for column in table.columns]
    return sorted(zip(*columns, strict=True))


def shown(column: pa.ChunkedArray) -> Iterator[str]:
    moments = pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)
    if not moments:
        yield from (plain(value) for value in column.to_pylist())
        return
    days = pa.types.is_date(column.type)
    zone = "" if days or column.type.tz is None else "+00"
    unit = 1 if days else 86_400_000_000
    for number in column.cast(pa.int32() if days else pa.int64()).to_pylist():
        if number is not None and abs(number) == INFINITE_DAYS * unit:
            yield "infinity" if number > 0 else "-infinity"
        elif number is None:
            yield "None"
        else:
            value = pa.scalar(number, pa.int32() if days else pa.int64()).cast(
                pa.date32() if days else pa.timestamp("us")
            )
            found: date | datetime = value.as_py()
            yield str(found) + zone


def plain(value: Any) -> str:
    return str(value.normalize()) if isinstance(value, Decimal) else str(value)


def expected(db: Database, name: str) -> list[tuple[str, ...]]:
    """The rows of a stream table."""
    connection = db.connect(options="-c TimeZone=UTC")
    for type_ in ("date", "timestamp", "timestamptz", "jsonb"):
        connection.adapters.register_loader(type_, TextLoader)
    columns = [
        column
        for (column,) in db.rows(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
            " AND attname NOT LIKE '\\_\\_pgt\\_%%' ORDER BY attnum",
            f"public.{name}",
        )
    ]
    # Spark keeps char(n) without its blanks, and a numeric without a scale as its text.
    kept = {"tier": "tier::text", "free": "free::text"}
    items = sql.SQL(", ").join(sql.SQL(kept[c]) if c in kept else sql.Identifier(c) for c in columns)  # type: ignore[arg-type]
    rows = connection.execute(sql.SQL("SELECT {} FROM {}").format(items, sql.Identifier(name))).fetchall()
    return sorted(tuple(map(plain, row)) for row in rows)
