"""Registers as their reference describes them: the three usage examples, corrections, maintenance, the questions."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from psycopg import errors

from tests.e2e.conftest import Database
from tests.e2e.registers.registers import RECEIPT, SALE, consistent, movement, objects, post, resources

# ---------------------------------------------------------------------------------------------------------------------
# Usage


def test_warehouse_inventory(registers: Database) -> None:
    db = registers
    db.run("""
        SELECT accum.register_create(
            name := 'warehouse_stock',
            dimensions := '{"warehouse": "int", "product": "int", "lot_number": "text", "quality": "text"}',
            resources := '{"quantity": "numeric(18,4)", "weight": "numeric(18,3)", "cost": "numeric(18,2)"}',
            kind := 'balance')
    """)
    lot = '"warehouse": 1, "product": 42, "lot_number": "LOT-2026-04-A", "quality": "grade_a"'
    db.run(f"""SELECT accum.register_post('warehouse_stock', '{{"recorder": "grn:2026-04-001", "period": "2026-04-18",
               {lot}, "quantity": 1000, "weight": 500.000, "cost": 25000.00}}')""")
    db.run(f"""SELECT accum.register_post('warehouse_stock', '{{"recorder": "shipment:2026-04-055",
               "period": "2026-04-18", {lot}, "quantity": -150, "weight": -75.000, "cost": -3750.00}}')""")
    left: dict[str, Any] = {"quantity": 850, "weight": 425, "cost": 21250}
    call = """accum.warehouse_stock_balance(dimensions := '{"warehouse": 1, "product": 42}')"""
    assert db.value(f"SELECT b::text FROM {call} AS b") == '{"cost": 21250.00, "weight": 425.000, "quantity": 850.0000}'
    assert db.rows(
        "SELECT warehouse, SUM(quantity) AS qty, SUM(cost) AS total_cost FROM accum.warehouse_stock_balance_cache"
        " WHERE product = 42 AND quantity > 0 GROUP BY warehouse"
    ) == [(1, 850, 21250)]
    call = """accum.warehouse_stock_turnover(from_date := '2026-04-01', to_date := '2026-04-30',
              dimensions := '{"warehouse": 1, "product": 42}', group_by := '["lot_number"]')"""
    assert objects(db, call) == [{"lot_number": "LOT-2026-04-A", **left}]


def test_financial_accounting(registers: Database) -> None:
    db = registers
    db.run("""
        SELECT accum.register_create(
            name := 'account_balance',
            dimensions := '{"account": "int", "currency": "text", "cost_center": "int"}',
            resources := '{"debit": "numeric(18,2)", "credit": "numeric(18,2)", "net": "numeric(18,2)"}',
            kind := 'balance')
    """)
    posted = db.run("""
        BEGIN;
        SELECT accum.register_post('account_balance', '[
            {"recorder": "transfer:T-2026-001", "period": "2026-04-18", "account": 1001, "currency": "USD",
             "cost_center": 10, "debit": 0, "credit": 5000.00, "net": -5000.00},
            {"recorder": "transfer:T-2026-001", "period": "2026-04-18", "account": 2001, "currency": "USD",
             "cost_center": 20, "debit": 5000.00, "credit": 0, "net": 5000.00}]');
        COMMIT;
    """)
    posted.nextset()
    assert posted.fetchall() == [(2,)]
    moved = {"debit": 0, "credit": 5000, "net": -5000}
    dollars = """dimensions := '{"account": 1001, "currency": "USD"}'"""
    assert objects(db, f"accum.account_balance_balance({dollars})") == [moved]
    call = """accum.account_balance_turnover(from_date := '2026-04-01', to_date := '2026-04-30',
              dimensions := '{"account": 1001}')"""
    assert objects(db, call) == [moved]
    assert objects(db, f"accum.account_balance_balance({dollars}, at_date := '2026-03-31')") == [
        {"debit": 0, "credit": 0, "net": 0}
    ]
    (whole,) = objects(db, "accum.account_balance_balance()")
    assert whole == {"debit": 5000, "credit": 5000, "net": 0}


