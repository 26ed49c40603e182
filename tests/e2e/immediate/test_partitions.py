"""IMMEDIATE stream tables over partitioned tables and tables with children: equal after each statement."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import psycopg
import pytest

from catalog.values import Initiator
from engine.refresh.executor_choice import NoSpark
from engine.requests.immediate import enter_immediate
from engine.session.pool import PooledSession
from tests.e2e.conftest import Database

QUERIES = {
    "sums": "SELECT v % 3 AS g, count(*) AS n, sum(v) AS s, min(v) AS least FROM p GROUP BY v % 3",
    "rows": "SELECT id, k, v FROM p WHERE v > 0",
    "joined": "SELECT p.id, p.k, p.v, q.name FROM p JOIN q ON q.id = p.v % 5",
}


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture
def partitioned(db: Database) -> Database:
    """A table partitioned by list, of which one partition is partitioned itself, with stream tables over it."""
    db.run(
        "CREATE TABLE p (id int, k int, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);"
        "CREATE TABLE p2 (v int, k int NOT NULL, id int NOT NULL, PRIMARY KEY (id, k));"
        "ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2);"
        "CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3, 4, 5) PARTITION BY LIST (k);"
        "CREATE TABLE p34 PARTITION OF p3 FOR VALUES IN (3, 4); CREATE TABLE p5 PARTITION OF p3 FOR VALUES IN (5);"
        "CREATE TABLE q (id int PRIMARY KEY, name text);"
        "INSERT INTO q SELECT i, 'q' || i FROM generate_series(0, 4) i;"
        "INSERT INTO p SELECT i, 1 + i % 5, i * 7 % 11 FROM generate_series(1, 40) i"
    )
    for name, query in QUERIES.items():
        db.create(name, query, refresh_mode="IMMEDIATE")
    return db


def immediate(db: Database, *names: str) -> None:
    for name in names:
        assert db.state(name)["refresh_mode"] == "IMMEDIATE", db.state(name)["fallback_reason"]


STATEMENTS = [
    "INSERT INTO p SELECT i, 1 + i % 5, i FROM generate_series(41, 60) i",
    "INSERT INTO p1 VALUES (100, 1, 5)",
    "INSERT INTO p2 (id, k, v) VALUES (101, 2, 6), (102, 2, 7)",
    "INSERT INTO p3 VALUES (103, 3, 6), (104, 5, 7)",
    "UPDATE p SET v = v + 1 WHERE id % 4 = 0",
    "UPDATE p2 SET v = v + 1",
    "UPDATE p SET k = 1 + k % 5 WHERE id % 3 = 0",
    "UPDATE p3 SET k = CASE k WHEN 3 THEN 5 ELSE k END",
    "UPDATE p SET k = 2, v = v + 5 WHERE k = 1",
    "DELETE FROM p34 WHERE id % 2 = 0",
    "DELETE FROM p WHERE id % 5 = 1",
    "INSERT INTO p VALUES (7, 3, 1), (200, 2, 1) ON CONFLICT (id, k) DO UPDATE SET v = 1000",
    "MERGE INTO p USING (VALUES (1, 2, 3), (2, 3, 3), (300, 5, 3)) m(id, k, v) ON p.id = m.id"
    " WHEN MATCHED THEN UPDATE SET v = p.v + m.v WHEN NOT MATCHED THEN INSERT VALUES (m.id, m.k, m.v)",
    "WITH a AS (INSERT INTO p1 VALUES (400, 1, 1) RETURNING id), b AS (DELETE FROM p WHERE k = 5)"
    " UPDATE q SET name = name || '!' WHERE id < 3",
    "TRUNCATE p34",
    "TRUNCATE p",
    "COPY p FROM PROGRAM 'echo 1,1,1; echo 2,2,2; echo 3,3,3; echo 4,4,4; echo 5,5,5' (FORMAT csv)",
]


def test_each_statement_through_the_parent_and_on_partitions(partitioned: Database) -> None:
    immediate(partitioned, *QUERIES)
    for statement in STATEMENTS:
        partitioned.run(statement)
        for name in QUERIES:
            assert partitioned.difference(name) == [], (name, statement)
    immediate(partitioned, *QUERIES)


def test_merge_that_moves_rows_is_refused_and_update_that_does_is_not(partitioned: Database) -> None:
    merge = (
        "MERGE INTO p USING (VALUES (1), (2), (6)) m(id) ON p.id = m.id AND p.k <= 5"
        " WHEN MATCHED THEN UPDATE SET k = {}"
    )
    with pytest.raises(psycopg.errors.FeatureNotSupported, match=r"moves rows of .*p"):
        partitioned.run(merge.format("1 + p.k % 5"))
    partitioned.assert_current(*QUERIES)
    partitioned.run(merge.format("p.k, v = v + 1"))
    partitioned.assert_current(*QUERIES)
    with partitioned.connection.transaction():
        with pytest.raises(psycopg.errors.FeatureNotSupported), partitioned.connection.transaction():
            partitioned.run(merge.format("1 + p.k % 5"))
        partitioned.run("UPDATE p SET k = 1 + k % 5")
        partitioned.assert_current(*QUERIES)


def test_rows_that_triggers_keep_from_being_updated_and_change_in_between(partitioned: Database) -> None:
    partitioned.run(
        "CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF NEW.id % 3 = 0 THEN RETURN NULL; END IF;"
        " IF NEW.id % 7 = 1 AND pg_trigger_depth() = 1 THEN"
        " UPDATE p SET v = v + 10 WHERE k = NEW.k AND id % 3 = 1 AND id <> NEW.id; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER odd BEFORE UPDATE ON p FOR EACH ROW EXECUTE FUNCTION odd()"
    )
    for statement in ("UPDATE p SET v = v + 1 WHERE id < 5", "UPDATE p1 SET v = v * 2 WHERE id = 15"):
        partitioned.run(statement)
        partitioned.assert_current(*QUERIES)


ALTERATIONS = {
    "created": (
        "CREATE TABLE p6 PARTITION OF p FOR VALUES IN (6)",
        "INSERT INTO p6 VALUES (1000, 6, 1)",
    ),
    "attached": (
        "CREATE TABLE p6 (id int NOT NULL, k int NOT NULL, v int, PRIMARY KEY (id, k));"
        "INSERT INTO p6 VALUES (1001, 6, 4);"
        "ALTER TABLE p ATTACH PARTITION p6 FOR VALUES IN (6)",
        "INSERT INTO p6 VALUES (1000, 6, 1)",
    ),
    "attached below": (
        "ALTER TABLE p3 DETACH PARTITION p5",
        "INSERT INTO p5 VALUES (1000, 5, 1)",
    ),
    "detached": ("ALTER TABLE p DETACH PARTITION p1", "INSERT INTO p1 VALUES (1000, 1, 1)"),
    "dropped": ("DROP TABLE p1", "INSERT INTO p VALUES (1000, 2, 1)"),
    "trigger of a partition disabled": (
        "ALTER TABLE p1 DISABLE TRIGGER USER; INSERT INTO p1 VALUES (1000, 1, 1); ALTER TABLE p1 ENABLE TRIGGER USER",
        "INSERT INTO p VALUES (1001, 1, 1)",
    ),
    "renamed": ("ALTER TABLE p2 RENAME TO p_2; ALTER TABLE p RENAME v TO w", "INSERT INTO p_2 VALUES (3000, 2, 1001)"),
}


@pytest.mark.parametrize("what", ALTERATIONS)
@pytest.mark.one_in(2)
def test_partitions_that_come_and_go(
    db: Database, live_db: Database, eventually: Callable[..., Any], what: str
) -> None:
    """In the transaction of the DDL they stop to be IMMEDIATE, and become it again by themselves."""
    db = live_db
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.enabled = on")
    db.run(
        "CREATE TABLE p (id int, k int, v int, PRIMARY KEY (id, k)) PARTITION BY LIST (k);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);"
        "CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3, 5) PARTITION BY LIST (k);"
        "CREATE TABLE p5 PARTITION OF p3 FOR VALUES IN (5);"
        "INSERT INTO p SELECT i, 1 + i % 2, i * 7 % 11 FROM generate_series(1, 40) i"
    )
    queries = {"sums": "SELECT k, count(*) AS n, sum(v) AS s FROM p GROUP BY k", "rows": "SELECT id, k, v FROM p"}
    for name, query in queries.items():
        db.create(name, query, refresh_mode="IMMEDIATE")
    ddl, statement = ALTERATIONS[what]
    for part in ddl.split(";"):
        db.run(part)
    db.run(statement)

    def again() -> bool:
        return all(db.state(name)["refresh_mode"] == "IMMEDIATE" for name in queries)

    eventually(again)
    db.assert_current(*queries)
    db.run("INSERT INTO p VALUES (2000, 2, 3)")
    db.assert_current(*queries)
    for partition in ("p6", "p5"):
        if db.value("SELECT to_regclass(%s) IS NOT NULL", partition):
            db.run(f"DELETE FROM {partition}")
            db.assert_current(*queries)
    assert not db.rows(
        "SELECT t.tgrelid::regclass FROM pg_trigger t WHERE t.tgname LIKE '%%pg\\_trickle\\_immediate%%'"
        " AND NOT t.tgrelid = ANY (pgtrickle._relations('p'::regclass::oid))"
    )


AWAITING = "UPDATE pgtrickle.pgt_definitions SET requested_mode = 'IMMEDIATE' WHERE pgt_name = 'rows'"
"""As a stream table is between its refresh and the triggers, which are made in another transaction."""
WAITING = "SELECT FROM pg_locks WHERE NOT granted AND relation = to_regclass(%s)"


def nested(db: Database) -> None:
    """A stream table that is about to be IMMEDIATE, over a table whose partition is partitioned; p5 is not attached."""
    db.run(
        "CREATE TABLE p (id int, k int) PARTITION BY LIST (k);"
        "CREATE TABLE p3 PARTITION OF p FOR VALUES IN (3, 5) PARTITION BY LIST (k);"
        "CREATE TABLE p33 PARTITION OF p3 FOR VALUES IN (3); CREATE TABLE p5 (id int, k int);"
        "INSERT INTO p VALUES (1, 3)"
    )
    db.create("rows", "SELECT id, k FROM p", refresh_mode="DIFFERENTIAL")
    db.run(AWAITING)


def enter(db: Database, name: str) -> None:
    """Have triggers maintain a stream table, as the scheduler does after its refresh."""

    async def entered() -> None:
        connection = await asyncpg.connect(host=host, port=port, user=user, password=password, database=db.name)
        session = PooledSession(connection)
        async with session.transaction("read_committed"):
            await enter_immediate(session, pgt_id, Initiator.SCHEDULER, NoSpark("not here"))
        await connection.close()

    pgt_id = db.state(name)["pgt_id"]
    found = psycopg.conninfo.conninfo_to_dict(db.server.direct_dsn(db.name))
    host, port, user, password = (str(found[part]) for part in ("host", "port", "user", "password"))
    asyncio.run(entered())


def test_partition_is_attached_while_its_table_is_being_locked(db: Database, eventually: Callable[..., Any]) -> None:
    """LOCK TABLE takes the partitions that there are when it begins to wait: the new one's writers go on."""
    nested(db)
    attaching, writer = db.bypass(autocommit=False), db.bypass(autocommit=False)
    attaching.execute("ALTER TABLE p3 ATTACH PARTITION p5 FOR VALUES IN (5)")
    with ThreadPoolExecutor() as threads:
        entering = threads.submit(enter, db, "rows")
        eventually(lambda: db.rows(WAITING, "p3"))
        writing = threads.submit(writer.execute, "INSERT INTO p5 VALUES (2, 5)")
        eventually(lambda: db.rows(WAITING, "p5"))
        attaching.commit()
        writing.result()
        eventually(lambda: entering.done() or db.rows(WAITING, "p5"))
        writer.commit()
        entering.result()
    if db.state("rows")["refresh_mode"] != "IMMEDIATE":  # it was left for the next refresh
        db.refresh("rows")
    immediate(db, "rows")
    db.assert_current("rows")


