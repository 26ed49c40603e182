"""IMMEDIATE mode runs an owner's query in the sessions of those who write to its sources: neither gains by that."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Connection = psycopg.Connection[Any]
Role = Callable[..., Connection]
Eventually = Callable[..., Any]

SUMS = "SELECT g, count(*) AS n, min(v) AS least FROM t GROUP BY g"
JOIN = "SELECT t.id, t.v, u.w FROM t JOIN u ON u.g = t.g"


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


def create(connection: Connection, name: str, query: str) -> None:
    connection.execute("SELECT pgtrickle.create_stream_table(%s, %s, refresh_mode => 'IMMEDIATE')", [name, query])


@pytest.fixture
def tables(db: Database) -> Database:
    """Two tables of the administrator's."""
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, g int, v int); CREATE TABLE u (id int PRIMARY KEY, g int, w int);"
        "INSERT INTO t VALUES (1, 1, 10), (2, 1, 20), (3, 2, 30); INSERT INTO u VALUES (1, 1, 100), (2, 2, 200)"
    )
    return db


@pytest.fixture
def alice(tables: Database, role: Role) -> Connection:
    """May have stream tables over them in IMMEDIATE mode."""
    connection = role("alice")
    tables.run(f"GRANT CREATE ON DATABASE {tables.name} TO {connection.info.user}")
    tables.run(f"GRANT SELECT, TRIGGER ON t, u TO {connection.info.user}")
    return connection


@pytest.fixture
def bob(tables: Database, role: Role) -> Connection:
    """May write to `t`, and do nothing else."""
    connection = role("bob")
    tables.run(f"GRANT CREATE ON DATABASE {tables.name} TO {connection.info.user}")
    tables.run(f"GRANT SELECT, INSERT, UPDATE, DELETE ON t TO {connection.info.user}")
    return connection


def mode(db: Database, name: str) -> str:
    return str(db.value("SELECT refresh_mode FROM pgtrickle.pgt_stream_tables WHERE pgt_name = %s", name))


def number(db: Database, name: str) -> int:
    return int(db.value("SELECT pgt_id FROM pgtrickle.pgt_stream_tables WHERE pgt_name = %s", name))


# -- whose rights -----------------------------------------------------------------------------------------------------


def test_all_rows_are_seen_whatever_the_writer_may_see(tables: Database, alice: Connection, bob: Connection) -> None:
    tables.run(
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY even ON t USING (id % 2 = 0) WITH CHECK (id % 2 = 0);"
        f"ALTER ROLE {alice.info.user} BYPASSRLS"
    )
    create(alice, "sums", SUMS)
    create(alice, "joined", JOIN)
    assert bob.execute("SELECT id FROM t").fetchall() == [(2,)]
    for statement in (
        "INSERT INTO t VALUES (4, 1, 5), (6, 2, 5)",
        "DELETE FROM t WHERE id = 4",
        "UPDATE t SET g = 2 WHERE id = 2",
        "DELETE FROM t",
    ):
        bob.execute(statement)
        tables.assert_current("sums", "joined")
    assert tables.rows("SELECT g, n, least FROM sums ORDER BY g") == [(1, 1, 10), (2, 1, 30)]


