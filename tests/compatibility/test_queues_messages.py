"""What PgQ says when something is wrong: scripts look for these words."""

from __future__ import annotations

import psycopg
import pytest

from tests.e2e.conftest import Database


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("pgque.ticker('nope')", "no such queue"),
        ("pgque.ticker('nope', 1, now(), 1)", "queue not found or ticker disabled: nope"),
        ("pgque.ticker('spoken', 1, now(), 1)", "queue not found or ticker disabled: spoken"),
        ("pgque.force_next_tick('nope')", "queue not found or ticks not allowed: nope"),
        ("pgque.force_tick('nope')", "queue not found or ticks not allowed: nope"),
        ("pgque.send('nope', 'x')", "queue not found: nope"),
        ("pgque.send_batch('nope', ARRAY['x'])", "queue not found: nope"),
        ("pgque.insert_event('nope', 't', 'd')", "queue not found: nope"),
        ("pgque.create_queue(NULL)", "Invalid NULL value"),
        ("pgque.current_event_table('nope')", "Event queue not found"),
        ("pgque.drop_queue('nope')", "No such event queue"),
        ("pgque.drop_queue('spoken')", "cannot drop queue, consumers still attached"),
        ("pgque.set_queue_config('nope', 'nonsense', '1')", "No such event queue"),
        ("pgque.set_queue_config('spoken', 'nonsense', '1')", 'cannot change parameter "nonsense"'),
        ("pgque.set_queue_config(NULL, 'ticker_max_lag', '1')", "Invalid NULL value"),
        ("pgque.register_consumer('nope', 'c')", "Event queue not created yet"),
        ("pgque.subscribe('nope', 'c')", "Event queue not created yet"),
        ("pgque.register_consumer_at('spoken', 'c', 999)", "cannot reposition, tick not found: 999"),
        ("pgque.next_batch('nope', 'c')", "Not subscriber to queue: nope/c"),
        ("pgque.next_batch('spoken', 'stranger')", "Not subscriber to queue: spoken/stranger"),
        ("pgque.next_batch_info('spoken', NULL)", "Not subscriber to queue: spoken/NULL"),
        ("pgque.receive('nope', 'c')", "Not subscriber to queue: nope/c"),
        ("pgque.receive('spoken', 'c', 0)", "max_return must be >= 1"),
        ("pgque.get_batch_events(-1)", "batch not found"),
        ("pgque.event_retry(-1, 1, 0)", "batch not found"),
        ("pgque.batch_retry(-1, 0)", "batch_retry: batch -1 not found"),
    ],
)
def test_errors(queues: Database, call: str, message: str) -> None:
    queues.run("SELECT pgque.create_queue('spoken'), pgque.subscribe('spoken', 'c')")
    with pytest.raises(psycopg.Error) as failure:
        queues.run(f"SELECT * FROM {call}")
    assert message in str(failure.value)


def test_a_ticker_that_must_not_tick_says_why(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('silent')")
    for parameter, message in (
        ("ticker_paused", "Ticker has been paused for this queue"),
        ("external_ticker", "This queue has external tick source."),
    ):
        queues.run("SELECT pgque.set_queue_config('silent', %s, 'true')", parameter)
        with pytest.raises(psycopg.Error, match=message):
            queues.run("SELECT pgque.ticker('silent')")
        queues.run("SELECT pgque.set_queue_config('silent', %s, NULL)", parameter)


def test_what_is_not_there_is_told_without_an_error(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('calm')")
    notices: list[str] = []
    connection = queues.connect()
    connection.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
    for call in ("finish_batch(-1)", "ack(-1)", "unregister_consumer('calm', 'c')", "unsubscribe('nope', 'c')"):
        assert connection.execute(f"SELECT pgque.{call}").fetchone() == (0,)
    assert notices == ["finish_batch: batch -1 not found"] * 2


def test_an_insert_that_is_disallowed(queues: Database) -> None:
    queues.run("SELECT pgque.create_queue('closed')")
    queues.run("UPDATE pgque.queue SET queue_disable_insert = true WHERE queue_name = 'closed'")
    for call in ("send('closed', 'x')", "send_batch('closed', ARRAY['x'])", "insert_event('closed', 't', 'd')"):
        with pytest.raises(psycopg.Error, match="Insert into queue disallowed"):
            queues.run(f"SELECT pgque.{call}")
    with pytest.raises(psycopg.Error, match="Writing to queue disabled"):
        queues.run("SELECT pgque.current_event_table('closed')")
