"""Who may do what with a register: PostgreSQL's privileges on its tables decide (`register_rights.txt`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg
import pytest

from catalog.systems import REGISTERS
from server.postgres.cluster import EmbeddedPostgres
from tests.catalog.conftest import Connection, install_into
from tests.catalog.signatures import declared_lines, wrong_functions
from tests.clusters import new_database

OWNER, SOMEBODY = "register_owner", "register_somebody"
TABLES = ("movements", "movements_audit", "balance_cache", "totals_day", "totals_month", "totals_year")


@dataclass(frozen=True)
class Right:
    """A line of the table."""

    call: str
    needs: tuple[str, ...]


def read_table() -> list[Right]:
    """The lines, in order."""
    rights = []
    for line in declared_lines("register_rights.txt"):
        call, needs = line.rsplit(" | ", 1)
        rights.append(Right(call, tuple(need for need in needs.split(", ") if need != "-")))
    return rights


@pytest.fixture(scope="module")
def stock(cluster: EmbeddedPostgres) -> Iterator[Connection]:
    """A superuser's connection; a plain role has the register `stock`, with a movement and a corrected one."""
    with new_database(cluster, "register_rights") as name:
        install_into(cluster.dsn(name), system=REGISTERS)
        with psycopg.connect(cluster.dsn(name), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {OWNER}; CREATE ROLE {SOMEBODY}")
            connection.execute(f"GRANT INSERT ON accum._registers TO {OWNER}; SET ROLE {OWNER}; SET TimeZone = 'UTC'")
            connection.execute("SET statement_timeout = '90s'")
            connection.execute('SELECT accum.register_create(\'stock\', \'{"item": "int"}\', \'{"n": "int"}\')')
            for quantity in (5, 7):
                connection.execute(
                    "SELECT accum.register_repost('stock', 'doc:1', jsonb_build_object("
                    "'period', '2026-04-18', 'item', 1, 'n', %s::int))",
                    [quantity],
                )
            connection.execute("RESET ROLE")
            yield connection
            connection.execute(f"DROP OWNED BY {OWNER}, {SOMEBODY} CASCADE; DROP ROLE {OWNER}, {SOMEBODY}")


def granted(need: str) -> str:
    """The statement that gives a role what it needs."""
    if need == "owner":
        return f"GRANT {OWNER} TO {SOMEBODY}"
    privilege, table = need.split()
    if table == "_registers":
        return f"GRANT {privilege} ON accum._registers TO {SOMEBODY}"
    return f"GRANT {privilege} ON accum.stock_{table} TO {SOMEBODY}"


def outcome(connection: Connection, right: Right, grants: list[str]) -> str:
    """What a role that has been granted this, and nothing else, gets from the call."""
    try:
        with connection.transaction(force_rollback=True):
            for grant in grants:
                connection.execute(grant.encode())
            connection.execute(f"SET LOCAL ROLE {SOMEBODY}")
            connection.execute(right.call.encode())
    except psycopg.Error as error:
        return "refused" if error.sqlstate == "42501" else str(error)
    return "worked"


def test_calls(stock: Connection) -> None:
    wrong = []
    for right in read_table():
        needs = [granted(need) for need in right.needs]
        tried = {"enough": (needs, "worked")}
        for missing in needs:
            tried[f"without {missing}"] = ([need for need in needs if need != missing], "refused")
        if right.needs == ("owner",):
            everything = [f"GRANT ALL ON accum.stock_{table} TO {SOMEBODY}" for table in TABLES]
            tried["not owner"] = ([*everything, granted("INSERT _registers")], "refused")
        for name, (grants, expected) in tried.items():
            found = outcome(stock, right, grants)
            if found != expected:
                wrong.append((right.call, name, found))
    assert wrong == [], "\n".join(map(str, wrong))


def test_nothing_is_granted_to_everybody(stock: Connection) -> None:
    """But looking into the schema, and at the list of registers; the server checks what is asked of it."""
    rows = stock.execute(
        "SELECT c.relname, a.privilege_type FROM pg_class c, aclexplode(c.relacl) a"
        " WHERE c.relnamespace::regnamespace::text ~ '^accum' AND a.grantee = 0 ORDER BY 1, 2"
    ).fetchall()
    assert {privilege for _, privilege in rows} == {"SELECT"}
    assert not {table for table, _ in rows if table.startswith("stock")}
    columns = stock.execute(
        "SELECT t.attrelid::regclass::text, t.attname, a.privilege_type FROM pg_attribute t, aclexplode(t.attacl) a"
        " WHERE (SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = t.attrelid) ~ '^accum'"
        " AND a.grantee = 0 ORDER BY t.attnum"
    ).fetchall()
    assert columns == [
        ("accum_internal.call", "operation", "INSERT"),
        ("accum_internal.call", "arguments", "INSERT"),
        ("accum_internal.call", "result", "SELECT"),
    ]
    schemas = stock.execute(
        "SELECT nspname, has_schema_privilege('public', oid, 'CREATE'), has_schema_privilege('public', oid, 'USAGE')"
        " FROM pg_namespace WHERE nspname ~ '^accum' ORDER BY 1"
    ).fetchall()
    assert schemas == [("accum", False, True), ("accum_internal", False, True), ("accum_roles", False, False)]


def test_functions_with_rights_of_their_own(stock: Connection) -> None:
    """Triggers of the register's owner, which no other table can be given; one that looks at the workers, one that
    notices what is dropped, and those that carry out calls and count for whoever may read."""
    rows = stock.execute(
        "SELECT proname, proowner::regrole::text, prorettype::regtype::text, proconfig,"
        " has_function_privilege('public', oid, 'EXECUTE') FROM pg_proc"
        " WHERE pronamespace IN ('accum'::regnamespace, 'accum_internal'::regnamespace) AND prosecdef"
    ).fetchall()
    ours = {"_maintenance_status", "_on_sql_drop", "_carry_out", "_count_as_owner"}
    assert {name for name, owner, *_ in rows if owner != OWNER} == ours
    for name, owner, result, settings, public in rows:
        assert owner != OWNER or (result, public) == ("trigger", False), name
        assert "search_path=pg_catalog, pg_temp" in settings, name


def test_path_of_the_caller_is_in_nobodys_hands(stock: Connection) -> None:
    """Functions pin theirs; the one that has none, for its speed, uses nothing that somebody may have put in front."""
    rows = stock.execute(
        "SELECT proname FROM pg_proc JOIN pg_language l ON l.oid = prolang WHERE pronamespace = 'accum'::regnamespace"
        " AND NOT coalesce(proconfig @> '{\"search_path=pg_catalog, pg_temp\"}', false) AND lanname = 'plpgsql'"
    ).fetchall()
    assert rows == [("stock_balance",)]
    with stock.transaction(force_rollback=True):
        stock.execute("CREATE SCHEMA planted")
        for signature, result in (
            ("hashint8extended(bigint, bigint)", "bigint"),
            ("hashint8extended(int, bigint)", "bigint"),
            ("jsonb_build_object(text, int)", "jsonb"),
            ("same(int, int)", "boolean"),
            ("given(jsonb, text[])", "boolean"),
            ("less(jsonb, text[])", "jsonb"),
            ("got(jsonb, text)", "text"),
            ("combined(bigint, bigint)", "bigint"),
        ):
            stock.execute(
                f"CREATE FUNCTION planted.{signature} RETURNS {result} LANGUAGE plpgsql"
                " AS $$ BEGIN RAISE 'planted' USING ERRCODE = 'HW999'; END $$".encode()
            )
        for operator, function, left, right in (
            ("=", "same", "int", "int"),
            ("?&", "given", "jsonb", "text[]"),
            ("-", "less", "jsonb", "text[]"),
            ("->>", "got", "jsonb", "text"),
            ("#", "combined", "bigint", "bigint"),
        ):
            stock.execute(
                f"CREATE OPERATOR planted.{operator}"
                f" (FUNCTION = planted.{function}, LEFTARG = {left}, RIGHTARG = {right})".encode()
            )
        stock.execute("CREATE DOMAIN planted.integer AS int CHECK (false)")
        stock.execute("SET LOCAL search_path = planted, pg_catalog")
        assert stock.execute("SELECT accum.stock_balance('{\"item\": 1}')").fetchone() == ({"n": 7},)


def test_what_an_administrator_alters_is_the_owners(stock: Connection) -> None:
    owners = (
        "SELECT relowner::regrole::text FROM pg_class WHERE relname ~ 'stock'"
        " UNION SELECT proowner::regrole::text FROM pg_proc WHERE proname ~ 'stock'"
    )
    with stock.transaction(force_rollback=True):
        stock.execute("SELECT accum.register_detach_partitions('stock', '2040-01-01')")
        stock.execute("SELECT accum.register_create_partitions('stock', interval '-1 year')")
        for high_write in (True, False):
            stock.execute(
                "SELECT accum.register_alter('stock', %s::jsonb, %s::jsonb, %s)",
                [f'{{"lot_{high_write}": "varchar(9)"}}', f'{{"m_{high_write}": "int"}}', high_write],
            )
            assert stock.execute(owners).fetchall() == [(OWNER,)]
        stock.execute(f"SET LOCAL ROLE {OWNER}")
        stock.execute("SELECT accum.register_alter('stock', '{\"color\": \"text\"}')")
        stock.execute("SELECT accum.register_drop('stock', true)")
        left = stock.execute("SELECT count(*) FROM pg_proc WHERE proname ~ '_stock(_|$)|^stock_'").fetchone()
        assert left == (0,)


def test_register_of_another_is_not_in_the_way(stock: Connection) -> None:
    """A name that is taken is refused, whoever has taken it; a row written by hand gives nobody a register."""
    with stock.transaction(force_rollback=True):
        stock.execute(f"GRANT INSERT ON accum._registers TO {SOMEBODY}; SET LOCAL ROLE {SOMEBODY}")
        create = 'SELECT accum.register_create(\'{}\', \'{{"item": "int"}}\', \'{{"n": "int"}}\')'
        with pytest.raises(psycopg.errors.DuplicateObject), stock.transaction():
            stock.execute(create.format("stock").encode())
        stock.execute(create.format("mine").encode())
        for statement in (
            "UPDATE accum._registers SET kind = 'turnover' WHERE name = 'stock'",
            "DELETE FROM accum._registers WHERE name = 'stock'",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), stock.transaction():
                stock.execute(statement.encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege), stock.transaction():
            stock.execute("UPDATE accum._registers SET name = 'stock_2' WHERE name = 'mine'")


def test_nothing_written_into_the_list_of_registers_is_run(stock: Connection) -> None:
    """An administrator calls a function for a register of whose row somebody has made code."""
    with stock.transaction(force_rollback=True):
        stock.execute(f"GRANT INSERT ON accum._registers TO {SOMEBODY}; SET LOCAL ROLE {SOMEBODY}")
        stock.execute('SELECT accum.register_create(\'trap\', \'{"item": "int"}\', \'{"n": "int"}\')')
        evil = "text); CREATE TABLE public.pwned (); --"
        for column in ("recorder_type", "kind", "totals_period", "partition_by"):
            with pytest.raises(psycopg.Error), stock.transaction():
                stock.execute(f"UPDATE accum._registers SET {column} = %s WHERE name = 'trap'".encode(), [evil])
                stock.execute("RESET ROLE")
                stock.execute("SELECT accum.register_alter('trap', add_resources := '{\"m\": \"int\"}')")
        for column in ("dimensions", "resources"):
            with pytest.raises(psycopg.Error), stock.transaction():
                stock.execute(f"SET LOCAL ROLE {SOMEBODY}")
                change = f"UPDATE accum._registers SET {column} = jsonb_build_object('n', %s::text) WHERE name = 'trap'"
                stock.execute(change.encode(), [evil])
                stock.execute("RESET ROLE")
                stock.execute("SELECT accum.register_alter('trap', add_resources := '{\"m\": \"int\"}')")
        stock.execute("RESET ROLE")
        assert stock.execute("SELECT to_regclass('public.pwned')").fetchone() == (None,)


def test_signatures(stock: Connection) -> None:
    def rows(statement: str, *parameters: object) -> list[tuple[object, ...]]:
        return stock.execute(statement.encode(), parameters).fetchall()

    with stock.transaction(force_rollback=True):
        stock.execute(
            'SELECT accum.register_create(\'inventory\', \'{"warehouse": "int", "product": "int", "lot": "text"}\','
            ' \'{"quantity": "numeric(18,4)", "amount": "numeric(18,2)"}\')'
        )
        assert wrong_functions(rows, "accum", declared_lines("register_signatures.txt")) == []
