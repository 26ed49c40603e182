"""What readers of a published Delta table get: DuckDB, which reads it as an Arrow dataset, and pandas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from tests.e2e.conftest import Database
from tests.e2e.publish.test_publish import VALUES, as_written, publish, wait_published

Eventually = Callable[..., Any]

IN_DUCKDB = {
    "short": "SMALLINT",
    "long": "BIGINT",
    "float": "FLOAT",
    "decimal(38,3)": "DECIMAL(38,3)",
    "string": "VARCHAR",
    "timestamp_ntz": "TIMESTAMP",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
}
"""Delta's types that have another name in DuckDB."""

COLUMNS = [f"c{number}" for number in range(len(VALUES))]


@pytest.fixture
def db(emptied_db: Database) -> Database:
    emptied_db.connection.prepare_threshold = None  # tables change under the same statement
    return emptied_db


@pytest.fixture
def place(db: Database, tmp_path: Path, eventually: Eventually) -> Path:
    """A Delta table of all types, with rows that were added, changed, removed, that repeat, and are NULL throughout."""
    db.run(f"CREATE TABLE many ({', '.join(f'c{n} {type_}' for n, type_ in enumerate(VALUES))})")
    db.run("INSERT INTO many VALUES (NULL), (NULL)")
    db.create("published", "TABLE many")
    place = tmp_path / "lake"
    publish(db, "published", place)
    wait_published(db, eventually, place)
    for number in range(4):
        values = ", ".join(found[number % len(found)] for _, found in VALUES.values())
        db.run(f"INSERT INTO many VALUES ({values}), ({values})")
        db.refresh("published")
        wait_published(db, eventually, place)
    db.run("DELETE FROM many WHERE ctid = (SELECT min(ctid) FROM many)")
    db.run("UPDATE many SET c3 = 2.5, c5 = c5 / 2 WHERE ctid = (SELECT max(ctid) FROM many)")
    db.refresh("published")
    wait_published(db, eventually, place)
    return place


def in_postgresql(db: Database) -> Counter[tuple[str | None, ...]]:
    """The rows of the stream table, as PostgreSQL writes their values; `char(n)` is read without its padding."""
    db.run("SET TimeZone = 'UTC'")
    shown = ", ".join(f"rtrim({name}::text)" for name in COLUMNS)
    return Counter(db.rows(f"SELECT {shown} FROM published"))


def written(rows: list[tuple[Any, ...]]) -> Counter[tuple[str | None, ...]]:
    """The same of rows that a reader has."""
    return Counter(tuple(as_written(*each) for each in zip(VALUES, row, strict=True)) for row in rows)


def test_duckdb_reads_all_types_as_they_are(db: Database, place: Path) -> None:
    with duckdb.connect() as reader:
        reader.execute("SET TimeZone = 'UTC'")
        reader.register("published", DeltaTable(place).to_pyarrow_dataset())
        types = dict(reader.execute("SELECT column_name, column_type FROM (DESCRIBE published)").fetchall())
        assert [types[name] for name in COLUMNS] == [
            IN_DUCKDB.get(delta, delta.upper()) for _, (delta, _) in zip(COLUMNS, VALUES.values(), strict=True)
        ]
        rows = reader.execute(f"SELECT {', '.join(COLUMNS)} FROM published").fetchall()
        assert len(rows) == 9
        assert written(rows) == in_postgresql(db)


def test_duckdb_finds_rows_by_their_values(db: Database, place: Path) -> None:
    """Conditions are evaluated by what reads the files, from their statistics."""
    with duckdb.connect() as reader:
        reader.execute("SET TimeZone = 'UTC'")
        reader.register("published", DeltaTable(place).to_pyarrow_dataset())
        for condition in (
            "c0",
            "c0 IS NULL",
            "c2 = 9223372036854775807",
            "c5 > 1000",
            "c5 = 99999999999999999999999999999999999.999",
            "c5 = -0.001 OR c5 = 0",
            "c7 = DATE '0001-01-01'",
            "c8 < TIMESTAMP '1970-01-01 00:00:00'",
            "c9 = TIMESTAMPTZ '2026-03-29 02:30:00.000001+00'",
            "c10 = ''",
            "c10 LIKE 'ä%'",
            "c3 = 2.5",
        ):
            found = "count(*), count(DISTINCT c10), sum(c1), min(c5)::text, max(c5)::text"
            counted = f"SELECT {found} FROM published WHERE {condition}"
            assert reader.execute(counted).fetchall() == db.rows(counted), condition


def test_pandas_has_the_same_rows(db: Database, place: Path) -> None:
    frame = DeltaTable(place).to_pandas(types_mapper=None)
    assert len(frame) == 9
    assert frame["c5"].dropna().map(str).tolist().count("-0.001") == db.value(
        "SELECT count(*) FROM published WHERE c5 = -0.001"
    )
    texts = Counter(None if value is None else value for value in frame["c10"].tolist())
    assert texts == Counter(value for (value,) in db.rows("SELECT c10 FROM published"))
    assert str(frame["c9"].dt.tz) == "UTC"
    found = DeltaTable(place).to_pandas(filters=[("c10", "=", 'a\n,"b')])
    assert len(found) == db.value("SELECT count(*) FROM published WHERE c10 = E'a\\n,\"b'") > 0
