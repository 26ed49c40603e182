"""`headwater.registers`: registers declared as classes, sync and async, against a server, through the wire."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from headwater.registers import (
    AsyncRegisterClient,
    Register,
    RegisterClient,
    RegisterMismatch,
    StatementLine,
    dimension,
    resource,
)
from tests.e2e.conftest import Database
from tests.e2e.registers.registers import consistent

FLAVOURS = pytest.mark.parametrize("flavour", ["sync", "async"])
SECONDS = 60.0


class Stock(Register, name="stock"):
    warehouse: int = dimension("int")
    product: int = dimension("int")
    lot: str | None = dimension("varchar(20)")
    quantity: Decimal = resource("numeric(18,4)")
    amount: Decimal = resource("numeric(18,2)")


class Usage(Register, name="usage", kind="turnover", recorder_type="uuid", totals_period="month"):
    """Each type that a dimension or a resource can have."""

    i: int | None = dimension("integer")
    b: int | None = dimension("bigint")
    s: int | None = dimension("smallint")
    t: str | None = dimension("text")
    v: str | None = dimension("character varying(9)")
    u: UUID | None = dimension("uuid")
    d: date | None = dimension("date")
    yes: bool | None = dimension("boolean")
    n: Decimal = resource("numeric")
    c: int = resource("int8")
    k: int = resource("INT")
    f: float = resource("double precision")
    r: float = resource("real")


class Synchronously:
    """An asynchronous client, each call of which is waited for: what the tests ask is the same for both."""

    def __init__(self, client: AsyncRegisterClient[Any], loop: asyncio.AbstractEventLoop):
        self._client, self._loop = client, loop

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        assert inspect.iscoroutinefunction(method)
        return lambda *args, **named: self._loop.run_until_complete(method(*args, **named))


@contextmanager
def client(database: Database, register: type[Any], flavour: str) -> Iterator[Any]:
    """A client of the register, on a connection of its own in autocommit mode."""
    if flavour == "sync":
        yield RegisterClient(database.connect(), register)
        return
    with asyncio.Runner() as runner:
        dsn = database.server.dsn(database.name)
        connection = runner.run(psycopg.AsyncConnection.connect(dsn, autocommit=True))
        try:
            yield Synchronously(AsyncRegisterClient(connection, register), runner.get_loop())
        finally:
            runner.run(connection.close())


def receipt(
    number: int, day: datetime | date, product: int = 42, lot: str | None = None, quantity: str = "10"
) -> Stock:
    exact = Decimal(quantity)
    return Stock(
        recorder=f"receipt:{number}",
        period=day,
        warehouse=1,
        product=product,
        lot=lot,
        quantity=exact,
        amount=5 * exact,
    )


@FLAVOURS
def test_life_of_a_register(registers: Database, flavour: str) -> None:
    with client(registers, Stock, flavour) as stock:
        stock.create()
        with pytest.raises(psycopg.errors.DuplicateObject):
            stock.create()
        posted = [receipt(1, date(2026, 1, 15)), receipt(1, date(2026, 1, 15), 43, "A"), receipt(2, date(2026, 2, 3))]
        assert stock.post(*posted) == 3
        assert stock.balance() == {"quantity": Decimal("30.0000"), "amount": Decimal("150.00")}
        assert stock.balance({"product": 42}, at=date(2026, 1, 31)) == {"quantity": 10, "amount": 50}
        assert stock.balance({"lot": None})["quantity"] == 20
        assert stock.repost(receipt(2, date(2026, 2, 4), quantity="0.0001")) == 1
        assert stock.unpost("receipt:1") == 2
        assert stock.unpost("receipt:1") == 0
        assert stock.balance() == {"quantity": Decimal("0.0001"), "amount": Decimal("0.00")}
        assert consistent(registers, "stock")
        with pytest.raises(psycopg.Error, match="movements"):
            stock.drop()
        stock.drop(force=True)
    assert registers.rows("SELECT * FROM accum.register_list()") == []


@FLAVOURS
def test_questions_with_filters(registers: Database, flavour: str) -> None:
    with client(registers, Stock, flavour) as stock:
        stock.create()
        stock.post(
            receipt(1, datetime(2026, 1, 15, 12, tzinfo=UTC)),
            receipt(2, datetime(2026, 2, 3, 8, tzinfo=UTC), lot="A", quantity="2.5"),
            receipt(3, datetime(2026, 2, 3, 9, tzinfo=UTC), 43, quantity="-1"),
            receipt(4, datetime(2026, 3, 1, tzinfo=UTC), 43, quantity="1"),
        )
        february = {"from_date": date(2026, 2, 1), "to_date": date(2026, 2, 28)}
        assert stock.turnover(**february) == {"quantity": Decimal("1.5000"), "amount": Decimal("7.50")}
        assert stock.turnover({"product": 44}, **february) == {"quantity": 0, "amount": 0}
        assert stock.turnovers(["product", "lot"], {"warehouse": 1}, **february) == [
            {"product": 42, "lot": "A", "quantity": Decimal("2.5000"), "amount": Decimal("12.50")},
            {"product": 43, "lot": None, "quantity": Decimal("-1.0000"), "amount": Decimal("-5.00")},
        ]
        assert stock.turnovers(["product"], {"product": 44}) == []
        cells = stock.balances({"warehouse": 1})
        assert [(cell["product"], cell["lot"], cell["quantity"]) for cell in cells] == [
            (42, "A", Decimal("2.5000")),
            (42, None, Decimal("10.0000")),
            (43, None, Decimal("0.0000")),
        ]
        assert [cell["product"] for cell in stock.balances(nonzero=True)] == [42, 42]
        assert [cell["quantity"] for cell in stock.balances({"product": 42, "lot": None})] == [10]
        assert stock.statement(
            "month", {"product": 42}, from_date=date(2026, 1, 1), to_date=datetime(2026, 2, 3, 8, tzinfo=UTC)
        ) == [
            StatementLine(date(2026, 1, 1), {"quantity": 10, "amount": 50}, {"quantity": 10, "amount": 50}),
            StatementLine(
                date(2026, 2, 1),
                {"quantity": Decimal("2.5"), "amount": Decimal("12.5")},
                {"quantity": Decimal("12.5"), "amount": Decimal("62.5")},
            ),
        ]
        days = [
            line.period_start for line in stock.statement("day", from_date=date(2026, 2, 3), to_date=date(2026, 2, 5))
        ]
        assert days == [date(2026, 2, 3), date(2026, 2, 4), date(2026, 2, 5)]


@FLAVOURS
def test_movements_are_instances_of_the_class(registers: Database, flavour: str) -> None:
    with client(registers, Stock, flavour) as stock:
        stock.create()
        berlin = timezone(timedelta(hours=1))
        first, second = (
            receipt(1, datetime(2026, 1, 15, 12, 30, 0, 250_000, tzinfo=berlin)),
            receipt(2, date(2026, 2, 3)),
        )
        stock.post(first, second)
        before = datetime.now(UTC) - timedelta(minutes=5)
        found = stock.movements()
        assert [movement.posted for movement in found] == [first, receipt(2, datetime(2026, 2, 3, tzinfo=UTC))]
        assert all(m.recorded_at > before and m.movement_type == "regular" and not m.correction for m in found)
        assert len({movement.id for movement in found}) == 2 and isinstance(found[0].id, UUID)
        assert stock.movements(recorder="receipt:2") == found[1:]
        assert stock.movements({"product": 42}, from_date=date(2026, 2, 1)) == found[1:]
        assert stock.movements(to_date=date(2026, 1, 15)) == found[:1]
        assert stock.movements({"product": 1}) == []
        stock.repost(receipt(1, date(2026, 1, 15), quantity="11"))
        now, then = stock.movements(recorder="receipt:1", corrected=True)
        assert (now.posted.quantity, now.movement_type, now.correction) == (11, "adjustment", None)
        assert (then.id, then.posted) == (found[0].id, first)
        assert then.correction.operation == "repost" and then.correction.user == "postgres"
        assert then.correction.at > before


@FLAVOURS
def test_values_of_every_type_come_back_as_they_were(registers: Database, flavour: str) -> None:
    nothing = dict.fromkeys("ibstvud")
    values: dict[str, Any] = {
        **{"i": 2**31 - 1, "b": -(2**63), "s": 7, "t": 'Grüße "\\\n', "v": "{}", "u": uuid4(), "d": date(1, 1, 1)},
        **{"yes": False, "n": Decimal("12345678901234567890.00000000000000000001"), "c": 2**63 - 1, "k": -1},
        **{"f": 0.1, "r": 0.5},
    }
    document = uuid4()
    full = Usage(recorder=document, period=datetime(2026, 1, 1, tzinfo=UTC), **values)
    empty = Usage(recorder=document, period=full.period, yes=None, n=Decimal(5), c=-5, k=0, f=-1e300, r=1.0, **nothing)
    with client(registers, Usage, flavour) as usage:
        usage.ensure()
        assert usage.post(full, empty) == 2
        found = usage.movements(recorder=document)
        assert {movement.posted for movement in found} == {full, empty}
        for movement in found:
            original = full if movement.posted == full else empty
            for name, value in vars(movement.posted).items():
                assert type(value) is type(getattr(original, name)), name
        groups = usage.turnovers(["yes", "u", "d", "b"])
        assert [(g["yes"], g["u"], g["d"], g["b"]) for g in groups] == [
            (False, values["u"], values["d"], values["b"]),
            (None, None, None, None),
        ]
        total = usage.turnover({"u": values["u"], "d": values["d"], "yes": False})
        assert total == {name: values[name] for name in "nckfr"}
        assert {type(total[name]) for name in "fr"} == {float} and type(total["n"]) is Decimal
        assert usage.unpost(document) == 2
    with pytest.raises(psycopg.errors.UndefinedFunction):
        RegisterClient(registers.connection, Usage).balance()


def test_register_grows_with_its_class(registers: Database) -> None:
    class Old(Register, name="growing"):
        product: int = dimension("integer")
        quantity: Decimal = resource("decimal(9, 2)")

    class New(Register, name="growing", high_write=True):
        product: int = dimension("int4")
        color: str | None = dimension("text")
        quantity: Decimal = resource("numeric(9,2)")
        weight: Decimal = resource("numeric(12,3)")

    old, new = RegisterClient(registers.connection, Old), RegisterClient(registers.connection, New)
    old.ensure()
    old.ensure()
    old.post(Old(recorder="a", period=date(2026, 1, 1), product=1, quantity=Decimal(3)))
    new.ensure()
    new.ensure()
    period = datetime(2026, 1, 1, tzinfo=UTC)
    assert [m.posted for m in new.movements()] == [
        New(recorder="a", period=period, product=1, color=None, quantity=Decimal(3), weight=Decimal(0))
    ]
    new.post(New(recorder="b", period=period, product=1, color="red", quantity=Decimal(1), weight=Decimal("0.5")))
    assert new.balance({"color": "red"}) == {"quantity": 1, "weight": Decimal("0.5")}
    info = registers.value("SELECT accum.register_info('growing')")
    assert info["high_write"] is True and sorted(info["dimensions"]) == ["color", "product"]
    with pytest.raises(RegisterMismatch, match=r"dimension color is text in the database, and None in the class"):
        old.ensure()


@pytest.mark.parametrize(
    ("options", "type", "message"),
    [
        ({"kind": "turnover"}, "int", "kind is balance"),
        ({"totals_period": "year"}, "int", "totals_period is day"),
        ({"partition_by": "day"}, "int", "partition_by is month"),
        ({"recorder_type": "bigint"}, "int", "recorder_type is text"),
        ({}, "text", "dimension product is int"),
    ],
)
def test_what_cannot_be_altered_is_refused(
    registers: Database, options: dict[str, Any], type: str, message: str
) -> None:
    class Present(Register, name="there"):
        product: int = dimension("int")
        quantity: int = resource("int")

    class Wanted(Register, name="there", **options):
        product: Any = dimension(type)
        quantity: int = resource("int")

    RegisterClient(registers.connection, Present).create()
    with pytest.raises(RegisterMismatch, match=message):
        RegisterClient(registers.connection, Wanted).ensure()


def test_everything_happens_in_the_transaction_of_the_program(registers: Database) -> None:
    with registers.connect(autocommit=False) as connection:
        connection.row_factory = dict_row  # type: ignore[assignment]
        stock = RegisterClient(connection, Stock)
        stock.ensure()
        stock.post(receipt(1, date(2026, 1, 15)))
        assert stock.balance()["quantity"] == 10
        connection.rollback()
        assert registers.rows("SELECT * FROM accum.register_list()") == []
        stock.ensure()
        connection.commit()
    assert len(registers.rows("SELECT * FROM accum.register_list()")) == 1


def test_postings_in_a_session_of_sqlalchemy(registers: Database) -> None:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(registers.server.dsn(registers.name))
    )
    RegisterClient(registers.connection, Stock).create()
    try:
        with Session(engine) as session:
            session.execute(sqlalchemy.text("CREATE TABLE receipts (number int)"))
            stock = RegisterClient(session.connection().connection.driver_connection, Stock)
            stock.post(receipt(1, date(2026, 1, 15)))
            session.rollback()
            session.execute(sqlalchemy.text("CREATE TABLE receipts (number int)"))
            stock = RegisterClient(session.connection().connection.driver_connection, Stock)
            stock.post(receipt(2, date(2026, 1, 15)))
            session.commit()
        found = RegisterClient(registers.connection, Stock).movements()
        assert [movement.posted.recorder for movement in found] == ["receipt:2"]
        registers.run("DROP TABLE receipts")
    finally:
        engine.dispose()


def test_names_are_quoted_and_values_bound(registers: Database) -> None:
    class Odd(Register, name="Select"):
        order: str | None = dimension("text")
        Übung: int = dimension("int")
        table: Decimal = resource("numeric(9,2)")

    odd = RegisterClient(registers.connection, Odd)
    odd.create()
    evil = "'); DROP TABLE accum._registers; -- %s"
    odd.post(Odd(recorder=evil, period=date(2026, 1, 1), order=evil, Übung=1, table=Decimal(1)))
    assert odd.balance({"order": evil}) == {"table": 1}
    assert odd.balances({"order": evil, "Übung": 1}) == [{"order": evil, "Übung": 1, "table": 1}]
    assert odd.turnovers(["order", "Übung"]) == [{"order": evil, "Übung": 1, "table": 1}]
    assert [m.posted.recorder for m in odd.movements({"order": evil}, recorder=evil)] == [evil]
    for ask in (odd.balance, odd.balances, odd.turnover, odd.movements):
        with pytest.raises(psycopg.errors.UndefinedColumn, match=r"x; DROP"):
            ask({'x; DROP TABLE "y': 1})
    assert odd.unpost(evil) == 1


def test_mistakes_are_found_before_anything_is_sent(registers: Database) -> None:
    with pytest.raises(ValueError, match="a dimension cannot be of type 'json'"):
        dimension("json")
    with pytest.raises(ValueError, match="a resource cannot be of type 'text'"):
        resource("text")
    stock = RegisterClient(registers.connection, Stock)
    stock.create()
    with pytest.raises(ValueError, match="NaN cannot be posted"):
        stock.post(receipt(1, date(2026, 1, 1), quantity="NaN"))
    with pytest.raises(ValueError, match="not of 2"):
        stock.repost(receipt(1, date(2026, 1, 1)), receipt(2, date(2026, 1, 1)))
    with pytest.raises(ValueError, match="unpost"):
        stock.repost()
    with pytest.raises(TypeError, match="quantity"):
        Stock(recorder="a", period=date(2026, 1, 1), warehouse=1, product=1, lot=None, amount=Decimal(1))  # type: ignore[call-arg]
    assert stock.movements() == []


def test_registers_of_another_schema(live_db: Database) -> None:
    class Elsewhere(Register, name="stock", schema="finance"):
        product: int = dimension("int")
        quantity: Decimal = resource("numeric(9,2)")

    live_db.run("CREATE EXTENSION pg_accumulator SCHEMA finance")
    stock = RegisterClient(live_db.connection, Elsewhere)
    stock.ensure()
    stock.post(Elsewhere(recorder="a", period=date(2026, 1, 1), product=1, quantity=Decimal(3)))
    assert stock.balances() == [{"product": 1, "quantity": Decimal("3.00")}]
    assert stock.balance({"product": 1}, at=date(2026, 1, 1)) == {"quantity": 3}