def test_subscription_usage_tracking(registers: Database) -> None:
    db = registers
    db.run("""
        SELECT accum.register_create(
            name := 'subscription_usage', dimensions := '{"tenant": "uuid", "plan": "text", "feature": "text"}',
            resources := '{"used": "bigint", "quota": "bigint"}', kind := 'balance', high_write := true)
    """)
    cell = '"tenant": "550e8400-e29b-41d4-a716-446655440000", "plan": "pro", "feature": "api_calls"'
    for number in range(3):
        db.run(f"""SELECT accum.register_post('subscription_usage', '{{"recorder": "api_call:req_abc12{number}",
                   "period": "2026-04-18T14:30:00Z", {cell}, "used": 1, "quota": 0}}')""")
    used = (
        "SELECT used FROM accum.subscription_usage_balance_cache"
        " WHERE tenant = '550e8400-e29b-41d4-a716-446655440000' AND feature = 'api_calls'"
    )
    assert objects(db, "accum.subscription_usage_balance()") == [{"used": 3, "quota": 0}]
    db.run("SELECT accum._force_delta_merge()")
    assert db.rows(used) == [(3,)]
    db.run(f"""SELECT accum.register_post('subscription_usage', '{{"recorder": "billing_cycle:2026-05",
               "period": "2026-05-01", {cell}, "used": 0, "quota": 100000}}')""")
    assert objects(db, f"accum.subscription_usage_balance('{{{cell}}}')") == [{"used": 3, "quota": 100000}]
    assert objects(db, f"accum.subscription_usage_balance('{{{cell}}}', at_date := '2026-04-30')") == [
        {"used": 3, "quota": 0}
    ]
    assert consistent(db, "subscription_usage")


# ---------------------------------------------------------------------------------------------------------------------
# Corrections


def test_retroactive_correction(inventory: Database) -> None:
    """An error in a March receipt is found in April: 100 were recorded, 110 is right."""
    post(inventory, movement("purchase_order:7001", "2026-03-10", 1, 42, "LOT-A", 100))
    post(inventory, movement("sales_order:1", "2026-04-02", 1, 42, "LOT-A", -20))
    months = "SELECT period::text, quantity FROM accum.inventory_totals_month ORDER BY period"
    april = "SELECT xmin::text, ctid::text FROM accum.inventory_totals_month WHERE period = '2026-04-01'"
    assert inventory.rows(months) == [("2026-03-01", 100), ("2026-04-01", -20)]
    untouched = inventory.rows(april)
    right = movement("purchase_order:7001", "2026-03-10", 1, 42, "LOT-A", 110)
    inventory.run("SELECT accum.register_repost('inventory', 'purchase_order:7001', %s::jsonb)", json.dumps([right]))
    assert inventory.rows(months) == [("2026-03-01", 110), ("2026-04-01", -20)]
    assert inventory.rows(april) == untouched
    assert inventory.rows("SELECT period::text, quantity FROM accum.inventory_totals_year") == [("2026-01-01", 90)]
    assert inventory.rows("SELECT quantity FROM accum.inventory_balance_cache") == [(90,)]
    assert objects(inventory, "accum.inventory_balance(at_date := '2026-03-31')") == [resources(110, 0)]
    assert inventory.rows(
        "SELECT movement_type, period::date::text, quantity, recorded_at::date = now()::date"
        " FROM accum.inventory_movements WHERE recorder = 'purchase_order:7001'"
    ) == [("adjustment", "2026-03-10", 110, True)]
    # The full correction history is preserved: what it was, who changed it, when, and how.
    assert inventory.rows(
        "SELECT quantity, movement_type, audit_operation, audit_user, audit_at >= recorded_at"
        " FROM accum.inventory_movements_audit WHERE recorder = 'purchase_order:7001'"
    ) == [(100, "regular", "repost", inventory.value("SELECT current_user"), True)]
    history = objects(
        inventory, "accum.inventory_movements(p_recorder := 'purchase_order:7001', include_audit := true)"
    )
    assert sorted(row["quantity"] for row in history) == [100, 110]
    assert consistent(inventory, "inventory")


def test_rollback_leaves_everything_as_it_was(inventory: Database) -> None:
    inventory.run(RECEIPT)
    other = inventory.connect(autocommit=False)
    other.execute(SALE.encode())
    assert other.execute("SELECT count(*) FROM accum.inventory_balance_cache").fetchone() == (2,)
    assert objects(inventory, "accum.inventory_balance()") == [resources(100, 5000)]  # each sees its snapshot
    assert inventory.rows("SELECT warehouse, quantity FROM accum.inventory_balance_cache") == [(1, 100)]
    other.rollback()
    assert inventory.rows("SELECT warehouse, quantity, version FROM accum.inventory_balance_cache") == [
        (1, 100, 1)
    ] or (inventory.rows("SELECT warehouse, quantity FROM accum.inventory_balance_cache") == [(1, 100)])
    assert consistent(inventory, "inventory")


