"""`pgtrickle.publish`: a stream table as a Delta table, read as others read it."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from psycopg import errors, sql

from tests.e2e.conftest import Database

Eventually = Callable[..., Any]

STATUS = "SELECT state, version, unpublished_refreshes, last_error FROM pgtrickle.pgt_publications WHERE location = %s"


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    emptied_db.connection.prepare_threshold = None  # tables change under the same statement
    return emptied_db


def rows_of(path: Path, version: int | None = None) -> Counter[tuple[Any, ...]]:
    """What a reader finds in a Delta table, without the hidden column."""
    table = DeltaTable(path, version=version).to_pyarrow_table()
    names = [name for name in table.column_names if not name.startswith("__pgt_")]
    return Counter(tuple(row[name] for name in names) for row in table.select(names).to_pylist())


def rows_in(db: Database, name: str) -> Counter[tuple[Any, ...]]:
    """What is in the stream table itself."""
    cursor = db.run(sql.SQL("SELECT * FROM {}").format(sql.Identifier(name)).as_string())
    shown = [place for place, column in enumerate(cursor.description or ()) if not column.name.startswith("__pgt_")]
    return Counter(tuple(row[place] for place in shown) for row in cursor.fetchall())


def status(db: Database, place: Path) -> tuple[Any, ...]:
    (row,) = db.rows(STATUS, str(place))
    return row


def wait_published(db: Database, eventually: Eventually, place: Path) -> int:
    """Wait until all refreshes are published; the Delta table's version."""
    eventually(lambda: status(db, place)[0] == "ACTIVE" and status(db, place)[2] == 0)
    return int(status(db, place)[1])


def commits(path: Path) -> list[dict[str, Any]]:
    """What the commits of the publication say, the last one first."""
    return [json.loads(commit["headwater"]) for commit in DeltaTable(path).history() if "headwater" in commit]


@pytest.fixture
def totals(db: Database) -> Database:
    """A stream table of totals by region."""
    db.run("CREATE TABLE orders (id int PRIMARY KEY, region text, amount numeric(10, 2), at timestamptz)")
    db.run("INSERT INTO orders SELECT i, 'r' || i % 7, i * 1.25, '2026-01-01Z' FROM generate_series(1, 100) i")
    db.create(
        "totals",
        "SELECT region, count(*) AS n, sum(amount)::numeric(20, 2) AS total, max(at) AS last FROM orders"
        " GROUP BY region",
    )
    return db


def publish(db: Database, name: str, place: Path, format_: str = "delta") -> None:
    db.run("SELECT pgtrickle.publish(%s, %s, %s)", name, format_, str(place))


def test_each_refresh_is_a_commit_and_readers_see_it(totals: Database, tmp_path: Path, eventually: Eventually) -> None:
    place = tmp_path / "lake" / "totals"
    publish(totals, "totals", place)
    assert wait_published(totals, eventually, place) == 0
    assert rows_of(place) == rows_in(totals, "totals")
    past = [rows_of(place)]
    for number, change in enumerate(
        [
            "INSERT INTO orders VALUES (1001, 'new', 5, now())",
            "UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0",
            "DELETE FROM orders WHERE region = 'r1'",
            "UPDATE orders SET region = 'r2' WHERE region = 'r3'",
            "INSERT INTO orders SELECT i, NULL, NULL, NULL FROM generate_series(2000, 2010) i",
            "DELETE FROM orders",
            "INSERT INTO orders VALUES (1, 'again', 0.5, 'epoch')",
        ],
        1,
    ):
        totals.run(change)
        totals.refresh("totals")
        assert wait_published(totals, eventually, place) == number
        assert rows_of(place) == rows_in(totals, "totals")
        past.append(rows_of(place))
    assert [rows_of(place, version) for version in range(len(past))] == past
    said = commits(place)
    assert [commit["number"] for commit in said] == list(range(8, 0, -1))
    assert said[0]["stream_table"] == "public.totals"
    assert said[0]["frontier"]["snapshot"] == totals.state("totals")["frontier"]["snapshot"]
    query = QueryBuilder().register("t", DeltaTable(place)).execute("SELECT region, n FROM t").read_all()
    assert len(query) == 1
    assert DeltaTable(place).to_pandas()["region"].tolist() == ["again"]


