"""Engine requests in transaction blocks, strings of several statements and pipelines: one transaction each."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

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


class TestTransactionBlock:
    def test_created_table_is_there_at_once_and_gone_after_rollback(self, db: Any) -> None:
        before = db.traces()
        connection = db.connect(autocommit=False)
        connection.execute(CREATE)
        assert connection.execute("SELECT id FROM copy ORDER BY id").fetchall() == [(1,), (2,)]
        connection.rollback()
        assert db.traces() == before

    def test_commit_keeps_it_and_capture_works(self, db: Any) -> None:
        connection = db.connect(autocommit=False)
        connection.execute("INSERT INTO t VALUES (3, 'c')")
        connection.execute(CREATE)
        connection.execute("INSERT INTO t VALUES (4, 'd')")
        connection.execute("SELECT pgtrickle.refresh_stream_table('copy')")
        assert connection.execute("SELECT count(*) FROM copy").fetchone() == (4,)
        connection.execute("INSERT INTO t VALUES (5, 'e')")
        connection.commit()
        db.assert_refreshed("copy")
        assert db.value("SELECT count(*) FROM copy") == 5

    def test_savepoints(self, db: Any) -> None:
        connection = db.connect()
        for statement in [
            "BEGIN",
            "SAVEPOINT a",
            CREATE,
            "ROLLBACK TO a",
            "SELECT pgtrickle.create_stream_table('kept', 'SELECT id FROM t')",
            "SAVEPOINT b",
            "INSERT INTO t VALUES (3, 'c')",
            "SELECT pgtrickle.refresh_stream_table('kept')",
            "ROLLBACK TO b",
            "INSERT INTO t VALUES (4, 'd')",
            "SELECT pgtrickle.refresh_stream_table('kept')",
            "COMMIT",
        ]:
            connection.execute(statement)
        assert db.value(EXISTS) is False
        assert db.rows("SELECT id FROM kept ORDER BY id") == [(1,), (2,), (4,)]
        db.assert_refreshed("kept")

    def test_error_aborts_the_transaction_like_any_other(self, db: Any) -> None:
        connection = db.connect()
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (3, 'c')")
        connection.execute("SAVEPOINT s")
        with pytest.raises(psycopg.errors.UndefinedColumn):
            connection.execute("SELECT pgtrickle.create_stream_table('copy', 'SELECT nothing FROM t')")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
        connection.execute("ROLLBACK TO s")
        connection.execute(CREATE)
        connection.execute("COMMIT")
        assert db.value("SELECT count(*) FROM copy") == 3

    @pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
    def test_every_isolation_level(self, db: Any, isolation: str) -> None:
        db.create("first", "SELECT id, v FROM t")
        connection = db.connect()
        connection.execute(f"BEGIN ISOLATION LEVEL {isolation}")
        connection.execute("INSERT INTO t VALUES (3, 'c')")
        connection.execute(CREATE)
        connection.execute("DELETE FROM t WHERE id = 1")
        connection.execute("SELECT pgtrickle.refresh_stream_table('copy')")
        connection.execute("UPDATE t SET v = 'z'")
        connection.execute("COMMIT")
        db.assert_refreshed("copy")

    def test_snapshot_older_than_the_capture_is_refused(self, db: Any) -> None:
        """What was committed between this transaction's snapshot and its triggers would be seen by neither."""
        connection = db.connect()
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT 1 FROM t")
        db.run("INSERT INTO t VALUES (3, 'c')")
        with pytest.raises(psycopg.errors.ActiveSqlTransaction) as caught:
            connection.execute(CREATE)
        assert caught.value.diag.message_hint
        connection.execute("ROLLBACK")

    @pytest.mark.parametrize(
        ("request_", "words"),
        [
            (CREATE, 'cannot create stream table "copy"'),
            ("SELECT pgtrickle.drop_stream_table('kept')", 'cannot drop stream table "kept"'),
            ("SELECT pgtrickle.alter_stream_table('kept', schedule => '9s')", 'cannot alter stream table "kept"'),
            ("SELECT pgtrickle.refresh_stream_table('kept')", 'cannot refresh stream table "kept"'),
            ("ALTER TABLE t SET (RETAIN HISTORY FOR '1 h')", "cannot execute ALTER TABLE"),
            ("SELECT pgtrickle.retain_history('t', '1 h')", 'cannot retain the history of "t"'),
            ("CREATE SOURCE numbers FROM LOAD GENERATOR COUNTER", "cannot execute CREATE SOURCE"),
            ("COPY t FROM 's3://nowhere/t.csv'", "cannot execute COPY FROM"),
            ("DROP EXTENSION pg_trickle", "cannot execute DROP EXTENSION"),
        ],
    )
    @pytest.mark.one_in(2)
    def test_read_only_transaction_is_refused(self, db: Any, request_: str, words: str) -> None:
        db.create("kept", "SELECT id FROM t")
        db.run("INSERT INTO t VALUES (3, 'c')")
        connection = db.connect()
        connection.execute("BEGIN READ ONLY")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as inside:
            connection.execute(request_)
        connection.execute("ROLLBACK")
        connection.execute("SET default_transaction_read_only = on")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction) as outside:
            connection.execute(request_)
        for caught in (inside, outside):
            assert caught.value.diag.message_primary == f"{words} in a read-only transaction"
            assert caught.value.diag.message_hint and "READ WRITE" in caught.value.diag.message_hint
        connection.execute("SET default_transaction_read_only = off")
        connection.execute("SELECT pgtrickle.refresh_stream_table('kept')")
        db.assert_current("kept")

    def test_refresh_without_changes_in_a_read_only_transaction(self, db: Any) -> None:
        db.create("kept", "SELECT id FROM t")
        connection = db.connect()
        connection.execute("BEGIN READ ONLY")
        connection.execute("SELECT pgtrickle.refresh_stream_table('kept')")
        assert connection.execute("SELECT id, pgtrickle.refresh_stream_table('kept') FROM kept").fetchall() == [
            (1, ""),
            (2, ""),
        ]
        connection.execute("COMMIT")
        connection.execute("SET default_transaction_read_only = on")
        connection.execute("SELECT pgtrickle.refresh_stream_table('kept')")

    def test_refresh_of_own_changes_in_a_transaction_that_has_become_read_only(self, db: Any) -> None:
        db.create("kept", "SELECT id FROM t")
        connection = db.connect()
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (3, 'c')")
        connection.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("SELECT pgtrickle.refresh_stream_table('kept')")
        connection.execute("ROLLBACK")

    def test_drop_and_create_again_in_one_transaction(self, db: Any) -> None:
        db.run(CREATE)
        connection = db.connect(autocommit=False)
        connection.execute("SELECT pgtrickle.drop_stream_table('copy')")
        connection.execute("SELECT pgtrickle.create_stream_table('copy', 'SELECT v FROM t')")
        connection.commit()
        db.run("INSERT INTO t VALUES (3, 'c')")
        db.assert_refreshed("copy")

    def test_plpgsql_function_and_do_block_inside(self, db: Any) -> None:
        db.run(
            "CREATE FUNCTION make(name text) RETURNS void LANGUAGE sql AS"
            " $$ SELECT pgtrickle.create_stream_table(name, 'SELECT id, v FROM t') $$"
        )
        connection = db.connect(autocommit=False)
        connection.execute("SELECT make('copy')")
        assert connection.execute("SELECT count(*) FROM copy").fetchone() == (2,)
        connection.execute("DO $$ BEGIN PERFORM make('again'); END $$")
        assert connection.execute("SELECT count(*) FROM again").fetchone() == (2,)
        connection.commit()
        db.assert_current("copy", "again")