def test_look_that_has_begun_before_it_became_immediate(db: Database, eventually: Callable[..., Any]) -> None:
    """It stays so: what was found missing of its capture then is repaired."""
    db.run("CREATE TABLE x (id int); CREATE VIEW v AS SELECT id FROM x")
    db.create("slow", "SELECT id FROM v", refresh_mode="FULL")
    nested(db)
    db.run("CREATE TABLE p6 PARTITION OF p FOR VALUES IN (6)")  # no event trigger tells of it
    locking, looking = db.bypass(autocommit=False), db.bypass()
    db.run("ALTER FUNCTION pgtrickle._mark_gaps() SET lock_timeout = '1min'")
    try:
        locking.execute("LOCK TABLE x IN ACCESS EXCLUSIVE MODE")
        with ThreadPoolExecutor() as threads:
            look = threads.submit(looking.execute, "SELECT pgtrickle._mark_gaps()")
            eventually(lambda: db.rows(WAITING, "x"))  # to compare the view
            db.refresh("rows")
            immediate(db, "rows")
            locking.rollback()
            assert look.result().fetchall() == [(0,)]
    finally:
        db.run("ALTER FUNCTION pgtrickle._mark_gaps() SET lock_timeout = '100ms'")
    immediate(db, "rows")
    db.run("INSERT INTO p6 VALUES (3, 6)")
    db.assert_current("rows")