def test_writer_needs_no_right_but_on_what_he_writes(tables: Database, alice: Connection, bob: Connection) -> None:
    create(alice, "joined", JOIN)
    create(alice, "top", "SELECT count(*) AS n FROM joined")
    for statement in ("INSERT INTO t VALUES (4, 1, 5)", "UPDATE t SET g = 2 WHERE id < 3", "DELETE FROM t"):
        bob.execute(statement)
        tables.assert_current("joined", "top")
    for forbidden in ("TABLE joined", "TABLE u", "DELETE FROM joined"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bob.execute(forbidden)


def test_owner_needs_the_right_to_make_triggers(tables: Database, alice: Connection, bob: Connection) -> None:
    tables.run(f"REVOKE TRIGGER ON u FROM {alice.info.user}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table") as refused:
        create(alice, "joined", JOIN)
    assert "GRANT TRIGGER ON" in str(refused.value.diag.message_hint)
    create(alice, "sums", SUMS)
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        create(bob, "his", SUMS)


LOSSES = {
    "trigger": "REVOKE TRIGGER ON t FROM {alice}",
    "select": "REVOKE SELECT ON t FROM {alice}",
    "select of the other table": "REVOKE SELECT ON u FROM {alice}",
    "schema": "REVOKE USAGE ON SCHEMA public FROM {alice}, PUBLIC",
    "row-level security": "ALTER TABLE u ENABLE ROW LEVEL SECURITY",
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.one_in(2)
def test_writers_go_on_when_the_owner_loses_a_right(
    tables: Database, alice: Connection, bob: Connection, loss: str
) -> None:
    """It is IMMEDIATE no longer from the same transaction on, and is again once the right is back."""
    create(alice, "joined", JOIN)
    create(alice, "other", "SELECT g, max(v) AS most FROM t GROUP BY g")
    tables.run("BEGIN; " + LOSSES[loss].format(alice=alice.info.user))
    tables.run("INSERT INTO t VALUES (10, 1, 1); COMMIT")
    tables.run(f"GRANT USAGE ON SCHEMA public TO {bob.info.user}")
    bob.execute("INSERT INTO t VALUES (11, 1, 1)")
    bob.execute("DELETE FROM t WHERE id = 1")
    assert mode(tables, "joined") == "DIFFERENTIAL"
    touches_both = loss in ("trigger", "select", "schema")
    assert mode(tables, "other") == ("DIFFERENTIAL" if touches_both else "IMMEDIATE")
    if not touches_both:
        tables.assert_current("other")
    if loss == "trigger":
        tables.assert_refreshed("joined")  # by the server, which needs no trigger of the owner's
        assert mode(tables, "joined") == "DIFFERENTIAL"
    else:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            tables.refresh("joined")
    bob.execute("INSERT INTO t VALUES (12, 1, 1)")
    tables.run(
        f"GRANT SELECT, TRIGGER ON t, u TO {alice.info.user}; GRANT USAGE ON SCHEMA public TO PUBLIC;"
        "ALTER TABLE u DISABLE ROW LEVEL SECURITY"
    )
    tables.refresh("joined")
    assert mode(tables, "joined") == "IMMEDIATE"
    tables.assert_current("joined")
    bob.execute("INSERT INTO t VALUES (13, 2, 1)")
    tables.assert_current("joined")


@pytest.mark.parametrize(
    "loss", ["REVOKE {group} FROM {alice}", "DROP OWNED BY {group}", "ALTER ROLE {alice} NOBYPASSRLS"]
)
def test_rights_that_are_lost_without_an_event(
    live_db: Database, tables: Database, alice: Connection, bob: Connection, eventually: Eventually, loss: str
) -> None:
    """PostgreSQL tells nobody of them: writers fail for about a second."""
    live_db.run(f"ALTER DATABASE {live_db.name} RESET pg_trickle.enabled")
    user, group = alice.info.user, f"group_of_{alice.info.user}"
    live_db.run(f"CREATE ROLE {group}")
    try:
        live_db.run(
            f"REVOKE SELECT, TRIGGER ON t FROM {user}; GRANT SELECT, TRIGGER ON t TO {group}; GRANT {group} TO {user};"
            f"ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (true); ALTER ROLE {user} BYPASSRLS"
        )
        create(alice, "sums", SUMS)
        assert mode(live_db, "sums") == "IMMEDIATE"
        live_db.run(loss.format(alice=user, group=group))
        eventually(lambda: mode(live_db, "sums") != "IMMEDIATE")
        bob.execute("INSERT INTO t VALUES (4, 1, 1)")
    finally:
        live_db.run(f"DROP OWNED BY {group}; DROP ROLE {group}")


# -- functions in the query -------------------------------------------------------------------------------------------


@pytest.fixture
def lay(alice: Connection) -> Callable[[str], None]:
    """Have the query of alice's stream table `laid` do something in the session of whoever writes."""

    def run(statement: str) -> None:
        alice.execute(
            psycopg.sql.SQL(
                "CREATE FUNCTION public.lay() RETURNS void LANGUAGE plpgsql AS $f$ BEGIN EXECUTE {}; END $f$;"
                "CREATE FUNCTION public.trap(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $f$ BEGIN"
                " IF session_user <> current_user THEN PERFORM public.lay(); END IF; RETURN n; END $f$"
            ).format(psycopg.sql.Literal(statement))
        )
        create(alice, "laid", "SELECT id, public.trap(v) AS v FROM t")

    return run


@pytest.mark.parametrize("taken", ["SET ROLE postgres", "RESET ROLE", "SET SESSION AUTHORIZATION DEFAULT"])
def test_query_does_not_become_the_writer(
    tables: Database, alice: Connection, lay: Callable[[str], None], taken: str
) -> None:
    lay(taken)
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"security-(definer|restricted)"):
        tables.run("INSERT INTO t VALUES (4, 1, 1)")
    assert tables.value("SELECT current_user = session_user AND current_user = 'postgres'")
    assert tables.rows("SELECT id FROM t WHERE id = 4") == []


def test_query_leaves_no_search_path_behind(tables: Database, alice: Connection, lay: Callable[[str], None]) -> None:
    alice.execute(
        "CREATE SCHEMA AUTHORIZATION CURRENT_USER; CREATE FUNCTION public.differs(text, text) RETURNS boolean IMMUTABLE"
        " LANGUAGE sql AS 'SELECT false'"
    )
    schema = alice.info.user
    alice.execute(
        f"CREATE OPERATOR {schema}.<> (FUNCTION = public.differs, LEFTARG = text, RIGHTARG = text);"
        f"CREATE FUNCTION {schema}.current_setting(text) RETURNS text IMMUTABLE LANGUAGE sql AS $$ SELECT 'x' $$;"
        f"GRANT USAGE ON SCHEMA {schema} TO PUBLIC".encode()
    )
    lay(f"SET search_path = {schema}, pg_catalog")
    before = tables.value("SHOW search_path")
    for statement in ("INSERT INTO t VALUES (4, 1, 1)", "UPDATE t SET v = 5"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="search_path"):
            tables.run(statement)
        assert tables.value("SHOW search_path") == before
    tables.assert_current("laid")
    tables.run("DELETE FROM t")  # which need not look at what rows are made of
    assert tables.value("SHOW search_path") == before


def test_names_mean_what_they_meant(tables: Database, alice: Connection, bob: Connection) -> None:
    """Whatever the writer's session has under these names: operators, functions, tables."""
    create(alice, "sums", SUMS)
    create(alice, "joined", JOIN)
    bob.execute(
        "CREATE SCHEMA AUTHORIZATION CURRENT_USER; CREATE FUNCTION wrong(int, int) RETURNS boolean LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'wrong operator, as %', current_user; END $$;"
        "CREATE FUNCTION wrong(bigint) RETURNS bigint LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'wrong function, as %', current_user; END $$"
    )
    schema = bob.info.user
    for operator in ("=", "<>", "<", ">"):
        bob.execute(f"CREATE OPERATOR {schema}.{operator} (FUNCTION = wrong, LEFTARG = int, RIGHTARG = int)".encode())
    bob.execute(
        f"CREATE FUNCTION {schema}.coalesced() RETURNS int LANGUAGE sql AS 'SELECT 1';"
        f"CREATE FUNCTION {schema}.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'wrong set_config'; END $$;"
        "CREATE TEMPORARY TABLE t (id int, g int, v int); CREATE TEMPORARY TABLE u (id int, g int, w int);"
        "CREATE TEMPORARY TABLE sums (g int); CREATE TEMPORARY TABLE __pgt_new (id int, g int, v int);"
        "CREATE TEMPORARY TABLE __pgt_old (id int, g int, v int); CREATE TEMPORARY TABLE pg_class (oid oid);"
        f"SET search_path = pg_temp, {schema}, pg_catalog;"
        "SET datestyle = 'German'; SET extra_float_digits = -10; SET row_security = off".encode()
    )
    for statement in (
        "INSERT INTO public.t VALUES (4, 1, 5)",
        "UPDATE public.t SET g = 2, v = 1 WHERE id OPERATOR(pg_catalog.=) 1",
        "DELETE FROM public.t WHERE id OPERATOR(pg_catalog.=) 3",
        "WITH x AS (INSERT INTO public.t VALUES (5, 2, 5)) DELETE FROM public.t WHERE id OPERATOR(pg_catalog.=) 1",
    ):
        bob.execute(statement)
        tables.assert_current("sums", "joined")


# -- functions and tables of a stream table ---------------------------------------------------------------------------


def test_owner_cannot_alter_what_runs_in_sessions_of_writers(tables: Database, alice: Connection) -> None:
    """With SECURITY INVOKER and another search_path it would run the owner's operators as the writer."""
    create(alice, "joined", JOIN)
    n = number(tables, "joined")
    functions = tables.rows(
        "SELECT p.oid::regprocedure::text, p.prosecdef, pg_get_userbyid(p.proowner) FROM pg_proc p"
        " WHERE proname ~ %s ORDER BY 1",
        f"^immediate_{n}_",
    )
    owner = alice.info.user
    assert functions == [
        (f"pgtrickle_changes.immediate_{n}_left()", False, "postgres"),
        (f"pgtrickle_roles.immediate_{n}_1()", True, owner),
        (f"pgtrickle_roles.immediate_{n}_2()", True, owner),
        (f"pgtrickle_roles.immediate_{n}_hold()", True, owner),
    ]
    for function, _, _ in functions:
        for attack in (
            f"ALTER FUNCTION {function} SECURITY INVOKER",
            f"ALTER FUNCTION {function} SET search_path = public",
            f"ALTER FUNCTION {function} RENAME TO mine",
            f"DROP FUNCTION {function} CASCADE",
            f"CREATE TRIGGER mine BEFORE INSERT ON joined EXECUTE FUNCTION {function}",
        ):
            with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidObjectDefinition)):
                alice.execute(attack.encode())
    tables.run("INSERT INTO t VALUES (4, 1, 1)")
    tables.assert_current("joined")


