"""Who computes a refresh, as users see it: by size, by what was seen before, and by policy where Spark fails."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.commands.otlp import Collector
from tests.e2e.conftest import Database, Headwater, alerts

ROWS = 5000
SOURCE = f"""
CREATE TABLE orders (id int PRIMARY KEY, customer int NOT NULL, amount int NOT NULL);
INSERT INTO orders SELECT n, n % 10, n FROM generate_series(1, {ROWS}) AS n; ANALYZE orders;
ALTER DATABASE postgres SET pg_trickle.enabled = off
"""
QUERY = "SELECT customer, count(*) AS orders, sum(amount) AS total FROM orders GROUP BY customer"
SLOW = {"ms_per_row": 1.0, "rows": ROWS, "refreshes": 3}
QUICK = {"ms_per_row": 0.001, "rows": ROWS, "refreshes": 3}


def serve(data: Path, spark: str, *options: str) -> Iterator[Database]:
    server = Headwater(data, "--spark", spark, *options).start()
    database = Database(server, "postgres")
    try:
        database.run(SOURCE)
        yield database
    finally:
        database.close()
        server.stop()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture(scope="module")
def on_sail(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Database]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        yield from serve(tmp_path_factory.mktemp("sail") / "data", "sail", "--traces", collector.url)


@pytest.fixture(scope="module")
def without_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Behind a server whose Spark Connect server does not run."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        target = f"sc://127.0.0.1:{reserved.getsockname()[1]}"
        yield from serve(tmp_path_factory.mktemp("gone") / "data", target)


def change(db: Database) -> None:
    db.run("UPDATE orders SET amount = amount + 1 WHERE id % 7 = 0")


def explained(db: Database, name: str) -> dict[str, str]:
    return dict(db.rows("SELECT * FROM pgtrickle.explain_st(%s)", name))


def seen(db: Database, name: str, **costs: dict[str, Any]) -> None:
    """Have it look as if the executors had been seen at work."""
    db.run(
        "UPDATE pgtrickle.pgt_stream_tables SET executor_costs = %s WHERE pgt_name = %s",
        json.dumps({"FULL": costs}),
        name,
    )


def test_refresh_moves_to_the_executor_that_was_faster(on_sail: Database) -> None:
    db = on_sail
    db.create("by_history", QUERY, schedule="1h", refresh_mode="FULL")
    first = db.history("by_history")[-1]
    assert first["executor"] == "postgres"
    assert "rows to read, fewer than pg_trickle.spark_min_rows = 100000" in first["executor_reason"]
    assert list(db.state("by_history")["executor_costs"]["FULL"]) == ["postgres"]
    for costs, executor in (({"postgres": SLOW}, "spark"), ({"postgres": QUICK, "spark": SLOW}, "postgres")):
        seen(db, "by_history", **costs)
        change(db)
        db.assert_refreshed("by_history")
        last = db.history("by_history")[-1]
        assert last["executor"] == executor
        assert re.search(r"about \d+ rows to read; ", last["executor_reason"])
        assert "ms expected in PostgreSQL (seen 3 times)" in last["executor_reason"]
    explain = explained(db, "by_history")
    assert explain["Last Executor"].startswith("postgres (refresh mode FULL; about")
    assert "FULL on postgres: " in explain["Executor Costs"]
    assert "FULL on spark: " in explain["Executor Costs"]


def test_lines_without_their_number_are_told_apart_by_it(on_sail: Database) -> None:
    db = on_sail
    db.run(
        "CREATE TABLE lines (sale int, line int, amount int NOT NULL, PRIMARY KEY (sale, line));"
        "INSERT INTO lines SELECT n / 3, n % 3, 10 FROM generate_series(1, 300) AS n"
    )
    captured = "SELECT captured_columns::text FROM pgtrickle.pgt_captures WHERE source_relid = 'lines'::regclass"
    query = "SELECT amount, count(*) AS lines FROM lines GROUP BY amount"
    db.create("lines_here", query, schedule="1h", engine="postgres")
    assert db.value(captured) == "{amount}"
    modes = {"lines_full": "FULL", "lines_differential": "DIFFERENTIAL"}
    for name, mode in modes.items():
        db.create(name, query, schedule="1h", refresh_mode=mode, engine="spark")
        assert db.value(captured) == "{sale,line,amount}"
    for changes in (
        "UPDATE lines SET amount = 11 WHERE sale = 7",
        "UPDATE lines SET line = line + 10 WHERE sale = 8; DELETE FROM lines WHERE sale = 10",
        "DELETE FROM lines WHERE sale = 9; INSERT INTO lines VALUES (9, 1, 10);"
        "UPDATE lines SET amount = 12 WHERE sale = 9",
    ):
        db.run(changes)
        db.assert_refreshed("lines_here", *modes)
        for name, mode in modes.items():
            last = db.history(name)[-1]
            assert (last["action"], last["executor"]) == (mode, "spark")
            assert "(0 copied anew)" in last["executor_reason"]
    for name in ("lines_here", *modes):
        db.run("SELECT pgtrickle.drop_stream_table(%s)", name)


def test_delta_is_computed_for_the_sources_that_have_changed(on_sail: Database) -> None:
    on_sail.run("CREATE TABLE customers (id int PRIMARY KEY, name text)")
    on_sail.run("INSERT INTO customers SELECT n, 'c' || n FROM generate_series(0, 9) AS n")
    query = "SELECT o.id, o.amount, c.name FROM orders AS o JOIN customers AS c ON c.id = o.customer"
    on_sail.create("named", query, refresh_mode="DIFFERENTIAL", schedule="1d", engine="spark")
    ((orders, customers),) = on_sail.rows(
        "SELECT 'delta_' || 'orders'::regclass::oid, 'delta_' || 'customers'::regclass::oid"
    )
    both = "UPDATE customers SET name = name || 'z' WHERE id = 5; UPDATE orders SET customer = 4 WHERE id = 3"
    for statements, changed in {
        "UPDATE customers SET name = name || 'x' WHERE id = 3": {customers},
        "UPDATE orders SET amount = amount + 1, customer = 5 WHERE id < 4": {orders},
        both: {orders, customers},
        "UPDATE customers SET name = 'nobody' WHERE id < 0; DELETE FROM orders WHERE id < 9": {orders},
    }.items():
        on_sail.run(statements)
        on_sail.refresh("named")
        shown = explained(on_sail, "named")
        assert shown["Last Executor"].startswith("spark (")
        assert set(re.findall(r"\bdelta_\d{3,}\b", shown["Spark Delta SQL"])) == changed
        assert on_sail.rows("SELECT id, amount, name FROM named ORDER BY id") == on_sail.rows(f"{query} ORDER BY o.id")
    on_sail.run("SELECT pgtrickle.drop_stream_table('named')")
    on_sail.run("DROP TABLE customers")


def test_a_trace_has_the_steps_of_a_refresh_on_spark(on_sail: Database, collector: Collector) -> None:
    on_sail.create("traced", QUERY, schedule="1d", refresh_mode="DIFFERENTIAL", engine="spark")
    change(on_sail)
    on_sail.refresh("traced")
    for action in ("FULL", "DIFFERENTIAL"):
        of_it = {"stream_table": "public.traced", "action": action, "executor": "spark"}
        (refresh,) = collector.until(lambda wanted=of_it: collector.named("headwater.refresh", **wanted))
        steps = [each.name.removeprefix("headwater.refresh.") for each in collector.spans if each.parent == refresh.id]
        assert steps == ["plan", "extract", "compute", "load", "apply", "record"]
    on_sail.run("SELECT pgtrickle.drop_stream_table('traced')")


def test_transaction_blocks_and_higher_isolation_stay_in_postgresql(on_sail: Database) -> None:
    db = on_sail
    db.create("stays", QUERY, schedule="1h", refresh_mode="FULL")
    session = db.connect()
    session.execute("SET pg_trickle.spark_min_rows = 0")
    reasons = []
    for before, after in (("", ""), ("BEGIN", "COMMIT"), ("SET default_transaction_isolation = 'serializable'", "")):
        change(db)
        for statement in (before, "SELECT pgtrickle.refresh_stream_table('stays')", after):
            if statement:
                session.execute(statement)  # type: ignore[arg-type]
        last = db.history("stays")[-1]
        reasons.append((last["executor"], last["executor_reason"].split("; ")[1]))
    assert [executor for executor, _ in reasons] == ["spark", "postgres", "postgres"]
    assert [reason for _, reason in reasons[1:]] == [
        "inside a transaction block",
        "in a transaction above READ COMMITTED",
    ]
    db.assert_current("stays")


def test_settings_that_are_none_are_refused(on_sail: Database) -> None:
    db = on_sail
    db.create("refused", QUERY, schedule="1h", refresh_mode="FULL")
    change(db)
    session = db.connect()
    for setting in ("spark_failure_policy = never", "refresh_engine = hadoop", "spark_timeout = soon"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="pg_trickle"):
            session.execute(f"SET pg_trickle.{setting}")  # type: ignore[arg-type]


def test_query_at_which_spark_failed_by_a_value_is_left_to_postgresql(on_sail: Database) -> None:
    db = on_sail
    wide = "SELECT id, amount * 1000000000000.0 / 0.3 AS quotient FROM orders"
    db.create("wide", wide, schedule="1h", refresh_mode="FULL", initialize=False)
    session = db.connect()
    session.execute("SET pg_trickle.spark_min_rows = 0")

    def refreshed() -> tuple[str, str]:
        session.execute("UPDATE pgtrickle.pgt_stream_tables SET executor_costs = '{}' WHERE pgt_name = 'wide'")
        change(db)
        session.execute("SELECT pgtrickle.refresh_stream_table('wide')")
        db.assert_current("wide")
        last = db.history("wide")[-1]
        return last["executor"], last["executor_reason"]

    executor, reason = refreshed()
    assert executor == "postgres"
    assert "Spark failed (38000); computed by PostgreSQL instead" in reason
    executor, reason = refreshed()
    assert executor == "postgres"
    assert "Spark has failed at this query (38000), and is tried again in " in reason
    assert "Spark has failed at this query" in explained(db, "wide")["Last Executor"]
    # Where Spark is insisted on, it is asked again.
    session.execute("SET pg_trickle.refresh_engine = spark")
    change(db)
    with pytest.raises(psycopg.errors.ExternalRoutineException, match="Spark job failed"):
        session.execute("SELECT pgtrickle.refresh_stream_table('wide')")


def test_job_that_takes_too_long_is_given_up(on_sail: Database) -> None:
    db = on_sail
    pairs = "SELECT count(*) AS pairs FROM orders a, orders b, orders c WHERE a.amount + b.amount + c.amount = 77"
    db.create("endless", pairs, schedule="1h", refresh_mode="FULL", engine="spark", initialize=False)
    session = db.connect()
    session.execute("SET pg_trickle.spark_timeout = '0.5'; SET pg_trickle.spark_failure_policy = error")
    with pytest.raises(psycopg.errors.QueryCanceled, match=r"timed out after 0\.5 s"):
        session.execute("SELECT pgtrickle.refresh_stream_table('endless')")
    assert not db.state("endless")["is_populated"]
    db.run("SELECT pgtrickle.drop_stream_table('endless')")


@pytest.mark.parametrize("policy", ["retry", "postgres"])
@pytest.mark.one_in(2)
def test_unreachable_spark_leaves_the_refresh_to_postgresql_and_says_so(without_spark: Database, policy: str) -> None:
    db = without_spark
    listener = db.bypass()
    listener.execute("LISTEN pg_trickle_alert")
    name = f"fell_{policy}"
    db.create(name, QUERY, schedule="1h", refresh_mode="FULL")
    seen(db, name, postgres=SLOW)
    change(db)
    session = db.connect()
    session.execute(f"SET pg_trickle.spark_failure_policy = {policy}")  # type: ignore[arg-type]
    session.execute("SELECT pgtrickle.refresh_stream_table(%s)", [name])
    db.assert_current(name)
    last = db.history(name)[-1]
    assert (last["status"], last["executor"]) == ("COMPLETED", "postgres")
    assert "Spark failed (58000: could not reach Spark" in last["executor_reason"]
    alert = next(alerts(listener, "spark_failed"))
    assert alert | {"reason": ""} == {"event": "spark_failed", "pgt_schema": "public", "pgt_name": name, "reason": ""}
    assert "could not reach Spark" in alert["reason"]


def test_unreachable_spark_fails_the_refresh_where_postgresql_is_not_to_compute(without_spark: Database) -> None:
    db = without_spark
    db.create("insisted", QUERY, schedule="1h", refresh_mode="FULL")
    change(db)
    db.run("UPDATE pgtrickle.pgt_stream_tables SET engine = 'spark' WHERE pgt_name = 'insisted'")
    before = db.rows("SELECT * FROM insisted ORDER BY customer")
    with pytest.raises(psycopg.errors.SystemError, match="could not reach Spark"):
        db.refresh("insisted")
    assert db.rows("SELECT * FROM insisted ORDER BY customer") == before
    session = db.connect()
    session.execute("SET pg_trickle.spark_failure_policy = postgres")
    session.execute("SELECT pgtrickle.refresh_stream_table('insisted')")
    db.assert_current("insisted")


def test_scheduled_refresh_that_spark_failed_at_is_tried_again(without_spark: Database) -> None:
    db = without_spark
    db.create("scheduled", QUERY, schedule="1s", refresh_mode="FULL")
    listener = db.bypass()
    listener.execute("LISTEN pg_trickle_alert")
    db.run(
        "ALTER DATABASE postgres SET pg_trickle.spark_failure_policy = error;"
        "ALTER DATABASE postgres SET pg_trickle.max_consecutive_errors = 100;"
        "UPDATE pgtrickle.pgt_stream_tables SET engine = 'spark' WHERE pgt_name = 'scheduled';"
        "ALTER DATABASE postgres RESET pg_trickle.enabled"
    )
    change(db)
    alert = next(alerts(listener, "spark_failed"))
    assert alert["pgt_name"] == "scheduled" and "not refreshed" in alert["reason"]
    failed = db.history("scheduled")[-1]
    assert (failed["status"], failed["executor"]) == ("FAILED", "spark")
    assert "could not reach Spark" in failed["error_message"]
    assert db.state("scheduled")["status"] == "ACTIVE"
