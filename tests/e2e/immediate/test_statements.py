"""IMMEDIATE mode is exact after every statement, of whatever triggers, cascades, CTEs and functions it consists."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.e2e.conftest import Database

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, g int, v int);
CREATE TABLE u (id int PRIMARY KEY, g int, w int);
CREATE TABLE k (g int, v int);
INSERT INTO t VALUES (1, 1, 10), (2, 1, 20), (3, 2, 30), (4, 3, 40), (5, NULL, 50);
INSERT INTO u VALUES (1, 1, 100), (2, 2, 200), (3, 5, 500), (4, NULL, 0);
INSERT INTO k VALUES (1, 7), (1, 7), (1, 7), (2, 8), (NULL, NULL);
"""
QUERIES = {
    "inner_join": "SELECT t.id AS tid, u.id AS uid, t.v, u.w FROM t JOIN u ON t.g = u.g",
    "left_join": "SELECT t.id AS tid, u.id AS uid, t.v, u.w FROM t LEFT JOIN u ON t.g = u.g",
    "joined_sums": "SELECT u.g, count(*) AS n, sum(t.v) AS s, min(v) AS least FROM t JOIN u ON t.g = u.g GROUP BY u.g",
    "three": "SELECT t.id, u.w, k.v FROM t JOIN u ON t.g = u.g LEFT JOIN k ON k.g = t.g AND k.v > 7",
    "sums": "SELECT g, count(*) AS n, sum(v) AS total, max(v) AS most FROM t GROUP BY g",
    "kept": "SELECT id, g + v AS x FROM t WHERE v > 10",
    "all_rows": "SELECT count(*) AS n, sum(w) AS total FROM u",
    "bag": "SELECT v FROM k",
    "groups": "SELECT DISTINCT g FROM t",
    "places": "SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY v, id) AS place FROM t",
    "without": "SELECT id FROM t WHERE NOT EXISTS (SELECT FROM u WHERE u.g = t.g)",
    "pairs": "SELECT a.id AS aid, b.id AS bid FROM t a JOIN t b ON a.g = b.g",
    "over": "SELECT s.g, s.total, u.w FROM sums s JOIN u ON s.g = u.g",
    "over_and_t": "SELECT t.id, s.n FROM t JOIN sums s ON s.g = t.g",
}


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


class Watched:
    """A session whose every statement leaves all stream tables equal to their queries, in its eyes."""

    def __init__(self, db: Database, queries: dict[str, str]):
        self.db = db
        self.session = db.bypass()
        self.queries = queries
        self._columns: dict[str, str] = {}

    def check(self, when: str) -> None:
        counts = ", ".join(f"({self._differing(name, query)}) AS {name}" for name, query in self.queries.items())
        cursor = self.session.execute(f"SELECT {counts}")
        (row,) = cursor.fetchall()
        names = [column.name for column in cursor.description or ()]
        assert {name: n for name, n in zip(names, row, strict=True) if n} == {}, f"wrong after {when}"

    def _differing(self, name: str, query: str) -> str:
        stored = f"SELECT {self.columns(name)} FROM {name}"
        return f"SELECT count(*) FROM ((({query}) EXCEPT ALL {stored}) UNION ALL ({stored} EXCEPT ALL ({query}))) AS x"

    def columns(self, name: str) -> str:
        """The columns of the query, of which nothing here makes others."""
        if name not in self._columns:
            self._columns[name] = self.db.value(
                "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute"
                " WHERE attrelid = %s::regclass AND attnum > 0 AND attname NOT LIKE '\\_\\_pgt\\_%%'",
                name,
            )
        return self._columns[name]

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.session.execute(statement)
            self.check(statement)

    def fails(self, statement: str, error: type[psycopg.Error]) -> None:
        with pytest.raises(error):
            self.session.execute(statement)
        if self.session.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            self.check(f"failure of {statement}")


@pytest.fixture(scope="module")
def made(shared_db: Database) -> Watched:
    """Fourteen stream tables over three tables, and over each other."""
    shared_db.run(TABLES)
    for name, query in QUERIES.items():
        shared_db.create(name, query, refresh_mode="IMMEDIATE")
        assert shared_db.state(name)["refresh_mode"] == "IMMEDIATE", name
    return Watched(shared_db, QUERIES)