def test_rows_that_repeat_are_published_as_often(db: Database, tmp_path: Path, eventually: Eventually) -> None:
    db.run("CREATE TABLE words (word text)")
    db.run("INSERT INTO words VALUES ('a'), ('a'), ('b'), (NULL), (NULL)")
    db.create("Shouted Words".replace(" ", "_"), 'SELECT upper(word) AS "Word" FROM words')
    place = tmp_path / "words"
    publish(db, "Shouted_Words".lower(), place)
    for change in (
        "INSERT INTO words VALUES ('a'), ('b'), ('c')",
        "DELETE FROM words WHERE ctid = (SELECT min(ctid) FROM words WHERE word = 'a')",
        "DELETE FROM words WHERE word IS NULL",
        "UPDATE words SET word = 'a'",
    ):
        db.run(change)
        db.refresh("shouted_words")
        wait_published(db, eventually, place)
        assert rows_of(place) == rows_in(db, "shouted_words")


VALUES: dict[str, tuple[str, list[str]]] = {
    "boolean": ("boolean", ["true", "false"]),
    "smallint": ("short", ["-32768", "32767"]),
    "bigint": ("long", ["-9223372036854775808", "9223372036854775807"]),
    "real": ("float", ["'NaN'", "'-Infinity'", "1.5"]),
    "double precision": ("double", ["'NaN'", "0.1", "-0.0"]),
    "numeric(38, 3)": ("decimal(38,3)", ["99999999999999999999999999999999999.999", "-0.001"]),
    "numeric": ("string", ["'NaN'", "1.50", "1e30"]),
    "date": ("date", ["'0001-01-01'", "'9999-12-31'"]),
    "timestamp": ("timestamp_ntz", ["'1969-12-31 23:59:59.999999'"]),
    "timestamptz": ("timestamp", ["'2026-03-29 02:30:00.000001+00'"]),
    "text": ("string", ["''", "E'a\\n,\"b'", "'ä€😀'"]),
    "char(4)": ("string", ["'ab'"]),
    "uuid": ("string", ["'00000000-0000-0000-0000-000000000001'"]),
    "jsonb": ("string", ["'{\"a\": [1, null]}'"]),
    "bytea": ("string", ["'\\x00ff'"]),
    "int[]": ("string", ["'{1,NULL,3}'"]),
    "interval": ("string", ["'1 month 2 days'"]),
}


def publish_all_types(db: Database, place: Path, eventually: Eventually, format_: str = "delta") -> None:
    """A stream table with columns of all types, in rows that were added and changed after it was published."""
    columns = ", ".join(f"c{n} {type_}" for n, type_ in enumerate(VALUES))
    db.run(f"CREATE TABLE many (id int PRIMARY KEY, {columns})")
    db.run("INSERT INTO many VALUES (0)")
    db.create("many_published", "TABLE many")
    publish(db, "many_published", place, format_)
    wait_published(db, eventually, place)
    for number in range(1, 4):
        values = ", ".join(found[(number - 1) % len(found)] for _, found in VALUES.values())
        db.run(f"INSERT INTO many VALUES ({number}, {values})")
        db.refresh("many_published")
    db.run("UPDATE many SET c0 = NOT c0 WHERE id = 2")
    db.refresh("many_published")
    wait_published(db, eventually, place)


def assert_values_of_all_types(db: Database, found: list[dict[str, Any]]) -> None:
    """What a reader has found is what is in PostgreSQL."""
    db.run("SET TimeZone = 'UTC'")
    shown = ", ".join(f"rtrim(c{n}::text) AS c{n}" for n in range(len(VALUES)))
    expected = {row[0]: row[1:] for row in db.rows(f"SELECT id, {shown} FROM many")}
    assert {row["id"] for row in found} == expected.keys()
    for row in found:
        for n, (type_, value) in enumerate(zip(VALUES, expected[row["id"]], strict=True)):
            assert as_written(type_, row[f"c{n}"]) == value, type_


def test_types_and_values(db: Database, tmp_path: Path, eventually: Eventually) -> None:
    place = tmp_path / "many"
    publish_all_types(db, place, eventually)
    table = DeltaTable(place)
    found = {field.name: json.loads(field.type.to_json()) for field in table.schema().fields}
    assert [found[f"c{n}"] for n in range(len(VALUES))] == [type_ for type_, _ in VALUES.values()]
    assert_values_of_all_types(db, table.to_pyarrow_table().to_pylist())


