"""Changes are captured however they are made: every kind of statement, table and trigger."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

ROWS = """
CREATE TABLE t (id int PRIMARY KEY, k int, v text);
INSERT INTO t SELECT n, n % 3, 'v' || n FROM generate_series(1, 9) n
"""


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture(autouse=True)
def source(db: Any) -> None:
    db.run(ROWS)


class TestStatements:
    @pytest.fixture(autouse=True)
    def copy(self, db: Any) -> None:
        db.create("copy", "SELECT id, k, v FROM t")
        db.create("groups", "SELECT k, count(*) AS n, min(v) AS low, max(v) AS high FROM t GROUP BY k")

    @pytest.mark.parametrize(
        "statement",
        [
            "INSERT INTO t VALUES (1, 5, 'x'), (20, 5, 'y') ON CONFLICT (id) DO UPDATE SET v = excluded.v, k = 7",
            "INSERT INTO t VALUES (1, 5, 'x') ON CONFLICT DO NOTHING",
            "MERGE INTO t USING (VALUES (1, 'a'), (2, 'b'), (30, 'c')) AS s(id, v) ON t.id = s.id"
            " WHEN MATCHED AND s.id = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET v = s.v"
            " WHEN NOT MATCHED THEN INSERT VALUES (s.id, 0, s.v)",
            "WITH d AS (DELETE FROM t WHERE k = 0 RETURNING *), u AS (UPDATE t SET v = 'u' WHERE k = 1 RETURNING *)"
            " INSERT INTO t SELECT id + 100, k, v FROM d UNION ALL SELECT id + 200, k, v FROM u",
            "UPDATE t SET id = id + 100",
            "UPDATE t SET id = -id, k = NULL, v = NULL",
            "DELETE FROM t WHERE id > 100",
            "DELETE FROM t",
            "UPDATE t SET v = o.v FROM t o WHERE o.id = t.id + 1",
        ],
    )
    def test_statement(self, db: Any, statement: str) -> None:
        db.run(statement)
        db.assert_refreshed("copy", "groups")

    def test_copy_from(self, db: Any) -> None:
        with db.connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
            for n in range(1000, 1100):
                copy.write_row((n, n % 5, None))
        db.assert_differential("copy")
        db.assert_differential("groups")

    def test_truncate(self, db: Any) -> None:
        db.run("TRUNCATE t")
        db.assert_refreshed("copy", "groups")
        assert db.value("SELECT count(*) FROM copy") == 0

    def test_truncate_and_refill_in_one_transaction(self, db: Any) -> None:
        db.run("BEGIN; TRUNCATE t RESTART IDENTITY; INSERT INTO t VALUES (1, 1, 'new'); COMMIT")
        db.assert_refreshed("copy", "groups")
        db.run("INSERT INTO t VALUES (2, 1, 'newer')")
        db.assert_differential("copy")

    def test_truncate_that_is_rolled_back(self, db: Any) -> None:
        db.run("BEGIN; TRUNCATE t; ROLLBACK; DELETE FROM t WHERE id = 1")
        db.assert_differential("copy")

    def test_truncate_cascade(self, db: Any) -> None:
        db.run("CREATE TABLE child (id int PRIMARY KEY, t int REFERENCES t); INSERT INTO child SELECT id, id FROM t")
        db.create("children", "SELECT id, t FROM child")
        db.run("TRUNCATE t CASCADE")
        db.assert_refreshed("copy", "children")
        assert db.value("SELECT count(*) FROM children") == 0

    def test_replica_role(self, db: Any) -> None:
        db.run("SET session_replication_role = replica; UPDATE t SET v = 'replicated'; RESET session_replication_role")
        db.assert_differential("copy")

    def test_change_through_a_view(self, db: Any) -> None:
        db.run(
            "CREATE VIEW part AS SELECT * FROM t WHERE k = 1; UPDATE part SET v = 'view'; DELETE FROM part WHERE id = 1"
        )
        db.assert_differential("copy")

    def test_change_through_a_rule(self, db: Any) -> None:
        db.run(
            "CREATE TABLE door (id int); CREATE RULE pass AS ON INSERT TO door DO INSTEAD DELETE FROM t WHERE id"
            " = NEW.id"
        )
        db.run("INSERT INTO door VALUES (1)")
        db.assert_differential("copy")

    def test_cursor_with_where_current_of(self, db: Any) -> None:
        db.run(
            "BEGIN; DECLARE c CURSOR FOR SELECT * FROM t WHERE id = 4 FOR UPDATE; FETCH c;"
            " DELETE FROM t WHERE CURRENT OF c; COMMIT"
        )
        db.assert_differential("copy")


def test_user_trigger_updates_a_row_that_the_same_statement_inserted(db: Any) -> None:
    db.run(
        "CREATE FUNCTION again() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE t SET v = v || '!' WHERE id = NEW.id; RETURN NEW; END $$;"
        "CREATE TRIGGER again AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION again()"
    )
    db.create("copy", "SELECT id, v FROM t")
    db.run("INSERT INTO t VALUES (20, 0, 'x'), (21, 0, 'y')")
    db.assert_differential("copy")
    assert db.rows("SELECT v FROM copy WHERE id >= 20 ORDER BY id") == [("x!",), ("y!",)]


def test_self_referencing_foreign_key_cascades(db: Any) -> None:
    db.run("CREATE TABLE tree (id int PRIMARY KEY, parent int REFERENCES tree ON DELETE CASCADE ON UPDATE CASCADE)")
    db.run("INSERT INTO tree VALUES (1, NULL), (2, 1), (3, 2), (4, 1), (5, NULL)")
    db.create("counts", "SELECT p.id, count(*) AS n FROM tree p JOIN tree c ON c.parent = p.id GROUP BY p.id")
    db.create("copy", "SELECT id, parent FROM tree")
    db.run("UPDATE tree SET id = 10 WHERE id = 2")
    db.assert_differential("copy")
    db.assert_differential("counts")
    db.run("DELETE FROM tree WHERE id = 1")
    db.assert_differential("copy")
    db.assert_differential("counts")
    assert db.rows("SELECT id FROM copy") == [(5,)]


def test_trigger_that_returns_null_and_one_that_changes_rows(db: Any) -> None:
    db.create("copy", "SELECT id, v FROM t")
    db.run(
        "CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.id %% 2 = 0 THEN RETURN NULL; END IF; NEW.v := upper(NEW.v); RETURN NEW; END $$;".replace("%%", "%")
        + "CREATE TRIGGER odd BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION odd()"
    )
    db.run("INSERT INTO t VALUES (30, 0, 'a'), (31, 0, 'b'); UPDATE t SET v = 'c'")
    db.assert_differential("copy")


def test_failing_trigger_then_savepoint_and_retry(db: Any) -> None:
    db.create("copy", "SELECT id, v FROM t")
    db.run(
        "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.v = 'bad' THEN RAISE 'bad row'; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER fail AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION fail()"
    )
    connection = db.connect(autocommit=False)
    connection.execute("SAVEPOINT s")
    with pytest.raises(psycopg.errors.RaiseException):
        connection.execute("INSERT INTO t VALUES (40, 0, 'good'), (41, 0, 'bad')")
    connection.execute("ROLLBACK TO SAVEPOINT s")
    connection.execute("INSERT INTO t VALUES (40, 0, 'good')")
    connection.commit()
    db.assert_differential("copy")
    with pytest.raises(psycopg.errors.WrongObjectType):
        db.run("DELETE FROM copy")


def test_failed_refresh_in_a_savepoint_leaves_the_guard_up(db: Any) -> None:
    db.run("CREATE FUNCTION f(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 10 / ($1 - 99)'")
    db.create("copy", "SELECT id, f(id) AS q FROM t")
    connection = db.connect(autocommit=False)
    connection.execute("INSERT INTO t VALUES (99, 0, 'divides by zero')")
    connection.execute("SAVEPOINT s")
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.execute("SELECT pgtrickle.refresh_stream_table('copy')")
    connection.execute("ROLLBACK TO s")
    with pytest.raises(psycopg.errors.WrongObjectType):
        connection.execute("DELETE FROM copy")
    connection.execute("ROLLBACK TO s")
    connection.execute("DELETE FROM t WHERE id = 99")
    connection.execute("SELECT pgtrickle.refresh_stream_table('copy')")
    connection.commit()
    db.assert_current("copy")


class TestTables:
    def test_exact_duplicates_in_a_keyless_table(self, db: Any) -> None:
        db.run(
            "CREATE TABLE bag (a int, b text); INSERT INTO bag VALUES (1, 'x'), (1, 'x'), (1, 'x'), (NULL,"
            " NULL), (NULL, NULL)"
        )
        db.create("copy", "SELECT a, b FROM bag")
        db.create("counts", "SELECT a, count(*) AS n FROM bag GROUP BY a")
        db.run("DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)")
        db.assert_differential("copy")
        db.assert_differential("counts")
        assert db.value("SELECT count(*) FROM copy WHERE a = 1") == 2
        db.run(
            "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a IS NULL); INSERT INTO bag VALUES (1, 'x')"
        )
        db.assert_differential("copy")
        db.assert_differential("counts")

    def test_dropped_column(self, db: Any) -> None:
        db.run("ALTER TABLE t ADD w int DEFAULT 1; ALTER TABLE t DROP COLUMN k")
        db.create("copy", "SELECT * FROM t")
        db.run("INSERT INTO t VALUES (50, 'x', 2)")
        db.assert_differential("copy")

    def test_column_added_after_creation(self, db: Any) -> None:
        db.create("copy", "SELECT id, v FROM t")
        db.run(
            "INSERT INTO t VALUES (60, 0, 'before'); ALTER TABLE t ADD extra text DEFAULT 'e';"
            " INSERT INTO t VALUES (61, 0, 'after', 'f')"
        )
        db.assert_refreshed("copy")

    def test_unused_column_dropped_between_capture_and_refresh(self, db: Any) -> None:
        db.create("copy", "SELECT id, v FROM t")
        db.run(
            "INSERT INTO t VALUES (62, 0, 'before'); ALTER TABLE t DROP COLUMN k; INSERT INTO t VALUES (63, 'after')"
        )
        db.assert_refreshed("copy")

    def test_used_column_dropped(self, db: Any) -> None:
        db.create("copy", "SELECT id, v FROM t")
        db.run("ALTER TABLE t DROP COLUMN v CASCADE")
        with pytest.raises(psycopg.errors.UndefinedColumn):
            db.refresh("copy")

    def test_used_column_changes_its_type(self, db: Any) -> None:
        db.create("sums", "SELECT sum(k) AS s FROM t")
        db.run(
            "INSERT INTO t VALUES (64, 1, 'x'); ALTER TABLE t ALTER k TYPE numeric(9, 2);"
            " INSERT INTO t VALUES (65, 1.5, 'y')"
        )
        try:
            db.assert_refreshed("sums")
        except psycopg.Error as error:  # if it cannot follow it must say so
            assert error.sqlstate in ("0A000", "42804", "55000", "42P16"), error

    def test_source_renamed(self, db: Any) -> None:
        db.create("copy", "SELECT id, v FROM t")
        db.run(
            "INSERT INTO t VALUES (66, 0, 'x'); ALTER TABLE t RENAME TO renamed;"
            " INSERT INTO renamed VALUES (67, 0, 'y')"
        )
        db.assert_refreshed("copy")
        assert db.value("SELECT count(*) FROM copy") == db.value("SELECT count(*) FROM renamed")

    def test_another_table_takes_the_sources_name_and_the_source_is_read_on(self, db: Any) -> None:
        db.create("sums", "SELECT k, count(*) AS n FROM t GROUP BY k", refresh_mode="DIFFERENTIAL")
        db.create("copy", "SELECT t.id, u.v FROM t JOIN t u USING (k)", refresh_mode="DIFFERENTIAL")
        db.run("CREATE TABLE next (LIKE t INCLUDING ALL); INSERT INTO next VALUES (1, 1, 'n'), (2, 1, 'm')")
        db.run("BEGIN; ALTER TABLE t RENAME TO former; ALTER TABLE next RENAME TO t; COMMIT")
        db.run("INSERT INTO former VALUES (66, 0, 'x'); INSERT INTO t VALUES (3, 2, 'l')")
        db.assert_refreshed("sums", "copy")
        assert db.value("SELECT count(*) FROM copy WHERE id = 66") > 0
        db.run("DELETE FROM t; INSERT INTO former VALUES (67, 2, 'k'); DELETE FROM former WHERE id = 1")
        db.assert_differential("sums")
        db.assert_differential("copy")

    def test_source_dropped(self, db: Any) -> None:
        db.create("copy", "SELECT id, v FROM t")
        db.run("DROP TABLE t CASCADE")
        if db.value("SELECT to_regclass('copy')") is not None:
            with pytest.raises(psycopg.Error) as caught:
                db.refresh("copy")
            assert caught.value.sqlstate in ("42P01", "55000")
            db.run("SELECT pgtrickle.drop_stream_table('copy')")

    def test_generated_and_identity_columns(self, db: Any) -> None:
        virtual = db.value("SELECT current_setting('server_version_num')::int") >= 180000
        db.run(
            "CREATE TABLE g (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, a int,"
            " twice int GENERATED ALWAYS AS (a * 2) STORED"
            + (", thrice int GENERATED ALWAYS AS (a * 3) VIRTUAL)" if virtual else ")")
        )
        db.run("INSERT INTO g (a) VALUES (1), (2)")
        db.create("copy", "SELECT * FROM g")
        db.create("sums", f"SELECT sum(twice) AS s{', max(thrice) AS m' if virtual else ''} FROM g")
        db.run("UPDATE g SET a = 10 WHERE id = 1; INSERT INTO g (a) VALUES (3); DELETE FROM g WHERE id = 2")
        db.assert_differential("copy")
        db.assert_differential("sums")

    def test_domains_arrays_and_odd_types(self, db: Any) -> None:
        db.run(
            "CREATE DOMAIN scores AS int[] CHECK (cardinality(VALUE) < 9); CREATE TYPE mood AS ENUM ('sad', 'glad');"
            "CREATE TYPE pair AS (x int, y text);"
            'CREATE TABLE odd (id int PRIMARY KEY, "select" scores NOT NULL, "a ""b""" mood, p pair, j jsonb,'
            " i interval,"
            " b bytea, r int4range, u uuid, ts timestamptz, bits bit(3), c char(5), big text);"
            "INSERT INTO odd VALUES (1, '{1,2}', 'sad', '(1,x)', '{\"a\": 1.0}', '1 day', '\\x00ff', '[1,5)',"
            " '00000000-0000-0000-0000-000000000001', 'infinity', '101', 'ab', repeat('long', 5000))"
        )
        db.create("copy", "SELECT * FROM odd")
        db.create("keyless", 'SELECT "select", "a ""b""", p, j, i, b, r, u, ts, bits, c, big FROM odd')
        db.run("UPDATE odd SET i = '24:00:00', j = '{\"a\": 1.00}', c = 'ab   '")
        db.assert_refreshed("copy", "keyless")
        db.run('INSERT INTO odd SELECT 2, "select", "a ""b""", p, j, i, b, r, u, ts, bits, c, big FROM odd')
        db.run('UPDATE odd SET "a ""b""" = \'glad\' WHERE id = 1; DELETE FROM odd WHERE id = 2')
        db.assert_refreshed("copy", "keyless")

    def test_json_and_other_columns_without_equality(self, db: Any) -> None:
        db.run(
            "CREATE TABLE docs (doc json, place point); INSERT INTO docs VALUES ('{\"a\":1}', '(1,2)'),"
            " ('{\"a\":1}', '(1,2)')"
        )
        db.create("copy", "SELECT doc, place FROM docs")
        db.run(
            "DELETE FROM docs WHERE ctid = (SELECT min(ctid) FROM docs); INSERT INTO docs VALUES ('{\"a\": 1}', NULL)"
        )
        db.refresh("copy")
        assert sorted(db.rows("SELECT doc::text, place::text FROM copy"), key=str) == sorted(
            db.rows("SELECT doc::text, place::text FROM docs"), key=str
        )

    def test_very_wide_table(self, db: Any) -> None:
        columns = ", ".join(f"c{n} int" for n in range(1500))
        db.run(f"CREATE TABLE wide (id int PRIMARY KEY, {columns})")
        db.run("INSERT INTO wide (id, c0, c1499) VALUES (1, 1, 1), (2, 2, 2)")
        db.create("copy", "SELECT id, c0 + c1499 AS s FROM wide")
        db.run("UPDATE wide SET c1499 = 5 WHERE id = 1; DELETE FROM wide WHERE id = 2")
        db.assert_differential("copy")

    def test_unlogged_source(self, db: Any) -> None:
        db.run("CREATE UNLOGGED TABLE u (id int PRIMARY KEY); INSERT INTO u VALUES (1)")
        db.create("copy", "SELECT id FROM u")
        db.run("INSERT INTO u VALUES (2)")
        db.assert_refreshed("copy")

    def test_temporary_source_is_refused(self, db: Any) -> None:
        before = db.traces()
        db.run("CREATE TEMP TABLE mine (id int)")
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="mine"):
            db.create("copy", "SELECT id FROM mine")
        db.run("DROP TABLE mine")
        assert db.traces() == before

    def test_system_catalog_as_a_source_is_full_or_refused(self, db: Any) -> None:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="pg_class"):
            db.create("copy", "SELECT relname FROM pg_class", refresh_mode="DIFFERENTIAL")

    def test_inheritance(self, db: Any) -> None:
        db.run("CREATE TABLE animal (name text); CREATE TABLE dog (barks bool) INHERITS (animal)")
        db.run("INSERT INTO animal VALUES ('cat'); INSERT INTO dog VALUES ('rex', true)")
        db.create("all_animals", "SELECT name FROM animal")
        db.create("only_animals", "SELECT name FROM ONLY animal")
        db.run("INSERT INTO dog VALUES ('ben', false); UPDATE animal SET name = name || '!'; DELETE FROM ONLY animal")
        db.assert_refreshed("all_animals", "only_animals")

    def test_view_as_a_source(self, db: Any) -> None:
        db.run(
            "CREATE VIEW inner_view AS SELECT id, k FROM t WHERE k > 0;"
            " CREATE VIEW outer_view (number, kind) AS SELECT * FROM inner_view"
        )
        db.create("copy", "SELECT kind, count(*) AS n FROM outer_view GROUP BY kind")
        db.run("UPDATE t SET k = 5 WHERE id < 4")
        db.assert_refreshed("copy")

    def test_replaced_view_is_followed_or_reported(self, db: Any) -> None:
        db.run("CREATE VIEW part AS SELECT id, k FROM t WHERE k > 0")
        db.create("copy", "SELECT id FROM part")
        db.run("CREATE OR REPLACE VIEW part AS SELECT id, k FROM t WHERE k > 1")
        try:
            db.refresh("copy")
        except psycopg.Error as error:
            assert error.sqlstate == "55000"
        else:
            assert db.rows("SELECT id FROM copy EXCEPT SELECT id FROM part") == []


