"""Functions of the server that act for a session are called by it, never by somebody else's code in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Connection = psycopg.Connection[Any]

OURS = "PL/pgSQL function pgtrickle._x() line 1 at PERFORM"

# Names under which a function shows in the context, which is read line by line.
NAMES = {
    "plain": "gift",
    "closes its quotation, and looks qualified": f'pgtrickle"."_x"(\n{OURS[:34]}',
    "ends as one of ours": f"x\n{OURS}",
    "ends as a statement of ours": f'x"\nSQL statement "\n{OURS[:30]}',
    "one of ours in quotes": "pgtrickle._run(text,jsonb) line 8 at PERFORM",
    "a line of its own": "\nPL/pgSQL function pgtrickle._run(text,jsonb) line 8 at PERFORM",
    "public function": "pgtrickle.refresh_stream_table(text) line 3 at PERFORM",
}

# How it calls: `{call}` is a call that makes its owner superuser where it has a superuser's rights.
BODIES = {
    "sql": ("sql", "SELECT {call}"),
    "plpgsql": ("plpgsql", "BEGIN RETURN {call}; END"),
    "exception handler": ("plpgsql", "BEGIN RAISE 'x'; EXCEPTION WHEN OTHERS THEN RETURN {call}; END"),
    "loop": ("plpgsql", "DECLARE r record; BEGIN FOR r IN SELECT {call} LOOP END LOOP; RETURN NULL; END"),
    "cursor": (
        "plpgsql",
        "DECLARE c refcursor; r record; BEGIN OPEN c FOR SELECT {call}; FETCH c INTO r; RETURN NULL; END",
    ),
    "execute": ("plpgsql", "BEGIN EXECUTE $e$SELECT {call}$e$; RETURN NULL; END"),
    "statement that ends as one of ours": (
        "plpgsql",
        'BEGIN EXECUTE $e$SELECT {call} --"\n' + OURS + "\nSQL statement $e$; RETURN NULL; END",
    ),
    "statement that swallows what follows": (
        "plpgsql",
        'BEGIN EXECUTE $e$SELECT {call} --"\nSQL statement $e$; RETURN NULL; END',
    ),
    "query_to_xml": ("plpgsql", "BEGIN PERFORM query_to_xml($e$SELECT {call}$e$, true, true, ''); RETURN NULL; END"),
}

# How a superuser comes to run the function.
WAYS = {
    "select": "SELECT {f}()",
    "from": "SELECT * FROM {f}()",
    "do": "DO $d$ BEGIN PERFORM {f}(); END $d$",
    "copy": "COPY (SELECT {f}()) TO STDOUT",
    "prepared": "PREPARE p AS SELECT {f}(); EXECUTE p",
    "cursor": "BEGIN; DECLARE c CURSOR FOR SELECT {f}(); FETCH c; COMMIT",
    "holdable cursor": "BEGIN; DECLARE c CURSOR WITH HOLD FOR SELECT {f}(); COMMIT",
    "view": "SELECT * FROM laid_view",
    "default": "INSERT INTO laid (id) VALUES (1)",
    "check of a domain": "SELECT 'x'::laid_domain",
    "trigger": "INSERT INTO laid (id, v) VALUES (2, NULL)",
    "operator": "SELECT 1 OPERATOR(public.~~~) 1",
    "cast": "SELECT ROW(1)::laid_type::text",
    "generated column": "INSERT INTO laid_generated (id) VALUES (1)",
}


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


def quoted(name: str) -> str:
    return 'public."' + name.encode()[:63].decode().replace('"', '""') + '"'


@pytest.fixture
def mallory(db: Any, role: Callable[..., Connection]) -> Connection:
    connection = role("mallory")
    connection.execute(
        "CREATE FUNCTION promote() RETURNS int LANGUAGE plpgsql AS"
        f" $$ BEGIN ALTER ROLE {connection.info.user} SUPERUSER; RETURN 1; END $$"
    )
    return connection


CALL = "pgtrickle._run('SELECT pg_catalog.to_jsonb(public.promote())', '{}')"


def lay(mallory: Connection, name: str, body: str) -> str:
    language, code = BODIES[body]
    function = quoted(name)
    mallory.execute(
        f"CREATE FUNCTION {function}() RETURNS jsonb SECURITY DEFINER IMMUTABLE LANGUAGE {language}"
        f" AS $f$ {code.replace('{call}', CALL)} $f$"
    )
    return function


def execute(connection: Connection, statements: str) -> None:
    """Run statements, one of which may be refused."""
    connection.prepare_threshold = None
    try:
        for statement in statements.split("; ") if "$d$" not in statements else [statements]:
            if statement.startswith("COPY"):
                with connection.cursor() as cursor, cursor.copy(statement) as copy:
                    list(copy)
            else:
                connection.execute(statement)
    except psycopg.Error:
        connection.execute("ROLLBACK")
    connection.execute("DEALLOCATE ALL")


def assert_nothing_gained(db: Any) -> None:
    with db.bypass() as connection:
        gained = connection.execute("SELECT rolname FROM pg_roles WHERE rolsuper AND rolname <> 'postgres'").fetchall()
    assert gained == []


@pytest.mark.parametrize("name", list(NAMES))
@pytest.mark.one_in(2)
def test_name_of_a_function_is_not_read_as_the_context(db: Any, mallory: Connection, name: str) -> None:
    for body in BODIES:
        function = lay(mallory, NAMES[name], body)
        for connection in (db.connection, db.bypass()):
            execute(connection, f"SELECT {function}()")
            execute(connection, f"SELECT * FROM {function}()")
        assert_nothing_gained(db)
        mallory.execute(f"DROP FUNCTION {function}")


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.one_in(2)
def test_whichever_way_the_function_is_run(db: Any, mallory: Connection, way: str) -> None:
    function = lay(mallory, "gift", "plpgsql")
    mallory.execute(
        f"CREATE FUNCTION gift_of(int) RETURNS int SECURITY DEFINER IMMUTABLE LANGUAGE sql AS"
        f" 'SELECT {function}(); SELECT 1';"
        f"CREATE FUNCTION gift_two(int, int) RETURNS int SECURITY DEFINER LANGUAGE sql AS"
        f" 'SELECT {function}(); SELECT 1';"
        f"CREATE FUNCTION gift_row() RETURNS trigger SECURITY DEFINER LANGUAGE plpgsql"
        f" AS $$ BEGIN PERFORM {function}(); RETURN NEW; END $$;"
        f"CREATE VIEW laid_view AS SELECT {function}() AS v;"
        f"CREATE TABLE laid (id int, v jsonb DEFAULT {function}());"
        "CREATE TRIGGER laid BEFORE INSERT ON laid FOR EACH ROW EXECUTE FUNCTION gift_row();"
        "CREATE DOMAIN laid_domain AS text CHECK (gift_of(length(VALUE)) > 0);"
        "CREATE OPERATOR ~~~ (LEFTARG = int, RIGHTARG = int, FUNCTION = gift_two);"
        "CREATE TYPE laid_type AS (a int);"
        "CREATE FUNCTION gift_cast(laid_type) RETURNS text SECURITY DEFINER LANGUAGE sql AS 'SELECT gift_of(1)::text';"
        "CREATE CAST (laid_type AS text) WITH FUNCTION gift_cast(laid_type);"
        "CREATE TABLE laid_generated (id int, v int GENERATED ALWAYS AS (gift_of(id)) STORED)"
    )
    for connection in (db.connection, db.bypass()):
        execute(connection, WAYS[way].replace("{f}", function))
    assert_nothing_gained(db)


def test_the_session_itself_calls(db: Any, mallory: Connection) -> None:
    """Also where the context names our functions otherwise."""
    call = "SELECT pgtrickle._run('SELECT pg_catalog.to_jsonb(current_user)', '{}')"
    for setting in ("quote_all_identifiers = on", "search_path = pgtrickle, public", "search_path = ''"):
        connection = db.connect()
        connection.execute(f"SET {setting}")
        assert connection.execute(call).fetchone() == ("postgres",)
    mallory.execute(
        "CREATE TABLE t (id int PRIMARY KEY); SELECT pgtrickle.create_stream_table('st', 'SELECT id FROM t')"
    )
    for setting in ("quote_all_identifiers = on", "search_path = pgtrickle, public"):
        connection = db.connect(user=mallory.info.user, password="secret")
        connection.execute(f"SET {setting}")
        connection.execute("SELECT pgtrickle.refresh_stream_table('public.st')")
        mallory.execute("INSERT INTO t SELECT count(*) FROM t")
        connection.execute("SELECT pgtrickle.refresh_stream_table('public.st')")
        assert db.difference("st") == []


def test_messages_are_read_in_english(db: Any) -> None:
    """Where the server's role is a superuser the language of a session does not matter."""
    config = db.value("SELECT proconfig FROM pg_proc WHERE oid = 'pgtrickle._context_in_english()'::regprocedure")
    assert "lc_messages=C" in config