def as_written(type_: str, value: Any) -> str | None:
    """A value that was read, as PostgreSQL writes it."""
    if value is None or isinstance(value, str):
        return None if value is None else value
    if type_ == "boolean":
        return str(value).lower()
    if type_ in ("real", "double precision"):
        return {"nan": "NaN", "-inf": "-Infinity", "-0.0": "-0", "0.0": "0"}.get(str(value), str(value))
    if type_ == "timestamptz":
        return value.strftime("%Y-%m-%d %H:%M:%S.%f+00")
    if type_ == "timestamp":
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return f"{value:f}" if type_.startswith("numeric") else str(value)


def test_what_cannot_be_published_is_refused(totals: Database, tmp_path: Path) -> None:
    place = tmp_path / "totals"

    def refused(name: str, format_: str = "delta", location: str | Path = place) -> tuple[str | None, str | None]:
        with pytest.raises(errors.Error) as failure:
            totals.run("SELECT pgtrickle.publish(%s, %s, %s)", name, format_, str(location))
        return failure.value.sqlstate, failure.value.diag.message_primary

    assert refused("totals", "csv") == ("22023", 'invalid format "csv"')
    assert refused("orders") == ("0A000", 'cannot publish "orders", which is not a stream table')
    assert refused("nothing") == ("42P01", 'stream table "nothing" does not exist')
    for location in ("lake/totals", "http://lake/totals", "s3://", "s3://lake/../totals", "file://lake", "/a\nb"):
        assert refused("totals", location=location)[0] == "22023", location
    for location in (totals.server.data / "lake", f"file://{totals.server.data}/x", tmp_path / "link" / "x"):
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(totals.server.data)
        assert refused("totals", location=location)[0] == "42501", location
    place.mkdir()
    (place / "mine.txt").write_text("mine")
    assert refused("totals") == ("55006", f'location "{place}" is not empty')
    totals.create("odd", "SELECT region, 1::money AS price FROM orders")
    said = 'cannot publish stream table "odd": type money of column "price" of "odd"'
    assert refused("odd", location=tmp_path / "odd") == ("0A000", said)
    totals.create("named", 'SELECT id AS "a b" FROM orders')
    assert refused("named", location=tmp_path / "named")[0] == "0A000"
    assert totals.rows("SELECT * FROM pgtrickle.pgt_publications") == []
    assert not (tmp_path / "odd").exists()


def test_a_location_has_one_publication_and_its_end_leaves_the_files(
    totals: Database, tmp_path: Path, eventually: Eventually
) -> None:
    place, other = tmp_path / "one", tmp_path / "other"
    with pytest.raises(errors.UndefinedObject, match=r'stream table "totals" is not published(\n|$)'):
        totals.run("SELECT pgtrickle.unpublish('totals')")
    publish(totals, "totals", place)
    publish(totals, "totals", other)
    wait_published(totals, eventually, place)
    wait_published(totals, eventually, other)
    with pytest.raises(errors.DuplicateObject):
        publish(totals, "totals", place)
    totals.run("SELECT pgtrickle.unpublish('totals', %s)", str(place))
    with pytest.raises(errors.UndefinedObject):
        totals.run("SELECT pgtrickle.unpublish('totals', %s)", str(place))
    with pytest.raises(errors.ObjectInUse):
        publish(totals, "totals", place)
    before = rows_of(place)
    totals.run("DELETE FROM orders WHERE region = 'r1'")
    totals.refresh("totals")
    wait_published(totals, eventually, other)
    assert rows_of(other) == rows_in(totals, "totals")
    assert rows_of(place) == before
    totals.run("SELECT pgtrickle.drop_stream_table('totals')")
    assert totals.rows("SELECT * FROM pgtrickle.pgt_publications") == []
    assert len(rows_of(other)) == 6
    relics = "SELECT (SELECT count(*) FROM pgtrickle.pgt_subscription_servers WHERE server < 0)"
    assert totals.value(relics) == 0


def test_nothing_is_published_by_a_transaction_that_is_rolled_back(
    totals: Database, tmp_path: Path, eventually: Eventually
) -> None:
    place = tmp_path / "totals"
    connection = totals.connect(autocommit=False)
    connection.execute("SELECT pgtrickle.publish('totals', 'delta', %s)", [str(place)])
    connection.rollback()
    assert totals.rows("SELECT * FROM pgtrickle.pgt_publications") == []
    publish(totals, "totals", place)
    wait_published(totals, eventually, place)
    connection.execute("DELETE FROM orders")
    connection.execute("SELECT pgtrickle.refresh_stream_table('totals')")
    connection.rollback()
    # One commit of a transaction that refreshes it twice: nobody has seen the state between.
    connection.execute("DELETE FROM orders WHERE region = 'r2'")
    connection.execute("SELECT pgtrickle.refresh_stream_table('totals')")
    connection.execute("INSERT INTO orders VALUES (7777, 'r2', 1), (7778, 'r8', 1)")
    connection.execute("SELECT pgtrickle.refresh_stream_table('totals')")
    connection.commit()
    assert wait_published(totals, eventually, place) == 1
    assert rows_of(place) == rows_in(totals, "totals")


