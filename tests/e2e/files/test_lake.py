"""Lake tables: foreign tables over Parquet, Delta, CSV and JSON files, which refreshes of stream tables read."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from psycopg import errors

from tests.e2e.conftest import Database, Headwater, drop_role
from tests.e2e.files.lakes import lake_database

LONG_AGO = 1_700_000_000
Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module", params=["sail", pytest.param("local[2]", marks=pytest.mark.long)])
def spark_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Headwater]:
    server = Headwater(tmp_path_factory.mktemp("lake") / "data", "--spark", request.param).start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def db(spark_server: Headwater, tmp_path: Path) -> Iterator[Database]:
    with lake_database(spark_server, tmp_path) as database:
        yield database


def polling(db: Database, value: str) -> None:
    db.run(f"ALTER DATABASE postgres SET pg_trickle.foreign_table_polling = {value}")
    db.run(f"SET pg_trickle.foreign_table_polling = {value}")


def foreign_table(db: Database, columns: str, path: str, format: str, more: str = "") -> None:
    db.run(f"CREATE FOREIGN TABLE events ({columns}) SERVER lake OPTIONS (path '{path}', format '{format}'{more})")


def parquet(path: Path, ids: list[Any], kinds: list[Any], *, at: int = LONG_AGO) -> None:
    pq.write_table(pa.table({"kind": kinds, "id": pa.array(ids, pa.int64()), "other": ids}), path)
    os.utime(path, (at, at))


def refreshed(db: Database, name: str) -> tuple[str, Rows]:
    db.refresh(name)
    return db.last(name)[0], db.rows(f"SELECT kind, n, total FROM {name} ORDER BY kind")


SUMS = "SELECT kind, count(*) AS n, sum(id) AS total FROM events GROUP BY kind"


@pytest.mark.parametrize("value", ["on", "off"])
def test_parquet_files_that_come_change_and_go(db: Database, tmp_path: Path, value: str) -> None:
    polling(db, value)
    expected = "DIFFERENTIAL" if value == "on" else "FULL"
    (tmp_path / "in").mkdir()
    parquet(tmp_path / "in" / "1.parquet", [1, 2, 2, None], ["a", "b", "b", None])
    foreign_table(db, "id int, kind text", "in/*.parquet", "parquet")
    db.create("sums", SUMS)
    db.create("everything", "SELECT * FROM events", refresh_mode="FULL")
    assert db.rows("SELECT id, kind FROM everything ORDER BY 1") == [(1, "a"), (2, "b"), (2, "b"), (None, None)]
    assert refreshed(db, "sums") == ("NO_DATA", [("a", 1, 1), ("b", 2, 4), (None, 1, None)])
    parquet(tmp_path / "in" / "2.parquet", [3, 2], ["a", "b"])
    assert refreshed(db, "sums") == (expected, [("a", 2, 4), ("b", 3, 6), (None, 1, None)])
    parquet(tmp_path / "in" / "1.parquet", [2], ["b"], at=LONG_AGO + 1)
    assert refreshed(db, "sums") == (expected, [("a", 1, 3), ("b", 2, 4)])
    (tmp_path / "in" / "2.parquet").unlink()
    assert refreshed(db, "sums") == (expected, [("b", 1, 2)])
    db.refresh("everything")
    assert db.rows("SELECT id, kind FROM everything") == [(2, "b")]


def test_poll_in_a_transaction_that_is_prepared(db: Database, tmp_path: Path) -> None:
    polling(db, "on")
    parquet(tmp_path / "1.parquet", [1], ["a"])
    foreign_table(db, "id int, kind text", "*.parquet", "parquet")
    other = db.connect()
    other.execute("SET pg_trickle.foreign_table_polling = on")
    with other.transaction():
        other.execute(f"SELECT pgtrickle.create_stream_table('sums', '{SUMS}')".encode())
    parquet(tmp_path / "2.parquet", [2, 3], ["a", "b"])
    for statement in ("BEGIN", "SELECT pgtrickle.refresh_stream_table('sums')", "PREPARE TRANSACTION 'polled'"):
        other.execute(statement.encode())
    db.run("COMMIT PREPARED 'polled'")
    assert db.rows("SELECT kind, n, total FROM sums ORDER BY kind") == [("a", 2, 3), ("b", 1, 3)]
    assert refreshed(db, "sums")[0] == "NO_DATA"
    staged = "SELECT count(*) FROM pg_class WHERE relnamespace = 'pgtrickle_staging'::regnamespace"
    assert db.value(staged) == 0


def test_files_that_have_not_changed_are_not_read(db: Database, tmp_path: Path) -> None:
    polling(db, "on")
    parquet(tmp_path / "1.parquet", [1], ["a"])
    foreign_table(db, "id int, kind text", "1.parquet", "parquet")
    db.create("sums", SUMS)
    size = (tmp_path / "1.parquet").stat().st_size
    (tmp_path / "1.parquet").write_bytes(b"x" * size)
    os.utime(tmp_path / "1.parquet", (LONG_AGO, LONG_AGO))
    assert refreshed(db, "sums")[0] == "NO_DATA"
    os.utime(tmp_path / "1.parquet", (LONG_AGO, LONG_AGO + 1))
    with pytest.raises(psycopg.Error, match=r"1\.parquet"):
        db.refresh("sums")


def test_delta_tables_are_read_at_their_current_version(db: Database, tmp_path: Path) -> None:
    polling(db, "on")
    path = str(tmp_path / "events")
    write_deltalake(path, pa.table({"id": [1, 2], "kind": ["a", "b"]}), partition_by=["kind"])
    foreign_table(db, "id int, kind text", "events", "delta")
    db.create("sums", SUMS)
    write_deltalake(path, pa.table({"id": [3], "kind": ["a"]}), mode="append")
    assert refreshed(db, "sums") == ("DIFFERENTIAL", [("a", 2, 4), ("b", 1, 2)])
    DeltaTable(path).delete("id = 1")
    assert refreshed(db, "sums") == ("DIFFERENTIAL", [("a", 1, 3), ("b", 1, 2)])
    write_deltalake(path, pa.table({"id": [7], "kind": pa.array([None], pa.string())}), mode="overwrite")
    assert refreshed(db, "sums") == ("DIFFERENTIAL", [(None, 1, 7)])
    assert refreshed(db, "sums")[0] == "NO_DATA"


def test_csv_and_json_values_are_those_of_postgresql(db: Database, tmp_path: Path) -> None:
    polling(db, "on")
    (tmp_path / "a.csv").write_text('kind,id,unused\n"x, ""y""",1,z\n,2,\n"",3,q\n')
    foreign_table(db, "id int, kind text", "*.csv", "csv")
    db.create("everything", "SELECT * FROM events")
    assert db.rows("SELECT id, kind FROM everything ORDER BY id") == [(1, 'x, "y"'), (2, None), (3, "")]
    db.run("DROP FOREIGN TABLE events")
    db.run("SELECT pgtrickle.drop_stream_table('everything')")
    (tmp_path / "b.csv").write_text(f"1;{'a' * 200_000}\n2;b\n")
    foreign_table(db, "id int, kind text", "b.csv", "csv", ", header 'false', delimiter ';'")
    db.create("everything", "SELECT * FROM events")
    assert db.rows("SELECT id, kind FROM everything ORDER BY id") == [(1, "a" * 200_000), (2, "b")]
    db.run("DROP FOREIGN TABLE events")
    db.run("SELECT pgtrickle.drop_stream_table('everything')")
    (tmp_path / "c.json").write_text('{"id": 1, "tags": ["a", null], "price": 1.10, "doc": {"x": [1]}}\n{"id": null}\n')
    foreign_table(db, "id int, price numeric, tags text[], doc jsonb", "c.json", "json")
    db.create("everything", "SELECT id, price::text AS price, tags, doc FROM events")
    assert db.rows("SELECT id, price, tags, doc FROM everything ORDER BY id") == [
        (1, "1.10", ["a", None], {"x": [1]}),
        (None, None, None, None),
    ]


