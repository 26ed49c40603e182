"""Scripts as they are written for pg_accumulator, from its public documents: what they call, read, and rely on."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from tests.e2e import conftest as whole
from tests.e2e.conftest import Database

server, register_database, registers = whole.server, whole.register_database, whole.registers

DIMENSIONS = '{"warehouse": "int", "product": "int", "lot": "text"}'
RESOURCES = '{"quantity": "numeric(18,4)", "amount": "numeric(18,2)"}'
CREATE = "SELECT accum.register_create(name := %s, dimensions := %s, resources := %s)"


@pytest.fixture
def stock(registers: Database) -> Database:
    """The register of the overview."""
    registers.run(CREATE, "stock", DIMENSIONS, RESOURCES)
    return registers


def line(recorder: str = "po:1", **fields: Any) -> dict[str, Any]:
    return {"recorder": recorder, "period": "2026-04-18", "warehouse": 1, "product": 42, "lot": "A", **fields}


def post(database: Database, *lines: dict[str, Any], register: str = "stock") -> int:
    """One object is posted as such, several as an array."""
    data = json.dumps(lines[0] if len(lines) == 1 else lines)
    return int(database.value("SELECT accum.register_post(%s, %s)", register, data))


def columns(database: Database, table: str) -> list[str]:
    rows = database.rows(
        "SELECT column_name FROM information_schema.columns WHERE table_schema = 'accum' AND table_name = %s"
        " ORDER BY ordinal_position",
        table,
    )
    return [name for (name,) in rows]


def key(database: Database, table: str) -> list[str]:
    """The columns of the primary key of a table."""
    return [
        name
        for (name,) in database.rows(
            "SELECT a.attname FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k (number, place)"
            " JOIN pg_attribute a ON a.attnum = k.number WHERE i.indisprimary AND i.indrelid = %s::regclass"
            " AND a.attrelid = i.indrelid ORDER BY k.place",
            f"accum.{table}",
        )
    ]


# -- posting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
def test_a_resource_that_is_left_out_is_nothing(stock: Database, batch: bool) -> None:
    lines = [line(quantity=5), line(amount=7.5)]
    posted = [post(stock, *lines)] if batch else [post(stock, each) for each in lines]
    assert sum(posted) == 2
    assert stock.rows("SELECT quantity, amount FROM accum.stock_movements ORDER BY 1") == [
        (0, Decimal("7.5")),
        (5, 0),
    ]
    stock.run("SELECT accum.register_repost('stock', 'po:1', %s)", json.dumps([line(quantity=3)]))
    assert stock.value("SELECT accum.stock_balance()") == {"quantity": 3, "amount": 0}


@pytest.mark.parametrize("batch", [False, True])
def test_no_resource_and_an_unknown_field_are_errors(stock: Database, batch: bool) -> None:
    for wrong, message in (
        (line(), "element {} of the batch has no resource"),
        (line(quantity=1, price=2), 'unknown field "price" in element {} of the batch'),
        (line(quantity=None), 'field "quantity" is null in element {} of the batch'),
    ):
        lines = [line(quantity=1), wrong] if batch else [wrong]
        with pytest.raises(psycopg.Error) as refused:
            post(stock, *lines)
        assert refused.value.diag.message_primary == message.format(len(lines))
    assert stock.value("SELECT count(*) FROM accum.stock_movements") == 0


# -- declaring --------------------------------------------------------------------------------------------------------


def test_columns_come_in_the_order_in_which_they_were_written(stock: Database) -> None:
    before = ["id", "recorded_at", "recorder", "period", "movement_type", "dim_hash"]
    cell = ["warehouse", "product", "lot", "quantity", "amount"]
    assert columns(stock, "stock_movements") == before + cell
    assert columns(stock, "stock_totals_month") == ["dim_hash", "period", *cell]
    cache = ["dim_hash", *cell, "last_movement_at", "last_movement_id", "version"]
    assert columns(stock, "stock_balance_cache") == cache
    stock.run(
        "INSERT INTO accum.stock_movements VALUES"
        " (DEFAULT, DEFAULT, 'import:1', '2026-04-18', DEFAULT, accum._hash_stock(1, 42, 'A'), 1, 42, 'A', 10, 99)"
    )
    assert stock.rows("SELECT warehouse, product, lot, quantity, amount FROM accum.stock_balance_cache") == [
        (1, 42, "A", 10, 99)
    ]
    hashed = "SELECT dim_hash = accum._hash_stock(1, 42, 'A') FROM accum.stock_balance_cache"
    assert stock.value(hashed) is True
    stock.run(
        """SELECT accum.register_alter('stock', add_dimensions := '{"zone": "int", "bin": "text"}',
                                       add_resources := '{"weight": "real", "kg": "int"}')"""
    )
    assert columns(stock, "stock_movements")[-4:] == ["zone", "bin", "weight", "kg"]
    signature = "SELECT pg_get_function_arguments(oid) FROM pg_proc WHERE proname = '_hash_stock'"
    assert stock.value(signature) == "warehouse integer, product integer, lot text, zone integer, bin text"


@pytest.mark.parametrize("typed", ["jsonb", "text", ""])
def test_declarations_may_be_jsonb_or_text_or_bound_without_a_type(registers: Database, typed: str) -> None:
    cast = f"::{typed}" if typed else ""
    registers.run(
        f"SELECT accum.register_create('stock', %s{cast}, %s{cast}, 'balance', 'month')", DIMENSIONS, RESOURCES
    )
    for arguments in (
        f"p_name := 'stock', add_dimensions := '{{\"a1\": \"int\"}}'{cast}",
        f"p_name := 'stock', add_resources := '{{\"b1\": \"int\"}}'{cast}",
        f"'stock', '{{\"a2\": \"int\"}}'{cast}",
        f'\'stock\', \'{{"a3": "int"}}\'{cast}, \'{{"b3": "int"}}\'{cast}',
        f"'stock', NULL, '{{\"b4\": \"int\"}}'{cast}, false",
        f"p_name := 'stock', add_resources := '{{\"b5\": \"int\"}}'{cast}, high_write := true",
        "p_name := 'stock', high_write := false",
        "'stock'",
    ):
        registers.run(f"SELECT accum.register_alter({arguments})")
    info = registers.value("SELECT accum.register_info('stock')")
    assert {*info["dimensions"]} == {"warehouse", "product", "lot", "a1", "a2", "a3"}
    assert {*info["resources"]} == {"quantity", "amount", "b1", "b3", "b4", "b5"}


def test_declarations_of_a_client_library(registers: Database) -> None:
    with registers.connect() as connection:
        connection.execute(CREATE, ["stock", Jsonb(json.loads(DIMENSIONS)), Jsonb(json.loads(RESOURCES))])
        data = Jsonb([line(quantity=1, amount=2), line("po:2", quantity=3)])
        assert connection.execute("SELECT accum.register_post('stock', %s)", [data]).fetchone() == (2,)


def test_types_come_back_as_they_were_written(registers: Database) -> None:
    registers.run(
        """SELECT accum.register_create('visits', '{"page": "varchar(80)", "site": "INT"}', '{"n": "int8"}',
                                        recorder_type := 'int')"""
    )
    registers.run("""SELECT accum.register_alter('visits', add_resources := '{"seconds": "double precision"}')""")
    info = registers.value("SELECT accum.register_info('visits')")
    assert info["dimensions"] == {"page": "varchar(80)", "site": "INT"}
    assert (info["resources"], info["recorder_type"]) == ({"n": "int8", "seconds": "double precision"}, "int")
    listed = "SELECT dimensions, resources, recorder_type FROM accum._registers WHERE name = 'visits'"
    assert registers.rows(listed) == [(info["dimensions"], info["resources"], "int")]
    assert registers.value('SELECT dimensions @> \'{"site": "INT"}\' FROM accum._registers') is True


@pytest.mark.parametrize("high_write", [False, True])
@pytest.mark.parametrize(
    ("kind", "period", "expected"),
    [
        ("balance", "day", ["movements", "balance_cache", "totals_day", "totals_month", "totals_year"]),
        ("turnover", "month", ["movements", "totals_month", "totals_year"]),
    ],
)
def test_info_names_the_tables(
    registers: Database, high_write: bool, kind: str, period: str, expected: list[str]
) -> None:
    registers.run(
        'SELECT accum.register_create(\'r\', \'{"item": "int"}\', \'{"n": "int"}\', %s, %s, high_write := %s)',
        *(kind, period, high_write),
    )
    tables = registers.value("SELECT accum.register_info('r') -> 'tables'")
    assert tables == {table: f"accum.r_{table}" for table in expected}
    for table in tables.values():
        assert registers.rows(f"SELECT * FROM {table}") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1stock", '{"d": "int"}', '{"n": "int"}'), 'invalid name of a register: "1stock"'),
        (("sto-ck", '{"d": "int"}', '{"n": "int"}'), 'invalid name of a register: "sto-ck"'),
        (("s", '{"1d": "int"}', '{"n": "int"}'), 'invalid name of a dimension: "1d"'),
        (("s", '{"d;": "int"}', '{"n": "int"}'), 'invalid name of a dimension: "d;"'),
        (("s", '{"d": "int"}', '{"2n": "int"}'), 'invalid name of a resource: "2n"'),
        (("s", "{}", '{"n": "int"}'), "a register needs at least one dimension"),
        (("s", '{"d": "int"}', "{}"), "a register needs at least one resource"),
    ],
)
def test_what_is_no_register(registers: Database, arguments: tuple[str, str, str], message: str) -> None:
    with pytest.raises(psycopg.Error) as refused:
        registers.run(CREATE, *arguments)
    assert refused.value.diag.message_primary == message
    assert registers.rows("SELECT * FROM accum.register_list()") == []


def test_a_row_of_another_installations_list_has_defaults(registers: Database) -> None:
    registers.run("BEGIN")
    registers.run(
        """INSERT INTO accum._registers (name, dimensions, resources) VALUES ('old', '{"d": "int"}', '{"n": "int"}')"""
    )
    assert registers.rows(
        "SELECT kind, totals_period, partition_by, high_write, recorder_type, created_at IS NOT NULL"
        " FROM accum._registers"
    ) == [("balance", "day", "month", False, "text", True)]
    registers.run("ROLLBACK")


def test_a_register_of_another_installation_is_taken_over_by_its_movements(registers: Database) -> None:
    """Its dump has the row, and tables of its own making; none of them is dropped, or taken for the register's."""
    registers.run("BEGIN")
    registers.run(
        "INSERT INTO accum._registers (name, kind, dimensions, resources, recorder_type)"
        """ VALUES ('depot', 'balance', '{"product": "int"}', '{"quantity": "numeric(18,4)"}', 'text')"""
    )
    registers.run(
        "CREATE TABLE accum.depot_movements (id uuid DEFAULT gen_random_uuid(), recorder text, period timestamptz,"
        " product int, quantity numeric(18,4)) PARTITION BY RANGE (period)"
    )
    registers.run("CREATE TABLE accum.depot_movements_2026_04 PARTITION OF accum.depot_movements DEFAULT")
    registers.run("INSERT INTO accum.depot_movements VALUES (DEFAULT, 'receipt:1', '2026-04-18', 42, 100)")
    registers.run("SAVEPOINT loaded")
    movement = '{"recorder": "receipt:2", "period": "2026-04-19", "product": 42, "quantity": 1}'
    with pytest.raises(psycopg.Error) as refused:
        registers.run("SELECT accum.register_post('depot', %s::jsonb)", movement)
    assert refused.value.diag.message_primary == 'register "depot" was made by another installation'
    assert "register_drop('depot'), which drops none of them" in str(refused.value.diag.message_hint)
    registers.run("ROLLBACK TO loaded; SELECT accum.register_drop('depot')")
    assert registers.rows("SELECT recorder, quantity FROM accum.depot_movements") == [("receipt:1", 100)]
    registers.run("ROLLBACK TO loaded; CREATE SCHEMA former")
    for (statement,) in registers.rows(
        "SELECT format('ALTER TABLE %s SET SCHEMA former', c.oid::regclass) FROM pg_class c"
        " WHERE c.relnamespace = 'accum'::regnamespace AND c.relname LIKE 'depot\\_%' AND c.relkind IN ('r', 'p')"
    ):
        registers.run(statement)
    registers.run("SELECT accum.register_drop('depot')")
    registers.run("""SELECT accum.register_create('depot', '{"product": "int"}', '{"quantity": "numeric(18,4)"}')""")
    registers.run(
        "INSERT INTO accum.depot_movements (recorder, period, product, quantity)"
        " SELECT recorder, period, product, quantity FROM former.depot_movements"
    )
    registers.run("SELECT accum.register_post('depot', %s::jsonb)", movement)
    assert registers.value("SELECT accum.depot_balance()::text") == '{"quantity": 101.0000}'
    registers.run("ROLLBACK")


