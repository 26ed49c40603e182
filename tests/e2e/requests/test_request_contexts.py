"""Engine requests from everywhere a statement can come from, each carried out in that statement's transaction."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import psycopg2
import pytest

from server.postgres.cluster import binaries
from tests.e2e.conftest import Database

CREATE = "SELECT pgtrickle.create_stream_table('copy', 'SELECT id, v FROM t')"
EXISTS = "SELECT to_regclass('public.copy') IS NOT NULL"


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture(autouse=True)
def source(db: Any) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')")


def psql(db: Any, script: str, *options: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(binaries() / "psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", *options, db.server.dsn(db.name, **settings)],
        input=script,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_plain_call_through_psql(db: Any) -> None:
    done = psql(db, f"{CREATE};\nSELECT id, v FROM copy ORDER BY id;\n")
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "1|a\n2|b", "")


def test_error_through_psql_has_message_and_hint(db: Any) -> None:
    done = psql(
        db, "\\set VERBOSITY verbose\nSELECT pgtrickle.create_stream_table('c', 'SELECT id FROM t', '5 parsecs');"
    )
    assert done.returncode != 0
    assert 'ERROR:  22023: invalid schedule "5 parsecs"' in done.stderr
    assert "HINT:" in done.stderr


def test_notices_of_a_block_come_once(db: Any) -> None:
    """It is run again, since its requests are noticed when it has ended; what it says otherwise then is passed."""
    told: list[str] = []
    db.connection.add_notice_handler(lambda notice: told.append(str(notice.message_primary)))
    db.run("CREATE SEQUENCE runs; CREATE TABLE u (id int PRIMARY KEY)")
    block = """
        DECLARE name text; BEGIN
            FOREACH name IN ARRAY ARRAY['t', 'u'] LOOP
                RAISE NOTICE 'same'; RAISE WARNING 'for %', name;
                PERFORM pgtrickle.create_stream_table('copy_' || name, 'SELECT id FROM ' || name);
            END LOOP;
            RAISE NOTICE 'run %', nextval('public.runs');
            RETURN{};
        END"""
    expected = ["same", "for t", "same", "for u", "run 1", "run 2"]
    db.run(f"DO $${block.format('')}$$")
    assert told == expected
    db.assert_current("copy_t", "copy_u")
    db.run(f"CREATE FUNCTION make() RETURNS int LANGUAGE plpgsql AS $${block.format(' 7')}$$")
    for prepare in (False, True):
        db.run("SELECT pgtrickle.drop_stream_table('copy_t'), pgtrickle.drop_stream_table('copy_u')")
        db.run("ALTER SEQUENCE runs RESTART")
        told.clear()
        assert db.connection.execute("SELECT make()", prepare=prepare).fetchone() == (7,)
        assert told == expected


def test_call_in_from_clause(db: Any) -> None:
    db.run("SELECT * FROM pgtrickle.create_stream_table('copy', 'SELECT id, v FROM t')")
    db.assert_current("copy")


def test_prepared_statement_with_parameters(db: Any) -> None:
    statement = "SELECT pgtrickle.create_stream_table(name => %s, query => %s, schedule => %s)"
    for n in range(7):  # psycopg prepares on the server along the way
        db.connection.execute(statement, [f"c{n}", f"SELECT id + {n} AS id FROM t", "1h"], prepare=n > 2)
    for n in range(7):
        db.assert_current(f"c{n}")


async def test_prepared_statement_of_asyncpg_executed_repeatedly(db: Any) -> None:
    connection = await asyncpg.connect(_url(db))
    try:
        create = await connection.prepare("SELECT pgtrickle.create_stream_table($1, $2)")
        for n in range(3):
            await create.fetch(f"c{n}", f"SELECT id + {n} AS id FROM t")
            assert await connection.fetchval(f"SELECT count(*) FROM c{n}") == 2
        drop = await connection.prepare("SELECT pgtrickle.drop_stream_table($1)")
        for n in range(3):
            await drop.fetch(f"c{n}")
        with pytest.raises(asyncpg.UndefinedTableError):
            await drop.fetch("c0")
        assert await connection.fetchval("SELECT 1") == 1
    finally:
        await connection.close()


def _url(db: Any) -> str:
    parts = psycopg.conninfo.conninfo_to_dict(db.server.dsn(db.name))
    return f"postgresql://{parts['user']}:{parts['password']}@{parts['host']}:{parts['port']}/{parts['dbname']}"


def test_sql_level_prepare_and_execute(db: Any) -> None:
    db.run("PREPARE make (text) AS SELECT pgtrickle.create_stream_table($1, 'SELECT id, v FROM t')")
    db.run("EXECUTE make('copy')")
    db.assert_current("copy")
    db.run("EXECUTE make('again')")
    db.assert_current("again")
    with pytest.raises(psycopg.errors.DuplicateTable):
        db.run("EXECUTE make('again')")


def test_drop_over_several_rows(db: Any) -> None:
    before = db.traces()
    for n in range(3):
        db.create(f"c{n}", "SELECT id FROM t")
    rows = db.rows(
        "SELECT pgt_name, pgtrickle.drop_stream_table(pgt_schema || '.' || pgt_name) FROM pgtrickle.pgt_stream_tables"
    )
    assert sorted(name for name, _ in rows) == ["c0", "c1", "c2"]
    assert db.traces() == before


def test_create_over_several_rows(db: Any) -> None:
    db.run(
        "SELECT pgtrickle.create_stream_table('c' || n, format('SELECT id + %%s AS id FROM t', n))"
        " FROM generate_series(1, 3) AS n WHERE n <> %s",
        2,
    )
    db.assert_current("c1", "c3")
    assert db.value("SELECT to_regclass('c2')") is None


def test_one_failing_row_of_several_undoes_all(db: Any) -> None:
    before = db.traces()
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.run(
            "SELECT pgtrickle.create_stream_table('c' || n, CASE n WHEN 3 THEN 'SELECT 1 FROM nothing'"
            " ELSE 'SELECT id FROM t' END) FROM generate_series(1, 3) AS n"
        )
    assert db.traces() == before


def test_do_block(db: Any) -> None:
    db.run("DO $$ BEGIN PERFORM pgtrickle.create_stream_table('copy', 'SELECT id, v FROM t'); END $$")
    db.assert_current("copy")


def test_do_block_that_names_no_function_in_its_text(db: Any) -> None:
    db.run(
        "DO $$ BEGIN EXECUTE 'SELECT pgtrickle.create_st' || 'ream_table(''copy'', ''SELECT id, v FROM t'')'; END $$"
    )
    db.assert_current("copy")


def test_plpgsql_function(db: Any) -> None:
    db.run(
        "CREATE FUNCTION make(name text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pgtrickle.create_stream_table(name, 'SELECT id, v FROM t'); RETURN 7; END $$"
    )
    assert db.value("SELECT make('copy')") == 7
    assert db.connection.execute("SELECT make(%s)", ["again"], prepare=True).fetchone() == (7,)
    db.assert_current("copy", "again")


def test_plpgsql_function_that_catches_its_own_error(db: Any) -> None:
    db.run(
        "CREATE FUNCTION careful() RETURNS text LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pgtrickle.create_stream_table('c', 'SELECT id FROM t', 'no schedule');"
        " RETURN 'created'; EXCEPTION WHEN invalid_parameter_value THEN RETURN 'refused'; END $$"
    )
    assert db.value("SELECT careful()") == "refused"
    assert db.rows("SELECT * FROM pgtrickle.pgt_requests") == []


def test_request_undone_by_an_exception_block_is_not_carried_out(db: Any) -> None:
    db.run(
        "DO $$ BEGIN BEGIN PERFORM pgtrickle.create_stream_table('copy', 'SELECT id, v FROM t');"
        " RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END; END $$"
    )
    assert db.value(EXISTS) is False


def test_call_in_a_trigger(db: Any) -> None:
    db.run(
        "CREATE TABLE tenants (name text); CREATE FUNCTION add_tenant() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM pgtrickle.create_stream_table('st_' || NEW.name, 'SELECT id, v FROM t'); RETURN NEW; END $$;"
        "CREATE TRIGGER add AFTER INSERT ON tenants FOR EACH ROW EXECUTE FUNCTION add_tenant()"
    )
    db.run("INSERT INTO tenants VALUES ('one'), ('two')")
    db.assert_current("st_one", "st_two")
    with db.connection.cursor().copy("COPY tenants FROM STDIN") as copy:
        copy.write("three\nfour\n")
    db.assert_current("st_three", "st_four")


def test_writable_statement_that_returns_rows_and_makes_a_request(db: Any) -> None:
    db.run("CREATE TABLE log (name text)")
    rows = db.rows(
        "WITH l AS (INSERT INTO log VALUES ('copy') RETURNING name)"
        " SELECT name, pgtrickle.create_stream_table(name, 'SELECT id, v FROM t') FROM l"
    )
    assert [row[0] for row in rows] == ["copy"]
    assert db.rows("SELECT name FROM log") == [("copy",)]
    db.assert_current("copy")


def test_failing_request_undoes_the_rest_of_its_statement(db: Any) -> None:
    db.run("CREATE TABLE log (name text)")
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.rows(
            "WITH l AS (INSERT INTO log VALUES ('copy') RETURNING name)"
            " SELECT name, pgtrickle.create_stream_table(name, 'SELECT id FROM missing') FROM l"
        )
    assert db.rows("SELECT name FROM log") == []


def test_client_min_messages_error(db: Any) -> None:
    db.run("SET client_min_messages = error")
    db.run(CREATE)
    db.assert_current("copy")
    db.run("DO $$ BEGIN PERFORM pgtrickle.create_stream_table('again', 'SELECT v FROM t'); END $$")
    db.assert_current("again")


def test_no_message_of_the_servers_own_reaches_the_client(db: Any) -> None:
    notices: list[str] = []
    db.connection.add_notice_handler(
        lambda diagnostic: notices.append(f"{diagnostic.sqlstate} {diagnostic.message_primary}")
    )
    db.run("SET client_min_messages = debug1")
    db.run("RESET client_min_messages")
    db.run(CREATE)
    db.run("SELECT pgtrickle.refresh_stream_table('copy')")
    db.run("SELECT pgtrickle.drop_stream_table('copy')")
    assert notices == []


def test_debugging_clients_hear_what_postgresql_says_and_nothing_of_ours(db: Any) -> None:
    """psycopg 2's own tests count the messages of a few temporary tables."""
    db.run("CREATE FUNCTION say() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE DEBUG 'said'; END $$")
    statements = [
        "CREATE TEMPORARY TABLE chatty1 (id serial PRIMARY KEY)",
        "DROP TABLE chatty1",
        "CREATE TABLE copied (id int, v int); ALTER TABLE copied ADD w int; DROP TABLE copied",
        "DO $$ BEGIN CREATE TEMPORARY TABLE chatty2 (id int); DROP TABLE chatty2; END $$",
        "SELECT pgtrickle.create_stream_table('copy', 'SELECT id, v FROM t')",
        "INSERT INTO t VALUES (3, 'c')",
        "SELECT pgtrickle.refresh_stream_table('copy')",
        "SELECT pgtrickle.drop_stream_table('copy')",
        "SELECT pgque.create_queue('q')",
        "SELECT say()",
    ]
    connection = psycopg2.connect(db.server.dsn(db.name))
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute("SET client_min_messages = debug1")
    for statement in statements:
        cursor.execute(statement)
    said = [text.removesuffix("\n") for text in connection.notices]
    connection.close()
    of_the_tables = [text for text in said if "chatty1_" in text or text == "DEBUG:  said"]
    assert len(of_the_tables) > 1 and of_the_tables[-1] == "DEBUG:  said"
    assert set(said) == set(of_the_tables)


