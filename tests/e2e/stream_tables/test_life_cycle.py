"""The life of a stream table, from creation to drop, and what the status functions say about it."""

from __future__ import annotations

import datetime
from typing import Any

import psycopg
import pytest
import xxhash

from tests.e2e.conftest import Database

ORDERS = """
CREATE TABLE orders (id int PRIMARY KEY, region text, amount numeric(10, 2));
INSERT INTO orders VALUES (1, 'north', 10), (2, 'north', 5.50), (3, 'south', 7), (4, NULL, NULL)
"""
VOLATILE = "SELECT id, amount FROM orders WHERE random() >= 0"
TOTALS = "SELECT region, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY region"


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture(autouse=True)
def orders(db: Any) -> None:
    db.run(ORDERS)


def test_created_table_holds_the_querys_rows(db: Any) -> None:
    db.create("totals", TOTALS)
    assert db.rows("SELECT region, orders, total::text FROM totals ORDER BY region") == [
        ("north", 2, "15.50"),
        ("south", 1, "7.00"),
        (None, 1, None),
    ]
    db.assert_current("totals")


def test_created_table_has_columns_of_the_querys_types_and_a_row_id_key(db: Any) -> None:
    db.create("totals", "SELECT id, region::varchar(9) AS place, amount, amount > 6 AS large FROM orders")
    columns = db.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
        " WHERE attrelid = 'totals'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert columns[0] == ("__pgt_row_id", "bigint")
    assert columns[1:5] == [
        ("id", "integer"),
        ("place", "character varying(9)"),
        ("amount", "numeric(10,2)"),
        ("large", "boolean"),
    ]
    assert (
        db.value(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'totals'::regclass AND contype = 'p'"
        )
        == "PRIMARY KEY (__pgt_row_id)"
    )


def test_refresh_applies_inserts_updates_and_deletes_differentially(db: Any) -> None:
    db.create("large", "SELECT id, region, amount FROM orders WHERE amount > 6")
    db.run("INSERT INTO orders VALUES (5, 'east', 100); UPDATE orders SET amount = 8 WHERE id = 3")
    db.run("DELETE FROM orders WHERE id = 1")
    db.refresh("large")
    assert db.rows("SELECT id, amount::text FROM large ORDER BY id") == [(3, "8.00"), (5, "100.00")]
    assert db.last("large") == ("DIFFERENTIAL", 1, 1, 1)


def test_update_of_primary_key_moves_the_row(db: Any) -> None:
    db.create("copy", "SELECT id, region FROM orders")
    db.run("UPDATE orders SET id = id + 10")
    db.refresh("copy")
    assert db.rows("SELECT id FROM copy ORDER BY id") == [(11,), (12,), (13,), (14,)]
    db.assert_current("copy")


def test_refresh_without_changes_finds_nothing_to_do(db: Any) -> None:
    db.create("totals", TOTALS)
    before = db.rows("SELECT xmin, * FROM totals ORDER BY __pgt_row_id")
    db.refresh("totals")
    assert db.last("totals") == ("NO_DATA", 0, 0, 0)
    assert db.rows("SELECT xmin, * FROM totals ORDER BY __pgt_row_id") == before


def test_change_that_does_not_matter_leaves_rows_untouched(db: Any) -> None:
    db.create("totals", TOTALS)
    before = db.rows("SELECT xmin, * FROM totals ORDER BY __pgt_row_id")
    db.run("UPDATE orders SET amount = amount")
    db.refresh("totals")
    assert db.last("totals")[1:] == (0, 0, 0)
    assert db.rows("SELECT xmin, * FROM totals ORDER BY __pgt_row_id") == before


def test_without_initialize_the_table_is_empty_until_its_first_refresh(db: Any) -> None:
    db.create("totals", TOTALS, initialize=False)
    assert db.rows("SELECT * FROM totals") == []
    state = db.state("totals")
    assert (state["status"], state["is_populated"]) == ("INITIALIZING", False)
    assert db.value("SELECT pgtrickle.get_staleness('totals')") is None
    db.refresh("totals")
    db.assert_current("totals")
    state = db.state("totals")
    assert (state["status"], state["is_populated"]) == ("ACTIVE", True)


def test_full_mode_recomputes(db: Any) -> None:
    db.create("totals", TOTALS, refresh_mode="full")
    db.run("UPDATE orders SET region = 'north'")
    db.assert_refreshed("totals")
    assert db.last("totals")[0] == "FULL"