# -- tables -----------------------------------------------------------------------------------------------------------


def test_keys_are_the_documented_ones(stock: Database) -> None:
    assert key(stock, "stock_balance_cache") == ["dim_hash"]
    for grain in ("day", "month", "year"):
        assert key(stock, f"stock_totals_{grain}") == ["dim_hash", "period"]
    stock.run("SELECT accum.register_alter('stock', high_write := true)")
    assert key(stock, "stock_balance_cache_delta") == ["id"]
    assert key(stock, "stock_balance_cache_stored") == ["dim_hash"]


def test_large_numbers_that_postgresql_hashes_alike_are_cells_of_their_own(registers: Database) -> None:
    """PostgreSQL's hash of a bigint has 32 bits: that of 4294967301 is that of 4."""
    registers.run("""SELECT accum.register_create('ids', '{"item": "bigint"}', '{"n": "int"}')""")
    ids = [4, 2**32 + 5, 2**33 + 6, -1, 2**32 - 1, 2**63 - 1, -(2**63)]
    for batch in ([{"item": n} for n in ids], *([{"item": n}] for n in ids)):
        post(registers, *({"recorder": "r", "period": "2026-04-18", "n": 1, **cell} for cell in batch), register="ids")
    assert registers.rows("SELECT item, n FROM accum.ids_balance_cache ORDER BY 1") == [(n, 2) for n in sorted(ids)]
    for number in ids:
        assert registers.value("SELECT accum.ids_balance(jsonb_build_object('item', %s::bigint))", number) == {"n": 2}
        past = "SELECT accum.ids_balance(jsonb_build_object('item', %s::bigint), '2026-04-18')"
        assert registers.value(past, number) == {"n": 2}