def test_writers_of_different_cells_do_not_wait_for_each_other(inventory: Database) -> None:
    inventory.run(RECEIPT)
    post = """SELECT accum.register_post('inventory', '{{"recorder": "{0}", "period": "2026-04-18", "warehouse": {1},
              "product": 1, "lot": null, "quantity": 1, "amount": 1}}')"""
    with inventory.connect(autocommit=False) as first, inventory.connect(options="-c lock_timeout=20s") as second:
        first.execute(post.format("a", 1).encode())
        second.execute(post.format("b", 2).encode())  # commits while the first is open
        second.execute("SET lock_timeout = '50ms'")
        with pytest.raises(errors.LockNotAvailable):
            second.execute(post.format("c", 1).encode())
        first.commit()
        second.execute(post.format("d", 1).encode())
    assert inventory.rows(
        "SELECT warehouse, quantity FROM accum.inventory_balance_cache WHERE product = 1 ORDER BY 1"
    ) == [(1, 2), (2, 1)]


# ---------------------------------------------------------------------------------------------------------------------
# High-write mode


def test_page_views(registers: Database) -> None:
    db = registers
    connection = db.connect(options="-c search_path=accum")
    connection.execute("""
        SELECT register_create(name := 'page_views', dimensions := '{"page": "text"}', resources := '{"views": "int"}',
                               kind := 'balance', high_write := true)
    """)
    columns = dict(
        db.rows(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = 'accum.page_views_balance_cache_delta'::regclass AND attnum > 0"
        )
    )
    expected = {"id": "bigint", "dim_hash": "bigint", "created_at": "timestamp with time zone"}
    assert {name: columns.get(name) for name in expected} == expected and "views" in columns
    assert db.value("SELECT relpersistence::text FROM pg_class WHERE relname = 'page_views_balance_cache_delta'") == "u"
    view = '{{"recorder": "{}", "period": "2026-04-18T10:00:00", "page": "/home", "views": 1}}'
    with db.connect(autocommit=False) as first, db.connect(autocommit=False, options="-c lock_timeout=20s") as second:
        for number, each in enumerate((first, second)):  # writers of one cell do not wait
            each.execute(f"SELECT accum.register_post('page_views', '{view.format(number)}')".encode())
        second.commit()
        assert objects(db, "accum.page_views_balance()") == [{"views": 1}]
        first.commit()
    assert objects(db, 'accum.page_views_balance(\'{"page": "/home"}\')') == [{"views": 2}]
    assert db.rows("SELECT page, views, version FROM accum.page_views_balance_cache") == [("/home", 0, 0)]
    assert db.rows("SELECT views FROM accum.page_views_balance_cache_delta") == [(1,), (1,)]
    db.run("SELECT accum._force_delta_merge(p_max_age := interval '0 seconds', p_batch_size := 1000000)")
    assert objects(db, "accum.page_views_balance()") == [{"views": 2}]
    assert db.rows("SELECT page, views FROM accum.page_views_balance_cache") == [("/home", 2)]
    assert consistent(db, "page_views")


# ---------------------------------------------------------------------------------------------------------------------
# Diagnostics and maintenance


def test_verify_and_rebuild(inventory: Database) -> None:
    inventory.run(RECEIPT)
    cursor = inventory.run("SELECT * FROM accum.register_verify('inventory')")
    assert [column.name for column in cursor.description or ()] == [
        *("check_type", "dim_hash", "period", "expected", "actual", "status")
    ]
    amounts = {"quantity": 100, "amount": 5000}
    assert [row[:1] + row[2:] for row in cursor if row[0] != "totals_day"] == [
        ("balance_cache", None, amounts, amounts, "OK"),
        ("totals_year", date(2026, 1, 1), amounts, amounts, "OK"),
        ("totals_month", date(2026, 4, 1), amounts, amounts, "OK"),
    ]
    wrong = "SELECT check_type, status FROM accum.register_verify('inventory') WHERE status <> 'OK' ORDER BY 1, 2"
    broken = {
        "UPDATE accum.inventory_balance_cache SET quantity = 1": [("balance_cache", "MISMATCH")],
        "DELETE FROM accum.inventory_balance_cache": [("balance_cache", "MISSING_IN_CACHE")],
        "DELETE FROM accum.inventory_totals_month": [("totals_month", "MISSING_IN_TOTALS")],
        "UPDATE accum.inventory_totals_year SET amount = 7": [("totals_year", "MISMATCH")],
        """INSERT INTO accum.inventory_balance_cache
           SELECT (jsonb_populate_record(c, '{"dim_hash": 7, "product": 7}')).*
           FROM accum.inventory_balance_cache c""": [("balance_cache", "ORPHAN_IN_CACHE")],
        "UPDATE accum.inventory_totals_month SET period = '2026-03-01'": [
            ("totals_month", "MISSING_IN_TOTALS"),
            ("totals_month", "ORPHAN_IN_TOTALS"),
        ],
    }
    for statement, expected in broken.items():
        with pytest.raises(errors.WrongObjectType, match=r"cannot change accum.inventory_\w+ directly"):
            inventory.run(statement)
        inventory.run("SET session_replication_role = replica")
        inventory.run(statement)
        inventory.run("RESET session_replication_role")
        assert inventory.rows(wrong) == expected, statement
        rebuild = "register_rebuild_cache" if "cache" in statement else "register_rebuild_totals"
        inventory.run(f"SELECT accum.{rebuild}('inventory')")
        assert inventory.rows(wrong) == []
    assert inventory.rows("SELECT quantity, amount FROM accum.inventory_balance_cache") == [(100, 5000)]