def test_auto_falls_back_to_full_and_says_why(db: Any) -> None:
    notices: list[str] = []
    db.connection.add_notice_handler(lambda diagnostic: notices.append(diagnostic.message_primary or ""))
    db.create("drawn", VOLATILE)
    assert len(notices) == 1
    assert "FULL" in notices[0] and "random" in notices[0]
    assert db.state("drawn")["refresh_mode"] == "FULL"
    db.run("INSERT INTO orders VALUES (9, 'west', 1)")
    db.assert_refreshed("drawn")


def test_differential_refuses_what_it_cannot_maintain_and_names_it(db: Any) -> None:
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="random") as caught:
        db.create("drawn", VOLATILE, refresh_mode="DIFFERENTIAL")
    assert caught.value.diag.message_hint


def test_quoted_names_and_schemas(db: Any) -> None:
    db.run('CREATE SCHEMA "My Schema"; CREATE TABLE "My Schema"."Order ""1""" ("Id" int PRIMARY KEY, "select" text)')
    db.run('INSERT INTO "My Schema"."Order ""1""" VALUES (1, \'x\')')
    db.create(
        '"My Schema"."View""s"', 'SELECT "Id", "select", "select" || \'y\' AS "Größe" FROM "My Schema"."Order ""1"""'
    )
    db.run('UPDATE "My Schema"."Order ""1""" SET "select" = \'z\'')
    db.assert_refreshed('"My Schema"."View""s"')
    assert db.rows('SELECT "Id", "select", "Größe" FROM "My Schema"."View""s"') == [(1, "z", "zy")]
    db.run("SELECT pgtrickle.drop_stream_table(%s)", '"My Schema"."View""s"')


def test_renamed_schema_takes_its_stream_tables_along(db: Any) -> None:
    db.run("CREATE SCHEMA shop; CREATE TABLE shop.t (id int PRIMARY KEY, v int); INSERT INTO shop.t VALUES (1, 1)")
    db.create("shop.sums", "SELECT v, sum(id) AS s FROM shop.t GROUP BY v", refresh_mode="DIFFERENTIAL")
    db.run("ALTER SCHEMA shop RENAME TO store; INSERT INTO store.t VALUES (2, 1), (3, 2)")
    db.refresh("store.sums")
    assert db.rows("SELECT v, s FROM store.sums ORDER BY v") == [(1, 3), (2, 3)]
    assert db.value("SELECT name FROM pgtrickle.pgt_status()") == "store.sums"
    db.run("SELECT pgtrickle.drop_stream_table('store.sums')")
    assert db.value("SELECT to_regclass('store.sums')") is None


def test_unqualified_source_is_found_along_the_callers_search_path(db: Any) -> None:
    db.run("CREATE SCHEMA shop; CREATE TABLE shop.items (id int PRIMARY KEY); INSERT INTO shop.items VALUES (1)")
    db.run("SET search_path = shop, public")
    db.create("shop.all_items", "SELECT id FROM items")
    db.run("RESET search_path; INSERT INTO shop.items VALUES (2)")
    db.assert_refreshed("shop.all_items")
    db.run("SET search_path = shop")
    db.refresh("all_items")


def test_if_not_exists_creates_once_and_keeps_the_definition(db: Any) -> None:
    db.run("SELECT pgtrickle.create_stream_table_if_not_exists('totals', %s, '1m', 'DIFFERENTIAL')", TOTALS)
    db.run("SELECT pgtrickle.create_stream_table_if_not_exists('totals', 'SELECT 1 AS one', '5m', 'FULL')")
    state = db.state("totals")
    assert (state["schedule"], state["refresh_mode"]) == ("1m", "DIFFERENTIAL")
    db.assert_current("totals")


def test_if_not_exists_heeds_no_other_argument_of_one_that_exists(db: Any) -> None:
    db.create("totals", TOTALS)
    call = (
        "SELECT pgtrickle.create_stream_table_if_not_exists(%s, 'nonsense', 'soon', 'SOMETIMES', cdc_mode => 'by post')"
    )
    for name in ("totals", "public.totals"):
        db.run(call, name)
    assert "nonsense" not in db.state("totals")["defining_query"]
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="soon"):
        db.run(call, "others")


def test_if_not_exists_refuses_a_table_that_is_no_stream_table(db: Any) -> None:
    with pytest.raises(psycopg.errors.DuplicateTable, match="orders"):
        db.run("SELECT pgtrickle.create_stream_table_if_not_exists('orders', 'SELECT 1 AS one')")


