"""The register of the reference's API section, and what tests ask about registers."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.e2e.conftest import Database

INVENTORY = """
SELECT accum.register_create(
    name := 'inventory',
    dimensions := '{"warehouse": "int", "product": "int", "lot": "text"}',
    resources := '{"quantity": "numeric(18,4)", "amount": "numeric(18,2)"}',
    kind := 'balance',
    totals_period := 'day',
    partition_by := 'month',
    high_write := false,
    recorder_type := 'text'
)
"""

RECEIPT = """
SELECT accum.register_post('inventory', '{
    "recorder": "purchase_order:7001", "period": "2026-04-18T14:30:00",
    "warehouse": 1, "product": 42, "lot": "LOT-A", "quantity": 100, "amount": 5000.00
}')
"""

SALE = """
SELECT accum.register_post('inventory', '[
    {"recorder": "sales_order:8001", "period": "2026-04-18", "warehouse": 1, "product": 42, "lot": "LOT-A",
     "quantity": -10, "amount": -500.00},
    {"recorder": "sales_order:8001", "period": "2026-04-18", "warehouse": 2, "product": 42, "lot": "LOT-A",
     "quantity": 10, "amount": 500.00}
]')
"""

IMPORT = """
INSERT INTO accum.inventory_movements (recorder, period, warehouse, product, lot, quantity, amount) VALUES
    ('import:batch_42', '2026-04-18', 1, 42, 'LOT-A', 100, 5000.00),
    ('import:batch_42', '2026-04-18', 1, 43, 'LOT-B', 200, 8000.00),
    ('import:batch_42', '2026-04-18', 2, 42, 'LOT-A', 50, 2500.00)
"""


def objects(database: Database, call: str) -> list[dict[str, Any]]:
    """The JSONB objects that a function returns, numbers as exact decimals."""
    rows = database.rows(f"SELECT o::text FROM {call} AS f(o)")
    return [json.loads(text, parse_float=Decimal) for (text,) in rows]


def resources(quantity: float, amount: float) -> dict[str, Any]:
    return {"quantity": quantity, "amount": amount}


def movement(
    recorder: str, period: str, warehouse: int, product: int, lot: str | None, quantity: float, amount: float = 0
) -> dict[str, Any]:
    """A movement of `inventory`, as it is posted."""
    cell = {"warehouse": warehouse, "product": product, "lot": lot}
    return {"recorder": recorder, "period": period, **cell, **resources(quantity, amount)}


def post(database: Database, *movements: dict[str, Any], register: str = "inventory") -> int:
    """`register_post`; how many movements it says."""
    return int(database.value("SELECT accum.register_post(%s, %s::jsonb)", register, json.dumps(movements)))


def consistent(database: Database, name: str) -> bool:
    """Whether `register_verify` finds nothing wrong, and has looked."""
    rows = database.rows("SELECT DISTINCT check_type, status FROM accum.register_verify(%s)", name)
    return rows != [] and {status for _, status in rows} == {"OK"}


def relations(database: Database, pattern: str) -> set[str]:
    """Tables and views of the schema, partitions aside."""
    rows = database.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = 'accum'::regnamespace AND relkind IN ('r', 'p', 'v')"
        " AND NOT relispartition AND relname LIKE %s",
        pattern,
    )
    return {name for (name,) in rows}