def test_connection_that_bypasses_the_server(db: Any, eventually: Callable[..., Any]) -> None:
    bypass = db.bypass()
    bypass.execute(CREATE)
    eventually(lambda: db.value(EXISTS) and db.state("copy")["is_populated"], what="creation")
    db.assert_current("copy")
    bypass.execute("INSERT INTO t VALUES (3, 'c')")
    bypass.execute("SELECT pgtrickle.refresh_stream_table('copy')")
    eventually(lambda: db.value("SELECT count(*) FROM copy") == 3, what="refresh")
    bypass.execute("SELECT pgtrickle.drop_stream_table('copy')")
    eventually(lambda: not db.value(EXISTS), what="drop")
    assert db.rows("SELECT * FROM pgtrickle.pgt_requests") == []


def test_failure_of_a_request_that_bypassed_the_server_is_kept(db: Any, eventually: Callable[..., Any]) -> None:
    bypass = db.bypass()
    bypass.execute("SELECT pgtrickle.create_stream_table('c', 'SELECT nothing FROM t')")
    rows = eventually(lambda: db.rows("SELECT error_state, error FROM pgtrickle.pgt_request_errors"))
    assert rows[0][0] == "42703" and "nothing" in rows[0][1]


def test_rolled_back_request_that_bypassed_the_server_is_nothing(db: Any) -> None:
    before = db.rows("SELECT request_id FROM pgtrickle.pgt_requests")
    bypass = db.bypass(autocommit=False)
    bypass.execute(CREATE)
    bypass.rollback()
    assert db.rows("SELECT request_id FROM pgtrickle.pgt_requests") == before


