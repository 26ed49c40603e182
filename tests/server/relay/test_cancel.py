"""Cancel requests hit what the client waits for and nothing else."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import psycopg
import pytest
from psycopg import errors

from tests.server.conftest import Engaged, RunningRelay, through
from tests.server.wire import dial, until_closed


def test_cancel_does_not_stop_the_relays_commit(engaged: Engaged) -> None:
    with psycopg.connect(engaged.dsn, autocommit=True) as client:
        client.execute("create table k(i int)")
        client.execute(
            "create function slow() returns trigger language plpgsql as"
            " $$ begin perform pg_advisory_xact_lock(1); return null; end $$"
        )
        client.execute(
            "create constraint trigger slow after insert on k deferrable initially deferred"
            " for each row execute function slow()"
        )
        pid = client.info.backend_pid

        def cancel_the_commit() -> None:
            waits = "select count(*) from pg_locks where pid = %s and locktype = 'advisory' and not granted"
            with psycopg.connect(engaged.direct) as holder:
                holder.execute("select pg_advisory_xact_lock(1)")
                held.set()
                while holder.execute(waits, (pid,)).fetchone() == (0,):
                    time.sleep(0.01)
                client.cancel_safe()
                time.sleep(0.2)  # a cancel that were passed on would hit the COMMIT by now

        held = threading.Event()
        canceller = threading.Thread(target=cancel_the_commit)
        canceller.start()
        held.wait()
        client.execute(
            "with n as (insert into k values (1) returning i)"
            " select pgtrickle.create_stream_table('t', 'select 1') from n"
        )
        canceller.join()
        assert client.execute("select count(*) from k").fetchone() == (1,)
    assert engaged.tables() == {"k", "t"}


def test_statement_that_follows_a_cancel_is_never_hit(relay: RunningRelay, dsn: str) -> None:
    with psycopg.connect(through(relay, dsn), autocommit=True) as client:
        for n in range(60):
            delay = n * 0.0002
            canceller = threading.Thread(target=lambda d=delay: (time.sleep(d), client.cancel_safe()))  # type: ignore[misc]
            canceller.start()
            with suppress(errors.QueryCanceled):
                client.execute("select pg_sleep(0.004)")
            # The cancel may come only now: then it finds nothing to cancel, or waits for its own statement.
            canceller.join()
            assert client.execute("select 1 from pg_sleep(0.002)").fetchone() == (1,)


def test_wrong_key_cancels_nothing(relay: RunningRelay, dsn: str) -> None:
    with psycopg.connect(through(relay, dsn), autocommit=True) as client, dial(relay.port) as connection:
        packet = (
            (16).to_bytes(4, "big")
            + (80877102).to_bytes(4, "big")
            + client.info.backend_pid.to_bytes(4, "big")
            + b"nope"
        )
        results: list[Any] = []
        runner = threading.Thread(
            target=lambda: results.append(client.execute("select 1 from pg_sleep(0.3)").fetchone())
        )
        runner.start()
        connection.sendall(packet)
        assert until_closed(connection) == b""
        runner.join()
        assert results == [(1,)]


def test_cancel_in_the_middle_of_a_large_result(relay: RunningRelay, dsn: str) -> None:
    with psycopg.connect(through(relay, dsn), autocommit=True) as client:
        rows = 0
        with pytest.raises(errors.QueryCanceled), client.cursor() as cursor:
            for _ in cursor.stream("select repeat('x', 1000) from generate_series(1, 3000000)"):
                rows += 1
                if rows == 1000:
                    client.cancel_safe()
        assert rows < 3_000_000
        assert client.execute("select 1").fetchone() == (1,)
