"""Incremental maintenance through the wire: the conditions under which systems of this kind have been wrong."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database, drop_role


@pytest.fixture
def db(emptied_db: Database) -> Database:
    """Nothing is refreshed but by hand."""
    return emptied_db


@pytest.fixture(autouse=True)
def shop(db: Any) -> None:
    db.run(
        "CREATE TABLE customers (id int PRIMARY KEY, name text, region text);"
        "CREATE TABLE orders (id int PRIMARY KEY, customer int, amount numeric(10, 2), note text);"
        "INSERT INTO customers VALUES (1, 'ann', 'n'), (2, 'bob', 's'), (3, 'cid', NULL), (4, 'dan', 'n');"
        "INSERT INTO orders SELECT n, 1 + n % 4, n, CASE n % 3 WHEN 0 THEN NULL ELSE 'note' END FROM"
        " generate_series(1, 24) n"
    )


def test_join_key_changes_while_its_partner_is_deleted(db: Any) -> None:
    db.create("details", "SELECT o.id, c.name, o.amount FROM orders o JOIN customers c ON o.customer = c.id")
    db.run("BEGIN; UPDATE orders SET customer = 4 WHERE customer = 3; DELETE FROM customers WHERE id = 3; COMMIT")
    db.assert_refreshed("details")
    for n in range(3):
        db.run(f"UPDATE orders SET customer = 1 + (customer + {n}) % 4; UPDATE customers SET name = name || '{n}'")
        db.assert_refreshed("details")
    db.run("DELETE FROM customers; DELETE FROM orders WHERE id < 5; INSERT INTO customers VALUES (2, 'new', 'x')")
    db.assert_refreshed("details")
    assert [row["action"] for row in db.history("details")[1:]] == ["DIFFERENTIAL"] * 5


def test_upstream_and_base_table_both_changed_before_one_refresh(db: Any) -> None:
    db.create("totals", "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer")
    db.create("named", "SELECT c.name, t.total FROM totals t JOIN customers c ON c.id = t.customer")
    db.run("UPDATE orders SET amount = amount + 1 WHERE customer = 2; DELETE FROM orders WHERE customer = 1")
    db.run("UPDATE customers SET name = 'Bob' WHERE id = 2; DELETE FROM customers WHERE id = 4")
    db.assert_refreshed("totals", "named")
    assert db.last("named")[0] == "DIFFERENTIAL"


def test_update_moves_an_upstream_row_out_of_the_downstream_filter(db: Any) -> None:
    db.create("totals", "SELECT customer, sum(amount) AS total, count(*) AS n FROM orders GROUP BY customer")
    db.create("big", "SELECT customer, total FROM totals WHERE total > 60")
    db.create("biggest", "SELECT max(total) AS most, count(*) AS n FROM big")
    before = db.value("SELECT count(*) FROM big")
    db.run("UPDATE orders SET amount = 0 WHERE customer = (SELECT customer FROM big LIMIT 1)")
    db.assert_refreshed("totals", "big", "biggest")
    assert db.value("SELECT count(*) FROM big") == before - 1


def test_select_star_over_a_stream_table_shows_no_hidden_columns(db: Any) -> None:
    db.create("totals", "SELECT region, count(*) AS n, avg(id) AS mean FROM customers GROUP BY region")
    db.create("copy", "SELECT * FROM totals")
    columns = db.rows(
        "SELECT attname FROM pg_attribute WHERE attrelid = 'copy'::regclass AND attnum > 1 AND NOT attisdropped"
    )
    assert [name for (name,) in columns if not name.startswith("__pgt_")] == ["region", "n", "mean"]
    db.run("INSERT INTO customers VALUES (9, 'eve', 's')")
    db.assert_refreshed("totals", "copy")


def test_null_group_key_whose_last_row_goes(db: Any) -> None:
    db.create("regions", "SELECT region, count(*) AS n FROM customers GROUP BY region")
    db.run("DELETE FROM customers WHERE region IS NULL")
    db.assert_refreshed("regions")
    assert db.rows("SELECT region FROM regions WHERE region IS NULL") == []
    db.run("INSERT INTO customers VALUES (10, 'x', NULL), (11, 'y', NULL)")
    db.assert_refreshed("regions")


def test_all_non_null_inputs_of_a_group_go_while_the_group_survives(db: Any) -> None:
    db.create("sums", "SELECT customer, sum(amount) AS s, avg(amount) AS a, min(amount) AS low, max(note) AS high,"
              " count(amount) AS n, count(*) AS all_rows FROM orders GROUP BY customer")  # fmt: skip
    db.run("UPDATE orders SET amount = NULL, note = NULL WHERE customer = 2")
    db.assert_refreshed("sums")
    assert db.rows("SELECT s, a, low, high, n, all_rows FROM sums WHERE customer = 2") == [
        (None, None, None, None, 0, 6)
    ]
    db.run("UPDATE orders SET amount = 3 WHERE id = 1")
    db.assert_refreshed("sums")


def test_aggregate_without_group_by_has_one_row_even_over_nothing(db: Any) -> None:
    db.run("CREATE TABLE empty (v int)")
    db.create("whole", "SELECT count(*) AS n, sum(v) AS s, max(v) AS m FROM empty")
    db.create("few", "SELECT count(*) AS n FROM empty HAVING count(*) > 1")
    assert db.rows("SELECT n, s, m FROM whole") == [(0, None, None)]
    db.run("INSERT INTO empty VALUES (1), (2)")
    db.assert_refreshed("whole", "few")
    db.run("DELETE FROM empty")
    db.assert_refreshed("whole", "few")
    assert db.rows("SELECT n, s, m FROM whole") == [(0, None, None)]
    assert db.rows("SELECT n FROM few") == []
    db.run("TRUNCATE empty")
    db.assert_refreshed("whole", "few")


def test_extremum_goes_and_another_takes_its_place(db: Any) -> None:
    db.create("extremes", "SELECT customer, min(amount) AS low, max(amount) AS high FROM orders GROUP BY customer")
    for _ in range(3):
        db.run("DELETE FROM orders o WHERE amount = (SELECT max(amount) FROM orders i WHERE i.customer = o.customer)")
        db.run(
            "UPDATE orders o SET amount = amount + 100 WHERE amount = (SELECT min(amount) FROM orders i WHERE"
            " i.customer = o.customer)"
        )
        db.assert_refreshed("extremes")


def test_distinct_counts_its_copies(db: Any) -> None:
    db.create("kinds", "SELECT DISTINCT note, customer % 2 AS odd FROM orders")
    db.run("DELETE FROM orders WHERE note IS NULL AND id > 3")
    db.assert_refreshed("kinds")
    db.run("DELETE FROM orders WHERE note IS NULL; INSERT INTO orders VALUES (99, 1, 1, 'other')")
    db.assert_refreshed("kinds")


def test_distinct_aggregates_and_filters(db: Any) -> None:
    db.create(
        "facts",
        "SELECT customer, count(DISTINCT note) AS notes, sum(DISTINCT amount % 3) AS s,"
        " count(*) FILTER (WHERE amount > 5) AS large, avg(amount) FILTER (WHERE note IS NULL) AS a,"
        " array_length(array_agg(id), 1) AS n FROM orders GROUP BY customer",
    )
    db.run(
        "UPDATE orders SET note = 'x' WHERE id = 6; UPDATE orders SET amount = 5 WHERE id % 2 = 0;"
        " DELETE FROM orders WHERE id < 4"
    )
    db.assert_refreshed("facts")


def test_having_lets_groups_in_and_out(db: Any) -> None:
    db.create(
        "busy", "SELECT customer, count(*) AS n FROM orders GROUP BY customer HAVING count(*) > 5 AND sum(amount) < 100"
    )
    for statement in (
        "DELETE FROM orders WHERE id = 1",
        "INSERT INTO orders SELECT 100 + n, 2, 1, NULL FROM generate_series(1, 3) n",
        "UPDATE orders SET amount = 1",
        "UPDATE orders SET customer = 3",
    ):
        db.run(statement)
        db.assert_refreshed("busy")


def test_self_join_without_equality(db: Any) -> None:
    db.create(
        "larger",
        "SELECT a.id, count(*) AS n FROM orders a JOIN orders b ON a.amount < b.amount AND a.id <> b.id GROUP BY a.id",
    )
    db.run(
        "UPDATE orders SET amount = 25 - amount WHERE id % 2 = 0; DELETE FROM orders WHERE id = 24;"
        " INSERT INTO orders VALUES (50, 1, NULL, NULL)"
    )
    db.assert_refreshed("larger")
    assert db.last("larger")[0] == "DIFFERENTIAL"


def test_cte_referenced_twice(db: Any) -> None:
    db.create(
        "neighbours",
        "WITH totals AS (SELECT customer, sum(amount) AS total FROM orders GROUP BY customer)"
        " SELECT a.customer, a.total, b.total AS next FROM totals a JOIN totals b ON a.customer = b.customer - 1",
    )
    db.run("UPDATE orders SET customer = 2 WHERE customer = 3 AND id < 12; UPDATE orders SET amount = 7 WHERE id = 1")
    db.assert_refreshed("neighbours")


def test_union_all_of_one_table_twice(db: Any) -> None:
    db.create("both", "SELECT id, note FROM orders WHERE id < 12 UNION ALL SELECT id, note FROM orders WHERE id > 8")
    db.run(
        "UPDATE orders SET note = 'u' WHERE id BETWEEN 7 AND 13;"
        " UPDATE orders SET id = id + 100 WHERE id = 10; DELETE FROM orders WHERE id = 9"
    )
    db.assert_refreshed("both")


def test_text_and_numeric_that_are_equal_but_look_different(db: Any) -> None:
    db.run(
        "CREATE TABLE odd (n numeric, c char(4), i interval, f float8);"
        " INSERT INTO odd VALUES (1.0, 'a', '1 day', 0), (1.00, 'a ', '24 hours', '-0')"
    )
    db.create("copy", "SELECT n, c, i, f FROM odd")
    db.create("groups", "SELECT n, count(*) AS k FROM odd GROUP BY n")
    db.run(
        "INSERT INTO odd VALUES (1, 'a', '0 days 24:00:00', 0), ('NaN', NULL, NULL, 'NaN'), ('NaN', NULL, NULL, 'NaN')"
    )
    db.refresh("groups")
    db.assert_refreshed("copy")
    assert db.rows("SELECT n::float8::text, k::int FROM groups ORDER BY n") == [("1", 3), ("NaN", 2)]
    db.run("DELETE FROM odd WHERE ctid = (SELECT min(ctid) FROM odd); UPDATE odd SET n = 1.000 WHERE n = 1")
    db.refresh("groups")
    db.assert_refreshed("copy")


def test_sum_with_nan_and_infinity_comes_back(db: Any) -> None:
    db.run("CREATE TABLE vals (k int, v float8, n numeric); INSERT INTO vals VALUES (1, 1, 1), (1, 2, 2)")
    db.create("sums", "SELECT k, sum(v) AS s, avg(v) AS a, sum(n) AS sn, avg(n) AS an FROM vals GROUP BY k")
    for value in ("NaN", "Infinity", "-Infinity"):
        db.run(f"INSERT INTO vals VALUES (1, '{value}', '{value}')")
        db.assert_refreshed("sums")
        db.run(f"DELETE FROM vals WHERE v = '{value}'")
        db.assert_refreshed("sums")
    assert db.rows("SELECT s, sn::int FROM sums") == [(3.0, 3)]


def test_sums_of_floats_do_not_drift(db: Any) -> None:
    db.run(
        "CREATE TABLE measured (k int, v float8); INSERT INTO measured SELECT n % 2,"
        " n / 10.0 FROM generate_series(1, 50) n"
    )
    db.create("sums", "SELECT k, count(v) AS n, sum(v) AS s FROM measured GROUP BY k")
    db.run("INSERT INTO measured VALUES (0, 1e300)")
    db.refresh("sums")
    db.run("DELETE FROM measured WHERE v = 1e300")
    db.refresh("sums")
    ((stored, computed),) = db.rows("SELECT s, (SELECT sum(v) FROM measured WHERE k = 0) FROM sums WHERE k = 0")
    assert stored == pytest.approx(computed, rel=1e-12)


def test_overflow_of_an_intermediate_sum(db: Any) -> None:
    db.run("CREATE TABLE large (id int PRIMARY KEY, v int); INSERT INTO large VALUES (1, 2147483647), (2, 2147483647)")
    db.create("sums", "SELECT sum(v) AS s, avg(v) AS a FROM large")
    db.run("INSERT INTO large SELECT n, 2147483647 FROM generate_series(3, 40) n; DELETE FROM large WHERE id < 3")
    db.assert_refreshed("sums")


def test_several_cycles_of_everything(db: Any) -> None:
    names = ["s1", "s2", "s3", "s4"]
    db.create("s1", "SELECT c.region, count(*) AS n, sum(o.amount) AS s, avg(o.amount) AS a, min(o.note) AS m"
              " FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.region")  # fmt: skip
    db.create(
        "s2", "SELECT DISTINCT c.region, o.note FROM orders o, customers c WHERE c.id = o.customer AND o.amount > 3"
    )
    db.create("s3", "SELECT region, n FROM s1 WHERE n > 3 UNION ALL SELECT region, 0 FROM customers")
    db.create("s4", "SELECT x.region, count(*) AS n FROM s2 x JOIN s3 y ON x.region = y.region GROUP BY x.region")
    for n in range(6):
        db.run(
            f"UPDATE orders SET customer = 1 + (customer + id + {n}) % 5, amount = amount * 1.5 WHERE id % 3 = {n % 3};"
            f"INSERT INTO customers VALUES ({20 + n}, 'c{n}', CASE {n} % 2 WHEN 0 THEN 'n' END);"
            f"DELETE FROM customers WHERE id = {n}; INSERT INTO orders VALUES ({200 + n}, {20 + n}, {n}, 'late');"
            f"DELETE FROM orders WHERE id = {3 * n}"
        )
        db.assert_refreshed(*names)
        assert {db.last(name)[0] for name in names} <= {"DIFFERENTIAL", "NO_DATA"}


def test_large_change_is_computed_in_full_and_says_so(db: Any) -> None:
    db.run("INSERT INTO orders SELECT n, n % 4, n, NULL FROM generate_series(100, 5000) n; ANALYZE orders")
    db.create("copy", "SELECT id, amount FROM orders")
    db.run("UPDATE orders SET amount = amount + 1")
    db.assert_refreshed("copy")
    row = db.history("copy")[-1]
    assert (row["action"], row["was_full_fallback"]) == ("FULL", True)
    assert "change_ratio" in row["executor_reason"]


def test_differential_mode_insists(db: Any) -> None:
    db.run("INSERT INTO orders SELECT n, n % 4, n, NULL FROM generate_series(100, 5000) n; ANALYZE orders")
    db.create("copy", "SELECT id, amount FROM orders", refresh_mode="DIFFERENTIAL")
    db.run("UPDATE orders SET amount = amount + 1")
    db.assert_refreshed("copy")
    assert db.last("copy")[0] == "DIFFERENTIAL"


def test_values_that_only_the_changes_have_are_no_error(db: Any) -> None:
    db.run("CREATE TABLE a (id int PRIMARY KEY, v int); INSERT INTO a VALUES (1, 10), (2, 20)")
    db.run("CREATE TABLE b (id int PRIMARY KEY, d int); INSERT INTO b VALUES (1, 2), (2, 5)")
    db.create("quotients", "SELECT a.id, a.v / b.d AS q FROM a JOIN b ON b.id = a.id")
    with db.connection.transaction():
        db.connection.execute("DELETE FROM a WHERE id = 1")
        db.connection.execute("UPDATE b SET d = 0 WHERE id = 1")
    db.refresh("quotients")
    assert db.last("quotients")[0] == "REINITIALIZE"
    assert db.rows("SELECT id, q FROM quotients") == [(2, 4)]
    with pytest.raises(psycopg.errors.DivisionByZero):
        db.run("INSERT INTO a VALUES (1, 1)")
        db.refresh("quotients")


def test_two_rows_with_one_row_id_are_told_apart_by_another_salt(db: Any) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)")
    db.create("copy", "SELECT id, v FROM t")
    third = db.value("SELECT __pgt_row_id FROM copy WHERE id = 3")
    db.run("DELETE FROM t WHERE id = 3")
    db.refresh("copy")
    db.run(f"SET pgtrickle.maintenance = on; UPDATE copy SET __pgt_row_id = {third} WHERE id = 1")
    db.run("SET pgtrickle.maintenance = off; INSERT INTO t VALUES (3, 3)")
    db.refresh("copy")
    assert db.last("copy")[0] == "REINITIALIZE"
    assert db.value("SELECT row_id_salt FROM pgtrickle.pgt_stream_tables") == 1
    db.assert_current("copy")


def test_guard_trigger_that_cancels_deletes_silently(db: Any) -> None:
    """BEFORE DELETE with RETURN NEW, which is NULL there. The stream table's own guard lets its maintenance delete."""
    db.run("CREATE TABLE g (id int PRIMARY KEY, v int); INSERT INTO g SELECT n, n % 3 FROM generate_series(1, 9) n")
    db.create("groups", "SELECT v, count(*) AS n FROM g GROUP BY v", refresh_mode="DIFFERENTIAL")
    db.create("rows", "SELECT id, v FROM g", refresh_mode="DIFFERENTIAL")
    db.run(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';"
        "CREATE TRIGGER keep BEFORE DELETE ON g FOR EACH ROW EXECUTE FUNCTION keep()"
    )
    db.run("DELETE FROM g WHERE v = 1")
    db.assert_refreshed("groups", "rows")
    assert db.value("SELECT count(*) FROM rows") == 9
    db.run("DROP TRIGGER keep ON g; DELETE FROM g WHERE v = 1")
    db.assert_refreshed("groups", "rows")
    assert [db.last(name)[3] for name in ("groups", "rows")] == [1, 3]
    for name in ("groups", "rows"):
        with pytest.raises(psycopg.Error):
            db.run(f"DELETE FROM {name}")
        db.assert_current(name)


