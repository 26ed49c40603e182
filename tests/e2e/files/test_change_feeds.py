"""Change data feeds of Delta tables: polls read what has changed, or the whole table where a feed has gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from psycopg import errors

from tests.e2e.conftest import Database, Headwater
from tests.e2e.files.lakes import lake_database

FEED = {"delta.enableChangeDataFeed": "true"}

COLUMNS = "id bigint, kind text, day date, at timestamptz, amount numeric(12,2), share float8, yes boolean, raw bytea"


@pytest.fixture(scope="module")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Headwater]:
    server = Headwater(tmp_path_factory.mktemp("feeds") / "data", "--spark", "sail").start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def db(spark_server: Headwater, tmp_path: Path) -> Iterator[Database]:
    settings = (
        "ALTER DATABASE postgres SET pg_trickle.foreign_table_polling = on",
        "SET pg_trickle.foreign_table_polling = on; SET timezone = 'UTC'",
    )
    with lake_database(spark_server, tmp_path, *settings) as database:
        yield database


def followed(db: Database, columns: str = COLUMNS) -> None:
    """A stream table over the Delta table `events`."""
    db.run(f"CREATE FOREIGN TABLE events ({columns}) SERVER lake OPTIONS (path 'events', format 'delta')")
    db.create("everything", "SELECT * FROM events")


def rows(random: Random, number: int) -> pa.Table:
    """Rows of which some are equal, with NULLs in all columns."""

    def some(value: Callable[[], Any]) -> list[Any]:
        return [None if random.random() < 0.15 else value() for _ in range(number)]

    return pa.table(
        {
            "id": pa.array(some(lambda: random.randrange(12)), pa.int64()),
            "kind": pa.array(some(lambda: random.choice(("a", "b", "it's", 'Ä "x",\n'))), pa.string()),
            "day": pa.array(some(lambda: date(2024, 2, 28) + timedelta(random.randrange(3))), pa.date32()),
            "at": pa.array(
                some(lambda: datetime(2024, 1, 1, tzinfo=UTC) + timedelta(microseconds=random.randrange(3))),
                pa.timestamp("us", "UTC"),
            ),
            "amount": pa.array(some(lambda: Decimal(random.randrange(300)) / 100), pa.decimal128(12, 2)),
            "share": pa.array(some(lambda: random.choice((0.1, -0.0, 1e300, 2.0))), pa.float64()),
            "yes": pa.array(some(lambda: random.random() < 0.5), pa.bool_()),
            "raw": pa.array(some(lambda: random.choice((b"", b"\x00\xff", b"abc"))), pa.binary()),
        }
    )


def _append(path: str, random: Random) -> None:
    write_deltalake(path, rows(random, random.randrange(1, 6)), mode="append")


def _update(path: str, random: Random) -> None:
    DeltaTable(path).update(predicate=f"id % 4 = {random.randrange(4)}", updates={"amount": "amount + 1"})


def _delete(path: str, random: Random) -> None:
    DeltaTable(path).delete(f"id % 7 = {random.randrange(7)} OR id IS NULL AND yes")


def _merge(path: str, random: Random) -> None:
    new = {row["id"]: row for row in rows(random, 6).to_pylist()}
    source = pa.Table.from_pylist(list(new.values()), schema=rows(random, 0).schema)
    merge = DeltaTable(path).merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _overwrite(path: str, random: Random) -> None:
    write_deltalake(path, rows(random, random.randrange(8)), mode="overwrite")


def _optimize(path: str, random: Random) -> None:
    DeltaTable(path).optimize.compact()


def _restore(path: str, random: Random) -> None:
    table = DeltaTable(path)
    if table.version():
        table.restore(max(0, table.version() - random.randrange(1, 4)))


COMMITS = (_append, _append, _append, _update, _update, _delete, _merge, _merge, _overwrite, _optimize, _restore)


def content(path: Path) -> Counter[tuple[Any, ...]]:
    """The rows of a Delta table, as PostgreSQL's client shows them."""
    table = DeltaTable(str(path)).to_pyarrow_table()
    names = [name.split()[0] for name in COLUMNS.split(", ")]
    return Counter(tuple(map(repr, (row[name] for name in names))) for row in table.to_pylist())