def test_cursor_over_a_request(db: Any) -> None:
    connection = db.connect(autocommit=False)
    with connection.cursor(name="makers") as cursor:
        cursor.execute(
            "SELECT n, pgtrickle.create_stream_table('c' || n, 'SELECT id FROM t') FROM generate_series(1, 2) AS n"
        )
        assert [row[0] for row in cursor.fetchall()] == [1, 2]
    connection.commit()
    db.assert_current("c1", "c2")


def test_statement_after_the_request_in_the_same_connection_works(db: Any) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.refresh("nothing")
    assert db.value("SELECT 1") == 1
    db.run(CREATE)
    with db.connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
        copy.write_row((10, "copied"))
    db.assert_refreshed("copy")
    assert db.last("copy")[:2] == ("DIFFERENTIAL", 1)


def test_settings_and_roles_of_the_client_are_left_alone(db: Any) -> None:
    db.run("SET search_path = public, pg_catalog; SET datestyle = 'German'; SET statement_timeout = '30s'")
    before = db.rows("SELECT name, setting FROM pg_settings WHERE source = 'session' ORDER BY name")
    db.run(CREATE)
    db.refresh("copy")
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.refresh("nothing")
    assert db.rows("SELECT name, setting FROM pg_settings WHERE source = 'session' ORDER BY name") == before
    assert db.value("SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()") == 0


def test_lone_refresh_without_changes_is_answered_at_once_and_leaves_settings_alone(db: Any) -> None:
    db.run(CREATE)
    with db.connection.transaction():
        before = db.value("SHOW synchronous_commit")
        db.connection.execute("SELECT pgtrickle.refresh_stream_table('copy')")
        assert db.value("SHOW synchronous_commit") == before
    db.connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", ["copy"], prepare=True)
    assert db.value("SHOW synchronous_commit") == before
    assert [(row["action"], row["repeats"]) for row in db.history("copy")] == [("FULL", 0), ("NO_DATA", 1)]