def test_renames_types_and_another_query_replace_the_contents(
    totals: Database, tmp_path: Path, eventually: Eventually
) -> None:
    place = tmp_path / "totals"
    publish(totals, "totals", place)
    wait_published(totals, eventually, place)
    first = rows_of(place)

    def follows(name: str) -> list[str]:
        totals.run("INSERT INTO orders SELECT max(id) + 1, 'r1', 1 FROM orders")
        totals.refresh(name)
        eventually(lambda: rows_of(place) == rows_in(totals, name) and status(totals, place)[0] == "ACTIVE")
        return [field.name for field in DeltaTable(place).schema().fields if not field.name.startswith("__pgt_")]

    totals.run("ALTER TABLE totals RENAME TO sums")
    assert follows("sums") == ["region", "n", "total", "last"]
    assert commits(place)[0]["stream_table"] == "public.sums"
    alter = "SELECT pgtrickle.alter_stream_table('sums', query => %s)"
    totals.run(alter, "SELECT region AS area, count(*)::int AS n FROM orders GROUP BY 1")
    assert follows("sums") == ["area", "n"]
    assert DeltaTable(place).schema().fields[1].type.type == "integer"
    totals.run(alter, "SELECT region AS area, 1::money AS n FROM orders")
    eventually(lambda: status(totals, place)[0] == "ERROR")
    assert "money" in status(totals, place)[3]
    totals.run(alter, "SELECT region AS area, amount FROM orders")
    assert follows("sums") == ["area", "amount"]
    assert rows_of(place, 0) == first


def test_truncate_of_the_source_and_a_full_refresh(totals: Database, tmp_path: Path, eventually: Eventually) -> None:
    totals.create("full_totals", "SELECT region, count(*) AS n FROM orders GROUP BY region", refresh_mode="FULL")
    places = {"totals": tmp_path / "totals", "full_totals": tmp_path / "full"}
    for name, place in places.items():
        publish(totals, name, place)
        wait_published(totals, eventually, place)
    for change in ("TRUNCATE orders", "INSERT INTO orders VALUES (1, 'r1', 1), (2, 'r2', 2)"):
        totals.run(change)
        for name, place in places.items():
            totals.refresh(name)
            wait_published(totals, eventually, place)
            assert rows_of(place) == rows_in(totals, name)
    assert [len(DeltaTable(place).history()) for place in places.values()] == [3, 3]


def test_immediate_mode(totals: Database, tmp_path: Path, eventually: Eventually) -> None:
    """It has no refreshes: commits have what was committed since."""
    totals.create("immediate", "SELECT region, count(*) AS n FROM orders GROUP BY region", refresh_mode="IMMEDIATE")
    place = tmp_path / "immediate"
    publish(totals, "immediate", place)
    eventually(lambda: status(totals, place)[0] == "ACTIVE")
    for change in (
        "INSERT INTO orders VALUES (1001, 'new', 1)",
        "UPDATE orders SET region = 'r1' WHERE region = 'r2'",
        "DELETE FROM orders WHERE region = 'r4'",
        "TRUNCATE orders",
        "INSERT INTO orders VALUES (1, 'r1', 1)",
    ):
        totals.run(change)
        eventually(lambda: rows_of(place) == rows_in(totals, "immediate"))
    totals.run("SELECT pgtrickle.alter_stream_table('immediate', refresh_mode => 'DIFFERENTIAL')")
    totals.run("INSERT INTO orders VALUES (2, 'r1', 1)")
    totals.refresh("immediate")
    eventually(lambda: rows_of(place) == rows_in(totals, "immediate"))