@pytest.fixture
def watched(made: Watched) -> Watched:
    """The same, with the rows that were there at first, and no triggers of the user's."""
    made.session.close()
    made.session = made.db.bypass()
    for (statement,) in made.session.execute(
        "SELECT format('DROP TRIGGER %I ON %s', tgname, tgrelid::regclass) FROM pg_trigger"
        " WHERE NOT tgisinternal AND tgname LIKE 'users\\_%' AND tgparentid = 0"
    ).fetchall():
        made.session.execute(statement)
    made.session.execute("DELETE FROM t; DELETE FROM u; DELETE FROM k;" + TABLES[TABLES.index("INSERT") :])
    made.check("all was put back")
    return made


def test_rollback_to_savepoint(watched: Watched) -> None:
    watched.run(
        "BEGIN",
        "INSERT INTO t VALUES (10, 1, 1)",
        "SAVEPOINT a",
        "DELETE FROM t WHERE g = 1",
        "UPDATE u SET g = 2",
        "SAVEPOINT b",
        "TRUNCATE k",
        "INSERT INTO k VALUES (9, 9)",
        "ROLLBACK TO b",
        "INSERT INTO k VALUES (8, 8)",
        "ROLLBACK TO a",
        "UPDATE t SET g = g + 1",
        "RELEASE a",
        "COMMIT",
        "BEGIN",
        "DELETE FROM t",
        "ROLLBACK",
    )


def test_statement_that_fails_and_is_tried_again(watched: Watched) -> None:
    """A trigger of the user's fails after the rows were changed: what counts the statements is as before."""
    watched.session.execute(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF current_setting('users.refuse', true) = 'on' THEN RAISE EXCEPTION 'refused'; END IF; RETURN NULL; END $$"
    )
    for timing in ("BEFORE INSERT OR UPDATE ON t FOR EACH STATEMENT", "AFTER INSERT OR UPDATE ON t FOR EACH ROW"):
        for name in ("users_a", "users_z"):
            watched.session.execute(f"CREATE OR REPLACE TRIGGER {name} {timing} EXECUTE FUNCTION refuse()")
            watched.run("BEGIN", "INSERT INTO t VALUES (10, 1, 1)", "SET LOCAL users.refuse = 'on'", "SAVEPOINT s")
            for statement in ("INSERT INTO t VALUES (11, 1, 1)", "UPDATE t SET v = 0"):
                watched.fails(statement, psycopg.errors.RaiseException)
                watched.run("ROLLBACK TO s")
            watched.run("SET LOCAL users.refuse = 'off'", "INSERT INTO t VALUES (11, 1, 1)", "UPDATE t SET g = 2")
            watched.run("COMMIT", "DELETE FROM t WHERE id > 9", "UPDATE u SET g = 1 WHERE id = 2")
            watched.session.execute(f"DROP TRIGGER {name} ON t")


def test_exceptions_that_are_caught(watched: Watched) -> None:
    watched.run(
        "DO $$ BEGIN FOR i IN 1..12 LOOP BEGIN INSERT INTO t VALUES (i, i % 3, i); UPDATE u SET g = i % 4 WHERE id = 1;"
        " IF i % 4 = 0 THEN RAISE EXCEPTION 'no'; END IF; EXCEPTION WHEN OTHERS THEN UPDATE k SET v = v + 1; END;"
        " END LOOP; END $$",
        "DO $$ BEGIN BEGIN DELETE FROM t; TRUNCATE u; PERFORM 1/0; EXCEPTION WHEN division_by_zero THEN"
        " INSERT INTO u VALUES (20, 1, 1); END; INSERT INTO t VALUES (20, 1, 1); END $$",
    )


