"""What registers refuse and how they say so, and the ends of time, through the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, drop_role
from tests.e2e.registers.registers import consistent, post

CREATE = "SELECT accum.register_create('r', %s::jsonb, %s::jsonb)"
LEDGER = ("""{"account": "int", "note": "text"}""", """{"n": "numeric(10,2)"}""")
LAST, FIRST = "294276-12-31 12:00+00", "4713-01-01 00:00+00 BC"


def refusal(database: Database, statement: str, *parameters: Any) -> tuple[str | None, str | None]:
    """SQLSTATE and message of a statement that fails."""
    with pytest.raises(psycopg.Error) as failure:
        database.run(statement, *parameters)
    return failure.value.sqlstate, failure.value.diag.message_primary


def movement(**fields: Any) -> dict[str, Any]:
    return {"recorder": "d", "period": "2026-04-18", "account": 1, "note": "x", "n": 1, **fields}


def columns(kind: str, type_: str, number: int) -> str:
    return json.dumps({f"{kind}{i}": type_ for i in range(number)})


@pytest.mark.parametrize(
    ("type_", "sqlstate", "message"),
    [
        ("int)", "22023", 'type "int)" of the recorder is no type'),
        ("int(4)", "22023", 'type "int(4)" of the recorder is no type'),
        ("varchar(0)", "22023", 'type "varchar(0)" of the recorder is no type'),
        ("text; DROP TABLE t", "22023", 'type "text; DROP TABLE t" of the recorder is no type'),
        ("anyelement", "42704", 'type "anyelement" of the recorder does not exist'),
        ("json", "22023", 'type "json" of the recorder has no order, so that no index could find movements by it'),
        (None, "42704", "type null of the recorder does not exist"),
    ],
)
def test_what_cannot_be_the_type_of_a_recorder(
    registers: Database, type_: str | None, sqlstate: str, message: str
) -> None:
    statement = CREATE.replace("%s::jsonb)", "%s::jsonb, recorder_type := %s)")
    assert refusal(registers, statement, *LEDGER, type_) == (sqlstate, message)
    assert registers.rows("SELECT * FROM accum.register_list()") == []


def test_a_recorder_of_a_domain_that_is_not_null(registers: Database) -> None:
    registers.run("CREATE DOMAIN document AS text NOT NULL CHECK (VALUE LIKE 'doc:%%')")
    registers.run(CREATE.replace("%s::jsonb)", "%s::jsonb, recorder_type := 'public.document')"), *LEDGER)
    assert post(registers, movement(recorder="doc:1"), register="r") == 1
    state, message = refusal(registers, "SELECT accum.register_post('r', %s::jsonb)", json.dumps(movement()))
    assert state == "23514" and message is not None
    assert message.startswith('invalid value of field "recorder" in element 1 of the batch')


def test_a_recorder_that_is_not_of_its_type_is_named(registers: Database) -> None:
    registers.run(CREATE.replace("%s::jsonb)", "%s::jsonb, recorder_type := 'uuid')"), *LEDGER)
    message = 'invalid recorder of register "r": invalid input syntax for type uuid: "doc:1"'
    for call in ("register_unpost('r', 'doc:1'::text)", "register_repost('r', 'doc:1'::text, '[]')"):
        assert refusal(registers, f"SELECT accum.{call}") == ("22P02", message)
    recorder = "550e8400-e29b-41d4-a716-446655440000"
    assert post(registers, movement(recorder=recorder), register="r") == 1
    assert registers.value("SELECT accum.register_unpost('r', %s::text)", recorder) == 1


@pytest.mark.parametrize(
    ("dimension", "resource", "message"),
    [
        ("varchar(0)", "int", 'type "varchar(0)" of dimension "d0" is not supported'),
        ("varchar(99999999)", "int", 'type "varchar(99999999)" of dimension "d0" is not supported'),
        (None, "int", 'type "null" of dimension "d0" is not supported'),
        ("int", "numeric(0)", 'type "numeric(0)" of resource "n0" is not supported'),
        ("int", "numeric(1001,2)", 'type "numeric(1001,2)" of resource "n0" is not supported'),
        ("int", "numeric(10,2000)", 'type "numeric(10,2000)" of resource "n0" is not supported'),
    ],
)
def test_types_that_postgresql_would_refuse(
    registers: Database, dimension: str | None, resource: str, message: str
) -> None:
    declared = json.dumps({"d0": dimension}), json.dumps({"n0": resource})
    assert refusal(registers, CREATE, *declared) == ("22023", message)


def test_null_where_a_name_belongs(registers: Database) -> None:
    for call in (
        "register_post(NULL, '{}')",
        "register_unpost(NULL, 'd')",
        "register_info(NULL)",
        "register_drop(NULL)",
    ):
        assert refusal(registers, f"SELECT accum.{call}") == ("22004", "name of the register must not be null")
    assert refusal(registers, CREATE.replace("'r'", "NULL"), *LEDGER) == (
        "42602",
        "invalid name of a register: null",
    )
    assert refusal(registers, CREATE.replace("%s::jsonb)", "%s::jsonb, kind := NULL)"), *LEDGER) == (
        "22023",
        "invalid value for kind: null",
    )


def test_null_is_no_recorder(registers: Database) -> None:
    registers.run(CREATE, *LEDGER)
    post(registers, movement(), register="r")
    for call in ("unpost('r', NULL)", "repost('r', NULL, '[]')"):
        assert refusal(registers, f"SELECT accum.register_{call}") == ("22004", "recorder must not be null")
    assert registers.value("SELECT accum.r_balance()") == {"n": 1}


@pytest.mark.parametrize("array", [False, True])
def test_a_recorder_is_no_object_unless_its_type_is(registers: Database, array: bool) -> None:
    registers.run(CREATE, *LEDGER)
    data = movement(recorder={"invoice": 1})
    assert refusal(registers, "SELECT accum.register_post('r', %s::jsonb)", json.dumps([data] if array else data)) == (
        "22023",
        'invalid value of field "recorder" in element 1 of the batch: {"invoice": 1}',
    )
    typed = CREATE.replace("'r'", "'typed'").replace("%s::jsonb)", "%s::jsonb, recorder_type := 'text[]')")
    registers.run(typed, *LEDGER)
    data = movement(recorder=["invoice", "1"])
    assert registers.value("SELECT accum.register_post('typed', %s::jsonb)", json.dumps([data] if array else data)) == 1
    assert refusal(registers, "SELECT accum.register_post('typed', %s::jsonb)", json.dumps(data | {"n": "many"})) == (
        "22P02",
        'invalid value of field "n" in element 1 of the batch: invalid input syntax for type numeric: "many"',
    )
    assert registers.value("SELECT accum.register_unpost('typed', ARRAY['invoice', '1']::text)") == 1
    assert registers.value("SELECT accum.typed_balance()") == {"n": 0}


def test_as_many_dimensions_and_resources_as_there_can_be(registers: Database) -> None:
    assert refusal(registers, CREATE, columns("d", "int", 31), columns("n", "int", 1)) == (
        "54011",
        "a register has at most 30 dimensions, not 31",
    )
    assert refusal(registers, CREATE, columns("d", "int", 30), columns("n", "int", 21)) == (
        "54011",
        "a register has at most 50 dimensions and resources, not 51",
    )
    registers.run(CREATE, columns("d", "text", 30), columns("n", "int", 20))
    dimensions = {f"d{i}": f"{i:066}" for i in range(30)}
    resources = {f"n{i}": i for i in range(20)}
    assert post(registers, {"recorder": "d", "period": "2026-04-18", **dimensions, **resources}, register="r") == 1
    assert registers.value("SELECT accum.r_balance(%s::jsonb)", json.dumps(dimensions)) == resources
    turnover = registers.value("SELECT accum.r_turnover(group_by := %s::jsonb)", json.dumps([*dimensions]))
    assert turnover == {**dimensions, **resources}
    assert consistent(registers, "r")
    assert refusal(registers, "SELECT accum.register_alter('r', '{\"more\": \"int\"}')") == (
        "54011",
        "a register has at most 30 dimensions, not 31",
    )


def test_texts_that_no_index_takes_are_refused_by_name(registers: Database) -> None:
    registers.run(CREATE, *LEDGER)
    fits, long = ("".join(chr(0x4E00 + i) for i in range(size)) for size in (666, 667))  # three bytes a character
    assert post(registers, movement(note=fits), movement(note=None, recorder=fits), register="r") == 2
    assert registers.value("SELECT accum.r_balance(%s::jsonb)", json.dumps({"note": fits})) == {"n": 1}
    for field in ("note", "recorder"):
        for data, element in ((movement(**{field: long}), 1), ([movement(), movement(**{field: long})], 2)):
            assert refusal(registers, "SELECT accum.register_post('r', %s::jsonb)", json.dumps(data)) == (
                "54000",
                f'value of field "{field}" in element {element} of the batch is too long',
            )
    assert refusal(registers, "SELECT accum.register_repost('r', 'd', %s::jsonb)", json.dumps(movement(note=long))) == (
        "54000",
        'value of field "note" in element 1 of the batch is too long',
    )
    assert registers.value("SELECT accum.r_balance()") == {"n": 2}
    assert consistent(registers, "r")


def test_not_more_partitions_than_a_transaction_can_make(registers: Database) -> None:
    registers.run(CREATE, *LEDGER)
    for argument, sqlstate, message in (
        ("100000", "22023", "cannot keep 100000 partitions ahead"),
        ("interval '-500 years'", "54000", "cannot make 6000 partitions at once"),
        ("interval '300000 years'", "22023", "cannot make partitions for 300000 years"),
        ("interval '-300000 years'", "22023", "cannot make partitions for -300000 years"),
    ):
        call = f"SELECT accum.register_create_partitions('r', {argument})"
        assert refusal(registers, call) == (sqlstate, message)
    assert registers.value("SELECT accum.register_create_partitions('r', interval '-2 years')") == 24


@pytest.mark.parametrize("high_write", [False, True])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"])
def test_the_ends_of_time(registers: Database, zone: str, high_write: bool) -> None:
    registers.run(CREATE.replace("%s::jsonb)", "%s::jsonb, high_write := %s)"), *LEDGER, high_write)
    post(registers, movement(period=FIRST, n=1), movement(n=10), movement(period=LAST, n=100), register="r")
    registers.run(f"SET TimeZone = '{zone}'")
    try:
        for at, expected in (
            ("-infinity", 0),
            ("4714-12-31 BC", 0),
            ("4714-11-24 23:00+00 BC", 0),
            (FIRST, 1),
            ("4713-01-02 BC", 1),
            ("0044-03-15 BC", 1),
            ("2026-04-18", 11),
            ("294276-12-29", 11),
            ("294276-12-31 11:59:59.999999+00", 11),
            (LAST, 111),
            ("294276-12-31 23:59:59.999999+00", 111),
            ("infinity", 111),
        ):
            assert registers.value("SELECT accum.r_balance(at_date := %s)", at) == {"n": expected}, at
            assert registers.value("SELECT accum.r_turnover(to_date := %s)", at) == {"n": expected}, at
        for since, expected in (("-infinity", 111), ("4714-12-31 BC", 111), ("4713-01-01 00:01+00 BC", 110)):
            assert registers.value("SELECT accum.r_turnover(%s)", since) == {"n": expected}
        for since, expected in ((LAST, 100), ("294276-12-31 12:00:01+00", 0), ("infinity", 0)):
            assert registers.value("SELECT accum.r_turnover(%s)", since) == {"n": expected}
        if zone == "UTC":
            assert registers.value("SELECT accum.r_balance(at_date := '294276-12-31')") == {"n": 111}
    finally:
        registers.run("SET TimeZone = 'UTC'")
    state, message = refusal(
        registers, "SELECT accum.register_post('r', %s::jsonb)", json.dumps(movement(period="4714-12-31 BC"))
    )
    assert state == "22008" and message is not None
    assert message.startswith('invalid value of field "period" in element 1 of the batch')
    assert consistent(registers, "r")


def test_rights_that_are_missing_are_named(registers: Database) -> None:
    registers.run(CREATE, *LEDGER)
    registers.run("CREATE ROLE register_reader")
    registers.run("SET ROLE register_reader")
    try:
        with pytest.raises(psycopg.Error) as failure:
            registers.run(CREATE, *LEDGER)
        assert failure.value.diag.message_primary == 'register "r" already exists'
        with pytest.raises(psycopg.Error) as failure:
            registers.run(CREATE.replace("'r'", "'other'"), *LEDGER)
        diagnosis = failure.value.diag
        assert diagnosis.message_primary == "permission denied to create a register in schema accum"
        assert diagnosis.message_hint == "GRANT INSERT ON accum._registers TO register_reader;"
        assert diagnosis.internal_query is None
        state = refusal(registers, "SELECT accum.register_post('r', %s::jsonb)", json.dumps(movement()))
        assert state == ("42501", "permission denied for table r_movements")
    finally:
        registers.run("RESET ROLE")
        registers.run("DROP ROLE register_reader")


@pytest.mark.parametrize("high_write", [False, True])
def test_a_table_of_a_register_is_dropped_with_the_register_only(registers: Database, high_write: bool) -> None:
    registers.run(CREATE.replace("%s::jsonb)", "%s::jsonb, high_write := %s)"), *LEDGER, high_write)
    post(registers, movement(), register="r")
    stored = "TABLE accum.r_totals_day_stored" if high_write else "TABLE accum.r_totals_day"
    cache = "VIEW accum.r_balance_cache" if high_write else "TABLE accum.r_balance_cache"
    for what in ("TABLE accum.r_movements", "TABLE accum.r_movements_audit", stored, cache):
        with pytest.raises(psycopg.Error) as failure:
            registers.run(f"DROP {what} CASCADE")
        assert failure.value.sqlstate == "2BP01"
        assert failure.value.diag.message_primary == f'cannot drop {what.split()[1]} because register "r" requires it'
        assert "accum.register_drop('r')" in (failure.value.diag.message_hint or "")
    registers.run("SELECT accum.register_alter('r', '{\"color\": \"text\"}', high_write := %s)", not high_write)
    registers.run("SELECT accum.register_alter('r', high_write := %s)", high_write)
    assert registers.value("SELECT accum.r_balance()") == {"n": 1}
    assert consistent(registers, "r")
    registers.run("SELECT accum.register_drop('r', force := true)")
    registers.run("CREATE TABLE accum.r_movements ()")
    registers.run("DROP TABLE accum.r_movements")


@pytest.mark.parametrize(
    ("partition_by", "partition"),
    [("day", "2026_04_18"), ("month", "2026_04"), ("quarter", "2026_q2"), ("year", "2026")],
)
def test_a_partition_is_dropped_when_it_has_been_detached(
    registers: Database, partition_by: str, partition: str
) -> None:
    registers.run(CREATE.replace("%s::jsonb)", "%s::jsonb, partition_by := %s)"), *LEDGER, partition_by)
    registers.run(
        "SELECT accum_internal._make_partition(g, %s) FROM accum._registers AS g",
        datetime(2026, 4, 1 + 17 * (partition_by == "day")),
    )
    post(registers, movement(), register="r")
    table = f"accum.r_movements_{partition}"
    with pytest.raises(psycopg.Error) as failure:
        registers.run(f"DROP TABLE {table} CASCADE")
    assert failure.value.sqlstate == "2BP01"
    assert failure.value.diag.message_primary == f'cannot drop {table} because it is a partition of register "r"'
    assert "accum.register_detach_partitions('r', date)" in (failure.value.diag.message_hint or "")
    assert registers.value(f"SELECT count(*) FROM {table}") == 1
    registers.run("SELECT accum.register_detach_partitions('r', '2027-01-01')")
    registers.run(f"DROP TABLE {table}")
    state = refusal(registers, "DROP TABLE accum.r_detached")
    assert state == ("2BP01", 'cannot drop accum.r_detached because register "r" requires it')
    assert registers.value("SELECT accum.r_balance()") == {"n": 1}


@pytest.mark.parametrize("name", ["of", "sql", "_create", "register", "Of_größe"])
def test_a_register_takes_its_own_functions_along_only(registers: Database, name: str) -> None:
    """Some would have the names of functions that make registers."""
    functions = "SELECT oid::regprocedure::text FROM pg_proc WHERE pronamespace = 'accum'::regnamespace ORDER BY 1"
    before = registers.rows(functions)
    typed = CREATE.replace("'r'", f"'{name}'").replace(
        "%s::jsonb)", "%s::jsonb, high_write := true, recorder_type := %s)"
    )
    registers.run(typed, """{"a": "varchar(3)", "b": "int"}""", LEDGER[1], "varchar(9)")
    registers.run("SELECT accum.register_drop(%s)", name)
    assert registers.rows(functions) == before


def test_registers_named_like_partitions_of_another_are_dropped(registers: Database) -> None:
    registers.run(CREATE, *LEDGER)
    registers.run(CREATE.replace("'r'", "'r_movements_2026'"), *LEDGER)
    registers.run("SELECT accum.register_drop('r_movements_2026')")
    assert registers.rows("SELECT name FROM accum.register_list()") == [("r",)]


def test_what_is_left_where_nothing_could_refuse_the_drop(registers: Database) -> None:
    """As after DROP TABLE in a PostgreSQL whose superuser the server is not."""
    registers.run(CREATE, *LEDGER)
    registers.run("ALTER EVENT TRIGGER pg_accumulator_drop_guard DISABLE")
    try:
        registers.run("DROP TABLE accum.r_movements")
    finally:
        registers.run("ALTER EVENT TRIGGER pg_accumulator_drop_guard ENABLE")
    assert registers.rows("SELECT name, movements_count FROM accum.register_list()") == [("r", None)]
    assert registers.value("SELECT accum.register_info('r') -> 'movements_count'") is None
    registers.run("SELECT accum.register_drop('r')")
    registers.run(CREATE, *LEDGER)
    assert post(registers, movement(), register="r") == 1
    assert consistent(registers, "r")


def test_list_beside_a_drop(registers: Database, eventually: Callable[..., Any]) -> None:
    registers.run(CREATE, *LEDGER)
    dropping, listing = registers.connect(autocommit=False), registers.connect()
    dropping.execute("SELECT accum.register_drop('r')")
    with ThreadPoolExecutor(1) as thread:
        listed = thread.submit(
            lambda: listing.execute("SELECT name, movements_count FROM accum.register_list()").fetchall()
        )
        eventually(
            lambda: registers.value(
                "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s", listing.info.backend_pid
            )
        )
        dropping.commit()
        assert listed.result(30) == [("r", None)]
    assert registers.rows("SELECT * FROM accum.register_list()") == []


def test_a_role_takes_its_registers_along(registers: Database) -> None:
    registers.run(
        "CREATE ROLE register_owner; GRANT INSERT ON accum._registers TO register_owner; SET ROLE register_owner"
    )
    registers.run(CREATE.replace("%s::jsonb)", "%s::jsonb, high_write := true)"), *LEDGER)
    registers.run("RESET ROLE")
    drop_role(registers.connection, "register_owner")
    assert registers.rows("SELECT * FROM accum.register_list()") == []
    registers.run(CREATE, *LEDGER)
    assert post(registers, movement(), register="r") == 1
