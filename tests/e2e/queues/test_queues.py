"""Queues through the wire: the clock, real clients, many at once, and what becomes of events when processes die."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from server.postgres.cluster import binaries
from tests.e2e.conftest import Database, Headwater
from tests.e2e.queues.queue_crews import DONE, Crew

Eventually = Callable[..., Any]

CLOCK = "SELECT pid FROM pgtrickle._lease_holder('queue clock') AS pid WHERE pid IS NOT NULL"


@pytest.fixture(scope="module")
def queues(server: Headwater) -> Iterator[Database]:
    """A database of the module's own, whose clock ticks every 20 ms; each test makes queues with names of their own."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE queues_e2e")
        database = Database(server, "queues_e2e")
        database.run("SELECT pgque.set_tick_period_ms(20)")
        try:
            yield database
        finally:
            database.close()
            connection.execute("DROP DATABASE queues_e2e WITH (FORCE)")


def receive(database: Database, queue: str, consumer: str) -> list[str]:
    """Payloads of the consumer's next batch that is not empty; acknowledged."""
    rows = database.rows(
        "SELECT batch_id, payload FROM pgque.receive(%s, %s, 1000000) ORDER BY msg_id", queue, consumer
    )
    if rows:
        assert database.value("SELECT pgque.ack(%s)", rows[0][0]) == 1
    return [payload for _, payload in rows]


def make(database: Database, queue: str, *consumers: str) -> None:
    database.run("SELECT pgque.create_queue(%s)", queue)
    for consumer in consumers:
        database.run("SELECT pgque.subscribe(%s, %s)", queue, consumer)


# ---------------------------------------------------------------------------------------------------------------------
# The clock


def test_clock_ticks_and_tells_listeners_through_the_relay(queues: Database, eventually: Eventually) -> None:
    make(queues, "orders", "billing")
    listener = queues.connect()
    listener.execute("LISTEN pgque_orders")
    event = queues.value("SELECT pgque.send('orders', 'order.created', %s::jsonb)", '{"order_id": 42}')
    (told,) = listener.notifies(timeout=60, stop_after=1)
    ((tick,),) = queues.rows(
        "SELECT max(tick_id) FROM pgque.tick JOIN pgque.queue ON queue_id = tick_queue WHERE queue_name = 'orders'"
    )
    assert told.channel == "pgque_orders"
    assert int(told.payload) <= tick
    ((message, kind, payload, retries),) = queues.rows(
        "SELECT msg_id, type, payload, retry_count FROM pgque.receive('orders', 'billing')"
    )
    assert (message, kind, payload, retries) == (event, "order.created", '{"order_id": 42}', None)


def test_events_sent_past_the_server_are_found(queues: Database, eventually: Eventually) -> None:
    make(queues, "seen")  # a server that knows of no queue in a database looks for some every 30 s only
    eventually(lambda: queues.rows(CLOCK), what="a clock")
    past = queues.bypass()
    past.execute("SELECT pgque.create_queue('bypassed')")
    past.execute("SELECT pgque.subscribe('bypassed', 'c')")
    past.execute("SELECT pgque.send('bypassed', 'from elsewhere')")
    assert eventually(lambda: receive(queues, "bypassed", "c")) == ["from elsewhere"]


def test_events_of_triggers_are_delivered(queues: Database, eventually: Eventually) -> None:
    make(queues, "changes", "replica")
    queues.run("CREATE TABLE stock (item text PRIMARY KEY, amount int)")
    queues.run(
        "CREATE TRIGGER changes AFTER INSERT OR UPDATE OR DELETE ON stock"
        " FOR EACH ROW EXECUTE PROCEDURE pgque.jsontriga('changes')"
    )
    queues.run("INSERT INTO stock VALUES ('bolt', 7)")
    (payload,) = eventually(lambda: receive(queues, "changes", "replica"))
    assert json.loads(payload) == {"item": "bolt", "amount": 7}


def test_event_committed_long_after_its_tick_is_delivered(queues: Database, eventually: Eventually) -> None:
    make(queues, "late", "c")
    slow = queues.connect(autocommit=False)
    slow.execute("SELECT pgque.send('late', 'slow')")
    queues.run("SELECT pgque.send('late', 'quick')")
    assert eventually(lambda: receive(queues, "late", "c")) == ["quick"]
    slow.commit()
    assert eventually(lambda: receive(queues, "late", "c")) == ["slow"]


def test_event_rolled_back_is_never_delivered(queues: Database, eventually: Eventually) -> None:
    make(queues, "undone", "c")
    with queues.connect(autocommit=False) as connection:
        connection.execute("SELECT pgque.send('undone', 'never')")
        connection.rollback()
    queues.run("SELECT pgque.send('undone', 'kept')")
    assert eventually(lambda: receive(queues, "undone", "c")) == ["kept"]