def test_children_of_a_table(db: Database) -> None:
    db.run(
        "CREATE TABLE p (id int PRIMARY KEY, k int, v int); CREATE TABLE q (id int PRIMARY KEY, name text);"
        "CREATE TABLE c (extra text) INHERITS (p); CREATE TABLE d () INHERITS (c);"
        "INSERT INTO q SELECT i, 'q' || i FROM generate_series(0, 4) i;"
        "INSERT INTO p SELECT i, i % 3, i FROM generate_series(1, 10) i;"
        "INSERT INTO c SELECT i, 1, i FROM generate_series(5, 9) i"
    )
    for name, query in QUERIES.items():
        db.create(name, query, refresh_mode="IMMEDIATE")
    immediate(db, *QUERIES)
    for statement in (
        "INSERT INTO p VALUES (100, 1, 1)",
        "INSERT INTO c VALUES (100, 1, 1, 'x'), (101, 2, 3, 'y')",
        "INSERT INTO d VALUES (100, 1, 1), (7, 7, 7)",
        "UPDATE p SET v = v + 1",
        "UPDATE ONLY p SET v = v + 1",
        "UPDATE c SET v = v + 2 WHERE id = 100",
        "UPDATE d SET extra = 'z'",
        "DELETE FROM p WHERE id = 7",
        "DELETE FROM ONLY c WHERE id < 7",
        "TRUNCATE c",
        "INSERT INTO c VALUES (100, 1, 1, 'x'), (101, 2, 3, 'y')",
        "TRUNCATE ONLY p",
    ):
        db.run(statement)
        for name in QUERIES:
            assert db.difference(name) == [], (name, statement)
    immediate(db, *QUERIES)


def test_column_that_is_read_keeps_its_type(partitioned: Database) -> None:
    """As one that a view reads: a trigger is for the columns that are read."""
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="cannot alter type of a column used in a trigger"):
        partitioned.run("ALTER TABLE p ALTER v TYPE bigint USING v * 2")
    partitioned.assert_current(*QUERIES)