def test_constraint_triggers_that_change_sources_at_the_commit(watched: Watched) -> None:
    watched.session.execute(
        "CREATE OR REPLACE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO u VALUES (1000 + new.id, new.g, 1) ON CONFLICT (id) DO UPDATE SET w = u.w + 1;"
        " UPDATE t SET v = v + 1 WHERE id = new.id AND v < 3; RETURN NULL; END $$;"
        "CREATE CONSTRAINT TRIGGER users_late AFTER INSERT OR UPDATE ON t DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION late()"
    )
    watched.run(
        "INSERT INTO t VALUES (10, 1, 1), (11, 2, 1)",
        "BEGIN",
        "INSERT INTO t VALUES (12, 1, 1)",
        "UPDATE t SET g = 2 WHERE id = 1",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "INSERT INTO t VALUES (13, 1, 1)",
        "WITH x AS (UPDATE u SET w = 0) INSERT INTO t VALUES (14, 1, 1)",
        "SET CONSTRAINTS ALL DEFERRED",
        "WITH x AS (UPDATE u SET w = 1) INSERT INTO t VALUES (15, 1, 1)",
        "SET CONSTRAINTS ALL IMMEDIATE",
        "COMMIT",
    )
    assert watched.db.value("SELECT count(*) FROM u WHERE id > 1000") == 7


def test_set_constraints_within_a_statement(watched: Watched) -> None:
    watched.session.execute(
        "CREATE OR REPLACE FUNCTION meanwhile() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE u SET w = w + new.v; SET CONSTRAINTS ALL IMMEDIATE; DELETE FROM k WHERE g = 2; RETURN new; END $$;"
        "CREATE TRIGGER users_meanwhile BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION meanwhile()"
    )
    watched.run("INSERT INTO t VALUES (10, 1, 1), (11, 2, 1)", "BEGIN", "INSERT INTO t VALUES (12, 1, 1)", "COMMIT")


def test_on_conflict(watched: Watched) -> None:
    conflict = "INSERT INTO t VALUES (1, 2, 5), (10, 1, 5), (2, 3, 5) ON CONFLICT (id)"
    watched.run(
        f"{conflict} DO NOTHING",
        f"{conflict} DO UPDATE SET g = excluded.g, v = excluded.v",
        f"{conflict} DO UPDATE SET v = 99 WHERE t.g = 3",
        "WITH x AS (INSERT INTO u VALUES (1, 3, 1) ON CONFLICT (id) DO UPDATE SET g = 3)"
        f" {conflict} DO UPDATE SET v = 7",
    )


def test_merge(watched: Watched) -> None:
    source = "(VALUES (1, 2), (2, 9), (3, 1), (77, 1)) AS s(id, g) ON s.id = t.id"
    watched.run(
        f"MERGE INTO t USING {source} WHEN MATCHED AND t.id = 3 THEN DELETE WHEN MATCHED THEN UPDATE SET g = s.g"
        " WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.g, 1)",
        f"MERGE INTO t USING {source} WHEN MATCHED THEN DO NOTHING WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.g, 1)",
        f"MERGE INTO t USING {source} WHEN MATCHED THEN DELETE",
        "MERGE INTO u USING t ON u.id = t.id WHEN MATCHED THEN UPDATE SET g = t.g"
        " WHEN NOT MATCHED THEN INSERT VALUES (t.id, t.g, 0)",
    )


def test_copy(watched: Watched) -> None:
    for rows in ("10\t1\t1\n11\t2\t2\n", "", "\n".join(f"{n}\t{n % 500}\t{n}" for n in range(100, 2500)) + "\n"):
        with watched.session.cursor() as cursor, cursor.copy("COPY t FROM STDIN") as copy:
            copy.write(rows)
        watched.check("COPY")
    watched.run("UPDATE t SET g = g + 1 WHERE id > 99", "DELETE FROM t WHERE id > 99")


