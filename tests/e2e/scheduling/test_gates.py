"""Gates: what reads a gated source is refreshed by hand alone, and nobody sees a load that is half done."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database
from tests.e2e.scheduling.loading import load, refreshes, seen_while, skips

Eventually = Callable[..., Any]
Role = Callable[..., psycopg.Connection[Any]]

GATES = "SELECT source_table, schema_name, gated, gated_by FROM pgtrickle.source_gates()"
GATED = "source public.orders is gated"
HELD_BACK = "SELECT pgt_name FROM pgtrickle._held_back() JOIN pgtrickle.pgt_stream_tables USING (pgt_id)"


@pytest.fixture
def live_db(emptied_live_db: Database) -> Database:
    return emptied_live_db


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


def gate(db: Database, *sources: str) -> None:
    """At once: the scheduler sees all of them or none."""
    db.run("SELECT pgtrickle.gate_source(source) FROM unnest(%s::text[]) AS source", list(sources))


def ungate(db: Database, *sources: str) -> None:
    for source in sources:
        db.run("SELECT pgtrickle.ungate_source(%s)", source)


@pytest.fixture
def orders(live_db: Database) -> Database:
    live_db.run("CREATE TABLE orders (id int PRIMARY KEY, region text, amount int)")
    live_db.run("CREATE TABLE order_lines (id int PRIMARY KEY, region text)")
    return live_db


# -- what the scheduler does ------------------------------------------------------------------------------------------


def test_recipe_1_single_source_bulk_load(orders: Database, eventually: Eventually) -> None:
    db = orders
    db.create("totals", "SELECT region, sum(amount) AS total FROM orders GROUP BY region", schedule="1s")
    db.create("others", "SELECT count(*) AS n FROM order_lines", schedule="1s")
    gate(db, "orders")
    with seen_while(db, "SELECT count(*) FROM totals") as seen:
        load(db, "orders", "1,north,10\n")
        load(db, "orders", "2,south,20\n")
        # A stream table of another source goes on meanwhile.
        load(db, "order_lines", "1,north\n")
        eventually(lambda: db.value("SELECT n FROM others") == 1)
        eventually(lambda: skips(db, "totals"), what="that it is skipped is written down")
        load(db, "orders", "3,west,30\n")
    assert seen == {(0,)} and refreshes(db, "totals") == ["FULL"]
    ungate(db, "orders")
    eventually(lambda: db.value("SELECT count(*) FROM totals") == 3)
    db.assert_current("totals")
    assert skips(db, "totals") == [GATED]
    assert refreshes(db, "totals") == ["FULL", "DIFFERENTIAL"]  # once


def test_recipe_2_coordinated_multi_source_load(orders: Database, eventually: Eventually) -> None:
    db = orders
    db.create(
        "report",
        "SELECT o.region, count(*) AS n FROM orders o JOIN order_lines l USING (region) GROUP BY o.region",
        schedule="1s",
    )
    db.create("downstream", "SELECT sum(n) AS n FROM report", schedule="1s")
    gate(db, "orders", "order_lines")
    load(db, "orders", "1,north,10\n2,north,20\n")
    load(db, "order_lines", "1,north\n2,north\n")
    both = "source public.order_lines is gated; source public.orders is gated"
    eventually(lambda: skips(db, "report") == [both], what="what reads it is skipped")
    eventually(lambda: skips(db, "downstream") == [both], what="what reads it through another is skipped")
    ungate(db, "orders")
    eventually(lambda: len(skips(db, "report")) == 2, what="the other gate still holds")
    assert skips(db, "report") == [both, "source public.order_lines is gated"]
    assert refreshes(db, "report") == ["FULL"]
    ungate(db, "order_lines")
    eventually(lambda: db.value("SELECT n FROM downstream") == 4)
    assert refreshes(db, "report") == ["FULL", "DIFFERENTIAL"]
    db.assert_current("report", "downstream")


def test_recipe_3_gate_and_deferred_initialization(orders: Database, eventually: Eventually) -> None:
    """The recipe names the sum `s.total`, so it must be called so."""
    db = orders
    gate(db, "orders", "order_lines")
    db.create(
        "order_summary",
        "SELECT region, SUM(amount) AS total FROM orders GROUP BY region",
        schedule="1m",
        initialize=False,
    )
    db.create(
        "order_report",
        "SELECT s.region, s.total, l.line_count FROM order_summary s"
        " JOIN (SELECT region, COUNT(*) AS line_count FROM order_lines GROUP BY region) l USING (region)",
        schedule="1m",
        initialize=False,
    )
    eventually(lambda: skips(db, "order_report"), what="the scheduler would have populated it")
    loader = db.connect(autocommit=False)
    for table, rows in (("orders", "1,north,10\n2,north,20\n"), ("order_lines", "1,north\n2,north\n3,north\n")):
        assert not db.state("order_report")["is_populated"]
        with loader.cursor().copy(f"COPY {table} FROM STDIN WITH (FORMAT csv)".encode()) as copy:
            copy.write(rows)
        loader.execute("SELECT pgtrickle.ungate_source(%s)", [table])
        loader.commit()
    report = "SELECT region, total, line_count FROM order_report"
    eventually(lambda: db.state("order_report")["is_populated"])
    assert db.rows(report) == [("north", 30, 3)]
    db.assert_current("order_summary", "order_report")
    assert refreshes(db, "order_report") == ["FULL"]


def test_recipe_4_nightly_batch_pattern(live_db: Database, eventually: Eventually) -> None:
    db = live_db
    db.run("CREATE TABLE sales (id int PRIMARY KEY, v int); CREATE TABLE inventory (id int PRIMARY KEY, v int)")
    db.run("INSERT INTO sales VALUES (1, 1); INSERT INTO inventory VALUES (1, 1)")
    db.create("margin", "SELECT s.id, s.v - i.v AS left FROM sales s JOIN inventory i USING (id)", schedule="1s")
    gate(db, "sales", "inventory")
    with seen_while(db, 'SELECT count(*), coalesce(sum("left"), 0)::int FROM margin') as seen:
        db.run("TRUNCATE sales")
        load(db, "sales", "1,10\n2,10\n")
        db.run("TRUNCATE inventory")
        load(db, "inventory", "1,3\n2,3\n")
        eventually(lambda: skips(db, "margin"))
        ungate(db, "sales", "inventory")
        eventually(lambda: db.value("SELECT count(*) FROM margin") == 2)
    assert seen <= {(1, 0), (2, 14)}
    assert db.rows("SELECT source_table, gated FROM pgtrickle.bootstrap_gate_status()") == [
        ("inventory", False),
        ("sales", False),
    ]


def test_recipe_5_monitoring_during_a_gated_load(orders: Database) -> None:
    db = orders
    db.run("CREATE TABLE stale_source (id int PRIMARY KEY)")
    db.create("summary", "SELECT region, sum(amount) AS total FROM orders GROUP BY region")
    db.create("report", "SELECT s.total, l.id FROM summary s JOIN order_lines l USING (region)")
    gate(db, "orders", "stale_source", "order_lines")
    ungate(db, "order_lines")
    ((orders_, gated_for, affected), (stale, _, nothing)) = db.rows(
        "SELECT source_table, gate_duration, affected_stream_tables"
        " FROM pgtrickle.bootstrap_gate_status() WHERE gated = true"
    )
    assert (orders_, affected, stale, nothing) == ("orders", "public.report, public.summary", "stale_source", "")
    assert timedelta(0) < gated_for < timedelta(minutes=10)
    assert db.rows(
        "SELECT source_table, schema_name, gated, gated_by, affected_stream_tables"
        " FROM pgtrickle.bootstrap_gate_status()"
    ) == [
        ("orders", "public", True, "gate_source", "public.report, public.summary"),
        ("stale_source", "public", True, "gate_source", ""),
        ("order_lines", "public", False, "gate_source", ""),
    ]
    assert db.value(
        "SELECT gate_duration = ungated_at - gated_at AND ungated_at > gated_at FROM pgtrickle.bootstrap_gate_status()"
        " WHERE source_table = 'order_lines'"
    )
    ungate(db, "stale_source")
    assert db.rows("SELECT source_table FROM pgtrickle.bootstrap_gate_status() WHERE gated") == [("orders",)]


def test_refresh_by_hand_is_not_affected(orders: Database, eventually: Eventually) -> None:
    db = orders
    db.create("totals", "SELECT region, sum(amount) AS total FROM orders GROUP BY region", schedule="1s")
    gate(db, "orders")
    load(db, "orders", "1,north,10\n")
    eventually(lambda: skips(db, "totals") == [GATED])
    db.assert_refreshed("totals")
    assert db.value("SELECT total FROM totals") == 10
    # Neither is creating one.
    db.create("count", "SELECT count(*) AS n FROM orders", schedule="1s")
    assert db.value("SELECT n FROM count") == 1


def test_creation_past_the_server_is_not_affected(orders: Database, eventually: Eventually) -> None:
    db = orders
    gate(db, "orders")
    load(db, "orders", "1,north,10\n")
    db.bypass().execute("SELECT pgtrickle.create_stream_table('count', 'SELECT count(*) AS n FROM orders', '1h')")
    eventually(lambda: db.value("SELECT to_regclass('count') IS NOT NULL") and db.state("count")["is_populated"])


def test_no_refresh_sees_what_was_loaded_after_the_gate(orders: Database, eventually: Eventually) -> None:
    """Also where it was under way, or about to begin, when the gate came."""
    db = orders
    db.create("whole", "SELECT count(*) AS n FROM orders", schedule="1s")
    writer = db.connect()
    for n in range(0, 12, 2):
        before = len(skips(db, "whole"))
        writer.execute("INSERT INTO orders VALUES (%s, 'x', 1)", [n])  # it becomes due at some time after this
        writer.execute("SELECT pgtrickle.gate_source('orders')")
        writer.execute("INSERT INTO orders VALUES (%s, 'x', 1)", [n + 1])
        eventually(
            lambda n=n, before=before: len(skips(db, "whole")) > before or db.value("SELECT n FROM whole") > n,
            what="it is skipped, or refreshed as it was before the gate",
        )
        assert db.value("SELECT n FROM whole") <= n + 1
        writer.execute("SELECT pgtrickle.ungate_source('orders')")
        eventually(lambda n=n: db.value("SELECT n FROM whole") == n + 2)


def test_refresh_that_was_found_due_before_there_was_a_gate_is_not_done(
    orders: Database, eventually: Eventually
) -> None:
    """The scheduler's look is blind here: refreshes alone see gates."""
    db = orders
    db.run("ALTER FUNCTION pgtrickle._held_back() RENAME TO _truly_held_back")
    db.run(
        "CREATE FUNCTION pgtrickle._held_back() RETURNS TABLE (pgt_id bigint, reason text) LANGUAGE sql AS"
        " $$ SELECT * FROM pgtrickle._truly_held_back() WHERE current_setting('application_name') ~ ': refresh$' $$"
    )
    db.create("count", "SELECT count(*) AS n FROM orders", schedule="1s")
    db.create("others", "SELECT count(*) AS n FROM order_lines", schedule="1s")
    gate(db, "orders")
    load(db, "orders", "1,north,10\n")
    for n in range(2):
        load(db, "order_lines", f"{n},north\n")
        eventually(lambda n=n: db.value("SELECT n FROM others") == n + 1)
    assert db.value("SELECT n FROM count") == 0 and refreshes(db, "count") == ["FULL"]
    ungate(db, "orders")
    eventually(lambda: db.value("SELECT n FROM count") == 1)