def test_retries_and_dead_letters_move_with_the_clock(queues: Database, eventually: Eventually) -> None:
    make(queues, "failing", "c")
    queues.run("SELECT pgque.set_queue_config('failing', 'max_retries', '2')")
    queues.run("SELECT pgque.send('failing', 'job', 'bad')")
    take = (
        "SELECT r.batch_id, r.retry_count, pgque.nack(r.batch_id, r, '0 seconds', 'no luck')"
        " FROM pgque.receive('failing', 'c') r"
    )
    seen = []
    for _ in range(3):
        ((batch, retries, _),) = eventually(lambda: queues.rows(take))
        seen.append(retries)
        assert queues.value("SELECT pgque.ack(%s)", batch) == 1
    assert seen == [None, 1, 2]
    ((letter, reason, payload),) = queues.rows("SELECT dl_id, dl_reason, ev_data FROM pgque.dlq_inspect('failing')")
    assert (reason, payload) == ("no luck", "bad")
    queues.run("SELECT pgque.dlq_replay(%s)", letter)
    assert eventually(lambda: receive(queues, "failing", "c")) == ["bad"]
    assert queues.rows("SELECT * FROM pgque.dlq_inspect('failing')") == []


def test_delayed_events_are_delivered_when_they_are_due(queues: Database, eventually: Eventually) -> None:
    make(queues, "delayed", "c")
    with queues.connection.transaction():
        queues.run("SELECT pgque.send_at('delayed', 'reminder', '{\"n\": 1}'::jsonb, now() + interval '1 second')")
        assert queues.value("SELECT count(*) FROM pgque.delayed_events") == 1
    due = "SELECT now() >= de_deliver_at FROM pgque.delayed_events"
    assert eventually(lambda: receive(queues, "delayed", "c")) == ['{"n": 1}']
    assert queues.rows(due) == []


def test_a_broken_queue_does_not_stop_the_others(queues: Database, eventually: Eventually) -> None:
    make(queues, "broken")
    make(queues, "sound", "c")
    sequence = queues.value("SELECT queue_event_seq FROM pgque.queue WHERE queue_name = 'broken'")
    queues.run(f"ALTER SEQUENCE {sequence} RENAME TO hidden")
    try:
        queues.run("SELECT pgque.send('sound', 'still here')")
        assert eventually(lambda: receive(queues, "sound", "c")) == ["still here"]
        eventually(lambda: "queue not ticked" in queues.server.log)
        queues.run("SELECT pgque.send('sound', 'and again')")
        assert eventually(lambda: receive(queues, "sound", "c")) == ["and again"]
    finally:
        queues.run(f"ALTER SEQUENCE pgque.hidden RENAME TO {sequence.removeprefix('pgque.')}")
    queues.run("SELECT pgque.subscribe('broken', 'c')")
    queues.run("SELECT pgque.send('broken', 'mended')")
    assert eventually(lambda: receive(queues, "broken", "c")) == ["mended"]


def test_a_queue_somebody_holds_locked_does_not_stop_the_others(queues: Database, eventually: Eventually) -> None:
    make(queues, "held", "c")
    make(queues, "free", "c")
    with queues.connect(autocommit=False) as holder:
        holder.execute("SELECT FROM pgque.queue WHERE queue_name = 'held' FOR UPDATE")
        queues.run("SELECT pgque.send('held', 'waits')")
        queues.run("SELECT pgque.send('free', 'passes')")
        assert eventually(lambda: receive(queues, "free", "c")) == ["passes"]
        holder.rollback()
    assert eventually(lambda: receive(queues, "held", "c")) == ["waits"]


def test_stop_and_start(live_db: Database, eventually: Eventually) -> None:
    make(live_db, "halted", "c")
    eventually(lambda: live_db.rows(CLOCK), what="a clock")
    live_db.run("SELECT pgque.stop()")
    age = "SELECT max(tick_time) < clock_timestamp() - interval '1.5 seconds' FROM pgque.tick"
    eventually(lambda: live_db.value(age))
    live_db.run("SELECT pgque.send('halted', 'waits')")
    eventually(lambda: live_db.value(age.replace("1.5", "3.5")))
    assert receive(live_db, "halted", "c") == []
    assert live_db.value("SELECT pgque.set_tick_period_ms(10)") == 10
    live_db.run("SELECT pgque.start()")
    assert eventually(lambda: receive(live_db, "halted", "c")) == ["waits"]
    ((status, detail),) = live_db.rows("SELECT status, detail FROM pgque.status() WHERE component = 'ticker'")
    assert (status, detail) == ("running", "by the server, every 10 ms")


