"""Exploits that have worked: code of a plain user that PostgreSQL runs for somebody else, or that the engine does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

Connection = psycopg.Connection[Any]


@pytest.fixture
def live_db(emptied_live_db: Any) -> Any:
    return emptied_live_db


@pytest.fixture
def alice(role: Callable[..., Connection]) -> Connection:
    connection = role("alice")
    connection.execute("CREATE TABLE mine (id int PRIMARY KEY, v text); INSERT INTO mine VALUES (1, 'a'), (2, 'b')")
    return connection


def user(connection: Connection) -> str:
    return str(connection.info.user)


def assert_no_superuser_but_postgres(db: Any) -> None:
    assert db.rows("SELECT rolname FROM pg_roles WHERE rolsuper AND rolname <> 'postgres'") == []


@pytest.fixture
def promote(alice: Connection) -> str:
    """A call of the kernel that, made with a superuser's rights, would make alice one."""
    alice.execute(
        f"CREATE FUNCTION promote() RETURNS int LANGUAGE plpgsql AS $$ BEGIN ALTER ROLE {user(alice)} SUPERUSER;"
        " RETURN 1; END $$"
    )
    return "pgtrickle._run('SELECT pg_catalog.to_jsonb(public.promote())', '{}')"


def test_index_expression_under_analyze(db: Any, alice: Connection, promote: str) -> None:
    """ANALYZE computes it with the table owner's rights, in a superuser's session (autovacuum's, too)."""
    alice.execute(
        "CREATE TABLE called (n int); CREATE FUNCTION trap(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN"
        f" BEGIN PERFORM {promote}; EXCEPTION WHEN OTHERS THEN NULL; END;"
        " PERFORM public.note(); RETURN $1; END $$;"
        "CREATE FUNCTION note() RETURNS void LANGUAGE sql AS 'INSERT INTO public.called VALUES (1)';"
        "CREATE INDEX ON mine (trap(v)); TRUNCATE called"
    )
    db.run("ANALYZE mine")
    assert db.value("SELECT count(*) FROM called") > 0
    assert_no_superuser_but_postgres(db)


def test_materialized_view_refreshed_by_a_superuser(db: Any, alice: Connection, promote: str) -> None:
    alice.execute(f"CREATE MATERIALIZED VIEW m AS SELECT {promote} AS x WITH NO DATA")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.run("REFRESH MATERIALIZED VIEW m")
    assert_no_superuser_but_postgres(db)


