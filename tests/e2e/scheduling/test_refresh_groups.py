"""Refresh groups: who may make them, and what their members show."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import FORGET_TIMES, Database, drop_role
from tests.e2e.scheduling.loading import seen_while
from tests.e2e.scheduling.test_units import writing

Eventually = Callable[..., Any]
GROUPS = (
    "SELECT group_name, ARRAY(SELECT m::regclass::text FROM unnest(member_oids) m), isolation"
    " FROM pgtrickle.refresh_groups()"
)


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


def error(connection: psycopg.Connection[Any], call: str) -> tuple[str | None, str | None]:
    with pytest.raises(psycopg.Error) as failure:
        connection.execute(f"SELECT pgtrickle.{call}".encode())
    return failure.value.sqlstate, failure.value.diag.message_primary


def refreshed_together(db: Database, eventually: Eventually, statement: str) -> None:
    """Run a statement until a job was of several stream tables: what was begun before is over."""
    jobs = "SELECT count(*) FROM pgtrickle.pgt_scheduler_jobs WHERE unit_kind = 'atomic_group' AND status = 'SUCCEEDED'"
    eventually(lambda: db.run(statement) and db.value(jobs) > 0)


def test_making_and_dropping_groups(db: Database) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    for name in ("a", "b", "c", "d"):
        db.create(name, "SELECT id, v FROM t")
    number = db.value("SELECT pgtrickle.create_refresh_group('g', ARRAY['public.b', 'a'])")
    assert db.rows(GROUPS) == [("g", ["b", "a"], "read_committed")]
    assert db.rows("SELECT group_id, created_at <= now() FROM pgtrickle.refresh_groups()") == [(number, True)]
    expected = {
        "create_refresh_group('h', ARRAY['c'])": ("22023", 'refresh group "h" needs at least two stream tables'),
        "create_refresh_group('h', '{}')": ("22023", 'refresh group "h" needs at least two stream tables'),
        "create_refresh_group('h', ARRAY['c', 'public.c'])": ("22023", 'refresh group "h" names a stream table twice'),
        "create_refresh_group('h', ARRAY['c', 'nothing'])": ("42P01", 'stream table "nothing" does not exist'),
        "create_refresh_group('h', ARRAY['c', 't'])": ("42P01", 'stream table "t" does not exist'),
        "create_refresh_group('h', ARRAY['c', 'a'])":
            ("42710", 'stream table public.a is a member of refresh group "g"'),
        "create_refresh_group('g', ARRAY['c', 'd'])": ("42710", 'refresh group "g" already exists'),
        "create_refresh_group('h', ARRAY['c', 'd'], 'serial')": ("22023", 'invalid isolation level "serial"'),
        "create_refresh_group('h', ARRAY['c', 'd'], NULL)":
            ("22004", "isolation level of the refresh group must not be null"),
        "create_refresh_group('', ARRAY['c', 'd'])": ("22023", "name of the refresh group must not be empty"),
        "create_refresh_group(NULL, ARRAY['c', 'd'])": ("22004", "name of the refresh group must not be null"),
        "create_refresh_group('h', NULL)": ("22004", "members of the refresh group must not be null"),
        "create_refresh_group('h', ARRAY['c', NULL])": ("22004", "name of the stream table must not be null"),
        "drop_refresh_group('h')": ("42704", 'refresh group "h" does not exist'),
        "drop_refresh_group(NULL)": ("22004", "name of the refresh group must not be null"),
    }  # fmt: skip
    assert {call: error(db.connection, call) for call in expected} == expected
    db.create("on_spark", "SELECT id FROM t", engine="spark", initialize=False)
    assert error(db.connection, "create_refresh_group('h', ARRAY['c', 'on_spark'])") == (
        "0A000",
        "stream table public.on_spark cannot be refreshed together with others on Spark",
    )
    db.run("DO $$ BEGIN PERFORM pgtrickle.create_refresh_group('h', ARRAY['c', 'd'], 'REPEATABLE_READ'); END $$")
    assert db.rows(GROUPS)[1] == ("h", ["c", "d"], "repeatable_read")
    db.run("BEGIN; SELECT pgtrickle.drop_refresh_group('h'); ROLLBACK")
    db.run("ALTER TABLE b RENAME TO renamed")
    db.run("SELECT pgtrickle.drop_stream_table('a')")
    assert db.rows(GROUPS) == [("g", ["renamed"], "read_committed"), ("h", ["c", "d"], "repeatable_read")]
    db.create("a", "SELECT id, v FROM t")  # another one
    db.run("SELECT pgtrickle._keep_signals()")
    kept = "SELECT member_oids = ARRAY['renamed'::regclass::oid] FROM pgtrickle.pgt_refresh_groups ORDER BY group_name"
    assert db.rows(kept)[0] == (True,) and db.rows(GROUPS)[0] == ("g", ["renamed"], "read_committed")
    db.run("UPDATE pgtrickle.pgt_refresh_groups SET member_oids = '{1}'; SELECT pgtrickle._keep_signals()")  # restored
    assert db.rows(kept)[0] == (True,) and len(db.rows(GROUPS)) == 2
    db.run("DROP TABLE renamed; SELECT pgtrickle.drop_refresh_group('h'); SELECT pgtrickle._keep_signals()")
    assert db.rows("SELECT FROM pgtrickle.pgt_refresh_groups") == []


def test_rights(db: Database) -> None:
    for role in ("grp_alice", "grp_bob", "grp_both"):
        db.run(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
    try:
        db.run("GRANT grp_alice, grp_bob TO grp_both")
        db.run("CREATE TABLE t (id int PRIMARY KEY); GRANT SELECT ON t TO PUBLIC")
        db.run("GRANT CREATE ON SCHEMA public TO PUBLIC")
        alice, bob, both = (db.connect(user=role, password="secret") for role in ("grp_alice", "grp_bob", "grp_both"))
        for owner, name, source in (
            (alice, "a1", "t"),
            (alice, "a2", "t"),
            (bob, "b1", "t"),
            (bob, "b2", "a1"),
            (alice, "a3", "b2"),
        ):
            owner.execute(f"SELECT pgtrickle.create_stream_table('{name}', 'SELECT id FROM {source}')".encode())
            owner.execute(f"GRANT SELECT ON {name} TO PUBLIC".encode())
        assert error(bob, "create_refresh_group('g', ARRAY['b1', 'a1'])") == (
            "42501",
            'must be owner of stream table "public.a1"',
        )
        # b2 would be refreshed with them, and wait for them.
        assert error(alice, "create_refresh_group('g', ARRAY['a1', 'a3'])") == (
            "42501",
            'must be owner of stream table "public.b2"',
        )
        forged = "INSERT INTO pgtrickle.pgt_source_signals (signal, group_name, source_relids, isolation, signalled_by)"
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            bob.execute(
                f"{forged} VALUES ('create refresh group', 'g', ARRAY['b1', 'a1']::regclass[]::oid[],"
                " 'read_committed', 'grp_alice')".encode()
            )
        alice.execute("SELECT pgtrickle.create_refresh_group('g', ARRAY['a1', 'a2'])")
        both.execute("SELECT pgtrickle.create_refresh_group('h', ARRAY['b1', 'b2'])")
        assert error(bob, "drop_refresh_group('g')")[0] == "42501"
        bob.execute("SELECT pgtrickle.drop_refresh_group('h')")  # its members are his
        both.execute("SELECT pgtrickle.drop_refresh_group('g')")
        # A diamond has the others wait as well.
        call = "create_stream_table('meeting', 'SELECT id FROM a1 JOIN b2 USING (id)', diamond_consistency => 'atomic')"
        assert error(alice, call) == (
            "42501",
            'stream table "meeting" cannot have "public.b2" refreshed with it',
        )
        both.execute(f"SELECT pgtrickle.{call}".encode())
    finally:
        for role in ("grp_both", "grp_alice", "grp_bob"):
            drop_role(db.connection, role)


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
def test_members_show_one_moment(live_db: Database, eventually: Eventually, isolation: str) -> None:
    db = live_db
    db.run("CREATE TABLE orders (id int PRIMARY KEY, n int); CREATE TABLE order_lines (id int PRIMARY KEY, n int)")
    db.run("INSERT INTO orders VALUES (1, 0); INSERT INTO order_lines VALUES (1, 0)")
    db.create("of_orders", "SELECT sum(n) AS n FROM orders", schedule="1s")
    db.create("of_lines", "SELECT sum(n) AS n FROM order_lines", schedule="1s")
    db.run("SELECT pgtrickle.create_refresh_group('snapshot', ARRAY['of_orders', 'of_lines'], %s)", isolation)
    both = "BEGIN; UPDATE orders SET n = n + 1; UPDATE order_lines SET n = n + 1; COMMIT"
    refreshed_together(db, eventually, both)
    with seen_while(db, "SELECT o.n = l.n FROM of_orders o, of_lines l") as seen, writing(db, both):
        eventually(lambda: db.value("SELECT n FROM of_lines") > 20)
    assert seen == {(True,)}
    eventually(lambda: not db.difference("of_orders") and not db.difference("of_lines"))


def three(db: Database) -> None:
    """A group of three stream tables, of which of_orders and of_lines are refreshed by hand."""
    db.run("CREATE TABLE orders (n int); CREATE TABLE order_lines (n int)")
    db.run("INSERT INTO orders VALUES (0); INSERT INTO order_lines VALUES (0)")
    db.create("of_orders", "SELECT sum(n) AS n FROM orders", schedule="1s")
    db.create("of_lines", "SELECT sum(n) AS n FROM order_lines", schedule="1s")
    db.create("of_both", "SELECT sum(o.n) AS o, sum(l.n) AS l FROM orders o, order_lines l", schedule="1s")
    db.run("SELECT pgtrickle.create_refresh_group('three', ARRAY['of_orders', 'of_lines', 'of_both'])")


def test_two_who_refresh_members_by_hand_without_pause_let_the_group_have_its_turn(
    live_db: Database, eventually: Eventually
) -> None:
    """The next one has the other member before the last one commits: both are never free unless somebody gives way."""
    db = live_db
    three(db)
    both = "UPDATE orders SET n = n + 1; UPDATE order_lines SET n = n + 1"
    refreshed_together(db, eventually, both)
    jobs = "SELECT count(*) FROM pgtrickle.pgt_scheduler_jobs WHERE unit_kind = 'atomic_group' AND status = 'SUCCEEDED'"
    waits = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep'"
    first, second = ((db.connect(autocommit=False), name) for name in ("of_orders", "of_lines"))
    first[0].execute("SELECT pgtrickle.refresh_stream_table(%s)", [first[1]])
    before, end = db.value(jobs), time.monotonic() + 120
    with ThreadPoolExecutor(1) as beside:
        for (holder, _), (other, name) in cycle(((first, second), (second, first))):
            db.run(both)
            process = other.info.backend_pid
            refresh = beside.submit(other.execute, "SELECT pgtrickle.refresh_stream_table(%s)", [name])
            eventually(lambda refresh=refresh, process=process: refresh.done() or db.value(waits, process))
            holder.commit()
            refresh.result()
            if db.value(jobs) > before:
                break
            assert time.monotonic() < end, "the group has no turn"
    other.commit()
    assert {row["status"] for name in ("of_orders", "of_lines") for row in db.history(name)} == {"COMPLETED"}


def test_who_gives_way_to_a_group(live_db: Database) -> None:
    db = live_db
    three(db)
    ids = [db.state(name)["pgt_id"] for name in ("of_orders", "of_lines")]
    claim = "SELECT pg_advisory_lock_shared(1213661216, pgt_id::int) FROM pgtrickle.pgt_stream_tables"
    refresh = "SELECT pgtrickle.refresh_stream_table(%s)"
    claiming, client = db.connect(), db.connect(autocommit=False)
    change = "INSERT INTO orders VALUES (1); INSERT INTO order_lines VALUES (1)"
    # Who has one member already is what the group may wait for, and goes on.
    client.execute(change)
    client.execute(refresh, ["of_orders"])
    claiming.execute(claim)
    client.execute(refresh, ["of_lines"])
    client.commit()
    # Others wait, but no longer than they wait for locks.
    client.execute(change)
    client.execute("SET LOCAL statement_timeout = '500ms'")
    with pytest.raises(psycopg.errors.QueryCanceled):
        client.execute(refresh, ["of_orders"])
    client.rollback()
    client.execute(change)
    client.execute("SET LOCAL lock_timeout = '100ms'; SET LOCAL statement_timeout = '1min'")
    client.execute(refresh, ["of_orders"])
    client.rollback()
    # Whatever somebody else locks is no claim.
    claiming.execute("SELECT pg_advisory_unlock_all()")
    db.run("CREATE ROLE grp_stranger LOGIN PASSWORD 'secret'")
    try:
        with db.connect(user="grp_stranger", password="secret") as stranger:
            stranger.execute("SELECT pg_advisory_lock_shared(1213661216, %s)", [ids[0]])
            client.execute(change)
            client.execute("SET LOCAL statement_timeout = '1min'")
            client.execute(refresh, ["of_orders"])
            client.commit()
    finally:
        drop_role(db.connection, "grp_stranger")


def test_each_change_is_taken_in_once_through_a_chain(live_db: Database, eventually: Eventually) -> None:
    """Each member reads what another one has changed in the same transaction, and something that clients change."""
    db, chance = live_db, random.Random(7)
    db.run("CREATE TABLE t (id int PRIMARY KEY, g int, v int); CREATE TABLE u (g int PRIMARY KEY, w int)")
    db.run("INSERT INTO u SELECT n, n FROM generate_series(0, 4) n")
    db.create("c1", "SELECT id, g, v FROM t WHERE v % 3 > 0", schedule="1s")
    db.create("c2", "SELECT g, sum(v) AS s, count(*) AS n FROM c1 GROUP BY g", schedule="1s")
    db.create("c3", "SELECT g, s, n, w FROM c2 LEFT JOIN u USING (g)", schedule="1s")
    db.create("c4", "SELECT c3.g, c3.s, c1.id FROM c3 JOIN c1 USING (g)", schedule="1s")
    names = ("c1", "c2", "c3", "c4")
    db.run("SELECT pgtrickle.create_refresh_group('chain', %s)", list(names))
    other = db.connect()
    for n in range(120):
        statement = chance.choice(
            (
                f"INSERT INTO t VALUES ({n}, {chance.randrange(5)}, {chance.randrange(9)})",
                f"UPDATE t SET v = v + 1, g = (g + 1) % 5 WHERE id % 7 = {chance.randrange(7)}",
                f"DELETE FROM t WHERE id % 11 = {chance.randrange(11)}",
                f"UPDATE u SET w = {n} WHERE g = {chance.randrange(5)}",
                "TRUNCATE t" if n % 40 == 39 else "SELECT",
                f"SELECT pgtrickle.refresh_stream_table('c{chance.randrange(1, 5)}')",
            )
        )
        chance.choice((db.connection, other)).execute(statement.encode())
    eventually(lambda: not any(db.difference(name) for name in names))
    assert db.rows("SELECT DISTINCT status FROM pgtrickle.pgt_refresh_history") == [("COMPLETED",)]
    assert db.value("SELECT count(*) FROM pgtrickle.pgt_scheduler_jobs WHERE unit_kind = 'atomic_group'") > 0
    db.run(FORGET_TIMES)
    db.run("INSERT INTO t SELECT n, n % 5, n FROM generate_series(1000, 1010) n")
    eventually(lambda: not any(db.difference(name) for name in names))
    together = {db.history(name)[-1]["data_timestamp"] for name in names}
    assert len(together) == 1 and db.last("c4")[0] == "DIFFERENTIAL"


def test_what_a_function_sets_does_not_reach_another_member(live_db: Database, eventually: Eventually) -> None:
    db = live_db
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int)")
    db.run(
        "CREATE FUNCTION sets(v int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM set_config('my.secret', 'known', false); RETURN v; END $$;"
        "CREATE FUNCTION sees(v int) RETURNS text IMMUTABLE LANGUAGE plpgsql AS"
        " $$ BEGIN RETURN coalesce(nullif(current_setting('my.secret', true), ''), 'nothing'); END $$"
    )
    db.create("first", "SELECT id, sets(v) AS v FROM t", schedule="1s")
    db.create("second", "SELECT id, sees(v) AS seen, (SELECT count(*) FROM first) AS n FROM t", schedule="1s")
    db.run("SELECT pgtrickle.create_refresh_group('g', ARRAY['first', 'second'])")
    refreshed_together(db, eventually, "INSERT INTO t SELECT coalesce(max(id), 0) + 1, 1 FROM t")
    eventually(lambda: db.value("SELECT min(n) = (SELECT count(*) FROM t) FROM second"))
    assert db.rows("SELECT DISTINCT seen FROM second") == [("nothing",)]


@pytest.mark.long
@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
def test_a_member_whose_source_is_captured_from_the_log(
    live_db: Database, eventually: Eventually, isolation: str
) -> None:
    db = live_db
    db.run(f"ALTER DATABASE {db.name} SET pg_trickle.cdc_mode = 'auto'")
    db.run("CREATE TABLE a (id int PRIMARY KEY, n int); CREATE TABLE b (id int PRIMARY KEY, n int)")
    db.run("INSERT INTO a VALUES (1, 0); INSERT INTO b VALUES (1, 0)")
    db.create("of_a", "SELECT sum(n) AS n FROM a", schedule="1s")
    db.create("of_b", "SELECT sum(n) AS n FROM b", schedule="1s")
    modes = "SELECT DISTINCT cdc_mode FROM pgtrickle.pgt_cdc_status"
    eventually(lambda: db.rows(modes) == [("wal",)])
    db.run("SELECT pgtrickle.create_refresh_group('g', ARRAY['of_a', 'of_b'], %s)", isolation)
    both = "BEGIN; UPDATE a SET n = n + 1; UPDATE b SET n = n + 1; COMMIT"
    refreshed_together(db, eventually, both)
    before = len(db.history("of_a"))
    with seen_while(db, "SELECT x.n - y.n FROM of_a x, of_b y") as seen, writing(db, both):
        eventually(lambda: db.value("SELECT n FROM of_b") > 30)
    eventually(lambda: not db.difference("of_a") and not db.difference("of_b"))
    actions = {row["action"] for row in db.history("of_a")[before:]}
    if isolation == "repeatable_read":
        assert seen == {(0,)} and actions == {"FULL"}
    else:
        assert "FULL" not in actions and actions >= {"DIFFERENTIAL"}
    resting = len(db.history("of_a"))
    db.run("CREATE TABLE other (id int); INSERT INTO other VALUES (1)")
    db.create("of_other", "SELECT count(*) AS n FROM other", schedule="1s")
    for n in range(3):
        db.run("INSERT INTO other VALUES (2)")
        eventually(lambda n=n: db.value("SELECT n FROM of_other") == n + 2)
    assert len(db.history("of_a")) == resting  # nothing is computed where nothing has changed