def test_drop_leaves_nothing_behind(db: Any) -> None:
    before = db.traces()
    db.create("totals", TOTALS)
    assert db.traces() != before
    db.run("SELECT pgtrickle.drop_stream_table('totals')")
    assert db.traces() == before


def test_created_and_dropped_by_one_statement(db: Any) -> None:
    before = db.traces()
    created = "pgtrickle.create_stream_table('totals', %s), pgtrickle.create_stream_table('more', 'TABLE totals', '1d')"
    dropped = "pgtrickle.drop_stream_table('more'), pgtrickle.drop_stream_table('totals')"
    db.run(f"SELECT {created}, pgtrickle.refresh_stream_table('more'), {dropped}", TOTALS)
    assert db.traces() == before
    db.run(f"SELECT {created}, pgtrickle.drop_stream_table('more')", TOTALS)
    db.assert_current("totals")


def test_drop_keeps_capture_that_another_stream_table_needs(db: Any) -> None:
    db.create("totals", TOTALS)
    db.create("copy", "SELECT * FROM orders")
    db.run("SELECT pgtrickle.drop_stream_table('totals')")
    db.run("DELETE FROM orders WHERE id = 2")
    db.assert_refreshed("copy")
    assert db.last("copy")[0] == "DIFFERENTIAL"


def test_drop_takes_dependent_views_along(db: Any) -> None:
    db.create("totals", TOTALS)
    db.run("CREATE VIEW top AS SELECT * FROM totals WHERE total > 10")
    db.run("SELECT pgtrickle.drop_stream_table('totals')")
    assert db.value("SELECT to_regclass('top')") is None


def test_storage_dropped_by_drop_table_is_forgotten_or_reported(db: Any) -> None:
    db.create("totals", TOTALS)
    db.run("DROP TABLE totals")
    with pytest.raises(psycopg.errors.UndefinedTable):
        db.refresh("totals")
    db.create("totals", TOTALS)
    db.assert_current("totals")


def test_alter_changes_the_schedule(db: Any) -> None:
    db.create("totals", TOTALS, schedule="1h")
    db.run("SELECT pgtrickle.alter_stream_table('totals', schedule => '1h30m')")
    assert db.state("totals")["schedule"] == "1h30m"
    db.run("SELECT pgtrickle.alter_stream_table('totals', schedule => 'calculated')")
    assert db.state("totals")["schedule"] == "calculated"


def test_alter_switches_modes_and_the_table_stays_right(db: Any) -> None:
    db.create("totals", TOTALS, refresh_mode="FULL")
    db.run("INSERT INTO orders VALUES (5, 'west', 1)")
    db.run("SELECT pgtrickle.alter_stream_table('totals', refresh_mode => 'DIFFERENTIAL')")
    assert db.state("totals")["refresh_mode"] == "DIFFERENTIAL"
    db.assert_refreshed("totals")
    db.run("UPDATE orders SET amount = 3 WHERE id = 5")
    db.assert_refreshed("totals")
    assert db.last("totals")[0] == "DIFFERENTIAL"
    db.run("SELECT pgtrickle.alter_stream_table('totals', refresh_mode => 'FULL')")
    db.run("UPDATE orders SET amount = 4 WHERE id = 5")
    db.assert_refreshed("totals")
    assert db.last("totals")[0] in ("FULL", "REINITIALIZE")


def test_alter_refuses_differential_where_the_query_is_not(db: Any) -> None:
    db.create("drawn", VOLATILE)
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="random"):
        db.run("SELECT pgtrickle.alter_stream_table('drawn', refresh_mode => 'DIFFERENTIAL')")


def test_suspended_table_is_not_refreshed_until_resumed(db: Any) -> None:
    db.create("totals", TOTALS)
    db.run("SELECT pgtrickle.alter_stream_table('totals', status => 'SUSPENDED')")
    db.run("DELETE FROM orders")
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match=r'"totals" is suspended') as caught:
        db.refresh("totals")
    assert "resume_stream_table" in (caught.value.diag.message_hint or "")
    db.run("LISTEN pg_trickle_alert")
    db.run("SELECT pgtrickle.resume_stream_table('totals')")
    assert db.state("totals")["status"] == "ACTIVE"
    assert any('"resumed"' in note.payload for note in db.connection.notifies(timeout=60))
    db.assert_refreshed("totals")