def test_several_sources_in_one_statement(watched: Watched) -> None:
    watched.run(
        "WITH a AS (INSERT INTO t VALUES (10, 5, 1) RETURNING id), b AS (UPDATE u SET g = 1 WHERE id = 3),"
        " c AS (DELETE FROM k WHERE g = 1) INSERT INTO u SELECT id, 5, 1 FROM a",
        "WITH a AS (DELETE FROM t WHERE g = 1 RETURNING *) INSERT INTO k SELECT g, v FROM a",
        "WITH a AS (DELETE FROM t WHERE id = 3 RETURNING *), b AS (DELETE FROM u WHERE g = 2 RETURNING *)"
        " SELECT count(*) FROM a, b",
        "WITH a AS (UPDATE t SET v = v + 1 WHERE id = 4), b AS (UPDATE t SET v = 0 WHERE id = 5) SELECT",
        "WITH a AS (DELETE FROM t), b AS (DELETE FROM u), c AS (DELETE FROM k) SELECT",
        "WITH a AS (INSERT INTO t VALUES (1, 1, 1)), b AS (INSERT INTO u VALUES (1, 1, 1)) INSERT INTO k VALUES (1, 9)",
    )


# A user's trigger function for each moment: what it does may change the table itself, or another source.
MOMENTS = [
    f"{timing} {event} ON {table} {each}"
    for table in ("t", "u")
    for timing, event in (("BEFORE", "INSERT"), ("AFTER", "INSERT OR UPDATE"), ("AFTER", "DELETE"))
    for each in ("FOR EACH ROW", "FOR EACH STATEMENT")
]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.one_in(3)
def test_triggers_that_change_sources(watched: Watched, moment: str) -> None:
    """Also the row that the statement has just inserted. They come before and after ours by their names."""
    for name in ("users_a", "users_z"):
        watched.session.execute(
            "CREATE OR REPLACE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF pg_trigger_depth() = 1 THEN"
            "  UPDATE t SET v = v + 1, g = CASE WHEN v % 3 = 0 THEN 2 ELSE g END WHERE id >= 3;"
            "  INSERT INTO u VALUES ((SELECT coalesce(max(id), 0) + 1000 FROM u), 1, 1);"
            "  DELETE FROM k WHERE ctid = (SELECT min(ctid) FROM k); UPDATE u SET g = 2 WHERE g = 5;"
            " END IF; RETURN coalesce(new, old); END $$;"
            f"CREATE TRIGGER {name} {moment} EXECUTE FUNCTION change()"
        )
        watched.run(
            "INSERT INTO t VALUES (10, 1, 1), (11, 2, 2)",
            "INSERT INTO u VALUES (100, 5, 1), (101, 1, 2)",
            "UPDATE t SET g = 1 WHERE id IN (3, 10)",
            "UPDATE u SET g = g WHERE id = 100",
            "UPDATE t SET v = v WHERE false",
            "WITH x AS (DELETE FROM u WHERE id > 99) DELETE FROM t WHERE id > 9",
        )
        watched.session.execute(f"DROP TRIGGER {name} ON {moment.split(' ON ')[1][0]}")


def test_triggers_that_cancel_and_alter_rows(watched: Watched) -> None:
    watched.session.execute(
        "CREATE OR REPLACE FUNCTION guard() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF tg_op = 'DELETE' THEN RETURN CASE WHEN old.id = 1 THEN NULL ELSE old END; END IF;"
        " IF new.id = 2 THEN RETURN NULL; END IF; new.g := 3; RETURN new; END $$;"
        "CREATE TRIGGER users_guard BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION guard()"
    )
    watched.run("INSERT INTO t VALUES (10, 1, 1)", "UPDATE t SET v = v + 1", "DELETE FROM t WHERE id < 4")
    assert watched.db.rows("SELECT id FROM t ORDER BY id") == [(1,), (4,), (5,), (10,)]


def test_functions_that_change_sources_within_a_statement(watched: Watched) -> None:
    watched.session.execute(
        "CREATE OR REPLACE FUNCTION more(n int) RETURNS int LANGUAGE plpgsql AS $$ BEGIN"
        " INSERT INTO u VALUES (200 + n, n % 3, n) ON CONFLICT (id) DO UPDATE SET w = u.w + 1;"
        " UPDATE t SET v = v + 1 WHERE id = 4; DELETE FROM k WHERE g = n; RETURN n % 4; END $$"
    )
    watched.run(
        "INSERT INTO t SELECT 10 + n, more(n), n FROM generate_series(1, 4) AS n",
        "UPDATE t SET g = more(id) WHERE id < 4",
        "DELETE FROM t WHERE more(id) = 2 AND id > 5",
        "SELECT more(1), more(2)",
        "INSERT INTO k VALUES (1, 1)",
    )


