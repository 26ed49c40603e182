"""Installing and upgrading: repeatable, safe beside others, exact about missing rights."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from psycopg import conninfo, sql

from catalog.install import Script, Scripts, bundled_scripts
from catalog.ownership import UntrustedSchema
from catalog.session import SqlError
from catalog.systems import QUEUES, REGISTERS, STREAM_TABLES, System
from server.postgres.cluster import EmbeddedPostgres
from tests.catalog.conftest import PASSWORD, Connect, Engine, install_into, sqlstate
from tests.e2e.upgrade.structure import structure


def test_second_install_changes_nothing(dsn: str) -> None:
    first, second = install_into(dsn), install_into(dsn)
    assert first.changed and not second.changed
    assert first.state == second.state
    assert first.warnings == ()


def test_versions_are_recorded(dsn: str, bare_connect: Connect) -> None:
    install_into(dsn)
    rows = bare_connect().execute("SELECT version, description FROM pgtrickle.pgt_schema_version ORDER BY 1").fetchall()
    assert [version for version, _ in rows] == [*(m.version for m in bundled_scripts().migrations), "functions"]
    assert rows[0][1].startswith("The catalog of stream tables")


def test_constraints_name_each_value_once_and_history_goes_with_its_stream_table(connect: Connect) -> None:
    connection = connect()
    lists = connection.execute(
        "SELECT conrelid::regclass::text, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE contype = 'c' AND connamespace = 'pgtrickle'::regnamespace AND pg_get_constraintdef(oid) ~ 'ARRAY'"
    ).fetchall()
    assert len(lists) >= 10
    for table, definition in lists:
        values = re.findall(r"'(\w+)'", definition)
        assert len(set(values)) == len(values), (table, definition)
    history = connection.execute(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE contype = 'f' AND conrelid = 'pgtrickle.pgt_refresh_history'::regclass"
    ).fetchall()
    assert history == [("FOREIGN KEY (pgt_id) REFERENCES pgtrickle.pgt_definitions(pgt_id) ON DELETE CASCADE",)]


def test_two_servers_install_at_once(dsn: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: install_into(dsn), range(4)))
    assert sum(result.changed for result in results) == 1
    assert len({result.state for result in results}) == 1


def test_a_failing_script_leaves_nothing_behind(dsn: str, bare_connect: Connect) -> None:
    scripts = bundled_scripts()
    broken = Scripts(scripts.migrations, (*scripts.functions, Script("99", "SELECT 1/0")), ())
    with pytest.raises(SqlError) as failure:
        install_into(dsn, broken)
    assert failure.value.sqlstate == "22012"
    row = bare_connect().execute("SELECT to_regnamespace('pgtrickle') IS NULL").fetchone()
    assert row == (True,)


def test_upgrade_runs_new_migrations_once_and_rewrites_functions(dsn: str, bare_connect: Connect) -> None:
    old = bundled_scripts()
    install_into(dsn, old)
    connection = bare_connect()
    connection.execute("INSERT INTO pgtrickle.pgt_watermark_groups (group_name, source_relids) VALUES ('g', '{1}')")
    new = Scripts(
        (*old.migrations, Script("0009_more", "-- More.\nALTER TABLE pgtrickle.pgt_watermark_groups ADD more int")),
        (*old.functions, Script("99", "CREATE FUNCTION pgtrickle._more() RETURNS int LANGUAGE sql AS 'SELECT 2'")),
        old.superuser,
    )
    assert install_into(dsn, new).changed
    assert not install_into(dsn, new).changed
    assert connection.execute(
        "SELECT group_name, more, pgtrickle._more() FROM pgtrickle.pgt_watermark_groups"
    ).fetchall() == [("g", None, 2)]
    assert connection.execute(
        "SELECT description FROM pgtrickle.pgt_schema_version WHERE version = '0009_more'"
    ).fetchone() == ("More.",)


def test_upgrade_does_not_wait_for_a_prepared_transaction(
    dsn: str, bare_connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody who connects could see why, and end it."""
    monkeypatch.setattr("catalog.install.LOCK_SECONDS", 0.2)
    scripts = bundled_scripts()
    install_into(dsn, scripts)
    connection = bare_connect()
    connection.execute("BEGIN; LOCK TABLE pgtrickle.pgt_dependencies IN ROW EXCLUSIVE MODE; PREPARE TRANSACTION 'old'")
    newer = Scripts(scripts.migrations, (*scripts.functions, Script("99", "SELECT 1")), ())
    with pytest.raises(SqlError, match="while a transaction uses them") as failure:
        install_into(dsn, newer)
    assert failure.value.sqlstate == "55P03" and "pg_prepared_xacts" in (failure.value.hint or "")
    connection.execute("COMMIT PREPARED 'old'")
    assert install_into(dsn, newer).changed


