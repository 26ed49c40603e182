"""Watermarks: what depends on sources of a group waits until all of them are complete up to about the same time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database
from tests.e2e.scheduling.loading import load, refreshes, seen_while, skips

Eventually = Callable[..., Any]
Role = Callable[..., psycopg.Connection[Any]]

ADVANCE = "SELECT pgtrickle.advance_watermark(%s, %s)"
GROUP = "SELECT pgtrickle.create_watermark_group(%s, %s, %s)"
STATUS = "SELECT group_name, lag_secs, aligned, sources_with_watermark, sources_total FROM pgtrickle.watermark_status()"
NOT_ALIGNED = 'watermark group "order_pipeline" is not aligned'
REPORT = "SELECT o.id, o.amount, count(*) AS lines FROM orders o JOIN order_lines l ON l.order_id = o.id GROUP BY o.id"


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@pytest.fixture
def orders(live_db: Database) -> Database:
    live_db.run("CREATE TABLE orders (id int PRIMARY KEY, amount int)")
    live_db.run("CREATE TABLE order_lines (id int PRIMARY KEY, order_id int)")
    return live_db


def job(db: Database, table: str, rows: str, watermark: str) -> None:
    """A job of the ETL: it loads a source, and says so, in one transaction."""
    db.run("BEGIN")
    load(db, table, rows)
    db.run(ADVANCE, table, watermark)
    db.run("COMMIT")


# -- what the scheduler does ------------------------------------------------------------------------------------------


def test_recipe_6_nightly_etl_with_watermarks(orders: Database, eventually: Eventually) -> None:
    db = orders
    db.run("SELECT pgtrickle.create_watermark_group('order_pipeline', ARRAY['orders', 'order_lines'])")
    db.create("order_report", REPORT, schedule="1s")
    db.create("summary", "SELECT count(*) AS n FROM order_report", schedule="1s")
    job(db, "orders", "1,10\n2,20\n", "2026-03-01")
    eventually(lambda: skips(db, "order_report") == [NOT_ALIGNED])
    assert refreshes(db, "order_report") == ["FULL"]
    job(db, "order_lines", "1,1\n2,1\n3,2\n", "2026-03-01")
    eventually(lambda: db.value("SELECT n FROM summary") == 2)
    db.assert_current("order_report", "summary")
    # The next night, in the other order.
    with seen_while(db, "SELECT count(*), sum(lines)::int FROM order_report") as seen:
        job(db, "order_lines", "4,3\n5,1\n", "2026-03-02")
        eventually(lambda: skips(db, "order_report") == [NOT_ALIGNED] * 2)
        eventually(lambda: skips(db, "summary") != [], what="what reads it through another waits as well")
        job(db, "orders", "3,30\n", "2026-03-02")
        eventually(lambda: db.value("SELECT n FROM summary") == 3)
    assert seen == {(2, 3), (3, 5)}
    assert refreshes(db, "order_report") == ["FULL", "DIFFERENTIAL", "DIFFERENTIAL"]


def test_recipe_7_micro_batch_tolerance(live_db: Database, eventually: Eventually) -> None:
    db = live_db
    db.run("CREATE TABLE trades (id int PRIMARY KEY); CREATE TABLE quotes (id int PRIMARY KEY)")
    db.run(GROUP, "realtime_pipeline", ["trades", "quotes"], 30)
    db.create("both", "SELECT id FROM trades JOIN quotes USING (id)", schedule="1s")
    db.run(ADVANCE, "trades", "2026-03-01 12:00:05+00")
    db.run(ADVANCE, "quotes", "2026-03-01 12:00:02+00")
    assert db.rows(STATUS) == [("realtime_pipeline", 3.0, True, 2, 2)]
    db.run("INSERT INTO trades VALUES (1); INSERT INTO quotes VALUES (1)")
    eventually(lambda: db.value('SELECT count(*) FROM "both"') == 1)
    db.run(ADVANCE, "trades", "2026-03-01 12:00:32+00")
    assert db.rows(STATUS) == [("realtime_pipeline", 30.0, True, 2, 2)]
    db.run(ADVANCE, "trades", "2026-03-01 12:00:32.001+00")
    assert db.rows(STATUS) == [("realtime_pipeline", 30.001, False, 2, 2)]
    db.run("INSERT INTO trades VALUES (2); INSERT INTO quotes VALUES (2)")
    eventually(lambda: skips(db, "both") == ['watermark group "realtime_pipeline" is not aligned'])
    db.run(ADVANCE, "quotes", "2026-03-01 12:00:05+00")
    eventually(lambda: db.value('SELECT count(*) FROM "both"') == 2)


def test_recipe_8_monitoring_watermark_alignment(db: Database) -> None:
    for name in ("a", "b", "c"):
        db.run(f"CREATE TABLE {name} (id int)")
    db.run(GROUP, "abc", ["a", "b", "c"], 0)
    db.run(GROUP, "ab", ["a", "b"], 3600)
    misaligned = "SELECT group_name, lag_secs, aligned FROM pgtrickle.watermark_status() WHERE NOT aligned"
    assert db.rows(misaligned) == [("ab", None, False), ("abc", None, False)]
    db.run(ADVANCE, "a", "2026-03-01 12:00+00")
    assert db.rows(misaligned) == [("ab", 0.0, False), ("abc", 0.0, False)]
    db.run(ADVANCE, "b", "2026-03-01 12:30+00")
    assert db.rows(misaligned) == [("abc", 1800.0, False)]
    assert db.rows(STATUS) == [("ab", 1800.0, True, 2, 2), ("abc", 1800.0, False, 2, 3)]
    limits = "SELECT min_watermark, max_watermark FROM pgtrickle.watermark_status() WHERE group_name = 'abc'"
    ((least, greatest),) = db.rows(limits)
    assert (least, greatest - least) == (datetime.fromisoformat("2026-03-01 12:00+00:00"), timedelta(minutes=30))
    marks = db.rows("SELECT source_table, watermark, updated_at FROM pgtrickle.watermarks() ORDER BY watermark")
    assert [mark[:2] for mark in marks] == [("a", least), ("b", greatest)]
    assert marks[0][2] < marks[1][2]
    ((schema, by, lsn),) = db.rows(
        "SELECT schema_name, advanced_by, wal_lsn::pg_lsn <= pg_current_wal_insert_lsn() FROM pgtrickle.watermarks()"
        " WHERE source_table = 'a'"
    )
    assert (schema, by, lsn) == ("public", db.value("SELECT current_user::text"), True)


def test_refresh_by_hand_does_not_wait(orders: Database) -> None:
    db = orders
    db.create("order_report", REPORT)
    db.run(GROUP, "order_pipeline", ["orders", "order_lines"], 0)
    db.run("INSERT INTO orders VALUES (1, 1); INSERT INTO order_lines VALUES (1, 1)")
    db.assert_refreshed("order_report")
    assert db.value("SELECT count(*) FROM order_report") == 1


def test_dropped_group_holds_nothing_back(orders: Database, eventually: Eventually) -> None:
    db = orders
    db.create("order_report", REPORT, schedule="1s")
    db.create("only_lines", "SELECT count(*) AS n FROM order_lines", schedule="1s")
    db.run(GROUP, "order_pipeline", ["orders", "order_lines"], 0)
    db.run("INSERT INTO orders VALUES (1, 1); INSERT INTO order_lines VALUES (1, 1)")
    eventually(lambda: skips(db, "order_report") and skips(db, "only_lines"), what="one source of the group is enough")
    db.run("SELECT pgtrickle.drop_watermark_group('order_pipeline')")
    eventually(lambda: db.value("SELECT n FROM only_lines") == 1)
    eventually(lambda: db.value("SELECT count(*) FROM order_report") == 1)
    assert db.rows("SELECT * FROM pgtrickle.watermark_groups()") == []


# -- watermarks -------------------------------------------------------------------------------------------------------


def test_watermark_goes_forward_only(orders: Database) -> None:
    db = orders
    mark = "SELECT watermark, updated_at, wal_lsn FROM pgtrickle.watermarks()"
    db.run(ADVANCE, "orders", "2026-03-01 12:05:00+00")
    before = db.rows(mark)
    db.run("INSERT INTO orders VALUES (1, 1)")
    db.run(ADVANCE, "orders", "2026-03-01 12:05:00+00")
    assert db.rows(mark) == before  # a silent no-op
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=r"watermark of public\.orders cannot go back"):
        db.run(ADVANCE, "orders", "2026-03-01 12:04:59+00")
    assert db.rows(mark) == before
    db.run(ADVANCE, "orders", "2026-03-01 12:05:01+00")
    ((watermark, updated, lsn),) = db.rows(mark)
    assert watermark - before[0][0] == timedelta(seconds=1) and updated > before[0][1] and lsn != before[0][2]


def test_watermark_is_part_of_the_transaction(orders: Database) -> None:
    db = orders
    with db.connect(autocommit=False) as loader:
        loader.execute(ADVANCE, ["orders", "2026-03-02"])
        assert db.rows("SELECT * FROM pgtrickle.watermarks()") == []
        loader.rollback()
        loader.execute(ADVANCE, ["orders", "2026-03-01"])
        loader.commit()
    assert db.value("SELECT watermark FROM pgtrickle.watermarks()") == db.value("SELECT '2026-03-01'::timestamptz")


def test_two_loaders_of_a_source_wait_for_each_other(orders: Database) -> None:
    """The second one sees what the first has said, whatever it saw before."""
    db = orders
    first, second = db.connect(autocommit=False), db.connect()
    second.execute("SET lock_timeout = '200ms'")
    first.execute(ADVANCE, ["orders", "2026-03-02"])
    with pytest.raises(psycopg.errors.LockNotAvailable):
        second.execute(ADVANCE, ["orders", "2026-03-01"])
    first.commit()
    second.execute("RESET lock_timeout")
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        second.execute(ADVANCE, ["orders", "2026-03-01"])


@pytest.mark.parametrize(
    ("call", "state"),
    [
        ("advance_watermark(NULL, now())", "22004"),
        ("advance_watermark('orders', NULL)", "22004"),
        ("advance_watermark('orders', 'infinity')", "22023"),
        ("advance_watermark('nothing', now())", "42P01"),
        ("advance_watermark('orders_pkey', now())", "42809"),
        ("create_watermark_group(NULL, ARRAY['orders', 'order_lines'])", "22004"),
        ("create_watermark_group('', ARRAY['orders', 'order_lines'])", "22023"),
        ("create_watermark_group('g', NULL)", "22004"),
        ("create_watermark_group('g', ARRAY['orders', NULL])", "22004"),
        ("create_watermark_group('g', '{}')", "22023"),
        ("create_watermark_group('g', ARRAY['orders'])", "22023"),
        ("create_watermark_group('g', ARRAY['orders', 'public.orders'])", "22023"),
        ("create_watermark_group('g', ARRAY['orders', 'order_lines', 'orders'])", "22023"),
        ("create_watermark_group('g', ARRAY['orders', 'nothing'])", "42P01"),
        ("create_watermark_group('g', ARRAY['orders', 'order_lines'], -1)", "22023"),
        ("create_watermark_group('g', ARRAY['orders', 'order_lines'], 'NaN')", "22023"),
        ("create_watermark_group('g', ARRAY['orders', 'order_lines'], 'infinity')", "22023"),
        ("create_watermark_group('g', ARRAY['orders', 'order_lines'], NULL)", "22004"),
        ("create_watermark_group('there', ARRAY['orders', 'order_lines'])", "42710"),
        ("drop_watermark_group(NULL)", "22004"),
        ("drop_watermark_group('nothing')", "42704"),
    ],
)
@pytest.mark.one_in(3)
def test_bad_arguments(orders: Database, call: str, state: str) -> None:
    orders.run(GROUP, "there", ["orders", "order_lines"], 0)
    with pytest.raises(psycopg.Error) as error:
        orders.run(f"SELECT pgtrickle.{call}")
    assert error.value.sqlstate == state
    assert [row[0] for row in orders.rows(STATUS)] == ["there"]


def test_a_source_is_in_few_groups(orders: Database) -> None:
    orders.run(
        f"SELECT {', '.join('pgtrickle.create_watermark_group(%s, ARRAY[%s, %s])' for _ in range(100))}",
        *(value for n in range(100) for value in (f"g{n}", "orders", "order_lines")),
    )
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        orders.run(GROUP, "more", ["orders", "order_lines"], 0)
    orders.run("SELECT pgtrickle.drop_watermark_group('g7')")
    orders.run(GROUP, "more", ["orders", "order_lines"], 0)


def test_groups_as_they_are_defined(orders: Database) -> None:
    db = orders
    number = db.value("SELECT pgtrickle.create_watermark_group('strict', ARRAY['public.orders', 'order_lines'])")
    loose = db.value(GROUP, "loose", ["order_lines", "orders"], 1.5)
    groups = db.rows(
        "SELECT group_id, group_name, source_relids::bigint[], tolerance_secs FROM pgtrickle.watermark_groups()"
    )
    oids = [db.value("SELECT %s::regclass::oid::bigint", name) for name in ("orders", "order_lines")]
    assert groups == [(loose, "loose", oids[::-1], 1.5), (number, "strict", oids, 0.0)]
    assert db.value("SELECT bool_and(created_at <= now()) FROM pgtrickle.watermark_groups()")


# -- whose business ---------------------------------------------------------------------------------------------------


def test_who_may_advance_and_who_may_group(db: Database, role: Role) -> None:
    alice, bob = role("alice"), role("bob")
    alice.execute("CREATE TABLE a (id int); CREATE TABLE b (id int)")
    group = b"SELECT pgtrickle.create_watermark_group('g', ARRAY['a', 'b'])"
    advance = b"SELECT pgtrickle.advance_watermark('a', '2026-03-01')"
    drop = b"SELECT pgtrickle.drop_watermark_group('g')"
    for statement in (group, advance):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bob.execute(statement)
    alice.execute(f"GRANT INSERT ON a, b TO {bob.info.user}")
    bob.execute(advance)  # who loads a source knows how far it is
    assert db.value("SELECT advanced_by FROM pgtrickle.watermarks()") == bob.info.user
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        bob.execute(group)
    alice.execute(group)
    alice.execute(f"GRANT TRUNCATE ON a TO {bob.info.user}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"permission denied for source public\.b"):
        bob.execute(drop)
    alice.execute(f"GRANT TRUNCATE ON b TO {bob.info.user}")
    bob.execute(drop)


def test_nobody_can_lock_watermarks_or_set_them_back(db: Database, role: Role) -> None:
    alice = role("alice")
    alice.execute("CREATE TABLE a (id int); SELECT pgtrickle.advance_watermark('a', '2026-03-02')")
    for table in ("pgt_watermarks", "pgt_watermark_groups"):
        for statement in ("LOCK TABLE {} IN ROW SHARE MODE", "SELECT * FROM {} FOR KEY SHARE", "DELETE FROM {}"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), alice.transaction():
                alice.execute(statement.format(f"pgtrickle.{table}").encode())
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        alice.execute(
            "INSERT INTO pgtrickle.pgt_source_signals (signal, source_relids, watermark)"
            " VALUES ('advance', ARRAY['a'::regclass], '2026-03-01')"
        )


# -- sources that come and go -----------------------------------------------------------------------------------------


def test_dropped_source_leaves_its_groups_and_a_renamed_one_stays(db: Database) -> None:
    db.run("CREATE TABLE a (id int); CREATE TABLE b (id int); CREATE TABLE c (id int)")
    db.run(GROUP, "abc", ["a", "b", "c"], 0)
    for name in ("a", "b"):
        db.run(ADVANCE, name, "2026-03-01")
    db.run("ALTER TABLE a RENAME TO renamed; DROP TABLE c")
    assert db.rows(STATUS) == [("abc", 0.0, True, 2, 2)]
    assert db.value("SELECT source_names FROM pgtrickle.pgt_watermark_groups") == ["public.renamed", "public.b"]
    db.run("DROP TABLE b")
    assert db.rows("SELECT source_table FROM pgtrickle.watermarks()") == [("renamed",)]
    assert db.rows("SELECT source_name FROM pgtrickle.pgt_watermarks") == [("public.renamed",)]
    db.run("DROP TABLE renamed")
    assert db.rows(STATUS) == [("abc", None, False, 0, 0)]
    db.run("SELECT pgtrickle.drop_watermark_group('abc')")