def test_resume_refuses_a_table_that_is_not_suspended(db: Any) -> None:
    db.create("totals", TOTALS)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="not suspended"):
        db.run("SELECT pgtrickle.resume_stream_table('totals')")


def test_alter_to_active_resumes_and_forgets_errors(db: Any) -> None:
    db.create("totals", TOTALS)
    db.run("SELECT pgtrickle.alter_stream_table('totals', status => 'suspended')")
    db.run("SELECT pgtrickle.alter_stream_table('totals', status => 'ACTIVE')")
    state = db.state("totals")
    assert (state["status"], state["consecutive_errors"]) == ("ACTIVE", 0)


def test_status_functions(db: Any) -> None:
    db.create("totals", TOTALS, schedule="5m")
    ((name, status, mode, populated, errors, schedule, data_timestamp, staleness),) = db.rows(
        "SELECT name, status, refresh_mode, is_populated, consecutive_errors, schedule, data_timestamp, staleness"
        " FROM pgtrickle.pgt_status()"
    )
    assert (name, status, mode, populated, errors, schedule) == (
        "public.totals", "ACTIVE", "DIFFERENTIAL", True, 0, "5m",
    )  # fmt: skip
    assert isinstance(data_timestamp, datetime.datetime)
    assert datetime.timedelta(0) <= staleness < datetime.timedelta(minutes=1)
    assert 0 <= db.value("SELECT pgtrickle.get_staleness('totals')") < 60


def test_refresh_history_tells_what_was_done(db: Any) -> None:
    db.create("totals", TOTALS)
    db.run("INSERT INTO orders VALUES (5, 'east', 1); UPDATE orders SET amount = 1 WHERE id = 3")
    db.refresh("totals")
    rows = db.rows(
        "SELECT action, status, rows_inserted, rows_deleted, duration_ms, error_message, start_time <= end_time,"
        " data_timestamp IS NOT NULL FROM pgtrickle.get_refresh_history('totals', 5)"
    )
    assert [row[:4] for row in rows] == [("DIFFERENTIAL", "COMPLETED", 1, 0), ("FULL", "COMPLETED", 3, 0)]
    assert all(row[4] > 0 and row[5:] == (None, True, True) for row in rows)
    assert len(db.rows("SELECT * FROM pgtrickle.get_refresh_history('totals', 1)")) == 1
    first, second = db.history("totals")
    assert (first["initiated_by"], second["initiated_by"]) == ("INITIAL", "MANUAL")
    assert (first["executor"], second["executor"]) == ("postgres", "postgres")
    assert first["executor_reason"] and second["executor_reason"]
    # A row that came, and both images of one that was updated.
    assert (second["rows_updated"], second["delta_row_count"]) == (1, 3)


def test_explain_st_describes_the_plan(db: Any) -> None:
    db.create("totals", TOTALS)
    said = dict(db.rows("SELECT property, value FROM pgtrickle.explain_st('totals')"))
    assert "GROUP BY" in said["Defining Query"]
    assert said["Refresh Mode"] == "DIFFERENTIAL"
    assert "Aggregate" in said["Operator Tree"] and "orders" in said["Operator Tree"]
    assert said["Source Tables"].startswith("public.orders (oid=")
    assert said["DVM Supported"] == "Yes"


def test_explain_st_shows_what_becomes_of_a_query(db: Any) -> None:
    db.run("CREATE VIEW big AS SELECT * FROM orders WHERE amount > 1")
    query = "SELECT id, rank() OVER (ORDER BY amount, id) + 1 AS r FROM big"
    db.create("ranked", query)
    said = dict(db.rows("SELECT property, value FROM pgtrickle.explain_st('ranked')"))
    assert said["Original Query"] == query
    assert "FROM public.orders" in said["Defining Query"]
    assert [line[:2] for line in said["Rewrites"].splitlines()] == ["#0", "#7"]
    assert '"public"."orders"' in said["Rewritten Query"] and "big" not in said["Rewritten Query"]
    assert "Window" in said["Operator Tree"]
    assert said["Delta SQL"].startswith("WITH ") and "changes_" in said["Delta SQL"]


def test_explain_st_says_why_a_table_is_full(db: Any) -> None:
    db.create("drawn", VOLATILE)
    said = dict(db.rows("SELECT property, value FROM pgtrickle.explain_st('drawn')"))
    assert said["Refresh Mode"] == "FULL"
    assert said["DVM Supported"].startswith("No")
    assert any("random" in (value or "") for value in said.values())


