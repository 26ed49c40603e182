"""Registers as their reference describes them: its examples and what it promises beside them, through the wire."""

from __future__ import annotations

import json
from decimal import Decimal

import psycopg
import pytest

from tests.e2e.conftest import Database
from tests.e2e.registers.registers import (
    IMPORT,
    INVENTORY,
    RECEIPT,
    SALE,
    consistent,
    movement,
    objects,
    post,
    relations,
    resources,
)

# ---------------------------------------------------------------------------------------------------------------------
# Quick start


def test_quick_start(registers: Database) -> None:
    registers.run("CREATE EXTENSION IF NOT EXISTS pg_accumulator")
    connection = registers.connect(options="-c search_path=accum,public")  # so that the prefix can be omitted
    connection.execute("""
        SELECT register_create(
            name := 'inventory', dimensions := '{"warehouse": "int", "product": "int"}',
            resources := '{"quantity": "numeric(18,4)", "amount": "numeric(18,2)"}', kind := 'balance')
    """)
    posted = connection.execute("""
        SELECT register_post('inventory', '{"recorder": "receipt:1", "period": "2026-04-18", "warehouse": 1,
            "product": 42, "quantity": 100, "amount": 5000.00}')
    """).fetchone()
    assert posted == (1,)
    (balance,) = connection.execute(
        """SELECT b::text FROM accum.inventory_balance(dimensions := '{"warehouse": 1, "product": 42}') AS b"""
    ).fetchall()
    assert balance == ('{"amount": 5000.00, "quantity": 100.0000}',)
    assert connection.execute("SELECT * FROM inventory_balance()").fetchall() == [({"quantity": 100, "amount": 5000},)]


def test_overview(registers: Database) -> None:
    """Resources of numeric without a scale keep the digits they are given."""
    connection = registers.connect(options="-c search_path=accum")
    connection.execute("""
        SELECT register_create(
            name := 'inventory', dimensions := '{"warehouse": "int", "product": "int", "lot": "text"}',
            resources := '{"quantity": "numeric", "amount": "numeric"}', kind := 'balance', totals_period := 'day')
    """)
    connection.execute("""
        SELECT register_post('inventory', '{"recorder": "purchase_order:7001", "period": "2026-04-18",
            "warehouse": 1, "product": 42, "lot": "LOT-A", "quantity": 100, "amount": 5000.125}')
    """)
    call = """accum.inventory_balance(dimensions := '{"warehouse": 1, "product": 42}')"""
    assert objects(registers, call) == [{"quantity": 100, "amount": Decimal("5000.125")}]


# ---------------------------------------------------------------------------------------------------------------------
# Registry


def functions(database: Database, pattern: str) -> set[str]:
    rows = database.rows(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'accum'::regnamespace AND proname LIKE %s", pattern
    )
    return {name for (name,) in rows}


def test_what_is_created_automatically(inventory: Database) -> None:
    tables = {"movements", "totals_day", "totals_month", "totals_year", "balance_cache"}
    assert relations(inventory, "inventory%") >= {f"inventory_{table}" for table in tables}
    reading = {"inventory_balance", "inventory_turnover", "inventory_movements"}
    assert functions(inventory, "inventory%") >= reading
    assert functions(inventory, r"\_hash\_inventory") == {"_hash_inventory"}
    assert functions(inventory, r"\_trg\_inventory\_%") != set()
    partitioned = inventory.value("SELECT relkind FROM pg_class WHERE oid = 'accum.inventory_movements'::regclass")
    assert partitioned == b"p" or partitioned == "p"