def test_two_cells_of_one_hash_are_not_added_to_each_other(stock: Database) -> None:
    post(stock, line(quantity=5))
    hashed = "UPDATE accum.{} SET dim_hash = accum._hash_stock(1, 42, 'B')"
    stock.run("SET session_replication_role = replica")
    stock.run(hashed.format("stock_balance_cache"))
    stock.run("RESET session_replication_role")
    for lines in ([line(lot="B", quantity=1)], [line(lot="B", quantity=1), line(lot="C", quantity=1)]):
        with pytest.raises(errors.UniqueViolation, match='two cells of register "stock" have the hash'):
            post(stock, *lines)
    assert stock.rows("SELECT lot, quantity FROM accum.stock_movements") == [("A", 5)]


@pytest.mark.parametrize("high_write", [False, True])
def test_what_is_derived_is_written_by_nobody(registers: Database, high_write: bool) -> None:
    registers.run(CREATE.replace(")", ", high_write := %s)"), "stock", DIMENSIONS, RESOURCES, high_write)
    post(registers, line(quantity=5, amount=1))
    registers.run("SELECT accum._force_delta_merge()")
    kept = registers.rows("SELECT * FROM accum.stock_balance_cache")
    registers.run(
        "CREATE TABLE forms (n int); CREATE FUNCTION cheat() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN UPDATE accum.stock_balance_cache SET quantity = 0; RETURN NEW; END';"
        "CREATE TRIGGER cheat AFTER INSERT ON forms FOR EACH ROW EXECUTE FUNCTION cheat()"
    )
    stored = [f"stock_{table}" for table in ("balance_cache", "totals_day", "totals_month", "totals_year")]
    if high_write:
        stored += [f"{table}_stored" for table in stored]
    statements = ["INSERT INTO forms VALUES (1)"]
    for table in stored:
        statements += [
            f"INSERT INTO accum.{table} SELECT * FROM accum.{table}",
            f"UPDATE accum.{table} SET quantity = 0",
            f"UPDATE accum.{table} SET quantity = 0 WHERE false",
            f"DELETE FROM accum.{table}",
        ]
        if not high_write or table.endswith("_stored"):
            statements.append(f"TRUNCATE accum.{table}")
    if high_write:
        statements.append("TRUNCATE accum.stock_balance_cache_delta")
    for statement in statements:
        with pytest.raises(errors.WrongObjectType, match="directly") as refused:
            registers.run(statement)
        assert "accum.register_post('stock', …)" in str(refused.value.diag.message_hint), statement
    assert registers.rows("SELECT * FROM accum.stock_balance_cache") == kept
    registers.run("DROP TABLE forms; DROP FUNCTION cheat()")


