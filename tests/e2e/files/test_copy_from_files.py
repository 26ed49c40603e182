"""COPY table FROM 'file://…': Parquet, CSV and JSON files, loaded by PostgreSQL's COPY."""

from __future__ import annotations

import datetime
import decimal
import gzip
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from psycopg import conninfo, errors

from tests.e2e.conftest import Database, Headwater

Rows = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def sail_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Headwater]:
    server = Headwater(tmp_path_factory.mktemp("files") / "data", "--spark", "sail").start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def db(sail_server: Headwater) -> Iterator[Database]:
    database = Database(sail_server, "postgres")
    try:
        database.run("DROP TABLE IF EXISTS orders CASCADE")
        database.run(
            "CREATE TABLE orders (id int PRIMARY KEY, name text, amount numeric(10,2), at timestamptz,"
            " tags text[], extra jsonb, raw bytea, note text DEFAULT 'none')"
        )
        yield database
    finally:
        database.close()


def uri(path: Path) -> str:
    return f"file://{path}"


def test_parquet_goes_by_names(db: Database, tmp_path: Path) -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
    text = "tab\there\nand \\ there"
    table = pa.table(
        {
            "raw": [b"\x00\\", None, b""],
            "id": [1, 2, 3],
            "amount": pa.array([decimal.Decimal("1.10"), None, decimal.Decimal("-3.00")], pa.decimal128(10, 2)),
            "name": [text, "", None],
            "at": pa.array([at, None, at], pa.timestamp("us", "UTC")),
            "tags": [["a", 'b "c"', None], [], None],
            "extra": [{"x": 1, "y": "z"}, None, {"x": 2, "y": None}],
        }
    )
    pq.write_table(table, tmp_path / "orders.parquet")
    done = db.run(f"COPY orders FROM '{uri(tmp_path / 'orders.parquet')}'")
    assert done.statusmessage == "COPY 3"
    assert db.rows("SELECT id, name, amount, at, tags, extra, raw, note FROM orders ORDER BY id") == [
        (1, text, decimal.Decimal("1.10"), at, ["a", 'b "c"', None], {"x": 1, "y": "z"}, b"\x00\\", "none"),
        (2, "", None, None, [], None, None, "none"),
        (3, None, decimal.Decimal("-3.00"), at, None, {"x": 2, "y": None}, b"", "none"),
    ]  # fmt: skip


def test_csv_means_what_it_means_to_postgresql(db: Database, tmp_path: Path) -> None:
    text = 'id;name;amount\n1;"a; ""b""";1.5\n2;"";\n3;;0\n4;"two\nlines";7\n'
    (tmp_path / "orders.csv").write_text(text)
    source = uri(tmp_path / "orders.csv")
    done = db.run(f"COPY orders (id, name, amount) FROM '{source}' WITH (FORMAT csv, HEADER match, DELIMITER ';')")
    assert done.statusmessage == "COPY 4"
    with db.run("SELECT 1").connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE expected (LIKE orders INCLUDING DEFAULTS)")
        copy = "COPY expected (id, name, amount) FROM STDIN WITH (FORMAT csv, HEADER match, DELIMITER ';')"
        with cursor.copy(copy) as stdin:
            stdin.write(text)
    assert db.rows("TABLE orders EXCEPT ALL TABLE expected") == []
    assert db.value("SELECT count(*) FROM orders") == 4


def test_json_keeps_numbers_to_the_letter(db: Database, tmp_path: Path) -> None:
    (tmp_path / "orders.json").write_text(
        '{"id": 1, "extra": {"big": 12345678901234567890.10}, "tags": ["x", null], "name": "\\u00e9\\n"}\n'
        '{"id": 2, "amount": 1.10, "extra": [1, 2]}\n'
    )
    done = db.run(f"COPY orders FROM '{uri(tmp_path / 'orders.json')}'")
    assert done.statusmessage == "COPY 2"
    assert db.rows("SELECT id, name, amount::text, extra::text, tags FROM orders ORDER BY id") == [
        (1, "é\n", None, '{"big": 12345678901234567890.10}', ["x", None]),
        (2, None, "1.10", "[1, 2]", None),
    ]


def test_directory_and_pattern_name_many_files(db: Database, tmp_path: Path) -> None:
    for day in (1, 2):
        folder = tmp_path / f"day={day}"
        folder.mkdir()
        (folder / "part-0.csv").write_text(f"id,name\n{day},of day {day}\n")
        (folder / "_SUCCESS").write_text("not data")
    copy = "COPY orders (id, name) FROM '{}' WITH (FORMAT csv, HEADER)"
    assert db.run(copy.format(uri(tmp_path))).statusmessage == "COPY 2"
    db.run("TRUNCATE orders")
    assert db.run(copy.format(uri(tmp_path) + "/day=[1]/*.csv")).statusmessage == "COPY 1"
    (tmp_path / "1.csv").write_text("3\tin tabs\n")
    copy = "COPY orders (id, name) FROM '{}' WITH (DELIMITER E'\\t')"
    assert db.run(copy.format(uri(tmp_path) + "/?.csv")).statusmessage == "COPY 1"
    assert db.rows("SELECT name FROM orders WHERE id = 3") == [("in tabs",)]


