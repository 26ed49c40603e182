"""`pgtrickle.publish(…, 'iceberg', …)`: a stream table as an Iceberg table, read by Iceberg's library and by Sail."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable

from tests.e2e.conftest import Database, Headwater
from tests.e2e.publish.test_publish import (
    VALUES,
    assert_values_of_all_types,
    publish,
    publish_all_types,
    rows_in,
    status,
    totals,
    wait_published,
)
from tests.e2e.publish.test_publishing_faults import killed_while_publishing, prepare
from tests.s3_server import s3_server

Eventually = Callable[..., Any]

__all__ = ["totals"]


@pytest.fixture
def db(emptied_db: Database) -> Database:
    emptied_db.connection.prepare_threshold = None  # tables change under the same statement
    return emptied_db


def table_at(place: Any, **properties: str) -> StaticTable:
    """What a reader finds by the path."""
    return StaticTable.from_metadata(str(place), properties)


def rows_of(table: StaticTable, snapshot: int | None = None) -> Counter[tuple[Any, ...]]:
    """The rows of a snapshot, the newest one by default, without the hidden column."""
    found = table.scan(snapshot_id=snapshot).to_arrow()
    names = [name for name in found.column_names if not name.startswith("__pgt_")]
    return Counter(tuple(row[name] for name in names) for row in found.select(names).to_pylist())


def said(table: StaticTable) -> list[dict[str, Any]]:
    """What the commits of the publication say, the first one first."""
    return [json.loads(str(each.summary and each.summary["headwater"])) for each in table.snapshots()]


def test_each_refresh_is_a_snapshot_and_readers_see_it(
    totals: Database, tmp_path: Path, eventually: Eventually
) -> None:
    place = tmp_path / "lake" / "totals"
    publish(totals, "totals", place, "Iceberg")
    wait_published(totals, eventually, place)
    states = [rows_in(totals, "totals")]
    for change in (
        "INSERT INTO orders VALUES (1001, 'new', 5, now())",
        "UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0",
        "DELETE FROM orders WHERE region = 'r1'",
        "INSERT INTO orders SELECT i, NULL, NULL, NULL FROM generate_series(2000, 2010) i",
        "DELETE FROM orders",
        "INSERT INTO orders VALUES (1, 'again', 0.5, 'epoch')",
    ):
        totals.run(change)
        totals.refresh("totals")
        wait_published(totals, eventually, place)
        assert rows_of(table_at(place)) == rows_in(totals, "totals")
        states.append(rows_in(totals, "totals"))
    table = table_at(place)
    assert [rows_of(table, each.snapshot_id) for each in table.snapshots()] == states
    (again,) = table.scan(row_filter=EqualTo("region", "again")).to_arrow().to_pylist()
    assert again["n"] == 1
    assert [commit["number"] for commit in said(table)] == list(range(1, 8))
    assert said(table)[-1]["frontier"]["snapshot"] == totals.state("totals")["frontier"]["snapshot"]
    assert totals.rows("SELECT format, state FROM pgtrickle.pgt_publications") == [("iceberg", "ACTIVE")]


READ_BY_SAIL = """
import json, os, sys
from pysail.spark import SparkConnectServer
from pyspark.sql.connect.session import SparkSession

