"""CREATE, ALTER and DROP EXTENSION of what the server installs."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg import errors

from catalog.systems import SYSTEMS, VERSION
from server.postgres.cluster import binaries
from tests.e2e.conftest import Database, Headwater


def tag(connection: psycopg.Connection[Any], statement: str) -> tuple[str | None, list[str]]:
    """The completion of a statement, and the notices before it."""
    notices: list[str] = []

    def note(notice: psycopg.errors.Diagnostic) -> None:
        notices.append(str(notice.message_primary))

    connection.add_notice_handler(note)
    try:
        return connection.execute(statement).statusmessage, notices
    finally:
        connection.remove_notice_handler(note)


@pytest.mark.parametrize("name", ["pgque", "pg_trickle"])
def test_creating_finds_what_the_server_has_installed(db: Database, name: str) -> None:
    connection = db.connect()
    there = [f'extension "{name}" already exists, skipping']
    for statement in (f"CREATE EXTENSION {name}", f'create extension if not exists "{name}" with cascade;'):
        assert tag(connection, statement) == ("CREATE EXTENSION", there)
    same = [f'version "{VERSION}" of extension "{name}" is already installed']
    for update in ("UPDATE", f"UPDATE TO '{VERSION}'", f'UPDATE TO "{VERSION}"'):
        assert tag(connection, f"ALTER EXTENSION {name} {update}") == ("ALTER EXTENSION", same)
    schema = {"pgque": "pgque", "pg_trickle": "pgtrickle"}[name]
    assert tag(connection, f"CREATE EXTENSION {name} SCHEMA {schema}")[0] == "CREATE EXTENSION"
    with pytest.raises(errors.FeatureNotSupported, match=f'must be installed in schema "{schema}"'):
        connection.execute(f"CREATE EXTENSION {name} SCHEMA public")


def test_dropping_queues_and_creating_them_anew(db: Database) -> None:
    connection = db.connect()
    connection.execute("SELECT pgque.create_queue('orders')")
    assert tag(connection, "DROP EXTENSION pgque") == ("DROP EXTENSION", [])
    assert db.value("SELECT to_regnamespace('pgque') IS NULL")
    with pytest.raises(errors.UndefinedObject, match='extension "pgque" does not exist'):
        connection.execute("DROP EXTENSION pgque")
    with pytest.raises(errors.UndefinedObject):
        connection.execute("ALTER EXTENSION pgque UPDATE")
    assert tag(connection, "DROP EXTENSION IF EXISTS pgque") == (
        "DROP EXTENSION",
        ['extension "pgque" does not exist, skipping'],
    )
    assert tag(connection, "CREATE EXTENSION pgque") == ("CREATE EXTENSION", [])
    assert connection.execute("SELECT pgque.create_queue('orders')").fetchone() == (1,)


def test_dropping_is_a_part_of_the_transaction(db: Database) -> None:
    connection = db.connect(autocommit=False)
    connection.execute("SELECT pgque.create_queue('orders')")
    connection.commit()
    connection.execute("DROP EXTENSION pgque", prepare=True)
    assert connection.execute("SELECT to_regnamespace('pgque') IS NULL").fetchone() == (True,)
    connection.rollback()
    assert connection.execute("SELECT pgque.create_queue('orders')").fetchone() == (0,)


def test_dependents_are_dropped_with_cascade_only(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.run("CREATE TRIGGER q AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION pgque.jsontriga('orders')")
    db.run("CREATE VIEW v AS SELECT * FROM pgque.queue")
    with pytest.raises(errors.DependentObjectsStillExist, match="because other objects depend on it") as failure:
        db.run("DROP EXTENSION pgque")
    assert str(failure.value.diag.message_detail).count("depends on extension pgque") == 2
    assert db.run("DROP EXTENSION pgque CASCADE").statusmessage == "DROP EXTENSION"
    assert db.value("SELECT count(*) FROM pg_trigger WHERE tgname = 'q'") == 0


def test_dropping_needs_the_rights_of_an_owner(db: Database, role: Callable[..., psycopg.Connection[Any]]) -> None:
    alice = role("alice")
    with pytest.raises(errors.InsufficientPrivilege, match="must be owner of extension pgque"):
        alice.execute("DROP EXTENSION pgque CASCADE")
    assert tag(alice, "CREATE EXTENSION pgque")[0] == "CREATE EXTENSION"
    db.run("DROP EXTENSION pgque")
    with pytest.raises(errors.InsufficientPrivilege, match='permission denied to create extension "pgque"'):
        alice.execute("CREATE EXTENSION pgque")


def test_registers_in_a_schema_of_the_users_choice(db: Database) -> None:
    connection = db.connect()
    there = ['extension "pg_accumulator" already exists, skipping']
    assert tag(connection, "CREATE EXTENSION pg_accumulator") == ("CREATE EXTENSION", there)
    assert tag(connection, 'CREATE EXTENSION pg_accumulator SCHEMA "Ledger"') == ("CREATE EXTENSION", [])
    assert db.value("SELECT to_regnamespace('accum') IS NULL")
    assert tag(connection, "CREATE EXTENSION IF NOT EXISTS pg_accumulator") == ("CREATE EXTENSION", there)
    same = [f'version "{VERSION}" of extension "pg_accumulator" is already installed']
    assert tag(connection, "ALTER EXTENSION pg_accumulator UPDATE") == ("ALTER EXTENSION", same)
    assert tag(connection, 'ALTER EXTENSION pg_accumulator SET SCHEMA "Ledger"') == ("ALTER EXTENSION", [])
    create = """SELECT "Ledger".register_create('cash', '{"account": "int"}', '{"amount": "numeric(9,2)"}')"""
    connection.execute(create)
    movement = '{"recorder": "r", "period": "2026-04-18", "account": 1, "amount": 2.5}'
    connection.execute("""SELECT "Ledger".register_post('cash', %s::jsonb)""", [movement])
    assert db.value("""SELECT "Ledger".cash_balance()::text""") == '{"amount": 2.50}'
    with pytest.raises(errors.DuplicateObject, match='is installed in schema "Ledger", which is in use'):
        connection.execute("CREATE EXTENSION pg_accumulator SCHEMA accum")
    assert tag(connection, "DROP EXTENSION pg_accumulator") == ("DROP EXTENSION", [])
    assert db.value("SELECT count(*) FROM pg_namespace WHERE nspname IN ('Ledger', 'accum')") == 0
    assert tag(connection, "CREATE EXTENSION pg_accumulator") == ("CREATE EXTENSION", [])
    assert db.value("SELECT count(*) FROM accum.register_list()") == 0


def test_what_else_is_in_the_schema_of_registers_is_not_dropped(db: Database) -> None:
    connection = db.connect()
    connection.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (n int); INSERT INTO shop.orders VALUES (1)")
    connection.execute("CREATE FUNCTION shop.one() RETURNS int LANGUAGE sql AS 'SELECT 1'")
    connection.execute("CREATE EXTENSION pg_accumulator SCHEMA shop")
    with pytest.raises(errors.DuplicateObject, match='is installed in schema "shop", which is in use'):
        connection.execute("CREATE EXTENSION pg_accumulator SCHEMA accum")
    connection.execute("""SELECT shop.register_create('cash', '{"a": "int"}', '{"n": "int"}', high_write := true)""")
    connection.execute("""SELECT shop.register_create('card', '{"a": "int"}', '{"n": "int"}', kind := 'turnover')""")
    connection.execute("SELECT shop.register_detach_partitions('cash', '2100-01-01')")
    for how in ("", " CASCADE"):
        with pytest.raises(errors.DependentObjectsStillExist) as failure:
            connection.execute(f"DROP EXTENSION pg_accumulator{how}")
        assert failure.value.diag.message_primary == (
            'cannot drop extension pg_accumulator because schema "shop" has other objects'
        )
        assert failure.value.diag.message_detail == "function shop.one()\ntable shop.orders"
    connection.execute("ALTER TABLE shop.orders SET SCHEMA public; DROP FUNCTION shop.one")
    connection.execute("DROP EXTENSION pg_accumulator")
    assert db.value("SELECT to_regnamespace('shop') IS NULL")
    assert db.value("SELECT n FROM public.orders") == 1


def test_other_extensions_are_postgresqls_own(db: Database) -> None:
    connection = db.connect()
    assert tag(connection, "CREATE EXTENSION hstore -- not pgque") == ("CREATE EXTENSION", [])
    assert tag(connection, "DROP EXTENSION hstore; CREATE EXTENSION pgque; SELECT 1")[1] == [
        'extension "pgque" already exists, skipping'
    ]
    connection.execute("CREATE EXTENSION hstore")
    with pytest.raises(errors.FeatureNotSupported, match='"pgque" together with extensions that Headwater does not'):
        connection.execute("DROP EXTENSION hstore, pgque CASCADE")
    # What is no statement of PostgreSQL's grammar is refused by PostgreSQL.
    with pytest.raises(errors.SyntaxError):
        connection.execute("CREATE EXTENSION pgque VERSION 1")
    with pytest.raises((errors.SyntaxError, errors.DuplicateObject)):
        connection.execute("CREATE EXTENSION pgque SCHEMA pgque SCHEMA pgque")


REFUSED = {
    "CREATE EXTENSION {} VERSION '9.9'": (
        "22023",
        'extension "{}" has no installation script nor update path for version "9.9"',
    ),
    "CREATE EXTENSION IF NOT EXISTS {} WITH VERSION E'\\x61'": (
        "22023",
        'extension "{}" has no installation script nor update path for version "a"',
    ),
    "CREATE EXTENSION {} CASCADE VERSION ''": ("22023", 'invalid extension version name: ""'),
    "ALTER EXTENSION {} UPDATE TO '9.9'": (
        "22023",
        f'extension "{{}}" has no update path from version "{VERSION}" to version "9.9"',
    ),
    "ALTER EXTENSION {} UPDATE TO Next": (
        "22023",
        f'extension "{{}}" has no update path from version "{VERSION}" to version "next"',
    ),
    "ALTER EXTENSION {} UPDATE TO $$1--2$$": ("22023", 'invalid extension version name: "1--2"'),
    "ALTER EXTENSION {} SET SCHEMA public": ("0A000", 'extension "{}" does not support SET SCHEMA'),
    "ALTER EXTENSION {} SET SCHEMA nowhere": ("3F000", 'schema "nowhere" does not exist'),
    "ALTER EXTENSION {} ADD TABLE t": ("0A000", 'cannot change the members of extension "{}"'),
    "ALTER EXTENSION {} DROP FUNCTION f(int)": ("0A000", 'cannot change the members of extension "{}"'),
}
"""Forms, with SQLSTATE and message: PostgreSQL's own wherever it has one."""