def test_columns_of_the_tables(inventory: Database) -> None:
    columns = (
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
    )
    cell = {"dim_hash": "bigint", "warehouse": "integer", "product": "integer", "lot": "text"}
    sums = {"quantity": "numeric(18,4)", "amount": "numeric(18,2)"}
    stamp = "timestamp with time zone"
    expected = {
        "movements": cell
        | sums
        | {"id": "uuid", "recorded_at": stamp, "recorder": "text", "period": stamp, "movement_type": "text"},
        "totals_day": cell | sums | {"period": "date"},
        "totals_month": cell | sums | {"period": "date"},
        "totals_year": cell | sums | {"period": "date"},
        "balance_cache": cell | sums | {"last_movement_at": stamp, "last_movement_id": "uuid", "version": "bigint"},
    }
    for table, wanted in expected.items():
        found = dict(inventory.rows(columns, f"accum.inventory_{table}"))
        assert {name: found.get(name) for name in wanted} == wanted, table


@pytest.mark.parametrize(
    ("period", "levels"), [("day", ["day", "month", "year"]), ("month", ["month", "year"]), ("year", ["year"])]
)
def test_totals_period_decides_which_totals_there_are(registers: Database, period: str, levels: list[str]) -> None:
    registers.run(
        'SELECT accum.register_create(\'visits\', \'{"page": "text"}\', \'{"n": "int"}\', totals_period := %s)', period
    )
    assert relations(registers, r"visits\_totals\_%") == {f"visits_totals_{level}" for level in levels}
    registers.run("""SELECT accum.register_post('visits', '[
        {"recorder": "a", "period": "2024-02-29T23:59:59", "page": "x", "n": 1},
        {"recorder": "b", "period": "2026-03-01", "page": "x", "n": 10},
        {"recorder": "c", "period": "2026-03-15T12:00:00", "page": "x", "n": 100}]')""")
    for at, total in [
        ("2024-02-28", 0),
        ("2024-02-29", 1),
        ("2026-03-14", 11),
        ("2026-03-15", 111),
        ("2027-01-01", 111),
    ]:
        assert objects(registers, f"accum.visits_balance(at_date := '{at}')") == [{"n": total}], at
    for bounds, total in [
        (("2024-01-01", "2024-12-31"), 1),
        (("2026-03-01", "2026-03-14"), 10),
        (("2026-01-01", "2026-12-31"), 110),
    ]:
        call = "accum.visits_turnover(from_date := '{}', to_date := '{}')".format(*bounds)
        assert objects(registers, call) == [{"n": total}], bounds


def test_turnover_register_has_no_balance(registers: Database) -> None:
    registers.run("""SELECT accum.register_create(name := 'sales', dimensions := '{"product": "int", "region": "text"}',
              resources := '{"amount": "numeric(18,2)"}', kind := 'turnover')""")
    assert "sales_balance_cache" not in relations(registers, "sales%")
    assert functions(registers, "sales%") & {"sales_balance", "sales_turnover", "sales_movements"} == {
        "sales_turnover",
        "sales_movements",
    }
    registers.run("""SELECT accum.register_post('sales', '[
        {"recorder": "s:1", "period": "2026-04-02", "product": 1, "region": "north", "amount": 10},
        {"recorder": "s:2", "period": "2026-04-30", "product": 1, "region": "south", "amount": 5.5}]')""")
    call = "accum.sales_turnover(from_date := '2026-04-01', to_date := '2026-04-30')"
    assert objects(registers, call) == [{"amount": Decimal("15.5")}]
    assert consistent(registers, "sales")


DIMENSION_TYPES = ["int", "bigint", "smallint", "text", "varchar(12)", "uuid", "date", "boolean"]
RESOURCE_TYPES = ["numeric(12,3)", "integer", "bigint", "double precision", "real"]