@pytest.mark.parametrize(
    ("name", "text", "error", "row"),
    [
        ("bad.csv", "1,a\n2,b,c\n", errors.BadCopyFileFormat, "row 2 of file"),
        ("bad.csv", "1,a\nx,b\n", errors.InvalidTextRepresentation, 'row 2 of file "{}", column "id"'),
        ("bad.json", '{"id": 1}\n{"id": \n', errors.BadCopyFileFormat, "row 2 of file"),
        ("bad.json", '{"id": 1}\n{"id": "x"}\n', errors.InvalidTextRepresentation, 'row 2 of file "{}", column "id"'),
        ("bad.json", '{"id": 1}\n{"other": 1}\n', errors.UndefinedColumn, "row 2 of file"),
        ("bad.json", '{"id": 1}\n{"id": 1}\n', errors.UniqueViolation, "row 2 of file"),
    ],
)
def test_error_names_file_and_row_and_nothing_is_loaded(
    db: Database, tmp_path: Path, name: str, text: str, error: type[psycopg.Error], row: str
) -> None:
    (tmp_path / name).write_text(text)
    columns = " (id, name)" if name.endswith("csv") else ""
    with pytest.raises(error) as raised:
        db.run(f"COPY orders{columns} FROM '{uri(tmp_path / name)}'")
    assert row.format(uri(tmp_path / name)) in (raised.value.diag.message_detail or "")
    assert str(tmp_path / name) in (raised.value.diag.message_detail or "")
    assert db.value("SELECT count(*) FROM orders") == 0


def test_lines_of_a_large_file_come_in_its_order(db: Database, tmp_path: Path) -> None:
    """Spark reads what is over 10 MB in parts beside each other: records of two lines must not be torn."""
    records = [f'{number},"{"x" * 40}\n{number}"\n' for number in range(250_000)]
    (tmp_path / "large.csv").write_text("id,name\n" + "".join(records))
    copy = f"COPY orders (id, name) FROM '{uri(tmp_path / 'large.csv')}' (HEADER match)"
    assert db.run(copy).statusmessage == "COPY 250000"
    assert db.value("SELECT count(*) FROM orders WHERE name LIKE 'x%' AND name LIKE E'%\\n' || id") == 250_000
    db.run("TRUNCATE orders")
    (tmp_path / "large.csv").write_text("id,name\n" + "".join(records) + "none,\n")
    with pytest.raises(errors.InvalidTextRepresentation) as raised:
        db.run(copy)
    assert "row 500002 of file" in (raised.value.diag.message_detail or "")


