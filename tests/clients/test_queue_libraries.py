"""Client libraries written for PgQue work against this server: PgQue's own, and the calls that such libraries make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from tests.clients import packages
from tests.e2e.conftest import Database

PROGRAM_SECONDS = 240.0
EVERYTHING = 2**31 - 1
NACK = "select pgque.nack(%s, row(%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)::pgque.message, %s::interval, %s)"


def test_pgques_own_python_client(live_db: Database, request: pytest.FixtureRequest) -> None:
    library = packages.pgque(Path(request.config.cache.mkdir("client-pgque")))
    done = subprocess.run(
        [sys.executable, packages.PROGRAMS / "with_pgque.py", live_db.server.dsn(live_db.name)],
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        env={**os.environ, "PYTHONPATH": str(library)},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "subscribed": [1, 0],
        "handled": [{"order_id": 42}, {"order_id": 43}, {"order_id": "fails"}, {"no": "type"}],
        "dead": [["order.created", None], ["unheard of", "no handler for type=unheard of"]],
        "shared": list(range(10)),
        "received": ["t", {"n": 1}, None],
        "acked": [1, 0],
        "retried": [1],
        "unsubscribed": [1, 1],
    }


def test_calls_of_a_client_library(live_db: Database, eventually: Callable[..., Any]) -> None:
    """Subscribe, LISTEN, send with JSON, receive, nack with a composite, ack: as drivers of any language send them."""
    producer, worker = live_db.connect(autocommit=False), live_db.connect()
    live_db.run("SELECT pgque.create_queue('orders'), pgque.set_queue_config('orders', 'max_retries', '1')")
    assert worker.execute("select pgque.subscribe(%s, %s)", ("orders", "w")).fetchone() == (1,)
    worker.execute(sql.SQL("LISTEN {}").format(sql.Identifier("pgque_orders")))
    (sent,) = producer.execute("select pgque.send(%s, %s, %s::jsonb)", ("orders", "t", '{"a":1}')).fetchall()[0]
    batch = producer.execute("select pgque.send_batch(%s, %s, %s::jsonb[])", ("orders", "t", ['{"b":2}'])).fetchall()
    producer.commit()
    assert list(worker.notifies(timeout=60, stop_after=1)) != []

    def received(retries: int | None) -> list[tuple[Any, ...]]:
        """A batch in one transaction: its first event is refused, the batch is acknowledged."""
        with worker.transaction():
            rows = worker.execute("select * from pgque.receive(%s, %s, %s)", ("orders", "w", EVERYTHING)).fetchall()
            if rows and rows[0][4] == retries:
                again = worker.execute(NACK, (rows[0][1], *rows[0], "0.1 seconds", "no luck")).fetchall()
                assert again == [(1,)]
            if rows:
                assert worker.execute("select pgque.ack(%s)", (rows[0][1],)).fetchall() == [(1,)]
        return rows

    first = eventually(lambda: received(None))
    assert [(row[0], row[2], row[3], row[4]) for row in first] == [
        (sent, "t", '{"a": 1}', None),
        (batch[0][0][0], "t", '{"b": 2}', None),
    ]
    assert [(row[0], row[4]) for row in eventually(lambda: received(1))] == [(sent, 1)]
    dead = worker.execute("select ev_id, dl_reason from pgque.dlq_inspect(%s)", ("orders",)).fetchall()
    assert dead == [(sent, "no luck")]
    assert worker.execute("select pgque.unsubscribe(%s, %s)", ("orders", "w")).fetchone() == (1,)
