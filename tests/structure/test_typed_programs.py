"""What programs of users import is typed: mypy finds the mistakes in one, and nothing in what is right."""

from __future__ import annotations

import subprocess
import sys

from tests.structure.figures import ROOT

PROGRAM = """
from datetime import date
from decimal import Decimal
from typing import Any

import psycopg

from headwater.queues import Event, consumer
from headwater.registers import Register, RegisterClient, dimension, resource


class Stock(Register, name="stock"):
    product: int = dimension("int")
    lot: str | None = dimension("text")
    quantity: Decimal = resource("numeric(9,2)")


def ask(connection: psycopg.Connection[Any]) -> Decimal:
    stock = RegisterClient(connection, Stock)
    stock.post(Stock(recorder="a", period=date(2026, 1, 1), product=1, lot=None, quantity=Decimal(1)))
    stock.post(Stock(recorder="a", period=date(2026, 1, 1), product="x", lot=None, quantity=Decimal(1)))  # arg-type
    stock.post(Stock(recorder="a", period=date(2026, 1, 1), product=1, lot=None))  # call-arg
    stock.statement("week")  # arg-type
    return stock.movements()[0].posted.quantity


class Wrong(Register, name="wrong", kind="nonsense"):  # arg-type
    product: int = dimension("int")


orders = consumer("", "orders", "billing")


@orders.on("order.created")
def created(event: Event, connection: psycopg.Connection[Any]) -> None:
    connection.execute("SELECT")


for batch in orders:
    with batch.transaction() as connection:
        connection.execute("SELECT %s", [batch.events[0].decode(list[int])[0]])
        for event in batch:
            event.payload.strip()  # union-attr
"""


def test_mistakes_are_found() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "-c", PROGRAM]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    found = {
        (int(line.split(":")[1]), line.rpartition("[")[2][:-1])
        for line in done.stdout.splitlines()
        if line.startswith("<string>:")
    }
    expected = {
        (number, line.partition("  # ")[2])
        for number, line in enumerate(PROGRAM.splitlines(), start=1)
        if "  # " in line
    }
    assert found == expected, done.stdout + done.stderr
