"""Views in a defining query are looked through: what changes below them is applied, not computed anew."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

TABLES = """
CREATE TABLE customer (id int PRIMARY KEY, name text, region text);
CREATE TABLE purchase (id int PRIMARY KEY, customer int, amount numeric(8,2), paid bool);
INSERT INTO customer VALUES (1, 'ann', 'north'), (2, 'bob', 'south'), (3, 'eve', NULL);
INSERT INTO purchase SELECT n, n % 3 + 1, n, n % 2 = 0 FROM generate_series(1, 12) n;
CREATE VIEW paid (number, buyer, price) AS SELECT id, customer, amount FROM purchase WHERE paid;
CREATE VIEW "Buyers" (who, "where", total) AS SELECT c.name, c.region, sum(p.price) FROM customer c
  LEFT JOIN paid p ON p.buyer = c.id GROUP BY c.id;
"""
CHANGES = (
    "INSERT INTO purchase VALUES (20, 1, 100, true), (21, 9, 5, true)",
    "UPDATE purchase SET paid = NOT paid WHERE id < 5",
    "DELETE FROM purchase WHERE customer = 2; INSERT INTO customer VALUES (9, 'new', 'north')",
    "UPDATE customer SET region = 'north', name = upper(name)",
    "DELETE FROM customer WHERE id = 1",
)


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture(autouse=True)
def tables(db: Any) -> None:
    db.run(TABLES)


def test_nested_views_with_renamed_columns(db: Any) -> None:
    db.create("prices", "SELECT number, price * 2 AS twice FROM paid", refresh_mode="DIFFERENTIAL")
    db.create("regions", 'SELECT "where", sum(total) AS s FROM "Buyers" GROUP BY 1', refresh_mode="DIFFERENTIAL")
    db.create(
        "both",
        'SELECT b.who, q.n FROM "Buyers" b LEFT JOIN paid AS q (n, c) ON b.total > q.price AND q.c = 1',
        refresh_mode="DIFFERENTIAL",
    )
    cte = "WITH paid AS (SELECT * FROM public.paid WHERE price > 3) SELECT buyer FROM paid"
    db.create("cte", cte, refresh_mode="DIFFERENTIAL")
    for change in CHANGES:
        db.run(change)
        db.assert_refreshed("prices", "regions", "both", "cte")
        assert {db.last(name)[0] for name in ("prices", "regions", "both", "cte")} <= {"DIFFERENTIAL", "NO_DATA"}
    assert [
        kind
        for (kind,) in db.rows(
            "SELECT source_type FROM pgtrickle.pgt_dependencies WHERE pgt_id = pgtrickle._resolve('regions') ORDER BY 1"
        )
    ] == ["TABLE", "TABLE", "VIEW", "VIEW"]


def test_the_defining_query_says_what_views_stand_for(db: Any) -> None:
    """As the reference has it; `original_query` is what the user wrote."""
    query = 'SELECT "where", count(*) AS n FROM "Buyers" AS b (a, "where") JOIN customer c ON c.name = b.a GROUP BY 1'
    db.create("regions", query)
    state = db.state("regions")
    assert state["original_query"] == query
    assert {"paid", "Buyers"}.isdisjoint(state["defining_query"].replace("purchase.paid", "").split())
    assert "FROM public.purchase" in state["defining_query"]
    db.assert_current("regions")
    assert ("Defining Query", state["defining_query"]) in db.rows("SELECT * FROM pgtrickle.explain_st('regions')")
    reworded = query.replace("count(*)", "COUNT( * )")
    db.run("SELECT pgtrickle.create_or_replace_stream_table('regions', %s)", reworded)
    assert [row["action"] for row in db.history("regions")] == ["FULL"]  # it is the same query


def test_replaced_view_is_followed(db: Any) -> None:
    db.create("total", "SELECT buyer, sum(price) AS s FROM paid GROUP BY buyer")
    assert "purchase.paid" in db.state("total")["defining_query"]
    db.run("CREATE OR REPLACE VIEW paid (number, buyer, price) AS SELECT id, customer, amount FROM purchase")
    db.assert_refreshed("total")
    assert "purchase.paid" not in db.state("total")["defining_query"]
    db.run("UPDATE purchase SET amount = amount + 1")
    db.assert_refreshed("total")
    assert db.last("total")[0] == "DIFFERENTIAL"


def test_replaced_view_may_read_other_tables(db: Any) -> None:
    db.create("total", "SELECT buyer, price FROM paid")
    db.run(
        "CREATE OR REPLACE VIEW paid (number, buyer, price) AS SELECT p.id, c.id, p.amount FROM purchase p"
        " JOIN customer c ON c.id = p.customer"
    )
    db.assert_refreshed("total")
    for change in CHANGES:
        db.run(change)
        db.assert_refreshed("total")
        assert db.last("total")[0] in ("DIFFERENTIAL", "NO_DATA")


def test_materialized_view_below_a_view_is_computed_in_full(db: Any) -> None:
    db.run("CREATE MATERIALIZED VIEW kept AS SELECT * FROM purchase; CREATE VIEW over AS SELECT id FROM kept")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match='materialized view "kept"'):
        db.create("copy", "SELECT id FROM over", refresh_mode="DIFFERENTIAL")
    db.create("copy", "SELECT id FROM over")
    assert db.state("copy")["refresh_mode"] == "FULL"


def test_view_over_a_stream_table(db: Any) -> None:
    db.create("total", "SELECT buyer, sum(price) AS s FROM paid GROUP BY buyer")
    db.run("CREATE VIEW rich AS SELECT * FROM total WHERE s > 20")
    db.create("names", "SELECT c.name, r.s FROM rich r JOIN customer c ON c.id = r.buyer", refresh_mode="DIFFERENTIAL")
    for change in CHANGES:
        db.run(change)
        db.assert_refreshed("total", "names")