def test_refresh_asks_in_its_own_snapshot_what_holds_it_back(db: Database) -> None:
    """It was found due before there was a gate. Who waits for it, to refresh it by hand, is not told."""
    db.run("CREATE TABLE t (id int PRIMARY KEY)")
    db.create("st", "SELECT id FROM t")
    found = "SELECT pgtrickle._begin_refresh(%s, %s)->>'held_back'"
    pgt_id = db.state("st")["pgt_id"]
    with db.connect(autocommit=False) as before:
        before.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        before.execute("SELECT FROM t")
        db.run("INSERT INTO t VALUES (1); SELECT pgtrickle.gate_source('t'); INSERT INTO t VALUES (2)")
        assert before.execute(found.encode(), [pgt_id, False]).fetchone() == (None,)
    with db.connect(autocommit=False) as after:
        assert after.execute(found.encode(), [pgt_id, False]).fetchone() == ("source public.t is gated",)
        assert after.execute(found.encode(), [pgt_id, True]).fetchone() == (None,)


@pytest.mark.parametrize(
    ("gated", "read"),
    [
        ("part", "part"),
        ("part", "part1"),
        ("part1", "part"),
        ("seen", "seen"),
        ("part", "seen"),
        ("part1", "seen"),
        ("st", "st"),
        ("part", "st"),
    ],
)
@pytest.mark.one_in(2)
def test_what_a_gate_holds_back(db: Database, gated: str, read: str) -> None:
    db.run("CREATE TABLE part (id int) PARTITION BY RANGE (id); CREATE VIEW seen AS SELECT id FROM part")
    db.run("CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (10); CREATE TABLE other (id int)")
    db.create("st", "SELECT id, count(*) AS n FROM part GROUP BY id")
    db.create("reader", f"SELECT id FROM {read}")
    db.create("downstream", "SELECT count(*) AS n FROM reader")
    db.create("beside", "SELECT id FROM other")
    gate(db, gated)
    held = {name for (name,) in db.rows(HELD_BACK)}
    assert held - {"st"} == {"reader", "downstream"}
    assert ("st" in held) == (gated in ("part", "part1"))


