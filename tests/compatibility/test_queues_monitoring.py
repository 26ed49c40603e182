"""Monitoring, exporters, administrators' queries and consumer loops as they are written for PgQ, in SQL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.e2e.conftest import Database

QUEUE = "shop.orders"
JSON_TYPE = '{"op":"%s","table":["public","accounts"],"pkey":["id"]}'


@pytest.fixture(scope="module")
def shop(queues: Database) -> Iterator[Database]:
    """A queue that two consumers read: `billing` has seen all, `export` holds a batch and lags behind."""
    make(queues, QUEUE)
    for consumer in ("billing", "export"):
        assert queues.value("SELECT pgque.register_consumer(%s, %s)", QUEUE, consumer) == 1
    for turn in range(2):
        for number in range(3):
            queues.run("SELECT pgque.insert_event(%s, 'I:id', %s)", QUEUE, f"id={turn}{number}")
        tick(queues, QUEUE)
    for _ in range(2):
        batch = queues.value("SELECT pgque.next_batch(%s, 'billing')", QUEUE)
        assert queues.value("SELECT pgque.finish_batch(%s)", batch) == 1
    assert queues.value("SELECT pgque.next_batch(%s, 'export')", QUEUE) is not None
    for number in range(4):
        queues.run("SELECT pgque.insert_event(%s, 'U:id', %s)", QUEUE, f"id=9{number}")
    yield queues
    queues.run("SELECT pgque.drop_queue(%s, true)", QUEUE)


def make(database: Database, queue: str) -> None:
    """A queue that no clock ticks, where each event is worth a tick."""
    database.run("SELECT pgque.create_queue(%s)", queue)
    database.run("SELECT pgque.set_queue_config(%s, 'ticker_paused', 'true')", queue)
    database.run("SELECT pgque.set_queue_config(%s, 'ticker_max_count', '1')", queue)


def tick(database: Database, queue: str) -> None:
    """A tick that is not forced: forcing one leaves a gap in the ids of events, as PgQ does, and gaps count."""
    with database.connect(autocommit=False) as ticker:
        ticker.execute("SELECT pgque.set_queue_config(%s, 'ticker_paused', 'false')", [queue])
        assert ticker.execute("SELECT pgque.ticker(%s)", [queue]).fetchall() != [(None,)]
        ticker.execute("SELECT pgque.set_queue_config(%s, 'ticker_paused', 'true')", [queue])
        ticker.commit()


def records(database: Database, statement: str, *parameters: Any) -> list[dict[str, Any]]:
    with database.connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(statement.encode(), parameters or None).fetchall()


# -- exporters --------------------------------------------------------------------------------------------------------


def test_an_exporters_queries_of_queues_and_consumers(shop: Database) -> None:
    """As custom queries of postgres_exporter have them: each value is a number, each label a text."""
    (queue,) = records(
        shop,
        "SELECT queue_name, queue_ntables, queue_cur_table,"
        " EXTRACT(epoch FROM queue_rotation_period) AS rotation_seconds,"
        " EXTRACT(epoch FROM now() - queue_switch_time) AS since_switch_seconds,"
        " EXTRACT(epoch FROM ticker_lag) AS ticker_lag_seconds, coalesce(ev_per_sec, 0) AS ev_per_sec,"
        " ev_new, last_tick_id, queue_external_ticker::int AS external, queue_ticker_paused::int AS paused"
        " FROM pgque.get_queue_info() WHERE queue_name = %s",
        QUEUE,
    )
    assert queue["queue_ntables"] == 3
    assert queue["rotation_seconds"] == 7200
    assert queue["ev_new"] == 4
    assert 0 <= queue["ticker_lag_seconds"] < 3600
    assert (queue["external"], queue["paused"]) == (0, 1)
    consumers = records(
        shop,
        "SELECT queue_name, consumer_name, EXTRACT(epoch FROM lag) AS lag, EXTRACT(epoch FROM last_seen) AS last_seen,"
        " last_tick, coalesce(current_batch, 0) AS current_batch, coalesce(next_tick, 0) AS next_tick, pending_events"
        " FROM pgque.get_consumer_info(%s) ORDER BY consumer_name",
        QUEUE,
    )
    assert [(each["consumer_name"], each["pending_events"]) for each in consumers] == [("billing", 0), ("export", 6)]
    billing, export = consumers
    assert (billing["current_batch"], billing["next_tick"]) == (0, 0)
    assert export["current_batch"] > 0
    assert export["next_tick"] == export["last_tick"] + 1
    assert billing["last_tick"] == queue["last_tick_id"]
    assert export["lag"] >= billing["lag"] >= 0


def test_pending_events_from_the_tables_are_those_of_the_function(shop: Database) -> None:
    """The join that exporters use where they may not call functions: the last tick of each queue is looked up."""
    by_tables = shop.rows(
        "SELECT q.queue_name, c.co_name, top.tick_event_seq - cur.tick_event_seq AS pending,"
        " EXTRACT(epoch FROM top.tick_time - cur.tick_time) >= 0 AS behind,"
        " EXTRACT(epoch FROM now() - s.sub_active) >= 0 AS seen"
        " FROM pgque.subscription s JOIN pgque.queue q ON q.queue_id = s.sub_queue"
        " JOIN pgque.consumer c ON c.co_id = s.sub_consumer"
        " LEFT JOIN pgque.tick cur ON cur.tick_queue = s.sub_queue AND cur.tick_id = s.sub_last_tick"
        " LEFT JOIN LATERAL (SELECT * FROM pgque.tick t WHERE t.tick_queue = s.sub_queue"
        "                     ORDER BY t.tick_queue DESC, t.tick_id DESC LIMIT 1) top ON true"
        " WHERE q.queue_name = %s ORDER BY 2",
        QUEUE,
    )
    assert by_tables == [(QUEUE, "billing", 0, True, True), (QUEUE, "export", 6, True, True)]
    ticks = shop.rows(
        "SELECT count(*), max(tick_id) - min(tick_id) + 1 FROM pgque.tick JOIN pgque.queue ON queue_id = tick_queue"
        " WHERE queue_name = %s",
        QUEUE,
    )
    assert ticks == [(3, 3)]


def test_a_check_for_stuck_consumers_and_tickers(shop: Database) -> None:
    """As a check of Nagios' kind: it prints a line for what is over its threshold."""
    check = (
        "SELECT format('CRITICAL: %%s/%%s lags %%s', queue_name, consumer_name, date_trunc('second', lag))"
        " FROM pgque.get_consumer_info() WHERE queue_name = %s AND (lag > %s::interval OR last_seen > %s::interval)"
        " ORDER BY 1"
    )
    assert shop.rows(check, QUEUE, "1 hour", "1 hour") == []
    found = shop.rows(check, QUEUE, "0 seconds", "1 hour")
    assert [line.split(" lags ")[0] for (line,) in found] == [
        f"CRITICAL: {QUEUE}/billing",
        f"CRITICAL: {QUEUE}/export",
    ]
    late = (
        "SELECT count(*) FROM pgque.get_queue_info() WHERE queue_name = %s AND NOT queue_external_ticker"
        " AND ticker_lag > queue_ticker_idle_period * 2 + interval '1 hour'"
    )
    assert shop.value(late, QUEUE) == 0


