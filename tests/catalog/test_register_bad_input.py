"""Bad input to registers: an error that names the field and the element, and nothing posted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.catalog.conftest import Connection

GOOD = {
    "recorder": "doc:1",
    "period": "2026-04-18",
    "shop": 1,
    "lot": None,
    "day_of": "2026-01-01",
    "n": 1,
    "price": 2.5,
}


@pytest.fixture(scope="module")
def connection(register_database: str) -> Iterator[Connection]:
    with psycopg.connect(register_database, autocommit=True) as connection:
        connection.execute(
            """SELECT accum.register_create('goods', '{"shop": "smallint", "lot": "varchar(3)", "day_of": "date"}',
                                            '{"n": "int", "price": "numeric(6,2)"}')"""
        )
        connection.execute("SELECT accum.register_post('goods', %s::jsonb)", [json.dumps(GOOD)])
        yield connection


def error(connection: Connection, statement: str, *args: Any) -> tuple[str | None, str | None]:
    """SQLSTATE and message of a statement that fails, after which the register is as it was."""
    before = connection.execute("SELECT * FROM accum.goods_balance_cache").fetchall()
    with pytest.raises(psycopg.Error) as failure:
        connection.execute(statement, args)
    assert connection.execute("SELECT * FROM accum.goods_balance_cache").fetchall() == before
    return failure.value.sqlstate, failure.value.diag.message_primary


@pytest.mark.parametrize(
    ("change", "sqlstate", "message"),
    [
        ({"shop": ...}, "22023", 'field "shop" is missing in element {}'),
        ({"n": ..., "price": ...}, "22023", "element {} of the batch has no resource"),
        ({"period": ...}, "22023", 'field "period" is missing in element {}'),
        ({"colour": "red"}, "22023", 'unknown field "colour" in element {}'),
        ({"n": None}, "23502", 'field "n" is null in element {}'),
        ({"recorder": None}, "23502", 'field "recorder" is null in element {}'),
        (
            {"n": "many"},
            "22P02",
            'invalid value of field "n" in element {} of the batch: invalid input syntax for type integer',
        ),
        ({"n": 1.5}, "22P02", 'invalid value of field "n" in element {}'),
        ({"n": 2**40}, "22003", 'invalid value of field "n" in element {}'),
        ({"price": 12345}, "22003", 'invalid value of field "price" in element {}'),
        ({"shop": 70000}, "22003", 'invalid value of field "shop" in element {}'),
        ({"lot": "long"}, "22001", 'invalid value of field "lot" in element {}'),
        ({"lot": {"a": 1}}, "22023", 'invalid value of field "lot" in element {}'),
        ({"day_of": "soon"}, "22007", 'invalid value of field "day_of" in element {}'),
        ({"period": "2026-02-30"}, "22008", 'invalid value of field "period" in element {}'),
        ({"movement_type": "odd"}, "22023", 'invalid value of field "movement_type" in element {}'),
        ({"period": "-infinity"}, "23514", 'invalid value of field "period" in element {} of the batch: "-infinity"'),
        ({"price": "nan"}, "23514", 'invalid value of field "price" in element {} of the batch: "NaN"'),
    ],
)
def test_field_and_element_are_named(
    connection: Connection, change: dict[str, Any], sqlstate: str, message: str
) -> None:
    bad = {name: value for name, value in {**GOOD, **change}.items() if value is not ...}
    for data, element in ((bad, 1), ([bad], 1), ([GOOD, GOOD, bad, GOOD], 3)):
        state, text = error(connection, "SELECT accum.register_post('goods', %s::jsonb)", json.dumps(data))
        assert state == sqlstate and text is not None and text.startswith(message.format(element))
        if change.get("recorder", "") is not None:
            state, text = error(
                connection, "SELECT accum.register_repost('goods', 'doc:1', %s::jsonb)", json.dumps(data)
            )
            assert state == sqlstate and text is not None and text.startswith(message.format(element))


@pytest.mark.parametrize("data", ["1", "null", '"text"', "[1]", "[[]]", "[null]"])
def test_what_is_no_movement(connection: Connection, data: str) -> None:
    state, _ = error(connection, "SELECT accum.register_post('goods', %s::jsonb)", data)
    assert state == "22023"


def test_infinity_and_nan_cannot_be_inserted(connection: Connection) -> None:
    insert = "INSERT INTO accum.goods_movements (recorder, period, shop, n, price) VALUES ('d', %s, 1, 1, %s)"
    for period, price in (("infinity", 1), ("2026-04-18", "NaN")):
        assert error(connection, insert, period, price)[0] == "23514"


def test_each_kind_of_number_can_be_too_much(connection: Connection) -> None:
    resources = {"exact": "numeric", "double": "double precision", "single": "real", "whole": "bigint"}
    connection.execute("SELECT accum.register_create('odd', '{\"nan\": \"text\"}', %s::jsonb)", [json.dumps(resources)])
    good = {"recorder": "NaN", "period": "2026-04-18", "nan": "NaN", **dict.fromkeys(resources, 1)}
    assert connection.execute("SELECT accum.register_post('odd', %s::jsonb)", [json.dumps(good)]).fetchone() == (1,)
    for field in ("exact", "double", "single"):
        for value in ("NaN", "Infinity", "-Infinity"):
            data = json.dumps([good, {**good, field: value}])
            state, message = error(connection, "SELECT accum.register_post('odd', %s::jsonb)", data)
            assert state == "23514"
            assert message == f'invalid value of field "{field}" in element 2 of the batch: "{value}"'
    connection.execute("SELECT accum.register_drop('odd', force := true)")


def test_a_recorder_can_be_replaced_by_its_own_movements_only(connection: Connection) -> None:
    other = json.dumps([{**GOOD, "recorder": "doc:2"}])
    state, message = error(connection, "SELECT accum.register_repost('goods', 'doc:1', %s::jsonb)", other)
    assert (state, message) == ("22023", 'movements of another recorder than "doc:1" cannot take its place')


def test_a_hash_cannot_be_given_another_value(connection: Connection) -> None:
    insert = (
        "INSERT INTO accum.goods_movements (recorder, period, shop, dim_hash, n, price) VALUES ('d', now(), 1, 5, 1, 1)"
    )
    assert error(connection, insert)[0] == "428C9"


@pytest.mark.parametrize(
    "call", ["register_post('none', '{}')", "register_unpost('none', 'd')", "register_info('none')"]
)
@pytest.mark.parametrize("name", ["none", 'no"ne', "x'); DROP TABLE t; --"])
def test_unknown_register(connection: Connection, call: str, name: str) -> None:
    quoted = name.replace("'", "''")
    state, message = error(connection, f"SELECT accum.{call.replace('none', quoted)}".replace("%", "%%"))
    assert (state, message) == ("42704", f'register "{name}" does not exist')


@pytest.mark.parametrize(
    ("arguments", "sqlstate", "message"),
    [
        ('\'bad name\', \'{"d": "int"}\', \'{"n": "int"}\'', "42602", 'invalid name of a register: "bad name"'),
        ('\'\', \'{"d": "int"}\', \'{"n": "int"}\'', "42602", 'invalid name of a register: ""'),
        (
            f'\'{"x" * 41}\', \'{{"d": "int"}}\', \'{{"n": "int"}}\'',
            "42602",
            f'invalid name of a register: "{"x" * 41}"',
        ),
        ('\'goods\', \'{"d": "int"}\', \'{"n": "int"}\'', "42710", 'register "goods" already exists'),
        ("'r', '{\"d\": \"int\"}', '{}'", "22023", "a register needs at least one resource"),
        ('\'1r\', \'{"d": "int"}\', \'{"n": "int"}\'', "42602", 'invalid name of a register: "1r"'),
        ('\'r-1\', \'{"d": "int"}\', \'{"n": "int"}\'', "42602", 'invalid name of a register: "r-1"'),
        ('\'r\', \'{"1d": "int"}\', \'{"n": "int"}\'', "42602", 'invalid name of a dimension: "1d"'),
        ('\'r\', \'{"d": "int"}\', \'{"2n": "int"}\'', "42602", 'invalid name of a resource: "2n"'),
        ("'r', '{}', '{\"n\": \"int\"}'", "22023", "a register needs at least one dimension"),
        ("'r', '[]', '{\"n\": \"int\"}'", "22023", "dimensions must be a JSON object of names and types"),
        ('\'r\', \'{"d": "json"}\', \'{"n": "int"}\'', "22023", 'type "json" of dimension "d" is not supported'),
        ("'r', '{}', '{\"n\": \"text\"}'", "22023", 'type "text" of resource "n" is not supported'),
        ('\'r\', \'{"n": "int"}\', \'{"n": "int"}\'', "42701", '"n" is both a dimension and a resource'),
        ('\'r\', \'{"period": "int"}\', \'{"n": "int"}\'', "42939", 'name of dimension "period" is reserved'),
        ('\'r\', \'{"a b": "int"}\', \'{"n": "int"}\'', "42602", 'invalid name of a dimension: "a b"'),
        ("'r', '{}', '{\"n\": \"int\"}', kind := 'odd'", "22023", 'invalid value for kind: "odd"'),
        ("'r', '{}', '{\"n\": \"int\"}', totals_period := 'week'", "22023", 'invalid value for totals_period: "week"'),
        ("'r', '{}', '{\"n\": \"int\"}', partition_by := 'hour'", "22023", 'invalid value for partition_by: "hour"'),
        ("'r', '{}', '{\"n\": \"int\"}', recorder_type := 'x'", "42704", 'type "x" of the recorder does not exist'),
    ],
)
def test_register_that_cannot_be_created(connection: Connection, arguments: str, sqlstate: str, message: str) -> None:
    assert error(connection, f"SELECT accum.register_create({arguments})") == (sqlstate, message)
    assert connection.execute("SELECT count(*) FROM accum._registers").fetchone() == (1,)


def test_unknown_dimension_and_wrong_value_in_a_question(connection: Connection) -> None:
    full = json.dumps({"shop": "x", "lot": None, "day_of": None})
    for function in ("balance", "turnover", "movements"):
        call = f"SELECT accum.goods_{function}(dimensions := %s::jsonb)"
        assert error(connection, call, '{"colour": 1}') == ("42703", 'register "goods" has no dimension "colour"')
        state, message = error(connection, call, full)
        assert state == "22P02" and message is not None and message.startswith('invalid value of dimension "shop"')
    assert error(connection, "SELECT accum.goods_turnover(group_by := '[\"n\"]')")[0] == "42703"
    assert error(connection, "SELECT accum.goods_balance_at_each('week')")[0] == "22023"


def test_a_longer_text_than_fits_finds_nothing(connection: Connection) -> None:
    """A cast to varchar(3) would cut it off and find another lot."""
    connection.execute(
        "SELECT accum.register_post('goods', %s::jsonb)", [json.dumps({**GOOD, "lot": "abc", "recorder": "long"})]
    )
    for dimensions in ({"shop": 1, "lot": "abcd", "day_of": "2026-01-01"}, {"lot": "abcd"}):
        found = connection.execute("SELECT accum.goods_balance(%s::jsonb)", [json.dumps(dimensions)]).fetchone()
        assert found == ({"n": 0, "price": 0},)


def test_register_with_movements_is_not_dropped_without_force(connection: Connection) -> None:
    state, message = error(connection, "SELECT accum.register_drop('goods')")
    assert (state, message) == ("55000", 'register "goods" contains movements')


def test_column_that_is_there_already(connection: Connection) -> None:
    state, message = error(connection, "SELECT accum.register_alter('goods', add_resources := '{\"shop\": \"int\"}')")
    assert (state, message) == ("42701", 'register "goods" has a column "shop" already')
