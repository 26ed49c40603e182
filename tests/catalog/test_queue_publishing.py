"""Sending: every overload, what is stored, and what is refused."""

from __future__ import annotations

import pytest

from tests.catalog.conftest import Queue

EVENT = "SELECT ev_id, ev_type, ev_data, ev_retry, ev_extra1, ev_extra2, ev_extra3, ev_extra4 FROM {} ORDER BY ev_id"


def stored(queue: Queue) -> list[tuple[object, ...]]:
    """Every event of a queue: type and data."""
    prefix = queue.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", queue.name)
    return queue.rows(f"SELECT ev_type, ev_data FROM {prefix} ORDER BY ev_id")


def test_text_is_kept_to_the_letter_and_json_is_canonical(queue: Queue) -> None:
    ids = [
        queue.value('SELECT pgque.send(%s, \'{"b":1,  "a":2}\')', queue.name),
        queue.value('SELECT pgque.send(%s, \'{"b":1,  "a":2}\'::jsonb)', queue.name),
        queue.value("SELECT pgque.send(%s, 'order.created', ' x ')", queue.name),
        queue.value("SELECT pgque.send(%s, 'order.created', '[1,2]'::jsonb)", queue.name),
        queue.value("SELECT pgque.send(%s, NULL::text)", queue.name),
    ]
    assert ids == [1, 2, 3, 4, 5]
    assert stored(queue) == [
        ("default", '{"b":1,  "a":2}'),
        ("default", '{"a": 2, "b": 1}'),
        ("order.created", " x "),
        ("order.created", "[1, 2]"),
        ("default", None),
    ]


def test_named_arguments(queue: Queue) -> None:
    queue.value("SELECT pgque.send(payload => 'a', queue_name => %s)", queue.name)
    queue.value("SELECT pgque.send(queue_name => %s, type_name => 't', payload => 'b')", queue.name)
    queue.value("SELECT pgque.send_batch(queue_name := %s, type_name := 'u', payloads := array['c'])", queue.name)
    queue.value("SELECT pgque.send_batch(payloads := array['{}']::jsonb[], queue_name := %s)", queue.name)
    queue.value("SELECT pgque.insert_event(queue_name => %s, ev_type => 'v', ev_data => 'd')", queue.name)
    assert stored(queue) == [("default", "a"), ("t", "b"), ("u", "c"), ("default", "{}"), ("v", "d")]


def test_json_is_validated(queue: Queue) -> None:
    for call in ("pgque.send(%s, '{'::jsonb)", "pgque.send_batch(%s, '{\"{\"}'::jsonb[])"):
        assert queue.fails(f"SELECT {call}", queue.name).sqlstate == "22P02"


def test_batch_ids_are_aligned_with_the_payloads(queue: Queue) -> None:
    payloads = [str(number) for number in range(1000)]
    ids = queue.value("SELECT pgque.send_batch(%s, %s::text[])", queue.name, payloads)
    prefix = queue.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", queue.name)
    assert dict(queue.rows(f"SELECT ev_id, ev_data FROM {prefix}")) == dict(zip(ids, payloads, strict=True))


def test_batch_of_json_with_nulls(queue: Queue) -> None:
    ids = queue.value('SELECT pgque.send_batch(%s, \'t\', \'{"{\\"a\\":1}",NULL,"null"}\'::jsonb[])', queue.name)
    assert len(ids) == 3
    assert stored(queue) == [("t", '{"a": 1}'), ("t", None), ("t", "null")]


@pytest.mark.parametrize("kind", ["text", "jsonb"])
def test_batch_that_is_empty_or_null(queue: Queue, kind: str) -> None:
    for types in ("", "'t', "):
        assert queue.value(f"SELECT pgque.send_batch('no such queue', {types}'{{}}'::{kind}[])") == []
        failure = queue.fails(f"SELECT pgque.send_batch(%s, {types}NULL::{kind}[])", queue.name)
        assert str(failure).startswith("payloads must not be null\n")


@pytest.mark.parametrize(
    "call",
    [
        "send(%s, 'x')",
        "send(%s, '1'::jsonb)",
        "send(%s, 't', 'x')",
        "send(%s, 't', '1'::jsonb)",
        "send_batch(%s, array['x'])",
        "send_batch(%s, array['1']::jsonb[])",
        "send_batch(%s, 't', array['x'])",
        "send_batch(%s, 't', array['1']::jsonb[])",
        "insert_event(%s, 't', 'x')",
        "insert_event(%s, 't', 'x', '1', '2', '3', '4')",
        "insert_event_bulk(%s, 't', array['x'])",
    ],
)
def test_unknown_and_disabled_queues(queue: Queue, call: str) -> None:
    failure = queue.fails(f"SELECT pgque.{call}", "nope")
    assert (failure.sqlstate, str(failure).split("\n")[0]) == ("P0001", "queue not found: nope")
    queue.connection.execute("UPDATE pgque.queue SET queue_disable_insert = true WHERE queue_name = %s", [queue.name])
    failure = queue.fails(f"SELECT pgque.{call}", queue.name)
    assert (failure.sqlstate, str(failure).split("\n")[0]) == ("P0001", "Insert into queue disallowed")
    assert stored(queue) == []