def test_triggers_rules_and_policies_that_would_cancel_a_refresh_are_refused(db: Any) -> None:
    db.run("CREATE TABLE g (id int PRIMARY KEY, v int); INSERT INTO g VALUES (1, 1), (2, 2)")
    db.create("copy", "SELECT id, v FROM g", refresh_mode="DIFFERENTIAL")
    db.run("CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    trigger = "CREATE TRIGGER keep {} DELETE ON copy FOR EACH ROW EXECUTE FUNCTION keep()"
    for refused in (trigger.format("BEFORE"), "CREATE RULE keep AS ON DELETE TO copy DO INSTEAD NOTHING"):
        with pytest.raises(psycopg.Error, match='"keep" on stream table "copy"') as failure:
            db.run(refused)
        assert failure.value.sqlstate == "55000"
    # Where no event trigger sees it, the refresh does.
    db.run("ALTER EVENT TRIGGER pg_trickle_trigger_tracker DISABLE")
    db.run(f"{trigger.format('BEFORE')}; DELETE FROM g WHERE id = 1")
    with pytest.raises(psycopg.Error, match='trigger "keep"') as failure:
        db.refresh("copy")
    assert (failure.value.sqlstate, failure.value.diag.message_hint is not None) == ("55000", True)
    db.run(f"DROP TRIGGER keep ON copy; {trigger.format('AFTER')}")
    db.assert_refreshed("copy")
    role = f"{db.name}_owner"
    db.run(f"CREATE ROLE {role}; ALTER TABLE copy OWNER TO {role}; GRANT SELECT ON g TO {role}; DELETE FROM g")
    try:
        db.run("ALTER TABLE copy ENABLE ROW LEVEL SECURITY; ALTER TABLE copy FORCE ROW LEVEL SECURITY")
        with pytest.raises(psycopg.Error, match="row-level security") as failure:
            db.refresh("copy")
        assert failure.value.sqlstate == "55000"
        db.run("ALTER TABLE copy NO FORCE ROW LEVEL SECURITY")
        db.assert_refreshed("copy")
    finally:
        drop_role(db.connection, role)


def test_refreshes_leave_little_behind_where_an_old_snapshot_is_kept(db: Any) -> None:
    db.run("CREATE TABLE t (id int PRIMARY KEY, v int, w text)")
    db.create("st", "SELECT w, count(*) AS n, sum(v) AS s FROM t GROUP BY w")
    with db.bypass(autocommit=False) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT FROM t")
        size = "SELECT pg_table_size('pgtrickle.pgt_definitions')"
        before = db.value(size)
        for n in range(150):
            db.run("INSERT INTO t VALUES (%s, %s, %s)", n, n, str(n % 5))
            db.refresh("st")
        assert (db.value(size) - before) / 150 < 750  # bytes; with the queries and plans in each row it is 1 200
