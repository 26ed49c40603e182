"""IMMEDIATE mode follows a recursion to the depth of pg_trickle.ivm_recursive_max_depth, and is exact up to there."""

from __future__ import annotations

import psycopg
import pytest

from tests.e2e.conftest import Database

ALL = (
    "WITH RECURSIVE r AS (SELECT id, above FROM n WHERE above IS NULL"
    " UNION ALL SELECT n.id, n.above FROM n JOIN r ON n.above = r.id)"
)
QUERIES = {
    "semi-naive, all": f"{ALL} SELECT id, above FROM r",
    "semi-naive, different": "WITH RECURSIVE r(id, d) AS (SELECT id, 0 FROM n WHERE above IS NULL"
    " UNION SELECT n.id, r.d + 1 FROM n JOIN r ON n.above = r.id) SELECT id, d FROM r",
    "computed as a whole": f"{ALL} SELECT count(*) AS n, max(id) AS most FROM r",
    "in terms of several branches": "WITH RECURSIVE r AS ((SELECT id FROM n WHERE above IS NULL) UNION ALL"
    " (SELECT n.id FROM n JOIN r ON n.above = r.id UNION ALL SELECT id FROM n WHERE false))"
    " SELECT count(*) AS n FROM r",
    "with SEARCH": f"{ALL} SEARCH DEPTH FIRST BY id SET place SELECT count(*) AS n FROM r",
    "twice": f"{ALL}, q AS (SELECT id FROM r UNION ALL SELECT n.id FROM n JOIN q ON n.above = q.id AND n.id < 5)"
    " SELECT count(*) AS n FROM q",
}
"""Over a forest of which the rows that have no `above` are the roots."""


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture
def forest(db: Database) -> Database:
    db.run(
        "CREATE TABLE n (id int PRIMARY KEY, above int); INSERT INTO n VALUES (1, NULL), (2, 1), (3, 1), (500, NULL)"
    )
    return db


@pytest.mark.parametrize("what", QUERIES)
@pytest.mark.one_in(2)
def test_a_recursion_is_followed_so_deep_and_no_deeper(forest: Database, what: str) -> None:
    """A chain of just that depth below what is there is exact; a longer one, and a cycle, undo the statement."""
    forest.create("st", QUERIES[what], refresh_mode="IMMEDIATE")
    assert forest.state("st")["refresh_mode"] == "IMMEDIATE"
    writer = forest.bypass()
    for setting, chain in (("7", 5), ("12", 10)):
        writer.execute(f"SET pg_trickle.ivm_recursive_max_depth = {setting}")
        # 1, 2, then the chain: with the root at depth 0 its last row is at depth chain + 1.
        writer.execute(
            f"INSERT INTO n SELECT 100 + i, CASE i WHEN 1 THEN 2 ELSE 99 + i END FROM generate_series(1, {chain}) i"
        )
        forest.assert_current("st")
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match=f"depth of more than {setting}") as refused:
            writer.execute(
                "INSERT INTO n SELECT 200 + i, CASE i WHEN 1 THEN 500 ELSE 199 + i END FROM generate_series(1, 20) i"
            )
        assert "pg_trickle.ivm_recursive_max_depth" in str(refused.value.diag.message_hint)
        forest.assert_current("st")
        writer.execute("DELETE FROM n WHERE id > 100 AND id < 200")
        forest.assert_current("st")
    if what != "semi-naive, different":
        writer.execute("INSERT INTO n VALUES (40, 41), (41, 40)")  # a cycle that nothing leads to
        forest.assert_current("st")
    writer.execute("SET pg_trickle.ivm_recursive_max_depth = 0; SET statement_timeout = '60s'")
    writer.execute(
        "INSERT INTO n SELECT 1000 + i, CASE i WHEN 1 THEN 500 ELSE 999 + i END FROM generate_series(1, 300) i"
    )
    forest.assert_current("st")
    assert forest.state("st")["refresh_mode"] == "IMMEDIATE"


CYCLES = {
    "UNION ALL": "WITH RECURSIVE r AS (SELECT 1 AS id UNION ALL SELECT e.t FROM e JOIN r ON e.f = r.id)"
    " SELECT id FROM r",
    "UNION that counts": "WITH RECURSIVE r AS (SELECT 1 AS id, 0 AS d"
    " UNION SELECT e.t, r.d + 1 FROM e JOIN r ON e.f = r.id) SELECT id, d FROM r",
    "UNION ALL, as a whole": "WITH RECURSIVE r AS (SELECT 1 AS id UNION ALL SELECT e.t FROM e JOIN r ON e.f = r.id)"
    " SELECT sum(id) AS s FROM r",
}


@pytest.mark.parametrize("what", CYCLES)
def test_a_cycle_in_the_data_fails_the_statement_that_makes_it(db: Database, what: str) -> None:
    db.run("CREATE TABLE e (f int, t int); INSERT INTO e VALUES (1, 2), (2, 3), (7, 8)")
    db.create("st", CYCLES[what], refresh_mode="IMMEDIATE")
    writer = db.bypass()
    writer.execute("SET statement_timeout = '60s'")
    for statement in ("INSERT INTO e VALUES (3, 1)", "UPDATE e SET t = 2 WHERE f = 2", "INSERT INTO e VALUES (1, 1)"):
        with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="depth of more than 100"):
            writer.execute(statement)
        db.assert_current("st")
    writer.execute("INSERT INTO e VALUES (3, 4), (8, 7); DELETE FROM e WHERE f = 2")
    db.assert_current("st")


def test_cyclic_data_have_an_end_where_rows_are_told_apart(db: Database) -> None:
    """UNION and CYCLE end by themselves, whatever the cycle."""
    db.run("CREATE TABLE e (f int, t int); INSERT INTO e VALUES (1, 2), (2, 3)")
    union = "WITH RECURSIVE r AS (SELECT 1 AS id UNION SELECT e.t FROM e JOIN r ON e.f = r.id)"
    db.create("reached", f"{union} SELECT id FROM r", refresh_mode="IMMEDIATE")
    db.create(
        "once",
        f"{union.replace('UNION', 'UNION ALL')} CYCLE id SET again USING way"
        " SELECT count(*) AS n FROM r WHERE NOT again",
        refresh_mode="IMMEDIATE",
    )
    for statement in (
        "INSERT INTO e VALUES (3, 1), (3, 3)",
        "DELETE FROM e WHERE f = 2",
        "INSERT INTO e VALUES (2, 3)",
    ):
        db.run(statement)
        db.assert_current("reached", "once")


def test_a_refresh_is_not_bounded(db: Database) -> None:
    """What is created, or computed anew, may be deeper; so may what a DIFFERENTIAL stream table follows."""
    db.run(
        "CREATE TABLE n (id int PRIMARY KEY, above int);"
        "INSERT INTO n SELECT i, nullif(i - 1, 0) FROM generate_series(1, 300) i"
    )
    db.create("st", QUERIES["semi-naive, all"], refresh_mode="IMMEDIATE")
    db.create("deferred", QUERIES["semi-naive, all"], refresh_mode="DIFFERENTIAL", schedule="1h")
    db.assert_current("st")
    db.run("INSERT INTO n VALUES (1000, 300), (1001, 1000)")
    db.assert_current("st")
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        db.run("DELETE FROM n WHERE id = 2")
    db.refresh("st")
    db.run("SELECT pgtrickle.alter_stream_table('st', refresh_mode => 'DIFFERENTIAL')")
    db.run("DELETE FROM n WHERE id = 2")
    db.assert_refreshed("st", "deferred")