def test_truncate(watched: Watched) -> None:
    watched.run(
        "TRUNCATE t",
        "INSERT INTO t VALUES (1, 1, 11), (2, 2, 12)",
        "BEGIN",
        "INSERT INTO t VALUES (3, 1, 13)",
        "DELETE FROM u WHERE id = 1",
        "TRUNCATE u, k",
        "INSERT INTO u VALUES (1, 1, 1)",
        "SAVEPOINT s",
        "TRUNCATE t, u, k RESTART IDENTITY CASCADE",
        "ROLLBACK TO s",
        "INSERT INTO k VALUES (1, 9)",
        "TRUNCATE t",
        "COMMIT",
    )
    for level in ("REPEATABLE READ", "SERIALIZABLE"):
        watched.run(
            f"BEGIN ISOLATION LEVEL {level}",
            "INSERT INTO t VALUES (3, 1, 13), (4, 1, 14)",
            "INSERT INTO u VALUES (10, 1, 13)",
            "TRUNCATE t",
            "INSERT INTO t VALUES (5, 1, 15)",
            "TRUNCATE u",
            "INSERT INTO u VALUES (11, 1, 13)",
            "COMMIT",
        )


def test_truncate_within_a_statement(watched: Watched) -> None:
    watched.session.execute(
        "CREATE OR REPLACE FUNCTION empty() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " TRUNCATE u; INSERT INTO u VALUES (1, 1, 1); RETURN new; END $$;"
        "CREATE TRIGGER users_empty BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION empty()"
    )
    watched.run("INSERT INTO t VALUES (10, 1, 1), (11, 1, 2)", "INSERT INTO u VALUES (2, 2, 2)")


def test_cursors_and_loops(watched: Watched) -> None:
    watched.run(
        "DO $$ DECLARE r record; BEGIN FOR r IN SELECT * FROM inner_join LOOP"
        " UPDATE t SET v = v + 1 WHERE id = r.tid; DELETE FROM u WHERE id = r.uid; END LOOP; END $$",
        "BEGIN",
        "DECLARE c CURSOR FOR SELECT id FROM t FOR UPDATE",
    )
    watched.session.execute("FETCH 1 FROM c")
    watched.run("UPDATE t SET g = 3 WHERE CURRENT OF c")
    watched.session.execute("FETCH 1 FROM c")
    watched.run("DELETE FROM t WHERE CURRENT OF c", "COMMIT")
    watched.run(
        "DO $$ DECLARE r record; BEGIN FOR r IN INSERT INTO t VALUES (51, 1, 1), (52, 2, 2) RETURNING id"
        " LOOP UPDATE u SET g = r.id - 50 WHERE id = 2; END LOOP; END $$"
    )


def test_procedures_that_commit(watched: Watched) -> None:
    watched.session.execute(
        "CREATE OR REPLACE PROCEDURE steps() LANGUAGE plpgsql AS $$ BEGIN FOR i IN 10..14 LOOP"
        " INSERT INTO t VALUES (i, i % 3, i); UPDATE u SET g = i % 3 WHERE id = 1;"
        " IF i % 2 = 0 THEN COMMIT; ELSE ROLLBACK; END IF; END LOOP; END $$"
    )
    watched.run("CALL steps()", "INSERT INTO t VALUES (30, 1, 1)")
    assert watched.db.value("SELECT count(*) FROM t WHERE id BETWEEN 10 AND 14") == 3