def test_upgrade_gives_way_to_whom_it_would_wait_for_in_a_circle(dsn: str, bare_connect: Connect) -> None:
    """A worker or user reads views in an order of its own; neither fails, and the upgrade is done in the end."""
    scripts = bundled_scripts()
    install_into(dsn, scripts)
    newer = Scripts(scripts.migrations, (*scripts.functions, Script("99", "SELECT 1")), ())
    reader, observer = bare_connect(), bare_connect()
    waiting = "SELECT count(*) FROM pg_locks WHERE relation = 'pgtrickle.settings'::regclass AND NOT granted"
    with ThreadPoolExecutor(1) as pool, reader.transaction():
        reader.execute("LOCK TABLE pgtrickle.settings IN ACCESS SHARE MODE")  # replaced after the one below
        upgrade = pool.submit(install_into, dsn, newer)
        while observer.execute(waiting).fetchone() == (0,):
            assert not upgrade.done(), upgrade.result()
            time.sleep(0.01)
        assert reader.execute("SELECT count(*) FROM pgtrickle.pgt_stream_tables").fetchone() == (0,)
        assert not upgrade.done()
    assert upgrade.result().changed


def test_upgrade_rewrites_capture_and_trusts_it_as_before(engine: Engine, dsn: str) -> None:
    engine.connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE gone (a int, b int)")
    kept, broken = engine.create("st", t=["id", "v"]), engine.create("st_gone", gone=["a", "b"])
    engine.refresh(kept), engine.refresh(broken)
    name = f"pgtrickle_changes.pg_trickle_cdc_ins_{engine.oid('t')}"
    engine.connection.execute(
        f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        " DROP EVENT TRIGGER IF EXISTS pg_trickle_ddl_tracker; ALTER TABLE gone DROP COLUMN b"
    )
    bundled = bundled_scripts()
    newer = Scripts(bundled.migrations, (*bundled.functions, Script("99", "SELECT 1")), ())
    assert install_into(dsn, newer).changed
    engine.connection.execute("INSERT INTO t VALUES (1, 'a')")
    assert engine.changes("t", "id", "v") == [(1, 1, "a")]
    assert (engine.begin(kept)["broken"], len(engine.begin(broken)["broken"])) == ([], 1)


BUILT_ON = {"0018_gates", "0019_wal_capture", "0023_definitions"}
"""Migrations that later ones name what is made by: they cannot come after them."""


@pytest.mark.parametrize(
    "late", [s.version for s in bundled_scripts().migrations if s.version > "0018" and s.version not in BUILT_ON]
)
@pytest.mark.one_in(3)
def test_a_migration_that_comes_after_later_ones_makes_the_same(
    cluster: EmbeddedPostgres, template: str, dsn: str, bare_connect: Connect, late: str
) -> None:
    """Branches are merged in any order, so a database may get a lower number after a higher one."""
    scripts = bundled_scripts()
    others = tuple(script for script in scripts.migrations if script.version != late)
    # What was made by the functions of that time, which are not known here, is not there.
    install_into(dsn, Scripts(others, (), ()))
    assert install_into(dsn).changed
    with psycopg.connect(cluster.dsn(template)) as new:
        assert structure(bare_connect()) ^ structure(new) == set()


def test_a_migration_with_a_lower_number_is_not_overlooked(dsn: str, bare_connect: Connect) -> None:
    scripts = bundled_scripts()
    others = tuple(script for script in scripts.migrations if script.version != "0017_monitoring")
    install_into(dsn, Scripts(others, scripts.functions, scripts.superuser))
    assert install_into(dsn).changed
    assert bare_connect().execute("SELECT to_regclass('pgtrickle.pgt_subscription_load')").fetchone() != (None,)


def test_an_older_server_refuses_a_newer_catalog(dsn: str) -> None:
    old = bundled_scripts()
    newer = Scripts((*old.migrations, Script("0009_more", "-- More.\nSELECT 1")), old.functions, old.superuser)
    install_into(dsn, newer)
    with pytest.raises(SqlError) as failure:
        install_into(dsn, old)
    assert failure.value.sqlstate == "0A000"
    assert "0009_more" in failure.value.message


def test_missing_right_to_create_is_named(dsn: str, bare_connect: Connect) -> None:
    bare_connect()
    with pytest.raises(SqlError) as failure:
        install_into(conninfo.make_conninfo(dsn, user="catalog_alice", password=PASSWORD))
    assert failure.value.sqlstate == "42501"
    assert 'role "catalog_alice" lacks CREATE' in failure.value.message
    assert failure.value.hint is not None and failure.value.hint.startswith("GRANT CREATE ON DATABASE")