def test_versions_schemas_and_members_that_there_are_not(
    shared_db: Database, role: Callable[..., psycopg.Connection[Any]]
) -> None:
    connection, alice = shared_db.connect(), role("alice")
    for name in ("pg_trickle", "pgque", "pg_accumulator"):
        assert tag(connection, f"CREATE EXTENSION {name} VERSION '{VERSION}'")[0] == "CREATE EXTENSION"
        for form, (sqlstate, message) in REFUSED.items():
            with pytest.raises(psycopg.Error) as failure:
                connection.execute(form.format(name))
            assert (failure.value.sqlstate, failure.value.diag.message_primary) == (sqlstate, message.format(name))
        for change in ("UPDATE", "UPDATE TO '9.9'", "SET SCHEMA public"):
            with pytest.raises(errors.InsufficientPrivilege, match=f"must be owner of extension {name}"):
                alice.execute(f"ALTER EXTENSION {name} {change}")
    schemas = "SELECT count(*) FROM pg_namespace WHERE nspname IN ('pgtrickle', 'pgque', 'accum')"
    assert shared_db.value(schemas) == 3
    assert shared_db.rows("SELECT pgque.version(), pgtrickle.version()") == [(VERSION, VERSION)]


def test_several_are_dropped_by_one_statement(db: Database) -> None:
    assert tag(db.connection, "DROP EXTENSION pgque, pg_accumulator CASCADE")[0] == "DROP EXTENSION"
    assert db.value("SELECT count(*) FROM pg_namespace WHERE nspname IN ('pgque', 'accum')") == 0