@pytest.mark.parametrize(
    ("text", "error", "message", "detail"),
    [
        ("id,kind\n1,a\n2\n", errors.BadCopyFileFormat, "Row #3", "file "),
        ("id,kind\n1,a\n\n", errors.BadCopyFileFormat, "empty line", "row 3 of file "),
        ("id,kind\n1,a\n2,b\0c\n", errors.CharacterNotInRepertoire, "0x00", 'row 3 of file ".*", column "kind"'),
        ("id,kind,id\n1,a,2\n", errors.AmbiguousColumn, 'several columns "id"', "file "),
    ],
)
def test_records_that_are_none_are_refused(
    db: Database, tmp_path: Path, text: str, error: type[psycopg.Error], message: str, detail: str
) -> None:
    (tmp_path / "a.csv").write_text(text)
    foreign_table(db, "id int, kind text", "a.csv", "csv")
    with pytest.raises(error, match=message) as raised:
        db.create("everything", "SELECT * FROM events")
    assert re.match(detail, raised.value.diag.message_detail or "")
    assert f"{tmp_path}/a.csv" in (raised.value.diag.message_detail or "")


@pytest.mark.parametrize(
    ("columns", "error", "detail"),
    [
        ("id int, kind int", errors.InvalidTextRepresentation, 'row 3 of file ".*/a.csv", column "kind"'),
        ("id int, kind varchar(2)", errors.StringDataRightTruncation, 'row 3 of file ".*/a.csv", column "kind"'),
        ("id int, missing int", errors.UndefinedColumn, 'file ".*/a.csv"'),
    ],
)
def test_errors_name_file_row_and_column(
    db: Database, tmp_path: Path, columns: str, error: type[psycopg.Error], detail: str
) -> None:
    (tmp_path / "a.csv").write_text("id,kind\n1,1\n2,two\n")
    foreign_table(db, columns, "a.csv", "csv")
    with pytest.raises(error) as raised:
        db.create("everything", "SELECT * FROM events")
    assert re.search(detail, raised.value.diag.message_detail or "")