def test_nobody_else_calls_or_attaches_them_or_writes_what_is_put_down(
    tables: Database, alice: Connection, bob: Connection
) -> None:
    create(alice, "joined", JOIN)
    n = number(tables, "joined")
    bob.execute("CREATE TABLE mine (id int)")
    for attack in (
        f"SELECT pgtrickle_changes.immediate_{n}_left()",
        f"CREATE TRIGGER x AFTER INSERT ON mine EXECUTE FUNCTION pgtrickle_roles.immediate_{n}_1()",
        "CREATE TRIGGER x AFTER INSERT ON mine EXECUTE FUNCTION pgtrickle._check_applied()",
        f"TABLE pgtrickle_changes.immediate_{n}",
        f"INSERT INTO pgtrickle_changes.immediate_{n} (source) VALUES (1)",
        f"UPDATE pgtrickle_changes.immediate_{n} SET holder = '0'",
        f"SELECT FROM pgtrickle_changes.immediate_{n} FOR UPDATE",
        f"BEGIN; LOCK TABLE pgtrickle_changes.immediate_{n} IN ACCESS SHARE MODE",
        "UPDATE pgtrickle.pgt_immediate SET state = ''",
        f"SELECT pgtrickle._end_immediate({n})",
        f"SELECT pgtrickle._try_lock_sources({n})",
        f"SELECT pgtrickle._install_immediate({n}, '{{}}')",
        f"SELECT pgtrickle._drop_immediate({n}, '{{}}', '{{}}')",
        "SELECT pgtrickle._leave_immediate_without_rights(true)",
        "SELECT pgtrickle._write_immediate_function('x', 'trigger', 'BEGIN END', 10, '')",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bob.execute(attack.encode())
        bob.execute("ROLLBACK")


def test_nobody_else_can_keep_writers_waiting(tables: Database, alice: Connection, bob: Connection) -> None:
    """What is locked are rows that only the owner can lock, no advisory locks."""
    create(alice, "sums", SUMS)
    create(alice, "joined", JOIN)
    tables.run("BEGIN; INSERT INTO t SELECT n, n, n FROM generate_series(10, 3000) AS n")
    assert tables.rows("SELECT locktype FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()") == []
    assert tables.value("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()") < 60
    tables.run("ROLLBACK")


def program(db: Database, table: str, body: str) -> str:
    source = {"oid": db.value("SELECT %s::regclass::oid", table), "number": 1, "columns": ["id"], "body": body}
    left = "BEGIN NULL; END"
    return json.dumps({"lock": "rows", "sources": [source], "left": left, "hold": "BEGIN RETURN NULL; END"})


def test_owner_who_installs_a_program_of_his_own(tables: Database, alice: Connection, bob: Connection) -> None:
    """It has his rights, and is put on sources alone on which he may make triggers."""
    create(alice, "sums", SUMS)
    n = number(tables, "sums")
    body = "BEGIN RAISE EXCEPTION 'as %', current_user; END"
    for table in ("u", "pgtrickle.pgt_definitions", "pg_class"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="does not read"):
            alice.execute("SELECT pgtrickle._install_immediate(%s, %s)", [n, program(tables, table, body)])
    alice.execute("SELECT pgtrickle._install_immediate(%s, %s)", [n, program(tables, "t", body)])
    with pytest.raises(psycopg.errors.RaiseException, match=f"as {alice.info.user}"):
        bob.execute("INSERT INTO t VALUES (4, 1, 1)")
    body = "BEGIN EXECUTE 'SET ROLE postgres'; RETURN NULL; END"
    alice.execute("SELECT pgtrickle._install_immediate(%s, %s)", [n, program(tables, "t", body)])
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        tables.run("INSERT INTO t VALUES (4, 1, 1)")
    alice.execute("SELECT pgtrickle.drop_stream_table('sums')")
    tables.run("INSERT INTO t VALUES (4, 1, 1)")
    create(alice, "sums", SUMS)
    n = number(tables, "sums")
    tables.run(f"BEGIN; ALTER ROLE {alice.info.user} NOINHERIT; REVOKE TRIGGER ON t FROM {alice.info.user}; COMMIT")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for table"):
        alice.execute("SELECT pgtrickle._install_immediate(%s, %s)", [n, program(tables, "t", body)])


def test_server_starts_where_ordinary_roles_have_such_stream_tables(own_db: Database, eventually: Eventually) -> None:
    own_db.run(
        "CREATE ROLE alice LOGIN PASSWORD 'secret'; GRANT CREATE ON SCHEMA public TO alice;"
        "CREATE TABLE t (id int PRIMARY KEY, g int, v int); GRANT SELECT, TRIGGER ON t TO alice"
    )
    with own_db.connect(user="alice", password="secret") as alice:
        create(alice, "sums", SUMS)
    own_db.close()
    assert own_db.server.stop() == 0
    own_db.server.start()
    again = Database(own_db.server, "postgres")
    again.run("INSERT INTO t VALUES (1, 1, 1)")
    again.assert_current("sums")
    assert mode(again, "sums") == "IMMEDIATE"
    again.create("other", "SELECT id FROM t", schedule="1s")
    again.assert_refreshed("other")
    again.close()


# -- what a writer can set --------------------------------------------------------------------------------------------


@pytest.fixture
def writer(tables: Database, alice: Connection, bob: Connection) -> tuple[Connection, int]:
    """Who may write to both tables, and the number of a join over them."""
    create(alice, "joined", JOIN)
    create(alice, "sums", SUMS)
    tables.run(f"GRANT ALL ON u TO {bob.info.user}")
    return bob, number(tables, "joined")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("begun", ["1", "5", "2147483646", "-1", "-5", "2147483647", "x", "0", ""])
def test_writer_who_sets_the_count_of_statements_changes_nothing_or_the_stream_table_too(
    tables: Database, writer: tuple[Connection, int], begun: str
) -> None:
    bob, n = writer
    bob.execute(f"SET pgtrickle.begun_{n} = '{begun}'".encode())
    for statement in (
        "INSERT INTO t VALUES (4, 1, 1)",
        "WITH x AS (INSERT INTO u VALUES (4, 1, 1)) INSERT INTO t VALUES (5, 2, 5)",
        "DELETE FROM t WHERE id = 1",
        "TRUNCATE u",
    ):
        if begun in ("0", ""):
            bob.execute(statement.encode())
        else:
            with pytest.raises((psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.DataError)):
                bob.execute(statement.encode())
        tables.assert_current("joined", "sums")
    bob.execute(f"RESET pgtrickle.begun_{n}; INSERT INTO t VALUES (6, 1, 1)".encode())
    tables.assert_current("joined", "sums")
    assert tables.value(f"SELECT count(*) FROM pgtrickle_changes.immediate_{n}") == 1


@pytest.mark.parametrize("left", ["rows", "all", "x"])
def test_writer_who_sets_what_is_left_has_the_same_result(
    tables: Database, writer: tuple[Connection, int], left: str
) -> None:
    bob, n = writer
    bob.execute(f"SET pgtrickle.left_{n} = '{left}'".encode())
    for statement in ("INSERT INTO t VALUES (4, 1, 1)", "DELETE FROM t WHERE id = 1", "UPDATE u SET g = 1"):
        bob.execute(statement.encode())
        tables.assert_current("joined", "sums")


def test_transaction_that_lets_changes_lie_fails_at_its_end(tables: Database, writer: tuple[Connection, int]) -> None:
    bob, n = writer
    for forget in ("SELECT", "SET CONSTRAINTS ALL IMMEDIATE"):
        bob.execute("BEGIN")
        bob.execute(f"SELECT set_config('pgtrickle.begun_{n}', '1', true)".encode())
        bob.execute(forget.encode())
        bob.execute("INSERT INTO t VALUES (4, 1, 1); INSERT INTO u VALUES (4, 1, 1)")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="were not applied"):
            bob.execute("COMMIT")
        tables.assert_current("joined", "sums")