def test_ordinary_role_installs_without_event_triggers(dsn: str, database: str, bare_connect: Connect) -> None:
    admin = bare_connect()
    admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO catalog_alice").format(sql.Identifier(database)))
    result = install_into(conninfo.make_conninfo(dsn, user="catalog_alice", password=PASSWORD))
    assert result.changed
    assert (
        len(result.warnings) == 1 and "event triggers" in result.warnings[0] and "catalog_alice" in result.warnings[0]
    )
    assert admin.execute("SELECT count(*) FROM pg_event_trigger").fetchone() == (0,)
    # The role could change what a superuser's server runs, which wants to own it.
    with pytest.raises(UntrustedSchema) as failure:
        install_into(dsn)
    assert failure.value.sqlstate == "42710"
    admin.execute("REASSIGN OWNED BY catalog_alice TO CURRENT_USER")
    # It adds what was missing; the ordinary one is content with that.
    assert install_into(dsn).changed
    assert admin.execute("SELECT count(*) FROM pg_event_trigger").fetchone() == (7,)
    assert not install_into(conninfo.make_conninfo(dsn, user="catalog_alice", password=PASSWORD)).changed


def test_without_event_triggers_captured_columns_are_pinned(dsn: str, database: str, bare_connect: Connect) -> None:
    admin = bare_connect()
    admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO catalog_alice").format(sql.Identifier(database)))
    install_into(conninfo.make_conninfo(dsn, user="catalog_alice", password=PASSWORD))
    alice = Engine(bare_connect("catalog_alice"))
    alice.connection.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text)")
    pgt_id = alice.create("st", t=["a"])
    alice.refresh(pgt_id)
    for ddl, state in (("DROP COLUMN a", "2BP01"), ("ALTER a TYPE int USING 1", "0A000")):
        assert sqlstate(alice.connection, f"ALTER TABLE t {ddl}") == state
    alice.connection.execute("ALTER TABLE t DROP COLUMN b; INSERT INTO t VALUES (1, 'a'); UPDATE t SET a = 'b'")
    assert alice.changes("t", "a") == [(1, "a"), (-1, "a"), (1, "b")]
    alice.connection.execute("DROP TABLE st")
    assert alice.begin(pgt_id)["storage"] == ""
    alice.value("SELECT pgtrickle._unregister(%s)", pgt_id)
    alice.connection.execute("ALTER TABLE t DROP COLUMN a")


def test_schema_of_another_role_is_left_alone(dsn: str, database: str, bare_connect: Connect) -> None:
    admin = bare_connect()
    admin.execute("CREATE SCHEMA pgtrickle AUTHORIZATION catalog_bob")
    admin.execute(sql.SQL("GRANT CREATE ON DATABASE {} TO catalog_alice").format(sql.Identifier(database)))
    with pytest.raises(SqlError) as failure:
        install_into(conninfo.make_conninfo(dsn, user="catalog_alice", password=PASSWORD))
    assert failure.value.sqlstate == "42501"
    assert "schema pgtrickle exists" in failure.value.message