def test_every_supported_type(registers: Database) -> None:
    dimensions = {f"d{n}": name for n, name in enumerate(DIMENSION_TYPES)}
    resources = {f"r{n}": name for n, name in enumerate(RESOURCE_TYPES)}
    registers.run(
        "SELECT accum.register_create('typed', %s::jsonb, %s::jsonb, recorder_type := 'bigint')",
        *(json.dumps(dimensions), json.dumps(resources)),
    )
    cell = {
        **{"d0": 2147483647, "d1": 9223372036854775807, "d2": -32768, "d3": 'a "quoted" \\ text', "d4": "twelve chars"},
        **{"d5": "550e8400-e29b-41d4-a716-446655440000", "d6": "2026-02-28", "d7": False},
    }
    movement = {"recorder": 9007199254740993, "period": "2026-04-18", **cell}
    amounts = {"r0": 1.125, "r1": 7, "r2": 5000000000, "r3": 0.5, "r4": -0.25}
    assert registers.value("SELECT accum.register_post('typed', %s::jsonb)", json.dumps({**movement, **amounts})) == 1
    assert registers.value("SELECT accum.register_post('typed', %s::jsonb)", json.dumps({**movement, **amounts})) == 1
    doubled = {name: 2 * value for name, value in amounts.items()}
    (whole,) = objects(registers, f"accum.typed_balance(dimensions := $json${json.dumps(cell)}$json$)")
    assert {name: float(value) for name, value in whole.items()} == doubled
    for name, value in cell.items():  # each dimension alone finds the cell
        (found,) = objects(registers, f"accum.typed_balance(dimensions := $json${json.dumps({name: value})}$json$)")
        assert found == whole, name
    assert registers.value("SELECT count(*) FROM accum.typed_balance_cache") == 1
    assert consistent(registers, "typed")
    assert registers.value("SELECT accum.register_unpost('typed', 9007199254740993)") == 2
    (nothing,) = objects(registers, "accum.typed_balance()")
    assert set(nothing.values()) == {0}


def test_alter_adds_a_dimension(inventory: Database) -> None:
    inventory.run(RECEIPT)
    inventory.run("SELECT accum.register_alter(p_name := 'inventory', add_dimensions := '{\"color\": \"text\"}')")
    assert inventory.rows("SELECT color, quantity FROM accum.inventory_movements") == [(None, 100)]
    without = movement("po:2", "2026-04-19", 1, 42, "LOT-A", 1, 1)
    with pytest.raises(psycopg.Error, match="color"):
        post(inventory, without)
    assert post(inventory, {**without, "color": "red"}, {**without, "color": None}) == 2
    cache = "SELECT color, quantity FROM accum.inventory_balance_cache ORDER BY color NULLS FIRST"
    assert inventory.rows(cache) == [(None, 101), ("red", 1)]
    assert objects(inventory, 'accum.inventory_balance(dimensions := \'{"color": "red"}\')') == [resources(1, 1)]
    assert objects(inventory, "accum.inventory_balance(dimensions := '{\"warehouse\": 1}')") == [resources(102, 5002)]
    assert consistent(inventory, "inventory")


@pytest.mark.parametrize("type_", DIMENSION_TYPES)
def test_a_new_dimension_leaves_cells_as_they_are(inventory: Database, type_: str) -> None:
    inventory.run(RECEIPT)
    inventory.run("SELECT accum.register_alter('inventory', %s::jsonb)", json.dumps({"more": type_}))
    assert post(inventory, {**movement("po:2", "2026-04-19", 1, 42, "LOT-A", 1, 1), "more": None}) == 1
    assert inventory.rows("SELECT more, quantity FROM accum.inventory_balance_cache") == [(None, 101)]
    cell = json.dumps({"warehouse": 1, "product": 42, "lot": "LOT-A", "more": None})
    assert objects(inventory, f"accum.inventory_balance('{cell}')") == [resources(101, 5001)]
    assert objects(inventory, f"accum.inventory_balance('{cell}', '2026-04-18')") == [resources(100, 5000)]


