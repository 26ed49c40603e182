"""Change capture: every way in which a table can change leaves exactly its changes in the buffer."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.catalog.conftest import Connect, Engine, sqlstate


@pytest.fixture
def table(engine: Engine) -> Engine:
    """Table t with three rows, captured with both columns."""
    engine.connection.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')"
    )
    engine.create("st", t=["id", "v"])
    return engine


def test_insert_update_delete(table: Engine) -> None:
    table.connection.execute("INSERT INTO t VALUES (4, 'd')")
    table.connection.execute("UPDATE t SET v = 'B' WHERE id = 2")
    table.connection.execute("DELETE FROM t WHERE id = 1")
    assert table.changes("t", "id", "v") == [(1, 4, "d"), (-1, 2, "b"), (1, 2, "B"), (-1, 1, "a")]


def test_statements_without_rows_write_nothing_and_take_no_number(table: Engine) -> None:
    before = table.value("SELECT change_position FROM pgtrickle._change_position()")
    for statement in (
        "INSERT INTO t SELECT 9, 'x' WHERE false",
        "UPDATE t SET v = '' WHERE id = 9",
        "DELETE FROM t WHERE id = 9",
    ):
        table.connection.execute(statement)
    assert table.changes("t") == []
    assert table.value("SELECT change_position FROM pgtrickle._change_position()") == before


def test_a_statement_has_one_number_and_its_transaction(table: Engine) -> None:
    with table.connection.transaction():
        table.connection.execute("UPDATE t SET v = v || '!'")
        xid = table.value("SELECT pg_current_xact_id()::text")
    rows = table.connection.execute(
        f'SELECT DISTINCT "__pgt_change_id", "__pgt_xid"::text FROM pgtrickle_changes.changes_{table.oid("t")}'
    ).fetchall()
    assert len(rows) == 1 and rows[0][1] == xid


def test_update_of_primary_key(table: Engine) -> None:
    table.connection.execute("UPDATE t SET id = id + 10 WHERE id = 1")
    assert table.net("t", "id", "v") == Counter({(1, "a"): -1, (11, "a"): 1})


def test_copy_and_create_table_like_loads(table: Engine) -> None:
    with table.connection.cursor().copy("COPY t FROM STDIN") as copy:
        copy.write_row((7, "x"))
        copy.write_row((8, None))
    assert table.net("t", "id", "v") == Counter({(7, "x"): 1, (8, None): 1})


def test_truncate_leaves_a_marker(table: Engine) -> None:
    table.connection.execute("TRUNCATE t RESTART IDENTITY")
    assert table.changes("t", "id", "v") == [(0, None, None)]


def test_truncate_cascade_marks_the_referencing_table(table: Engine) -> None:
    table.connection.execute("CREATE TABLE child (t_id int REFERENCES t)")
    table.create("st_child", child=["t_id"])
    table.connection.execute("TRUNCATE t CASCADE")
    assert table.changes("child") == [(0,)]


def test_insert_on_conflict_do_update(table: Engine) -> None:
    table.connection.execute(
        "INSERT INTO t VALUES (1, 'A'), (5, 'e') ON CONFLICT (id) DO UPDATE SET v = excluded.v; "
        "INSERT INTO t VALUES (1, 'AA') ON CONFLICT DO NOTHING"
    )
    assert table.net("t", "id", "v") == Counter({(1, "a"): -1, (1, "A"): 1, (5, "e"): 1})


def test_merge_fires_all_three(table: Engine) -> None:
    table.connection.execute(
        "MERGE INTO t USING (VALUES (1, 'A'), (2, NULL), (6, 'f')) AS s(id, v) ON t.id = s.id "
        "WHEN MATCHED AND s.v IS NULL THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v)"
    )
    assert table.net("t", "id", "v") == Counter({(1, "a"): -1, (1, "A"): 1, (2, "b"): -1, (6, "f"): 1})


def test_writable_cte_changes_one_table_twice(table: Engine) -> None:
    table.connection.execute(
        "WITH gone AS (DELETE FROM t WHERE id = 1 RETURNING v), more AS (INSERT INTO t SELECT 21, v FROM gone) "
        "INSERT INTO t SELECT 22, v FROM gone"
    )
    assert table.net("t", "id", "v") == Counter({(1, "a"): -1, (21, "a"): 1, (22, "a"): 1})


def test_user_trigger_updates_the_row_just_inserted(table: Engine) -> None:
    table.connection.execute(
        "CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN UPDATE t SET v = upper(v) WHERE id = NEW.id; RETURN NULL; END $$; "
        "CREATE TRIGGER shout AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION shout()"
    )
    table.connection.execute("INSERT INTO t VALUES (4, 'd'), (5, 'e')")
    assert table.net("t", "id", "v") == Counter({(4, "D"): 1, (5, "E"): 1})


def test_self_referencing_foreign_key_cascades(engine: Engine) -> None:
    engine.connection.execute(
        "CREATE TABLE tree (id int PRIMARY KEY, up int REFERENCES tree ON DELETE CASCADE ON UPDATE CASCADE); "
        "INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2), (4, NULL)"
    )
    engine.create("st", tree=["id", "up"])
    engine.connection.execute("UPDATE tree SET id = 20 WHERE id = 2")
    assert engine.net("tree", "id", "up") == Counter({(2, 1): -1, (20, 1): 1, (3, 2): -1, (3, 20): 1})
    engine.connection.execute("DELETE FROM tree WHERE id = 1")
    assert engine.net("tree", "id", "up") == Counter({(1, None): -1, (2, 1): -1, (3, 2): -1})


def test_rolled_back_savepoint_leaves_nothing(table: Engine) -> None:
    with table.connection.transaction():
        table.connection.execute("INSERT INTO t VALUES (4, 'd')")
        with table.connection.transaction(force_rollback=True):
            table.connection.execute("DELETE FROM t")
        table.connection.execute("INSERT INTO t VALUES (5, 'e')")
    assert table.net("t", "id") == Counter({(4,): 1, (5,): 1})
    rows = table.connection.execute(
        f'SELECT count(DISTINCT "__pgt_xid") FROM pgtrickle_changes.changes_{table.oid("t")}'
    ).fetchone()
    assert rows == (1,)


def test_replica_role_is_captured_too(table: Engine) -> None:
    table.connection.execute(
        "SET session_replication_role = replica; DELETE FROM t WHERE id = 1; RESET session_replication_role"
    )
    assert table.net("t", "id") == Counter({(1,): -1})


def test_prepared_transaction_is_seen_after_it_commits(table: Engine) -> None:
    table.connection.execute("BEGIN; INSERT INTO t VALUES (4, 'd'); PREPARE TRANSACTION 'later'")
    pgt_id = int(table.value("SELECT pgt_id FROM pgtrickle.pgt_stream_tables"))
    table.refresh(pgt_id)
    assert table.value("SELECT settled FROM pgtrickle._change_position()") is False
    table.connection.execute("COMMIT PREPARED 'later'")
    assert table.pending(pgt_id) == {"t": 1}


def test_only_needed_columns_are_kept(engine: Engine) -> None:
    engine.connection.execute("CREATE TABLE wide (id int PRIMARY KEY, a text, b text, c text)")
    first = engine.create("st_a", wide=["a"])
    engine.connection.execute("INSERT INTO wide VALUES (1, 'a', 'b', 'c')")
    assert engine.changes("wide", "a") == [(1, "a")]
    assert engine.track(first, "wide", ["a"]) | {"generation": None, "columns": None} == {
        "installed": False,
        "extended": False,
        "generation": None,
        "columns": None,
    }
    second = engine.create("st_c")
    assert engine.track(second, "wide", ["c"])["extended"] is True
    engine.connection.execute("UPDATE wide SET c = 'C', b = 'B'")
    assert engine.changes("wide", "a", "c") == [(1, "a", None), (-1, "a", "c"), (1, "a", "C")]


def test_no_columns_at_all_still_tells_that_something_changed(engine: Engine) -> None:
    engine.connection.execute("CREATE TABLE t (id int); CREATE TABLE empty ()")
    engine.create("st", t=[], empty=[])
    engine.connection.execute("INSERT INTO t VALUES (1); INSERT INTO empty DEFAULT VALUES")
    assert (engine.changes("t"), engine.changes("empty")) == ([(1,)], [(1,)])


def test_odd_names_and_types(engine: Engine) -> None:
    engine.connection.execute(
        'CREATE SCHEMA "Odd ""one"; CREATE DOMAIN "Odd ""one".small AS int NOT NULL CHECK (value < 100); '
        "CREATE DOMAIN pairs AS int[]; CREATE TYPE pair AS (x int, y text); CREATE TYPE mood AS ENUM ('sad', 'ok'); "
        'CREATE TABLE "Odd ""one"."select ""from" (id int GENERATED ALWAYS AS IDENTITY, '
        '"order" text COLLATE "C", "a ""b" "Odd ""one".small, '
        'xid bigint, w int, change_id int, new text, "old" text, tg_op text, p pair, m mood, '
        "d pairs, twice int GENERATED ALWAYS AS (w * 2) STORED, dropped int)"
    )
    engine.connection.execute('ALTER TABLE "Odd ""one"."select ""from" DROP COLUMN dropped')
    columns = ["id", "order", 'a "b', "xid", "w", "change_id", "new", "old", "tg_op", "p", "m", "d", "twice"]
    pgt_id = engine.create("st")
    engine.track(pgt_id, '"Odd ""one"."select ""from"', columns)
    engine.connection.execute(
        'INSERT INTO "Odd ""one"."select ""from" ("order", "a ""b", xid, w, change_id, new, old, tg_op, p, m, d) '
        "VALUES ('o', 5, 1, 2, 3, 'n', 'o', 't', '(1,z)', 'ok', '{1,2}')"
    )
    oid = engine.oid('"Odd ""one"."select ""from"')
    row = engine.connection.execute(
        'SELECT "order", "a ""b", xid, w, change_id, new, old, tg_op, p::text, m::text, d, twice '
        f"FROM pgtrickle_changes.changes_{oid}"
    ).fetchone()
    assert row == ("o", 5, 1, 2, 3, "n", "o", "t", "(1,z)", "ok", [1, 2], 4)
    engine.connection.execute('TRUNCATE "Odd ""one"."select ""from"')
    assert engine.value(f'SELECT count(*) FROM pgtrickle_changes.changes_{oid} WHERE "__pgt_w" = 0') == 1


def test_a_column_named_found_does_not_touch_the_number(engine: Engine) -> None:
    engine.connection.execute("CREATE TABLE t (found boolean, number bigint); INSERT INTO t VALUES (false, 1)")
    engine.create("st", t=["found", "number"])
    engine.connection.execute("UPDATE t SET number = 2")
    assert engine.changes("t", "found", "number") == [(-1, False, 1), (1, False, 2)]
    rows = engine.connection.execute(
        f'SELECT DISTINCT "__pgt_change_id" FROM pgtrickle_changes.changes_{engine.oid("t")}'
    ).fetchall()
    assert len(rows) == 1


def test_virtual_generated_column(engine: Engine) -> None:
    engine.connection.execute("CREATE TABLE t (a int, twice int GENERATED ALWAYS AS (a * 2) VIRTUAL)")
    engine.create("st", t=["twice"])
    engine.connection.execute("INSERT INTO t VALUES (1); UPDATE t SET a = 2")
    assert engine.changes("t", "twice") == [(1, 2), (-1, 2), (1, 4)]
    engine.connection.execute("ALTER TABLE t ALTER twice SET EXPRESSION AS (a * 2 + 1)")
    pgt_id = int(engine.value("SELECT pgt_id FROM pgtrickle.pgt_stream_tables"))
    assert engine.begin(pgt_id)["broken"] == ["definition of public.t has changed"]
    engine.connection.execute("INSERT INTO t VALUES (10)")
    assert engine.changes("t", "twice")[-1] == (1, 21)


def test_1597_columns(engine: Engine) -> None:
    names = [f"c{i}" for i in range(1597)]
    engine.connection.execute(f"CREATE TABLE wide ({', '.join(f'{name} int' for name in names)})")
    engine.create("st", wide=names)
    engine.connection.execute("INSERT INTO wide (c0, c1596) VALUES (1, 2)")
    assert engine.changes("wide", "c0", "c1596") == [(1, 1, 2)]


def test_large_values_are_complete(table: Engine) -> None:
    table.connection.execute(
        "UPDATE t SET v = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 10000) i) WHERE id = 1"
    )
    table.connection.execute("UPDATE t SET id = 100 WHERE id = 1")
    rows = table.connection.execute(
        f'SELECT length(v) FROM pgtrickle_changes.changes_{table.oid("t")} WHERE "__pgt_w" = 1'
    ).fetchall()
    assert rows == [(320000,), (320000,)]


@pytest.mark.parametrize(
    ("create", "name"),
    [
        ("CREATE TEMP TABLE x (id int)", "x"),
        ("CREATE MATERIALIZED VIEW x AS SELECT 1 AS id", "x"),
        ("CREATE VIEW x AS SELECT 1 AS id", "x"),
        ("SELECT 1", "pg_catalog.pg_class"),
        ("SELECT 1", "pgtrickle.pgt_refresh_history"),
        (
            "CREATE EXTENSION file_fdw; CREATE SERVER s FOREIGN DATA WRAPPER file_fdw; "
            "CREATE FOREIGN TABLE x (id int) SERVER s OPTIONS (filename '/dev/null')",
            "x",
        ),
        ("CREATE TABLE p (id int) PARTITION BY LIST (id); CREATE TABLE x PARTITION OF p DEFAULT", "x"),
        ("CREATE TABLE p (id int); CREATE TABLE x () INHERITS (p)", "x"),
    ],
)
def test_sources_that_cannot_be_captured_are_refused(engine: Engine, create: str, name: str) -> None:
    engine.connection.execute(create)
    pgt_id = engine.create("st")
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot capture changes of table") as failure:
        engine.track(pgt_id, name, [])
    assert failure.value.diag.message_detail is not None
    assert name.removeprefix("pg_catalog.").removeprefix("pgtrickle.") in failure.value.diag.message_detail


def test_unknown_and_reserved_columns_are_refused(engine: Engine) -> None:
    engine.connection.execute('CREATE TABLE t (id int, "__pgt_w" int)')
    pgt_id = engine.create("st")
    for columns, state in ((["nothing"], "42703"), (["__pgt_w"], "0A000")):
        assert (
            sqlstate(engine.connection, "SELECT pgtrickle._track_source(%s, 't'::regclass, %s)", pgt_id, columns)
            == state
        )


def test_keys_are_captured_for_mirrors_and_not_for_owners(engine: Engine) -> None:
    engine.connection.execute(
        "CREATE TABLE composite (v text, b int, a int, PRIMARY KEY (a, b));"
        "CREATE TABLE uniquely (v text, a int NOT NULL UNIQUE, b int, c int, UNIQUE (b, c));"
        "CREATE TABLE perhaps (v text, a int UNIQUE);"
        "CREATE UNIQUE INDEX ON perhaps (v);"
        "CREATE ROLE reader; GRANT SELECT (v) ON composite, uniquely, perhaps TO reader;"
        "GRANT CREATE ON SCHEMA public TO reader"
    )
    pgt_id = engine.create("st")
    engine.connection.execute("ALTER TABLE st OWNER TO reader")
    captured = {}
    for table in ("composite", "uniquely", "perhaps"):
        call = "SELECT pgtrickle._track_source(%s, %s::regclass, '{v}', true)"
        first, again = (dict(engine.value(call, pgt_id, table)) for _ in range(2))
        assert first["installed"] and not again["installed"] and not again["extended"]
        captured[table] = first["columns"]
    assert captured == {"composite": ["v", "b", "a"], "uniquely": ["v", "a"], "perhaps": ["v"]}
    engine.connection.execute("INSERT INTO composite VALUES ('x', 1, 2)")
    engine.connection.execute("UPDATE composite SET b = 3")
    assert engine.net("composite", "v", "a", "b") == Counter({("x", 2, 3): 1})
    columns = engine.value(
        "SELECT array_agg(column_name::text) FROM information_schema.column_privileges"
        " WHERE table_name = %s AND grantee = 'reader' AND column_name !~ '^__'",
        f"changes_{engine.oid('composite')}",
    )
    assert columns == ["v"]
    engine.connection.execute("ALTER TABLE st OWNER TO CURRENT_USER; DROP OWNED BY reader; DROP ROLE reader")


def test_capture_ends_with_the_last_that_needs_it(table: Engine) -> None:
    second = table.create("second", t=["id"])
    first = int(table.value("SELECT min(pgt_id) FROM pgtrickle.pgt_stream_tables"))
    table.value("SELECT pgtrickle._unregister(%s)", first)
    assert table.triggers("t") == 4
    table.value("SELECT pgtrickle._unregister(%s)", second)
    assert table.triggers("t") == 0
    assert table.value("SELECT count(*) FROM pg_class WHERE relname LIKE 'changes\\_%%'") == 0
    assert table.value("SELECT count(*) FROM pg_proc WHERE proname LIKE 'pg\\_trickle\\_cdc%%'") == 0


def test_capture_of_a_captured_source_locks_no_table(table: Engine, connect: Connect) -> None:
    writer = connect(autocommit=False)
    writer.execute("INSERT INTO t VALUES (4, 'd')")
    table.connection.execute("SET lock_timeout = '30s'")
    table.create("second", t=["v"])
    writer.commit()
    # A table that is not captured yet waits for its writers.
    table.connection.execute("CREATE TABLE u (id int)")
    writer.execute("INSERT INTO u VALUES (1)")
    pgt_id = table.create("third")
    table.connection.execute("SET lock_timeout = '50ms'")
    assert sqlstate(table.connection, "SELECT pgtrickle._track_source(%s, 'u'::regclass, '{id}')", pgt_id) == "55P03"


def test_a_writer_is_not_disturbed_by_others_search_path(table: Engine, connect: Connect) -> None:
    alice = connect("catalog_alice")
    table.connection.execute("GRANT ALL ON t TO catalog_alice")
    alice.execute("CREATE TEMP TABLE __pgt_new (id int, v text)")
    alice.execute("SET search_path = pg_temp, public")
    alice.execute("INSERT INTO t VALUES (4, 'd')")
    assert table.net("t", "id", "v") == Counter({(4, "d"): 1})


def test_trigger_functions_cannot_be_attached_by_others(table: Engine, connect: Connect) -> None:
    alice = connect("catalog_alice")
    alice.execute("CREATE TABLE forged (id int, v text)")
    assert (
        sqlstate(
            alice,
            "CREATE TRIGGER forge AFTER INSERT ON forged REFERENCING NEW TABLE AS __pgt_new FOR EACH STATEMENT "
            f"EXECUTE FUNCTION pgtrickle_changes.pg_trickle_cdc_ins_{table.oid('t')}()",
        )
        == "42501"
    )


def test_a_writer_never_gives_way_to_what_ends_captures(table: Engine, connect: Connect) -> None:
    """It holds what the other wants and wants what the other has: who waits longer is ended by PostgreSQL."""
    table.connection.execute("CREATE TABLE u (id int PRIMARY KEY)")
    table.create("su", u=["id"])
    table.connection.execute("DELETE FROM pgtrickle.pgt_dependencies")
    first, second = sorted(("t", "u"), key=table.oid)
    with connect() as writer, connect() as ending, ThreadPoolExecutor(1) as pool:
        writer.autocommit = False
        writer.execute("SET LOCAL deadlock_timeout = '300ms'")
        writer.execute(f"DELETE FROM {second} WHERE false")
        ended = pool.submit(ending.execute, "SELECT pgtrickle._untrack_sources()")
        deadline = time.monotonic() + 60
        held = "SELECT FROM pg_locks WHERE relation = %s AND mode = 'AccessExclusiveLock' AND granted"
        while not table.connection.execute(held, [table.oid(first)]).fetchall() and not ended.done():
            assert time.monotonic() < deadline
        writer.execute(f"SELECT FROM {first}")
        writer.commit()
        assert ended.result(60).fetchone() == (1,)
    assert table.value("SELECT pgtrickle._untrack_sources()") == 1
