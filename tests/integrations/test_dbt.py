"""dbt-core with the adapter `headwater`: run, run again, change, full refresh, drop, tests that fail, blue/green."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database
from tests.integrations.dbt_project import ADAPTER, Dbt, Project, installed

pytestmark = pytest.mark.long

SOURCES = {"name": "shop", "schema": "public", "tables": [{"name": "orders"}]}
TOTALS = "select customer, count(*) as orders, sum(amount) as total from {{ ref('staged') }} group by customer"
LARGE = "select customer, total from {{ ref('totals') }} where total > 15"


@pytest.fixture(scope="session")
def dbt(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Dbt:
    return installed(request, tmp_path_factory.mktemp("adapter"))


def _project(dbt: Dbt, folder: Path, database: Database) -> Project:
    database.run("CREATE TABLE orders (id int PRIMARY KEY, customer text, amount int)")
    database.run("INSERT INTO orders VALUES (1, 'a', 10), (2, 'a', 20), (3, 'b', 7)")
    project = Project(dbt, folder / "shop", database)
    project.model("staged", "select id, customer, amount from {{ source('shop', 'orders') }}", materialized="view")
    project.model("totals", TOTALS, materialized="stream_table", schedule="1s")
    project.model("large", LARGE, materialized="stream_table", schedule="1s")
    project.properties({"sources": [SOURCES]})
    return project


@pytest.fixture
def shop(dbt: Dbt, tmp_path: Path, live_db: Database) -> Project:
    """Orders, a view of them, a stream table over that, and one over this; the scheduler is at work."""
    return _project(dbt, tmp_path, live_db)


@pytest.fixture
def quiet_shop(dbt: Dbt, tmp_path: Path, db: Database) -> Project:
    """The same, and nothing is refreshed but by hand."""
    return _project(dbt, tmp_path, db)


def identity(database: Database) -> list[tuple[Any, ...]]:
    """What would differ if anything had been done to a relation of the schema or to a stream table."""
    return [
        *database.rows("SELECT to_jsonb(s) FROM pgtrickle.pgt_stream_tables s ORDER BY pgt_id"),
        *database.rows("SELECT refresh_id FROM pgtrickle.pgt_refresh_history ORDER BY 1"),
        *database.rows(
            "SELECT c.oid::int, c.xmin::text, c.relname FROM pg_class c"
            " WHERE c.relnamespace = to_regnamespace('analytics') ORDER BY 1"
        ),
    ]


def test_the_adapter_is_typed_and_its_examples_are_true(dbt: Dbt) -> None:
    done = dbt.run("mypy", folder=ADAPTER)
    assert done.returncode == 0, done.stdout
    for module in ("sql", "registers"):
        program = f"import doctest, dbt.adapters.headwater.{module} as m; print(doctest.testmod(m))"
        shown = dbt.run("python", "-c", program, folder=ADAPTER.parent).stdout
        assert shown.startswith("TestResults(failed=0, attempted=") and "attempted=0" not in shown


def test_a_second_run_changes_nothing(quiet_shop: Project) -> None:
    shop, db = quiet_shop, quiet_shop.database
    shop.model(
        "totals", TOTALS, materialized="stream_table", schedule="1h", indexes=[{"columns": ["total", "customer"]}],
        grants={"select": ["pg_monitor"]},
    )  # fmt: skip
    shop.dbt("run")
    assert list(shop.results()) == ["staged", "totals", "large"]  # in the order of ref()
    db.assert_current("analytics.totals", "analytics.large")
    assert db.value("SELECT has_table_privilege('pg_monitor', 'analytics.totals', 'SELECT')")
    before = identity(db)
    shop.dbt("run")
    assert set(shop.results().values()) == {"UNCHANGED"}
    assert identity(db) == before


def test_rows_follow_between_runs(shop: Project, eventually: Callable[..., Any]) -> None:
    shop.dbt("run")
    shop.database.run("INSERT INTO orders VALUES (4, 'b', 100)")
    large = "SELECT customer, total FROM analytics.large ORDER BY 1"
    eventually(lambda: shop.database.rows(large) == [("a", 30), ("b", 107)])


def test_writers_do_not_wait_while_a_stream_table_is_filled(
    quiet_shop: Project, eventually: Callable[..., Any]
) -> None:
    shop, db = quiet_shop, quiet_shop.database
    db.run("""CREATE FUNCTION held(id int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN id; END'""")
    query = "select public.held(id) as id from {{ source('shop', 'orders') }}"
    shop.model("totals", query, materialized="stream_table", refresh_mode="DIFFERENTIAL")
    db.run("SELECT pg_advisory_lock(42)")
    running = threading.Thread(target=shop.dbt, args=("run", "--select", "totals"))
    running.start()
    try:
        eventually(lambda: db.rows("SELECT is_populated FROM pgtrickle.pgt_stream_tables") == [(False,)])
        db.run("SET statement_timeout = '60s'; INSERT INTO orders VALUES (4, 'b', 100)")
    finally:
        db.run("SELECT pg_advisory_unlock(42)")
        running.join()
    db.assert_refreshed("analytics.totals")
    assert db.value("SELECT count(*) FROM analytics.totals") == 4


def test_what_an_interrupted_run_has_left_goes(quiet_shop: Project) -> None:
    shop, db = quiet_shop, quiet_shop.database
    shop.dbt("run")
    db.create("analytics.totals__dbt_tmp", "SELECT id FROM public.orders")
    shop.dbt("run")
    names = "SELECT pgt_name FROM pgtrickle.pgt_stream_tables ORDER BY 1"
    assert db.rows(names) == [("large",), ("totals",)]


def test_another_query_and_other_parameters_keep_the_table(quiet_shop: Project) -> None:
    shop, db = quiet_shop, quiet_shop.database
    shop.dbt("run")
    db.run("CREATE VIEW public.report AS SELECT customer, total FROM analytics.totals")
    before = db.state("analytics.totals")
    shop.model(
        "totals", TOTALS.replace("group", "where amount > 7 group"),
        materialized="stream_table", schedule="2h", refresh_mode="FULL", cdc_mode="trigger", status="SUSPENDED",
        diamond_consistency="atomic", diamond_schedule_policy="slowest",
    )  # fmt: skip
    shop.dbt("run")
    state = db.state("analytics.totals")
    assert [state[key] for key in ("pgt_id", "pgt_relid")] == [before[key] for key in ("pgt_id", "pgt_relid")]
    assert [state[key] for key in ("schedule", "requested_mode", "requested_cdc_mode", "status")] == [
        "2h", "FULL", "trigger", "SUSPENDED",
    ]  # fmt: skip
    assert [state[key] for key in ("diamond_consistency", "diamond_schedule_policy")] == ["atomic", "slowest"]
    assert db.rows("SELECT * FROM public.report") == [("a", 30)]
    assert "another query" in db.history("analytics.totals")[-1]["executor_reason"]
    shop.model("totals", TOTALS, materialized="stream_table", status="ACTIVE")
    shop.dbt("run")
    state = db.state("analytics.totals")
    assert [state[key] for key in ("schedule", "requested_mode", "status")] == ["calculated", "AUTO", "ACTIVE"]
    db.assert_current("analytics.totals", "analytics.large")


def test_parameters_of_the_creation(quiet_shop: Project) -> None:
    shop, db = quiet_shop, quiet_shop.database
    shop.model(
        "totals", "select id, customer, amount as total from {{ source('shop', 'orders') }}",
        materialized="stream_table", initialize=False, append_only=True, engine="postgres", schedule="1h",
    )  # fmt: skip
    shop.dbt("run", "--select", "totals")
    state = db.state("analytics.totals")
    assert [state[key] for key in ("is_populated", "append_only", "engine")] == [False, True, "postgres"]
    shop.model("totals", "select id from {{ source('shop', 'orders') }}", materialized="stream_table", engine="auto")
    assert "run the model with --full-refresh" in shop.dbt("run", "--select", "totals", fails=True)
    assert db.state("analytics.totals")["engine"] == "postgres"
    shop.dbt("run", "--select", "totals", "--full-refresh")
    assert db.state("analytics.totals")["engine"] == "auto"


def test_full_refresh_makes_a_new_table_and_readers_see_no_gap(shop: Project, eventually: Callable[..., Any]) -> None:
    db = shop.database
    shop.dbt("run")
    before = db.state("analytics.totals")
    stop, failures, reads = threading.Event(), [], 0

    def read() -> None:
        nonlocal reads
        with psycopg.connect(db.server.dsn(db.name), autocommit=True) as connection:
            while not stop.is_set():
                try:
                    rows = connection.execute("SELECT customer, total FROM analytics.totals ORDER BY 1").fetchall()
                    reads += 1
                    if rows != [("a", 30), ("b", 7)]:
                        failures.append(rows)
                except psycopg.Error as error:
                    failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        shop.dbt("run", "--full-refresh", "--select", "totals")
    finally:
        stop.set()
        reader.join()
    assert failures == [] and reads > 0
    state = db.state("analytics.totals")
    assert state["pgt_id"] != before["pgt_id"] and state["pgt_name"] == "totals"
    # The one that reads it was not run: it reads the new one.
    db.run("INSERT INTO orders VALUES (4, 'b', 100)")
    large = "SELECT customer, total FROM analytics.large ORDER BY 1"
    eventually(lambda: db.rows(large) == [("a", 30), ("b", 107)])
    names = "SELECT pgt_name FROM pgtrickle.pgt_stream_tables ORDER BY 1"
    assert db.rows(names) == [("large",), ("totals",)]


def test_a_model_becomes_something_else_and_a_stream_table_again(quiet_shop: Project) -> None:
    shop, db = quiet_shop, quiet_shop.database
    shop.dbt("run")
    names = "SELECT pgt_name FROM pgtrickle.pgt_stream_tables ORDER BY 1"
    for kind in ("table", "view"):
        shop.model("large", LARGE, materialized=kind)
        shop.dbt("run")
        assert db.rows(names) == [("totals",)]
        assert db.rows("SELECT customer, total FROM analytics.large") == [("a", 30)]
        shop.model("large", LARGE, materialized="stream_table", schedule="1s")
        shop.dbt("run")
        assert db.rows(names) == [("large",), ("totals",)]
        db.assert_current("analytics.large")


def test_a_table_that_each_run_makes_anew_is_followed(shop: Project, eventually: Callable[..., Any]) -> None:
    db = shop.database
    query = "select id, customer, amount from {{ source('shop', 'orders') }}"
    shop.model("staged", query, materialized="table", indexes=[{"columns": ["id"], "unique": True}])
    shop.dbt("run")
    large = "SELECT customer, total FROM analytics.large ORDER BY 1"
    for number in range(3):
        db.run("INSERT INTO orders VALUES (%s, 'c', 100)", 10 + number)
        shop.dbt("run", "--select", "staged")
        eventually(lambda number=number: db.rows(large) == [("a", 30), ("c", 100 * (number + 1))])
    states = "SELECT status, consecutive_errors FROM pgtrickle.pgt_stream_tables"
    assert db.rows(states) == [("ACTIVE", 0), ("ACTIVE", 0)]


def test_a_stream_table_that_dbt_drops_leaves_nothing_behind(quiet_shop: Project) -> None:
    before = quiet_shop.database.traces()
    quiet_shop.dbt("run")
    (quiet_shop.folder / "macros").mkdir()
    (quiet_shop.folder / "macros" / "drop.sql").write_text(
        "{% macro drop() %}{% for name in ['large', 'totals'] %}"
        "{% do adapter.drop_relation(adapter.get_relation(target.database, target.schema, name)) %}{% endfor %}"
        "{% do run_query('commit') %}{% endmacro %}"
    )
    quiet_shop.dbt("run-operation", "drop")
    assert set(quiet_shop.database.traces()) - set(before) == {"relation analytics.staged"}


def test_tests_of_lag_and_status_fail_when_they_should(quiet_shop: Project) -> None:
    shop, db = quiet_shop, quiet_shop.database
    tests = [{"lag_below": {"arguments": {"max_lag": "1 minute"}}}, "is_active"]
    live = {"name": "live", "schema": "analytics", "tables": [{"name": "large"}]}
    live["config"] = {"freshness": {"error_after": {"count": 1, "period": "minute"}}}
    shop.properties({"sources": [SOURCES, live], "models": [{"name": "large", "data_tests": tests}]})
    shop.dbt("build")
    shop.dbt("source", "freshness")
    db.run("UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = data_timestamp - interval '1 day'")
    shop.dbt("test")  # they lack nothing, however long ago they were refreshed
    shop.dbt("source", "freshness")
    db.run("INSERT INTO orders VALUES (4, 'b', 100)")
    assert "Got 1 result, configured to fail if != 0" in shop.dbt("test", fails=True)
    assert shop.results() == {
        "lag_below_large_1_minute": shop.results()["lag_below_large_1_minute"],
        "is_active_large_": "pass",
    }
    shop.dbt("source", "freshness", fails=True)
    db.refresh("analytics.totals")
    db.refresh("analytics.large")
    shop.dbt("test")
    shop.dbt("source", "freshness")
    db.run("SELECT pgtrickle.alter_stream_table('analytics.large', status => 'SUSPENDED')")
    shop.dbt("test", fails=True)
    assert shop.results()["lag_below_large_1_minute"] == "pass"
    assert shop.results()["is_active_large_"].startswith("Got 1 result")


def test_documentation_shows_stream_tables_without_what_is_theirs_alone(quiet_shop: Project) -> None:
    columns = [{"name": "customer", "description": "who it's \\ from"}]
    quiet_shop.properties(
        {"sources": [SOURCES], "models": [{"name": "totals", "description": "sums", "columns": columns}]}
    )
    docs = {"relation": True, "columns": True}
    quiet_shop.model("totals", TOTALS, materialized="stream_table", persist_docs=docs)
    quiet_shop.dbt("run")
    quiet_shop.dbt("docs", "generate")
    node = quiet_shop.artifact("catalog.json")["nodes"]["model.shop.totals"]
    assert list(node["columns"]) == ["customer", "orders", "total"]
    assert node["columns"]["customer"]["comment"] == "who it's \\ from"
    assert (node["metadata"]["type"], node["metadata"]["comment"]) == ("STREAM TABLE", "sums")
    parents = quiet_shop.artifact("manifest.json")["parent_map"]
    assert parents["model.shop.large"] == ["model.shop.totals"]
    assert parents["model.shop.totals"] == ["model.shop.staged"]


def test_a_view_is_replaced_in_place_as_long_as_its_columns_allow(quiet_shop: Project) -> None:
    shop, db = quiet_shop, quiet_shop.database
    shop.dbt("run")
    view = db.value("SELECT 'analytics.staged'::regclass::oid::int")
    shop.model(
        "staged", "select id, customer, amount * 2 as amount, 1 as one from {{ source('shop', 'orders') }}",
        materialized="view",
    )  # fmt: skip
    shop.dbt("run", "--select", "staged")
    assert db.value("SELECT 'analytics.staged'::regclass::oid::int") == view
    db.assert_refreshed("analytics.totals")
    assert db.rows("SELECT customer, total FROM analytics.totals ORDER BY 1") == [("a", 60), ("b", 14)]
    shop.model("staged", "select customer, amount from {{ source('shop', 'orders') }}", materialized="view")
    shop.dbt("run")  # a column went
    assert db.value("SELECT 'analytics.staged'::regclass::oid::int") != view
    db.assert_refreshed("analytics.totals")
    assert db.rows("SELECT customer, total FROM analytics.totals ORDER BY 1") == [("a", 30), ("b", 7)]
    assert db.rows("SELECT relname FROM pg_class WHERE relname ~ '__dbt_'") == []


REFUSED = {
    "unlogged": ({"unlogged": True}, "a stream table takes no unlogged"),
    "header": ({"sql_header": "set x = 1"}, "a stream table takes no sql_header"),
    "mode": ({"refresh_mode": "DIFFERENTIAL"}, "volatile function"),
    "type": ({"append_only": "perhaps"}, "append_only"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_stream_table_cannot_have_is_refused(quiet_shop: Project, case: str) -> None:
    config, message = REFUSED[case]
    query = "select id, random() as r from {{ source('shop', 'orders') }}"
    quiet_shop.model("totals", query, materialized="stream_table", **config)
    assert message in quiet_shop.dbt("run", "--select", "totals", fails=True)
    assert quiet_shop.database.rows("SELECT * FROM pgtrickle.pgt_stream_tables") == []


def test_a_contract_is_checked_and_constraints_are_refused(quiet_shop: Project) -> None:
    shop = quiet_shop
    columns: list[dict[str, Any]] = [{"name": "id", "data_type": "bigint"}]
    shop.model("totals", "select id from {{ source('shop', 'orders') }}", materialized="stream_table")
    model = {"name": "totals", "config": {"contract": {"enforced": True}}, "columns": columns}
    shop.properties({"sources": [SOURCES], "models": [model]})
    assert "data type mismatch" in shop.dbt("run", "--select", "totals", fails=True)
    columns[0] = {"name": "id", "data_type": "int", "constraints": [{"type": "not_null"}]}
    shop.properties({"sources": [SOURCES], "models": [model]})
    assert "a stream table has no constraints of its own" in shop.dbt("run", "--select", "totals", fails=True)
    del columns[0]["constraints"]
    shop.properties({"sources": [SOURCES], "models": [model]})
    shop.dbt("run", "--select", "totals")


def test_names_and_texts_that_need_quotes(quiet_shop: Project) -> None:
    query = "select id, 'it''s \\ %s' as \"odd Name\", amount % 7 as rest from {{ source('shop', 'orders') }}"
    quiet_shop.model("odd", query, materialized="stream_table", alias="Odd one; it's", schedule="1h")
    quiet_shop.dbt("run", "--select", "odd")
    rows = quiet_shop.database.rows('SELECT id, "odd Name", rest FROM analytics."Odd one; it\'s" ORDER BY 1 LIMIT 1')
    assert rows == [(1, "it's \\ %s", 3)]
    before = identity(quiet_shop.database)
    quiet_shop.dbt("run", "--select", "odd")
    assert identity(quiet_shop.database) == before


# Posts to the balances alone, as a program would that may write past the triggers.
BREAK_STOCK = (
    "ALTER TABLE accum.stock_balance_cache DISABLE TRIGGER ALL",
    "UPDATE accum.stock_balance_cache SET quantity = 5",
    "ALTER TABLE accum.stock_balance_cache ENABLE TRIGGER ALL",
)


@pytest.fixture
def stock(quiet_shop: Project) -> Iterator[Project]:
    """A queue and a register."""
    shop = quiet_shop
    shop.model("sent", "", materialized="queue", settings={"max_retries": 2}, consumers=["billing"])
    dimensions = {"product": "int"}
    shop.model("stock", "", materialized="register", dimensions=dimensions, resources={"quantity": "numeric(18,4)"})
    models = [
        {
            "name": "sent",
            "data_tests": [{"consumer_lag_below": {"arguments": {"max_lag": "1 hour"}}}, "no_dead_letters"],
        },
        {"name": "stock", "data_tests": ["register_is_consistent"]},
    ]
    shop.properties({"sources": [SOURCES], "models": models})
    yield shop


def test_a_queue_and_a_register_are_made_and_kept(stock: Project) -> None:
    db = stock.database
    stock.dbt("build", "--select", "sent", "stock")
    db.run("SELECT pgque.send('sent', 'order.created', '{\"id\": 1}'::jsonb)")
    db.run("""SELECT accum.register_post('stock',
        '[{"recorder": "r:1", "period": "2026-04-18", "product": 42, "quantity": 100}]')""")
    assert db.rows("SELECT ev_type FROM analytics.sent") == [("order.created",)]
    assert db.rows("SELECT product, quantity FROM analytics.stock") == [(42, 100)]
    before = identity(db), db.rows("SELECT to_jsonb(q) - 'queue_switch_time', xmin::text FROM pgque.queue q")
    stock.dbt("build", "--select", "sent", "stock", "--full-refresh")
    assert set(stock.results().values()) == {"UNCHANGED", "pass"}
    assert (identity(db), db.rows("SELECT to_jsonb(q) - 'queue_switch_time', xmin::text FROM pgque.queue q")) == before
    assert db.rows("SELECT ev_type FROM analytics.sent") == [("order.created",)]
    stock.model("sent", "", materialized="queue", settings={"max_retries": 3}, consumers=["billing", "audit"])
    resources = {"quantity": "numeric(18,4)", "cost": "numeric(18,2)"}
    stock.model("stock", "", materialized="register", dimensions={"product": "int"}, resources=resources)
    stock.dbt("run", "--select", "sent", "stock")
    assert db.value("SELECT queue_max_retries FROM pgque.queue WHERE queue_name = 'sent'") == 3
    consumers = db.rows("SELECT consumer_name FROM pgque.get_consumer_info('sent') ORDER BY 1")
    assert consumers == [("audit",), ("billing",)]
    assert db.rows("SELECT product, quantity, cost FROM analytics.stock") == [(42, 100, 0)]


def test_tests_of_queues_and_registers_fail_when_they_should(stock: Project) -> None:
    db = stock.database
    stock.dbt("run", "--select", "sent", "stock")
    db.run("""SELECT accum.register_post('stock',
        '[{"recorder": "r:1", "period": "2026-04-18", "product": 42, "quantity": 100}]')""")
    for statement in BREAK_STOCK:
        db.run(statement)
    models = [
        {
            "name": "sent",
            "data_tests": [{"consumer_lag_below": {"arguments": {"max_lag": "0 s", "consumer": "nobody"}}}],
        },
        {"name": "stock", "data_tests": ["register_is_consistent"]},
    ]
    stock.properties({"sources": [SOURCES], "models": models})
    stock.dbt("test", fails=True)
    assert all(message.startswith("Got 1 result") for message in stock.results().values()), stock.results()
    assert len(stock.results()) == 2


def test_what_queues_and_registers_cannot_be_is_refused(stock: Project) -> None:
    stock.dbt("run", "--select", "sent", "stock")
    stock.model("stock", "", materialized="register", dimensions={"product": "text"}, resources={"quantity": "int"})
    stock.model("sent", "select 1", materialized="queue")
    told = stock.dbt("run", "--select", "sent", "stock", fails=True)
    assert 'register "stock": dimensions product is int in the database and text in the model' in told
    assert "a queue has no query" in told


class TestSwap:
    """Blue/green: another schema is built, awaited and swapped in."""

    ARGUMENTS = "{live: analytics, next: analytics_next, max_lag: 5 seconds, timeout: 60 seconds}"

    def test_the_next_schema_takes_the_place_of_the_live_one(
        self, shop: Project, eventually: Callable[..., Any]
    ) -> None:
        db = shop.database
        db.run("CREATE ROLE reader_of_swaps")
        try:
            shop.dbt("run")
            db.run("GRANT USAGE ON SCHEMA analytics TO reader_of_swaps")
            shop.model("large", LARGE.replace("15", "5"), materialized="stream_table", schedule="1s")
            shop.dbt("run", "--target", "next")
            large = "SELECT customer, total FROM analytics.large ORDER BY 1"
            assert db.rows(large) == [("a", 30)]
            shop.dbt("run-operation", "swap_schemas", "--args", self.ARGUMENTS)
            assert db.rows(large) == [("a", 30), ("b", 7)]
            assert db.value("SELECT has_schema_privilege('reader_of_swaps', 'analytics', 'USAGE')")
            db.run("INSERT INTO orders VALUES (4, 'b', 1)")
            eventually(lambda: db.rows(large) == [("a", 30), ("b", 8)])
            former = "SELECT customer, total FROM analytics_next.totals ORDER BY 1"
            eventually(lambda: db.rows(former) == [("a", 30), ("b", 8)])
            # The former one is still there, and goes back by another swap; or goes.
            shop.dbt("run")
            assert set(shop.results().values()) == {"UNCHANGED"}
            db.assert_current("analytics.totals", "analytics.large")
            db.run("DROP SCHEMA analytics_next CASCADE")
            db.run("INSERT INTO orders VALUES (5, 'b', 1)")
            eventually(lambda: db.rows(large) == [("a", 30), ("b", 9)])
        finally:
            db.run("DROP OWNED BY reader_of_swaps; DROP ROLE reader_of_swaps")

    def test_the_first_time_there_is_no_live_one(self, shop: Project) -> None:
        shop.dbt("run", "--target", "next")
        shop.dbt("run-operation", "swap_schemas", "--args", self.ARGUMENTS)
        assert shop.database.rows("SELECT customer FROM analytics.large") == [("a",)]

    def test_what_lags_is_not_swapped_in(self, quiet_shop: Project) -> None:
        shop, db = quiet_shop, quiet_shop.database
        shop.dbt("run")
        shop.dbt("run", "--target", "next")
        db.run("INSERT INTO orders VALUES (4, 'b', 100)")
        db.run("UPDATE pgtrickle.pgt_stream_tables SET data_timestamp = data_timestamp - interval '1 day'")
        arguments = self.ARGUMENTS.replace("60 seconds", "1 second")
        told = shop.dbt("run-operation", "swap_schemas", "--args", arguments, fails=True)
        assert "not fresh enough" in told and "totals is ACTIVE" in told
        db.run("SELECT pgtrickle.alter_stream_table('analytics_next.large', status => 'SUSPENDED')")
        told = shop.dbt("run-operation", "swap_schemas", "--args", self.ARGUMENTS, fails=True)
        assert "large is SUSPENDED" in told
        missing = "{live: analytics, next: nowhere}"
        assert 'no schema "nowhere"' in shop.dbt("run-operation", "swap_schemas", "--args", missing, fails=True)
        assert db.value("SELECT count(*) FROM analytics.large") == 1
