"""Whatever is done to a register, its cache, totals and functions say what its movements add up to.

Random operations, some of which are rolled back or die with their session, are done to a register and to a model of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from psycopg import conninfo

from tests.catalog.conftest import Connection

_numbers = count(1)

Cell = tuple[int | None, str | None]
DIMENSIONS = {"shop": "int", "lot": "text"}
ZONES = ("UTC", "Europe/Berlin", "America/New_York")


@dataclass(frozen=True)
class Movement:
    """A movement of the model."""

    recorder: str
    period: datetime
    cell: Cell
    quantity: int
    amount: Decimal

    def fields(self, *, recorder: bool = True) -> dict[str, Any]:
        """The movement as it is posted."""
        named = {"recorder": self.recorder} if recorder else {}
        values = {"quantity": self.quantity, "amount": str(self.amount)}
        return {**named, "period": self.period.isoformat(), "shop": self.cell[0], "lot": self.cell[1], **values}


BOUNDARIES = [
    datetime(*day, tzinfo=UTC) for day in ((2025, 1, 1), (2025, 12, 31), (2026, 1, 1), (2026, 2, 1), (2026, 2, 3))
]
moments = st.builds(
    lambda at, by: at + by,
    st.sampled_from(BOUNDARIES),
    st.sampled_from(
        [timedelta(0), -timedelta(microseconds=1), timedelta(hours=-1), timedelta(hours=5), timedelta(days=9)]
    ),
)
cells = st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "", "A"]))
recorders = st.sampled_from(["doc:1", "doc:2", "it's"])
amounts = st.decimals(-1000, 1000, places=2)
batches = st.lists(st.builds(Movement, recorders, moments, cells, st.integers(-50, 50), amounts), max_size=4)
endings = st.sampled_from(["commit", "commit", "commit", "rollback", "savepoint", "killed"])
ranges = st.tuples(st.one_of(st.none(), moments), st.one_of(st.none(), moments))
filters = st.fixed_dictionaries({}, optional={"shop": st.sampled_from([None, 1]), "lot": st.sampled_from([None, "A"])})
operations = st.one_of(
    st.tuples(st.just("post"), batches),
    st.tuples(st.just("insert"), batches),
    st.tuples(st.just("insert into partition"), batches),
    st.tuples(st.just("repost"), recorders, batches),
    st.tuples(st.just("unpost"), recorders),
    st.tuples(st.just("update"), cells, st.integers(-5, 5)),
    st.tuples(st.just("move"), recorders),
    st.tuples(st.just("delete"), cells),
    st.tuples(
        st.just("truncate"),
    ),
)


@dataclass
class Register:
    """A register, a connection to it, and its model."""

    dsn: str
    options: dict[str, str]
    name: str = field(default_factory=lambda: f"invariant_{next(_numbers)}")
    movements: list[Movement] = field(default_factory=list)
    removed: int = 0
    connection: Connection = field(init=False)

    def __post_init__(self) -> None:
        self.connect()
        arguments = "".join(f", {name} := {value!r}" for name, value in self.options.items())
        self.connection.execute(
            f"SELECT accum.register_create('{self.name}', '{json.dumps(DIMENSIONS)}', "
            f"""'{{"quantity": "int", "amount": "numeric(18,2)"}}'{arguments})"""
        )

    def connect(self) -> None:
        self.connection = psycopg.connect(conninfo.make_conninfo(self.dsn, options="-c timezone=UTC"), autocommit=True)

    def rows(self, statement: str, *args: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement, args).fetchall()

    def do(self, operation: tuple[Any, ...], ending: str) -> None:
        """Do it to the register, and to the model if the transaction is to commit."""
        if ending == "commit":
            self.write(*operation)
            before, after = len(self.movements), self.follow(*operation)
            if operation[0] in ("update", "move"):
                self.removed += sum(old is not new for old, new in zip(self.movements, after, strict=True))
            elif operation[0] == "repost":
                self.removed += sum(m.recorder == operation[1] for m in self.movements)
            else:
                self.removed += max(0, before - len(after))
            self.movements = after
            return
        if ending == "killed":
            self.connection.execute("BEGIN")
            self.write(*operation)
            with pytest.raises(psycopg.OperationalError):
                self.connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            self.connect()
            return
        outer = self.connection.transaction(force_rollback=ending == "rollback")
        with outer, self.connection.transaction(force_rollback=True):  # the inner one is a savepoint
            self.write(*operation)

    def write(self, kind: str, *args: Any) -> None:
        """The statement of an operation."""
        table = f"accum.{self.name}_movements"
        run = self.connection.execute
        match kind:
            case "post":
                (batch,) = args
                data = [m.fields() for m in batch]
                posted = run(
                    "SELECT accum.register_post(%s, %s::jsonb)",
                    [self.name, json.dumps(data[0] if len(data) == 1 else data)],
                )
                assert posted.fetchone() == (len(data),)
            case "insert" | "insert into partition":
                (batch,) = args
                target = table if kind == "insert" else f"{table}_default"
                run(
                    f"INSERT INTO {target} (recorder, period, shop, lot, quantity, amount) "
                    "SELECT recorder, period, shop, lot, quantity, amount "
                    f"FROM jsonb_populate_recordset(NULL::{table}, %s::jsonb)",
                    [json.dumps([m.fields() for m in batch])],
                )
            case "repost":
                recorder, batch = args
                data = [m.fields(recorder=False) for m in batch]
                run("SELECT accum.register_repost(%s, %s, %s::jsonb)", [self.name, recorder, json.dumps(data)])
            case "unpost":
                removed = run("SELECT accum.register_unpost(%s, %s)", [self.name, args[0]]).fetchone()
                assert removed == (sum(m.recorder == args[0] for m in self.movements),)
            case "update":
                (shop, lot), by = args
                run(
                    f"UPDATE {table} SET quantity = quantity + %s, shop = coalesce(shop, 0) + 1 "
                    "WHERE shop IS NOT DISTINCT FROM %s AND lot IS NOT DISTINCT FROM %s",
                    [by, shop, lot],
                )
            case "move":
                run(f"UPDATE {table} SET period = period + interval '400 days' WHERE recorder = %s", [args[0]])
            case "delete":
                (shop, lot) = args[0]
                run(
                    f"DELETE FROM {table} WHERE shop IS NOT DISTINCT FROM %s AND lot IS NOT DISTINCT FROM %s",
                    [shop, lot],
                )
            case "truncate":
                run(f"TRUNCATE {table}")

    def follow(self, kind: str, *args: Any) -> list[Movement]:
        """The movements of the model after an operation."""
        now = self.movements
        match kind:
            case "post" | "insert" | "insert into partition":
                return now + args[0]
            case "repost":
                mine = [Movement(args[0], m.period, m.cell, m.quantity, m.amount) for m in args[1]]
                return [m for m in now if m.recorder != args[0]] + mine
            case "unpost":
                return [m for m in now if m.recorder != args[0]]
            case "update":
                cell, by = args
                return [
                    Movement(m.recorder, m.period, ((cell[0] or 0) + 1, cell[1]), m.quantity + by, m.amount)
                    if m.cell == cell
                    else m
                    for m in now
                ]
            case "move":
                return [
                    Movement(m.recorder, m.period + timedelta(days=400), m.cell, m.quantity, m.amount)
                    if m.recorder == args[0]
                    else m
                    for m in now
                ]
            case "delete":
                return [m for m in now if m.cell != args[0]]
            case _:
                return []

    def sums(self, given: dict[str, Any], since: datetime | None, behind: datetime | None) -> dict[str, Decimal]:
        """What the movements of a range add up to."""
        chosen = [
            m
            for m in self.movements
            if (since is None or m.period >= since)
            and (behind is None or m.period < behind)
            and all(m.cell[tuple(DIMENSIONS).index(name)] == value for name, value in given.items())
        ]
        return {
            "quantity": Decimal(sum(m.quantity for m in chosen)),
            "amount": sum((m.amount for m in chosen), Decimal()),
        }

    def check(self, zone: str, given: dict[str, Any], since: datetime | None, until: datetime | None) -> None:
        """Compare the register with its model, as a session of a time zone sees it."""
        wrong = self.rows("SELECT * FROM accum.register_verify(%s) WHERE status <> 'OK'", self.name)
        assert wrong == []
        assert self.rows(f"SELECT count(*) FROM accum.{self.name}_movements") == [(len(self.movements),)]
        assert self.rows(f"SELECT count(*) FROM accum.{self.name}_movements_audit") == [(self.removed,)]
        self.connection.execute(f"SET timezone = '{zone}'")
        end = behind(until, zone)
        turnover = f"SELECT t FROM accum.{self.name}_turnover(%s, %s, %s::jsonb) AS t"
        ((found,),) = self.rows(turnover, since, until, json.dumps(given))
        assert exact(found) == self.sums(given, since, end)
        if self.options["kind"] == "balance":
            balance = f"SELECT accum.{self.name}_balance(%s::jsonb, %s)"
            ((now,), (then,)) = (
                self.rows(balance, json.dumps(given), None)[0],
                self.rows(balance, json.dumps(given), until)[0],
            )
            assert exact(now) == self.sums(given, None, None)
            assert exact(then) == self.sums(given, None, end)
            self.check_series(zone, given, since or BOUNDARIES[0], until or BOUNDARIES[-1])

    def check_series(self, zone: str, given: dict[str, Any], since: datetime, until: datetime) -> None:
        series = self.rows(
            "SELECT period_start, turnover, balance "
            f"FROM accum.{self.name}_balance_at_each('month', %s, %s, %s::jsonb)",
            *(since, until, json.dumps(given)),
        )
        for index, (start, moved, balance) in enumerate(series):
            first = datetime(start.year, start.month, 1, tzinfo=ZoneInfo(zone))
            last = datetime(start.year + start.month // 12, start.month % 12 + 1, 1, tzinfo=ZoneInfo(zone))
            assert exact(moved) == self.sums(given, first, last)
            assert exact(balance) == self.sums(given, None, last)
            assert index == 0 or series[index - 1][0] < start
        if since <= until:
            assert len(series) >= 1

    def drop(self) -> None:
        self.connection.execute("SELECT accum.register_drop(%s, true)", [self.name])
        self.connection.close()


def behind(until: datetime | None, zone: str) -> datetime | None:
    """The first moment behind a range that ends with `until`: a date is the whole day."""
    if until is None:
        return None
    local = until.astimezone(ZoneInfo(zone))
    if local.timetz().replace(tzinfo=None) == datetime.min.time():
        return (local + timedelta(days=1)).astimezone(UTC)
    return until + timedelta(microseconds=1)


def exact(found: dict[str, Any]) -> dict[str, Decimal]:
    return {name: Decimal(str(value)) for name, value in found.items()}


def run(dsn: str, options: dict[str, str], story: list[Any], question: tuple[Any, ...]) -> None:
    register = Register(dsn, options)
    for operation, ending in story:
        register.do(operation, ending)
    zone, given_dimensions, (since, until) = question
    register.check(zone, given_dimensions, since, until)
    register.drop()


options = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["balance", "balance", "turnover"]),
        "totals_period": st.sampled_from(["day", "month", "year"]),
    }
)
stories = st.lists(st.tuples(operations, endings), min_size=3, max_size=12)
questions = st.tuples(st.sampled_from(ZONES), filters, ranges)


@settings(max_examples=10)
@given(options, stories, questions)
def test_random_operations(
    register_database: str, options: dict[str, str], story: list[Any], question: tuple[Any, ...]
) -> None:
    run(register_database, options, story, question)


@pytest.mark.long
@settings(max_examples=400)
@given(options, st.lists(st.tuples(operations, endings), min_size=10, max_size=50), questions)
def test_many_random_operations(
    register_database: str, options: dict[str, str], story: list[Any], question: tuple[Any, ...]
) -> None:
    run(register_database, options, story, question)


def test_months_of_a_register_with_totals_of_years_are_those_of_its_movements(register_database: str) -> None:
    last_day = Movement("doc:1", datetime(2025, 12, 31, tzinfo=UTC), (None, None), 0, Decimal("0.01"))
    story = [(("post", [last_day]), "commit")]
    run(register_database, {"kind": "balance", "totals_period": "year"}, story, ("UTC", {}, (None, None)))