def test_stream_tables_work_where_queues_cannot_be_installed(server: Headwater) -> None:
    name = "e2e_foreign_queues"
    with psycopg.connect(server.direct_dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
    try:
        with psycopg.connect(server.direct_dsn(name), autocommit=True) as direct:
            direct.execute("CREATE SCHEMA pgque; CREATE TABLE pgque.queue (mine int)")
            direct.execute("CREATE TABLE t (id int PRIMARY KEY)")
        database = Database(server, name)
        connection = database.connect()
        connection.execute("SELECT pgtrickle.create_stream_table('s', 'SELECT count(*) AS n FROM t')")
        assert database.value("SELECT n FROM s") == 0
        with pytest.raises(errors.DuplicateObject, match="schema pgque exists and was not made by Headwater"):
            connection.execute("CREATE EXTENSION pgque")
        connection.execute("DROP TABLE pgque.queue")
        assert connection.execute("CREATE EXTENSION pgque").statusmessage == "CREATE EXTENSION"
        assert database.value("SELECT pgque.create_queue('orders')") == 1
        database.close()
    finally:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


SHOWN = """
SELECT a.name, e.extversion, a.default_version, a.installed_version, v.installed, e.extnamespace::regnamespace::text,
       a.comment
FROM pg_available_extensions a JOIN pg_available_extension_versions v USING (name)
LEFT JOIN pg_extension e ON e.extname = a.name
WHERE a.comment LIKE 'Headwater%' ORDER BY 1
"""
ALL = [
    ("pg_accumulator", VERSION, VERSION, VERSION, True, "accum", "Headwater: registers"),
    ("pg_trickle", VERSION, VERSION, VERSION, True, "pgtrickle", "Headwater: stream tables"),
    ("pgque", VERSION, VERSION, VERSION, True, "pgque", "Headwater: queues"),
]


def test_postgresql_shows_what_is_installed(db: Database) -> None:
    if db.connection.info.server_version < 180000:
        pytest.skip("earlier versions look for extensions in one place only, which is not ours")
    assert db.rows(SHOWN) == ALL
    psql = [binaries() / "psql", "-X", "-A", "-t", "-c", "\\dx pg_trickle", db.server.dsn(db.name)]
    shown = subprocess.run(psql, check=True, capture_output=True, text=True).stdout
    assert shown == f"pg_trickle|{VERSION}|{VERSION}|pgtrickle|Headwater: stream tables\n"
    # Nothing is a member of them, so that a dump has all there is.
    dump = subprocess.run(
        [binaries() / "pg_dump", db.server.direct_dsn(db.name)], check=True, capture_output=True, text=True
    )
    for system in SYSTEMS:
        assert f"CREATE EXTENSION IF NOT EXISTS {system.extension} WITH SCHEMA {system.schema};" in dump.stdout
        assert f"COPY {system.schema}.{system.versions} " in dump.stdout
    assert db.value("SELECT count(*) FROM pg_depend WHERE deptype = 'e' AND classid <> 'pg_language'::regclass") < 10
    db.run("DROP EXTENSION pgque")
    db.run('CREATE EXTENSION pg_accumulator SCHEMA "Ledger"')
    changed = [(*ALL[0][:5], '"Ledger"', ALL[0][6]), ALL[1], ("pgque", None, VERSION, None, False, None, ALL[2][6])]
    assert db.rows(SHOWN) == changed
    for statement in ("CREATE EXTENSION pgque", "DROP EXTENSION pg_accumulator", "CREATE EXTENSION pg_accumulator"):
        db.run(statement)
    assert db.rows(SHOWN) == ALL
    db.run("DROP EXTENSION pg_trickle")
    gone = ("pg_trickle", None, VERSION, None, False, None, ALL[1][6])
    assert db.rows(SHOWN) == [ALL[0], gone, ALL[2]]
    db.connect()  # as the server looks after what is installed
    assert db.rows(SHOWN) == [ALL[0], gone, ALL[2]]
    db.run("CREATE EXTENSION pg_trickle")
    assert db.rows(SHOWN) == ALL


def test_entries_that_are_made_and_dropped_past_the_server_stand_for_nothing(server: Headwater) -> None:
    name = "e2e_entries"
    direct = server.administrator(direct=True)
    if direct.info.server_version < 180000:
        pytest.skip("earlier versions look for extensions in one place only, which is not ours")
    direct.execute(f"CREATE DATABASE {name}")
    try:
        with psycopg.connect(server.direct_dsn(name), autocommit=True) as past:
            past.execute("CREATE EXTENSION pg_trickle; CREATE EXTENSION pgque")
            assert past.execute("SELECT to_regclass('pgtrickle.pgt_schema_version')").fetchone() == (None,)
            database = Database(server, name)
            assert database.rows(SHOWN) == ALL
            assert database.value("SELECT count(*) FROM pgtrickle.pgt_status()") == 0
            past.execute("DROP EXTENSION pgque; DROP EXTENSION pg_trickle")
            assert database.value("SELECT pgque.create_queue('orders')") == 1
            database.run("ALTER EXTENSION pgque UPDATE; ALTER EXTENSION pg_trickle UPDATE")
            assert database.rows(SHOWN) == ALL
            # What a dump does that is restored over what there is.
            past.execute("DROP TABLE pgque.schema_version")
            assert tag(database.connection, "DROP EXTENSION IF EXISTS pgque") == ("DROP EXTENSION", [])
            assert database.value("SELECT count(*) FROM pg_extension WHERE extname = 'pgque'") == 0
            database.close()
    finally:
        server.administrator().execute(f"DROP DATABASE {name} WITH (FORCE)")