class TestDisabledTriggers:
    def test_disabled_trigger_is_noticed(self, db: Any) -> None:
        db.create("copy", "SELECT id, v FROM t")
        db.run("ALTER TABLE t DISABLE TRIGGER ALL; DELETE FROM t WHERE id < 5; INSERT INTO t VALUES (80, 0, 'unseen')")
        db.assert_refreshed("copy")
        assert db.last("copy")[0] == "REINITIALIZE"

    def test_trigger_disabled_and_enabled_again_is_noticed(self, db: Any) -> None:
        db.create("copy", "SELECT id, v FROM t")
        db.run("ALTER TABLE t DISABLE TRIGGER ALL; DELETE FROM t WHERE id < 5; ALTER TABLE t ENABLE TRIGGER ALL")
        db.assert_refreshed("copy")
        db.run("INSERT INTO t VALUES (81, 0, 'seen')")
        db.assert_refreshed("copy")

    def test_dropped_trigger_is_noticed_and_put_back(self, db: Any) -> None:
        db.create("copy", "SELECT id, v FROM t")
        for (name,) in db.rows("SELECT tgname FROM pg_trigger WHERE tgrelid = 't'::regclass AND NOT tgisinternal"):
            db.run(f'DROP TRIGGER "{name}" ON t')
        db.run("DELETE FROM t WHERE id < 5")
        db.assert_refreshed("copy")
        db.run("DELETE FROM t WHERE id < 7")
        db.assert_refreshed("copy")
        assert db.last("copy")[0] == "DIFFERENTIAL"
