"""Installing registers: in the schema of the user's choice, found there by every later server."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from catalog.install import Script, Scripts, bundled_scripts
from catalog.session import SqlError
from catalog.systems import REGISTERS
from tests.catalog.conftest import Connect, install_into

CREATE = 'SELECT {}.register_create(\'cash\', \'{{"account": "int"}}\', \'{{"amount": "int"}}\')'


def schemas(connect: Connect) -> list[str]:
    """Where registers have been installed."""
    rows = connect().execute(
        "SELECT n.nspname FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid AND relname = '_registers'"
    )
    return [name for (name,) in rows.fetchall()]


def test_another_schema_is_found_and_upgraded_there(dsn: str, bare_connect: Connect) -> None:
    assert install_into(dsn, system=REGISTERS, schema="my ledger").changed
    assert not install_into(dsn, system=REGISTERS).changed
    assert schemas(bare_connect) == ["my ledger"]
    bare_connect().execute(CREATE.format('"my ledger"'))
    old = bundled_scripts(REGISTERS)
    more = Script("0099_more", "-- More.\nALTER TABLE @extschema@._registers ADD COLUMN more int")
    new = Scripts((*old.migrations, more), old.functions, old.superuser, old.title)
    assert install_into(dsn, new, REGISTERS).changed
    assert schemas(bare_connect) == ["my ledger"]
    assert bare_connect().execute('SELECT name, more FROM "my ledger"._registers').fetchall() == [("cash", None)]
    with pytest.raises(SqlError, match="was installed by a newer version of Headwater"):
        install_into(dsn, system=REGISTERS)


def test_moved_while_there_are_no_registers(dsn: str, bare_connect: Connect) -> None:
    install_into(dsn, system=REGISTERS)
    assert install_into(dsn, system=REGISTERS, schema="ledger").changed
    assert schemas(bare_connect) == ["ledger"]
    bare_connect().execute(CREATE.format("ledger"))
    with pytest.raises(SqlError) as failure:
        install_into(dsn, system=REGISTERS, schema="accum")
    assert failure.value.sqlstate == "42710"
    assert schemas(bare_connect) == ["ledger"]


def test_what_others_have_in_the_schema_is_not_dropped_with_it(dsn: str, bare_connect: Connect) -> None:
    install_into(dsn, system=REGISTERS)
    bare_connect().execute("GRANT CREATE ON SCHEMA accum TO catalog_alice")
    bare_connect("catalog_alice").execute("CREATE TABLE accum.mine (n int)")
    with pytest.raises(SqlError, match="which is in use"):
        install_into(dsn, system=REGISTERS, schema="ledger")
    assert schemas(bare_connect) == ["accum"]


def test_a_schema_that_somebody_else_rules_is_not_used(dsn: str, bare_connect: Connect) -> None:
    """Who owns a schema can replace what is in it; a comment that looks like ours makes no schema ours."""
    bare_connect().execute("CREATE SCHEMA theirs AUTHORIZATION catalog_alice")
    with pytest.raises(SqlError) as failure:
        install_into(dsn, system=REGISTERS, schema="theirs")
    assert failure.value.sqlstate == "42501"
    state = bundled_scripts(REGISTERS).state(superuser=True)
    bare_connect("catalog_alice").execute(f"COMMENT ON SCHEMA theirs IS '{state}'")
    assert install_into(dsn, system=REGISTERS).changed
    assert schemas(bare_connect) == ["accum"]


@pytest.mark.parametrize("name", ['a"b', "a'b", "a$b", "a\\b"])
def test_names_that_scripts_could_not_quote(dsn: str, bare_connect: Connect, name: str) -> None:
    with pytest.raises(SqlError, match="invalid character in the name of schema"):
        install_into(dsn, system=REGISTERS, schema=name)
    assert schemas(bare_connect) == []


def make_key_of_earlier_version(connection: psycopg.Connection[Any], table: str) -> None:
    """A key with all dimensions, instead of one of the hash."""
    row = connection.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p'", [f"accum.{table}"]
    ).fetchone()
    if row is not None:  # else it is of what has been detached
        (key,) = row
        columns = f"dim_hash{', period' if 'totals' in table else ''}, account, due"
        connection.execute(
            f"ALTER TABLE accum.{table} DROP CONSTRAINT {key}, ADD CONSTRAINT {key.replace('_pkey', '_cell')}"
            f" UNIQUE NULLS NOT DISTINCT ({columns})".encode()
        )


@pytest.mark.parametrize("arguments", ["", ", high_write := true", ", kind := 'turnover'"])
def test_movements_of_an_earlier_version_get_the_hashes_of_this_one(
    dsn: str, bare_connect: Connect, arguments: str
) -> None:
    """Before, a date that is NULL had a hash, and large numbers had one; what has been detached keeps being counted."""
    install_into(dsn, system=REGISTERS)
    connection = bare_connect()
    create = 'SELECT accum.register_create(\'cash\', \'{{"account": "bigint", "due": "date"}}\', \'{{"n": "int"}}\'{})'
    connection.execute(create.format(arguments))
    post = """SELECT accum.register_post('cash', jsonb_build_object(
        'recorder', 'r', 'period', %s::text, 'account', %s::bigint, 'due', %s::text, 'n', 10))"""
    movements = [
        *(("2026-04-18", 1, None), ("2026-04-18", 1, "2026-05-01"), ("2026-04-19", 1, None), ("2024-01-01", 1, None)),
        *(("2026-04-18", number, "2026-05-01") for number in (2**33 + 5, 2**34 + 5)),
    ]
    connection.execute("SELECT accum.register_create_partitions('cash', interval '-4 years')")
    connection.cursor().executemany(post, movements)
    connection.execute("SELECT accum._force_delta_merge(), accum.register_detach_partitions('cash', '2025-01-01')")
    tables = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = 'accum'::regnamespace AND relkind = 'r'"
        " AND relname ~ '^cash_(movements_2026_04$|detached|totals|balance_cache(_stored)?$)'"
    ).fetchall()
    for (table,) in tables:
        connection.execute(f"ALTER TABLE accum.{table} DISABLE TRIGGER USER")
        connection.execute(f"UPDATE accum.{table} SET dim_hash = dim_hash + 1 WHERE due IS NULL")
        if not table.startswith("cash_movements"):
            make_key_of_earlier_version(connection, table)
        connection.execute(f"UPDATE accum.{table} SET dim_hash = 7 WHERE account > 1")
        connection.execute(f"ALTER TABLE accum.{table} ENABLE TRIGGER USER")
    if "high_write" in arguments:
        connection.execute(
            "INSERT INTO accum.cash_balance_cache_delta (id, dim_hash, last_movement_id)"
            " SELECT 0, 0, epoch FROM accum.cash_balance_cache_alive;"
            "SET pg_accumulator.altered = 'cash'; DROP TABLE accum.cash_balance_cache_alive CASCADE"
        )
    old = bundled_scripts(REGISTERS)
    newer = Scripts(old.migrations, (Script("00", "SELECT 1"), *old.functions), old.superuser, old.title)
    assert install_into(dsn, newer, REGISTERS).changed
    connection.cursor().executemany(post, movements)
    assert connection.execute("SELECT DISTINCT status FROM accum.register_verify('cash')").fetchall() == [("OK",)]
    assert connection.execute(
        "SELECT n, dim_hash = accum._hash_cash(due => due, account => account)"
        " FROM accum.cash_totals_year WHERE period = '2026-01-01' ORDER BY n"
    ).fetchall() == [(20, True), (20, True), (20, True), (40, True)]
    if "turnover" not in arguments:
        balance = 'SELECT accum.cash_balance(\'{"account": 1, "due": null}\'), count(*) FROM accum.cash_balance_cache'
        assert connection.execute(balance).fetchall() == [({"n": 60}, 4)]
    assert connection.execute("SELECT count(*) FROM accum.cash_movements_audit").fetchone() == (0,)


def test_registers_of_an_earlier_version_get_the_functions_and_indexes_of_this_one(
    dsn: str, bare_connect: Connect
) -> None:
    install_into(dsn, system=REGISTERS)
    bare_connect().execute("GRANT INSERT ON accum._registers TO catalog_alice")
    alice = bare_connect("catalog_alice")
    alice.execute(CREATE.format("accum"))
    sources = (
        "SELECT proname, prosrc, proowner::regrole::text FROM pg_proc WHERE proname LIKE '%cash%'"
        " AND pronamespace IN ('accum'::regnamespace, 'accum_internal'::regnamespace) ORDER BY 1"
    )
    indexes = "SELECT indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'cash\\_totals%' ORDER BY 1"
    guards = "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'is_derived' ORDER BY 1"
    made, indexed = alice.execute(sources).fetchall(), alice.execute(indexes).fetchall()
    guarded = alice.execute(guards).fetchall()
    alice.execute(
        "SET pg_accumulator.altered = 'cash';"
        'DROP FUNCTION accum_internal."cash.balance"(jsonb, timestamptz);'
        "DROP INDEX accum.cash_totals_day_period, accum.cash_totals_month_period;"
        "CREATE OR REPLACE TRIGGER is_derived BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON accum.cash_totals_day"
        " FOR EACH STATEMENT WHEN (current_setting('pg_accumulator.writes', true) IS DISTINCT FROM 'on')"
        " EXECUTE FUNCTION accum_internal._refuse_direct_write('cash')"
    )
    assert alice.execute(guards).fetchall() != guarded
    bare_connect().execute(
        "CREATE OR REPLACE FUNCTION accum_internal.\"cash.post\"(p_data jsonb) RETURNS int LANGUAGE sql AS 'SELECT -1'"
    )
    old = bundled_scripts(REGISTERS)
    newer = Scripts(old.migrations, (Script("00", "SELECT 1"), *old.functions), old.superuser, old.title)
    assert install_into(dsn, newer, REGISTERS).changed
    assert alice.execute(sources).fetchall() == made
    assert alice.execute(indexes).fetchall() == indexed
    assert alice.execute(guards).fetchall() == guarded
    assert {owner for _, _, owner in made} == {"catalog_alice"}