def test_catalog_can_be_read_but_not_written_by_everybody(connect: Connect) -> None:
    alice = connect("catalog_alice")
    tables = alice.execute(
        "SELECT format('pgtrickle.%I', relname), relkind::text FROM pg_class "
        "WHERE relnamespace = 'pgtrickle'::regnamespace AND relkind IN ('r', 'v')"
    ).fetchall()
    assert len(tables) > 10
    # Values of the sources of a stream table, its query, that sources change, and where it is published, are for those
    # who may read them.
    private = {"pgtrickle.pgt_memory", "pgtrickle.pgt_subscription_load", "pgtrickle.pgt_definitions"}
    private |= {"pgtrickle.pgt_published", "pgtrickle.pgt_published_refreshes"}
    for table in private:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            alice.execute(f"SELECT FROM {table}")
    for table, kind in tables:
        if table in private:
            continue
        alice.execute(f"SELECT * FROM {table} LIMIT 0")
        if kind == "r" and table not in ("pgtrickle.pgt_requests", "pgtrickle.pgt_source_signals"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                alice.execute(f"DELETE FROM {table}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        alice.execute("CREATE TABLE pgtrickle.mine ()")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        alice.execute("CREATE TABLE pgtrickle_changes.mine ()")


def test_every_privileged_function_pins_its_search_path(connect: Connect) -> None:
    loose = (
        connect()
        .execute(
            "SELECT proname FROM pg_proc WHERE pronamespace = 'pgtrickle'::regnamespace AND prosecdef "
            "AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(proconfig, '{}'))"
        )
        .fetchall()
    )
    assert loose == []


def test_bodies_of_all_functions_are_valid(dsn: str, bare_connect: Connect) -> None:
    """The scripts are installed without a look at the bodies, in which a column of a later PostgreSQL may be named."""
    for system in (STREAM_TABLES, QUEUES, REGISTERS):
        install_into(dsn, system=system)
    connection = bare_connect()
    connection.execute("SET check_function_bodies = on")
    functions = connection.execute(
        "SELECT p.oid, p.oid::regprocedure::text, l.lanname FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang"
        " WHERE p.pronamespace::regnamespace::text ~ '^(pgtrickle|pgque|accum)' AND l.lanname IN ('sql', 'plpgsql')"
    ).fetchall()
    assert len(functions) > 100
    invalid = {}
    for oid, name, language in functions:
        validator = "plpgsql_validator" if language == "plpgsql" else "fmgr_sql_validator"
        try:
            connection.execute(sql.SQL("SELECT {}(%s)").format(sql.Identifier(validator)), [oid])
        except psycopg.Error as error:
            invalid[name] = error.diag.message_primary
    assert invalid == {}


def test_what_was_dropped_or_changed_is_put_back(dsn: str, bare_connect: Connect) -> None:
    install_into(dsn)
    admin = bare_connect()
    admin.execute("""
        DROP FUNCTION pgtrickle.pgt_status();
        DROP VIEW pgtrickle.quick_health, pgtrickle.pgt_request_errors;
        DROP TRIGGER request_made ON pgtrickle.pgt_requests;
        ALTER TABLE pgtrickle.pgt_requests DISABLE TRIGGER request_left;
        DROP EVENT TRIGGER pg_trickle_drop_tracker;
        ALTER EVENT TRIGGER pg_trickle_rewrite_tracker DISABLE;
        CREATE OR REPLACE FUNCTION pgtrickle._qualified(relid oid) RETURNS text LANGUAGE sql AS 'SELECT NULL::text';
        DROP FUNCTION pgtrickle.get_staleness(text);
        CREATE FUNCTION pgtrickle.get_staleness(text) RETURNS int LANGUAGE sql AS 'SELECT 1';
        ALTER FUNCTION pgtrickle._on_ddl_end() RESET search_path;
        GRANT EXECUTE ON FUNCTION pgtrickle._on_sql_drop() TO PUBLIC;
        CREATE OR REPLACE VIEW pgtrickle.pgt_change_tracking AS
        SELECT source_relid, slot_name, last_consumed_lsn, '{}'::bigint[] AS tracked_by_pgt_ids, captured_columns,
               generation, last_cleaned_xid, system
        FROM pgtrickle.pgt_captures;
    """)
    repaired = install_into(dsn).repaired
    assert sorted(str(damage) for damage in repaired) == [
        "event trigger pg_trickle_drop_tracker is missing",
        "event trigger pg_trickle_rewrite_tracker is changed",
        "function pgtrickle._on_ddl_end() is changed",
        "function pgtrickle._on_sql_drop() is open to everybody",
        "function pgtrickle._qualified(oid) is changed",
        "function pgtrickle.get_staleness(text) is changed",
        "function pgtrickle.pgt_status() is missing",
        "trigger request_left ON pgtrickle.pgt_requests is changed",
        "trigger request_made ON pgtrickle.pgt_requests is missing",
        "view pgtrickle.pgt_change_tracking is changed",
        "view pgtrickle.pgt_request_errors is missing",
        "view pgtrickle.quick_health is missing",
    ]
    # It is all as at first, by the same measure.
    assert (install_into(dsn).changed, install_into(dsn).repaired) == (False, ())
    assert admin.execute("SELECT pgtrickle._qualified('pg_class'::regclass)").fetchone() == ("pg_catalog.pg_class",)
    assert admin.execute(
        "SELECT count(*), bool_or(has_function_privilege('catalog_bob', 'pgtrickle._on_sql_drop()', 'EXECUTE')) "
        "FROM pgtrickle.pgt_status()"
    ).fetchone() == (0, None)
    assert admin.execute(
        "SELECT has_function_privilege('catalog_bob', 'pgtrickle._on_sql_drop()', 'EXECUTE')"
    ).fetchone() == (False,)


@pytest.mark.parametrize(
    ("system", "damage"),
    [
        (QUEUES, "DROP FUNCTION pgque.send(text, jsonb)"),
        (QUEUES, "DROP TRIGGER queues_changed ON pgque.queue"),
        (REGISTERS, "DROP VIEW accum_internal.call CASCADE"),
        (REGISTERS, "DROP EVENT TRIGGER pg_accumulator_drop_guard"),
    ],
    ids=lambda value: value.schema if isinstance(value, System) else value.split()[1],
)
def test_queues_and_registers_are_put_back(dsn: str, bare_connect: Connect, system: System, damage: str) -> None:
    install_into(dsn, system=STREAM_TABLES)
    install_into(dsn, system=system)
    bare_connect().execute(damage)
    result = install_into(dsn, system=system)
    assert result.changed and "missing" in {damage.what for damage in result.repaired}
    assert not install_into(dsn, system=system).changed


def test_an_upgrade_makes_of_what_was_dropped_only_what_the_others_need(dsn: str, bare_connect: Connect) -> None:
    install_into(dsn)
    connection = bare_connect()
    connection.execute("SELECT pgtrickle._drop_contents(), pgtrickle._drop_interface(false)")
    connection.execute("INSERT INTO pgtrickle.pgt_uninstalled (extension) VALUES ('pg_trickle')")
    left = (
        "SELECT to_regprocedure('pgtrickle.version()') IS NOT NULL,"
        " to_regclass('pgtrickle.pgt_cdc_status') IS NOT NULL,"
        " EXISTS (SELECT FROM pg_event_trigger WHERE evtname ~ '^pg_trickle'),"
        " to_regprocedure('pgtrickle._version_more()') IS NOT NULL"
    )
    assert not install_into(dsn).changed
    old = bundled_scripts()
    more = "CREATE OR REPLACE FUNCTION pgtrickle._version_more() RETURNS int LANGUAGE sql AS 'SELECT 1'"
    new = Scripts(old.migrations, (*old.functions, Script("99_more", more)), old.superuser)
    assert install_into(dsn, new).changed
    assert connection.execute(left).fetchone() == (False, False, False, True)
    assert not install_into(dsn, new).changed
    connection.execute("DROP FUNCTION pgtrickle._notice")
    assert [damage.name for damage in install_into(dsn, new).repaired] == ["pgtrickle._notice(text, text, text)"]
    assert connection.execute(left).fetchone() == (False, False, False, True)


def test_registers_in_a_schema_of_the_users_choice_are_put_back(dsn: str, bare_connect: Connect) -> None:
    install_into(dsn)
    install_into(dsn, system=REGISTERS, schema="Two Words")
    bare_connect().execute('DROP FUNCTION "Two Words".register_list()')
    (damage,) = install_into(dsn, system=REGISTERS).repaired
    assert str(damage) == 'function "Two Words".register_list() is missing'
    assert not install_into(dsn, system=REGISTERS).changed


def test_what_is_made_while_it_is_used_is_no_damage(engine: Engine, dsn: str) -> None:
    """Capture, functions that send, functions of registers, roles' functions: they are in none of the scripts."""
    for system in (QUEUES, REGISTERS):
        install_into(dsn, system=system)
    engine.connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); SELECT pgque.create_queue('orders');"
        'SELECT accum.register_create(\'stock\', \'{"item": "int"}\', \'{"quantity": "numeric"}\')'
    )
    engine.refresh(engine.create("st", t=["id", "v"]))
    engine.connection.execute("SET search_path = pgtrickle, accum, public")  # by which nothing is judged
    for system in (STREAM_TABLES, QUEUES, REGISTERS):
        assert not install_into(dsn, system=system).changed


def test_a_table_that_is_gone_is_told_at_each_start(dsn: str, bare_connect: Connect) -> None:
    install_into(dsn)
    bare_connect().execute("DROP TABLE pgtrickle.pgt_source_gates CASCADE")
    for _ in range(2):
        result = install_into(dsn)
        assert [w for w in result.warnings if "table pgtrickle.pgt_source_gates is missing" in w] != []


def test_who_may_not_repair_is_told_what_is_broken(dsn: str, bare_connect: Connect) -> None:
    """An ordinary role that serves what a superuser installed goes on with what is left, and gains nothing."""
    install_into(dsn)
    admin = bare_connect()
    admin.execute("DROP FUNCTION pgtrickle.pgt_status()")
    result = install_into(conninfo.make_conninfo(dsn, user="catalog_alice", password=PASSWORD))
    assert not result.changed and result.repaired == ()
    assert any(
        "could not be repaired" in w and "function pgtrickle.pgt_status() is missing" in w for w in result.warnings
    )
    assert admin.execute("SELECT to_regprocedure('pgtrickle.pgt_status()') IS NULL").fetchone() == (True,)