def test_insert_event_with_extra_columns(queue: Queue) -> None:
    first = queue.value("SELECT pgque.insert_event(%s, 't', 'd', 'a', NULL, 'c', 'd')", queue.name)
    second = queue.value("SELECT pgque.insert_event(%s, 't', 'd')", queue.name)
    prefix = queue.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", queue.name)
    assert queue.rows(EVENT.format(prefix)) == [
        (first, "t", "d", None, "a", None, "c", "d"),
        (second, "t", "d", None, None, None, None, None),
    ]


def test_an_event_rolls_back_with_its_transaction(queue: Queue) -> None:
    with queue.connection.transaction(force_rollback=True):
        queue.send("gone")
    assert stored(queue) == []


def test_events_go_to_the_table_that_the_queue_writes_to(queue: Queue) -> None:
    prefix = queue.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", queue.name)
    for number in range(3):
        queue.connection.execute(
            "UPDATE pgque.queue SET queue_cur_table = %s WHERE queue_name = %s", [number, queue.name]
        )
        queue.value("SELECT pgque.send(%s, 'x')", queue.name)
        queue.value("SELECT pgque.insert_event(%s, 't', 'x', 'e', NULL, NULL, NULL)", queue.name)
        queue.send("y", "z")
        assert queue.value(f"SELECT count(*) FROM {prefix}_{number}") == 4


def test_events_of_more_queues_than_have_statements_of_their_own(queue: Queue) -> None:
    with queue.connection.transaction(force_rollback=True):
        queue.connection.execute(
            "INSERT INTO pgque.queue (queue_id, queue_name, queue_data_pfx, queue_event_seq, queue_tick_seq)"
            " SELECT n, 'other ' || n, 'pgque.event_' || n, 'pgque.event_' || n || '_id_seq',"
            " 'pgque.event_' || n || '_tick_seq'"
            " FROM (SELECT nextval('pgque.queue_queue_id_seq') AS n FROM generate_series(1, 64)) AS number"
        )
        queue = Queue(queue.connection, "late")
        queue.value("SELECT pgque.create_queue('late')")
        body = "SELECT prosrc FROM pg_proc WHERE oid = 'pgque.send(text, text)'::regprocedure"
        assert ("'other " in queue.value(body), "'late'" in queue.value(body)) == (True, False)
        ids = [
            queue.value("SELECT pgque.send(%s, 'a')", queue.name),
            queue.value("SELECT pgque.insert_event(%s, 't', 'b', 'e1', NULL, 'e3', 'e4')", queue.name),
            *queue.send("c", "d"),
        ]
        prefix = queue.value("SELECT queue_data_pfx FROM pgque.queue WHERE queue_name = %s", queue.name)
        none = (None, None, None, None)
        assert queue.rows(EVENT.format(prefix)) == [
            (ids[0], "default", "a", None, *none),
            (ids[1], "t", "b", None, "e1", None, "e3", "e4"),
            (ids[2], "default", "c", None, *none),
            (ids[3], "default", "d", None, *none),
        ]


def test_a_queue_that_is_renamed_is_sent_to_by_its_new_name(queue: Queue) -> None:
    renamed = f"{queue.name} renamed"
    queue.value("UPDATE pgque.queue SET queue_name = %s WHERE queue_name = %s RETURNING 1", renamed, queue.name)
    assert "queue not found" in str(queue.fails("SELECT pgque.send(%s, 'x')", queue.name))
    assert queue.value("SELECT pgque.send(%s, 'x')", renamed) > 0


def test_delayed_events(queue: Queue) -> None:
    assert queue.value("SELECT pgque.send_at(%s, 't', '1', now())", queue.name) == 1
    assert stored(queue) == [("t", "1")]
    for payload, when in (("3", "now() + interval '2 hours'"), ("2", "now() + interval '1 hour'")):
        queue.value(f"SELECT pgque.send_at(%s, 't', '{payload}', {when})", queue.name)
    assert queue.value("SELECT pgque.maint_deliver_delayed()") == 0
    queue.connection.execute("UPDATE pgque.delayed_events SET de_deliver_at = de_deliver_at - interval '3 hours'")
    assert queue.value("SELECT pgque.maint()") >= 2
    assert queue.value("SELECT pgque.maint_deliver_delayed()") == 0
    assert stored(queue) == [("t", "1"), ("t", "2"), ("t", "3")]
    assert "queue not found: nope" in str(queue.fails("SELECT pgque.send_at('nope', 't', '1', now())"))
    assert "queue not found: nope" in str(queue.fails("SELECT pgque.send_at('nope', 't', '1', 'infinity')"))