def test_status_shows_the_clock(queues: Database, eventually: Eventually) -> None:
    make(queues, "shown")
    ((backend,),) = eventually(lambda: queues.rows(CLOCK), what="a clock")
    shown = queues.server.status()
    clocks = [line for line in shown.splitlines() if f"every 20 ms (backend {backend}," in line]
    assert len(clocks) == 1 and "queues_e2e" in clocks[0], shown


def test_databases_without_queues_have_no_clock(live_db: Database, eventually: Eventually) -> None:
    make(live_db, "only")
    eventually(lambda: live_db.rows(CLOCK), what="a clock")
    live_db.run("SELECT pgque.drop_queue('only')")
    eventually(lambda: not live_db.rows(CLOCK), what="no clock")
    make(live_db, "another", "c")
    live_db.run("SELECT pgque.send('another', 'hello')")
    assert eventually(lambda: receive(live_db, "another", "c")) == ["hello"]


# ---------------------------------------------------------------------------------------------------------------------
# Clients


def test_psql_sends_and_receives(queues: Database, eventually: Eventually) -> None:
    make(queues, "typed", "c")

    def psql(command: str) -> str:
        return subprocess.run(
            [str(binaries() / "psql"), queues.server.dsn(queues.name), "-XAt", "-c", command],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert psql("SELECT pgque.send('typed', 'default', 'from psql')").strip().isdigit()
    take = "SELECT payload, pgque.ack(batch_id) FROM pgque.receive('typed', 'c')"
    assert eventually(lambda: psql(take)) == "from psql|1\n"


def test_asyncpg_sends_in_batches_and_hears_of_ticks(queues: Database) -> None:
    make(queues, "async", "c")

    async def run() -> list[str]:
        options = psycopg.conninfo.conninfo_to_dict(queues.server.dsn(queues.name))
        connection = await asyncpg.connect(
            **{key: options[key] for key in ("host", "port", "user", "password")}, database=queues.name
        )
        told = asyncio.Event()
        await connection.add_listener("pgque_async", lambda *_: told.set())
        ids = await connection.fetchval(
            "SELECT pgque.send_batch(queue_name := $1, type_name := $2, payloads := $3::text[])",
            *("async", "default", ["a", "b", None]),
        )
        assert len(set(ids)) == 3
        async with asyncio.timeout(60):
            while True:
                await told.wait()
                told.clear()
                rows = await connection.fetch("SELECT batch_id, msg_id, payload FROM pgque.receive('async', 'c')")
                if rows:
                    break
        assert [row["msg_id"] for row in rows] == ids
        await connection.execute("SELECT pgque.ack($1)", rows[0]["batch_id"])
        await connection.close()
        return [row["payload"] for row in rows]

    assert asyncio.run(run()) == ["a", "b", None]


# ---------------------------------------------------------------------------------------------------------------------
# Many at once


def test_many_producers_and_consumers_lose_and_repeat_nothing(queues: Database, eventually: Eventually) -> None:
    make(queues, "busy", "alone")
    queues.run(DONE)
    with Crew(lambda: queues.server.dsn(queues.name), "busy") as crew:
        for worker in range(4):
            crew.cooperate("group", f"w{worker}")
        eventually(lambda: queues.value("SELECT count(*) FROM pgque.subscription WHERE sub_role = 'coop_member'") == 4)
        for number in range(3):
            crew.produce(f"p{number}", 40, seed=number)
        crew.consume("alone")
        crew.all_sent()
        eventually(lambda: crew.arrived(queues.connection, "alone", "group"), what="all events")
    crew.check(queues.connection, "alone", "group")
    assert crew.sent.total() > 100
    queues.run("DROP TABLE done")


def test_transaction_open_across_rotations_loses_nothing(queues: Database, eventually: Eventually) -> None:
    make(queues, "rotated", "c")
    queues.run("SELECT pgque.set_queue_config('rotated', 'rotation_period', '1 ms')")
    table = "SELECT queue_cur_table FROM pgque.queue WHERE queue_name = 'rotated'"
    with queues.connect(autocommit=False) as slow:
        slow.execute("SELECT pgque.send('rotated', 'open for long')")
        used = {queues.value(table)}
        for number in range(6):
            queues.run("SELECT pgque.send('rotated', %s::text)", f"rotated {number}")
            assert eventually(lambda: receive(queues, "rotated", "c")) == [f"rotated {number}"]
            queues.run("SELECT pgque.maint()")
            queues.run("SELECT pgque.maint_rotate_tables_step2()")
            used.add(queues.value(table))
        assert len(used) > 1
        slow.commit()
    assert eventually(lambda: receive(queues, "rotated", "c")) == ["open for long"]
    for _ in range(6):
        queues.run("SELECT pgque.maint()")
        queues.run("SELECT pgque.maint_rotate_tables_step2()")
    assert queues.value("SELECT count(*) FROM pgque.event_template WHERE ev_data ~ '^(rotated|open for long)'") == 0


@pytest.mark.long
def test_group_of_16_workers_some_of_which_are_killed(queues: Database, eventually: Eventually) -> None:
    make(queues, "deadly")
    queues.run(DONE)
    rng = random.Random(16)
    with Crew(lambda: queues.server.dsn(queues.name, application_name="crew"), "deadly") as crew:
        for worker in range(16):
            crew.cooperate("group", f"w{worker}", dead_interval="2 seconds")
        eventually(lambda: queues.value("SELECT count(*) FROM pgque.subscription WHERE sub_role = 'coop_member'") >= 16)
        for number in range(4):
            crew.produce(f"p{number}", 400, seed=number)
        pids = "SELECT pid FROM pg_stat_activity WHERE application_name = 'crew' AND datname = current_database()"
        for _ in range(30):
            crew.all_sent(0.3)
            living = queues.rows(pids)
            if living:
                queues.run("SELECT pg_terminate_backend(%s)", rng.choice(living)[0])
        crew.all_sent()
        eventually(lambda: crew.arrived(queues.connection, "group"), what="all events")
    crew.check(queues.connection, "group")
    assert queues.value("SELECT count(DISTINCT worker) FROM done") > 4
    queues.run("DROP TABLE done")


# ---------------------------------------------------------------------------------------------------------------------
# What dies


def survive(server: Headwater, kill: Callable[[], None], rounds: int, eventually: Eventually) -> None:
    """Kill and start again under load; every event is counted in the end."""
    database = Database(server, "postgres")
    make(database, "survivor", "alone")
    database.run(DONE)
    database.close()
    with Crew(lambda: server.dsn(connect_timeout=30), "survivor") as crew:
        crew.consume("alone")
        for worker in range(4):
            crew.cooperate("group", f"w{worker}", dead_interval="5 seconds")
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            members = "SELECT count(*) FROM pgque.subscription WHERE sub_role = 'coop_member'"
            eventually(lambda: connection.execute(members).fetchone() == (4,))
        for number in range(3):
            crew.produce(f"p{number}", 1500, seed=number)
        for _ in range(rounds):
            before = crew.sent.total()
            eventually(lambda before=before: crew.sent.total() > before + 20, what="some events sent")
            kill()
            server.start()
        crew.all_sent()
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            eventually(lambda: crew.arrived(connection, "alone", "group"), what="all events")
            crew.check(connection, "alone", "group")


@pytest.mark.long
def test_server_killed_under_load(own_server: Headwater, eventually: Eventually) -> None:
    survive(own_server, own_server.kill, 3, eventually)


@pytest.mark.long
def test_postgresql_killed_under_load(own_server: Headwater, eventually: Eventually) -> None:
    def kill() -> None:
        lines = (own_server.data / "postgres" / "postmaster.pid").read_text().splitlines()
        os.kill(int(lines[0]), signal.SIGKILL)
        assert own_server.process is not None
        assert own_server.process.wait(180) == 1

    survive(own_server, kill, 3, eventually)


@pytest.mark.long
def test_second_server_takes_over_the_clock(own_server: Headwater, tmp_path: Path, eventually: Eventually) -> None:
    login = psycopg.conninfo.conninfo_to_dict(own_server.direct_dsn())
    url = f"postgresql://{login['user']}:{login['password']}@/postgres?host={login['host']}&port={login['port']}"
    (tmp_path / "second").mkdir()
    second = Headwater(tmp_path / "second" / "data", "--postgres", url).start()
    try:
        database = Database(own_server, "postgres")
        make(database, "shared", "c")
        with database.connect() as holder:  # whose clock it is cannot be seen; so the one that has it loses it, twice
            for number in range(4):
                ((clock,),) = eventually(lambda: holder.execute(CLOCK).fetchall(), what="a clock")
                database.run("SELECT pgque.send('shared', %s::text)", str(number))
                assert eventually(lambda: receive(database, "shared", "c")) == [str(number)]
                holder.execute("SELECT pg_terminate_backend(%s)", [clock])
                eventually(lambda clock=clock: holder.execute(CLOCK).fetchall() not in ([], [(clock,)]))
            assert len(holder.execute(CLOCK).fetchall()) == 1
        second.kill()
        database.run("SELECT pgque.send('shared', 'one is left')")
        assert eventually(lambda: receive(database, "shared", "c")) == ["one is left"]
        database.close()
    finally:
        second.stop()