@pytest.mark.parametrize(
    ("name", "content"),
    [("bad.csv", b"1,one\n2,tw\xff\n"), ("bad.json", b'{"id": 1}\n{"id": 2, "name": "tw\xff"}\n')],
)
def test_what_is_not_utf_8_is_refused(db: Database, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    columns = " (id, name)" if name.endswith("csv") else ""
    with pytest.raises(errors.CharacterNotInRepertoire, match=r'for encoding "UTF8": 0xff') as raised:
        db.run(f"COPY orders{columns} FROM '{uri(tmp_path / name)}'")
    assert f'row 2 of file "{uri(tmp_path / name)}"' in (raised.value.diag.message_detail or "")


def test_a_compressed_file_that_was_cut_off_is_refused(db: Database, tmp_path: Path) -> None:
    whole = gzip.compress(b"1,one\n2,two\n")
    path = tmp_path / "orders.csv.gz"
    path.write_bytes(whole)
    copy = f"COPY orders (id, name) FROM '{uri(path)}' (FORMAT csv)"
    assert db.run(copy).statusmessage == "COPY 2"
    path.write_bytes(whole[:-12])
    with pytest.raises(errors.IoError, match=f'could not read file "{uri(path)}"'):
        db.run(copy)


@pytest.mark.parametrize("groups", [1, 100])
def test_rows_of_parquet_are_counted_in_the_files_order(db: Database, tmp_path: Path, groups: int) -> None:
    """Sail gives row groups in an order of its own."""
    ids = [str(number) for number in range(1000)]
    ids[456] = "none"
    rows = pa.table({"id": ids, "name": ["x"] * len(ids)})
    pq.write_table(rows, tmp_path / "x.parquet", row_group_size=len(ids) // groups)
    with pytest.raises(errors.InvalidTextRepresentation) as raised:
        db.run(f"COPY orders FROM '{uri(tmp_path / 'x.parquet')}'")
    assert raised.value.diag.message_detail == f'row 457 of file "{uri(tmp_path / "x.parquet")}", column "id"'


def test_not_a_number_is_not_taken_for_the_only_other_value(db: Database, tmp_path: Path) -> None:
    """Statistics of Parquet leave NaN out; Sail takes a column whose bounds are equal for a constant."""
    pq.write_table(pa.table({"id": [1, 2, 3], "extra": [math.nan, 5.0, math.inf]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"id": [4, 5], "extra": [math.nan, 5.0]}), tmp_path / "2.parquet")
    db.run("DROP TABLE orders; CREATE TABLE orders (id int, extra float8)")
    assert db.run(f"COPY orders FROM '{uri(tmp_path)}/*.parquet'").statusmessage == "COPY 5"
    assert db.rows("SELECT id, extra::text FROM orders ORDER BY id") == [
        (1, "NaN"),
        (2, "5"),
        (3, "Infinity"),
        (4, "NaN"),
        (5, "5"),
    ]


def test_load_is_part_of_its_transaction_and_reaches_stream_tables(db: Database, tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("1,a\n2,b\n")
    db.create("named", "SELECT count(*) AS n FROM orders", refresh_mode="DIFFERENTIAL")
    copy = f"COPY orders (id, name) FROM '{uri(tmp_path / 'orders.csv')}'"
    with psycopg.connect(db.server.dsn(), autocommit=False) as connection:
        assert connection.execute(copy).statusmessage == "COPY 2"
        connection.rollback()
        assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
        results = connection.execute(f"{copy}; SELECT count(*) FROM orders", prepare=False)
        results.nextset()
        assert results.fetchone() == (2,)
    db.refresh("named")
    assert db.rows("SELECT n FROM named") == [(2,)]


async def test_extended_protocol_describes_no_result(db: Database, tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("1,a\n2,b\n")
    login = conninfo.conninfo_to_dict(db.server.dsn())
    connection = await asyncpg.connect(database=login.pop("dbname"), **login)
    try:
        statement = await connection.prepare(f"COPY orders (id, name) FROM '{uri(tmp_path / 'orders.csv')}'")
        assert statement.get_attributes() == ()
        await statement.fetch()
        assert statement.get_statusmsg() == "COPY 2"
        await connection.execute("TRUNCATE orders")
        await statement.fetch()
        assert await connection.fetchval("SELECT count(*) FROM orders") == 2
    finally:
        await connection.close()


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("COPY orders FROM 'file:///nowhere/x.csv'", errors.UndefinedFile),
        ("COPY nothing FROM '{}'", errors.UndefinedTable),
        ("COPY orders FROM '{}' (FORMAT orc)", errors.InvalidParameterValue),
        ("COPY orders FROM '{}' (FORMAT parquet, HEADER)", errors.FeatureNotSupported),
        ("COPY orders FROM '{}' (ON_ERROR ignore)", errors.FeatureNotSupported),
        ("COPY orders FROM '{}' (FORCE_NULL (id))", errors.FeatureNotSupported),
        ("COPY orders FROM '{}' WHERE id > 1", errors.FeatureNotSupported),
        ("COPY orders FROM '{}' (FORMAT parquet)", errors.ExternalRoutineException),
        ("COPY orders FROM 'file:///tmp/unknown'", errors.InvalidParameterValue),
        ("COPY orders FROM 'ftp://host/x.csv'", errors.UndefinedFile),
    ],
)
def test_what_cannot_be_loaded_is_refused(
    db: Database, tmp_path: Path, statement: str, error: type[psycopg.Error]
) -> None:
    (tmp_path / "x.csv").write_text("1\n")
    with pytest.raises(error):
        db.run(statement.format(uri(tmp_path / "x.csv")))


def test_files_are_read_only_for_whom_postgresql_lets_read_them(db: Database, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1\n")
    db.run("CREATE TABLE guarded (id int PRIMARY KEY)")
    db.run("DROP ROLE IF EXISTS loader")
    db.run("CREATE ROLE loader LOGIN PASSWORD 'secret'")
    copy = f"COPY guarded (id) FROM '{uri(tmp_path / 'x.csv')}'"
    with psycopg.connect(db.server.dsn(user="loader", password="secret"), autocommit=True) as connection:
        with pytest.raises(errors.InsufficientPrivilege, match="permission denied to COPY from a file"):
            connection.execute(copy)
        db.run("GRANT pg_read_server_files TO loader")
        with pytest.raises(errors.InsufficientPrivilege, match="guarded"):
            connection.execute(copy)
        db.run("GRANT INSERT ON guarded TO loader")
        assert connection.execute(copy).statusmessage == "COPY 1"
    db.run("TRUNCATE guarded")
    # A definer's rights to files are not lent out by requests made in its name.
    db.run(
        "CREATE FUNCTION lend(statement text) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS"
        " $$BEGIN PERFORM pgtrickle._request_copy(statement); END$$"
    )
    db.run("REVOKE pg_read_server_files FROM loader")
    with (
        psycopg.connect(db.server.dsn(user="loader", password="secret")) as connection,
        pytest.raises(errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT lend(%s)", [copy])
    assert db.value("SELECT count(*) FROM guarded") == 0
    db.run("DROP FUNCTION lend")
    db.run("DROP TABLE guarded")
    db.run("DROP OWNED BY loader")
    db.run("DROP ROLE loader")