def test_view_that_is_asked_as_a_whole_is_held_back_by_what_is_below(db: Database, role: Role) -> None:
    db.run("CREATE TABLE secret (id int); CREATE VIEW shown AS SELECT id FROM secret")
    alice = role("alice")
    db.run(f"GRANT SELECT ON shown TO {alice.info.user}")
    alice.execute("SELECT pgtrickle.create_stream_table('st', 'SELECT id FROM shown', '1h')")
    gate(db, "secret")
    assert db.rows("SELECT reason FROM pgtrickle._held_back()") == [("source public.secret is gated",)]


# -- the registry -----------------------------------------------------------------------------------------------------


def test_gate_set_again_and_taken_back(orders: Database) -> None:
    db = orders
    times = "SELECT gated_at, ungated_at FROM pgtrickle.source_gates()"
    gate(db, "orders")
    first = db.rows(times)
    assert db.rows(GATES) == [("orders", "public", True, "gate_source")] and first[0][1] is None
    gate(db, "orders")
    assert db.rows(times)[0][0] > first[0][0]
    ungate(db, "orders")
    ungated = db.rows(times)
    assert db.rows(GATES) == [("orders", "public", False, "gate_source")] and ungated[0][1] > ungated[0][0]
    notices: list[str | None] = []
    db.connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    ungate(db, "orders", "order_lines")
    assert notices == ["source public.orders is not gated", "source public.order_lines is not gated"]
    assert db.rows(times) == ungated
    gate(db, "orders")
    assert db.rows(times)[0][1] is None


