"""What IMMEDIATE mode is refused for, and what it is not."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture
def t(db: Database) -> Database:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t SELECT i, i % 3 FROM generate_series(1, 10) i")
    return db


REFUSED = {
    "materialized view": ("CREATE MATERIALIZED VIEW m AS SELECT * FROM t", "SELECT v FROM m", "materialized view"),
    "unlogged": ("CREATE UNLOGGED TABLE m (v int)", "SELECT v FROM m", "unlogged"),
    "unlogged partition": (
        "CREATE TABLE m (v int) PARTITION BY LIST (v); CREATE UNLOGGED TABLE m1 PARTITION OF m FOR VALUES IN (1)",
        "SELECT v FROM m",
        "unlogged",
    ),
    "temporary": ("CREATE TEMPORARY TABLE m (v int)", "SELECT v FROM m", "temporary"),
    "system catalog": ("SELECT", "SELECT relname FROM pg_class", "system catalog"),
    "partition": (
        "CREATE TABLE p (v int) PARTITION BY LIST (v); CREATE TABLE m PARTITION OF p FOR VALUES IN (1)",
        "SELECT v FROM m",
        "is a partition or child of",
    ),
    "foreign table": (
        "CREATE EXTENSION IF NOT EXISTS postgres_fdw; CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw;"
        "CREATE FOREIGN TABLE m (v int) SERVER far",
        "SELECT v FROM m",
        'foreign table "m" is not supported in IMMEDIATE mode',
    ),
    "foreign partition": (
        "CREATE EXTENSION IF NOT EXISTS postgres_fdw; CREATE SERVER far FOREIGN DATA WRAPPER postgres_fdw;"
        "CREATE TABLE m (v int) PARTITION BY LIST (v);"
        "CREATE FOREIGN TABLE m1 PARTITION OF m FOR VALUES IN (1) SERVER far",
        "SELECT v FROM m",
        "foreign partition",
    ),
    "volatile function": ("SELECT", "SELECT v, random() AS r FROM t", "volatile"),
    "volatile function of a user": (
        "CREATE FUNCTION f(int) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT $1'",
        "SELECT f(v) AS v FROM t",
        "volatile",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_maintained_is_refused(t: Database, what: str) -> None:
    prepared, query, reason = REFUSED[what]
    for statement in prepared.split(";"):
        t.run(statement)
    before = t.traces()
    with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
        t.create("s", query, refresh_mode="IMMEDIATE")
    assert reason in str(refused.value)
    assert refused.value.diag.message_hint or what == "temporary"
    assert t.traces() == before


def test_alteration_to_immediate_is_refused_likewise(t: Database) -> None:
    t.run("CREATE UNLOGGED TABLE m (v int)")
    t.create("s", "SELECT v FROM m")
    t.create("f", "SELECT v, random() AS r FROM t")
    for name in ("s", "f"):
        before = t.state(name)
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            t.run("SELECT pgtrickle.alter_stream_table(%s, refresh_mode => 'IMMEDIATE')", name)
        after = t.state(name)
        assert {**before, "updated_at": 0} == {**after, "updated_at": 0}
    t.run("INSERT INTO m VALUES (1)")
    t.assert_refreshed("s")


def test_stable_functions_are_warned_of(t: Database) -> None:
    told: list[str] = []
    t.connection.add_notice_handler(lambda d: told.append(f"{d.severity} {d.message_primary}"))
    t.create("s", "SELECT id, v, version() AS x FROM t", refresh_mode="IMMEDIATE")
    assert [text for text in told if text.startswith("WARNING") and "stable" in text.lower()]
    t.run("INSERT INTO t VALUES (11, 1)")
    t.assert_current("s")


def test_recursion_is_warned_of(t: Database) -> None:
    t.create(
        "s",
        "WITH RECURSIVE r AS (SELECT id, v FROM t WHERE v = 0"
        " UNION ALL SELECT t.id, t.v FROM t JOIN r ON t.id = r.id + 1)"
        " SELECT count(*) AS n FROM r",
        refresh_mode="IMMEDIATE",
    )
    t.run("DELETE FROM t WHERE id = 5")
    t.assert_current("s")
    t.run("INSERT INTO t VALUES (5, 5)")
    t.assert_current("s")


@pytest.mark.parametrize(
    "query",
    [
        "WITH RECURSIVE r AS (SELECT id FROM t UNION SELECT t.id FROM t JOIN r ON t.id = r.id + 1)"
        " SELECT x FROM (VALUES (0), (0)) AS v (x)",
        "WITH r AS (SELECT id FROM t) SELECT 1 AS x",
        "SELECT 1 AS x WHERE false AND EXISTS (SELECT FROM t)",
    ],
)
def test_table_of_which_nothing_is_needed(t: Database, query: str) -> None:
    t.create("s", query, refresh_mode="IMMEDIATE")
    t.create("over", "SELECT count(*) AS n FROM s", refresh_mode="IMMEDIATE")
    for statement in ("INSERT INTO t VALUES (11, 0)", "UPDATE t SET v = 0", "DELETE FROM t WHERE id = 1", "TRUNCATE t"):
        t.run(statement)
        t.assert_current("s", "over")
    assert t.state("s")["refresh_mode"] == "IMMEDIATE"


def test_row_level_security(db: Database, role: Any) -> None:
    """The stream table has all rows, whoever writes; where its owner may not see all of them it is refused."""
    db.run(
        "CREATE TABLE t (id int PRIMARY KEY, who text DEFAULT current_user, v int);"
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON t USING (who = current_user);"
        "GRANT ALL ON t TO PUBLIC; INSERT INTO t VALUES (1, 'nobody', 1)"
    )
    db.create("s", "SELECT who, sum(v) AS s FROM t GROUP BY who", refresh_mode="IMMEDIATE")
    alice = role("alice")
    alice.execute("INSERT INTO t VALUES (2, DEFAULT, 5)")
    db.assert_current("s")
    alice.execute("UPDATE t SET v = v + 1")
    db.assert_current("s")
    assert db.value("SELECT count(*) FROM s") == 2
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
        alice.execute("SELECT pgtrickle.create_stream_table('a', 'SELECT id FROM t', refresh_mode => 'IMMEDIATE')")


def test_the_owner_needs_the_privilege_trigger(db: Database, role: Any) -> None:
    alice = role("alice")
    name = alice.info.user
    db.run(f"CREATE TABLE t (id int PRIMARY KEY, v int); GRANT SELECT ON t TO {name}")
    create = "SELECT pgtrickle.create_stream_table('a', 'SELECT v, count(*) AS n FROM t GROUP BY v', '{}', '{}')"
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
        alice.execute(create.format("calculated", "IMMEDIATE"))
    assert refused.value.diag.message_hint == f"GRANT TRIGGER ON public.t TO {name};"
    db.run(refused.value.diag.message_hint)
    alice.execute(create.format("calculated", "IMMEDIATE"))
    db.run("INSERT INTO t VALUES (1, 1), (2, 1)")
    db.assert_current("a")