def test_topk_is_recorded_explained_and_refreshed(db: Any) -> None:
    db.create("largest", "SELECT id, amount FROM orders ORDER BY amount DESC NULLS LAST, id LIMIT 2 OFFSET 1")
    recorded = (
        "SELECT topk_limit, topk_order_by, topk_offset FROM pgtrickle.pgt_stream_tables WHERE pgt_name = 'largest'"
    )
    assert db.rows(recorded) == [(2, "amount DESC NULLS LAST, id", 1)]
    said = dict(db.rows("SELECT property, value FROM pgtrickle.explain_st('largest')"))
    assert said["TopK"] == "ORDER BY amount DESC NULLS LAST, id LIMIT 2 OFFSET 1"
    assert said["Operator Tree"].startswith("Limit(first 2, from 1)")
    db.run("INSERT INTO orders VALUES (5, 'east', 8)")
    db.refresh("largest")
    assert db.rows("SELECT id FROM largest ORDER BY id") == [(3,), (5,)]
    assert db.last("largest") == ("DIFFERENTIAL", 1, 0, 1)


def test_list_sources_names_tables_and_columns(db: Any) -> None:
    db.create("totals", TOTALS)
    db.create("big", "SELECT t.region FROM totals t JOIN orders o ON o.region = t.region WHERE t.total > 1")
    oid = db.value("SELECT 'orders'::regclass::oid::bigint")
    rows = db.rows(
        "SELECT source_table, source_oid, lower(source_type), lower(cdc_mode), columns_used"
        " FROM pgtrickle.list_sources('totals')"
    )
    assert [row[:4] for row in rows] == [("public.orders", oid, "table", "trigger")]
    assert "region" in rows[0][4] and "amount" in rows[0][4] and "id" not in rows[0][4].split(", ")
    kinds = dict(db.rows("SELECT source_table, lower(source_type) FROM pgtrickle.list_sources('big')"))
    assert kinds == {"public.totals": "stream_table", "public.orders": "table"}


@pytest.mark.parametrize(
    "call",
    [
        "pgtrickle.drop_stream_table('nothing')",
        "pgtrickle.refresh_stream_table('nothing')",
        "pgtrickle.resume_stream_table('nothing')",
        "pgtrickle.alter_stream_table('nothing', schedule => '5m')",
        "pgtrickle.get_lag('nothing')",
        "pgtrickle.get_staleness('nothing')",
        "pgtrickle.get_refresh_history('nothing')",
        "pgtrickle.explain_st('nothing')",
        "pgtrickle.list_sources('nothing')",
    ],
)
def test_unknown_stream_table_is_reported(db: Any, call: str) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable, match="nothing"):
        db.rows(f"SELECT * FROM {call}")


def test_hashes_are_xxhash64(db: Any) -> None:
    def expected(data: bytes) -> int:
        value = xxhash.xxh64_intdigest(data, seed=0x517CC1B727220A95)
        return value - (1 << 64) if value >> 63 else value

    for text in ["", "a", "some_key", "x" * 31, "y" * 32, "z" * 33, "größe " * 50]:
        assert db.value("SELECT pgtrickle.pg_trickle_hash(%s)", text) == expected(text.encode())
    assert db.value("SELECT pgtrickle.pg_trickle_hash_multi(ARRAY['key1', 'key2'])") == expected(b"key1\x1ekey2")
    assert db.value("SELECT pgtrickle.pg_trickle_hash_multi(ARRAY['a', NULL, ''])") == expected(
        b"a\x1e\x00NULL\x00\x1e"
    )


def test_many_stream_tables_over_one_source(db: Any) -> None:
    for n in range(8):
        db.create(f"s{n}", f"SELECT id, amount + {n} AS amount FROM orders WHERE id > {n}")
    db.run("INSERT INTO orders SELECT n, 'x', n FROM generate_series(10, 40) n; DELETE FROM orders WHERE id % 3 = 0")
    db.assert_refreshed(*(f"s{n}" for n in range(8)))


def test_catalog_version_is_recorded(db: Any) -> None:
    assert db.value("SELECT count(*) > 0 FROM pgtrickle.pgt_schema_version")


def test_catalog_is_installed_when_a_database_is_first_used(db: Any) -> None:
    second = db.connect()
    assert second.execute("SELECT to_regnamespace('pgtrickle') IS NOT NULL").fetchone() == (True,)