@pytest.mark.parametrize("type_", ["text", "bool", "int8", "jsonb", "oid", "regclass"])
def test_type_of_the_callers_is_not_used(db: Any, mallory: Connection, type_: str) -> None:
    """PL/pgSQL looks for types when a session calls a function for the first time: a statement has turned the path."""
    user = mallory.info.user
    mallory.execute(
        "CREATE SEQUENCE sprung;"  # which an error does not undo
        "CREATE FUNCTION spring(anyelement) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
        f" IF current_user <> '{user}' THEN PERFORM nextval('public.sprung'); END IF; RETURN true; END $$;"
        "CREATE FUNCTION turn() RETURNS int LANGUAGE plpgsql AS"
        " $$ BEGIN EXECUTE 'SET search_path = pg_temp, pg_catalog'; RETURN 1; END $$"
    )
    for connection in (db.connect(user=user, password="secret"), db.bypass(user=user, password="secret")):
        connection.execute(
            f"CREATE DOMAIN pg_temp.{type_} AS pg_catalog.{type_} CHECK (public.spring(VALUE::pg_catalog.{type_}));"
            "SET search_path = pg_temp, pg_catalog"
        )
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="changes the search_path"):
            connection.execute("SELECT pgtrickle._run('SELECT pg_catalog.to_jsonb(public.turn())', '{}')")
    assert db.value("SELECT is_called FROM sprung") is False