@pytest.mark.parametrize("language", ["sql", "plpgsql"])
def test_security_definer_function_called_by_a_superuser(
    db: Any, alice: Connection, promote: str, language: str
) -> None:
    body = f"SELECT {promote}" if language == "sql" else f"BEGIN RETURN {promote}; END"
    alice.execute(
        f"CREATE FUNCTION gift() RETURNS jsonb SECURITY DEFINER LANGUAGE {language} AS $f$ {body} $f$;"
        "GRANT EXECUTE ON FUNCTION gift() TO PUBLIC"
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.run("SELECT gift()")
    assert_no_superuser_but_postgres(db)


@pytest.mark.parametrize(
    "name", ['"pgtrickle._trap(x) line 1"', '"x\nPL/pgSQL function pgtrickle._trap() line 1 at y"']
)
def test_context_cannot_be_forged(db: Any, alice: Connection, promote: str, name: str) -> None:
    alice.execute(
        f"CREATE FUNCTION {name}() RETURNS jsonb SECURITY DEFINER LANGUAGE plpgsql"
        f" AS $f$ BEGIN RETURN {promote}; END $f$;"
        f"GRANT EXECUTE ON FUNCTION {name}() TO PUBLIC"
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.run(f"SELECT {name}()")
    assert_no_superuser_but_postgres(db)


def test_request_of_a_security_definer_function_has_its_owners_rights(db: Any, alice: Connection) -> None:
    db.run("CREATE TABLE secret (id int PRIMARY KEY)")
    db.create("admins", "SELECT id FROM secret")
    for call in ("drop_stream_table('admins')", "alter_stream_table('admins', schedule => '1h')"):
        alice.execute(
            "CREATE OR REPLACE FUNCTION gift() RETURNS void SECURITY DEFINER LANGUAGE sql"
            f" AS $$ SELECT pgtrickle.{call} $$;"
            "GRANT EXECUTE ON FUNCTION gift() TO PUBLIC"
        )
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="admins"):
            db.run("SELECT gift()")
    assert db.state("admins")["schedule"] == "calculated"


DOMAIN = """
CREATE FUNCTION checked(text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
    BEGIN EXECUTE 'RESET ROLE'; EXECUTE 'ALTER ROLE {role} SUPERUSER'; EXCEPTION WHEN OTHERS THEN NULL; END;
    RETURN true;
END $$;
CREATE DOMAIN trap AS text CHECK (checked(VALUE))
"""
SPRUNG_BY_READING_IT = "SELECT id, ('{a}'::trap[])[1]::text AS v FROM mine"


def test_constant_that_runs_code_when_it_is_read(
    live_db: Any, alice: Connection, eventually: Callable[..., Any]
) -> None:
    """A request past the server is carried out on a connection of the engine's own."""
    alice.execute(DOMAIN.format(role=user(alice)))
    with live_db.bypass(user=user(alice), password="secret") as past:
        past.execute("SELECT pgtrickle.create_stream_table('st', %s)", [SPRUNG_BY_READING_IT])
    eventually(lambda: live_db.value("SELECT count(*) FROM pgtrickle.pgt_stream_tables WHERE is_populated"))
    assert_no_superuser_but_postgres(live_db)


def test_constant_that_runs_code_when_the_query_is_planned_anew(db: Any, alice: Connection) -> None:
    alice.execute(DOMAIN.format(role=user(alice)))
    alice.execute("SELECT pgtrickle.create_stream_table('st', %s)", [SPRUNG_BY_READING_IT])
    alice.execute("ALTER TABLE mine DISABLE TRIGGER USER; ALTER TABLE mine ENABLE TRIGGER USER")
    db.refresh("st")
    assert db.last("st")[0] == "REINITIALIZE"
    assert_no_superuser_but_postgres(db)


def test_constants_are_read_as_the_session_reads_them(db: Any) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    db.run("SET DateStyle = 'SQL, DMY'; SET TimeZone = 'Asia/Kolkata'")
    db.create("st", "SELECT id, '02/03/2024'::date AS d, '2024-01-01 00:00'::timestamptz AS z FROM t")
    db.run("RESET DateStyle; RESET TimeZone")
    assert db.rows("SELECT d::text, z = '2023-12-31 18:30+00' FROM st") == [("2024-03-02", True)]


def test_only_one_statement_is_a_defining_query(db: Any) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    for query in (
        "SELECT id FROM t; SELECT 1",
        "SELECT id FROM t) AS q; CREATE TABLE planted (x int); SELECT * FROM (SELECT 1 AS id",
        "SELECT id FROM t; DROP TABLE t; --",
    ):
        with pytest.raises(psycopg.errors.SyntaxError):
            db.create("st", query)
    assert db.rows("SELECT to_regclass('planted'), to_regclass('t')::text") == [(None, "t")]


def test_change_buffer_is_taken_away_with_the_right_to_read_the_source(
    db: Any, alice: Connection, eventually: Callable[..., Any]
) -> None:
    db.run(f"CREATE TABLE secret (id int PRIMARY KEY, hidden text); GRANT SELECT ON secret TO {user(alice)}")
    alice.execute("SELECT pgtrickle.create_stream_table('seen', 'SELECT id, hidden FROM public.secret')")
    db.create("others", "SELECT id, hidden FROM secret")
    db.run("INSERT INTO secret VALUES (1, 'new')")
    buffer = db.value("SELECT 'pgtrickle_changes.changes_' || 'secret'::regclass::oid")
    columns = [f"SELECT hidden FROM {buffer}", f'SELECT "__pgt_w" FROM {buffer}']

    def assert_closed() -> None:
        for statement in columns:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                alice.execute(statement)

    assert alice.execute(columns[0]).fetchall() == [("new",)]
    db.run(f"REVOKE SELECT ON secret FROM {user(alice)}")
    assert_closed()
    db.run(f"GRANT SELECT ON secret TO {user(alice)}")
    alice.execute("SELECT pgtrickle.refresh_stream_table('seen')")
    assert alice.execute("SELECT hidden FROM seen").fetchall() == [("new",)]
    db.run("ALTER TABLE secret ENABLE ROW LEVEL SECURITY")
    assert_closed()
    db.run("ALTER TABLE secret DISABLE ROW LEVEL SECURITY")
    alice.execute("SELECT pgtrickle.refresh_stream_table('seen')")
    db.run("INSERT INTO secret VALUES (2, 'newer')")
    alice.execute("SELECT pgtrickle.refresh_stream_table('seen')")
    assert alice.execute("SELECT count(*) FROM seen").fetchone() == (2,)
    alice.execute("SELECT pgtrickle.drop_stream_table('seen')")
    granted = "SELECT count(*) FROM information_schema.column_privileges WHERE grantee = %s AND table_name = %s"
    eventually(lambda: db.value(granted, user(alice), buffer.split(".")[1]) == 0, what="the loss of the right")
    assert_closed()
    db.assert_refreshed("others")


def test_values_in_error_messages_are_shown_to_the_owner_alone(
    live_db: Any, alice: Connection, eventually: Callable[..., Any]
) -> None:
    live_db.run("CREATE TABLE cards (id int PRIMARY KEY, number text)")
    live_db.create("numbers", "SELECT id, number::int AS number FROM cards", schedule="1s")
    live_db.run("INSERT INTO cards VALUES (1, '4111-1111')")
    seen = "SELECT count(*) FROM pgtrickle.pgt_refresh_history WHERE error_message LIKE '%4111%'"
    with pytest.raises(psycopg.errors.InvalidTextRepresentation):
        live_db.refresh("numbers")
    live_db.run(f"ALTER DATABASE {live_db.name} RESET pg_trickle.enabled")
    live_db.connect().close()
    eventually(lambda: live_db.value(seen))
    assert alice.execute(seen).fetchone() == (0,)
    assert "4111" not in str(alice.execute("SELECT * FROM pgtrickle.get_refresh_history('numbers')").fetchall())
    assert "4111" not in str(alice.execute("SELECT * FROM pgtrickle.explain_st('numbers')").fetchall())
