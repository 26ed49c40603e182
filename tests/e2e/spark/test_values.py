"""Values on their way to Spark and back, as users see them: those of their own types, infinite ones, and what stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Database, Headwater

SOURCE = """
CREATE SCHEMA "My types";
CREATE TYPE mood AS ENUM ('sad', 'it''s "ok"', 'Happy');
CREATE TYPE "My types"."Size" AS ENUM ('l', 'm', 's');
CREATE DOMAIN cents AS numeric(12,2) CHECK (VALUE > -13);
CREATE DOMAIN short AS cents;
CREATE TABLE people (
    id int PRIMARY KEY, mood mood, size "My types"."Size" NOT NULL, pay short, since date, until timestamptz,
    rate numeric(5,2), cost money);
INSERT INTO people SELECT
    n, (enum_range(NULL::mood))[1 + n % 4], (enum_range(NULL::"My types"."Size"))[1 + n % 3], n / 4.0,
    CASE n % 3 WHEN 0 THEN 'infinity' WHEN 1 THEN '2024-01-31' END::date,
    CASE n % 4 WHEN 0 THEN 'infinity' WHEN 1 THEN '-infinity' WHEN 2 THEN '2024-01-31 10:00+00' END::timestamptz, 1
FROM generate_series(1, 60) AS n;
ALTER DATABASE postgres SET pg_trickle.enabled = off
"""


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    server = Headwater(tmp_path_factory.mktemp("values") / "data", "--spark", "sail").start()
    database = Database(server, "postgres")
    try:
        database.run(SOURCE)
        yield database
    finally:
        database.close()
        server.stop()


QUERIES = {
    "moods": "SELECT mood, count(*) AS people, sum(pay) AS pay FROM people WHERE mood IS DISTINCT FROM 'Happy'"
    " GROUP BY mood",
    "ends": "SELECT size, max(mood) AS most, min(mood) AS least, count(*) FILTER (WHERE mood > 'Happy') AS above"
    " FROM people GROUP BY size",
    "rows": "SELECT id, mood, size, pay, since, until, mood::text || '!' AS words, since + 30 AS later FROM people",
    "pairs": "SELECT a.id, b.id AS other, b.size FROM people a LEFT JOIN people b"
    " ON a.mood = b.mood AND a.size = b.size AND b.pay < 5 AND b.size IN ('m', 's')",
    "codes": "SELECT a.id, b.id AS other FROM people a JOIN people b ON b.id = a.id + 1"
    r" WHERE b.id::text ~ '^\d*[13579]$' AND b.rate IS NULL AND regexp_replace(b.id::text, '[02-9]+', '') <> ''",
    "spans": "SELECT since, max(until) AS last, min(pay) AS least, count(DISTINCT size) AS sizes FROM people"
    " WHERE since > '2024-01-01' OR until = '-infinity' GROUP BY since",
}


def test_enums_domains_and_infinity_on_spark_are_what_they_are_in_postgresql(db: Database) -> None:
    made = {f"{name}_{mode}".lower(): mode for name in QUERIES for mode in ("FULL", "DIFFERENTIAL")}
    for name, mode in made.items():
        db.create(name, QUERIES[name.split("_")[0]], schedule="1h", refresh_mode=mode, engine="spark")
        db.assert_current(name)
    db.create("moods_here", QUERIES["moods"], schedule="1h", engine="postgres")
    for changes in (
        "UPDATE people SET mood = 'sad', since = 'infinity', until = NULL WHERE id % 5 = 0",
        "DELETE FROM people WHERE id < 9; INSERT INTO people VALUES (99, NULL, 'm', NULL, '-infinity', 'infinity')",
        # A label has another name at once, in the rows that are there as well.
        "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'; UPDATE people SET pay = pay + 1 WHERE id % 2 = 0",
    ):
        db.run(changes)
        db.assert_refreshed("moods_here", *made)
        for name in made:
            last = db.history(name)[-1]
            assert (last["status"], last["executor"]) == ("COMPLETED", "spark"), (name, last["executor_reason"])
    for name in ("moods_here", *made):
        db.run("SELECT pgtrickle.drop_stream_table(%s)", name)


def test_not_a_number_beside_one_other_value(db: Database) -> None:
    """Statistics of Parquet leave NaN out: a file must not be taken for all 5, nor for one without what is above 5."""
    db.run("CREATE TABLE readings (id int PRIMARY KEY, at float8, low float4)")
    db.run("INSERT INTO readings SELECT n, 5, 5 FROM generate_series(1, 9) n")
    db.run("UPDATE readings SET at = 'NaN' WHERE id = 3")
    queries = (
        "SELECT id, at, low FROM readings",
        "SELECT id, at FROM readings WHERE at > 5",
    )
    for number, query in enumerate(queries):
        db.create(f"readings_{number}", query, schedule="1h", refresh_mode="FULL", engine="spark")
        db.assert_current(f"readings_{number}")
    db.run("INSERT INTO readings VALUES (10, 'NaN', 'NaN'), (11, 5, 5), (12, '-0', '-Infinity')")
    for number in range(len(queries)):
        db.assert_refreshed(f"readings_{number}")
        last = db.history(f"readings_{number}")[-1]
        assert (last["status"], last["executor"]) == ("COMPLETED", "spark"), last["executor_reason"]
        db.run("SELECT pgtrickle.drop_stream_table(%s)", f"readings_{number}")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT id, 14::numeric::cents AS pay FROM people", "type public.cents"),
        ("SELECT id, cost FROM people", 'type money of column "cost"'),
        ("SELECT id, rate FROM people", ' of table "people"'),
        (
            "WITH RECURSIVE up(id) AS (SELECT id FROM people WHERE id = 1 UNION"
            " SELECT p.id FROM people p JOIN up ON p.id = up.id + 1) SELECT id FROM up",
            "WITH RECURSIVE",
        ),
    ],
)
@pytest.mark.one_in(3)
def test_what_stays_in_postgresql_says_why(db: Database, query: str, reason: str) -> None:
    db.run("UPDATE people SET rate = 'NaN' WHERE id = 20")
    session = db.connect()
    session.execute("SET pg_trickle.spark_min_rows = 0")
    for mode in ("FULL", "DIFFERENTIAL"):
        db.create("stays", query, schedule="1h", refresh_mode=mode)
        db.run("UPDATE people SET pay = pay + 1, mood = NULL, cost = '1', rate = 'NaN' WHERE id BETWEEN 20 AND 25")
        session.execute("SELECT pgtrickle.refresh_stream_table('stays')")
        db.assert_current("stays")
        last = db.history("stays")[-1]
        assert (last["action"], last["executor"]) == (mode, "postgres")
        explained = dict(db.rows("SELECT property, value FROM pgtrickle.explain_st('stays')"))
        assert reason in explained["Last Executor"]
        db.run("SELECT pgtrickle.drop_stream_table('stays')")
