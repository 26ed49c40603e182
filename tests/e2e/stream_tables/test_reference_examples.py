"""Every example of the reference as it stands there: right at first, and after inserts, updates and deletes.

In IMMEDIATE mode after each statement, in DIFFERENTIAL mode after each refresh.
Statements are in `reference_examples.sql`, tables in `reference_sources.sql`. What is tested is the query: the options
`append_only` and `cdc_mode` are left out, cron expressions give way to an hour, FULL to DIFFERENTIAL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from psycopg import errors

from tests.e2e.conftest import FORGET_TIMES, Database, Headwater, _database

HERE = Path(__file__).parent
EXAMPLES = {
    name.strip(): statement.strip()
    for name, _, statement in (
        part.partition("\n") for part in (HERE / "reference_examples.sql").read_text().split("-- example: ")[1:]
    )
}

CHANGES = {
    "orders": [
        "INSERT INTO orders VALUES (20, 20, 9, 1, 9, 'customer 9', 'west', 5000, 'active'),"
        " (21, 2, NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
        "UPDATE orders SET region = 'south', amount = amount + 1, status = 'active', user_id = 2, cust_id = 3,"
        " customer_id = 3 WHERE id % 3 = 1",
        "DELETE FROM orders WHERE id IN (2, 3, 4, 20)",
    ],
    "order_lines": [
        "INSERT INTO order_lines VALUES (5, 'west')",
        "UPDATE order_lines SET region = 'west' WHERE id = 1",
        "DELETE FROM order_lines WHERE region = 'south'",
    ],
    "order_summary": [
        "INSERT INTO order_summary VALUES ('south', 5), (NULL, 6)",
        "UPDATE order_summary SET total = total + 1",
        "DELETE FROM order_summary WHERE region = 'north'",
    ],
    "sales": [
        "INSERT INTO sales VALUES ('north', 2), ('west', NULL)",
        "UPDATE sales SET region = 'west' WHERE revenue = 3",
        "DELETE FROM sales WHERE revenue = 2 OR region IS NULL",
    ],
    "events": [
        "INSERT INTO events VALUES (20, '2026-01-01 00:30Z', 'new', '{}', now()), (21, NULL, NULL, NULL, NULL)",
        "UPDATE events SET ts = ts + interval '1 hour', payload = '[]' WHERE id < 4",
        "DELETE FROM events WHERE id IN (3, 5, 21)",
    ],
    "employees": [
        "INSERT INTO employees VALUES (40, 40, 'new', 'd1', 'd1', 1, 9999, 3, true, 'g1', 64, 7, 'office 1', 3),"
        " (41, 41, 'newer', 'd9', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'office 9', 40)",
        "UPDATE employees SET salary = salary + 7, active = NOT active, name = name || 'x', manager_id = 2,"
        " dept_id = 1, permissions = 3, grade = 'g0', experience = experience + 1 WHERE id % 4 = 3",
        "DELETE FROM employees WHERE department = 'd2' AND id > 3 OR id IN (1, 33)",
    ],
    "department_caps": [
        "INSERT INTO department_caps VALUES (1320)",
        "UPDATE department_caps SET max_salary = NULL WHERE max_salary = 1200",
        "DELETE FROM department_caps",
    ],
    "departments": [
        "INSERT INTO departments VALUES (2, 'two')",
        "UPDATE departments SET id = 3, name = 'three' WHERE id = 1",
        "DELETE FROM departments WHERE id = 0",
    ],
    "config": [
        "INSERT INTO config VALUES ('d2', 'size', 'S', 'b', NULL), ('d3', 'size', 'M', 'a', 9)",
        "UPDATE config SET setting_value = 'blue', value = 7 WHERE setting_name = 'colour'",
        "DELETE FROM config WHERE department = 'd1'",
    ],
    "users": [
        """INSERT INTO users VALUES (5, 'zoe', true, 1, '{"phones": [{"type": "fax", "number": "9"}]}')""",
        "UPDATE users SET active = NOT active, age = 31, name = upper(name),"
        """ contact_info = '{"phones": [{"number": "5"}]}' WHERE id < 3""",
        "DELETE FROM users WHERE id IN (0, 1)",
    ],
    "categories": [
        "INSERT INTO categories VALUES (7, 'epics', 2), (8, 'long epics', 7), (99, 'found', NULL)",
        "UPDATE categories SET parent_id = 5 WHERE id = 3",
        "DELETE FROM categories WHERE id = 2",
    ],
    "orders_east": [
        "INSERT INTO orders_east VALUES (3), (4)",
        "UPDATE orders_east SET customer_id = 3 WHERE customer_id = 2",
        "DELETE FROM orders_east WHERE customer_id IS NULL",
    ],
    "orders_west": [
        "INSERT INTO orders_west VALUES (2), (4)",
        "UPDATE orders_west SET customer_id = NULL WHERE customer_id = 3",
        "DELETE FROM orders_west WHERE customer_id = 1",
    ],
    "warehouse_a": [
        "INSERT INTO warehouse_a VALUES ('x'), ('z')",
        "UPDATE warehouse_a SET item_name = NULL WHERE item_name = 'y'",
        "DELETE FROM warehouse_a WHERE ctid = (SELECT min(ctid) FROM warehouse_a WHERE item_name = 'x')",
    ],
    "warehouse_b": [
        "INSERT INTO warehouse_b VALUES ('y'), (NULL)",
        "UPDATE warehouse_b SET item_name = 'y' WHERE item_name = 'z'",
        "DELETE FROM warehouse_b WHERE item_name = 'x'",
    ],
    "shipments": [
        "INSERT INTO shipments VALUES (3), (NULL)",
        "UPDATE shipments SET order_id = 5 WHERE order_id = 1",
        "DELETE FROM shipments WHERE order_id = 2",
    ],
    "stock_received": [
        "INSERT INTO stock_received VALUES ('c'), ('c'), ('b')",
        "UPDATE stock_received SET sku = 'b' WHERE sku IS NULL",
        "DELETE FROM stock_received WHERE sku = 'a'",
    ],
    "stock_shipped": [
        "INSERT INTO stock_shipped VALUES ('b'), (NULL)",
        "UPDATE stock_shipped SET sku = 'a' WHERE sku = 'c'",
        "DELETE FROM stock_shipped WHERE sku = 'a'",
    ],
    "customers": [
        "INSERT INTO customers VALUES (0, 'eva', 'e@x'), (4, NULL, 'n@x')",
        "UPDATE customers SET name = upper(name), email = 'c@x' WHERE id > 2",
        "DELETE FROM customers WHERE id IN (1, 3)",
    ],
    "newsletter_subscribers": [
        "INSERT INTO newsletter_subscribers VALUES ('b@x'), ('z@x'), (NULL)",
        "UPDATE newsletter_subscribers SET email = 'y@x' WHERE email = 'a@x'",
        "DELETE FROM newsletter_subscribers WHERE email IS NULL",
    ],
    "parent_data": [
        """INSERT INTO parent_data VALUES (4, '{"children": [null, {"a": 1}]}')""",
        """UPDATE parent_data SET data = '{"children": [9]}' WHERE id < 3""",
        "DELETE FROM parent_data WHERE id = 1",
    ],
    "documents": [
        """INSERT INTO documents VALUES (4, '{"z": null}')""",
        """UPDATE documents SET metadata = '{"a": 1, "c": 3}' WHERE id < 3""",
        "DELETE FROM documents WHERE id = 1",
    ],
    "tagged_items": [
        "INSERT INTO tagged_items VALUES (5, '{z,z}')",
        "UPDATE tagged_items SET tags = tags || '{x}'",
        "DELETE FROM tagged_items WHERE id = 1",
    ],
    "products": [
        "INSERT INTO products VALUES (5, 'New', 99, '[1000, 1]')",
        "UPDATE products SET price = price - 5, prices = '[300]' WHERE id > 1",
        "DELETE FROM products WHERE id = 5",
    ],
    "competitor_prices": [
        "INSERT INTO competitor_prices VALUES (5, 1, 1), (6, 4, 8)",
        "UPDATE competitor_prices SET product_id = 2, price = 100 WHERE id IN (3, 5)",
        "DELETE FROM competitor_prices WHERE id = 4",
    ],
    "order_items": [
        "INSERT INTO order_items VALUES (4, 2), (5, NULL)",
        "UPDATE order_items SET product_id = 4 WHERE product_id = 1",
        "DELETE FROM order_items WHERE product_id IS NULL OR id = 3",
    ],
    "line_items": [
        "INSERT INTO line_items VALUES (20, 1, 7, '2027-01-01'), (21, 9, 8, '2020-01-01')",
        "UPDATE line_items SET order_id = order_id + 1, amount = amount + 1 WHERE id > 8",
        "DELETE FROM line_items WHERE created_at > '2026-01-01 09:30'",
    ],
    "arrays": [
        "INSERT INTO arrays VALUES (4, '[[], {}]')",
        "UPDATE arrays SET data = data || '[5]'::jsonb WHERE id < 3",
        "DELETE FROM arrays WHERE id = 1",
    ],
    "ratings": [
        "INSERT INTO ratings VALUES (5, 3), (6, 4)",
        "UPDATE ratings SET rating = 10 WHERE id = 1",
        "DELETE FROM ratings WHERE id = 3",
    ],
    "quality_thresholds": [
        "INSERT INTO quality_thresholds VALUES (NULL)",
        "UPDATE quality_thresholds SET min_rating = 6 WHERE min_rating IS NULL",
        "DELETE FROM quality_thresholds WHERE min_rating = 6",
    ],
    "players": [
        "INSERT INTO players VALUES (6, 20), (7, 1)",
        "UPDATE players SET score = 15 WHERE id IN (2, 4)",
        "DELETE FROM players WHERE id = 5",
    ],
    "sensor_readings": [
        "INSERT INTO sensor_readings VALUES (20, '2026-01-01 00:02:30', 9), (21, '2020-01-01', NULL)",
        "UPDATE sensor_readings SET value = -value, ts = ts + interval '90 s' WHERE id = 2",
        "DELETE FROM sensor_readings WHERE id IN (1, 4)",
    ],
    "transactions": [
        "INSERT INTO transactions VALUES (20, '2026-01-01 00:02:30', 9), (21, '2020-01-01', NULL)",
        "UPDATE transactions SET amount = -amount, created_at = created_at + interval '90 s' WHERE id = 2",
        "DELETE FROM transactions WHERE id IN (1, 4)",
    ],
    "json_data": [
        "INSERT INTO json_data VALUES (6, 'null'), (7, '{')",
        "UPDATE json_data SET data = '[]' WHERE id < 4",
        "DELETE FROM json_data WHERE id IN (4, 5)",
    ],
    "measurements": [
        "INSERT INTO measurements VALUES (4, 7, NULL, NULL)",
        "UPDATE measurements SET b = NULL, c = 'z' WHERE id = 1",
        "DELETE FROM measurements WHERE id = 3",
    ],
    "t": [
        "INSERT INTO t VALUES (NULL, NULL, NULL, NULL), (7, 7, 7, 7)",
        "UPDATE t SET a = 2, v = v + 1 WHERE v < 9",
        "DELETE FROM t WHERE b = 1 OR a = 7",
    ],
    "keyless.events": [
        """INSERT INTO keyless.events VALUES (now(), '{"type": 1}'), (NULL, NULL)""",
        """UPDATE keyless.events SET payload = '{"type": 2}' WHERE payload @> '{"type": 0}'""",
        "DELETE FROM keyless.events WHERE ctid IN (SELECT min(ctid) FROM keyless.events GROUP BY payload)",
    ],
    "partitioned.orders": [
        "INSERT INTO partitioned.orders VALUES (3, 'US', 7), (3, 'EU', NULL)",
        "UPDATE partitioned.orders SET region = 'EU' WHERE ctid = (SELECT min(ctid) FROM partitioned.orders_us)",
        "DELETE FROM partitioned.orders_eu WHERE amount = 2",
    ],
}
"""For each source an insert, an update and a delete."""

COMPARED = {
    "team_members": "department, members, all_active,"
    " (SELECT array_agg(i ORDER BY i) FROM unnest(member_ids) AS i) AS member_ids,"
    " (SELECT array_agg(m ORDER BY m) FROM json_array_elements_text(members_json) AS m) AS members_json",
    "config_map": "department, settings::jsonb, metadata",
    "regression_stats": "department, regr_n, "
    + ", ".join(
        f"round({name}::numeric, 6) AS {name}"
        for name in ("sal_exp_corr", "covar_pop", "covar_samp", "slope", "intercept", "r_squared")
    ),
}
"""Where the query leaves something open (the order of an array, the last digits of a float): what is to be equal."""


@pytest.fixture(scope="module")
def examples(server: Headwater) -> Iterator[Database]:
    for database in _database(server):
        database.run(f"ALTER DATABASE {database.name} SET pg_trickle.enabled = off")
        database.run((HERE / "reference_sources.sql").read_text())
        yield database


def differs(database: Database, name: str) -> list[tuple[object, ...]]:
    """As `difference`, but of what the query determines."""
    if name not in COMPARED:
        return database.difference(name)
    stored = f"SELECT {COMPARED[name]} FROM {name}"
    query = f"SELECT {COMPARED[name]} FROM ({database.state(name)['defining_query']}) AS q"
    return database.rows(
        f"(SELECT 'missing', m::text FROM ({query} EXCEPT ALL {stored}) AS m)"
        f" UNION ALL (SELECT 'extra', e::text FROM ({stored} EXCEPT ALL {query}) AS e)"
    )


@contextmanager
def made(database: Database, example: str, mode: str) -> Iterator[tuple[str, list[str]]]:
    """An example in some mode, right and not empty: its stream table and its sources, as before at the end."""
    found = re.fullmatch(r"(\w+)(?: \((\w+)\))?", example)
    assert found is not None
    name, schema = found[1], found[2] or "public"
    # A name that is also one of the sources' gives way.
    stored = f"st_{name}" if name in CHANGES else name
    statement = EXAMPLES[example].replace(f"'{name}'", f"'{stored}'", 1)
    database.run(f"SET search_path = {schema}, public")
    database.run(in_mode(statement, mode))
    sources: list[str] = []
    try:
        assert database.state(stored)["refresh_mode"] == mode
        assert database.value(f"SELECT count(*) FROM {stored}") > 0
        assert differs(database, stored) == []
        sources += sources_of(database, stored)
        yield stored, sources
    finally:
        database.run("RESET search_path")
        database.run("SELECT pgtrickle.drop_stream_table(%s)", stored)
        restore(database, sources)


def in_mode(statement: str, mode: str) -> str:
    """A statement of the reference with another mode, and with another schedule where it would not fit."""
    if mode == "DIFFERENTIAL":
        statement = re.sub(r"schedule => '(@hourly|0 6.*?)'", "schedule => '1h'", statement)
        return statement.replace("'FULL'", "'DIFFERENTIAL'")
    statement = re.sub(r",\s*((schedule|refresh_mode) => '[^']*'|'1m')(?=[,\s])", "", statement)
    return f"{statement.rstrip(');').rstrip()}, refresh_mode => '{mode}')"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("example", EXAMPLES)
def test_example_follows_its_sources(examples: Database, example: str) -> None:
    with made(examples, example, "DIFFERENTIAL") as (stored, sources):
        for what, change in enumerate(("inserts", "updates", "deletes")):
            with examples.connection.transaction():
                for source in sources:
                    examples.run(CHANGES[source][what])
            examples.run(FORGET_TIMES)
            examples.refresh(stored)
            assert differs(examples, stored) == [], change
        with examples.connection.transaction():
            for source in sources:
                for statement in rearrangements(examples, source):
                    examples.run(statement)
        examples.run(FORGET_TIMES)
        examples.refresh(stored)
        assert differs(examples, stored) == [], "other keys, or more copies"
        assert {row["action"] for row in examples.history(stored)[1:]} <= {"DIFFERENTIAL", "NO_DATA"}


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_is_equal_after_every_statement(examples: Database, example: str) -> None:
    """In IMMEDIATE mode: within the transaction, after a rollback, and after TRUNCATE, too."""
    with made(examples, example, "IMMEDIATE") as (stored, sources):

        def run(statement: str) -> None:
            examples.run(statement)
            assert differs(examples, stored) == [], statement

        for what in range(3):
            with examples.connection.transaction():
                for source in sources:
                    run(CHANGES[source][what])
        with examples.connection.transaction(force_rollback=True):
            for source in sources:
                run(f"TRUNCATE {source}")
                run(CHANGES[source][0])
        assert differs(examples, stored) == [], "rolled back"
        for source in sources:
            for statement in rearrangements(examples, source):
                run(statement)
        assert examples.state(stored)["refresh_mode"] == "IMMEDIATE"
        assert [row["action"] for row in examples.history(stored)] == ["FULL"], "computed as a whole, once"


def test_example_that_reads_another_is_equal_after_every_statement(examples: Database) -> None:
    """order_totals and big_customers of "Referencing Other Stream Tables"."""
    examples.create(
        "customer_totals",
        "SELECT customer_id, SUM(amount) AS total FROM orders GROUP BY customer_id",
        refresh_mode="IMMEDIATE",
    )
    examples.create(
        "big_customers",
        "SELECT customer_id, total FROM pgtrickle.customer_totals WHERE total > 1000",
        refresh_mode="IMMEDIATE",
    )
    try:
        for change in (*CHANGES["orders"], *rearrangements(examples, "orders"), "TRUNCATE orders"):
            examples.run(change)
            examples.assert_current("customer_totals", "big_customers")
    finally:
        examples.run("SELECT pgtrickle.drop_stream_table(n) FROM unnest('{big_customers,customer_totals}'::text[]) n")
        restore(examples, ["orders"])


@pytest.mark.parametrize("example", ["order_totals", "daily_report"])
def test_example_with_its_schedule_is_refused_in_immediate_mode(examples: Database, example: str) -> None:
    """There is nothing that a schedule could say."""
    refreshed = re.sub(r",\s*refresh_mode => '\w+'", "", EXAMPLES[example])
    with pytest.raises(errors.FeatureNotSupported, match=r"schedule .* is not supported in IMMEDIATE mode"):
        examples.run(f"{refreshed.rstrip(');').rstrip()}, refresh_mode => 'IMMEDIATE')")


def sources_of(database: Database, stored: str) -> list[str]:
    """The tables that a stream table reads, by their keys in `CHANGES`."""
    return [
        name if schema == "public" else f"{schema}.{name}"
        for schema, name in database.rows(
            "SELECT nspname, relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace"
            " WHERE pg_class.oid IN (SELECT source_relid FROM pgtrickle.pgt_dependencies"
            " WHERE pgt_id = pgtrickle._resolve(%s) AND source_type = 'TABLE') ORDER BY relname",
            stored,
        )
    ]


def rearrangements(database: Database, source: str) -> list[str]:
    """Give half of the rows other keys; where there is no key, have every row twice, but for one."""
    if database.value("SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass AND indisprimary", source):
        return [f"UPDATE {source} SET id = id + 1000 WHERE id % 2 = 0"]
    return [
        f"INSERT INTO {source} SELECT * FROM {source}",
        f"DELETE FROM {source} WHERE ctid = (SELECT min(ctid) FROM {source})",
    ]


def restore(database: Database, sources: list[str]) -> None:
    """The sources as they were."""
    for source in sources:
        database.run(f"TRUNCATE {source}")
        for statement in (HERE / "reference_sources.sql").read_text().split(";\n"):
            if statement.startswith((f"INSERT INTO {source} ", f"INSERT INTO {source}\n")):
                database.run(statement)