def test_the_buffer_of_high_write_mode_holds_what_is_pending_and_nothing_else(registers: Database) -> None:
    registers.run("""SELECT accum.register_create('views', '{"page": "text"}', '{"n": "int"}', high_write := true)""")
    view = {"recorder": "r", "period": "2026-04-18", "page": "/home", "n": 2}
    pending = "SELECT n FROM accum.views_balance_cache_delta ORDER BY id"
    cache = "SELECT page, n, version FROM accum.views_balance_cache"
    merge = "SELECT accum._force_delta_merge(p_max_age := interval '0 seconds', p_batch_size := 1000000)"
    assert registers.rows(pending) == []
    registers.run('SELECT accum.register_create(\'other\', \'{"page": "text"}\', \'{"n": "int"}\')')
    with registers.connect(autocommit=False) as open_transaction:
        # Until it ends the server, which merges what is two seconds old, waits, too.
        open_transaction.execute("LOCK TABLE accum.views_balance_cache_epoch IN EXCLUSIVE MODE")
        assert post(registers, view, register="views") == 1
        assert registers.rows(pending) == [(2,)]
        assert registers.rows(cache) == [("/home", 0, 0)]
        assert registers.value('SELECT accum.views_balance(\'{"page": "/home"}\')') == {"n": 2}
        assert registers.value("SELECT accum.views_balance()") == {"n": 2}
        assert registers.value('SELECT accum.views_balance(\'{"page": "/other"}\')') == {"n": 0}
        assert registers.rows("SELECT status FROM accum.register_verify('views') WHERE status <> 'OK'") == []
    assert registers.value(merge) == 1
    assert registers.rows(pending) == []
    assert registers.rows(cache) == [("/home", 2, 1)]
    assert registers.value("SELECT accum.views_balance()") == {"n": 2}


