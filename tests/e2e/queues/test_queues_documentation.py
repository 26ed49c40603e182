"""The examples of docs/queues.md, from the first to the last: every answer must be the one that is printed there."""

from __future__ import annotations

import re
import threading
from typing import Any

import psycopg

from tests.e2e.conftest import Database
from tests.e2e.documentation import assert_examples_are_true, page

TEXT = page("queues.md")
PROGRAM = re.compile(r"```python\n(.*?)```\n", re.DOTALL)
SECONDS = 60.0


def test_examples_of_the_documentation_are_true(live_db: Database) -> None:
    try:
        assert_examples_are_true(live_db, TEXT)
    finally:
        live_db.run("DROP ROLE IF EXISTS shop")


def test_consumer_of_the_documentation_handles_each_event(live_db: Database, eventually: Any) -> None:
    (program,) = PROGRAM.findall(TEXT)
    names: dict[str, Any] = {}
    exec(program, names)
    handled: list[tuple[str, str]] = []

    def handle(kind: str, payload: str) -> None:
        handled.append((kind, payload))
        if payload == "bad":
            raise ValueError("no luck")

    live_db.run("SELECT pgque.create_queue('Jobs')")
    live_db.run("SELECT pgque.subscribe('Jobs', 'worker')")
    live_db.run("SELECT pgque.set_queue_config('Jobs', 'max_retries', '0')")
    stop = threading.Event()
    arguments = (live_db.server.dsn(live_db.name), "Jobs", "worker", handle, stop)
    worker = threading.Thread(target=names["consume"], args=arguments)
    worker.start()
    try:
        live_db.run("SELECT pgque.send('Jobs', 'one', 'good')")
        live_db.run("SELECT pgque.send('Jobs', 'two', 'bad')")
        eventually(lambda: live_db.rows("SELECT * FROM pgque.dlq_inspect('Jobs')"))
    finally:
        stop.set()
        with psycopg.connect(live_db.server.dsn(live_db.name), autocommit=True) as connection:
            connection.execute('NOTIFY "pgque_Jobs"')
        worker.join(SECONDS)
    assert not worker.is_alive()
    assert handled == [("one", "good"), ("two", "bad")]
    assert live_db.rows("SELECT dl_reason, ev_data FROM pgque.dlq_inspect('Jobs')") == [("no luck", "bad")]