def test_gate_is_part_of_the_transaction(orders: Database) -> None:
    db = orders
    with db.connect(autocommit=False) as user:
        user.execute("SELECT pgtrickle.gate_source('orders')")
        assert user.execute("SELECT gate_duration FROM pgtrickle.bootstrap_gate_status()").fetchall() == [
            (timedelta(0),)
        ]
        assert db.rows(GATES) == []
        user.rollback()
    assert db.rows(GATES) == []


@pytest.mark.parametrize(
    ("argument", "state"),
    [
        ("NULL", "22004"),
        ("'nothing'", "42P01"),
        ("'orders_pkey'", "42809"),
        ("'pg_temp.mine'", "0A000"),
    ],
)
@pytest.mark.parametrize("function", ["gate_source", "ungate_source"])
@pytest.mark.one_in(2)
def test_bad_arguments(orders: Database, function: str, argument: str, state: str) -> None:
    orders.run("CREATE TEMP TABLE mine (id int)")
    with pytest.raises(psycopg.Error) as error:
        orders.run(f"SELECT pgtrickle.{function}({argument})")
    assert error.value.sqlstate == state


def test_names_are_found_along_the_search_path(orders: Database) -> None:
    db = orders
    db.run('CREATE SCHEMA "Other"; CREATE TABLE "Other".orders (id int)')
    db.run('SET search_path = "Other", public')
    gate(db, "orders", '"Other"."orders"')
    gate(db, "public.order_lines")
    assert [row[:2] for row in db.rows(GATES)] == [("orders", "Other"), ("order_lines", "public")]


def test_who_may_gate(db: Database, role: Role) -> None:
    alice, bob = role("alice"), role("bob")
    alice.execute("CREATE TABLE hers (id int)")
    for call in ("gate_source", "ungate_source"):
        statement = f"SELECT pgtrickle.{call}('hers')".encode()
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"permission denied for source public\.hers"):
            bob.execute(statement)
    alice.execute("SELECT pgtrickle.gate_source('hers')")
    alice.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON hers TO {bob.info.user}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        bob.execute("SELECT pgtrickle.ungate_source('hers')")
    alice.execute(f"GRANT TRUNCATE ON hers TO {bob.info.user}")
    bob.execute("SELECT pgtrickle.ungate_source('hers')")
    assert db.rows("SELECT gated FROM pgtrickle.source_gates()") == [(False,)]