def test_alter_adds_a_resource_that_was_zero_always(inventory: Database) -> None:
    inventory.run(RECEIPT)
    inventory.run(
        "SELECT accum.register_alter(p_name := 'inventory', add_resources := '{\"weight\": \"numeric(12,3)\"}')"
    )
    (balance,) = objects(inventory, "accum.inventory_balance()")
    assert balance == {**resources(100, 5000), "weight": 0}
    assert inventory.rows("SELECT DISTINCT weight FROM accum.inventory_totals_month") == [(0,)]
    post(inventory, {**movement("po:2", "2026-04-19", 1, 42, "LOT-A", 1, 1), "weight": 2.5})
    assert inventory.rows("SELECT quantity, weight FROM accum.inventory_balance_cache") == [(101, Decimal("2.5"))]
    assert consistent(inventory, "inventory")


def test_alter_switches_high_write(inventory: Database) -> None:
    inventory.run(RECEIPT)
    inventory.run("SELECT accum.register_alter(p_name := 'inventory', high_write := true)")
    assert inventory.value("SELECT accum.register_info('inventory') -> 'high_write'") is True
    assert "inventory_balance_cache_delta" in relations(inventory, "inventory%")
    inventory.run(SALE)
    assert objects(inventory, "accum.inventory_balance(dimensions := '{\"warehouse\": 1}')") == [resources(90, 4500)]
    inventory.run("SELECT accum.register_alter(p_name := 'inventory', high_write := false)")
    assert inventory.value("SELECT accum.register_info('inventory') -> 'high_write'") is False
    cache = "SELECT warehouse, quantity, amount FROM accum.inventory_balance_cache ORDER BY warehouse"
    assert inventory.rows(cache) == [(1, 90, 4500), (2, 10, 500)]
    assert consistent(inventory, "inventory")


def test_drop(inventory: Database) -> None:
    inventory.run(RECEIPT)
    with pytest.raises(psycopg.Error, match="inventory") as failure:
        inventory.run("SELECT accum.register_drop('inventory')")
    assert "force" in f"{failure.value.diag.message_detail} {failure.value.diag.message_hint}"
    assert inventory.value("SELECT count(*) FROM accum.inventory_movements") == 1
    inventory.run("SELECT accum.register_drop('inventory', force := true)")
    assert inventory.rows("SELECT name FROM accum.register_list()") == []
    assert relations(inventory, "inventory%") == set()
    assert functions(inventory, "%inventory%") == set()
    with pytest.raises(psycopg.Error, match="inventory"):
        inventory.run("SELECT accum.register_drop('inventory')")
    inventory.run(INVENTORY)
    inventory.run("SELECT accum.register_drop('inventory')")  # has no movements
    assert inventory.rows("SELECT name FROM accum.register_list()") == []


def test_list_and_info(inventory: Database) -> None:
    inventory.run("""SELECT accum.register_create('sales', '{"product": "int", "region": "text"}', '{"amount": "real"}',
                     'turnover')""")
    inventory.run(SALE)
    cursor = inventory.run("SELECT * FROM accum.register_list() ORDER BY name")
    assert [column.name for column in cursor.description or ()] == [
        *("name", "kind", "dimensions", "resources", "movements_count", "created_at")
    ]
    assert [row[:5] for row in cursor] == [("inventory", "balance", 3, 2, 2), ("sales", "turnover", 2, 1, 0)]
    info = inventory.value("SELECT accum.register_info('inventory')")
    assert inventory.value("SELECT %s::timestamptz BETWEEN now() - interval '1 hour' AND now()", info.pop("created_at"))
    assert info == {
        **{"name": "inventory", "kind": "balance"},
        "dimensions": {"warehouse": "int", "product": "int", "lot": "text"},
        "resources": {"quantity": "numeric(18,4)", "amount": "numeric(18,2)"},
        **{"totals_period": "day", "partition_by": "month", "high_write": False},
        **{"recorder_type": "text", "movements_count": 2},
        "tables": {
            key: f"accum.inventory_{key}"
            for key in ("movements", "balance_cache", "totals_day", "totals_month", "totals_year")
        },
    }


# ---------------------------------------------------------------------------------------------------------------------
# Writing


