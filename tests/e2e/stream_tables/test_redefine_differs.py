"""Another query with another filter or fewer columns: only what differs is computed, and the history says so."""

from __future__ import annotations

import itertools
import threading

import pytest

from tests.e2e.conftest import Database

SOURCE = """
CREATE TABLE orders (id int PRIMARY KEY, region text, amount numeric(10, 2), state text);
INSERT INTO orders SELECT n, 'r' || n % 5, n, CASE WHEN n % 7 > 0 THEN 's' || n % 3 END
    FROM generate_series(1, 60) AS n;
CREATE TABLE regions (region text PRIMARY KEY, name text);
INSERT INTO regions VALUES ('r1', 'one'), ('r2', 'two'), ('r3', NULL);
CREATE VIEW dear AS SELECT * FROM orders WHERE amount > 3
"""
FORMS = {
    "rows": "SELECT id, region, amount FROM orders{}",
    "bag": "SELECT region, state FROM orders{}",
    "totals": "SELECT region, sum(amount) AS total, count(state) AS n FROM orders{} GROUP BY region",
    "whole": "SELECT count(*) AS n, max(amount) AS most FROM orders{}",
    "having": "SELECT region, min(amount) AS least FROM orders{} GROUP BY region HAVING count(*) > 2",
    "distinct": "SELECT DISTINCT region, state FROM orders{}",
    "joined": "SELECT o.id, r.region, r.name FROM orders AS o JOIN regions AS r ON r.region = o.region{}",
    "outer": "SELECT o.state, count(r.name) AS n FROM orders AS o LEFT JOIN regions AS r USING (region){} GROUP BY 1",
    "window": "SELECT id, region, rank() OVER (PARTITION BY region ORDER BY amount) AS place FROM orders{}",
    "ordered": "SELECT state, string_agg(region, ',' ORDER BY id) AS regions FROM orders{} GROUP BY state",
    "view": "SELECT id, amount FROM dear AS o{}",
    "union": "WITH w AS (SELECT id, amount, state FROM orders UNION ALL SELECT 0, 0, 's0')"
    " SELECT id, amount FROM w AS o{}",
}
FILTERS = ("", " WHERE amount > 20", " WHERE amount > 20 AND state = 's1'", " WHERE state = 's2' OR amount < 9")
CHANGES = (
    "UPDATE orders SET amount = amount + 1, state = 's1' WHERE id % 9 = 0; DELETE FROM orders WHERE id % 11 = 3",
    "INSERT INTO orders SELECT n, 'r' || n % 3, n % 40, 's' || n % 2 FROM generate_series(100, 120) AS n"
    " ON CONFLICT DO NOTHING",
    "UPDATE orders SET region = 'r2' WHERE id < 9; UPDATE regions SET name = 'NEW' WHERE region = 'r3'",
    "DELETE FROM orders WHERE id > 100; DELETE FROM regions WHERE region = 'r2'",
)


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


def alter(db: Database, query: str) -> tuple[str, str]:
    """Give `st` another query; (action, reason) of what was done, with the rows that it took."""
    db.run("SELECT pgtrickle.alter_stream_table('st', query => %s)", query)
    db.assert_current("st")
    last = db.history("st")[-1]
    return last["action"], last["executor_reason"]


@pytest.mark.parametrize(
    "form",
    ["rows", *(pytest.param(name, marks=pytest.mark.long) for name in [*FORMS][1:])],
)
def test_another_filter(db: Database, form: str) -> None:
    """Every filter becomes every other, with changes that are pending, and the rows follow what comes then."""
    db.run(SOURCE)
    query = FORMS[form]
    db.create("st", query.format(FILTERS[0]))
    for number, place in enumerate([1, 2, 0, 2, 3, 0, 3, 1, 0]):
        db.run(CHANGES[number % len(CHANGES)])
        action, reason = alter(db, query.format(FILTERS[place]))
        assert (action, "rows that only one of the filters lets through" in reason) == ("DIFFERENTIAL", True), reason
        db.run(CHANGES[(number + 1) % len(CHANGES)])
        db.assert_refreshed("st")


def test_filters_that_differ_in_many_rows(db: Database) -> None:
    """By PostgreSQL's estimate, of what the filter lets through of a join; the setting is that of changes."""
    db.run(SOURCE)
    db.run(
        "INSERT INTO orders SELECT n, 'r' || n % 5, n FROM generate_series(100, 40000) AS n; ANALYZE orders, regions"
    )
    query = "SELECT o.id, o.amount, r.name FROM orders AS o LEFT JOIN regions AS r USING (region)"
    db.create("st", query)
    for condition, expected in (
        ("amount > 400", "DIFFERENTIAL"),
        ("amount > 20000", "REINITIALIZE"),
        ("amount > 20100", "DIFFERENTIAL"),
        ("amount > 35000 AND region <> 'r0'", "REINITIALIZE"),
    ):
        db.run("UPDATE orders SET amount = amount + 0.5 WHERE id % 1000 = 7")
        action, reason = alter(db, f"{query} WHERE o.{condition}")
        assert action == expected, reason
        if action == "REINITIALIZE":
            assert "the filters differ in about" in reason and "differential_max_change_ratio = 0.15" in reason
        db.run("DELETE FROM orders WHERE id % 1000 = 8")
        db.assert_refreshed("st")
    with db.connect() as client:
        client.execute("SET pg_trickle.differential_max_change_ratio = 1")
        client.execute("SELECT pgtrickle.alter_stream_table('st', query => %s)", [f"{query} WHERE o.amount < 35000"])
    assert db.history("st")[-1]["action"] == "DIFFERENTIAL"
    db.assert_current("st")