def test_sizes_of_the_rotated_tables(shop: Database) -> None:
    sizes = shop.rows(
        "SELECT n, pg_total_relation_size((queue_data_pfx || '_' || n)::regclass) > 0, n = queue_cur_table"
        " FROM pgque.queue, generate_series(0, queue_ntables - 1) AS n WHERE queue_name = %s ORDER BY n",
        QUEUE,
    )
    assert sizes == [(0, True, True), (1, True, False), (2, True, False)]
    live = shop.value(
        "SELECT count(*) FROM pg_inherits i JOIN pgque.queue q ON i.inhparent = q.queue_data_pfx::regclass"
        " WHERE q.queue_name = %s",
        QUEUE,
    )
    assert live == 3


def test_events_of_a_window_are_found_by_the_snapshots_of_its_ticks(shop: Database) -> None:
    """What get_batch_events does, as administrators do it by hand over the table of events."""
    seen = (
        "SELECT array_agg(e.ev_data ORDER BY e.ev_id) FROM pgque.queue q"
        " JOIN pgque.subscription s ON s.sub_queue = q.queue_id JOIN pgque.consumer c ON c.co_id = s.sub_consumer"
        " JOIN pgque.tick last ON last.tick_queue = q.queue_id AND last.tick_id = s.sub_last_tick"
        " JOIN pgque.tick cur ON cur.tick_queue = q.queue_id AND cur.tick_id = s.sub_next_tick, {} e"
        " WHERE q.queue_name = %s AND c.co_name = 'export'"
        " AND pg_visible_in_snapshot(e.ev_txid::text::xid8, cur.tick_snapshot)"
        " AND NOT pg_visible_in_snapshot(e.ev_txid::text::xid8, last.tick_snapshot)"
    )
    table = shop.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", QUEUE)
    by_hand = shop.value(seen.format(table), QUEUE)
    batch = shop.value("SELECT current_batch FROM pgque.get_consumer_info(%s, 'export')", QUEUE)
    by_function = shop.value("SELECT array_agg(ev_data ORDER BY ev_id) FROM pgque.get_batch_events(%s)", batch)
    assert by_hand == by_function == ["id=00", "id=01", "id=02"]


