"""What a script written for pg_trickle does: the examples of its reference that no other test runs.

`docs/compatibility.md` says for each item of the reference which test shows it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, drop_role

SOURCES = """
CREATE TABLE orders (id int PRIMARY KEY, customer_id int, region text, amount numeric, status text);
INSERT INTO orders SELECT n, n % 5, 'r' || n % 3, n * 30, CASE WHEN n % 2 = 0 THEN 'active' END
FROM generate_series(1, 20) AS n;
CREATE TABLE events (id int PRIMARY KEY, event_type text, payload jsonb, created_at timestamptz);
INSERT INTO events SELECT n, 'type ' || n % 2, '{}', now() FROM generate_series(1, 5) AS n;
CREATE TYPE place AS (street text, town text);
CREATE TABLE things (id int PRIMARY KEY, a int, b int, flag bool, name text, list int[], at place, doc text);
INSERT INTO things
SELECT n, n, nullif(n % 4, 0), nullif(n % 3, 0) = 1, 'name ' || n, ARRAY[n, 2, NULL], ROW('s' || n, NULL)::place,
       (ARRAY['{"p": [{"t": "x", "n": [1, 2]}, {"t": null}]}', '[1]', '3', 'no json', NULL])[n % 5 + 1]
FROM generate_series(1, 12) AS n
"""

EXPRESSIONS = {
    "conditional": "SELECT id, CASE WHEN a > 6 THEN 'high' ELSE 'low' END AS searched,"
    " CASE b WHEN 1 THEN 'one' WHEN 2 THEN 'two' END AS simple, coalesce(b, a, 0) AS first, nullif(a, b) AS distinct_a,"
    " greatest(a, b, 3) AS most, least(a, b) AS least FROM things",
    "comparisons": "SELECT id, a IN (1, 2) AS among, a NOT IN (1, b) AS not_among, a BETWEEN 2 AND 4 AS between_,"
    " a NOT BETWEEN b AND 4 AS not_between, a IS DISTINCT FROM b AS differs, a IS NOT DISTINCT FROM b AS same,"
    " name SIMILAR TO 'name (1|2)%' AS similar_, a = ANY (ARRAY[1, 2]) AS any_, a > ALL (ARRAY[b, 1]) AS all_"
    " FROM things WHERE a = ANY (list)",
    "boolean tests": "SELECT id, flag IS TRUE AS t, flag IS NOT TRUE AS nt, flag IS FALSE AS f, flag IS NOT FALSE"
    " AS nf, flag IS UNKNOWN AS u, flag IS NOT UNKNOWN AS nu FROM things",
    "values of SQL": "SELECT id, CURRENT_DATE > DATE '2000-01-01' AS d, CURRENT_TIME IS NULL AS t,"
    " LOCALTIME IS NULL AS l, CURRENT_TIMESTAMP > TIMESTAMPTZ '2000-01-01' AS ts, LOCALTIMESTAMP IS NULL AS lts,"
    " CURRENT_ROLE = CURRENT_USER AS r, SESSION_USER IS NULL AS s, CURRENT_CATALOG IS NULL AS c,"
    " CURRENT_SCHEMA IS NULL AS cs FROM things",
    "arrays and rows": "SELECT id, ARRAY[a, b, 3] AS made, ROW(a, name) = ROW(2, 'name 2') AS row_, list[1] AS element,"
    " (at).street AS field, (at).* FROM things",
    "predicates of JSON": "SELECT id, doc IS JSON AS j, doc IS JSON OBJECT AS o, doc IS JSON ARRAY AS a,"
    " doc IS JSON SCALAR AS s, doc IS NOT JSON AS nj, doc IS NOT JSON OBJECT AS no, doc IS JSON WITH UNIQUE KEYS AS u"
    " FROM things",
    "constructors of JSON": "SELECT id, JSON_OBJECT('name' : name, 'b' : b ABSENT ON NULL)::text AS o,"
    " JSON_ARRAY(a, b NULL ON NULL)::text AS a, JSON_SCALAR(a)::text AS s, JSON('[1]')::text AS j,"
    " JSON_SERIALIZE('{}' RETURNING text) AS z FROM things",
    "aggregates of JSON": "SELECT b, JSON_ARRAYAGG(a ORDER BY a ABSENT ON NULL)::text AS list,"
    " JSON_OBJECTAGG(name : a)::jsonb AS pairs FROM things GROUP BY b",
    "JSON_TABLE": "SELECT t.id, j.* FROM (SELECT id, doc::jsonb AS doc FROM things WHERE doc IS JSON OBJECT) AS t,"
    " JSON_TABLE(t.doc, '$.p[*]' PASSING 1 AS one COLUMNS (kind text PATH '$.t' DEFAULT 'none' ON EMPTY NULL ON ERROR,"
    " is_there bool EXISTS PATH '$.n', whole text FORMAT JSON PATH '$.n', NESTED PATH '$.n[*]'"
    " COLUMNS (n int PATH '$'))) AS j",
    "collation": 'SELECT name COLLATE "C" AS c_name, count(*) AS n FROM things GROUP BY name COLLATE "C"',
    "subqueries": "SELECT id FROM things t WHERE a > ALL (SELECT amount FROM orders o WHERE o.customer_id = t.b)"
    " AND (EXISTS (SELECT FROM events e WHERE e.id = t.a) OR b IN (SELECT customer_id FROM orders))",
}
CHANGES = (
    "INSERT INTO things SELECT id + 100, b, a, NOT flag, name, NULL, NULL, doc FROM things WHERE id < 7",
    'UPDATE things SET a = 2, flag = NULL, list = ARRAY[2], doc = \'{"p": [{"n": [7]}]}\', name = upper(name)'
    " WHERE id % 3 = 0",
    "DELETE FROM things WHERE id % 4 = 1; DELETE FROM orders WHERE id < 4",
)


@pytest.fixture(scope="module")
def things(shared_db: Database) -> Database:
    shared_db.run(SOURCES)
    return shared_db


@pytest.fixture
def made(things: Database) -> Iterator[Database]:
    """Stream tables that a test makes are dropped after it, and its changes undone."""
    yield things
    for (name,) in things.rows("SELECT name FROM pgtrickle.pgt_status()"):
        things.run("SELECT pgtrickle.drop_stream_table(%s)", name)
    things.run("DROP TABLE orders, events, things CASCADE; DROP TYPE place")
    things.run(SOURCES)


def test_every_kind_of_expression_is_maintained(made: Database) -> None:
    db = made
    for number, query in enumerate(EXPRESSIONS.values()):
        db.create(f"st{number}", query, refresh_mode="DIFFERENTIAL")
    for change in CHANGES:
        db.run(change)
        for number, kind in enumerate(EXPRESSIONS):
            db.refresh(f"st{number}")
            assert db.difference(f"st{number}") == [], kind
            assert db.last(f"st{number}")[0] in ("DIFFERENTIAL", "NO_DATA"), kind


def test_examples_of_alter_stream_table(made: Database) -> None:
    """From the first to the last."""
    db = made
    db.create("order_totals", "SELECT customer_id, sum(amount) AS total FROM orders GROUP BY customer_id")
    db.create("event_log_st", "SELECT id, event_type, payload, created_at FROM events", schedule="30s")
    oid = db.value("SELECT 'order_totals'::regclass::oid")
    for arguments, expected in (
        (
            "query => 'SELECT customer_id, SUM(amount) AS total FROM orders WHERE status = ''active''"
            " GROUP BY customer_id'",
            {"status": "ACTIVE"},
        ),
        (
            "query => 'SELECT customer_id, SUM(amount) AS total, COUNT(*) AS cnt FROM orders GROUP BY customer_id'",
            {"refresh_mode": "DIFFERENTIAL"},
        ),
        (
            "query => 'SELECT customer_id, SUM(amount) AS total FROM orders GROUP BY customer_id',"
            " refresh_mode => 'FULL'",
            {"refresh_mode": "FULL"},
        ),
        ("schedule => '5m'", {"schedule": "5m"}),
        ("refresh_mode => 'FULL'", {"refresh_mode": "FULL"}),
        ("refresh_mode => 'IMMEDIATE'", {"refresh_mode": "IMMEDIATE", "schedule": None}),
        ("refresh_mode => 'DIFFERENTIAL', schedule => '5m'", {"refresh_mode": "DIFFERENTIAL", "schedule": "5m"}),
        ("cdc_mode => 'trigger'", {"requested_cdc_mode": "trigger"}),
        ("status => 'SUSPENDED'", {"status": "SUSPENDED"}),
        ("status => 'ACTIVE'", {"status": "ACTIVE", "consecutive_errors": 0}),
    ):
        db.run(f"SELECT pgtrickle.alter_stream_table('order_totals', {arguments})")
        assert expected.items() <= db.state("order_totals").items(), arguments
        db.assert_current("order_totals")
    assert db.value("SELECT 'order_totals'::regclass::oid") == oid
    db.run("SELECT pgtrickle.alter_stream_table('event_log_st', append_only => true)")
    assert db.state("event_log_st")["append_only"]
    db.run("SELECT pgtrickle.create_stream_table('live', 'SELECT id FROM orders', refresh_mode => 'IMMEDIATE')")
    db.run("INSERT INTO orders VALUES (1000)")
    db.assert_current("live")


def test_examples_of_the_monitoring_functions(made: Database) -> None:
    """Each runs, and shows the stream table and its source."""
    db = made
    db.create("order_totals", "SELECT region, SUM(amount) AS total FROM orders GROUP BY region", schedule="5m")
    db.run("UPDATE orders SET amount = 0 WHERE id = 1")
    db.refresh("order_totals")
    oid = db.value("SELECT 'orders'::regclass::oid::bigint")
    ((start, name, action, status, took), _) = db.rows(
        "SELECT start_time, stream_table, action, status, round(duration_ms::numeric,1) AS ms"
        " FROM pgtrickle.refresh_timeline(20)"
    )
    assert (name, action, status) == ("public.order_totals", "DIFFERENTIAL", "COMPLETED")
    assert isinstance(start, datetime.datetime) and took > 0
    assert db.rows("SELECT * FROM pgtrickle.refresh_timeline(100) WHERE status = 'FAILED'") == []
    ((*counts, average, stale),) = db.rows(
        "SELECT pgt_name, status, total_refreshes, avg_duration_ms, stale FROM pgtrickle.st_refresh_stats()"
    )
    assert counts == ["order_totals", "ACTIVE", 2] and average > 0 and stale is False
    assert db.rows("SELECT action, status, rows_inserted FROM pgtrickle.get_refresh_history('order_totals', 5)") == [
        ("DIFFERENTIAL", "COMPLETED", 0),
        ("FULL", "COMPLETED", 3),
    ]
    assert db.rows("SELECT * FROM pgtrickle.slot_health()") == []
    assert db.rows("SELECT * FROM pgtrickle.check_cdc_health()") == [
        (oid, "public.orders", "TRIGGER", None, None, None, None)
    ]
    db.run("INSERT INTO orders VALUES (99)")
    ((*buffer, size),) = db.rows("SELECT * FROM pgtrickle.change_buffer_sizes() ORDER BY pending_rows DESC")
    assert buffer == ["public.order_totals", "public.orders", oid, "trigger", 1] and size > 0
    missing = (
        "SELECT source_table, trigger_type, trigger_name FROM pgtrickle.trigger_inventory()"
        " WHERE NOT present OR NOT enabled"
    )
    assert db.rows(missing) == []
    db.run(f"ALTER TABLE orders DISABLE TRIGGER pg_trickle_cdc_truncate_{oid}")
    assert db.rows(missing) == [("public.orders", "TRUNCATE", f"pg_trickle_cdc_truncate_{oid}")]
    assert db.rows("SELECT * FROM pgtrickle.list_sources('order_totals')") == [
        ("public.orders", oid, "table", "trigger", "amount, region")
    ]
    assert {"Defining Query", "Refresh Mode", "Operator Tree", "Source Tables", "DVM Supported"} <= {
        name for name, _ in db.rows("SELECT * FROM pgtrickle.explain_st('order_totals')")
    }


def test_columns_of_the_catalog_say_what_the_reference_says(made: Database) -> None:
    db = made
    db.run("CREATE TABLE keyless (a int); INSERT INTO keyless VALUES (1)")
    db.run("CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2 * $1'")
    try:
        db.create("kept", "SELECT twice(a) AS a FROM keyless", schedule="1h")
        db.create("active", "SELECT id, v.amount FROM (SELECT id, amount FROM orders) AS v", refresh_mode="FULL")
        kept, active = db.state("kept"), db.state("active")
        assert kept["has_keyless_source"] and not active["has_keyless_source"]
        assert "twice" in kept["functions_used"] and re.search("[0-9a-f]{32}", kept["function_hashes"])
        assert kept["last_full_ms"] > 0 and kept["frontier"] and kept["auto_threshold"] is None
        assert (kept["original_query"], kept["scc_id"]) == ("SELECT twice(a) AS a FROM keyless", None)
        ((snapshot, fingerprint, used, mode),) = db.rows(
            "SELECT column_snapshot::text, schema_fingerprint, columns_used, cdc_mode FROM pgtrickle.pgt_dependencies"
            " WHERE pgt_id = %s",
            kept["pgt_id"],
        )
        assert '"a"' in snapshot and re.fullmatch("[0-9a-f]{64}", fingerprint) and (used, mode) == (["a"], "TRIGGER")
        db.run("INSERT INTO keyless VALUES (2)")
        db.refresh("kept")
        last = db.history("kept")[-1]
        assert (last["delta_row_count"], last["was_full_fallback"], last["merge_strategy_used"]) == (
            1, False, "DELETE+UPDATE+INSERT",
        )  # fmt: skip
        assert last["freshness_deadline"] is None or last["freshness_deadline"] > last["start_time"]
        assert last["fixpoint_iteration"] is None
    finally:
        db.run("DROP TABLE keyless CASCADE; DROP FUNCTION twice CASCADE")


def test_triggers_on_a_stream_table_see_each_row_that_changes(made: Database) -> None:
    """With TG_OP, OLD and NEW; also in FULL mode, where pg_trickle suppresses them."""
    db = made
    db.create("st", "SELECT id, amount FROM orders")
    db.run(
        "CREATE TABLE seen (op text, old int, new int); CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN INSERT INTO public.seen VALUES (TG_OP, OLD.amount, NEW.amount); RETURN NULL; END $$;"
        "CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON st FOR EACH ROW EXECUTE FUNCTION see()"
    )
    try:
        for mode in ("DIFFERENTIAL", "FULL"):
            db.run("SELECT pgtrickle.alter_stream_table('st', refresh_mode => %s)", mode)
            db.refresh("st")
            db.run("TRUNCATE seen")
            db.run("INSERT INTO orders VALUES (50, 1, 'x', 5, NULL); UPDATE orders SET amount = 7 WHERE id = 2")
            db.refresh("st")
            db.run("DELETE FROM orders WHERE id = 50; UPDATE orders SET amount = 60 WHERE id = 2")
            db.refresh("st")
            assert sorted(db.rows("SELECT op, old, new FROM seen"), key=repr) == [
                ("DELETE", 5, None), ("INSERT", None, 5), ("UPDATE", 60, 7), ("UPDATE", 7, 60),
            ], mode  # fmt: skip
    finally:
        db.run("DROP FUNCTION see CASCADE; DROP TABLE seen")


def test_views_materialized_views_publications_and_policies_on_a_stream_table(made: Database) -> None:
    db = made
    db.create("order_totals", "SELECT customer_id, SUM(amount) AS total FROM orders GROUP BY customer_id")
    db.run("CREATE VIEW top_customers AS SELECT customer_id, total FROM order_totals WHERE total > 1500 ORDER BY total")
    db.run("CREATE MATERIALIZED VIEW copied AS SELECT customer_id, total FROM order_totals")
    db.run("CREATE PUBLICATION my_pub FOR TABLE order_totals")
    try:
        before = db.rows("SELECT * FROM top_customers")
        db.run("UPDATE orders SET amount = amount + 10000 WHERE customer_id = 1")
        db.refresh("order_totals")
        assert before != db.rows("SELECT * FROM top_customers") != []
        assert db.value("SELECT max(total) < 10000 FROM copied")
        db.run("REFRESH MATERIALIZED VIEW copied")
        assert db.value("SELECT max(total) > 10000 FROM copied")
        # One stream table for all tenants: each sees its own rows.
        db.run("CREATE ROLE tenant; GRANT SELECT ON order_totals TO tenant")
        db.run("ALTER TABLE order_totals ENABLE ROW LEVEL SECURITY")
        db.run(
            "CREATE POLICY tenant_isolation ON order_totals USING (customer_id = current_setting('app.tenant_id')::int)"
        )
        db.refresh("order_totals")
        db.assert_current("order_totals")
        with db.connect() as tenant:
            tenant.execute("SET ROLE tenant; SET app.tenant_id = '2'")
            assert tenant.execute("SELECT customer_id FROM order_totals").fetchall() == [(2,)]
    finally:
        db.run("DROP PUBLICATION my_pub")
        drop_role(db.connection, "tenant")


def test_a_defining_query_may_name_stream_tables_by_the_schema_of_the_functions(made: Database) -> None:
    """As in "Referencing Other Stream Tables": they are found where they are."""
    db = made
    db.run('CREATE SCHEMA "Other s"')
    try:
        db.create("order_totals", "SELECT customer_id, SUM(amount) AS total FROM orders GROUP BY customer_id")
        db.create('"Other s"."Odd one"', "SELECT id FROM orders")
        query = "SELECT customer_id, pgtrickle.order_totals.total FROM pgtrickle.order_totals WHERE total > 1000"
        db.create("big_customers", query, schedule="1m")
        assert db.value("SELECT source_table FROM pgtrickle.list_sources('big_customers')") == "public.order_totals"
        assert db.state("big_customers")["original_query"] == query
        db.run("UPDATE orders SET amount = amount + 1000 WHERE id = 1")
        db.refresh("order_totals")
        db.assert_differential("big_customers")
        db.run('SET search_path = public, "Other s"')
        other = """SELECT o.id FROM "pgtrickle" . "Odd one" AS o JOIN pgtrickle.pgt_status() ON name <> 'pgtrickle.x'"""
        db.create("over_odd", other)
        assert 'FROM ("Other s"."Odd one" o' in db.state("over_odd")["defining_query"]
        for wrong, position in (
            ("SELECT id FROM pgtrickle.order_totals", 8),
            ("SELECT 1 FROM pgtrickle.nothing", 15),
            ("SELECT pgtrickle.order_totals FROM events AS pgtrickle", 8),
        ):
            with pytest.raises(psycopg.Error) as caught:
                db.create("wrong", wrong)
            assert (caught.value.sqlstate or "")[:3] in ("42P", "427"), wrong
            assert caught.value.diag.internal_position == str(position), wrong
    finally:
        db.run("RESET search_path")
        for name in ("over_odd", '"Other s"."Odd one"'):
            db.run("SELECT pgtrickle.drop_stream_table(%s)", name)
        db.run('DROP SCHEMA "Other s"')


def test_statements_may_name_stream_tables_by_the_schema_of_the_functions(made: Database) -> None:
    """The reference's examples that read pgtrickle.order_totals, in both protocols."""
    db = made
    db.create("order_totals", "SELECT customer_id, SUM(amount) AS total FROM orders GROUP BY customer_id")
    expected = db.value("SELECT total FROM order_totals WHERE customer_id = 2")
    for statement in (
        "SELECT total FROM pgtrickle.order_totals WHERE customer_id = 2",
        'WITH t AS (SELECT pgtrickle.order_totals.* FROM "pgtrickle" . order_totals) SELECT total FROM t'
        " WHERE customer_id = 2",
        "EXPLAIN SELECT total FROM pgtrickle.order_totals",
    ):
        assert db.rows(statement)[0][0] == expected or "order_totals" in db.rows(statement)[0][0]
    prepared = "SELECT total FROM pgtrickle.order_totals WHERE customer_id = %b AND %t > 1"
    with db.connect() as client:
        for _ in range(3):  # with the types of its parameters, also once it has a name
            assert client.execute(prepared, (2, 5), prepare=True).fetchall() == [(expected,)]
        both = client.execute("SELECT 1; SELECT total FROM pgtrickle.order_totals WHERE customer_id = 2; SELECT 3")
        assert both.nextset() and both.fetchall() == [(expected,)]
        with pytest.raises(psycopg.errors.UndefinedColumn) as caught:
            client.execute("SELECT 1; SELECT nothing FROM pgtrickle.order_totals")
        assert caught.value.diag.statement_position == "18"
    db.run(
        "CREATE VIEW top_customers AS SELECT customer_id, total FROM pgtrickle.order_totals WHERE total > 500"
        " ORDER BY total DESC"
    )
    assert db.value("SELECT count(*) FROM top_customers") > 0
    db.run("CREATE TEMPORARY TABLE kept (customer_id int, total numeric)")
    assert db.run("INSERT INTO kept SELECT customer_id, total FROM pgtrickle.order_totals").rowcount == 5
    assert db.run("DELETE FROM kept USING pgtrickle.order_totals t WHERE t.total = kept.total").rowcount == 5
    db.run("CREATE PUBLICATION my_pub FOR TABLE pgtrickle.order_totals; DROP PUBLICATION my_pub")
    db.run("ALTER TABLE pgtrickle.order_totals ENABLE ROW LEVEL SECURITY")
    db.run("CREATE POLICY tenant_isolation ON pgtrickle.order_totals USING (customer_id = 2)")
    assert db.value("SELECT count(*) FROM pg_policies WHERE tablename = 'order_totals'") == 1
    # What is said of how it is read, in both protocols; some of it cannot run in a transaction.
    for statement in ("CREATE INDEX CONCURRENTLY ON pgtrickle.order_totals (total)",
                      "CREATE STATISTICS ON customer_id, total FROM pgtrickle.order_totals",
                      "GRANT SELECT (total), REFERENCES ON TABLE pgtrickle.order_totals TO PUBLIC",
                      "REVOKE SELECT (total) ON pgtrickle.order_totals FROM PUBLIC", "ANALYZE pgtrickle.order_totals",
                      "VACUUM (ANALYZE) pgtrickle.order_totals",
                      "COMMENT ON COLUMN pgtrickle.order_totals.total IS 'in euros'"):  # fmt: skip
        for extended in (False, True):
            db.connection.execute(statement, prepare=extended)  # type: ignore[call-overload]
    db.run("BEGIN; LOCK pgtrickle.order_totals; COMMIT")
    assert db.value("SELECT col_description('order_totals'::regclass, 3)") == "in euros"
    assert (
        db.value("SELECT count(*) FROM pg_indexes WHERE indexdef LIKE '%% public.order_totals USING btree (total)'")
        == 2
    )
    with db.connect() as client, client.cursor().copy("COPY pgtrickle.order_totals (total) TO STDOUT") as copied:
        assert f"{expected}\n".encode() in b"".join(map(bytes, copied))
    # Nothing is written or dropped under a name that it does not have, and an alias stays one.
    for statement in ("DELETE FROM pgtrickle.orders", "DROP TABLE pgtrickle.orders", "TRUNCATE pgtrickle.orders",
                      "WITH gone AS (DELETE FROM pgtrickle.orders) SELECT 1", "UPDATE pgtrickle.orders SET id = 0",
                      "ALTER TABLE pgtrickle.orders RENAME TO others", "DROP VIEW pgtrickle.orders",
                      "COPY pgtrickle.orders (id) FROM STDIN",
                      "INSERT INTO pgtrickle.orders (id) VALUES (1)"):  # fmt: skip
        for extended in (False, True):
            with pytest.raises(psycopg.errors.UndefinedTable, match="orders") as caught:
                db.connection.execute(statement, prepare=extended)  # type: ignore[call-overload]
            assert (caught.value.diag.message_hint or "").endswith('write public."orders".'), statement
    db.run("SELECT pgtrickle.refresh_stream_table('pgtrickle.order_totals')")
    assert db.value("""SELECT count(*) FROM pgtrickle.list_sources('"pgtrickle".order_totals')""") == 1
    with pytest.raises(psycopg.errors.UndefinedTable, match=r"pgtrickle\.nothing"):
        db.run("SELECT pgtrickle.explain_st('pgtrickle.nothing')")
    assert db.rows("SELECT pgtrickle.id FROM orders AS pgtrickle WHERE pgtrickle.id = 3") == [(3,)]
    assert db.rows("SELECT name FROM pgtrickle.pgt_status()") == [("public.order_totals",)]
    assert db.value("SELECT count(*) FROM pgtrickle.stream_tables_info") == 1


def test_a_refresh_waits_for_its_schedule_where_no_commit_wakes_it(
    live_db: Database, eventually: Callable[..., Any]
) -> None:
    db = live_db
    for setting in ("event_driven_wake = off", "default_schedule_seconds = 2", "scheduler_interval_ms = 100"):
        db.run(f"ALTER DATABASE {db.name} SET pg_trickle.{setting}")
    db.connection = db.connect()
    db.run("CREATE TABLE src (id int PRIMARY KEY)")
    db.create("st", "SELECT id FROM src")
    assert ("Schedule", "calculated (2 s)") in db.rows("SELECT property, value FROM pgtrickle.explain_st('st')")
    db.run("INSERT INTO src VALUES (1)")
    eventually(lambda: db.value("SELECT count(*) FROM st") == 1)
    created, refreshed = db.history("st")
    assert refreshed["start_time"] - created["start_time"] > datetime.timedelta(seconds=1.8)