def test_what_lies_is_applied_with_what_comes(tables: Database, writer: tuple[Connection, int]) -> None:
    bob, n = writer
    bob.execute(f"BEGIN; SELECT set_config('pgtrickle.begun_{n}', '1', true); INSERT INTO t VALUES (4, 1, 1)".encode())
    bob.execute(f"SELECT set_config('pgtrickle.begun_{n}', '0', true); INSERT INTO u VALUES (4, 1, 1); COMMIT".encode())
    tables.assert_current("joined", "sums")


def test_function_that_resets_the_count_within_a_statement(tables: Database, writer: tuple[Connection, int]) -> None:
    bob, n = writer
    bob.execute(
        f"CREATE FUNCTION f() RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        f" PERFORM set_config('pgtrickle.begun_{n}', '0', true); INSERT INTO u VALUES (9, 1, 9);"
        f" RETURN 1; END $$".encode()
    )
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="were not applied"):
        bob.execute("INSERT INTO t SELECT 4, f(), 1")
    tables.assert_current("joined", "sums")
    assert tables.rows("SELECT id FROM u WHERE id = 9") == []


@pytest.mark.parametrize("setting", ["begun", "named"])
def test_what_a_statement_hides_from_maintenance_a_refresh_puts_right(
    tables: Database, writer: tuple[Connection, int], setting: str
) -> None:
    """It says that no column was named, or that no other statement is under way, and is right again at its end."""
    bob, n = writer
    tables.run(f"GRANT CREATE ON SCHEMA public TO {bob.info.user}")
    before, after = ("'0'", "'1'") if setting == "begun" else ("''", "''")
    bob.execute(
        "CREATE FUNCTION hide(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        f" PERFORM set_config('pgtrickle.{setting}_{n}', {before}, true);"
        " INSERT INTO u VALUES (n + 100, 1, 9) ON CONFLICT DO NOTHING;"
        f" PERFORM set_config('pgtrickle.{setting}_{n}', {after}, true); RETURN 1; END $$".encode()
    )
    bob.execute("UPDATE t SET g = hide(id)")
    tables.assert_refreshed("joined")
    assert mode(tables, "joined") == "IMMEDIATE"
    bob.execute("UPDATE t SET g = 2; DELETE FROM u WHERE id > 100")
    tables.assert_current("joined", "sums")
