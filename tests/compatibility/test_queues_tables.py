"""The tables of PgQ (its schema documentation) and of PgQue: read by monitoring, written to by administrators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.e2e.conftest import Database

Connection = psycopg.Connection[Any]

DOCUMENTED = {
    "queue": {
        "queue_id", "queue_name", "queue_ntables", "queue_cur_table", "queue_rotation_period", "queue_switch_step1",
        "queue_switch_step2", "queue_switch_time", "queue_external_ticker", "queue_disable_insert",
        "queue_ticker_paused", "queue_ticker_max_count", "queue_ticker_max_lag", "queue_ticker_idle_period",
        "queue_per_tx_limit", "queue_data_pfx", "queue_event_seq", "queue_tick_seq", "queue_extra_maint",
        "queue_max_retries",
    },
    "consumer": {"co_id", "co_name"},
    "tick": {"tick_queue", "tick_id", "tick_time", "tick_snapshot", "tick_event_seq"},
    "subscription": {
        "sub_id", "sub_queue", "sub_consumer", "sub_last_tick", "sub_active", "sub_batch", "sub_next_tick", "sub_role",
    },
    "event_template": {
        "ev_id", "ev_time", "ev_txid", "ev_owner", "ev_retry", "ev_type", "ev_data",
        "ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4",
    },
    "retry_queue": {
        "ev_retry_after", "ev_queue", "ev_id", "ev_time", "ev_txid", "ev_owner", "ev_retry", "ev_type", "ev_data",
        "ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4",
    },
    "dead_letter": {
        "dl_id", "dl_queue_id", "dl_consumer_id", "dl_time", "dl_reason", "ev_id", "ev_time", "ev_txid", "ev_retry",
        "ev_type", "ev_data", "ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4",
    },
    "delayed_events": {"de_id", "de_queue_name", "de_deliver_at"},
    "config": {"tick_period_ms", "ticker_job_id", "maint_job_id"},
}  # fmt: skip


@pytest.fixture
def operator(queues: Database, administrator: str) -> Iterator[Connection]:
    """A connection of the administrator, through the server."""
    yield queues.connect(user=administrator, password="x")


def test_every_documented_column_is_there(queues: Database) -> None:
    for table, columns in DOCUMENTED.items():
        cursor = queues.connection.execute(f"SELECT * FROM pgque.{table} LIMIT 0")
        assert columns - {column.name for column in cursor.description or ()} == set(), table


def test_a_reader_joins_queues_consumers_subscriptions_and_ticks(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('joined')")
    for consumer in ("billing", "shipping"):
        queues.run("SELECT pgque.subscribe('joined', %s)", consumer)
    with queues.connect(autocommit=False) as reader:
        reader.execute("SET LOCAL ROLE pgque_reader")
        lag = reader.execute(
            "SELECT q.queue_name, c.co_name, s.sub_role, s.sub_batch, now() - t.tick_time < interval '1 hour'"
            " FROM pgque.queue q JOIN pgque.subscription s ON s.sub_queue = q.queue_id"
            " JOIN pgque.consumer c ON c.co_id = s.sub_consumer"
            " JOIN pgque.tick t ON t.tick_queue = q.queue_id AND t.tick_id = s.sub_last_tick"
            " WHERE q.queue_name = 'joined' ORDER BY 2"
        ).fetchall()
        assert lag == [
            ("joined", "billing", "normal", None, True),
            ("joined", "shipping", "normal", None, True),
        ]
        tables = reader.execute(
            "SELECT count(*) FROM pgque.queue q, pg_class c"
            " WHERE queue_name = 'joined' AND c.oid = (queue_data_pfx || '_' || queue_cur_table)::regclass"
        ).fetchone()
        assert tables == (1,)


def test_settings_of_a_new_queue_are_pgqs_and_null_gives_them_back(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('settings')")
    read = (
        "SELECT queue_ticker_max_count, queue_ticker_max_lag::text, queue_ticker_idle_period::text,"
        " queue_rotation_period::text, queue_ticker_paused, queue_external_ticker, queue_per_tx_limit"
        " FROM pgque.queue WHERE queue_name = 'settings'"
    )
    defaults = [(500, "00:00:03", "00:01:00", "02:00:00", False, False, None)]
    assert queues.rows(read) == defaults
    for parameter, value in (
        ("ticker_max_count", "7"),
        ("ticker_max_lag", "1 minute"),
        ("ticker_idle_period", "1 hour"),
        ("rotation_period", "1 day"),
        ("ticker_paused", "true"),
        ("external_ticker", "true"),
    ):
        assert queues.value("SELECT pgque.set_queue_config('settings', %s, %s)", parameter, value) == 1
        assert queues.rows(read) != defaults
        assert queues.value("SELECT pgque.set_queue_config('settings', %s, NULL)", parameter) == 1
        assert queues.rows(read) == defaults


def test_an_administrator_updates_settings_and_deletes_delayed_events(queues: Database, operator: Connection) -> None:
    queues.run("SELECT pgque.create_queue('operated')")
    operator.execute(
        "UPDATE pgque.queue SET queue_ticker_max_lag = '1 second', queue_ticker_max_count = 1000,"
        " queue_max_retries = 3, queue_rotation_period = '1 hour' WHERE queue_name = 'operated'"
    )
    assert queues.rows(
        "SELECT queue_ticker_max_lag::text, queue_ticker_max_count, queue_rotation_period::text"
        " FROM pgque.get_queue_info('operated')"
    ) == [("00:00:01", 1000, "01:00:00")]
    for number in (1, 2):
        queues.run("SELECT pgque.send_at('operated', 'later', %s::jsonb, now() + interval '1 day')", str(number))
    deleted = operator.execute("DELETE FROM pgque.delayed_events WHERE de_queue_name = 'operated' RETURNING de_id")
    assert len(deleted.fetchall()) == 2
    assert queues.rows("SELECT FROM pgque.delayed_events") == []


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("UPDATE pgque.queue SET queue_ticker_max_count = 0", "ticker_max_count_must_be_positive"),
        ("UPDATE pgque.queue SET queue_ticker_max_lag = '-1 second'", "ticker_max_lag_must_not_be_negative"),
        ("UPDATE pgque.queue SET queue_ticker_idle_period = '-1 s'", "ticker_idle_period_must_not_be_negative"),
        ("UPDATE pgque.queue SET queue_rotation_period = '-1 s'", "rotation_period_must_not_be_negative"),
        ("UPDATE pgque.queue SET queue_max_retries = -1", "max_retries_must_not_be_negative"),
        ("UPDATE pgque.queue SET queue_id = queue_id + 1000", "queue_id and queue_cluster"),
        ("UPDATE pgque.queue SET queue_cluster = 1", "queue_id and queue_cluster"),
        ("DELETE FROM pgque.queue", "has tables, and cannot be deleted"),
        ("TRUNCATE pgque.queue CASCADE", "cannot be emptied"),
        ("TRUNCATE pgque.tick", "cannot be emptied"),
        ("DELETE FROM pgque.tick", "stands there"),
        ("UPDATE pgque.tick SET tick_snapshot = pg_current_snapshot()", "cannot be changed"),
        (
            "INSERT INTO pgque.queue (queue_name, queue_id, queue_data_pfx, queue_event_seq, queue_tick_seq) VALUES"
            " ('made', 9, 'pgque.event_9', 'pgque.event_9_id_seq', 'pgque.event_9_tick_seq')",
            "would have no tables",
        ),
        ("DELETE FROM pgque.consumer", "violates foreign key"),
        ("UPDATE pgque.subscription SET sub_role = 'leader'", 'cannot have role "leader"'),
        ("UPDATE pgque.subscription SET sub_role = 'coop_member'", 'cannot have role "coop_member"'),
        ("UPDATE pgque.subscription SET sub_main = sub_id", 'cannot have role "normal"'),
        ("UPDATE pgque.subscription SET sub_last_tick = NULL", 'violates check constraint "subscription_check"'),
        ("UPDATE pgque.subscription SET sub_role = 'coop_main', sub_batch = 1", "violates check constraint"),
    ],
)
def test_what_would_break_a_queue_is_refused(
    queues: Database, operator: Connection, statement: str, error: str
) -> None:
    queues.run("SELECT pgque.create_queue('guarded'), pgque.subscribe('guarded', 'kept')")
    with pytest.raises(psycopg.Error, match=error):
        operator.execute(statement.encode())
    queues.run("SELECT pgque.send('guarded', 'x')")


def test_queues_go_as_the_guards_say(queues: Database, operator: Connection) -> None:
    operator.execute("SELECT pgque.create_queue('leaving'), pgque.subscribe('leaving', 'last')")
    assert operator.execute("SELECT pgque.drop_queue('leaving', true)").fetchone() == (1,)
    assert queues.rows("SELECT FROM pgque.consumer WHERE co_name = 'last'") == []


def test_events_that_one_transaction_may_send_are_limited(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('limited')")
    queues.run("UPDATE pgque.queue SET queue_per_tx_limit = 3 WHERE queue_name = 'limited'")
    with queues.connect(autocommit=False) as sender:
        for _ in range(2):
            sender.execute("SELECT pgque.send('limited', 'x')")
        with (
            pytest.raises(psycopg.Error, match="Queue 'limited' allows max 3 events from one TX"),
            sender.transaction(),
        ):
            sender.execute("SELECT pgque.send_batch('limited', ARRAY['1', '2'])")
        sender.execute("SELECT pgque.send_batch('limited', ARRAY['1'])")
        with pytest.raises(psycopg.Error, match="allows max 3"), sender.transaction():
            sender.execute("SELECT pgque.insert_event('limited', 't', 'd')")
        sender.commit()
        sender.execute("SELECT pgque.send_batch('limited', ARRAY['1', '2', '3'])")
        sender.commit()
    queues.run("UPDATE pgque.queue SET queue_per_tx_limit = NULL WHERE queue_name = 'limited'")
    queues.run("SELECT pgque.send_batch('limited', array_fill('x'::text, ARRAY[10]))")


def test_options_of_a_queue_that_exists_change_nothing(queues: Database) -> None:
    create = "SELECT pgque.create_queue('optional', %s::jsonb)"
    assert queues.value(create, '{"max_retries": 2}') == 1
    assert queues.value(create, '{"max_retries": 9}') == 0
    assert queues.value("SELECT queue_max_retries FROM pgque.queue WHERE queue_name = 'optional'") == 2


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("pgque.my_maint", "pgque.my_maint"),
        ("Shop.Clean up", '"Shop"."Clean up"'),
        ("a.b.c", 'a."b.c"'),
        ("plain", "public.plain"),
    ],
)
def test_quote_fqname(queues: Database, name: str, quoted: str) -> None:
    assert queues.value("SELECT pgque.quote_fqname(%s)", name) == quoted