def test_maintenance_status_and_configuration(inventory: Database) -> None:
    cursor = inventory.run("SELECT * FROM accum._maintenance_status()")
    assert [column.name for column in cursor.description or ()] == [
        "pid",
        "worker_name",
        "state",
        "query",
        "started_at",
    ]
    config = "\n".join(str(row) for row in inventory.rows("SELECT * FROM accum._config"))
    for name in (
        *("background_workers", "delta_merge_interval", "delta_merge_delay", "delta_merge_batch_size"),
        *("partitions_ahead", "maintenance_interval"),
    ):
        assert name in config


PARTITIONS = """
SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'accum.inventory_movements'::regclass ORDER BY 1
"""


def test_partitions(inventory: Database) -> None:
    present = dict(inventory.rows(PARTITIONS))
    assert present["inventory_movements_default"] == "DEFAULT"
    inventory.run("SELECT accum.register_create_partitions('inventory', 3)")
    wanted = inventory.rows(
        "SELECT to_char(m, '\"inventory_movements_\"YYYY_MM'), format('FOR VALUES FROM (%L) TO (%L)',"
        " m::timestamptz, (m + interval '1 month')::timestamptz)"
        " FROM generate_series(date_trunc('month', now()), now() + interval '3 months', '1 month') AS m"
    )
    present = dict(inventory.rows(PARTITIONS))
    assert {name: present.get(name) for name, _ in wanted} == dict(wanted)
    for (period,) in inventory.rows("SELECT (now() + n * interval '1 month')::text FROM generate_series(0, 1) AS n"):
        post(inventory, movement("po:1", period, 1, 1, None, 1))
    assert inventory.value("SELECT count(*) FROM ONLY accum.inventory_movements_default") == 0
    assert inventory.value(f"SELECT count(*) FROM accum.{wanted[0][0]}") == 1


def test_detached_partitions_keep_their_data(inventory: Database) -> None:
    """The cache goes on with all that was ever recorded; the totals follow what is left when they are rebuilt."""
    ((month, now),) = inventory.rows("SELECT to_char(now(), '\"inventory_movements_\"YYYY_MM'), now()::text")
    post(inventory, movement("po:1", now, 1, 1, None, 5, 1))
    inventory.run("SELECT accum.register_detach_partitions('inventory', (now() + interval '40 days')::date)")
    assert month not in dict(inventory.rows(PARTITIONS))
    assert inventory.rows(f"SELECT quantity FROM accum.{month}") == [(5,)]
    assert inventory.value("SELECT count(*) FROM accum.inventory_movements") == 0
    assert inventory.rows("SELECT quantity FROM accum.inventory_balance_cache") == [(5,)]
    assert objects(inventory, "accum.inventory_balance()") == [resources(5, 1)]
    inventory.run("SELECT accum.register_rebuild_totals('inventory')")
    assert inventory.rows("SELECT * FROM accum.inventory_totals_month WHERE quantity <> 0") == []


# ---------------------------------------------------------------------------------------------------------------------
# Beyond the reference


def test_balance_at_each_period(inventory: Database) -> None:
    for period, quantity in (("2025-12-31", 1), ("2026-01-31", 2), ("2026-02-01", 4), ("2026-04-30T23:00:00", 8)):
        post(inventory, movement("r", period, 1, 1, None, quantity))
    rows = inventory.rows("SELECT * FROM accum.inventory_balance_at_each('month', '2026-01-01', '2026-04-30', '{}')")
    assert [int(row[-1]["quantity"]) for row in rows] == [3, 7, 7, 15]
    assert [str(row[0])[:7] for row in rows] == ["2026-01", "2026-02", "2026-03", "2026-04"]
    rows = inventory.rows("SELECT * FROM accum.inventory_balance_at_each('day', '2026-01-30', '2026-02-02')")
    assert [int(row[-1]["quantity"]) for row in rows] == [1, 3, 7, 7]
    rows = inventory.rows("SELECT * FROM accum.inventory_balance_at_each('year', '2024-01-01', '2026-12-31')")
    assert [int(row[-1]["quantity"]) for row in rows] == [0, 1, 15]