def test_lag_of_changes_without_a_refresh_and_of_those_that_are_not_kept(
    db: Database, tmp_path: Path, eventually: Eventually
) -> None:
    db.run("CREATE TABLE numbers (n int PRIMARY KEY)")
    db.create("doubled", "SELECT n, 2 * n AS twice FROM numbers", refresh_mode="IMMEDIATE")
    place = tmp_path / "lake"
    publish(db, "doubled", place)
    wait_published(db, eventually, place)

    def waits() -> list[tuple[Any, ...]]:
        return db.rows(
            "SELECT unpublished_refreshes, lag > '0', lag <= clock_timestamp() - published_at"
            " FROM pgtrickle.pgt_publications WHERE location = %s",
            str(place),
        )

    assert waits() == [(0, False, True)]
    place.rename(tmp_path / "away")
    place.write_text("")
    db.run("INSERT INTO numbers VALUES (1)")
    eventually(lambda: status(db, place)[0] == "ERROR")
    assert waits() == [(0, True, True)]
    db.run(
        "SELECT pgtrickle._let_go_of_publication(publication_id) FROM pgtrickle.pgt_published WHERE location = %s",
        str(place),
    )
    assert waits() == [(None, True, True)]
    place.unlink()
    (tmp_path / "away").rename(place)
    eventually(lambda: waits() == [(0, False, True)])
    assert rows_of(place) == rows_in(db, "doubled")


def test_what_delta_cannot_hold_is_told_and_goes_on_when_it_is_gone(
    db: Database, tmp_path: Path, eventually: Eventually
) -> None:
    db.run("CREATE TABLE days (id int PRIMARY KEY, day date, n numeric(5, 2))")
    db.create("published_days", "TABLE days")
    place = tmp_path / "days"
    publish(db, "published_days", place)
    wait_published(db, eventually, place)
    for value, column in (("('infinity', 1)", "day"), ("('2026-01-01', 'NaN')", "n")):
        db.run(f"INSERT INTO days VALUES (1, {value[1:]}")
        db.refresh("published_days")
        eventually(lambda column=column: f'column "{column}"' in (status(db, place)[3] or ""))
        db.run("DELETE FROM days")
        db.refresh("published_days")
        eventually(lambda: status(db, place)[0] == "ACTIVE")
        db.run("INSERT INTO days VALUES (2, '2026-01-01', 1)")
        db.refresh("published_days")
        eventually(lambda: rows_of(place) == rows_in(db, "published_days"))
        db.run("DELETE FROM days")


def test_random_changes_are_published_state_by_state(db: Database, tmp_path: Path, eventually: Eventually) -> None:
    """Of stream tables of all shapes each state that a transaction has left is a version, and nothing else is."""
    chance = random.Random(20261127)
    db.run("CREATE TABLE a (k int PRIMARY KEY, g int, x text); CREATE TABLE b (g int, y text)")
    db.run("INSERT INTO a SELECT i, i % 5, i % 3 FROM generate_series(1, 30) i")
    db.run("INSERT INTO b SELECT i % 6, i % 2 FROM generate_series(1, 12) i")
    queries = {
        "grouped": "SELECT a.g, count(*) AS n, min(x) AS least FROM a GROUP BY a.g",
        "bag": "SELECT x, y FROM a JOIN b USING (g)",
        "outside": "SELECT k, y FROM a LEFT JOIN b ON b.g = a.g AND b.y = '1'",
    }
    for name, query in queries.items():
        db.create(name, query)
        publish(db, name, tmp_path / name)
        wait_published(db, eventually, tmp_path / name)
    changes = [
        "INSERT INTO a SELECT coalesce(max(k), 0) + 1, {n} % 6, {n} % 4 FROM a",
        "UPDATE a SET g = {n} % 6 WHERE k % 7 = {n} % 7",
        "UPDATE a SET x = NULL WHERE k % 5 = {n} % 5",
        "DELETE FROM a WHERE k % 9 = {n} % 9",
        "INSERT INTO b VALUES ({n} % 6, {n} % 3), ({n} % 6, {n} % 3)",
        "DELETE FROM b WHERE ctid IN (SELECT ctid FROM b LIMIT 1)",
        "UPDATE b SET y = {n} % 2",
    ]
    states = {name: [rows_of(tmp_path / name)] for name in queries}
    connection = db.connect(autocommit=False)
    connection.prepare_threshold = None
    for _ in range(25):
        for _ in range(chance.randint(1, 3)):
            for _ in range(chance.randint(1, 3)):
                connection.execute(chance.choice(changes).format(n=chance.randint(0, 100)).encode())
            for name in chance.sample(sorted(queries), chance.randint(0, 3)):
                connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [name])
        if chance.random() < 0.2:
            connection.rollback()
        connection.commit()
        for name in queries:
            now = rows_in(db, name)
            if now != states[name][-1]:
                states[name].append(now)
    for name in queries:
        place = tmp_path / name
        wait_published(db, eventually, place)
        found = [rows_of(place, version) for version in range(DeltaTable(place).version() + 1)]
        assert found == states[name], name