def test_who_may_read_the_balance_cache_may_ask_for_balances(registers: Database) -> None:
    registers.run("""SELECT accum.register_create('views', '{"page": "text"}', '{"n": "int"}', high_write := true)""")
    post(registers, {"recorder": "r", "period": "2026-04-18", "page": "/home", "n": 2}, register="views")
    registers.run("CREATE ROLE auditor; SET ROLE auditor")
    calls = ("accum.views_balance()", 'accum.views_balance(\'{"page": "/home"}\')')
    try:
        for call in (*calls, "accum.views_balance('{\"page\": null}')"):
            with pytest.raises(errors.InsufficientPrivilege):
                registers.run(f"SELECT {call}")
        with pytest.raises(errors.InsufficientPrivilege):
            registers.run('SELECT * FROM accum_internal."views.current"')
        registers.run("RESET ROLE; GRANT SELECT ON accum.views_balance_cache TO auditor; SET ROLE auditor")
        assert [registers.value(f"SELECT {call}") for call in calls] == [{"n": 2}, {"n": 2}]
    finally:
        registers.run("RESET ROLE; DROP OWNED BY auditor; DROP ROLE auditor")


# -- maintenance ------------------------------------------------------------------------------------------------------


def test_partitions_are_listed_with_bounds_and_rows(stock: Database) -> None:
    for day in ("2020-01-31", "2020-02-01", "2020-02-29"):
        post(stock, {**line(quantity=1), "period": day})
    post(stock, {**line(quantity=1), "period": "1999-01-01"})
    stock.run("SELECT accum.register_create_partitions('stock', '2020-01-01'::timestamptz - now())")
    cursor = stock.run("SELECT * FROM accum.register_partitions('stock')")
    assert [column.name for column in cursor.description or ()] == [
        *("partition_name", "lower_bound", "upper_bound", "row_count")
    ]
    rows = [(name, str(low)[:10], str(high)[:10], count) for name, low, high, count in cursor]
    assert rows[:2] == [
        ("stock_movements_2020_01", "2020-01-01", "2020-02-01", 1),
        ("stock_movements_2020_02", "2020-02-01", "2020-03-01", 2),
    ]
    assert rows[-1] == ("stock_movements_default", "None", "None", 1)
    assert sum(row[-1] for row in rows) == 4
    with pytest.raises(errors.UndefinedObject):
        stock.run("SELECT * FROM accum.register_partitions('nothing')")