server = SparkConnectServer()
server.start(background=True)
_, port = server.listening_address
spark = SparkSession.builder.remote(f"sc://localhost:{port}").getOrCreate()
rows = spark.read.format("iceberg").load(sys.argv[1]).select("region", "n").collect()
print(json.dumps([list(row) for row in rows]), flush=True)
os._exit(0)
"""


def test_spark_reads_it_by_its_path(totals: Database, tmp_path: Path, eventually: Eventually) -> None:
    place = tmp_path / "totals"
    publish(totals, "totals", place, "iceberg")
    wait_published(totals, eventually, place)
    totals.run("DELETE FROM orders WHERE region = 'r1'")
    totals.refresh("totals")
    wait_published(totals, eventually, place)
    read = subprocess.run([sys.executable, "-c", READ_BY_SAIL, place], stdout=subprocess.PIPE, check=True, timeout=120)
    expected = totals.rows("SELECT region, n FROM totals ORDER BY region")
    assert sorted(tuple(row) for row in json.loads(read.stdout)) == expected


def test_types_and_values(db: Database, tmp_path: Path, eventually: Eventually) -> None:
    place = tmp_path / "many"
    publish_all_types(db, place, eventually, "iceberg")
    table = table_at(place)
    in_iceberg = {"short": "int", "decimal(38,3)": "decimal(38, 3)", "timestamp": "timestamptz"}
    found = [str(table.schema().find_type(f"c{n}")) for n in range(len(VALUES))]
    expected = [in_iceberg.get(type_, type_).replace("timestamp_ntz", "timestamp") for type_, _ in VALUES.values()]
    assert found == expected
    assert_values_of_all_types(db, table.scan().to_arrow().to_pylist())


def test_another_query_begins_the_history_anew(totals: Database, tmp_path: Path, eventually: Eventually) -> None:
    place = tmp_path / "totals"
    publish(totals, "totals", place, "iceberg")
    wait_published(totals, eventually, place)
    totals.run("SELECT pgtrickle.alter_stream_table('totals', query => 'SELECT region AS r, id FROM orders')")
    totals.refresh("totals")
    eventually(lambda: [field.name for field in table_at(place).schema().fields][:2] == ["r", "id"])
    wait_published(totals, eventually, place)
    assert rows_of(table_at(place)) == rows_in(totals, "totals")
    assert len(table_at(place).snapshots()) == 1


def test_metadata_that_somebody_removes_is_written_again(
    totals: Database, tmp_path: Path, eventually: Eventually
) -> None:
    place = tmp_path / "totals"
    publish(totals, "totals", place, "iceberg")
    wait_published(totals, eventually, place)
    shutil.rmtree(place / "metadata")
    totals.run("DELETE FROM orders WHERE region = 'r1'")
    totals.refresh("totals")
    wait_published(totals, eventually, place)
    assert rows_of(table_at(place)) == rows_in(totals, "totals")


def test_a_place_that_cannot_be_written_to_is_told_and_tried_again(
    totals: Database, tmp_path: Path, eventually: Eventually
) -> None:
    """The Delta table below has the commit, the Iceberg table not yet."""
    place = tmp_path / "totals"
    publish(totals, "totals", place, "iceberg")
    wait_published(totals, eventually, place)
    before = rows_of(table_at(place))
    shutil.move(place / "metadata", tmp_path / "aside")
    (place / "metadata").write_text("in the way")
    totals.run("DELETE FROM orders WHERE region = 'r1'")
    totals.refresh("totals")
    eventually(lambda: status(totals, place)[0] == "ERROR")
    assert "could not write to the location" in status(totals, place)[3]
    (place / "metadata").unlink()
    shutil.move(tmp_path / "aside", place / "metadata")
    wait_published(totals, eventually, place)
    table = table_at(place)
    assert [rows_of(table, each.snapshot_id) for each in table.snapshots()] == [before, rows_in(totals, "totals")]


@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.long)])
def test_nothing_is_lost_or_repeated_when_the_server_is_killed(
    own_server: Headwater, tmp_path: Path, eventually: Eventually, rounds: int
) -> None:
    """Snapshots are states that refreshes have left, in their order; the last one is there."""
    place = tmp_path / "totals"
    db, states = killed_while_publishing(own_server, place, eventually, rounds, "iceberg")
    wait_published(db, eventually, place)
    table = table_at(place)
    numbers = [states.index(rows_of(table, each.snapshot_id)) for each in table.snapshots()]
    assert numbers == sorted(set(numbers)) and numbers[-1] == len(states) - 1
    db.close()


@pytest.mark.long
def test_on_s3(tmp_path_factory: pytest.TempPathFactory, eventually: Eventually) -> None:
    with s3_server("lake") as s3, s3.in_environment():
        reader = {"s3.endpoint": s3.url, "s3.access-key-id": "test", "s3.secret-access-key": "test"}
        server = Headwater(tmp_path_factory.mktemp("iceberg") / "data")
        try:
            db = Database(server.start(), "postgres")
            prepare(db)
            place: Any = "s3://lake/totals"
            publish(db, "totals", place, "iceberg")
            wait_published(db, eventually, place)
            for number in range(3):
                db.run("UPDATE orders SET amount = amount + 1 WHERE id = %s", number + 1)
                db.refresh("totals")
                wait_published(db, eventually, place)
                assert rows_of(table_at(place, **reader)) == rows_in(db, "totals")
            assert len(table_at(place, **reader).snapshots()) == 4
            db.close()
        finally:
            server.stop()