def test_what_is_known_of_a_batch(shop: Database) -> None:
    batch = shop.value("SELECT current_batch FROM pgque.get_consumer_info(%s, 'export')", QUEUE)
    (info,) = records(shop, "SELECT * FROM pgque.get_batch_info(%s)", batch)
    assert (info["queue_name"], info["consumer_name"]) == (QUEUE, "export")
    assert info["tick_id"] == info["prev_tick_id"] + 1
    assert info["seq_end"] - info["seq_start"] == 3
    assert info["batch_end"] >= info["batch_start"]
    assert info["lag"].total_seconds() >= 0


def test_a_reader_of_a_monitoring_system_needs_no_more_than_the_role(shop: Database) -> None:
    shop.run("CREATE ROLE exporter LOGIN PASSWORD 'x'; GRANT pgque_reader TO exporter")
    try:
        with psycopg.connect(shop.connection.info.dsn, user="exporter", password="x") as exporter:
            for statement in (
                "SELECT * FROM pgque.get_queue_info()",
                "SELECT * FROM pgque.get_consumer_info()",
                "SELECT count(*) FROM pgque.queue, pgque.tick, pgque.subscription, pgque.consumer",
                "SELECT count(*) FROM pgque.retry_queue",
                "SELECT count(*) FROM pgque.dead_letter",
            ):
                assert exporter.execute(statement.encode()).fetchall()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                exporter.execute("SELECT pgque.insert_event('shop.orders', 't', 'd')")
    finally:
        shop.run("DROP OWNED BY exporter; DROP ROLE exporter")


# -- consumers --------------------------------------------------------------------------------------------------------