def stored(db: Database) -> Counter[tuple[Any, ...]]:
    found = db.rows("SELECT id, kind, day, at, amount, share, yes, raw FROM everything")
    return Counter(tuple(repr(_as_arrow(value)) for value in row) for row in found)


def _as_arrow(value: Any) -> Any:
    if isinstance(value, datetime):
        return pa.scalar(value.astimezone(UTC), pa.timestamp("us", "UTC")).as_py()
    return bytes(value) if isinstance(value, memoryview) else value


def check_random_commits(db: Database, path: Path, seed: int, times: int) -> None:
    random = Random(seed)
    partitions = random.choice(([], ["day"], ["id", "day"]))
    write_deltalake(str(path), rows(random, 12), configuration=FEED, partition_by=partitions or None)
    followed(db)
    assert stored(db) == content(path)
    for turn in range(times):
        done = []
        for _ in range(random.randrange(1, 4)):
            commit = random.choice(COMMITS)
            commit(str(path), random)
            done.append(commit.__name__)
        db.refresh("everything")
        assert stored(db) == content(path), (seed, turn, done)
        assert db.last("everything")[0] in ("DIFFERENTIAL", "NO_DATA", "FULL")


@pytest.mark.parametrize("seed", range(3))
def test_copies_equal_delta_tables_after_random_commits(db: Database, tmp_path: Path, seed: int) -> None:
    check_random_commits(db, tmp_path / "events", seed, 8)
    assert "change feed not followed" not in db.server.log


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 40))
def test_copies_equal_delta_tables_after_many_random_commits(db: Database, tmp_path: Path, seed: int) -> None:
    check_random_commits(db, tmp_path / "events", seed, 25)


def _spoiled(path: Path) -> None:
    """Have all data files be unreadable that the current version has, so that nobody reads them unnoticed."""
    for file in DeltaTable(str(path)).file_uris():
        Path(file.removeprefix("file://")).write_bytes(b"spoiled")


def test_only_what_has_changed_is_read(db: Database, tmp_path: Path) -> None:
    path, random = tmp_path / "events", Random(1)
    write_deltalake(str(path), rows(random, 9), configuration=FEED)
    followed(db)
    expected = content(path)
    _spoiled(path)
    more = rows(random, 4)
    write_deltalake(str(path), more, mode="append")
    db.refresh("everything")
    assert db.last("everything") == ("DIFFERENTIAL", 4, 0, 0)
    assert stored(db).total() == expected.total() + 4


def test_partitions_are_what_they_are_where_the_table_is_compared(db: Database, tmp_path: Path) -> None:
    path = str(tmp_path / "events")

    def put(start: int) -> None:
        kinds = pa.array(["", "x", None, "__HIVE_DEFAULT_PARTITION__", "ä"], pa.string())
        rows = pa.table({"id": list(range(start, start + 5)), "kind": kinds})
        write_deltalake(path, rows, mode="append", partition_by=["kind"], configuration=FEED)

    put(0)
    followed(db, "id bigint, kind text")
    put(5)
    db.refresh("everything")
    assert db.last("everything") == ("DIFFERENTIAL", 5, 0, 0)
    expected = [(n, ["", "x", None, None, "ä"][n % 5] or None) for n in range(10)]
    assert db.rows("SELECT id, kind FROM everything ORDER BY id") == expected
    DeltaTable(path).delete("id IN (0, 1, 2, 3, 5, 6)")
    db.refresh("everything")
    assert db.rows("SELECT id, kind FROM everything ORDER BY id") == [expected[n] for n in (4, 7, 8, 9)]


GAPS: dict[str, Callable[[str], None]] = {
    "feed enabled later": lambda path: DeltaTable(path).alter.set_table_properties(FEED),
    "another schema": lambda path: write_deltalake(
        path, pa.table({"id": [7], "more": ["x"]}), mode="append", schema_mode="merge"
    ),
    "made anew": lambda path: write_deltalake(path, rows(Random(3), 3), mode="overwrite", schema_mode="overwrite"),
    "vacuum": lambda path: (
        DeltaTable(path).vacuum(0, enforce_retention_duration=False, dry_run=False, full=True) and None
    ),
}


