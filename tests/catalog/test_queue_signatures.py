"""The API as programs know it: arguments, defaults and results (`queue_signatures.txt`), and the tables."""

from __future__ import annotations

from tests.catalog.conftest import Queue
from tests.catalog.signatures import declared_lines, wrong_functions


def test_functions(queue: Queue) -> None:
    lines = declared_lines("queue_signatures.txt")
    assert wrong_functions(queue.rows, "pgque", lines) == []
    assert len(lines) > 80


def test_dead_letters(queue: Queue) -> None:
    """The columns in order: name, type, whether it may be null."""
    assert queue.rows(
        "SELECT attname, format_type(atttypid, atttypmod), NOT attnotnull FROM pg_attribute "
        "WHERE attrelid = 'pgque.dead_letter'::regclass AND attnum > 0 ORDER BY attnum"
    ) == [
        ("dl_id", "bigint", False),
        ("dl_queue_id", "integer", False),
        ("dl_consumer_id", "integer", False),
        ("dl_time", "timestamp with time zone", False),
        ("dl_reason", "text", True),
        ("ev_id", "bigint", False),
        ("ev_time", "timestamp with time zone", False),
        ("ev_txid", "xid8", True),
        ("ev_retry", "integer", True),
        *(
            (column, "text", True)
            for column in ("ev_type", "ev_data", "ev_extra1", "ev_extra2", "ev_extra3", "ev_extra4")
        ),
    ]
    assert queue.rows(
        "SELECT confrelid::regclass::text, confdeltype FROM pg_constraint WHERE contype = 'f' "
        "AND conrelid = 'pgque.dead_letter'::regclass ORDER BY 1"
    ) == [("pgque.consumer", "c"), ("pgque.queue", "c")]


def test_message(queue: Queue) -> None:
    assert queue.rows(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'pgque.message'::regclass AND attnum > 0 ORDER BY attnum"
    ) == [
        ("msg_id", "bigint"),
        ("batch_id", "bigint"),
        ("type", "text"),
        ("payload", "text"),
        ("retry_count", "integer"),
        ("created_at", "timestamp with time zone"),
        *((f"extra{number}", "text") for number in range(1, 5)),
    ]


def test_tables(queue: Queue) -> None:
    expected = ["config", "consumer", "dead_letter", "delayed_events", "queue", "retry_queue", "subscription", "tick"]
    found = queue.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pgque'::regnamespace AND relname = ANY (%s) ORDER BY 1",
        expected,
    )
    assert [name for (name,) in found] == expected