class TestMultiStatementString:
    def test_next_statement_reads_the_new_table(self, db: Any) -> None:
        cursor = db.connection.execute(f"{CREATE}; SELECT count(*) FROM copy; INSERT INTO t VALUES (3, 'c')")
        results = []
        while True:
            results.append((cursor.statusmessage, cursor.fetchall() if cursor.description else None))
            if not cursor.nextset():
                break
        assert [status for status, _ in results] == ["SELECT 1", "SELECT 1", "INSERT 0 1"]
        assert results[1][1] == [(2,)]
        db.assert_refreshed("copy")

    def test_is_one_transaction(self, db: Any) -> None:
        before = db.traces()
        with pytest.raises(psycopg.errors.DivisionByZero):
            db.run(f"INSERT INTO t VALUES (3, 'c'); {CREATE}; SELECT 1 / 0")
        assert db.traces() == before
        assert db.value("SELECT count(*) FROM t") == 2

    def test_failing_request_undoes_what_came_before(self, db: Any) -> None:
        with pytest.raises(psycopg.errors.UndefinedTable):
            db.run("INSERT INTO t VALUES (3, 'c'); SELECT pgtrickle.create_stream_table('c', 'SELECT 1 FROM nothing')")
        assert db.value("SELECT count(*) FROM t") == 2

    def test_explicit_transaction_inside(self, db: Any) -> None:
        """A BEGIN makes what came before it in the string part of its transaction, as in PostgreSQL."""
        db.run(f"BEGIN; {CREATE}; COMMIT; SELECT pgtrickle.create_stream_table('again', 'SELECT v FROM t'); BEGIN;"
               "SELECT pgtrickle.drop_stream_table('copy'); ROLLBACK")  # fmt: skip
        db.assert_current("copy")
        assert db.value("SELECT to_regclass('again')") is None

    def test_semicolons_in_quotes_and_comments(self, db: Any) -> None:
        db.run(
            "SELECT 'a;b', $q$;$q$ /* ; /* nested ; */ */ -- ;\n; "
            "SELECT pgtrickle.create_stream_table('copy', $$SELECT id, v || ';' AS v FROM t$$); SELECT E'\\';'"
        )
        db.assert_current("copy")

    def test_function_body_with_begin_atomic(self, db: Any) -> None:
        db.run(
            "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END;"
            " SELECT pgtrickle.create_stream_table('copy', 'SELECT id, f() AS two FROM t', refresh_mode => 'FULL')"
        )
        assert db.rows("SELECT id, two FROM copy ORDER BY id") == [(1, 2), (2, 2)]