@pytest.mark.parametrize("gap", GAPS)
def test_where_a_feed_has_gaps_the_table_is_compared(db: Database, tmp_path: Path, gap: str) -> None:
    path, random = tmp_path / "events", Random(2)
    properties = None if gap == "feed enabled later" else FEED
    write_deltalake(str(path), rows(random, 9), configuration=properties)
    followed(db)
    DeltaTable(str(path)).update(predicate="id > 3", updates={"amount": "7"})
    if gap == "vacuum":
        _delete(str(path), random)
    GAPS[gap](str(path))
    write_deltalake(str(path), rows(random, 2), mode="append", schema_mode="merge")
    db.refresh("everything")
    assert stored(db) == content(path)
    _delete(str(path), random)
    write_deltalake(str(path), rows(random, 3), mode="append", schema_mode="merge")
    db.refresh("everything")
    assert stored(db) == content(path)


def test_feed_that_does_not_agree_with_the_copy_is_undone(db: Database, tmp_path: Path) -> None:
    path, random = tmp_path / "events", Random(6)
    write_deltalake(str(path), rows(random, 9), configuration=FEED)
    followed(db)
    copy = db.value("SELECT copy_name FROM pgtrickle.pgt_polls")
    db.run(f"DELETE FROM pgtrickle_changes.{copy} WHERE ctid = (SELECT min(ctid) FROM pgtrickle_changes.{copy})")
    DeltaTable(str(path)).update(updates={"amount": "7"})
    db.refresh("everything")
    assert stored(db) == content(path)
    assert "rows are deleted that are not there" in db.server.log


def test_value_that_is_not_taken_is_told_with_its_file(db: Database, tmp_path: Path) -> None:
    path = str(tmp_path / "events")
    write_deltalake(path, pa.table({"id": [1, 2]}), configuration=FEED)
    followed(db, "id smallint")
    write_deltalake(path, pa.table({"id": [3, 70000]}), mode="append")
    with pytest.raises(errors.NumericValueOutOfRange) as raised:
        db.refresh("everything")
    assert 'column "id"' in (raised.value.diag.message_detail or "")
    DeltaTable(path).delete("id > 3")
    db.refresh("everything")
    assert db.rows("SELECT id FROM everything ORDER BY id") == [(1,), (2,), (3,)]


def test_another_history_of_the_same_table_is_noticed(db: Database, tmp_path: Path) -> None:
    """A directory that was put back to an older version goes on with commits of the same numbers."""
    path, random = tmp_path / "events", Random(4)
    write_deltalake(str(path), rows(random, 5), configuration=FEED)
    for _ in range(2):
        _append(str(path), random)
    followed(db)
    for version in (1, 2):
        (path / "_delta_log" / f"{version:020}.json").unlink()
    for _ in range(4):
        _append(str(path), random)
    db.refresh("everything")
    assert stored(db) == content(path)


def test_paths_in_the_log_do_not_lead_out_of_the_location(db: Database, tmp_path: Path) -> None:
    path, random = tmp_path / "lake" / "events", Random(5)
    db.run(f"ALTER SERVER lake OPTIONS (SET location 'file://{tmp_path}/lake')")
    write_deltalake(str(path), rows(random, 5), configuration=FEED)
    followed(db)
    write_deltalake(str(tmp_path / "secret"), rows(random, 3))
    (secret,) = DeltaTable(str(tmp_path / "secret")).file_uris()
    DeltaTable(str(path)).update(updates={"amount": "7"})
    version = DeltaTable(str(path)).version()
    log = path / "_delta_log" / f"{version:020}.json"
    outside = (
        f'{{"cdc":{{"path":"../../secret/{Path(secret).name}","size":1,"partitionValues":{{}},"dataChange":false}}}}'
    )
    log.write_text(log.read_text() + "\n" + outside + "\n")
    db.refresh("everything")
    assert stored(db) == content(path)
    assert "a file that is not below the location" in db.server.log