ROWS = "SELECT {} FROM orders WHERE amount > 5"
GROUPS = "SELECT {} FROM orders WHERE amount > 5 GROUP BY region"
COLUMNS = {
    ROWS: ("region, id, amount, state", "region, id, state", "id, state", "id"),
    GROUPS: (
        "region, sum(amount) AS total, count(state) AS n, max(id) AS last",
        "region, sum(amount) AS total",
        "region",
    ),
}


@pytest.mark.parametrize("query", COLUMNS)
def test_fewer_columns(db: Database, query: str) -> None:
    """No row is computed, nor touched, unless the filter is another one as well."""
    db.run(SOURCE)
    first, *others = COLUMNS[query]
    db.create("st", query.format(first), refresh_mode="DIFFERENTIAL")
    for number, columns in enumerate(others):
        db.run("SELECT pgtrickle.refresh_stream_table('st')")
        action, reason = alter(db, query.format(columns))
        assert (action, "columns that go" in reason, db.last("st")[1:]) == ("DIFFERENTIAL", True, (0, 0, 0)), reason
        db.run(CHANGES[number])
        db.assert_differential("st")
    db.run(CHANGES[3])
    alter(db, query.format(first))
    db.run(CHANGES[1])
    narrower = query.format(others[-1]).replace("amount > 5", "state = 's1'")
    action, reason = alter(db, narrower)
    assert (action, "filters lets through and columns" in reason) == ("DIFFERENTIAL", True), reason
    db.run(CHANGES[2])
    db.assert_differential("st")


WIDER = {
    "id": "SELECT id FROM orders{}",
    "id, note": "SELECT id, amount * 2 AS twice, state FROM orders{}",
    "all": "SELECT id, amount * 2 AS twice, state, region, upper(state) AS loud FROM orders{}",
}


def test_more_columns(db: Database) -> None:
    """Rows that stay get what is new, and those that have changed, or come with another filter, have it."""
    db.run(SOURCE)
    db.create("st", WIDER["id"].format(FILTERS[0]), refresh_mode="DIFFERENTIAL")
    for number, (name, filter_) in enumerate(
        [("id, note", 0), ("all", 1), ("id", 2), ("all", 3), ("id", 0), ("all", 0)]
    ):
        if number != 5:
            db.run(CHANGES[number % len(CHANGES)])
        else:
            db.refresh("st")
        action, reason = alter(db, WIDER[name].format(FILTERS[filter_]))
        what = "columns that go" if name == "id" else "columns that are new"
        assert (action, what in reason) == ("DIFFERENTIAL", True), (name, reason)
        db.run(CHANGES[(number + 1) % len(CHANGES)])
        db.assert_differential("st")


ALL = {
    "it reads other tables": ROWS.format("id, region") + " AND region IN (SELECT region FROM regions)",
    "the queries differ in more than their filters": "SELECT id, region FROM orders AS o ORDER BY id",
    "a filter that differs has a subquery": ROWS.format("id, region") + " AND EXISTS (SELECT 1 FROM orders)",
    "a stable function": ROWS.format("id, region") + " AND state < now()::text",
    "columns have another type or place": ROWS.format("region, id"),
    "computed as a whole": ROWS.format("id, region") + " AND random() >= 0",
}


def test_why_all_rows_are_computed(db: Database) -> None:
    """Whatever does not follow from what is stored is computed, and the history says why."""
    db.run(SOURCE)
    db.create("st", ROWS.format("id, region"))
    for why, query in ALL.items():
        action, reason = alter(db, query)
        assert (action, "all rows are computed, since " in reason, why in reason) == ("REINITIALIZE", True, True), (
            reason
        )
        db.run("INSERT INTO orders SELECT max(id) + 1, 'r1', 50, 's1' FROM orders")
        db.assert_refreshed("st")
        alter(db, ROWS.format("id, region"))


def test_a_filter_that_fails_for_a_row_is_replaced(db: Database) -> None:
    """What differs cannot be computed, since the old filter cannot; so all rows are."""
    db.run(SOURCE)
    db.create("st", "SELECT id, amount FROM orders WHERE 10 / (amount - 100) < 0", refresh_mode="DIFFERENTIAL")
    db.run("INSERT INTO orders VALUES (70, 'r1', 100)")
    action, reason = alter(db, "SELECT id, amount FROM orders WHERE amount > 3")
    assert (action, "22012" in reason) == ("REINITIALIZE", True), reason
    db.run(CHANGES[0])
    db.assert_differential("st")


@pytest.mark.parametrize("places", [(1, 2, 0), pytest.param((1, 2, 0, 3, 2, 1, 0, 3), marks=pytest.mark.long)])
def test_beside_writers(db: Database, places: tuple[int, ...]) -> None:
    """Changes that are committed while what differs is computed are neither lost nor counted twice."""
    db.run(SOURCE)
    db.create("st", FORMS["totals"].format(FILTERS[0]))
    stop = threading.Event()

    def write(number: int) -> None:
        with db.connect() as client:
            for n in itertools.count():
                if stop.is_set():
                    return
                key = 1000 * number + n % 40
                client.execute(
                    "INSERT INTO orders VALUES (%s, %s, %s, %s)"
                    " ON CONFLICT (id) DO UPDATE SET amount = excluded.amount, state = excluded.state",
                    [key, f"r{n % 6}", n % 50, f"s{n % 3}"],
                )
                client.execute("DELETE FROM orders WHERE id = %s", [key - 17])

    writers = [threading.Thread(target=write, args=(number,)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    try:
        actions = []
        for place in places:
            db.run("SELECT pgtrickle.alter_stream_table('st', query => %s)", FORMS["totals"].format(FILTERS[place]))
            actions.append(db.last("st")[0])
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert actions == ["DIFFERENTIAL"] * len(places)
    db.assert_refreshed("st")
