"""Registers are read as their reference describes: balances, turnovers, movements, the cache itself."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.e2e.conftest import Database
from tests.e2e.registers.registers import IMPORT, RECEIPT, SALE, consistent, movement, objects, post, resources


def test_balance(inventory: Database) -> None:
    inventory.run(IMPORT)
    post(
        inventory,
        movement("old:1", "2024-12-31T23:59:59.999999", 1, 42, "LOT-A", 1, 10),
        movement("old:2", "2026-02-10", 1, 42, "LOT-A", 2, 20),
        movement("old:3", "2026-03-15T18:00:00", 1, 42, "LOT-C", 4, 40),
    )
    cell = """dimensions := '{"warehouse": 1, "product": 42}'"""
    assert objects(inventory, f"accum.inventory_balance({cell})") == [resources(107, 5070)]
    assert objects(inventory, f"accum.inventory_balance({cell}, at_date := '2026-03-15')") == [resources(7, 70)]
    assert objects(inventory, f"accum.inventory_balance({cell}, at_date := '2026-03-14')") == [resources(3, 30)]
    for at, expected in (("17:59:59.999999", resources(3, 30)), ("18:00:00", resources(7, 70))):
        assert objects(inventory, f"accum.inventory_balance({cell}, at_date := '2026-03-15 {at}')") == [expected]
    assert objects(inventory, f"accum.inventory_balance({cell}, at_date := '2024-12-31')") == [resources(1, 10)]
    assert objects(inventory, f"accum.inventory_balance({cell}, at_date := '2024-12-30')") == [resources(0, 0)]
    assert objects(inventory, "accum.inventory_balance(dimensions := '{\"warehouse\": 1}')") == [resources(307, 13070)]
    assert objects(inventory, "accum.inventory_balance()") == [resources(357, 15570)]
    assert objects(inventory, "accum.inventory_balance('{\"warehouse\": 99}')") == [resources(0, 0)]


def test_turnover(inventory: Database) -> None:
    inventory.run(SALE)
    post(
        inventory,
        movement("m:1", "2026-03-31T23:59:59", 1, 42, "LOT-A", 1000, 1),
        movement("m:2", "2026-04-30T23:59:59", 1, 43, "LOT-B", 200, 8000),
        movement("m:3", "2026-05-01", 1, 43, "LOT-B", 1000, 1),
    )
    april = "from_date := '2026-04-01', to_date := '2026-04-30', dimensions := '{\"warehouse\": 1}'"
    assert objects(inventory, f"accum.inventory_turnover({april})") == [resources(190, 7500)]
    groups = objects(inventory, f"accum.inventory_turnover({april}, group_by := '[\"product\"]')")
    assert sorted(groups, key=lambda group: group["product"]) == [
        {"product": 42, **resources(-10, -500)},
        {"product": 43, **resources(200, 8000)},
    ]
    groups = objects(inventory, f'accum.inventory_turnover({april}, group_by := \'["lot", "product"]\')')
    assert sorted(groups, key=lambda group: group["product"]) == [
        {"lot": "LOT-A", "product": 42, **resources(-10, -500)},
        {"lot": "LOT-B", "product": 43, **resources(200, 8000)},
    ]


def test_groups_come_in_the_order_in_which_they_were_asked_for(inventory: Database) -> None:
    inventory.run(IMPORT)
    for group_by, expected in (
        ('["lot", "warehouse"]', [("LOT-A", 1), ("LOT-A", 2), ("LOT-B", 1)]),
        ('["warehouse", "lot"]', [("LOT-A", 1), ("LOT-B", 1), ("LOT-A", 2)]),
        ('["warehouse", "lot", "warehouse"]', [("LOT-A", 1), ("LOT-B", 1), ("LOT-A", 2)]),
    ):
        groups = objects(inventory, f"accum.inventory_turnover(group_by := '{group_by}')")
        assert [(group["lot"], group["warehouse"]) for group in groups] == expected


def test_a_series_of_quarters(inventory: Database) -> None:
    dates = ("2025-12-31", "2026-01-01", "2026-03-31T23:59:59", "2026-04-01", "2026-10-10")
    post(inventory, *(movement(f"m:{n}", date, 1, 42, "LOT-A", 10**n) for n, date in enumerate(dates)))
    for zone, first, second in (("UTC", 110, 1000), ("Asia/Tokyo", 10, 1100)):
        inventory.run(f"SET TimeZone = '{zone}'")
        rows = inventory.rows(
            "SELECT period_start::text, (turnover ->> 'quantity')::numeric, (balance ->> 'quantity')::numeric"
            " FROM accum.inventory_balance_at_each('quarter', '2026-02-10', '2026-12-31')"
        )
        inventory.run("SET TimeZone = 'UTC'")
        assert rows == [
            ("2026-01-01", first, first + 1),
            ("2026-04-01", second, 1111),
            ("2026-07-01", 0, 1111),
            ("2026-10-01", 10000, 11111),
        ]


def test_movements(inventory: Database) -> None:
    inventory.run(RECEIPT)
    inventory.run(SALE)
    found = objects(inventory, "accum.inventory_movements(p_recorder := 'sales_order:8001')")
    assert sorted((movement["warehouse"], movement["quantity"]) for movement in found) == [(1, -10), (2, 10)]
    assert {movement["recorder"] for movement in found} == {"sales_order:8001"}
    assert set(found[0]) >= {
        *(
            "id",
            "recorded_at",
            "recorder",
            "period",
            "movement_type",
            "warehouse",
            "product",
            "lot",
            "quantity",
            "amount",
        )
    }
    bounded = """accum.inventory_movements(from_date := '2026-04-01', to_date := '{}',
                 dimensions := '{{"warehouse": 1, "product": 42}}')"""
    assert [m["quantity"] for m in objects(inventory, bounded.format("2026-04-18"))] in ([100, -10], [-10, 100])
    assert [m["quantity"] for m in objects(inventory, bounded.format("2026-04-18 12:00"))] == [-10]
    assert objects(inventory, bounded.format("2026-04-17")) == []


def test_queries_of_the_balance_cache(inventory: Database) -> None:
    inventory.run(IMPORT)
    inventory.run("CREATE TABLE IF NOT EXISTS products (id int PRIMARY KEY, name text)")
    inventory.run("INSERT INTO products VALUES (42, 'bolt'), (43, 'nut') ON CONFLICT DO NOTHING")
    assert inventory.rows(
        "SELECT product, lot, quantity, amount FROM accum.inventory_balance_cache"
        " WHERE warehouse = 1 AND quantity != 0 ORDER BY product"
    ) == [(42, "LOT-A", 100, 5000), (43, "LOT-B", 200, 8000)]
    assert (
        inventory.rows("SELECT warehouse, product, quantity FROM accum.inventory_balance_cache WHERE quantity < 0")
        == []
    )
    post(inventory, movement("sale:9", "2026-04-20", 2, 42, "LOT-A", -51))
    assert inventory.rows(
        "SELECT warehouse, product, quantity FROM accum.inventory_balance_cache WHERE quantity < 0"
    ) == [(2, 42, -1)]
    assert inventory.rows(
        "SELECT p.name AS product_name, c.quantity, c.amount FROM accum.inventory_balance_cache c"
        " JOIN products p ON p.id = c.product WHERE c.warehouse = 1 ORDER BY c.amount DESC LIMIT 10"
    ) == [("nut", 200, 8000), ("bolt", 100, 5000)]
    assert inventory.rows(
        "SELECT c.last_movement_id = m.id, c.last_movement_at IN (m.recorded_at, m.period), c.version"
        " FROM accum.inventory_balance_cache c JOIN accum.inventory_movements m USING (dim_hash)"
        " WHERE m.recorder = 'sale:9'"
    ) == [(True, True, inventory.value("SELECT max(version) FROM accum.inventory_balance_cache"))]


def test_null_is_a_dimension_value_of_its_own(inventory: Database) -> None:
    post(
        inventory,
        movement("n:1", "2026-04-18", 1, 42, None, 1, 1),
        movement("n:2", "2026-04-18", 1, 42, "A", 10, 10),
        movement("n:3", "2026-04-18", 1, 42, None, 100, 100),
    )
    cache = "SELECT lot, quantity FROM accum.inventory_balance_cache ORDER BY lot NULLS FIRST"
    assert inventory.rows(cache) == [(None, 101), ("A", 10)]
    assert inventory.value("SELECT count(DISTINCT dim_hash) FROM accum.inventory_balance_cache") == 2
    assert objects(inventory, "accum.inventory_balance(dimensions := '{\"lot\": null}')") == [resources(101, 101)]
    assert objects(inventory, 'accum.inventory_balance(dimensions := \'{"lot": "A"}\')') == [resources(10, 10)]
    assert consistent(inventory, "inventory")


DIMENSIONS = ["select", "Größe", "user", "new", "old", "found", "TABLE", "m", "t", "dimensions", "bucket", "at_date"]
RESOURCES = ["from", "group", "added", "rows", "b", "o", "inserted", "values"]


def test_columns_may_be_called_anything(registers: Database) -> None:
    """Words of SQL and PL/pgSQL, and what the functions call things themselves."""
    db = registers
    db.run(
        "SELECT accum.register_create('odd', %s::jsonb, %s::jsonb)",
        json.dumps(dict.fromkeys(DIMENSIONS, "int")),
        json.dumps(dict.fromkeys(RESOURCES, "int")),
    )
    cell = {name: number for number, name in enumerate(DIMENSIONS)}
    line = {"period": "2026-04-18", **cell, **dict.fromkeys(RESOURCES, 1)}
    assert post(db, {"recorder": "a", **line}, register="odd") == 1
    assert post(db, *({"recorder": "b", **line} for _ in range(3)), register="odd") == 3
    assert db.value("SELECT accum.register_repost('odd', 'b', %s::jsonb)", json.dumps([line, line])) == 2
    db.run('UPDATE accum.odd_movements SET "from" = "from" + 1')
    sums = {**dict.fromkeys(RESOURCES, 3), "from": 6}
    whole, part = json.dumps(cell), json.dumps({"Größe": 1, "t": 8})
    for call in (
        f"accum.odd_balance('{whole}')",
        f"accum.odd_balance('{part}')",
        "accum.odd_balance()",
        f"accum.odd_balance('{part}', '2026-04-18 12:00')",
        f"accum.odd_turnover(dimensions := '{part}')",
    ):
        assert objects(db, call) == [sums], call
    assert objects(db, f"accum.odd_turnover(group_by := '{json.dumps(DIMENSIONS)}')") == [{**cell, **sums}]
    assert len(objects(db, "accum.odd_movements('b', include_audit := true)")) == 2 + 3 + 2
    assert db.rows("SELECT balance FROM accum.odd_balance_at_each('month', '2026-04-01', '2026-04-30')") == [(sums,)]
    db.run("SELECT accum.register_alter('odd', high_write := true)")
    db.run("SELECT accum.register_unpost('odd', 'a')")
    assert objects(db, "accum.odd_balance()") == [{**dict.fromkeys(RESOURCES, 2), "from": 4}]
    assert consistent(db, "odd")


@pytest.mark.parametrize(
    "name", ["period", "recorder", "id", "dim_hash", "version", "_rows", "audit_at", 'a"b', "a b", ""]
)
def test_names_that_columns_cannot_have(registers: Database, name: str) -> None:
    for declared in (({name: "int"}, {"n": "int"}), ({"d": "int"}, {name: "int"})):
        with pytest.raises(psycopg.Error) as failure:
            registers.run(
                "SELECT accum.register_create('odd', %s::jsonb, %s::jsonb)",
                *map(json.dumps, declared),
            )
        assert failure.value.sqlstate in ("42602", "42939")


@pytest.mark.parametrize("high_write", [False, True])
def test_the_balance_of_all_cells(registers: Database, high_write: bool) -> None:
    create = 'SELECT accum.register_create(\'counter\', \'{"lot": "text"}\', \'{"n": "int"}\', high_write := %s)'
    registers.run(create, high_write)
    assert objects(registers, "accum.counter_balance()") == [{"n": 0}]
    for period, lot in (("2026-01-01", '100% "sure"'), ("2026-02-01", None)):
        post(registers, {"recorder": period, "period": period, "lot": lot, "n": 1}, register="counter")
    assert objects(registers, "accum.counter_balance()") == [{"n": 2}]
    assert objects(registers, "accum.counter_balance('{}', '2026-01-31')") == [{"n": 1}]
    cell = json.dumps({"lot": '100% "sure"'})
    assert objects(registers, f"accum.counter_balance('{cell}')") == [{"n": 1}]
    assert objects(registers, f"accum.counter_balance('{cell}', '2026-01-31')") == [{"n": 1}]
    assert objects(registers, "accum.counter_balance('null')") == [{"n": 2}]
    for none in ('"n"', "[]", "1"):
        with pytest.raises(psycopg.Error) as failure:
            registers.run("SELECT accum.counter_balance(%s::jsonb)", none)
        assert failure.value.diag.message_primary == "dimensions must be a JSON object of names and values"
    assert consistent(registers, "counter")