class TestPipeline:
    def test_next_statement_reads_the_new_table(self, db: Any) -> None:
        with db.connection.pipeline():
            db.connection.execute("SELECT pgtrickle.create_stream_table(%s, %s)", ["copy", "SELECT id, v FROM t"])
            cursor = db.connection.execute("SELECT count(*) FROM copy WHERE id > %s", [0])
            last = db.connection.execute("SELECT pgtrickle.drop_stream_table(%s)", ["copy"])
        assert cursor.fetchone() == (2,)
        assert last.statusmessage == "SELECT 1"
        assert db.value(EXISTS) is False

    def test_everything_before_one_sync_is_one_transaction(self, db: Any) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero), db.connection.pipeline():
            db.connection.execute("SELECT pgtrickle.create_stream_table(%s, %s)", ["copy", "SELECT id, v FROM t"])
            db.connection.execute("SELECT 1 / %s", [0])
        assert db.value(EXISTS) is False

    def test_failing_request_fails_its_statement_and_the_rest_is_skipped(self, db: Any) -> None:
        with pytest.raises(psycopg.errors.UndefinedTable), db.connection.pipeline():
            db.connection.execute("INSERT INTO t VALUES (%s, 'c')", [3])
            db.connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", ["nothing"])
            db.connection.execute("INSERT INTO t VALUES (%s, 'd')", [4])
        assert db.value("SELECT count(*) FROM t") == 2

    def test_in_a_transaction_block(self, db: Any) -> None:
        connection = db.connect()
        with connection.pipeline(), connection.transaction():
            connection.execute("INSERT INTO t VALUES (%s, 'c')", [3])
            connection.execute("SELECT pgtrickle.create_stream_table(%s, %s)", ["copy", "SELECT id, v FROM t"])
            cursor = connection.execute("SELECT count(*) FROM copy")
        assert cursor.fetchone() == (3,)
        db.assert_current("copy")

    def test_function_that_hides_the_request(self, db: Any) -> None:
        db.run(
            "CREATE FUNCTION make(name text) RETURNS void LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pgtrickle.create_stream_table(name, 'SELECT id, v FROM t'); END $$"
        )
        with db.connection.pipeline():
            db.connection.execute("SELECT make(%s)", ["copy"])
            db.connection.execute("SELECT %s", [1])
        db.assert_current("copy")

    @pytest.mark.parametrize("syncing", [False, True])
    def test_function_that_hides_the_request_in_a_transaction_sent_up_to_its_commit(
        self, db: Any, syncing: bool
    ) -> None:
        db.run(
            "CREATE FUNCTION make(name text) RETURNS void LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pgtrickle.create_stream_table(name, 'SELECT id, v FROM t'); END $$"
        )
        with db.connection.pipeline() as pipeline:
            for statement in (
                "BEGIN",
                "INSERT INTO t VALUES (3, 'c')",
                "SELECT count(*) FROM t",
                "SELECT make('copy')",
                "COMMIT",
            ):
                last = db.connection.execute(statement)
                if syncing:
                    pipeline.sync()
        assert last.statusmessage == "COMMIT"
        assert db.value("SELECT count(*) FROM copy") == 3
        db.assert_current("copy")
        with pytest.raises(psycopg.errors.DuplicateTable), db.connection.pipeline() as pipeline:
            for statement in ("BEGIN", "INSERT INTO t VALUES (4, 'd')", "SELECT make('copy')", "COMMIT"):
                db.connection.execute(statement)
                if syncing:
                    pipeline.sync()
        db.connection.rollback()
        assert db.value("SELECT count(*) FROM t") == 3


def test_refresh_sees_the_changes_of_its_transaction_and_of_its_statement(db: Any) -> None:
    db.run(CREATE)
    with db.connection.transaction():
        db.connection.execute("INSERT INTO t VALUES (3, 'c')")
        db.connection.execute("SELECT pgtrickle.refresh_stream_table('copy')")
        db.assert_current("copy")
    db.run("WITH more AS (INSERT INTO t VALUES (4, 'd')) SELECT pgtrickle.refresh_stream_table('copy')")
    db.assert_current("copy")
    db.run(
        "CREATE FUNCTION grow() RETURNS text VOLATILE LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO t VALUES (5, 'e'); RETURN 'copy'; END $$"
    )
    db.run("SELECT pgtrickle.refresh_stream_table('copy'), grow()")
    db.assert_current("copy")
