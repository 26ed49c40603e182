"""CREATE SOURCE … FROM LOAD GENERATOR COUNTER, and DROP SOURCE."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import errors

from tests.e2e.conftest import Database, Headwater, _database

Eventually = Callable[..., Any]


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture(scope="module")
def sources(server: Headwater) -> Iterator[Database]:
    """One database for all of this file."""
    yield from _database(server)


def count(database: Database, table: str) -> int:
    return int(database.value(f"SELECT count(*) FROM {table}"))


def test_a_source_gains_a_row_per_tick(sources: Database, eventually: Eventually) -> None:
    assert sources.run("CREATE SOURCE counter FROM LOAD GENERATOR COUNTER").statusmessage == "CREATE SOURCE"
    assert sources.rows(
        "SELECT attname, atttypid::regtype::text, attnotnull FROM pg_attribute"
        " WHERE attrelid = 'counter'::regclass AND attnum > 0"
    ) == [("counter", "bigint", True)]
    sources.run("CREATE SOURCE fast FROM LOAD GENERATOR COUNTER (TICK INTERVAL '10ms')")
    eventually(lambda: count(sources, "fast") >= 30)
    eventually(lambda: count(sources, "counter") >= 2)
    for table in ("counter", "fast"):
        values = [value for (value,) in sources.rows(f"SELECT counter FROM {table} ORDER BY 1")]
        assert values == list(range(1, len(values) + 1))
    ((name, owner, generator, interval, last, error),) = sources.rows(
        "SELECT name, owner, generator, tick_interval::text, last_value, error FROM pgtrickle.source_status()"
        " WHERE name = 'public.fast'"
    )
    assert (name, owner, generator, interval, error) == ("public.fast", "postgres", "COUNTER", "00:00:00.01", None)
    assert last >= 30
    for table in ("counter", "fast"):
        assert sources.run(f"DROP SOURCE {table}").statusmessage == "DROP SOURCE"
    assert sources.value("SELECT to_regclass('counter') IS NULL AND to_regclass('fast') IS NULL")


def test_rows_that_are_deleted_do_not_come_again(sources: Database, eventually: Eventually) -> None:
    sources.run("CREATE SOURCE kept FROM LOAD GENERATOR COUNTER (TICK INTERVAL = '5ms')")
    eventually(lambda: count(sources, "kept") > 0)
    last = int(sources.value("WITH gone AS (DELETE FROM kept RETURNING counter) SELECT max(counter) FROM gone"))
    eventually(lambda: count(sources, "kept") > 0)
    assert sources.value("SELECT min(counter) FROM kept") == last + 1
    sources.run("DROP SOURCE kept")


def test_names_guards_and_dependents(sources: Database) -> None:
    notices: list[str] = []
    connection = sources.connect()
    connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    connection.execute(
        'CREATE SCHEMA shop; SET search_path = shop, public; CREATE SOURCE "Ünter ""x""" FROM LOAD GENERATOR COUNTER'
    )
    assert sources.value('SELECT to_regclass(\'shop."Ünter ""x"""\') IS NOT NULL')
    create = 'CREATE SOURCE IF NOT EXISTS "Ünter ""x""" FROM LOAD GENERATOR COUNTER'
    assert connection.execute(create).statusmessage == "CREATE SOURCE"
    assert notices == ['relation "Ünter "x"" already exists, skipping']
    with pytest.raises(errors.DuplicateTable, match="already exists"):
        connection.execute('CREATE SOURCE "Ünter ""x""" FROM LOAD GENERATOR COUNTER')
    connection.execute('CREATE VIEW v AS SELECT * FROM "Ünter ""x"""')
    with pytest.raises(errors.DependentObjectsStillExist):
        connection.execute('DROP SOURCE "Ünter ""x"""')
    connection.execute('DROP SOURCE "Ünter ""x""" CASCADE')
    notices.clear()
    assert connection.execute("DROP SOURCE IF EXISTS nobody RESTRICT").statusmessage == "DROP SOURCE"
    assert notices == ['source "nobody" does not exist, skipping']
    with pytest.raises(errors.UndefinedTable, match='source "nobody" does not exist'):
        connection.execute("DROP SOURCE nobody")
    connection.execute("CREATE TABLE plain (counter bigint)")
    with pytest.raises(errors.WrongObjectType, match='"plain" is not a source'):
        connection.execute("DROP SOURCE plain")
    with pytest.raises(errors.InvalidSchemaName):
        connection.execute("CREATE SOURCE nowhere.c FROM LOAD GENERATOR COUNTER")


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("CREATE SOURCE c FROM KAFKA", errors.FeatureNotSupported, "other than load generators"),
        ("CREATE SOURCE c FROM LOAD GENERATOR AUCTION", errors.FeatureNotSupported, '"AUCTION" is not supported'),
        ("CREATE SOURCE FROM LOAD GENERATOR COUNTER", errors.SyntaxError, "syntax error at or near"),
        ("CREATE SOURCE c FROM LOAD GENERATOR COUNTER (TICK '1s')", errors.SyntaxError, "syntax error at or near"),
        ("CREATE SOURCE c FROM LOAD GENERATOR COUNTER (TICK INTERVAL '-1s')", errors.InvalidParameterValue, "positive"),
        ("CREATE SOURCE c FROM LOAD GENERATOR COUNTER (TICK INTERVAL 'x')", errors.InvalidDatetimeFormat, "interval"),
        ("CREATE SOURCE pg_temp.c FROM LOAD GENERATOR COUNTER", errors.InvalidTableDefinition, "temporary"),
        ("DROP SOURCE a, b", errors.SyntaxError, "syntax error at or near"),
    ],
)
def test_what_is_wrong_is_said(sources: Database, statement: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        sources.run(statement)
    assert sources.value("SELECT to_regclass('c') IS NULL")


def test_a_source_is_a_part_of_its_transaction(sources: Database, eventually: Eventually) -> None:
    connection = sources.connect(autocommit=False)
    connection.execute("CREATE SOURCE undone FROM LOAD GENERATOR COUNTER")
    assert connection.execute("SELECT count(*) FROM undone").fetchone() == (0,)
    connection.rollback()
    assert sources.value("SELECT to_regclass('undone') IS NULL")
    connection.execute("CREATE SOURCE done FROM LOAD GENERATOR COUNTER")
    connection.execute("INSERT INTO done VALUES (0)")
    connection.commit()
    eventually(lambda: count(sources, "done") > 2)
    connection.execute("DROP SOURCE done", prepare=True)
    connection.rollback()
    assert count(sources, "done") > 2
    sources.run("SELECT 1; DROP SOURCE done; SELECT 2")
    assert sources.value("SELECT to_regclass('done') IS NULL")


def test_the_extended_protocol(sources: Database) -> None:
    async def through_asyncpg() -> list[str]:
        options = psycopg.conninfo.conninfo_to_dict(sources.server.dsn(sources.name))
        connection = await asyncpg.connect(
            host=options["host"],
            port=options["port"],
            user=options["user"],
            password=options["password"],
            database=options["dbname"],
        )
        try:
            create = await connection.prepare("CREATE SOURCE prepared FROM LOAD GENERATOR COUNTER")
            assert create.get_parameters() == () and create.get_attributes() == ()
            await create.fetch()
            return [create.get_statusmsg(), await connection.execute("DROP SOURCE prepared")]
        finally:
            await connection.close()

    assert asyncio.run(through_asyncpg()) == ["CREATE SOURCE", "DROP SOURCE"]


def test_ticks_have_the_owners_rights_and_no_others(db: Database, role: Any, eventually: Eventually) -> None:
    alice = role("alice")
    ((name,),) = alice.execute("SELECT current_user::text").fetchall()
    alice.execute("CREATE SOURCE hers FROM LOAD GENERATOR COUNTER (TICK INTERVAL '10ms')")
    db.run("CREATE TABLE private (who text)")
    alice.execute(
        "CREATE FUNCTION grab() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN NEW.counter = -NEW.counter; INSERT INTO public.private VALUES (current_user); RETURN NEW; END$$"
    )
    alice.execute("CREATE TABLE whoever (who text, may boolean)")
    eventually(lambda: count(db, "hers") > 0)
    alice.execute("CREATE TRIGGER grab BEFORE INSERT ON hers FOR EACH ROW EXECUTE FUNCTION grab()")
    failed = "SELECT error FROM pgtrickle.source_status() WHERE name = 'public.hers'"
    eventually(lambda: db.value(failed) == "permission denied for table private")
    assert count(db, "private") == 0
    db.run(f"GRANT INSERT ON private TO {name}")
    eventually(lambda: count(db, "private") > 0)
    assert db.rows("SELECT DISTINCT who FROM private") == [(name,)]
    bob = role("bob")
    with pytest.raises(errors.InsufficientPrivilege, match="must be owner of"):
        bob.execute("DROP SOURCE hers")
    with pytest.raises(errors.InsufficientPrivilege):
        bob.execute("SELECT pgtrickle._register_source('private'::regclass, NULL)")
    with pytest.raises(errors.InsufficientPrivilege):
        bob.execute("SELECT pgtrickle._begin_tick('private'::regclass, 1)")


def test_a_dropped_table_is_forgotten(sources: Database, eventually: Eventually) -> None:
    sources.run("CREATE SOURCE gone FROM LOAD GENERATOR COUNTER")
    sources.run("CREATE SOURCE stays FROM LOAD GENERATOR COUNTER (TICK INTERVAL '50ms')")
    sources.run("DROP TABLE gone")
    eventually(lambda: sources.value("SELECT count(*) FROM pgtrickle.pgt_load_generators") == 1)
    had = count(sources, "stays")
    eventually(lambda: count(sources, "stays") > had)
    sources.run("ALTER TABLE stays RENAME TO stayed")
    had = count(sources, "stayed")
    eventually(lambda: count(sources, "stayed") > had)
    sources.run("DROP SOURCE stayed")


def test_a_stream_table_follows_a_source(live_db: Database, eventually: Eventually) -> None:
    live_db.run("CREATE SOURCE counter FROM LOAD GENERATOR COUNTER (TICK INTERVAL '20ms')")
    live_db.create("latest", "SELECT max(counter) AS latest, count(*) AS n FROM counter", schedule="1s")
    eventually(lambda: live_db.value("SELECT n > 20 FROM latest"))
    live_db.run("DROP SOURCE counter")


def test_it_goes_on_after_a_restart(own_server: Headwater, eventually: Eventually) -> None:
    database = Database(own_server, "postgres")
    database.run("CREATE SOURCE counter FROM LOAD GENERATOR COUNTER (TICK INTERVAL '10ms')")
    eventually(lambda: count(database, "counter") >= 5)
    own_server.kill()
    own_server.start()
    database = Database(own_server, "postgres")
    before = count(database, "counter")
    eventually(lambda: count(database, "counter") >= before + 5)
    values = [value for (value,) in database.rows("SELECT counter FROM counter ORDER BY 1")]
    assert values == list(range(1, len(values) + 1))
    database.close()
