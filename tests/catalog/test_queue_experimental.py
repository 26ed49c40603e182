"""Queues with options, pausing, delayed delivery."""

from __future__ import annotations

import json
from datetime import timedelta

from tests.catalog.conftest import Queue


def receive(queue: Queue) -> list[tuple[str, str]]:
    """Type and payload of the next batch's messages, which are acknowledged."""
    rows = queue.rows("SELECT batch_id, type, payload FROM pgque.receive(%s, 'c')", queue.name)
    for batch in {batch for batch, *_ in rows}:
        queue.value("SELECT pgque.ack(%s)", batch)
    return [(kind, payload) for _, kind, payload in rows]


def test_create_queue_with_options(queue: Queue) -> None:
    name = f"{queue.name} configured"
    options = {
        "max_retries": 7,
        "rotation_period": "1 hour",
        "ticker_max_count": 10,
        "ticker_max_lag": "2 seconds",
        "ticker_idle_period": "5 minutes",
        "ticker_paused": True,
    }
    create = "SELECT pgque.create_queue(queue => %s, options => %s::jsonb)"
    assert queue.value(create, name, json.dumps(options)) == 1
    settings = (
        "SELECT queue_max_retries, queue_rotation_period, queue_ticker_max_count, queue_ticker_max_lag, "
        "queue_ticker_idle_period, queue_ticker_paused, queue_external_ticker FROM pgque.queue WHERE queue_name = %s"
    )
    assert queue.rows(settings, name) == [
        (7, timedelta(hours=1), 10, timedelta(seconds=2), timedelta(minutes=5), True, False)
    ]
    before = queue.rows(settings, name)
    assert queue.value(create, name, '{"max_retries": null, "external_ticker": "on"}') == 0
    assert queue.rows(settings, name) == before, "it exists, and is left as it is"


def test_wrong_options_create_nothing(queue: Queue) -> None:
    name = f"{queue.name} wrong"
    for options, message in (
        ('{"colour": "red"}', "colour"),
        ('{"max_retries": -1}', "max_retries must be >= 0"),
        ("[1]", "options must be a JSON object"),
        ('"x"', "options must be a JSON object"),
    ):
        assert message in str(queue.fails("SELECT pgque.create_queue(%s, %s::jsonb)", name, options))
    assert queue.rows("SELECT FROM pgque.queue WHERE queue_name = %s", name) == []
    long = "ü" * 29
    assert "too long" in str(queue.fails("SELECT pgque.create_queue(%s, '{}'::jsonb)", long))
    assert queue.value("SELECT pgque.create_queue(%s, NULL::jsonb)", name) == 1


def test_a_paused_queue_is_not_ticked_until_it_is_resumed(queue: Queue) -> None:
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    queue.value("SELECT pgque.pause_queue(%s)", queue.name)
    queue.send("x")
    queue.value("SELECT pgque._tick_early()")
    assert "paused" in str(queue.fails("SELECT pgque.ticker(%s)", queue.name))
    assert queue.rows("SELECT queue_ticker_paused FROM pgque.get_queue_info(%s)", queue.name) == [(True,)]
    assert receive(queue) == []
    queue.value("SELECT pgque.resume_queue(%s)", queue.name)
    queue.value("SELECT pgque._tick_early()")
    assert receive(queue) == [("default", "x")]
    for call in ("pause_queue", "resume_queue"):
        assert queue.fails(f"SELECT pgque.{call}('nowhere')").sqlstate is not None


def test_a_delayed_event_comes_when_it_is_due(queue: Queue) -> None:
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    later = "SELECT pgque.send_at(%s, 'kind', %s::jsonb, now() + interval '1 hour')"
    entry = queue.value(later, queue.name, '{"a":  1}')
    assert queue.value("SELECT pgque.maint_deliver_delayed()") == 0
    queue.tick()
    assert receive(queue) == []
    # An hour later.
    queue.connection.execute("UPDATE pgque.delayed_events SET de_deliver_at = now() WHERE de_id = %s", [entry])
    assert queue.value("SELECT pgque.maint()") >= 1
    assert queue.value("SELECT pgque.maint_deliver_delayed()") == 0, "maint() has done it"
    queue.tick()
    assert receive(queue) == [("kind", '{"a": 1}')]
    assert queue.rows("SELECT FROM pgque.delayed_events WHERE de_id = %s", entry) == []


def test_an_event_that_is_due_is_sent_at_once(queue: Queue) -> None:
    queue.value("SELECT pgque.subscribe(%s, 'c')", queue.name)
    [before] = queue.send("first")
    event = queue.value(
        "SELECT pgque.send_at(queue => %s, type => 'k', payload => '1', deliver_at => now())", queue.name
    )
    assert event > before
    queue.tick()
    assert receive(queue) == [("default", "first"), ("k", "1")]


def test_delayed_events_need_a_queue_and_a_time_and_go_with_the_queue(queue: Queue) -> None:
    for due in ("now() + interval '1 hour'", "now()"):
        assert "queue not found: nowhere" in str(queue.fails(f"SELECT pgque.send_at('nowhere', 'k', '1', {due})"))
    assert "must not be null" in str(queue.fails("SELECT pgque.send_at(%s, 'k', '1', NULL)", queue.name))
    entry = queue.value("SELECT pgque.send_at(%s, 'k', '1', now() + interval '1 hour')", queue.name)
    queue.value("SELECT pgque.drop_queue(%s)", queue.name)
    assert queue.rows("SELECT FROM pgque.delayed_events WHERE de_id = %s", entry) == []