def test_no_row_is_named_of_a_parquet_file_whose_order_is_not_known(
    db: Database, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pq.write_table(pa.table({"id": ["1", "2", "three"]}), tmp_path / "1.parquet", row_group_size=1)
    foreign_table(db, "id int", "1.parquet", "parquet")
    with pytest.raises(errors.InvalidTextRepresentation) as raised:
        db.create("everything", "SELECT * FROM events")
    where = f'file "file://{tmp_path}/1.parquet", column "id"'
    known = request.node.callspec.params["spark_server"] != "sail"
    assert raised.value.diag.message_detail == (f"row 3 of {where}" if known else where)


def test_file_that_is_not_what_it_is_called_is_named_with_what_spark_says(db: Database, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no Parquet")
    foreign_table(db, "id int", "a.parquet", "parquet")
    db.run("CREATE TABLE loaded (id int)")
    try:
        for statement in (
            "SELECT pgtrickle.create_stream_table('everything', 'SELECT * FROM events')",
            f"COPY loaded FROM 'file://{tmp_path}/a.parquet'",
        ):
            with pytest.raises(errors.ExternalRoutineException) as raised:
                db.run(statement)
            assert raised.value.diag.message_primary == f'Spark could not read file "file://{tmp_path}/a.parquet"'
            assert "arquet" in (raised.value.diag.message_detail or "").split("Spark job failed:")[1]
    finally:
        db.run("DROP TABLE loaded")


@pytest.mark.parametrize(
    ("path", "format"),
    [("../x.csv", "csv"), ("/etc/passwd", "csv"), ("file:///etc/passwd", "csv"), ("x", "orc"), ("", "csv")],
)
def test_options_that_are_wrong_are_refused(db: Database, path: str, format: str) -> None:
    foreign_table(db, "id int", path, format)
    with pytest.raises(errors.InvalidParameterValue):
        db.create("everything", "SELECT * FROM events")


def test_links_do_not_lead_out_of_the_location(db: Database, tmp_path: Path) -> None:
    (tmp_path / "a.csv").symlink_to("/etc/passwd")
    foreign_table(db, "id text", "a.csv", "csv", ", header 'false', delimiter ':'")
    with pytest.raises(errors.InsufficientPrivilege, match="not below"):
        db.create("everything", "SELECT * FROM events")


def test_postgresql_decides_who_may(db: Database, tmp_path: Path) -> None:
    parquet(tmp_path / "1.parquet", [1], ["a"])
    foreign_table(db, "id int, kind text", "1.parquet", "parquet")
    db.run("CREATE ROLE fisher LOGIN PASSWORD 'secret'")
    db.run("GRANT CREATE ON SCHEMA public TO fisher")
    try:
        with psycopg.connect(db.server.dsn(user="fisher", password="secret"), autocommit=True) as fisher:
            for statement in (
                "CREATE SERVER mine FOREIGN DATA WRAPPER headwater_lake OPTIONS (location 'file:///')",
                "CREATE FOREIGN TABLE mine (id int) SERVER lake OPTIONS (path 'x', format 'csv')",
                "SELECT pgtrickle.create_stream_table('fished', 'SELECT * FROM events')",
            ):
                with pytest.raises(errors.InsufficientPrivilege):
                    fisher.execute(statement)
            db.run("GRANT SELECT ON events TO fisher")
            fisher.execute("SELECT pgtrickle.create_stream_table('fished', 'SELECT * FROM events')")
            assert fisher.execute("SELECT id, kind FROM fished").fetchall() == [(1, "a")]
    finally:
        drop_role(db.connection, "fisher")


def test_lake_tables_are_computed_on_either_executor(db: Database, tmp_path: Path) -> None:
    polling(db, "on")
    parquet(tmp_path / "1.parquet", [1, 2, 2], ["a", "b", "b"])
    foreign_table(db, "id int, kind text", "*.parquet", "parquet")
    db.run("CREATE TABLE kinds (kind text, title text)")
    try:
        db.run("INSERT INTO kinds VALUES ('a', 'A'), ('b', 'B'), ('b', 'BB')")
        query = "SELECT e.id, k.title FROM events e JOIN kinds k ON k.kind = e.kind"
        db.create("titles", query, engine="spark", initialize=False)
        db.run("ALTER DATABASE postgres SET pg_trickle.enabled = on")
        wait_for(db, "SELECT executor = 'spark' FROM pgtrickle.pgt_refresh_history WHERE status = 'COMPLETED'")
        parquet(tmp_path / "2.parquet", [3], ["b"])
        db.run("DELETE FROM kinds WHERE title = 'B'")
        wait_for(db, "SELECT count(*) = 4 FROM titles")
        assert db.rows("SELECT id, title FROM titles ORDER BY id") == [(1, "A"), (2, "BB"), (2, "BB"), (3, "BB")]
        assert db.rows(
            "SELECT DISTINCT action, executor FROM pgtrickle.pgt_refresh_history"
            " WHERE status = 'COMPLETED' AND action <> 'NO_DATA' ORDER BY action"
        ) == [("DIFFERENTIAL", "spark"), ("FULL", "spark")]
    finally:
        db.run("ALTER DATABASE postgres SET pg_trickle.enabled = off")
        db.run("SELECT pgtrickle.drop_stream_table('titles')")
        db.run("DROP TABLE kinds")


def wait_for(db: Database, condition: str, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while (True,) not in db.rows(condition):
        assert time.monotonic() < deadline, db.rows(
            "SELECT action, status, error_message, executor_reason FROM pgtrickle.pgt_refresh_history"
        )
        time.sleep(0.05)