def test_functions_gate_with_the_rights_that_they_have(db: Database, role: Role) -> None:
    """Unlike requests of the engine: a gate is a row that PostgreSQL writes."""
    alice, bob = role("alice"), role("bob")
    alice.execute("CREATE TABLE hers (id int)")
    for name, options in (("mine", ""), ("lent", "SECURITY DEFINER")):
        alice.execute(
            f"CREATE FUNCTION {name}() RETURNS void LANGUAGE plpgsql {options} AS"
            " $$ BEGIN PERFORM pgtrickle.gate_source('public.hers'); END $$".encode()
        )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        bob.execute("SELECT mine()")
    assert db.rows(GATES) == []
    bob.execute("SELECT lent()")
    assert [row[:3] for row in db.rows(GATES)] == [("hers", "public", True)]


def test_nobody_can_lock_gates_or_write_them_past_the_functions(db: Database, role: Role) -> None:
    alice, mallory = role("alice"), role("mallory")
    alice.execute("CREATE TABLE hers (id int); SELECT pgtrickle.gate_source('hers')")
    for statement in (
        "LOCK TABLE pgtrickle.pgt_source_gates IN ROW SHARE MODE",
        "SELECT * FROM pgtrickle.pgt_source_gates FOR KEY SHARE",
        "UPDATE pgtrickle.pgt_source_gates SET gated = false",
        "INSERT INTO pgtrickle.pgt_source_gates VALUES ('pg_class'::regclass)",
        "LOCK TABLE pgtrickle.pgt_source_signals IN SHARE MODE",
        "INSERT INTO pgtrickle.pgt_source_signals (signal, source_relids, signalled_by)"
        " VALUES ('ungate', ARRAY['hers'::regclass], 'postgres')",
        "SELECT pgtrickle._keep_signals()",
        "CREATE TABLE own (LIKE pgtrickle.pgt_source_signals);"
        " CREATE TRIGGER t BEFORE INSERT ON own FOR EACH ROW EXECUTE FUNCTION pgtrickle._take_signal()",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), mallory.transaction():
            mallory.execute(statement.encode())
    with pytest.raises(psycopg.errors.InvalidParameterValue):
        alice.execute(
            "INSERT INTO pgtrickle.pgt_source_signals (signal, source_relids) VALUES ('?', ARRAY['hers'::regclass])"
        )
    alice.execute(
        "INSERT INTO pgtrickle.pgt_source_signals (signal, source_relids) VALUES ('gate', ARRAY['hers'::regclass])"
    )
    assert [row[2] for row in db.rows(GATES)] == [True]
    assert db.rows("SELECT * FROM pgtrickle.pgt_source_signals") == []


# -- sources that come and go -----------------------------------------------------------------------------------------


def test_renamed_source_stays_gated_and_dropped_one_is_forgotten(orders: Database) -> None:
    db = orders
    gate(db, "orders", "order_lines")
    db.run("CREATE SCHEMA etl; ALTER TABLE orders SET SCHEMA etl; ALTER TABLE etl.orders RENAME TO sales")
    assert [row[:3] for row in db.rows(GATES)] == [("sales", "etl", True), ("order_lines", "public", True)]
    names = "SELECT source_name FROM pgtrickle.pgt_source_gates ORDER BY 1"
    assert db.rows(names) == [("etl.sales",), ("public.order_lines",)]
    db.run("DROP TABLE order_lines; ALTER SCHEMA etl RENAME TO loaded")
    assert db.rows(names) == [("loaded.sales",)]


def test_dropping_a_source_does_not_wait_for_who_gates_another(orders: Database) -> None:
    with orders.connect(autocommit=False) as user:
        user.execute("SELECT pgtrickle.gate_source('orders')")
        orders.run("SET lock_timeout = '60s'; DROP TABLE order_lines; ALTER TABLE orders RENAME TO sales")
        user.commit()
    assert [row[:3] for row in orders.rows(GATES)] == [("sales", "public", True)]