def test_the_loop_of_a_replication_consumer(queues: Database) -> None:
    """As PgQ's Python framework has it: a batch with its ticks, a cursor over its events, what fails is put aside."""
    make(queues, "replicated")
    queues.run("SELECT pgque.register_consumer('replicated', 'replica')")
    events = [f"id={number}" for number in range(7)]
    for event in events:
        queues.run("SELECT pgque.insert_event('replicated', 'I', %s, 'public.t', NULL, NULL, NULL)", event)
    tick(queues, "replicated")
    applied = []
    with queues.connect(autocommit=False) as consumer:
        row = consumer.execute(
            "SELECT batch_id, cur_tick_id, prev_tick_id, cur_tick_time, prev_tick_time, cur_tick_event_seq,"
            " prev_tick_event_seq FROM pgque.next_batch_custom('replicated', 'replica', NULL, NULL, NULL)"
        ).fetchone()
        assert row is not None
        batch = row[0]
        assert (row[1] - row[2], row[5] - row[6]) == (1, len(events))
        consumer.commit()
        found = consumer.execute("SELECT * FROM pgque.get_batch_cursor(%s, 'batch_walker', 3)", [batch]).fetchall()
        while found:
            applied += [row[5] for row in found]
            refused = [row[0] for row in found if row[5] == "id=4"]
            for event_id in refused:
                answer = consumer.execute("SELECT pgque.event_retry(%s, %s, 0)", [batch, event_id]).fetchone()
                assert answer == (1,)
            found = consumer.execute("FETCH 3 FROM batch_walker").fetchall()
        consumer.execute("CLOSE batch_walker")
        assert consumer.execute("SELECT pgque.finish_batch(%s)", [batch]).fetchone() == (1,)
        consumer.commit()
    assert applied == events
    queues.run("SELECT pgque.maint_retry_events()")  # unless the clock was faster
    tick(queues, "replicated")
    batch = queues.value("SELECT pgque.next_batch('replicated', 'replica')")
    again = queues.rows("SELECT ev_data, ev_retry, ev_extra1 FROM pgque.get_batch_events(%s)", batch)
    assert again == [("id=4", 1, "public.t")]
    assert queues.value("SELECT pgque.finish_batch(%s)", batch) == 1
    assert queues.value("SELECT pgque.next_batch('replicated', 'replica')") is None
    assert queues.value("SELECT pgque.unregister_consumer('replicated', 'replica')") == 1
    assert queues.value("SELECT pgque.drop_queue('replicated')") == 1


def test_a_loop_in_a_function_of_the_users(queues: Database) -> None:
    """A consumer whose work is in the database: events become rows in the transaction that finishes the batch."""
    make(queues, "worked")
    queues.run("SELECT pgque.register_consumer('worked', 'worker')")
    queues.run("CREATE TABLE worked (ev_id bigint PRIMARY KEY, type text, amount int)")
    queues.run(
        """
        CREATE FUNCTION work() RETURNS int LANGUAGE plpgsql AS $$
        DECLARE
            batch bigint;
            ev record;
            done int := 0;
        BEGIN
            LOOP
                SELECT batch_id INTO batch FROM pgque.next_batch_info('worked', 'worker');
                EXIT WHEN batch IS NULL;
                FOR ev IN SELECT * FROM pgque.get_batch_events(batch) LOOP
                    BEGIN
                        INSERT INTO worked VALUES (ev.ev_id, ev.ev_type, (ev.ev_data::json ->> 'amount')::int);
                        done := done + 1;
                    EXCEPTION WHEN invalid_text_representation THEN
                        PERFORM pgque.event_retry(batch, ev.ev_id, 3600);
                    END;
                END LOOP;
                PERFORM pgque.finish_batch(batch);
            END LOOP;
            RETURN done;
        END $$
        """
    )
    for amounts in (["1", "2"], ["x", "4"]):
        for amount in amounts:
            queues.run("SELECT pgque.insert_event('worked', 'paid', %s)", f'{{"amount": "{amount}"}}')
        tick(queues, "worked")
    assert queues.value("SELECT work()") == 3
    assert queues.value("SELECT work()") == 0
    assert queues.rows("SELECT type, amount FROM worked ORDER BY ev_id") == [("paid", 1), ("paid", 2), ("paid", 4)]
    waiting = queues.rows(
        "SELECT q.queue_name, c.co_name, r.ev_data, r.ev_retry_after > now() + interval '50 minutes'"
        " FROM pgque.retry_queue r JOIN pgque.subscription s ON s.sub_id = r.ev_owner"
        " JOIN pgque.consumer c ON c.co_id = s.sub_consumer JOIN pgque.queue q ON q.queue_id = r.ev_queue"
        " WHERE q.queue_name = 'worked'"
    )
    assert waiting == [("worked", "worker", '{"amount": "x"}', True)]
    queues.run("DROP FUNCTION work(); DROP TABLE worked; SELECT pgque.drop_queue('worked', true)")