def test_post_single_and_batch(inventory: Database) -> None:
    assert inventory.value(RECEIPT) == 1
    assert inventory.value(SALE) == 2
    assert inventory.rows(
        "SELECT recorder, period::text, movement_type, warehouse, product, lot, quantity, amount,"
        " recorded_at BETWEEN now() - interval '1 minute' AND now(), id IS NOT NULL,"
        " dim_hash = (SELECT c.dim_hash FROM accum.inventory_balance_cache c WHERE c.warehouse = m.warehouse)"
        " FROM accum.inventory_movements m ORDER BY recorder, warehouse"
    ) == [
        ("purchase_order:7001", "2026-04-18 14:30:00+00", "regular", 1, 42, "LOT-A", 100, 5000, True, True, True),
        ("sales_order:8001", "2026-04-18 00:00:00+00", "regular", 1, 42, "LOT-A", -10, -500, True, True, True),
        ("sales_order:8001", "2026-04-18 00:00:00+00", "regular", 2, 42, "LOT-A", 10, 500, True, True, True),
    ]
    assert inventory.rows("SELECT warehouse, quantity FROM accum.inventory_totals_month ORDER BY 1") == [
        (1, 90),
        (2, 10),
    ]
    assert inventory.rows("SELECT DISTINCT period::text FROM accum.inventory_totals_year") == [("2026-01-01",)]
    assert inventory.value("SELECT accum.register_post('inventory', '[]')") == 0


def test_unpost(inventory: Database) -> None:
    inventory.run(RECEIPT)
    before = inventory.rows("SELECT warehouse, quantity, amount FROM accum.inventory_balance_cache WHERE quantity <> 0")
    inventory.run(SALE)
    assert inventory.value("SELECT accum.register_unpost('inventory', 'sales_order:8001')") == 2
    assert inventory.value("SELECT accum.register_unpost('inventory', 'sales_order:8001')") == 0
    assert (
        inventory.rows("SELECT warehouse, quantity, amount FROM accum.inventory_balance_cache WHERE quantity <> 0")
        == before
    )
    assert objects(inventory, "accum.inventory_balance(dimensions := '{\"warehouse\": 2}')") == [resources(0, 0)]
    assert consistent(inventory, "inventory")


def test_repost(inventory: Database) -> None:
    inventory.run(RECEIPT)
    inventory.run(SALE)
    replaced = inventory.value("""
        SELECT accum.register_repost('inventory', 'sales_order:8001', '[
            {"period": "2026-04-18", "warehouse": 1, "product": 42, "lot": "LOT-A",
              "quantity": -12, "amount": -600.00}]')
    """)
    assert replaced == 1
    assert inventory.rows(
        "SELECT movement_type, warehouse, quantity FROM accum.inventory_movements WHERE recorder = 'sales_order:8001'"
    ) == [("adjustment", 1, -12)]
    assert objects(inventory, "accum.inventory_balance()") == [resources(88, 4400)]
    assert objects(inventory, "accum.inventory_balance(dimensions := '{\"warehouse\": 2}')") == [resources(0, 0)]
    assert consistent(inventory, "inventory")


def test_direct_insert_and_copy(inventory: Database) -> None:
    inventory.run(IMPORT)
    with inventory.connection.cursor().copy(
        "COPY accum.inventory_movements (recorder, period, warehouse, product, lot, quantity, amount) FROM STDIN"
    ) as copy:
        copy.write_row(("import:copy", "2026-05-01", 1, 42, "LOT-A", 7, 350))
    cache = "SELECT warehouse, product, lot, quantity, amount FROM accum.inventory_balance_cache ORDER BY 1, 2"
    assert inventory.rows(cache) == [
        (1, 42, "LOT-A", 107, 5350),
        (1, 43, "LOT-B", 200, 8000),
        (2, 42, "LOT-A", 50, 2500),
    ]
    assert consistent(inventory, "inventory")
    assert inventory.value("SELECT accum.register_unpost('inventory', 'import:batch_42')") == 3