def test_prepared_statements_of_many_rows_and_few(watched: Watched) -> None:
    """Plans are kept by the session: they must be right for whatever comes later."""
    watched.session.execute(
        "PREPARE p AS INSERT INTO t SELECT n, n % $2, n FROM generate_series($1::int, $1 + $3::int - 1) AS n"
    )
    for first, groups, rows in (
        (100, 3, 1),
        (200, 40, 99),
        (400, 70, 101),
        (1000, 500, 2500),
        (5000, 5, 1),
        (6000, 1, 0),
    ):
        watched.run(f"EXECUTE p ({first}, {groups}, {rows})")
    watched.run("UPDATE t SET v = v + 1 WHERE id BETWEEN 1000 AND 3000", "UPDATE t SET g = 2 WHERE id = 5000")
    watched.run("DELETE FROM t WHERE id BETWEEN 1000 AND 3400", "DELETE FROM t WHERE id = 5000")


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_two_phase_commit(db: Database, end: str) -> None:
    """What a prepared transaction has changed stays locked, until any session ends it; other groups are not."""
    queries = {name: QUERIES[name] for name in ("inner_join", "sums", "kept")}
    db.run(TABLES)
    for name, query in queries.items():
        db.create(name, query, refresh_mode="IMMEDIATE")
    watched, other = Watched(db, queries), db.bypass()
    watched.run(
        "BEGIN",
        "INSERT INTO t VALUES (10, 1, 11)",
        "WITH x AS (UPDATE u SET g = 1) DELETE FROM t WHERE id = 2",
        "PREPARE TRANSACTION 'p'",
    )
    try:
        other.execute("SET lock_timeout = '200ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("INSERT INTO t VALUES (11, 3, 12)")
        watched.check("another one has failed")
    finally:
        watched.session.execute(f"{end} PREPARED 'p'".encode())
    watched.check(end)
    watched.run("INSERT INTO t VALUES (11, 1, 12)", "UPDATE u SET g = 2", "DELETE FROM t WHERE g = 1")


@pytest.mark.parametrize("query", ["inner_join", "sums", "kept"])
@pytest.mark.one_in(3)
def test_stream_table_made_while_a_source_is_being_written(db: Database, query: str) -> None:
    """It waits for that transaction, and has its rows."""
    db.run(TABLES)
    writer = db.bypass(autocommit=False)
    writer.execute("INSERT INTO t VALUES (10, 1, 50); UPDATE t SET g = 1 WHERE id = 3")
    with ThreadPoolExecutor() as threads:
        made = threads.submit(db.create, "st", QUERIES[query], refresh_mode="IMMEDIATE")
        with pytest.raises(TimeoutError):
            made.result(3)
        writer.execute("INSERT INTO u VALUES (10, 1, 50)")
        writer.commit()
        made.result(60)
    assert db.state("st")["refresh_mode"] == "IMMEDIATE"
    db.assert_current("st")
    writer.execute("DELETE FROM t WHERE id = 10")
    writer.commit()
    db.assert_current("st")


def test_foreign_keys(db: Database) -> None:
    queries = {
        "members": "SELECT p.id AS pid, c.id AS cid, p.name, c.n FROM parent p LEFT JOIN child c ON c.pid = p.id",
        "numbers": "SELECT pid, count(*) AS n, sum(n) AS total FROM child GROUP BY pid",
        "tree": "SELECT a.id AS aid, b.id AS bid FROM node a JOIN node b ON b.above = a.id",
        "leaves": "SELECT above, count(*) AS n FROM node GROUP BY above",
        "kept": "SELECT id, above FROM node WHERE above IS NOT NULL",
        "defaults": "SELECT o.id, p.name FROM other o JOIN parent p ON p.id = o.pid",
    }
    db.run(
        "CREATE TABLE parent (id int PRIMARY KEY, name text);"
        "CREATE TABLE child (id int PRIMARY KEY, n int, pid int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE);"
        "CREATE TABLE other (id int PRIMARY KEY, pid int DEFAULT 1 REFERENCES parent ON DELETE SET DEFAULT"
        " ON UPDATE SET NULL DEFERRABLE INITIALLY DEFERRED);"
        "CREATE TABLE node (id int PRIMARY KEY, above int REFERENCES node ON DELETE CASCADE ON UPDATE CASCADE);"
        "CREATE TABLE twig (id int PRIMARY KEY, node int REFERENCES node ON DELETE SET NULL ON UPDATE CASCADE);"
        "INSERT INTO parent SELECT n, 'p' || n FROM generate_series(1, 6) n;"
        "INSERT INTO child SELECT n, n, 1 + n % 6 FROM generate_series(1, 30) n;"
        "INSERT INTO other SELECT n, 1 + n % 6 FROM generate_series(1, 12) n;"
        "INSERT INTO node SELECT n, nullif(n / 2, 0) FROM generate_series(1, 31) n;"
        "INSERT INTO twig SELECT n, n FROM generate_series(1, 31) n"
    )
    queries["twigs"] = "SELECT n.id, w.id AS wid, n.above FROM twig w LEFT JOIN node n ON n.id = w.node"
    for name, query in queries.items():
        db.create(name, query, refresh_mode="IMMEDIATE")
    watched = Watched(db, queries)
    watched.run(
        "DELETE FROM parent WHERE id = 2",
        "UPDATE parent SET id = 20, name = 'other' WHERE id = 3",
        "UPDATE parent SET id = id + 100 WHERE id > 4",
        "DELETE FROM node WHERE id = 4",
        "UPDATE node SET id = 50 WHERE id = 2",
        "UPDATE node SET id = id + 1000 WHERE id IN (5, 6, 12)",
        "BEGIN",
        "DELETE FROM parent WHERE id IN (20, 4)",
        "INSERT INTO child VALUES (100, 1, 1)",
        "SAVEPOINT s",
        "DELETE FROM node WHERE id = 3",
        "ROLLBACK TO s",
        "COMMIT",
        "WITH a AS (DELETE FROM node WHERE id = 3) DELETE FROM parent WHERE id > 100",
        "DELETE FROM node WHERE id = 1",
        "TRUNCATE parent CASCADE",
        "TRUNCATE node CASCADE",
        "INSERT INTO node VALUES (1, 1), (2, 1)",
        "DELETE FROM node WHERE id = 2",
        "DELETE FROM node",
    )


def test_cascades_with_triggers_in_between(db: Database) -> None:
    queries = {
        "tree": "SELECT a.id AS aid, b.id AS bid, b.n FROM node a LEFT JOIN node b ON b.above = a.id",
        "sums": "SELECT above, sum(n) AS total, count(*) AS members FROM node GROUP BY above",
    }
    db.run(
        "CREATE TABLE node (id int PRIMARY KEY, above int REFERENCES node ON DELETE CASCADE, n int DEFAULT 0);"
        "INSERT INTO node SELECT n, nullif(n / 2, 0) FROM generate_series(1, 31) n;"
        "CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " UPDATE node SET n = n + 1 WHERE id = old.above; RETURN NULL; END $$;"
        "CREATE TRIGGER a_touch AFTER DELETE ON node FOR EACH ROW EXECUTE FUNCTION touch()"
    )
    for name, query in queries.items():
        db.create(name, query, refresh_mode="IMMEDIATE")
    watched = Watched(db, queries)
    watched.run("DELETE FROM node WHERE id IN (9, 5)", "DELETE FROM node WHERE id = 3", "DELETE FROM node WHERE id = 1")


def test_columns_that_no_query_reads(db: Database) -> None:
    """Nothing is written, and nobody waits."""
    db.run("CREATE TABLE t (id int PRIMARY KEY, g int, v int, note text); INSERT INTO t VALUES (1, 1, 1), (2, 2, 2)")
    queries = {
        "sums": "SELECT g, sum(v) AS total FROM t GROUP BY g",
        "pairs": "SELECT a.id AS aid, b.id AS bid, a.v FROM t a JOIN t b ON a.g = b.g",
    }
    for name, query in queries.items():
        db.create(name, query, refresh_mode="IMMEDIATE")
    watched = Watched(db, queries)
    with db.bypass(autocommit=False) as other:
        other.execute("UPDATE t SET v = 5 WHERE id = 2")
        before = db.rows("SELECT ctid, xmin FROM pairs")
        watched.session.execute("SET lock_timeout = '60s'")
        watched.run("UPDATE t SET note = 'x' WHERE id = 1")
        assert db.rows("SELECT ctid, xmin FROM pairs") == before
    watched.check("the other's commit")