def test_an_administrators_clean_up_of_consumers_and_settings(queues: Database, administrator: str) -> None:
    """What is done to many at once: set-returning functions in the place of tables, functions for each row."""
    operator = queues.connect(user=administrator, password="x")
    for number in range(3):
        operator.execute("SELECT pgque.create_queue(%s)", [f"many_{number}"])
        operator.execute("SELECT pgque.register_consumer(%s, 'gone')", [f"many_{number}"])
    configured = operator.execute(
        "SELECT sum(pgque.set_queue_config(queue_name, 'ticker_idle_period', '5 minutes'))"
        " FROM pgque.get_queue_info() WHERE queue_name LIKE 'many%'"
    ).fetchone()
    assert configured == (3,)
    removed = operator.execute(
        "SELECT sum(pgque.unregister_consumer(queue_name, consumer_name)) FROM pgque.get_consumer_info()"
        " WHERE queue_name LIKE 'many%' AND last_seen >= interval '0'"
    ).fetchone()
    assert removed == (3,)
    settings = operator.execute(
        "SELECT DISTINCT queue_ticker_idle_period::text FROM pgque.queue WHERE queue_name LIKE 'many%'"
    ).fetchall()
    assert settings == [("00:05:00",)]
    dropped = operator.execute(
        "SELECT count(pgque.drop_queue(queue_name)) FROM pgque.queue WHERE queue_name LIKE 'many%'"
    ).fetchone()
    assert dropped == (3,)
    assert queues.rows("SELECT FROM pgque.consumer WHERE co_name = 'gone'") == []


def test_a_maintenance_script_in_the_place_of_the_clock(queues: Database) -> None:
    """What PgQ's daemon calls: ticks, then each maintenance function that is named, with its argument."""
    queues.run("SELECT pgque.create_queue('maintained')")
    assert queues.value("SELECT pgque.ticker()") >= 0
    operations = queues.rows("SELECT func_name, func_arg FROM pgque.maint_operations()")
    for function, argument in operations:
        if function == "vacuum":
            queues.run(f"VACUUM {argument}")
        elif argument is None:
            queues.run(f"SELECT {function}()")
        else:
            queues.run(f"SELECT {function}(%s)", argument)
    assert queues.value("SELECT pgque.maint_retry_events()") >= 0
    queues.run("SELECT pgque.drop_queue('maintained')")


@pytest.mark.parametrize(
    ("function", "types"),
    [
        ("jsontriga", [JSON_TYPE % operation for operation in ("INSERT", "UPDATE", "DELETE")]),
        ("logutriga", ["I:id", "U:id", "D:id"]),
        ("sqltriga", ["I", "U", "D"]),
    ],
)
def test_change_capture_as_replication_scripts_set_it_up(queues: Database, function: str, types: list[str]) -> None:
    queue = f"changes of {function}"
    make(queues, queue)
    queues.run("SELECT pgque.register_consumer(%s, 'c')", queue)
    queues.run("CREATE TABLE accounts (id int PRIMARY KEY, name text, secret text, balance numeric)")
    queues.run(
        "CREATE TRIGGER replicate AFTER INSERT OR UPDATE OR DELETE ON accounts FOR EACH ROW"
        f" EXECUTE PROCEDURE pgque.{function}('{queue}', 'ignore=secret')"
    )
    try:
        queues.run("INSERT INTO accounts VALUES (1, 'A', 'x', 10)")
        queues.run("UPDATE accounts SET secret = 'y'")  # nothing that counts has changed
        queues.run("UPDATE accounts SET balance = 11")
        queues.run("DELETE FROM accounts")
        tick(queues, queue)
        batch = queues.value("SELECT pgque.next_batch(%s, 'c')", queue)
        events = queues.rows("SELECT ev_type, ev_data, ev_extra1 FROM pgque.get_batch_events(%s) ORDER BY ev_id", batch)
        assert [table for *_, table in events] == ["public.accounts"] * 3
        assert [event for event, *_ in events] == types
        assert all("secret" not in data for _, data, _ in events)
    finally:
        queues.run("DROP TABLE accounts")
        queues.run("SELECT pgque.drop_queue(%s, true)", queue)
