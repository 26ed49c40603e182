"""Registers as sources: stream tables over movements and over the balance cache stay exact, whatever is posted."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from psycopg import errors

from tests.e2e.conftest import Database
from tests.e2e.registers.registers import IMPORT, RECEIPT, SALE, movement, post
from tests.e2e.subscribe.following import Folded, fetches

OVER_MOVEMENTS = """
SELECT warehouse, date_trunc('month', period AT TIME ZONE 'UTC') AS month, count(*) AS n, sum(quantity) AS quantity
FROM accum.inventory_movements GROUP BY 1, 2
"""
OVER_CACHE = """
SELECT c.warehouse, p.name, sum(c.quantity) AS quantity, max(c.amount) AS largest
FROM accum.inventory_balance_cache c JOIN products p ON p.id = c.product
WHERE c.quantity <> 0 GROUP BY c.warehouse, p.name
"""


@pytest.fixture
def sourced(inventory: Database) -> Iterator[Database]:
    """Two stream tables over the register, which are refreshed by hand only."""
    inventory.run(f"ALTER DATABASE {inventory.name} SET pg_trickle.enabled = off")
    inventory.run("CREATE TABLE products (id int PRIMARY KEY, name text)")
    inventory.run("INSERT INTO products VALUES (42, 'bolt'), (43, 'nut')")
    inventory.run(RECEIPT)
    for name, query in (("by_month", OVER_MOVEMENTS), ("by_name", OVER_CACHE)):
        inventory.create(name, query, refresh_mode="DIFFERENTIAL")
    yield inventory
    for name in ("by_month", "by_name"):
        inventory.run("SELECT pgtrickle.drop_stream_table(%s)", name)
    inventory.run("DROP TABLE products")


def differential(database: Database) -> set[str]:
    """How the stream tables were refreshed last."""
    return {database.last(name)[0] for name in ("by_month", "by_name")}


def test_stream_tables_follow_whatever_is_posted(sourced: Database) -> None:
    sourced.assert_current("by_month", "by_name")
    repost = json.dumps([movement("sales_order:8001", "2026-03-31T12:00:00", 1, 43, None, -3, -30)])
    for statement in (
        SALE,
        IMPORT,
        f"SELECT accum.register_repost('inventory', 'sales_order:8001', '{repost}')",
        "SELECT accum.register_unpost('inventory', 'import:batch_42')",
        "UPDATE accum.inventory_movements SET quantity = quantity + 1, period = '2026-02-01'",
        "SELECT accum.register_unpost('inventory', 'purchase_order:7001')",
    ):
        sourced.run(statement)
        sourced.assert_refreshed("by_month", "by_name")
        assert differential(sourced) <= {"DIFFERENTIAL", "NO_DATA"}
    assert sourced.rows("SELECT warehouse, month::date::text, n FROM by_month") == [(1, "2026-02-01", 1)]


def test_partitions_that_come_and_go(sourced: Database) -> None:
    """Rows are moved out of the default partition, which nobody who reads the table can see."""
    ((later,),) = sourced.rows("SELECT (date_trunc('month', now()) + interval '6 months 3 days')::text")
    post(sourced, movement("future:1", later, 1, 42, "A", 5, 1), movement("future:2", later, 2, 43, "B", 7, 1))
    sourced.assert_refreshed("by_month", "by_name")
    sourced.run("SELECT accum.register_create_partitions('inventory', 7)")
    assert sourced.value("SELECT count(*) FROM ONLY accum.inventory_movements_default WHERE recorder ~ 'future'") == 0
    sourced.assert_refreshed("by_month", "by_name")
    post(sourced, movement("future:3", later, 1, 42, "A", 11, 1))
    sourced.assert_refreshed("by_month", "by_name")
    sourced.run("SELECT accum.register_unpost('inventory', 'future:1')")
    sourced.assert_refreshed("by_month", "by_name")
    assert sourced.value("SELECT sum(quantity) FROM by_month WHERE warehouse = 1") == 111
    sourced.run("SELECT accum.register_detach_partitions('inventory', (now() + interval '1 year')::date)")
    sourced.assert_refreshed("by_month", "by_name")
    assert sourced.rows("SELECT warehouse, quantity FROM by_month") == [(1, 100)]
    assert sourced.value("SELECT sum(quantity) FROM by_name WHERE warehouse = 1") == 111


def test_columns_that_are_added(sourced: Database) -> None:
    sourced.run("SELECT accum.register_alter('inventory', add_dimensions := '{\"color\": \"text\"}')")
    post(sourced, {**movement("new:1", "2026-04-18", 1, 42, "LOT-A", 5, 1), "color": "red"})
    sourced.assert_refreshed("by_month", "by_name")


def test_high_write(sourced: Database) -> None:
    """The balance cache is a view then, of what has been merged: a new cell has zeros until it is."""
    with pytest.raises(errors.DependentObjectsStillExist, match="cannot change high_write"):
        sourced.run("SELECT accum.register_alter('inventory', high_write := true)")
    sourced.run("SELECT pgtrickle.drop_stream_table('by_name')")
    sourced.run(f"ALTER DATABASE {sourced.name} SET pg_accumulator.delta_merge_delay = '1h'")  # is merged by hand
    sourced.run("SELECT accum.register_alter('inventory', high_write := true)")
    sourced.create("by_name", OVER_CACHE)
    for number in (1, 2):
        post(sourced, movement(f"after:{number}", "2026-04-18", 1, 42, "LOT-A", 5, 1))
        sourced.assert_refreshed("by_month", "by_name")
        sourced.run("SELECT accum._force_delta_merge()")
        sourced.assert_refreshed("by_month", "by_name")
    sourced.run(f"ALTER DATABASE {sourced.name} RESET pg_accumulator.delta_merge_delay")
    assert sourced.rows("SELECT quantity FROM by_name") == [(110,)]
    assert sourced.last("by_name")[0] in ("DIFFERENTIAL", "FULL")  # as AUTO finds faster


@pytest.mark.parametrize(
    ("high_write", "balances"),
    [
        (False, "SELECT item, n FROM accum.stock_balance_cache WHERE n <> 0"),
        (True, "SELECT item, sum(n) FROM accum.stock_movements GROUP BY item"),
    ],
)
@pytest.mark.one_in(2)
def test_subscription_to_the_balances(registers: Database, high_write: bool, balances: str) -> None:
    """Every change of a balance arrives: folded, the stream is the balances as they were at each closed timestamp."""
    registers.run(
        'SELECT accum.register_create(\'stock\', \'{"item": "int"}\', \'{"n": "int"}\', high_write := %s)', high_write
    )
    line = {"recorder": "doc:0", "period": "2026-04-18", "item": 1, "n": 1}
    post(registers, line, register="stock")
    reader = registers.connect(autocommit=False)
    reader.execute(f"DECLARE c CURSOR FOR SUBSCRIBE ({balances}) WITH (PROGRESS)")
    folded = Folded()
    changes = [
        (lambda: None, {(1, 1): 1}),
        (lambda: post(registers, line, {**line, "item": 2, "n": 5}, register="stock"), {(1, 2): 1, (2, 5): 1}),
        (lambda: registers.run("SELECT accum._force_delta_merge()"), {(1, 2): 1, (2, 5): 1}),
        (
            lambda: registers.run("SELECT accum.register_repost('stock', 'doc:0', %s::jsonb)", json.dumps([line])),
            {(1, 1): 1},
        ),
        (lambda: registers.run("SELECT accum.register_unpost('stock', 'doc:0')"), {}),
    ]
    rows = fetches(reader, "c")
    for change, expected in changes:
        change()
        deadline = time.monotonic() + 60
        while not (folded.take(next(rows)) and folded.closed and folded.rows == Counter(expected)):
            assert time.monotonic() < deadline, (folded.rows, expected)
    reader.rollback()


def test_dropped_register_stops_its_readers(sourced: Database) -> None:
    sourced.run("SELECT accum.register_drop('inventory', force := true)")
    assert {sourced.state(name)["status"] for name in ("by_month", "by_name")} == {"ERROR"}
    assert sourced.rows("SELECT quantity FROM by_month") == [(100,)]
