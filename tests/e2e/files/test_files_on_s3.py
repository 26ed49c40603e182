"""COPY from files and lake tables on an object store that speaks the S3 protocol, read by Sail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from psycopg import errors

from tests.e2e.conftest import Database, Headwater
from tests.s3_server import s3_server

BUCKET = "files"


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """An S3 server with a bucket, told to the servers and clients started from here by the environment alone."""
    with s3_server(BUCKET) as s3, s3.in_environment():
        yield s3.url


@pytest.fixture(scope="module")
def db(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    server = Headwater(tmp_path_factory.mktemp("s3") / "data", "--spark", "sail").start()
    try:
        database = Database(server, "postgres")
        database.run("ALTER DATABASE postgres SET pg_trickle.enabled = off")
        yield database
        database.close()
    finally:
        server.stop()


def put(endpoint: str, key: str, body: bytes) -> None:
    boto3.client("s3", endpoint_url=endpoint).put_object(Bucket=BUCKET, Key=key, Body=body)


def parquet(path: Path, ids: list[int]) -> bytes:
    pq.write_table(pa.table({"id": ids, "kind": [f"k{n % 2}" for n in ids]}), path)
    return path.read_bytes()


@pytest.mark.long
def test_copy_from_s3(db: Database, endpoint: str, tmp_path: Path) -> None:
    db.run("CREATE TABLE orders (id int PRIMARY KEY, kind text)")
    put(endpoint, "orders/1.parquet", parquet(tmp_path / "x", [1, 2]))
    put(endpoint, "orders/2.parquet", parquet(tmp_path / "x", [3]))
    assert db.run(f"COPY orders FROM 's3://{BUCKET}/orders/*.parquet'").statusmessage == "COPY 3"
    put(endpoint, "more/a b.csv", b"id,kind\n4,x\n5,\n")
    assert db.run(f"COPY orders FROM 's3://{BUCKET}/more' (FORMAT csv, HEADER)").statusmessage == "COPY 2"
    put(endpoint, "lines.json", b'{"id": 6, "kind": "y"}\n')
    assert db.run(f"COPY orders FROM 's3://{BUCKET}/lines.json'").statusmessage == "COPY 1"
    assert db.rows("SELECT * FROM orders ORDER BY id") == [
        *((1, "k1"), (2, "k0"), (3, "k1"), (4, "x"), (5, None), (6, "y"))
    ]
    with pytest.raises(errors.UniqueViolation) as raised:
        db.run(f"COPY orders FROM 's3://{BUCKET}/lines.json'")
    assert f"s3://{BUCKET}/lines.json" in (raised.value.diag.message_detail or "")
    with pytest.raises(errors.UndefinedFile):
        db.run(f"COPY orders FROM 's3://{BUCKET}/nothing/*.csv'")


def test_lake_tables_on_s3(db: Database, endpoint: str, tmp_path: Path) -> None:
    db.run("ALTER DATABASE postgres SET pg_trickle.foreign_table_polling = on")
    db.run("SET pg_trickle.foreign_table_polling = on")
    db.run(f"CREATE SERVER lake FOREIGN DATA WRAPPER headwater_lake OPTIONS (location 's3://{BUCKET}/lake')")
    put(endpoint, "lake/in/1.parquet", parquet(tmp_path / "x", [1, 2, 3]))
    db.run(
        "CREATE FOREIGN TABLE events (id int, kind text) SERVER lake OPTIONS (path 'in/*.parquet', format 'parquet')"
    )
    db.create("kinds", "SELECT kind, count(*) AS n FROM events GROUP BY kind")
    put(endpoint, "lake/in/2.parquet", parquet(tmp_path / "x", [5]))
    db.refresh("kinds")
    assert db.last("kinds")[0] == "DIFFERENTIAL"
    assert db.rows("SELECT kind, n FROM kinds ORDER BY kind") == [("k0", 1), ("k1", 3)]

    options = {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_S3_ALLOW_UNSAFE_RENAME": "true"}
    uri = f"s3://{BUCKET}/lake/delta"
    write_deltalake(uri, pa.table({"id": [1], "kind": ["a"]}), storage_options=options)
    db.run("CREATE FOREIGN TABLE versions (id int, kind text) SERVER lake OPTIONS (path 'delta', format 'delta')")
    db.create("everything", "SELECT * FROM versions")
    write_deltalake(uri, pa.table({"id": [2], "kind": ["b"]}), mode="append", storage_options=options)
    db.refresh("everything")
    assert (db.last("everything")[0], db.rows("SELECT id, kind FROM everything ORDER BY id")) == (
        "DIFFERENTIAL",
        [(1, "a"), (2, "b")],
    )
