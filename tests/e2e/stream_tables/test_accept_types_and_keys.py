"""Columns of every kind of type, and sources whose key or column types change under a stream table."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.conftest import Database

TYPES = {
    "positive": ("1", "2"),  # a domain
    "scores": ("'{1}'", "'{2,3}'"),  # a domain over an array
    "labelled": ("row(1, 'x')", "null"),  # a domain over a composite type
    "pair": ("row(1, 'x')", "row(null, null)"),
    "pair[]": ("array[row(1, 'x')::pair]", "'{}'"),
    "point[]": ("array[point(0, 1)]", "'{}'"),
    "json[]": ("array['{}'::json]", "array['{ }'::json]"),
    "positive[]": ("array[1::positive]", "'{}'"),
    "xid": ("'7'", "'8'"),
    "aclitem": ("'postgres=r/postgres'", "'=r/postgres'"),
    "cidr": ("'10/8'", "'::/0'"),
    "tstzmultirange": ("'{[2020-01-01,2021-01-01)}'", "'{}'"),
    "bit(3)": ("B'101'", "B'000'"),
    "numeric": ("'NaN'", "1.00"),
    "interval": ("'30 days'", "'1 month'"),
}


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""], ids=["keyed", "keyless"])
def test_changes_of_columns_of_any_type(db: Any, key: str) -> None:
    db.run(
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0); CREATE DOMAIN scores AS int[];"
        "CREATE TYPE pair AS (x int, y text); CREATE DOMAIN labelled AS pair"
    )
    for number, (type_, (one, other)) in enumerate(TYPES.items()):
        table = f"t{number}"
        db.run(f"CREATE TABLE {table} (id int {key}, v {type_})")
        db.run(f"INSERT INTO {table} SELECT i, {one}::{type_} FROM generate_series(1, 4) AS i")
        db.create(f"{table}_all", f"SELECT id, v FROM {table}", refresh_mode="DIFFERENTIAL")
        db.create(f"{table}_bag", f"SELECT v FROM {table} UNION ALL SELECT v FROM {table} WHERE id > 2")
        db.run(f"UPDATE {table} SET v = {other}::{type_} WHERE id = 2; DELETE FROM {table} WHERE id = 3")
        db.run(f"INSERT INTO {table} VALUES (5, NULL), (6, {other}::{type_})")
        db.assert_refreshed(f"{table}_all", f"{table}_bag")
        db.run(f"UPDATE {table} SET v = NULL WHERE id = 1; DELETE FROM {table} WHERE v IS NULL AND id = 5")
        db.assert_refreshed(f"{table}_all", f"{table}_bag")
        assert db.last(f"{table}_bag")[0] == "DIFFERENTIAL"


@pytest.mark.parametrize("mode", ["AUTO", "DIFFERENTIAL"])
def test_a_primary_key_that_goes_tells_rows_apart_no_more(db: Any, mode: str) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    db.create("copy", "SELECT id, v FROM t", refresh_mode=mode)
    db.create("downstream", "SELECT id, v FROM copy", refresh_mode=mode)
    db.run("ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t VALUES (1, 'a'), (1, 'c')")
    db.assert_refreshed("copy", "downstream")
    db.run("INSERT INTO t VALUES (1, 'a'), (3, 'd'); DELETE FROM t WHERE v = 'b'")
    db.assert_differential("copy")
    db.assert_differential("downstream")


@pytest.mark.parametrize("key", ["PRIMARY KEY DEFERRABLE", "PRIMARY KEY DEFERRABLE INITIALLY DEFERRED"])
@pytest.mark.parametrize("mode", ["DIFFERENTIAL", "FULL"])
def test_a_key_that_need_not_hold_yet_tells_no_rows_apart(db: Any, key: str, mode: str) -> None:
    """Not even where a unique constraint that can be deferred could take its place."""
    db.run(
        f"CREATE TABLE t (id int {key}, v int NOT NULL UNIQUE DEFERRABLE); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)"
    )
    db.create("copy", "SELECT id, v FROM t WHERE v > 1", refresh_mode=mode)
    db.create("self_join", "SELECT a.id, b.v FROM t a JOIN t b USING (id)", refresh_mode=mode)
    both = ("copy", "self_join")
    with db.connect(autocommit=False) as connection:
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
        connection.execute("INSERT INTO t VALUES (2, 5), (3, 3), (4, 2)")
        for table in both:
            connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [table])
        found = connection.execute("SELECT id, v FROM copy ORDER BY 1, 2").fetchall()
        assert found == [(2, 2), (2, 5), (3, 3), (3, 3), (4, 2)]
        connection.execute("DELETE FROM t WHERE ctid IN (SELECT max(ctid) FROM t WHERE id = 3)")
        connection.execute("DELETE FROM t WHERE id = 2 AND v = 2")
        connection.execute("SELECT pgtrickle.refresh_stream_table('copy')")
        assert connection.execute("SELECT id, v FROM copy ORDER BY 1").fetchall() == [(2, 5), (3, 3), (4, 2)]
    db.assert_refreshed(*both)
    db.run("UPDATE t SET id = 9 - id, v = v + 1")
    db.assert_refreshed(*both)


NO_KEYS = {
    "index that partitions need not have": (
        "CREATE TABLE t (id int NOT NULL, v int) PARTITION BY LIST (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES IN (1); CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2);"
        "ALTER TABLE ONLY t ADD PRIMARY KEY (id)"
    ),
    "partition with a key that can be deferred": (
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY LIST (id);"
        "CREATE TABLE t1 (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int);"
        "ALTER TABLE t ATTACH PARTITION t1 FOR VALUES IN (1); CREATE TABLE t2 PARTITION OF t FOR VALUES IN (2)"
    ),
    "partition of a partition with such a key": (
        "CREATE TABLE t (id int PRIMARY KEY, v int) PARTITION BY LIST (id);"
        "CREATE TABLE t12 PARTITION OF t FOR VALUES IN (1, 2) PARTITION BY LIST (id);"
        "CREATE TABLE t1 (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, v int);"
        "ALTER TABLE t12 ATTACH PARTITION t1 FOR VALUES IN (1); CREATE TABLE t2 PARTITION OF t12 FOR VALUES IN (2)"
    ),
    "parent whose children have rows of the same key": (
        "CREATE TABLE t (id int PRIMARY KEY, v int); CREATE TABLE child (PRIMARY KEY (id)) INHERITS (t);"
        "CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO child VALUES (NEW.*); RETURN NULL; END $$;"
        "CREATE TRIGGER elsewhere BEFORE INSERT ON t FOR EACH ROW WHEN (NEW.v > 1) EXECUTE FUNCTION other()"
    ),
    "unique index over columns that can be NULL": "CREATE TABLE t (id int UNIQUE NULLS DISTINCT, w int UNIQUE, v int)",
}


@pytest.mark.parametrize("tables", NO_KEYS.values(), ids=[name.replace(" ", "_") for name in NO_KEYS])
def test_a_key_that_does_not_hold_for_all_rows_tells_none_apart(db: Any, tables: str) -> None:
    db.run(tables)
    db.create("copy", "SELECT id, v FROM t WHERE v > 0", refresh_mode="DIFFERENTIAL")
    db.create("self_join", "SELECT a.id, b.v FROM t a JOIN t b USING (id)", refresh_mode="DIFFERENTIAL")
    db.create("last", "SELECT id, v, row_number() OVER (PARTITION BY id ORDER BY v) FROM t")
    tables_read = ("copy", "self_join", "last")
    null = "NULL" if "UNIQUE NULLS" in tables else "1"
    with db.connect(autocommit=False) as connection:
        for statement in (
            f"INSERT INTO t (id, v) VALUES ({null}, 1), (2, 1)",
            f"INSERT INTO t (id, v) VALUES ({null}, 2)",
            f"INSERT INTO t (id, v) VALUES ({null}, 3)" if null == "NULL" else "UPDATE t SET v = 0 WHERE v = 2",
            "DELETE FROM t WHERE v = 1",
        ):
            connection.execute(statement)
            for table in tables_read:
                connection.execute("SELECT pgtrickle.refresh_stream_table(%s)", [table])
            found = connection.execute("SELECT id, v FROM copy ORDER BY 1, 2").fetchall()
            assert found == connection.execute("SELECT id, v FROM t WHERE v > 0 ORDER BY 1, 2").fetchall()
    db.assert_refreshed(*tables_read)


def test_a_primary_key_that_comes_and_goes_again_does_no_harm(db: Any) -> None:
    db.run("CREATE TABLE t (id int, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    db.create("copy", "SELECT id, v FROM t")
    db.run("ALTER TABLE t ADD PRIMARY KEY (id); INSERT INTO t VALUES (3, 'c')")
    db.assert_refreshed("copy")
    db.run("ALTER TABLE t DROP CONSTRAINT t_pkey; INSERT INTO t VALUES (3, 'c')")
    db.assert_refreshed("copy")


@pytest.mark.parametrize("mode", ["DIFFERENTIAL", "FULL"])
def test_a_column_that_gets_another_type_is_followed(db: Any, mode: str) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    db.create("copy", "SELECT id, v FROM t", refresh_mode=mode)
    db.run("ALTER TABLE t ALTER v TYPE varchar(20)")
    db.assert_refreshed("copy")
    assert db.value("SELECT pg_typeof(v)::text FROM copy") == "character varying"
    db.run("ALTER TABLE t ALTER v TYPE text; UPDATE t SET v = 'z'")
    db.assert_refreshed("copy")