def test_one_cell_is_rebuilt(stock: Database) -> None:
    post(stock, line(quantity=5), line(quantity=1, lot="B"))
    stock.run("SET session_replication_role = replica")
    stock.run("UPDATE accum.stock_balance_cache SET quantity = 77")
    stock.run("RESET session_replication_role")
    ((first, second),) = stock.rows("SELECT accum._hash_stock(1, 42, 'A'), accum._hash_stock(1, 42, 'B')")
    balances = "SELECT lot, quantity FROM accum.stock_balance_cache ORDER BY 1"
    assert stock.value("SELECT accum.register_rebuild_cache('stock', %s)", first) == 1
    assert stock.rows(balances) == [("A", 5), ("B", 77)]
    assert stock.value("SELECT accum.register_rebuild_cache('stock', 12345)") == 0
    assert stock.value("SELECT accum.register_rebuild_cache(p_name := 'stock', p_dim_hash := %s)", second) == 1
    assert stock.rows(balances) == [("A", 5), ("B", 1)]
    assert stock.value("SELECT accum.register_rebuild_cache('stock')") == 2
    assert stock.value("SELECT accum.register_rebuild_totals('stock')") == 6


@pytest.mark.parametrize("high_write", [False, True])
def test_functions_of_a_register_are_not_dropped_without_it(registers: Database, high_write: bool) -> None:
    registers.run(CREATE.replace(")", ", high_write := %s)"), "stock", DIMENSIONS, RESOURCES, high_write)
    registers.run("CREATE FUNCTION accum.stock_balance(int) RETURNS int LANGUAGE sql AS 'SELECT 1'")
    for function in (
        "accum.stock_balance(jsonb, timestamptz)",
        "accum.stock_turnover",
        "accum.stock_movements",
        "accum._hash_stock(int, int, text)",
        "accum._trg_stock_insert() CASCADE",
        'accum_internal."stock.post"(jsonb)',
    ):
        for drop in ("FUNCTION", "ROUTINE"):
            with pytest.raises(errors.DependentObjectsStillExist, match="because register") as refused:
                registers.run(f"DROP {drop} {function}")
            assert "register_drop('stock')" in str(refused.value.diag.message_hint)
    registers.run("DROP FUNCTION accum.stock_balance(int)")
    assert post(registers, line(quantity=5)) == 1
    registers.run("SELECT accum.register_alter('stock', add_dimensions := '{\"zone\": \"int\"}')")
    registers.run("SELECT accum.register_drop('stock', true)")
    assert registers.rows("SELECT proname FROM pg_proc WHERE proname ~ 'stock'") == []


def test_a_register_of_the_same_name_is_made_anew_after_partitions_were_detached(stock: Database) -> None:
    ((now,),) = stock.rows("SELECT now()::text")
    post(stock, {**line(quantity=1), "period": now})
    stock.run("SELECT accum.register_detach_partitions('stock', (now() + interval '1 year')::date)")
    with pytest.raises(errors.ObjectNotInPrerequisiteState, match="contains movements"):
        stock.run("SELECT accum.register_drop('stock')")
    stock.run("SELECT accum.register_drop('stock', force := true)")
    assert stock.rows("SELECT relname FROM pg_class WHERE relname ~ '^stock'") == []
    stock.run(CREATE, "stock", DIMENSIONS, RESOURCES)
    post(stock, {**line(quantity=2), "period": now})
    assert stock.value("SELECT count(*) FROM ONLY accum.stock_movements_default") == 0
    assert stock.value("SELECT accum.stock_balance()") == {"quantity": 2, "amount": 0}
