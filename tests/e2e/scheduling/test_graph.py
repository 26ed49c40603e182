"""What reads what: the tree of dependencies, and diamonds."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Database

TREE = "SELECT tree_line, status, refresh_mode FROM pgtrickle.dependency_tree()"
GROUPS = (
    "SELECT group_id, member_name, member_schema, is_convergence, epoch, schedule_policy"
    " FROM pgtrickle.diamond_groups()"
)
ACTIVE = ("ACTIVE", "DIFFERENTIAL")


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture
def reports(db: Database) -> Database:
    """The stream tables of the reference's example."""
    db.run("CREATE TABLE orders (id int PRIMARY KEY, customer int, amount int)")
    db.run("CREATE TABLE customers (id int PRIMARY KEY, region text)")
    db.create(
        "orders_by_region",
        "SELECT region, count(*) AS n FROM orders o JOIN customers c ON c.id = o.customer GROUP BY region",
    )
    db.create("revenue_totals", "SELECT sum(amount) AS total FROM orders")
    db.create("report_summary", "SELECT region, n, total FROM orders_by_region CROSS JOIN revenue_totals")
    return db


def test_example_of_the_reference(reports: Database) -> None:
    assert reports.rows(TREE) == [
        ("report_summary", *ACTIVE),
        ("├── orders_by_region", *ACTIVE),
        ("│   ├── public.orders [src]", None, None),
        ("│   └── public.customers [src]", None, None),
        ("└── revenue_totals", *ACTIVE),
        ("    └── public.orders [src]", None, None),
    ]
    nodes = reports.rows("SELECT node, node_type, depth FROM pgtrickle.dependency_tree()")
    assert nodes == [
        ("public.report_summary", "stream_table", 0),
        ("public.orders_by_region", "stream_table", 1),
        ("public.orders", "source_table", 2),
        ("public.customers", "source_table", 2),
        ("public.revenue_totals", "stream_table", 1),
        ("public.orders", "source_table", 2),
    ]


def test_several_roots_other_schemas_and_status(reports: Database) -> None:
    db = reports
    db.run("CREATE SCHEMA dwh; CREATE VIEW north AS SELECT id FROM customers WHERE region = 'north'")
    db.create("dwh.northern", "SELECT o.id FROM orders o JOIN north n ON n.id = o.customer", refresh_mode="FULL")
    db.run("SELECT pgtrickle.alter_stream_table('dwh.northern', status => 'SUSPENDED')")
    assert db.rows(TREE)[:4] == [
        ("dwh.northern", "SUSPENDED", "FULL"),
        ("├── public.orders [src]", None, None),
        ("├── public.customers [src]", None, None),
        ("└── public.north [src]", None, None),
    ]
    assert db.rows(TREE)[4][0] == "report_summary"
    db.run("DROP VIEW north")
    assert db.rows(TREE)[3][0].startswith("└── (dropped, oid ")


def test_stream_tables_that_read_each_other_are_shown_once_in_a_path(reports: Database) -> None:
    """An owner can write down anything as a dependency."""
    reports.run(
        "UPDATE pgtrickle.pgt_dependencies d SET source_relid = 'report_summary'::regclass"
        " FROM pgtrickle.pgt_stream_tables s WHERE s.pgt_id = d.pgt_id AND s.pgt_name = 'revenue_totals'"
    )
    lines = [line for line, *_ in reports.rows(TREE)]
    assert lines == [
        "report_summary",
        "├── orders_by_region",
        "│   ├── public.orders [src]",
        "│   └── public.customers [src]",
        "└── revenue_totals",
        "revenue_totals",
        "└── report_summary",
        "    └── orders_by_region",
        "        ├── public.orders [src]",
        "        └── public.customers [src]",
    ]


def test_diamond_of_the_reference(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    db.create("st_a", "SELECT id, v FROM t")
    db.create("st_b", "SELECT id, v + 1 AS b FROM st_a")
    db.create("st_c", "SELECT id, v + 2 AS c FROM st_a")
    assert db.rows(GROUPS) == []
    db.create("st_d", "SELECT id, b, c FROM st_b JOIN st_c USING (id)")
    db.create("after", "SELECT count(*) AS n FROM st_d")
    diamond = [
        (1, "st_b", "public", False, 0, "fastest"),
        (1, "st_c", "public", False, 0, "fastest"),
        (1, "st_d", "public", True, 0, "fastest"),
    ]
    assert db.rows(GROUPS) == diamond
    db.run("UPDATE pgtrickle.pgt_stream_tables SET diamond_schedule_policy = 'slowest' WHERE pgt_name = 'st_b'")
    assert db.rows(GROUPS) == diamond  # of those where paths meet it counts
    db.run("UPDATE pgtrickle.pgt_stream_tables SET diamond_schedule_policy = 'slowest' WHERE pgt_name = 'st_d'")
    assert {row[5] for row in db.rows(GROUPS)} == {"slowest"}


def test_what_is_a_diamond(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    members = "SELECT group_id, string_agg(member_name, ' ') FROM pgtrickle.diamond_groups() GROUP BY 1 ORDER BY 1"
    for name, query in (
        ("t1", "SELECT id FROM t"),
        ("t2", "SELECT id FROM t1"),
        ("t3", "SELECT id FROM t"),
        ("u1", "SELECT id FROM u"),
        ("apart", "SELECT id FROM t1 JOIN u1 USING (id)"),  # of two tables
        ("twice", "SELECT a.id FROM u1 a JOIN u1 b USING (id)"),  # one path
    ):
        db.create(name, query)
    assert db.rows(members) == []
    db.create("direct", "SELECT id FROM u1 JOIN u USING (id)")  # one of two paths leads straight to the table
    assert db.rows(members) == [(1, "u1 direct")]
    db.create("deep", "SELECT id FROM t2 JOIN t3 USING (id)")  # paths of unequal lengths
    assert db.rows(members) == [(1, "u1 direct"), (2, "t1 t2 t3 deep")]
    db.create("next1", "SELECT id FROM deep")
    db.create("next2", "SELECT id FROM deep")
    db.create("next", "SELECT id FROM next1 JOIN next2 USING (id)")  # begins where another one ends
    assert db.rows(members) == [(1, "u1 direct"), (2, "t1 t2 t3 deep"), (3, "next1 next2 next")]
    db.create("both", "SELECT id FROM t2 JOIN t3 USING (id)")  # has members in common with another one
    assert db.rows(members)[1] == (2, "t1 t2 t3 both deep")
